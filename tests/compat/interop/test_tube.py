"""The real TubeMQ classes open what we wrote, append, and we read on; skipped without Java."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tubestore
from bench.real.drivers import Row, TubeDriver, bytes_of, of_kind
from tests.compat.interop.conftest import tube as tube
from tests.support import REPOSITORY
from tests.support.golden import TUBE_VERSION, GoldenFactory
from tests.support.tube import open_shard, scanned
from tubestore.core.vfs import OsVfs
from tubestore.offline.dump import dump
from tubestore.offline.repair import repair
from tubestore.options import StoreOptions
from tubestore.staging.writer import StagedWriter

pytestmark = [pytest.mark.gate, pytest.mark.interop]

ROOT = REPOSITORY
COLUMNS = ["store_id", "offset", "partition", "key_code", "received_time_ms", "msg_id", "flag"]
COLUMNS += ["report_address", "filter_item", "attributes", "body", "state"]


def ours(root: Path) -> dict[tuple[str, int], dict[str, Any]]:
    """Every message as we read it, checksums compared, by shard and offset."""
    found = {}
    with tubestore.open(root, mode="r", on_damage="raise") as store:
        for name in store.topics():
            for row in store[name].scan(columns=COLUMNS, verify=True).read_all().to_pylist():
                found[f"{name}-{row['store_id']}", row["offset"]] = row
    return found


def theirs(rows: list[Row], first: int = 0) -> dict[tuple[str, int], Row]:
    """Every message as the real classes return it; none from `first` on may be passed over."""
    assert all(row["opened"] for row in of_kind(rows, "store"))
    assert [row for row in of_kind(rows, "unreturned") if row["indexOffset"] >= first] == []
    assert {row["end"] for row in of_kind(rows, "partition")} <= {"404"}
    return {(row["store"], row["indexOffset"]): row for row in of_kind(rows, "message")}


def compare(root: Path, tube: TubeDriver, first: int = 0) -> int:
    """Compare field by field; returns how many messages there are."""
    one, other = ours(root), theirs(tube.read(root), first)
    assert one.keys() == other.keys()
    for place, mine in one.items():
        real = other[place]
        assert real["crcOk"]
        assert real["queueLogicOffset"] == mine["offset"]
        assert real["partitionId"] == mine["partition"]
        assert real["keyCode"] == mine["key_code"]
        assert real["timeRecv"] == real["receivedTime"] == mine["received_time_ms"]
        assert real["msgId"] == mine["msg_id"]
        assert real["flag"] == mine["flag"]
        assert real["reportAddr"] == mine["report_address"]
        if mine["flag"] & 1:
            client = real["client"]
            assert bytes_of(client, "data") == mine["body"]
            assert client["msgType"] == mine["filter_item"]
            assert client["attribute"] == ",".join(f"{k}={v}" for k, v in mine["attributes"])
        elif "payload" in real:
            assert bytes_of(real, "payload") == mine["body"]
        else:
            assert real["payloadSha256"] == hashlib.sha256(mine["body"]).hexdigest()
    return len(one)


def test_the_real_class_returns_everything_from_rolled_files_of_several_stores(
    tube: TubeDriver, tmp_path: Path
) -> None:
    small = {"segment_size_bytes": 2048, "index_segment_size_bytes": 20 * 28}
    with tubestore.open(tmp_path, mem_store_messages=16, **small) as store:
        logs = store.create_topic("logs", partitions=5, stores=3)
        for number in range(100):
            logs.append(b"single %d" % number, sender=f"10.0.0.{number}")
        logs.append_batch({"body": [b"batch %d" % n for n in range(300)]}, durability="memory")
        store.create_topic("other").append(b"\0" * 1_058_816)
    assert len(list(tmp_path.glob("logs-0/*.tube"))) > 2
    assert len(list(tmp_path.glob("logs-0/index/*.index"))) > 2
    assert compare(tmp_path, tube) == 401


def test_the_real_class_decodes_our_attributes(tube: TubeDriver, tmp_path: Path) -> None:
    with tubestore.open(tmp_path) as store:
        logs = store.create_topic("logs", partitions=2)
        logs.append(b"plain")
        logs.append(b"item", filter_item=" tid1 ")
        logs.append(b"both", filter_item="\u6d41", attributes={"\u00e9": "\U0001f600", "k": "v w"})
        logs.append(b"only", attributes={"k": "v"})
        logs.append_batch(
            {"body": [b"a", b"b"], "filter_item": ["x", None], "received_time_ms": [1, 2]}
        )
    assert compare(tmp_path, tube) == 6


def test_writers_may_take_turns(tube: TubeDriver, tmp_path: Path) -> None:
    settings = {"maxSegmentSize": 1500, "maxIndexSegmentSize": 15 * 28}
    expected = 0
    for turn in range(3):
        with tubestore.open(
            tmp_path, segment_size_bytes=1500, index_segment_size_bytes=15 * 28
        ) as store:
            logs = store.create_topic("logs", partitions=4, exist_ok=True)
            for number in range(20):
                logs.append(b"ours %d %d" % (turn, number))
            assert store.problems == []
        expected += 20
        assert compare(tmp_path, tube) == expected
        appended = tube.append(tmp_path, "logs", 0, 30, partitions=4, settings=settings)
        expected += 30
        assert len(of_kind(appended, "append")) == 30
        assert compare(tmp_path, tube) == expected
    with tubestore.open(tmp_path) as store:
        for _ in store["logs"].messages(0):
            pass
        assert store.problems == []


def test_we_read_on_after_the_real_class_was_killed(tube: TubeDriver, tmp_path: Path) -> None:
    with tubestore.open(tmp_path) as store:
        store.create_topic("logs", partitions=4).append_batch({"body": [b"x"] * 50})
    tube.append(tmp_path, "logs", 0, 30, partitions=4, close=False)
    with tubestore.open(tmp_path) as store:
        logs = store["logs"]
        count = logs.scan().read_all().num_rows
        assert count >= 50  # what was in its caches is lost
        logs.append(b"after")
        assert store.problems == []
    assert compare(tmp_path, tube) == count + 1


CHILD = """
import sys, tubestore
store = tubestore.open(sys.argv[1], durability="page_cache", mem_store_messages=40,
                       segment_size_bytes=3000, index_segment_size_bytes=30 * 28)
