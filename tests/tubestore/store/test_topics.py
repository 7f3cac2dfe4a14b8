"""Topics are created, changed and deleted in one step each, seen by readers at their refresh."""

from __future__ import annotations

import errno
import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import tubestore
from tests.support.crashes import some_states
from tests.support.engine.topics import bodies
from tests.support.tube import bodies as bodies_of
from tests.support.tube import make_rows, write_rows
from tubestore.clock import ManualClock
from tubestore.errors import (
    InvalidMessage,
    NotAStore,
    ReadOnlyStore,
    StoreClosed,
    StoreFailed,
    TopicExists,
    UnknownTopic,
)
from tubestore.offline.check import check
from tubestore.offline.repair import repair
from tubestore.store.manager import MessageStoreManager, engine_of
from tubestore.store.topic import shards_of
from tubestore.testing import CrashState, FaultyVfs, MemoryVfs

DAY = 86_400_000


def reopened(vfs: MemoryVfs, mode: Any = "w", **how: Any) -> MessageStoreManager:
    return tubestore.open("/store", mode, vfs=vfs, background=False, **how)


def shards_in(vfs: MemoryVfs, directory: str = "/store") -> list[str]:
    return [name for name, is_directory, _ in vfs.entries(directory) if "-" in name]


# -- settings --------------------------------------------------------------------------------
def test_settings_are_there_after_opening_again(
    store: MessageStoreManager, memory_vfs: MemoryVfs
) -> None:
    store.create_topic("t", partitions=3, max_age="7d", max_bytes=1 << 30)
    store.create_topic("u", max_age=timedelta(hours=2))
    store.create_topic("plain")
    store.close()
    with reopened(memory_vfs) as again:
        assert again["t"].options == tubestore.TopicOptions(
            partitions=3, max_age_ms=7 * DAY, max_bytes=1 << 30
        )
        assert again["u"].options.max_age_ms == 7_200_000
        assert again["plain"].options == tubestore.TopicOptions()
    state = json.loads(memory_vfs.read_file("/store/.tubestore/topics.json"))
    assert set(state["topics"]["plain"]) == {"partitions", "stores", "routing", "id"}


def test_settings_that_a_topic_does_not_have_are_named(store: MessageStoreManager) -> None:
    store.create_topic("t", partitions=4, max_age="7d")
    with pytest.raises(TopicExists) as refused:
        store.create_topic("t", partitions=3, max_age="1d", max_bytes="1GB", exist_ok=True)
    words = "partitions = 4 (not 3), max_age_ms = 604800000 (not 86400000), max_bytes = None"
    assert str(refused.value) == (
        f"topic 't': it has {words} (not 1000000000); change_topic changes settings"
    )


def test_the_delete_policy_of_tubemq_is_an_age(store: MessageStoreManager) -> None:
    assert store.create_topic("t", max_age="delete,168h").options.max_age_ms == 7 * DAY
    with pytest.raises(InvalidMessage, match="is not a valid age"):
        store.create_topic("u", max_age="delete")
    assert store.topics() == ["t"]


@pytest.mark.parametrize(
    "settings",
    [
        {"max_age": 0},
        {"max_bytes": 0},
        {"max_bytes": -1},
        {"max_age": "-7d"},
        {"max_bytes": 1 << 63},
        {"max_age": f"{1 << 62}ms"},
        {"max_age": "9" * 30 + "d"},
    ],
)
def test_impossible_bounds_make_no_topic(
    store: MessageStoreManager, settings: dict[str, Any]
) -> None:
    with pytest.raises(InvalidMessage):
        store.create_topic("t", **settings)
    assert store.topics() == []


