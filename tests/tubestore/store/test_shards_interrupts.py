"""An interrupt while shards are held, to publish or to close, leaves no lock taken."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from types import FunctionType
from typing import Any

import pytest

import tubestore
from tests.support.engine.interrupts import interrupted
from tests.support.engine.mixed import killed
from tests.support.publishing import batch, open_store, stage
from tubestore.errors import StoreFailed
from tubestore.shard.message_store import MessageStore, letting_go
from tubestore.store.manager import engine_of
from tubestore.store.publish import _ShardsJob
from tubestore.store.shards import Shards
from tubestore.store.topic import shards_of
from tubestore.testing import MemoryVfs

Store = tubestore.MessageStoreManager
BEFORE = [b"before %d" % n for n in range(6)]
JOB = [b"job %d" % n for n in range(6)]
PLACES = (0, 1, 10_002)


def filled(vfs: MemoryVfs) -> Store:
    store = open_store(vfs)
    topic = store.create_topic("a", partitions=3, stores=2)
    for number, body in enumerate(BEFORE):
        topic.append(body, partition=PLACES[number % 3], durability="memory")
    return store


def shards(store: Store) -> list[MessageStore]:
    return [shards_of(store["a"]).writable(number) for number in (0, 1)]


def check_free(shards: list[MessageStore]) -> None:
    """No thread is at work, so none holds a shard."""
    for shard in shards:
        assert not shard._flush_lock.locked()
        assert not shard._append_lock.locked()
        assert not shard._buffer.held or shard.is_over()
        assert not shard._durable.commits.is_busy


def bodies(store: Store) -> set[bytes | None]:
    topic = store["a"]
    return {m.body for p in topic.partition_ids for m in topic.messages(p, verify=True)}


def code_of(function: Callable[..., Any]) -> FunctionType:
    code = inspect.unwrap(function)
    assert isinstance(code, FunctionType)
    return code


@pytest.mark.parametrize(
    "function",
    [
        *(_ShardsJob.held, _ShardsJob._behind, letting_go),
        *(MessageStore.hold, MessageStore.let_go, MessageStore._end_hold),
    ],
    ids=lambda function: function.__qualname__,
)
def test_after_an_interrupt_of_a_job_appends_go_on(function: Callable[..., Any]) -> None:
    for place in range(1, 10_000):
        vfs = MemoryVfs()
        store = filled(vfs)
        staged = stage(vfs, "j", batch(JOB))
        was_interrupted = interrupted(
            lambda s=store, j=staged: s.publish("j", j), place, code_of(function)
        )
        check_free(shards(store))
        expected = set(BEFORE)
        try:
            for number in PLACES:
                store["a"].append(b"after %d" % number, partition=number)
                expected.add(b"after %d" % number)
        except StoreFailed:
            assert bodies(store) == expected, place  # half published: until it is opened again
        killed(store, vfs)
        with open_store(vfs) as store:
            assert bodies(store) in (expected, expected | set(JOB)), place
            assert store.publish("j", stage(vfs, "j", batch(JOB), attempt="1")).rows == len(JOB)
            assert bodies(store) == expected | set(JOB), place
        if not was_interrupted:
            assert place > 1, "it was not called"
            return
    raise AssertionError("it has no end")


@pytest.mark.parametrize(
    "function",
    [
        *(Shards._close_each, letting_go, MessageStore.close_held, MessageStore.hold),
        *(MessageStore._shut, MessageStore.let_go, MessageStore._end_hold),
    ],
    ids=lambda function: function.__qualname__,
)
def test_after_an_interrupt_of_a_close_it_may_be_repeated(function: Callable[..., Any]) -> None:
    for place in range(1, 10_000):
        vfs = MemoryVfs()
        store = filled(vfs)
        held = shards(store)
        was_interrupted = interrupted(store.close, place, code_of(function))
        check_free(held)
        store.close()
        assert engine_of(store).context.state.closed is not None
        with open_store(vfs) as store:
            assert store.problems == [], place
            assert bodies(store) == set(BEFORE), place
        if not was_interrupted:
            assert place > 1, "it was not called"
            return
    raise AssertionError("it has no end")


def test_a_thread_lets_go_of_what_it_holds_alone(memory_vfs: MemoryVfs) -> None:
    with filled(memory_vfs) as store:
        shard, _ = shards(store)
        shard.hold()
        other = threading.Thread(target=shard.let_go)
        other.start()
        other.join()
        assert shard._flush_lock.locked()
        shard.let_go()
        check_free([shard])
