"""One file that takes a batch over many shards with one write, before each shard has its own (D6).

    <root>/.tubestore/journal

A frame is one batch: `JOURNAL_FRAME`, a `JOURNAL_PART` for each shard, the shards' names with
`\\n` in between, all index entries, all records. A part's entries and records follow each other
in the order of the parts, and are the bytes that the shard's own files will have. A frame counts
when its digest (xxh3 of everything behind the header) is right and its generation is that of the
first frame.

A generation begins with a frame of no parts; its names are the boot of the machine (the page cache
lives as long as it). It ends when all its messages are in the shards' files: the next generation is
written over it.

Each frame is followed by a mark, written last: a frame of no parts; its names are a `JOURNAL_MARK`,
the parts and names of the frame once more, and the boot. It proves that the frame was written, and
contains which messages it held if the frame is damaged.

| a frame that does not count            | what it is                                            |
| -------------------------------------- | ----------------------------------------------------- |
| nothing of its generation behind it    | the end: a write that did not end, or none            |
| … something behind, same boot          | damage                                                |
| … another boot, below what was synced  | damage                                                |
| … another boot, not known to be synced | the end: a power cut keeps any part of what came then |
| … its boot is in no frame              | as of another boot: each mark names the boot          |
| the first one, which names the boot    | nothing is lost: the marks name it too                |
| all of them, same boot                 | damage; of another boot the end, as above             |

The last frame of a process that was killed either counts, or has no mark: its write did not end,
and nothing of it was acknowledged. Behind damage the journal goes on, with a part for each lost
part that keeps its place (`JournalPart.lost`).

The next opening for writing reads it once and gives each shard what it lacks, so a kill loses
nothing of it. Readers beside the writer read it, too (`journal_overlay.py`).

Guards: the lock of `JournalledAppends`, held from placing a batch to writing its frame, so that
frames are in the order of offsets.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from os.path import dirname
from typing import Any, NamedTuple

import numpy as np
import xxhash

from tubestore.core.doors import logger
from tubestore.core.layout import Buffer
from tubestore.core.paths import OWN_DIRECTORY, join
from tubestore.core.vfs import Vfs, VfsFile
from tubestore.errors import CorruptRecord
from tubestore.record.layouts import (
    INDEX_ENTRY,
    JOURNAL_FRAME,
    JOURNAL_MAGIC,
    JOURNAL_MARK,
    JOURNAL_PART,
)
from tubestore.record.names import JOURNAL_FILE, JOURNALLED_FILE, parse_store_key
from tubestore.record.records import lost_entry

log = logger(__name__)
Array = np.ndarray[Any, Any]
#: Read at a time when a frame is looked for.
_SEARCHED_BYTES = 1 << 20
_HEADER = JOURNAL_FRAME.size
_MAGIC = JOURNAL_MAGIC.to_bytes(4, "big")


class JournalPart(NamedTuple):
    """The part of a frame for one shard: the places of its messages, their entries and records."""

    shard: str
    index_start: int
    data_start: int
    entries: Array
    data: Buffer
    #: The frame was damaged: the entries keep the messages' places, the data are zeros.
    lost: bool = False
    #: Damaged bytes of the journal before this part; a gap before the part may come from them.
    damaged_before: int = 0
    #: Of the ring: the position behind the last frame.
    ring_end: int = 0


def joined_parts(parts: Sequence[JournalPart]) -> JournalPart:
    """Return parts of a shard that follow each other as one."""
    if len(parts) == 1:
        return parts[0]
    # As bytes: numpy joins structured arrays in the machine's byte order.
    entries = np.concatenate([part.entries.view(np.uint8) for part in parts])
    return parts[0]._replace(
        entries=entries.view(INDEX_ENTRY.dtype),
        data=b"".join(part.data for part in parts),
        ring_end=parts[-1].ring_end,
    )


class LeftJournal(NamedTuple):
    """What a journal holds: its frames, which are all of one generation and boot."""

    generation: int
    boot_id: str
    #: Bytes up to the end of the last frame that counts.
    size: int
    #: In the order of their frames, lost ones among them.
    parts: list[JournalPart]
    #: Damaged places, each with the reason.
    damages: list[CorruptRecord]
    #: The bytes behind the last frame: as long as they do not change, no frame has been added.
    tail: bytes = b""


class RootJournal:
    """The journal of a store that is open for writing."""

    def __init__(self, vfs: Vfs, root: str, generation: int) -> None:
        self._vfs = vfs
        self._boot_id = vfs.boot_id()
        self._directory = join(root, OWN_DIRECTORY)
        self.path = join(self._directory, JOURNAL_FILE)
        self.generation = generation
        self.size = 0
        #: How far a generation was synced: (generation, bytes); one tuple, replaced as a whole.
        self._synced = (generation, 0)
        #: True once a sync failed: what the system dropped is not known, so no sync counts any
        #: more.
        self.failed = False
        #: True while the file may hold synced frames of the generation before.
        self._replaces_synced = False
        self._file: VfsFile | None = None
        self._named = False
        self._note = join(self._directory, JOURNALLED_FILE)
        #: True while the note records that there are frames.
        self._noted = False

    def write(self, names: bytes, parts: Array, entries: Buffer, data: Buffer) -> None:
        """Append a frame: in the page cache on return, and not in the file after an OSError.

        `parts` is a structured array, a row a shard, in the order of `entries` and `data`. `names`
        are
        these shards' names, joined by line feeds.
        """
        file = self._opened()
        raw_parts = parts.tobytes()
        front = self._front(names, raw_parts, entries, data)
        start = self.size or self._begin(file)
        mark = self._mark(start, raw_parts, names)
        end = start + len(front) + len(data)
        file.pwrite(data, start + len(front))
        file.pwrite(front, start)  # after the records: it is what makes the frame count
        file.pwrite(mark, end)  # after the frame: it proves that all of it was written
        self.size = end + len(mark)

    def _begin(self, file: VfsFile) -> int:
        """Write the first frame of a generation; returns its end.

        It is written before any frame of the generation before is written over, and synced if those
        were: half a generation is damage, unless another generation has begun.
        """
        first = self._front(_boot_body(self._boot_id, self.generation), b"", b"", b"")
        file.pwrite(first, 0)
        if not self._noted:
            # After the journal: while the note is there, the journal has been begun.
            if not self._vfs.exists(self._note):
                self._vfs.replace_file(self._note, self._boot_id.encode(), sync=False)
            self._noted = True
        if self._replaces_synced:
            self._sync(file)
            self._replaces_synced = False
        return len(first)

    def _mark(self, frame: int, parts: bytes, names: bytes) -> bytes:
        """Return the mark of a frame, given the frame's place."""
        generation, synced = self._synced
        mark = JOURNAL_MARK.pack(
            frame=frame,
            synced=synced if generation == self.generation else 0,
            parts=len(parts) // JOURNAL_PART.size,
            names_size=len(names),
        )
        return self._front(b"".join((mark, parts, names, self._boot_id.encode())), b"", b"", b"")

    def _front(self, names: bytes, parts: bytes, entries: Buffer, data: Buffer) -> bytes:
        """Return all of a frame but the records."""
        head = parts + names
        digest = xxhash.xxh3_64(head)
        digest.update(entries)
        digest.update(data)
        header = JOURNAL_FRAME.pack(
            magic=JOURNAL_MAGIC,
            parts=len(parts) // JOURNAL_PART.size,
            names_size=len(names),
            entries=len(entries) // INDEX_ENTRY.size,
            data_size=len(data),
            generation=self.generation,
            digest=digest.intdigest().to_bytes(8, "big"),
        )
        return b"".join((header, head, entries))

    def _opened(self) -> VfsFile:
        if self._file is None:
            exists = self._vfs.exists(self.path)
            self._file = self._vfs.open(self.path, create=not exists)
        return self._file

    def sync(self) -> None:
        """Bring every frame to stable storage."""
        if self._file is not None:
            reached = self.generation, self.size
            self._sync(self._file)
            if not self._named:
                with contextlib.suppress(OSError):  # only a missing journal would go unreported
                    self._vfs.replace_file(self._note, _synced_note(self._boot_id))
                self._vfs.sync_directory(self._directory)
                self._named = True
            self._synced = reached

    def _sync(self, file: VfsFile) -> None:
        try:
            file.sync()
        except OSError:
            self.failed = True
            raise

    def go_on(self, left: LeftJournal) -> None:
        """Write behind the frames of a process that was killed; OSError if that cannot be done."""
        file = self._opened()
        if file.size() > left.size:  # part of a frame
            file.truncate(left.size)
        self.generation, self.size = left.generation, left.size
        self._replaces_synced = True

    def begin_anew(self, generation: int) -> None:
        """Forget all frames: the shards' files have their messages.

        The next frame is written over the first one. A power cut may bring old frames back; the
        shards have their messages, or had them. `generation` is raised above the one that ends.
        """
        ended, synced = self._synced
        self._replaces_synced |= ended == self.generation and synced > 0
        # Rising within a file: a clock that was set back, or opening within the millisecond of the
        # kill, gives a number again, and old frames would count.
        self.generation, self.size = max(generation, self.generation + 1), 0

    def forget(self) -> None:
        """Empty the file as well, durably; after `begin_anew`."""
        if self._file is not None:
            self._remove_note()
            self._vfs.sync_directory(self._directory)
            self._named = False
            self._file.truncate(0)
            self._file.sync()

    def remove(self) -> None:
        """Remove the journal, durably: a closed store has none."""
        self.close()
        noted = self._remove_note()
        if self._vfs.exists(self.path):
            self._vfs.remove(self.path)
        elif not noted:
            return
        self._vfs.sync_directory(self._directory)

    def _remove_note(self) -> bool:
        """Remove the note that there are frames; returns whether there was one."""
        noted = self._vfs.exists(self._note)
        if noted:
            self._vfs.remove(self._note)
        self._noted = False
        return noted

    def close(self) -> None:
        """Give the descriptor back."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def check_invariants(self) -> None:
        """Raise AssertionError if the fields contradict each other or the file; for tests."""
        generation, synced = self._synced
        assert generation <= self.generation, "a generation was synced that has not begun"
        if generation == self.generation:
            assert synced <= self.size, "more was synced than was written"
        if self.failed or not self.size:
            return  # what the file holds is not known, or is of the generation before
        left = read_journal(self._vfs, dirname(self._directory))
        assert left is not None, "the frames are not in the file"
        assert left.generation == self.generation, "the file has frames of another generation"
        assert left.size == self.size, "the frames end elsewhere in the file"
        assert not left.damages, "a frame is damaged"


def read_journal(vfs: Vfs, root: str, known: LeftJournal | None = None) -> LeftJournal | None:
    """Return the frames of a journal in their order; None if there is none.

    The journal ends where nothing more of the first frame's generation follows. Damage before that
    is in `damages`; the parts that it took are returned as lost ones, as far as they are known.
    `known` is what was read before. If the generation is the same, only the parts that came since
    are
    returned; after damage all of them.
    """
    path = join(root, OWN_DIRECTORY, JOURNAL_FILE)
    for noted in (False, True):
        try:
            file = vfs.open(path, writable=False)
        except FileNotFoundError:
            # Read once more: a writer may have made the journal, and the note after it.
            if not vfs.exists(join(root, OWN_DIRECTORY, JOURNALLED_FILE)):
                return None
            if noted:
                return _lost_journal(path, "is missing")
            continue
        with contextlib.closing(file):
            found = _Reading(file, vfs.boot_id()).run(known)
            first = _HEADER + len(_boot_body(vfs.boot_id(), 0))
            # The size is read again, too: the first frame is written before the note.
            if found is None and _had_frames(vfs, root) and file.size() < first:
                return _lost_journal(path, "is cut off" if file.size() else "is empty")
            return found
    return None


def _synced_note(boot_id: str) -> bytes:
    return f"{boot_id}\nsynced".encode()


def _had_frames(vfs: Vfs, root: str) -> bool:
    """True if a journal of no bytes had frames, of this boot or synced ones."""
    try:
        note = vfs.read_file(join(root, OWN_DIRECTORY, JOURNALLED_FILE))
    except OSError:
        return False
    boot_id, _, synced = note.decode(errors="replace").partition("\n")
    return boot_id == vfs.boot_id() or synced == "synced"


def _lost_journal(path: str, how: str) -> LeftJournal:
    """Return a journal with one damage: all of it is gone."""
    why = f"the journal of a process that was killed {how}; what only it held is lost"
    return LeftJournal(0, "", 0, [], [CorruptRecord(path, 0, why)])


class _Stretch(NamedTuple):
    """Bytes [start, end) of a journal without a frame that counts, and the reason."""

    start: int
    end: int
    reason: str


class _Reading:
    """One reading of a journal, frame by frame and over damage."""

    def __init__(self, file: VfsFile, this_boot: str) -> None:
        self._file, self._this_boot = file, this_boot
        self.generation, self.boot_id = 0, ""
        self._synced = 0
        #: Parts before the first stretch of damage, and behind each.
        self._parts: list[list[JournalPart]] = [[]]
        self._stretches: list[_Stretch] = []
        #: Bytes that the search for frames may still digest: it stays linear, whatever it finds.
        self._budget = 8 * file.size()

    def run(self, known: LeftJournal | None) -> LeftJournal | None:
        """Go to the end, and return what was found; None if that is nothing."""
        start = self._find_start()
        if start is None:
            return self._unreadable()
        tail = None
        if known is not None and known.generation == self.generation and not known.damages:
            start, tail = known.size, known.tail
        size = self._end(self._walk(start, tail))
        parts = [part for group in self._parts for part in group]
        damages = [CorruptRecord(self._file.path, s.start, s.reason) for s in self._stretches]
        found = self._file.pread(JOURNAL_FRAME.size, size)
        return LeftJournal(self.generation, self.boot_id, size, parts, damages, found)

    def _unreadable(self) -> LeftJournal | None:
        """Return a journal without frames and with one damage, the whole file.

        None if a kill during the first write or a power cut before the sync leaves such a file: a
        part of
        the first frame, or zeros in its place and no name of this boot.
        """
        size, first = self._file.size(), self._file.pread(_HEADER, 0)
        if len(first) < _HEADER or _read_frame(self._file, 0) is not None:
            return None  # in the latter case a writer has begun it meanwhile
        header = JOURNAL_FRAME.unpack_from(first)
        body = _size_of(header)
        if body is not None and size < _HEADER + body:
            return None
        magic = JOURNAL_FRAME.slice("magic")
        began = all(found in (0, byte) for found, byte in zip(first[magic], _MAGIC, strict=True))
        if began and not self._names_this_boot():
            return None
        why = f"no frame of the journal can be read; what its {size} bytes held is not known"
        damage = CorruptRecord(self._file.path, 0, why)
        return LeftJournal(0, "", 0, [], [damage], first)

    def _names_this_boot(self) -> bool:
        """True if the file contains the name of this boot anywhere; each mark has it."""
        name, at = self._this_boot.encode(), 0
        while chunk := self._file.pread(_SEARCHED_BYTES + len(name), at):
            if name in chunk:
                return bool(name)
            at += _SEARCHED_BYTES
        return False

    def _find_start(self) -> int | None:
        """Find the generation, and where its frames begin; None if there is none."""
        first = _read_frame(self._file, 0)
        if first is not None and not first.is_refuted():
            self.generation = first.header.generation
            if not first.header.parts:
                self.boot_id = first.boot_id()
            return 0
        found = self._find(1, None)
        if found is None:
            return None
        start, frame = found
        self.generation = frame.header.generation
        behind = _read_frame(self._file, start + frame.size) if frame.header.parts else frame
        mark = behind.mark() if behind is not None else None
        return start if mark is None else min(start, len(_boot_body(mark.boot_id, 0)) + _HEADER)

    def _walk(self, position: int, tail: bytes | None) -> int:
        """Take the frames from a place on; returns the end of the last one.

        `tail`: the bytes at that place when it was the end.
        """
        if tail is not None and self._file.pread(JOURNAL_FRAME.size, position) == tail:
            return position
        while True:
            frame = self._sound(position)
            if frame is not None:
                self._take(frame)
                position += frame.size
                continue
            found = self._find(position + 1, self.generation)
            if found is None:
                return position
            if self._sound(position) is not None:
                continue  # a writer has written it meanwhile
            end, behind = found
            self._stretches.append(_Stretch(position, end, self._trouble(position, end)))
            self._parts.append(self._lost(behind, position, end))
            position = end

    def _end(self, size: int) -> int:
        """Leave out what is behind the journal's end, given the end of its last frame.

        The journal ends at the first damage if a writer has begun another generation meanwhile, or
        if a
        power cut may have taken what was not synced.
        """
        first = _read_frame(self._file, 0) if self._stretches else None
        anew = first is not None and first.header.generation != self.generation
        anew = anew and first is not None and not first.is_refuted()
        rebooted = self.boot_id != self._this_boot
        if not self.boot_id:  # neither the first frame nor a mark is there
            rebooted = bool(self._this_boot) and not self._names_this_boot()
        for number, stretch in enumerate(self._stretches):
            if anew or (rebooted and stretch.start >= self._synced):
                del self._stretches[number:], self._parts[number + 1 :]
                return stretch.start
        return size

    def _sound(self, position: int) -> _Frame | None:
        """Return the frame at a place, if it counts."""
        frame = _read_frame(self._file, position)
        return frame if frame is not None and frame.header.generation == self.generation else None

    def _take(self, frame: _Frame) -> None:
        """Take the parts of a frame, or the content of a mark."""
        damaged = sum(stretch.end - stretch.start for stretch in self._stretches)
        self._parts[-1] += (part._replace(damaged_before=damaged) for part in frame.split())
        mark = frame.mark()
        if mark is not None:
            self._synced = max(self._synced, mark.synced)
            self.boot_id = mark.boot_id

    def _lost(self, behind: _Frame, start: int, end: int) -> list[JournalPart]:
        """Return a part for each that a damaged frame had, if the mark behind it is sound."""
        mark = behind.mark()
        if mark is None or not start <= mark.frame < end:
            return []
        damaged = sum(stretch.end - stretch.start for stretch in self._stretches)
        return [part._replace(damaged_before=damaged) for part in mark.lost_parts()]

    def _trouble(self, start: int, end: int) -> str:
        """Return what is wrong with the frame at a place."""
        raw = self._file.pread(JOURNAL_FRAME.size, start)
        header = JOURNAL_FRAME.unpack_from(raw)
        if header.magic != JOURNAL_MAGIC:
            why = "not the first bytes of a frame"
        elif header.generation != self.generation:
            why = "a frame of another generation"
        else:
            why = "its digest or a size is not right"
        return f"a frame of the journal is damaged ({why}); {end - start} bytes do not count"

    def _find(self, position: int, generation: int | None) -> tuple[int, _Frame] | None:
        """Return the next sound frame at or behind a place: (where, frame); None if none follows.

        `generation`: the one that it is of; None: any.
        """
        field = "magic" if generation is None else "generation"
        pattern = JOURNAL_FRAME.pack(
            magic=JOURNAL_MAGIC, parts=0, names_size=0, entries=0, data_size=0,
            generation=generation or 0, digest=bytes(8),
        )[JOURNAL_FRAME.slice(field)]  # fmt: skip
        before = JOURNAL_FRAME.position(field)
        at = position + before
        while chunk := self._file.pread(_SEARCHED_BYTES, at):
            place = chunk.find(pattern)
            while place >= 0:
                start = at + place - before
                frame = _read_frame(self._file, start)
                if frame is not None and generation in (None, frame.header.generation):
                    return start, frame
                self._budget -= self._asked_size(start)
                if self._budget < 0:
                    return None
                place = chunk.find(pattern, place + 1)
            if len(chunk) < _SEARCHED_BYTES:
                return None
            at += len(chunk) - len(pattern) + 1
        return None

    def _asked_size(self, position: int) -> int:
        """Return how many bytes were read to find no sound frame at a place."""
        raw = self._file.pread(JOURNAL_FRAME.size, position)
        if len(raw) < JOURNAL_FRAME.size:
            return 0
        return min(_size_of(JOURNAL_FRAME.unpack_from(raw)) or 0, self._file.size())


class _Mark(NamedTuple):
    """The content of a mark: the frame before it, and how far the generation was synced."""

    frame: int
    synced: int
    parts: Array
    names: list[str]
    boot_id: str

    def lost_parts(self) -> Iterator[JournalPart]:
        """Go through the parts of the frame, without their content."""
        for name, row in zip(self.names, self.parts.tolist(), strict=True):
            count, index_start, data_start, size = row
            yield lost_part(name, index_start, data_start, count, size)


def lost_part(
    shard: str, index_start: int, data_start: int, count: int, data_size: int
) -> JournalPart:
    """Return a part that keeps the places of messages without their content."""
    key = parse_store_key(shard)
    entry = lost_entry(key[1] if key is not None else 0, data_start, data_size)
    entries = np.frombuffer(entry * count, INDEX_ENTRY.dtype)
    return JournalPart(shard, index_start, data_start, entries, bytes(data_size), lost=True)


def _boot_body(boot_id: str, generation: int) -> bytes:
    """Return the names of a generation's first frame: the boot, and the generation once more."""
    return f"{boot_id}\n{generation:016x}".encode()


