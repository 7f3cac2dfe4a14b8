"""The `rocketcompat` command line against golden stores, and its contract (decisions.md D16)."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import rocketcompat
from rocketcompat import Message, MessageStoreConfig
from rocketcompat.inspect.directory import StoreDirectory
from rocketcompat.inspect.index_geometry import geometry_of
from tests.support.command import Command
from tests.support.golden import Golden, GoldenFactory, golden_fixture  # noqa: F401
from tests.support.rocket.cli import command_fixture, digest  # noqa: F401
from tubestore.errors import InvalidMessage

VERSIONS = ["4.9.8", "5.3.3"]
#: Opened by the real classes without loss: their answers are right.
SOUND = ["basic", "rolled", "keys-tags", "crash", "torn-half"]

#: Names of a message: the oracle's, ours.
FIELDS = {
    "topic": "topic",
    "queueId": "queue_id",
    "queueOffset": "queue_offset",
    "physicalOffset": "physical_offset",
    "storeSize": "store_size",
    "flag": "flag",
    "sysFlag": "sys_flag",
    "bornTimestamp": "born_timestamp",
    "storeTimestamp": "store_timestamp",
    "bornHost": "born_host",
    "storeHost": "store_host",
    "reconsumeTimes": "reconsume_times",
    "preparedTransactionOffset": "prepared_transaction_offset",
    "bodyCRC": "body_crc",
    "properties": "properties",
    "body": "body",
    "msgId": "msg_id",
}


def as_ours(row: dict[str, Any]) -> dict[str, Any]:
    return {ours: row[theirs] for theirs, ours in FIELDS.items() if theirs in row}


def records_in_queues(real: Golden) -> list[dict[str, Any]]:
    """The messages of the real answer that are records, without phantom units (R7)."""
    sizes = {row["physicalOffset"]: row["size"] for row in real.expected(type="record")}
    return [
        row
        for row in real.expected(type="message")
        if sizes.get(row["cqPhysicalOffset"]) == row["cqSize"]
        and f"{row['topic']}/{row['queueId']}" == row["queue"]
    ]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("scenario", [*SOUND, "stale-units"])
def test_dump_lists_the_log_as_the_real_classes_read_it(
    golden: GoldenFactory, command: Command, version: str, scenario: str
) -> None:
    real = golden("rocketmq", version, scenario)
    done = command("dump", real.store, "--format", "jsonl")
    assert done.code == 0
    rows = [row for row in done.rows if row["state"] == "ok"]
    expected = [(row["physicalOffset"], row["size"]) for row in real.expected(type="record")]
    assert [(row["physical_offset"], row["store_size"]) for row in rows] == expected
    torn = [(row["physical_offset"], row["state"]) for row in done.rows if row["state"] != "ok"]
    (state,) = real.expected(type="store")
    assert torn == ([(state["maxPhyOffset"], "torn")] if scenario == "torn-half" else [])
    by_offset = {row["physical_offset"]: row for row in rows}
    for message in records_in_queues(real):
        row = by_offset[message["physicalOffset"]]
        want = as_ours(message)
        assert {name: row[name] for name in want} == want
        if "body" not in want:
            body = base64.b64decode(row["body"])
            assert hashlib.sha256(body).hexdigest() == message["bodySha256"]
        assert row["version"] == 1


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("scenario", SOUND)
def test_queues_and_units_are_as_a_recovery_leaves_them(
    golden: GoldenFactory, command: Command, version: str, scenario: str
) -> None:
    real = golden("rocketmq", version, scenario)
    rows = command("queues", real.store, "--format", "jsonl").rows
    expected = [
        {
            "topic": row["topic"],
            "queue_id": row["queueId"],
            "min_offset": row["minOffset"],
            "max_offset": row["maxOffset"],
        }
        for row in real.expected(type="queue")
    ]
    assert rows == expected
    units = command("cq", real.store, "--format", "jsonl").rows
    wanted = [
        (
            row["queue"],
            row["index"],
            row["cqPhysicalOffset"],
            row["cqSize"],
            row["tagsCode"],
        )
        for row in real.expected(type="message")
    ]
    names = ("queue_offset", "physical_offset", "size", "tags_code")
    ours = [
        (f"{row['topic']}/{row['queue_id']}", *(row[name] for name in names))
        for row in units
        if row["state"] != "surplus"
    ]
    assert ours == wanted
    states = {row["state"] for row in units}
    assert states <= ({"ok", "surplus"} if scenario == "torn-half" else {"ok"})


@pytest.mark.parametrize("version", VERSIONS)
def test_phantom_units_are_shown_as_surplus(
    golden: GoldenFactory, command: Command, version: str
) -> None:
    """The real classes serve them as messages (R7)."""
    real = golden("rocketmq", version, "stale-units")
    units = command("cq", real.store, "--format", "jsonl").rows
    surplus = {
        (f"{row['topic']}/{row['queue_id']}", row["queue_offset"])
        for row in units
        if row["state"] == "surplus"
    }
    good = {(row["queue"], row["index"]) for row in records_in_queues(real)}
    phantoms = {(row["queue"], row["index"]) for row in real.expected(type="message")} - good
    assert phantoms
    assert phantoms <= surplus
    for row in command("queues", real.store, "--format", "jsonl").rows:
        name = f"{row['topic']}/{row['queue_id']}"
        assert row["max_offset"] == sum(queue == name for queue, _ in good)


@pytest.mark.gate
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("scenario", [*SOUND, "pull-limits"])
def test_get_answers_as_the_real_store_does(
    golden: GoldenFactory, command: Command, version: str, scenario: str
) -> None:
    real = golden("rocketmq", version, scenario)
    queries = list(real.queries(type="get"))
    for row in queries[:: 1 if scenario == "pull-limits" else 3]:
        arguments = ["--topic", row["topic"], "--queue", row["queueId"]]
        arguments += ["--offset", row["offset"], "--max", row["max"]]
        arguments += ["--tags", row["sub"]] if row["sub"] is not None else []
        done = command("get", real.store, *arguments, "--format", "jsonl")
        (answer,) = done.rows
        messages = answer.pop("messages")
        assert answer == {
            "status": row["status"],
            "next_begin_offset": row["nextBeginOffset"],
            "min_offset": row["minOffset"],
            "max_offset": row["maxOffset"],
            "queue_offsets": row["queueOffsets"],
            "physical_offsets": row["physicalOffsets"],
        }
        assert [message["physical_offset"] for message in messages] == row["physicalOffsets"]
        assert done.code == (0 if messages else 1)


@pytest.mark.gate
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("scenario", ["basic", "keys-tags", "crash"])
@pytest.mark.parametrize("trust", [[], ["--trust-index"]])
def test_query_finds_the_messages_that_have_the_key(
    golden: GoldenFactory, command: Command, version: str, scenario: str, trust: list[str]
) -> None:
    """The real answers have other keys of the same hash too, and a message more than once."""
    real = golden("rocketmq", version, scenario)
    compared = 0
    for row in real.queries(type="query"):
        if not row["key"] or row["max"] < 32 or row["begin"]:
            continue
        found = []
        for message in real.expected(type="message", topic=row["topic"]):
            properties = message["properties"]
            keys = [properties.get("UNIQ_KEY"), *properties.get("KEYS", "").split(" ")]
            if row["key"] in keys:
                found.append(message["physicalOffset"])
        done = command(
            "query", real.store, "--topic", row["topic"], "--key", row["key"], "--max", 64,
            "--format", "jsonl", *trust,
        )  # fmt: skip
        (answer,) = done.rows
        assert answer["physical_offsets"] == sorted(found)[-64:], row["key"]
        assert answer.get("complete", True) == (not trust)
        assert done.code == (0 if found else 1)
        compared += 1
    assert compared


@pytest.mark.parametrize(
    "words", [["dump"], ["query", "-t", "KeyTopic", "-k", "U7"],
              ["query", "-t", "KeyTopic", "-k", "U7", "--trust-index"]],
)  # fmt: skip
def test_the_time_of_end_is_not_included(
    golden: GoldenFactory, command: Command, words: list[str]
) -> None:
    """RocketMQ's queryMessage includes it; both command lines do not."""
    real = golden("rocketmq", "4.9.8", "keys-tags")
    (name, *options) = words
    time = min(
        m["storeTimestamp"]
        for m in real.expected(type="message", topic="KeyTopic")
        if m["properties"].get("UNIQ_KEY") == "U7"
    )
    for end, found in ((time, False), (time + 1, True)):
        done = command(name, real.store, *options, "--end", end, "-f", "jsonl")
        messages = [m for row in done.rows for m in row.get("messages", [row])]
        assert ("U7" in {m["properties"].get("UNIQ_KEY") for m in messages}) is found


