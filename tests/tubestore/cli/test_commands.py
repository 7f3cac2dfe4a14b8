"""`tubestore`, as scripts and people use it: what it prints, how it ends (decisions.md D16)."""

from __future__ import annotations

import base64
import csv
import json
import subprocess
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.golden import GoldenFactory
from tests.support.tube_cli import COMMAND, ENVIRONMENT, Cli, Result, bodies_in
from tests.support.tube_cli import cli as cli
from tests.support.tube_cli import root as root

# -- append and read -------------------------------------------------------------------------


@pytest.mark.gate
def test_lines_go_in_and_come_out_once_each_in_order(cli: Cli, root: Path) -> None:
    seen = []
    for partition in range(4):
        rows = cli.json("read", root, "t", "-p", partition)
        assert {row["partition"] for row in rows} == {partition}
        seen.append([int(base64.b64decode(r["body"]).split()[1]) for r in rows])
        assert seen[-1] == sorted(seen[-1])
    assert sorted(n for numbers in seen for n in numbers) == list(range(1000))


def test_append_reports_what_it_did_and_skips_empty_lines(cli: Cli, tmp_path: Path) -> None:
    result = cli("append", tmp_path / "s", "t", "--partitions", 1, "-f", "jsonl", stdin=b"a\n\nbc")
    assert result.rows == [
        {"topic": "t", "messages": 2, "bytes": 3, "empty_lines": 1, "durability": "page_cache"}
    ]
    assert [r["body"] for r in cli.json("read", tmp_path / "s", "t")] == ["YQ==", "YmM="]


def test_append_takes_files_a_key_a_filter_item_and_a_durability(
    cli: Cli, root: Path, tmp_path: Path
) -> None:
    file = tmp_path / "lines"
    file.write_bytes(b"\xff\xfe\nb\r\n")
    options = ("--key", "k", "--filter-item", "f", "--durability", "fsync")
    assert cli("append", root, "t", file, file, *options).code == 0
    rows = cli.json("read", root, "t", "--filter-item", "f")
    assert [base64.b64decode(r["body"]) for r in rows] == [b"\xff\xfe", b"b\r"] * 2
    assert len({r["partition"] for r in rows}) == 1
    assert {r["filter_item"] for r in rows} == {"f"}


def test_json_lines_carry_every_field_and_what_read_and_dump_print_goes_in_again(
    cli: Cli, tmp_path: Path
) -> None:
    given = [
        {"text": "ü", "partition": 3, "filter_item": "f", "attributes": {"k": "v"}},
        {"body": "AP8=", "partition_id": 1, "received_time": 1_700_000_000_123},
        {"text": "x", "partition": 0, "received_time": "2026-01-01T00:00:00Z"},
    ]
    text = "\n".join(map(json.dumps, given)).encode()
    first, second = tmp_path / "1", tmp_path / "2"
    assert cli("append", first, "t", "-i", "jsonl", "--partitions", 4, stdin=text).code == 0
    for command in (("read", first, "t"), ("dump", first)):
        again = cli(*command, "-f", "jsonl").out
        assert cli("append", second, "t", "-i", "jsonl", "--partitions", 4, stdin=again).code == 0
    names = ("partition", "received_time", "body", "key_code", "flag")
    once = [[r[n] for n in names] for r in cli.json("read", first, "t")]
    assert [[r[n] for n in names] for r in cli.json("read", second, "t")] == once * 2
    assert [row[2] for row in once] == ["w7w=", "AP8=", "eA=="]
    assert once[2][1] == 1_767_225_600_000


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"{", "line 2"),
        (b'{"body": "%"}', "not base64"),
        (b'{"text": "a", "colour": 1}', "unknown field 'colour'"),
        (b'{"partition": 1}', "body (base64) and text"),
        (b'{"text": "a", "partition": "x"}', "line 2"),
        (b'{"text": "a", "partition": 9}', "partition 9"),
        (b'{"text": ""}', "at least one byte"),
        (b'{"text": "a", "attributes": {"a,b": "c"}}', "attribute"),
        (b"[1]", "not a JSON object"),
    ],
)
def test_a_wrong_json_line_is_a_usage_mistake_that_names_the_place(
    cli: Cli, root: Path, line: bytes, words: str
) -> None:
    good = b'{"text": "good", "partition": 0}\n'
    result = cli("append", root, "t", "-i", "jsonl", stdin=good + line)
    assert (result.code, result.out) == (2, b"")
    assert words in result.err
    assert result.err.count("\n") == 1


