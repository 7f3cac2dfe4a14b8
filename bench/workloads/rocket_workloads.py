"""The questions to RocketMQ's layout, beside the real stores."""

from __future__ import annotations

from typing import Any

from bench.layouts.layout import SingleLog, SingleLogAndShards
from bench.real import layouts as real
from bench.workloads import rocket
from bench.workloads.cases import Contestant
from bench.workloads.contestants import (
    ENCODE,
    WRITE_EACH,
    in_batches,
    one_by_one,
    read_by,
    scanned,
    synced,
)
from bench.workloads.workload import Bar, Sizes, Workload

QUEUES = (
    Contestant("rocketcompat", "ours", rocket.queues),
    Contestant("rocketcompat, 100 a call", "ours", rocket.many_queues),
)
ONE_TOPIC = Contestant("one topic", "limit", rocket.one_topic(SingleLog))


def _real_keys(version: str) -> Any:
    return rocket.real_reads(
        version, "query", rocket.TOPIC, lambda case: case.messages, rocket.ASKED, keyed=True
    )


ROCKET: tuple[Workload, ...] = (
    Workload(
        "put-one",
        "put one by one to 1 topic × 10 queues, in the page cache, dispatched to queues and index",
        Sizes(200_000, 30_000),
        (
            *(one_by_one(SingleLog), one_by_one(SingleLogAndShards), WRITE_EACH),
            *real.both_rocketmq(),
        ),
        (Bar("RocketMQ 4.9.8", 0.35),),
        way=one_by_one,
    ),
    Workload(
        "put-columns",
        "put batches of 1,000 to 1 topic × 10 queues, likewise",
        Sizes(600_000, 100_000),
        (
            *(in_batches(SingleLog), in_batches(SingleLogAndShards), ENCODE),
            *real.both_rocketmq(batch=1000),
        ),
        (Bar("RocketMQ 4.9.8", 1.2), Bar("RocketMQ 5.3.3", 1.2)),
        way=in_batches,
    ),
    Workload(
        "put-columns-tube",
        "the same with everything on: queues, index, and the shards",
        Sizes(300_000, 50_000),
        (in_batches(SingleLogAndShards), *real.both_rocketmq(batch=1000)),
        (Bar("RocketMQ 4.9.8", 0.55), Bar("RocketMQ 5.3.3", 0.55)),
        way=in_batches,
    ),
    Workload(
        "put-mixed-1k",
        "put batches of 1,000 rows, each of any of 1,000 topics × 10 queues, dispatched",
        Sizes(1_000_000, 50_000),
        (in_batches(SingleLog), ONE_TOPIC, *real.both_rocketmq(batch=1000)),
        (Bar(ONE_TOPIC.name, 0.5),),
        topics=1000,
        whole=True,
        way=in_batches,
    ),
    Workload(
        "put-10k-topics",
        "the same over 10,000 topics × 1 queue",
        Sizes(1_000_000, 50_000),
        (in_batches(SingleLog), ONE_TOPIC),
        (Bar(ONE_TOPIC.name, 0.35),),
        topics=10_000,
        partitions=1,
        whole=True,
        way=in_batches,
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
        way=scanned,
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
            way=read_by,
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
        (synced(SingleLog), *real.both_rocketmq(sync=True, threads=16)),
        (Bar("RocketMQ 4.9.8", 0.65),),
        threads=16,
        durability="fsync",
        needs_disk=True,
        way=synced,
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
        way=in_batches,
    ),
)
