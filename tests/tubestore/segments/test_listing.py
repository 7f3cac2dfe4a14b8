"""Which directories are shards: the same for opening and for what looks at files."""

from __future__ import annotations

import pytest

import tubestore
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
