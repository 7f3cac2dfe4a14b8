"""Repeat and interleave: every contestant warms up, then they take turns, round by round.

A rate means little on a shared machine; the ratio of two that were measured one right after the
other means more. So rounds are what is compared, and the order turns from round to round.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from bench.layouts.layout import Unavailable, fresh
from bench.layouts.peers import PEERS
from bench.workloads.cases import Contestant, Measure, Runner
from bench.workloads.payload import Payload
from bench.workloads.workload import Scale, Workload

PACKAGES = ("numpy", "pyarrow", "isal", "lmdb", "rocksdict")
FEWEST_MESSAGES = 200


@dataclass(frozen=True)
class Plan:
    """How often, and how long at most a run should take (seconds)."""

    rounds: int
    real_rounds: int
    run_seconds: float
    #: Rivals that take part; None: all.
    peers: frozenset[str] | None = None


PLANS: dict[Scale, Plan] = {
    "full": Plan(rounds=5, real_rounds=3, run_seconds=1.0),
    "quick": Plan(rounds=3, real_rounds=0, run_seconds=0.25, peers=frozenset({"lmdb"})),
    "tiny": Plan(rounds=1, real_rounds=0, run_seconds=0.1),
}


@dataclass(frozen=True)
class Run:
    """One measured run; a JSON line of the results."""

    workload: str
    who: str
    role: str
    round: int
    messages: int
    calls: int
    seconds: float
    cpu_seconds: float
    file_system: str
    rss_mb: int
    p50_us: float = 0.0
    p99_us: float = 0.0
    #: Of a process of its own; 0 for any other.
    descriptors: int = 0

    @property
    def rate(self) -> float:
        """Messages a second."""
        return self.messages / self.seconds

    def as_json(self) -> str:
        """Return its line."""
        values = asdict(self)
        values |= {n: round(values[n], 9) for n in ("seconds", "cpu_seconds", "p50_us", "p99_us")}
        return json.dumps({"kind": "run", **values}, ensure_ascii=False)


@dataclass(frozen=True)
class Skipped:
    """A contestant that could not take part."""

    workload: str
    who: str
    reason: str

    def as_json(self) -> str:
        """Return its line."""
        return json.dumps({"kind": "skipped", **asdict(self)}, ensure_ascii=False)


def compete(
    workload: Workload,
    scale: Scale,
    payload: Payload,
    place: Path,
    note: Callable[[Run | Skipped], None],
    rounds: int | None = None,
) -> None:
    """Run one workload and hand over what was measured, as it comes."""
    plan = PLANS[scale] if rounds is None else replace(PLANS[scale], rounds=rounds)
    case = workload.case(scale, payload, fresh(place / workload.name))
    kind = file_system(place)
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, case.place, ignore_errors=True)
        stack.enter_context(case.stack)
        ready: list[tuple[Contestant, Runner, int]] = []
        for name, why_not in workload.left_out:
            note(Skipped(workload.name, name, why_not))
        for contestant in workload.contestants:
            try:
                if not _takes_part(contestant, plan):
                    raise Unavailable(f"left out at scale {scale}")
                runner = stack.enter_context(contestant.start(case))
                count = case.messages
                if contestant.role != "real" and not workload.whole:  # drivers warm up themselves
                    count = _count_for(runner, case.messages, plan.run_seconds)
                ready.append((contestant, runner, count))
            except Unavailable as reason:
                note(Skipped(workload.name, contestant.name, str(reason)))
        for number in range(plan.rounds if ready else 0):
            turned = ready[number % len(ready) :] + ready[: number % len(ready)]
            for contestant, runner, count in turned:
                if contestant.role == "real" and number >= plan.real_rounds:
                    continue
                note(_run(workload.name, contestant, number, runner(count), kind))


def _takes_part(contestant: Contestant, plan: Plan) -> bool:
    if contestant.role == "real":
        return plan.real_rounds > 0
    return contestant.role != "peer" or plan.peers is None or contestant.name in plan.peers


def _count_for(runner: Runner, messages: int, seconds: float) -> int:
    """Warm up, and choose how many messages a slow contestant is given."""
    warm = runner(max(FEWEST_MESSAGES, messages // 10))
    possible = int(warm.messages / warm.seconds * seconds)
    return min(messages, max(FEWEST_MESSAGES, possible))


def _run(workload: str, who: Contestant, number: int, found: Measure, kind: str) -> Run:
    return Run(
        workload,
        who.name,
        who.role,
        number,
        found.messages,
        found.calls,
        found.seconds,
        found.cpu_seconds,
        kind,
        found.memory_mb or resident_mb(),
        found.p50_us,
        found.p99_us,
        found.descriptors,
    )


def resident_mb() -> int:
    """Return the resident memory of this process."""
    import psutil  # type: ignore[import-untyped]

    return int(psutil.Process().memory_info().rss >> 20)


def file_system(path: Path) -> str:
    """Return the type of the file system that a path is on: tmpfs, ext4 …"""
    import psutil

    text = str(path.resolve())
    best = ("", "unknown")
    for part in psutil.disk_partitions(all=True):
        inside = text == part.mountpoint or text.startswith(part.mountpoint.rstrip("/") + "/")
        if inside and len(part.mountpoint) >= len(best[0]):
            best = (part.mountpoint, part.fstype)
    return best[1]


def machine(payload: Payload, scale: Scale) -> dict[str, Any]:
    """Describe what it was measured on and with; no names of hosts, people or folders."""
    import psutil

    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = "-"
    return {
        "kind": "machine",
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "scale": scale,
        "commit": _commit(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_gb": round(psutil.virtual_memory().total / 2**30),
        "load": os.getloadavg()[0],
        "system": f"{platform.system()} {platform.release().split('-')[0]}",
        "python": platform.python_version(),
        "versions": versions,
        "settings": {peer.name: peer.settings for peer in PEERS},
        "payload": {"bytes": len(payload.text), "body": payload.body_size, "xxh3": payload.digest},
    }


def _commit() -> str:
    """Return the commit that is measured, with a + if files differ from it."""
    git = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty=+"]
    try:
        found = subprocess.run(git, capture_output=True, text=True, check=False, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return found.stdout.strip()


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or sys.platform
