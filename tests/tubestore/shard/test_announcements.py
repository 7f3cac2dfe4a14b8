"""Calls that are made when a shard has news."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from functools import partial

import pytest

from tubestore.shard.announcements import Announcements


def test_a_call_is_made_once_at_the_next_announcement() -> None:
    calls: list[str] = []
    changed = Announcements()
    changed.announce()
    asked = [partial(calls.append, name) for name in "ab"]
    for call in (*asked, *asked):
        changed.call_once(call)
    assert calls == []
    changed.announce()
    changed.announce()
    assert sorted(calls) == ["a", "b"]


def test_a_call_that_its_owner_has_dropped_is_not_made() -> None:
    calls: list[str] = []
    changed = Announcements()
    changed.call_once(partial(calls.append, "dropped"))
    gc.collect()
    changed.announce()
    assert calls == []


def test_a_call_may_ask_for_the_next_one() -> None:
    calls: list[int] = []
    changed = Announcements()

    def call() -> None:
        calls.append(len(calls))
        changed.call_once(call)

    changed.call_once(call)
    changed.announce()
    changed.announce()
    assert calls == [0, 1]


def test_a_thread_that_waits_is_woken() -> None:
    changed, woken = Announcements(), threading.Event()
    waiting = changed.waiting()

    def wait() -> None:
        waiting.wait(60)
        woken.set()

    thread = threading.Thread(target=wait)
    thread.start()
    assert not woken.wait(0)
    changed.announce()
    assert woken.wait(60)
    thread.join()


def test_a_wait_that_was_announced_before_it_began_is_over() -> None:
    changed = Announcements()
    waiting = changed.waiting()
    changed.announce()
    waiting()
    waiting.wait(60)


def test_calls_that_an_interrupt_kept_from_being_made_are_made_next_time() -> None:
    made: set[str] = set()
    changed, interrupts = Announcements(), [KeyboardInterrupt()]

    def call(name: str) -> None:
        if interrupts:
            raise interrupts.pop()
        made.add(name)

    asked: list[Callable[[], None]] = [partial(call, name) for name in "ab"]
    for one in asked:
        changed.call_once(one)
    with pytest.raises(KeyboardInterrupt):
        changed.announce()
    changed.announce()
    assert made == {"a", "b"}
