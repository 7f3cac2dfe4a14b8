"""The proof is itself proved: each bug that is planted here must be found, and soon.

The seed is fixed, so a bug is found after the same number of states each time; `LOOKED_AT_MOST`
leaves room for changes of the stores.
"""

from __future__ import annotations

from random import Random
from typing import Any
from unittest import mock

import numpy as np
import pytest

from rocketcompat.files import mapped_file
from rocketcompat.files.lock import StoreLock, is_unwritten
from rocketcompat.files.progress import Mark, Progress
from rocketcompat.store import flush
from tests.proof.explorer import engine, shards, stack
from tests.proof.explorer.explore import Broken, Explorer, Subject
from tubestore.core import kernels
from tubestore.core.vfs import Vfs
from tubestore.disks.file_syncs import FileSyncs
from tubestore.journal import redo
from tubestore.journal.pending_batches import PendingBatches
from tubestore.reading.view import ShardView
from tubestore.record import records
from tubestore.record.layouts import DATA_HEADER
from tubestore.segments import reconcile, recovery, segment
from tubestore.segments.file_store import MsgFileStore
from tubestore.testing import LyingVfs, MemoryVfs

LOOKED_AT_MOST = 6000
ENGINE = Subject("engine", engine.EngineRun, engine.check_state)
STACK = Subject("stack", stack.StackRun, stack.check_state)

pytestmark = [pytest.mark.gate, pytest.mark.crash]


def states_until_found(subject: Subject, message: str, seed: int = 1) -> int:
    """Explore until an invariant breaks; it must be the one that the bug breaks."""
    explorer = Explorer(subject, seed, LOOKED_AT_MOST)
    with pytest.raises(Broken, match=message):
        explorer.run()
    print(f"found after {explorer.checked} states")
    return explorer.checked


class LyingEngineRun(engine.EngineRun):
    """Runs on a disk that does not sync what it says it did."""

    def disk_of(self, vfs: MemoryVfs) -> Vfs:
        return LyingVfs(vfs, ".tube")


class LyingJournalRun(engine.EngineRun):
    """Runs on a disk that does not sync the root's journal."""

    def disk_of(self, vfs: MemoryVfs) -> Vfs:
        return LyingVfs(vfs, ".tubestore/journal")


class LyingStackRun(stack.StackRun):
    """Runs on a disk that does not sync the CommitLog."""

    def disk_of(self, vfs: MemoryVfs) -> Vfs:
        return LyingVfs(vfs, "commitlog")


class LyingLockRun(stack.StackRun):
    """Runs on a disk that does not sync the lock's content."""

    def disk_of(self, vfs: MemoryVfs) -> Vfs:
        return LyingVfs(vfs, f"{stack.ROOT}/lock")


class RewritingLock(StoreLock):
    """Writes a lock that has lost its content once more, which gives the file another time."""

    def __init__(self, vfs: Vfs, root: str) -> None:
        if is_unwritten(vfs, root):
            vfs.open(f"{root}/lock").pwrite(b"lock", 0)
        super().__init__(vfs, root)


def test_a_skipped_fsync_of_a_shard_is_found() -> None:
    states_until_found(Subject("engine", LyingEngineRun, engine.check_state), "lost|NotAStore")


def test_a_skipped_fsync_of_the_journal_is_found() -> None:
    states_until_found(Subject("engine", LyingJournalRun, engine.check_state), "lost")


def test_a_journal_that_is_emptied_into_unsynced_files_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine, "RINGS", 0.0)
    monkeypatch.setattr(FileSyncs, "_sync_file_system", lambda self: 0)
    states_until_found(ENGINE, "lost")


def test_files_below_the_journal_that_are_not_synced_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine, "RINGS", 0.0)
    monkeypatch.setattr(PendingBatches, "unsynced", lambda self, numbers: numbers < 0)
    states_until_found(ENGINE, "lost")


def test_a_journal_that_is_not_read_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tubestore.store.opening.read_journal", lambda vfs, root: None)
    states_until_found(ENGINE, "lost|running on")  # a reader, which reads it, may say so first


def test_a_journal_that_is_not_compared_with_torn_files_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    honest = redo._redo_data

    def careless(segment: Any, part: Any) -> Any:
        return honest(segment, part) if part.data_start >= segment.end else None

    monkeypatch.setattr(redo, "_redo_data", careless)
    states_until_found(ENGINE, "lost|in the journal and not in the shards")  # `check` may be first


def test_a_skipped_fsync_of_the_log_is_found() -> None:
    states_until_found(Subject("stack", LyingStackRun, stack.check_state), "lost")


