"""What groups of consumers do, and the same work without a group."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import tubestore
from bench.groups.child import TOPIC
from bench.layouts.layout import Unavailable, fresh
from bench.workloads.cases import ROOT, Case, Measure, Runner, clock
from tubestore.groups.assignment import sticky
from tubestore.groups.membership import Membership, TopicShape

OUTPUT = "out"
IDLE_SECONDS = 10
#: Messages a second of the latency, so that it is not the time in a queue.
RATE = 1000
MEMBERS = 100
Do = Callable[[tubestore.MessageStoreManager, Case], int]


@contextmanager
def _filled(case: Case, messages: int) -> Iterator[Path]:
    """Make a store with a topic of so many messages, and an empty topic for output."""
    root = fresh(case.place / "groups")
    with tubestore.open(root) as store:
        topic = store.create_topic(TOPIC, partitions=case.partitions)
        store.create_topic(OUTPUT, partitions=case.partitions)
        for first in range(0, messages, case.batch):
            count = min(case.batch, messages - first)
            partitions = pa.array(np.arange(count) % case.partitions)
            topic.append_batch({"partition": partitions, "body": case.payload.column(count, first)})
    yield root
    shutil.rmtree(root)


def over_messages(do: Do) -> Callable[[Case], Any]:
    """Go through a topic of messages with a store that is open for writing."""

    @contextmanager
    def start(case: Case) -> Iterator[Runner]:
        def run(messages: int) -> Measure:
            with _filled(case, messages) as root, tubestore.open(root) as store:
                with clock() as times:
                    done = do(store, case)
                assert done == messages, (done, messages)
                return Measure.of(messages, -(-messages // case.limit), times)

        yield run

    return start


def _polled(
    store: tubestore.MessageStoreManager, case: Case, *, each: bool = False
) -> Iterator[tubestore.Polled]:
    """Poll, and commit each answer, or as a consumer does by itself: every five seconds."""
    with store.consumer("g", TOPIC, auto_commit=not each) as consumer:
        while len(polled := consumer.poll(case.limit)):
            yield polled
            if each:
                consumer.commit()


def poll_arrow(store: tubestore.MessageStoreManager, case: Case) -> int:
    """Poll tables of 1,000 messages."""
    return sum(polled.table.num_rows for polled in _polled(store, case))


def poll_and_commit(store: tubestore.MessageStoreManager, case: Case) -> int:
    """The same, and commit each."""
    return sum(polled.table.num_rows for polled in _polled(store, case, each=True))


def poll_messages(store: tubestore.MessageStoreManager, case: Case) -> int:
    """Poll, and go through the answers message by message."""
    return sum(1 for polled in _polled(store, case) for _ in polled)


def _pages(store: tubestore.MessageStoreManager, case: Case) -> Iterator[tubestore.Page]:
    topic = store[TOPIC]
    for partition in topic.partition_ids:
        offset: Any = "earliest"
        while len(page := topic.read(partition, offset, limit=case.limit)):
            yield page
            offset = page.next_offset


def read_arrow(store: tubestore.MessageStoreManager, case: Case) -> int:
    """Read the partitions one after the other, 1,000 messages a call."""
    return sum(page.table.num_rows for page in _pages(store, case))


def read_messages(store: tubestore.MessageStoreManager, case: Case) -> int:
    """The same, message by message."""
    return sum(1 for page in _pages(store, case) for _ in page)


def _output(table: pa.Table) -> dict[str, Any]:
    topics = pa.DictionaryArray.from_arrays(np.zeros(len(table), np.int32), pa.array([OUTPUT]))
    return {
        "topic": topics,
        "partition": table.column("partition"),
        "body": table.column("body"),
    }


def exactly_once(store: tubestore.MessageStoreManager, case: Case) -> int:
    """Poll, and append what came to another topic together with the positions."""
    count = 0
    with store.consumer("g", TOPIC, auto_commit=False) as consumer:
        while len(polled := consumer.poll(case.limit)):
            count += len(consumer.commit_with(_output(polled.table)))
    return count


def read_and_append(store: tubestore.MessageStoreManager, case: Case) -> int:
    """Poll without a group, and append what came; positions are not kept."""
    count = 0
    with store.consumer(None, TOPIC) as consumer:
        while len(polled := consumer.poll(case.limit)):
            data = _output(polled.table)
            count += len(store.append_batch(data, durability="page_cache"))
    return count


@contextmanager
def delays_here(case: Case) -> Iterator[Runner]:
    """From an append until a poll in the same process has the message."""

    def run(messages: int) -> Measure:
        with _filled(case, 0) as root, tubestore.open(root, durability="page_cache") as store:
            topic = store[TOPIC]

            def write() -> None:
                for number in range(messages):
                    time.sleep(1 / RATE)
                    topic.append(time.monotonic_ns().to_bytes(8, "big"), partition=number % 10)

            thread = threading.Thread(target=write)
            return _delays(store, messages, thread.start, thread.join)

    yield run


@contextmanager
def delays_there(case: Case) -> Iterator[Runner]:
    """The same of a poll in another process than the writer's."""

    def run(messages: int) -> Measure:
        with (
            _filled(case, 0) as root,
            subprocess.Popen(
                [sys.executable, "-m", "bench.groups.child", str(root), str(messages), str(RATE)],
                cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            ) as child,
        ):  # fmt: skip
            assert child.stdin is not None
            assert child.stdout is not None
            if child.stdout.readline() != "ready\n":
                raise Unavailable("the writer ended by itself")

            def go_on() -> None:
                assert child.stdin is not None
                child.stdin.write("\n")
                child.stdin.flush()

            with tubestore.open(root, mode="r") as store:
                return _delays(store, messages, go_on, go_on)

    yield run


