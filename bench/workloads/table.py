"""The questions, as a table: what is done, by which contestants, how much of it, and the bars."""

from __future__ import annotations

from bench.groups.questions import GROUPS
from bench.layouts.layout import SingleLog, TopicSharded
from bench.layouts.peers import Lmdb, Rocksdict, Sqlite
from bench.measure import limits
from bench.real import layouts as real
from bench.replication.questions import REPLICATION
from bench.workloads import our_reads
from bench.workloads.cases import Contestant, opening, reading, scanning
from bench.workloads.contestants import (
    ENCODE,
    WRITE_EACH,
    beside,
    first_read_by,
    in_batches,
    one_by_one,
    read_by,
    scanned,
    synced,
)
from bench.workloads.many_topics import creating, opening_closed, opening_many
from bench.workloads.rocket_workloads import ROCKET
from bench.workloads.workload import Bar, Sizes, Within, Workload

BUFFER = Contestant("limit: buffer, encode 5120", "limit", limits.buffer_and_encode)
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
    """What one by one has left, and what a batch has left: that is in the journal, too."""
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
#: The same calls to one topic.
ONE_TOPIC = beside(in_batches(TopicSharded), "one topic", topics=1)
ONE_TOPIC_SYNCED = beside(synced(TopicSharded), "one topic", topics=1)
IN_PAGE_CACHE = beside(in_batches(TopicSharded), "in the page cache", durability="page_cache")
_READERS = (read_by(TopicSharded), LEAN, GATHER, read_by(Lmdb))

