"""Opening a store to write: one writer, and an end that says what happened."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import pytest

import rocketcompat
from rocketcompat import Message
from tests.support.rocket.store.opened import OPTIONS, opened
from tubestore.clock import ManualClock
from tubestore.errors import (
    NotAStore,
    StoreFailed,
    StoreLocked,
)
from tubestore.testing import FaultyVfs, MemoryVfs


def test_a_second_writer_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        with pytest.raises(StoreLocked):
            opened(tmp_path)
        store.put_message(Message("T"))
    opened(tmp_path).close()


def test_another_process_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path):
        child = os.fork()
        if child == 0:
            try:
                opened(tmp_path)
            except StoreLocked:
                os._exit(0)
            os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        with pytest.raises(StoreLocked):  # what the child did has not dropped the lock
            opened(tmp_path)


def test_a_disk_that_breaks_at_close_leaves_the_abort_file(clock: ManualClock) -> None:
    vfs = FaultyVfs(MemoryVfs(clock))
    store = rocketcompat.open("/s", "w", OPTIONS, vfs=vfs, clock=clock, background=False)
    store.put_message(Message("T"))
    vfs.fail("sync", path="commitlog")
    with pytest.raises(StoreFailed):
        store.close()
    assert vfs.exists("/s/abort")
    vfs.heal()
    with rocketcompat.open("/s", "w", OPTIONS, vfs=vfs, clock=clock, background=False) as again:
        assert again.max_offset_in_queue("T", 0) == 1


@pytest.mark.parametrize("enabled", [True, False])
def test_opening_leaves_the_garbage_collector_as_it_was(tmp_path: Path, enabled: bool) -> None:
    was_on = gc.isenabled()
    try:
        (gc.enable if enabled else gc.disable)()
        with rocketcompat.open(tmp_path, mode="w", background=False):
            assert gc.isenabled() is enabled
        (tmp_path / "commitlog" / "stray").touch()
        with pytest.raises(NotAStore):
            rocketcompat.open(tmp_path, mode="w", background=False)
        assert gc.isenabled() is enabled
    finally:
        (gc.enable if was_on else gc.disable)()
