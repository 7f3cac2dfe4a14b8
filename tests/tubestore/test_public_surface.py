"""What users hold shows documented names only; a name that comes or goes is seen here."""

from __future__ import annotations

import doctest
from collections.abc import Callable
from typing import Any

import pytest

import tubestore
from tubestore import messages, options
from tubestore.groups import consumer
from tubestore.store import leases, manager, topic
from tubestore.testing import MemoryVfs

Store = tubestore.MessageStoreManager

STORE = """
    abort append_batch change_group change_topic clean_staging close commit_group compact consumer
    create_topic delete_group delete_topic describe_group describe_topic empty_trash ensure_topics
    expire_groups explain_retention export_groups flush get groups import_groups items keys lease
    maintain mode
    options problems publish refresh reset_group retain root stats sync topic topics uuid values
"""
TOPIC = """
    append append_batch copy_from count explain_retention first_offset flush follow get_messages
    last_offset message_at messages name next_offset offset_at options partition_ids partitions
    read read_many retain root scan skip sync
"""
PAGE = "end_offset next_offset table to_arrow to_pandas to_polars truncated"
MESSAGE = """
    attributes body filter_item key_code msg_id offset partition received_time
    received_time_ms state topic
"""
LEASE = "expires_ms holder offsets release renew root ttl_ms"
PUBLISHED = "data_size files job_id number replayed rows"
ANSWER = "code delta last_data_offset max_offset request_offset size success table text"

POLLED = "removed table to_arrow to_pandas to_polars"
CONSUMER = """
    assignment close commit commit_with group interrupt member messages pause paused poll
    positions put_aside resume rewind root seek seek_time unread
"""

EXAMPLES = """
    BatchAck Consumer Lease Message MessageStoreManager Page StoreOptions Topic
"""

HELD: dict[str, tuple[Callable[[Store], Any], str]] = {
    "store": (lambda store: store, STORE),
    "topic": (lambda store: store["t"], TOPIC),
    "page": (lambda store: store["t"].read(0), PAGE),
    "pages": (lambda store: store["t"].read_many({0: 0}), PAGE),
    "answer of get_messages": (lambda store: store["t"].get_messages(0, 0), ANSWER),
    "message": (lambda store: next(store["t"].messages(0)), MESSAGE),
    "consumer": (lambda store: store.consumer(None, "t"), CONSUMER),
    "answer of poll": (lambda store: store.consumer(None, "t").poll(), POLLED),
    "lease": (lambda store: store.lease(), LEASE),
    "answer of publish": (lambda store: store.publish("j", []), PUBLISHED),
}


def public(held: Any) -> list[str]:
    return [name for name in dir(held) if not name.startswith("_")]


@pytest.fixture
def store(memory_vfs: MemoryVfs) -> Any:
    with tubestore.open("/s", vfs=memory_vfs, background=False) as opened:
        opened.create_topic("t").append(b"x")
        yield opened


@pytest.mark.parametrize("held", HELD)
def test_an_object_that_users_hold_shows_only_documented_names(store: Store, held: str) -> None:
    make, names = HELD[held]
    assert public(make(store)) == sorted(names.split())


@pytest.mark.parametrize("module", [tubestore, manager, topic, consumer, messages, leases, options])
def test_the_examples_of_open_and_of_each_class_do_what_they_show(module: Any) -> None:
    found = doctest.testmod(module)
    assert found.attempted >= 2
    assert not found.failed


@pytest.mark.parametrize("name", EXAMPLES.split())
def test_the_classes_that_users_hold_or_make_have_an_example(name: str) -> None:
    held = {**vars(leases), **vars(tubestore)}.get(name) or getattr(tubestore, name)
    assert ">>> " in held.__doc__


@pytest.mark.parametrize(
    "kind", [tubestore.MessageStoreManager, tubestore.Topic, tubestore.Consumer]
)
def test_each_public_method_has_a_docstring(kind: type) -> None:
    for name in public(kind):
        assert getattr(kind, name).__doc__, name
    assert ">>> " in (kind.__doc__ or "")
