"""Files of messages, read as tables: JSON Lines, CSV, Parquet, Arrow.

What is wrong with a file is one error with the line or row, the column, and the reason.
"""

from __future__ import annotations

import base64
import binascii
import codecs
import csv
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, BinaryIO, Literal

import pyarrow as pa

from rocketcompat.record.rows import MESSAGE_SCHEMA
from tubestore.cli.kit.arguments import json_of_line
from tubestore.clock import SystemClock
from tubestore.errors import InvalidMessage, TubeStoreError
from tubestore.values import UsageMistake, parse_time

FileFormat = Literal["jsonl", "csv", "parquet", "arrow"]
TEXT_COLUMN = "properties_text"
#: The columns of a file: those of a message, and its property string as it was stored.
SCHEMA = MESSAGE_SCHEMA.append(pa.field(TEXT_COLUMN, pa.string()))
_ROWS = 10_000
Check = Callable[[pa.Table], None]
#: What the code below raises for a row that cannot be taken.
_BAD = (ValueError, TypeError, OverflowError, pa.ArrowException, TubeStoreError)
#: How files begin that have another format than their names.
_PACKED = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"PK\x03\x04": "zip"}
_CELL_CHARACTERS = 1 << 30
#: So much of a value that cannot be used is in its error.
_SHOWN = 40


def read_tables(path: str, kind: FileFormat, check: Check = lambda _: None) -> Iterator[pa.Table]:
    """Yield the messages of a file by the batch; columns as in `SCHEMA`, some missing.

    `check` raises for a table with a row that cannot be taken. InvalidMessage names the file, the
    line or row, the column where there is one, and the reason.
    """
    if kind in ("jsonl", "csv"):
        with open(path, "rb") as file:
            lines = _text_lines(path, file)
            rows = _json_rows(path, lines) if kind == "jsonl" else _csv_rows(path, lines)
            while batch := list(islice(rows, _ROWS)):
                names = {name for _, row in batch for name in row}
                fields = [field for field in SCHEMA if field.name in names]
                table = pa.Table.from_pylist([row for _, row in batch], pa.schema(fields))
                places = [f"line {number}" for number, _ in batch]
                yield _checked(path, table, places, check)
        return
    first = 0
    for table in _stored_tables(path, kind):
        unknown = set(table.column_names) - {field.name for field in SCHEMA}
        if unknown:
            raise InvalidMessage(f"{path}: unknown columns {sorted(unknown)}")
        places = [f"row {first + row}" for row in range(table.num_rows)]
        yield _checked(path, table, places, check)
        first += table.num_rows


def _checked(path: str, table: pa.Table, places: Sequence[str], check: Check) -> pa.Table:
    """Return a table with the types of `SCHEMA`; InvalidMessage names its first bad row."""

    def fault(rows: pa.Table) -> Exception | None:
        try:
            check(_of_schema(rows))
        except _BAD as error:
            return error
        return None

    error = fault(table)
    if error is None:
        return _of_schema(table)
    first, count = 0, table.num_rows
    while count > 1:
        half = count // 2
        found = fault(table.slice(first, half))
        if found is None:
            first, half = first + half, count - half
            found = fault(table.slice(first, half))
        if found is None:  # each half can be taken: the rows do not go together
            raise InvalidMessage(f"{path}, from {places[first - count // 2]} on: {error}")
        error, count = found, half
    raise InvalidMessage(f"{path}, {places[first]}: {_reason(error)}") from None


