"""How a layout does the rest: find, follow, open, keep idle topics, remove, and send what it has.

Each compares answers before anything is timed, as `cases.py` does.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import shutil
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from bench.layouts.layout import Layout, Unavailable, fresh
from bench.real.scratch import copy_tree
from bench.workloads.cases import FIRST_TIME, ITEMS, Case, Measure, Runner, clock
from bench.workloads.payload import SEED

#: Look-ups that are compared before the others are timed.
COMPARED = 20
_BATCH_MS = 1000
#: What is left by a removal, of what was there.
KEPT = 0.5
SMALL_SEGMENTS = 4 << 20


def _differs(what: str) -> Unavailable:
    return Unavailable(f"it gives back other messages than it took: {what}")


def by_time(make: Any) -> Callable[[Case], Any]:
    """Find the first message of a partition at a random time."""

    @contextmanager
    def start(case: Case) -> Iterator[Runner]:
        case.tags = True
        layout: Any = case.opened(make)
        tables, batches = case.tables(), -(-case.messages // case.batch)
        drawn = random.Random(SEED)

        def question() -> tuple[int, int]:
            return drawn.randrange(case.partitions), drawn.randrange(batches)

        for _ in range(COMPARED):
            partition, batch = question()
            at = layout.offset_at(0, partition, FIRST_TIME + _BATCH_MS * batch)
            rows, _ = layout.read(0, partition, at, 1, lean=True)
            table = tables[batch % len(tables)]
            row = int(np.flatnonzero(table.column("partition").to_numpy() == partition)[0])
            if layout.bodies(rows)[:1] != [table.column("body")[row].as_py()]:
                raise _differs(f"partition {partition} at the time of batch {batch}")

        def run(messages: int) -> Measure:
            asked = [question() for _ in range(messages)]
            find = case.watch(layout.offset_at)
            with clock() as times:
                for partition, batch in asked:
                    find(0, partition, FIRST_TIME + _BATCH_MS * batch)
            case.observe(case.stored(make))
            return Measure.of(messages, messages, times)

        yield run

    return start


def by_key(make: Any) -> Callable[[Case], Any]:
    """Find the message of a random key, one of as many keys as there are messages."""

    @contextmanager
    def start(case: Case) -> Iterator[Runner]:
        case.tags = True
        layout: Any = case.opened(make)
        tables, drawn = case.tables(), random.Random(SEED)
        total = -(-case.messages // case.batch) * case.batch
        for _ in range(COMPARED):
            number = drawn.randrange(total)
            table = tables[number // case.batch % len(tables)]
            expected = table.column("body")[number % case.batch].as_py()
            if layout.find_key(0, f"k{number}") != [expected]:
                raise _differs(f"key k{number}")

        def run(messages: int) -> Measure:
            keys = [f"k{drawn.randrange(total)}" for _ in range(messages)]
            find = case.watch(layout.find_key)
            with clock() as times:
                for key in keys:
                    find(0, key)
            case.observe(case.stored(make))
            return Measure.of(messages, messages, times)

        yield run

    return start


def filtering(item: str, make: Any) -> Callable[[Case], Any]:
    """Find all messages with a filter item; the rate counts what is searched."""

    @contextmanager
    def start(case: Case) -> Iterator[Runner]:
        case.tags = True
        layout: Any = case.opened(make)
        expected: list[bytes] = []
        total = 0
        for table in case.filling():
            kept = table.filter(pc.equal(table.column("item"), item))
            expected += kept.column("body").to_pylist()
            total += table.num_rows
        found = [
            body for rows in layout.filtered(0, item) for body in rows.column("body").to_pylist()
        ]
        if sorted(found) != sorted(expected):
            raise _differs(f"{len(found)} with item {item!r} for {len(expected)}")

        def run(messages: int) -> Measure:
            with clock() as times:
                sizes = [len(rows) for rows in layout.filtered(0, item)]
            case.observe(case.stored(make))
            return Measure.of(total, max(1, len(sizes)), times)

        yield run

    return start


#: By filter item; other processes get them by their names.
FILTERS = {item: partial(filtering, item) for item in ITEMS}


def following(make: Any) -> Callable[[Case], Any]:
    """Read every partition of the first topic while another thread appends batches to it."""

    @contextmanager
    def start(case: Case) -> Iterator[Runner]:
        tables = case.tables()

        def run(messages: int) -> Measure:
            root = fresh(case.place / make.name)
            layout: Any = case.make(make, root)
            calls = max(1, messages // case.batch)
            failed: list[BaseException] = []

            def write() -> None:
                try:
                    for table in islice(cycle(tables), calls):
                        layout.append_batch(table)
                        layout.flush()
                except BaseException as error:
                    failed.append(error)

            writer = threading.Thread(target=write)
            follow = case.watch(layout.follow)
            positions: list[Any] = [None] * case.partitions
            seen = reads = 0
            digest = 0
            try:
                with clock() as times:
                    writer.start()
                    while seen < calls * case.batch and not failed:
                        for partition in range(case.partitions):
                            rows, positions[partition] = follow(
                                0, partition, positions[partition], case.limit
                            )
                            seen += len(rows)
                            reads += 1
                    writer.join()
                if failed:
                    raise failed[0]
                for partition in range(case.partitions):
                    digest ^= _digest_of(layout, partition)
                if digest != _digest_of_tables(islice(cycle(tables), calls)):
                    raise _differs(f"{seen} followed")
                case.observe(root)
                return Measure.of(seen, reads, times)
            finally:
                writer.join()
                layout.close()
                shutil.rmtree(root)

        yield run

    return start


def _digest_of(layout: Any, partition: int) -> int:
    """Return a digest of a partition's bodies, whatever their order."""
    found, position = 0, None
    while True:
        rows, position = layout.read(0, partition, position, 1000, lean=True)
        for body in layout.bodies(rows):
            found = (found + xxhash.xxh3_64_intdigest(body)) & (1 << 64) - 1
        if position is None:
            return found


