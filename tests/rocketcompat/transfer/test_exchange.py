"""Messages out and in again, copies in other forms, and the comparison of two stores."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any, Literal

import pyarrow.parquet as pq
import pytest

import rocketcompat
import tubestore
from rocketcompat import Message
from rocketcompat.check.whole import check
from rocketcompat.inspect.directory import StoreDirectory
from rocketcompat.inspect.dump import dump_log
from tests.rocketcompat.repair.test_rebuild import SMALL, messages
from tests.support.command import Command, run_command
from tests.support.golden import ROCKET_VERSIONS, GoldenFactory
from tests.support.golden import golden_fixture as golden_fixture
from tests.support.rocket.cli import command_fixture as command_fixture
from tests.support.rocket.cli import digest
from tests.support.rocket.files.exchanged import differences
from tubestore.cli import main as tubestore_main
from tubestore.errors import NotAStore

SIZES = ("mappedFileSizeCommitLog", "mappedFileSizeConsumeQueue", "maxHashSlotNum", "maxIndexNum")


def options_of(config: dict[str, Any], **changed: Any) -> list[str]:
    found = {name: config[name] for name in SIZES} | changed
    return [f"--option={name}={value}" for name, value in found.items()]


@pytest.mark.one_in(5)
@pytest.mark.parametrize("version", ROCKET_VERSIONS)
@pytest.mark.parametrize("suffix", ["jsonl", "csv", "parquet", "arrow"])
@pytest.mark.parametrize("scenario", ["keys-tags", "transactions"])
def test_what_is_exported_and_imported_with_its_offsets_is_the_same_store(
    golden: GoldenFactory, command: Command, tmp_path: Path, version: str, suffix: str,
    scenario: str,
) -> None:  # fmt: skip
    real = golden("rocketmq", version, scenario)
    file, copy = tmp_path / f"out.{suffix}", tmp_path / "copy"
    before = digest(real.store)
    assert command("export", real.store, "--out", file).code == 0
    assert digest(real.store) == before
    options = options_of(real.meta["config"])
    done = command("import", copy, file, "--offsets", "keep", "-f", "jsonl", *options)
    assert (done.code, done.err) == (0, "")
    assert differences(real.store, copy) == []
    logs = [sorted((root / "commitlog").iterdir()) for root in (real.store, copy)]
    ends = [max(r["physical_offset"] for r in dump_log(StoreDirectory(root)))
            for root in (real.store, copy)]  # fmt: skip
    assert ends[0] == ends[1]
    assert logs[0][0].read_bytes()[: ends[0]] == logs[1][0].read_bytes()[: ends[1]]
    assert list(check(copy, {})) == [] or {f["reason"] for f in check(copy)} <= {"checkpoint"}


@pytest.mark.parametrize("scenario", ["ipv6", "rolled", "compressed"])
def test_ipv6_and_rolled_logs_come_back_too(
    golden: GoldenFactory, command: Command, tmp_path: Path, scenario: str
) -> None:
    real = golden("rocketmq", "4.9.8", scenario)
    file, copy = tmp_path / "out.parquet", tmp_path / "copy"
    command("export", real.store, "--out", file)
    options = options_of(real.meta["config"])
    assert command("import", copy, file, "--offsets", "keep", *options).code == 0
    assert differences(real.store, copy) == []


def test_edited_messages_are_imported_as_edited(
    command: Command, tmp_path: Path, golden: GoldenFactory
) -> None:
    """apache/rocketmq#6971: export, mend bad bodies, import."""
    real = golden("rocketmq", "4.9.8", "keys-tags")
    file = tmp_path / "out.jsonl"
    command("export", real.store, "--out", file, "--tags", "TagA")
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    rows[0]["body"] = base64.b64encode(b"mended").decode()
    rows[1]["properties"]["KEYS"] = "new-key"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = command(
        "import", tmp_path / "new", file, "-f", "jsonl", *options_of(real.meta["config"])
    )
    assert done.rows == [{"messages": len(rows), "left_out": 0}]
    found = list(dump_log(StoreDirectory(tmp_path / "new")))
    assert found[0]["body"] == b"mended"
    assert found[1]["properties"]["KEYS"] == "new-key"
    assert [r["properties"] for r in found[2:]] == [r["properties"] for r in rows[2:]]
    offsets: dict[int, list[int]] = {}
    for row in found:
        offsets.setdefault(row["queue_id"], []).append(row["queue_offset"])
    assert all(numbers == list(range(len(numbers))) for numbers in offsets.values())
    again = command("import", tmp_path / "new", file, "-f", "jsonl")
    assert again.rows == done.rows
    assert len(list(dump_log(StoreDirectory(tmp_path / "new")))) == 2 * len(rows)


