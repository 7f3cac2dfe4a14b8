"""What was read as Arrow is put again: the same messages, at other places."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

import rocketcompat
from rocketcompat import BatchItem, Message, MessageBatch
from rocketcompat.reading.again import put_again
from rocketcompat.record.arrow import RECORD_SCHEMA
from rocketcompat.store.default_message_store import DefaultMessageStore
from tests.support.rocket.files.scanned import CONFIG
from tests.support.rocket.inside import dispatcher_of
from tubestore.clock import ManualClock
from tubestore.errors import InvalidMessage
from tubestore.testing import MemoryVfs

GIVEN = [
    Message("T", b"one", "paid", ["k-1", "k-2"], {"region": "eu"}, 1, 7, born_timestamp=5,
            born_host="10.0.0.1:9", reconsume_times=2),
    Message("T", b"two", queue_id=1, born_host="[::1]:5"),
    Message("T", b"", "sent", queue_id=1, properties={"DELAY": "3"}, delay_level=-1),
]  # fmt: skip
SAME = ("topic", "queue_id", "body", "properties", "flag", "sys_flag", "born_timestamp",
        "born_host", "reconsume_times", "prepared_transaction_offset")  # fmt: skip
READS: dict[str, Callable[[DefaultMessageStore], Any]] = {
    "read_queue": lambda store: store.read_queue("T", 1),
    "its batch": lambda store: store.read_queue("T", 1).batch,
    "read_queues": lambda store: store.read_queues({("T", 1): 0}),
    "scan": lambda store: store.scan(),
    "a table of a scan": lambda store: pa.Table.from_batches(store.scan()),
    "a page's table": lambda store: store.read_queue("T", 1).to_arrow(),
    "get_message": lambda store: store.get_message("T", 1, 0),
    "pandas": lambda store: store.read_queue("T", 1).batch.to_pandas(),
}


def opened(vfs: MemoryVfs | None = None, **options: Any) -> DefaultMessageStore:
    return rocketcompat.open(
        "/store", mode="w", config=CONFIG.changed(**options), vfs=vfs or MemoryVfs(),
        clock=ManualClock(), background=False,
    )  # fmt: skip


@pytest.fixture
def store() -> Iterator[DefaultMessageStore]:
    with opened() as store:
        for message in GIVEN:
            store.put_message(message)
        dispatcher_of(store).dispatch_pending()
        yield store


@pytest.mark.parametrize("read", READS)
def test_rows_of_each_read_are_put_again_as_they_were(
    store: DefaultMessageStore, read: str
) -> None:
    if read == "pandas":
        pytest.importorskip("pandas")
    put = store.put_columns(READS[read](store))
    assert put["queue_offset"].to_pylist() == [3, 4, 5]
    records = [store.look_message(at) for at in put["physical_offset"].to_pylist()]
    before = store.get_message("T", 1, 0, 3).messages
    for record, first in zip(records, before, strict=True):
        assert [getattr(record, n) for n in SAME] == [getattr(first, n) for n in SAME]


def test_the_keys_of_a_query_are_no_column_of_messages(store: DefaultMessageStore) -> None:
    put = store.put_columns(store.query_messages("T", ["k-1"]))
    dispatcher_of(store).dispatch_pending()
    assert put.num_rows == 1
    assert store.query_messages("T", ["k-2"]).num_rows == 2


def test_rows_go_to_the_topic_that_a_caller_sets(store: DefaultMessageStore) -> None:
    batch = store.read_queue("T", 1, columns=["topic", "queue_offset", "body", "properties"]).batch
    other = batch.set_column(0, "topic", pa.array(["U"] * 3))
    put = store.put_columns(other)
    assert store.look_message(put["physical_offset"][0].as_py()).topic == "U"
    assert put["queue_offset"].to_pylist() == [0, 1, 2]


def test_queue_offsets_in_other_queues_are_given_anew() -> None:
    with opened(enable_multi_dispatch=True, enable_lmq=True) as store:
        several = {"INNER_MULTI_DISPATCH": "%LMQ%a"}
        store.put_message(Message("T", b"1", "paid", properties=several))
        text = "INNER_MULTI_DISPATCH\x01%LMQ%a\x02"
        store.put_columns({"topic": ["T"], "body": [b"2"], "properties": [text]})
        dispatcher_of(store).dispatch_pending()
        store.put_columns(store.read_queue("T", 0))
        store.put_message(store.get_message("T", 0, 0, 1).messages[0])
        dispatcher_of(store).dispatch_pending()
        found = store.get_message("%LMQ%a", 0, 0)
    assert [message.body for message in found] == [b"1", b"2", b"1", b"2", b"1"]
    offsets = [message.properties["INNER_MULTI_QUEUE_OFFSET"] for message in found]
    assert offsets == ["0", "1", "2", "3", "4"]


def test_properties_that_are_not_utf8_go_along_as_a_pull_shows_them() -> None:
    """No checksum of a 4.9 record covers its properties: damage there must not hold up a copy."""
    vfs = MemoryVfs()
    with opened(vfs) as store:
        for body in (b"1", b"2"):
            store.put_message(Message("T", body, keys=["k-1"], properties={"region": "XXXX"}))
    path = "/store/commitlog/00000000000000000000"
    vfs.open(path).pwrite(b"\xff\xfe", vfs.read_file(path).index(b"XXXX") + 1)
    with opened(vfs) as store:
        dispatcher_of(store).dispatch_pending()
        before = store.get_message("T", 0, 0).messages
        store.put_columns(store.read_queue("T", 0))
        dispatcher_of(store).dispatch_pending()
        after = store.get_message("T", 0, 2).messages
    assert before[0].properties["region"] == "X\ufffd\ufffdX"
    assert [m.properties for m in after] == [m.properties for m in before]


def test_a_checksum_of_the_old_record_does_not_go_along() -> None:
    with opened(enabled_append_prop_crc=True) as first:
        first.put_message(Message("T", b"1", "paid"))
        dispatcher_of(first).dispatch_pending()
        batch, record = first.read_queue("T", 0).batch, first.get_message("T", 0, 0).messages[0]
    assert "__CRC32#" in record.properties
    with opened() as second:
        second.put_columns(batch)
        second.put_message(record)
        dispatcher_of(second).dispatch_pending()
        found = second.get_message("T", 0, 0).messages
    assert [message.properties for message in found] == [{"TAGS": "paid"}] * 2


def test_a_record_keeps_its_real_topic_in_its_own_topic_only(store: DefaultMessageStore) -> None:
    store.put_message(Message("D", b"later", delay_level=3))
    dispatcher_of(store).dispatch_pending()
    (waiting,) = store.get_message("SCHEDULE_TOPIC_XXXX", 2, 0).messages
    assert waiting.message().properties["REAL_TOPIC"] == "D"  # type: ignore[index, call-overload]
    assert "REAL_TOPIC" not in waiting.message("D", 0).properties  # type: ignore[operator]


def test_rows_that_are_no_message_are_refused_by_their_number(store: DefaultMessageStore) -> None:
    (batch,) = store.scan()
    states = pa.array(["ok", "lost", "ok"])
    lost = batch.set_column(RECORD_SCHEMA.get_field_index("state"), "state", states)
    with pytest.raises(InvalidMessage, match="row 1 is a damaged or lost message"):
        store.put_columns(lost)
    assert store.max_offset_in_queue("T", 1) == 3
    assert store.put_columns(lost.filter(pa.array([True, False, True]))).num_rows == 2


def test_a_record_of_several_messages_gets_new_offsets() -> None:
    with opened(batch_topics=frozenset({"B"})) as store:
        store.put_inner_batch(MessageBatch("B", [BatchItem(b"1"), BatchItem(b"2")]))
        dispatcher_of(store).dispatch_pending()
        for rows in (store.read_queue("B", 0), store.get_message("B", 0, 0, 2)):
            store.put_columns(rows)
        dispatcher_of(store).dispatch_pending()
        found = store.read_queue("B", 0).batch
    assert found["queue_offset"].to_pylist() == [0, 2, 4]
    assert len(set(found["body"].to_pylist())) == 1
    for row in found.to_pylist():
        assert b"INNER_BASE\x01%d" % row["queue_offset"] in row["properties"]


def test_columns_of_a_callers_own_stay_as_they_are() -> None:
    given = {"topic": ["T"], "body": [b"x"], "store_host": ["10.0.0.1:1"]}
    assert put_again(given) is given


def test_a_scan_without_a_row_puts_none_and_rows_that_are_no_batches_are_refused(
    store: DefaultMessageStore,
) -> None:
    end = store.max_physical_offset
    assert store.put_columns(store.scan(end)).num_rows == 0
    with pytest.raises(InvalidMessage, match="batches are needed, not dict"):
        store.put_columns(iter([{"topic": "T"}]))
    assert store.max_physical_offset == end
