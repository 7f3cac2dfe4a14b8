"""The engine as a subject of the crash proof: random small runs, and what must hold after a crash.

Everything is tiny, so that a run of some dozen messages rolls data and index several times.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pyarrow as pa

import tubestore
from tests.proof.explorer.book import Book, Promise, Promises, Sent, raised
from tests.proof.explorer.invariants import Found, check_history, found_row
from tests.proof.explorer.run import RandomRun, body_of
from tests.proof.explorer.shards import check_agrees, index_end, read_shards
from tubestore.clock import ManualClock
from tubestore.core.vfs import Vfs
from tubestore.options import DURABILITIES, Durability
from tubestore.record.layouts import INDEX_ENTRY
from tubestore.staging.writer import StagedWriter
from tubestore.store.manager import engine_of
from tubestore.store.topic import shards_of
from tubestore.testing import MemoryVfs

ROOT = "/store"
SETTINGS: dict[str, Any] = {
    "segment_size_bytes": 600,
    "index_segment_size_bytes": 5 * INDEX_ENTRY.size,
    "mem_store_messages": 6,
    "journal_shards_min": 2,
    "journal_size_bytes": 1500,
    "ring_size_bytes": 2048,  # segments of a few frames
}
#: Topics, and the ids of their partitions: one and two shards.
TOPICS = {"a": (0, 1, 10_000, 10_001), "b": (0, 1, 2)}
TAGS = (None, "red", "green")
#: The share of openings with a ring.
RINGS = float(os.environ.get("CRASH_RINGS") or 0.5)
THOROUGH = 12  #: one state in so many is also closed, opened again and read in every way


def open_store(vfs: Vfs, clock: ManualClock, *, ring: bool = True) -> tubestore.MessageStoreManager:
    """Open the store without threads."""
    return tubestore.open(
        ROOT, vfs=vfs, clock=clock, background=False, ring_journal=ring, **SETTINGS
    )


class EngineRun(RandomRun):
    """Appends of all kinds and levels, flushes, syncs, closes and kills."""

    def open(self) -> None:
        """Open the store, and make its topics where they are missing."""
        self.store = open_store(self.disk, self.clock, ring=self.random.random() < RINGS)
        for name, partitions in TOPICS.items():
            stores = partitions[-1] // 10_000 + 1
            self.store.create_topic(
                name, partitions=len(partitions) // stores, stores=stores, exist_ok=True
            )

    def things(self) -> list[tuple[Callable[[], None], int]]:
        """What it may do."""
        return [
            (self.append_one, 8),
            (self.append_batch, 3),
            (self.append_mixed, 2),
            (self.publish, 2),
            (self.retain, 2),
            (self.compact, 2),
            (self.flush, 1),
            (self.sync, 1),
            (self.maintain, 1),
            (self.grow_older, 1),
            (self.reopen, 1),
            (self.die, 1),
        ]

    def what_is_there(self) -> list[Found]:
        """Everything that the store shows."""
        return read_all(self.store, self.book)

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

    def publish(self) -> None:
        """Publish some rows of one topic, staged by one task; now and then give the job up."""
        topic = self.random.choice(sorted(TOPICS))
        job = f"job:{self.book.next_id}"
        rows = [
            self._message(topic, self.random.choice(TOPICS[topic]))
            for _ in range(self.random.randint(1, 5))
        ]
        table = _table(rows).append_column("topic", pa.array([topic] * len(rows)))
        with StagedWriter(ROOT, job, "0", vfs=self.disk, clock=self.clock, token="t") as writer:
            writer.write(table)
            staged = writer.finish()
        if self.random.random() < 0.1:
            self.store.abort(job)
            return
        starts = {f.store_id: f.index_start for f in self.store.publish(job, staged).files}
        promises = []
        for message in rows:
            store_id = message.partition // 10_000
            promises.append(Promise(message.id, starts[store_id], "fsync"))
            starts[store_id] += INDEX_ENTRY.size
        self._promise(promises)

    def retain(self) -> None:
        """Remove a topic's oldest files, now and then all of them, and empty the trash."""
        topic = self.store[self.random.choice(sorted(TOPICS))]
        self.clock.advance(10)
        bounds: dict[str, Any] = self.random.choice(
            ({"max_bytes": 0}, {"max_bytes": 1500}, {"max_bytes": 3000}, {"max_age": "1ms"})
        )
        topic.retain(**bounds, dry_run=True)
        shards = shards_of(topic)
        views = {n: shards.shard(n).view() for n in range(topic.options.stores) if shards.exists(n)}
        # Opening a shard may have mended it, and that is in the plan.
        going = topic.retain(**bounds, dry_run=True)
        firsts = {n: _first_behind(views[n], going) for n in {row.store_id for row in going}}
        gone = [p for p in self.promises.values() if self._goes(p, topic.name, firsts)]
        # From the first step of a removal on a message may be there or not.
        self.mark([p._replace(level="memory") for p in gone])
        for promise in gone:
            del self.promises[promise.id]
        done = topic.retain(**bounds)
        assert done == going, f"{done}, and the dry run said {going}"
        if self.random.random() < 0.5:
            self.store.empty_trash(grace=0)

    def compact(self) -> None:
        """Merge small files, as few as there may be; nothing else changes."""
        self.store.compact(files_min=2)

    def _goes(self, promise: Promise, topic: str, firsts: dict[int, int]) -> bool:
        name, store_id = self._shard(promise.id)
        return name == topic and promise.offset < firsts.get(store_id, 0)

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

    def maintain(self) -> None:
        """Do what is due now: open shards that lack messages of a journal that was left."""
        self.store.maintain()

    def grow_older(self) -> None:
        """Let time pass, and do what is due by then."""
        self.clock.advance(self.random.choice((5_000, 30_000)))
        for shard in engine_of(self.store).shards.written():
            shard.maintain()

    def reopen(self) -> None:
        """Close and open again."""
        opened = self._opened()
        self.store.close()
        self.mark(raised(opened, "fsync"))
        self.open()

    def die(self) -> None:
        """Be killed; who only reads sees what the next opening for writing shows.

        After a fault that opening may show more: it finishes a job that is half published, and
        writes entries whose write failed. Nothing of that was acknowledged above `memory`. A reader
        that the fault met shows less, and says so.
        """
        self.stop()
        with tubestore.open(ROOT, "r", vfs=self.disk, clock=self.clock, **SETTINGS) as reader:
            seen = read_all(reader, self.book)
            lacks = any("journal cannot be read" in str(one) for one in reader.problems)
        super().die()
        if self.random.random() < 0.3:  # that opens every shard: not always
            shown = self.what_is_there()
            known = {row.id for row in seen} | (set() if lacks else self.promises.keys())
            disturbed = self.is_disturbed or lacks
            expected = [row for row in shown if row.id in known] if disturbed else shown
            if expected != seen:
                self.stop()
                raise AssertionError(f"a reader saw {seen}, the next writer shows {shown}")

    def stop(self) -> None:
        """End without writing anything."""
        engine_of(self.store).abandon("killed")
        self.vfs.release_locks()

    # -- promises ------------------------------------------------------------------------------

    def _shard(self, number: int) -> tuple[str, int]:
        message = self.book.sent[number]
        return message.topic, message.partition // 10_000

    def _promise(self, promises: list[Promise]) -> None:
        """Mark promises; a level covers everything earlier in its shard (decisions.md D6)."""
        level = promises[0].level
        shards = {self._shard(p.id) for p in promises}
        earlier = [p for p in self.promises.values() if self._shard(p.id) in shards]
        self.mark([*raised(earlier, level), *promises])

    def _promise_all(self, topic: str, level: Durability) -> None:
        earlier = [p for p in self._opened() if self.book.sent[p.id].topic == topic]
        self.mark(raised(earlier, level))

    def _opened(self) -> list[Promise]:
        """The promises of the shards that this process has to do with."""
        shards = {(t, s.store_id) for t in TOPICS for s in shards_of(self.store[t]).opened_shards()}
        return [p for p in self.promises.values() if self._shard(p.id) in shards]


