"""Every call to the disk fails once: full disk, broken disk, short write, failed sync.

A random run of each subject meets one fault; what it raises is ours or the disk's own error.
Then the process is killed, or the power fails: what had been acknowledged is there, by its level,
and nothing is there twice. `FAULTS` sets how many faults of a subject are tried (default 60; the
slow test tries every call); `CRASH_SEED` repeats a run.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from random import Random
from typing import Any, NamedTuple

import pytest

from tests.proof.explorer import engine, stack
from tests.proof.explorer.book import Book, Promise, due, promises_at
from tests.proof.explorer.explore import Subject, seconds_from_environment, seed_from_environment
from tests.proof.explorer.run import RandomRun
from tubestore.clock import ManualClock
from tubestore.core.vfs import Vfs
from tubestore.errors import TubeStoreError
from tubestore.testing import FaultyVfs, MemoryVfs, crash_states

pytestmark = pytest.mark.gate

FAULTS = int(os.environ.get("FAULTS", "60"))
STEPS = 25
#: How each kind of call can fail: (error, bytes that a failing write leaves behind).
FAILURES: dict[str, tuple[tuple[int, int | None], ...]] = {
    "pwrite": ((errno.ENOSPC, None), (errno.EIO, 0), (errno.EIO, 5), (errno.ENOSPC, 0)),
    "sync": ((errno.EIO, None),),
    "sync_directory": ((errno.EIO, None),),
    "truncate": ((errno.EIO, None), (errno.ENOSPC, None)),
    "allocate": ((errno.ENOSPC, None), (errno.EIO, None)),
    "shared_map": ((errno.ENOMEM, None),),
    "create": ((errno.ENOSPC, None), (errno.EMFILE, None)),
    "open": ((errno.EIO, None), (errno.EMFILE, None)),
    "make_directories": ((errno.ENOSPC, None),),
    "rename": ((errno.EIO, None),),
    "remove": ((errno.EIO, None),),
    "replace_file": ((errno.ENOSPC, None), (errno.EIO, None)),
    "entries": ((errno.EIO, None),),
    "read_file": ((errno.EIO, None),),
    "pread": ((errno.EIO, None),),
    "view": ((errno.ENOMEM, None),),
}
SUBJECTS = {
    "engine": Subject("engine", engine.EngineRun, engine.check_state),
    "stack": Subject("stack", stack.StackRun, stack.check_state),
    "stack-mmap": Subject("stack-mmap", stack.MmapStackRun, stack.check_state),
}


class Planned(NamedTuple):
    """A fault: the n-th call of a kind in the run of a seed."""

    seed: int
    call: str
    nth: int
    error: int
    written: int | None


class FaultyRun:
    """A run on a disk with a fault; goes on after it as a user would, by opening again."""

    def __init__(self, subject: Subject, planned: Planned) -> None:
        self.clock = ManualClock()
        self.vfs = MemoryVfs(self.clock)
        self.journal = self.vfs.record()
        self.faulty = FaultyVfs(self.vfs)
        self.book = Book()
        self.planned = planned
        self.run = self._started(subject)

    def _started(self, subject: Subject) -> RandomRun:
        faulty = self.faulty

        class OnFaultyDisk(subject.run):  # type: ignore[name-defined,misc]
            def disk_of(self, vfs: MemoryVfs) -> Vfs:
                return faulty

        run: RandomRun = OnFaultyDisk(self.vfs, self.clock, self.book, {}, self.planned.seed)
        return run

    def go(self) -> None:
        """Do everything, with the fault somewhere on the way."""
        planned = self.planned
        self.faulty.fail(
            planned.call, nth=planned.nth, error=planned.error, written=planned.written
        )
        for _ in range(STEPS):
            try:
                self.run.step()
            except TubeStoreError:
                self._open_again()
            except OSError as error:
                if error.errno != planned.error:  # not the disk's, so ours should stand here
                    raise
                self._open_again()
            except AssertionError:
                if not self.run.has_stopped():
                    raise
                self._open_again()

    def _open_again(self) -> None:
        """Half of the time go on with what is open; else kill the process and open."""
        run = self.run
        run.is_disturbed = True
        if run.random.random() < 0.5:
            return
        run.stop()
        run.promises = {p.id: p for p in run.promises.values() if p.level != "memory"}
        try:
            run.open()
        except (TubeStoreError, OSError):  # the fault strikes once
            self.vfs.release_locks()
            run.open()


def calls_of(subject: Subject, seed: int) -> dict[str, int]:
    """Return how often each kind of call is made by the run of a seed."""
    run = FaultyRun(subject, Planned(seed, "lock", 1 << 30, 0, None))
    before = dict(run.faulty.calls)
    run.go()
    run.run.stop()
    return {call: n - before.get(call, 0) for call, n in run.faulty.calls.items()}


def every_fault(subject: Subject, seed: int) -> Iterator[Planned]:
    """Plan a failure of every call of a run, in every way."""
    for call, count in sorted(calls_of(subject, seed).items()):
        for error, written in FAILURES.get(call, ()):
            for nth in range(1, count + 1):
                yield Planned(seed, call, nth, error, written)


def look_at(subject: Subject, planned: Planned) -> None:
    """Run with the fault, then die in each way; raises for the first thing that does not hold."""
    faulty = FaultyRun(subject, planned)
    faulty.go()
    faulty.run.stop()
    end = len(faulty.journal)
    states = crash_states(
        faulty.journal, seed=planned.seed, variants=(0, 1, 5), steps=lambda step: step == end
    )
    before: dict[int, Promise] = {}
    for state in states:
        clock = ManualClock(faulty.clock.now_ms() + 1000)
        promises = due(promises_at(state, before), state.kind)
        subject.check(
            state.vfs(clock), clock, faulty.book, promises,
            damage_allowed=state.kind == "power", turn=0,
        )  # fmt: skip


def look_at_all(subject: Subject, faults: list[Planned]) -> None:
    """Look at each fault until the time of this part is over (`CRASH_SECONDS`)."""
    end, count = time.monotonic() + seconds_from_environment(), 0
    for planned in faults:
        count += 1
        try:
            look_at(subject, planned)
        except Exception as error:
            raise AssertionError(f"{subject.name}: {planned}: {error!r}") from error
        if time.monotonic() > end:
            break
    print(f"{subject.name}: {count} of {len(faults)} faults")


def drawn(subject: Subject, random: Random, count: int) -> list[Planned]:
    """Draw faults of some runs, all kinds of calls alike."""
    faults: list[Planned] = []
    while len(faults) < count:
        by_kind: dict[Any, list[Planned]] = {}
        for planned in every_fault(subject, random.randrange(1 << 30)):
            by_kind.setdefault((planned.call, planned.error, planned.written), []).append(planned)
        one_of_each = [random.choice(planned_faults) for planned_faults in by_kind.values()]
        faults += random.sample(one_of_each, len(one_of_each))
    return faults[:count]


@pytest.mark.sample
@pytest.mark.crash
@pytest.mark.parametrize("name", SUBJECTS)
def test_a_call_that_fails_loses_nothing_that_was_acknowledged(name: str) -> None:
    seed = seed_from_environment()
    print(f"CRASH_SEED={seed}")
    look_at_all(SUBJECTS[name], drawn(SUBJECTS[name], Random(seed), FAULTS))


@pytest.mark.slow
@pytest.mark.crash
@pytest.mark.parametrize("name", SUBJECTS)
def test_every_call_of_a_run_may_fail(name: str) -> None:
    seed = seed_from_environment()
    print(f"CRASH_SEED={seed}")
    look_at_all(SUBJECTS[name], list(every_fault(SUBJECTS[name], seed)))
