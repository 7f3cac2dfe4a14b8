"""The one way to wait for messages."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from tests.support.engine.interrupts import interrupted
from tubestore.groups.waiter import Waiter
from tubestore.store.manager import MessageStoreManager, engine_of


class Source:
    """Keeps the calls that are asked for; has messages below `end`."""

    def __init__(self) -> None:
        self.end = 0
        self.asked: list[tuple[str, int, Callable[[], None]]] = []

    def call_beyond(self, topic: str, store_id: int, offset: int, call: Callable[[], None]) -> bool:
        if offset < self.end:
            return False
        self.asked.append((topic, store_id, call))
        return True


def test_a_shard_that_is_announced_ends_the_wait_and_is_taken_once() -> None:
    source = Source()
    waiter = Waiter(source.call_beyond)
    assert waiter.ask(("t", 0), 0)
    assert waiter.ask(("t", 1), 0)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(waiter.wait, None)
        source.asked[1][2]()
        assert waiting.result(60) is False
    assert waiter.take() == [("t", 1)]
    assert waiter.take() == []


def test_a_shard_with_a_message_now_is_not_waited_for() -> None:
    source = Source()
    source.end = 28
    assert not Waiter(source.call_beyond).ask(("t", 0), 0)


def test_the_call_for_a_shard_is_the_same_one_each_time() -> None:
    source = Source()
    waiter = Waiter(source.call_beyond)
    for _ in range(3):
        waiter.ask(("t", 0), 0)
    assert len({call for *_, call in source.asked}) == 1


def test_an_interrupt_ends_one_wait_even_if_it_comes_before() -> None:
    waiter = Waiter(Source().call_beyond)
    waiter.interrupt()
    assert waiter.wait(None)
    assert not waiter.wait(0)


def test_a_waiter_that_was_dropped_leaves_no_call_behind(store: MessageStoreManager) -> None:
    topic = store.create_topic("t")
    topic.append(b"first")
    engine = engine_of(store)
    for _ in range(3):
        waiter = Waiter(engine.shards.call_beyond)
        waiter.ask(("t", 0), 28)
    shard = next(iter(engine.shards.written()))
    gc.collect()
    assert len(shard._changed._calls) == 1
    del waiter
    gc.collect()
    assert not shard._changed._calls


def test_no_lock_is_taken_in_python_where_an_interrupt_would_leave_it_taken() -> None:
    waiter = Waiter(Source().call_beyond)
    for call in (waiter.take, waiter.interrupt, lambda: waiter.wait(0)):
        assert not interrupted(call, 2, threading.Condition.__enter__)
        assert not waiter._lock.locked()
