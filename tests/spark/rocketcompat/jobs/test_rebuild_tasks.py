"""What a task of a rebuild writes, also over damage in the log and after a power cut."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from rocketcompat.spark.jobs import rebuild as rebuilding
from rocketcompat.spark.jobs.rebuild_tasks import BuildJob
from tests.spark.rocket_rebuilds import (
    GEOMETRY,
    SPLIT,
    expected,
    files_of,
    killed_at,
    run,
)
from tests.spark.rocket_rebuilds import store as store
from tests.spark.rocket_rebuilds import template as template

pytestmark = pytest.mark.usefixtures("small_waves")


@pytest.mark.parametrize("options", [GEOMETRY])
def test_damage_in_the_log_leaves_the_same_units_as_in_one_process(
    store: Path, options: dict[str, Any]
) -> None:
    seed = random.randrange(1 << 30)
    rng = random.Random(seed)
    for _ in range(3):
        log = rng.choice(sorted((store / "commitlog").iterdir())[:-1])
        raw = bytearray(log.read_bytes())
        start = rng.choice([0, rng.randrange(len(raw))])
        size = rng.choice([3, 5000, len(raw) - start])
        raw[start : start + size] = rng.randbytes(len(raw[start : start + size]))
        log.write_bytes(raw)
    here = expected(store, options)
    run(store, options=options, max_split_bytes=rng.choice([2000, SPLIT, 1 << 20]))
    assert files_of(store) == here, f"seed {seed}"


def test_a_part_that_a_power_cut_took_away_is_written_again(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = files_of(store)
    killed_at(monkeypatch, store, BuildJob, "work")
    parts = sorted(
        (store / ".tubestore" / rebuilding.WORK_DIRECTORY / "rebuild" / "parts").iterdir()
    )
    units = (parts[0] / "units.rows").read_bytes()
    (parts[0] / "units.rows").write_bytes(bytes(len(units)))  # a file's length comes back first
    (parts[1] / "items.rows").unlink()
    done = run(store).done
    assert done.resumed == len(parts) - 2
    assert files_of(store) == before
