"""Messages by offset from the files alone; the rows DEC-01 … DEC-11 of the seed's tool."""

from __future__ import annotations

import base64
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from rocketcompat.formats import BLANK, CQ_UNIT, MAGIC_BLANK, MESSAGE_HEAD
from rocketcompat.inspect.decode import (
    decode_commit_log,
    decode_queue,
    decode_record,
    decode_unit,
)
from tests.support.command import Command
from tests.support.golden import ROCKET_VERSIONS, GoldenFactory
from tests.support.golden import golden_fixture as golden_fixture
from tests.support.rocket.cli import command_fixture as command_fixture
from tests.support.rocket.files.decoded import UNIQ_KEY, demo_properties, record
from tests.support.rocket.files.decoded import demo_fixture as demo_fixture
from tubestore.errors import InvalidMessage, NotAStore

#: A record that BoltMQ wrote: body "hello", topic "T", queue 1, flag 7, key k1.
BOLTMQ = bytes.fromhex(
    "00000069daa320b73610a686000000010000000700000000000000000000000000000000"
    "00000000000001a1fca46b18010203040000162e000001a1fca46b180908070600002a9f"
    "0000000000000000000000000000000568656c6c6f015400084b455953016b3102"
)


def test_dec_01_the_decoder_runs_no_code_of_the_store() -> None:
    code = (
        "import sys, rocketcompat.inspect.decode\n"
        "print(*sorted(m for m in sys.modules if m.startswith(('rocketcompat', 'numpy'))))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    allowed = {
        "rocketcompat",
        "rocketcompat.inspect",
        "rocketcompat.inspect.decode",
        "rocketcompat.formats",
    }
    allowed |= {"rocketcompat.old_paths"}
    assert set(done.stdout.split()) - allowed <= {"rocketcompat.messages", "rocketcompat.options"}


@pytest.mark.parametrize("version", ROCKET_VERSIONS)
@pytest.mark.parametrize("scenario", ["rolled", "ipv6", "odd", "transactions", "compressed"])
def test_dec_02_any_message_is_found_by_its_offset_in_any_file(
    golden: GoldenFactory, version: str, scenario: str
) -> None:
    real = golden("rocketmq", version, scenario)
    rows = list(real.expected(type="message"))
    assert rows
    for row in rows:
        found = decode_commit_log(real.store, row["physicalOffset"])
        assert (found["state"], found["reason"]) == ("ok", None)
        assert found["total_size"] == row["storeSize"]
        assert found["properties"] == (row.get("properties") or {})
        assert found["msg_id"] == row["msgId"]
        assert found["topic"] == row["topic"]
        if "body" in row:
            assert found["body"] == base64.b64decode(row["body"])


@pytest.mark.parametrize("version", ROCKET_VERSIONS)
@pytest.mark.parametrize("scenario", ["rolled", "keys-tags"])
def test_dec_03_any_unit_is_found_by_its_number_in_any_file(
    golden: GoldenFactory, version: str, scenario: str
) -> None:
    real = golden("rocketmq", version, scenario)
    files = set()
    for row in real.expected(type="message"):
        topic, _, queue = row["queue"].rpartition("/")
        unit, message = decode_queue(real.store, topic, int(queue), row["index"])
        assert unit["state"] == message["state"] == "ok"
        assert (unit["physical_offset"], unit["size"]) == (row["cqPhysicalOffset"], row["cqSize"])
        assert unit["tags_code"] == row["tagsCode"]
        assert message["queue_offset"] == row["index"]
        files.add((unit["path"], message["path"]))
    assert len({unit for unit, _ in files}) > 1


def test_dec_04_an_offset_is_eight_bytes_big_endian() -> None:
    place = MESSAGE_HEAD.position("physical_offset")
    raw = record(1 << 40)
    assert raw[place : place + 8] == (1 << 40).to_bytes(8, "big")
    assert decode_record(raw)["physical_offset"] == 1 << 40


def test_dec_05_widths_are_those_of_java() -> None:
    widths = {field.name: field.size for field in MESSAGE_HEAD.fields}
    assert (widths["queue_id"], widths["queue_offset"]) == (4, 8)
    raw = record(properties=b"TAGS\x01t")
    at = MESSAGE_HEAD.size + len(b"messageBody")
    assert raw[at] == len("test-topic")  # a byte
    assert raw[at + 11 : at + 13] == (6).to_bytes(2, "big")  # a short


