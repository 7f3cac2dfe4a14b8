"""The one writer of a root, and what its lock records."""

from __future__ import annotations

import pytest

from tests.support.rocket.store.recovered import (
    PROGRESS,
    ROOT,
    Bench,
    log_file,
    reopened,
)
from tests.support.rocket.store.recovered import bench as bench
from tubestore.testing import crash_states


@pytest.mark.parametrize("left", [b"", bytes(4)])
def test_a_lock_that_lost_its_content_in_a_power_cut_does_not_let_a_torn_record_pass(
    bench: Bench, left: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = bench.open()
    bench.put(3)
    store.flush()
    (torn,) = bench.put(1, first=3)
    end = store.max_physical_offset
    bench.kill()
    bench.overwrite(log_file(0), end - 4, bytes(4))
    bench.clock.advance(1000)
    lock = bench.vfs.open(f"{ROOT}/lock")
    lock.truncate(0)
    lock.pwrite(left, 0)
    monkeypatch.setattr(bench.vfs, "boot_id", lambda: "another")
    with bench.open(mode="r") as reader:
        assert reader.max_physical_offset == torn
    assert reopened(bench) == [0, 1, 2]


def test_the_lock_is_on_stable_storage_before_a_mark_names_its_time(bench: Bench) -> None:
    journal = bench.vfs.record()
    bench.open().close()
    for state in crash_states(journal, seed=1, kinds=("power",)):
        vfs = state.vfs()
        if vfs.exists(PROGRESS):
            assert vfs.read_file(f"{ROOT}/lock") == b"lock", state
