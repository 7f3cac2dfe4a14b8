"""RocketMQ's constants, names and small encodings, and the options."""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketcompat import MessageStoreConfig, formats, options
from rocketcompat.formats import (
    MESSAGE_HEADS,
    decode_host,
    encode_host,
    encode_properties,
    message_id,
    parse_offset_name,
    parse_properties,
    record_size,
)
from rocketcompat.options import camel_to_snake
from tubestore.errors import InvalidMessage


@pytest.mark.parametrize("module", [formats, options])
def test_the_examples_in_the_documentation_hold(module: object) -> None:
    assert doctest.testmod(module).failed == 0  # type: ignore[arg-type]


def test_the_four_heads_differ_only_in_the_widths_of_the_hosts() -> None:
    assert [head.size for head in MESSAGE_HEADS] == [88, 100, 100, 112]
    assert {tuple(f.name for f in head.fields) for head in MESSAGE_HEADS} == {
        tuple(f.name for f in MESSAGE_HEADS[0].fields)
    }
    assert [head.position("store_timestamp") for head in MESSAGE_HEADS] == [56, 68, 56, 68]
    assert MESSAGE_HEADS[0].position("body_length") == 84


def test_a_record_takes_what_the_specification_requires() -> None:
    assert record_size(0, formats.MAGIC_V1, 0, 0, 0) == 91
    assert record_size(1, formats.MAGIC_V1, 0, 0, 0) == 103
    assert record_size(3, formats.MAGIC_V1, 0, 0, 0) == 115
    assert record_size(0, formats.MAGIC_V2, 0, 0, 0) == 92


def test_message_ids_are_those_of_the_golden_records() -> None:
    assert message_id(encode_host("192.168.0.9:10911"), 0) == "C0A8000900002A9F0000000000000000"
    long = message_id(encode_host("[::1]:124"), 137)
    assert long == "000000000000000000000000000000010000007C0000000000000089"


@pytest.mark.parametrize("host", ["10.1.2.3", "10.1.2.3:", "10.1.2.3:65536", "x:1", "1.2.3.4:-1"])
def test_what_is_no_host_is_refused(host: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        encode_host(host)


@given(st.ip_addresses(), st.integers(0, 65535))
def test_a_host_is_read_as_it_was_written(address: object, port: int) -> None:
    text = f"{address}:{port}" if "." in str(address) else f"[{address}]:{port}"
    assert encode_host(decode_host(encode_host(text))) == encode_host(text)


_text = st.text(st.characters(exclude_characters="\x01\x02", codec="utf-8"), min_size=1)


@given(st.dictionaries(_text, _text), st.booleans())
def test_properties_are_read_as_they_were_written(pairs: dict[str, str], ended: bool) -> None:
    assert parse_properties(encode_properties(pairs, trailing_separator=ended)) == pairs


def test_digits_of_other_scripts_are_names_too() -> None:
    assert parse_offset_name("٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٤٠٩٦") == 4096
    assert parse_offset_name("4096.tmp") is None


def test_options_have_the_real_names() -> None:
    config = MessageStoreConfig.from_camel(
        {
            "mappedFileSizeCommitLog": "4096",
            "flushDiskType": "SYNC_FLUSH",
            "checkCRCOnRecover": "false",
        }
    )
    assert config.mapped_file_size_commit_log == 4096
    assert config.flush_disk_type == "SYNC_FLUSH"
    assert config.check_crc_on_recover is False


def test_a_queue_file_holds_whole_units() -> None:
    sizes = [1024, 130, 6_000_000]
    configs = [MessageStoreConfig(mapped_file_size_consume_queue=size) for size in sizes]
    assert [config.consume_queue_file_size for config in configs] == [1040, 140, 6_000_000]


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("mapped_file_size_commit_log", 50),
        ("mapped_file_size_commit_log", "4096"),
        ("flush_disk_type", "NEVER"),
        ("compat", "3.0"),
        ("recovery", "hope"),
        ("layouts", frozenset({"queue"})),
        ("message_index_enable", 1),
        ("message_delay_level", "1s soon"),
        ("message_delay_level", "-1s"),
        ("message_delay_level", "1s 99999999999999999999d"),
        ("max_index_num", 1),
    ],
)
def test_an_option_that_cannot_be_is_refused_by_name(option: str, value: object) -> None:
    with pytest.raises(InvalidMessage, match=option):
        MessageStoreConfig(**{option: value})  # type: ignore[arg-type]


