"""A load is staged by tasks and published once; what fails leaves nothing, or all."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tubestore
from tests.spark.stores import T0, scanned_rows, write_store
from tubestore.clock import ManualClock
from tubestore.core.vfs import OsVfs
from tubestore.errors import (
    InvalidMessage,
    InvalidName,
    InvalidOption,
    JobTaken,
    NotAStore,
    StoreLocked,
)
from tubestore.offline.check import check
from tubestore.spark.kit.loads import Load
from tubestore.spark.kit.shapes import HEADERS
from tubestore.spark.kit.write_options import WriteOptions
from tubestore.staging.commit_records import CommitRecords
from tubestore.staging.rejected import Sieve


def batch(first: int, count: int, **columns: Any) -> pa.RecordBatch:
    numbers = range(first, first + count)
    rows = {"topic": ["logs"] * count, "body": [b"%d" % n for n in numbers], **columns}
    return pa.RecordBatch.from_pydict(rows)


def load_of(root: Path, schema: pa.Schema, **options: str) -> Load:
    made = Load.prepare(WriteOptions.parse({"path": str(root), **options}), schema)
    again: Load = pickle.loads(pickle.dumps(made))
    return again


def run(root: Path, batches: list[pa.RecordBatch], job_id: str = "j", **options: str) -> Any:
    """Do what Spark does: a task a batch, then a commit."""
    load = load_of(root, batches[0].schema, **options)
    staged = [load.stage(job_id, f"{n}-{n}", iter([one])) for n, one in enumerate(batches)]
    return load.publish(job_id, [file for files in staged for file in files])


def bodies(root: Path) -> list[bytes]:
    return [row["body"] for row in scanned_rows(root)]


def test_rows_of_all_tasks_are_there_in_their_order(tmp_path: Path) -> None:
    run(tmp_path, [batch(0, 10, partition=[0] * 10), batch(10, 5, partition=[0] * 5)])
    assert bodies(tmp_path) == [b"%d" % n for n in range(15)]
    assert list(check(tmp_path)) == []


def test_a_job_is_there_once_however_often_it_is_run(tmp_path: Path) -> None:
    for replayed in (False, True, True):
        assert run(tmp_path, [batch(0, 10)]).replayed is replayed
    assert len(bodies(tmp_path)) == 10
    assert load_of(tmp_path, batch(0, 1).schema).is_published("j")
    assert not load_of(tmp_path, batch(0, 1).schema).is_published("k")


def test_the_result_of_a_small_job_names_the_file_that_its_pieces_went_behind_once(
    tmp_path: Path,
) -> None:
    run(tmp_path, [batch(0, 10)])
    run(tmp_path, [batch(10, 5), batch(15, 5)], "k")
    written = load_of(tmp_path, batch(0, 1).schema).written("k", replayed=False)
    (file,) = tmp_path.glob("logs-0/*.tube")
    assert written.files == (str(file),)
    assert written.offsets == {"logs-0": (10 * 28, 20 * 28)}


def run_batch(root: Path, batches: list[pa.RecordBatch], job_id: str, query: str = "q") -> Any:
    """Do what Spark does with a micro-batch: as `run`, by the query's name."""
    load = load_of(root, batches[0].schema)
    staged = [
        load.stage(job_id, f"{n}-{n}", iter([one]), content=True) for n, one in enumerate(batches)
    ]
    return load.publish(job_id, [file for files in staged for file in files], query)


def items(first: int, count: int) -> pa.RecordBatch:
    """Return rows whose payloads name the minute at which they are staged."""
    return batch(first, count, filter_item=[f"i{n % 3}" for n in range(first, first + count)])


def test_a_batch_that_comes_again_with_the_same_rows_does_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not run_batch(tmp_path, [items(0, 10), items(10, 10)], "copy:0").replayed
    monkeypatch.setattr("tubestore.staging.writer.SystemClock", lambda: ManualClock(T0))
    # In another order, in other tasks, at another time.
    assert run_batch(tmp_path, [items(10, 10), items(0, 5), items(5, 5)], "copy:0").replayed
    assert len(bodies(tmp_path)) == 20


