"""`check` and `repair` report how far they are, also inside a shard."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.engine.sealed import FIRST, ROOT, filled, flip
from tests.support.tube import make_row, write_rows
from tubestore.offline.bytes_read import BytesRead
from tubestore.offline.check import check
from tubestore.offline.repair import repair
from tubestore.segments.listing import find_shards
from tubestore.segments.shard_bytes import WINDOW_BYTES
from tubestore.testing import MemoryVfs

Run = Callable[..., Iterator[Any]]


def calls_of(run: Run, vfs: MemoryVfs, **more: Any) -> list[tuple[int, int]]:
    """Run to the end; return each (bytes that are read, all of them)."""
    calls: list[tuple[int, int]] = []
    for _ in run(ROOT, vfs=vfs, watch=lambda done, total: calls.append((done, total)), **more):
        pass
    return calls


@pytest.mark.parametrize("run", [check, repair])
def test_one_large_shard_is_reported_in_many_steps(run: Run) -> None:
    vfs = MemoryVfs()
    windows = 5
    rows = [make_row(bytes(WINDOW_BYTES // 16), msg_id=n) for n in range(windows * 16)]
    write_rows(vfs, rows, f"{ROOT}/t-0")
    calls = calls_of(run, vfs)
    assert len({done for done, _ in calls}) >= windows
    assert calls == sorted(calls)
    ((last, total),) = {calls[-1]}
    assert last == total
    assert {of for _, of in calls} == {total}


@pytest.mark.parametrize("run", [check, repair])
@pytest.mark.parametrize("damaged", [False, True])
def test_sealed_files_are_read_twice_and_damage_changes_no_total(run: Run, damaged: bool) -> None:
    vfs = filled()
    if damaged:
        flip(vfs, FIRST, 9)
    (shard,) = find_shards(ROOT, vfs)
    files = [*shard.index, *shard.data]
    sealed = [*shard.index[:-1], *shard.data[:-1]]
    assert sealed
    calls = calls_of(run, vfs)
    assert calls == sorted(calls)
    assert calls[-1] == (sum(f.size for f in [*files, *sealed]),) * 2


def test_what_is_mended_is_reported_as_its_plan_is() -> None:
    vfs = filled()
    flip(vfs, FIRST, 9)
    planned = calls_of(repair, vfs)
    assert calls_of(repair, vfs, apply=True)[-1] == planned[-1]


def test_more_than_a_shard_has_is_never_reported() -> None:
    (shard,) = find_shards(ROOT, filled())
    calls: list[tuple[int, int]] = []
    read = BytesRead([shard, shard], lambda done, total: calls.append((done, total)))
    read.begin(shard)
    read.add(1 << 62)
    read.begin(shard)
    read.finish()
    ((half, total), *_) = calls[1:]
    assert calls == [(0, total), (half, total), (half, total), (total, total)]
    assert half * 2 == total
