"""Stores that were copied to an S3 server: planned, read, added up, audited and exported.

The server is moto's. Nothing here starts Spark: `test_objects.py` does.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import rocketcompat
import tubestore
from rocketcompat.spark.jobs.audit import plan_audit as plan_log_audit
from rocketcompat.spark.jobs.stats import stats as log_stats
from rocketcompat.spark.options import RocketOptions
from rocketcompat.spark.planning import plan as plan_log
from tests.spark.rocket_stores import read_log
from tests.spark.stores import T0, planned, read_plan, scanned_rows, write_store
from tests.support.command import run_command
from tests.support.engine.objects import S3, directory_as_objects, s3, uri_of
from tests.support.golden import (
    ROCKET_VERSIONS,
    TUBE_VERSION,
    rocket_scenarios,
    tube_scenarios,
    unpack,
)
from tubestore.cli import main
from tubestore.disks.object_files import READ_ONLY
from tubestore.errors import InvalidOption, StorageError, TubeStoreError
from tubestore.spark.jobs.audit import audit
from tubestore.spark.jobs.compact import compact
from tubestore.spark.jobs.parquet import export
from tubestore.spark.jobs.stats import stats
from tubestore.spark.kit.options import ReadOptions
from tubestore.spark.kit.running import LaterSession
from tubestore.spark.kit.write_options import WriteOptions

__all__ = ["s3"]


def no_spark() -> Any:
    """Return a session that must not be asked: a job over few bytes needs none."""
    return LaterSession(lambda: pytest.fail("Spark was started"))


def of_either(look: Callable[[str], Any], root: str) -> Any:
    """Return what is found at a root, or the refusal; the root's name does not count."""
    try:
        found = look(root)
    except TubeStoreError as error:
        found = f"{type(error).__name__}: {error}"
    return repr(found).replace(root, "ROOT")


def log_rows(root: str) -> list[dict[str, Any]]:
    made = plan_log(RocketOptions.parse({"path": root}))
    return read_log(Path(root) if root[0] == "/" else root, made)  # type: ignore[arg-type]


@pytest.mark.one_in(4, 4)
@pytest.mark.parametrize("scenario", tube_scenarios())
def test_rows_of_a_golden_store_are_the_same_from_s3(s3: S3, scenario: str, tmp_path: Path) -> None:
    root = unpack("tubemq", TUBE_VERSION, scenario, tmp_path / "golden").store
    copy = s3.copy(root, f"tube/{scenario}")

    def rows(path: str) -> Any:
        return read_plan(planned(path, failOnCorrupt="false"), fail_on_corrupt=False)

    assert of_either(rows, copy) == of_either(rows, str(root))


@pytest.mark.one_in(20, 20)
@pytest.mark.parametrize(
    ("version", "scenario"), [(v, name) for v in ROCKET_VERSIONS for name in rocket_scenarios(v)]
)
def test_rows_of_a_golden_log_are_the_same_from_s3(
    s3: S3, version: str, scenario: str, tmp_path: Path
) -> None:
    root = unpack("rocketmq", version, scenario, tmp_path / "golden").store
    copy = s3.copy(root, f"rocket/{version}/{scenario}")
    assert of_either(log_rows, copy) == of_either(log_rows, str(root))


@pytest.fixture
def local(tmp_path: Path) -> Path:
    write_store(tmp_path / "store", {"logs": 900, "orders": 100})
    return tmp_path / "store"


def test_jobs_over_a_copy_find_what_they_find_in_the_store(
    s3: S3, local: Path, tmp_path: Path
) -> None:
    copy = s3.copy(local, "jobs")
    assert stats(no_spark(), copy).hours == stats(no_spark(), str(local)).hours
    found = audit(no_spark(), copy)
    assert (found.rows, found.findings) == (1000, [])
    made = export(no_spark(), copy, str(tmp_path / "out"), subscribe="logs")
    bodies = [r["body"] for path in made.files for r in pq.read_table(path).to_pylist()]
    assert sorted(bodies) == sorted(
        row["body"] for row in scanned_rows(local) if row["topic"] == "logs"
    )


def test_a_copy_is_copied_back_to_a_disk(
    s3: S3, local: Path, tmp_path: Path, small_waves: list[int]
) -> None:
    compact(None, s3.copy(local, "compact"), str(tmp_path / "back"))  # type: ignore[arg-type]
    assert scanned_rows(tmp_path / "back") == scanned_rows(local)


