"""A RocketMQ store through Spark itself: SQL, a stream, and into a tube root."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.spark.rocket_stores import dumped, of_dump, write_rocket_store
from tests.spark.stores import scanned_rows

COUNT = 600


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_rocket_store(tmp_path / "store", COUNT)
    return tmp_path / "store"


def test_a_dataframe_has_the_whole_log(spark: Any, root: Path) -> None:
    from rocketcompat.spark import read

    table = read(spark, str(root), maxSplitBytes=20_000).toArrow()
    assert [of_dump(row) for row in table.to_pylist()] == dumped(root)


def test_sql_reads_a_view(spark: Any, root: Path) -> None:
    from rocketcompat.spark import register

    register(spark)
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW orders USING rocketmq "
        f"OPTIONS (path '{root}', subscribe 'topic1', tags 'sent')"
    )
    row = spark.sql("SELECT count(*), min(keys), count(DISTINCT queue_id) FROM orders").first()
    assert tuple(row) == (COUNT // 3, "k-1", 4)


def test_a_stream_goes_from_a_broker_into_a_store(
    spark: Any, root: Path, tmp_path: Path, checkpoints: str
) -> None:
    from rocketcompat.spark import read_stream
    from tubestore.spark import write_stream

    def run() -> None:
        frame = read_stream(spark, str(root), schema="kafka", maxOffsetsPerTrigger=250)
        query = write_stream(
            frame.drop("key", "headers"),
            str(tmp_path / "tube"),
            checkpoint=checkpoints,
            trigger={"availableNow": True},
        )
        query.awaitTermination()

    run()
    write_rocket_store(root, 100, COUNT)
    run()
    found = sorted(int(row["body"].split()[0]) for row in scanned_rows(tmp_path / "tube"))
    assert found == list(range(COUNT + 100))


def test_errors_are_a_sentence(spark: Any, root: Path, tmp_path: Path) -> None:
    with pytest.raises(Exception, match=r"NotAStore: .* no RocketMQ store") as caught:
        spark.read.format("rocketmq").load(str(tmp_path)).count()
    assert "Traceback" not in str(caught.value)
