"""Records to bytes and back: one by one with struct, by the thousand with NumPy and Arrow.

Both ways share the tables of `formats.py`. A message is prepared before the put lock is
taken (everything that is checked is checked there, so a refused message leaves no trace);
its place in the log, its queue offset and its store time are filled in under the lock.

Reading trusts nothing: a size is compared with what is there before it is used, and no
size from the disk is ever allocated.

Next to read: `columns.py` for reading in columns, `commit_log.py`.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from rocketcompat.formats import (
    BLANK,
    BODY_CRC_MASK,
    HOST_V6_SIZE,
    KEY_SEPARATOR,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    MESSAGE_HEADS,
    MESSAGE_PREFIX,
    NAME_VALUE_SEPARATOR,
    PROPERTIES_LENGTH_SIZE,
    PROPERTIES_SIZE_MAX,
    PROPERTY_KEYS,
    PROPERTY_SEPARATOR,
    PROPERTY_TAGS,
    SYS_FLAG_BORN_HOST_V6,
    SYS_FLAG_STORE_HOST_V6,
    TOPIC_LENGTH_SIZE,
    TOPIC_SIZE_MAX,
    encode_host,
    encode_properties,
    hosts_of,
    record_size,
)
from rocketcompat.messages import Message, MessageRecord
from rocketcompat.options import MessageStoreConfig
from tubestore.errors import CorruptRecord, InvalidMessage, InvalidName, MessageTooLarge
from tubestore.kernels import Int64s, crc32, crc_each, gather, slices
from tubestore.layout import Buffer

_HOST_FLAGS = SYS_FLAG_BORN_HOST_V6 | SYS_FLAG_STORE_HOST_V6
_HEAD_STRUCTS = tuple(head.struct for head in MESSAGE_HEADS)
_FIXED_SIZES = tuple(record_size(hosts, MAGIC_V1, 0, 0, 0) for hosts in range(len(MESSAGE_HEADS)))
_PROPERTIES_LENGTH = struct.Struct(">h")
_CHAIN = struct.Struct(MESSAGE_PREFIX.struct.format)
_RECORD_SIZE_LEAST = min(_FIXED_SIZES)


class Prepared:
    """A message that may be put: checked, its variable parts encoded."""

    __slots__ = ("body", "body_crc", "born_host", "message", "properties", "size", "store_host",
                 "sys_flag", "topic")  # fmt: skip

    message: Message
    body: Buffer
    body_crc: int
    born_host: bytes
    store_host: bytes
    #: With its length in front.
    topic: bytes
    #: With their length in front.
    properties: bytes
    size: int
    sys_flag: int


def prepare(message: Message, config: MessageStoreConfig) -> Prepared:
    """Check a message and encode what does not depend on its place.

    Raises MessageTooLarge, InvalidName, InvalidMessage; thread-safe.
    """
    prepared = Prepared()
    body = message.body
    if body.__class__ is not bytes:
        body = _body_bytes(body)
    prepared.message, prepared.body = message, body
    prepared.body_crc = crc32(body) & BODY_CRC_MASK if body else 0
    prepared.topic = encode_topic(message.topic)
    born, store = _host(message.born_host), _host(message.store_host)
    prepared.born_host, prepared.store_host = born, store
    sys_flag = message.sys_flag & ~_HOST_FLAGS
    if len(born) == HOST_V6_SIZE:
        sys_flag |= SYS_FLAG_BORN_HOST_V6
    if len(store) == HOST_V6_SIZE:
        sys_flag |= SYS_FLAG_STORE_HOST_V6
    prepared.sys_flag = sys_flag
    text = property_text(message, trailing_separator=config.trailing_property_separator)
    properties = text.encode()
    if "\0" in text:
        raise InvalidMessage("properties: contain U+0000, by which a torn record is known")
    if len(properties) > PROPERTIES_SIZE_MAX:
        raise MessageTooLarge(len(properties), PROPERTIES_SIZE_MAX, "property string")
    prepared.properties = _PROPERTIES_LENGTH.pack(len(properties)) + properties
    if message.queue_id < 0:
        raise InvalidMessage(f"queue_id: {message.queue_id} is negative")
    head = _HEAD_STRUCTS[hosts_of(sys_flag)].size
    size = head + len(body) + len(prepared.topic) + len(prepared.properties)
    if size > config.record_size_max or len(body) > config.max_message_size:
        check_sizes(len(body), size, config)
    prepared.size = size
    return prepared


def encode_one(
    prepared: Prepared, queue_offset: int, physical_offset: int, store_timestamp: int
) -> bytes:
    """Return the record's bytes; a number that its field cannot hold is an InvalidMessage."""
    message, sys_flag = prepared.message, prepared.sys_flag
    born = message.born_timestamp
    try:
        head = _HEAD_STRUCTS[sys_flag >> 4 & 3].pack(
            prepared.size,
            MAGIC_V1,
            prepared.body_crc,
            message.queue_id,
            message.flag,
            queue_offset,
            physical_offset,
            sys_flag,
            store_timestamp if born is None else born,
            prepared.born_host,
            store_timestamp,
            prepared.store_host,
            message.reconsume_times,
            message.prepared_transaction_offset,
            len(prepared.body),
        )
    except struct.error as error:
        raise InvalidMessage(f"a number of the message does not fit its field: {error}") from None
    return b"".join((head, prepared.body, prepared.topic, prepared.properties))


