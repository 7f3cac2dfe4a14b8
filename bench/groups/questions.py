"""The questions to groups of consumers."""

from __future__ import annotations

from bench.groups import broker, sides
from bench.groups.sides import over_messages
from bench.workloads import rocket
from bench.workloads.cases import Contestant
from bench.workloads.workload import Bar, Sizes, Within, Workload

PAGES = Contestant("bare reads", "limit", over_messages(sides.read_arrow))
EACH = Contestant("bare reads", "limit", over_messages(sides.read_messages))
AT_LEAST_ONCE = Contestant("read, append", "limit", over_messages(sides.read_and_append))

GROUPS: tuple[Workload, ...] = (
    Workload(
        "group-poll",
        "poll 10 partitions, 1,000 messages as Arrow a call; positions are committed every 5 s",
        Sizes(500_000, 100_000),
        (
            Contestant("tubestore", "ours", over_messages(sides.poll_arrow)),
            Contestant("a commit each", "ours", over_messages(sides.poll_and_commit)),
            PAGES,
        ),
        (Bar(PAGES.name, 0.8),),
        whole=True,
    ),
    Workload(
        "group-messages",
        "the same, message by message",
        Sizes(200_000, 50_000),
        (Contestant("tubestore", "ours", over_messages(sides.poll_messages)), EACH),
        (Bar(EACH.name, 0.8),),
        whole=True,
    ),
    Workload(
        "group-once",
        "from topic to topic exactly once, 1,000 messages a commit",
        Sizes(300_000, 60_000),
        (Contestant("tubestore", "ours", over_messages(sides.exactly_once)), AT_LEAST_ONCE),
        (Bar(AT_LEAST_ONCE.name, 0.5),),
        whole=True,
    ),
    Workload(
        "group-delay",
        "until an append is in a poll: p50 and p99 (asked for: 0.3 and 3 ms; p99 10 ms across)",
        Sizes(20_000, 3000),
        (
            Contestant("one process", "ours", sides.delays_here),
            Contestant("two processes", "ours", sides.delays_there),
        ),
        whole=True,
    ),
    Workload(
        "group-rebalance",
        "a member of 100 leaves, and 10,000 partitions are assigned anew",
        Sizes(10_000, 2000),
        (Contestant("tubestore", "ours", sides.rebalancing),),
        within=Within(1.0, 512, 1024),
        partitions=10_000,
        whole=True,
    ),
    Workload(
        "group-commit",
        "a commit of 100,000 positions (asked for: 50 ms)",
        Sizes(100_000, 20_000),
        (Contestant("tubestore", "ours", sides.committing),),
        within=Within(0.05, 1024, 1024),
        partitions=10_000,
        whole=True,
    ),
    Workload(
        "group-idle",
        "processor seconds of a consumer of 10,000 partitions in ten idle seconds",
        Sizes(20_000, 2000),
        (Contestant("tubestore", "ours", sides.idling),),
        within=Within(0.1, 1024, 1024),
        partitions=10_000,
        whole=True,
    ),
    Workload(
        "broker-pull",
        "pull 10 queues of a broker, one after the other, 32 messages a pull",
        Sizes(200_000, 20_000),
        (
            Contestant("rocketcompat", "ours", broker.pulling),
            *rocket.both(
                lambda v: rocket.real_reads(
                    v, "read", rocket.TOPIC, lambda case: case.partitions, settings={}
                )
            ),
        ),
    ),
    Workload(
        "broker-delay",
        "until a put is in a pull that a broker has held: p50 and p99",
        Sizes(20_000, 3000),
        (
            Contestant("rocketcompat", "ours", broker.delays),
            *rocket.both(broker.real_delays),
        ),
        whole=True,
    ),
)