@pytest.mark.parametrize("scenario", ["crash", "stale-units", "torn-half"])
def test_no_command_changes_a_byte(golden: GoldenFactory, command: Command, scenario: str) -> None:
    store = golden("rocketmq", "4.9.8", scenario).store
    before = digest(store)
    command("dump", store)
    command("queues", store)
    command("cq", store, "--trust-queues")
    command("get", store, "--topic", "Topic0", "--queue", 0, "--offset", 0)
    command("query", store, "--topic", "Topic0", "--key", "key0", "--trust-index")
    command("check", store)
    assert digest(store) == before


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("scenario", [*SOUND, "pull-limits", "stale-units"])
def test_the_geometry_of_the_index_is_proven_by_its_content(
    golden: GoldenFactory, version: str, scenario: str
) -> None:
    real = golden("rocketmq", version, scenario)
    config = real.meta["config"]
    geometry = geometry_of(StoreDirectory(real.store))
    assert (geometry.slots, geometry.items) == (config["maxHashSlotNum"], config["maxIndexNum"])


def test_a_geometry_that_is_given_must_fit(golden: GoldenFactory) -> None:
    store = golden("rocketmq", "4.9.8", "basic").store
    assert geometry_of(StoreDirectory(store, {"maxHashSlotNum": 101})).items == 2000
    assert geometry_of(StoreDirectory(store, {"maxIndexNum": 2000})).slots == 101
    with pytest.raises(InvalidMessage, match="do not give"):
        geometry_of(StoreDirectory(store, {"maxHashSlotNum": 101, "maxIndexNum": 2001}))


