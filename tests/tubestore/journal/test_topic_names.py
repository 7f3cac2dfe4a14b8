"""Names of topics by their ids, as the state files have them."""

from __future__ import annotations

import pytest

import tubestore
from tests.tubestore.journal.test_ring import open_store
from tubestore.journal.topic_names import TopicNames
from tubestore.record import state_files
from tubestore.testing import MemoryVfs


def test_the_names_of_topics_are_parsed_when_their_files_have_changed_alone(
    memory_vfs: MemoryVfs,
) -> None:
    with open_store(memory_vfs) as store:
        names = TopicNames(memory_vfs, "/s")
        before = names.read()
        assert sorted(before.values()) == ["a", "b"]
        assert names.read() is before
        store.create_topic("c")
        assert sorted(names.read().values()) == ["a", "b", "c"]
        store.delete_topic("a")
        assert sorted(names.read().values()) == ["b", "c"]
    assert sorted(names.read().values()) == ["b", "c"]
    assert TopicNames(memory_vfs, "/none").read() == {}


def test_a_refresh_parses_the_settings_of_topics_when_they_have_changed_alone(
    memory_vfs: MemoryVfs, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed: list[bytes] = []
    parse = state_files.parse_topics

    def counted(data: bytes) -> state_files.SavedTopics:
        parsed.append(data)
        return parse(data)

    with open_store(memory_vfs) as store, tubestore.open("/s", "r", vfs=memory_vfs) as reader:
        store["a"].append(b"first")
        reader.refresh()
        assert len(reader["a"].read(0)) == 1
        monkeypatch.setattr(state_files, "parse_topics", counted)
        for _ in range(3):
            store["a"].append(b"one more")
            reader.refresh()
        assert not parsed
        store.create_topic("c")
        reader.refresh()
        assert "c" in reader
        assert parsed
