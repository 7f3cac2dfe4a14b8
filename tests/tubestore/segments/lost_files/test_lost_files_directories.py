"""A shard's directory that is missing, or came back from an older copy, is noticed.

What each shard had is recorded in the root, outside of the shard's directory.
"""

from __future__ import annotations

import errno
from typing import Any

import pytest

from tests.support.crashes import some_states
from tests.support.engine.registers import OWN, REGISTER, filled, opened, registered
from tubestore.core.trees import remove_tree
from tubestore.errors import NotAStore
from tubestore.offline.check import check
from tubestore.offline.repair import repair
from tubestore.record.records import ENTRY_SIZE, HEADER_SIZE
from tubestore.record.state_files import Bounds, shards_line
from tubestore.segments import checkpoint
from tubestore.store import directory
from tubestore.store.manager import MessageStoreManager, engine_of
from tubestore.store.topic import shards_of
from tubestore.testing import FaultyVfs, MemoryVfs

SHARD = "/store/t-0"

Tree = dict[str, bytes]


def saved(vfs: MemoryVfs, path: str = SHARD) -> Tree:
    return {p: vfs.read_file(p) for p in vfs.tree() if p.startswith(f"{path}/")}


def put_back(vfs: MemoryVfs, tree: Tree, path: str = SHARD) -> None:
    remove_tree(vfs, path)
    for name, content in tree.items():
        vfs.make_directories(name.rpartition("/")[0])
        vfs.replace_file(name, content)


def findings(vfs: Any) -> list[tuple[str, str]]:
    found = check("/store", vfs=vfs, wait=lambda _: None)
    return [(f.path, f.reason) for f in found if f.reason != "stale_cache"]


def bodies(store: MessageStoreManager, topic: str = "t") -> list[bytes | None]:
    return [m.body for m in store[topic].read(0, limit=1000) if m.state == "ok"]


MISSING = [(SHARD, "missing_file")]

BODIES = [b"message %d" % number for number in range(10)]


# -- a directory that is missing ---------------------------------------------------------------
@pytest.mark.parametrize("left", ["nothing", "an empty directory"])
def test_a_missing_shard_is_reported_and_gets_no_message_until_it_is_back(
    memory_vfs: MemoryVfs, left: str
) -> None:
    filled(memory_vfs)
    kept = saved(memory_vfs)
    remove_tree(memory_vfs, SHARD)
    if left != "nothing":
        memory_vfs.make_directories(SHARD)
    assert findings(memory_vfs) == MISSING
    with opened(memory_vfs, "r") as store:
        assert bodies(store) == []
        assert [p.path for p in store.problems] == [SHARD]
    with opened(memory_vfs) as store:
        with pytest.raises(NotAStore, match="missing or empty"):
            store["t"].append(b"new")
        with pytest.raises(NotAStore, match="put it back"):
            store["t"].read(0)
        if left == "nothing":
            assert [p.path for p in store.problems] == [SHARD]
    assert findings(memory_vfs) == MISSING
    put_back(memory_vfs, kept)
    assert findings(memory_vfs) == []
    with opened(memory_vfs) as store:
        assert store.problems == []
        assert bodies(store) == BODIES
        assert store["t"].append(b"new").offset == 10 * ENTRY_SIZE


def test_the_directories_of_a_guessed_topic_are_missed_too(memory_vfs: MemoryVfs) -> None:
    """A topic of TubeMQ's has no settings: without its shards nothing else names it."""
    filled(memory_vfs)
    shard, register = saved(memory_vfs), memory_vfs.read_file(REGISTER)
    for name, _, _ in memory_vfs.entries(OWN):
        remove_tree(memory_vfs, f"{OWN}/{name}")
    put_back(memory_vfs, shard)
    opened(memory_vfs).close()
    memory_vfs.replace_file(REGISTER, register)
    remove_tree(memory_vfs, SHARD)
    with opened(memory_vfs) as store:
        assert store.topics() == []
        assert [p.path for p in store.problems] == [SHARD]
        topic = store.create_topic("t")
        with pytest.raises(NotAStore, match="missing or empty"):
            topic.append(b"new")


