"""Consumers that join, leave, die, fail and pause at random, against a plain model.

Held in each run: every message is consumed at least once; a queue is consumed by one member at a
time; an orderly queue in order; only the member that has a queue commits for it, and never beyond
what was consumed. `BROKER_SEED` and `BROKER_RUNS` set the seed and the number of runs.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence

import pytest

from rocketcompat import Message
from rocketcompat.broker.broker import Broker
from rocketcompat.broker.members import EXPIRED_MS
from rocketcompat.broker.push import ConsumeContext, ConsumeStatus, PushConsumer, PushOptions
from rocketcompat.messages import MessageRecord
from tests.rocketcompat.broker.conftest import broker_over, opened
from tubestore.clock import ManualClock
from tubestore.testing import MemoryVfs

QUEUES = 4
FAILED = ConsumeStatus.RECONSUME_LATER


class Run:
    """One random run."""

    def __init__(self, broker: Broker, clock: ManualClock, seed: int) -> None:
        self.broker, self.clock, self.chance = broker, clock, random.Random(seed)
        self.orderly = seed % 2 == 1
        self.alive: list[PushConsumer] = []
        self.names = 0
        self.sent: list[bytes] = []
        self.consumed: set[bytes] = set()
        #: Queue offsets that were consumed without a failure, by queue.
        self.done: dict[int, set[int]] = {n: set() for n in range(QUEUES)}
        self.last: dict[tuple[str, int], int] = {}
        self.trouble = True
        broker.topics.create("orders", QUEUES)
        self._find_commits()

    def _find_commits(self) -> None:
        """Check each commit when it is made."""
        commit = self.broker.commit_offset

        def checked(group: str, topic: str, queue_id: int, offset: int) -> None:
            if topic == "orders":
                owners = [
                    c for c in self.alive
                    for q, held in c._rebalance.queues.items()
                    if (q.topic, q.queue_id) == (topic, queue_id)
                    and not held.dropped and c._rebalance._owns(q)
                ]  # fmt: skip
                assert len(owners) == 1, f"a commit with {len(owners)} owners"
                begin = self.broker.offsets.find(group, topic, queue_id) or 0
                missing = {*range(begin, offset)} - self.done[queue_id]
                assert not missing, f"queue {queue_id}: {missing} were not consumed"
            commit(group, topic, queue_id, offset)

        self.broker.commit_offset = checked  # type: ignore[method-assign]

    def join(self) -> None:
        self.names += 1
        name = f"client-{self.chance.randrange(99):02}-{self.names}"

        def listen(messages: Sequence[MessageRecord], context: ConsumeContext) -> ConsumeStatus:
            return self.listen(name, messages, context)

        options = PushOptions(
            consume_from_where="CONSUME_FROM_FIRST_OFFSET",
            pull_batch_size=self.chance.choice([1, 3, 32]),
            consume_message_batch_max_size=self.chance.choice([1, 2, 5]),
        )
        self.alive.append(
            PushConsumer(
                self.broker, "g", {"orders": "*"}, listen, orderly=self.orderly, client_id=name,
                options=options,
            )
        )  # fmt: skip

    def listen(
        self, name: str, messages: Sequence[MessageRecord], context: ConsumeContext
    ) -> ConsumeStatus:
        if self.trouble and self.chance.random() < 0.1:
            if not self.orderly:  # it is sent back
                self.done[context.queue.queue_id] |= {m.queue_offset for m in messages}
            if self.chance.random() < 0.5:
                raise ValueError("the listener failed")
            return self._failed(context)
        for message in messages:
            self.consumed.add(message.body)
            if context.queue.topic == "orders":
                number = context.queue.queue_id
                if self.orderly:
                    before = self.last.get((name, number), -1)
                    begin = self.broker.offsets.find("g", "orders", number) or 0
                    assert message.queue_offset in (before + 1, begin), "out of order"
                    self.last[name, number] = message.queue_offset
                self.done[number].add(message.queue_offset)
        return ConsumeStatus.SUCCESS if self.orderly else ConsumeStatus.CONSUME_SUCCESS

    def _failed(self, context: ConsumeContext) -> ConsumeStatus:
        return ConsumeStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT if self.orderly else FAILED

    def act(self) -> None:
        """Do one thing at random."""
        kind = self.chance.choice(
            ["send"] * 4 + ["step"] * 4 + ["wait"] * 2 + ["join", "leave", "kill", "pause"]
        )
        consumer = self.chance.choice(self.alive) if self.alive else None
        if kind == "send":
            for _ in range(self.chance.randint(1, 6)):
                body = b"%d" % len(self.sent)
                self.broker.send(Message("orders", body), queue_id=self.chance.randrange(QUEUES))
                self.sent.append(body)
        elif kind == "join" and len(self.alive) < 5:
            self.join()
        elif consumer is None or kind in ("step", "wait"):
            self.clock.advance(self.chance.choice([0, 50, 1_000, 5_000, 20_000]))
            self.step(self.chance.randint(0, len(self.alive)))
        elif kind == "leave":
            self.alive.remove(consumer)
            consumer.close()
        elif kind == "kill":  # no more steps and no more heartbeats
            self.alive.remove(consumer)
            for held in consumer._rebalance.queues.values():
                held.drop()
        elif kind == "pause":
            consumer.pause()
            self.clock.advance(1_000)
            self.step(1)
            consumer.resume()

    def step(self, members: int) -> None:
        self.broker.step()
        for consumer in self.chance.sample(self.alive, members):
            consumer.step()

    def end(self) -> None:
        """Let everything come to its end without further trouble."""
        self.trouble = False
        if not self.alive:
            self.join()
        for _ in range(60):
            self.clock.advance(EXPIRED_MS // 12)
            self.step(len(self.alive))
            self.step(len(self.alive))
        lost = {*self.sent} - self.consumed
        assert not lost, f"{len(lost)} of {len(self.sent)} messages were never consumed"
        owners = [q.queue_id for c in self.alive for q in c.queues if q.topic == "orders"]
        assert sorted(owners) == list(range(QUEUES))
        for number in range(QUEUES):
            end = self.broker.store.max_offset_in_queue("orders", number)
            assert (self.broker.offsets.find("g", "orders", number) or 0) == end
        for consumer in self.alive:
            consumer.close()


@pytest.mark.sample
def test_random_groups_lose_no_message_and_commit_only_what_they_own(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("CRITICAL")
    seed = int(os.environ.get("BROKER_SEED") or random.randrange(1 << 32))
    for number in range(seed, seed + int(os.environ.get("BROKER_RUNS") or 6)):
        print("BROKER_SEED", number)
        clock = ManualClock()
        vfs = MemoryVfs(clock)
        with opened(vfs, clock) as store, broker_over(store, vfs, clock) as broker:
            run = Run(broker, clock, number)
            for _ in range(60):
                run.act()
            run.end()