def _first_behind(view: Any, going: list[tubestore.SegmentRow]) -> int:
    """Return the index offset of the first message that stays when these files go."""
    end = max(
        row.start + row.bytes
        for row in going
        if (row.store_id, row.stream) == (view.store_id, "data")
    )
    for source in view.sources(view.index_start):
        for place, entry in enumerate(source.entries):
            if entry["data_offset"] >= end:
                return int(source.index_start) + place * INDEX_ENTRY.size
    return int(view.index_end)


def _table(rows: list[Sent]) -> pa.Table:
    return pa.table(
        {
            "body": pa.array([m.body for m in rows], pa.large_binary()),
            "partition": pa.array([m.partition for m in rows], pa.int32()),
            "filter_item": pa.array([m.tag for m in rows], pa.string()),
        }
    )


# -- after the crash ---------------------------------------------------------------------------


def read_all(
    store: tubestore.MessageStoreManager, book: Book, *, verify: bool = True
) -> list[Found]:
    """Return everything that the store shows, in the order of each shard."""
    found = []
    for topic in store.topics():
        columns = ["partition", "offset", "body", "state"]
        with store[topic].scan(columns=columns, verify=verify) as reader:
            table = reader.read_all()
        for partition, offset, body, state in zip(
            *(column.to_pylist() for column in table.columns), strict=True
        ):
            found.append(found_row(book, topic, partition, offset, body if state == "ok" else None))
    return found