def encode_blank(size: int) -> bytes:
    """Return the record that closes a file with `size` bytes left."""
    return BLANK.pack(total_size=size, magic_code=MAGIC_BLANK)


def check_sizes(body: int, size: int, config: MessageStoreConfig) -> None:
    """Refuse what RocketMQ refuses (since 4.9.4), and what no file can hold (spec §1.6)."""
    if body > config.max_message_size:
        raise MessageTooLarge(body, config.max_message_size, "message body")
    if size > config.record_size_max:
        raise MessageTooLarge(size, config.record_size_max, "record")


@lru_cache(maxsize=65_536)
def encode_topic(topic: str) -> bytes:
    """Return the topic with its length (one byte) in front.

    Refused by UTF-8 length, since the real stores write 128 bytes and more and cannot read
    them again (oracle-rocketmq 2.2), and where the queue's directory could not have the name.
    """
    if not isinstance(topic, str) or not topic:
        raise InvalidName(str(topic), "a topic needs a name")
    if "/" in topic or "\0" in topic or topic in (".", ".."):
        raise InvalidName(topic, "a directory cannot have this name")
    try:
        raw = topic.encode()
    except UnicodeEncodeError:
        raise InvalidName(topic, "is no valid text") from None
    if len(raw) > TOPIC_SIZE_MAX:
        raise InvalidName(topic, f"takes {len(raw)} bytes, more than {TOPIC_SIZE_MAX}")
    return bytes((len(raw),)) + raw


def property_text(message: Message, *, trailing_separator: bool) -> str:
    """Return the property string of a message: its own verbatim, or made of keys, tags, pairs."""
    given = message.properties
    if given.__class__ is str:
        if message.tags is not None or message.keys is not None:
            raise InvalidMessage("tags and keys stand in the property string when one is given")
        return given
    if given is None:
        text = _plain_text(message, trailing_separator)
        if text is not None:
            return text
    pairs: dict[str, str] = {}
    keys = message.keys
    if keys is not None:
        pairs[PROPERTY_KEYS] = keys if isinstance(keys, str) else _joined_keys(keys)
    if message.tags is not None:
        pairs[PROPERTY_TAGS] = message.tags
    if given:
        if not isinstance(given, Mapping):
            raise InvalidMessage(f"properties: {type(given).__name__} is no mapping and no text")
        pairs.update((name, value) for name, value in given.items() if name not in pairs)
    text = encode_properties(pairs, trailing_separator=trailing_separator)
    expected = len(pairs) - (0 if trailing_separator and pairs else 1)
    if pairs and text.count(PROPERTY_SEPARATOR) != expected:
        raise InvalidMessage("a tag, key or property contains U+0002, which separates them")
    return text


