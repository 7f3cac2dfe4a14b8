"""The files of one shard: a list of data segments and a list of index segments.

Invariants:
- data is written before the index entries that point to it;
- every index entry's record lies inside one data segment; no entry crosses a file border;
- a batch goes into the current segments whole, and the roll happens after it, as in TubeMQ;
- an append that failed after its data goes on with its entries when it is repeated;
- no crash while old files are removed leaves a gap, or data without entries.

Guards: `append`, `remove_below` and `close` come under the shard's flush lock, syncs and rolls one
at a time; `FileSnapshot`s are immutable and are read from any thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from itertools import takewhile
from os.path import dirname
from typing import Any, NamedTuple, Protocol

import numpy as np

from tubestore.core import trash
from tubestore.core.doors import logger
from tubestore.core.layout import Buffer
from tubestore.core.paths import OWN_DIRECTORY, join
from tubestore.core.vfs import Vfs, VfsFile
from tubestore.errors import NotAStore, OffsetOutOfRange
from tubestore.options import StoreOptions
from tubestore.record.names import DATA_SUFFIX, INDEX_DIRECTORY, INDEX_SUFFIX
from tubestore.record.records import ENTRY_SIZE, EncodedBatch, entries_in
from tubestore.record.state_files import Bounds
from tubestore.segments.cache_formats import MISPLACED
from tubestore.segments.lookup import IndexLists
from tubestore.segments.segment import FileSegment
from tubestore.segments.segment_list import Adopted, FileSegmentList, Segments

log = logger(__name__)
Array = np.ndarray[Any, Any]
#: Returns the index and data offset at which the hidden part begins.
Limits = Callable[[], tuple[int, int] | None]
#: How often a reader lists files that change under it.
_LOOKS_MAX = 5


class OutsideRecord(Protocol):
    """What the store records of one shard outside of the shard's directory."""

    def bounds(self) -> Bounds | None:
        """Return the shard's bounds; None if nothing is recorded of it."""

    def note(self, bounds: Bounds, *, durable: bool = False) -> None:
        """Record bounds that were synced; written soon, with `durable` when this returns."""

    def read_again(self) -> None:
        """Read what another process has recorded since; for a reader."""


class Damage(NamedTuple):
    """Bytes [start, end) of the data that hold no good record and were kept, and the reason."""

    start: int
    end: int
    reason: str

    @property
    def is_misplaced(self) -> bool:
        """True for a file at another one's place: its records are whole, and of other offsets."""
        return self.reason.startswith(MISPLACED)


class FileSnapshot(NamedTuple):
    """The files as a reader may see them, taken at one moment; later changes do not touch it."""

    #: The first entry that still has its data.
    index_start: int
    index_end: int
    data_start: int
    data_end: int
    index_segments: Segments
    data_segments: Segments


