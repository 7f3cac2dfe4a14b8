"""The tube shards of a RocketMQ root: the dispatcher's third follower (decisions.md D2).

They are in `<root>/tube/`, a tubestore root of its own. A shard's record has the physical offset of
its log record as message id, and ids ascend within a shard. Exactly-once needs nothing else. After
a crash a shard keeps the messages that the log has, too. A replay compares what a shard has already
with the log, and skips it: a foreign broker may have written over some of the records and left
those behind them.

Batches are encoded once and written through (`page_cache`): a shard of this root never has
messages in memory, so progress is where the last batch ended.

Guards: as for `Follower`; the dispatcher's lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from os.path import basename
from typing import Any

import numpy as np

from rocketcompat.commitlog.reads import ReadableLog
from rocketcompat.files.mapped_file import has_no_room
from rocketcompat.files.progress import QueueKey, Trust
from rocketcompat.formats import TUBE_DIRECTORY
from rocketcompat.messages import DispatchBatch
from rocketcompat.record.columns import RecordColumns as LogColumns
from rocketcompat.record.properties import LMQ_PREFIX
from rocketcompat.shards.record import fits, to_tube
from tubestore.clock import Clock
from tubestore.core.doors import logger
from tubestore.core.paths import join
from tubestore.core.quarantine import Quarantine
from tubestore.core.vfs import Vfs
from tubestore.errors import (
    BatchError,
    CorruptRecord,
    DiskFull,
    InvalidName,
    TubeStoreError,
    failed_write,
)
from tubestore.messages import STATE_OK
from tubestore.options import PARTITIONS_PER_STORE, StoreOptions, TopicOptions
from tubestore.reading.sources import Rows, Source
from tubestore.record.columns import columns_for
from tubestore.record.layouts import DATA_HEADER, PAYLOAD_SIZE_MAX
from tubestore.record.names import check_topic_name
from tubestore.shard.message_store import MessageStore
from tubestore.store.append import append_columns
from tubestore.store.manager import MessageStoreManager, engine_of
from tubestore.store.topic import shards_of
from tubestore.store.topic_shards import TopicShards

_log = logger(__name__)
#: Removed segments stay readable for so long, for readers that began before.
TRASH_GRACE = "10m"
Array = np.ndarray[Any, Any]
_NO_ROWS: Array = np.empty(0, np.int64)


@dataclass(slots=True)
class _Claims:
    """The messages of a shard above the mark: columns of one length, by id."""

    shard: MessageStore
    ids: Array
    offsets: Array
    #: The fields of the message's index entry, a row each (see `_entry_fields`).
    fields: Array

    @property
    def last_id(self) -> int:
        """The last message's id, or -1."""
        return int(self.ids[-1]) if len(self.ids) else -1

    def cut(self, count: int, keeper: Quarantine | None = None) -> None:
        """Keep the first rows only; a keeper gets a copy of the others."""
        _log.warning("%s: %d records that the log does not have", self.shard.name,
                    len(self.ids) - count)  # fmt: skip
        if keeper is not None:
            for path, position in self.shard.files_from(int(self.offsets[count])):
                keeper.copy(path, position)
        self.shard.cut(int(self.offsets[count]))
        self.ids, self.offsets, self.fields = (
            self.ids[:count],
            self.offsets[:count],
            self.fields[:count],
        )


def _entry_fields(partition_ids: Any, key_codes: Any, times: Any, sizes: Any) -> Array:
    """Return the fields that distinguish messages at one physical offset, a row a message."""
    return np.stack([np.asarray(c, np.int64) for c in (partition_ids, key_codes, times, sizes)], 1)


def _expired_end(shard: MessageStore, log_minimum: int) -> int:
    """Return the data offset of the last segment that begins with a message that may be needed."""
    segments = list(shard.files.snapshot().data_segments)
    end: int = segments[0].start
    for segment in segments[1:]:
        header = segment.read(segment.start, DATA_HEADER.size)
        if len(header) < DATA_HEADER.size or DATA_HEADER.unpack_from(header).msg_id > log_minimum:
            break
        end = segment.start
    return end


