"""StoreCheckpoint: 4096 bytes, five numbers (spec §4.1)."""

from __future__ import annotations

import pytest

from rocketcompat.store_checkpoint import StoreCheckpoint
from tests.support.golden import GoldenFactory, golden_fixture  # noqa: F401
from tubestore.testing.memory_vfs import MemoryVfs
from tubestore.vfs import OsVfs

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
