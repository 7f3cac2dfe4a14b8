"""What is ours in a store, as `check`, `dump` and `stat` see it: state, jobs, caches."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import numpy as np
import pytest

import tubestore
from tests.proof.explorer.explore import seed_from_environment
from tests.support.publishing import CLOCK, ROOT, bodies, numbered, open_store, some, stage
from tests.support.tube import make_rows, open_shard
from tubestore.errors import NotAStore, StoreFailed
from tubestore.groups.directory import GroupDirectory
from tubestore.groups.positions import PositionRows, Positions, encode_frame
from tubestore.groups.positions_log import log_name
from tubestore.offline.check import Finding, Reason, check
from tubestore.offline.dump import dump
from tubestore.record.records import ENTRY_SIZE
from tubestore.segments.listing import find_shards
from tubestore.store.topic import shards_of
from tubestore.testing import FaultyVfs, MemoryVfs

SMALL: dict[str, Any] = {"segment_size_bytes": 300, "index_segment_size_bytes": 5 * ENTRY_SIZE}


def found(vfs: MemoryVfs, **how: Any) -> list[Finding]:
    return list(check(ROOT, vfs=vfs, wait=lambda _: None, **how))


def half_published(renames: int) -> MemoryVfs:
    """A store in which a job of many files stopped after some of its renames."""
    vfs = MemoryVfs(CLOCK)
    faulty = FaultyVfs(vfs)
    store = open_store(faulty)
    store.create_topic("a", partitions=3, stores=3)
    store["a"].append(b"before", partition=0)
    store["a"].flush()
    parts = (0, 1, 10_002, 20_000)
    staged = stage(vfs, "j", *some(30, partitions=parts), segment_size_bytes=300)
    fault = faulty.fail("rename", nth=renames + 1, forever=True)
    with pytest.raises(StoreFailed):
        store.publish("j", staged)
    assert fault.struck
    with pytest.raises(StoreFailed):  # said once more
        store.close()
    return vfs


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


def test_a_job_that_cannot_go_on_reports_why() -> None:
    vfs = half_published(3)
    gone = next(p for p in vfs.tree() if "/staging/" in p and p.endswith(".tube"))
    vfs.remove(gone)
    messages = [f.message for f in found(vfs) if f.reason is Reason.HALF_PUBLISHED]
    assert len(messages) == 1
    assert f"it cannot go on: {gone} is gone" in messages[0]
    with pytest.raises(NotAStore, match="is gone; see `tubestore repair`"):
        open_store(vfs)


def test_a_job_does_not_go_on_behind_what_a_real_broker_has_written_meanwhile() -> None:
    vfs = half_published(0)
    data = max(p for p in vfs.tree() if "a-0/0" in p and p.endswith(".tube"))
    vfs.open(data).pwrite(b"x" * 60, len(vfs.read_file(data)))
    messages = [f.message for f in found(vfs) if f.reason is Reason.HALF_PUBLISHED]
    assert len(messages) == 1
    assert "a-0 ends at" in messages[0]
    with pytest.raises(NotAStore, match="goes on at"):
        open_store(vfs)


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


# -- opening and check agree on what a settings file may say -------------------------------------

STRANGE_VALUES = (
    0, -1, True, 1.5, 10_001, 1 << 63, 10**30, "9", "xxh4", "", None, [], {}, [[]], {"a": 1},
)  # fmt: skip
STRANGE_FILES = {
    "nothing": b"",
    "no UTF-8": b"\xff\xfe{",
    "nested deeply": b"[" * 100_000,
    "a nested version": b'{"version":' + b"[" * 100_000,
    "a number of many digits": b'{"version": ' + b"9" * 5000 + b"}",
    "a list": b"[]",
    "null": b"null",
    "no number": b"NaN",
    "a version that is true": b'{"version": true}',
}


def with_topics() -> MemoryVfs:
    vfs = MemoryVfs(CLOCK)
    with open_store(vfs) as store:
        store.create_topic("a", partitions=3, stores=2, max_age="7d", max_bytes=1 << 40)
        store.create_topic("b-c")
        store["a"].append(b"body", partition=0)
    return vfs


def copy_of(vfs: MemoryVfs) -> MemoryVfs:
    copy = MemoryVfs(CLOCK)
    for path, content in vfs.tree().items():
        copy.make_directories(path.rpartition("/")[0])
        copy.open(path, create=True).pwrite(content, 0)
    return copy


def is_refused(vfs: MemoryVfs) -> bool:
    """Whether opening, to read and to write, is refused, or says that something is wrong."""
    answers = set()
    for mode in ("r", "w"):
        try:
            with open_store(copy_of(vfs), mode) as store:
                answers.add(bool(store.problems))
        except NotAStore:
            answers.add(True)
    (answer,) = answers
    return answer


def assert_check_agrees(vfs: MemoryVfs, path: str, content: bytes) -> bool:
    vfs.replace_file(path, content)
    findings = [f for f in found(vfs) if f.reason is Reason.BAD_STATE]
    refused = is_refused(vfs)
    assert bool(findings) == refused, f"{path} {content[:200]!r}: {findings}, refused {refused}"
    assert {f.path for f in findings} <= {path}
    return refused


@pytest.mark.parametrize("content", STRANGE_FILES.values(), ids=STRANGE_FILES)
@pytest.mark.parametrize("name", ["store.json", "topics.json", "published.json"])
def test_a_state_file_that_makes_no_sense_is_refused_and_found(name: str, content: bytes) -> None:
    assert assert_check_agrees(with_topics(), f"{ROOT}/.tubestore/{name}", content)


@pytest.mark.parametrize("name", ["a/../b", "..", "", "a b", "x" * 200])
def test_settings_of_a_topic_whose_name_no_directory_can_carry_are_refused(name: str) -> None:
    content = json.dumps({"version": 1, "topics": {name: {}}}).encode()
    assert assert_check_agrees(with_topics(), f"{ROOT}/.tubestore/topics.json", content)


def mutated(random: Random, content: bytes) -> bytes:
    """Return a state file with something in it changed: a value, a name, or some bytes."""
    if random.random() < 0.3:
        raw = bytearray(content)
        for _ in range(random.choice((1, 2, 5))):
            raw[random.randrange(len(raw))] ^= 1 << random.randrange(8)
        return bytes(raw)
    state = json.loads(content)
    inside = state
    while isinstance(inside, dict) and inside:
        name = random.choice(sorted(inside))
        if not isinstance(inside[name], dict) or random.random() < 0.2:
            break
        inside = inside[name]
    action = random.random()
    if isinstance(inside, dict) and inside and action < 0.6:
        inside[name] = random.choice(STRANGE_VALUES)
    elif isinstance(inside, dict) and inside and action < 0.8:
        del inside[name]
    elif isinstance(inside, dict):
        inside[random.choice(("x", "features", "deleted", "id"))] = random.choice(STRANGE_VALUES)
    return json.dumps(state).encode()


@pytest.mark.parametrize("name", ["store.json", "topics.json"])
def test_check_finds_a_changed_settings_file_exactly_when_opening_refuses_it(name: str) -> None:
    seed = seed_from_environment()
    print(f"CRASH_SEED={seed}")
    vfs, path = with_topics(), f"{ROOT}/.tubestore/{name}"
    content, random = vfs.read_file(path), Random(seed)
    answers = {
        assert_check_agrees(copy_of(vfs), path, mutated(random, content)) for _ in range(150)
    }
    assert answers == {True, False}


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