@pytest.fixture(name="basic")
def basic_fixture(golden: GoldenFactory) -> Golden:
    return golden("rocketmq", "4.9.8", "basic")


def test_a_cut_listing_reports_where_to_go_on(
    basic: Golden, command: Command, tmp_path: Path
) -> None:
    summary = tmp_path / "summary.json"
    first = command("dump", basic.store, "-f", "jsonl", "--limit", 7, "--summary", summary)
    assert len(first.rows) == 7
    said = json.loads(first.err)
    assert said == json.loads(summary.read_text())
    assert (said["truncated"], said["scanned"]) == (True, 7)
    rest = command("dump", basic.store, "-f", "jsonl", "--from", said["next"]["physical_offset"])
    everything = command("dump", basic.store, "-f", "jsonl")
    assert first.rows + rest.rows == everything.rows
    assert everything.err == ""
    exact = command("dump", basic.store, "-f", "jsonl", "--limit", len(everything.rows))
    assert exact.err == ""


def test_trusted_queues_are_marked_as_incomplete(basic: Golden, command: Command) -> None:
    done = command("cq", basic.store, "--topic", "LogA", "--trust-queues", "-f", "jsonl")
    assert json.loads(done.err)["complete"] is False
    assert {row["state"] for row in done.rows} == {"unchecked"}
    checked = command("cq", basic.store, "--topic", "LogA", "-f", "jsonl")
    assert [{**row, "state": ""} for row in done.rows] == [
        {**row, "state": ""} for row in checked.rows
    ]
    get = ["get", basic.store, "-t", "LogA", "-q", 0, "--offset", 0, "-f", "jsonl"]
    (trusted,) = command(*get, "--trust-queues").rows
    (answer,) = command(*get).rows
    assert trusted == answer | {"complete": False}


