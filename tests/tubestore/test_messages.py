"""Answers of reads: rows as Arrow, as messages, and by partition."""

from __future__ import annotations

import sys
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pytest

import tubestore
from tubestore.messages import (
    MESSAGE_SCHEMA,
    FoundInShard,
    Message,
    Page,
    PageSet,
    messages_of,
    schema_of,
    warn_of_old_columns,
)
from tubestore.store.manager import MessageStoreManager
from tubestore.testing import MemoryVfs

COLUMNS = ("partition", "offset", "body")


def batch(*rows: tuple[int, int, bytes]) -> pa.RecordBatch:
    columns = [list(values) for values in zip(*rows, strict=True)]
    return pa.record_batch(columns, schema_of(COLUMNS))


def page(*batches: pa.RecordBatch) -> Page:
    return Page([*batches], schema_of(COLUMNS), next_offset=56, end_offset=84, truncated=True)


def test_a_page_is_an_arrow_stream_as_often_as_one_likes() -> None:
    found = page(batch((0, 0, b"a")), batch((0, 28, b"b"), (0, 56, b"c")))
    for _ in range(2):
        assert pa.table(found)["body"].to_pylist() == [b"a", b"b", b"c"]
    assert len(found) == 3


def test_a_page_without_rows_has_its_columns() -> None:
    assert page().table.schema.names == [*COLUMNS]
    assert len(page()) == 0


def test_the_text_of_a_page_has_its_count_and_its_offsets() -> None:
    text = "Page(1 messages, next_offset=56, end_offset=84, truncated=True)"
    assert repr(page(batch((0, 0, b"a")))) == text


def of_shard(partitions: list[int], *batches: pa.RecordBatch) -> FoundInShard:
    nexts = np.array([28 * (n + 1) for n in partitions])
    return FoundInShard(partitions, nexts, np.array([n > 1 for n in partitions]), 280, [*batches])


def test_pages_of_many_partitions_are_taken_apart_by_partition() -> None:
    one, other = batch((0, 0, b"a"), (2, 28, b"b")), batch((10_000, 0, b"c"))
    pages = PageSet(schema_of(COLUMNS), [of_shard([0, 1, 2], one), of_shard([10_000], other)])
    assert [m for p in (0, 1, 2, 10_000) for m in pages[p].table["body"].to_pylist()] == [
        b"a", b"b", b"c",
    ]  # fmt: skip
    assert (pages[2].next_offset, pages[2].end_offset, pages[2].truncated) == (84, 280, True)
    assert (len(pages[1]), pages[1].truncated) == (0, False)
    with pytest.raises(KeyError):
        pages[3]
    assert repr(pages) == "PageSet(3 messages of 4 partitions, 2 truncated)"


def test_a_row_of_all_columns_is_a_message() -> None:
    values = dict.fromkeys(MESSAGE_SCHEMA.names) | {
        "topic": "t", "partition": 3, "offset": 28, "body": b"x", "received_time_ms": 5,
        "attributes": [("k", "v")], "key_code": 7, "msg_id": 9, "state": "ok",
    }  # fmt: skip
    values = {name: value for name, value in values.items() if name in MESSAGE_SCHEMA.names}
    rows = pa.RecordBatch.from_pylist([values], MESSAGE_SCHEMA)
    (message,) = messages_of([rows])
    assert (message.topic, message.partition, message.offset, message.body) == ("t", 3, 28, b"x")
    assert (message.attributes, message.msg_id, message.state) == ({"k": "v"}, 9, "ok")


def test_a_schema_has_the_columns_in_the_order_that_was_asked_for() -> None:
    assert schema_of(("body", "offset")).names == ["body", "offset"]
    assert schema_of(("body",), views=True).field("body").type == pa.binary_view()
    assert schema_of(("partition_id",)).field(0).type == MESSAGE_SCHEMA.field("partition").type
    with pytest.raises(KeyError):
        schema_of(("colour",))


