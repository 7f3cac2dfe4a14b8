"""Retention while others read: no error that is none, and no damage."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

import tubestore
from tests.support.retained import SMALL, fill, numbers, open_small
from tests.support.retained import small as small
from tubestore.clock import ManualClock
from tubestore.core.vfs import OsVfs
from tubestore.errors import (
    OffsetOutOfRange,
)
from tubestore.offline.check import check
from tubestore.offline.dump import dump
from tubestore.record.records import ENTRY_SIZE
from tubestore.store.manager import MessageStoreManager
from tubestore.store.topic import shards_of
from tubestore.testing import FaultyVfs, MemoryVfs

# -- readers meanwhile -----------------------------------------------------------------------


def test_a_reader_in_another_process_sees_retention_without_errors(
    small: MessageStoreManager, memory_vfs: MemoryVfs, clock: ManualClock
) -> None:
    topic = small.create_topic("t")
    fill(topic, clock)
    with open_small(memory_vfs, clock, "r") as reader:
        seen = reader["t"]
        stream = seen.scan(columns=["body"])
        messages = seen.messages(0)
        assert int(next(messages).body or b"-1") == 0
        files = shards_of(seen).shard(0).files
        for segment in (*files.data, *files.index):
            segment.close()  # as the pool of descriptors does
        topic.retain(max_bytes=0)
        assert stream.read_all().num_rows == 23, "a scan sees what was there at the call"
        assert numbers(seen) == list(range(23)), "and a reader what was there at its refresh"
        reader.refresh()
        assert numbers(seen) == [20, 21, 22]
        with pytest.raises(OffsetOutOfRange):
            seen.read(0, 19 * ENTRY_SIZE)
        assert seen.read(0, 20 * ENTRY_SIZE).next_offset == 23 * ENTRY_SIZE


def test_a_late_reader_gets_the_first_offset_of_the_store(
    small: MessageStoreManager, memory_vfs: MemoryVfs, clock: ManualClock
) -> None:
    """A reader that slept through retention and the grace time, without a lease."""
    topic = small.create_topic("t")
    fill(topic, clock)
    with open_small(memory_vfs, clock, "r") as reader:
        seen = reader["t"]
        shard: Any = shards_of(seen).shard(0)
        for segment in (*shard.files.data, *shard.files.index):
            segment.close()
        topic.retain(max_bytes=0)
        small.empty_trash(grace=0)
        for read in (lambda: seen.read(0, 0), lambda: seen.scan().read_all()):
            with pytest.raises(OffsetOutOfRange) as caught:
                read()
            assert (caught.value.first, caught.value.end) == (20 * ENTRY_SIZE, 23 * ENTRY_SIZE)
        reader.refresh()
        assert numbers(seen) == [20, 21, 22]


class Interrupted(FaultyVfs):
    """Something happens between the listing of the files and the opening of the first."""

    def __init__(self, inner: MemoryVfs, happening: Any) -> None:
        super().__init__(inner)
        self._happening = happening

    def open(self, path: str, *, create: bool = False, writable: bool = True) -> Any:
        happening, self._happening = self._happening, None
        if happening is not None:
            happening()
        return super().open(path, create=create, writable=writable)


def test_retention_is_no_damage_to_readers_from_outside(
    small: MessageStoreManager, memory_vfs: MemoryVfs, clock: ManualClock
) -> None:
    topic = small.create_topic("t")
    fill(topic, clock)
    shown = dump("/s", vfs=Interrupted(memory_vfs, lambda: topic.retain(max_bytes=2500)))
    assert sum(batch.num_rows for batch in shown) == 23, "the files of the listing, in the trash"
    interrupted = Interrupted(memory_vfs, lambda: topic.retain(max_bytes=0))
    assert list(check("/s", vfs=interrupted, wait=lambda _: None)) == []
    fill(topic, clock)

    def remove() -> None:
        topic.retain(max_bytes=0)
        small.empty_trash(grace=0)

    gone_for_good = Interrupted(memory_vfs, remove)
    assert list(check("/s", vfs=gone_for_good, wait=lambda _: None)) == []


def test_a_reader_that_opens_while_files_go_sees_a_whole_shard(
    small: MessageStoreManager, memory_vfs: MemoryVfs, clock: ManualClock
) -> None:
    topic = small.create_topic("t")
    fill(topic, clock)

    def remove() -> None:
        topic.retain(max_bytes=0)
        small.empty_trash(grace=0)

    with open_small(Interrupted(memory_vfs, remove), clock, "r") as reader:
        assert numbers(reader["t"]) == [20, 21, 22]


@pytest.mark.parametrize("stream", ["/s/t-0", "/s/t-0/index"])
def test_a_listing_from_which_every_file_has_gone_is_made_again(
    small: MessageStoreManager, memory_vfs: MemoryVfs, clock: ManualClock, stream: str
) -> None:
    """Whoever lists slowly sees names and no files any more, and none of the new names."""
    fill(small.create_topic("t"), clock)

    class Slow(FaultyVfs):
        seen = 0

        def entries(self, directory: str) -> list[tuple[str, bool, int]]:
            found = super().entries(directory)
            self.seen += directory == stream
            if directory == stream and self.seen == 1:
                return [row for row in found if row[1]]
            return found

    slow = Slow(memory_vfs)
    with open_small(slow, clock, "r") as reader:
        slow.seen = 0
        assert numbers(reader["t"]) == list(range(23))
        assert slow.seen > 1


@pytest.mark.gate
def test_a_reader_beside_a_writer_that_removes_all_the_time_meets_no_other_error(
    tmp_path: Path,
) -> None:
    """Without a grace time: the worst that happens to who is too slow is to be told so."""
    done = threading.Event()
    told: list[OffsetOutOfRange] = []
    seen: list[list[int]] = []
    errors: list[BaseException] = []

    def read() -> None:
        try:
            with tubestore.open(tmp_path, mode="r", vfs=OsVfs(descriptors_max=16)) as reader:
                while not done.is_set():
                    reader.refresh()
                    try:
                        seen.append(numbers(reader["t"]))
                    except OffsetOutOfRange as error:
                        told.append(error)
        except BaseException as error:
            errors.append(error)

    with tubestore.open(tmp_path, background=False, trash_grace_ms=0, **SMALL) as store:
        topic = store.create_topic("t")
        thread = threading.Thread(target=read)
        thread.start()
        try:
            for number in range(100_000):
                topic.append(b"%0100d" % number)
                if number % 7 == 0:
                    topic.flush()
                    topic.retain(max_bytes=2000)
                    if number > 400 and len(seen) + len(told) > 1:
                        break
        finally:
            done.set()
            thread.join()
    assert errors == []
    assert len(seen) + len(told) > 1
    for found in seen:
        assert not found or found == list(range(found[0], found[-1] + 1))
    wrong = [e for e in told if not e.offset < e.first <= e.end]
    assert wrong == []


@pytest.mark.parametrize("holder", ["w", "r"])
def test_a_lease_holds_a_shard_whose_messages_are_only_in_the_journal(
    small: MessageStoreManager, memory_vfs: MemoryVfs, clock: ManualClock, holder: Any
) -> None:
    names = [f"t{n}" for n in range(8)]
    for name in names:
        small.create_topic(name)
    small.append_batch({"topic": names, "body": [b"%d" % n for n in range(8)]})
    assert not memory_vfs.exists("/s/t0-0")
    with open_small(memory_vfs, clock, "r") as reader:
        with (small if holder == "w" else reader).lease(names):
            small.flush()
            clock.advance(60_000)
            assert small.retain(max_age="1ms") == []
            reader.refresh()
            assert [numbers(reader[name]) for name in names] == [[n] for n in range(8)]
        assert len(small.retain(max_age="1ms")) == 2 * len(names)


def test_a_lease_holds_a_shard_whose_messages_are_only_in_memory(
    small: MessageStoreManager, clock: ManualClock
) -> None:
    topic = small.create_topic("t", stores=2)
    topic.append(b"1", partition=10_000, durability="memory")
    with small.lease(["t"]):
        small.flush()
        clock.advance(60_000)
        assert topic.retain(max_age="1ms") == []
        assert numbers(topic, 10_000) == [1]
