"""Why a log takes nothing, without a log."""

from __future__ import annotations

import errno
import logging

import pytest

from rocketcompat.commitlog.refusals import Refusals
from rocketcompat.files.mapped_file import LeftOver
from tubestore.errors import DiskFull, StoreFailed


@pytest.fixture
def refusals() -> Refusals:
    return Refusals("/log")


NO_ROOM = OSError(errno.ENOSPC, "No space left on device", "/log/file")


def test_a_full_disk_is_refused_with_its_path_and_may_be_tried_again(refusals: Refusals) -> None:
    refusal = refusals.of_write(NO_ROOM, 3)
    assert isinstance(refusal, DiskFull)
    assert (refusal.errno, refusal.filename, refusal.taken) == (errno.ENOSPC, "/log/file", "no")
    assert refusals.no_room is not None
    assert refusals.no_room is not refusal  # what is kept is not raised itself
    assert (refusals.stopped, refusals.count) == (None, 3)


def test_want_of_room_is_logged_once_and_so_is_its_end(
    refusals: Refusals, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        refusals.of_write(NO_ROOM, 1)
        refusals.of_write(NO_ROOM, 1)
        assert len(caplog.records) == 1
        refusals.has_room()
    assert [r.levelname for r in caplog.records] == ["ERROR", "WARNING"]
    assert refusals.no_room is None


def test_any_other_failed_write_fails_the_log_for_good(refusals: Refusals) -> None:
    refusal = refusals.of_write(OSError(errno.EIO, "Input/output error"), 1)
    assert isinstance(refusal, StoreFailed)
    assert refusal is not refusals.failed
    assert refusals.stopped is refusals.failed
    with pytest.raises(StoreFailed) as raised:
        refusals.refuse(2)
    assert raised.value is not refusals.failed
    assert refusals.count == 3


def test_it_is_not_known_whether_a_write_that_left_bytes_was_taken(refusals: Refusals) -> None:
    assert refusals.of_write(LeftOver("/log/file", "no room"), 1).taken == "unknown"


def test_a_log_that_failed_stays_failed_when_the_disk_is_too_full(refusals: Refusals) -> None:
    refusals.too_full = DiskFull("/log", "91 % used")
    with pytest.raises(DiskFull, match="91 % used"):
        refusals.refuse(1)
    refusals.fail("why")
    assert isinstance(refusals.stopped, StoreFailed)
    refusals.too_full = None
    assert isinstance(refusals.stopped, StoreFailed)