@pytest.mark.slow
def test_a_lock_whose_lost_content_voids_the_marks_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rocketcompat.store.opening.StoreLock", RewritingLock)
    states_until_found(Subject("stack", LyingLockRun, stack.check_state), "properties were lost")


def test_a_skipped_sync_of_a_directory_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "tubestore.segments.file_store.MsgFileStore._sync_directories", lambda self: None
    )
    states_until_found(ENGINE, "lost|cannot go on")


def _stored_checksums(data: Any, starts: Any, ends: Any, mask: int = 0) -> Any:
    places = starts - DATA_HEADER.size + DATA_HEADER.position("checksum")
    return kernels.gather(kernels.bytes_of(data), places, np.dtype(">i4"))


def test_an_ignored_checksum_of_a_shard_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    inspect, verify = records.inspect, records.verify_entries

    def careless_inspect(*args: Any, **named: Any) -> Any:
        header, reason = inspect(*args, **named)
        return header, None if reason and reason.startswith("checksum") else reason

    def careless_verify(*args: Any, **named: Any) -> Any:
        with mock.patch.object(kernels, "crc_each", _stored_checksums):
            return verify(*args, **named)

    monkeypatch.setattr(recovery, "inspect", careless_inspect)
    monkeypatch.setattr(reconcile, "inspect", careless_inspect)
    monkeypatch.setattr(reconcile, "verify_entries", careless_verify)
    states_until_found(ENGINE, "damage|no record|shows something else")


def large_body(number: int, random: Random) -> bytes:
    """Return a body of three sectors: of a write over one of them only the checksum knows."""
    return b"%06d:" % number + bytes(random.choices(b"abcdefgh", k=1500))


def test_an_ignored_checksum_of_the_log_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    config = stack.CONFIG.changed(check_crc_on_recover=False, mapped_file_size_commit_log=3400)
    monkeypatch.setattr(stack, "body_of", large_body)
    monkeypatch.setattr(stack, "CONFIG", config)
    monkeypatch.setattr(stack, "FILE_SIZE", config.mapped_file_size_commit_log)
    monkeypatch.setitem(stack.OPTIONS, "mappedFileSizeCommitLog", stack.FILE_SIZE)
    states_until_found(STACK, "end of the log|ends elsewhere|damage|stopped")


def test_progress_that_is_written_too_early_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = flush.FlushService.progress

    def hasty(self: Any, **given: Any) -> Progress:
        progress = honest(self, **given)
        marks = progress.followers.items()
        progress.followers = {name: Mark(mark.written, mark.written) for name, mark in marks}
        return progress

    monkeypatch.setattr(flush.FlushService, "progress", hasty)
    states_until_found(STACK, "queue|index|shards")


def test_a_cut_that_leaves_old_units_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = mapped_file.MappedFile.zero_behind

    def careless(self: Any, position: int) -> int:
        return 0 if "consumequeue" in self.path else honest(self, position)

    monkeypatch.setattr(mapped_file.MappedFile, "zero_behind", careless)
    states_until_found(STACK, "queue")


def test_an_index_that_goes_before_its_data_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = MsgFileStore.remove_below

    def careless(self: Any, data_offset: int, *, now_ms: int, sync: Any, **rest: Any) -> int:
        for each in list(self.index):
            if each.sealed and self._is_below(each, data_offset):
                self._move(self.index, each, now_ms)
                sync(self.index.directory)
        return honest(self, data_offset, now_ms=now_ms, sync=sync, **rest)

    monkeypatch.setattr(MsgFileStore, "remove_below", careless)
    words = "no entry|no record|moved|twice|invented|something else|check finds|damage"
    states_until_found(ENGINE, words)


def test_a_cut_that_leaves_old_entries_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(self: Any, end: int) -> None:
        self.end = end
        self.synced_end = min(self.synced_end, end)
        self._view = memoryview(b"")

    monkeypatch.setattr(segment.FileSegment, "cut", careless)
    states_until_found(
        ENGINE, "entry|entries|twice|no record|order|lost|something else|ends with damage"
    )


def test_a_check_that_sees_no_damage_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "check", lambda root, **named: iter(()))
    states_until_found(ENGINE, "check finds", seed=2)


def test_damage_that_is_shown_as_good_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "body_of", large_body)
    monkeypatch.setitem(engine.SETTINGS, "segment_size_bytes", 8000)
    monkeypatch.setattr(ShardView, "_damages_of", lambda self, entries: [])
    states_until_found(ENGINE, "shown as good")
