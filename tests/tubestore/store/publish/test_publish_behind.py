"""What a small job has for a shard goes behind the last byte of the live files."""

from __future__ import annotations

import errno
from typing import Any

import pytest

import tubestore
from tests.support.faults import WatchingVfs, failing_after_the_record
from tests.support.publishing import CLOCK, ROOT, batch, bodies, numbered, open_store, stage
from tests.support.publishing import store as store
from tests.support.publishing import vfs as vfs
from tubestore.core.state_file import NewerState, parse_state
from tubestore.errors import NotAStore, StoreFailed
from tubestore.offline.check import Reason, check
from tubestore.offline.repair import repair
from tubestore.record.records import ENTRY_SIZE
from tubestore.segments.listing import find_shards
from tubestore.segments.shard_bytes import ShardBytes
from tubestore.staging.commit_records import CommitRecords
from tubestore.store.manager import engine_of
from tubestore.testing import FaultyVfs, MemoryVfs

#: A job of one message is a small part of such files, and there is room for about twenty.
FILES: dict[str, Any] = {"segment_size_bytes": 1600, "index_segment_size_bytes": 20 * ENTRY_SIZE}


def segments(vfs: MemoryVfs) -> list[str]:
    return [path for path in vfs.tree() if path.endswith((".tube", ".index"))]


def interrupted(call: str, nth: int) -> MemoryVfs:
    """A store in which a job of two tasks stopped on its way behind the live files."""
    vfs = MemoryVfs(CLOCK)
    faulty = FaultyVfs(vfs)
    store = open_store(faulty)
    store.create_topic("a", partitions=3, stores=2)
    store["a"].append(b"before", partition=0)
    staged = stage(vfs, "j", batch(numbered(3), partitions=(0,)))
    staged += stage(vfs, "j", batch(numbered(3, 3), partitions=(0,)), attempt="1")
    link = vfs.link

    def fail_from_here(source: str, target: str) -> None:
        link(source, target)
        faulty.fail(call, nth=nth, forever=True)

    vfs.link = fail_from_here  # type: ignore[method-assign]
    with pytest.raises(StoreFailed):
        store.publish("j", staged)
    vfs.link = link  # type: ignore[method-assign]
    assert bodies(store) == [b"before"]
    with pytest.raises(StoreFailed):
        store.close()
    return vfs


#: Calls after the record: the copies of data and index, their syncs, the removals.
STOPS = [("pwrite", 1), ("pwrite", 2), ("pwrite", 3), ("sync", 1), ("sync", 2), ("remove", 2),
         ("remove", 3), ("remove", 4)]  # fmt: skip


def test_many_small_jobs_leave_few_files_and_the_last_ones_call_no_more_than_the_first() -> None:
    vfs = MemoryVfs(CLOCK)
    files, calls = [], []
    for number in range(200):
        watching = WatchingVfs(vfs)
        watching.on = True
        with open_store(watching) as store:
            job = [batch(numbered(6, number))]
            job_id = f"query:{number}"
            staged = stage(watching, job_id, *job)
            store.publish(job_id, staged, create_topics=True, query="q")
        files.append(sum("/commits/" not in path for path in vfs.tree()))
        calls.append(len(watching.noted))
    assert len(segments(vfs)) == 4  # a pair for each of two shards
    assert max(files) == files[1]
    assert max(calls[-10:]) <= max(calls[1:11])
    with open_store(vfs) as store:
        assert len(bodies(store)) == 1200
        assert store.publish("query:199", [], query=None).replayed
    assert list(check(ROOT, vfs=vfs)) == []


