"""Many threads on one topic, and readers in other processes than the writer's."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest

import rocketcompat
import tubestore
from rocketcompat.check.whole import check_store
from rocketcompat.inspect.directory import StoreDirectory
from tests.proof.explorer.explore import seed_from_environment
from tests.proof.kill_child import CONFIG, SHARDS, body_of
from tests.support import REPOSITORY
from tubestore.offline.check import check
from tubestore.options import DURABILITIES
from tubestore.store.manager import MessageStoreManager

pytestmark = pytest.mark.gate

WRITERS, READERS, ROUNDS, PARTITIONS = 8, 4, 60, 5
SMALL = {"segment_size_bytes": 16 << 10, "index_segment_size_bytes": 28 * 100}
#: Buffers that are full often.
FEW = {"mem_store_messages": 50}
#: How often a reader beside a writing process looks, at least, and until it has seen so much.
LOOKS, SEEN = 15, 300


def write(topic: tubestore.Topic, writer: int, seed: int) -> int:
    """Append numbered messages of one writer, one by one and in batches; returns their number."""
    random = Random(seed + writer)
    number = 0
    for _ in range(ROUNDS):
        level = random.choice(DURABILITIES)
        count = random.choice((1, 1, 1, 20))
        bodies = [b"%d:%d" % (writer, number + n) for n in range(count)]
        partition = writer % PARTITIONS
        if count == 1:
            topic.append(bodies[0], partition=partition, durability=level)
        else:
            table = pa.table({"body": pa.array(bodies, pa.large_binary())})
            partitions = pa.array([partition] * count, pa.int32())
            topic.append_batch(table.append_column("partition", partitions), durability=level)
        number += count
    return number


def numbers_of(topic: tubestore.Topic) -> dict[int, list[int]]:
    """Return the numbers of every writer's messages as a scan shows them."""
    found: dict[int, list[int]] = {writer: [] for writer in range(WRITERS)}
    with topic.scan(columns=["body", "state"], verify=True) as reader:
        table = reader.read_all()
    assert set(table["state"].to_pylist()) <= {"ok"}
    for body in table["body"].to_pylist():
        writer, number = body.split(b":")
        found[int(writer)].append(int(number))
    return found


def test_eight_writers_and_four_readers_see_every_message_once_and_in_order(
    tmp_path: Path,
) -> None:
    seed = seed_from_environment()
    print(f"CRASH_SEED={seed}")
    done = threading.Event()
    with tubestore.open(tmp_path, **SMALL) as store:
        topic = store.create_topic("t", partitions=PARTITIONS)

        def read() -> int:
            before = dict.fromkeys(range(WRITERS), 0)
            looks = 0
            while not done.is_set() or not looks:
                for writer, numbers in numbers_of(topic).items():
                    assert numbers == list(range(len(numbers))), f"writer {writer}"
                    assert len(numbers) >= before[writer], "messages went away"
                    before[writer] = len(numbers)
                looks += 1
            return looks

        with ThreadPoolExecutor(WRITERS + READERS) as threads:
            readers = [threads.submit(read) for _ in range(READERS)]
            writers = [threads.submit(write, topic, n, seed) for n in range(WRITERS)]
            try:
                counts = [writer.result() for writer in writers]
            finally:
                done.set()
            assert all(reader.result() for reader in readers)
        assert [len(n) for n in numbers_of(topic).values()] == counts
    with tubestore.open(tmp_path, mode="r") as again:
        assert {w: len(n) for w, n in numbers_of(again["t"]).items()} == dict(enumerate(counts))
    assert list(check(tmp_path)) == []


def write_mixed(store: MessageStoreManager, writer: int, seed: int) -> int:
    """Append numbered messages of one writer, one to each topic a batch; returns their number."""
    random = Random(seed + writer)
    for number in range(ROUNDS):
        level = random.choice(("page_cache", "page_cache", "fsync", "memory"))
        rows = [{"topic": name, "body": b"%d:%d" % (writer, number)} for name in store.topics()]
        if random.random() < 0.7:
            store.append_batch(rows, durability=level)
        else:
            for row in rows:
                store[row["topic"]].append(row["body"], durability=level)
    return ROUNDS


