"""Batches over many shards: one write, one sync, and nothing lost or doubled after a kill."""

from __future__ import annotations

import contextlib
import errno
from typing import Any

import pytest

import tubestore
from tests.support.engine.mixed import (
    JOURNAL,
    TOPICS,
    bodies,
    killed,
    mixed,
    open_store,
)
from tests.support.tube import quarantined
from tubestore.clock import ManualClock
from tubestore.errors import BatchError, DiskFull, StoreFailed, TubeStoreError
from tubestore.offline.check import check
from tubestore.store.manager import MessageStoreManager, engine_of
from tubestore.testing import FaultyVfs, MemoryVfs


def test_a_batch_over_many_shards_is_written_once_and_synced_once(memory_vfs: MemoryVfs) -> None:
    counting = FaultyVfs(memory_vfs)
    with open_store(counting) as store:
        store.append_batch(mixed(0), durability="fsync")  # and where the generation begins
        before = counting.calls.copy()
        store.append_batch(mixed(24), durability="fsync")
        asked = counting.calls - before
        assert asked["pwrite"] == 3  # the records, the frame, and its mark
        assert asked["sync"] == 1
        assert bodies(store) == list(range(48))


def test_offsets_are_those_that_each_shard_would_have_given(memory_vfs: MemoryVfs) -> None:
    with open_store(memory_vfs) as store, open_store(MemoryVfs(), journal_size_bytes=0) as plain:
        assert engine_of(plain).opener.journal is None
        for first in (0, 24, 48):
            ours, theirs = (s.append_batch(mixed(first)) for s in (store, plain))
            assert ours.offsets.equals(theirs.offsets)
            assert ours.partitions.equals(theirs.partitions)


@pytest.mark.parametrize("level", ["page_cache", "fsync"])
def test_a_kill_loses_nothing_and_doubles_nothing(memory_vfs: MemoryVfs, level: Any) -> None:
    store = open_store(memory_vfs)
    for first in range(0, 240, 24):
        store.append_batch(mixed(first), durability=level)
        if first == 120:
            store[TOPICS[3]].flush()  # some of it stands in the files, too
    killed(store, memory_vfs)
    for _ in range(2):
        store = open_store(memory_vfs)
        assert bodies(store) == list(range(240))
        assert store.problems == []
        killed(store, memory_vfs)


def test_a_store_that_was_closed_has_no_journal_and_whole_shards(memory_vfs: MemoryVfs) -> None:
    with open_store(memory_vfs) as store:
        store.append_batch(mixed(0))
        assert memory_vfs.exists(JOURNAL)
    assert not memory_vfs.exists(JOURNAL)
    with tubestore.open("/s", "r", vfs=memory_vfs) as reader:
        assert bodies(reader) == list(range(24))


def test_check_warns_of_a_journal_that_a_kill_left(memory_vfs: MemoryVfs) -> None:
    store = open_store(memory_vfs)
    store.append_batch(mixed(0))
    store[TOPICS[0]].flush()
    killed(store, memory_vfs)
    (finding,) = check("/s", vfs=memory_vfs, wait=lambda _: None)
    assert (finding.path, finding.reason, finding.severity) == (JOURNAL, "journal", "warning")
    assert finding.message.startswith("22 messages of 11 shards")
    assert list(check("/s", vfs=memory_vfs, wait=lambda _: None, is_written=lambda: True)) == []
    with open_store(memory_vfs):
        pass
    assert list(check("/s", vfs=memory_vfs, wait=lambda _: None)) == []


def test_the_level_covers_what_was_appended_to_memory_before(memory_vfs: MemoryVfs) -> None:
    store = open_store(memory_vfs)
    store[TOPICS[0]].append(b"1000", partition=0, durability="memory")
    store.append_batch(mixed(0))
    store[TOPICS[1]].append(b"1001", partition=0, durability="memory")
    store.append_batch(mixed(24))
    store[TOPICS[2]].append(b"1002", partition=0, durability="memory")
    killed(store, memory_vfs)
    with open_store(memory_vfs) as again:
        assert bodies(again) == [*range(48), 1000, 1001]


def test_a_batch_at_memory_goes_through_the_journal_too(memory_vfs: MemoryVfs) -> None:
    """To hand each shard its rows took three times as long as a frame of the stronger level."""
    store = open_store(memory_vfs, durability="memory")
    assert store.append_batch(mixed(0)).durability == "memory"
    killed(store, memory_vfs)
    with open_store(memory_vfs) as again:
        assert bodies(again) == list(range(24))


