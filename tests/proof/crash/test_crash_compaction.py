"""Compaction loses and doubles nothing and leaves no damage, whatever call was the last.

Calls of two compactions, between appends and beside retention, are the last ones of a kill and of
power cuts; then recoveries, which finish or undo them, are interrupted in turn. `CRASH_SEED`
repeats a run; `CRASH_STATES` above 50,000 looks at every call, and at more power cuts of each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import tubestore
from tests.proof.explorer.book import Book
from tests.proof.explorer.publishing import explore_publishing, find_planted
from tests.proof.explorer.shards import read_shards
from tests.tubestore.shard.small_files import ROOT, fill, open_store
from tubestore.clock import ManualClock
from tubestore.core import trash
from tubestore.offline.check import check
from tubestore.segments import listing, segment_list
from tubestore.segments.file_store import MsgFileStore
from tubestore.segments.segment_list import FileSegmentList
from tubestore.shard import compaction
from tubestore.store.manager import engine_of
from tubestore.testing import CrashState, Journal, LyingVfs, MemoryVfs

pytestmark = pytest.mark.crash

COUNT = 12
#: Bodies that were there before; those of retention may be gone.
BEFORE = [b"%0100d" % number for number in range(COUNT)]
ROOM: dict[str, Any] = {"segment_size_bytes": 8 * 152, "index_segment_size_bytes": 6 * 28}


def recorded_run() -> tuple[Journal, int]:
    """An append, a compaction, an append and retention, a compaction, an append; all marked."""
    clock = ManualClock()
    vfs = MemoryVfs(clock)
    fill(vfs, clock, COUNT)
    store = open_store(vfs, clock, **ROOM)
    journal = vfs.record()
    for turn in range(3):
        body = b"appended %d" % turn
        store["t"].append(body, partition=0, durability="fsync")
        vfs.mark(body)
        if turn == 1:
            vfs.mark("retained")
            store["t"].retain(max_bytes=1800)
        if turn < 2:
            assert store.compact(files_min=2) or turn
    store.empty_trash(grace=0)
    engine_of(store).abandon("killed")
    return journal, clock.now_ms()


def shown(store: tubestore.MessageStoreManager, *, sound: bool = True) -> list[bytes]:
    table = store["t"].scan(columns=["body", "state"], verify=True).read_all()
    assert not sound or set(table["state"].to_pylist()) <= {"ok"}
    return [body or b"" for body in table["body"].to_pylist()]


def check_shown(bodies: list[bytes], marks: list[Any], *, may_have_gone: bool) -> None:
    """Raise AssertionError unless everything is there once and in its order, but what went."""
    assert len(bodies) == len(set(bodies)), f"twice: {bodies}"
    old = [body for body in bodies if body in BEFORE]
    assert old == BEFORE[COUNT - len(old) :], f"out of order, or lost: {old}"
    assert may_have_gone or len(old) == COUNT, f"lost before retention: {bodies}"
    for mark in marks:
        assert mark == "retained" or mark in bodies, f"lost {mark}"


def look(state: CrashState, now_ms: int, attempt: str) -> Journal:
    """Read, check, recover, compact again, check; returns the journal of the recovery."""
    clock = ManualClock(now_ms + 1000)
    vfs = state.vfs(clock)
    may_have_gone = "retained" in state.marks or attempt == "2"  # recoveries have no marks
    recovery = vfs.record()
    with tubestore.open(ROOT, "r", vfs=vfs, clock=clock, background=False) as reader:
        # Of the last appends it shows what the power cut has left.
        check_shown(shown(reader, sound=False), [], may_have_gone=may_have_gone)
    store = open_store(vfs, clock, **ROOM)
    try:
        check_shown(shown(store), state.marks, may_have_gone=may_have_gone)
        assert not store.problems
        store.compact(files_min=2)
        check_shown(shown(store), state.marks, may_have_gone=may_have_gone)
        store["t"].append(b"after", partition=0)
        clock.advance(1000)
        store.empty_trash(grace=0)
        assert shown(store)[-1] == b"after"
        store.close()
    finally:
        engine_of(store).abandon("looked at")
    assert list(check(ROOT, vfs=vfs)) == []
    read_shards(vfs, ROOT, Book(), damage_allowed=False)
    assert not [path for path in vfs.tree() if "/trash/" in path]
    return recovery


@pytest.mark.sample
def test_nothing_is_lost_or_twice_after_every_call() -> None:
    assert explore_publishing("compact", recorded_run, look, 3) > 100


def unsynced_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = compaction.begin_copy

    def lying(files: MsgFileStore, *rest: Any) -> Any:
        honest, files.vfs = files.vfs, LyingVfs(files.vfs)
        try:
            return begin(files, *rest)
        finally:
            files.vfs = honest

    monkeypatch.setattr("tubestore.shard.message_store.begin_copy", lying)


def files_that_go_before_the_merged_one_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    merge = MsgFileStore.merge

    def early(self: MsgFileStore, stream: Any, run: Any, *rest: Any, **how: Any) -> None:
        for segment in run[1:]:
            path = trash.move(self.vfs, segment.path, trash.trash_of(self.directory), 1)
            assert path is not None
            segment.moved_to(path)
        merge(self, stream, run, *rest, **how)

    monkeypatch.setattr(MsgFileStore, "merge", early)


def listings_that_see_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (listing, segment_list):
        monkeypatch.setattr(module, "without_merged", lambda vfs, listed: (listed, []))


def openings_that_leave_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MsgFileStore, "put_away_merged", lambda *rest: None)


def digests_that_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FileSegmentList, "discard_digests", lambda *rest: None)


@pytest.mark.gate
@pytest.mark.parametrize(
    "plant",
    [
        unsynced_copies,
        files_that_go_before_the_merged_one_comes,
        listings_that_see_what_is_left,
        openings_that_leave_it,
        digests_that_stay,
    ],
)
def test_a_bug_in_compaction_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        find_planted(recorded_run, look)
