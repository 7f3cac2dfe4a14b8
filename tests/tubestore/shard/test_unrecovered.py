"""A reader of a shard that a power cut has hit, before a writer has opened it.

The messages are in the files alone, as those of batches are: a ring journal would have them, too.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

import tubestore
from tubestore.clock import ManualClock
from tubestore.core.vfs import OsVfs, Vfs
from tubestore.record.records import ENTRY_SIZE
from tubestore.staging import StagedWriter
from tubestore.store.manager import engine_of
from tubestore.testing import MemoryVfs, crash_states

SEED = 11
ACKNOWLEDGED = [b"zero", *(b"message %d" % n for n in range(40))]
INDEX = f"/s/t-0/index/{0:020d}.index"
DATA = f"/s/t-0/{0:020d}.tube"


def opened(vfs: Vfs, mode: Any = "w", *, ring: bool = False, **settings: Any) -> Any:
    settings |= {"clock": ManualClock(), "background": False, "ring_journal": ring}
    return tubestore.open("/s", mode, vfs=vfs, **settings)


def bodies(store: Any) -> list[bytes | None]:
    topic = store["t"]
    rows = sorted((m.offset, m.body) for p in topic.partition_ids for m in topic.messages(p))
    return [body for _, body in rows]


def after_power_cuts(
    *, checkpoint: bool, ring: bool = False, variants: Iterable[int] = range(24)
) -> Iterator[MemoryVfs]:
    """Yield what power cuts leave of messages that were acknowledged at `fsync`."""
    vfs = MemoryVfs()
    store = opened(vfs, ring=ring)
    topic = store.create_topic("t", partitions=3)
    topic.append(ACKNOWLEDGED[0], partition=0, durability="fsync")
    if checkpoint:
        store.close()
        store = opened(vfs, ring=ring)
        topic = store["t"]
    else:
        store.sync()
        vfs.remove("/s/t-0/.tubestore/checkpoint.json")
    journal = vfs.record()
    for number, body in enumerate(ACKNOWLEDGED[1:]):
        topic.append(body, partition=1 + number % 2, durability="fsync")
        if number % 10 == 9:
            store.flush()
    end = len(journal.calls)
    engine_of(store).abandon("killed")
    for state in crash_states(
        journal, seed=SEED, variants=variants, kinds=["power"], steps=lambda step: step == end
    ):
        yield state.vfs()


@pytest.mark.gate
@pytest.mark.parametrize("checkpoint", [True, False])
def test_a_reader_shows_the_messages_before_the_first_lost_entry_and_reports_the_place(
    checkpoint: bool,
) -> None:
    print(f"seed {SEED}")
    seen = {True: 0, False: 0}
    for vfs in after_power_cuts(checkpoint=checkpoint):
        reader = opened(vfs, "r")
        shown = bodies(reader)
        assert shown == ACKNOWLEDGED[: len(shown)]
        whole = shown == ACKNOWLEDGED
        assert bool(reader.problems) is not whole
        seen[whole] += 1
        with opened(vfs):  # it recovers a shard at its first use
            reader.refresh()
            assert bodies(reader) == shown
        with opened(vfs) as writer:
            assert bodies(writer) == ACKNOWLEDGED
            reader.refresh()
            assert bodies(reader) == ACKNOWLEDGED
        reader.close()
    assert all(seen.values())


def lose(vfs: MemoryVfs, start: int, end: int) -> None:
    """Have zeros in place of bytes of the index, as after a power cut, and reboot."""
    file = vfs.open(INDEX)
    file.pwrite(bytes(end - start), start)
    file.close()
    vfs.reboot()


@pytest.fixture
def left() -> MemoryVfs:
    """A store whose writer was killed behind ten messages, the first of them with a checkpoint."""
    vfs = MemoryVfs()
    store = opened(vfs)
    topic = store.create_topic("t", partitions=3)
    topic.append(b"0", partition=1, durability="fsync")
    store.sync()
    for number in range(1, 10):
        topic.append(b"%d" % number, partition=1, durability="fsync")
    engine_of(store).abandon("killed")
    vfs.release_locks()
    return vfs


def test_a_group_gets_every_message_once_though_its_first_member_is_a_reader(
    left: MemoryVfs,
) -> None:
    lose(left, 3 * ENTRY_SIZE, 5 * ENTRY_SIZE)
    got = []
    with opened(left, "r") as reader, reader.consumer("g", "t") as consumer:
        got += [m.body for m in consumer.poll()]
        consumer.commit()
    assert got == [b"0", b"1", b"2"]
    with opened(left) as writer, writer.consumer("g", "t") as consumer:
        got += [m.body for m in consumer.poll()]
    assert got == [b"%d" % n for n in range(10)]


def test_a_reader_stops_at_an_entry_that_lost_its_partition_only(left: MemoryVfs) -> None:
    lose(left, 4 * ENTRY_SIZE, 4 * ENTRY_SIZE + 4)
    with opened(left, "r") as reader:
        assert [m.body for m in reader["t"].messages(1)] == [b"0", b"1", b"2", b"3"]
        assert [m.body for m in reader["t"].messages(0)] == []
        (problem,) = reader.problems
    assert (problem.path, problem.position) == (INDEX, 4 * ENTRY_SIZE)
    assert "once `tubestore recover` or a writer has mended it" in str(problem)


def test_a_record_without_an_entry_at_the_end_is_reported_by_a_reader(left: MemoryVfs) -> None:
    file = left.open(INDEX)
    file.truncate(7 * ENTRY_SIZE)
    file.close()
    left.reboot()
    with opened(left, "r") as reader:
        assert bodies(reader) == [b"%d" % n for n in range(7)]
        (problem,) = reader.problems
    assert problem.path == DATA


def test_a_record_without_an_entry_is_reported_behind_a_full_index_file() -> None:
    vfs = MemoryVfs()
    store = opened(vfs, index_segment_size_bytes=5 * ENTRY_SIZE)
    topic = store.create_topic("t")
    for number in range(6):
        topic.append(b"%d" % number, durability="fsync")
    engine_of(store).abandon("killed")
    vfs.open(f"/s/t-0/index/{5 * ENTRY_SIZE:020d}.index").truncate(0)
    vfs.release_locks()
    vfs.reboot()
    with opened(vfs, "r") as reader:
        assert bodies(reader) == [b"%d" % n for n in range(5)]
        (problem,) = reader.problems
    assert problem.path == DATA


def test_a_lost_record_in_sealed_files_ends_them_where_the_journal_has_the_message() -> None:
    vfs = MemoryVfs()
    store = opened(vfs, index_segment_size_bytes=5 * ENTRY_SIZE)
    names = ["t", *(f"other{n}" for n in range(8))]
    for name in names:
        store.create_topic(name)
    for number in range(7):
        rows = {"topic": names, "body": [b"%d" % number] * len(names)}
        store.append_batch(rows, durability="fsync")
        store["t"].flush()
    engine_of(store).abandon("killed")
    file = vfs.open(DATA)
    size_each = file.size() // 7
    file.pwrite(bytes(size_each), 2 * size_each)
    vfs.release_locks()
    vfs.reboot()
    with opened(vfs, "r") as reader:
        assert bodies(reader) == [b"%d" % n for n in range(7)]


def test_a_reader_shows_what_the_ring_has_of_messages_that_the_files_lost() -> None:
    vfs = MemoryVfs()
    store = opened(vfs, ring=True)
    topic = store.create_topic("t")
    for number in range(10):
        topic.append(b"%d" % number, durability="fsync")
    store.flush()
    engine_of(store).abandon("killed")
    vfs.release_locks()
    lose(vfs, 3 * ENTRY_SIZE, 5 * ENTRY_SIZE)
    with opened(vfs, "r") as reader:
        assert bodies(reader) == [b"%d" % n for n in range(10)]


def test_a_lost_record_in_sealed_files_ends_them_where_the_ring_has_the_message() -> None:
    vfs = MemoryVfs()
    store = opened(vfs, ring=True, index_segment_size_bytes=5 * ENTRY_SIZE)
    topic = store.create_topic("t")
    for number in range(7):
        topic.append(b"%d" % number, durability="fsync")
        store.flush()
    engine_of(store).abandon("killed")
    file = vfs.open(DATA)
    size = file.size() // 7
    file.pwrite(bytes(size), 2 * size)
    vfs.release_locks()
    vfs.reboot()
    with opened(vfs, "r") as reader:
        assert bodies(reader) == [b"%d" % n for n in range(7)]


@pytest.mark.gate
@pytest.mark.parametrize("ring", [True, False], ids=["ring", "files"])
def test_after_a_power_cut_and_an_opening_that_was_killed_a_reader_shows_all_or_reports(
    ring: bool,
) -> None:
    print(f"seed {SEED}")
    seen = {True: 0, False: 0}
    for vfs in after_power_cuts(checkpoint=False, ring=ring, variants=range(6)):
        opening = vfs.record()
        with contextlib.suppress(tubestore.TubeStoreError), opened(vfs, ring=ring) as writer:
            bodies(writer)
        for state in crash_states(opening, seed=SEED, kinds=["kill"]):
            with opened(state.vfs(), "r") as reader:
                shown = bodies(reader)
                assert shown == ACKNOWLEDGED[: len(shown)], state
                whole = shown == ACKNOWLEDGED
                assert whole or reader.problems, state
                seen[whole] += 1
    assert seen[True]
    assert ring or seen[False]


@pytest.mark.parametrize("rows", [10, 2000], ids=["behind", "in files of its own"])
def test_a_half_published_job_is_hidden_and_not_reported_as_lost_messages(rows: int) -> None:
    print(f"seed {SEED}")
    vfs = MemoryVfs()
    store = opened(vfs, segment_size_bytes=1 << 16)
    topic = store.create_topic("t", partitions=3)
    for body in ACKNOWLEDGED[:5]:
        topic.append(body, partition=1, durability="fsync")
    with StagedWriter("/s", "job", "0", vfs=vfs, clock=ManualClock(), token="t") as writer:
        writer.write({"topic": ["t"] * rows, "partition": [0] * rows, "body": [b"x" * 40] * rows})
        staged = writer.finish()
    journal = vfs.record()
    store.publish("job", staged)
    engine_of(store).abandon("killed")
    seen = {}
    for state in crash_states(journal, seed=SEED, variants=range(3), kinds=["power"]):
        with opened(state.vfs(), "r") as reader:
            seen[len(bodies(reader))] = str(state)
            assert reader.problems == [], str(state)
    assert seen.keys() == {5, 5 + rows}


def test_without_a_reboot_nothing_is_compared(left: MemoryVfs) -> None:
    file = left.open(INDEX)
    file.truncate(7 * ENTRY_SIZE)
    file.close()
    with opened(left, "r") as reader:
        assert bodies(reader) == [b"%d" % n for n in range(7)]
        assert reader.problems == []


@pytest.fixture
def unsynced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A store on a disk, killed before its shard had a checkpoint; the machine was restarted."""
    root = str(tmp_path / "s")
    store = tubestore.open(root, background=False, ring_journal=False)
    topic = store.create_topic("t")
    for number in range(10):
        topic.append(b"%d" % number)
    engine_of(store).abandon("killed")
    engine_of(store).context.directory.release()
    monkeypatch.setattr(OsVfs, "boot_id", lambda vfs: "the next boot")
    return root


