"""Golden stores: what the real TubeMQ and RocketMQ wrote, and what they answer from it.

    def test_first_entry(golden: GoldenFactory) -> None:
        basic = golden("tubemq", "1.2.0", "basic")
        for row in basic.rows("expected", kind="store"):
            assert (basic.store / row["store"]).is_dir()

The fixture is called ``golden``; a module (or a conftest) gets it by importing ``golden_fixture``.
A test that needs only the answers calls ``answers``, which leaves no files, so it may be called
while pytest collects.

- Every unpacking is a fresh, writable copy; nothing a test does to it is seen by another.
- An archive is decompressed once a process, when it is first asked for, into a file without a name:
  nothing to clean up, nothing that the workers of pytest-xdist could share wrongly (0.1 s each).
- It is read by position (``pread``), so threads and forked children may unpack too.

The archives and their fields: ``tests/compat/golden/README.md``.
``tests/compat/golden/pack.py`` makes them.
"""

from __future__ import annotations

import atexit
import functools
import io
import itertools
import json
import lzma
import os
import shutil
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ARCHIVES = Path(__file__).resolve().parent.parent / "compat" / "golden"
TUBE_VERSION = "1.2.0"
ROCKET_VERSIONS = ("4.9.8", "5.3.3")

Row = dict[str, Any]


def tube_scenarios() -> list[str]:
    """Return the names of TubeMQ's scenarios, sorted."""
    return sorted(_archive("tubemq", TUBE_VERSION).manifest)


def rocket_scenarios(version: str) -> list[str]:
    """Return the names of RocketMQ's scenarios of a version, sorted."""
    return sorted(_archive("rocketmq", version).manifest)


def answers(system: str, version: str, scenario: str) -> Answers:
    """Return a scenario's answers alone; its store stays in the archive."""
    return Answers(system, version, scenario)


def unpack(system: str, version: str, scenario: str, destination: Path) -> Golden:
    """Write a fresh copy of a scenario's store into ``destination``, which may exist but hold none.

    RocketMQ's files get the times they had (4.9.8 finds a message by time through them). TubeMQ's
    are new, as they were when the answers were made, except those with an age in ``ageHours``.
    """
    archive = _archive(system, version)
    golden = Golden(system, version, scenario, destination)
    ages_hours = golden.meta.get("ageHours", {})
    for row in golden.manifest:
        if "/" not in row["path"]:  # meta.json and the answers are read from the archive
            continue
        _restore(archive, row, destination / row["path"])
    for path, age_hours in ages_hours.items():
        _set_time(golden.store / path, time.time_ns() - age_hours * 3600 * 10**9)
    return golden


@dataclass(frozen=True)
class Answers:
    """What the real classes answered in one scenario, and how it was made."""

    system: str
    version: str
    scenario: str

    def __post_init__(self) -> None:
        known = _archive(self.system, self.version).manifest
        if self.scenario not in known:
            raise LookupError(
                f"{self.system} {self.version} has no scenario {self.scenario!r}: {sorted(known)}"
            )

    @property
    def manifest(self) -> list[Row]:
        """One row for each packed file and empty directory."""
        return _archive(self.system, self.version).manifest[self.scenario]

    @property
    def meta(self) -> Row:
        """The scenario's ``meta.json``."""
        meta: Row = json.loads(self._read("meta.json"))
        return meta

    def has(self, name: str) -> bool:
        """Say whether the scenario has rows of this name (``live`` and others belong to few)."""
        return any(row["path"] == f"{name}.jsonl" for row in self.manifest)

    def rows(self, name: str, **wanted: Any) -> Iterator[Row]:
        """Yield the rows of ``<name>.jsonl`` in order: those whose fields equal the wanted ones."""
        for line in io.BytesIO(self._read(f"{name}.jsonl")):
            row: Row = json.loads(line)
            if all(key in row and row[key] == value for key, value in wanted.items()):
                yield row

    def expected(self, **wanted: Any) -> Iterator[Row]:
        """Yield what is seen after opening the store."""
        return self.rows("expected", **wanted)

    def puts(self) -> Iterator[Row]:
        """Yield every put in order, with its result (RocketMQ; ``ha-replication`` has none)."""
        return self.rows("puts")

    def queries(self, **wanted: Any) -> Iterator[Row]:
        """Yield calls on the opened store and their answers (RocketMQ)."""
        return self.rows("queries", **wanted)

    def _read(self, path: str) -> bytes:
        return _archive(self.system, self.version).read(self.scenario, path)


@dataclass(frozen=True)
class Golden(Answers):
    """A scenario whose store is on disk, in a directory of the test's own."""

    root: Path

    @property
    def store(self) -> Path:
        """The store's root directory."""
        return self.root / "store"

    @property
    def slave(self) -> Path:
        """The replica's root directory (RocketMQ's ``ha-replication`` only)."""
        return self.root / "slave"


GoldenFactory = Callable[[str, str, str], Golden]


@pytest.fixture(name="golden")
def golden_fixture(tmp_path: Path) -> GoldenFactory:
    """Return ``golden(system, version, scenario)``; every call unpacks another copy."""
    copies = itertools.count()

    def golden(system: str, version: str, scenario: str) -> Golden:
        return unpack(system, version, scenario, tmp_path / f"golden-{next(copies)}")

    return golden


class _Archive:
    """The decompressed tar of one version, with the place of every member in it."""

    def __init__(self, path: Path) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115  (lives as long as the process)
        atexit.register(self._file.close)
        with lzma.open(path) as compressed:
            shutil.copyfileobj(compressed, self._file)
        self._file.seek(0)
        with tarfile.open(fileobj=self._file, mode="r:") as tar:
            self._places = {member.name: (member.offset_data, member.size) for member in tar}
        self.manifest: dict[str, list[Row]] = {}
        for line in io.BytesIO(self._read("manifest.jsonl")):
            row: Row = json.loads(line)
            self.manifest.setdefault(row["scenario"], []).append(row)

    def read(self, scenario: str, path: str) -> bytes:
        """Return a file's data; of a sparse file, the extents one after the other."""
        return self._read(f"{scenario}/{path}")

    def _read(self, name: str) -> bytes:
        if name not in self._places:
            raise FileNotFoundError(f"not in this archive: {name}")
        start, size = self._places[name]
        return os.pread(self._file.fileno(), size, start)


@functools.cache
def _archive(system: str, version: str) -> _Archive:
    """Return a version's archive. A race of two threads opens it twice and costs only time."""
    return _Archive(ARCHIVES / f"{system}-{version}.tar.xz")


def _restore(archive: _Archive, row: Row, path: Path) -> None:
    """Write one file or make one empty directory."""
    if row.get("dir"):
        path.mkdir(parents=True)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    data = archive.read(row["scenario"], row["path"])
    with path.open("xb") as file:
        _write_extents(file, data, row.get("extents", [[0, row["size"]]]))
        file.truncate(row["size"])
    if "mtimeMs" in row:
        _set_time(path, row["mtimeMs"] * 10**6)


def _write_extents(file: io.BufferedWriter, data: bytes, extents: list[list[int]]) -> None:
    """Put each piece of data in its place; what lies between stays a hole."""
    pieces = memoryview(data)
    for start, length in extents:
        file.seek(start)
        file.write(pieces[:length])
        pieces = pieces[length:]


def _set_time(path: Path, time_ns: int) -> None:
    os.utime(path, ns=(time_ns, time_ns))
