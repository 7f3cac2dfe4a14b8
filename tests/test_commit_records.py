"""Commit records: what is kept of published jobs, and what a reader sees of them."""

from __future__ import annotations

import json

import pytest

from tubestore.commit_records import (
    RECORDS_KEPT,
    CommitRecord,
    CommitRecords,
    Horizon,
    JobIds,
    PlacedFile,
    StagedFile,
    check_job_id,
    staging_directory,
)
from tubestore.errors import InvalidMessage, InvalidName, NotAStore
from tubestore.testing import MemoryVfs


@pytest.fixture
def records() -> CommitRecords:
    vfs = MemoryVfs()
    vfs.make_directories("/store/.tubestore")
    found = CommitRecords(vfs, "/store")
    found.prepare()
    return found


def record(number: int, job_id: str = "", start: int = 0) -> CommitRecord:
    file = PlacedFile("t", 0, f"f{number}", 2, start, start * 4, 120, 5, 6)
    return CommitRecord(number, job_id or f"job:{number}", 1000, (file,))


def publish(records: CommitRecords, one: CommitRecord) -> None:
    records.draft(one)
    records.commit(one)
    records.finish(one)


def staged(**values: object) -> dict[str, object]:
    plain = StagedFile("t", 0, "a1-0", 2, 120, 5, 6, 1, False, "00", "00").as_json()
    return {**plain, **values}


def test_a_job_is_pending_from_its_record_until_it_is_finished(records: CommitRecords) -> None:
    assert (records.finished(), records.pending()) == (0, None)
    records.draft(record(1))
    assert records.pending() is None
    records.commit(record(1))
    assert records.pending() == record(1)
    assert "job:1" not in records.ids()
    records.finish(record(1))
    assert (records.finished(), records.pending()) == (1, None)
    assert "job:1" in records.ids()
    assert records.find("job:1") == record(1)


def test_a_number_is_given_once(records: CommitRecords) -> None:
    records.draft(record(1))
    records.commit(record(1))
    records.draft(record(1, "other"))
    with pytest.raises(FileExistsError):
        records.commit(record(1, "other"))
    assert records.read(1) == record(1)


def test_old_records_go_and_their_ids_stay_in_a_few_bytes(records: CommitRecords) -> None:
    for number in range(1, RECORDS_KEPT + 11):
        publish(records, record(number))
    assert records.read(10) is None
    assert records.read(11) is not None
    assert "job:3" in records.ids()
    assert records.find("job:3") is None
    assert records.ids().as_json() == {"ids": [], "ranges": {"job": [[1, RECORDS_KEPT + 10]]}}


def test_ids_that_come_out_of_order_are_all_there() -> None:
    numbers = [5, 3, 4, 9, 0, 1, 10, 3]
    ids = JobIds([f"q:{n}" for n in numbers] + ["q:01", "q:", "q"])
    again = JobIds.from_json(json.loads(json.dumps(ids.as_json())))
    for n in range(12):
        assert (f"q:{n}" in again) == (n in numbers)
    assert all(other in again for other in ("q:01", "q:", "q"))
    assert "q:001" not in again
    assert again.as_json()["ranges"] == {"q": [[0, 1], [3, 5], [9, 10]]}


@pytest.mark.parametrize(
    "name", ["published.json", "jobs.json", "commits/00000000000000000001.json"]
)
@pytest.mark.parametrize(
    "content", [b"", b"[]", b'{"version": 2}', b'{"version": 1, "features": ["x"]}']
)
def test_a_state_file_that_makes_no_sense_is_refused(
    records: CommitRecords, name: str, content: bytes
) -> None:
    publish(records, record(1))
    records._vfs.replace_file(f"/store/.tubestore/{name}", content)
    with pytest.raises(NotAStore):
        _ = records.finished(), records.ids(), records.read(1)


@pytest.mark.parametrize("job_id", ["", "x" * 201, "a\nb", None, 7])
def test_an_id_is_a_short_printable_text(job_id: object) -> None:
    with pytest.raises(InvalidName):
        check_job_id(job_id)  # type: ignore[arg-type]


def test_every_id_has_a_directory_of_its_own_below_the_store() -> None:
    ids = ["a", "a/b", "..", ".", "a%2Fb", "\u00e9" * 200, "\u00e9" * 199 + "x", "A"]
    directories = [staging_directory("/store", job_id) for job_id in ids]
    assert len(set(directories)) == len(ids)
    for directory in directories:
        assert directory.startswith("/store/.tubestore/staging/job-")
        assert "/" not in directory.removeprefix("/store/.tubestore/staging/")
        assert len(directory.rpartition("/")[2].encode()) <= 255


def test_descriptions_survive_json() -> None:
    one = StagedFile.from_json(staged())
    assert StagedFile.from_json(json.loads(json.dumps(one.as_json()))) == one
    one.check()


@pytest.mark.parametrize(
    "wrong",
    [
        {"rows": "2"},
        {"rows": True},
        {"extra": 1},
        {"store_id": 1.0},
    ],
)
def test_what_is_no_description_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidMessage, match="not the description"):
        StagedFile.from_json(staged(**wrong))


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": "../a"},
        {"name": ".a"},
        {"name": "a/b"},
        {"store_id": 10_000},
        {"store_id": -1},
        {"partitions": 0},
        {"rows": 0},
        {"topic": "../t"},
    ],
)
def test_a_description_that_leaves_the_store_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises((InvalidMessage, InvalidName)):
        StagedFile.from_json(staged(**wrong)).check()


def test_a_reader_sees_the_jobs_that_were_finished_when_it_came(records: CommitRecords) -> None:
    publish(records, record(1))
    first = Horizon(records._vfs, "/store")
    assert first.limits("t", 0) is None
    records.draft(record(2, start=560))
    records.commit(record(2, start=560))
    second = Horizon(records._vfs, "/store")
    assert first.limits("t", 0) == second.limits("t", 0) == (560, 2240)
    assert first.limits("t", 1) is first.limits("u", 0) is None
    records.finish(record(2, start=560))
    publish(records, record(3, start=1120))
    assert first.limits("t", 0) == second.limits("t", 0) == (560, 2240)
    assert Horizon(records._vfs, "/store").limits("t", 0) is None


def test_a_reader_that_slept_through_many_jobs_sees_those_whose_records_are_gone(
    records: CommitRecords,
) -> None:
    sleeper = Horizon(records._vfs, "/store")
    for number in range(1, RECORDS_KEPT + 3):
        publish(records, record(number))
    assert sleeper.limits("t", 0) is None
