"""Queues and index of a published job are written from its own rows, the bytes of a dispatch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import rocketcompat
from rocketcompat import Message, MessageStoreConfig
from rocketcompat.check.whole import check_store
from rocketcompat.dispatch import feed
from rocketcompat.inspect.directory import StoreDirectory
from rocketcompat.record.columns import RecordColumns
from rocketcompat.repair.rebuild import rebuild
from rocketcompat.staging import tails
from rocketcompat.staging.writer import StagedLogWriter
from rocketcompat.store.default_message_store import DefaultMessageStore
from tests.support.rocket.inside import dispatcher_of
from tests.support.rocket.publishing import CONFIG, ROOT
from tubestore.clock import ManualClock
from tubestore.core.quarantine import Quarantine
from tubestore.errors import InvalidMessage
from tubestore.testing import MemoryVfs

OPTIONS = {"maxHashSlotNum": 16, "maxIndexNum": 40}
Vfs = MemoryVfs


@pytest.fixture
def vfs(clock: ManualClock) -> MemoryVfs:
    return MemoryVfs(clock)


def opened(vfs: Vfs, clock: ManualClock, config: MessageStoreConfig = CONFIG) -> Any:
    return rocketcompat.open(ROOT, "w", config, vfs=vfs, clock=clock, background=False)


def rows(count: int, first: int = 0, **more: Any) -> dict[str, Any]:
    numbers = range(first, first + count)
    return {
        "topic": [f"topic{n % 3}" for n in numbers],
        "queue_id": [n % 2 for n in numbers],
        "body": [b"x" * (n % 70) for n in numbers],
        "tags": [f"t{n % 5}" if n % 4 else None for n in numbers],
        "keys": [f"k{n} m{n % 7}" if n % 3 else None for n in numbers],
        "sys_flag": [(0, 0, 0, 4, 8, 12)[n % 6] for n in numbers],
        **more,
    }


def stage(
    vfs: Vfs, *batches: dict[str, Any], config: MessageStoreConfig = CONFIG, job: str = "job"
) -> list[Any]:
    """Stage a piece a batch."""
    staged = []
    for number, batch in enumerate(batches):
        with StagedLogWriter(ROOT, job, str(number), config=config, vfs=vfs) as writer:
            writer.write(batch)
            staged += writer.finish()
    return staged


def files_of(vfs: Vfs) -> dict[str, bytes]:
    """Queues and index; index files by their number, since their names are times."""
    found: dict[str, bytes] = {}
    for path, raw in sorted(vfs.tree().items()):
        relative = path.removeprefix(f"{ROOT}/")
        if relative.startswith(("consumequeue/", "index/")):
            name = f"index/{len(found)}" if relative.startswith("index/") else relative
            found[name] = raw
    return found


def verify(vfs: Vfs, clock: ManualClock) -> None:
    """What stands there is what is built from the log alone."""
    assert [f["message"] for f in check_store(StoreDirectory(ROOT, OPTIONS, vfs))] == []
    before = files_of(vfs)
    directory = StoreDirectory(ROOT, OPTIONS, vfs)
    structures = ("consumequeue", "index")
    list(rebuild(directory, structures, clock=clock, quarantine=Quarantine(vfs, ROOT)))
    assert files_of(vfs) == before
    assert len(before) > 6


@pytest.fixture
def only_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that is published may be read from the log."""

    def refused(*_: Any) -> Any:
        raise AssertionError("read from the log")

    monkeypatch.setattr(feed, "batch_of", refused)


@pytest.mark.usefixtures("only_rows")
def test_a_job_of_many_files_and_pieces_gets_the_bytes_that_a_rebuild_makes(
    vfs: MemoryVfs, clock: ManualClock
) -> None:
    with opened(vfs, clock) as store:
        result = store.publish("job", stage(vfs, rows(90), rows(40, 90), rows(1, 130)))
        assert result.end > 3 * 4096
        assert dispatcher_of(store).behind == 0
        store.put_columns({"topic": ["topic1"], "body": [b"behind"], "keys": ["last"]})
    verify(vfs, clock)


