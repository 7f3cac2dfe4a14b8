"""A directory on the system's disk or on one in memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from tubestore.core.vfs import OsVfs, Vfs
from tubestore.testing import MemoryVfs


@pytest.fixture(params=["os", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Vfs, str]:
    """A file system and an empty directory on it."""
    if request.param == "os":
        return OsVfs(), str(tmp_path)
    vfs = MemoryVfs()
    vfs.make_directories("/some/where")
    return vfs, "/some/where"


Place = tuple[Vfs, str]
