"""The journal's records are put back where a shard's files have none that is whole."""

from __future__ import annotations

import pytest

from tests.support.tube import (
    bodies,
    encode_rows,
    make_row,
    make_rows,
    open_shard,
    scanned,
    write_rows,
)
from tubestore.clock import ManualClock
from tubestore.core.memory_pool import MemoryPool
from tubestore.journal.redo import _cut_at
from tubestore.journal.root_journal import JournalPart
from tubestore.options import StoreOptions
from tubestore.record.records import ENTRY_SIZE
from tubestore.segments.file_store import MsgFileStore
from tubestore.shard.message_store import MessageStore
from tubestore.testing import MemoryVfs

HOME = "/store/t-0"
DATA = f"{HOME}/{0:020d}.tube"
INDEX = f"{HOME}/index/{0:020d}.index"
ROWS = make_rows(12)
BODIES = [row.payload for row in ROWS]
WHOLE = encode_rows(ROWS, 0, 0)
STARTS = [*WHOLE.starts.tolist(), len(WHOLE.data)]


def part(first: int, end: int) -> JournalPart:
    """Return rows as they would stand in a journal."""
    return JournalPart(
        "t-0",
        ENTRY_SIZE * first,
        STARTS[first],
        WHOLE.entries[first:end],
        WHOLE.data[STARTS[first] : STARTS[end]].tobytes(),
    )


def reopened(vfs: MemoryVfs, *parts: JournalPart) -> MessageStore:
    """Open the shard with what a journal has of it."""
    options = StoreOptions()
    return MessageStore.open(
        MsgFileStore(vfs, HOME, 0, options),
        topic="t",
        options=options,
        clock=ManualClock(),
        pool=MemoryPool(1 << 20),
        journalled=parts,
    )


@pytest.mark.parametrize("have", range(13))
def test_what_the_files_lack_is_written(memory_vfs: MemoryVfs, have: int) -> None:
    write_rows(memory_vfs, ROWS[:have])
    shard = reopened(memory_vfs, part(0, 3), part(3, 4), part(4, 12))
    assert bodies(shard.view()) == BODIES
    assert shard.recovered.problems == []
    assert shard.recovered.reindexed == 0
    shard.close()
    assert memory_vfs.read_file(DATA) == WHOLE.data.tobytes()
    assert memory_vfs.read_file(INDEX) == WHOLE.entries.tobytes()


def test_what_follows_a_roll_goes_into_the_file_that_was_begun(memory_vfs: MemoryVfs) -> None:
    """A kill came after the roll: the next file was there, and empty."""
    write_rows(memory_vfs, ROWS[:4])
    memory_vfs.open(f"{HOME}/{STARTS[4]:020d}.tube", create=True)
    shard = reopened(memory_vfs, part(2, 4), part(4, 7), part(7, 12))
    assert bodies(shard.view()) == BODIES
    shard.close()
    assert memory_vfs.read_file(DATA) == WHOLE.data.tobytes()[: STARTS[4]]
    again = open_shard(memory_vfs, HOME)
    assert bodies(again.view()) == BODIES
    again.close()


def test_only_the_first_piece_of_a_part_that_is_cut_at_a_file_is_behind_its_damage() -> None:
    whole = part(2, 8)._replace(damaged_before=99)
    pieces = _cut_at(whole, {STARTS[2], STARTS[4], STARTS[9]})
    assert [(p.index_start, p.data_start) for p in pieces] == [
        (ENTRY_SIZE * 2, STARTS[2]),
        (ENTRY_SIZE * 4, STARTS[4]),
    ]
    assert [p.damaged_before for p in pieces] == [99, 0]
    assert b"".join(p.data for p in pieces) == whole.data


def test_what_retention_removed_since_is_passed_over(memory_vfs: MemoryVfs) -> None:
    """The journal is emptied now and then; a shard may have written and let go before that."""
    write_rows(memory_vfs, ROWS[:4])
    memory_vfs.remove(DATA)
    memory_vfs.remove(f"{HOME}/.tubestore/checkpoint.json")  # retention writes a new one
    memory_vfs.open(f"{HOME}/{STARTS[4]:020d}.tube", create=True)
    shard = reopened(memory_vfs, part(1, 3), part(3, 4), part(4, 7), part(7, 12))
    assert bodies(shard.view()) == BODIES[4:]
    assert shard.recovered.problems == []
    shard.close()


