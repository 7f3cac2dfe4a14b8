"""A simulated disk: what is synced, and the changes since."""

from __future__ import annotations

from tests.support.engine.trees_of_crashes import FILE, durable_file, power_trees
from tests.support.engine.trees_of_crashes import vfs as vfs
from tubestore.testing import MemoryVfs, crash_states


def test_what_was_unsynced_at_a_kill_is_unsynced_in_the_run_after_it(vfs: MemoryVfs) -> None:
    durable_file(vfs, b"safe")
    vfs.open(FILE).pwrite(b" and not", 4)
    assert vfs.journal is not None
    end = len(vfs.journal)
    (kill,) = crash_states(vfs.journal, seed=1, kinds=["kill"], steps=lambda step: step == end)
    after = kill.vfs()
    after.record()
    assert after.boot_id() == vfs.boot_id()
    assert after.read_file(FILE) == b"safe and not"
    assert {FILE: b"safe"} in power_trees(after)


def test_opening_a_state_does_not_change_it(vfs: MemoryVfs) -> None:
    durable_file(vfs, b"safe")
    assert vfs.journal is not None
    for state in crash_states(vfs.journal, seed=1, variants=2):
        key = state.disk.digest()
        after = state.vfs()
        if after.exists(FILE):
            after.open(FILE).pwrite(b"changed", 0)
        after.make_directories("/d/more")
        assert state.disk.digest() == key