def _digest_of_tables(tables: Any) -> int:
    totals: dict[int, int] = {}
    for table in tables:
        bodies = table.column("body").to_pylist()
        for partition, body in zip(table.column("partition").to_pylist(), bodies, strict=True):
            value = totals.get(partition, 0) + xxhash.xxh3_64_intdigest(body)
            totals[partition] = value & (1 << 64) - 1
    found = 0
    for value in totals.values():
        found ^= value
    return found


def opening(make: Any) -> Callable[[Case], Any]:
    """Open what was closed and read its first message."""

    @contextmanager
    def start(case: Case) -> Iterator[Runner]:
        root = case.stored(make)
        _compare(case, make, root)
        yield _opener(case, make, lambda: root)

    return start


def recovering(make: Any) -> Callable[[Case], Any]:
    """Open what a killed writer has left, a copy each time, and read its first message."""

    @contextmanager
    def start(case: Case) -> Iterator[Runner]:
        killed = fresh(case.place / "killed")
        _fill_and_kill(case, make, killed)
        copy = case.place / "copy"

        def copied() -> Path:
            shutil.rmtree(copy, ignore_errors=True)
            copy_tree(killed, copy)
            return copy

        _compare(case, make, copied())
        yield _opener(case, make, copied)

    return start


def _compare(case: Case, make: Any, root: Path) -> None:
    layout = case.make(make, root)
    try:
        case.answers().compare(layout)
    finally:
        layout.close()


def _opener(case: Case, make: Any, root: Callable[[], Path]) -> Runner:
    def run(messages: int) -> Measure:
        where = root()
        layout: Layout | None = None
        try:
            with clock() as times:
                layout = case.make(make, where)
                rows, _ = layout.read(0, 0, None, 1, lean=True)
            if not len(rows):
                raise _differs("none after an opening")
            case.observe(where)
            return Measure.of(1, 1, times)
        finally:
            if layout is not None:
                layout.close()

    return run


def _fill_and_kill(case: Case, make: Any, root: Path) -> None:
    """Fill a store in a process of its own, which is killed when everything is readable."""
    sizes = {
        name: getattr(case, name)
        for name in ("payload", "place", "messages", "topics", "partitions", "batch", "skew")
    }
    process = multiprocessing.get_context("spawn").Process(
        target=_fill_until_killed, args=(sizes, make, root)
    )
    process.start()
    process.join()
    if process.exitcode != -signal.SIGKILL:
        raise Unavailable(f"the process that fills the store ended with {process.exitcode}")


def _fill_until_killed(sizes: dict[str, Any], make: Any, root: Path) -> None:
    case = Case(**sizes)
    layout = case.make(make, root, "page_cache")
    for table in case.filling():
        layout.append_batch(table)
    layout.flush()
    os.kill(os.getpid(), signal.SIGKILL)


