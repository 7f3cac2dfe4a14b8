"""What a job reads, fixed before it starts: which entries of which shards, cut into splits.

Only names, lengths and some index entries are read, never data: a plan of a terabyte takes about as
long as listing its files. The plan is a snapshot: what a live writer adds later, or has half
written now, is not in it (decisions.md D9). A job that is being published is in it with all its
files or with none. What only the root's journal has travels with the plan: its bytes are appended
to a shard's files as files of their own, since the writer may begin the journal anew at any time.

A split is what one task reads, about `maxSplitBytes` of log: a part of a large shard, or many
small ones, since a task costs some 30 ms however little it does. Each names the files that
hold its bytes, so that no task lists a directory on another machine.

Nothing here imports Spark.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import (
    Callable,
    Collection,
    Container,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, replace
from itertools import pairwise
from os.path import basename
from typing import Any, NamedTuple

import numpy as np

from tubestore.core.doors import logger
from tubestore.core.paths import OWN_DIRECTORY, STORE_FILE, join
from tubestore.core.vfs import Vfs
from tubestore.disks.roots import disk_of
from tubestore.errors import (
    CorruptRecord,
    DataLoss,
    InvalidOption,
    NotAStore,
    OffsetOutOfRange,
    TubeStoreError,
    UnknownTopic,
    listed,
)
from tubestore.journal.journal_overlay import JournalOverlay, behind
from tubestore.journal.root_journal import JournalPart
from tubestore.offline.own_files import missing_shards, read_bounds
from tubestore.options import PARTITIONS_PER_STORE, TopicOptions
from tubestore.record.layouts import INDEX_ENTRY, RECORD_SIZE_MAX
from tubestore.record.names import JOURNAL_FILE, parse_store_key, store_key
from tubestore.record.records import ENTRY_SIZE, entries_in, whole_entries
from tubestore.record.state_files import Bounds, parse_identity
from tubestore.segments.listing import (
    KnownShards,
    ShardFiles,
    StoredFile,
    files_before,
    find_shards,
    is_shard,
)
from tubestore.segments.lost_files import missing_directory
from tubestore.spark.kit.options import EARLIEST, LATEST, Offsets, ReadOptions
from tubestore.spark.kit.pushdown import ALL, Bound
from tubestore.staging.commit_records import HiddenParts, Horizon
from tubestore.store.directory import StoreDirectory
from tubestore.store.topics import saved_settings
from tubestore.values import moment_text

log = logger(__name__)
#: Entries that are read at a time.
CHUNK_ENTRIES = 32_768
#: What opening the files of a portion costs, in bytes that could be read in that time.
PORTION_COST = 128 << 10
#: How many of the last entries are examined for the end of what is whole, at most: mostly it is
#: among the last few, and a store in an object storage pays for every byte.
_TAIL_ENTRIES = 8192
_NEAR_ENTRIES = 256
#: How many entries at either end of a portion determine its data files: a damaged one
#: among them points anywhere.
_EDGE_ENTRIES = 16


class Limit(NamedTuple):
    """One partition of a portion: offsets [start, end)."""

    partition: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Portion:
    """Entries [start, end) of one shard, index offsets, and the files that hold them."""

    shard: ShardFiles
    start: int
    end: int
    #: Bytes of index and data, at most.
    bytes: int
    #: Partitions with bounds of their own, and whether all others are read from start to end.
    limits: tuple[Limit, ...] = ()
    others: bool = True

    @property
    def rows(self) -> int:
        """Entries, before anything is filtered."""
        return (self.end - self.start) // ENTRY_SIZE


@dataclass(frozen=True, slots=True)
class Split:
    """What one task reads, in this order."""

    portions: tuple[Portion, ...]

    def identity(self) -> str:
        """Describe these messages: the same text however far the shards have grown since."""
        return repr(
            [(p.shard.directory, p.start, p.end, p.limits, p.others) for p in self.portions]
        )

    @property
    def rows(self) -> int:
        """Entries, before anything is filtered."""
        return sum(p.rows for p in self.portions)

    @property
    def bytes(self) -> int:
        """Bytes of index and data, at most."""
        return sum(p.bytes for p in self.portions)


@dataclass(frozen=True, slots=True)
class Plan:
    """All splits of a job, in the order of topics, shards and offsets."""

    root: str
    splits: tuple[Split, ...]

    def describe(self) -> str:
        """Describe what is going to be read."""
        rows, size = sum(s.rows for s in self.splits), sum(s.bytes for s in self.splits)
        return (
            f"{self.root}: planned {len(self.splits)} splits, at most {rows:,} messages and "
            f"{size:,} bytes"
        )


def store_uuid(directory: StoreDirectory) -> str | None:
    """Return a store's id; None for a directory of TubeMQ's own."""
    return directory.uuid if directory.read_state(STORE_FILE, parse_identity) else None


# -- the bounds of a shard ------------------------------------------------------------------------


class ShardIndex:
    """Single entries of a shard's index, for looking around in it."""

    def __init__(self, vfs: Vfs, shard: ShardFiles) -> None:
        self._vfs, self.shard = vfs, shard
        self.data_start = shard.data[0].start if shard.data else 0
        self.data_end = shard.data[-1].end if shard.data else 0
        self._open: tuple[str, Any] | None = None
        #: What was read last at two places, mostly the end and the begin: of which file, from
        #: which byte on. Of a small shard it is all.
        self._kept: deque[tuple[str, int, bytes]] = deque(maxlen=2)

    def _bytes(self, file: StoredFile, first: int, count: int) -> bytes:
        """Return the bytes of some entries of an index file; fewer at its end."""
        start, size = first * ENTRY_SIZE, count * ENTRY_SIZE
        if file.content:
            return file.content[start : start + size]
        for path, begin, data in self._kept:
            if path == file.path and begin <= start and start + size <= begin + len(data):
                return data[start - begin : start - begin + size]
        if self._open is None or self._open[0] != file.path:
            self._open = (file.path, self._vfs.open(file.path, writable=False))
        found: bytes = self._open[1].pread(size, start)
        self._kept.append((file.path, start, found))
        return found

    def read(self, file: StoredFile, first: int, count: int) -> np.ndarray[Any, Any]:
        """Return some entries of an index file by their place in it."""
        return entries_in(self._bytes(file, first, count))

    def place(self, file: StoredFile, row: int) -> tuple[int, int]:
        """Return where one entry's record begins, and its bytes; the end if the entry is gone."""
        data = self._bytes(file, row, 1)
        return _place(data) if len(data) == ENTRY_SIZE else (self.data_end, 0)

    def data_offset(self, file: StoredFile, row: int) -> int:
        """Return where one entry's record begins; the end if the entry is gone."""
        return self.place(file, row)[0]

    def bounds(self, hidden: HiddenParts, recorded: Bounds | None = None) -> tuple[int, int]:
        """Return the offsets [first, end) of what is kept, whole, and of finished jobs.

        The horizon of `hidden` was made before the files were listed. `recorded` is what the store
        recorded of the shard: no entry is read where the files are as they were synced.
        """
        first, end = self._synced(recorded) or self._kept_and_whole()
        limits = hidden.limits(self.shard.topic, self.shard.store_id)
        if limits is not None:
            end = min(end, limits[0])
        return min(first, end), end

    def _synced(self, recorded: Bounds | None) -> tuple[int, int] | None:
        """Return the bounds of files that begin at 0 and end where they were synced; else None.

        Then nothing was removed, and every entry has its data.
        """
        index = self.shard.index
        if recorded is None or not index or index[0].start or self.data_start:
            return None
        is_synced = (index[-1].end, self.data_end) == (recorded.index_end, recorded.data_end)
        return (0, recorded.index_end) if is_synced else None

    def _kept_and_whole(self) -> tuple[int, int]:
        end, _ = self.whole_end()
        return self._first(end), end

    def whole_end(self) -> tuple[int, bytes]:
        """Return the offset behind the last entry that has its data, and that entry if any."""
        # A file that was rolled just now is empty, and the entry in flight is in the one before.
        filled = [file for file in self.shard.index if file.size >= ENTRY_SIZE]
        if not filled:  # retention leaves one empty file; its name keeps the end
            return (self.shard.index[-1].start if self.shard.index else 0), b""
        last = filled[-1]
        rows = last.size // ENTRY_SIZE
        count = min(_NEAR_ENTRIES, rows)
        data = self._bytes(last, rows - count, count)
        if len(data) == count * ENTRY_SIZE and self._is_whole(data):  # mostly
            return last.start + ENTRY_SIZE * rows, data[-ENTRY_SIZE:]
        entries = entries_in(data)
        whole = whole_entries(entries, self.data_end)
        if not whole and count < rows:
            count = min(_TAIL_ENTRIES, rows)
            entries = self.read(last, rows - count, count)
            whole = whole_entries(entries, self.data_end)
        last_entry = entries[whole - 1].tobytes() if whole else b""
        return last.start + ENTRY_SIZE * (rows - count + whole), last_entry

    def _is_whole(self, entries: bytes) -> bool:
        """True if the last of some entries has its data; then it is the last of those that do."""
        offset, size = _place(entries, len(entries) - ENTRY_SIZE)
        return 0 < size <= RECORD_SIZE_MAX and offset + size <= self.data_end

    def _first(self, end: int) -> int:
        """Return the offset of the first entry with data; `end` without one."""
        for file in self.shard.index:
            rows, row, some = file.size // ENTRY_SIZE, 0, _NEAR_ENTRIES
            while row < rows:
                data = self._bytes(file, row, min(some, rows - row))
                if data and sum(_place(data)) > self.data_start:  # mostly
                    return file.start + ENTRY_SIZE * row
                entries = entries_in(data)
                ends = entries["data_offset"] + entries["data_size"].astype(np.int64)
                kept = np.flatnonzero(ends > self.data_start)
                if len(kept):
                    return file.start + ENTRY_SIZE * (row + int(kept[0]))
                row, some = row + some, _TAIL_ENTRIES
        return end

    # -- times ---------------------------------------------------------------------------------

    def entries(self, low: int, end: int) -> Iterator[tuple[int, np.ndarray[Any, Any]]]:
        """Go through the entries of [low, end): (offset of the first, some entries)."""
        for file in self.shard.index:
            first = max(0, -(-(low - file.start) // ENTRY_SIZE))
            last = min(file.size, end - file.start) // ENTRY_SIZE
            for row in range(first, last, CHUNK_ENTRIES):
                some = self.read(file, row, min(CHUNK_ENTRIES, last - row))
                yield file.start + ENTRY_SIZE * row, some

    def first_since(self, low: int, end: int, time_ms: int) -> int:
        """Return the offset of the first message received at a time or later; `end` without one.

        Times need not ascend: what is behind it is of any time.
        """
        for offset, entries in self.entries(low, end):
            rows = np.flatnonzero(entries["received_time"] >= time_ms)
            if len(rows):
                return offset + ENTRY_SIZE * int(rows[0])
        return end

    def firsts_since(self, low: int, end: int, times: Mapping[int, int]) -> dict[int, int]:
        """Return the offset of the first message of each partition's time or later, if it has one.

        `times`: by partition id.
        """
        found: dict[int, int] = {}
        for offset, entries in self.entries(low, end):
            for partition in times.keys() - found:
                late = entries["received_time"] >= times[partition]
                rows = np.flatnonzero(late & (entries["partition_id"] == partition))
                if len(rows):
                    found[partition] = offset + ENTRY_SIZE * int(rows[0])
            if len(found) == len(times):
                break
        return found

    def close(self) -> None:
        """Give the descriptor back."""
        if self._open is not None:
            self._open[1].close()
            self._open = None

    # -- cutting -------------------------------------------------------------------------------

    def portions(self, start: int, end: int, max_bytes: int) -> Iterator[Portion]:
        """Cut entries [start, end) into portions of about `max_bytes` of data."""
        for file in self.shard.index:
            first = max(0, -(-(start - file.start) // ENTRY_SIZE))
            last = min(file.size // ENTRY_SIZE, (end - file.start) // ENTRY_SIZE)
            if first < last:
                for low, high in pairwise(self._cuts(file, first, last, max_bytes)):
                    yield self._portion(file, low, high)

    def _cuts(self, file: StoredFile, first: int, last: int, max_bytes: int) -> list[int]:
        """Return rows of an index file between which there are about `max_bytes` of data."""
        if self.data_end - self.data_start <= max_bytes:
            return [first, last]
        low = self.data_offset(file, first)
        size = self.data_offset(file, last - 1) - low
        cuts = [first]
        # A damaged entry makes uneven cuts; every row is in one all the same.
        for number in range(1, min(-(-size // max_bytes), last - first)):
            target = low + size * number // -(-size // max_bytes)
            rows = range(cuts[-1] + 1, last)
            cut = (
                cuts[-1]
                + 1
                + bisect_left(rows, target, key=lambda row: self.data_offset(file, row))
            )
            if cut >= last:
                break
            cuts.append(cut)
        return [*cuts, last]

    def _portion(self, file: StoredFile, first: int, last: int) -> Portion:
        shard = self.shard
        if (last - first) * ENTRY_SIZE == file.size and len(shard.index) == len(shard.data) == 1:
            return Portion(shard, file.start, file.end, file.size + shard.data[0].size)
        low, (high, size) = self.data_offset(file, first), self.place(file, last - 1)
        data = self._data_files(file, first, last)
        span = max(0, min(high + size - low, sum(f.size for f in data)))
        return Portion(
            replace(shard, index=(file,), data=data, strays=()),
            file.start + ENTRY_SIZE * first,
            file.start + ENTRY_SIZE * last,
            span + ENTRY_SIZE * (last - first),
        )

    def _data_files(self, file: StoredFile, first: int, last: int) -> tuple[StoredFile, ...]:
        """Return the data files that hold the records of rows [first, last)."""
        if len(self.shard.data) == 1:
            return self.shard.data
        edge = min(_EDGE_ENTRIES, last - first)
        heads = self.read(file, first, edge)["data_offset"]
        tails = self.read(file, last - edge, edge)["data_offset"]
        offsets = np.concatenate([heads, tails])
        offsets = offsets[(offsets >= self.data_start) & (offsets < self.data_end)]
        if not len(offsets):
            return ()
        low, high = int(offsets.min()), int(offsets.max())
        return tuple(f for f in self.shard.data if f.end > low and f.start <= high)


def _place(entries: bytes, position: int = 0) -> tuple[int, int]:
    """Return the data offset and size of the entry at a position; for one, numpy is slow."""
    _, offset, size, _, _ = INDEX_ENTRY.struct.unpack_from(entries, position)
    return offset, size


# -- what the journal has of a shard --------------------------------------------------------------


def journal_of(vfs: Vfs, root: str, note: Callable[[str], None] | None = None) -> JournalOverlay:
    """Return the journal of a store; DataLoss when it is read and damaged, or cannot be read.

    With a callback DataLoss is not raised: the callback gets the sentence, and the sound messages
    are shown.
    """

    def refuse(problem: TubeStoreError) -> None:
        if note is not None:
            note(str(problem))
            return
        mended = isinstance(problem, CorruptRecord)
        raise DataLoss(
            f"{problem}; `tubestore recover {root}` does that" if mended else str(problem)
        )

    return JournalOverlay(vfs, root, refuse)


def list_shards(
    root: str,
    vfs: Vfs,
    journal: JournalOverlay,
    *,
    with_pending: bool = False,
    wanted: Callable[[str, int], bool] = lambda _topic, _store_id: True,
    before: KnownShards | None = None,
) -> list[ShardFiles]:
    """List the shards of a store, also those that have messages in the journal and no file yet.

    The journal is read before the files are listed: what leaves it meanwhile is in the files.
    `before`: as in `find_shards`.
    """
    named = journal.shards()
    found = find_shards(root, vfs, with_pending=with_pending, wanted=wanted, before=before)
    known = {(shard.topic, shard.store_id) for shard in found}
    topics = saved_settings(StoreDirectory(vfs, root, "r")) if named else {}
    for name in named:
        key = parse_store_key(name)
        if key is not None and key not in known and key[0] in topics and wanted(*key):
            found.append(ShardFiles(*key, join(root, name), (), ()))
    return sorted(found, key=lambda shard: (shard.topic, shard.store_id)) if named else found


def with_journal(
    vfs: Vfs, root: str, shard: ShardFiles, parts: Sequence[JournalPart]
) -> ShardFiles:
    """Return a shard with what the journal has behind its files, as one more file of each kind.

    `parts` were read before the shard was listed. A tail in flight is left out then.
    """
    if not parts:
        return shard
    index = ShardIndex(vfs, shard)
    try:
        end, last = index.whole_end()
    finally:
        index.close()
    data_end = shard.data[-1].start if shard.data else 0
    if last:
        entry = INDEX_ENTRY.unpack_from(last)
        data_end = entry.data_offset + entry.data_size
    placed = behind(parts, end, data_end, last)
    if not placed:
        return shard
    path = join(root, OWN_DIRECTORY, JOURNAL_FILE)
    entries = b"".join(each.batch.entries.tobytes() for each in placed)
    records = b"".join(each.batch.data.tobytes() for each in placed)
    return replace(
        shard,
        index=_and_held(shard.index, path, placed[0].index_start, entries),
        data=_and_held(shard.data, path, placed[0].data_start, records),
    )


def _and_held(
    files: tuple[StoredFile, ...], path: str, start: int, content: bytes
) -> tuple[StoredFile, ...]:
    kept = files_before(files, start)
    return (*kept, StoredFile(path, start, len(content), content=content))


# -- what is wanted of a shard --------------------------------------------------------------------


def shard_limits(
    shard: ShardFiles, first: int, end: int, options: ReadOptions
) -> tuple[tuple[Limit, ...], bool]:
    """Return the partitions of a shard that have bounds of their own, and whether others are read.

    DataLoss or OffsetOutOfRange for an offset that is not kept or not there yet.
    """
    wanted = options.partitions_of(shard.topic)
    pushed = options.pushed.of("partition")
    if pushed is not ALL:
        base = shard.store_id * PARTITIONS_PER_STORE
        ids = range(base, base + PARTITIONS_PER_STORE) if wanted is None else wanted
        wanted = frozenset(filter(pushed.holds, ids))
    starts = _of_topic(options.starting, shard.topic)
    ends = _of_topic(options.ending, shard.topic)
    limits = []
    for partition in sorted({*starts, *ends} if wanted is None else wanted):
        if partition // PARTITIONS_PER_STORE != shard.store_id:
            continue
        low, high = starts.get(partition, EARLIEST), ends.get(partition, LATEST)
        start = {EARLIEST: first, LATEST: end}.get(low, low)
        stop = {LATEST: end}.get(high, high)
        if start < first and options.fail_on_data_loss:
            text = f"{shard.topic} partition {partition}: offset {start} is wanted, {first} is the"
            raise DataLoss(f"{text} first that is kept (failOnDataLoss=false starts there)")
        if max(start, stop) > end:
            raise OffsetOutOfRange(max(start, stop), first, end)
        limits.append(Limit(partition, max(start, first), stop))
    return tuple(limits), wanted is None


def with_offsets(index: ShardIndex, low: int, end: int, options: ReadOptions) -> ReadOptions:
    """Return the options with a shard's offsets in place of times, of what it has in [low, end).

    InvalidOption for a partition without a message of its starting time or later.
    """

    def offsets(times: Offsets) -> dict[int, int]:
        wanted = {
            partition: time_ms
            for partition, time_ms in times.get(topic, {}).items()
            if partition // PARTITIONS_PER_STORE == index.shard.store_id
        }
        return dict.fromkeys(wanted, LATEST) | index.firsts_since(low, end, wanted)

    topic = index.shard.topic
    if topic in options.starting_times:
        starts = offsets(options.starting_times)
        late = [partition for partition, offset in sorted(starts.items()) if offset == LATEST]
        if late and options.strict_times:
            moment = moment_text(options.starting_times[topic][late[0]])
            reason = f"{topic} partition {late[0]} has no message of {moment} or later"
            raise InvalidOption(
                "startingOffsetsByTimestamp",
                f"{reason} (startingOffsetsByTimestampStrategy=latest starts at the end)",
            )
        options = replace(options, starting={topic: starts})
    if topic in options.ending_times:
        options = replace(options, ending={topic: offsets(options.ending_times)})
    return options


def _of_topic(given: int | Offsets, topic: str) -> Mapping[int, int]:
    return {} if isinstance(given, int) else given.get(topic, {})


def _wanted_portions(
    index: ShardIndex,
    hidden: HiddenParts,
    recorded: Bounds | None,
    options: ReadOptions,
    max_bytes: int,
) -> Iterator[Portion]:
    """Cut what the options want of one shard."""
    low, end = index.bounds(hidden, recorded)
    options = with_offsets(index, low, end, options)
    limits, others = shard_limits(index.shard, low, end, options)
    if not others:
        limits = tuple(one for one in limits if one.start < one.end)
        low = min((one.start for one in limits), default=low)
        end = max((one.end for one in limits), default=low)
    if options.pushed:
        offsets = Bound(None, low, end).both(options.pushed.of("offset"))
        low, end = offsets.low or 0, -(-(offsets.high or 0) // ENTRY_SIZE) * ENTRY_SIZE
    for portion in index.portions(low, end, max_bytes):
        yield portion if others and not limits else replace(portion, limits=limits, others=others)


# -- the plan -------------------------------------------------------------------------------------


def plan(options: ReadOptions, vfs: Vfs | None = None) -> Plan:
    """Plan the reading of a store as it is now.

    NotAStore, UnknownTopic, InvalidOption, DataLoss or OffsetOutOfRange for what cannot be read.
    """
    vfs = vfs or disk_of(options.path)
    note = None if options.fail_on_data_loss else log.warning
    horizon, journal = Horizon(vfs, options.path), journal_of(vfs, options.path, note)
    shards = [
        with_journal(vfs, options.path, s, journal.of(store_key(s.topic, s.store_id)))
        for s in choose_shards(vfs, options, journal)
        if options.pushed.of("topic").holds(s.topic)
    ]
    max_bytes = options.max_split_bytes
    if options.min_partitions > 1:
        total = sum(f.size for s in shards for f in (*s.index, *s.data))
        max_bytes = max(1, min(max_bytes, -(-total // options.min_partitions)))
    found: list[Portion] = []
    hidden, recorded = horizon.of_all(), read_bounds(vfs, options.path)
    for shard in shards:
        check_files(shard, options, log.warning)
        index = ShardIndex(vfs, shard)
        try:
            bounds = recorded.get(store_key(shard.topic, shard.store_id))
            found += _wanted_portions(index, hidden, bounds, options, max_bytes)
        finally:
            index.close()
    return Plan(options.path, tuple(pack(found, max_bytes)))


def choose_shards(
    vfs: Vfs,
    options: ReadOptions,
    journal: JournalOverlay | None = None,
    known: Container[str] = (),
    seen: Collection[str] = (),
    before: KnownShards | None = None,
) -> list[ShardFiles]:
    """List the shards that the options name; UnknownTopic, InvalidOption for what is not there.

    NotAStore for a wanted shard without its directory, unless it is one of the `known` store
    keys, which the caller looks for itself, or `failOnDataLoss` is off. If just the shards `seen`
    are there, names are not checked again. `before`: as in `find_shards`.
    """

    def wanted(topic: str, store_id: int) -> bool:
        return wants_shard(options, topic, store_id)

    # Without a journal nothing is read of it but names: its damage is refused where rows are.
    overlay = journal or JournalOverlay(vfs, options.path)
    found = list_shards(options.path, vfs, overlay, wanted=wanted, before=before)
    if seen and len(seen) == len(found) and {basename(s.directory) for s in found} == set(seen):
        return found
    if options.names_any or not found:
        settings = saved_settings(StoreDirectory(vfs, options.path, "r"))
        stores = _stores_of(vfs, options.path, settings)
        if not stores and not vfs.exists(join(options.path, OWN_DIRECTORY)):
            raise NotAStore(options.path, "there is no store in this directory, and no shard")
        _check_names(options, settings, stores)
    for directory in missing_shards(vfs, options.path, found, wanted=wanted):
        if basename(directory) in known:
            continue
        lost = NotAStore(directory, missing_directory(directory).reason)
        if options.fail_on_data_loss:
            raise lost
        log.warning(str(lost))
    return found


def wants_shard(options: ReadOptions, topic: str, store_id: int) -> bool:
    """True if the options want messages of a shard."""
    if not options.wants_topic(topic):
        return False
    ids = options.partitions_of(topic)
    return ids is None or any(i // PARTITIONS_PER_STORE == store_id for i in ids)


def _stores_of(vfs: Vfs, root: str, settings: Iterable[str]) -> dict[str, set[int]]:
    """Return the ids of the shards of each topic, by the names of their directories."""
    found: dict[str, set[int]] = {topic: set() for topic in settings}
    for name, is_directory, _ in vfs.entries(root):
        key = parse_store_key(name) if is_directory else None
        if key is not None and (key[0] in found or is_shard(vfs, join(root, name))):
            found.setdefault(key[0], set()).add(key[1])
    return found


def _check_names(
    options: ReadOptions, settings: Mapping[str, TopicOptions], stores: Mapping[str, set[int]]
) -> None:
    """Refuse names of topics and partitions that are not there; `stores`: ids by topic."""

    def holds(topic: str, partition: int) -> bool:
        made = settings.get(topic)
        if made is not None and made.holds(partition):
            return True
        # A store of TubeMQ has no settings: what its shards hold is not known before it is read.
        return made is None and partition // PARTITIONS_PER_STORE in stores[topic]

    for topic in options.named_topics():
        if topic not in stores:
            raise UnknownTopic(topic, stores)
    options.check_pattern(stores)
    wanted = [topic for topic in sorted(stores) if options.wants_topic(topic)]
    for topic, ids in (options.assigned or {}).items():
        _refuse_partition("assign", topic, (i for i in ids if not holds(topic, i)))
    if wanted:  # a stream's topics may come later
        for partition in sorted(options.partitions or ()):
            if not any(holds(topic, partition) for topic in wanted):
                reason = f"no topic that is read has a partition {partition}: {listed(wanted)}"
                raise InvalidOption("partitions", reason)
    for name, given in (
        ("startingOffsets", options.starting),
        ("endingOffsets", options.ending),
        ("startingOffsetsByTimestamp", options.starting_times),
        ("endingOffsetsByTimestamp", options.ending_times),
    ):
        for topic, places in () if isinstance(given, int) else given.items():
            if topic not in stores or not options.wants_topic(topic):
                raise InvalidOption(name, f"topic {topic!r} is not one of those that are read")
            _refuse_partition(name, topic, (i for i in places if not holds(topic, i)))


def _refuse_partition(option: str, topic: str, partitions: Iterable[int]) -> None:
    for partition in partitions:
        raise InvalidOption(option, f"{topic} has no partition {partition}")


def check_files(shard: ShardFiles, options: ReadOptions, note: Callable[[str], None]) -> None:
    """Raise NotAStore for a shard with a hole between its files: rows would be missing.

    With `failOnCorrupt` off the callback gets the sentence, and what is there is read.
    """
    for files in (shard.index, shard.data):
        for before, after in pairwise(files):
            if before.end != after.start:
                reason = f"{after.path} does not start where the one before ends ({before.end})"
                if options.fail_on_corrupt:
                    reason += " (failOnCorrupt=false reads what is there)"
                    raise NotAStore(shard.directory, reason)
                note(str(NotAStore(shard.directory, reason)))


def pack(portions: Iterable[Portion], max_bytes: int) -> Iterator[Split]:
    """Put neighbouring portions into one split as long as it stays small."""
    held: list[Portion] = []
    size = 0
    for portion in portions:
        cost = portion.bytes + PORTION_COST
        if held and size + cost > max_bytes + PORTION_COST:
            yield Split(tuple(held))
            held, size = [], 0
        held.append(portion)
        size += cost
    if held:
        yield Split(tuple(held))
