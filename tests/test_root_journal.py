"""The root's journal: frames in, parts out, and what a torn or foreign file gives."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.support.tube import encode_rows, make_rows
from tubestore.formats import JOURNAL_FRAME, JOURNAL_PART
from tubestore.records import EncodedBatch
from tubestore.root_journal import JournalPart, RootJournal, read_journal
from tubestore.testing import MemoryVfs

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
    journal = journal_in(memory_vfs)
    write(journal, encode_rows(make_rows(2), 0, 0), ("a-0",))
    first = journal.size
    write(journal, encode_rows(make_rows(3), 56, 0), ("a-0",))
    whole = memory_vfs.read_file(PATH)
    file = memory_vfs.open(PATH)
    for size in range(first, len(whole)):
        file.truncate(size)
        assert len(parts_in(memory_vfs)) == 1, size
    file.pwrite(whole[first:], first)
    for at in range(first, len(whole)):
        file.pwrite(bytes([whole[at] ^ 1]), at)
        assert len(parts_in(memory_vfs)) == 1, at
        file.pwrite(whole[at : at + 1], at)
    assert len(parts_in(memory_vfs)) == 2


def test_frames_of_the_generation_before_are_not_given(memory_vfs: MemoryVfs) -> None:
    journal = journal_in(memory_vfs)
    for _ in range(3):
        write(journal, encode_rows(make_rows(2), 0, 0), ("old-0",))
    journal.begin_anew(8)
    assert journal.size == 0
    write(journal, encode_rows(make_rows(2), 0, 0), ("new-0",))
    assert [p.shard for p in parts_in(memory_vfs)] == ["new-0"]


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
