"""A ring that was left behind: which frames count, and which places are damaged."""

from __future__ import annotations

import itertools
from collections.abc import Collection
from random import Random
from typing import Any

import pytest

import tubestore
from tests.tubestore.journal.test_ring import (
    RING,
    SEGMENT,
    killed,
    numbered,
    open_store,
    segments,
)
from tubestore.core.vfs import Vfs
from tubestore.journal import ring_reading
from tubestore.journal.lacking import stray_ring
from tubestore.journal.ring_frames import HEAD_SIZE, START_SIZE
from tubestore.journal.ring_reading import LeftRing, read_on, read_ring
from tubestore.journal.root_journal import JournalPart, joined_parts
from tubestore.journal.topic_names import TopicNames
from tubestore.offline.check import check
from tubestore.record.records import ENTRY_SIZE, HEADER_SIZE
from tubestore.segments.inspection import Reason
from tubestore.store.manager import MessageStoreManager
from tubestore.testing import FaultyVfs, MemoryVfs
from tubestore.testing.power_cut import power_cut

#: So many frames of `numbered` are in a segment.
FRAMES = 6


def left_in(vfs: MemoryVfs) -> LeftRing:
    return in_one(read_ring(vfs, "/s"))


def in_one(left: LeftRing | None) -> LeftRing:
    """Return a ring with messages of a shard that follow each other in one part."""
    assert left is not None
    groups: list[list[JournalPart]] = []
    for part in left.parts:
        last = groups[-1][-1] if groups else None
        follows = (
            last is not None
            and not (part.lost or last.lost)
            and (part.shard, part.damaged_before) == (last.shard, last.damaged_before)
            and part.index_start == last.index_start + ENTRY_SIZE * len(last.entries)
            and part.data_start == last.data_start + len(last.data)
        )
        if not follows:
            groups.append([])
        groups[-1].append(part)
    return left._replace(parts=list(map(joined_parts, groups)))


def places(left: LeftRing) -> list[tuple[int, int]]:
    """Return the index offsets that the parts cover: (from, to)."""
    return [(p.index_start, p.index_start + 28 * len(p.entries)) for p in left.parts]


def overwrite(vfs: MemoryVfs, path: str, position: int, data: bytes) -> None:
    vfs.open(path).pwrite(data, position)


@pytest.fixture
def vfs(memory_vfs: MemoryVfs) -> MemoryVfs:
    """Return a file system with a killed store, its ring in three segments."""
    store = open_store(memory_vfs)
    numbered(store, 2 * FRAMES + 3)
    killed(store, memory_vfs)
    assert len(segments(memory_vfs)) == 3
    return memory_vfs


def test_messages_of_a_shard_follow_each_other_over_its_segments(vfs: MemoryVfs) -> None:
    left = left_in(vfs)
    assert places(left) == [(0, 28 * (2 * FRAMES + 3))]
    assert left.parts[0].shard == "a-0"
    assert left.damages == []


def test_frames_of_the_lap_before_do_not_count(memory_vfs: MemoryVfs) -> None:
    """Frames of one size lie exactly behind the last one of the new lap."""
    store = open_store(memory_vfs)
    for count in itertools.count():
        store["a"].append(b"%08d" % count)
        left = left_in(memory_vfs)
        assert left.damages == []
        first, end = left.parts[0].index_start, left.parts[-1].index_start
        end += 28 * len(left.parts[-1].entries)
        assert end == 28 * (count + 1), count
        assert places(left) == [(first, end)], count
        if first > 28 * 4 * FRAMES:
            break
    killed(store, memory_vfs)


def test_a_segment_below_the_tail_is_not_read(memory_vfs: MemoryVfs) -> None:
    store = open_store(memory_vfs)
    numbered(store, 5 * FRAMES)
    left = left_in(memory_vfs)
    assert left.tail > 0
    assert left.parts[0].index_start > 0
    killed(store, memory_vfs)


def test_a_torn_last_frame_is_the_end_and_no_damage(vfs: MemoryVfs) -> None:
    whole = left_in(vfs)
    last = whole.end % SEGMENT
    overwrite(vfs, segments(vfs)[2], last - 3, bytes(3))
    left = left_in(vfs)
    assert left.damages == []
    assert places(left) == [(0, 28 * (2 * FRAMES + 2))]


