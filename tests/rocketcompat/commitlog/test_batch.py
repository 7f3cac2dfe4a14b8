"""A piece of the log as the columns that followers take."""

from __future__ import annotations

from rocketcompat import Message
from rocketcompat.commitlog.commit_log import CommitLog
from rocketcompat.record.prepare import prepare
from tests.support.rocket.files.dispatched import CONFIG, Recorder
from tests.support.rocket.files.dispatched import log as log
from tests.support.rocket.inside import (
    dispatcher_for,
)
from tubestore.clock import ManualClock
from tubestore.core.java_hash import java_hash


def test_the_columns_of_a_batch_equal_those_of_the_records(
    log: CommitLog, clock: ManualClock
) -> None:
    follower = Recorder("a")
    service = dispatcher_for(log, [follower], clock, position=0)
    for flag in (0, 0x4, 0x8, 0xC):
        message = Message("T", tags="TagA", keys="x y", queue_id=3, sys_flag=flag)
        log.put_one(prepare(message, CONFIG))
    log.put_one(prepare(Message("U", properties="UNIQ_KEY\x01u\x02KEYS\x01 a  b "), CONFIG))
    service.dispatch_pending()
    keys = [key for batch in follower.batches for key in batch.queue_keys]
    assert set(keys) == {("T", 3), ("U", 0)}
    rows = [
        (batch.queue_keys[batch.queue_codes[row]], bool(batch.queue_rows[row]),
         int(batch.queue_offsets[row]), int(batch.tags_codes[row]),
         batch.key_hashes[batch.key_rows == row].tolist())
        for batch in follower.batches
        for row in range(len(batch))
    ]  # fmt: skip
    both = [abs(java_hash("T#x")), abs(java_hash("T#y"))]
    assert rows == [
        (("T", 3), True, 0, 2598919, both),
        (("T", 3), False, 0, 2598919, both),  # prepared: indexed, no unit
        (("T", 3), True, 1, 2598919, both),
        (("T", 3), False, 0, 2598919, []),  # rolled back: neither
        (("U", 0), True, 0, 0, [abs(java_hash(f"U#{key}")) for key in ("u", "a", "b")]),
    ]


def test_a_scheduled_message_has_its_delivery_time_as_tags_code(
    log: CommitLog, clock: ManualClock
) -> None:
    follower = Recorder("a")
    service = dispatcher_for(log, [follower], clock, position=0)
    for level in ("3", "99", "no"):
        properties = {"DELAY": level, "TAGS": "t"}
        log.put_one(prepare(Message("SCHEDULE_TOPIC_XXXX", properties=properties), CONFIG))
    service.dispatch_pending()
    codes = [int(code) for batch in follower.batches for code in batch.tags_codes]
    assert codes == [clock.now_ms() + 10_000, clock.now_ms() + 7_200_000, java_hash("t")]
