"""Positions as TubeMQ's broker keeps them."""

from __future__ import annotations

import json

import pytest

import tubestore
from tubestore.errors import InvalidMessage
from tubestore.groups.exchange import offsets_meta, parse_offsets_meta

#: A broker's file with one group, in the form of 2.1.0.
WRITTEN = (
    '{"lstStoreTime":9,"brokerId":1,"groupOffsetStgInfo":{"g":{"lstCommitTime":9,"partOffsetInfo":'
    '{"a-b-10001":{"topic":"a-b","partId":10001,"lstRstTerm":0,"lstOffset":280,"msgId":0,'
    '"lstUpdTime":9,"createOffset":280,"createTime":9}}}}}'
)


def test_the_text_is_a_brokers() -> None:
    assert offsets_meta({"g": {"a-b": {10_001: 280}}}, 9) == WRITTEN


def test_a_brokers_text_is_read_and_positions_are_whole_entries() -> None:
    assert parse_offsets_meta(WRITTEN) == {"g": {"a-b": {10_001: 280}}}
    assert parse_offsets_meta(WRITTEN.replace("280", "299")) == {"g": {"a-b": {10_001: 280}}}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"groupOffsetStgInfo":7}',
        WRITTEN.replace("280", "-28"),
        WRITTEN.replace("280", "1.5"),
        WRITTEN.replace('"partId":10001', '"partId":"x"'),
        WRITTEN.replace('"topic":"a-b"', '"topic":7'),
    ],
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(InvalidMessage, match=r"not an offsets\.meta"):
        parse_offsets_meta(text)


def test_groups_go_out_and_in(store: tubestore.MessageStoreManager) -> None:
    topic = store.create_topic("t", partitions=2)
    for number in range(8):
        topic.append(b"%d" % number, partition=number % 2)
    with store.consumer("g", "t") as consumer:
        consumer.poll(5)
    text = store.export_groups()
    kept = json.loads(text)["groupOffsetStgInfo"]["g"]["partOffsetInfo"]
    assert {key: row["lstOffset"] for key, row in kept.items()} == {"t-0": 140, "t-1": 112}
    store.delete_group("g")
    assert len(store.import_groups(text, dry_run=True)["g"]) == 2
    assert store.groups() == []
    assert len(store.import_groups(text)["g"]) == 2
    with store.consumer("g", "t") as consumer:
        assert [message.body for message in consumer.poll()] == [b"5", b"6", b"7"]
    assert store.import_groups(text)["g"] != []
    assert store.import_groups(text)["g"] == []
    with pytest.raises(InvalidMessage, match="no group 'none'"):
        store.export_groups(["none"])


def test_topics_and_partitions_that_are_not_there_are_refused_before_anything_is_set(
    store: tubestore.MessageStoreManager,
) -> None:
    store.create_topic("t", partitions=2).append(b"x")
    for positions, name in (({"u": {0: 0}}, "'u'"), ({"t": {0: 0, 2: 0}}, "2")):
        with pytest.raises(InvalidMessage, match=name):
            store.import_groups(offsets_meta({"a": {"t": {0: 0}}, "g": positions}, 1))
        assert store.groups() == []
