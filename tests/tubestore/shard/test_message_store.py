"""One shard: two buffers that change places, levels of durability, and trouble with the disk."""

from __future__ import annotations

import errno
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.tube import (
    GatedVfs,
    Requests,
    RunningClock,
    bodies,
    columns_of,
    make_row,
    make_rows,
    open_shard,
    partition_rows,
)
from tubestore.clock import ManualClock
from tubestore.errors import DiskFull, MessageTooLarge, StoreBusy
from tubestore.options import Durability
from tubestore.record.records import ENTRY_SIZE, HEADER_SIZE
from tubestore.testing import FaultyVfs, MemoryVfs

HOME = "/store/t-0"
DATA = f"{HOME}/{0:020d}.tube"
INDEX = f"{HOME}/index/{0:020d}.index"
ROWS = make_rows(20)
BODIES = [row.payload for row in ROWS]


def size_of(vfs: MemoryVfs, path: str) -> int:
    return len(vfs.read_file(path)) if vfs.exists(path) else 0


# -- the double buffer -----------------------------------------------------------------------


def test_offsets_are_given_out_in_order_without_gap_over_both_buffers(
    memory_vfs: MemoryVfs,
) -> None:
    shard = open_shard(memory_vfs, mem_store_messages=3)
    offsets = [shard.append(row, "memory") for row in ROWS]
    assert offsets == [ENTRY_SIZE * n for n in range(20)]
    assert bodies(shard.view()) == BODIES
    shard.close()


def test_the_buffers_change_places_at_the_message_count(memory_vfs: MemoryVfs) -> None:
    shard = open_shard(memory_vfs, mem_store_messages=3)
    for row in ROWS[:3]:
        shard.append(row, "memory")
    assert size_of(memory_vfs, INDEX) == 0
    shard.append(ROWS[3], "memory")
    assert size_of(memory_vfs, INDEX) == 3 * ENTRY_SIZE
    assert shard.dirty_bytes == HEADER_SIZE + len(BODIES[3])
    shard.close()


def test_the_index_of_a_buffer_takes_28_bytes_a_message_and_no_more(
    memory_vfs: MemoryVfs,
) -> None:
    """TUB-10: the limit of messages is also the limit of the index, which TubeMQ names apart."""
    largest = 0
    shard = open_shard(memory_vfs, mem_store_messages=5)
    for row in make_rows(23):
        shard.append(row, "memory")
        written = size_of(memory_vfs, INDEX)
        assert written % (5 * 28) == 0
        largest = max(largest, shard.view().index_end - written)
    assert largest == 5 * 28
    shard.close()


def test_the_buffers_change_places_at_the_size(memory_vfs: MemoryVfs) -> None:
    shard = open_shard(memory_vfs, mem_store_size_bytes=3 * (HEADER_SIZE + 10))
    for _ in range(3):
        shard.append(make_row(b"0123456789"), "memory")
    assert size_of(memory_vfs, DATA) == 0
    shard.append(make_row(b"!"), "memory")
    assert size_of(memory_vfs, DATA) == 3 * (HEADER_SIZE + 10)
    shard.close()


def test_a_message_larger_than_a_buffer_gets_one_of_its_own(memory_vfs: MemoryVfs) -> None:
    shard = open_shard(memory_vfs, mem_store_size_bytes=100)
    shard.append(make_row(b"small"), "memory")
    shard.append(make_row(b"x" * 5000), "memory")
    shard.append(make_row(b"small again"), "memory")
    assert bodies(shard.view()) == [b"small", b"x" * 5000, b"small again"]
    shard.close()


def test_rows_and_batches_enter_the_same_buffer_in_order(memory_vfs: MemoryVfs) -> None:
    shard = open_shard(memory_vfs)
    shard.append(ROWS[0], "memory")
    assert shard.append_columns(columns_of(ROWS[1:15]), "memory").tolist() == [
        ENTRY_SIZE * n for n in range(1, 15)
    ]
    for row in ROWS[15:18]:
        shard.append(row, "memory")
    shard.append_columns(columns_of(ROWS[18:]), "memory")
    assert bodies(shard.view()) == BODIES
    shard.flush()
    assert bodies(shard.view()) == BODIES
    shard.close()
    again = open_shard(memory_vfs)
    memory_vfs.remove(f"{HOME}/.tubestore/checkpoint.json")
    assert bodies(again.view()) == BODIES
    again.close()
    verified = open_shard(memory_vfs)
    assert verified.recovered.problems == []
    verified.close()


