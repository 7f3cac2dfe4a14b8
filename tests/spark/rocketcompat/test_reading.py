"""A RocketMQ log is split and read as the in-process dump reads it, record by record."""

from __future__ import annotations

import pickle
import random
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.datasource import CaseInsensitiveDict, EqualTo

import rocketcompat
from rocketcompat import Message
from rocketcompat.formats import TRANSACTION_ROLLBACK
from rocketcompat.inspect.directory import StoreDirectory
from rocketcompat.record.columns import RecordColumns
from rocketcompat.repair.apply import repair
from rocketcompat.spark.intake import RocketIntake
from rocketcompat.spark.options import PUSHABLE, RocketOptions
from rocketcompat.spark.reading import LogReading
from rocketcompat.spark.shapes import ROCKETMQ
from rocketcompat.spark.source import RocketMqSource
from tests.spark.filters import passing, pushed_rows, some_filters
from tests.spark.rocket_readings import numbers
from tests.spark.rocket_readings import root as root
from tests.spark.rocket_readings import template as template
from tests.spark.rocket_stores import CONFIG, dumped, of_dump, planned, read_log
from tests.support.golden import ROCKET_VERSIONS, GoldenFactory, rocket_scenarios
from tubestore.clock import ManualClock
from tubestore.core.quarantine import Quarantine
from tubestore.errors import (
    CorruptRecord,
    InvalidMessage,
    TubeStoreError,
)

SCENARIOS = [(v, s) for v in ROCKET_VERSIONS for s in rocket_scenarios(v)]


@pytest.mark.one_in(1, 4)
@pytest.mark.parametrize(("version", "scenario"), SCENARIOS)
def test_a_golden_log_is_read_as_it_is_dumped(
    golden: GoldenFactory, version: str, scenario: str
) -> None:
    root = golden("rocketmq", version, scenario).store
    try:
        expected = dumped(root)
    except TubeStoreError as refusal:
        with pytest.raises(type(refusal)):
            planned(root)
        return
    lenient = {"failOnCorrupt": "false", "failOnDataLoss": "false", "verifyCrc": "true"}
    found = [of_dump(row) for row in read_log(root, planned(root), **lenient)]
    sound = [row for row in expected if row["state"] == "ok"]
    assert [row for row in found if row["state"] == "ok"] == sound


def test_a_stand_in_for_a_lost_message_has_its_state_and_no_body(root: Path) -> None:
    wanted = numbers(read_log(root, planned(root)))
    directory = StoreDirectory(root)
    piece = next(iter(directory.scan_log()))
    assert isinstance(piece, RecordColumns)
    file = Path(directory.log.files[0].path)
    raw = bytearray(file.read_bytes())
    raw[int(piece.body_places[0][1])] ^= 1
    file.write_bytes(raw)
    list(repair(directory, clock=ManualClock(), quarantine=Quarantine(directory.vfs, str(root))))
    found = read_log(root, planned(root))
    (lost,) = [row for row in found if row["state"] != "ok"]
    assert (lost["state"], lost["body"]) == ("lost", None)
    assert numbers([row for row in found if row["state"] == "ok"]) == [wanted[0], *wanted[2:]]
    (batch,) = pa.Table.from_pylist(found, ROCKETMQ.schema).to_batches()
    intake = RocketIntake(batch.schema, None, 4)
    with pytest.raises(InvalidMessage, match="state"):
        intake.table(batch)


