"""Messages out and in again, copies in other forms, and the comparison of two stores."""

from __future__ import annotations

import base64
import json
import struct
import zlib
from pathlib import Path
from typing import Any, Literal

import pyarrow.parquet as pq
import pytest

import rocketcompat
import tubestore
from rocketcompat import Message, MessageStoreConfig
from rocketcompat.check.whole import check
from rocketcompat.commitlog.copy import LogWriter
from rocketcompat.inspect.diff import diff
from rocketcompat.inspect.directory import StoreDirectory
from rocketcompat.inspect.dump import dump_log
from rocketcompat.transfer.convert import copy_store, is_boltmq
from tests.rocketcompat.inspect.test_decode import BOLTMQ
from tests.rocketcompat.repair.test_rebuild import SMALL, messages
from tests.support.command import Command, run_command
from tests.support.golden import ROCKET_VERSIONS, GoldenFactory, golden_fixture  # noqa: F401
from tests.support.rocket.cli import command_fixture, digest  # noqa: F401
from tubestore.cli import main as tubestore_main
from tubestore.clock import ManualClock
from tubestore.core.vfs import OsVfs
from tubestore.errors import MessageTooLarge, NotAStore

SIZES = ("mappedFileSizeCommitLog", "mappedFileSizeConsumeQueue", "maxHashSlotNum", "maxIndexNum")


def options_of(config: dict[str, Any], **changed: Any) -> list[str]:
    found = {name: config[name] for name in SIZES} | changed
    return [f"--option={name}={value}" for name, value in found.items()]


def differences(left: Path, right: Path, **options: Any) -> list[dict[str, Any]]:
    return list(diff(StoreDirectory(left), StoreDirectory(right), **options))


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


@pytest.mark.one_in(5)
@pytest.mark.parametrize("version", ROCKET_VERSIONS)
@pytest.mark.parametrize("scenario", ["rolled", "odd", "ipv6", "propcrc"])
@pytest.mark.parametrize("file_size", [65_536, 20_000])
def test_a_copy_with_other_files_has_the_same_messages(
    golden: GoldenFactory, command: Command, tmp_path: Path, version: str, scenario: str,
    file_size: int,
) -> None:  # fmt: skip
    if scenario == "propcrc" and version == "4.9.8":
        pytest.skip("since 5.2")
    real = golden("rocketmq", version, scenario)
    copy = tmp_path / "copy"
    before = digest(real.store)
    done = command("convert", real.store, copy, f"--option=mappedFileSizeCommitLog={file_size}",
                   "-f", "jsonl")  # fmt: skip
    assert digest(real.store) == before
    if done.code == 2:
        assert "record" in done.err  # one that is longer than a file
        return
    assert done.rows[0]["left_out"] == 0
    ignored = ("properties",) if scenario == "propcrc" else ()  # its checksum is another
    assert differences(real.store, copy, ignore=ignored) == []
    assert {p.stat().st_size for p in (copy / "commitlog").iterdir()} == {file_size}
    assert {f["reason"] for f in check(copy)} <= {"checkpoint"}
    assert not (copy / ".tubestore" / "convert.json").exists()


def test_an_interrupted_copy_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with rocketcompat.open(tmp_path / "a", "w", SMALL, background=False) as store:
        for message in messages(120):
            store.put_message(message)
    monkeypatch.setattr("rocketcompat.transfer.convert.MARK_BYTES", 4000)
    source = StoreDirectory(tmp_path / "a")
    seen: list[int] = []

    def stop(done: int, total: int) -> None:
        seen.append(done)
        if done > total // 2:
            raise KeyboardInterrupt

    wanted = {"mappedFileSizeCommitLog": 3000}
    with pytest.raises(KeyboardInterrupt):
        copy_store(source, str(tmp_path / "b"), wanted, clock=ManualClock(), watch=stop)
    first = len(seen)

    def note(done: int, _total: int) -> None:
        seen.append(done)

    copied = copy_store(source, str(tmp_path / "b"), wanted, clock=ManualClock(), watch=note)
    assert copied["records"] == 120
    assert seen[first] > seen[0]
    assert differences(tmp_path / "a", tmp_path / "b") == []


