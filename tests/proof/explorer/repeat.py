"""Look at one crash state again: what a failure of the proof printed, without the rest of its run.

    python -m tests.proof.explorer.repeat engine 1 0 1,1023,129 kill 23 0

These are subject, seed, part, history, kind of crash, calls before it, variant.
"""

from __future__ import annotations

import argparse
import itertools

from tests.proof.explorer import engine, stack
from tests.proof.explorer.explore import Explorer, History, Subject
from tests.proof.explorer.setting import quick_and_quiet
from tubestore.testing import CrashState

SUBJECTS = {
    "engine": Subject("engine", engine.EngineRun, engine.check_state),
    "stack": Subject("stack", stack.StackRun, stack.check_state),
}


def find_history(explorer: Explorer, numbers: tuple[int, ...]) -> History:
    """Run a history again, over the crashes that it went on from."""
    history = explorer.first(numbers[0])
    for number in numbers[1:]:
        states = explorer.states(history, explorer.random_of(history))
        state = next(itertools.islice(states, number, None))
        history = explorer.following(history, state, number)
    return history


def find_state(
    explorer: Explorer, numbers: tuple[int, ...], kind: str, step: int, variant: int
) -> tuple[History, CrashState]:
    """Return a history and the crash state of it that is meant."""
    history = find_history(explorer, numbers)
    for state in explorer.states(history, explorer.random_of(history)):
        if (state.kind, state.step, state.variant) == (kind, step, variant):
            return history, state
    raise ValueError(f"{numbers} has no such state")


def main() -> None:
    """Repeat a failure; ends with its traceback."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("subject", choices=SUBJECTS)
    for name in ("seed", "part"):
        parser.add_argument(name, type=int)
    parser.add_argument("history")
    parser.add_argument("kind", choices=("kill", "power"))
    for name in ("step", "variant"):
        parser.add_argument(name, type=int)
    given = parser.parse_args()
    explorer = Explorer(SUBJECTS[given.subject], given.seed, 1, given.part)
    numbers = tuple(int(number) for number in given.history.split(","))
    with quick_and_quiet():
        history, state = find_state(explorer, numbers, given.kind, given.step, given.variant)
        explorer.look_at(history, state, turn=0)


if __name__ == "__main__":
    main()
