"""ConsumeQueue and the table of all queues: places, gaps, offsets."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketcompat.formats import CQ_UNIT
from rocketcompat.options import MessageStoreConfig
from rocketcompat.queues.table import ConsumeQueueTable
from rocketcompat.queues.units import plain_units
from tests.support.golden import GoldenFactory
from tests.support.golden import golden_fixture as golden_fixture
from tests.support.rocket.queues import put, queue_of, table_of
from tubestore.core.vfs import OsVfs
from tubestore.testing.faults import FaultyFile, FaultyVfs
from tubestore.testing.memory_vfs import MemoryVfs

PRE_FILL = "00000000000000007fffffff0000000000000000"


def test_a_queue_that_starts_late_is_pre_filled_from_its_file_on() -> None:
    vfs = MemoryVfs()
    queue = queue_of(vfs)
    put(queue, 10, 2)
    raw = vfs.read_file("/store/consumequeue/T/1/00000000000000000140")
    assert raw.hex().startswith(PRE_FILL * 3 + f"{2000:016x}")
    assert len(raw) == 140
    assert (queue.min_offset, queue.max_offset) == (10, 12)


class CountedVfs(FaultyVfs):
    """Takes down how long each read was and where."""

    def __init__(self, inner: MemoryVfs) -> None:
        super().__init__(inner)
        self.reads: list[tuple[int, int]] = []

    def open(self, path: str, *, create: bool = False, writable: bool = True) -> FaultyFile:
        file = super().open(path, create=create, writable=writable)
        honest = file.pread

        def pread(size: int, position: int) -> bytes:
            self.reads.append((int(file.path.rpartition("/")[2]) + position, size))
            return honest(size, position)

        file.pread = pread  # type: ignore[method-assign]
        return file


def test_300_000_units_fill_a_file_by_default_and_each_is_found_by_one_read() -> None:
    """CQ-08, CQ-09, CQ-12: unit n stands at byte 20 n, and nothing else is read for it."""
    vfs = CountedVfs(MemoryVfs())
    table = ConsumeQueueTable(vfs, "/cq", MessageStoreConfig().consume_queue_file_size)
    queue = table.find_or_create("T", 0)
    put(queue, 0, 300_000)
    assert [(name, size) for name, _, size in vfs.entries("/cq/T/0")] == [("0" * 20, 6_000_000)]
    put(queue, 300_000, 1)
    assert [name for name, _, _ in vfs.entries("/cq/T/0")] == ["0" * 20, f"{6_000_000:020d}"]
    random = Random(1)
    for offset in [0, 299_999, 300_000, *(random.randrange(300_001) for _ in range(1000))]:
        vfs.reads.clear()
        unit = queue.unit(offset)
        assert unit.tags_code == 7 + offset
        assert vfs.reads == [(20 * offset, 20)]


def test_putting_the_same_units_again_changes_nothing() -> None:
    vfs = MemoryVfs()
    queue = queue_of(vfs)
    put(queue, 0, 9)
    before = vfs.read_file("/store/consumequeue/T/1/00000000000000000140")
    put(queue, 3, 6)
    put(queue, 0, 1)
    assert vfs.read_file("/store/consumequeue/T/1/00000000000000000140") == before
    assert (queue.max_offset, queue.refused) == (9, 0)


def test_a_second_record_with_a_taken_offset_is_refused_and_the_first_stays() -> None:
    queue = queue_of(MemoryVfs())
    put(queue, 0, 4)
    put(queue, 2, 4, physical=9000)
    assert queue.units(0, 6)["physical_offset"].tolist() == [1000, 1100, 1200, 1300, 9400, 9500]
    assert queue.refused == 2


def test_a_gap_is_filled_with_units_that_a_later_record_may_take() -> None:
    queue = queue_of(MemoryVfs())
    put(queue, 0, 2)
    put(queue, 4, 1)
    assert queue.units(2, 4)["size"].tolist() == [0x7FFFFFFF] * 2
    put(queue, 2, 2)
    assert queue.units(0, 5)["physical_offset"].tolist() == [1000, 1100, 1200, 1300, 1400]
    assert queue.refused == 0


def test_missing_offsets_point_to_the_damaged_region_before_the_row() -> None:
    queue = queue_of(MemoryVfs())
    put(queue, 0, 2)
    queue.put_rows(np.array([4]), plain_units([5000], [100], [1]), damaged=(1300, 250))
    assert queue.units(2, 4)["physical_offset"].tolist() == [1300, 1300]
    assert queue.units(2, 4)["size"].tolist() == [250, 250]


def test_impossible_queue_offsets_are_refused_and_nothing_is_written() -> None:
    vfs = MemoryVfs()
    queue = queue_of(vfs)
    put(queue, 0, 1)
    for offset in (-5, 1 << 60, 50_000_000):
        queue.put_units(np.array([offset]), [5000], [100], [0])
    assert (queue.max_offset, queue.refused) == (1, 3)


@given(st.integers(0, 40), st.lists(st.integers(1, 9), max_size=8))
def test_any_batches_give_the_bytes_of_unit_after_unit(first: int, counts: list[int]) -> None:
    together, alone = MemoryVfs(), MemoryVfs()
    one, other = queue_of(together), queue_of(alone)
    at = first
    for count in counts:
        put(one, at, count)
        for offset in range(at, at + count):
            put(other, offset, 1)
        at += count
    for name, _, _ in alone.entries("/store/consumequeue/T/1"):
        path = f"/store/consumequeue/T/1/{name}"
        assert together.read_file(path) == alone.read_file(path)
    assert one.max_offset == other.max_offset == (at if counts else 0)


def test_a_trusted_end_costs_no_reads_and_is_used() -> None:
    vfs = MemoryVfs()
    put(queue_of(vfs), 0, 9)
    table = table_of(vfs)
    journal = vfs.record()
    table.load({("T", 1): 5})
    assert table.max_offsets() == {("T", 1): 5}
    queue = table.find("T", 1)
    assert queue is not None
    assert len(queue.units(0, 9)) == 5
    assert len(journal) == 0


def test_fill_units_are_never_the_first_offset() -> None:
    """4.9.8 serves them as messages of 2 GiB."""
    queue = queue_of(MemoryVfs())
    put(queue, 12, 1)
    assert queue.min_offset == 12
    assert queue.max_physical_offset == 2300


@pytest.mark.parametrize("version", ["4.9.8", "5.3.3"])
def test_golden_queues_are_read_and_written_byte_for_byte(
    golden: GoldenFactory, version: str
) -> None:
    """The units of a real store, put through ours in any order of queues, are its files."""
    real = golden("rocketmq", version, "rolled")
    size = real.meta["config"]["mappedFileSizeConsumeQueue"]
    theirs = ConsumeQueueTable(OsVfs(), str(real.store / "consumequeue"), size)
    theirs.load()
    vfs = MemoryVfs()
    ours = table_of(vfs, size)
    for row in real.expected(type="queue"):
        queue = theirs.find(row["topic"], row["queueId"])
        assert queue is not None
        assert (queue.min_offset, queue.max_offset) == (row["minOffset"], row["maxOffset"])
        assert queue.max_physical_offset == row["maxPhysicOffset"]
        copy = ours.find_or_create(row["topic"], row["queueId"])
        units = queue.units(0, queue.max_offset)
        columns = (units[name] for name in CQ_UNIT.dtype.names or ())
        copy.put_units(np.arange(len(units)), *columns)
    for path in (real.store / "consumequeue").rglob("0*0"):
        if path.is_file():
            name = path.relative_to(real.store)
            assert vfs.read_file(f"/store/{name}") == path.read_bytes()
