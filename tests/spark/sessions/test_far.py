"""An executor as on another machine: its own network, the store shared."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.spark.cluster import JAVA_OPTIONS, Cluster, Driver
from tests.spark.stores import write_store

pytestmark = pytest.mark.slow
HERE, THERE = "10.213.77.1", "10.213.77.2"
EXAMINE = """
import json, sys
from tubestore.spark.jobs.doctor import examine
master, root, java, seconds = *sys.argv[1:4], float(sys.argv[4])
java = {f"spark.{side}.extraJavaOptions": java for side in ("driver", "executor")}
found = examine(root, master, {"spark.executor.memory": "600m", **java, **json.loads(sys.argv[5])},
                seconds=seconds)
print(json.dumps([len(found.executors), found.problems]))
"""
READ = """
import sys
from tubestore.spark import read, session
java = {f"spark.{side}.extraJavaOptions": sys.argv[3] for side in ("driver", "executor")}
spark = session(sys.argv[1], {"spark.executor.memory": "600m", **java})
print(read(spark, sys.argv[2]).count())
"""


@pytest.fixture(scope="module")
def hidden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of the driver's machine alone: its caches."""
    return tmp_path_factory.mktemp("hidden")


@pytest.fixture(scope="module")
def far(
    needs_spark: None, tmp_path_factory: pytest.TempPathFactory, hidden: Path
) -> Iterator[Cluster]:
    allowed = subprocess.run(
        ["unshare", "--net", "--mount", "ip", "link", "set", "lo", "up"],
        capture_output=True, text=True, check=False,
    ) if os.geteuid() == 0 else None  # fmt: skip
    if allowed is None or allowed.returncode:
        reason = "not root" if allowed is None else allowed.stderr.strip()
        pytest.skip(f"no namespaces of its own for a worker: {reason}")
    made = Cluster(tmp_path_factory.mktemp("far"))
    try:
        made.start_master("0.0.0.0")
        made.url = made.url.replace("0.0.0.0", HERE)
        made.add_far_worker(HERE, THERE, hidden)
        yield made
    finally:
        made.stop()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_store(tmp_path / "store", {"logs": 500})
    return tmp_path / "store"


def driver(far: Cluster, hidden: Path, script: str, root: Path, *more: str, **env: str) -> str:
    """Run a driver with its caches in the hidden directory; returns what it printed."""
    known = {"XDG_CACHE_HOME": str(hidden), "XDG_STATE_HOME": str(hidden), **env}
    return Driver(
        root.parent / "out", script, far.url, root, JAVA_OPTIONS, *more, **known
    ).finished()


def test_a_session_on_a_cluster_reads_where_nothing_but_the_store_is_shared(
    far: Cluster, hidden: Path, root: Path
) -> None:
    assert driver(far, hidden, READ, root) == "500\n"


def test_the_doctor_finds_nothing_wrong_with_it(far: Cluster, hidden: Path, root: Path) -> None:
    assert json.loads(driver(far, hidden, EXAMINE, root, "200", "{}")) == [1, []]


def test_the_doctor_names_a_python_that_only_the_driver_has(
    far: Cluster, hidden: Path, root: Path
) -> None:
    python = hidden / "python"  # no link: that would not find the environment's packages
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    out = driver(far, hidden, EXAMINE, root, "200", "{}", PYSPARK_PYTHON=str(hidden / "python"))
    _, (problem, *_) = json.loads(out)
    assert problem.startswith(f'{THERE}: Cannot run program "{hidden}/python"')
