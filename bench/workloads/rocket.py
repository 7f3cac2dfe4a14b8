"""Reads, openings and rebuilds of the RocketMQ layer, and of RocketMQ over the same files.

RocketMQ works on a copy of the files: opening writes.
"""

from __future__ import annotations

import random
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import rocketcompat
from bench.layouts.layout import SingleLog, fresh
from bench.real import layouts as real
from bench.workloads.answers import Digest
from bench.workloads.cases import Case, Contestant, Measure, Runner, by_turns, child, clock
from bench.workloads.payload import SEED

TOPIC = "topic00000"
ASKED = 20_000
TOGETHER = 1000
#: As many as the driver looks up before it is timed (`RocketReads.java`).
_CHECKED_KEYS = 1000
PULL_ALL = {
    f"maxTransfer{what}OnMessageIn{where}": most
    for what, most in (("Bytes", 1 << 30), ("Count", 1 << 20))
    for where in ("Memory", "Disk")
}
_LAYOUTS = frozenset({"consume_queue", "index"})


def _store(case: Case) -> Any:
    layout = case.opened(SingleLog)
    assert isinstance(layout, SingleLog)
    return layout.store


def scan(*, verify: bool = False) -> Callable[[Case], Any]:
    """Every record of the log with all its fields, as Arrow."""

    @contextmanager
    def start(case: Case) -> Iterator[Runner]:
        store = _store(case)

        def run(messages: int) -> Measure:
            with clock() as times:
                sizes = [batch.num_rows for batch in store.scan(verify=verify)]
            return Measure.of(sum(sizes), len(sizes), times)

        yield run

    return start


@contextmanager
def queues(case: Case) -> Iterator[Runner]:
    """One queue after the other to its end, 1,000 messages a call."""
    store, turn = _store(case), by_turns(range(case.partitions))

    def run(messages: int) -> Measure:
        count = calls = 0
        with clock() as times:
            while count < messages:
                queue, offset = next(turn), 0
                end = store.max_offset_in_queue(TOPIC, queue)
                while offset < end:
                    page = store.read_queue(TOPIC, queue, offset, case.limit)
                    offset = page.next_offset
                    count += page.batch.num_rows
                    calls += 1
        return Measure.of(count, calls, times)

    yield run


@contextmanager
def many_queues(case: Case) -> Iterator[Runner]:
    """The same, a hundred queues a call."""
    store, turn = _store(case), by_turns(range(case.partitions))

    def run(messages: int) -> Measure:
        count = calls = 0
        with clock() as times:
            while count < messages:
                wanted = {(TOPIC, queue): 0 for queue in islice(turn, min(100, case.partitions))}
                while wanted:
                    page = store.read_queues(wanted, case.limit)
                    count += page.batch.num_rows
                    calls += 1
                    wanted = {
                        key: offset
                        for key, offset in page.next_offsets.items()
                        if offset < store.max_offset_in_queue(*key)
                    }
        return Measure.of(count, calls, times)

    yield run


def _keyed(case: Case) -> Path:
    """A store of as many messages as the case has, with a key each."""
    root = case.place / "keyed"
    if root.exists():
        return root
    config = rocketcompat.MessageStoreConfig(layouts=_LAYOUTS)
    with rocketcompat.open(fresh(root), mode="w", config=config) as store:
        for first, table in _numbered(case):
            numbers = np.arange(first, first + table.num_rows)
            keys = pa.array([f"k{n}" for n in numbers.tolist()])
            columns = {"topic": pa.array([TOPIC] * table.num_rows).dictionary_encode(),
                       "queue_id": table.column("partition"), "body": table.column("body"),
                       "keys": keys}  # fmt: skip
            store.put_columns(pa.table(columns))
    return root


def _numbered(case: Case) -> Iterator[tuple[int, Any]]:
    """Return the tables of that store, each with the number of its first message."""
    return zip(range(0, case.messages, case.batch), cycle(case.tables()), strict=False)


def _keys_digest(case: Case) -> Digest:
    """Return what the first keys of that store find: a message each."""
    found = Digest()
    for first, table in _numbered(case):
        if first >= _CHECKED_KEYS:
            break
        for number, body in enumerate(table.column("body").to_pylist(), first):
            if number < min(_CHECKED_KEYS, case.messages):
                found.add(f"k{number}", body)
    return found


@contextmanager
def keys_one_by_one(case: Case) -> Iterator[Runner]:
    """A random key a call, found once."""
    config = rocketcompat.MessageStoreConfig(layouts=_LAYOUTS)
    with rocketcompat.open(_keyed(case), config=config) as store:
        asked = random.Random(SEED)

        def run(messages: int) -> Measure:
            keys = [f"k{asked.randrange(case.messages)}" for _ in range(min(ASKED, messages))]
            took = []
            with clock() as times:
                for key in keys:
                    begin = time.perf_counter()
                    found = store.query_message(TOPIC, key)
                    took.append(time.perf_counter() - begin)
                    assert len(found) == 1
            return _with_percentiles(Measure.of(len(keys), len(keys), times), took)

        yield run


