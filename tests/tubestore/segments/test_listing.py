"""Which directories are shards, and their files as they lie, also where they were listed before."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tubestore
from tests.support.engine.damaged.half_published import half_published
from tests.support.engine.histories import ROOT, STEPS, History
from tubestore.errors import NotAStore
from tubestore.offline.check import check
from tubestore.segments.listing import KnownShards, find_shards
from tubestore.testing import MemoryVfs


@pytest.mark.parametrize(
    ("content", "is_shard"),
    [
        ("index/", True),
        (f"{0:020d}.tube", True),
        (".tubestore/", True),
        ("", False),
        ("notes.txt", False),
    ],
)
def test_a_directory_is_a_shard_by_what_is_in_it(
    memory_vfs: MemoryVfs, content: str, is_shard: bool
) -> None:
    home = "/store/t-0"
    memory_vfs.make_directories("/store/other-0/index")
    memory_vfs.make_directories(home)
    if content.endswith("/"):
        memory_vfs.make_directories(f"{home}/{content[:-1]}")
    elif content:
        memory_vfs.open(f"{home}/{content}", create=True)
    found = {shard.topic for shard in find_shards("/store", memory_vfs)}
    assert found == ({"t", "other"} if is_shard else {"other"})
    with tubestore.open("/store", "r", vfs=memory_vfs) as store:
        assert set(store.topics()) == found


@settings(max_examples=15, deadline=None)
@given(st.lists(st.sampled_from(STEPS), max_size=12), st.booleans())
def test_a_second_listing_of_a_store_is_what_the_first_one_of_another_process_is(
    steps: list[str], with_pending: bool
) -> None:
    before = KnownShards()
    with History() as history:
        history.step("batch")
        for step in steps:
            find_shards(ROOT, history.vfs, before=before, with_pending=with_pending)
            history.step(step)
            anew = find_shards(ROOT, history.vfs, with_pending=with_pending)
            again = find_shards(ROOT, history.vfs, before=before, with_pending=with_pending)
            assert again == anew
            last = find_shards(ROOT, history.vfs, before=before, with_pending=with_pending)
            assert [id(shard) for shard in last] == [id(shard) for shard in again]


@pytest.mark.parametrize("renames", [0, 1, 2, 5])
def test_a_second_listing_of_a_job_that_is_half_published_is_what_the_first_one_is(
    renames: int,
) -> None:
    vfs, before = half_published(renames), KnownShards()
    for with_pending in (False, True, False):
        for _ in range(2):
            found = find_shards(ROOT, vfs, before=before, with_pending=with_pending)
            assert found == find_shards(ROOT, vfs, with_pending=with_pending)


def without_state(vfs: MemoryVfs) -> str:
    """Make a store, remove its state as a copy of `ROOT/*` does, and return where that was."""
    with tubestore.open("/store", vfs=vfs, background=False) as store:
        store.create_topic("t").append(b"message")
    for path in vfs.tree():
        if path.startswith("/store/.tubestore/"):
            vfs.remove(path)
    (writer,) = [name for name, _, _ in vfs.entries("/store/.tubestore/writers")]
    for name in ("staging", "commits", "trash", f"writers/{writer}", "writers", ""):
        if vfs.exists(f"/store/.tubestore/{name}"):
            vfs.remove_directory(f"/store/.tubestore/{name}".rstrip("/"))
    return "/store/.tubestore"


def test_a_root_that_lost_its_state_is_reported_by_check_and_by_each_opening_until_it_is_made_anew(
    memory_vfs: MemoryVfs,
) -> None:
    path = without_state(memory_vfs)
    (finding,) = [f for f in check("/store", vfs=memory_vfs) if f.path == path]
    assert (finding.severity, finding.reason) == ("error", "missing_file")
    for mode in ("r", "r", "w"):
        with tubestore.open("/store", mode, vfs=memory_vfs, background=False) as store:
            assert [getattr(problem, "path", "") for problem in store.problems] == [path]
            assert [m.body for m in store["t"].messages(0)] == [b"message"]
    with tubestore.open("/store", "w", vfs=memory_vfs, background=False) as store:
        assert store.problems == []
    assert [f for f in check("/store", vfs=memory_vfs) if f.path == path] == []


def test_a_store_of_a_broker_has_no_state_to_lose(memory_vfs: MemoryVfs) -> None:
    without_state(memory_vfs)
    for path in memory_vfs.tree():
        if "/.tubestore/" in path:
            memory_vfs.remove(path)
    memory_vfs.remove_directory("/store/t-0/.tubestore")
    assert list(check("/store", vfs=memory_vfs)) == []
    for mode in ("r", "w"):
        with tubestore.open("/store", mode, vfs=memory_vfs, background=False) as store:
            assert store.problems == []


def test_an_empty_directory_is_no_store_to_check(memory_vfs: MemoryVfs) -> None:
    memory_vfs.make_directories("/store")
    with pytest.raises(NotAStore, match="it is empty"):
        list(check("/store", vfs=memory_vfs))
