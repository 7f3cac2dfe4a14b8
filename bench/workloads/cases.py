"""How a layout does the work of a workload: append, read, scan, sync, open after a kill.

A `Case` is one workload at one size in one directory. A contestant is started once for a case
(that builds what it reads) and then run several times; only the work itself is on the clock.
"""

from __future__ import annotations

import gc
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import cycle, islice
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import pyarrow as pa

from bench.layouts.layout import Durability, Layout, Unavailable, fresh
from bench.workloads.answers import Answers, Digest
from bench.workloads.payload import SEED, Payload, Skew, zipf

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

ROOT = Path(__file__).parents[2]
#: Places that are drawn for a run; then they repeat.
_DRAWN = 1 << 16


@dataclass(frozen=True)
class Measure:
    """One run: messages, in how many calls, seconds, seconds of processor time (0: not known)."""

    messages: int
    calls: int
    seconds: float
    cpu_seconds: float = 0.0
    #: What single calls took, and anonymous memory of a process of its own; 0: not measured.
    p50_us: float = 0.0
    p99_us: float = 0.0
    memory_mb: int = 0
    #: Of that process when it was done.
    descriptors: int = 0
    #: What single calls took, as an encoded HDR histogram.
    hdr: str = ""

    @classmethod
    def of(cls, messages: int, calls: int, times: Times) -> Measure:
        """Return the measure of a block that was on the clock."""
        return cls(messages, calls, times.wall, times.cpu)


Runner = Callable[[int], Measure]
Make = Callable[..., Layout]
Role = Literal["ours", "limit", "peer", "real", "user"]


@dataclass(frozen=True)
class Contestant:
    """A way to do the work of a case; `start` gives a runner that takes a message count."""

    name: str
    role: Role
    start: Callable[[Case], AbstractContextManager[Runner]]


#: The time of the first tagged batch, ms; each further one is a second later.
FIRST_TIME = 1_700_000_000_000
#: Filter items, each with the share of the messages that have it.
ITEMS = {"one": 100, "ten": 10}


def tagged(table: Any, number: int) -> Any:
    """Return the `number`-th batch with `key` ("k" and the message's number), `time_ms`, `item`."""
    size = table.num_rows
    keys = [f"k{n}" for n in range(number * size, (number + 1) * size)]
    items = np.full(size, "rest")
    for first, (item, share) in enumerate(ITEMS.items()):
        items[first::share] = item
    times = pa.array(np.full(size, FIRST_TIME + 1000 * number))
    table = table.append_column("key", pa.array(keys)).append_column("time_ms", times)
    return table.append_column("item", pa.array(items))


def _itself(thing: Any) -> Any:
    return thing


