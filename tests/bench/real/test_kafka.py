"""Kafka's own classes: they accept our files of its format, and are measured beside the others."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.comparison import compare
from bench.layouts.kafka_format import KafkaFormat
from bench.real.drivers import DriverUnavailable, KafkaDriver, bytes_of, of_kind
from bench.workloads.payload import standard_library

pytestmark = [pytest.mark.gate, pytest.mark.interop]


@pytest.fixture(scope="module")
def kafka() -> KafkaDriver:
    try:
        return KafkaDriver()
    except DriverUnavailable as reason:
        pytest.skip(str(reason))


def test_dump_log_segments_accepts_the_log_and_its_indexes(
    kafka: KafkaDriver, tmp_path: Path
) -> None:
    class Small(KafkaFormat):
        segment_bytes = 100_000

    layout = Small(tmp_path, topics=2, partitions=2, durability="page_cache")
    expected: dict[tuple[int, int], list[bytes]] = {}
    for batch in standard_library(1 << 18).batches(50, topics=2, partitions=2)[:5] * 4:
        layout.append_batch(batch)
        for row in batch.to_pylist():
            expected.setdefault((row["topic"], row["partition"]), []).append(row["body"])
    for number in range(100):
        layout.append(1, 1, b"x" * number)
        expected[1, 1].append(b"x" * number)
    layout.close()

    names = [str(path.relative_to(tmp_path)) for path in sorted(tmp_path.rglob("topic00001-1/*"))]
    logs = [name for name in names if name.endswith(".log")]
    assert len(logs) > 1
    indexes = [name for name in names if not name.endswith(".log")]
    printed = kafka.dump(tmp_path, *logs)
    assert printed.count("isvalid: true") > 50
    assert "isvalid: false" not in printed
    assert printed.count("baseOffset") + printed.count("| offset") >= len(expected[1, 1])
    assert "ismatch" not in kafka.dump(tmp_path, *indexes, verify=True)
    wrong = next(tmp_path / name for name in indexes if name.endswith(".index"))
    data = wrong.read_bytes()
    wrong.write_bytes(data[:-5] + bytes([data[-5] ^ 1]) + data[-4:])  # the last entry's offset
    assert "ismatch" in kafka.dump(tmp_path, *indexes, verify=True)
    wrong.write_bytes(data)

    found: dict[tuple[int, int], list[bytes]] = {}
    for row in of_kind(kafka.read(tmp_path, 2, 2), "message"):
        found.setdefault((row["topic"], row["partition"]), []).append(bytes_of(row, "value"))
    assert found == expected


def test_kafkas_log_gives_back_what_it_took_and_is_measured(kafka: KafkaDriver) -> None:
    found = compare(
        ["kafka-3.9"], ["append", "batch", "read"], [{"partitions": 3, "topics": 2}], amount="tiny"
    )
    assert found.num_rows == 3
    for row in found.to_pylist():
        assert row["reason"] is None
        assert row["rate_median"] > 0
        assert 0 < row["p50_us"] <= row["p99_us"] <= row["p999_us"] <= row["max_us"]
        assert row["peak_mb"] > 30
