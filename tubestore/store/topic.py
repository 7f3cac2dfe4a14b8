"""A topic: its shards as one thing to append to and to read from. `store.topic(…)` returns it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tubestore.clock import SECONDS_OR_MS, Clock, Time, checked_time_ms, time_ms
from tubestore.errors import InvalidMessage, MessageTooLarge, documented, documented_rows
from tubestore.groups.waiter import FIND_SECONDS, Waiter
from tubestore.messages import (
    STATE_OK,
    Ack,
    BatchAck,
    Bytes,
    Copied,
    FoundInShard,
    Message,
    Page,
    PageSet,
    Rows,
)
from tubestore.options import PARTITIONS_PER_STORE, Durability, TopicOptions, check_durability
from tubestore.reading import positions
from tubestore.reading.tubemq_reads import (
    DEFAULT_MAX_BYTES,
    DEFAULT_SWITCH,
    ENTRIES_MAX,
    GetMessageResult,
    get_messages,
)
from tubestore.record import ingest
from tubestore.record.attributes import encode_prefix
from tubestore.record.columns import Columns
from tubestore.record.layouts import FLAG_HAS_ATTRIBUTES, NO_KEY_CODE, address_to_int, key_code_of
from tubestore.record.records import ENTRY_SIZE, pack_header
from tubestore.shard.message_store import MessageStore
from tubestore.store.append import append_table
from tubestore.store.housekeeping import Housekeeping
from tubestore.store.opening import ShardOpener
from tubestore.store.retention import SegmentRow
from tubestore.store.topic_reads import (
    DEFAULT_PAGE_BYTES,
    DEFAULT_PAGES_BYTES,
    chosen_columns,
    first_offset,
    make_filter,
    messages_from,
    offset_of_time,
    partition_table,
    resolve,
    scanned,
)
from tubestore.store.topic_shards import TopicShards
from tubestore.values import (
    LONG_MAX,
    Age,
    Seconds,
    Size,
    checked_seconds,
    checked_texts,
    checked_whole,
    size_bytes,
)

Offset = int | Literal["earliest", "latest"]
Boundary = Literal["lower", "upper", "nearest"]
# As `Ack(...)`, at a third of the time: one append makes one.
_ack: Callable[[tuple[Any, ...]], Ack] = partial(tuple.__new__, Ack)


class Topic:
    """One topic of a store; thread-safe, and valid as long as its store is open.

    >>> import tempfile, tubestore
    >>> with tempfile.TemporaryDirectory() as root, tubestore.open(root) as store:
    ...     logs = store.create_topic("logs", partitions=2)
    ...     ack = logs.append(b"hello", partition=1)
    ...     logs.read(1).table["body"].to_pylist(), logs.count(1)
    ([b'hello'], 1)
    """

    def __init__(
        self,
        opener: ShardOpener,
        shards: TopicShards,
        housekeeping: Housekeeping,
        make_waiter: Callable[[], Waiter],
    ) -> None:
        """`make_waiter` keeps the store's engine alive: an unused store closes itself."""
        self._opener, self._shards, self._housekeeping = opener, shards, housekeeping
        self._make_waiter = make_waiter
        context = opener.context
        self._by_id, self._clock, self._ids = shards.by_id, context.clock, context.ids
        self._level = context.options.durability
        self._payload_size_max = context.options.payload_size_max
        self._key_attribute = context.options.key_attribute
        self._strict = context.options.on_damage == "raise"

    @property
    def name(self) -> str:
        """The name of the topic."""
        return self._shards.name

    @property
    def options(self) -> TopicOptions:
        """The settings of the topic as they are now."""
        return self._shards.options

    @property
    def root(self) -> str:
        """The directory of the store."""
        return self._shards.root

    @property
    def partition_ids(self) -> list[int]:
        """The ids of all partitions: store id * 10,000 + place."""
        return [self.options.partition_id(n) for n in range(self.options.partition_count)]

    def __repr__(self) -> str:
        return f"Topic({self.name!r}, partitions={self.options.partition_count})"

    # -- append ------------------------------------------------------------------------------

    def append(
        self,
        body: Bytes | Message,
        *,
        key: str | Bytes | None = None,
        partition: int | None = None,
        filter_item: str | None = None,
        attributes: Mapping[str, str] | None = None,
        received_time: Time | None = None,
        sender: str | None = None,
        durability: Durability | None = None,
    ) -> Ack:
        """Append one message; when it returns, the message has reached `durability`.

        A `Message` that was read is appended again, with its attributes, time and partition, as far
        as no others are given.

        The partition is given, or chosen by the key's hash, or round robin. The format keeps no
        key: a store that was opened with `key_attribute="key"` stores it as an attribute of this
        name. The offset in the answer is a position in the index of the partition's shard, not a
        number of messages: `count` counts. `received_time`: an
        aware datetime, ISO text, an age like "2h", or ms since the epoch; `sender`: an IPv4
        address. Raises InvalidMessage,
        MessageTooLarge (nothing was written), StoreBusy (not taken), DiskFull, StoreFailed,
        StoreClosed, ReadOnlyStore. Raises TypeError or ValueError for an invalid time, level or
        partition. The error's `taken` records whether the message is in the store.
        """
        if type(body) is not bytes or not body:
            if isinstance(body, Message):
                given = (partition, filter_item, attributes, received_time)
                found = _to_append_again(body, *given, by_key=key is not None)
                return self.append(**found, key=key, sender=sender, durability=durability)
            body = _checked_body(body)
        level = self._level if durability is None else check_durability(durability)
        clock = self._clock
        now = clock.now_ms() if received_time is None else _checked_time(received_time, clock)
        payload, flag, code = body, 0, NO_KEY_CODE
        if key is not None and self._key_attribute is not None:
            attributes = {**(attributes or {}), **ingest.key_attribute(key, self._key_attribute)}
        if filter_item is not None or attributes:
            prefix = encode_prefix(filter_item, now, attributes)
            payload = prefix + body
            flag = FLAG_HAS_ATTRIBUTES if prefix else 0
            code = key_code_of(filter_item)
        if len(payload) > self._payload_size_max:
            what = f"topic {self.name!r}: payload (body and attributes)"
            raise MessageTooLarge(len(payload), self._payload_size_max, what, "payload_size_max")
        if type(partition) is int and 0 <= partition < self._shards.first_store_end:
            number, shard = partition, self._by_id.get(0)
        else:
            number = self._choose(key, partition)
            shard = self._by_id.get(number // PARTITIONS_PER_STORE)
        if type(shard) is not MessageStore:
            shard = self._shards.writable(number // PARTITIONS_PER_STORE)
        address = ingest.LOOPBACK if sender is None else _checked_address(sender)
        header = pack_header(number, code, now, address, self._ids.next(), flag, payload)
        return _ack((number, shard.append_record(header, payload, level), level))

    def _choose(self, key: str | Bytes | None, partition: int | None) -> int:
        shards = self._shards
        options = shards.options
        if partition is not None:
            return shards.known(partition)
        if key is not None:
            return options.partition_id(ingest.hash_key(key) % options.partition_count)
        shards.turn = turn = (shards.turn + 1) % options.partition_count
        return options.partition_id(turn)

    @documented
    def append_batch(self, data: Rows, *, durability: Durability | None = None) -> BatchAck:
        """Append a table of messages: Arrow, Polars, pandas, a dict of columns, a list of dicts.

        A `Page`, its table, and a list of messages are appended again, with their attributes and
        times, in the partitions that they name.

        Columns: `body` (bytes or text, needed); `partition`, else chosen by `key`, else in turns;
        `filter_item`, `attributes` (a map of texts), `received_time` (a timestamp) or
        `received_time_ms`, `report_address` (the sender's IPv4 as an integer).

        A durable prefix per shard: when it fails in the middle, BatchError has per row what was
        taken. Everything that can be refused is refused before anything is written.
        """
        table = ingest.with_keys(ingest.as_table(data, with_topic=False), self._key_attribute)
        codes = np.zeros(table.num_rows, np.int64)
        return append_table(self._opener, table, [self._shards], codes, durability)

    @documented
    def copy_from(
        self,
        source: Topic,
        *,
        start: Time | None = None,
        end: Time | None = None,
        filter_items: Iterable[str] | None = None,
        keep_times: bool = True,
        durability: Durability | None = None,
    ) -> Copied:
        """Append the messages of another topic, of this store or another one, or of this topic.

        What is there at the call, with attributes, filter items and times (`keep_times=False`: as
        received now). `start`, `end` and `filter_items` choose as in `read`. The n-th partition
        goes to the n-th one here, or its remainder if there are fewer: the order of each partition
        stays. Damaged messages are left out and counted. Not atomic, and a repeated call appends
        the messages again: `StagedWriter` and `publish` do it at most once.
        """
        parts = list(
            copies(
                self, source, start=start, end=end, filter_items=filter_items,
                keep_times=keep_times, durability=durability,
            )
        )  # fmt: skip
        return Copied(sum(part.messages for part in parts), sum(part.left_out for part in parts))

    @documented
    def flush(self) -> None:
        """Write the buffers to the files (page cache)."""
        self._shards.flush()

    @documented
    def sync(self) -> None:
        """Bring everything that was taken to stable storage, by earlier processes too."""
        self._shards.sync()

    # -- pages -------------------------------------------------------------------------------

    @documented
    def read(
        self,
        partition: int,
        offset: Offset = "earliest",
        *,
        limit: int = 1000,
        max_bytes: Size | None = DEFAULT_PAGE_BYTES,
        columns: Sequence[str] | None = None,
        filter_items: Iterable[str] | None = None,
        start: Time | None = None,
        end: Time | None = None,
        verify: bool = False,
        zero_copy: bool = False,
    ) -> Page:
        """Read up to `limit` messages of a partition from `offset` on; never waits for more.

        `max_bytes` ("64MiB", or a number) counts whole records; the first message comes even if it
        is larger. `start` and `end`: received at or after, received before: an aware datetime, ISO
        text, an age like "2h", or ms since the epoch. `verify` compares checksums, and entries with
        records; without it a flipped bit of a body is shown as sound. No read of a partition shows
        that an entry of its messages names another one: `scan(verify=True)` and `check` do. An
        unreadable message is a row with a `state` other than "ok"; a store that was opened with
        `on_damage="raise"` raises CorruptRecord instead. OffsetOutOfRange below the first kept
        offset or beyond the end.

        `zero_copy`: bodies are a `binary_view` column that shows sealed files where they are mapped
        and copies the others; it stays valid after close and when retention removes the file. The
        mapping, and a removed file's room on the disk, go when the last such page is collected.
        """
        checked_whole("limit", limit, most=LONG_MAX)
        max_bytes = size_bytes(max_bytes)
        view = self._shards.view_of(partition)
        chosen = self._columns(columns, verify, zero_copy)
        found = view.find(
            int(partition),
            resolve(view, offset),
            limit=limit,
            max_bytes=max_bytes,
            wanted=make_filter(filter_items, start, end, self._clock),
        )
        return Page(
            view.batches_of(found.rows, chosen),
            chosen.schema,
            next_offset=found.next_offset,
            end_offset=view.index_end,
            truncated=found.truncated,
        )

    @documented
    def read_many(
        self,
        offsets: Mapping[int, Offset],
        *,
        limit: int = 1000,
        max_bytes: Size | None = DEFAULT_PAGES_BYTES,
        columns: Sequence[str] | None = None,
        filter_items: Iterable[str] | None = None,
        start: Time | None = None,
        end: Time | None = None,
        verify: bool = False,
        zero_copy: bool = False,
    ) -> PageSet:
        """Read many partitions, each from its offset, in one go: `{partition: offset, …}`.

        `limit` is for each partition, `max_bytes` for all of them: a shard with several takes its
        part of it, and gives at least one message. Rows come shard by shard in the order of their
        offsets, which is the order of appending. The answer's `next_offset` is the argument of the
        next call. All shards are seen at one moment; filters and errors as `read`.
        """
        checked_whole("limit", limit, most=LONG_MAX)
        max_bytes = size_bytes(max_bytes)
        if not isinstance(offsets, Mapping):
            raise TypeError(f"offsets {offsets!r}: a mapping of partitions to offsets is needed")
        chosen = self._columns(columns, verify, zero_copy)
        wanted = make_filter(filter_items, start, end, self._clock)
        by_store: dict[int, list[int]] = {}
        for partition in sorted(map(self._shards.known, offsets)):
            by_store.setdefault(partition // PARTITIONS_PER_STORE, []).append(partition)
        views = self._shards.views_of(list(by_store))
        share = None if max_bytes is None else max_bytes // max(1, len(views))
        answers = []
        for view, partitions in zip(views, by_store.values(), strict=True):
            starts = [resolve(view, offsets[p]) for p in partitions]
            found = view.find_many(
                np.array(partitions, np.int64),
                np.array(starts, np.int64),
                limit=limit,
                max_bytes=share,
                wanted=wanted,
            )
            batches = view.batches_of(found.rows, chosen)
            answers.append(
                FoundInShard(
                    partitions, found.next_offsets, found.truncated, view.index_end, batches
                )
            )
        return PageSet(chosen.schema, answers)

    def _columns(
        self, names: Sequence[str] | None, verify: bool, zero_copy: bool = False
    ) -> Columns:
        return chosen_columns(names, strict=self._strict, verify=verify, zero_copy=zero_copy)

    @documented
    def get_messages(
        self,
        partition: int,
        offset: int,
        *,
        filter_items: Iterable[str] | None = None,
        max_bytes: Size = DEFAULT_MAX_BYTES,
        min_time: Time | None = None,
        switch: int = DEFAULT_SWITCH,
        max_entries: int = ENTRIES_MAX,
    ) -> GetMessageResult:
        """Read as TubeMQ's `getMessages` does, with its return codes and deltas.

        Go on at `request_offset + delta`, also after a failure. A page ends behind the record with
        which `max_bytes` is reached, or when `max_entries` of the index, whatever their partition,
        were examined; both are at least 1. `switch`: 101 the files only, 301 the buffers too; of a
        filter the last digit counts. Below the first offset it begins there; beyond the end is
        NOT_FOUND.
        """
        view = self._shards.view_of(partition)
        at = checked_whole("offset", offset, least=None)
        checked_whole("switch", switch, least=None)
        page_bytes = checked_whole("max_bytes", size_bytes(max_bytes), least=1)
        checked_whole("max_entries", max_entries, least=1)
        earliest = time_ms(min_time, "min_time", self._clock)
        # As in TubeMQ, by the hash alone.
        wanted = replace(make_filter(filter_items, earliest, None), items=None)
        return get_messages(
            view,
            int(partition),
            at - at % ENTRY_SIZE,
            wanted,
            switch=switch,
            max_bytes=page_bytes,
            max_entries=max_entries,
        )

    def message_at(self, partition: int, offset: int) -> Message | None:
        """Return the message at exactly this offset, None if it is another partition's."""
        page = self.read(partition, checked_whole("offset", offset), limit=1)
        found = next(iter(page), None)
        return found if found is not None and found.offset == offset else None

    # -- one by one --------------------------------------------------------------------------

    def messages(
        self,
        partition: int,
        offset: Offset = "earliest",
        *,
        filter_items: Iterable[str] | None = None,
        start: Time | None = None,
        end: Time | None = None,
        verify: bool = False,
    ) -> Iterator[Message]:
        """Go through a partition from `offset` to its end at the time of the call.

        `verify` and all other arguments as `read`.
        """
        view = self._shards.view_of(partition)
        chosen = self._columns(None, verify)
        wanted = make_filter(filter_items, start, end, self._clock)
        position = resolve(view, offset)
        rows = messages_from(view, int(partition), position, wanted, chosen)
        return documented_rows(rows, self.root)

    def follow(
        self,
        partition: int,
        offset: Offset = "earliest",
        *,
        filter_items: Iterable[str] | None = None,
        idle_timeout: Seconds | None = None,
        verify: bool = False,
    ) -> Iterator[Message]:
        """Go through a partition and wait for more; ends after `idle_timeout` without a message.

        `idle_timeout`: seconds, a timedelta, or a text such as "1s". An append wakes it at once, of
        another process, too. `verify` as in `read`.
        """
        position = resolve(self._shards.view_of(partition), offset)
        # Refused now, and not when messages come.
        items = None if filter_items is None else checked_texts("filter_items", filter_items)
        idle = None if idle_timeout is None else checked_seconds("idle_timeout", idle_timeout)
        return self._following(partition, position, items, idle, verify)

    def _following(
        self,
        partition: int,
        position: int,
        items: list[str] | None,
        idle_timeout: float | None,
        verify: bool,
    ) -> Iterator[Message]:
        shard = self.name, int(partition) // PARTITIONS_PER_STORE
        waiter, clock = self._make_waiter(), self._clock
        idle_since = clock.monotonic()
        while True:
            page = self.read(partition, position, filter_items=items, verify=verify)
            yield from page
            position = page.next_offset
            now = clock.monotonic()
            if len(page):
                idle_since = now
            elif idle_timeout is not None and now - idle_since >= idle_timeout:
                return
            if not page.truncated:
                left = FIND_SECONDS
                if idle_timeout is not None:
                    left = max(0.0, min(left, idle_timeout - (now - idle_since)))
                if waiter.ask(shard, page.end_offset):
                    waiter.wait(left)
                    waiter.take()
                    self._shards.refresh()

    # -- everything --------------------------------------------------------------------------

    def scan(
        self,
        *,
        columns: Sequence[str] | None = None,
        filter_items: Iterable[str] | None = None,
        start: Time | None = None,
        end: Time | None = None,
        limit: int | None = None,
        max_bytes: Size | None = None,
        verify: bool = False,
        zero_copy: bool = False,
    ) -> pa.RecordBatchReader:
        """Read the whole topic as a stream of Arrow batches, shard by shard in offset order.

        Sees what was there at the call, one moment for all shards. Use as a context manager, or
        read it to its end. `limit` and `max_bytes` (of whole records) end it early; the rest of
        the arguments as `read`. With `verify` it compares the entries of all partitions.
        """
        if limit is not None:
            checked_whole("limit", limit, most=LONG_MAX)
        chosen = self._columns(columns, verify, zero_copy)
        wanted = make_filter(filter_items, start, end, self._clock)
        rows = scanned(self._shards.views(), chosen, wanted, limit, size_bytes(max_bytes))
        batches = documented_rows(rows, self.root)
        return pa.RecordBatchReader.from_batches(chosen.schema, batches)

    # -- places ------------------------------------------------------------------------------

    @documented
    def first_offset(self, partition: int) -> int:
        """Return the offset of a partition's first message; that of the next one if it is empty."""
        return first_offset(self._shards.view_of(partition), partition)

    @documented
    def last_offset(self, partition: int) -> int | None:
        """Return the offset of a partition's last message; None if it is empty."""
        view = self._shards.view_of(partition)
        return positions.back(view.backwards(), partition, view.index_start, view.index_end, 1)

    def next_offset(self, partition: int) -> int:
        """Return the offset behind the last message of the partition's shard: "latest".

        Offsets of a partition have gaps, since the partitions of a shard share its index. How many
        messages there are, `count` returns; how many a group has not read, `describe_group`.
        """
        return self._shards.view_of(partition).index_end

    @documented
    def count(self, partition: int, start: Offset = "earliest", end: Offset = "latest") -> int:
        """Return how many messages a partition has at the offsets [start, end).

        `count(p, position)` is what a reader at `position` has not read yet: its lag.
        """
        view = self._shards.view_of(partition)
        low, high = resolve(view, start, "start"), resolve(view, end, "end")
        return positions.count(view.sources(low), partition, low, high)

    @documented
    def skip(self, partition: int, offset: Offset, count: int) -> int:
        """Return the offset from which a read leaves out `count` messages; back if it is negative.

        `skip(7, "latest", -100)` is where the last hundred begin. Ends at the partition's own ends.
        """
        view = self._shards.view_of(partition)
        at = resolve(view, offset)
        count = checked_whole("count", count, least=None)
        if count >= 0:
            found = positions.ahead(view.sources(at), partition, at, count) if count else at
            return view.index_end if found is None else found
        found = positions.back(view.backwards(), partition, view.index_start, at, -count)
        return view.index_start if found is None else found

    @documented
    def offset_at(self, partition: int, time: Time, *, boundary: Boundary = "lower") -> int:
        """Return the offset of a message by its receiving time, in whatever order they came in.

        "lower": the first one received at or after `time`; "latest" if there is none. "upper": the
        last one received at or before `time`; the first message if there is none. "nearest": the
        one of both with the nearer time, the later one of equally near.
        """
        if boundary not in ("lower", "upper", "nearest"):
            raise ValueError(f"boundary {boundary!r}: lower, upper or nearest")
        at = checked_time_ms(time, clock=self._clock)
        return offset_of_time(self._shards.view_of(partition), partition, at, boundary)

    @documented
    def partitions(self) -> pa.Table:
        """Return a row a partition: partition, first, next, count, bytes, oldest.

        `first`: the offset of its first message, `next` if it has none; `next`: the end of its
        shard; `bytes`: of its records, headers included; `oldest`: the earliest receiving time. One
        moment for all shards; the index is read once, and by later calls from there on.
        """
        return partition_table(self._shards.views(), self.options)

    # -- retention ---------------------------------------------------------------------------

    @documented
    def retain(
        self,
        *,
        max_age: Age | None = None,
        max_bytes: Size | None = None,
        dry_run: bool = False,
    ) -> list[SegmentRow]:
        """Remove the topic's oldest files; returns a row for each that went (would go).

        The topic's own settings are used for arguments that are not given. See
        `MessageStoreManager.retain`.
        """
        return self._housekeeping.retain_topic(
            self._shards, max_age=max_age, max_bytes=max_bytes, dry_run=dry_run
        )

    @documented
    def explain_retention(
        self, *, max_age: Age | None = None, max_bytes: Size | None = None
    ) -> list[SegmentRow]:
        """Return a row for every file of the topic: whether it would go, when, and why (not)."""
        return self._housekeeping.explain_topic(self._shards, max_age=max_age, max_bytes=max_bytes)


def shards_of(topic: Topic) -> TopicShards:
    """Return the shards of a topic, for the package itself: users reach them by partition."""
    return topic._shards


def copies(
    target: Topic, source: Topic, *, start: Time | None, end: Time | None,
    filter_items: Iterable[str] | None, keep_times: bool, durability: Durability | None,
) -> Iterator[Copied]:  # fmt: skip
    """Append the messages of another topic, and yield what became of each batch."""
    if not isinstance(source, Topic):
        hint = f", such as store[{source!r}]" if isinstance(source, str) else ""
        raise TypeError(f"source {source!r}: a Topic is needed{hint}")
    names = ["partition", "received_time_ms", "filter_item", "attributes", "body", "state"]
    batches = source.scan(
        columns=names, start=start, end=end, filter_items=filter_items, verify=True
    )
    with batches:
        for batch in batches:
            sound = batch.filter(pc.equal(batch.column("state"), STATE_OK))
            table = pa.Table.from_batches([sound])
            if not keep_times:
                table = table.drop_columns(["received_time_ms"])
            store, place = np.divmod(sound.column("partition").to_numpy(), PARTITIONS_PER_STORE)
            numbers = store * source.options.partitions + place
            store, place = np.divmod(
                numbers % target.options.partition_count, target.options.partitions
            )
            ids = pa.array((store * PARTITIONS_PER_STORE + place).astype(np.int32))
            table = table.set_column(0, "partition", ids)
            appended = len(target.append_batch(table, durability=durability))
            yield Copied(appended, batch.num_rows - sound.num_rows)


def _to_append_again(
    message: Message,
    partition: int | None,
    filter_item: str | None,
    attributes: Mapping[str, str] | None,
    received_time: Time | None,
    *,
    by_key: bool,
) -> dict[str, Any]:
    """Return the arguments of an append of a message that was read; given ones come first."""
    if message.body is None or message.state != STATE_OK:
        text = f"the message at offset {message.offset} of {message.topic!r} is {message.state}"
        raise InvalidMessage(f"{text}: it cannot be appended again")
    own = ingest.own_attributes(message.attributes)
    # A number could be seconds; what was stored is ms, as a datetime is plain.
    in_doubt = message.received_time_ms in SECONDS_OR_MS
    time = message.received_time if in_doubt else message.received_time_ms
    return {
        "body": message.body,
        "partition": message.partition if partition is None and not by_key else partition,
        "filter_item": message.filter_item if filter_item is None else filter_item,
        "attributes": own if attributes is None else attributes,
        "received_time": time if received_time is None else received_time,
    }


def _checked_body(body: Any) -> bytes:
    """Return a body as bytes, or raise InvalidMessage."""
    if not isinstance(body, bytes | bytearray | memoryview):
        hint = ": encode the text" if isinstance(body, str) else ""
        raise InvalidMessage(f"a body is bytes, not {type(body).__name__}{hint}")
    if not body:
        raise InvalidMessage("a message needs a body of at least one byte")
    return bytes(body)


def _checked_time(value: Time, clock: Clock) -> int:
    """Return a received time in ms, or raise InvalidMessage."""
    given = time_ms(value, "received_time", clock)
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
