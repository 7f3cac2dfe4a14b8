"""Whom a batch is for, however its column of topics is made."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tubestore.core.vfs import Vfs
from tubestore.errors import InvalidMessage, StoreFailed, UnknownTopic
from tubestore.store.append import AddressBook
from tubestore.store.manager import MessageStoreManager, engine_of
from tubestore.testing import FaultyVfs, MemoryVfs

NAMES = [f"topic{n}" for n in range(9)]


def opened(vfs: Vfs, names: list[str] = NAMES) -> MessageStoreManager:
    store = MessageStoreManager("/s", vfs=vfs, background=False)
    for name in names:
        store.create_topic(name)
    return store


def dictionary(indices: list[int | None], values: list[Any], kind: Any = None) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(indices, pa.int8()), pa.array(values, kind))


def named(book: AddressBook, column: pa.Array) -> list[str]:
    """Return the topic that each row of a column is for."""
    to, codes = book.of(pa.table({"topic": column}))
    assert codes.dtype == np.int64
    return [to.topics[code].name for code in codes.tolist()]


@pytest.fixture
def book(memory_vfs: MemoryVfs) -> Iterator[AddressBook]:
    with opened(memory_vfs) as store:
        yield engine_of(store).address_book


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view()])
def test_texts_are_known_again_in_any_order(book: AddressBook, kind: Any) -> None:
    for texts in (NAMES, NAMES[::-1], NAMES[3:5] * 2, ["topic7"]):
        assert named(book, pa.array(texts, kind)) == texts


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_dictionaries_are_known_again(book: AddressBook, kind: Any) -> None:
    for values in (NAMES, NAMES, NAMES[::-1], NAMES[:4]):
        column = dictionary([3, 0, 3, 1], values, kind)
        assert named(book, column) == [values[n] for n in (3, 0, 3, 1)]


def test_values_that_no_row_has_may_be_anything(book: AddressBook) -> None:
    column = dictionary([1, 0, 1], ["topic3", "topic5", "nobody", None])
    for _ in range(2):
        assert named(book, column) == ["topic5", "topic3", "topic5"]


def test_a_value_that_a_dictionary_has_twice_is_one_topic(book: AddressBook) -> None:
    to, codes = book.of(pa.table({"topic": dictionary([0, 2, 1], ["topic3", "topic5", "topic3"])}))
    assert codes[0] == codes[1] != codes[2]
    assert [to.topics[c].name for c in codes.tolist()] == ["topic3", "topic3", "topic5"]
    assert len({t.name for t in to.topics}) == len(to.topics)


def test_the_same_topics_are_looked_up_once(book: AddressBook) -> None:
    first, _ = book.of(pa.table({"topic": pa.array(NAMES)}))
    assert book.of(pa.table({"topic": pa.array(NAMES[::-1])}))[0] is first
    column = dictionary([0, 1], NAMES)
    second, _ = book.of(pa.table({"topic": column}))
    assert book.of(pa.table({"topic": column}))[0] is second


@pytest.mark.parametrize("known", [False, True])
def test_unknown_topics_and_rows_without_one_are_refused(book: AddressBook, known: bool) -> None:
    if known:
        named(book, pa.array(NAMES))
    with pytest.raises(UnknownTopic, match="nobody"):
        named(book, pa.array(["topic1", "nobody"]))
    with pytest.raises(UnknownTopic, match="nobody"):
        named(book, dictionary([0, 1], ["topic1", "nobody"]))
    with pytest.raises(InvalidMessage, match="every row needs a topic"):
        named(book, pa.array(["topic1", None]))
    with pytest.raises(InvalidMessage, match="every row needs a topic"):
        named(book, dictionary([0, None], NAMES))


def test_topics_that_change_are_looked_up_again(memory_vfs: MemoryVfs) -> None:
    store = opened(memory_vfs)
    table = pa.table({"topic": NAMES, "body": [b"x"] * 9})
    store.append_batch(table)
    store.delete_topic("topic4")
    with pytest.raises(UnknownTopic, match="topic4"):
        store.append_batch(table)
    store.create_topic("topic4", partitions=2)
    wider = table.append_column("partition", pa.array([0, 0, 0, 0, 1, 0, 0, 0, 0]))
    assert store.append_batch(wider).offsets.to_pylist() == [28, 28, 28, 28, 0, 28, 28, 28, 28]
    store.change_topic("topic5", stores=2)
    wider = table.append_column("partition", pa.array([0, 0, 0, 0, 0, 10_000, 0, 0, 0]))
    assert store.append_batch(wider).offsets.to_pylist() == [56, 56, 56, 56, 28, 0, 56, 56, 56]
    store.close()


def test_a_shard_that_cannot_be_opened_refuses_the_batch_before_anything_is_written(
    memory_vfs: MemoryVfs,
) -> None:
    table = pa.table({"topic": NAMES, "body": [b"x"] * 9})
    with opened(memory_vfs) as store:
        store.append_batch(table)
    faulty = FaultyVfs(memory_vfs)
    faulty.fail("entries", path="topic6-0/index", forever=True)
    with MessageStoreManager("/s", vfs=faulty, background=False) as again:
        for level in ("memory", "page_cache", "fsync"):
            with pytest.raises((StoreFailed, OSError)):
                again.append_batch(table, durability=level)
        faulty.heal()
        assert again.append_batch(table).offsets.to_pylist() == [28] * 9
