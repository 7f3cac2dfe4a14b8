"""What is ours in a store, as `check`, `dump` and `stat` see it: state, jobs, caches."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import tubestore
from tests.support.engine.damaged.half_published import found, half_published
from tests.support.publishing import CLOCK, ROOT, bodies, numbered, open_store, some, stage
from tests.support.tube import make_rows, open_shard
from tubestore.groups.directory import GroupDirectory
from tubestore.groups.positions import PositionRows, Positions, encode_frame
from tubestore.groups.positions_log import log_name
from tubestore.offline.check import Reason
from tubestore.offline.dump import dump
from tubestore.record.records import ENTRY_SIZE
from tubestore.segments.listing import find_shards
from tubestore.store.topic import shards_of
from tubestore.testing import MemoryVfs

SMALL: dict[str, Any] = {"segment_size_bytes": 300, "index_segment_size_bytes": 5 * ENTRY_SIZE}


@pytest.mark.parametrize("renames", [0, 1, 3, 5, 9])
def test_a_half_published_job_is_an_error_until_it_is_finished(renames: int) -> None:
    vfs = half_published(renames)
    before = vfs.tree()
    (finding,) = found(vfs)
    assert (finding.reason, finding.severity) == (Reason.HALF_PUBLISHED, "error")
    assert finding.path == f"{ROOT}/.tubestore/commits/00000000000000000001.json"
    assert "files are not in their place yet; opening for writing finishes it" in finding.message
    assert found(vfs, is_written=lambda: True) == []
    assert vfs.tree() == before
    with open_store(vfs) as store:
        assert len(bodies(store)) == 31
    assert found(vfs) == []


@pytest.mark.parametrize("renames", [0, 1, 3, 5, 9])
def test_a_dump_shows_a_half_published_job_as_it_will_be(renames: int) -> None:
    vfs = half_published(renames)
    columns = ["topic", "store_id", "partition", "index_offset", "data_offset", "body", "state"]
    shown = [r for batch in dump(ROOT, vfs=vfs) for r in batch.select(columns).to_pylist()]
    with open_store(vfs):
        pass
    after = [r for batch in dump(ROOT, vfs=vfs) for r in batch.select(columns).to_pylist()]
    assert shown == after
    assert len(shown) == 31
    assert {row["state"] for row in shown} == {"ok"}


@pytest.mark.parametrize("renames", [0, 1, 3, 5, 9])
def test_a_listing_for_readers_leaves_a_half_published_job_out(renames: int) -> None:
    shards = find_shards(ROOT, half_published(renames))
    assert sum(shard.entry_count for shard in shards) == 1


@pytest.mark.parametrize("name", ["store.json", "topics.json", "published.json", "jobs.json"])
@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"version": 2}', b'{"version": 1, "features": ["x"]}']
)
def test_a_state_file_that_does_not_open_is_found(name: str, content: bytes) -> None:
    vfs = MemoryVfs(CLOCK)
    with open_store(vfs) as store:
        store.create_topic("a", partitions=3, stores=2)
        store.publish("j", stage(vfs, "j", *some(5)))
    assert found(vfs) == []
    path = f"{ROOT}/.tubestore/{name}"
    vfs.replace_file(path, content)
    (finding,) = found(vfs)
    assert (finding.path, finding.reason) == (path, Reason.BAD_STATE)


def test_a_record_that_makes_no_sense_is_found() -> None:
    vfs = half_published(3)
    path = f"{ROOT}/.tubestore/commits/00000000000000000001.json"
    vfs.replace_file(path, b'{"version": 1}')
    assert Reason.BAD_STATE in {f.reason for f in found(vfs)}


def stored() -> MemoryVfs:
    """A closed store of several files."""
    vfs = MemoryVfs(CLOCK)
    with open_store(vfs, **SMALL) as store:
        store.create_topic("t", partitions=3)
        shard = shards_of(store["t"]).writable(0)
        for row in make_rows(20):
            shard.append(row, "page_cache")
    assert found(vfs) == []
    return vfs


@pytest.mark.parametrize(
    "values",
    [
        {"data_end": 10_000},
        {"index_end": 28},
        {"data_digest": "00"},
        {"version": 2},
        {"index_end": -1},
        {"index_end": "0"},
        {"more": 1},
    ],
)
def test_a_checkpoint_that_is_not_so_is_a_warning(values: dict[str, Any]) -> None:
    vfs = stored()
    path = f"{ROOT}/t-0/.tubestore/checkpoint.json"
    content = json.loads(vfs.read_file(path))
    vfs.replace_file(path, json.dumps({**content, **values}).encode())
    (finding,) = found(vfs)
    assert (finding.path, finding.reason) == (path, Reason.STALE_CACHE)


def test_a_store_that_goes_on_has_no_stale_cache() -> None:
    vfs = MemoryVfs(CLOCK)
    shard = open_shard(vfs, f"{ROOT}/t-0", **SMALL)
    for row in make_rows(40):
        shard.append(row, "fsync")
        if row.msg_id % 7 == 0:
            shard.sync()
            shard.view().counts()
        assert found(vfs) == []
    shard.close()


def test_numbered_bodies_of_a_published_store_are_all_there() -> None:
    vfs = half_published(4)
    with tubestore.open(ROOT, "r", vfs=vfs, clock=CLOCK) as reader:
        assert bodies(reader) == [b"before"]
    with open_store(vfs) as store:
        assert sorted(bodies(store)) == sorted([b"before", *numbered(30)])


def test_damaged_positions_of_a_group_are_a_finding() -> None:
    vfs = MemoryVfs(CLOCK)
    open_store(vfs).close()
    group = GroupDirectory(vfs, ROOT, "g", CLOCK)
    group.make()
    rows = {"t": PositionRows(0, np.array([0]), np.array([28]))}
    for _ in range(2):
        with group.locked():
            group.log.append(group.log.positions.change(1, rows), "fsync")
    assert found(vfs) == []
    path = f"{group.path}/{log_name(1)}"
    file = vfs.open(path)
    at = len(encode_frame(Positions().snapshot()))
    file.pwrite(b"?", at + 41)
    assert [(f.path, f.position, f.reason) for f in found(vfs)] == [(path, at, Reason.BAD_STATE)]
    file.pwrite(b"?", 3)
    assert (path, 0, Reason.BAD_STATE) in [(f.path, f.position, f.reason) for f in found(vfs)]
