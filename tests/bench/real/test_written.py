"""What the real classes append is read back and compared, as what every layout appends."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from bench.comparison import compare
from bench.layouts.capabilities import Unavailable
from bench.layouts.registry import contender
from bench.measure.laboratory import PLANS, plan_with
from bench.real import written
from bench.real.drivers import DriverUnavailable, RocketDriver, TubeDriver
from bench.workloads.cases import Case
from bench.workloads.sizes import Size

pytestmark = [pytest.mark.gate, pytest.mark.interop]
TEXT = bytes(range(256)) * 64


@pytest.fixture(scope="module", autouse=True)
def drivers() -> None:
    try:
        for made in (TubeDriver, lambda: RocketDriver("4.9.8"), lambda: RocketDriver("5.3.3")):
            made()
    except DriverUnavailable as reason:
        pytest.skip(str(reason))


def test_what_is_measured_of_the_real_classes_was_compared() -> None:
    plan = plan_with(PLANS["tiny"], rounds=1)
    found = compare(["rocketmq-4.9.8", "tubemq"], ["append"], amount="tiny", plan=plan)
    for row in found.to_pylist():
        assert row["reason"] is None
        assert row["rate_median"] > 0
        assert row["peak_mb"] > 30
        assert row["files"] >= 2
        assert row["descriptors"] is None, "those of a driver are not known"


@pytest.mark.parametrize(("version", "batch"), [("4.9.8", 1), ("4.9.8", 10), ("5.3.3", 10)])
def test_a_driver_puts_the_bodies_of_the_payload_in_the_order_that_is_expected(
    version: str, batch: int, tmp_path: Path
) -> None:
    case = case_in(tmp_path, topics=2, partitions=3)
    driver = RocketDriver(version)
    root = tmp_path / "store"
    row = driver.put_bench(
        root, 500, case.payload.body_size, topics=2, queues=3, batch=batch, warm=10,
        payload=tmp_path / "text",
    )  # fmt: skip
    assert row["messages"] == 500
    written.compare(case, root, 500 // batch, batch, rocket=True)
    refuses_others(case, root, 500 // batch, batch, rocket=True)


def test_tubemq_appends_the_bodies_of_the_payload_in_the_order_that_is_expected(
    tmp_path: Path,
) -> None:
    case = case_in(tmp_path, topics=1, partitions=3)
    root = tmp_path / "store"
    row = TubeDriver().bench_append(root, 500, 128, 3, payload=tmp_path / "text")
    assert row["messages"] == 500
    written.compare(case, root, 500, 1, rocket=False)
    refuses_others(case, root, 500, 1, rocket=False)


@pytest.mark.parametrize(
    ("layout", "works"),
    [
        ("tubemq", ["read"]),
        ("rocketmq-4.9.8", ["read", "scan", "by-key"]),
        ("rocketmq-5.3.3", ["by-key"]),
    ],
)
def test_reads_of_the_real_classes_are_measured_if_they_have_the_digest_of_what_was_stored(
    layout: str, works: list[str], tmp_path: Path
) -> None:
    size = Size(partitions=3, messages=2500, body=128)
    case, other = size.case(tmp_path, TEXT), size.case(tmp_path, TEXT[1:] + TEXT[:1])
    other._stored = case._stored  # expects other bodies of the same files
    for name in works:
        start = contender(layout).drivers[name]
        with start(case) as runner:
            assert runner(2500).messages > 0
        shutil.rmtree(tmp_path / "tubemq", ignore_errors=True)
        with (
            start(other) as runner,
            pytest.raises(Unavailable, match="gives back other messages than were stored"),
        ):
            runner(2500)


def case_in(folder: Path, **sizes: int) -> Case:
    """Return a case of bodies of 128 bytes, whose text is in a file."""
    (folder / "text").write_bytes(TEXT)
    return Size(body=128, **sizes).case(folder, TEXT)  # type: ignore[arg-type]


def refuses_others(case: Case, root: Path, calls: int, batch: int, **which: Any) -> None:
    """Assert that one call less, one more, and other bodies are noticed."""
    other = Size(topics=case.topics, partitions=case.partitions, body=128)
    for number, text in ((calls - 1, TEXT), (calls + 1, TEXT), (calls, TEXT[1:] + TEXT[:1])):
        with pytest.raises(Unavailable, match="gives back other messages than it took"):
            written.compare(other.case(case.place, text), root, number, batch, **which)
