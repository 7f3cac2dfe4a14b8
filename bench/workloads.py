"""The questions, as a table: what is done, by whom, how much of it, and what is hoped for.

Next to read: `cases.py` (how it is done), `harness.py` (how it is repeated).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from bench import limits, our_reads, real, rocket
from bench.cases import Case, Contestant, appending, opening, reading, scanning, syncing
from bench.layouts import Durability, SingleLog, SingleLogAndShards, TopicSharded
from bench.many_topics import creating, opening_closed, opening_many
from bench.payload import Payload
from bench.peers import Lmdb, Rocksdict, Sqlite

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
    """What we want to reach: at least `ratio` times the rate of `reference`, in the same run."""

    reference: str
    ratio: float


@dataclass(frozen=True)
class Within:
    """What every run of ours is to stay within: seconds (imports apart), memory, descriptors."""

    seconds: float
    resident_mb: int
    descriptors: int


@dataclass(frozen=True)
class Workload:
    """One row of the table; the first contestant is the one that all others are compared with."""

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
    #: Everybody is given all messages, however long that takes: what happens once is in them.
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
        """Add somebody's own layouts, wherever a layout of ours takes part."""
        kinds = {"append": _one, "fsync": _sync, "read": _read, "scan": _scan}
        how = _batch if "batch" in self.name or "mixed" in self.name else None
        how = how or kinds.get(self.name.partition("-")[0])
        added = tuple(how(layout) for layout in layouts) if how else ()
        return replace(self, contestants=self.contestants + added)


def _role(make: Any) -> Any:
    return "ours" if make in (TopicSharded, SingleLog, SingleLogAndShards) else "peer"


def _one(make: Any) -> Contestant:
    return Contestant(make.name, _role(make), appending(make))


def _batch(make: Any) -> Contestant:
    return Contestant(make.name, _role(make), appending(make, batches=True))


def _sync(make: Any) -> Contestant:
    return Contestant(make.name, _role(make), syncing(make))


def _read(make: Any) -> Contestant:
    return Contestant(make.name, _role(make), reading(make))


def _scan(make: Any) -> Contestant:
    return Contestant(make.name, _role(make), scanning(make))


BUFFER = Contestant("limit: buffer, encode 5120", "limit", limits.buffer_and_encode)
ENCODE = Contestant("limit: encode, CRC, write", "limit", limits.encode_and_write)
WRITE_EACH = Contestant("limit: a write each", "limit", limits.write_each)
RAW_WRITE = Contestant("limit: raw write", "limit", limits.raw_write)
WRITE_SYNC = Contestant("limit: write, fdatasync", "limit", limits.write_and_sync)
SYNC_BATCHES = Contestant("limit: write batch, sync", "limit", limits.write_and_sync_batches)
GATHER = Contestant("limit: gather", "limit", limits.gather)
SCAN = Contestant("limit: scan", "limit", limits.scan())
SCAN_ANY = Contestant("limit: scan, any length", "limit", limits.scan(any_length=True))
SCAN_CRC = Contestant("limit: scan, CRC", "limit", limits.scan(verify=True))
CHECKSUMS = Contestant("limit: CRC alone", "limit", limits.checksums)
LEAN = Contestant("tubestore offset+body", "ours", reading(TopicSharded, lean=True))
VERIFIED = Contestant("tubestore", "ours", scanning(TopicSharded, verify=True))
TUBEMQ_APPEND = Contestant(real.TUBEMQ, "real", real.tubemq_append)
TUBEMQ_READ = Contestant(real.TUBEMQ, "real", real.tubemq_read)
OPEN_VERIFY = Contestant("tubestore", "ours", opening(checkpoint=False))
OPEN_CHECKPOINT = Contestant("tubestore, checkpoint", "ours", opening(checkpoint=True))
OPEN_CLOSED = Contestant("tubestore", "ours", opening_closed())
OPEN_SMALL = Contestant("1,000 messages", "limit", opening_closed(messages=1000))
CREATE_EACH = Contestant("tubestore", "ours", creating("each"))
CREATE_BATCH = Contestant("tubestore, a batch", "ours", creating("batch"))
CREATE_RAW = Contestant("limit: the files alone", "limit", creating("raw"))


