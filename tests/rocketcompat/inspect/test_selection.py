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

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rocketcompat import Message
from rocketcompat.inspect.directory import StoreDirectory
from rocketcompat.inspect.dump import dump_log, dump_tables
from rocketcompat.inspect.selection import Selection
from rocketcompat.record.compression import unpack_bodies
from tests.support.command import Command
from tests.support.golden import Golden
from tests.support.rocket.cli import command_fixture as command_fixture
from tests.support.rocket.files.selected import put, rows
from tests.support.rocket.files.selected import real_fixture as real_fixture
from tubestore.errors import InvalidMessage


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


def test_a_wrong_expression_is_refused_before_anything_is_read() -> None:
    with pytest.raises(InvalidMessage, match="missing"):
        Selection(pattern="a(b")


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
