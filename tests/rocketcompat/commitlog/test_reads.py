"""One record by its place, and the next one behind damage."""

from __future__ import annotations

import pytest

from rocketcompat.commitlog.commit_log import CommitLog
from rocketcompat.commitlog.reads import record_at
from rocketcompat.commitlog.walk import find_record
from tests.support.rocket.files.logs import log as log
from tests.support.rocket.files.logs import put
from tubestore.errors import CorruptRecord


def test_reading_between_records_is_refused(log: CommitLog) -> None:
    put(log, 200)
    put(log, 200)
    assert record_at(log, 200).queue_offset == 1
    with pytest.raises(CorruptRecord):
        record_at(log, 100)


def test_a_record_behind_damage_is_found_again(log: CommitLog) -> None:
    for _ in range(12):
        put(log, 230)
    log.queue.files[0].write_at(240, b"\xff" * 30)
    assert find_record(log.queue, 231, log.max_offset) == 460
    log.queue.files[1].write_at(0, b"\xff" * 990)
    assert find_record(log.queue, 921, log.max_offset) == 2000
    assert find_record(log.queue, 2700, log.max_offset) is None