def test_an_option_that_this_store_does_not_know_is_refused_unless_told_otherwise() -> None:
    with pytest.raises(InvalidMessage, match="haListenPort"):
        MessageStoreConfig.from_camel({"haListenPort": 1})
    default = MessageStoreConfig.from_camel({"haListenPort": 1}, ignore_unknown=True)
    assert default == MessageStoreConfig()


def test_the_options_are_read_from_a_broker_s_file(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    path.write_text(
        "# a broker\nbrokerClusterName = DefaultCluster\nbrokerId=0\n"
        "flushDiskType : SYNC_FLUSH\nmappedFileSizeCommitLog=\\\n  4096\n"
        "messageIndexEnable=false\nmessageDelayLevel=1s\\u00205s\ndeleteWhen=04\n"
    )
    config = MessageStoreConfig.from_file(path, compat="5.3.3", max_message_size=77)
    assert config == MessageStoreConfig(
        flush_disk_type="SYNC_FLUSH", mapped_file_size_commit_log=4096, message_index_enable=False,
        message_delay_level="1s 5s", compat="5.3.3", max_message_size=77,
    )  # fmt: skip
    assert MessageStoreConfig.from_file(path, flush_disk_type="ASYNC_FLUSH").compat == "4.9.8"
    path.write_text("mappedFileSizeCommitLog=big")
    with pytest.raises(InvalidMessage, match="mappedFileSizeCommitLog"):
        MessageStoreConfig.from_file(path)


@pytest.mark.parametrize(
    ("option", "default"),
    [
        ("mappedFileSizeCommitLog", 1_073_741_824),
        ("mappedFileSizeConsumeQueue", 6_000_000),
        ("maxHashSlotNum", 5_000_000),
        ("maxIndexNum", 20_000_000),
        ("flushDiskType", "ASYNC_FLUSH"),
        ("flushIntervalCommitLog", 500),
        ("flushCommitLogLeastPages", 4),
        ("flushCommitLogThoroughInterval", 10_000),
        ("flushIntervalConsumeQueue", 1000),
        ("flushConsumeQueueLeastPages", 2),
        ("flushConsumeQueueThoroughInterval", 60_000),
        ("syncFlushTimeout", 5000),
        ("maxMessageSize", 4_194_304),
        ("maxTopicLength", 127),
        ("checkCRCOnRecover", True),
        ("messageDelayLevel", "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"),
        ("flushDelayOffsetInterval", 10_000),
        ("maxMsgsNumBatch", 64),
        ("defaultQueryMaxNum", 32),
        ("accessMessageInMemoryMaxRatio", 40),
    ],
)
def test_the_defaults_are_rocketmq_s(option: str, default: object) -> None:
    assert getattr(MessageStoreConfig(), camel_to_snake(option)) == default


def test_a_broker_s_file_names_what_is_no_option_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "broker.conf"
    lines = ["brokerName=b", "storePathIndex=/x", "flushDiskType=SYNC_FLUSH"]
    path.write_text("\n".join([*lines, "brokerRole=SYNC_MASTER"]))
    config = MessageStoreConfig.from_file(path)
    assert config.flush_disk_type == "SYNC_FLUSH"
    assert config.unknown == ("brokerName", "brokerRole", "storePathIndex")
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.endswith("no options of this store: brokerName, brokerRole, storePathIndex")


@pytest.mark.parametrize("pair", ["storeType=defaultRocksDB", "brokerRole=SLAVE"])
def test_a_broker_s_file_that_asks_for_another_store_is_refused_by_name(
    tmp_path: Path, pair: str
) -> None:
    path = tmp_path / "broker.conf"
    path.write_text(pair)
    with pytest.raises(InvalidMessage, match=pair):
        MessageStoreConfig.from_file(path)
    with pytest.raises(InvalidMessage, match=pair):
        MessageStoreConfig.from_camel(dict([pair.split("=")]), ignore_unknown=True)


def test_a_broker_file_with_an_escape_that_is_not_valid_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    path.write_bytes(b"a=\\u00zz\n")
    with pytest.raises(InvalidMessage, match=r"broker\.conf"):
        MessageStoreConfig.from_file(path)
