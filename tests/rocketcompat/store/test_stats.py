"""Counters and rates since a store was opened."""

from __future__ import annotations

from pathlib import Path

import pytest

import rocketcompat
from rocketcompat import Message, MessageStoreConfig
from rocketcompat.options import LAYOUTS
from rocketcompat.store.default_message_store import DefaultMessageStore
from tests.support.rocket.store.counted import opened as opened
from tubestore.clock import ManualClock


def test_a_reader_has_put_nothing(tmp_path: Path) -> None:
    config = MessageStoreConfig(mapped_file_size_commit_log=1 << 20, layouts=LAYOUTS)
    with (
        rocketcompat.open(tmp_path, "w", config, background=False) as writer,
        rocketcompat.open(tmp_path, "r", config) as reader,
    ):
        writer.put_message(Message("T", b"x"))
        reader.refresh()
        assert reader.max_physical_offset == writer.max_physical_offset
        totals = reader.stats()["totals"]
        assert (totals["put_messages"], totals["put_bytes"]) == (0, 0)


def test_what_is_put_and_pulled_is_counted(opened: DefaultMessageStore, clock: ManualClock) -> None:
    opened.get_message("T", 0, 0)
    opened.get_message("T", 0, 5)
    stats = opened.stats()
    size = opened.max_physical_offset
    pulled = sum(message.size for message in opened.get_message("T", 0, 0))
    assert stats["totals"] == {
        "put_messages": 10,
        "put_bytes": size,
        "get_found": 1,
        "get_missed": 1,
        "get_messages": 5,
        "get_bytes": pulled,
    }
    assert stats["log"]["max_offset"] == stats["log"]["synced_offset"] == size
    assert stats["log"]["dispatch_behind_bytes"] == 0
    assert stats["queues"] == {"count": 2}


def test_rates_are_of_the_last_seconds_and_not_of_all_time(
    opened: DefaultMessageStore, clock: ManualClock
) -> None:
    assert opened.stats()["rates"]["put_messages"] == (1.0, 1.0, 1.0)
    clock.advance(10_000)
    assert opened.stats()["rates"]["put_messages"] == (0.0, 0.5, 0.5)
    for _ in range(700):
        opened.put_message(Message("T", b"x"))
        clock.advance(1000)
        opened.stats()
    assert opened.stats()["rates"]["put_messages"] == pytest.approx((1.0, 1.0, 1.0))
    assert len(opened._stats._samples) < 610
