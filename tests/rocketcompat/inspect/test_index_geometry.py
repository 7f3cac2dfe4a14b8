"""The geometry of an index is proven by its chains, whichever of them are damaged."""

from __future__ import annotations

import os
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal
from unittest.mock import Mock

import numpy as np
import pytest

import rocketcompat
from rocketcompat.formats import INDEX_ITEM
from rocketcompat.index.index_file import IndexFile
from rocketcompat.index.items import IndexGeometry
from rocketcompat.inspect import index_geometry
from rocketcompat.inspect.directory import StoreDirectory
from rocketcompat.inspect.index_geometry import config_of_files, geometry_of, writing_config
from rocketcompat.messages import Message
from rocketcompat.options import MessageStoreConfig
from tubestore.core.vfs import OsVfs, VfsFile
from tubestore.errors import InvalidMessage, NotAStore

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


SIZES: dict[str, Any] = {
    "mapped_file_size_commit_log": 8192,
    "mapped_file_size_consume_queue": 400,
    "max_hash_slot_num": 31,
    "max_index_num": 500,
}


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    """A store of small files, as a broker leaves it: nothing in it is this package's own."""
    config = MessageStoreConfig(**SIZES)
    with rocketcompat.open(tmp_path / "store", "w", config, background=False) as store:
        for number in range(40):
            store.put_message(Message("T", b"x" * 50, keys=[f"k-{number}"]))
    shutil.rmtree(tmp_path / "store" / ".tubestore")
    return tmp_path / "store"


@pytest.mark.parametrize("mode", ["r", "w"])
def test_a_store_opens_with_the_sizes_and_the_geometry_of_its_files(
    foreign: Path, mode: Literal["r", "w"]
) -> None:
    with rocketcompat.open(foreign, mode, background=False) as store:
        assert {name: getattr(store.config, name) for name in SIZES} == SIZES
        assert store.problems == []
        assert store.max_offset_in_queue("T", 0) == 40
        assert [m.queue_offset for m in store.query_message("T", "k-39")] == [39]


def test_a_size_that_the_caller_gives_is_not_replaced(foreign: Path) -> None:
    config = MessageStoreConfig(mapped_file_size_commit_log=4096)
    with pytest.raises(NotAStore, match="8192"):
        rocketcompat.open(foreign, config=config)


OPENINGS: dict[str, Callable[[Path], object]] = {
    "open": lambda root: rocketcompat.open(root, "w"),
    "recover": lambda root: writing_config(StoreDirectory(root)),
}


@pytest.mark.parametrize("way", OPENINGS)
def test_a_log_that_was_cut_is_not_taken_for_one_of_smaller_files(foreign: Path, way: str) -> None:
    os.truncate(foreign / "commitlog" / f"{0:020d}", 3000)
    with pytest.raises(NotAStore, match="its queues have messages up to"):
        OPENINGS[way](foreign)
    with rocketcompat.open(foreign) as store:  # what is left can be read
        assert store.get_message("T", 0, 0).messages[0].body == b"x" * 50


def test_an_index_of_the_default_size_is_not_examined_when_a_store_is_opened(
    foreign: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_geometry, "_fits", Mock(side_effect=AssertionError))
    default = IndexGeometry().file_size
    (path,) = (foreign / "index").iterdir()
    os.truncate(path, default)
    config = config_of_files(MessageStoreConfig(), OsVfs(), str(foreign), writable=False)
    assert config.max_index_num == MessageStoreConfig().max_index_num


def test_a_reader_filters_by_tags_without_the_option_of_extensions(tmp_path: Path) -> None:
    config = MessageStoreConfig(**SIZES, enable_consume_queue_ext=True)
    with rocketcompat.open(tmp_path, "w", config, background=False) as store:
        store.put_message(Message("T", b"one", tags="a"))
    with rocketcompat.open(tmp_path) as reader:
        assert [m.body for m in reader.get_message("T", 0, 0, tags="a").messages] == [b"one"]