def test_a_bad_frame_with_a_sound_one_behind_it_is_damage(vfs: MemoryVfs) -> None:
    overwrite(vfs, segments(vfs)[2], START_SIZE + 12, b"\xff\xff")
    left = left_in(vfs)
    assert [(d.path, d.position) for d in left.damages] == [(segments(vfs)[2], START_SIZE)]
    assert left.parts[-1].damaged_before > 0


def test_a_damaged_payload_keeps_its_place(vfs: MemoryVfs) -> None:
    overwrite(vfs, segments(vfs)[0], START_SIZE + HEAD_SIZE + HEADER_SIZE + 2, b"\xff")
    left = left_in(vfs)
    assert [part.lost for part in left.parts] == [True, False]
    assert places(left)[0] == (0, 28)
    assert len(left.damages) == 1


def test_a_bad_end_of_a_segment_with_another_one_behind_it_is_damage(vfs: MemoryVfs) -> None:
    data = vfs.read_file(segments(vfs)[0])
    end = len(data.rstrip(b"\0"))
    overwrite(vfs, segments(vfs)[0], end - 20, b"\xff\xff")
    assert [d.path for d in left_in(vfs).damages] == [segments(vfs)[0]]


def test_a_missing_segment_is_damage(vfs: MemoryVfs) -> None:
    vfs.remove(segments(vfs)[1])
    left = left_in(vfs)
    assert "missing" in left.damages[0].reason
    assert places(left) == [(0, 28 * FRAMES), (28 * 2 * FRAMES, 28 * (2 * FRAMES + 3))]


