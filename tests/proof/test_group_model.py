"""A group under a simulated clock: random joins, leaves, deaths, pauses, commits and appends.

Members follow the rules of `groups/membership.py` as a consumer does: they read the state when
they poll, release what is to leave, take what is free, commit behind the fence. The model has what
each member was given; at the end, with the faults over, every message was processed.

`GROUP_RUNS` sets how many runs there are in the slow stage.
"""

from __future__ import annotations

import os
from collections import defaultdict
from dataclasses import dataclass, field
from random import Random

import numpy as np
import pytest

from tests.proof.explorer.explore import seed_of_run
from tubestore.errors import MemberFenced
from tubestore.groups.assignment import STRATEGIES, Partition, Strategy
from tubestore.groups.membership import Member, Membership, Owned, TopicShape
from tubestore.groups.positions import PositionRows, Positions, encode_frame, frames_in

SESSION_MS = 1000
QUICK, SLOW = 300, 10_000


@dataclass
class Client:
    """One consumer: what it thinks that it has, and where it is in each partition."""

    id: str
    token: str
    member: Member
    #: By partition: the next message that it gives to its caller, and its last commit.
    at: dict[Partition, int] = field(default_factory=dict)
    committed: dict[Partition, int] = field(default_factory=dict)
    #: By partition: how many it had taken when it took this one.
    since: dict[Partition, int] = field(default_factory=dict)
    taken: int = 0
    paused_until: int = 0
    last_beat: int = 0


