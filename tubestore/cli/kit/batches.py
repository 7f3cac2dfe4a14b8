"""Print Arrow batches: as they are for arrow and parquet, else row by row.

Shared by `tubestore` and `rocketcompat`; `output.py` has the contract. Holds a batch at a time.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, cast

import pyarrow as pa

from tubestore.cli.kit.arguments import emit_found
from tubestore.cli.kit.output import Format, Output, Summary, report
from tubestore.cli.kit.progress import watched
from tubestore.cli.kit.text import Column, Row


def emit_batches(
    batches: Iterable[pa.RecordBatch],
    schema: pa.Schema,
    columns: Sequence[Column],
    output: Output,
    nothing: str | Callable[[], str],
    *,
    to_rows: Callable[[pa.RecordBatch], Iterable[Row]],
    position: Callable[[Row], Any] | None = None,
    summary: Summary | None = None,
) -> Summary:
    """Print batches of `schema` up to the limit; return (and report) how it went.

    `to_rows` gives the rows that `columns` describe; `position` as in `emit_rows`, `nothing` as in
    `emit_found`.
    """
    batches = watched(batches, "messages", lambda batch: batch.num_rows)
    if output.format not in (Format.ARROW, Format.PARQUET):
        rows = (row for batch in batches for row in to_rows(batch))
        return emit_found(rows, columns, output, nothing, position=position, summary=summary)
    summary = summary or Summary()
    left_out = _write(batches, schema, output, summary)
    if left_out is not None:
        summary.truncated = True
        summary.next = position(next(iter(to_rows(left_out)))) if position else None
    summary.scanned = max(summary.scanned, summary.rows)
    report(summary, output)
    return summary


def _write(
    batches: Iterable[pa.RecordBatch], schema: pa.Schema, output: Output, summary: Summary
) -> pa.RecordBatch | None:
    """Write up to the limit; return the first row that was left out, as a batch of one."""
    sink: Any = pa.PythonFile(cast(Any, sys.stdout.buffer), "w")
    with _writer(sink, schema, output.format) as writer:
        for batch in batches:
            room = batch.num_rows
            if output.limit is not None:
                room = min(room, output.limit - summary.rows)
            if room:
                writer.write_batch(batch.slice(0, room))
                summary.rows += room
            if room < batch.num_rows:
                return batch.slice(room, 1)
    sys.stdout.buffer.flush()
    return None


def _writer(sink: Any, schema: pa.Schema, format: Format) -> Any:
    if format is Format.ARROW:
        return pa.ipc.new_stream(sink, schema)
    import pyarrow.parquet as pq

    return pq.ParquetWriter(sink, schema)


def counted(batches: Iterable[pa.RecordBatch], summary: Summary) -> Iterator[pa.RecordBatch]:
    """Count the rows that pass as scanned."""
    for batch in batches:
        summary.scanned += batch.num_rows
        yield batch
