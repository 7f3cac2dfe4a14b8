"""What a killed process renamed or appended among the state files counts for the next process.

A power cut does not take it back once that one has promised something that needs it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import tubestore
from tests.support.publishing import batch, stage
from tubestore.clock import ManualClock
from tubestore.store.directory import LOG_FROM_TOPICS
from tubestore.store.manager import engine_of
from tubestore.testing import MemoryVfs, crash_states

SEED = 5
ROOT = "/store"


def opened(vfs: Any, mode: Any = "w") -> Any:
    # Without a ring, whose first segment would sync the directory.
    settings: dict[str, Any] = {"clock": ManualClock(), "background": False, "ring_journal": False}
    return tubestore.open(ROOT, mode, vfs=vfs, **settings)


def killed_in(step: Callable[[MemoryVfs, Any], object], *, others: int = 0) -> Iterator[MemoryVfs]:
    """Yield what a kill before each call of a step leaves of a store with some topics."""
    vfs = MemoryVfs()
    with opened(vfs) as store:
        for number in range(others):
            store.create_topic(f"other{number}")
        store.create_topic("a", partitions=3, stores=2)
    store = opened(vfs)
    journal = vfs.record()
    step(vfs, store)
    engine_of(store).abandon("killed")
    for state in crash_states(journal, seed=SEED, kinds=["kill"]):
        yield state.vfs()


def power_cuts_after(vfs: MemoryVfs, topic: str, body: bytes) -> Iterator[MemoryVfs]:
    """Open, append at `fsync`, and yield what power cuts leave."""
    journal = vfs.record()
    store = opened(vfs)
    store[topic].append(body, partition=0, durability="fsync")
    engine_of(store).abandon("killed")
    end = len(journal.calls)
    for state in crash_states(
        journal, seed=SEED, variants=range(6), kinds=["power"], steps=lambda step: step == end
    ):
        yield state.vfs()


def bodies(store: Any, topic: str) -> list[bytes]:
    return sorted(store[topic].scan(columns=["body"]).read_all()["body"].to_pylist())


@pytest.mark.parametrize("others", [0, LOG_FROM_TOPICS + 3], ids=["file", "log"])
def test_a_topic_that_the_next_process_saw_keeps_its_partitions(others: int) -> None:
    def make(vfs: MemoryVfs, store: Any) -> None:
        store.create_topic("new", partitions=3)

    looked = 0
    for vfs in killed_in(make, others=others):
        with opened(vfs, "r") as store:
            if "new" not in store:
                continue
        for after in power_cuts_after(vfs, "new", b"promised"):
            looked += 1
            with opened(after) as store:
                assert bodies(store, "new") == [b"promised"]
                assert len(store["new"].partition_ids) == 3
    assert looked


def test_a_reader_shows_or_reports_what_follows_a_job_that_the_next_process_saw_finished() -> None:
    def publish(vfs: MemoryVfs, store: Any) -> None:
        store.publish("job", stage(vfs, "job", batch([b"first", b"second", b"third"])))

    looked = 0
    for vfs in killed_in(publish):
        with opened(vfs, "r") as store:
            if not bodies(store, "a"):
                continue
        for after in power_cuts_after(vfs, "a", b"promised"):
            looked += 1
            with opened(after, "r") as store:
                shown = bodies(store, "a")
                assert store.problems or shown == [b"first", b"promised", b"second", b"third"]
    assert looked
