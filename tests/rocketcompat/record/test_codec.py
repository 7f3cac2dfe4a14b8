"""Records to bytes and back, one by one and in columns."""

from __future__ import annotations

import doctest
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketcompat import Message, MessageStoreConfig
from rocketcompat.record import codec, columns
from rocketcompat.record.codec import decode_one, encode_blank, encode_one, pack
from rocketcompat.record.columns import decode_columns
from rocketcompat.record.encode import encode_columns
from rocketcompat.record.prepare import prepare
from rocketcompat.record.verify import first_fault, sound_chain
from tests.support.rocket.files.encoded import NEWER, OLDER, STORED_AT, record
from tubestore.errors import CorruptRecord, InvalidMessage, InvalidName

#: Records that the real classes wrote.
V4 = bytes.fromhex(
    "00000089daa320a73610a686000000010000000700000000000000000000000000000000000000000000018bcfe5"
    "68000a0102030000b26e000001a1fcaed555c0a8000900002a9f0000000200000000000000000000000568656c6c"
    "6f09546f7069635465737400204b455953016b31206b320254414753015461674102554e49515f4b4559015531"
)

V6 = bytes.fromhex(
    "0000008bdaa320a719554ca7000000010000000700000000000000010000000000000089000000300000018bcfe5"
    "6800105000000000000000050600300c326b0000007b000001a1fcaed5c700000000000000000000000000000001"
    "0000007c0000000200000000000000000000000668656c6c6f3609546f70696354657374000954414753015461"
    "6741"
)

GOLDEN: dict[str, Any] = {
    "queue_id": 1, "flag": 7, "reconsume_times": 2, "born_timestamp": 1_700_000_000_000,
    "born_host": "10.1.2.3:45678", "store_host": "192.168.0.9:10911",
}  # fmt: skip


def chain(count: int, **fields: Any) -> bytes:
    """Some records, one behind the other."""
    data = b""
    for i in range(count):
        data += record(Message("T", b"x" * i, tags="a", keys=f"k{i}", **fields), len(data), i)
    return data


def test_the_examples_in_the_documentation_hold() -> None:
    assert doctest.testmod(columns).failed == 0


def test_a_record_is_byte_for_byte_that_of_the_real_class() -> None:
    pairs = {"KEYS": "k1 k2", "TAGS": "TagA", "UNIQ_KEY": "U1"}
    assert record(Message("TopicTest", b"hello", properties=pairs, **GOLDEN)) == V4
    verbatim = "KEYS\x01k1 k2\x02TAGS\x01TagA\x02UNIQ_KEY\x01U1"
    assert record(Message("TopicTest", b"hello", properties=verbatim, **GOLDEN)) == V4


def test_a_record_with_ipv6_hosts_is_byte_for_byte_that_of_the_real_class() -> None:
    hosts = {"born_host": "[1050:0:0:0:5:600:300c:326b]:123", "store_host": "[::1]:124"}
    message = Message("TopicTest", b"hello6", tags="TagA", **{**GOLDEN, **hosts})
    assert encode_one(prepare(message, OLDER), 1, 137, STORED_AT + 114) == V6


def test_what_the_real_class_wrote_is_read() -> None:
    found = decode_one(V6, physical_offset=137)
    assert (found.topic, found.body, found.queue_offset) == ("TopicTest", b"hello6", 1)
    assert (found.born_host, found.store_host) == ("[1050::5:600:300c:326b]:123", "[::1]:124")
    assert found.properties == {"TAGS": "TagA"}


def test_the_newer_version_ends_properties_with_their_separator() -> None:
    config = MessageStoreConfig(compat="5.3.3")
    for message in (Message("T", tags="a"), Message("T", tags="a", properties={"x": "y"})):
        raw = encode_one(prepare(message, config), 0, 0, 0)
        assert raw.endswith(b"\x02")
    assert decode_one(encode_one(prepare(Message("T"), config), 0, 0, 0)).properties_text == ""


def test_a_number_that_does_not_fit_its_field_is_refused() -> None:
    with pytest.raises(InvalidMessage, match="does not fit"):
        record(Message("T", flag=1 << 40))


def test_a_walk_finds_every_record() -> None:
    data = chain(20)
    found = sound_chain(data, 0, 0, len(data) + 8)
    assert len(found.starts) == 20
    assert (found.end, found.reason, found.blank, found.wanted) == (len(data), None, False, 8)


def test_a_walk_ends_at_a_blank_and_reports_what_is_missing_of_a_record() -> None:
    data = chain(3)
    assert sound_chain(data + encode_blank(50), 0, 0, len(data) + 50).blank
    cut = sound_chain(data[:-1], 0, 0, 1000)
    assert (len(cut.starts), cut.wanted) == (2, len(data) - cut.end)


