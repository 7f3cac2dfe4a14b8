"""A log is read split by split, also where a file of it is missing."""

from __future__ import annotations

from pathlib import Path

import pytest

import rocketcompat
from rocketcompat import Message
from rocketcompat.spark.jobs.rebuild import plan_rebuild
from rocketcompat.spark.jobs.rebuild_tasks import BuildJob
from tests.spark.rocket_rebuilds import (
    SPLIT,
    expected,
    files_of,
    killed_at,
    run,
)
from tests.spark.rocket_rebuilds import store as store
from tests.spark.rocket_rebuilds import template as template
from tests.spark.rocket_stores import CONFIG

pytestmark = pytest.mark.usefixtures("small_waves")


def test_a_missing_file_of_the_log_is_passed_over(store: Path) -> None:
    sorted((store / "commitlog").iterdir())[2].unlink()
    here = expected(store)
    run(store)
    assert files_of(store) == here


def test_a_log_that_changed_since_is_read_again(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed_at(monkeypatch, store, BuildJob, "work")
    with rocketcompat.open(store, "w", CONFIG, background=False) as opened:
        opened.put_message(Message("topic0", b"one more", keys=["more"]))
    before = files_of(store)
    done = run(store).done
    splits = plan_rebuild(str(store), ["index"], max_split_bytes=SPLIT).log.splits
    assert 0 < done.resumed < len(splits)
    assert files_of(store) == before
