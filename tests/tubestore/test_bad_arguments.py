"""A bad argument of a public call is one clear error before anything changes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tubestore
from tests.support.arguments import ROOTS, mistakes, refuse_root
from tubestore.clock import ManualClock
from tubestore.errors import InvalidMessage, InvalidName
from tubestore.offline.check import check
from tubestore.offline.repair import repair
from tubestore.staging.writer import StagedWriter
from tubestore.store.manager import MessageStoreManager
from tubestore.testing import MemoryVfs

PLACE = {"partition": "whole"}
FILTERS = {"filter_items": "texts?", "start": "time?", "end": "time?"}
PAGES = {
    **FILTERS, "limit": "count", "max_bytes": "size?", "columns": "texts?",
}  # fmt: skip
BOUNDS = {"max_age": "age?", "max_bytes": "size?"}
#: Of each call: arguments that are taken, and the kind of each argument.
TOPIC: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
    "append": ({"body": b"x"}, {
        "body": "bytes", "key": "key?", "partition": "whole?", "filter_item": "text?",
        "attributes": "mapping?", "received_time": "time?", "sender": "text?",
        "durability": "choice?",
    }),
    "append_batch": ({"data": {"body": [b"x"]}}, {"data": "rows", "durability": "choice?"}),
    "count": ({"partition": 0}, {**PLACE, "start": "offset", "end": "offset"}),
    "explain_retention": ({}, BOUNDS),
    "first_offset": ({"partition": 0}, PLACE),
    "follow": ({"partition": 0, "idle_timeout": 0}, {
        **PLACE, "offset": "offset", "filter_items": "texts?", "idle_timeout": "seconds?",
    }),
    "get_messages": ({"partition": 0, "offset": 0}, {
        **PLACE, "offset": "whole", "filter_items": "texts?", "max_bytes": "size",
        "min_time": "time?", "switch": "whole", "max_entries": "count",
    }),
    "last_offset": ({"partition": 0}, PLACE),
    "message_at": ({"partition": 0, "offset": 0}, {**PLACE, "offset": "count"}),
    "messages": ({"partition": 0}, {**PLACE, "offset": "offset", **FILTERS}),
    "next_offset": ({"partition": 0}, PLACE),
    "offset_at": ({"partition": 0, "time": 5}, {**PLACE, "time": "time", "boundary": "choice"}),
    "read": ({"partition": 0}, {**PLACE, "offset": "offset", **PAGES}),
    "read_many": ({"offsets": {0: 0}}, {"offsets": "mapping", **PAGES}),
    "retain": ({}, {**BOUNDS}),
    "scan": ({}, {**PAGES, "limit": "count?"}),
    "skip": ({"partition": 0, "offset": 0, "count": 1},
             {**PLACE, "offset": "offset", "count": "whole"}),
}  # fmt: skip
STORE: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
    "abort": ({"job_id": "j"}, {"job_id": "text"}),
    "append_batch": ({"data": {"topic": ["t"], "body": [b"x"]}},
                     {"data": "rows", "durability": "choice?"}),
    "change_topic": ({"name": "t"}, {
        "name": "name", "partitions": "count?", "stores": "count?", **BOUNDS,
    }),
    "consumer": ({"group": "g", "topics": "t"}, {
        "auto_commit_interval": "seconds", "max_poll_interval": "seconds",
        "session_timeout": "seconds",
    }),
    "clean_staging": ({}, {"grace": "age"}),
    "create_topic": ({"name": "t", "partitions": 2, "exist_ok": True}, {
        "name": "name", "partitions": "count", "stores": "count", **BOUNDS,
    }),
    "delete_topic": ({"name": "u"}, {"name": "name"}),
    "describe_topic": ({"name": "t"}, {"name": "name"}),
    "empty_trash": ({}, {"grace": "age?"}),
    "ensure_topics": ({"wanted": {}}, {"wanted": "mapping"}),
    "explain_retention": ({}, {"topics": "names?", **BOUNDS}),
    "lease": ({}, {"topics": "names?", "offsets": "mapping?", "ttl": "age", "holder": "text?"}),
    "publish": ({"job_id": "j", "staged": []}, {
        "job_id": "text", "staged": "pieces", "threads": "count?",
        "query": "text?",
    }),
    "retain": ({}, {"topics": "names?", **BOUNDS}),
    "topic": ({"name": "t"}, {"name": "name"}),
}  # fmt: skip


@pytest.fixture
def store() -> Iterator[MessageStoreManager]:
    clock = ManualClock()
    vfs = MemoryVfs(clock)
    with tubestore.open("/s", vfs=vfs, clock=clock, background=False) as opened:
        for name in ("t", "u"):
            opened.create_topic(name, partitions=2).append(b"x", partition=0)
        yield opened


def test_settings_of_topics_that_are_none_are_refused_in_a_sentence(
    store: MessageStoreManager,
) -> None:
    wanted: Any = {"t": tubestore.TopicOptions(), "v": {"partitions": 2}}
    with pytest.raises(TypeError, match="of 'v' is not a TopicOptions"):
        store.ensure_topics(wanted)
    assert store.topics() == ["t", "u"]


@pytest.mark.parametrize("name", TOPIC)
def test_a_topics_calls_refuse_bad_arguments_in_a_sentence(
    store: MessageStoreManager, name: str
) -> None:
    given, kinds = TOPIC[name]
    assert list(mistakes(getattr(store["t"], name), given, kinds)) == []


@pytest.mark.parametrize("name", STORE)
def test_a_stores_calls_refuse_bad_arguments_in_a_sentence(
    store: MessageStoreManager, name: str
) -> None:
    given, kinds = STORE[name]
    assert list(mistakes(getattr(store, name), given, kinds)) == []


def test_a_consumers_poll_refuses_bad_arguments_in_a_sentence(store: MessageStoreManager) -> None:
    kinds = {"limit": "count", "max_bytes": "size", "timeout": "seconds"}
    with store.consumer(None, "t") as consumer:
        assert list(mistakes(consumer.poll, {}, kinds)) == []


@pytest.mark.parametrize("name", ["append_timeout_ms", "retention_interval_ms", "trash_grace_ms"])
def test_a_setting_beyond_all_bounds_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} = .*: below"):
        tubestore.StoreOptions(**{name: 1 << 62})


@pytest.mark.parametrize("root", ROOTS)
@pytest.mark.parametrize("opens", [tubestore.open, check, repair])
def test_a_root_that_is_no_path_is_refused(opens: Any, root: Any, tmp_path: Path) -> None:
    """An empty one was the current directory, and a store was made in it."""
    refuse_root(opens, root, tmp_path)


def test_two_columns_for_one_thing_are_refused(store: MessageStoreManager) -> None:
    with pytest.raises(InvalidMessage, match="only one of them"):
        store["t"].append_batch({"body": [b"x"], "partition": [0], "partition_id": [1]})
    assert store["t"].count(0) == 1


def test_a_staged_writer_refuses_what_is_no_path_or_job(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="root ''"):
        StagedWriter("", "job", "0")
    for job in ("", None, 7):
        with pytest.raises(InvalidName):
            StagedWriter(tmp_path, job, "0")  # type: ignore[arg-type]