def test_what_several_batches_wrote_verifies(memory_vfs: MemoryVfs) -> None:
    shard = open_shard(memory_vfs)
    shard.append_columns(columns_of(ROWS[:3]), "memory")
    shard.append_columns(columns_of(ROWS[3:]), "memory")
    shard.close()
    memory_vfs.remove(f"{HOME}/.tubestore/checkpoint.json")
    again = open_shard(memory_vfs)
    assert again.recovered.verified == len(ROWS)
    assert again.recovered.reindexed == 0
    again.close()


def test_an_empty_batch_changes_nothing(memory_vfs: MemoryVfs) -> None:
    shard = open_shard(memory_vfs)
    empty = columns_of(ROWS).take(columns_of(ROWS).sizes[:0])
    assert shard.append_columns(empty, "fsync").tolist() == []
    assert not memory_vfs.exists(DATA)
    shard.close()


def test_a_reader_sees_both_buffers_and_the_files_as_one(memory_vfs: MemoryVfs) -> None:
    faulty = FaultyVfs(memory_vfs)
    shard = open_shard(faulty, mem_store_messages=5)
    for row in ROWS[:5]:
        shard.append(row, "page_cache")
    for row in ROWS[5:8]:
        shard.append(row, "memory")
    faulty.fail("pwrite", error=errno.ENOSPC)
    with pytest.raises(DiskFull):
        shard.flush()  # leaves a buffer that is being flushed
    assert bodies(shard.view()) == BODIES[:8]
    shard.append(ROWS[8], "memory")
    view = shard.view()
    assert bodies(view) == BODIES[:9]
    for partition in range(3):
        found = [row["body"] for row in partition_rows(view, partition)]
        assert found == [r.payload for r in ROWS[:9] if r.partition_id == partition]
    shard.close()


def test_a_view_stays_as_it_was_whatever_is_written_later(memory_vfs: MemoryVfs) -> None:
    shard = open_shard(memory_vfs, mem_store_messages=4)
    for row in ROWS[:6]:
        shard.append(row, "memory")
    view = shard.view()
    for row in ROWS[6:]:
        shard.append(row, "fsync")
    assert bodies(view) == BODIES[:6]
    shard.close()


def test_an_append_waits_for_room_and_raises_busy_at_its_deadline(memory_vfs: MemoryVfs) -> None:
    requests = Requests()
    shard = open_shard(memory_vfs, clock=RunningClock(), background=requests, mem_store_messages=2)
    for row in ROWS[:4]:
        shard.append(row, "memory")  # both buffers are full now
    with pytest.raises(StoreBusy, match=r"both buffers stayed full for \d+ ms") as caught:
        shard.append(ROWS[4], "memory")
    assert isinstance(caught.value, TimeoutError)
    assert requests.flushes[0] is shard
    assert bodies(shard.view()) == BODIES[:4]
    shard.flush()
    assert shard.append(ROWS[4], "memory") == 4 * ENTRY_SIZE
    shard.close()


def test_an_append_that_waits_goes_on_when_a_flush_is_done(memory_vfs: MemoryVfs) -> None:
    class Worker(Requests):
        def flush_soon(self, shard: object) -> None:
            if not self.flushes:
                self.flushes.append(shard)  # type: ignore[arg-type]
                threads.submit(shard.flush)  # type: ignore[attr-defined]

    with ThreadPoolExecutor(1) as threads:
        shard = open_shard(memory_vfs, background=Worker(), mem_store_messages=2)
        for row in ROWS[:5]:
            shard.append(row, "memory")
    assert bodies(shard.view()) == BODIES[:5]
    shard.close()


def test_a_batch_above_the_payload_limit_is_refused_whole(memory_vfs: MemoryVfs) -> None:
    shard = open_shard(memory_vfs, payload_size_max=10)
    rows = [make_row(b"0123456789"), make_row(b"0123456789a")]
    with pytest.raises(MessageTooLarge) as caught:
        shard.append_columns(columns_of(rows), "memory")
    assert (caught.value.size, caught.value.limit) == (11, 10)
    assert bodies(shard.view()) == []
    shard.close()


# -- levels ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("level", "written", "synced"),
    [("memory", False, False), ("page_cache", True, False), ("fsync", True, True)],
)
def test_a_level_is_reached_when_append_returns(
    memory_vfs: MemoryVfs, level: Durability, written: bool, synced: bool
) -> None:
    faulty = FaultyVfs(memory_vfs)
    shard = open_shard(faulty)
    shard.append(ROWS[0], level)
    size = HEADER_SIZE + len(BODIES[0])
    assert size_of(memory_vfs, DATA) == (size if written else 0)
    assert size_of(memory_vfs, INDEX) == (ENTRY_SIZE if written else 0)
    assert (faulty.calls["sync"] > 0) == synced
    shard.close()


