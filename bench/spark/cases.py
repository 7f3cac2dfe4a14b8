"""What Spark is asked to do, beside what bounds it: each case does the same in several ways."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from bench.spark.bounds import COLUMNS, arrow_writer, from_memory, plain_reader, thrown_away
from bench.spark.stores import BODY, PARTITIONS, RARE, fill, fill_log, fresh, linked
from bench.workloads.workload import Bar
from rocketcompat.check.whole import check_store
from rocketcompat.formats import CONSUME_QUEUE_DIRECTORY, INDEX_DIRECTORY
from rocketcompat.inspect.directory import StoreDirectory
from rocketcompat.repair.rebuild import rebuild as rebuild_here
from rocketcompat.spark import write as write_log
from rocketcompat.spark.jobs.audit import audit as audit_log
from rocketcompat.spark.jobs.rebuild import rebuild
from rocketcompat.spark.jobs.to_log import convert_tube, plan_tube_convert
from rocketcompat.spark.jobs.to_shards import convert, plan_convert
from tubestore.clock import SystemClock
from tubestore.core.quarantine import Quarantine
from tubestore.spark import read, write
from tubestore.spark.jobs.audit import AuditJob, audit, plan_audit
from tubestore.spark.jobs.compact import compact, plan_compact
from tubestore.spark.jobs.stats import stats
from tubestore.spark.kit.pushdown import SETTING

#: Under how many names a store is there for jobs that take a second a GiB.
TIMES = 4
_STRUCTURES = (CONSUME_QUEUE_DIRECTORY, INDEX_DIRECTORY)


@dataclass(frozen=True)
class Way:
    """One way of doing it; what it took is shared out among `cores`."""

    name: str
    run: Callable[[], Any]
    cores: int = 1


@dataclass(frozen=True)
class SparkCase:
    """A question: messages, this package's way and the bounds, and the bars."""

    name: str
    question: str
    messages: int
    ways: tuple[Way, ...]
    bars: tuple[Bar, ...] = ()
    #: The most that a Python worker may take of memory.
    memory_mb: int = 512


