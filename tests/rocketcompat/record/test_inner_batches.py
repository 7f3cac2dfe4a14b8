"""Inner batches as they are put: what is refused, and many in columns beside one by one."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from rocketcompat import Message, MessageStoreConfig
from rocketcompat.record.encode import encode_columns
from rocketcompat.record.prepare import prepare
from tests.support.golden_puts import files_of
from tests.support.inner_batches import CONFIG, batch, opened, rows_of
from tests.support.rocket.inside import dispatcher_of
from tubestore.clock import ManualClock
from tubestore.errors import InvalidMessage

NEWER = MessageStoreConfig(compat="5.3.3")


def test_an_inner_batch_is_refused_where_there_are_no_batch_queues() -> None:
    with pytest.raises(InvalidMessage, match="inner batch"):
        prepare(Message("T", sys_flag=0x80, properties={"INNER_NUM": "3"}), NEWER)
    with pytest.raises(InvalidMessage, match="INNER_NUM"):
        prepare(Message("T", properties={"INNER_NUM": "3"}), NEWER)
    assert prepare(Message("T", tags="INNER_NUM"), NEWER).copies == ()


@pytest.mark.parametrize("config", [CONFIG, CONFIG.changed(compat="4.9.8")])
@pytest.mark.parametrize(
    ("properties", "sys_flag", "match"),
    [
        ({"INNER_NUM": "3"}, 0, "not an inner batch"),
        ({"INNER_NUM": "0"}, 0x80, "not a number of messages"),
        ({"INNER_NUM": "40000"}, 0x80, "not a number of messages"),
        ({"INNER_NUM": "many"}, 0x80, "not a number of messages"),
        ({"INNER_NUM": "3"}, 0x84, "transaction"),
    ],
)
def test_what_is_no_sound_inner_batch_is_refused(
    config: MessageStoreConfig, properties: dict[str, str], sys_flag: int, match: str
) -> None:
    with pytest.raises(InvalidMessage, match=match):
        prepare(Message("B", properties=properties, sys_flag=sys_flag), config)


def test_inner_batches_are_not_encoded_as_columns_without_their_offsets(tmp_path: Path) -> None:
    for config in (CONFIG, CONFIG.changed(compat="4.9.8")):
        with pytest.raises(InvalidMessage, match="put_inner_batch"):
            encode_columns({"topic": ["B"], "sys_flag": [0x80]}, config)
    with opened(tmp_path) as store:
        store.put_columns({"topic": ["B"] * 3, "body": [b"x"] * 3})
        dispatcher_of(store).dispatch_pending()
        assert [row[1:] for row in rows_of(store)] == [(0, 1), (1, 1), (2, 1)]


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


def test_an_empty_batch_and_a_file_that_no_broker_can_fill_are_refused(tmp_path: Path) -> None:
    with opened(tmp_path) as store, pytest.raises(InvalidMessage, match="without messages"):
        store.put_inner_batch(batch(0))
    with pytest.raises(InvalidMessage, match="not a multiple"):
        CONFIG.changed(mapper_file_size_batch_consume_queue=1000)
    assert not any(size % 46 for size in itertools.islice(itertools.count(46, 46), 3))
