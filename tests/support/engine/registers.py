"""A store on a disk in memory, and the register of its shards."""

from __future__ import annotations

from typing import Any

import tubestore
from tubestore.offline.own_files import read_bounds
from tubestore.record.state_files import Bounds
from tubestore.store.manager import MessageStoreManager

OWN = "/store/.tubestore"

REGISTER = f"{OWN}/shards.log"


def opened(vfs: Any, mode: Any = "w", **how: Any) -> MessageStoreManager:
    return tubestore.open("/store", mode, vfs=vfs, background=False, **how)


def filled(vfs: Any, rows: int = 10, topic: str = "t", **how: Any) -> None:
    with opened(vfs, **how) as store:
        logs = store.create_topic(topic, exist_ok=True)
        for number in range(rows):
            logs.append(b"message %d" % number)
            logs.flush()


def registered(vfs: Any) -> dict[str, Bounds]:
    return read_bounds(vfs, "/store")