def test_a_shard_that_a_killed_process_made_is_missed_once_it_was_synced(
    memory_vfs: MemoryVfs,
) -> None:
    store = opened(memory_vfs)
    store.create_topic("t").append(b"x")
    store.sync()
    engine_of(store).maintain()
    engine_of(store).abandon("killed")
    memory_vfs.release_locks()
    remove_tree(memory_vfs, SHARD)
    assert set(MISSING) <= set(findings(memory_vfs))


def test_repair_gives_a_missing_shard_up_and_it_goes_on_behind_its_last_offset(
    memory_vfs: MemoryVfs,
) -> None:
    filled(memory_vfs)
    filled(memory_vfs, topic="u")
    remove_tree(memory_vfs, SHARD)
    before = memory_vfs.tree()
    (planned,) = repair("/store", vfs=memory_vfs)
    assert memory_vfs.tree() == before
    assert list(repair("/store", vfs=memory_vfs, apply=True, topic="u")) == []
    assert list(repair("/store", vfs=memory_vfs, apply=True)) == [planned]
    assert (planned.path, planned.action) == (SHARD, "give_up_shard")
    assert findings(memory_vfs) == []
    assert list(repair("/store", vfs=memory_vfs, apply=True)) == []
    with opened(memory_vfs) as store:
        assert store.problems == []
        assert store["t"].append(b"new").offset == 10 * ENTRY_SIZE
        assert store["u"].append(b"new").offset == 10 * ENTRY_SIZE
    with opened(memory_vfs) as store:
        assert store.problems == []
        assert bodies(store) == [b"new"]
    assert findings(memory_vfs) == []
    remove_tree(memory_vfs, SHARD)  # again
    assert findings(memory_vfs) == MISSING


def test_a_shard_given_up_that_is_put_back_is_as_it_was(memory_vfs: MemoryVfs) -> None:
    filled(memory_vfs)
    kept = saved(memory_vfs)
    remove_tree(memory_vfs, SHARD)
    list(repair("/store", vfs=memory_vfs, apply=True))
    put_back(memory_vfs, kept)
    filled(memory_vfs)
    with opened(memory_vfs) as store:
        assert bodies(store) == BODIES * 2
        assert store.problems == []
    assert registered(memory_vfs)["t-0"].given_up == 0


# -- an older copy -----------------------------------------------------------------------------
@pytest.mark.parametrize("caches", [True, False])
def test_a_shard_that_came_back_from_an_older_copy_gives_no_offset_twice(
    memory_vfs: MemoryVfs, caches: bool
) -> None:
    filled(memory_vfs)
    older = saved(memory_vfs)
    filled(memory_vfs, 5)
    put_back(memory_vfs, {p: c for p, c in older.items() if caches or ".tubestore" not in p})
    assert "missing_file" in [reason for _, reason in findings(memory_vfs)]
    with opened(memory_vfs, "r") as store:
        assert bodies(store) == BODIES
        assert "420 are recorded" in str(store.problems[0])
    with opened(memory_vfs) as store:
        assert store["t"].append(b"new").offset == 15 * ENTRY_SIZE
        assert "5 messages that were synced are missing" in str(store.problems[0])
        assert bodies(store) == [*BODIES, b"new"]


@pytest.mark.parametrize("caches", [True, False])
def test_the_only_data_file_that_was_removed_leaves_its_offsets_taken(
    memory_vfs: MemoryVfs, caches: bool
) -> None:
    filled(memory_vfs)
    for path in saved(memory_vfs):
        if path.endswith((".tube", ".index")) or (not caches and ".tubestore" in path):
            memory_vfs.remove(path)
    assert "missing_file" in [reason for _, reason in findings(memory_vfs)]
    with opened(memory_vfs) as store:
        assert store["t"].append(b"new").offset == 10 * ENTRY_SIZE
        assert store.problems


