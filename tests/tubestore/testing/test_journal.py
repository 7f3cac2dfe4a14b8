"""A journal of calls, and what was promised when."""

from __future__ import annotations

from tests.support.engine.trees_of_crashes import FILE, durable_file, power_trees
from tests.support.engine.trees_of_crashes import vfs as vfs
from tubestore.testing import CrashState, Distinct, MemoryVfs, crash_states


def test_a_state_is_read_again_when_more_was_promised(vfs: MemoryVfs) -> None:
    durable_file(vfs, b"safe")
    assert vfs.journal is not None
    end = len(vfs.journal)

    def last() -> CrashState:
        assert vfs.journal is not None
        steps = crash_states(vfs.journal, seed=1, kinds=["kill"], steps=lambda step: step == end)
        return next(iter(steps))

    distinct = Distinct()
    assert distinct.is_new(last())
    assert not distinct.is_new(last())
    vfs.mark("acknowledged")
    assert last().marks == ["acknowledged"]
    assert distinct.is_new(last())
    assert len(distinct) == 1


def test_recording_goes_on_from_what_the_first_journal_knew(vfs: MemoryVfs) -> None:
    durable_file(vfs, b"safe")
    vfs.open(FILE).pwrite(b" and not", 4)
    vfs.record()
    assert {FILE: b"safe"} in power_trees(vfs)
