"""Publishing whose files other processes write: as a whole, once, and whatever tasks do later."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

import tubestore
from tests.support.publishing import Tasks, batch, numbered
from tests.support.publishing import bodies as bodies_of
from tubestore.errors import InvalidMessage
from tubestore.offline.check import check
from tubestore.record.layouts import DATA_HEADER
from tubestore.staging.placing import Spread
from tubestore.staging.writer import StagedWriter
from tubestore.store import publish as publishing
from tubestore.store.manager import MessageStoreManager


def staged_in(root: Path, *, ids: bool) -> list[Any]:
    found = []
    for task in range(3):
        with StagedWriter(root, "j", str(task), sync=False) as writer:
            rows = batch(numbered(30, 30 * task))
            more = {"msg_id": list(range(30 * task, 30 * task + 30))} if ids else {}
            writer.write({**rows, **more})
            found += writer.finish()
    return found


def tree(root: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in root.glob("*/**/*") if p.suffix in (".tube", ".index")}


@pytest.fixture
def _spread_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have other processes work on jobs of every size."""
    monkeypatch.setattr(publishing, "SPREAD_BYTES", 1)


@pytest.mark.usefixtures("_spread_all")
@pytest.mark.parametrize("ids", [False, True])
@pytest.mark.parametrize("behind", [False, True])
def test_what_tasks_have_written_is_the_job_and_tasks_that_go_on_change_nothing(
    tmp_path: Path, ids: bool, behind: bool
) -> None:
    tasks = Tasks()
    settings = {} if behind else {"segment_size_bytes": 4000, "index_segment_size_bytes": 1400}
    with tubestore.open(tmp_path, background=False, **settings) as store:  # type: ignore[arg-type]
        store.create_topic("a", partitions=3, stores=2).append(b"before", partition=0)
        staged = staged_in(tmp_path, ids=ids)
        result = store.publish("j", staged, spread=tasks)
        assert len(tasks.calls) == len(staged)
        assert {file.name for file in result.files}.isdisjoint(file.name for file in staged)
        assert sorted(bodies_of(store)) == sorted([b"before", *numbered(90)])
        ids_there = store["a"].scan(columns=["msg_id"]).read_all().column(0).to_pylist()
        assert len({*ids_there}) == 91
        store["a"].append(b"after", partition=0)
        store.sync()
        before = tree(tmp_path)
        tasks.go_on()
        assert tree(tmp_path) == before
    assert list(check(str(tmp_path))) == []


def test_a_small_job_is_not_sent_to_other_processes(tmp_path: Path) -> None:
    tasks = Tasks()
    with tubestore.open(tmp_path, background=False) as store:
        store.create_topic("a", partitions=3, stores=2)
        store.publish("j", staged_in(tmp_path, ids=False), spread=tasks)
    assert tasks.calls == []


@pytest.mark.usefixtures("_spread_all")
def test_a_pair_that_is_in_its_place_is_taken_as_it_is_by_tasks_too(tmp_path: Path) -> None:
    with tubestore.open(tmp_path, background=False) as store:
        store.create_topic("a", partitions=3, stores=2)
        places = {("a", 0): (0, 0), ("a", 1): (0, 0)}
        with StagedWriter(tmp_path, "j", "0", places=places) as writer:
            writer.write({**batch(numbered(30)), "msg_id": list(range(30))})
            staged = writer.finish()
        result = store.publish("j", staged, spread=Tasks())
        assert {file.name for file in result.files} == {file.name for file in staged}


@pytest.mark.usefixtures("_spread_all")
def test_a_task_that_finds_other_bytes_than_were_staged_ends_the_publish_without_a_change(
    tmp_path: Path,
) -> None:
    with tubestore.open(tmp_path, background=False) as store:
        store.create_topic("a", partitions=3, stores=2)
        staged = staged_in(tmp_path, ids=False)
        (path,) = tmp_path.glob(f".tubestore/staging/*/{staged[0].name}.tube")
        data = path.read_bytes()
        path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        with pytest.raises(InvalidMessage, match="not the bytes that were staged"):
            store.publish("j", staged, spread=Tasks())
        path.write_bytes(data)
        assert store.publish("j", staged).rows == 90
    assert list(check(str(tmp_path))) == []