class MsgFileStore:
    """The rolling data and index segments of one shard."""

    def __init__(
        self,
        vfs: Vfs,
        directory: str,
        store_id: int,
        options: StoreOptions,
        outside: OutsideRecord | None = None,
    ) -> None:
        self.vfs, self.directory, self.store_id = vfs, directory, store_id
        #: What the store records of the shard outside of its directory; None for a lone shard.
        self.outside = outside
        self._options = options
        self.index, self.data = self._empty_lists()
        self.lists = IndexLists(store_id)
        #: True if the directory was empty or missing when the files were loaded for writing.
        self.is_new = False
        #: Damage that opening found and kept, in order: rows there are verified when read.
        self.damages: tuple[Damage, ...] = ()
        #: The first segments of both streams, and the first offset that follows from them.
        self._first: tuple[FileSegment | None, FileSegment | None, int] = (None, None, 0)
        #: Where index and data begin if no file is missing, by the last checkpoint; None: as found.
        self.begins: tuple[int, int] | None = None
        #: Held while the checkpoint is replaced, so that an older one is never the last.
        self.checkpoint_lock = threading.Lock()
        #: True once the topic was deleted: nothing is recorded of the shard any more.
        self.is_discarded = False
        #: Directories in which something appeared since they were synced.
        self._unsynced_directories: set[str] = set()

    def _empty_lists(self) -> tuple[FileSegmentList, FileSegmentList]:
        options, index_directory = self._options, join(self.directory, INDEX_DIRECTORY)
        return (
            FileSegmentList(
                self.vfs, index_directory, INDEX_SUFFIX, options.index_segment_size_bytes
            ),
            FileSegmentList(self.vfs, self.directory, DATA_SUFFIX, options.segment_size_bytes),
        )

    def load(self, *, writable: bool, limits: Limits | None = None) -> None:
        """Open the files that are there; NotAStore for a gap between them.

        A reader that calls it again keeps what it has open and what has not changed.

        `limits` returns the index and data offset at which the hidden part begins; it is called
        after each listing.
        """
        looks = 1 if writable else _LOOKS_MAX
        for look in range(1, looks + 1):
            # A writer's retention removes files during the listing. Files older than the first that
            # was seen may be gone already; of a stream that was listed slowly, all that were seen.
            try:
                self._load(writable, limits)
            except (FileNotFoundError, NotAStore):
                if look == looks:
                    raise
            else:
                if (self.index.end > 0) == (self.data.end > 0):
                    return

    def _load(self, writable: bool, limits: Limits | None) -> None:
        self.is_new = writable and not self.vfs.entries(self.directory)
        if self.is_new:
            self.index, self.data = self._empty_lists()  # one look, where ten thousand are new
            return

        def limit(stream: int) -> int | None:
            found = limits() if limits is not None else None
            return None if found is None else found[stream]

        # The index first: an entry is written after its record, so the later listing of the data
        # contains what it points to, also beside a live writer.
        options = self._options
        index = FileSegmentList.load(
            self.vfs,
            join(self.directory, INDEX_DIRECTORY),
            INDEX_SUFFIX,
            options.index_segment_size_bytes,
            writable=writable,
            limit=lambda: limit(0),
            known=Segments() if writable else self.index.now,
        )
        self.data = FileSegmentList.load(
            self.vfs,
            self.directory,
            DATA_SUFFIX,
            options.segment_size_bytes,
            writable=writable,
            limit=lambda: limit(1),
            known=Segments() if writable else self.data.now,
        )
        self.index = index

    def create_directories(self) -> None:
        """Make the shard's directories; durable with the first sync."""
        index_directory = join(self.directory, INDEX_DIRECTORY)
        if not self.vfs.exists(index_directory):
            self.vfs.make_directories(self.directory)  # by itself: one call each, no looking up
            self.vfs.make_directories(index_directory)
            parents = (dirname(self.directory), self.directory, index_directory)
            self._unsynced_directories.update(parents)

    def distrust_directories(self) -> None:
        """Sync the shard's directories with the next sync: another process may not have done it."""
        if not self.vfs.exists(self.directory):
            return  # it is noted when it is made
        index_directory = join(self.directory, INDEX_DIRECTORY)
        for directory in (dirname(self.directory), self.directory, index_directory):
            if self.vfs.exists(directory):
                self._unsynced_directories.add(directory)

    def trust_directories(self) -> None:
        """Record that the shard's directories are on stable storage."""
        self._unsynced_directories.clear()

    def snapshot(self) -> FileSnapshot:
        """Return the ends as they are now; the caller holds off a concurrent append."""
        index, data = self.index, self.data
        first = self.first_offset()
        return FileSnapshot(first, index.end, data.start, data.end, index.now, data.now)

    def first_offset(self) -> int:
        """Return the index offset of the first message that still has its data.

        Retention removes whole files, and an index file reaches over the border between two data
        files. So its first entries can point to removed data, in TubeMQ's stores to whole removed
        files.
        """
        index, data = self.index.now, self.data.now
        first_index, first_data, offset = self._first
        if index.first is not first_index or data.first is not first_data:
            offset = _first_kept(index, self.data.start)
            self._first = (index.first, data.first, offset)
        return offset

    # -- writing -----------------------------------------------------------------------------

    def append(self, batch: EncodedBatch, index_start: int, data_start: int) -> None:
        """Write a placed batch, data first, in the page cache when this returns.

        After an exception the same batch has to come next: its data may be there, and its entries.
        """
        entries = batch.entries.view(np.uint8).data
        self.append_bytes(batch.data.data, entries, index_start, data_start)

    def append_bytes(
        self, records: Buffer, entries: Buffer, index_start: int, data_start: int
    ) -> None:
        """As `append`, for records and entries that are bytes already."""
        data = self._writable(self.data, data_start)
        index = self._writable(self.index, index_start)
        if data.end == data_start:
            data.append(records)
        # Else an earlier call wrote the data and not the entries. The data are not cut back: that
        # may fail as well, and a sync that runs meanwhile may have counted them as safe.
        assert data.end == data_start + len(records), "a batch out of its place"
        if index.end == index_start:
            index.append(entries)
        # Else an earlier call wrote both, and its caller was interrupted.
        assert index.end == index_start + len(entries), "a batch out of its place"

    def _writable(self, segments: FileSegmentList, start: int) -> FileSegment:
        if not len(segments):
            self.create_directories()
            self._unsynced_directories.add(segments.directory)
        return segments.writable(start)

    def first_data_segment(self) -> FileSegment:
        """Return the data segment to write to, made at 0 if there is none."""
        return self._writable(self.data, 0)

    def first_index_segment(self) -> FileSegment:
        """Return the index segment to write to, made at 0 if there is none."""
        return self._writable(self.index, 0)

    def is_full(self) -> bool:
        """True if a last segment has reached its size."""
        return self.data.is_full or self.index.is_full

    def sync_sealable(self, *, full: bool) -> None:
        """Sync the last segments that have reached their size; without `full` all last segments.

        Before they are sealed, and apart from it: a failed sync must not be tried again.
        """
        for segments in (self.data, self.index):
            if len(segments) and (segments.is_full or not full):
                segments.sync()

    def roll_if_full(self) -> bool:
        """Seal each last segment that has reached its size and start the next; True if one did.

        Separate from `append`: messages stay written when the next file cannot be made, and the
        next call tries again.
        """
        rolled = False
        for segments in (self.data, self.index):
            if segments.is_full:
                self._unsynced_directories.add(segments.directory)
                rolled = segments.roll_if_full() is not None or rolled
        return rolled

    def adopt(self, index: list[Adopted], data: list[Adopted]) -> None:
        """Take over what is now behind both ends, in order, all synced."""
        self.data.adopt(data)
        self.index.adopt(index)

    def roll(self) -> None:
        """Seal what is written to, and start anew: both streams then end in an empty file."""
        for segments in (self.data, self.index):
            if len(segments) and segments.last.size:
                self._unsynced_directories.add(segments.directory)
                segments.roll()

    def remove_below(
        self,
        data_offset: int,
        *,
        now_ms: int,
        record_begins: Callable[[int, int], None],
        sync: Callable[[str], None],
    ) -> int:
        """Move the sealed files that hold only messages below a data offset to the trash.

        Returns their number. Recovery takes data without entries for lost messages, so the order
        counts: `record_begins` first records durably where index and data begin from now on. The
        oldest file goes first, the data before the index, and the names of the data are durable
        (`sync` of a directory) before the index is touched. After a crash in between the first
        entries point to removed data: the shard's first offset is behind them already. An error
        leaves a part of it done, and the shard whole.
        """
        data = [s for s in self.data if s.sealed and s.end <= data_offset]
        index = list(takewhile(lambda s: s.sealed and self._is_below(s, data_offset), self.index))
        if data or index:
            record_begins(
                index[-1].end if index else self.index.start,
                data[-1].end if data else self.data.start,
            )
        for segments, gone in ((self.data, data), (self.index, index)):
            for segment in gone:
                self._move(segments, segment, now_ms)
            if gone:
                sync(segments.directory)
        for segment in data:
            self.data.discard_digests(segment)
        for segment in index:
            self.index.discard_digests(segment)
            self.lists.forget(segment)
        return len(data) + len(index)

    def _move(self, segments: FileSegmentList, segment: FileSegment, now_ms: int) -> None:
        path = trash.move(self.vfs, segment.path, trash.trash_of(self.directory), now_ms)
        if path is not None:
            segment.moved_to(path)
        segments.now = segments.now.from_on(segment.end)

    def merge(
        self,
        segments: FileSegmentList,
        run: Sequence[FileSegment],
        copy: VfsFile,
        *,
        now_ms: int,
        sync: Callable[[str], None],
        check: Callable[[], None],
    ) -> None:
        """Put a file with the bytes of sealed segments, synced and compared, in their place.

        The digests go before, which describe files that change or go. The renaming over the first
        segment is durable (`sync` of a directory) before another one is touched. After a crash in
        between the others lie inside of it, and listings leave them out. All old files are in the
        trash then, where readers find them. `check` raises, just before the renaming, if the caller
        is not to go on.
        """
        first, path = run[0], run[0].path
        kept = trash.keep(self.vfs, path, trash.trash_of(self.directory), now_ms)
        for segment in run:
            segments.discard_digests(segment)
        self.vfs.sync_directory(join(self.directory, OWN_DIRECTORY))
        check()
        self.vfs.rename(copy.path, path)
        copy.moved_to(path)
        segments.merge(run, copy)
        first.moved_to(kept)
        for segment in run if segments is self.index else ():
            self.lists.forget(segment)
        sync(segments.directory)
        for segment in run[1:]:
            moved = trash.move(self.vfs, segment.path, trash.trash_of(self.directory), now_ms)
            if moved is not None:
                segment.moved_to(moved)

    def put_away_merged(self, now_ms: int) -> None:
        """Move what a compaction that was interrupted has left to the trash."""
        for segments in (self.data, self.index):
            if segments.merged:
                self.vfs.sync_directory(segments.directory)  # the file that has their bytes
            for path in segments.merged:
                trash.move(self.vfs, path, trash.trash_of(self.directory), now_ms)
                log.info("%s is a part of the file before it: a compaction was interrupted", path)
            segments.merged = []

    def _is_below(self, segment: FileSegment, data_offset: int) -> bool:
        """True if no entry of an index segment points to data at or behind an offset."""
        offsets = self.entries(segment, segment.end)["data_offset"]
        return not bool(((offsets >= data_offset) & (offsets < self.data.end)).any())

    def cut_copying(self, index_end: int, data_end: int) -> None:
        """Forget messages that readers may have been shown; the index goes first."""
        self.index.cut_copying(index_end)
        self.data.cut_copying(data_end)
        self.lists.clear()
        self.damages = tuple(damage for damage in self.damages if damage.end <= data_end)

    def sync_data(self) -> int:
        """Sync the data stream; returns the offset below which data is on stable storage.

        Enough for the `fsync` level: the index is rebuilt from the data (decisions.md D6).
        Directories are synced when a file appeared in them since the last time: a segment
        that is missing after a power cut would let offsets start again (weakness 5).
        """
        if not len(self.data):
            return 0
        end = self.data.last.sync()
        self._sync_directories()
        return end

    def is_durable(self, data_end: int) -> bool:
        """True if, by this process's syncs, data below an offset is on stable storage."""
        last = self.data.now.last
        known = last is None or (last.synced_end >= data_end and not last.shortened)
        return known and not self._unsynced_directories

    def _sync_directories(self) -> None:
        if not self._unsynced_directories:
            return
        nothing: set[str] = set()
        pending, self._unsynced_directories = self._unsynced_directories, nothing
        try:
            for directory in sorted(pending):
                self.vfs.sync_directory(directory)
        except BaseException:
            self._unsynced_directories |= pending
            raise

    def sync(self) -> None:
        """Sync both streams, data first."""
        self.data.sync()
        self.index.sync()
        self._sync_directories()

    def bounds(self) -> Bounds | None:
        """Return what is recorded of the shard outside of its directory; None: nothing."""
        return self.outside.bounds() if self.outside is not None else None

    def discard(self) -> None:
        """Write no checkpoint from now on, and wait for one that is being written."""
        with self.checkpoint_lock:
            self.is_discarded = True

    def close(self) -> None:
        """Give the descriptors back; nothing is synced here."""
        self.data.close()
        self.index.close()

    # -- reading -----------------------------------------------------------------------------

    def entries(self, segment: FileSegment, end: int) -> Array:
        """Return the index entries of a segment below the absolute offset `end`."""
        try:
            return entries_in(segment.view(min(end, segment.end)))
        except FileNotFoundError as error:
            raise self._too_late(segment.start) from error

    def forget_stale_lists(self) -> None:
        """Drop posting lists and times of entries that a writer took back."""
        self.lists.forget_stale(self.index)

    def keep_digests(self) -> None:
        """Write the digests of segments that were sealed."""
        for segments in (self.data, self.index):
            segments.keep_digests()

    def record_bytes(self, segment: FileSegment, end: int) -> memoryview:
        """Return the bytes of a data segment below the absolute offset `end`."""
        try:
            return segment.view(min(end, segment.end))
        except FileNotFoundError as error:
            raise self._too_late(self.first_offset()) from error

    def _too_late(self, offset: int) -> OffsetOutOfRange:
        """Return the error with the shard's present start: retention was ahead of the reader."""
        now = MsgFileStore(self.vfs, self.directory, self.store_id, self._options)
        now.load(writable=False)
        return OffsetOutOfRange(offset, now.first_offset(), now.index.end)


