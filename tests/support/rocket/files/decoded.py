"""A store whose messages are decoded from its files alone."""

from __future__ import annotations

import zlib
from pathlib import Path

import pytest

from rocketcompat.formats import CQ_UNIT, MESSAGE_HEAD

UNIQ_KEY = "0A230C65000018B4AAC2799A3E0C0000"


def record(offset: int = 0, *, body: bytes = b"messageBody", properties: bytes = b"") -> bytes:
    """A record with the numbers of the article's demo (a store of 4.9.x)."""
    topic = b"test-topic"
    head = MESSAGE_HEAD.pack(
        total_size=MESSAGE_HEAD.size + len(body) + 1 + len(topic) + 2 + len(properties),
        magic_code=-626843481, body_crc=zlib.crc32(body) & 0x7FFFFFFF, queue_id=1, flag=0,
        queue_offset=0, physical_offset=offset, sys_flag=0, born_timestamp=1678340733123,
        born_host=bytes((10, 35, 12, 101)) + (50895).to_bytes(4, "big"),
        store_timestamp=1678340733125,
        store_host=bytes((10, 35, 12, 101)) + (10911).to_bytes(4, "big"), reconsume_times=0,
        prepared_transaction_offset=0, body_length=len(body),
    )  # fmt: skip
    tail = bytes((len(topic),)) + topic + len(properties).to_bytes(2, "big") + properties
    return head + body + tail


def demo_properties() -> bytes:
    pairs = {"CLUSTER": "c0", "TAGS": "tag", "KEYS": "key", "UNIQ_KEY": UNIQ_KEY}
    text = "\x02".join(f"{name}\x01{value}" for name, value in pairs.items())
    pairs["CLUSTER"] += "x" * (82 - len(text))
    return "\x02".join(f"{name}\x01{value}" for name, value in pairs.items()).encode()


@pytest.fixture(name="demo")
def demo_fixture(tmp_path: Path) -> Path:
    """The article's store: the message at 388, its unit number 0 of queue 1."""
    (tmp_path / "commitlog").mkdir()
    raw = record(0) + record(194 - 82, properties=b"")
    raw = raw.ljust(388, b"\0") + record(388, properties=demo_properties())
    (tmp_path / "commitlog" / ("0" * 20)).write_bytes(raw.ljust(4096, b"\0"))
    queue = tmp_path / "consumequeue" / "test-topic" / "1"
    queue.mkdir(parents=True)
    unit = CQ_UNIT.pack(physical_offset=388, size=194, tags_code=114586)
    (queue / ("0" * 20)).write_bytes(unit.ljust(200, b"\0"))
    return tmp_path
