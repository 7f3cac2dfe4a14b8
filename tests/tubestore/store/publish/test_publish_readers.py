"""Readers see all of a job or nothing of it."""

from __future__ import annotations

import threading

import pytest

import tubestore
from tests.support.publishing import SMALL, batch, bodies, numbered, open_store, some, stage
from tests.support.publishing import store as store
from tests.support.publishing import vfs as vfs
from tubestore.store.manager import engine_of
from tubestore.store.topic import shards_of
from tubestore.testing import MemoryVfs


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
        shards_of(reader["a"]).refresh()
        assert len(bodies(reader, "a")) == 3
        assert bodies(reader, "b") == []


def test_a_job_that_is_half_published_is_not_seen_until_it_is_finished(
    monkeypatch: pytest.MonkeyPatch, vfs: MemoryVfs, store: tubestore.MessageStoreManager
) -> None:
    store["a"].append(b"before", partition=0)
    staged = stage(vfs, "j", *some(90), **SMALL)
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
    assert set(seen) == {1, 91}
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
        opener = engine_of(store).opener

        class ShowingLater:
            def __enter__(self) -> None:
                monkeypatch.undo()
                store.publish("j", staged)

            def __exit__(self, *_: object) -> None:
                pass

        monkeypatch.setattr(opener, "showing", ShowingLater())
        assert store["a"].scan(columns=["offset"]).read_all().num_rows == 9