@pytest.mark.parametrize("setting", ["max_age", "max_bytes"])
def test_the_largest_bounds_that_are_taken_can_be_read_again(
    store: MessageStoreManager, memory_vfs: MemoryVfs, setting: str
) -> None:
    largest: dict[str, Any] = {"max_age": f"{(1 << 62) - 1}ms", "max_bytes": (1 << 63) - 1}
    store.create_topic("t", **{setting: largest[setting]})
    store.close()
    with reopened(memory_vfs) as again:
        assert getattr(again["t"].options, f"{setting}_ms", again["t"].options.max_bytes)


def test_bounds_that_are_not_given_are_not_compared(store: MessageStoreManager) -> None:
    topic = store.create_topic("t", max_age="7d")
    assert store.create_topic("t", exist_ok=True) is topic
    assert store.create_topic("t", max_age="7d", exist_ok=True) is topic
    with pytest.raises(TopicExists, match="max_age_ms = 604800000"):
        store.create_topic("t", max_age="8d", exist_ok=True)
    assert topic.options.max_age_ms == 7 * DAY


# -- changing --------------------------------------------------------------------------------
def test_a_change_leaves_alone_what_is_not_given(
    store: MessageStoreManager, memory_vfs: MemoryVfs
) -> None:
    topic = store.create_topic("t", partitions=2, max_age="7d")
    assert store.change_topic("t", partitions=4) is topic
    assert store.change_topic("t", stores=3, max_bytes=5000) is topic
    assert store.change_topic("t", max_age=None) is topic
    expected = tubestore.TopicOptions(partitions=4, stores=3, max_bytes=5000)
    assert topic.options == expected
    store.close()
    with reopened(memory_vfs) as again:
        assert again["t"].options == expected


@pytest.mark.parametrize(
    "fewer", [{"partitions": 2}, {"stores": 1}, {"partitions": 9, "stores": 1}]
)
def test_partitions_and_shards_only_rise(
    store: MessageStoreManager, memory_vfs: MemoryVfs, fewer: dict[str, int]
) -> None:
    topic = store.create_topic("t", partitions=3, stores=2)
    before = memory_vfs.tree()
    with pytest.raises(InvalidMessage, match="only rise"):
        store.change_topic("t", **fewer)
    assert memory_vfs.tree() == before
    assert topic.options == tubestore.TopicOptions(partitions=3, stores=2)


def test_a_change_that_could_not_be_saved_is_none(memory_vfs: MemoryVfs) -> None:
    faulty = FaultyVfs(memory_vfs)
    with tubestore.open("/store", vfs=faulty, background=False) as store:
        topic = store.create_topic("t")
        faulty.fail("replace_file", error=errno.ENOSPC)
        with pytest.raises(OSError, match="No space"):
            store.change_topic("t", partitions=5)
        assert topic.options.partitions == 1
        store.change_topic("t", partitions=5)
        assert topic.options.partitions == 5


def test_a_topic_that_was_guessed_is_known_once_it_was_changed(memory_vfs: MemoryVfs) -> None:
    write_rows(memory_vfs, make_rows(20, partitions=3), "/store/t-0")
    write_rows(memory_vfs, make_rows(20, partitions=3), "/store/u-0")
    with reopened(memory_vfs) as store:
        store.change_topic("t", max_age="7d")
        store.ensure_topics({"v": tubestore.TopicOptions()})
    state = json.loads(memory_vfs.read_file("/store/.tubestore/topics.json"))
    assert sorted(state["topics"]) == ["t", "v"]
    assert state["topics"]["t"]["partitions"] == 3


def test_nothing_is_changed_in_an_unknown_topic_or_by_a_reader(
    store: MessageStoreManager, memory_vfs: MemoryVfs
) -> None:
    with pytest.raises(UnknownTopic):
        store.change_topic("t", partitions=2)
    with pytest.raises(UnknownTopic):
        store.delete_topic("t")
    store.create_topic("t")
    with reopened(memory_vfs, "r") as reader:
        for call in (reader.change_topic, reader.delete_topic, reader.create_topic):
            with pytest.raises(ReadOnlyStore):
                call("t")


