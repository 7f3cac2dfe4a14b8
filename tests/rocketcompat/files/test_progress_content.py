"""Marks of any content are none, and the store is mended."""

from __future__ import annotations

from pathlib import Path

import pytest

import rocketcompat
from rocketcompat.check.whole import check_store
from rocketcompat.inspect.directory import StoreDirectory
from tests.rocketcompat.repair.test_rebuild import SMALL


@pytest.mark.parametrize(
    "content", ["[]", "{}", "null", "[" * 100_000, '{"format": 1, "features": []}', "\udcff"]
)
def test_marks_of_any_content_are_none(tmp_path: Path, content: str) -> None:
    with rocketcompat.open(tmp_path, "w", SMALL, background=False) as store:
        store.put_message(rocketcompat.Message("T", b"x"))
    path = tmp_path / ".tubestore/progress.json"
    path.write_bytes(content.encode(errors="surrogateescape"))
    assert list(check_store(StoreDirectory(tmp_path))) == []
    with rocketcompat.open(tmp_path, "w", SMALL, background=False) as store:
        assert [m.body for m in store.get_message("T", 0, 0).messages] == [b"x"]
        assert store.problems == []


def test_marks_with_an_infinite_number_are_none(tmp_path: Path) -> None:
    with rocketcompat.open(tmp_path, "w", SMALL, background=False) as store:
        store.put_message(rocketcompat.Message("T", b"x"))
    path = tmp_path / ".tubestore/progress.json"
    path.write_text(path.read_text().replace('"log_minimum": 0', '"log_minimum": Infinity'))
    assert "Infinity" in path.read_text()
    assert list(check_store(StoreDirectory(tmp_path))) == []
