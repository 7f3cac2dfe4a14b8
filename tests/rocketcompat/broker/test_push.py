"""Consumers that call a listener: concurrently, orderly, broadcasting; stepped by a clock."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

import rocketcompat
from rocketcompat import BatchItem, Message, MessageBatch
from rocketcompat.broker.broker import Broker
from rocketcompat.broker.push import (
    ConsumeContext,
    ConsumeStatus,
    PushConsumer,
    PushOptions,
)
from rocketcompat.files.broker_config import SubscriptionGroupConfig
from rocketcompat.messages import MessageRecord
from rocketcompat.store.default_message_store import DefaultMessageStore
from tests.rocketcompat.broker.conftest import broker_over, opened
from tubestore.clock import ManualClock
from tubestore.errors import DiskFull, InvalidMessage, InvalidName
from tubestore.testing import MemoryVfs

DONE, LATER = ConsumeStatus.CONSUME_SUCCESS, ConsumeStatus.RECONSUME_LATER
WAIT = ConsumeStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT


class Heard:
    """A listener that notes what it gets; `answer` decides."""

    def __init__(self, answer: Callable[..., Any] | None = None) -> None:
        self.messages: list[MessageRecord] = []
        self.batches: list[int] = []
        self.answer = answer or (lambda messages, context: DONE)

    def __call__(self, messages: Sequence[MessageRecord], context: ConsumeContext) -> Any:
        self.messages += messages
        self.batches.append(len(messages))
        return self.answer(messages, context)

    @property
    def bodies(self) -> list[bytes]:
        return [message.body for message in self.messages]


class World:
    """A broker with consumers that are stepped together."""

    def __init__(self, broker: Broker, clock: ManualClock) -> None:
        self.broker, self.clock = broker, clock
        self.consumers: list[PushConsumer] = []
        broker.topics.create("orders", 1)

    def consumer(self, listener: Any, *, group: str = "g", **given: Any) -> PushConsumer:
        options = {name: given.pop(name) for name in list(given) if hasattr(PushOptions, name)}
        consumer = PushConsumer(
            self.broker, group, given.pop("topics", {"orders": "*"}), listener,
            options=PushOptions(consume_from_where="CONSUME_FROM_FIRST_OFFSET") if not options
            else PushOptions(**{"consume_from_where": "CONSUME_FROM_FIRST_OFFSET", **options}),
            client_id=given.pop("client_id", f"client-{len(self.consumers)}"), **given,
        )  # fmt: skip
        self.consumers.append(consumer)
        self.step()
        return consumer

    def send(self, *bodies: bytes, **given: Any) -> None:
        for body in bodies:
            self.broker.send(Message("orders", body, **given))
        self.step()

    def step(self, ms: int = 0) -> None:
        self.clock.advance(ms)
        for _ in range(3):
            self.broker.step()
            for consumer in self.consumers:
                consumer.step()

    def committed(self, queue_id: int = 0, topic: str = "orders", group: str = "g") -> int | None:
        return self.broker.offsets.find(group, topic, queue_id)

    def close(self) -> None:
        for consumer in self.consumers:
            consumer.close()


@pytest.fixture
def world(broker: Broker, clock: ManualClock) -> Iterator[World]:
    world = World(broker, clock)
    yield world
    world.close()


def test_messages_come_as_they_are_sent_and_are_committed(world: World) -> None:
    heard = Heard()
    world.consumer(heard)
    world.send(b"a", b"b")
    world.send(b"c")
    assert heard.bodies == [b"a", b"b", b"c"]
    assert world.committed() == 3


def test_the_messages_of_an_inner_batch_are_consumed_and_committed_one_by_one(
    memory_vfs: MemoryVfs, clock: ManualClock
) -> None:
    with (
        opened(memory_vfs, clock, batch_topics=frozenset({"orders"})) as store,
        broker_over(store, memory_vfs, clock) as broker,
    ):
        world = World(broker, clock)
        store.put_inner_batch(MessageBatch("orders", [BatchItem(b"%d" % n) for n in range(4)]))
        broker.commit_offset("g", "orders", 0, 1)
        heard = Heard()
        world.consumer(heard)
        world.step()
        assert heard.bodies == [b"1", b"2", b"3"]
        assert heard.batches == [1, 1, 1]
        assert world.committed() == 4
        world.close()


def test_a_later_consumer_goes_on_where_the_group_was(world: World) -> None:
    world.consumer(Heard()).close()
    world.send(b"a")
    first = Heard()
    world.consumers.pop()
    world.consumer(first).close()
    world.consumers.pop()
    world.send(b"b")
    second = Heard()
    world.consumer(second)
    assert (first.bodies, second.bodies) == ([b"a"], [b"b"])


def test_a_listener_gets_batches_of_its_size(world: World) -> None:
    heard = Heard()
    world.send(*[b"%d" % n for n in range(7)])
    world.consumer(heard, consume_message_batch_max_size=3)
    assert heard.batches == [3, 3, 1]


def test_only_wanted_tags_come_and_the_group_moves_over_the_others(world: World) -> None:
    heard = Heard()
    world.consumer(heard, topics={"orders": "a"})
    world.send(b"1", tags="a")
    world.send(b"2", tags="b")
    world.step(5_000)  # the check of held pulls
    assert heard.bodies == [b"1"]
    assert world.committed() == 2


@pytest.mark.parametrize("answer", [LATER, None, "SUCCESS", ValueError])
def test_a_failed_message_comes_again_under_its_own_topic(world: World, answer: Any) -> None:
    def first_fails(messages: Sequence[MessageRecord], context: ConsumeContext) -> Any:
        if messages[0].reconsume_times:
            return DONE
        if answer is ValueError:
            raise ValueError("no")
        return answer

    heard = Heard(first_fails)
    world.consumer(heard)
    world.send(b"a")
    assert world.committed() == 1  # it is in the retry topic
    world.step(9_999)
    assert len(heard.messages) == 1
    world.step(1)
    assert [(m.topic, m.reconsume_times) for m in heard.messages] == [("orders", 0), ("orders", 1)]
    assert world.committed(topic="%RETRY%g") == 1


def test_a_message_that_always_fails_ends_among_the_dead_letters(
    world: World, store: DefaultMessageStore
) -> None:
    world.broker.groups.update(SubscriptionGroupConfig("g", retry_max_times=2))
    heard = Heard(lambda messages, context: LATER)
    world.consumer(heard)
    world.send(b"a")
    for _ in range(4):
        world.step(60_000)
    assert [message.reconsume_times for message in heard.messages] == [0, 1, 2]
    assert [m.body for m in store.get_message("%DLQ%g", 0, 0).messages] == [b"a"]


def test_a_listener_may_choose_the_delay_and_a_limit_of_its_own_counts(
    world: World, store: DefaultMessageStore
) -> None:
    def fails(messages: Sequence[MessageRecord], context: ConsumeContext) -> ConsumeStatus:
        context.delay_level_when_next_consume = 1
        return LATER

    heard = Heard(fails)
    world.consumer(heard, max_reconsume_times=1)
    world.send(b"a")
    world.step(1_000)
    assert len(heard.messages) == 2
    assert store.max_offset_in_queue("%DLQ%g", 0) == 1


def test_messages_behind_the_ack_index_failed(world: World) -> None:
    def half(messages: Sequence[MessageRecord], context: ConsumeContext) -> ConsumeStatus:
        if not messages[0].reconsume_times:
            context.ack_index = 0
        return DONE

    heard = Heard(half)
    world.send(b"a", b"b", b"c")
    world.consumer(heard, consume_message_batch_max_size=3)
    world.step(10_000)
    assert heard.bodies == [b"a", b"b", b"c", b"b", b"c"]


def test_a_message_that_cannot_be_sent_back_is_consumed_again_here_and_not_committed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*given: Any, **named: Any) -> None:
        raise DiskFull("/s", "no room")

    heard = Heard(lambda messages, context: LATER)
    world.consumer(heard)
    with monkeypatch.context() as patch:
        patch.setattr(world.broker, "send_back", refuse)
        world.send(b"a")
    assert world.committed() in (None, 0)
    heard.answer = lambda messages, context: DONE
    world.step(5_000)
    assert [message.reconsume_times for message in heard.messages] == [0, 1]
    assert world.committed() == 1


def test_broadcasting_gives_each_client_each_message_and_drops_what_fails(
    world: World, store: DefaultMessageStore
) -> None:
    heard = [Heard(), Heard(lambda messages, context: LATER)]
    for listener in heard:
        world.consumer(listener, model="BROADCASTING")
    world.send(b"a")
    world.step(60_000)
    assert [listener.bodies for listener in heard] == [[b"a"], [b"a"]]
    assert store.max_offset_in_queue("%RETRY%g", 0) == 0


def test_members_share_the_queues_and_the_left_ones_queues_move(
    broker: Broker, clock: ManualClock
) -> None:
    world = World(broker, clock)
    broker.delete_topic("orders")
    broker.topics.create("orders", 4)
    heard = [Heard(), Heard()]
    consumers = [world.consumer(listener) for listener in heard]
    assert [len(consumer.queues) for consumer in consumers] == [2 + 1, 2]  # and the retry topic
    world.send(*[b"%d" % n for n in range(8)])
    assert sorted(heard[0].bodies + heard[1].bodies) == [b"%d" % n for n in range(8)]
    assert len(heard[0].bodies) == 4
    consumers[1].close()
    world.consumers.pop()
    world.send(b"8", b"9", b"A", b"B")
    assert len(heard[0].bodies) == 8
    world.close()


def test_a_dropped_queue_s_messages_are_not_consumed(world: World) -> None:
    heard = Heard()
    consumer = world.consumer(heard)
    for number in range(2):
        world.broker.send(Message("orders", b"%d" % number))
    world.broker.step()
    consumer._round()  # pulled, and the listener has not run
    for held in consumer._rebalance.queues.values():
        held.drop()
    consumer.step()
    assert heard.bodies == []
    assert world.committed() in (None, 0)


@pytest.mark.parametrize(
    "limit",
    [
        {"pull_threshold_for_queue": 3},
        {"consume_concurrently_max_span": 3},
        {"pull_threshold_for_topic": 7},  # two queues: 3 each
    ],
)
def test_pulls_pause_while_too_much_waits(world: World, limit: dict[str, int]) -> None:
    heard = Heard()
    consumer = world.consumer(heard, pull_batch_size=2, **limit)
    for number in range(20):
        world.broker.send(Message("orders", b"%d" % number))
    world.broker.step()
    consumer._round()  # without its listeners
    (held,) = (h for q, h in consumer._rebalance.queues.items() if q.topic == "orders")
    assert held.count in (4, 6)
    world.clock.advance(50)
    before = held.count
    consumer._round()
    assert held.count == before
    consumer.step()
    for _ in range(9):
        world.step(50)
    assert len(heard.bodies) == 20


def test_pulls_pause_while_too_many_bytes_wait(world: World) -> None:
    heard = Heard()
    consumer = world.consumer(heard, pull_threshold_size_for_queue=1)
    held = next(h for q, h in consumer._rebalance.queues.items() if q.topic == "orders")
    held._size = 3 << 20
    world.send(b"a")  # the pull that was held is answered, the next one waits
    world.send(b"b")
    assert heard.bodies == [b"a"]
    held._size = 0
    world.step(50)
    assert heard.bodies == [b"a", b"b"]


def test_a_paused_consumer_gets_nothing_until_it_is_resumed(world: World) -> None:
    heard = Heard()
    consumer = world.consumer(heard)
    consumer.pause()
    world.send(b"a")  # the pull that was held is answered
    world.send(b"b")
    assert heard.bodies == [b"a"]
    consumer.resume()
    world.step(1_000)
    assert heard.bodies == [b"a", b"b"]


def test_pulls_keep_their_interval(world: World) -> None:
    heard = Heard()
    world.consumer(heard, pull_interval=500)
    world.send(b"a")
    world.send(b"b")
    assert heard.bodies == [b"a"]
    world.step(500)
    assert heard.bodies == [b"a", b"b"]


def test_a_message_that_its_listener_keeps_too_long_is_sent_back(world: World) -> None:
    heard = Heard()
    consumer = world.consumer(heard, consume_timeout=1)
    world.send(b"a")
    held = next(h for q, h in consumer._rebalance.queues.items() if q.topic == "orders")
    late = heard.messages[0]
    held.put([late])
    held.start([late])
    world.step(60_000)
    world.step(60_000)  # sent back, and due 10 s later
    world.step(10_000)
    assert [message.reconsume_times for message in heard.messages] == [0, 1]


def test_a_moved_offset_is_committed_and_the_queue_begins_again(world: World) -> None:
    world.broker.commit_offset("g", "orders", 0, 99)
    heard = Heard()
    world.consumer(heard)
    world.send(b"a")
    assert heard.bodies == []
    world.step(10_000)
    world.step(5_000)
    world.send(b"b")
    assert world.committed() == 2
    assert heard.bodies[-1] == b"b"


def test_an_orderly_consumer_gets_a_queue_s_messages_in_order_and_waits_for_a_failed_one(
    world: World,
) -> None:
    rounds: list[int] = []

    def twice(messages: Sequence[MessageRecord], context: ConsumeContext) -> ConsumeStatus:
        if messages[0].body == b"b" and len(rounds) < 2:
            rounds.append(messages[0].reconsume_times)
            return WAIT
        return ConsumeStatus.SUCCESS

    heard = Heard(twice)
    world.consumer(heard, orderly=True)
    world.send(b"a", b"b", b"c")
    assert heard.bodies == [b"a", b"b"]
    assert world.committed() == 1
    world.step(999)
    assert heard.bodies == [b"a", b"b"]
    world.step(1)
    world.step(1_000)
    assert heard.bodies == [b"a", b"b", b"b", b"b", b"c"]
    assert rounds == [0, 1]
    assert world.committed() == 3


def test_an_orderly_message_is_given_up_after_its_limit_only(
    world: World, store: DefaultMessageStore
) -> None:
    heard = Heard(lambda messages, context: WAIT)
    world.consumer(heard, orderly=True, max_reconsume_times=1)
    world.send(b"a", b"b")
    for _ in range(3):
        world.step(1_000)
    assert heard.bodies == [b"a", b"a", b"b", b"b"]
    assert [m.body for m in store.get_message("%DLQ%g", 0, 0).messages] == [b"a", b"b"]
    assert world.committed() == 2


def test_without_auto_commit_only_commit_ends_what_was_taken(world: World) -> None:
    answers = [ConsumeStatus.SUCCESS, ConsumeStatus.ROLLBACK, ConsumeStatus.SUCCESS,
               ConsumeStatus.COMMIT]  # fmt: skip

    def listen(messages: Sequence[MessageRecord], context: ConsumeContext) -> ConsumeStatus:
        context.auto_commit = False
        context.suspend_current_queue_time_millis = 0
        return answers.pop(0)

    heard = Heard(listen)
    world.consumer(heard, orderly=True)
    world.send(b"a", b"b")
    assert heard.bodies == [b"a", b"b"]
    assert world.committed() in (None, 0)
    world.step(10)
    assert heard.bodies == [b"a", b"b", b"a", b"b"]
    assert world.committed() == 2


def test_an_orderly_queue_has_one_consumer_at_a_time(world: World) -> None:
    first, second = Heard(), Heard()
    one = world.consumer(first, orderly=True, client_id="b")
    world.send(b"a")
    world.consumer(second, orderly=True, client_id="a")  # comes first, and gets the queue
    world.send(b"b")
    for _ in range(3):
        world.step(20_000)
    assert first.bodies + second.bodies == [b"a", b"b"]
    assert second.bodies == [b"b"]
    assert [q for q in one.queues if q.topic == "orders"] == []


def test_an_orderly_consumer_that_lost_its_lock_consumes_nothing(world: World) -> None:
    heard = Heard()
    consumer = world.consumer(heard, orderly=True)
    assert consumer.queues[-1].topic == "orders"
    world.broker.locks._held.clear()
    world.broker.locks.lock("g", "another", world.broker.queues("orders"))
    world.step(20_000)
    world.send(b"a")
    for _ in range(5):
        world.step(1_000)
    assert heard.bodies == []
    world.broker.locks.unlock("g", "another", world.broker.queues("orders"))
    for _ in range(30):
        world.step(1_000)
    assert heard.bodies == [b"a"]


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"group": "a b"}, InvalidName),
        ({"topics": {"a b": "*"}}, InvalidName),
        ({"model": "BOTH"}, InvalidMessage),
        ({"listener": None}, InvalidMessage),
        ({"topics": {"orders": "||"}}, InvalidMessage),
    ],
)
def test_wrong_arguments_are_refused_before_the_group_has_a_member(
    broker: Broker, given: dict[str, Any], error: type[Exception]
) -> None:
    arguments = {"group": "g", "topics": {"orders": "*"}, "listener": Heard(), **given}
    with pytest.raises(error):
        PushConsumer(
            broker, arguments["group"], arguments["topics"], arguments["listener"],
            model=arguments.get("model", "CLUSTERING"),
        )  # fmt: skip
    assert broker.groups.names() == []


@pytest.mark.parametrize(
    "options",
    [
        {"consume_from_where": "FIRST"}, {"consume_timestamp": "now"}, {"pull_batch_size": 0},
        {"consume_thread_max": "2"}, {"max_reconsume_times": -2},
    ],
)  # fmt: skip
def test_a_wrong_option_is_refused_by_its_name(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidMessage, match=next(iter(options))):
        PushOptions(**options)


def test_with_threads_messages_come_by_themselves(memory_vfs: MemoryVfs) -> None:
    event = threading.Event()
    seen: list[bytes] = []

    def listen(messages: Sequence[MessageRecord], context: ConsumeContext) -> ConsumeStatus:
        seen.extend(message.body for message in messages)
        if len(seen) == 10:
            event.set()
        return DONE

    with (
        rocketcompat.open("/s", "w", vfs=memory_vfs) as store,
        Broker(store, vfs=memory_vfs) as broker,
    ):
        broker.topics.create("orders", 2)
        with PushConsumer(broker, "g", {"orders": "*"}, listen):
            for number in range(10):
                broker.send(Message("orders", b"%d" % number))
            assert event.wait(60)
        assert sorted(seen) == sorted(b"%d" % number for number in range(10))
        assert sum(broker.offsets.of("g", "orders").values()) == 10
        assert broker.consumers.client_ids("g") == []


def test_subscriptions_that_are_no_map_are_refused(broker: Broker) -> None:
    for value in (None, 7, "x", ["orders"]):
        given: Any = value
        with pytest.raises(InvalidMessage, match=r"^subscriptions = "):
            PushConsumer(broker, "g", given, lambda *_: ConsumeStatus.CONSUME_SUCCESS)
