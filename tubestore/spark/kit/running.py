"""Run a job: waves of tasks, each task a few splits, and a journal of what is done.

Two waves are under way at a time, so that no core waits for the slowest task of one; the driver
gets the rows of a wave when it ends, writes them to the journal, and reports the progress.
A wave costs 0.1 s and a task 15 ms, in which an audit reads 60 MB: so waves are of some GiB,
and their tasks take several splits, one after the other. The first tasks of a wave take most of
them and the last ones a split each, so that the end of a wave is short.
"""

from __future__ import annotations

import gc
import hashlib
import json
import os
import pickle
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import pyarrow as pa

from tubestore.errors import InvalidOption, TubeStoreError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")
R = TypeVar("R")
Row = dict[str, Any]
#: Called with (splits done, splits in all).
Watch = Callable[[int, int], None]


def silent(_done: int, _all: int) -> None:
    """Report no progress."""


class SparkFailed(TubeStoreError):
    """Spark itself does not start, or has given a job up: the sentence that it has for it."""


#: Where the sentence is in an error's text, the more exact place first.
_REASONS = (
    r"(Cannot run program [^\n]*)",
    r"\b(No module named '[\w.]+')",
    r"Caused by: [\w.$]+(?:Exception|Error): ([^\n]+)",
    r"\n: [\w.$]+(?:Exception|Error): ([^\n]+)",
)

#: Set by Spark for workers that do one task after the other.
_REUSED = "SPARK_REUSE_WORKER"
#: True if it was done here: to ask the collector what is frozen means to count it, 5 ms a task.
_settled = False
_ROW_SCHEMA = "split bigint, row string"
_AT_ONCE = 2
#: Splits of a wave, a core; about: a few more take no wave of their own.
_SPLITS_A_CORE = 16
_VERSION = 1
#: A job over so many bytes is done sooner in one process than Spark starts.
_SMALL_BYTES = 256 << 20


class SparkJob(Protocol):
    """What is done with every split, and with the rows that come of it. Picklable."""

    @property
    def name(self) -> str:
        """Return what is done: one word."""

    def arguments(self) -> Mapping[str, Any]:
        """Return what identifies this job among those of its name; JSON."""

    def work(self, number: int, split: Any) -> Row:
        """Work on one split, in a task; returns a small row that JSON can hold.

        May be done twice: a task that failed is tried again.
        """


@dataclass(frozen=True, slots=True)
class Done:
    """A job that has ended: a row a split, in their order; how many were there before."""

    rows: list[Row]
    resumed: int
    seconds: float


def split_key(split: Any) -> str:
    """Name a split by what it reads: the same for the same offsets of the same files."""
    identity = getattr(split, "identity", None)
    text = repr(split) if identity is None else identity()
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def digest_of(value: Any) -> str:
    """Return a digest of the fields of a dataclass, the same in every process."""

    def plain_value(found: Any) -> Any:
        return sorted(found, key=str) if isinstance(found, set | frozenset) else str(found)

    text = json.dumps(asdict(value), sort_keys=True, default=plain_value)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def journal_path(job_id: str, environment: Mapping[str, str] | None = None) -> Path:
    """Return where the journal of a job is kept: with this user's state."""
    if not re.fullmatch(r"[A-Za-z0-9_.:-]{1,100}", job_id):
        raise InvalidOption("job id", f"{job_id!r}: letters, digits, _ . : and -")
    known = os.environ if environment is None else environment
    home = known.get("XDG_STATE_HOME") or os.path.join(
        known.get("HOME") or os.path.expanduser("~"), ".local", "state"
    )
    return Path(home) / "tubestore" / "jobs" / f"{job_id}.jsonl"


class DoneSplits:
    """The rows of the splits that are done, a JSON line each; a torn last line counts as none.

    With `anew` the journal of another job is begun again, else it is refused (InvalidOption).
    A row counts if it still `holds`. Without a path nothing is kept.
    """

    def __init__(
        self,
        path: Path | None,
        job: SparkJob,
        *,
        anew: bool = False,
        holds: Callable[[Row], bool] = lambda _row: True,
    ) -> None:
        self.path = path
        self.rows: dict[str, Row] = {}
        head = {"v": _VERSION, "job": job.name, "arguments": dict(job.arguments())}
        if path is None:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = path.read_text().splitlines() if path.exists() else []
        found = [value for line in lines if (value := _parsed(line)) is not None]
        if found and found[0] != head:
            if not anew:
                text = f"{path} belongs to job {found[0].get('job')} of {found[0].get('arguments')}"
                raise InvalidOption("job id", text)
            found = []
        kept = [value for value in found[1:] if holds(value["row"])]
        self.rows = {value["split"]: value["row"] for value in kept}
        draft = path.with_name(f"{path.name}.new")
        draft.write_text("".join(json.dumps(value) + "\n" for value in (head, *kept)))
        os.replace(draft, path)

    def add(self, key: str, row: Row) -> None:
        """Note that a split is done."""
        self.rows[key] = row
        if self.path is not None:
            with self.path.open("a") as file:
                file.write(json.dumps({"split": key, "row": row}) + "\n")


