"""`dump` with conditions: range, time, topic, queue, tag, key, body; in every format."""

from __future__ import annotations

import base64
import csv
import functools
import io
import json
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import rocketcompat
from rocketcompat import Message, MessageStoreConfig
from rocketcompat.commitlog.walk import Gap
from rocketcompat.inspect.directory import StoreDirectory
from rocketcompat.inspect.dump import dump_log, dump_tables, rows_of
from rocketcompat.inspect.selection import Selection
from rocketcompat.record.compression import unpack_bodies, unpack_body
from rocketcompat.record.message_table import table_of
from tests.support.command import Command
from tests.support.golden import (
    ROCKET_VERSIONS,
    Golden,
    GoldenFactory,
    golden_fixture,  # noqa: F401
    rocket_scenarios,
)
from tests.support.rocket.cli import command_fixture  # noqa: F401
from tubestore.errors import InvalidMessage

SMALL = MessageStoreConfig(
    mapped_file_size_commit_log=4096, mapped_file_size_consume_queue=200, max_hash_slot_num=7,
    max_index_num=100,
)  # fmt: skip


def put(root: Path, messages: list[Message]) -> list[int]:
    """Write a store; returns the messages' places in the log."""
    options: Any = {"config": SMALL, "layouts": {"consume_queue", "index"}, "background": False}
    with rocketcompat.open(root, "w", **options) as store:
        return [store.put_message(message).physical_offset for message in messages]


@pytest.fixture(name="real", scope="module")
def real_fixture(tmp_path_factory: pytest.TempPathFactory) -> Golden:
    from tests.support.golden import unpack

    return unpack("rocketmq", "4.9.8", "keys-tags", tmp_path_factory.mktemp("keys-tags"))


def rows(real: Golden, **conditions: Any) -> list[dict[str, Any]]:
    return list(dump_log(StoreDirectory(real.store), Selection(**conditions)))


@pytest.mark.parametrize(
    ("conditions", "fits"),
    [
        ({"topic": "KeyTopic"}, lambda m: m["topic"] == "KeyTopic"),
        ({"topic": "nope"}, lambda _: False),
        ({"queue_id": 1}, lambda m: m["queueId"] == 1),
        ({"start": 5000}, lambda m: m["physicalOffset"] >= 5000),
        ({"end": 5000}, lambda m: m["physicalOffset"] < 5000),
        ({"begin": 1795253043600}, lambda m: m["storeTimestamp"] >= 1795253043600),
        ({"before": 1795253043600}, lambda m: m["storeTimestamp"] < 1795253043600),
        ({"tags": "TagA"}, lambda m: m["properties"].get("TAGS") == "TagA"),
        ({"tags": "TagA || BB"}, lambda m: m["properties"].get("TAGS") in ("TagA", "BB")),
        ({"tags": "*"}, lambda _: True),
        ({"key": "U7"}, lambda m: m["properties"].get("UNIQ_KEY") == "U7"),
        ({"key": "Aa"}, lambda m: "Aa" in m["properties"].get("KEYS", "").split()),
        ({"pattern": "combo"}, lambda m: b"combo" in base64.b64decode(m["body"])),
        ({"pattern": "(?i)COMBO", "queue_id": 0},
         lambda m: b"combo" in base64.b64decode(m["body"]).lower() and m["queueId"] == 0),
    ],
)  # fmt: skip
def test_what_is_chosen_is_what_the_real_messages_contain(
    real: Golden, conditions: dict[str, Any], fits: Any
) -> None:
    expected = [m for m in real.expected(type="message") if fits(m)]
    found = sorted(rows(real, **conditions), key=lambda row: row["physical_offset"])
    assert [row["physical_offset"] for row in found] == sorted(
        m["physicalOffset"] for m in expected
    )
    assert len(expected) < len(rows(real)) or set(conditions) <= {"tags", "topic"}


def test_two_keys_of_one_hash_are_distinguished(tmp_path: Path) -> None:
    """ "Aa" and "BB" have one Java hash; the real store's query returns both."""
    places = put(tmp_path, [Message("T", b"x", keys=[key]) for key in ("Aa", "BB", "AaAa", "C")])
    places += put(tmp_path, [Message("T", b"x", keys=["c", "Aa"])])
    directory = StoreDirectory(tmp_path)
    for key, wanted in (("Aa", [places[0], places[4]]), ("BB", [places[1]]), ("D", [])):
        found = dump_log(directory, Selection(key=key))
        assert [row["physical_offset"] for row in found] == wanted


def test_a_wrong_expression_is_refused_before_anything_is_read() -> None:
    with pytest.raises(InvalidMessage, match="missing"):
        Selection(pattern="a(b")


@pytest.mark.gate
def test_a_scan_may_begin_anywhere(real: Golden) -> None:
    everything = rows(real)
    for start in range(0, everything[-1]["physical_offset"] + 10, 97):
        assert rows(real, start=start) == [
            row for row in everything if row["physical_offset"] >= start
        ]