logs = store.create_topic("logs", partitions=4, stores=2)
number = 0
while True:
    acks = [logs.append(b"%06d" % number, filter_item="even" if number % 2 == 0 else None)]
    acks += logs.append_batch({"body": [b"%06d" % n for n in range(number + 1, number + 40)]})
    for place, ack in enumerate(acks):
        print(ack.partition, ack.offset, number + place)
    print("acked", flush=True)
    number += 40
"""


@pytest.mark.crash
def test_the_real_class_returns_all_that_was_acknowledged_before_a_kill(
    tube: TubeDriver, tmp_path: Path
) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(tmp_path / "s")], stdout=subprocess.PIPE, cwd=ROOT
    )
    assert child.stdout is not None
    acked: list[tuple[int, int, bytes]] = []
    batch: list[tuple[int, int, bytes]] = []
    with child.stdout:
        for line in child.stdout:
            if line == b"acked\n":
                acked += batch
                batch = []
                if len(acked) >= 400:
                    break
            else:
                partition, offset, number = map(int, line.split())
                batch.append((partition, offset, b"%06d" % number))
        child.kill()
    child.wait()

    before = theirs(tube.read(tmp_path / "s"))  # as the kill left it
    with tubestore.open(tmp_path / "s") as store:
        assert store.problems == []
        logs = store["logs"]
        for partition, offset, body in acked:
            message = logs.message_at(partition, offset)
            assert message is not None
            assert message.body == body
        logs.append(b"after", partition=0)
    assert compare(tmp_path / "s", tube) > len(acked)
    after = theirs(tube.read(tmp_path / "s"))
    for partition, offset, _ in acked:
        place = f"logs-{partition // 10_000}", offset
        assert before[place]["msgId"] == after[place]["msgId"]


DAMAGED = ["datacut7-0", "indexgone-0", "indexcut5-0", "payloadbit-0", "tokenbad-0", "lengthbad-0"]
DAMAGED += [
    "lengthsmall-0",
    "headerother-0",
    "entryzero-0",
    "entrysize-0",
    "index13-0",
    "bothtorn-0",
]
DAMAGED += ["innerzero-0", "indexnegative-0", "datajunk-0"]


def test_the_real_class_returns_every_good_message_of_what_we_recovered(
    tube: TubeDriver, golden: GoldenFactory
) -> None:
    torn = golden("tubemq", TUBE_VERSION, "torn")
    expected = {}
    for name in DAMAGED:
        shard = open_shard(OsVfs(), str(torn.store / name))
        for row in scanned(shard.view(), verify=True):
            if row["state"] == "ok":
                expected[name, row["offset"]] = row
        shard.close()
    topics = [name.removesuffix("-0") for name in DAMAGED]
    rows = tube.read(torn.store, *topics)
    returned = {(r["store"], r["indexOffset"]): r for r in of_kind(rows, "message")}
    assert expected.keys() <= returned.keys()
    for place, row in expected.items():
        assert bytes_of(returned[place], "payload").endswith(row["body"])
    bad = {place for place, row in returned.items() if not row["crcOk"]}
    assert bad.isdisjoint(expected)


@pytest.mark.parametrize("behind", [False, True], ids=["renamed", "behind live files"])
def test_the_real_class_returns_what_was_published_and_goes_on_behind_it(
    tube: TubeDriver, tmp_path: Path, behind: bool
) -> None:
    sizes = {"segment_size_bytes": 2000, "index_segment_size_bytes": 20 * 28}
    small = StoreOptions(**sizes)
    with tubestore.open(tmp_path, **({} if behind else sizes)) as store:
        store.create_topic("logs", partitions=4, stores=2)
        for turn in range(2):
            store["logs"].append(b"before %d" % turn, partition=1, filter_item="tid1")
            staged = []
            for task in range(2):
                with StagedWriter(tmp_path, f"load:{turn}", str(task), options=small) as writer:
                    for number in range(10):
                        rows = [b"job %d task %d %d" % (turn, task, number)] * 8
                        writer.write(
                            {
                                "topic": ["logs"] * 8,
                                "partition": [0, 1, 2, 3, 10_000, 10_001, 10_002, 10_003],
                                "filter_item": ["x", None, "y", "x", None, None, "\u6d41", "z"],
                                "body": rows,
                            }
                        )
                    staged += writer.finish()
            store.publish(f"load:{turn}", staged)
    files = len(list(tmp_path.glob("logs-0/*.tube")))
    assert files == 1 if behind else files > 6
    assert compare(tmp_path, tube) == 2 * (1 + 160)
    appended = tube.append(tmp_path, "logs", 0, 10, partitions=4)
    assert len(of_kind(appended, "append")) == 10
    assert compare(tmp_path, tube) == 2 * (1 + 160) + 10
    with tubestore.open(tmp_path) as store:
        with StagedWriter(tmp_path, "load:2", "0") as writer:
            writer.write({"topic": ["logs"], "partition": [3], "body": [b"last"]})
            store.publish("load:2", writer.finish())
        assert store.problems == []
    assert compare(tmp_path, tube) == 2 * (1 + 160) + 11


def test_the_real_class_returns_what_retention_left_and_goes_on_behind_it(
    tube: TubeDriver, tmp_path: Path
) -> None:
    """Both streams begin above 0, the index with entries whose data is gone."""
    small = {"segment_size_bytes": 2000, "index_segment_size_bytes": 15 * 28}
    with tubestore.open(tmp_path, **small) as store:
        for name in ("some", "all"):
            topic = store.create_topic(name, partitions=4)
            for number in range(200):
                body = b"%s %d" % (name.encode(), number)
                topic.append(body, received_time=1_700_000_000_000 + number)
                topic.flush()  # as a file ends with a flush
        store["some"].retain(max_bytes=9000)
        first = store["some"].partitions().column("first")[0].as_py()
        oldest = int(min((tmp_path / "some-0" / "index").iterdir()).stem)
        assert oldest < first, "the first index file has no entry of what is gone"
        left = store.describe_topic("some").shards[0].messages
        assert 50 < left < 150
        store["all"].retain(max_age="1d")
        assert store.describe_topic("all").shards[0].messages == 0
    assert (tmp_path / "some-0" / ".tubestore" / "trash").is_dir()
    rows = {place for place in ours(tmp_path) if place[0] == "some-0"}
    assert len(rows) == left
    assert compare(tmp_path, tube, first) == len(ours(tmp_path))
    for name in ("some", "all"):
        appended = tube.append(tmp_path, name, 0, 10, partitions=4)
        assert len(of_kind(appended, "append")) == 10
    before = len(ours(tmp_path))
    assert compare(tmp_path, tube, first) == before
    with tubestore.open(tmp_path, **small) as store:
        store["some"].append(b"behind the real one's")
        assert store.problems == []
    assert compare(tmp_path, tube, first) == before + 1


def test_the_real_class_opens_every_store_that_we_repaired_and_returns_what_is_good(
    tube: TubeDriver, golden: GoldenFactory
) -> None:
    torn = golden("tubemq", TUBE_VERSION, "torn")
    list(repair(torn.store, apply=True))
    columns = ["topic", "store_id", "index_offset", "state"]
    expected = {
        (f"{row['topic']}-{row['store_id']}", row["index_offset"])
        for batch in dump(torn.store)
        for row in batch.select(columns).to_pylist()
        if row["state"] in ("ok", "entry_differs")
    }
    rows = tube.read(torn.store)
    assert all(row["opened"] for row in of_kind(rows, "store"))
    assert {row["end"] for row in of_kind(rows, "partition")} <= {"404"}
    good = {(r["store"], r["indexOffset"]) for r in of_kind(rows, "message") if r["crcOk"]}
    assert len(of_kind(rows, "store")) == 40
    assert expected == good


def test_the_real_class_reads_and_goes_on_with_files_that_were_merged(
    tube: TubeDriver, tmp_path: Path
) -> None:
    small = {"segment_size_bytes": 600, "index_segment_size_bytes": 4 * 28}
    with tubestore.open(tmp_path, **small) as store:
        logs = store.create_topic("logs", partitions=4)
        for number in range(60):
            logs.append(b"ours %d" % number, filter_item="x" if number % 3 else None)
            logs.flush()
    settings = {"maxSegmentSize": 600, "maxIndexSegmentSize": 4 * 28}
    tube.append(tmp_path, "logs", 0, 60, partitions=4, settings=settings)
    before = len(list(tmp_path.glob("logs-0/**/0*")))
    with tubestore.open(tmp_path) as store:
        assert {row.verdict for row in store.compact()} == {"merged"}
        store.empty_trash(grace=0)
    assert len(list(tmp_path.glob("logs-0/**/0*"))) < before / 4
    assert compare(tmp_path, tube) == 120
    tube.append(tmp_path, "logs", 0, 30, partitions=4)
    assert compare(tmp_path, tube) == 150