@pytest.mark.parametrize("where", ["journal", ".tube", ""])
def test_a_batch_at_memory_needs_no_room_on_the_disk_and_leaves_no_hole(
    memory_vfs: MemoryVfs, where: str
) -> None:
    faulty = FaultyVfs(memory_vfs)
    store = open_store(faulty, durability="memory")
    store.append_batch(mixed(0))
    faulty.fail("pwrite", path=where, error=errno.ENOSPC, written=0, forever=True)
    store.append_batch(mixed(24))
    assert bodies(store) == list(range(48))
    faulty.heal()
    for name in TOPICS:
        store[name].append(b"1000", partition=0, durability="page_cache")
    killed(store, memory_vfs)
    with open_store(memory_vfs) as again:
        assert bodies(again) == [*range(48), *[1000] * len(TOPICS)]


def test_single_appends_go_on_behind_a_batch(memory_vfs: MemoryVfs) -> None:
    store = open_store(memory_vfs)
    store.append_batch(mixed(0))
    topic = store[TOPICS[0]]
    ack = topic.append(b"1000", partition=0, durability="memory")
    assert [m.body for m in topic.messages(0)] == [b"0", b"1000"]
    later = topic.append(b"1001", partition=0)
    assert later.offset == ack.offset + 28
    store.append_batch(mixed(24))
    assert [m.body for m in topic.messages(0)] == [b"0", b"1000", b"1001", b"24"]
    killed(store, memory_vfs)
    with open_store(memory_vfs) as again:
        assert [m.body for m in again[TOPICS[0]].messages(0)] == [b"0", b"1000", b"1001", b"24"]


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_shards_write_at_once_when_the_journal_cannot(memory_vfs: MemoryVfs, error: int) -> None:
    faulty = FaultyVfs(memory_vfs)
    store = open_store(faulty)
    faulty.fail("pwrite", error=error, path="journal", nth=2, written=5, forever=True)
    for first in (0, 24, 48):
        store.append_batch(mixed(first))
    assert bodies(store) == list(range(72))
    killed(store, memory_vfs)
    with open_store(memory_vfs) as again:
        assert bodies(again) == list(range(72))


def test_shards_sync_their_own_files_when_the_journal_cannot(memory_vfs: MemoryVfs) -> None:
    faulty = FaultyVfs(memory_vfs)
    with open_store(faulty) as store:
        faulty.fail("sync", path="journal")
        before = faulty.calls["sync"]
        store.append_batch(mixed(0), durability="fsync")
        assert faulty.calls["sync"] - before > len(TOPICS)
        store.append_batch(mixed(24), durability="fsync")
        assert bodies(store) == list(range(48))
        assert engine_of(store).opener.journal is not None
        assert not engine_of(store).opener.journal.takes(100, 100)


def test_what_an_earlier_process_left_unsynced_is_covered_too(memory_vfs: MemoryVfs) -> None:
    store = open_store(memory_vfs)
    store[TOPICS[0]].append(b"0", partition=0)
    store.flush()
    killed(store, memory_vfs)
    counting = FaultyVfs(memory_vfs)
    with open_store(counting) as again:
        before = counting.calls["sync"]
        again.append_batch(mixed(24), durability="fsync")
        assert counting.calls["sync"] - before == 2  # the journal, and the file below it
        again.append_batch(mixed(48), durability="fsync")
        assert counting.calls["sync"] - before == 3


def full_journal(vfs: FaultyVfs, **settings: Any) -> MessageStoreManager:
    """Return a store with a journal that the next batch has to empty, promised at `fsync`."""
    store = open_store(vfs, journal_size_bytes=2000, **settings)
    store.append_batch(mixed(0), durability="fsync")
    return store


def test_the_files_of_many_shards_are_synced_with_one_call(memory_vfs: MemoryVfs) -> None:
    """A file each took seconds for a thousand topics, and the batch waits for it."""
    counting = FaultyVfs(memory_vfs)
    with full_journal(counting) as store:
        before = counting.calls.copy()
        for first in (24, 48):
            store.append_batch(mixed(first), durability="fsync")
        asked = counting.calls - before
        assert asked["sync_file_system"] == 2  # before each of the two generations
        assert asked["sync"] == 2 + 2  # frames, and where each generation begins


def test_files_below_the_first_frames_are_synced_with_one_call(memory_vfs: MemoryVfs) -> None:
    counting = FaultyVfs(memory_vfs)
    with open_store(counting) as store:
        store.append_batch(mixed(0), durability="page_cache")
        store.flush()
        for name in TOPICS:  # the next frame begins behind these
            store[name].append(b"%d" % (24 + TOPICS.index(name)), partition=0)
        store.flush()
        before = counting.calls.copy()
        for first in (36, 60):
            store.append_batch(mixed(first), durability="fsync")
        asked = counting.calls - before
        assert (asked["sync_file_system"], asked["sync"]) == (1, 2)


