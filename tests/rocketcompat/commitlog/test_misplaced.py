"""Log files that hold the records of another place: reported, and kept whatever opening does."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from rocketcompat.check.whole import check_store
from rocketcompat.inspect.directory import StoreDirectory
from tests.support.rocket.inside import log_of, queues_of
from tests.support.rocket.store.recovered import ROOT, Bench, bodies_of, log_file
from tubestore.clock import ManualClock
from tubestore.errors import CorruptRecord, DiskFull
from tubestore.testing import FaultyVfs

FIRST, LAST = 1, 4
COUNT = 23


@pytest.fixture
def bench(clock: ManualClock) -> Bench:
    return Bench(clock)


def filled(bench: Bench, *, killed: bool) -> None:
    """A store whose last log file is partly filled."""
    store = bench.open()
    bench.put(COUNT)
    assert LAST * 1000 < store.max_physical_offset < LAST * 1000 + 800
    if killed:
        store.flush()
        bench.kill()
    else:
        store.close()


def swap(bench: Bench, one: int, other: int) -> dict[str, bytes]:
    """Swap two files of the log; returns what they hold then."""
    paths = log_file(one), log_file(other)
    first, second = (bench.vfs.read_file(path) for path in paths)
    bench.overwrite(paths[0], 0, second)
    bench.overwrite(paths[1], 0, first)
    return {paths[0]: second, paths[1]: first}


def told(problems: Any) -> list[tuple[str, int, str]]:
    return sorted((p.path, p.position, p.reason) for p in problems if isinstance(p, CorruptRecord))


@pytest.mark.parametrize("mode", ["w", "r"])
@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("pair", [(0, FIRST), (FIRST, LAST)])
def test_swapped_log_files_are_reported_and_stay_as_they_are(
    bench: Bench,
    pair: tuple[int, int],
    killed: bool,
    mode: str,
) -> None:
    filled(bench, killed=killed)
    there = swap(bench, *pair)
    wanted = [
        (log_file(a), 0, f"1000 bytes: holds records of offset {b * 1000}")
        for a, b in sorted([pair, pair[::-1]])
    ]
    findings = check_store(StoreDirectory(ROOT, vfs=bench.vfs))
    found = [(f["path"], f["position"], f["message"].partition(", ")[2]) for f in findings
             if f["reason"] == "damaged"]  # fmt: skip
    assert found == wanted
    with bench.open(mode=mode) as store:
        assert told(store.problems) == wanted
        if mode == "w":
            assert store.recovered.quarantine is None
            bench.put(2, first=COUNT)
            store.flush()
        lost = {log_of(store).gaps.over(u.physical_offset) is not None
                for q in queues_of(store) for u in map(q.unit, range(q.max_offset))}  # fmt: skip
        assert lost == {True, False}
    assert {path: bench.vfs.read_file(path) for path in there} == there
    with bench.open() as store:
        assert told(store.problems) == wanted


@pytest.mark.parametrize("pair", [(0, FIRST), (FIRST, LAST)])
def test_files_that_were_put_back_by_hand_are_read_again(
    bench: Bench,
    pair: tuple[int, int],
) -> None:
    filled(bench, killed=False)
    swap(bench, *pair)
    for topic in ("T0", "T1"):  # built again while the files were elsewhere
        bench.vfs.remove(f"{ROOT}/consumequeue/{topic}/0/{0:020d}")
    with bench.open():
        bench.put(2, first=COUNT)
    swap(bench, *pair)
    with bench.open() as store:
        assert bodies_of(store) == list(range(COUNT + 2))
        damages = [(d.path, d.belongs) for d in log_of(store).gaps]
    # The log had gone on in a new file: what the last one did not hold is a hole now.
    assert damages == ([(log_file(LAST), None)] if LAST in pair else [])


@pytest.mark.parametrize("killed", [False, True])
def test_a_copy_behind_the_end_of_the_log_goes_to_quarantine_and_is_reported(
    bench: Bench,
    killed: bool,
) -> None:
    filled(bench, killed=killed)
    copy, stray = bench.vfs.read_file(log_file(0)), log_file(LAST + 1)
    bench.vfs.open(stray, create=True).close()
    bench.overwrite(stray, 0, copy)
    findings = check_store(StoreDirectory(ROOT, vfs=bench.vfs))
    assert [(f["path"], f["message"]) for f in findings if f["reason"] == "misplaced"] == [
        (stray, "holds records of offset 0; behind the log")
    ]
    with bench.open(mode="r") as reader:
        assert [p[0] for p in told(reader.problems)] == [stray]
    with bench.open() as store:
        ((path, position, reason),) = told(store.problems)
        kept = store.recovered.quarantine
        assert (path, position) == (stray, 0)
        assert reason == f"holds records of offset 0; kept in {kept}"
        assert bodies_of(store) == list(range(COUNT))
    assert bench.vfs.read_file(f"{kept}/commitlog/{stray[-20:]}") == copy


@pytest.mark.parametrize("killed", [False, True])
def test_sound_records_of_another_place_are_kept_when_the_tail_is_cut(
    bench: Bench,
    killed: bool,
) -> None:
    filled(bench, killed=killed)
    path = log_file(LAST)
    end = 800 if killed else bench.store.max_physical_offset % 1000  # type: ignore[union-attr]
    bench.overwrite(path, end, bench.vfs.read_file(log_file(0))[:200])
    whole = bench.vfs.read_file(path)
    with bench.open() as store:
        ((told_path, position, reason),) = told(store.problems)
        kept = store.recovered.quarantine
        assert told_path == path
        assert reason.endswith(f"; kept in {kept}")
        assert bodies_of(store) == list(range(COUNT))
    assert bench.vfs.read_file(f"{kept}/commitlog/{path[-20:]}@{position}")[end:] == whole[end:]


def test_without_room_to_keep_such_records_opening_refuses_after_a_kill_too(
    bench: Bench,
) -> None:
    filled(bench, killed=True)
    path = log_file(LAST)
    bench.overwrite(path, 800, bench.vfs.read_file(log_file(0))[:200])
    before = bench.vfs.read_file(path)
    plain, full = bench.vfs, FaultyVfs(bench.vfs)
    full.fail("pwrite", path="quarantine", error=errno.ENOSPC)
    bench.vfs = full  # type: ignore[assignment]
    with pytest.raises(DiskFull):
        bench.open()
    assert plain.read_file(path) == before


def test_a_file_that_holds_a_record_of_its_own_is_not_taken_for_another(
    bench: Bench,
) -> None:
    filled(bench, killed=False)
    path = log_file(FIRST)
    bench.overwrite(path, 0, bench.vfs.read_file(log_file(0))[:300])
    with bench.open() as store:
        assert told(store.problems) == []
    bench.vfs.remove(f"{ROOT}/.tubestore/progress.json")
    (found,) = (
        f for f in check_store(StoreDirectory(ROOT, vfs=bench.vfs)) if f["reason"] == "damaged"
    )
    assert (found["path"], found["position"]) == (path, 0)
    assert "its own physical offset is 0" in found["message"]
    assert "by their heads" not in found["message"]
