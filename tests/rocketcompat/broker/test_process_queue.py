"""The messages of a queue between pull and commit; the real class decides beside it."""

from __future__ import annotations

import pytest

from rocketcompat.broker.process_queue import ProcessQueue
from rocketcompat.messages import MessageRecord
from tubestore.clock import ManualClock


def message(offset: int, body: bytes = b"xy") -> MessageRecord:
    host = bytes(8)
    return MessageRecord(offset, 0, 1, "T", 0, offset, 0, 0, 0, 0, host, host, 0, 0, 0, "", body)


def messages(*offsets: int) -> list[MessageRecord]:
    return [message(offset) for offset in offsets]


@pytest.fixture
def queue(clock: ManualClock) -> ProcessQueue:
    return ProcessQueue(clock)


def test_the_first_unconsumed_offset_is_what_is_committed(queue: ProcessQueue) -> None:
    queue.put(messages(5, 6, 7))
    assert queue.remove(messages(6)) == 5
    assert queue.remove(messages(5)) == 7
    assert queue.remove(messages(7)) == 8
    assert queue.remove(messages(7)) == -1
    assert (queue.count, queue.size) == (0, 0)


def test_count_size_and_span_bound_what_is_pulled(queue: ProcessQueue) -> None:
    queue.put(messages(5, 9))
    queue.put(messages(9))
    assert (queue.count, queue.size, queue.span, queue.offsets) == (2, 4, 4, [5, 9])


def test_taken_messages_are_committed_or_put_back(queue: ProcessQueue) -> None:
    assert queue.put(messages(1, 2, 3))
    assert not queue.put(messages(4))  # a consumer is at work
    assert [m.queue_offset for m in queue.take(2)] == [1, 2]
    queue.rollback()
    taken = queue.take(3)
    queue.again(taken[2:], counted=True)
    assert queue.commit() == 3
    assert queue.commit() == -1
    assert [m.reconsume_times for m in queue.take(9)] == [1, 0]
    assert queue.take(1) == []
    assert queue.put(messages(9))  # it has ended


def test_the_first_message_is_late_when_its_listener_has_had_it_too_long(
    queue: ProcessQueue, clock: ManualClock
) -> None:
    queue.put(messages(1, 2))
    queue.start(messages(1))
    clock.advance(1_000)
    assert queue.first_late(1_000) is None
    clock.advance(1)
    assert queue.first_late(1_000) == message(1)
    queue.remove(messages(1))
    assert queue.first_late(0) is None  # the second has not been given to a listener


def test_a_lock_counts_for_30_s_and_a_queue_idles_after_120_s(
    queue: ProcessQueue, clock: ManualClock
) -> None:
    clock.advance(30_000)
    assert queue.holds_lock
    clock.advance(1)
    assert not queue.holds_lock
    clock.advance(89_999)
    assert not queue.is_idle
    clock.advance(1)
    assert queue.is_idle


def test_clearing_forgets_all(queue: ProcessQueue) -> None:
    queue.put(messages(1, 2))
    queue.take(1)
    queue.clear()
    assert (queue.count, queue.size, queue.offsets, queue.commit()) == (0, 0, [], -1)
