"""What a group has committed is there after every crash, as far as the level promises.

Two members commit in turn at random levels, in logs so small that snapshots follow each other.
Every call is the last one of a kill and of power cuts; what the next process commits is found
again. `CRASH_SEED` repeats a run.
"""

from __future__ import annotations

import time
from random import Random

import numpy as np
import pytest

from tests.proof.explorer.explore import (
    seconds_from_environment,
    seed_from_environment,
    share_of_states,
)
from tubestore.clock import ManualClock
from tubestore.groups import positions_log
from tubestore.groups.directory import GroupDirectory
from tubestore.groups.positions import PositionRows
from tubestore.options import DURABILITIES, Durability
from tubestore.testing import CrashState, Distinct, Journal, LyingVfs, MemoryVfs, crash_states

pytestmark = pytest.mark.crash

ROOT, PARTITIONS = "/s", 4
LEAST = 300  #: states that a run looks at, however slow the machine is
#: A partition, the position that was committed, and the level.
Mark = tuple[int, int, str]


def commit(files: GroupDirectory, offsets: dict[int, int], level: Durability) -> None:
    with files.locked():
        files.log.refresh(locked=True)
        rows = {"t": PositionRows(0, np.array([*offsets]), np.array([*offsets.values()]))}
        files.log.append(files.log.positions.change(1, rows), level)


def recorded_run(random: Random, vfs: MemoryVfs, disk: object | None = None) -> Journal:
    """Commits of two processes; positions only rise, and each commit is marked when it is done."""
    clock = ManualClock()
    vfs.make_directories(ROOT)
    journal = vfs.record()
    members = [GroupDirectory(disk or vfs, ROOT, "g", clock) for _ in range(2)]  # type: ignore[arg-type]
    for files in members:
        files.make()
    at = dict.fromkeys(range(PARTITIONS), 0)
    for _ in range(random.randrange(8, 25)):
        some = random.sample(range(PARTITIONS), random.randrange(1, PARTITIONS + 1))
        level: Durability = random.choice(DURABILITIES[1:])
        for partition in some:
            at[partition] += 28 * random.randrange(1, 5)
        commit(random.choice(members), {n: at[n] for n in some}, level)
        for partition in some:
            vfs.mark((partition, at[partition], level))
    return journal


def promised(state: CrashState) -> dict[int, int]:
    """The least position of each partition that has to be there.

    A commit at `fsync` brings all commits before it to stable storage.
    """
    least = dict.fromkeys(range(PARTITIONS), 0)
    reached = dict(least)
    for partition, position, level in state.marks:
        reached[partition] = position
        if state.kind == "kill" or level == "fsync":
            least = dict(reached)
    return least


def look(state: CrashState) -> None:
    """Load, compare, commit, load again."""
    vfs = state.vfs(ManualClock())
    files = GroupDirectory(vfs, ROOT, "g", ManualClock())
    files.make()
    with files.locked():
        files.log.refresh(locked=True)
    found = files.log.positions.topics().get("t", {})
    for partition, least in promised(state).items():
        assert found.get(partition, 0) >= least, f"partition {partition} went back"
    if state.kind == "kill":
        assert files.log.problems == [], "a kill is no damage"
    commit(files, {0: 1 << 40}, "fsync")
    again = GroupDirectory(vfs, ROOT, "g", ManualClock())
    again.log.refresh()
    assert again.log.positions.topics()["t"] == {**found, 0: 1 << 40}


def explore(seed: int, states: int, lying: bool = False) -> int:
    random, seen = Random(seed), Distinct()
    end = time.monotonic() + seconds_from_environment()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(positions_log, "GROWN_BYTES", 350)
        while len(seen) < LEAST or (len(seen) < states and time.monotonic() < end):
            vfs = MemoryVfs(ManualClock())
            journal = recorded_run(random, vfs, LyingVfs(vfs, ".log") if lying else None)
            for state in crash_states(journal, seed=random.randrange(1 << 30), variants=10):
                if seen.is_new(state, id(journal)):
                    look(state)
                if len(seen) >= states or time.monotonic() > end:
                    break
    return len(seen)


@pytest.mark.sample
def test_committed_positions_survive_what_their_level_promises() -> None:
    seed = seed_from_environment()
    print(f"CRASH_SEED={seed}")
    assert explore(seed, max(LEAST, share_of_states(0.05))) >= LEAST


def test_a_sync_that_is_not_made_is_found() -> None:
    """The proof notices a log that reports `fsync` without a sync."""
    with pytest.raises(AssertionError, match="went back"):
        explore(1, 3000, lying=True)
