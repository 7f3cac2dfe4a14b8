"""Which messages the next micro-batch of a stream has, and how they are split.

Shards that a position does not name begin at the earliest: topics appear while a query runs.
Limits are shared fairly: no shard gets less than an equal share while it has messages.

Nothing here imports Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np

from tubestore.core.vfs import OsVfs, Vfs
from tubestore.errors import DataLoss, NotAStore
from tubestore.journal.root_journal import JournalPart
from tubestore.offline.own_files import read_bounds
from tubestore.record.layouts import INDEX_ENTRY
from tubestore.record.names import parse_store_key, store_key
from tubestore.record.records import ENTRY_SIZE
from tubestore.record.state_files import SavedTopics
from tubestore.segments.listing import KnownShards, ShardFiles
from tubestore.spark.holding import StreamLease
from tubestore.spark.kit.options import LATEST, ReadOptions
from tubestore.spark.planning import (
    Limit,
    Plan,
    Portion,
    ShardIndex,
    check_files,
    choose_shards,
    journal_of,
    pack,
    shard_limits,
    store_uuid,
    wants_shard,
    with_journal,
    with_offsets,
)
from tubestore.spark.positions import Position, TopicIds
from tubestore.staging.commit_records import Horizon
from tubestore.store.directory import StoreDirectory
from tubestore.values import moment_text

#: Portions smaller than this share a split: a task costs some 30 ms.
PACK_BYTES = 4 << 20
#: How often shards are listed again because topics changed meanwhile, at most.
_LISTINGS = 3


@dataclass(frozen=True, slots=True)
class ShardNow:
    """A shard with its journalled messages, and what is kept and whole: offsets [first, end)."""

    shard: ShardFiles
    first: int
    end: int
    #: Where what belongs to an unfinished job begins.
    hidden: tuple[int, int] | None
    #: What it was made of: its files as they were listed, and its parts of the journal.
    listed: ShardFiles
    parts: Sequence[JournalPart]


@dataclass(frozen=True, slots=True)
class _Range:
    """A shard's part of a batch: index offsets [low, end)."""

    shard: ShardFiles
    low: int
    end: int
    #: Partitions that begin later: their first offset.
    starts: Mapping[int, int]


