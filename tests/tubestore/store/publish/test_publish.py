"""Publishing: files that come ready-made become part of shards in one step, once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tubestore
from tests.support.publishing import (
    CLOCK,
    ROOT,
    SMALL,
    batch,
    bodies,
    numbered,
    open_store,
    some,
    stage,
)
from tests.support.publishing import store as store
from tests.support.publishing import vfs as vfs
from tests.support.tube import columns_of, make_rows
from tubestore.errors import (
    InvalidMessage,
    JobTaken,
    UnknownTopic,
)
from tubestore.offline.check import check
from tubestore.staging.writer import StagedWriter
from tubestore.store.manager import engine_of
from tubestore.store.topic import shards_of
from tubestore.testing import MemoryVfs


def test_a_job_is_behind_what_was_there_and_before_what_comes(
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


def test_what_waits_in_the_buffers_is_before_the_job(
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


def test_a_job_that_comes_again_with_other_messages_is_refused_and_keeps_them_staged(
    vfs: MemoryVfs, store: tubestore.MessageStoreManager
) -> None:
    store.publish("load", stage(vfs, "load", batch(numbered(3))))
    other = stage(vfs, "load", batch(numbered(4)), attempt="1")
    with pytest.raises(JobTaken, match="published with 3 messages, and 4 are staged now"):
        store.publish("load", other)
    assert len(bodies(store)) == 3
    assert any("/staging/" in path for path in vfs.tree())


def test_a_job_that_comes_again_with_as_many_other_bodies_or_topics_is_refused(
    vfs: MemoryVfs, store: tubestore.MessageStoreManager
) -> None:
    store.publish("load", stage(vfs, "load", batch(numbered(3)), attempt="first"))
    for number, other in enumerate([batch(numbered(3, 1)), batch(numbered(3), topic="b")]):
        staged = stage(vfs, "load", other, attempt=f"{number}")
        with pytest.raises(JobTaken, match="published with 3 messages, and other ones are staged"):
            store.publish("load", staged)
    # The same messages in other files and another order are the same job.
    parts = [
        one
        for task, some_of_them in enumerate([numbered(2, 1), numbered(1)])
        for one in stage(vfs, "load", batch(some_of_them), attempt=f"again-{task}")
    ]
    assert store.publish("load", parts).replayed
    assert sorted(bodies(store)) == numbered(3)


def test_a_job_of_writers_that_did_not_sum_up_counts_as_a_repetition(
    vfs: MemoryVfs, store: tubestore.MessageStoreManager
) -> None:
    with StagedWriter(ROOT, "load", "0", vfs=vfs, clock=CLOCK, content=False) as writer:
        writer.write(batch(numbered(3)))
        store.publish("load", writer.finish())
    assert store.publish("load", stage(vfs, "load", batch(numbered(3, 1)), attempt="1")).replayed
    assert bodies(store) == numbered(3)


def test_a_job_whose_record_is_gone_is_still_known(
    vfs: MemoryVfs, store: tubestore.MessageStoreManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tubestore.staging.commit_records.RECORDS_KEPT", 2)
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
    engine_of(store).abandon("killed")
    vfs.release_locks()
    with open_store(vfs) as again:
        shard = shards_of(again["a"]).writable(0)
        assert shard.recovered.verified == 0
        assert len(bodies(again)) == 9


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
        digests = sorted(path.name for path in (tmp_path / "a-0" / ".tubestore").glob("*.digests"))
        assert len(digests) == 2 * 3  # all files but the last of each stream, at once
        for task in range(4):
            found = [m.body for m in store["a"].messages(task)]
            assert found == [b"%d %d " % (task, n) + body for n in range(20)]
        assert {
            row["state"]
            for row in store["a"].scan(columns=["state"], verify=True).read_all().to_pylist()
        } == {"ok"}
    assert list(check(str(tmp_path))) == []
