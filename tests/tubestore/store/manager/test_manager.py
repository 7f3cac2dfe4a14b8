"""A store: its directory, its lock, its topics, and its end."""

from __future__ import annotations

import errno
import inspect
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import tubestore
from tests.support.tube import make_rows, write_rows
from tubestore.core.vfs import OsVfs
from tubestore.errors import (
    InvalidName,
    NotAStore,
    StoreLocked,
    TopicExists,
    UnknownTopic,
)
from tubestore.store.manager import MessageStoreManager, engine_of
from tubestore.testing import FaultyVfs, MemoryVfs


def bodies(topic: Any, partition: int = 0) -> list[bytes | None]:
    return [m.body for m in topic.read(partition)]


# -- topics ----------------------------------------------------------------------------------


def test_topics_and_messages_are_there_after_closing_and_opening(tmp_path: Path) -> None:
    with tubestore.open(tmp_path) as store:
        store.create_topic("b", partitions=3, stores=2).append(b"hello", partition=10_001)
        store.create_topic("a")
        identity = store.uuid
    with tubestore.open(str(tmp_path)) as store:
        assert store.uuid == identity
        assert store.topics() == ["a", "b"]
        assert "a" in store
        assert "c" not in store
        topic = store["b"]
        assert (topic.options.partitions, topic.options.stores) == (3, 2)
        assert bodies(topic, 10_001) == [b"hello"]
        assert repr(topic) == "Topic('b', partitions=6)"


def test_an_unknown_topic_is_an_error_that_names_it(store: MessageStoreManager) -> None:
    with pytest.raises(UnknownTopic, match="'nope'"):
        store.topic("nope")
    with pytest.raises(KeyError):
        store["nope"]


def test_a_topic_is_created_once(store: MessageStoreManager) -> None:
    first = store.create_topic("t", partitions=3)
    with pytest.raises(TopicExists):
        store.create_topic("t", partitions=3)
    assert store.create_topic("t", partitions=3, exist_ok=True) is first
    with pytest.raises(TopicExists, match=r"it has partitions = 3 \(not 4\); change_topic"):
        store.create_topic("t", partitions=4, exist_ok=True)


@pytest.mark.parametrize("name", ["", "a/b", "..", "a b", "x" * 200, "\u00e4"])
def test_a_bad_name_makes_no_topic(
    store: MessageStoreManager, memory_vfs: MemoryVfs, name: str
) -> None:
    before = memory_vfs.tree()
    with pytest.raises(InvalidName):
        store.create_topic(name)
    assert memory_vfs.tree() == before
    assert store.topics() == []


@pytest.mark.parametrize(
    "settings", [{"partitions": 0}, {"partitions": 10_001}, {"stores": 0}, {"stores": -1}]
)
def test_impossible_settings_make_no_topic(
    store: MessageStoreManager, settings: dict[str, int]
) -> None:
    with pytest.raises(ValueError, match="="):
        store.create_topic("t", **settings)
    assert store.topics() == []


def test_names_that_tubemq_refuses_are_taken_and_found_again(memory_vfs: MemoryVfs) -> None:
    names = ["%RETRY%group", "a-b", "a-1", "a"]
    with tubestore.open("/s", vfs=memory_vfs, background=False) as store:
        for name in names:
            store.create_topic(name).append(name.encode())
    with tubestore.open("/s", vfs=memory_vfs, background=False) as store:
        assert store.topics() == sorted(names)
        for name in names:
            assert bodies(store.topic(name)) == [name.encode()]


def test_a_topic_that_could_not_be_saved_is_none(memory_vfs: MemoryVfs) -> None:
    faulty = FaultyVfs(memory_vfs)
    with tubestore.open("/s", vfs=faulty, background=False) as store:
        faulty.fail("replace_file", error=errno.ENOSPC)
        with pytest.raises(OSError, match="No space"):
            store.create_topic("t")
        assert store.topics() == []
        store.create_topic("t")


# -- foreign directories ---------------------------------------------------------------------


