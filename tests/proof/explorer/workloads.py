"""The same things done to a store every time, on a disk that may fail.

A workload goes on after a failure as a user would: it opens the store again where that is asked
for, and writes down what it is told of each message (`ledger.py`).
"""

from __future__ import annotations

import contextlib
import errno
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import rocketcompat
import tubestore
from rocketcompat.check.whole import check_store
from rocketcompat.inspect.directory import StoreDirectory
from rocketcompat.messages import Message, MessageBatch
from rocketcompat.options import LAYOUTS, MessageStoreConfig
from rocketcompat.record.batches import BatchItem
from rocketcompat.staging.writer import StagedLogWriter
from rocketcompat.store.put_status import PutStatus
from tests.proof.explorer.ledger import Entry, Ledger, Row, engine_rows, rocket_rows
from tests.support.rocket.inside import parts_of, shards_of
from tubestore.clock import ManualClock
from tubestore.core.vfs import Vfs, VfsLock
from tubestore.errors import StoreClosed, StoreFailed, TubeStoreError
from tubestore.offline.check import check
from tubestore.options import Durability
from tubestore.staging.writer import StagedWriter
from tubestore.store.manager import engine_of
from tubestore.testing import FaultyVfs
from tubestore.testing.faults import Fault

#: Calls that take room on the disk.
TAKES_ROOM = {
    "create", "pwrite", "truncate", "allocate", "make_directories", "link", "rename",
    "replace_file",
}  # fmt: skip


