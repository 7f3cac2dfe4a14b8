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
from tests.rocketcompat.inspect.test_selection import SMALL, put
from tests.support.command import Command
from tests.support.golden import GoldenFactory, golden_fixture  # noqa: F401
from tests.support.rocket.cli import command_fixture  # noqa: F401
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


def test_the_command_prints_a_line_a_message(tmp_path: Path, command: Command) -> None:
    put(tmp_path, [Message("T", f"line {n}\n".encode(), tags="t", queue_id=2) for n in range(20)])
    lines = command("tail", tmp_path, "-n", 2).out.splitlines()
    assert [line.split(" ", 2)[2] for line in lines] == [
        "T/2@18 [t] line 18\\n", "T/2@19 [t] line 19\\n"
    ]  # fmt: skip
    rows = command("tail", tmp_path, "-n", 3, "--format", "jsonl").rows
    assert [row["queue_offset"] for row in rows] == [17, 18, 19]
    done = command("tail", tmp_path, "-f", "--idle-timeout", 0, "-n", 1)
    assert (done.code, len(done.out.splitlines())) == (0, 1)
    done = command("tail", tmp_path, "-f", "--format", "parquet")
    assert (done.code, done.err.count("\n")) == (2, 1)


def test_nothing_of_a_store_acts_on_the_terminal(tmp_path: Path, command: Command) -> None:
    escape = "\x1b]0;title\x07\u202e"
    message = Message("T", escape.encode(), tags=escape, keys="key", properties={escape: escape})
    put(tmp_path, [message])
    one = ("-t", "T", "-q", 0, "--offset", 0)
    for words in (
        ["tail"],
        ["dump"],
        ["query", "-t", "T", "-k", "key"],
        ["get", *one],
        ["decode", *one],
        ["cq", "-t", escape],
        ["lag", "-g", escape],
        ["dump", "--begin", escape],
        ["info", "-o", f"maxIndexNum={escape}"],
    ):
        done = command(words[0], tmp_path, *words[1:])
        text = done.out + done.err
        assert "\\x1b]0;title\\x07\\u202e" in text
        assert all(character.isprintable() for character in text.replace("\n", ""))


def test_an_interrupt_ends_following_quietly(
    tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, [Message("T", b"x")])

    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("time.sleep", interrupt)
    done = command("tail", tmp_path, "-f")
    assert (done.code, done.err, len(done.out.splitlines())) == (130, "", 1)
