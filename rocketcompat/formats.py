"""RocketMQ's records, byte for byte, and the constants of its store directory.

Source of the formats: `CommitLog`, `ConsumeQueue`, `IndexFile`, `StoreCheckpoint`,
`MessageDecoder`, `MessageSysFlag` of RocketMQ 4.9.8 and 5.3.3. These
constants are what is on disk; they may not change. All numbers are signed and big-endian.

A CommitLog record is a head (one of four, since a host takes 8 bytes for IPv4 and 20 for
IPv6), the body, the topic (its length first: one byte, two in a V2 record), and the
properties (two bytes of length first). Where a record does not fit with 8 bytes to spare,
the rest of the file is closed with a `BLANK`.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from tubestore.core.layout import Field, Layout

MAGIC_V1 = -626843481  # 0xDAA320A7
MAGIC_V2 = -626843477  # 0xDAA320AB: the topic's length takes two bytes (since 5.1.0)
MAGIC_BLANK = -875286124  # 0xCBD43194
#: What BoltMQ, a port to Go, writes instead of these: the operators bind otherwise there.
BOLTMQ_MAGIC = -626843465  # 0xDAA320B7
BOLTMQ_MAGIC_BLANK = -875286108  # 0xCBD431A4
#: The bytes that V1 and V2 have in common, for a search of a damaged region.
MAGIC_PREFIX = b"\xda\xa3\x20"
BODY_CRC_MASK = 0x7FFFFFFF

# sysFlag. The store sets the two host bits; the rest is the caller's.
SYS_FLAG_COMPRESSED = 0x1
SYS_FLAG_MULTI_TAGS = 0x2
SYS_FLAG_TRANSACTION_MASK = 0xC
TRANSACTION_NOT = 0x0
TRANSACTION_PREPARED = 0x4
TRANSACTION_COMMIT = 0x8
TRANSACTION_ROLLBACK = 0xC
SYS_FLAG_BORN_HOST_V6 = 0x10
SYS_FLAG_STORE_HOST_V6 = 0x20
#: How a compressed body was packed (since 5.0; before, and for 0, it is zlib's).
SYS_FLAG_COMPRESSION_MASK = 0x700
COMPRESSION_LZ4 = 0x100
COMPRESSION_ZSTD = 0x200
COMPRESSION_ZLIB = 0x300
#: 5.x: the body holds several messages.
SYS_FLAG_NEED_UNWRAP = 0x40
SYS_FLAG_INNER_BATCH = 0x80
SYS_FLAG_HOSTS_SHIFT = 4
SYS_FLAG_HOSTS_MASK = 0x3

HOST_V4_SIZE = 8
HOST_V6_SIZE = 20
PORT_SIZE = 4


def _message_head(size: int, born_host: int, store_host: int) -> Layout:
    """Lay out the fixed fields before the body for the given widths of the two hosts."""
    widths = {HOST_V4_SIZE: "v4", HOST_V6_SIZE: "v6"}
    return Layout(
        f"MessageHead_{widths[born_host]}_{widths[store_host]}",
        size,
        (
            Field("total_size", "i4", "Bytes of the whole record, this field included."),
            Field("magic_code", "i4", "`DAA320A7` (V1) or `DAA320AB` (V2)."),
            Field("body_crc", "i4", "CRC-32 of the body AND `0x7FFFFFFF`; 0 without a body."),
            Field("queue_id", "i4", "Which queue of the topic."),
            Field("flag", "i4", "The application's; opaque."),
            Field("queue_offset", "i8", "Number of the unit in the queue; 0 if prepared/rollback."),
            Field("physical_offset", "i8", "Position of this record's first byte in the log."),
            Field("sys_flag", "i4", "Compression, transaction type, widths of the hosts."),
            Field("born_timestamp", "i8", "When the producer made it, ms since the epoch."),
            Field("born_host", f"b{born_host}", "The producer's address, then its port (4 bytes)."),
            Field("store_timestamp", "i8", "When the store took it, ms since the epoch."),
            Field("store_host", f"b{store_host}", "The broker's address, then its port."),
            Field("reconsume_times", "i4", "How often it was consumed again."),
            Field("prepared_transaction_offset", "i8", "Offset of the half message, or 0."),
            Field("body_length", "i4", "Bytes of the body, which follows."),
        ),
    )


#: Indexed by `hosts_of(sys_flag)`: bit 0 set if the born host is IPv6, bit 1 if the store host is.
MESSAGE_HEADS = (
    _message_head(88, HOST_V4_SIZE, HOST_V4_SIZE),
    _message_head(100, HOST_V6_SIZE, HOST_V4_SIZE),
    _message_head(100, HOST_V4_SIZE, HOST_V6_SIZE),
    _message_head(112, HOST_V6_SIZE, HOST_V6_SIZE),
)
MESSAGE_HEAD = MESSAGE_HEADS[0]

#: What every variant starts with; enough to follow the chain and to choose the variant.
MESSAGE_PREFIX = Layout("MessagePrefix", 48, MESSAGE_HEAD.fields[:9])

TOPIC_LENGTH_SIZE = {MAGIC_V1: 1, MAGIC_V2: 2}
PROPERTIES_LENGTH_SIZE = 2

BLANK = Layout(
    "Blank",
    8,
    (
        Field("total_size", "i4", "Bytes from here to the end of the file."),
        Field("magic_code", "i4", "`CBD43194`."),
    ),
)

#: A message in the body of a batch; length and text of its properties follow its body.
BATCH_ITEM = Layout(
    "BatchItem",
    20,
    (
        Field("total_size", "i4", "Bytes of the item, this field included."),
        Field("magic_code", "i4", "0."),
        Field("body_crc", "i4", "0; the store computes it."),
        Field("flag", "i4", "The application's; opaque."),
        Field("body_length", "i4", "Bytes of the body, which follows."),
    ),
)

CQ_UNIT = Layout(
    "CqUnit",
    20,
    (
        Field("physical_offset", "i8", "Position of the record in the CommitLog."),
        Field("size", "i4", "Bytes of the record."),
        Field("tags_code", "i8", "Java hash of the tag (sign-extended), 0 without one."),
    ),
)
#: A unit of a queue's extension, without the bitmap that may follow it.
CQ_EXT_UNIT = Layout(
    "CqExtUnit",
    20,
    (
        Field("size", "i2", "Bytes of the unit, the bitmap included."),
        Field("tags_code", "i8", "As in a queue's unit."),
        Field("store_timestamp", "i8", "When the store took the message, ms since the epoch."),
        Field("bitmap_size", "i2", "Bytes of the bitmap, which follows."),
    ),
)
#: A unit of a queue of inner batches (5.x).
BATCH_CQ_UNIT = Layout(
    "BatchCqUnit",
    46,
    (
        Field("physical_offset", "i8", "Position of the record in the CommitLog."),
        Field("size", "i4", "Bytes of the record."),
        Field("tags_code", "i8", "As in a queue's unit."),
        Field("store_timestamp", "i8", "When the store took it, ms since the epoch."),
        Field("base_offset", "i8", "Queue offset of the first message in it."),
        Field("batch_size", "i2", "How many messages it holds."),
        Field("compacted_offset", "i4", "-1."),
        Field("reserved", "i4", "0."),
    ),
)
#: A unit before the first of a queue that starts late: physical offset 0 and this size.
CQ_PRE_FILL_SIZE = 0x7FFFFFFF

INDEX_HEADER = Layout(
    "IndexHeader",
    40,
    (
        Field("begin_timestamp", "i8", "Store time of the first item, ms."),
        Field("end_timestamp", "i8", "Store time of the last item, ms."),
        Field("begin_physical_offset", "i8", "Physical offset of the first item."),
        Field("end_physical_offset", "i8", "Physical offset of the last item."),
        Field("hash_slot_count", "i4", "Slots in use."),
        Field("index_count", "i4", "Number of the next free item: items in use + 1."),
    ),
)
INDEX_SLOT_SIZE = 4
INDEX_ITEM = Layout(
    "IndexItem",
    20,
    (
        Field("key_hash", "i4", "abs of the Java hash of `topic#key`."),
        Field("physical_offset", "i8", "Position of the record in the CommitLog."),
        Field("time_diff_seconds", "i4", "Store time - begin_timestamp, in whole seconds."),
        Field("previous", "i4", "Number of the item before it in the same slot, 0 if none."),
    ),
)

CHECKPOINT = Layout(
    "Checkpoint",
    40,
    (
        Field("physic_msg_timestamp", "i8", "Store time up to which the CommitLog is synced."),
        Field("logics_msg_timestamp", "i8", "Store time up to which the queues are synced."),
        Field("index_msg_timestamp", "i8", "Store time up to which the index is synced."),
        Field("master_flushed_offset", "i8", "Since 5.0.0."),
        Field("confirm_physical_offset", "i8", "Since 5.1.1."),
    ),
)
CHECKPOINT_FILE_SIZE = 4096


class MessageColumn(NamedTuple):
    """A column of messages as rows: in dumps, Arrow, Spark, exports, and what a put takes."""

    name: str
    #: As the command line prints it; "ms" is a time, an int64.
    kind: Literal["text", "int32", "int64", "ms", "map", "bytes"]
    meaning: str
    #: True for a field of `MESSAGE_HEADS` with the same name and value.
    is_field: bool = False
    #: True if the caller of a put may give it.
    is_given: bool = False


#: The columns of a message, in the order in which they are shown; every list of them is made here.
MESSAGE_COLUMNS = (
    MessageColumn("topic", "text", "Its topic.", is_given=True),
    MessageColumn("queue_id", "int32", "Its queue in the topic.", True, True),
    MessageColumn("queue_offset", "int64", "Its number in the queue.", True),
    MessageColumn("physical_offset", "int64", "Position of its first byte in the CommitLog."),
    MessageColumn("store_size", "int32", "Bytes of the record."),
    MessageColumn("version", "int32", "1, or 2 for topics of more than 127 bytes."),
    MessageColumn("flag", "int32", "The application's.", True, True),
    MessageColumn("sys_flag", "int32", "RocketMQ's: compression, transaction, hosts.", True, True),
    MessageColumn("born_timestamp", "ms", "ms since the epoch.", True, True),
    MessageColumn("store_timestamp", "ms", "ms since the epoch.", True),
    MessageColumn("born_host", "text", "address:port.", is_given=True),
    MessageColumn("store_host", "text", "address:port.", is_given=True),
    MessageColumn("reconsume_times", "int32", "How often it was consumed again.", True, True),
    MessageColumn("prepared_transaction_offset", "int64", "Of the half message, or 0.", True, True),
    MessageColumn("body_crc", "int32", "CRC-32 of the body AND 0x7FFFFFFF.", True),
    MessageColumn("properties", "map", "Tags, keys and the rest.", is_given=True),
    MessageColumn("body", "bytes", "As stored: compressed if the producer did.", is_given=True),
    MessageColumn("msg_id", "text", "RocketMQ's offset message id, hex."),
    MessageColumn("state", "text", '"ok", or why it cannot be read; then the body is null.'),
)
#: The columns that are fields of the record's head.
MESSAGE_FIELD_COLUMNS = tuple(column.name for column in MESSAGE_COLUMNS if column.is_field)
#: Those that a comparison of two stores compares, and may leave out.
COMPARED_COLUMNS = (
    "flag", "sys_flag", "born_timestamp", "store_timestamp", "reconsume_times", "body_crc", "body",
    "properties", "born_host", "store_host",
)  # fmt: skip
#: The columns that the caller of a put may give; `tags`, `keys`, `delay_level` are not stored so.
GIVEN_COLUMNS = tuple(column.name for column in MESSAGE_COLUMNS if column.is_given)

# Properties.
NAME_VALUE_SEPARATOR = "\x01"
PROPERTY_SEPARATOR = "\x02"
PROPERTY_KEYS = "KEYS"
PROPERTY_TAGS = "TAGS"
PROPERTY_UNIQ_KEY = "UNIQ_KEY"
KEY_SEPARATOR = " "
#: The checksum of a whole record, at the very end of its properties: the digits of
#: the number, the least significant first.
PROPERTY_CRC = "__CRC32#"
PROPERTY_CRC_DIGITS = 10
#: The checksum in a property string, and the separator before it: syntax of re and RE2.
PROPERTY_CRC_PATTERN = f"(^|\x02){PROPERTY_CRC}\x01[^\x02]*(?:\x02|$)"
PROPERTY_CRC_SIZE = len(PROPERTY_CRC) + 1 + PROPERTY_CRC_DIGITS + 1

#: `prepared_transaction_offset` of a record that `repair` wrote where a message was lost; no
#: transaction has it. In the head, so that the shortest record has room for it.
LOST_MARK = int.from_bytes(b"tubelost", "big")
#: `state` of such a record, and why it cannot be read.
STATE_LOST = "lost"
LOST_REASON = "the message was lost; repair wrote this record in its place"
#: `state` of a record that is whole and sound; `inspect/dump.py` has the states of other bytes.
STATE_OK = "ok"

# Limits.
TOPIC_SIZE_MAX = 127
#: Of a topic in a V2 record: a queue's directory has the topic's name.
TOPIC_SIZE_MAX_V2 = 255
PROPERTIES_SIZE_MAX = 32767
#: What a record may be larger than maxMessageSize (since 4.9.4).
RECORD_SIZE_SLACK = 64 * 1024
INT32_MAX = 0x7FFFFFFF

# Default sizes.
COMMIT_LOG_FILE_SIZE = 1 << 30
CONSUME_QUEUE_FILE_SIZE = 300_000 * CQ_UNIT.size
CONSUME_QUEUE_EXT_FILE_SIZE = 48 << 20
HASH_SLOTS = 5_000_000
INDEX_ITEMS = 20_000_000
MESSAGE_SIZE_MAX = 4 << 20

# Names in the directory.
COMMIT_LOG_DIRECTORY = "commitlog"
CONSUME_QUEUE_DIRECTORY = "consumequeue"
CONSUME_QUEUE_EXT_DIRECTORY = "consumequeue_ext"
BATCH_CONSUME_QUEUE_DIRECTORY = "batchconsumequeue"
BATCH_CONSUME_QUEUE_FILE_SIZE = 300_000 * BATCH_CQ_UNIT.size
INDEX_DIRECTORY = "index"
CONFIG_DIRECTORY = "config"
TUBE_DIRECTORY = "tube"
OWN_DIRECTORY = ".tubestore"
CHECKPOINT_FILE = "checkpoint"
ABORT_FILE = "abort"
LOCK_FILE = "lock"
LOCK_CONTENT = b"lock"
#: In `.tubestore`: which process holds the lock; the lock's own content is the broker's.
HOLDER_FILE = "lock-holder.json"
#: Where DLedger keeps a log instead (`dledger-<id>`); what an entry of it begins with, and the
#: position of the record in it.
DLEDGER_PREFIX = "dledger-"
DLEDGER_MAGIC = b"\0\0\0\1"
DLEDGER_BODY_POSITION = 48
PROGRESS_FILE = "progress.json"
#: In `.tubestore` of a mirror: the master that its log comes from.
MIRROR_FILE = "mirror.json"
OFFSET_NAME_DIGITS = 20


def hosts_of(sys_flag: Any) -> Any:
    """Return the place in `MESSAGE_HEADS` of records with this sysFlag (an int or a column)."""
    return sys_flag >> SYS_FLAG_HOSTS_SHIFT & SYS_FLAG_HOSTS_MASK


def record_size(hosts: int, magic_code: int, body: int, topic: int, properties: int) -> int:
    """Return the bytes of a record from the bytes of its parts (`CommitLog.calMsgLength`).

    >>> record_size(0, MAGIC_V1, 0, 0, 0), record_size(3, MAGIC_V2, 0, 0, 0)
    (91, 116)
    """
    head = MESSAGE_HEADS[hosts].size
    lengths = TOPIC_LENGTH_SIZE[magic_code] + PROPERTIES_LENGTH_SIZE
    return head + body + topic + properties + lengths


def property_crc_text(crc: int) -> bytes:
    """Return the last property of a record, given the checksum of the bytes before it.

    >>> property_crc_text(1979448534)
    b'__CRC32#\\x014358449791\\x02'
    """
    digits = f"{crc:0{PROPERTY_CRC_DIGITS}d}"[::-1]
    return f"{PROPERTY_CRC}{NAME_VALUE_SEPARATOR}{digits}{PROPERTY_SEPARATOR}".encode()


def offset_name(offset: int) -> str:
    """Return the name of the file that begins at `offset`.

    >>> offset_name(6_000_000)
    '00000000000006000000'
    """
    return f"{offset:0{OFFSET_NAME_DIGITS}d}"


def parse_offset_name(name: str) -> int | None:
    """Return the offset in a file's name, None if it is no such name.

    Digits of any script are taken: Java formats in the locale of the JVM.
    """
    return int(name) if name.isdecimal() else None


@lru_cache(maxsize=4096)
def encode_host(host: str) -> bytes:
    """Return address and port as on disk, 8 bytes for IPv4 and 20 for IPv6.

    >>> encode_host("10.1.2.3:45678").hex(), len(encode_host("[::1]:124"))
    ('0a0102030000b26e', 20)
    """
    address, colon, port = host.rpartition(":")
    if not colon or not port.isascii() or not port.isdecimal() or int(port) > 0xFFFF:
        raise ValueError(f"{host!r}: not an address and a port")
    packed = ipaddress.ip_address(address.removeprefix("[").removesuffix("]")).packed
    return packed + int(port).to_bytes(PORT_SIZE, "big")


def decode_host(raw: bytes) -> str:
    """Return "address:port" of the bytes on disk.

    >>> decode_host(encode_host("10.1.2.3:45678")), decode_host(encode_host("[0::1]:124"))
    ('10.1.2.3:45678', '[::1]:124')
    """
    port = int.from_bytes(raw[-PORT_SIZE:], "big", signed=True)
    address = ipaddress.ip_address(bytes(raw[:-PORT_SIZE]))
    return f"[{address}]:{port}" if address.version == 6 else f"{address}:{port}"


#: Hex digits of an offset message id: host and port of IPv4 or IPv6, and the offset.
_ID_DIGITS = (32, 56)
_OFFSET_BYTES = 8


def message_id(store_host: bytes, physical_offset: int) -> str:
    """Return RocketMQ's offset message id, 32 hex digits (56 with an IPv6 host).

    >>> message_id(encode_host("192.168.0.9:10911"), 0)
    'C0A8000900002A9F0000000000000000'
    """
    return (store_host + physical_offset.to_bytes(8, "big", signed=True)).hex().upper()


def offset_of_id(msg_id: str) -> int:
    """Return the physical offset in an offset message id; ValueError for what is none.

    >>> offset_of_id("C0A8000900002A9F00000000000000FF")
    255
    """
    if isinstance(msg_id, str) and len(msg_id) in _ID_DIGITS:
        with suppress(ValueError):
            return int.from_bytes(bytes.fromhex(msg_id)[-_OFFSET_BYTES:], "big")
    raise ValueError(f"{msg_id!r} is not a message id of 32 or 56 hex digits")


def encode_properties(properties: Mapping[str, str], *, trailing_separator: bool) -> str:
    """Return the property string; versions differ in the separator at its end.

    >>> encode_properties({"TAGS": "a", "KEYS": "k"}, trailing_separator=True)
    'TAGS\\x01a\\x02KEYS\\x01k\\x02'
    """
    pairs = [f"{name}{NAME_VALUE_SEPARATOR}{value}" for name, value in properties.items()]
    text = PROPERTY_SEPARATOR.join(pairs)
    return text + PROPERTY_SEPARATOR if pairs and trailing_separator else text


def parse_properties(text: str) -> dict[str, str]:
    """Return the pairs of a property string; without a name or a value a pair is dropped.

    >>> parse_properties("TAGS\\x01a\\x02KEYS\\x01k\\x01l\\x02empty\\x01\\x02")
    {'TAGS': 'a', 'KEYS': 'k\\x01l'}
    """
    properties = {}
    for pair in text.split(PROPERTY_SEPARATOR):
        name, _, value = pair.partition(NAME_VALUE_SEPARATOR)
        if name and value:
            properties[name] = value
    return properties
