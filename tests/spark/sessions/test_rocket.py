"""A RocketMQ store through Spark itself: SQL, a stream, and into a tube root."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

import rocketcompat.cli
import rocketcompat.cli.demo.run
import tubestore.cli.demo.run
from rocketcompat.cli.demo import spark as demo_spark
from rocketcompat.record.rows import MESSAGE_SCHEMA
from tests.spark.rocket_rebuilds import files_of
from tests.spark.rocket_stores import dumped, of_dump, write_rocket_store
from tests.spark.stores import scanned_rows
from tests.support.command import run_command
from tests.support.golden import ROCKET_VERSIONS, unpack
from tubestore.cli.kit.errors import UsageMistake
from tubestore.errors import TubeStoreError
from tubestore.offline.check import check
from tubestore.segments.listing import find_shards

COUNT = 600


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_rocket_store(tmp_path / "store", COUNT)
    return tmp_path / "store"


def test_a_dataframe_has_the_whole_log(spark: Any, root: Path) -> None:
    from rocketcompat.spark import read

    table = read(spark, str(root), maxSplitBytes=20_000).toArrow()
    assert [of_dump(row) for row in table.to_pylist()] == dumped(root)


def test_sql_reads_a_view(spark: Any, root: Path) -> None:
    from rocketcompat.spark import register

    register(spark)
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW orders USING rocketmq "
        f"OPTIONS (path '{root}', subscribe 'topic1', tags 'sent')"
    )
    row = spark.sql("SELECT count(*), min(keys), count(DISTINCT queue_id) FROM orders").first()
    assert tuple(row) == (COUNT // 3, "k-1", 4)


def test_a_stream_goes_from_a_broker_into_a_store(
    spark: Any, root: Path, tmp_path: Path, checkpoints: str
) -> None:
    from rocketcompat.spark import read_stream
    from tubestore.spark import write_stream

    def run() -> None:
        frame = read_stream(spark, str(root), schema="kafka", maxOffsetsPerTrigger=250)
        query = write_stream(
            frame.drop("key", "headers"),
            str(tmp_path / "tube"),
            checkpoint=checkpoints,
            trigger={"availableNow": True},
        )
        query.awaitTermination()

    run()
    write_rocket_store(root, 100, COUNT)
    run()
    found = sorted(int(row["body"].split()[0]) for row in scanned_rows(tmp_path / "tube"))
    assert found == list(range(COUNT + 100))


def test_errors_are_a_sentence(spark: Any, root: Path, tmp_path: Path) -> None:
    from rocketcompat.spark import register

    register(spark)
    with pytest.raises(Exception, match=r"NotAStore: .* has no commitlog directory") as caught:
        spark.read.format("rocketmq").load(str(tmp_path)).count()
    assert "Traceback" not in str(caught.value)


def shard_bytes(root: Path) -> dict[str, bytes]:
    """Return each shard's data and index, its files one behind the other."""
    found = {}
    for shard in find_shards(str(root)):
        for kind, files in (("data", shard.data), ("index", shard.index)):
            joined = b"".join(Path(file.path).read_bytes() for file in files)
            found[f"{shard.topic}-{shard.store_id} {kind}"] = joined
    return found


def test_a_log_is_converted_to_the_same_bytes_that_the_store_builds_beside_it(
    spark: Any, root: Path, tmp_path: Path
) -> None:
    from rocketcompat.spark.jobs.to_shards import convert

    out = tmp_path / "tube"
    for replayed in (False, True):
        done = convert(spark, str(root), str(out), job_id="c", maxSplitBytes="20000")
        assert (done.rows, done.replayed) == (COUNT, replayed)
    assert shard_bytes(out) == shard_bytes(root / "tube")
    assert list(check(out)) == []


