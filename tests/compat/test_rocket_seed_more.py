"""Statements of the seeds that no other test has by its number; see `mutation/rows.txt`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import rocketcompat
from rocketcompat import Message, MessageStoreConfig
from rocketcompat.files.checkpoint import StoreCheckpoint
from rocketcompat.formats import INDEX_HEADER, INDEX_ITEM
from rocketcompat.store.default_message_store import DefaultMessageStore
from tests.support import REPOSITORY
from tests.support.rocket.inside import dispatcher_of, index_of, log_of, opened_of
from tubestore.clock import ManualClock
from tubestore.errors import OffsetOutOfRange
from tubestore.testing import FaultyVfs, MemoryVfs, crash_states

CONFIG = MessageStoreConfig(
    mapped_file_size_commit_log=1 << 16,
    mapped_file_size_consume_queue=1024,
    max_hash_slot_num=1,
    max_index_num=50,
    layouts=frozenset({"consume_queue", "index"}),
)


def opened(vfs: Any, clock: ManualClock, **options: Any) -> DefaultMessageStore:
    config = CONFIG.changed(**options)
    return rocketcompat.open("/s", "w", config, vfs=vfs, clock=clock, background=False)


def put(store: DefaultMessageStore, number: int = 0, **given: Any) -> Any:
    return store.put_message(Message("T", b"body %d" % number, keys=f"k{number}", **given))


def test_what_was_put_comes_to_stable_storage_later(
    memory_vfs: MemoryVfs, clock: ManualClock
) -> None:
    """WR-02: the flush service persists what was written, by its rules (FLS-06)."""
    with opened(memory_vfs, clock) as store:
        put(store)
        before = log_of(store).synced_offset
        assert before < store.max_physical_offset
        clock.advance(CONFIG.flush_commit_log_thorough_interval)
        opened_of(store).flusher.flush_due()
        assert log_of(store).synced_offset == store.max_physical_offset


def test_a_read_by_offset_and_size_has_the_bytes_or_misses_cleanly(
    memory_vfs: MemoryVfs, clock: ManualClock
) -> None:
    """WR-03."""
    with opened(memory_vfs, clock) as store:
        found = put(store, 7)
        raw = log_of(store).read_at(found.physical_offset, found.size)
        assert len(raw) == found.size
        assert b"body 7" in raw
        end = store.max_physical_offset
        assert log_of(store).read_at(end, 10) == b""
        assert log_of(store).read_at(found.physical_offset, 1 << 20) == raw
        assert log_of(store).read_at(1 << 40, 10) == b""
        for wrong in (end, 1 << 40):
            with pytest.raises(OffsetOutOfRange):
                store.look_message(wrong)


def test_puts_are_written_one_behind_the_other(memory_vfs: MemoryVfs, clock: ManualClock) -> None:
    """WR-04: the log is only ever appended to."""
    journal = memory_vfs.record()
    with opened(memory_vfs, clock) as store:
        for number in range(50):
            put(store, number, queue_id=number % 5)
            if number % 10 == 0:
                store.put_columns({"topic": ["A", "B"], "body": [b"x", b"y"]})
    log = [call for call in journal.calls if "/commitlog/" in call.path]
    writes = [call for call in log if call.kind == "pwrite"]
    assert len(writes) > 50
    position = 0
    for call in writes:
        assert call.position == position
        position += len(call.data)


def test_queues_hold_no_content(tmp_path: Path) -> None:
    """CQ-01."""
    with rocketcompat.open(tmp_path, "w", CONFIG, background=False) as store:
        for number in range(20):
            put(store, number, tags="paid")
    raw = b"".join(p.read_bytes() for p in (tmp_path / "consumequeue").rglob("0*") if p.is_file())
    assert len(raw) >= 400
    assert b"body" not in raw
    assert b"paid" not in raw


def test_queue_files_of_1040_bytes_are_named_by_their_offset(tmp_path: Path) -> None:
    """CQ-10, CQ-11: 1024 is 52 units; the 53rd begins the second file, the 105th the third."""
    path = tmp_path / "consumequeue" / "T" / "0"
    with rocketcompat.open(tmp_path, "w", CONFIG, background=False) as store:
        for number in range(105):
            put(store, number)
            dispatcher_of(store).dispatch_pending()
            names = [int(p.name) for p in sorted(path.iterdir())]
            assert names == [0, 1040, 2080][: 1 + number // 52]
    assert {p.stat().st_size for p in path.iterdir()} == {1040}


def test_the_index_time_is_that_of_what_the_index_has_on_stable_storage(
    memory_vfs: MemoryVfs, clock: ManualClock
) -> None:
    """CKP-04."""
    with opened(memory_vfs, clock) as store:
        for number in range(3):
            clock.advance(1000)
            put(store, number)
        last = clock.now_ms()
        assert StoreCheckpoint(memory_vfs, "/s/checkpoint").index_msg_timestamp == 0
        store.flush()
        assert StoreCheckpoint(memory_vfs, "/s/checkpoint").index_msg_timestamp == last


def test_what_is_newer_than_the_checkpoint_survives_if_it_was_flushed(
    memory_vfs: MemoryVfs, clock: ManualClock
) -> None:
    """CKP-06, REC-04: what a checkpoint does not speak of is not lost for that."""
    journal = memory_vfs.record()
    store = opened(memory_vfs, clock)
    put(store, 0)
    store.flush()
    older = memory_vfs.read_file("/s/checkpoint")
    for number in range(1, 5):
        clock.advance(5000)
        store.put_message(Message("T", b"body %d" % number), durability="fsync")
    end = len(journal)
    (state, *_) = crash_states(
        journal, seed=1, kinds=("power",), variants=(0,), steps=lambda step: step == end
    )
    vfs = state.vfs(clock)
    assert vfs.read_file("/s/checkpoint") == older
    with opened(vfs, clock) as again:
        dispatcher_of(again).dispatch_pending()
        assert again.max_offset_in_queue("T", 0) == 5
    store.close()


@pytest.mark.parametrize(("flush", "syncs"), [("SYNC_FLUSH", 20), ("ASYNC_FLUSH", 0)])
def test_a_synchronous_flush_costs_a_sync_and_an_asynchronous_none(
    memory_vfs: MemoryVfs, clock: ManualClock, flush: Any, syncs: int
) -> None:
    """FLS-04: that is the price, whatever a sync takes on a disk."""
    vfs = FaultyVfs(memory_vfs)
    with opened(vfs, clock, flush_disk_type=flush) as store:
        before = vfs.calls["sync"]
        for number in range(20):
            put(store, number)
        assert vfs.calls["sync"] - before == syncs


README = (REPOSITORY / "README.md").read_text()


def test_the_readme_advises_which_flush_to_choose_and_names_the_option() -> None:
    """FLS-08: asynchronous where some loss is acceptable or a message can be sent again."""
    text = " ".join(README.split())
    section = text[text.index("## RocketMQ stores") : text.index("## Spark")]
    assert "`flushDiskType` (`flush_disk_type`) chooses when a put returns" in section
    advice = {row.split("|")[0].strip(): row for row in section.split(" | | ")}
    assert "sent again" in advice["`ASYNC_FLUSH` (default)"]
    assert "no acknowledged message may be lost" in advice["`SYNC_FLUSH`"]
    assert MessageStoreConfig.from_camel({"flushDiskType": "SYNC_FLUSH"}) == MessageStoreConfig(
        flush_disk_type="SYNC_FLUSH"
    )


def test_the_readme_lists_what_may_be_lost_at_which_level() -> None:
    text = README
    rows = {
        line.split("|")[1].strip(): line for line in text.splitlines() if line.startswith("| `")
    }
    assert "may be lost" in rows["`page_cache` (default)"]
    assert "may be lost" not in rows["`fsync`"]


def test_without_a_pool_others_see_a_put_at_once(tmp_path: Path) -> None:
    """TSP-02: writes go to the page cache, reads come from it."""
    with rocketcompat.open(tmp_path, "w", CONFIG, background=False) as store:
        found = put(store, 3)
        assert log_of(store).uncommitted_bytes == 0
        with rocketcompat.open(tmp_path, "r", CONFIG) as reader:
            assert reader.look_message(found.physical_offset).body == b"body 3"


def test_a_query_gives_the_newest_32_if_not_asked_for_more(
    memory_vfs: MemoryVfs, clock: ManualClock
) -> None:
    """IDX-31."""
    with opened(memory_vfs, clock) as store:
        offsets = [store.put_message(Message("T", b"x", keys="same")).physical_offset
                   for _ in range(40)]  # fmt: skip
        dispatcher_of(store).dispatch_pending()
        assert store.query_message("T", "same").physical_offsets == offsets[-32:]


@pytest.mark.parametrize("seconds", [-1, 0])
def test_a_search_by_hash_ends_at_an_item_s_time_and_one_by_text_goes_on(
    tmp_path: Path, clock: ManualClock, seconds: int
) -> None:
    """IDX-30: the walk ends at a negative time, and behind the first item before the window.

    Where the key's text is compared it goes on: a wrong time, or one before the clock was set
    back, hides no other message.
    """
    begin = clock.now_ms()
    with rocketcompat.open(tmp_path, "w", CONFIG, clock=clock, background=False) as store:
        offsets = []
        for _ in range(8):
            offsets.append(store.put_message(Message("T", b"x", keys="same")).physical_offset)
            clock.advance(10_000)
    (path,) = (tmp_path / "index").iterdir()
    raw = bytearray(path.read_bytes())
    item = INDEX_HEADER.size + 4 + 6 * INDEX_ITEM.size  # of the sixth message
    at = item + INDEX_ITEM.position("time_diff_seconds")
    raw[at : at + 4] = seconds.to_bytes(4, "big", signed=True)
    path.write_bytes(raw)
    with rocketcompat.open(tmp_path, "r", CONFIG) as reader:
        forever = 1 << 60
        newest, _, _ = index_of(reader).select("T", "same", 32, 0, forever)
        assert newest == (offsets[:5:-1] if seconds < 0 else offsets[::-1])
        newest, _, _ = index_of(reader).select("T", "same", 32, begin + 15_000, forever)
        assert newest == offsets[:5:-1]
        found = reader.query_message("T", "same", begin=begin + 15_000).physical_offsets
        assert found == [*offsets[2:5], *offsets[6:]]
        assert reader.query_message("T", "same").physical_offsets == offsets


@pytest.mark.parametrize("link", [-1, 5, 49, 1 << 30, -(1 << 31)])
@pytest.mark.parametrize("where", ["slot", "item"])
def test_broken_links_of_the_index_end_a_search(tmp_path: Path, link: int, where: str) -> None:
    """IDX-19, IDX-30: no link leads a search in circles or out of the file."""
    with rocketcompat.open(tmp_path, "w", CONFIG, background=False) as store:
        offsets = [store.put_message(Message("T", b"x", keys="same")).physical_offset
                   for _ in range(8)]  # fmt: skip
    (path,) = (tmp_path / "index").iterdir()
    raw = bytearray(path.read_bytes())
    items = INDEX_HEADER.size + 4
    at = INDEX_HEADER.size if where == "slot" else items + 5 * INDEX_ITEM.size + 16
    raw[at : at + 4] = link.to_bytes(4, "big", signed=True)
    path.write_bytes(raw)
    with rocketcompat.open(tmp_path, "r", CONFIG) as reader:
        found = reader.query_message("T", "same").physical_offsets
        assert set(found) <= set(offsets)
        assert len(found) == len(set(found))
