"""The topics of an open store: found, created, changed, deleted.

Settings are saved, durably, before they count. A deletion is one atomic step: the settings file
without the topic. After that the shards are moved to the trash; after a crash in between the next
opening for writing finishes it. Until then the file names the topic as deleted, so that its remains
are not taken for a topic of TubeMQ's.

TubeMQ keeps a topic's settings elsewhere, so topics are found by their shards' directories
too. The least number of its partitions follows from its files: a *guess*, which is never saved,
since a broker may add partitions later.

Guards: `lock`, the store's own, guards the topics and their settings file.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields
from typing import NamedTuple

from tubestore.core import trash
from tubestore.core.doors import logger
from tubestore.core.paths import join
from tubestore.core.vfs import Vfs
from tubestore.errors import (
    InvalidMessage,
    InvalidName,
    NotAStore,
    StoreClosed,
    StoreFailed,
    TopicExists,
    TubeStoreError,
    UnknownTopic,
)
from tubestore.options import PARTITIONS_PER_STORE, StoreOptions, TopicOptions
from tubestore.reading.view import ShardView
from tubestore.record.names import (
    TOPICS_FILE,
    check_topic_name,
    parse_store_key,
    store_key,
)
from tubestore.record.records import ENTRY_SIZE
from tubestore.record.state_files import MISSING_TOPICS, SavedTopics
from tubestore.segments.listing import is_shard
from tubestore.segments.lost_files import missing_directory, surplus_shard
from tubestore.shard.message_store import MessageStore
from tubestore.shard.reader import ShardReader
from tubestore.staging.commit_records import CommitRecords
from tubestore.store.context import Context
from tubestore.store.directory import StoreDirectory, TopicSettings
from tubestore.store.opening import ShardOpener
from tubestore.store.topic import Topic, shards_of
from tubestore.store.topic_shards import TopicShards
from tubestore.values import Age, Keep, Size, age_ms, checked_texts, size_bytes

log = logger(__name__)


class KnownTopics(NamedTuple):
    """Every topic's settings, and what else is known of their names."""

    settings: dict[str, TopicOptions]
    #: Their settings are guessed from their files.
    guessed: set[str]
    #: They were deleted; some of their shards may still be in their places.
    deleted: set[str]
    #: The number of the log of changes beside `topics.json`, 0 for none.
    log: int
    #: The names of the directories in the root.
    there: frozenset[str]
    #: Topic and number of directories with a number that their topics do not have.
    beyond: list[tuple[str, int]]


class ShardDescription(NamedTuple):
    """One shard: bounds, messages of all its partitions, and its files with their bytes."""

    store_id: int
    first_offset: int
    end_offset: int
    messages: int
    data_bytes: int
    index_bytes: int
    data_files: int
    index_files: int


class TopicDescription(NamedTuple):
    """A topic's settings, and its shards that have files."""

    name: str
    options: TopicOptions
    shards: tuple[ShardDescription, ...]


