"""Files of the log and the queues appear with their full length, or not at all."""

from __future__ import annotations

import errno

import pytest

import rocketcompat
from rocketcompat import Message, MessageStoreConfig
from rocketcompat.options import LAYOUTS
from tubestore.clock import ManualClock
from tubestore.core.vfs import Vfs
from tubestore.testing import FaultyVfs, MemoryVfs, crash_states

ROOT = "/store"
SIZES = {"commitlog": 500, "consumequeue": 40}
CONFIG = MessageStoreConfig(
    mapped_file_size_commit_log=500,
    mapped_file_size_consume_queue=40,
    max_hash_slot_num=3,
    layouts=LAYOUTS,
)


class WatchedVfs(FaultyVfs):
    """Looks at the store before every call: that is what a kill leaves at this moment."""

    def __init__(self, inner: Vfs) -> None:
        super().__init__(inner)
        self.refused: set[str] = set()

    def ask(self, call: str, path: str) -> None:
        for part, size in SIZES.items():
            self.look(f"{ROOT}/{part}", size)
        super().ask(call, path)

    def look(self, directory: str, size: int) -> None:
        """Note what a real broker takes for a file of the store, of another length."""
        for name, is_directory, found in self.inner.entries(directory):
            if is_directory:
                self.look(f"{directory}/{name}", size)
            elif name.isdecimal() and found != size:
                self.refused.add(f"{directory}/{name}: {found} bytes")


def put_some(vfs: Vfs, clock: ManualClock, count: int = 12) -> None:
    with rocketcompat.open(
        ROOT, "w", CONFIG, layouts={"consume_queue"}, vfs=vfs, clock=clock, background=False
    ) as store:
        for number in range(count):
            store.put_message(Message("orders", b"%d" % number, queue_id=number % 2))


def test_a_kill_at_any_moment_leaves_no_file_beside_which_a_broker_does_not_start(
    memory_vfs: MemoryVfs, clock: ManualClock
) -> None:
    vfs = WatchedVfs(memory_vfs)
    put_some(vfs, clock)
    assert vfs.calls["create"] > 8
    assert vfs.refused == set()


@pytest.mark.parametrize("call", ["create", "truncate", "rename"])
def test_a_file_that_could_not_be_made_leaves_nothing_and_is_made_later(
    memory_vfs: MemoryVfs, clock: ManualClock, call: str
) -> None:
    vfs = FaultyVfs(memory_vfs)
    put_some(vfs, clock)
    with rocketcompat.open(
        ROOT, "w", CONFIG, layouts={"consume_queue"}, vfs=vfs, clock=clock, background=False
    ) as store:
        before = memory_vfs.entries(f"{ROOT}/commitlog")
        vfs.fail(call, error=errno.ENOSPC, path="commitlog")
        large = Message("orders", bytes(390))  # fits into no file that has something
        with pytest.raises(OSError, match="No space"):
            store.put_message(large)
        assert memory_vfs.entries(f"{ROOT}/commitlog") == before
        assert "commitlog.new" not in [name for name, _, _ in memory_vfs.entries(ROOT)]
        end = store.max_physical_offset
        assert store.put_message(large).physical_offset >= end


def test_what_a_kill_left_of_a_file_in_the_making_is_no_hindrance(
    memory_vfs: MemoryVfs, clock: ManualClock
) -> None:
    put_some(memory_vfs, clock)
    for place in ("commitlog", "consumequeue/orders/0", "consumequeue/orders/1"):
        memory_vfs.open(f"{ROOT}/{place}.new", create=True).truncate(7)
    put_some(memory_vfs, clock)
    with rocketcompat.open(ROOT, "r", CONFIG, vfs=memory_vfs, clock=clock) as store:
        assert [store.max_offset_in_queue("orders", queue) for queue in (0, 1)] == [12, 12]


@pytest.mark.parametrize("kind", ["commitlog", "consumequeue/T/0", "index"])
def test_a_file_of_length_0_that_was_removed_does_not_come_back(
    memory_vfs: MemoryVfs, clock: ManualClock, kind: str
) -> None:
    """A clean close may follow, and the next opening looks at nothing then."""
    memory_vfs.make_directories(f"{ROOT}/{kind}")
    path = f"{ROOT}/{kind}/{0:020d}"
    memory_vfs.open(path, create=True).close()
    journal = memory_vfs.record()
    rocketcompat.open(ROOT, "w", CONFIG, vfs=memory_vfs, clock=clock, background=False).close()
    end = len(journal)
    for state in crash_states(journal, seed=1, kinds=("power",), steps=lambda step: step == end):
        assert not state.vfs().exists(path), state
