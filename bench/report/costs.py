"""What a layout needs of files for a message, or for an opening, and the terms of its cost.

A cost is a sum of terms: messages, bytes, look-ups, calls, pieces of a batch, new files, syncs. How
many of each there are follows from the format (`formats.py`); how long each takes is fitted to
measured cells (`model.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import log2

#: Over so many messages new files are shared out, and so many the partitions have for readers.
STEADY = 1_000_000
#: Messages that a call of `read` asks for.
READ_LIMIT = 1000
#: Kinds of work with an answer in seconds a message, and those with one in seconds an opening.
MESSAGES = ("append", "batch", "read", "scan")
OPENINGS = ("open", "recover")


@dataclass(frozen=True)
class Question:
    """A workload in numbers."""

    topics: int
    partitions: int
    body: int
    durability: str = "page_cache"
    batch: int = 1000
    #: Over how many messages the cost of new files is shared out; how many are stored.
    messages: int = STEADY

    @property
    def places(self) -> int:
        """Partitions of all topics."""
        return self.topics * self.partitions

    @property
    def each(self) -> float:
        """Messages of a partition."""
        return max(1.0, self.messages / self.places)

    @property
    def page(self) -> float:
        """Messages that a call of `read` gets."""
        return min(READ_LIMIT, self.each)


@dataclass(frozen=True)
class Needs:
    """What a message needs, or an opening, derived from the format."""

    #: Bytes written to files or maps, or read from them.
    bytes: float
    #: System calls for that.
    calls: float
    #: Places of files that lie apart: on a disk a seek each, in memory a cold cache line.
    places: float


Needed = Callable[[Question], Needs]
Count = Callable[[Question], float]


@dataclass(frozen=True)
class Opening:
    """What is done when a store is opened, until its first message is read."""

    #: Partitions, topics or files that are each opened or listed.
    things: Count
    #: System calls for each of these.
    calls: float
    #: Bytes that are read, always and after a kill besides, and the calls for the latter.
    listed: Count
    verified: Count
    verifying: Count


@dataclass(frozen=True)
class Format:
    """How much of everything a layout needs."""

    #: What is written where, read how, and done when it is opened.
    why: str
    #: Bytes of a message beside its body, in its record and in its entries of indexes.
    overhead: int
    files: Count
    #: Descriptors that are open while all partitions are in use, at most.
    descriptors: Count
    #: Of a message, by kind of work.
    needs: Mapping[str, Needed]
    #: Pieces that the rows of a batch are split into, at most.
    pieces: Count = lambda asked: asked.places
    #: Syncs that a message at fsync waits for, one thread.
    syncs: float = 1
    #: None: what was closed cannot be opened.
    opening: Opening | None = None
    #: Bytes of a message on the disk where pages are not full; None: `overhead` and the body.
    in_pages: Callable[[int], float] | None = None
    #: True if it acknowledges from memory, whatever is asked.
    from_memory: bool = False

    def kept(self, body: int) -> float:
        """Return the bytes of a message on the disk, in the long run."""
        return self.in_pages(body) if self.in_pages else self.overhead + body

    def need(self, work: str, asked: Question) -> Needs | None:
        """Return what a message or an opening needs; None if the layout has no such work."""
        if work not in OPENINGS:
            if work not in self.needs:
                return None
            needed = self.needs[work](asked)
            syncs = self._syncs(work, asked)
            return replace(needed, calls=needed.calls + syncs) if syncs else needed
        if self.opening is None:
            return None
        one, things = self.opening, self.opening.things(asked)
        read, calls = one.listed(asked), one.calls * things
        if work == "recover":
            read, calls = read + one.verified(asked), calls + one.verifying(asked)
        return Needs(read, calls, 1 + (things if one.calls else 0))

    def _syncs(self, work: str, asked: Question) -> float:
        """Return the syncs that a message waits for: a batch shares one."""
        if asked.durability != "fsync" or work not in ("append", "batch"):
            return 0
        return self.syncs / (asked.batch if work == "batch" else 1)

    def terms(self, work: str, asked: Question) -> dict[str, float]:
        """Return how often each term occurs for a message, or for an opening."""
        if work in OPENINGS:
            if self.opening is None:
                return {}
            needed = self.need(work, asked)
            assert needed is not None
            found = {"opening": 1.0, "thing": self.opening.things(asked), "byte": needed.bytes}
            return {name: count for name, count in found.items() if count}
        size = float(self.overhead + asked.body)
        found = {"message": 1.0, "byte": size, "look-up": log2(1 + asked.places)}
        if work in ("append", "batch"):
            found["new file"] = self.files(asked) / asked.messages
            rows = asked.batch if work == "batch" else 1
            if work == "batch":
                found["piece"] = min(self.pieces(asked), rows) / rows
            if syncs := self._syncs(work, asked):
                found["sync"] = syncs
        elif work == "read":
            found["call"] = 1 / asked.page
        elif work == "scan":
            found["piece"] = min(1.0, self.pieces(asked) / asked.messages)
        return found
