"""Writing into RocketMQ stores through Spark itself: batches and streams appear whole and once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rocketcompat.check.whole import check
from tests.spark.rocket_loads import GEOMETRY, SMALL
from tests.spark.rocket_stores import dumped, write_rocket_store
from tubestore.errors import InvalidMessage

COUNT = 3000


def numbered(spark: Any, count: int = COUNT) -> Any:
    """Return messages that name their number, in the order of their partitions."""
    return spark.range(0, count, numPartitions=4).selectExpr(
        "if(id % 3 = 0, 'orders', 'logs') AS topic",
        "CAST(id % 5 AS INT) AS queue_id",
        "CAST(id AS STRING) AS keys",
        "CAST(CAST(id AS STRING) AS BINARY) AS body",
    )


def verify(root: Path, expected: list[int]) -> None:
    """As `verify_log`, and nothing is left of what was staged."""
    verify_log(root, expected)
    assert not list((root / ".tubestore" / "staging").iterdir())


def verify_log(root: Path, expected: list[int]) -> None:
    """Every message is there once, in order within its queue, and the store is sound."""
    rows = dumped(root)
    places = [row["physical_offset"] for row in rows]
    assert places == sorted(set(places))
    ids = {f"{row['msg_id'][-16:]}" for row in rows}
    assert ids == {f"{place:016X}" for place in places}
    assert sorted(int(row["body"]) for row in rows) == expected
    following: dict[tuple[str, int], int] = {}
    last: dict[tuple[str, int], int] = {}
    for row in rows:
        key = (row["topic"], row["queue_id"])
        assert row["queue_offset"] == following.get(key, 0)
        following[key] = row["queue_offset"] + 1
        assert int(row["body"]) >= last.get(key, -1)
        last[key] = int(row["body"])
    assert list(check(root, GEOMETRY)) == []


def test_a_dataframe_is_appended_once_though_a_task_fails(spark: Any, tmp_path: Path) -> None:
    from pyspark.sql.functions import rand

    from rocketcompat.spark import read, write

    root, marks = tmp_path / "store", tmp_path / "marks"
    marks.mkdir()

    def fail_once(batches: Any) -> Any:
        import os

        from pyspark import TaskContext

        yield from batches
        if TaskContext.get().partitionId() == 1 and not os.path.exists(f"{marks}/tried"):
            open(f"{marks}/tried", "w").close()
            raise RuntimeError("once")

    frame = numbered(spark)
    for _ in range(2):
        write(frame.mapInArrow(fail_once, frame.schema), str(root), job_id="load-7", **SMALL)
    assert (marks / "tried").exists()
    verify(root, list(range(COUNT)))
    assert read(spark, str(root)).count() == COUNT
    copy = tmp_path / "copy"
    shuffled = read(spark, str(root), schema="kafka").orderBy(rand(7))
    write(shuffled, str(copy), order_by="offset", **SMALL)
    verify(copy, list(range(COUNT)))


def test_what_cannot_be_written_is_refused_and_leaves_the_store_as_it_was(
    spark: Any, tmp_path: Path
) -> None:
    from rocketcompat.spark import write

    root = tmp_path / "store"
    write_rocket_store(root, 10)
    frame = numbered(spark, 40)
    with pytest.raises(InvalidMessage, match="column colour: not known"):
        write(frame.selectExpr("topic", "body", "'red' AS colour"), str(root))
    with pytest.raises(Exception, match="option mode: overwrite"):
        frame.write.format("rocketmq").mode("overwrite").save(str(root))
    broken = frame.selectExpr("topic", "if(keys = '39', NULL, body) AS body")
    with pytest.raises(Exception, match="InvalidMessage: column body") as caught:
        broken.write.format("rocketmq").mode("append").save(str(root))
    assert "Traceback" not in str(caught.value)
    assert len(dumped(root)) == 10
    assert not list((root / ".tubestore" / "staging").iterdir())


def test_a_stream_is_copied_batch_by_batch_each_once(spark: Any, tmp_path: Path) -> None:
    from rocketcompat.spark import read_stream, write_stream

    one, two = tmp_path / "one", tmp_path / "two"
    write_rocket_store(one, 400)

    def copy(checkpoint: str, **options: str) -> None:
        frame = read_stream(spark, str(one), maxOffsetsPerTrigger=250)
        query = write_stream(
            frame, str(two), checkpoint=str(tmp_path / checkpoint),
            trigger={"availableNow": True}, **SMALL, **options,
        )  # fmt: skip
        query.awaitTermination()

    def numbers(root: Path) -> list[int]:
        return [int(row["body"].split()[0]) for row in dumped(root)]

    copy("c", txnAppId="copier")
    assert numbers(two) == list(range(400))
    # As after a crash between our commit and Spark's: the last batch is not in its log.
    commits = sorted((tmp_path / "c" / "commits").glob("[0-9]*"), key=lambda p: int(p.name))
    commits[-1].unlink()
    (tmp_path / "c" / "commits" / f".{commits[-1].name}.crc").unlink(missing_ok=True)
    write_rocket_store(one, 60, 400)
    copy("c", txnAppId="copier")
    assert numbers(two) == list(range(460))
    with pytest.raises(Exception, match="a second query, or one with a new checkpoint"):
        copy("lost", txnAppId="copier")
    assert numbers(two) == list(range(460))
    assert list(check(two, GEOMETRY)) == []


def test_a_log_goes_to_shards_and_back_and_is_the_same(spark: Any, tmp_path: Path) -> None:
    from rocketcompat.spark.jobs.to_log import convert_tube
    from rocketcompat.spark.jobs.to_shards import convert

    one, tube, two = tmp_path / "one", tmp_path / "tube", tmp_path / "two"
    write_rocket_store(one, 600)
    convert(spark, str(one), str(tube))
    done = convert_tube(spark, str(tube), str(two), maxSplitBytes="60000", **SMALL)
    assert (done.rows, len(done.done.rows) > 2) == (600, True)
    assert dumped(two) == dumped(one)
    for path in (one / "commitlog").iterdir():
        assert path.read_bytes() == (two / "commitlog" / path.name).read_bytes()
    assert list(check(two, GEOMETRY)) == []
