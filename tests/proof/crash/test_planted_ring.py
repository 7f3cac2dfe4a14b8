"""Bugs that are planted into the ring journal: the crash proof of the engine finds each of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.proof.crash.test_planted_bugs import states_until_found
from tests.proof.explorer import engine
from tests.proof.explorer.explore import (
    Explorer,
    Subject,
    seed_from_environment,
    share_of_states,
)
from tubestore.core import kernels
from tubestore.core.vfs import Vfs
from tubestore.journal import ring_frames
from tubestore.journal.early_writes import EarlyWrites
from tubestore.journal.ring import Ring
from tubestore.options import Durability
from tubestore.shard.write_buffer import WriteBuffer
from tubestore.testing import LyingVfs, MemoryVfs

pytestmark = [pytest.mark.gate, pytest.mark.crash]


class RingRun(engine.EngineRun):
    """Appends that meet the ring more often."""

    def things(self) -> list[Any]:
        return [
            (self.append_one, 30),
            (self.append_batch, 1),
            (self.flush, 1),
            (self.sync, 1),
            (self.maintain, 1),
            (self.reopen, 1),
            (self.die, 1),
        ]


class UnsyncedRun(RingRun):
    """Never syncs the ring: then segments are emptied into files that are not synced."""

    def things(self) -> list[Any]:
        return [(self.append_one, 30), (self.die, 1)]

    def _level(self) -> Durability:
        return "page_cache"


class LyingRingRun(RingRun):
    """Runs on a disk that does not sync the files that become segments."""

    def disk_of(self, vfs: MemoryVfs) -> Vfs:
        return LyingVfs(vfs, ".tubestore/ring.tmp")


class _AnyChecksum:
    """Checksums that equal all others: those of many records, or that of one."""

    __hash__ = None  # type: ignore[assignment]

    def __and__(self, mask: int) -> _AnyChecksum:
        return self

    def __eq__(self, others: Any) -> Any:
        return np.ones(np.shape(others), bool)

    def __ne__(self, others: Any) -> Any:
        return np.zeros(np.shape(others), bool)


RINGS = Subject("engine", RingRun, engine.check_state, steps=60)
UNSYNCED = Subject("engine", UnsyncedRun, engine.check_state, steps=60)


@pytest.fixture(autouse=True)
def _always_with_a_ring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "RINGS", 1.0)
    # Four segments of some three frames, and buffers that only the ring has written.
    monkeypatch.setitem(engine.SETTINGS, "ring_size_bytes", 2560)
    monkeypatch.setitem(engine.SETTINGS, "mem_store_messages", 100)


def test_without_a_bug_nothing_is_found() -> None:
    explorer = Explorer(RINGS, seed_from_environment(), share_of_states(0.4))
    print(f"CRASH_SEED={explorer.seed}")
    explorer.run()


def test_a_ring_that_is_not_read_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tubestore.store.opening.read_ring", lambda vfs, root: None)
    states_until_found(RINGS, "lost|running on|File exists|older copy")


def test_a_skipped_sync_of_the_ring_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ring, "_sync_segments", lambda self: self.end)
    states_until_found(RINGS, "lost")


def test_a_segment_that_has_its_name_before_its_size_is_found() -> None:
    run = Subject("engine", LyingRingRun, engine.check_state, steps=60)
    states_until_found(run, "0 of its 512 bytes")


def test_an_ignored_checksum_of_a_message_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    any_of = dict.fromkeys(("crc32", "crc_each"), lambda *of: _AnyChecksum())
    careless = SimpleNamespace(**{**vars(kernels), **any_of})
    monkeypatch.setattr(ring_frames, "kernels", careless)
    states_until_found(RINGS, "lost|damage|reported|no record|invented|Error")


def test_a_segment_that_is_used_again_unwritten_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ring, "_write", lambda self, *segment: None)
    monkeypatch.setattr(EarlyWrites, "step", lambda self, *full: None)
    states_until_found(UNSYNCED, "lost")


def test_a_segment_that_is_used_again_unsynced_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ring, "_sync_files", lambda self, shards: None)
    states_until_found(RINGS, "lost|only in segments")


def test_files_below_the_ring_that_are_not_synced_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "tubestore.shard.durable_files.DurableFiles.sync_data_once", lambda self, end: None
    )
    states_until_found(RINGS, "lost")


def test_a_frame_behind_messages_without_one_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = WriteBuffer.enter_ring

    def careless(self: WriteBuffer, written_end: int) -> bool:
        return honest(self, self.main.data_end)

    monkeypatch.setattr(WriteBuffer, "enter_ring", careless)
    states_until_found(RINGS, "lost")


def test_older_segments_that_are_not_synced_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Ring._sync_segments

    def careless(self: Ring) -> int:
        full, self._full = self._full, type(self._full)()
        try:
            return honest(self)
        finally:
            self._full = full

    monkeypatch.setattr(Ring, "_sync_segments", careless)
    states_until_found(RINGS, "lost")


def test_names_of_segments_that_are_not_synced_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Ring._sync_segments

    def careless(self: Ring) -> int:
        self._unnamed = False
        return honest(self)

    monkeypatch.setattr(Ring, "_sync_segments", careless)
    states_until_found(RINGS, "lost")


def test_a_segment_that_begins_unsynced_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Ring._begin_segment

    def careless(self: Ring, **how: Any) -> bool:
        promised, self._promised = self._promised, False
        try:
            return honest(self, **how)
        finally:
            self._promised = promised

    def written_only(self: Ring, segment: Any) -> bool:
        self._sync_files(segment.shards)  # the rest is as it should be
        return True

    monkeypatch.setattr(Ring, "_begin_segment", careless)
    monkeypatch.setattr(Ring, "_leave", written_only)
    states_until_found(RINGS, "lost|damage|reported|no record|invented|Error")
