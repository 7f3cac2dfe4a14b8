"""`tubestore repair | recover | publish`: what they print, how they end, what they change."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tubestore
from tests.support.tube_cli import Cli
from tests.support.tube_cli import cli as cli
from tubestore.staging.writer import StagedWriter


def test_recover_opens_every_shard_and_reports_what_it_mended(cli: Cli, damaged: Path) -> None:
    shutil.rmtree(damaged / "innercut-0")  # this one does not open
    rows = {row["topic"]: row for row in cli.json("recover", damaged)}
    assert rows["datacut7"]["data_cut"] > 0
    assert rows["payloadbit"]["problems"] == 1
    assert {row["data_cut"] for row in cli.json("recover", damaged)} == {0}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    with tubestore.open(tmp_path / "s") as store:
        store.create_topic("t", partitions=4)
    return tmp_path / "s"


def table(count: int, **columns: list[object]) -> pa.Table:
    return pa.table({"body": [b"%d" % n for n in range(count)], **columns})


def test_publish_loads_files_once(cli: Cli, store: Path, tmp_path: Path) -> None:
    pq.write_table(table(10), tmp_path / "one.parquet")
    with pa.ipc.new_file(tmp_path / "two.arrow", table(5).schema) as writer:
        writer.write(table(5))
    files = (tmp_path / "one.parquet", tmp_path / "two.arrow")
    (first,) = cli.json("publish", store, "load-1", *files, "--topic", "t")
    assert (first["messages"], first["replayed"], first["number"]) == (15, False, 1)
    (again,) = cli.json("publish", store, "load-1", *files, "--topic", "t")
    assert (again["messages"], again["replayed"]) == (15, True)
    refused = cli("publish", store, "load-1", files[0], "--topic", "t")
    assert (refused.code, "15 messages, and 10 are staged now" in refused.err) == (3, True)
    pq.write_table(table(25).slice(10), tmp_path / "other.parquet")
    refused = cli("publish", store, "load-1", tmp_path / "other.parquet", "--topic", "t")
    assert (refused.code, "15 messages, and other ones are staged" in refused.err) == (3, True)
    assert len(cli.json("read", store, "t")) == 15
    assert list(store.glob(".tubestore/staging/*")) == []


def test_what_read_writes_can_be_published_elsewhere(cli: Cli, store: Path, tmp_path: Path) -> None:
    with tubestore.open(store) as opened:
        opened["t"].append(b"a", partition=3, filter_item="x", attributes={"k": "v"})
        opened["t"].append(b"b", partition=1, key="user-7")
    path, other = tmp_path / "out.parquet", tmp_path / "other"
    assert cli("read", store, "t", "-f", "parquet", "-o", path).code == 0
    other.mkdir()
    assert cli.json("publish", other, "copy", path, "--create")[0]["messages"] == 2
    fields = ("partition", "filter_item", "attributes", "body", "msg_id", "received_time")
    rows = [[r[f] for f in fields] for root in (store, other) for r in cli.json("read", root, "t")]
    assert rows[:2] == rows[2:]


def test_publish_takes_what_tasks_have_staged(cli: Cli, store: Path, tmp_path: Path) -> None:
    with StagedWriter(store, "job:7", "0") as writer:
        writer.write({"topic": ["t", "new"], "partition": [3, 1], "body": [b"a", b"b"]})
        lines = [json.dumps(one.as_json()) for one in writer.finish()]
    (tmp_path / "staged.jsonl").write_text("\n".join(lines) + "\n")
    arguments = ("publish", store, "job:7", "--staged", tmp_path / "staged.jsonl")
    refused = cli(*arguments)
    assert (refused.code, "no topic 'new'" in refused.err) == (1, True)
    (row,) = cli.json(*arguments, "--create")
    assert row["messages"] == 2


def test_publish_that_is_refused_leaves_nothing(cli: Cli, store: Path, tmp_path: Path) -> None:
    pq.write_table(table(3, topic=["other"] * 3, partition=[0] * 3), tmp_path / "x.parquet")
    assert cli("publish", store, "j", tmp_path / "x.parquet").code == 1
    assert list(store.glob(".tubestore/staging/*")) == []


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("j",), 2, "give files to load"),
        (("j", "x.txt"), 2, ".parquet"),
        (("j", "absent.parquet"), 3, "absent.parquet"),
        (("j", "--staged", "absent.jsonl"), 3, "absent.jsonl"),
        (("", "x.parquet"), 2, "needs an id"),
    ],
)
def test_publish_names_the_mistake(
    cli: Cli, store: Path, arguments: tuple[str, ...], code: int, text: str
) -> None:
    result = cli("publish", store, *arguments)
    assert text in result.err
    assert result.code == code
    assert "Traceback" not in result.err