def _parsed(line: str) -> dict[str, Any] | None:
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def run(
    spark: SparkSession,
    job: SparkJob,
    splits: Sequence[Any],
    *,
    job_id: str | None = None,
    journal: DoneSplits | None = None,
    watch: Watch = silent,
) -> Done:
    """Work on all splits that are not in the journal (by default that of `job_id`), in tasks.

    A failure of a split ends the job with its error; what is done stays in the journal.
    """
    began = time.monotonic()
    if journal is None:
        journal = DoneSplits(None if job_id is None else journal_path(job_id), job)
    keys = [split_key(split) for split in splits]
    left = [number for number, key in enumerate(keys) if key not in journal.rows]
    resumed = len(splits) - len(left)
    watch(resumed, len(splits))
    if left and is_here(spark, splits):
        for place, number in enumerate(left, 1):
            journal.add(keys[number], json.loads(json.dumps(job.work(number, splits[number]))))
            watch(resumed + place, len(splits))
    elif left:
        cores = parallelism(spark)
        count = max(1, round(len(left) / (_SPLITS_A_CORE * cores)))
        waves = [left[len(left) * n // count : len(left) * (n + 1) // count] for n in range(count)]
        done = resumed
        for rows in _waves(spark, job, splits, waves, cores):
            for number, row in rows:
                journal.add(keys[number], row)
            done += len(rows)
            watch(done, len(splits))
    return Done([journal.rows[key] for key in keys], resumed, time.monotonic() - began)


class LaterSession:
    """A session on this machine that starts when it is asked for anything.

    `run` does not ask it for a job over few bytes: Spark takes seconds to start, and such a job
    less than one in this process.
    """

    def __init__(self, start: Callable[[], SparkSession]) -> None:
        self._start = start

    @cached_property
    def _session(self) -> SparkSession:
        return self._start()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)


def is_here(spark: SparkSession, splits: Sequence[Any]) -> bool:
    """True if splits are worked on in this process, and Spark is not asked."""
    return isinstance(spark, LaterSession) and _is_small(splits)


def is_cluster(spark: SparkSession) -> bool:
    """True if tasks run in other processes than the driver's; False for a client of Connect."""
    context = getattr(spark, "sparkContext", None)
    return context is not None and not str(context.master).startswith("local")


def work_in_tasks(spark: SparkSession, work: Callable[[T], R], parts: Sequence[T]) -> list[R]:
    """Call a function with each part, in a task of its own; returns the results in their order.

    TubeStoreError if a call fails with one, SparkFailed if Spark gives up. A task that failed is
    tried again.
    """
    frame = spark.range(0, len(parts), numPartitions=max(1, len(parts)))
    try:
        found = frame.mapInArrow(_Parts(work, parts), "number bigint, result binary").collect()
    except Exception as error:
        raise plain(error) from None
    done = {int(row[0]): pickle.loads(row[1]) for row in found}
    return [done[number] for number in range(len(parts))]


class _Parts:
    """What runs in a worker: calls a function with the part of its number."""

    def __init__(self, work: Callable[[Any], Any], parts: Sequence[Any]) -> None:
        self._work, self._parts = work, parts

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        settle()
        for batch in batches:
            for number in batch.column(0).to_pylist():
                try:
                    result = self._work(self._parts[number])
                except TubeStoreError:
                    os.environ["SPARK_HIDE_TRACEBACK"] = "1"  # the sentence is enough
                    raise
                yield pa.RecordBatch.from_pydict(
                    {"number": pa.array([number], pa.int64()), "result": [pickle.dumps(result)]}
                )


def _is_small(splits: Sequence[Any]) -> bool:
    """True if splits have few bytes, as far as they have a size."""
    return all(hasattr(one, "bytes") for one in splits) and (
        sum(one.bytes for one in splits) <= _SMALL_BYTES
    )


def _waves(
    spark: SparkSession, job: SparkJob, splits: Sequence[Any], waves: list[list[int]], cores: int
) -> Iterator[list[tuple[int, Row]]]:
    """Run waves, some at a time; yields the rows of each when it is done."""
    with ThreadPoolExecutor(_AT_ONCE, "tubestore-jobs") as pool:
        running: set[Future[list[tuple[int, Row]]]] = set()
        waiting = iter(waves)
        failed: BaseException | None = None
        while True:
            while failed is None and len(running) < _AT_ONCE and (wave := next(waiting, None)):
                chosen = [(number, splits[number]) for number in wave]
                running.add(pool.submit(_wave, spark, job, chosen, cores))
            if not running:
                break
            ended, running = wait(running, return_when=FIRST_COMPLETED)
            for future in ended:
                if (error := future.exception()) is not None:
                    failed = failed or error
                else:
                    yield future.result()
        if failed is not None:
            raise failed


def _wave(
    spark: SparkSession, job: SparkJob, chosen: list[tuple[int, Any]], cores: int
) -> list[tuple[int, Row]]:
    """Run one wave."""
    shares = _shares(chosen, cores)
    frame = spark.range(0, len(shares), numPartitions=len(shares))
    try:
        found = frame.mapInArrow(_Task(job, shares), _ROW_SCHEMA).collect()
    except Exception as error:
        raise plain(error) from None
    return [(int(row[0]), json.loads(row[1])) for row in found]


def _shares(chosen: list[tuple[int, Any]], cores: int) -> list[list[tuple[int, Any]]]:
    """Share splits out to tasks: each round of tasks gets two thirds of what is left, at least 1.

    >>> [len(share) for share in _shares([(n, None) for n in range(36)], 2)]
    [12, 12, 4, 4, 1, 1, 1, 1]
    """
    shares = []
    left = list(chosen)
    while left:
        size = max(1, 2 * len(left) // (3 * cores))
        for _ in range(cores):
            shares.append(left[:size])
            left = left[size:]
    return [share for share in shares if share]


class _Task:
    """What runs in a worker: works on the splits of its share."""

    def __init__(self, job: SparkJob, shares: list[list[tuple[int, Any]]]) -> None:
        self._job, self._shares = job, shares

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        settle()
        for batch in batches:
            for place in batch.column(0).to_pylist():
                for number, split in self._shares[place]:
                    try:
                        row = self._job.work(number, split)
                    except TubeStoreError:
                        os.environ["SPARK_HIDE_TRACEBACK"] = "1"  # the sentence is enough
                        raise
                    yield pa.RecordBatch.from_pydict(
                        {"split": pa.array([number], pa.int64()), "row": [json.dumps(row)]}
                    )


def settle() -> None:
    """Keep the collector from going through all that is imported, after every task.

    PySpark has it collect everything when a task or a question has ended, and the worker's next
    one waits for that: 40 to 120 ms with Arrow and NumPy in memory, more than many tasks take.
    What exists at the first call is not examined any more; what tasks leave is collected as
    before.
    """
    global _settled
    if not _settled and os.environ.get(_REUSED):
        gc.freeze()
        _settled = True


def plain(error: Exception) -> Exception:
    """Return a task's TubeStoreError as such again, an error of Spark's as SparkFailed."""
    found = re.search(r"(?:tubestore|rocketcompat)[\w.]*\.(\w+): (.*)", str(error))
    if found is not None:
        return TubeStoreError(f"{found[1]}: {found[2].strip()}")
    if type(error).__module__.partition(".")[0] not in ("py4j", "pyspark"):
        return error
    return SparkFailed(
        f"Spark ended the job: {reason(error)} (`tubestore spark doctor` examines a cluster)"
    )


def reason(error: Exception) -> str:
    """Return the sentence in an error of Spark's or of one of its tasks, without the way to it.

    >>> reason(Exception("An error occurred.\\n: java.lang.Error: no host\\n\\tat"))
    'no host'
    """
    text = str(error)
    version = re.search(
        r"different (?:minor )?version: (\S+) than that in driver:? (\S+?)[,.\s]", text
    )
    if version:
        return f"the workers' Python is {version[1]}, the driver's {version[2]}"
    for pattern in _REASONS:
        found = re.findall(pattern, text)
        if found:
            return str(found[-1]).strip()
    return text.strip().partition("\n")[0]


def parallelism(spark: SparkSession) -> int:
    """Return how many tasks run at once: as many parts as Spark makes of something by itself."""
    if not type(spark).__module__.startswith("pyspark.sql.connect"):
        return max(1, int(spark.sparkContext.defaultParallelism))
    from pyspark.sql.functions import spark_partition_id

    parts = spark.range(0, 1 << 20).select(spark_partition_id()).distinct().count()
    return max(1, int(parts))