# -- describing ------------------------------------------------------------------------------
def test_a_description_has_the_settings_and_a_row_a_shard(store: MessageStoreManager) -> None:
    topic = store.create_topic("t", partitions=2, stores=3)
    assert store.describe_topic("t").shards == ()
    for partition in (0, 1, 20_000):
        topic.append(b"12345", partition=partition)
    found = store.describe_topic("t")
    assert [(s.store_id, s.messages, s.data_files) for s in found.shards] == [(0, 2, 0), (2, 1, 0)]
    store.flush()
    found = store.describe_topic("t")
    assert (found.name, found.options) == ("t", topic.options)
    assert [s.store_id for s in found.shards] == [0, 2]
    first = found.shards[0]
    assert (first.first_offset, first.end_offset, first.messages) == (0, 56, 2)
    assert (first.data_bytes, first.index_bytes) == (2 * 57, 56)
    assert (first.data_files, first.index_files) == (1, 1)


def test_a_description_has_a_shard_that_is_in_memory_only(store: MessageStoreManager) -> None:
    topic = store.create_topic("t", stores=3)
    topic.append(b"12345", partition=20_000, durability="memory")
    assert bodies(topic, 10_000) == []  # looked at, and without a message
    found = [(s.store_id, s.messages, s.data_files) for s in store.describe_topic("t").shards]
    assert found == [(2, 1, 0)]


def test_a_topic_gets_an_id_of_its_own_when_the_clock_has_gone_back(memory_vfs: MemoryVfs) -> None:
    with reopened(memory_vfs, clock=ManualClock(9_000)) as store:
        ids = [store.create_topic(name).options.id for name in ("a", "b")]
    for now in (9_000, 5_000):
        with reopened(memory_vfs, clock=ManualClock(now)) as store:
            ids.append(store.create_topic(f"made-at-{now}").options.id)
    assert len(set(ids)) == 4


# -- deleting --------------------------------------------------------------------------------
def test_a_deleted_topic_is_gone_and_its_files_wait_in_the_trash(
    store: MessageStoreManager, memory_vfs: MemoryVfs, clock: ManualClock
) -> None:
    topic = store.create_topic("t", stores=3)
    other = store.create_topic("t-0")  # its shard is t-0-0
    for partition in (0, 20_000):
        topic.append(b"x", partition=partition)
    other.append(b"y")
    store.flush()
    store.delete_topic("t")
    assert store.topics() == ["t-0"]
    assert "t" not in store
    assert shards_in(memory_vfs) == ["t-0-0"]
    now = clock.now_ms()
    waiting = shards_in(memory_vfs, "/store/.tubestore/trash")
    assert waiting == [f"t-0.{now}", f"t-2.{now}"]
    assert bodies(other) == [b"y"]
    store.close()
    with reopened(memory_vfs) as again:
        assert again.topics() == ["t-0"]


def test_the_use_of_a_deleted_topic_is_an_error(store: MessageStoreManager) -> None:
    topic = store.create_topic("t", stores=2)
    topic.append(b"x", partition=0)
    topic.append(b"in memory", partition=0, durability="memory")
    view = shards_of(topic).shard(0).view()
    store.delete_topic("t")
    calls: list[Any] = [
        lambda: topic.append(b"x", partition=0),
        lambda: topic.append(b"x", partition=10_000),  # a shard that had not been opened
        lambda: topic.append_batch({"body": [b"x"]}),
        lambda: topic.read(0),
        topic.sync,
    ]
    for call in calls:
        with pytest.raises(StoreClosed, match="'t' was deleted"):
            call()
    with pytest.raises(UnknownTopic):
        store.topic("t")
    assert bodies_of(view) == [b"x", b"in memory"]
    store.sync()


def test_memory_of_a_deleted_topic_is_given_back(memory_vfs: MemoryVfs) -> None:
    with reopened(memory_vfs, memory_bound_bytes=200_000) as store:
        for _ in range(5):
            topic = store.create_topic("t")
            topic.append_batch({"body": [b"x" * 1000] * 100}, durability="memory")
            assert engine_of(store).context.pool.used > 0
            store.delete_topic("t")
            assert engine_of(store).context.pool.used == 0