def work_of(change: Callable[[list[Any]], Any]) -> Spread:
    """A `spread` that does the work, and returns something else."""
    return cast(Spread, lambda work, parts: change([work(part) for part in parts]))


WRONG = {
    "nothing": lambda _: [],
    "none": lambda _: None,
    "one is missing": lambda found: found[:-1],
    "one more": lambda found: [*found, found[0]],
    "another order": lambda found: found[::-1],
    "one twice": lambda found: [found[0], *found[:-1]],
    "no results": lambda found: [None] * len(found),
    "a name that is not there": lambda found: [
        *found[:-1],
        replace(found[-1], name=found[-1].name + "x"),
    ],
    "no name": lambda found: [replace(found[0], name=None), *found[1:]],
    "other rows": lambda found: [replace(found[0], rows=29), *found[1:]],
}


def refused(store: MessageStoreManager, staged: list[Any], spread: Spread) -> None:
    """Publish with results that are refused, and see that nothing changed; then as it should be."""
    before = bodies_of(store)
    with pytest.raises(InvalidMessage, match="spread"):
        store.publish("j", staged, spread=spread)
    assert bodies_of(store) == before
    store["a"].append(b"goes on", partition=0)
    assert not store.publish("j", staged, spread=Tasks()).replayed
    assert sorted(bodies_of(store)) == sorted([*before, b"goes on", *numbered(90)])


@pytest.mark.usefixtures("_spread_all")
@pytest.mark.parametrize("wrong", WRONG)
def test_results_that_are_not_those_of_the_parts_are_refused_before_anything_changes(
    tmp_path: Path, wrong: str
) -> None:
    with tubestore.open(tmp_path, background=False) as store:
        store.create_topic("a", partitions=3, stores=2).append(b"before", partition=0)
        refused(store, staged_in(tmp_path, ids=False), work_of(WRONG[wrong]))
    assert list(check(str(tmp_path))) == []


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def offsets_of_another_place(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    at = DATA_HEADER.position("queue_logic_offset")
    raw[at : at + 8] = (28_000).to_bytes(8, "big")
    path.write_bytes(raw)


def another_length(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[3] ^= 1
    path.write_bytes(raw)


def other_entries(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)


@pytest.mark.usefixtures("_spread_all")
@pytest.mark.parametrize(
    ("suffix", "harm"),
    [(".tube", Path.unlink), (".index", Path.unlink), (".tube", cut), (".index", cut),
     (".tube", offsets_of_another_place), (".tube", another_length), (".index", other_entries)],
)  # fmt: skip
@pytest.mark.parametrize("behind", [False, True])
def test_files_of_tasks_that_are_gone_or_not_what_was_staged_are_refused_before_anything_changes(
    tmp_path: Path,
    suffix: str,
    harm: Callable[[Path], None],
    behind: bool,
) -> None:
    settings = {} if behind else {"segment_size_bytes": 4000, "index_segment_size_bytes": 1400}

    def harmed(found: list[Any]) -> list[Any]:
        (path,) = tmp_path.glob(f".tubestore/staging/*/{found[1].name}{suffix}")
        harm(path)
        return found

    with tubestore.open(tmp_path, background=False, **settings) as store:  # type: ignore[arg-type]
        store.create_topic("a", partitions=3, stores=2).append(b"before", partition=0)
        refused(store, staged_in(tmp_path, ids=False), work_of(harmed))
    assert list(check(str(tmp_path))) == []


@pytest.mark.usefixtures("_spread_all")
def test_the_results_may_come_one_after_the_other(tmp_path: Path) -> None:
    with tubestore.open(tmp_path, background=False) as store:
        store.create_topic("a", partitions=3, stores=2)
        assert store.publish("j", staged_in(tmp_path, ids=False), spread=work_of(iter)).rows == 90
