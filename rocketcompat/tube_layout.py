"""The tube shards of a RocketMQ root: the dispatcher's third follower (DESIGN.md D2).

They live in `<root>/tube/`, a tubestore root of its own. A shard's record carries the
physical offset of its log record as message id, and ids ascend within a shard: that is all
that exactly-once needs. After a crash a shard keeps what the log has too, and a replay skips
what a shard has already.

Batches are encoded once and written through (`page_cache`): a shard of this root never has
messages in memory, so progress is where the last batch ended.

Guards: as `Follower` says; the dispatcher's lock.

Next to read: `recovery.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np

from rocketcompat.columns import RecordColumns as LogColumns
from rocketcompat.formats import TUBE_DIRECTORY
from rocketcompat.messages import DispatchBatch, MessageRecord
from rocketcompat.tube_record import from_tube, to_tube
from tubestore.attributes import split_payload
from tubestore.clock import Clock
from tubestore.errors import InvalidName, TubeStoreError
from tubestore.filenames import check_topic_name, join
from tubestore.formats import DATA_HEADER, PARTITIONS_PER_STORE, PAYLOAD_SIZE_MAX
from tubestore.manager import MessageStoreManager
from tubestore.message_store import MessageStore
from tubestore.messages import STATE_OK
from tubestore.options import StoreOptions, TopicOptions
from tubestore.read_path import Selection, Source
from tubestore.records import ENTRY_SIZE
from tubestore.topic import append_columns
from tubestore.vfs import Vfs

log = logging.getLogger(__name__)
Array = np.ndarray[Any, Any]
ReadLog = Callable[[int], MessageRecord | None]


class TubeLayout:
    """Per-topic shards that are built from the log."""

    name = "tube"

    def __init__(
        self,
        root: str,
        *,
        vfs: Vfs,
        clock: Clock,
        read_log: ReadLog,
        options: StoreOptions | None = None,
    ) -> None:
        wanted = options or StoreOptions()
        self.store = MessageStoreManager(
            join(root, TUBE_DIRECTORY),
            "w",
            vfs=vfs,
            clock=clock,
            background=False,
            options=wanted.with_values(durability="page_cache", payload_size_max=PAYLOAD_SIZE_MAX),
        )
        self._read_log = read_log
        self._written = self._synced = 0
        #: While the log is replayed: the last id that a shard has, by (topic, store id).
        self._last_ids: dict[tuple[str, int], int] = {}
        self._refused: set[str] = set()
        self.problems: list[TubeStoreError] = []

    # -- recovery ----------------------------------------------------------------------------

    def recover(self, log_end: int, trusted: int | None) -> int:
        """Cut what the log does not have; returns from where the log has to be handed over."""
        mark = min(trusted or 0, log_end)
        for name in self.store.topics():
            topic = self.store.topic(name)
            for store_id in range(topic.options.stores):
                if not self.store.shard_exists(name, store_id):
                    continue
                shard = topic.writable(store_id)
                self._last_ids[name, store_id] = self._cut_shard(shard, log_end, mark)
        self.store.problems.clear()
        for name in self.store.topics():
            for opened in self.store.topic(name).opened_shards():
                assert isinstance(opened, MessageStore)
                self.store.problems += opened.recovered.problems
        return mark

    def _cut_shard(self, shard: MessageStore, log_end: int, mark: int) -> int:
        """Cut a shard at its first record that the log does not have; returns its last id, or -1.

        Ids below `mark` are known to be right. Behind them a row that cannot be read is cut
        too: unlike a lone shard this one is written again from the log.
        """
        ids, offsets, good = self._tail(shard, mark)
        first_bad = int(np.argmin(good)) if not good.all() else len(good)
        beyond = np.flatnonzero(ids[:first_bad] >= log_end)
        count = int(beyond[0]) if len(beyond) else first_bad
        while count and ids[count - 1] >= mark and not self._same(shard, int(offsets[count - 1])):
            count -= 1  # a foreign broker has written other messages at these offsets
        if count < len(ids):
            log.warning("%s: %d records that the log does not have", shard.name, len(ids) - count)
            shard.cut(int(offsets[count]))
        return int(ids[count - 1]) if count else -1

    def _tail(self, shard: MessageStore, mark: int) -> tuple[Array, Array, Array]:
        """Return (ids, offsets, readable) of a shard's last segments, back to below `mark`."""
        view = shard.view()
        parts: list[tuple[Array, Array, Array]] = []
        for source in reversed(list(view.sources(view.index_start))):
            parts.insert(0, self._ids_of(view, source))
            ids, _, good = parts[0]
            known = ids[good]
            if len(known) and known[0] < mark:
                break
        if not parts:
            empty = np.empty(0, np.int64)
            return empty, empty, np.empty(0, bool)
        ids, offsets, good = (np.concatenate(column) for column in zip(*parts, strict=True))
        # Rows before the last one below the mark are not judged, whatever their state.
        older = np.flatnonzero(good & (ids < mark))
        first = int(older[-1]) if len(older) else 0
        return ids[first:], offsets[first:], good[first:]

    @staticmethod
    def _ids_of(view: Any, source: Source) -> tuple[Array, Array, Array]:
        ordinals = np.arange(len(source.entries))
        chosen = Selection(source, source.offsets(ordinals), source.entries)
        batches = view.columns_of(chosen, ["msg_id", "state"])
        states = np.concatenate([b.column(1).to_numpy(zero_copy_only=False) for b in batches])
        ids = np.concatenate(
            [b.column(0).fill_null(-1).to_numpy(zero_copy_only=False) for b in batches]
        )
        return ids, chosen.offsets, states == STATE_OK

    def _same(self, shard: MessageStore, offset: int) -> bool:
        """Whether the shard's record at `offset` is the log's record at its id."""
        own = record_at(shard, offset)
        theirs = None if own is None else self._read_log(own.physical_offset)
        if own is None or theirs is None:
            return False
        return (
            own.topic == theirs.topic
            and own.queue_id == theirs.queue_id
            and own.queue_offset == theirs.queue_offset
            and own.store_timestamp == theirs.store_timestamp
            and own.body_crc == theirs.body_crc
        )

    def mark(self, written: int, synced: int) -> None:
        """Take over where the files are known to be."""
        self._written, self._synced = written, synced

    # -- following the log -------------------------------------------------------------------

    def put_batch(self, batch: DispatchBatch) -> None:
        """Append the batch's deliverable records to their shards."""
        records = batch.records
        assert isinstance(records, LogColumns)
        rows = np.flatnonzero(self._wanted(batch, records))
        if self._last_ids and len(rows):
            rows = self._not_there_yet(records, rows)
        if len(rows):
            queue_ids = records.column("queue_id")[rows]
            codes, topics = self._topics(records, rows, queue_ids)
            append_columns(topics, codes, to_tube(records, rows), "page_cache")
        self._written = batch.end

    def _wanted(self, batch: DispatchBatch, records: LogColumns) -> Array:
        """Return which rows get a record: those with a queue unit that a shard can hold."""
        wanted = np.asarray(batch.queue_rows) & (records.column("queue_id") >= 0)
        wanted &= records.column("queue_id") < PARTITIONS_PER_STORE * PARTITIONS_PER_STORE
        wanted &= records.column("body_length") <= PAYLOAD_SIZE_MAX - (1 << 16)
        for code, name in enumerate(records.topic_names):
            try:
                check_topic_name(name)
            except InvalidName as error:
                wanted &= records.topic_codes != code
                if name not in self._refused:
                    self._refused.add(name)
                    self.problems.append(error)
        return np.asarray(wanted)

    def _not_there_yet(self, records: LogColumns, rows: Array) -> Array:
        """Leave out rows that their shards have already (only while the log is replayed)."""
        names, codes = records.topic_names, records.topic_codes[rows]
        stores = records.column("queue_id")[rows] // PARTITIONS_PER_STORE
        ids = records.column("physical_offset")[rows]
        shards, inverse = np.unique(codes * PARTITIONS_PER_STORE + stores, return_inverse=True)
        last = [
            self._last_ids.get((names[k // PARTITIONS_PER_STORE], k % PARTITIONS_PER_STORE), -1)
            for k in shards.tolist()
        ]
        return np.asarray(rows[ids > np.array(last, np.int64)[inverse]])

    def _topics(
        self, records: LogColumns, rows: Array, queue_ids: Array
    ) -> tuple[Array, list[Any]]:
        """Return (code of each row's topic, the topics), made or grown as needed."""
        present, codes = np.unique(records.topic_codes[rows], return_inverse=True)
        wanted = {}
        for place, code in enumerate(present.tolist()):
            ids = queue_ids[codes == place] if len(present) > 1 else queue_ids
            highest = int((ids % PARTITIONS_PER_STORE).max())
            stores = int(ids.max()) // PARTITIONS_PER_STORE + 1
            wanted[records.topic_names[code]] = TopicOptions(partitions=highest + 1, stores=stores)
        return codes.astype(np.int64), self.store.ensure_topics(wanted)

    def replayed(self) -> None:
        """Forget what was needed for skipping: the log has been handed over once."""
        self._last_ids.clear()

    def flush(self, sync: bool) -> None:
        """Write out (nothing waits in memory); with `sync`, bring it to stable storage."""
        written = self._written
        if sync:
            self.store.sync()
            self._synced = written

    def progress(self) -> tuple[int, int]:
        """Return (written, synced)."""
        return self._written, self._synced

    def close(self) -> None:
        """Close the shards; they are synced."""
        self.store.close()


def record_at(shard: MessageStore, offset: int) -> MessageRecord | None:
    """Return the log record that stands at an index offset of a shard; None if it is unreadable."""
    view = shard.view()
    source = next(iter(view.sources(offset, offset + ENTRY_SIZE)))
    entry = source.entries[(offset - source.index_start) // ENTRY_SIZE]
    segment = view.files.data.find(int(entry["data_offset"]))
    if segment is None:
        return None
    raw = bytes(segment.read(int(entry["data_offset"]), int(entry["data_size"])))
    header = DATA_HEADER.unpack_from(raw)
    parts = split_payload(raw[DATA_HEADER.size :])
    if parts is None:
        return None
    return from_tube(view.topic, header.partition_id, header.received_time, header.msg_id, *parts)
