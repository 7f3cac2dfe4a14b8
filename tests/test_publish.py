"""Publishing: files that come ready-made become part of shards in one step, once."""

from __future__ import annotations

import contextlib
import errno
import itertools
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import numpy as np
import pytest

import tubestore
from tests.support.tube import columns_of, make_rows
from tubestore.check import check
from tubestore.clock import ManualClock
from tubestore.commit_records import CommitRecords
from tubestore.errors import (
    DiskFull,
    InvalidMessage,
    InvalidName,
    ReadOnlyStore,
    StoreClosed,
    StoreFailed,
    StoreLocked,
    UnknownTopic,
)
from tubestore.job_files import StagedFile
from tubestore.options import StoreOptions
from tubestore.records import ENTRY_SIZE
from tubestore.staging import StagedWriter
from tubestore.testing import FaultyVfs, MemoryVfs
from tubestore.vfs import Vfs

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


def test_a_job_stands_behind_what_was_there_and_before_what_comes(
    vfs: MemoryVfs, store: tubestore.MessageStoreManager
) -> None:
    store["a"].append(b"before", partition=0)
    result = store.publish("j", stage(vfs, "j", batch(numbered(9))))
    store["a"].append(b"after", partition=0)
    assert (result.rows, result.number, result.replayed) == (9, 1, False)
    first = [b"message %d" % n for n in (0, 1, 3, 4, 6, 7)]
    assert bodies(store) == [b"before", *first, b"after", *[b"message %d" % n for n in (2, 5, 8)]]
    store.close()
    with open_store(vfs) as again:
        assert len(bodies(again)) == 11
        assert again.problems == []
    assert list(check(ROOT, vfs=vfs)) == []


def test_what_waits_in_the_buffers_stands_before_the_job(
    vfs: MemoryVfs, store: tubestore.MessageStoreManager
) -> None:
    ack = store["a"].append(b"in memory", partition=1, durability="memory")
    store.publish("j", stage(vfs, "j", batch([b"published"])))
    assert store["a"].message_at(1, ack.offset).body == b"in memory"  # type: ignore[union-attr]
    assert bodies(store) == [b"in memory", b"published"]


def test_each_partition_reads_its_part_at_its_offsets(
    vfs: MemoryVfs, store: tubestore.MessageStoreManager
) -> None:
    store.publish("j", stage(vfs, "j", *some(30), **SMALL))
    places = (0, 1, 10_002, 0, 1) * 6
    for partition in (0, 1, 10_002):
        page = store["a"].read(partition)
        expected = [b"message %d" % n for n in range(30) if places[n] == partition]
        assert [m.body for m in page] == expected
        for message in page:
            found = store["a"].message_at(partition, message.offset)
            assert found is not None
            assert found.body == message.body


def test_files_follow_each_other_in_the_order_given(
    vfs: MemoryVfs, store: tubestore.MessageStoreManager
) -> None:
    staged = [
        file
        for task in (2, 0, 1)
        for file in stage(
            vfs, "j", *some(20, task * 20, partitions=(0,)), attempt=str(task), **SMALL
        )
    ]
    assert len(staged) > 6
    store.publish("j", staged)
    assert bodies(store) == numbered(20, 40) + numbered(20, 0) + numbered(20, 20)


def test_a_job_is_published_once_for_ever(
    vfs: MemoryVfs, store: tubestore.MessageStoreManager
) -> None:
    first = store.publish("q:1", stage(vfs, "q:1", batch(numbered(3))))
    again = store.publish("q:1", stage(vfs, "q:1", batch(numbered(3)), attempt="1"))
    assert again.replayed
    assert again.files == first.files
    store.close()
    with open_store(vfs) as later:
        assert later.publish("q:1", []).files == first.files
        assert len(bodies(later)) == 3
    assert not any("/staging/" in path for path in vfs.tree())


