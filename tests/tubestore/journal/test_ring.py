"""Single messages in the ring journal: what is written when, and nothing lost or doubled."""

from __future__ import annotations

import errno
import threading
from collections.abc import Mapping
from os.path import dirname
from pathlib import Path
from random import Random
from types import FunctionType
from typing import Any

import pytest

import tubestore
from tests.support.engine.interrupts import interrupted
from tubestore.clock import ManualClock
from tubestore.core.state_file import BadState, parse_state
from tubestore.core.vfs import Vfs
from tubestore.errors import CorruptRecord, StoreClosed
from tubestore.journal import ring, ring_reading
from tubestore.journal.early_writes import EarlyWrites
from tubestore.journal.ring import Ring
from tubestore.journal.ring_frames import HEAD_SIZE, START_SIZE
from tubestore.journal.ring_reading import read_ring
from tubestore.journal.topic_names import TopicNames
from tubestore.offline.check import check
from tubestore.options import Durability
from tubestore.record.records import HEADER_SIZE
from tubestore.shard.mem_store import MsgMemStore
from tubestore.shard.message_store import MessageStore
from tubestore.shard.write_buffer import WriteBuffer
from tubestore.store.manager import MessageStoreManager, engine_of
from tubestore.store.topic import shards_of
from tubestore.testing import FaultyVfs, MemoryVfs
from tubestore.testing.power_cut import power_cut

RING = "/s/.tubestore/ring-"
SEGMENT = 1024


def open_store(vfs: Vfs, **settings: Any) -> MessageStoreManager:
    given = {"ring_journal": True, "ring_size_bytes": 4 * SEGMENT, **settings}
    store = tubestore.open("/s", vfs=vfs, clock=ManualClock(), background=False, **given)
    store.create_topic("a", exist_ok=True)
    store.create_topic("b", exist_ok=True)
    return store


def ring_of(store: MessageStoreManager) -> Ring:
    ring = engine_of(store).opener.ring
    assert ring is not None
    return ring


def killed(store: MessageStoreManager, vfs: MemoryVfs) -> None:
    engine_of(store).abandon("killed")
    vfs.release_locks()


def bodies(store: MessageStoreManager, topic: str = "a") -> list[bytes]:
    rows = list(store[topic].messages(0, verify=True))
    assert [row.offset for row in rows] == list(range(0, 28 * len(rows), 28))
    assert {row.state for row in rows} <= {"ok"}
    return [row.body for row in rows]


def numbered(store: MessageStoreManager, count: int, **how: Any) -> list[bytes]:
    """Append numbered messages; returns their bodies."""
    sent = [b"message %d" % n for n in range(count)]
    for body in sent:
        store["a"].append(body, **how)
    return sent


def files(vfs: MemoryVfs) -> list[str]:
    return [path for path in vfs.tree() if path.endswith((".tube", ".index"))]


def segments(vfs: MemoryVfs) -> list[str]:
    return [path for path in vfs.tree() if path.startswith(RING)]


@pytest.fixture(autouse=True)
def _checked_rings(monkeypatch: pytest.MonkeyPatch) -> None:
    make_room = Ring.make_room

    def checked(self: Ring, size: int) -> bool:
        try:
            return make_room(self, size)
        finally:
            self.check_invariants()

    monkeypatch.setattr(Ring, "make_room", checked)


# -- what is written when ----------------------------------------------------------------------


def test_a_message_is_in_the_ring_and_in_no_file_of_its_shard(memory_vfs: MemoryVfs) -> None:
    with open_store(memory_vfs) as store:
        store["a"].append(b"one")
        assert segments(memory_vfs) == [f"{RING}0"]
        assert files(memory_vfs) == []
        assert bodies(store) == [b"one"]
        store.flush()
        assert len(files(memory_vfs)) == 2


def test_many_messages_are_written_in_few_pieces_and_the_ring_keeps_its_bound(
    memory_vfs: MemoryVfs,
) -> None:
    counting = FaultyVfs(memory_vfs)
    with open_store(counting) as store:
        before = counting.calls["pwrite"]
        sent = numbered(store, 400)
        assert len(segments(memory_vfs)) == 4
        assert counting.calls["pwrite"] - before < 200  # two for each, without the ring
        assert bodies(store) == sent


def test_a_clean_close_leaves_no_segment_and_no_feature(memory_vfs: MemoryVfs) -> None:
    with open_store(memory_vfs) as store:
        sent = numbered(store, 30)
        with pytest.raises(BadState, match="features"):  # what an older version finds
            parse_state(memory_vfs.read_file("/s/.tubestore/store.json"))
    assert segments(memory_vfs) == []
    parse_state(memory_vfs.read_file("/s/.tubestore/store.json"))
    with open_store(memory_vfs, ring_journal=False) as store:
        assert bodies(store) == sent


