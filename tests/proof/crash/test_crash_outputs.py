"""Exactly once from topic to topic, after every crash.

A consumer turns messages of one topic into output of several others, a group of polls at a time.
Every call is the last one of a kill, and at `fsync` of power cuts. The next process goes on to
the end; then each message is in each topic once. Some crash again while they go on. `CRASH_SEED`
repeats a run.
"""

from __future__ import annotations

import time
from random import Random
from typing import Any

import pytest

import tubestore
from tests.proof.explorer.explore import (
    seconds_from_environment,
    seed_from_environment,
    share_of_states,
)
from tubestore.clock import ManualClock
from tubestore.groups import positions_log
from tubestore.options import Durability
from tubestore.testing import CrashState, Distinct, Journal, LyingVfs, MemoryVfs, crash_states

pytestmark = pytest.mark.crash

ROOT, MESSAGES, OUTPUTS = "/s", 12, ("a", "b")
#: A run looks at so many states, however long it takes.
LEAST = 40


def opened(vfs: Any, clock: ManualClock, shards_min: int) -> tubestore.MessageStoreManager:
    return tubestore.open(
        ROOT, vfs=vfs, clock=clock, background=False, journal_shards_min=shards_min
    )


def go_on(store: tubestore.MessageStoreManager, random: Random, level: Durability) -> None:
    """Process all that is left."""
    with store.consumer("g", "in", member="m", auto_commit=False, durability=level) as consumer:
        while len(polled := consumer.poll(random.randrange(1, 6))):
            rows = [(topic, message.body) for message in polled for topic in OUTPUTS]
            consumer.commit_with(
                {"topic": [topic for topic, _ in rows], "body": [body for _, body in rows]}
            )


def recorded_run(random: Random, vfs: MemoryVfs, disk: Any, level: Durability) -> Journal:
    """A run from the first message to the last; what was there before is durable."""
    clock = ManualClock()
    vfs.make_directories(ROOT)
    with opened(vfs, clock, 2) as store:
        topic = store.create_topic("in", partitions=3)
        for name in OUTPUTS:
            store.create_topic(name, partitions=2)
        for number in range(MESSAGES):
            topic.append(b"%d" % number, partition=number % 3)
    journal = vfs.record()
    with opened(disk, clock, random.choice((2, 100))) as store:
        go_on(store, random, level)
    return journal


def later(minutes: int) -> ManualClock:
    """Return a clock by which the sessions of the process before have ended."""
    clock = ManualClock()
    clock.advance(60_000 * minutes)
    return clock


def check(state: CrashState, random: Random, level: Durability) -> None:
    """Open, perhaps crash once more, go on, and compare."""
    vfs = state.vfs(later(1))
    if random.random() < 0.3:
        journal = vfs.record()
        with opened(vfs, later(1), 2) as store:
            go_on(store, random, level)
        states = list(crash_states(journal, seed=random.randrange(1 << 30), variants=2))
        fitting = [each for each in states if each.kind == "kill" or level == "fsync"]
        vfs = random.choice(fitting).vfs(later(2))
    with opened(vfs, later(2), 2) as store:
        assert not store.problems, store.problems
        go_on(store, random, level)
        wanted = sorted(b"%d" % number for number in range(MESSAGES))
        for name in OUTPUTS:
            pages = [store[name].read(n, limit=1000) for n in store[name].partition_ids]
            found = sorted(message.body or b"" for page in pages for message in page)
            assert found == wanted, f"not exactly once in {name!r}"


def explore(seed: int, states: int, *, lying: bool = False) -> int:
    random, seen = Random(seed), Distinct()
    end = time.monotonic() + seconds_from_environment()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(positions_log, "GROWN_BYTES", 350)
        while len(seen) < states and (len(seen) < LEAST or time.monotonic() < end):
            level: Durability = "fsync" if lying else random.choice(("page_cache", "fsync"))
            vfs = MemoryVfs(ManualClock())
            disk = LyingVfs(vfs, ".log") if lying else vfs
            journal = recorded_run(random, vfs, disk, level)
            for state in crash_states(journal, seed=random.randrange(1 << 30), variants=4):
                if (state.kind == "kill" or level == "fsync") and seen.is_new(state, id(journal)):
                    check(state, random, level)
                if len(seen) >= states or (len(seen) >= LEAST and time.monotonic() >= end):
                    break
    return len(seen)


@pytest.mark.sample
def test_each_message_is_in_the_output_once_after_every_crash() -> None:
    seed = seed_from_environment()
    print(f"CRASH_SEED={seed}")
    assert explore(seed, max(LEAST, share_of_states(0.02))) >= LEAST


@pytest.mark.gate
def test_positions_that_are_not_synced_with_their_output_are_found() -> None:
    """The proof notices a log of positions that reports `fsync` without a sync."""
    with pytest.raises(AssertionError, match="not exactly once"):
        explore(1, 2000, lying=True)
