"""The engine after every kill and power cut of random small runs, recoveries included.

`CRASH_STATES` sets how many different states are looked at in all, over both subjects and both
parts (default 3,000; the whole proof is 50,000: `CRASH_STATES=50000 pytest -n 2 -m crash`), and
`CRASH_SEED` repeats a run. A failure names the seed, the history and the crash.
"""

from __future__ import annotations

import pytest

from tests.crash import engine
from tests.crash.explore import Explorer, Subject, seed_from_environment, share_of_states

SUBJECT = Subject("engine", engine.EngineRun, engine.check_state)


@pytest.mark.crash
@pytest.mark.parametrize("part", [0, 1])
def test_the_engine_keeps_its_promises_in_every_crash_state(part: int) -> None:
    seed = seed_from_environment()
    explorer = Explorer(SUBJECT, seed, share_of_states(0.35), part)
    count = explorer.run()
    print(f"engine: {count} distinct states of {explorer.distinct.drawn}, CRASH_SEED={seed}")
