"""What a command prints: rows or one object, in the format that was asked for, and a summary.

Shared by `tubestore` and `rocketcompat`; the contract is decisions.md D16:

- data on stdout and nothing else there; text unless another format is asked for, never guessed;
- jsonl is one JSON object a line: integers exact, bytes as base64 (a body as `text` with --text,
  where it is UTF-8), times in ms;
- a listing that was cut ends with one JSON line on stderr with `truncated`, `scanned`, `next`,
  and the same object in the file of `--summary`.

A command declares its columns once (`Column`) and hands rows as dicts to `emit_rows`, or one
dict to `emit_object`. Numbers must be Python's (`.tolist()`), bytes are `bytes`.

numpy and pyarrow are loaded only for the formats arrow and parquet, so that `--help` is quick.
Not thread-safe: one command writes.
"""

from __future__ import annotations

import base64
import contextlib
import csv
import enum
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Annotated, Any, cast

import typer

from tubestore.cli.kit.errors import UsageMistake
from tubestore.cli.kit.text import INT64_KINDS, Column, Row, write_object_text, write_text

#: Rows of one Arrow batch.
_BATCH_ROWS = 10_000


class Format(enum.StrEnum):
    """How data is printed."""

    TEXT = "text"
    JSONL = "jsonl"
    CSV = "csv"
    ARROW = "arrow"
    PARQUET = "parquet"


class Int64(enum.StrEnum):
    """How 64-bit integers are written in JSON and CSV."""

    NUMBER = "number"
    STRING = "string"


@dataclass(frozen=True, slots=True)
class Output:
    """What the user asked for; made from the options below."""

    format: Format = Format.TEXT
    int64: Int64 = Int64.NUMBER
    limit: int | None = None
    summary: str | None = None
    text: bool = False