def _open_many(*, closed: bool) -> tuple[Contestant, Contestant]:
    """What one by one has left, and what a batch has: that one stands in the journal, too."""
    return (
        Contestant("tubestore", "ours", opening_many("each", closed=closed)),
        Contestant("tubestore, a batch", "ours", opening_many("batch", closed=closed)),
    )


ONE_BY_ONE = Contestant("a call each", "limit", our_reads.each())
TOGETHER = Contestant("tubestore read_many", "ours", our_reads.together)
COPIES = Contestant("bodies copied", "limit", our_reads.each(sealed=True))
VIEWS = Contestant("tubestore zero_copy", "ours", our_reads.each(sealed=True, zero_copy=True))
BY_INDEX = Contestant("tubestore filter_items", "ours", our_reads.filtering(by_index=True))
BY_SCAN = Contestant("scan with bodies", "limit", our_reads.filtering(by_index=False))
OFFSET_AT = Contestant("tubestore offset_at", "ours", our_reads.offsets_at)

QUEUES = (
    Contestant("rocketcompat", "ours", rocket.queues),
    Contestant("rocketcompat, 100 a call", "ours", rocket.many_queues),
)
ONE_TOPIC = Contestant("one topic", "limit", rocket.one_topic(SingleLog))


def _real_keys(version: str) -> Any:
    return rocket.real_reads(
        version, "query", rocket.TOPIC, lambda case: case.messages, rocket.ASKED, keyed=True
    )


_READERS = (_read(TopicSharded), LEAN, GATHER, _read(Lmdb))

