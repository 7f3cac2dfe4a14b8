"""Draw histories from a seed, crash them everywhere, and look at what is left.

A history is a run, and sometimes a crash state of it that is opened and run on, whose journal
(its recovery included) is crashed in turn, up to `DEPTH` times.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import NamedTuple, Protocol

from tests.proof.explorer.book import Book, Promises, due, promises_at
from tubestore.clock import ManualClock
from tubestore.testing import CrashState, Distinct, Journal, MemoryVfs, crash_states

DEPTH = 3
Note = Callable[[str, object], None]  #: pytest's `record_property`
DEFAULT_STATES = 3000
WHOLE_STATES = 50_000  #: of the whole proof, as CI runs it
LONG_STATES = 1_000_000  #: of the slow runs


class Breadth(NamedTuple):
    """How much of a history is looked at."""

    variants: tuple[int, ...]  #: of each power cut, see `crash_states`
    goes_on: float  #: share of its states that are run on from
    states: int  #: that are looked at, those of its continuations left out

    def share(self, steps: int) -> float:
        """The share of a history's steps that gives about so many different states."""
        return min(1.0, 1.5 * self.states / (steps * (len(self.variants) + 1)))


FIRST = Breadth(tuple(range(10)), 0.03, 800)
FOLLOWING = Breadth((0, 1, 4, 5, 6, 7), 0.03, 80)


class Run(Protocol):
    """A writer at work; see `engine.EngineRun`."""

    promises: Promises

    def step(self) -> None:
        """Do one random thing."""

    def stop(self) -> None:
        """End without writing anything."""

    def promise_what_is_there(self) -> None:
        """Promise what the recovery shows."""


class Check(Protocol):
    """Opens a crash state and raises AssertionError; see `engine.check_state`.

    What is dear is done at every n-th `turn` only, and at turn 0.
    """

    def __call__(
        self,
        vfs: MemoryVfs,
        clock: ManualClock,
        book: Book,
        promises: Promises,
        *,
        damage_allowed: bool,
        turn: int,
    ) -> None: ...


@dataclass(frozen=True)
class Subject:
    """What is crashed.

    `share` of all states is its part in a process: the subjects' parts are made to take equally
    long, so that two processes end together whichever parts they draw.
    """

    name: str
    run: Callable[[MemoryVfs, ManualClock, Book, Promises, int], Run]
    check: Check
    share: float = 0.25
    steps: int = 25  #: things that a first run does
    steps_after: int = 6  #: … and one after a crash


@dataclass(frozen=True)
class History:
    """A recorded run and what it began with."""

    journal: Journal
    book: Book
    before: Promises
    clock_ms: int
    name: tuple[int, ...]
    power_failed: bool

    @property
    def breadth(self) -> Breadth:
        """How much of it is looked at."""
        return FIRST if len(self.name) == 1 else FOLLOWING


class Broken(AssertionError):
    """An invariant that does not hold, and the state in which it does not."""


def seed_from_environment() -> int:
    """Return the seed of this run: CRASH_SEED, else one drawn now."""
    return int(os.environ.get("CRASH_SEED") or "0") or Random().randrange(1, 1_000_000)


def seed_of_run(run: int) -> int:
    """Return the seed of the `run`-th run of a random test; prints what repeats it."""
    first = seed_from_environment()
    print(f"CRASH_SEED={first}, run {run}")
    return first * 1_000_003 + run


def share_of_states(share: float, *, long: bool = False) -> int:
    """Return how many distinct states are a share of all (CRASH_STATES, CRASH_STATES_LONG)."""
    name, default = ("CRASH_STATES_LONG", LONG_STATES) if long else ("CRASH_STATES", DEFAULT_STATES)
    return math.ceil(share * int(os.environ.get(name) or default))


def seconds_from_environment() -> float:
    """Return after how many seconds a part of the proof ends (CRASH_SECONDS; else never)."""
    return float(os.environ.get("CRASH_SECONDS") or math.inf)


def is_thorough() -> bool:
    """Whether more is asked for than the whole proof: then every call is looked at more closely."""
    return int(os.environ.get("CRASH_STATES") or 0) > WHOLE_STATES


def explore(
    subject: Subject,
    part: int,
    note: Note,
    *,
    long: bool = False,
) -> None:
    """Look at a share of all states; their number is printed at the end of the test run."""
    explorer = Explorer(
        subject, seed_from_environment(), share_of_states(subject.share, long=long), part
    )
    try:
        explorer.run()
    finally:
        found = f"{len(explorer.distinct)} distinct states of {explorer.distinct.drawn} drawn"
        text = f"{subject.name}: {found}, {explorer.checked} looks, CRASH_SEED={explorer.seed}"
        note("crash proof", text)