class BreakingVfs(FaultyVfs):
    """Fails the calls [first, first + count) of all that are made while it is on."""

    def __init__(self, inner: Vfs) -> None:
        super().__init__(inner)
        self.error, self.first, self.end = 0, 0, 0
        #: Bytes that a failing write leaves behind: its first half, or none.
        self.in_part = False
        self.on = True
        #: The calls until now, by kind.
        self.made: list[str] = []
        self.struck = 0
        self._held: list[VfsLock] = []

    def break_calls(self, error: int, first: int, count: int, *, in_part: bool = False) -> None:
        """Have these calls fail, counted from 0."""
        self.error, self.first, self.end, self.in_part = error, first, first + count, in_part

    def _pass(self, call: str, path: str) -> Fault | None:
        if not self.on:
            return None
        self.made.append(call)
        if not self.first <= len(self.made) - 1 < self.end:
            return None
        if self.error == errno.ENOSPC and call not in TAKES_ROOM:
            return None
        self.struck += 1
        return Fault(call, 1, self.error, True, path, None)

    def ask_write(self, path: str, size: int) -> tuple[int, OSError | None]:
        """Count a write; a failing one is written in part if that is asked for."""
        _, error = super().ask_write(path, size)
        return (size if error is None else size // 2 if self.in_part else 0), error

    def lock(self, path: str, *, kind: str, note: str = "", root: str = "") -> VfsLock:
        """Take a lock that `release_locks` gives back."""
        self._held.append(super().lock(path, kind=kind, note=note, root=root))
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
        #: What was raised, in its order.
        self.raised: list[TubeStoreError] = []
        #: What was staged, by job; it can be published until it is published.
        self.jobs: dict[str, list[Any]] = {}
        #: What expires is gone below this offset.
        self.first_kept = 0

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

    @abstractmethod
    def findings(self) -> list[Any]:
        """What `check` finds in the closed store."""

    @abstractmethod
    def stage(self, job: str, entries: list[Entry]) -> list[Any]:
        """Stage messages for a job; returns what `publish` takes."""

    def run(self, turn: int = 0) -> None:
        """Do everything once, and close the store; errors that are ours are taken note of."""
        for thing in self.things(turn):
            self.attempt(thing)
        self.attempt(self.close)

    def attempt(self, thing: Callable[[], object]) -> bool:
        """Do one thing with the open store; opens it again where an error asks for that."""
        try:
            if self.store is None:
                self.store = self.open()
            thing()
        except TubeStoreError as error:
            self.raised.append(error)
            if self.store is not None and isinstance(error, (StoreFailed, StoreClosed)):
                self.give_up()
            return False
        return True

    def give_up(self) -> None:
        """Close what failed; what was in memory only may be gone then."""
        store, self.store = self.store, None
        try:
            self.close_for_good(store)
        except TubeStoreError as error:
            self.raised.append(error)
        self.forget_memory()

    def close_for_good(self, store: Any) -> None:
        """Close a store whether or not it can write what it has."""
        store.close()

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
        self.store = None
        self.keep(self.ledger.entries)

    def look(self) -> None:
        """Read everything."""
        self.ledger.look(self.rows())

    def publish(self, job: str, places: Iterable[tuple[str, int]]) -> None:
        """Stage some messages and publish them."""
        entries = [self.ledger.send(*place, 40, job) for place in places]
        for entry in entries:
            entry.taken = "no"  # until it is published
        self.jobs[job] = self.stage(job, entries)
        self.publish_again(job)

    def publish_again(self, job: str) -> None:
        """Publish what is staged; what is published already stays as it is."""
        entries = [entry for entry in self.ledger.entries if entry.job == job]
        try:
            self.store.publish(job, self.jobs[job])
        except TubeStoreError:
            for entry in entries:
                entry.taken = "unknown"
            raise
        for entry in entries:
            entry.taken, entry.level = "yes", "fsync"

    def put(self, entries: list[Entry], level: Durability, do: Callable[[], list[int]]) -> None:
        """Hand messages in; `do` returns their offsets."""
        try:
            offsets = do()
        except TubeStoreError as error:
            self.ledger.refused(entries, error, level)
            raise
        for entry, offset in zip(entries, offsets, strict=True):
            self.ledger.acknowledged(entry, offset, level)


class EngineWorkload(Workload):
    """Appends of all kinds over many topics, at all levels."""

    TOPICS = tuple(f"t{n}" for n in range(9))
    SHORT = "short"  #: a topic whose messages expire after an hour
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
        try:
            for name in self.TOPICS:
                store.create_topic(name, partitions=2, exist_ok=True)
            store.create_topic(self.SHORT, partitions=2, max_age="1h", exist_ok=True)
        except BaseException:
            with contextlib.suppress(TubeStoreError):
                store.close(give_up=True)
            raise
        return store

    def things(self, turn: int) -> Iterable[Callable[[], object]]:
        """Append one by one, to one topic, and over all."""
        levels: tuple[Durability, ...] = ("memory", "page_cache", "fsync")
        for number, level in enumerate(levels):
            yield lambda n=number, at=level: self.one(self.TOPICS[n], n % 2, at)
            yield lambda n=number, at=level: self.batch(self.TOPICS[n + 2], at)
            yield lambda at=level: self.over_all(at)
            yield lambda n=number: self.one(self.TOPICS[n + 3], 1, "memory")
        yield lambda: self.batch(self.SHORT, "fsync", 20)
        yield self.look
        yield self.flush
        yield lambda: self.publish(f"job-{turn}", [(topic, 1) for topic in self.TOPICS[:3]])
        yield lambda: self.over_all("page_cache")
        yield self.expire
        yield self.sync
        yield lambda: self.over_all("memory")

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

    def expire(self) -> None:
        """Remove what is too old of the topic whose messages expire, and do what else is due."""
        self.clock.advance(2 * 3_600_000)
        for entry in self.ledger.entries:
            if entry.topic == self.SHORT and entry.taken == "yes":
                entry.taken = "unknown"
        self.store.retain()
        self.store.maintain()

    def stage(self, job: str, entries: list[Entry]) -> list[Any]:
        """Stage messages for a job."""
        with StagedWriter(self.root, job, "0", vfs=self.vfs, clock=self.clock, token="t") as writer:
            writer.write({
                "topic": [e.topic for e in entries],
                "body": [e.body for e in entries],
                "partition": [e.partition for e in entries],
            })  # fmt: skip
            return writer.finish()

    def close_for_good(self, store: Any) -> None:
        """Close the store without what it cannot write."""
        store.close(give_up=True)

    def abandon(self) -> None:
        """End without writing anything."""
        if self.store is not None:
            engine_of(self.store).abandon("killed")
            self.store = None
        self.forget_memory()

    def rows(self) -> Iterable[Row]:
        """What the open store shows."""
        return engine_rows(self.store)

    def findings(self) -> list[Any]:
        """What `check` finds in the closed store."""
        return list(check(self.root, vfs=self.vfs, wait=lambda _: None))


class RocketWorkload(Workload):
    """Puts one by one and in columns, dispatched to queues, index and shards."""

    QUEUES = tuple((topic, queue) for topic in ("orders", "audit") for queue in (0, 1))
    config = MessageStoreConfig(
        mapped_file_size_commit_log=4096,
        mapped_file_size_consume_queue=20 * 12,
        max_hash_slot_num=7,
        max_index_num=12,
        file_reserved_time=1,
        layouts=LAYOUTS,
    )
    #: What `check` cannot see in the files.
    options: ClassVar[dict[str, Any]] = {"maxHashSlotNum": 7, "maxIndexNum": 12}
    #: What a put reaches that names no level.
    least: ClassVar[Durability] = "page_cache"

    def open(self) -> Any:
        """Open the store."""
        return rocketcompat.open(
            self.root, mode="w", config=self.config, vfs=self.vfs, clock=self.clock,
            background=False,
        )  # fmt: skip

    def things(self, turn: int) -> Iterable[Callable[[], object]]:
        """Put in all ways, hand over, publish, and clean."""
        levels: tuple[Durability, ...] = (self.least, "page_cache", "fsync")
        for number, level in enumerate(levels):
            yield lambda n=number, at=level: self.one(n, at)
            yield lambda n=number, at=level: self.columns(5 + n, at)
            yield self.dispatch
            yield lambda n=number, at=level: self.batch(n, at)
        yield self.look
        yield self.flush
        yield lambda: self.columns(9, "page_cache")
        yield lambda: self.publish(f"job-{turn}", self.QUEUES)
        yield lambda: self.columns(3, self.least)
        yield self.expire
        yield lambda: self.one(3, "fsync")
        yield self.dispatch
        yield lambda: self.columns(4, self.least)

    def put(self, entries: list[Entry], level: Durability, do: Callable[[], list[int]]) -> None:
        """Hand messages in; a level of one covers all that stand before it in the log."""
        try:
            super().put(entries, level, do)
        finally:
            if self.least == "page_cache":  # whatever became of the level
                self.keep(entries)
        if level != "memory":
            self.keep(self.ledger.entries)

    def one(self, number: int, level: Durability, padding: int = 90) -> None:
        """Put a message; a sync that takes too long leaves it in the page cache."""
        topic, queue = self.QUEUES[number % len(self.QUEUES)]
        entry = self.ledger.send(topic, queue, padding)
        message = Message(topic, entry.body, keys=[f"k{entry.number}"], queue_id=queue)

        def do() -> list[int]:
            result = self.store.put_message(message, durability=_named(level))
            assert result.status is PutStatus.PUT_OK, result
            return [result.physical_offset]

        self.put([entry], level, do)

    def batch(self, number: int, level: Durability, padding: int = 50) -> None:
        """Put a batch to one queue."""
        topic, queue = self.QUEUES[number % len(self.QUEUES)]
        entries = [self.ledger.send(topic, queue, padding) for _ in range(3)]
        batch = MessageBatch(topic, [BatchItem(e.body) for e in entries], queue_id=queue)
        self.put(entries, level, lambda: list(self.store.put_messages(
            batch, durability=_named(level)).physical_offsets))  # fmt: skip

    def columns(self, count: int, level: Durability, padding: int = 60) -> None:
        """Put some messages at once."""
        entries = [self.ledger.send(*self.QUEUES[n % 4], padding) for n in range(count)]
        self.put(entries, level, lambda: self.store.put_columns(
            self._columns_of(entries), durability=_named(level)
        ).column("physical_offset").to_pylist())  # fmt: skip

    @staticmethod
    def _columns_of(entries: list[Entry]) -> dict[str, list[Any]]:
        return {
            "topic": [e.topic for e in entries],
            "body": [e.body for e in entries],
            "queue_id": [e.partition for e in entries],
            "keys": [[f"k{e.number}"] for e in entries],
        }

    def stage(self, job: str, entries: list[Entry]) -> list[Any]:
        """Stage messages for a job."""
        with StagedLogWriter(
            self.root, job, "0", config=self.config, vfs=self.vfs, token="t"
        ) as writer:
            writer.write(self._columns_of(entries))
            return writer.finish()

    def publish_again(self, job: str) -> None:
        """Publish what is staged, behind all that is in the log."""
        super().publish_again(job)
        self.keep(self.ledger.entries)

    def dispatch(self) -> None:
        """Hand over what is in the log."""
        end = self.store.max_physical_offset
        if end > self.store.min_physical_offset:
            self.store.wait_dispatched(end - 1, timeout=0)

    def flush(self) -> None:
        """Bring everything to stable storage."""
        self.store.flush()
        self.keep(self.ledger.entries)

    def expire(self) -> None:
        """Remove the log's files that are too old."""
        self.clock.advance(2 * 3_600_000)
        try:
            self.store.clean()
        finally:
            self.first_kept = self.store.min_physical_offset

    def close(self) -> None:
        """Close the store, which gives everything back even where it fails."""
        store, self.store = self.store, None
        try:
            store.close()
        except TubeStoreError:
            self.forget_memory()
            raise
        self.keep(self.ledger.entries)

    def abandon(self) -> None:
        """End without writing anything."""
        if self.store is not None:
            self.store._closed = True
            if parts_of(self.store).tube is not None:
                engine_of(shards_of(self.store).store).abandon("killed")
            self.store = None
        self.forget_memory()

    def rows(self) -> Iterable[Row]:
        """What the queues of the open store give."""
        self.dispatch()
        return rocket_rows(self.store, self.QUEUES)

    def findings(self) -> list[Any]:
        """What `check` finds in the closed store."""
        return list(check_store(StoreDirectory(self.root, self.options, self.vfs)))


def _named(level: Durability) -> Any:
    """Return the level as puts take it: in memory is what a put has that names none."""
    return None if level == "memory" else level


class MappedRocketWorkload(RocketWorkload):
    """The same through maps."""

    config = RocketWorkload.config.changed(write_without_mmap=False)


class PooledRocketWorkload(RocketWorkload):
    """The same through the transient pool: a put that names no level is in memory."""

    config = RocketWorkload.config.changed(
        transient_store_pool_enable=True, transient_store_pool_size=2
    )
    least = "memory"


class PlainEngineWorkload(EngineWorkload):
    """The engine without its journal."""

    settings: ClassVar[dict[str, Any]] = {**EngineWorkload.settings, "journal_size_bytes": 0}


WORKLOADS: dict[str, type[Workload]] = {
    "engine": EngineWorkload,
    "engine-shards": PlainEngineWorkload,
    "rocket": RocketWorkload,
    "rocket-mmap": MappedRocketWorkload,
    "rocket-pool": PooledRocketWorkload,
}
__all__ = ["WORKLOADS", "BreakingVfs", "Workload"]
