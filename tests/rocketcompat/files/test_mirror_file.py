"""The note that a root is a mirror."""

from __future__ import annotations

import pytest

import rocketcompat
from rocketcompat.ha.slave_store import SlaveRoot
from tests.support.rocket.store.slaves import CONFIG
from tests.support.rocket.store.slaves import root as root
from tests.support.rocket.store.slaves import vfs as vfs
from tubestore.clock import ManualClock
from tubestore.errors import NotAStore
from tubestore.testing import MemoryVfs


def test_a_note_that_cannot_be_read_refuses_the_root(
    root: SlaveRoot, vfs: MemoryVfs, clock: ManualClock
) -> None:
    root.open("m:1", begin=0, background=False).close()
    vfs.replace_file("/s/.tubestore/mirror.json", b"{")
    for mode in ("r", "w"):
        with pytest.raises(NotAStore, match=r"mirror\.json is not valid"):
            rocketcompat.open("/s", mode, CONFIG, vfs=vfs, clock=clock)  # type: ignore[call-overload]
