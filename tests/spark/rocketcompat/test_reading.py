"""A RocketMQ log is split and read as the in-process dump reads it, record by record."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rocketcompat.inspect.directory import StoreDirectory
from rocketcompat.record.columns import RecordColumns
from rocketcompat.repair.apply import repair
from rocketcompat.spark.intake import RocketIntake
from rocketcompat.spark.log_batches import LogBatches
from rocketcompat.spark.options import RocketOptions
from rocketcompat.spark.reading import LogReading
from rocketcompat.spark.shapes import ROCKETMQ
from tests.spark.rocket_stores import dumped, of_dump, planned, read_log, write_rocket_store
from tests.support.golden import ROCKET_VERSIONS, GoldenFactory, rocket_scenarios
from tubestore.clock import ManualClock
from tubestore.core.quarantine import Quarantine
from tubestore.errors import (
    CorruptRecord,
    DataLoss,
    InvalidMessage,
    InvalidOption,
    NotAStore,
    TubeStoreError,
    UnknownTopic,
)

COUNT = 900
SCENARIOS = [(v, s) for v in ROCKET_VERSIONS for s in rocket_scenarios(v)]


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store that is written once."""
    root = tmp_path_factory.mktemp("rocket") / "store"
    write_rocket_store(root, COUNT)
    return root


@pytest.fixture
def root(template: Path, tmp_path: Path) -> Path:
    shutil.copytree(template, tmp_path / "store")
    return tmp_path / "store"


def numbers(rows: list[dict[str, Any]]) -> list[int]:
    return [int(row["body"].split()[0]) for row in rows]


@pytest.mark.parametrize("most", ["2000", "10000", "64k", "1m"])
def test_all_splits_together_are_the_whole_log_in_order(root: Path, most: str) -> None:
    made = planned(root, maxSplitBytes=most)
    assert [of_dump(row) for row in read_log(root, made)] == dumped(root)
    assert [s.start for s in made.splits[1:]] == [s.end for s in made.splits[:-1]]
    if most == "10000":
        assert len(made.splits) > 20
        assert max(s.bytes for s in made.splits) < 12_000


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


def test_topics_queues_tags_and_offsets_are_chosen(root: Path) -> None:
    made = planned(root)
    rows = read_log(root, made)
    assert read_log(root, made, subscribe="topic1") == [r for r in rows if r["topic"] == "topic1"]
    assert read_log(root, made, subscribePattern=".*[02]", queues="1,3") == [
        r for r in rows if r["topic"] != "topic1" and r["queue_id"] in (1, 3)
    ]
    assert read_log(root, made, tags="paid || sent") == [r for r in rows if r["tags"]]
    bounds = {
        "startingOffsets": '{"topic0":{"0":10}}',
        "endingOffsets": '{"topic0":{"0":20,"1":5}}',
    }
    assert read_log(root, made, **bounds) == [
        r
        for r in rows
        if r["topic"] != "topic0"
        or r["queue_id"] > 1
        or (r["queue_id"] == 0 and 10 <= r["queue_offset"] < 20)
        or (r["queue_id"] == 1 and r["queue_offset"] < 5)
    ]


def test_tags_keys_and_the_store_time_are_columns(root: Path) -> None:
    row = read_log(root, planned(root))[4]
    assert (row["tags"], row["keys"]) == ("sent", "k-4")
    assert int(row["store_time"].timestamp() * 1000) == row["store_timestamp"]


def test_kafkas_columns_hold_the_same_messages(root: Path) -> None:
    rows = read_log(root, planned(root))
    found = read_log(root, planned(root), schema="kafka")
    for ours, kafkas in zip(rows, found, strict=True):
        assert kafkas["key"] == ours["keys"].encode()
        assert (kafkas["value"], kafkas["topic"]) == (ours["body"], ours["topic"])
        assert (kafkas["partition"], kafkas["offset"]) == (ours["queue_id"], ours["queue_offset"])
        headers = {h["key"]: h["value"].decode() for h in kafkas["headers"]}
        assert headers == dict(ours["properties"])


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


def test_what_is_not_there_is_refused(root: Path, tmp_path_factory: Any) -> None:
    with pytest.raises(UnknownTopic):
        planned(root, subscribe="nope")
    with pytest.raises(NotAStore, match="not a RocketMQ store"):
        planned(tmp_path_factory.mktemp("empty"))
    with pytest.raises(InvalidOption, match="option partitions: not known"):
        planned(root, partitions="0")


