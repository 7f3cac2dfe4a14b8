"""Rows become messages of a RocketMQ store, staged by tasks and published once."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import rocketcompat
from rocketcompat.check.whole import check
from rocketcompat.spark.loads import RocketLoad
from rocketcompat.spark.write_options import RocketWriteOptions
from tests.spark.rocket_loads import GEOMETRY, SMALL, batch, load_of, run, sound
from tests.spark.rocket_stores import CONFIG, dumped, planned, read_log, write_rocket_store
from tubestore.errors import InvalidMessage, InvalidOption, JobTaken, StoreFailed, StoreLocked
from tubestore.staging.rejected import Sieve


def bodies(root: Path) -> list[bytes]:
    return [row["body"] for row in dumped(root)]


def run_batch(root: Path, batches: list[pa.RecordBatch], job_id: str, query: str) -> Any:
    """Do what Spark does with a micro-batch: as `run`, by the query's name."""
    load = load_of(root, batches[0].schema)
    staged = [load.stage(job_id, f"{n}-{n}", iter([one])) for n, one in enumerate(batches)]
    return load.publish(job_id, [piece for pieces in staged for piece in pieces], query)


def test_a_batch_that_comes_again_has_the_same_query_and_the_same_rows(tmp_path: Path) -> None:
    run_batch(tmp_path, [batch(0, 10), batch(10, 5)], "copy:0", "q")
    assert run_batch(tmp_path, [batch(10, 5), batch(0, 10)], "copy:0", "q").replayed
    for other in (batch(0, 14), batch(1, 15), batch(0, 15, topic=["others"] * 15)):
        with pytest.raises(JobTaken, match="is in the store with 15 rows and came again"):
            run_batch(tmp_path, [other], "copy:0", "q")
    for number in (0, 1):
        with pytest.raises(JobTaken, match=r"query q has written .* this is query r"):
            run_batch(tmp_path, [batch(0, 15)], f"copy:{number}", "r")
    # Of an earlier version: ids, and nothing of their rows or their query.
    for number in (0, 1):
        run(tmp_path, [batch(number, 10)], f"old:{number}")
    assert run_batch(tmp_path, [batch(1, 10)], "old:1", "q").replayed
    with pytest.raises(JobTaken, match="set back"):
        run_batch(tmp_path, [batch(0, 10)], "old:0", "q")
    assert len(bodies(tmp_path)) == 35
    assert sound(tmp_path)


def test_rows_of_all_tasks_are_there_in_their_order(tmp_path: Path) -> None:
    result = run(tmp_path, [batch(0, 10), batch(10, 5), batch(15, 3000)])
    assert (result.rows, result.replayed) == (3015, False)
    assert bodies(tmp_path) == [b"%d" % n for n in range(3015)]
    assert sound(tmp_path)
    assert load_of(tmp_path, batch(0, 1).schema).is_published("j")
    assert run(tmp_path, [batch(0, 3015)]).replayed
    with pytest.raises(JobTaken, match="3015 messages, and 10 are staged"):
        run(tmp_path, [batch(0, 10)])
    assert len(bodies(tmp_path)) == 3015


def test_a_store_that_is_there_is_written_with_its_own_sizes(tmp_path: Path) -> None:
    write_rocket_store(tmp_path, 300)
    before = bodies(tmp_path)
    run(tmp_path, [batch(0, 1000)])
    assert bodies(tmp_path) == [*before, *(b"%d" % n for n in range(1000))]
    assert sound(tmp_path)
    with pytest.raises(InvalidOption, match=f"the store has {64 << 10}"):
        load_of(tmp_path, batch(0, 1).schema, mappedFileSizeCommitLog="1m")
    with rocketcompat.open(tmp_path, "w", CONFIG, background=False) as store:
        assert store.max_offset_in_queue("orders", 0) == 1000
        with pytest.raises(StoreLocked, match="lockTimeoutMs"):
            run(tmp_path, [batch(0, 1)], "k", lockTimeoutMs="1")


def test_rows_go_to_a_log_that_lies_elsewhere(tmp_path: Path) -> None:
    """Not the sizes of a store that is made: those of the one that is there are found."""
    root, disks = tmp_path / "store", [str(tmp_path / name) for name in ("disk0", "disk1")]
    paths = {"storePathCommitLog": ";".join(disks), "multiPathSplitter": ";"}
    options = {**SMALL, **paths}
    write = {"path": str(root), **paths}

    def done(job_id: str, given: dict[str, str], rows: pa.RecordBatch) -> None:
        load = RocketLoad.prepare(RocketWriteOptions.parse(given), rows.schema)
        load.publish(job_id, load.stage(job_id, "0", iter([rows])))

    done("made", {**write, **options}, batch(0, 1000, body=[bytes(200)] * 1000))
    done("more", write, batch(0, 5))
    assert not (root / "commitlog").exists()
    assert all(len(list(Path(disk).iterdir())) > 1 for disk in disks)
    assert list(check(root, {**GEOMETRY, **paths})) == []
    config = CONFIG.changed(store_path_commit_log=paths["storePathCommitLog"])
    with rocketcompat.open(
        root, "w", config.changed(multi_path_splitter=";"), background=False
    ) as store:
        assert store.max_offset_in_queue("orders", 0) == 1005
    with pytest.raises(InvalidOption, match=f"the store has {64 << 10}"):
        RocketWriteOptions.parse({**write, "mappedFileSizeCommitLog": "1m"}).config()


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"state": ["torn"]}, "column state"),
        ({"body": pa.array([None], pa.binary())}, "column body"),
        ({"born_timestamp": pa.array([None, 5], pa.int64())}, "column born_timestamp"),
        ({"key": [b"\xff"]}, "not UTF-8"),
        ({"queue_id": [-1]}, "queue_id"),
    ],
)
def test_rows_that_cannot_be_taken_leave_nothing(
    columns: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidMessage, match=reason):
        run(tmp_path, [batch(0, len(next(iter(columns.values()))), **columns)])
    assert not list((tmp_path / ".tubestore" / "staging").glob("*/*"))


