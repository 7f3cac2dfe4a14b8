"""Frames of positions, and the damage between them."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from tests.proof.explorer.explore import seed_of_run
from tubestore.groups.positions import (
    CHANGE,
    FRAME,
    SNAPSHOT,
    Frame,
    PositionRows,
    Positions,
    encode_frame,
    frames_in,
)


def rows(offsets: dict[int, int], topic_id: int = 7) -> PositionRows:
    return PositionRows(topic_id, np.array([*offsets]), np.array([*offsets.values()]))


def change(positions: Positions, **topics: dict[int, int]) -> Frame:
    frame = positions.change(1000, {topic: rows(offsets) for topic, offsets in topics.items()})
    positions.apply(frame)
    return frame


def test_positions_are_those_of_the_last_frames() -> None:
    positions = Positions()
    change(positions, t={0: 28, 10_001: 56}, u={0: 0})
    change(positions, t={0: 84})
    assert positions.topics() == {"t": {0: 84, 10_001: 56}, "u": {0: 0}}
    assert (positions.sequence, len(positions)) == (2, 3)


def test_a_frame_that_is_not_newer_changes_nothing() -> None:
    positions = Positions()
    old = change(positions, t={0: 28})
    change(positions, t={0: 56})
    positions.apply(old)
    assert positions.topics() == {"t": {0: 56}}


def test_a_negative_position_removes_it() -> None:
    positions = Positions()
    change(positions, t={0: 28, 1: 28})
    change(positions, t={0: -1})
    assert positions.topics() == {"t": {1: 28}}


def test_a_snapshot_replaces_everything_and_an_older_one_nothing() -> None:
    positions, other = Positions(), Positions()
    change(other, u={3: 280})
    old = other.snapshot()
    change(positions, t={0: 28})
    change(positions, t={0: 56})
    snapshot = positions.snapshot()
    assert snapshot.kind == SNAPSHOT
    positions.apply(old)
    assert positions.topics() == {"t": {0: 56}}
    other.apply(snapshot)
    assert other == positions


def test_positions_of_a_deleted_topic_are_not_those_of_a_new_one_of_its_name() -> None:
    positions = Positions()
    change(positions, t={0: 28})
    assert dict(positions.of("t", 7)) == {0: 28}
    assert dict(positions.of("t", 8)) == {}
    assert dict(positions.of("t")) == {0: 28}
    positions.apply(positions.change(1, {"t": rows({1: 56}, 8)}))
    assert dict(positions.of("t", 8)) == {1: 56}


def test_the_bytes_of_a_frame_do_not_change() -> None:
    frame = Frame(CHANGE, 3, 1_700_000_000_000, {"t": rows({1: 280})})
    assert encode_frame(frame).hex() == (
        "54475031" "00000001" "0000001b" "0000000000000003" "0000018bcfe56800"
        "21a525b0" "58960a8a5fa2e974"
        "0001" "00000001" "0000000000000007" "74" "00000001" "0000000000000118"
    )  # fmt: skip


def log_of(count: int) -> tuple[bytes, list[Frame]]:
    positions = Positions()
    frames = [change(positions, t={n: 28 * n}) for n in range(count)]
    return b"".join(map(encode_frame, frames)), frames


def test_a_frame_that_is_not_whole_ends_the_log() -> None:
    data, frames = log_of(3)
    last = len(encode_frame(frames[2]))
    for size in range(len(data) - last + 1, len(data)):
        found = list(frames_in(data[:size]))
        assert [each.frame for each in found[:-1]] == frames[:2]
        assert found[-1].torn
        assert found[-1].end == size


@pytest.mark.parametrize("run", range(40))
def test_damage_in_the_middle_costs_only_the_frames_that_it_hit(run: int) -> None:
    random = Random(seed_of_run(run))
    data, frames = log_of(12)
    size = len(encode_frame(frames[0]))
    damaged = bytearray(data)
    hit = set()
    for _ in range(random.randrange(1, 4)):
        at = random.randrange(len(data) - size)
        damaged[at] ^= random.randrange(1, 256)
        hit.add(at // size)
    found = list(frames_in(bytes(damaged)))
    sound = [each.frame.sequence for each in found if each.frame is not None]
    assert sound == [f.sequence for n, f in enumerate(frames) if n not in hit]
    bad = [each for each in found if each.frame is None]
    assert all(not each.torn for each in bad)
    assert {n for each in bad for n in range(each.start // size, -(-each.end // size))} == hit


def test_a_last_frame_that_is_whole_but_damaged_is_not_torn() -> None:
    data, frames = log_of(2)
    size = len(encode_frame(frames[1]))
    for at in range(1, size):
        damaged = bytearray(data)
        damaged[len(data) - at] ^= 1
        found = list(frames_in(bytes(damaged)))[-1]
        assert found.frame is None
        assert not found.torn, f"byte {at} from the end"


def test_a_length_beyond_the_file_is_not_followed() -> None:
    data, _ = log_of(2)
    huge = bytearray(data)
    at = FRAME.position("length")
    huge[at : at + 4] = b"\x7f\xff\xff\xff"
    kinds = [each.frame is None for each in frames_in(bytes(huge))]
    assert kinds == [True, False]
