"""Writing through Spark itself: batches and streams appear whole and once."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import tubestore
from tests.spark.stores import scanned_rows, write_store
from tubestore.errors import InvalidMessage, JobTaken
from tubestore.offline.check import check

COUNT = 4000


def numbered(spark: Any, count: int = COUNT, parts: int = 4) -> Any:
    """Return messages that name their number, in the order of their partitions."""
    return spark.range(0, count, numPartitions=parts).selectExpr(
        "if(id % 3 = 0, 'orders', 'logs') AS topic",
        "CAST(id % 5 AS INT) AS partition",
        "CAST(CAST(id AS STRING) AS BINARY) AS body",
    )


def numbers(root: Path) -> list[int]:
    return sorted(int(row["body"]) for row in scanned_rows(root))


def verify(root: Path, expected: list[int]) -> None:
    """Every message is there once, in order within its partition, and the files are sound."""
    assert numbers(root) == expected
    last: dict[tuple[str, int], int] = {}
    for row in scanned_rows(root):
        key = (row["topic"], row["partition"])
        assert int(row["body"]) >= last.get(key, -1)
        last[key] = int(row["body"])
    assert list(check(root)) == []


def test_a_dataframe_is_appended(spark: Any, tmp_path: Path) -> None:
    root = tmp_path / "store"
    numbered(spark).write.format("tubestore").mode("append").save(str(root))
    verify(root, list(range(COUNT)))
    ids = [row["msg_id"] for row in scanned_rows(root)]
    assert len(set(ids)) == COUNT


def test_a_job_is_written_once(spark: Any, tmp_path: Path) -> None:
    from tubestore.spark import write

    root = tmp_path / "store"
    found = [write(numbered(spark), str(root), job_id="load-7") for _ in range(2)]
    assert [one.replayed for one in found] == [False, True]
    assert replace(found[1], replayed=False) == found[0]
    assert found[0].rows == COUNT
    assert sorted(found[0].files) == sorted(map(str, root.glob("*/*.tube")))
    assert found[0].offsets == {
        key: (0, 28 * sum(row["topic"] == key[:-2] for row in scanned_rows(root)))
        for key in ("logs-0", "orders-0")
    }
    verify(root, list(range(COUNT)))
    for frame in (numbered(spark, COUNT - 1), numbered(spark).selectExpr("topic", "topic AS body")):
        with pytest.raises(Exception, match=r"published with 4000 messages") as caught:
            write(frame, str(root), jobid="load-7")
        assert "Traceback" not in str(caught.value)
    verify(root, list(range(COUNT)))
    assert write(numbered(spark), str(root), job_id="load-8").replayed is False
    assert numbers(root) == sorted([*range(COUNT), *range(COUNT)])


def test_a_store_is_copied_with_its_partitions_and_ids(spark: Any, tmp_path: Path) -> None:
    from tubestore.spark import read, write

    write_store(tmp_path / "one", {"logs": 500})
    write(read(spark, str(tmp_path / "one")), str(tmp_path / "two"))
    write(read(spark, str(tmp_path / "one"), schema="kafka"), str(tmp_path / "three"))
    assert scanned_rows(tmp_path / "two") == scanned_rows(tmp_path / "one")
    columns = ["partition", "body", "filter_item", "received_time"]
    assert scanned_rows(tmp_path / "three", columns=columns) == scanned_rows(
        tmp_path / "one", columns=columns
    )


def test_rows_are_brought_in_order_if_that_is_asked_for(spark: Any, tmp_path: Path) -> None:
    from pyspark.sql.functions import rand

    from tubestore.spark import write

    time = "CAST(CAST(body AS STRING) AS BIGINT) AS received_time_ms"
    shuffled = numbered(spark).selectExpr("*", time).orderBy(rand(7))
    write(shuffled, str(tmp_path / "store"), order_by=["received_time_ms"])
    verify(tmp_path / "store", list(range(COUNT)))
    keyed = shuffled.selectExpr(
        "topic", "body", "received_time_ms", "CAST(partition AS STRING) AS key"
    )
    write(keyed, str(tmp_path / "keys"), order_by="received_time_ms", numPartitions=3)
    verify(tmp_path / "keys", list(range(COUNT)))


def test_a_task_that_fails_is_tried_again_and_leaves_nothing(spark: Any, tmp_path: Path) -> None:
    root, marks = tmp_path / "store", tmp_path / "marks"
    marks.mkdir()

    def fail_once(batches: Any) -> Any:
        import os

        from pyspark import TaskContext

        part = TaskContext.get().partitionId()
        yield from batches
        if part == 1 and not os.path.exists(f"{marks}/tried"):
            open(f"{marks}/tried", "w").close()
            raise RuntimeError("once")

    frame = numbered(spark)
    frame.mapInArrow(fail_once, frame.schema).write.format("tubestore").mode("append").save(
        str(root)
    )
    assert (marks / "tried").exists()
    verify(root, list(range(COUNT)))
    assert not list((root / ".tubestore" / "staging").iterdir())


def test_a_job_that_fails_leaves_the_store_as_it_was(spark: Any, tmp_path: Path) -> None:
    root = tmp_path / "store"
    write_store(root, {"logs": 10})
    before = scanned_rows(root)
    frame = numbered(spark).selectExpr(
        "topic", "partition", "if(body = CAST('3999' AS BINARY), NULL, body) AS body"
    )
    with pytest.raises(Exception, match="InvalidMessage") as caught:
        frame.write.format("tubestore").mode("append").save(str(root))
    assert "Traceback" not in str(caught.value)
    assert scanned_rows(root) == before
    assert not list((root / ".tubestore" / "staging").iterdir())


def test_what_cannot_be_written_is_refused_before_anything_runs(spark: Any, tmp_path: Path) -> None:
    from tubestore.spark import write

    root = str(tmp_path / "store")
    frame = numbered(spark)
    with pytest.raises(InvalidMessage, match="column colour: not known"):
        write(frame.selectExpr("topic", "body", "'red' AS colour"), root)
    with pytest.raises(Exception, match="option mode: overwrite"):
        frame.write.format("tubestore").mode("overwrite").save(root)
    with pytest.raises(Exception, match="did you mean jobId"):
        frame.write.format("tubestore").mode("append").option("job", "x").save(root)
    assert not (tmp_path / "store").exists()


def test_a_writer_with_the_store_open_is_waited_for(spark: Any, tmp_path: Path) -> None:
    root = tmp_path / "store"
    with tubestore.open(root), pytest.raises(Exception, match=r"StoreLocked: .* lockTimeoutMs"):
        numbered(spark).write.format("tubestore").mode("append").option(
            "lockTimeoutMs", "100"
        ).save(str(root))
    assert numbers(root) == []


# -- streams --------------------------------------------------------------------------------------


def copy(
    spark: Any, source: Path, target: Path, checkpoints: Path, rows: int = 150, **options: Any
) -> Any:
    """Run a query from store to store until it has read everything."""
    from tubestore.spark import read_stream, write_stream

    frame = read_stream(spark, str(source), maxOffsetsPerTrigger=rows)
    query = write_stream(
        frame, str(target), checkpoint=str(checkpoints), trigger={"availableNow": True}, **options
    )
    query.awaitTermination()
    return query


def test_a_stream_is_copied_batch_by_batch_and_goes_on(spark: Any, tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    write_store(one, {"logs": 300, "orders": 100})
    copy(spark, one, two, tmp_path / "c")
    assert scanned_rows(two) == scanned_rows(one)
    write_store(one, {"logs": 60})
    copy(spark, one, two, tmp_path / "c")
    assert scanned_rows(two) == scanned_rows(one)
    assert list(check(two)) == []


def test_a_stream_of_which_a_task_failed_goes_on_without_a_loss_or_a_duplicate(
    spark: Any, tmp_path: Path
) -> None:
    from tubestore.spark import read_stream, write_stream

    one, two, marks = tmp_path / "one", tmp_path / "two", tmp_path / "marks"
    write_store(one, {"logs": 300})
    marks.mkdir()

    def fail_thrice(batches: Any) -> Any:  # a task has three attempts
        import os

        yield from batches
        if len(os.listdir(marks)) in (1, 2, 3):
            open(f"{marks}/{len(os.listdir(marks))}", "w").close()
            raise RuntimeError("again")

    def run_it() -> None:
        frame = read_stream(spark, str(one), maxOffsetsPerTrigger=150)
        query = write_stream(
            frame.mapInArrow(fail_thrice, frame.schema), str(two),
            checkpoint=str(tmp_path / "c"), trigger={"availableNow": True},
        )  # fmt: skip
        query.awaitTermination()

    (marks / "0").touch()
    with pytest.raises(Exception, match="again"):
        run_it()
    assert len(list(marks.iterdir())) == 4
    assert not two.exists() or scanned_rows(two) == []
    run_it()
    assert scanned_rows(two) == scanned_rows(one)
    assert list(check(two)) == []


def test_a_named_query_is_refused_with_a_new_checkpoint_and_so_is_a_second_one(
    spark: Any, tmp_path: Path
) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    write_store(one, {"logs": 300})
    copy(spark, one, two, tmp_path / "c", txnAppId="copier")
    write_store(one, {"logs": 700})
    with pytest.raises(Exception, match="a second query, or one with a new checkpoint"):
        copy(spark, one, two, tmp_path / "lost", txnAppId="copier")
    assert len(scanned_rows(two)) == 300
    copy(spark, one, two, tmp_path / "c", txnAppId="copier")
    assert scanned_rows(two) == scanned_rows(one)
    copy(spark, one, two, tmp_path / "other", txnAppId="another")
    assert len(scanned_rows(two)) == 2000
    for number in range(2):  # by their checkpoints
        copy(spark, one, tmp_path / "three", tmp_path / f"q{number}")
    assert len(scanned_rows(tmp_path / "three")) == 2000


def test_a_checkpoint_that_was_set_back_is_refused(spark: Any, tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    write_store(one, {"logs": 300})
    copy(spark, one, two, tmp_path / "c")
    for folder in ("offsets", "commits", "sources"):  # all but the query's id
        shutil.rmtree(tmp_path / "c" / folder, ignore_errors=True)
    write_store(one, {"logs": 700})
    with pytest.raises(Exception, match="with 150 rows and came again with 400"):
        copy(spark, one, two, tmp_path / "c", rows=400)
    assert len(scanned_rows(two)) == 300


def test_a_batch_that_was_published_before_a_crash_is_not_written_again(
    spark: Any, tmp_path: Path
) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    write_store(one, {"logs": 300})
    copy(spark, one, two, tmp_path / "c")
    # As after a crash between our commit and Spark's: the last batch is not in its log.
    commits = sorted((tmp_path / "c" / "commits").glob("[0-9]*"), key=lambda p: int(p.name))
    commits[-1].unlink()
    (tmp_path / "c" / "commits" / f".{commits[-1].name}.crc").unlink(missing_ok=True)
    copy(spark, one, two, tmp_path / "c")
    assert scanned_rows(two) == scanned_rows(one)


def test_rows_that_the_store_does_not_take_go_to_a_place_of_the_users_choice_once(
    spark: Any, tmp_path: Path
) -> None:
    from tubestore.spark import write

    root, aside = tmp_path / "store", tmp_path / "aside"
    empty = "if(CAST(body AS STRING) LIKE '%07', null, body) AS body"
    good = numbered(spark, 1000).selectExpr("topic", "partition", empty)
    for replayed in (False, True):
        found = write(good, str(root), job_id="load-7", rejectedRowsPath=str(aside))
        assert (found.replayed, found.rows, found.rejected) == (replayed, 991, 9)
    rows = spark.read.parquet(str(aside)).collect()
    assert {row.job for row in rows} == {"load-7"}
    assert {row.rejected_reason for row in rows} == {"a message needs a body of at least one byte"}
    assert len(rows) == 9
    with pytest.raises(Exception, match="a message needs a body"):
        write(good, str(root), job_id="load-8")
    verify(root, [n for n in range(1000) if n % 100 != 7 or n == 7])


def test_a_job_that_comes_again_with_other_rejected_rows_is_refused(
    spark: Any, tmp_path: Path
) -> None:
    from tubestore.spark import write

    root, aside = tmp_path / "store", str(tmp_path / "aside")
    rows = "SELECT 'logs' topic, 'one' body UNION ALL SELECT null, 'two'"
    more = f"{rows} UNION ALL SELECT null, 'three'"
    write(spark.sql(rows), str(root), job_id="load-7", rejectedRowsPath=aside)
    with pytest.raises(JobTaken, match="1 rejected rows, and 2 are rejected now"):
        write(spark.sql(more), str(root), job_id="load-7", rejectedRowsPath=aside)
    assert [row.body for row in spark.read.parquet(aside).collect()] == ["two"]
    assert [path.name for path in (tmp_path / "aside").iterdir()] == ["job=load-7"]


def test_a_task_that_cannot_go_on_ends_with_one_sentence(spark: Any, tmp_path: Path) -> None:
    from pyspark.errors import PythonException

    from tubestore.spark import write

    rows = spark.sql("SELECT 'logs' topic, 'one' body UNION ALL SELECT null, 'two'")
    for more, says in (
        ({"order_by": "body"}, "order_by: a row without a topic has no partition"),
        ({"topic": "none", "createTopics": False}, "no topic 'none', and createTopics is false"),
    ):
        with pytest.raises(PythonException, match=says) as caught:
            write(rows, str(tmp_path / "store"), job_id="load-7", **more)
        assert "Traceback" not in str(caught.value)


def test_a_stream_puts_rejected_rows_aside_once_though_a_batch_comes_again(
    spark: Any, tmp_path: Path
) -> None:
    from tubestore.spark import read_stream, write_stream

    source, root, aside = tmp_path / "source", tmp_path / "store", tmp_path / "aside"
    write_store(source, {"orders": 500})
    checkpoint = tmp_path / "checkpoint"

    def run() -> None:
        frame = read_stream(spark, str(source), subscribe="orders")
        frame = frame.selectExpr("topic", "if(`offset` % 56 = 0, null, body) AS body")
        query = write_stream(
            frame, str(root), checkpoint=str(checkpoint), trigger={"availableNow": True},
            rejectedRowsPath=str(aside),
        )  # fmt: skip
        query.awaitTermination()

    run()
    stored, rejected = len(scanned_rows(root)), spark.read.parquet(str(aside)).count()
    assert stored
    assert rejected
    shutil.rmtree(checkpoint / "commits")
    run()
    assert len(scanned_rows(root)) == stored
    assert spark.read.parquet(str(aside)).count() == rejected


def test_parts_of_a_publish_are_worked_on_in_tasks(spark: Any) -> None:
    from tubestore.spark.kit.publishing import spread_over
    from tubestore.spark.kit.running import work_in_tasks

    assert work_in_tasks(spark, len, ["a", "bbb", "cc"]) == [1, 3, 2]
    assert spread_over(spark) is None, "one machine: its threads do it"


def test_on_a_cluster_a_large_write_is_placed_by_tasks(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tubestore.spark import write
    from tubestore.spark.kit import publishing

    parts: list[int] = []

    def counted(spark: Any, work: Any, given: Any) -> Any:
        parts.append(len(given))
        return work_in_tasks(spark, work, given)

    work_in_tasks = publishing.work_in_tasks
    monkeypatch.setattr(publishing, "work_in_tasks", counted)
    monkeypatch.setattr(publishing, "is_cluster", lambda spark: True)
    monkeypatch.setattr("tubestore.store.publish.SPREAD_BYTES", 1)
    found = write(numbered(spark), str(tmp_path / "store"), job_id="load-7")
    assert (found.rows, parts) == (COUNT, [8])
    verify(tmp_path / "store", list(range(COUNT)))
