"""A journal that was damaged: what was acknowledged keeps its offset, or is reported as lost."""

from __future__ import annotations

import random
from typing import Any

import pytest

import tubestore
from tests.support.engine.mixed import JOURNAL, killed, open_store
from tests.support.tube import quarantined
from tubestore.errors import CorruptRecord
from tubestore.offline.check import check
from tubestore.store.manager import MessageStoreManager
from tubestore.testing import FaultyVfs, MemoryVfs

TOPICS = [f"t{number:02d}" for number in range(8)]
QUARANTINE = "/s/.tubestore/quarantine"
Place = tuple[str, int, int]


def batch(store: MessageStoreManager, number: int, *, topics: int = 8) -> dict[Place, bytes]:
    """Append a message to each of some topics; returns what was acknowledged, by place."""
    names = TOPICS[:topics]
    bodies = [b"%d of %s" % (number, name.encode()) for name in names]
    rows = {"topic": names, "partition": [0] * topics, "body": bodies}
    acks = store.append_batch(rows, durability="fsync")
    places = zip(names, acks, bodies, strict=True)
    return {(name, ack.partition, ack.offset): body for name, ack, body in places}


def left_by_a_kill(vfs: MemoryVfs) -> dict[Place, bytes]:
    """Leave four batches in the journal, one of them partly in the shards as well."""
    store = open_store(vfs, journal_shards_min=4)
    given = batch(store, 0) | batch(store, 1)
    for name in TOPICS[:2]:
        store[name].flush()
    # The last ones of some topics: nothing of these shards is behind them in the journal.
    given |= batch(store, 2, topics=6) | batch(store, 3, topics=5)
    killed(store, vfs)
    return given


def found(store: MessageStoreManager) -> dict[Place, bytes | None]:
    """Return what is at each place that has a message; None where it is damaged."""
    rows: dict[Place, bytes | None] = {}
    for name in TOPICS:
        with store[name].scan(columns=["partition", "offset", "body", "state"]) as reader:
            for row in reader.read_all().to_pylist():
                body = row["body"] if row["state"] == "ok" else None
                rows[name, row["partition"], row["offset"]] = body
    return rows


def assert_kept(store: MessageStoreManager, given: dict[Place, bytes]) -> int:
    """Check what was acknowledged; returns how many messages are lost, which must be reported."""
    rows = found(store)
    assert rows.keys() == given.keys()
    lost = [place for place, body in rows.items() if body is None]
    assert all(rows[place] == given[place] for place in rows if place not in lost)
    assert store.problems or not lost
    return len(lost)


def damaged(vfs: MemoryVfs, at: int, bit: int) -> bytes:
    """Flip a bit of the journal; returns the file as it is then."""
    file = vfs.open(JOURNAL)
    file.pwrite(bytes([file.pread(1, at)[0] ^ 1 << bit]), at)
    return vfs.read_file(JOURNAL)


