"""The questions to replication, beside two sides of RocketMQ."""

from __future__ import annotations

from bench.replication import sides as replication
from bench.workloads import rocket
from bench.workloads.cases import Contestant
from bench.workloads.workload import Bar, Sizes, Within, Workload

ALONE = Contestant("without a slave", "limit", replication.putting(slave=False))

REPLICATION: tuple[Workload, ...] = (
    Workload(
        "ha-catch-up",
        "an empty slave copies a log of 1 GiB (asked for: 370,000 messages/s, 400 MB/s)",
        Sizes(900_000, 50_000),
        (
            Contestant("rocketcompat", "ours", replication.catching_up(dispatched=False)),
            Contestant("rocketcompat, dispatched", "ours",
                       replication.catching_up(dispatched=True)),
            *rocket.both(replication.real_catching_up),
        ),
        (Bar("RocketMQ 4.9.8", 0.8), Bar("RocketMQ 5.3.3", 0.8)),
        whole=True,
    ),
    Workload(
        "ha-sync-put",
        "put one by one, each acknowledged by a slave from its page cache",
        Sizes(20_000, 2000),
        (
            Contestant("rocketcompat", "ours", replication.putting(synchronous=True)),
            *rocket.both(lambda v: replication.real_putting(v, synchronous=True)),
        ),
        (Bar("RocketMQ 4.9.8", 0.7), Bar("RocketMQ 5.3.3", 0.7)),
    ),
    Workload(
        "ha-put",
        "put one by one into a master with a slave that does not wait for it",
        Sizes(100_000, 10_000),
        (
            Contestant("rocketcompat", "ours", replication.putting()),
            ALONE,
            *rocket.both(replication.real_putting),
        ),
        (Bar(ALONE.name, 0.9),),
    ),
    Workload(
        "ha-delay",
        "until a put at 10,000 a second is readable in the mirror (asked for: p99 below 10 ms)",
        Sizes(100_000, 20_000),
        (Contestant("rocketcompat", "ours", replication.delays),),
        whole=True,
    ),
    Workload(
        "ha-idle",
        "processor seconds of a mirror in ten idle seconds, and its anonymous memory",
        Sizes(100_000, 5000),
        (Contestant("rocketcompat", "ours", replication.idling),),
        within=Within(0.1, 120, 1024),
        whole=True,
        shows_memory=True,
    ),
)  # fmt: skip
