"""Records to bytes and back, one by one; both ways share the tables of `layouts.py`.

A message is prepared before the put lock is taken; its place in the log, its queue offset and
its store time are filled in under the lock.
"""

from __future__ import annotations

import struct

from rocketcompat.formats import (
    BLANK,
    BODY_CRC_MASK,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    MESSAGE_HEAD,
    MESSAGE_HEADS,
    MESSAGE_PREFIX,
    PROPERTIES_LENGTH_SIZE,
    PROPERTIES_SIZE_MAX,
    PROPERTY_CRC_SIZE,
    SYS_FLAG_HOSTS_MASK,
    SYS_FLAG_HOSTS_SHIFT,
    TOPIC_LENGTH_SIZE,
    TOPIC_SIZE_MAX,
    hosts_of,
    property_crc_text,
)
from rocketcompat.messages import MessageRecord
from rocketcompat.record.fields import fault_of
from rocketcompat.record.prepare import Prepared
from rocketcompat.record.verify import (
    WRONG_RECORD_CRC,
    fault_of_one,
    has_record_crc,
    prefix_fault,
)
from tubestore.core.kernels import crc32
from tubestore.core.layout import Buffer
from tubestore.errors import CorruptRecord

_PLAIN = MESSAGE_HEAD.struct
_ANY_HOSTS = SYS_FLAG_HOSTS_MASK << SYS_FLAG_HOSTS_SHIFT
_HEAD_STRUCTS = tuple(head.struct for head in MESSAGE_HEADS)


def encode_one(
    prepared: Prepared, queue_offset: int, physical_offset: int, store_timestamp: int
) -> bytes:
    """Return the record's bytes; a number that its field cannot hold is an InvalidMessage."""
    message, sys_flag = prepared.message, prepared.sys_flag
    born = message.born_timestamp
    try:
        head = _HEAD_STRUCTS[sys_flag >> 4 & 3].pack(
            prepared.size,
            prepared.magic_code,
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
        raise fault_of(message, error) from None
    record = b"".join((head, prepared.body, prepared.topic, prepared.properties))
    if prepared.has_crc:
        covered = record[:-PROPERTY_CRC_SIZE]
        record = covered + property_crc_text(crc32(covered) & BODY_CRC_MASK)
    return record


def pack(record: MessageRecord) -> bytes:
    """Return the bytes of a record, with the size and the checksum that it has as fields."""
    magic = MAGIC_V1 if record.version == 1 else MAGIC_V2
    properties = record.properties_text.encode(errors="surrogateescape")
    topic = record.topic.encode()
    head = MESSAGE_HEADS[hosts_of(record.sys_flag)].pack(
        total_size=record.size, magic_code=magic, body_crc=record.body_crc,
        queue_id=record.queue_id, flag=record.flag, queue_offset=record.queue_offset,
        physical_offset=record.physical_offset, sys_flag=record.sys_flag,
        born_timestamp=record.born_timestamp, born_host=record.born_host_bytes,
        store_timestamp=record.store_timestamp, store_host=record.store_host_bytes,
        reconsume_times=record.reconsume_times,
        prepared_transaction_offset=record.prepared_transaction_offset,
        body_length=len(record.body),
    )  # fmt: skip
    width = TOPIC_LENGTH_SIZE[magic]
    return b"".join(
        (head, record.body, len(topic).to_bytes(width, "big"), topic,
         len(properties).to_bytes(PROPERTIES_LENGTH_SIZE, "big"), properties)
    )  # fmt: skip


def encode_blank(size: int) -> bytes:
    """Return the record that closes a file with `size` bytes left."""
    return BLANK.pack(total_size=size, magic_code=MAGIC_BLANK)


def encode_unfinished() -> bytes:
    """Return the head that precedes data while they are copied into a file's map.

    It is a blank of no bytes. A chain of records ends there, in RocketMQ, too.
    """
    return encode_blank(0)


def decode_one(
    data: Buffer, position: int = 0, *, physical_offset: int | None = None,
    path: str = "", check_crc: bool = True, record_crc: bool = False,
) -> MessageRecord:  # fmt: skip
    """Decode the record at `position`, any version and hosts.

    `physical_offset` is the record's expected place. Raises CorruptRecord(path, position, reason),
    with `position` in `data`, for a record that is not whole and sound. With `record_crc` the
    checksum of the whole record is compared, and not the body's.
    """
    check_crc = check_crc and not record_crc
    record = _plain_record(data, position, physical_offset, check_crc=check_crc)
    if record is not None:
        if record_crc and not has_record_crc(data, position, record.size):
            raise CorruptRecord(path, position, WRONG_RECORD_CRC)
        return record
    if position + MESSAGE_PREFIX.size > len(data):
        raise CorruptRecord(path, position, "no room for a record")
    prefix = MESSAGE_PREFIX.unpack_from(data, position)
    expected = prefix.physical_offset if physical_offset is None else physical_offset
    fault = prefix_fault(
        prefix.total_size, prefix.magic_code, prefix.physical_offset, expected,
        len(data) - position,
    )  # fmt: skip
    if fault is None:
        fault = fault_of_one(data, position, prefix, check_crc=check_crc)
    if fault is None and record_crc and not has_record_crc(data, position, prefix.total_size):
        fault = WRONG_RECORD_CRC
    if fault is not None:
        raise CorruptRecord(path, position, fault)
    return _decode_sound(data, position)


def _plain_record(
    data: Buffer, position: int, physical_offset: int | None, *, check_crc: bool
) -> MessageRecord | None:
    """Decode a sound record of version 1 with IPv4 hosts, as nearly all are, by one unpacking.

    None for any other record and for an unsound one: `decode_one` then goes the long way.
    """
    if position + MESSAGE_HEAD.size > len(data):
        return None
    (total, magic, crc, queue_id, flag, queue_offset, physical, sys_flag, born, born_host, stored,
     store_host, reconsumed, prepared, length) = _PLAIN.unpack_from(data, position)  # fmt: skip
    body_at, end = position + MESSAGE_HEAD.size, position + total
    topic_at = body_at + length
    if magic != MAGIC_V1 or sys_flag & _ANY_HOSTS or length < 0 or end > len(data):
        return None
    if topic_at + 1 + PROPERTIES_LENGTH_SIZE > end or physical_offset not in (None, physical):
        return None
    topic_size = data[topic_at]
    topic_end = topic_at + 1 + topic_size
    properties_at = topic_end + PROPERTIES_LENGTH_SIZE
    stored_size = int.from_bytes(data[topic_end:properties_at], "big")
    if properties_at + stored_size != end:
        return None
    if topic_size > TOPIC_SIZE_MAX or stored_size > PROPERTIES_SIZE_MAX:  # they are signed
        return None
    body = bytes(data[body_at:topic_at])
    if check_crc and crc32(body) & BODY_CRC_MASK != crc:
        return None
    return MessageRecord(
        physical, total, 1, str(data[topic_at + 1 : topic_end], "utf-8", "replace"), queue_id,
        queue_offset, flag, sys_flag, born, stored, born_host, store_host, reconsumed, prepared,
        crc, str(data[properties_at:end], "utf-8", "replace") if stored_size else "", body,
    )  # fmt: skip


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
