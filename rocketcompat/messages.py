"""What goes in and what comes out: messages, results and their statuses. Touches no file.

`DispatchBatch` is here too, since the structures that take it are below the dispatcher.
Statuses have RocketMQ's names (`PutMessageStatus`, `GetMessageStatus`).
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from rocketcompat.formats import (
    COMPRESSION_LZ4,
    COMPRESSION_ZSTD,
    LOST_MARK,
    PROPERTY_CRC,
    STATE_LOST,
    STATE_OK,
    SYS_FLAG_COMPRESSED,
    SYS_FLAG_COMPRESSION_MASK,
    SYS_FLAG_TRANSACTION_MASK,
    TRANSACTION_COMMIT,
    TRANSACTION_NOT,
    TRANSACTION_ROLLBACK,
    decode_host,
    message_id,
    parse_properties,
)
from tubestore.errors import InvalidMessage

if TYPE_CHECKING:
    import numpy as np

    from tubestore.clock import Time

    Int64s = np.ndarray[Any, np.dtype[np.int64]]
    Int32s = np.ndarray[Any, np.dtype[np.int32]]


#: A body that would take more is left as it is: a few bytes can unpack to gigabytes.
UNPACKED_SIZE_MAX = 64 << 20
_CHUNK_BYTES = 1 << 20
_ARROW_CODECS = {COMPRESSION_LZ4: "lz4", COMPRESSION_ZSTD: "zstd"}
#: Properties that belong to a record's place.
_OF_PLACE = frozenset({"INNER_MULTI_QUEUE_OFFSET", PROPERTY_CRC})
#: Those of its way to its topic, which another topic does not have.
_OF_TOPIC = frozenset({"REAL_TOPIC", "REAL_QID"})
#: The producer's address of messages that name none.
BORN_HOST = "127.0.0.1:0"
#: A `delay_level`: the message is stored as it is, even with a DELAY among its properties.
NOT_DELAYED = -1


def unpack_body(body: bytes, sys_flag: int, size_max: int = UNPACKED_SIZE_MAX) -> bytes | None:
    """Return a body as the producer had it; None if it is flagged as compressed and is not.

    >>> unpack_body(zlib.compress(b"hello"), SYS_FLAG_COMPRESSED), unpack_body(b"hello", 0)
    (b'hello', b'hello')
    """
    if not sys_flag & SYS_FLAG_COMPRESSED:
        return body
    import pyarrow as pa

    codec = _ARROW_CODECS.get(sys_flag & SYS_FLAG_COMPRESSION_MASK)
    try:
        if codec is None:
            unpacker = zlib.decompressobj()
            found = unpacker.decompress(body, size_max)
            return found if unpacker.eof else None
        with pa.CompressedInputStream(pa.BufferReader(body), codec) as stream:
            chunks, size = [], 0
            while size <= size_max and (chunk := stream.read(_CHUNK_BYTES)):
                chunks.append(chunk)
                size += len(chunk)
            return b"".join(chunks) if size <= size_max else None
    except (zlib.error, OSError, pa.ArrowException):
        return None


@dataclass(slots=True)
class Message:
    """A message to be put.

    `properties` is either a mapping, to which `tags` and `keys` are added, or RocketMQ's
    property string as it is to be on disk (then `tags` and `keys` must be left out).
    `born_timestamp` is an aware datetime, ISO text with a zone, an age ("2h", a timedelta) or ms
    since the epoch; without it, it is the time of the put.
    Hosts are "address:port".

    >>> Message("orders", b"...", tags="paid", keys=["o-1"], properties={"region": "eu"}).queue_id
    0
    """

    topic: str
    body: bytes = b""
    tags: str | None = None
    keys: str | Sequence[str] | None = None
    properties: Mapping[str, str] | str | None = None
    queue_id: int = 0
    flag: int = 0
    sys_flag: int = 0
    born_timestamp: Time | None = None
    born_host: str = BORN_HOST
    #: None: the store's (`MessageStoreConfig.store_host`).
    store_host: str | None = None
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0
    #: Above 0 the message is delivered later, by `messageDelayLevel`. Below 0
    #: (`NOT_DELAYED`) it is stored as it is, also with a DELAY among its properties.
    delay_level: int = 0


@dataclass(slots=True)
class BatchItem:
    """A message of a batch; `properties` as in `Message`."""

    body: bytes = b""
    tags: str | None = None
    keys: str | Sequence[str] | None = None
    properties: Mapping[str, str] | str | None = None
    flag: int = 0


@dataclass(slots=True)
class MessageBatch:
    """Messages of one topic and queue that are put together (`MessageExtBatch`).

    Each becomes an ordinary record. What the items leave out is the batch's,
    and the batch's properties are put behind each item's.

    >>> import tempfile, rocketcompat
    >>> batch = MessageBatch("orders", [BatchItem(b"one", tags="paid"), BatchItem(b"two")])
    >>> with tempfile.TemporaryDirectory() as root, rocketcompat.open(root, mode="w") as store:
    ...     put = store.put_messages(batch)
    ...     print(put.status, put.queue_offset, len(put.physical_offsets))
    PutStatus.PUT_OK 0 2
    """

    topic: str
    items: Sequence[BatchItem]
    queue_id: int = 0
    properties: Mapping[str, str] | str | None = None
    sys_flag: int = 0
    born_timestamp: Time | None = None
    born_host: str = BORN_HOST
    #: None: the store's (`MessageStoreConfig.store_host`).
    store_host: str | None = None
    reconsume_times: int = 0


@dataclass(frozen=True, slots=True)
class MessageRecord:
    """A record of the CommitLog, decoded; what was stored, unchanged.

    >>> import tempfile, rocketcompat
    >>> with tempfile.TemporaryDirectory() as root, rocketcompat.open(root, mode="w") as store:
    ...     put = store.put_message(Message("orders", b"...", tags="paid"))
    ...     record = store.look_message(put.physical_offset)
    ...     print(record.topic, record.body, record.properties, record.state)
    orders b'...' {'TAGS': 'paid'} ok
    """

    physical_offset: int
    size: int
    version: int
    topic: str
    queue_id: int
    queue_offset: int
    flag: int
    sys_flag: int
    born_timestamp: int
    store_timestamp: int
    born_host_bytes: bytes
    store_host_bytes: bytes
    reconsume_times: int
    prepared_transaction_offset: int
    body_crc: int
    properties_text: str
    body: bytes

    @property
    def state(self) -> str:
        """`STATE_OK`, or `STATE_LOST` for what `repair` wrote in the place of a lost message."""
        return STATE_LOST if self.prepared_transaction_offset == LOST_MARK else STATE_OK

    @property
    def properties(self) -> dict[str, str]:
        """The pairs of the property string."""
        return parse_properties(self.properties_text)

    def payload(self, size_max: int = UNPACKED_SIZE_MAX) -> bytes:
        """Return the body as the producer had it: unpacked, if it was compressed.

        InvalidMessage if it cannot be unpacked, or has more than `size_max` bytes then.
        """
        found = unpack_body(self.body, self.sys_flag, size_max)
        if found is None:
            raise InvalidMessage(
                f"the body at physical offset {self.physical_offset} cannot be unpacked, or has"
                f" more than {size_max} bytes (size_max) then; `body` has its {len(self.body)}"
            )
        return found

    def message(self, topic: str | None = None, queue_id: int | None = None) -> Message:
        """Return the message to put again, in its topic and queue or in others.

        With its properties, flags, times and the producer's host; compressed bodies stay so.
        InvalidMessage for stand-ins of lost messages, and for records of several messages.
        """
        pairs = self.properties
        if self.state != STATE_OK or "INNER_NUM" in pairs:
            kind = "a batch of messages" if self.state == STATE_OK else "a lost message"
            raise InvalidMessage(f"physical offset {self.physical_offset} is {kind}: not put again")
        left_out = _OF_PLACE if topic in (None, self.topic) else _OF_PLACE | _OF_TOPIC
        return Message(
            self.topic if topic is None else topic,
            self.body,
            properties={name: value for name, value in pairs.items() if name not in left_out},
            queue_id=self.queue_id if queue_id is None else queue_id,
            flag=self.flag,
            sys_flag=self.sys_flag & ~SYS_FLAG_TRANSACTION_MASK,
            born_timestamp=self.born_timestamp,
            born_host=self.born_host,
            reconsume_times=self.reconsume_times,
            delay_level=NOT_DELAYED,
        )

    @property
    def born_host(self) -> str:
        """The producer's "address:port"."""
        return decode_host(self.born_host_bytes)

    @property
    def store_host(self) -> str:
        """The broker's "address:port"."""
        return decode_host(self.store_host_bytes)

    @property
    def msg_id(self) -> str:
        """RocketMQ's offset message id."""
        return message_id(self.store_host_bytes, self.physical_offset)


