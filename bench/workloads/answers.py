"""What a layout has to give back: compared with what it was given, before anything is timed.

A layout that stores nothing would win every workload.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import xxhash

from bench.layouts.layout import Unavailable
from bench.workloads.payload import SEED

#: Partitions that are compared, drawn with a fixed seed, the first and the last one with them.
SAMPLED = 8
_READ = 1000


class Reads(Protocol):
    """What a layout has with the capability "read"; what a driver has written is read so, too."""

    def read(
        self, topic: int, partition: int, position: Any, limit: int, *, lean: bool
    ) -> tuple[Any, Any]:
        """As that of a layout."""

    def bodies(self, rows: Any) -> list[bytes]:
        """As that of a layout."""


class Answers:
    """The messages of some partitions as they were appended: how many, and their digest.

    `ordered`: False where threads append to one partition, in an order that is not known.
    """

    def __init__(self, topics: int, partitions: int, *, ordered: bool = True) -> None:
        count = topics * partitions
        drawn = random.Random(SEED).sample(range(count), min(SAMPLED, count))
        self._ordered = ordered
        self._bodies: dict[tuple[int, int], list[bytes]] = {
            divmod(place, partitions): [] for place in {0, count - 1, *drawn}
        }

    @property
    def places(self) -> Iterable[tuple[int, int]]:
        """The partitions that are compared, as (topic, partition)."""
        return self._bodies.keys()

    def add_each(self, rows: Iterable[tuple[int, int, bytes]]) -> None:
        """Add messages as (topic, partition, body)."""
        for topic, partition, body in rows:
            if (topic, partition) in self._bodies:
                self._bodies[topic, partition].append(body)

    def add(self, tables: Iterable[pa.Table]) -> None:
        """Add tables of `topic`, `partition` and `body`."""
        for table in tables:
            topics = table.column("topic").to_numpy()
            partitions = table.column("partition").to_numpy()
            for (topic, partition), bodies in self._bodies.items():
                rows = np.flatnonzero((topics == topic) & (partitions == partition))
                if len(rows):
                    bodies += table.column("body").take(pa.array(rows)).to_pylist()

    def compare(self, layout: Reads) -> None:
        """Read these partitions; Unavailable if the layout gives back something else."""
        for (topic, partition), expected in self._bodies.items():
            found: list[bytes] = []
            for bodies in _pages(layout, topic, partition):
                found += self._digests(bodies)
                if len(found) > len(expected):
                    break
            wanted = self._digests(expected)
            if not self._ordered:
                found.sort()
                wanted.sort()
            if found != wanted:
                raise Unavailable(
                    f"it gives back other messages than it took: {len(found)} for "
                    f"{len(expected)} of topic {topic}, partition {partition}"
                )

    def _digests(self, bodies: Iterable[bytes]) -> list[bytes]:
        """Of each body: a partition of a gigabyte is not kept to be compared."""
        return [xxhash.xxh3_64_digest(body) for body in bodies]


class Digest:
    """How many messages are stored, and a digest of them, as the drivers' `Digest.java` has it.

    Messages of a place have an order, places have none. A driver reads with its own classes, so the
    digest is all that is compared of its reads.
    """

    def __init__(self) -> None:
        self._places: dict[str, int] = {}
        self._messages = 0

    def add(self, place: str, body: bytes) -> None:
        """Add the next message of a place."""
        before = self._places.get(place)
        self._places[place] = zlib.crc32(
            body, zlib.crc32(place.encode()) if before is None else before
        )
        self._messages += 1

    def compare(self, row: Mapping[str, Any]) -> None:
        """Refuse the row of a driver that has read something else."""
        if row["readBack"] != self._messages:
            raise Unavailable(f"it gives back {row['readBack']} messages for {self._messages}")
        if row["digest"] != sum(self._places.values()):
            raise Unavailable(
                f"it gives back other messages than were stored: {self._messages} with another "
                "digest"
            )


def _pages(layout: Reads, topic: int, partition: int) -> Iterator[list[bytes]]:
    position: Any = None
    while True:
        rows, position = layout.read(topic, partition, position, _READ, lean=True)
        yield layout.bodies(rows)
        if position is None:
            return
