"""The full RocketMQ stack after every kill and power cut of random small runs; see the engine's."""

from __future__ import annotations

import pytest

from tests.crash import stack
from tests.crash.explore import Explorer, Subject, seed_from_environment, share_of_states

SUBJECT = Subject("stack", stack.StackRun, stack.check_state)


@pytest.mark.crash
@pytest.mark.parametrize("part", [0, 1])
def test_log_queues_index_and_shards_agree_in_every_crash_state(part: int) -> None:
    seed = seed_from_environment()
    explorer = Explorer(SUBJECT, seed, share_of_states(0.15), part)
    count = explorer.run()
    print(f"full stack: {count} distinct states of {explorer.distinct.drawn}, CRASH_SEED={seed}")
