"""Tables of messages: what is taken as one, and what is refused before anything is written."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tubestore.errors import InvalidMessage, MessageTooLarge, TubeStoreError, UnknownTopic
from tubestore.record import ingest
from tubestore.record.layouts import key_code_of
from tubestore.store.manager import MessageStoreManager
from tubestore.store.topic import Topic
from tubestore.testing import MemoryVfs

T0 = 1_700_000_000_000


@pytest.fixture
def topic(store: MessageStoreManager) -> Topic:
    return store.create_topic("logs", partitions=4, stores=2)


class Streaming:
    """Nothing but the Arrow protocol, as other libraries' tables."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self._table.__arrow_c_stream__(requested_schema)


PLAIN = pa.table({"body": pa.array([b"a", b"b"], pa.binary()), "partition": [1, 10_002]})
TABLES: dict[str, Callable[[], Any]] = {
    "a table": lambda: PLAIN,
    "a record batch": lambda: PLAIN.to_batches()[0],
    "a reader": lambda: PLAIN.to_reader(),
    "any Arrow stream": lambda: Streaming(PLAIN),
    "a list of dicts": lambda: PLAIN.to_pylist(),
    "a tuple of dicts": lambda: tuple(PLAIN.to_pylist()),
    "a dict of lists": lambda: PLAIN.to_pydict(),
    "chunks": lambda: pa.concat_tables([PLAIN.slice(0, 1), PLAIN.slice(1)]),
    "a slice": lambda: pa.concat_tables([PLAIN, PLAIN, PLAIN]).combine_chunks().slice(2, 2),
    "text bodies": lambda: PLAIN.set_column(0, "body", pa.array(["a", "b"])),
    "large binary": lambda: PLAIN.set_column(0, "body", PLAIN["body"].cast(pa.large_binary())),
    "binary views": lambda: PLAIN.set_column(0, "body", pa.array([b"a", b"b"], pa.binary_view())),
    "fixed size": lambda: PLAIN.set_column(0, "body", pa.array([b"a", b"b"], pa.binary(1))),
    "partition_id": lambda: PLAIN.rename_columns(["body", "partition_id"]),
    "small integers": lambda: PLAIN.set_column(1, "partition", pa.array([1, 10_002], pa.uint16())),
    "an empty chunk between": lambda: pa.concat_tables([PLAIN, PLAIN.slice(0, 0)]),
}


@pytest.mark.parametrize("make", TABLES.values(), ids=TABLES)
def test_a_batch_is_any_table(topic: Topic, make: Callable[[], Any]) -> None:
    acks = topic.append_batch(make())
    assert acks.partitions.to_pylist() == [1, 10_002]
    assert [m.body for m in topic.read(1)] == [b"a"]
    assert [m.body for m in topic.read(10_002)] == [b"b"]


def test_a_list_of_dicts_may_have_other_keys_in_later_rows(topic: Topic) -> None:
    acks = topic.append_batch(
        [{"body": b"a"}, {"body": b"b", "filter_item": "x"}, {"body": b"c", "key": "k"}]
    )
    assert len(acks) == 3
    table = topic.scan(columns=["body", "filter_item"]).read_all()
    rows = {row["body"]: row["filter_item"] for row in table.to_pylist()}
    assert rows == {b"a": None, b"b": "x", b"c": None}
    assert acks.partitions[2].as_py() == topic.append(b"d", key="k").partition


BAD: dict[str, Any] = {
    "no table": 5,
    "text": "body",
    "bytes": b"body",
    "none": None,
    "a list of numbers": [1, 2],
    "no body": {"partition": [1]},
    "unknown column": {"body": [b"a"], "headers": ["x"]},
    "a column twice": pa.table(
        [pa.array([0]), pa.array([b"a"]), pa.array([1])], ["partition", "body", "partition"]
    ),
    "a topic column": {"body": [b"a"], "topic": ["logs"]},
    "numbers for bodies": {"body": [1, 2]},
    "a null body": {"body": [b"a", None]},
    "an empty body": {"body": [b"a", b""]},
    "columns of different length": {"body": [b"a"], "partition": [1, 2]},
    "a fraction for a partition": {"body": [b"a"], "partition": [1.0]},
    "a null partition": {"body": [b"a", b"b"], "partition": [1, None]},
    "a partition beyond": {"body": [b"a", b"b"], "partition": [1, 4]},
    "a store beyond": {"body": [b"a"], "partition": [20_000]},
    "a negative partition": {"body": [b"a"], "partition": [-1]},
    "a huge partition": {"body": [b"a"], "partition": pa.array([(1 << 64) - 1], pa.uint64())},
    "numbers for keys": {"body": [b"a"], "key": [5]},
    "numbers for filter items": {"body": [b"a"], "filter_item": [5]},
    "a comma in a filter item": {"body": [b"a"], "filter_item": ["a,b"]},
    "a comma in an attribute": {
        "body": [b"a"],
        "attributes": pa.array([[("k", "a,b")]], pa.map_(pa.string(), pa.string())),
    },
    "a null value of an attribute": {
        "body": [b"a"],
        "attributes": pa.array([[("k", None), ("l", "1")]], pa.map_(pa.string(), pa.string())),
    },
    "texts for attributes": {"body": [b"a"], "attributes": ["k=v"]},
    "numbers in attributes": {
        "body": [b"a"],
        "attributes": pa.array([[("k", 5)]], pa.map_(pa.string(), pa.int64())),
    },
    "texts for times": {"body": [b"a"], "received_time": ["2024-01-01"]},
    "times without a zone": {
        "body": [b"a"],
        "received_time": pa.array([datetime(2024, 1, 1)], pa.timestamp("ms")),  # noqa: DTZ001
    },
    "a null time": {"body": [b"a", b"b"], "received_time_ms": [1, None]},
    "a time beyond 64 bits": {
        "body": [b"a"],
        "received_time_ms": pa.array([(1 << 64) - 1], pa.uint64()),
    },
    "an address beyond 32 bits": {"body": [b"a"], "report_address": [1 << 40]},
    "text for an address": {"body": [b"a"], "report_address": ["10.0.0.1"]},
}


