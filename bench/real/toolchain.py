"""Finds Java and Maven, and makes a driver ready to run: its jars and its classes, in a cache.

Everything here may be missing on a machine, and then the tests that need it are skipped. Each way
to be missing is a ``DriverUnavailable`` with a text that names what to do about it. A driver that
does not *compile* is a defect, not a missing tool, and raises ``DriverFailed``.

The cache is filled once: a folder is built beside its place and renamed into it, under a lock, so
that neither two test processes nor a build that was killed can leave half of one behind. Folders
are named by a hash of all that went into them and never change.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

JAVA_SOURCES = Path(__file__).with_name("java")
OLDEST_JAVA = 17
MAVEN_SECONDS = 600
COMPILER_SECONDS = 120


class DriverUnavailable(Exception):
    """The real classes cannot be run on this machine; the text contains the reason."""


class DriverFailed(Exception):
    """A call of a driver failed; the text has what it wrote to its standard error last."""


@dataclass(frozen=True)
class Driver:
    """What to build: the folder of its sources, the Maven goal that its pom is for, the version."""

    folder: str
    goal: str
    version: str

    def sources(self) -> list[Path]:
        """Return the Java files to compile."""
        folders = (JAVA_SOURCES / "common", JAVA_SOURCES / self.folder)
        return sorted(path for folder in folders for path in folder.glob("*.java"))

    @property
    def pom(self) -> Path:
        """The file that names the jars."""
        return JAVA_SOURCES / self.folder / "pom.xml"


@dataclass(frozen=True)
class Ready:
    """What is needed to run a driver."""

    java: str
    class_path: str


_prepared: dict[Driver, Ready | DriverUnavailable] = {}
"""The results so far, for this process: Maven takes long to find that it is offline."""


def prepare(driver: Driver) -> Ready:
    """Return what runs a driver, making it first if need be."""
    if driver not in _prepared:
        try:
            _prepared[driver] = _prepare(driver)
        except DriverUnavailable as reason:
            _prepared[driver] = reason
    ready = _prepared[driver]
    if isinstance(ready, DriverUnavailable):
        raise DriverUnavailable(*ready.args)
    return ready


def _prepare(driver: Driver) -> Ready:
    java = find_java("java")
    label = f"{driver.folder}-{driver.version}"
    jars = _folder(f"jars-{label}", [driver.pom], lambda into: _download(driver, into))
    jar_path = f"{jars}{os.sep}*"
    classes = _folder(
        f"classes-{label}",
        [driver.pom, *driver.sources()],
        lambda into: _compile(driver, jar_path, into),
    )
    return Ready(java, os.pathsep.join((str(classes), jar_path)))


def find_java(tool: str) -> str:
    """Return the path of java or javac: that of JAVA_HOME, else the first on the PATH."""
    home = os.environ.get("JAVA_HOME")
    path = shutil.which(tool, path=str(Path(home, "bin"))) if home else None
    path = path or shutil.which(tool)
    if path is None:
        wanted = f"a JDK {OLDEST_JAVA} or newer is needed"
        raise DriverUnavailable(f"no {tool} on PATH or in JAVA_HOME; {wanted}")
    found = _java_version(path)
    if found < OLDEST_JAVA:
        raise DriverUnavailable(f"{tool} is of version {found}; {OLDEST_JAVA} or newer is needed")
    return path


def _java_version(path: str) -> int:
    run = _tool([path, "-version"], 60)
    match = re.search(r"(?:version \"|javac )(?:1\.)?(\d+)", run.stderr + run.stdout)
    if run.returncode != 0 or match is None:
        raise DriverUnavailable(f"{path} does not run: {last_lines(run.stderr, 1)}")
    return int(match[1])


def cache_folder() -> Path:
    """Return where jars and classes are kept."""
    named = os.environ.get("TUBESTORE_INTEROP_CACHE")
    return Path(named) if named else Path.home() / ".cache" / "tubestore-interop"


def _folder(name: str, inputs: list[Path], build: Callable[[Path], None]) -> Path:
    """Return the cached folder that ``build`` makes of the inputs."""
    digest = hashlib.sha256()
    for path in inputs:
        digest.update(f"{path.name} {path.stat().st_size}\n".encode() + path.read_bytes())
    folder = cache_folder() / f"{name}-{digest.hexdigest()[:16]}"
    if folder.is_dir():
        return folder
    with _locked_cache() as cache:
        if not folder.is_dir():
            scratch = Path(tempfile.mkdtemp(dir=cache, prefix="building-"))
            try:
                build(scratch)
                scratch.rename(folder)
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
    return folder


@contextmanager
def _locked_cache() -> Iterator[Path]:
    cache = cache_folder()
    try:
        cache.mkdir(parents=True, exist_ok=True)
        lock = (cache / "lock").open("w")
    except OSError as refused:
        raise DriverUnavailable(f"the cache folder cannot be written: {refused}") from refused
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield cache


def _download(driver: Driver, into: Path) -> None:
    name = f"{driver.folder} {driver.version}"
    maven = shutil.which("mvn")
    if maven is None:
        raise DriverUnavailable(f"no mvn on PATH, and the jars of {name} are not in the cache")
    command = [
        maven,
        "-B",
        "-q",
        "-C",
        "-f",
        str(driver.pom),
        f"-Dupstream.version={driver.version}",
    ]
    command += [f"-DoutputDirectory={into}", f"dependency:{driver.goal}"]
    try:
        run = _tool(command, MAVEN_SECONDS)
    except subprocess.TimeoutExpired as late:
        raise DriverUnavailable(f"Maven did not end within {MAVEN_SECONDS} s") from late
    if run.returncode != 0 or not any(into.glob("*.jar")):
        errors = [line for line in run.stdout.splitlines() if line.startswith("[ERROR]")]
        reason = errors[0] if errors else last_lines(run.stdout + run.stderr, 1)
        raise DriverUnavailable(f"Maven did not get the jars of {name}: {reason}")


def _compile(driver: Driver, jar_path: str, into: Path) -> None:
    command = [find_java("javac"), "--release", str(OLDEST_JAVA), "-encoding", "UTF-8", "-nowarn"]
    sources = map(str, driver.sources())
    run = _tool([*command, "-cp", jar_path, "-d", str(into), *sources], COMPILER_SECONDS)
    if run.returncode != 0:
        raise DriverFailed(f"{driver.folder} {driver.version} does not compile:\n{run.stderr}")


def _tool(command: list[str], seconds: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)


def last_lines(text: str, count: int) -> str:
    """Return the end of what a program wrote."""
    return "\n".join(text.rstrip().splitlines()[-count:])