def test_a_writer_that_opened_the_store_but_not_the_shard_has_not_recovered_it(
    unsynced: str,
) -> None:
    with open(f"{unsynced}/t-0/index/{0:020d}.index", "r+b") as index:
        index.seek(3 * ENTRY_SIZE)
        index.write(bytes(2 * ENTRY_SIZE))
    with tubestore.open(unsynced, background=False):
        pass  # it opens a shard at its first use
    with tubestore.open(unsynced, "r") as reader:
        assert [m.body for m in reader["t"].messages(0)] == [b"0", b"1", b"2"]
        (problem,) = reader.problems
        assert "do not agree from here on" in str(problem)
    with tubestore.open(unsynced, background=False) as writer:
        assert len(list(writer["t"].messages(0))) == 10
    with tubestore.open(unsynced, "r") as reader:
        assert [m.body for m in reader["t"].messages(0)] == [b"%d" % n for n in range(10)]
        assert reader.problems == []


def test_a_record_without_an_entry_is_no_finding_while_a_writer_may_be_at_it(
    unsynced: str,
) -> None:
    os.truncate(f"{unsynced}/t-0/index/{0:020d}.index", 7 * ENTRY_SIZE)
    with tubestore.open(unsynced, background=False), tubestore.open(unsynced, "r") as reader:
        assert [m.body for m in reader["t"].messages(0)] == [b"%d" % n for n in range(7)]
        assert reader.problems == []
    with tubestore.open(unsynced, "r") as reader:
        assert [m.body for m in reader["t"].messages(0)] == [b"%d" % n for n in range(7)]
        (problem,) = reader.problems
        assert "the index lacks the messages from here on" in str(problem)


