"""The full stack as a subject of the crash proof: log, queues, index and shards of one store.

What was put is promised by the log alone; queues, index and shards must agree with it after
every recovery: each message exactly once in each (decisions.md D2).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, ClassVar, Literal

import rocketcompat
from rocketcompat.check.whole import check_store
from rocketcompat.inspect.directory import StoreDirectory
from rocketcompat.messages import Message
from rocketcompat.options import LAYOUTS, MessageStoreConfig
from tests.proof.explorer.book import Book, Promise, Promises, Sent, raised
from tests.proof.explorer.invariants import Found, check_history
from tests.proof.explorer.rocket_files import Log, LogRecord, read_index, read_log, read_queues
from tests.proof.explorer.run import RandomRun, body_of
from tests.proof.explorer.shards import check_agrees, read_shards
from tests.support.rocket.inside import dispatcher_of, log_of, parts_of, shards_of
from tubestore.clock import ManualClock
from tubestore.core.vfs import Vfs
from tubestore.store.manager import engine_of
from tubestore.testing import MemoryVfs

ROOT = "/store"
TUBE = f"{ROOT}/tube"
CONFIG = MessageStoreConfig(
    mapped_file_size_commit_log=1400,
    mapped_file_size_consume_queue=20 * 6,
    max_hash_slot_num=7,
    max_index_num=12,
    dispatch_batch_bytes_max=700,
    layouts=LAYOUTS,
)
#: The same for `check`.
OPTIONS = {
    "mappedFileSizeCommitLog": CONFIG.mapped_file_size_commit_log,
    "mappedFileSizeConsumeQueue": CONFIG.mapped_file_size_consume_queue,
    "maxHashSlotNum": CONFIG.max_hash_slot_num,
    "maxIndexNum": CONFIG.max_index_num,
}
FILE_SIZE = CONFIG.mapped_file_size_commit_log
#: Topics and their queue ids; the second has a queue in another shard.
TOPICS = {"orders": (0, 1), "audit": (0, 10_001)}
LEVELS: tuple[Literal["page_cache", "fsync"], ...] = ("page_cache", "fsync")
TAGS = (None, "red", "green")
#: One state in so many is put to, is checked by `check`, is closed and opened and read.
PUT_TO, CHECKED, THOROUGH = 4, 4, 12
Store = Any


def open_store(vfs: Vfs, clock: ManualClock, **other: Any) -> Store:
    """Open the store without threads, with `other` options than all have."""
    config = CONFIG.changed(**other)
    return rocketcompat.open(ROOT, mode="w", config=config, vfs=vfs, clock=clock, background=False)


def abandon(store: Store) -> None:
    """Leave a store as a killed process leaves it: nothing is written any more."""
    store._closed = True
    if parts_of(store).tube is not None:
        engine_of(shards_of(store).store).abandon("killed")


def dispatch_all(store: Store) -> None:
    """Hand over everything that is in the log."""
    end = store.max_physical_offset
    if end > store.min_physical_offset:
        # Where the disk was full the dispatcher goes on at the next call.
        reached = store.wait_dispatched(end - 1) or store.wait_dispatched(end - 1)
        assert reached, "the dispatcher did not come to the log's end"
    assert not dispatcher_of(store).failed, f"a structure stopped: {dispatcher_of(store).failed}"


def damages_of(store: Store) -> list[tuple[int, int]]:
    """Return the regions of the log that the store knows to be damaged."""
    return [(damage.start, damage.end) for damage in log_of(store).gaps]


class StackRun(RandomRun):
    """Puts one by one and in columns at both levels, dispatches, flushes, closes and kills."""

    options: ClassVar[dict[str, Any]] = {}

    def open(self) -> None:
        """Open the store."""
        self.store = open_store(self.disk, self.clock, **self.options)

    def stop(self) -> None:
        """End without writing anything."""
        abandon(self.store)
        self.vfs.release_locks()

    def has_stopped(self) -> bool:
        """Whether a structure has stopped."""
        return bool(dispatcher_of(self.store).failed)

    def things(self) -> list[tuple[Callable[[], None], int]]:
        """What it may do."""
        return [
            (self.put_one, 8),
            (self.put_columns, 3),
            (self.dispatch, 4),
            (self.flush, 1),
            (self.grow_older, 1),
            (self.reopen, 1),
            (self.die, 1),
        ]

    def what_is_there(self) -> list[Found]:
        """Everything in the log."""
        log = read_log(self.vfs, ROOT, FILE_SIZE, damages_of(self.store))
        return [row_of(record, self.book) for record in log.records]

    def _message(self) -> Sent:
        topic = self.random.choice(sorted(TOPICS))
        queue_id = self.random.choice(TOPICS[topic])
        number = self.book.next_id
        body = body_of(number, self.random)
        return self.book.send(Sent(number, topic, queue_id, body, self.random.choice(TAGS)))

    def _promise(self, promises: list[Promise]) -> None:
        """Mark promises; `fsync` covers everything earlier in the log."""
        earlier = list(self.promises.values()) if promises[0].level == "fsync" else []
        self.mark([*raised(earlier, "fsync"), *promises])

    def put_one(self) -> None:
        """Put one message."""
        sent = self._message()
        level = self.random.choice(LEVELS)
        message = Message(
            sent.topic, sent.body, tags=sent.tag, keys=keys_of(sent), queue_id=sent.partition
        )
        result = self.store.put_message(message, durability=level)
        self._promise([Promise(sent.id, result.physical_offset, level)])

    def put_columns(self) -> None:
        """Put some messages at once."""
        rows = [self._message() for _ in range(self.random.randint(1, 6))]
        level = self.random.choice(LEVELS)
        columns = {
            "topic": [m.topic for m in rows],
            "body": [m.body for m in rows],
            "queue_id": [m.partition for m in rows],
            "tags": [m.tag for m in rows],
            "keys": [keys_of(m) for m in rows],
        }
        result = self.store.put_columns(columns, durability=level)
        places = result.column("physical_offset").to_pylist()
        self._promise([Promise(m.id, p, level) for m, p in zip(rows, places, strict=True)])

    def dispatch(self) -> None:
        """Let queues, index and shards follow."""
        dispatch_all(self.store)

    def flush(self) -> None:
        """Sync everything, and write the marks."""
        self.store.flush()
        self.mark(raised(self.promises.values(), "fsync"))

    def grow_older(self) -> None:
        """Let time pass."""
        self.clock.advance(self.random.choice((5, 3_000)))

    def reopen(self) -> None:
        """Close and open again."""
        self.store.close()
        self.mark(raised(self.promises.values(), "fsync"))
        self.open()


class MmapStackRun(StackRun):
    """The same with the log's files written through maps; what opens them afterwards does not."""

    options: ClassVar[dict[str, Any]] = {"write_without_mmap": False}


