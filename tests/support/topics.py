"""A topic of four partitions, empty or with a hundred messages, and what a page has of them."""

from __future__ import annotations

from typing import Any

import pytest

from tubestore.store.manager import MessageStoreManager
from tubestore.store.topic import Topic

T0 = 1_700_000_000_000


@pytest.fixture
def topic(store: MessageStoreManager) -> Topic:
    return store.create_topic("logs", partitions=4)


@pytest.fixture
def filled(topic: Topic) -> Topic:
    """100 messages, by turns in 4 partitions, the last ones still in memory."""
    for number in range(100):
        topic.append(
            b"%03d" % number,
            partition=number % 4,
            received_time=T0 + number,
            filter_item=["even", "odd", None][number % 3],
            durability="memory" if number > 90 else "page_cache",
        )
    return topic


def bodies(page: Any) -> list[bytes | None]:
    return [m.body for m in page]
