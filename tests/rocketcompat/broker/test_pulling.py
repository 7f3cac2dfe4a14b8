"""Pulls: statuses, filters by tag, short and long polling by a clock that a test sets."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import rocketcompat
from rocketcompat import BatchItem, Message, MessageBatch
from rocketcompat.broker.broker import Broker
from rocketcompat.broker.pulling import (
    HeldPull,
    PullRequest,
    PullResult,
    PullStatus,
    Subscription,
    pull_status,
)
from rocketcompat.files.broker_config import SubscriptionGroupConfig, TopicConfig
from rocketcompat.formats import (
    SYS_FLAG_COMPRESSED,
    SYS_FLAG_INNER_BATCH,
    SYS_FLAG_NEED_UNWRAP,
)
from rocketcompat.messages import GetMessageStatus
from rocketcompat.store.default_message_store import DefaultMessageStore
from tests.rocketcompat.broker.conftest import broker_over, opened
from tests.support.rocket.inside import dispatcher_of
from tubestore.clock import ManualClock
from tubestore.errors import InvalidMessage, InvalidName, StoreClosed, UnknownTopic
from tubestore.testing import MemoryVfs

ALL = Subscription("orders")


def request(offset: int = 0, **given: Any) -> PullRequest:
    return PullRequest("g", "orders", 0, offset, **{"subscription": ALL, **given})


class Asking:
    """A pull that is held, and whether it was released."""

    def __init__(self, broker: Broker, asked: PullRequest) -> None:
        self.broker, self.asked, self.calls = broker, asked, 0
        self.answer = broker.pull_or_hold(asked, self.ready)

    def ready(self) -> None:
        self.calls += 1

    @property
    def is_held(self) -> bool:
        return isinstance(self.answer, HeldPull) and not self.calls

    def result(self) -> PullResult:
        assert self.calls == 1
        return self.broker.pull_now(self.asked)


@pytest.fixture
def asking(broker: Broker) -> Callable[..., Asking]:
    broker.topics.create("orders", 1)
    return lambda offset=0, **given: Asking(
        broker, request(offset, **{"suspend_ms": 20_000, **given})
    )


def put(
    store: DefaultMessageStore, body: bytes = b"x", tag: str | None = None, **given: Any
) -> None:
    store.put_message(Message("orders", body, tags=tag, **given))


def dispatch(store: DefaultMessageStore) -> None:
    dispatcher_of(store).dispatch_pending()


@pytest.mark.parametrize(
    ("status", "offset", "code"),
    [
        ("FOUND", 0, "SUCCESS"),
        ("NO_MESSAGE_IN_QUEUE", 0, "PULL_NOT_FOUND"),
        ("NO_MESSAGE_IN_QUEUE", 3, "PULL_OFFSET_MOVED"),
        ("NO_MATCHED_LOGIC_QUEUE", 0, "PULL_NOT_FOUND"),
        ("NO_MATCHED_LOGIC_QUEUE", 3, "PULL_OFFSET_MOVED"),
        ("NO_MATCHED_MESSAGE", 0, "PULL_RETRY_IMMEDIATELY"),
        ("MESSAGE_WAS_REMOVING", 0, "PULL_RETRY_IMMEDIATELY"),
        ("OFFSET_FOUND_NULL", 0, "PULL_NOT_FOUND"),
        ("OFFSET_OVERFLOW_ONE", 0, "PULL_NOT_FOUND"),
        ("OFFSET_OVERFLOW_BADLY", 0, "PULL_OFFSET_MOVED"),
        ("OFFSET_TOO_SMALL", 0, "PULL_OFFSET_MOVED"),
    ],
)
def test_a_status_of_the_store_has_rocketmq_s_answer(status: str, offset: int, code: str) -> None:
    assert pull_status(GetMessageStatus(status), offset).value == code


def test_a_pull_returns_the_messages_and_where_to_go_on(
    broker: Broker, store: DefaultMessageStore
) -> None:
    broker.topics.create("orders", 1)
    for number in range(3):
        put(store, b"%d" % number)
    dispatch(store)
    found = broker.pull(request(1))
    assert [message.body for message in found.messages] == [b"1", b"2"]
    assert (found.status, found.next_begin_offset) == (PullStatus.FOUND, 3)
    assert (found.min_offset, found.max_offset) == (0, 3)
    assert broker.pull(request(3)).status is PullStatus.NO_NEW_MSG
    assert broker.pull(request(9)).status is PullStatus.OFFSET_ILLEGAL
    assert broker.pull(request(9)).next_begin_offset == 3


def test_tags_are_exact_though_the_queue_has_hashes_only(
    broker: Broker, store: DefaultMessageStore
) -> None:
    broker.topics.create("orders", 1)
    for tag in ("Aa", "BB", "C"):  # the hashes of the first two are equal
        put(store, tag.encode(), tag)
    dispatch(store)
    wanted = request(subscription=Subscription("orders", "Aa || D"))
    assert [message.body for message in broker.pull(wanted).messages] == [b"Aa"]
    none = broker.pull(request(subscription=Subscription("orders", "D")))
    assert (none.status, none.next_begin_offset) == (PullStatus.NO_MATCHED_MSG, 3)


def test_a_compressed_body_comes_out_as_the_producer_had_it(
    broker: Broker, store: DefaultMessageStore
) -> None:
    broker.topics.create("orders", 1)
    put(store, zlib.compress(b"hello"), sys_flag=SYS_FLAG_COMPRESSED)
    put(store, b"no zlib", sys_flag=SYS_FLAG_COMPRESSED)
    dispatch(store)
    assert [m.body for m in broker.pull(request()).messages] == [b"hello", b"no zlib"]


@pytest.fixture
def batches(
    memory_vfs: MemoryVfs, clock: ManualClock
) -> Iterator[tuple[Broker, DefaultMessageStore]]:
    """A broker with a topic of inner batches."""
    with (
        opened(memory_vfs, clock, batch_topics=frozenset({"orders"})) as store,
        broker_over(store, memory_vfs, clock) as broker,
    ):
        broker.topics.create("orders", 1)
        yield broker, store


def test_an_inner_batch_comes_as_the_messages_that_it_holds(
    batches: tuple[Broker, DefaultMessageStore],
) -> None:
    broker, store = batches
    items = [
        BatchItem(b"%d" % n, tags="odd" if n % 2 else "even", flag=n, keys=["k"]) for n in range(4)
    ]
    store.put_inner_batch(MessageBatch("orders", items[:3]))
    store.put_inner_batch(MessageBatch("orders", items[3:]))
    dispatch(store)
    found = broker.pull(request())
    assert [(m.body, m.queue_offset, m.flag) for m in found.messages] == [
        (b"%d" % n, n, n) for n in range(4)
    ]
    assert found.messages[1].properties == {"TAGS": "odd", "KEYS": "k"}
    assert not found.messages[1].sys_flag & (SYS_FLAG_INNER_BATCH | SYS_FLAG_NEED_UNWRAP)
    assert found.next_begin_offset == 4
    # From the middle of a batch the ones before are consumed.
    assert [message.body for message in broker.pull(request(1)).messages] == [b"1", b"2", b"3"]


def test_an_inner_batch_that_cannot_be_split_is_a_problem_and_is_passed_over(
    batches: tuple[Broker, DefaultMessageStore],
) -> None:
    broker, store = batches
    flags = SYS_FLAG_INNER_BATCH | SYS_FLAG_NEED_UNWRAP
    put(store, b"no batch", sys_flag=flags, properties={"INNER_NUM": "2"})
    store.put_inner_batch(MessageBatch("orders", [BatchItem(b"next")]))
    dispatch(store)
    found = broker.pull(request())
    assert [message.body for message in found.messages] == [b"next"]
    (problem,) = found.problems
    assert "orders/0: the inner batch at 0" in str(problem)


def test_one_message_of_an_inner_batch_is_sent_back_alone(
    batches: tuple[Broker, DefaultMessageStore], clock: ManualClock
) -> None:
    broker, store = batches
    items = [BatchItem(b"%d" % n, flag=n) for n in range(3)]
    store.put_inner_batch(MessageBatch("orders", items))
    dispatch(store)
    broker.send_back("g", broker.pull(request()).messages[1])
    clock.advance(10_000)
    for _ in range(2):
        broker.step()
    (again,) = store.get_message("%RETRY%g", 0, 0).messages
    assert (again.body, again.flag, again.reconsume_times) == (b"1", 1, 1)


def test_a_heartbeat_s_subscription_is_used_without_one_in_the_request(
    broker: Broker, store: DefaultMessageStore
) -> None:
    broker.topics.create("orders", 1)
    put(store, b"a", "a")
    put(store, b"b", "b")
    dispatch(store)
    asked = request(subscription=None)
    with pytest.raises(InvalidMessage, match="no subscription"):
        broker.pull(asked)
    broker.heartbeat("g", "me", [Subscription("orders", "b")])
    assert [message.body for message in broker.pull(asked).messages] == [b"b"]


def test_a_pull_commits_what_was_consumed(broker: Broker) -> None:
    broker.topics.create("orders", 1)
    broker.pull(request(commit_offset=7))
    assert broker.query_offset("g", "orders", 0) == 7


def test_what_a_group_may_not_have_is_refused(broker: Broker) -> None:
    with pytest.raises(UnknownTopic):
        broker.pull(request())
    broker.topics.update(TopicConfig("orders", 1, 1))
    for queue_id in (-1, 1):
        with pytest.raises(InvalidMessage, match="queue_id"):
            broker.pull(PullRequest("g", "orders", queue_id, 0, subscription=ALL))
    broker.topics.update(TopicConfig("orders", 1, 1, perm=2))
    with pytest.raises(InvalidName, match="perm"):
        broker.pull(request())
    broker.topics.update(TopicConfig("orders", 1, 1))
    broker.groups.update(SubscriptionGroupConfig("g", consume_broadcast_enable=False))
    broker.heartbeat("g", "me", [ALL], model="BROADCASTING")
    with pytest.raises(InvalidName, match="broadcasting"):
        broker.pull(request(subscription=None))
    broker.groups.update(SubscriptionGroupConfig("g", consume_enable=False))
    with pytest.raises(InvalidName, match="consumeEnable"):
        broker.pull(request())


@pytest.mark.parametrize(("expression", "kind"), [(" || ", "TAG"), ("||", "TAG"), ("a", "CLASS")])
def test_a_wrong_subscription_is_refused(expression: str, kind: str) -> None:
    if expression == " || ":  # blanks are a tag to RocketMQ's parser, and none is left of it
        assert Subscription("orders", expression).codes is None
        return
    with pytest.raises(InvalidMessage, match="expression"):
        Subscription("orders", expression, kind)


def test_a_held_pull_is_released_when_a_message_is_dispatched(
    asking: Callable[..., Asking], store: DefaultMessageStore
) -> None:
    held = asking()
    put(store, b"now")
    assert held.is_held
    dispatch(store)
    assert [message.body for message in held.result().messages] == [b"now"]


def test_a_message_of_another_queue_or_tag_releases_nothing(
    asking: Callable[..., Asking], store: DefaultMessageStore
) -> None:
    held = asking(subscription=Subscription("orders", "a"))
    put(store, b"other queue", "a", queue_id=1)
    put(store, b"other tag", "b")
    dispatch(store)
    assert held.is_held
    put(store, b"wanted", "a")
    dispatch(store)
    assert [message.body for message in held.result().messages] == [b"wanted"]


def test_a_message_put_between_the_answer_and_the_hold_is_not_missed(
    broker: Broker, store: DefaultMessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.topics.create("orders", 1)
    hold = broker._held.hold

    def late(*given: Any) -> None:
        put(store, b"in between")
        dispatch(store)
        hold(*given)

    monkeypatch.setattr(broker._held, "hold", late)
    held = Asking(broker, request(suspend_ms=20_000))
    assert [message.body for message in held.result().messages] == [b"in between"]


def test_the_check_every_5_s_finds_a_message_without_a_wake_up(
    asking: Callable[..., Asking], broker: Broker, store: DefaultMessageStore, clock: ManualClock
) -> None:
    held = asking()
    store.set_arrival_listener(None)
    put(store)
    dispatch(store)
    clock.advance(4_999)
    broker.step()
    assert held.is_held
    clock.advance(1)
    broker.step()
    assert held.result().status is PullStatus.FOUND


def test_a_long_poll_ends_without_a_message_when_its_time_is_over(
    asking: Callable[..., Asking], broker: Broker, clock: ManualClock
) -> None:
    held = asking(suspend_ms=20_000)
    for _ in range(3):
        clock.advance(5_000)
        broker.step()
    assert held.is_held
    clock.advance(5_000)
    broker.step()
    assert held.result().status is PullStatus.NO_NEW_MSG


def test_a_check_releases_a_pull_whose_queue_has_only_other_tags(
    asking: Callable[..., Asking], broker: Broker, store: DefaultMessageStore, clock: ManualClock
) -> None:
    held = asking(subscription=Subscription("orders", "a"))
    put(store, b"x", "b")
    dispatch(store)
    clock.advance(5_000)
    broker.step()
    found = held.result()
    assert (found.status, found.next_begin_offset) == (PullStatus.NO_MATCHED_MSG, 1)


@pytest.mark.parametrize("arrives", [False, True])
def test_a_short_poll_is_answered_after_a_second_whatever_its_request_asks(
    store: DefaultMessageStore, memory_vfs: MemoryVfs, clock: ManualClock, arrives: bool
) -> None:
    with broker_over(store, memory_vfs, clock, long_polling_enable=False) as broker:
        broker.topics.create("orders", 1)
        store.set_arrival_listener(None)  # a wake-up would be earlier
        held = Asking(broker, request(suspend_ms=20_000))
        if arrives:
            put(store)
            dispatch(store)
        clock.advance(999)
        broker.step()
        assert held.is_held
        clock.advance(1)
        broker.step()
        wanted = PullStatus.FOUND if arrives else PullStatus.NO_NEW_MSG
        assert held.result().status is wanted


def test_a_pull_that_does_not_ask_for_it_is_not_held(broker: Broker) -> None:
    broker.topics.create("orders", 1)
    found = broker.pull_or_hold(request(), lambda: pytest.fail("was held"))
    assert isinstance(found, PullResult)


def test_a_stepped_broker_refuses_to_wait(broker: Broker) -> None:
    with pytest.raises(InvalidMessage, match="background"):
        broker.pull(request(suspend_ms=1))


def test_closing_releases_held_pulls_which_are_then_refused(
    asking: Callable[..., Asking], broker: Broker
) -> None:
    held = asking()
    broker.close()
    with pytest.raises(StoreClosed):
        held.result()


def test_a_forgotten_pull_is_not_released(
    asking: Callable[..., Asking], broker: Broker, store: DefaultMessageStore
) -> None:
    held = asking()
    assert isinstance(held.answer, HeldPull)
    broker.stop_holding(held.answer)
    put(store)
    dispatch(store)
    assert held.is_held
    assert len(broker._held) == 0


def test_a_listener_that_fails_is_a_problem_and_stops_nothing(store: DefaultMessageStore) -> None:
    def failing(batch: object) -> None:
        raise ValueError("no")

    store.set_arrival_listener(failing)
    put(store)
    dispatch(store)
    assert store.max_offset_in_queue("orders", 0) == 1
    assert ["arrival listener" in str(problem) for problem in store.problems] == [True]


def test_a_unit_of_another_queue_of_one_message_releases_its_pull(
    memory_vfs: MemoryVfs, clock: ManualClock
) -> None:
    options = {"enable_lmq": True, "enable_multi_dispatch": True}
    with (
        opened(memory_vfs, clock, **options) as store,
        broker_over(store, memory_vfs, clock) as broker,
    ):
        broker.topics.create("%LMQ%all", 1)
        asked = PullRequest(
            "g", "%LMQ%all", 0, 0, subscription=Subscription("%LMQ%all"), suspend_ms=9
        )
        held = Asking(broker, asked)
        put(store, properties={"INNER_MULTI_DISPATCH": "%LMQ%all"})
        dispatch(store)
        assert len(held.result().messages) == 1


def test_a_broker_over_a_reader_finds_what_the_writer_appends(
    store: DefaultMessageStore, memory_vfs: MemoryVfs, clock: ManualClock
) -> None:
    put(store, b"first")
    dispatch(store)
    with (
        rocketcompat.open("/s", "r", store.config, vfs=memory_vfs, clock=clock) as reader,
        broker_over(reader, memory_vfs, clock) as broker,
    ):
        assert len(broker.pull(request()).messages) == 1
        held = Asking(broker, request(1, suspend_ms=20_000))
        put(store, b"second")
        dispatch(store)
        assert held.is_held
        clock.advance(100)
        broker.step()
        assert [message.body for message in held.result().messages] == [b"second"]