@given(st.integers(0, 2000), st.integers(1, 255))
def test_a_changed_byte_is_noticed_or_harmless(place: int, change: int) -> None:
    data = bytearray(chain(8))
    place %= len(data)
    data[place] ^= change
    found = sound_chain(bytes(data), 0, 0, len(data) + 8)
    # Whatever was changed, nothing beyond the data is read and records stay in their places.
    decoded = decode_columns(bytes(data), found.starts, 0)
    for name in ("queue_id", "store_timestamp", "body_length"):
        assert len(decoded.column(name)) == len(found.starts)
    decoded.index_keys()
    decoded.tags_codes()


@given(st.binary(max_size=600))
def test_any_bytes_can_be_walked(junk: bytes) -> None:
    found = sound_chain(junk, 0, 0, len(junk))
    assert len(found.starts) == 0 or found.end <= len(junk)
    with pytest.raises(CorruptRecord):
        decode_one(junk[:200] + b"\0" * 8, physical_offset=1 << 50)


def test_a_torn_text_is_known_in_our_own_records() -> None:
    data = bytearray(chain(3))
    data[-2:] = b"\0\0"
    assert len(sound_chain(bytes(data), 0, 0, len(data) + 8).starts) == 3  # no checksum covers it
    own = sound_chain(bytes(data), 0, 0, len(data) + 8, own=True)
    assert (len(own.starts), own.reason) == (2, "zeros in its topic or properties")


@given(
    st.integers(0, 200),
    st.binary(min_size=1, max_size=8),
    st.sampled_from(["10.0.0.1:1", "[::1]:2"]),
)
def test_one_record_is_judged_as_many_are(place: int, change: bytes, host: str) -> None:
    message = Message("topic", b"body" * 20, tags="a", keys=["k"], born_host=host)
    raw = bytearray(record(message))
    place = 44 + place % (len(raw) - 44)  # behind magic, length and own offset
    raw[place : place + len(change)] = change
    raw = raw[: len(record(message))]
    _, expected = first_fault(bytes(raw), np.array([0]), check_crc=True)
    try:
        decode_one(bytes(raw))
        found = None
    except CorruptRecord as error:
        found = error.reason
    assert found == expected


@pytest.mark.parametrize("raw", [V4, V6, record(Message("t" * 200, b"b"), config=MessageStoreConfig(
    compat="5.3.3", max_topic_length=255))])  # fmt: skip
def test_a_decoded_record_is_packed_into_the_bytes_that_it_had(raw: bytes) -> None:
    assert pack(decode_one(raw)) == raw


def test_a_topic_above_127_bytes_makes_a_record_of_version_two() -> None:
    assert record(Message("t" * 127), config=NEWER)[4:8].hex() == "daa320a7"
    raw = record(Message("é" * 64, b"body"), config=NEWER)
    assert raw[4:8].hex() == "daa320ab"
    found = decode_one(raw)
    assert (found.version, found.topic, found.body) == (2, "é" * 64, b"body")


@pytest.mark.parametrize(
    "config",
    [
        OLDER.changed(max_topic_length=255),  # 4.9.8 would cut its log there
        MessageStoreConfig(compat="5.3.3"),
        NEWER.changed(auto_message_version_on_topic_len=False),
    ],
)
def test_a_topic_above_127_bytes_is_refused_where_it_cannot_be_read(
    config: MessageStoreConfig,
) -> None:
    with pytest.raises(InvalidName, match="128 bytes, more than 127"):
        prepare(Message("t" * 128), config)
    with pytest.raises(InvalidName, match="128 bytes, more than 127"):
        encode_columns({"topic": ["t" * 128]}, config)


@pytest.mark.parametrize("check_crc", [True, False])
@pytest.mark.parametrize("topic", ["T", "t" * 127, "ä", "t" * 128])
def test_a_record_with_any_changed_byte_is_judged_alike_on_the_short_and_on_the_long_way(
    monkeypatch: pytest.MonkeyPatch, topic: str, check_crc: bool
) -> None:
    config = OLDER.changed(compat="5.3.3", max_topic_length=255)
    given = prepare(Message(topic, b"body", tags="x", keys="k"), config)
    sound = encode_one(given, 5, 4096, 7)

    def judged(raw: bytes) -> Any:
        try:
            return decode_one(raw, physical_offset=4096, check_crc=check_crc)
        except CorruptRecord as error:
            return error.reason

    changed = [
        b"" + sound[:place] + bytes([sound[place] ^ bit]) + sound[place + 1 :] + b"rest"
        for place in range(len(sound))
        for bit in (1, 0x80, 0xFF)
    ]
    changed += [sound, sound[:-1], sound[:90], sound[:40]]
    short = [judged(raw) for raw in changed]
    monkeypatch.setattr(codec, "_plain_record", lambda *given, **options: None)
    assert short == [judged(raw) for raw in changed]
