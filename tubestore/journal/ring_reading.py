"""Reads the ring journal of a process that was killed, or of one that is at work.

A segment begins with START and ends with END; in between a frame that does not count is:

| what follows it                                      | same boot | another boot                  |
| ---------------------------------------------------- | --------- | ----------------------------- |
| nothing of its generation, in no segment             | the end   | the end                       |
| a sound frame, or a later segment, of its generation | damage    | damage below what was synced, |
|                                                      |           | above it the end              |

On one boot frames follow each other without a gap, as they are copied under one lock: only the
last one may be torn. A power cut keeps any sectors of what was not synced.

A segment's file has its whole size, durably, before it has its name: one that is shorter was cut,
which is damage whatever boot it is. Its sound frames count.

Only segments of the store that `store.json` has announced count. Others are not read here; the
messages that the shards lack of them are in `lacking.stray_ring`.

A segment that lies below the tail is not read: the shards' files have its messages. A writer in
another process may use a segment again meanwhile: its START is read again after its frames.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping
from functools import lru_cache
from operator import attrgetter
from typing import NamedTuple

from tubestore.core.doors import logger
from tubestore.core.paths import OWN_DIRECTORY, STORE_FILE, join
from tubestore.core.state_file import BadState
from tubestore.core.vfs import Vfs, VfsFile
from tubestore.errors import CorruptRecord
from tubestore.journal.ring_frames import (
    HEAD_SIZE,
    SEGMENT_BYTES_MIN,
    START_SIZE,
    Kind,
    RingFrame,
    Start,
    boot_tag,
    latest_frame,
    start_in,
    store_tag,
    trouble_in,
)
from tubestore.journal.ring_pieces import LastSegment, LeftSegment, RingPiece, ShardRun, Uncounted
from tubestore.journal.root_journal import JournalPart, lost_part
from tubestore.journal.topic_names import TopicNames
from tubestore.record.names import RING_PREFIX, store_key
from tubestore.record.state_files import has_ring, parse_identity

log = logger(__name__)
#: What a reader that goes on reads at first; of what follows, twice as much each time.
_SHORT_BYTES = 4 << 10


class LeftRing(NamedTuple):
    """The frames of a ring from a position on, by shard."""

    #: The files of all segments.
    paths: list[str]
    #: The ring position behind all segments, whatever they hold.
    segments_end: int
    #: Of the last opening.
    generation: int
    #: True if one process left it all, since the machine was started.
    is_whole: bool
    #: Ring position below which everything is in the shards' files.
    tail: int
    #: Ring position below which everything was synced.
    synced: int
    #: The ring position behind the last frame that counts.
    end: int
    parts: list[JournalPart]
    #: Damaged places, each with the reason.
    damages: list[CorruptRecord]
    #: The names of all topics by their ids.
    topics: Mapping[int, str]
    #: The last segment; None without one, or if its START is damaged.
    last: LastSegment | None = None


def ring_paths(vfs: Vfs, root: str) -> list[str]:
    """Return the files of a ring's segments; none if the root is no directory."""
    own = join(root, OWN_DIRECTORY)
    try:
        rows = vfs.entries(own)
    except NotADirectoryError:
        return []
    return [join(own, n) for n, is_directory, _ in rows if is_ring_file(n) and not is_directory]


def slot_of(path: str) -> int:
    """Return the number in the name of a segment's file."""
    return int(path.rpartition(RING_PREFIX)[2])


def is_ring_file(name: str) -> bool:
    """True if a state file is a segment of the ring."""
    return name.startswith(RING_PREFIX) and name.removeprefix(RING_PREFIX).isdigit()


