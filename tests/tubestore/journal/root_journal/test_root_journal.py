"""The root's journal: frames in, parts out, and what a torn or foreign file gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.tube import encode_rows, make_rows
from tubestore.journal.root_journal import JournalPart, RootJournal, _Reading, read_journal
from tubestore.record.layouts import JOURNAL_FRAME, JOURNAL_PART
from tubestore.record.records import EncodedBatch
from tubestore.testing import FaultyVfs, MemoryVfs

ROOT = "/s"
PATH = "/s/.tubestore/journal"


def journal_in(vfs: MemoryVfs, generation: int = 7) -> RootJournal:
    vfs.make_directories("/s/.tubestore")
    return RootJournal(vfs, ROOT, generation)


def write(journal: RootJournal, batch: EncodedBatch, names: tuple[str, ...]) -> None:
    """Write a frame in which every shard has as many rows."""
    count = len(batch) // len(names)
    parts = np.zeros(len(names), JOURNAL_PART.dtype)
    ends = np.append(batch.starts, len(batch.data))
    parts["entries"] = count
    parts["index_start"] = 28 * np.arange(len(names))
    parts["data_size"] = np.diff(ends[::count])
    lines = "\n".join(names).encode()
    journal.write(lines, parts, batch.entries.view(np.uint8).data, batch.data.data)


def parts_in(vfs: MemoryVfs) -> list[JournalPart]:
    left = read_journal(vfs, ROOT)
    return [] if left is None else left.parts


def test_what_was_written_is_read_part_by_part(memory_vfs: MemoryVfs) -> None:
    journal = journal_in(memory_vfs)
    batches = [encode_rows(make_rows(4, start=n), 28, 100) for n in range(3)]
    for batch in batches:
        write(journal, batch, ("a-0", "b-1"))
    found = parts_in(memory_vfs)
    assert [p.shard for p in found] == ["a-0", "b-1"] * 3
    assert [p.index_start for p in found] == [0, 28] * 3
    for number, batch in enumerate(batches):
        mine = found[2 * number : 2 * number + 2]
        assert b"".join(bytes(p.data) for p in mine) == batch.data.tobytes()
        assert b"".join(p.entries.tobytes() for p in mine) == batch.entries.tobytes()


def test_a_store_without_a_journal_has_no_parts(memory_vfs: MemoryVfs) -> None:
    assert parts_in(memory_vfs) == []


def test_a_frame_that_is_not_whole_ends_the_journal(memory_vfs: MemoryVfs) -> None:
    """A killed process writes records, frame and mark in this order, the last one in part."""
    journal = journal_in(memory_vfs)
    write(journal, encode_rows(make_rows(2), 0, 0), ("a-0",))
    file = memory_vfs.open(PATH)
    first, start = memory_vfs.read_file(PATH), journal.size
    calls = memory_vfs.record().calls
    write(journal, encode_rows(make_rows(3), 56, 0), ("a-0",))
    writes = [(call.position, call.data) for call in calls]
    assert len(writes) == 3
    for number, (position, data) in enumerate(writes):
        for size in range(len(data)):
            file.truncate(0)
            file.pwrite(first, 0)
            for before in writes[:number]:
                file.pwrite(before[1], before[0])
            file.pwrite(data[:size], position)
            left = read_journal(memory_vfs, ROOT)
            assert left is not None
            assert left.damages == []
            assert len(left.parts) == (2 if number == 2 else 1), (number, size)
            assert number == 2 or left.size == start


def frames_of(vfs: MemoryVfs, count: int = 3) -> bytes:
    """Write some frames of two messages each, synced one by one; returns the journal."""
    journal = journal_in(vfs)
    for number in range(count):
        write(journal, encode_rows(make_rows(2), 56 * number, 0), (f"t{number}-1",))
        journal.sync()
    return vfs.read_file(PATH)


@pytest.mark.gate
@pytest.mark.parametrize("reboot", [False, True])
def test_a_flipped_bit_takes_one_frame_whose_place_is_kept_and_is_reported(
    memory_vfs: MemoryVfs, reboot: bool
) -> None:
    whole = frames_of(memory_vfs)
    expected = parts_in(memory_vfs)
    if reboot:
        memory_vfs.reboot()
    file = memory_vfs.open(PATH)
    for at in range(len(whole)):
        for bit in range(8):
            file.pwrite(bytes([whole[at] ^ 1 << bit]), at)
            left = read_journal(memory_vfs, ROOT)
            assert left is not None
            # After a reboot the last frame is not known to be synced.
            known = expected[:2] if reboot and len(left.parts) == 2 else expected
            assert [p[:3] for p in left.parts] == [p[:3] for p in known], (at, bit)
            lost = [part for part in left.parts if part.lost]
            assert len(lost) <= len(left.damages) <= 1
            for part in lost:
                assert len(part.entries) == 2
                assert set(part.entries["partition_id"].tolist()) == {10_000}
                assert not any(part.data)
            for part, sound in zip(left.parts, known, strict=True):
                assert part.lost or bytes(part.data) == bytes(sound.data)
            for damage in left.damages:
                assert damage.path == PATH
                assert damage.position <= at
        file.pwrite(whole[at : at + 1], at)


def test_a_frame_that_a_writer_ends_while_a_reader_looks_is_no_damage(
    memory_vfs: MemoryVfs, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, ends = journal_in(memory_vfs), []
    for number in range(4):
        write(journal, encode_rows(make_rows(2), 56 * number, 0), ("a-0",))
        ends.append(journal.size)
    expected, file = parts_in(memory_vfs), memory_vfs.open(PATH)
    place = ends[0]
    written = memory_vfs.read_file(PATH)[place : ends[1]]
    file.pwrite(bytes(len(written)), place)
    look = _Reading._find

    def written_meanwhile(self: Any, *where: Any) -> Any:
        file.pwrite(written, place)
        return look(self, *where)

    monkeypatch.setattr(_Reading, "_find", written_meanwhile)
    left = read_journal(memory_vfs, ROOT)
    assert left is not None
    assert left.damages == []
    assert [bytes(p.entries) for p in left.parts] == [bytes(p.entries) for p in expected]


def test_what_a_power_cut_took_of_unsynced_frames_is_no_damage(memory_vfs: MemoryVfs) -> None:
    journal = journal_in(memory_vfs)
    write(journal, encode_rows(make_rows(2), 0, 0), ("a-0",))
    journal.sync()
    synced = journal.size
    for number in range(1, 4):
        write(journal, encode_rows(make_rows(2), 56 * number, 0), ("a-0",))
    memory_vfs.reboot()
    memory_vfs.open(PATH).pwrite(bytes(30), synced + 50)
    left = read_journal(memory_vfs, ROOT)
    assert left is not None
    assert (left.size, left.damages, len(left.parts)) == (synced, [], 1)


def test_a_kill_while_a_new_generation_begins_is_no_damage(memory_vfs: MemoryVfs) -> None:
    """Whatever part of its first frames was written over those of the one before."""
    old = frames_of(memory_vfs)
    journal = RootJournal(memory_vfs, ROOT, 8)
    calls = memory_vfs.record().calls
    write(journal, encode_rows(make_rows(4), 0, 0), ("new-0",))
    writes = [(call.position, call.data) for call in calls]
    assert len(writes) == 4
    file = memory_vfs.open(PATH)
    for number, (position, data) in enumerate(writes):
        for size in range(len(data)):
            file.pwrite(old, 0)
            for before in writes[:number]:
                file.pwrite(before[1], before[0])
            file.pwrite(data[:size], position)
            left = read_journal(memory_vfs, ROOT)
            assert left is not None
            assert left.damages == [], (number, size)
            assert {p.shard for p in left.parts} in ({"t0-1", "t1-1", "t2-1"}, {"new-0"}, set())


def test_a_new_generation_is_synced_before_it_goes_over_synced_frames(
    memory_vfs: MemoryVfs,
) -> None:
    journal = journal_in(memory_vfs)
    write(journal, encode_rows(make_rows(2), 0, 0), ("a-0",))
    journal.sync()
    journal.begin_anew(8)
    calls = memory_vfs.record().calls
    write(journal, encode_rows(make_rows(2), 0, 0), ("a-0",))
    assert [call.kind for call in calls] == ["pwrite", "sync", "pwrite", "pwrite", "pwrite"]
    journal.begin_anew(9)
    calls.clear()
    write(journal, encode_rows(make_rows(2), 0, 0), ("a-0",))
    assert [call.kind for call in calls] == ["pwrite"] * 4


def test_a_journal_of_the_version_before_is_read_and_its_damage_found(
    memory_vfs: MemoryVfs,
) -> None:
    """Without marks, and its first frame names the boot alone."""
    journal = journal_in(memory_vfs)
    frame, whole = journal._front, b""
    whole += frame(memory_vfs.boot_id().encode(), b"", b"", b"")
    starts = [len(whole)]
    for number in range(3):
        batch = encode_rows(make_rows(2), 56 * number, 200 * number)
        part = JOURNAL_PART.pack(
            entries=2, index_start=56 * number, data_start=200 * number, data_size=len(batch.data)
        )
        data = batch.data.tobytes()
        whole += frame(b"a-0", part, batch.entries.tobytes(), data) + data
        starts.append(len(whole))
    file = memory_vfs.open(PATH, create=True)
    file.pwrite(whole, 0)
    left = read_journal(memory_vfs, ROOT)
    assert left is not None
    assert (left.boot_id, left.size) == (memory_vfs.boot_id(), len(whole))
    assert [p.index_start for p in left.parts] == [0, 56, 112]
    file.pwrite(b"?", starts[1] + 100)
    left = read_journal(memory_vfs, ROOT)
    assert left is not None
    assert [p.index_start for p in left.parts] == [0, 112]
    assert [d.position for d in left.damages] == [starts[1]]
    assert left.parts[1].damaged_before == starts[2] - starts[1]
    file.pwrite(b"?", starts[2] + 100)  # nothing sound is behind it: an unfinished write
    left = read_journal(memory_vfs, ROOT)
    assert left is not None
    assert (left.size, left.damages) == (starts[1], [])


def test_frames_of_the_generation_before_are_not_given(memory_vfs: MemoryVfs) -> None:
    journal = journal_in(memory_vfs)
    for _ in range(3):
        write(journal, encode_rows(make_rows(2), 0, 0), ("old-0",))
    journal.begin_anew(8)
    assert journal.size == 0
    write(journal, encode_rows(make_rows(2), 0, 0), ("new-0",))
    assert [p.shard for p in parts_in(memory_vfs)] == ["new-0"]


def test_a_number_of_a_generation_that_is_given_again_brings_no_old_frame_back(
    memory_vfs: MemoryVfs,
) -> None:
    """The clock was set back between two processes, or both began in one millisecond."""
    for generation in (7, 6):
        journal = journal_in(memory_vfs)
        for number in range(3):
            write(journal, encode_rows(make_rows(2), 56 * number, 0), ("a-0",))
        left = read_journal(memory_vfs, ROOT)
        assert left is not None
        later = journal_in(memory_vfs, generation - 1)
        later.go_on(left)
        later.begin_anew(generation)
        write(later, encode_rows(make_rows(2), 168, 0), ("b-0",))
        found = read_journal(memory_vfs, ROOT)
        assert found is not None
        assert ([p.shard for p in found.parts], found.damages) == (["b-0"], [])
        later.remove()


def test_removing_it_leaves_no_file(memory_vfs: MemoryVfs) -> None:
    journal = journal_in(memory_vfs)
    write(journal, encode_rows(make_rows(2), 0, 0), ("a-0",))
    journal.remove()
    journal.remove()
    assert not memory_vfs.exists(PATH)


@given(st.binary(max_size=400), st.integers(0, 3))
def test_garbage_gives_no_parts_and_asks_for_no_memory(noise: bytes, frames: int) -> None:
    vfs = MemoryVfs()
    vfs.make_directories("/s/.tubestore")
    huge = JOURNAL_FRAME.pack(
        magic=0x744A6631,
        parts=2**31 - 1,
        names_size=2**31 - 1,
        entries=2**31 - 1,
        data_size=2**62,
        generation=0,
        digest=bytes(8),
    )
    vfs.open(PATH, create=True).pwrite(huge * frames + noise, 0)
    assert parts_in(vfs) == []


def test_a_search_over_many_false_headers_stays_linear(memory_vfs: MemoryVfs) -> None:
    """Each of them has the right generation, and asks for all that is behind it."""
    whole = bytearray(frames_of(memory_vfs))
    headers = 2000
    size = headers * JOURNAL_FRAME.size
    start = len(whole)
    for number in range(headers):
        behind = size - (number + 1) * JOURNAL_FRAME.size
        whole += JOURNAL_FRAME.pack(
            magic=0x744A6631,
            parts=0,
            names_size=behind,
            entries=0,
            data_size=0,
            generation=7,
            digest=bytes(8),
        )
    memory_vfs.open(PATH).pwrite(whole, 0)
    read = []

    class Counting(FaultyVfs):
        def open(self, path: str, **how: Any) -> Any:
            file = super().open(path, **how)
            pread = file.pread
            file.pread = lambda size, at: read.append(size) or pread(size, at)  # type: ignore
            return file

    left = read_journal(Counting(memory_vfs), ROOT)
    assert left is not None
    assert (left.size, len(left.parts), left.damages) == (start, 3, [])
    # A search that went on would digest a thousand times the file's length.
    assert sum(n for n in read if n < 1 << 20) < 40 * len(whole)


def test_a_journal_and_a_file_that_contradict_each_other_are_found(memory_vfs: MemoryVfs) -> None:
    journal = journal_in(memory_vfs)
    write(journal, encode_rows(make_rows(2), 0, 0), ("a-0",))
    journal.check_invariants()
    whole = memory_vfs.read_file(PATH)
    memory_vfs.replace_file(PATH, whole[:-1])
    with pytest.raises(AssertionError, match="the frames end elsewhere in the file"):
        journal.check_invariants()
    memory_vfs.replace_file(PATH, b"")
    with pytest.raises(AssertionError, match="frames of another generation"):
        journal.check_invariants()


def test_more_than_was_written_cannot_be_synced(memory_vfs: MemoryVfs) -> None:
    journal = journal_in(memory_vfs)
    write(journal, encode_rows(make_rows(2), 0, 0), ("a-0",))
    journal.sync()
    journal.size -= 1
    with pytest.raises(AssertionError, match="more was synced than was written"):
        journal.check_invariants()
