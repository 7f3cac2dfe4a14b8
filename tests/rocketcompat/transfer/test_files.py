"""Files of messages: what is taken, and what is named with its line, row and column."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import rocketcompat
from rocketcompat import Message
from rocketcompat.inspect.directory import StoreDirectory
from rocketcompat.inspect.dump import dump_log
from tests.rocketcompat.repair.test_rebuild import SMALL
from tests.support.command import Command
from tests.support.golden import ROCKET_VERSIONS, GoldenFactory, golden_fixture  # noqa: F401
from tests.support.rocket.cli import command_fixture, digest  # noqa: F401
from tubestore.clock import SystemClock


def test_a_file_written_by_hand_needs_a_topic_only(command: Command, tmp_path: Path) -> None:
    file = tmp_path / "hand.jsonl"
    file.write_text('{"topic":"T","body":"aGk="}\n\n{"topic":"T","properties":{"TAGS":"x"}}\n')
    options = ["--option=mappedFileSizeCommitLog=4096", "--option=maxHashSlotNum=7",
               "--option=maxIndexNum=100"]  # fmt: skip
    assert command("import", tmp_path / "s", file, *options).code == 0
    found = list(dump_log(StoreDirectory(tmp_path / "s")))
    assert [(r["body"], r["properties"]) for r in found] == [(b"hi", {}), (b"", {"TAGS": "x"})]


def test_times_of_a_file_written_by_hand_are_given_in_any_form(
    command: Command, tmp_path: Path
) -> None:
    lines = tmp_path / "hand.jsonl"
    times = [5, "5", -5, "-5", "1970-01-01T00:00:00.005Z", "-2h"]
    lines.write_text("".join(json.dumps({"topic": "T", "born_timestamp": t}) + "\n" for t in times))
    cells = tmp_path / "hand.csv"
    cells.write_text("topic,born_timestamp\nT,5\nT,1970-01-01T01:00:00.005+01:00\n")
    options = ["--option=mappedFileSizeCommitLog=4096", "--option=maxHashSlotNum=7",
               "--option=maxIndexNum=100"]  # fmt: skip
    before = SystemClock().now_ms()
    assert command("import", tmp_path / "s", lines, *options).code == 0
    assert command("import", tmp_path / "s", cells, *options).code == 0
    found = [row["born_timestamp"] for row in dump_log(StoreDirectory(tmp_path / "s"))]
    aged = found.pop(5)
    assert found == [5, 5, -5, -5, 5, 5, 5]
    assert before <= aged + 2 * 3_600_000 <= SystemClock().now_ms()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"topic":"T","born_timestamp":"soon"}', "line 1: born_timestamp: 'soon' is not a valid"),
        ('{"topic":"T","born_timestamp":1.5}', "line 1: born_timestamp: 1.5 is not a whole"),
        ('{"topic":"T","body":"?"}', "line 1: body: '?' is not base64"),
        ('{"body":""}', "topic"),
        ("not json", "line 1"),
        (f'{{"topic":"T","body":"","flag":1{"0" * 5000}}}', "line 1: column 31: a number of 5001"),
        ('{"topic":"T","colour":"red"}', "colour"),
    ],
)
def test_a_file_that_cannot_be_taken_is_one_line(
    command: Command, tmp_path: Path, content: str, said: str
) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_text(content + "\n")
    done = command("import", tmp_path / "s", file, "--option=mappedFileSizeCommitLog=4096")
    assert done.code == 2
    assert said in done.err
    assert done.err.count("\n") == 1
    assert not (tmp_path / "s").exists()


GOOD = b'{"topic":"T","body":"aGk="}\n'


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.jsonl", GOOD + b'{"topic":"T","queue_id":5000000000}', "line 2: queue_id: the number"),
        ("a.jsonl", GOOD + b'{"topic":"T","flag":%s}' % (b"9" * 5000), "line 2: "),
        ("a.jsonl", GOOD + b'{"topic":"T","queue_id":-1}', "line 2: queue_id: -1"),
        ("a.jsonl", GOOD + b'{"topic":"T","flag":NaN}', "line 2: NaN is not a number"),
        ("a.jsonl", GOOD + b'{"topic":"T","flag":1.5}', "line 2: flag: 1.5 is not a whole number"),
        ("a.jsonl", GOOD + b'{"topic":"T","flag":true}', "line 2: flag: True"),
        ("a.jsonl", GOOD + b'{"topic":"T\xff"}', "line 2, byte 12: no UTF-8"),
        ("a.jsonl", GOOD + b'{"topic":"T",}', "line 2, column 1"),
        ("a.jsonl", GOOD + b"[" * 100_000, "line 2: nested too deeply"),
        ("a.jsonl", GOOD + b"[1]", "line 2: no JSON object"),
        ("a.jsonl", GOOD + b'{"topic":null}', "line 2: topic"),
        ("a.jsonl", GOOD + b'{"topic":"' + b"t" * 200 + b'"}', "line 2: "),
        ("a.jsonl", GOOD + b'{"topic":"\\ud800"}', "line 2: topic: half a character"),
        ("a.jsonl", GOOD + b'{"topic":"T","born_host":"nowhere"}', "line 2: born_host"),
        ("a.jsonl", GOOD + b'{"topic":"T","properties":{"a\\u0001b":"c"}}', "line 2: properties"),
        ("a.jsonl", GOOD + b'{"topic":"T","properties":{"a":"b\\u0002c"}}', "line 2: properties"),
        ("a.jsonl", GOOD + b'{"topic":"T","properties":{"a":null}}', "line 2: properties: 'a'"),
        ("a.jsonl", GOOD + b'{"topic":"T","properties":{"a":5}}', "line 2: properties: 'a'"),
        ("a.jsonl", GOOD + b'{"topic":"T","properties":{"a":""}}', "line 2: properties: 'a'"),
        ("a.jsonl", GOOD + b'{"topic":"T","properties":"a=b"}', "line 2: properties"),
        ("a.jsonl", gzip.compress(GOOD, mtime=0), "packed with gzip"),
        ("a.csv", b"topic,flag\nT,1\nT,x\n", "line 3: flag: 'x' is not a whole number"),
        ("a.csv", b"topic,flag\nT,1\nT\n", "line 3: 1 cells, and 2 columns"),
        ("a.csv", b"topic,flag\nT,1\nT,1,2\n", "line 3: 3 cells, and 2 columns"),
        ("a.csv", b'topic,flag\nT,1\n"T,2\n', "line 3: "),
        ("a.csv", b"topic,topic\nT,1\n", "line 1: two columns have one name"),
        ("a.csv", b"topic,properties\nT,{}\nT,[[\n", "line 3: properties: no JSON"),
        ("a.csv", b"topic,flag\nT,1\n\xff,2\n", "line 3, byte 1: no UTF-8"),
        ("a.parquet", b"PAR1 and nothing more", "no whole parquet file"),
        ("a.arrow", b"no stream", "no whole arrow file"),
        ("a.arrow", b"", "no whole arrow file"),
    ],
)
def test_of_a_file_with_a_bad_row_nothing_is_written_and_the_row_is_named(
    command: Command, tmp_path: Path, name: str, content: bytes, said: str
) -> None:
    good, bad = tmp_path / "good.jsonl", tmp_path / name
    good.write_bytes(GOOD)
    bad.write_bytes(content)
    options = ("--option=mappedFileSizeCommitLog=4096", "--option=maxHashSlotNum=7")
    done = command("import", tmp_path / "s", good, bad, *options)
    assert done.code == 2
    assert f"{bad}" in done.err
    assert said in done.err
    assert done.err.count("\n") == 1
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize(
    ("column", "values", "said"),
    [
        ("queue_id", pa.array([0, 1 << 40, 2]), "row 1: queue_id"),
        ("flag", pa.array([0.0, float("nan"), 1.0]), "row 1: flag"),
        ("body", pa.array([1, 2, 3]), "row 0: body"),
        ("properties", pa.array([{}, {"a": None}, {}], pa.map_(pa.string(), pa.string())), "row 1"),
        ("properties", pa.array([[], [], [("a\x01b", "c")]], pa.map_(pa.string(), pa.string())),
         "row 2: properties"),
        ("born_host", pa.array([b"\xff", b"\xff", b"\xff"]).view(pa.string()), "row 0: born_host"),
        ("colour", pa.array(["red"] * 3), "unknown columns ['colour']"),
    ],
)  # fmt: skip
def test_of_a_table_with_a_bad_row_nothing_is_written_and_the_row_is_named(
    command: Command, tmp_path: Path, column: str, values: pa.Array, said: str
) -> None:
    table = pa.table({"topic": ["T"] * 3, column: values})
    pq.write_table(table, tmp_path / "a.parquet")
    with (
        pa.OSFile(str(tmp_path / "a.arrow"), "w") as sink,
        pa.ipc.new_stream(sink, table.schema) as writer,
    ):
        writer.write_table(table)
    for name in ("a.parquet", "a.arrow"):
        done = command("import", tmp_path / "s", tmp_path / name)
        assert (done.code, done.err.count("\n")) == (2, 1)
        assert said in done.err
        assert str(tmp_path / name) in done.err
        assert not (tmp_path / "s").exists()


def test_a_body_of_a_megabyte_comes_back_from_csv(command: Command, tmp_path: Path) -> None:
    body = bytes(range(256)) * 4096
    with rocketcompat.open(
        tmp_path / "a", "w", SMALL.changed(mapped_file_size_commit_log=4 << 20), background=False
    ) as store:
        store.put_message(Message("T", body))
    assert command("export", tmp_path / "a", "--out", tmp_path / "f.csv").code == 0
    done = command("import", tmp_path / "b", tmp_path / "f.csv",
                   "--option=mappedFileSizeCommitLog=4194304")  # fmt: skip
    assert (done.code, done.err) == (0, "")
    assert [row["body"] for row in dump_log(StoreDirectory(tmp_path / "b"))] == [body]