def test_messages_in_memory_are_written_before_a_frame_behind_them(memory_vfs: MemoryVfs) -> None:
    with open_store(memory_vfs) as store:
        store["a"].append(b"in memory", durability="memory")
        store["a"].append(b"in the ring")
        killed(store, memory_vfs)
    with open_store(memory_vfs) as store:
        assert bodies(store) == [b"in memory", b"in the ring"]


def test_a_batch_between_frames_keeps_its_place(memory_vfs: MemoryVfs) -> None:
    with open_store(memory_vfs) as store:
        store["a"].append(b"0")
        store["a"].append_batch({"body": [b"1", b"2"]})
        store["a"].append(b"3")
        store["a"].append_batch({"body": [b"4"]}, durability="memory")
        store["a"].append(b"5", durability="fsync")
        killed(store, memory_vfs)
    with open_store(memory_vfs) as store:
        assert bodies(store) == [b"%d" % n for n in range(6)]


def test_a_shard_with_a_frame_in_the_same_segment_a_lap_later_is_written_before_it_is_used_again(
    memory_vfs: MemoryVfs,
) -> None:
    with open_store(memory_vfs, mem_store_size_bytes=1 << 20) as store:
        store["b"].append(b"0")
        ring = ring_of(store)
        segment = ring.current
        for lap in (b"1", b"2"):
            while ring.current is segment:
                store["a"].append(b"x")
            while ring.current is not segment:
                store["a"].append(b"x")
            store["b"].append(lap)
        while ring.current is segment:
            store["a"].append(b"x")
        while ring.current is not segment:
            store["a"].append(b"x")
        killed(store, memory_vfs)
    with open_store(memory_vfs) as store:
        assert bodies(store, "b") == [b"0", b"1", b"2"]


def test_a_message_that_is_long_for_a_segment_goes_to_its_files(memory_vfs: MemoryVfs) -> None:
    with open_store(memory_vfs) as store:
        longest = ring_of(store).frame_max - HEAD_SIZE - HEADER_SIZE
        store["a"].append(b"x" * (longest + 1))
        assert segments(memory_vfs) == []
        assert len(files(memory_vfs)) == 2
        store["a"].append(b"x" * longest)
        assert len(segments(memory_vfs)) == 1


def test_a_message_that_is_longer_than_a_buffer_goes_to_its_files(memory_vfs: MemoryVfs) -> None:
    with open_store(memory_vfs, ring_size_bytes=1 << 20, mem_store_size_bytes=2000) as store:
        longest = 2000 - HEADER_SIZE
        sent = [b"a" * longest, b"b" * (longest + 1), b"c" * 5000, b"d"]
        for body in sent:
            store["a"].append(body)
        store["a"].append(b"e" * (longest + 1), durability="fsync")
        assert bodies(store) == [*sent, b"e" * (longest + 1)]


def test_a_full_segment_is_filled_to_its_last_byte(memory_vfs: MemoryVfs) -> None:
    room = SEGMENT - START_SIZE - HEAD_SIZE  # END has its room
    size = room // 4 - HEAD_SIZE - HEADER_SIZE
    with open_store(memory_vfs) as store:
        for _ in range(3):
            store["a"].append(b"x" * size)
        store["a"].append(b"y" * (size + room % 4))
        assert len(segments(memory_vfs)) == 1
        store["a"].append(b"z")
        assert len(segments(memory_vfs)) == 2
        killed(store, memory_vfs)
    with open_store(memory_vfs) as store:
        assert len(bodies(store)) == 5


# -- after a kill ------------------------------------------------------------------------------


@pytest.mark.parametrize("maps", [True, False])
def test_what_was_acknowledged_is_there_after_a_kill(memory_vfs: MemoryVfs, maps: bool) -> None:
    memory_vfs.maps = maps
    for count in (1, 7, 150):
        with open_store(memory_vfs) as store:
            before = bodies(store)
            sent = numbered(store, count)
            killed(store, memory_vfs)
        with open_store(memory_vfs) as store:
            assert store.problems == []
            assert bodies(store) == before + sent
            store.maintain()
            assert segments(memory_vfs) == []
            store["a"].append(b"behind it")
            assert bodies(store)[-1] == b"behind it"


def test_messages_in_the_ring_that_reach_into_the_next_file_get_their_places(
    memory_vfs: MemoryVfs,
) -> None:
    small = {"segment_size_bytes": 100, "index_segment_size_bytes": 56}
    with open_store(memory_vfs, **small) as store:
        sent = []
        for _ in range(2):
            sent += numbered(store, 2)
            store.flush()  # the next message begins a file
        sent += numbered(store, 2)
        killed(store, memory_vfs)
    with open_store(memory_vfs, **small) as store:
        assert bodies(store) == sent
        assert store.problems == []
        store.close()
    assert list(check("/s", vfs=memory_vfs)) == []


