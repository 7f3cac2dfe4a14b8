"""What reading is measured against reads the same rows, and what the bars compare is compared."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

import tubestore
from bench.measure.harness import Run
from bench.spark.__main__ import table
from bench.spark.bounds import COLUMNS, plain_batches, plain_parts
from bench.spark.cases import SparkCase, Way
from tests.spark.stores import planned, read_plan


def test_the_plain_source_reads_what_the_real_class_reads(tmp_path: Path) -> None:
    table = pa.table({"body": [b"%d " % n * (n % 30 + 1) for n in range(3000)]})
    with tubestore.open(tmp_path, segment_size_bytes=1 << 16,
                        index_segment_size_bytes=28 * 500) as store:  # fmt: skip
        topic = store.create_topic("logs", partitions=3)
        for start in range(0, 3000, 100):
            topic.append_batch(table.slice(start, 100))
    parts = plain_parts(str(tmp_path))
    assert len({part.data.path for part in parts}) > 1
    assert len({part.index.path for part in parts}) > 1
    rows = [row for part in parts for batch in plain_batches(part) for row in batch.to_pylist()]
    assert rows == read_plan(planned(tmp_path), columns=COLUMNS)
    assert len(rows) == 3000


def test_a_case_names_the_memory_of_its_workers_and_the_bar(tmp_path: Path) -> None:
    case = SparkCase("spark-x", "?", 10, (Way("in Spark", dict),), memory_mb=256)
    run = Run("spark-x", "in Spark", "ours", 0, 10, 1, 1.0, 0.0, "disk", 300)
    assert "the largest Python worker: 300 MB (bar 256 MB: MISSED)" in table(case, [run])
