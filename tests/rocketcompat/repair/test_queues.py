"""The files of queues are made to match the log."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import rocketcompat
from rocketcompat.check.whole import check
from tests.support.command import Command
from tests.support.golden_puts import files_of
from tests.support.inner_batches import CONFIG, batch
from tests.support.rocket.cli import command_fixture as command_fixture
from tests.support.rocket.files.batch_queues import (
    GIVEN,
    OPTIONS,
    UNIT,
    patch,
    queue_file,
    wrong_unit,
)
from tests.support.rocket.files.batch_queues import root as root


def cut_tail(root: Path) -> None:
    patch(queue_file(root, 20), 0, bytes(4 * UNIT))


def hole(root: Path) -> None:
    patch(queue_file(root, 5), UNIT, bytes(UNIT))


def stale_unit(root: Path) -> None:
    patch(queue_file(root, 20), 4 * UNIT, queue_file(root).read_bytes()[:UNIT])


def no_queue(root: Path) -> None:
    shutil.rmtree(root / "batchconsumequeue" / "B" / "0")


def no_file(root: Path) -> None:
    queue_file(root, 10).unlink()


def file_behind(root: Path) -> None:
    queue_file(root, 25).write_bytes(b"x" * 230)


def short_file(root: Path) -> None:
    queue_file(root, 5).write_bytes(queue_file(root, 5).read_bytes()[:100])


def other_kind(root: Path) -> None:
    path = root / "consumequeue" / "B" / "0"
    path.mkdir(parents=True)
    (path / ("0" * 20)).write_bytes(bytes(200))


FAULTS: dict[Callable[[Path], None], str] = {
    cut_tail: "unit_missing",
    wrong_unit: "unit_wrong",
    hole: "unit_wrong",
    stale_unit: "unit_surplus",
    no_queue: "unit_missing",
    no_file: "unit_wrong",
    file_behind: "unit_surplus",
    short_file: "size",
    other_kind: "queue_kind",
}


@pytest.mark.one_in(4)
@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f.__name__)
def test_a_fault_is_found_and_mended(
    root: Path, command: Command, fault: Callable[[Path], None]
) -> None:
    before = files_of(root, "batchconsumequeue")
    fault(root)
    reasons = {row["reason"] for row in check(root, OPTIONS)}
    assert FAULTS[fault] in reasons, reasons
    assert command("repair", root, *GIVEN).code == 1
    assert command("repair", root, *GIVEN, "--apply").code == 0
    assert list(check(root, OPTIONS)) == []
    assert files_of(root, "batchconsumequeue") == before
    with rocketcompat.open(root, "w", CONFIG, background=False) as store:
        assert store.max_offset_in_queue("B", 0) == 69
        assert store.put_inner_batch(batch(2)).queue_offset == 69