def spots(whole: bytes) -> list[int]:
    """Choose bytes of a journal: some of each frame's header, the others anywhere."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    headers = [at + place for at in range(len(whole)) if whole[at : at + 4] == b"tJf1"
               for place in chance.sample(range(40), 3)]  # fmt: skip
    return [*headers, *chance.choices(range(len(whole)), k=40)]


@pytest.mark.gate
def test_whichever_bit_was_flipped_nothing_acknowledged_moves_or_goes_unreported() -> None:
    first = MemoryVfs()
    left_by_a_kill(first)
    for at in spots(first.read_file(JOURNAL)):
        vfs = MemoryVfs()
        given = left_by_a_kill(vfs)
        kept = damaged(vfs, at, at % 8)
        with open_store(vfs) as store:
            lost = assert_kept(store, given)
            if lost:
                assert any(JOURNAL in str(problem) for problem in store.problems)
                assert quarantined(vfs) == {".tubestore/journal": kept}
            given |= batch(store, 4)  # and no offset is given out again
            rows = found(store)
        assert rows.keys() == given.keys()
        with open_store(vfs) as store:
            assert found(store) == rows
            assert assert_kept(store, given) == lost


@pytest.fixture
def hurt(memory_vfs: MemoryVfs) -> dict[Place, bytes]:
    """Leave a journal whose third frame is damaged, in its last record."""
    given = left_by_a_kill(memory_vfs)
    whole = memory_vfs.read_file(JOURNAL)
    damaged(memory_vfs, whole.index(b"2 of t05"), 3)
    return given


def test_check_and_readers_report_a_damaged_journal_and_change_nothing(
    memory_vfs: MemoryVfs, hurt: dict[Place, bytes]
) -> None:
    before = memory_vfs.tree()
    findings = {f.reason: f for f in check("/s", vfs=memory_vfs, wait=lambda _: None)}
    assert findings["journal_damaged"].severity == "error"
    assert findings["journal_damaged"].path == JOURNAL
    with tubestore.open("/s", "r", vfs=memory_vfs) as reader:
        assert len(reader.problems) == 1
        rows = found(reader)
        assert rows.items() <= hurt.items()
        reader.refresh()
        (problem,) = reader.problems
    assert isinstance(problem, CorruptRecord)
    assert (problem.path, problem.position) == (JOURNAL, findings["journal_damaged"].position)
    assert "is not shown until the store has been opened for writing" in str(problem)
    assert memory_vfs.tree() == before


def assert_unreadable(vfs: MemoryVfs, content: bytes) -> None:
    """Check that a journal is one finding, one problem, and then in quarantine."""
    (finding,) = check("/s", vfs=vfs, wait=lambda _: None)
    assert (finding.path, finding.position, finding.reason) == (JOURNAL, 0, "journal_damaged")
    with open_store(vfs) as store:
        (problem,) = store.problems
    assert f"{len(content)} bytes held is not known" in str(problem)
    assert quarantined(vfs) == {".tubestore/journal": content}
    assert list(check("/s", vfs=vfs, wait=lambda _: None)) == []


@pytest.mark.parametrize("content", [b"\xff" * 100, b"x" * 5000])
def test_a_journal_of_which_no_frame_can_be_read_is_a_finding_and_kept_in_quarantine(
    memory_vfs: MemoryVfs, content: bytes
) -> None:
    open_store(memory_vfs).close()
    memory_vfs.open(JOURNAL, create=True).pwrite(content, 0)
    assert_unreadable(memory_vfs, content)


@pytest.mark.parametrize("boot", ["same", "other"])
def test_frames_that_are_all_damaged_are_a_finding_on_the_boot_in_which_they_were_written(
    memory_vfs: MemoryVfs, boot: str
) -> None:
    store = open_store(memory_vfs, journal_shards_min=4)
    batch(store, 0)
    killed(store, memory_vfs)
    whole = memory_vfs.read_file(JOURNAL)
    content = whole[:4] + whole[4:].replace(b"tJf1", b"tJf2")
    content = content[:40] + bytes(8) + content[48:]
    memory_vfs.open(JOURNAL).pwrite(content, 0)
    if boot == "same":
        assert_unreadable(memory_vfs, content)
    else:
        memory_vfs.reboot()
        assert list(check("/s", vfs=memory_vfs, wait=lambda _: None)) == []


@pytest.mark.parametrize("size", [0, 20, 60, None])
def test_a_journal_that_has_held_no_message_is_none(
    memory_vfs: MemoryVfs, size: int | None
) -> None:
    left_by_a_kill(memory_vfs)
    begun = memory_vfs.read_file(JOURNAL)
    vfs = MemoryVfs()
    open_store(vfs).close()
    content = bytes(5000) if size is None else begun[:size]
    vfs.open(JOURNAL, create=True).pwrite(content, 0)
    assert list(check("/s", vfs=vfs, wait=lambda _: None)) == []
    with open_store(vfs) as store:
        assert store.problems == []
    assert not vfs.exists(QUARANTINE)


def test_lost_messages_at_the_end_of_a_shard_keep_their_places_without_a_checkpoint(
    memory_vfs: MemoryVfs, hurt: dict[Place, bytes]
) -> None:
    with open_store(memory_vfs) as store:
        assert assert_kept(store, hurt) == 6
    for name in TOPICS:
        memory_vfs.remove(f"/s/{name}-0/.tubestore/checkpoint.json")
    with open_store(memory_vfs) as store:
        assert assert_kept(store, hurt) == 6


def test_what_the_files_have_of_a_damaged_frame_is_not_lost(
    memory_vfs: MemoryVfs,
) -> None:
    store = open_store(memory_vfs, journal_shards_min=4)
    given = batch(store, 0) | batch(store, 1)
    for name in TOPICS[1:]:
        store[name].flush()
    given |= batch(store, 2)
    killed(store, memory_vfs)
    damaged(memory_vfs, memory_vfs.read_file(JOURNAL).index(b"1 of t03"), 0)
    with open_store(memory_vfs) as again:
        assert assert_kept(again, given) == 1
        assert found(again)[TOPICS[0], 0, 28] is None


def test_a_mark_that_was_lost_as_well_leaves_the_place_to_the_next_frame(
    memory_vfs: MemoryVfs,
) -> None:
    store = open_store(memory_vfs, journal_shards_min=4)
    given = batch(store, 0) | batch(store, 1) | batch(store, 2)
    killed(store, memory_vfs)
    whole = memory_vfs.read_file(JOURNAL)
    damaged(memory_vfs, whole.index(b"1 of t03"), 0)
    damaged(memory_vfs, whole.index(b"2 of t00") - 1000, 0)
    with open_store(memory_vfs) as again:
        assert assert_kept(again, given) == 8


def test_after_a_reboot_damage_below_what_was_synced_is_reported_and_kept_in_place(
    memory_vfs: MemoryVfs, hurt: dict[Place, bytes]
) -> None:
    memory_vfs.reboot()
    with open_store(memory_vfs) as store:
        assert assert_kept(store, hurt) == 6
    assert memory_vfs.entries(QUARANTINE)


def test_a_power_cut_that_takes_the_boot_and_some_frames_is_no_damage(
    memory_vfs: MemoryVfs,
) -> None:
    store = open_store(memory_vfs, journal_shards_min=4)
    rows = {"topic": TOPICS, "partition": [0] * 8, "body": [b"x"] * 8}
    for _ in range(2):
        store.append_batch(rows, durability="page_cache")
    killed(store, memory_vfs)
    whole = memory_vfs.read_file(JOURNAL)
    boot, file = memory_vfs.boot_id().encode(), memory_vfs.open(JOURNAL)
    at = whole.find(boot)
    while at >= 0:
        file.pwrite(bytes(len(boot)), at)
        at = whole.find(boot, at + 1)
    file.close()
    memory_vfs.reboot()
    with open_store(memory_vfs) as again:
        assert not again.problems
        assert all(again[name].count(0) == 1 for name in TOPICS)


def test_a_damaged_journal_that_cannot_be_set_aside_stays(
    memory_vfs: MemoryVfs, hurt: dict[Place, bytes]
) -> None:
    faulty = FaultyVfs(memory_vfs)
    faulty.fail("rename", path="journal")
    with open_store(faulty) as store:
        assert any("quarantine" in str(problem) for problem in store.problems)
        assert_kept(store, hurt)
    assert memory_vfs.exists(JOURNAL)
    with open_store(memory_vfs) as store:
        assert assert_kept(store, hurt) == 6
    assert not memory_vfs.exists(JOURNAL)


@pytest.mark.parametrize("boot", ["same", "other"])
def test_a_journal_without_damage_is_no_problem(memory_vfs: MemoryVfs, boot: Any) -> None:
    given = left_by_a_kill(memory_vfs)
    if boot == "other":
        memory_vfs.reboot()
    with open_store(memory_vfs) as store:
        assert assert_kept(store, given) == 0
        assert store.problems == []
    assert not memory_vfs.exists(QUARANTINE)


def reasons(vfs: MemoryVfs) -> list[tuple[str, str]]:
    return [(f.path, str(f.reason)) for f in check("/s", vfs=vfs, wait=lambda _: None)]


@pytest.mark.parametrize("how", ["missing", "empty", "cut off"])
@pytest.mark.parametrize("rebooted", [False, True])
def test_a_journal_that_is_gone_after_a_kill_is_reported(
    memory_vfs: MemoryVfs, how: str, rebooted: bool
) -> None:
    left_by_a_kill(memory_vfs)
    if how == "missing":
        memory_vfs.remove(JOURNAL)
    else:
        memory_vfs.open(JOURNAL).truncate(30 if how == "cut off" else 0)
    if rebooted:
        memory_vfs.reboot()
    assert (JOURNAL, "journal_damaged") in reasons(memory_vfs)
    with tubestore.open("/s", "r", vfs=memory_vfs) as reader:
        assert [str(p).partition("; ")[0] for p in reader.problems] == [
            f"{JOURNAL}: damaged at byte 0: the journal of a process that was killed is {how}"
        ]
    with open_store(memory_vfs) as store:
        (problem,) = store.problems
        assert f"killed is {how}" in str(problem)
        batch(store, 5)
    with open_store(memory_vfs) as store:
        assert store.problems == []
    assert reasons(memory_vfs) == []


def test_a_journal_that_was_never_synced_may_be_empty_after_a_power_cut(
    memory_vfs: MemoryVfs,
) -> None:
    store = open_store(memory_vfs, journal_shards_min=4)
    rows = {"topic": TOPICS, "partition": [0] * 8, "body": [b"x"] * 8}
    store.append_batch(rows, durability="page_cache")
    killed(store, memory_vfs)
    memory_vfs.open(JOURNAL).truncate(0)
    memory_vfs.reboot()
    with open_store(memory_vfs) as store:
        assert store.problems == []


def test_a_journal_that_was_emptied_for_a_deletion_is_not_missed(memory_vfs: MemoryVfs) -> None:
    store = open_store(memory_vfs, journal_shards_min=4)
    batch(store, 0)
    store.delete_topic(TOPICS[7])
    assert memory_vfs.read_file(JOURNAL) == b""
    killed(store, memory_vfs)
    with open_store(memory_vfs) as store:
        assert store.problems == []