@pytest.mark.parametrize("given", BAD.values(), ids=BAD)
def test_a_bad_batch_is_refused_whole_before_anything_is_written(
    store: MessageStoreManager, topic: Topic, memory_vfs: MemoryVfs, given: Any
) -> None:
    before = memory_vfs.tree()
    with pytest.raises(InvalidMessage):
        topic.append_batch(given)
    store.flush()
    assert memory_vfs.tree() == before
    assert topic.append(b"good", partition=0).offset == 0


def test_the_error_names_the_row(topic: Topic) -> None:
    with pytest.raises(InvalidMessage, match="row 2"):
        topic.append_batch({"body": [b"a", b"b", b""]})
    with pytest.raises(InvalidMessage, match="row 1"):
        topic.append_batch({"body": [b"a", None]})
    with pytest.raises(InvalidMessage, match="row 1: partition 77: its topic has partitions 0 to"):
        topic.append_batch({"body": [b"a", b"b"], "partition": [0, 77]})
    with pytest.raises(MessageTooLarge, match="row 1") as caught:
        topic.append_batch({"body": [b"a", b"b" * 1_058_817]})
    assert (caught.value.size, caught.value.limit) == (1_058_817, 1_058_816)


def test_attributes_count_for_the_size(topic: Topic) -> None:
    with pytest.raises(MessageTooLarge):
        topic.append_batch({"body": [b"b" * 1_058_810], "filter_item": ["x"]})


@pytest.mark.parametrize(
    "times",
    [
        {"received_time_ms": [T0 + 1, T0 + 2]},
        {"received_time_ms": pa.array([T0 + 1, T0 + 2], pa.uint64())},
        {
            "received_time": pa.array(
                [T0 * 1000 + 1999, T0 * 1000 + 2000], pa.timestamp("us", "Europe/Paris")
            )
        },
        {"received_time": pa.array([T0 + 1, T0 + 2], pa.timestamp("ms", "UTC"))},
        {
            "received_time": [
                datetime.fromtimestamp((T0 + n) / 1000, UTC).replace(microsecond=n * 1000)
                for n in (1, 2)
            ]
        },
    ],
    ids=["ms", "unsigned", "us in a zone", "ms as Arrow", "datetimes"],
)
def test_times_of_any_unit_become_ms(topic: Topic, times: Any) -> None:
    topic.append_batch({"body": [b"a", b"b"], "partition": [0, 0], **times})
    assert [m.received_time_ms for m in topic.read(0)] == [T0 + 1, T0 + 2]


def test_rows_without_a_key_go_round_and_others_where_their_key_leads(topic: Topic) -> None:
    keys = ["k", None, None, "k", None, b"k".decode()]
    acks = topic.append_batch({"body": [b"x"] * 6, "key": keys})
    chosen = acks.partitions.to_pylist()
    expected = topic.append(b"x", key="k").partition
    assert [chosen[n] for n in (0, 3, 5)] == [expected] * 3
    assert len({chosen[n] for n in (1, 2, 4)}) == 3


def test_keys_and_items_may_be_dictionaries(topic: Topic) -> None:
    table = pa.table(
        {
            "body": [b"a", b"b", b"c"],
            "key": pa.array(["x", "y", "x"]).dictionary_encode(),
            "filter_item": pa.array(["f", None, "g"]).dictionary_encode(),
        }
    )
    acks = topic.append_batch(table)
    assert acks.partitions[0] == acks.partitions[2]
    rows = topic.scan(columns=["body", "filter_item", "key_code"]).read_all().to_pylist()
    assert {row["body"]: (row["filter_item"], row["key_code"]) for row in rows} == {
        b"a": ("f", key_code_of("f")),
        b"b": (None, -1),
        b"c": ("g", key_code_of("g")),
    }


