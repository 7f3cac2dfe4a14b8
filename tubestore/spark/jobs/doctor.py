"""Doctor: does every executor see the same store, with the same programs, and may it write there?

Tasks are spread over all executors; each returns what it sees, and the driver compares. In a
tubestore each also makes a file in the staging directory, links and renames it: publishing
needs this of a shared file system.

`examine` also starts Spark, in a process of its own that is killed at the deadline: Spark waits
for a minute for a master that is not there, and for ever for executors that cannot start.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from tubestore.core.paths import OWN_DIRECTORY, STORE_FILE, join
from tubestore.core.state_file import BadState
from tubestore.disks.roots import local_root
from tubestore.errors import TubeStoreError
from tubestore.record.names import STAGING_DIRECTORY
from tubestore.record.state_files import parse_identity
from tubestore.spark.jobs import probe as probe_module
from tubestore.spark.jobs.probe import Probe
from tubestore.spark.kit import java
from tubestore.spark.kit.running import Row, parallelism, reason
from tubestore.spark.kit.settings import settings_to_change

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PACKAGES = ("tubestore", "pyspark", "pyarrow", "numpy")
#: Of each core, so that no executor is left out.
_TASKS_A_CORE = 4
#: How far the clocks of two machines may be apart.
_SKEW_MAX_MS = 2000
#: How long `examine` may take, and of this the end of Spark.
SECONDS = 28.0
_END_SECONDS = 3.0
_CONNECT_SECONDS = 3.0
#: The host in the text of a failed task.
_HOST = re.compile(r"\(TID \d+\) \((\S+) executor")


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """A row an executor, what is wrong, and which settings could be better, a sentence each."""

    executors: list[Row] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    advice: list[str] = field(default_factory=list)


def doctor(spark: SparkSession, root: str) -> Diagnosis:
    """Compare what the executors of a session see with what this process sees."""
    probe = _probe_of(root)
    here = probe.row("driver")
    problems, rows = [], []
    if "problem" in here:
        problems.append(f"the driver's machine: {here['problem']}")
    problems += _planning(spark)
    try:
        rows = _rows(spark, probe)
    except Exception as error:
        host = _HOST.search(str(error))
        problems.append(f"{host[1] if host else 'a task failed'}: {reason(error)}")
    else:
        clocks = here["clock_ms"], time.time_ns() // 1_000_000
        problems += [*_compare(here, rows, clocks), *_unseen(probe, rows)]
    finally:
        _clean(probe.staging)
    better = [f"{a.name}={a.wanted} is better: {a.cost}" for a in settings_to_change(spark)]
    executors = {(row["host"], row["process"]): _shown(row) for row in rows}
    return Diagnosis([executors[key] for key in sorted(executors)], problems, better)


def _probe_of(root: str) -> Probe:
    token = uuid.uuid4().hex[:12]
    staging = join(root, OWN_DIRECTORY, STAGING_DIRECTORY, f"doctor-{token}")
    return Probe(local_root(root), join(root, OWN_DIRECTORY, STORE_FILE), staging, PACKAGES)


def _rows(spark: SparkSession, probe: Probe) -> list[Row]:
    """Probe from every executor, several times; without Arrow, which may be missing there."""
    from pyspark import cloudpickle
    from pyspark.sql.functions import udf

    def task(number: int) -> str:
        return json.dumps(probe.row(f"{number}"))

    task.__module__ = "__main__"  # sent by value, as the probe is
    cloudpickle.register_pickle_by_value(probe_module)
    try:
        tasks = _TASKS_A_CORE * parallelism(spark)
        look = udf(task, "string", useArrow=False).asNondeterministic()
        frame = spark.range(0, tasks, numPartitions=tasks).select(look("id"))
        return [json.loads(row[0]) for row in frame.collect()]
    finally:
        cloudpickle.unregister_pickle_by_value(probe_module)


def _planning(spark: SparkSession) -> Iterator[str]:
    """Run the Python in which Spark plans on this machine: the same one as on the executors."""
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        return
    python = spark.sparkContext.pythonExec
    command = [python, "-c", "import tubestore.spark.kit.loads"]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
        text = ran.stderr.strip().rpartition("\n")[2]
        failed = bool(ran.returncode)
    except (OSError, subprocess.TimeoutExpired) as error:
        text, failed = str(error), True
    if failed:
        yield (
            f"the driver's machine: {python}, which Spark plans with, cannot use this package: "
            f"{text} (activate its environment, or set PYSPARK_PYTHON on every machine)"
        )


def _shown(row: Row) -> Row:
    return {**row, "uuid": _uuid(row)}


def _uuid(row: Row) -> str | None:
    """Return the uuid of the store that a process sees, None where there is none."""
    try:
        return parse_identity((row.get("identity") or "").encode())
    except BadState:
        return None


def _compare(here: Row, rows: list[Row], clocks: tuple[int, int]) -> Iterator[str]:
    """Name what differs, once a host; `clocks` are the driver's before and after the tasks."""
    seen = set()
    for row in rows:
        for text in _differences(here, row, clocks):
            if (row["host"], text) not in seen:
                seen.add((row["host"], text))
                yield f"{row['host']}: {text}"