def test_a_scan_that_begins_in_damage_reports_it(golden: GoldenFactory) -> None:
    real = golden("rocketmq", "4.9.8", "flip-body-middle")
    (region,) = [row for row in rows(real) if row["state"] == "damaged"]
    for start in (region["physical_offset"], region["physical_offset"] + 5):
        assert rows(real, start=start)[0] == region
    behind = region["physical_offset"] + region["store_size"]
    assert rows(real, start=behind)[0]["physical_offset"] == behind


def test_files_before_a_time_are_not_read(tmp_path: Path) -> None:
    from tubestore.clock import ManualClock

    clock = ManualClock()
    with rocketcompat.open(
        tmp_path, "w", SMALL, layouts=set(), background=False, clock=clock
    ) as store:
        for number in range(60):
            store.put_message(Message("T", b"x" * 500, queue_id=number % 2))
            clock.advance(600_000)
    directory = StoreDirectory(tmp_path)
    times = [row["store_timestamp"] for row in dump_log(directory)]
    assert len(directory.log.files) > 5
    read: list[int] = []
    inner = directory.log.files[0].__class__.read
    since = times[-3]

    def counted(self: Any, position: int, size: int) -> bytes:
        if size > 200:
            read.append(self.file_from_offset)
        return inner(self, position, size)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(directory.log.files[0].__class__, "read", counted)
        found = list(dump_log(directory, Selection(begin=since)))
    assert [row["store_timestamp"] for row in found] == times[-3:]
    assert 0 not in read


@pytest.mark.parametrize("version", ROCKET_VERSIONS)
def test_a_table_holds_what_the_rows_hold(golden: GoldenFactory, version: str) -> None:
    compared = 0
    for scenario in ("odd", "ipv6", "batch", "transactions", "compressed", "large", "lmq"):
        for piece in StoreDirectory(golden("rocketmq", version, scenario).store).scan_log():
            if not isinstance(piece, Gap):
                table = table_of(piece)
                table.validate(full=True)
                assert table.to_pylist(maps_as_pydicts="strict") == list(rows_of(piece))
                compared += len(piece)
    assert compared > 100
    assert "v2-topics" in rocket_scenarios("5.3.3")


def test_repeated_and_broken_properties_are_read_as_the_parser_reads_them(tmp_path: Path) -> None:
    texts = [
        "a\x01x\x02a\x01y\x02", "a\x01\x02\x01b\x02c\x01d", "none", "", "k\x01v\x01w",
        "\x02".join(f"n{i % 40}\x01{i}" for i in range(60)),
    ]  # fmt: skip
    put(tmp_path, [Message("T", b"b", properties=text) for text in texts])
    (piece,) = StoreDirectory(tmp_path).scan_log()
    assert not isinstance(piece, Gap)
    by_row = [row["properties"] for row in rows_of(piece)]
    assert table_of(piece)["properties"].to_pylist(maps_as_pydicts="strict") == by_row
    assert by_row[:5] == [{"a": "y"}, {"c": "d"}, {}, {}, {"k": "v\x01w"}]


@pytest.mark.parametrize("version", ROCKET_VERSIONS)
def test_compressed_bodies_are_unpacked_when_asked(
    golden: GoldenFactory, command: Command, version: str
) -> None:
    real = golden("rocketmq", version, "compressed")
    stored = command("dump", real.store, "-f", "jsonl").rows
    unpacked = command("dump", real.store, "-f", "jsonl", "--decompress").rows
    packed = 0
    for before, after in zip(stored, unpacked, strict=True):
        body = base64.b64decode(before["body"])
        wanted = unpack_body(body, before["sys_flag"])
        if wanted is None:
            assert after == before | {"state": "still-compressed"}
            continue
        assert after == before | {"body": base64.b64encode(wanted).decode()}
        packed += before["sys_flag"] & 1
    assert packed > 2


def test_a_body_that_contradicts_its_flag_stays_as_it_is(tmp_path: Path, command: Command) -> None:
    flags = [0x1, 0x101, 0x201, 0x301, 0x0]
    bodies = [zlib.compress(b"hello") if flag == 0x301 else b"no archive" for flag in flags]
    messages = [Message("T", b, sys_flag=f) for b, f in zip(bodies, flags, strict=True)]
    put(tmp_path, messages)
    found = command("dump", tmp_path, "-f", "jsonl", "--decompress").rows
    states = ["still-compressed"] * 3 + ["ok"] * 2
    assert [row["state"] for row in found] == states
    assert base64.b64decode(found[3]["body"]) == b"hello"
    assert base64.b64decode(found[0]["body"]) == b"no archive"


def test_a_body_that_would_fill_the_memory_is_left_as_it_is() -> None:
    bomb = zlib.compress(bytes(100_000))
    assert unpack_body(bomb, 1, size_max=99_999) is None
    assert unpack_body(bomb, 1, size_max=100_000) == bytes(100_000)
    framed = pa.compress(bytes(100_000), "zstd", asbytes=True)
    assert unpack_body(framed, 0x201, size_max=99_999) is None