@pytest.mark.parametrize(
    "again",
    [
        items(0, 9),
        items(0, 11),
        items(1, 10),
        batch(0, 10),
        batch(0, 10, topic=["other"] * 10),
        items(0, 1).slice(0, 0),
    ],
)
def test_a_batch_that_comes_again_with_other_rows_is_refused(
    tmp_path: Path, again: pa.RecordBatch
) -> None:
    run_batch(tmp_path, [items(0, 10)], "copy:0")
    with pytest.raises(JobTaken, match="is in the store with 10 rows and came again"):
        run_batch(tmp_path, [again], "copy:0")
    assert len(bodies(tmp_path)) == 10


def test_a_batch_without_rows_does_not_come_again_with_some(tmp_path: Path) -> None:
    run_batch(tmp_path, [batch(0, 1).slice(0, 0)], "copy:0")
    with pytest.raises(JobTaken, match="with 0 rows and came again with 4"):
        run_batch(tmp_path, [batch(0, 4)], "copy:0")


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_name_of_batches_belongs_to_the_query_that_has_it(tmp_path: Path, number: int) -> None:
    for n in range(2):
        run_batch(tmp_path, [items(n, 10)], f"copy:{n}")
    with pytest.raises(JobTaken, match=r"query q has written batches up to 1 .* this is query r"):
        run_batch(tmp_path, [items(number, 10)], f"copy:{number}", "r")
    assert not run_batch(tmp_path, [items(number, 10)], f"copy of r:{number}", "r").replayed


def test_what_the_newest_batch_had_is_known_when_its_record_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tubestore.staging.commit_records.RECORDS_KEPT", 3)
    for n in range(3):
        run_batch(tmp_path, [items(n, 10)], f"copy:{n}")
    for n in range(8):
        run(tmp_path, [batch(n, 1)], f"j{n}")
    assert CommitRecords(OsVfs(), str(tmp_path)).find("copy:2") is None
    assert run_batch(tmp_path, [items(2, 10)], "copy:2").replayed
    with pytest.raises(JobTaken, match="came again"):
        run_batch(tmp_path, [items(1, 10)], "copy:2")
    with pytest.raises(JobTaken, match="not known any more: the checkpoint was set back"):
        run_batch(tmp_path, [items(1, 10)], "copy:1")


def test_an_older_batch_whose_record_is_kept_is_compared_too(tmp_path: Path) -> None:
    for n in range(3):
        run_batch(tmp_path, [items(n, 10)], f"copy:{n}")
    assert run_batch(tmp_path, [items(1, 10)], "copy:1").replayed
    with pytest.raises(JobTaken, match="came again"):
        run_batch(tmp_path, [items(7, 10)], "copy:1")


def test_batches_of_an_earlier_version_count_and_their_query_goes_on(tmp_path: Path) -> None:
    for n in range(2):
        run(tmp_path, [batch(n, 10)], f"copy:{n}")  # ids, and nothing of their rows
    assert run_batch(tmp_path, [batch(1, 10)], "copy:1").replayed
    with pytest.raises(JobTaken, match="with 10 rows and came again with 11"):
        run_batch(tmp_path, [batch(1, 11)], "copy:1")
    with pytest.raises(JobTaken, match="set back"):
        run_batch(tmp_path, [batch(0, 10)], "copy:0")
    assert not run_batch(tmp_path, [batch(2, 10)], "copy:2").replayed
    with pytest.raises(JobTaken, match="query q"):
        run_batch(tmp_path, [batch(2, 10)], "copy:2", "r")


def test_only_a_numbered_job_is_a_batch(tmp_path: Path) -> None:
    with pytest.raises(InvalidName, match="a name, a colon and a number"):
        run_batch(tmp_path, [batch(0, 1)], "copy")


