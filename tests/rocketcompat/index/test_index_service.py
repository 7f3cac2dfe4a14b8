"""IndexFile and IndexService: bytes, chains, rolling, search."""

from __future__ import annotations

import itertools
import struct
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketcompat.index.index_file import IndexFile
from rocketcompat.index.index_service import IndexService, index_file_name
from rocketcompat.index.items import IndexGeometry, key_hash
from rocketcompat.record.columns import decode_columns
from rocketcompat.record.verify import sound_chain
from tests.support.golden import GoldenFactory, golden_fixture  # noqa: F401
from tests.support.rocket.index import (
    DIRECTORY,
    Key,
    OneByOne,
    batch_of,
    contents,
    messages,
    service_of,
)
from tubestore.clock import ManualClock
from tubestore.errors import CorruptRecord
from tubestore.testing.faults import FaultyVfs
from tubestore.testing.memory_vfs import MemoryVfs

KEYS = st.lists(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 2), st.integers(-900, 2500)), max_size=9),
    max_size=12,
)


@pytest.mark.gate
@given(KEYS, st.integers(1, 9), st.integers(2, 14))
def test_batches_give_the_bytes_of_key_after_key(
    steps: list[list[tuple[int, int, int]]], slots: int, items: int
) -> None:
    offset, time = 0, 1_700_000_000_000
    reference, vfs = OneByOne(slots, items), MemoryVfs()
    service = service_of(vfs, slots, items)
    for step in steps:
        batch: list[Key] = []
        clocks: dict[int, int] = {}
        reference.make_room()
        for hash_, ahead, later in step:
            offset += 100 * ahead
            time = clocks.setdefault(offset, time + later)
            batch.append((hash_, offset, time))
            reference.put(batch[-1])
        offset += 100
        service.put(batch_of(batch, end=offset))
    service.close()
    assert contents(vfs) == [bytes(raw) for raw in reference.files]


@pytest.mark.parametrize("version", ["4.9.8", "5.3.3"])
@pytest.mark.parametrize("scenario", ["keys-tags", "basic", "rolled"])
def test_the_index_of_a_real_log_has_the_bytes_of_the_real_index(
    golden: GoldenFactory, version: str, scenario: str
) -> None:
    real = golden("rocketmq", version, scenario)
    config = real.meta["config"]
    service = service_of(vfs := MemoryVfs(), config["maxHashSlotNum"], config["maxIndexNum"])
    for path in sorted((real.store / "commitlog").iterdir()):
        data, base = path.read_bytes(), int(path.name)
        columns = decode_columns(data, sound_chain(data, 0, base, len(data)).starts, base)
        rows, hashes = columns.index_keys()
        batch = SimpleNamespace(
            start=base,
            end=base + len(data),
            physical_offsets=columns.column("physical_offset"),
            store_timestamps=columns.column("store_timestamp"),
            key_rows=rows,
            key_hashes=hashes,
        )
        service.put(batch)
    service.close()
    theirs = [path.read_bytes() for path in sorted((real.store / "index").iterdir())]
    assert contents(vfs) == theirs


def test_the_sample_of_the_specification() -> None:
    """A file of 16 slots, 40 items, one message with UNIQ_KEY=U1 and KEYS="k1 k2"."""
    time = 0x1A1FCAED555
    keys = [(key_hash("TopicTest", key), 0, time) for key in ("U1", "k1", "k2")]
    service = service_of(vfs := MemoryVfs(), 16, 40)
    service.put(batch_of(keys))
    service.close()
    (raw,) = contents(vfs)
    assert len(raw) == 904
    assert raw[:40].hex() == "000001a1fcaed555" * 2 + "0" * 32 + "0000000300000004"
    assert [struct.unpack_from(">i", raw, 40 + 4 * slot)[0] for slot in (8, 9, 14)] == [2, 3, 1]
    assert raw[104:124] == bytes(20)
    assert [raw[at : at + 4].hex() for at in (124, 144, 164)] == [
        "0029e3fe",
        "0029e6a8",
        "0029e6a9",
    ]