def test_no_shard_is_opened_because_a_killed_process_left_messages_of_it(
    memory_vfs: MemoryVfs,
) -> None:
    with open_store(memory_vfs) as store:
        sent = numbered(store, 5)
        store["b"].append(b"in b")
        killed(store, memory_vfs)
    left = segments(memory_vfs)
    with open_store(memory_vfs) as store:
        assert list(engine_of(store).shards.written()) == []
        store["a"].append(b"behind them")
        assert bodies(store) == [*sent, b"behind them"]
        assert set(segments(memory_vfs)) > set(left)
        assert len(list(engine_of(store).shards.written())) == 1
        store.maintain()
        assert not set(segments(memory_vfs)) & set(left)
        assert bodies(store, "b") == [b"in b"]
        killed(store, memory_vfs)
    with open_store(memory_vfs) as store:
        assert bodies(store) == [*sent, b"behind them"]
        assert bodies(store, "b") == [b"in b"]
        assert store.problems == []
    assert segments(memory_vfs) == []


def test_segments_that_were_used_again_beside_left_ones_are_not_missed(
    memory_vfs: MemoryVfs,
) -> None:
    with open_store(memory_vfs) as store:
        sent = numbered(store, 5)
        killed(store, memory_vfs)
    with open_store(memory_vfs) as store:
        later = [b"laps the ring %d" % n for n in range(200)]
        for body in later:
            store["b"].append(body)
            assert read_ring(memory_vfs, "/s").damages == []  # type: ignore[union-attr]
        killed(store, memory_vfs)
    with open_store(memory_vfs) as store:
        assert store.problems == []
        assert bodies(store) == sent
        assert bodies(store, "b") == later


@pytest.mark.parametrize("boot", ["same", "other"])
def test_a_second_kill_before_all_shards_were_opened_loses_nothing(
    memory_vfs: MemoryVfs, boot: str
) -> None:
    with open_store(memory_vfs) as store:
        sent = numbered(store, 60, durability="fsync")  # several laps
        store["b"].append(b"in b", durability="fsync")
        killed(store, memory_vfs)
    for n in range(3):
        with open_store(memory_vfs) as store:
            for _ in range(20):
                sent.append(b"behind %d" % n)
                store["a"].append(sent[-1], durability="fsync")
            ring_of(store).check_invariants()
            killed(store, memory_vfs)
        if boot == "other":
            memory_vfs.reboot()
    with open_store(memory_vfs) as store:
        assert store.problems == []
        assert bodies(store) == sent
        assert bodies(store, "b") == [b"in b"]


def test_what_was_synced_survives_a_power_cut_that_takes_what_a_killed_process_left(
    memory_vfs: MemoryVfs,
) -> None:
    memory_vfs.record()
    with open_store(memory_vfs) as store:
        store["b"].append(b"not promised")
        sent = numbered(store, 3)
        killed(store, memory_vfs)
    with open_store(memory_vfs) as store:
        store["a"].append(b"promised", durability="fsync")
        killed(store, memory_vfs)
    assert memory_vfs.journal is not None
    for variant in range(12):
        disk = power_cut(memory_vfs.journal.end(), Random(variant), variant, "another boot")
        with open_store(MemoryVfs(None, disk)) as store:
            assert store.problems == []
            assert bodies(store) == [*sent, b"promised"], variant


def test_what_a_killed_process_left_unsynced_may_go_after_the_next_one_has_synced_a_lap(
    memory_vfs: MemoryVfs,
) -> None:
    """No frame of that lap shows what had been synced before it."""
    memory_vfs.record()
    with open_store(memory_vfs) as store:
        store["b"].append(b"not promised")
        killed(store, memory_vfs)
    with open_store(memory_vfs) as store:
        sent = numbered(store, 60, durability="fsync")
        killed(store, memory_vfs)
    assert memory_vfs.journal is not None
    for variant in range(12):
        disk = power_cut(memory_vfs.journal.end(), Random(variant), variant, "another boot")
        with open_store(MemoryVfs(None, disk)) as store:
            assert store.problems == [], variant
            assert bodies(store) == sent, variant


def test_a_power_cut_after_what_a_killed_process_left_has_gone_loses_nothing(
    memory_vfs: MemoryVfs,
) -> None:
    memory_vfs.record()
    with open_store(memory_vfs) as store:
        sent = numbered(store, 3, durability="fsync")
        killed(store, memory_vfs)
    with open_store(memory_vfs) as store:
        assert bodies(store) == sent  # its files have them, unsynced
        store["b"].append(b"not promised")
        left = len(segments(memory_vfs))
        store.maintain()
        assert len(segments(memory_vfs)) == left
        killed(store, memory_vfs)
    assert memory_vfs.journal is not None
    for variant in range(24):
        disk = power_cut(memory_vfs.journal.end(), Random(variant), variant, "another boot")
        with open_store(MemoryVfs(None, disk)) as store:
            assert store.problems == [], variant
            assert bodies(store) == sent, variant