def test_a_level_covers_everything_earlier_in_the_shard(memory_vfs: MemoryVfs) -> None:
    shard = open_shard(memory_vfs)
    for row in ROWS[:5]:
        shard.append(row, "memory")
    shard.append(ROWS[5], "page_cache")
    assert size_of(memory_vfs, INDEX) == 6 * ENTRY_SIZE
    assert shard.dirty_bytes == 0
    shard.close()


def test_the_fsync_level_syncs_new_directories_too(memory_vfs: MemoryVfs) -> None:
    journal = memory_vfs.record()
    shard = open_shard(memory_vfs)
    shard.append(ROWS[0], "fsync")
    synced = {call.path for call in journal.calls if call.kind == "sync_directory"}
    assert {"/store", HOME} <= synced
    shard.close()


def test_data_is_written_before_the_entries_that_point_to_it(memory_vfs: MemoryVfs) -> None:
    journal = memory_vfs.record()
    shard = open_shard(memory_vfs, mem_store_messages=4)
    for row in ROWS:
        shard.append(row, "memory")
    shard.close()
    data = index = 0
    for call in journal.calls:
        if call.kind == "pwrite" and call.path == DATA:
            data += 1
        elif call.kind == "pwrite" and call.path == INDEX:
            index += 1
            assert index <= data
    assert index == 5


def test_threads_that_wait_for_a_sync_share_it(memory_vfs: MemoryVfs) -> None:
    gated = GatedVfs(memory_vfs, messages=16)
    shard = gated.shard = open_shard(gated)
    before = gated.calls["pwrite"]
    with ThreadPoolExecutor(16) as threads:
        offsets = list(threads.map(lambda row: shard.append(row, "fsync"), ROWS[:16]))
    assert sorted(offsets) == [ENTRY_SIZE * n for n in range(16)]
    assert gated.calls["sync"] <= 2  # the first one, and one for all who came during it
    assert gated.calls["pwrite"] - before <= 4  # and what they all had was written together
    assert sorted(bodies(shard.view())) == sorted(BODIES[:16])
    shard.close()


def test_many_threads_lose_nothing_and_repeat_nothing(memory_vfs: MemoryVfs) -> None:
    shard = open_shard(memory_vfs, mem_store_messages=7, segment_size_bytes=900)
    rows = make_rows(200)
    levels: tuple[Durability, ...] = ("memory", "page_cache", "fsync")

    def append(number: int) -> tuple[int, bytes]:
        row = rows[number]
        return shard.append(row, levels[number % 3]), row.payload

    with ThreadPoolExecutor(8) as threads:
        acked = dict(threads.map(append, range(200)))
    assert sorted(acked) == [ENTRY_SIZE * n for n in range(200)]
    assert bodies(shard.view()) == [acked[offset] for offset in sorted(acked)]
    shard.close()
    again = open_shard(memory_vfs)
    assert bodies(again.view()) == [acked[offset] for offset in sorted(acked)]
    again.close()


# -- what is due -----------------------------------------------------------------------------


def test_an_old_buffer_is_flushed_and_old_writes_are_synced(memory_vfs: MemoryVfs) -> None:
    clock = ManualClock()
    faulty = FaultyVfs(memory_vfs)
    shard = open_shard(faulty, clock=clock, mem_flush_interval_ms=1000, sync_after_ms=5000)
    clock.advance(100_000)
    shard.append(ROWS[0], "memory")
    shard.maintain()
    assert size_of(memory_vfs, INDEX) == 0
    clock.advance(999)
    shard.maintain()
    assert size_of(memory_vfs, INDEX) == 0
    clock.advance(1)
    shard.maintain()
    assert size_of(memory_vfs, INDEX) == ENTRY_SIZE
    clock.advance(5000)
    shard.maintain()
    assert faulty.calls["sync"] >= 2
    before = faulty.calls["sync"]
    clock.advance(50_000)
    shard.maintain()
    assert faulty.calls["sync"] == before  # nothing is behind
    shard.close()


def test_a_sync_is_asked_for_after_so_many_messages_or_bytes(memory_vfs: MemoryVfs) -> None:
    by_count, by_size = Requests(), Requests()
    shard = open_shard(memory_vfs, background=by_count, sync_after_messages=10)
    for row in ROWS[:9]:
        shard.append(row, "page_cache")
    assert by_count.syncs == []
    shard.append(ROWS[9], "page_cache")
    assert by_count.syncs == [shard]
    shard.close()
    other = open_shard(
        memory_vfs,
        "/store/t-1",
        background=by_size,
        sync_after_messages=100,
        sync_after_bytes=2 * (HEADER_SIZE + 50),
    )
    other.append(make_row(b"x" * 50, 10_000), "page_cache")
    assert by_size.syncs == []
    other.append(make_row(b"x" * 50, 10_000), "page_cache")
    assert by_size.syncs == [other]
    other.close()
