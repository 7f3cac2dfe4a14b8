"""The form of a question: how much is done, by which contestants, and the bars."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from bench.layouts.capabilities import lacks
from bench.layouts.layout import Durability
from bench.workloads.cases import Case, Contestant
from bench.workloads.contestants import Way
from bench.workloads.payload import Payload

Scale = Literal["full", "quick", "tiny"]
#: Topics, partitions a topic, and rows a batch, at most.
LARGEST: dict[Scale, tuple[int, int, int]] = {
    "full": (10_000, 10_000, 100_000),
    "quick": (200, 2000, 20_000),
    "tiny": (5, 20, 50),
}


@dataclass(frozen=True)
class Sizes:
    """Messages of a run at each scale."""

    full: int
    quick: int
    tiny: int = 200


@dataclass(frozen=True)
class Bar:
    """A bar: at least `ratio` times the rate of `reference`, in the same run."""

    reference: str
    ratio: float


@dataclass(frozen=True)
class Within:
    """Bounds of every run of this store: seconds (imports apart), memory, descriptors."""

    seconds: float
    resident_mb: int
    descriptors: int


@dataclass(frozen=True)
class Workload:
    """One row of the table; all contestants are compared with the first one."""

    name: str
    question: str
    sizes: Sizes
    contestants: tuple[Contestant, ...]
    bars: tuple[Bar, ...] = ()
    within: Within | None = None
    topics: int = 1
    partitions: int = 10
    batch: int = 1000
    mixed: bool = True
    threads: int = 1
    durability: Durability = "page_cache"
    #: Syncs cost nothing on a tmpfs: such a workload goes to a disk.
    needs_disk: bool = False
    #: Each contestant gets all messages, however long that takes: what happens once is in them.
    whole: bool = False
    shows_memory: bool = False
    #: How a layout of the caller's does it; None if it is done by calls that only one store has.
    way: Way | None = None
    #: Layouts of the caller's that cannot take part: (name, reason).
    left_out: tuple[tuple[str, str], ...] = ()

    def case(self, scale: Scale, payload: Payload, place: Path) -> Case:
        """Return the workload at one size; the smaller ones have fewer topics and partitions."""
        topics, partitions, batch = LARGEST[scale]
        return Case(
            payload=payload,
            place=place,
            messages=getattr(self.sizes, scale),
            topics=min(self.topics, topics),
            partitions=min(self.partitions, partitions),
            batch=min(self.batch, batch),
            mixed=self.mixed,
            threads=self.threads,
            durability=self.durability,
        )

    def with_layouts(self, layouts: list[Any]) -> Workload:
        """Add the caller's own layouts, or the reason why one cannot take part."""
        added: list[Contestant] = []
        left_out: list[tuple[str, str]] = []
        for layout in layouts:
            if reason := self._reason_against(layout):
                left_out.append((layout.name, reason))
            elif self.way is not None:
                added.append(self.way(layout))
        return replace(
            self,
            contestants=self.contestants + tuple(added),
            left_out=self.left_out + tuple(left_out),
        )

    def _reason_against(self, layout: Any) -> str | None:
        if self.way is None:
            return "it is done by calls that only one store has"
        synced = {"fsync"} & {self.durability}
        return lacks(layout, self.way.needs | synced)
