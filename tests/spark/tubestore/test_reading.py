"""A split is read as the engine reads the store; damage is a row or an error, as asked for."""

from __future__ import annotations

import os
import pickle
import random
import subprocess
import sys
from pathlib import Path

import pytest

import tubestore
from tests.spark.readings import root as root
from tests.spark.stores import planned, read_plan, scanned_rows, write_store
from tests.support.golden import TUBE_VERSION, GoldenFactory, tube_scenarios
from tubestore.core.vfs import OsVfs
from tubestore.errors import CorruptRecord, DataLoss, TubeStoreError
from tubestore.messages import MESSAGE_SCHEMA
from tubestore.reading.sources import Filter
from tubestore.segments.listing import find_shards
from tubestore.segments.shard_bytes import ShardBytes
from tubestore.spark.kit.options import ReadOptions
from tubestore.spark.kit.shapes import KAFKA, TUBESTORE
from tubestore.spark.reading import Reading


def test_the_columns_are_the_documented_ones() -> None:
    assert TUBESTORE.schema.names == [
        "topic", "store_id", "partition", "offset", "received_time", "received_time_ms",
        "filter_item", "key_code", "attributes", "body", "msg_id", "flag",
        "report_address", "state",
    ]  # fmt: skip
    assert KAFKA.schema.names == [
        "key", "value", "topic", "partition", "offset", "timestamp", "headers",
    ]  # fmt: skip
    assert TUBESTORE.schema.names == MESSAGE_SCHEMA.names


def test_any_store_is_read_as_the_engine_reads_it_whatever_its_sizes(tmp_path: Path) -> None:
    seed = random.randrange(1 << 30)
    rng = random.Random(seed)
    for number in range(6):
        root = tmp_path / str(number)
        topics = {name: rng.randrange(1, 700) for name in ("a", "b", "c")[: rng.randrange(1, 4)]}
        sizes = {"segment_size_bytes": rng.choice([1 << 16, 1 << 17, 1 << 20])}
        write_store(root, topics, partitions=rng.randrange(1, 12), seed=number, **sizes)
        torn = max((root / "a-0").glob("*.tube"))
        with torn.open("ab") as file:  # a record that a crash has cut
            file.write(torn.read_bytes()[: rng.randrange(60)])
        options = {"maxSplitBytes": str(rng.choice([3000, 50_000, 1 << 24])),
                   "minPartitions": str(rng.randrange(1, 5))}  # fmt: skip
        made = planned(root, **options)
        ours = sorted(read_plan(made), key=lambda row: (row["topic"], row["offset"]))
        expected = sorted(scanned_rows(root), key=lambda row: (row["topic"], row["offset"]))
        assert ours == expected, f"seed {seed}, store {number}"
        assert sum(split.rows for split in made.splits) == sum(topics.values())


def test_without_a_column_of_the_data_no_data_file_is_opened(root: Path) -> None:
    columns = ["topic", "store_id", "partition", "offset", "received_time", "key_code"]
    expected = scanned_rows(root, columns=columns)
    made = planned(root)
    for file in (root / "logs-0").glob("*.tube"):
        file.unlink()
    assert read_plan(made, columns=columns) == expected


def test_batches_are_some_mib_whatever_the_size_of_a_split(tmp_path: Path) -> None:
    with tubestore.open(tmp_path) as store:
        topic = store.create_topic("large")
        for _ in range(40):
            topic.append(bytes(1_000_000))
    made = planned(tmp_path)
    reading = Reading(TUBESTORE, TUBESTORE.schema, made.root)
    sizes = [b.nbytes for s in made.splits for b in reading.batches(s)]
    assert len(made.splits) == 1
    assert max(sizes) < 10 << 20


def test_few_rows_of_many_windows_come_in_few_batches_and_as_in_a_full_read(
    tmp_path: Path,
) -> None:
    """Decoding costs by the piece: one message of a hundred took as long as all of them."""
    count, rare = 6000, {"subscribe": "logs", "filterItems": "rare"}
    items = ["rare" if n % 97 == 0 else "paid" for n in range(count)]
    body = [b"%d" % n + bytes(n % 1500) for n in range(count)]
    with tubestore.open(tmp_path, segment_size_bytes=1 << 21) as store:
        made = store.create_topic("logs")
        for first in range(0, count, 500):
            part = slice(first, first + 500)
            made.append_batch({"body": body[part], "filter_item": items[part]})
    expected = [row for row in scanned_rows(tmp_path) if row["filter_item"] == "rare"]
    assert read_plan(planned(tmp_path, **rare), filter=chosen(tmp_path, **rare)) == expected
    reading = Reading(TUBESTORE, TUBESTORE.schema, str(tmp_path), filter=chosen(tmp_path, **rare))
    (split,) = planned(tmp_path, **rare).splits
    files = len(find_shards(str(tmp_path))[0].data)
    assert files > 2
    assert len(list(reading.batches(split))) <= files
    for wrong in (97 * 5, 97 * 6):  # neighbours of damaged rows are as they were
        flip(tmp_path, "logs", wrong)
    found = read_plan(
        planned(tmp_path, **rare), filter=chosen(tmp_path, **rare), verify=True,
        fail_on_corrupt=False,
    )  # fmt: skip
    states = ["bad_checksum" if n in (5, 6) else "ok" for n in range(len(expected))]
    assert [row["state"] for row in found] == states
    for row, state, known in zip(found, states, expected, strict=True):
        assert (row["offset"], state == "ok") == (known["offset"], row == known)


