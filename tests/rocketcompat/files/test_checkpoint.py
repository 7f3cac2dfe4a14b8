"""StoreCheckpoint: 4096 bytes, five numbers."""

from __future__ import annotations

import struct

import pytest

import rocketcompat
from rocketcompat import Message, MessageStoreConfig
from rocketcompat.files.checkpoint import StoreCheckpoint
from tests.support.golden import GoldenFactory, golden_fixture  # noqa: F401
from tests.support.rocket.inside import opened_of
from tubestore.clock import ManualClock
from tubestore.core.vfs import OsVfs
from tubestore.testing import MemoryVfs, crash_states

PATH = "/store/checkpoint"


def checkpoint_in(vfs: MemoryVfs) -> StoreCheckpoint:
    vfs.make_directories("/store")
    return StoreCheckpoint(vfs, PATH)


def test_values_survive_and_the_minimum_is_three_seconds_less() -> None:
    """Upstream's testWriteAndRead."""
    checkpoint = checkpoint_in(vfs := MemoryVfs())
    checkpoint.physic_msg_timestamp, checkpoint.logics_msg_timestamp = 0xAABB, 0xCCDD
    checkpoint.flush()
    again = StoreCheckpoint(vfs, PATH)
    assert (again.physic_msg_timestamp, again.logics_msg_timestamp) == (0xAABB, 0xCCDD)
    assert again.physic_msg_timestamp - again.min_timestamp == 3000
    assert len(vfs.read_file(PATH)) == 4096


def test_a_missing_or_short_file_counts_as_zeros() -> None:
    vfs = MemoryVfs()
    assert checkpoint_in(vfs).min_timestamp == 0
    vfs.open(PATH, create=True).pwrite(b"\0\0\0\0\0\0\0\7", 0)
    assert StoreCheckpoint(vfs, PATH).physic_msg_timestamp == 7


def test_the_index_time_can_only_lower_the_minimum() -> None:
    checkpoint = checkpoint_in(MemoryVfs())
    checkpoint.physic_msg_timestamp = checkpoint.logics_msg_timestamp = 10_000
    checkpoint.index_msg_timestamp = 9_000
    assert checkpoint.min_timestamp_index == checkpoint.min_timestamp == 7_000
    checkpoint.index_msg_timestamp = 0
    assert checkpoint.min_timestamp_index == 0


@pytest.mark.parametrize("version", ["4.9.8", "5.3.3"])
@pytest.mark.parametrize("scenario", ["basic", "rolled", "keys-tags"])
def test_the_real_checkpoint_is_read_and_written_back_byte_for_byte(
    golden: GoldenFactory, version: str, scenario: str
) -> None:
    real = golden("rocketmq", version, scenario)
    path = real.store / "checkpoint"
    before = path.read_bytes()
    checkpoint = StoreCheckpoint(OsVfs(), str(path))
    (loaded,) = real.expected(type="loaded")
    assert checkpoint.logics_msg_timestamp == loaded["checkpoint"]["logicsMsgTimestamp"]
    assert checkpoint.physic_msg_timestamp == loaded["checkpoint"]["physicMsgTimestamp"]
    checkpoint.flush()
    assert path.read_bytes() == before


def test_no_power_cut_leaves_a_checkpoint_ahead_of_what_was_synced(
    memory_vfs: MemoryVfs, clock: ManualClock
) -> None:
    """CKP-05: a real broker's recovery begins there, so all that is older must be in the files."""
    config = MessageStoreConfig(
        mapped_file_size_commit_log=1 << 14, mapped_file_size_consume_queue=2000,
        max_hash_slot_num=4, max_index_num=100, layouts=frozenset({"consume_queue", "index"}),
    )  # fmt: skip
    journal, places = memory_vfs.record(), {}
    with rocketcompat.open(
        "/s", "w", config, vfs=memory_vfs, clock=clock, background=False
    ) as store:
        for number in range(9):
            clock.advance(4000)
            put = store.put_message(Message("T", b"%d" % number, keys="k"))
            places[put.store_timestamp] = (put.physical_offset, put.size)
            if number % 2:
                opened_of(store).flusher.flush_due()
            if number % 4 == 3:
                store.flush()
    times = set()
    for state in crash_states(journal, seed=1, kinds=("power",), variants=(0, 3)):
        vfs = state.vfs(clock)
        checkpoint = StoreCheckpoint(vfs, "/s/checkpoint")
        wanted = [
            (checkpoint.physic_msg_timestamp, "commitlog", MESSAGE_MAGIC),
            (checkpoint.logics_msg_timestamp, "consumequeue/T/0", None),
            (checkpoint.index_msg_timestamp, "index", None),
        ]
        for time, directory, magic in wanted:
            raw = whole_of(vfs, f"/s/{directory}")
            for written, (offset, size) in places.items():
                if written <= time and magic:
                    assert raw[offset : offset + 8] == struct.pack(">iI", size, magic), state
                elif written <= time:
                    assert struct.pack(">q", offset) in raw, state
            times.add((directory, time))
    assert len(times) == 3 * 4  # none, and after each flush and the close


MESSAGE_MAGIC = 0xDAA320A7


def whole_of(vfs: MemoryVfs, directory: str) -> bytes:
    names = [name for name, _, _ in vfs.entries(directory)] if vfs.exists(directory) else []
    return b"".join(vfs.read_file(f"{directory}/{name}") for name in names)
