"""The topics of an open store: found, created, grown; their settings saved before they count.

Guards: `lock`, the store's own, guards the topics and their settings file.

Next to read: `manager.py`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping

from tubestore.errors import TopicExists, UnknownTopic
from tubestore.filenames import check_topic_name
from tubestore.options import StoreOptions, TopicOptions
from tubestore.store_directory import StoreDirectory
from tubestore.topic import Topic
from tubestore.topic_settings import load_topics, save_topics


class TopicRegistry:
    """Topics by name; made with those that the directory has."""

    def __init__(
        self,
        directory: StoreDirectory,
        options: StoreOptions,
        make_topic: Callable[[str, TopicOptions], Topic],
    ) -> None:
        self._directory, self._options = directory, options
        self._make_topic = make_topic
        self.lock = threading.RLock()
        known = load_topics(directory, options)
        #: Topics whose settings nobody gave: learned from their files, and never saved.
        self._guessed = known.guessed
        self._topics = {n: make_topic(n, settings) for n, settings in known.settings.items()}

    def __iter__(self) -> Iterator[Topic]:
        return iter(list(self._topics.values()))

    def __contains__(self, name: object) -> bool:
        return name in self._topics

    def names(self) -> list[str]:
        """Return the names of all topics, sorted."""
        return sorted(self._topics)

    def get(self, name: str) -> Topic:
        """Return a topic; UnknownTopic if there is none of this name."""
        try:
            return self._topics[name]
        except KeyError:
            raise UnknownTopic(name) from None

    def create(self, name: str, options: TopicOptions, *, exist_ok: bool) -> Topic:
        """Create a topic, or return it with `exist_ok`; see `MessageStoreManager.create_topic`."""
        check_topic_name(name)
        with self.lock:
            topic = self._topics.get(name)
            if topic is not None:
                if not exist_ok:
                    raise TopicExists(name)
                if name not in self._guessed or not options.covers(topic.options):
                    if topic.options != options:
                        raise TopicExists(name, f"it has other settings: {topic.options}")
                    return topic
            settings = {n: t.options for n, t in self._topics.items() if n not in self._guessed}
            save_topics(self._directory, {**settings, name: options})
            self._guessed.discard(name)
            if topic is None:
                topic = self._topics[name] = self._make_topic(name, options)
            topic.options = options
            return topic

    def ensure(self, wanted: Mapping[str, TopicOptions]) -> list[Topic]:
        """Return topics that have at least these partitions, creating or growing them."""
        with self.lock:
            changed: dict[str, TopicOptions] = {}
            for name, options in wanted.items():
                known = self._topics.get(name)
                if known is None:
                    changed[check_topic_name(name)] = options
                elif (grown := known.options.grown_to(options)) != known.options:
                    changed[name] = grown
            if changed:
                settings = {n: t.options for n, t in self._topics.items()}
                save_topics(self._directory, {**settings, **changed})
                for name, options in changed.items():
                    if name in self._topics:
                        self._topics[name].options = options
                    else:
                        self._topics[name] = self._make_topic(name, options)
            return [self._topics[name] for name in wanted]

    def refresh(self) -> None:
        """See the topics and settings that a writer in another process has now."""
        with self.lock:
            fresh = load_topics(self._directory, self._options)
            topics: dict[str, Topic] = {}
            for name, options in fresh.settings.items():
                topic = self._topics.get(name)
                if topic is None:
                    topic = self._make_topic(name, options)
                topic.options = options
                topics[name] = topic
            self._topics, self._guessed = topics, fresh.guessed

    def abandon(self) -> None:
        """Have a lock that is free: other threads held the old one at a fork."""
        self.lock = threading.RLock()
