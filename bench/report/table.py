"""The table: how much each contestant did, and its ratio to this store in the same rounds."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

from bench.measure.harness import Run, Skipped
from bench.workloads.table import WORKLOADS
from bench.workloads.workload import Within, Workload

_WIDTH = 28
_HEAD = (
    f"  {'':{_WIDTH}}{'min':>9}{'median':>9}{'max':>9}  k/s {'us/call':>9}{'ours/it':>9}"
    f"{'min..max':>15}{'by cpu':>8}  bar"
)


def ratios(ours: list[Run], theirs: list[Run]) -> list[float]:
    """Return this store's rate over a rival's, round by round."""
    by_round = {run.round: run.rate for run in theirs}
    return [run.rate / by_round[run.round] for run in ours if run.round in by_round]


def cpu_ratio(ours: list[Run], theirs: list[Run]) -> float | None:
    """Return the ratio by processor time instead of wall time; None where it is not known."""
    spent = [[run.cpu_seconds / run.messages for run in group] for group in (ours, theirs)]
    if not all(spent) or min(map(min, spent)) <= 0:
        return None
    return median(spent[1]) / median(spent[0])


def verdict(found: list[float], bar: float) -> str:
    """Return whether a bar was reached: in every round, in none, or in some of them."""
    if min(found) >= bar:
        return "reached"
    return "MISSED" if max(found) < bar else "unclear"


def stay(within: Within, runs: list[Run], *, judge: bool) -> str:
    """Return the most that a run took of what is bounded, and whether all stayed within."""
    seconds = max(run.seconds for run in runs)
    memory, descriptors = max(r.rss_mb for r in runs), max(r.descriptors for r in runs)
    text = f"{seconds:.2f} s, {memory} MB, {descriptors} descriptors"
    if not judge:
        return text
    inside = seconds <= within.seconds and memory <= within.resident_mb
    inside = inside and descriptors <= within.descriptors
    bounds = f"{within.seconds:g} s, {within.resident_mb} MB, {within.descriptors}"
    return f"{text} ({bounds}: {'reached' if inside else 'MISSED'})"


def lines(
    workload: Workload, runs: Iterable[Run], skipped: Iterable[Skipped], *, judge: bool = True
) -> Iterator[str]:
    """Format one workload; `judge`: add which bars were reached."""
    groups: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        groups[run.who].append(run)
    if not groups:
        return
    ours = groups.get(workload.contestants[0].name, [])
    bars = {bar.reference: bar.ratio for bar in workload.bars}
    first = next(iter(groups.values()))[0]
    yield f"{workload.name}: {workload.question} ({first.file_system})"
    yield _HEAD
    for who, group in groups.items():
        rates = [run.rate / 1000 for run in group]
        call = median(run.seconds / run.calls for run in group) * 1e6
        text = f"  {who:{_WIDTH}}" + "".join(
            f"{value:9,.{0 if value >= 100 else 1}f}"
            for value in (min(rates), median(rates), max(rates))
        )
        text += f"      {call:9,.{0 if call >= 100 else 2}f}"
        found = ratios(ours, group) if group is not ours else []
        if found:
            text += f"{median(found):9.2f}{f'{min(found):.2f}..{max(found):.2f}':>15}"
            by_cpu = cpu_ratio(ours, group)
            text += f"{'' if by_cpu is None else f'{by_cpu:.2f}':>8}"
        if found and judge and who in bars:
            met = verdict(found, bars[who])
            text += f"  {bars[who]:g} {met}"
        if any(run.p50_us for run in group):
            p50, p99 = (
                median(getattr(run, name) for run in group) for name in ("p50_us", "p99_us")
            )
            text += f"  p50 {p50:.1f} us, p99 {p99:.1f} us"
        if workload.within is not None and group[0].descriptors:
            text += f"  {stay(workload.within, group, judge=judge and group[0].role == 'ours')}"
        if workload.shows_memory:
            text += f"  {median(run.rss_mb for run in group):.0f} MB"
        yield text
    reasons: dict[str, list[str]] = defaultdict(list)
    for one in skipped:
        reasons[one.reason].append(one.who)
    for reason, names in reasons.items():
        yield f"  not run: {', '.join(names)} ({reason})"
    yield ""


def machine_line(machine: dict[str, Any]) -> str:
    """Return a line about the machine of the measurement."""
    versions = ", ".join(f"{k} {v}" for k, v in machine["versions"].items())
    settings = "".join(f"\n{k}: {v}" for k, v in machine.get("settings", {}).items())
    return (
        f"{machine['time']}  {machine['processor']}, {machine['cores']} cores, "
        f"{machine['memory_gb']} GB, load {machine['load']:.1f}, {machine['system']}; "
        f"scale {machine['scale']}, commit {machine.get('commit') or '-'}\n"
        f"Python {machine['python']}, {versions}; bodies of {machine['payload']['body']} bytes"
        f"{settings}"
    )


def from_file(path: Path) -> Iterator[str]:
    """Format a results file again."""
    runs: dict[str, list[Run]] = defaultdict(list)
    skipped: dict[str, list[Skipped]] = defaultdict(list)
    judge = True
    for line in path.read_text(encoding="utf-8").splitlines():
        values = json.loads(line)
        kind = values.pop("kind")
        if kind == "machine":
            judge = values["scale"] != "tiny"
            yield machine_line(values) + "\n"
        elif kind == "run":
            runs[values["workload"]].append(Run(**values))
        elif kind == "skipped":
            skipped[values["workload"]].append(Skipped(**values))
    for workload in WORKLOADS:
        yield from lines(workload, runs[workload.name], skipped[workload.name], judge=judge)
