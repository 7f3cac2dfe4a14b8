"""The topics of an open store: found, created, changed, deleted.

Settings are saved, durably, before they count. A deletion is one atomic step: the settings
file without the topic. What comes after it, moving the shards to the trash, is finished by
the next opening for writing if a crash comes in between; until then the file names the topic
as deleted, so that what is left of it is not taken for a topic that only TubeMQ knows.

Guards: `lock`, the store's own, guards the topics and their settings file.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping

from tubestore.core.paths import join
from tubestore.errors import InvalidMessage, InvalidName, StoreClosed, TopicExists, UnknownTopic
from tubestore.options import StoreOptions, TopicOptions
from tubestore.record.names import check_topic_name, store_key
from tubestore.segments import trash
from tubestore.store.directory import StoreDirectory
from tubestore.store.topic import Topic
from tubestore.store.topic_settings import load_topics, save_topics, shards_on_disk


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
        #: Counts up when topics or their settings change.
        self.version = 0
        known = load_topics(directory, options)
        #: Topics whose settings nobody gave: learned from their files, and never saved.
        self._guessed = known.guessed
        #: Topics whose shards are not all moved away yet.
        self._deleted = known.deleted
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
        except TypeError:
            raise InvalidName(repr(name), "a topic's name is a text") from None

    def get_all(self, names: Iterable[str]) -> list[Topic]:
        """As `get` for each of some names."""
        topics = self._topics
        try:
            return [topics[name] for name in names]
        except KeyError as error:
            raise UnknownTopic(error.args[0]) from None

    # -- creating and changing ---------------------------------------------------------------

    def create(self, name: str, options: TopicOptions, *, exist_ok: bool) -> Topic:
        """Create a topic, or return it with `exist_ok`; see `OpenTopics.create_topic`."""
        check_topic_name(name)
        with self.lock:
            topic = self._topics.get(name)
            if topic is None:
                self._put({name: options})
            elif not exist_ok:
                raise TopicExists(name)
            elif name in self._guessed and options.covers(topic.options):
                self._put({name: options})
            elif not _agree(options, topic.options):
                raise TopicExists(name, f"it has other settings: {topic.options}")
            return self._topics[name]

    def ensure(self, wanted: Mapping[str, TopicOptions]) -> list[Topic]:
        """Return topics that have at least these partitions, creating or growing them."""
        if not isinstance(wanted, Mapping):
            raise TypeError(f"wanted {wanted!r}: a mapping of names to TopicOptions is needed")
        for name, options in wanted.items():
            if not isinstance(options, TopicOptions):
                raise TypeError(f"wanted: {options!r} of {name!r} is not a TopicOptions")
        with self.lock:
            changed: dict[str, TopicOptions] = {}
            for name, options in wanted.items():
                known = self._topics.get(name)
                if known is None:
                    changed[check_topic_name(name)] = options
                elif (grown := known.options.grown_to(options)) != known.options:
                    changed[name] = grown
            if changed:
                self._put(changed)
            return [self._topics[name] for name in wanted]

    def change(self, name: str, options: TopicOptions) -> Topic:
        """Give a topic other settings; InvalidMessage if it would have fewer partitions."""
        with self.lock:
            topic = self.get(name)
            if not options.covers(topic.options):
                has = f"{topic.options.partitions} partitions in {topic.options.stores} stores"
                raise InvalidMessage(f"topic {name!r} has {has}: these only rise")
            if options != topic.options or name in self._guessed:
                self._put({name: options})
            return topic

    def _put(self, changed: Mapping[str, TopicOptions]) -> None:
        """Save settings of some topics, new or not, and let them count."""
        if not self._deleted.isdisjoint(changed):
            self.finish_deletions()
        named = {n: self._named(n, options) for n, options in changed.items()}
        self._save({**self._given(), **named})
        for name, options in named.items():
            self._guessed.discard(name)
            if name in self._topics:
                self._topics[name].adopt(options)
            else:
                self._topics[name] = self._make_topic(name, options)
        self.version += 1

    def _named(self, name: str, options: TopicOptions) -> TopicOptions:
        """Return the settings with the topic's id, given now to one that has none."""
        known = self._topics.get(name)
        number = known.options.id if known is not None else 0
        return options.with_values(id=number or self._directory.next_id())

    def _given(self) -> dict[str, TopicOptions]:
        return {n: t.options for n, t in self._topics.items() if n not in self._guessed}

    def _save(self, settings: Mapping[str, TopicOptions]) -> None:
        save_topics(self._directory, settings, self._deleted)

    # -- deleting ----------------------------------------------------------------------------

    def delete(self, name: str) -> None:
        """Delete a topic; its shards go to the trash. See `OpenTopics.delete_topic`."""
        with self.lock:
            topic = self.get(name)
            settings = self._given()
            settings.pop(name, None)
            save_topics(self._directory, settings, {*self._deleted, name})
            self._deleted.add(name)
            self._guessed.discard(name)
            del self._topics[name]
            self.version += 1
            topic.discard(StoreClosed(f"topic {name!r} was deleted"))
            self.finish_deletions()

    def finish_deletions(self) -> None:
        """Move what is left of deleted topics to the trash, durably."""
        with self.lock:
            if not self._deleted:
                return
            vfs, root = self._directory.vfs, self._directory.root
            there = shards_on_disk(vfs, root)
            for name in sorted(self._deleted):
                for store_id in there.get(name, ()):
                    path = join(root, store_key(name, store_id))
                    trash.move(vfs, path, trash.trash_of(root), self._directory.clock.now_ms())
            vfs.sync_directory(root)
            save_topics(self._directory, self._given())
            self._deleted = set()

    # -- other processes ---------------------------------------------------------------------

    def refresh(self) -> None:
        """See the topics and settings that a writer in another process has now."""
        with self.lock:
            fresh = load_topics(self._directory, self._options)
            topics: dict[str, Topic] = {}
            for name, options in fresh.settings.items():
                topic = self._topics.get(name)
                if topic is None or _is_another(topic.options, options):
                    topic = self._make_topic(name, options)
                topic.adopt(options)
                topics[name] = topic
            for name, topic in self._topics.items():
                if topics.get(name) is not topic:
                    topic.discard(StoreClosed(f"topic {name!r} was deleted"))
            self._topics, self._guessed = topics, fresh.guessed
            self.version += 1

    def abandon(self) -> None:
        """Have a lock that is free: other threads held the old one at a fork."""
        self.lock = threading.RLock()


def _is_another(known: TopicOptions, found: TopicOptions) -> bool:
    """Whether the topic was deleted, and another one has its name."""
    return known.id != 0 and known.id != found.id


def _agree(wanted: TopicOptions, known: TopicOptions) -> bool:
    """Whether a topic has the settings that were asked for; bounds that were not given are any."""
    if wanted.max_age_ms is None:
        wanted = wanted.with_values(max_age_ms=known.max_age_ms)
    if wanted.max_bytes is None:
        wanted = wanted.with_values(max_bytes=known.max_bytes)
    return wanted == known
