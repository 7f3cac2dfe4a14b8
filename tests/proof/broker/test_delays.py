"""Delayed messages under load: many levels, restarts, and a clock that steps back and forth."""

from __future__ import annotations

import os
import random

import pytest

from rocketcompat import Message
from rocketcompat.store.default_message_store import DefaultMessageStore
from tests.rocketcompat.broker.conftest import CONFIG, broker_over, opened
from tubestore.clock import ManualClock
from tubestore.testing import MemoryVfs

LEVELS_MS = CONFIG.delay_levels_ms[:8]


class Load:
    """Messages that were sent with a delay, and those that came."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.clock = ManualClock()
        self.vfs = MemoryVfs(self.clock)
        #: When each message is due, and of which level it is.
        self.due: list[tuple[int, int]] = []
        self.came: list[int] = []
        #: The latest time so far: a clock that goes back makes nothing later.
        self.latest = self.clock.now_ms()

    def send(self, store: DefaultMessageStore) -> None:
        with broker_over(store, self.vfs, self.clock) as broker:
            broker.topics.create("orders", 1, exist_ok=True)
            for _ in range(self.chance.randint(1, 30)):
                level = self.chance.randint(1, len(LEVELS_MS))
                body = b"%d" % len(self.due)
                broker.send(Message("orders", body, delay_level=level), queue_id=0)
                self.due.append((self.clock.now_ms() + LEVELS_MS[level - 1], level))

    def deliver(self, store: DefaultMessageStore) -> None:
        """Deliver what is due, and check that nothing came early."""
        store.deliver_due()
        store.deliver_due()
        self.latest = max(self.latest, self.clock.now_ms())
        while len(self.came) < store.max_offset_in_queue("orders", 0):
            found = store.get_message("orders", 0, len(self.came))
            for message in found.messages:
                number = int(message.body)
                assert self.due[number][0] <= self.latest, f"{number} came early"
                self.came.append(number)


@pytest.mark.sample
def test_delayed_messages_come_once_in_order_and_never_early() -> None:
    seed = int(os.environ.get("BROKER_SEED") or random.randrange(1 << 32))
    for number in range(seed, seed + int(os.environ.get("BROKER_RUNS") or 3)):
        print("BROKER_SEED", number)
        load = Load(number)
        for _ in range(load.chance.randint(2, 4)):  # a close and an opening between them
            with opened(load.vfs, load.clock) as store:
                for _ in range(10):
                    load.send(store)
                    load.clock.advance(load.chance.choice([0, 100, 1_000, 10_000, 60_000]))
                    load.deliver(store)
        with opened(load.vfs, load.clock) as store:
            load.clock.advance(max(LEVELS_MS))
            load.deliver(store)
        assert sorted(load.came) == list(range(len(load.due))), "a message is missing or came twice"
        for level in range(1, len(LEVELS_MS) + 1):
            of_level = [n for n in load.came if load.due[n][1] == level]
            assert of_level == sorted(of_level), f"level {level} is out of order"


def test_a_clock_that_steps_back_delays_no_message_by_more_than_its_level(
    memory_vfs: MemoryVfs, clock: ManualClock
) -> None:
    with opened(memory_vfs, clock) as store:
        store.put_message(Message("orders", b"x", delay_level=3))
        clock.advance(-3_600_000)
        store.deliver_due()  # its time is too far away for its level: it is due
        store.deliver_due()
        assert store.max_offset_in_queue("orders", 0) == 1