def _first_kept(index: Segments, data_start: int) -> int:
    """Return the offset behind the leading entries that point below `data_start`."""
    offset = index.first.start if index.first is not None else 0
    for segment in index if data_start else ():
        count = segment.size // ENTRY_SIZE
        # The first one alone mostly answers it, without a map.
        if not count or not _expired(segment, 1, data_start):
            break
        expired = _expired(segment, count, data_start)
        offset = segment.start + ENTRY_SIZE * expired
        if expired < count:
            break
    return offset


def _expired(segment: FileSegment, count: int, data_start: int) -> int:
    """Return how many entries, of the first `count`, point below before one that does not."""
    offsets = entries_in(segment.read(segment.start, count * ENTRY_SIZE))["data_offset"]
    below = (offsets >= 0) & (offsets < data_start)
    return count if below.all() else int(np.argmin(below))


def locate(positions: Array, segments: list[FileSegment]) -> list[tuple[FileSegment, Array]]:
    """Split data offsets by the segment that holds them: (segment, row numbers), in row order.

    Offsets in no segment (expired, or damage) are in none of the answers.
    """
    found = []
    for segment in segments:
        rows = np.flatnonzero((positions >= segment.start) & (positions < segment.end))
        if len(rows):
            found.append((segment, rows))
    return found
