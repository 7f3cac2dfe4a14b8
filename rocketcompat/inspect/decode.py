"""One message by its offset, straight from the files, by the format alone.

For a file that was copied, a store that will not open, or a quick look. Of this package only the
tables of `layouts.py` are used, and nothing is trusted or hidden. The content of a place is
returned as far as it can be read, with a state and a reason:

| state | meaning |
| --- | --- |
| ok | a record, whole and sound |
| damaged | a record with a fault; its fields are shown as far as they go |
| blank | the rest of this file is filled up; the next record is in the next file |
| empty | zeros: nothing was written here |
| missing | no file holds this place, or the file ends before it |

A path may be a store's root, its `commitlog` or one of its queues' directories, or a file with the
offset of its first byte as its name (any other name counts as 0). Files of BoltMQ, which has other
magic codes, are read too (`dialect`).

Reads only; Python's loops over fields, so for a look and not for a scan.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Sequence
from typing import Any

from rocketcompat.formats import (
    BLANK,
    BODY_CRC_MASK,
    BOLTMQ_MAGIC,
    BOLTMQ_MAGIC_BLANK,
    COMMIT_LOG_DIRECTORY,
    CONSUME_QUEUE_DIRECTORY,
    CQ_PRE_FILL_SIZE,
    CQ_UNIT,
    LOST_MARK,
    LOST_REASON,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    MESSAGE_HEADS,
    MESSAGE_PREFIX,
    PROPERTIES_LENGTH_SIZE,
    STATE_LOST,
    TOPIC_LENGTH_SIZE,
    decode_host,
    hosts_of,
    message_id,
    parse_offset_name,
    parse_properties,
)
from tubestore.errors import InvalidMessage, NotAStore

Row = dict[str, Any]

_TOPIC_LENGTH_SIZE = {**TOPIC_LENGTH_SIZE, BOLTMQ_MAGIC: TOPIC_LENGTH_SIZE[MAGIC_V1]}
_DIALECTS = {MAGIC_V1: "rocketmq", MAGIC_V2: "rocketmq", BOLTMQ_MAGIC: "boltmq"}
_BLANKS = {MAGIC_BLANK: "rocketmq", BOLTMQ_MAGIC_BLANK: "boltmq"}
#: Read at once; a record that is longer is read again.
_FIRST_READ = 64 * 1024

#: Fields of a message that decoding gives, in the order of the file, then what follows from them.
MESSAGE_FIELDS = (
    "total_size", "magic_code", "body_crc", "queue_id", "flag", "queue_offset",
    "physical_offset", "sys_flag", "born_timestamp", "born_host", "store_timestamp",
    "store_host", "reconsume_times", "prepared_transaction_offset", "body_length", "body",
    "topic_length", "topic", "properties_length", "properties", "msg_id", "dialect",
)  # fmt: skip


def decode_commit_log(
    path: str | os.PathLike[str], physical_offset: int, *, logs: Sequence[str] = ()
) -> Row:
    """Return the content of a physical offset: `MESSAGE_FIELDS`, path, position, state, reason.

    Fields that cannot be read are None. `logs` are further directories of the log's files.
    NotAStore if `path` is neither a log nor a store.
    """
    if physical_offset < 0:
        raise InvalidMessage(f"a physical offset is not negative: {physical_offset}")
    found = _file_at([*_logs_of(os.fspath(path), logs), *logs], physical_offset)
    if found is None:
        return _message("missing", "no file of the log holds this offset", "", 0)
    file, position = found
    raw = _read(file, position, _FIRST_READ)
    if len(raw) == _FIRST_READ and BLANK.unpack_from(raw).magic_code in _DIALECTS:
        left = os.path.getsize(file) - position
        raw = _read(file, position, min(max(BLANK.unpack_from(raw).total_size, _FIRST_READ), left))
    return decode_record(raw, physical_offset=physical_offset) | {
        "path": file,
        "position": position,
    }


def decode_queue(
    root: str | os.PathLike[str], topic: str, queue_id: int, queue_offset: int,
    *, logs: Sequence[str] = (),
) -> tuple[Row, Row]:  # fmt: skip
    """Return a unit of a queue, and the message that it leads to (as `decode_commit_log`)."""
    base = os.path.join(os.fspath(root), CONSUME_QUEUE_DIRECTORY, topic, str(queue_id))
    unit = decode_unit(base, queue_offset)
    unit = {"topic": topic, "queue_id": queue_id, **unit}
    if unit["state"] != "ok":
        return unit, _message("missing", "the unit leads to no record", "", 0)
    message = decode_commit_log(root, unit["physical_offset"], logs=logs)
    expected = {"topic": topic, "queue_id": queue_id, "queue_offset": queue_offset}
    expected["total_size"] = unit["size"]
    for name, value in expected.items():
        if message["state"] == "ok" and message[name] != value:
            reason = f"its {name} is {message[name]!r}, and the queue has {value!r}"
            message |= {"state": "damaged", "reason": reason}
    return unit, message


def decode_unit(path: str | os.PathLike[str], queue_offset: int) -> Row:
    """Return unit number `queue_offset` of a queue's directory or of one of its files.

    {"queue_offset", "physical_offset", "size", "tags_code", "path", "position", "state", "reason"}
    """
    if queue_offset < 0:
        raise InvalidMessage(f"a queue offset is not negative: {queue_offset}")
    base = os.fspath(path)
    if not os.path.exists(base):
        raise NotAStore(base, "no such queue")
    row: Row = dict.fromkeys(("physical_offset", "size", "tags_code", "path", "position"))
    row = {"queue_offset": queue_offset, **row}
    found = _file_at([base], queue_offset * CQ_UNIT.size)
    raw = _read(*found, CQ_UNIT.size) if found else b""
    if found is None or len(raw) < CQ_UNIT.size:
        return row | {"state": "missing", "reason": "no file of the queue holds this unit"}
    row |= {"path": found[0], "position": found[1]}
    unit = CQ_UNIT.unpack_from(raw)
    row |= unit._asdict()
    if unit.size == CQ_PRE_FILL_SIZE:
        return row | {"state": "blank", "reason": "a fill unit, which is of no message"}
    if not any(raw):
        return row | {"state": "empty", "reason": "zeros: nothing was written here"}
    if unit.size <= 0 or unit.physical_offset < 0:
        return row | {"state": "damaged", "reason": "a unit has a size and an offset"}
    return row | {"state": "ok", "reason": None}


def decode_record(raw: bytes, *, physical_offset: int | None = None) -> Row:
    """Return the record at the start of `raw` as a row, whatever is wrong with it.

    `physical_offset` is its expected place; None takes the record's own.
    """
    if not raw:
        return _message("missing", "the file ends here")
    if len(raw) < BLANK.size:
        return _message("damaged", f"{len(raw)} bytes, and no record is that short")
    head = BLANK.unpack_from(raw)
    if head.magic_code in _BLANKS:
        row = _message("blank", f"the last {head.total_size} bytes of the file are filled up")
        row |= head._asdict()
        row["dialect"] = _BLANKS[head.magic_code]
        return row
    if not any(raw[: MESSAGE_PREFIX.size]):
        return _message("empty", "zeros: nothing was written here")
    if head.magic_code not in _DIALECTS:
        code = head.magic_code & 0xFFFFFFFF
        return _message("damaged", f"no record: its magic code would be {code:08x}")
    return _decode_fields(raw, physical_offset)


def _decode_fields(raw: bytes, expected_offset: int | None) -> Row:
    """Read field after field, as long as there is room for the next."""
    row = _message("damaged", "the record is not whole")
    if len(raw) < MESSAGE_PREFIX.size:
        return row
    prefix = MESSAGE_PREFIX.unpack_from(raw)
    row |= prefix._asdict() | {"dialect": _DIALECTS[prefix.magic_code]}
    layout = MESSAGE_HEADS[hosts_of(prefix.sys_flag)]
    end = min(prefix.total_size, len(raw))
    if end < layout.size:
        return row
    head = layout.unpack_from(raw)
    row |= head._asdict()
    row["msg_id"] = message_id(head.store_host, head.physical_offset)
    for name in ("born_host", "store_host"):
        row[name] = decode_host(row[name])
    if not _read_parts(row, raw, layout.size, end):
        return row
    return row | _verdict(row, len(raw), expected_offset)


def _read_parts(row: Row, raw: bytes, position: int, end: int) -> bool:
    """Read body, topic and properties; False if the bytes end before."""
    if not 0 <= row["body_length"] <= end - position:
        row["reason"] = f"a body of {row['body_length']} bytes does not fit"
        return False
    row["body"] = raw[position : position + row["body_length"]]
    position += row["body_length"]
    for name, width in (
        ("topic", _TOPIC_LENGTH_SIZE[row["magic_code"]]),
        ("properties", PROPERTIES_LENGTH_SIZE),
    ):
        length = int.from_bytes(raw[position : position + width], "big", signed=True)
        position += width
        if position > end or not 0 <= length <= end - position:
            row["reason"] = f"{name} of {length} bytes do not fit"
            return False
        text = raw[position : position + length].decode("utf-8", "replace")
        row[f"{name}_length"] = length
        row[name] = parse_properties(text) if name == "properties" else text
        position += length
    row["_end"] = position
    return True


def _verdict(row: Row, available: int, expected_offset: int | None) -> Row:
    """Return state and reason of a record with all parts read."""
    end = row.pop("_end")
    crc = zlib.crc32(row["body"]) & BODY_CRC_MASK if row["body"] else 0
    reason = None
    if row["total_size"] > available:
        reason = f"its size field is {row['total_size']}, and {available} bytes are left"
    elif end != row["total_size"]:
        reason = f"its parts take {end} bytes, and its size field is {row['total_size']}"
    elif expected_offset is not None and row["physical_offset"] != expected_offset:
        reason = f"its own physical offset is {row['physical_offset']}"
    elif crc != row["body_crc"] & BODY_CRC_MASK:  # BoltMQ keeps the sign bit
        reason = f"the checksum of its body is {crc}, and its field has {row['body_crc']}"
    elif row["prepared_transaction_offset"] == LOST_MARK:
        return {"state": STATE_LOST, "reason": LOST_REASON}
    return {"state": "ok" if reason is None else "damaged", "reason": reason}


def _message(state: str, reason: str, path: str | None = None, position: int | None = None) -> Row:
    row: Row = dict.fromkeys(MESSAGE_FIELDS)
    return row | {"path": path, "position": position, "state": state, "reason": reason}


def _logs_of(path: str, logs: Sequence[str]) -> list[str]:
    """Return the log's directory or file for a path; none beside other `logs`."""
    inside = os.path.join(path, COMMIT_LOG_DIRECTORY)
    if os.path.isdir(inside):
        return [inside]
    for named in (path, *logs):
        if not os.path.exists(named):
            raise NotAStore(named, "no such file or directory")
    return [] if logs else [path]


def _file_at(paths: Sequence[str], offset: int) -> tuple[str, int] | None:
    """Return the file that holds a byte of a stream of files, and the byte's position in it."""
    files: list[tuple[int, str]] = []
    for path in paths:
        if os.path.isfile(path):
            files.append((parse_offset_name(os.path.basename(path)) or 0, path))
            continue
        starts = ((parse_offset_name(name), name) for name in os.listdir(path))
        files += [(start, os.path.join(path, name)) for start, name in starts if start is not None]
    if not files:
        raise NotAStore(paths[0], "holds no file with an offset as its name")
    files.sort()
    held = [(start, file) for start, file in files if start <= offset]
    if not held:
        return None
    start, file = held[-1]
    inside = offset - start < os.path.getsize(file)
    return (file, offset - start) if inside else None


def _read(path: str, position: int, size: int) -> bytes:
    with open(path, "rb") as file:
        file.seek(position)
        return file.read(size)
