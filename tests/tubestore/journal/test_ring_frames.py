"""Frames of the ring as bytes: what is written is found, and no other byte counts."""

from __future__ import annotations

import pytest

from tubestore.journal.ring_frames import (
    HEAD_SIZE,
    START_SIZE,
    Kind,
    Start,
    boot_tag,
    end_frame,
    frame_at,
    frames_behind,
    front_of,
    latest_frame,
    message_frame,
    shard_of,
    start_frame,
    start_in,
    store_tag,
    trouble_in,
)
from tubestore.record.records import HEADER_SIZE, pack_header

BOOT = boot_tag("a boot")
FRONT = front_of(BOOT, 7, 100)


def message(position: int, payload: bytes = b"payload", index_start: int = 28) -> bytes:
    header = pack_header(3, -1, 1_700_000_000_000, 1, 5, 0, payload)
    return message_frame(FRONT, shard_of(77, 2), position, index_start, 300, header, payload)


def flipped(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def test_a_message_names_its_place_its_shard_and_what_was_synced() -> None:
    frame = frame_at(b"??" + message(4096), 2)
    assert frame is not None
    assert (frame.kind, frame.boot, frame.generation, frame.synced) == (Kind.MESSAGE, BOOT, 7, 100)
    assert (frame.topic_id, frame.store_id, frame.index_start, frame.data_start) == (77, 2, 28, 300)
    assert frame.end == 4096 + len(message(4096))
    assert trouble_in(message(4096), 0) is None


def test_no_bit_of_a_head_or_of_a_records_header_can_change() -> None:
    data = message(4096)
    for bit in range(8 * (HEAD_SIZE + HEADER_SIZE)):
        assert frame_at(flipped(data, bit), 0) is None, bit


def test_a_changed_payload_leaves_the_place_known() -> None:
    data = message(4096)
    for bit in range(8 * (HEAD_SIZE + HEADER_SIZE), 8 * len(data)):
        changed = flipped(data, bit)
        assert frame_at(changed, 0) == frame_at(data, 0)
        assert trouble_in(changed, 0) == "checksum of the payload differs"


def test_no_bit_of_the_first_or_the_last_frame_can_change() -> None:
    start = Start(BOOT, 7, 100, 4096, 1024, 512, 2048, 3072, 90, store_tag("a store"))
    data = start_frame(start)
    assert len(data) == START_SIZE
    assert start_in(data) == start
    assert not any(start_in(flipped(data, bit)) for bit in range(8 * len(data)))
    data = end_frame(FRONT, 5000)
    assert len(data) == HEAD_SIZE
    assert not any(frame_at(flipped(data, bit), 0) for bit in range(8 * len(data)))


@pytest.mark.parametrize("size", range(0, 130, 13))
def test_a_part_of_a_frame_does_not_count(size: int) -> None:
    data = message(4096)
    assert frame_at(data[:size], 0) is None
    rest = data[:size].ljust(len(data), b"\0")
    assert frame_at(rest, 0) is None or trouble_in(rest, 0) is not None


def test_sound_frames_are_found_behind_damage_at_their_own_places_only() -> None:
    first, second = message(0), message(200)
    data = (first + bytes(200 - len(first)) + second).ljust(600, b"\0")
    data += message(450)  # of another place: an earlier lap
    damaged = b"\0" * 50 + data[50:]
    assert list(frames_behind(damaged, 0, 0, 7)) == [200]
    assert list(frames_behind(damaged, 0, 0, 8)) == []
    assert list(frames_behind(damaged, 200, 0, 7)) == []


def test_without_a_start_the_latest_lap_counts() -> None:
    early, late = message(1000), message(9000)
    found = latest_frame(b"x" * 88 + early + late)
    assert found is not None
    assert (found[0], found[1].position) == (88 + len(early), 9000)
    assert latest_frame(b"x" * 500) is None
