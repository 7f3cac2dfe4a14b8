"""Reading a store through Spark itself: every option, SQL, snapshots, and errors in one line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.spark.stores import T0, scanned_rows, write_store
from tests.support.golden import TUBE_VERSION, GoldenFactory
from tubestore.errors import InvalidOption, NotAStore, UnknownTopic
from tubestore.record.layouts import key_code_of
from tubestore.spark.kit.pushdown import SETTING


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_store(tmp_path, {"logs": 1500, "orders": 300})
    return tmp_path


def read(spark: Any, path: Any, **options: Any) -> Any:
    from tubestore.spark import read

    return read(spark, str(path), **options)


def rows_of(frame: Any) -> list[dict[str, Any]]:
    """Return a frame's rows as the engine gives them, in the order of topic and offset."""
    return [row for batch in frame.toArrow().to_batches() for row in batch.to_pylist()]


def test_a_dataframe_has_every_message_of_the_store(spark: Any, root: Path) -> None:
    assert rows_of(read(spark, root)) == scanned_rows(root)
    assert rows_of(read(spark, root, maxSplitBytes=30_000)) == scanned_rows(root)


def test_the_source_is_known_by_its_name(spark: Any, root: Path) -> None:
    frame = spark.read.format("tubestore").option("SUBSCRIBE", "orders").load(str(root))
    assert frame.count() == 300


def test_sql_reads_a_view_with_options(spark: Any, root: Path) -> None:
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW logs USING tubestore "
        f"OPTIONS (path '{root}', subscribe 'logs', partitions '1,2')"
    )
    found = spark.sql("SELECT partition, count(*) FROM logs GROUP BY 1 ORDER BY 1").collect()
    ids = [r["partition"] for r in scanned_rows(root) if r["topic"] == "logs"]
    assert [tuple(row) for row in found] == [(1, ids.count(1)), (2, ids.count(2))]


def test_a_table_that_was_made_with_partition_id_is_read(spark: Any, root: Path) -> None:
    spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW old (partition_id INT, offset BIGINT) USING tubestore "
        f"OPTIONS (path '{root}', subscribe 'logs')"
    )
    found = spark.sql("SELECT partition_id FROM old ORDER BY offset").collect()
    rows = [r["partition"] for r in scanned_rows(root) if r["topic"] == "logs"]
    assert [row[0] for row in found] == rows


def test_options_choose_the_rows_of_a_read(spark: Any, root: Path) -> None:
    rows = scanned_rows(root)
    chosen = read(
        spark, root, subscribe="logs", filterItems=["paid"],
        startingTimestamp=T0 + 10, endingTimestamp=T0 + 1000, columns=["offset"],
    )  # fmt: skip
    assert [row["offset"] for row in rows_of(chosen)] == [
        row["offset"]
        for row in rows
        if row["topic"] == "logs"
        and row["key_code"] == key_code_of("paid")
        and T0 + 10 <= row["received_time_ms"] < T0 + 1000
    ]


def test_offsets_are_given_as_a_mapping_or_as_json(spark: Any, root: Path) -> None:
    ones = [r for r in scanned_rows(root) if (r["topic"], r["partition"]) == ("orders", 1)]
    start = ones[5]["offset"]
    frame = read(spark, root, assign={"orders": [1]}, startingOffsets={"orders": {1: start}})
    assert rows_of(frame) == ones[5:]


def test_kafkas_columns_are_an_option(spark: Any, root: Path) -> None:
    frame = read(spark, root, schema="kafka", subscribe="orders")
    found = frame.selectExpr("CAST(value AS STRING) AS text", "headers[0].key").first()
    assert found[0].startswith("0 ")
    assert found[1] == "$msgType$"


def test_a_frame_that_is_used_twice_gives_the_right_rows_each_time(spark: Any, root: Path) -> None:
    """Filters that are pushed down in Spark 4.3.0 stay for the next query: ours never are."""
    frame = read(spark, root, subscribe="orders", columns=["offset", "partition"])
    late = frame.filter("offset >= 5600")
    assert late.count() == 100
    assert frame.count() == 300
    assert late.union(frame.filter("offset >= 8372")).count() == 101
    frame.createOrReplaceTempView("twice")
    assert spark.sql("SELECT count(*) FROM twice WHERE offset < 28").first()[0] == 1
    assert spark.sql("SELECT count(*) FROM twice").first()[0] == 300


@pytest.fixture
def pushing(spark: Any) -> Iterator[Any]:
    """The session with Spark's setting for filters."""
    spark.conf.set(SETTING, "true")
    yield spark
    spark.conf.unset(SETTING)