def _differences(here: Row, row: Row, clocks: tuple[int, int]) -> Iterator[str]:
    for name in ("python", *PACKAGES):
        on_driver, found = here[name], row[name]
        # Python may differ in its last number; the packages may not.
        if on_driver != found and not (name == "python" and _minor(on_driver) == _minor(found)):
            yield f"{name} is {found}, on the driver's machine {on_driver}"
    if "problem" in row:
        yield row["problem"]
    elif "problem" not in here and _uuid(row) != _uuid(here):
        yield f"sees store {_uuid(row)}, the driver's machine {_uuid(here)}"
    elif here.get("directories") and not row["directories"]:
        yield f"sees an empty directory, the driver's machine {here['directories']} topics in it"
    off = max(clocks[0] - row["clock_ms"], row["clock_ms"] - clocks[1])
    if off > _SKEW_MAX_MS:
        yield f"its clock is {off / 1000:.0f} s off"


def _minor(text: str) -> str:
    return text.rpartition(".")[0]


def _unseen(probe: Probe, rows: list[Row]) -> Iterator[str]:
    """Search for the files that the tasks made: a directory that is not shared has none of them."""
    if not os.path.exists(probe.identity):
        return
    there = set(os.listdir(probe.staging)) if os.path.isdir(probe.staging) else set()
    hosts = {r["host"] for r in rows if "problem" not in r and r["split"] not in there}
    for host in sorted(hosts):
        yield f"{host}: what it writes is not seen here: the directory is not shared"


def _clean(directory: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        for entry in os.scandir(directory):
            os.unlink(entry.path)
        os.rmdir(directory)


# -- with a Spark of its own ----------------------------------------------------------------------


def examine(
    root: str,
    master: str = "local[*]",
    settings: Mapping[str, Any] | None = None,
    *,
    memory: str | None = None,
    seconds: float = SECONDS,
) -> Diagnosis:
    """Start Spark at a master and ask the doctor; ends within so many seconds, whatever happens."""
    deadline = time.monotonic() + seconds
    here = _probe_of(root)
    try:
        java.need_spark()
        java.ensure(dict(os.environ))
        seen = here.row("driver")
        if "problem" in seen:
            return Diagnosis([], [f"the driver's machine: {seen['problem']}"])
        check_master(master)
    except TubeStoreError as error:
        return Diagnosis([], [str(error)])
    finally:
        _clean(here.staging)
    given = {"root": root, "master": master, "settings": dict(settings or {}), "memory": memory}
    process = subprocess.Popen(
        _command(json.dumps(given, default=str)),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    stopper = threading.Timer(deadline - time.monotonic() - _END_SECONDS, _kill, [process])
    stopper.start()
    assert process.stdout is not None
    step: Row = {"step": "Python does not start"}
    try:
        for line in process.stdout:
            found = json.loads(line)
            if "problems" in found:
                return Diagnosis(**found)
            step = found
    finally:
        stopper.cancel()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, min(deadline - time.monotonic(), _END_SECONDS)))
        _kill(process)
        process.wait()
        process.stdout.close()
    return Diagnosis([], [f"{step['step']} (after {seconds:.0f} s)"])


def _command(given: str) -> list[str]:
    return [sys.executable, "-m", "tubestore.spark.jobs.doctor", given]


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def check_master(master: str) -> None:
    """Raise TubeStoreError if no host of a standalone master takes a connection."""
    if not master.startswith("spark://"):
        return
    problems = []
    for place in master.removeprefix("spark://").split(","):
        host, _, port = place.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS).close()
            return
        except (OSError, ValueError) as error:
            problems.append(f"{place}: {error}")
    raise TubeStoreError(f"master {master} cannot be reached: {'; '.join(problems)}")


def _diagnose(given: Mapping[str, Any]) -> Iterator[Row]:
    """Yield what goes wrong if nothing comes after it, step by step; then the diagnosis."""
    from tubestore.spark.laptop import is_local, session

    master = given["master"]
    yield {"step": f"Spark does not start at {master}"}
    try:
        spark = session(master, given["settings"], memory=given["memory"])
    except TubeStoreError as error:
        yield {"problems": [str(error)]}
        return
    if not is_local(master):
        host, port = (spark.conf.get(f"spark.driver.{name}") for name in ("host", "port"))
        absent = (
            f"no executor of {master} comes: a worker needs free cores and memory, a Java of "
            f"{java.JAVA_MIN} or newer, and the way to the driver at {host}:{port} "
            "(spark.driver.host); its file work/app-…/stderr has the reason"
        )
        yield {"step": absent}
        context = spark.sparkContext._jsc.sc()
        while (count := len(context.statusTracker().getExecutorInfos())) < 2:
            if context.isStopped():
                yield {"problems": [absent]}
                return
            time.sleep(0.1)
        time.sleep(1)  # those of the other workers come at about the same time
        yield {"step": f"the tasks on {count - 1} executors do not end"}
    found = doctor(spark, given["root"])
    yield asdict(found)
    spark.stop()


if __name__ == "__main__":
    for _line in _diagnose(json.loads(sys.argv[1])):
        print(json.dumps(_line), flush=True)
