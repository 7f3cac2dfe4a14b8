"""A store with a job that is published by half, and what check finds in a store."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.publishing import CLOCK, ROOT, SMALL, open_store, some, stage
from tubestore.errors import StoreFailed
from tubestore.offline.check import Finding, check
from tubestore.testing import FaultyVfs, MemoryVfs


def found(vfs: MemoryVfs, **how: Any) -> list[Finding]:
    return list(check(ROOT, vfs=vfs, wait=lambda _: None, **how))


def half_published(renames: int) -> MemoryVfs:
    """A store in which a job of many files stopped after some of its renames."""
    vfs = MemoryVfs(CLOCK)
    faulty = FaultyVfs(vfs)
    store = open_store(faulty, **SMALL)  # of such files a job is no small part
    store.create_topic("a", partitions=3, stores=3)
    store["a"].append(b"before", partition=0)
    store["a"].flush()
    parts = (0, 1, 10_002, 20_000)
    staged = stage(vfs, "j", *some(30, partitions=parts), segment_size_bytes=300)
    fault = faulty.fail("rename", nth=renames + 1, forever=True)
    with pytest.raises(StoreFailed):
        store.publish("j", staged)
    assert fault.struck
    with pytest.raises(StoreFailed):  # said once more
        store.close()
    return vfs
