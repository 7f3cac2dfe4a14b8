"""A store of two topics to publish into, what jobs stage for it, and what is in it then."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

import tubestore
from tubestore.clock import ManualClock
from tubestore.core.vfs import Vfs
from tubestore.options import StoreOptions
from tubestore.record.records import ENTRY_SIZE
from tubestore.staging.job_files import StagedFile
from tubestore.staging.writer import StagedWriter
from tubestore.testing import MemoryVfs

ROOT = "/store"


CLOCK = ManualClock()


SMALL: dict[str, Any] = {"segment_size_bytes": 600, "index_segment_size_bytes": 5 * ENTRY_SIZE}


def open_store(vfs: Vfs, mode: Any = "w", **settings: Any) -> tubestore.MessageStoreManager:
    settings = {"background": False, "clock": CLOCK, **settings}
    return tubestore.open(ROOT, mode, vfs=vfs, **settings)


@pytest.fixture
def vfs() -> MemoryVfs:
    return MemoryVfs(CLOCK)


@pytest.fixture
def store(vfs: MemoryVfs) -> Iterator[tubestore.MessageStoreManager]:
    with open_store(vfs) as store:
        store.create_topic("a", partitions=3, stores=2)
        store.create_topic("b", partitions=2)
        yield store


def batch(
    bodies: list[bytes], topic: str = "a", partitions: tuple[int, ...] = (0, 1, 10_002)
) -> Any:
    places = [partitions[n % len(partitions)] for n in range(len(bodies))]
    return {"topic": [topic] * len(bodies), "partition": places, "body": bodies}


def stage(
    vfs: Vfs, job_id: str, *batches: Any, attempt: str = "0", **options: Any
) -> list[StagedFile]:
    with StagedWriter(
        ROOT, job_id, attempt, vfs=vfs, clock=CLOCK, options=StoreOptions(**options)
    ) as writer:
        for one in batches:
            writer.write(one)
        return writer.finish()


def bodies(store: tubestore.MessageStoreManager, topic: str = "a") -> list[bytes]:
    """Every body of a topic, checksums compared, in the order of its shards."""
    columns = ["body", "state"]
    rows = store[topic].scan(columns=columns, verify=True).read_all().to_pylist()
    assert {row["state"] for row in rows} <= {"ok"}
    return [row["body"] for row in rows]


def some(count: int, start: int = 0, **where: Any) -> list[Any]:
    """Numbered messages in batches of five: a file may end after each."""
    return [batch(numbered(5, n), **where) for n in range(start, start + count, 5)]


def numbered(count: int, start: int = 0) -> list[bytes]:
    return [b"message %d" % n for n in range(start, start + count)]


class Tasks:
    """Works on each part twice, as a speculative task does, and once more when it is told to."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], Any]] = []

    def __call__(self, work: Any, parts: Sequence[Any]) -> list[Any]:
        sent = [pickle.loads(pickle.dumps((work, part))) for part in parts]
        self.calls += [lambda f=f, part=part: f(part) for f, part in sent]
        for call in self.calls:
            call()
        return [call() for call in self.calls]

    def go_on(self) -> None:
        """Have the tasks that were overtaken go on: they may fail, and change nothing."""
        for call in self.calls:
            with contextlib.suppress(OSError):
                call()