def test_a_topic_of_the_same_name_starts_anew(
    store: MessageStoreManager, memory_vfs: MemoryVfs
) -> None:
    first = store.create_topic("t", partitions=5, max_age="7d")
    first.append(b"old", partition=4)
    first.flush()
    store.delete_topic("t")
    second = store.create_topic("t")
    assert second is not first
    assert second.options == tubestore.TopicOptions()
    assert second.append(b"new").offset == 0
    second.flush()
    assert second.options.id != first.options.id
    store.delete_topic("t")  # in the same millisecond
    assert len(shards_in(memory_vfs, "/store/.tubestore/trash")) == 2
    store.create_topic("t")
    assert bodies(store["t"]) == []


def test_a_topic_that_only_tubemq_knows_can_be_deleted(memory_vfs: MemoryVfs) -> None:
    write_rows(memory_vfs, make_rows(20), "/store/t-0")
    with reopened(memory_vfs) as store:
        store.delete_topic("t")
        assert store.topics() == []
    with reopened(memory_vfs) as store:
        assert store.topics() == []
    write_rows(memory_vfs, make_rows(3), "/store/t-0")  # the broker makes it again
    with reopened(memory_vfs) as store:
        assert store.topics() == ["t"]


def test_a_deletion_that_could_not_be_saved_is_none(memory_vfs: MemoryVfs) -> None:
    faulty = FaultyVfs(memory_vfs)
    with tubestore.open("/store", vfs=faulty, background=False) as store:
        topic = store.create_topic("t")
        topic.append(b"x")
        faulty.fail("replace_file", error=errno.ENOSPC)
        with pytest.raises(OSError, match="No space"):
            store.delete_topic("t")
        assert bodies(topic) == [b"x"]
        topic.append(b"y")
        assert store.topics() == ["t"]


@pytest.mark.parametrize(("call", "nth"), [("rename", 1), ("rename", 2), ("sync_directory", 1)])
def test_a_deletion_that_was_begun_is_finished_later(
    memory_vfs: MemoryVfs, call: str, nth: int
) -> None:
    faulty = FaultyVfs(memory_vfs)
    with tubestore.open("/store", vfs=faulty, background=False) as store:
        topic = store.create_topic("t", stores=2)
        topic.append(b"old", partition=0)
        topic.append(b"old", partition=10_000)
        store.sync()
        faulty.fail(call, nth=nth)
        with pytest.raises(OSError, match="Input/output"):
            store.delete_topic("t")
        assert store.topics() == []
        with reopened(memory_vfs, "r") as reader:
            assert reader.topics() == []
        again = store.create_topic("t", stores=2)
        assert bodies(again, 0) == bodies(again, 10_000) == []
    state = json.loads(memory_vfs.read_file("/store/.tubestore/topics.json"))
    assert "deleted" not in state


def test_the_next_opening_finishes_a_deletion(memory_vfs: MemoryVfs) -> None:
    faulty = FaultyVfs(memory_vfs)
    with tubestore.open("/store", vfs=faulty, background=False) as store:
        store.create_topic("t").append(b"x")
        store.flush()
        faulty.fail("rename", forever=True)
        with pytest.raises(OSError, match="Input/output"):
            store.delete_topic("t")
    assert shards_in(memory_vfs) == ["t-0"]
    with reopened(memory_vfs) as store:
        assert store.topics() == []
        assert shards_in(memory_vfs) == []


def test_a_full_disk_does_not_keep_a_topic_alive(memory_vfs: MemoryVfs) -> None:
    faulty = FaultyVfs(memory_vfs)
    with tubestore.open("/store", vfs=faulty, background=False) as store:
        store.create_topic("t").append(b"x")
        store.flush()
        faulty.fail("rename", error=errno.ENOSPC, forever=True)
        store.delete_topic("t")
        assert shards_in(memory_vfs) == []
        assert shards_in(memory_vfs, "/store/.tubestore/trash") == []


