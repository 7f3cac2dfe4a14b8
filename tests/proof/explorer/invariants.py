"""What must hold of the messages that a store shows after a crash.

1. Every message that was promised to survive a crash of this kind is there, at its offset.
2. Nothing is there that was not handed in: bodies and places are equal to what was sent.
3. Nothing is there twice.
4. The messages of a partition stand in the order in which they were handed in.
5. What cannot be read is there after a power cut only (unsynced sectors that came out of
   order), and then as a row with a state.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from tests.proof.explorer.book import Book, Promises


class Found(NamedTuple):
    """A row that a store shows; `id` None where it is not a message of this history."""

    id: int | None
    topic: str
    partition: int
    offset: int
    body: bytes | None
    state: str


def found_row(book: Book, topic: str, partition: int, offset: int, body: bytes | None) -> Found:
    """Return a row; without a body it is a damaged one."""
    if body is None:
        return Found(None, topic, partition, offset, None, "damaged")
    return Found(book.by_body.get(body), topic, partition, offset, body, "ok")


def check_history(
    found: Iterable[Found], book: Book, promises: Promises, *, damage_allowed: bool
) -> None:
    """Raise AssertionError for the first invariant that does not hold."""
    offsets: dict[int, int] = {}
    last: dict[tuple[str, int], int] = {}
    for row in found:
        if row.state != "ok":
            assert damage_allowed, f"damage without a power cut: {row}"
            continue
        assert row.id is not None, f"invented: {row}"
        sent = book.sent[row.id]
        same = (sent.topic, sent.partition) == (row.topic, row.partition)
        assert same, f"{sent} came back as {row}"
        assert row.id not in offsets, f"twice: {row}, and at {offsets[row.id]}"
        offsets[row.id] = row.offset
        place = (row.topic, row.partition)
        assert last.get(place, -1) < row.id, f"out of order: {row} behind {last[place]}"
        last[place] = row.id
    for promise in promises.values():
        there = offsets.get(promise.id)
        sent = book.sent[promise.id]
        assert there is not None, f"lost: {promise}, {sent}"
        assert there == promise.offset, f"moved to {there}: {promise}, {sent}"
