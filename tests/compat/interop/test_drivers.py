"""The drivers see what the golden answers say is there, and fail in words.

This is the proof of the instrument. What it is for, our stores in the hands of the real classes and
back, is proved where those stores are made.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterable
from pathlib import Path

import pytest

from bench.real import toolchain
from bench.real.drivers import (
    DriverFailed,
    DriverUnavailable,
    RocketDriver,
    Row,
    TubeDriver,
    bytes_of,
    of_kind,
)
from tests.support.golden import TUBE_VERSION, Golden, GoldenFactory, golden_fixture

pytestmark = [pytest.mark.gate, pytest.mark.interop]

__all__ = ["golden_fixture"]

SMALL_FILES = {
    "mappedFileSizeCommitLog": 8192,
    "mappedFileSizeConsumeQueue": 1000,
    "maxHashSlotNum": 101,
    "maxIndexNum": 2000,
}

TUBE_ENTRY = {"indexOffset", "dataOffset", "size", "partitionId", "keyCode", "timeRecv"}
TUBE_RECORD = {"queueLogicOffset", "receivedTime", "reportAddr", "msgId", "flag", "checksum"}
ROCKET_PLACE = {"index", "topic", "queueId", "queueOffset", "physicalOffset", "storeSize", "msgId"}
ROCKET_ORIGIN = {"bornTimestamp", "storeTimestamp", "bornHost", "storeHost", "reconsumeTimes"}
ROCKET_CONTENT = {"magic", "flag", "sysFlag", "properties", "propertiesRaw", "bodyCRC", "body"}
ROCKET_FIELDS = ROCKET_PLACE | ROCKET_ORIGIN | ROCKET_CONTENT | {"preparedTransactionOffset"}


def pick(row: Row, names: Iterable[str]) -> Row:
    return {name: row[name] for name in names}


def fingerprint(root: Path) -> dict[str, str]:
    return {
        path.relative_to(root).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in root.rglob("*")
        if path.is_file()
    }


class TestTube:
    def test_reads_back_what_it_appended(self, tube: TubeDriver, tmp_path: Path) -> None:
        appended = of_kind(tube.append(tmp_path, "logs", 1, 25, partitions=4), "append")
        appended += of_kind(tube.append(tmp_path, "logs", 1, 5, partitions=4), "append")
        rows = tube.read(tmp_path)
        messages = sorted(of_kind(rows, "message"), key=lambda row: row["indexOffset"])
        names = TUBE_ENTRY | {"reportAddr", "msgId", "flag", "checksum", "payload"}
        assert [pick(row, names) for row in messages] == [pick(row, names) for row in appended]
        assert [row["indexOffset"] for row in messages] == list(range(0, 30 * 28, 28))
        assert {row["partitionId"] for row in messages} == {10000, 10001, 10002, 10003}
        assert bytes_of(messages[29], "payload") == b"interop message 29"
        assert all(row["crcOk"] for row in messages)
        assert not of_kind(rows, "unreturned")

    def test_without_close_loses_its_caches(self, tube: TubeDriver, tmp_path: Path) -> None:
        tube.append(tmp_path, "logs", 0, 10)
        tube.append(tmp_path, "logs", 0, 10, close=False)
        assert of_kind(tube.open(tmp_path, "logs"), "store")[0]["entries"] == 10

    @pytest.mark.parametrize("scenario", ["multistore", "rolled", "attributes", "large", "torn"])
    def test_sees_the_golden_messages(
        self, tube: TubeDriver, golden: GoldenFactory, scenario: str
    ) -> None:
        store = golden("tubemq", TUBE_VERSION, scenario)
        rows = tube.read(store.store)
        assert tube_ranges(rows) == tube_ranges(list(store.expected(kind="store")))
        assert [row for row in tube_sequences(rows) if row[-1]] == golden_sequences(store)
        expected = {
            (row["store"], row["indexOffset"]): row for row in store.expected(kind="message")
        }
        for row in of_kind(rows, "message"):
            wanted = expected[row["store"], row["indexOffset"]]
            record = wanted["record"]
            assert pick(row, TUBE_ENTRY) == pick(wanted, TUBE_ENTRY)
            assert pick(row, TUBE_RECORD | {"crcOk"}) == pick(record, TUBE_RECORD | {"crcOk"})
            assert row.get("payload") == record.get("payload") or not row["crcOk"]
            assert row.get("payloadSha256") == record.get("payloadSha256")
            if row.get("client"):
                assert row["client"]["attribute"] == wanted["client"]["attribute"]
                assert row["client"]["data"] == wanted["client"]["data"]

    def test_rates_of_the_real_classes_are_measured(self, tube: TubeDriver, tmp_path: Path) -> None:
        assert tube.bench_append(tmp_path, 1000, 10, 5)["flushedRate"] > 0
        row = tube.bench_read(tmp_path, "bench", 0, 5)
        assert (row["messages"], row["partitions"]) == (1000, 5)


def tube_ranges(rows: list[Row]) -> list[Row]:
    names = ("store", "topic", "storeId", "opened")
    places = ("indexMin", "indexMax", "dataMin", "dataMax")
    return [
        pick(row, (*names, *places) if row["opened"] else names) for row in of_kind(rows, "store")
    ]


def tube_sequences(rows: list[Row]) -> list[tuple[object, ...]]:
    """Return store, partition, where reading ended, and the message ids in order."""
    ids: dict[tuple[str, int], list[int]] = {}
    for row in of_kind(rows, "message"):
        ids.setdefault((row["store"], row["partitionId"]), []).append(row["msgId"])
    return [
        (
            row["store"],
            row["partitionId"],
            row["endOffset"],
            ids.get((row["store"], row["partitionId"]), []),
        )
        for row in of_kind(rows, "partition")
    ]


def golden_sequences(store: Golden) -> list[tuple[object, ...]]:
    return [
        (row["store"], row["partitionId"], row["endOffset"], row["msgIds"])
        for row in store.expected(kind="partition")
        if "filter" not in row and row["msgIds"]
    ]


class TestRocket:
    def test_finds_what_it_appended_after_a_crash(
        self, rocket: RocketDriver, tmp_path: Path
    ) -> None:
        rows = rocket.append(tmp_path, "orders", 4, 60, close=False, settings=SMALL_FILES)
        appended = of_kind(rows, "append")
        assert {row["status"] for row in appended} == {"PUT_OK"}
        assert (tmp_path / "abort").exists()
        one, every, none = of_kind(
            rocket.query(
                tmp_path, "orders", ["interop-7", "interop-all", "no"], settings=SMALL_FILES
            ),
            "query",
        )
        names = ("queueId", "queueOffset", "physicalOffset", "storeSize", "msgId", "flag", "body")
        assert [pick(row, names) for row in one["messages"]] == [pick(appended[7], names)]
        assert every["physicalOffsets"] == [row["physicalOffset"] for row in appended]
        assert none["messages"] == []

    @pytest.mark.parametrize(
        "scenario", ["keys-tags", pytest.param("stale-units", marks=pytest.mark.slow)]
    )
    def test_sees_the_golden_messages(
        self, rocket: RocketDriver, golden: GoldenFactory, scenario: str
    ) -> None:
        store = golden("rocketmq", rocket.version, scenario)
        before = fingerprint(store.store)
        rows = rocket.dump(store.store, settings=store.meta["config"])
        assert fingerprint(store.store) == before, "the driver was to work on a copy"
        names = ("topic", "queueId", "minOffset", "maxOffset")
        assert [pick(row, names) for row in of_kind(rows, "queue")] == [
            pick(row, names) for row in store.expected(type="queue")
        ]
        readable = [row for row in store.expected(type="message") if "physicalOffset" in row]
        messages = [row for row in of_kind(rows, "message") if "error" not in row]
        assert [pick(row, ROCKET_FIELDS) for row in messages] == [
            pick(row, ROCKET_FIELDS) for row in readable
        ]
        assert all(row["crcOk"] for row in messages)

    def test_a_refused_load_is_an_answer(self, rocket: RocketDriver, golden: GoldenFactory) -> None:
        store = golden("rocketmq", rocket.version, "cl-wrong-length")
        rows = rocket.load(store.store, settings=store.meta["config"])
        assert [row["result"] for row in of_kind(rows, "load")] == [False]

    @pytest.mark.slow
    @pytest.mark.parametrize("batch", [1, 100])
    def test_rates_of_the_real_classes_are_measured(
        self, rocket: RocketDriver, tmp_path: Path, batch: int
    ) -> None:
        row = rocket.put_bench(tmp_path, 5000, 100, topics=2, queues=2, batch=batch)
        assert (row["messages"], row["refused"], row["dispatched"]) == (5000, 0, True)
        assert row["rate"] >= row["dispatchedRate"] > 0


class TestFailure:
    def test_reports_what_java_said(self, tube: TubeDriver, tmp_path: Path) -> None:
        with pytest.raises(DriverFailed, match="no field maxSegmentSise"):
            tube.read(tmp_path, settings={"maxSegmentSise": 1})

    def test_watchdog_ends_the_machine_and_reports_where_it_was(
        self, tube: TubeDriver, tmp_path: Path
    ) -> None:
        with pytest.raises(DriverFailed, match=r"(?s)watchdog: .*TubeBench\.append"):
            tube.bench_append(tmp_path, 2_000_000_000, 1, 1, timeout=1)


class TestUnavailable:
    """Every reason to skip, on a machine that is made to lack one thing."""

    @pytest.fixture(autouse=True)
    def bare_machine(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
        tools = tmp_path / "bin"
        tools.mkdir()
        monkeypatch.setenv("PATH", str(tools))
        monkeypatch.delenv("JAVA_HOME", raising=False)
        monkeypatch.setenv("TUBESTORE_INTEROP_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(toolchain, "_prepared", {})
        return tools

    def tool(self, tools: Path, name: str, script: str) -> None:
        path = tools / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def test_a_missing_java_is_named(self) -> None:
        with pytest.raises(DriverUnavailable, match="no java"):
            TubeDriver()

    def test_a_java_that_is_too_old_is_named(self, bare_machine: Path) -> None:
        self.tool(bare_machine, "java", """echo 'openjdk version "1.8.0_392"' >&2""")
        with pytest.raises(DriverUnavailable, match="java is of version 8"):
            TubeDriver()

    def test_a_missing_maven_is_named(self, bare_machine: Path) -> None:
        self.tool(bare_machine, "java", """echo 'openjdk version "17.0.1"' >&2""")
        with pytest.raises(DriverUnavailable, match="no mvn"):
            RocketDriver("4.9.8")

    def test_a_maven_that_downloads_nothing_is_named(
        self, bare_machine: Path, tmp_path: Path
    ) -> None:
        self.tool(bare_machine, "java", """echo 'openjdk version "17.0.1"' >&2""")
        self.tool(bare_machine, "mvn", "echo '[ERROR] Could not transfer artifact'; exit 1")
        for _ in range(2):  # the second time from memory: Maven may take long to find out
            with pytest.raises(DriverUnavailable, match="Could not transfer artifact"):
                TubeDriver()
            (bare_machine / "mvn").unlink(missing_ok=True)
        assert os.listdir(tmp_path / "cache") == ["lock"]

    def test_a_missing_javac_is_named(self, bare_machine: Path) -> None:
        self.tool(bare_machine, "java", """echo 'openjdk version "17.0.1"' >&2""")
        make_a_jar = """for a; do case $a in -DoutputD*) : > "${a#*=}/a.jar";; esac; done"""
        self.tool(bare_machine, "mvn", make_a_jar)
        with pytest.raises(DriverUnavailable, match="no javac"):
            TubeDriver()
