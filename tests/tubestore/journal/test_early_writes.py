"""Shards write what the oldest segment of a full ring holds before it is needed."""

from __future__ import annotations

from typing import Any

import pytest

import tubestore
from tubestore.clock import ManualClock
from tubestore.errors import StoreFailed
from tubestore.journal import ring
from tubestore.journal.early_writes import EarlyWrites
from tubestore.store.manager import engine_of
from tubestore.testing import FaultyVfs, MemoryVfs

STEPS = 10


class FakeShard:
    """Says how it was asked."""

    name = "t-0"

    def __init__(self, *, deleted: bool = False, fails: bool = False) -> None:
        self.asked: list[tuple[int, float]] = []
        self._deleted, self._fails = deleted, fails

    def write_below(self, position: int, patience: float = -1) -> int:
        self.asked.append((position, patience))
        if self._fails:
            raise StoreFailed("/s", "no disk")
        return position

    def leave_ring(self) -> None:
        raise NotImplementedError

    def sync_written(self) -> None:
        raise NotImplementedError

    def written_end(self) -> int:
        raise NotImplementedError

    def note_synced(self, data_end: int) -> None:
        raise NotImplementedError

    def is_deleted(self) -> bool:
        return self._deleted


class FakeSegment:
    """A full segment with frames of some shards."""

    def __init__(self, end: int, shards: list[FakeShard]) -> None:
        self.base, self.end, self.shards = end - 1000, end, dict.fromkeys(shards)


def asked_of(shards: list[FakeShard]) -> int:
    return sum(bool(shard.asked) for shard in shards)


def test_all_shards_of_the_oldest_segment_are_asked_before_it_is_needed_a_few_at_a_step() -> None:
    first, second = ([FakeShard() for _ in range(30)] for _ in range(2))
    others = [FakeSegment(end, []) for end in (3000, 4000, 5000, 6000, 7000, 8000)]
    full: Any = [FakeSegment(1000, first), FakeSegment(2000, second), *others]
    early = EarlyWrites()
    for step in range(1, STEPS + 1):
        early.step(full, 0, STEPS)
        assert asked_of(first) + asked_of(second) <= 6 * step
    assert asked_of(first) == 30
    assert {asked for shard in first for asked in shard.asked} == {(1000, 0)}  # it waits for none


def test_none_is_asked_while_more_than_a_segment_is_left() -> None:
    shard = FakeShard()
    full: Any = [FakeSegment(1000 * end, [shard]) for end in range(1, 6)]
    EarlyWrites().step(full, 2, STEPS)
    assert not shard.asked


def test_a_shard_that_fails_or_was_deleted_holds_up_no_other() -> None:
    deleted, sound = FakeShard(deleted=True), FakeShard()
    shards = [sound, FakeShard(fails=True), deleted]
    full: Any = [FakeSegment(1000 * end, shards) for end in range(1, 5)]
    early = EarlyWrites()
    for _ in range(STEPS):
        early.step(full, 0, STEPS)
    assert sound.asked
    assert not deleted.asked


def test_no_append_of_a_full_ring_writes_many_shards(
    memory_vfs: MemoryVfs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that needed a segment wrote all of them."""
    monkeypatch.setattr(ring, "_STEP_BYTES_MIN", 512)
    counting = FaultyVfs(memory_vfs)
    topics, rounds = [f"t{number}" for number in range(40)], 200
    with tubestore.open(
        "/s",
        vfs=counting,
        clock=ManualClock(),
        background=False,
        ring_size_bytes=16 * 16_384,
        mem_store_size_bytes=1 << 20,
    ) as store:
        for topic in topics:
            store.create_topic(topic)
        most = 0
        for _ in range(rounds):
            for topic in topics:
                before = counting.calls["pwrite"]
                store[topic].append(b"x" * 50)
                most = max(most, counting.calls["pwrite"] - before)
        assert engine_of(store).opener.ring is not None
        assert counting.calls["pwrite"] > 4 * len(topics)  # the ring was emptied
        assert most <= 20
        for topic in topics:
            assert sum(1 for _ in store[topic].messages(0, verify=True)) == rounds
