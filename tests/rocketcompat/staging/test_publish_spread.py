"""Publishing into a log whose files other processes write."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import rocketcompat
from rocketcompat.check.whole import check
from rocketcompat.staging import publish as publishing
from rocketcompat.staging.writer import StagedLogWriter
from tests.support.publishing import Tasks
from tests.support.rocket.publishing import CONFIG, batch, numbered
from tubestore.errors import InvalidMessage


def files_of(root: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in root.glob("*/**/*") if p.is_file() and p.name.isdigit()}


@pytest.fixture
def _spread_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have other processes work on jobs of every size."""
    monkeypatch.setattr(publishing, "SPREAD_BYTES", 1)


@pytest.mark.usefixtures("_spread_all")
@pytest.mark.parametrize("count", [5, 60])
def test_what_tasks_have_written_is_the_job_and_tasks_that_go_on_change_nothing(
    tmp_path: Path, count: int
) -> None:
    tasks = Tasks()
    pieces: list[Any] = []
    with rocketcompat.open(tmp_path, "w", CONFIG, background=False) as store:
        store.put_message(rocketcompat.Message("orders", b"before"))
        for task in range(3):
            with StagedLogWriter(tmp_path, "j", str(task), config=CONFIG) as writer:
                writer.write(batch(numbered(f"t{task}", count)))
                pieces += writer.finish()
        result = store.publish("j", pieces, spread=tasks)
        assert result.rows == 3 * count
        assert len(tasks.calls) == -(-result.end // 4096) - result.start // 4096
        store.put_message(rocketcompat.Message("orders", b"after"))
        store.flush()
        before = files_of(tmp_path)
        tasks.go_on()
        assert files_of(tmp_path) == before
        assert (
            sum(store.max_offset_in_queue("orders", queue) for queue in range(3)) == 3 * count + 2
        )
    assert list(check(tmp_path, {"maxHashSlotNum": 16, "maxIndexNum": 40})) == []


def gone(root: Path, found: list[Any]) -> list[Any]:
    next(root.rglob(f"{found[-1].name}-*")).unlink()
    return found


def cut(root: Path, found: list[Any]) -> list[Any]:
    path = next(root.rglob(f"{found[0].name}-*"))
    os.truncate(path, path.stat().st_size - 1)
    return found


def of_another_place(root: Path, found: list[Any]) -> list[Any]:
    path = next(root.rglob(f"{found[0].name}-*"))
    path.write_bytes(bytes(28) + b"\1" + path.read_bytes()[29:])
    return found


WRONG: dict[str, Callable[[Path, list[Any]], Any]] = {
    "nothing": lambda _, found: [],
    "none": lambda _, found: None,
    "one is missing": lambda _, found: found[:-1],
    "another order": lambda _, found: found[::-1],
    "one twice": lambda _, found: [found[0], *found[:-1]],
    "no results": lambda _, found: [None] * len(found),
    "other sizes": lambda _, found: [replace(found[0], size=1), *found[1:]],
    "a file is gone": gone,
    "a file is cut": cut,
    "a file of another place": of_another_place,
}


@pytest.mark.usefixtures("_spread_all")
@pytest.mark.parametrize("wrong", WRONG)
def test_results_that_are_not_those_of_the_parts_are_refused_before_anything_changes(
    tmp_path: Path, wrong: str
) -> None:
    with rocketcompat.open(tmp_path, "w", CONFIG, background=False) as store:
        store.put_message(rocketcompat.Message("orders", b"before"))
        store.flush()
        with StagedLogWriter(tmp_path, "j", "0", config=CONFIG) as writer:
            writer.write(batch(numbered("t", 180)))
            pieces = writer.finish()
        before = files_of(tmp_path)

        def spread(work: Any, parts: Any) -> Any:
            return WRONG[wrong](tmp_path, [work(part) for part in parts])

        with pytest.raises(InvalidMessage, match="spread"):
            store.publish("j", pieces, spread=spread)
        assert files_of(tmp_path) == before
        store.put_message(rocketcompat.Message("orders", b"goes on"))
        assert store.publish("j", pieces, spread=Tasks()).rows == 180
        assert sum(store.max_offset_in_queue("orders", queue) for queue in range(3)) == 182
    assert list(check(tmp_path, {"maxHashSlotNum": 16, "maxIndexNum": 40})) == []


@pytest.mark.usefixtures("_spread_all")
def test_tasks_of_a_driver_that_died_write_nothing_into_what_the_next_one_publishes(
    tmp_path: Path,
) -> None:
    left: list[Callable[[], Any]] = []

    def dies(work: Any, parts: Any) -> Any:
        left.extend(partial(work, part) for part in parts)
        raise KeyboardInterrupt

    def goes_on(work: Any, parts: Any) -> Any:
        found = [work(part) for part in parts]
        for late in left:
            late()
        return found

    with rocketcompat.open(tmp_path, "w", CONFIG, background=False) as store:
        pieces: list[Any] = []
        for task in range(2):  # other sizes, so that no record is in the same place
            with StagedLogWriter(tmp_path, "j", str(task), config=CONFIG) as writer:
                writer.write(batch(numbered(f"{task}" * (task + 1), 60)))
                pieces += writer.finish()
        with pytest.raises(KeyboardInterrupt):
            store.publish("j", pieces, spread=dies)
        assert store.publish("j", pieces[::-1], spread=goes_on).rows == 120
        bodies = pa.Table.from_batches(store.scan()).column("body").to_pylist()
        assert bodies == [*numbered("11", 60), *numbered("0", 60)]
    assert list(check(tmp_path, {"maxHashSlotNum": 16, "maxIndexNum": 40})) == []