def test_the_oldest_data_file_that_was_removed_with_the_caches_is_reported(
    memory_vfs: MemoryVfs,
) -> None:
    filled(memory_vfs, segment_size_bytes=200)
    first = min(p for p in saved(memory_vfs) if p.endswith(".tube"))
    memory_vfs.remove(first)
    for path in saved(memory_vfs):
        if ".tubestore" in path:
            memory_vfs.remove(path)
    assert (first, "missing_file") in findings(memory_vfs)
    with opened(memory_vfs) as store:
        store["t"].read(0)
        assert first in [getattr(p, "path", "") for p in store.problems]


@pytest.mark.parametrize("count", [1, 5, 40])
def test_each_lost_message_at_the_end_has_the_room_of_a_record(
    memory_vfs: MemoryVfs, count: int
) -> None:
    """Where the recorded end of the data is not behind that of the files."""
    filled(memory_vfs)
    bounds = registered(memory_vfs)["t-0"]
    more = bounds._replace(index_end=bounds.index_end + ENTRY_SIZE * count)
    memory_vfs.replace_file(REGISTER, shards_line({"t-0": more}))
    with opened(memory_vfs) as store:
        assert store["t"].append(b"new").offset == (10 + count) * ENTRY_SIZE
        store.flush()
        files = shards_of(store["t"]).writable(0).files
        assert files.data.end == bounds.data_end + count * (HEADER_SIZE + 1) + HEADER_SIZE + 3
        assert bodies(store) == [*BODIES, b"new"]


# -- a directory at another one's place --------------------------------------------------------
def rename(vfs: MemoryVfs, *steps: tuple[str, str]) -> None:
    for source, target in steps:
        vfs.rename(f"/store/{source}", f"/store/{target}")


def test_directories_that_changed_places_take_no_messages_until_they_are_moved_back(
    memory_vfs: MemoryVfs,
) -> None:
    filled(memory_vfs)
    filled(memory_vfs, topic="u")
    rename(memory_vfs, ("t-0", "x"), ("u-0", "t-0"), ("x", "u-0"))
    wrong = {SHARD: "misplaced", "/store/u-0": "misplaced"}
    assert dict(findings(memory_vfs)) == wrong
    with opened(memory_vfs, "r") as store:
        bodies(store)
        (problem,) = store.problems
        assert "the files of the shard 'u-0'" in str(problem)
    with opened(memory_vfs) as store:
        for name in ("t", "u"):
            with pytest.raises(NotAStore, match="move the directory back"):
                store[name].append(b"new")
    assert dict(findings(memory_vfs)) == wrong
    rename(memory_vfs, ("t-0", "x"), ("u-0", "t-0"), ("x", "u-0"))
    assert findings(memory_vfs) == []
    filled(memory_vfs)
    with opened(memory_vfs) as store:
        assert bodies(store) == BODIES * 2


def test_repair_takes_a_directory_with_a_new_name_for_the_shard_of_that_name(
    memory_vfs: MemoryVfs,
) -> None:
    filled(memory_vfs)
    rename(memory_vfs, ("t-0", "u-0"))
    assert sorted(findings(memory_vfs)) == [(SHARD, "missing_file"), ("/store/u-0", "misplaced")]
    done = [(a.path, a.action) for a in repair("/store", vfs=memory_vfs, apply=True)]
    cache = "/store/u-0/.tubestore/checkpoint.json"
    assert done == [(SHARD, "give_up_shard"), (cache, "remove_cache")]
    assert findings(memory_vfs) == []
    with opened(memory_vfs) as store:
        assert bodies(store, "u") == BODIES
        assert store["u"].append(b"new").offset == 10 * ENTRY_SIZE
        assert store["t"].append(b"new").offset == 10 * ENTRY_SIZE
        assert store.problems == []
    assert findings(memory_vfs) == []


def test_a_shard_with_a_number_that_its_topic_does_not_have_is_reported(
    memory_vfs: MemoryVfs,
) -> None:
    """As after settings came back from an older copy."""
    filled(memory_vfs)
    settings = memory_vfs.read_file(f"{OWN}/topics.json")
    with opened(memory_vfs) as store:
        store.change_topic("t", stores=2)
        store["t"].append(b"second", partition=10_000)
    assert findings(memory_vfs) == []
    memory_vfs.replace_file(f"{OWN}/topics.json", settings)
    second = "/store/t-1"
    assert findings(memory_vfs) == [(second, "misplaced")]
    for mode in ("r", "w"):
        with opened(memory_vfs, mode) as store:
            (problem,) = store.problems
            assert (problem.path, "1 stores" in str(problem)) == (second, True)
    with opened(memory_vfs) as store:
        store.change_topic("t", stores=2)
        assert [m.body for m in store["t"].read(10_000)] == [b"second"]
    assert findings(memory_vfs) == []
    with opened(memory_vfs) as store:
        assert store.problems == []


