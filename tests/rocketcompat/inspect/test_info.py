"""`info`, `lag`, `index`, `checkpoint`, `offset-by-time`, and what they stand on."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import rocketcompat
from rocketcompat import Message
from rocketcompat.inspect.directory import StoreDirectory
from rocketcompat.reading.times import offset_by_time
from tests.support.command import Command
from tests.support.golden import ROCKET_VERSIONS, GoldenFactory
from tests.support.golden import golden_fixture as golden_fixture
from tests.support.rocket.cli import command_fixture as command_fixture
from tests.support.rocket.cli import digest
from tests.support.rocket.files.selected import SMALL, put


@pytest.mark.parametrize("version", ROCKET_VERSIONS)
@pytest.mark.parametrize("scenario", ["basic", "rolled", "keys-tags"])
def test_info_shows_sizes_spans_and_that_the_stop_was_clean(
    golden: GoldenFactory, command: Command, version: str, scenario: str
) -> None:
    real = golden("rocketmq", version, scenario)
    before = digest(real.store)
    (found,) = command("info", real.store, "-f", "jsonl").rows
    assert digest(real.store) == before
    (state,) = real.expected(type="store")
    assert (found["state"], found["abort"], found["locked_by"]) == ("closed", False, None)
    assert found["min_physical_offset"] == state["minPhyOffset"]
    assert found["max_physical_offset"] == state["maxPhyOffset"]
    assert found["written_by"] == [f"RocketMQ {version[0]}"]
    settings = {row["name"]: row["value"] for row in found["settings"]}
    config = real.meta["config"]
    rounded = -(-config["mappedFileSizeConsumeQueue"] // 20) * 20
    wanted = {"mappedFileSizeCommitLog": config["mappedFileSizeCommitLog"],
              "mappedFileSizeConsumeQueue": rounded, "maxHashSlotNum": config["maxHashSlotNum"],
              "maxIndexNum": config["maxIndexNum"]}  # fmt: skip
    assert settings == wanted
    messages = list(real.expected(type="message"))
    for row in found["queues"]:
        mine = [m for m in messages if m["queue"] == f"{row['topic']}/{row['queue_id']}"]
        times = [m["storeTimestamp"] for m in mine]
        assert row["messages"] == len(mine)
        assert (row["first_timestamp"], row["last_timestamp"]) == (times[0], times[-1])
    names = {row["structure"] for row in found["structures"]}
    assert {"commitlog", "consumequeue", "index"} <= names


def test_info_distinguishes_a_crash_from_a_store_that_runs(
    golden: GoldenFactory, command: Command, tmp_path: Path
) -> None:
    crashed = golden("rocketmq", "4.9.8", "crash").store
    (found,) = command("info", crashed, "-f", "jsonl").rows
    assert (found["state"], found["abort"]) == ("crashed", True)
    put(tmp_path, [Message("T", b"x")])
    with rocketcompat.open(tmp_path, "w", SMALL, layouts={"consume_queue"}):
        (found,) = command("info", tmp_path, "-f", "jsonl").rows
        assert (found["state"], found["locked_by"]) == ("running", os.getpid())
    (found,) = command("info", tmp_path, "-f", "jsonl").rows
    assert (found["state"], found["locked_by"]) == ("closed", None)


@pytest.mark.parametrize("version", ROCKET_VERSIONS)
def test_info_reports_whether_a_message_is_still_held(
    golden: GoldenFactory, command: Command, version: str
) -> None:
    """apache/rocketmq-dashboard#4439: is my offset already deleted?"""
    real = golden("rocketmq", version, "expired")
    queues = [row for row in real.expected(type="queue") if 0 < row["minOffset"] < row["maxOffset"]]
    assert queues
    for row in queues[:2]:
        asked = {row["minOffset"] - 1: "expired", row["minOffset"]: "held",
                 row["maxOffset"] - 1: "held", row["maxOffset"]: "not-yet"}  # fmt: skip
        for offset, verdict in asked.items():
            done = command("info", real.store, "-t", row["topic"], "-q", row["queueId"],
                           "--offset", offset, "-f", "jsonl")  # fmt: skip
            assert done.rows[0]["verdict"] == verdict
            assert done.code == (0 if verdict == "held" else 1)
    done = command("info", real.store, "-t", "nope", "-q", 0, "--offset", 0, "-f", "jsonl")
    assert (done.code, done.rows[0]["verdict"]) == (1, "unknown-queue")
    assert command("info", real.store, "--offset", 0).code == 2
    assert command("info", real.store, "--queue", 0).code == 2


