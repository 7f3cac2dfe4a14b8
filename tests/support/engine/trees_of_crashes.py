"""What power cuts leave of a file on a disk in memory."""

from __future__ import annotations

import pytest

from tubestore.clock import ManualClock
from tubestore.testing import MemoryVfs, crash_states

FILE = "/d/file"


def power_trees(vfs: MemoryVfs, variants: int = 60) -> list[dict[str, bytes]]:
    """What power cuts after everything that was done may leave."""
    assert vfs.journal is not None
    end = len(vfs.journal)
    states = crash_states(
        vfs.journal, seed=1, variants=variants, kinds=["power"], steps=lambda step: step == end
    )
    return [state.disk.tree() for state in states]


@pytest.fixture
def vfs() -> MemoryVfs:
    """A disk with a directory, being recorded."""
    vfs = MemoryVfs(ManualClock())
    vfs.make_directories("/d")
    vfs.record()
    return vfs


def durable_file(vfs: MemoryVfs, data: bytes) -> None:
    file = vfs.open(FILE, create=True)
    file.pwrite(data, 0)
    file.sync()
    vfs.sync_directory("/d")