def test_topics_for_keys_are_made_as_large_as_was_asked_for(tmp_path: Path) -> None:
    run(tmp_path, [batch(0, 2, key=["a", "b"])], numPartitions="8", numStores="2")
    with tubestore.open(tmp_path, mode="r") as store:
        options = store.topic("logs").options
        assert (options.partitions, options.stores) == (8, 2)
    run(tmp_path, [batch(2, 2, key=["a", "b"])], "next", numPartitions="3")
    by_body = {row["body"]: row["partition"] for row in scanned_rows(tmp_path)}
    assert by_body[b"0"] == by_body[b"2"]  # the same key, the same partition
    assert by_body[b"1"] == by_body[b"3"]


def test_topics_of_rows_with_partitions_are_made_as_large_as_these_need(tmp_path: Path) -> None:
    run(tmp_path, [batch(0, 2, partition=[3, 10_002])])
    with tubestore.open(tmp_path, mode="r") as store:
        assert store.topic("logs").options == tubestore.TopicOptions(partitions=4, stores=2)


def test_topics_are_not_made_if_that_is_not_wanted(tmp_path: Path) -> None:
    write_store(tmp_path, {"orders": 1})
    for columns in ({"partition": [0, 0]}, {}):
        with pytest.raises(
            InvalidMessage, match="no topic 'logs', and createTopics is false: create"
        ):
            run(tmp_path, [batch(0, 2, **columns)], createTopics="false")


def test_a_job_that_is_given_up_leaves_nothing(tmp_path: Path) -> None:
    load = load_of(tmp_path, batch(0, 1).schema)
    load.abort("j", load.stage("j", "0-0", iter([batch(0, 10)])))
    assert [path.name for path in (tmp_path / ".tubestore" / "staging").iterdir()] == []
    assert run(tmp_path, [batch(0, 10)]).rows == 10


def test_a_published_job_survives_being_given_up(tmp_path: Path) -> None:
    run(tmp_path, [batch(0, 10)])
    load_of(tmp_path, batch(0, 1).schema).abort("j", [])
    assert len(bodies(tmp_path)) == 10


def test_giving_up_leaves_a_job_alone_that_is_half_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = load_of(tmp_path, batch(0, 1).schema)
    staged = load.stage("j", "0-0", iter([batch(0, 10)]))

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("tubestore.store.publish.roll_forward", killed)
    with pytest.raises(KeyboardInterrupt):
        load.publish("j", staged)
    monkeypatch.undo()
    load.abort("j", staged)
    assert load.publish("j", staged).replayed  # opening brought it to its end
    assert len(bodies(tmp_path)) == 10
    assert CommitRecords(tubestore.core.vfs.OsVfs(), str(tmp_path)).pending() is None


def test_a_run_that_fails_leaves_what_another_run_of_the_same_job_has_staged(
    tmp_path: Path,
) -> None:
    load = load_of(tmp_path, batch(0, 1).schema)
    failed, other = (load.stage("j", "0-0", iter([batch(0, 10)])) for _ in range(2))
    load.abort("j", failed)
    assert load.publish("j", other).rows == 10


def test_a_load_waits_for_a_writer_and_then_names_the_writer_in_the_way(tmp_path: Path) -> None:
    with tubestore.open(tmp_path), pytest.raises(StoreLocked, match="lockTimeoutMs"):
        run(tmp_path, [batch(0, 10)], lockTimeoutMs="50")
    assert run(tmp_path, [batch(0, 10)]).rows == 10


def test_a_row_that_cannot_be_stored_is_refused_and_nothing_is_staged(tmp_path: Path) -> None:
    empty = pa.RecordBatch.from_pydict({"topic": ["logs"], "body": [b""]})
    with pytest.raises(InvalidMessage, match="body"):
        run(tmp_path, [empty])
    assert not list((tmp_path / ".tubestore").rglob("*.tube"))