def test_dec_06_hosts_are_decoded_number_by_number() -> None:
    row = decode_record(record())
    assert (row["born_host"], row["store_host"]) == ("10.35.12.101:50895", "10.35.12.101:10911")


@pytest.mark.parametrize("end", [b"", b"\x02"])
def test_dec_07_properties_are_split_at_the_two_invisible_characters(end: bytes) -> None:
    row = decode_record(record(properties=demo_properties() + end))
    assert row["state"] == "ok"
    shown = {name: row["properties"][name] for name in ("TAGS", "KEYS", "UNIQ_KEY")}
    assert shown == {"TAGS": "tag", "KEYS": "key", "UNIQ_KEY": UNIQ_KEY}
    odd = decode_record(record(properties=b"no separator\x02TAGS\x01t" + end))
    assert odd["properties"] == {"TAGS": "t"}


def test_dec_08_the_article_s_demo_is_printed_with_its_numbers(
    demo: Path, command: Command
) -> None:
    done = command("decode", demo, "-t", "test-topic", "-q", 1, "--offset", 0)
    assert done.code == 0
    unit, message = done.out.split("message\n")
    for line in ("physical_offset  388", "size             194", "tags_code        114586"):
        assert line in unit
    shown = dict(line.split(None, 1) for line in message.splitlines() if line.strip())
    wanted = {
        "total_size": "194", "body_crc": "532952986", "magic_code": "-626843481",
        "physical_offset": "388", "queue_offset": "0", "body": "messageBody", "body_length": "11",
        "topic_length": "10", "properties_length": "82", "born_host": "10.35.12.101:50895",
        "born_timestamp": "2023-03-09T05:45:33.123Z",
    }  # fmt: skip
    assert {name: shown[name] for name in wanted} == wanted
    (row,) = command("decode", demo, "-t", "test-topic", "-q", 1, "--offset", 0, "-f", "jsonl").rows
    assert row["unit"]["tags_code"] == 114586
    assert row["message"]["body_crc"] == 532952986
    assert base64.b64decode(row["message"]["body"]) == b"messageBody"


def test_dec_09_a_root_a_directory_and_a_file_of_it_are_taken(golden: GoldenFactory) -> None:
    real = golden("rocketmq", "4.9.8", "rolled")
    row = list(real.expected(type="message"))[-1]
    offset = row["physicalOffset"]
    by_root = decode_commit_log(real.store, offset)
    assert decode_commit_log(real.store / "commitlog", offset) == by_root
    assert decode_commit_log(by_root["path"], offset) == by_root
    assert Path(by_root["path"]).name != "0" * 20
    loose = real.store.parent / "a-copy"
    loose.write_bytes(Path(by_root["path"]).read_bytes())
    copied = decode_commit_log(loose, by_root["position"])
    assert copied["body"] == by_root["body"]
    assert copied["reason"] == f"its own physical offset is {offset}"


def test_dec_10_a_unit_is_offset_size_and_tag_hash_in_twenty_bytes(demo: Path) -> None:
    assert CQ_UNIT.size == 20
    unit = decode_unit(demo / "consumequeue" / "test-topic" / "1", 0)
    names = ("physical_offset", "size", "tags_code", "position", "state")
    assert [unit[name] for name in names] == [388, 194, 114586, 0, "ok"]


def test_dec_11_files_of_versions_before_and_after_are_decoded(golden: GoldenFactory) -> None:
    real = golden("rocketmq", "5.3.3", "v2-topics")
    long = [row for row in real.expected(type="message") if len(row["topic"]) > 127]
    assert long
    for row in long:
        found = decode_commit_log(real.store, row["physicalOffset"])
        assert (found["state"], found["topic"]) == ("ok", row["topic"])


def test_a_blank_is_no_message(golden: GoldenFactory, command: Command) -> None:
    """The seed's tool prints it as one, with the properties of the message before."""
    real = golden("rocketmq", "4.9.8", "rolled")
    (row, *_) = real.expected(type="blank")
    offset = row["physicalOffset"]
    found = decode_commit_log(real.store, offset)
    assert (found["state"], found["magic_code"]) == ("blank", MAGIC_BLANK)
    assert found["body"] is None
    assert command("decode", real.store, "--commitlog-offset", offset).code == 1


