"""The hash table of an index file."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from rocketcompat.index.index_file import IndexFile
from rocketcompat.index.items import IndexGeometry
from tubestore.testing.memory_vfs import MemoryVfs


@pytest.mark.parametrize("number", [-1, -(1 << 31), 9, 77, 1 << 30])
def test_an_impossible_number_in_a_slot_counts_as_none_and_a_put_mends_it(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """IDX-19: item 9 is the next one, so a slot cannot name it yet."""
    monkeypatch.undo()  # the invariants do not hold with a damaged slot
    path, vfs = "/f", MemoryVfs()
    file = IndexFile.create(vfs, path, geometry := IndexGeometry(5, 20))
    for place in range(8):
        file.put_keys(np.array([place], np.int32), np.array([place]), np.array([1000]))
    file.close()
    slot_of_3 = 40 + 4 * 3
    vfs.open(path).pwrite(struct.pack(">i", number), slot_of_3)
    again = IndexFile.load(vfs, path, geometry, writable=True)
    assert again.select(3, 64, 0, 1 << 60) == []
    again.put_keys(np.array([3, 8], np.int32), np.array([100, 200]), np.array([1000, 1000]))
    assert again.select(3, 64, 0, 1 << 60) == [100]
    assert again.select(8, 64, 0, 1 << 60) == [200]
    assert again.select(1, 64, 0, 1 << 60) == [1]  # another slot's chain is as it was
    again.close()
    raw = vfs.read_file(path)
    assert struct.unpack_from(">i", raw, slot_of_3) == (10,)
    assert struct.unpack_from(">i", raw, 40 + 4 * 5 + 20 * 9 + 16) == (0,)


def put(file: IndexFile, *hashes: int) -> None:
    count = len(hashes)
    file.put_keys(np.array(hashes, np.int32), np.arange(count), np.full(count, 1000))


@pytest.mark.parametrize(
    ("position", "message"),
    [
        (40 + 4 * 3, "a slot was changed, and its page is not marked"),
        (40 + 4 * 5 + 20 * 2 + 16, "item 2 does not follow the newest of its slot"),
    ],
)
def test_slots_and_items_that_contradict_each_other_are_found(position: int, message: str) -> None:
    vfs = MemoryVfs()
    file = IndexFile.create(vfs, "/f", IndexGeometry(5, 20))
    put(file, 3, 8)
    file.flush()
    vfs.open("/f").pwrite(struct.pack(">i", 7), position)
    with pytest.raises(AssertionError, match=message):
        file.check_invariants()


def test_a_file_whose_table_was_given_back_has_the_newest_items_in_its_slots() -> None:
    vfs = MemoryVfs()
    file = IndexFile.create(vfs, "/f", geometry := IndexGeometry(5, 20))
    put(file, 3, 8)
    file.close()
    again = IndexFile.load(vfs, "/f", geometry, writable=False)
    again.check_invariants()
    vfs.open("/f").pwrite(struct.pack(">i", 1), 40 + 4 * 3)
    with pytest.raises(AssertionError, match="a slot of the file has another newest item"):
        again.check_invariants()