def idling(make: Any) -> Callable[[Case], Any]:
    """Append one message to every partition of every topic; then memory and files are counted."""

    @contextmanager
    def start(case: Case) -> Iterator[Runner]:
        places = np.arange(case.topics * case.partitions)
        topics, partitions = divmod(places, case.partitions)
        table = pa.table(
            {
                "topic": pa.array(topics.astype(np.int32)),
                "partition": pa.array(partitions.astype(np.int32)),
                "body": case.payload.column(len(places)),
            }
        )
        tables = [table.slice(at, case.batch) for at in range(0, len(places), case.batch)]

        def run(messages: int) -> Measure:
            root = fresh(case.place / make.name)
            layout = case.make(make, root)
            try:
                with clock() as times:
                    for one in tables:
                        layout.append_batch(one)
                    layout.flush()
                case.observe(root)
                place = random.Random(SEED).choice(places.tolist())
                rows, _ = layout.read(*divmod(place, case.partitions), None, 2, lean=True)
                if layout.bodies(rows) != [table.column("body")[place].as_py()]:
                    raise _differs(f"place {place}")
                return Measure.of(len(places), len(tables), times)
            finally:
                layout.close()
                shutil.rmtree(root)

        yield run

    return start


def retaining(make: Any) -> Callable[[Case], Any]:
    """Remove the older half of a store of small files, and then read from the first message on."""
    small = type(make.__name__, (make,), {"segment_bytes": SMALL_SEGMENTS})

    @contextmanager
    def start(case: Case) -> Iterator[Runner]:
        def run(messages: int) -> Measure:
            root = fresh(case.place / make.name)
            layout: Any = case.make(small, root)
            try:
                for table in islice(cycle(case.tables()), -(-messages // case.batch)):
                    layout.append_batch(table)
                layout.flush()
                taken = -(-messages // case.batch) * case.batch
                kept = int(taken * case.payload.body_size * KEPT)
                with clock() as times:
                    layout.retain(kept)
                case.observe(root)
                _compare_kept(case, layout, taken)
                return Measure.of(taken, 1, times)
            finally:
                layout.close()
                shutil.rmtree(root)

        yield run

    return start


def _compare_kept(case: Case, layout: Any, taken: int) -> None:
    """Compare the first partition with the end of what was appended; something has to be gone."""
    expected: list[bytes] = []
    for table in islice(cycle(case.tables()), taken // case.batch):
        rows = (table.column("topic").to_numpy() == 0) & (table.column("partition").to_numpy() == 0)
        expected += table.column("body").filter(pa.array(rows)).to_pylist()
    found: list[bytes] = []
    position = None
    while True:
        rows, position = layout.read(0, 0, position, case.limit, lean=True)
        found += layout.bodies(rows)
        if position is None:
            break
    if not found or found != expected[-len(found) :]:
        raise _differs("after a removal")
    if taken * case.payload.body_size > 8 * SMALL_SEGMENTS and len(found) > 0.9 * len(expected):
        raise Unavailable("nothing was removed")


def transferring(make: Any) -> Callable[[Case], Any]:
    """Send everything to a socket, a body's size a call, while another thread takes it."""

    @contextmanager
    def start(case: Case) -> Iterator[Runner]:
        root = fresh(case.place / make.name)
        layout: Any = case.make(make, root)
        expected = xxhash.xxh3_64()
        try:
            for topic, partition, body in case.rows(case.messages):
                layout.append(topic, partition, body)
                expected.update(body)
            layout.flush()
            size = case.payload.body_size
            if _received(layout, size)[1] != expected.digest():
                raise _differs("what it sends")

            def run(messages: int) -> Measure:
                with clock() as times:
                    sent, _ = _received(layout, size, compare=False)
                case.observe(root)
                return Measure.of(sent // size, sent // size, times)

            yield run
        finally:
            layout.close()
            shutil.rmtree(root)

    return start


def _received(layout: Any, block: int, *, compare: bool = True) -> tuple[int, bytes]:
    """Let a layout send everything; return how much came, and its digest if that is compared."""
    here, there = socket.socketpair()
    digest = xxhash.xxh3_64()
    total = 0

    def take() -> None:
        nonlocal total
        buffer = bytearray(1 << 20)
        while count := there.recv_into(buffer):
            total += count
            if compare:
                digest.update(memoryview(buffer)[:count])

    taker = threading.Thread(target=take)
    taker.start()
    try:
        layout.transfer(here.fileno(), block)
    finally:
        here.close()
        taker.join()
        there.close()
    return total, digest.digest()