def test_a_file_holds_one_item_less_than_its_number() -> None:
    """Upstream's testPutKey: 400 items, the 400th key is refused."""
    file = IndexFile.create(MemoryVfs(), "/f", IndexGeometry(100, 400))
    for number in range(399):
        file.put_keys(np.array([number], np.int32), np.array([number]), np.array([1000]))
    assert file.room == 0
    with pytest.raises(ValueError, match="room for 0"):
        file.put_keys(np.array([1], np.int32), np.array([1]), np.array([1000]))
    assert file.select(60, 64, 0, 1 << 60) == [60]


def test_the_default_file_is_sparse_and_has_the_real_size(tmp_path: Path) -> None:
    from tubestore.core.vfs import OsVfs

    path = str(tmp_path / "20261121092406179")
    file = IndexFile.create(OsVfs(), path, IndexGeometry())
    file.put_keys(np.arange(1000, dtype=np.int32), np.arange(1000), np.full(1000, 5))
    file.close()
    status = Path(path).stat()
    assert status.st_size == 420_000_040
    assert status.st_blocks * 512 < 200_000


def test_equal_hashes_are_found_together_newest_first() -> None:
    service = service_of(MemoryVfs(), 7, 60)
    assert key_hash("T", "Aa") == key_hash("T", "BB")
    for place, key in enumerate(("Aa", "x", "BB", "Aa")):
        service.put(batch_of([(key_hash("T", key), 100 * place, 5000 + place)]))
    assert service.select("T", "Aa", 64, 0, 1 << 60)[0] == [300, 200, 0]
    assert service.select("T", "Aa", 2, 0, 1 << 60)[0] == [300, 200]
    places, offsets = service.select_many(np.array([key_hash("T", k) for k in ("x", "BB")], "i4"))
    assert (places.tolist(), offsets.tolist()) == ([0, 1, 1, 1], [100, 300, 200, 0])


def test_a_search_goes_over_files_and_stops_before_the_window() -> None:
    service = service_of(MemoryVfs(), 3, 4)
    for place in range(9):
        service.put(batch_of([(5, 100 * place, 1_000_000 + 10_000 * place)]))
    assert len(service.files) == 3
    everything = [100 * place for place in range(8, -1, -1)]
    assert service.select_hash(5, 64, 0, 1 << 60) == (everything, 1_080_000, 800)
    # Item 3 is the first of its file: its time is measured from the file before,
    # 10 s, but read from its own begin, so it counts as 10 s late.
    assert service.select_hash(5, 64, 1_040_000, 1_050_000)[0] == [500, 400, 300]


def test_names_rise_even_when_the_clock_does_not() -> None:
    assert index_file_name(0, "99991231235959998") == "99991231235959999"
    assert index_file_name(0, "20261231235959999") == "20270101000000000"
    assert index_file_name(0, "99999999999999999") == "100000000000000000"
    clock = ManualClock()
    service = IndexService(vfs := MemoryVfs(), DIRECTORY, IndexGeometry(3, 4), clock)
    for place in range(9):
        clock.advance(-1000)
        service.put(batch_of([(5, 100 * place, 1)]))
    names = [name for name, _, _ in vfs.entries(DIRECTORY)]
    assert len(names) == 3
    assert all(len(name) == 17 for name in names)
    assert names == [file.path.rpartition("/")[2] for file in service.files]


