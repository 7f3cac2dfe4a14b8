"""The form of a question: how much is done, by which contestants, and the bars."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from bench.layouts.layout import Durability
from bench.workloads.cases import Case, Contestant
from bench.workloads.contestants import in_batches, one_by_one, read_by, scanned, synced
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
        """Add the caller's own layouts; a workload that is not done by layouts stays as it is."""
        how = self._way_of_a_layout()
        added = tuple(how(layout) for layout in layouts) if how else ()
        return replace(self, contestants=self.contestants + added)

    @property
    def takes_layouts(self) -> bool:
        """True if a layout of the caller's can take part."""
        return self._way_of_a_layout() is not None

    def _way_of_a_layout(self) -> Callable[[Any], Contestant] | None:
        kinds = {"append": one_by_one, "fsync": synced, "read": read_by, "scan": scanned}
        if "batch" in self.name or "mixed" in self.name:
            return in_batches
        return kinds.get(self.name.partition("-")[0])
