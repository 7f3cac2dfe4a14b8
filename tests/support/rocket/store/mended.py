"""Stores that are damaged and mended, in memory and in directories."""

from __future__ import annotations

from typing import Any

from rocketcompat.inspect.directory import StoreDirectory
from rocketcompat.repair.apply import repair
from tests.rocketcompat.repair.test_rebuild import OPTIONS, ROOT
from tests.support.golden import Golden
from tubestore.clock import ManualClock
from tubestore.core.quarantine import Quarantine
from tubestore.testing import MemoryVfs


def options_of(real: Golden) -> dict[str, Any]:
    config = real.meta["config"]
    names = ("mappedFileSizeConsumeQueue", "maxHashSlotNum", "maxIndexNum")
    return {name: config[name] for name in names if name in config}


def mended(real: Golden, **more: Any) -> list[dict[str, Any]]:
    directory = StoreDirectory(real.store, options_of(real))
    kept = Quarantine(directory.vfs, directory.root)
    return list(repair(directory, clock=ManualClock(), quarantine=kept, **more))


def mend_store(vfs: MemoryVfs, clock: ManualClock) -> None:
    directory = StoreDirectory(ROOT, OPTIONS, vfs)
    list(repair(directory, clock=clock, quarantine=Quarantine(vfs, ROOT)))
