"""What `crash_states` gives: everything that a kill or a power cut may leave, and nothing else."""

from __future__ import annotations

from tests.support.engine.trees_of_crashes import FILE, durable_file
from tests.support.engine.trees_of_crashes import vfs as vfs
from tubestore.testing import MemoryVfs, crash_states


def test_a_kill_loses_nothing_at_any_step(vfs: MemoryVfs) -> None:
    file = vfs.open(FILE, create=True)
    file.pwrite(b"abc", 0)
    file.truncate(2)
    assert vfs.journal is not None
    states = [s for s in crash_states(vfs.journal, seed=1, kinds=["kill"]) if s.variant == 0]
    assert [s.disk.tree() for s in states] == [{}, {FILE: b""}, {FILE: b"abc"}, {FILE: b"ab"}]


def test_a_kill_may_cut_the_last_write_short(vfs: MemoryVfs) -> None:
    vfs.open(FILE, create=True).pwrite(b"x" * 9000, 0)
    assert vfs.journal is not None
    states = crash_states(vfs.journal, seed=1, kinds=["kill"], steps=lambda step: step == 1)
    sizes = {len(s.disk.tree()[FILE]) for s in states}
    assert {0, 4096, 8192} < sizes


def test_a_power_cut_changes_the_boot_id_and_drops_locks(vfs: MemoryVfs) -> None:
    vfs.lock("/d/lock", kind="flock")
    assert vfs.journal is not None
    for state in crash_states(vfs.journal, seed=1):
        after = state.vfs()
        assert (after.boot_id() == vfs.boot_id()) == (state.kind == "kill")
        after.lock("/d/lock", kind="flock")


def test_the_same_seed_gives_the_same_states(vfs: MemoryVfs) -> None:
    durable_file(vfs, b"x" * 3000)
    vfs.open(FILE).pwrite(b"y" * 3000, 1000)
    assert vfs.journal is not None

    def keys(seed: int) -> list[bytes]:
        assert vfs.journal is not None
        return [state.key for state in crash_states(vfs.journal, seed=seed)]

    assert keys(7) == keys(7)
    assert keys(7) != keys(8)