def test_after_a_failed_sync_of_the_file_system_the_journal_stays(memory_vfs: MemoryVfs) -> None:
    """What the system dropped is not known: the next opening compares with the journal."""
    faulty = FaultyVfs(memory_vfs)
    store = full_journal(faulty)
    faulty.fail("sync_file_system", error=errno.EIO)
    for first in (24, 48):
        store.append_batch(mixed(first), durability="fsync")
    journal = engine_of(store).opener.journal
    assert journal is not None
    assert not journal.takes(100, 100)
    store.close()
    assert memory_vfs.exists(JOURNAL)
    with open_store(memory_vfs) as again:
        assert bodies(again) == list(range(72))
        assert again.problems == []
    assert not memory_vfs.exists(JOURNAL)


def test_a_batch_is_not_safe_if_the_files_below_it_cannot_be_synced(
    memory_vfs: MemoryVfs,
) -> None:
    faulty = FaultyVfs(memory_vfs)
    with open_store(faulty) as store:
        store.append_batch(mixed(0))
        store.flush()
        for name in TOPICS:
            store[name].append(b"%d" % (24 + TOPICS.index(name)), partition=0)
        store.flush()
        faulty.fail("sync_file_system", error=errno.EIO)
        with pytest.raises(BatchError) as caught:
            store.append_batch(mixed(36), durability="fsync")
        assert {ack.durability for ack in caught.value.acks if ack} == {"page_cache"}
        store.append_batch(mixed(60), durability="fsync")  # the shards sync their own files
        assert bodies(store) == list(range(84))


def test_the_journal_is_emptied_at_its_size(memory_vfs: MemoryVfs) -> None:
    with open_store(memory_vfs, journal_size_bytes=10_000) as store:
        for first in range(0, 2400, 24):
            store.append_batch(mixed(first))
            assert memory_vfs.open(JOURNAL).size() < 16_000
        assert bodies(store) == list(range(2400))


def test_a_shard_that_fails_keeps_the_journal_for_the_next_opening(memory_vfs: MemoryVfs) -> None:
    faulty = FaultyVfs(memory_vfs)
    store = open_store(faulty)
    store.append_batch(mixed(0))
    faulty.fail("create", path=f"{TOPICS[5]}-0", forever=True)
    with pytest.raises(StoreFailed):
        store[TOPICS[5]].flush()
    with pytest.raises(StoreFailed):
        store.close()
    assert memory_vfs.exists(JOURNAL)
    with open_store(memory_vfs) as again:
        assert bodies(again) == list(range(24))


def left_with_another_writers_message(vfs: MemoryVfs) -> bytes:
    """Leave a journal, and another message where its first one belongs; returns the journal."""
    other = MemoryVfs()
    with open_store(other) as store:
        store[TOPICS[0]].append(b"900", partition=0)
    store = open_store(vfs)
    store.append_batch(mixed(0))
    killed(store, vfs)
    vfs.make_directories(f"/s/{TOPICS[0]}-0/index")
    path = f"/s/{TOPICS[0]}-0/{0:020d}.tube"
    vfs.open(path, create=True).pwrite(other.read_file(path), 0)
    return vfs.read_file(JOURNAL)


@pytest.mark.parametrize("boot", ["same", "other"])
def test_frames_that_the_files_cannot_take_are_in_quarantine_before_the_journal_is_emptied(
    memory_vfs: MemoryVfs, boot: str
) -> None:
    before = left_with_another_writers_message(memory_vfs)
    if boot == "other":
        memory_vfs.reboot()
    with open_store(memory_vfs) as store:
        assert bodies(store) == [*range(1, 12), *range(13, 24), 900]
        assert [str(p) for p in store.problems if "another one" in str(p)]
    assert not memory_vfs.exists(JOURNAL)
    assert quarantined(memory_vfs) == {".tubestore/journal": before}


@pytest.mark.parametrize("boot", ["same", "other"])
def test_without_room_in_quarantine_the_journal_stays_and_its_shard_is_refused(
    memory_vfs: MemoryVfs, boot: str
) -> None:
    before = left_with_another_writers_message(memory_vfs)
    if boot == "other":
        memory_vfs.reboot()
    faulty = FaultyVfs(memory_vfs)
    faulty.fail("pwrite", path="/quarantine/", error=errno.ENOSPC, forever=True)
    store = open_store(faulty)
    for _ in range(2):
        with pytest.raises(DiskFull) as caught:
            store[TOPICS[0]].append(b"24", partition=0)
        assert caught.value.taken == "no"
        assert "quarantine" in str(caught.value.filename)
    assert store[TOPICS[1]].append(b"25", partition=0).offset
    with pytest.raises(TubeStoreError):
        store.close()
    assert memory_vfs.read_file(JOURNAL)[: len(before)] == before
    assert quarantined(memory_vfs) == {}
    with open_store(memory_vfs) as store:
        assert bodies(store) == [*range(1, 12), *range(13, 24), 25, 900]
    assert quarantined(memory_vfs)[".tubestore/journal"][: len(before)] == before