def test_a_job_whose_record_is_gone_is_still_known(
    vfs: MemoryVfs, store: tubestore.MessageStoreManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tubestore.commit_records.RECORDS_KEPT", 2)
    for number in range(5):
        store.publish(f"q:{number}", stage(vfs, f"q:{number}", batch([b"%d" % number])))
    known = store.publish("q:0", stage(vfs, "q:0", batch([b"again"])))
    assert (known.replayed, known.number, known.files) == (True, 0, ())
    assert bodies(store) == [b"%d" % n for n in range(5)]


def test_a_job_without_rows_counts_as_published(store: tubestore.MessageStoreManager) -> None:
    assert store.publish("empty", []).rows == 0
    assert store.publish("empty", []).replayed


def test_messages_without_ids_get_some_that_no_other_has(
    vfs: MemoryVfs, store: tubestore.MessageStoreManager
) -> None:
    for number in range(10):
        store["a"].append(b"%d" % number)
    store.publish("j", stage(vfs, "j", *some(30), **SMALL))
    store["a"].append(b"after")
    ids = store["a"].scan(columns=["msg_id"]).read_all()["msg_id"].to_pylist()
    assert len(ids) == len(set(ids)) == 41


def test_ids_that_were_given_stay(vfs: MemoryVfs, store: tubestore.MessageStoreManager) -> None:
    with StagedWriter(ROOT, "j", "0", vfs=vfs, clock=CLOCK) as writer:
        writer.write_columns("a", columns_of(make_rows(20)))
        store.publish("j", writer.finish())
    assert store["a"].scan(columns=["msg_id"]).read_all()["msg_id"].to_pylist() == list(range(20))


def test_topics_are_made_when_that_is_asked_for(
    vfs: MemoryVfs, store: tubestore.MessageStoreManager
) -> None:
    staged = stage(vfs, "j", batch([b"x"], "new", (10_004,)), batch([b"y"], "b", (3,)))
    with pytest.raises(UnknownTopic):
        store.publish("j", staged)
    store.publish("j", staged, create_topics=True)
    assert (store["new"].options.partitions, store["new"].options.stores) == (5, 2)
    assert store["b"].options.partitions == 4
    assert (bodies(store, "new"), bodies(store, "b")) == ([b"x"], [b"y"])


def test_a_partition_that_the_topic_lacks_is_refused(
    vfs: MemoryVfs, store: tubestore.MessageStoreManager
) -> None:
    staged = stage(vfs, "j", batch([b"y"], "b", (3,)))
    with pytest.raises(InvalidMessage, match="the job needs"):
        store.publish("j", staged)


def test_an_empty_live_file_is_replaced(
    vfs: MemoryVfs, store: tubestore.MessageStoreManager
) -> None:
    store.close()
    with open_store(vfs, **SMALL) as small:
        for _ in range(5):  # data and index roll after the fifth
            small["a"].append(b"x" * 80, partition=0)
        small["a"].flush()
        assert any(path.endswith(".index") and not data for path, data in vfs.tree().items())
        assert any(path.endswith(".tube") and not data for path, data in vfs.tree().items())
        small.publish("j", stage(vfs, "j", batch(numbered(2), partitions=(0,))))
        small["a"].append(b"after", partition=0)
        assert bodies(small)[5:] == [*numbered(2), b"after"]
        assert small["a"].read(0).table.num_rows == 8
    assert list(check(ROOT, vfs=vfs)) == []


def test_the_next_opening_verifies_nothing_again(
    vfs: MemoryVfs, store: tubestore.MessageStoreManager
) -> None:
    store.publish("j", stage(vfs, "j", batch(numbered(9), partitions=(0,))))
    store.abandon("killed")
    vfs.release_locks()
    with open_store(vfs) as again:
        shard = again["a"].writable(0)
        assert shard.recovered.verified == 0
        assert len(bodies(again)) == 9


# -- refused before anything has changed -------------------------------------------------------


def tamper(vfs: MemoryVfs, file: StagedFile, suffix: str, change: Callable[[bytes], bytes]) -> None:
    path = f"{ROOT}/.tubestore/staging/job-j/{file.name}{suffix}"
    vfs.replace_file(path, change(vfs.read_file(path)))


def flipped(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


@pytest.mark.parametrize("suffix", [".tube", ".index"])
@pytest.mark.parametrize("change", [flipped, lambda data: data[:-1], lambda data: data + b"\0"])
def test_a_staged_file_that_is_not_what_was_staged_is_refused(
    vfs: MemoryVfs,
    store: tubestore.MessageStoreManager,
    suffix: str,
    change: Callable[[bytes], bytes],
) -> None:
    store["a"].append(b"before", partition=0)
    staged = stage(vfs, "j", batch(numbered(9)))
    tamper(vfs, staged[1], suffix, change)
    with pytest.raises(InvalidMessage, match="staged"):
        store.publish("j", staged)
    store["a"].append(b"after", partition=0)
    assert bodies(store) == [b"before", b"after"]
    good = stage(vfs, "j", batch(numbered(9)), attempt="1")
    assert store.publish("j", good).rows == 9


def test_what_is_missing_given_twice_or_nonsense_is_refused(
    vfs: MemoryVfs, store: tubestore.MessageStoreManager
) -> None:
    staged = stage(vfs, "j", batch(numbered(3)))
    with pytest.raises(InvalidMessage, match="is missing"):
        store.publish("other", staged)
    with pytest.raises(InvalidMessage, match="twice"):
        store.publish("j", [*staged, staged[0]])
    with pytest.raises(InvalidMessage, match="description"):
        store.publish("j", [{"topic": "a"}])
    with pytest.raises(InvalidName):
        store.publish("", staged)
    lying = {**staged[0].as_json(), "store_id": 1}
    with pytest.raises(InvalidMessage, match="index"):
        store.publish("j", [lying])
    assert store.publish("j", [f.as_json() for f in staged]).rows == 3


def test_a_reading_store_and_a_closed_one_publish_nothing(
    vfs: MemoryVfs, store: tubestore.MessageStoreManager
) -> None:
    staged = stage(vfs, "j", batch([b"x"]))
    with open_store(vfs, "r") as reader, pytest.raises(ReadOnlyStore):
        reader.publish("j", staged)
    store.close()
    with pytest.raises(StoreClosed):
        store.publish("j", staged)


def test_somebody_else_who_publishes_is_noticed(
    vfs: MemoryVfs, store: tubestore.MessageStoreManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged = stage(vfs, "j", batch([b"x"]))
    other = CommitRecords(vfs, ROOT)
    draft = CommitRecords.draft

    def race(self: CommitRecords, record: Any) -> None:
        draft(self, record)
        vfs.link(f"{self.path(1)}.tmp", self.path(1))

    monkeypatch.setattr(CommitRecords, "draft", race)
    with pytest.raises(StoreLocked):
        store.publish("j", staged)
    assert other.finished() == 0
    store["a"].append(b"goes on", partition=0)


# -- trouble -----------------------------------------------------------------------------------


def test_a_failure_before_the_record_changes_nothing(vfs: MemoryVfs) -> None:
    calls = _calls_until_the_record(vfs)
    assert len(calls) > 10
    for (call, nth), number in itertools.product(calls, (errno.EIO, errno.ENOSPC)):
        inner = MemoryVfs(CLOCK)
        faulty = FaultyVfs(inner)
        store = open_store(faulty)
        store.create_topic("a", partitions=3, stores=2)
        store["a"].append(b"before", partition=0)
        staged = stage(inner, "j", batch(numbered(9)))
        faulty.fail(call, nth=nth, error=number)
        with pytest.raises((StoreFailed, DiskFull)):
            store.publish("j", staged)
        faulty.heal()
        assert CommitRecords(inner, ROOT).pending() is None, (call, nth)
        with contextlib.suppress(StoreFailed):  # a shard that could not be synced
            store.publish("j", staged)
        with contextlib.suppress(StoreFailed):
            store.close()
        with open_store(inner) as again:
            assert again.publish("j", staged).rows == 9
            assert len(bodies(again)) == 10


def _calls_until_the_record(vfs: MemoryVfs) -> list[tuple[str, int]]:
    """Every fallible call of a publish before its link, as (kind, number of that kind)."""
    calls: list[tuple[str, int]] = []

    class Watching(FaultyVfs):
        on = False

        def _pass(self, call: str, path: str) -> Any:
            if self.on:
                calls.append((call, sum(c == call for c, _ in calls) + 1))
            return super()._pass(call, path)

    watching = Watching(vfs)
    with open_store(watching) as store:
        store.create_topic("a", partitions=3, stores=2)
        store["a"].append(b"before", partition=0)
        staged = stage(vfs, "j", batch(numbered(9)))
        Watching.on = True
        store.publish("j", staged)
        Watching.on = False
    link = next(n for n, (call, _) in enumerate(calls) if call == "link")
    return [c for c in calls[:link] if c[0] not in ("read_file", "entries")]


@pytest.mark.parametrize("call", ["link", "sync_directory", "rename", "replace_file", "open"])
def test_a_failure_after_the_record_fails_the_shards_until_they_are_reopened(call: str) -> None:
    inner = MemoryVfs(CLOCK)
    faulty = FaultyVfs(inner)
    store = open_store(faulty)
    store.create_topic("a", partitions=3, stores=2)
    store.create_topic("b")
    store["a"].append(b"before", partition=0)
    staged = stage(inner, "j", batch(numbered(9)))
    link = inner.link

    def fail_from_here(source: str, target: str) -> None:
        link(source, target)
        faulty.fail(call, forever=True)
        if call == "link":
            raise OSError(errno.EIO, "after it was done")

    inner.link = fail_from_here  # type: ignore[method-assign]
    with pytest.raises(StoreFailed):
        store.publish("j", staged)
    faulty.heal()
    with pytest.raises(StoreFailed):
        store["a"].append(b"x", partition=0)
    with pytest.raises(StoreFailed):
        store.publish("k", [])
    assert bodies(store) == [b"before"]
    store["b"].append(b"other shards go on")
    with pytest.raises(StoreFailed):
        store.close()
    with open_store(inner) as again:
        assert len(bodies(again)) == 10
        assert again.publish("j", staged).replayed
    assert list(check(ROOT, vfs=inner)) == []


def test_appends_wait_while_a_job_is_published_and_then_go_on(vfs: MemoryVfs) -> None:
    class Waiting(FaultyVfs):
        reached, go = threading.Event(), threading.Event()

        def link(self, source: str, target: str) -> None:
            self.reached.set()
            assert self.go.wait(10)
            super().link(source, target)

    waiting = Waiting(vfs)
    with open_store(waiting, background=True, append_timeout_ms=0, clock=None) as store:
        store.create_topic("a", partitions=3, stores=2)
        store["a"].append(b"before", partition=0)
        staged = stage(vfs, "j", batch(numbered(3), partitions=(0,)))
        publisher = threading.Thread(target=store.publish, args=("j", staged))
        publisher.start()
        assert waiting.reached.wait(10)
        appended: list[tubestore.Ack] = []
        appenders = [
            threading.Thread(
                target=lambda level=level: appended.append(
                    store["a"].append(b"meanwhile", partition=0, durability=level)
                )
            )
            for level in ("memory", "page_cache", "fsync")
        ]
        for thread in appenders:
            thread.start()
        other = store["a"].append(b"another shard", partition=10_000)
        assert bodies(store) == [b"before", b"another shard"]
        assert appended == []
        assert other.offset == 0
        waiting.go.set()
        for thread in (publisher, *appenders):
            thread.join(10)
        assert sorted(a.offset for a in appended) == [4 * 28, 5 * 28, 6 * 28]
        assert bodies(store) == [b"before", *numbered(3), *[b"meanwhile"] * 3, b"another shard"]


# -- readers -----------------------------------------------------------------------------------


def test_a_reader_sees_a_job_after_a_refresh_in_all_topics_at_once(
    vfs: MemoryVfs, store: tubestore.MessageStoreManager
) -> None:
    store["a"].append(b"before", partition=0)
    store["b"].append(b"before", partition=0)
    with open_store(vfs, "r") as reader:
        assert bodies(reader, "a") == [b"before"]
        job = [batch(numbered(3)), batch(numbered(2), "b", (1,))]
        store.publish("j", stage(vfs, "j", *job))
        store["b"].append(b"after", partition=0)
        assert bodies(reader, "b") == [b"before"]  # opened only now
        assert bodies(reader, "a") == [b"before"]
        reader.refresh()
        assert len(bodies(reader, "a")) == 4
        assert bodies(reader, "b") == [b"before", *numbered(2), b"after"]


def test_a_reader_that_follows_one_topic_sees_no_half_of_another(
    vfs: MemoryVfs, store: tubestore.MessageStoreManager
) -> None:
    with open_store(vfs, "r") as reader:
        job = [batch(numbered(3)), batch(numbered(2), "b", (1,))]
        assert bodies(reader, "b") == []
        store.publish("j", stage(vfs, "j", *job))
        reader.refresh_topic(reader["a"])
        assert len(bodies(reader, "a")) == 3
        assert bodies(reader, "b") == []


def test_a_job_that_is_half_published_is_not_seen_until_it_is_finished(
    monkeypatch: pytest.MonkeyPatch, vfs: MemoryVfs, store: tubestore.MessageStoreManager
) -> None:
    store["a"].append(b"before", partition=0)
    staged = stage(vfs, "j", *some(30), **SMALL)
    rename = vfs.rename
    seen = []

    def look(source: str, target: str) -> None:
        rename(source, target)
        with open_store(vfs, "r") as reader:
            seen.append(len(bodies(reader)))

    monkeypatch.setattr(vfs, "rename", look)
    store.publish("j", staged)
    monkeypatch.undo()
    assert len(seen) > 10
    assert set(seen) == {1, 31}
    assert seen == sorted(seen)
    assert bodies(store)[0] == b"before"


def test_a_scan_in_the_same_process_sees_all_of_a_job_or_nothing(vfs: MemoryVfs) -> None:
    done = threading.Event()
    counts: list[int] = []
    with open_store(vfs) as store:
        store.create_topic("a", partitions=1, stores=8)

        def look() -> None:
            while not done.is_set():
                counts.append(store["a"].scan(columns=["offset"]).read_all().num_rows)

        thread = threading.Thread(target=look)
        thread.start()
        partitions = tuple(store_id * 10_000 for store_id in range(8))
        for number in range(20):
            job = f"j:{number}"
            store.publish(job, stage(vfs, job, batch(numbered(8), partitions=partitions)))
        done.set()
        thread.join(10)
        counts.append(store["a"].scan(columns=["offset"]).read_all().num_rows)
    assert counts[-1] == 160
    assert all(count % 8 == 0 for count in counts)


def test_a_scan_that_begins_before_a_job_makes_shards_sees_all_of_it(
    vfs: MemoryVfs, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_store(vfs) as store:
        store.create_topic("a", partitions=1, stores=8).append(b"before", partition=0)
        partitions = tuple(store_id * 10_000 for store_id in range(8))
        staged = stage(vfs, "j", batch(numbered(8), partitions=partitions))
        showing = store.showing

        def showing_later() -> Any:
            monkeypatch.undo()
            store.publish("j", staged)
            return showing()

        monkeypatch.setattr(store, "showing", showing_later)
        assert store["a"].scan(columns=["offset"]).read_all().num_rows == 9


# -- what is left ------------------------------------------------------------------------------


def test_a_job_that_is_given_up_leaves_nothing(
    vfs: MemoryVfs, store: tubestore.MessageStoreManager
) -> None:
    staged = stage(vfs, "j", batch(numbered(3)))
    assert store.abort("j") is None
    assert not any("/staging/" in path for path in vfs.tree())
    with pytest.raises(InvalidMessage, match="missing"):
        store.publish("j", staged)
    assert store.abort("j") is None


def test_giving_up_a_job_that_is_there_returns_what_became_of_it(
    vfs: MemoryVfs, store: tubestore.MessageStoreManager
) -> None:
    result = store.publish("j", stage(vfs, "j", batch(numbered(3))))
    known = store.abort("j")
    assert known is not None
    assert known.files == result.files
    assert len(bodies(store)) == 3


def test_the_janitor_removes_what_nobody_has_written_to_for_a_day(vfs: MemoryVfs) -> None:
    clock = ManualClock()
    vfs = MemoryVfs(clock)
    with open_store(vfs, clock=clock) as store:
        store.create_topic("a", partitions=3, stores=2)
        stage(vfs, "given up", batch([b"x"]))
        clock.advance(23 * 3600 * 1000)
        stage(vfs, "still writing", batch([b"x"]))
        clock.advance(2 * 3600 * 1000)
        assert store.clean_staging() == ["job-given%20up"]
        assert store.clean_staging(timedelta(days=7)) == []
        assert store.clean_staging(timedelta(0)) == ["job-still%20writing"]
    assert not any("/staging/" in path for path in vfs.tree())


def test_the_background_removes_what_was_staged_and_given_up_a_day_ago() -> None:
    clock = ManualClock()
    vfs = MemoryVfs(clock)
    with open_store(vfs, clock=clock) as store:
        store.create_topic("a", partitions=3, stores=2)
        stage(vfs, "given up", batch([b"x"]))
        clock.advance(23 * 3600 * 1000)
        staged = stage(vfs, "in time", batch([b"y"]))
        store.maintain()
        assert job_directories(vfs) == ["job-given%20up", "job-in%20time"]
        clock.advance(2 * 3600 * 1000)
        store.maintain()
        assert job_directories(vfs) == ["job-in%20time"]
        assert store.publish("in time", staged).rows == 1


def test_a_lease_that_holds_everything_holds_what_is_staged_too() -> None:
    clock = ManualClock()
    vfs = MemoryVfs(clock)
    with open_store(vfs, clock=clock, staging_grace_ms=1000) as store:
        store.create_topic("a", partitions=3, stores=2)
        stage(vfs, "j", batch([b"x"]))
        vfs.make_directories(f"{ROOT}/.tubestore/leases")
        lease = f"{ROOT}/.tubestore/leases/newer.json"
        clock.advance(3600_000)
        vfs.replace_file(lease, b"of a newer version")
        store.maintain()
        assert job_directories(vfs) == ["job-j"]
        vfs.remove(lease)
        clock.advance(3600_000)
        store.maintain()
        assert job_directories(vfs) == []


def test_the_background_waits_for_a_job_that_is_being_published() -> None:
    clock = ManualClock()
    vfs = MemoryVfs(clock)
    with open_store(vfs, clock=clock) as store:
        stage(vfs, "j", batch([b"x"]))
        clock.advance(48 * 3600 * 1000)
        busy, done = threading.Event(), threading.Event()

        def publish() -> None:
            with store._topics.lock:
                busy.set()
                done.wait(30)

        thread = threading.Thread(target=publish)
        thread.start()
        busy.wait(30)
        store.maintain()
        assert job_directories(vfs) == ["job-j"]
        done.set()
        thread.join()
        clock.advance(3600_000)
        store.maintain()
        assert job_directories(vfs) == []


def job_directories(vfs: MemoryVfs) -> list[str]:
    return [name for name, _, _ in vfs.entries(f"{ROOT}/.tubestore/staging")]


def test_a_large_job_is_placed_by_several_threads(tmp_path: Any) -> None:
    body = np.random.default_rng(1).bytes(500_000)
    with tubestore.open(tmp_path) as store:
        store.create_topic("a", partitions=4)
        staged = []
        for task in range(4):
            with StagedWriter(tmp_path, "j", str(task)) as writer:
                for number in range(20):
                    writer.write(batch([b"%d %d " % (task, number) + body], partitions=(task,)))
                staged += writer.finish()
        store.publish("j", staged, threads=3)
        for task in range(4):
            found = [m.body for m in store["a"].messages(task)]
            assert found == [b"%d %d " % (task, n) + body for n in range(20)]
        assert {
            row["state"]
            for row in store["a"].scan(columns=["state"], verify=True).read_all().to_pylist()
        } == {"ok"}
    assert list(check(str(tmp_path))) == []