class Topics:
    """Topics by name; made with those that the directory has."""

    def __init__(
        self,
        context: Context,
        opener: ShardOpener,
        make_topic: Callable[[str, TopicOptions], Topic],
    ) -> None:
        self._context, self._opener = context, opener
        self._directory = context.directory
        self._make_topic = make_topic
        self.lock = threading.RLock()
        #: Counts up when topics or their settings change.
        self.version = 0
        known = load_topics(context.directory, context.options)
        self._saved = TopicSettings(context.directory, known.log)
        #: Topics with settings that are guessed from their files, and never saved.
        self._guessed = known.guessed
        #: Topics with shards that are not all moved away yet.
        self._deleted = known.deleted
        self._there, self._beyond = known.there, known.beyond
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
            raise UnknownTopic(name, self._topics) from None
        except TypeError:
            raise InvalidName(repr(name), "a topic's name is a text") from None

    def shards_of_all(self, names: Iterable[str]) -> list[TopicShards]:
        """Return the shards of each of some topics; UnknownTopic if there is none of a name."""
        topics = self._topics
        try:
            return [shards_of(topics[name]) for name in names]
        except KeyError as error:
            raise UnknownTopic(error.args[0], topics) from None

    def chosen(self, names: Iterable[str] | None) -> list[TopicShards]:
        """Return the shards of the topics that a caller names, those of all for None."""
        self._context.check_open()
        if names is None:
            return self.all_shards()
        return self.shards_of_all(checked_texts("topics", names))

    def all_shards(self) -> list[TopicShards]:
        """Return the shards of every topic."""
        return [shards_of(topic) for topic in self]

    def shard_of_key(self, key: str) -> MessageStore | None:
        """Return a shard by its directory's name; None if there is no such topic any more."""
        parsed = parse_store_key(key)
        if parsed is None or parsed[0] not in self:
            return None
        topic = shards_of(self.get(parsed[0]))
        return topic.writable(parsed[1]) if parsed[1] < topic.options.stores else None

    def describe(self, name: str) -> TopicDescription:
        """Return a topic's settings, and what each of its shards has."""
        self._context.check_open()
        topic = shards_of(self.get(name))
        views = [topic.shard(n).view() for n in range(topic.options.stores) if topic.exists(n)]
        # One that was read, and never written to, has no directory.
        there = [v for v in views if v.index_end or self._opener.exists(name, v.store_id)]
        shards = tuple(_described(view) for view in there)
        return TopicDescription(name, topic.options, shards)

    # -- creating and changing ---------------------------------------------------------------

    def create(self, name: str, options: TopicOptions, *, exist_ok: bool) -> Topic:
        """Create a topic, or return it with `exist_ok`; see `create_topic` of the store."""
        with self.lock:
            self._context.check_writer()
            check_topic_name(name)
            topic = self._topics.get(name)
            if topic is None:
                self._put({name: options})
            elif not exist_ok:
                raise TopicExists(name)
            elif name in self._guessed and options.covers(topic.options):
                self._put({name: options})
            elif not _agree(options, topic.options):
                raise TopicExists(name, _differences(options, topic.options))
            return self._topics[name]

    def ensure(self, wanted: Mapping[str, TopicOptions]) -> list[Topic]:
        """Return topics that have at least these partitions, creating or growing them."""
        if not isinstance(wanted, Mapping):
            raise TypeError(f"wanted {wanted!r}: a mapping of names to TopicOptions is needed")
        for name, options in wanted.items():
            if not isinstance(options, TopicOptions):
                raise TypeError(f"wanted: {options!r} of {name!r} is not a TopicOptions")
        with self.lock:
            self._context.check_writer()
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

    def change(
        self,
        name: str,
        *,
        partitions: int | None,
        stores: int | None,
        max_age: Age | Keep | None,
        max_bytes: Size | Keep | None,
    ) -> Topic:
        """Change what is given of a topic's settings; InvalidMessage for fewer partitions."""
        with self.lock:
            self._context.check_writer()
            topic = self.get(name)
            changed = topic.options
            if partitions is not None:
                changed = changed.with_values(partitions=partitions)
            if stores is not None:
                changed = changed.with_values(stores=stores)
            if not isinstance(max_age, Keep):
                changed = changed.with_values(max_age_ms=age_ms(max_age))
            if not isinstance(max_bytes, Keep):
                changed = changed.with_values(max_bytes=size_bytes(max_bytes))
            if not changed.covers(topic.options):
                has = f"{topic.options.partitions} partitions in {topic.options.stores} stores"
                raise InvalidMessage(f"topic {name!r} has {has}: these only rise")
            if changed != topic.options or name in self._guessed:
                self._put({name: changed})
            return topic

    def _put(self, changed: Mapping[str, TopicOptions]) -> None:
        """Save settings of some topics, new or not, and let them count."""
        if not self._deleted.isdisjoint(changed):
            self.finish_deletions()
        named = {n: self._named(n, options) for n, options in changed.items()}
        self._saved.put(named, self._given, self._deleted)
        for name, options in named.items():
            self._guessed.discard(name)
            if name in self._topics:
                shards_of(self._topics[name]).adopt(options)
            else:
                self._topics[name] = self._make_topic(name, options)
        self.version += 1

    def missing_shards(self) -> list[str]:
        """Return the directories that shards with messages had, and that were not in the root."""
        vfs, root, register = self._context.vfs, self._context.root, self._context.register
        missing = sorted(register.names() - self._there)
        if missing and self._context.mode == "r":
            register.read_again()  # a writer may have deleted their topics meanwhile
        found = []
        for key in missing:
            bounds, path = register.shard(key).bounds(), join(root, key)
            if bounds is not None and not bounds.given_up and not vfs.exists(path):
                found.append(path)
        return found

    def report_missing_shards(self) -> None:
        """Report the shards that had messages and have no directory, or are none of their topic."""
        problems = [missing_directory(path) for path in self.missing_shards()]
        for path, name in self._surplus():
            problems.append(surplus_shard(path, self._topics[name].options.stores))
        for problem in problems:
            log.error("%s", problem)
            self._context.note_problem(problem)

    def _surplus(self) -> list[tuple[str, str]]:
        """Return (directory, topic) of shards that were there and that settings do not count."""
        vfs, root, stores = self._context.vfs, self._context.root, self._topics
        paths = [(join(root, store_key(*key)), key[0]) for key in self._beyond]
        found = [(path, name) for path, name in paths if is_shard(vfs, path)]
        if found and self._context.mode == "r":
            # A writer may have given their topics more stores meanwhile.
            now = _saved(self._directory).settings
            found = [(p, n) for p, n in found if n in now and now[n] == stores[n].options]
        return found

    def _named(self, name: str, options: TopicOptions) -> TopicOptions:
        """Return the settings with the topic's id, given now to one that has none."""
        known = self._topics.get(name)
        number = known.options.id if known is not None else 0
        return options.with_values(id=number or self._directory.next_topic_id())

    def _given(self) -> dict[str, TopicOptions]:
        return {n: t.options for n, t in self._topics.items() if n not in self._guessed}

    # -- deleting ----------------------------------------------------------------------------

    def delete(self, name: str) -> None:
        """Delete a topic; its shards go to the trash. See `delete_topic` of the store."""
        with self.lock:
            self._context.check_writer()
            topic = self.get(name)
            if CommitRecords(self._context.vfs, self._context.root).pending() is not None:
                raise StoreFailed(self._context.root, "a published job is not finished")
            with self._opener.without_journal():
                self._delete(topic)

    def _delete(self, topic: Topic) -> None:
        name = topic.name
        settings = self._given()
        settings.pop(name, None)
        self._saved.write(settings, {*self._deleted, name})
        self._deleted.add(name)
        self._guessed.discard(name)
        del self._topics[name]
        self.version += 1
        shards_of(topic).discard(StoreClosed(f"topic {name!r} was deleted"))
        self.finish_deletions()

    def finish_deletions(self) -> None:
        """Move what is left of deleted topics to the trash, durably."""
        with self.lock:
            if not self._deleted:
                return
            vfs, root = self._directory.vfs, self._directory.root
            register = self._context.register
            register.forget(store_key(*key) for key in self._of_deleted(register.names()))
            for key in self._of_deleted(_directories(vfs, root)):
                path = join(root, store_key(*key))
                if is_shard(vfs, path):
                    trash.move(vfs, path, trash.trash_of(root), self._directory.clock.now_ms())
            vfs.sync_directory(root)
            self._saved.write(self._given())
            self._deleted = set()

    def _of_deleted(self, names: Iterable[str]) -> list[tuple[str, int]]:
        return [key for key in _keys_of(names) if key[0] in self._deleted]

    # -- other processes ---------------------------------------------------------------------

    def refresh(self) -> None:
        """See the topics and settings that a writer in another process has now."""
        with self.lock:
            fresh = load_topics(self._directory, self._context.options)
            topics: dict[str, Topic] = {}
            for name, options in fresh.settings.items():
                topic = self._topics.get(name)
                if topic is None or _is_another(topic.options, options):
                    topic = self._make_topic(name, options)
                shards_of(topic).adopt(options)
                topics[name] = topic
            for name, topic in self._topics.items():
                if topics.get(name) is not topic:
                    shards_of(topic).discard(StoreClosed(f"topic {name!r} was deleted"))
            self._topics, self._guessed = topics, fresh.guessed
            self.version += 1

    def close(self) -> None:
        """Leave the settings in one file; the store is closed."""
        if self._context.mode == "w":
            self._saved.close(self._given, self._deleted)

    def abandon(self) -> None:
        """Have a lock that is free: other threads held the old one at a fork."""
        self.lock = threading.RLock()
        self.release()

    def release(self) -> None:
        """Give the log of settings back as it is; under the lock."""
        self._saved.release()


