"""Queues against the log: every unit that leads elsewhere is found."""

from __future__ import annotations

from pathlib import Path

import pytest

import rocketcompat
from rocketcompat import Message, MessageStoreConfig
from rocketcompat.check.whole import check
from rocketcompat.formats import CQ_UNIT, MESSAGE_HEAD
from rocketcompat.options import LAYOUTS
from tests.support.golden import golden_fixture as golden_fixture
from tests.support.rocket.files.checked import patch
from tests.support.rocket.files.checked import store_fixture as store_fixture


def test_a_flipped_field_of_a_unit_is_found(store: Path) -> None:
    path = store / "consumequeue" / "LogA" / "2" / "00000000000000000000"
    for field in ("physical_offset", "size", "tags_code"):
        raw = path.read_bytes()
        patch(path, 3 * CQ_UNIT.size + CQ_UNIT.position(field) + 3, b"\x01")
        (row,) = check(store)
        assert (row["path"], row["position"]) == (str(path), 3 * CQ_UNIT.size)
        assert row["reason"] in ("unit_wrong", "unit_surplus")
        path.write_bytes(raw)


def test_an_empty_last_file_of_a_queue_is_found(store: Path) -> None:
    """A real broker makes a unit of it."""
    first = min((store / "consumequeue").glob("*/0/*"))
    size = first.stat().st_size
    empty = first.with_name(f"{size:020d}")
    empty.write_bytes(bytes(size))
    (found,) = check(store)
    assert (found["reason"], found["path"]) == ("empty_queue_file", str(empty))


@pytest.mark.parametrize("number", [-1, 3, 7, 100, 1 << 40])
@pytest.mark.parametrize("row", [0, 4])
def test_a_record_with_another_queue_offset_than_its_unit_is_found(
    tmp_path: Path, row: int, number: int
) -> None:
    config = MessageStoreConfig(mapped_file_size_commit_log=64 << 10, layouts=LAYOUTS)
    with rocketcompat.open(tmp_path, "w", config, layouts=["consume_queue"]) as store:
        places = [store.put_message(Message("T", b"x")).physical_offset for _ in range(10)]
    options = {"messageIndexEnable": False}
    assert list(check(tmp_path, options)) == []
    at = places[row] + MESSAGE_HEAD.position("queue_offset")
    log = tmp_path / "commitlog" / f"{0:020d}"
    patch(log, at, number.to_bytes(8, "big", signed=True))
    found = [(r["reason"], r["position"]) for r in check(tmp_path, options)]
    assert ("unit_surplus", row * CQ_UNIT.size) in found
