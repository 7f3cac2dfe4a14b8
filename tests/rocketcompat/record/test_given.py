"""Messages given as columns: what cannot be stored is refused by name."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from rocketcompat import Message
from rocketcompat.record.columns import decode_columns
from rocketcompat.record.encode import encode_columns
from tests.support.golden_puts import files_of
from tests.support.inner_batches import CONFIG, opened, rows_of
from tests.support.rocket.files.encoded import NEWER, OLDER
from tests.support.rocket.inside import dispatcher_of
from tubestore.clock import ManualClock
from tubestore.errors import InvalidMessage, InvalidName


@pytest.mark.parametrize(
    ("given_columns", "what"),
    [
        ({"body": [b"x"]}, "no column 'topic'"),
        ({"topic": ["T"], "colour": ["red"]}, "colour"),
        ({"topic": [None]}, "topic"),
        ({"topic": ["T"], "queue_id": [-1]}, "queue_id"),
        ({"topic": ["T"], "queue_id": ["one"]}, "queue_id"),
        ({"topic": ["T"], "flag": [1 << 40]}, "flag"),
        ({"topic": ["T"], "body": [1.5]}, "body"),
        ({"topic": ["T"], "tags": ["a\x02b"]}, "TAGS"),
        ({"topic": ["T"], "keys": [["a b"]]}, "keys"),
        ({"topic": ["T"], "properties": ["x\x01y"], "tags": ["a"]}, "property string"),
        ({"topic": ["T"], "properties": ["x\x01\0"]}, "U\\+0000"),
        ({"topic": ["T"], "born_timestamp": [1.5]}, "born_timestamp"),
        ({"topic": ["T"], "store_host": ["nowhere"]}, "store_host"),
    ],
)
def test_columns_that_cannot_be_stored_are_refused_by_name(
    given_columns: dict[str, Any], what: str
) -> None:
    with pytest.raises(InvalidMessage, match=what):
        encode_columns(given_columns, OLDER)


def test_a_name_with_the_separator_in_it_is_refused_in_columns_too() -> None:
    kind = pa.map_(pa.string(), pa.string())
    properties = pa.array([{"a\x01b": "c"}], kind)
    with pytest.raises(InvalidMessage, match="properties"):
        encode_columns({"topic": ["T"], "properties": properties}, OLDER)


@pytest.mark.parametrize(("first", "row"), [(0, 2), (1, 1)])
def test_a_null_in_a_row_s_properties_or_keys_is_refused(first: int, row: int) -> None:
    """It took all of the row's properties, or keys, with it."""
    maps = pa.map_(pa.string(), pa.string())
    properties = pa.array([{"a": "1"}, None, {"b": "2", "c": None}, {"d": "3"}], maps)[first:]
    keys = pa.array([["a"], None, ["b", None], ["d"]], pa.list_(pa.string()))[first:]
    topic = ["T"] * len(keys)
    with pytest.raises(InvalidMessage, match=f"row {row}: properties: a value is null"):
        encode_columns({"topic": topic, "properties": properties}, OLDER)
    with pytest.raises(InvalidMessage, match=f"row {row}: keys: a value is null"):
        encode_columns({"topic": topic, "keys": keys}, OLDER)
    for part in (properties[:row], properties[row + 1 :]):  # what a slice leaves out is as it was
        encode_columns(
            {"topic": ["T"] * len(part), "body": [b"x"] * len(part), "properties": part}, OLDER
        )


def test_maps_of_properties_follow_keys_and_tags() -> None:
    kind = pa.map_(pa.string(), pa.string())
    given_columns = {
        "topic": ["a", "b", "c"],
        "tags": ["t", None, None],
        "properties": pa.array([{"x": "1", "y": "2"}, None, {}], kind),
    }
    encoded = encode_columns(given_columns, OLDER)
    encoded.place(np.zeros(3, np.int64), encoded.bounds[:-1], 0)
    found = decode_columns(encoded.data.tobytes(), encoded.bounds[:-1], 0)
    assert found.properties().to_pylist() == [b"TAGS\x01t\x02x\x011\x02y\x012", b"", b""]


def columns_with_inner() -> dict[str, list[Any]]:
    """Inner batches at both ends, behind each other and between other messages."""
    topics = ["B", "T", "B", "B", "T", "B", "B"]
    texts = [inner_text(3), "TAGS\x01x", inner_text(2), inner_text(1), "", "", inner_text(4)]
    return {
        "topic": topics, "body": [b"body%d" % n for n in range(7)], "properties": texts,
        "sys_flag": [0x80 if "INNER_NUM" in text else 0 for text in texts],
        "flag": list(range(7)), "queue_id": [0] * 7, "born_timestamp": list(range(50, 57)),
        "born_host": ["10.0.0.1:5", "[::1]:6"] * 3 + ["10.0.0.1:5"],
    }  # fmt: skip