def test_writers_over_many_topics_and_readers_of_each_see_every_message_once_and_in_order(
    tmp_path: Path,
) -> None:
    seed = seed_from_environment()
    print(f"CRASH_SEED={seed}")
    done = threading.Event()
    with tubestore.open(tmp_path, **SMALL, journal_size_bytes=20_000, **FEW) as store:
        topics = [store.create_topic(f"t{n:02d}", partitions=PARTITIONS) for n in range(12)]

        def read(reader: int) -> int:
            looks = 0
            while not done.is_set() or not looks:
                for topic in topics[reader::READERS]:
                    for writer, numbers in numbers_of(topic).items():
                        assert numbers == list(range(len(numbers))), f"writer {writer}"
                store.stats()
                looks += 1
            return looks

        with ThreadPoolExecutor(4 + READERS) as threads:
            readers = [threads.submit(read, n) for n in range(READERS)]
            writers = [threads.submit(write_mixed, store, n, seed) for n in range(4)]
            try:
                counts = [writer.result() for writer in writers]
            finally:
                done.set()
            assert all(reader.result() for reader in readers)
    with tubestore.open(tmp_path, mode="r") as again:
        for name in again.topics():
            assert [len(n) for n in numbers_of(again[name]).values()][:4] == counts
    assert list(check(tmp_path)) == []


@contextmanager
def writing(kind: str, root: Path, seed: int) -> Iterator[Callable[[], int]]:
    """Run a process that writes to `root`; yields a function that reads what it acknowledged."""
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.proof.kill_child", kind, str(root), "0", str(seed)],
        stdout=subprocess.PIPE,
        cwd=REPOSITORY,
    )
    acknowledged = 0

    def acknowledge() -> int:
        nonlocal acknowledged
        assert child.stdout is not None
        for _ in range(40):
            assert child.stdout.readline(), "the writer ended"
            acknowledged += 1
        return acknowledged

    try:
        yield acknowledge
    finally:
        child.kill()
        assert child.stdout is not None
        child.stdout.close()
        child.wait()


def assert_in_order(rows: list[tuple[str, int, bytes]]) -> int:
    """Bodies are what the writer sent, and rise within a partition; returns how many there are."""
    last: dict[tuple[str, int], int] = {}
    for topic, partition, body in rows:
        number = int(body[:8])
        assert body == body_of(number), f"invented: {body!r}"
        assert number > last.get((topic, partition), -1), f"out of order: {number}"
        last[topic, partition] = number
    return len(rows)


@pytest.mark.crash
def test_a_reader_of_another_process_sees_a_prefix_and_no_damage(tmp_path: Path) -> None:
    seed = seed_from_environment()
    print(f"CRASH_SEED={seed}")
    with writing("engine", tmp_path, seed) as acknowledge:
        acknowledge()
        with tubestore.open(tmp_path, mode="r", **SHARDS) as store:
            looks = seen = 0
            while looks < LOOKS or seen < SEEN:
                least = acknowledge()
                store.refresh()
                rows = []
                for topic in store.topics():
                    columns = ["partition", "body", "state"]
                    with store[topic].scan(columns=columns, verify=True) as reader:
                        for row in reader.read_all().to_pylist():
                            assert row["state"] == "ok", f"a live tail is called damaged: {row}"
                            rows.append((topic, row["partition"], row["body"]))
                now = assert_in_order(rows)
                assert now >= max(seen, least), "what was acknowledged is not seen"
                looks, seen = looks + 1, now
        for finding in check(tmp_path, is_written=lambda: True):
            raise AssertionError(f"check calls a live store damaged: {finding}")


@pytest.mark.crash
def test_a_reader_of_a_rocketmq_store_sees_a_prefix_and_no_damage(tmp_path: Path) -> None:
    seed = seed_from_environment()
    print(f"CRASH_SEED={seed}")
    with writing("stack", tmp_path, seed) as acknowledge:
        acknowledge()
        with rocketcompat.open(tmp_path, mode="r", config=CONFIG) as store:
            looks = seen = 0
            while looks < LOOKS or seen < SEEN:
                least = acknowledge()
                store.refresh()
                assert store.problems == []
                rows, offset = [], store.min_physical_offset
                while offset < store.max_physical_offset:
                    record = store.look_message(offset)
                    rows.append((record.topic, record.queue_id, record.body))
                    offset = next_record(store, offset + record.size)
                now = assert_in_order(rows)
                assert now >= max(seen, least), "what was acknowledged is not seen"
                looks, seen = looks + 1, now
        findings = list(check_store(StoreDirectory(tmp_path)))
    assert [f for f in findings if f["severity"] == "error"] == []


def next_record(store: rocketcompat.DefaultMessageStore, offset: int) -> int:
    """Return where the record behind `offset` starts: in the next file, if this one is full."""
    size = CONFIG.mapped_file_size_commit_log
    if offset < store.max_physical_offset and offset % size:
        try:
            store.look_message(offset)
        except tubestore.CorruptRecord:
            return offset - offset % size + size
    return offset
