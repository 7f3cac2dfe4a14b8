"""The engine after every kill and power cut of random small runs, recoveries included.

`CRASH_STATES` sets how many different states are looked at in all, over all subjects and
parts (default 3,000; the whole proof is 50,000: `CRASH_STATES=50000 pytest -n 2 -m crash`),
`CRASH_SECONDS` after how much time each part ends, and `CRASH_SEED` repeats a run. The slow runs
look at `CRASH_STATES_LONG` (a million). A failure names
the command that looks at its state again.
"""

from __future__ import annotations

import pytest

from tests.proof.explorer import engine
from tests.proof.explorer.explore import Note, Subject, explore

SUBJECT = Subject("engine", engine.EngineRun, engine.check_state, share=0.39)


@pytest.mark.sample
@pytest.mark.crash
@pytest.mark.parametrize("part", [0, 1])
def test_the_engine_keeps_its_promises_in_every_crash_state(
    part: int, record_property: Note
) -> None:
    explore(SUBJECT, part, record_property)


@pytest.mark.slow
@pytest.mark.crash
@pytest.mark.parametrize("part", [2, 3])
def test_the_engine_keeps_its_promises_in_a_long_run(part: int, record_property: Note) -> None:
    explore(SUBJECT, part, record_property, long=True)
