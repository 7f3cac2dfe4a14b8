"""Real consumers of one store under a simulated clock, against plain lists.

Members join, poll, commit, pause, seek back, leave, are killed and come back from the dead; topics
grow; messages come at all levels, some in batches over many shards. At the end every message was
processed, each member got each of its partitions in order, and no commit went back.

`GROUP_RUNS` sets how many runs there are in the slow stage.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from random import Random
from typing import Any

import pytest

import tubestore
from tests.proof.explorer.explore import seed_of_run
from tubestore.clock import ManualClock
from tubestore.errors import MemberFenced
from tubestore.groups.assignment import STRATEGIES, Partition
from tubestore.groups.consumer import Consumer
from tubestore.testing import MemoryVfs

SESSION_MS = 1000
SLOW = 2000
SMALL: dict[str, Any] = {
    "segment_size_bytes": 900,
    "index_segment_size_bytes": 28 * 11,
    "journal_shards_min": 2,
}


class Member:
    """A consumer, and what it was given of each partition since it took it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.last: dict[Partition, int] = {}
        self.wakes_at = 0
        store = world.random.choice([world.store, world.reader])
        self.consumer: Consumer = store.consumer(
            "g",
            ["t", "u"],
            strategy=world.strategy,
            session_timeout=SESSION_MS / 1000,
            auto_commit=world.random.random() < 0.7,
            auto_commit_interval=0.3,
            on_revoked=self.forget,
            on_lost=self.forget,
        )

    def forget(self, partitions: list[Partition]) -> None:
        for partition in partitions:
            self.last.pop(partition, None)

    def poll(self, timeout: float = 0.0) -> int:
        random = self.world.random
        polled = self.consumer.poll(
            random.randrange(1, 9), max_bytes=random.choice((80, 10_000)), timeout=timeout
        )
        assert not polled.removed
        for message in polled:
            partition = message.topic, message.partition
            assert message.offset > self.last.get(partition, -1), "out of order, or twice"
            self.last[partition] = message.offset
            self.world.process(partition, message.offset, message.body)
        if self.world.is_settling:
            return len(polled)
        if random.random() < 0.2:
            self.consumer.commit()
        if random.random() < 0.05 and self.consumer.assignment:
            chosen = random.choice(self.consumer.assignment)
            self.consumer.pause([chosen])
        elif random.random() < 0.1:
            self.consumer.resume()
        if random.random() < 0.03:
            self.consumer.rewind(random.randrange(3))
            self.last.clear()
        return len(polled)


