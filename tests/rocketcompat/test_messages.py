"""Records and results: their ids, their state, and which records are in queues and the index."""

from __future__ import annotations

import numpy as np
import pytest

from rocketcompat.formats import (
    LOST_MARK,
    STATE_LOST,
    STATE_OK,
    TRANSACTION_COMMIT,
    TRANSACTION_NOT,
    TRANSACTION_ROLLBACK,
)
from rocketcompat.messages import (
    MessageRecord,
    PutBatchResult,
    PutResult,
    PutStatus,
    has_index_items,
    has_queue_unit,
)

HOST = bytes([127, 0, 0, 1]) + (10911).to_bytes(4, "big")


def record(prepared: int = 0) -> MessageRecord:
    return MessageRecord(
        100, 91, 1, "T", 0, 5, 0, 0, 1, 2, HOST, HOST, 0, prepared, 3, "TAGS\x01paid\x02", b"x"
    )


def test_a_record_shows_its_hosts_properties_and_id_as_text() -> None:
    found = record()
    assert (found.born_host, found.store_host) == ("127.0.0.1:10911", "127.0.0.1:10911")
    assert found.properties == {"TAGS": "paid"}
    assert found.msg_id == "7F00000100002A9F0000000000000064"


@pytest.mark.parametrize(("prepared", "state"), [(0, STATE_OK), (LOST_MARK, STATE_LOST)])
def test_a_stand_in_for_a_lost_message_has_its_own_state(prepared: int, state: str) -> None:
    assert record(prepared).state == state


def test_the_id_of_a_put_is_that_of_its_record() -> None:
    put = PutResult(PutStatus.PUT_OK, 100, 5, 91, 2, HOST)
    assert put.msg_id == record().msg_id
    batch = PutBatchResult(PutStatus.PUT_OK, [100, 191], [91, 91], 5, 2, HOST)
    assert batch.msg_id == f"{record().msg_id},7F00000100002A9F00000000000000BF"


def test_prepared_and_rolled_back_records_are_in_no_queue_and_rollbacks_not_in_the_index() -> None:
    flags = np.array([TRANSACTION_NOT, 4, TRANSACTION_COMMIT, TRANSACTION_ROLLBACK])
    assert has_queue_unit(flags).tolist() == [True, False, True, False]
    assert has_index_items(flags).tolist() == [True, True, True, False]
    assert (has_queue_unit(flags | 3) == has_queue_unit(flags)).all(), "other bits do not count"