def test_what_fills_the_place_of_unknown_bytes_is_a_lost_row_of_no_topic_as_in_the_library(
    tmp_path: Path,
) -> None:
    root = tmp_path / "store"
    with rocketcompat.open(root, "w", CONFIG, background=False) as store:
        for number in range(3):  # the second one is in no queue, so nothing knows what was there
            flag = TRANSACTION_ROLLBACK if number == 1 else 0
            store.put_message(Message("orders", b"%d" % number, queue_id=0, sys_flag=flag))
    place = dumped(root)[1]["physical_offset"]
    file = root / "commitlog" / f"{0:020d}"
    raw = file.read_bytes()
    file.write_bytes(raw[:place] + bytes(60) + raw[place + 60 :])
    directory = StoreDirectory(root)
    list(repair(directory, clock=ManualClock(), quarantine=Quarantine(directory.vfs, str(root))))
    with rocketcompat.open(root, "r") as store:
        known = pa.Table.from_batches(store.scan()).to_pylist()
    found = read_log(root, planned(root))
    names = ("topic", "body", "state", "physical_offset")
    assert [[row[n] for n in names] for row in found] == [[row[n] for n in names] for row in known]
    assert [row["state"] for row in found] == ["ok", "lost", "ok"]
    assert (found[1]["topic"], found[1]["body"]) == ("_", None)
    assert [row["body"] for row in read_log(root, planned(root), subscribe="orders")] == [
        b"0",
        b"2",
    ]


def damage(root: Path, number: int) -> None:
    """Flip a bit in one record's body."""
    row = dumped(root)[number]
    offset = row["physical_offset"] + row["store_size"] // 2
    file = sorted((root / "commitlog").iterdir())[offset // (64 << 10)]
    data = bytearray(file.read_bytes())
    data[offset % (64 << 10)] ^= 1
    file.write_bytes(data)


def test_damage_is_an_error_or_a_row(root: Path) -> None:
    rows = read_log(root, planned(root))
    damage(root, 100)
    made = planned(root, maxSplitBytes="10000")
    with pytest.raises(CorruptRecord, match="failOnCorrupt=false"):
        read_log(root, made, verifyCrc="true")
    found = read_log(root, made, verifyCrc="true", failOnCorrupt="false")
    assert [r for r in found if r["state"] == "ok"] == [*rows[:100], *rows[101:]]
    assert [(r["state"], r["physical_offset"]) for r in found if r["state"] != "ok"] == [
        ("damaged", rows[100]["physical_offset"])
    ]


def test_a_reading_survives_the_way_to_another_process(root: Path) -> None:
    options = RocketOptions.parse({"path": str(root)})
    made = planned(root)
    reading = LogReading(ROCKETMQ, ROCKETMQ.schema, options, made.sizes)
    again, splits = pickle.loads(pickle.dumps((reading, made.splits)))
    rows = [row for s in splits for b in again.batches(s) for row in b.to_pylist()]
    assert rows == read_log(root, made)


def rocket_source(root: Path, **options: str) -> RocketMqSource:
    return RocketMqSource(CaseInsensitiveDict(path=str(root), **options))


def test_any_pushed_filters_leave_the_same_rows_and_fewer_are_read(
    root: Path, tmp_path: Path
) -> None:
    rows, rng = read_log(root, planned(root)), random.Random(seed := random.randrange(1 << 30))
    fewer = 0
    for number in range(40):
        filters = some_filters(rng, rows, PUSHABLE)
        options = {"pushdown": str(tmp_path / f"{seed}-{number}"), "maxSplitBytes": "20000"}
        found, _, read = pushed_rows(rocket_source(root, **options), filters)
        assert found == passing(rows, filters), f"seed {seed}: {filters}"
        fewer += read < len(rows)
    assert fewer > 25


def test_a_damaged_place_is_no_row_where_filters_are_pushed_down(
    root: Path, tmp_path: Path
) -> None:
    """Its columns are null, and no condition on them is true."""
    log = min((root / "commitlog").iterdir())
    data = bytearray(log.read_bytes())
    data[4:8] = b"\0\0\0\1"
    log.write_bytes(data)
    lenient = {"failOnCorrupt": "false", "pushdown": str(tmp_path / "pushed")}
    filters = [EqualTo(("queue_id",), 1)]
    found, left, _ = pushed_rows(rocket_source(root, **lenient), filters)
    assert left == []
    assert found
    assert all(row["queue_id"] == 1 for row in found)