def read_ring(
    vfs: Vfs,
    root: str,
    since: int = 0,
    *,
    names: TopicNames | None = None,
    chosen: Collection[str] | None = None,
) -> LeftRing | None:
    """Return the frames of a ring from a position on; None if there is none. OSError, BadState.

    `names`: the store's topics as they were read before. `chosen`: of these shards alone; None for
    all. Of others the frames are passed: from a position on, with what their records hold unread.

    Segments count only while `store.json` records that there is a ring: what is there without that
    was being removed. The first segment is there before that is recorded, and until it no longer
    is: a ring without any has lost them.
    """
    while True:
        store = announced_store(vfs, root)
        if store is None:
            return None
        paths = ring_paths(vfs, root)
        left = _read(vfs, root, paths, since, store, names or TopicNames(vfs, root), chosen)
        # A writer may have made segments since, and filled them: those are not missing.
        if not left.damages or (
            ring_paths(vfs, root) == paths and announced_store(vfs, root) == store
        ):
            return left


def read_on(
    vfs: Vfs, root: str, known: LeftRing, names: TopicNames, chosen: Collection[str] | None
) -> LeftRing | None:
    """Return what came behind a ring that was read; None if `read_ring` has to look. OSError.

    It reads the last segment alone, and asks whether there is another one behind it by its name:
    numbers rise as long as the segments before are there, whichever process makes one. The whole
    ring has to be read after damage, after a segment was closed, used again or removed, and if
    chosen topics are others now.
    """
    if known.last is None or known.damages:
        return None
    ids = names.ids_of(chosen) if chosen is not None else None
    try:
        file = vfs.open(known.last.path, writable=False)
    except FileNotFoundError:
        return None
    with contextlib.closing(file):
        reading = _RingReading([file], vfs.boot_id(), known.end, None, ids)
        left = reading.run_on(known, names.read)
    slot = 1 + max(map(slot_of, known.paths))
    if left is None or vfs.exists(join(root, OWN_DIRECTORY, f"{RING_PREFIX}{slot}")):
        return None
    return left if chosen is None or names.ids_of(chosen) == ids else None


def read_unannounced(vfs: Vfs, root: str) -> LeftRing | None:
    """Return the frames of segments that no `store.json` announces; None if there are none.

    OSError, BadState.
    """
    paths = ring_paths(vfs, root)
    if not paths or announced_store(vfs, root) is not None:
        return None
    return _read(vfs, root, paths, 0, None, TopicNames(vfs, root), None)


def _read(
    vfs: Vfs,
    root: str,
    paths: list[str],
    since: int,
    store: bytes | None,
    names: TopicNames,
    chosen: Collection[str] | None,
) -> LeftRing:
    while True:
        ids = None
        if chosen is not None:
            names.read()
            ids = names.ids_of(chosen)
        with contextlib.ExitStack() as opened:
            reading = _opened(vfs, root, paths, since, store, ids, opened)
            left = reading.run(paths, names.read)
        # Else one of the shards is of a topic that was made, or made again, meanwhile.
        if chosen is None or names.ids_of(chosen) == ids:
            return left


def _opened(
    vfs: Vfs,
    root: str,
    paths: list[str],
    since: int,
    store: bytes | None,
    ids: set[tuple[int, int]] | None,
    opened: contextlib.ExitStack,
) -> _RingReading:
    files = []
    for path in paths:
        try:
            file = vfs.open(path, writable=False)
        except FileNotFoundError:
            continue  # a writer has closed meanwhile
        opened.callback(file.close)
        files.append(file)
    reading = _RingReading(files, vfs.boot_id(), since, store, ids)
    if not files and store is not None:
        reading.miss_all(join(root, OWN_DIRECTORY, f"{RING_PREFIX}0"))
    return reading


def announced_store(vfs: Vfs, root: str) -> bytes | None:
    """Return the `store_tag` in a ring that `store.json` announces; None without one. OSError."""
    try:
        return _announced_in(vfs.read_file(join(root, OWN_DIRECTORY, STORE_FILE)))
    except (FileNotFoundError, BadState):
        return None