def test_a_journal_that_cannot_be_read_keeps_the_store_shut(memory_vfs: MemoryVfs) -> None:
    store = open_store(memory_vfs)
    store.append_batch(mixed(0))
    killed(store, memory_vfs)
    faulty = FaultyVfs(memory_vfs)
    faulty.fail("pread", path="journal", error=errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        open_store(faulty)
    with open_store(memory_vfs) as again:
        assert bodies(again) == list(range(24))


def test_a_full_journal_that_cannot_be_emptied_is_left_aside(memory_vfs: MemoryVfs) -> None:
    faulty = FaultyVfs(memory_vfs)
    store = open_store(faulty, journal_size_bytes=1)
    store.append_batch(mixed(0))
    faulty.fail("create", path=f"{TOPICS[5]}-0", forever=True)
    with pytest.raises(tubestore.BatchError) as caught:
        store.append_batch(mixed(24))
    taken = [ack is not None for ack in caught.value.acks]
    assert 0 < sum(taken) < 24
    assert not taken[5]
    assert not taken[17]
    killed(store, memory_vfs)
    with open_store(memory_vfs) as again:
        assert set(range(24)) <= set(bodies(again))


def test_a_new_topic_is_not_given_what_one_of_its_name_had(memory_vfs: MemoryVfs) -> None:
    store = open_store(memory_vfs)
    store.append_batch(mixed(0))
    store.delete_topic(TOPICS[0])
    store.create_topic(TOPICS[0], partitions=2)
    killed(store, memory_vfs)
    with open_store(memory_vfs) as again:
        assert list(again[TOPICS[0]].messages(0)) == []
        assert len(bodies(again)) == 22


def test_the_background_writes_it_to_the_shards_after_a_while(memory_vfs: MemoryVfs) -> None:
    clock = ManualClock()
    with tubestore.open("/s", vfs=memory_vfs, clock=clock, background=False) as store:
        store.ensure_topics({name: tubestore.TopicOptions(partitions=2) for name in TOPICS})
        store.append_batch(mixed(0))
        clock.advance(store.options.journal_flush_ms)
        store.maintain()
        assert store.stats()["dirty_bytes"] == 0


def test_a_forked_child_is_not_stopped_by_a_lock_of_its_parent(memory_vfs: MemoryVfs) -> None:
    store = open_store(memory_vfs)
    assert engine_of(store).opener.journal is not None
    held = engine_of(store).opener.journal.lock
    held.acquire()
    engine_of(store).abandon("forked")
    assert engine_of(store).opener.journal.lock is not held
    held.release()
    with pytest.raises(tubestore.StoreClosed):
        store.append_batch(mixed(0))


def test_a_journal_that_a_full_disk_keeps_from_being_emptied_is_one_line_in_the_log(
    memory_vfs: MemoryVfs, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    def lines() -> int:
        return sum(record.name == "tubestore.journal.journalled" for record in caplog.records)

    faulty = FaultyVfs(memory_vfs)
    settings: dict[str, Any] = {"background": False, "journal_shards_min": 2}
    with tubestore.open("/s", vfs=faulty, clock=clock, **settings) as store:
        for name in "ab":
            store.create_topic(name)
        rows = {"topic": ["a", "b"], "body": [b"x", b"y"]}
        for times in (1, 2):
            store.append_batch(rows)
            faulty.fail("pwrite", path=".tube", error=errno.ENOSPC, forever=True)
            for _ in range(5):
                clock.advance(60_000)
                with contextlib.suppress(TubeStoreError):
                    store.maintain()
            assert lines() == times
            faulty.heal()
            clock.advance(60_000)
            store.maintain()


def test_a_generation_whose_beginning_cannot_be_synced_ends_the_journal(
    memory_vfs: MemoryVfs,
) -> None:
    faulty = FaultyVfs(memory_vfs)
    with open_store(faulty) as store:
        store.append_batch(mixed(0), durability="fsync")
        assert engine_of(store).opener.journal is not None
        engine_of(store).opener.journal.settle()
        faulty.fail("sync", path="journal")
        store.append_batch(mixed(24), durability="fsync")
        assert not engine_of(store).opener.journal.takes(100, 100)
        store.append_batch(mixed(48), durability="fsync")
        assert bodies(store) == list(range(72))