def _plain_text(message: Message, trailing_separator: bool) -> str | None:
    """The property string of a message with a tag and keys at most; None if it is not that plain.

    The way of nearly every message, and three times as fast as the other.
    """
    tags, keys = message.tags, message.keys
    if keys is None:
        if not tags:
            return ""
        text = f"TAGS\x01{tags}"
    else:
        if keys.__class__ is not str:
            keys = _joined_keys(keys)
        text = f"KEYS\x01{keys}" if tags is None else f"KEYS\x01{keys}\x02TAGS\x01{tags}"
    if text.count("\x02") != (keys is not None and tags is not None):
        return None
    return text + "\x02" if trailing_separator else text


def _joined_keys(keys: Any) -> str:
    """Return keys as one text; one with a blank in it would be two."""
    for key in keys:
        if KEY_SEPARATOR in key or NAME_VALUE_SEPARATOR in key:
            raise InvalidMessage(f"key {key!r}: a key has no blanks")
    return KEY_SEPARATOR.join(keys)


@lru_cache(maxsize=4096)
def _host(text: str) -> bytes:
    try:
        return encode_host(text)
    except ValueError as error:
        raise InvalidMessage(f"host: {error}") from None


def _body_bytes(body: Any) -> bytes:
    if body is None:
        return b""
    try:
        return bytes(memoryview(body))
    except TypeError:
        raise InvalidMessage(f"body: {type(body).__name__} is not bytes") from None


@dataclass(frozen=True, slots=True)
class Walk:
    """What following a chain of records found.

    `starts` are positions of good records in the data; `end` is the position behind the last
    of them. Then came exactly one of: the data's end in a record of `wanted` bytes or more; a
    blank (`blank`); what is no record (`reason`).
    """

    starts: Int64s
    end: int
    wanted: int = 0
    blank: bool = False
    reason: str | None = None


def walk(
    data: Buffer, start: int, base: int, file_end: int, *,
    check_crc: bool = True, own: bool = False,
) -> Walk:  # fmt: skip
    """Follow the chain of records from position `start` of `data`, verifying each.

    `base` is the physical offset of `data[0]`, `file_end` the position in `data` (perhaps
    behind its end) where the file ends. Verified are magic, length, the record's own
    physical offset, its parts against its length, and the CRC of the body; with `own` also
    what holds for records that we wrote (see `first_fault`).
    """
    starts: list[int] = []
    position, available = start, len(data)
    wanted, blank, reason = 0, False, None
    unpack, prefix_size = _CHAIN.unpack_from, _CHAIN.size
    while position < file_end:
        if position + prefix_size > available:
            found = _short_end(data, position, file_end)
            wanted, blank, reason = found
            break
        total, magic, _, _, _, _, physical, _, _ = unpack(data, position)
        if magic == MAGIC_BLANK:
            blank = True
            break
        reason = _prefix_fault(total, magic, physical, base + position, file_end - position)
        if reason is not None:
            break
        if position + total > available:
            wanted = total
            break
        starts.append(position)
        position += total
    good = np.array(starts, np.int64)
    count, fault = first_fault(data, good, check_crc=check_crc, own=own)
    if fault is not None:
        return Walk(good[:count], starts[count], reason=fault)
    return Walk(good, position, wanted, blank, reason)


def _short_end(data: Buffer, position: int, file_end: int) -> tuple[int, bool, str | None]:
    """Judge fewer bytes than a record's prefix: (bytes wanted, blank, fault)."""
    left = len(data) - position
    if left >= BLANK.size and BLANK.unpack_from(data, position).magic_code == MAGIC_BLANK:
        return 0, True, None
    if len(data) < file_end:
        return min(MESSAGE_PREFIX.size, file_end - position), False, None
    return 0, False, "no record, and no room for one"


def _prefix_fault(total: int, magic: int, physical: int, expected: int, left: int) -> str | None:
    """Say what is wrong with the first fields of a record; None if nothing is."""
    if magic not in TOPIC_LENGTH_SIZE:
        return "no record" if magic == 0 and total == 0 else f"magic code {magic & 0xFFFFFFFF:08x}"
    if not _RECORD_SIZE_LEAST <= total <= left:
        return f"a length of {total} bytes, where {left} are left in the file"
    if physical != expected:
        return f"says that it stands at {physical}"
    return None


_UNEVEN = "the lengths of its parts do not add up"
_WRONG_CRC = "the checksum of the body does not match"