def test_blank_items_are_none(topic: Topic) -> None:
    topic.append_batch({"body": [b"a", b"b"], "partition": [0, 0], "filter_item": [" ", ""]})
    rows = topic.read(0).table.select(["filter_item", "key_code", "flag", "body"]).to_pylist()
    assert [tuple(row.values()) for row in rows] == [(None, -1, 0, b"a"), (None, -1, 0, b"b")]


def test_attributes_are_maps_and_the_text_is_that_of_single_appends(topic: Topic) -> None:
    maps = pa.array([[("a", "1"), ("b", "2")], None, []], pa.map_(pa.string(), pa.string()))
    topic.append_batch({"body": [b"x"] * 3, "partition": [0] * 3, "attributes": maps})
    topic.append(b"x", partition=0, attributes={"a": "1", "b": "2"})
    found = [dict(m.attributes) for m in topic.read(0)]
    assert found == [{"a": "1", "b": "2"}, {}, {}, {"a": "1", "b": "2"}]


def test_signed_and_unsigned_addresses_are_the_same_four_bytes(topic: Topic) -> None:
    topic.append_batch(
        {
            "body": [b"a", b"b"],
            "partition": [0, 0],
            "report_address": pa.array([3_232_235_778, 167_772_161], pa.uint32()),
        }
    )
    addresses = topic.read(0).table.column("report_address").to_pylist()
    assert addresses == [-1_062_731_518, 167_772_161]


# -- many topics -----------------------------------------------------------------------------


def test_rows_of_many_topics_go_to_their_topics(store: MessageStoreManager) -> None:
    for name, stores in (("a", 1), ("b", 3), ("c", 2)):
        store.create_topic(name, partitions=5, stores=stores)
    generator = np.random.default_rng(3)
    names = [["a", "b", "c"][n] for n in generator.integers(0, 3, 300)]
    payloads = [b"%d" % n for n in range(300)]
    acks = list(store.append_batch({"topic": names, "body": payloads}))
    for name, ack, body in zip(names, acks, payloads, strict=True):
        message = store.topic(name).message_at(ack.partition, ack.offset)
        assert message is not None
        assert (message.topic, message.body) == (name, body)
    for name in "abc":
        wanted = sorted(b for n, b in zip(names, payloads, strict=True) if n == name)
        table = store.topic(name).scan(columns=["body"]).read_all()
        assert sorted(table.column("body").to_pylist()) == wanted


def test_a_topic_column_may_be_a_dictionary_with_values_that_no_row_has(
    store: MessageStoreManager,
) -> None:
    store.create_topic("a")
    names = pa.DictionaryArray.from_arrays(pa.array([1, 1]), pa.array(["gone", "a"]))
    acks = store.append_batch(pa.table({"topic": names, "body": [b"x", b"y"]}))
    assert acks.offsets.to_pylist() == [0, 28]


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"body": [b"a"]}, InvalidMessage),
        ({"body": [b"a"], "topic": [None]}, InvalidMessage),
        ({"body": [b"a"], "topic": [5]}, TubeStoreError),
        ({"body": [b"a", b"b"], "topic": ["a", "nope"]}, UnknownTopic),
    ],
    ids=["no column", "null", "a number", "unknown"],
)
def test_a_batch_for_no_topic_is_refused_whole(
    store: MessageStoreManager, given: Any, error: type[Exception]
) -> None:
    topic = store.create_topic("a")
    with pytest.raises(error):
        store.append_batch(given)
    assert len(topic.read(0)) == 0


def test_an_empty_batch_for_many_topics_is_no_error(store: MessageStoreManager) -> None:
    assert len(store.append_batch([])) == 0
    empty = pa.table({"topic": pa.array([], pa.string()), "body": pa.array([], pa.binary())})
    assert len(store.append_batch(empty)) == 0


def test_rows_are_grouped_by_shard_and_keep_their_order() -> None:
    codes = np.array([1, 0, 1, 0, 1])
    ids = np.array([10_000, 5, 3, 20_001, 10_001])
    order, firsts, keys = ingest.shard_order(codes, ids)
    assert order is not None
    assert order.tolist() == [1, 3, 2, 0, 4]
    assert firsts.tolist() == [0, 1, 2, 3]
    assert keys.tolist() == [0, 2, 10_000, 10_001]
    assert ingest.shard_order(np.zeros(3, np.int64), np.array([1, 5, 9]))[0] is None
