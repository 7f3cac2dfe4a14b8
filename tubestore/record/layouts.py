"""The two records of a shard, byte for byte TubeMQ's, and their constants.

Source of the format: TubeMQ `DataStoreUtils`, unchanged from 0.1.0 to 2.4.0.
These constants are what is on disk; they may not change.

A data record is `DATA_HEADER` and a payload of at least one byte. A payload
with bit 0 in its flag starts with attributes: an int32 length, then text
`key=value,key=value` in UTF-8; the rest is the body.
"""

from __future__ import annotations

from typing import Any

from tubestore.core.java_hash import java_hash
from tubestore.core.layout import Field, Layout

DATA_HEADER = Layout(
    "DataHeader",
    52,
    (
        Field("length", "i4", "Bytes that follow this field: 48 + the payload's."),
        Field("token", "i4", "`0x02C998B8`."),
        Field("checksum", "i4", "CRC-32 (zlib's) of the payload, AND `0x7FFFFFFF`."),
        Field("partition_id", "i4", "store id * 10000 + partition within the store."),
        Field("queue_logic_offset", "i8", "Absolute byte position of the record's index entry."),
        Field("received_time", "i8", "When the store received it, ms since the epoch."),
        Field("report_address", "i4", "The sender's IPv4 address as an int."),
        Field("key_code", "i4", "Java hash of the filter item, -1 without one."),
        Field("msg_id", "i8", "Opaque."),
        Field("flag", "i4", "Bit 0: the payload starts with attributes; the rest is the sender's."),
    ),
)

INDEX_ENTRY = Layout(
    "IndexEntry",
    28,
    (
        Field("partition_id", "i4", "As in the data record."),
        Field("data_offset", "i8", "Absolute byte position of the data record in the shard."),
        Field("data_size", "i4", "Bytes of the data record, header included."),
        Field("key_code", "i4", "As in the data record."),
        Field("received_time", "i8", "As in the data record."),
    ),
)

#: Of our own: a batch over many shards in the root's journal (`root_journal.py`).
JOURNAL_FRAME = Layout(
    "JournalFrame",
    40,
    (
        Field("magic", "i4", "`0x744A6631` (`tJf1`)."),
        Field("parts", "i4", "How many shards the batch has messages of."),
        Field("names_size", "i4", "Bytes of the shards' names, `\\n` in between."),
        Field("entries", "i4", "Index entries, and records."),
        Field("data_size", "i8", "Bytes of the records."),
        Field("generation", "i8", "Equal in all frames that count."),
        Field("digest", "b8", "xxh3 (64 bits) of everything behind this header."),
    ),
)

JOURNAL_PART = Layout(
    "JournalPart",
    28,
    (
        Field("entries", "i4", "Messages of this shard."),
        Field("index_start", "i8", "Absolute byte position of the first one's index entry."),
        Field("data_start", "i8", "Absolute byte position of the first one's record."),
        Field("data_size", "i8", "Bytes of their records."),
    ),
)

JOURNAL_MARK = Layout(
    "JournalMark",
    24,
    (
        Field("frame", "i8", "Position in the journal of the frame that this mark follows."),
        Field("synced", "i8", "Bytes of this generation that were on stable storage by then."),
        Field("parts", "i4", "How many parts follow: those of the frame."),
        Field("names_size", "i4", "Bytes of the names that follow them."),
    ),
)

#: Of our own: a frame of the ring journal (`ring_frames.py`).
RING_FRAME = Layout(
    "RingFrame",
    72,
    (
        Field("digest", "b8", "xxh3 (64 bits) of the rest of the head, and of what it covers."),
        Field("magic", "i4", "`0x74526631` (`tRf1`)."),
        Field("boot", "b4", "The first bytes of the xxh3 (64 bits) of the boot's name."),
        Field("generation", "i8", "Equal in all frames of one opening; rises."),
        Field("synced", "i8", "Ring position below which everything was synced by then."),
        Field("kind", "i2", "0 start and 2 end of a segment, 1 a message."),
        Field("store_id", "i2", "The shard: its store, …"),
        Field("topic_id", "i8", "… and its topic, by the id in `topics.json`."),
        Field("size", "i4", "Bytes that follow this head."),
        Field("position", "i8", "Position in the ring: the bytes of all segments before it."),
        Field("index_start", "i8", "Absolute byte position of the message's index entry."),
        Field("data_start", "i8", "Absolute byte position of the message's record."),
    ),
)

#: What follows the head of a segment's first frame.
RING_START = Layout(
    "RingStart",
    48,
    (
        Field("segment_size", "i8", "Bytes of each segment."),
        Field("tail", "i8", "Ring position below which everything is in the shards' files."),
        Field("begun", "i8", "Ring position at which this opening began."),
        Field("own_tail", "i8", "As `tail`, for what this opening wrote."),
        Field("left_synced", "i8", "Ring position below which it found everything synced."),
        Field("store", "b8", "The xxh3 (64 bits) of the uuid in `store.json`."),
    ),
)

RING_MAGIC = 0x74526631
JOURNAL_MAGIC = 0x744A6631
TOKEN_MESSAGE = 0x02C998B8
CHECKSUM_MASK = 0x7FFFFFFF
#: `length` counts what follows itself: the header without its first field, and the payload.
LENGTH_BEFORE_PAYLOAD = DATA_HEADER.size - 4
FLAG_HAS_ATTRIBUTES = 1
NO_KEY_CODE = -1
#: `received_time` of the entry of a lost message. Not 0: a torn entry can end in zeros.
LOST_TIME = 1

#: TubeMQ's largest payload that its recovery accepts, and the record that carries it.
PAYLOAD_SIZE_MAX = 29_360_128
RECORD_SIZE_MAX = PAYLOAD_SIZE_MAX + DATA_HEADER.size

ATTRIBUTE_TYPE = "$msgType$"
ATTRIBUTE_TIME = "$msgTime$"


def record_size(header: Any) -> int:
    """Return the bytes of a record by its header: `length` counts all but itself."""
    size: int = header.length + 4
    return size


def record_sizes(headers: Any) -> Any:
    """Return the bytes of records by an array of their headers, as int64."""
    return headers["length"].astype("i8") + 4


def key_code_of(filter_item: str | None) -> int:
    """Return the key code of a filter item: the hash of the trimmed text, -1 when it is blank.

    >>> key_code_of(" tid1 "), key_code_of(None), key_code_of("  ")
    (3559810, -1, -1)
    """
    trimmed = filter_item.strip() if filter_item else ""
    return java_hash(trimmed) if trimmed else NO_KEY_CODE


def address_to_int(address: str) -> int:
    """Return an IPv4 address as TubeMQ's signed int.

    >>> address_to_int("10.0.0.1"), address_to_int("192.168.1.2")
    (167772161, -1062731518)
    """
    import ipaddress

    value = int(ipaddress.IPv4Address(address))
    return value - (1 << 32) if value & 0x80000000 else value


def address_from_int(value: int) -> str:
    """Return the dotted form of TubeMQ's address int.

    >>> address_from_int(-1062731518)
    '192.168.1.2'
    """
    return ".".join(str(value >> shift & 0xFF) for shift in (24, 16, 8, 0))
