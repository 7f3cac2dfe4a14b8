"""Messages that are chosen from a log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import rocketcompat
from rocketcompat import Message, MessageStoreConfig
from rocketcompat.inspect.directory import StoreDirectory
from rocketcompat.inspect.dump import dump_log
from rocketcompat.inspect.selection import Selection
from rocketcompat.options import LAYOUTS
from tests.support.golden import Golden

SMALL = MessageStoreConfig(
    mapped_file_size_commit_log=4096, mapped_file_size_consume_queue=200, max_hash_slot_num=7,
    max_index_num=100, layouts=LAYOUTS,
)  # fmt: skip


@pytest.fixture(name="real", scope="module")
def real_fixture(tmp_path_factory: pytest.TempPathFactory) -> Golden:
    from tests.support.golden import unpack

    return unpack("rocketmq", "4.9.8", "keys-tags", tmp_path_factory.mktemp("keys-tags"))


def rows(real: Golden, **conditions: Any) -> list[dict[str, Any]]:
    return list(dump_log(StoreDirectory(real.store), Selection(**conditions)))


def put(root: Path, messages: list[Message]) -> list[int]:
    """Write a store; returns the messages' places in the log."""
    options: Any = {"config": SMALL, "layouts": {"consume_queue", "index"}, "background": False}
    with rocketcompat.open(root, "w", **options) as store:
        return [store.put_message(message).physical_offset for message in messages]