def test_what_is_no_record_reports_what_it_is(demo: Path) -> None:
    assert decode_commit_log(demo, 1000)["state"] == "empty"
    assert decode_commit_log(demo, 389)["state"] == "damaged"
    assert "magic code" in decode_commit_log(demo, 389)["reason"]
    assert decode_commit_log(demo, 5000)["state"] == "missing"
    queue = demo / "consumequeue" / "test-topic" / "1"
    assert decode_unit(queue, 1)["state"] == "empty"
    assert decode_unit(queue, 11)["state"] == "missing"
    unit, message = decode_queue(demo, "test-topic", 1, 1)
    assert (unit["state"], message["state"]) == ("empty", "missing")


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("body_crc", 1, "checksum of its body is 532952986, and its field has 1"),
        ("physical_offset", 99, "offset is 99"),
        ("body_length", -1, "a body of -1 bytes"),
        ("body_length", 1 << 30, "a body of 1073741824 bytes"),
        ("body_length", 10, "do not fit"),
        ("total_size", 1 << 30, "its size field is 1073741824"),
        ("total_size", 50, "not whole"),
        ("sys_flag", 0x30, "do"),
    ],
)
def test_a_wrong_field_is_named_and_the_rest_is_shown(field: str, value: int, said: str) -> None:
    raw = bytearray(record(properties=demo_properties()))
    layout = {f.name: f for f in MESSAGE_HEAD.fields}[field]
    at = MESSAGE_HEAD.position(field)
    raw[at : at + layout.size] = value.to_bytes(layout.size, "big", signed=True)
    row = decode_record(bytes(raw), physical_offset=0)
    assert row["state"] == "damaged"
    assert said in row["reason"]
    assert row["queue_id"] == 1


def test_every_cut_of_a_record_is_told_and_none_raises() -> None:
    whole = record(properties=demo_properties())
    for size in range(len(whole)):
        row = decode_record(whole[:size], physical_offset=0)
        assert row["state"] in ("damaged", "missing")
        assert row["reason"]
    assert decode_record(whole, physical_offset=0)["state"] == "ok"


def test_random_bytes_never_raise() -> None:
    import random

    source = random.Random(20261121)
    whole = record(properties=demo_properties())
    for _ in range(3000):
        raw = bytearray(whole)
        for _ in range(source.randrange(1, 4)):
            raw[source.randrange(len(raw))] = source.randrange(256)
        assert decode_record(bytes(raw), physical_offset=0)["state"] in ("ok", "damaged", "blank")


def test_records_of_boltmq_are_decoded_and_named() -> None:
    row = decode_record(BOLTMQ, physical_offset=0)
    assert (row["state"], row["dialect"]) == ("ok", "boltmq")
    assert (row["topic"], row["body"], row["properties"]) == ("T", b"hello", {"KEYS": "k1"})
    assert row["born_host"] == "1.2.3.4:5678"
    blank = BLANK.pack(total_size=106, magic_code=-875286108).ljust(106, b"\0")
    assert (decode_record(blank)["state"], decode_record(blank)["dialect"]) == ("blank", "boltmq")


def test_a_crc_of_zero_is_a_crc_of_zero() -> None:
    """apache/rocketmq#9121: 0 was taken for "no checksum" and good data was cut."""
    body = bytes.fromhex("9d0ad96d")  # its CRC-32 is 0
    assert zlib.crc32(body) == 0
    assert decode_record(record(body=body))["state"] == "ok"
    assert decode_record(record(body=b""))["state"] == "ok"
    wrong = record(body=body).replace(body, b"\x9d\x0a\xd9\x6c")
    assert decode_record(wrong)["state"] == "damaged"


def test_a_unit_that_leads_to_another_queue_s_message_is_told(demo: Path) -> None:
    path = demo / "consumequeue" / "other" / "0"
    path.mkdir(parents=True)
    unit = CQ_UNIT.pack(physical_offset=388, size=194, tags_code=0)
    (path / ("0" * 20)).write_bytes(unit)
    _, message = decode_queue(demo, "other", 0, 0)
    assert message["reason"] == "its topic is 'test-topic', and the queue has 'other'"


def test_a_negative_offset_is_refused(demo: Path) -> None:
    with pytest.raises(InvalidMessage):
        decode_commit_log(demo, -1)
    with pytest.raises(InvalidMessage):
        decode_unit(demo / "consumequeue", -1)
    with pytest.raises(NotAStore, match="no file with an offset"):
        decode_unit(demo / "consumequeue", 0)
