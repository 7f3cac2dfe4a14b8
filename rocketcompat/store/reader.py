"""A store that is open for reading, and the part of a writer's store that is the same.

Offsets are queue offsets; physical ones are named so. Times are ms since the epoch. Nothing here
writes; all of it is thread-safe. Not usable in a forked child: every call there raises StoreClosed.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NoReturn, Self, get_args

import pyarrow as pa

from rocketcompat.commitlog.reads import lost_message, record_at, record_over, store_timestamp_at
from rocketcompat.formats import STATE_OK, offset_of_id
from rocketcompat.messages import MessageRecord
from rocketcompat.reading.times import BOUNDARY_OF_COMPAT, Boundary, offset_by_time
from rocketcompat.store.opening_to_read import refresh
from rocketcompat.store.parts import Parts
from rocketcompat.store.stats import ReplicationState, StoreStats, run_time_info
from tubestore.clock import Time, checked_time_ms, time_ms
from tubestore.errors import (
    CorruptRecord,
    InvalidMessage,
    ReadOnlyStore,
    StoreClosed,
    TubeStoreError,
    documented,
    documented_rows,
)
from tubestore.values import Seconds, checked_seconds, checked_texts, checked_whole, whole_number

if TYPE_CHECKING:
    from rocketcompat.files.broker_config import BrokerConfig
    from rocketcompat.queues.batch_consume_queue import BatchConsumeQueue
    from rocketcompat.queues.consume_queue import ConsumeQueue
    from rocketcompat.reading.choice import Choice
    from rocketcompat.reading.columns import QueuePage, QueuesPage
    from rocketcompat.reading.keys import QueryMessageResult
    from rocketcompat.reading.pull import GetMessageResult, Where
    from rocketcompat.store.opening import Opened

#: The calls of a writer: in a reader they raise ReadOnlyStore.
WRITING = frozenset({
    "clean", "clean_staging", "deliver_due", "execute_delete_files_manually", "flush", "publish",
    "put_columns", "put_inner_batch", "put_message", "put_messages", "send_back",
    "set_arrival_listener", "set_replication",
})  # fmt: skip
_QUEUES_SCHEMA = pa.schema(
    [
        pa.field("topic", pa.string(), False),
        pa.field("queue_id", pa.int32(), False),
        pa.field("min_offset", pa.int64(), False),
        pa.field("max_offset", pa.int64(), False),
    ]
)


def _check_whole(least: int | None = None, **numbers: int | None) -> None:
    """Refuse what is not a whole number (`True` would be queue 1), or is below `least`."""
    for name, given in numbers.items():
        number = whole_number(given)
        if number is None:
            raise InvalidMessage(f"{name}: {given!r} is not a whole number")
        if least is not None and number < least:
            raise InvalidMessage(f"{name}: {number} is below {least}")


def _check_text(**texts: str | None) -> None:
    """Refuse what is not a text."""
    for name, text in texts.items():
        if not isinstance(text, str):
            raise InvalidMessage(f"{name}: {text!r} is not a text")


def checked_wait(physical_offset: int, timeout: Seconds | None, default: float) -> float:
    """Return how long a call waits for an offset, in seconds; refuse bad arguments of it."""
    checked_whole("physical_offset", physical_offset, least=None)
    return default if timeout is None else checked_seconds("timeout", timeout)


class StoreReader:
    """A RocketMQ store that is open for reading: `rocketcompat.open(root)`.

    It finds where the log ends and creates, locks and writes nothing; a writer may be at work
    beside it (`refresh`). All methods are thread-safe. Offsets are queue offsets; physical ones are
    named so.

    >>> import tempfile, rocketcompat
    >>> with tempfile.TemporaryDirectory() as root:
    ...     with rocketcompat.open(root, mode="w") as writer:
    ...         _ = writer.put_message(rocketcompat.Message("orders", b"hello", keys=["o-1"]))
    ...     with rocketcompat.open(root) as store:
    ...         print(store.get_message("orders", 0, 0).messages[0].body)
    ...         print([m.body for m in store.query_message("orders", "o-1")])
    b'hello'
    [b'hello']
    """

    mode: ClassVar[Literal["r", "w"]] = "r"
    _closed = True  # until it is open; for `__del__`

    def __init__(self, parts: Parts) -> None:
        self.root, self.config = parts.root, parts.config
        self._parts, self._pid = parts, os.getpid()
        self._stats = StoreStats(parts.commit_log, parts.clock, writable=parts.writable)
        self._closed = False

    @documented
    def get_message(
        self, topic: str, queue_id: int, offset: int, max_count: int = 32,
        tags: str | None = None, *, where: Where | None = None,
    ) -> GetMessageResult:  # fmt: skip
        """Pull messages of a queue from a queue offset (`getMessage`).

        `tags` is "A || B". Only hashes are compared, as in RocketMQ: to exclude messages of another
        tag with the same hash, compare the `tags` of the result. `where` is a filter on whole
        records: `where=lambda m: m.properties.get("region") == "eu"`.
        """
        self._check_open()
        _check_text(topic=topic, tags="" if tags is None else tags)
        _check_whole(queue_id=queue_id, offset=offset, max_count=max_count)
        if where is not None and not callable(where):
            raise InvalidMessage(f"where: {where!r} is not a function of a record")
        from rocketcompat.reading.pull import get_message

        result = get_message(self._parts, topic, queue_id, offset, max_count, tags, where=where)
        self._stats.got(result.entries)
        return result

    @documented
    def query_message(
        self, topic: str, key: str, max_count: int | None = None, begin: Time = 0,
        end: Time | None = None,
    ) -> QueryMessageResult:  # fmt: skip
        """Find messages by key or unique key, stored in [begin, end] (`queryMessage`).

        Both times are included, as in RocketMQ; None: no bound. They are aware datetimes, ISO
        texts, ages like "2h", or ms since the epoch.
        The newest `max_count` (None: `default_query_max_num`), `max_msgs_num_batch` at most.
        Checksums are compared; damaged records of the key's hash are in `problems`. A reader finds
        keys as far as the writer has written the index: after a kill the newest ones are missing.
        """
        self._check_open()
        from rocketcompat.reading.keys import query_message

        count = self.config.default_query_max_num if max_count is None else max_count
        _check_text(topic=topic, key=key)
        _check_whole(least=0, max_count=count)
        first, last = self._time("begin", begin), self._time("end", end)
        if first is None:
            raise InvalidMessage("begin: a time is needed; 0 is no bound")
        return query_message(self._parts, topic, key, count, first, last)

    @documented
    def query_messages(
        self, topic: str, keys: Sequence[str], max_count: int | None = None,
        *, verify: bool = False, tags: str | None = None, columns: Sequence[str] | None = None,
        begin: Time | None = None, before: Time | None = None,
    ) -> pa.Table:  # fmt: skip
        """Find messages by many keys at once: a table of `key` and the records' columns.

        Of each key the newest `max_count`, oldest first, in the order of the keys, bounded as
        in `query_message`; other keys of the same hash are left out. Columns as in
        `scan`. Records that cannot be read are left out; with
        `verify`, which compares the checksums of the bodies, the first of them is CorruptRecord.
        `tags`, `columns`, `begin` and `before` as in `scan`.
        """
        self._check_open()
        from rocketcompat.reading.columns import query_keys

        index = self._parts.index
        if index is None:
            raise InvalidMessage("this store has no index: look for keys by a scan")
        count = self.config.default_query_max_num if max_count is None else max_count
        _check_text(topic=topic)
        _check_whole(least=0, max_count=count)
        keys = checked_texts("keys", keys)
        count = min(count, self.config.max_msgs_num_batch)
        choice = self._choice(tags, begin, before, columns)
        log = self._parts.commit_log
        return query_keys(log, index, topic, keys, count, verify=verify, choice=choice)

    @documented
    def read_queue(
        self, topic: str, queue_id: int, offset: int = 0, limit: int = 1000,
        *, verify: bool = False, tags: str | None = None, columns: Sequence[str] | None = None,
        begin: Time | None = None, before: Time | None = None,
    ) -> QueuePage:  # fmt: skip
        """Read up to `limit` messages of a queue as one Arrow batch, bodies copied out.

        `page.batch`, and `page.next_offset` to go on from; a page ends where a file of the queue
        does. Messages that cannot be read are in `page.problems`. So are stand-ins of lost
        messages: their rows have the state "lost" and no body. An unknown queue is empty. As in
        RocketMQ no checksum of a body is compared without `verify`.

        `tags`, `columns`, `begin` and `before` as in `scan`. `limit` counts messages with the tags
        (their hashes); of these a page has those of the time, maybe none: go on while `next_offset`
        rises.
        """
        self._check_open()
        from rocketcompat.reading.columns import QueuePage, read_queue
        from rocketcompat.record.arrow import empty_batch

        _check_whole(offset=offset)
        _check_whole(least=0, limit=limit)
        queue = self._queue(topic, queue_id)
        choice = self._choice(tags, begin, before, columns)
        if queue is None:
            return QueuePage(choice.columns_of(empty_batch()), 0)
        log = self._parts.commit_log
        page = read_queue(log, queue, offset, limit, verify=verify, choice=choice)
        self._stats.got_rows(page.batch)
        if columns is None:
            return page
        return QueuePage(choice.columns_of(page.batch), page.next_offset, page.problems)

    @documented
    def read_queues(
        self, offsets: Mapping[tuple[str, int], int], limit: int = 1000, *, verify: bool = False,
        tags: str | None = None, columns: Sequence[str] | None = None,
        begin: Time | None = None, before: Time | None = None,
    ) -> QueuesPage:  # fmt: skip
        """As `read_queue`, of many queues in a call: from an offset each, up to `limit` of each.

        For queues of few messages: a call for each costs more than they do. Rows are in the order
        of the log; `page.next_offsets` has the same keys. Unknown queues are empty.
        """
        self._check_open()
        from rocketcompat.reading.columns import QueuesPage, read_queues
        from rocketcompat.record.arrow import empty_batch

        _check_whole(least=0, limit=limit)
        if not isinstance(offsets, Mapping):
            raise InvalidMessage(f"offsets: {offsets!r} is not a mapping of queues to offsets")
        for key, offset in offsets.items():
            if not isinstance(key, tuple) or len(key) != 2:
                raise InvalidMessage(f"offsets: {key!r} is not a pair of topic and queue id")
            _check_text(topic=key[0])
            _check_whole(queue_id=key[1], offset=offset)
        choice = self._choice(tags, begin, before, columns)
        queues = self._parts.queues
        found = {key: queues.find(*key) if queues is not None else None for key in offsets}
        known = {key: queue for key, queue in found.items() if queue is not None}
        following: dict[tuple[str, int], int] = dict.fromkeys(offsets, 0)
        if not known:
            return QueuesPage(choice.columns_of(empty_batch()), following)
        asked = [(queue, offsets[key]) for key, queue in known.items()]
        log = self._parts.commit_log
        batch, moved, problems = read_queues(log, asked, limit, verify=verify, choice=choice)
        following.update(zip(known, moved, strict=True))
        self._stats.got_rows(batch)
        return QueuesPage(choice.columns_of(batch), following, problems)

    def scan(
        self, start: int | None = None, end: int | None = None, *, verify: bool = False,
        tags: str | None = None, columns: Sequence[str] | None = None,
        begin: Time | None = None, before: Time | None = None,
    ) -> Iterator[pa.RecordBatch]:  # fmt: skip
        """Yield the whole log in order as Arrow batches, or its part [start, end).

        Physical offsets; `start` is where a record begins. `verify` compares the checksums of the
        bodies. Damage that opening found is passed over; other damage is CorruptRecord. Stand-ins
        of lost messages are rows with the state "lost" and no body. Columns: the fields of the
        record, its hosts and properties as stored (bytes), `topic`, `body` and `state`.

        `tags` ("paid || sent") are compared as texts, so that no other tag of the same hash is
        among the rows. Messages stored in [begin, before): aware datetimes, ISO texts, ages like
        "2h", or ms since the epoch. `columns` are names of the schema; without "body" the bodies
        are not copied.
        """
        self._check_open()
        from rocketcompat.reading.columns import scan_log

        _check_whole(least=0, start=0 if start is None else start, end=0 if end is None else end)
        choice = self._choice(tags, begin, before, columns)
        rows = scan_log(self._parts.commit_log, start, end, verify=verify, choice=choice)
        return documented_rows(rows, self.root)

    @documented
    def look_message(self, physical_offset: int) -> MessageRecord:
        """Return the record that starts at a physical offset (`lookMessageByOffset`).

        OffsetOutOfRange outside the log, CorruptRecord where no sound record starts, or a stand-in
        of a lost message.
        """
        self._check_open()
        _check_whole(physical_offset=physical_offset)
        log = self._parts.commit_log
        try:
            record = record_at(log, physical_offset)
        except CorruptRecord as error:
            start = record_over(log, physical_offset)
            if start is None:
                raise
            reason = f"no record begins here: it is inside the one at physical offset {start}"
            raise CorruptRecord(error.path, error.position, reason) from None
        if record.state != STATE_OK:
            raise lost_message(record)
        return record

    @documented
    def look_message_by_id(self, msg_id: str) -> MessageRecord:
        """Return the record of an offset message id; `look_message`'s errors.

        InvalidMessage for what is no such id. The host in it is not compared: stores may move.
        """
        try:
            offset = offset_of_id(msg_id)
        except ValueError as error:
            raise InvalidMessage(f"msg_id: {error}") from None
        return self.look_message(offset)

    @documented
    def commit_log_data(self, physical_offset: int, size: int | None = None) -> bytes:
        """Return the log's bytes from a physical offset to the end of that file.

        At most `size`; empty outside the log. This is what a slave is sent.
        """
        self._check_open()
        _check_whole(physical_offset=physical_offset)
        file_size = self.config.mapped_file_size_commit_log
        left = file_size - physical_offset % file_size
        if size is not None:
            _check_whole(size=size, least=0)
            left = min(left, size)
        return self._parts.commit_log.read_at(physical_offset, left)

    def _choice(
        self, tags: str | None, begin: Time | None, before: Time | None,
        columns: Sequence[str] | None,
    ) -> Choice:  # fmt: skip
        """Return which records are wanted; InvalidMessage or TypeError names a wrong argument."""
        from rocketcompat.reading.choice import Choice

        first, behind = self._time("begin", begin), self._time("before", before)
        return Choice.checked(tags, first, behind, columns)

    def _time(self, name: str, time: Time | None) -> int | None:
        """Return a time in ms; InvalidMessage names the argument."""
        try:
            return time_ms(time, name, self._parts.clock)
        except (TypeError, ValueError) as error:
            raise InvalidMessage(str(error)) from None

    def _queue(self, topic: str, queue_id: int) -> ConsumeQueue | BatchConsumeQueue | None:
        _check_text(topic=topic)
        _check_whole(queue_id=queue_id)
        queues = self._parts.queues
        return queues.find(topic, queue_id) if queues is not None else None

    @documented
    def min_offset_in_queue(self, topic: str, queue_id: int) -> int:
        """Return the first queue offset that is kept; 0 for an unknown queue."""
        self._check_open()
        queue = self._queue(topic, queue_id)
        return queue.min_offset if queue else 0

    @documented
    def max_offset_in_queue(self, topic: str, queue_id: int) -> int:
        """Return the queue offset behind the last dispatched message; 0 for an unknown queue."""
        self._check_open()
        queue = self._queue(topic, queue_id)
        return queue.max_offset if queue else 0

    @documented
    def queue_table(self) -> pa.Table:
        """Return a row a queue: topic, queue_id, min_offset, max_offset."""
        self._check_open()
        queues = self._parts.queues
        rows = [
            {
                "topic": queue.topic,
                "queue_id": queue.queue_id,
                "min_offset": queue.min_offset,
                "max_offset": queue.max_offset,
            }
            for queue in (queues.all_queues() if queues is not None else ())
        ]
        return pa.Table.from_pylist(rows, _QUEUES_SCHEMA)

    @documented
    def message_store_timestamp(self, topic: str, queue_id: int, offset: int) -> int | None:
        """Return the store time of a queue's message; None if there is none."""
        self._check_open()
        _check_whole(offset=offset)
        queue = self._queue(topic, queue_id)
        unit = queue.unit(offset) if queue else None
        return (
            None
            if unit is None
            else store_timestamp_at(self._parts.commit_log, unit.physical_offset)
        )

    @documented
    def offset_in_queue_by_time(
        self, topic: str, queue_id: int, time: Time, boundary: Boundary | None = None
    ) -> int:
        """Return the queue offset of a store time (`getOffsetInQueueByTime`).

        `boundary`: "lower" (the first message stored at or after `time`), "upper" (the last one
        at or before it) or "nearest" of both. None: the one of
        `config.compat` (4.9.8 nearest, 5.3.3 lower). 0 for an unknown queue.
        """
        self._check_open()
        milliseconds = checked_time_ms(time, clock=self._parts.clock)
        if boundary is not None and boundary not in get_args(Boundary):
            raise InvalidMessage(f"boundary: {boundary!r} is none of lower, upper and nearest")
        queue = self._queue(topic, queue_id)
        if queue is None:
            return 0

        def stored(offset: int) -> int | None:
            unit = queue.unit(offset)
            return None if unit is None else store_timestamp_at(self._parts.commit_log, unit[0])

        chosen = boundary or BOUNDARY_OF_COMPAT[self.config.compat]
        return offset_by_time(queue.min_offset, queue.max_offset, milliseconds, chosen, stored)

    @documented
    def earliest_message_time(self, topic: str | None = None, queue_id: int = 0) -> int | None:
        """Return the store time of the oldest message of the log or a queue; None if empty."""
        self._check_open()
        if topic is None:
            log = self._parts.commit_log
            return store_timestamp_at(log, log.min_offset)
        return self.message_store_timestamp(
            topic, queue_id, self.min_offset_in_queue(topic, queue_id)
        )

    @property
    def min_physical_offset(self) -> int:
        """Physical offset of the log's first byte."""
        return self._parts.commit_log.min_offset

    @property
    def max_physical_offset(self) -> int:
        """Physical offset behind the log's last record."""
        return self._parts.commit_log.max_offset

    # -- the store itself

    @documented
    def wait_dispatched(self, physical_offset: int, timeout: Seconds | None = None) -> bool:
        """Return True if the log has the message at this physical offset, as of `refresh`."""
        self._check_open()
        checked_wait(physical_offset, timeout, 0.0)
        return self._parts.commit_log.max_offset > physical_offset

    @property
    def dispatch_behind_bytes(self) -> int:
        """Bytes of the log that queues, index and shards do not know yet; 0 in a reader."""
        return 0

    @documented
    def stats(self) -> dict[str, Any]:
        """Return run-time information, as RocketMQ's `getRuntimeInfo` has it, by section.

        `totals` since the store was opened (`put_…` of this writer; `get_…` of `get_message`,
        `read_queue` and `read_queues`), `rates` a second over the last 10, 60 and 600
        seconds, `log` (physical offsets, bytes that wait, `failed`, `full` while writes find no
        room, `refusing` while the disk is too full for more), `disk` (used percent), `queues`,
        `index`, `deleted_files`. Of a writer also `dispatch` (`full`, `stopped`), `structures`
        (what follows the log: how far each is, and whether it stopped), `services` (whether
        their threads run, or stopped by themselves). With a server, or as a mirror, `role`,
        `replication` (`connections`, `bytes`, `lag_bytes`) and `slaves` (by peer).
        """
        self._check_open()
        return run_time_info(self._parts, self._stats, self._opened_to_write())

    @property
    def broker_config(self) -> BrokerConfig:
        """The broker's files below the root's `config`: topics, subscription groups, offsets."""
        return self._parts.broker_config

    def show_replication(self, described: Callable[[], ReplicationState] | None) -> None:
        """Let `stats` contain what replicates the store; `rocketcompat.ha` calls it."""
        self._stats.replication = described

    @property
    def problems(self) -> list[TubeStoreError]:
        """What is wrong and was not raised: damage passed over, structures that stopped."""
        gaps = self._parts.commit_log.gaps
        return [*(gap.error() for gap in gaps), *self._parts.problems]

    @documented
    def refresh(self) -> None:
        """See what a writer has appended since; a writer itself sees it anyway."""
        self._check_open()
        self._refresh()

    @documented
    def close(self) -> None:
        """Close the store. Harmless when repeated.

        A writer hands everything over, syncs it, writes the marks, removes `abort` and releases
        the lock. A failed sync is raised when all is given back; `abort` stays then, and the next
        open verifies.
        """
        if self._closed:
            return
        self._closed = True
        if os.getpid() == self._pid:
            self._close_parts()

    shutdown = close

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __del__(self) -> None:
        if not self._closed and os.getpid() == self._pid:
            warnings.warn(f"store {self.root!r} was not closed", ResourceWarning, stacklevel=2)

    def __reduce__(self) -> NoReturn:
        raise TypeError("an open store cannot be pickled; pickle its path")

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"mode={self.mode!r}"
        return f"<{type(self).__name__} {self.root!r} {state}>"

    # -- what a writer does otherwise

    def _opened_to_write(self) -> Opened | None:
        """Return the services; a reader has none."""
        return None

    def _refresh(self) -> None:
        refresh(self._parts)

    def _close_parts(self) -> None:
        self._parts.close()

    def _check_open(self) -> None:
        """Raise StoreClosed unless the store is open in this process."""
        if self._closed or os.getpid() != self._pid:
            raise StoreClosed(f"{self.root}: the store is closed")

    def _refuse(self, *given: object, **named: object) -> NoReturn:
        self._check_open()
        raise ReadOnlyStore(f"{self.root}: was opened with mode='r'")

    def _former_parts(self) -> dict[str, Any]:
        """Return the attributes that were public in 0.1."""
        parts = self._parts
        return {
            "commit_log": parts.commit_log,
            "queues": parts.queues,
            "index": parts.index,
            "tube": parts.tube,
        }

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name in WRITING:
                return self._refuse
            found = {} if name.startswith("_") else self._former_parts()
            if name not in found:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            text = f"{type(self).__name__}.{name} is not public and goes with the next release"
            warnings.warn(text, DeprecationWarning, stacklevel=2)
            return found[name]
