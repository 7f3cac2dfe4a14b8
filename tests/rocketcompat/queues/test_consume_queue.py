"""ConsumeQueue and the table of all queues: places, gaps, offsets."""

from __future__ import annotations

from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketcompat.formats import CQ_UNIT
from rocketcompat.messages import DispatchBatch
from rocketcompat.options import MessageStoreConfig
from rocketcompat.queues.table import ConsumeQueueTable
from rocketcompat.queues.units import plain_units
from tests.support.golden import GoldenFactory, golden_fixture  # noqa: F401
from tests.support.rocket.queues import put, queue_of, table_of
from tubestore.core.vfs import OsVfs
from tubestore.errors import NotAStore
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


def test_units_roll_into_the_next_file_and_are_read_over_the_border() -> None:
    vfs = MemoryVfs()
    queue = queue_of(vfs)
    put(queue, 0, 17)
    assert [name for name, _, _ in vfs.entries("/store/consumequeue/T/1")] == [
        "00000000000000000000",
        "00000000000000000140",
        "00000000000000000280",
    ]
    assert queue.units(3, 16)["tags_code"].tolist() == list(range(10, 23))
    assert queue.units_in_file(3, 800)["tags_code"].tolist() == [10, 11, 12, 13]
    assert len(queue.units(17, 20)) == 0


class CountedVfs(FaultyVfs):
    """Takes down how long each read was and where."""

    def __init__(self, inner: MemoryVfs) -> None:
        super().__init__(inner)
        self.reads: list[tuple[int, int]] = []

    def open(self, path: str, *, create: bool = False, writable: bool = True) -> FaultyFile:
        file = super().open(path, create=create, writable=writable)
        honest = file.pread

        def pread(size: int, position: int) -> bytes:
            self.reads.append((int(path.rpartition("/")[2]) + position, size))
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


def test_the_first_offset_follows_the_logs_minimum() -> None:
    """As upstream's testCorrectMinOffset; an expired queue begins at its end (5.3.3)."""
    vfs = MemoryVfs()
    table = table_of(vfs, 6_000)
    queue = table.find_or_create("T", 1)
    offsets = np.arange(10_000)
    queue.put_units(offsets, offsets * 100, np.full(10_000, 100), np.zeros(10_000))
    found = []
    for minimum in (0, 2000, 2001, 999_900, 1_000_000):
        table.correct_min_offset(minimum)
        found.append(queue.min_offset)
    assert found == [0, 20, 21, 9_999, 10_000]


def test_fill_units_are_never_the_first_offset() -> None:
    """4.9.8 serves them as messages of 2 GiB."""
    queue = queue_of(MemoryVfs())
    put(queue, 12, 1)
    assert queue.min_offset == 12
    assert queue.max_physical_offset == 2300


def test_queues_of_rocksdb_are_refused() -> None:
    vfs = MemoryVfs()
    vfs.make_directories("/store/consumequeue")
    vfs.open("/store/consumequeue/CURRENT", create=True)
    with pytest.raises(NotAStore, match="RocksDB"):
        table_of(vfs).load()


def test_what_is_no_queue_is_passed_by() -> None:
    vfs = MemoryVfs()
    for name in ("T/0", "T/x", "T/07", "%RETRY%g/3"):
        vfs.make_directories(f"/store/consumequeue/{name}")
    table = table_of(vfs)
    table.load()
    assert [(queue.topic, queue.queue_id) for queue in table] == [("%RETRY%g", 3), ("T", 0)]


def test_a_sync_covers_every_queue_that_was_written_once() -> None:
    vfs = MemoryVfs()
    table = table_of(vfs)
    for queue_id in range(3):
        table.find_or_create("T", queue_id)
    table.mark(0)
    none = np.empty(0, np.int64)
    columns = (none, none, [], *[none] * 7, None, *[none] * 3)
    table.put(DispatchBatch(0, 500, *columns))  # type: ignore[arg-type]
    table.flush(sync=False)
    assert table.ends == (500, 0)
    table.flush(sync=True)
    assert table.ends == (500, 500)


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


def test_a_batch_without_a_queued_record_is_taken(tmp_path: Path) -> None:
    """Prepared and rolled back messages alone made the followers of a store stop."""
    import rocketcompat
    from rocketcompat import Message

    with rocketcompat.open(tmp_path, "w", layouts={"consume_queue"}, background=False) as store:
        prepared = store.put_message(Message("T", b"half", sys_flag=0x4))
        assert store.wait_dispatched(prepared.physical_offset)
        assert store.problems == []
        assert store.put_message(Message("T", b"whole")).queue_offset == 0
