"""Options have RocketMQ's names, defaults and bounds, and are read from a broker's file."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest

from rocketcompat import MessageStoreConfig
from rocketcompat.options import camel_to_snake
from tubestore.errors import InvalidMessage


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
        ("mapped_file_size_commit_log", "4096 units"),
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


def test_sizes_are_numbers_or_texts_with_a_unit() -> None:
    given: dict[str, Any] = {"mapped_file_size_commit_log": "4MiB"}
    assert MessageStoreConfig(**given).mapped_file_size_commit_log == 4 << 20
    camel = MessageStoreConfig.from_camel({"maxMessageSize": "64KB", "maxIndexNum": "400"})
    assert (camel.max_message_size, camel.max_index_num) == (64_000, 400)
    with pytest.raises(InvalidMessage, match="maxMessageSize: '4 GO' is not a valid size"):
        MessageStoreConfig.from_camel({"maxMessageSize": "4 GO"})


def test_the_option_that_bounds_a_record_is_known() -> None:
    small = MessageStoreConfig(mapped_file_size_commit_log=4096)
    assert small.record_size_setting == "mapped_file_size_commit_log"
    assert MessageStoreConfig().record_size_setting == "max_message_size"


@pytest.mark.parametrize("make", [MessageStoreConfig, MessageStoreConfig().changed])
def test_a_misspelt_setting_is_refused_with_the_nearest_name(make: Any) -> None:
    words = r"unknown 'mapped_file_size_comit_log'; did you mean 'mapped_file_size_commit_log'\?"
    with pytest.raises(TypeError, match=rf"^MessageStoreConfig: {words}"):
        make(mapped_file_size_comit_log=4096)
    with pytest.raises(TypeError, match=r"^MessageStoreConfig: unknown 'wrong'$"):
        make(wrong=1)


def test_settings_are_copied_and_pickled_as_they_are() -> None:
    config = MessageStoreConfig(max_message_size="1MiB")
    assert pickle.loads(pickle.dumps(config)) == copy.copy(config) == copy.deepcopy(config)


def test_a_misspelt_option_is_refused_with_the_nearest_name() -> None:
    words = "no option of this store: unknown 'mapedFileSizeCommitLog'; did you mean 'mappedFile"
    with pytest.raises(InvalidMessage, match=words):
        MessageStoreConfig.from_camel({"mapedFileSizeCommitLog": 4096})
