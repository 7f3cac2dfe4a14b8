"""The real Java classes, through the drivers of the interop tests; rates are those of a warm JVM.

A rate counts until the messages are readable: RocketMQ's dispatch is awaited, TubeMQ's caches are
flushed. What was appended is then compared, as for every layout (`written.py`).
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from bench.layouts.layout import TopicSharded, Unavailable, fresh
from bench.real import written
from bench.workloads.cases import Case, Contestant, Measure, Runner

TUBEMQ = "TubeMQ 1.2.0"
ROCKETMQ = ("4.9.8", "5.3.3")
READ_SECONDS = 3
#: Messages that are not counted, where each is synced; 200,000 where not.
_WARM_SYNCS = 2000


@cache
def _drivers() -> Any:
    try:
        from bench.real import drivers
    except ImportError as error:
        raise Unavailable(f"tests/compat/interop is not there: {error}") from error
    return drivers


def driver_of(kind: str, *arguments: str) -> Any:
    """Return a driver of the interop tests; Unavailable without Java or Maven."""
    drivers = _drivers()
    try:
        return getattr(drivers, kind)(*arguments, heap="2g")
    except drivers.DriverUnavailable as error:
        raise Unavailable(str(error)) from error


def payload_file(case: Case) -> Path:
    """Return a file with the text of the bodies, for a driver."""
    path = case.place / "payload"
    if not path.exists():
        path.write_bytes(case.payload.text)
    return path


def copied(source: Path, target: Path) -> None:
    """Copy a store with its holes, for a contestant that writes when it opens."""
    from bench.real.scratch import copy_tree

    shutil.rmtree(target, ignore_errors=True)
    copy_tree(source, target)


@contextmanager
def tubemq_append(case: Case) -> Iterator[Runner]:
    """One by one at TubeMQ's only level, memory; its caches flushed at the end."""
    driver = driver_of("TubeDriver")
    payload = payload_file(case)

    def run(messages: int) -> Measure:
        root = fresh(case.place / "tubemq")
        row = driver.bench_append(
            root, messages, case.payload.body_size, case.partitions, payload=payload
        )
        case.observe(root)
        written.compare(case, root, row["messages"], 1, rocket=False)
        shutil.rmtree(root)
        return Measure(
            row["messages"], row["messages"], row["flushedSeconds"], memory_mb=row["peakKb"] >> 10
        )

    yield run


@contextmanager
def tubemq_read(case: Case) -> Iterator[Runner]:
    """TubeMQ's reads over a copy of the files that this store wrote."""
    driver = driver_of("TubeDriver")
    root = case.place / "tubemq"
    shutil.copytree(case.stored(TopicSharded), root)
    expected = case.digest()

    def run(messages: int) -> Measure:
        row = driver.bench_read(root, "topic00000", 0, case.partitions, seconds=READ_SECONDS)
        expected.compare(row)
        return Measure(row["messages"], row["partitions"], row["seconds"])

    yield run


def rocketmq(
    version: str, *, batch: int = 1, sync: bool = False, threads: int = 1
) -> Callable[[Case], Any]:
    """Put until everything is dispatched; `batch` messages a call, encoded beforehand."""

    @contextmanager
    def start(case: Case) -> Iterator[Runner]:
        driver = driver_of("RocketDriver", version)
        settings = {"flushDiskType": "SYNC_FLUSH"} if sync else None
        payload = payload_file(case)

        def run(messages: int) -> Measure:
            root = fresh(case.place / "rocketmq")
            row = driver.put_bench(
                root,
                messages,
                case.payload.body_size,
                topics=case.topics,
                queues=case.partitions,
                batch=batch,
                threads=threads,
                payload=payload,
                warm=_WARM_SYNCS if sync else None,
                settings=settings,
            )
            case.observe(root)
            calls = row["messages"] // batch
            shared = replace(case, threads=threads)
            written.compare(shared, root, calls, batch, rocket=True)
            shutil.rmtree(root)
            return Measure(
                row["messages"], calls, row["dispatchedSeconds"], row["cpuSeconds"],
                memory_mb=row["peakKb"] >> 10,
            )  # fmt: skip

        yield run

    return start


def both_rocketmq(
    *, batch: int = 1, sync: bool = False, threads: int = 1
) -> tuple[Contestant, ...]:
    """Both versions of RocketMQ."""
    return tuple(
        Contestant(f"RocketMQ {v}", "real", rocketmq(v, batch=batch, sync=sync, threads=threads))
        for v in ROCKETMQ
    )
