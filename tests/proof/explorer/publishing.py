"""Shared by the crash proofs of publishing: all states of a run, and of its recoveries."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest

from tests.proof.explorer.explore import seed_from_environment
from tubestore.testing import CrashState, Distinct, Journal, crash_states

#: Looks at a state, at a time (ms), as an attempt; returns the journal of the recovery.
Look = Callable[[CrashState, int, str], Journal]


def explore_publishing(
    name: str, run: Callable[[], tuple[Journal, int]], look: Look, variants: range, every: int
) -> tuple[int, int]:
    """Look at every call's states, and at those of every so manieth recovery; count both."""
    seed = seed_from_environment()
    journal, now_ms = run()
    distinct, interrupted = Distinct(), Distinct()
    for number, state in enumerate(_new_states(journal, distinct, variants, seed)):
        try:
            recovery = look(state, now_ms, "1")
            if number % every == 0:
                for again in _new_states(recovery, interrupted, range(4), seed):
                    look(again, now_ms, "2")
        except Exception as error:
            raise AssertionError(f"{error!r}: CRASH_SEED={seed}, {state}") from error
    print(f"{name}: {len(distinct)} distinct states, {len(interrupted)} of recoveries, {seed=}")
    return len(distinct), len(interrupted)


def _new_states(
    journal: Journal, distinct: Distinct, variants: range, seed: int
) -> Iterator[CrashState]:
    for state in crash_states(journal, seed=seed, variants=variants):
        if distinct.is_new(state):
            yield state


def leave_record_unsynced(monkeypatch: pytest.MonkeyPatch, records: Any) -> None:
    """Plant a bug: the names of a class's records are not brought to stable storage."""
    commit = records.commit

    def lying(self: Any, record: Any) -> None:
        vfs = self._vfs
        self._vfs = mock.Mock(wraps=vfs, sync_directory=lambda path: None)
        commit(self, record)
        self._vfs = vfs

    monkeypatch.setattr(records, "commit", lying)
