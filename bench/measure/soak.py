"""Single appends for minutes, with everything that runs beside them: what a caller waits for.

One thread appends at random to all partitions; buffers are flushed, the journal is emptied and
retention removes files meanwhile. First at full speed: how long each call takes. Then by a
schedule, at a share of that rate: how long after its time each message is in. A call that comes
late because the one before it was slow counts with its delay (no coordinated omission).

Of each call above 1 ms the time that its thread was on the processor is measured: it separates
own work (emptying the journal, a pass of the garbage collector) from waiting (for the
disk, a lock, the interpreter or the processor).
"""

from __future__ import annotations

import random
import shutil
import tempfile
import time
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import tubestore
from bench.measure.latency import PERCENTILES, encoded, histogram, percentiles
from bench.measure.system import files_and_bytes
from bench.workloads.payload import Payload

#: A call that takes longer counts as slow, in ns.
SLOW_NS = 1_000_000
#: A thread that is this far ahead of its schedule sleeps, and wakes that much before; in ns.
_AHEAD_NS = 1_000_000
#: How many places the random order has before it repeats.
_ORDER = 1 << 16
#: Retention keeps what is younger, and looks so often.
_KEPT, _LOOK = "20s", "5s"


@dataclass
class Soak:
    """What was measured of one shape, at full speed or by a schedule."""

    topics: int
    partitions: int
    #: Messages a second that were asked for; 0 at full speed.
    asked: float
    seconds: float
    waits: array[int]
    #: Of each slow call its time, and that on the processor; in ns.
    slow: list[tuple[int, int]]
    #: Bytes in files at the end, after retention.
    left: int = 0

    @property
    def rate(self) -> float:
        """Messages a second that were appended."""
        return len(self.waits) / self.seconds

    def row(self) -> dict[str, Any]:
        """Return it as a line of results."""
        found = histogram(self.waits)
        total = sum(took for took, _ in self.slow)
        return {
            "kind": "soak",
            "topics": self.topics,
            "partitions": self.partitions,
            "asked": round(self.asked),
            "rate": round(self.rate),
            "seconds": round(self.seconds, 1),
            **percentiles(found),
            "slow_calls": len(self.slow),
            "slow_seconds": total / 1e9,
            "slow_on_processor": sum(cpu for _, cpu in self.slow) / total if total else 0.0,
            "left_mb": self.left >> 20,
            "histogram": encoded(found),
        }


def soak(
    directory: Path,
    seconds: float,
    shapes: list[tuple[int, int]],
    share: float,
    note: Callable[[Soak], object],
    payload: Payload,
) -> None:
    """Measure each shape (topics, partitions of each) at full speed, then by a schedule.

    `share`: the scheduled part of the rate at full speed. Files are below `directory`, and go.
    """
    bodies = payload.bodies
    for topics, partitions in shapes:
        full = _measured(directory, seconds, topics, partitions, 0.0, bodies)
        note(full)
        rate = full.rate * share
        del full
        note(_measured(directory, seconds, topics, partitions, rate, bodies))


def _measured(
    directory: Path, seconds: float, topics: int, partitions: int, rate: float, bodies: list[bytes]
) -> Soak:
    root = tempfile.mkdtemp(prefix="tubestore-soak-", dir=directory)
    try:
        with tubestore.open(root, retention_interval_ms=_LOOK) as store:
            options = tubestore.TopicOptions(partitions=partitions, max_age_ms=_KEPT)
            made = store.ensure_topics({f"topic{n:05d}": options for n in range(topics)})
            draw = random.Random(7)
            calls = [
                (made[draw.randrange(topics)].append, draw.randrange(partitions))
                for _ in range(_ORDER)
            ]
            for topic in made:  # its files are made, and its shard is open
                topic.append(b"first", partition=0)
            found = Soak(topics, partitions, rate, seconds, array("q"), [])
            if rate:
                _by_schedule(found, cycle(calls), cycle(bodies))
            else:
                _at_full_speed(found, cycle(calls), cycle(bodies))
        found.left = files_and_bytes(Path(root))[1]
        return found
    finally:
        shutil.rmtree(root, ignore_errors=True)


def _at_full_speed(found: Soak, calls: Iterator[Any], bodies: Iterator[bytes]) -> None:
    note, now, on_processor = found.waits.append, time.perf_counter_ns, time.thread_time_ns
    begun = now()
    end = begun + int(found.seconds * 1e9)
    done = begun
    while done < end:
        (append, partition), body, used = next(calls), next(bodies), on_processor()
        begin = now()
        append(body, partition=partition)
        done = now()
        note(done - begin)
        if done - begin > SLOW_NS:
            found.slow.append((done - begin, on_processor() - used))
    found.seconds = (done - begun) / 1e9


def _by_schedule(found: Soak, calls: Iterator[Any], bodies: Iterator[bytes]) -> None:
    note, now, on_processor = found.waits.append, time.perf_counter_ns, time.thread_time_ns
    sleep, interval = time.sleep, 1e9 / found.asked
    begun = now()
    for number in range(int(found.seconds * found.asked)):
        due = begun + int(number * interval)
        (append, partition), body, used = next(calls), next(bodies), on_processor()
        while (ahead := due - now()) > 0:
            # The interpreter is given away meanwhile, as a caller that waits for its next message
            # does; a sleep that is not zero may last a tenth of a millisecond longer.
            sleep((ahead - _AHEAD_NS / 2) / 1e9 if ahead > _AHEAD_NS else 0)
        begin = now()
        append(body, partition=partition)
        done = now()
        note(done - due)
        if done - begin > SLOW_NS:
            found.slow.append((done - begin, on_processor() - used))
    found.seconds = (now() - begun) / 1e9


HEAD = "".join(
    f"{name:>{width}}"
    for name, width in (("", 36), ("k/s", 8), ("p50 us", 9), ("p99", 9), ("p99.9", 9), ("max", 11),
                        ("> 1 ms", 9), ("own work", 10))
)  # fmt: skip


def line(row: dict[str, Any]) -> str:
    """Format what was measured, a line below `HEAD`."""
    name = f"{row['topics']:,} × {row['partitions']:,}"
    name += ", by schedule" if row["asked"] else ", full speed"
    text = f"  {name:34}{row['rate'] / 1000:>8.1f}"
    for key, width in (*((key, 9) for key in PERCENTILES), ("max_us", 11)):
        text += f"{row[key]:>{width},.1f}"
    return f"{text}{row['slow_calls']:>9,}{row['slow_on_processor']:>10.0%}"
