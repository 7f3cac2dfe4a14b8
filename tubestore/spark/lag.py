"""What a stream has read: for a group of consumers to go on behind it; and what it has not."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

import tubestore
from tubestore.core.vfs import OsVfs, Vfs
from tubestore.errors import NotAStore
from tubestore.options import PARTITIONS_PER_STORE, StoreOptions
from tubestore.record.names import parse_store_key, store_key
from tubestore.shard.reader import ShardReader
from tubestore.spark.planning import journal_of, list_shards
from tubestore.spark.positions import Position
from tubestore.staging.commit_records import Horizon
from tubestore.store.directory import StoreDirectory
from tubestore.store.topics import saved_settings


def lag_behind(root: str, position: Position, vfs: Vfs | None = None) -> dict[str, dict[int, int]]:
    """Return how many messages are behind a position, by topic and partition id.

    Counted with the posting lists, so sealed files cost nothing but their look-up.
    """
    vfs = vfs or OsVfs()
    found: dict[str, dict[int, int]] = {}
    horizon, journal = Horizon(vfs, root), journal_of(vfs, root)
    topics = saved_settings(StoreDirectory(vfs, root, "r"))
    for listed in list_shards(root, vfs, journal):
        name = (listed.topic, listed.store_id)
        reader = ShardReader(vfs, listed.directory, *name, StoreOptions(), horizon, journal)
        key = store_key(*name)
        try:
            totals, made = found.setdefault(listed.topic, {}), topics.get(listed.topic)
            is_another = made is not None and position.is_of_another(listed.topic, made.id)
            counts = reader.view().counts(0 if is_another else position.shards.get(key, 0))
            for partition, count in counts.items():
                totals[partition] = totals.get(partition, 0) + count
        finally:
            reader.close()
    return {topic: counts for topic, counts in found.items() if counts}


def commit_position(
    root: str,
    group: str,
    position: Position,
    partitions: Collection[int] | None = None,
    vfs: Vfs | None = None,
) -> None:
    """Commit for a group what a stream has read up to a position, of some partitions or of all."""
    with tubestore.open(root, mode="r", vfs=vfs) as store:
        if position.store is not None and position.store != store.uuid:
            raise NotAStore(root, f"the position is of the store {position.store}")
        wanted = {}
        for key, offset in position.shards.items():
            topic, store_id = parse_store_key(key) or ("", 0)
            if topic not in store or position.is_of_another(topic, store[topic].options.id):
                continue  # deleted since, and perhaps made again
            ahead = position.starts.get(key, {})
            for number in store[topic].partition_ids:
                read = partitions is None or number in partitions
                if read and number // PARTITIONS_PER_STORE == store_id:
                    wanted[topic, number] = max(offset, ahead.get(number, 0))
        store.commit_group(group, wanted)


def position_of(progress: Any, root: str) -> Position:
    """Return the position of a query, from its `lastProgress` (an object or a dict)."""
    for source in _get(progress, "sources"):
        offset = _get(source, "endOffset") or _get(source, "startOffset")
        found = json.loads(offset) if isinstance(offset, str) else offset
        if isinstance(found, Mapping) and not found.keys().isdisjoint(("shards", "packed")):
            return Position.of_json(found, root)
    return Position(None, {})


def _get(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name)