@pytest.mark.parametrize("boot", ["same", "other"])
def test_segments_that_a_killed_process_left_are_missed_when_the_next_one_is_killed(
    memory_vfs: MemoryVfs, boot: str
) -> None:
    with open_store(memory_vfs) as store:
        numbered(store, 5, durability="fsync")
        killed(store, memory_vfs)
    with open_store(memory_vfs) as store:
        store["b"].append(b"in b")
        killed(store, memory_vfs)
    memory_vfs.remove(segments(memory_vfs)[0])
    if boot == "other":
        memory_vfs.reboot()
    with open_store(memory_vfs) as store:
        (problem,) = store.problems
        assert "segments of the journal are missing" in str(problem)
        assert bodies(store, "b") == [b"in b"]


@pytest.mark.parametrize("call", ["sync", "remove", "sync_file_system", "replace_file", "rename"])
@pytest.mark.parametrize("appended", [False, True])
def test_what_a_killed_process_left_goes_with_a_later_call_if_one_fails(
    memory_vfs: MemoryVfs, call: str, appended: bool
) -> None:
    with open_store(memory_vfs) as store:
        sent = numbered(store, 5)
        killed(store, memory_vfs)
    (left,) = segments(memory_vfs)
    faulty = FaultyVfs(memory_vfs)
    with open_store(faulty) as store:
        if appended:
            store["b"].append(b"in b", durability="fsync")
        assert bodies(store) == sent
        faulty.fail(call, path=".tubestore")
        for _ in range(2):
            store.maintain()
        assert left not in segments(memory_vfs)
        assert bool(segments(memory_vfs)) == appended
        store["b"].append(b"behind")
        killed(store, memory_vfs)
    with open_store(memory_vfs) as store:
        assert store.problems == []
        assert bodies(store) == sent
        assert bodies(store, "b") == [b"in b", b"behind"][1 - appended :]


def test_a_topic_that_is_deleted_while_messages_are_left_takes_them_with_it(
    memory_vfs: MemoryVfs,
) -> None:
    with open_store(memory_vfs) as store:
        numbered(store, 5)
        store["b"].append(b"stays")
        killed(store, memory_vfs)
    with open_store(memory_vfs) as store:
        store.delete_topic("a")
        store.create_topic("a").append(b"of the new one")
        assert bodies(store) == [b"of the new one"]
        killed(store, memory_vfs)
    with open_store(memory_vfs) as store:
        assert bodies(store) == [b"of the new one"]
        assert bodies(store, "b") == [b"stays"]
        assert store.problems == []


def test_a_topic_made_again_gets_no_frame_of_the_deleted_one(memory_vfs: MemoryVfs) -> None:
    with open_store(memory_vfs) as store:
        numbered(store, 5)
        store["b"].append(b"stays")
        store.delete_topic("a")
        store.create_topic("a").append(b"of the new one")
        killed(store, memory_vfs)
    with open_store(memory_vfs) as store:
        assert bodies(store) == [b"of the new one"]
        assert bodies(store, "b") == [b"stays"]
        assert store.problems == []


def test_a_power_cut_leaves_what_was_synced(memory_vfs: MemoryVfs) -> None:
    """One sync, of the ring, is enough for all shards and everything before in them."""
    counting = FaultyVfs(memory_vfs)
    with open_store(counting) as store:
        store["a"].append(b"0", durability="fsync")
        store["b"].append(b"1", durability="fsync")
        before = counting.calls["sync"]
        store["a"].append(b"2")
        store["b"].append(b"3", durability="fsync")
        assert counting.calls["sync"] - before == 1
        killed(store, memory_vfs)
    memory_vfs.reboot()
    with open_store(memory_vfs) as store:
        assert bodies(store) == [b"0", b"2"]
        assert bodies(store, "b") == [b"1", b"3"]


def lap(store: MessageStoreManager) -> None:
    """Append to topic b until all segments there are have been used again."""
    ring = ring_of(store)
    end = ring.end + 5 * ring.segment_bytes
    while ring.end < end:
        store["b"].append(b"another lap")


def test_a_sync_of_the_ring_covers_no_message_that_the_ring_has_lost(
    memory_vfs: MemoryVfs,
) -> None:
    """Before the first sync, segments are emptied into files that are not synced."""
    memory_vfs.record()
    with open_store(memory_vfs, mem_store_size_bytes=1 << 20) as store:
        store["a"].append(b"0")
        store["a"].sync()  # else the first sync of the files covers what is in them
        store["a"].append(b"1")
        lap(store)
        store["a"].append(b"2", durability="fsync")
        killed(store, memory_vfs)
    assert memory_vfs.journal is not None
    for variant in range(12):
        disk = power_cut(memory_vfs.journal.end(), Random(variant), variant, "another boot")
        with open_store(MemoryVfs(None, disk)) as store:
            assert bodies(store) == [b"0", b"1", b"2"], variant