class TubeLayout:
    """Per-topic shards that are built from the log."""

    name = "tube"
    #: Not counted: shards have checkpoints of their own.
    places: int | None = None

    def __init__(
        self,
        root: str,
        *,
        vfs: Vfs,
        clock: Clock,
        options: StoreOptions | None = None,
    ) -> None:
        wanted = options or StoreOptions()
        self.store = MessageStoreManager(
            join(root, TUBE_DIRECTORY),
            "w",
            vfs=vfs,
            clock=clock,
            background=False,
            options=wanted.with_values(
                durability="page_cache",
                payload_size_max=PAYLOAD_SIZE_MAX,
                journal_size_bytes=0,  # the CommitLog is the journal
            ),
        )
        self._written = self._synced = 0
        #: While the log is replayed: the messages that it has to confirm, by (topic, store id).
        self._claims: dict[tuple[str, int], _Claims] = {}
        #: True while `_claims` are of a batch that found no room on the disk.
        self._half_put = False
        #: Topics that `problems` reports because no shard can have them.
        self._refused: set[str] = set()
        #: Where a recovery puts the messages that it cuts off; None if they are provably torn.
        self._keeper: Quarantine | None = None
        self.problems: list[TubeStoreError] = []

    # -- recovery ----------------------------------------------------------------------------

    def attach(
        self, log_minimum: int, log_end: int | None, ends: Mapping[QueueKey, int] | None = None
    ) -> None:
        """Do nothing: shards are opened one by one."""

    def recover(
        self, log: ReadableLog, trust: Trust, lower_mark: Callable[[int], None] | None
    ) -> int:
        """Cut what the log does not have; returns from where the log has to be handed over."""
        start = log.max_offset
        missing = self._begin_missing_anew(log, lower_mark)
        if missing or not trust.as_left:
            self._keeper = trust.keeper
            mark = None if missing else trust.mark
            start = min(max(self._cut(log.max_offset, mark), log.min_offset), start)
        self._written = self._synced = start
        return start

    def _begin_missing_anew(
        self, log: ReadableLog, lower_mark: Callable[[int], None] | None
    ) -> bool:
        """Let shards without their directory begin anew; returns whether there are any.

        The log has their messages. Without the mark it is handed over from its begin.
        """
        engine = engine_of(self.store)
        missing = engine.topics.missing_shards()
        if missing:
            if lower_mark is not None:
                lower_mark(log.min_offset)
            engine.context.register.forget(map(basename, missing))
        for path in missing:
            text = "the shard's directory is missing: it is built again from the log"
            self.problems.append(CorruptRecord(path, 0, text))
            _log.warning("%s", self.problems[-1])
        return bool(missing)

    def _cut(self, log_end: int, trusted: int | None) -> int:
        """Cut the shards at their first records that the log cannot have; returns the mark."""
        mark = min(trusted or 0, log_end)
        for name in self.store.topics():
            topic = shards_of(self.store.topic(name))
            for store_id in range(topic.options.stores):
                if not topic.exists(store_id):
                    continue
                shard = topic.writable(store_id)
                self._claims[name, store_id] = self._cut_shard(shard, log_end, mark)
        self.store.problems.clear()
        for name in self.store.topics():
            for opened in shards_of(self.store.topic(name)).opened_shards():
                assert isinstance(opened, MessageStore)
                self.store.problems.extend(opened.recovered.problems)
        return mark

    def _cut_shard(self, shard: MessageStore, log_end: int, mark: int) -> _Claims:
        """Cut a shard at its first record that the log cannot have; returns what is left.

        Ids below `mark` are known to be right. Behind them a row that cannot be read, or is
        not above the one before, is cut too: unlike a lone shard this one is written again
        from the log.
        """
        claims, good = self._tail(shard, mark)
        ids = claims.ids
        good[1:] &= np.diff(ids) > 0
        first_bad = int(np.argmin(good)) if not good.all() else len(good)
        beyond = np.flatnonzero(ids[:first_bad] >= log_end)
        count = int(beyond[0]) if len(beyond) else first_bad
        if count < len(ids):
            claims.cut(count, self._keeper)
        return claims

    def _tail(self, shard: MessageStore, mark: int) -> tuple[_Claims, Array]:
        """Return (rows, readable) of a shard's last segments, back to below `mark`."""
        view = shard.view()
        parts: list[tuple[Array, ...]] = []
        for source in reversed(list(view.sources(view.index_start))):
            parts.insert(0, self._rows_of(view, source))
            ids, _, _, good = parts[0]
            known = ids[good]
            if len(known) and known[0] < mark:
                break
        if not parts:
            empty = np.empty(0, np.int64)
            return _Claims(shard, empty, empty, empty.reshape(0, 4)), np.empty(0, bool)
        ids, offsets, fields, good = (np.concatenate(column) for column in zip(*parts, strict=True))
        # Rows before the last one below the mark are not judged, whatever their state.
        older = np.flatnonzero(good & (ids < mark))
        first = int(older[-1]) if len(older) else 0
        return _Claims(shard, ids[first:], offsets[first:], fields[first:]), good[first:]

    @staticmethod
    def _rows_of(view: Any, source: Source) -> tuple[Array, ...]:
        ordinals = np.arange(source.ordinal(view.index_start), len(source.entries))
        entries = source.entries[len(source.entries) - len(ordinals) :]
        rows = Rows(source.offsets(ordinals), entries, source.placed)
        batches = view.columns_of(rows, columns_for(("msg_id", "state"), verify=True))
        states = np.concatenate([b.column(1).to_numpy(zero_copy_only=False) for b in batches])
        ids = np.concatenate(
            [b.column(0).fill_null(-1).to_numpy(zero_copy_only=False) for b in batches]
        )
        names = ("partition_id", "key_code", "received_time", "data_size")
        fields = _entry_fields(*(entries[name] for name in names))
        return ids, rows.offsets, fields, states == STATE_OK

    # -- following the log -------------------------------------------------------------------

    def put(self, batch: DispatchBatch) -> None:
        """Append the batch's deliverable records to their shards.

        After an OSError without room the same batch may be handed over again.
        """
        records = batch.records
        assert isinstance(records, LogColumns)
        try:
            self._append(batch, records)
        except (OSError, BatchError) as error:
            cause = error.__cause__ if isinstance(error, BatchError) else error
            if not isinstance(cause, OSError) or not has_no_room(cause):
                raise
            self._note_half_put(records)
            raise failed_write(self.store.root, cause) from error
        self._written = batch.end

    def _note_half_put(self, records: LogColumns) -> None:
        """Note what the shards have of a batch, to skip it when the batch comes again."""
        there = set(self.store.topics())
        for name in there.intersection(records.topic_names):
            topic = shards_of(self.store.topic(name))
            for store_id in range(topic.options.stores):
                # Also a shard that found no room for its directory: it has messages in memory only.
                if topic.exists(store_id):
                    claims, _ = self._tail(topic.writable(store_id), self._written)
                    self._claims[name, store_id] = claims
        self._half_put = True

    def _append(self, batch: DispatchBatch, records: LogColumns) -> None:
        rows = np.flatnonzero(fits(records, self._refuse))
        if self._claims:
            rows = self._not_there_yet(batch, records, rows)
        if len(rows):
            queue_ids = records.column("queue_id")[rows]
            codes, topics = self._topics(records, rows, queue_ids)
            append_columns(topics, codes, to_tube(records, rows), "page_cache")
        if self._half_put:
            self._half_put = False
            self._claims.clear()

    def report_topics(self, topics: Iterable[str]) -> None:
        """Report those topics of queues that no shard can have, each once.

        Multi-dispatch queues have no shards: their messages are in the shards of other topics.
        """
        for topic in sorted(set(topics)):
            if topic.startswith(LMQ_PREFIX):
                continue
            try:
                check_topic_name(topic)
            except InvalidName as error:
                self._refuse(error)

    def _refuse(self, error: InvalidName) -> None:
        """Report a topic that no shard can have, once."""
        if error.name not in self._refused:
            self._refused.add(error.name)
            problem = InvalidName(error.name, f"no shard has its messages: {error.reason}")
            _log.warning("%s", problem)
            self.problems.append(problem)

    def _not_there_yet(self, batch: DispatchBatch, records: LogColumns, rows: Array) -> Array:
        """Leave out rows that their shards have already (while the log is replayed, or half put).

        A shard is cut at the first message of this stretch of the log that differs from the log.
        """
        ids = records.column("physical_offset")[rows]
        places = self._rows_of_shards(records, rows)
        missing = np.ones(len(rows), bool)
        for shard, claims in self._claims.items():
            mine = places.get(shard, _NO_ROWS)
            mine = mine[ids[mine] <= claims.last_id]
            self._confirm(claims, batch, records, rows[mine], self._keeper)
            missing[mine] = ids[mine] > claims.last_id
        return rows[missing]

    @staticmethod
    def _rows_of_shards(records: LogColumns, rows: Array) -> dict[tuple[str, int], Array]:
        """Return the places in `rows` of each shard's rows, ascending."""
        stores = records.column("queue_id")[rows] // PARTITIONS_PER_STORE
        keys, codes = np.unique(
            records.topic_codes[rows] * PARTITIONS_PER_STORE + stores, return_inverse=True
        )
        order = np.argsort(codes, kind="stable")
        parts = np.split(order, np.cumsum(np.bincount(codes, minlength=len(keys)))[:-1])
        names = records.topic_names
        return {
            (names[key // PARTITIONS_PER_STORE], key % PARTITIONS_PER_STORE): part
            for key, part in zip(keys.tolist(), parts, strict=False)
        }

    @staticmethod
    def _confirm(
        claims: _Claims, batch: DispatchBatch, records: LogColumns, rows: Array,
        keeper: Quarantine | None,
    ) -> None:  # fmt: skip
        """Compare what a shard has of a stretch of the log with the records that are there."""
        first, end = np.searchsorted(claims.ids, (batch.start, batch.end)).tolist()
        if first == end and not len(rows):
            return
        there = min(end - first, len(rows))
        same = claims.ids[first : first + there] == batch.physical_offsets[rows[:there]]
        if there:
            tube = to_tube(records, rows[:there])
            wanted = _entry_fields(
                tube.partition_ids, tube.key_codes, tube.received_times, tube.sizes
            )
            same &= (claims.fields[first : first + there] == wanted).all(axis=1)
        if not same.all():
            claims.cut(first + int(np.argmin(same)), keeper)
        elif there < max(end - first, len(rows)):
            claims.cut(first + there, keeper)

    def _topics(
        self, records: LogColumns, rows: Array, queue_ids: Array
    ) -> tuple[Array, list[TopicShards]]:
        """Return (code of each row's topic, their shards); topics are made or grown as needed."""
        present, codes = np.unique(records.topic_codes[rows], return_inverse=True)
        wanted = {}
        for place, code in enumerate(present.tolist()):
            ids = queue_ids[codes == place] if len(present) > 1 else queue_ids
            highest = int((ids % PARTITIONS_PER_STORE).max())
            stores = int(ids.max()) // PARTITIONS_PER_STORE + 1
            wanted[records.topic_names[code]] = TopicOptions(partitions=highest + 1, stores=stores)
        topics = self.store.ensure_topics(wanted)
        return codes.astype(np.int64), [shards_of(topic) for topic in topics]

    def replayed(self) -> None:
        """Forget what only skipping needed: the log has been handed over once."""
        self._claims.clear()
        self._keeper = None

    def flush(self, sync: bool) -> None:
        """Write out (nothing waits in memory); with `sync`, bring it to stable storage."""
        written = self._written
        if sync:
            self.store.sync()
            self._synced = written

    @property
    def ends(self) -> tuple[int, int]:
        """(written, synced): everything below is in the files, and on stable storage."""
        return self._written, self._synced

    def flush_due(self, least_pages: int) -> int:
        """Do nothing: the shards are synced with their marks only."""
        return 0

    def expire(self, log_minimum: int) -> int:
        """Remove segments that only hold messages below a physical offset (decisions.md D14).

        A shard keeps its last data segment. Returns how many went to the shards' trash, durably.
        """
        count = 0
        for name in self.store.topics():
            topic = shards_of(self.store.topic(name))
            for store_id in range(topic.options.stores):
                # Most shards have one data segment: listing the directory shows it without opening
                # them.
                if topic.data_segments(store_id) > 1:
                    shard = topic.writable(store_id)
                    count += shard.remove_below(_expired_end(shard, log_minimum))
        self.store.empty_trash(TRASH_GRACE)
        return count

    def close(self) -> None:
        """Close the shards; they are synced, or it raises."""
        try:
            self.store.close()
        except DiskFull:
            self.store.close(give_up=True)  # the log has what they lack
            raise
