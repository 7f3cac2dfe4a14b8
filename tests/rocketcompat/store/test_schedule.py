"""Delayed messages: put aside, delivered when due, by a clock that stands."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import rocketcompat
from rocketcompat import Message, MessageStoreConfig
from rocketcompat.messages import MessageRecord
from rocketcompat.record.properties import SCHEDULE_TOPIC
from rocketcompat.store.default_message_store import DefaultMessageStore
from tests.support.golden import GoldenFactory
from tests.support.golden_puts import Again, in_order_of_names
from tests.support.rocket.inside import (
    dispatcher_of,
    log_of,
    opened_of,
    queues_of,
)
from tests.support.rocket.store.background import THREADED
from tests.support.rocket.store.background import vfs as vfs
from tubestore.clock import ManualClock
from tubestore.core.java_hash import java_hash
from tubestore.errors import InvalidMessage
from tubestore.testing import FaultyVfs, MemoryVfs

CONFIG = MessageStoreConfig(
    mapped_file_size_commit_log=1 << 16,
    mapped_file_size_consume_queue=2000,
    max_hash_slot_num=16,
    max_index_num=400,
    layouts=frozenset({"consume_queue", "index"}),
)

NEWER = CONFIG.changed(compat="5.3.3")


def opened(vfs: Any, clock: ManualClock, config: MessageStoreConfig = CONFIG) -> Any:
    return rocketcompat.open("/s", "w", config, vfs=vfs, clock=clock, background=False)


def pulled(store: DefaultMessageStore, topic: str, queue_id: int = 0) -> list[MessageRecord]:
    dispatcher_of(store).dispatch_pending()
    end = store.max_offset_in_queue(topic, queue_id)
    found: list[MessageRecord] = []
    while len(found) < end:
        found += store.get_message(topic, queue_id, len(found)).messages
    return found


def bodies(store: DefaultMessageStore, topic: str = "orders", queue_id: int = 0) -> list[bytes]:
    return [record.body for record in pulled(store, topic, queue_id)]


def test_a_delayed_message_waits_in_the_queue_of_its_level(
    store: DefaultMessageStore, clock: ManualClock
) -> None:
    put = store.put_message(
        Message("orders", b"later", tags="paid", queue_id=2, properties={"DELAY": "3"})
    )
    (record,) = pulled(store, SCHEDULE_TOPIC, 2)
    assert record.physical_offset == put.physical_offset
    assert record.properties == {
        "TAGS": "paid", "DELAY": "3", "REAL_TOPIC": "orders", "REAL_QID": "2",
    }  # fmt: skip
    unit = queues_of(store).find_or_create(SCHEDULE_TOPIC, 2).unit(0)
    assert unit.tags_code == clock.now_ms() + 10_000
    assert bodies(store, queue_id=2) == []


def test_it_is_delivered_when_it_is_due_and_not_before(
    store: DefaultMessageStore, clock: ManualClock
) -> None:
    message = Message(
        "orders", b"later", tags="paid", queue_id=2, flag=7, sys_flag=1, reconsume_times=2,
        born_host="[::1]:5", store_host="10.0.0.7:6", born_timestamp=5, delay_level=3,
    )  # fmt: skip
    put = store.put_message(message)
    clock.advance(9999)
    assert store.deliver_due() == 0
    clock.advance(1)
    assert store.deliver_due() == 1
    assert store.deliver_due() == 0
    (record,) = pulled(store, "orders", 2)
    assert (record.body, record.flag, record.sys_flag) == (b"later", 7, 0x11)
    assert (record.born_host, record.store_host) == ("[::1]:5", "10.0.0.7:6")
    assert (record.born_timestamp, record.reconsume_times) == (5, 2)
    assert record.store_timestamp == put.store_timestamp + 10_000
    # As the real one leaves it on disk.
    assert record.properties == {
        "TAGS": "paid", "DELAY": "3", "REAL_TOPIC": "orders", "REAL_QID": "2",
    }  # fmt: skip
    assert queues_of(store).find_or_create("orders", 2).unit(0).tags_code == java_hash("paid")


def test_each_level_has_its_delay_and_its_order(
    store: DefaultMessageStore, clock: ManualClock
) -> None:
    for number, level in enumerate((2, 1, 18, 1, 2)):
        store.put_message(Message("orders", b"%d" % number, delay_level=level))
        clock.advance(10)
    clock.advance(1000)
    assert store.deliver_due() == 2
    assert bodies(store) == [b"1", b"3"]
    clock.advance(4000)
    assert store.deliver_due() == 2
    assert bodies(store) == [b"1", b"3", b"0", b"4"]
    clock.advance(2 * 3600 * 1000)
    assert store.deliver_due() == 1
    assert bodies(store)[-1] == b"2"


def test_the_levels_are_an_option(vfs: FaultyVfs, clock: ManualClock) -> None:
    with opened(vfs, clock, CONFIG.changed(message_delay_level="1d 2s")) as store:
        store.put_message(Message("orders", b"a", delay_level=2))
        store.put_message(Message("orders", b"b", delay_level=9))  # the highest there is
        assert len(pulled(store, SCHEDULE_TOPIC, 1)) == 2
        assert pulled(store, SCHEDULE_TOPIC, 1)[1].properties["DELAY"] == "2"
        clock.advance(2000)
        assert store.deliver_due() == 2


def test_delivery_goes_on_where_it_was_when_the_store_was_closed(
    vfs: FaultyVfs, clock: ManualClock
) -> None:
    with opened(vfs, clock) as store:
        for number in range(4):
            store.put_message(Message("orders", b"%d" % number, delay_level=1))
            clock.advance(300)
        clock.advance(399)
        assert store.deliver_due() == 2
    assert vfs.read_file("/s/config/delayOffset.json") == b'{\n\t"offsetTable":{1:2\n\t}\n}'
    clock.advance(60_000)
    with opened(vfs, clock) as store:
        assert store.deliver_due() == 2
        assert bodies(store) == [b"0", b"1", b"2", b"3"]


def test_after_a_crash_nothing_is_lost_and_what_was_not_written_down_comes_again(
    clock: ManualClock,
) -> None:
    vfs = MemoryVfs(clock)
    store = opened(vfs, clock)
    for number in range(3):
        store.put_message(Message("orders", b"%d" % number, delay_level=1))
    clock.advance(1000)
    assert store.deliver_due() == 3
    opened_of(store).give_back()  # as if killed
    store._closed = True
    with opened(vfs, clock) as again:
        assert again.deliver_due() == 3
        assert bodies(again) == [b"0", b"1", b"2"] * 2


def test_what_is_written_down_as_delivered_is_on_stable_storage(clock: ManualClock) -> None:
    store = opened(MemoryVfs(clock), clock)
    with store:
        store.put_message(Message("orders", b"x", delay_level=1))
        clock.advance(1000)
        store.deliver_due()
        assert log_of(store).synced_offset < store.max_physical_offset
        opened_of(store).schedule.persist()
        assert log_of(store).synced_offset == store.max_physical_offset


@pytest.mark.parametrize(("offset", "count"), [(-5, 3), (0, 3), (2, 1), (3, 0), (99, 0)])
def test_an_offset_outside_of_its_queue_is_moved_into_it(  # apache/rocketmq #1869
    vfs: FaultyVfs, clock: ManualClock, offset: int, count: int
) -> None:
    with opened(vfs, clock) as store:
        for _ in range(3):
            store.put_message(Message("orders", delay_level=1))
    vfs.make_directories("/s/config")
    vfs.replace_file("/s/config/delayOffset.json", b'{"offsetTable":{1:%d}}' % offset)
    clock.advance(1000)
    with opened(vfs, clock) as store:
        assert store.deliver_due() == count
        store.put_message(Message("orders", b"next", delay_level=1))
        clock.advance(1000)
        assert store.deliver_due() == 1


def test_offsets_that_cannot_be_read_stop_the_delivery_and_nothing_else(
    vfs: FaultyVfs, clock: ManualClock
) -> None:
    vfs.make_directories("/s/config")
    vfs.replace_file("/s/config/delayOffset.json", b'{"offsetTable":{1:')
    with opened(vfs, clock) as store:
        store.put_message(Message("orders", delay_level=1))
        clock.advance(1000)
        assert store.deliver_due() == 0
        assert "delayed messages are not delivered" in str(store.problems[0])
    assert vfs.read_file("/s/config/delayOffset.json") == b'{"offsetTable":{1:'


def test_a_time_further_away_than_the_level_s_delay_has_come(
    store: DefaultMessageStore, clock: ManualClock
) -> None:
    store.put_message(Message("orders", b"x", delay_level=1))
    clock.advance(-3_600_000)  # the clock was put right
    assert store.deliver_due() == 1


def test_a_unit_with_the_hash_of_a_tag_is_due_after_its_delay(  # R3, 4.9.2 … 4.9.8
    store: DefaultMessageStore, clock: ManualClock
) -> None:
    store.put_message(Message("orders", b"x", tags="red", delay_level=3))
    dispatcher_of(store).dispatch_pending()
    queue = queues_of(store).find_or_create(SCHEDULE_TOPIC, 2)
    queue._files._files.write_at(12, java_hash("red").to_bytes(8, "big", signed=True))
    clock.advance(9999)
    assert store.deliver_due() == 0
    clock.advance(1)
    assert store.deliver_due() == 1


def test_as_the_newer_store_only_what_asks_for_it_is_put_aside(
    vfs: FaultyVfs, clock: ManualClock
) -> None:
    with opened(vfs, clock, NEWER) as store:
        store.put_message(Message("orders", b"left alone", properties={"DELAY": "3"}))
        store.put_message(Message("orders", b"put aside", delay_level=3))
        assert bodies(store) == [b"left alone"]
        (record,) = pulled(store, SCHEDULE_TOPIC, 2)
        assert record.properties_text.endswith("\x02")


@pytest.mark.parametrize("level", ["0", "-1"])
def test_a_level_of_zero_or_less_is_none(store: DefaultMessageStore, level: str) -> None:
    store.put_message(Message("orders", b"now", properties={"DELAY": level}))
    assert bodies(store) == [b"now"]


def test_a_level_that_is_no_number_is_refused(store: DefaultMessageStore) -> None:
    with pytest.raises(InvalidMessage, match="DELAY"):
        store.put_message(Message("orders", properties="DELAY\x01soon"))
    assert store.max_physical_offset == 0


@pytest.mark.parametrize("sys_flag", [4, 12])
def test_half_and_rolled_back_messages_are_not_delayed(
    store: DefaultMessageStore, sys_flag: int
) -> None:
    put = store.put_message(Message("orders", delay_level=3, sys_flag=sys_flag))
    assert store.look_message(put.physical_offset).topic == "orders"


def test_columns_are_put_aside_row_by_row(store: DefaultMessageStore, clock: ManualClock) -> None:
    kind = pa.map_(pa.string(), pa.string())
    given: list[dict[str, Any]] = [
        {
            "topic": ["a", "b", "c"], "body": [b"0", b"1", b"2"], "queue_id": [1, 2, 3],
            "properties": ["x\x01y", "DELAY\x012", ""],
        },
        {
            "topic": ["a", "b", "c"], "body": [b"3", b"4", b"5"], "tags": ["t", None, "u"],
            "properties": pa.array([None, {"DELAY": "2"}, {"x": "DELAY"}], kind),
        },
        {"topic": ["a", "b"], "body": [b"6", b"7"], "keys": ["k", "l"], "delay_level": [0, 2]},
    ]  # fmt: skip
    for columns in given:
        store.put_columns(columns)
    aside = pulled(store, SCHEDULE_TOPIC, 1)
    assert [record.body for record in aside] == [b"1", b"4", b"7"]
    assert aside[2].properties == {"KEYS": "l", "DELAY": "2", "REAL_TOPIC": "b", "REAL_QID": "0"}
    assert bodies(store, "a", 1) == [b"0"]
    assert bodies(store, "a") == [b"3", b"6"]
    assert [r.properties for r in pulled(store, "c")] == [{"TAGS": "u", "x": "DELAY"}]
    clock.advance(5000)
    assert store.deliver_due() == 3
    assert bodies(store, "b", 2) == [b"1"]
    assert bodies(store, "b") == [b"4", b"7"]


def test_a_full_disk_delays_a_delivery_and_loses_none(
    store: DefaultMessageStore, vfs: FaultyVfs, clock: ManualClock
) -> None:
    for number in range(3):
        store.put_message(Message("orders", b"%d" % number, delay_level=1))
    dispatcher_of(store).dispatch_pending()
    clock.advance(1000)
    vfs.fail("pwrite", path="/s/commitlog", nth=2, error=errno.ENOSPC)
    with pytest.raises(OSError, match="No space"):
        store.deliver_due()
    assert store.deliver_due() == 2
    assert bodies(store) == [b"0", b"1", b"2"]


def test_a_damaged_message_is_passed_over_and_reported(
    store: DefaultMessageStore, vfs: FaultyVfs, clock: ManualClock
) -> None:
    for number in range(3):
        store.put_message(Message("orders", b"%d" % number, delay_level=1))
    store.put_message(Message(SCHEDULE_TOPIC, b"nobody's", properties="DELAY\x011", sys_flag=0))
    dispatcher_of(store).dispatch_pending()
    second = pulled(store, SCHEDULE_TOPIC)[1]
    log_of(store).queue.files[0]._file.pwrite(b"?", second.physical_offset + 88)
    clock.advance(2000)
    delivered = store.deliver_due()
    assert bodies(store)[:2] == [b"0", b"2"]
    assert delivered >= 2
    assert any("SCHEDULE_TOPIC_XXXX/0: message 1" in str(p) for p in store.problems)


def test_the_service_delivers_in_the_background(tmp_path: Path) -> None:
    with rocketcompat.open(tmp_path, "w", CONFIG.changed(message_delay_level="0s 1h")) as store:
        put = store.put_message(Message("orders", b"x", delay_level=1))
        store.put_message(Message("orders", b"y", delay_level=2))
        assert store.wait_dispatched(store.max_physical_offset - 1)
        schedule = opened_of(store).schedule
        assert schedule is not None
        for _ in range(600):  # the first look is after a second
            if schedule.offsets.get(1):
                break
            schedule._stop.wait(0.05)
        assert schedule.offsets == {1: 1}
        assert store.look_message(put.physical_offset).topic == SCHEDULE_TOPIC
    assert (tmp_path / "config" / "delayOffset.json").exists()


def test_a_store_without_delayed_messages_has_no_file_for_them(tmp_path: Path) -> None:
    with rocketcompat.open(tmp_path, "w", CONFIG, background=False) as store:
        store.put_message(Message("orders"))
        assert store.deliver_due() == 0
    assert not (tmp_path / "config").exists()


@pytest.mark.parametrize("version", ["4.9.8", "5.3.3"])
def test_the_golden_delayed_messages_come_out_the_same(
    golden: GoldenFactory, tmp_path: Path, version: str
) -> None:
    theirs = golden("rocketmq", version, "delayed")
    again = Again(theirs, tmp_path / "again")
    again.put_all()
    last = again.store.max_physical_offset
    later = sorted(
        (row["physicalOffset"], row["storeTimestamp"])
        for row in theirs.expected(type="message")
        if row["physicalOffset"] >= last
    )
    for offset, timestamp in later:  # what the real one delivered, level by level
        if again.store.max_physical_offset <= offset:
            again.clock.advance(timestamp - again.clock.now_ms())
            assert again.store.deliver_due() > 0
    assert (version == "4.9.8") == bool(later)
    for place, record in again.theirs.items():
        ours = log_of(again.store).read_at(place, len(record))
        assert in_order_of_names(ours) == in_order_of_names(record)
    assert again.store.max_physical_offset == max(
        place + len(record) for place, record in again.theirs.items()
    )
    units = {}
    for row in theirs.expected(type="message"):
        units[row["queue"], row["index"]] = row["tagsCode"]
    dispatcher_of(again.store).dispatch_pending()
    assert units == {
        (f"{queue.topic}/{queue.queue_id}", n): queue.unit(n).tags_code
        for queue in queues_of(again.store)
        for n in range(queue.max_offset)
    }
    again.close()
    if version == "4.9.8":
        ours = (again.root / "config" / "delayOffset.json").read_bytes()
        assert ours == (theirs.store / "config" / "delayOffset.json").read_bytes()


@pytest.mark.parametrize("wanted", [True, False])
def test_delayed_messages_are_delivered_in_the_background_if_that_is_the_option(
    wanted: bool,
) -> None:
    config = THREADED.changed(enable_schedule_message=wanted)
    with rocketcompat.open("/s", "w", config, vfs=MemoryVfs()) as store:
        services = store.stats()["services"]
        assert services["ScheduleMessageService"]["running"] is wanted
        assert services["FlushService"]["running"]
