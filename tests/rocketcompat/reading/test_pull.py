"""getMessage and queryMessage against the real answers, and their limits."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from rocketcompat.messages import GetMessageStatus, Message, MessageRecord
from rocketcompat.reading.parts import Found
from rocketcompat.reading.pull import get_message
from tests.support.golden import GoldenFactory
from tests.support.golden import golden_fixture as golden_fixture
from tests.support.rocket.files.pulled import VERSIONS, parts_of, small_store
from tubestore.errors import CorruptRecord

SCENARIOS = ["basic", "rolled", "keys-tags", "crash", "torn-half", "pull-limits"]


def as_upstream(result: Found, column: list[int]) -> list[int | None]:
    """What the oracle prints: null where the real decoder fails."""
    pairs = zip(result.entries, column, strict=True)
    return [value if isinstance(entry, MessageRecord) else None for entry, value in pairs]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_pulls_answer_as_the_real_store_does(
    golden: GoldenFactory, version: str, scenario: str
) -> None:
    """Units as they lie; what recovery changes is the command line's and the store's test."""
    real = golden("rocketmq", version, scenario)
    parts = parts_of(real)
    compared = 0
    for row in real.queries(type="get"):
        result = get_message(
            parts, row["topic"], row["queueId"], row["offset"], row["max"], row["sub"]
        )
        got = {
            "status": result.status.value,
            "nextBeginOffset": result.next_begin_offset,
            "minOffset": result.min_offset,
            "maxOffset": result.max_offset,
            "queueOffsets": as_upstream(result, result.queue_offsets),
            "physicalOffsets": as_upstream(result, result.physical_offsets),
        }
        want = {name: row[name] for name in got}
        if scenario == "torn-half" and row["maxOffset"] != got["maxOffset"]:
            continue  # the torn record's unit: recovery, not the pull, takes it away
        assert got == want, row
        compared += 1
    assert compared >= 20


def test_an_unknown_queue_has_no_messages() -> None:
    result = get_message(small_store(), "nope", 3, 5)
    assert (result.status, result.next_begin_offset) == (GetMessageStatus.NO_MESSAGE_IN_QUEUE, 0)
    assert len(result) == 0


def test_queues_that_are_switched_off_have_their_own_status() -> None:
    parts = small_store()
    parts.queues = None
    assert get_message(parts, "T", 0, 0).status is GetMessageStatus.NO_MATCHED_LOGIC_QUEUE


def test_old_messages_get_the_smaller_limits() -> None:
    parts = small_store(*(Message("T", b"x" * 10) for _ in range(40)))
    assert len(get_message(parts, "T", 0, 0, 40)) == 32
    assert len(get_message(parts, "T", 0, 0, 40, memory_bytes=0)) == 8
    large = small_store(*(Message("T", b"x" * 30_000) for _ in range(20)))
    assert len(get_message(large, "T", 0, 0, 40)) == 8
    assert len(get_message(large, "T", 0, 0, 40, memory_bytes=0)) == 2


def test_the_first_message_is_returned_however_large() -> None:
    parts = small_store(Message("T", b"x" * 400_000), Message("T", b"y"))
    result = get_message(parts, "T", 0, 0)
    assert [record.body[:1] for record in result] == [b"x"]
    assert result.next_begin_offset == 1


def test_a_record_that_the_log_has_no_more_is_skipped_alone() -> None:
    """The real one skips everything up to the next log file."""
    parts = small_store(*(Message("T", b"%d" % n) for n in range(4)))
    parts.commit_log.min_offset = parts.queues.find("T", 0).unit(2).physical_offset
    result = get_message(parts, "T", 0, 0, 1)
    assert (result.queue_offsets, result.next_begin_offset) == ([2], 3)
    parts.commit_log.min_offset = parts.commit_log.max_offset
    result = get_message(parts, "T", 0, 3)
    assert result.status is GetMessageStatus.MESSAGE_WAS_REMOVING
    assert (len(result), result.next_begin_offset) == (0, 4)


def test_a_unit_that_points_behind_the_log_or_to_another_number_is_a_problem() -> None:
    parts = small_store(*(Message("T", b"%d" % n) for n in range(3)))
    queue = parts.queues.find("T", 0)
    unit = queue.unit(2)
    queue.put_units(np.arange(3, 5), [1 << 40, unit.physical_offset], [100, unit.size], [0, 0])
    result = get_message(parts, "T", 0, 2)
    assert [m.queue_offset for m in result.messages] == [2]
    assert [problem.reason for problem in result.problems] == [
        f"a unit of 100 bytes at {1 << 40}, where the log has none",
        "unit 4 of T/0 points to this record, which is number 2",
    ]
    assert (result.queue_offsets, result.next_begin_offset) == ([2, 3, 4], 5)


def test_a_damaged_record_is_in_the_answer_with_its_state() -> None:
    parts = small_store(*(Message("T", b"%d" % n) for n in range(3)))
    unit = parts.queues.find("T", 0).unit(1)
    body = unit.physical_offset + 88
    data = bytearray(parts.commit_log.data)
    data[body] ^= 1
    parts.commit_log.data = bytes(data)
    result = get_message(parts, "T", 0, 0)
    assert result.queue_offsets == [0, 1, 2]
    assert [record.body for record in result.messages] == [b"0", b"2"]
    assert isinstance(result.problems[0], CorruptRecord)
    assert pa.table(result)["state"].to_pylist() == ["ok", "damaged", "ok"]


def test_tags_are_compared_by_hash_as_in_the_real_store() -> None:
    parts = small_store(*(Message("T", b"", tags=tag) for tag in ("Aa", "b", "BB", None)))
    assert get_message(parts, "T", 0, 0, tags="Aa || c").queue_offsets == [0, 2]
    none = get_message(parts, "T", 0, 0, tags="zz")
    assert (none.status, none.next_begin_offset) == (GetMessageStatus.NO_MATCHED_MESSAGE, 4)