def test_64_bit_integers_can_be_strings(basic: Golden, command: Command) -> None:
    (row, *_) = command("dump", basic.store, "-f", "jsonl", "--int64", "string").rows
    assert (row["physical_offset"], row["queue_id"]) == ("0", 0)
    (answer,) = command(
        "get", basic.store, "-t", "LogA", "-q", 0, "--offset", 1, "-f", "jsonl", "--int64", "string"
    ).rows
    assert answer["queue_offsets"][0] == "1"
    assert answer["messages"][0]["store_timestamp"].isdigit()


def test_csv_and_text_have_a_header_and_the_same_rows(basic: Golden, command: Command) -> None:
    rows = command("dump", basic.store, "-f", "jsonl").rows
    table = list(csv.DictReader(io.StringIO(command("dump", basic.store, "-f", "csv").out)))
    assert [row["body"] for row in table] == [row["body"] for row in rows]
    assert json.loads(table[0]["properties"]) == rows[0]["properties"]
    lines = command("queues", basic.store).out.splitlines()
    assert lines[0].split() == ["topic", "queue_id", "min_offset", "max_offset"]
    assert lines[1].split() == ["LogA", "0", "0", "25"]


@pytest.mark.gate
@pytest.mark.parametrize("format", ["arrow", "parquet"])
def test_arrow_and_parquet_hold_the_same_rows(
    basic: Golden, command: Command, tmp_path: Path, format: str
) -> None:
    rows = command("dump", basic.store, "-f", "jsonl").rows
    path = tmp_path / "out"
    with path.open("wb") as file:
        subprocess.run(_program("dump", basic.store, "-f", format), stdout=file, check=True)
    if format == "arrow":
        with pa.OSFile(str(path)) as source:
            table = pa.ipc.open_stream(source).read_all()
    else:
        table = pq.read_table(path)
    assert table["physical_offset"].to_pylist() == [row["physical_offset"] for row in rows]
    assert table["body"].to_pylist() == [base64.b64decode(row["body"]) for row in rows]
    assert dict(table["properties"][0].as_py()) == rows[0]["properties"]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["dump", "/nowhere"], 3, "no such directory"),
        (["dump", "."], 3, "no commitlog"),
        (["dump", __file__], 3, "not a directory"),
        (["dump", "STORE/commitlog"], 3, "give the store's root"),
        (["dump"], 2, "ROOT"),
        (["dump", "--nonsense"], 2, "dump --help)"),
        (["dump", "STORE", "--format", "xml"], 2, "xml"),
        (["dump", "STORE", "--option", "x"], 2, "NAME=VALUE"),
        (["dump", "STORE", "--option", "noSuch=1"], 2, "noSuch"),
        (["dump", "STORE", "--conf", "/nowhere"], 3, "/nowhere"),
        (
            ["query", "STORE", "-t", "LogA", "-k", "x", "--begin", "yesterday"],
            2,
            "not a valid time",
        ),
        (["query", "STORE", "-t", "LogA", "-k", "x", "--begin", "2026-01-01"], 2, "zone"),
        (["get", "STORE", "-t", "nope", "-q", "0", "--offset", "0"], 1, "no topic 'nope'"),
        (["get", "STORE", "-t", "LogA", "-q", "99", "--offset", "0"], 1, "no queue 99 of topic"),
        (["query", "STORE", "-t", "nope", "-k", "x"], 1, "there are: LogA"),
        (["offset-by-time", "STORE", "-t", "nope", "-q", "0", "--time", "0"], 1, "there are: LogA"),
        (["diff", "STORE", "STORE", "--ignore", "nope"], 2, "not a compared field: flag, sys_flag"),
        (["convert", "STORE", "STORE/new"], 3, "lies in the store that it is made of"),
        (["query", "STORE", "-t", "LogA", "-k", "nope"], 1, ""),
        (["cq", "STORE", "-t", "nope"], 1, "no topic 'nope' in this store; there are: LogA"),
        (["cq", "STORE", "-t", "LgA"], 1, "did you mean 'LogA'? there are: LogA"),
        (["cq", "STORE", "-t", "LogA", "-q", "99"], 1, "no queue 99 of topic 'LogA'; there are: 0"),
        (["cq", "STORE", "-q", "99"], 1, "no queue 99 of any topic; there are: LogA/0"),
        (["info", "STORE", "-t", "nope"], 1, "no topic 'nope' in this store; there are: LogA"),
        (["index", "STORE", "--file", "nope"], 1, "no index file 'nope'; there are: 20"),
        (["index", "STORE", "--items", "--file", "nope"], 1, "no index file 'nope'"),
        (["lag", "STORE", "-g", "nope"], 1, "no group 'nope' in config/consumerOffset.json"),
        (["frobnicate"], 2, "frobnicate"),
    ],
)
def test_mistakes_and_refusals_are_one_line_and_a_code(
    basic: Golden, command: Command, arguments: list[str], code: int, said: str
) -> None:
    done = command(*(a.replace("STORE", str(basic.store)) for a in arguments))
    assert done.code == code
    assert said in done.err
    assert done.err.count("\n") <= 1
    assert "Traceback" not in done.err


