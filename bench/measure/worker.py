"""A process of its own for each cell: it builds, compares, warms up, and runs when it is asked.

So peak memory, descriptors and processor time are those of one contender, and a cell that goes
beyond a limit is killed without the others.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import resource
import time
import traceback
from contextlib import ExitStack
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from bench.layouts.capabilities import Unavailable, lacks
from bench.measure import latency, system
from bench.workloads.cases import Case, Measure, Runner
from bench.workloads.sizes import Size
from bench.workloads.works import Work

FEWEST = 200
#: A run appends so many messages to each place, up to so many in all: a run begins with an empty
#: store, and with few messages the making of files would be all that it measures.
_EACH_PLACE, _EACH_PLACE_MOST = 20, 400_000
#: Descriptors that a contender may have, where that is allowed.
_FILES = 1 << 17
#: Calls that are timed one by one, at most; throughput is measured without that.
TIMED_CALLS = 20_000
#: A driver with so many places tries this part of its messages first.
_MANY_PLACES, _TRIAL = 1000, 50
#: Of the time that a run may take, what it is planned for.
_PLANNED = 0.75
#: However slow it is: with fewer, the making of files would be all.
_LEAST_EACH_PLACE = 2


@dataclass
class Task:
    """What a worker does."""

    contender: Any
    work: Work
    size: Size
    place: Path
    text: bytes
    #: How long a run should take; None: every run does all of the work.
    seconds: float | None
    #: How long a run may take with everything around it: a slow one gets fewer messages.
    most_seconds: float = float("inf")


def lacking(contender: Any, work: Work, size: Size) -> str | None:
    """Return the reason why a contender cannot do some work at some size; None if it can."""
    if hasattr(contender, "drivers"):
        if work.name not in contender.drivers:
            return f"its driver has no {work.name}"
        reason = contender.beyond(work.name, size)
        return None if reason is None else str(reason)
    return lacks(contender, work.way.needs | size.needs())


def serve(pipe: Connection, task: Task) -> None:
    """Answer requests until there is none: the process of a worker."""
    logging.disable(logging.WARNING)
    with contextlib.suppress(OSError):
        os.setsid()  # what a contender starts ends with its cell
    system.adopt_orphans()
    os.dup2(2, 1)  # what it prints is not of the results
    _allow_files()
    try:
        with ExitStack() as stack:
            worker = Worker(task)
            pipe.send({"ready": worker.start(stack)})
            while (request := pipe.recv()) != "end":
                command, _, messages = request.partition(" ")
                if command == "run":
                    pipe.send({"measure": worker.measure()})
                else:
                    pipe.send({"messages": worker.once(int(messages))})
    except Unavailable as reason:
        pipe.send({"left_out": str(reason)})
    except (EOFError, BrokenPipeError):
        pass
    except BaseException as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{Path(last.filename).name}:{last.lineno}"
        pipe.send({"left_out": f"{type(error).__name__}: {in_a_line(str(error))} ({place})"})


def _allow_files() -> None:
    """Allow as many descriptors as can be: RocketMQ needs one a queue. Root may raise the limit."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (_FILES, max(most, _FILES)))
        return
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def in_a_line(text: str) -> str:
    """Return the first line of an error, and of a driver's output the exception; without paths."""
    first, *rest = text.splitlines() or [""]
    cause = next((line.strip() for line in rest if "Exception" in line), "")
    return re.sub(r" /\S+", "", f"{first}: {cause}" if cause else first)


@dataclass
class _Seen:
    """What there was when the work was done and the store still open."""

    place: Path
    #: Bytes read from and written to the device before; None: there is none.
    before: tuple[int, int] | None
    writes: bool
    values: dict[str, Any] = field(default_factory=dict)

    def look(self, root: Path) -> None:
        """Count now."""
        files, size = system.files_and_bytes(root)
        self.values = {
            "peak_mb": round(system.peak_mb(), 1),
            "descriptors": system.descriptors(),
            "files": files,
            "disk_bytes": size,
        }
        if self.before is None:
            return
        if self.writes:
            os.sync()
        if after := system.device_bytes(self.place):
            self.values["device_read_bytes"] = after[0] - self.before[0]
            if self.writes:
                self.values["device_bytes"] = after[1] - self.before[1]


