"""The store as its users see it: put, read, close, and who may open it when."""

from __future__ import annotations

import gc
import os
import pickle
import shutil
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import rocketcompat
import tubestore
from rocketcompat import GetMessageStatus, Message, PutStatus
from rocketcompat.messages import MessageBatch
from rocketcompat.options import KEPT, LAYOUTS
from rocketcompat.record.batches import BatchItem
from tests.support.rocket.inside import dispatcher_of, log_of, opened_of, shards_of
from tests.support.rocket.store.opened import OPTIONS, opened
from tubestore.clock import ManualClock
from tubestore.errors import (
    InvalidMessage,
    StoreClosed,
    StoreFailed,
)
from tubestore.testing import FaultyVfs, MemoryVfs
from tubestore.values import Seconds


def test_what_is_put_is_pulled_and_found_by_key(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        result = store.put_message(Message("orders", b"one", tags="paid", keys=["o-1"]))
        assert (result.status, result.queue_offset) == (PutStatus.PUT_OK, 0)
        assert store.wait_dispatched(result.physical_offset)
        pulled = store.get_message("orders", 0, 0)
        assert pulled.status is GetMessageStatus.FOUND
        assert [message.body for message in pulled] == [b"one"]
        assert [m.msg_id for m in store.query_message("orders", "o-1")] == [result.msg_id]
        assert store.look_message(result.physical_offset).body == b"one"
        assert store.max_offset_in_queue("orders", 0) == 1
        assert store.max_offset_in_queue("nobody", 0) == 0


@pytest.mark.parametrize("removed", ["consumequeue", "consumequeue/T", "consumequeue/T/1"])
def test_queues_that_were_removed_are_built_again(tmp_path: Path, removed: str) -> None:
    with opened(tmp_path) as store:
        for number in range(30):
            store.put_message(Message("T", b"%d" % number, queue_id=number % 2))
    shutil.rmtree(tmp_path / removed)
    with opened(tmp_path) as store:
        for queue_id in (0, 1):
            assert store.max_offset_in_queue("T", queue_id) == 15
        put = store.put_message(Message("T", queue_id=1))
        assert put.queue_offset == 15


def test_a_store_has_the_files_that_a_broker_expects(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        for i in range(60):
            store.put_message(Message("T", b"x" * 100, keys=f"k{i}"))
        assert (tmp_path / "abort").exists()
    files = {str(p.relative_to(tmp_path)): p.stat().st_size
             for p in tmp_path.rglob("*") if p.is_file()}  # fmt: skip
    assert "abort" not in files
    assert (tmp_path / "lock").read_bytes() == b"lock"
    assert files["checkpoint"] == 4096
    assert {n: s for n, s in files.items() if n.startswith("commitlog")} == {
        f"commitlog/{start:020d}": 4096 for start in range(0, 12288, 4096)
    }
    assert {n: s for n, s in files.items() if n.startswith("consumequeue")} == {
        f"consumequeue/T/0/{start:020d}": 200 for start in range(0, 1200, 200)
    }
    index = [size for name, size in files.items() if name.startswith("index/")]
    assert index == [40 + 16 * 4 + 40 * 20] * 2


def test_each_queue_of_each_topic_has_a_directory(tmp_path: Path) -> None:
    """DIR-03, CQ-02."""
    with opened(tmp_path) as store:
        for topic, queue_id in (("A", 0), ("A", 1), ("B", 0), ("B", 1)):
            store.put_message(Message(topic, queue_id=queue_id))
    found = {str(path.parent.relative_to(tmp_path)) for path in tmp_path.glob("consumequeue/*/*/*")}
    assert found == {f"consumequeue/{topic}/{queue_id}" for topic in "AB" for queue_id in (0, 1)}


class TracedVfs(FaultyVfs):
    """Takes down in which directories of a store files are read."""

    def __init__(self, inner: MemoryVfs) -> None:
        super().__init__(inner)
        self.reads: list[str] = []

    def ask(self, call: str, path: str) -> None:
        super().ask(call, path)
        if call in ("pread", "view"):
            self.reads.append(path.split("/")[2])


def test_a_pull_reads_the_unit_and_then_the_record(
    memory_vfs: MemoryVfs, clock: ManualClock
) -> None:
    """CQ-17."""
    vfs = TracedVfs(memory_vfs)
    with rocketcompat.open("/s", "w", OPTIONS, vfs=vfs, clock=clock, background=False) as store:
        for number in range(30):
            store.put_message(Message("T", b"%d" % number))
        dispatcher_of(store).dispatch_pending()
        store.get_message("T", 0, 3, 1)  # finds where the queue begins, once
        vfs.reads.clear()
        assert [m.body for m in store.get_message("T", 0, 17, 1)] == [b"17"]
        assert vfs.reads == ["consumequeue", "commitlog"]


def test_a_query_by_key_reads_the_index_and_the_records_that_have_the_key(
    memory_vfs: MemoryVfs, clock: ManualClock
) -> None:
    """IDX-35: which queues cannot do."""
    vfs, config = TracedVfs(memory_vfs), OPTIONS.changed(max_hash_slot_num=1000, max_index_num=1000)
    with rocketcompat.open("/s", "w", config, vfs=vfs, clock=clock, background=False) as store:
        for number in range(200):
            store.put_message(Message("T", b"%d" % number, keys=f"k{number % 100}"))
        dispatcher_of(store).dispatch_pending()
        vfs.reads.clear()
        assert [m.body for m in store.query_message("T", "k7")] == [b"7", b"107"]
        assert vfs.reads.count("commitlog") <= 2 * 2  # the length of a record, and the record
        assert set(vfs.reads) == {"index", "commitlog"}


def test_the_checkpoint_of_a_closed_store_is_that_of_its_last_message(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        last = store.put_message(Message("T")).store_timestamp
    raw = (tmp_path / "checkpoint").read_bytes()
    assert [int.from_bytes(raw[at : at + 8], "big") for at in (0, 8)] == [last, last]


def test_messages_that_name_no_store_host_have_that_of_the_store(tmp_path: Path) -> None:
    """MSG-20: single ones, batches, columns, and with nulls in the column."""
    ours, other = "10.0.0.7:10912", "[::1]:5"
    batch = MessageBatch("T", [BatchItem(b"x")])
    config = OPTIONS.changed(store_host=ours)
    with rocketcompat.open(tmp_path, "w", config, background=False) as store:
        ids = [
            store.put_message(Message("T")).msg_id,
            store.put_message(Message("T", store_host=other)).msg_id,
            store.put_messages(batch).msg_id,
            store.put_messages(replace(batch, store_host=other)).msg_id,
        ]
        store.put_columns({"topic": ["T"]})
        store.put_columns({"topic": ["T"] * 2, "store_host": [None, other]})
        store.wait_dispatched(store.max_physical_offset - 1)
        page = store.get_message("T", 0, 0)
        assert [message.store_host for message in page] == [
            ours, other, ours, other, ours, ours, other,
        ]  # fmt: skip
        assert [message.msg_id for message in page][:4] == ids


def test_waiting_for_a_structure_that_stopped_is_an_error(clock: ManualClock) -> None:
    vfs = FaultyVfs(MemoryVfs(clock))
    with rocketcompat.open("/s", "w", OPTIONS, vfs=vfs, clock=clock, background=False) as store:
        first = store.put_message(Message("T", keys="k")).physical_offset
        assert store.wait_dispatched(first)
        vfs.fail("pwrite", path="/s/index", forever=True)
        second = store.put_message(Message("T", keys="k")).physical_offset
        for _ in range(2):
            with pytest.raises(StoreFailed, match="index stopped at"):
                store.wait_dispatched(second)
        assert store.wait_dispatched(first)
        vfs.heal()
    with rocketcompat.open("/s", "w", OPTIONS, vfs=vfs, clock=clock, background=False) as store:
        assert store.wait_dispatched(second)
        assert len(store.query_messages("T", ["k"])) == 2


def test_a_flush_syncs_the_log_and_names_the_structure_that_stopped(clock: ManualClock) -> None:
    vfs = FaultyVfs(MemoryVfs(clock))
    with rocketcompat.open("/s", "w", OPTIONS, vfs=vfs, clock=clock, background=False) as store:
        store.put_message(Message("T", keys="k"))
        store.flush()
        vfs.fail("pwrite", path="/s/index", forever=True)
        store.put_message(Message("T", keys="k"))
        for _ in range(2):
            with pytest.raises(StoreFailed, match="index stopped at"):
                store.flush()
            assert log_of(store).synced_offset == store.max_physical_offset
        vfs.heal()
    with rocketcompat.open("/s", "w", OPTIONS, vfs=vfs, clock=clock, background=False) as store:
        store.flush()
        assert len(store.query_messages("T", ["k"])) == 2


def test_waiting_is_over_at_once_when_dispatch_has_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def defect(**_: Any) -> None:
        raise ZeroDivisionError

    with rocketcompat.open(tmp_path, "w", OPTIONS) as store:
        monkeypatch.setattr(dispatcher_of(store), "_drained", defect, raising=True)
        put = store.put_message(Message("T"))
        with pytest.raises(StoreFailed, match="dispatch stopped: ZeroDivisionError"):
            store.wait_dispatched(put.physical_offset, timeout=30)


@pytest.mark.parametrize("timeout", [30, "30s", timedelta(seconds=30)])
def test_a_wait_is_seconds_a_text_or_a_timedelta(tmp_path: Path, timeout: Seconds) -> None:
    with rocketcompat.open(tmp_path, "w", OPTIONS) as store:
        put = store.put_message(Message("T"))
        assert store.wait_dispatched(put.physical_offset, timeout=timeout)
    with rocketcompat.open(tmp_path) as store:
        assert store.wait_dispatched(put.physical_offset, timeout=timeout)


def test_a_forked_child_cannot_use_the_store_and_does_not_close_it(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.put_message(Message("T"))
        child = os.fork()
        if child == 0:
            code = 1
            try:
                store.put_message(Message("T"))
            except StoreClosed:
                store.close()
                code = 0
            os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        assert (tmp_path / "abort").exists()
        assert store.put_message(Message("T")).queue_offset == 1


def test_a_closed_store_reports_it(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.close()
    store.close()
    for call in (
        lambda: store.put_message(Message("T")),
        lambda: store.put_columns({"topic": ["T"]}),
        lambda: store.get_message("T", 0, 0),
        lambda: store.query_message("T", "k"),
        lambda: store.look_message(0),
        lambda: store.wait_dispatched(0),
        lambda: store.flush(),
        lambda: store.refresh(),
        lambda: store.max_offset_in_queue("T", 0),
    ):
        with pytest.raises(StoreClosed):
            call()


def test_an_open_store_cannot_be_pickled(tmp_path: Path) -> None:
    with opened(tmp_path) as store, pytest.raises(TypeError, match="pickle"):
        pickle.dumps(store)


def test_a_store_without_a_close_warns(memory_vfs: MemoryVfs) -> None:
    def forget_one() -> None:
        rocketcompat.open("/s", "w", OPTIONS, vfs=memory_vfs, background=False)
        gc.collect()

    with pytest.warns(ResourceWarning, match="/s"):
        forget_one()


def test_a_structure_that_stops_is_reported_and_caught_up_at_the_next_open(
    clock: ManualClock,
) -> None:
    vfs = FaultyVfs(MemoryVfs(clock))
    store = rocketcompat.open("/s", "w", OPTIONS, vfs=vfs, clock=clock, background=False)
    vfs.fail("pwrite", path="consumequeue", forever=True)
    for i in range(5):
        last = store.put_message(Message("T", keys=f"k{i}"))
    with pytest.raises(StoreFailed, match="consume_queue stopped"):
        store.wait_dispatched(last.physical_offset)
    assert "consume_queue stopped" in str(store.problems[0])
    assert len(store.query_message("T", "k4")) == 1
    vfs.heal()
    store.close()
    assert vfs.exists("/s/abort")
    with rocketcompat.open("/s", "w", OPTIONS, vfs=vfs, clock=clock, background=False) as again:
        assert again.max_offset_in_queue("T", 0) == 5
        assert again.problems == []


def test_flush_brings_everything_to_stable_storage(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.put_message(Message("T", keys="k"))
        store.flush()
        end = store.max_physical_offset
        progress = opened_of(store).flusher.progress()
        assert progress.log.synced == end
        assert {mark.synced for mark in progress.followers.values()} == {end}


def test_shards_have_the_settings_that_their_store_was_given(tmp_path: Path) -> None:
    settings = tubestore.StoreOptions(segment_size_bytes=1000, index_segment_size_bytes=280)
    config = OPTIONS.changed(layouts=LAYOUTS, tube_options=settings)
    with rocketcompat.open(tmp_path, "w", config, background=False) as store:
        for _ in range(20):
            store.put_message(Message("A", b"x" * 100))
            store.wait_dispatched(store.max_physical_offset - 1)
            shards_of(store).store.flush()
    assert len(list((tmp_path / "tube" / "A-0").glob("*.tube"))) > 2
    wrong: Any = {"segment_size_bytes": 5}
    with pytest.raises(InvalidMessage, match=r"tube_options: .* is no tubestore\.StoreOptions"):
        OPTIONS.changed(tube_options=wrong)


def test_a_store_has_no_shards_unless_they_were_asked_for_once(tmp_path: Path) -> None:
    with rocketcompat.open(tmp_path, "w", OPTIONS.changed(layouts=KEPT), background=False) as store:
        store.put_message(Message("A", b"one"))
    assert not (tmp_path / "tube").exists()
    with rocketcompat.open(tmp_path, "w", layouts=LAYOUTS, background=False) as store:
        store.put_message(Message("A", b"two"))
    with rocketcompat.open(tmp_path, "w", background=False) as store:  # it has them, and keeps them
        store.put_message(Message("A", b"three"))
    with tubestore.open(tmp_path / "tube", mode="r") as shards:
        bodies = [message.body for message in shards["A"].messages(0)]
    assert bodies == [b"one", b"two", b"three"]
    with rocketcompat.open(tmp_path, "w", layouts=KEPT, background=False) as store:
        assert store.config.layouts == KEPT


def test_the_tube_shards_hold_what_the_log_holds(tmp_path: Path) -> None:
    config = OPTIONS.changed(layouts=frozenset({"consume_queue", "index", "tube"}))
    with rocketcompat.open(tmp_path, "w", config, background=False) as store:
        last = store.put_columns({"topic": ["A", "B"] * 5, "body": [b"x"] * 10})
        store.wait_dispatched(last["physical_offset"][-1].as_py())
        assert sorted(shards_of(store).store.topics()) == ["A", "B"]
