"""Where a master begins to send: each case of the table."""

from __future__ import annotations

import pytest

from rocketcompat.ha.positions import SlavePlace, Span, start_for

SPAN = Span(4096, 10_368, 4096)


@pytest.mark.parametrize(
    ("requested", "span", "full", "place", "offset"),
    [
        (0, SPAN, False, SlavePlace.EMPTY, 8192),
        (0, SPAN, True, SlavePlace.EMPTY, 4096),
        (0, Span(0, 10_368, 4096), True, SlavePlace.EMPTY, 0),
        (0, Span(0, 8192, 4096), False, SlavePlace.EMPTY, 8192),  # the last file is full
        (0, Span(0, 0, 4096), False, SlavePlace.EMPTY, 0),
        (4096, SPAN, False, SlavePlace.INSIDE, 4096),
        (9999, SPAN, True, SlavePlace.INSIDE, 9999),
        (10_368, SPAN, False, SlavePlace.INSIDE, 10_368),
        (10_369, SPAN, False, SlavePlace.AHEAD, None),
        (4095, SPAN, False, SlavePlace.BEHIND, None),
        (1, SPAN, True, SlavePlace.BEHIND, None),
    ],
)
def test_the_answer_to_a_first_report(
    requested: int, span: Span, full: bool, place: SlavePlace, offset: int | None
) -> None:
    found = start_for(requested, span, full=full)
    assert (found.place, found.offset) == (place, offset)


def test_a_slave_that_is_ahead_or_behind_is_refused_with_what_to_do() -> None:
    ahead = start_for(10_400, SPAN, full=False).reason
    assert "32 bytes behind this log's end at 10368" in ahead
    assert "Make it the master, or let it follow with an empty root" in ahead
    behind = start_for(100, SPAN, full=False).reason
    assert "ends at 100, and this log begins at 4096" in behind
    assert "empty root" in behind
