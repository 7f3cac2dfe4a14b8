"""The engine as a subject of the crash proof: random small runs, and what must hold after a crash.

Everything is tiny, so that a run of some dozen messages rolls data and index several times.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from random import Random
from typing import Any
from unittest import mock

import pyarrow as pa

import tubestore
from tests.crash.book import RANK, Book, Promise, Promises, Sent, raised
from tests.crash.invariants import Found, check_history
from tubestore.clock import ManualClock
from tubestore.formats import CHECKSUM_MASK, DATA_HEADER, INDEX_ENTRY, TOKEN_MESSAGE
from tubestore.options import DURABILITIES, Durability
from tubestore.testing import MemoryVfs
from tubestore.vfs import Vfs

ROOT = "/store"
SETTINGS: dict[str, Any] = {
    "segment_size_bytes": 600,
    "index_segment_size_bytes": 5 * INDEX_ENTRY.size,
    "mem_store_messages": 6,
}
#: Topics, and the ids of their partitions: one and two shards.
TOPICS = {"a": (0, 1, 10_000, 10_001), "b": (0, 1, 2)}
TAGS = (None, "red", "green")
_UUIDS = "tubestore.manager.uuid.uuid4"


def open_store(vfs: Vfs, clock: ManualClock) -> tubestore.MessageStoreManager:
    """Open the store without threads; its identity is always the same, so that states compare."""
    with mock.patch(_UUIDS, return_value="00000000-0000-4000-8000-000000000000"):
        return tubestore.open(ROOT, vfs=vfs, clock=clock, background=False, **SETTINGS)


def body_of(number: int, random: Random) -> bytes:
    """Return a body that no other message has; now and then one above a segment's size."""
    size = random.choice((0, 0, 10, 40, 100, 700 if random.random() < 0.2 else 20))
    return b"%06d:" % number + bytes(random.choices(b"abcdefgh", k=size))