# -- readers in other processes --------------------------------------------------------------
def test_readers_see_new_changed_and_deleted_topics_at_their_refresh(tmp_path: Path) -> None:
    with (
        tubestore.open(tmp_path) as store,
        tubestore.open(tmp_path, mode="r") as reader,
    ):
        topic = store.create_topic("t")
        topic.append(b"x")
        reader.refresh()
        seen = reader["t"]
        assert bodies(seen) == [b"x"]

        store.change_topic("t", partitions=2, stores=2, max_age="7d")
        topic.append(b"far", partition=10_001)
        assert seen.options.partitions == 1
        reader.refresh()
        assert reader["t"] is seen
        assert seen.options == topic.options
        assert bodies(seen, 10_001) == [b"far"]

        store.delete_topic("t")
        assert bodies(seen) == [b"x"], "until its refresh a reader sees what it saw"
        reader.refresh()
        assert reader.topics() == []
        with pytest.raises(StoreClosed, match="'t' was deleted"):
            seen.read(0)


def test_a_reader_distinguishes_a_new_topic_from_the_former_one_of_its_name(tmp_path: Path) -> None:
    with (
        tubestore.open(tmp_path) as store,
        tubestore.open(tmp_path, mode="r") as reader,
    ):
        store.create_topic("t").append(b"old")
        reader.refresh()
        old = reader["t"]
        assert bodies(old) == [b"old"]
        store.delete_topic("t")
        store.create_topic("t").append(b"new")
        reader.refresh()
        assert reader["t"] is not old
        assert bodies(reader["t"]) == [b"new"]
        with pytest.raises(StoreClosed):
            old.read(0)


# -- crashes ---------------------------------------------------------------------------------
@pytest.mark.gate
@pytest.mark.crash
@pytest.mark.parametrize("seed", [1, 2])
def test_a_crash_leaves_every_change_of_topics_whole_or_undone(
    clock: ManualClock, seed: int
) -> None:
    vfs = MemoryVfs(clock)
    with reopened(vfs, clock=clock) as store:
        doomed = store.create_topic("doomed", stores=2)
        doomed.append(b"old", partition=0)
        doomed.append(b"old", partition=10_000)
        store.create_topic("stays").append(b"kept")
    store = reopened(vfs, clock=clock)
    journal = vfs.record()
    store.change_topic("stays", partitions=3)
    vfs.mark("changed")
    store.delete_topic("doomed")
    vfs.mark("deleted")
    store.create_topic("doomed", partitions=2).append(b"new", durability="fsync")
    vfs.mark("again")
    engine_of(store).abandon("killed")
    states = some_states(journal, 40, seed=seed, variants=10)
    for state in states:
        _check_state(state, clock)
    assert len(states) > 20


def _check_state(state: CrashState, clock: ManualClock) -> None:
    vfs = state.vfs(clock)
    with reopened(vfs, "r", clock=clock) as reader:
        seen = {name: reader[name].options.partitions for name in reader.topics()}
    with reopened(vfs, clock=clock) as store:
        found = {name: store[name].options.partitions for name in store.topics()}
        assert found == seen, f"a reader saw other topics: {state}"
        assert found.pop("stays") in ((3,) if "changed" in state.marks else (1, 3)), state
        assert bodies(store["stays"]) == [b"kept"], state
        rows = [bodies(store["doomed"], p) for p in (0, 1)] if found.get("doomed") == 2 else []
        if "again" in state.marks:
            assert found == {"doomed": 2}, state
            assert sorted(rows) == [[], [b"new"]], state
        elif rows:
            assert sorted(rows) in ([[], []], [[], [b"new"]]), state
        elif found:
            assert found == {"doomed": 1}, state
            assert "deleted" not in state.marks, state
            assert bodies(store["doomed"], 0) == bodies(store["doomed"], 10_000) == [b"old"], state
        left = {name.rpartition("-")[0] for name in shards_in(vfs)}
        assert left <= {"stays", *found}, f"shards without a topic: {left}, {state}"
    assert list(check("/store", vfs=vfs)) == [], state


