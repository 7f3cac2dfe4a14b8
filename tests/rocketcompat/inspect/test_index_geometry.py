"""The geometry of an index is proven by its chains, whichever of them are damaged."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from rocketcompat.formats import INDEX_ITEM
from rocketcompat.index.index_file import IndexFile
from rocketcompat.index.items import IndexGeometry
from rocketcompat.inspect import index_geometry
from rocketcompat.inspect.directory import StoreDirectory
from rocketcompat.inspect.index_geometry import geometry_of
from tubestore.core.vfs import OsVfs, VfsFile
from tubestore.errors import InvalidMessage

GEOMETRY = IndexGeometry(97, 1500)
COUNT = 1200


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """An index file with a few keys that many messages have, and many that few have."""
    for name in ("commitlog", "index"):
        (tmp_path / name).mkdir()
    path = tmp_path / "index" / "20240101000000000"
    hashes = np.random.default_rng(5).integers(0, 1 << 31, COUNT, np.int32)
    hashes[::3] %= 4
    file = IndexFile.create(OsVfs(), str(path), GEOMETRY)
    places = np.arange(COUNT, dtype=np.int64) * 100
    for part in np.split(np.arange(COUNT), 7 * np.arange(1, 30)):
        file.put_keys(hashes[part], places[part], places[part] + 1_700_000_000_000)
    file.flush()
    file.close()
    return path


def proven(path: Path) -> IndexGeometry:
    return geometry_of(StoreDirectory(path.parent.parent))


def damage(path: Path, items: list[int], field: str, value: int) -> None:
    with path.open("r+b") as file:
        for item in items:
            file.seek(GEOMETRY.item_position(item) + INDEX_ITEM.position(field))
            file.write(value.to_bytes(4, "big", signed=True))


def test_a_sound_file_proves_its_geometry(path: Path) -> None:
    assert proven(path) == GEOMETRY


def test_a_file_proves_its_geometry_by_the_piece(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However large a file is, no more of it is held than some items and its slots."""
    sizes: list[int] = []
    directory = StoreDirectory(path.parent.parent)
    opened = directory.vfs.open

    def counted(*args: Any, **given: Any) -> VfsFile:
        file = opened(*args, **given)
        pread = file.pread

        def read(size: int, position: int) -> bytes:
            sizes.append(size)
            return pread(size, position)

        return Mock(file, pread=read, size=file.size, close=file.close)

    monkeypatch.setattr(directory.vfs, "open", counted)
    for step in (1 << 18, 100):
        monkeypatch.setattr(index_geometry, "_STEP_ITEMS", step)
        sizes.clear()
        assert geometry_of(directory) == GEOMETRY
    assert max(sizes) == 100 * INDEX_ITEM.size < path.stat().st_size // 10


@pytest.mark.parametrize("value", [-3, 0, 1, 40, COUNT, 1 << 30])
def test_some_damaged_chains_are_outvoted_and_many_are_not(path: Path, value: int) -> None:
    seed = random.randrange(1 << 30)
    items = random.Random(seed).sample(range(100, COUNT - 100), COUNT // 10)
    damage(path, items[: COUNT // 40], "previous", value)
    assert proven(path) == GEOMETRY, f"seed {seed}"
    damage(path, items, "previous", value)
    with pytest.raises(InvalidMessage, match=re.escape(f"{path}: its ")):
        proven(path)


def test_items_with_an_impossible_hash_prove_nothing(path: Path) -> None:
    damage(path, [COUNT // 2], "key_hash", -1)
    with pytest.raises(InvalidMessage, match="how many slots"):
        proven(path)


def test_a_file_that_was_cut_proves_nothing(path: Path) -> None:
    raw = path.read_bytes()
    path.write_bytes(raw[: GEOMETRY.item_position(COUNT // 2)])
    with pytest.raises(InvalidMessage, match="how many slots"):
        proven(path)
