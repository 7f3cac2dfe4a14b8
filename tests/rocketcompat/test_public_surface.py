"""What users of RocketMQ stores hold shows documented names only; a new name is seen here."""

from __future__ import annotations

import doctest
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import rocketcompat
from rocketcompat import messages, options
from rocketcompat.messages import BatchItem, Message, MessageBatch
from rocketcompat.store import default_message_store, reader
from tests.support.rocket.inside import dispatcher_of, parts_of
from tubestore.errors import ReadOnlyStore, StoreClosed
from tubestore.testing import MemoryVfs

READER = """
    broker_config close commit_log_data config dispatch_behind_bytes earliest_message_time
    get_message look_message look_message_by_id max_offset_in_queue max_physical_offset
    message_store_timestamp
    min_offset_in_queue min_physical_offset mode offset_in_queue_by_time problems query_message
    query_messages queue_table read_queue read_queues refresh root scan show_replication shutdown
    stats     wait_dispatched
"""
WRITER = """
    clean clean_staging deliver_due execute_delete_files_manually flush publish put_columns
    put_inner_batch put_message put_messages recovered send_back set_arrival_listener
    set_replication
"""
FOUND = "entries messages physical_offsets problems rows"
PULLED = FOUND + " max_offset min_offset next_begin_offset queue_offsets status"
QUERIED = FOUND + " index_last_update_physical_offset index_last_update_timestamp"
RECORD = """
    body body_crc born_host born_host_bytes born_timestamp flag message msg_id payload
    physical_offset prepared_transaction_offset properties properties_text queue_id queue_offset
    reconsume_times size state store_host store_host_bytes store_timestamp sys_flag topic version
"""
PUT = "count index msg_id physical_offset queue_offset size status store_host_bytes store_timestamp"
PUT_BATCH = PUT.replace("physical_offset", "physical_offsets").replace("size ", "sizes ")
VERDICT = "delete due_ms modified_ms path reason size start"
PAGE = "batch problems table to_arrow to_pandas to_polars "
PUBLISHED = "data_size end job_id number replayed rows start"
RECOVERED = """
    clean cut_bytes damages dropped index_verified_from log_end own quarantine reason verified_from
"""

EXAMPLES = """
    DefaultMessageStore Message MessageBatch MessageRecord MessageStoreConfig PutResult StoreReader
"""

HELD: dict[str, tuple[Callable[[Any], Any], str]] = {
    "writer": (lambda store: store, READER + WRITER),
    "answer of get_message": (lambda store: store.get_message("T", 0, 0), PULLED),
    "answer of query_message": (lambda store: store.query_message("T", "k"), QUERIED),
    "page": (lambda store: store.read_queue("T", 0), PAGE + "next_offset"),
    "pages": (lambda store: store.read_queues({("T", 0): 0}), PAGE + "next_offsets"),
    "record": (lambda store: store.look_message(0), RECORD),
    "answer of put_message": (lambda store: store.put_message(Message("T")), PUT),
    "answer of put_messages": (
        lambda store: store.put_messages(MessageBatch("T", [BatchItem()])), PUT_BATCH
    ),
    "answer of clean": (lambda store: store.clean(dry_run=True)[0], VERDICT),
    "what opening found": (lambda store: store.recovered, RECOVERED),
    "answer of publish": (lambda store: store.publish("j", []), PUBLISHED),
}  # fmt: skip


def public(held: Any) -> list[str]:
    return [name for name in dir(held) if not name.startswith("_")]


@pytest.fixture
def store(memory_vfs: MemoryVfs) -> Iterator[rocketcompat.DefaultMessageStore]:
    with rocketcompat.open("/s", "w", vfs=memory_vfs, background=False) as opened:
        put = opened.put_message(Message("T", b"x", keys="k"))
        opened.wait_dispatched(put.physical_offset)
        yield opened


@pytest.fixture
def read(store: Any, memory_vfs: MemoryVfs) -> Iterator[rocketcompat.StoreReader]:
    with rocketcompat.open("/s", vfs=memory_vfs) as opened:
        yield opened


@pytest.mark.parametrize("held", HELD)
def test_an_object_that_users_hold_shows_only_documented_names(store: Any, held: str) -> None:
    make, names = HELD[held]
    assert public(make(store)) == sorted(names.split())


def test_a_reader_shows_the_reading_calls_only(read: rocketcompat.StoreReader) -> None:
    assert public(read) == sorted(READER.split())
    assert type(read) is rocketcompat.StoreReader


@pytest.mark.parametrize("kind", [rocketcompat.StoreReader, rocketcompat.DefaultMessageStore])
def test_each_public_method_has_a_docstring(kind: type) -> None:
    for name in public(kind):
        assert name == "mode" or getattr(kind, name).__doc__, name


@pytest.mark.parametrize("module", [rocketcompat, reader, default_message_store, messages, options])
def test_the_examples_of_open_and_of_each_store_do_what_they_show(module: Any) -> None:
    found = doctest.testmod(module)
    assert found.attempted >= 2
    assert not found.failed


@pytest.mark.parametrize("name", EXAMPLES.split())
def test_the_classes_that_users_hold_or_make_have_an_example(name: str) -> None:
    assert ">>> " in getattr(rocketcompat, name).__doc__


@pytest.mark.parametrize("name", sorted(set(WRITER.split()) - {"recovered"}))
def test_a_reader_refuses_the_calls_of_a_writer(read: Any, name: str) -> None:
    with pytest.raises(ReadOnlyStore, match="mode='r'"):
        getattr(read, name)()
    read.close()
    with pytest.raises(StoreClosed):
        getattr(read, name)()


@pytest.mark.parametrize("name", ["commit_log", "queues", "index", "tube"])
def test_a_former_attribute_goes_on_with_a_warning(store: Any, read: Any, name: str) -> None:
    for held in (store, read):
        with pytest.warns(DeprecationWarning, match=rf"{type(held).__name__}\.{name}") as warned:
            assert getattr(held, name) is getattr(parts_of(held), name)
        assert warned[0].filename == __file__


def test_only_a_writer_has_the_former_dispatcher(store: Any, read: Any) -> None:
    with pytest.warns(DeprecationWarning, match="dispatcher"):
        assert store.dispatcher is dispatcher_of(store)
    with pytest.raises(AttributeError, match="'StoreReader' object has no attribute 'dispatcher'"):
        _ = read.dispatcher
