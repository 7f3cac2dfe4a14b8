"""Tasks stage, the driver publishes once, and what fails is removed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.types import StringType, StructField, StructType

from tubestore.errors import InvalidMessage, InvalidOption, JobTaken
from tubestore.spark.kit import sink
from tubestore.spark.kit.sink import Staged, StoreStreamWriter, StoreWriter, appended_schema

REJECTED = pa.RecordBatch.from_pydict({"body": ["a", "b"]})


def refuse(batch: pa.RecordBatch) -> None:
    raise InvalidMessage("not taken")


class Book:
    """A load that notes each call."""

    path = "/s"
    rows = 0

    def __init__(self, published: tuple[str, ...] = (), rejected: Path | None = None) -> None:
        self.published, self.calls = {*published}, list[Any]()
        self.rejected_path = None if rejected is None else str(rejected)

    def is_published(self, job_id: str) -> bool:
        return job_id in self.published

    def stage(
        self, job_id: str, attempt: str, batches: Any, *, content: bool, sieve: Any = None
    ) -> list[str]:
        assert content, "publish compares what comes again"
        if sieve is not None:
            for batch in batches:
                sieve.take(batch, refuse)
        self.calls.append(("stage", job_id, attempt, list(batches)))
        return [f"file of {attempt}"]

    def publish(
        self, job_id: str, staged: list[Any], query: str | None = None, spread: Any = None
    ) -> Any:
        self.calls.append(("publish", job_id, staged, query))
        return SimpleNamespace(replayed=job_id in self.published, rows=self.rows)

    def abort(self, job_id: str, staged: list[Any]) -> None:
        self.calls.append(("abort", job_id, staged))


@pytest.fixture(autouse=True)
def task(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Have this process be the second attempt of task 3, of batch 9 of a query."""
    local = {"streaming.sql.batchId": "9", "sql.streaming.queryId": "q"}
    context = SimpleNamespace(
        partitionId=lambda: 3, taskAttemptId=lambda: 2, getLocalProperty=local.get
    )
    monkeypatch.setattr(sink, "_context", lambda: context)
    return local


def test_a_log_is_only_appended_to() -> None:
    schema = StructType([StructField("body", StringType())])
    assert appended_schema(schema, overwrite=False).names == ["body"]
    with pytest.raises(InvalidOption, match="only appended to"):
        appended_schema(schema, overwrite=True)


def test_an_attempt_is_named_by_its_task_and_its_number() -> None:
    book = Book()
    staged = StoreWriter(book, "j").write(iter(["rows"]))  # type: ignore[list-item, arg-type]
    assert book.calls == [("stage", "j", "3-2", ["rows"])]
    assert (staged.job_id, staged.files) == ("j", ["file of 3-2"])


def test_a_job_that_comes_again_without_rows_is_refused() -> None:
    book = Book(published=("j",))
    book.rows = 5
    with pytest.raises(JobTaken, match="published with 5 messages, and now there is none"):
        StoreWriter(book, "j").commit([Staged("j", [])])  # type: ignore[arg-type]
    StoreWriter(book, "j").commit([Staged("j", ["file"])])  # type: ignore[arg-type]


def test_a_job_without_an_id_gets_one_that_no_other_has() -> None:
    ids = {StoreWriter(Book(), None).job_id for _ in range(20)}  # type: ignore[arg-type]
    assert len(ids) == 20


def test_the_files_of_all_tasks_are_published_in_the_order_of_the_tasks(
    capsys: pytest.CaptureFixture[str],
) -> None:
    book = Book()
    StoreWriter(book, "j").commit([Staged("j", [1, 2]), None, Staged("j", [3])])  # type: ignore[arg-type]
    assert book.calls == [("publish", "j", [1, 2, 3], None)]
    assert capsys.readouterr().err == ""


def test_a_job_that_was_there_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    StoreWriter(Book(published=("j",)), "j").commit([])  # type: ignore[arg-type]
    assert capsys.readouterr().err == (
        "tubestore: /s: job j was there already; nothing was written\n"
    )


