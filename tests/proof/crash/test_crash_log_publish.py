"""A job that is published into a log is there entirely or not at all, whatever call was the last.

Calls of two published jobs, one that goes on in the live file and one that begins files, between
puts, are the last ones of a kill and of power cuts, those that write units and index items of the
jobs too; then recoveries are interrupted in turn. `CRASH_SEED` repeats a run; `CRASH_STATES` above
50,000 looks at every call, and at more power cuts of each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import rocketcompat
from rocketcompat import Message, MessageStoreConfig
from rocketcompat.check.whole import check_store
from rocketcompat.inspect.directory import StoreDirectory
from rocketcompat.record.columns import RecordColumns
from rocketcompat.staging import publish, roll_forward, tails
from rocketcompat.staging.pieces import LogRecords, StagedPiece
from rocketcompat.staging.writer import StagedLogWriter
from rocketcompat.store.default_message_store import DefaultMessageStore
from tests.proof.explorer.publishing import explore_publishing, find_planted, leave_record_unsynced
from tests.support.rocket.inside import dispatcher_of, log_of, opened_of
from tubestore.clock import ManualClock
from tubestore.staging.commit_records import JobRecords
from tubestore.staging.job_ids import JobIds
from tubestore.testing import CrashState, Journal, LyingVfs, MemoryVfs

pytestmark = pytest.mark.crash

ROOT = "/store"
CONFIG = MessageStoreConfig(
    mapped_file_size_commit_log=2048,
    mapped_file_size_consume_queue=200,
    max_hash_slot_num=8,
    max_index_num=16,
    layouts=frozenset({"consume_queue", "index"}),
)
#: Jobs, and their messages a task.
JOBS = {"load:1": 2, "load:2": 9}
PUTS = [b"put 0", b"put 1", b"put 2"]


def rows_of(job: str) -> list[bytes]:
    return [f"{job} {task} {n}".encode() for task in "ab" for n in range(JOBS[job])]


def open_store(vfs: MemoryVfs, clock: ManualClock, mode: Any = "w") -> DefaultMessageStore:
    return rocketcompat.open(ROOT, mode, CONFIG, vfs=vfs, clock=clock, background=False)


def stage(vfs: MemoryVfs, job: str, attempt: str) -> list[StagedPiece]:
    staged = []
    for task in "ab":
        bodies = [f"{job} {task} {n}".encode() for n in range(JOBS[job])]
        with StagedLogWriter(
            ROOT, job, task + attempt, config=CONFIG, vfs=vfs, token="t"
        ) as writer:
            writer.write({"topic": ["orders"] * len(bodies), "body": bodies, "keys": bodies})
            staged += writer.finish()
    return staged


def recorded_run() -> tuple[Journal, int]:
    """Puts, a job, puts, a job, puts, and the end of the process; all marked."""
    clock = ManualClock()
    vfs = MemoryVfs(clock)
    store = open_store(vfs, clock)
    journal = vfs.record()
    for body, job in zip(PUTS, (*JOBS, ""), strict=True):
        store.put_message(Message("orders", body, keys=["k"]), durability="fsync")
        vfs.mark(body)
        if job:
            store.publish(job, stage(vfs, job, "0"))
            vfs.mark(job)
    kill(store)
    return journal, clock.now_ms()


def kill(store: DefaultMessageStore) -> None:
    dispatcher_of(store).abandon()
    opened_of(store).give_back()
    store._closed = True


def bodies(vfs: MemoryVfs) -> list[bytes]:
    """What the windows show."""
    found: list[bytes] = []
    for piece in StoreDirectory(ROOT, {"mappedFileSizeCommitLog": 2048}, vfs).scan_log():
        if isinstance(piece, RecordColumns):
            found += piece.bodies().to_pylist()
    return found


def check_shown(found: list[bytes], marks: list[Any]) -> set[str]:
    """Raise AssertionError unless each job is there once or not at all; returns those there."""
    there = set()
    for job in JOBS:
        rows = [body for body in found if body.startswith(job.encode())]
        assert rows in ([], rows_of(job)), f"{job} is there in part, twice or out of order: {rows}"
        there |= {job} if rows else set()
    for mark in marks:
        assert mark in there if isinstance(mark, str) else mark in found, f"lost {mark}"
    return there


def look(state: CrashState, now_ms: int, attempt: str) -> Journal:
    """Look, recover, publish again, check; returns the journal of the recovery."""
    clock = ManualClock(now_ms + 1000)
    vfs = state.vfs(clock)
    recovery = vfs.record()
    seen = check_shown(bodies(vfs), [])
    with open_store(vfs, clock, "r") as reader:
        assert log_of(reader).max_offset >= 0
    store = open_store(vfs, clock)
    try:
        there = check_shown(bodies(vfs), state.marks)
        assert seen <= there, "a window showed a job that recovery took away"
        for job in JOBS:
            result = store.publish(job, stage(vfs, job, attempt))
            assert result.replayed == (job in there)
            assert result.rows == len(rows_of(job))
        store.put_message(Message("orders", b"after"))
        assert check_shown(bodies(vfs), state.marks) == set(JOBS)
        store.close()
    finally:
        if not store._closed:
            kill(store)
    options = {"maxHashSlotNum": 8, "maxIndexNum": 16}
    found = list(check_store(StoreDirectory(ROOT, options, vfs)))
    assert found == [], found
    assert LogRecords(vfs, ROOT).pending() is None
    return recovery


@pytest.mark.sample
def test_a_job_is_in_the_log_once_or_not_at_all_after_every_call() -> None:
    assert explore_publishing("log publish", recorded_run, look, 3) > 100


def unsynced_placing(monkeypatch: pytest.MonkeyPatch) -> None:
    write = publish.write_part
    monkeypatch.setattr(
        publish, "write_part", lambda vfs, *rest, **more: write(LyingVfs(vfs), *rest, **more)
    )


def unsynced_record(monkeypatch: pytest.MonkeyPatch) -> None:
    leave_record_unsynced(monkeypatch, JobRecords)


def unsynced_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    forward = publish.roll_forward
    monkeypatch.setattr(publish, "roll_forward", lambda vfs, *rest: forward(LyingVfs(vfs), *rest))


def windows_that_ask_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LogRecords, "hidden_from", lambda *rest: None)


def forgotten_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(JobRecords, "ids", lambda self: JobIds())


def unfinished_recovery(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roll_forward, "roll_forward", lambda *rest: None)


def units_of_another_order(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = tails.numbers_of
    monkeypatch.setattr(tails, "numbers_of", lambda *given: numbers(*given)[::-1].copy())


@pytest.mark.gate
@pytest.mark.parametrize(
    "plant",
    [
        unsynced_placing,
        unsynced_record,
        unsynced_parts,
        windows_that_ask_nobody,
        forgotten_ids,
        unfinished_recovery,
        units_of_another_order,
    ],
)
def test_a_bug_in_publishing_into_a_log_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        find_planted(recorded_run, look)
