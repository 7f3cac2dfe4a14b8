"""The real stores read every form of message that ours writes, and append behind it.

Batches, IPv6 hosts, transactions, delayed messages, version 2, checksums of records, units in
several queues; over rolled files.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import rocketcompat
from bench.real.drivers import (
    ROCKETMQ_VERSIONS,
    Row,
    of_kind,
)
from rocketcompat import BatchItem, Message, MessageBatch
from rocketcompat.check.whole import check
from rocketcompat.store.default_message_store import DefaultMessageStore
from tests.compat.interop.conftest import rocket_of as rocket
from tests.compat.interop.rocket_book import Book, check_files, check_real, check_store
from tests.compat.interop.rocket_messages import BORN, SETTINGS, STORE_HOST, config, message_of

pytestmark = [pytest.mark.gate, pytest.mark.interop]

OLD, NEW = ROCKETMQ_VERSIONS
HOSTS = ("10.1.2.3:4", "[2001:db8::7]:1234")


def opened(root: Path, version: str, **options: Any) -> DefaultMessageStore:
    layouts = frozenset({"consume_queue", "index"})
    longest = 255 if version == NEW else 127
    return rocketcompat.open(
        root, "w",
        config(compat=version, max_topic_length=longest, layouts=layouts, **options),
    )  # fmt: skip


def put_every_form(store: DefaultMessageStore, book: Book, version: str) -> None:
    topics = ["orders", "a-b", *(["long" * 40, "é" * 64] if version == NEW else [])]
    for number in range(60):
        born, kept = HOSTS[number % 2], HOSTS[number // 2 % 2]
        given: dict[str, Any] = {
            "born_timestamp": BORN + number, "born_host": born, "store_host": kept,
        }  # fmt: skip
        topic = topics[number % len(topics)]
        book.put(store, message_of(number))
        book.put(store, Message(topic, b"plain %d" % number, keys=f"p{number}", **given))
        items = [
            BatchItem(b"item %d" % n, keys=f"i{number}-{n}", tags="batch", flag=n)
            for n in range(number % 7 + 1)
        ]
        batch = MessageBatch(topic, items, queue_id=number % 3, properties={"b": "c"}, **given)
        book.note(store, store.put_messages(batch).physical_offsets)
        put = store.put_message(
            Message(topic, b"later", keys=f"d{number}", delay_level=15 + number % 4, **given)
        )
        book.note(store, [put.physical_offset])
        for sys_flag in (4, 8):
            book.put(store, Message(topic, b"half", keys=f"h{number}", sys_flag=sys_flag, **given))


def visit(version: str, root: Path, book: Book, settings: dict[str, Any], count: int = 25) -> None:
    rows = rocket(version).visit(
        root, "orders", 4, count, keys=book.wanted_keys(), settings=settings
    )
    check_real(rows, book)
    book.take(rows)
    assert of_kind(rows, "closed") == [{"kind": "closed", "abortFileLeft": False}]


@pytest.mark.parametrize("version", ROCKETMQ_VERSIONS)
def test_a_real_store_reads_every_form_and_appends(version: str, tmp_path: Path) -> None:
    book = Book()
    with opened(tmp_path, version) as store:
        put_every_form(store, book, version)
        check_store(store, book)
    check_files(tmp_path, book, shards=False)
    visit(version, tmp_path, book, SETTINGS)
    with opened(tmp_path, version) as store:
        check_store(store, book)
        put_every_form(store, book, version)
        check_store(store, book)
    check_files(tmp_path, book, shards=False)
    assert len(list((tmp_path / "commitlog").iterdir())) > 5


@pytest.mark.slow
def test_the_newer_store_verifies_our_checksums_of_records_after_a_crash(tmp_path: Path) -> None:
    book = Book()
    with opened(tmp_path, NEW, enabled_append_prop_crc=True) as store:
        for number in range(80):
            put = store.put_message(message_of(number))
            book.note(store, [put.physical_offset])
        batch = MessageBatch("orders", [BatchItem(b"%d" % n, tags="t") for n in range(9)])
        book.note(store, store.put_messages(batch).physical_offsets)
    (tmp_path / "abort").touch()
    (tmp_path / "checkpoint").write_bytes(bytes(4096))
    settings = {**SETTINGS, "enabledAppendPropCRC": True, "forceVerifyPropCRC": True}
    rows = rocket(NEW).dump(tmp_path, settings=settings)
    check_real(rows, book, clean=False)


@pytest.mark.parametrize("version", [OLD, pytest.param(NEW, marks=pytest.mark.slow)])
def test_a_real_store_reads_our_units_in_several_queues_and_goes_on(
    version: str, tmp_path: Path
) -> None:
    settings = {**SETTINGS, "enableLmq": True, "enableMultiDispatch": True}
    options = {"enable_lmq": True, "enable_multi_dispatch": True}
    wanted: dict[str, list[int]] = {}
    with opened(tmp_path, version, **options) as store:
        for number in range(100):
            names = ["%LMQ%all", f"%LMQ%{number % 5}"]
            message = Message(
                "orders", b"%d" % number, queue_id=number % 4, born_timestamp=BORN,
                store_host=STORE_HOST, properties={"INNER_MULTI_DISPATCH": ",".join(names)},
            )  # fmt: skip
            put = store.put_message(message)
            for name in names:
                wanted.setdefault(name, []).append(put.physical_offset)
    rows = rocket(version).dump(tmp_path, settings=settings)
    assert light_queues(rows) == wanted
    with opened(tmp_path, version, **options) as store:
        for name, places in wanted.items():
            assert store.max_offset_in_queue(name, 0) == len(places)


@pytest.mark.parametrize("version", [OLD, pytest.param(NEW, marks=pytest.mark.slow)])
def test_a_real_store_reads_our_extensions_and_continues_them(version: str, tmp_path: Path) -> None:
    settings = {
        **SETTINGS, "enableConsumeQueueExt": True, "mappedFileSizeConsumeQueueExt": 1024,
    }  # fmt: skip
    options = {"enable_consume_queue_ext": True, "mapped_file_size_consume_queue_ext": 1024}
    book = Book()
    with opened(tmp_path, version, **options) as store:
        for number in range(300):
            book.put(store, Message("orders", b"%d" % number, tags=f"t{number % 5}",
                                    queue_id=number % 4, born_timestamp=BORN, keys=f"k{number}",
                                    store_host=STORE_HOST))  # fmt: skip
    visit(version, tmp_path, book, settings)
    with opened(tmp_path, version, **options) as store:
        check_store(store, book)
        for queue_id in range(4):
            found = store.get_message("orders", queue_id, 0, 32, "t1")
            assert found.messages
            assert {message.properties["TAGS"] for message in found.messages} == {"t1"}
    assert list(check(tmp_path, {**SETTINGS, "mappedFileSizeConsumeQueueExt": 1024})) == []


def inner_batches(store: DefaultMessageStore, count: int) -> list[tuple[str, int, int]]:
    """Put inner batches and plain messages; return queue, queue offset and place of each."""
    places = []
    for number in range(count):
        items = [BatchItem(b"item %d" % n, tags=f"i{n}") for n in range(number % 5 + 1)]
        batch = MessageBatch(
            "batches", items, queue_id=number % 2, properties={"TAGS": "b", "KEYS": f"k{number}"},
            born_timestamp=BORN, store_host=STORE_HOST,
        )  # fmt: skip
        places.append((f"batches/{number % 2}", store.put_inner_batch(batch)))
        if number % 3 == 0:
            plain = Message("batches", b"plain", queue_id=number % 2, store_host=STORE_HOST)
            places.append((f"batches/{number % 2}", store.put_message(plain)))
        beside = Message("orders", b"beside", store_host=STORE_HOST)
        places.append(("orders/0", store.put_message(beside)))
    return [(name, put.queue_offset, put.physical_offset) for name, put in places]


@pytest.mark.parametrize("crashed", [False, True])
def test_the_newer_store_reads_our_inner_batches_and_goes_on(crashed: bool, tmp_path: Path) -> None:
    settings = {**SETTINGS, "mapperFileSizeBatchConsumeQueue": 46 * 20, "batchTopics": "batches"}
    options: dict[str, Any] = {
        "mapper_file_size_batch_consume_queue": 46 * 20, "batch_topics": frozenset({"batches"}),
    }  # fmt: skip
    with opened(tmp_path, NEW, **options) as store:
        wanted = inner_batches(store, 100)
    if crashed:
        (tmp_path / "abort").touch()
        (tmp_path / "checkpoint").write_bytes(bytes(4096))
    rows = rocket(NEW).visit(tmp_path, "batches", 2, 25, settings=settings)
    shown, name = [], ""
    for row in rows:
        if row["kind"] == "queue":
            name = f"{row['topic']}/{row['queueId']}"
        elif row["kind"] == "message":
            shown.append((name, row["queueOffset"], row["physicalOffset"]))
    assert sorted(shown) == sorted(wanted)
    assert not of_kind(rows, "stuck") + of_kind(rows, "gap")
    with opened(tmp_path, NEW, **options) as store:
        again = inner_batches(store, 20)
    batches = [place for place in again if place[0] == "batches/0"]
    assert batches[0][1] > max(place[1] for place in wanted if place[0] == "batches/0")
    rows = rocket(NEW).dump(tmp_path, settings=settings)
    assert {(row["queueOffset"], row["physicalOffset"]) for row in of_kind(rows, "message")} >= {
        place[1:] for place in again
    }
    assert list(check(tmp_path, settings)) == []


def light_queues(rows: list[Row]) -> dict[str, list[int]]:
    """Physical offsets in each %LMQ% queue as the real store shows them."""
    found: dict[str, list[int]] = {}
    name = ""
    for row in rows:
        if row["kind"] == "queue":
            name = row["topic"]
        elif row["kind"] == "message" and name.startswith("%LMQ%"):
            found.setdefault(name, []).append(row["physicalOffset"])
    return found
