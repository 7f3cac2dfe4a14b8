"""Digests of sealed segments: made once, gone before what they describe changes, and compared."""

from __future__ import annotations

from posixpath import basename
from typing import Any

from tests.support.engine.sealed import (
    DIGESTS,
    FIRST,
    FIRST_INDEX,
    OWN,
    ROOT,
    SHARD,
    filled,
    flip,
    found,
    open_store,
)
from tests.support.publishing import stage
from tests.support.tube import T0
from tubestore.clock import ManualClock
from tubestore.offline.repair import repair
from tubestore.record.layouts import DATA_HEADER, INDEX_ENTRY
from tubestore.segments.cache_formats import DIGEST_BLOCK_BYTES, signed_digest
from tubestore.segments.digests import digest_blocks, digests_path, parse_digests
from tubestore.store.manager import engine_of
from tubestore.store.topic import shards_of
from tubestore.testing import LyingVfs, MemoryVfs

INDEX_DIGESTS = f"{OWN}/{0:020d}.index.digests"


def start_of(path: str) -> int:
    return int(basename(path).partition(".")[0])


def kept(vfs: MemoryVfs) -> list[str]:
    return sorted(path for path in vfs.tree() if path.endswith(".digests"))


def test_every_sealed_file_has_the_digest_of_each_block_and_the_last_one_has_none() -> None:
    vfs = filled()
    tree = vfs.tree()
    for suffix, directory in ((".tube", SHARD), (".index", f"{SHARD}/index")):
        names = sorted(p for p in tree if p.startswith(f"{directory}/0") and p.endswith(suffix))
        assert len(names) > 2
        for path in names[:-1]:
            known = parse_digests(tree[digests_path(path, start_of(path))])
            data = tree[path]
            assert known.size == len(data)
            assert known.blocks.tolist() == [signed_digest(data)]
        assert digests_path(names[-1], start_of(names[-1])) not in tree
    assert found(vfs) == []


def test_a_block_is_a_mebibyte_and_the_last_one_what_is_left() -> None:
    data = bytes(range(256)) * (DIGEST_BLOCK_BYTES // 256) * 2 + b"rest"
    asked: list[tuple[int, int]] = []

    def read(position: int, size: int) -> bytes:
        asked.append((position, size))
        return data[position : position + size]

    blocks = digest_blocks(len(data), read)
    assert asked == [(0, 1 << 20), (1 << 20, 1 << 20), (2 << 20, 4)]
    assert blocks[0] == blocks[1] != blocks[2]


def test_digests_go_with_the_files_that_retention_removes() -> None:
    vfs = filled(30)
    before = kept(vfs)
    with open_store(vfs) as store:
        store["t"].retain(max_bytes=400)
        assert kept(vfs) != before
        assert DIGESTS not in kept(vfs)
        assert INDEX_DIGESTS not in kept(vfs)
    assert found(vfs) == []


def test_a_file_that_is_cut_and_written_again_is_not_held_against_its_old_digests() -> None:
    vfs = filled()
    with open_store(vfs) as store:
        shard = shards_of(store["t"]).shard(0)
        end = shard.view().index_end
        shard.cut(2 * INDEX_ENTRY.size)  # type: ignore[union-attr]
        while shard.view().index_end < end:
            store["t"].append(b"MESSAGE 9999")
            store.flush()
        assert {f.path for f in found(vfs)} <= {f"{OWN}/checkpoint.json"}
        assert DIGESTS not in kept(vfs)
    assert DIGESTS in kept(vfs)
    assert found(vfs) == []


def test_recovery_that_writes_into_a_sealed_index_takes_its_digests_away() -> None:
    vfs = filled()
    with open_store(vfs) as store:
        store["t"].append(b"more")
    vfs.remove(f"{OWN}/checkpoint.json")
    *_, sealed, _ = sorted(p for p in vfs.tree() if p.endswith(".index"))
    place = len(vfs.tree()[sealed]) - INDEX_ENTRY.size
    flip(vfs, sealed, place + INDEX_ENTRY.position("data_offset") + 7)
    with open_store(vfs) as store:
        assert shards_of(store["t"]).shard(0).recovered.reindexed  # type: ignore[union-attr]
        assert digests_path(sealed, start_of(sealed)) not in kept(vfs)
    assert found(vfs) == []


def test_digests_are_removed_durably_before_a_file_is_sealed_anew() -> None:
    """A power cut may not bring them back: they would accuse the new bytes."""
    vfs = filled()
    journal = vfs.record()
    with open_store(vfs) as store:
        shards_of(store["t"]).shard(0).cut(2 * INDEX_ENTRY.size)  # type: ignore[union-attr]
        for _ in range(12):
            store["t"].append(b"MESSAGE 9999")
            store.flush()
    calls = [(call.kind, call.target or call.path) for call in journal.calls]
    removed = calls.index(("remove", DIGESTS))
    assert calls[removed + 1] == ("sync_directory", OWN)
    written = calls.index(("rename", DIGESTS))
    assert removed < written


def test_a_crash_between_sealing_and_digests_leaves_a_file_without_them() -> None:
    vfs = MemoryVfs(ManualClock(T0))
    store = open_store(vfs)
    topic = store.create_topic("t")
    for n in range(12):
        topic.append(b"message %04d" % n)
    assert kept(vfs) == []
    engine_of(store).abandon("killed")
    vfs.release_locks()
    with open_store(vfs) as store:
        store["t"].append(b"more")
    assert found(vfs) == []


def test_a_disk_that_takes_no_digests_is_no_trouble() -> None:
    class Refusing(LyingVfs):
        def open(self, path: str, *, create: bool = False, writable: bool = True) -> Any:
            if create and path.endswith(".digests.tmp"):
                raise OSError(28, "full")
            return super().open(path, create=create, writable=writable)

    vfs = MemoryVfs(ManualClock(T0))
    with open_store(Refusing(vfs)) as store:  # type: ignore[arg-type]
        topic = store.create_topic("t")
        for n in range(12):
            topic.append(b"message %04d" % n)
            topic.flush()
    assert kept(vfs) == []
    assert found(vfs) == []


def test_what_was_published_has_digests_as_well() -> None:
    vfs = filled(1)
    rows = {"topic": ["t"] * 20, "partition": [0] * 20, "body": [b"row %d" % n for n in range(20)]}
    staged = stage(vfs, "job", rows, segment_size_bytes=300)
    with open_store(vfs) as store:
        store.publish("job", staged)
    sealed = sorted(p for p in vfs.tree() if p.startswith(f"{SHARD}/0"))[:-1]
    assert [p.removesuffix(".digests") for p in kept(vfs) if ".tube." in p] == [
        p.replace(SHARD, OWN) for p in sealed
    ]
    assert found(vfs) == []


def test_repair_leaves_what_only_a_digest_shows_and_reports_it() -> None:
    vfs = filled()
    flip(vfs, FIRST, DATA_HEADER.position("msg_id"))
    for apply in (False, True, True):
        (action,) = repair(ROOT, vfs=vfs, apply=apply)
        assert (action.path, action.action, action.position) == (FIRST, "leave", 0)


def test_repair_takes_the_digests_of_a_file_away_that_it_writes_anew() -> None:
    vfs = filled()
    flip(vfs, FIRST_INDEX, 16)
    planned = list(repair(ROOT, vfs=vfs))
    assert list(repair(ROOT, vfs=vfs, apply=True)) == planned
    assert INDEX_DIGESTS not in kept(vfs)
    assert found(vfs) == []
