"""Writers that no lock keeps apart: a job of the one that was overtaken is whole, or not there."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest

from tests.support.faults import StoppedVfs, UnlockedVfs, end_of_publishing
from tests.support.publishing import CLOCK, ROOT, batch, bodies, numbered, open_store, stage
from tubestore.disks.writer_lock import Overtaken
from tubestore.errors import StoreFailed
from tubestore.offline.check import check
from tubestore.staging.job_files import StagedFile
from tubestore.store.manager import MessageStoreManager


def made(vfs: UnlockedVfs) -> None:
    with open_store(vfs) as store:
        store.create_topic("a", partitions=3, stores=2)
        store.append_batch(batch([b"first", b"second", b"third"]))


def publisher_of(vfs: UnlockedVfs, staged: list[StagedFile]) -> Callable[[], None]:
    """What another process does: opens the store, publishes a job, appends, closes."""

    def work() -> None:
        with open_store(vfs) as other:
            other.publish("others", staged)
            other["a"].append(b"last", partition=0)

    return work


def overtaken(vfs: UnlockedVfs) -> tuple[MessageStoreManager, list[StagedFile]]:
    """A store that is open, and another process opened it since; with a job that is staged."""
    made(vfs)
    staged, others = stage(vfs, "ours", batch(numbered(3))), stage(vfs, "others", batch([b"other"]))
    store = open_store(vfs)
    publisher_of(vfs, others)()
    return store, staged


def test_a_writer_that_was_overtaken_publishes_nothing_and_says_by_whom() -> None:
    vfs = UnlockedVfs(CLOCK)
    store, staged = overtaken(vfs)
    before = {path: data for path, data in vfs.tree().items() if "/writers/" not in path}
    with pytest.raises(Overtaken, match="generation 2 has ended with generation 3"):
        store.publish("ours", staged)
    assert {p: d for p, d in vfs.tree().items() if "/writers/" not in p} == before
    with pytest.raises(StoreFailed):
        store.close()
    with open_store(vfs) as again:
        assert again.publish("ours", staged).rows == 3
    assert list(check(ROOT, vfs=vfs)) == []


def test_a_writer_that_was_overtaken_stops_to_write() -> None:
    vfs = UnlockedVfs(CLOCK)
    store, _ = overtaken(vfs)
    store["a"].append(b"one that was not seen yet", partition=1, durability="memory")
    with pytest.raises(StoreFailed, match="another process may write here"):
        store.close()
    with open_store(vfs) as again:
        assert len(bodies(again)) == 5
    assert list(check(ROOT, vfs=vfs)) == []


CHANGES: dict[str, Callable[[MessageStoreManager], object]] = {
    "a batch that is synced": lambda s: s.append_batch(batch([b"x"]), durability="fsync"),
    "a topic's batch": lambda s: s["a"].append_batch({"body": [b"x"]}, durability="fsync"),
    "a new topic": lambda s: s.create_topic("new"),
    "other settings": lambda s: s.change_topic("a", max_age="1h"),
    "a topic's end": lambda s: s.delete_topic("a"),
    "retention": lambda s: s.retain(max_bytes=1),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_writer_that_was_overtaken_is_refused_what_would_undo_the_others_work(
    change: str,
) -> None:
    vfs = UnlockedVfs(CLOCK)
    with open_store(vfs, segment_size_bytes=200) as first:
        for _ in range(3):  # files for retention
            first.create_topic("a", partitions=3, exist_ok=True).append(bytes(300))
            first.flush()
    store = open_store(vfs)
    with open_store(vfs) as other:
        other["a"].append(b"last")
    before = {path: data for path, data in vfs.tree().items() if "/writers/" not in path}
    with pytest.raises(Overtaken, match="generation 2 has ended with generation 3"):
        CHANGES[change](store)
    assert {p: d for p, d in vfs.tree().items() if "/writers/" not in p} == before
    with pytest.raises(StoreFailed):
        store.close()


def test_a_compaction_that_was_stopped_before_its_renaming_replaces_nothing_of_another() -> None:
    tiny = {"segment_size_bytes": 600, "index_segment_size_bytes": 140}

    def work() -> None:
        with open_store(vfs) as other:
            assert other.compact(files_min=2)
            other["a"].append(b"last", partition=0)

    ends: list[str] = []
    while True:
        vfs = UnlockedVfs(CLOCK)
        with open_store(vfs, **tiny) as first:
            first.create_topic("a", partitions=1)
            for body in numbered(30):
                first["a"].append(body)
                first.flush()
        stopped = StoppedVfs(vfs)
        store = open_store(stopped)
        list(store["a"].messages(0))
        stopped.stop(len(ends), work)
        with pytest.raises((StoreFailed, OSError)) as raised:
            store.compact(files_min=2)
        at = stopped.stopped
        stopped.stop(-1, lambda: None)
        with contextlib.suppress(StoreFailed):
            store.close()
        if at.startswith("rename"):
            break  # what is left: between the comparison and this call
        with open_store(vfs) as again:
            assert sorted(bodies(again)) == sorted([*numbered(30), b"last"]), at
            assert again.problems == [], at
        assert list(check(ROOT, vfs=vfs)) == [], at
        ends.append(type(raised.value).__name__)
    assert len(ends) > 20
    assert ends[-1] == "Overtaken"


@pytest.mark.gate
@pytest.mark.parametrize("count", [3, 40])
@pytest.mark.parametrize("small", [False, True])
def test_a_publisher_that_is_stopped_anywhere_while_another_publishes_harms_neither_job(
    count: int, small: bool
) -> None:
    ends, calls = set(), 0
    while True:
        vfs = UnlockedVfs(CLOCK)
        made(vfs)
        settings = {"segment_size_bytes": 600, "index_segment_size_bytes": 140} if small else {}
        ours = stage(vfs, "ours", batch(numbered(count)), **settings)
        others = stage(vfs, "others", batch(numbered(count, 1000)), **settings)
        stopped = StoppedVfs(vfs)
        store = open_store(stopped, **settings)
        store.append_batch(batch([b"opens the shards"] * 3))
        store.sync()
        stopped.stop(calls, publisher_of(vfs, others))
        end = end_of_publishing(store, "ours", ours)
        at = f"stopped at call {calls}: {stopped.stopped}"
        stopped.stop(-1, lambda: None)
        with contextlib.suppress(StoreFailed):
            store.close()
        if not stopped.stopped:
            break
        with open_store(vfs) as again:
            found = bodies(again)
            whole = b"message 0" in found
            wanted = [b"first", b"second", b"third", *[b"opens the shards"] * 3, b"last"]
            wanted += numbered(count, 1000) + (numbered(count) if whole else [])
            assert sorted(found) == sorted(wanted), at
            assert whole or end != "published", at
            assert not (whole and end == "Overtaken"), at
            assert again.problems == [], at
            assert again.publish("ours", ours).replayed == whole, at
        assert list(check(ROOT, vfs=vfs)) == [], at
        ends.add((end, whole))
        calls += 1
    assert calls > 20
    assert {("Overtaken", False), ("StoreFailed", True), ("published", True)} <= ends
