"""Syncs of one shard go one at a time, are shared, and a failed one is the last."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tubestore.core.group_commit import GroupCommit, _Waiting
from tubestore.errors import DiskFull, StoreFailed


class CheckedCommits(GroupCommit):
    """Checks the invariants after each step of each thread."""

    def _wait(self, *given: Any, **named: Any) -> Any:
        try:
            return super()._wait(*given, **named)
        finally:
            self.check_invariants()

    def _turn(self, *given: Any, **named: Any) -> Any:
        try:
            return super()._turn(*given, **named)
        finally:
            self.check_invariants()


def test_what_is_safe_already_needs_no_sync() -> None:
    commits = CheckedCommits(100)
    commits.reach(100, lambda: pytest.fail("not needed"))


def test_waiters_share_the_next_sync() -> None:
    commits, calls = CheckedCommits(0), []
    begun, may_end = threading.Event(), threading.Event()

    def slow_sync() -> int:
        calls.append(1)
        begun.set()
        may_end.wait(10)
        return 10 * len(calls)

    first = threading.Thread(target=commits.reach, args=(10, slow_sync))
    first.start()
    begun.wait(10)
    others = [threading.Thread(target=commits.reach, args=(20, slow_sync)) for _ in range(8)]
    for thread in others:
        thread.start()
    may_end.set()
    for thread in [first, *others]:
        thread.join(10)
    assert len(calls) == 2
    assert commits.end == 20


def test_two_syncs_never_run_at_once() -> None:
    commits, running, most = CheckedCommits(0), [0], [0]

    def sync() -> int:
        running[0] += 1
        most[0] = max(most[0], running[0])
        running[0] -= 1
        return 1

    threads = [threading.Thread(target=commits.run, args=(sync,)) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert most == [1]


def test_after_a_failed_sync_no_caller_gets_an_acknowledgement() -> None:
    commits = CheckedCommits(0)

    def failing() -> int:
        raise StoreFailed("/s/t-0", "sync: EIO")

    with pytest.raises(StoreFailed):
        commits.reach(1, failing)
    with pytest.raises(StoreFailed):
        commits.reach(1, lambda: 1)
    with pytest.raises(StoreFailed):
        commits.run(lambda: 1)


def test_a_full_disk_may_be_tried_again() -> None:
    commits = CheckedCommits(0)

    def full() -> int:
        raise DiskFull("/s/t-0", "no space")

    with pytest.raises(DiskFull):
        commits.run(full)
    commits.reach(5, lambda: 5)
    assert commits.end == 5


def test_what_was_cut_away_has_to_be_synced_again() -> None:
    commits = CheckedCommits(9)
    commits.lower(4)
    assert commits.end == 4


def test_a_thread_without_time_left_does_not_wait_for_a_sync_that_another_thread_runs() -> None:
    commits = CheckedCommits(0)
    begun, may_end = threading.Event(), threading.Event()

    def slow_sync() -> int:
        begun.set()
        may_end.wait(10)
        return 10

    first = threading.Thread(target=commits.reach, args=(10, slow_sync))
    first.start()
    begun.wait(10)
    assert not commits.reach(10, slow_sync, lambda: 0.0)
    may_end.set()
    first.join(10)
    assert commits.reach(10, slow_sync, lambda: 0.0)


def test_what_is_to_be_covered_is_prepared_once_for_all_that_wait() -> None:
    commits, calls = CheckedCommits(0), []
    begun, may_end, waiting = threading.Event(), threading.Event(), threading.Barrier(9)

    def sync() -> int:
        calls.append("sync")
        if len(calls) == 1:
            begun.set()
            may_end.wait(10)
        return 10 * calls.count("sync")

    def reach() -> None:
        waiting.wait(10)
        commits.reach(20, sync, prepare=lambda: calls.append("prepare"))

    first = threading.Thread(target=commits.reach, args=(10, sync))
    first.start()
    begun.wait(10)
    assert commits.is_busy
    others = [threading.Thread(target=reach) for _ in range(8)]
    for thread in others:
        thread.start()
    waiting.wait(10)
    may_end.set()
    for thread in [first, *others]:
        thread.join(10)
    assert calls == ["sync", "prepare", "sync"]
    assert not commits.is_busy


def test_a_roll_goes_on_while_another_thread_prepares_the_next_sync() -> None:
    commits, rolled = CheckedCommits(0), []
    commits.reach(5, lambda: 5, prepare=lambda: commits.run(lambda: rolled.append(1) or 3))
    assert rolled == [1]
    assert commits.end == 5


def test_when_preparing_fails_another_thread_has_its_turn() -> None:
    commits = CheckedCommits(0)

    def full() -> None:
        raise DiskFull("/s/t-0", "no space")

    with pytest.raises(DiskFull):
        commits.reach(5, lambda: 5, prepare=full)
    assert not commits.is_busy
    assert commits.reach(5, lambda: 5)


def test_each_of_many_threads_reaches_its_end_with_a_few_syncs() -> None:
    commits, written, synced, lock = CheckedCommits(0), [0], [0], threading.Lock()

    def sync() -> int:
        synced[0] += 1
        return written[0]

    def append(number: int) -> None:
        for _ in range(50):
            with lock:
                written[0] += 1
                end = written[0]
            prepare = (lambda: None) if number % 2 else None
            assert commits.reach(end, sync, prepare=prepare)
            assert commits.end >= end

    threads = [threading.Thread(target=append, args=(n,)) for n in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)
    assert commits.end == written[0] == 800
    assert synced[0] <= 800


def test_a_contradiction_is_found() -> None:
    commits = GroupCommit(0)
    commits._waiting.append(_Waiting(5))
    commits.check_invariants()
    commits.end = 5
    with pytest.raises(AssertionError, match="not woken although its end is safe"):
        commits.check_invariants()
    commits._waiting = [_Waiting(None)]
    with pytest.raises(AssertionError, match="none is under way"):
        commits.check_invariants()
    commits._runner = object()
    commits.check_invariants()
    commits._waiting[0].woken.release()
    with pytest.raises(AssertionError, match="still listed"):
        commits.check_invariants()
    commits._waiting = []
    commits._failure = StoreFailed("/s/t-0", "sync: EIO")
    with pytest.raises(AssertionError, match="runs after one has failed"):
        commits.check_invariants()
