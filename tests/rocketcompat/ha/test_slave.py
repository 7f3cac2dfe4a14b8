"""The slave's side of the HA protocol, with bytes split and joined as TCP likes."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest

from rocketcompat.ha.frames import BODY_SIZE_MAX, FRAME_HEADER, REPORT
from rocketcompat.ha.slave import Body, Event, Fault, Heartbeat, SlaveSide
from rocketcompat.ha.states import State


def frame(offset: int, body: bytes = b"") -> bytes:
    return FRAME_HEADER.pack(offset=offset, body_size=len(body)) + body


def report(offset: int) -> bytes:
    return REPORT.pack(offset=offset)


def requested(end: int = 0, *, acknowledges: bool = True) -> SlaveSide:
    side = SlaveSide(end, 0.0, acknowledges=acknowledges)
    assert side.data_to_send(0.0) == report(end)
    return side


def bytes_of(events: Iterable[Event]) -> bytes:
    return b"".join(bytes(event.data) for event in events if isinstance(event, Body))


def split(data: bytes, rng: random.Random) -> list[bytes]:
    cuts = sorted(rng.randrange(len(data) + 1) for _ in range(rng.randrange(12)))
    return [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]


def test_of_heartbeats_in_a_row_one_counts() -> None:
    side = SlaveSide(100, 0.0)
    side.data_to_send(0.0)
    beat = FRAME_HEADER.pack(offset=100, body_size=0)
    assert side.receive(beat * 1000, 1.0) == [Heartbeat(100)]
    body = FRAME_HEADER.pack(offset=100, body_size=1) + b"x"
    after = FRAME_HEADER.pack(offset=101, body_size=0)
    assert [type(e) for e in side.receive(body + after * 2, 1.0)] == [Body, Heartbeat]


def test_the_first_report_is_the_logs_end_and_is_sent_once() -> None:
    side = SlaveSide(4096, 0.0)
    assert side.next_time == 0.0
    assert side.data_to_send(0.0) == report(4096)
    assert side.data_to_send(0.1) == b""
    assert side.state is State.REQUESTED


def test_a_body_comes_at_its_offset_and_growth_is_reported() -> None:
    side = requested(100)
    assert side.receive(frame(100, b"abc"), 1.0) == [Body(100, (memoryview(b"abc"),))]
    assert side.data_to_send(1.0) == b""
    side.stored(103)
    assert side.data_to_send(1.0) == report(103)
    assert side.data_to_send(1.0) == b""


def test_an_empty_slave_takes_its_begin_from_the_first_frame_with_or_without_a_body() -> None:
    side = requested()
    assert side.next_offset is None
    assert side.receive(frame(8192), 0.0) == [Heartbeat(8192)]
    assert side.next_offset == 8192
    assert side.receive(frame(8192, b"x"), 0.0) == [Body(8192, (memoryview(b"x"),))]
    assert requested().receive(frame(4096, b"y"), 0.0) == [Body(4096, (memoryview(b"y"),))]


def test_frames_are_the_same_however_tcp_splits_and_joins_them() -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    for _ in range(200):
        bodies = [rng.randbytes(rng.choice((0, 0, 1, 7, 11, 12, 13, 300))) for _ in range(9)]
        stream, at, heartbeats = b"", 500, 0
        for body in bodies:
            stream += frame(at, body)
            at += len(body)
            heartbeats += not body
        side, events = requested(500), []
        for part in split(stream, rng):
            for event in side.receive(part, 0.0):
                if isinstance(event, Body):
                    assert event.offset == 500 + len(bytes_of(events))
                events.append(event)
        assert bytes_of(events) == b"".join(bodies)
        found = sum(isinstance(event, Heartbeat) for event in events)
        assert bool(heartbeats) <= found <= heartbeats
        assert side.next_offset == at


def test_bodies_that_came_together_are_one_event() -> None:
    events = requested(1).receive(frame(1, b"a") + frame(2, b"bc") + frame(4, b"d"), 0.0)
    assert [(event.offset, bytes(event.data)) for event in events if isinstance(event, Body)] == [
        (1, b"abcd")
    ]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (frame(99, b"x"), "a frame at 99, where 100 follows"),
        (frame(101), "a frame at 101, where 100 follows"),
        (FRAME_HEADER.pack(offset=100, body_size=-1), "a frame of -1 bytes"),
        (FRAME_HEADER.pack(offset=100, body_size=BODY_SIZE_MAX + 1), "a frame of 4194293 bytes"),
        (FRAME_HEADER.pack(offset=-1, body_size=0), "a frame at the offset -1"),
        (FRAME_HEADER.pack(offset=(1 << 63) - 1, body_size=1), "a frame at the offset"),
    ],
)
def test_a_frame_that_does_not_fit_ends_the_connection(data: bytes, reason: str) -> None:
    side = requested(100)
    (fault,) = side.receive(data, 0.0)
    assert isinstance(fault, Fault)
    assert fault.reason.startswith(reason)
    assert side.state is State.CLOSED
    assert side.receive(frame(100, b"x"), 0.0) == []
    assert side.data_to_send(9.0) == b""


def test_what_came_before_a_bad_frame_counts() -> None:
    events = requested(100).receive(frame(100, b"abc") + frame(7), 0.0)
    assert events[0] == Body(100, (memoryview(b"abc"),))
    assert isinstance(events[1], Fault)


def test_a_frame_before_the_first_report_is_a_fault() -> None:
    (fault,) = SlaveSide(0, 0.0).receive(frame(0), 0.0)
    assert fault == Fault("the master sent a frame before the first report")


def test_a_mirror_repeats_its_first_report_and_never_acknowledges_more() -> None:
    side = requested(100, acknowledges=False)
    side.receive(frame(100, b"abc"), 1.0)
    side.stored(103)
    assert side.data_to_send(1.0) == b""
    assert side.data_to_send(5.0) == report(100)
    assert side.data_to_send(10.0) == report(100)


def test_an_idle_slave_reports_every_five_seconds() -> None:
    side = requested(100)
    assert side.next_time == 5.0
    assert side.data_to_send(4.9) == b""
    assert side.data_to_send(5.0) == report(100)
    assert side.data_to_send(5.1) == b""


def test_a_master_that_is_silent_for_twenty_seconds_is_given_up() -> None:
    side = requested(100)
    side.receive(frame(100), 3.0)
    side.data_to_send(22.0)
    assert side.check_time(22.9) is None
    fault = side.check_time(23.0)
    assert fault is not None
    assert fault.reason == "the master sent nothing for 20 s"
    assert side.check_time(24.0) is None


def test_the_end_of_the_connection_is_a_fault_that_names_a_frame_which_is_not_whole() -> None:
    for data, inside in ((b"", False), (frame(0)[:5], True), (frame(0, b"abc")[:-1], True)):
        side = requested()
        side.receive(data, 0.0)
        fault = side.ended()
        assert fault is not None
        assert fault.reason.endswith("in the middle of a frame") is inside
        assert side.ended() is None


def test_random_bytes_from_a_master_never_give_a_gap_and_keep_no_memory() -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    for _ in range(300):
        side, end = requested(50), 50
        good = frame(50, rng.randbytes(20)) + frame(70) + frame(70, rng.randbytes(9))
        data = bytearray(good + rng.randbytes(40))
        for _ in range(rng.randrange(4)):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        for part in split(bytes(data), rng):
            for event in side.receive(part, 0.0):
                if isinstance(event, Body):
                    assert event.offset == end
                    end += len(event.data)
        assert side.state is State.CLOSED or side.next_offset == end
        assert len(side._head) < FRAME_HEADER.size
