"""Index files after a crash: which items are kept, and that a replay gives the bytes."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketcompat.index.index_service import IndexService
from rocketcompat.index.items import IndexGeometry
from tests.support.rocket.index import (
    DIRECTORY,
    Key,
    OneByOne,
    batch_of,
    contents,
    messages,
    service_of,
)
from tubestore.testing.memory_vfs import MemoryVfs


def _crashed(counts: Sequence[int]) -> tuple[MemoryVfs, list[list[Key]], bytes]:
    """A store killed after the last batch: nothing was flushed. Also: what a clean one has."""
    clean = service_of(other := MemoryVfs())
    killed = service_of(vfs := MemoryVfs())
    steps = messages(*counts)
    for step in steps:
        for service in (clean, killed):
            service.put(batch_of(step) if step else batch_of([], end=100))
    clean.close()
    return vfs, steps, b"".join(contents(other))


def _replay(service: IndexService, steps: list[list[Key]], resume: int) -> None:
    for place, step in enumerate(steps):
        if step and 100 * place >= resume:
            service.put(batch_of(step))


@pytest.mark.parametrize("believed", [False, True])
@pytest.mark.parametrize("trusted", [None, 0, 100, 300, 700, 900, 1000])
@pytest.mark.parametrize("counts", [(3,) * 10, (1, 0, 5, 0, 20, 1, 0, 2, 2, 1), (25, 1) * 5])
def test_recovery_and_replay_give_the_bytes_of_a_clean_run(
    counts: Sequence[int], trusted: int | None, believed: bool
) -> None:
    vfs, steps, clean = _crashed(counts)
    lowered: list[int] = []
    for _ in range(2):  # the second time after a crash right behind the recovery
        service = service_of(vfs)
        resume = service.cut(1000, trusted, lowered.append if believed else None)
        if believed and trusted is not None:
            assert resume == trusted
    assert lowered == []
    _replay(service, steps, resume)
    service.close()
    assert b"".join(contents(vfs)) == clean


@pytest.mark.parametrize("log_end", range(0, 1100, 100))
def test_items_of_records_that_the_log_lost_are_dropped(log_end: int) -> None:
    vfs, steps, _ = _crashed((3, 1, 4) * 3)
    service = service_of(vfs)
    resume = service.cut(log_end, None)
    assert resume <= log_end
    _replay(service, steps[: log_end // 100], resume)
    service.close()
    reference = OneByOne(7, 12)
    for key in itertools.chain(*steps[: log_end // 100]):
        reference.put(key)
    assert contents(vfs) == [bytes(raw) for raw in reference.files]


@given(st.data())
def test_any_half_of_the_last_write_is_recovered_exactly_once(data: st.DataObject) -> None:
    counts = data.draw(st.lists(st.integers(0, 6), min_size=2, max_size=8))
    vfs, steps, clean = _crashed(counts)
    names = [name for name, _, _ in vfs.entries(DIRECTORY)]
    torn = vfs.open(f"{DIRECTORY}/{names[-1]}")
    at = data.draw(st.integers(IndexGeometry(7, 12).items_start, torn.size()))
    torn.pwrite(bytes(torn.size() - at), at)
    service = service_of(vfs)
    resume = service.cut(100 * len(counts), None)
    _replay(service, steps, resume)
    service.close()
    ours = b"".join(contents(vfs))
    assert ours == clean or not any(clean)


def test_items_that_were_lost_below_the_mark_are_noticed() -> None:
    """A power cut may keep later pages and lose earlier ones; then the mark is not believed."""
    vfs, steps, clean = _crashed((3, 3, 3))
    (name, _, _) = vfs.entries(DIRECTORY)[0]
    geometry = IndexGeometry(7, 12)
    vfs.open(f"{DIRECTORY}/{name}").pwrite(bytes(20), geometry.item_position(5))
    service = service_of(vfs)
    lowered: list[int] = []
    resume = service.cut(300, 300, lowered.append)
    assert [resume] == lowered == [100]
    _replay(service, steps, resume)
    service.close()
    assert b"".join(contents(vfs)) == clean


def test_an_index_that_was_deleted_is_built_from_the_start() -> None:
    service = service_of(MemoryVfs())
    lowered: list[int] = []
    assert service.cut(1000, 700, lowered.append) == 0
    assert lowered == [0]


def test_files_of_a_killed_process_get_durable_names_before_anything_counts_as_synced() -> None:
    vfs = MemoryVfs()
    service_of(vfs).put(batch_of([(1, 0, 5)]))
    journal = vfs.record()
    service = service_of(vfs)
    resume = service.cut(100, 100)
    service.mark(resume, resume)
    service.put(batch_of([(1, 0, 5)]))
    service.flush(sync=True)
    assert service.ends == (100, 100)
    assert DIRECTORY in [call.path for call in journal.calls if call.kind == "sync_directory"]


def test_items_that_only_the_header_of_a_power_cut_knows_are_no_items() -> None:
    """Zeros would be of hash 0 and of the log's first message, if that has an item before."""
    vfs = MemoryVfs()
    service = service_of(vfs)
    service.put(batch_of([(3, 0, 5), (4, 100, 6), (5, 200, 7)]))
    service.close()
    (name,) = [name for name, _, _ in vfs.entries(DIRECTORY)]
    file = vfs.open(f"{DIRECTORY}/{name}")
    file.pwrite(bytes(40), 40 + 4 * 7 + 20 * 2)  # the second and the third
    service = service_of(vfs)
    assert service.cut(300, 100) == 0
    service.put(batch_of([(3, 0, 5), (4, 100, 6), (5, 200, 7)]))
    service.close()
    assert service_of(vfs).stats() == {"files": 1, "items": 3}
