"""A message is checked and made ready before it has a place."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

from rocketcompat import Message, MessageStoreConfig
from rocketcompat.record.codec import decode_one
from rocketcompat.record.encode import encode_columns
from rocketcompat.record.prepare import prepare
from tests.support.inner_batches import CONFIG, batch, opened
from tests.support.rocket.files.encoded import NEWER, OLDER, record
from tubestore.errors import InvalidMessage, InvalidName, MessageTooLarge

NEWEST = MessageStoreConfig(compat="5.3.3")


@pytest.mark.parametrize(
    ("message", "error"),
    [
        (Message(""), InvalidName),
        (Message("a/b"), InvalidName),
        (Message(".."), InvalidName),
        (Message("é" * 64), InvalidName),
        (Message("T", b"x" * (OLDER.max_message_size + 1)), MessageTooLarge),
        (Message("T", properties="x" * 32768), MessageTooLarge),
        (Message("T", properties={"a": "b\x02c"}), InvalidMessage),
        (Message("T", tags="b\x02c"), InvalidMessage),
        (Message("T", properties={"a\x01b": "c"}), InvalidMessage),
        (Message("T", keys=["one two"]), InvalidMessage),
        (Message("T", tags="a", properties="TAGS\x01b"), InvalidMessage),
        (Message("T", properties="a\x01\0"), InvalidMessage),
        (Message("T", queue_id=-1), InvalidMessage),
        (Message("T", born_host="nowhere"), InvalidMessage),
        (Message("T", "text"), InvalidMessage),  # type: ignore[arg-type]
    ],
)
def test_what_no_record_can_hold_is_refused(message: Message, error: type[Exception]) -> None:
    with pytest.raises(error):
        prepare(message, OLDER)


def test_a_topic_that_no_directory_can_be_named_after_is_refused() -> None:
    with pytest.raises(InvalidName, match="more than 255"):
        prepare(Message("t" * 256), NEWER.changed(max_topic_length=4000))


@pytest.mark.parametrize("sys_flag", [0, 1, 2, 4, 8, 12, 0x40, 0x80, 0x100, 0x200, 0x300, 0x3CF])
def test_every_system_flag_of_the_caller_is_kept(sys_flag: int) -> None:
    assert decode_one(record(Message("T", sys_flag=sys_flag))).sys_flag == sys_flag
    encoded = encode_columns({"topic": ["T"], "sys_flag": [sys_flag]}, OLDER)
    encoded.place(np.zeros(1, np.int64), np.zeros(1, np.int64), 0)
    assert decode_one(bytes(encoded.data)).sys_flag == sys_flag


@pytest.mark.parametrize(
    ("born", "store", "bits"),
    [("4", "4", 0), ("6", "4", 0x10), ("4", "6", 0x20), ("6", "6", 0x30)],
)
def test_the_bits_of_the_hosts_are_the_store_s_own(born: str, store: str, bits: int) -> None:
    hosts = {"4": "1.2.3.4:5", "6": "[::1]:5"}
    message = Message("T", b"x", sys_flag=0x30 ^ bits, born_host=hosts[born],
                      store_host=hosts[store])  # fmt: skip
    found = decode_one(record(message))
    assert (found.sys_flag, found.born_host, found.store_host) == (bits, hosts[born], hosts[store])
    assert found.size == 91 + 12 * bin(bits).count("1") + 2


def test_properties_that_are_not_valid_text_are_refused() -> None:
    with pytest.raises(InvalidMessage, match="not valid text"):
        prepare(Message("T", properties={"k": "\ud800"}), OLDER)


def test_an_inner_batch_is_refused_where_there_are_no_batch_queues() -> None:
    with pytest.raises(InvalidMessage, match="inner batch"):
        prepare(Message("T", sys_flag=0x80, properties={"INNER_NUM": "3"}), NEWEST)
    with pytest.raises(InvalidMessage, match="INNER_NUM"):
        prepare(Message("T", properties={"INNER_NUM": "3"}), NEWEST)
    assert prepare(Message("T", tags="INNER_NUM"), NEWEST).copies == ()


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


def test_an_empty_batch_and_a_file_that_no_broker_can_fill_are_refused(tmp_path: Path) -> None:
    with opened(tmp_path) as store, pytest.raises(InvalidMessage, match="without messages"):
        store.put_inner_batch(batch(0))
    with pytest.raises(InvalidMessage, match="not a multiple"):
        CONFIG.changed(mapper_file_size_batch_consume_queue=1000)
    assert not any(size % 46 for size in itertools.islice(itertools.count(46, 46), 3))
