"""The shards of a batch: which write at once, and which take no part."""

from __future__ import annotations

from tests.support.engine.mixed import (
    JOURNAL,
    TOPICS,
    killed,
    mixed,
    open_store,
)
from tubestore.store.topic import shards_of
from tubestore.testing import MemoryVfs


def test_a_shard_that_somebody_else_has_written_to_takes_no_part_until_the_next_generation(
    memory_vfs: MemoryVfs,
) -> None:
    """A part of its own that does not fit stands in the journal, before those that would."""
    foreign = open_store(memory_vfs)
    foreign[TOPICS[0]].append(b"another one", partition=0)
    foreign.flush()
    data = memory_vfs.read_file(f"/s/{TOPICS[0]}-0/{0:020d}.tube")
    foreign.close()
    vfs = MemoryVfs()
    store = open_store(vfs)
    store.append_batch(mixed(0))
    killed(store, vfs)
    vfs.make_directories(f"/s/{TOPICS[0]}-0/index")
    vfs.open(f"/s/{TOPICS[0]}-0/{0:020d}.tube", create=True).pwrite(data, 0)
    store = open_store(vfs)
    store.append_batch(mixed(24))
    assert [str(p) for p in store.problems if "another one" in str(p)]
    assert [m.body for m in store[TOPICS[0]].messages(0)] == [b"another one", b"24"]
    assert shards_of(store[TOPICS[0]]).shard(0).stats()["dirty_bytes"] == 0
    assert shards_of(store[TOPICS[1]]).shard(0).stats()["dirty_bytes"] > 0
    killed(store, vfs)
    with open_store(vfs) as again:
        assert [m.body for m in again[TOPICS[0]].messages(0)] == [b"another one", b"24"]


def test_few_shards_and_large_slices_write_their_files_at_once(memory_vfs: MemoryVfs) -> None:
    with open_store(memory_vfs) as store:
        store.append_batch(mixed(0, rows=7))
        large = mixed(0, rows=12).set_column(2, "body", [[b"x" * 20_000] * 12])
        store.append_batch(large)
        assert not memory_vfs.exists(JOURNAL)
