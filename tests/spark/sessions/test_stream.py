"""Streams through Spark itself: limits, restarts, new topics, and what fails a query."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from tests.spark.stores import scanned_rows, write_store
from tubestore.core.vfs import OsVfs
from tubestore.spark.holding import TTL_MS
from tubestore.store.leases import read_leases


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_store(tmp_path / "store", {"logs": 1000, "orders": 100})
    return tmp_path / "store"


def stream(spark: Any, root: Path, **options: Any) -> Any:
    from tubestore.spark import read_stream

    return read_stream(spark, str(root), **options)


def run(frame: Any, checkpoints: str, out: Path, **trigger: Any) -> Any:
    """Run a query that writes Parquet until it has read everything; returns it, ended."""
    writer = frame.writeStream.format("parquet").option("checkpointLocation", checkpoints)
    query = writer.trigger(**(trigger or {"availableNow": True})).start(str(out))
    query.awaitTermination()
    return query


def written(spark: Any, out: Path) -> list[tuple[str, int, bytes]]:
    rows = spark.read.parquet(str(out)).select("topic", "offset", "body").collect()
    return sorted((row[0], row[1], bytes(row[2])) for row in rows)


def stored(root: Path) -> list[tuple[str, int, bytes]]:
    return sorted((r["topic"], r["offset"], r["body"]) for r in scanned_rows(root))


def test_available_now_reads_in_batches_and_a_restart_goes_on(
    spark: Any, root: Path, checkpoints: str, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    query = run(stream(spark, root, maxOffsetsPerTrigger=400), checkpoints, out)
    counts = [p["numInputRows"] for p in query.recentProgress if p["numInputRows"]]
    assert sum(counts) == 1100
    assert max(counts) <= 400
    assert written(spark, out) == stored(root)
    files = [path.name for path in Path(checkpoints).rglob("*") if path.is_file()]
    assert {"0", "1", "2", "metadata"} <= set(files)
    assert not [name for name in files if name.endswith(".crc")]  # each costs a micro-batch 30 ms

    write_store(root, {"logs": 30, "fresh": 20})
    query = run(stream(spark, root, maxBytesPerTrigger=100_000), checkpoints, out)
    assert sum(p["numInputRows"] for p in query.recentProgress) == 50
    assert written(spark, out) == stored(root)


def test_a_running_query_follows_a_writer_and_knows_how_far_it_is_behind(
    spark: Any, root: Path, checkpoints: str
) -> None:
    from tubestore.spark import behind

    frame = stream(spark, root, startingOffsets="latest", columns=["topic", "offset"])
    writer = frame.writeStream.format("memory").queryName("following")
    query = writer.option("checkpointLocation", checkpoints).start()
    try:
        query.processAllAvailable()
        write_store(root, {"logs": 10, "fresh": 7})
        query.processAllAvailable()
        counts = spark.sql("SELECT topic, count(*) FROM following GROUP BY 1 ORDER BY 1").collect()
        assert [tuple(row) for row in counts] == [("fresh", 7), ("logs", 10)]
        assert behind(query, str(root)) == {}
        progress = query.lastProgress
    finally:
        query.stop()
    write_store(root, {"orders": 6})
    assert sum(behind(progress, str(root))["orders"].values()) == 6
    latest = json.loads(progress["sources"][0]["latestOffset"])
    assert latest["shards"]["fresh-0"] == 7 * 28


def test_a_lease_ends_with_its_query(spark: Any, root: Path, checkpoints: str) -> None:
    frame = stream(spark, root, maxOffsetsPerTrigger=400)
    writer = frame.writeStream.format("noop").option("checkpointLocation", checkpoints)
    query = writer.start()
    query.processAllAvailable()
    assert len(read_leases(OsVfs(), str(root))) == 1
    query.stop()
    deadline = time.monotonic() + TTL_MS / 2000
    while read_leases(OsVfs(), str(root)):  # the process that held it is ending
        assert time.monotonic() < deadline


def test_a_query_waits_for_enough_messages_and_shows_what_is_behind_it(
    spark: Any, root: Path, checkpoints: str
) -> None:
    limits = {"minOffsetsPerTrigger": 50, "maxTriggerDelay": "1h"}
    frame = stream(spark, root, columns=["topic", "offset"], **limits)
    writer = frame.writeStream.format("memory").queryName("waiting")
    query = writer.option("checkpointLocation", checkpoints).start()
    try:
        query.processAllAvailable()
        write_store(root, {"logs": 49})
        query.processAllAvailable()
        assert spark.table("waiting").count() == 1100
        write_store(root, {"logs": 1})
        query.processAllAvailable()
        assert spark.table("waiting").count() == 1150
    finally:
        query.stop()
    write_store(root, {"orders": 35})  # the last batch has fewer than it would wait for
    frame = stream(spark, root, maxOffsetsPerTrigger=10, minOffsetsPerTrigger=10)
    query = frame.writeStream.format("noop").option("checkpointLocation", checkpoints)
    query = query.trigger(availableNow=True).start()
    query.awaitTermination()
    sources = [p["sources"][0] for p in query.recentProgress if p["numInputRows"]]
    behind = [json.loads(source["latestOffset"])["behind"] for source in sources]
    assert behind == [{"orders": 25}, {"orders": 15}, {"orders": 5}, {}]


def failure(spark: Any, frame: Any, checkpoints: str, out: Path) -> str:
    with pytest.raises(Exception, match=r"tubestore\.errors\.") as caught:
        run(frame, checkpoints, out)
    text = str(caught.value)
    assert "Traceback" not in text
    return text


def test_what_a_stream_cannot_go_on_with_fails_it_in_a_sentence(
    spark: Any, root: Path, checkpoints: str, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    run(stream(spark, root, subscribe="orders"), checkpoints, out)

    write_store(tmp_path / "other", {"orders": 200})
    text = failure(spark, stream(spark, tmp_path / "other"), checkpoints, out)
    assert "NotAStore" in text
    assert "the checkpoint was made with store" in text

    write_store(root, {"orders": 2000})
    for file in sorted((root / "orders-0").glob("*.tube"))[:2]:
        file.unlink()
    text = failure(spark, stream(spark, root, subscribe="orders"), checkpoints, out)
    assert "DataLoss: orders-0: offsets 2800 to " in text
    assert "failOnDataLoss=false" in text

    lenient = stream(spark, root, subscribe="orders", failOnDataLoss=False)
    run(lenient, checkpoints, out)
    kept = [row for row in stored(root) if row[0] == "orders"]
    assert written(spark, out)[100:] == kept
    shutil.rmtree(out)


def test_bad_options_of_a_stream_are_refused(spark: Any, root: Path) -> None:
    from tubestore.errors import InvalidOption

    with pytest.raises(InvalidOption, match="a stream has no end"):
        stream(spark, root, endingOffsets="latest")
    with pytest.raises(Exception, match="InvalidOption: option maxOffsetsPerTrigger: 'x'"):
        spark.readStream.format("tubestore").option("maxOffsetsPerTrigger", "x").load(str(root))
