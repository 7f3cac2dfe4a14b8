"""Batches of one topic and queue: each message its own record, all of them or none."""

from __future__ import annotations

import contextlib
import errno
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rocketcompat
from rocketcompat import BatchItem, Message, MessageBatch, MessageStoreConfig, PutStatus
from rocketcompat.record.batches import decode_items, encode_items
from rocketcompat.store.default_message_store import DefaultMessageStore
from tests.support.rocket.inside import log_of
from tests.support.rocket.stores import opener
from tubestore.clock import ManualClock
from tubestore.errors import CorruptRecord, InvalidMessage, InvalidName, MessageTooLarge
from tubestore.testing import FaultyVfs, MemoryVfs

SIZE = 2000
CONFIG = MessageStoreConfig(
    mapped_file_size_commit_log=SIZE,
    mapped_file_size_consume_queue=200,
    layouts=frozenset({"consume_queue"}),
)
opened = opener(CONFIG)
#: Bytes of a record with a topic of one byte, besides its body and properties.
FIXED = 92


def batch(count: int, size: int = 100, **fields: Any) -> MessageBatch:
    return MessageBatch("T", [BatchItem(b"%d" % (n % 10) * size) for n in range(count)], **fields)


def test_each_message_of_a_batch_is_a_record_with_the_next_queue_offset(
    store: DefaultMessageStore,
) -> None:
    store.put_message(Message("T", b"before"))
    result = store.put_messages(batch(3))
    assert (result.status, result.queue_offset) == (PutStatus.PUT_OK, 1)
    store.wait_dispatched(result.physical_offsets[-1])
    page = store.get_message("T", 0, 0)
    assert [m.body[:1] for m in page.messages] == [b"b", b"0", b"1", b"2"]
    assert page.physical_offsets[1:] == result.physical_offsets
    assert [m.msg_id for m in page.messages[1:]] == result.msg_id.split(",")


def test_what_an_item_lacks_is_the_batch_s(store: DefaultMessageStore) -> None:
    given_batch = MessageBatch(
        "T",
        [BatchItem(b"a", tags="red", flag=7), BatchItem(b"b", properties="x\x01y\x02")],
        queue_id=3, properties={"WAIT": "false"}, sys_flag=1, born_timestamp=5,
        born_host="[::1]:1", store_host="10.0.0.7:2", reconsume_times=4,
    )  # fmt: skip
    first, second = map(store.look_message, store.put_messages(given_batch).physical_offsets)
    for record in (first, second):
        assert (record.queue_id, record.sys_flag, record.born_timestamp) == (3, 0x11, 5)
        assert (record.born_host, record.store_host) == ("[::1]:1", "10.0.0.7:2")
        assert (record.reconsume_times, record.prepared_transaction_offset) == (4, 0)
    assert (first.flag, second.flag) == (7, 0)
    assert first.properties_text == "TAGS\x01red\x02WAIT\x01false"
    assert second.properties_text == "x\x01y\x02WAIT\x01false"


def test_a_batch_that_does_not_fit_is_whole_in_the_next_file(
    store: DefaultMessageStore,
) -> None:
    store.put_message(Message("T", b"x" * 1000))
    result = store.put_messages(batch(5))
    assert result.physical_offsets == [SIZE + n * (FIXED + 100) for n in range(5)]
    blank = log_of(store).read_at(1000 + FIXED, 8)
    assert blank == (SIZE - 1000 - FIXED).to_bytes(4, "big") + bytes.fromhex("cbd43194")


def test_a_batch_that_ends_eight_bytes_before_the_end_of_the_file_fits(
    store: DefaultMessageStore,
) -> None:
    rest = SIZE - 8 - 4 * (FIXED + 100)
    items = [*batch(4).items, BatchItem(b"x" * (rest - FIXED))]
    assert store.put_messages(MessageBatch("T", items)).physical_offsets[0] == 0
    assert store.put_message(Message("T")).physical_offset == SIZE


@pytest.mark.parametrize(
    ("given_batch", "error", "what"),
    [
        (MessageBatch("T", []), InvalidMessage, "without messages"),
        (batch(1, sys_flag=4), InvalidMessage, "transaction"),
        (batch(1, sys_flag=8), InvalidMessage, "transaction"),
        (batch(1, properties={"DELAY": "3"}), InvalidMessage, "delayed"),
        (batch(9, 200), MessageTooLarge, "batch"),
        (MessageBatch("", [BatchItem()]), InvalidName, "name"),
        (MessageBatch("T", [BatchItem(tags="a\x02")]), InvalidMessage, "separates"),
        (
            MessageBatch("T", [BatchItem(), BatchItem(properties="x" * 32768)]),
            MessageTooLarge,
            "32768",
        ),
    ],
)
def test_what_no_batch_can_be_is_refused_and_leaves_nothing(
    store: DefaultMessageStore, given_batch: MessageBatch, error: type[Exception], what: str
) -> None:
    with pytest.raises(error, match=what):
        store.put_messages(given_batch)
    assert store.max_physical_offset == 0
    assert store.put_message(Message("T")).queue_offset == 0


def test_a_body_above_the_limit_is_refused_as_the_body_of_the_whole_batch(
    clock: ManualClock,
) -> None:
    config = CONFIG.changed(max_message_size=300)
    with rocketcompat.open(
        "/s", "w", config, vfs=MemoryVfs(clock), clock=clock, background=False
    ) as store:
        store.put_messages(MessageBatch("T", [BatchItem(b"x" * 117), BatchItem(b"x" * 139)]))
        with pytest.raises(MessageTooLarge, match="301"):
            store.put_messages(MessageBatch("T", [BatchItem(b"x" * 118), BatchItem(b"x" * 139)]))


def test_a_batch_that_meets_a_full_disk_leaves_nothing(
    store: DefaultMessageStore, vfs: FaultyVfs
) -> None:
    store.put_message(Message("T", b"first"))
    end = store.max_physical_offset
    vfs.fail("pwrite", error=errno.ENOSPC, written=150)
    with pytest.raises(OSError, match="No space"):
        store.put_messages(batch(3))
    assert store.max_physical_offset == end
    assert store.put_messages(batch(3)).queue_offset == 1


def test_with_synchronous_flushes_a_batch_waits_for_its_sync(clock: ManualClock) -> None:
    config = CONFIG.changed(flush_disk_type="SYNC_FLUSH")
    with rocketcompat.open(
        "/s", "w", config, vfs=MemoryVfs(clock), clock=clock, background=False
    ) as store:
        result = store.put_messages(batch(3))
        assert log_of(store).synced_offset == store.max_physical_offset
        assert result.status is PutStatus.PUT_OK


_texts = st.text(st.characters(exclude_characters="\x01\x02\0", codec="utf-8"), max_size=8)


@given(st.lists(st.tuples(st.binary(max_size=20), _texts, st.integers(-9, 9)), max_size=5))
def test_items_come_back_from_the_body_of_a_batch(rows: list[tuple[bytes, str, int]]) -> None:
    items = [BatchItem(body, properties=f"a\x01{text}", flag=flag) for body, text, flag in rows]
    assert decode_items(encode_items(items, CONFIG)) == items


@given(st.binary(max_size=80))
def test_any_bytes_can_be_asked_for_items(junk: bytes) -> None:
    whole = encode_items([BatchItem(b"body", tags="t"), BatchItem(b"x")], CONFIG)
    for data in (junk, whole[: len(junk)], junk + whole):
        with contextlib.suppress(CorruptRecord):
            decode_items(data)
