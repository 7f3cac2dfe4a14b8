"""Doctor: does every executor see the same store, with the same programs, and may it write there?

Tasks are spread over all executors; each returns what it sees, and the driver compares. In a
tubestore each also makes a file in the staging directory, links and renames it: publishing
needs this of a shared file system.
"""

from __future__ import annotations

import contextlib
import os
import platform
import socket
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from tubestore.core.paths import OWN_DIRECTORY, STORE_FILE, join
from tubestore.core.vfs import OsVfs
from tubestore.errors import NotAStore
from tubestore.record.names import STAGING_DIRECTORY
from tubestore.spark.kit.running import Row, parallelism, run
from tubestore.spark.kit.settings import settings_to_change
from tubestore.spark.planning import store_uuid
from tubestore.store.directory import StoreDirectory

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PACKAGES = ("tubestore", "pyspark", "pyarrow", "numpy")
#: Of each core, so that no executor is left out.
_TASKS_A_CORE = 4
_PAUSE = 0.3
_SKEW_MAX_MS = 2000


@dataclass(frozen=True)
class DoctorJob:
    """Describe the store as the machine of a task sees it."""

    root: str
    token: str
    name: str = "doctor"

    def arguments(self) -> Mapping[str, Any]:
        """Return the arguments that identify this job."""
        return {"root": self.root}

    def work(self, number: int, split: int) -> Row:
        """Look, from one task."""
        time.sleep(_PAUSE)  # so that the tasks spread over all executors
        return {"split": number, **probe(self.root, self.token, f"{number}")}


def probe(root: str, token: str, name: str) -> Row:
    """Return what this process sees of the store, and whether it may publish there."""
    found: Row = {"host": socket.gethostname(), "process": os.getppid(), "clock_ms": _now_ms()}
    found["python"] = platform.python_version()
    for package in PACKAGES:
        found[package] = _version(package)
    try:
        found["uuid"] = store_uuid(StoreDirectory(OsVfs(), root, "r"))
        found["shards"] = len([e for e in os.scandir(root) if e.is_dir()])
    except (NotAStore, OSError) as error:
        return found | {"problem": f"cannot read the store: {error}"}
    if os.path.exists(join(root, OWN_DIRECTORY, STORE_FILE)):
        try:
            _try_writing(staging(root, token), name)
        except OSError as error:
            found["problem"] = f"cannot write, link and rename in the store: {error}"
    return found


def staging(root: str, token: str) -> str:
    """Return where the tasks make their files."""
    return join(root, OWN_DIRECTORY, STAGING_DIRECTORY, f"doctor-{token}")


def _try_writing(directory: str, name: str) -> None:
    os.makedirs(directory, exist_ok=True)
    path = join(directory, name)
    with open(f"{path}.new", "xb") as file:
        file.write(name.encode())
        file.flush()
        os.fsync(file.fileno())
    os.link(f"{path}.new", f"{path}.link")
    os.replace(f"{path}.new", path)
    os.unlink(f"{path}.link")


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "missing"


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """A row an executor, and what is wrong, a sentence each."""

    executors: list[Row]
    problems: list[str]


def doctor(spark: SparkSession, root: str) -> Diagnosis:
    """Compare what the executors see with what this process sees."""
    token = uuid.uuid4().hex[:12]
    here = probe(root, token, "driver")
    try:
        tasks = _TASKS_A_CORE * parallelism(spark)
        rows = run(spark, DoctorJob(root, token), range(tasks)).rows
        problems = list(_compare(here, rows)) + list(_unseen(root, token, rows))
    finally:
        _clean(staging(root, token))
    advice = settings_to_change(spark)
    problems += [f"setting {a.name} should be {a.wanted}: {a.cost}" for a in advice]
    executors = {(row["host"], row["process"]): row for row in rows}
    return Diagnosis([executors[key] for key in sorted(executors)], problems)


def _compare(here: Row, rows: list[Row]) -> Iterator[str]:
    """Name what differs, once."""
    seen = set()
    for row in rows:
        for text in _differences(here, row):
            if (row["host"], text) not in seen:
                seen.add((row["host"], text))
                yield f"{row['host']}: {text}"


def _differences(here: Row, row: Row) -> Iterator[str]:
    if "problem" in row:
        yield row["problem"]
    for name in ("python", *PACKAGES):
        on_driver, found = here[name], row[name]
        # Python may differ in its last number; the packages may not.
        if on_driver != found and not (name == "python" and _minor(on_driver) == _minor(found)):
            yield f"{name} is {found}, on the driver's machine {on_driver}"
    if row.get("uuid") != here.get("uuid"):
        yield f"sees store {row.get('uuid')}, the driver's machine {here.get('uuid')}"
    if abs(row["clock_ms"] - here["clock_ms"]) > _SKEW_MAX_MS + 600_000:
        yield "its clock is more than ten minutes off"


def _minor(text: str) -> str:
    return text.rpartition(".")[0]


def _unseen(root: str, token: str, rows: list[Row]) -> Iterator[str]:
    """Look for the files that the tasks made: a directory that is not shared has none of them."""
    if not os.path.exists(join(root, OWN_DIRECTORY, STORE_FILE)):
        return
    there = set(os.listdir(staging(root, token)))
    for row in rows:
        if "problem" not in row and f"{row['split']}" not in there:
            yield f"{row['host']}: what it writes is not seen here: the directory is not shared"
            return


def _clean(directory: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        for entry in os.scandir(directory):
            os.unlink(entry.path)
        os.rmdir(directory)