@pytest.mark.gate
def test_lines_from_a_slow_pipe_are_readable_before_the_pipe_ends(tmp_path: Path) -> None:
    command = [*COMMAND, "append", str(tmp_path / "s"), "t", "--partitions", "1"]
    with subprocess.Popen(command, env=ENVIRONMENT, stdin=subprocess.PIPE, stdout=-3) as child:
        assert child.stdin is not None
        child.stdin.write(b"first\n")
        child.stdin.flush()
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline and not bodies_in(tmp_path / "s"):
            time.sleep(0.02)
        assert bodies_in(tmp_path / "s") == [b"first"]
        child.stdin.close()
        assert child.wait(20) == 0


# -- listings --------------------------------------------------------------------------------


def test_a_cut_listing_reports_it_and_the_next_one_goes_on_there(
    cli: Cli, root: Path, tmp_path: Path
) -> None:
    note = tmp_path / "note"
    result = cli("read", root, "t", "-p", 1, "-n", 100, "-f", "jsonl", "--summary", note)
    said = json.loads(result.err)
    assert (len(result.rows), result.code) == (100, 0)
    assert (said["truncated"], said["scanned"]) == (True, 100)
    assert json.loads(note.read_text()) == said
    rest = cli("read", root, "t", "-p", 1, "--offset", said["next"], "-f", "jsonl")
    assert (len(rest.rows), rest.err) == (150, "")
    assert result.rows + rest.rows == cli.json("read", root, "t", "-p", 1)


@pytest.mark.parametrize("command", ["read", "dump"])
def test_a_cut_listing_of_a_shard_goes_on_too(cli: Cli, root: Path, command: str) -> None:
    start = (command, root, "t") if command == "read" else (command, root)
    whole = cli.json(*start)
    result = cli(*start, "-n", 999, "-f", "jsonl")
    said = json.loads(result.err)["next"]
    rest = cli.json(*start, "--store-id", said["store_id"], "--offset", said["offset"])
    assert result.rows + rest == whole


def test_an_empty_read_and_an_empty_dump_are_done(cli: Cli, root: Path, tmp_path: Path) -> None:
    for result in (
        cli("read", root, "t", "-p", 0, "--offset", "latest", "-f", "jsonl"),
        cli("read", root, "t", "--start", "2100-01-01T00:00:00Z", "-f", "jsonl"),
    ):
        assert result == Result(0, b"", "")
    assert cli("create", tmp_path / "new", "t").code == 0
    assert cli("read", tmp_path / "new", "t", "-f", "jsonl") == Result(0, b"", "")
    (tmp_path / "empty").mkdir()
    assert cli("dump", tmp_path / "empty", "-f", "jsonl") == Result(0, b"", "")


def test_a_dump_of_the_real_classes_store_has_the_contracts_fields(
    cli: Cli, golden: GoldenFactory
) -> None:
    store = golden("tubemq", "1.2.0", "basic")
    rows = cli.json("dump", store.store)
    first = next(store.expected(kind="message"))["record"]
    assert list(rows[0].items()) == [
        ("topic", "syslog"),
        ("store_id", 0),
        ("partition", 7),
        ("index_offset", 0),
        ("data_offset", 0),
        ("data_size", 140),
        ("key_code", -1),
        ("received_time", 1700000654022),
        ("msg_id", 165400000001),
        ("flag", 0),
        ("report_address", "127.0.0.1"),
        ("checksum", 1061411547),
        ("attributes", None),
        ("body", first["payload"]),
        ("state", "ok"),
    ]
    raw = cli.json("dump", store.store, "--raw")
    assert "attributes" not in raw[0]
    assert raw[0]["payload"] == first["payload"]


def test_stat_has_the_bounds_that_the_real_classes_see(cli: Cli, golden: GoldenFactory) -> None:
    for scenario in ("basic", "multistore", "rolled", "aged"):
        store = golden("tubemq", "1.2.0", scenario)
        wanted = [
            {
                "topic": row["topic"],
                "store_id": row["storeId"],
                "index_min": row["indexMin"],
                "index_max": row["indexMax"],
                "data_min": row["dataMin"],
                "data_max": row["dataMax"],
                "entries": row["entries"],
                "data_files": len(row["dataFiles"]),
                "index_files": len(row["indexFiles"]),
            }
            for row in store.expected(kind="store")
        ]
        assert cli.json("stat", store.store) == wanted


