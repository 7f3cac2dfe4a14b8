"""Filters that a source applies itself leave the rows that Spark's own filter would leave."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

from tests.spark.filters import passing, pushed_rows, some_filters
from tests.spark.sources import root as root
from tests.spark.sources import source
from tests.spark.stores import T0, scanned_rows
from tubestore.errors import InvalidOption
from tubestore.spark.kit.options import PUSHABLE
from tubestore.spark.kit.pushdown import Bound, Pushed, keep, push

AT = datetime(2024, 1, 1, tzinfo=UTC)
AT_MS = 1_704_067_200_000


def pushed(*filters: Filter) -> dict[str, Bound]:
    return dict(push(filters, PUSHABLE, lambda name: name)[0].bounds)


def left(*filters: Filter) -> list[Any]:
    return push(filters, PUSHABLE, lambda name: name)[1]


def test_bounds_of_a_column_are_combined() -> None:
    assert pushed(GreaterThan(("offset",), 5), LessThanOrEqual(("offset",), 9)) == {
        "offset": Bound(low=6, high=10)
    }
    assert pushed(In(("topic",), ("a", "b", None)), EqualTo(("topic",), "b")) == {
        "topic": Bound(among=frozenset("b"))
    }


@pytest.mark.parametrize(
    "zone", [UTC, timezone(timedelta(hours=-14)), timezone(timedelta(hours=14))]
)
def test_the_first_and_the_last_time_of_python_are_bounds(zone: Any) -> None:
    last, first = datetime.max.replace(tzinfo=zone), datetime.min.replace(tzinfo=zone)
    shift = zone.utcoffset(None) // timedelta(milliseconds=1)
    end = 253_402_300_800_000 - shift
    assert pushed(GreaterThan(("received_time",), last))["received_time_ms"].low == end
    assert pushed(LessThan(("received_time",), last))["received_time_ms"].high == end
    begin = -62_135_596_800_000 - shift
    assert pushed(GreaterThanOrEqual(("received_time",), first))["received_time_ms"].low == begin
    assert pushed(LessThanOrEqual(("received_time",), first))["received_time_ms"].high == begin + 1
    assert pushed(In(("received_time",), (first, last)))["received_time_ms"] == Bound(
        low=begin, high=end
    )


@pytest.mark.parametrize(
    ("kind", "bound"),
    [
        (EqualTo, Bound(low=AT_MS + 1, high=AT_MS + 1)),  # no message has half a millisecond
        (GreaterThan, Bound(low=AT_MS + 1)),
        (GreaterThanOrEqual, Bound(low=AT_MS + 1)),
        (LessThan, Bound(high=AT_MS + 1)),
        (LessThanOrEqual, Bound(high=AT_MS + 1)),
    ],
)
def test_a_time_between_milliseconds_is_a_bound_of_whole_ones(kind: Any, bound: Bound) -> None:
    half = AT + timedelta(microseconds=500)
    assert pushed(kind(("received_time",), half)) == {"received_time_ms": bound}


@pytest.mark.parametrize(
    ("kind", "bound"),
    [
        (EqualTo, Bound(low=AT_MS, high=AT_MS + 1)),
        (GreaterThan, Bound(low=AT_MS + 1)),
        (GreaterThanOrEqual, Bound(low=AT_MS)),
        (LessThan, Bound(high=AT_MS)),
        (LessThanOrEqual, Bound(high=AT_MS + 1)),
    ],
)
def test_a_time_of_a_whole_millisecond_is_exact(kind: Any, bound: Bound) -> None:
    assert pushed(kind(("received_time",), AT)) == {"received_time_ms": bound}
    assert left(kind(("received_time",), AT)) == []


@pytest.mark.parametrize(
    "other",
    [
        IsNotNull(("topic",)),
        Not(EqualTo(("topic",), "a")),
        EqualTo(("body",), b"a"),
        EqualTo(("attributes", "a"), "b"),
        GreaterThan(("topic",), "a"),
        GreaterThan(("key_code",), 5),
        EqualTo(("received_time",), AT.replace(tzinfo=None)),
        EqualTo(("offset",), None),
        EqualTo(("partition",), True),
    ],
)
def test_what_cannot_be_applied_is_left_to_spark(other: Any) -> None:
    assert left(other) == [other]
    assert pushed(other) == {}


def test_an_inexact_filter_is_applied_and_left_to_spark() -> None:
    one, two = EqualTo(("filter_item",), "paid"), In(("offset",), (28, 280))
    assert left(one, two) == [one, two]
    assert pushed(one, two) == {
        "filter_item": Bound(among=frozenset(["paid"])), "offset": Bound(low=28, high=281),
    }  # fmt: skip


def test_any_filters_leave_the_same_rows_and_fewer_are_read(root: Path, tmp_path: Path) -> None:
    rows, rng = scanned_rows(root), random.Random(seed := random.randrange(1 << 30))
    columns = [name for name in PUSHABLE if name != "received_time_ms"]
    fewer = 0
    for number in range(60):
        filters = some_filters(rng, rows, columns)
        options = {"pushdown": str(tmp_path / f"{seed}-{number}"), "maxSplitBytes": "20000"}
        found, _, read = pushed_rows(source(root, **options), filters)
        assert found == passing(rows, filters), f"seed {seed}: {filters}"
        fewer += read < len(rows)
    assert fewer > 40


def test_pushed_filters_narrow_what_the_options_choose(root: Path, tmp_path: Path) -> None:
    given = {
        "partitions": "1,2", "filterItems": "paid", "startingTimestamp": str(T0 + 100),
        "startingOffsets": '{"logs":{"1":2800}}', "subscribe": "logs,orders",
    }  # fmt: skip
    plain, _, _ = pushed_rows(source(root, **given, pushdown=str(tmp_path / "none")), [])
    filters = [GreaterThan(("partition",), 1), EqualTo(("topic",), "logs"),
               LessThan(("received_time_ms",), T0 + 900)]  # fmt: skip
    found, rest, _ = pushed_rows(source(root, **given, pushdown=str(tmp_path / "some")), filters)
    assert found == passing(plain, filters)
    assert found
    assert rest == []


def test_kafkas_names_are_pushed_down_too(root: Path, tmp_path: Path) -> None:
    kafka = source(root, schema="kafka", pushdown=str(tmp_path / "pushed"))
    filters = [EqualTo(("partition",), 3), GreaterThanOrEqual(("offset",), 280)]
    found, rest, _ = pushed_rows(kafka, filters)
    expected = passing(scanned_rows(root), filters)
    assert [row["value"] for row in found] == [row["body"] for row in expected]
    assert rest == []


def test_a_dataframe_is_for_one_set_of_filters(tmp_path: Path) -> None:
    path = str(tmp_path / "pushed")
    first = Pushed({"partition": Bound(among=frozenset([1]))})
    keep(path, first)
    keep(path, first)
    with pytest.raises(InvalidOption, match=r"in use with \(partition in \[1\]\), and Spark would"):
        keep(path, Pushed())
    assert [file.name for file in tmp_path.iterdir()] == ["pushed"]


def test_a_reader_that_read_did_not_make_pushes_nothing_down(root: Path) -> None:
    assert "pushFilters" not in vars(type(source(root).reader(source(root).schema())))
    with pytest.raises(InvalidOption, match="only a DataFrame of `read` pushes down"):
        source(root, pushdown="true").schema()