def _delays(
    store: tubestore.MessageStoreManager,
    messages: int,
    begin: Callable[[], object],
    end: Callable[[], object],
) -> Measure:
    took: list[int] = []
    with store.consumer("g", TOPIC) as consumer:
        consumer.poll()
        with clock() as times:
            begin()
            while len(took) < messages:
                polled = consumer.poll(timeout=60)
                now = time.monotonic_ns()
                if not len(polled):
                    raise Unavailable("no message came for a minute")
                bodies = polled.table.column("body").to_pylist()
                took += [now - int.from_bytes(body[:8], "big") for body in bodies]
            end()
    ordered = np.sort(took) / 1000
    return Measure(
        messages, messages, times.wall, times.cpu,
        p50_us=float(ordered[len(ordered) // 2]),
        p99_us=float(ordered[int(len(ordered) * 0.99)]),
    )  # fmt: skip


@contextmanager
def rebalancing(case: Case) -> Iterator[Runner]:
    """A member leaves a group of 100 that share all partitions, and all of them are chosen anew."""

    def run(messages: int) -> Measure:
        group = Membership("g")
        for number in range(MEMBERS):
            group.join(str(number), f"t{number}", [TOPIC], session_ms=1000, strategy="sticky")
        group.see_topics({TOPIC: TopicShape(case.partitions)})
        group.settle(sticky)
        for member in group.members.values():
            group.take(member)
        with clock() as times:
            group.leave("0", "t0")
            group.settle(sticky)
            for member in group.members.values():
                group.take(member)
        assert sum(len(group.held(m).get(TOPIC, ())) for m in group.members.values())
        return Measure.of(case.partitions, 1, times)

    yield run


@contextmanager
def committing(case: Case) -> Iterator[Runner]:
    """One commit of a position in every partition of ten topics."""

    def run(messages: int) -> Measure:
        root = fresh(case.place / "groups")
        with tubestore.open(root) as store:
            names = [f"t{number}" for number in range(10)]
            for name in names:
                store.create_topic(name, partitions=case.partitions)
            positions = {(name, n): 0 for name in names for n in range(case.partitions)}
            with store.consumer("g", names, auto_commit=False) as consumer:
                consumer.poll()
                with clock() as times:
                    consumer.commit(positions)
        shutil.rmtree(root)
        return Measure.of(len(positions), 1, times)

    yield run


@contextmanager
def idling(case: Case) -> Iterator[Runner]:
    """A consumer of all partitions that waits: processor seconds in ten seconds."""

    def run(messages: int) -> Measure:
        seconds = IDLE_SECONDS if case.partitions > 1000 else 0.2
        with (
            _filled(case, messages) as root,
            tubestore.open(root) as store,
            store.consumer("g", TOPIC) as consumer,
        ):
            while len(consumer.poll()):
                pass
            before = time.process_time()
            consumer.poll(timeout=seconds)
            cpu = time.process_time() - before
        return Measure(case.partitions, 1, max(cpu, 1e-6), cpu)

    yield run
