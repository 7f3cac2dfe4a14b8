"""The stores that Spark is measured over, and what a process of Spark's takes of the machine."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

import rocketcompat
import tubestore

BODY = 1024
PARTITIONS = 10
#: The filter item of one message of a hundred.
RARE = "rare"
_BATCH = 1000


def fill(root: Path, mib: int) -> int:
    """Write a store of so many MiB of bodies; returns the messages."""
    table = pa.table(
        {
            "body": [os.urandom(BODY) for _ in range(_BATCH)],
            "partition": pa.array([n % PARTITIONS for n in range(_BATCH)], pa.int32()),
            # One of a hundred, as long as the others.
            "filter_item": [RARE if n % 100 == 0 else "paid" for n in range(_BATCH)],
        }
    )
    batches = -(-(mib << 10) // _BATCH)
    with tubestore.open(root, segment_size_bytes=128 << 20) as store:
        topic = store.create_topic("logs", partitions=PARTITIONS)
        for _ in range(batches):
            topic.append_batch(table)
    return batches * _BATCH


def fill_log(root: Path, mib: int, *, users: bool) -> int:
    """Write a CommitLog of so many MiB of bodies, each with a key, or two; returns the messages."""
    body = [os.urandom(BODY) for _ in range(_BATCH)]
    batches = -(-(mib << 10) // _BATCH)
    with rocketcompat.open(root, "w", layouts=set()) as store:
        for first in range(0, batches * _BATCH, _BATCH):
            numbers = range(first, first + _BATCH)
            store.put_columns(
                {
                    "topic": ["orders"] * _BATCH,
                    "queue_id": pa.array([n % 8 for n in numbers], pa.int32()),
                    "body": body,
                    "tags": ["paid"] * _BATCH,
                    "keys": [
                        f"order-{n} user-{n % 5000}" if users else f"order-{n}" for n in numbers
                    ],
                }
            )
    return batches * _BATCH


def linked(store: Path, root: Path, times: int) -> Path:
    """Make a root of so many topics, each with the files of one store (links)."""
    shutil.rmtree(root, ignore_errors=True)
    for number in range(times):
        shutil.copytree(store / "logs-0", root / f"logs{number}-0", copy_function=os.link)
    return root


def fresh(path: Path) -> Path:
    """Return a directory that is not there."""
    shutil.rmtree(path, ignore_errors=True)
    return path


def _python_workers() -> Iterator[Any]:
    """Go through the processes of Spark's Python tasks on this machine.

    Processes that plan and commit are left out: a commit maps the files of which it keeps digests,
    and pages of the page cache count as resident.
    """
    import psutil

    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if "python" in process.name() and process.cmdline()[-1:] == ["pyspark.worker"]:
                yield process


def watched(run: Callable[[], Any]) -> tuple[float, int]:
    """Run something: (processor seconds of all processes, peak MB of the largest Python worker)."""
    for process in _python_workers():
        with contextlib.suppress(OSError):
            Path(f"/proc/{process.pid}/clear_refs").write_text("5")  # the peak starts anew
    before = _spent()
    run()
    # Of processes that have ended meanwhile nothing is known: idle workers, mostly.
    cpu = sum(seconds - before.get(pid, 0.0) for pid, seconds in _spent().items())
    return cpu, max((_peak_mb(process.pid) for process in _python_workers()), default=0)


def _spent() -> dict[int, float]:
    """Return the processor seconds of this process and of all that it has started, by id."""
    import psutil

    found = {}
    for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            found[process.pid] = times.user + times.system
    return found


def _peak_mb(pid: int) -> int:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) >> 10
    return 0
