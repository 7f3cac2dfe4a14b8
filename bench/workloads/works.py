"""The laboratory's table: which work, by which contenders, at which sizes.

`DEFAULT` and `QUICK` are lists of blocks. A block is one kind of work at one size; each of its
contenders is a cell. The contenders of a block take turns.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from bench.workloads import lookups
from bench.workloads.cases import reading
from bench.workloads.contestants import Way, in_batches, one_by_one, read_by, scanned
from bench.workloads.sizes import Size

Amount = Literal["full", "quick", "tiny"]
LAYOUTS = ("tubestore", "rocketcompat", "kafka-format")
MAIN = (*LAYOUTS, "lmdb")
#: Files of a topic beside files of a partition.
TWO = ("tubestore", "kafka-format")
RAW = ("raw-file", "raw-map", "random-writes")
MQ = ("rocketmq-4.9.8", "rocketmq-5.3.3")
WAYS_OF_A_LOG = ("rocketcompat-mapped", "rocketcompat-pool", "rocketcompat-tube")
#: The axis of the first figure: topics × partitions.
PLACES = ((1, 1), (1, 10), (10, 10), (100, 10), (1000, 1), (1000, 10), (10_000, 1), (100, 1000))


#: Bodies of a cell have so many bytes at most, unless more messages are asked for.
MOST_BYTES = 3 << 29


@dataclass(frozen=True)
class Work:
    """A kind of work: what it is, what a layout needs for it, how much of it is done."""

    name: str
    question: str
    way: Way
    full: int
    quick: int
    tiny: int = 200
    #: True if the bytes that reach the device are of interest.
    writes: bool = False
    #: True if shared memory would not do: its files never leave the page cache.
    on_disk: bool = False
    #: True if a run does all of it, whatever it takes.
    whole: bool = False
    #: True if what is counted are openings: how long one took is shown, and no rate.
    opens: bool = False
    #: True if a run's system calls grow with its messages alone, so that they can be counted.
    counted: bool = False

    def messages(self, amount: Amount, size: Size) -> int:
        """Return how many messages are stored or appended."""
        usual: int = getattr(self, amount)
        if amount == "tiny":
            return usual
        if not isinstance(size.body, int):
            return usual
        # No more than 1.5 GB, and at least two messages a partition.
        return max(min(usual, max(2000, MOST_BYTES // size.body)), 2 * size.places)


_FIND = frozenset({"batch", "read", "reopen"})
WORKS: tuple[Work, ...] = (
    Work("append", "append one by one", one_by_one, 1_000_000, 50_000, writes=True,
         counted=True),
    Work("batch", "append batches", in_batches, 2_000_000, 200_000, 2000, writes=True,
         counted=True),
    Work("read", "read partition after partition, 1,000 messages a call", read_by,
         400_000, 50_000, 2000, counted=True),
    Work("read-cold", "the same after an opening, without its files in the page cache",
         Way(_FIND, partial(reading, first=True)), 400_000, 50_000, 2000, on_disk=True),
    Work("scan", "read everything", scanned, 400_000, 50_000, 2000),
    Work("tail", "read what another thread appends meanwhile",
         Way(frozenset({"batch", "read", "follow"}), lookups.following), 200_000, 20_000, 2000),
    Work("by-key", "find the message of a key",
         Way(_FIND | {"by_key"}, lookups.by_key), 200_000, 20_000, 2000),
    Work("by-time", "find the first message at a time",
         Way(_FIND | {"by_time"}, lookups.by_time), 200_000, 20_000, 2000),
    *(
        Work(f"filter-{100 // share}", f"find the {100 // share} % with a filter item",
             Way(_FIND | {"filter"}, lookups.FILTERS[item]), 400_000, 50_000, 2000, whole=True)
        for item, share in lookups.ITEMS.items()
    ),
    Work("open", "open what was closed", Way(_FIND, lookups.opening),
         400_000, 50_000, 2000, whole=True, opens=True),
    Work("recover", "open what a killed writer has left",
         Way(_FIND | {"recover"}, lookups.recovering), 400_000, 50_000, 2000, whole=True,
         opens=True),
    Work("idle", "keep topics and partitions with a message each",
         Way(frozenset({"batch", "read"}), lookups.idling), 1, 1, 1, whole=True),
    Work("retain", "remove the older half of a store",
         Way(frozenset({"batch", "read", "retain"}), lookups.retaining),
         100_000, 50_000, 2000, whole=True),
    Work("transfer", "send everything to a socket, a body's size a call",
         Way(frozenset({"append", "transfer"}), lookups.transferring),
         200_000, 20_000, 200, whole=True),
)  # fmt: skip
BY_NAME = {work.name: work for work in WORKS}


@dataclass(frozen=True)
class Block:
    """One kind of work at one size, by contenders that take turns."""

    work: Work
    size: Size
    contenders: tuple[Any, ...]

    @property
    def label(self) -> str:
        """A line for people."""
        return f"{self.work.name} {self.size.label}"

    @property
    def needs_disk(self) -> bool:
        """True if shared memory would not do: its syncs cost nothing, its pages never leave."""
        return self.work.on_disk or self.size.disk or self.size.durability == "fsync"

    def without(self, names: frozenset[str]) -> Block:
        """Return the same without some contenders."""
        return replace(self, contenders=tuple(c for c in self.contenders if c not in names))


def _block(work: str, contenders: Iterable[str], **sizes: Any) -> Block:
    return Block(BY_NAME[work], Size(**sizes), tuple(contenders))


#: Beside `MAIN`, one by one, in batches and reading, at some of the places.
_APPEND_TOO = {
    (1, 1): RAW,
    (1, 10): ("sqlite", "rocksdict", *WAYS_OF_A_LOG, "kafka-3.9", *MQ, "tubemq"),
    (100, 10): ("rocketmq-4.9.8",),
    (1000, 10): ("kafka-3.9", "rocketmq-4.9.8"),
    (10_000, 1): ("kafka-3.9", "tubemq"),
}
_BATCH_TOO = {(1, 1): ("raw-file",), (1, 10): ("rocketcompat-tube", "kafka-3.9", *MQ)}
_READ_TOO = {(1, 10): ("sqlite", "rocksdict", "kafka-3.9", *MQ, "tubemq")}
#: Fewer than `MAIN` where what is left out is like the places beside it, or beyond the limits.
_APPEND_BY = {(10, 10): TWO, (1000, 1): TWO}
_BATCH_BY = {
    (10, 10): LAYOUTS, (100, 10): TWO, (1000, 1): TWO,
    (100, 1000): ("tubestore", "rocketcompat", "lmdb"),
}  # fmt: skip
_READ_BY = {
    (10, 10): TWO, (100, 10): TWO, (1000, 1): TWO, (10_000, 1): LAYOUTS,
    (100, 1000): ("tubestore", "rocketcompat", "lmdb"),
}  # fmt: skip


def _default() -> tuple[Block, ...]:
    blocks: list[Block] = []
    for place in PLACES:
        where = dict(zip(("topics", "partitions"), place, strict=True))
        for work, by, too in (
            ("append", _APPEND_BY, _APPEND_TOO),
            ("batch", _BATCH_BY, _BATCH_TOO),
            ("read", _READ_BY, _READ_TOO),
        ):
            blocks.append(_block(work, (*by.get(place, MAIN), *too.get(place, ())), **where))
    blocks += [
        _block("scan", (*MAIN, "rocketmq-4.9.8"), partitions=1),
        _block("scan", TWO, topics=100),
        _block("scan", MAIN, topics=1000),
        _block("scan", TWO, topics=10_000, partitions=1),
        _block("scan", ("tubestore", "rocketcompat"), topics=100, partitions=1000),
        *(_block("append", MAIN, body=body) for body in (100, 16_384)),
        _block("append", LAYOUTS, body="mix"),
        *(_block("batch", TWO, body=body) for body in (100, 16_384)),
        _block("append", TWO, topics=1000, skew="zipf"),
        _block("batch", TWO, topics=1000, skew="zipf"),
        _block("append", LAYOUTS, threads=4),
        _block("batch", TWO, threads=4),
        _block("append", (*MAIN, "raw-file"), durability="fsync"),
        _block("append", (*LAYOUTS, "raw-file"), disk=True),
        _block("append", TWO, topics=100, durability="fsync"),
        _block("append", (*MAIN, "rocketmq-4.9.8"), durability="fsync", threads=16),
        _block("append", ("tubestore",), durability="memory"),
        *(_block("append", RAW[:2], partitions=1, body=body) for body in (4096, 16_384, 65_536)),
        *(
            _block("transfer", RAW[:2], partitions=1, body=body)
            for body in (1024, 4096, 16_384, 65_536)
        ),
        _block("read-cold", LAYOUTS),
        _block("tail", LAYOUTS),
        _block("by-key", ("rocketcompat", "rocketmq-4.9.8")),
        _block("by-time", TWO),
        _block("filter-1", ("tubestore",)),
        _block("filter-10", ("tubestore",)),
        _block("open", LAYOUTS, topics=1000),
        _block("recover", LAYOUTS, topics=1000),
        _block("idle", MAIN, topics=10_000, partitions=1),
        _block("retain", TWO, partitions=1),
    ]
    return tuple(blocks)


def _quick() -> tuple[Block, ...]:
    blocks: list[Block] = []
    for topics, partitions in ((1, 1), (1, 10), (100, 10)):
        where = {"topics": topics, "partitions": partitions}
        raw = RAW if partitions == 1 else ()
        blocks += [
            _block("append", (*MAIN, *raw), **where),
            *(_block(work, MAIN, **where) for work in ("batch", "read")),
        ]
    return (
        *blocks,
        _block("scan", MAIN, partitions=1),
        _block("append", ("tubestore", "kafka-format"), durability="fsync"),
        _block("open", ("tubestore", "kafka-format"), topics=100),
    )


#: The sizes at which `run --work` measures a workload of the caller's.
OWN_PLACES: tuple[dict[str, Any], ...] = (
    {"topics": 1, "partitions": 1}, {"topics": 1, "partitions": 10},
    {"topics": 100, "partitions": 10},
)  # fmt: skip
DEFAULT = _default()
QUICK = _quick()
#: A list of blocks has at most so many cells.
MOST_CELLS = 200


def cells(blocks: Iterable[Block]) -> int:
    """Return how many cells there are."""
    return sum(len(block.contenders) for block in blocks)
