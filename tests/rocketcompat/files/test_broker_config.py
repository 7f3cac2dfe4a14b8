"""A broker's configuration files: fastjson's text, backups, what is not known."""

from __future__ import annotations

import doctest
import errno

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketcompat.files import broker_config
from rocketcompat.files.broker_config import (
    BrokerConfig,
    SubscriptionGroupConfig,
    TopicConfig,
    dumps,
    loads,
)
from tests.support.golden import GoldenFactory
from tubestore.core.vfs import OsVfs
from tubestore.errors import CorruptRecord, InvalidMessage
from tubestore.testing import FaultyVfs, MemoryVfs

#: As RocketMQ 4.9 writes it, with its order of rows.
TOPICS = """{
	"dataVersion":{
		"counter":2,
		"timestamp":1700000000000
	},
	"topicConfigTable":{
		"TopicTest":{
			"order":false,
			"perm":6,
			"readQueueNums":8,
			"topicFilterType":"SINGLE_TAG",
			"topicName":"TopicTest",
			"topicSysFlag":0,
			"writeQueueNums":8
		},
		"%RETRY%g":{
			"order":false,
			"perm":6,
			"readQueueNums":1,
			"topicFilterType":"SINGLE_TAG",
			"topicName":"%RETRY%g",
			"topicSysFlag":0,
			"writeQueueNums":1
		}
	}
}"""
OFFSETS = """{
	"offsetTable":{
		"TopicA@group1":{0:250,1:250
		},
		"%RETRY%g@g":{0:9223372036854775807
		}
	}
}"""


@pytest.fixture
def files(memory_vfs: MemoryVfs) -> BrokerConfig:
    return BrokerConfig(memory_vfs, "/s")


def put(vfs: MemoryVfs, name: str, raw: bytes) -> None:
    vfs.make_directories("/s/config")
    vfs.replace_file(f"/s/config/{name}", raw)


def test_the_examples_in_the_documentation_hold() -> None:
    assert doctest.testmod(broker_config).failed == 0


@pytest.mark.parametrize("text", [TOPICS, OFFSETS, '{\n\t"offsetTable":{}\n}'])
def test_what_the_real_broker_wrote_is_written_again_byte_by_byte(text: str) -> None:
    content = loads(text)
    for row in content.get("offsetTable", {}).values():
        assert isinstance(row, dict)
    typed = {
        key: {place: {int(k): v for k, v in row.items()} for place, row in table.items()}
        if key == "offsetTable"
        else table
        for key, table in content.items()
    }
    assert dumps(typed) == text


@pytest.mark.parametrize("version", ["4.9.8"])
def test_the_delay_offsets_of_a_real_store_are_read_and_written_as_they_are(
    golden: GoldenFactory, version: str
) -> None:
    store = golden("rocketmq", version, "delayed").store
    path = store / "config" / "delayOffset.json"
    before = path.read_bytes()
    files = BrokerConfig(OsVfs(), str(store))
    assert files.delay_offsets() == {1: 7, 2: 4}
    path.unlink()
    files.save_delay_offsets({1: 7, 2: 4}, 0)
    assert path.read_bytes() == before


def test_topics_and_their_version(memory_vfs: MemoryVfs, files: BrokerConfig) -> None:
    put(memory_vfs, "topics.json", TOPICS.encode())
    topics = files.topics()
    assert topics["TopicTest"] == TopicConfig("TopicTest")
    assert topics["%RETRY%g"].read_queue_nums == 1
    topics["TopicTest"].perm = 4
    files.save_topics(topics, 1_800_000_000_000)
    text = memory_vfs.read_file("/s/config/topics.json").decode()
    assert text == TOPICS.replace('"perm":6', '"perm":4', 1).replace('"counter":2', '"counter":3') \
        .replace("1700000000000", "1800000000000")  # fmt: skip
    assert memory_vfs.read_file("/s/config/topics.json.bak").decode() == TOPICS


def test_consumer_offsets_are_kept_by_topic_group_and_queue(
    memory_vfs: MemoryVfs, files: BrokerConfig
) -> None:
    put(memory_vfs, "consumerOffset.json", OFFSETS.encode())
    offsets = files.consumer_offsets()
    assert offsets == {("TopicA", "group1"): {0: 250, 1: 250}, ("%RETRY%g", "g"): {0: 2**63 - 1}}
    offsets["TopicA", "group1"][1] = 251
    files.save_consumer_offsets(offsets, 0)
    text = memory_vfs.read_file("/s/config/consumerOffset.json").decode()
    assert text == OFFSETS.replace("1:250", "1:251")


