"""A job that is published is in the store entirely or not at all, whatever call was the last.

Calls of two published jobs, between appends, are the last ones of a kill and of power cuts; then
recoveries are interrupted in turn. `CRASH_SEED` repeats a run; `CRASH_STATES` above 50,000 looks
at every call, and at more power cuts of each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest

import tubestore
from tests.proof.explorer.book import Book
from tests.proof.explorer.engine import ROOT, SETTINGS, open_store
from tests.proof.explorer.publishing import explore_publishing, find_planted, leave_record_unsynced
from tests.proof.explorer.shards import read_shards
from tests.support.tube import columns_of, make_row
from tubestore.clock import ManualClock
from tubestore.offline.check import check
from tubestore.options import StoreOptions
from tubestore.staging import placing, roll_forward
from tubestore.staging.commit_records import CommitRecords, Horizon
from tubestore.staging.job_files import StagedFile
from tubestore.staging.job_ids import JobIds
from tubestore.staging.writer import StagedWriter
from tubestore.store import publish
from tubestore.store.manager import engine_of
from tubestore.testing import CrashState, Journal, LyingVfs, MemoryVfs

pytestmark = pytest.mark.crash

JOBS = ("load:1", "load:2")
#: Topics, and the partitions that a job has rows for.
PARTITIONS = {"a": (0, 10_001), "b": (1,)}
ROWS = 6
APPENDED = {
    topic: [b"appended %d %s" % (n, topic.encode()) for n in range(3)] for topic in PARTITIONS
}


def rows_of(job: str, topic: str) -> list[bytes]:
    return [
        f"{job} {topic} {partition} {n}".encode()
        for partition in PARTITIONS[topic]
        for n in range(ROWS)
    ]


def stage(vfs: MemoryVfs, clock: ManualClock, job: str, attempt: str) -> list[StagedFile]:
    """Two tasks, each of some small files for every shard."""
    staged = []
    options = StoreOptions(
        segment_size_bytes=SETTINGS["segment_size_bytes"] // 2,
        index_segment_size_bytes=SETTINGS["index_segment_size_bytes"],
    )
    for topic, partitions in PARTITIONS.items():
        with StagedWriter(
            ROOT, job, topic + attempt, vfs=vfs, clock=clock, options=options, token="t"
        ) as writer:
            for number in range(0, ROWS, 2):
                for partition in partitions:
                    bodies = [
                        f"{job} {topic} {partition} {n}".encode() for n in (number, number + 1)
                    ]
                    writer.write(
                        {"topic": [topic] * 2, "partition": [partition] * 2, "body": bodies}
                    )
            staged += writer.finish()
    return staged


#: In files of this size the jobs go behind the last byte of the live files.
ROOMY = {"segment_size_bytes": 1 << 16, "index_segment_size_bytes": 1 << 14}


def recorded_run() -> tuple[Journal, int]:
    """Appends, a job, appends, a job, appends, and the end of the process; all marked."""
    clock = ManualClock()
    vfs = MemoryVfs(clock)
    store = open_store(vfs, clock)
    store.create_topic("a", partitions=2, stores=2)
    store.create_topic("b", partitions=2)
    journal = vfs.record()
    for turn, job in enumerate((*JOBS, "")):
        for topic, partitions in PARTITIONS.items():
            store[topic].append(APPENDED[topic][turn], partition=partitions[0], durability="fsync")
            vfs.mark((topic, APPENDED[topic][turn]))
        if job:
            store.publish(job, stage(vfs, clock, job, "0"))
            vfs.mark(job)
    engine_of(store).abandon("killed")
    return journal, clock.now_ms()


def shown(store: tubestore.MessageStoreManager, *, sound: bool) -> dict[str, list[bytes]]:
    """What the store shows, by topic; an append in flight need not be `sound` before recovery."""
    found = {}
    for topic in store.topics():
        table = store[topic].scan(columns=["body", "state"], verify=True).read_all()
        assert not sound or set(table["state"].to_pylist()) <= {"ok"}
        found[topic] = [body or b"" for body in table["body"].to_pylist()]
    return found


def check_shown(found: dict[str, list[bytes]], marks: list[Any]) -> set[str]:
    """Raise AssertionError unless each job is there once or not at all; returns those there."""
    there = set()
    for job in JOBS:
        counts = {found[topic].count(body) for topic in PARTITIONS for body in rows_of(job, topic)}
        assert counts in ({0}, {1}), f"{job} is there in part or twice: {counts}"
        there |= {job} if counts == {1} else set()
        for topic, partitions in PARTITIONS.items():
            rows = [body for body in found[topic] if body.startswith(job.encode())]
            expected = [
                b for p in partitions for b in rows_of(job, topic) if f" {p} ".encode() in b
            ]
            assert rows in ([], expected), "out of order"
    for mark in marks:
        assert mark in there if isinstance(mark, str) else mark[1] in found[mark[0]], f"lost {mark}"
    return there


def look(state: CrashState, now_ms: int, attempt: str) -> Journal:
    """Read, recover, publish again, check; returns the journal of the recovery."""
    clock = ManualClock(now_ms + 1000)
    vfs = state.vfs(clock)
    recovery = vfs.record()
    with tubestore.open(ROOT, "r", vfs=vfs, clock=clock, background=False) as reader:
        seen = check_shown(shown(reader, sound=False), [])
    store = open_store(vfs, clock)
    try:
        there = check_shown(shown(store, sound=True), state.marks)
        assert seen <= there, "a reader saw a job that recovery took away"
        for job in JOBS:
            result = store.publish(job, stage(vfs, clock, job, attempt))
            assert result.replayed == (job in there)
            assert result.rows == ROWS * 3
        store["a"].append(b"after", partition=0)
        assert check_shown(shown(store, sound=True), state.marks) == set(JOBS)
        store.close()
    finally:
        engine_of(store).abandon("looked at")
    assert list(check(ROOT, vfs=vfs)) == []
    read_shards(vfs, ROOT, Book(), damage_allowed=False)
    assert CommitRecords(vfs, ROOT).pending() is None
    return recovery


@pytest.mark.sample
def test_a_job_is_there_once_or_not_at_all_after_every_call() -> None:
    assert explore_publishing("publish", recorded_run, look, 3) > 200


@pytest.fixture
def roomy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ROOMY.items():
        monkeypatch.setitem(SETTINGS, name, value)


@pytest.mark.sample
@pytest.mark.usefixtures("roomy")
def test_a_job_behind_live_files_is_there_once_or_not_at_all_after_every_call() -> None:
    journal, now_ms = recorded_run()
    moved = [c.target for c in journal.calls if c.kind == "rename" and "/staging/" in c.path]
    assert all("/a-1/" in path for path in moved), "the others have a live file"
    assert explore_publishing("behind", lambda: (journal, now_ms), look, 3) > 200


def unsynced_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    put = roll_forward.put_behind
    monkeypatch.setattr(roll_forward, "put_behind", lambda vfs, *rest: put(LyingVfs(vfs), *rest))


def copies_that_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    def renaming(vfs: Any, final: str, pieces: Any) -> None:
        """Copy nothing that the file is long enough for."""
        file = vfs.open(final)
        for staged, begins, size in pieces:
            if file.size() < begins + size:
                file.pwrite(vfs.read_file(staged), begins)
                file.sync()
            vfs.remove(staged)

    monkeypatch.setattr(roll_forward, "put_behind", renaming)


@pytest.mark.gate
@pytest.mark.usefixtures("roomy")
@pytest.mark.parametrize("plant", [unsynced_copies, copies_that_are_not_compared])
def test_a_bug_in_copying_behind_live_files_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        find_planted(recorded_run, look)


#: Two pairs for a shard, and where they are expected to stand: the one behind the other.
PAIRS = ([b"first %d " % n * 70 for n in range(5)], [b"second %d " % n * 60 for n in range(3)])


def staged_for_places(vfs: MemoryVfs) -> list[StagedFile]:
    """Stage both, with their ids."""
    place, staged = (0, 0), []
    for number, payloads in enumerate(PAIRS):
        with StagedWriter(
            ROOT, JOBS[0], f"{number}", vfs=vfs, places={("a", 0): place}, token="t"
        ) as writer:
            writer.write_columns("a", columns_of([make_row(p) for p in payloads]))
            (file,) = writer.finish()
        place = place[0] + file.index_size, place[1] + file.data_size
        staged.append(file)
    return staged


def rewriting_run() -> tuple[Journal, int]:
    """A job whose pairs are published in the other order than was expected; nothing marked."""
    clock = ManualClock()
    vfs = MemoryVfs(clock)
    store = open_store(vfs, clock)
    store.create_topic("a", partitions=1)
    staged = staged_for_places(vfs)
    journal = vfs.record()
    store.publish(JOBS[0], staged[::-1])
    engine_of(store).abandon("killed")
    return journal, clock.now_ms()


def look_at_rewritten(state: CrashState, now_ms: int, attempt: str) -> Journal:
    """Publish again, in the order that was expected: what is there then, in one of both orders."""
    clock = ManualClock(now_ms + 1000)
    vfs = state.vfs(clock)
    recovery = vfs.record()
    store = open_store(vfs, clock)
    try:
        staged = staged_for_places(MemoryVfs(clock))
        result = store.publish(JOBS[0], staged)
        order = [
            staged.index(next(f for f in staged if f.name == one.name)) for one in result.files
        ]
        assert sorted(order) == [0, 1]
        assert shown(store, sound=True) == {"a": [p for pair in order for p in PAIRS[pair]]}
        store.close()
    finally:
        engine_of(store).abandon("looked at")
    assert list(check(ROOT, vfs=vfs)) == []
    read_shards(vfs, ROOT, Book(), damage_allowed=False)
    return recovery


@pytest.mark.sample
def test_pairs_that_were_half_rewritten_for_another_place_are_rewritten_for_their_own_place() -> (
    None
):
    assert explore_publishing("rewrite", rewriting_run, look_at_rewritten, 40) > 50


@pytest.mark.gate
def test_a_bug_in_rewriting_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placing, "_mark", lambda *rest: None)
    with pytest.raises(AssertionError):
        find_planted(rewriting_run, look_at_rewritten, 40)


def unsynced_placing(monkeypatch: pytest.MonkeyPatch) -> None:
    place = publish.place_file
    monkeypatch.setattr(publish, "place_file", lambda vfs, *rest: place(LyingVfs(vfs), *rest))


def unsynced_record(monkeypatch: pytest.MonkeyPatch) -> None:
    leave_record_unsynced(monkeypatch, CommitRecords)


def unsynced_renames(monkeypatch: pytest.MonkeyPatch) -> None:
    forward = publish.roll_forward

    def lying(vfs: Any, *rest: Any) -> None:
        forward(mock.Mock(wraps=vfs, sync_directory=lambda path: None), *rest)

    monkeypatch.setattr(publish, "roll_forward", lying)


def readers_that_ask_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Horizon, "limits", lambda *rest: None)


def forgotten_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CommitRecords, "ids", lambda self: JobIds())


def no_recovery(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roll_forward, "recover", lambda *rest: None)


@pytest.mark.gate
@pytest.mark.parametrize(
    "plant",
    [
        unsynced_placing,
        unsynced_record,
        unsynced_renames,
        readers_that_ask_nobody,
        forgotten_ids,
        no_recovery,
    ],
)
def test_a_bug_in_the_protocol_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        find_planted(recorded_run, look)
