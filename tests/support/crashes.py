"""Crash states of a run, each once, in any order: the first ones show what most of them show."""

from __future__ import annotations

from random import Random
from typing import Any

from tests.proof.explorer.explore import is_thorough
from tubestore.testing import CrashState, Distinct, Journal, crash_states


def shuffled_states(journal: Journal, *, seed: int, **which: Any) -> list[CrashState]:
    """Return the states that a journal can leave, without those that equal another."""
    distinct = Distinct()
    states = [s for s in crash_states(journal, seed=seed, **which) if distinct.is_new(s)]
    Random(seed).shuffle(states)
    return states


def some_states(journal: Journal, most: int, *, seed: int, **which: Any) -> list[CrashState]:
    """Return at most so many of the states; all of them in a thorough run."""
    states = shuffled_states(journal, seed=seed, **which)
    return states if is_thorough() else states[:most]


def state_now(journal: Journal, kind: str, *, clock: Any = None) -> Any:
    """Return what a kill leaves now; or a power cut of which nothing survives that is unsynced."""
    at_end = {"kinds": (kind,), "variants": 1, "steps": lambda step: step == len(journal)}
    (state,) = crash_states(journal, seed=1, **at_end)
    return state.vfs() if clock is None else state.vfs(clock)
