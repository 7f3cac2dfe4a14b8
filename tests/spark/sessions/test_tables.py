"""Tables of Spark's catalog over a store: what a statement can do, and what it is refused with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.spark.stores import scanned_rows, write_store

ROW = "SELECT 'fresh' topic, CAST('one' AS BINARY) body"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_store(tmp_path, {"logs": 15, "orders": 3})
    return tmp_path


@pytest.fixture
def sql(spark: Any) -> Iterator[Callable[[str], Any]]:
    """Run a statement; tables that were made are dropped at the end."""
    from tubestore.spark import register

    register(spark)
    yield spark.sql
    for row in spark.sql("SHOW TABLES").collect():
        if not row["isTemporary"]:
            spark.sql(f"DROP TABLE {row['tableName']}")


def names(sql: Callable[[str], Any]) -> list[str]:
    return [row["tableName"] for row in sql("SHOW TABLES").collect() if not row["isTemporary"]]


def fresh(root: Path) -> list[tuple[Any, ...]]:
    """Return the rows of the topic that the tests write."""
    rows = [row for row in scanned_rows(root) if row["topic"] == "fresh"]
    return [(row["body"], row["partition"], row["state"]) for row in rows]


def test_a_table_of_the_catalog_is_read_with_its_path(sql: Any, root: Path) -> None:
    """Spark keeps the options of a table, and hands them to no source in Python."""
    sql(f"CREATE TABLE kept USING tubestore OPTIONS (path '{root}', subscribe 'logs')")
    store = f"WITH (path = '{root}', subscribe = 'orders')"
    assert sql(f"SELECT count(*) FROM kept {store}").first()[0] == 3
    sql("DROP TABLE kept")
    assert len(scanned_rows(root)) == 18


def test_rows_are_inserted_into_a_table_by_sql_and_by_name(sql: Any, root: Path) -> None:
    """Spark gives the columns that a statement does not name as null."""
    sql(f"CREATE TABLE filled USING tubestore OPTIONS (path '{root}')")
    sql(f"INSERT INTO filled WITH (path = '{root}') BY NAME {ROW}")
    sql(ROW).writeTo("filled").option("path", str(root)).append()
    writer = sql(ROW).write.format("tubestore").option("path", str(root))
    writer.mode("append").saveAsTable("filled")
    assert fresh(root) == [(b"one", 0, "ok")] * 3


def test_rows_are_inserted_into_a_table_that_was_made_with_columns(sql: Any, root: Path) -> None:
    sql("CREATE TABLE chosen (topic STRING, body BINARY) USING tubestore")
    sql(f"INSERT INTO chosen WITH (path = '{root}') {ROW}")
    assert fresh(root) == [(b"one", 0, "ok")]
    found = sql(f"SELECT * FROM chosen WITH (path = '{root}', subscribe = 'fresh')").collect()
    assert [row.asDict() for row in found] == [{"topic": "fresh", "body": b"one"}]


def test_a_dataframe_makes_a_table_with_its_columns(sql: Any, root: Path) -> None:
    sql(ROW).write.format("tubestore").option("path", str(root)).saveAsTable("saved")
    sql(ROW).writeTo("made").using("tubestore").option("path", str(root)).create()
    assert fresh(root) == [(b"one", 0, "ok")] * 2
    for name in ("saved", "made"):
        frame = sql(f"SELECT * FROM {name} WITH (path = '{root}', subscribe = 'fresh')")
        assert (frame.columns, frame.count()) == (["topic", "body"], 2)


@pytest.mark.parametrize("where", ["OPTIONS (path '{root}')", "LOCATION '{root}'"])
def test_a_table_as_select_is_refused_with_what_to_do_and_makes_nothing(
    sql: Any, root: Path, where: str
) -> None:
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException, match=r"PythonTable hands over .*, then INSERT INTO"):
        sql(f"CREATE TABLE taken USING tubestore {where.format(root=root)} AS {ROW}")
    assert names(sql) == []
    assert fresh(root) == []


def test_insert_into_of_a_dataframe_is_refused_as_spark_drops_its_options(
    sql: Any, root: Path
) -> None:
    from pyspark.errors import PySparkException

    sql("CREATE TABLE chosen (topic STRING, body BINARY) USING tubestore")
    with pytest.raises(PySparkException, match="PythonTable hands over no options"):
        sql(ROW).write.option("path", str(root)).insertInto("chosen")
    assert fresh(root) == []


def test_a_table_is_not_overwritten_and_keeps_its_store(sql: Any, root: Path) -> None:
    from pyspark.errors import PySparkException

    sql("CREATE TABLE chosen (topic STRING, body BINARY) USING tubestore")
    with pytest.raises(PySparkException, match="a log is only appended to"):
        sql(f"INSERT OVERWRITE chosen WITH (path = '{root}') {ROW}")
    assert names(sql) == ["chosen"]
    writer = sql(ROW).write.format("tubestore").option("path", str(root)).mode("overwrite")
    with pytest.raises(PySparkException, match="a log is only appended to"):
        writer.saveAsTable("chosen")
    assert names(sql) == [], "Spark drops a table before it asks the source"
    assert len(scanned_rows(root)) == 18
