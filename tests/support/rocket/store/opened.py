"""A store of the default options, in a directory or in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import rocketcompat
from rocketcompat import MessageStoreConfig
from rocketcompat.store.default_message_store import DefaultMessageStore

OPTIONS = MessageStoreConfig(
    mapped_file_size_commit_log=4096,
    mapped_file_size_consume_queue=200,
    max_hash_slot_num=16,
    max_index_num=40,
    layouts=frozenset({"consume_queue", "index"}),
)


def opened(root: Path, mode: Any = "w", **settings: Any) -> DefaultMessageStore:
    return rocketcompat.open(root, mode, OPTIONS, background=False, **settings)