def test_after_a_clean_end_and_a_reboot_nothing_is_reported(left: MemoryVfs) -> None:
    with opened(left) as writer:
        assert len(bodies(writer)) == 10
    left.reboot()
    with opened(left, "r") as reader:
        assert len(bodies(reader)) == 10
        assert reader.problems == []


def test_damage_below_the_checkpoint_is_not_what_a_power_cut_has_left(left: MemoryVfs) -> None:
    with opened(left) as writer:
        assert len(bodies(writer)) == 10
    lose(left, 3 * ENTRY_SIZE, 4 * ENTRY_SIZE)
    with opened(left, "r") as reader:
        assert len(bodies(reader)) == 10


def without_first_data(*, checkpoint: bool) -> MemoryVfs:
    """Return a store of six messages in data files of three, without the first one."""
    vfs = MemoryVfs()
    store = opened(vfs, segment_size_bytes=150)
    topic = store.create_topic("t")
    topic.append(b"0", durability="fsync")
    store.sync()
    for number in range(1, 6):
        topic.append(b"%d" % number, durability="fsync")
    engine_of(store).abandon("killed")
    vfs.remove(DATA)
    if not checkpoint:
        vfs.remove("/s/t-0/.tubestore/checkpoint.json")
    vfs.reboot()
    return vfs