@lru_cache(maxsize=16)
def _announced_in(store: bytes) -> bytes | None:
    """Return the same for the content of a `store.json`, which readers ask for again and again."""
    return store_tag(parse_identity(store)) if has_ring(store) else None


class _RingReading:
    """One reading of all segments."""

    def __init__(
        self,
        files: list[VfsFile],
        this_boot: str,
        since: int,
        store: bytes | None,
        chosen: set[tuple[int, int]] | None,
    ) -> None:
        """Keep what is to be read.

        `store`: of which one the segments have to be; None if of any. `chosen`: topic id and store
        of the shards; None for all.
        """
        self._files, self._this_boot, self._store = files, boot_tag(this_boot), store
        self._since, self._chosen = since, chosen
        #: Messages in the order of the segments.
        self._taken: list[ShardRun] = []
        self._damages: list[CorruptRecord] = []
        #: Bytes that do not count before the next frame.
        self._damaged = 0
        self._end, self._synced = since, 0
        #: The highest ring position below which everything was synced, by the heads.
        self._known_synced = 0

    def miss_all(self, path: str) -> None:
        """Take note that no segment is there."""
        text = "the journal of a process that was killed is missing; what only it held is lost"
        self._damages.append(CorruptRecord(path, 0, text))

    def run(self, paths: list[str], topics_now: Callable[[], Mapping[int, str]]) -> LeftRing:
        """Read everything."""
        segments = self._segments()
        if not segments:
            return LeftRing(paths, 0, 0, True, 0, 0, 0, [], self._damages, {})
        last = segments[-1].start
        tail = max(segment.start.tail for segment in segments)
        if tail < 0:  # no START is sound: all segments may be needed
            tail = segments[0].start.base
        live = [s for s in segments if s.start.base + s.start.segment_size > max(tail, self._since)]
        generations: dict[int, list[LeftSegment]] = {}
        for segment in live:
            generations.setdefault(segment.start.generation, []).append(segment)
        expected = max(tail, self._since)
        for found in generations.values():
            first = found[0].start
            begun = max(first.begun, tail, self._since)
            lacking = begun - expected >= first.segment_size
            if lacking and self._is_damage(first.boot, expected, first.left_synced):
                text = "segments of the journal are missing before this one"
                self._damages.append(CorruptRecord(found[0].file.path, 0, text))
            own = max(segment.start.own_tail for segment in found)
            needed = [s for s in found if s.start.base + s.start.segment_size > own]
            self._read_generation(needed, max(own, begun))
            expected = found[-1].start.base + first.segment_size
        topics = topics_now()  # after the frames: a topic is recorded before it has any
        return LeftRing(
            paths,
            max(s.start.base + s.start.segment_size for s in segments),
            last.generation,
            len(generations) <= 1 and last.boot == self._this_boot,
            tail,
            self._synced,
            self._end,
            self._parts(topics),
            self._damages,
            topics,
            segments[-1].as_last(),
        )

    def run_on(
        self, known: LeftRing, topics_now: Callable[[], Mapping[int, str]]
    ) -> LeftRing | None:
        """Read what came in the last segment; None if that is not all, see `read_on`."""
        (file,), last = self._files, known.last
        if last is None or file.size() < last.start.segment_size:
            return None
        segment = LeftSegment(file, last.start, last.start.segment_size)
        stretches: list[Uncounted] = []
        is_open = self._read_segment(segment, stretches, is_last=True)
        # Behind the frames, as in `_read_segment`: they are of this lap then.
        if not is_open or stretches or file.pread(START_SIZE, 0) != last.front:
            return None
        topics = topics_now()
        synced = max(known.synced, self._known_synced)
        parts = self._parts(topics)
        return known._replace(end=self._end, synced=synced, parts=parts, topics=topics)

    # -- segments ----------------------------------------------------------------------------

    def _segments(self) -> list[LeftSegment]:
        """Return the segments in the ring's order."""
        found, headless, foreign = [], [], []
        for file in self._files:
            front = file.pread(START_SIZE, 0)
            start = start_in(front)
            if start is None:
                headless.append(file)
            elif self._store in (None, start.store):
                found.append(self._sized(file, start, front))
            else:
                foreign.append(file)
        starts = sorted((s.start for s in found), key=lambda start: start.base)
        latest = {start.generation: start for start in starts}
        least = min((s.start.segment_size for s in found), default=SEGMENT_BYTES_MIN)
        for file in headless:
            segment = self._by_frames(file, latest)
            if segment is not None:
                found.append(segment)
            self._look_at_size(file, least)
        for file in foreign:
            text = "a segment of another store's journal; this store's may have been in its place"
            self._damages.append(CorruptRecord(file.path, 0, text))
        return sorted(found, key=lambda segment: segment.start.base)

    def _sized(self, file: VfsFile, start: Start, front: bytes) -> LeftSegment:
        """Return a segment with the bytes that are there; fewer than it began with are damage."""
        return LeftSegment(file, start, self._look_at_size(file, start.segment_size), front)

    def _look_at_size(self, file: VfsFile, whole: int) -> int:
        """Return how many bytes a segment has of those that it began with; fewer are damage."""
        size = file.size()
        if size < whole:
            text = f"a segment of the journal has {size} of its {whole} bytes"
            self._damages.append(CorruptRecord(file.path, size, text))
        return min(size, whole)

    @staticmethod
    def _by_frames(file: VfsFile, latest: Mapping[int, Start]) -> LeftSegment | None:
        """Return a segment with a damaged START; None if it has no frame that may be needed.

        A kill while a segment is begun leaves part of a START, and frames of the lap before: the
        files have those, and to give them once more changes nothing. So a START that is damaged is
        no finding by itself. `latest`: the last START of each generation that has one.
        """
        data = file.pread(file.size(), 0)
        found = latest_frame(data)
        if found is None:
            return None
        place, frame = found
        base = frame.position - place
        known = latest.get(frame.generation)
        if known is None:
            size = len(data)
            start = Start(
                frame.boot, frame.generation, frame.synced, base, size, -1, base, 0, 0, b""
            )
        else:
            start = known._replace(base=base, tail=0, own_tail=0)
        return LeftSegment(file, start, min(len(data), start.segment_size))

    def _read_generation(self, segments: list[LeftSegment], first: int) -> None:
        """Read the segments of one opening."""
        boot = segments[0].start.boot
        stretches: list[Uncounted] = []
        size = segments[0].start.segment_size
        expected = first - first % size
        for number, segment in enumerate(segments):
            start = segment.start
            if start.base > expected:
                text = "segments of the journal are missing before this one"
                stretches.append(Uncounted(segment, 0, 0, text, len(self._taken)))
            expected = start.base + size
            self._read_segment(segment, stretches, is_last=number == len(segments) - 1)
        synced = max(self._known_synced, *(s.start.synced for s in segments))
        self._synced = max(self._synced, synced)
        for stretch in stretches:
            place = stretch.segment.start.base + stretch.at
            if not self._is_damage(boot, place, synced):
                del self._taken[stretch.taken :]  # what was not synced begins here
                self._end = min(self._end, place)
                return
            path = stretch.segment.file.path
            self._damages.append(CorruptRecord(path, stretch.at, stretch.reason))

    def _is_damage(self, boot: bytes, place: int, synced: int) -> bool:
        """True if what does not count, with something sound behind it, was there once."""
        return boot == self._this_boot or place < synced

    # -- frames ------------------------------------------------------------------------------

    def _read_segment(
        self, segment: LeftSegment, stretches: list[Uncounted], *, is_last: bool
    ) -> bool:
        """Read one segment; False if it was closed, so that no frame is added to it."""
        start, file, taken = segment.start, segment.file, len(self._taken)
        before, known, mine = self._damaged, self._end, len(stretches)
        # One that goes on reads no more than there is, and looks for nothing behind it.
        goes_on = is_last and self._since > 0
        first = max(START_SIZE, self._since - start.base)
        piece = RingPiece(segment, first, _SHORT_BYTES if goes_on else 0)
        at, looked, is_open = 0, False, True
        # Of another boot a damaged record can be the end of all that counts.
        trusting = self._since > 0 and start.boot == self._this_boot
        while True:
            verified = self._chosen if trusting else None
            found = piece.messages(at, verified, self._chosen, self._damaged)
            if found is not None:
                self._known_synced = max(self._known_synced, found.synced)
                self._taken += found.runs
                at = found.end
                self._end, looked = max(self._end, piece.base + at), False
                continue
            frame = piece.sound(at)
            if frame is None and goes_on:
                if not piece.is_cut(at):
                    break
                piece, at = piece.following(at), 0
                continue
            if frame is None:
                place = next(piece.behind(at), None)
                if (place is not None or not is_last) and not looked:
                    looked = True  # a writer in another process may have written it by now
                    piece.read_again()
                    continue
                if place is None:
                    if not is_last:
                        text = "the end of a segment of the journal is damaged"
                        stretches.append(piece.stretch(at, len(piece.data), text, self._taken))
                        self._damaged += start.base + start.segment_size - piece.base - at
                    break
                text = f"a frame of the journal is damaged; {place - at} bytes do not count"
                stretches.append(piece.stretch(at, place, text, self._taken))
                self._damaged += place - at
                at = place
                continue
            looked = False
            if frame.kind == Kind.END:
                is_open = False
                break
            is_message = frame.kind == Kind.MESSAGE
            if is_message and self._is_torn_end(piece, frame, at, stretches, is_last=is_last):
                break
            at += HEAD_SIZE + frame.size
            self._end = max(self._end, piece.base + at)
        again = start_in(file.pread(START_SIZE, 0))
        if again is not None and again.base != start.base:
            # It was used again meanwhile: the files have what it held.
            del self._taken[taken:], stretches[mine:]
            self._damaged, self._end = before, known
        return is_open

    def _is_torn_end(
        self,
        piece: RingPiece,
        frame: RingFrame,
        at: int,
        stretches: list[Uncounted],
        *,
        is_last: bool,
    ) -> bool:
        """True if a message with a sound head and a damaged record is the torn end.

        Otherwise its place is taken.
        """
        end = at + HEAD_SIZE + frame.size
        behind = piece.sound(end) is not None or not is_last
        if not behind and next(piece.behind(at), None) is None:
            return True  # a kill in the middle of the copy
        trouble = trouble_in(piece.data, at) or "its size is not that of its frame"
        text = f"a message in the journal is damaged: {trouble}"
        stretches.append(piece.stretch(at, end, text, self._taken))
        lost = lost_part("", frame.index_start, frame.data_start, 1, frame.size)
        part = lost._replace(damaged_before=self._damaged, ring_end=frame.end)
        self._known_synced = max(self._known_synced, frame.synced)
        self._taken.append(ShardRun(frame.topic_id, frame.store_id, part))
        return False

    def _parts(self, topics: Mapping[int, str]) -> list[JournalPart]:
        """Return the messages by shard; the last step."""
        parts: list[JournalPart] = []
        unknown = 0
        for topic_id, store_id, part in self._taken:
            if self._chosen is not None and (topic_id, store_id) not in self._chosen:
                continue
            topic = topics.get(topic_id)
            if topic is None:
                unknown += len(part.entries)  # the topic was deleted
            else:
                parts.append(JournalPart(store_key(topic, store_id), *part[1:]))
        if unknown:
            log.info("%d messages of deleted topics are in the journal", unknown)
        self._taken = []
        parts.sort(key=attrgetter("shard", "index_start"))
        return parts
