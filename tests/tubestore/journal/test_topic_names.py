"""Names of topics by their ids, as the state files have them."""

from __future__ import annotations

from tests.tubestore.journal.test_ring import open_store
from tubestore.journal.topic_names import TopicNames
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
