"""The checkpoint names what it describes, and is ignored when that is not there."""

from __future__ import annotations

import json

import pytest

from tests.support.tube import make_rows, write_rows
from tubestore.core.vfs import Vfs
from tubestore.options import StoreOptions
from tubestore.segments.cache_formats import Checkpoint
from tubestore.segments.checkpoint import read_checkpoint, write_checkpoint
from tubestore.segments.file_store import MsgFileStore
from tubestore.testing import FaultyVfs, MemoryVfs

HOME = "/store/t-0"

PATH = f"{HOME}/.tubestore/checkpoint.json"


def files_of(vfs: Vfs) -> MsgFileStore:
    files = MsgFileStore(vfs, HOME, 0, StoreOptions())
    files.load(writable=False)
    return files


@pytest.mark.parametrize("size", [100, 1 << 30], ids=["many files", "one file"])
@pytest.mark.parametrize("share", [0, 1, 5, 20])
def test_a_checkpoint_of_any_place_is_read_as_it_was_written(
    memory_vfs: MemoryVfs, share: int, size: int
) -> None:
    write_rows(memory_vfs, make_rows(20), HOME, segment_size_bytes=size)
    files = files_of(memory_vfs)
    index_end = files.index.end * share // 20
    data_end = files.data.end * share // 20
    write_checkpoint(files, index_end, data_end)
    found = read_checkpoint(files)
    assert found is not None
    assert (found.index_end, found.data_end) == (index_end, data_end)


@pytest.mark.parametrize("path", [f"{HOME}/{0:020d}.tube", f"{HOME}/index/{0:020d}.index"])
def test_other_bytes_before_its_end_make_it_stale(memory_vfs: MemoryVfs, path: str) -> None:
    write_rows(memory_vfs, make_rows(20), HOME)
    assert read_checkpoint(files_of(memory_vfs)) is not None
    size = len(memory_vfs.read_file(path))
    memory_vfs.open(path).pwrite(b"\x55\xaa", size - 2)
    assert read_checkpoint(files_of(memory_vfs)) is None


def test_a_missing_or_unreadable_one_is_none(memory_vfs: MemoryVfs) -> None:
    write_rows(memory_vfs, make_rows(20), HOME)
    faulty = FaultyVfs(memory_vfs)
    faulty.fail("read_file")
    assert read_checkpoint(files_of(faulty)) is None
    memory_vfs.remove(PATH)
    assert read_checkpoint(files_of(memory_vfs)) is None


def test_an_unknown_version_is_ignored(memory_vfs: MemoryVfs) -> None:
    write_rows(memory_vfs, make_rows(20), HOME)
    content = json.loads(memory_vfs.read_file(PATH))
    assert Checkpoint(**content).version == 1
    memory_vfs.replace_file(PATH, json.dumps({**content, "version": 2}).encode())
    assert read_checkpoint(files_of(memory_vfs)) is None


def test_a_failure_to_write_it_is_no_error(memory_vfs: MemoryVfs) -> None:
    write_rows(memory_vfs, make_rows(20), HOME)
    memory_vfs.remove(PATH)
    faulty = FaultyVfs(memory_vfs)
    files = files_of(faulty)
    faulty.fail("replace_file")
    write_checkpoint(files, files.index.end, files.data.end)
    assert not memory_vfs.exists(PATH)
