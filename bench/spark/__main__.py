"""Spark beside what bounds it: `python -m bench.spark [--mib 1024] [--rounds 3] [--only read]`.

Every figure has bounds beside it that are measured in the same run and in turn with it, since the
machine may be busy: the ratio of a round counts. Data is in the page cache, splits are as a user
gets them (128 MiB), sessions as `tubestore.spark.session` makes them. `x cores` is the time of the
kernels in one process, shared out. The time of as many processes without Spark is given beside it,
since two cores are seldom twice one. `memory` is the peak of the largest Python worker. `audit`,
`statistics`, `filter`, `partition` and `count` read the same files under four names: they take some
tenths of a second a GiB, of which 0.2 s would be Spark's start of a job. `growth-*` likewise, under
1 to 8 names. `planning` and `aging` are processor time, without a session.

Needs PySpark and a Java (`make test-spark` installs both).
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import nullcontext
from importlib import metadata
from pathlib import Path
from typing import Any, TextIO

from bench.measure.harness import Run, file_system, machine
from bench.report.table import lines, machine_line
from bench.spark.aged import aging, aging_line
from bench.spark.cases import Cases, SparkCase, Way
from bench.spark.many import planning, planning_line
from bench.spark.stores import BODY, watched
from bench.spark.stream import latency
from bench.workloads.cases import Contestant, Measure, Role
from bench.workloads.payload import standard_library
from bench.workloads.workload import Sizes, Workload
from tubestore.spark import session

_STREAM, _PLANNING, _AGING = "stream", "planning", "aging"
_WARM_JOBS = 40
#: The contestant that the others are compared with; the case has the way to do it.
_OURS = Contestant("in Spark", "ours", lambda case: nullcontext(lambda messages: Measure(0, 0, 0)))


def measured(case: SparkCase, rounds: int, kind: str) -> Iterator[Run]:
    """Do a case in all its ways, in turn, after one round that does not count."""
    for number in range(-1, rounds):
        turn = max(number, 0) % len(case.ways)
        for way in case.ways[turn:] + case.ways[:turn]:
            run = _run(case, way, number, kind)
            if number >= 0:
                yield run


def _run(case: SparkCase, way: Way, number: int, kind: str) -> Run:
    role: Role = "ours" if way is case.ways[0] else "limit"
    took: list[float] = []

    def timed() -> None:
        began = time.perf_counter()
        way.run()
        took.append(time.perf_counter() - began)

    cpu, peak = watched(timed)
    return Run(case.name, way.name, role, number, case.messages, 1, took[0] / way.cores, cpu,
               kind, peak)  # fmt: skip


def table(case: SparkCase, runs: list[Run]) -> str:
    """Format a case."""
    sizes = Sizes(case.messages, case.messages)
    workload = Workload(case.name, case.question, sizes, (_OURS,), case.bars, shows_memory=True)
    peak = max(run.rss_mb for run in runs if run.role == "ours")
    met = "reached" if peak < case.memory_mb else "MISSED"
    memory = f"  the largest Python worker: {peak} MB (bar {case.memory_mb} MB: {met})\n"
    return "\n".join(lines(workload, runs, [])) + memory


def stream_line(found: dict[str, Any]) -> str:
    """Format what a stream took."""
    met = "reached" if found["p90_ms"] < found["bar_p90_ms"] else "MISSED"
    return (
        f"spark-stream: from the writer to a query, {found['mb_per_second']} MB/s in "
        f"{found['batches']} batches: p50 {found['p50_ms']} ms, p90 {found['p90_ms']} ms "
        f"(bar {found['bar_p90_ms']} ms: {met})"
    )


def measure(asked: argparse.Namespace, out: TextIO, place: Path) -> None:
    """Do all cases that were asked for; print them, and write their lines."""

    def note(values: dict[str, Any]) -> None:
        out.write(json.dumps(values, ensure_ascii=False) + "\n")
        out.flush()

    described = machine(standard_library(), "full") | {"mib": asked.mib}
    described["payload"] = {"body": BODY, "xxh3": "random bytes, other ones each time"}
    described["versions"]["pyspark"] = metadata.version("pyspark")
    note(described)
    print(machine_line(described) + f"\n{asked.mib} MiB of bodies\n", flush=True)
    only = asked.only.split(",") if asked.only else [""]
    alone = (
        (_PLANNING, planning_line, lambda: planning(place, asked.rounds)),
        (_AGING, aging_line, lambda: aging(place)),
    )
    for name, line, work in alone:
        if any(name.startswith(part) for part in only):
            for found in work():
                note(found)
                print(line(found), flush=True)
    if all(part and any(name.startswith(part) for name, _, _ in alone) for part in only):
        return
    spark = session(memory="4g", quiet=True)
    _warm(spark)
    cases = Cases(spark, place, asked.mib)
    kind = file_system(place)
    try:
        for name, make in cases.all():
            if any(name.startswith(part) for part in only):
                case, runs = make(), []
                for run in measured(case, asked.rounds, kind):
                    out.write(run.as_json() + "\n")
                    runs.append(run)
                print(table(case, runs), flush=True)
                cases.tidy()
        if any(_STREAM.startswith(part) for part in only):
            found = latency(spark, place)
            note(found)
            print(stream_line(found), flush=True)
    finally:
        cases.close()
        spark.stop()


def _warm(spark: Any) -> None:
    """Run small jobs: until then Java's compiler takes half a second of the cores a job."""
    for _ in range(_WARM_JOBS):
        spark.range(0, 8, numPartitions=8).mapInArrow(
            lambda batches: batches, "id bigint"
        ).collect()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.spark",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--mib", type=int, default=1024, help="bodies in a store (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", metavar="NAME,…", help="cases with names that begin like this")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write every run as a JSON line")
    parser.add_argument("--dir", type=Path, help="where to write")
    asked = parser.parse_args()
    out = asked.out or Path(os.devnull)
    with tempfile.TemporaryDirectory(dir=asked.dir) as place, out.open("w") as file:
        measure(asked, file, Path(place))


if __name__ == "__main__":
    main()
