"""The units of a queue as they lie, by the window."""

from __future__ import annotations

from pathlib import Path

import pytest

import rocketcompat
from rocketcompat import Message, MessageStoreConfig
from rocketcompat.inspect import comparison as queue_comparison
from rocketcompat.inspect import queue_units
from rocketcompat.options import LAYOUTS
from tests.support.rocket.files.compared import (
    assert_same,
)


@pytest.fixture(autouse=True)
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_comparison, "WINDOW_UNITS", 7)
    monkeypatch.setattr(queue_units, "WINDOW_UNITS", 7)


def test_a_record_that_names_the_queue_offset_of_another_is_compared_in_the_order_of_the_log(
    tmp_path: Path,
) -> None:
    """The first record of a queue offset counts, also when a later one agrees with the file."""
    config = MessageStoreConfig(mapped_file_size_commit_log=64 << 10, layouts=LAYOUTS)
    with rocketcompat.open(tmp_path, "w", config, layouts=["consume_queue"]) as store:
        puts = [store.put_message(Message("T", b"x")) for _ in range(60)]
    log = tmp_path / "commitlog" / f"{0:020d}"
    content = bytearray(log.read_bytes())
    at = puts[3].physical_offset + 20
    for number in (40, 59, 60, 1 << 40):
        content[at : at + 8] = number.to_bytes(8, "big")
        log.write_bytes(content)
        for held_max in (1, 30, 1 << 20):
            assert_same(tmp_path, held_max)
