"""Marks of how far each structure has come, and when they count as none."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from rocketcompat.files.progress import ProgressFile
from tests.support.rocket.store.recovered import (
    PROGRESS,
    ROOT,
    Bench,
    bodies_of,
    open_by_another,
    reopened,
)
from tests.support.rocket.store.recovered import bench as bench
from tubestore.errors import NotAStore
from tubestore.testing import crash_states


def lose_progress(bench: Bench) -> None:
    bench.vfs.remove(PROGRESS)


def garble_progress(bench: Bench) -> None:
    bench.overwrite(PROGRESS, 0, b"]]]")


def impossible_marks(bench: Bench) -> None:
    content = json.loads(bench.vfs.read_file(PROGRESS))
    content["followers"]["index"] = [5, "x"]
    bench.vfs.replace_file(PROGRESS, json.dumps(content).encode())


@pytest.mark.parametrize(
    "change", [lose_progress, garble_progress, impossible_marks, open_by_another]
)
@pytest.mark.parametrize("clean", [True, False])
def test_marks_that_cannot_be_trusted_count_as_none(
    bench: Bench, change: Callable[[Bench], None], clean: bool
) -> None:
    store = bench.open()
    bench.put(25)
    if clean:
        store.close()
    else:
        bench.kill()
    change(bench)
    store = bench.open()
    # After a clean stop as a real broker begins: at the third-last of the log's five files.
    assert (store.recovered.clean, store.recovered.verified_from) == (False, 2000 * clean)
    assert bodies_of(store) == list(range(25))
    store.close()
    assert reopened(bench) == list(range(25))


def test_progress_of_a_newer_version_is_refused(bench: Bench) -> None:
    bench.open().close()
    content = json.loads(bench.vfs.read_file(PROGRESS))
    for change in ({"format": 2}, {"features": ["time travel"]}):
        bench.vfs.replace_file(PROGRESS, json.dumps({**content, **change}).encode())
        with pytest.raises(NotAStore, match="newer version"):
            bench.open()
        with pytest.raises(NotAStore, match="newer version"):
            bench.open(mode="r")


def test_forgotten_marks_stay_forgotten_if_the_process_was_killed_over_it(bench: Bench) -> None:
    with bench.open():
        bench.put(3)
    journal = bench.vfs.record()
    bench.vfs.remove(PROGRESS)  # so far the one that was killed came
    ProgressFile(bench.vfs, ROOT).forget()
    end = len(journal)
    for state in crash_states(journal, seed=1, kinds=("power",), steps=lambda step: step == end):
        assert not state.vfs().exists(PROGRESS), state
