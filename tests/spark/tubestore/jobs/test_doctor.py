"""The doctor names what an executor has or sees differently from the driver's machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.spark.stores import write_store
from tubestore.spark.jobs import doctor

HERE: dict[str, Any] = {
    "host": "driver", "process": 1, "clock_ms": 1_700_000_000_000, "python": "3.12.1",
    **dict.fromkeys(doctor.PACKAGES, "1.0"), "uuid": "u", "shards": 1,
}  # fmt: skip


def compared(**other: Any) -> list[str]:
    return list(doctor._compare(HERE, [{**HERE, "host": "one", "split": 0, **other}] * 2))


def test_an_executor_like_the_driver_has_no_problem() -> None:
    assert compared() == []


@pytest.mark.parametrize(
    ("other", "problem"),
    [
        ({"python": "3.11.1"}, "one: python is 3.11.1, on the driver's machine 3.12.1"),
        ({"pyarrow": "2.0"}, "one: pyarrow is 2.0, on the driver's machine 1.0"),
        ({"numpy": "1.0.1"}, "one: numpy is 1.0.1, on the driver's machine 1.0"),
        ({"uuid": "v"}, "one: sees store v, the driver's machine u"),
        ({"clock_ms": HERE["clock_ms"] + 3_600_000}, "one: its clock is more than ten minutes off"),
        ({"problem": "cannot read the store: x"}, "one: cannot read the store: x"),
    ],
)
def test_a_difference_is_named_once_a_host(other: dict[str, Any], problem: str) -> None:
    assert compared(**other) == [problem]


def test_the_last_number_of_python_may_differ() -> None:
    assert compared(python="3.12.9") == []


def test_a_probe_writes_into_the_store_and_what_it_left_can_be_removed(tmp_path: Path) -> None:
    write_store(tmp_path, {"t": 10})
    before = sorted(tmp_path.rglob("*"))
    found = doctor.probe(str(tmp_path), "token", "0")
    assert "problem" not in found
    rows = [{**found, "split": 0}, {**found, "split": 1}]
    assert list(doctor._unseen(str(tmp_path), "token", rows[:1])) == []
    (unseen,) = doctor._unseen(str(tmp_path), "token", rows)
    assert "the directory is not shared" in unseen
    doctor._clean(doctor.staging(str(tmp_path), "token"))
    assert [p for p in sorted(tmp_path.rglob("*")) if p.name != "staging"] == before


def test_a_directory_that_is_no_store_is_a_problem(tmp_path: Path) -> None:
    found = doctor.probe(str(tmp_path / "nothing"), "token", "0")
    assert found["problem"].startswith("cannot read the store: ")