def test_no_topic_is_deleted_under_a_job_that_is_half_published(
    store: MessageStoreManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opening the store again finishes the job; into which topic, if not this one?"""
    store.create_topic("t")
    monkeypatch.setattr("tubestore.staging.commit_records.CommitRecords.pending", lambda self: self)
    with pytest.raises(StoreFailed, match="not finished"):
        store.delete_topic("t")
    assert store.topics() == ["t"]


def test_one_shard_that_will_not_open_does_not_keep_the_others(memory_vfs: MemoryVfs) -> None:
    """TubeMQ's broker does not start then, with all its topics (weakness 7)."""
    small = {"segment_size_bytes": 100}
    with reopened(memory_vfs, **small) as store:
        for name in ("gap", "good"):
            topic = store.create_topic(name, stores=2)
            for number in range(6):
                for partition in (0, 10_000):
                    topic.append(b"%050d" % number, partition=partition)
                topic.flush()
    data = [path for path in memory_vfs.tree() if "/gap-0/" in path and path.endswith(".tube")]
    memory_vfs.remove(data[1])
    memory_vfs.open("/store/good-0/stray.tube", create=True)
    for mode in ("w", "r"):
        with reopened(memory_vfs, mode, **small) as store:
            with pytest.raises(NotAStore, match="does not start where the one before ends"):
                store["gap"].read(0)
            assert len(bodies(store["gap"], 10_000)) == 6
            assert len(bodies(store["good"], 0)) == 6
            if mode == "w":
                store.maintain()
                store.sync()


@pytest.mark.parametrize("mode", ["w", "r"])
def test_a_store_whose_settings_of_topics_are_gone_is_refused_until_repair_learns_them(
    memory_vfs: MemoryVfs, mode: Any
) -> None:
    path = "/store/.tubestore/topics.json"
    with tubestore.open("/store", vfs=memory_vfs, background=False) as store:
        store.create_topic("t", partitions=3).append(b"kept", partition=0, durability="fsync")
    memory_vfs.remove(path)
    with pytest.raises(NotAStore, match=r"topics\.json is missing: put it back, or have `repair`"):
        tubestore.open("/store", mode, vfs=memory_vfs)
    (finding,) = check("/store", vfs=memory_vfs, wait=lambda _: None)
    assert (finding.path, finding.reason) == (path, "bad_state")
    planned = list(repair("/store", vfs=memory_vfs))
    assert list(repair("/store", vfs=memory_vfs, apply=True)) == planned
    assert [(a.path, a.action) for a in planned] == [(path, "reset_state")]
    assert list(check("/store", vfs=memory_vfs, wait=lambda _: None)) == []
    with tubestore.open("/store", vfs=memory_vfs, background=False) as store:
        assert bodies(store["t"]) == [b"kept"]
        store.change_topic("t", partitions=3)
    memory_vfs.remove(path)
    with pytest.raises(NotAStore):
        tubestore.open("/store", vfs=memory_vfs)


def test_a_store_of_a_version_that_did_not_record_its_topics_records_them_when_it_is_opened(
    memory_vfs: MemoryVfs,
) -> None:
    path = "/store/.tubestore/store.json"
    with tubestore.open("/store", vfs=memory_vfs, background=False) as store:
        before = memory_vfs.read_file(path)
        store.create_topic("t")
    recorded = memory_vfs.read_file(path)
    memory_vfs.replace_file(path, before)
    with tubestore.open("/store", vfs=memory_vfs, background=False):
        assert memory_vfs.read_file(path) == recorded != before
