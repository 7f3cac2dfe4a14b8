"""Every call to the disk fails in turn: once, for a while, for good, and together with another one.

Each run appends messages that are all different and notes what it was told of each. Then the disk
is well again, the store is closed and opened, and what it has must be what was told.
"""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import pytest

import tubestore
from tubestore.clock import ManualClock
from tubestore.errors import BatchError, StoreFailed, TubeStoreError
from tubestore.options import Durability
from tubestore.store.manager import MessageStoreManager
from tubestore.testing import FaultyVfs, MemoryVfs

LEVELS: tuple[Durability, ...] = ("memory", "page_cache", "fsync")
TOPICS = ("a", "b", "c")
SMALL: dict[str, Any] = {
    "segment_size_bytes": 300,
    "index_segment_size_bytes": 140,
    "mem_store_messages": 4,
    "append_timeout_ms": 0,
}
#: Calls on the way of an append and of what follows it.
CALLS = ("create", "pwrite", "truncate", "sync", "sync_directory", "make_directories", "remove",
         "rename", "replace_file")  # fmt: skip


@dataclass
class Told:
    """What is known of one message: acknowledged at a level, or what its error said."""

    said: str
    topic: str
    offset: int | None = None


@dataclass
class Run:
    """One store, and what it said of each message."""

    vfs: FaultyVfs
    options: dict[str, Any]
    told: dict[bytes, Told] = field(default_factory=dict)
    seen: set[bytes] = field(default_factory=set)
    errors: list[TubeStoreError] = field(default_factory=list)

    def open(self) -> MessageStoreManager:
        return tubestore.open(
            "/s", vfs=self.vfs, clock=ManualClock(), background=False, **SMALL, **self.options
        )

    def work(self, store: MessageStoreManager) -> None:
        """Append at all levels, alone and in batches, read in between."""
        for turn in range(2):
            for level in LEVELS:
                for topic in TOPICS[:2]:
                    self.append(store, topic, level)
            self.append_batch(store, LEVELS[turn % 3])
            self.append_over_topics(store, LEVELS[(turn + 1) % 3])
            self.look(store)
            self.attempt(store.maintain)
            self.attempt((store.flush, store.sync)[turn % 2])

    def _body(self) -> bytes:
        return b"message %d" % len(self.told)

    def append(self, store: MessageStoreManager, topic: str, level: Durability) -> None:
        body = self._body()
        try:
            ack = store[topic].append(body, durability=level)
            self.told[body] = Told(level, topic, ack.offset)
        except TubeStoreError as error:
            self.note(error)
            self.told[body] = Told(error.taken, topic, error.offset)

    def append_batch(self, store: MessageStoreManager, level: Durability) -> None:
        bodies = [b"%s of a batch" % self._body() for _ in range(3)]
        bodies = [b"%d: %s" % row for row in enumerate(bodies)]
        rows = {"body": bodies}
        self._batch(
            bodies, ["a"] * 3, lambda: store["a"].append_batch(rows, durability=level), level
        )

    def append_over_topics(self, store: MessageStoreManager, level: Durability) -> None:
        bodies = [b"%d: %s of a batch over topics" % (n, self._body()) for n in range(6)]
        topics = [TOPICS[n % 3] for n in range(6)]
        rows = {"topic": topics, "body": bodies}
        self._batch(bodies, topics, lambda: store.append_batch(rows, durability=level), level)

    def _batch(
        self, bodies: list[bytes], topics: list[str], append: Callable[[], Any], level: Durability
    ) -> None:
        try:
            acks = append()
        except BatchError as error:
            self.note(error)
            for body, topic, ack in zip(bodies, topics, error.acks, strict=True):
                said = error.taken
                self.told[body] = Told(
                    said if ack is None else ack.durability, topic, ack and ack.offset
                )
            return
        except TubeStoreError as error:
            self.note(error)
            for body, topic in zip(bodies, topics, strict=True):
                self.told[body] = Told(error.taken, topic)
            return
        for body, topic, offset in zip(bodies, topics, acks.offsets.to_pylist(), strict=True):
            self.told[body] = Told(level, topic, offset)

    def look(self, store: MessageStoreManager) -> None:
        for name in TOPICS:
            self.attempt(
                lambda name=name: self.seen.update(m.body for m in store[name].messages(0))
            )

    def attempt(self, work: Callable[[], Any]) -> None:
        try:
            work()
        except TubeStoreError as error:
            self.note(error)

    def note(self, error: TubeStoreError) -> None:
        self.errors.append(error)

    def found(self) -> dict[bytes, list[tuple[str, int]]]:
        """Return what the store has, opened anew: (topic, offset) of each body."""
        places: dict[bytes, list[tuple[str, int]]] = {}
        self.vfs.heal()
        with self.open() as store:
            for name in TOPICS:
                for message in store[name].messages(0):
                    places.setdefault(message.body, []).append((name, message.offset))
        return places


