"""What a session sets: much on this machine, nothing on a cluster; and what it prints."""

from __future__ import annotations

import os
import subprocess
from typing import Any

import pytest

pytestmark = pytest.mark.usefixtures("needs_spark")


def complain(code: int = 0) -> None:
    subprocess.run(["sh", "-c", f"echo WARN >&2; exit {code}"], check=True)


def test_what_children_say_is_not_heard(capfd: pytest.CaptureFixture[str]) -> None:
    from tubestore.spark.laptop import unheard

    with unheard():
        complain()
    assert capfd.readouterr().err == ""
    complain()
    assert capfd.readouterr().err == "WARN\n"


def test_what_children_said_before_a_failure_is_shown(capfd: pytest.CaptureFixture[str]) -> None:
    from tubestore.spark.laptop import unheard

    with pytest.raises(subprocess.CalledProcessError), unheard():
        complain(1)
    assert capfd.readouterr().err == "WARN\n"


class Started(Exception):
    """Raised instead of starting Spark."""


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the session is asked for; the environment is as it was afterwards."""
    from pyspark.sql import SparkSession

    from tubestore.spark.kit import java

    asked: dict[str, Any] = {}

    def start(builder: Any) -> Any:
        asked.update(builder._options)
        raise Started("An error occurred.\n: java.lang.Error: no such host\n\tat")

    monkeypatch.setattr(SparkSession.Builder, "getOrCreate", start)
    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: None)
    monkeypatch.setattr(java, "ensure", lambda: "/java")
    for name in ("PYSPARK_PYTHON", "SPARK_LOCAL_IP"):
        monkeypatch.setenv(name, "")  # so that it is put back afterwards
        monkeypatch.delenv(name)
    return asked


def start(*given: Any, **more: Any) -> str:
    """Start a session; returns the error's sentence."""
    from tubestore.spark.kit.running import SparkFailed
    from tubestore.spark.laptop import session

    with pytest.raises(SparkFailed) as caught:
        session(*given, **more)
    return str(caught.value)


def test_on_a_cluster_only_what_the_caller_gives_is_set(started: dict[str, Any]) -> None:
    start("spark://far:7077", {"spark.executor.memory": "600m"})
    assert started == {
        "spark.master": "spark://far:7077",
        "spark.app.name": "tubestore",
        "spark.executor.memory": "600m",
    }
    assert "PYSPARK_PYTHON" not in os.environ
    assert "SPARK_LOCAL_IP" not in os.environ


def test_the_drivers_memory_on_a_cluster_is_set_if_it_is_given(started: dict[str, Any]) -> None:
    start("spark://far:7077", memory="1g")
    assert started["spark.driver.memory"] == "1g"


@pytest.mark.parametrize("master", ["local", "local[*]", "local[2,3]"])
def test_on_this_machine_spark_keeps_to_the_loopback_and_to_this_python(
    started: dict[str, Any], master: str
) -> None:
    start(master, {"spark.ui.enabled": "true"})
    assert started["spark.driver.host"] == started["spark.driver.bindAddress"] == "127.0.0.1"
    assert started["spark.driver.memory"] == "2g"
    assert started["spark.ui.enabled"] == "true"  # given by the caller
    assert os.environ["SPARK_LOCAL_IP"] == "127.0.0.1"
    assert os.environ["PYSPARK_PYTHON"].endswith("/bin/python")


def test_a_spark_that_does_not_start_is_one_sentence(started: dict[str, Any]) -> None:
    assert start("yarn") == "Spark does not start at yarn: no such host"
