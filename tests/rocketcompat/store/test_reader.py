"""The store's other reads: by id, times, spans, raw bytes; and what it counts."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

import rocketcompat
from rocketcompat import GetMessageStatus
from rocketcompat.store.default_message_store import DefaultMessageStore
from tests.support.rocket.store.counted import CONFIG
from tests.support.rocket.store.counted import opened as opened
from tubestore.clock import ManualClock
from tubestore.errors import CorruptRecord, OffsetOutOfRange, StoreClosed
from tubestore.testing import MemoryVfs

START = 1_700_000_000_000


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


def test_a_closed_store_answers_nothing(memory_vfs: MemoryVfs, clock: ManualClock) -> None:
    store = rocketcompat.open("/s", "w", CONFIG, vfs=memory_vfs, clock=clock, background=False)
    store.close()
    for call in (store.stats, store.queue_table, lambda: store.get_message("T", 0, 0)):
        with pytest.raises(StoreClosed):
            call()