@pytest.mark.parametrize("checkpoint", [True, False])
def test_entries_of_expired_data_do_not_end_what_a_reader_shows(checkpoint: bool) -> None:
    vfs = without_first_data(checkpoint=checkpoint)
    with opened(vfs, "r") as reader:
        assert bodies(reader) == [b"3", b"4", b"5"]
        assert not [p for p in reader.problems if "do not agree" in str(p)]


@pytest.mark.parametrize("checkpoint", [True, False])
def test_a_lost_entry_behind_those_of_expired_data_ends_what_a_reader_shows(
    checkpoint: bool,
) -> None:
    vfs = without_first_data(checkpoint=checkpoint)
    lose(vfs, 4 * ENTRY_SIZE, 5 * ENTRY_SIZE)
    with opened(vfs, "r") as reader:
        assert bodies(reader) == [b"3"]
        (problem,) = [p for p in reader.problems if "do not agree" in str(p)]
    assert (problem.path, problem.position) == (INDEX, 4 * ENTRY_SIZE)


def test_a_store_that_no_writer_of_this_package_has_opened_is_shown_as_it_is(
    left: MemoryVfs,
) -> None:
    lose(left, 3 * ENTRY_SIZE, 4 * ENTRY_SIZE)
    for path in list(left.tree()):
        if "/.tubestore/" in path:
            left.remove(path)
    with opened(left, "r") as reader:
        assert len(bodies(reader)) == 10
