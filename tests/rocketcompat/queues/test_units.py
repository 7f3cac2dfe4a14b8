"""Units of a queue: their bytes, and where they end after a close and after a crash (spec §2)."""

from __future__ import annotations

import pytest

from rocketcompat.queues.units import units_of
from tests.support.rocket.queues import put, queue_of, reopened, table_of
from tubestore.testing.memory_vfs import MemoryVfs


def test_a_unit_has_the_bytes_of_the_real_one() -> None:
    assert units_of([0], [0x89], [2598919]).tobytes().hex() == (
        "000000000000000000000089000000000027a807"
    )


@pytest.mark.parametrize("count", [0, 1, 6, 7, 8, 14, 21])
def test_the_end_of_a_closed_queue_is_found_without_a_hint(count: int) -> None:
    vfs = MemoryVfs()
    table = table_of(vfs)
    queue = table.find_or_create("T", 1)
    put(queue, 0, count + 1)
    table.close()
    assert reopened(vfs).max_offset == count + 1


def test_recovery_cuts_units_of_lost_records_and_zeroes_what_was_behind() -> None:
    vfs = MemoryVfs()
    put(queue_of(vfs), 0, 17)
    queue = reopened(vfs)
    assert queue.recover(1900) == 9
    assert queue.max_offset == 9
    assert [n for n, _, _ in vfs.entries("/store/consumequeue/T/1")] == [
        "00000000000000000000",
        "00000000000000000140",
    ]
    assert not any(vfs.read_file("/store/consumequeue/T/1/00000000000000000140")[40:])
    put(queue, 9, 3)
    assert reopened(vfs).recover(1 << 40) == 12


def test_stale_units_behind_the_end_do_not_come_back() -> None:
    """The real ones take them for good (oracle 2.1): their offsets fall, which ours must not."""
    vfs = MemoryVfs()
    queue = queue_of(vfs)
    put(queue, 0, 6)
    stale = units_of([1150, 1250], [100, 100], [1, 1]).tobytes()
    file = vfs.open("/store/consumequeue/T/1/00000000000000000000")
    file.pwrite(units_of([5000], [100], [1]).tobytes() + stale, 80)
    assert reopened(vfs).recover(1 << 40) == 5


def test_an_all_zero_last_file_holds_no_unit() -> None:
    """Upstream keeps unit 0 of it unseen: the phantom (0, 0, 0) of R2."""
    vfs = MemoryVfs()
    put(queue_of(vfs), 0, 7)
    vfs.open("/store/consumequeue/T/1/00000000000000000140", create=True).truncate(140)
    assert reopened(vfs).max_offset == 7
    assert reopened(vfs).recover(1 << 40) == 7


def test_recovery_that_keeps_nothing_leaves_an_empty_queue() -> None:
    vfs = MemoryVfs()
    put(queue_of(vfs), 10, 12)
    queue = reopened(vfs)
    assert queue.recover(0) == 0
    assert (queue.min_offset, queue.max_offset) == (0, 0)
    put(queue, 10, 1)
    assert (queue.min_offset, queue.max_offset) == (10, 11)


def test_recovery_can_be_repeated_and_gives_the_same() -> None:
    vfs = MemoryVfs()
    put(queue_of(vfs), 3, 17)
    assert [reopened(vfs).recover(2500) for _ in range(3)] == [15, 15, 15]


def test_a_torn_write_is_cut_at_its_first_missing_unit() -> None:
    vfs = MemoryVfs()
    put(queue_of(vfs), 0, 7)
    vfs.open("/store/consumequeue/T/1/00000000000000000000").pwrite(bytes(25), 50)
    assert reopened(vfs).recover(1 << 40) == 2
