"""Results of a run that never was: cells of known costs, for the tests of reports."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from bench.report.costs import Question
from bench.report.formats import terms
from bench.workloads.works import PLACES

CONSTANTS = {
    "tubestore": {"message": 5e-6, "byte": 1e-9, "look-up": 3e-7, "sync": 1e-4, "piece": 4e-6},
    "kafka-format": {"message": 4e-6, "byte": 2e-9, "new file": 3e-5, "sync": 3e-4, "piece": 2e-5},
    "lmdb": {"message": 6e-6, "byte": 3e-9, "look-up": 1e-6, "sync": 2e-4, "piece": 1e-6},
}
HEAD = {
    "kind": "laboratory", "time": "2026-11-23T00:00:00Z", "scale": "full", "commit": "abc",
    "processor": "a <processor>", "cores": 2, "memory_gb": 24, "load": 0.1, "system": "Linux 6",
    "python": "3.11", "versions": {"numpy": "2"}, "payload": {},
    "settings": {"lmdb": "writemap & more", "tubestore": "the defaults"},
}  # fmt: skip


def seconds_of(layout: str, work: str, asked: Question) -> float:
    """Return what a message of a cell costs."""
    counts = terms(layout, work, asked)
    return sum(CONSTANTS[layout].get(name, 0.0) * count for name, count in counts.items())


def questions() -> list[tuple[str, Question]]:
    """Return the cells."""
    found = [
        (work, Question(topics, partitions, 1024, messages=200_000))
        for work in ("append", "batch", "read", "scan")
        for topics, partitions in PLACES
    ]
    found += [("append", Question(1, 10, body, messages=200_000)) for body in (100, 16_384)]
    found.append(("append", Question(1, 10, 1024, "fsync", messages=200_000)))
    return found


def rows(noise: float = 0.0) -> list[dict[str, Any]]:
    """Return the rows of the run."""
    drawn = random.Random(1)
    found: list[dict[str, Any]] = [HEAD]
    for work, asked in questions():
        for layout in CONSTANTS:
            seconds = seconds_of(layout, work, asked) * (1 + noise * drawn.uniform(-1, 1))
            run = _row(work, layout, asked) | {
                "kind": "run", "seconds": seconds * asked.messages, "cpu_seconds": 1.0,
                "p50_us": 1.0, "p99_us": 5.0, "p999_us": 9.0, "max_us": 99.5, "peak_mb": 100,
                "descriptors": 9, "files": 3, "disk_bytes": 4096,
            }  # fmt: skip
            rates = (1 / seconds / 1.1, 1 / seconds, 1.1 / seconds)
            found += [run | {"round": n, "rate": rate} for n, rate in enumerate(rates)]
    gone = _row("append", "tubemq", Question(10_000, 1, 1024))
    found.append(gone | {"kind": "left_out", "reason": "10,000 stores need <33 GB> of buffers"})
    found.append({"kind": "block", "label": "append 1 × 1", "disturbed": ["write"]})
    return found


def _row(work: str, layout: str, asked: Question) -> dict[str, Any]:
    return {
        "work": work, "layout": layout, "topics": asked.topics, "partitions": asked.partitions,
        "body": asked.body, "skew": "even", "threads": 1, "durability": asked.durability,
        "batch": 1000, "messages": asked.messages, "stored": asked.messages, "file_system": "tmpfs",
    }  # fmt: skip


def write(path: Path, noise: float = 0.0) -> Path:
    """Write the run's results."""
    lines = [json.dumps(row) + "\n" for row in rows(noise)]
    path.write_text("".join(lines), encoding="utf-8")
    return path