def test_a_reader_does_not_report_a_shard_that_its_topic_gets_meanwhile(
    memory_vfs: MemoryVfs,
) -> None:
    filled(memory_vfs)

    class Growing(FaultyVfs):
        """Gives the topic another store when its settings have been read."""

        grown = False

        def entries(self, path: str) -> list[tuple[str, bool, int]]:
            if path == "/store" and not self.grown:
                self.grown = True
                with opened(memory_vfs) as store:
                    store.change_topic("t", stores=2)
                    store["t"].append(b"second", partition=10_000)
            return super().entries(path)

    vfs = Growing(memory_vfs)
    with opened(vfs, "r") as store:
        assert store.problems == []
    assert vfs.grown


# -- what is no loss ---------------------------------------------------------------------------
def test_what_retention_removed_is_not_missed_even_without_the_caches(
    memory_vfs: MemoryVfs,
) -> None:
    filled(memory_vfs, segment_size_bytes=200)
    with opened(memory_vfs, segment_size_bytes=200) as store:
        shard = shards_of(store["t"]).writable(0)
        assert shard.remove_below(400)
        engine_of(store).abandon("killed")
    memory_vfs.release_locks()
    for path in saved(memory_vfs):
        if path.startswith(f"{SHARD}/.tubestore"):
            memory_vfs.remove(path)
    assert findings(memory_vfs) == []
    with opened(memory_vfs) as store:
        store["t"].read(0)
        assert store.problems == []


def test_what_a_shard_was_cut_back_to_is_not_missed(memory_vfs: MemoryVfs) -> None:
    filled(memory_vfs)
    with opened(memory_vfs) as store:
        shards_of(store["t"]).writable(0).cut(4 * ENTRY_SIZE)
        engine_of(store).abandon("killed")
    memory_vfs.release_locks()
    assert findings(memory_vfs) == []
    with opened(memory_vfs) as store:
        assert store["t"].append(b"new").offset == 4 * ENTRY_SIZE
        assert store.problems == []


def test_a_topic_that_was_deleted_is_not_missed_and_its_name_begins_anew(
    memory_vfs: MemoryVfs,
) -> None:
    filled(memory_vfs)
    with opened(memory_vfs) as store:
        store.delete_topic("t")
    assert findings(memory_vfs) == []
    filled(memory_vfs, 1)
    with opened(memory_vfs) as store:
        assert store.problems == []
        assert bodies(store) == BODIES[:1]


def test_a_topic_with_a_missing_shard_can_be_deleted(memory_vfs: MemoryVfs) -> None:
    filled(memory_vfs)
    remove_tree(memory_vfs, SHARD)
    with opened(memory_vfs) as store:
        store.delete_topic("t")
        store.create_topic("t").append(b"new")
    assert findings(memory_vfs) == []