def keys_of(message: Sent) -> list[str]:
    """Return the keys of a message: one of its own, and often one that many share."""
    return [f"k{message.id}", "shared"] if message.id % 3 else [f"k{message.id}"]


def row_of(record: LogRecord, book: Book) -> Found:
    """Return a log record as a row."""
    number = book.by_body.get(record.body)
    return Found(number, record.topic, record.queue_id, record.physical_offset, record.body, "ok")


# -- after the crash ---------------------------------------------------------------------------


def check_state(
    vfs: MemoryVfs,
    clock: ManualClock,
    book: Book,
    promises: Promises,
    *,
    damage_allowed: bool,
    turn: int,
) -> None:
    """Open what the crash left; raises AssertionError for the first thing that does not hold."""
    store = open_store(vfs, clock)
    try:
        dispatch_all(store)
        records = check_structures(vfs, store, book, damage_allowed=damage_allowed)
        found = [row_of(record, book) for record in records]
        check_history(found, book, promises, damage_allowed=damage_allowed)
        if turn % CHECKED == 0:
            _check_agrees(vfs, store)
        if turn % PUT_TO == PUT_TO // 2 or turn % THOROUGH == 0:
            _put_after_the_crash(store)
        if turn % THOROUGH == 0:
            store.close()
            store = open_store(vfs, clock)
            dispatch_all(store)
            after = check_structures(vfs, store, book, damage_allowed=damage_allowed, closed=True)
            assert after[: len(records)] == records, "a clean close changed what is there"
            _check_agrees(vfs, store, closed=True)
            _check_reads(store, after)
    finally:
        abandon(store)


def check_structures(
    vfs: Vfs, store: Store, book: Book, *, damage_allowed: bool, closed: bool = False
) -> list[LogRecord]:
    """Each record of the log stands exactly once in its queue, the index and its shard."""
    log = read_log(vfs, ROOT, FILE_SIZE, damages_of(store))
    assert damage_allowed or not log.gaps, f"damage without a power cut: {log.gaps}"
    assert log.end == store.max_physical_offset, "the log ends elsewhere"
    _check_properties(log, book)
    _check_queues(vfs, log)
    _check_index(vfs, log, closed)
    _check_shards(vfs, log, book)
    _check_next_offsets(store, log)
    return log.records


def _check_properties(log: Log, book: Book) -> None:
    """No checksum covers the properties: a record that lost some of them may not be shown."""
    for record in log.records:
        number = book.by_body.get(record.body)
        if number is not None:
            sent = book.sent[number]
            shown = (list(record.keys), record.tag)
            assert shown == (keys_of(sent), sent.tag), f"properties were lost: {record}"


