"""Who places the parts of a job; which pairs of files are taken as they are, which rewritten."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import pytest

from tests.support.faults import WatchingVfs
from tests.support.publishing import CLOCK, ROOT, bodies, open_store
from tests.support.tube import columns_of, make_row
from tubestore.core.vfs import Vfs
from tubestore.errors import InvalidMessage, StoreFailed
from tubestore.offline.check import check
from tubestore.staging.job_files import StagedFile
from tubestore.staging.placing import place_all
from tubestore.staging.writer import StagedWriter
from tubestore.store.topic import shards_of
from tubestore.testing import FaultyVfs, MemoryVfs


@pytest.mark.parametrize("threads", [None, 1, 4])
def test_a_small_job_is_placed_by_the_caller_alone(threads: int | None) -> None:
    placed = place_all(lambda part: (part, threading.get_ident()), range(9), 1000, threads)
    assert placed == [(part, threading.get_ident()) for part in range(9)]


def test_the_parts_of_a_large_one_are_placed_at_the_same_time() -> None:
    both = threading.Barrier(2, timeout=10)

    def place(part: int) -> int:
        both.wait()
        return part * 10

    assert place_all(place, range(2), 1 << 30, 2) == [0, 10]


def test_what_one_part_raises_the_caller_gets() -> None:
    def place(part: int) -> int:
        return 1 // part

    for size, threads in ((1, None), (1 << 30, 3)):
        with pytest.raises(ZeroDivisionError):
            place_all(place, range(3), size, threads)


# -- pairs that were staged for a place --------------------------------------------------------

#: Payloads of three tasks: those of the first and of the last are other numbers of records, and
#: as many bytes of them. So the entries of the one between are the same behind either.
TASKS = ([20] * 7, [9] * 9, [48, 48, 48, 48, 52])


def staged_for(vfs: Vfs, start: tuple[int, int] | None) -> list[StagedFile]:
    """Stage three pairs with ids for places behind each other from `start` on, or for none."""
    found, place = [], start
    for number, sizes in enumerate(TASKS):
        places = {} if place is None else {("a", 0): place}
        with StagedWriter(ROOT, "j", f"{number}", vfs=vfs, places=places, token="t") as writer:
            rows = [make_row(b"%d" % number * size, msg_id=size) for size in sizes]
            writer.write_columns("a", columns_of(rows))
            (file,) = writer.finish()
        if place is not None:
            assert (file.index_start, file.data_start) == place
            place = place[0] + file.index_size, place[1] + file.data_size
        found.append(file)
    return found


def files_of(vfs: MemoryVfs) -> dict[str, bytes]:
    return {p: data for p, data in vfs.tree().items() if p.endswith((".tube", ".index"))}


class Staged(FaultyVfs):
    """Counts what is written to staged files, and how often they are synced."""

    def __init__(self, inner: Vfs) -> None:
        super().__init__(inner)
        self.changes: Counter[str] = Counter()

    def _pass(self, call: str, path: str) -> Any:
        if "/staging/" in path and path.endswith((".tube", ".index")):
            self.changes[call] += call in ("pwrite", "sync")
        return super()._pass(call, path)


def published(
    start: tuple[int, int] | None, order: tuple[int, ...] = (0, 1, 2), *, before: int = 0
) -> tuple[dict[str, bytes], int]:
    """Publish pairs behind some messages: (the shard's files, writes and syncs of staged ones)."""
    inner = MemoryVfs(CLOCK)
    files = staged_for(inner, start)
    assert files[0].data_size == files[2].data_size
    vfs = Staged(inner)
    with open_store(vfs) as store:
        store.create_topic("a", partitions=3)
        for number in range(before):
            store["a"].append(b"before %d" % number, partition=0)
        store.publish("j", [files[place] for place in order])
    assert list(check(ROOT, vfs=inner)) == []
    return files_of(inner), vfs.changes.total()


def end_of(before: int) -> tuple[int, int]:
    with open_store(MemoryVfs(CLOCK)) as store:
        store.create_topic("a", partitions=3)
        for number in range(before):
            store["a"].append(b"before %d" % number, partition=0)
        shard = shards_of(store["a"]).writable(0)
        shard.flush()
        return shard.files.index.end, shard.files.data.end


@pytest.mark.parametrize("before", [0, 3])
def test_pairs_that_are_where_they_were_staged_for_are_not_written_to(before: int) -> None:
    files, changes = published(end_of(before), before=before)
    counted_from_0, rewritten = published(None, before=before)
    assert files == counted_from_0
    assert (changes, rewritten > 0) == (0, True)


def test_a_shard_that_grew_meanwhile_gets_the_same_files_rewritten() -> None:
    files, changes = published(end_of(2), before=3)
    assert files == published(None, before=3)[0]
    assert changes > 0


@pytest.mark.parametrize("order", [(0, 2, 1), (1, 2, 0), (2, 1, 0), (0, 1)])
def test_of_a_mixture_those_elsewhere_are_rewritten(order: tuple[int, ...]) -> None:
    assert published((0, 0), order)[0] == published(None, order)[0]


def test_a_pair_for_the_begin_of_a_shard_needs_no_place() -> None:
    assert published(None, (0,))[1] == 0


@pytest.mark.parametrize("ids", [True, False])
def test_what_was_staged_without_a_sync_is_synced_when_it_is_published(ids: bool) -> None:
    inner = MemoryVfs(CLOCK)
    vfs = Staged(inner)
    with StagedWriter(ROOT, "j", "0", vfs=inner, sync=False) as writer:
        batch = {"topic": ["a"] * 3, "partition": [0] * 3, "body": [b"x"] * 3}
        writer.write(batch | ({"msg_id": [1, 2, 3]} if ids else {}))
        staged = writer.finish()
    with open_store(vfs) as store:
        store.create_topic("a", partitions=3)
        store.publish("j", staged)
    assert list(check(ROOT, vfs=inner)) == []
    assert vfs.changes["sync"] == (3 if ids else 2)  # with ids the index is marked first


def test_what_was_staged_without_a_sync_is_read_before_it_is_taken() -> None:
    vfs = MemoryVfs(CLOCK)
    with StagedWriter(ROOT, "j", "0", vfs=vfs, sync=False) as writer:
        rows = {"topic": ["a"] * 3, "partition": [0] * 3, "body": [b"x"] * 3, "msg_id": [1, 2, 3]}
        writer.write(rows)
        (staged,) = writer.finish()
    (path,) = (p for p in vfs.tree() if p.endswith(".tube"))
    vfs.open(path).pwrite(bytes(20), staged.data_size - 20)  # as a power cut may leave it
    with open_store(vfs) as store:
        store.create_topic("a", partitions=3)
        with pytest.raises(InvalidMessage, match="not the bytes that were staged"):
            store.publish("j", [staged])


def test_a_place_does_not_help_rows_that_get_their_ids_when_they_are_published() -> None:
    vfs = MemoryVfs(CLOCK)
    with open_store(vfs) as store:
        store.create_topic("a", partitions=3)
        with StagedWriter(ROOT, "j", "0", vfs=vfs, places={("a", 0): (0, 0)}) as writer:
            writer.write({"topic": ["a"] * 3, "partition": [0] * 3, "body": [b"x"] * 3})
            store.publish("j", writer.finish())
        assert 0 not in store["a"].scan(columns=["msg_id"]).read_all()["msg_id"].to_pylist()


def test_an_index_that_is_not_what_was_staged_is_refused_where_nothing_is_rewritten() -> None:
    vfs = MemoryVfs(CLOCK)
    with open_store(vfs) as store:
        store.create_topic("a", partitions=3)
        files = staged_for(vfs, (0, 0))
        path = f"{ROOT}/.tubestore/staging/job-j/{files[1].name}.index"
        raw = vfs.read_file(path)
        vfs.replace_file(path, raw[:-1] + bytes([raw[-1] ^ 1]))
        with pytest.raises(InvalidMessage, match="its index is not what was staged"):
            store.publish("j", files)


@pytest.mark.parametrize("order", [(1, 2, 0), (2, 1, 0)])
def test_what_a_failure_leaves_half_rewritten_is_not_taken_as_it_is(order: tuple[int, ...]) -> None:
    """In the other order each pair stands where it was staged for, or seems to by its index."""
    expected = published((0, 0))[0]
    calls = _calls_of_placing(order)
    assert len(calls) >= 12
    for call, nth in calls:
        inner = MemoryVfs(CLOCK)
        faulty = FaultyVfs(inner)
        files = staged_for(inner, (0, 0))
        with open_store(faulty) as store:
            store.create_topic("a", partitions=3)
            faulty.fail(call, nth=nth)
            with pytest.raises(StoreFailed):
                store.publish("j", [files[place] for place in order])
            faulty.heal()
            store.publish("j", files)
            assert len(bodies(store)) == sum(map(len, TASKS))
        assert files_of(inner) == expected, (call, nth)


def _calls_of_placing(order: tuple[int, ...]) -> list[tuple[str, int]]:
    """Every write and sync of a publish before its record."""
    inner = MemoryVfs(CLOCK)
    files = staged_for(inner, (0, 0))
    watching = WatchingVfs(inner)
    with open_store(watching) as store:
        store.create_topic("a", partitions=3)
        watching.on = True
        store.publish("j", [files[place] for place in order])
        watching.on = False
    return [one for one in watching.calls_until_the_record() if one[0] in ("pwrite", "sync")]
