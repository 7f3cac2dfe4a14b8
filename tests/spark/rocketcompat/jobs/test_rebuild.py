"""Queues and index built split by split: the bytes that one process builds, whatever the log is."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rocketcompat
from rocketcompat.files.progress import ProgressFile
from rocketcompat.inspect.directory import StoreDirectory
from rocketcompat.spark.jobs import rebuild as rebuilding
from rocketcompat.spark.jobs.rebuild import plan_rebuild
from rocketcompat.spark.jobs.rebuild_tasks import BuildJob, ScanJob
from tests.spark.rocket_rebuilds import (
    COUNT,
    GEOMETRY,
    SPLIT,
    expected,
    files_of,
    killed_at,
    run,
)
from tests.spark.rocket_rebuilds import store as store
from tests.spark.rocket_rebuilds import template as template
from tests.spark.rocket_stores import CONFIG
from tests.support.golden import ROCKET_VERSIONS, unpack
from tubestore.core.vfs import OsVfs
from tubestore.errors import InvalidMessage, StoreLocked

pytestmark = pytest.mark.usefixtures("small_waves")

#: What a store without inner batches has.
PLAIN = ("consumequeue", "index")

#: Rolled files, times of delivery, damage, torn ends, queues of which the log says nothing.
GOLDEN = ["rolled", "delayed", "flip-body-middle", "bad-size-middle", "torn-half", "expired-most"]


@pytest.mark.parametrize("structures", [PLAIN, *((name,) for name in PLAIN)])
def test_what_is_built_is_byte_for_byte_what_dispatch_wrote(
    store: Path, structures: tuple[str, ...]
) -> None:
    before = files_of(store)
    assert len([name for name in before if name.startswith("index/")]) > 3
    result = run(store, *structures)
    assert [row["path"] for row in result.rows] == [str(store / name) for name in structures]
    assert result.records == COUNT + 60
    assert sum(row.get("records", 0) for row in result.done.rows) == COUNT + 60
    assert files_of(store) == before
    kept = {path.name for path in (store / ".tubestore" / "quarantine" / "1").iterdir()}
    assert kept == set(structures)
    assert not (store / ".tubestore" / rebuilding.WORK_DIRECTORY / "rebuild").exists()


def test_missing_structures_are_built(store: Path) -> None:
    before = files_of(store)
    for name in PLAIN:
        shutil.rmtree(store / name)
    size = {"mappedFileSizeConsumeQueue": CONFIG.mapped_file_size_consume_queue}
    run(store, options={**GEOMETRY, **size})
    assert files_of(store) == before


def test_the_store_opens_without_building_anything_once_more(store: Path) -> None:
    end = StoreDirectory(store).log.max_offset
    run(store)
    with rocketcompat.open(store, "w", CONFIG, background=False) as opened:
        assert opened.problems == []
        assert opened.recovered.verified_from > end - CONFIG.mapped_file_size_commit_log
        assert opened.query_message("topic1", "k-1").messages


@pytest.mark.parametrize("scenario", GOLDEN)
def test_golden_stores_get_what_one_process_builds(scenario: str, tmp_path: Path) -> None:
    for version in ROCKET_VERSIONS:
        store = unpack("rocketmq", version, scenario, tmp_path / version).store
        here = expected(store)
        run(store, max_split_bytes=2000)
        assert files_of(store) == here, version


def test_a_rebuild_that_was_killed_does_what_is_missing(
    store: Path, monkeypatch: pytest.MonkeyPatch, small_waves: list[int]
) -> None:
    before = files_of(store)
    for kind in (ScanJob, BuildJob):
        work: Callable[..., Any] = kind.work

        def interrupted(self: Any, number: int, split: Any, work: Any = work) -> Any:
            if number == 3:
                raise RuntimeError("interrupted")
            return work(self, number, split)

        with monkeypatch.context() as patched:
            patched.setattr(kind, "work", interrupted)
            with pytest.raises(RuntimeError, match="interrupted"):
                run(store)
        assert files_of(store) == before
    small_waves.clear()
    done = run(store).done
    assert done.resumed > len(plan_rebuild(str(store), ["index"], max_split_bytes=SPLIT).log.splits)
    assert len(small_waves) == len(done.rows) - done.resumed
    assert files_of(store) == before


def test_an_index_that_does_not_prove_its_geometry_ends_the_job_unless_it_is_left_alone(
    store: Path,
) -> None:
    before = files_of(store)
    for path in (store / "index").iterdir():
        raw = path.read_bytes()
        path.write_bytes(raw[:40] + bytes(len(raw) - 40))
    kept = files_of(store)
    with pytest.raises(InvalidMessage, match="how many slots"):
        run(store)
    assert files_of(store) == kept
    run(store, "consumequeue")
    assert files_of(store) == kept
    run(store, options=GEOMETRY)
    assert files_of(store) == before


def test_one_that_was_killed_while_it_replaced_begins_anew(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = files_of(store)
    killed_at(monkeypatch, store, rebuilding, "install")
    assert run(store).done.resumed == 0
    assert files_of(store) == before


def test_a_store_that_is_in_use_and_other_structures_are_refused(store: Path) -> None:
    with rocketcompat.open(store, "w", CONFIG, background=False), pytest.raises(StoreLocked):
        run(store)
    with pytest.raises(InvalidMessage, match="can be built"):
        plan_rebuild(str(store), ["tube"])
    with pytest.raises(InvalidMessage, match="no topic is one of batches"):
        plan_rebuild(str(store), ["batchconsumequeue"])


def test_only_what_was_built_is_recorded_as_synced(store: Path) -> None:
    shutil.rmtree(store / ".tubestore")
    run(store, "index")
    known = ProgressFile(OsVfs(), str(store)).read()
    assert known is not None
    assert set(known[0].followers) == {"index"}


@pytest.mark.parametrize(
    ("scenario", "version"), [("batchcq", "5.3.3"), *(("cq-ext", v) for v in ROCKET_VERSIONS)]
)
def test_golden_queues_of_all_kinds_are_what_one_process_builds(
    scenario: str, version: str, tmp_path: Path
) -> None:
    store = unpack("rocketmq", version, scenario, tmp_path).store
    here = expected(store)
    run(store, max_split_bytes=500)
    assert files_of(store) == here
    directory = "batchconsumequeue/" if scenario == "batchcq" else "consumequeue_ext/"
    assert [name for name in here if name.startswith(directory)]