def _is_another(known: TopicOptions, found: TopicOptions) -> bool:
    """True if the topic was deleted, and another one has its name."""
    return known.id != 0 and known.id != found.id


def _agree(wanted: TopicOptions, known: TopicOptions) -> bool:
    """True if a topic has the settings that were asked for; bounds that were not given are any."""
    return _as_asked(wanted, known) == known


def _as_asked(wanted: TopicOptions, known: TopicOptions) -> TopicOptions:
    """Return the settings that were asked for, with a topic's bounds where none were given."""
    if wanted.max_age_ms is None:
        wanted = wanted.with_values(max_age_ms=known.max_age_ms)
    if wanted.max_bytes is None:
        wanted = wanted.with_values(max_bytes=known.max_bytes)
    return wanted


def _differences(wanted: TopicOptions, known: TopicOptions) -> str:
    """Return which settings of a topic are not those that were asked for."""
    wanted = _as_asked(wanted, known)
    pairs = [
        (each.name, getattr(known, each.name), getattr(wanted, each.name))
        for each in fields(known)
        if each.compare
    ]
    found = [f"{name} = {has} (not {asked})" for name, has, asked in pairs if has != asked]
    return f"it has {', '.join(found)}; change_topic changes settings"


def _described(view: ShardView) -> ShardDescription:
    data, index = view.ends.data_segments, view.ends.index_segments
    return ShardDescription(
        view.store_id,
        view.index_start,
        view.index_end,
        (view.index_end - view.index_start) // ENTRY_SIZE,
        sum(segment.size for segment in data),
        sum(segment.size for segment in index),
        len(data),
        len(index),
    )