def test_a_where_is_pushed_down_where_the_session_allows_it(
    pushing: Any, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    columns = ["partition", "body"]
    frame = read(pushing, root, subscribe="logs", columns=columns).where("partition = 2")
    frame.explain("formatted")
    assert re.search(r"PushedFilters: \[[^\]]*partition", capsys.readouterr().out)
    rows = scanned_rows(root, columns=["topic", *columns])
    expected = [r for r in rows if r.pop("topic") == "logs" and r["partition"] == 2]
    assert rows_of(frame) == expected
    late = "received_time >= timestamp_millis(1700000000050) AND filter_item = 'paid'"
    found = rows_of(read(pushing, root).where(late))
    assert found == [
        r for r in scanned_rows(root)
        if r["received_time_ms"] >= T0 + 50 and r["filter_item"] == "paid"
    ]  # fmt: skip


def test_a_frame_that_pushes_down_never_gives_the_rows_of_another_filter(
    pushing: Any, root: Path
) -> None:
    frame = read(pushing, root, subscribe="orders", columns=["offset", "partition"])
    late = frame.filter("offset >= 5600")
    assert late.count() == 100
    assert late.count() == 100
    for other in (frame, frame.filter("offset < 28"), late.union(frame)):
        with pytest.raises(Exception, match="InvalidOption: option pushdown: this DataFrame is"):
            other.count()
    plain = read(pushing, root, subscribe="orders", columns=["offset"], pushdown=False)
    assert plain.filter("offset >= 5600").count() == 100
    assert plain.count() == 300


def test_a_session_without_the_setting_goes_on_unpushed(spark: Any, root: Path) -> None:
    frame = read(spark, root, subscribe="orders", pushdown=True)
    assert frame.filter("offset >= 5600").count() == 100
    assert frame.count() == 300


def test_a_dataframe_is_a_snapshot_and_a_new_one_sees_more(spark: Any, root: Path) -> None:
    frame = read(spark, root, subscribe="orders", columns=["offset"])
    assert frame.count() == 300
    write_store(root, {"orders": 100})
    assert frame.count() == 300
    assert read(spark, root, subscribe="orders", columns=["offset"]).count() == 400


def test_nothing_to_read_is_an_empty_frame(spark: Any, root: Path) -> None:
    assert rows_of(read(spark, root, startingTimestamp="2100-01-01T00:00:00Z")) == []


def test_a_golden_store_of_the_real_system_is_read(spark: Any, golden: GoldenFactory) -> None:
    found = golden("tubemq", TUBE_VERSION, "basic")
    expected = list(found.expected(kind="message"))
    rows = rows_of(read(spark, found.store, columns=["topic", "store_id", "offset", "msg_id"]))
    assert sorted((f"{r['topic']}-{r['store_id']}", r["offset"], r["msg_id"]) for r in rows) == (
        sorted((r["store"], r["indexOffset"], r["record"]["msgId"]) for r in expected)
    )


# -- errors ---------------------------------------------------------------------------------------


def test_read_refuses_bad_options_and_stores_as_our_own_errors(spark: Any, root: Path) -> None:
    with pytest.raises(InvalidOption, match="did you mean subscribe"):
        read(spark, root, subscrib="logs")
    with pytest.raises(InvalidOption, match="no bodies; there are topic"):
        read(spark, root, columns=["bodies"])
    with pytest.raises(UnknownTopic):
        read(spark, root, subscribe="nope")
    with pytest.raises(NotAStore, match="no such directory"):
        read(spark, root / "nothing")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"subscrib": "logs"}, "InvalidOption: option subscrib: not known; did you mean subscribe"),
        ({"subscribe": "nope"}, "UnknownTopic: no topic 'nope' in this store"),
        ({"path": "/no/such/store"}, "NotAStore: /no/such/store: no such directory"),
        (
            {"startingOffsets": '{"logs":{"0":9999999}}'},
            "OffsetOutOfRange: offset 9999999 is outside",
        ),
    ],
)
def test_spark_reports_what_is_wrong_in_one_line(
    spark: Any, root: Path, options: dict[str, str], says: str
) -> None:
    with pytest.raises(Exception, match=re.escape(says)) as caught:
        spark.read.format("tubestore").options(**{"path": str(root), **options}).load().count()
    assert "Traceback" not in str(caught.value)


def test_damage_fails_a_query_in_one_line_or_is_a_row(spark: Any, root: Path) -> None:
    data = next((root / "orders-0").glob("*.tube"))
    data.write_bytes(data.read_bytes()[:-1] + b"\0")
    with pytest.raises(Exception, match=r"CorruptRecord: .*bad_checksum \(orders parti") as caught:
        read(spark, root, subscribe="orders", verifyCrc=True).count()
    assert "Traceback" not in str(caught.value)
    frame = read(spark, root, subscribe="orders", verifyCrc=True, failOnCorrupt=False)
    assert frame.groupBy("state").count().orderBy("state").collect() == [
        ("bad_checksum", 1),
        ("ok", 299),
    ]