def chosen(root: Path, **options: str) -> Filter:
    return ReadOptions.parse({"path": str(root), **options}).filter


def flip(root: Path, topic: str, row: int) -> None:
    """Change a bit of one message's body."""
    shard = find_shards(str(root), topic=topic)[0]
    entry = next(ShardBytes(OsVfs(), shard).entries())[1][row]
    position = int(entry["data_offset"]) + int(entry["data_size"]) - 1
    file = next(f for f in shard.data if f.start <= position < f.end)
    data = bytearray(Path(file.path).read_bytes())
    data[position - file.start] ^= 1
    Path(file.path).write_bytes(data)


def test_a_flipped_bit_is_found_when_checksums_are_compared(root: Path) -> None:
    expected = scanned_rows(root)
    flip(root, "logs", 57)
    made = planned(root)
    assert len(read_plan(made)) == 1000  # nobody looked
    where = f"logs partition {expected[57]['partition']} offset {57 * 28}"
    with pytest.raises(CorruptRecord, match=where):
        read_plan(made, verify=True)
    rows = read_plan(made, verify=True, fail_on_corrupt=False)
    assert [n for n, row in enumerate(rows) if row["state"] != "ok"] == [57]
    assert rows[57]["state"] == "bad_checksum"


def test_damage_fails_a_job_also_without_a_request_for_the_state(root: Path) -> None:
    flip(root, "logs", 3)
    with pytest.raises(CorruptRecord, match="bad_checksum"):
        read_plan(planned(root), columns=["body"], verify=True)


def test_a_reading_and_its_splits_survive_the_way_to_another_process(root: Path) -> None:
    made = planned(root)
    reading = Reading(TUBESTORE, TUBESTORE.schema, made.root)
    again = pickle.loads(pickle.dumps((reading, made)))
    rows = [row for s in again[1].splits for b in again[0].batches(s) for row in b.to_pylist()]
    assert rows == scanned_rows(root)


def test_a_plan_made_before_a_compaction_reads_its_rows_until_the_trash_is_emptied(
    root: Path,
) -> None:
    made, expected = planned(root), scanned_rows(root)
    with tubestore.open(root) as store:
        assert {row.verdict for row in store.compact(files_min=2)} == {"merged"}
        assert read_plan(made) == expected
        assert read_plan(planned(root)) == expected
        store.empty_trash(grace=0)
    with pytest.raises(DataLoss, match="was removed after the job was planned"):
        read_plan(made)


@pytest.mark.parametrize("scenario", tube_scenarios())
def test_a_golden_store_is_read_as_the_engine_reads_it(
    golden: GoldenFactory, scenario: str
) -> None:
    root = golden("tubemq", TUBE_VERSION, scenario).store
    with tubestore.open(root, mode="r") as store:
        for name in store.topics():
            try:
                expected = store.topic(name).scan().read_all()
            except TubeStoreError as refusal:
                with pytest.raises(type(refusal)):
                    planned(root, subscribe=name)
                continue
            rows = read_plan(planned(root, subscribe=name), fail_on_corrupt=False)
            wanted = expected.select(TUBESTORE.schema.names).to_pylist()
            expired = len(wanted) - len(rows)
            assert all(row["state"] == "missing" for row in wanted[:expired])
            assert rows == wanted[expired:]


READS = """
import sys
from tests.spark.stores import planned
from tubestore.spark.kit.shapes import KAFKA, TUBESTORE
from tubestore.spark.reading import Reading
plan = planned(sys.argv[1])
for shape in (TUBESTORE, KAFKA):
    reading = Reading(shape, shape.schema, plan.root)
    print(sum(batch.num_rows for split in plan.splits for batch in reading.batches(split)))
import pyarrow
pyarrow.array([1])  # or this would prove nothing of a version that never imports pandas
"""


@pytest.mark.gate
def test_neither_a_plan_nor_a_task_waits_until_pandas_is_imported(tmp_path: Path) -> None:
    store, library = tmp_path / "store", tmp_path / "library"
    write_store(store, {"logs": 300})
    with tubestore.open(store) as opened:  # batches with attributes and without them
        opened["logs"].append_batch({"body": [b"a", b"b"], "filter_item": ["paid", None]})
    library.mkdir()
    (library / "pandas.py").write_text("print('pandas'); raise ImportError")
    paths = [str(library), *filter(None, [os.environ.get("PYTHONPATH"), str(Path.cwd())])]
    result = subprocess.run(
        [sys.executable, "-c", READS, str(store)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
    )
    assert result.stderr == ""
    counts, after = result.stdout.splitlines()[:2], result.stdout.splitlines()[2:]
    assert (counts, set(after)) == (["302", "302"], {"pandas"})
