"""Answers are messages in order, as Arrow, as often as one likes."""

from __future__ import annotations

import pyarrow as pa

from rocketcompat.messages import Message
from rocketcompat.reading.pull import get_message
from tests.support.rocket.files.pulled import small_store


def test_answers_are_arrow_and_can_be_read_again() -> None:
    parts = small_store(Message("T", b"body", tags="t", keys=["a", "b"]))
    result = get_message(parts, "T", 0, 0)
    for _ in range(2):
        (row,) = pa.table(result).to_pylist()
        assert (row["body"], dict(row["properties"])) == (b"body", {"KEYS": "a b", "TAGS": "t"})
    assert pa.table(get_message(parts, "T", 0, 1)).num_rows == 0
