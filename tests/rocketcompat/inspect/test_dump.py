"""`tail`: the last records, and those of a store that is being written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import rocketcompat
from rocketcompat import Message
from rocketcompat.inspect.directory import StoreDirectory
from rocketcompat.inspect.dump import POLL_SECONDS, Tail, dump_log
from rocketcompat.inspect.selection import Selection
from tests.support.golden import GoldenFactory
from tests.support.golden import golden_fixture as golden_fixture
from tests.support.rocket.files.selected import SMALL, put
from tubestore.clock import ManualClock


def offsets(pieces: list[Any]) -> list[int]:
    return [int(start) + piece.base for piece in pieces for start in piece.starts]


@pytest.mark.parametrize("scenario", ["rolled", "basic", "torn-half", "flip-body-middle"])
def test_the_last_records_are_those_at_the_end_of_a_dump(
    golden: GoldenFactory, scenario: str
) -> None:
    store = golden("rocketmq", "4.9.8", scenario).store
    directory = StoreDirectory(store)
    every = [r["physical_offset"] for r in dump_log(directory) if r["state"] == "ok"]
    for count in (0, 1, 3, 40, 10_000):
        tail = Tail(directory, Selection())
        assert offsets(tail.last(count)) == (every[-count:] if count else [])
    topics = [r for r in dump_log(directory, Selection(queue_id=1)) if r["state"] == "ok"]
    found = Tail(directory, Selection(queue_id=1)).last(5)
    assert offsets(found) == [r["physical_offset"] for r in topics[-5:]]


def test_what_a_writer_appends_is_followed_over_files(tmp_path: Path) -> None:
    clock = ManualClock()
    waits: list[float] = []
    with rocketcompat.open(tmp_path, "w", SMALL, layouts=set(), background=False) as store:
        first = [store.put_message(Message("T", b"a" * 700)).physical_offset for _ in range(3)]
        directory = StoreDirectory(tmp_path)
        tail = Tail(directory, Selection())
        assert offsets(tail.last(2)) == first[-2:]
        put_later: list[int] = []

        def sleep(seconds: float) -> None:
            waits.append(seconds)
            clock.advance(int(seconds * 1000))
            if len(waits) <= 4:
                put_later.append(store.put_message(Message("T", b"b" * 1500)).physical_offset)

        found = [p for p in tail.follow(clock, sleep, idle_timeout=1.0) if p is not None]
    assert offsets(found) == put_later
    assert len(directory.log.files) > 1
    assert set(waits) == {POLL_SECONDS}


def test_only_the_new_bytes_are_read_again(tmp_path: Path) -> None:
    clock = ManualClock()
    with rocketcompat.open(tmp_path, "w", SMALL, layouts=set(), background=False) as store:
        for _ in range(4):
            store.put_message(Message("T", b"a" * 700))
        directory = StoreDirectory(tmp_path)
        tail = Tail(directory, Selection())
        tail.last(1)
        scanned: list[int | None] = []
        inner = directory.scan_log

        def scan_log(start: int | None = None, *rest: Any, **more: Any) -> Any:
            scanned.append(start)
            return inner(start, *rest, **more)

        directory.scan_log = scan_log  # type: ignore[method-assign]
        list(tail.follow(clock, lambda s: clock.advance(int(s * 1000)), idle_timeout=1.0))
        assert scanned
        assert set(scanned) == {store.max_physical_offset}


def test_files_that_were_removed_meanwhile_are_passed_over(tmp_path: Path) -> None:
    places = put(tmp_path, [Message("T", b"a" * 1500) for _ in range(9)])
    directory = StoreDirectory(tmp_path)
    clock = ManualClock()
    tail = Tail(directory, Selection())  # nothing has been read yet: it stands at the first byte
    first = directory.log.files[0]
    Path(first.path).unlink()
    behind = first.file_from_offset + first.file_size
    found = [p for p in tail.follow(clock, lambda s: clock.advance(int(s * 1000)), 0.1) if p]
    assert offsets(found) == [place for place in places if place >= behind]