def check_state(
    vfs: MemoryVfs,
    clock: ManualClock,
    book: Book,
    promises: Promises,
    *,
    damage_allowed: bool,
    turn: int,
) -> None:
    """Open what the crash left; raises AssertionError for the first thing that does not hold.

    What is there is read from the files, by a reader of our own; a thorough check compares it
    with what the store shows, and goes on to a clean close and another opening.
    """
    thorough = turn % THOROUGH == 0
    early = _seen_by_a_reader(vfs, clock, book) if thorough else None
    store = open_store(vfs, clock, ring=turn % 5 < 3)
    try:
        for topic, partitions in TOPICS.items():
            if topic in store:
                for store_id in {partition // 10_000 for partition in partitions}:
                    shards_of(store[topic]).shard(store_id)
        damaged: set[str] = set()
        found = read_shards(vfs, ROOT, book, damage_allowed=damage_allowed, damaged=damaged)
        check_history(found, book, promises, damage_allowed=damage_allowed)
        if early is not None:
            _check_early(*early, found, promises)
        reported = check_agrees(vfs, ROOT, store.problems, damaged)
        if damaged and reported == damaged:
            shown = read_all(store, book, verify=False)
            assert shown == found, f"damage that was reported is shown as good: {shown}"
        if thorough:
            assert read_all(store, book) == found, "the store shows something else than its files"
        added = _append_everywhere(store, vfs)
        if thorough:
            added += _append_and_read(store)
            _check_reopened(store, vfs, clock, book, found, added)
    finally:
        engine_of(store).abandon("looked at")


def _seen_by_a_reader(vfs: MemoryVfs, clock: ManualClock, book: Book) -> tuple[list[Found], bool]:
    """Return what a reader shows before any writer, and whether it reports a problem."""
    if not vfs.exists(ROOT):
        return [], False
    with tubestore.open(ROOT, "r", vfs=vfs, clock=clock, background=False) as reader:
        rows = read_all(reader, book, verify=False)
        return rows, bool(reader.problems)


def _check_early(
    shown: list[Found], reported: bool, found: list[Found], promises: Promises
) -> None:
    """An early reader passes no message of the level `fsync`, and reports where it ends.

    `found` are the messages once a writer has recovered the shards.
    """
    safe = {p.id for p in promises.values() if p.level == "fsync"}
    there = {f.id for f in shown if f.body is not None}
    for lacking in (f for f in found if f.id in safe - there):
        assert reported, f"an early reader lacks {lacking} without a word"
        shard = lacking.topic, lacking.partition // 10_000
        passed = [
            f
            for f in shown
            if (f.topic, f.partition // 10_000) == shard and f.offset >= lacking.offset
        ]
        assert not passed, f"an early reader passes {lacking}: {passed[0]}"


def _append_everywhere(store: tubestore.MessageStoreManager, vfs: MemoryVfs) -> list[bytes]:
    """Append one by one after the recovery: to the end of what the files hold."""
    added = []
    for topic in store.topics():
        for partition in store[topic].partition_ids[::2]:
            body = f"after the crash {topic} {partition}".encode()
            end = index_end(vfs, f"{ROOT}/{topic}-{partition // 10_000}")
            ack = store[topic].append(body, partition=partition, durability="page_cache")
            assert ack.offset == end, f"appended at {ack.offset} and not at {end}"
            store[topic].flush()
            added.append(body)
    return added


def _append_and_read(store: tubestore.MessageStoreManager) -> list[bytes]:
    """Append a batch over all shards after the recovery, and read it back."""
    rows = [
        Sent(-1, topic, partition, f"and then {topic} {partition}".encode(), None)
        for topic in store.topics()
        for partition in store[topic].partition_ids[::2]
    ]
    if rows:
        topics = pa.array([row.topic for row in rows])
        acks = store.append_batch(_table(rows).append_column("topic", topics))
        for row, ack in zip(rows, acks, strict=True):
            page = store[row.topic].read(row.partition, ack.offset, columns=["offset", "body"])
            there = page.table.to_pylist()
            assert there == [{"offset": ack.offset, "body": row.body}], f"append lost: {there}"
    return [row.body for row in rows]


def _check_reopened(
    store: tubestore.MessageStoreManager,
    vfs: MemoryVfs,
    clock: ManualClock,
    book: Book,
    found: list[Found],
    added: list[bytes],
) -> None:
    """A clean close and another opening change nothing, and each partition shows its part."""
    store.close()
    again = open_store(vfs, clock, ring=False)
    try:
        rows = read_all(again, book)
        assert [f for f in rows if f.body not in added] == found, "lost by an append or a close"
        assert sorted(f.body for f in rows if f.body in added) == sorted(added), "append lost"
        assert read_shards(vfs, ROOT, book, damage_allowed=True) == rows, "not what the files say"
        for topic in again.topics():
            for partition in again[topic].partition_ids:
                whole = [f for f in rows if (f.topic, f.partition) == (topic, partition)]
                _check_partition(again[topic], partition, [f for f in whole if f.state == "ok"])
    finally:
        engine_of(again).abandon("looked at")


def _check_partition(topic: tubestore.Topic, partition: int, rows: list[Found]) -> None:
    page = topic.read(partition, limit=10_000, verify=True)
    shown = [(m.offset, m.body) for m in page if m.state == "ok"]
    assert shown == [(f.offset, f.body) for f in rows], f"partition {partition} shows other rows"