class Explorer:
    """Looks at states until it has seen enough different ones."""

    def __init__(self, subject: Subject, seed: int, wanted: int, part: int = 0) -> None:
        if wanted < 1:
            raise ValueError(f"{wanted} states prove nothing")
        self.subject, self.seed, self.wanted, self.part = subject, seed, wanted, part
        self._root = 2 * seed + part  # parts draw different histories from one seed
        self.distinct = Distinct()
        self.checked = 0
        self.seconds = seconds_from_environment()
        self._began = time.monotonic()

    @property
    def is_over(self) -> bool:
        """Whether its time has passed."""
        return time.monotonic() - self._began > self.seconds

    def run(self) -> int:
        """Draw histories until `wanted` different states were looked at; returns their number.

        It ends earlier when its time has passed.
        """
        number = 0
        while len(self.distinct) < self.wanted and not self.is_over:
            self._explore(self.first(number))
            number += 1
        return len(self.distinct)

    def first(self, number: int) -> History:
        """Draw the history of this number."""
        clock = ManualClock()
        vfs = MemoryVfs(clock)
        journal = vfs.record()
        book = Book()
        run = self.subject.run(vfs, clock, book, {}, hash((self._root, number)))
        for _ in range(self.subject.steps):
            run.step()
        run.stop()
        return History(journal, book, {}, clock.now_ms(), (number,), False)

    def following(self, history: History, state: CrashState, number: int) -> History:
        """Open a crash state, run on, and return the journal of both."""
        clock = ManualClock(history.clock_ms + 1000)
        vfs = state.vfs(clock)
        journal = vfs.record()
        before = due(promises_at(state, history.before), state.kind)
        book = history.book.fork()
        name = (*history.name, number)
        run = self.subject.run(vfs, clock, book, before, hash((self._root, *name)))
        run.promise_what_is_there()
        for _ in range(self.subject.steps_after):
            run.step()
        run.stop()
        power_failed = history.power_failed or state.kind == "power"
        return History(journal, book, before, clock.now_ms(), name, power_failed)

    def states(self, history: History, random: Random) -> Iterator[CrashState]:
        """Draw steps of a history and yield their states, the same for equal generators."""
        breadth = history.breadth
        steps = len(history.journal) + 1
        share = breadth.share(steps)
        chosen = [random.random() < share for _ in range(steps)]
        return crash_states(
            history.journal,
            seed=hash((self._root, *history.name)),
            variants=breadth.variants,
            steps=chosen.__getitem__,
        )

    def random_of(self, history: History) -> Random:
        """Return the generator of what is looked at of a history."""
        return Random(hash((self._root, *history.name, -1)))

    def _explore(self, history: History) -> None:
        random = self.random_of(history)
        enough = min(self.wanted, len(self.distinct) + history.breadth.states)
        for number, state in enumerate(self.states(history, random)):
            if len(self.distinct) >= enough or self.is_over:
                return
            if not self.distinct.is_new(state, history.name):
                continue
            self.checked += 1
            self.look_at(history, state, self.checked)
            if len(history.name) < DEPTH and random.random() < history.breadth.goes_on:
                try:
                    following = self.following(history, state, number)
                except Exception as error:
                    raise Broken(f"running on after {self._describe(history, state)}") from error
                before = len(self.distinct)
                self._explore(following)
                enough = min(self.wanted, enough + len(self.distinct) - before)

    def look_at(self, history: History, state: CrashState, turn: int) -> None:
        """Check a state; Broken if something does not hold."""
        clock = ManualClock(history.clock_ms + 1000)
        try:
            self.subject.check(
                state.vfs(clock),
                clock,
                history.book,
                due(promises_at(state, history.before), state.kind),
                damage_allowed=history.power_failed or state.kind == "power",
                turn=turn,
            )
        except Exception as error:
            raise Broken(f"{error!r}: {self._describe(history, state)}") from error

    def _describe(self, history: History, state: CrashState) -> str:
        name = ",".join(map(str, history.name))
        repeat = f"{self.seed} {self.part} {name} {state.kind} {state.step} {state.variant}"
        return f"{state}; python -m tests.proof.explorer.repeat {self.subject.name} {repeat}"