@dataclass(slots=True)
class Summary:
    """How a listing went: `next` is where to go on if it was cut, `complete` if all was checked."""

    rows: int = 0
    scanned: int = 0
    truncated: bool = False
    next: Any = None
    complete: bool = True
    extra: dict[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return the object that is printed."""
        own = {
            "rows": self.rows,
            "scanned": self.scanned,
            "truncated": self.truncated,
            "next": self.next,
            "complete": self.complete,
        }
        return own | self.extra


# The options, used as annotations: `def dump(root: Root, format: FormatOption = Format.TEXT)`.
FormatOption = Annotated[Format, typer.Option("--format", "-f", help="Output format.")]
LongFormat = Annotated[Format, typer.Option("--format", help="Output format.")]  # -f follows
Int64Option = Annotated[
    Int64, typer.Option("--int64", help="64-bit integers as numbers or, for JavaScript, strings.")
]
TextOption = Annotated[
    bool, typer.Option("--text", help="JSON Lines: bodies that are UTF-8 as text, not as base64.")
]
LimitOption = Annotated[
    int | None, typer.Option("--limit", "-n", min=0, help="Stop after N rows, and report that.")
]
SummaryOption = Annotated[
    str | None, typer.Option("--summary", metavar="FILE", help="Write the summary to a file, too.")
]


def emit_prometheus(text: Callable[[], str]) -> None:
    """Print metrics in Prometheus' text format; UsageMistake without its package."""
    try:
        found = text()
    except ImportError:
        raise UsageMistake(
            "--prometheus needs prometheus-client: pip install 'tubestore[metrics]'"
        ) from None
    sys.stdout.write(found)


def emit_rows(
    rows: Iterable[Row],
    columns: Sequence[Column],
    output: Output,
    *,
    position: Callable[[Row], Any] | None = None,
    summary: Summary | None = None,
) -> Summary:
    """Print rows up to the limit; return (and report) how it went.

    `position(row)` is what the user gives to go on at a row; it is asked of the first row
    that was left out. A `summary` passed in may be filled further by the producer of the rows
    while they are drawn (`complete`, `extra`).
    """
    summary = summary or Summary()
    source = iter(rows)
    _write(_counted(source, output.limit, summary), columns, output)
    if output.limit is not None and summary.rows >= output.limit:
        for left_out in islice(source, 1):
            summary.truncated = True
            summary.next = position(left_out) if position else None
    summary.scanned = max(summary.scanned, summary.rows)
    report(summary, output)
    return summary


def emit_tables(
    tables: Iterable[Any],
    columns: Sequence[Column],
    output: Output,
    *,
    position: Callable[[Row], Any] | None = None,
    summary: Summary | None = None,
) -> Summary:
    """As `emit_rows`, of Arrow tables that have the columns' types, for a binary format."""
    summary = summary or Summary()
    left_out = None
    with _arrow_writer(columns, output.format) as write:
        for table in tables:
            room = table.num_rows if output.limit is None else output.limit - summary.rows
            write(table.slice(0, room))
            summary.rows += min(room, table.num_rows)
            if room < table.num_rows:
                left_out = table.slice(room, 1).to_pylist()[0]
                break
    if left_out is not None:
        summary.truncated = True
        summary.next = position(left_out) if position else None
    summary.scanned = max(summary.scanned, summary.rows)
    report(summary, output)
    return summary


def emit_object(value: Row, columns: Sequence[Column], output: Output) -> None:
    """Print one object; as csv, arrow and parquet, its one column of kind "rows" if it has one."""
    if output.format is Format.JSONL:
        sys.stdout.write(_json(_plain(value, columns, output)) + "\n")
    elif output.format is Format.TEXT:
        write_object_text(value, columns)
    else:
        nested = next((c for c in columns if c.kind == "rows"), None)
        rows = [value] if nested is None else value[nested.name]
        _write(rows, columns if nested is None else nested.columns, output)
    if output.summary:
        kinds = {c.name: c.kind for c in columns}
        small = {n: v for n, v in value.items() if kinds.get(n) not in ("row", "rows", "bytes")}
        _write_file(output.summary, small)


def report(summary: Summary, output: Output) -> None:
    """Write the summary to its file; to stderr only if something is missing from the listing."""
    value = summary.as_dict()
    if summary.truncated or not summary.complete:
        sys.stdout.flush()
        print(_json(value), file=sys.stderr)
    if output.summary:
        _write_file(output.summary, value)


def _counted(source: Iterator[Row], limit: int | None, summary: Summary) -> Iterator[Row]:
    for row in islice(source, limit):
        summary.rows += 1
        yield row


def _write(rows: Iterable[Row], columns: Sequence[Column], output: Output) -> None:
    """Print rows in the format that was asked for."""
    if output.format is Format.JSONL:
        write = sys.stdout.write
        for row in rows:
            write(_json(_plain(row, columns, output)) + "\n")
    elif output.format is Format.CSV:
        _write_csv(rows, columns, output)
    elif output.format is Format.TEXT:
        write_text(rows, columns)
    else:
        _write_arrow(rows, columns, output.format)


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def _write_file(path: str, value: Row) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(_json(value) + "\n")


def _plain(row: Row, columns: Sequence[Column], output: Output) -> dict[str, Any]:
    """Return a row as JSON takes it; a field without a column stays as it is."""
    plain = dict(row)
    as_text = output.int64 is Int64.STRING
    for column in columns:
        value = plain.get(column.name)
        if value is None:
            continue
        if column.name == "body" and output.text and output.format is Format.JSONL:
            name, text = _body(plain.pop("body"))
            plain[name] = text
        elif column.kind == "bytes":
            plain[column.name] = base64.b64encode(value).decode()
        elif column.kind == "rows":
            plain[column.name] = [v and _plain(v, column.columns, output) for v in value]
        elif column.kind == "row":
            plain[column.name] = _plain(value, column.columns, output)
        elif as_text and column.kind in INT64_KINDS:
            plain[column.name] = str(value)
        elif as_text and column.kind == "int64s":
            plain[column.name] = [v if v is None else str(v) for v in value]
    return plain


def _body(body: bytes) -> tuple[str, str]:
    """Return the name and the value of a body for people: `text`, or base64 if it is no UTF-8."""
    try:
        return "text", body.decode()
    except UnicodeDecodeError:
        return "body", base64.b64encode(body).decode()


def _write_csv(rows: Iterable[Row], columns: Sequence[Column], output: Output) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow([c.name for c in columns])
    for row in rows:
        plain = _plain(row, columns, output)
        cells = [plain.get(c.name) for c in columns]
        writer.writerow([_json(v) if isinstance(v, dict | list) else v for v in cells])


def _write_arrow(rows: Iterable[Row], columns: Sequence[Column], format: Format) -> None:
    """Write an Arrow stream or a Parquet file, a batch of rows at a time."""
    with _arrow_writer(columns, format) as write:
        import pyarrow as pa

        schema = _schema(columns)
        source = iter(rows)
        while batch := list(islice(source, _BATCH_ROWS)):
            plain = [{c.name: row.get(c.name) for c in columns} for row in batch]
            write(pa.Table.from_pylist(plain, schema))


@contextlib.contextmanager
def _arrow_writer(columns: Sequence[Column], format: Format) -> Iterator[Callable[[Any], None]]:
    """Open stdout as an Arrow stream or a Parquet file; gives what writes a table."""
    if sys.stdout.isatty():
        raise UsageMistake(f"--format {format} is binary: send it to a file or a program")
    import pyarrow as pa

    sink: Any = pa.PythonFile(cast(Any, sys.stdout.buffer), "w")
    writer: Any
    if format is Format.ARROW:
        writer = pa.ipc.new_stream(sink, _schema(columns))
    else:
        import pyarrow.parquet as pq

        writer = pq.ParquetWriter(sink, _schema(columns))
    with writer:
        yield writer.write_table
    sys.stdout.buffer.flush()


def _schema(columns: Sequence[Column]) -> Any:
    import pyarrow as pa

    return pa.schema([(c.name, _arrow_type(c)) for c in columns])


def _arrow_type(column: Column) -> Any:
    import pyarrow as pa

    if column.kind in ("row", "rows"):
        struct = pa.struct([(c.name, _arrow_type(c)) for c in column.columns])
        return struct if column.kind == "row" else pa.list_(struct)
    return {
        "int32": pa.int32(),
        "int64s": pa.list_(pa.int64()),
        **dict.fromkeys(INT64_KINDS, pa.int64()),
        "text": pa.string(),
        "line": pa.string(),
        "bytes": pa.large_binary(),
        "map": pa.map_(pa.string(), pa.string()),
    }[column.kind]
