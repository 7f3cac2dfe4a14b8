"""The settings of all topics of a store: read from and written to `topics.json`.

TubeMQ keeps a topic's settings elsewhere, so topics are found by their shards' directories
too. What such a topic has at least is learned from its files: a *guess*, which is never
saved, since a broker may add partitions later.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import Any, NamedTuple

from tubestore.core.paths import join
from tubestore.core.vfs import Vfs
from tubestore.errors import TubeStoreError
from tubestore.options import PARTITIONS_PER_STORE, StoreOptions, TopicOptions
from tubestore.record.names import INDEX_DIRECTORY, TOPICS_FILE, parse_store_key, store_key
from tubestore.record.state_files import SavedTopics, parse_topics
from tubestore.shard.reader import ShardReader
from tubestore.store.directory import StoreDirectory


class KnownTopics(NamedTuple):
    """Every topic's settings, and what else is known of their names."""

    settings: dict[str, TopicOptions]
    #: Nobody gave their settings.
    guessed: set[str]
    #: They were deleted; some of their shards may still be in their places.
    deleted: set[str]


def load_topics(directory: StoreDirectory, options: StoreOptions) -> KnownTopics:
    """Return the topics of a store; NotAStore if their file makes no sense."""
    settings, deleted = _saved(directory)
    guessed = set()
    others = shards_on_disk(directory.vfs, directory.root, {*settings, *deleted})
    for name, stores in sorted(others.items()):
        settings[name] = _guess_options(directory, name, stores, options)
        guessed.add(name)
    return KnownTopics(settings, guessed, deleted)


def saved_settings(directory: StoreDirectory) -> dict[str, TopicOptions]:
    """Return the settings that somebody gave; NotAStore if their file makes no sense."""
    return _saved(directory).settings


def _saved(directory: StoreDirectory) -> SavedTopics:
    return directory.read_state(TOPICS_FILE, parse_topics) or SavedTopics({}, set())


def save_topics(
    directory: StoreDirectory, settings: Mapping[str, TopicOptions], deleted: Iterable[str] = ()
) -> None:
    """Replace the settings of all topics, durable when this returns.

    `deleted` are topics whose shards are still to be moved away: with them in the file, what is
    left of them after a crash is not taken for a topic that nobody gave settings.
    """
    content: dict[str, Any] = {"topics": {n: t.as_json() for n, t in settings.items()}}
    if names := sorted(deleted):
        content["deleted"] = names
    directory.write_state(TOPICS_FILE, content)


def shards_on_disk(vfs: Vfs, root: str, known: Container[str] = ()) -> dict[str, list[int]]:
    """Return the store ids of the shards that have a directory, by topic; without `known` ones."""
    found: dict[str, list[int]] = {}
    for name, is_directory, _ in vfs.entries(root):
        key = parse_store_key(name) if is_directory else None
        if key is None or key[0] in known or key[1] >= PARTITIONS_PER_STORE:
            continue
        if _is_shard(vfs, join(root, name)):
            found.setdefault(key[0], []).append(key[1])
    return found


def _is_shard(vfs: Vfs, path: str) -> bool:
    return vfs.exists(join(path, INDEX_DIRECTORY)) or any(
        entry.endswith(".tube") for entry, _, _ in vfs.entries(path)
    )


def _guess_options(
    directory: StoreDirectory, topic: str, stores: list[int], options: StoreOptions
) -> TopicOptions:
    """Learn from a foreign store's entries how many partitions its topic has at least."""
    most = 1
    for store_id in stores:
        path = join(directory.root, store_key(topic, store_id))
        try:
            view = ShardReader(directory.vfs, path, topic, store_id, options).view()
        except TubeStoreError:
            continue  # its own opening says what is wrong with it
        for source in view.sources(0):
            places = source.entries["partition_id"] - store_id * PARTITIONS_PER_STORE
            places = places[(places >= 0) & (places < PARTITIONS_PER_STORE)]
            most = max(most, int(places.max(initial=0)) + 1)
    return TopicOptions(partitions=most, stores=max(stores) + 1)
