"""The topics of an open store, as its users call for them.

Guards: the topics' lock is held while topics change; it comes before any of a shard's.

Next to read: `bulk_loads.py`, `manager.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from tubestore.clock import Clock
from tubestore.errors import ReadOnlyStore, StoreClosed
from tubestore.options import StoreOptions, TopicOptions
from tubestore.topic import Topic
from tubestore.topic_registry import TopicRegistry
from tubestore.vfs import Vfs


class OpenTopics:
    """What a store does with its topics; `MessageStoreManager` is made of it."""

    root: str
    mode: Literal["w", "r"]
    options: StoreOptions
    clock: Clock
    vfs: Vfs
    _topics: TopicRegistry
    #: Why the store is not open; None while it is.
    _closed: str | None

    def _check_open(self, *, writing: bool = False) -> None:
        if self._closed is not None:
            raise StoreClosed(f"{self.root}: {self._closed}")
        if writing and self.mode == "r":
            raise ReadOnlyStore(f"{self.root} was opened with mode='r'")

    def create_topic(
        self, name: str, *, partitions: int = 1, stores: int = 1, exist_ok: bool = False
    ) -> Topic:
        """Create a topic, or return it with `exist_ok`; durable when this returns.

        `partitions` is per store (shard); an id is store id * 10,000 + place. TopicExists if it
        is there and `exist_ok` is not set, or its settings are others. A topic that only TubeMQ
        knows, found by its files, takes the settings with `exist_ok` if they hold what is there.
        """
        options = TopicOptions(partitions=partitions, stores=stores)
        with self._topics.lock:
            self._check_open(writing=True)
            return self._topics.create(name, options, exist_ok=exist_ok)

    def ensure_topics(self, wanted: Mapping[str, TopicOptions]) -> list[Topic]:
        """Return topics that have at least these partitions, creating or growing them.

        Counts only rise: more partitions change where keys go, so this is for callers that
        give partitions. Durable when this returns: a settings file that is replaced unsynced
        can be empty after a power cut, and the one before it is gone.
        """
        with self._topics.lock:
            self._check_open(writing=True)
            return self._topics.ensure(wanted)

    def topic(self, name: str) -> Topic:
        """Return a topic; UnknownTopic if there is none of this name."""
        self._check_open()
        return self._topics.get(name)

    __getitem__ = topic

    def __contains__(self, name: object) -> bool:
        return name in self._topics

    def topics(self) -> list[str]:
        """Return the names of all topics, sorted."""
        return self._topics.names()