class MicroBatches:
    """The messages of a store as a stream's batches; lives as long as the query. Not thread-safe.

    With `failOnDataLoss` off the callback gets a sentence about what was skipped; `skipped` counts
    the messages.
    """

    def __init__(
        self, options: ReadOptions, vfs: Vfs | None = None, note: Callable[[str], None] = print
    ) -> None:
        self.options, self.skipped = options, 0
        self._vfs, self._note = vfs or OsVfs(), note
        self._noted: set[str] = set()
        self._directory = StoreDirectory(self._vfs, options.path, "r")
        self._store = store_uuid(self._directory)
        skip = None if options.fail_on_data_loss else note
        self._journal = journal_of(self._vfs, options.path, skip)
        self._seen: dict[str, ShardNow] = {}
        #: The ids of topics when `_seen` was listed.
        self._ids: Mapping[str, int] = {}
        self._listed = KnownShards()
        self._target: Mapping[str, int] | None = None
        #: Where the batch that was cut last ends.
        self._last: Mapping[str, int] = {}
        self._lease = StreamLease(self._vfs, options.path, note) if self._store else None

    def close(self) -> None:
        """Let retention have what was held."""
        if self._lease is not None:
            self._lease.release()

    # -- the ends of the store -----------------------------------------------------------------

    def shards_now(self, known: Container[str] = ()) -> dict[str, ShardNow]:
        """List the shards as they are now; NotAStore for one that is gone and not `known`."""
        # A topic may be deleted and made again meanwhile: its shard and its id belong together.
        before, found = self._topics(), self._list_shards(known)
        after, tries = self._topics(), 1
        while after is not before and tries < _LISTINGS:
            before, found = after, self._list_shards(known)
            after, tries = self._topics(), tries + 1
        ids = _ids_of(after)
        if after is not before:  # topics are made all the time: those of now come next time
            then = _ids_of(before)
            found = {
                key: now
                for key, now in found.items()
                if then.get(now.shard.topic) == ids.get(now.shard.topic)
            }
        if after is not None and after.deleted:  # their files are not all moved away yet
            gone = after.deleted - ids.keys()
            found = {key: now for key, now in found.items() if now.shard.topic not in gone}
        self._seen, self._ids = found, ids
        return found

    def _topics(self) -> SavedTopics | None:
        """Return the topics' settings, the same object while there is no change."""
        return self._directory.read_topics()

    def _list_shards(self, known: Container[str]) -> dict[str, ShardNow]:
        found, root = {}, self.options.path
        horizon = Horizon(self._vfs, root)
        self._journal.refresh()
        shards = choose_shards(
            self._vfs, self.options, self._journal, known, self._seen, self._listed
        )
        hidden_parts = horizon.of_all()
        recorded = {} if self._seen else read_bounds(self._vfs, root)
        for listed in shards:
            key = store_key(listed.topic, listed.store_id)
            before, parts = self._seen.get(key), self._journal.of(key)
            hidden = hidden_parts.limits(listed.topic, listed.store_id)
            same = before is not None and before.listed == listed and before.parts is parts
            if before is not None and same and before.hidden == hidden:
                found[key] = before
                continue
            shard = with_journal(self._vfs, root, listed, parts)
            index = ShardIndex(self._vfs, shard)
            try:
                bounds = index.bounds(hidden_parts, recorded.get(key))
                found[key] = ShardNow(shard, *bounds, hidden, listed, parts)
            finally:
                index.close()
        return found

    def _position(
        self, shards: Mapping[str, int], starts: Mapping[str, Mapping[int, int]] | None = None
    ) -> Position:
        """Return a position of shards as they were listed last."""
        topics = TopicIds.of(self._ids, (now.shard.topic for now in self._seen.values()))
        return Position(self._store, shards, starts or {}, topics)

    def initial(self) -> Position:
        """Return where a new query starts."""
        shards, starts = {}, {}
        for key, now in self.shards_now().items():
            if self.options.starting == LATEST:
                shards[key] = now.end
                continue
            index, since = ShardIndex(self._vfs, now.shard), self.options.filter.start_ms
            try:
                options = with_offsets(index, now.first, now.end, self.options)
                first = now.first
                if since is not None:  # history would be batches without a row
                    first = index.first_since(now.first, now.end, since)
            finally:
                index.close()
            limits, others = shard_limits(now.shard, now.first, now.end, options)
            low = min((one.start for one in limits), default=now.first)
            shards[key] = max(first, now.first if others else low)
            starts[key] = {one.partition: one.start for one in limits}
        return self._position(shards, starts)

    def end(self) -> Position:
        """Return the position behind everything that is there."""
        return self._position({key: now.end for key, now in self.shards_now().items()})

    def report(self) -> dict[str, Any]:
        """Return the end as of the last batch, and by topic how many messages are behind that.

        Of all partitions, as `behind` counts them; topics without any are left out.
        """
        there = self._seen or self.shards_now()
        behind: dict[str, int] = {}
        for key, now in there.items():
            count = (now.end - max(now.first, self._last.get(key, now.first))) // ENTRY_SIZE
            if count > 0:
                behind[now.shard.topic] = behind.get(now.shard.topic, 0) + count
        end = self._position({key: now.end for key, now in there.items()})
        return {**end.as_json(), "behind": behind}

    def freeze(self) -> None:
        """Go no further than what is there now (the trigger AvailableNow)."""
        self._target = self.end().shards

    # -- the next batch ------------------------------------------------------------------------

    def latest(
        self,
        start: Position,
        max_rows: int | None = None,
        max_bytes: int | None = None,
        min_rows: int | None = None,
    ) -> Position:
        """Return the end of the batch that begins at `start`, within the limits.

        One message is taken at least, however large it is; none if there are less than `min_rows`.
        """
        end = self._latest(start, max_rows, max_bytes, min_rows)
        self._last = end.shards
        return end

    def _latest(
        self, start: Position, max_rows: int | None, max_bytes: int | None, min_rows: int | None
    ) -> Position:
        self.check_store(start)
        there = self.shards_now(start.shards)
        start = self._without_vanished(start, there)
        if self._lease is not None:
            self._lease.hold(start.shards)
        backlogs, ends = {}, {}
        for key, now in there.items():
            end = now.end if self._target is None else min(now.end, self._target.get(key, 0))
            since = start.shards.get(key, now.first)
            low = max(since, now.first)
            if low < end:
                backlogs[key] = _Backlog(ShardIndex(self._vfs, now.shard), low, end, self.options)
            elif since < end:  # all of it was removed, which planning the batch reports
                ends[key] = end
        try:
            if min_rows is not None and not _are_enough(backlogs.values(), min_rows):
                return start
            if max_rows is not None:
                _share(backlogs, max_rows, _Backlog.rows, _Backlog.cut_rows)
            if max_bytes is not None:
                _share(backlogs, max_bytes, _Backlog.bytes, _Backlog.cut_bytes)
        finally:
            for backlog in backlogs.values():
                backlog.index.close()
        ends |= {key: backlog.end for key, backlog in backlogs.items()}
        # A shard with a lost start stays where it is: planning the batch reports what was lost.
        shards = {**start.shards, **ends}
        return start if shards == start.shards else self._position(shards, start.starts)

    def _without_vanished(self, start: Position, there: Mapping[str, ShardNow]) -> Position:
        """Raise DataLoss if what was read is not there as it was, or go on with what is there."""
        shards, starts, changed = dict(start.shards), dict(start.starts), False
        for key, offset in start.shards.items():
            now = there.get(key)
            if now is None:
                self._lose(*self._absent(start, key, offset))
                del shards[key]
            elif self._is_of_another(start, now.shard.topic):
                self._lose(_remade(now.shard.topic, self._ids), _FROM_ITS_BEGIN)
                shards[key] = now.first
            elif now.end < offset:
                text = f"{key}: the stream is at {offset}, but the shard ends at {now.end}"
                self._lose(f"{text}: it was cut", "goes on with what is there")
                shards[key] = now.end
            else:
                continue
            starts.pop(key, None)
            changed = True
        return self._position(shards, starts) if changed else start

    def _absent(self, start: Position, key: str, offset: int) -> tuple[str, str]:
        """Describe a shard that a position has and that is not among those that are read."""
        shard = parse_store_key(key)
        if shard is None or wants_shard(self.options, *shard):
            if shard is not None and self._is_of_another(start, shard[0]):
                return _remade(shard[0], self._ids), _FROM_ITS_BEGIN
            text = f"{key}: the stream is at {offset}, but the shard is gone"
            return text, "goes on with what is there"
        text = f"{key}: the checkpoint has it, and the query's options leave it out now: give the "
        text += "options that the checkpoint was made with, or another checkpointLocation"
        return text, "goes on without it, and if it is read again, from its earliest message on"

    def _is_of_another(self, position: Position, topic: str) -> bool:
        return position.is_of_another(topic, self._ids.get(topic, 0))

    def _lose(self, text: str, lenient: str) -> None:
        """Raise DataLoss, or note it once; `lenient` is what happens then."""
        if self.options.fail_on_data_loss:
            raise DataLoss(f"{text} (failOnDataLoss=false {lenient})")
        self._note_once(text)

    def plan(self, start: Position, end: Position) -> Plan:
        """Split the batch [start, end); DataLoss if some of it is gone."""
        self.check_store(start)
        self.check_store(end)
        now = self._seen
        if any(key not in now or now[key].end < offset for key, offset in end.shards.items()):
            now = self.shards_now(end.shards)
        ranges = []
        for key, offset in end.shards.items():
            there, starts = now.get(key), start.starts.get(key, {})
            low = start.shards.get(key, there.first if there else 0)
            topic, _ = parse_store_key(key) or ("", 0)
            is_later = self._is_of_another(end, topic)
            if is_later or (key in start.shards and self._is_of_another(start, topic)):
                self._lose(_remade(topic, self._ids), _FROM_ITS_BEGIN)
                if is_later:
                    continue  # what the batch had is gone; the next one begins anew
                low, starts = (there.first if there else 0), {}
            if low < offset:
                ranges.append(self._range(key, there, low, offset, starts))
        max_bytes = self.options.max_split_bytes
        portions = [p for wanted in ranges for p in self._portions(wanted, max_bytes)]
        if self.options.min_partitions > 1:
            total = sum(portion.bytes for portion in portions)
            if (each := max(1, -(-total // self.options.min_partitions))) < max_bytes:
                max_bytes = each
                portions = [p for wanted in ranges for p in self._portions(wanted, each)]
        return Plan(self.options.path, tuple(pack(portions, min(PACK_BYTES, max_bytes))))

    def _range(
        self, key: str, now: ShardNow | None, low: int, end: int, starts: Mapping[int, int]
    ) -> _Range:
        """Return what is there of a shard's part of a batch; DataLoss if not all is."""
        if now is None or now.end < end:
            there = "nothing is there" if now is None else f"it ends at {now.end}"
            raise DataLoss(f"{key}: the stream is to read offsets {low} to {end}, but {there}")
        if low < now.first:
            self._lost(key, now, low, min(end, now.first))
            low = now.first
        check_files(now.shard, self.options, self._note_once)
        return _Range(now.shard, low, end, starts)

    def _portions(self, asked: _Range, max_bytes: int) -> Iterator[Portion]:
        """Cut a shard's part of a batch into portions of about `max_bytes`."""
        low, end, starts = asked.low, asked.end, asked.starts
        wanted = self.options.partitions_of(asked.shard.topic)
        ids = starts if wanted is None else sorted(wanted)
        limits = tuple(Limit(p, max(low, starts.get(p, low)), end) for p in ids)
        index = ShardIndex(self._vfs, asked.shard)
        try:
            for portion in index.portions(low, end, max_bytes):
                if limits or wanted is not None:
                    portion = replace(portion, limits=limits, others=wanted is None)
                yield portion
        finally:
            index.close()

    def _lost(self, key: str, now: ShardNow, low: int, end: int) -> None:
        """Raise DataLoss, or count what retention has removed before it was read."""
        count = (end - low) // ENTRY_SIZE
        text = (
            f"{key}: offsets {low} to {end}, {count} messages, were removed before they were read"
        )
        text += f"; what is kept begins at {self._time_at(now)}"
        if self.options.fail_on_data_loss:
            raise DataLoss(f"{text} (failOnDataLoss=false goes on there)")
        self.skipped += count
        self._note(f"{text}; skipped, {self.skipped} in all")

    def _time_at(self, now: ShardNow) -> str:
        index = ShardIndex(self._vfs, now.shard)
        try:
            for file in now.shard.index:
                if file.start <= now.first < file.end:
                    entry = index.read(file, (now.first - file.start) // ENTRY_SIZE, 1)
                    moment = int(entry["received_time"][0])
                    return datetime.fromtimestamp(moment / 1000, UTC).isoformat(" ", "seconds")
        finally:
            index.close()
        return "its end"

    def _note_once(self, text: str) -> None:
        if text not in self._noted:
            self._noted.add(text)
            self._note(text)

    def check_store(self, position: Position) -> None:
        """Raise NotAStore for a position in another store."""
        if position.store != self._store:
            raise NotAStore(
                self.options.path,
                f"the checkpoint was made with store {position.store}, this one is {self._store}: "
                "give the query another checkpointLocation, or this store's path",
            )


#: What happens to a topic that was made again, with failOnDataLoss=false.
_FROM_ITS_BEGIN = "reads the new one from its beginning on"


def _remade(topic: str, ids: Mapping[str, int]) -> str:
    moment = moment_text(ids[topic])
    return (
        f"{topic}: the topic was deleted and made again at {moment}, after the stream had read it"
    )


def _ids_of(saved: SavedTopics | None) -> dict[str, int]:
    return {} if saved is None else {name: made.id for name, made in saved.settings.items()}


# -- limits ---------------------------------------------------------------------------------------


class _Backlog:
    """What a shard has from `low` on, cut shorter by limits."""

    def __init__(self, index: ShardIndex, low: int, end: int, options: ReadOptions) -> None:
        self.index, self.low, self.end = index, low, end
        wanted = options.partitions_of(index.shard.topic)
        self._wanted = None if wanted is None else np.array(sorted(wanted), np.int64)

    def rows(self) -> int:
        """Return how many messages there are (an estimate from above if not all are wanted)."""
        return (self.end - self.low) // ENTRY_SIZE

    def wanted_rows(self) -> int:
        """Return how many messages there are of the partitions that are wanted."""
        if self._wanted is None:
            return self.rows()
        found = self.index.entries(self.low, self.end)
        return sum(int(np.isin(e["partition_id"], self._wanted).sum()) for _, e in found)

    def cut_rows(self, count: int) -> None:
        """Keep so many messages, of the partitions that are wanted."""
        if self._wanted is None:
            self.end = min(self.end, self.low + ENTRY_SIZE * count)
            return
        left = count
        for offset, entries in self.index.entries(self.low, self.end):
            found = np.flatnonzero(np.isin(entries["partition_id"], self._wanted))
            if len(found) > left:
                self.end = offset + ENTRY_SIZE * int(found[left])
                return
            left -= len(found)

    def bytes(self) -> int:
        """Return how long the records are."""
        return self._bytes_to(self.end)

    def _bytes_to(self, end: int) -> int:
        """Return the bytes of the records below an offset."""
        return max(0, self._data_end(end) - self._data_end(self.low)) if end > self.low else 0

    def _data_end(self, offset: int) -> int:
        """Return where the record before an index offset ends."""
        entry = self._entry_before(offset)
        return int(entry["data_offset"][0]) + int(entry["data_size"][0])

    def _entry_before(self, offset: int) -> np.ndarray[Any, Any]:
        for file in reversed(self.index.shard.index):
            if file.start < offset:
                return self.index.read(file, (offset - file.start) // ENTRY_SIZE - 1, 1)
        return np.zeros(1, INDEX_ENTRY.dtype)

    def cut_bytes(self, size: int) -> None:
        """Keep as many messages as fit."""
        low, high = 0, self.rows()
        while low < high:
            middle = (low + high + 1) // 2
            if self._bytes_to(self.low + ENTRY_SIZE * middle) <= size:
                low = middle
            else:
                high = middle - 1
        self.end = self.low + ENTRY_SIZE * low

    def head_time(self) -> int:
        """Return when the first message was received, in ms."""
        return int(self._entry_before(self.low + ENTRY_SIZE)["received_time"][0])


def _are_enough(backlogs: Collection[_Backlog], least: int) -> bool:
    """True if backlogs have so many messages; entries are read only if there may be enough."""
    if sum(map(_Backlog.rows, backlogs)) < least:
        return False
    return sum(map(_Backlog.wanted_rows, backlogs)) >= least


def _share(
    backlogs: dict[str, _Backlog],
    limit: int,
    measure: Callable[[_Backlog], int],
    cut: Callable[[_Backlog, int], None],
) -> None:
    """Cut backlogs so that together they keep the limit; the smallest is served first."""
    if not backlogs:
        return
    by_age = sorted(backlogs.values(), key=_Backlog.head_time)
    for backlog in by_age[limit:]:  # not enough for one message each
        backlog.end = backlog.low
    ends = [backlog.end for backlog in by_age]
    left = limit
    waiting = sorted(by_age[:limit], key=measure)
    for number, backlog in enumerate(waiting):
        had = measure(backlog)
        share = left // (len(waiting) - number)
        if had > share:
            cut(backlog, share)
            had = min(had, share)
        left -= had
    if all(backlog.end == backlog.low for backlog in waiting):
        # Nothing fits into its share: the shard that has waited longest gets all.
        oldest = by_age[0]
        oldest.end = ends[0]
        cut(oldest, limit)
        oldest.end = max(oldest.end, oldest.low + ENTRY_SIZE)