def test_a_record_that_was_torn_with_sound_ones_behind_it_is_whole_again(
    memory_vfs: MemoryVfs,
) -> None:
    write_rows(memory_vfs, ROWS)
    file = memory_vfs.open(DATA)
    for row in (4, 5):
        file.pwrite(bytes(STARTS[row + 1] - STARTS[row] - 20), STARTS[row] + 20)
    memory_vfs.open(INDEX).truncate(6 * ENTRY_SIZE)
    for path, _, _ in memory_vfs.entries(f"{HOME}/.tubestore"):
        memory_vfs.remove(f"{HOME}/.tubestore/{path}")
    shard = reopened(memory_vfs, part(3, 9))
    assert bodies(shard.view()) == BODIES
    assert shard.recovered.problems == []
    shard.close()


def test_an_intact_message_of_somebody_else_stays_and_is_a_problem(memory_vfs: MemoryVfs) -> None:
    other = [*ROWS[:5], make_row(b"somebody else was here")]
    write_rows(memory_vfs, other)
    shard = reopened(memory_vfs, part(3, 9))
    assert bodies(shard.view()) == [row.payload for row in other]
    assert [p.position for p in shard.recovered.problems] == [STARTS[5]]
    assert "journal" in str(shard.recovered.problems[0])
    shard.close()


def test_a_part_behind_a_gap_is_left_out(memory_vfs: MemoryVfs) -> None:
    write_rows(memory_vfs, ROWS[:2])
    shard = reopened(memory_vfs, part(1, 3), part(7, 9))
    assert bodies(shard.view()) == BODIES[:3]
    shard.close()
    memory_vfs = MemoryVfs()
    shard = reopened(memory_vfs, part(7, 9))
    assert bodies(shard.view()) == []
    shard.close()


def test_what_was_put_back_is_synced_by_a_sync(memory_vfs: MemoryVfs) -> None:
    write_rows(memory_vfs, ROWS[:2])
    shard = reopened(memory_vfs, part(2, 6))
    shard.sync()
    assert shard.files.data.last.synced_end == STARTS[6]
    shard.close()
    again = open_shard(memory_vfs)
    assert bodies(again.view()) == BODIES[:6]
    again.close()


def test_entries_that_a_power_cut_emptied_do_not_move_what_the_journal_has(
    memory_vfs: MemoryVfs,
) -> None:
    """The data file was never synced and is gone; the index has its length, and zeros."""
    write_rows(memory_vfs, ROWS[:5], HOME)
    memory_vfs.remove(DATA)
    memory_vfs.remove(f"{HOME}/.tubestore/checkpoint.json")
    memory_vfs.open(INDEX).pwrite(bytes(4 * ENTRY_SIZE), ENTRY_SIZE)
    shard = reopened(memory_vfs, part(3, 5))
    rows = scanned(shard.view())
    assert [(row["offset"], row["body"]) for row in rows] == [
        (3 * ENTRY_SIZE, BODIES[3]),
        (4 * ENTRY_SIZE, BODIES[4]),
    ]


def test_a_part_of_a_shortened_file_is_not_written_over_the_next_one(memory_vfs: MemoryVfs) -> None:
    """Repair has filled the gap with zeros, in a file of their own."""
    write_rows(memory_vfs, ROWS)
    data = memory_vfs.read_file(DATA)
    end = STARTS[5] + 20
    memory_vfs.open(DATA).truncate(end)
    zeros = f"{HOME}/{end:020d}.tube"
    memory_vfs.replace_file(zeros, bytes(STARTS[7] - end))
    memory_vfs.replace_file(f"{HOME}/{STARTS[7]:020d}.tube", data[STARTS[7] :])
    shard = reopened(memory_vfs, part(3, 7))
    assert "before the next file" in str(shard.recovered.problems[-1])
    assert not shard.has_all_journalled
    assert len(memory_vfs.read_file(DATA)) == end
    rows = scanned(shard.view(), verify=True)
    sound = [row["body"] for row in rows if row["state"] == "ok"]
    assert sound == [*BODIES[:5], *BODIES[7:]]
    assert [row["offset"] for row in rows] == [ENTRY_SIZE * n for n in range(12)]
    shard.close()
    open_shard(memory_vfs, HOME).close()
