"""The `rocketcompat` command line against golden stores, and its contract (decisions.md D16)."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

import rocketcompat
from rocketcompat import Message, MessageStoreConfig
from rocketcompat.options import LAYOUTS
from tests.support.command import Command
from tests.support.golden import Golden, GoldenFactory
from tests.support.golden import golden_fixture as golden_fixture
from tests.support.rocket.cli import command_fixture as command_fixture
from tests.support.rocket.files.commands import SOUND, VERSIONS, records_in_queues
from tests.support.rocket.files.commands import basic_fixture as basic_fixture

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


def test_an_empty_store_is_an_empty_listing(command: Command, tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    for name in ("dump", "queues", "cq"):
        done = command(name, tmp_path, "--format", "jsonl")
        assert (done.code, done.out, done.err) == (0, "", "")


def test_a_store_that_is_being_written_is_shown_as_recovery_would_leave_it(
    command: Command, tmp_path: Path
) -> None:
    """Queues and index lag behind the log; what they lack is computed, and is no error."""
    config = MessageStoreConfig(
        mapped_file_size_commit_log=4096, max_index_num=100, layouts=LAYOUTS
    )
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
