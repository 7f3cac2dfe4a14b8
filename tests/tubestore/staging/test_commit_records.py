"""Commit records: what is kept of published jobs, and what a reader sees of them."""

from __future__ import annotations

import pytest

from tubestore.errors import NotAStore
from tubestore.staging.commit_records import RECORDS_KEPT, CommitRecords, Horizon
from tubestore.staging.job_files import (
    CommitRecord,
    PlacedFile,
)
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
    assert first.of_all().limits("t", 0) == second.of_all().limits("t", 0) == (560, 2240)
    assert first.of_all().limits("t", 1) is None
    assert Horizon(records._vfs, "/store").limits("t", 0) is None
    assert Horizon(records._vfs, "/store").of_all().limits("t", 0) is None


def test_a_reader_that_slept_through_many_jobs_sees_those_whose_records_are_gone(
    records: CommitRecords,
) -> None:
    sleeper = Horizon(records._vfs, "/store")
    for number in range(1, RECORDS_KEPT + 3):
        publish(records, record(number))
    assert sleeper.limits("t", 0) is None
    assert sleeper.of_all().limits("t", 0) is None


@pytest.mark.parametrize("content", ['{"version": 1}', '{"version": 1, "finished": "1"}',
                                     '{"version": 1, "finished": -1}'])  # fmt: skip
def test_a_number_of_finished_jobs_that_is_none_is_no_store(content: str) -> None:
    vfs = MemoryVfs()
    vfs.make_directories("/s/.tubestore")
    vfs.replace_file("/s/.tubestore/published.json", content.encode())
    with pytest.raises(NotAStore, match="it has no number of a finished job"):
        CommitRecords(vfs, "/s").finished()
