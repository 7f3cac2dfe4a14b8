"""Replication over the loopback: two sides of this package, and two of RocketMQ's.

Each slave is a process of its own; so is a master where the slave's work is on the clock.
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import rocketcompat
from bench.layouts.layout import SingleLog, Unavailable, fresh
from bench.real import layouts as real
from bench.replication.child import CONFIG, TOPIC
from bench.workloads.cases import ROOT, Case, Measure, Runner, clock
from rocketcompat import Message
from rocketcompat.ha.mirror import Mirror
from rocketcompat.ha.server import HaServer
from rocketcompat.messages import PutStatus

_STEP_SECONDS, _LIMIT_SECONDS = 0.001, 600.0
#: Seconds for which an idle mirror is watched.
IDLE_SECONDS = 10
RATE = 10_000


class Child:
    """A side in a process of its own."""

    def __init__(self, *arguments: object) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.replication.child", *map(str, arguments)],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.first = self._row()

    def ask(self, line: object = "state") -> dict[str, Any]:
        """Send a line and return its answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        return self._row()

    def reach(self, end: int, *, dispatched: bool = False) -> dict[str, Any]:
        """Wait until a slave is that far; returns its state."""
        for _ in _until_limit():
            row = self.ask()
            if row["end"] >= end and not (dispatched and row["behind"]):
                return row
        raise AssertionError("unreachable")

    def close(self) -> None:
        """Let it end."""
        self._process.communicate(timeout=60)

    def _row(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise Unavailable("a side of the replication ended by itself")
        found: dict[str, Any] = json.loads(line)
        return found


@contextmanager
def _child(*arguments: object) -> Iterator[Child]:
    child = Child(*arguments)
    try:
        yield child
    finally:
        child.close()


def _until_limit() -> Iterator[None]:
    """Yield now and then until it takes too long."""
    deadline = time.monotonic() + _LIMIT_SECONDS
    while time.monotonic() < deadline:
        yield
        time.sleep(_STEP_SECONDS)
    raise Unavailable("the slave does not come as far as its master")


@contextmanager
def _emptied(root: Path) -> Iterator[Path]:
    fresh(root)
    yield root
    shutil.rmtree(root)


def catching_up(*, dispatched: bool) -> Callable[[Case], Any]:
    """An empty slave copies a log; `dispatched`: until queues and index have everything too."""

    @contextmanager
    def start(case: Case) -> Iterator[Runner]:
        source = case.stored(SingleLog)
        with rocketcompat.open(source, config=CONFIG) as store:
            end = store.max_physical_offset

        def run(messages: int) -> Measure:
            with (
                _child("serve", source) as master,
                _emptied(case.place / "slave") as root,
                Mirror(
                    root, "127.0.0.1", master.first["port"], CONFIG, acknowledge="page_cache"
                ) as mirror,
            ):
                with clock() as times:
                    mirror.start()
                    if dispatched:
                        assert mirror.wait_reached(end, _LIMIT_SECONDS)
                    else:
                        next(None for _ in _until_limit() if (mirror.status().end or 0) >= end)
                return Measure.of(case.messages, 1, times)

        yield run

    return start


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextmanager
def _real_pair(
    version: str, root: Path, slave_root: Path | None, role: str = "ASYNC_MASTER"
) -> Iterator[tuple[Any, Any]]:
    """A real master, and a real slave that is connected to it."""
    driver = real.driver_of("RocketDriver", version)
    port = _free_port()
    with ExitStack() as stack:
        settings = {"haListenPort": port, "brokerRole": role}
        master = stack.enter_context(driver.replicating(root, settings=settings))
        slave = None
        if slave_root is not None:
            settings = {"haListenPort": _free_port(), "brokerRole": "SLAVE"}
            slave = stack.enter_context(driver.replicating(slave_root, settings=settings))
            slave.ask(f"follow 127.0.0.1:{port}")
        yield master, slave


def real_catching_up(version: str) -> Callable[[Case], Any]:
    """The same with RocketMQ, dispatched; on the clock from the first bytes that came."""

    @contextmanager
    def start(case: Case) -> Iterator[Runner]:
        source = case.place / f"real-master-{version}"
        real.copied(case.stored(SingleLog), source)

        def run(messages: int) -> Measure:
            with (
                _emptied(case.place / "real-slave") as root,
                _real_pair(version, source, root) as (master, slave),
            ):
                end = master.ask("state")["maxPhyOffset"]
                first, begin = 0, time.perf_counter()
                for _ in _until_limit():
                    reached = slave.ask("state")["maxPhyOffset"]
                    if reached and reached < end and not first:
                        first, begin = reached, time.perf_counter()
                    if reached >= end:
                        break
                seconds = time.perf_counter() - begin
                done = max(1, round(case.messages * (end - first) / end))
                return Measure(done, 1, seconds)

        yield run
        shutil.rmtree(source)

    return start


def putting(*, synchronous: bool = False, slave: bool = True) -> Callable[[Case], Any]:
    """Put one by one into a master, with a slave that acknowledges or without one."""

    @contextmanager
    def start(case: Case) -> Iterator[Runner]:
        def run(messages: int) -> Measure:
            with (
                _emptied(case.place / "master") as root,
                _emptied(case.place / "slave") as slave_root,
                rocketcompat.open(root, "w", CONFIG) as store,
                ExitStack() as stack,
            ):
                if slave:
                    server = stack.enter_context(
                        HaServer(store, port=0, first="FULL", synchronous=synchronous)
                    )
                    server.start()
                    child = stack.enter_context(
                        _child("slave", slave_root, server.port, "page_cache")
                    )
                    store.put_message(Message(TOPIC, b"first"))
                    child.reach(store.max_physical_offset)
                bodies = list(case.payload.messages(messages))
                statuses = set()
                with clock() as times:
                    for body in bodies:
                        statuses.add(store.put_message(Message(TOPIC, body)).status)
                assert statuses == {PutStatus.PUT_OK}, statuses
                return Measure.of(messages, messages, times)

        yield run

    return start


def real_putting(
    version: str, *, synchronous: bool = False, slave: bool = True
) -> Callable[[Case], Any]:
    """The same with RocketMQ."""

    @contextmanager
    def start(case: Case) -> Iterator[Runner]:
        def run(messages: int) -> Measure:
            role = "SYNC_MASTER" if synchronous else "ASYNC_MASTER"
            with (
                _emptied(case.place / "real-master") as root,
                _emptied(case.place / "real-slave") as slave_root,
                _real_pair(version, root, slave_root if slave else None, role) as (master, replica),
            ):
                end = master.ask("put 100 1000")["maxPhyOffset"]
                if replica is not None:
                    next(None for _ in _until_limit()
                         if replica.ask("state")["maxPhyOffset"] >= end
                         and master.ask("state")["push2SlaveMaxOffset"] >= end)  # fmt: skip
                begin = time.perf_counter()
                row = master.ask(f"put {messages} {case.payload.body_size}")
                seconds = time.perf_counter() - begin
                assert row["statuses"] == {"PUT_OK": messages}, row["statuses"]
                return Measure(messages, messages, seconds)

        yield run

    return start


@contextmanager
def delays(case: Case) -> Iterator[Runner]:
    """From a put at 10,000 a second until a reader of the mirror has the message."""

    def run(messages: int) -> Measure:
        with (
            _emptied(case.place / "master") as root,
            _emptied(case.place / "mirror") as mirror_root,
            _child("put", root, RATE) as master,
            Mirror(mirror_root, "127.0.0.1", master.first["port"], CONFIG) as mirror,
        ):
            mirror.start()
            master.ask(1)
            next(None for _ in _until_limit() if (mirror.status().end or 0) > 0)
            took: list[int] = []
            with clock() as times, _asked(master, messages):
                offset = 1
                while len(took) < messages:
                    page = mirror.store.get_message(TOPIC, 0, offset, 1000)
                    now = time.monotonic_ns()
                    took += [now - int.from_bytes(m.body[:8], "big") for m in page.messages]
                    offset += len(page.messages)
                    if not page.messages:
                        time.sleep(_STEP_SECONDS / 2)
            ordered = np.sort(took) / 1000
            return Measure(
                messages, messages, times.wall, times.cpu,
                p50_us=float(ordered[len(ordered) // 2]),
                p99_us=float(ordered[int(len(ordered) * 0.99)]),
            )  # fmt: skip

    yield run


@contextmanager
def _asked(child: Child, line: object) -> Iterator[None]:
    """Send a line, and take its answer at the end."""
    assert child._process.stdin is not None
    child._process.stdin.write(f"{line}\n")
    child._process.stdin.flush()
    yield
    child._row()


@contextmanager
def idling(case: Case) -> Iterator[Runner]:
    """A mirror that is up to date: processor seconds in ten seconds, and anonymous memory."""

    def run(messages: int) -> Measure:
        with (
            _emptied(case.place / "master") as root,
            _emptied(case.place / "slave") as slave_root,
            rocketcompat.open(root, "w", CONFIG) as store,
            HaServer(store, port=0, first="FULL") as server,
        ):
            for body in case.payload.messages(messages):
                store.put_message(Message(TOPIC, body))
            server.start()
            with _child("slave", slave_root, server.port, "no") as child:
                before = child.reach(store.max_physical_offset, dispatched=True)
                time.sleep(IDLE_SECONDS if messages > 1000 else 0.1)
                after = child.ask()
                cpu = after["cpu_seconds"] - before["cpu_seconds"]
                return Measure(
                    messages, 1, max(cpu, 1e-6), cpu, memory_mb=after["memory_mb"],
                    descriptors=after["descriptors"],
                )  # fmt: skip

    yield run