def test_a_plan_does_not_see_what_is_put_later(root: Path) -> None:
    made = planned(root)
    write_rocket_store(root, 50, COUNT)
    assert numbers(read_log(root, made)) == list(range(COUNT))
    assert numbers(read_log(root, planned(root))) == list(range(COUNT + 50))


# -- batches of a stream --------------------------------------------------------------------------


def drain(root: Path, batches: LogBatches, at: Any, **limits: int) -> tuple[Any, list[Any]]:
    found = []
    while True:
        end = batches.latest(at, limits.get("rows"), limits.get("size"))
        if end == at:
            return at, found
        found.append(read_log(root, batches.plan(at, end)))
        at = end


def batches_of(root: Path, **given: str) -> LogBatches:
    return LogBatches(RocketOptions.parse({"path": str(root), **given}, stream=True))


def test_batches_are_the_log_in_order_within_their_limits(root: Path) -> None:
    batches = batches_of(root)
    _, found = drain(root, batches, batches.initial(), rows=70)
    assert [n for batch in found for n in numbers(batch)] == list(range(COUNT))
    assert {len(batch) for batch in found[:-1]} == {70}
    _, found = drain(root, batches, batches.initial(), size=9000)
    assert [n for batch in found for n in numbers(batch)] == list(range(COUNT))
    assert max(sum(row["store_size"] for row in batch) for batch in found) <= 9000


def test_a_stream_follows_a_broker_and_is_frozen_if_asked_for(root: Path) -> None:
    batches = batches_of(root, startingOffsets="latest")
    at = batches.initial()
    assert drain(root, batches, at)[1] == []
    write_rocket_store(root, 300, COUNT)
    at, found = drain(root, batches, at)
    assert numbers(found[0]) == list(range(COUNT, COUNT + 300))
    batches.freeze()
    write_rocket_store(root, 5, COUNT + 300)
    assert drain(root, batches, at)[1] == []


def test_a_log_that_was_cleaned_fails_the_stream_or_is_skipped_and_counted(root: Path) -> None:
    at = batches_of(root).initial()
    first, second = sorted((root / "commitlog").iterdir())[:2]
    first.unlink()
    size = int(second.name)
    text = rf"offsets 0 to {size} of the log \(topic1\), {size} bytes, were removed before they "
    with pytest.raises(DataLoss, match=text + r"were read; what is kept begins at \d{4}-\d\d-"):
        batches_of(root, subscribe="topic1").latest(at)
    said: list[str] = []
    options = RocketOptions.parse({"path": str(root), "failOnDataLoss": "false"}, stream=True)
    lenient = LogBatches(options, note=said.append)
    end = lenient.latest(at)
    assert numbers(read_log(root, lenient.plan(at, end))) == numbers(read_log(root, planned(root)))
    assert lenient.skipped == size
    assert len(said) == 1
    assert said[0].endswith(f"skipped, {size} bytes in all")


@pytest.mark.parametrize(
    "position", [{}, {"v": 2, "store": None, "log": 0}, {"v": 1, "store": "other", "log": 0}]
)
def test_a_checkpoint_of_something_else_is_refused(root: Path, position: dict[str, Any]) -> None:
    with pytest.raises(NotAStore):
        batches_of(root).latest(position)


@pytest.mark.parametrize("count", [COUNT, 40])
def test_a_stream_refuses_another_log_under_the_same_path(
    root: Path, tmp_path: Path, count: int
) -> None:
    batches = batches_of(root)
    at, _ = drain(root, batches, batches.initial(), rows=70)
    shutil.rmtree(root)
    write_rocket_store(root, count, 5000)
    error = "another log: the first record of .* differs" if count == COUNT else "up to .* end at"
    for other in (batches, batches_of(root)):
        with pytest.raises((NotAStore, DataLoss), match=error):
            other.latest(at)


def test_a_position_without_its_files_first_record_is_taken(root: Path) -> None:
    """Those of earlier versions."""
    batches = batches_of(root)
    at, _ = drain(root, batches, {"v": 1, "store": None, "log": 0})
    assert at == batches.end()
