"""Spark beside what bounds it: `python -m bench.spark [--mib 512] [--rounds 3] [--only read]`.

Every figure stands beside a bound that is measured in the same run and in turn with it, since the
machine may be busy: what counts is the ratio.

| case | bound |
| --- | --- |
| read | Spark's own Parquet source on the same rows; batches from memory through `mapInArrow` |
| audit without checksums, copy | the same kernels in this process, times the cores |
| statistics | a full read |
| rebuild | `rocketcompat.rebuild`, queues and index of a CommitLog in this process |
| write | a task that throws away what it is given |
| stream | 0.4 s at the 90th percentile, at 20 MB/s |

Needs PySpark and a Java (`make test-spark` installs both).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

import rocketcompat
import tubestore
from rocketcompat.directory import StoreDirectory
from rocketcompat.quarantine import Quarantine
from rocketcompat.rebuild import rebuild as rebuild_here
from rocketcompat.spark.rebuilding import STRUCTURES, rebuild
from tubestore.clock import SystemClock
from tubestore.spark import read, read_stream, session, write
from tubestore.spark.jobs.audit import AuditJob, audit
from tubestore.spark.jobs.compact import compact, plan_compact
from tubestore.spark.jobs.stats import stats
from tubestore.spark.options import ReadOptions
from tubestore.spark.planning import plan

BODY = 1024
PARTITIONS = 10
SPLIT = "32m"
CASES = ("reads", "jobs", "rebuild", "writes", "stream")


def fill(root: Path, mib: int) -> int:
    """Write a store of so many MiB of bodies; returns the messages."""
    count = mib << 10
    table = pa.table(
        {
            "body": [os.urandom(BODY) for _ in range(1000)],
            "partition": pa.array([n % PARTITIONS for n in range(1000)], pa.int32()),
            "filter_item": ["paid"] * 1000,
        }
    )
    with tubestore.open(root, segment_size_bytes=128 << 20) as store:
        topic = store.create_topic("logs", partitions=PARTITIONS)
        for _ in range(-(-count // 1000)):
            topic.append_batch(table)
    return -(-count // 1000) * 1000


def fill_log(root: Path, mib: int) -> int:
    """Write a CommitLog of so many MiB of bodies, each with two keys; returns the messages."""
    count = mib << 10
    body = [os.urandom(BODY) for _ in range(1000)]
    with rocketcompat.open(root, "w", layouts=set()) as store:
        for first in range(0, count, 1000):
            numbers = range(first, first + 1000)
            store.put_columns(
                {
                    "topic": ["orders"] * 1000,
                    "queue_id": pa.array([n % 8 for n in numbers], pa.int32()),
                    "body": body,
                    "tags": ["paid"] * 1000,
                    "keys": [f"order-{n} user-{n % 5000}" for n in numbers],
                }
            )
    return -(-count // 1000) * 1000


def alternate(
    rounds: int, before: Callable[[], Any] = lambda: None, **work: Callable[[], Any]
) -> dict[str, float]:
    """Return the median seconds of each, taken in turn after one round that does not count."""
    taken: dict[str, list[float]] = {name: [] for name in work}
    for number in range(rounds + 1):
        for name, run in work.items():
            before()
            began = time.perf_counter()
            run()
            if number:
                taken[name].append(time.perf_counter() - began)
    return {name: statistics.median(values) for name, values in taken.items()}


class Bench:
    """One store, one session, and the figures so far."""

    def __init__(self, spark: Any, place: Path, mib: int, rounds: int) -> None:
        self.spark, self.place, self.mib, self.rounds = spark, place, mib, rounds
        self.root, self.count = str(place / "store"), 0
        self.cores = os.cpu_count() or 1
        self.results: list[dict[str, Any]] = []

    def report(
        self,
        name: str,
        seconds: float,
        bound: str,
        bound_seconds: float,
        bar: str,
        count: int | None = None,
    ) -> None:
        """Print a case beside its bound: a ratio above 1 is quicker than the bound."""
        count = self.count if count is None else count
        row = {
            "case": name,
            "messages_per_second": round(count / seconds),
            "bound": bound,
            "bound_per_second": round(count / bound_seconds),
            "ratio": round(bound_seconds / seconds, 2),
            "bar": bar,
        }
        self.results.append(row)
        print(
            f"{name:<22}{row['messages_per_second']:>12,}/s  {bound:<28}"
            f"{row['bound_per_second']:>12,}/s  ratio {row['ratio']:<6} bar {bar}",
            flush=True,
        )

    def fill(self) -> None:
        """Write the store, unless it is there."""
        if not self.count:
            self.count = fill(self.place / "store", self.mib)

    def frame(self, **options: Any) -> Any:
        """Return the store as a DataFrame that was not used yet."""
        return read(self.spark, self.root, maxSplitBytes=SPLIT, **options)

    def reads(self) -> None:
        """A full read into an action."""
        self.fill()
        parquet = str(self.place / "parquet")
        self.frame().write.parquet(parquet)
        columns = ["partition_id", "offset", "received_time_ms", "key_code", "body"]
        table = pa.table(
            {
                "partition_id": pa.array([0] * 4096, pa.int32()),
                "offset": pa.array(range(4096), pa.int64()),
                "received_time_ms": pa.array(range(4096), pa.int64()),
                "key_code": pa.array([1] * 4096, pa.int32()),
                "body": [bytes(BODY)] * 4096,
            }
        )
        tasks = max(self.cores, (self.count * BODY) >> 25)
        each = self.count // tasks // 4096

        def from_memory(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for _ in batches:
                for _ in range(each):
                    yield from table.to_batches()

        schema = "partition_id int, offset bigint, received_time_ms bigint, key_code int"
        times = alternate(
            self.rounds,
            ours=lambda: noop(self.frame(columns=columns)),
            parquet=lambda: noop(self.spark.read.parquet(parquet).select(*columns)),
            memory=lambda: noop(
                self.spark.range(0, tasks, numPartitions=tasks).mapInArrow(
                    from_memory, f"{schema}, body binary"
                )
            ),
        )
        moved = each * 4096 * tasks
        bar = "1 of Parquet or 0.9 of memory, the lesser"
        self.report("read", times["ours"], "Parquet", times["parquet"], bar)
        memory = times["memory"] * self.count / moved
        self.report("read", times["ours"], "batches from memory", memory, bar)

    def jobs(self) -> None:
        """Kernels in tasks beside kernels in this process."""
        self.fill()
        made = plan(ReadOptions.parse({"path": self.root, "maxSplitBytes": SPLIT}))
        job = AuditJob(self.root, check_crc=False)
        times = alternate(
            self.rounds,
            spark=lambda: audit(self.spark, self.root, check_crc=False),
            here=lambda: [job.work(n, split) for n, split in enumerate(made.splits)],
        )
        name = f"one process × {self.cores} cores"
        self.report("audit, no CRC", times["spark"], name, times["here"] / self.cores, "0.8")

        def copy_here() -> None:
            out = fresh(self.place / "here")
            job, planned = plan_compact(self.root, str(out), "copy", {"maxSplitBytes": SPLIT})
            for number, split in enumerate(planned.splits):
                job.work(number, split)

        times = alternate(
            self.rounds,
            spark=lambda: compact(
                self.spark, self.root, str(fresh(self.place / "copy")), maxSplitBytes=SPLIT
            ),
            here=copy_here,
        )
        self.report("copy, published", times["spark"], name, times["here"] / self.cores, "0.8")
        times = alternate(
            self.rounds,
            stats=lambda: stats(self.spark, self.root),
            full=lambda: noop(self.frame()),
        )
        self.report("statistics", times["stats"], "a full read", times["full"], "10")

    def rebuild(self) -> None:
        """Queues and index of a CommitLog of the same size, in Spark and in this process."""
        store = self.place / "rocket"
        count = fill_log(store, self.mib)
        directory = StoreDirectory(store)

        def here() -> None:
            kept = Quarantine(directory.vfs, str(store))
            list(rebuild_here(directory, STRUCTURES, clock=SystemClock(), quarantine=kept))

        def clean() -> None:
            shutil.rmtree(store / ".tubestore", ignore_errors=True)

        times = alternate(
            self.rounds,
            clean,
            spark=lambda: rebuild(self.spark, str(store)),
            here=here,
        )
        self.report("rebuild", times["spark"], "one process", times["here"], "1.5", count)
        shutil.rmtree(store)

    def writes(self) -> None:
        """Rows of the JVM into a store."""
        self.fill()
        tasks = max(self.cores, (self.count * BODY) >> 26)
        rows = self.spark.range(0, self.count, numPartitions=tasks).selectExpr(
            "'logs' AS topic", "CAST(id % 10 AS INT) AS partition",
            f"CAST(repeat(CAST(id % 10 AS STRING), {BODY}) AS BINARY) AS body",
        )  # fmt: skip

        def away(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                yield batch.slice(0, 0)

        times = alternate(
            self.rounds,
            ours=lambda: write(rows, str(fresh(self.place / "sink"))),
            away=lambda: noop(rows.mapInArrow(away, rows.schema)),
        )
        self.report("write, published", times["ours"], "thrown away", times["away"], "0.8")

    def stream(self, seconds: float = 20.0, rate: int = 20_000) -> None:
        """Messages of a live writer until they are seen by a query: milliseconds."""
        root = self.place / "live"
        with tubestore.open(root) as store:
            store.create_topic("logs", partitions=PARTITIONS)
        ages: list[float] = []
        ending = threading.Event()

        def produce() -> None:
            body = [bytes(BODY)] * (rate // 20)
            with tubestore.open(root) as store:
                while not ending.wait(0.05):
                    store.topic("logs").append_batch({"body": body})

        def seen(frame: Any, _: int) -> None:
            row = frame.selectExpr("min(received_time_ms)", "max(received_time_ms)").first()
            if row[0] is not None:
                now = time.time() * 1000
                ages.extend((now - row[0], now - row[1]))

        query = (
            read_stream(self.spark, str(root), startingOffsets="latest")
            .writeStream.foreachBatch(seen)
            .option("checkpointLocation", str(self.place / "checkpoint"))
            .start()
        )
        thread = threading.Thread(target=produce)
        thread.start()
        time.sleep(seconds)
        ending.set()
        thread.join()
        query.stop()
        found = sorted(ages[len(ages) // 4 :])
        p50, p90 = found[len(found) // 2], found[len(found) * 9 // 10]
        self.results.append({"case": "stream", "p50_ms": round(p50), "p90_ms": round(p90)})
        mb = rate * BODY / 1e6
        print(f"stream, {mb:.0f} MB/s        p50 {p50:.0f} ms  p90 {p90:.0f} ms  bar 400 ms at p90")

    def growth(self, sizes: list[int]) -> None:
        """The same job on more: seconds should grow as the data does."""
        for gib in sizes:
            place = fresh(self.place / "grown")
            count = fill(place, gib << 10)
            times = alternate(1, audit=partial(audit, self.spark, str(place)))
            rate = round(count / times["audit"])
            self.results.append({"case": "audit", "gib": gib, "messages_per_second": rate})
            print(f"audit of {gib} GiB        {rate:>12,}/s", flush=True)
            shutil.rmtree(place)


def noop(frame: Any) -> None:
    """Run a DataFrame and do nothing with its rows."""
    frame.write.format("noop").mode("overwrite").save()


def fresh(path: Path) -> Path:
    """Return a directory that is not there."""
    shutil.rmtree(path, ignore_errors=True)
    return path


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.spark", description=__doc__)
    parser.add_argument("--mib", type=int, default=512, help="bodies in the store")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default=",".join(CASES), help="some of %(default)s")
    parser.add_argument("--sizes", default="", metavar="GIB", help="1,2,4,8: how an audit grows")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures too")
    parser.add_argument("--dir", type=Path, help="where to write")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.dir) as place:
        spark = session(memory="4g")
        spark.sparkContext.setLogLevel("OFF")
        try:
            bench = Bench(spark, Path(place), given.mib, given.rounds)
            load = os.getloadavg()[0]
            print(f"{given.mib} MiB of bodies of {BODY} B, {bench.cores} cores, load {load:.1f}")
            for name in CASES:
                if name in given.only.split(","):
                    getattr(bench, name)()
            bench.growth([int(size) for size in given.sizes.split(",") if size])
            if given.json:
                given.json.write_text(json.dumps(bench.results, indent=1) + "\n")
        finally:
            spark.stop()


if __name__ == "__main__":
    main()