def first_fault(
    data: Buffer, starts: Int64s, *, check_crc: bool, own: bool = False
) -> tuple[int, str | None]:
    """Return how many records are sound before the first that is not, and what is wrong with it.

    The records' prefixes must be sound and whole records lie inside `data`. No checksum covers
    topic and properties; but ours hold no U+0000 (`prepare` refuses it), so with `own` zeros
    there are a torn write.
    """
    if len(starts) == 0:
        return 0, None
    raw = np.frombuffer(data, np.uint8)
    prefixes = gather(raw, starts, MESSAGE_PREFIX.dtype)
    totals = prefixes["total_size"].astype(np.int64)
    hosts = (prefixes["sys_flag"].astype(np.int32) >> 4) & 3
    head_sizes = np.array([head.size for head in MESSAGE_HEADS], np.int64)[hosts]
    ends = starts + totals
    body_starts = starts + head_sizes
    tails = np.where(prefixes["magic_code"] == MAGIC_V2, TOPIC_LENGTH_SIZE[MAGIC_V2],
                     TOPIC_LENGTH_SIZE[MAGIC_V1])  # fmt: skip
    # Each step looks only where the step before found room: `at` never leaves its record.
    sound = totals >= head_sizes + tails + PROPERTIES_LENGTH_SIZE
    bodies = _lengths(raw, np.where(sound, body_starts - 4, starts), np.dtype(">i4"))
    topics_at = body_starts + bodies
    sound &= (bodies >= 0) & (topics_at + tails + PROPERTIES_LENGTH_SIZE <= ends)
    topics = _topic_lengths(raw, np.where(sound, topics_at, starts), tails)
    properties_at = topics_at + tails + topics
    sound &= (topics >= 0) & (properties_at + PROPERTIES_LENGTH_SIZE <= ends)
    properties = _lengths(raw, np.where(sound, properties_at, starts), np.dtype(">i2"))
    sound &= properties_at + PROPERTIES_LENGTH_SIZE + np.maximum(properties, 0) == ends
    count = len(starts) if sound.all() else int(np.argmin(sound))
    if own:
        zero = _first_zero(
            data,
            (topics_at + tails)[:count],
            topics[:count],
            (properties_at + PROPERTIES_LENGTH_SIZE)[:count],
            ends[:count],
        )
        if zero is not None:
            first, fault = first_fault(data, starts[:zero], check_crc=check_crc)
            return first, fault or "zeros in its topic or properties"
    if check_crc:
        wrong = _wrong_crc(data, prefixes["body_crc"], body_starts[:count], topics_at[:count])
        if wrong is not None:
            return wrong, _WRONG_CRC
    return count, None if count == len(starts) else _UNEVEN


def _wrong_crc(data: Buffer, crcs: Any, starts: Int64s, ends: Int64s) -> int | None:
    """Return the first row whose body has not the checksum that its record says."""
    found = crc_each(data, starts, ends, BODY_CRC_MASK)
    wrong = np.flatnonzero(found != crcs[: len(starts)])
    return int(wrong[0]) if len(wrong) else None


def _first_zero(
    data: Buffer, topics: Int64s, topic_sizes: Int64s, properties: Int64s, ends: Int64s
) -> int | None:
    """Return the first row with a zero byte in its topic or properties."""
    starts = np.stack((topics, properties), 1).ravel()
    sizes = np.stack((topic_sizes, ends - properties), 1).ravel()
    texts = slices(data, starts, sizes)
    buffer = texts.buffers()[2] if len(texts) else None
    if buffer is None:
        return None
    zeros = np.flatnonzero(np.frombuffer(buffer, np.uint8) == 0)
    if not len(zeros):
        return None
    bounds = np.frombuffer(texts.buffers()[1], np.int64)
    return int(np.searchsorted(bounds, zeros[0], "right") - 1) // 2


def _lengths(raw: Any, positions: Int64s, dtype: np.dtype[Any]) -> Int64s:
    return gather(raw, positions, dtype).astype(np.int64)


