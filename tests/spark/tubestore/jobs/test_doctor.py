"""The doctor names what an executor has or sees differently from the driver's machine."""

from __future__ import annotations

import json
import socket
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.spark.stores import write_store
from tests.spark.tubestore.jobs.test_probe import probe_of
from tubestore.errors import TubeStoreError
from tubestore.spark.jobs import doctor
from tubestore.spark.kit import java

HERE: dict[str, Any] = {
    "host": "driver", "process": 1, "clock_ms": 1_700_000_000_000, "python": "3.12.1",
    **dict.fromkeys(doctor.PACKAGES, "1.0"), "identity": '{"version": 1, "uuid": "u"}',
    "directories": 1,
}  # fmt: skip
CLOCKS = HERE["clock_ms"], HERE["clock_ms"] + 5000


def compared(**other: Any) -> list[str]:
    return list(doctor._compare(HERE, [{**HERE, "host": "one", "split": "0", **other}] * 2, CLOCKS))


def test_an_executor_like_the_driver_has_no_problem() -> None:
    assert compared() == []


@pytest.mark.parametrize(
    ("other", "problem"),
    [
        ({"python": "3.11.1"}, "one: python is 3.11.1, on the driver's machine 3.12.1"),
        ({"pyarrow": "2.0"}, "one: pyarrow is 2.0, on the driver's machine 1.0"),
        ({"numpy": "1.0.1"}, "one: numpy is 1.0.1, on the driver's machine 1.0"),
        ({"tubestore": "missing"}, "one: tubestore is missing, on the driver's machine 1.0"),
        (
            {"identity": '{"version": 1, "uuid": "v"}'},
            "one: sees store v, the driver's machine u",
        ),
        ({"identity": None}, "one: sees store None, the driver's machine u"),
        ({"clock_ms": CLOCKS[1] + 4000}, "one: its clock is 4 s off"),
        ({"clock_ms": CLOCKS[0] - 4000}, "one: its clock is 4 s off"),
        ({"problem": "cannot read the store: x"}, "one: cannot read the store: x"),
    ],
)
def test_a_difference_is_named_once_a_host(other: dict[str, Any], problem: str) -> None:
    assert compared(**other) == [problem]


def test_the_last_number_of_python_may_differ() -> None:
    assert compared(python="3.12.9") == []


def test_a_store_of_another_system_that_is_empty_on_an_executor_is_a_problem() -> None:
    here = {**HERE, "identity": None}
    (text,) = doctor._compare(here, [{**here, "host": "one", "directories": 0}], CLOCKS)
    assert text == "one: sees an empty directory, the driver's machine 1 topics in it"


def test_clocks_may_differ_by_the_time_that_the_tasks_took() -> None:
    assert compared(clock_ms=CLOCKS[1] + 1999) == []
    assert compared(clock_ms=CLOCKS[0] - 1999) == []


def test_a_file_that_is_not_seen_from_here_is_a_problem(tmp_path: Path) -> None:
    write_store(tmp_path, {"t": 10})
    probe = probe_of(tmp_path)
    found = probe.row("0")
    rows = [found, {**found, "split": "1", "host": "far"}]
    assert list(doctor._unseen(probe, rows[:1])) == []
    (unseen,) = doctor._unseen(probe, rows)
    assert unseen == "far: what it writes is not seen here: the directory is not shared"


def session_with(python: str) -> Any:
    return SimpleNamespace(sparkContext=SimpleNamespace(pythonExec=python))


def test_a_python_without_the_package_that_plans_is_a_problem(tmp_path: Path) -> None:
    assert list(doctor._planning(session_with(sys.executable))) == []
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 'ModuleNotFoundError: No module named x' >&2; exit 1\n")
    python.chmod(0o755)
    (text,) = doctor._planning(session_with(str(python)))
    assert text.startswith(f"the driver's machine: {python}, which Spark plans with, cannot use")
    assert "No module named x" in text
    (text,) = doctor._planning(session_with(str(tmp_path / "none")))
    assert "No such file" in text