class World:
    """One group, its clients, the partitions and the clock."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.now = 1_000_000
        self.strategy_name = random.choice(list(STRATEGIES))
        self.strategy: Strategy = STRATEGIES[self.strategy_name]
        self.shapes = {
            f"t{n}": TopicShape(random.randrange(1, 4), random.randrange(1, 3))
            for n in range(random.randrange(1, 4))
        }
        self.logs: dict[Partition, int] = defaultdict(int)
        self.group = Membership("g")
        self.positions = Positions()
        self.log = b""
        self.clients: list[Client] = []
        self.dead: list[Client] = []
        self.born = 0
        #: By partition: the messages that were processed.
        self.processed: dict[Partition, set[int]] = defaultdict(set)
        #: By partition, member and time of taking it: the messages in the order of processing.
        self.orders: dict[tuple[Partition, str, int], list[int]] = defaultdict(list)
        self.fenced = 0

    # -- what happens ------------------------------------------------------------------------

    def partitions(self) -> list[Partition]:
        return [(t, int(n)) for t, shape in self.shapes.items() for n in shape.ids()]

    def append(self) -> None:
        self.logs[self.random.choice(self.partitions())] += self.random.randrange(1, 4)

    def grow(self) -> None:
        if self.random.random() < 0.3:
            self.shapes[f"t{len(self.shapes)}"] = TopicShape(1)
        else:
            topic = self.random.choice(list(self.shapes))
            shape = self.shapes[topic]
            self.shapes[topic] = TopicShape(shape.partitions + 1, shape.stores)

    def join(self) -> None:
        self.born += 1
        # Ids come back: a token distinguishes the members.
        name = f"m{self.random.randrange(6)}"
        self.expire()
        if name in self.group.members:
            return
        topics = [t for t in (f"t{n}" for n in range(6)) if self.random.random() < 0.8] or ["t0"]
        token = f"{name}-{self.born}"
        member = self.group.join(
            name, token, topics, session_ms=SESSION_MS, strategy=self.strategy_name
        )
        self.clients.append(Client(name, token, member, last_beat=self.now))

    def expire(self) -> None:
        beats = {c.token: c.last_beat for c in (*self.clients, *self.dead)}
        silent = {m.id: self.now - beats[m.token] for m in self.group.members.values()}
        self.group.expire(silent)

    def poll(self, client: Client) -> None:
        """One turn of a client: heartbeat, hand-over, some messages, perhaps a commit."""
        client.last_beat = self.now
        if not self.group.is_member(client.id, client.token):
            self.rejoin(client)
            return
        self.expire()
        group, member = self.group, client.member
        group.see_topics(self.shapes)
        if not group.is_settled:
            group.settle(self.strategy)
        leaving = group.leaving(member)
        if leaving:
            self.commit(client)
            group.release(member, leaving)
            for partition in pairs(leaving):
                client.at.pop(partition, None)
                client.committed.pop(partition, None)
        for partition in pairs(group.take(member)):
            client.taken += 1
            client.since[partition] = client.taken
            client.at[partition] = self.positions.of(partition[0]).get(partition[1], 0)
        held = set(pairs(group.held(member)))
        assert set(client.at) == held, "a client has other partitions than the group gives it"
        self.read(client)
        if self.random.random() < 0.4:
            self.commit(client)
        self.check()

    def read(self, client: Client) -> None:
        """Give the caller some messages of what the client thinks that it has."""
        for partition in self.random.sample(sorted(client.at), min(2, len(client.at))):
            start, end = client.at[partition], self.logs[partition]
            for number in range(start, min(end, start + self.random.randrange(1, 4))):
                self.process(client, partition, number)

    def process(self, client: Client, partition: Partition, number: int) -> None:
        self.processed[partition].add(number)
        self.orders[partition, client.token, client.since[partition]].append(number)
        client.at[partition] = number + 1

    def commit(self, client: Client) -> None:
        """Commit where a client is, behind the fence; the positions go through their bytes."""
        given: dict[str, dict[int, int]] = defaultdict(dict)
        for (topic, number), at in client.at.items():
            if client.committed.get((topic, number)) != at:
                given[topic][number] = at
        if not given:
            return
        ids = {topic: np.array([*offsets]) for topic, offsets in given.items()}
        before = self.positions.topics()
        try:
            member = self.group.check_member(client.id, client.token)
            self.group.check_holder(member, ids)
        except MemberFenced:
            self.fenced += 1
            assert self.positions.topics() == before
            raise
        for topic, offsets in given.items():
            for number, at in offsets.items():
                known = self.positions.of(topic).get(number, 0)
                assert at >= known, "a commit went back: two members had the partition"
                seen = self.processed[topic, number]
                assert seen >= set(range(at)), "a position has unprocessed messages below it"
        frame = self.positions.change(
            self.now,
            {
                topic: PositionRows(0, ids[topic], np.array([*offsets.values()]))
                for topic, offsets in given.items()
            },
        )
        self.log += encode_frame(frame)
        self.positions.apply(frame)
        client.committed = dict(client.at)

    def rejoin(self, client: Client) -> None:
        self.clients.remove(client)
        self.join()

    def leave(self, client: Client) -> None:
        if self.group.is_member(client.id, client.token):
            self.commit(client)
        self.group.leave(client.id, client.token)
        self.clients.remove(client)

    def kill(self, client: Client) -> None:
        self.clients.remove(client)
        self.dead.append(client)

    def zombie(self, client: Client) -> None:
        """A paused client wakes in the middle of its work, before it asks the group anything."""
        for partition in sorted(client.at)[:1]:
            if client.at[partition] < self.logs[partition]:
                self.process(client, partition, client.at[partition])
        try:
            self.commit(client)
        except MemberFenced:
            assert not self.group.is_member(client.id, client.token)

    # -- what must hold ----------------------------------------------------------------------

    def check(self) -> None:
        self.group.check_invariants()
        held: dict[Partition, str] = {}
        for client in self.clients:
            if self.group.is_member(client.id, client.token):
                for partition in client.at:
                    topic = partition[0]
                    assert topic in client.member.topics, "not subscribed"
                    assert partition not in held, f"{partition} has two owners"
                    held[partition] = client.token

    def check_orders(self) -> None:
        """While a member has a partition it leaves no message out and gives none twice."""
        for numbers in self.orders.values():
            assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.now += self.random.randrange(1, 300)
            drawn = self.random.random()
            active = [c for c in self.clients if c.paused_until <= self.now]
            if drawn < 0.2:
                self.append()
            elif drawn < 0.3 or not self.clients:
                self.join()
            elif drawn < 0.32:
                self.grow()
            elif not active:
                continue
            elif drawn < 0.36:
                self.leave(self.random.choice(active))
            elif drawn < 0.40:
                self.kill(self.random.choice(active))
            elif drawn < 0.45:
                client = self.random.choice(active)
                client.paused_until = self.now + self.random.randrange(3 * SESSION_MS)
            else:
                client = self.random.choice(active)
                if client.paused_until and self.random.random() < 0.7:
                    self.zombie(client)
                client.paused_until = 0
                self.poll(client)
        self.settle_down()

    def settle_down(self) -> None:
        """No more faults: after some turns each partition has one owner and everything is read."""
        for client in self.clients:
            client.paused_until = 0
        self.born += 1
        self.now += 2 * SESSION_MS
        for client in self.clients:
            client.last_beat = self.now
        self.expire()
        topics = list(self.shapes)
        token = f"last-{self.born}"
        member = self.group.join(
            "last", token, topics, session_ms=SESSION_MS, strategy=self.group.strategy if
            self.group.members else self.strategy_name
        )  # fmt: skip
        self.clients.append(Client("last", token, member, last_beat=self.now))
        left = 40 + 4 * sum(self.logs.values())
        while left and not self.is_done():
            left -= 1
            for client in list(self.clients):
                self.now += 1
                self.poll(client)
        for client in self.clients:
            self.commit(client)
        for partition in self.partitions():
            wanted = set(range(self.logs[partition]))
            assert self.processed[partition] == wanted, f"{partition} lost messages"
        self.check()
        self.check_orders()
        again = Positions()
        for found in frames_in(self.log):
            assert found.frame is not None
            again.apply(found.frame)
        assert again == self.positions

    def is_done(self) -> bool:
        if not all(self.group.is_member(c.id, c.token) for c in self.clients):
            return False  # a member that the group has removed learns it at its next turn
        owned = {p for c in self.clients for p in c.at}
        return owned == set(self.partitions()) and all(
            c.at[p] == self.logs[p] for c in self.clients for p in c.at
        )


def pairs(owned: Owned) -> list[Partition]:
    return [(topic, int(number)) for topic, ids in owned.items() for number in ids]


def run_many(first: int, last: int) -> World:
    world = World(Random(0))
    for run in range(first, last):
        world = World(Random(seed_of_run(run)))
        world.run(world.random.randrange(5, 120))
    return world


@pytest.mark.parametrize("block", range(12))
def test_every_message_is_read_by_one_owner_at_a_time_and_no_other_commits(block: int) -> None:
    run_many(block * QUICK // 12, (block + 1) * QUICK // 12)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(10))
def test_the_same_holds_for_many_runs(block: int) -> None:
    runs = int(os.environ.get("GROUP_RUNS", SLOW))
    run_many(QUICK + block * runs // 10, QUICK + (block + 1) * runs // 10)


def test_the_runs_meet_members_that_come_back_from_the_dead() -> None:
    """The model would prove nothing if no zombie ever met the fence."""
    fenced = 0
    for run in range(12):
        world = World(Random(run))
        world.run(80)
        fenced += world.fenced
    assert fenced > 3
