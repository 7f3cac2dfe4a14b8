"""A topic: its shards as one thing to append to and read from. Users meet it as `store.topic(…)`.

Next to read: `manager.py`.
"""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from threading import Lock
from typing import Any, Literal, Protocol

import numpy as np
import pyarrow as pa

from tubestore import ingest
from tubestore.attributes import encode_prefix
from tubestore.clock import Clock
from tubestore.errors import (
    BatchError,
    CorruptRecord,
    InvalidMessage,
    MessageTooLarge,
    OffsetOutOfRange,
    ReadOnlyStore,
    StoreClosed,
    TubeStoreError,
)
from tubestore.formats import (
    FLAG_HAS_ATTRIBUTES,
    NO_KEY_CODE,
    PARTITIONS_PER_STORE,
    address_to_int,
    key_code_of,
)
from tubestore.message_store import MessageStore
from tubestore.messages import STATE_OK, Ack, BatchAck, Message, Page, messages_of, schema_of
from tubestore.options import Durability, StoreOptions, TopicOptions, check_durability
from tubestore.read_path import ALL_COLUMNS, EVERYTHING, Filter, ShardView
from tubestore.records import RecordColumns, Row, encode_columns
from tubestore.shard_reader import ShardReader

Array = np.ndarray[Any, Any]
Time = int | datetime
Shard = MessageStore | ShardReader
DEFAULT_PAGE_BYTES = 8 << 20
# As `Row(...)` and `Ack(...)`, at a third of the time: one append makes one of each.
_row: Callable[[tuple[Any, ...]], Row] = partial(tuple.__new__, Row)
_ack: Callable[[tuple[Any, ...]], Ack] = partial(tuple.__new__, Ack)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class TopicHost(Protocol):
    """What a topic asks of the store that it belongs to (`manager.py`)."""

    root: str
    options: StoreOptions
    clock: Clock

    def next_msg_id(self) -> int:
        """Return an id that no message of the store has."""

    def next_msg_ids(self, count: int) -> Array:
        """Reserve ids in a row (int64)."""

    def shard_exists(self, topic: str, store_id: int) -> bool:
        """Whether a shard has a directory."""

    def refresh_topic(self, topic: Topic) -> None:
        """Let a reading store see what was written since."""


def time_ms(value: Time | None) -> int | None:
    """Return ms since the epoch of an int (already ms) or an aware datetime; naive is refused."""
    if value is None:
        return None
    if not isinstance(value, datetime):
        try:
            return operator.index(value)
        except TypeError:
            raise TypeError(f"time {value!r}: an aware datetime, or ms since the epoch") from None
    if value.tzinfo is None:
        raise ValueError(
            f"{value!r} has no time zone; give an aware datetime or ms since the epoch"
        )
    return (value - _EPOCH) // timedelta(milliseconds=1)


def make_filter(filter_items: Iterable[str] | None, start: Time | None, end: Time | None) -> Filter:
    """Build a filter from what users give; items match by their 32-bit hash, as in TubeMQ."""
    if isinstance(filter_items, str):
        raise TypeError("filter_items: a list of texts is needed, not one text")
    codes = None if filter_items is None else frozenset(key_code_of(i) for i in filter_items)
    if codes is None and start is None and end is None:
        return EVERYTHING
    return Filter(codes, time_ms(start), time_ms(end))


def _check_columns(columns: Sequence[str] | None) -> Sequence[str]:
    if columns is None:
        return ALL_COLUMNS
    unknown = set(columns) - set(ALL_COLUMNS)
    if unknown:
        raise ValueError(
            f"columns {', '.join(sorted(unknown))}: known are {', '.join(ALL_COLUMNS)}"
        )
    return columns