class _Frame(NamedTuple):
    header: Any
    body: memoryview

    def boot_id(self) -> str:
        """Return the boot that the first frame of a generation names."""
        return bytes(self.body).decode(errors="replace").partition("\n")[0]

    def is_refuted(self) -> bool:
        """True if its header has another generation than a first frame's names."""
        _, _, generation = bytes(self.body).decode(errors="replace").partition("\n")
        # An older version writes the boot alone.
        named = generation and not self.header.parts
        return bool(named) and generation != f"{self.header.generation:016x}"

    @property
    def size(self) -> int:
        return JOURNAL_FRAME.size + len(self.body)

    def split(self) -> Iterator[JournalPart]:
        """Go through the parts; they share the frame's memory."""
        header, body = self.header, self.body
        parts = np.frombuffer(body, JOURNAL_PART.dtype, header.parts)
        names_at = parts.nbytes
        entries_at = names_at + header.names_size
        if not header.parts:
            return
        names = bytes(body[names_at:entries_at]).decode().split("\n")
        entries = np.frombuffer(body, INDEX_ENTRY.dtype, header.entries, entries_at)
        row, at = 0, entries_at + entries.nbytes
        for name, (count, index_start, data_start, size) in zip(names, parts.tolist(), strict=True):
            mine = entries[row : row + count]
            yield JournalPart(name, index_start, data_start, mine, body[at : at + size])
            row, at = row + count, at + size

    def mark(self) -> _Mark | None:
        """Return the frame's content as a mark; None if it is not a mark."""
        body = self.body
        if self.header.parts or len(body) < JOURNAL_MARK.size:
            return None
        mark = JOURNAL_MARK.unpack_from(body)
        names_at = JOURNAL_MARK.size + mark.parts * JOURNAL_PART.size
        boot_at = names_at + mark.names_size
        if min(mark.parts, mark.names_size) < 0 or not JOURNAL_MARK.size < names_at < boot_at:
            return None
        if boot_at > len(body):
            return None
        parts = np.frombuffer(body, JOURNAL_PART.dtype, mark.parts, JOURNAL_MARK.size)
        names = bytes(body[names_at:boot_at]).decode(errors="replace").split("\n")
        boot_id = bytes(body[boot_at:]).decode(errors="replace")
        return _Mark(mark.frame, mark.synced, parts, names, boot_id)


def _size_of(header: Any) -> int | None:
    """Return the bytes that follow a frame's header; None if it is no header."""
    sizes = (header.parts, header.names_size, header.entries, header.data_size)
    if header.magic != JOURNAL_MAGIC or min(sizes) < 0:
        return None
    size = header.parts * JOURNAL_PART.size + header.names_size
    return int(size + header.entries * INDEX_ENTRY.size + header.data_size)


def _read_frame(file: VfsFile, position: int) -> _Frame | None:
    """Return the frame at a place if its digest is right."""
    raw = file.pread(JOURNAL_FRAME.size, position)
    if len(raw) < JOURNAL_FRAME.size:
        return None
    header = JOURNAL_FRAME.unpack_from(raw)
    size = _size_of(header)
    # The file's length is compared before memory is taken for the frame.
    if size is None or position + JOURNAL_FRAME.size + size > file.size():
        return None
    body = file.pread(size, position + JOURNAL_FRAME.size)
    if xxhash.xxh3_64_intdigest(body).to_bytes(8, "big") != header.digest:
        return None
    return _Frame(header, memoryview(body))
