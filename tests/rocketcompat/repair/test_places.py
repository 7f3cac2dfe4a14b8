"""Log files that hold the records of another place are put back by a repair."""

from __future__ import annotations

import pytest

from rocketcompat.check.whole import check_store
from rocketcompat.inspect.directory import StoreDirectory
from rocketcompat.inspect.dump import dump_log
from rocketcompat.repair.plan import plan_repair
from tests.rocketcompat.repair.test_apply import log_of
from tests.rocketcompat.repair.test_rebuild import OPTIONS, ROOT, write
from tests.support.crashes import some_states
from tests.support.rocket.store.mended import mend_store
from tubestore.clock import ManualClock
from tubestore.core.quarantine import Quarantine
from tubestore.testing import MemoryVfs

LOG = f"{ROOT}/commitlog"


def path_of(number: int) -> str:
    return f"{LOG}/{4096 * number:020d}"


def overwrite(vfs: MemoryVfs, path: str, data: bytes) -> None:
    file = vfs.open(path, create=not vfs.exists(path))
    file.pwrite(data, 0)
    file.close()


def swap(vfs: MemoryVfs, one: int, other: int) -> None:
    first, second = vfs.read_file(path_of(one)), vfs.read_file(path_of(other))
    overwrite(vfs, path_of(one), second)
    overwrite(vfs, path_of(other), first)


def planned(vfs: MemoryVfs) -> list[tuple[str, str, str]]:
    plan = plan_repair(StoreDirectory(ROOT, OPTIONS, vfs))
    return [(a.action, a.path, a.message) for a in plan.actions if a.path.startswith(LOG)]


def last_of(vfs: MemoryVfs) -> int:
    return len(vfs.entries(LOG)) - 1


@pytest.mark.parametrize("with_last", [False, True])
def test_swapped_files_are_put_back_and_nothing_else_is_changed(
    memory_vfs: MemoryVfs, clock: ManualClock, with_last: bool
) -> None:
    write(memory_vfs, clock)
    expected, other = log_of(memory_vfs), last_of(memory_vfs) if with_last else 1
    swap(memory_vfs, 0, other)
    plan = plan_repair(StoreDirectory(ROOT, OPTIONS, memory_vfs))
    assert sorted((a.action, a.path) for a in plan.actions) == [
        ("put back", path_of(0)), ("put back", path_of(other))
    ]  # fmt: skip
    assert f"its records are in {path_of(other)}" in str(plan.actions[0].message)
    mend_store(memory_vfs, clock)
    assert log_of(memory_vfs) == expected
    assert list(check_store(StoreDirectory(ROOT, OPTIONS, memory_vfs))) == []
    assert not memory_vfs.exists(f"{LOG}.misplaced")


def test_a_file_under_a_wrong_name_gets_the_name_of_its_missing_place(
    memory_vfs: MemoryVfs, clock: ManualClock
) -> None:
    write(memory_vfs, clock)
    expected, last = log_of(memory_vfs), last_of(memory_vfs)
    memory_vfs.rename(path_of(1), path_of(last + 1))
    mend_store(memory_vfs, clock)
    assert log_of(memory_vfs) == expected
    assert not memory_vfs.exists(path_of(last + 1))


def test_a_copy_of_a_file_that_is_there_is_named_and_kept(
    memory_vfs: MemoryVfs, clock: ManualClock
) -> None:
    write(memory_vfs, clock)
    copy, stray = memory_vfs.read_file(path_of(0)), last_of(memory_vfs) + 1
    overwrite(memory_vfs, path_of(1), copy)
    overwrite(memory_vfs, path_of(stray), copy)
    found = planned(memory_vfs)
    assert [(action, path) for action, path, _ in found] == [
        ("write", path_of(1)), ("remove", path_of(stray))
    ]  # fmt: skip
    assert all("holds records of offset 0" in message for _, _, message in found)
    mend_store(memory_vfs, clock)
    kept = f"{ROOT}/.tubestore/quarantine/1/commitlog"
    for number in (1, stray):
        assert memory_vfs.read_file(f"{kept}/{4096 * number:020d}") == copy
    assert planned(memory_vfs) == []


def test_of_two_files_that_claim_a_place_neither_is_touched(
    memory_vfs: MemoryVfs, clock: ManualClock
) -> None:
    write(memory_vfs, clock)
    copy, stray = memory_vfs.read_file(path_of(0)), last_of(memory_vfs) + 1
    overwrite(memory_vfs, path_of(1), copy)
    overwrite(memory_vfs, path_of(stray), copy)
    memory_vfs.remove(path_of(0))
    found = planned(memory_vfs)
    assert [(action, path) for action, path, _ in found] == [
        ("leave", path_of(1)), ("leave", path_of(stray))
    ]  # fmt: skip
    assert all("put the right one back" in message for _, _, message in found)
    mend_store(memory_vfs, clock)
    assert memory_vfs.read_file(path_of(1)) == memory_vfs.read_file(path_of(stray)) == copy


@pytest.mark.gate
@pytest.mark.crash
def test_a_crash_while_files_are_put_back_is_mended_by_another_run(
    memory_vfs: MemoryVfs, clock: ManualClock
) -> None:
    write(memory_vfs, clock, 60)
    expected = log_of(memory_vfs)
    first, second, third = (memory_vfs.read_file(path_of(n)) for n in range(3))
    for number, data in enumerate((second, third, first)):
        overwrite(memory_vfs, path_of(number), data)
    for number in range(3):
        memory_vfs.open(path_of(number)).sync()
    journal = memory_vfs.record()
    mend_store(memory_vfs, clock)
    assert log_of(memory_vfs) == expected
    states = some_states(journal, 40, seed=20261122, variants=4)
    for state in states:
        vfs = state.vfs(clock)
        mend_store(vfs, clock)
        assert log_of(vfs) == expected, str(state)
        findings = list(check_store(StoreDirectory(ROOT, OPTIONS, vfs)))
        assert findings == [], str(state)
        assert not vfs.exists(f"{LOG}.misplaced"), str(state)
    assert len(states) > 10


def test_what_an_interrupted_run_held_and_nothing_needs_goes_to_quarantine(
    memory_vfs: MemoryVfs, clock: ManualClock
) -> None:
    write(memory_vfs, clock)
    memory_vfs.make_directories(f"{LOG}.misplaced")
    overwrite(memory_vfs, f"{LOG}.misplaced/{0:020d}", memory_vfs.read_file(path_of(0)))
    directory = StoreDirectory(ROOT, OPTIONS, memory_vfs)
    before = list(dump_log(directory))
    assert [a.path for a in plan_repair(directory).actions] == [f"{LOG}.misplaced"]
    mend_store(memory_vfs, clock)
    assert not memory_vfs.exists(f"{LOG}.misplaced")
    assert list(dump_log(StoreDirectory(ROOT, OPTIONS, memory_vfs))) == before
    kept = Quarantine(memory_vfs, ROOT)
    assert kept.path is None
    assert memory_vfs.exists(f"{ROOT}/.tubestore/quarantine/1/commitlog.misplaced")
