"""Every call to the disk of a scripted workload fails: once, for a while, for good, and in part.

The workloads (`explorer/workloads.py`) put in all ways and at all levels, read, flush, publish,
remove what is too old, close and open again; the engine with and without its journal, RocketMQ's
stores through writes, maps and the transient pool. Then the disk is well again, everything is done
once more, and the store is closed or its process killed. What is there afterwards must be what the
workload was told. A sample takes one fault in `FAULTS_SAMPLED`, beginning where `CRASH_SEED` says;
the slow test takes all.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

import pytest

from tests.proof.explorer.explore import seed_from_environment
from tests.proof.explorer.ledger import Ledger
from tests.proof.explorer.setting import quick_and_quiet
from tests.proof.explorer.workloads import TAKES_ROOM, WORKLOADS, BreakingVfs, Workload
from tubestore.errors import BatchError, TubeStoreError
from tubestore.testing import MemoryVfs

#: Of so many faults a sample has one: a prime, so that it goes through all kinds of them.
SAMPLED = int(os.environ.get("FAULTS_SAMPLED", "211"))
FOR_GOOD = 1 << 30


class Plan(NamedTuple):
    """Which calls fail, and how."""

    error: int
    first: int
    count: int
    in_part: bool = False


@pytest.fixture(autouse=True)
def setting() -> Iterator[None]:
    with quick_and_quiet():
        yield


def calls_of(name: str) -> list[str]:
    """Return the calls that a workload makes on a disk that is well."""
    vfs = BreakingVfs(MemoryVfs())
    work = WORKLOADS[name](vfs, "/store", Ledger())
    work.run()
    assert not work.raised
    made = list(vfs.made)
    work.store = work.open()
    assert work.ledger.check(work.rows(), least="memory", first_kept=work.first_kept) > 20
    work.close()
    assert work.findings() == []
    return made


def plans(name: str) -> Iterator[Plan]:
    """Go through all faults, call by call."""
    for number, call in enumerate(calls_of(name)):
        for count in (1, 4, FOR_GOOD):
            yield Plan(errno.EIO, number, count)
        if call in TAKES_ROOM:
            for count in (1, 4, FOR_GOOD):
                yield Plan(errno.ENOSPC, number, count)
        if call == "pwrite":
            yield Plan(errno.ENOSPC, number, 1, in_part=True)
            yield Plan(errno.EIO, number, 1, in_part=True)


def judge(name: str, plan: Plan) -> None:
    """Run a workload on a disk that fails, and compare what is there with what it was told."""
    vfs = BreakingVfs(MemoryVfs())
    vfs.break_calls(plan.error, plan.first, plan.count, in_part=plan.in_part)
    work = WORKLOADS[name](vfs, "/store", Ledger())
    work.run()
    assert vfs.struck
    vfs.on = False
    if plan.error == errno.ENOSPC:
        assert all(map(goes_on_with_room, work.raised)), work.raised
    go_on(work)
    if plan.first % 2:
        work.abandon()
        vfs.release_locks()
    else:
        work.attempt(work.close)
    if work.store is None:
        work.store = work.open()
    work.ledger.check(work.rows(), least="page_cache", first_kept=work.first_kept)
    work.close()
    assert work.findings() == []


def go_on(work: Workload) -> None:
    """Do everything once more on a disk that is well, and publish what could not be published.

    A store that has failed says so, and works when it was opened again; every other one goes on.
    """
    failed = work.store is not None and any(not is_lack_of_room(e) for e in work.raised)
    for thing in [*work.things(1), *(lambda job=job: work.publish_again(job) for job in work.jobs)]:
        if not work.attempt(thing):
            assert failed, f"refused on a disk that is well: {work.raised[-1]!r}"
            failed = work.store is not None


def is_lack_of_room(error: TubeStoreError) -> bool:
    return isinstance(error, OSError) and error.errno == errno.ENOSPC


def goes_on_with_room(error: TubeStoreError) -> bool:
    """Whether a full disk may raise this: only a publish that has begun needs a new opening."""
    return is_lack_of_room(error) or isinstance(error, BatchError) or "publish" in str(error)


def judge_all(name: str, faults: Iterator[Plan]) -> None:
    count = 0
    for plan in faults:
        count += 1
        try:
            judge(name, plan)
        except Exception as error:
            raise AssertionError(f"{name}: {plan}: {error!r}") from error
    print(f"{name}: {count} faults")
    assert count


@pytest.mark.sample
@pytest.mark.crash
@pytest.mark.parametrize("name", WORKLOADS)
def test_a_call_that_fails_leaves_what_the_store_reported(name: str) -> None:
    seed = seed_from_environment()
    print(f"CRASH_SEED={seed}")
    judge_all(name, islice(plans(name), seed % SAMPLED, None, SAMPLED))


@pytest.mark.slow
@pytest.mark.crash
@pytest.mark.parametrize("part", range(4))
@pytest.mark.parametrize("name", WORKLOADS)
def test_every_call_may_fail(name: str, part: int) -> None:
    judge_all(name, islice(plans(name), part, None, 4))
