"""What an append, a read and a scan must cost in each layout, derived from its format.

A cost is a sum of terms a message: calls, bytes, look-ups, places that a batch touches, new files,
syncs. How many of each there are follows from the format (`FORMATS`); how long each takes is
fitted to measured cells (`model.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import log2

#: Over so many messages new files are shared out, and so many the partitions have for readers.
STEADY = 1_000_000
_READ_LIMIT = 1000


@dataclass(frozen=True)
class Question:
    """A workload in numbers."""

    topics: int
    partitions: int
    body: int
    durability: str = "page_cache"
    batch: int = 1000
    #: Over how many messages the cost of new files is shared out.
    messages: int = STEADY

    @property
    def places(self) -> int:
        """Partitions of all topics."""
        return self.topics * self.partitions


Count = Callable[[Question], float]


@dataclass(frozen=True)
class Format:
    """How much of everything a layout needs."""

    why: str
    #: Bytes of a message beside its body.
    overhead: int
    files: Count
    #: Pieces that the rows of a batch are split into at most.
    pieces: Count
    #: Syncs that a message at fsync waits for, one thread.
    syncs: float = 1


FORMATS: dict[str, Format] = {
    "tubestore": Format(
        "A topic is a shard of one data and one index stream. A message is a record with a header "
        "of 60 bytes and an index entry of 28; a batch is split by topic, not by partition. A "
        "partition is read through lists of its entries, made from the index when it is first "
        "read. Two files a topic.",
        88, lambda q: 2 * q.topics, lambda q: q.topics,
    ),
    "rocketcompat": Format(
        "One log for all topics. A message is a record of some 100 bytes beside its body, a unit "
        "of 20 bytes in its queue and an item of 20 in the index; a batch is one piece of the "
        "log and a piece for each queue. One file a queue, besides the log's and the index's.",
        140, lambda q: 3 + q.places, lambda q: q.places,
    ),
    "kafka-format": Format(
        "A partition is a log with two indexes. A single message is a batch of its own with a "
        "header of 61 bytes; a batch of rows is split into one record batch and one write for "
        "each partition. Three files a partition, one of them open for writing.",
        70, lambda q: 3 * q.places, lambda q: q.places,
    ),
    "lmdb": Format(
        "One B+ tree of pages of 4 KiB in one file. A message is a key of 12 bytes and a value; "
        "a batch is sorted and changes one leaf for each partition; a key is found in as many "
        "steps as the tree is high. A commit syncs data, then the root.",
        28, lambda q: 2, lambda q: q.places, 2,
    ),
}  # fmt: skip


def terms(layout: str, work: str, asked: Question) -> dict[str, float]:
    """Return how often each term occurs for a message."""
    form = FORMATS[layout]
    size = form.overhead + asked.body
    found = {"message": 1.0, "byte": float(size), "look-up": log2(1 + asked.places)}
    if work in ("append", "batch"):
        found["new file"] = form.files(asked) / asked.messages
        rows = asked.batch if work == "batch" else 1
        if work == "batch":
            found["piece"] = min(form.pieces(asked), rows) / rows
        if asked.durability == "fsync":
            found["sync"] = form.syncs / rows
    elif work == "read":
        each = max(1.0, asked.messages / asked.places)
        found["call"] = 1 / min(_READ_LIMIT, each)
    elif work == "scan":
        found["piece"] = min(1.0, form.pieces(asked) / asked.messages)
    return found