@pytest.mark.parametrize("mapped", [True, False])
@pytest.mark.parametrize("boot", ["same", "other"])
@pytest.mark.parametrize("size", [0, 50, 300, 530])
@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_segment_that_was_cut_is_damage_and_its_sound_frames_count(
    memory_vfs: MemoryVfs, number: int, size: int, boot: str, mapped: bool
) -> None:
    memory_vfs.maps = mapped
    with open_store(memory_vfs) as store:
        sent = numbered(store, 2 * FRAMES + 3, durability="fsync")
        killed(store, memory_vfs)
    path = segments(memory_vfs)[number]
    memory_vfs.open(path).truncate(size)
    if boot == "other":
        memory_vfs.reboot()
    left = left_in(memory_vfs)
    assert (path, size) in {(damage.path, damage.position) for damage in left.damages}
    fitting = max(0, (size - START_SIZE) // ((SEGMENT - START_SIZE - HEAD_SIZE) // FRAMES))
    with tubestore.open("/s", "r", vfs=memory_vfs, background=False) as reader:
        assert [p for p in reader.problems if f"{size} of its {SEGMENT} bytes" in str(p)]
        assert [m.body for m in reader["a"].messages(0)][: number * FRAMES] == sent[
            : number * FRAMES
        ]
    assert {f.reason for f in check("/s", vfs=memory_vfs)} >= {Reason.JOURNAL_DAMAGED}
    with open_store(memory_vfs) as store:
        shown = [m.body for m in store["a"].messages(0) if m.state == "ok"]
        kept = number * FRAMES + fitting
        assert shown[:kept] == sent[:kept]
        assert set(shown) <= set(sent)
        assert [p for p in store.problems if f"{size} of its {SEGMENT} bytes" in str(p)]
    assert [p for p in memory_vfs.tree() if "quarantine" in p and p.endswith(f"ring-{number}")]


@pytest.mark.parametrize("size", [0, 100])
def test_the_only_segment_that_was_cut_within_its_first_frame_is_damage(
    memory_vfs: MemoryVfs, size: int
) -> None:
    store = open_store(memory_vfs)
    numbered(store, 3)
    killed(store, memory_vfs)
    (path,) = segments(memory_vfs)
    memory_vfs.open(path).truncate(size)
    assert [(d.path, d.position) for d in left_in(memory_vfs).damages] == [(path, size)]
    with open_store(memory_vfs) as store:
        assert len(store.problems) == 1


def test_a_reader_that_goes_on_ends_at_a_cut(vfs: MemoryVfs) -> None:
    whole = left_in(vfs)
    vfs.open(segments(vfs)[2]).truncate(START_SIZE + 200)
    left = read_ring(vfs, "/s", whole.tail + 2 * SEGMENT + START_SIZE)
    assert left is not None
    assert len(left.damages) == 1
    assert len(left.parts[0].entries) == 1


def test_messages_that_were_cut_off_keep_their_places_before_the_next_segment(
    vfs: MemoryVfs,
) -> None:
    vfs.open(segments(vfs)[1]).truncate(START_SIZE + 50)
    with open_store(vfs) as store:
        rows = list(store["a"].messages(0))
        assert [row.offset for row in rows] == [28 * n for n in range(2 * FRAMES + 3)]
        states = ["ok"] * FRAMES + ["bad_record"] * FRAMES + ["ok"] * 3
        assert [row.state for row in rows] == states


def test_a_segment_that_was_just_made_is_no_damage(vfs: MemoryVfs) -> None:
    vfs.open(f"{RING}3", create=True).truncate(SEGMENT)
    whole = left_in(vfs)
    assert (len(whole.parts), whole.damages) == (1, [])


@pytest.mark.parametrize("boot", ["same", "other"])
def test_a_ring_without_a_segment_has_lost_them(vfs: MemoryVfs, boot: str) -> None:
    for path in segments(vfs):
        vfs.remove(path)
    if boot == "other":
        vfs.reboot()
    (damage,) = left_in(vfs).damages
    assert (damage.path, damage.position) == (f"{RING}0", 0)
    assert "what only it held is lost" in damage.reason
    assert {f.reason for f in check("/s", vfs=vfs)} == {Reason.JOURNAL_DAMAGED}
    for mode in ("r", "w"):
        with tubestore.open("/s", mode, vfs=vfs, background=False) as store:
            assert [str(p) for p in store.problems if damage.reason in str(p)]
    with open_store(vfs) as store:
        assert store.problems == []


def test_segments_of_another_store_are_damage(vfs: MemoryVfs) -> None:
    other = MemoryVfs()
    store = open_store(other)
    numbered(store, 3)
    killed(store, other)
    for path in segments(vfs)[1:]:
        vfs.remove(path)
    vfs.remove(f"{RING}0")
    vfs.open(f"{RING}0", create=True).pwrite(other.read_file(f"{RING}0"), 0)
    (damage,) = left_in(vfs).damages
    assert (damage.path, damage.position) == (f"{RING}0", 0)
    assert "another store" in damage.reason
    with open_store(vfs) as store:
        assert len(store.problems) == 1
        assert store["a"].count(0) == 0
    assert [p for p in vfs.tree() if "quarantine" in p and p.endswith("ring-0")]


def test_the_first_segment_is_there_before_it_is_announced_and_until_it_no_longer_is(
    memory_vfs: MemoryVfs,
) -> None:
    memory_vfs.record()
    with open_store(memory_vfs) as store:
        numbered(store, 30, durability="fsync")
    assert memory_vfs.journal is not None
    disk, announced = memory_vfs.journal.start.fork(), 0
    for step, call in enumerate(memory_vfs.journal.calls):
        disk.apply(call)
        cuts = [power_cut(disk, Random(step), variant, "another boot") for variant in range(4)]
        for left in [read_ring(MemoryVfs(None, d), "/s") for d in (disk.fork(), *cuts)]:
            announced += left is not None
            assert left is None or left.damages == [], (step, call)
    assert announced


def test_a_damaged_first_frame_of_a_segment_loses_nothing(vfs: MemoryVfs) -> None:
    for path in segments(vfs):
        overwrite(vfs, path, 10, b"\xff\xff\xff")
    left = left_in(vfs)
    assert left.damages == []
    assert places(left) == [(0, 28 * (2 * FRAMES + 3))]


@pytest.mark.parametrize("number", range(4))
def test_a_damaged_first_frame_loses_nothing_after_another_opening_either(
    vfs: MemoryVfs, number: int
) -> None:
    with open_store(vfs) as store:
        store["b"].append(b"by the next opening")
        killed(store, vfs)
    overwrite(vfs, segments(vfs)[number], 10, b"\xff\xff\xff")
    left = left_in(vfs)
    assert left.damages == []
    assert places(left) == [(0, 28 * (2 * FRAMES + 3)), (0, 28)]


def test_after_a_reboot_what_was_not_synced_ends_at_its_first_bad_frame(vfs: MemoryVfs) -> None:
    overwrite(vfs, segments(vfs)[1], START_SIZE + 12, b"\xff\xff")
    vfs.reboot()
    left = left_in(vfs)
    assert left.damages == []
    assert places(left) == [(0, 28 * FRAMES)]


def test_after_a_reboot_a_bad_frame_below_what_was_synced_is_damage(
    memory_vfs: MemoryVfs,
) -> None:
    store = open_store(memory_vfs)
    numbered(store, 8, durability="fsync")
    killed(store, memory_vfs)
    overwrite(memory_vfs, segments(memory_vfs)[0], START_SIZE + 12, b"\xff\xff")
    memory_vfs.reboot()
    assert len(left_in(memory_vfs).damages) == 1


def test_segments_without_their_announcement_do_not_count(vfs: MemoryVfs) -> None:
    """A crash between the withdrawal and the last removal leaves some of them."""
    open_store(vfs).close()
    assert segments(vfs) == []
    vfs.open("/s/.tubestore/ring-2", create=True).pwrite(b"x" * 1024, 0)
    assert read_ring(vfs, "/s") is None
    with open_store(vfs) as store:
        numbered(store, 30)
        assert store.problems == []


@pytest.mark.parametrize("stays", [True, False])
def test_a_file_that_was_to_become_a_segment_goes(memory_vfs: MemoryVfs, stays: bool) -> None:
    """A kill while it was made leaves it."""
    path = "/s/.tubestore/ring.tmp"
    open_store(memory_vfs).close()
    memory_vfs.open(path, create=True).truncate(5)
    with open_store(memory_vfs) as store:
        assert not memory_vfs.exists(path)
        numbered(store, 3)
        if stays:
            memory_vfs.open(path, create=True).truncate(5)  # of a call that could not remove it
            numbered(store, 2 * FRAMES)
            assert len(segments(memory_vfs)) > 1
            assert not memory_vfs.exists(path)


def test_a_segment_that_cannot_be_made_leaves_no_file(memory_vfs: MemoryVfs) -> None:
    faulty = FaultyVfs(memory_vfs)
    with open_store(faulty) as store:
        faulty.fail("sync", path="ring.tmp")
        numbered(store, 3)
        assert [path for path in memory_vfs.tree() if "/ring" in path] == []


def test_a_ring_that_goes_while_it_is_read_is_not_missed(
    vfs: MemoryVfs, monkeypatch: pytest.MonkeyPatch
) -> None:
    announced_store, calls = ring_reading.announced_store, []

    def and_then_none(vfs_: Vfs, root: str) -> bytes | None:
        found = announced_store(vfs_, root)
        calls.append(found)
        if len(calls) == 1:
            open_store(vfs).close()
        return found

    monkeypatch.setattr(ring_reading, "announced_store", and_then_none)
    assert read_ring(vfs, "/s") is None
    assert calls[-1] is None


def test_segments_that_are_announced_while_they_are_looked_at_are_not_missed(
    memory_vfs: MemoryVfs, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_store(memory_vfs) as store:
        numbered(store, 3)
        announced_store, calls = ring_reading.announced_store, []

        def none_at_first(vfs: Vfs, root: str) -> bytes | None:
            calls.append(root)
            return announced_store(vfs, root) if len(calls) > 1 else None

        monkeypatch.setattr(ring_reading, "announced_store", none_at_first)
        assert stray_ring(memory_vfs, "/s") is None
        assert len(calls) == 2


# -- some shards alone -------------------------------------------------------------------------


def in_turn(store: MessageStoreManager, first: int, end: int) -> None:
    """Append numbers, in turn to the topics "a" and "b"."""
    for number in range(first, end):
        store["ab"[number % 2]].append(b"%d" % number)


def shown_of(left: LeftRing | None) -> dict[str, int]:
    return {part.shard: len(part.entries) for part in in_one(left).parts}


def test_of_chosen_shards_alone_the_messages_are_returned(memory_vfs: MemoryVfs) -> None:
    with open_store(memory_vfs) as store:
        in_turn(store, 0, 6)
        first = left_in(memory_vfs)
        assert shown_of(first) == {"a-0": 3, "b-0": 3}
        in_turn(store, 6, 10)
        for since, count in ((0, 5), (first.end, 2)):
            of_all = read_ring(memory_vfs, "/s", since)
            chosen = read_ring(memory_vfs, "/s", since, chosen={"b-0", "none-7"})
            assert shown_of(chosen) == {"b-0": count}
            assert chosen is not None
            assert of_all is not None
            assert chosen.end == of_all.end
            assert chosen.synced == of_all.synced


def damaged_record_of_a(vfs: MemoryVfs) -> int:
    """Have three frames of one opening, the second of topic "a" with a damaged record.

    Returns the position behind the first frame.
    """
    store = open_store(vfs)
    store["b"].append(b"first")
    end = left_in(vfs).end
    store["a"].append(b"second")
    store["b"].append(b"third")
    killed(store, vfs)
    data = vfs.read_file(segments(vfs)[0])
    overwrite(vfs, segments(vfs)[0], data.index(b"second"), b"X")
    return end


def test_the_records_of_other_shards_are_verified_when_the_ring_is_read_from_its_beginning(
    memory_vfs: MemoryVfs,
) -> None:
    end = damaged_record_of_a(memory_vfs)
    from_the_beginning = read_ring(memory_vfs, "/s", chosen={"b-0"})
    going_on = read_ring(memory_vfs, "/s", end, chosen={"b-0"})
    assert from_the_beginning is not None
    assert going_on is not None
    assert (len(from_the_beginning.damages), going_on.damages) == (1, [])
    assert shown_of(from_the_beginning) == {"b-0": 2}
    assert shown_of(going_on) == {"b-0": 1}


def test_after_a_power_cut_a_damaged_record_of_another_shard_is_the_end_of_what_counts(
    memory_vfs: MemoryVfs,
) -> None:
    """What a reader shows has to be what the next opening keeps."""
    end = damaged_record_of_a(memory_vfs)
    memory_vfs.reboot()
    assert shown_of(read_ring(memory_vfs, "/s", chosen={"b-0"})) == {"b-0": 1}
    assert shown_of(read_ring(memory_vfs, "/s", end, chosen={"b-0"})) == {}


def test_a_topic_that_is_made_while_the_ring_is_read_is_not_missed_if_its_shard_is_chosen(
    memory_vfs: MemoryVfs, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_store(memory_vfs) as store:
        in_turn(store, 0, 4)
        ids_of = TopicNames.ids_of

        def and_then_a_new_topic(
            names: TopicNames, shards: Collection[str]
        ) -> set[tuple[int, int]]:
            found = ids_of(names, shards)
            if "c" not in store:
                store.create_topic("c").append(b"of a new topic")
            return found

        monkeypatch.setattr(TopicNames, "ids_of", and_then_a_new_topic)
        assert shown_of(read_ring(memory_vfs, "/s", chosen={"c-0"})) == {"c-0": 1}


def content_of(left: LeftRing | None) -> Any:
    """Return all that a reading says, to be compared."""
    left = in_one(left)
    parts = [
        part._replace(entries=part.entries.tobytes(), data=bytes(part.data)) for part in left.parts
    ]
    return left._replace(parts=parts, damages=list(map(str, left.damages)))


@pytest.mark.parametrize("turn", range(4))
def test_a_reader_that_goes_on_in_the_last_segment_reads_what_the_whole_ring_has(
    memory_vfs: MemoryVfs, turn: int
) -> None:
    """Or it says that it cannot tell, whatever happened to the ring meanwhile."""
    seed = Random().randrange(1 << 32)
    print(f"seed {seed}")
    chance = Random(seed)
    store = open_store(memory_vfs)
    names = TopicNames(memory_vfs, "/s")
    chosen = chance.choice([None, {"a-0"}, {"a-0", "b-0"}])
    known, went_on = None, 0
    for number in range(150):
        what = chance.random()
        if what < 0.8:
            store[chance.choice("ab")].append(b"%d" % number)
        elif what < 0.85:
            store.delete_topic("a")
            store.create_topic("a").append(b"of another topic")
        elif what < 0.9:
            store.sync()
        elif what < 0.95:
            killed(store, memory_vfs)
            store = open_store(memory_vfs)
        else:
            store.close()
            store = open_store(memory_vfs)
        following = None
        if known is not None:
            following = read_on(memory_vfs, "/s", known, names, chosen)
        if following is not None and known is not None:
            whole = read_ring(memory_vfs, "/s", known.end, names=names, chosen=chosen)
            assert whole is not None
            whole = whole._replace(is_whole=known.is_whole)  # as of all that was read before
            assert content_of(following) == content_of(whole)
            went_on += 1
            known = following
        elif chance.random() < 0.7:
            known = read_ring(memory_vfs, "/s", names=names, chosen=chosen)
    assert went_on
    killed(store, memory_vfs)
