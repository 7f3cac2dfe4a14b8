"""Records to bytes and back, one by one and in columns."""

from __future__ import annotations

import doctest
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketcompat import Message, MessageStoreConfig
from rocketcompat.record import codec, columns
from rocketcompat.record.codec import decode_one, encode_blank, encode_one, pack
from rocketcompat.record.columns import decode_columns, hash_slices
from rocketcompat.record.encode import encode_columns
from rocketcompat.record.prepare import prepare
from rocketcompat.record.verify import first_fault, sound_chain
from tubestore.core.java_hash import java_hash
from tubestore.errors import CorruptRecord, InvalidMessage, InvalidName, MessageTooLarge

CONFIG = MessageStoreConfig()
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
STORED_AT = 0x1A1FCAED555


def record(
    message: Message, place: int = 0, number: int = 0, *, config: MessageStoreConfig = CONFIG
) -> bytes:
    return encode_one(prepare(message, config), number, place, STORED_AT)


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
    assert encode_one(prepare(message, CONFIG), 1, 137, STORED_AT + 114) == V6


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


@pytest.mark.parametrize(
    ("message", "error"),
    [
        (Message(""), InvalidName),
        (Message("a/b"), InvalidName),
        (Message(".."), InvalidName),
        (Message("é" * 64), InvalidName),
        (Message("T", b"x" * (CONFIG.max_message_size + 1)), MessageTooLarge),
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
        prepare(message, CONFIG)


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


def test_columns_are_what_one_by_one_reads() -> None:
    messages = [
        Message(
            f"T{i % 3}",
            bytes(i),
            tags=None if i % 4 == 0 else f"tag{i}",
            keys=None if i % 5 == 0 else [f"k{i}", "é"][: 1 + i % 2],
            properties={"UNIQ_KEY": f"{i:032d}"} if i % 2 else None,
            queue_id=i % 7,
            born_host="[::1]:1" if i % 3 == 0 else "1.2.3.4:5",
            store_host="[::2]:1" if i % 2 == 0 else "1.2.3.4:5",
        )
        for i in range(60)
    ]
    data, starts = b"", []
    for number, message in enumerate(messages):
        starts.append(len(data))
        data += record(message, 5000 + len(data), number)
    found = decode_columns(data, np.array(starts), 5000)
    ones = [decode_one(data, start) for start in starts]
    for name in ("queue_id", "queue_offset", "sys_flag", "reconsume_times", "store_timestamp"):
        assert found.column(name).tolist() == [getattr(one, name) for one in ones]
    assert found.bodies().to_pylist() == [one.body for one in ones]
    assert [found.topic_names[code] for code in found.topic_codes] == [one.topic for one in ones]
    assert found.hosts("born_host").to_pylist() == [one.born_host_bytes for one in ones]
    assert found.hosts("store_host").to_pylist() == [one.store_host_bytes for one in ones]
    tags = [one.properties.get("TAGS") for one in ones]
    assert found.tags().to_pylist() == [None if tag is None else tag.encode() for tag in tags]
    assert found.tags_codes().tolist() == [java_hash(tag) if tag else 0 for tag in tags]
    rows, hashes = found.index_keys()
    assert list(zip(rows.tolist(), hashes.tolist(), strict=True)) == [
        (row, abs(java_hash(f"{one.topic}#{key}")))
        for row, one in enumerate(ones)
        for key in [one.properties.get("UNIQ_KEY"), *one.properties.get("KEYS", "").split(" ")]
        if key
    ]


@pytest.mark.parametrize("raw", [V4, V6, record(Message("t" * 200, b"b"), config=MessageStoreConfig(
    compat="5.3.3", max_topic_length=255))])  # fmt: skip
def test_a_decoded_record_is_packed_into_the_bytes_that_it_had(raw: bytes) -> None:
    assert pack(decode_one(raw)) == raw


def test_a_key_whose_hash_has_no_absolute_value_hashes_to_zero() -> None:
    text = "polygenelubricants"  # its Java hash is the least int
    assert java_hash(text) == -(1 << 31)
    raw = np.frombuffer(text.encode(), np.uint8)
    assert hash_slices(raw, np.array([0]), np.array([len(text)])).tolist() == [1 << 31]
    assert columns._absolute(np.array([1 << 31], np.uint32)).tolist() == [0]


NEWER = MessageStoreConfig(compat="5.3.3", max_topic_length=255)


@pytest.mark.parametrize(
    "config",
    [CONFIG, NEWER, NEWER.changed(enabled_append_prop_crc=True)],
    ids=["4.9.8", "5.3.3", "checksums"],
)
@pytest.mark.parametrize("hosts", [{}, {"store_host": "[::1]:10911"}], ids=["v4", "v6"])
def test_a_batch_of_columns_is_the_bytes_of_single_messages(
    config: MessageStoreConfig, hosts: dict[str, str]
) -> None:
    count, born = 40, (None, "9.8.7.6:5", "[fe80::1]:7")
    topics = ["T0", "T1", "é" * 60 if config is CONFIG else "é" * 64]
    table = {
        "topic": pa.array([topics[i % 3] for i in range(count)]).dictionary_encode(),
        "queue_id": pa.array([i % 5 for i in range(count)], pa.int32()),
        "body": [bytes(i) for i in range(count)],
        "tags": [None if i % 3 == 0 else "é" for i in range(count)],
        "keys": [[] if i % 4 == 0 else [f"k{i}", "b"] for i in range(count)],
        "flag": list(range(count)),
        "born_host": [born[i % 3 if hosts else i % 2] for i in range(count)],
        **{name: [host] * count for name, host in hosts.items()},
    }
    encoded = encode_columns(table, config)
    places = encoded.bounds[:-1] + 12_345
    encoded.place(np.arange(count), places, STORED_AT)
    for i in range(count):
        message = Message(
            topics[i % 3],
            bytes(i),
            None if i % 3 == 0 else "é",
            None if i % 4 == 0 else [f"k{i}", "b"],
            queue_id=i % 5,
            flag=i,
            born_host=table["born_host"][i] or "127.0.0.1:0",
            **hosts,  # type: ignore[arg-type]
        )
        one = encode_one(prepare(message, config), i, int(places[i]), STORED_AT)
        assert bytes(encoded.data[encoded.bounds[i] : encoded.bounds[i + 1]]) == one


def test_a_topic_above_127_bytes_makes_a_record_of_version_two() -> None:
    assert record(Message("t" * 127), config=NEWER)[4:8].hex() == "daa320a7"
    raw = record(Message("é" * 64, b"body"), config=NEWER)
    assert raw[4:8].hex() == "daa320ab"
    found = decode_one(raw)
    assert (found.version, found.topic, found.body) == (2, "é" * 64, b"body")


@pytest.mark.parametrize(
    "config",
    [
        CONFIG.changed(max_topic_length=255),  # 4.9.8 would cut its log there
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


def test_a_topic_that_no_directory_can_be_named_after_is_refused() -> None:
    with pytest.raises(InvalidName, match="more than 255"):
        prepare(Message("t" * 256), NEWER.changed(max_topic_length=4000))


@pytest.mark.parametrize("sys_flag", [0, 1, 2, 4, 8, 12, 0x40, 0x80, 0x100, 0x200, 0x300, 0x3CF])
def test_every_system_flag_of_the_caller_is_kept(sys_flag: int) -> None:
    assert decode_one(record(Message("T", sys_flag=sys_flag))).sys_flag == sys_flag
    encoded = encode_columns({"topic": ["T"], "sys_flag": [sys_flag]}, CONFIG)
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


@pytest.mark.parametrize(
    ("given_columns", "what"),
    [
        ({"body": [b"x"]}, "no column 'topic'"),
        ({"topic": ["T"], "colour": ["red"]}, "colour"),
        ({"topic": [None]}, "topic"),
        ({"topic": ["T"], "queue_id": [-1]}, "queue_id"),
        ({"topic": ["T"], "queue_id": ["one"]}, "queue_id"),
        ({"topic": ["T"], "flag": [1 << 40]}, "flag"),
        ({"topic": ["T"], "body": [1.5]}, "body"),
        ({"topic": ["T"], "tags": ["a\x02b"]}, "TAGS"),
        ({"topic": ["T"], "keys": [["a b"]]}, "keys"),
        ({"topic": ["T"], "properties": ["x\x01y"], "tags": ["a"]}, "property string"),
        ({"topic": ["T"], "properties": ["x\x01\0"]}, "U\\+0000"),
        ({"topic": ["T"], "born_timestamp": [1.5]}, "born_timestamp"),
        ({"topic": ["T"], "store_host": ["nowhere"]}, "store_host"),
    ],
)
def test_columns_that_cannot_be_stored_are_refused_by_name(
    given_columns: dict[str, Any], what: str
) -> None:
    with pytest.raises(InvalidMessage, match=what):
        encode_columns(given_columns, CONFIG)


def test_a_name_with_the_separator_in_it_is_refused_in_columns_too() -> None:
    kind = pa.map_(pa.string(), pa.string())
    properties = pa.array([{"a\x01b": "c"}], kind)
    with pytest.raises(InvalidMessage, match="properties"):
        encode_columns({"topic": ["T"], "properties": properties}, CONFIG)


def test_maps_of_properties_follow_keys_and_tags() -> None:
    kind = pa.map_(pa.string(), pa.string())
    given_columns = {
        "topic": ["a", "b", "c"],
        "tags": ["t", None, None],
        "properties": pa.array([{"x": "1", "y": "2"}, None, {}], kind),
    }
    encoded = encode_columns(given_columns, CONFIG)
    encoded.place(np.zeros(3, np.int64), encoded.bounds[:-1], 0)
    found = decode_columns(encoded.data.tobytes(), encoded.bounds[:-1], 0)
    assert found.properties().to_pylist() == [b"TAGS\x01t\x02x\x011\x02y\x012", b"", b""]


@pytest.mark.parametrize("check_crc", [True, False])
@pytest.mark.parametrize("topic", ["T", "t" * 127, "ä", "t" * 128])
def test_a_record_with_any_changed_byte_is_judged_alike_on_the_short_and_on_the_long_way(
    monkeypatch: pytest.MonkeyPatch, topic: str, check_crc: bool
) -> None:
    config = CONFIG.changed(compat="5.3.3", max_topic_length=255)
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


def test_properties_that_are_not_valid_text_are_refused() -> None:
    with pytest.raises(InvalidMessage, match="not valid text"):
        prepare(Message("T", properties={"k": "\ud800"}), CONFIG)
