"""The master's side of the HA protocol, with reports split and joined as TCP likes."""

from __future__ import annotations

import random

import pytest

from rocketcompat.ha.frames import FRAME_HEADER, REPORT
from rocketcompat.ha.master import Acknowledge, ConfigRequest, MasterSide, Request
from rocketcompat.ha.slave import Fault
from rocketcompat.ha.states import State
from tests.rocketcompat.ha.test_slave import split


def report(offset: int) -> bytes:
    return REPORT.pack(offset=offset)


def streaming(start: int = 0, now: float = 0.0) -> MasterSide:
    side = MasterSide(now)
    assert side.receive(report(start), now) == [Request(start)]
    side.start_at(start, now)
    return side


def test_nothing_is_sent_before_the_first_report() -> None:
    side = MasterSide(0.0)
    assert side.next_offset is None
    assert side.heartbeat(99.0) == b""
    assert side.receive(report(7)[:5], 0.0) == []
    assert side.next_offset is None
    assert side.receive(report(7)[5:], 0.0) == [Request(7)]
    assert side.next_offset is None
    side.start_at(7, 0.0)
    assert side.next_offset == 7


def test_frames_follow_each_other_from_the_start() -> None:
    side = streaming(4096)
    assert side.frame(10, 0.0) == FRAME_HEADER.pack(offset=4096, body_size=10)
    assert side.frame(5, 0.0) == FRAME_HEADER.pack(offset=4106, body_size=5)
    assert side.next_offset == 4111


def test_of_many_reports_the_last_whole_one_counts() -> None:
    side = streaming()
    side.frame(300, 0.0)
    assert side.receive(report(100) + report(200) + report(300)[:3], 0.0) == [Acknowledge(200)]
    assert side.receive(report(300)[3:], 0.0) == [Acknowledge(300)]


def test_a_first_report_behind_eight_zero_bytes_counts() -> None:
    assert MasterSide(0.0).receive(bytes(8) + report(4096), 0.0) == [Request(4096)]


def test_reports_are_the_same_however_tcp_splits_and_joins_them() -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    for _ in range(300):
        offsets = sorted(rng.randrange(1 << 40) for _ in range(rng.randrange(1, 30)))
        side = streaming()
        side._sent = 1 << 40
        found = 0
        for part in split(b"".join(map(report, offsets)), rng):
            for event in side.receive(part, 0.0):
                assert isinstance(event, Acknowledge)
                assert event.offset in offsets
                found = event.offset
        assert found == offsets[-1] == side.acknowledged


def test_a_report_of_more_than_was_sent_releases_nothing_and_ends_the_connection() -> None:
    side = streaming(100)
    side.frame(50, 0.0)
    assert side.receive(report(151), 0.0) == [Fault("a report of 151, and only 150 was sent")]
    assert side.acknowledged == 0
    assert side.state is State.CLOSED
    assert side.receive(report(150), 0.0) == []
    assert side.next_offset is None


def test_the_first_report_alone_acknowledges_nothing() -> None:
    side = streaming(100)
    assert side.acknowledged == 0
    assert side.receive(report(100), 1.0) == [Acknowledge(100)]


def test_an_acknowledgement_never_goes_back() -> None:
    side = streaming(100)
    side.frame(50, 0.0)
    side.receive(report(150), 0.0)
    assert side.receive(report(120), 0.0) == [Acknowledge(150)]


@pytest.mark.parametrize("later", [False, True])
def test_a_report_below_zero_ends_the_connection(later: bool) -> None:
    side = streaming() if later else MasterSide(0.0)
    assert side.receive(report(-2), 0.0) == [Fault("a report of -2")]


def test_a_first_report_of_minus_one_asks_for_the_configuration_and_a_later_one_is_a_fault() -> (
    None
):
    side = MasterSide(0.0)
    assert side.receive(report(-1), 0.0) == [ConfigRequest()]
    assert side.receive(report(0), 0.0) == []
    assert streaming().receive(report(-1), 0.0) == [Fault("a report of -1")]


def test_a_report_before_the_answer_is_no_acknowledgement() -> None:
    side = MasterSide(0.0)
    side.receive(report(100), 0.0)
    assert side.receive(report(100), 1.0) == [Acknowledge(0)]
    assert side.receive(report(101), 1.0) == [Fault("a report of 101, and only 100 was sent")]


def test_a_master_with_nothing_to_send_sends_a_heartbeat_every_five_seconds() -> None:
    side = streaming(100)
    assert side.heartbeat(4.9) == b""
    assert side.heartbeat(5.0) == FRAME_HEADER.pack(offset=100, body_size=0)
    assert side.heartbeat(5.1) == b""
    side.frame(1, 6.0)
    assert side.next_time == 11.0
    assert side.heartbeat(10.9) == b""


def test_a_slave_that_is_silent_for_twenty_seconds_is_given_up() -> None:
    for side in (MasterSide(0.0), streaming()):
        assert side.check_time(19.9) is None
        fault = side.check_time(20.0)
        assert fault == Fault("the slave sent no report for 20 s")
        assert side.check_time(21.0) is None


def test_bytes_that_are_no_whole_report_do_not_keep_a_connection() -> None:
    for side in (MasterSide(0.0), streaming()):
        assert side.receive(report(0)[:7], 19.0) == []
        assert side.check_time(20.0) == Fault("the slave sent no report for 20 s")


def test_the_end_of_a_connection_is_noted_once() -> None:
    side = streaming()
    assert side.ended() == Fault("the slave closed the connection")
    assert side.ended() is None


def test_random_bytes_from_a_slave_never_release_more_than_was_sent_and_keep_no_memory() -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    for _ in range(300):
        side = streaming(rng.randrange(100))
        side.frame(rng.randrange(1000), 0.0)
        sent = side.next_offset
        assert sent is not None
        for part in split(rng.randbytes(rng.randrange(100)), rng):
            side.receive(part, 0.0)
            assert side.acknowledged <= sent
            assert len(side._part) < REPORT.size