def test_damage_in_the_log_ends_a_conversion_or_is_left_out(
    spark: Any, root: Path, tmp_path: Path
) -> None:
    from rocketcompat.spark.jobs.to_shards import convert

    row = dumped(root)[100]
    offset = row["physical_offset"] + row["store_size"] // 2
    file = sorted((root / "commitlog").iterdir())[offset // (64 << 10)]
    data = bytearray(file.read_bytes())
    data[offset % (64 << 10)] ^= 1
    file.write_bytes(data)
    with pytest.raises(TubeStoreError, match=r"CorruptRecord: .*failOnCorrupt=false"):
        convert(spark, str(root), str(tmp_path / "a"))
    done = convert(spark, str(root), str(tmp_path / "b"), failOnCorrupt="false")
    assert done.rows == COUNT - 1


def test_queues_and_index_are_rebuilt_by_the_command(
    spark: Any, root: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = files_of(root)
    run = ("spark", "rebuild", root, "-o", "maxHashSlotNum=100", "-o", "maxIndexNum=400")
    done = run_command(rocketcompat.cli.main, (*run, "--dry-run"), capsys, monkeypatch)
    assert "planned 1 splits" in done.out
    assert done.out.endswith("builds consumequeue and index\n")
    done = run_command(rocketcompat.cli.main, (*run, "--format", "jsonl"), capsys, monkeypatch)
    assert [(row["action"], row["path"]) for row in done.rows] == [
        ("rebuild", str(root / "consumequeue")),
        ("rebuild", str(root / "index")),
    ]
    assert files_of(root) == before
    done = run_command(rocketcompat.cli.main, (*run[:3], "tube"), capsys, monkeypatch)
    assert done.code == 2


def test_a_log_is_audited_and_its_statistics_are_printed(
    spark: Any, root: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    options = ("-o", "maxHashSlotNum=100", "-o", "maxIndexNum=400", "--format", "jsonl")
    rows_file = tmp_path / "rows.jsonl"

    def audited(*more: str) -> Any:
        run = ("spark", "audit", root, *options, "--rows", rows_file, *more)
        return run_command(rocketcompat.cli.main, run, capsys, monkeypatch)

    done = audited()
    assert (done.code, done.rows) == (0, [])
    assert rows_file.read_text().count("\n") > 1
    queue = next((root / "consumequeue").glob("*/*/*"))
    raw = bytearray(queue.read_bytes())
    raw[3] ^= 1
    queue.write_bytes(raw)
    done = audited()
    assert done.code == 1
    assert [(row["path"], row["reason"]) for row in done.rows] == [(str(queue), "unit_wrong")]
    check = ("check", root, *options, "--accept")
    run_command(rocketcompat.cli.main, check, capsys, monkeypatch)
    done = audited()
    assert (done.code, done.rows) == (0, [])
    assert "1 accepted findings are not shown" in done.err
    done = audited("--all")
    assert (done.code, [row["severity"] for row in done.rows]) == (0, ["accepted"])

    run = ("spark", "stats", root, "--format", "jsonl")
    topics = run_command(rocketcompat.cli.main, run, capsys, monkeypatch).rows
    assert sum(row["messages"] for row in topics) == len(dumped(root))
    hours = run_command(rocketcompat.cli.main, (*run, "--hours"), capsys, monkeypatch).rows
    assert {row["queue_id"] for row in hours} == {0, 1, 2, 3}
    for job in ("audit", "stats"):
        run = ("spark", job, root, "--dry-run")
        assert "planned" in run_command(rocketcompat.cli.main, run, capsys, monkeypatch).out


def test_golden_logs_are_read_as_they_are_dumped(spark: Any, tmp_path: Path) -> None:
    from rocketcompat.spark import read

    for version in ROCKET_VERSIONS:
        root = unpack("rocketmq", version, "rolled", tmp_path / version).store
        found = read(spark, str(root), columns=list(MESSAGE_SCHEMA.names)).toArrow()
        order = [("physical_offset", "ascending")]
        assert found.sort_by(order).to_pylist() == dumped(root)


def test_the_demos_stores_are_worked_on(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rich.console import Console

    monkeypatch.setattr(type(spark), "stop", lambda self: None)  # it is everybody's
    console = Console(file=io.StringIO(), width=200)
    tubestore.cli.demo.run.run(out=tmp_path, lines=3000, partitions=20, console=console)
    rocketcompat.cli.demo.run.run(out=tmp_path, lines=3000, console=console)
    said = Console(file=io.StringIO(), width=200)
    assert demo_spark.run(tmp_path, said)
    text = said.file.getvalue()  # type: ignore[attr-defined]
    assert "0 findings" in text
    assert "the same bytes as the shards beside the log" in text
    with pytest.raises(UsageMistake, match="run `tubestore demo`"):
        demo_spark.run(tmp_path / "nothing")
