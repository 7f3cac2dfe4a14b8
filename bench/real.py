"""The real Java classes, through the drivers of the interop tests; rates are those of a warm JVM.

Their bodies are random bytes of the same size. A rate counts until the messages are readable:
RocketMQ's dispatch is awaited, TubeMQ's caches are flushed.

Next to read: `limits.py`.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from bench.cases import Case, Contestant, Measure, Runner
from bench.layouts import TopicSharded, Unavailable, fresh

TUBEMQ = "TubeMQ 1.2.0"
ROCKETMQ = ("4.9.8", "5.3.3")
READ_SECONDS = 3


@cache
def _drivers() -> Any:
    try:
        from tests.interop import drivers
    except ImportError as error:
        raise Unavailable(f"tests/interop is not there: {error}") from error
    return drivers


def _driver(kind: str, *arguments: str) -> Any:
    drivers = _drivers()
    try:
        return getattr(drivers, kind)(*arguments, heap="2g")
    except drivers.DriverUnavailable as error:
        raise Unavailable(str(error)) from error


@contextmanager
def tubemq_append(case: Case) -> Iterator[Runner]:
    """One by one at TubeMQ's only level, memory; its caches flushed at the end."""
    driver = _driver("TubeDriver")

    def run(messages: int) -> Measure:
        root = fresh(case.place / "tubemq")
        row = driver.bench_append(root, messages, case.payload.body_size, case.partitions)
        shutil.rmtree(root)
        return Measure(row["messages"], row["messages"], row["flushedSeconds"])

    yield run


@contextmanager
def tubemq_read(case: Case) -> Iterator[Runner]:
    """Its reads over a copy of the files that we wrote."""
    driver = _driver("TubeDriver")
    root = case.place / "tubemq"
    shutil.copytree(case.stored(TopicSharded), root)

    def run(messages: int) -> Measure:
        row = driver.bench_read(root, "topic00000", 0, case.partitions, seconds=READ_SECONDS)
        return Measure(row["messages"], row["partitions"], row["seconds"])

    yield run


def rocketmq(version: str, *, batch: int = 1, sync: bool = False) -> Callable[[Case], Any]:
    """Put until everything is dispatched; `batch` messages a call, encoded beforehand."""

    @contextmanager
    def start(case: Case) -> Iterator[Runner]:
        driver = _driver("RocketDriver", version)
        settings = {"flushDiskType": "SYNC_FLUSH"} if sync else None

        def run(messages: int) -> Measure:
            root = fresh(case.place / "rocketmq")
            row = driver.put_bench(
                root,
                messages,
                case.payload.body_size,
                topics=case.topics,
                queues=case.partitions,
                batch=batch,
                settings=settings,
            )
            shutil.rmtree(root)
            return Measure(row["messages"], row["messages"] // batch, row["dispatchedSeconds"])

        yield run

    return start


def both_rocketmq(*, batch: int = 1, sync: bool = False) -> tuple[Contestant, ...]:
    """Both versions of RocketMQ."""
    return tuple(
        Contestant(f"RocketMQ {v}", "real", rocketmq(v, batch=batch, sync=sync)) for v in ROCKETMQ
    )