@pytest.mark.parametrize(("application", "job"), [(None, "q:9"), ("app", "app:9")])
def test_a_batch_is_named_by_its_query_and_number(application: str | None, job: str) -> None:
    book = Book(published=(job,))
    writer = StoreStreamWriter(book, application)  # type: ignore[arg-type]
    staged = writer.write(iter([]))
    assert book.calls == [("stage", job, "3-2", [])]
    writer.commit([staged, None], 9)
    assert book.calls[1:] == [("publish", job, ["file of 3-2"], "q")]


def test_a_batch_without_tasks_publishes_nothing() -> None:
    book = Book()
    StoreStreamWriter(book, None).commit([], 9)  # type: ignore[arg-type]
    assert book.calls == []


def test_of_a_run_that_failed_the_files_of_its_own_tasks_are_removed() -> None:
    book = Book()
    StoreWriter(book, "j").abort([Staged("j", ["a"]), None, Staged("j", ["b"])])  # type: ignore[arg-type]
    StoreStreamWriter(book, None).abort([Staged("q:9", ["c"]), None], 9)  # type: ignore[arg-type]
    StoreStreamWriter(book, "app").abort([None], 9)  # type: ignore[arg-type]
    assert book.calls == [("abort", "j", ["a", "b"]), ("abort", "q:9", ["c"])]


def test_rejected_rows_come_with_their_job_and_are_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    book = Book(rejected=tmp_path)
    writer = StoreWriter(book, "j")  # type: ignore[arg-type]
    staged = writer.write(iter([REJECTED]))
    assert not (tmp_path / "job=j").exists()
    writer.commit([staged, None])
    assert pq.read_table(tmp_path / "job=j").num_rows == 2
    assert capsys.readouterr().err == (
        f"tubestore: /s: job j: 2 rows were not taken, they are in {tmp_path}/job=j\n"
    )


def test_rejected_rows_of_a_batch_that_comes_again_are_there_once(tmp_path: Path) -> None:
    for published in ((), ("q:9",), ("q:9",)):
        writer = StoreStreamWriter(Book(published, tmp_path), None)  # type: ignore[arg-type]
        writer.commit([writer.write(iter([REJECTED]))], 9)
    assert pq.read_table(tmp_path / "job=q%3A9").num_rows == 2
    assert [path.name for path in tmp_path.iterdir()] == ["job=q%3A9"]


def test_rejected_rows_of_a_job_that_failed_go(tmp_path: Path) -> None:
    writer = StoreWriter(Book(rejected=tmp_path), "j")  # type: ignore[arg-type]
    writer.abort([writer.write(iter([REJECTED]))])
    assert list(tmp_path.iterdir()) == []


def test_a_task_that_fails_leaves_no_rejected_rows(tmp_path: Path) -> None:
    def failing() -> Any:
        yield REJECTED
        raise OSError("the source")

    with pytest.raises(OSError, match="the source"):
        StoreWriter(Book(rejected=tmp_path), "j").write(failing())  # type: ignore[arg-type]
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_job_that_comes_again_with_other_rejected_rows_is_refused(tmp_path: Path) -> None:
    for number, rows in enumerate((REJECTED, REJECTED.slice(1), REJECTED)):
        book = Book(("j",) if number else (), tmp_path)
        writer = StoreWriter(book, "j")  # type: ignore[arg-type]
        staged = writer.write(iter([rows]))
        if number == 1:
            with pytest.raises(JobTaken, match="2 rejected rows, and 1 are rejected now"):
                writer.commit([staged])
        else:
            writer.commit([staged])
    assert pq.read_table(tmp_path / "job=j").num_rows == 2


def test_rejected_rows_of_a_driver_that_was_killed_behind_the_publish_come_when_it_is_run_again(
    tmp_path: Path,
) -> None:
    StoreWriter(Book((), tmp_path), "j").write(iter([REJECTED]))  # type: ignore[arg-type]
    writer = StoreWriter(Book(("j",), tmp_path), "j")  # type: ignore[arg-type]
    writer.commit([writer.write(iter([REJECTED]))])
    assert pq.read_table(tmp_path / "job=j").num_rows == 2
    assert [path.name for path in tmp_path.iterdir()] == ["job=j"]


def test_an_empty_job_id_is_not_made_a_random_one() -> None:
    assert StoreWriter(Book(), "").job_id == ""  # type: ignore[arg-type]