def test_frames_behind_a_gap_that_a_power_cut_left_do_not_come_back_at_a_second_opening(
    memory_vfs: MemoryVfs,
) -> None:
    """The places of these messages are given to others meanwhile."""
    memory_vfs.record()
    with open_store(memory_vfs, mem_store_size_bytes=1 << 20) as store:
        store["a"].append(b"unsynced in a file")
        lap(store)
        store["a"].append(b"unsynced in the ring")
        killed(store, memory_vfs)
    assert memory_vfs.journal is not None
    gaps = 0
    for variant in range(60):
        disk = power_cut(memory_vfs.journal.end(), Random(variant), variant, "another boot")
        vfs = MemoryVfs(None, disk)
        with open_store(vfs) as store:
            gaps += any("quarantine" in path for path in vfs.tree())
            acks = [store["a"].append(b"%d" % n, durability="fsync") for n in range(3)]
            there = list(store["a"].messages(0))
            assert [m.offset for m in there[-3:]] == [ack.offset for ack in acks]
            killed(store, vfs)
        with open_store(vfs) as store:
            assert list(store["a"].messages(0)) == there, variant
            assert store.problems == [], variant
    assert gaps, "no power cut left a gap"


def test_what_two_killed_processes_left_is_given_to_all_shards_at_once(
    memory_vfs: MemoryVfs,
) -> None:
    """So a root that is opened and killed again and again does not grow."""
    for _ in range(5):
        with open_store(memory_vfs) as store:
            numbered(store, 20)
            store["b"].append(b"x")
            assert len(segments(memory_vfs)) <= 2 * 4
            killed(store, memory_vfs)


def test_what_only_the_ring_has_is_safe_at_the_age_of_a_background_sync(
    memory_vfs: MemoryVfs,
) -> None:
    clock = ManualClock()
    memory_vfs.record()
    with tubestore.open("/s", vfs=memory_vfs, clock=clock, background=False) as store:
        topic = store.create_topic("a")
        topic.append(b"one", durability="memory")
        clock.advance(15_000)
        store.maintain()
        assert files(memory_vfs) == []
        topic.append(b"two")
        store.flush()
        topic.append(b"three")
        clock.advance(9_000)
        store.maintain()
        assert store.stats()["dirty_bytes"] > 0
        clock.advance(1_000)
        store.maintain()
        killed(store, memory_vfs)
    assert memory_vfs.journal is not None
    for variant in range(12):
        disk = power_cut(memory_vfs.journal.end(), Random(variant), variant, "another boot")
        with open_store(MemoryVfs(None, disk)) as store:
            assert bodies(store) == [b"one", b"two", b"three"], variant


def test_every_flipped_byte_of_a_ring_is_reported_or_changes_nothing(
    memory_vfs: MemoryVfs,
) -> None:
    with open_store(memory_vfs) as store:
        sent = numbered(store, 12)
        killed(store, memory_vfs)
    disk = memory_vfs.tree()
    left = read_ring(memory_vfs, "/s")
    assert left is not None
    for path in segments(memory_vfs):
        for position in range(0, SEGMENT, 29):
            vfs = MemoryVfs()
            for name, data in disk.items():
                vfs.make_directories(dirname(name))
                if name == path:
                    data = data[:position] + bytes([data[position] ^ 0x40]) + data[position + 1 :]
                vfs.open(name, create=True).pwrite(data, 0)
            vfs._boot_id = memory_vfs.boot_id()
            with open_store(vfs) as store:
                shown = [m.body for m in store["a"].messages(0) if m.state == "ok"]
                problems = [p for p in store.problems if isinstance(p, CorruptRecord)]
                added = store["a"].append(b"next").offset
            place = (path, position, problems)
            if problems:
                assert set(shown) <= set(sent), place
            else:  # a last frame that does not count was in the middle of its copy
                assert shown in (sent, sent[:-1]), place
            assert added >= 28 * len(shown), place


def test_threads_that_fill_the_ring_together_lose_and_double_nothing(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"ring_journal": True, "ring_size_bytes": 8 * SEGMENT}
    with tubestore.open(tmp_path, **settings) as store:
        topics = [store.create_topic(f"t{n}") for n in range(3)]
        acks: list[list[tuple[int, int, bytes]]] = [[] for _ in range(4)]

        def work(number: int) -> None:
            for n in range(60):
                which, body = (n + number) % 3, b"%d of %d" % (n, number)
                level: Durability = "fsync" if n % 10 == 0 else "page_cache"
                ack = topics[which].append(body, durability=level)
                acks[number].append((which, ack.offset, body))

        threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        sent = sorted(ack for mine in acks for ack in mine)
        engine_of(store).abandon("killed")
        engine_of(store).context.directory.release()
    with tubestore.open(tmp_path, background=False) as store:
        shown = [
            (which, message.offset, message.body)
            for which in range(3)
            for message in store[f"t{which}"].messages(0, verify=True)
        ]
        assert shown == sent
        assert store.problems == []


