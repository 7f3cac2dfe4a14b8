"""Publishing whose files other processes write: as a whole, once, and whatever tasks do later."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import tubestore
from tests.support.publishing import Tasks, batch, numbered
from tests.support.publishing import bodies as bodies_of
from tubestore.errors import InvalidMessage
from tubestore.offline.check import check
from tubestore.staging.writer import StagedWriter
from tubestore.store import publish as publishing


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


@pytest.mark.parametrize("ids", [False, True])
@pytest.mark.parametrize("behind", [False, True])
def test_what_tasks_have_written_is_the_job_and_tasks_that_go_on_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ids: bool, behind: bool
) -> None:
    monkeypatch.setattr(publishing, "SPREAD_BYTES", 1)
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


def test_a_pair_that_is_in_its_place_is_taken_as_it_is_by_tasks_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publishing, "SPREAD_BYTES", 1)
    with tubestore.open(tmp_path, background=False) as store:
        store.create_topic("a", partitions=3, stores=2)
        places = {("a", 0): (0, 0), ("a", 1): (0, 0)}
        with StagedWriter(tmp_path, "j", "0", places=places) as writer:
            writer.write({**batch(numbered(30)), "msg_id": list(range(30))})
            staged = writer.finish()
        result = store.publish("j", staged, spread=Tasks())
        assert {file.name for file in result.files} == {file.name for file in staged}


def test_a_task_that_finds_other_bytes_than_were_staged_ends_the_publish_without_a_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publishing, "SPREAD_BYTES", 1)
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
