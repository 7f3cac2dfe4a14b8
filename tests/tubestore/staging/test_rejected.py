"""Rows that a store does not take: put aside by tasks, and in their place once, with the job."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tubestore.errors import InvalidMessage, InvalidOption, JobTaken, StoreFailed
from tubestore.staging import rejected
from tubestore.staging.rejected import RejectedFile, Sieve, check_new, count, forget, publish


def batch_of(*numbers: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"n": list(numbers)})


def taking(found: list[int], calls: list[int]) -> Callable[[pa.RecordBatch], None]:
    """A store that takes no negative numbers."""

    def put(batch: pa.RecordBatch) -> None:
        numbers = batch.column(0).to_pylist()
        calls.append(len(numbers))
        for row, number in enumerate(numbers):
            if number < 0:
                raise InvalidMessage(f"row {row}: {number} is negative")
        found.extend(numbers)

    return put


def put_aside(directory: Path, job_id: str, *numbers: int, attempt: str = "0") -> RejectedFile:
    sieve = Sieve(str(directory), job_id, attempt)
    sieve.take(batch_of(*numbers), taking([], []))
    file = sieve.finish()
    assert file is not None
    return file


def test_the_rows_that_are_refused_are_put_aside_with_the_reason_and_the_others_keep_their_order(
    tmp_path: Path,
) -> None:
    found: list[int] = []
    sieve = Sieve(str(tmp_path), "load", "3-1")
    put = taking(found, [])
    for numbers in ([1, -2, 3, 4], [5, 6], [-7], [8, 9, -10, -11, 12]):
        sieve.take(batch_of(*numbers), put)
    assert found == [1, 3, 4, 5, 6, 8, 9, 12]
    file = sieve.finish()
    assert file is not None
    assert file.rows == 4
    assert pq.read_table(file.path).to_pylist() == [
        {"n": n, "rejected_reason": f"{n} is negative"} for n in (-2, -7, -10, -11)
    ]


def test_batches_without_such_rows_are_handed_on_whole_and_leave_no_file(tmp_path: Path) -> None:
    calls: list[int] = []
    sieve = Sieve(str(tmp_path / "none"), "load", "0")
    sieve.take(batch_of(*range(1000)), taking([], calls))
    assert calls == [1000]
    assert sieve.finish() is None
    sieve.discard()
    assert list(tmp_path.iterdir()) == []


def test_one_such_row_costs_as_many_calls_as_halvings_find_it_in(tmp_path: Path) -> None:
    calls: list[int] = []
    Sieve(str(tmp_path), "load", "0").take(batch_of(*range(1023), -1), taking([], calls))
    assert len(calls) == 1 + 2 * 10


def test_an_error_that_no_row_has_ends_the_task_and_its_file_goes(tmp_path: Path) -> None:
    sieve = Sieve(str(tmp_path), "load", "0")
    sieve.take(batch_of(-1), taking([], []))

    def broken(_: pa.RecordBatch) -> None:
        raise StoreFailed("/store", "the disk")

    with pytest.raises(StoreFailed):
        sieve.take(batch_of(1), broken)
    sieve.discard()
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_the_files_of_a_job_come_at_once_and_those_of_lost_tasks_never(tmp_path: Path) -> None:
    kept = [put_aside(tmp_path, "q:1", -1, -2), put_aside(tmp_path, "q:1", -3, attempt="1")]
    put_aside(tmp_path, "q:1", -3, attempt="1-lost")
    other = put_aside(tmp_path, "q:2", -4)
    assert publish(str(tmp_path), "q:1", kept) == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["_staging", "job=q%3A1"]
    found = pq.read_table(tmp_path / "job=q%3A1").to_pylist()
    assert sorted(row["n"] for row in found) == [-3, -2, -1]
    assert publish(str(tmp_path), "q:2", [other]) == 1
    assert not (tmp_path / "_staging").exists()


def test_a_job_that_comes_again_adds_nothing(tmp_path: Path) -> None:
    assert publish(str(tmp_path), "j", [put_aside(tmp_path, "j", -1, -2, -3)]) == 3
    again = [put_aside(tmp_path, "j", -3, -1), put_aside(tmp_path, "j", -2, attempt="1")]
    assert publish(str(tmp_path), "j", again) == 3
    assert publish(str(tmp_path), "k", []) == 0
    assert count(str(tmp_path), "j") == 3
    assert count(str(tmp_path), "none") == 0
    assert [path.name for path in tmp_path.iterdir()] == ["job=j"]


def test_a_publish_that_was_killed_before_the_rename_is_done_by_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = put_aside(tmp_path, "j", -1, -2)
    with monkeypatch.context() as patch:
        patch.setattr("tubestore.staging.rejected._sync", lambda path: exit())
        with pytest.raises(SystemExit):
            publish(str(tmp_path), "j", [first])
    assert not (tmp_path / "job=j").exists()
    assert publish(str(tmp_path), "j", [put_aside(tmp_path, "j", -1, -2)]) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["job=j"]


def test_rows_of_another_store_with_a_job_of_the_same_name_are_not_taken_for_these(
    tmp_path: Path,
) -> None:
    check_new(str(tmp_path), "j", lambda: False)
    publish(str(tmp_path), "j", [put_aside(tmp_path, "j", -1)])
    with pytest.raises(InvalidOption, match="the store has no such job"):
        check_new(str(tmp_path), "j", lambda: False)
    check_new(str(tmp_path), "j", lambda: True)


@pytest.mark.parametrize(
    ("again", "says"),
    [((-1, -3), "2 rejected rows, and other ones"), ((-1, -2, -3), "2 rejected rows, and 3 are"),
     ((-1, -1), "2 rejected rows, and other ones"), ((), "2 rejected rows, and 0 are")],
)  # fmt: skip
def test_a_job_that_comes_again_with_other_rejected_rows_is_refused(
    tmp_path: Path, again: tuple[int, ...], says: str
) -> None:
    publish(str(tmp_path), "j", [put_aside(tmp_path, "j", -1, -2)])
    files = [put_aside(tmp_path, "j", *again)] if again else []
    with pytest.raises(JobTaken, match=says):
        publish(str(tmp_path), "j", files)
    assert sorted(row["n"] for row in pq.read_table(tmp_path / "job=j").to_pylist()) == [-2, -1]


def test_rows_of_any_columns_are_the_same_when_they_come_again_and_no_reason_counts(
    tmp_path: Path,
) -> None:
    headers = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    columns = {
        "body": pa.array([b"a", None, b"c"]),
        "time": pa.array([-1, 2, 1 << 60], pa.timestamp("us", "UTC")),
        "attributes": pa.array(
            [[(b"k", b"v")], None, [(b"x", b"\xff")]], pa.map_(pa.binary(), pa.binary())
        ),
        "headers": pa.array([[{"key": "a", "value": b"\xff"}], None, []], headers),
    }
    batch = pa.RecordBatch.from_pydict(columns)

    def put_all(reason: str, *parts: pa.RecordBatch) -> list[RejectedFile]:
        sieve = Sieve(str(tmp_path), "j", "0")

        def put(_: pa.RecordBatch) -> None:
            raise InvalidMessage(reason)

        for part in parts:
            sieve.take(part, put)
        file = sieve.finish()
        assert file is not None
        return [file]

    assert publish(str(tmp_path), "j", put_all("one", batch)) == 3
    assert publish(str(tmp_path), "j", put_all("two", batch.slice(1), batch.slice(0, 1))) == 3
    with pytest.raises(JobTaken):
        publish(str(tmp_path), "j", put_all("one", batch.slice(1), batch.slice(1, 1)))


def test_what_another_run_of_the_same_job_has_put_aside_stays_when_one_fails(
    tmp_path: Path,
) -> None:
    failed, other = put_aside(tmp_path, "j", -1), put_aside(tmp_path, "j", -1)
    forget(str(tmp_path), "j", [failed])
    assert publish(str(tmp_path), "j", [other]) == 1
    forget(str(tmp_path), "j", [other])
    assert count(str(tmp_path), "j") == 1


def test_two_runs_of_a_job_that_publish_at_the_same_time_leave_its_rows_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = put_aside(tmp_path, "j", -1, -2), put_aside(tmp_path, "j", -2, -1)
    kept = rejected._put

    def overtaken(directory: str, job_id: str, files: Any) -> None:
        monkeypatch.setattr(rejected, "_put", kept)
        assert publish(directory, job_id, [second]) == 2
        kept(directory, job_id, files)

    monkeypatch.setattr(rejected, "_put", overtaken)
    assert publish(str(tmp_path), "j", [first]) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["job=j"]


def test_a_directory_that_cannot_be_made_is_refused_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "_staging").write_bytes(b"a file")
    with pytest.raises(InvalidOption, match="_staging/j: Not a directory"):
        put_aside(tmp_path, "j", -1)
