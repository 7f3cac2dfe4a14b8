"""What is compared of the messages that a contender gives back."""

from __future__ import annotations

import pytest

from bench.layouts.capabilities import Unavailable
from bench.workloads.answers import Digest

STORED = [("a-0", b"one"), ("a-0", b"two"), ("a-1", b"three"), ("b-1", b"four")]


def row_of(messages: list[tuple[str, bytes]]) -> dict[str, int]:
    """Return the row of a driver that has read these messages."""
    found = Digest()
    for place, body in messages:
        found.add(place, body)
    return {"readBack": len(messages), "digest": sum(found._places.values())}


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("one less", STORED[:-1]),
        ("one more", [*STORED, STORED[-1]]),
        ("another body", [*STORED[:-1], ("b-1", b"five")]),
        ("another order in a place", [STORED[1], STORED[0], *STORED[2:]]),
        ("another place", [*STORED[:-1], ("b-0", b"four")]),
        ("two places changed", [*STORED[:2], ("b-1", b"three"), ("a-1", b"four")]),
    ],
)
def test_a_digest_differs_when_anything_was_read_that_was_not_stored(
    name: str, read: list[tuple[str, bytes]]
) -> None:
    expected = Digest()
    for place, body in STORED:
        expected.add(place, body)
    expected.compare(row_of(STORED))
    expected.compare(row_of([STORED[3], STORED[2], *STORED[:2]]))  # places have no order
    with pytest.raises(Unavailable, match="it gives back"):
        expected.compare(row_of(read))