def test_stat_prints_metrics_for_prometheus(cli: Cli, golden: GoldenFactory) -> None:
    pytest.importorskip("prometheus_client", reason="the extra `metrics` is not installed")
    store = golden("tubemq", "1.2.0", "basic")
    lines = cli("stat", store.store, "--prometheus").out.decode().splitlines()
    for row in cli.json("stat", store.store):
        labels = f'{{store_id="{row["store_id"]}",topic="{row["topic"]}"}}'
        assert f"tubestore_shard_entries{labels} {float(row['entries'])}" in lines


def test_big_integers_are_exact_or_strings(cli: Cli, root: Path) -> None:
    row = cli.json("read", root, "t", "-n", 1)[0]
    assert isinstance(row["msg_id"], int)
    assert row["msg_id"] > 1 << 53
    text = cli.json("read", root, "t", "-n", 1, "--int64", "string")[0]
    assert text["msg_id"] == str(row["msg_id"])
    assert text["received_time"] == str(row["received_time"])
    assert text["partition"] == row["partition"]


def test_times_bound_a_read(cli: Cli, tmp_path: Path) -> None:
    lines = "\n".join(
        json.dumps({"text": str(n), "received_time": 1_767_225_600_000 + n}) for n in range(10)
    )
    root = tmp_path / "s"
    cli("append", root, "t", "-i", "jsonl", "--partitions", 1, stdin=lines.encode())
    for start, end, count in [
        ("1767225600003", "1767225600005", 2),
        ("2026-01-01T01:00:00.003+01:00", "2026-01-01T00:00:00.005Z", 2),
        ("2026-01-01T00:00:00Z", "-2h", 10),
    ]:
        assert len(cli.json("read", root, "t", "--start", start, "--end", end)) == count
    for wrong in ("2026-01-01", "yesterday"):
        result = cli("read", root, "t", "--start", wrong)
        assert (result.code, result.out) == (2, b"")


# -- formats ---------------------------------------------------------------------------------


def test_csv_has_a_header_and_base64bodies_in(cli: Cli, root: Path) -> None:
    result = cli("read", root, "t", "-p", 0, "--format", "csv")
    rows = list(csv.DictReader(result.out.decode().splitlines()))
    assert len(rows) == 250
    assert base64.b64decode(rows[0]["body"]).startswith(b"line ")


@pytest.mark.parametrize(("command", "time"), [("read", "timestamp"), ("dump", "int64")])
def test_arrow_and_parquet_go_into_the_file_of_o(
    cli: Cli, root: Path, tmp_path: Path, command: str, time: str
) -> None:
    start = (command, root, "t") if command == "read" else (command, root)
    for format in ("arrow", "parquet"):
        file = tmp_path / f"{command}.{format}"
        assert cli(*start, "--format", format, "-o", file) == Result(0, b"", "")
        table = pq.read_table(file) if format == "parquet" else pa.ipc.open_stream(file).read_all()
        assert table.num_rows == 1000
        assert str(table.schema.field("received_time").type).startswith(time)
        result = cli(*start, "--format", format, "-o", file, "-n", 7)
        assert json.loads(result.err)["truncated"]
        result = cli(*start, "--format", format)
        assert (result.code, result.out) == (2, b"")
        assert "-o" in result.err


def test_a_file_of_o_appears_whole_or_not_at_all(cli: Cli, root: Path, tmp_path: Path) -> None:
    file = tmp_path / "out"
    assert cli("read", root, "absent", "-o", file).code == 1
    assert not list(tmp_path.glob("out*"))
    assert cli("stat", root, "-o", file).code == 0
    assert file.read_text().startswith("topic")


def test_text_has_no_colours_and_no_control_characters(cli: Cli, tmp_path: Path) -> None:
    cli("append", tmp_path / "s", "t", "--partitions", 1, stdin=b"\x1b[31mred\x07\n")
    result = cli("read", tmp_path / "s", "t")
    assert b"\x1b" not in result.out
    assert b"red" in result.out
