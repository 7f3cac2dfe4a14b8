"""A directory as it lies: the log is scanned from anywhere, also over damage."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import rocketcompat
from rocketcompat import Message
from rocketcompat.inspect.directory import StoreDirectory, Watch
from rocketcompat.inspect.dump import dump_log
from rocketcompat.inspect.selection import Selection
from tests.support.golden import Golden, GoldenFactory
from tests.support.golden import golden_fixture as golden_fixture
from tests.support.rocket.files.selected import SMALL, rows
from tests.support.rocket.files.selected import real_fixture as real_fixture


def test_a_scan_reports_how_far_it_is_and_ends_its_report(real: Golden) -> None:
    calls: list[tuple[int, int]] = []
    ended = []
    names = []

    @contextmanager
    def watching(what: str) -> Iterator[Watch]:
        names.append(what)
        yield lambda done, total: calls.append((done, total))
        ended.append(len(calls))

    directory = StoreDirectory(real.store)
    directory.watching = watching
    pieces = list(directory.scan_log())
    assert len(pieces) > 0
    assert (names, ended) == (["log"], [len(calls)])
    assert calls == sorted(calls)
    assert all(0 < done <= total for done, total in calls)


@pytest.mark.gate
def test_a_scan_may_begin_anywhere(real: Golden) -> None:
    everything = rows(real)
    for start in range(0, everything[-1]["physical_offset"] + 10, 97):
        assert rows(real, start=start) == [
            row for row in everything if row["physical_offset"] >= start
        ]


def test_a_scan_that_begins_in_damage_reports_it(golden: GoldenFactory) -> None:
    real = golden("rocketmq", "4.9.8", "flip-body-middle")
    (region,) = [row for row in rows(real) if row["state"] == "damaged"]
    for start in (region["physical_offset"], region["physical_offset"] + 5):
        assert rows(real, start=start)[0] == region
    behind = region["physical_offset"] + region["store_size"]
    assert rows(real, start=behind)[0]["physical_offset"] == behind


def test_files_before_a_time_are_not_read(tmp_path: Path) -> None:
    from tubestore.clock import ManualClock

    clock = ManualClock()
    with rocketcompat.open(
        tmp_path, "w", SMALL, layouts=set(), background=False, clock=clock
    ) as store:
        for number in range(60):
            store.put_message(Message("T", b"x" * 500, queue_id=number % 2))
            clock.advance(600_000)
    directory = StoreDirectory(tmp_path)
    times = [row["store_timestamp"] for row in dump_log(directory)]
    assert len(directory.log.files) > 5
    read: list[int] = []
    inner = directory.log.files[0].__class__.read
    since = times[-3]

    def counted(self: Any, position: int, size: int) -> bytes:
        if size > 200:
            read.append(self.file_from_offset)
        return inner(self, position, size)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(directory.log.files[0].__class__, "read", counted)
        found = list(dump_log(directory, Selection(begin=since)))
    assert [row["store_timestamp"] for row in found] == times[-3:]
    assert 0 not in read