def bolt_store(root: Path, count: int) -> None:
    """A BoltMQ log of two files, closed by its own blank."""
    size = len(BOLTMQ)
    per_file = 5
    file_size = per_file * size + 40
    (root / "commitlog").mkdir(parents=True)
    for first in range(0, count, per_file):
        base = first // per_file * file_size
        raw = b""
        for number in range(first, min(first + per_file, count)):
            record = bytearray(BOLTMQ)
            record[20:28] = struct.pack(">q", number)
            record[28:36] = struct.pack(">q", base + len(raw))
            body = b"hell%d" % (number % 10)
            record[88:93] = body
            record[8:12] = struct.pack(">I", zlib.crc32(body))  # of 32 bits
            raw += bytes(record)
        if len(raw) == per_file * size:
            raw += struct.pack(">ii", 40, -875286108)
        (root / "commitlog" / f"{base:020d}").write_bytes(raw.ljust(file_size, b"\0"))


def test_a_store_of_boltmq_becomes_one_of_rocketmq(tmp_path: Path, command: Command) -> None:
    bolt_store(tmp_path / "bolt", 13)
    assert is_boltmq(StoreDirectory(tmp_path / "bolt"))
    done = command("convert", tmp_path / "bolt", tmp_path / "rmq", "-f", "jsonl",
                   "--option=maxHashSlotNum=7", "--option=maxIndexNum=100",
                   "--option=mappedFileSizeConsumeQueue=200")  # fmt: skip
    assert done.rows[0] | {"bytes": 0} == {"records": 13, "bytes": 0, "left_out": 0}
    found = list(dump_log(StoreDirectory(tmp_path / "rmq")))
    assert [row["body"] for row in found] == [b"hell%d" % (n % 10) for n in range(13)]
    assert [row["queue_offset"] for row in found] == list(range(13))
    assert {f["reason"] for f in check(tmp_path / "rmq")} <= {"checkpoint"}
    (answer,) = command("query", tmp_path / "rmq", "-t", "T", "-k", "k1", "-f", "jsonl").rows
    assert len(answer["physical_offsets"]) == 13


def test_a_damaged_record_of_boltmq_is_left_out(tmp_path: Path) -> None:
    bolt_store(tmp_path / "bolt", 8)
    path = tmp_path / "bolt" / "commitlog" / ("0" * 20)
    raw = bytearray(path.read_bytes())
    raw[2 * len(BOLTMQ) + 89] ^= 1
    path.write_bytes(raw)
    wanted = {"maxHashSlotNum": 7, "maxIndexNum": 100, "mappedFileSizeConsumeQueue": 200}
    found = copy_store(StoreDirectory(tmp_path / "bolt"), str(tmp_path / "r"), wanted,
                       clock=ManualClock())  # fmt: skip
    assert (found["records"], found["left_out"]) == (7, 1)


def test_a_log_becomes_shards_and_a_log_again(tmp_path: Path, command: Command) -> None:
    with rocketcompat.open(
        tmp_path / "a", "w", SMALL, layouts={"consume_queue", "index"}, background=False
    ) as store:
        for message in messages(60):
            if message.sys_flag in (0, 8):
                store.put_message(message)
    before = digest(tmp_path / "a")
    done = command("convert", tmp_path / "a", tmp_path / "shards", "--to", "tubestore")
    assert (done.code, digest(tmp_path / "a")) == (0, before)
    with tubestore.open(tmp_path / "shards", mode="r") as shards:
        assert shards.topics() == ["topic0", "topic1", "topic2"]
    options = ["--option=mappedFileSizeCommitLog=4096", "--option=maxHashSlotNum=7",
               "--option=maxIndexNum=100", "--option=mappedFileSizeConsumeQueue=200"]  # fmt: skip
    done = command("convert", tmp_path / "shards", tmp_path / "b", "-f", "jsonl", *options)
    assert done.code == 0
    assert differences(tmp_path / "a", tmp_path / "b", ignore=["store_timestamp"]) == []
    assert command("convert", tmp_path / "a", tmp_path / "shards", "--to", "tubestore").code == 3


def test_a_copy_is_not_mixed_with_what_is_there(tmp_path: Path, command: Command) -> None:
    with rocketcompat.open(tmp_path / "log", "w", SMALL, background=False) as store:
        for message in messages(3):
            store.put_message(message)
    with tubestore.open(tmp_path / "shards") as shards:
        shards.create_topic("logs").append(b"here")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    sources, before = (tmp_path / "log", tmp_path / "shards"), digest(tmp_path)
    for source in sources:
        for target in (*sources, tmp_path / "other"):
            done = command("convert", source, target)
            assert (done.code, "holds something already" in done.err) == (3, True)
    assert digest(tmp_path) == before


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


