"""The position of a stream: what a checkpoint keeps of a batch.

A position is exact: the next index offset of every shard, with the store's uuid, so that it means
the same for ever and in no other store. Files never appear in it, since they roll and expire.

    {"v": 1, "store": "<uuid>", "shards": {"<topic>-<store id>": <index offset>, …},
     "topics": {"last": <id>, "without": ["<topic>", …]}}

Of more than 256 shards the offsets are packed; each position is complete in itself:

    {"v": 2, "store": …, "packed": {"count": <shards>, "unit": <bytes>, "text": "<base 85>"}, …}

The text is that of the offsets in units (int64, the lowest bytes of all first) and the names, a
line each, compressed as XZ.

Ids of topics go up: a topic that was deleted and made again has an id above all that were there.
So the largest one, `last`, is enough to know each topic again, and `without` names the topics that
had no id then (those of a TubeMQ broker may get one later). Many names are packed like offsets.
Positions of earlier versions have no `topics`, and those of a store in which no topic has an id.

Nothing here imports Spark.
"""

from __future__ import annotations

import base64
import lzma
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tubestore.errors import NotAStore
from tubestore.record.records import ENTRY_SIZE

VERSION, PACKED_VERSION = 1, 2
#: So many shards have their offsets as JSON.
_PLAIN_SHARDS = 256


@dataclass(frozen=True, slots=True)
class TopicIds:
    """Which of the topics of a name a position is about."""

    #: The largest id of the store's topics.
    last: int
    #: The topics of the position that had no id.
    without: frozenset[str] = frozenset()

    @classmethod
    def of(cls, ids: Mapping[str, int], topics: Iterable[str]) -> TopicIds | None:
        """Return those of a position with `topics`; `ids`: of all topics, None if they have none.

        An id of 0 counts as none.
        """
        last = max(ids.values(), default=0)
        return cls(last, frozenset(t for t in topics if not ids.get(t))) if last > 0 else None

    def as_json(self) -> dict[str, Any]:
        """Return the part of a position."""
        names = sorted(self.without)
        if not names:
            return {"last": self.last}
        many = len(names) > _PLAIN_SHARDS
        return {"last": self.last, "without": _packed(dict.fromkeys(names, 0)) if many else names}

    @classmethod
    def of_json(cls, found: Mapping[str, Any]) -> TopicIds:
        """Read the part of a position; ValueError and its like if it is none."""
        names = found.get("without", ())
        unpacked = _unpacked(names) if isinstance(names, Mapping) else names
        return cls(int(found["last"]), frozenset(map(str, unpacked)))


@dataclass(frozen=True, slots=True)
class Position:
    """The position of a stream."""

    store: str | None
    #: The next index offset, by `<topic>-<store id>`.
    shards: Mapping[str, int]
    #: Partitions that begin later than their shard: their first offset, as long as it is ahead.
    starts: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    #: None where ids of topics are not known.
    topics: TopicIds | None = None

    def is_of_another(self, topic: str, topic_id: int) -> bool:
        """True if a topic with this id (0: none) was made after the one of the position."""
        known = self.topics
        return known is not None and topic_id > known.last and topic not in known.without

    def as_json(self) -> dict[str, Any]:
        """Return the object that Spark keeps in its checkpoint."""
        found: dict[str, Any] = {"v": VERSION, "store": self.store, "shards": dict(self.shards)}
        if len(self.shards) > _PLAIN_SHARDS:
            found = {"v": PACKED_VERSION, "store": self.store, "packed": _packed(self.shards)}
        if self.topics is not None:
            found["topics"] = self.topics.as_json()
        ahead = {
            key: {str(p): o for p, o in places.items() if o > self.shards.get(key, 0)}
            for key, places in self.starts.items()
        }
        if any(ahead.values()):
            found["starts"] = {key: places for key, places in ahead.items() if places}
        return found

    @classmethod
    def of_json(cls, found: Mapping[str, Any], root: str) -> Position:
        """Read a position; NotAStore if it is not one of this version."""
        try:
            if found["v"] not in (VERSION, PACKED_VERSION):
                raise ValueError(f"version {found['v']}")
            given = _unpacked(found["packed"]) if found["v"] == PACKED_VERSION else found["shards"]
            starts = {
                str(key): {int(p): int(o) for p, o in places.items()}
                for key, places in found.get("starts", {}).items()
            }
            shards = {str(key): int(offset) for key, offset in given.items()}
            topics = TopicIds.of_json(found["topics"]) if "topics" in found else None
            return cls(found["store"], shards, starts, topics)
        except (AttributeError, KeyError, TypeError, ValueError, lzma.LZMAError) as error:
            raise NotAStore(root, f"no position of a stream over a store: {error!r}") from None


def _packed(shards: Mapping[str, int]) -> dict[str, Any]:
    names = sorted(shards)
    offsets = np.array([shards[name] for name in names], "<i8")
    unit = 1 if (offsets % ENTRY_SIZE).any() else ENTRY_SIZE
    planes = (offsets // unit).view(np.uint8).reshape(-1, 8).T.tobytes()
    content = lzma.compress(planes + "\n".join(names).encode(), preset=0)
    return {"count": len(names), "unit": unit, "text": base64.b85encode(content).decode()}


def _unpacked(found: Mapping[str, Any]) -> dict[str, int]:
    content = lzma.decompress(base64.b85decode(found["text"]))
    size = 8 * int(found["count"])
    planes = np.frombuffer(content, np.uint8, size).reshape(8, -1)
    offsets = planes.T.copy().view("<i8")[:, 0] * int(found["unit"])
    return dict(zip(content[size:].decode().split("\n"), offsets.tolist(), strict=True))
