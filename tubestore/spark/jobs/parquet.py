"""A store as Parquet files, and Parquet files as messages of a store.

    <out>/topic=<topic>/part-<split>-<number>.parquet

The layout is that of Hive, Spark and `CONVERT TO DELTA`: the topic is in the directory's name
(quoted as in a URL), not in the file. A file gets its name when it is whole, and the name contains
the number of its split: a job that is run again writes the same files, and in the order of their
names they have the messages in the order of their offsets.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

import pyarrow as pa
import pyarrow.parquet as pq

from tubestore.core.old_paths import renamed_keyword
from tubestore.errors import InvalidMessage, InvalidOption
from tubestore.spark.kit.loads import Load
from tubestore.spark.kit.options import ReadOptions
from tubestore.spark.kit.publishing import (
    Published,
    load_arguments,
    stage_and_publish,
    staged_row,
)
from tubestore.spark.kit.running import Done, Row, Watch, run, silent, split_key
from tubestore.spark.kit.shapes import SHAPES
from tubestore.spark.kit.write_options import WriteOptions
from tubestore.spark.planning import Plan, Split, plan
from tubestore.spark.reading import Reading
from tubestore.staging.rejected import OPTION

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Rows of a group in a file, about.
_GROUP_BYTES = 64 << 20
_TOPIC = "topic="
#: Row groups are put together to splits of about so many bytes.
_SPLIT_BYTES = 128 << 20


@dataclass(frozen=True)
class ExportJob:
    """Writes splits of a store as Parquet files."""

    out: str
    reading: Reading
    compression: str
    root: str
    name: str = "export"

    def arguments(self) -> Mapping[str, Any]:
        """Return the arguments that identify this job."""
        columns = self.reading.schema.names
        return {"root": self.root, "out": self.out, "columns": columns}

    def work(self, number: int, split: Split) -> Row:
        """Write one split: a file a portion."""
        key, files, rows, size = split_key(split), [], 0, 0
        for place, portion in enumerate(split.portions):
            directory = os.path.join(self.out, _TOPIC + quote(portion.shard.topic, safe=""))
            os.makedirs(directory, exist_ok=True)
            path = os.path.join(directory, f"part-{number:05d}-{key[:12]}-{place}.parquet")
            count = self._write(path, Split((portion,)))
            if count:
                files.append(path)
                rows += count
                size += os.path.getsize(path)
        return {"split": number, "rows": rows, "bytes": size, "files": files}

    def _write(self, path: str, split: Split) -> int:
        temporary = f"{path}.{uuid.uuid4().hex}.tmp"
        rows = 0
        try:
            with pq.ParquetWriter(
                temporary, self.reading.schema, compression=self.compression
            ) as writer:
                for group in _groups(self.reading.batches(split)):
                    writer.write_table(group)
                    rows += group.num_rows
            if rows:
                os.replace(temporary, path)
        finally:
            Path(temporary).unlink(missing_ok=True)
        return rows


def _groups(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Put batches together to row groups."""
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        held.append(batch)
        size += batch.nbytes
        if size >= _GROUP_BYTES:
            yield pa.Table.from_batches(held)
            held, size = [], 0
    if held:
        yield pa.Table.from_batches(held)


@dataclass(frozen=True, slots=True)
class ExportResult:
    """What was written."""

    files: list[str]
    rows: int
    bytes: int
    done: Done


def plan_export(
    root: str, out: str, columns: list[str] | None, compression: str, given: Mapping[str, str]
) -> tuple[ExportJob, Plan]:
    """Plan an export; InvalidOption if there are other files in `out`."""
    options = ReadOptions.parse({"path": root, **given})
    shape = SHAPES[options.shape]
    names = [n for n in (columns or shape.schema.names) if n != "topic"]
    reading = Reading(
        shape, shape.part(names), root, options.filter, options.verify_crc, options.fail_on_corrupt
    )
    return ExportJob(os.path.abspath(out), reading, compression, root), plan(options)