def test_a_job_behind_puts_that_were_not_handed_over_yet_is_taken_from_its_rows(
    vfs: MemoryVfs, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[int] = []
    made = tails._batch_of
    monkeypatch.setattr(tails, "_batch_of", lambda *a: taken.append(1) or made(*a))
    with opened(vfs, clock) as store:
        for number in range(20):
            store.put_message(Message("topic0", b"before %d" % number, keys=["b"]))
        store.publish("job", stage(vfs, rows(50)))
        assert dispatcher_of(store).behind == 0
        store.publish("again", [])
    assert taken
    verify(vfs, clock)


def test_records_with_times_of_their_own_get_them_in_index_and_units(
    vfs: MemoryVfs, clock: ManualClock, request: pytest.FixtureRequest
) -> None:
    other = MemoryVfs(clock)
    with opened(other, clock) as store:
        store.put_columns(rows(60))
        for number in range(10):
            store.put_message(Message("late", b"%d" % number, delay_level=1 + number % 3))
    clock.advance(5000)
    with opened(vfs, clock) as store:
        with StagedLogWriter(ROOT, "job", "0", config=CONFIG, vfs=vfs) as writer:
            for piece in StoreDirectory(ROOT, {}, other).scan_log():
                assert isinstance(piece, RecordColumns)
                writer.write_records(piece)
            staged = writer.finish()
        request.getfixturevalue("only_rows")
        store.publish("job", staged)
    verify(vfs, clock)


@pytest.mark.parametrize("kind", ["delayed", "several queues"])
def test_what_rows_cannot_contain_is_read_from_the_log(
    kind: str, vfs: MemoryVfs, clock: ManualClock
) -> None:
    config = CONFIG.changed(enable_multi_dispatch=True, enable_lmq=True)
    with opened(vfs, clock, config) as store:
        if kind == "delayed":
            staged = stage(vfs, rows(30, delay_level=[n % 4 for n in range(30)]), config=config)
        else:
            other = MemoryVfs(clock)
            with opened(other, clock, config) as writing:
                for number in range(9):
                    text = {"INNER_MULTI_DISPATCH": "%LMQ%a,%LMQ%b"}
                    writing.put_message(Message("topic0", b"%d" % number, properties=text))
            with StagedLogWriter(ROOT, "job", "0", config=config, vfs=vfs) as writer:
                for piece in StoreDirectory(ROOT, {}, other).scan_log():
                    assert isinstance(piece, RecordColumns)
                    writer.write_records(piece)
                staged = writer.finish()
        assert [piece.is_plain for piece in staged] == [False]
        store.publish("job", [*staged, *stage(vfs, rows(60), config=config)])
        assert dispatcher_of(store).behind == 0
    verify(vfs, clock)


def test_a_job_whose_rows_cannot_be_read_any_more_is_taken_from_the_log(
    vfs: MemoryVfs, clock: ManualClock, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    made = tails._batches

    def broken(*arguments: Any) -> Iterator[Any]:
        yield next(made(*arguments))
        raise InvalidMessage("it is gone")

    monkeypatch.setattr(tails, "_batches", broken)
    with opened(vfs, clock) as store:
        store.publish("job", stage(vfs, rows(90), rows(40, 90)))
        assert dispatcher_of(store).behind == 0
    assert "a published job is read from the log: it is gone" in caplog.text
    verify(vfs, clock)


def test_a_job_is_published_while_a_thread_dispatches(clock: ManualClock, vfs: MemoryVfs) -> None:
    store: DefaultMessageStore = rocketcompat.open(ROOT, "w", CONFIG, vfs=vfs, clock=clock)
    with store:
        for number in range(30):
            store.put_message(Message("topic0", b"before", keys=["b"]))
            if number % 10 == 0:
                store.publish(f"job{number}", stage(vfs, rows(50), job=f"job{number}"))
                store.put_columns(rows(20))
    verify(vfs, clock)


def test_a_unit_that_a_job_gave_a_wrong_place_is_found_by_check(
    vfs: MemoryVfs, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = tails.numbers_of
    monkeypatch.setattr(tails, "numbers_of", lambda *given: numbers(*given)[::-1].copy())
    with opened(vfs, clock) as store:
        store.publish("job", stage(vfs, rows(50)))
    assert list(check_store(StoreDirectory(ROOT, OPTIONS, vfs)))