WORKLOADS: tuple[Workload, ...] = (
    Workload(
        "append-one-memory",
        "append one by one to 1 topic × 10 partitions, acknowledged from memory",
        Sizes(1_000_000, 200_000),
        (
            one_by_one(TopicSharded),
            BUFFER,
            one_by_one(Lmdb),
            one_by_one(Sqlite),
            one_by_one(Rocksdict),
            TUBEMQ_APPEND,
        ),
        (Bar(real.TUBEMQ, 0.7), Bar("lmdb", 1), Bar("rocksdict", 1)),
        durability="memory",
        way=one_by_one,
    ),
    Workload(
        "append-one-page-cache",
        "append one by one to 1 topic × 10 partitions, each in the page cache",
        Sizes(200_000, 30_000),
        (
            one_by_one(TopicSharded),
            WRITE_EACH,
            one_by_one(Lmdb),
            one_by_one(Sqlite),
            *real.both_rocketmq(),
        ),
        (Bar("RocketMQ 4.9.8", 0.35),),
        way=one_by_one,
    ),
    Workload(
        "append-batch",
        "append batches of 1,000 to 1 topic × 10 partitions, in the page cache",
        Sizes(600_000, 200_000),
        (
            *(in_batches(TopicSharded), ENCODE, RAW_WRITE, in_batches(Lmdb), in_batches(Sqlite)),
            *(in_batches(Rocksdict), *real.both_rocketmq(batch=1000)),
        ),
        (Bar(ENCODE.name, 0.65), Bar("lmdb", 1), Bar("rocksdict", 1)),
        way=in_batches,
    ),
    Workload(
        "append-topics",
        "batches of 1,000 to 1,000 topics × 10 partitions in turn, a topic a batch",
        Sizes(600_000, 200_000),
        (in_batches(TopicSharded), ENCODE, ONE_TOPIC, in_batches(Lmdb)),
        (Bar(ONE_TOPIC.name, 0.8),),
        topics=1000,
        mixed=False,
        whole=True,
        way=in_batches,
    ),
    Workload(
        "append-mixed-1k",
        "batches of 1,000 rows, each of any of 1,000 topics × 10 partitions",
        Sizes(600_000, 100_000),
        (in_batches(TopicSharded), ENCODE, ONE_TOPIC, in_batches(Lmdb)),
        (Bar(ONE_TOPIC.name, 0.3),),
        topics=1000,
        whole=True,
        way=in_batches,
    ),
    Workload(
        "append-mixed-1k-memory",
        "the same, acknowledged from memory",
        Sizes(600_000, 50_000),
        (in_batches(TopicSharded), ENCODE, IN_PAGE_CACHE, in_batches(Lmdb)),
        (Bar(IN_PAGE_CACHE.name, 1),),
        topics=1000,
        whole=True,
        durability="memory",
        way=in_batches,
    ),
    Workload(
        "append-mixed-100k",
        "batches of 100,000 rows, each of any of 1,000 topics × 10 partitions",
        Sizes(600_000, 200_000),
        (in_batches(TopicSharded), ENCODE, in_batches(Lmdb)),
        (Bar(ENCODE.name, 0.26),),
        topics=1000,
        batch=100_000,
        way=in_batches,
    ),
    *ROCKET,
    *REPLICATION,
    *GROUPS,
    Workload(
        "read-p1",
        "read the only partition, 1,000 messages a call, bodies copied out",
        Sizes(400_000, 100_000),
        (*_READERS, read_by(Sqlite), read_by(Rocksdict), TUBEMQ_READ),
        (Bar(GATHER.name, 0.5), Bar("lmdb", 1)),
        partitions=1,
        way=read_by,
    ),
    Workload(
        "read-p100",
        "read one of 100 partitions after the other, 1,000 messages a call",
        Sizes(400_000, 200_000),
        (*_READERS, read_by(Sqlite), read_by(Rocksdict), TUBEMQ_READ, read_by(SingleLog)),
        (Bar(GATHER.name, 0.5), Bar("lmdb", 1)),
        partitions=100,
        way=read_by,
    ),
    Workload(
        "read-p10000",
        "read one of 10,000 partitions after the other, 100 messages a call",
        Sizes(1_000_000, 200_000),
        (*_READERS, read_by(Sqlite), read_by(Rocksdict), TUBEMQ_READ),
        (Bar(GATHER.name, 0.4), Bar("lmdb", 1)),
        partitions=10_000,
        way=read_by,
    ),
    Workload(
        "read-p10000-first",
        "the same by a store that was just opened (--dir on a disk: none of it in memory)",
        Sizes(1_000_000, 200_000),
        tuple(first_read_by(make) for make in (TopicSharded, Lmdb, Sqlite, Rocksdict)),
        (Bar("lmdb", 1),),
        partitions=10_000,
        way=first_read_by,
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
        (scanned(TopicSharded), SCAN, SCAN_ANY, scanned(Lmdb), scanned(Sqlite)),
        (Bar(SCAN.name, 0.6), Bar("lmdb", 1)),
        way=scanned,
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
        (synced(TopicSharded), WRITE_SYNC, synced(Lmdb), synced(Sqlite), synced(Rocksdict)),
        (Bar(WRITE_SYNC.name, 0.9),),
        durability="fsync",
        needs_disk=True,
        way=synced,
    ),
    Workload(
        "fsync-16",
        "append one by one from 16 threads, each on stable storage",
        Sizes(20_000, 4000, 64),
        (synced(TopicSharded), WRITE_SYNC, synced(Rocksdict)),
        (Bar(WRITE_SYNC.name, 3.5), Bar("rocksdict", 1)),
        threads=16,
        durability="fsync",
        needs_disk=True,
        way=synced,
    ),
    Workload(
        "fsync-batch",
        "append batches of 100 to 1 topic × 10 partitions, each on stable storage",
        Sizes(100_000, 20_000),
        (
            *(in_batches(TopicSharded), SYNC_BATCHES),
            *(in_batches(Lmdb), in_batches(Sqlite), in_batches(Rocksdict)),
        ),
        (Bar(SYNC_BATCHES.name, 0.7), *(Bar(n, 1) for n in ("lmdb", "sqlite", "rocksdict"))),
        batch=100,
        durability="fsync",
        needs_disk=True,
        way=in_batches,
    ),
    Workload(
        "fsync-16-topics",
        "append one by one from 16 threads to 1,000 topics × 10 partitions, each on stable storage",
        Sizes(40_000, 4000, 64),
        (synced(TopicSharded), ONE_TOPIC_SYNCED),
        (Bar(ONE_TOPIC_SYNCED.name, 0.9),),
        topics=1000,
        threads=16,
        durability="fsync",
        needs_disk=True,
        whole=True,
        way=synced,
    ),
    Workload(
        "fsync-mixed-1k",
        "batches of 1,000 rows, each of any of 1,000 topics × 10 partitions, on stable storage",
        Sizes(600_000, 20_000),
        (in_batches(TopicSharded), ONE_TOPIC, in_batches(Lmdb)),
        (Bar(ONE_TOPIC.name, 0.4),),
        topics=1000,
        durability="fsync",
        needs_disk=True,
        whole=True,
        way=in_batches,
    ),
    Workload(
        "open-after-kill",
        "open a store left by a kill and verify every message (1 GB; less when quick)",
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