@dataclass
class Case:
    """The sizes, places and settings of one workload."""

    payload: Payload
    place: Path
    messages: int
    topics: int = 1
    partitions: int = 10
    batch: int = 1000
    mixed: bool = True
    threads: int = 1
    limit: int = 1000
    skew: Skew = "even"
    #: True if what is stored has keys, times and filter items.
    tags: bool = False
    durability: Durability = "page_cache"
    stack: ExitStack = field(default_factory=ExitStack)
    _stored: dict[str, Path] = field(default_factory=dict)
    _opened: dict[str, Layout] = field(default_factory=dict)
    #: The topic of `our_reads.py`, made once.
    own: Any = None
    #: Puts a watch on a call; what the work is made of goes through it.
    watch: Callable[[Any], Any] = _itself
    #: False while system calls are counted: those of reads are not of the work.
    compares: bool = True
    #: Called with the directory when the work is done and its store still open.
    observe: Callable[[Path], object] = _itself

    def make(self, make: Make, root: Path, durability: Durability | None = None) -> Layout:
        """Open a layout with the topics and partitions of this case."""
        return make(
            root,
            topics=self.topics,
            partitions=self.partitions,
            durability=durability or self.durability,
        )

    def tables(self) -> list[Any]:
        """Return the batches of this case, to be used in turn."""
        return self.payload.batches(
            self.batch,
            topics=self.topics,
            partitions=self.partitions,
            mixed=self.mixed,
            skew=self.skew,
        )

    def rows(self, messages: int, first: int = 0) -> Iterator[tuple[int, int, bytes]]:
        """Return messages as (topic, partition, body); in turn, or drawn if `skew` is "zipf"."""
        bodies = self.payload.messages(messages)
        topics, partitions = self.topics, self.partitions
        if self.skew == "zipf":
            drawn = zipf(topics * partitions, _DRAWN, np.random.default_rng(SEED + first))
            for place, body in zip(cycle(drawn.tolist()), bodies, strict=False):
                yield place // partitions, place % partitions, body
            return
        for number, body in enumerate(bodies, first):
            yield number % topics, number // topics % partitions, body

    def stored(self, make: Any) -> Path:
        """Return the directory of a layout that holds the messages of the case, closed."""
        if make.name not in self._stored:
            root = fresh(self.place / make.name)
            layout = self.make(make, root, "page_cache")
            try:
                for table in self.filling():
                    layout.append_batch(table)
            finally:
                layout.close()
            self._stored[make.name] = root
        return self._stored[make.name]

    def answers(self) -> Answers:
        """Return what a layout of `stored` has to give back."""
        found = Answers(self.topics, self.partitions)
        found.add(self.filling())
        return found

    def digest(self) -> Digest:
        """Return what a driver that reads all of `stored` has to have read."""
        found = Digest()
        for table in self.filling():
            columns = (table.column(name).to_pylist() for name in ("topic", "partition", "body"))
            for topic, partition, body in zip(*columns, strict=True):
                found.add(f"topic{topic:05d}-{partition}", body)
        return found

    def filling(self) -> Iterator[Any]:
        """Return the batches of a stored case, as many as it takes; see `tagged`."""
        count = -(-self.messages // self.batch)
        for number, table in enumerate(islice(cycle(self.tables()), count)):
            yield tagged(table, number) if self.tags else table

    def opened(self, make: Any) -> Layout:
        """Return the same, open; all contestants that read it share it."""
        if make.name not in self._opened:
            self._opened[make.name] = self.make(make, self.stored(make))
            self.stack.callback(lambda: self._opened.pop(make.name).close())
        return self._opened[make.name]

    def reopened(self, make: Any) -> Layout:
        """Return the same, closed and opened again, without its files in the page cache."""
        self.opened(make).close()
        for path in self.stored(make).rglob("*"):
            if path.is_file():
                _drop_cached(path)
        self._opened[make.name] = self.make(make, self.stored(make))
        return self._opened[make.name]


def _drop_cached(path: Path) -> None:
    """Have a file's pages leave the page cache; those of a tmpfs stay."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fdatasync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


#: Surrounds the measured work; `profiling.py` puts a profiler here.
around: Callable[[], AbstractContextManager[object]] = nullcontext


@dataclass
class Times:
    """What a block took: seconds on the wall, and of processor time in all threads."""

    wall: float = 0.0
    cpu: float = 0.0


@contextmanager
def clock() -> Iterator[Times]:
    """Measure a block."""
    gc.collect()
    times = Times()
    with around():
        wall, cpu = time.perf_counter(), time.process_time()
        yield times
        times.wall, times.cpu = time.perf_counter() - wall, time.process_time() - cpu


#: What a longer run has appended is not read: that would take longer than the run.
COMPARED_MOST = 400_000


def appending(make: Any, *, batches: bool = False) -> Callable[[Case], Any]:
    """Append one by one or in batches to a new store, until everything is in the files.

    Threads share the calls. What a run has appended is read and compared afterwards: always for the
    first one, which warms up, and for others of at most `COMPARED_MOST` messages.
    """

    @contextmanager
    def start(case: Case) -> Iterator[Runner]:
        tables = case.tables() if batches else []
        compared = False

        def append(layout: Layout, calls: int, number: int) -> None:
            if batches:
                put = case.watch(layout.append_batch)
                for table in islice(cycle(tables), number, number + calls):
                    put(table)
            else:
                _append_each(layout, case, calls, number)

        def run(messages: int) -> Measure:
            nonlocal compared
            root = fresh(case.place / make.name)
            layout = case.make(make, root)
            each = max(1, (messages // case.batch if batches else messages) // case.threads)
            try:
                with ExitStack() as stack:
                    threads = None
                    if case.threads > 1:
                        threads = stack.enter_context(ThreadPoolExecutor(case.threads))
                    with clock() as times:
                        if threads is None:
                            append(layout, each, 0)
                        else:
                            numbers = range(case.threads)
                            list(threads.map(lambda n: append(layout, each, n), numbers))
                        layout.flush()
                case.observe(root)
                done = each * case.threads * (case.batch if batches else 1)
                if not compared or (case.compares and done <= COMPARED_MOST):
                    answers = Answers(case.topics, case.partitions, ordered=case.threads == 1)
                    for number in range(case.threads):
                        if batches:
                            answers.add(islice(cycle(tables), number, number + each))
                        else:
                            answers.add_each(case.rows(each, number))
                    answers.compare(layout)
                    compared = True
                return Measure.of(done, each * case.threads, times)
            finally:
                layout.close()
                shutil.rmtree(root)

        yield run

    return start


def _append_each(layout: Layout, case: Case, messages: int, first: int) -> None:
    append, topics, partitions = case.watch(layout.append), case.topics, case.partitions
    if case.skew != "even":
        for topic, partition, body in case.rows(messages, first):
            append(topic, partition, body)
        return
    for number, body in enumerate(case.payload.messages(messages), first):
        append(number % topics, number // topics % partitions, body)


def syncing(make: Any) -> Callable[[Case], Any]:
    """Append one by one from `threads` threads, each message durable when its call returns."""

    @contextmanager
    def start(case: Case) -> Iterator[Runner]:
        compared = False

        def run(messages: int) -> Measure:
            nonlocal compared
            root = fresh(case.place / make.name)
            layout = case.make(make, root)
            each = max(1, messages // case.threads)
            try:
                layout.append(0, 0, case.payload.bodies[0])  # makes the files
                with ThreadPoolExecutor(case.threads) as threads, clock() as times:
                    work = [
                        threads.submit(_append_each, layout, case, each, n)
                        for n in range(case.threads)
                    ]
                    for one in work:
                        one.result()
                if not compared:
                    answers = Answers(case.topics, case.partitions, ordered=False)
                    answers.add_each([(0, 0, case.payload.bodies[0])])
                    for n in range(case.threads):
                        answers.add_each(case.rows(each, n))
                    layout.flush()
                    answers.compare(layout)
                    compared = True
                return Measure.of(each * case.threads, each * case.threads, times)
            finally:
                layout.close()
                shutil.rmtree(root)

        yield run

    return start


def by_turns(places: Iterable[T]) -> Iterator[T]:
    """Go through places in an order that is drawn once, again and again."""
    order = list(places)
    random.Random(SEED).shuffle(order)
    return cycle(order)


def _read_whole(layout: Layout, case: Case, topic: int, partition: int, *, lean: bool) -> None:
    _, position = layout.read(topic, partition, None, case.limit, lean=lean)
    while position is not None:
        _, position = layout.read(topic, partition, position, case.limit, lean=lean)


def reading(make: Any, *, lean: bool = False, first: bool = False) -> Callable[[Case], Any]:
    """Read partition after partition from its first message, in a fixed random order.

    Everything was read once before, so that maps, caches and tables of all are warm; with
    `first`, the layout is opened anew for each run, and its files leave the page cache where they
    lie on a disk.
    """

    @contextmanager
    def start(case: Case) -> Iterator[Runner]:
        layout = case.opened(make)
        case.answers().compare(layout)
        places = [(t, p) for t in range(case.topics) for p in range(case.partitions)]
        turn = by_turns(places)
        if not first:
            for topic, partition in places:
                _read_whole(layout, case, topic, partition, lean=lean)

        def run(messages: int) -> Measure:
            nonlocal layout
            if first:
                layout = case.reopened(make)
            count = calls = 0
            read = case.watch(layout.read)
            with clock() as times:
                while count < messages:
                    topic, partition = next(turn)
                    position: object | None = None
                    while True:
                        rows, position = read(topic, partition, position, case.limit, lean=lean)
                        count += len(rows)
                        calls += 1
                        if position is None or count >= messages:
                            break
            case.observe(case.stored(make))
            return Measure.of(count, calls, times)

        yield run

    return start


def scanning(make: Any, *, verify: bool = False) -> Callable[[Case], Any]:
    """Read everything, in the order of the layout."""

    @contextmanager
    def start(case: Case) -> Iterator[Runner]:
        layout = case.opened(make)
        case.answers().compare(layout)
        stored = -(-case.messages // case.batch) * case.batch

        def run(messages: int) -> Measure:
            with clock() as times:
                sizes = [len(rows) for rows in layout.scan(verify=verify)]
            if sum(sizes) != stored:
                raise Unavailable(f"a scan gives back {sum(sizes)} messages of {stored}")
            case.observe(case.stored(make))
            return Measure.of(stored, len(sizes), times)

        yield run

    return start


def opening(*, checkpoint: bool) -> Callable[[Case], Any]:
    """Open a store after its writer was killed, in a process of its own, imports not counted.

    `checkpoint`: True if what the background left in time may be used; else all is verified.
    """

    @contextmanager
    def start(case: Case) -> Iterator[Runner]:
        killed = case.place / "killed"
        if not killed.exists():
            child("fill", killed, case.messages, expect=-signal.SIGKILL)
        root = case.place / ("with-checkpoint" if checkpoint else "without")
        shutil.copytree(killed, root)
        if not checkpoint:
            for path in root.glob("*/.tubestore/checkpoint*"):
                path.unlink()

        yield reopener(root)

    return start


def reopener(root: Path) -> Runner:
    """Return what opens a store in a process of its own, again and again."""

    def run(messages: int) -> Measure:
        found = child("open", root, 0, expect=-signal.SIGKILL)
        return Measure(found["messages"], 1, found["seconds"], found["cpu_seconds"])

    return run


def child(
    command: str, root: Path, *numbers: int, expect: int = 0, module: str = "bench.workloads.child"
) -> dict[str, Any]:
    """Run `bench/workloads/child.py`, which kills itself at its end: nothing is closed."""
    done = subprocess.run(
        [sys.executable, "-m", module, command, str(root), *map(str, numbers)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    if done.returncode != expect:
        raise Unavailable(f"{command} ended with {done.returncode}: {done.stderr[-500:]}")
    return json.loads(done.stdout) if done.stdout else {}