def test_a_live_file_that_a_job_does_not_fit_into_is_sealed(vfs: MemoryVfs) -> None:
    with open_store(vfs, **FILES) as store:
        store.create_topic("a", partitions=1)
        for number in range(60):
            job = f"q:{number}"
            store.publish(job, stage(vfs, job, batch([b"message %d" % number], partitions=(0,))))
        store["a"].append(b"after", partition=0)
        assert bodies(store) == [*numbered(60), b"after"]
    data = [file for shard in find_shards(ROOT, vfs) for file in shard.data]
    index = [file for shard in find_shards(ROOT, vfs) for file in shard.index]
    assert 3 <= len(data) <= 4
    assert max(file.size for file in data) <= 1600
    assert [file.size // ENTRY_SIZE for file in index] == [19, 19, 19, 4]
    assert list(check(ROOT, vfs=vfs)) == []
    with open_store(vfs, **FILES) as again:
        assert again["a"].read(0).table.num_rows == 61
        assert again.problems == []


def test_a_large_part_of_a_file_is_renamed(vfs: MemoryVfs) -> None:
    with open_store(vfs, **FILES) as store:
        store.create_topic("a", partitions=1).append(b"before", partition=0)
        store.publish("j", stage(vfs, "j", batch(numbered(4), partitions=(0,))))
    assert len(segments(vfs)) == 4


def test_a_small_job_is_visible_at_once_and_appends_go_on_behind_it(
    vfs: MemoryVfs, store: tubestore.MessageStoreManager
) -> None:
    store["a"].append(b"before", partition=0)
    with open_store(vfs, "r") as reader:
        assert bodies(reader) == [b"before"]
        view = store["a"].scan(columns=["body"])
        store.publish("j", stage(vfs, "j", batch(numbered(3), partitions=(0,))))
        ack = store["a"].append(b"after", partition=0)
        assert ack.offset == 4 * ENTRY_SIZE
        assert bodies(store) == [b"before", *numbered(3), b"after"]
        reader.refresh()
        assert bodies(reader) == [b"before", *numbered(3), b"after"]
        assert view.read_all().num_rows == 1
    assert len(segments(vfs)) == 2
    engine_of(store).abandon("killed")
    vfs.release_locks()
    with open_store(vfs) as again:
        assert len(bodies(again)) == 5
        assert again.problems == []


def test_no_reader_sees_a_part_of_a_job_while_it_goes_behind_live_files(vfs: MemoryVfs) -> None:
    seen: list[int] = []

    class Looking(FaultyVfs):
        on = False

        def _pass(self, call: str, path: str) -> Any:
            if self.on:
                with open_store(vfs, "r") as reader:
                    seen.append(len(bodies(reader)))
            return super()._pass(call, path)

    looking = Looking(vfs)
    with open_store(looking) as store:
        store.create_topic("a", partitions=3, stores=2)
        for partition in (0, 10_000):
            store["a"].append(b"before", partition=partition)
        staged = stage(vfs, "j", batch(numbered(9)))
        looking.on = True
        store.publish("j", staged)
        looking.on = False
    assert set(seen) == {2, 11}
    assert seen == sorted(seen)
    assert len(segments(vfs)) == 4


@pytest.mark.parametrize(("call", "nth"), STOPS)
def test_an_interrupted_job_is_listed_as_it_will_be_and_finished_by_the_next_opening(
    call: str, nth: int
) -> None:
    vfs = interrupted(call, nth)
    with open_store(vfs, "r") as reader:
        assert bodies(reader) == [b"before"]
    hidden = find_shards(ROOT, vfs, topic="a", store_id=0)
    assert [shard.entry_count for shard in hidden] == [1]
    (listed,) = find_shards(ROOT, vfs, topic="a", store_id=0, with_pending=True)
    assert listed.entry_count == 7
    found = list(check(ROOT, vfs=vfs, wait=lambda _: None))
    assert [finding.reason for finding in found] == [Reason.HALF_PUBLISHED]
    late = ShardBytes(vfs, listed)
    with open_store(vfs) as store:
        assert bodies(store) == [b"before", *numbered(6)]
        assert store.publish("j", []).replayed
        assert store.problems == []
    # A listing from before goes on in the files of now.
    windows = [window for _, entries in late.entries() for window in late.windows(entries)]
    assert sum(len(window.data or b"") for window in windows) == listed.data[-1].end
    late.close()
    assert len(segments(vfs)) == 2
    assert list(check(ROOT, vfs=vfs)) == []


def test_a_broker_that_wrote_behind_the_live_file_meanwhile_is_not_overwritten() -> None:
    vfs = interrupted("pwrite", 1)
    path = next(path for path in segments(vfs) if path.endswith("a-0/" + "0" * 20 + ".tube"))
    content = vfs.read_file(path) + b"of a broker"
    vfs.replace_file(path, content)
    text = "another process has written behind"
    with pytest.raises(NotAStore, match=text):
        open_store(vfs)
    found = [f for f in check(ROOT, vfs=vfs, wait=lambda _: None) if text in f.message]
    assert [finding.reason for finding in found] == [Reason.HALF_PUBLISHED]
    assert vfs.read_file(path) == content
    assert next(iter(repair(ROOT, vfs=vfs, apply=True))).action == "give_up_job"
    with open_store(vfs) as store:
        assert bodies(store)[0] == b"before"


def test_a_live_file_that_is_gone_or_shorter_keeps_a_job_from_going_on() -> None:
    for size in (None, 20):
        vfs = interrupted("pwrite", 1)
        path = next(path for path in segments(vfs) if path.endswith("a-0/" + "0" * 20 + ".tube"))
        content = vfs.read_file(path)
        vfs.remove(path)
        if size is not None:
            vfs.replace_file(path, content[:size])
        with pytest.raises(NotAStore, match="it goes on at"):
            open_store(vfs)


def test_a_full_disk_behind_the_record_keeps_the_job_until_there_is_room() -> None:
    vfs = MemoryVfs(CLOCK)
    faulty = FaultyVfs(vfs)
    with open_store(faulty) as store:
        store.create_topic("a", partitions=1).append(b"before", partition=0)
        staged = stage(vfs, "j", batch(numbered(3), partitions=(0,)))
        with failing_after_the_record(vfs, faulty, "pwrite"), pytest.raises(StoreFailed):
            store.publish("j", staged)
        with pytest.raises(StoreFailed):
            store.close()
    faulty.fail("pwrite", error=errno.ENOSPC, forever=True)
    with pytest.raises(OSError, match="No space left"):
        open_store(faulty)
    faulty.heal()
    with open_store(faulty) as again:
        assert bodies(again) == [b"before", *numbered(3)]


def test_a_version_that_cannot_put_a_job_behind_files_refuses_its_record() -> None:
    vfs = interrupted("pwrite", 1)
    raw = vfs.read_file(CommitRecords(vfs, ROOT).path(1))
    with pytest.raises(NewerState, match="behind"):
        parse_state(raw)


def test_a_record_without_files_behind_others_is_as_it_was_before(
    vfs: MemoryVfs, store: tubestore.MessageStoreManager
) -> None:
    store.publish("j", stage(vfs, "j", batch(numbered(3))))
    content = parse_state(vfs.read_file(CommitRecords(vfs, ROOT).path(1)))
    assert content["features"] == []
    assert not any("behind" in name for file in content["files"] for name in file)
