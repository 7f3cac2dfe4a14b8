"""A disk in memory: its clock, its locks, its room."""

from __future__ import annotations

import pytest

from tubestore.clock import ManualClock
from tubestore.testing import MemoryVfs


def test_memory_takes_times_from_its_clock_and_reboots_on_demand() -> None:
    clock = ManualClock(1000)
    vfs = MemoryVfs(clock)
    file = vfs.open("a", create=True)
    clock.advance(500)
    file.pwrite(b"abc", 0)
    assert vfs.modified_ms("/a") == 1500
    boot = vfs.boot_id()
    held = vfs.lock("/lock", kind="flock")
    assert vfs.reboot() == vfs.boot_id() != boot
    vfs.lock("/lock", kind="flock")
    held.release()
    assert vfs.tree() == {"/a": b"abc", "/lock": b""}


def test_a_write_to_a_full_disk_leaves_what_fits_and_raises() -> None:
    vfs = MemoryVfs()
    file = vfs.open("/a", create=True)
    file.pwrite(b"x" * 100, 0)
    vfs.limit(8192)
    file.pwrite(b"y" * 1000, 100)  # within a block that it takes already
    with pytest.raises(OSError, match="No space left"):
        file.pwrite(b"z" * 9000, 1100)
    assert file.size() == 8192
    assert vfs.used_bytes() == 8192
    with pytest.raises(OSError, match="No space left"):
        vfs.open("/b", create=True).pwrite(b"1", 0)


def test_a_full_disk_has_room_again_when_something_is_removed_or_cut() -> None:
    vfs = MemoryVfs()
    for name in ("/a", "/b"):
        vfs.open(name, create=True).pwrite(bytes(5000), 0)
    vfs.fill()
    file = vfs.open("/c", create=True)
    with pytest.raises(OSError, match="No space left"):
        file.pwrite(b"1", 0)
    vfs.remove("/a")
    file.pwrite(bytes(8192), 0)
    with pytest.raises(OSError, match="No space left"):
        file.pwrite(b"1", 8192)
    vfs.open("/b").truncate(4096)
    file.pwrite(b"1", 8192)
    vfs.limit(None)
    file.pwrite(bytes(1 << 20), 0)


def test_a_hole_takes_room_on_a_full_disk_when_it_is_written() -> None:
    vfs = MemoryVfs()
    vfs.limit(4096)
    file = vfs.open("/a", create=True)
    file.truncate(1 << 20)
    assert vfs.used_bytes() == 0
    with pytest.raises(OSError, match="No space left"):
        file.allocate(8192)
    assert vfs.used_bytes() == 0
    file.pwrite(b"1", 50_000)
    with pytest.raises(OSError, match="No space left"):
        file.pwrite(b"1", 0)
