"""A topic: its shards as one thing to append to and read from. `store.topic(…)` returns it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from tubestore.clock import Time, time_ms
from tubestore.errors import (
    BatchError,
    InvalidMessage,
    MessageTooLarge,
    ReadOnlyStore,
    TubeStoreError,
    documented,
)
from tubestore.journal.chosen_shards import ChosenShards, JournalledShard
from tubestore.journal.journalled import (
    IN_MEMORY,
    IN_PAGE_CACHE,
    NOT_TAKEN,
    SYNCED,
    JournalledAppends,
    append_part,
)
from tubestore.messages import Ack, BatchAck
from tubestore.options import (
    DURABILITIES,
    PARTITIONS_PER_STORE,
    Durability,
    TopicOptions,
    check_durability,
)
from tubestore.record import ingest
from tubestore.record.attributes import encode_prefix
from tubestore.record.columns import integers
from tubestore.record.layouts import FLAG_HAS_ATTRIBUTES, NO_KEY_CODE, address_to_int, key_code_of
from tubestore.record.records import RecordColumns, encode_columns, pack_header
from tubestore.shard.message_store import MessageStore
from tubestore.store.retention import SegmentRow
from tubestore.store.topic_reads import TopicReader
from tubestore.store.topic_shards import ReadHost, Shard
from tubestore.values import Age, whole_number

Array = np.ndarray[Any, Any]
# As `Ack(...)`, at a third of the time: one append makes one.
_ack: Callable[[tuple[Any, ...]], Ack] = partial(tuple.__new__, Ack)


class TopicHost(ReadHost, Protocol):
    """What a topic asks of the store that it belongs to (`manager.py`)."""

    journal: JournalledAppends | None

    def sync_earlier(self) -> None:
        """Bring what earlier processes left unsynced to stable storage."""

    def next_msg_id(self) -> int:
        """Return an id that no message of the store has."""

    def next_msg_ids(self, count: int) -> Array:
        """Reserve ids in a row (int64)."""

    def retain_topic(
        self, topic: Topic, max_age: Age | None, max_bytes: int | None, *, dry_run: bool
    ) -> list[SegmentRow]:
        """Remove a topic's oldest files."""

    def explain_topic(
        self, topic: Topic, max_age: Age | None, max_bytes: int | None
    ) -> list[SegmentRow]:
        """Say what would become of each of a topic's files."""


class Recipients(Protocol):
    """What is known in columns of the topics that a batch is for (`many_topics.py`)."""

    #: Partitions in each store, and stores, of each topic (int64).
    partitions: Array
    stores: Array

    def shards(self, keys: Array) -> ChosenShards:
        """Return the shards with these keys: topic code * 10,000 + store id."""