def test_a_caller_is_warned_of_the_former_name_of_a_column() -> None:
    with pytest.warns(DeprecationWarning, match="partition_id is named partition") as found:
        warn_of_old_columns(["partition_id", "body"])
    assert found[0].filename == __file__


def test_rows_of_a_page_are_messages_by_their_number(store: MessageStoreManager) -> None:
    topic = store.create_topic("t")
    topic.append_batch({"body": [b"a", b"b", b"c", b"d"]})
    found = topic.read(0)
    assert (found[0].body, found[-1].body) == (b"a", b"d")
    assert [m.body for m in found[1:3]] == [b"b", b"c"]
    assert [m.body for m in found[::-2]] == [b"d", b"b"]
    assert found[2] == list(found)[2]
    with pytest.raises(IndexError):
        found[4]


def test_a_message_of_chosen_columns_is_refused_with_what_to_do(
    store: MessageStoreManager,
) -> None:
    topic = store.create_topic("t")
    topic.append(b"a")
    with pytest.raises(ValueError, match=r"no column topic, .*: read without columns="):
        list(topic.read(0, columns=["partition", "body"]))


def test_a_page_goes_to_other_libraries(store: MessageStoreManager) -> None:
    topic = store.create_topic("t")
    topic.append(b"a", attributes={"k": "v"})
    found = topic.read(0)
    assert found.to_arrow() is found.table
    assert found.table.num_rows == 1
    frame = pytest.importorskip("pandas") and found.to_pandas()
    assert frame["body"].tolist() == [b"a"]


def test_a_page_goes_to_polars(store: MessageStoreManager) -> None:
    pytest.importorskip("polars")
    topic = store.create_topic("t")
    topic.append(b"a")
    assert topic.read(0).to_polars()["body"].to_list() == [b"a"]


def test_a_notebook_shows_the_first_rows_escaped_and_cut(store: MessageStoreManager) -> None:
    topic = store.create_topic("t")
    topic.append(b"<b>" + b"x" * 100, filter_item="a&b")
    text = topic.read(0)._repr_html_()
    assert text.startswith("<p>Page(1 messages")
    assert "<td>&lt;b&gt;" + "x" * 57 + "…</td>" in text
    assert "<td>a&amp;b</td>" in text


def test_the_time_of_a_message_is_a_datetime_as_the_column_of_its_name() -> None:
    message = Message("t", 0, 0, b"x", 1_700_000_000_123)
    assert message.received_time == datetime(2023, 11, 14, 22, 13, 20, 123_000, UTC)
    with pytest.raises(ValueError, match="received_time_ms = 9223372036854775807"):
        _ = Message("t", 0, 0, b"x", (1 << 63) - 1).received_time


def test_an_answer_of_a_batch_prints_short(store: MessageStoreManager) -> None:
    acks = store.create_topic("t").append_batch({"body": [b"x"] * 1000})
    assert repr(acks) == "BatchAck(1000 messages, durability='page_cache')"


@pytest.mark.parametrize(("call", "library"), [("to_pandas", "pandas"), ("to_polars", "polars")])
def test_a_library_that_is_missing_is_named_with_what_installs_it(
    memory_vfs: MemoryVfs, monkeypatch: pytest.MonkeyPatch, call: str, library: str
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with tubestore.open("/s", vfs=memory_vfs, background=False) as store:
        topic = store.create_topic("t")
        page = topic.read(topic.append(b"x").partition)
        with pytest.raises(ModuleNotFoundError, match=f"{call} needs {library}: pip install"):
            getattr(page, call)()


def test_a_row_beyond_a_page_is_named() -> None:
    with tubestore.open("/s", vfs=MemoryVfs(), background=False) as store:
        topic = store.create_topic("t")
        topic.append(b"one")
        page = topic.read(0)
    assert (page[0], page[-1].body) == (page[-1], b"one")
    for place in (1, -2):
        with pytest.raises(IndexError, match=f"^message {place} of a page of 1$"):
            page[place]