@pytest.mark.parametrize("number", [-1, -(1 << 31), 9, 77, 1 << 30])
def test_an_impossible_number_in_a_slot_counts_as_none_and_a_put_mends_it(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """IDX-19: item 9 is the next one, so a slot cannot name it yet."""
    monkeypatch.undo()  # the invariants do not hold with a damaged slot
    path, vfs = "/f", MemoryVfs()
    file = IndexFile.create(vfs, path, geometry := IndexGeometry(5, 20))
    for place in range(8):
        file.put_keys(np.array([place], np.int32), np.array([place]), np.array([1000]))
    file.close()
    slot_of_3 = 40 + 4 * 3
    vfs.open(path).pwrite(struct.pack(">i", number), slot_of_3)
    again = IndexFile.load(vfs, path, geometry, writable=True)
    assert again.select(3, 64, 0, 1 << 60) == []
    again.put_keys(np.array([3, 8], np.int32), np.array([100, 200]), np.array([1000, 1000]))
    assert again.select(3, 64, 0, 1 << 60) == [100]
    assert again.select(8, 64, 0, 1 << 60) == [200]
    assert again.select(1, 64, 0, 1 << 60) == [1]  # another slot's chain is as it was
    again.close()
    raw = vfs.read_file(path)
    assert struct.unpack_from(">i", raw, slot_of_3) == (10,)
    assert struct.unpack_from(">i", raw, 40 + 4 * 5 + 20 * 9 + 16) == (0,)


def test_another_geometry_is_not_misread_but_a_problem() -> None:
    service = service_of(vfs := MemoryVfs(), 7, 12)
    service.put(batch_of([(5, 0, 1)]))
    service.close()
    other = service_of(vfs, 7, 13)
    assert (other.files, other.is_whole) == ((), False)
    assert [type(problem) for problem in other.problems] == [CorruptRecord]


def test_records_without_keys_make_a_file_as_the_real_class_does() -> None:
    service = service_of(vfs := MemoryVfs())
    service.put(batch_of([], end=500))
    assert contents(vfs) == [bytes(IndexGeometry(7, 12).file_size)]
    assert service.ends == (500, 0)
    assert service_of(vfs).cut(900, 500, lambda offset: None) == 500
    assert service_of(vfs).cut(900, 500) == 0


def test_a_failed_write_can_be_put_again_and_no_key_is_there_twice() -> None:
    steps = messages(3, 5, 20, 2)
    reference, vfs = OneByOne(7, 12), MemoryVfs()
    for key in itertools.chain(*steps):
        reference.put(key)
    for failing in range(1, 9):
        vfs = MemoryVfs()
        faulty = FaultyVfs(vfs)
        service = service_of(faulty)
        service.put(batch_of(steps[0]))
        faulty.fail("pwrite", nth=failing)
        batch = batch_of([key for step in steps[1:] for key in step])
        try:
            service.put(batch)
        except OSError:
            faulty.heal()
            service.put(batch)
        faulty.heal()
        service.put(batch)  # and once more, as a replay would
        service.close()
        assert contents(vfs) == [bytes(raw) for raw in reference.files]


def test_a_sync_makes_the_mark_and_reports_files_that_were_left() -> None:
    left: list[int] = []
    service = service_of(MemoryVfs(), 3, 4, on_roll=left.append)
    for place in range(5):
        service.put(batch_of([(5, 100 * place, 1000 + place)]))
    service.flush(sync=False)
    assert (service.ends, left) == ((500, 0), [])
    service.flush(sync=True)
    assert (service.ends, left) == ((500, 500), [1002])


def put(file: IndexFile, *hashes: int) -> None:
    count = len(hashes)
    file.put_keys(np.array(hashes, np.int32), np.arange(count), np.full(count, 1000))


@pytest.mark.parametrize(
    ("position", "message"),
    [
        (40 + 4 * 3, "a slot was changed, and its page is not marked"),
        (40 + 4 * 5 + 20 * 2 + 16, "item 2 does not follow the newest of its slot"),
    ],
)
def test_slots_and_items_that_contradict_each_other_are_found(position: int, message: str) -> None:
    vfs = MemoryVfs()
    file = IndexFile.create(vfs, "/f", IndexGeometry(5, 20))
    put(file, 3, 8)
    file.flush()
    vfs.open("/f").pwrite(struct.pack(">i", 7), position)
    with pytest.raises(AssertionError, match=message):
        file.check_invariants()


def test_a_file_whose_table_was_given_back_has_the_newest_items_in_its_slots() -> None:
    vfs = MemoryVfs()
    file = IndexFile.create(vfs, "/f", geometry := IndexGeometry(5, 20))
    put(file, 3, 8)
    file.close()
    again = IndexFile.load(vfs, "/f", geometry, writable=False)
    again.check_invariants()
    vfs.open("/f").pwrite(struct.pack(">i", 1), 40 + 4 * 3)
    with pytest.raises(AssertionError, match="a slot of the file has another newest item"):
        again.check_invariants()