class Topic:
    """One topic of a store; thread-safe, and valid as long as its store is open."""

    def __init__(
        self,
        store: TopicHost,
        name: str,
        options: TopicOptions,
        open_shard: Callable[[str, int], Shard],
    ) -> None:
        self.name, self.options = name, options
        self._store = store
        self._open_shard = open_shard
        self._shards: dict[int, Shard] = {}
        self._lock = Lock()
        self._next = 0
        #: Ids below this are partitions of store 0.
        self._first_store_end = options.partitions

    def __repr__(self) -> str:
        return f"Topic({self.name!r}, partitions={self.options.partition_count})"

    # -- shards ------------------------------------------------------------------------------

    def shard(self, store_id: int) -> Shard:
        """Return one of the topic's shards, opening it at its first use."""
        shard = self._shards.get(store_id)
        if shard is None:
            with self._lock:
                shard = self._shards.get(store_id)
                if shard is None:
                    shard = self._open_shard(self.name, store_id)
                    self._shards[store_id] = shard
        return shard

    def abandon(self, reason: StoreClosed) -> None:
        """Refuse everything from now on: this process is a fork of the one that opened it."""
        self._lock = Lock()
        for shard in self._shards.values():
            shard.abandon(reason)

    def opened_shards(self) -> list[Shard]:
        """Return the shards that have been used."""
        return list(self._shards.values())

    def writable(self, store_id: int) -> MessageStore:
        """Return one of the topic's shards for appending; ReadOnlyStore in mode "r"."""
        shard = self.shard(store_id)
        if not isinstance(shard, MessageStore):
            raise ReadOnlyStore(f"{self._store.root} was opened with mode='r'")
        return shard

    def _view_of(self, partition: int) -> ShardView:
        if not isinstance(partition, int | np.integer) or not self.options.holds(int(partition)):
            raise InvalidMessage(f"partition {partition!r} is not one of topic {self.name!r}'s")
        return self.shard(int(partition) // PARTITIONS_PER_STORE).view()

    @property
    def partition_ids(self) -> list[int]:
        """The ids of all partitions: store id * 10,000 + place."""
        return [self.options.partition_id(n) for n in range(self.options.partition_count)]

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

        The partition is given, or chosen by the key's hash, or round robin. Raises
        InvalidMessage, MessageTooLarge (nothing was written), StoreBusy (not taken), DiskFull,
        StoreFailed, StoreClosed, ReadOnlyStore.
        """
        if body.__class__ is not bytes:
            if not isinstance(body, bytes | bytearray | memoryview):
                raise InvalidMessage(f"a body is bytes, not {type(body).__name__}")
            body = bytes(body)
        if not body:
            raise InvalidMessage("a message needs a body of at least one byte")
        store = self._store
        level = store.options.durability if durability is None else check_durability(durability)
        if received_time is None:
            now = store.clock.now_ms()
        else:
            given = time_ms(received_time)
            assert given is not None
            if not -(1 << 63) <= given < 1 << 63:
                raise InvalidMessage(f"time {given} ms does not fit into 64 bits")
            now = given
        payload, flag, code = body, 0, NO_KEY_CODE
        if filter_item is not None or attributes:
            prefix = encode_prefix(filter_item, now, attributes)
            payload = prefix + body
            flag = FLAG_HAS_ATTRIBUTES if prefix else 0
            code = key_code_of(filter_item)
        limit = store.options.payload_size_max
        if len(payload) > limit:
            raise MessageTooLarge(len(payload), limit, "payload")
        if partition.__class__ is int and 0 <= partition < self._first_store_end:
            number, shard = partition, self._shards.get(0)
        else:
            number = self._choose(key, partition)
            shard = self._shards.get(number // PARTITIONS_PER_STORE)
        if shard.__class__ is not MessageStore:
            shard = self.writable(number // PARTITIONS_PER_STORE)
        address = ingest.LOOPBACK if sender is None else address_to_int(sender)
        row = _row((number, code, now, address, store.next_msg_id(), flag, payload))
        return _ack((number, shard.append(row, level), level))

    def _choose(self, key: str | bytes | None, partition: int | None) -> int:
        options = self.options
        if partition is not None:
            if not isinstance(partition, int | np.integer) or not options.holds(int(partition)):
                raise InvalidMessage(f"partition {partition!r} is not one of {self.name!r}'s")
            return int(partition)
        if key is not None:
            return options.partition_id(ingest.hash_key(key) % options.partition_count)
        self._next = turn = (self._next + 1) % options.partition_count
        return options.partition_id(turn)

    def append_batch(self, data: Any, *, durability: Durability | None = None) -> BatchAck:
        """Append a table of messages; see `tubestore.ingest` for its columns.

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

    def sync(self) -> None:
        """Bring everything that was taken to stable storage."""
        for shard in self.opened_shards():
            if isinstance(shard, MessageStore):
                shard.sync()

    def flush(self) -> None:
        """Write the buffers to the files (page cache)."""
        for shard in self.opened_shards():
            if isinstance(shard, MessageStore):
                shard.flush()

    # -- read --------------------------------------------------------------------------------

    def read(
        self,
        partition: int,
        offset: int | Literal["earliest", "latest"] = "earliest",
        *,
        limit: int = 1000,
        max_bytes: int | None = DEFAULT_PAGE_BYTES,
        columns: Sequence[str] | None = None,
        filter_items: Iterable[str] | None = None,
        start: Time | None = None,
        end: Time | None = None,
        verify: bool = False,
    ) -> Page:
        """Read up to `limit` messages of a partition from `offset` on; never waits for more.

        `verify` compares checksums. With `on_damage="raise"` an unreadable message raises
        CorruptRecord; else it is a row whose `state` is not "ok". OffsetOutOfRange below the
        first kept offset or beyond the end.
        """
        if limit < 0:
            raise ValueError(f"limit = {limit}: not negative")
        view = self._view_of(partition)
        start_at = self._resolve(view, offset)
        names = _check_columns(columns)
        pages = view.read(
            int(partition),
            start_at,
            limit=limit,
            max_bytes=max_bytes,
            columns=self._with_state(names),
            wanted=make_filter(filter_items, start, end),
            verify=verify,
        )
        return Page(
            self._checked(view, pages.batches, names),
            next_offset=pages.next_offset,
            end_offset=view.index_end,
            truncated=pages.truncated,
        )

    def _with_state(self, names: Sequence[str]) -> Sequence[str]:
        if self._store.options.on_damage == "raise":
            extra = [n for n in ("state", "partition_id", "offset") if n not in names]
            return [*names, *extra]
        return names

    def _checked(
        self, view: ShardView, batches: list[pa.RecordBatch], names: Sequence[str]
    ) -> pa.Table:
        schema = schema_of(tuple(self._with_state(names)))
        table = pa.Table.from_batches(batches, schema)
        if self._store.options.on_damage == "raise":
            states = table.column("state").to_numpy()
            bad = np.flatnonzero(states != STATE_OK)
            if len(bad):
                row = int(bad[0])
                offset = table.column("offset")[row].as_py()
                where = f"{self.name} partition {table.column('partition_id')[row]} offset {offset}"
                raise CorruptRecord(view.files.directory, offset, f"{states[row]} ({where})")
        return table if len(names) == table.num_columns else table.select(list(names))

    @staticmethod
    def _resolve(view: ShardView, offset: int | str) -> int:
        if offset == "earliest":
            return view.index_start
        if offset == "latest":
            return view.index_end
        if not isinstance(offset, int | np.integer):
            raise TypeError(f"offset {offset!r}: an int, 'earliest' or 'latest'")
        if not view.index_start <= offset <= view.index_end:
            raise OffsetOutOfRange(int(offset), view.index_start, view.index_end)
        return int(offset)

    def messages(
        self, partition: int, offset: int | Literal["earliest", "latest"] = "earliest"
    ) -> Iterator[Message]:
        """Go through a partition from `offset` to its end at the time of the call."""
        page = self.read(partition, offset, limit=0)
        position, end = self._resolve(self._view_of(partition), offset), page.end_offset
        while position < end:
            page = self.read(partition, position)
            for message in page:
                if message.offset >= end:
                    return
                yield message
            position = page.next_offset

    def follow(
        self,
        partition: int,
        offset: int | Literal["earliest", "latest"] = "earliest",
        *,
        idle_timeout: float | None = None,
        poll_interval: float = 0.05,
    ) -> Iterator[Message]:
        """Go through a partition and wait for more; ends after `idle_timeout` idle seconds."""
        position = self._resolve(self._view_of(partition), offset)
        idle_since = self._store.clock.monotonic()
        while True:
            page = self.read(partition, position)
            yield from page
            position = page.next_offset
            now = self._store.clock.monotonic()
            if len(page):
                idle_since = now
            elif idle_timeout is not None and now - idle_since >= idle_timeout:
                return
            else:
                time.sleep(poll_interval)
                self._store.refresh_topic(self)

    def scan(
        self,
        *,
        columns: Sequence[str] | None = None,
        filter_items: Iterable[str] | None = None,
        start: Time | None = None,
        end: Time | None = None,
        verify: bool = False,
    ) -> pa.RecordBatchReader:
        """Read the whole topic as a stream of Arrow batches, shard by shard in offset order.

        Sees what was there at the call. Use as a context manager, or read it to its end.
        """
        names = _check_columns(columns)
        wanted = make_filter(filter_items, start, end)
        views = [self.shard(s).view() for s in range(self.options.stores) if self._exists(s)]
        fetched = self._with_state(names)

        def batches() -> Iterator[pa.RecordBatch]:
            for view in views:
                for batch in view.scan(fetched, wanted, verify=verify):
                    yield from self._checked(view, [batch], names).to_batches()

        schema = schema_of(tuple(names))
        return pa.RecordBatchReader.from_batches(schema, batches())

    def _exists(self, store_id: int) -> bool:
        return store_id in self._shards or self._store.shard_exists(self.name, store_id)

    def partitions(self) -> pa.Table:
        """Return a row a partition: partition, first and next offset, messages (retained)."""
        rows = []
        counts: dict[int, int] = {}
        bounds = {}
        for store_id in range(self.options.stores):
            if self._exists(store_id):
                view = self.shard(store_id).view()
                counts |= view.counts()
                bounds[store_id] = (view.index_start, view.index_end)
        for partition in self.partition_ids:
            first, end = bounds.get(partition // PARTITIONS_PER_STORE, (0, 0))
            rows.append((partition, first, end, counts.get(partition, 0)))
        names = ("partition", "first", "next", "count")
        columns = zip(*rows, strict=True)
        return pa.table({n: pa.array(c, pa.int64()) for n, c in zip(names, columns, strict=True)})

    def message_at(self, partition: int, offset: int) -> Message | None:
        """Return the message at exactly this offset, None if it is another partition's."""
        page = self.read(partition, offset, limit=1)
        found = next(messages_of(page.table), None)
        return found if found is not None and found.offset == offset else None


def append_table(
    store: TopicHost,
    table: pa.Table,
    topics: list[Topic],
    codes: Array,
    durability: Durability | None,
) -> BatchAck:
    """Append the rows of a checked table to their topics: `codes[i]` says which of `topics`.

    Rows are grouped by shard, encoded together once, and handed to their shards in slices.
    """
    level = store.options.durability if durability is None else check_durability(durability)
    count = table.num_rows
    if count == 0:
        return BatchAck(pa.array([], pa.int32()), pa.array([], pa.int64()), level)
    partition_ids = ingest.route(
        table, codes, [t.options for t in topics], lambda c: _turns(topics, c)
    )
    columns = ingest.build_columns(
        table,
        partition_ids,
        now_ms=store.clock.now_ms(),
        payload_size_max=store.options.payload_size_max,
        next_msg_ids=store.next_msg_ids,
    )
    offsets = append_columns(topics, codes, columns, level)
    return BatchAck(pa.array(columns.partition_ids), pa.array(offsets), level)


def append_columns(
    topics: list[Topic], codes: Array, columns: RecordColumns, level: Durability
) -> Array:
    """Append checked columns to their topics; returns the offsets (int64) in their order.

    Rows of a shard keep their order. BatchError says what was taken when a part was not.
    """
    order, firsts, keys = ingest.shard_order(codes, columns.partition_ids)
    shards = [
        topics[k // PARTITIONS_PER_STORE].writable(k % PARTITIONS_PER_STORE) for k in keys.tolist()
    ]
    placed = np.full(len(columns), -1, np.int64)
    failure: TubeStoreError | None = None
    try:
        ordered = columns if order is None else columns.take(order)
        _append_slices(ordered, shards, firsts, placed, level)
    except TubeStoreError as error:
        failure = error
    offsets = placed
    if order is not None:
        offsets = np.empty(len(columns), np.int64)
        offsets[order] = placed
    if failure is not None:
        pairs = zip(columns.partition_ids.tolist(), offsets.tolist(), strict=True)
        # Over several shards the syncs come last, and which of them were done is not known here.
        reached = _level_below(level, len(shards))
        acks = [Ack(p, o, reached) if o >= 0 else None for p, o in pairs]
        if not any(acks):
            raise failure
        raise BatchError(str(failure), acks) from failure
    return offsets


def _turns(topics: list[Topic], codes: Array) -> Array:
    """Return round-robin numbers for every row, each topic continuing its own count."""
    numbers = np.empty(len(codes), np.uint64)
    for code in np.unique(codes).tolist():
        rows = np.flatnonzero(codes == code)
        first = topics[code].round_robin(len(rows))
        numbers[rows] = np.arange(first, first + len(rows))
    return numbers


def _level_below(level: Durability, shards: int) -> Durability:
    """The level that is reached shard by shard: `fsync` over several is a step of its own."""
    return "page_cache" if level == "fsync" and shards > 1 else level


def _append_slices(
    columns: RecordColumns,
    shards: list[MessageStore],
    firsts: Array,
    offsets: Array,
    level: Durability,
) -> None:
    """Encode once, append each shard's slice; `fsync` syncs after all are written."""
    batch = encode_columns(columns)
    bounds = [*firsts.tolist(), len(columns)]
    below = _level_below(level, len(shards))
    for shard, first, end in zip(shards, bounds, bounds[1:], strict=False):
        part = batch if len(shards) == 1 else batch.part(first, end)
        offsets[first:end] = shard.append_encoded(part, below)
    if below != level:
        for shard in shards:
            shard.sync_data()
