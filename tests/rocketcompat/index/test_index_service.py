"""IndexFile and IndexService: bytes, chains, rolling, search."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketcompat.index.index_service import IndexService, index_file_name
from rocketcompat.index.items import IndexGeometry
from rocketcompat.record.columns import decode_columns
from rocketcompat.record.verify import sound_chain
from tests.support.golden import GoldenFactory
from tests.support.golden import golden_fixture as golden_fixture
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


def test_another_geometry_is_not_misread_but_a_problem() -> None:
    service = service_of(vfs := MemoryVfs(), 7, 12)
    service.put(batch_of([(5, 0, 1)]))
    service.close()
    other = service_of(vfs, 7, 13)
    assert (other.files, other.is_whole) == ((), False)
    assert [type(problem) for problem in other.problems] == [CorruptRecord]


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
