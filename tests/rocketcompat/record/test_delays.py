"""What a group could not consume: tried again with growing delays, then given up."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import rocketcompat
from rocketcompat import Message, MessageRecord, MessageStoreConfig
from rocketcompat.record.properties import dead_letter_topic, retry_topic
from rocketcompat.store.default_message_store import DefaultMessageStore
from tests.support.rocket.inside import dispatcher_of
from tubestore.clock import ManualClock
from tubestore.testing import MemoryVfs


@pytest.fixture(params=["4.9.8", "5.3.3"])
def store(request: pytest.FixtureRequest, clock: ManualClock) -> Iterator[DefaultMessageStore]:
    config = MessageStoreConfig(
        mapped_file_size_commit_log=1 << 16, layouts=frozenset({"consume_queue"}),
        compat=request.param,
    )  # fmt: skip
    vfs = MemoryVfs(clock)
    with rocketcompat.open("/s", "w", config, vfs=vfs, clock=clock, background=False) as store:
        yield store


def first_of(store: DefaultMessageStore, topic: str, offset: int = 0) -> MessageRecord:
    dispatcher_of(store).dispatch_pending()
    return store.get_message(topic, 0, offset).messages[0]


def test_a_failed_message_comes_again_in_the_group_s_retry_topic(
    store: DefaultMessageStore, clock: ManualClock
) -> None:
    put = store.put_message(Message("orders", b"x", tags="paid", keys="o-1", queue_id=3))
    original = store.look_message(put.physical_offset)
    store.send_back(original, "billing")
    clock.advance(10_000)  # level 3
    assert store.deliver_due() == 1
    again = first_of(store, retry_topic("billing"))
    assert (again.queue_id, again.reconsume_times, again.body) == (0, 1, b"x")
    assert again.properties["RETRY_TOPIC"] == "orders"
    assert again.properties["ORIGIN_MESSAGE_ID"] == original.msg_id
    assert (again.properties["TAGS"], again.properties["KEYS"]) == ("paid", "o-1")
    assert store.look_message(put.physical_offset) == original


def test_the_delay_grows_with_every_try(store: DefaultMessageStore, clock: ManualClock) -> None:
    put = store.put_message(Message("orders", b"x"))
    record = store.look_message(put.physical_offset)
    origin = record.msg_id
    for number, delay in enumerate((10_000, 30_000, 60_000, 120_000)):
        store.send_back(record, "g")
        clock.advance(delay - 1)
        assert store.deliver_due() == 0
        clock.advance(1)
        assert store.deliver_due() == 1
        record = first_of(store, retry_topic("g"), number)
        assert record.reconsume_times == number + 1
        assert record.properties["RETRY_TOPIC"] == "orders"
        assert record.properties["ORIGIN_MESSAGE_ID"] == origin


def test_after_the_last_try_it_goes_to_the_dead_letters_at_once(
    store: DefaultMessageStore,
) -> None:
    put = store.put_message(Message("orders", b"x", reconsume_times=16))
    store.send_back(store.look_message(put.physical_offset), "g")
    assert first_of(store, dead_letter_topic("g")).reconsume_times == 17


@pytest.mark.parametrize(("level", "times"), [(-1, 16), (5, 0)])
def test_it_is_given_up_when_the_consumer_asks_for_it(
    store: DefaultMessageStore, level: int, times: int
) -> None:
    put = store.put_message(Message("orders", b"x"))
    store.send_back(
        store.look_message(put.physical_offset), "g", delay_level=level, times_max=times
    )
    assert first_of(store, "%DLQ%g").body == b"x"


def test_a_consumer_may_choose_the_delay(store: DefaultMessageStore, clock: ManualClock) -> None:
    put = store.put_message(Message("orders", b"x"))
    store.send_back(store.look_message(put.physical_offset), "g", delay_level=1)
    clock.advance(1000)
    assert store.deliver_due() == 1
    assert first_of(store, "%RETRY%g").body == b"x"


def test_the_prefixes_are_in_capitals() -> None:
    assert retry_topic("g") == "%RETRY%g"
    assert dead_letter_topic("g") == "%DLQ%g"