class PutStatus(Enum):
    """What became of a put (`PutMessageStatus`).

    A result has one of the first four; a refusal is raised as an exception.
    """

    PUT_OK = "PUT_OK"
    #: Stored, but the sync did not end within `sync_flush_timeout`.
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    #: Stored on a synchronous master, but no slave is connected, or all are too far behind.
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"
    #: Stored on a synchronous master, but no slave acknowledged it in time.
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    #: The message, its topic or its properties cannot be stored.
    MESSAGE_ILLEGAL = "MESSAGE_ILLEGAL"
    PROPERTIES_SIZE_EXCEEDED = "PROPERTIES_SIZE_EXCEEDED"
    #: Another put has been writing for longer than `os_page_cache_busy_time_out_mills`.
    OS_PAGE_CACHE_BUSY = "OS_PAGE_CACHE_BUSY"
    #: No room for the next file.
    CREATE_MAPPED_FILE_FAILED = "CREATE_MAPPED_FILE_FAILED"
    #: Closed, failed, opened to read, or the disk is above its warning level.
    SERVICE_NOT_AVAILABLE = "SERVICE_NOT_AVAILABLE"
    LMQ_CONSUME_QUEUE_NUM_EXCEEDED = "LMQ_CONSUME_QUEUE_NUM_EXCEEDED"
    UNKNOWN_ERROR = "UNKNOWN_ERROR"