def test_offsets_are_kept_in_a_new_store_only(command: Command, tmp_path: Path) -> None:
    with rocketcompat.open(tmp_path / "a", "w", SMALL, background=False) as store:
        store.put_message(Message("T", b"x"))
    command("export", tmp_path / "a", "--out", tmp_path / "f.parquet")
    done = command("import", tmp_path / "a", tmp_path / "f.parquet", "--offsets", "keep")
    assert (done.code, done.err.count("\n")) == (3, 1)
    assert "text_format" not in done.err
    assert command("import", tmp_path / "b", tmp_path / "f.txt").code == 2
    assert pq.read_table(tmp_path / "f.parquet").num_rows == 1


def test_each_program_names_the_other_for_the_others_stores(
    tmp_path: Path,
    command: Command,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with rocketcompat.open(tmp_path / "log", "w", SMALL, background=False) as store:
        store.put_message(messages(1)[0])
    with tubestore.open(tmp_path / "shards") as shards:
        shards.create_topic("logs").append(b"here")
    assert "it is a tubestore store: use tubestore" in command("info", tmp_path / "shards").err
    assert (tmp_path / "log" / "index").exists()
    refused = run_command(tubestore_main, ("check", tmp_path / "log"), capsys, monkeypatch)
    assert refused.code == 3
    assert f"use rocketcompat; its shards are in {tmp_path}/log/tube" in refused.err


def test_neither_library_opens_a_store_of_the_other(tmp_path: Path) -> None:
    with rocketcompat.open(tmp_path / "log", "w", SMALL, background=False) as store:
        store.put_message(messages(1)[0])
    with tubestore.open(tmp_path / "shards") as shards:
        shards.create_topic("logs").append(b"here")
    before = digest(tmp_path)
    modes: tuple[Literal["w", "r"], ...] = ("w", "r")
    for mode in modes:
        with pytest.raises(NotAStore, match="this is a RocketMQ store: use rocketcompat"):
            tubestore.open(tmp_path / "log", mode)
        with pytest.raises(NotAStore, match="it is a tubestore store: use tubestore"):
            rocketcompat.open(tmp_path / "shards", mode)
    assert digest(tmp_path) == before


@pytest.mark.slow
@pytest.mark.interop
@pytest.mark.parametrize("version", ROCKET_VERSIONS)
def test_the_real_classes_open_a_copy_an_import_and_what_was_rebuilt(
    golden: GoldenFactory, command: Command, tmp_path: Path, version: str
) -> None:
    from bench.real.drivers import DriverUnavailable, RocketDriver, of_kind

    real = golden("rocketmq", version, "rolled")
    config = real.meta["config"]
    settings = {name: config[name] for name in SIZES}
    command("export", real.store, "--out", tmp_path / "f.parquet")
    command("convert", real.store, tmp_path / "copy", "--option=mappedFileSizeCommitLog=20000")
    command("import", tmp_path / "import", tmp_path / "f.parquet", "--offsets", "keep",
            *options_of(config))  # fmt: skip
    command("rebuild", real.store, "consumequeue", "index")
    wanted = sorted(
        (row["topic"], row["queueId"], row["index"], row["storeTimestamp"])
        for row in real.expected(type="message")
    )
    for root, file_size in ((tmp_path / "copy", 20_000), (tmp_path / "import", None),
                            (real.store, None)):  # fmt: skip
        own = settings | ({"mappedFileSizeCommitLog": file_size} if file_size else {})
        try:
            rows = RocketDriver(version).dump(root, settings=own)
        except DriverUnavailable as error:
            pytest.skip(str(error))
        seen = of_kind(rows, "message")
        found = [(r["topic"], r["queueId"], r["queueOffset"], r["storeTimestamp"]) for r in seen]
        assert sorted(found) == wanted