# -- topics as saved, and those of TubeMQ ------------------------------------------------------


def load_topics(directory: StoreDirectory, options: StoreOptions) -> KnownTopics:
    """Return the topics of a store; NotAStore if their file makes no sense."""
    saved = _saved(directory)
    settings, deleted, log = dict(saved.settings), set(saved.deleted), saved.log
    guessed = set()
    vfs, root = directory.vfs, directory.root
    names = _directories(vfs, root)
    others: dict[str, list[int]] = {}
    beyond = []
    for topic, store_id in _keys_of(names):
        known = settings.get(topic)
        if known is not None:
            if store_id >= known.stores:
                beyond.append((topic, store_id))
        elif topic not in deleted and is_shard(vfs, join(root, store_key(topic, store_id))):
            others.setdefault(topic, []).append(store_id)
    for name, stores in sorted(others.items()):
        settings[name] = _guess_options(directory, name, stores, options)
        guessed.add(name)
    return KnownTopics(settings, guessed, deleted, log, frozenset(names), beyond)


def saved_settings(directory: StoreDirectory) -> dict[str, TopicOptions]:
    """Return the settings that were given; NotAStore if their file makes no sense."""
    return dict(_saved(directory).settings)


def _saved(directory: StoreDirectory) -> SavedTopics:
    found = directory.read_topics()
    if found is not None:
        directory.note_topics()
    elif directory.has_topics:
        raise NotAStore(directory.root, f"{TOPICS_FILE} {MISSING_TOPICS}")
    return found or SavedTopics({}, set())


def _directories(vfs: Vfs, root: str) -> list[str]:
    return [name for name, is_directory, _ in vfs.entries(root) if is_directory]


def _keys_of(names: Iterable[str]) -> Iterator[tuple[str, int]]:
    """Return topic and store id of the names that are those of shards."""
    for name in names:
        key = parse_store_key(name)
        if key is not None and key[1] < PARTITIONS_PER_STORE:
            yield key


def _guess_options(
    directory: StoreDirectory, topic: str, stores: list[int], options: StoreOptions
) -> TopicOptions:
    """Return the least number of partitions of a foreign topic, by its shards' entries."""
    most = 1
    for store_id in stores:
        path = join(directory.root, store_key(topic, store_id))
        try:
            view = ShardReader(directory.vfs, path, topic, store_id, options).view()
        except TubeStoreError:
            continue  # its own opening reports what is wrong with it
        for source in view.sources(0):
            places = source.entries["partition_id"] - store_id * PARTITIONS_PER_STORE
            places = places[(places >= 0) & (places < PARTITIONS_PER_STORE)]
            most = max(most, int(places.max(initial=0)) + 1)
    return TopicOptions(partitions=most, stores=max(stores) + 1)