@contextmanager
def keys_together(case: Case) -> Iterator[Runner]:
    """A thousand random keys a call, with their messages as Arrow."""
    config = rocketcompat.MessageStoreConfig(layouts=_LAYOUTS)
    with rocketcompat.open(_keyed(case), config=config) as store:
        asked = random.Random(SEED)

        def run(messages: int) -> Measure:
            count = min(TOGETHER, case.messages)
            calls = max(1, min(ASKED, messages) // count)
            many = [
                [f"k{n}" for n in asked.sample(range(case.messages), count)] for _ in range(calls)
            ]
            with clock() as times:
                for keys in many:
                    assert store.query_messages(TOPIC, keys).num_rows == count
            return Measure.of(calls * count, calls, times)

        yield run


def _with_percentiles(measure: Measure, took: list[float]) -> Measure:
    ordered = np.sort(took) * 1e6
    return replace(
        measure,
        p50_us=float(ordered[len(ordered) // 2]),
        p99_us=float(ordered[int(len(ordered) * 0.99)]),
    )


def real_reads(
    version: str,
    command: str,
    *operands: Any,
    keyed: bool = False,
    settings: Mapping[str, Any] = PULL_ALL,
) -> Callable[[Case], Any]:
    """RocketMQ's `command`; an operand may be a function of the case."""

    @contextmanager
    def start(case: Case) -> Iterator[Runner]:
        driver = real.driver_of("RocketDriver", version)
        root = case.place / f"real-{command}-{version}"
        real.copied(_keyed(case) if keyed else case.stored(SingleLog), root)
        expected = _keys_digest(case) if keyed else case.digest()

        def run(messages: int) -> Measure:
            values = [one(case) if callable(one) else one for one in operands]
            row = driver.read_bench(command, root, *values, settings=settings)
            expected.compare(row)
            return Measure(
                row["messages"], row["messages"], row["seconds"], row["cpuSeconds"],
                p50_us=row.get("p50", 0.0), p99_us=row.get("p99", 0.0),
            )  # fmt: skip

        yield run
        shutil.rmtree(root)

    return start


def _killed(case: Case) -> Path:
    """A store of a writer that was killed when everything was dispatched."""
    root = case.place / "killed"
    if not root.exists():
        child("rocket-fill", root, case.messages, case.partitions, expect=-signal.SIGKILL)
    return root


@contextmanager
def opening(case: Case) -> Iterator[Runner]:
    """Open to write and verify, in a process of its own, imports not counted."""
    killed = _killed(case)

    def run(messages: int) -> Measure:
        root = case.place / "opened"
        real.copied(killed, root)
        found = child("rocket-open", root, 0, 0, expect=-signal.SIGKILL)
        shutil.rmtree(root)
        return Measure(
            1, 1, found["seconds"], found["cpu_seconds"], memory_mb=found["anonymous_kb"] >> 10
        )

    yield run


def real_opening(version: str) -> Callable[[Case], Any]:
    """Load and start, class loading included; from a copy of the same files."""

    @contextmanager
    def start(case: Case) -> Iterator[Runner]:
        driver = real.driver_of("RocketDriver", version)
        killed = _killed(case)

        def run(messages: int) -> Measure:
            root = case.place / "opened"
            real.copied(killed, root)
            row = driver.open_bench(root)
            shutil.rmtree(root)
            return Measure(
                1, 1, row["seconds"], row["cpuSeconds"], memory_mb=row["residentKb"] >> 10
            )

        yield run

    return start


def _derived(root: Path) -> list[Path]:
    return [root / name for name in ("consumequeue", "index", "checkpoint")]


@contextmanager
def rebuilding(case: Case) -> Iterator[Runner]:
    """Queues and index from the log alone, as `rocketcompat rebuild` does it."""
    from rocketcompat.inspect.directory import StoreDirectory
    from rocketcompat.repair.rebuild import build
    from tubestore.clock import SystemClock
    from tubestore.core.vfs import OsVfs

    root = _keyed(case)

    def run(messages: int) -> Measure:
        work = case.place / "rebuilt"
        with clock() as times:
            build(
                StoreDirectory(root, vfs=OsVfs()), ("consumequeue", "index"), clock=SystemClock(),
                watch=lambda done, of: None, work=str(work),
            )  # fmt: skip
        shutil.rmtree(work)
        return Measure.of(case.messages, 1, times)

    yield run


def real_rebuilding(version: str) -> Callable[[Case], Any]:
    """Start on the log alone, until everything is dispatched; class loading included."""

    @contextmanager
    def start(case: Case) -> Iterator[Runner]:
        driver = real.driver_of("RocketDriver", version)
        root = case.place / f"real-rebuild-{version}"
        real.copied(_keyed(case), root)

        def run(messages: int) -> Measure:
            for path in _derived(root):
                shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
            row = driver.rebuild_bench(root)
            return Measure(case.messages, 1, row["seconds"], row["cpuSeconds"])

        yield run
        shutil.rmtree(root)

    return start


@contextmanager
def sync_batches(case: Case) -> Iterator[Runner]:
    """Batches on stable storage, one after the other."""
    tables = case.tables()

    def run(messages: int) -> Measure:
        layout = SingleLog(
            fresh(case.place / "sync"), topics=1, partitions=case.partitions, durability="fsync"
        )
        calls = max(1, messages // case.batch)
        try:
            layout.append_batch(tables[0])  # makes the files
            with clock() as times:
                for table in islice(cycle(tables), calls):
                    layout.append_batch(table)
        finally:
            layout.close()
        return Measure.of(calls * case.batch, calls, times)

    yield run


def one_topic(make: Any) -> Callable[[Case], Any]:
    """The same rows, all of one topic × 10 queues."""
    from bench.workloads.cases import appending

    @contextmanager
    def start(case: Case) -> Iterator[Runner]:
        place = case.place / "one"
        with appending(make, batches=True)(
            replace(case, topics=1, partitions=10, place=place)
        ) as runner:
            yield runner

    return start


def both(make: Callable[[str], Callable[[Case], Any]]) -> tuple[Contestant, ...]:
    """Both versions of RocketMQ."""
    return tuple(Contestant(f"RocketMQ {v}", "real", make(v)) for v in real.ROCKETMQ)