def test_a_store_of_tubemq_opens_without_own_settings(memory_vfs: MemoryVfs) -> None:
    write_rows(memory_vfs, make_rows(20, partitions=3), "/s/t-0")
    with tubestore.open("/s", mode="r", vfs=memory_vfs) as store:
        assert store.topics() == ["t"]
        assert store["t"].options.partitions == 3
        assert len(store["t"].read(2)) == 6


def test_a_partition_that_a_broker_adds_later_is_seen(memory_vfs: MemoryVfs) -> None:
    """Partitions of a foreign topic are guessed: the guess may not be kept for ever."""
    write_rows(memory_vfs, make_rows(20, partitions=3), "/s/t-0")
    with tubestore.open("/s", vfs=memory_vfs, background=False) as store:
        store.create_topic("ours").append(b"x")
    write_rows(memory_vfs, make_rows(20, partitions=8), "/s/t-0")
    with tubestore.open("/s", vfs=memory_vfs, background=False) as store:
        assert store["t"].options.partitions == 8
        assert len(store["t"].read(7)) == 2


def test_a_foreign_topic_takes_settings_that_hold_what_is_there(memory_vfs: MemoryVfs) -> None:
    write_rows(memory_vfs, make_rows(20, partitions=3), "/s/t-0")
    with tubestore.open("/s", vfs=memory_vfs, background=False) as store:
        with pytest.raises(TopicExists):
            store.create_topic("t", partitions=2, exist_ok=True)
        topic = store.create_topic("t", partitions=10, stores=2, exist_ok=True)
        assert topic is store["t"]
        assert topic.append(b"x", partition=10_009).offset == 0
        with pytest.raises(TopicExists):
            store.create_topic("t", partitions=11, stores=2, exist_ok=True)
    with tubestore.open("/s", vfs=memory_vfs, background=False) as store:
        assert store["t"].options.partitions == 10


@pytest.mark.parametrize(
    "name", ["backup-20240101", "photos-99999999999999999999", "-3", "a-01", "a-x", "notes"]
)
def test_directories_that_are_no_shards_are_passed_by(memory_vfs: MemoryVfs, name: str) -> None:
    memory_vfs.make_directories(f"/s/{name}/index")
    memory_vfs.open(f"/s/{name}/{0:020d}.tube", create=True)
    with tubestore.open("/s", vfs=memory_vfs, background=False) as store:
        assert store.topics() == []
        store.create_topic("t").append(b"x")


GARBAGE = [b"", b"[]", b"null", b"5", b"{", b"\xff\xfe", b"{}", b'{"topics": []}']
GARBAGE += [b'{"topics": {"t": 5}}', b'{"topics": {"t": {"partitions": 0}}}']
GARBAGE += [b'{"topics": {"t": {"shards": 1}}}', b'{"version": 2, "topics": {}}']
GARBAGE += [b'{"topics": {"t": {"partitions": "x"}}}', b'{"version": 1}']
GARBAGE += [b'{"version": 1, "features": ["zip"], "uuid": "x"}']


@pytest.mark.parametrize("content", GARBAGE, ids=lambda c: ascii(c)[1:])
@pytest.mark.parametrize("name", ["store.json", "topics.json"])
@pytest.mark.parametrize("mode", ["w", "r"])
def test_state_that_cannot_be_read_refuses_the_store(
    memory_vfs: MemoryVfs, name: str, content: bytes, mode: Any
) -> None:
    with tubestore.open("/s", vfs=memory_vfs, background=False) as store:
        store.create_topic("t").append(b"x")
    path = f"/s/.tubestore/{name}"
    saved = memory_vfs.read_file(path)
    memory_vfs.replace_file(path, content)
    with pytest.raises(NotAStore):
        tubestore.open("/s", mode, vfs=memory_vfs, background=False)
    memory_vfs.replace_file(path, saved)  # and the lock is free
    with tubestore.open("/s", vfs=memory_vfs, background=False) as store:
        assert bodies(store["t"]) == [b"x"]


