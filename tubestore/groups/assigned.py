"""The partitions that a consumer has: where each is read next, and which are paused.

A partition is in the feed of its shard or is paused; a shard without a partition has no feed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from tubestore.groups.assignment import Partition
from tubestore.groups.feed import ShardFeed
from tubestore.options import PARTITIONS_PER_STORE
from tubestore.reading.sources import EVERYTHING, Filter
from tubestore.reading.view import ShardView

Shard = tuple[str, int]


def shard_of(partition: Partition) -> Shard:
    """Return the shard of a partition: (topic, store id)."""
    return partition[0], partition[1] // PARTITIONS_PER_STORE


class AssignedPartitions:
    """Partitions with their positions, grouped by shard; its owner guards it with a lock."""

    def __init__(self, wanted: Filter = EVERYTHING) -> None:
        self._wanted = wanted
        self._feeds: dict[Shard, ShardFeed] = {}
        self._paused: dict[Partition, int] = {}

    def feed(self, shard: Shard) -> ShardFeed | None:
        """Return the feed of a shard; None if none of its partitions is read."""
        return self._feeds.get(shard)

    def add(self, partition: Partition, position: int) -> Shard:
        """Read a partition from a position on; returns its shard, which may have messages."""
        shard = shard_of(partition)
        if shard not in self._feeds:
            self._feeds[shard] = ShardFeed(*shard, self._wanted)
        self._feeds[shard].add(partition[1], position)
        return shard

    def remove(self, partition: Partition) -> int | None:
        """Forget a partition; returns where it was read next, None if it was not there."""
        paused = self._paused.pop(partition, None)
        shard = shard_of(partition)
        feed = self._feeds.get(shard)
        if paused is not None or feed is None:
            return paused
        position = feed.remove(partition[1])
        if not len(feed):
            del self._feeds[shard]
        return position

    def move(self, partition: Partition, position: int) -> Shard | None:
        """Go on at another position; returns the shard, None for a paused partition."""
        if partition in self._paused:
            self._paused[partition] = position
            return None
        return self.add(partition, position)

    def pause(self, partition: Partition) -> None:
        """Leave a partition out of the feeds; it keeps its position."""
        if partition not in self._paused:
            position = self.remove(partition)
            assert position is not None
            self._paused[partition] = position

    def resume(self, partition: Partition) -> Shard | None:
        """Read a paused partition again; returns its shard, None if it was not paused."""
        position = self._paused.pop(partition, None)
        return None if position is None else self.add(partition, position)

    @property
    def paused(self) -> Mapping[Partition, int]:
        """The paused partitions and where they go on."""
        return self._paused

    def position(self, partition: Partition) -> int | None:
        """Return where a partition is read next; None if it is not there."""
        if partition in self._paused:
            return self._paused[partition]
        feed = self._feeds.get(shard_of(partition))
        return feed.position(partition[1]) if feed is not None and partition[1] in feed else None

    def positions(self) -> dict[Partition, int]:
        """Return where each partition is read next, in order."""
        found = {
            (topic, number): position
            for (topic, _), feed in self._feeds.items()
            for number, position in feed.positions().items()
        }
        return dict(sorted({**found, **self._paused}.items()))

    def partitions(self) -> list[Partition]:
        """Return all partitions, sorted."""
        found = [(t, n) for (t, _), feed in self._feeds.items() for n in feed.partitions()]
        return sorted([*found, *self._paused])

    def unread(self, view_of: Callable[[str, int], ShardView | None]) -> dict[Partition, int]:
        """Return how many messages each partition has from its position on, in order."""
        paused: dict[Shard, ShardFeed] = {}
        for partition, position in self._paused.items():
            shard = shard_of(partition)
            paused.setdefault(shard, ShardFeed(*shard)).add(partition[1], position)
        feeds: Iterable[tuple[Shard, ShardFeed]] = [*self._feeds.items(), *paused.items()]
        found: dict[Partition, int] = {}
        for (topic, store_id), feed in feeds:
            view = view_of(topic, store_id)
            counts = dict.fromkeys(feed.partitions(), 0) if view is None else feed.unread(view)
            found |= {(topic, number): count for number, count in counts.items()}
        return dict(sorted(found.items()))
