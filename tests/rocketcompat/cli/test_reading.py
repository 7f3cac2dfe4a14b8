"""`rocketcompat get | query | offset-by-time`."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

import rocketcompat
from rocketcompat import Message
from tests.support.command import Command
from tests.support.golden import GoldenFactory
from tests.support.golden import golden_fixture as golden_fixture
from tests.support.rocket.cli import command_fixture as command_fixture
from tests.support.rocket.files.commands import SOUND, VERSIONS
from tests.support.rocket.store.opened import opened


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


def test_a_query_that_finds_nothing_prints_that(golden: GoldenFactory, command: Command) -> None:
    real = golden("rocketmq", "4.9.8", "basic")
    topic = next(real.expected(type="message"))["topic"]
    done = command("query", real.store, "--topic", topic, "--key", "no such key")
    assert done.code == 1
    assert f"topic '{topic}' has no message with the key 'no such key'" in done.err


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


@pytest.mark.parametrize("spelling", ["--start", "--begin"])
def test_the_time_of_start_is_included(
    golden: GoldenFactory, command: Command, spelling: str
) -> None:
    real = golden("rocketmq", "4.9.8", "keys-tags")
    times = sorted(m["storeTimestamp"] for m in real.expected(type="message"))
    for words in (["dump"], ["tail", "-n", 1000]):
        (name, *options) = words
        done = command(name, real.store, *options, spelling, times[-1], "--format", "jsonl")
        assert {row["store_timestamp"] for row in done.rows} == {times[-1]}
    for start, code in ((times[0], 0), (times[-1] + 1, 1)):
        query = ["query", real.store, "-t", "KeyTopic", "-k", "U7", spelling, start]
        assert command(*query).code == code


def test_a_message_is_printed_by_its_id_or_its_physical_offset(
    command: Command, tmp_path: Path
) -> None:
    with rocketcompat.open(tmp_path, "w", background=False) as store:
        store.put_message(Message("T", b"first"))
        put = store.put_message(Message("T", b"second", tags="a"))
        end = store.max_physical_offset
    for id in (put.msg_id, put.msg_id.lower(), put.physical_offset):
        (row,) = command("message", tmp_path, "--id", id, "-f", "jsonl").rows
        assert (row["physical_offset"], row["msg_id"]) == (put.physical_offset, put.msg_id)
        assert base64.b64decode(row["body"]) == b"second"
    for id in (put.physical_offset + 1, f"{'0' * 24}{end:08X}"):
        missing = command("message", tmp_path, "--id", id)
        assert (missing.code, "found by `query --key`" in missing.err) == (1, True)
        assert "the files of the log have the offsets [0, " in missing.err
    wrong = command("message", tmp_path, "--id", "xyz")
    assert (wrong.code, "'xyz' is not a message id" in wrong.err) == (2, True)


@pytest.mark.parametrize("option", ["--limit", "-n", "--max"])
def test_the_number_of_messages_is_the_option_of_all_commands(
    tmp_path: Path, command: Command, option: str
) -> None:
    with opened(tmp_path) as store:
        for _ in range(3):
            store.put_message(Message("T", b"x", keys="k"))
    got = command("get", tmp_path, "-t", "T", "-q", 0, "--offset", 0, option, 2, "-f", "jsonl")
    assert len(got.rows[0]["messages"]) == 2
    found = command("query", tmp_path, "-t", "T", "-k", "k", option, 2, "-f", "jsonl")
    assert len(found.rows[0]["messages"]) == 2
