"""A store copied into another form: other sizes, BoltMQ's, shards and back."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import pytest

import rocketcompat
import tubestore
from rocketcompat.check.whole import check
from rocketcompat.inspect.directory import StoreDirectory
from rocketcompat.inspect.dump import dump_log
from rocketcompat.transfer.convert import WATCHED_ROWS, copy_store, from_tubestore, is_boltmq
from tests.rocketcompat.inspect.test_decode import BOLTMQ
from tests.rocketcompat.repair.test_rebuild import SMALL, messages
from tests.support.command import Command
from tests.support.golden import ROCKET_VERSIONS, GoldenFactory
from tests.support.golden import golden_fixture as golden_fixture
from tests.support.rocket.cli import command_fixture as command_fixture
from tests.support.rocket.cli import digest
from tests.support.rocket.files.exchanged import differences
from tubestore.clock import ManualClock


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


def test_messages_are_counted_while_shards_become_queues(tmp_path: Path) -> None:
    count = 2 * WATCHED_ROWS + 3
    with tubestore.open(tmp_path / "t") as store:
        store.create_topic("logs").append_batch({"body": [b"body"] * count})
    calls: list[tuple[int, int]] = []
    from_tubestore(
        str(tmp_path / "t"), str(tmp_path / "r"), {"mappedFileSizeCommitLog": 1 << 20},
        watch=lambda done, total: calls.append((done, total)),
    )  # fmt: skip
    assert calls == [(WATCHED_ROWS, count), (2 * WATCHED_ROWS, count), (count, count)]


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
