"""Which directories are shards: the same for opening and for what looks at files."""

from __future__ import annotations

import pytest

import tubestore
from tubestore.errors import NotAStore
from tubestore.offline.check import check
from tubestore.segments.listing import find_shards
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