class EngineRun:
    """A writer that does one random thing after the other, and marks what was promised."""

    def __init__(
        self, vfs: MemoryVfs, clock: ManualClock, book: Book, promises: Promises, seed: int
    ) -> None:
        self.vfs, self.clock, self.book = vfs, clock, book
        self.promises = dict(promises)
        self.random = Random(seed)
        self.store = open_store(vfs, clock)
        for name, partitions in TOPICS.items():
            stores = partitions[-1] // 10_000 + 1
            self.store.create_topic(
                name, partitions=len(partitions) // stores, stores=stores, exist_ok=True
            )

    def step(self) -> None:
        """Do one thing."""
        things: tuple[tuple[Callable[[], None], int], ...] = (
            (self.append_one, 8),
            (self.append_batch, 3),
            (self.append_mixed, 2),
            (self.flush, 1),
            (self.sync, 1),
            (self.grow_older, 1),
            (self.reopen, 1),
            (self.die, 1),
        )
        weights = [weight for _, weight in things]
        self.random.choices([thing for thing, _ in things], weights)[0]()

    # -- things that it does -------------------------------------------------------------------

    def _message(self, topic: str, partition: int) -> Sent:
        number = self.book.next_id
        tag = self.random.choice(TAGS)
        return self.book.send(Sent(number, topic, partition, body_of(number, self.random), tag))

    def _level(self) -> Durability:
        return self.random.choice(DURABILITIES)

    def append_one(self) -> None:
        """Append one message."""
        topic = self.random.choice(sorted(TOPICS))
        message = self._message(topic, self.random.choice(TOPICS[topic]))
        level = self._level()
        ack = self.store[topic].append(
            message.body,
            partition=message.partition,
            filter_item=message.tag,
            durability=level,
        )
        self._promise([Promise(message.id, ack.offset, level)])

    def append_batch(self) -> None:
        """Append some rows of one topic."""
        topic = self.random.choice(sorted(TOPICS))
        rows = [
            self._message(topic, self.random.choice(TOPICS[topic]))
            for _ in range(self.random.randint(1, 5))
        ]
        level = self._level()
        acks = self.store[topic].append_batch(_table(rows), durability=level)
        self._promise([Promise(m.id, a.offset, level) for m, a in zip(rows, acks, strict=True)])

    def append_mixed(self) -> None:
        """Append some rows of any topic."""
        rows = []
        for _ in range(self.random.randint(2, 6)):
            topic = self.random.choice(sorted(TOPICS))
            rows.append(self._message(topic, self.random.choice(TOPICS[topic])))
        level = self._level()
        topics = pa.array([m.topic for m in rows])
        acks = self.store.append_batch(
            _table(rows).append_column("topic", topics), durability=level
        )
        self._promise([Promise(m.id, a.offset, level) for m, a in zip(rows, acks, strict=True)])

    def flush(self) -> None:
        """Flush a topic's buffers."""
        topic = self.random.choice(sorted(TOPICS))
        self.store[topic].flush()
        self._promise_all(topic, "page_cache")

    def sync(self) -> None:
        """Sync a topic."""
        topic = self.random.choice(sorted(TOPICS))
        self.store[topic].sync()
        self._promise_all(topic, "fsync")

    def grow_older(self) -> None:
        """Let time pass, and do what is due by then."""
        self.clock.advance(self.random.choice((5_000, 30_000)))
        for shard in self.store._writing_shards():
            shard.maintain()

    def reopen(self) -> None:
        """Close and open again."""
        opened = self._opened()
        self.store.close()
        self.vfs.mark(self._note(raised(opened, "fsync")))
        self.store = open_store(self.vfs, self.clock)

    def die(self) -> None:
        """Be killed: what was only in memory is gone, and its offsets are given again."""
        self.stop()
        self.promises = {p.id: p for p in self.promises.values() if p.level != "memory"}
        self.store = open_store(self.vfs, self.clock)

    def stop(self) -> None:
        """End without writing anything."""
        self.store.abandon("killed")
        self.vfs.release_locks()

    # -- promises ------------------------------------------------------------------------------

    def _shard(self, number: int) -> tuple[str, int]:
        message = self.book.sent[number]
        return message.topic, message.partition // 10_000

    def _promise(self, promises: list[Promise]) -> None:
        """Mark promises; a level covers everything earlier in its shard (DESIGN.md D6)."""
        level = promises[0].level
        shards = {self._shard(p.id) for p in promises}
        earlier = [p for p in self.promises.values() if self._shard(p.id) in shards]
        self.vfs.mark(self._note([*raised(earlier, level), *promises]))

    def _promise_all(self, topic: str, level: Durability) -> None:
        earlier = [p for p in self._opened() if self.book.sent[p.id].topic == topic]
        self.vfs.mark(self._note(raised(earlier, level)))

    def _opened(self) -> list[Promise]:
        """The promises of the shards that this process has to do with."""
        shards = {(t, s.store_id) for t in TOPICS for s in self.store[t].opened_shards()}
        return [p for p in self.promises.values() if self._shard(p.id) in shards]

    def _note(self, promises: list[Promise]) -> list[Promise]:
        self.promises.update((p.id, p) for p in promises)
        return promises

    def promise_what_is_there(self) -> None:
        """What a recovery shows may not vanish with the process any more."""
        found = read_all(self.store, self.book)
        shown = [Promise(f.id, f.offset, "page_cache") for f in found if f.id is not None]
        known = self.promises
        self.vfs.mark(
            self._note(
                [p for p in shown if p.id not in known or RANK[known[p.id].level] < RANK[p.level]]
            )
        )


def _table(rows: list[Sent]) -> pa.Table:
    return pa.table(
        {
            "body": pa.array([m.body for m in rows], pa.large_binary()),
            "partition_id": pa.array([m.partition for m in rows], pa.int32()),
            "filter_item": pa.array([m.tag for m in rows], pa.string()),
        }
    )


# -- after the crash ---------------------------------------------------------------------------


def read_all(store: tubestore.MessageStoreManager, book: Book) -> list[Found]:
    """Return everything that the store shows, in the order of each shard."""
    found = []
    for topic in store.topics():
        columns = ["partition_id", "offset", "filter_item", "body", "state"]
        with store[topic].scan(columns=columns, verify=True) as reader:
            table = reader.read_all()
        for partition, offset, tag, body, state in zip(
            *(column.to_pylist() for column in table.columns), strict=True
        ):
            number = book.by_body.get(body) if state == "ok" else None
            found.append(Found(number, topic, partition, offset, body, tag, state))
    return found