class Cases:
    """Makes the cases over stores that are written when they are needed first."""

    def __init__(self, spark: Any, place: Path, mib: int) -> None:
        self.spark, self.place, self.mib = spark, place, mib
        self.cores = os.cpu_count() or 1
        self._counts: dict[str, int] = {}
        self._pool: ProcessPoolExecutor | None = None

    def all(self) -> Iterator[tuple[str, Callable[[], SparkCase]]]:
        """Go through the cases by name; a store is written when its case is made."""
        for name in ("read", "filter", "partition", "count", "audit", "audit-log", "copy",
                     "to-rocketmq", "to-tube", "statistics", "write", "write-log",
                     "rebuild"):  # fmt: skip
            yield name, getattr(self, f"_{name.replace('-', '_')}")
        for times in (1, 2, 4, 8):
            yield f"growth-{times}", lambda times=times: self._growth(times)

    def tidy(self) -> None:
        """Remove what a case has made: its pages would be written out beside the next one."""
        for name in ("copied", "converted", "sink", "plain", "linked"):
            fresh(self.place / name)

    def close(self) -> None:
        """Let the processes go."""
        if self._pool is not None:
            self._pool.shutdown()

    # -- stores ----------------------------------------------------------------------------------

    def _store(self) -> Path:
        root = self.place / "store"
        if "store" not in self._counts:
            self._counts["store"] = fill(root, self.mib)
        return root

    def _big(self, times: int = TIMES) -> tuple[str, int]:
        root = linked(self._store(), self.place / "linked", times)
        return str(root), times * self._counts["store"]

    def _log(self, times: int, *, users: bool) -> tuple[str, int]:
        name = f"log-{times}"
        if name not in self._counts:
            self._counts[name] = fill_log(self.place / name, times * self.mib, users=users)
        return str(self.place / name), self._counts[name]

    # -- kernels without Spark -------------------------------------------------------------------

    def _kernels(self, make: Callable[[], tuple[Any, Iterable[Any]]]) -> tuple[Way, ...]:
        """Return the work of a job in this process, and in as many as there are cores."""

        def here() -> None:
            job, splits = make()
            for number, split in enumerate(splits):
                job.work(number, split)

        def together() -> None:
            job, splits = make()
            if self._pool is None:
                self._pool = ProcessPoolExecutor(self.cores, get_context("spawn"))
            list(self._pool.map(job.work, itertools.count(), list(splits)))

        return (
            Way(f"one process x {self.cores} cores", here, self.cores),
            Way(f"{self.cores} processes", together),
        )

    def _job(
        self, name: str, question: str, messages: int, ours: Callable[[], Any],
        make: Callable[[], tuple[Any, Iterable[Any]]],
    ) -> SparkCase:  # fmt: skip
        kernels = self._kernels(make)
        ways = (Way("in Spark", ours), *kernels)
        # As many processes share caches and memory as in Spark: what is missing there is Spark's.
        bars = tuple(Bar(kernel.name, 0.8) for kernel in kernels)
        return SparkCase(name, question, messages, ways, bars)

    # -- the cases -------------------------------------------------------------------------------

    def _read(self) -> SparkCase:
        store, parquet = str(self._store()), str(self.place / "parquet")
        count, spark = self._counts["store"], self.spark
        if not Path(parquet).exists():
            read(spark, store).write.parquet(parquet)
        plain = plain_reader(spark)
        return SparkCase(
            "spark-read",
            "Five columns of all messages into an action; one of both bars is to be reached",
            count,
            (
                Way("in Spark", lambda: noop(read(spark, store, columns=COLUMNS))),
                Way("a plain Arrow source", lambda: noop(spark.read.format(plain).load(store))),
                Way("Parquet", lambda: noop(spark.read.parquet(parquet).select(*COLUMNS))),
                Way("Arrow from memory", lambda: noop(from_memory(spark, count))),
            ),
            (Bar("a plain Arrow source", 0.9), Bar("Parquet", 1)),
        )

    def _beside_all(
        self, name: str, question: str, ours: Callable[[Any], Any], everything: Callable[[Any], Any]
    ) -> SparkCase:
        """Return a case of less than a full read, beside one."""
        root, count = self._big()
        return SparkCase(
            f"spark-{name}",
            question,
            count,
            (Way("in Spark", lambda: ours(root)), Way("a full read", lambda: everything(root))),
            (Bar("a full read", 3),),
        )

    def _all(self, store: str) -> None:
        noop(read(self.spark, store, columns=COLUMNS))

    def _filter(self) -> SparkCase:
        columns = [*COLUMNS, "filter_item"]

        def chosen(store: str) -> None:
            self.spark.conf.set(SETTING, "true")
            try:
                noop(read(self.spark, store, columns=columns).where(f"filter_item = '{RARE}'"))
            finally:
                self.spark.conf.unset(SETTING)

        question = "A `where` that is pushed down and leaves one message of a hundred"
        return self._beside_all("filter", question, chosen, self._all)

    def _partition(self) -> SparkCase:
        def chosen(store: str) -> None:
            noop(read(self.spark, store, columns=COLUMNS, partitions="3"))

        question = f"One partition of {PARTITIONS}"
        return self._beside_all("partition", question, chosen, self._all)

    def _count(self) -> SparkCase:
        return self._beside_all(
            "count",
            "count() over the column offset, beside a bare count()",
            lambda store: read(self.spark, store, columns=["offset"]).count(),
            lambda store: read(self.spark, store).count(),
        )

    def _audit_log(self) -> SparkCase:
        root, count = self._log(1, users=False)
        directory = StoreDirectory(root)
        if not Path(root, CONSUME_QUEUE_DIRECTORY).exists():
            kept = Quarantine(directory.vfs, root)
            list(rebuild_here(directory, _STRUCTURES, clock=SystemClock(), quarantine=kept))
        return SparkCase(
            "spark-audit-log",
            "Log, queues and index (a key each) against each other, with checksums",
            count,
            (
                Way("in Spark", lambda: audit_log(self.spark, root)),
                Way("one process", lambda: list(check_store(directory))),
            ),
            memory_mb=256,
        )

    def _audit(self) -> SparkCase:
        root, count = self._big()
        return self._job(
            "spark-audit",
            "Every entry against its record, without checksums; kernels alone do no planning",
            count,
            lambda: audit(self.spark, root, check_crc=False),
            lambda: (AuditJob(root, check_crc=False), plan_audit(root).splits),
        )

    def _copy(self) -> SparkCase:
        root, out = str(self._store()), self.place / "copied"

        def here() -> tuple[Any, Iterable[Any]]:
            job, made = plan_compact(root, str(fresh(out)), None, {})
            return job, made.splits

        return self._job(
            "spark-copy",
            "A store into another one; kernels stage files, Spark publishes them as well",
            self._counts["store"],
            lambda: compact(self.spark, root, str(fresh(out))),
            here,
        )

    def _to_rocketmq(self) -> SparkCase:
        root, out = str(self._store()), self.place / "converted"

        def here() -> tuple[Any, Iterable[Any]]:
            job, made = plan_tube_convert(root, str(fresh(out)), None, {})
            return job, made.splits

        return self._job(
            "spark-to-rocketmq",
            "A tube root into a RocketMQ store; kernels stage files, Spark publishes them as well",
            self._counts["store"],
            lambda: convert_tube(self.spark, root, str(fresh(out))),
            here,
        )

    def _to_tube(self) -> SparkCase:
        (root, count), out = self._log(1, users=False), self.place / "converted"

        def here() -> tuple[Any, Iterable[Any]]:
            job, made = plan_convert(root, str(fresh(out)), None, {})
            return job, made.splits

        return self._job(
            "spark-to-tube",
            "A CommitLog (a key each) into a tube root; kernels stage files, Spark publishes, too",
            count,
            lambda: convert(self.spark, root, str(fresh(out))),
            here,
        )

    def _statistics(self) -> SparkCase:
        root, count = self._big()
        return SparkCase(
            "spark-statistics",
            "Messages and bytes by topic, partition and hour, of the index alone",
            count,
            (
                Way("in Spark", lambda: stats(self.spark, root)),
                Way("a full read", lambda: noop(read(self.spark, root))),
            ),
            (Bar("a full read", 10),),
        )

    def _rows(self) -> tuple[Any, int]:
        count = self.mib << 10
        tasks = max(self.cores, count * BODY >> 26)
        rows = self.spark.range(0, count, numPartitions=tasks).selectExpr(
            "'logs' AS topic", "CAST(id % 10 AS INT) AS partition",
            f"CAST(repeat(CAST(id % 10 AS STRING), {BODY}) AS BINARY) AS body",
        )  # fmt: skip
        return rows, count

    def _sink(self, name: str, question: str, into: Callable[[Any], Any]) -> SparkCase:
        rows, count = self._rows()
        plain = arrow_writer(self.spark)
        out = self.place / "plain"

        def plainly() -> None:
            fresh(out).mkdir()
            rows.write.format(plain).mode("append").save(str(out))

        return SparkCase(
            name,
            question,
            count,
            (
                Way("in Spark", lambda: into(rows)),
                Way("a plain Arrow writer", plainly),
                Way("thrown away", lambda: noop(rows.mapInArrow(thrown_away, rows.schema))),
            ),
            (Bar("a plain Arrow writer", 0.8),),
        )

    def _write(self) -> SparkCase:
        return self._sink(
            "spark-write",
            "Rows of the JVM into a tube root, published; the plain writer syncs each file, too",
            lambda rows: write(rows, str(fresh(self.place / "sink"))),
        )

    def _write_log(self) -> SparkCase:
        return self._sink(
            "spark-write-log",
            "Rows of the JVM into a RocketMQ store, published, with queues and index",
            lambda rows: write_log(
                rows.withColumnRenamed("partition", "queue_id"), str(fresh(self.place / "sink"))
            ),
        )

    def _rebuild(self) -> SparkCase:
        root, count = self._log(TIMES, users=True)
        directory = StoreDirectory(root)

        def here() -> None:
            kept = Quarantine(directory.vfs, root)
            list(rebuild_here(directory, _STRUCTURES, clock=SystemClock(), quarantine=kept))

        def clean(run: Callable[[], Any]) -> None:
            run()
            fresh(Path(root, ".tubestore"))  # what was there before, kept aside

        return SparkCase(
            "spark-rebuild",
            "Queues and index of a CommitLog (two keys each), put in the place of the old ones",
            count,
            (
                Way("in Spark", lambda: clean(lambda: rebuild(self.spark, root, _STRUCTURES))),
                Way("one process", lambda: clean(here)),
            ),
            (Bar("one process", 1.5),),
        )

    def _growth(self, times: int) -> SparkCase:
        root, count = self._big(times)
        return SparkCase(
            f"spark-growth-{times}",
            f"The audit with checksums of {times} x {self.mib} MiB: the rate should not fall",
            count,
            (Way("in Spark", lambda: audit(self.spark, root)),),
        )


def noop(frame: Any) -> None:
    """Run a DataFrame and do nothing with its rows."""
    frame.write.format("noop").mode("overwrite").save()
