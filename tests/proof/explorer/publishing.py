"""Shared by the crash proofs of publishing: states of a run, and of its recoveries."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest

from tests.proof.explorer.explore import (
    is_thorough,
    seconds_from_environment,
    seed_from_environment,
    share_of_states,
)
from tests.support.crashes import shuffled_states
from tubestore.testing import CrashState, Journal

#: Looks at a state, at a time (ms), as an attempt; returns the journal of the recovery.
Look = Callable[[CrashState, int, str], Journal]
SHARE = 0.02  #: of all states that a run looks at which is not thorough


def explore_publishing(
    name: str, run: Callable[[], tuple[Journal, int]], look: Look, variants: int
) -> int:
    """Look at states of a run in any order; returns how many there are.

    So many variants of each power cut are drawn. A thorough run looks at more of them, at all
    states, and at all of every fifth recovery; others at a share, until their time is over.
    """
    states, now_ms, seed = _begin(run, 40 if is_thorough() else variants)
    wanted = len(states) if is_thorough() else share_of_states(SHARE)
    end = time.monotonic() + seconds_from_environment()
    looks = again = 0
    for state in states[:wanted]:
        recovery = _look(look, state, now_ms, "1", seed)
        looks += 1
        if looks % (5 if is_thorough() else 10) == 1:
            interrupted = shuffled_states(recovery, seed=seed, variants=4)
            for second in interrupted if is_thorough() else interrupted[:3]:
                _look(look, second, now_ms, "2", seed)
                again += 1
        if time.monotonic() > end:
            break
    print(f"{name}: {looks} of {len(states)} distinct states, {again} of recoveries, {seed=}")
    return len(states)


def find_planted(run: Callable[[], tuple[Journal, int]], look: Look, variants: int = 6) -> None:
    """Look at all states of a run with a planted bug until one raises AssertionError."""
    states, now_ms, seed = _begin(run, variants)
    for state in states:
        _look(look, state, now_ms, "1", seed)


def _begin(
    run: Callable[[], tuple[Journal, int]], variants: int
) -> tuple[list[CrashState], int, int]:
    """Return all states of a run, its end (ms) and the seed."""
    seed = seed_from_environment()
    journal, now_ms = run()
    return shuffled_states(journal, seed=seed, variants=variants), now_ms, seed


def _look(look: Look, state: CrashState, now_ms: int, attempt: str, seed: int) -> Journal:
    """Look at a state; what fails names the seed and the state."""
    try:
        return look(state, now_ms, attempt)
    except Exception as error:
        raise AssertionError(f"{error!r}: CRASH_SEED={seed}, {state}") from error


def leave_record_unsynced(monkeypatch: pytest.MonkeyPatch, records: Any) -> None:
    """Plant a bug: the names of a class's records are not brought to stable storage."""
    commit = records.commit

    def lying(self: Any, record: Any) -> None:
        vfs = self._vfs
        self._vfs = mock.Mock(wraps=vfs, sync_directory=lambda path: None)
        commit(self, record)
        self._vfs = vfs

    monkeypatch.setattr(records, "commit", lying)
