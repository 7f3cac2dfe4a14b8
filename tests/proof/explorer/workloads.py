"""The same things done to a store every time, on a disk that may fail.

A workload goes on after a failure as a user would: it opens the store again where that is asked
for, and writes down what it is told of each message (`ledger.py`).
"""

from __future__ import annotations

import errno
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import rocketcompat
import tubestore
from rocketcompat.messages import Message
from rocketcompat.options import MessageStoreConfig
from rocketcompat.store.put_status import PutStatus
from tests.proof.explorer.ledger import Entry, Ledger, Row, engine_rows, rocket_rows
from tubestore.clock import ManualClock
from tubestore.core.vfs import Vfs, VfsLock
from tubestore.errors import DiskFull, TubeStoreError
from tubestore.options import Durability
from tubestore.testing import FaultyVfs
from tubestore.testing.faults import Fault

#: Calls that take room on the disk.
TAKES_ROOM = {
    "create", "pwrite", "truncate", "allocate", "make_directories", "link", "rename",
    "replace_file",
}  # fmt: skip


class BreakingVfs(FaultyVfs):
    """Fails the calls [first, first + count) of all that are made while it is on."""

    def __init__(self, inner: Vfs, error: int = 0, first: int = 0, count: int = 0) -> None:
        super().__init__(inner)
        self.error, self.first, self.end = error, first, first + count
        #: Bytes that a failing write leaves behind: its first half, or none.
        self.in_part = False
        self.number, self.on = 0, True
        self._held: list[VfsLock] = []

    def _pass(self, call: str, path: str) -> Fault | None:
        if not self.on:
            return None
        self.number += 1
        if not self.first <= self.number < self.end:
            return None
        if self.error == errno.ENOSPC and call not in TAKES_ROOM:
            return None
        return Fault(call, 1, self.error, True, path, None)

    def ask_write(self, path: str, size: int) -> tuple[int, OSError | None]:
        """Count a write; a failing one is written in part if that is asked for."""
        _, error = super().ask_write(path, size)
        return (size if error is None else size // 2 if self.in_part else 0), error

    def lock(self, path: str, *, kind: str, note: str = "") -> VfsLock:
        """Take a lock that `release_locks` gives back."""
        self._held.append(super().lock(path, kind=kind, note=note))
        return self._held[-1]

    def release_locks(self) -> None:
        """Drop every lock, as the death of its holder does."""
        for held in self._held:
            held.release()


class Workload(ABC):
    """What is done, on which disk, and what came of it."""

    def __init__(self, vfs: Vfs, root: str, ledger: Ledger) -> None:
        self.vfs, self.root, self.ledger = vfs, root, ledger
        self.clock = ManualClock()
        self.store: Any = None
        #: What was raised, for people who read a failure.
        self.raised: list[str] = []
        #: Errors of the disk itself that came through.
        self.foreign: list[OSError] = []

    @abstractmethod
    def open(self) -> Any:
        """Open the store."""

    @abstractmethod
    def things(self, turn: int) -> Iterable[Callable[[], object]]:
        """What is done in one round."""

    @abstractmethod
    def abandon(self) -> None:
        """End without writing anything."""

    @abstractmethod
    def rows(self) -> Iterable[Row]:
        """What the open store shows."""

    def run(self, turns: int = 2) -> None:
        """Do everything; errors that are ours are taken note of."""
        for turn in range(turns):
            for thing in self.things(turn):
                self.attempt(thing)
            if self.attempt(self.close):
                self.store = None

    def attempt(self, thing: Callable[[], object]) -> bool:
        """Do one thing with the open store; opens it again where an error asks for that."""
        try:
            if self.store is None:
                self.store = self.open()
            thing()
        except TubeStoreError as error:
            self.raised.append(repr(error))
            if not self.goes_on_after(error):
                self.give_up()
            return False
        except OSError as error:
            self.foreign.append(error)
            self.give_up()
            return False
        return True

    def goes_on_after(self, error: TubeStoreError) -> bool:
        """Whether the store is used further: a full disk may have room again."""
        return isinstance(error, DiskFull)

    def give_up(self) -> None:
        """Close what failed; what was in memory only may be gone then."""
        store, self.store = self.store, None
        if store is None:
            return
        try:
            store.close()
        except (TubeStoreError, OSError) as error:
            if not isinstance(error, TubeStoreError):
                self.foreign.append(error)
            self.raised.append(repr(error))
            self.forget_memory()
        else:
            self.keep(self.ledger.entries)

    def forget_memory(self) -> None:
        """Take note that messages in memory may be lost."""
        for entry in self.ledger.entries:
            if entry.taken == "yes" and entry.level == "memory":
                entry.taken = "unknown"

    @staticmethod
    def keep(entries: Iterable[Entry]) -> None:
        """Take note that what was taken is in the files."""
        for entry in entries:
            if entry.taken == "yes" and entry.level == "memory":
                entry.level = "page_cache"

    def close(self) -> None:
        """Close the store: everything that it took is in the files then."""
        self.store.close()
        self.keep(self.ledger.entries)

    def put(self, entries: list[Entry], level: Durability, do: Callable[[], list[int]]) -> None:
        """Hand messages in; `do` returns their offsets."""
        try:
            offsets = do()
        except TubeStoreError as error:
            self.ledger.refused(entries, error)
            raise
        for entry, offset in zip(entries, offsets, strict=True):
            self.ledger.acknowledged(entry, offset, level)


class EngineWorkload(Workload):
    """Appends of all kinds over many topics, at all levels."""

    TOPICS = tuple(f"t{n}" for n in range(9))
    settings: ClassVar[dict[str, Any]] = {
        "segment_size_bytes": 1500,
        "index_segment_size_bytes": 28 * 12,
        "mem_store_messages": 20,
        "journal_size_bytes": 6000,
    }

    def open(self) -> Any:
        """Open the store, and make its topics."""
        store = tubestore.open(
            self.root, vfs=self.vfs, clock=self.clock, background=False, **self.settings
        )
        self.store = store  # so that it is closed if a topic cannot be made
        for name in self.TOPICS:
            store.create_topic(name, partitions=2, exist_ok=True)
        return store

    def things(self, turn: int) -> Iterable[Callable[[], object]]:
        """Append one by one, to one topic, and over all."""
        levels: tuple[Durability, ...] = ("memory", "page_cache", "fsync")
        for number, level in enumerate(levels):
            yield lambda n=number, at=level: self.one(self.TOPICS[n], n % 2, at)
            yield lambda n=number, at=level: self.batch(self.TOPICS[n + 2], at)
            yield lambda at=level: self.over_all(at)
            yield lambda n=number: self.one(self.TOPICS[n + 3], 1, "memory")
        yield self.flush
        yield lambda: self.over_all("page_cache")
        yield self.sync

    def one(self, topic: str, partition: int, level: Durability, padding: int = 90) -> None:
        """Append a message."""
        entry = self.ledger.send(topic, partition, padding)
        self.put([entry], level, lambda: [self.store[topic].append(
            entry.body, partition=partition, durability=level).offset])  # fmt: skip

    def batch(self, topic: str, level: Durability, count: int = 5, padding: int = 60) -> None:
        """Append a batch to one topic."""
        entries = [self.ledger.send(topic, n % 2, padding) for n in range(count)]
        table = {"body": [e.body for e in entries], "partition": [e.partition for e in entries]}
        self.put(entries, level, lambda: self.store[topic].append_batch(
            table, durability=level).offsets.to_pylist())  # fmt: skip

    def over_all(self, level: Durability, padding: int = 30) -> None:
        """Append a batch over all topics."""
        entries = [self.ledger.send(topic, n, padding) for n in (0, 1) for topic in self.TOPICS]
        table = {
            "topic": [e.topic for e in entries],
            "body": [e.body for e in entries],
            "partition": [e.partition for e in entries],
        }
        self.put(entries, level, lambda: self.store.append_batch(
            table, durability=level).offsets.to_pylist())  # fmt: skip

    def flush(self) -> None:
        """Write what one topic has in memory."""
        self.store[self.TOPICS[0]].flush()
        self.keep(e for e in self.ledger.entries if e.topic == self.TOPICS[0])

    def sync(self) -> None:
        """Bring everything to stable storage."""
        self.store.sync()
        self.keep(self.ledger.entries)

    def abandon(self) -> None:
        """End without writing anything."""
        if self.store is not None:
            self.store.abandon("killed")
            self.store = None
        self.forget_memory()

    def rows(self) -> Iterable[Row]:
        """What the open store shows."""
        return engine_rows(self.store)


class RocketWorkload(Workload):
    """Puts one by one and in columns, dispatched to queues, index and shards."""

    QUEUES = tuple((topic, queue) for topic in ("orders", "audit") for queue in (0, 1))
    config = MessageStoreConfig(
        mapped_file_size_commit_log=4096,
        mapped_file_size_consume_queue=20 * 12,
        max_hash_slot_num=7,
        max_index_num=12,
    )

    def open(self) -> Any:
        """Open the store."""
        return rocketcompat.open(
            self.root, mode="w", config=self.config, vfs=self.vfs, clock=self.clock,
            background=False,
        )  # fmt: skip

    def things(self, turn: int) -> Iterable[Callable[[], object]]:
        """Put one by one and in columns."""
        levels: tuple[Durability, ...] = ("page_cache", "fsync")
        for number, level in enumerate(levels):
            yield lambda n=number, at=level: self.one(n, at)
            yield lambda n=number, at=level: self.columns(5 + n, at)
            yield self.dispatch
            yield lambda n=number, at=level: self.one(n + 2, at)
        yield self.flush
        yield lambda: self.columns(9, "page_cache")
        yield self.dispatch

    def one(self, number: int, level: Durability, padding: int = 90) -> None:
        """Put a message; a sync that takes too long leaves it in the page cache."""
        topic, queue = self.QUEUES[number % len(self.QUEUES)]
        entry = self.ledger.send(topic, queue, padding)
        message = Message(topic, entry.body, keys=[f"k{entry.number}"], queue_id=queue)

        def do() -> list[int]:
            result = self.store.put_message(message, durability=level)
            assert result.status is PutStatus.PUT_OK, result
            return [result.physical_offset]

        self.put([entry], level, do)

    def columns(self, count: int, level: Durability, padding: int = 60) -> None:
        """Put some messages at once."""
        entries = [self.ledger.send(*self.QUEUES[n % 4], padding) for n in range(count)]
        given = {
            "topic": [e.topic for e in entries],
            "body": [e.body for e in entries],
            "queue_id": [e.partition for e in entries],
            "keys": [[f"k{e.number}"] for e in entries],
        }
        self.put(entries, level, lambda: self.store.put_columns(
            given, durability=level).column("physical_offset").to_pylist())  # fmt: skip

    def dispatch(self) -> None:
        """Hand over what is in the log."""
        self.store.dispatcher.dispatch_pending()

    def flush(self) -> None:
        """Bring everything to stable storage."""
        self.store.flush()

    def abandon(self) -> None:
        """End without writing anything."""
        if self.store is not None:
            self.store._closed = True
            if self.store.tube is not None:
                self.store.tube.store.abandon("killed")
            self.store = None

    def rows(self) -> Iterable[Row]:
        """What the queues of the open store give."""
        self.store.dispatcher.dispatch_pending()
        return rocket_rows(self.store, self.QUEUES)


class MappedRocketWorkload(RocketWorkload):
    """The same through maps."""

    config = RocketWorkload.config.changed(write_without_mmap=False)


WORKLOADS: dict[str, type[Workload]] = {
    "engine": EngineWorkload,
    "rocket": RocketWorkload,
    "rocket-mmap": MappedRocketWorkload,
}
__all__ = ["WORKLOADS", "BreakingVfs", "Workload"]