def _reason(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else repr(error)


def _of_schema(table: pa.Table) -> pa.Table:
    """Return a table with the types of `SCHEMA`; InvalidMessage names the column."""
    columns = {}
    for name in table.column_names:
        kind = SCHEMA.field(name).type
        try:
            columns[name] = table[name].cast(kind)
            columns[name].validate(full=True)
        except (pa.ArrowException, ValueError) as error:
            raise InvalidMessage(f"{name}: {_reason(error)}") from None
    return pa.table(columns)


def _stored_tables(path: str, kind: FileFormat) -> Iterator[pa.Table]:
    """Yield the tables of an Arrow or Parquet file; InvalidMessage where it cannot be read."""
    rows = 0
    with open(path, "rb") as file:  # raises the operating system's errors that it should
        try:
            if kind == "parquet":
                import pyarrow.parquet as pq

                batches = iter(pq.ParquetFile(file).iter_batches(_ROWS))
            else:
                batches = iter(pa.ipc.open_stream(file))
            for batch in batches:
                yield pa.Table.from_batches([batch])
                rows += batch.num_rows
        except (pa.ArrowException, OSError, ValueError) as error:
            behind = f" behind row {rows - 1}" if rows else ""
            text = f"{path}: no whole {kind} file{behind}: {_reason(error)}"
            raise InvalidMessage(text) from None


def _text_lines(path: str, file: BinaryIO) -> Iterator[tuple[int, str]]:
    """Yield (number, text) of the lines of a file; InvalidMessage names one that is not UTF-8."""
    for number, raw in enumerate(file, 1):
        if number == 1:
            packed = next((n for magic, n in _PACKED.items() if raw.startswith(magic)), None)
            if packed:
                raise InvalidMessage(f"{path}: packed with {packed}: unpack it first")
            raw = raw.removeprefix(codecs.BOM_UTF8)
        try:
            yield number, raw.decode("utf-8")
        except UnicodeDecodeError as error:
            where = f"{path}, line {number}, byte {error.start + 1}"
            raise InvalidMessage(f"{where}: no UTF-8: {error.reason}") from None


def _json_rows(path: str, lines: Iterable[tuple[int, str]]) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in lines:
        if not line.strip():
            continue
        try:
            row = _json_of(line)
            if not isinstance(row, dict):
                raise ValueError("no JSON object")
            yield number, _row_of(row)
        except json.JSONDecodeError as error:
            where = f"{path}, line {number}, column {error.colno}"
            raise InvalidMessage(f"{where}: no JSON: {error.msg}") from None
        except _BAD as error:
            raise InvalidMessage(f"{path}, line {number}: {error}") from None


def _json_of(text: str) -> Any:
    return json_of_line(text, parse_constant=_refuse_constant)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number of JSON")


def _csv_rows(path: str, lines: Iterable[tuple[int, str]]) -> Iterator[tuple[int, dict[str, Any]]]:
    csv.field_size_limit(_CELL_CHARACTERS)  # a body in base64 is one cell
    cells = csv.reader((line for _, line in lines), strict=True)
    number = 0
    try:
        header = next(cells, [])
        if len(set(header)) < len(header):
            raise ValueError("two columns have one name")
        for row in cells:
            number = cells.line_num
            if not row:
                continue
            if len(row) != len(header):
                raise ValueError(f"{len(row)} cells, and {len(header)} columns")
            named = zip(header, row, strict=True)
            filled: dict[str, Any] = {name: value for name, value in named if value}
            for name in ("properties",) if "properties" in filled else ():
                try:
                    filled[name] = _json_of(filled[name])
                except ValueError as error:
                    raise ValueError(f"{name}: no JSON: {error}") from None
            yield number, _row_of(filled)
    except (csv.Error, *_BAD) as error:
        if isinstance(error, InvalidMessage):
            raise
        raise InvalidMessage(f"{path}, line {max(number, cells.line_num)}: {error}") from None


def _row_of(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of text as Arrow takes it; ValueError names the column that it cannot take."""
    found: dict[str, Any] = {}
    text = row.pop("text", None)
    if text is not None:
        if not isinstance(text, str) or row.get("body") is not None:
            raise ValueError("text: a text is needed, and no body (base64) beside it")
        found["body"] = text.encode("utf-8", "surrogatepass")
        row.pop("body", None)
    for name, value in row.items():
        if name not in _KINDS:
            raise ValueError(f"unknown column {name!r}")
        try:
            found[name] = None if value is None else _KINDS[name](value)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
    return found


def _number_of(bits: int) -> Callable[[Any], int]:
    def convert(value: Any) -> int:
        if not isinstance(value, int | str) or isinstance(value, bool):
            raise ValueError(f"{value!r} is not a whole number")
        try:
            number = int(value)
        except ValueError:
            raise ValueError(f"{str(value)[:40]!r} is not a whole number") from None
        if not -(1 << bits - 1) <= number < 1 << bits - 1:
            raise ValueError(f"the number does not fit into {bits} bits")
        return number

    return convert


def _text_of(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{type(value).__name__} is given, and a text is expected")
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise ValueError("half a character (a lone surrogate)")
    return value


def _body_of(value: Any) -> bytes:
    try:
        return base64.b64decode(_text_of(value), validate=True)
    except binascii.Error:
        raise ValueError(
            f"{_shown(value)} is not base64, which bodies have in JSON and CSV"
        ) from None


def _shown(value: str) -> str:
    return repr(value if len(value) <= _SHOWN else value[:_SHOWN] + "…")


def _pairs_of(value: Any) -> list[tuple[str, str]]:
    if not isinstance(value, dict):
        raise ValueError("no object of names and texts")
    for name, text in value.items():
        try:
            _text_of(name), _text_of(text)
        except ValueError as error:
            raise ValueError(f"{name!r}: {error}") from None
    return list(value.items())


def _kind_of(field: pa.Field) -> Callable[[Any], Any]:
    if pa.types.is_integer(field.type):
        return _number_of(field.type.bit_width)
    if pa.types.is_map(field.type):
        return _pairs_of
    return _body_of if pa.types.is_large_binary(field.type) else _text_of


def _time_of(value: Any) -> int:
    """Return ms since the epoch: of a number, as `export` writes it, or of a text for people."""
    if not isinstance(value, str) or value.removeprefix("-").isdecimal():
        return _number_of(64)(value)
    try:
        return parse_time(value, SystemClock().now_ms())
    except UsageMistake as error:
        raise ValueError(error) from None


_KINDS = {field.name: _kind_of(field) for field in SCHEMA}
_KINDS |= dict.fromkeys(("born_timestamp", "store_timestamp"), _time_of)
