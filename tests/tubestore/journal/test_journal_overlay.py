"""Readers in other processes see what the journal has of a shard, behind what its files have."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

import tubestore
from tests.support.engine.mixed import TOPICS, bodies, killed, mixed, open_store
from tubestore.journal.journal_overlay import JournalOverlay
from tubestore.store.manager import MessageStoreManager
from tubestore.testing import FaultyVfs, MemoryVfs


def reader_of(vfs: MemoryVfs) -> MessageStoreManager:
    return tubestore.open("/s", "r", vfs=vfs)


def numbers(store: MessageStoreManager, topic: str, partition: int = 0) -> list[int]:
    return [int(m.body) for m in store[topic].messages(partition)]


def test_a_batch_is_seen_at_once(memory_vfs: MemoryVfs) -> None:
    with open_store(memory_vfs) as store, reader_of(memory_vfs) as reader:
        assert bodies(reader) == []
        store.append_batch(mixed(0))
        assert not memory_vfs.exists(f"/s/{TOPICS[0]}-0")
        reader.refresh()
        assert bodies(reader) == list(range(24))
        page = reader[TOPICS[3]].read(1)
        assert page.table["body"].to_pylist() == [b"15"]
        assert store[TOPICS[3]].read(1).table.equals(page.table)


def test_a_batch_is_not_seen_before_a_refresh(memory_vfs: MemoryVfs) -> None:
    with open_store(memory_vfs) as store, reader_of(memory_vfs) as reader:
        store.append_batch(mixed(0))
        assert numbers(reader, TOPICS[0]) == [0]
        store.append_batch(mixed(24))
        assert numbers(reader, TOPICS[0]) == [0]
        reader.refresh()
        assert numbers(reader, TOPICS[0]) == [0, 24]


def test_what_a_kill_left_is_seen(memory_vfs: MemoryVfs) -> None:
    store = open_store(memory_vfs)
    store.append_batch(mixed(0))
    store[TOPICS[2]].flush()
    store.append_batch(mixed(24))
    killed(store, memory_vfs)
    with reader_of(memory_vfs) as reader:
        assert bodies(reader) == list(range(48))


def test_followers_see_what_the_journal_has(memory_vfs: MemoryVfs) -> None:
    with open_store(memory_vfs) as store, reader_of(memory_vfs) as reader:
        store.append_batch(mixed(0))
        follower = reader[TOPICS[0]].follow(0, "earliest", idle_timeout=5)
        assert next(follower).body == b"0"
        store.append_batch(mixed(24))
        assert next(follower).body == b"24"


@pytest.mark.gate
@pytest.mark.parametrize("turn", range(4))
def test_whatever_the_writer_does_a_reader_sees_what_was_acknowledged_and_never_less(
    memory_vfs: MemoryVfs, turn: int
) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    store = open_store(memory_vfs, journal_size_bytes=chance.choice((2000, 20_000, 1 << 20)))
    count = 0
    with reader_of(memory_vfs) as reader:
        for _ in range(60):
            what = chance.random()
            if what < 0.5:
                store.append_batch(mixed(count))
                count += 24
            elif what < 0.6:
                store[TOPICS[0]].append(b"%d" % count, partition=0)
                count += 1
            elif what < 0.8:
                store[chance.choice(TOPICS)].flush()
            elif what < 0.9:
                store.flush()
            else:
                killed(store, memory_vfs)
                store = open_store(memory_vfs)
            reader.refresh()
            assert bodies(reader) == list(range(count))
    store.close()


@pytest.mark.one_in(4)
@pytest.mark.parametrize("call", range(1, 40))
def test_a_writer_that_stops_anywhere_takes_nothing_back_from_a_reader(
    memory_vfs: MemoryVfs, call: int
) -> None:
    """Whatever part of a flush was done: data without entries, some shards and not others."""
    faulty = FaultyVfs(memory_vfs)
    store = open_store(faulty)
    store.append_batch(mixed(0))
    store.flush()
    store.append_batch(mixed(24))
    with reader_of(memory_vfs) as reader:
        faulty.fail("pwrite", nth=call, written=7, forever=True)
        faulty.fail("truncate", forever=True)  # what was written of it stays
        for name in TOPICS:
            try:
                store[name].flush()
            except tubestore.TubeStoreError:
                break
        reader.refresh()
        assert bodies(reader) == list(range(48))
    killed(store, memory_vfs)


def test_what_somebody_else_has_written_is_not_gone_on_with(memory_vfs: MemoryVfs) -> None:
    other = MemoryVfs()
    with open_store(other) as foreign:
        foreign[TOPICS[0]].append(b"900", partition=0)
    store = open_store(memory_vfs)
    store.append_batch(mixed(0, rows=36))
    killed(store, memory_vfs)
    home = f"/s/{TOPICS[0]}-0"
    memory_vfs.make_directories(f"{home}/index")
    for name in (f"{home}/{0:020d}.tube", f"{home}/index/{0:020d}.index"):
        memory_vfs.open(name, create=True).pwrite(other.read_file(name), 0)
    with reader_of(memory_vfs) as reader:
        assert numbers(reader, TOPICS[0]) == [900]
        assert numbers(reader, TOPICS[1]) == [1, 25]


def test_a_topic_that_was_made_anew_does_not_show_what_the_old_one_had(
    memory_vfs: MemoryVfs,
) -> None:
    with open_store(memory_vfs) as store, reader_of(memory_vfs) as reader:
        store.append_batch(mixed(0))
        assert numbers(reader, TOPICS[0]) == [0]
        store.delete_topic(TOPICS[0])
        store.create_topic(TOPICS[0], partitions=2)
        reader.refresh()
        assert numbers(reader, TOPICS[0]) == []


def test_offsets_are_those_of_the_writer(memory_vfs: MemoryVfs) -> None:
    with open_store(memory_vfs) as store, reader_of(memory_vfs) as reader:
        acks = [store.append_batch(mixed(first)) for first in (0, 24, 48)]
        with reader[TOPICS[5]].scan(columns=["offset"]) as scanned:
            shown = scanned.read_all()["offset"]
        given = pa.chunked_array([ack.offsets for ack in acks]).to_numpy()
        assert shown.to_pylist() == [int(given[24 * n + k]) for n in range(3) for k in (5, 17)]


def test_of_the_ring_a_reader_keeps_the_messages_of_the_shards_that_it_was_asked_for(
    memory_vfs: MemoryVfs,
) -> None:
    """From the fifth shard on of all; each shows all of its messages whenever it is asked for."""
    names = [f"t{n}" for n in range(7)]
    shards = [f"{name}-0" for name in names]
    with tubestore.open("/s", vfs=memory_vfs, background=False) as store:
        for name in names:
            store.create_topic(name).append(b"1")
        overlay = JournalOverlay(memory_vfs, "/s")
        for asked, shard in enumerate(shards, 1):
            assert sum(len(part.entries) for part in overlay.of(shard)) == asked
            for name in names:
                store[name].append(b"2")
            overlay.refresh()
            assert sum(len(part.entries) for part in overlay.of(shard)) == asked + 1
            kept = [s for s in shards if s in overlay._parts]
            assert kept == (shards[:asked] if asked < 5 else shards)
        assert overlay.shards() == shards


def test_a_reader_that_looks_for_damage_keeps_no_message_of_the_ring(memory_vfs: MemoryVfs) -> None:
    with tubestore.open("/s", vfs=memory_vfs, background=False) as store:
        store.create_topic("t").append(b"1")
        overlay = JournalOverlay(memory_vfs, "/s")
        overlay.look_for_damage()
        assert not overlay._parts
        assert len(overlay.of("t-0")) == 1
        assert JournalOverlay(memory_vfs, "/s").shards() == ["t-0"]


def test_a_reader_that_cannot_read_the_journal_reports_it_and_tries_again(
    memory_vfs: MemoryVfs,
) -> None:
    store = open_store(memory_vfs)
    store.create_topic("t").append(b"in the ring", partition=0)
    killed(store, memory_vfs)
    vfs = FaultyVfs(memory_vfs)
    with tubestore.open("/s", "r", vfs=vfs) as reader:
        topic = reader.topic("t")
        vfs.fail("read_file", path="store.json")
        assert not topic.read(0)
        (problem,) = reader.problems
        assert "the journal cannot be read: [Errno 5]" in str(problem)
        reader.refresh()
        assert [message.body for message in topic.read(0)] == [b"in the ring"]
