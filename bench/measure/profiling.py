"""Where the time of one workload goes: cProfile over what is on the clock, thread by thread."""

from __future__ import annotations

import cProfile
import io
import pstats
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from bench.layouts.layout import fresh
from bench.workloads import cases
from bench.workloads.payload import Payload
from bench.workloads.workload import Scale, Workload

_ROWS = 30


def profile(workload: Workload, scale: Scale, payload: Payload, place: Path) -> str:
    """Run our contestant warm, then profiled; return the top of the profiles."""
    case = workload.case(scale, payload, fresh(place / workload.name))
    contestant = workload.contestants[0]
    others: list[cProfile.Profile] = []
    mine: list[cProfile.Profile] = []

    @contextmanager
    def around() -> Iterator[None]:
        mine.append(cProfile.Profile())
        mine[-1].enable()
        try:
            yield
        finally:
            mine[-1].disable()

    with case.stack, contestant.start(case) as runner:
        runner(max(1, case.messages // 10))
        plain = runner(case.messages)
        cases.around = around
        try:
            with _other_threads(others):
                profiled = runner(case.messages)
        finally:
            cases.around = nullcontext
    parts = [
        f"{workload.name}, {contestant.name}: {plain.messages / plain.seconds:,.0f} messages/s, "
        f"{plain.cpu_seconds / plain.messages * 1e6:.2f} µs of processor time a message; "
        f"{profiled.messages / profiled.seconds:,.0f} messages/s while profiled",
        f"The calling thread:\n{_top(mine)}",
    ]
    if others:
        parts.append(f"All other threads, their waiting included:\n{_top(others)}")
    return "\n\n".join(parts)


def _top(profiles: list[cProfile.Profile]) -> str:
    out = io.StringIO()
    stats = pstats.Stats(profiles[0], stream=out)
    for more in profiles[1:]:
        stats.add(more)
    stats.strip_dirs().sort_stats("tottime").print_stats(_ROWS)
    return out.getvalue()


@contextmanager
def _other_threads(profiles: list[cProfile.Profile]) -> Iterator[None]:
    """Profile the threads that start meanwhile, where Python allows it (not from 3.12 on)."""
    run = threading.Thread.run

    def profiled(thread: threading.Thread) -> None:
        one = cProfile.Profile()
        try:
            one.enable()
        except ValueError:
            run(thread)
            return
        try:
            run(thread)
        finally:
            one.disable()
            profiles.append(one)

    threading.Thread.run = profiled  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        threading.Thread.run = run  # type: ignore[method-assign]