class Topic(TopicReader):
    """One topic of a store; thread-safe, and valid as long as its store is open."""

    def __init__(
        self,
        store: TopicHost,
        name: str,
        options: TopicOptions,
        open_shard: Callable[[str, int], Shard],
    ) -> None:
        super().__init__(store, name, options, open_shard)
        self._store: TopicHost = store
        self._level = store.options.durability
        self._payload_size_max = store.options.payload_size_max
        self._next = 0
        #: Ids below this are partitions of store 0.
        self._first_store_end = options.partitions

    def adopt(self, options: TopicOptions) -> None:
        """Take over changed settings."""
        super().adopt(options)
        self._first_store_end = options.partitions

    def writable(self, store_id: int) -> MessageStore:
        """Return one of the topic's shards for appending; ReadOnlyStore in mode "r"."""
        shard = self._shards.get(store_id)
        if type(shard) is MessageStore:
            return shard
        shard = self.shard(store_id)
        if not isinstance(shard, MessageStore):
            raise ReadOnlyStore(f"{self._store.root} was opened with mode='r'")
        return shard

    # -- append ------------------------------------------------------------------------------

    def append(
        self,
        body: bytes,
        *,
        key: str | bytes | None = None,
        partition: int | None = None,
        filter_item: str | None = None,
        attributes: Mapping[str, str] | None = None,
        received_time: Time | None = None,
        sender: str | None = None,
        durability: Durability | None = None,
    ) -> Ack:
        """Append one message; when it returns, the message has reached `durability`.

        The partition is given, or chosen by the key's hash, or round robin. `received_time`: an
        aware datetime, or ms since the epoch; `sender`: an IPv4 address. Raises InvalidMessage,
        MessageTooLarge (nothing was written), StoreBusy (not taken), DiskFull, StoreFailed,
        StoreClosed, ReadOnlyStore; TypeError or ValueError for a time, level or partition that is
        none. The error's `taken` says whether the message is in the store.
        """
        if type(body) is not bytes or not body:
            body = _checked_body(body)
        store = self._store
        level = self._level if durability is None else check_durability(durability)
        now = store.clock.now_ms() if received_time is None else _checked_time(received_time)
        payload, flag, code = body, 0, NO_KEY_CODE
        if filter_item is not None or attributes:
            prefix = encode_prefix(filter_item, now, attributes)
            payload = prefix + body
            flag = FLAG_HAS_ATTRIBUTES if prefix else 0
            code = key_code_of(filter_item)
        if len(payload) > self._payload_size_max:
            raise MessageTooLarge(len(payload), self._payload_size_max, "payload")
        if type(partition) is int and 0 <= partition < self._first_store_end:
            number, shard = partition, self._shards.get(0)
        else:
            number = self._choose(key, partition)
            shard = self._shards.get(number // PARTITIONS_PER_STORE)
        if type(shard) is not MessageStore:
            shard = self.writable(number // PARTITIONS_PER_STORE)
        address = ingest.LOOPBACK if sender is None else _checked_address(sender)
        header = pack_header(number, code, now, address, store.next_msg_id(), flag, payload)
        return _ack((number, shard.append_record(header, payload, level), level))

    def _choose(self, key: str | bytes | None, partition: int | None) -> int:
        options = self.options
        if partition is not None:
            number = whole_number(partition)
            if number is None or not options.holds(number):
                raise InvalidMessage(f"partition {partition!r} is not one of {self.name!r}'s")
            return number
        if key is not None:
            return options.partition_id(ingest.hash_key(key) % options.partition_count)
        self._next = turn = (self._next + 1) % options.partition_count
        return options.partition_id(turn)

    @documented
    def append_batch(self, data: Any, *, durability: Durability | None = None) -> BatchAck:
        """Append a table of messages; see `tubestore.record.ingest` for its columns.

        A durable prefix per shard: when it fails in the middle, BatchError says per row what
        was taken. Everything that can be refused is refused before anything is written.
        """
        table = ingest.as_table(data, with_topic=False)
        return append_table(
            self._store, table, [self], np.zeros(table.num_rows, np.int64), durability
        )

    def round_robin(self, count: int) -> int:
        """Reserve `count` turns; returns the first."""
        with self._lock:
            first = self._next + 1
            self._next += count
        return first

    def retain(
        self,
        *,
        max_age: Age | None = None,
        max_bytes: int | None = None,
        dry_run: bool = False,
    ) -> list[SegmentRow]:
        """Remove the topic's oldest files; returns a row for each that went (would go).

        What is not given is the topic's own setting. See `MessageStoreManager.retain`.
        """
        return self._store.retain_topic(self, max_age, max_bytes, dry_run=dry_run)

    def explain_retention(
        self, *, max_age: Age | None = None, max_bytes: int | None = None
    ) -> list[SegmentRow]:
        """Return a row for every file of the topic: whether it would go, when, and why (not)."""
        return self._store.explain_topic(self, max_age, max_bytes)

    @documented
    def sync(self) -> None:
        """Bring everything that was taken to stable storage, by earlier processes too."""
        for shard in self.opened_shards():
            if isinstance(shard, MessageStore):
                shard.sync()
        self._store.sync_earlier()

    @documented
    def flush(self) -> None:
        """Write the buffers to the files (page cache)."""
        for shard in self.opened_shards():
            if isinstance(shard, MessageStore):
                shard.flush()


def _checked_body(body: Any) -> bytes:
    """Return a body as bytes, or raise InvalidMessage."""
    if not isinstance(body, bytes | bytearray | memoryview):
        raise InvalidMessage(f"a body is bytes, not {type(body).__name__}")
    if not body:
        raise InvalidMessage("a message needs a body of at least one byte")
    return bytes(body)


def _checked_time(value: Time) -> int:
    """Return a received time in ms, or raise InvalidMessage."""
    given = time_ms(value, "received_time")
    assert given is not None
    if not -(1 << 63) <= given < 1 << 63:
        raise InvalidMessage(f"received_time: {given} ms does not fit into 64 bits")
    return given


def _checked_address(sender: Any) -> int:
    """Return an IPv4 address as it is stored, or raise InvalidMessage."""
    try:
        if isinstance(sender, str):
            return address_to_int(sender)
    except ValueError:
        pass
    raise InvalidMessage(f"sender {sender!r}: an IPv4 address such as '10.0.0.1' is needed")


def append_table(
    store: TopicHost,
    table: pa.Table,
    topics: list[Topic],
    codes: Array,
    durability: Durability | None,
    to: Recipients | None = None,
) -> BatchAck:
    """Append the rows of a checked table to their topics: `codes[i]` says which of `topics`.

    `to`: what is known of these topics in columns. Rows are grouped by shard, encoded together
    once, and handed to their shards in slices.
    """
    level = store.options.durability if durability is None else check_durability(durability)
    count = table.num_rows
    if count == 0:
        return BatchAck(pa.array([], pa.int32()), pa.array([], pa.int64()), level)
    turns = partial(_turns, topics)
    if to is None:
        partition_ids = ingest.route(table, codes, [t.options for t in topics], turns)
    else:
        partition_ids = ingest.route_among(table, codes, to.partitions, to.stores, turns)
    columns = ingest.build_columns(
        table,
        partition_ids,
        now_ms=store.clock.now_ms(),
        payload_size_max=store.options.payload_size_max,
        next_msg_ids=store.next_msg_ids,
    )
    offsets = append_columns(topics, codes, columns, level, store.journal, to)
    return BatchAck(
        integers(pa.int32(), columns.partition_ids), integers(pa.int64(), offsets), level
    )


def append_columns(
    topics: list[Topic],
    codes: Array,
    columns: RecordColumns,
    level: Durability,
    journal: JournalledAppends | None = None,
    to: Recipients | None = None,
) -> Array:
    """Append checked columns to their topics; returns the offsets (int64) in their order.

    Rows of a shard keep their order. BatchError says what was taken when a part was not.
    """
    order, firsts, keys = ingest.shard_order(codes, columns.partition_ids)
    shards: Sequence[JournalledShard]
    if to is None:
        pairs = (divmod(key, PARTITIONS_PER_STORE) for key in keys.tolist())
        shards = [topics[code].writable(store_id) for code, store_id in pairs]
    else:
        shards = to.shards(keys)
    placed = np.full(len(columns), -1, np.int64)
    reached = np.full(len(shards), NOT_TAKEN, np.int8)
    failure: TubeStoreError | None = None
    try:
        ordered = columns if order is None else columns.take(order)
        _append_slices(ordered, shards, firsts, placed, reached, level, journal)
    except TubeStoreError as error:
        failure = error
    offsets = _given_order(order, placed)
    if failure is not None:
        _note_written(shards, firsts, placed, reached)
        row_levels = np.repeat(reached, np.diff(np.append(firsts, len(columns))))
        levels = _given_order(order, row_levels).tolist()
        rows = zip(columns.partition_ids.tolist(), offsets.tolist(), levels, strict=True)
        acks = [Ack(p, o, DURABILITIES[r - 1]) if r != NOT_TAKEN else None for p, o, r in rows]
        if not any(acks):
            raise failure
        refused = BatchError(str(failure), acks)
        refused.taken = "yes" if all(acks) else "unknown" if failure.taken == "unknown" else "no"
        raise refused from failure
    return offsets


def _given_order(order: Array | None, values: Array) -> Array:
    """Return the values of rows that were grouped by shard in the order of the batch."""
    if order is None:
        return values
    given = np.empty_like(values)
    given[order] = values
    return given


def _note_written(
    shards: Sequence[JournalledShard], firsts: Array, placed: Array, reached: Array
) -> None:
    """Raise the level of rows that are in a shard's files, whatever failed after that."""
    lasts = [*(firsts[1:] - 1).tolist(), len(placed) - 1]
    for n in np.flatnonzero(reached == IN_MEMORY).tolist():
        if shards[n].has_written(int(placed[lasts[n]])):
            reached[n] = IN_PAGE_CACHE


def _turns(topics: list[Topic], codes: Array) -> Array:
    """Return round-robin numbers for every row, each topic continuing its own count."""
    numbers = np.empty(len(codes), np.uint64)
    for code in np.unique(codes).tolist():
        rows = np.flatnonzero(codes == code)
        first = topics[code].round_robin(len(rows))
        numbers[rows] = np.arange(first, first + len(rows))
    return numbers


def _append_slices(
    columns: RecordColumns,
    shards: Sequence[JournalledShard],
    firsts: Array,
    offsets: Array,
    reached: Array,
    level: Durability,
    journal: JournalledAppends | None,
) -> None:
    """Encode once, append each shard's slice; `fsync` syncs after all are written.

    Fills `offsets` by row and `reached` by shard, also when it raises.
    """
    batch = encode_columns(columns)
    if journal is not None and level != "memory" and journal.takes(len(shards), len(batch.data)):
        chosen = shards if isinstance(shards, ChosenShards) else ChosenShards.of(shards)
        journal.append(batch, chosen, firsts, offsets, reached, level)
        return
    bounds = [*firsts.tolist(), len(columns)]
    # Over several shards `fsync` is a step of its own.
    below = "page_cache" if level == "fsync" and len(shards) > 1 else level
    for n, (first, end) in enumerate(pairwise(bounds)):
        part = batch if len(shards) == 1 else batch.part(first, end)
        append_part(shards, n, part, offsets[first:end], reached, below)
    if below != level:
        for n, shard in enumerate(shards):
            shard.sync_data()
            reached[n] = SYNCED