def test_shards_of_tubemq_become_queues(tmp_path: Path, command: Command) -> None:
    with tubestore.open(tmp_path / "t") as store:
        logs = store.create_topic("logs", partitions=3)
        for number in range(9):
            logs.append(b"body %d" % number, partition=number % 3, filter_item=f"f{number % 2}")
    command("convert", tmp_path / "t", tmp_path / "r", "--option=mappedFileSizeCommitLog=4096",
            "--option=maxHashSlotNum=7", "--option=maxIndexNum=100")  # fmt: skip
    found = [(r["queue_id"], r["queue_offset"], r["properties"]["TAGS"], r["body"])
             for r in dump_log(StoreDirectory(tmp_path / "r"))]  # fmt: skip
    assert sorted(found) == sorted(
        (n % 3, n // 3, f"f{n % 2}", b"body %d" % n) for n in range(9)
    )  # fmt: skip


def test_diff_shows_what_differs_and_where(tmp_path: Path, command: Command) -> None:
    sent = {
        "a": [Message("T", b"%d" % n, tags="t", born_timestamp=5) for n in range(5)],
        "b": [Message("T", b"%d" % n if n != 2 else b"two", tags="t" if n != 3 else "u",
                      born_timestamp=5) for n in range(6)],
    }  # fmt: skip
    for name, every in sent.items():
        clock = ManualClock()
        with rocketcompat.open(
            tmp_path / name, "w", SMALL, layouts={"consume_queue"}, clock=clock, background=False
        ) as store:
            for message in every:
                store.put_message(message)
    done = command("diff", tmp_path / "a", tmp_path / "b", "-f", "jsonl")
    assert done.code == 1
    shown = [(row["queue_offset"], row["state"], row["fields"]) for row in done.rows]
    assert shown == [
        (2, "different", "body_crc body"), (3, "different", "properties"), (5, "right", None)
    ]  # fmt: skip
    done = command("diff", tmp_path / "b", tmp_path / "a", "-f", "jsonl", "--ignore", "properties",
                   "-n", 1)  # fmt: skip
    assert (done.code, len(done.rows), json.loads(done.err)["truncated"]) == (1, 1, True)
    assert command("diff", tmp_path / "a", tmp_path / "a").code == 0


def test_the_log_is_filled_by_the_rule_of_eight_bytes(tmp_path: Path) -> None:
    with rocketcompat.open(tmp_path / "a", "w", SMALL, layouts=set(), background=False) as store:
        for size in (100, 200, 300):
            store.put_message(Message("T", bytes(size)))
    (piece,) = StoreDirectory(tmp_path / "a").scan_log()
    sizes = piece.column("total_size").astype("int64")  # type: ignore[union-attr]
    for room in range(int(sizes.sum()), int(sizes.sum()) + 20):
        root = str(tmp_path / f"b{room}")
        writer = LogWriter(OsVfs(), root, room)
        places = writer.append(piece.data, piece.starts, sizes)  # type: ignore[union-attr]
        writer.close()
        assert len(set((places // room).tolist())) == (1 if room >= sizes.sum() + 8 else 2)
        found = list(dump_log(StoreDirectory(root)))
        assert [row["physical_offset"] for row in found] == places.tolist()
        with pytest.raises(NotAStore):
            LogWriter(OsVfs(), root, room)
    small = LogWriter(OsVfs(), str(tmp_path / "c"), 300)
    with pytest.raises(MessageTooLarge):
        small.append(piece.data, piece.starts, sizes)  # type: ignore[union-attr]


def test_clean_reports_why_each_file_stays_or_goes(tmp_path: Path, command: Command) -> None:
    import os
    import time

    config = MessageStoreConfig(mapped_file_size_commit_log=4096, max_hash_slot_num=7,
                                max_index_num=1000, mapped_file_size_consume_queue=200)  # fmt: skip
    with rocketcompat.open(tmp_path, "w", config, background=False) as store:
        for _ in range(12):
            store.put_message(Message("T", bytes(1500)))
    files = sorted((tmp_path / "commitlog").iterdir())
    old = time.time() - 100 * 3600
    for path in files[:2]:
        os.utime(path, (old, old))
    before = digest(tmp_path)
    rows = command("clean", tmp_path, "--manual", "-f", "jsonl").rows
    assert digest(tmp_path) == before
    assert [row["delete"] for row in rows] == [True, True, *[False] * (len(files) - 2)]
    assert rows[-1]["reason"] == "the last file is never deleted"
    assert command("clean", tmp_path, "--manual", "--apply", "-f", "jsonl").code == 0
    assert sorted((tmp_path / "commitlog").iterdir()) == files[2:]
    assert {f["reason"] for f in check(tmp_path)} <= {"checkpoint"}


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
