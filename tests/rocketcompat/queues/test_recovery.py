"""Queues are recovered: units that the log gives again, and units behind a cut."""

from __future__ import annotations

import pytest

import rocketcompat
from rocketcompat import Message, MessageStoreConfig
from rocketcompat.messages import BatchItem, MessageBatch
from rocketcompat.store.default_message_store import DefaultMessageStore
from tests.support.rocket.inside import (
    dispatcher_of,
    opened_of,
)
from tests.support.rocket.store.recovered import (
    CONFIG,
    LOSSES,
    PROGRESS,
    ROOT,
    Bench,
    bodies_of,
    log_file,
    reopened,
)
from tests.support.rocket.store.recovered import bench as bench
from tubestore.testing import MemoryVfs


def test_units_behind_a_cut_do_not_come_back(bench: Bench) -> None:
    """A real broker leaves them in the file, and finds them again after a crash."""
    bench.open()
    places = bench.put(12)
    assert bench.store is not None
    dispatcher_of(bench.store).dispatch_pending()
    bench.kill()
    for number in range(3):
        tail = max(places[4] - 1000 * number, 0)
        bench.overwrite(log_file(number), tail, bytes(1000 - tail))
    bench.open()
    bench.put(2, first=40)
    bench.kill()
    assert reopened(bench) == [0, 1, 2, 3, 40, 41]


@pytest.mark.parametrize("clean", [True, False])
def test_a_queue_that_lost_its_first_file_is_built_again_and_stops_no_other(
    bench: Bench, clean: bool
) -> None:
    # With shards batches are not gathered: a queue gets its units in several writes.
    config = CONFIG.changed(layouts=CONFIG.layouts | {"tube"})
    store = bench.open(config)
    bench.put(25)
    store.wait_dispatched(store.max_physical_offset - 1)
    store.close() if clean else bench.kill()
    bench.vfs.remove(f"{ROOT}/consumequeue/T0/0/{0:020d}")
    bench.vfs.remove(PROGRESS)
    store = bench.open(config)
    assert store.problems == []
    bench.put(3, first=25)
    assert store.wait_dispatched(store.max_physical_offset - 1)
    assert bodies_of(store) == list(range(28))
    store.close()
    assert reopened(bench, config) == list(range(28))


@pytest.mark.parametrize("idle", [True, False])
@pytest.mark.parametrize("kind", ["consumequeue/T/0", "batchconsumequeue/B/0"])
@pytest.mark.parametrize(
    ("place", "loss", "clean"),
    [(p, r, c) for p in (0, 1, -1) for r in LOSSES for c in (True, False)
     if "zeroed" not in r or (p, c) == (-1, False)],
)  # fmt: skip
def test_a_queue_that_lost_a_file_is_whole_after_opening(
    place: int, loss: str, clean: bool, kind: str, idle: bool, memory_vfs: MemoryVfs
) -> None:
    config = MessageStoreConfig(
        mapped_file_size_commit_log=4096, mapped_file_size_consume_queue=100,
        mapper_file_size_batch_consume_queue=230, max_hash_slot_num=7, max_index_num=40,
        batch_topics=frozenset({"B"}), layouts=frozenset({"consume_queue"}), compat="5.3.3",
    )  # fmt: skip

    def opened() -> DefaultMessageStore:
        return rocketcompat.open(ROOT, "w", config, vfs=memory_vfs, background=False)

    def put(store: DefaultMessageStore, numbers: range) -> None:
        for n in numbers:
            store.put_message(Message("T", b"%d" % n))
            store.put_inner_batch(MessageBatch("B", [BatchItem(b"%d" % n)] * 2))
        dispatcher_of(store).dispatch_pending()

    store = opened()
    put(store, range(18))
    if clean:
        store.close()
    else:
        opened_of(store).flusher.persist()
        if not idle:
            put(store, range(18, 20))
        store._closed = True
        memory_vfs.release_locks()
    names = sorted(p for p in memory_vfs.tree() if p.startswith(f"{ROOT}/{kind}/"))
    assert len(names) > 2
    lose = LOSSES[loss]
    if lose is None:
        memory_vfs.remove(names[place])
    else:
        lose(memory_vfs.open(names[place]))
    total = 18 if clean or idle else 20
    with opened() as again:
        assert any(f"{ROOT}/{kind.split('/')[0]}" in str(p) for p in again.problems)
        for key, count in ((("T", 0), total), (("B", 0), 2 * total)):
            offset, rows = 0, 0
            while offset < count:
                page = again.read_queue(*key, offset)
                assert (page.problems, page.next_offset > offset) == ([], True)
                offset, rows = page.next_offset, rows + page.batch.num_rows
            assert rows == total
        assert again.put_message(Message("T", b"x")).queue_offset == total
        put_back = again.put_inner_batch(MessageBatch("B", [BatchItem(b"x")]))
        assert put_back.queue_offset == 2 * total
    with opened() as again:
        assert again.problems == []


def test_a_recovery_leaves_no_empty_last_file_of_a_queue(bench: Bench) -> None:
    """A real broker makes a unit of it."""
    store = bench.open()
    bench.put(10)
    store.flush()
    bench.kill()
    path = f"{ROOT}/consumequeue/T0/0/{100:020d}"
    bench.vfs.open(path, create=True).truncate(100)
    with bench.open() as store:
        assert store.max_offset_in_queue("T0", 0) == 5
    assert not bench.vfs.exists(path)
