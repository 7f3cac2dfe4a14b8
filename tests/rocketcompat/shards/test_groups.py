"""Positions of groups as RocketMQ keeps its consumers' offsets."""

from __future__ import annotations

import doctest
import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow.compute as pc
import pytest

import rocketcompat
import tubestore
from rocketcompat import BatchItem, Message, MessageBatch
from rocketcompat.inspect.directory import StoreDirectory
from rocketcompat.inspect.selection import Selection
from rocketcompat.options import MessageStoreConfig
from rocketcompat.shards import groups as module
from rocketcompat.shards.groups import export_groups, import_groups
from rocketcompat.transfer.exchange import export_tables, import_tables
from tubestore.clock import SystemClock
from tubestore.core.vfs import OsVfs
from tubestore.errors import InvalidMessage
from tubestore.store.manager import MessageStoreManager
from tubestore.testing import MemoryVfs

SHARDS = MessageStoreConfig(layouts=frozenset({"consume_queue", "tube"}))


def offsets(topic: str, group: str, row: str) -> str:
    return f'{{"offsetTable":{{"{topic}@{group}":{{{row}}}}}}}'


def bodies_from(store: MessageStoreManager, group: str, topic: str, partition: int) -> list[bytes]:
    rows = store.describe_group(group).partitions
    (position,) = [r.position for r in rows if (r.topic, r.partition) == (topic, partition)]
    assert position is not None
    return [message.body or b"" for message in store[topic].messages(partition, position)]


@pytest.fixture
def store(memory_vfs: MemoryVfs) -> Iterator[MessageStoreManager]:
    with tubestore.open("/s", vfs=memory_vfs, background=False) as store:
        yield store


def filled_log(root: Path) -> str:
    with rocketcompat.open(root, "w") as log:
        for n in range(8):
            log.put_message(Message("t", b"%d" % n, queue_id=0))
    return str(root)


def test_the_example_does_what_it_shows() -> None:
    assert doctest.testmod(module).failed == 0


def test_messages_without_a_log_are_counted(store: MessageStoreManager) -> None:
    topic = store.create_topic("t", partitions=2)
    for n in range(10):
        topic.append(b"%d" % n, partition=n % 2)
    import_groups(store, offsets("t", "g", "0:3,1:5"))
    assert bodies_from(store, "g", "t", 0) == [b"6", b"8"]
    assert bodies_from(store, "g", "t", 1) == []
    found = json.loads(export_groups(store, ["g"]).replace("{0:", '{"0":').replace(",1:", ',"1":'))
    assert found == {"offsetTable": {"t@g": {"0": 3, "1": 5}}}


def test_an_offset_that_is_not_there_becomes_the_nearest(store: MessageStoreManager) -> None:
    store.create_topic("t").append_batch({"body": [b"0", b"1"]})
    import_groups(store, offsets("t", "g", "0:99"))
    assert "{0:2" in export_groups(store)
    import_groups(store, offsets("t", "g", "0:-1"))
    assert "{0:0" in export_groups(store)


def test_beside_a_log_they_are_the_queue_offsets_of_the_log(tmp_path: Path) -> None:
    """The queue begins at offset 3: what was before it has expired."""
    directory = StoreDirectory(filled_log(tmp_path / "old"))
    (table,) = export_tables(directory, Selection())
    table = table.filter(pc.greater_equal(table["queue_offset"], 3))
    import_tables([table], str(tmp_path / "s"), SHARDS, keep=True, vfs=OsVfs(), clock=SystemClock())
    with rocketcompat.open(tmp_path / "s", "w", SHARDS) as log:
        assert (log.min_offset_in_queue("t", 0), log.max_offset_in_queue("t", 0)) == (3, 8)
    with tubestore.open(tmp_path / "s" / "tube", "w") as store:
        assert import_groups(store, offsets("t", "g", "0:5"), dry_run=True)["g"]
        assert store.groups() == []
        for offset in (5, 8, 3):
            import_groups(store, offsets("t", "g", f"0:{offset}"))
            assert bodies_from(store, "g", "t", 0) == [b"%d" % n for n in range(offset, 8)]
            assert f"{{0:{offset}\n" in export_groups(store)


def test_an_offset_inside_an_inner_batch_is_that_of_its_record(tmp_path: Path) -> None:
    with rocketcompat.open(tmp_path, "w", SHARDS.changed(batch_topics=frozenset({"t"}))) as log:
        for names in ("abc", "de"):
            items = [BatchItem(name.encode()) for name in names]
            log.put_inner_batch(MessageBatch("t", items))
    with tubestore.open(tmp_path / "tube", "w") as store:
        for offset, count in ((0, 2), (1, 2), (2, 2), (3, 1), (4, 1), (5, 0)):
            import_groups(store, offsets("t", "g", f"0:{offset}"))
            assert len(bodies_from(store, "g", "t", 0)) == count
        assert "{0:5" in export_groups(store)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[]", "no offsetTable"),
        ("{", "not a consumerOffset"),
        (offsets("t", "g", '"x":1'), "no offset"),
        (offsets("t", "g", '"0":"x"'), "no offset"),
        (offsets("u", "g", '"0":1'), "no topic 'u'"),
        (offsets("t", "g", '"7":1'), "no partition 7"),
    ],
)
def test_what_cannot_be_set_is_refused_before_anything_is(
    store: MessageStoreManager, text: str, said: str
) -> None:
    store.create_topic("t").append(b"x")
    with pytest.raises(InvalidMessage, match=said):
        import_groups(store, text)
    assert store.groups() == []


def test_a_retry_topic_that_the_store_does_not_have_is_left_out(store: MessageStoreManager) -> None:
    store.create_topic("t").append(b"x")
    text = '{"offsetTable":{"t@g":{0:1},"%RETRY%g@g":{0:4}}}'
    assert [row.topic for row in import_groups(store, text)["g"]] == ["t"]


def test_a_group_with_a_living_member_keeps_all_groups_as_they_are(
    store: MessageStoreManager,
) -> None:
    store.create_topic("t").append(b"x")
    text = '{"offsetTable":{"t@a":{0:1},"t@g":{0:1}}}'
    with store.consumer("g", "t") as consumer:
        consumer.poll()
        with pytest.raises(InvalidMessage, match="living members"):
            import_groups(store, text)
    assert store.groups() == ["g"]