def test_what_a_newer_version_has_more_is_written_back(
    memory_vfs: MemoryVfs, files: BrokerConfig
) -> None:
    newer = {
        "dataVersion": {"counter": 1, "stateVersion": 7, "timestamp": 3},
        "forbiddenTable": {},
        "subscriptionGroupTable": {
            "g": {"consumeMessageOrderly": True, "consumeTimeoutMinute": 15, "groupName": "g"}
        },
    }
    put(memory_vfs, "subscriptionGroup.json", dumps(newer).encode())
    groups = files.subscription_groups()
    assert groups["g"].others == {"consumeMessageOrderly": True, "consumeTimeoutMinute": 15}
    groups["h"] = SubscriptionGroupConfig("h", retry_max_times=3)
    files.save_subscription_groups(groups, 9)
    content = loads(memory_vfs.read_file("/s/config/subscriptionGroup.json").decode())
    assert content["forbiddenTable"] == {}
    assert content["dataVersion"] == {"counter": 2, "stateVersion": 7, "timestamp": 9}
    assert content["subscriptionGroupTable"]["g"]["consumeMessageOrderly"] is True
    assert list(content["subscriptionGroupTable"]["h"]) == [
        "brokerId", "consumeBroadcastEnable", "consumeEnable", "consumeFromMinEnable", "groupName",
        "notifyConsumerIdsChangedEnable", "retryMaxTimes", "retryQueueNums",
        "whichBrokerWhenConsumeSlowly",
    ]  # fmt: skip


def test_every_file_of_the_newer_version_has_a_version(memory_vfs: MemoryVfs) -> None:  # #6881
    files = BrokerConfig(memory_vfs, "/s", compat="5.3.3")
    files.save_delay_offsets({3: 1}, 5)
    content = loads(memory_vfs.read_file("/s/config/delayOffset.json").decode())
    assert content["dataVersion"] == {"counter": 1, "stateVersion": 0, "timestamp": 5}


@pytest.mark.parametrize(
    "junk", [b"", b"\0" * 30, b'{"offsetTable":{1:', b"[]", b"\xff\xfe", b"[" * 9999]
)
def test_a_file_that_is_not_whole_is_read_from_its_backup(  # apache/rocketmq #3401
    memory_vfs: MemoryVfs, files: BrokerConfig, junk: bytes
) -> None:
    put(memory_vfs, "consumerOffset.json", junk)
    with pytest.raises(CorruptRecord, match="not a configuration"):
        files.consumer_offsets()
    put(memory_vfs, "consumerOffset.json.bak", OFFSETS.encode())
    assert files.consumer_offsets()["TopicA", "group1"] == {0: 250, 1: 250}
    files.save_consumer_offsets({("T", "g"): {0: 1}}, 0)
    assert files.consumer_offsets() == {("T", "g"): {0: 1}}
    assert memory_vfs.read_file("/s/config/consumerOffset.json.bak") == OFFSETS.encode()


WRONG = {
    "topics.json": [
        '{"topicConfigTable":[]}', '{"topicConfigTable":{"T":5}}',
        '{"topicConfigTable":{"T":{"perm":"a b"}}}', '{"topicConfigTable":{"T":{"order":"x"}}}',
        '{"topicConfigTable":{"T":{"readQueueNums":2147483648}}}',
        '{"topicConfigTable":{"T":{"perm":NaN}}}', '{"topicConfigTable":{"T":{"topicName":5}}}',
        '{"topicConfigTable":{"T":{"attributes":{"a":1}}}}', '{"dataVersion":{"counter":"x"}}',
        '{"dataVersion":7}',
    ],
    "subscriptionGroup.json": [
        '{"subscriptionGroupTable":{"g":{"retryMaxTimes":1.5}}}',
        '{"subscriptionGroupTable":{"g":{"consumeEnable":1}}}', '{"subscriptionGroupTable":"x"}',
    ],
    "consumerOffset.json": [
        '{"offsetTable":{"T@g":{"0":"x"}}}', '{"offsetTable":{"T@g":{"x":0}}}',
        '{"offsetTable":{"T@g":7}}', '{"offsetTable":{"T@g":{0:true}}}', '{"offsetTable":[1]}',
        '{"offsetTable":{"T@g":{0:9223372036854775808}}}', '{"offsetTable":{"T@g":{0:null}}}',
        '{"offsetTable":{"T@g":{2147483648:0}}}',
    ],
    "delayOffset.json": ['{"offsetTable":{1:"x"}}', '{"offsetTable":7}'],
    "messageRequestMode.json": ['{"messageRequestModeMap":{"T":{"g":"POP"}}}'],
}  # fmt: skip