def test_a_checkpoint_that_comes_late_records_nothing_of_a_deleted_topic(
    memory_vfs: MemoryVfs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread that syncs the shard can have read its files before the deletion."""
    monkeypatch.setattr(checkpoint, "_digest", lambda segments, end: "")
    with opened(memory_vfs) as store:
        store.create_topic("t").append(b"x")
        files = shards_of(store["t"]).writable(0).files
        store.delete_topic("t")
        checkpoint.write_checkpoint(files, files.index.end, files.data.end)
        assert not memory_vfs.exists(SHARD)
    assert findings(memory_vfs) == []


def test_a_store_without_a_register_has_no_findings_and_gets_one(memory_vfs: MemoryVfs) -> None:
    filled(memory_vfs)
    memory_vfs.remove(REGISTER)
    remove_tree(memory_vfs, SHARD)
    assert findings(memory_vfs) == []
    filled(memory_vfs)
    assert registered(memory_vfs) == {"t-0": Bounds(0, 0, 280, 610)}


@pytest.mark.parametrize("mode", ["r", "check"])
def test_a_topic_that_a_writer_deletes_meanwhile_is_not_missed(
    memory_vfs: MemoryVfs, mode: str
) -> None:
    filled(memory_vfs)

    class Deleting(FaultyVfs):
        """Deletes the topic when the root has been listed."""

        deleted = False

        def entries(self, path: str) -> list[tuple[str, bool, int]]:
            if path == (SHARD if mode == "check" else "/store") and not self.deleted:
                self.deleted = True
                with opened(memory_vfs) as store:
                    store.delete_topic("t")
            return super().entries(path)

    vfs = Deleting(memory_vfs)
    if mode == "check":
        assert [f for f in findings(vfs) if f[1] == "missing_file"] == []
    else:
        with opened(vfs, "r") as store:
            assert store.problems == []
    assert vfs.deleted


def test_the_file_does_not_grow_with_time(
    memory_vfs: MemoryVfs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directory, "_REGISTER_SLACK", 200)
    with opened(memory_vfs) as store:
        topic = store.create_topic("t")
        for _ in range(50):
            topic.append(b"x")
            store.sync()
            engine_of(store).maintain()
            assert len(memory_vfs.read_file(REGISTER)) < 1000
    assert registered(memory_vfs)["t-0"].index_end == 50 * ENTRY_SIZE


def test_the_file_does_not_grow_over_many_openings(
    memory_vfs: MemoryVfs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directory, "_REGISTER_SLACK", 200)
    for _ in range(30):
        filled(memory_vfs, 1)
        assert len(memory_vfs.read_file(REGISTER)) < 1000


def test_without_room_the_file_is_written_later(memory_vfs: MemoryVfs) -> None:
    filled(memory_vfs)
    faulty = FaultyVfs(memory_vfs)
    with opened(faulty) as store:
        store["t"].append(b"x")
        faulty.fail("pwrite", error=errno.ENOSPC, path="shards.log")
        store.sync()
        engine_of(store).maintain()
        assert registered(memory_vfs)["t-0"].index_end == 10 * ENTRY_SIZE
        store["t"].append(b"x")
    assert registered(memory_vfs)["t-0"].index_end == 12 * ENTRY_SIZE


def test_without_room_for_a_lower_end_the_older_one_does_not_count(
    memory_vfs: MemoryVfs,
) -> None:
    filled(memory_vfs)
    faulty = FaultyVfs(memory_vfs)
    with opened(faulty) as store:
        shard = shards_of(store["t"]).writable(0)
        faulty.fail("pwrite", error=errno.ENOSPC, path="shards.log")
        shard.cut(4 * ENTRY_SIZE)
        assert not memory_vfs.exists(REGISTER)
        engine_of(store).abandon("killed")


# -- crashes -----------------------------------------------------------------------------------
def test_no_crash_makes_a_shard_count_as_missing(memory_vfs: MemoryVfs) -> None:
    """Kills and power cuts while shards are made, synced, cut by retention, deleted, made again."""
    journal = memory_vfs.record()
    with opened(memory_vfs, segment_size_bytes=200) as store:
        topic = store.create_topic("t")
        for number in range(8):
            topic.append(b"message %d" % number, durability="fsync")
            topic.sync()
        store.sync()
        engine_of(store).maintain()
        shards_of(topic).writable(0).remove_below(300)
        store.create_topic("u").append(b"x")
        store.delete_topic("t")
        store.create_topic("t").append(b"anew", durability="fsync")
    names = {"missing_file", "unreadable"}

    for state in some_states(journal, 300, seed=5):
        if state.vfs().entries("/store"):  # else it is no store yet
            assert [f for f in findings(state.vfs()) if f[1] in names] == []
        with opened(state.vfs()) as again:
            for name in again.topics():
                again[name].read(0)
            assert [p for p in again.problems if "missing" in str(p)] == []
