"""A ring that `store.json` does not announce: its messages are given to shards that lack them."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

import tubestore
from tests.tubestore.journal.test_ring import bodies, killed, numbered, open_store, segments
from tubestore.errors import DataLoss
from tubestore.journal.lacking import stray_ring
from tubestore.journal.ring_frames import HEAD_SIZE, START_SIZE
from tubestore.offline.check import check
from tubestore.record.records import HEADER_SIZE
from tubestore.segments.inspection import Reason
from tubestore.spark.planning import journal_of
from tubestore.testing import MemoryVfs

STORE = "/s/.tubestore/store.json"


def without(vfs: MemoryVfs) -> None:
    vfs.remove(STORE)


def older(vfs: MemoryVfs) -> None:
    content = json.loads(vfs.read_file(STORE))
    del content["features"]
    vfs.replace_file(STORE, json.dumps(content).encode())


@pytest.fixture
def sent(memory_vfs: MemoryVfs) -> list[bytes]:
    """Leave a killed store; returns what was appended."""
    store = open_store(memory_vfs)
    sent = numbered(store, 15, durability="fsync")
    killed(store, memory_vfs)
    return sent


@pytest.mark.parametrize("change", [without, older])
def test_messages_of_a_ring_that_is_not_announced_are_reported_and_not_lost(
    memory_vfs: MemoryVfs, sent: list[bytes], change: Callable[[MemoryVfs], None]
) -> None:
    change(memory_vfs)
    text = "15 messages of 1 shards are only in segments"
    assert {f.reason for f in check("/s", vfs=memory_vfs)} >= {Reason.JOURNAL_DAMAGED}
    with tubestore.open("/s", "r", vfs=memory_vfs, background=False) as reader:
        assert [problem for problem in reader.problems if text in str(problem)]
    with pytest.raises(DataLoss, match=text):
        journal_of(memory_vfs, "/s").of("a-0")
    names = [path.rpartition("/")[2] for path in segments(memory_vfs)]
    with open_store(memory_vfs) as store:
        assert [problem for problem in store.problems if text in str(problem)]
        assert bodies(store) == sent
        kept = [path for path in memory_vfs.tree() if "quarantine" in path]
        assert [path.rpartition("/")[2] for path in kept] == names
        numbered(store, 3)
    with open_store(memory_vfs) as store:
        assert store.problems == []


def test_a_ring_that_is_not_announced_goes_without_a_word_if_the_shards_have_it(
    memory_vfs: MemoryVfs, sent: list[bytes]
) -> None:
    disk = {path: memory_vfs.read_file(path) for path in segments(memory_vfs)}
    open_store(memory_vfs).close()
    for path, data in list(disk.items())[1:]:
        memory_vfs.open(path, create=True).pwrite(data, 0)
    assert stray_ring(memory_vfs, "/s") is None
    with open_store(memory_vfs) as store:
        assert store.problems == []
        assert segments(memory_vfs) == []
        assert bodies(store) == sent


def test_a_power_cut_that_keeps_the_records_alone_leaves_nothing_to_miss(
    memory_vfs: MemoryVfs, sent: list[bytes]
) -> None:
    """An opening syncs the data before it withdraws the ring; the next one makes the entries."""
    disk = {path: memory_vfs.read_file(path) for path in segments(memory_vfs)}
    open_store(memory_vfs).close()
    for path, data in disk.items():
        memory_vfs.open(path, create=True).pwrite(data, 0)
    for path in [path for path in memory_vfs.tree() if path.endswith(".index")]:
        memory_vfs.open(path).truncate(0)
    memory_vfs.remove("/s/a-0/.tubestore/checkpoint.json")
    memory_vfs.reboot()
    assert stray_ring(memory_vfs, "/s") is None
    with open_store(memory_vfs) as store:
        assert bodies(store) == sent


def test_messages_behind_a_gap_that_a_power_cut_left_are_not_missed_when_the_ring_goes(
    memory_vfs: MemoryVfs, sent: list[bytes]
) -> None:
    """They were not promised: the opening left them in quarantine, and was killed meanwhile."""
    for path in segments(memory_vfs)[:2]:
        memory_vfs.remove(path)
    older(memory_vfs)
    assert stray_ring(memory_vfs, "/s") is None


def test_messages_behind_damage_count_and_those_that_the_damage_took_do_not(
    memory_vfs: MemoryVfs, sent: list[bytes]
) -> None:
    older(memory_vfs)
    memory_vfs.open(segments(memory_vfs)[1]).truncate(130)
    at = START_SIZE + HEAD_SIZE + HEADER_SIZE + 2
    memory_vfs.open(segments(memory_vfs)[0]).pwrite(b"\xff", at)
    left = stray_ring(memory_vfs, "/s")
    assert left is not None
    assert "8 messages of 1 shards" in left.damages[0].reason


def test_segments_that_are_not_announced_go_before_a_ring_is_announced_beside_a_batch(
    memory_vfs: MemoryVfs, sent: list[bytes]
) -> None:
    """What a killed process left of batches stays, and the ring begins beside it."""
    disk = {path: memory_vfs.read_file(path) for path in segments(memory_vfs)}
    store = open_store(memory_vfs)
    store.close()
    store = open_store(memory_vfs, ring_journal=False, journal_shards_min=1)
    store.append_batch({"topic": ["a", "b"] * 4, "body": [b"of a batch"] * 8})
    killed(store, memory_vfs)
    for path, data in disk.items():
        memory_vfs.open(path, create=True).pwrite(data, 0)
    with open_store(memory_vfs) as store:
        assert segments(memory_vfs) == []
        store["a"].append(b"last")
        killed(store, memory_vfs)
    with open_store(memory_vfs) as store:
        assert store.problems == []
        assert bodies(store) == [*sent, *[b"of a batch"] * 4, b"last"]