@pytest.mark.parametrize(("name", "text"), [(n, text) for n in WRONG for text in WRONG[n]])
def test_a_table_of_wrong_types_is_damage_and_is_not_written(
    memory_vfs: MemoryVfs, files: BrokerConfig, name: str, text: str
) -> None:
    with pytest.raises(InvalidMessage, match=name):
        files.write_raw(name, text.encode())
    assert files.read(name) == {}
    put(memory_vfs, name, text.encode())
    with pytest.raises(CorruptRecord, match=f"{name}.*put a copy in its place"):
        files.read(name)
    put(memory_vfs, name + ".bak", b'{"kept":7}')
    assert files.read(name) == {"kept": 7}


def test_a_null_and_a_missing_field_are_their_defaults_and_numbers_may_be_texts(
    memory_vfs: MemoryVfs, files: BrokerConfig
) -> None:
    put(memory_vfs, "topics.json", b'{"topicConfigTable":{"T":{"perm":null,"readQueueNums":"3"}}}')
    assert files.topics() == {"T": TopicConfig("T", read_queue_nums=3)}
    put(memory_vfs, "consumerOffset.json", b'{"offsetTable":null,"dataVersion":null}')
    assert files.consumer_offsets() == {}
    files.save_consumer_offsets({("T", "g"): {0: -1}}, 0)
    assert files.consumer_offsets() == {("T", "g"): {0: -1}}


@pytest.mark.parametrize(
    "row",
    [
        TopicConfig("T", others={"new": "\ud800"}), TopicConfig("T", others={"new": b"x"}),
        TopicConfig("T", perm=None), TopicConfig("T", order=None),  # type: ignore[arg-type]
        TopicConfig("T", topic_filter_type="\ud800"),
    ],
)  # fmt: skip
def test_a_row_that_cannot_be_written_changes_nothing(
    files: BrokerConfig, row: TopicConfig
) -> None:
    with pytest.raises(InvalidMessage):
        files.save_topics({"T": row}, 1)
    assert files.topics() == {}


def test_a_missing_file_is_an_empty_table(files: BrokerConfig) -> None:
    assert files.topics() == {}
    assert files.consumer_offsets() == {}
    assert files.delay_offsets() == {}
    assert files.subscription_groups() == {}


def test_what_has_not_changed_is_not_written(memory_vfs: MemoryVfs, files: BrokerConfig) -> None:
    files.save_topics({"T": TopicConfig("T")}, 1)
    before = memory_vfs.read_file("/s/config/topics.json")
    files.save_topics({"T": TopicConfig("T")}, 2)
    assert memory_vfs.read_file("/s/config/topics.json") == before


def test_a_long_file_has_to_be_json() -> None:
    """JSON5 would take minutes for what a peer or a disk may have made of a file."""
    text = '{"topicConfigTable":{' + '"' + "x" * (1 << 20)
    with pytest.raises(ValueError, match="not JSON, and too long"):
        loads(text)


def test_comments_of_an_administrator_are_read() -> None:
    assert loads('{// by hand\n"offsetTable":{"T@g":{0:1,},},}') == {
        "offsetTable": {"T@g": {"0": 1}}
    }


def test_numbers_and_braces_inside_of_texts_are_no_keys() -> None:
    assert loads('{"a{1:2,3:4":"{5:6","b\\"{7:8":{9:0}}') == {
        "a{1:2,3:4": "{5:6",
        'b"{7:8': {"9": 0},
    }


def test_a_failed_write_leaves_the_old_file() -> None:
    vfs = FaultyVfs(MemoryVfs())
    files = BrokerConfig(vfs, "/s")
    files.save_delay_offsets({1: 1}, 0)
    vfs.fail("replace_file", nth=2, error=errno.ENOSPC)
    with pytest.raises(OSError, match="No space"):
        files.save_delay_offsets({1: 2}, 0)
    assert files.delay_offsets() == {1: 1}


_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(codec="utf-8")),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(st.characters(codec="utf-8")), inner, max_size=3)
        | st.dictionaries(st.integers(), inner, max_size=3)
    ),
    max_leaves=10,
)


@pytest.mark.gate
@given(_values)
def test_any_content_is_read_as_it_was_written(content: object) -> None:
    assert loads(dumps(content)) == as_read(content)


def as_read(content: object) -> object:
    """Keys are texts, and a null in a map is left out where keys are texts."""
    if isinstance(content, dict):
        numbers = bool(content) and all(isinstance(key, int) for key in content)
        return {str(k): as_read(v) for k, v in content.items() if numbers or v is not None}
    return [as_read(item) for item in content] if isinstance(content, list) else content
