"""A log is filled from records that are complete but for their place."""

from __future__ import annotations

from pathlib import Path

import pytest

import rocketcompat
from rocketcompat import Message
from rocketcompat.commitlog.copy import LogWriter
from rocketcompat.inspect.directory import StoreDirectory
from rocketcompat.inspect.dump import dump_log
from tests.rocketcompat.repair.test_rebuild import SMALL
from tubestore.core.vfs import OsVfs
from tubestore.errors import MessageTooLarge, NotAStore


def test_the_log_is_filled_by_the_rule_of_eight_bytes(tmp_path: Path) -> None:
    with rocketcompat.open(tmp_path / "a", "w", SMALL, layouts=set(), background=False) as store:
        for size in (100, 200, 300):
            store.put_message(Message("T", bytes(size)))
    (piece,) = StoreDirectory(tmp_path / "a").scan_log()
    sizes = piece.column("total_size").astype("int64")  # type: ignore[union-attr]
    for room in range(int(sizes.sum()), int(sizes.sum()) + 20):
        root = str(tmp_path / f"b{room}")
        writer = LogWriter(OsVfs(), root, room)
        places = writer.append(piece.data, piece.starts, sizes)  # type: ignore[union-attr]
        writer.close()
        assert len(set((places // room).tolist())) == (1 if room >= sizes.sum() + 8 else 2)
        found = list(dump_log(StoreDirectory(root)))
        assert [row["physical_offset"] for row in found] == places.tolist()
        with pytest.raises(NotAStore):
            LogWriter(OsVfs(), root, room)
    small = LogWriter(OsVfs(), str(tmp_path / "c"), 300)
    with pytest.raises(MessageTooLarge):
        small.append(piece.data, piece.starts, sizes)  # type: ignore[union-attr]