def _topic_lengths(raw: Any, positions: Int64s, tails: Int64s) -> Int64s:
    """Read the topic lengths: a signed byte in V1, a signed short in V2."""
    lengths: Int64s = raw[positions].view(np.int8).astype(np.int64)
    wide = np.flatnonzero(tails == TOPIC_LENGTH_SIZE[MAGIC_V2])
    if len(wide):
        lengths[wide] = _lengths(raw, positions[wide], np.dtype(">i2"))
    return lengths


def decode_one(
    data: Buffer, position: int = 0, *, physical_offset: int | None = None,
    path: str = "", check_crc: bool = True,
) -> MessageRecord:  # fmt: skip
    """Decode the record at `position`, any version and hosts.

    `physical_offset` is where the record should stand; CorruptRecord(path, position, reason)
    with `position` in `data` when it is not whole and sound.
    """
    if position + MESSAGE_PREFIX.size > len(data):
        raise CorruptRecord(path, position, "no room for a record")
    prefix = MESSAGE_PREFIX.unpack_from(data, position)
    expected = prefix.physical_offset if physical_offset is None else physical_offset
    fault = _prefix_fault(
        prefix.total_size, prefix.magic_code, prefix.physical_offset, expected,
        len(data) - position,
    )  # fmt: skip
    if fault is None:
        fault = _fault_of_one(data, position, prefix, check_crc=check_crc)
    if fault is not None:
        raise CorruptRecord(path, position, fault)
    return _decode_sound(data, position)


def _fault_of_one(data: Buffer, position: int, prefix: Any, *, check_crc: bool) -> str | None:
    """Judge one record as `first_fault` judges many: 3 µs, where columns of one take 85."""
    view = memoryview(data)
    end = position + prefix.total_size
    body_at = position + MESSAGE_HEADS[hosts_of(prefix.sys_flag)].size
    width = TOPIC_LENGTH_SIZE[prefix.magic_code]
    if body_at + width + PROPERTIES_LENGTH_SIZE > end:
        return _UNEVEN
    body_size = int.from_bytes(view[body_at - 4 : body_at], "big", signed=True)
    topic_at = body_at + body_size
    if body_size < 0 or topic_at + width + PROPERTIES_LENGTH_SIZE > end:
        return _UNEVEN
    topic_size = int.from_bytes(view[topic_at : topic_at + width], "big", signed=True)
    properties_at = topic_at + width + topic_size
    behind = properties_at + PROPERTIES_LENGTH_SIZE
    if topic_size < 0 or behind > end:
        return _UNEVEN
    if behind + max(int.from_bytes(view[properties_at:behind], "big", signed=True), 0) != end:
        return _UNEVEN
    if check_crc and crc32(view[body_at:topic_at]) & BODY_CRC_MASK != prefix.body_crc:
        return _WRONG_CRC
    return None


def _decode_sound(data: Buffer, position: int) -> MessageRecord:
    """Decode a record that was verified."""
    view = memoryview(data)
    layout = MESSAGE_HEADS[hosts_of(MESSAGE_PREFIX.unpack_from(data, position).sys_flag)]
    head = layout.unpack_from(data, position)
    body_at = position + layout.size
    topic_at = body_at + head.body_length
    width = TOPIC_LENGTH_SIZE[head.magic_code]
    topic_size = int.from_bytes(view[topic_at : topic_at + width], "big")
    properties_at = topic_at + width + topic_size + PROPERTIES_LENGTH_SIZE
    return MessageRecord(
        physical_offset=head.physical_offset,
        size=head.total_size,
        version=1 if head.magic_code == MAGIC_V1 else 2,
        topic=str(view[topic_at + width : topic_at + width + topic_size], "utf-8", "replace"),
        queue_id=head.queue_id,
        queue_offset=head.queue_offset,
        flag=head.flag,
        sys_flag=head.sys_flag,
        born_timestamp=head.born_timestamp,
        store_timestamp=head.store_timestamp,
        born_host_bytes=head.born_host,
        store_host_bytes=head.store_host,
        reconsume_times=head.reconsume_times,
        prepared_transaction_offset=head.prepared_transaction_offset,
        body_crc=head.body_crc,
        properties_text=str(view[properties_at : position + head.total_size], "utf-8", "replace"),
        body=bytes(view[body_at:topic_at]),
    )
