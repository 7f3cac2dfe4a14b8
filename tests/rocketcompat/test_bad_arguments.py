"""A bad argument of a public call is one clear error before anything changes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

import rocketcompat
from rocketcompat import BatchItem, Message, MessageBatch, MessageStoreConfig
from rocketcompat.check.whole import check
from rocketcompat.inspect.directory import StoreDirectory
from rocketcompat.staging.writer import StagedLogWriter
from rocketcompat.store.default_message_store import DefaultMessageStore
from tests.support.arguments import ROOTS, mistakes, refuse_root, refused
from tests.support.rocket.inside import dispatcher_of
from tubestore.clock import ManualClock
from tubestore.errors import InvalidMessage, InvalidName, NotAStore, TubeStoreError
from tubestore.testing import MemoryVfs

CONFIG = MessageStoreConfig(
    mapped_file_size_commit_log=4096, mapped_file_size_consume_queue=200, max_hash_slot_num=5,
    max_index_num=50, layouts=frozenset({"consume_queue", "index"}), batch_topics=frozenset({"B"}),
    compat="5.3.3",
)  # fmt: skip
QUEUE = {"topic": "text", "queue_id": "whole"}
BATCH = MessageBatch("T", [BatchItem(b"x")])
LEVEL = {"durability": "choice?"}
CHOICE = {"tags": "text?", "columns": "texts?", "begin": "time?", "before": "time?"}
#: Of each call: arguments that are taken, and the kind of each argument.
CALLS: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
    "clean_staging": ({}, {"grace": "age"}),
    "commit_log_data": ({"physical_offset": 0}, {"physical_offset": "whole"}),
    "earliest_message_time": ({"topic": "T"}, {"topic": "text?", "queue_id": "whole"}),
    "get_message": ({"topic": "T", "queue_id": 0, "offset": 0}, {
        **QUEUE, "offset": "whole", "max_count": "whole", "tags": "text?", "where": "function?",
    }),
    "look_message": ({"physical_offset": 0}, {"physical_offset": "count"}),
    "look_message_by_id": ({"msg_id": "7F00000100002A9F0000000000000000"}, {"msg_id": "text"}),
    "max_offset_in_queue": ({"topic": "T", "queue_id": 0}, QUEUE),
    "message_store_timestamp": ({"topic": "T", "queue_id": 0, "offset": 0},
                                {**QUEUE, "offset": "whole"}),
    "min_offset_in_queue": ({"topic": "T", "queue_id": 0}, QUEUE),
    "offset_in_queue_by_time": ({"topic": "T", "queue_id": 0, "time": 5},
                                {**QUEUE, "time": "time", "boundary": "choice?"}),
    "publish": ({"job_id": "j", "staged": []},
                {"job_id": "text", "staged": "pieces", "threads": "count?", "query": "text?"}),
    "put_columns": ({"messages": {"topic": ["T"]}}, {"messages": "rows", **LEVEL}),
    "put_inner_batch": ({"batch": MessageBatch("B", [BatchItem(b"x")])},
                        {"batch": "rows", **LEVEL}),
    "put_message": ({"message": Message("T", b"x")}, {"message": "rows", **LEVEL}),
    "put_messages": ({"batch": BATCH}, {"batch": "rows", **LEVEL}),
    "query_message": ({"topic": "T", "key": "k"}, {
        "topic": "text", "key": "text", "max_count": "count?", "begin": "time", "end": "time?",
    }),
    "query_messages": ({"topic": "T", "keys": ["k"]},
                       {"topic": "text", "keys": "texts", "max_count": "count?", **CHOICE}),
    "read_queue": ({"topic": "T", "queue_id": 0},
                   {**QUEUE, "offset": "whole", "limit": "count", **CHOICE}),
    "read_queues": ({"offsets": {("T", 0): 0}}, {"offsets": "mapping", "limit": "count", **CHOICE}),
    "scan": ({}, {"start": "count?", "end": "count?", **CHOICE}),
    "wait_dispatched": ({"physical_offset": 0},
                        {"physical_offset": "whole", "timeout": "seconds?"}),
}  # fmt: skip
#: The kinds of the fields of what is put.
FIELDS = {
    "topic": "name", "body": "body", "tags": "text?", "keys": "keys?", "properties": "pairs?",
    "queue_id": "count", "flag": "int32", "sys_flag": "int32", "born_timestamp": "time?",
    "born_host": "host", "store_host": "host?", "reconsume_times": "int32",
    "prepared_transaction_offset": "int64", "delay_level": "level",
}  # fmt: skip
#: Those that items of a batch have, and those that only a single message has.
ITEM, SINGLE = {"body", "tags", "keys", "flag"}, {"prepared_transaction_offset", "delay_level"}


@pytest.fixture
def store() -> Iterator[DefaultMessageStore]:
    clock = ManualClock()
    with rocketcompat.open(
        "/s", "w", CONFIG, vfs=MemoryVfs(clock), clock=clock, background=False
    ) as opened:
        opened.put_message(Message("T", b"x", tags="a", keys="k"))
        dispatcher_of(opened).dispatch_pending()
        yield opened


@pytest.mark.parametrize("name", CALLS)
def test_a_stores_calls_refuse_bad_arguments_in_a_sentence(
    store: DefaultMessageStore, name: str
) -> None:
    given, kinds = CALLS[name]
    assert list(mistakes(getattr(store, name), given, kinds)) == []


def test_sending_back_refuses_bad_arguments_in_a_sentence(store: DefaultMessageStore) -> None:
    given = {"record": store.look_message(0), "group": "g"}
    kinds = {"record": "rows", "group": "name", "delay_level": "whole", "times_max": "count"}
    assert list(mistakes(store.send_back, given, kinds)) == []


def put_fields(store: DefaultMessageStore, name: str, value: Any) -> None:
    store.put_message(Message(**{"topic": "T", name: value}))


def put_in_batch(store: DefaultMessageStore, name: str, value: Any, inner: bool = False) -> None:
    put = store.put_inner_batch if inner else store.put_messages
    topic = "B" if inner else "T"
    if name in ITEM:
        put(MessageBatch(topic, [BatchItem(b"sound"), BatchItem(**{name: value})]))
    else:
        put(MessageBatch(**{"topic": topic, "items": [BatchItem(b"x")], name: value}))


def put_inner(store: DefaultMessageStore, name: str, value: Any) -> None:
    put_in_batch(store, name, value, inner=True)


@pytest.mark.parametrize("name", FIELDS)
@pytest.mark.parametrize("put", [put_fields, put_in_batch, put_inner])
def test_a_field_of_the_wrong_type_is_refused_by_its_name_and_nothing_is_written(
    store: DefaultMessageStore, put: Any, name: str
) -> None:
    if put is not put_fields and name in SINGLE:
        pytest.skip("a batch has no such field")
    end = store.max_physical_offset
    for value in refused(FIELDS[name]):
        with pytest.raises(TubeStoreError) as caught:
            put(store, name, value)
        assert "\n" not in str(caught.value)
    assert store.max_physical_offset == end


@pytest.mark.parametrize(
    "column",
    [
        {"topic": [7]}, {"body": [7]}, {"tags": [7]}, {"keys": [7]}, {"keys": [["a b"]]},
        {"properties": [7]}, {"properties": [{"a": 5}]}, {"queue_id": ["7"]}, {"queue_id": [True]},
        {"queue_id": [-1]}, {"flag": ["7"]}, {"flag": [1.5]}, {"sys_flag": [1 << 31]},
        {"born_timestamp": [1 << 63]}, {"born_host": ["nowhere"]}, {"born_host": [7]},
        {"delay_level": ["7"]}, {"delay_level": [-2]},
    ],
)  # fmt: skip
def test_a_column_of_the_wrong_type_is_refused_and_nothing_is_written(
    store: DefaultMessageStore, column: dict[str, Any]
) -> None:
    end = store.max_physical_offset
    with pytest.raises(TubeStoreError):
        store.put_columns({"topic": ["T"], **column})
    assert store.max_physical_offset == end


@pytest.mark.parametrize("root", ROOTS)
@pytest.mark.parametrize("opens", [rocketcompat.open, StoreDirectory, check])
def test_a_root_that_is_no_path_is_refused(opens: Any, root: Any, tmp_path: Path) -> None:
    refuse_root(opens, root, tmp_path)


@pytest.mark.parametrize("mode", ["r", "w"])
def test_a_root_that_is_a_file_is_no_store(tmp_path: Path, mode: Any) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"mine")
    with pytest.raises(NotAStore, match="not a directory"):
        rocketcompat.open(path, mode)
    assert path.read_bytes() == b"mine"
    assert list(tmp_path.iterdir()) == [path]


def test_a_staged_writer_refuses_what_is_no_path_or_job(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="root ''"):
        StagedLogWriter("", "job", "0", config=CONFIG)
    for job in ("", None, 7):
        with pytest.raises(InvalidName):
            StagedLogWriter(tmp_path, job, "0", config=CONFIG)  # type: ignore[arg-type]


@pytest.mark.parametrize("option", [f.name for f in fields(MessageStoreConfig) if f.init])
def test_an_option_of_the_wrong_type_is_refused_by_its_name(option: str) -> None:
    wrong = {None, object(), -1, 1.5, ("x", 5)} - {getattr(CONFIG, option)}
    for value in wrong:
        with pytest.raises(InvalidMessage, match=option):
            replace(CONFIG, **{option: value})


def test_a_file_is_no_directory_of_a_store(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NotAStore, match="not a directory"):
        StoreDirectory(tmp_path / "file")


def test_an_open_that_is_given_options_in_another_way_names_the_right_one(tmp_path: Path) -> None:
    opens: Any = rocketcompat.open
    with pytest.raises(InvalidMessage, match=r"config: a rocketcompat\.MessageStoreConfig is"):
        opens(tmp_path, "w", {"flushDiskType": "SYNC_FLUSH"})
    for name in ("flush_disk_type", "flushDiskType"):
        with pytest.raises(TypeError, match=r"config=.*MessageStoreConfig\(flush_disk_type="):
            opens(tmp_path, "w", **{name: "SYNC_FLUSH"})
    with pytest.raises(TypeError, match="unknown 'layout'; did you mean 'layouts'"):
        opens(tmp_path, layout=["index"])
    with pytest.raises(TypeError, match="unknown 'mod'; did you mean 'mode'"):
        opens(tmp_path, mod="w")
    assert list(tmp_path.iterdir()) == []