def test_a_directory_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    with pytest.raises(NotAStore, match="RocketMQ"):
        load_of(tmp_path, batch(0, 1).schema)


def test_a_stream_of_batches_keeps_one_range_of_ids(tmp_path: Path) -> None:
    for number in range(5):
        run(tmp_path, [batch(number, 1)], f"query:{number}")
    text = (tmp_path / ".tubestore" / "jobs.json").read_text()
    assert '"query": [[0, 4]]' in text


def sifted(
    root: Path, batch: pa.RecordBatch, **options: str
) -> tuple[list[dict[str, Any]], list[bytes]]:
    """Stage and publish with a sieve; returns the rows that were refused and the bodies stored."""
    load = load_of(root, batch.schema, rejectedRowsPath=str(root) + "-rejected", **options)
    assert load.rejected_path is not None
    sieve = Sieve(load.rejected_path, "j", "0")
    load.publish("j", load.stage("j", "0", iter([batch]), sieve=sieve))
    file = sieve.finish()
    return ([] if file is None else pq.read_table(file.path).to_pylist()), bodies(root)


@pytest.mark.parametrize(
    ("column", "values", "reason"),
    [
        ("topic", ["logs", None, "logs"], "every row needs a topic"),
        ("topic", ["logs", "a/b", "logs"], "a/b"),
        ("topic", ["logs", "other", "logs"], "no topic 'other'"),
        ("body", [b"0", b"", b"2"], "a message needs a body"),
        ("body", [b"0", b"x" * 200, b"2"], "above the limit of 100 bytes"),
        ("partition", [0, 7, 1], "partition 7: its topic has partitions 0 to 1"),
        ("partition", [0, None, 1], "column partition"),
        ("filter_item", ["a", "b,c", None], "filter"),
        ("attributes", [[("k", "v")], [("k", "a,b")], None], "attribute"),
        ("received_time_ms", [1, None, 2], "received_time"),
        ("headers", [[("k", b"v")], [("k", b"\xff")], None], "UTF-8"),
    ],
)
def test_a_row_that_the_store_does_not_take_is_put_aside_with_its_columns(
    tmp_path: Path, column: str, values: list[Any], reason: str
) -> None:
    root = tmp_path / "store"
    with tubestore.open(root) as store:
        store.create_topic("logs", partitions=2)
    rows: dict[str, Any] = {"topic": ["logs"] * 3, "body": [b"0", b"1", b"2"]}
    if column == "attributes":
        values = pa.array(values, pa.map_(pa.string(), pa.string()))
    if column == "headers":
        values = pa.array([v and [{"key": k, "value": b} for k, b in v] for v in values], HEADERS)
    rows[column] = values
    given = pa.RecordBatch.from_pydict(rows)
    refused, stored = sifted(root, given, createTopics="false", maxMessageBytes="100")
    assert stored == [b"0", b"2"]
    (row,) = refused
    assert reason in row.pop("rejected_reason")
    assert row == given.slice(1, 1).to_pylist()[0]


def test_a_column_that_only_some_rows_lack_is_judged_by_the_whole_batch(tmp_path: Path) -> None:
    given = batch(0, 3, partition=pa.array([None, None, 0], pa.int32()))
    refused, stored = sifted(tmp_path / "store", given)
    assert (len(refused), stored) == (2, [b"2"])
    without = batch(0, 3, partition=pa.array([None] * 3, pa.int32()))
    refused, stored = sifted(tmp_path / "other", without)
    assert (len(refused), len(stored)) == (0, 3)


def test_rejected_rows_go_beside_the_store(tmp_path: Path) -> None:
    schema = batch(0, 1).schema
    for inside in (tmp_path, tmp_path / "rejected"):
        with pytest.raises(InvalidOption, match="is in the store"):
            load_of(tmp_path, schema, rejectedRowsPath=str(inside))
    with pytest.raises(InvalidOption, match="rejectedRowsPath"):
        load_of(tmp_path, schema, rejectedRowsPath="s3://bucket/rejected")