class World:
    """One store, its members, and what was appended and processed."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.clock = ManualClock()
        self.vfs = MemoryVfs(self.clock)
        how: dict[str, Any] = {"vfs": self.vfs, "clock": self.clock, "background": False}
        self.store = tubestore.open("/s", **how, **SMALL)
        self.store.create_topic("t", partitions=random.randrange(1, 5), stores=2)
        self.reader = tubestore.open("/s", "r", **how)
        self.strategy = random.choice(list(STRATEGIES))
        self.sent: dict[Partition, dict[int, bytes]] = defaultdict(dict)
        self.processed: dict[Partition, set[int]] = defaultdict(set)
        self.members: list[Member] = []
        self.count = 0
        #: True once nothing goes wrong any more.
        self.is_settling = False

    def process(self, partition: Partition, offset: int, body: bytes | None) -> None:
        assert self.sent[partition][offset] == body, "another message than was appended"
        self.processed[partition].add(offset)

    def append(self) -> None:
        topic = self.store[self.random.choice(self.store.topics())]
        level = self.random.choice(("memory", "page_cache", "fsync"))
        if self.random.random() < 0.5:
            rows = [
                (self.random.choice(topic.partition_ids), b"%d" % (self.count + n))
                for n in range(self.random.randrange(1, 9))
            ]
            table = {"partition": [p for p, _ in rows], "body": [b for _, b in rows]}
            acks = topic.append_batch(table, durability=level)
            for ack, (_, body) in zip(acks, rows, strict=True):
                self.sent[topic.name, ack.partition][ack.offset] = body
            self.count += len(rows)
            return
        body = b"%d" % self.count
        self.count += 1
        partition = self.random.choice(topic.partition_ids)
        ack = topic.append(body, partition=partition, durability=level)
        self.sent[topic.name, ack.partition][ack.offset] = body

    def grow(self) -> None:
        if "u" not in self.store:
            self.store.create_topic("u", partitions=2)
        else:
            options = self.store["t"].options
            self.store.change_topic("t", partitions=options.partitions + 1)

    def step(self) -> None:
        self.clock.advance(self.random.randrange(1, 250))
        drawn = self.random.random()
        awake = [m for m in self.members if m.wakes_at <= self.clock.now_ms()]
        if drawn < 0.25:
            self.append()
        elif drawn < 0.33 or not self.members:
            if len(self.members) < 5:
                self.members.append(Member(self))
        elif drawn < 0.35:
            self.grow()
        elif not awake:
            return
        elif drawn < 0.40:
            member = self.random.choice(awake)
            self.members.remove(member)
            self.finish(member)
        elif drawn < 0.45:
            member = self.random.choice(awake)
            self.members.remove(member)
            member.consumer._closed = True  # as a kill: nothing is committed, no group is left
        elif drawn < 0.5:
            member = self.random.choice(awake)
            member.wakes_at = self.clock.now_ms() + self.random.randrange(3 * SESSION_MS)
        else:
            member = self.random.choice(awake)
            try:
                if member.wakes_at and self.random.random() < 0.5:
                    member.consumer.commit()  # the first thing that a zombie does
                member.wakes_at = 0
                member.poll()
            except MemberFenced:
                member.forget(list(member.last))

    def finish(self, member: Member) -> None:
        try:
            if not member.consumer._settings.auto_commit:
                member.consumer.commit()
        except MemberFenced:
            pass
        member.consumer.close()

    def lacks_messages(self) -> bool:
        return any(self.sent[place].keys() - self.processed[place] for place in self.sent)

    def settle(self) -> None:
        """Without more faults: everything comes to those that are left."""
        self.is_settling = True
        self.store.flush()
        self.clock.advance(2 * SESSION_MS)
        self.members.append(Member(self))
        idle = 0
        # A thread wakes readers, and may have to wait for a processor.
        deadline = time.monotonic() + 60
        while idle < 8 or (self.lacks_messages() and time.monotonic() < deadline):
            idle += 1
            self.clock.advance(SESSION_MS // 3)
            for member in self.members:
                member.wakes_at = 0
                try:
                    member.consumer.resume()
                    if member.poll(timeout=0.1 if idle > 8 else 0.0):
                        idle = 0
                except MemberFenced:
                    idle = 0
        owners: dict[Partition, int] = {}
        for number, member in enumerate(self.members):
            for partition in member.consumer.assignment:
                assert owners.setdefault(partition, number) == number, "two owners"
        for name in self.store.topics():
            for partition in self.store[name].partition_ids:
                assert (name, partition) in owners, "no owner"
                place = name, partition
                assert self.processed[place] == set(self.sent[place]), f"{place}: messages missing"
        for member in self.members:
            self.finish(member)
        rows = self.store.describe_group("g").partitions
        assert {row.lag for row in rows} == {0}

    def close(self) -> None:
        for member in self.members:
            member.consumer._closed = True
        self.reader.close()
        self.store.close()


def run(number: int, steps: int) -> None:
    world = World(Random(seed_of_run(number)))
    try:
        for _ in range(steps):
            world.step()
        world.settle()
    finally:
        world.close()


@pytest.mark.gate
@pytest.mark.parametrize("number", range(20))
def test_every_message_is_processed_in_order_by_one_member_at_a_time(number: int) -> None:
    run(number, 80)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(10))
def test_the_same_holds_for_many_runs(block: int) -> None:
    runs = int(os.environ.get("GROUP_RUNS", SLOW))
    for number in range(20 + block * runs // 10, 20 + (block + 1) * runs // 10):
        run(number, 150)
