"""The sequence of a publish, whatever the store is made of: order, failures, repetition."""

from __future__ import annotations

import contextlib
import errno
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from tubestore.clock import ManualClock
from tubestore.core.vfs import Vfs
from tubestore.errors import DiskFull, JobTaken, StoreFailed, StoreLocked
from tubestore.staging.commit_records import CommitRecords
from tubestore.staging.job_files import Batch, CommitRecord, PlacedFile, staging_directory
from tubestore.staging.publisher import Publisher
from tubestore.testing import MemoryVfs

STEPS = ["held", "write", "roll_forward", "adopt", "let go", "settle"]


@dataclass
class Recorded:
    """A job without files that notes the steps it is taken through, and fails at one of them."""

    fails_at: str = ""
    error: BaseException = field(default_factory=lambda: OSError(errno.EIO, "broken"))
    job_id: str = "load"
    batch: Batch | None = None
    rows: int = 0
    content: str = ""
    steps: list[str] = field(default_factory=list)

    def step(self, name: str) -> None:
        self.steps.append(name)
        if name == self.fails_at:
            raise self.error

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        self.step("held")
        try:
            yield
        finally:
            self.steps.append("let go")

    def write(self, number: int) -> CommitRecord:
        self.step("write")
        return CommitRecord(number, self.job_id, 0, self.files(), content=self.content)

    def files(self) -> tuple[PlacedFile, ...]:
        """Return one file with the rows."""
        return (PlacedFile("t", 0, "f", self.rows, 0, 0, 1, 0, 0),) if self.rows else ()

    def roll_forward(self, record: CommitRecord) -> None:
        self.step("roll_forward")

    def adopt(self, record: CommitRecord) -> None:
        self.step("adopt")

    def settle(self, record: CommitRecord) -> None:
        self.step("settle")

    def fail(self, reason: str) -> None:
        self.steps.append("fail")


def publisher(vfs: Vfs) -> Publisher[CommitRecord]:
    vfs.make_directories("/store/.tubestore")
    return Publisher(vfs, ManualClock(0), CommitRecords(vfs, "/store"), threading.RLock())


def test_a_new_job_goes_through_all_steps_and_a_known_one_through_none() -> None:
    loads, first, again = publisher(MemoryVfs()), Recorded(), Recorded()
    made, is_new = loads.publish(first)
    assert (first.steps, is_new) == (STEPS, True)
    assert loads.publish(again) == (made, False)
    assert again.steps == []


def test_a_job_that_comes_again_with_other_messages_is_refused() -> None:
    vfs = MemoryVfs()
    loads = publisher(vfs)
    for name in ("load", "plain"):
        vfs.make_directories(staging_directory("/store", name))
    made, _ = loads.publish(Recorded(rows=3, content="a"))
    assert loads.publish(Recorded(rows=3, content="a")) == (made, False)
    assert loads.publish(Recorded(rows=3)) == (made, False), "of a version that does not sum up"
    assert loads.publish(Recorded()) == (made, False), "nothing was staged: it is asked for"
    with pytest.raises(JobTaken, match="published with 3 messages, and other ones are staged now"):
        loads.publish(Recorded(rows=3, content="b"))
    with pytest.raises(JobTaken, match="published with 3 messages, and 4 are staged now"):
        loads.publish(Recorded(rows=4, content="a"))
    plain, _ = loads.publish(Recorded(job_id="plain", rows=3))
    assert loads.publish(Recorded(job_id="plain", rows=3, content="b")) == (plain, False)


def test_a_job_that_fails_before_its_record_may_be_published_again() -> None:
    loads = publisher(MemoryVfs())
    for number, kind in ((errno.EIO, StoreFailed), (errno.ENOSPC, DiskFull)):
        job = Recorded("write", OSError(number, "no"))
        with pytest.raises(kind):
            loads.publish(job)
        assert job.steps == ["held", "write", "let go"]
        assert loads.records.pending() is None
    assert loads.publish(Recorded())[1]


@pytest.mark.parametrize("step", ["roll_forward", "adopt"])
@pytest.mark.parametrize("error", [OSError(errno.EIO, "broken"), KeyboardInterrupt()])
def test_a_job_that_fails_behind_its_record_fails_the_store(
    step: str, error: BaseException
) -> None:
    job = Recorded(step, error)
    loads = publisher(MemoryVfs())
    with pytest.raises(StoreFailed if isinstance(error, OSError) else KeyboardInterrupt):
        loads.publish(job)
    assert job.steps[-2:] == ["fail", "let go"]
    assert loads.records.read(1) is not None


def test_a_record_of_another_process_leaves_the_store_as_it_was() -> None:
    vfs = MemoryVfs()
    loads, job = publisher(vfs), Recorded()
    vfs.make_directories(loads.records.directory)
    wrote = job.write

    def write(number: int) -> CommitRecord:
        vfs.replace_file(loads.records.path(number), b"{}")
        return wrote(number)

    job.write = write  # type: ignore[method-assign]
    with pytest.raises(StoreLocked):
        loads.publish(job)
    assert "fail" not in job.steps