@renamed_keyword("told", "watch")
def export(
    spark: SparkSession,
    root: str,
    out: str,
    *,
    columns: list[str] | None = None,
    compression: str = "zstd",
    job_id: str | None = None,
    watch: Watch = silent,
    **options: str,
) -> ExportResult:
    """Write a store's messages as Parquet files; `options` as those of `read`.

    The files of a directory are one export: it has to be empty, unless `job_id` goes on with one.
    """
    job, made = plan_export(root, out, columns, compression, options)
    if job_id is None and any(Path(out).glob("**/*.parquet")):
        raise InvalidOption("out", f"{out}: there are Parquet files already")
    done = run(spark, job, made.splits, job_id=job_id, watch=watch)
    os.makedirs(out, exist_ok=True)
    Path(out, "_SUCCESS").touch()
    files = [path for row in done.rows for path in row["files"]]
    rows, size = sum(r["rows"] for r in done.rows), sum(r["bytes"] for r in done.rows)
    return ExportResult(files, rows, size, done)


# -- import ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ParquetSplit:
    """Some row groups of one file."""

    path: str
    first: int
    end: int
    topic: str | None
    bytes: int
    #: When the file was written, ns: another file of its name is another split.
    modified: int


@dataclass(frozen=True)
class ImportJob:
    """Stages row groups of Parquet files."""

    job_id: str
    load: Load
    #: With the topic in the directory's name.
    add_topic: bool
    name: str = "import"

    def arguments(self) -> Mapping[str, Any]:
        """Return the arguments that identify this job."""
        return load_arguments(self)

    def work(self, number: int, split: ParquetSplit) -> Row:
        """Stage one split."""
        staged = self.load.stage(self.job_id, f"{number}", self._batches(split), sync=True)
        return staged_row(number, staged)

    def _batches(self, split: ParquetSplit) -> Iterator[pa.RecordBatch]:
        with pq.ParquetFile(split.path) as file:
            groups = range(split.first, split.end)
            for batch in file.iter_batches(row_groups=list(groups), batch_size=4096):
                if self.add_topic:
                    topic = pa.repeat(pa.scalar(split.topic), batch.num_rows)
                    batch = batch.append_column("topic", topic)
                yield batch


def plan_import(
    source: str, root: str, job_id: str, given: Mapping[str, str]
) -> tuple[ImportJob, list[ParquetSplit]]:
    """Plan an import: all Parquet files below a directory, or one file, of one schema."""
    found = Path(source)
    paths = [found] if found.is_file() else sorted(found.glob("**/*.parquet"))
    if not paths:
        raise InvalidOption("source", f"{source}: no Parquet file")
    splits: list[ParquetSplit] = []
    schema = None
    for path in paths:
        with pq.ParquetFile(path) as file:
            if schema is not None and not file.schema_arrow.equals(schema):
                raise InvalidMessage(f"{path}: other columns than {paths[0]}")
            schema = file.schema_arrow
            splits += _file_splits(str(path), file.metadata)
    assert schema is not None
    options = WriteOptions.parse({"path": root, "jobId": job_id, **given})
    if options.rejected_path is not None:
        text = "an import has no such place: write the DataFrame of the files"
        raise InvalidOption(OPTION, text)
    add_topic = splits[0].topic is not None and "topic" not in schema.names
    if add_topic:
        schema = schema.append(pa.field("topic", pa.string()))
    load = Load.prepare(options, schema)
    return ImportJob(job_id, load, add_topic), splits


def describe_import(source: str, root: str, job_id: str, given: Mapping[str, str]) -> str:
    """Describe what an import would read."""
    _, splits = plan_import(source, root, job_id, given)
    return f"{source}: {len({split.path for split in splits})} files in {len(splits)} splits"


def _file_splits(path: str, metadata: Any) -> Iterator[ParquetSplit]:
    """Put row groups of a file together."""
    name, modified = Path(path).parent.name, os.stat(path).st_mtime_ns
    topic = unquote(name.removeprefix(_TOPIC)) if name.startswith(_TOPIC) else None
    first = size = 0
    for group in range(metadata.num_row_groups):
        size += metadata.row_group(group).total_byte_size
        if size >= _SPLIT_BYTES or group == metadata.num_row_groups - 1:
            yield ParquetSplit(path, first, group + 1, topic, size, modified)
            first, size = group + 1, 0


@renamed_keyword("told", "watch")
def import_parquet(
    spark: SparkSession,
    source: str,
    root: str,
    *,
    job_id: str,
    watch: Watch = silent,
    **options: str,
) -> Published:
    """Append the rows of Parquet files to a store, all or none, one time only for each `job_id`.

    Columns and `options` as those of `write`.
    """
    job, splits = plan_import(source, root, job_id, options)
    return stage_and_publish(spark, job, splits, job.load, job_id, watch)
