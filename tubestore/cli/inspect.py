"""`tubestore stat | dump | check`: look into a directory without changing it."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from tubestore.cli.kit.arguments import (
    Planned,
    below_root,
    check_topic,
    emit_findings,
    emit_found,
    printing,
)
from tubestore.cli.kit.batches import emit_batches
from tubestore.cli.kit.errors import EXIT_FINDINGS, Leave
from tubestore.cli.kit.output import Format, Summary, emit_prometheus
from tubestore.cli.kit.progress import watching
from tubestore.cli.kit.text import Column, Kind, Row
from tubestore.cli.opening import note_journal
from tubestore.core.paths import OWN_DIRECTORY, join
from tubestore.disks.roots import disk_of
from tubestore.record.names import LOCK_FILE
from tubestore.segments.listing import check_root, find_shards

STAT_COLUMNS = (
    Column("topic"),
    Column("store_id", "int32"),
    *(
        Column(name, "int64")
        for name in ("index_min", "index_max", "data_min", "data_max", "entries")
    ),
    Column("data_files", "int32"),
    Column("index_files", "int32"),
)
CHECK_COLUMNS = (
    Column("path", "line"),
    Column("position", "int64"),
    Column("reason"),
    Column("message", "line"),
    Column("severity"),
)
REPAIR_COLUMNS = (
    Column("path", "line"),
    Column("action"),
    Column("position", "int64"),
    Column("bytes", "int64"),
    Column("message", "line"),
)
#: What of a dump fits on a line of text.
_DUMP_TEXT = (
    "topic",
    "store_id",
    "partition",
    "index_offset",
    "data_offset",
    "data_size",
    "received_time",
    "state",
)


def stat(
    root: str, topic: str | None, store_id: int | None, prometheus: bool = False,
    *, out: str | None, **how: Any,
) -> None:  # fmt: skip
    """Print a row a shard from the names and lengths of its files."""
    shards = find_shards(root, topic=topic, store_id=store_id)
    check_topic(root, topic, store_id)
    note_journal(root, topic, store_id)
    with printing(out, **how) as output:
        if prometheus:
            from tubestore import metrics

            rows_of = [shard.statistics() for shard in shards]
            labels = ("topic", "store_id")
            emit_prometheus(
                lambda: metrics.rows_text("tubestore_shard", metrics.FILE_METRICS, labels, rows_of)
            )
            return
        rows = (shard.statistics() for shard in shards)
        emit_found(rows, STAT_COLUMNS, output, "no shards: nothing was appended here yet")


def dump(root: str, chosen: dict[str, Any], *, out: str | None, **how: Any) -> None:
    """Print every row of the store."""
    from tubestore.offline import dump as dumping

    check_topic(root, chosen["topic"], chosen["store_id"])
    note_journal(root, chosen["topic"], chosen["store_id"])
    schema = dumping.RAW_SCHEMA if chosen["raw"] else dumping.DUMP_SCHEMA
    columns = columns_of(schema)
    with printing(out, **how) as output:
        if output.format is Format.TEXT:
            last = ("payload",) if chosen["raw"] else ("attributes", "body")
            columns = tuple(c for c in columns if c.name in (*_DUMP_TEXT, *last))
        emit_batches(
            dumping.dump(root, **chosen),
            schema,
            columns,
            output,
            "no messages",
            to_rows=dumping.rows_of,
            position=_dump_position,
            summary=Summary(complete=not chosen["trust_index"]),
        )


def _dump_position(row: Row) -> dict[str, Any]:
    """Return what to give to go on at a row: --topic, --store-id and --offset."""
    return {"topic": row["topic"], "store_id": row["store_id"], "offset": row["index_offset"]}


def check(
    root: str,
    topic: str | None,
    store_id: int | None,
    *,
    accept: bool,
    everything: bool,
    out: str | None,
    **how: Any,
) -> None:
    """Print a row for each finding; exit code 1 if any was not accepted."""
    from tubestore.offline import check as checking

    check_root(root, disk_of(root))
    check_topic(root, topic, store_id)
    with printing(out, **how) as output, watching("check", in_bytes=True) as watch:
        findings = checking.check(
            root,
            topic=topic,
            store_id=store_id,
            is_written=lambda: has_writer(root),
            watch=watch,
        )
        rows = (finding.as_row() for finding in findings)
        found = emit_findings(
            rows, CHECK_COLUMNS, output, root, accept=accept, everything=everything,
            partly=topic is not None or store_id is not None,
        )  # fmt: skip
    if found:
        raise Leave(EXIT_FINDINGS)


def repair(
    root: str,
    topic: str | None,
    store_id: int | None,
    *,
    apply: bool,
    out: str | None,
    **how: Any,
) -> None:
    """Print a row an action; exit code 1 if something is to be done and was not."""
    from tubestore.offline import repair as repairing

    check_topic(root, topic, store_id)
    with printing(out, **how) as output, watching("repair", in_bytes=True) as watch:
        actions = repairing.repair(
            root,
            apply=apply,
            topic=topic,
            store_id=store_id,
            is_written=lambda: has_writer(root),
            watch=watch,
        )
        planned = Planned()
        rows = (below_root(root, row) for row in planned.counted(a.as_row() for a in actions))
        emit_found(rows, REPAIR_COLUMNS, output, "nothing to repair")
    planned.note("tubestore", applied=apply)
    if planned.to_do and not apply:
        raise Leave(EXIT_FINDINGS)


def columns_of(schema: pa.Schema) -> tuple[Column, ...]:
    """Return the columns that print an Arrow schema."""
    kinds: dict[pa.DataType, Kind] = {
        pa.int32(): "int32",
        pa.int64(): "int64",
        pa.string(): "text",
        pa.large_binary(): "bytes",
        pa.map_(pa.string(), pa.string()): "map",
    }
    return tuple(
        Column(field.name, "ms" if field.name == "received_time" else kinds[field.type])
        for field in schema
    )


def has_writer(root: str) -> bool:
    """Return whether a process holds the store's lock, as far as can be seen without taking it."""
    return bool(disk_of(root).lock_owners(join(root, OWN_DIRECTORY, LOCK_FILE)))
