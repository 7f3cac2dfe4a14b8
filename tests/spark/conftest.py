"""A Spark session for the tests of a process that need one; skipped without PySpark or Java."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tubestore.spark.kit import java, running

#: A small and quickly started JVM; a task that fails is tried again.
SETTINGS = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.shuffle.partitions": "2",
}


@pytest.fixture(scope="session")
def needs_spark() -> None:
    """Skip where PySpark or a Java for it is missing."""
    if find_spec("pyspark") is None:
        pytest.skip("PySpark is not installed: make test-spark installs it")
    try:
        java.ensure(dict(os.environ))
    except java.NoJava as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def spark(needs_spark: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A session on this machine, with two cores and three attempts a task."""
    from tubestore.spark import session

    home = tmp_path_factory.mktemp("spark")
    made = session(
        "local[2,3]",
        {
            **SETTINGS,
            "spark.sql.warehouse.dir": home / "warehouse",
            "spark.local.dir": home / "local",
        },
        memory="1g",
    )
    made.sparkContext.setLogLevel("OFF")
    yield made
    made.stop()


@pytest.fixture
def checkpoints(tmp_path: Path) -> str:
    """A place for a stream's checkpoints."""
    return str(tmp_path / "checkpoints")


@pytest.fixture
def small_waves(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[int]:
    """Do the work of waves here; returns the numbers of the splits that were worked on."""
    worked: list[int] = []

    def wave(spark: Any, job: Any, chosen: list[tuple[int, Any]], tasks: int) -> Any:
        found = []
        for number, split in chosen:
            again, part = pickle.loads(pickle.dumps((job, split)))
            found.append((number, json.loads(json.dumps(again.work(number, part)))))
            worked.append(number)
        return found

    monkeypatch.setattr(running, "_wave", wave)
    monkeypatch.setattr(running, "_SPLITS_A_CORE", 2)
    monkeypatch.setattr(running, "parallelism", lambda spark: 2)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return worked