def check_state(
    vfs: MemoryVfs,
    clock: ManualClock,
    book: Book,
    promises: Promises,
    *,
    damage_allowed: bool,
    thorough: bool,
) -> None:
    """Open what the crash left; raises AssertionError for the first thing that does not hold."""
    store = open_store(vfs, clock)
    try:
        found = read_all(store, book)
        check_history(found, book, promises, damage_allowed=damage_allowed)
        check_files(vfs, damage_allowed=damage_allowed)
        added = _append_everywhere(store)
        again = read_all(store, book)
        assert [f for f in again if f.body not in added] == found, "an append changed the rest"
        assert sorted(f.body for f in again if f.body in added) == sorted(added), "append lost"
        if thorough:
            _check_partitions(store, again)
            store.close()
            check_files(vfs, damage_allowed=damage_allowed)
            store = open_store(vfs, clock)
            assert read_all(store, book) == again, "a clean close changed what is there"
    finally:
        store.abandon("looked at")


def _append_everywhere(store: tubestore.MessageStoreManager) -> list[bytes]:
    added = []
    for topic in store.topics():
        for partition in store[topic].partition_ids[::2]:
            body = f"after the crash {topic} {partition}".encode()
            store[topic].append(body, partition=partition, durability="page_cache")
            added.append(body)
    return added


def _check_partitions(store: tubestore.MessageStoreManager, found: list[Found]) -> None:
    """Each partition by itself shows what the scan showed of it."""
    for topic in store.topics():
        for partition in store[topic].partition_ids:
            rows = [(m.offset, m.body) for m in store[topic].messages(partition) if m.body]
            want = [
                (f.offset, f.body)
                for f in found
                if (f.topic, f.partition) == (topic, partition) and f.body
            ]
            assert rows == want, f"partition {partition} of {topic} shows something else"


def check_files(vfs: Vfs, *, damage_allowed: bool, root: str = ROOT) -> None:
    """Read the files with a reader of our own: data and index say the same, and all of it."""
    for name, is_directory, _ in vfs.entries(root):
        if is_directory and not name.startswith("."):
            _check_shard(vfs, f"{root}/{name}", damage_allowed)


def _stream(vfs: Vfs, directory: str, suffix: str) -> tuple[int, bytes]:
    parts, start, end = [], None, 0
    for name, is_directory, size in vfs.entries(directory):
        if not is_directory and name.endswith(suffix):
            first = int(name.removesuffix(suffix))
            start = first if start is None else start
            assert end in (0, first), f"{directory}: gap or overlap before {name}"
            parts.append(vfs.read_file(f"{directory}/{name}"))
            end = first + size
    return start or 0, b"".join(parts)


def _check_shard(vfs: Vfs, directory: str, damage_allowed: bool) -> None:
    data_start, data = _stream(vfs, directory, ".tube")
    index_start, index = _stream(vfs, f"{directory}/index", ".index")
    assert len(index) % INDEX_ENTRY.size == 0, f"{directory}: part of an index entry is left"
    covered = 0
    for place in range(0, len(index), INDEX_ENTRY.size):
        entry = INDEX_ENTRY.unpack_from(index, place)
        position = entry.data_offset - data_start
        whole = 0 <= position <= len(data) - DATA_HEADER.size
        good = whole and _is_record(data, position, entry, index_start + place)
        assert good or damage_allowed, f"{directory}: entry {index_start + place} has no record"
        covered += entry.data_size if good else 0
    if not damage_allowed:
        assert covered == len(data), f"{directory}: {len(data) - covered} bytes in no entry"


def _is_record(data: bytes, position: int, entry: Any, index_offset: int) -> bool:
    header = DATA_HEADER.unpack_from(data, position)
    payload = data[position + DATA_HEADER.size : position + entry.data_size]
    return bool(
        header.token == TOKEN_MESSAGE
        and header.length == entry.data_size - 4
        and header.queue_logic_offset == index_offset
        and header.partition_id == entry.partition_id
        and header.checksum == zlib.crc32(payload) & CHECKSUM_MASK
    )
