"""`tubestore publish | recover`: a bulk load in one step; what a crash left, mended."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

import tubestore
from tubestore.cli.intake import PLACE_COLUMNS
from tubestore.cli.kit.arguments import is_empty, printing
from tubestore.cli.kit.errors import UsageMistake
from tubestore.cli.kit.output import Format, Output, emit_object, emit_rows
from tubestore.cli.kit.progress import watched
from tubestore.cli.kit.text import Column
from tubestore.cli.opening import open_existing
from tubestore.cli.tables import blaming, check_files, tables_of
from tubestore.errors import InvalidMessage, JobTaken, UnknownTopic
from tubestore.record.ingest import without
from tubestore.record.layouts import ATTRIBUTE_TIME, ATTRIBUTE_TYPE
from tubestore.shard.message_store import MessageStore
from tubestore.staging.job_files import StagedFile, check_job_id
from tubestore.staging.writer import StagedWriter
from tubestore.store.topic import shards_of

_DONE = (
    Column("job_id"),
    Column("number", "int64"),
    Column("replayed"),
    Column("messages", "int64"),
    Column("bytes", "int64"),
    Column("files", "int64"),
)
_RECOVERED = (
    Column("topic"),
    Column("store_id", "int32"),
    *(Column(n, "int64") for n in ("verified", "reindexed", "data_cut", "index_cut", "problems")),
)


def publish(
    root: str,
    job_id: str,
    files: Sequence[str],
    *,
    staged: str | None,
    topic: str | None,
    create: bool,
    format: Format,
) -> None:
    """Stage files, or take what was staged, and publish it; print what became of it."""
    if format not in (Format.TEXT, Format.JSONL):
        raise UsageMistake("publish reports as text or jsonl")
    if bool(files) == bool(staged):
        raise UsageMistake("give files to load, or --staged with what tasks have staged")
    check_job_id(job_id)
    check_files(list(files))
    before = _staged_before(staged) if staged else []
    if is_empty(root) and not create and topic is None:
        raise UsageMistake(f"{root}: there are no topics; --create makes those that are missing")
    with open_existing(root, None if create else topic) as store:
        found = before if staged else _stage(store, root, job_id, files, topic)
        try:
            result = store.publish(job_id, found, create_topics=create)
        except (InvalidMessage, JobTaken, UnknownTopic):
            if files:  # no other process has staged for it
                store.abort(job_id)
            raise
    row = {
        "job_id": result.job_id,
        "number": result.number,
        "replayed": result.replayed,
        "messages": result.rows,
        "bytes": result.data_size,
        "files": 2 * len(result.files),
    }
    emit_object(row, _DONE, Output(format))


def _staged_before(path: str) -> list[dict[str, Any]]:
    try:
        return [json.loads(line) for line in Path(path).read_text().splitlines() if line.strip()]
    except (ValueError, RecursionError) as error:
        raise UsageMistake(f"{path}: not JSON Lines: {error}") from error


def _stage(
    store: tubestore.MessageStoreManager,
    root: str,
    job_id: str,
    files: Sequence[str],
    topic: str | None,
) -> list[StagedFile]:
    settings = {name: store.topic(name).options for name in store.topics()}
    with StagedWriter(root, job_id, f"cli-{uuid.uuid4().hex[:8]}", topics=settings) as writer:
        for path in files:
            for where, table in watched(tables_of(path), path, lambda found: found[1].num_rows):
                with blaming(where):
                    table = _as_given(table)
                    if "topic" not in table.column_names and topic is not None:
                        names = pa.array([topic] * table.num_rows, pa.string())
                        table = table.append_column("topic", names)
                    writer.write(table)
        return writer.finish()


def _as_given(table: pa.Table) -> pa.Table:
    """Return the columns of an append of a table that `read` may have written."""
    table = table.drop_columns([n for n in table.column_names if n in PLACE_COLUMNS])
    place = table.column_names.index("attributes") if "attributes" in table.column_names else -1
    if place >= 0 and pa.types.is_map(table.schema.types[place]):
        maps = table.column(place).combine_chunks()
        own = without(maps, [ATTRIBUTE_TIME, ATTRIBUTE_TYPE])
        table = table.set_column(place, "attributes", own)
    return table


def recover(root: str, *, out: str | None, **how: Any) -> None:
    """Open all shards for writing, and print a row for each."""
    with printing(out, **how) as output:
        emit_rows([] if is_empty(root) else _recover_shards(root), _RECOVERED, output)


def _recover_shards(root: str) -> list[dict[str, Any]]:
    with open_existing(root) as store:
        shards = [
            (name, store_id)
            for name in store.topics()
            for store_id in range(store.topic(name).options.stores)
            if shards_of(store.topic(name)).exists(store_id)
        ]
        rows = (
            {"topic": name, "store_id": store_id, **_report(store.topic(name), store_id)}
            for name, store_id in shards
        )
        return list(watched(rows, "shards", lambda _: 1, len(shards)))


def _report(topic: tubestore.Topic, store_id: int) -> dict[str, int]:
    shard = shards_of(topic).shard(store_id)
    assert isinstance(shard, MessageStore)
    found = shard.recovered
    return {
        "verified": found.verified,
        "reindexed": found.reindexed,
        "data_cut": found.data_cut,
        "index_cut": found.index_cut,
        "problems": len(found.problems),
    }
