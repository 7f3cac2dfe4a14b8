"""The full RocketMQ stack after every kill and power cut of random small runs; see the engine's."""

from __future__ import annotations

import pytest

from tests.proof.explorer import stack
from tests.proof.explorer.explore import Note, Subject, explore

SUBJECT = Subject("stack", stack.StackRun, stack.check_state, share=0.09)


@pytest.mark.sample
@pytest.mark.crash
@pytest.mark.parametrize("part", [0, 1])
def test_log_queues_index_and_shards_agree_in_every_crash_state(
    part: int, record_property: Note
) -> None:
    explore(SUBJECT, part, record_property)


@pytest.mark.sample
@pytest.mark.crash
def test_the_same_holds_for_a_log_that_is_written_through_maps(record_property: Note) -> None:
    subject = Subject("stack-mmap", stack.MmapStackRun, stack.check_state, share=0.04)
    explore(subject, 0, record_property)


@pytest.mark.slow
@pytest.mark.crash
@pytest.mark.parametrize("part", [2, 3])
def test_log_queues_index_and_shards_agree_in_a_long_run(part: int, record_property: Note) -> None:
    explore(SUBJECT, part, record_property, long=True)