# -- trouble -----------------------------------------------------------------------------------


def test_without_room_for_a_segment_messages_go_to_their_files(memory_vfs: MemoryVfs) -> None:
    faulty = FaultyVfs(memory_vfs)
    faulty.fail("allocate", error=errno.ENOSPC, forever=True)
    with open_store(faulty) as store:
        sent = numbered(store, 5)
        assert segments(memory_vfs) == []
        killed(store, memory_vfs)
    with open_store(memory_vfs) as store:
        assert bodies(store) == sent


def test_a_ring_that_cannot_be_synced_is_left_and_the_files_are_synced(
    memory_vfs: MemoryVfs,
) -> None:
    faulty = FaultyVfs(memory_vfs)
    with open_store(faulty) as store:
        store["b"].append(b"in the ring")
        faulty.fail("sync", path="ring")
        sent = numbered(store, 3, durability="fsync")
        assert ring_of(store).trouble
        assert bodies(store, "b") == [b"in the ring"]
        assert any("/b-0/" in path for path in files(memory_vfs))  # its pages count as lost
        killed(store, memory_vfs)
    memory_vfs.reboot()
    for path in segments(memory_vfs):
        memory_vfs.remove(path)
    with open_store(memory_vfs) as store:
        assert bodies(store) == sent
        assert bodies(store, "b") == [b"in the ring"]


def test_a_frame_that_cannot_be_written_ends_the_ring_and_loses_nothing(
    memory_vfs: MemoryVfs,
) -> None:
    memory_vfs.maps = False
    faulty = FaultyVfs(memory_vfs)
    with open_store(faulty) as store:
        first = numbered(store, 3)
        faulty.fail("pwrite", path="ring", written=50)
        second = numbered(store, 3)
        assert bodies(store) == first + second
        killed(store, memory_vfs)
    with open_store(memory_vfs) as store:
        assert bodies(store) == first + second
        assert store.problems == []


def test_a_shard_that_cannot_write_keeps_the_ring_for_the_next_opening(
    memory_vfs: MemoryVfs,
) -> None:
    faulty = FaultyVfs(memory_vfs)
    store = open_store(faulty)
    sent = numbered(store, 3)
    faulty.fail("pwrite", path="/a-0/", forever=True)
    with pytest.raises(tubestore.errors.StoreFailed):
        store["a"].flush()
    with pytest.raises(tubestore.errors.StoreFailed):
        store.close()
    assert segments(memory_vfs)
    with open_store(memory_vfs) as store:
        assert bodies(store) == sent


def test_a_segment_with_messages_of_a_shard_that_refuses_is_not_used_again(
    memory_vfs: MemoryVfs,
) -> None:
    store = open_store(memory_vfs, mem_store_size_bytes=1 << 20)
    ring, sent = ring_of(store), numbered(store, 3)
    (shard,) = shards_of(store["a"]).written_shards()
    shard.refuse(StoreClosed("its lock is lost"))
    for _ in range(8):
        if ring.make_room(ring.frame_max):
            with ring.lock:
                ring.end = ring.room_end
    killed(store, memory_vfs)
    with open_store(memory_vfs) as again:
        assert bodies(again) == sent


def test_a_ring_that_was_stopped_writes_nothing(memory_vfs: MemoryVfs) -> None:
    store = open_store(memory_vfs)
    numbered(store, 3)
    engine_of(store).shards.refuse(StoreClosed("its lock is lost"))
    before = memory_vfs.tree()
    assert not ring_of(store).make_room(100)
    ring_of(store).drop_left()
    assert memory_vfs.tree() == before
    with pytest.raises(StoreClosed):
        store["a"].append(b"late")
    killed(store, memory_vfs)


def test_what_a_killed_process_left_goes_before_a_segment_is_made(memory_vfs: MemoryVfs) -> None:
    with open_store(memory_vfs) as store:
        sent = numbered(store, 3)
        killed(store, memory_vfs)
    (left,) = segments(memory_vfs)
    faulty = FaultyVfs(memory_vfs)
    with open_store(faulty) as store:
        assert bodies(store) == sent
        faulty.fail("remove", path=left)
        store.maintain()
        assert segments(memory_vfs) == [left]
        store["b"].append(b"in b")
        assert left not in segments(memory_vfs)


