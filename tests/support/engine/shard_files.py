"""A shard of some files, and what check finds in it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.tube import (
    make_row,
    scanned,
    write_rows,
)
from tubestore.offline.check import Finding, check
from tubestore.record.records import ENTRY_SIZE
from tubestore.shard.message_store import MessageStore
from tubestore.testing import MemoryVfs

HOME = "/store/t-0"

OWN = f"{HOME}/.tubestore"

#: Files of a few messages each.
SMALL: dict[str, Any] = {"segment_size_bytes": 300, "index_segment_size_bytes": 5 * ENTRY_SIZE}


def remove_caches(vfs: MemoryVfs) -> None:
    for name, _, _ in vfs.entries(OWN):
        vfs.remove(f"{OWN}/{name}")


def findings(vfs: MemoryVfs) -> list[Finding]:
    found = check("/store", vfs=vfs, wait=lambda _: None)
    return [f for f in found if f.reason != "stale_cache"]


def next_offset(shard: MessageStore) -> int:
    return shard.append(make_row(b"after"), "fsync")


def sound(shard: MessageStore) -> list[bytes | None]:
    return [row["body"] for row in scanned(shard.view()) if row["state"] == "ok"]


# -- files at another one's place --------------------------------------------------------------

#: All of one size, in one partition and of one time: an entry fits to any of the records.
ALIKE = [make_row(b"message %05d" % number) for number in range(40)]


def swap(vfs: MemoryVfs, one: str, other: str) -> None:
    first, second = vfs.read_file(one), vfs.read_file(other)
    vfs.replace_file(one, second)
    vfs.replace_file(other, first)


def copy(vfs: MemoryVfs, source: str, target: str) -> None:
    vfs.replace_file(target, vfs.read_file(source))


def filled(vfs: MemoryVfs, suffix: str) -> list[str]:
    return sorted(p for p, data in vfs.tree().items() if p.endswith(suffix) and data)


@pytest.fixture
def alike(memory_vfs: MemoryVfs) -> MemoryVfs:
    write_rows(memory_vfs, ALIKE, HOME, **SMALL)
    return memory_vfs


def wrong(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows that are shown as sound and have another message's body."""
    bodies_at = {ENTRY_SIZE * n: row.payload for n, row in enumerate(ALIKE)}
    return [r for r in rows if r["state"] == "ok" and r["body"] != bodies_at[r["offset"]]]