class GetMessageStatus(Enum):
    """What a pull found (`GetMessageStatus`)."""

    FOUND = "FOUND"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
    MESSAGE_WAS_REMOVING = "MESSAGE_WAS_REMOVING"
    OFFSET_FOUND_NULL = "OFFSET_FOUND_NULL"
    OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"
    OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"
    OFFSET_TOO_SMALL = "OFFSET_TOO_SMALL"
    NO_MATCHED_LOGIC_QUEUE = "NO_MATCHED_LOGIC_QUEUE"
    NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"


class PutResult(NamedTuple):
    """The place of a message, and what it survives.

    >>> import tempfile, rocketcompat
    >>> with tempfile.TemporaryDirectory() as root, rocketcompat.open(root, mode="w") as store:
    ...     put = store.put_message(Message("orders", b"..."))
    ...     print(put.status, put.physical_offset, put.queue_offset)
    PutStatus.PUT_OK 0 0
    """

    status: PutStatus
    physical_offset: int
    queue_offset: int
    size: int
    store_timestamp: int
    store_host_bytes: bytes

    @property
    def msg_id(self) -> str:
        """RocketMQ's offset message id."""
        return message_id(self.store_host_bytes, self.physical_offset)


class PutBatchResult(NamedTuple):
    """The places of the messages of a batch, in order; all of one queue."""

    status: PutStatus
    physical_offsets: list[int]
    sizes: list[int]
    #: Of the first; the others follow.
    queue_offset: int
    store_timestamp: int
    store_host_bytes: bytes

    @property
    def msg_id(self) -> str:
        """RocketMQ's offset message ids, joined by commas."""
        return ",".join(message_id(self.store_host_bytes, at) for at in self.physical_offsets)


def has_queue_unit(sys_flags: Any) -> Any:
    """Return which records with these sysFlags (int or column) are in a queue."""
    kind = sys_flags & SYS_FLAG_TRANSACTION_MASK
    return (kind == TRANSACTION_NOT) | (kind == TRANSACTION_COMMIT)


def has_index_items(sys_flags: Any) -> Any:
    """True if records with these sysFlags are indexed: all but rollbacks."""
    return (sys_flags & SYS_FLAG_TRANSACTION_MASK) != TRANSACTION_ROLLBACK


class Records(Protocol):
    """The decoded records of a batch, column by column, each made when it is asked for.

    `columns.RecordColumns` is the one implementation.
    """

    def column(self, name: str) -> Any:
        """A fixed field of `formats.MESSAGE_HEADS` as a numpy column in native order."""

    def bodies(self) -> Any:
        """The bodies, Arrow large_binary."""

    def topics(self) -> Any:
        """The topics, Arrow dictionary of strings."""

    def properties(self) -> Any:
        """The property strings as stored, Arrow large_binary."""


@dataclass(frozen=True, slots=True)
class DispatchBatch:
    """Consecutive records of the CommitLog, as columns, on their way to the followers.

    Rows are in log order; positions and sizes are bytes. `start` and `end` are the physical
    offsets that the batch covers: everything below `end` has been handed over with it.
    Prepared and rolled back records are rows too: see `queue_rows`.
    """

    start: int
    end: int
    physical_offsets: Int64s
    sizes: Int32s
    #: The queues that occur, and for each row which of them it is.
    queue_keys: list[tuple[str, int]]
    queue_codes: Int32s
    queue_offsets: Int64s
    tags_codes: Int64s
    store_timestamps: Int64s
    sys_flags: Int32s
    #: One entry a key, rows ascending: UNIQ_KEY first, then KEYS in order; rollbacks have none.
    key_rows: Int64s
    key_hashes: Int32s
    #: None in batches that were put together from several (`batch.merged`).
    records: Records | None
    #: Further units of rows (multi-dispatch): rows ascending, which queue, queue offset.
    copy_rows: Int64s
    copy_codes: Int32s
    copy_offsets: Int64s
    #: (physical offset, bytes) of the last damaged region before this batch that was skipped;
    #: queue offsets that are missing before a row's are given a unit that points there.
    damaged: tuple[int, int] | None = None
    #: How many messages each row holds in a topic of batches; None: one each.
    message_counts: Int64s | None = None

    def __len__(self) -> int:
        return len(self.physical_offsets)

    @property
    def queue_rows(self) -> Any:
        """Mask of the rows that get a queue unit."""
        return has_queue_unit(self.sys_flags)


@dataclass(slots=True)
class ReadyBatches:
    """The part [base, end) of the log as batches that need not be read from it, in its order.

    Each is made when it is taken; `base` goes along.
    """

    base: int
    end: int
    batches: Iterator[DispatchBatch]
