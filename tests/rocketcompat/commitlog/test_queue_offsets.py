"""The next queue offset of every queue."""

from __future__ import annotations

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
