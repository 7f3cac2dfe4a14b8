"""Tags, times and columns of Arrow reads: the rows that a filter over everything would give."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

import rocketcompat
from rocketcompat import BatchItem, Message, MessageBatch
from rocketcompat.store.default_message_store import DefaultMessageStore
from tests.support.rocket.files.scanned import CONFIG
from tests.support.rocket.inside import dispatcher_of
from tubestore.clock import ManualClock
from tubestore.errors import InvalidMessage
from tubestore.testing import MemoryVfs

#: Two tags of one Java hash, another one, and none.
TAGS = ("Aa", "BB", "other", None)
COUNT = 120


@pytest.fixture
def store() -> Iterator[DefaultMessageStore]:
    """Messages a millisecond apart, in several files of the log and of each queue."""
    clock = ManualClock()
    with rocketcompat.open(
        "/store", mode="w", config=CONFIG.changed(batch_topics=frozenset({"B"})),
        vfs=MemoryVfs(), clock=clock, background=False,
    ) as store:  # fmt: skip
        for n in range(COUNT):
            tags = TAGS[n * 7 % 4]
            store.put_message(Message("T", b"x" * (n % 90), tags, [f"k{n % 3}"], queue_id=n % 2))
            clock.advance(1)
        dispatcher_of(store).dispatch_pending()
        yield store


def tag_of(row: dict[str, Any]) -> str | None:
    pairs = dict(pair.split("\x01") for pair in row["properties"].decode().split("\x02") if pair)
    return pairs.get("TAGS")


def rows(batches: Any) -> list[dict[str, Any]]:
    return [row for batch in batches for row in batch.to_pylist()]


def pages(store: DefaultMessageStore, queue: int, limit: int, **chosen: Any) -> Iterator[Any]:
    offset = 0
    while offset < store.max_offset_in_queue("T", queue):
        page = store.read_queue("T", queue, offset, limit, **chosen)
        assert page.next_offset > offset
        offset = page.next_offset
        yield page.batch


@pytest.mark.parametrize("tags", ["Aa", "BB || other", "nothing", "*", ""])
def test_tags_are_compared_as_texts_by_every_read(store: DefaultMessageStore, tags: str) -> None:
    names = {tag.strip() for tag in tags.split("||")} - {""}
    everything = rows(store.scan())
    wanted = [row for row in everything if tag_of(row) in names or tags in ("", "*")]
    assert rows(store.scan(tags=tags)) == wanted
    found = [row for queue in (0, 1) for row in rows(pages(store, queue, 1000, tags=tags))]
    assert sorted(found, key=lambda row: row["physical_offset"]) == wanted
    keys = store.query_messages("T", ["k0", "k1", "k2"], 64, tags=tags).drop(["key"]).to_pylist()
    assert sorted(keys, key=lambda row: row["physical_offset"]) == wanted


def test_a_limit_counts_messages_with_the_tags(store: DefaultMessageStore) -> None:
    page = store.read_queue("T", 0, 0, 3, tags="other")
    assert [tag_of(row) for row in page.batch.to_pylist()] == ["other"] * 3
    last = page.batch["queue_offset"][2].as_py()
    assert page.next_offset == last + 1
    many = store.read_queues({("T", 0): 0, ("T", 1): 0}, 3, tags="other")
    assert many.next_offsets == {("T", 0): page.next_offset, ("T", 1): 20}
    assert many.batch.num_rows == 3
    for limit in (1, 2, 7):
        again = rows(pages(store, 0, limit, tags="other"))
        assert again == rows(pages(store, 0, 1000, tags="other"))


def test_messages_are_chosen_by_their_times(store: DefaultMessageStore) -> None:
    everything = rows(store.scan())
    times = [row["store_timestamp"] for row in everything]
    begin, before = times[30], times[70]
    wanted = everything[30:70]
    assert rows(store.scan(begin=begin, before=before)) == wanted
    found = [row for q in (0, 1) for row in rows(pages(store, q, 9, begin=begin, before=before))]
    assert sorted(found, key=lambda row: row["physical_offset"]) == wanted
    keys = store.query_messages("T", ["k0", "k1", "k2"], 64, begin=begin, before=before)
    assert sorted(keys["physical_offset"].to_pylist()) == [r["physical_offset"] for r in wanted]
    assert store.query_messages("T", ["k0"], 2, before=before).num_rows == 2


def test_columns_come_in_the_order_that_was_asked_for(store: DefaultMessageStore) -> None:
    names = ["queue_offset", "store_timestamp", "topic"]
    for batch in (
        *store.scan(columns=names, tags="Aa", verify=True),
        store.read_queue("T", 0, columns=names).batch,
        store.read_queue("unknown", 0, columns=names).batch,
        store.read_queues({("T", 0): 0}, columns=names).batch,
        store.read_queues({("unknown", 0): 0}, columns=names).batch,
    ):
        assert batch.schema.names == names
    assert store.query_messages("T", ["k0"], columns=names).schema.names == ["key", *names]
    whole = pa.Table.from_batches(store.scan()).select(names)
    assert pa.Table.from_batches(store.scan(columns=names)) == whole
    bodies = pa.Table.from_batches(store.scan(columns=["body"]))
    assert bodies == pa.Table.from_batches(store.scan()).select(["body"])


def test_delayed_messages_are_found_by_their_tags(store: DefaultMessageStore) -> None:
    store.put_message(Message("D", b"later", "Aa", delay_level=3))
    dispatcher_of(store).dispatch_pending()
    found = store.read_queue("SCHEDULE_TOPIC_XXXX", 2, tags="Aa").batch
    assert found["body"].to_pylist() == [b"later"]
    assert not store.read_queue("SCHEDULE_TOPIC_XXXX", 2, tags="BB").batch.num_rows


def test_inner_batches_are_chosen_by_their_tags(store: DefaultMessageStore) -> None:
    for tag in ("Aa", "other", "Aa"):
        items = [BatchItem(b"1"), BatchItem(b"2")]
        store.put_inner_batch(MessageBatch("B", items, properties={"TAGS": tag}))
    dispatcher_of(store).dispatch_pending()
    page = store.read_queue("B", 0, 0, 3, tags="Aa")
    assert page.batch["queue_offset"].to_pylist() == [0]
    assert page.next_offset == 2
    page = store.read_queue("B", 0, 2, 3, tags="Aa")
    assert page.batch["queue_offset"].to_pylist() == [4]
    assert page.next_offset == 6


@pytest.mark.parametrize(
    ("chosen", "named"),
    [
        ({"columns": ["bodies"]}, "bodies"), ({"columns": []}, "one at least"),
        ({"columns": ["body", "body"]}, "none twice"), ({"tags": 5}, "tags"),
        ({"begin": "yesterday-ish"}, "begin"), ({"before": "soon"}, "before"),
    ],
)  # fmt: skip
def test_a_wrong_choice_is_refused_by_every_read(
    store: DefaultMessageStore, chosen: dict[str, Any], named: str
) -> None:
    for read in (
        lambda: list(store.scan(**chosen)),
        lambda: store.read_queue("T", 0, **chosen),
        lambda: store.read_queues({("T", 0): 0}, **chosen),
        lambda: store.query_messages("T", ["k0"], **chosen),
    ):
        with pytest.raises(InvalidMessage, match=named):
            read()