def test_an_internal_error_is_one_line_and_a_saved_traceback(
    basic: Golden, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr("rocketcompat.inspect.dump.dump_log", broken)
    done = command("dump", basic.store)
    assert done.code == 4
    assert done.err.count("\n") == 1
    saved = Path(done.err.split("traceback in ")[1].rstrip(")\n"))
    assert "a bug" in saved.read_text()
    saved.unlink()


def test_an_interrupt_is_quiet(
    basic: Golden, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("rocketcompat.inspect.dump.dump_log", interrupted)
    done = command("dump", basic.store)
    assert (done.code, done.err) == (130, "")


@pytest.mark.gate
def test_a_closed_pipe_is_quiet(basic: Golden) -> None:
    program = subprocess.Popen(
        _program("dump", basic.store, "-f", "jsonl"), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert program.stdout is not None
    assert program.stderr is not None
    program.stdout.readline()
    program.stdout.close()
    assert program.stderr.read() == b""
    program.stderr.close()
    assert program.wait() == 0


@pytest.mark.parametrize("program", [[], ["spark"]])
def test_the_list_of_commands_has_a_whole_sentence_for_each(
    command: Command, program: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = command(*program, "--help").out
    commands = text.partition("Commands:")[2].splitlines()
    assert len(commands) > 4
    assert not [line for line in commands if line.endswith("...")]


def test_help_needs_neither_numpy_nor_pyarrow() -> None:
    code = (
        "import sys, rocketcompat.cli; sys.argv = ['x', '--help']\n"
        "try: rocketcompat.cli.main()\n"
        "except SystemExit as e: assert e.code == 0\n"
        "assert not {'numpy', 'pyarrow'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "dump" in done.stdout


def test_a_conversion_of_an_empty_directory_is_refused_and_makes_nothing(
    command: Command, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    done = command("convert", tmp_path / "empty", tmp_path / "copy")
    assert (done.code, done.out) == (3, "")
    assert "neither a RocketMQ store nor shards" in done.err
    assert not (tmp_path / "copy").exists()


def test_an_empty_store_is_an_empty_listing(command: Command, tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    for name in ("dump", "queues", "cq"):
        done = command(name, tmp_path, "--format", "jsonl")
        assert (done.code, done.out, done.err) == (0, "", "")


def test_a_store_that_is_being_written_is_shown_as_recovery_would_leave_it(
    command: Command, tmp_path: Path
) -> None:
    """Queues and index lag behind the log; what they lack is computed, and is no error."""
    config = MessageStoreConfig(mapped_file_size_commit_log=4096, max_index_num=100)
    config = config.changed(mapped_file_size_consume_queue=200, max_hash_slot_num=7)
    options = {"config": config, "layouts": {"consume_queue", "index"}, "background": False}
    with rocketcompat.open(tmp_path, "w", **options) as store:  # type: ignore[arg-type]
        for number in range(40):
            message = Message("T", b"x" * 50, keys=[f"k{number}"], queue_id=number % 3)
            last = store.put_message(message)
            if number == 25:
                store.wait_dispatched(last.physical_offset)
        rows = command("dump", tmp_path, "-f", "jsonl").rows
        assert [row["state"] for row in rows] == ["ok"] * 40
        units = command("cq", tmp_path, "-f", "jsonl").rows
        assert sorted(row["physical_offset"] for row in units) == [
            row["physical_offset"] for row in rows
        ]
        assert {row["state"] for row in units} == {"ok", "missing"}
        (answer,) = command("query", tmp_path, "-t", "T", "-k", "k39", "-f", "jsonl").rows
        assert answer["physical_offsets"] == [last.physical_offset]
        findings = command("check", tmp_path, "-f", "jsonl").rows
        assert {row["severity"] for row in findings} == {"warning"}
    assert command("check", tmp_path, "-f", "jsonl").rows == []


def test_recover_begins_a_new_log_where_the_log_is_given_up(
    command: Command, tmp_path: Path
) -> None:
    root = tmp_path / "store"
    config = MessageStoreConfig(
        mapped_file_size_commit_log=4096, max_index_num=100, max_hash_slot_num=7
    )
    with rocketcompat.open(root, "w", config) as store:
        store.put_message(Message("T", b"1", keys=["k"]))
    shutil.move(root / "commitlog", tmp_path / "elsewhere")
    sizes = ("-o", "mappedFileSizeCommitLog=4096")
    before = digest(root)
    for refused in (("recover",), ("check", "-o", "acceptLostLog=true")):
        done = command(refused[0], root, *sizes, *refused[1:])
        assert (done.code, digest(root)) == (3, before)
        assert "no commitlog directory" in done.err
    (row,) = command("recover", root, *sizes, "-o", "acceptLostLog=true", "-f", "jsonl").rows
    assert row["log_end"] == 0
    assert (root / "commitlog").is_dir()
    kept = {path.name for path in (root / ".tubestore" / "quarantine" / "1").iterdir()}
    assert {"consumequeue", "index", "tube"} <= kept
    with rocketcompat.open(root, "w", config) as store:
        assert store.put_message(Message("T", b"2")).queue_offset == 0


def test_recover_makes_no_store_of_a_directory_without_one(
    command: Command, tmp_path: Path
) -> None:
    (tmp_path / "notes").write_text("mine")
    done = command("recover", tmp_path, "-o", "acceptLostLog=true")
    assert (done.code, [path.name for path in tmp_path.iterdir()]) == (3, ["notes"])
    assert "no commitlog directory" in done.err


def test_expired_queues_begin_at_their_end(golden: GoldenFactory, command: Command) -> None:
    """As 5.3.3; 4.9.8 keeps min 0 and answers OFFSET_FOUND_NULL."""
    real = golden("rocketmq", "5.3.3", "expired-most")
    rows = command("queues", real.store, "--format", "jsonl").rows
    assert rows == [
        {
            "topic": row["topic"],
            "queue_id": row["queueId"],
            "min_offset": row["minOffset"],
            "max_offset": row["maxOffset"],
        }
        for row in real.expected(type="queue")
    ]


def _program(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "rocketcompat", *map(str, arguments)]
