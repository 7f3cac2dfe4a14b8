"""The store's other reads: by id, times, spans, raw bytes; and what it counts."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

import rocketcompat
from rocketcompat import GetMessageStatus, Message, MessageStoreConfig
from rocketcompat.store.default_message_store import DefaultMessageStore
from tubestore.clock import ManualClock
from tubestore.errors import CorruptRecord, OffsetOutOfRange, StoreClosed
from tubestore.testing import MemoryVfs

CONFIG = MessageStoreConfig(
    mapped_file_size_commit_log=4096,
    mapped_file_size_consume_queue=200,
    max_hash_slot_num=16,
    max_index_num=40,
    layouts=frozenset({"consume_queue", "index"}),
)
START = 1_700_000_000_000


@pytest.fixture
def opened(memory_vfs: MemoryVfs, clock: ManualClock) -> Iterator[DefaultMessageStore]:
    """Ten messages, one a second, in two queues; each names its number as a property."""
    with rocketcompat.open(
        "/s", "w", CONFIG, vfs=memory_vfs, clock=clock, background=False
    ) as store:
        for number in range(10):
            message = Message(
                "T", b"%d" % number, queue_id=number % 2, properties={"number": str(number)}
            )
            store.put_message(message)
            clock.advance(1000)
        store.flush()
        yield store


def test_a_message_is_found_by_its_id(opened: DefaultMessageStore) -> None:
    message = opened.get_message("T", 1, 3).messages[0]
    assert opened.look_message_by_id(message.msg_id) == message
    with pytest.raises(ValueError, match="not a message id of 32 or 56 hex digits"):
        opened.look_message_by_id("C0A8")
    with pytest.raises(ValueError, match="not a message id"):
        opened.look_message_by_id("x" * 32)
    with pytest.raises(OffsetOutOfRange):
        opened.look_message_by_id("F" * 32)


def test_an_offset_inside_a_record_is_refused_with_the_records_own(
    opened: DefaultMessageStore,
) -> None:
    message = opened.get_message("T", 1, 3).messages[0]
    place = message.physical_offset
    for inside in (place + 1, place + message.size - 1):
        with pytest.raises(CorruptRecord, match=f"inside the one at physical offset {place}$"):
            opened.look_message(inside)


def test_a_filter_on_properties_counts_as_one_on_tags(opened: DefaultMessageStore) -> None:
    found = opened.get_message("T", 0, 0, where=lambda m: int(m.properties["number"]) > 4)
    assert [message.body for message in found] == [b"6", b"8"]
    assert found.next_begin_offset == 5
    none = opened.get_message("T", 0, 0, where=lambda m: False)
    assert (none.status, none.next_begin_offset) == (GetMessageStatus.NO_MATCHED_MESSAGE, 5)


def test_store_times_of_messages_queues_and_the_log(opened: DefaultMessageStore) -> None:
    assert opened.message_store_timestamp("T", 1, 2) == START + 5000
    assert opened.message_store_timestamp("T", 1, 5) is None
    assert opened.message_store_timestamp("nobody", 0, 0) is None
    assert opened.earliest_message_time() == START
    assert opened.earliest_message_time("T", 1) == START + 1000
    assert opened.earliest_message_time("nobody") is None


def test_a_time_has_an_offset_in_a_queue_as_each_version_means_it(
    opened: DefaultMessageStore, memory_vfs: MemoryVfs, clock: ManualClock
) -> None:
    ask = opened.offset_in_queue_by_time
    assert [ask("T", 1, START + ms) for ms in (0, 3000, 3999, 4000, 4001, 99_000)] == [
        0, 1, 1, 1, 2, 4,
    ]  # fmt: skip
    assert [ask("T", 1, START + ms, "lower") for ms in (0, 3000, 3001, 99_000)] == [0, 1, 2, 5]
    assert [ask("T", 1, START + ms, "upper") for ms in (0, 3000, 4999, 99_000)] == [0, 1, 1, 4]
    assert ask("T", 1, datetime.fromtimestamp(START / 1000 + 5, UTC)) == 2
    assert ask("nobody", 0, START) == 0
    newer = CONFIG.changed(compat="5.3.3")
    with rocketcompat.open("/s", "r", newer, vfs=memory_vfs, clock=clock) as reader:
        assert reader.offset_in_queue_by_time("T", 1, START + 99_000) == 5


def test_the_spans_of_all_queues_are_a_table(opened: DefaultMessageStore) -> None:
    assert opened.queue_table().to_pylist() == [
        {"topic": "T", "queue_id": queue, "min_offset": 0, "max_offset": 5} for queue in (0, 1)
    ]


def test_the_logs_bytes_are_read_to_the_end_of_a_file(opened: DefaultMessageStore) -> None:
    whole = opened.commit_log_data(0)
    assert len(whole) == opened.max_physical_offset
    second = opened.get_message("T", 1, 0).messages[0]
    assert opened.commit_log_data(second.physical_offset) == whole[second.physical_offset :]
    assert opened.commit_log_data(opened.max_physical_offset) == b""


def test_pages_of_queues_are_counted_as_pulls_are(opened: DefaultMessageStore) -> None:
    pulled = sum(message.size for message in opened.get_message("T", 0, 0))
    opened.read_queue("T", 0, 0)
    opened.read_queues({("T", 0): 0, ("T", 1): 99})
    opened.read_queue("T", 0, 5)
    totals = opened.stats()["totals"]
    assert (totals["get_found"], totals["get_missed"]) == (3, 1)
    assert (totals["get_messages"], totals["get_bytes"]) == (15, 3 * pulled)


def test_a_reader_has_put_nothing(tmp_path: Path) -> None:
    config = MessageStoreConfig(mapped_file_size_commit_log=1 << 20)
    with (
        rocketcompat.open(tmp_path, "w", config, background=False) as writer,
        rocketcompat.open(tmp_path, "r", config) as reader,
    ):
        writer.put_message(Message("T", b"x"))
        reader.refresh()
        assert reader.max_physical_offset == writer.max_physical_offset
        totals = reader.stats()["totals"]
        assert (totals["put_messages"], totals["put_bytes"]) == (0, 0)


def test_what_is_put_and_pulled_is_counted(opened: DefaultMessageStore, clock: ManualClock) -> None:
    opened.get_message("T", 0, 0)
    opened.get_message("T", 0, 5)
    stats = opened.stats()
    size = opened.max_physical_offset
    pulled = sum(message.size for message in opened.get_message("T", 0, 0))
    assert stats["totals"] == {
        "put_messages": 10,
        "put_bytes": size,
        "get_found": 1,
        "get_missed": 1,
        "get_messages": 5,
        "get_bytes": pulled,
    }
    assert stats["log"]["max_offset"] == stats["log"]["synced_offset"] == size
    assert stats["log"]["dispatch_behind_bytes"] == 0
    assert stats["queues"] == {"count": 2}


def test_rates_are_of_the_last_seconds_and_not_of_all_time(
    opened: DefaultMessageStore, clock: ManualClock
) -> None:
    assert opened.stats()["rates"]["put_messages"] == (1.0, 1.0, 1.0)
    clock.advance(10_000)
    assert opened.stats()["rates"]["put_messages"] == (0.0, 0.5, 0.5)
    for _ in range(700):
        opened.put_message(Message("T", b"x"))
        clock.advance(1000)
        opened.stats()
    assert opened.stats()["rates"]["put_messages"] == pytest.approx((1.0, 1.0, 1.0))
    assert len(opened._stats._samples) < 610


def test_a_closed_store_answers_nothing(memory_vfs: MemoryVfs, clock: ManualClock) -> None:
    store = rocketcompat.open("/s", "w", CONFIG, vfs=memory_vfs, clock=clock, background=False)
    store.close()
    for call in (store.stats, store.queue_table, lambda: store.get_message("T", 0, 0)):
        with pytest.raises(StoreClosed):
            call()
