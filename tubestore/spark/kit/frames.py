"""DataFrames over a store of either kind: options checked here, where the caller sees the error."""

from __future__ import annotations

import atexit
import functools
import json
import os
import pickle
import shutil
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tubestore.disks.roots import absolute_root
from tubestore.spark.kit.publishing import new_job_id, spread_over
from tubestore.spark.kit.pushdown import SETTING
from tubestore.staging.rejected import OPTION as REJECTED

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from tubestore.spark.kit.publishing import Written
    from tubestore.spark.kit.source import StoreSource

    Source = type[StoreSource]


def read_frame(
    source: Source,
    spark: SparkSession,
    path: str,
    columns: Sequence[str] | None,
    given: Mapping[str, Any],
    *,
    stream: bool = False,
    pushdown: bool | None = False,
) -> DataFrame:
    """Return the DataFrame of a store; see `read` and `read_stream` of both packages.

    `pushdown` None: where the session has Spark's setting for it.
    """
    from pyspark.sql.pandas.types import from_arrow_schema

    kind, texts = source.kind, texts_of(given)
    options = kind.read_options.parse({**texts, "path": str(path)}, stream=stream)
    if _on_the_driver(spark):
        path = absolute_root(options.path)  # Spark may run in another directory
        kind.check(replace(options, path=path))
    source.register(spark)
    shape, always = kind.shapes[options.shape], None
    if (
        pushdown is not False
        and _on_the_driver(spark)
        and spark.conf.get(SETTING).lower() == "true"
    ):
        always = kind.always.get(options.shape)
    if always is not None:
        texts["pushdown"] = os.path.join(_notes(), uuid.uuid4().hex)
    reader = (spark.readStream if stream else spark.read).format(kind.format).options(**texts)
    if columns is not None:
        names = [*shape.part(columns).names]
        more = [always] if always is not None and always not in names else []
        reader = reader.schema(from_arrow_schema(shape.part(names + more)))
    frame: DataFrame = reader.load(str(path))
    if always is None:
        return frame
    frame = frame.where(f"`{always}` IS NOT NULL")  # so that Spark asks at every use
    return frame if columns is None else frame.select(*columns)


@functools.cache
def _notes() -> str:
    """Return a directory of this process, for what its DataFrames have pushed down."""
    made = tempfile.mkdtemp(prefix="tubestore-pushed-")
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return made


def write_frame(
    source: Source,
    df: DataFrame,
    path: str,
    job_id: str | None,
    order_by: str | Sequence[str] | None,
    given: Mapping[str, Any],
) -> Written | None:
    """Append a DataFrame to a store; see `write` of both packages."""
    named = [str(value) for name, value in given.items() if name.lower() == "jobid"]
    if job_id is None:
        job_id = named[0] if named else new_job_id()
    texts = texts_of({n: value for n, value in given.items() if n.lower() != "jobid"}, job_id)
    path, load = _load(source, df, path, texts, stream=False)
    here = _on_the_driver(df.sparkSession)
    if order_by is not None:
        df, groups = source.kind.grouped(df, load)
        columns = [order_by] if isinstance(order_by, str) else list(order_by)
        df = df.repartition(*groups).sortWithinPartitions(*groups, *columns)
    writer = df.write.format(source.kind.format).mode("append").options(**texts)
    if not here:
        writer.save(path)
        return None
    if load.rejected_path is not None:
        writer = writer.option(REJECTED, load.rejected_path)
    staged = Path(_notes(), uuid.uuid4().hex)
    writer.option("handover", str(staged)).save(path)
    replayed = _publish(load, job_id, staged, df.sparkSession)
    written: Written = load.written(job_id, replayed=replayed)
    return written


def _publish(load: Any, job_id: str, staged: Path, spark: SparkSession) -> bool:
    """Publish in this process, which can have Spark write what is large; the sink's cannot.

    Returns whether the job was there already.
    """
    from tubestore.spark.kit import sink

    messages = pickle.loads(staged.read_bytes())
    staged.unlink()
    try:
        return sink.publish(load, job_id, messages, spread=spread_over(spark))
    except BaseException:
        sink.abort(load, job_id, messages)
        raise


def write_stream_frame(
    source: Source,
    df: DataFrame,
    path: str,
    checkpoint: str,
    trigger: Mapping[str, Any] | None,
    given: Mapping[str, Any],
) -> StreamingQuery:
    """Start a query that appends to a store; see `write_stream` of both packages."""
    texts = texts_of(given)
    path, _ = _load(source, df, path, texts, stream=True)
    writer = df.writeStream.format(source.kind.format).options(**texts)
    writer = writer.option("checkpointLocation", checkpoint)
    if trigger:
        writer = writer.trigger(**trigger)
    return writer.start(path)


def _load(
    source: Source, df: DataFrame, path: str, texts: Mapping[str, str], *, stream: bool
) -> tuple[str, Any]:
    """Check what can be checked here: (the path for Spark, the load)."""
    from pyspark.sql.pandas.types import to_arrow_schema

    options = source.kind.write_options.parse({**texts, "path": str(path)}, stream=stream)
    if _on_the_driver(df.sparkSession):
        options = replace(options, path=absolute_root(options.path))
    source.register(df.sparkSession)
    schema = to_arrow_schema(df.schema, timezone="UTC")  # as the sinks see it
    return options.path, source.kind.load.prepare(options, schema)


def _on_the_driver(spark: SparkSession) -> bool:
    """True if this process runs where Spark plans: a Connect client may be anywhere."""
    return not type(spark).__module__.startswith("pyspark.sql.connect")


def texts_of(given: Mapping[str, Any], job_id: str | None = None) -> dict[str, str]:
    """Return options as texts, with the job's id."""
    named = {} if job_id is None else {"jobId": job_id}
    return {name: as_text(value) for name, value in {**given, **named}.items()}


def as_text(value: Any) -> str:
    """Return the text of an option that was given as a Python value.

    >>> as_text(True), as_text(["a", "b"]), as_text({"t": [0]})
    ('true', 'a,b', '{"t": [0]}')
    """

    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Mapping):
        return json.dumps({k: dict(v) if isinstance(v, Mapping) else v for k, v in value.items()})
    if isinstance(value, list | tuple | set | frozenset | range):
        return ",".join(str(v) for v in value)
    return str(value)