def test_unpacked_bodies_are_in_memory_a_run_at_a_time() -> None:
    texts = [b"%d" % n * 1000 for n in range(10)]
    stored = [zlib.compress(text) if n % 3 else text for n, text in enumerate(texts)]
    stored[4] = b"no archive"
    bodies = pa.array(stored, pa.large_binary())
    flags = np.array([int(n % 3 > 0) for n in range(10)])
    runs = list(unpack_bodies(bodies, flags, run_bytes=2500))
    assert [(rows.start, rows.stop) for rows, _, _ in runs] == [(0, 5), (5, 8), (8, 10)]
    for rows, unpacked, failed in runs:
        expected = [b"no archive" if n == 4 else texts[n] for n in range(10)[rows]]
        assert unpacked.to_pylist() == expected
        assert failed.tolist() == [n == 4 for n in range(10)[rows]]
    alone = [rows.start for rows, _, _ in unpack_bodies(bodies, flags, run_bytes=1)]
    assert alone == [0, 2, 4, 5, 7, 8]  # one that is larger than a run is one by itself


def test_dumping_and_searching_take_a_run_of_unpacked_bodies_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [b"%d needle" % n * 100 for n in range(6)]
    put(tmp_path, [Message("T", zlib.compress(text), sys_flag=1) for text in texts])
    directory, wanted = StoreDirectory(tmp_path), Selection(unpack=True, pattern="[1-4] needle")
    whole = list(dump_log(directory, wanted))
    assert [row["body"] for row in whole] == texts[1:5]
    assert len(list(dump_tables(directory, wanted))) == 1
    by_one = functools.partial(unpack_bodies, run_bytes=1)
    monkeypatch.setattr("rocketcompat.inspect.dump.unpack_bodies", by_one)
    monkeypatch.setattr("rocketcompat.inspect.selection.unpack_bodies", by_one)
    assert list(dump_log(directory, wanted)) == whole
    tables = list(dump_tables(directory, wanted))
    assert [table["body"].to_pylist() for table in tables] == [[text] for text in texts[1:5]]


def test_a_search_looks_into_unpacked_bodies(tmp_path: Path, command: Command) -> None:
    places = put(tmp_path, [
        Message("T", zlib.compress(b"a needle in hay" * 9), sys_flag=1), Message("T", b"hay"),
    ])  # fmt: skip
    assert command("dump", tmp_path, "-f", "jsonl", "--grep", "need.e").rows == []
    (row,) = command("dump", tmp_path, "-f", "jsonl", "--grep", "need.e", "--decompress").rows
    assert row["physical_offset"] == places[0]


@pytest.mark.gate
@pytest.mark.parametrize("format", ["jsonl", "csv", "arrow", "parquet"])
def test_every_format_has_the_same_messages(real: Golden, tmp_path: Path, format: str) -> None:
    wanted = rows(real, tags="TagA")
    path = tmp_path / "out"
    arguments = ["dump", real.store, "--tags", "TagA", "-f", format, "--limit", "5"]
    with path.open("wb") as file:
        done = subprocess.run(
            [sys.executable, "-m", "rocketcompat", *map(str, arguments)],
            stdout=file, stderr=subprocess.PIPE, check=True,
        )  # fmt: skip
    said = json.loads(done.stderr)
    assert said["truncated"]
    assert said["next"] == {"physical_offset": wanted[5]["physical_offset"]}
    if format == "jsonl":
        found = [json.loads(line)["physical_offset"] for line in path.read_text().splitlines()]
    elif format == "csv":
        table = csv.DictReader(io.StringIO(path.read_text()))
        found = [int(row["physical_offset"]) for row in table]
    elif format == "arrow":
        with pa.OSFile(str(path)) as source:
            found = pa.ipc.open_stream(source).read_all()["physical_offset"].to_pylist()
    else:
        found = pq.read_table(path)["physical_offset"].to_pylist()
    assert found == [row["physical_offset"] for row in wanted[:5]]


def test_a_listing_reports_how_many_records_it_read(
    real: Golden, command: Command, tmp_path: Path
) -> None:
    """apache/rocketmq-dashboard#4646: the first 200 rows looked like all there are."""
    summary = tmp_path / "summary.json"
    every = [row["physical_offset"] for row in rows(real)]
    hits = command("dump", real.store, "-f", "jsonl", "--key", "U7", "--summary", summary).rows
    said = json.loads(summary.read_text())
    assert (said["rows"], said["scanned"], said["truncated"]) == (len(hits), len(every), False)
    done = command("dump", real.store, "-f", "jsonl", "--queue", 1, "-n", 2)
    said = json.loads(done.err)
    assert said["scanned"] == every.index(done.rows[-1]["physical_offset"]) + 1
    rest = command("dump", real.store, "-f", "jsonl", "-q", 1, "--from",
                   said["next"]["physical_offset"])  # fmt: skip
    whole = command("dump", real.store, "-f", "jsonl", "-q", 1)
    assert done.rows + rest.rows == whole.rows