def test_what_a_killed_process_left_stays_while_a_shard_that_lacks_some_cannot_be_opened(
    memory_vfs: MemoryVfs,
) -> None:
    with open_store(memory_vfs) as store:
        sent = numbered(store, 3)
        store["b"].append(b"in b")
        killed(store, memory_vfs)
    faulty = FaultyVfs(memory_vfs)
    faulty.fail("create", path="/b-0", forever=True)
    with open_store(faulty) as store:
        store.maintain()
        assert bodies(store) == sent
        killed(store, memory_vfs)
    with open_store(memory_vfs) as store:
        assert bodies(store, "b") == [b"in b"]


def test_a_ring_that_is_stopped_while_shards_sync_keeps_what_a_killed_process_left(
    memory_vfs: MemoryVfs, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_store(memory_vfs) as store:
        sent = numbered(store, 3)
        killed(store, memory_vfs)
    left = segments(memory_vfs)
    with open_store(memory_vfs) as store:
        assert bodies(store) == sent
        ring = ring_of(store)
        monkeypatch.setattr(ring, "_sync_files", lambda shards: ring.stop("its lock is lost"))
        store.maintain()
        assert segments(memory_vfs) == left


def test_a_forked_child_writes_nothing(memory_vfs: MemoryVfs) -> None:
    store = open_store(memory_vfs)
    numbered(store, 3)
    engine_of(store).abandon("as after a fork")
    before = memory_vfs.tree()
    with pytest.raises(StoreClosed):
        shards_of(store["a"]).writable(0).append_record(b"h" * 52, b"x", "page_cache")
    assert memory_vfs.tree() == before


@pytest.mark.parametrize(
    "function",
    [
        WriteBuffer.add_in_ring,
        WriteBuffer.add,
        WriteBuffer._swap,
        MsgMemStore.add,
        MsgMemStore._join,
        MsgMemStore.add_batch,
        Ring.make_room,
        Ring._close_segment,
        Ring._begin_segment,
        Ring._make_segment,
        Ring._whole_file,
        Ring._empty,
        Ring._begin_step,
        EarlyWrites.step,
        MessageStore.write_below,
    ],
    ids=lambda function: function.__qualname__,
)
def test_an_interrupt_anywhere_leaves_neither_a_hole_nor_an_offset_without_a_frame(
    function: FunctionType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ring, "_STEP_BYTES_MIN", 100)

    def step(store: MessageStoreManager) -> None:
        for n in range(12):
            level: Durability = "memory" if n in (0, 4, 8) else "page_cache"
            if n == 8:
                store["a"].flush()
            store["a"].append(b"taken? %d" % n, durability=level)
        store["a"].append_batch({"body": [b"taken? batch"]}, durability="memory")
        store["a"].append(b"taken? last", durability="memory")
        bodies(store)

    for place in range(1, 1000):
        vfs = MemoryVfs()
        store = open_store(vfs, ring_size_bytes=2048, mem_store_messages=7)
        for _ in range(5):  # so that all segments are in use
            store["a"].append(b"before")
        was_interrupted = interrupted(lambda s=store: step(s), place, function)
        shards_of(store["a"]).writable(0).check_invariants()
        ring_of(store).check_invariants()
        assert not ring_of(store)._turn.locked(), place
        assert not shards_of(store["a"]).writable(0)._flush_lock.locked(), place
        shown = bodies(store)
        assert shown[:5] == [b"before"] * 5, place
        assert len(set(shown[5:])) == len(shown[5:]), place
        more = [b"behind %d" % n for n in range(15)]
        for body in more:
            store["b"].append(b"of another shard, " + body)
            store["a"].append(body)
        assert bodies(store) == shown + more, place
        killed(store, vfs)
        with open_store(vfs) as again:
            assert bodies(again) == shown + more, place
            assert len(bodies(again, "b")) == len(more), place
            assert again.problems == [], place
        if not was_interrupted:
            assert place > 1, "it was not called"
            return
    raise AssertionError("it has no end")


# -- readers -----------------------------------------------------------------------------------


def test_a_reader_beside_the_writer_sees_each_message_at_once(memory_vfs: MemoryVfs) -> None:
    clock = ManualClock()
    with (
        open_store(memory_vfs) as store,
        tubestore.open("/s", "r", vfs=memory_vfs, clock=clock) as reader,
    ):
        sent = []
        for n in range(60):  # several laps of the ring
            sent.append(b"%d" % n)
            store["a"].append(sent[-1])
            reader.refresh()
            assert bodies(reader) == sent
    with tubestore.open("/s", "r", vfs=memory_vfs, clock=clock) as reader:
        assert bodies(reader) == sent


def test_a_reader_that_comes_late_sees_files_and_ring_as_one(memory_vfs: MemoryVfs) -> None:
    with open_store(memory_vfs) as store:
        sent = numbered(store, 45)
        with tubestore.open("/s", "r", vfs=memory_vfs, clock=ManualClock()) as reader:
            assert bodies(reader) == sent
        assert files(memory_vfs)


def test_a_reader_shows_a_topic_made_again_nothing_of_the_deleted_one(
    memory_vfs: MemoryVfs,
) -> None:
    how: Any = {"vfs": memory_vfs, "background": False}
    with open_store(memory_vfs) as store, tubestore.open("/s", "r", **how) as reader:
        store["b"].append(b"stays")
        numbered(store, 3)
        reader.refresh()
        assert len(bodies(reader)) == 3
        store.delete_topic("a")
        store.create_topic("a")
        reader.refresh()
        assert bodies(reader) == []
        store["a"].append(b"of the new one")
        reader.refresh()
        assert bodies(reader) == [b"of the new one"]
        assert bodies(reader, "b") == [b"stays"]


def test_a_reader_sees_the_messages_of_a_topic_that_is_made_while_it_reads(
    memory_vfs: MemoryVfs, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        open_store(memory_vfs) as store,
        tubestore.open("/s", "r", vfs=memory_vfs, background=False) as reader,
    ):
        numbered(store, 3)
        reader.refresh()
        assert len(bodies(reader)) == 3
        read = TopicNames.read

        def and_then_one_more(names: TopicNames) -> Mapping[int, str]:
            found = read(names)
            if "c" not in store:
                store.create_topic("c").append(b"of a new topic")
            return found

        monkeypatch.setattr(TopicNames, "read", and_then_one_more)
        reader.refresh()
        reader.refresh()
        assert bodies(reader, "c") == [b"of a new topic"]


def test_segments_that_are_made_after_a_reader_has_listed_them_are_not_missed(
    memory_vfs: MemoryVfs, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_store(memory_vfs) as store:
        numbered(store, 3)
        ring_paths = ring_reading.ring_paths

        def and_then_a_lap(vfs: Vfs, root: str) -> list[str]:
            paths = ring_paths(vfs, root)
            if len(segments(memory_vfs)) == 1:
                lap(store)
            return paths

        monkeypatch.setattr(ring_reading, "ring_paths", and_then_a_lap)
        with tubestore.open("/s", "r", vfs=memory_vfs, background=False) as reader:
            assert len(bodies(reader)) == 3
            assert len(bodies(reader, "b")) == store["b"].count(0)
            assert reader.problems == []
        assert len(segments(memory_vfs)) == 4


def test_a_reader_that_waits_is_called_when_a_frame_comes(tmp_path: Path) -> None:
    """The system reports no write through a map."""
    called = threading.Event()
    call = called.set  # the waiter has no other reference to it
    with tubestore.open(tmp_path, ring_journal=True, background=False) as store:
        store.create_topic("a").append(b"the ring is there")
        with tubestore.open(tmp_path, "r") as reader:
            assert engine_of(reader).shards.call_beyond("a", 0, 28, call)
            while called.wait(30):  # it may be called without a reason
                called.clear()
                if not engine_of(reader).shards.call_beyond("a", 0, 28, call):
                    break
                if store["a"].count(0) == 1:
                    store["a"].append(b"two")
            assert bodies(reader) == [b"the ring is there", b"two"]


def test_a_follower_keeps_nothing_of_the_ring_that_it_has_found_in_the_files(
    memory_vfs: MemoryVfs,
) -> None:
    with open_store(memory_vfs) as store:
        sent = numbered(store, 12)
        with tubestore.open("/s", "r", vfs=memory_vfs, background=False) as reader:
            assert bodies(reader) == sent
            store.flush()
            store["a"].append(b"last")
            reader.refresh()
            assert bodies(reader) == [*sent, b"last"]
            store.flush()
            reader.refresh()
            assert not engine_of(reader).opener.journal_now()[1]("a-0")
            assert bodies(reader) == [*sent, b"last"]
            store["a"].append(b"one more")
            reader.refresh()
            assert bodies(reader) == [*sent, b"last", b"one more"]


def test_an_append_does_not_wait_longer_than_its_deadline_for_a_shard_that_is_held(
    memory_vfs: MemoryVfs,
) -> None:
    """A publishing job may hold a shard that has frames in the segment that is needed."""
    with open_store(memory_vfs, append_timeout_ms=20) as store:
        store["b"].append(b"of the shard that is held")
        held = shards_of(store["b"]).writable(0)
        with held._flush_lock:  # as a job does: nobody else writes
            sent = numbered(store, 100)
            assert bodies(store) == sent
        numbered(store, 300)  # the ring is tried again
        assert bodies(store, "b") == [b"of the shard that is held"]
        assert len(segments(memory_vfs)) == 4
    assert memory_vfs.exists("/s/b-0")
