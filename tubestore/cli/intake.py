"""What `tubestore append` reads: blocks of whole lines, lines as messages, or JSON Lines.

Lines are handed on as soon as they arrive: from a slow pipe one by one, from a file a MiB at a
time, so appending is quick for the one and prompt for the other.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import select
import stat
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, BinaryIO, NamedTuple, cast

import pyarrow as pa

from tubestore.cli.kit.arguments import json_of_line, parse_bound
from tubestore.cli.kit.errors import UsageMistake
from tubestore.clock import SystemClock
from tubestore.messages import MESSAGE_SCHEMA
from tubestore.record.layouts import ATTRIBUTE_TIME, ATTRIBUTE_TYPE, PAYLOAD_SIZE_MAX

_BLOCK_BYTES = 1 << 20
_LOOK_SECONDS = 0.5
_NUMBER_MAX = 1 << 63
#: A text of more characters is no number of a partition.
_DIGITS_MAX = 20
#: How much of a value an error shows.
_SHOWN = 60

#: What a JSON line may have; the second set is printed by `read` and `dump` and ignored here.
_FIELDS = {"body", "text", "partition", "partition_id", "key", "filter_item", "attributes"}
_FIELDS |= {"received_time", "received_time_ms"}
_PASSED_OVER = {"topic", "msg_id", "report_address"}
#: Of these, the former place of a message, which a load ignores too.
PLACE_COLUMNS = {"store_id", "offset", "index_offset", "data_offset", "data_size"}
PLACE_COLUMNS |= {"key_code", "flag", "checksum", "state"}
_PASSED_OVER |= PLACE_COLUMNS


#: Columns of a batch; those that no row has are left out.
_TYPES = {
    "topic": pa.string(),
    "body": pa.large_binary(),
    "partition": pa.int64(),
    "key": pa.string(),
    "filter_item": pa.string(),
    "attributes": MESSAGE_SCHEMA.field("attributes").type,
    "received_time_ms": pa.int64(),
}


class Block(NamedTuple):
    """Whole lines of one input: its name, the number of the first line, the bytes."""

    name: str
    first_line: int
    lines: int
    data: bytes


def total_bytes(files: Sequence[str]) -> int | None:
    """Return how much there is to read, None if that cannot be known."""
    if all(name != "-" and os.path.isfile(name) for name in files):
        return sum(os.path.getsize(name) for name in files)
    return None


def check_readable(files: Sequence[str]) -> None:
    """Raise OSError for a file that cannot be read; "-" and pipes are left to wait."""
    for name in files:
        if name != "-" and not stat.S_ISFIFO(os.stat(name).st_mode):
            open(name, "rb").close()


def blocks_of(files: Sequence[str]) -> Iterator[Block]:
    """Read the files one after the other, "-" being stdin."""
    for name in files:
        if name == "-":
            yield from _blocks("stdin", cast(BinaryIO, sys.stdin.buffer), arriving=True)
        else:
            with open(name, "rb") as file:
                yield from _blocks(name, file)


def _blocks(name: str, file: BinaryIO, *, arriving: bool = False) -> Iterator[Block]:
    line, rest = 1, b""
    while True:
        if arriving:
            _wait_for(file)
        chunk = file.read1(_BLOCK_BYTES)  # type: ignore[attr-defined]
        if not chunk:
            break
        end = chunk.rfind(b"\n") + 1
        if not end:
            rest += chunk
            if len(rest) > 2 * PAYLOAD_SIZE_MAX:  # base64 takes more room than the body
                raise UsageMistake(f"{name}, line {line}: longer than any message may be")
            continue
        data, rest = rest + chunk[:end], chunk[end:]
        count = data.count(b"\n")
        yield Block(name, line, count, data)
        line += count
    if rest:
        yield Block(name, line, 1, rest)


def _wait_for(file: BinaryIO) -> None:
    """Wait until something can be read, looking up now and then.

    An interrupt that comes just before a read that blocks is not heard before the read ends.
    """
    try:
        number = file.fileno()
    except OSError:  # takes the place of a file
        return
    while not select.select([number], [], [], _LOOK_SECONDS)[0]:
        pass


def lines_of(block: Block, defaults: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a message a line, without its end; empty lines are none."""
    return [{"body": line, **defaults} for line in block.data.split(b"\n") if line]


