"""Messages with units in several queues: put, dispatched, recovered."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import rocketcompat
from rocketcompat import Message, MessageStoreConfig
from rocketcompat.check.whole import check
from rocketcompat.commitlog.queue_offsets import TooManyQueues
from rocketcompat.record.prepare import property_text
from rocketcompat.store.default_message_store import DefaultMessageStore
from tests.support.golden import ROCKET_VERSIONS, GoldenFactory
from tests.support.golden_puts import Again, files_of
from tests.support.rocket.golden import open_golden
from tests.support.rocket.inside import dispatcher_of
from tests.support.rocket.stores import opener
from tubestore.clock import ManualClock
from tubestore.errors import InvalidMessage, InvalidName, MessageTooLarge
from tubestore.testing import MemoryVfs

CONFIG = MessageStoreConfig(
    mapped_file_size_commit_log=1 << 16,
    mapped_file_size_consume_queue=200,
    layouts=frozenset({"consume_queue"}),
    enable_multi_dispatch=True,
    enable_lmq=True,
)
opened = opener(CONFIG)


@pytest.fixture
def store(clock: ManualClock) -> Iterator[DefaultMessageStore]:
    with opened(MemoryVfs(clock), clock) as store:
        yield store


def to(*names: str, topic: str = "parent", body: bytes = b"x", queue_id: int = 3) -> Message:
    properties = {"INNER_MULTI_DISPATCH": ",".join(names), "WAIT": "true"}
    return Message(topic, body, tags="t", queue_id=queue_id, properties=properties)


def bodies(store: DefaultMessageStore, topic: str, queue_id: int) -> list[bytes]:
    dispatcher_of(store).dispatch_pending()
    found: list[bytes] = []
    while len(found) < store.max_offset_in_queue(topic, queue_id):
        found += [message.body for message in store.get_message(topic, queue_id, len(found))]
    return found


def test_every_queue_that_is_named_gets_a_unit(store: DefaultMessageStore) -> None:
    store.put_message(to("%LMQ%a", "other", body=b"1"))
    put = store.put_message(to("%LMQ%b", "%LMQ%a", body=b"2"))
    store.put_message(Message("other", b"3", queue_id=3))
    assert bodies(store, "parent", 3) == [b"1", b"2"]
    assert bodies(store, "%LMQ%a", 0) == [b"1", b"2"]
    assert bodies(store, "%LMQ%b", 0) == [b"2"]
    assert bodies(store, "other", 3) == [b"1", b"3"]
    properties = store.look_message(put.physical_offset).properties
    assert properties["INNER_MULTI_QUEUE_OFFSET"] == "0,1"
    assert "WAIT" not in properties


def test_columns_with_several_queues_are_stored_like_single_messages(clock: ManualClock) -> None:
    messages = [
        Message("parent", b"0", queue_id=3), to("%LMQ%a", "other", body=b"1"),
        to("%LMQ%a", body=b"2"), Message("parent", b"3", queue_id=3),
        Message("other", b"4", queue_id=3), to("other", body=b"5"),
    ]  # fmt: skip
    table = {
        "topic": [message.topic for message in messages],
        "body": [message.body for message in messages],
        "queue_id": [3] * len(messages),
        "properties": [
            property_text(message, trailing_separator=False) or None for message in messages
        ],
        "born_timestamp": [7] * len(messages),
    }
    with opened(MemoryVfs(clock), clock) as one, opened(MemoryVfs(clock), clock) as other:
        placed = one.put_columns(table).to_pylist()
        puts = [other.put_message(replace(message, born_timestamp=7)) for message in messages]
        assert [(row["physical_offset"], row["queue_offset"], row["size"]) for row in placed] == [
            (put.physical_offset, put.queue_offset, put.size) for put in puts
        ]
        for store in (one, other):
            assert bodies(store, "parent", 3) == [b"0", b"1", b"2", b"3", b"5"]
            assert bodies(store, "other", 3) == [b"1", b"4", b"5"]
            assert bodies(store, "%LMQ%a", 0) == [b"1", b"2"]


def test_as_the_newer_version_only_light_queues_do(clock: ManualClock) -> None:
    with opened(MemoryVfs(clock), clock, compat="5.3.3") as store:
        put = store.put_message(to("%LMQ%a", "other", "%LMQ%b"))
        record = store.look_message(put.physical_offset)
        assert record.properties_text.endswith("INNER_MULTI_QUEUE_OFFSET\x010,,0\x02")
        assert record.properties["WAIT"] == "true"
        assert bodies(store, "other", 3) == []
        assert bodies(store, "%LMQ%b", 0) == [b"x"]


@pytest.mark.parametrize("sys_flag", [4, 12])
def test_half_and_rolled_back_messages_have_no_copies(
    store: DefaultMessageStore, sys_flag: int
) -> None:
    message = to("%LMQ%a")
    message.sys_flag = sys_flag
    put = store.put_message(message)
    assert "INNER_MULTI_QUEUE_OFFSET" not in store.look_message(put.physical_offset).properties
    assert bodies(store, "%LMQ%a", 0) == []


@pytest.mark.parametrize(
    ("message", "error", "what"),
    [
        (to("%LMQ%a", "%LMQ%a"), InvalidMessage, "twice"),
        (to("parent"), InvalidMessage, "twice"),
        (to("a/b"), InvalidName, "directory"),
        (to("%LMQ%a", ""), InvalidName, "name"),
    ],
)
def test_names_that_are_no_queues_are_refused(
    store: DefaultMessageStore, message: Message, error: type[Exception], what: str
) -> None:
    with pytest.raises(error, match=what):
        store.put_message(message)
    assert store.max_physical_offset == 0


def test_switched_off_the_property_is_one_like_others(clock: ManualClock) -> None:
    with opened(MemoryVfs(clock), clock, enable_multi_dispatch=False) as store:
        put = store.put_message(to("%LMQ%a"))
        assert "INNER_MULTI_QUEUE_OFFSET" not in store.look_message(put.physical_offset).properties
        assert bodies(store, "%LMQ%a", 0) == []
        message = to("%LMQ%a")
        message.properties = {**message.properties, "INNER_MULTI_QUEUE_OFFSET": "7"}  # type: ignore[dict-item]
        with pytest.raises(InvalidMessage, match="the store gives"):
            store.put_message(message)
    with (
        opened(MemoryVfs(clock), clock, enable_lmq=False) as store,
        pytest.raises(InvalidMessage, match="enable_lmq"),
    ):
        store.put_message(to("%LMQ%a"))


def test_the_offsets_of_the_caller_are_replaced(store: DefaultMessageStore) -> None:
    message = to("%LMQ%a")
    message.properties = {**message.properties, "INNER_MULTI_QUEUE_OFFSET": "7"}  # type: ignore[dict-item]
    put = store.put_message(message)
    assert store.look_message(put.physical_offset).properties["INNER_MULTI_QUEUE_OFFSET"] == "0"


def test_one_queue_too_many_is_refused_and_takes_no_offset(clock: ManualClock) -> None:
    with opened(MemoryVfs(clock), clock, max_lmq_consume_queue_num=2) as store:
        store.put_message(to("%LMQ%a"))
        store.put_message(to("%LMQ%a", "%LMQ%b"))
        with pytest.raises(TooManyQueues, match="more than 2"):
            store.put_message(to("%LMQ%b", "%LMQ%c"))
        assert store.put_message(to("%LMQ%b")).queue_offset == 2
        assert len(bodies(store, "%LMQ%b", 0)) == 2


def test_properties_that_become_too_long_with_the_offsets_take_no_offset(
    store: DefaultMessageStore,
) -> None:
    message = to("%LMQ%a")
    message.properties = {**message.properties, "x": "y" * 32715}  # type: ignore[dict-item]
    with pytest.raises(MessageTooLarge, match="property string"):
        store.put_message(message)
    assert store.put_message(to("%LMQ%a")).queue_offset == 0
    assert bodies(store, "%LMQ%a", 0) == [b"x"]


def test_light_queues_are_rebuilt_from_the_log_and_counted_on(
    tmp_path: Path, clock: ManualClock
) -> None:
    def reopened() -> DefaultMessageStore:
        return rocketcompat.open(tmp_path, "w", CONFIG, clock=clock, background=False)

    with reopened() as store:
        for number in range(30):
            store.put_message(to("%LMQ%a", f"%LMQ%{number % 3}", body=b"%d" % number))
    before = files_of(tmp_path, "consumequeue")
    shutil.rmtree(tmp_path / "consumequeue")
    (tmp_path / ".tubestore" / "progress.json").unlink()
    with reopened() as store:
        assert bodies(store, "%LMQ%a", 0) == [b"%d" % n for n in range(30)]
    assert files_of(tmp_path, "consumequeue") == before
    (tmp_path / "abort").touch()
    (tmp_path / ".tubestore" / "progress.json").unlink()
    with reopened() as store:
        put = store.put_message(to("%LMQ%a", "%LMQ%1", body=b"next"))
        offsets = store.look_message(put.physical_offset).properties["INNER_MULTI_QUEUE_OFFSET"]
        assert offsets == "30,10"
    assert list(check(tmp_path, {"mappedFileSizeConsumeQueue": "200"})) == []


def test_a_light_queue_that_lost_its_tail_gets_it_again(tmp_path: Path, clock: ManualClock) -> None:
    with rocketcompat.open(tmp_path, "w", CONFIG, clock=clock, background=False) as store:
        for number in range(8):
            store.put_message(to("%LMQ%a", body=b"%d" % number))
    path = tmp_path / "consumequeue" / "%LMQ%a" / "0" / f"{0:020d}"
    raw = path.read_bytes()
    path.write_bytes(raw[:100] + bytes(100))
    (tmp_path / "abort").touch()
    (tmp_path / ".tubestore" / "progress.json").unlink()
    with rocketcompat.open(tmp_path, "w", CONFIG, clock=clock, background=False):
        pass
    assert path.read_bytes() == raw


@pytest.mark.parametrize("version", ROCKET_VERSIONS)
def test_the_golden_messages_come_out_the_same(
    golden: GoldenFactory, tmp_path: Path, version: str
) -> None:
    theirs = golden("rocketmq", version, "lmq")
    again = Again(theirs, tmp_path / "again")
    again.put_all()
    again.check_records()
    again.close("consumequeue")


@pytest.mark.parametrize("version", ROCKET_VERSIONS)
def test_a_real_store_s_light_queues_are_rebuilt_as_they_were(
    golden: GoldenFactory, version: str
) -> None:
    theirs = golden("rocketmq", version, "lmq")
    before = files_of(theirs.store, "consumequeue")
    shutil.rmtree(theirs.store / "consumequeue")
    with open_golden(theirs) as store:
        assert store.problems == []
    assert files_of(theirs.store, "consumequeue") == before