def began(options: dict[str, Any]) -> tuple[Run, MessageStoreManager]:
    run = Run(FaultyVfs(MemoryVfs()), options)
    store = run.open()
    for name in TOPICS:
        store.create_topic(name)
    return run, store


def judge(run: Run, error: int) -> None:
    """Compare what the store has with what it said."""
    failed = any(isinstance(e, StoreFailed) for e in run.errors)
    assert not failed or error != errno.ENOSPC or any("sync" in str(e) for e in run.errors)
    found = run.found()
    assert found.keys() <= run.told.keys()
    for body, told in run.told.items():
        places = found.get(body, [])
        told_all = (body, told, places, [str(e) for e in run.errors])
        assert len(places) <= 1, told_all
        if places and told.offset is not None:
            assert places == [(told.topic, told.offset)], told_all
        if told.said == "no":
            assert not places, told_all
            assert body not in run.seen, told_all
        elif told.said in ("page_cache", "fsync") or (
            told.said in ("memory", "yes") and not failed
        ):
            assert places, told_all
    if not failed:
        assert run.seen <= found.keys()


def clean_calls(options: dict[str, Any]) -> Counter[str]:
    run, store = began(options)
    run.vfs.calls.clear()
    run.work(store)
    run.attempt(store.close)
    assert not run.errors
    judge(run, 0)
    return Counter(run.vfs.calls)


def plans(options: dict[str, Any]) -> Iterator[list[tuple[str, dict[str, Any]]]]:
    """Go through the faults: each call at each place."""
    calls = clean_calls(options)
    for call in CALLS:
        count = calls[call]
        places = range(1, count + 1, max(1, count // 5))
        for nth in places:
            yield [(call, {"nth": nth})]
            yield [(call, {"nth": nth + more}) for more in range(3)]
            yield [(call, {"nth": nth, "forever": True})]
        for other in ("truncate", "pwrite", "create", "sync"):
            if count and other != call:
                yield [(call, {"nth": (count + 1) // 2}), (other, {"forever": True})]


OPTIONS: dict[str, dict[str, Any]] = {
    "shards": {"journal_size_bytes": 0},
    "journal": {"journal_shards_min": 2},
}

#: Of so many faults the quick sample has one; a number that goes through all kinds of them.
SAMPLED = 11


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO], ids=["ENOSPC", "EIO"])
@pytest.mark.parametrize("every", [SAMPLED, pytest.param(1, marks=pytest.mark.slow)])
def test_whatever_fails_the_store_has_what_it_said(
    options: dict[str, Any], error: int, every: int
) -> None:
    for plan in islice(plans(options), 0, None, every):
        run, store = began(options)
        for call, how in plan:
            run.vfs.fail(call, error=error, **how)
        print(plan)  # shown when it fails
        run.work(store)
        run.vfs.heal()
        run.work(store)
        if not any(isinstance(e, StoreFailed) for e in run.errors):
            assert list(run.told.values())[-1].said in LEVELS, "it did not go on"
        run.attempt(store.close)
        judge(run, error)