@pytest.mark.parametrize("mode", ["w", "r"])
def test_a_file_is_no_store(tmp_path: Path, mode: Any) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"")
    with pytest.raises(NotAStore):
        tubestore.open(path, mode)


def test_a_missing_directory_is_made_for_writing_and_refused_for_reading(tmp_path: Path) -> None:
    with pytest.raises(NotAStore, match="no such directory"):
        tubestore.open(tmp_path / "a" / "b", mode="r")
    assert not (tmp_path / "a").exists()
    tubestore.open(tmp_path / "a" / "b").close()
    assert (tmp_path / "a" / "b").is_dir()


# -- the lock --------------------------------------------------------------------------------


def test_a_second_writer_is_refused_and_readers_are_not(tmp_path: Path) -> None:
    with tubestore.open(tmp_path) as store:
        store.create_topic("t").append(b"x")
        for vfs in (OsVfs(), engine_of(store).context.vfs):
            with pytest.raises(StoreLocked, match="mode='r'"):
                tubestore.open(tmp_path, vfs=vfs)
        with tubestore.open(tmp_path, mode="r") as one, tubestore.open(tmp_path, mode="r") as two:
            assert bodies(one["t"]) == bodies(two["t"]) == [b"x"]
    tubestore.open(tmp_path).close()


def test_a_store_that_will_not_open_leaves_no_lock(memory_vfs: MemoryVfs) -> None:
    faulty = FaultyVfs(memory_vfs)
    faulty.fail("replace_file")
    with pytest.raises(OSError, match="Input/output"):
        tubestore.open("/s", vfs=faulty, background=False)
    tubestore.open("/s", vfs=memory_vfs, background=False).close()


# -- arguments -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"mode": "a"}, ValueError),
        ({"durability": "disk"}, ValueError),
        ({"on_damage": "ignore"}, ValueError),
        ({"mem_store_messages": 0}, ValueError),
        ({"segment_size_bytes": -1}, ValueError),
        ({"nonsense": 1}, TypeError),
    ],
)
def test_bad_settings_are_refused_before_a_directory_is_made(
    tmp_path: Path, settings: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        tubestore.open(tmp_path / "s", **settings)
    assert not (tmp_path / "s").exists()


# -- settings, and the store as a mapping ------------------------------------------------------


def test_open_has_every_setting_with_its_default() -> None:
    taken = inspect.signature(tubestore.open).parameters
    settings = {field.name: field.default for field in fields(tubestore.StoreOptions)}
    shown = {name: one.default for name, one in taken.items() if name in settings}
    assert shown == settings


def test_settings_of_open_are_those_of_the_store(memory_vfs: MemoryVfs) -> None:
    with tubestore.open(
        "/s", segment_size_bytes="1MiB", sync_after_ms="3s", flush_workers=1, vfs=memory_vfs
    ) as store:
        assert store.options == tubestore.StoreOptions(
            segment_size_bytes=1 << 20, sync_after_ms=3000, flush_workers=1
        )


def test_a_misspelt_setting_is_refused_with_the_nearest_name(memory_vfs: MemoryVfs) -> None:
    wrong: Any = {"durabilty": "fsync"}
    with pytest.raises(TypeError, match="unknown 'durabilty'; did you mean 'durability'"):
        tubestore.open("/s", vfs=memory_vfs, **wrong)
    with pytest.raises(TypeError, match=r"unknown 'zzz'$"):
        tubestore.open("/s", vfs=memory_vfs, **{"zzz": 1})  # type: ignore[arg-type]
    assert not memory_vfs.exists("/s")


def test_a_store_is_a_mapping_of_names_to_topics(store: MessageStoreManager) -> None:
    assert isinstance(store, Mapping)
    assert store  # also without topics
    assert (list(store), len(store), store.get("a")) == ([], 0, None)
    one, two = store.create_topic("b"), store.create_topic("a")
    assert list(store) == ["a", "b"]
    assert dict(store) == {"a": two, "b": one}
    assert store.get("a") is two
    assert {store: 1}[store] == 1  # by identity, as every handle
    assert store != {"a": two, "b": one}
