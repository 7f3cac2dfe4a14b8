"""The rate that a peer may have."""

from __future__ import annotations

from rocketcompat.ha.rate import Rate


def test_the_events_of_a_second_may_come_at_once_and_the_next_has_to_wait() -> None:
    rate = Rate(100, 5.0)
    assert [rate.take(5.0) for _ in range(100)] == [0.0] * 100
    assert abs(rate.take(5.0) - 0.01) < 1e-9
    assert rate.take(5.1) == 0.0


def test_a_rest_gives_no_more_than_one_second_of_events() -> None:
    rate = Rate(10, 0.0)
    rate.take(0.0)
    assert [rate.take(1000.0) for _ in range(10)] == [0.0] * 10
    assert rate.take(1000.0) > 0
