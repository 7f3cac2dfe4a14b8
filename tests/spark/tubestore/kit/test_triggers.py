"""What a stream's reader asks of its batches, and what of it goes to the tasks."""

from __future__ import annotations

import os
import pickle
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
)

from tubestore.clock import ManualClock
from tubestore.errors import DataLoss
from tubestore.spark.kit.options import SharedOptions
from tubestore.spark.kit.triggers import TriggeredReader


class Book:
    """Notes each call, and answers with what it was asked."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def latest(self, start: Any, rows: Any, size: Any, least: Any = None) -> Any:
        self.calls.append((start, rows, size) if least is None else (start, rows, size, least))
        return {"end": 1} if least is None else start

    def plan(self, start: Any, end: Any) -> Any:
        return SimpleNamespace(splits=[start, end])

    def close(self) -> None:
        self.calls.append("close")


def reader_of(
    book: Any,
    rows: int | None = None,
    size: int | None = None,
    least: int | None = None,
    clock: Any = None,
) -> TriggeredReader:
    options: Any = SimpleNamespace(
        max_rows_per_trigger=rows,
        max_bytes_per_trigger=size,
        min_rows_per_trigger=least,
        max_delay_ms=60_000,
    )
    return TriggeredReader(options, None, lambda: book, clock)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("rows", "size", "least", "limit"),
    [
        (None, None, None, ReadAllAvailable()),
        (5, None, None, ReadMaxRows(5)),
        (None, 7, None, ReadMaxBytes(7)),
        (5, 7, None, ReadMaxRows(5)),
        (None, None, 3, ReadMinRows(3)),
        (5, None, 3, ReadMaxRows(5)),
    ],
)
def test_the_options_are_the_limit_of_a_batch(
    rows: int | None, size: int | None, least: int | None, limit: object
) -> None:
    assert reader_of(Book(), rows, size, least).getDefaultReadLimit() == limit


def test_a_batch_waits_for_enough_messages_and_no_longer_than_the_delay() -> None:
    book, clock = Book(), ManualClock()
    reader = reader_of(book, 5, None, 3, clock)

    def least() -> Any:
        reader.latestOffset({"at": 0}, ReadMaxRows(5))
        return book.calls.pop()[3:]

    assert least() == (), "the first batch of a query waits for none"
    assert least() == (3,)
    clock.advance(59_999)
    assert least() == (3,), "what was looked at in between does not begin the delay anew"
    clock.advance(1)
    assert least() == ()
    assert least() == (3,)
    reader.latestOffset({"at": 0}, ReadAllAvailable())
    assert book.calls.pop() == ({"at": 0}, None, None)
    book.freeze = lambda: None  # type: ignore[attr-defined]
    reader.prepareForTriggerAvailableNow()
    assert least() == (), "what is there now is taken"


def test_a_batch_keeps_both_limits_though_spark_has_one() -> None:
    book = Book()
    assert reader_of(book, 5, 7).latestOffset({"at": 0}, ReadMaxRows(5)) == {"end": 1}
    assert book.calls == [({"at": 0}, 5, 7)]


def test_without_a_limit_a_batch_takes_everything() -> None:
    book = Book()
    reader_of(book, 5, 7).latestOffset({"at": 0}, ReadAllAvailable())
    assert book.calls == [({"at": 0}, None, None)]


def test_a_batch_has_a_partition_a_split() -> None:
    parts = reader_of(Book()).partitions({"at": 0}, {"at": 9})
    assert [part.value for part in parts] == [{"at": 0}, {"at": 9}]


def test_a_task_gets_no_copy_of_what_the_driver_holds() -> None:
    options = SharedOptions("/s")
    reader = TriggeredReader(options, "reading", Book)  # type: ignore[arg-type]
    reader.latestOffset({}, ReadAllAvailable())
    copied = pickle.loads(pickle.dumps(reader))
    assert vars(copied) == {
        "options": options, "reading": "reading", "_make": None, "_made": None, "_patience": None,
    }  # fmt: skip


def test_the_end_of_a_query_gives_up_what_is_held_for_it() -> None:
    book = Book()
    reader = reader_of(book)
    reader.stop()
    assert book.calls == [], "a query that never asked holds nothing"
    reader.latestOffset({}, ReadAllAvailable())
    reader.stop()
    assert book.calls[-1] == "close"


def test_an_error_of_a_batch_is_shown_without_its_way_through_spark(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SPARK_HIDE_TRACEBACK", "0")

    class Lost(Book):
        def latest(self, start: Any, rows: Any, size: Any, least: Any = None) -> Any:
            raise DataLoss("t: gone")

    with pytest.raises(DataLoss):
        reader_of(Lost()).latestOffset({}, ReadAllAvailable())

    assert os.environ["SPARK_HIDE_TRACEBACK"] == "1"
