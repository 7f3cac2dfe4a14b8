"""Calls that fail on purpose."""

from __future__ import annotations

import errno

import pytest

from tubestore.testing import FaultyVfs, LyingVfs, MemoryVfs


def test_the_nth_call_fails_once_and_the_next_one_works() -> None:
    vfs = FaultyVfs(MemoryVfs())
    file = vfs.open("/a", create=True)
    fault = vfs.fail("pwrite", nth=2)
    file.pwrite(b"1", 0)
    with pytest.raises(OSError, match="Input/output") as caught:
        file.pwrite(b"2", 1)
    assert caught.value.errno == errno.EIO
    file.pwrite(b"3", 1)
    assert vfs.read_file("/a") == b"13"
    assert fault.struck == 1
    assert vfs.calls["pwrite"] == 3


def test_a_full_disk_takes_half_of_the_write_and_stays_full_until_it_is_healed() -> None:
    vfs = FaultyVfs(MemoryVfs())
    file = vfs.open("/a", create=True)
    vfs.fail("pwrite", error=errno.ENOSPC, forever=True)
    for _ in range(2):
        with pytest.raises(OSError, match="No space"):
            file.pwrite(b"1234", 0)
    assert file.pread(9, 0) == b"12"
    vfs.heal()
    file.pwrite(b"1234", 0)
    assert file.pread(9, 0) == b"1234"


def test_faults_can_be_limited_to_paths_and_every_kind_of_call_can_fail() -> None:
    vfs = FaultyVfs(MemoryVfs())
    vfs.make_directories("/d")
    for path in ("/d/a", "/d/b"):
        vfs.open(path, create=True)
    vfs.fail("sync", path="/d/b")
    vfs.open("/d/a").sync()
    with pytest.raises(OSError, match="Input/output"):
        vfs.open("/d/b").sync()
    vfs.fail("sync_directory")
    with pytest.raises(OSError, match="Input/output"):
        vfs.sync_directory("/d")
    with pytest.raises(ValueError, match="none of"):
        vfs.fail("fsync")


def test_a_lying_disk_syncs_nothing_of_what_it_lies_about() -> None:
    inner = MemoryVfs()
    journal = inner.record()
    vfs = LyingVfs(inner, "/data")
    for path in ("/data", "/other"):
        vfs.open(path, create=True).sync()
    assert [str(call) for call in journal.calls] == [
        "create(/data)",
        "create(/other)",
        "sync(/other)",
    ]