def test_a_driver_that_dies_behind_the_record_has_published(tmp_path: Path) -> None:
    write_rocket_store(tmp_path, 10)
    dies = mock.patch("rocketcompat.staging.publish.roll_forward", side_effect=OSError("killed"))
    load = load_of(tmp_path, batch(0, 1).schema)
    staged = load.stage("j", "0-0", iter([batch(0, 2000)]), content=True)
    with dies, pytest.raises(StoreFailed):
        load.publish("j", staged)
    load.abort("j", staged)  # as Spark does: it must not help
    assert len(bodies(tmp_path)) == 10
    assert len(read_log(tmp_path, planned(tmp_path))) == 10
    assert "half_published" in [found["reason"] for found in check(tmp_path, GEOMETRY)]
    assert run(tmp_path, [batch(0, 2000)]).replayed
    assert len(bodies(tmp_path)) == 2010
    assert sound(tmp_path)


def test_a_job_that_is_given_up_leaves_nothing(tmp_path: Path) -> None:
    load = load_of(tmp_path, batch(0, 1).schema)
    staged, other = (load.stage("j", "0-0", iter([batch(0, 5)])) for _ in range(2))
    load.abort("j", staged)
    assert load.publish("j", other).rows == 5, "of another run of the same job"
    assert not list((tmp_path / ".tubestore" / "staging").glob("*"))


def test_a_message_that_a_store_has_delivered_is_not_delayed_once_more(tmp_path: Path) -> None:
    delivered = [("DELAY", "3"), ("REAL_TOPIC", "orders"), ("REAL_QID", "0")]
    new = [("DELAY", "3")]
    kind = pa.map_(pa.string(), pa.string())
    run(tmp_path, [batch(0, 2, properties=pa.array([delivered, new], kind))])
    assert [row["topic"] for row in dumped(tmp_path)] == ["orders", "SCHEDULE_TOPIC_XXXX"]


@pytest.mark.parametrize(
    ("column", "values", "reason"),
    [
        ("topic", ["orders", None, "orders"], "topic"),
        ("topic", ["orders", "x" * 300, "orders"], "more than 127"),
        ("body", [b"0", None, b"2"], "column body"),
        ("body", [b"0", b"x" * 200, b"2"], "100"),
        ("queue_id", [0, -1, 1], "queue"),
        ("state", ["ok", "crc", "ok"], "not ok"),
        ("born_timestamp", [1, None, 2], "born_timestamp"),
    ],
)
def test_a_row_that_the_store_does_not_take_is_put_aside_with_its_columns(
    tmp_path: Path, column: str, values: list[Any], reason: str
) -> None:
    rows = {"topic": ["orders"] * 3, "body": [b"0", b"1", b"2"], column: values}
    given = pa.RecordBatch.from_pydict(rows)
    root, aside = tmp_path / "store", tmp_path / "aside"
    load = load_of(root, given.schema, rejectedRowsPath=str(aside), maxMessageSize="100")
    assert load.rejected_path == str(aside)
    sieve = Sieve(load.rejected_path, "j", "0")
    load.publish("j", load.stage("j", "0", iter([given]), sieve=sieve))
    assert bodies(root) == [b"0", b"2"]
    assert sound(root)
    file = sieve.finish()
    assert file is not None
    (row,) = pq.read_table(file.path).to_pylist()
    assert reason in row.pop("rejected_reason")
    assert row == given.slice(1, 1).to_pylist()[0]


def test_rows_without_a_queue_take_turns_past_those_that_are_refused(tmp_path: Path) -> None:
    given = pa.RecordBatch.from_pydict({"topic": ["orders"] * 4, "body": [b"0", None, b"1", b"2"]})
    load = load_of(tmp_path, given.schema, numQueues="3", rejectedRowsPath=str(tmp_path) + "-aside")
    assert load.rejected_path is not None
    sieve = Sieve(load.rejected_path, "j", "0")
    load.publish("j", load.stage("j", "0", iter([given]), sieve=sieve))
    assert [(row["body"], row["queue_id"]) for row in dumped(tmp_path)] == [
        (b"%d" % n, n) for n in range(3)
    ]