WORKLOADS: tuple[Workload, ...] = (
    Workload(
        "append-one-memory",
        "append one by one to 1 topic × 10 partitions, acknowledged from memory",
        Sizes(1_000_000, 200_000),
        (_one(TopicSharded), BUFFER, _one(Lmdb), _one(Sqlite), _one(Rocksdict), TUBEMQ_APPEND),
        (Bar(real.TUBEMQ, 0.7), Bar("lmdb", 1), Bar("rocksdict", 1)),
        durability="memory",
    ),
    Workload(
        "append-one-page-cache",
        "append one by one to 1 topic × 10 partitions, each in the page cache",
        Sizes(200_000, 30_000),
        (_one(TopicSharded), WRITE_EACH, _one(Lmdb), _one(Sqlite), *real.both_rocketmq()),
        (Bar("RocketMQ 4.9.8", 0.35),),
    ),
    Workload(
        "append-batch",
        "append batches of 1,000 to 1 topic × 10 partitions, in the page cache",
        Sizes(600_000, 200_000),
        (
            *(_batch(TopicSharded), ENCODE, RAW_WRITE, _batch(Lmdb), _batch(Sqlite)),
            *(_batch(Rocksdict), *real.both_rocketmq(batch=1000)),
        ),
        (Bar(ENCODE.name, 0.65), Bar("lmdb", 1), Bar("rocksdict", 1)),
    ),
    Workload(
        "append-topics",
        "batches of 1,000 to 1,000 topics × 10 partitions in turn, a topic a batch",
        Sizes(600_000, 200_000),
        (_batch(TopicSharded), ENCODE, _batch(Lmdb)),
        topics=1000,
        mixed=False,
    ),
    Workload(
        "append-mixed-1k",
        "batches of 1,000 rows, each of any of 1,000 topics × 10 partitions",
        Sizes(600_000, 100_000),
        (_batch(TopicSharded), ENCODE, _batch(Lmdb)),
        topics=1000,
    ),
    Workload(
        "append-mixed-1k-memory",
        "the same, acknowledged from memory",
        Sizes(600_000, 50_000),
        (_batch(TopicSharded), ENCODE, _batch(Lmdb)),
        topics=1000,
        durability="memory",
    ),
    Workload(
        "append-mixed-100k",
        "batches of 100,000 rows, each of any of 1,000 topics × 10 partitions",
        Sizes(600_000, 200_000),
        (_batch(TopicSharded), ENCODE, _batch(Lmdb)),
        (Bar(ENCODE.name, 0.26),),
        topics=1000,
        batch=100_000,
    ),
    Workload(
        "put-one",
        "put one by one to 1 topic × 10 queues, in the page cache, dispatched to queues and index",
        Sizes(200_000, 30_000),
        (*(_one(SingleLog), _one(SingleLogAndShards), WRITE_EACH), *real.both_rocketmq()),
        (Bar("RocketMQ 4.9.8", 0.35),),
    ),
    Workload(
        "put-columns",
        "put batches of 1,000 to 1 topic × 10 queues, likewise",
        Sizes(600_000, 100_000),
        (
            *(_batch(SingleLog), _batch(SingleLogAndShards), ENCODE),
            *real.both_rocketmq(batch=1000),
        ),
        (Bar("RocketMQ 4.9.8", 1.2), Bar("RocketMQ 5.3.3", 1.2)),
    ),
    Workload(
        "put-columns-tube",
        "the same with everything on: queues, index, and the shards",
        Sizes(300_000, 50_000),
        (_batch(SingleLogAndShards), *real.both_rocketmq(batch=1000)),
        (Bar("RocketMQ 4.9.8", 0.55), Bar("RocketMQ 5.3.3", 0.55)),
    ),
    Workload(
        "put-mixed-1k",
        "put batches of 1,000 rows, each of any of 1,000 topics × 10 queues, dispatched",
        Sizes(1_000_000, 50_000),
        (_batch(SingleLog), ONE_TOPIC, *real.both_rocketmq(batch=1000)),
        (Bar(ONE_TOPIC.name, 0.5),),
        topics=1000,
        whole=True,
    ),
    Workload(
        "put-10k-topics",
        "the same over 10,000 topics × 1 queue",
        Sizes(1_000_000, 50_000),
        (_batch(SingleLog), ONE_TOPIC),
        (Bar(ONE_TOPIC.name, 0.35),),
        topics=10_000,
        partitions=1,
        whole=True,
    ),
    Workload(
        "rocket-scan",
        "read the whole log, all fields, topic, property string and body, as Arrow",
        Sizes(900_000, 100_000),
        (
            Contestant("rocketcompat", "ours", rocket.scan()),
            *rocket.both(lambda v: rocket.real_reads(v, "scan")),
        ),
        (Bar("RocketMQ 4.9.8", 0.5), Bar("RocketMQ 5.3.3", 0.5)),
    ),
    Workload(
        "rocket-scan-crc",
        "the same with every body's checksum compared (the real store compares none)",
        Sizes(900_000, 100_000),
        (
            Contestant("rocketcompat", "ours", rocket.scan(verify=True)),
            *rocket.both(lambda v: rocket.real_reads(v, "scan")),
        ),
        (Bar("RocketMQ 4.9.8", 0.3), Bar("RocketMQ 5.3.3", 0.3)),
    ),
    *(
        Workload(
            f"rocket-queue-{queues}",
            f"read one of {queues:,} queues after the other, up to 1,000 messages each, as Arrow",
            Sizes(900_000, 100_000),
            (
                *(QUEUES if queues < 10_000 else QUEUES[::-1]),
                *rocket.both(
                    lambda v: rocket.real_reads(
                        v, "read", rocket.TOPIC, lambda case: case.partitions
                    )
                ),
            ),
            (Bar("RocketMQ 4.9.8", 1), Bar("RocketMQ 5.3.3", 1)),
            partitions=queues,
        )
        for queues in (1, 100, 10_000)
    ),
    Workload(
        "rocket-key",
        "find the message of one of 1 million keys (asked for: p50 below 30, p99 below 150 us)",
        Sizes(1_000_000, 50_000),
        (
            Contestant("rocketcompat", "ours", rocket.keys_one_by_one),
            *rocket.both(_real_keys),
        ),
    ),
    Workload(
        "rocket-keys-1000",
        "find those of 1,000 keys a call (asked for: below 3 us a key)",
        Sizes(1_000_000, 50_000),
        (
            Contestant("rocketcompat", "ours", rocket.keys_together),
            *rocket.both(_real_keys),
        ),
    ),
    Workload(
        "rocket-open-kill",
        "open after a kill with a full file of 1 GiB; everything dispatched",
        Sizes(930_000, 50_000),
        (Contestant("rocketcompat", "ours", rocket.opening), *rocket.both(rocket.real_opening)),
        (Bar("RocketMQ 4.9.8", 2),),
        whole=True,
        shows_memory=True,
    ),
    Workload(
        "rocket-open-10k",
        "the same with 10,000 queues of 10 messages",
        Sizes(100_000, 20_000),
        (Contestant("rocketcompat", "ours", rocket.opening), *rocket.both(rocket.real_opening)),
        (Bar("RocketMQ 4.9.8", 1),),
        partitions=10_000,
        whole=True,
        shows_memory=True,
    ),
    Workload(
        "rocket-rebuild",
        "build queues and index anew from a log of 1 GiB with a key a message",
        Sizes(900_000, 50_000),
        (
            Contestant("rocketcompat", "ours", rocket.rebuilding),
            *rocket.both(rocket.real_rebuilding),
        ),
        (Bar("RocketMQ 4.9.8", 2), Bar("RocketMQ 5.3.3", 2)),
        whole=True,
    ),
    Workload(
        "rocket-fsync-16",
        "put one by one from 16 threads, each on stable storage",
        Sizes(20_000, 4000, 64),
        (_sync(SingleLog), *real.both_rocketmq(sync=True, threads=16)),
        (Bar("RocketMQ 4.9.8", 0.65),),
        threads=16,
        durability="fsync",
        needs_disk=True,
    ),
    Workload(
        "rocket-fsync-100",
        "put batches of 100, each on stable storage",
        Sizes(50_000, 4000, 200),
        (
            Contestant("rocketcompat", "ours", rocket.sync_batches),
            *real.both_rocketmq(batch=100, sync=True),
        ),
        (Bar("RocketMQ 4.9.8", 1), Bar("RocketMQ 5.3.3", 1)),
        batch=100,
        durability="fsync",
        needs_disk=True,
    ),
    Workload(
        "read-p1",
        "read the only partition, 1,000 messages a call, bodies copied out",
        Sizes(400_000, 100_000),
        (*_READERS, _read(Sqlite), _read(Rocksdict), TUBEMQ_READ),
        (Bar(GATHER.name, 0.5), Bar("lmdb", 1)),
        partitions=1,
    ),
    Workload(
        "read-p100",
        "read one of 100 partitions after the other, 1,000 messages a call",
        Sizes(400_000, 200_000),
        (*_READERS, _read(Sqlite), _read(Rocksdict), TUBEMQ_READ, _read(SingleLog)),
        (Bar(GATHER.name, 0.5), Bar("lmdb", 1)),
        partitions=100,
    ),
    Workload(
        "read-p10000",
        "read one of 10,000 partitions after the other, 100 messages a call",
        Sizes(1_000_000, 200_000),
        (*_READERS, TUBEMQ_READ),
        (Bar(GATHER.name, 0.4), Bar("lmdb", 1)),
        partitions=10_000,
    ),
    Workload(
        "read-many-p10000",
        "offset and body of 10,000 partitions, 100 messages of each, 100 partitions a call",
        Sizes(1_000_000, 200_000),
        (TOGETHER, ONE_BY_ONE, GATHER),
        (Bar(ONE_BY_ONE.name, 2),),
        partitions=10_000,
    ),
    Workload(
        "read-views",
        "offset and body of one of 10 partitions after the other, bodies not copied, sealed files",
        Sizes(400_000, 200_000),
        (VIEWS, COPIES),
        (Bar(COPIES.name, 3),),
    ),
    Workload(
        "filter",
        "find the 1 % with a filter item, bodies and all (rates count what is searched)",
        Sizes(1_000_000, 200_000),
        (BY_INDEX, BY_SCAN),
        (Bar(BY_SCAN.name, 20),),
    ),
    Workload(
        "offset-at",
        "the offset of a random time in one of 10 partitions",
        Sizes(1_000_000, 200_000),
        (OFFSET_AT,),
    ),
    Workload(
        "scan",
        "read everything of 1 topic × 10 partitions, all columns",
        Sizes(400_000, 200_000),
        (_scan(TopicSharded), SCAN, SCAN_ANY, _scan(Lmdb), _scan(Sqlite)),
        (Bar(SCAN.name, 0.6), Bar("lmdb", 1)),
    ),
    Workload(
        "scan-crc",
        "the same, every checksum compared",
        Sizes(400_000, 200_000),
        (VERIFIED, SCAN_CRC, CHECKSUMS),
        (Bar(SCAN_CRC.name, 0.75),),
    ),
    Workload(
        "fsync-1",
        "append one by one from 1 thread, each on stable storage",
        Sizes(5000, 1000, 20),
        (_sync(TopicSharded), WRITE_SYNC, _sync(Lmdb), _sync(Sqlite), _sync(Rocksdict)),
        (Bar(WRITE_SYNC.name, 0.9),),
        durability="fsync",
        needs_disk=True,
    ),
    Workload(
        "fsync-16",
        "append one by one from 16 threads, each on stable storage",
        Sizes(20_000, 4000, 64),
        (_sync(TopicSharded), WRITE_SYNC, _sync(Rocksdict)),
        (Bar(WRITE_SYNC.name, 3.5), Bar("rocksdict", 1)),
        threads=16,
        durability="fsync",
        needs_disk=True,
    ),
    Workload(
        "fsync-batch",
        "append batches of 100 to 1 topic × 10 partitions, each on stable storage",
        Sizes(100_000, 20_000),
        (
            *(_batch(TopicSharded), SYNC_BATCHES),
            *(_batch(Lmdb), _batch(Sqlite), _batch(Rocksdict)),
        ),
        (Bar(SYNC_BATCHES.name, 0.7), *(Bar(n, 1) for n in ("lmdb", "sqlite", "rocksdict"))),
        batch=100,
        durability="fsync",
        needs_disk=True,
    ),
    Workload(
        "open-after-kill",
        "open a store whose writer was killed and verify every message (1 GB; less when quick)",
        Sizes(980_000, 300_000, 2000),
        (OPEN_VERIFY, OPEN_CHECKPOINT, CHECKSUMS),
    ),
    Workload(
        "open-clean",
        "open a store that was closed, 1 GB, beside one of 1,000 messages (us/call: the opening)",
        Sizes(980_000, 300_000, 2000),
        (OPEN_CLOSED, OPEN_SMALL),
    ),
    Workload(
        "create-many",
        "create 10,000 topics and append a message to each (us/call: all of them)",
        Sizes(10_000, 2000),
        (CREATE_EACH, CREATE_BATCH, CREATE_RAW),
        within=Within(2.0, 250, 1024),
        topics=10_000,
    ),
    Workload(
        "open-many-clean",
        "open a store of 10,000 topics with a message each that was closed",
        Sizes(10_000, 2000),
        _open_many(closed=True),
        within=Within(0.3, 250, 1024),
        topics=10_000,
    ),
    Workload(
        "open-many-killed",
        "the same, left by a kill",
        Sizes(10_000, 2000),
        _open_many(closed=False),
        within=Within(1.0, 250, 1024),
        topics=10_000,
    ),
)