def test_messages_that_cannot_be_read_count_as_stored_with_the_next() -> None:
    for holes in range(1 << 5):
        times = [None if holes >> i & 1 else 10 * i for i in range(5)]
        for time in range(-5, 50, 5):
            found = offset_by_time(0, 5, time, "lower", times.__getitem__)
            known = [i for i, t in enumerate(times) if t is not None and t >= time]
            first = known[0] if known else 5
            while first and times[first - 1] is None and known:
                first -= 1
            assert found == first or (not known and found >= max(
                (i + 1 for i, t in enumerate(times) if t is not None), default=0))  # fmt: skip


def test_a_group_s_lag_is_read_from_the_broker_s_own_file(command: Command, tmp_path: Path) -> None:
    put(tmp_path, [Message("T", b"x", queue_id=n % 2) for n in range(10)])
    (tmp_path / "config").mkdir()
    # As fastjson writes it: the queue ids are not quoted.
    text = '{\n\t"offsetTable":{\n\t\t"T@g1":{0:3,1:5\n\t\t},"T@g2":{0:9},"gone@g1":{0:1}\n\t}\n}'
    (tmp_path / "config" / "consumerOffset.json").write_text(text)
    rows = command("lag", tmp_path, "-f", "jsonl").rows
    shown = [(r["group"], r["topic"], r["queue_id"], r.get("lag"), r["verdict"]) for r in rows]
    assert shown == [
        ("g1", "T", 0, 2, "held"), ("g1", "T", 1, 0, "held"),
        ("g1", "gone", 0, None, "unknown-queue"), ("g2", "T", 0, 0, "beyond"),
    ]  # fmt: skip
    assert len(command("lag", tmp_path, "-g", "g2", "-f", "jsonl").rows) == 1
    assert command("lag", tmp_path, "-t", "none", "-f", "jsonl").rows == []


@pytest.mark.parametrize(
    ("content", "said", "left"),
    [
        (b'{"offsetTable":{"T@', "no JSON", 0),
        (b"\x00" * 40, "empty", 0),
        (b"\xff\xfe", "no JSON", 0),
        (b"[" * 100_000, "nested too deeply", 0),
        (b'{"offsetTable":[]}', "offsetTable", 0),
        (b'{"offsetTable":{"T@g":{0:3},"T@h":7}}', "T@h", 1),
        (b'{"offsetTable":{"T@g":{0:3,1:"x"}}}', "T@g/1", 1),
        (b'{"offsetTable":{"T@g":{0:3,"one":4},"nogroup":{0:1}}}', "T@g/one and 1 more", 1),
    ],
)
def test_offsets_of_groups_that_cannot_be_read_are_an_error(
    command: Command, tmp_path: Path, content: bytes, said: str, left: int
) -> None:
    put(tmp_path, [Message("T", b"x")])
    (tmp_path / "config").mkdir()
    path = tmp_path / "config" / "consumerOffset.json"
    path.write_bytes(content)
    done = command("lag", tmp_path, "-f", "jsonl")
    assert (done.code, len(done.rows)) == (3, left)
    assert str(path) in done.err
    assert said in done.err
    path.with_name(path.name + ".bak").write_text('{"offsetTable":{"T@g":{0:3}}}')
    assert command("lag", tmp_path, "-f", "jsonl").code == (3 if left or "offset" in said else 0)


def test_reading_tools_change_no_byte(golden: GoldenFactory, command: Command) -> None:
    for scenario in ("crash", "flip-body-middle-abort", "cl-wrong-length"):
        store = golden("rocketmq", "5.3.3", scenario).store
        before = digest(store)
        for arguments in (
            ["info"], ["info", "-t", "T", "-q", 0, "--offset", 0], ["index"], ["index", "--keys"],
            ["checkpoint"], ["lag"], ["tail"], ["dump", "--grep", "x", "--decompress"],
            ["offset-by-time", "-t", "T", "-q", 0, "--time", 5],
        ):  # fmt: skip
            name, *rest = arguments
            assert command(name, store, *rest).code in (0, 1, 2)
        assert digest(store) == before
        StoreDirectory(store)
