"""One file of the key index."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rocketcompat.index.index_file import IndexFile
from rocketcompat.index.items import IndexGeometry
from tests.support.rocket.index import (
    batch_of,
    contents,
    service_of,
)
from tubestore.testing.memory_vfs import MemoryVfs


def test_a_file_holds_one_item_less_than_its_number() -> None:
    """Upstream's testPutKey: 400 items, the 400th key is refused."""
    file = IndexFile.create(MemoryVfs(), "/f", IndexGeometry(100, 400))
    for number in range(399):
        file.put_keys(np.array([number], np.int32), np.array([number]), np.array([1000]))
    assert file.room == 0
    with pytest.raises(ValueError, match="room for 0"):
        file.put_keys(np.array([1], np.int32), np.array([1]), np.array([1000]))
    assert file.select(60, 64, 0, 1 << 60) == [60]


def test_the_default_file_is_sparse_and_has_the_real_size(tmp_path: Path) -> None:
    from tubestore.core.vfs import OsVfs

    path = str(tmp_path / "20261121092406179")
    file = IndexFile.create(OsVfs(), path, IndexGeometry())
    file.put_keys(np.arange(1000, dtype=np.int32), np.arange(1000), np.full(1000, 5))
    file.close()
    status = Path(path).stat()
    assert status.st_size == 420_000_040
    assert status.st_blocks * 512 < 200_000


def test_records_without_keys_make_a_file_as_the_real_class_does() -> None:
    service = service_of(vfs := MemoryVfs())
    service.put(batch_of([], end=500))
    assert contents(vfs) == [bytes(IndexGeometry(7, 12).file_size)]
    assert service.ends == (500, 0)
    assert service_of(vfs).cut(900, 500, lambda offset: None) == 500
    assert service_of(vfs).cut(900, 500) == 0
