"""A condition that makes calls, too."""

from __future__ import annotations

import gc
import threading
from functools import partial

from tubestore.shard.announcements import Announcements


def test_a_call_is_made_once_at_the_next_notification() -> None:
    calls: list[str] = []
    with (changed := Announcements(threading.Lock())):
        changed.notify_all()
        asked = [partial(calls.append, name) for name in "ab"]
        for call in (*asked, *asked):
            changed.call_once(call)
        assert calls == []
        changed.notify_all()
        changed.notify_all()
        assert sorted(calls) == ["a", "b"]


def test_a_call_that_its_owner_has_dropped_is_not_made() -> None:
    calls: list[str] = []
    with (changed := Announcements(threading.Lock())):
        changed.call_once(partial(calls.append, "dropped"))
        gc.collect()
        changed.notify_all()
    assert calls == []


def test_a_call_may_ask_for_the_next_one() -> None:
    calls: list[int] = []
    changed = Announcements(threading.Lock())

    def call() -> None:
        calls.append(len(calls))
        changed.call_once(call)

    with changed:
        changed.call_once(call)
        changed.notify_all()
        changed.notify_all()
    assert calls == [0, 1]


def test_threads_that_wait_are_woken_with_the_calls() -> None:
    changed = Announcements(threading.Lock())
    woken, waiting = threading.Event(), threading.Event()

    def wait() -> None:
        with changed:
            waiting.set()
            changed.wait(60)
        woken.set()

    thread = threading.Thread(target=wait)
    thread.start()
    assert waiting.wait(60)
    call = partial(int)
    with changed:
        changed.call_once(call)
        changed.notify_all()
    assert woken.wait(60)
    thread.join()


def test_without_a_call_a_notification_is_the_conditions_own() -> None:
    changed = Announcements(threading.Lock())
    call = partial(int)
    with changed:
        changed.call_once(call)
        changed.notify_all()
    assert "notify_all" not in vars(changed)
    assert type(changed).notify_all is threading.Condition.notify_all