def inner_text(count: int) -> str:
    return f"TAGS\x01t\x02INNER_NUM\x01{count}\x02"


@pytest.mark.parametrize("compat", ["4.9.8", "5.3.3"])
def test_rows_with_inner_batches_become_what_so_many_single_puts_do(
    tmp_path: Path, compat: Any
) -> None:
    config, given = CONFIG.changed(compat=compat), columns_with_inner()
    with opened(tmp_path / "one", config, clock=ManualClock(1000)) as store:
        names = ("topic", "body", "properties", "sys_flag", "flag", "queue_id", "born_timestamp")
        single = []
        for row in range(7):
            fields = {name: given[name][row] for name in (*names, "born_host")}
            single.append(store.put_message(Message(**fields)))
    with opened(tmp_path / "many", config, clock=ManualClock(1000)) as store:
        table = store.put_columns(given)
        dispatcher_of(store).dispatch_pending()
        assert [row[1:] for row in rows_of(store)] == [(0, 3), (3, 2), (5, 1), (6, 1), (7, 4)]
    for name in ("physical_offset", "queue_offset", "size", "store_timestamp"):
        assert table[name].to_pylist() == [getattr(put, name) for put in single]
    assert files_of(tmp_path / "one", "commitlog") == files_of(tmp_path / "many", "commitlog")
    queues = "batchconsumequeue"
    assert files_of(tmp_path / "one", queues) == files_of(tmp_path / "many", queues)


@pytest.mark.parametrize("text", ["INNER_NUM\x010\x02", "INNER_NUM\x01no\x02"])
def test_an_inner_batch_that_is_none_refuses_all_rows(tmp_path: Path, text: str) -> None:
    given = columns_with_inner()
    given["properties"][3] = text
    with opened(tmp_path) as store:
        with pytest.raises(InvalidMessage, match="INNER_NUM"):
            store.put_columns(given)
        assert store.max_physical_offset == 0


def test_properties_are_taken_as_dicts(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        given = [{"region": "eu"}, {"colour": "red"}, None, {}]
        put = store.put_columns({"topic": ["T"] * 4, "body": [b"x"] * 4, "properties": given})
        records = [store.look_message(at) for at in put["physical_offset"].to_pylist()]
        assert [record and record.properties for record in records] == [g or {} for g in given]
        before = store.max_physical_offset
        with pytest.raises(InvalidMessage, match="properties: "):
            store.put_columns({"topic": ["T"], "body": [b"x"], "properties": [{"a": 1}]})
        assert store.max_physical_offset == before


@pytest.mark.parametrize("names", [["A", "B", "C"], ["A", "B" * 200, "C"], ["A", "B", "no/name"]])
def test_batches_with_one_dictionary_of_topics_are_those_of_their_texts(names: list[str]) -> None:
    """Long names have records of another version; a name that no row has is not looked at."""
    dictionary = pa.array(names)
    for codes in ([0, 1, 0], [1, 0, 1], [1, 1, 0], [1, 1, 1], [0, 1, 1]):
        topics = pa.DictionaryArray.from_arrays(pa.array(codes, pa.int8()), dictionary)
        shared = encode_columns({"topic": topics, "body": [b"1", b"2", b"3"]}, NEWER)
        texts = [names[code] for code in codes]
        alone = encode_columns({"topic": texts, "body": [b"1", b"2", b"3"]}, NEWER)
        assert bytes(shared.data) == bytes(alone.data)
        assert [shared.topic_names[code] for code in shared.topic_codes.tolist()] == texts


def test_a_name_of_a_known_dictionary_is_refused_in_the_batch_that_has_it() -> None:
    dictionary = pa.array(["A", "B", "no/name"])
    for codes, is_refused in (([0, 1], False), ([0, 1], False), ([0, 2], True), ([1, 0], False)):
        topics = pa.DictionaryArray.from_arrays(pa.array(codes, pa.int8()), dictionary)
        expected = pytest.raises(InvalidName, match="no/name") if is_refused else nullcontext()
        with expected:
            encode_columns({"topic": topics}, NEWER)


def test_a_known_dictionary_is_held_against_the_size_limit_of_each_store() -> None:
    dictionary = pa.array(["A", "B" * 200])
    topics = pa.DictionaryArray.from_arrays(pa.array([0, 1], pa.int8()), dictionary)
    for _ in range(2):
        encode_columns({"topic": topics}, NEWER)
    for config, is_refused in ((NEWER, False), (OLDER, True), (NEWER, False)):
        expected = pytest.raises(InvalidName, match="200 bytes") if is_refused else nullcontext()
        with expected:
            encode_columns({"topic": topics}, config)