def test_statistics_of_a_log_are_the_same_from_s3(s3: S3, tmp_path: Path) -> None:
    root = unpack("rocketmq", ROCKET_VERSIONS[0], "basic", tmp_path / "golden").store
    copy = s3.copy(root, "log-stats")
    assert log_stats(no_spark(), copy).hours == log_stats(no_spark(), str(root)).hours


def test_an_audit_of_a_log_needs_a_place_for_its_parts(s3: S3, tmp_path: Path) -> None:
    root = unpack("rocketmq", ROCKET_VERSIONS[0], "basic", tmp_path / "golden").store
    copy = s3.copy(root, "log-audit")
    with pytest.raises(InvalidOption, match="option work: an audit of objects needs"):
        plan_log_audit(copy)
    made = plan_log_audit(copy, work=str(tmp_path / "parts"))
    assert made.work_directory == f"{tmp_path}/parts/spark-audit/audit"
    assert plan_log_audit(str(root)).work_directory == f"{root}/.tubestore/spark-audit/audit"


def test_the_library_opens_a_copy(s3: S3, local: Path, tmp_path: Path) -> None:
    with tubestore.open(s3.copy(local, "library"), mode="r") as store:
        assert store.topics() == ["logs", "orders"]
        assert sum(batch.num_rows for batch in store["logs"].scan()) == 900
    root = unpack("rocketmq", ROCKET_VERSIONS[0], "basic", tmp_path / "golden").store
    with rocketcompat.open(s3.copy(root, "log")) as log, rocketcompat.open(root) as known:
        assert log.queue_table() == known.queue_table()


def test_the_command_line_takes_a_copy(
    s3: S3, local: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = s3.copy(local, "command")
    done = run_command(main, ("topics", copy, "-f", "jsonl"), capsys, monkeypatch)
    assert [(r["topic"], r["entries"]) for r in done.rows] == [("logs", 900), ("orders", 100)]
    done = run_command(main, ("recover", copy), capsys, monkeypatch)
    assert done.code == 3
    assert done.err == f"tubestore: {copy}: {READ_ONLY}\n"


def test_a_read_of_the_index_fetches_no_more_than_the_index(tmp_path: Path) -> None:
    with tubestore.open(tmp_path / "store") as store:
        store.create_topic("logs", partitions=4).append_batch({"body": [b"x" * 50] * 20_000})
    index = sum(file.stat().st_size for file in (tmp_path / "store/logs-0/index").iterdir())
    with directory_as_objects(tmp_path) as asked:
        made = planned(uri_of(tmp_path / "store", tmp_path))
        rows = read_plan(made, columns=["partition", "offset", "received_time"])
    assert len(rows) == 20_000
    assert index <= asked.bytes <= 1.1 * index


def test_statistics_fetch_no_more_than_the_index(tmp_path: Path) -> None:
    with tubestore.open(tmp_path / "store") as store:
        store.create_topic("logs").append_batch({"body": [b"x" * 50] * 20_000})
    index = sum(file.stat().st_size for file in (tmp_path / "store/logs-0/index").iterdir())
    with directory_as_objects(tmp_path) as asked:
        found = stats(no_spark(), uri_of(tmp_path / "store", tmp_path))
    assert found.topics[0]["messages"] == 20_000
    assert index <= asked.bytes <= 1.1 * index


def test_a_server_that_does_not_answer_is_named_with_the_path(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    root = "s3://bucket/store?endpoint_override=127.0.0.1:1&scheme=http&region=us-east-1"
    with pytest.raises(StorageError, match=re.escape("127.0.0.1:1")):
        tubestore.open(root, mode="r")


@pytest.mark.parametrize("root", ["s3://bucket/store", "gs://bucket/store", "abfss://c@a/store"])
def test_what_needs_local_files_refuses_a_copy_in_one_sentence(root: str) -> None:
    assert ReadOptions.parse({"path": root}).path == root
    with pytest.raises(InvalidOption, match="a stream needs a directory"):
        ReadOptions.parse({"path": root}, stream=True)
    with pytest.raises(InvalidOption, match="only a directory that every node can see"):
        WriteOptions.parse({"path": root, "jobId": f"job-{T0}"})