class Worker:
    """One contender at one kind of work."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._case: Case = task.size.case(task.place, task.text)
        self._runner: Runner | None = None
        self._count = task.size.messages
        self._drives = hasattr(task.contender, "drivers")

    def start(self, stack: ExitStack) -> int:
        """Build what is needed, compare answers, warm up; return the messages of a run."""
        task = self._task
        if reason := lacking(task.contender, task.work, task.size):
            raise Unavailable(reason)
        task.place.mkdir(parents=True)
        stack.enter_context(self._case.stack)
        start = task.contender.drivers[task.work.name] if self._drives else None
        started = start(self._case) if start else task.work.way.start(task.contender)(self._case)
        self._runner = runner = stack.enter_context(started)
        if self._drives:
            if task.work.writes and self._is_slow():
                self._count = self._driven(runner)
            return self._count
        if task.work.whole or task.seconds is None:
            runner(self._count)
            return self._count
        begin = time.monotonic()
        warm = runner(self._warm_count())
        possible = int(warm.messages / warm.seconds * task.seconds)
        least = self._least() if task.work.writes else FEWEST
        within = self._within(task.most_seconds, warm.messages, time.monotonic() - begin)
        self._count = min(self._count, max(least, possible), within)
        return self._count

    def _warm_count(self) -> int:
        """Return the messages that warm up: a tenth, or if each is synced some for all places."""
        size = self._task.size
        if size.durability == "fsync" and self._task.work.writes:
            return min(self._count, max(FEWEST * size.threads, size.places))
        return max(FEWEST, self._count // 10)

    def _is_slow(self) -> bool:
        """True if a driver may need minutes for a run: it makes many files, or syncs."""
        size = self._task.size
        return size.places >= _MANY_PLACES or size.durability == "fsync"

    def _driven(self, runner: Runner) -> int:
        """Return how many messages a driver has the time for; each of its runs warms up anew."""
        begin = time.monotonic()
        found = runner(max(FEWEST, self._count // _TRIAL))
        around = max(0.0, time.monotonic() - begin - found.seconds)
        # What was appended is read back, which is about as fast.
        left = self._task.most_seconds - around
        within = self._within(left, found.messages, 2 * found.seconds)
        # The trial made the same files for fewer messages: it was slower than a run will be.
        return min(self._count, max(within, self._least()))

    def _least(self) -> int:
        """Return the fewest messages that a run appends, unless it has no time for them."""
        return max(FEWEST, min(_EACH_PLACE * self._task.size.places, _EACH_PLACE_MOST))

    def _within(self, most_seconds: float, messages: int, seconds: float) -> int:
        """Return for how many messages there is time, if some of them took so many seconds."""
        possible = _PLANNED * max(0.0, most_seconds) * messages / max(seconds, 1e-9)
        least = max(FEWEST, _LEAST_EACH_PLACE * self._task.size.places)
        return max(least, int(min(possible, 1 << 62)))

    def once(self, messages: int) -> int:
        """Do the work with a number of messages, and measure nothing; return how many it was."""
        assert self._runner is not None
        self._case.compares = False
        try:
            return self._runner(messages).messages
        finally:
            self._case.compares = True

    def measure(self) -> dict[str, Any]:
        """Do the work once without a watch, and for its latencies once with one."""
        assert self._runner is not None
        task, case = self._task, self._case
        if system.device_bytes(task.place) is not None:
            os.sync()  # what was written before is not of this run
        seen = _Seen(task.place, system.device_bytes(task.place), task.work.writes)
        case.observe = seen.look
        system.reset_peak()
        found = self._runner(self._count)
        case.observe = lambda root: None
        values = _as_dict(found) | seen.values
        if found.memory_mb:
            values["peak_mb"] = found.memory_mb
        if self._drives:
            values.pop("descriptors", None)  # of this process, and not of the driver's
        if found.hdr:
            return values | latency.percentiles(latency.merged([found.hdr]))
        return values | self._latencies(found)

    def _latencies(self, found: Measure) -> dict[str, Any]:
        if self._drives or not found.calls:
            return {}
        calls = latency.Calls()
        self._case.watch = calls.watch
        share = min(1.0, TIMED_CALLS / found.calls)
        assert self._runner is not None
        self._runner(max(FEWEST, int(self._count * share)))
        self._case.watch = lambda call: call
        taken = latency.histogram(calls.nanoseconds)
        if not taken.get_total_count():
            return {}
        return {"hdr": latency.encoded(taken), **latency.percentiles(taken)}


def _as_dict(found: Measure) -> dict[str, Any]:
    return {
        "messages": found.messages,
        "calls": found.calls,
        "seconds": round(found.seconds, 9),
        "cpu_seconds": round(found.cpu_seconds, 9),
        "rate": round(found.messages / found.seconds, 3),
        "hdr": found.hdr,
    }