def rows_of(block: Block, defaults: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a message a JSON line."""
    return [row for _, row in lined_rows_of(block, defaults)]


def lined_rows_of(
    block: Block, defaults: Mapping[str, Any], *, with_topic: bool = False
) -> list[tuple[int, dict[str, Any]]]:
    """Return (line, message) of each JSON line; `with_topic`: a message may name its topic."""
    rows = []
    for number, line in enumerate(block.data.split(b"\n"), block.first_line):
        if line.strip():
            try:
                given = json_of_line(line.decode())
                row = {**defaults, **_row(given)}
                if with_topic and given.get("topic") is not None:
                    row["topic"] = _typed("topic", given["topic"], str)
                rows.append((number, row))
            except UnicodeDecodeError as error:
                text = "gzip; unpack it first" if line[:2] == b"\x1f\x8b" else f"no UTF-8: {error}"
                raise UsageMistake(f"{block.name}, line {number}: {text}") from error
            except json.JSONDecodeError as error:
                text = f"not JSON: {error.msg} at character {error.pos + 1}"
                raise UsageMistake(f"{block.name}, line {number}: {text}") from error
            except (ValueError, TypeError, AttributeError, UsageMistake) as error:
                raise UsageMistake(f"{block.name}, line {number}: {error}") from error
    return rows


def table_of(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Return messages as a table; columns that no row has are left out."""
    used = {name for row in rows for name in row}
    if "received_time_ms" in used:
        now = SystemClock().now_ms()
        rows = [{"received_time_ms": now, **row} for row in rows]
    if "partition" in used and any("partition" not in row for row in rows):
        raise UsageMistake("some messages name a partition and some do not; --partition for all?")
    return pa.table(
        {
            name: pa.array([row.get(name) for row in rows], kind)
            for name, kind in _TYPES.items()
            if name in used
        }
    )


def _row(given: Any) -> dict[str, Any]:
    """Return the columns of a message from its JSON object."""
    if not isinstance(given, dict):
        raise UsageMistake("not a JSON object")
    unknown = set(given) - _FIELDS - _PASSED_OVER
    if unknown:
        raise UsageMistake(f"unknown field {min(unknown)!r}; known: {', '.join(sorted(_FIELDS))}")
    row: dict[str, Any] = {"body": _body(given)}
    partition = given.get("partition", given.get("partition_id"))
    time = given.get("received_time", given.get("received_time_ms"))
    if isinstance(time, str):
        time = parse_bound(time)
    if isinstance(partition, str) and len(partition) < _DIGITS_MAX:
        partition = int(partition)
    attributes = _typed("attributes", given.get("attributes") or {}, dict)
    for name, value in attributes.items():
        _typed(f"attribute {name!r}", value, str)
    attributes = {n: v for n, v in attributes.items() if n != ATTRIBUTE_TIME}  # of received_time
    item = attributes.pop(ATTRIBUTE_TYPE, None)
    values = {
        "partition": _typed("partition", partition, int),
        "received_time_ms": _typed("received_time", time, int),
        "key": _typed("key", given.get("key"), str),
        "filter_item": _typed("filter_item", given.get("filter_item"), str) or item,
        "attributes": attributes or None,
    }
    return row | {name: value for name, value in values.items() if value is not None}


_KINDS = {int: "a whole number", str: "text", dict: "an object"}


def _typed(name: str, value: Any, kind: type) -> Any:
    """Return a field's value, None for null; UsageMistake for one of another type."""
    if value is None:
        return None
    if not isinstance(value, kind) or isinstance(value, bool):
        raise UsageMistake(f"{name} {_shown(value)} is not {_KINDS[kind]}")
    if isinstance(value, int) and not -_NUMBER_MAX <= value < _NUMBER_MAX:
        raise UsageMistake(f"{name} {_shown(value)} does not fit into 64 bits")
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise UsageMistake(f"{name}: no text: {error}") from error
    return value


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _body(given: Mapping[str, Any]) -> bytes:
    text = given.get("text")
    if (text is None) == (given.get("body") is None):
        raise UsageMistake("one of body (base64) and text is needed")
    if text is not None:
        if not isinstance(text, str):
            raise UsageMistake(f"text {_shown(text)} is not text")
        return text.encode("utf-8", "surrogatepass")
    try:
        return base64.b64decode(given["body"], validate=True)
    except (binascii.Error, TypeError, ValueError):
        raise UsageMistake("body is not base64; plain text goes into text") from None
