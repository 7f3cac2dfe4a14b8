"""The next queue offset of every queue."""

from __future__ import annotations

import random
from collections import Counter

from rocketcompat.commitlog.commit_log import CommitLog
from rocketcompat.record.encode import encode_columns
from tests.support.rocket.files.logs import CONFIG, put
from tests.support.rocket.files.logs import log as log


def test_queue_offsets_count_up_for_each_queue(log: CommitLog) -> None:
    places = [put(log, 100, topic, queue_id=queue)[1]
              for topic, queue in [("A", 0), ("A", 1), ("B", 0), ("A", 0), ("B", 0)]]  # fmt: skip
    assert places == [0, 0, 0, 1, 1]
    assert log.next_queue_offset("A", 0) == 2


def test_prepared_and_rolled_back_messages_take_no_queue_offset(log: CommitLog) -> None:
    numbers = [put(log, 100, sys_flag=flag)[1] for flag in (0, 0x4, 0xC, 0x8, 0)]
    assert numbers == [0, 0, 0, 1, 2]


def test_a_batch_of_many_queues_counts_like_single_puts(log: CommitLog) -> None:
    queues = [1, 2, 1, 1, 2, 3, 1]
    flags = [0, 0, 4, 0, 8, 12, 0]
    encoded = encode_columns({"topic": ["T"] * 7, "queue_id": queues, "sys_flag": flags}, CONFIG)
    _, numbers, _ = log.put_columns(encoded)
    assert numbers.tolist() == [0, 0, 0, 1, 1, 0, 2]
    assert [log.next_queue_offset("T", queue) for queue in (1, 2, 3)] == [3, 2, 0]


def test_a_batch_with_equal_hashes_of_topic_and_queue_stays_apart(log: CommitLog) -> None:
    topics = ["A", "B"] * 3
    encoded = encode_columns({"topic": topics, "queue_id": [0, 0, 1, 1, 0, 0]}, CONFIG)
    assert log.put_columns(encoded)[1].tolist() == [0, 0, 0, 0, 1, 1]


def test_single_puts_and_batches_count_the_same_queues(log: CommitLog) -> None:
    """More queues than the table has room for at first, in any order."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chosen, expected = random.Random(seed), Counter[tuple[str, int]]()
    for _ in range(60):
        queues = [(chosen.choice("ABCDEFGH"), chosen.randrange(20)) for _ in range(8)]
        topics, ids = [topic for topic, _ in queues], [queue_id for _, queue_id in queues]
        encoded = encode_columns({"topic": topics, "queue_id": ids}, CONFIG)
        for key, offset in zip(queues, log.put_columns(encoded)[1].tolist(), strict=True):
            assert offset == expected[key]
            expected[key] += 1
        topic, queue_id = chosen.choice(queues)
        assert put(log, 100, topic, queue_id=queue_id)[1] == expected[topic, queue_id]
        expected[topic, queue_id] += 1
    assert len(expected) > 64
    assert all(log.next_queue_offset(*key) == count for key, count in expected.items())


def test_the_offset_of_an_unknown_queue_is_asked_for_without_making_one(log: CommitLog) -> None:
    put(log, 100, "A")
    assert [log.next_queue_offset("A", 7), log.next_queue_offset("B", 0)] == [0, 0]
    assert put(log, 100, "B")[1] == 0


def test_single_puts_reach_any_number_of_queues(log: CommitLog) -> None:
    queues = [("A", queue_id) for queue_id in range(300)]
    for expected in (0, 1):
        assert [put(log, 10, topic, queue_id=number)[1] for topic, number in queues] == (
            [expected] * 300
        )
