"""A broker's pulls, and RocketMQ's `getMessage` beside them.

RocketMQ has no network and no broker here either: its store's arrival listener wakes a thread that
calls `getMessage` again, as its hold service does.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

import rocketcompat
from bench.layouts.layout import SingleLog, fresh
from bench.real import layouts as real
from bench.workloads.cases import Case, Measure, Runner, by_turns, clock
from bench.workloads.rocket import TOPIC
from rocketcompat import Message, MessageStoreConfig
from rocketcompat.broker.broker import Broker
from rocketcompat.broker.pulling import PullRequest, Subscription

RATE = 1000
_WANTED = Subscription(TOPIC)
_LAYOUTS = frozenset({"consume_queue", "index"})


@contextmanager
def pulling(case: Case) -> Iterator[Runner]:
    """One queue after the other to its end, as many messages a pull as RocketMQ gives: 32."""
    layout = case.opened(SingleLog)
    assert isinstance(layout, SingleLog)
    turn = by_turns(range(case.partitions))
    with Broker(layout.store, background=False) as broker:
        broker.topics.create(TOPIC, case.partitions, exist_ok=True)

        def run(messages: int) -> Measure:
            count = calls = 0
            with clock() as times:
                while count < messages:
                    queue, offset, more = next(turn), 0, True
                    while more:
                        found = broker.pull(PullRequest("g", TOPIC, queue, offset, 32, _WANTED))
                        offset = found.next_begin_offset
                        count += len(found.messages)
                        calls += 1
                        more = offset < found.max_offset
            return Measure.of(count, calls, times)

        yield run


@contextmanager
def delays(case: Case) -> Iterator[Runner]:
    """From a put until a held pull has the message."""

    def run(messages: int) -> Measure:
        root = fresh(case.place / "broker")
        config = MessageStoreConfig(layouts=_LAYOUTS)
        with rocketcompat.open(root, "w", config) as store, Broker(store) as broker:
            broker.topics.create(TOPIC, 1)

            def write() -> None:
                for _ in range(messages):
                    time.sleep(1 / RATE)
                    store.put_message(Message(TOPIC, time.monotonic_ns().to_bytes(8, "big")))

            thread = threading.Thread(target=write)
            took: list[int] = []
            offset = 0
            with clock() as times:
                thread.start()
                while len(took) < messages:
                    asked = PullRequest("g", TOPIC, 0, offset, 32, _WANTED, suspend_ms=15_000)
                    found = broker.pull(asked)
                    now = time.monotonic_ns()
                    offset = found.next_begin_offset
                    took += [now - int.from_bytes(m.body, "big") for m in found.messages]
                thread.join()
        shutil.rmtree(root)
        ordered = np.sort(took) / 1000
        return Measure(
            messages, messages, times.wall, times.cpu,
            p50_us=float(ordered[len(ordered) // 2]),
            p99_us=float(ordered[int(len(ordered) * 0.99)]),
        )  # fmt: skip

    yield run


def real_delays(version: str) -> Callable[[Case], Any]:
    """The same of RocketMQ's store."""

    @contextmanager
    def start(case: Case) -> Iterator[Runner]:
        driver = real.driver_of("RocketDriver", version)

        def run(messages: int) -> Measure:
            root = fresh(case.place / f"real-delay-{version}")
            row = driver.read_bench("delay", root, messages, RATE)
            shutil.rmtree(root)
            return Measure(
                row["messages"], row["messages"], row["seconds"], row["cpuSeconds"],
                p50_us=row["p50"], p99_us=row["p99"],
            )  # fmt: skip

        yield run

    return start
