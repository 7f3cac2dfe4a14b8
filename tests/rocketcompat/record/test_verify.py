"""Whether bytes are records: checksums of bodies and of whole records."""

from __future__ import annotations

import zlib
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest

from rocketcompat import Message, MessageStoreConfig
from rocketcompat.formats import BODY_CRC_MASK, MESSAGE_HEAD, PROPERTY_CRC_SIZE
from rocketcompat.record.codec import decode_one, encode_one
from rocketcompat.record.encode import encode_columns
from rocketcompat.record.prepare import prepare
from rocketcompat.record.verify import first_fault, follow, sound_chain

CHECKED = MessageStoreConfig(compat="5.3.3", enabled_append_prop_crc=True)


def record(message: Message, config: MessageStoreConfig = CHECKED, offset: int = 0) -> bytes:
    return encode_one(prepare(message, config), 0, offset, 1_700_000_000_000)


def fault_of(raw: bytes, *, record_crc: bool = True) -> str | None:
    return first_fault(raw, np.array([0]), check_crc=True, record_crc=record_crc)[1]


def solve(bits: int, value_of: Callable[[int], int], width: int = 31) -> int:
    """Return x of `bits` bits with value_of(x) == 0, where value_of is affine over bits (CRCs)."""
    base = value_of(0)
    basis: dict[int, tuple[int, int]] = {}
    for bit in range(bits):
        value, made_of = value_of(1 << bit) ^ base, 1 << bit
        while value and value.bit_length() in basis:
            other, parts = basis[value.bit_length()]
            value, made_of = value ^ other, made_of ^ parts
        if value:
            basis[value.bit_length()] = (value, made_of)
    found = 0
    while base:
        value, made_of = basis[base.bit_length()]
        base, found = base ^ value, found ^ made_of
    return found


def test_a_checksum_of_zero_is_a_checksum_of_the_record() -> None:  # RocketMQ #9121
    def crc(number: int) -> int:
        raw = record(Message("T", b"x", prepared_transaction_offset=number, born_timestamp=1))
        return zlib.crc32(raw[:-PROPERTY_CRC_SIZE]) & BODY_CRC_MASK

    number = solve(62, crc)
    raw = record(Message("T", b"x", prepared_transaction_offset=number, born_timestamp=1))
    assert raw.endswith(b"__CRC32#\x010000000000\x02")
    assert fault_of(raw) is None


def test_a_checksum_of_zero_is_a_checksum_of_a_body() -> None:  # RocketMQ #9121
    body = b"body" + solve(
        32, lambda n: zlib.crc32(b"body" + n.to_bytes(4, "big")) & BODY_CRC_MASK
    ).to_bytes(4, "big")
    raw = record(Message("T", body), MessageStoreConfig())
    assert decode_one(raw).body_crc == 0
    assert decode_one(raw).body == body
    assert sound_chain(raw, 0, 0, len(raw) + 8).reason is None


@pytest.mark.parametrize("place", [12, 16, 40, 60, 90, 100, -1, -5, -15, -30])
def test_a_changed_byte_anywhere_is_noticed_by_the_checksum_of_the_record(place: int) -> None:
    raw = bytearray(record(Message("Topic", b"body" * 5, tags="red", keys=["k"])))
    assert fault_of(bytes(raw)) is None
    raw[place] ^= 4
    assert fault_of(bytes(raw)) is not None


def test_without_being_asked_for_it_the_checksum_of_the_record_is_a_property_like_others() -> None:
    raw = bytearray(record(Message("Topic", b"body", tags="red")))
    at = raw.index(b"red")
    raw[at] ^= 1
    assert fault_of(bytes(raw), record_crc=False) is None
    assert "__CRC32#" in decode_one(bytes(raw)).properties


def test_a_record_without_a_checksum_fails_where_one_is_asked_for() -> None:
    raw = record(Message("Topic", b"body"), MessageStoreConfig(compat="5.3.3"))
    assert fault_of(raw) == "the checksum of the record is missing or does not match"


def test_room_for_the_checksum_counts_in_the_limit_of_the_property_string() -> None:
    text = "a\x01" + "b" * (32767 - 2 - 1 - PROPERTY_CRC_SIZE)
    raw = record(Message("T", properties=text))
    assert len(raw) == MESSAGE_HEAD.size + 1 + 1 + 2 + 32767
    with pytest.raises(ValueError, match="32768"):
        record(Message("T", properties=text + "b"))


@pytest.mark.parametrize("seed", range(6))
def test_runs_of_equally_long_records_are_followed_as_any_others(seed: int) -> None:
    random = np.random.default_rng(seed)
    places, parts, at = [], [], 0
    for _ in range(int(random.integers(1, 8))):
        size = int(random.integers(0, 60))
        for _ in range(int(random.choice([1, 5, 40, 700]))):
            prepared = prepare(Message("T", b"x" * size), MessageStoreConfig())
            places.append(at)
            parts.append(encode_one(prepared, 0, 1000 + at, 1))
            at += len(parts[-1])
    damaged = int(random.integers(0, len(places)))
    data = bytearray(b"".join(parts))

    walked = sound_chain(data, 0, 1000, len(data))
    assert (walked.starts.tolist(), walked.end, walked.reason) == (places, at, None)
    reach = int(random.integers(1, at))
    part = follow(data, 0, 1000, len(data), bytes_max=reach)
    assert part.starts.tolist() == [place for place in places if place < reach]
    torn = follow(bytes(data[: at - 5]), 0, 1000, at)
    assert torn.starts.tolist() == places[:-1]
    assert torn.wanted == len(parts[-1])
    field = int(random.choice([4, 28]))  # magic code, physical offset
    data[places[damaged] + field] ^= 0x55
    cut = sound_chain(data, 0, 1000, len(data))
    assert cut.starts.tolist() == places[:damaged]
    assert cut.reason is not None


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_checksum_that_the_caller_gives_as_a_property_is_replaced(place: int) -> None:
    """As 5.3.3 does: a message that is sent again brings that of its former record."""
    pairs = [("a", "1"), ("b", "2")]
    pairs.insert(place, ("__CRC32#", "0123456789"))
    message = Message("T", b"x", properties=dict(pairs), born_timestamp=5)
    expected = Message("T", b"x", properties={"a": "1", "b": "2"}, born_timestamp=5)
    one = encode_one(prepare(message, CHECKED), 0, 0, 7)
    assert one == encode_one(prepare(expected, CHECKED), 0, 0, 7)
    columns = {"topic": ["T"], "queue_id": [0], "body": [b"x"], "born_timestamp": [5],
               "properties": pa.array([pairs], pa.map_(pa.string(), pa.string()))}  # fmt: skip
    encoded = encode_columns(columns, CHECKED)
    encoded.place(np.array([0]), np.array([0]), 7)
    assert bytes(encoded.data) == one
    assert decode_one(one).properties["__CRC32#"] != "0123456789"
    kept = encode_one(prepare(message, CHECKED.changed(enabled_append_prop_crc=False)), 0, 0, 7)
    assert decode_one(kept).properties["__CRC32#"] == "0123456789"