# -- with a Spark of its own ----------------------------------------------------------------------


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """A store, on a machine with PySpark and a Java."""
    monkeypatch.setattr(java, "need_spark", lambda: None)
    monkeypatch.setattr(java, "ensure", lambda environment: "/java")
    write_store(tmp_path, {"t": 10})
    return str(tmp_path)


def test_a_master_that_is_not_there_is_named_before_spark_starts(there: str) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))  # not listening: connections are refused
        master = f"spark://127.0.0.1:{other.getsockname()[1]}"
        found = doctor.examine(there, master)
    (problem,) = found.problems
    assert problem.startswith(f"master {master} cannot be reached: 127.0.0.1:")


def test_one_of_several_masters_is_enough() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        doctor.check_master(f"spark://127.0.0.1:1,127.0.0.1:{other.getsockname()[1]}")


def test_a_missing_java_is_a_problem_and_no_error(
    there: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ensure(environment: Any) -> str:
        raise java.NoJava("Spark needs Java 17 or newer: none was found")

    monkeypatch.setattr(java, "ensure", ensure)
    found = doctor.examine(there)
    assert found.problems == ["Spark needs Java 17 or newer: none was found"]


def test_a_store_that_the_drivers_machine_lacks_is_a_problem(there: str) -> None:
    (problem,) = doctor.examine(f"{there}/nothing").problems
    assert problem.startswith("the driver's machine: cannot read the store: ")


def test_a_spark_that_hangs_is_killed_at_the_deadline_and_its_last_step_named(
    there: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = """echo '{"step": "no executor comes"}'; sleep 600 & wait"""
    monkeypatch.setattr(doctor, "_command", lambda given: ["sh", "-c", script])
    monkeypatch.setattr(doctor, "_END_SECONDS", 0.0)
    began = time.monotonic()
    assert doctor.examine(there, seconds=2).problems == ["no executor comes (after 2 s)"]
    assert time.monotonic() - began < 60


def test_the_diagnosis_of_the_started_process_is_returned(
    there: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [{"step": "Spark does not start"}, {"executors": [{"host": "a"}], "problems": ["b"]}]
    text = "\n".join(map(json.dumps, lines))
    monkeypatch.setattr(doctor, "_command", lambda given: ["printf", "%s\n", *text.split("\n")])
    assert doctor.examine(there) == doctor.Diagnosis([{"host": "a"}], ["b"])


def test_a_session_that_spark_refuses_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyspark")
    from tubestore.spark import laptop

    def session(*given: Any, **more: Any) -> Any:
        raise TubeStoreError("Spark does not start at yarn: no configuration")

    monkeypatch.setattr(laptop, "session", session)
    given = {"root": "r", "master": "yarn", "settings": {}, "memory": None}
    assert list(doctor._diagnose(given))[-1] == {
        "problems": ["Spark does not start at yarn: no configuration"]
    }  # fmt: skip


def test_executors_that_do_not_come_are_named_with_the_drivers_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("pyspark")
    from tubestore.spark import laptop

    context = SimpleNamespace(
        statusTracker=lambda: SimpleNamespace(getExecutorInfos=lambda: ["the driver"]),
        isStopped=lambda: True,  # the master has removed the application
    )
    spark = SimpleNamespace(
        conf={"spark.driver.host": "10.0.0.7", "spark.driver.port": "4040"},
        sparkContext=SimpleNamespace(_jsc=SimpleNamespace(sc=lambda: context)),
    )
    monkeypatch.setattr(laptop, "session", lambda *given, **more: spark)
    given = {"root": "r", "master": "spark://far:7077", "settings": {}, "memory": None}
    (problem,) = list(doctor._diagnose(given))[-1]["problems"]
    assert problem.startswith("no executor of spark://far:7077 comes: ")
    assert "the way to the driver at 10.0.0.7:4040 (spark.driver.host)" in problem