def _check_queues(vfs: Vfs, log: Log) -> None:
    wanted: dict[tuple[str, int], dict[int, tuple[int, int]]] = {}
    for r in log.records:
        units = wanted.setdefault((r.topic, r.queue_id), {})
        assert r.queue_offset not in units, f"a queue offset was given twice: {r}"
        units[r.queue_offset] = (r.physical_offset, r.size)
    for units in wanted.values():
        assert log.gaps or sorted(units) == list(range(len(units))), "queue offsets leave a gap"
    shown = read_queues(vfs, ROOT)
    for place, units in wanted.items():
        have = {n: unit for n, unit in shown.pop(place, {}).items() if not log.lost(unit[0])}
        assert have == units, f"queue {place} has {have}, the log {units}"
    shown = {p: {n: u for n, u in m.items() if not log.lost(u[0])} for p, m in shown.items()}
    assert not any(shown.values()), f"queues of nothing in the log: {shown}"


def _check_index(vfs: Vfs, log: Log, closed: bool) -> None:
    wanted: Counter[tuple[int, int]] = Counter()
    for record in log.records:
        wanted.update((h, record.physical_offset) for h in record.key_hashes)
    slots, items = CONFIG.max_hash_slot_num, CONFIG.max_index_num
    have = read_index(vfs, ROOT, slots, items, closed=closed)
    have = Counter({item: n for item, n in have.items() if not log.lost(item[1])})
    assert have == wanted, f"index: missing {wanted - have}, too much {have - wanted}"


def _check_shards(vfs: Vfs, log: Log, book: Book) -> None:
    """What stands in a shard stands there in the order of the log.

    A message that is damaged in the log may still be whole in its shard.
    """
    in_log = {r.body for r in log.records}
    have: dict[tuple[str, int], list[tuple[int, bytes | None]]] = {}
    for row in read_shards(vfs, TUBE, book, damage_allowed=False):
        if row.body in in_log or not log.gaps:
            place = (row.topic, row.partition // 10_000)
            have.setdefault(place, []).append((row.partition, row.body))
    wanted: dict[tuple[str, int], list[tuple[int, bytes | None]]] = {}
    for r in log.records:
        wanted.setdefault((r.topic, r.queue_id // 10_000), []).append((r.queue_id, r.body))
    assert have == wanted, f"shards have {have}, the log {wanted}"


def _check_next_offsets(store: Store, log: Log) -> None:
    """The next message of a queue gets the number behind its last one, or a higher one.

    Behind damage numbers are left out: the lost messages may have had them.
    """
    for topic, queues in TOPICS.items():
        for queue_id in queues:
            place = (topic, queue_id)
            count = sum((r.topic, r.queue_id) == place for r in log.records)
            following = log_of(store).next_queue_offset(topic, queue_id)
            end = store.max_offset_in_queue(topic, queue_id)
            if log.gaps:
                assert following >= max(count, end), f"{place}: {following} is given out again"
            else:
                assert following == end == count, f"{place}: {following}, {end}, {count} records"


def _check_agrees(vfs: Vfs, store: Store, *, closed: bool = False) -> None:
    """What `check` finds after a recovery is the damage that the recovery reported."""
    # A cache is not synced, and ignored when it is torn; until a close there may be no checkpoint.
    passed = {"stale_cache"} if closed else {"stale_cache", "checkpoint"}
    found = check_store(StoreDirectory(ROOT, OPTIONS, vfs))
    findings = [f for f in found if f["reason"] not in passed]
    damages = log_of(store).gaps
    places = {(f["path"], f["position"]) for f in findings if f["reason"] == "damaged"}
    assert places == {(d.path, d.position) for d in damages}, f"{damages}, check: {findings}"
    others = {f["reason"] for f in findings} - {"damaged"}
    # A shard may still have the message whose record in the log is damaged.
    allowed = {"unit_damaged", "unit_fill", "shard_only"} if damages else set()
    assert others <= allowed, f"{damages}, check: {findings}"
    check_agrees(vfs, TUBE, (), set())


def _put_after_the_crash(store: Store) -> None:
    """Puts after the recovery work, and are read back; they are handed over together."""
    puts = []
    for topic, queues in TOPICS.items():
        body = b"after the crash " + topic.encode()
        expected = store.max_offset_in_queue(topic, queues[0])
        put = store.put_message(Message(topic, body, keys=["after"], queue_id=queues[0]))
        damaged = bool(log_of(store).gaps)
        assert put.queue_offset == expected or (damaged and put.queue_offset > expected)
        assert store.look_message(put.physical_offset).body == body, "a put was lost"
        puts.append((topic, queues[0], put.queue_offset))
    dispatch_all(store)
    for topic, queue_id, queue_offset in puts:
        end = store.max_offset_in_queue(topic, queue_id)
        assert end == queue_offset + 1, f"queue ends at {end}, the put is {queue_offset}"


def _check_reads(store: Store, records: list[LogRecord]) -> None:
    """What the store answers by queue and by key is what the files hold."""
    for record in records:
        got = store.get_message(record.topic, record.queue_id, record.queue_offset, 1)
        assert got.physical_offsets == [record.physical_offset], f"{got} for {record}"
        for key in record.keys:
            if key != "shared":
                answer = store.query_message(record.topic, key)
                offsets = list(answer.physical_offsets)
                assert offsets == [record.physical_offset], f"{key}: {offsets} for {record}"
