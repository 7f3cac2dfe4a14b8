"""Records and results: their ids, their state, and which records are in queues and the index."""

from __future__ import annotations

import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import rocketcompat
from rocketcompat.formats import (
    LOST_MARK,
    STATE_LOST,
    STATE_OK,
    SYS_FLAG_COMPRESSED,
    TRANSACTION_COMMIT,
    TRANSACTION_NOT,
    TRANSACTION_ROLLBACK,
)
from rocketcompat.messages import (
    NOT_DELAYED,
    Message,
    MessageRecord,
    PutBatchResult,
    PutResult,
    PutStatus,
    has_index_items,
    has_queue_unit,
)
from tubestore.errors import InvalidMessage

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


def test_the_payload_of_a_record_is_unpacked_within_a_bound(tmp_path: Path) -> None:
    packed = zlib.compress(b"x" * 5000)
    with rocketcompat.open(tmp_path, "w", background=False) as store:
        puts = [
            store.put_message(Message("T", body, sys_flag=flag))
            for body, flag in ((packed, SYS_FLAG_COMPRESSED), (b"plain", 0),
                               (b"no zlib", SYS_FLAG_COMPRESSED))
        ]  # fmt: skip
        one, plain, wrong = (store.look_message(put.physical_offset) for put in puts)
    assert (one.body, one.payload()) == (packed, b"x" * 5000)
    assert plain.payload() == b"plain"
    with pytest.raises(InvalidMessage, match=r"more than 4999 bytes \(size_max\)"):
        one.payload(4999)
    with pytest.raises(InvalidMessage, match=r"physical offset .* cannot be unpacked"):
        wrong.payload()


def test_a_record_that_was_read_is_put_again_as_it_was(tmp_path: Path) -> None:
    given = Message(
        "T", zlib.compress(b"hello"), tags="a", keys=["k-1", "k-2"], properties={"region": "eu"},
        queue_id=3, flag=7, sys_flag=SYS_FLAG_COMPRESSED, born_timestamp=5, born_host="10.0.0.1:9",
        reconsume_times=2,
    )  # fmt: skip
    with rocketcompat.open(tmp_path, "w", background=False) as store:
        first = store.look_message(store.put_message(given).physical_offset)
        again = store.look_message(store.put_message(first).physical_offset)
        moved = first.message("U", queue_id=0)
        other = store.look_message(store.put_message(moved).physical_offset)
    names = [
        "topic",
        "body",
        "properties",
        "queue_id",
        "flag",
        "sys_flag",
        "born_timestamp",
        "born_host",
        "reconsume_times",
    ]
    assert [getattr(again, n) for n in names] == [getattr(first, n) for n in names]
    assert (again.queue_offset, moved.delay_level) == (1, NOT_DELAYED)
    assert (other.topic, other.queue_id, other.payload()) == ("U", 0, b"hello")


def test_a_stand_in_of_a_lost_message_is_not_put_again(tmp_path: Path) -> None:
    with rocketcompat.open(tmp_path, "w", background=False) as store:
        record = store.look_message(store.put_message(Message("T")).physical_offset)
    with pytest.raises(InvalidMessage, match="is a lost message"):
        replace(record, prepared_transaction_offset=LOST_MARK).message()
    with pytest.raises(InvalidMessage, match="is a batch of messages"):
        replace(record, properties_text="INNER_NUM\x012").message()
