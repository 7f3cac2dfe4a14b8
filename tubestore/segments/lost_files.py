"""Files of a shard that are missing or misplaced: found by what is left.

No offset is given out twice, and no record is given at another message's offset.

A file between two others that is gone leaves a gap, and the shard is refused. At the beginning or
at the end its place is known from the checkpoint, which records where both streams begin and end
(`checkpoint.py`), and from what the other stream has:

| missing                          | what is done                                                  |
| -------------------------------- | ------------------------------------------------------------- |
| the oldest data files            | reported at each opening, until retention comes to that place |
| the oldest index files           | made again from the records, if they are recorded             |
| ... which are not recorded       | reported: TubeMQ's retention removes them before their data   |
| the newest files, or their ends  | zeros and entries that point to them keep the places          |
| all data files                   | new ones begin behind the offsets that were given out         |
| the directory, or all in it      | the shard is refused, until `repair` gives the directory up   |

The store records the same bounds outside of the directory (`OutsideRecord`). Where they go beyond
the files, the directory is an older copy, and what it lacks is missing at the end.

TubeMQ's own retention records nothing: what it removed since the checkpoint is reported, too.

A data file can also be at another one's place (swapped, or copied over it). Each record names the
offset of its entry. If none of a file's records is one that the entries of its place describe, and
they name other entries, the file is misplaced. It is kept as damage until `repair` moves it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import accumulate, pairwise
from os.path import dirname
from typing import Any, NamedTuple

import numpy as np

from tubestore.core.doors import logger
from tubestore.core.layout import Buffer
from tubestore.core.paths import OWN_DIRECTORY, STORE_FILE, join
from tubestore.core.vfs import Vfs
from tubestore.errors import CorruptRecord, NotAStore
from tubestore.record.layouts import (
    DATA_HEADER,
    INDEX_ENTRY,
    RECORD_SIZE_MAX,
    TOKEN_MESSAGE,
    record_size,
)
from tubestore.record.names import DATA_SUFFIX, INDEX_DIRECTORY, INDEX_SUFFIX, segment_name
from tubestore.record.records import (
    ENTRY_SIZE,
    HEADER_SIZE,
    SHARED_FIELDS,
    entries_in,
    entry_of,
    inspect,
    lost_entry,
)
from tubestore.segments.cache_formats import MISPLACED, Checkpoint
from tubestore.segments.checkpoint import foreign, joined, read_recorded
from tubestore.segments.digests import digests_path, drop_digests
from tubestore.segments.file_store import Damage, MsgFileStore
from tubestore.segments.listing import list_files
from tubestore.segments.reconcile import SetAside
from tubestore.segments.segment import FileSegment

log = logger(__name__)
#: How many records of a suspected file are compared with its entries.
_SAMPLE = 32


#: How often a reader looks for missing files beside a writer that removes and adds some.
_READERS_LOOKS = 3


class Piece(NamedTuple):
    """A file of a stream: its offsets, and what reads bytes at an offset."""

    start: int
    end: int
    read: Callable[[int, int], Buffer]

    @property
    def size(self) -> int:
        """Bytes in the file."""
        return self.end - self.start


class Places:
    """Compares the places of data files with those that their records name."""

    def __init__(self, index: Iterable[Piece], data: Iterable[Piece]) -> None:
        self._index, self._data = list(index), list(data)
        self._index_starts = [piece.start for piece in self._index]
        self._data_starts = [piece.start for piece in self._data]

    def index_is_in_order(self) -> bool:
        """Return False if an index file is at another one's place: first entries ascend."""
        firsts = (self.entry_at(piece.start) for piece in self._index if len(self._index) > 1)
        offsets = [entry.data_offset for entry in firsts if entry is not None]
        return all(before < after for before, after in pairwise(offsets))

    def index_is_shifted(self) -> bool:
        """Return True if bytes came into an index file, or went, so that entries moved.

        Up to the last one: where a checkpoint fits the end, they did not.
        """
        end = max((piece.start + piece.size // ENTRY_SIZE * ENTRY_SIZE for piece in self._index),
                  default=0)  # fmt: skip
        return self._names_another(end - ENTRY_SIZE) and self._shift_begins_before(end)

    def _named_by(self, offset: int) -> int | None:
        """Return the entry's offset that the record of an entry names; None if it has no record."""
        entry = self.entry_at(offset)
        place = bisect_right(self._data_starts, entry.data_offset) - 1 if entry is not None else -1
        if place < 0 or self._data_starts[place] in self.misplaced:
            return None
        header = self._header_at(entry.data_offset, self._data[place])
        if header is None or record_size(header) != entry.data_size:
            return None
        return _named(header)

    def _names_another(self, offset: int) -> bool:
        own = self._named_by(offset)
        return own is not None and own != offset

    def _shift_begins_before(self, end: int) -> bool:
        """Return False if TubeMQ gave offsets a second time, as it does after some crashes.

        Then the first record that names another entry names one that was there before.
        """
        start = self._index_starts[0] // ENTRY_SIZE
        rows = range(start, end // ENTRY_SIZE)
        first = bisect_left(rows, True, key=lambda row: self._names_another(ENTRY_SIZE * row))
        own = self._named_by(ENTRY_SIZE * (start + first))
        earlier = range(start + first - 1, max(start, start + first - _SAMPLE) - 1, -1)
        named = (self._named_by(ENTRY_SIZE * row) for row in earlier)
        before = next((other for other in named if other is not None), -1)
        return own is None or own > before

    @cached_property
    def misplaced(self) -> dict[int, tuple[int, str]]:
        """The misplaced data files: start, and (the first entry's offset that it names, why)."""
        found: dict[int, tuple[int, str]] = {}
        named: list[tuple[int, Any, Piece]] = []
        for piece in self._data if len(self._data) > 1 else ():
            header = self._header_at(piece.start, piece)
            own = _named(header)
            if own is not None:
                named.append((own, header, piece))
        highest = list(accumulate((own for own, _, _ in named), max))
        lowest = list(accumulate((own for own, _, _ in reversed(named)), min))[::-1]
        for number, (own, header, piece) in enumerate(named):
            # Those in order are at home: if they do not fit, the entries are wrong.
            ordered = highest[number] == own == lowest[number]
            ordered &= number == 0 or highest[number - 1] < own
            ordered &= own < lowest[number + 1] if number + 1 < len(lowest) else True
            if not ordered and not self._is_at_home(piece.start, header):
                text = self._misplaced(piece, header, found)
                if text:
                    found[piece.start] = own, text
        return found

    def home_of(self, piece: Piece, own: int) -> int | None:
        """Return where a misplaced file belongs by the entries that its records name, if known."""
        entry = self.entry_at(own)
        if entry is None:
            return None
        home = Piece(entry.data_offset, entry.data_offset + piece.end - piece.start, piece.read)
        moved = piece.start - home.start
        for offset, other in self._entries_into(home):
            header = self._header_at(other.data_offset + moved, piece)
            if header is not None and _agree(header, other, offset):
                return int(home.start)
        return None

    def entry_at(self, offset: int) -> Any:
        """Return the index entry at an offset; None if no file has it."""
        place = bisect_right(self._index_starts, offset) - 1
        if place < 0 or offset + ENTRY_SIZE > self._index[place].end:
            return None
        raw = self._index[place].read(offset, ENTRY_SIZE)
        return INDEX_ENTRY.unpack_from(raw) if len(raw) == ENTRY_SIZE else None

    def _header_at(self, offset: int, piece: Piece) -> Any:
        """Return the header at a data offset of a file; None if it has no record's token."""
        if not piece.start <= offset <= piece.end - HEADER_SIZE:
            return None
        raw = piece.read(offset, HEADER_SIZE)
        header = DATA_HEADER.unpack_from(raw) if len(raw) == HEADER_SIZE else None
        return header if header is not None and header.token == TOKEN_MESSAGE else None

    def _is_at_home(self, start: int, header: Any) -> bool:
        """Return True if the entry that a file's first record names points to it."""
        own = header.queue_logic_offset
        entry = self.entry_at(own)
        return entry is not None and entry.data_offset == start and _agree(header, entry, own)

    def _misplaced(self, piece: Piece, header: Any, found: Mapping[int, object]) -> str:
        """Return why a file is misplaced if its first record names another place; "": it is not.

        TubeMQ gives offsets a second time after some crashes. Those records follow each other from
        file to file, in the same order.
        """
        rows = list(self._entries_into(piece))
        for offset, entry in rows:
            one = self._header_at(entry.data_offset, piece)
            if one is not None and _agree(one, entry, offset):
                return ""
        own, size = header.queue_logic_offset, record_size(header)
        if not HEADER_SIZE < size <= RECORD_SIZE_MAX:
            return ""
        raw = piece.read(piece.start, size)
        if inspect(raw, 0, len(raw))[1] is not None:
            return ""
        if not rows:
            copied = self.record_of(own) == bytes(raw)
            return f"{MISPLACED}: a copy of those from index offset {own} on" if copied else ""
        first = rows[0][0]
        if own == first:
            return ""
        before = self.entry_at(first - ENTRY_SIZE) if own < first else None
        place = bisect_right(self._data_starts, before.data_offset) - 1 if before else -1
        if before is not None and place >= 0 and self._data_starts[place] not in found:
            last = self._header_at(before.data_offset, self._data[place])
            if last is not None and last.queue_logic_offset == own - ENTRY_SIZE:
                return ""
        return f"{MISPLACED}: they name index offsets from {own} on, and it has those from {first}"

    def record_of(self, offset: int) -> bytes:
        """Return the record that an entry points to; empty if no file has it."""
        entry = self.entry_at(offset)
        place = bisect_right(self._data_starts, entry.data_offset) - 1 if entry is not None else -1
        if place < 0 or not HEADER_SIZE < entry.data_size <= RECORD_SIZE_MAX:
            return b""
        return bytes(self._data[place].read(entry.data_offset, entry.data_size))

    def _entries_into(self, piece: Piece) -> Iterator[tuple[int, Any]]:
        """Go through some entries that point into a file: (offset, entry), the first among them."""
        for number, index in enumerate(self._index):
            behind = self.entry_at(index.end) if number + 1 < len(self._index) else None
            if behind is not None and behind.data_offset <= piece.start:
                continue
            entries = entries_in(index.read(index.start, index.end - index.start))
            offsets = entries["data_offset"]
            rows = np.flatnonzero((offsets >= piece.start) & (offsets < piece.end))
            for row in rows[:: max(1, len(rows) // _SAMPLE)].tolist():
                raw = entries[row].tobytes()
                yield index.start + ENTRY_SIZE * row, INDEX_ENTRY.unpack_from(raw)
            if len(rows) and rows[-1] < len(entries) - 1:
                return


def _named(header: Any) -> int | None:
    """Return the entry's offset that a record names; None if it names none."""
    own = None if header is None else int(header.queue_logic_offset)
    return own if own is not None and own >= 0 and not own % ENTRY_SIZE else None


def _agree(header: Any, entry: Any, offset: int) -> bool:
    """Return True if a record and the entry at an offset have equal fields, that offset too."""
    same = (header.queue_logic_offset, record_size(header)) == (offset, entry.data_size)
    return same and all(getattr(header, name) == getattr(entry, name) for name in SHARED_FIELDS)


def pieces_of(segments: Iterable[FileSegment]) -> Iterator[Piece]:
    """Return a stream's segments as pieces."""
    return (Piece(segment.start, segment.end, segment.read) for segment in segments)


def missing_begin(
    directory: str, found: Checkpoint, *, index_start: int, data_start: int
) -> list[CorruptRecord]:
    """Return what is missing before the first files of a shard, by what is recorded of it."""
    problems = []
    index_directory = join(directory, INDEX_DIRECTORY)
    for begin, end, start, parent, suffix in (
        (found.data_start, found.data_end, data_start, directory, DATA_SUFFIX),
        (found.index_start, found.index_end, index_start, index_directory, INDEX_SUFFIX),
    ):
        end = min(start, end)  # what was not synced, a power cut can have taken
        if 0 <= begin < end:
            text = f"the file is missing: bytes from {begin} to {end} are recorded"
            text += ", and retention has not removed them"
            problems.append(CorruptRecord(join(parent, segment_name(begin, suffix)), 0, text))
    return problems


def missing_directory(directory: str) -> CorruptRecord:
    """Return what is wrong with a shard that has a record and no files at all."""
    text = "the shard's directory is missing or empty: put it back, or give it up with `repair`"
    return CorruptRecord(directory, 0, text)


def surplus_shard(directory: str, stores: int) -> CorruptRecord:
    """Return what is wrong with a shard that its topic does not have by its settings."""
    text = f"the topic has {stores} stores by its settings: the messages of this shard are not"
    return CorruptRecord(directory, 0, f"{text} shown; give the topic more stores")


def missing_files(files: MsgFileStore) -> list[CorruptRecord]:
    """Return which files of a shard are missing or shortened, by its record; changes nothing.

    For a reader. A writer may be at work: what every look finds is missing.
    """
    vfs, directory = files.vfs, files.directory
    problems: list[CorruptRecord] = []
    for look in range(_READERS_LOOKS):
        if look and files.outside is not None:
            files.outside.read_again()
        own = read_recorded(vfs, directory).checkpoint
        if (trouble := foreign(directory, own)) is not None:
            problems = [CorruptRecord(directory, 0, trouble)]
            continue
        found = joined(own, files.bounds())
        if found is None:
            return []
        if not vfs.entries(directory):
            problems = [missing_directory(directory)]
            continue
        shard = list_files(vfs, directory)
        problems = missing_begin(
            directory,
            found,
            index_start=shard.index[0].start if shard.index else found.index_end,
            data_start=shard.data[0].start if shard.data else found.data_end,
        )
        for parent, stream, end, of in (
            (join(directory, INDEX_DIRECTORY), shard.index, found.index_end, "entries"),
            (directory, shard.data, found.data_end, "records"),
        ):
            there = stream[-1].end if stream else 0
            if found.digest and there < end:
                path = stream[-1].path if stream else parent
                text = f"{of} up to {end} are recorded, the files end at {there}"
                problems.append(CorruptRecord(path, stream[-1].size if stream else 0, text))
        if not problems:
            return []
    return problems


def go_on_behind_lost_files(
    files: MsgFileStore,
    own: Checkpoint | None,
    journalled: Sequence[tuple[int, int]],
) -> list[CorruptRecord]:
    """Have a shard without any data file begin behind the offsets that it gave out.

    `own`: its checkpoint; `journalled`: where the parts begin that a journal has of it, (index,
    data): those are put back there. Returns the problem, if data files are missing. NotAStore if
    its directory is missing.
    """
    outside = files.bounds()
    if len(files.data) or (files.is_new and outside is None):
        return []
    if files.is_new and outside is not None and not outside.given_up:
        raise NotAStore(files.directory, missing_directory(files.directory).reason)
    found = joined(own, outside)
    index_end, data_end = _ends_by_index(files)
    if found is not None and found.digest:
        index_end, data_end = max(index_end, found.index_end), max(data_end, found.data_end)
    if not (index_end and data_end):
        return []
    if journalled:
        index_end, data_end = journalled[0]
    problems = []
    given_up = files.is_new  # else it was refused
    # A file that is recorded is reported later.
    if not given_up and (found is None or not 0 <= found.data_start < data_end):
        path = files.index.last.path if len(files.index) else files.directory
        text = f"index entries without any data; messages below offset {index_end} are lost"
        problems.append(CorruptRecord(path, 0, text))
        log.error("%s", problems[0])
    files.create_directories()
    if not len(files.index):
        files.index.create(index_end)
    _expire_entries(files, index_end, data_end, SetAside(files))
    _fill_index(files, index_end, data_end - HEADER_SIZE - 1, HEADER_SIZE + 1)
    # With a data file the next opening does not come here again: the entries are durable before.
    files.distrust_directories()
    files.sync()
    files.data.create(data_end)
    files.distrust_directories()
    return problems


def _ends_by_index(files: MsgFileStore) -> tuple[int, int]:
    """Return where the index ends, and the data that its entries point to."""
    index_end = data_end = 0
    for segment in files.index:
        entries = entries_in(segment.view(segment.end))
        starts, sizes = (entries[name].astype(np.int64) for name in ("data_offset", "data_size"))
        possible = (starts >= 0) & (starts < 1 << 62) & (sizes > 0) & (sizes <= RECORD_SIZE_MAX)
        data_end = max(data_end, int((starts + sizes)[possible].max(initial=0)))
        index_end = segment.start + ENTRY_SIZE * len(entries)
    return index_end, data_end


def _expire_entries(
    files: MsgFileStore, index_end: int, data_end: int, set_aside: SetAside
) -> None:
    """Have every index entry below `index_end` point below `data_end`.

    Behind an entry that points elsewhere (a damaged one, or zeros that a power cut left) recovery
    would give the offsets out again.
    """
    lost = lost_entry(files.store_id, max(data_end - HEADER_SIZE - 1, 0), HEADER_SIZE + 1)
    for segment in files.index.between(files.index.start, index_end):
        entries = entries_in(segment.view(segment.end))[: (index_end - segment.start) // ENTRY_SIZE]
        starts, sizes = (entries[name].astype(np.int64) for name in ("data_offset", "data_size"))
        expired = (starts >= 0) & (sizes > HEADER_SIZE) & (starts <= data_end - sizes)
        others = np.flatnonzero(~expired)
        if len(others):
            first, end = int(others[0]), int(others[-1]) + 1
            written = entries[first:end].copy()
            written[~expired[first:end]] = np.frombuffer(lost, written.dtype)[0]
            set_aside.copy(segment, segment.start + ENTRY_SIZE * first)
            segment.restore(written.tobytes(), segment.start + ENTRY_SIZE * first)


def _fill_index(files: MsgFileStore, end: int, data_offset: int, size: int) -> int:
    """Write entries of lost messages up to an index offset; returns how many.

    The first one replaces a part of an entry at the end.
    """
    last = files.index.last
    start = last.end - last.size % ENTRY_SIZE
    count = max(0, end - start) // ENTRY_SIZE
    if count:
        entry = lost_entry(files.store_id, max(data_offset, 0), size)
        last.restore(entry * count, start)
    return count


def ends_missing(files: MsgFileStore, found: Checkpoint) -> int:
    """Return how many messages at the end are recorded and not in the index."""
    if not found.digest or not len(files.data):
        return 0
    return max(0, found.index_end - files.index.end) // ENTRY_SIZE


def keep_lost_end(files: MsgFileStore, found: Checkpoint) -> Damage | None:
    """Keep the places of messages at the end that are recorded and that the files lack."""
    count = ends_missing(files, found)
    if not count:
        return None
    last, start = files.data.last, files.data.end
    end = max(found.data_end, start + count * (HEADER_SIZE + 1))
    last.restore(b"\0", end - 1)
    if not len(files.index):
        files.index.create(0)
    _fill_index(files, found.index_end, start, end - start)
    return Damage(start, end, f"{count} messages that were synced are missing at the end")


def keep_misplaced(files: MsgFileStore, found: Mapping[int, tuple[int, str]]) -> list[Damage]:
    """Return the misplaced data files as damage; nothing is written into one of them.

    If the last file is one, another begins where the last entry's record would end, so that no
    entry of a message that is not there points to the next ones.
    """
    damages = []
    for segment in list(files.data):
        if segment.start in found:
            if segment is files.data.last:
                end = _chained_end(files, segment.start)
                if end > segment.end:
                    segment.restore(b"\0", end - 1)
                files.data.roll()
            damages.append(Damage(segment.start, segment.end, found[segment.start][1]))
    return damages


def damaged_places(files: MsgFileStore, checkpoint: Checkpoint | None) -> Iterable[Damage]:
    """Return the data with rows that a reader must compare with the offsets that records name.

    Those of misplaced files; all if an index file is misplaced or shifted. `checkpoint`: if it
    describes the files.
    """
    places = Places(pieces_of(files.index), pieces_of(files.data))
    if not places.index_is_in_order() or (checkpoint is None and places.index_is_shifted()):
        return [Damage(files.data.start, files.data.end, f"{MISPLACED} in the index")]
    found = places.misplaced
    return [Damage(s.start, s.end, found[s.start][1]) for s in files.data if s.start in found]


def _chained_end(files: MsgFileStore, start: int) -> int:
    """Return where the records end that follow each other from a data offset on, by the index."""
    for segment in files.index:
        entries = entries_in(segment.view(segment.end))
        starts, sizes = (entries[name].astype(np.int64) for name in ("data_offset", "data_size"))
        rows = np.flatnonzero(starts == start)
        if len(rows):
            first = int(rows[0])
            ends = starts[first:] + np.clip(sizes[first:], 0, RECORD_SIZE_MAX)
            follows = starts[first + 1 :] == ends[:-1]
            start = int(ends[len(follows) if follows.all() else int(np.argmin(follows))])
    return start


def make_first_index_files(files: MsgFileStore, found: Checkpoint | None) -> CorruptRecord | None:
    """Make the oldest index files again from the records; returns what was missing.

    As one file. Nothing is made without a checkpoint that names them, or where a record is damaged.
    """
    first = files.index.now.first
    if first is None or not may_be_missing(files.vfs, files.directory, first.start, found):
        return None
    entry = bytes(first.read(first.start, ENTRY_SIZE))
    data = ((segment.start, segment.view(segment.end)) for segment in files.data)
    hidden, whole = hidden_entries(first.start, entry, data)
    if not hidden:
        return None
    begin = first.start - ENTRY_SIZE * len(hidden)
    if not whole or found is None or not 0 <= found.index_start <= begin:
        return CorruptRecord(first.path, 0, hidden_text(len(hidden)))
    path = write_first_index(files.vfs, files.directory, begin, hidden)
    segment = FileSegment(
        files.vfs.open(path), begin, ENTRY_SIZE * len(hidden), sealed=True, vfs=files.vfs
    )
    files.index.now = files.index.now.having(segment)
    text = f"{len(hidden)} messages had no index file: it was made again from their records"
    return CorruptRecord(path, 0, text)


def index_path(directory: str, start: int) -> str:
    """Return the path of the index file of a shard that begins at an offset."""
    return join(join(directory, INDEX_DIRECTORY), segment_name(start, INDEX_SUFFIX))


def write_first_index(vfs: Vfs, directory: str, start: int, entries: Sequence[bytes]) -> str:
    """Write an index file of a shard, whole or not at all; returns its path."""
    path = index_path(directory, start)
    drop_digests(vfs, digests_path(path, start))
    vfs.replace_file(path, b"".join(entries))
    return path


def may_be_missing(vfs: Vfs, directory: str, index_start: int, found: Checkpoint | None) -> bool:
    """True if an index file can be missing before the first one, by what is recorded.

    In a store that is TubeMQ's alone nothing is: its retention removes an index before the data.
    """
    if found is not None and found.index_start >= 0:
        return found.index_start < index_start
    store = join(join(dirname(directory), OWN_DIRECTORY), STORE_FILE)
    return index_start > 0 and vfs.exists(store)


def hidden_text(count: int) -> str:
    """Return what is wrong with records before the first index entry."""
    return (
        f"{count} or more intact messages are before the first index entry: an index file is "
        "missing, or a TubeMQ broker's retention removed it before the data"
    )


def hidden_entries(
    index_start: int, first_entry: bytes, data: Iterable[tuple[int, memoryview]]
) -> tuple[list[bytes], bool]:
    """Return the entries of records before the first index file, and whether they are all.

    They are if the records follow each other up to that file without damage. `data`: where each
    data file starts, and its bytes; `first_entry` is empty in an empty index file.
    """
    found: list[bytes] = []
    expected: int | None = None
    for start, view in data:
        begins = expected is None and len(first_entry) == ENTRY_SIZE
        if begins and INDEX_ENTRY.unpack_from(first_entry).data_offset <= start:
            return found, False
        at = 0
        while at < len(view):
            header, reason = inspect(view, at, len(view))
            own = header.queue_logic_offset if reason is None else -1
            if expected is None and 0 <= own < index_start and not own % ENTRY_SIZE:
                expected = own
            if own != expected or own == index_start:
                return found, own == index_start == expected
            found.append(entry_of(header, start + at))
            expected = own + ENTRY_SIZE
            at += record_size(header)
    return found, expected == index_start
