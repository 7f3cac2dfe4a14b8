"""The rows of recovery's table: what is found at the expected place, and what is done."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from tests.support.engine.damaged.recovered import (
    BODIES,
    CHECKPOINT,
    DATA,
    HOME,
    INDEX,
    LAST,
    ROWS,
    append_and_read_back,
    cut,
    patch,
    starts_of,
)
from tests.support.tube import (
    bodies,
    encode_row,
    make_row,
    make_rows,
    open_shard,
    quarantined,
    scanned,
    write_rows,
)
from tubestore.errors import DiskFull
from tubestore.messages import STATE_BAD_CHECKSUM, STATE_BAD_RECORD, STATE_ENTRY_DIFFERS, STATE_OK
from tubestore.record.layouts import DATA_HEADER, INDEX_ENTRY
from tubestore.record.records import ENTRY_SIZE, HEADER_SIZE, entries_in
from tubestore.testing import FaultyVfs, MemoryVfs

#: Files of a few messages each.
SMALL = {"segment_size_bytes": 300, "index_segment_size_bytes": 5 * ENTRY_SIZE}


class Case(NamedTuple):
    """A damage, and what recovery makes of it; by default all messages stay."""

    damage: Callable[[MemoryVfs], None]
    lost: frozenset[int] = frozenset()
    reindexed: int = 0
    data_cut: int = 0
    index_cut: int = 0
    states: dict[int, str] = {}  # noqa: RUF012
    problems: tuple[str, ...] = ()


def flip_payload(vfs: MemoryVfs, number: int) -> None:
    at = starts_of(vfs)[number] + HEADER_SIZE
    byte = vfs.read_file(DATA)[at]
    patch(vfs, DATA, at, bytes([byte ^ 1]))


def patch_entry(number: int, **values: int) -> Callable[[MemoryVfs], None]:
    def damage(vfs: MemoryVfs) -> None:
        entry = INDEX_ENTRY.unpack_from(vfs.read_file(INDEX), ENTRY_SIZE * number)
        changed = INDEX_ENTRY.pack(**{**entry._asdict(), **values})
        patch(vfs, INDEX, ENTRY_SIZE * number, changed)

    return damage


def replace_file(path: str, change: Callable[[bytes], bytes]) -> Callable[[MemoryVfs], None]:
    return lambda vfs: vfs.replace_file(path, change(vfs.read_file(path)))


REFUTED = "an entry that its record refutes was written anew"

#: How an entry that contradicts its record ends.
REPORTED: dict[str, Any] = {"problems": (REFUTED,)}

CASES = {
    "nothing is wrong": Case(lambda vfs: None),
    "records at the end have no entries": Case(
        lambda vfs: cut(vfs, INDEX, 3 * ENTRY_SIZE), reindexed=3
    ),
    "entries at the end have no records": Case(
        lambda vfs: cut(vfs, DATA, LAST), lost=frozenset({19}), index_cut=ENTRY_SIZE
    ),
    "the last record is torn in its payload": Case(
        lambda vfs: cut(vfs, DATA, 3),
        lost=frozenset({19}),
        data_cut=LAST - 3,
        index_cut=ENTRY_SIZE,
    ),
    "the last record is torn in its header": Case(
        lambda vfs: cut(vfs, DATA, LAST - 20),
        lost=frozenset({19}),
        data_cut=20,
        index_cut=ENTRY_SIZE,
    ),
    "the last record has a bad checksum": Case(
        lambda vfs: flip_payload(vfs, 19),
        lost=frozenset({19}),
        data_cut=LAST,
        index_cut=ENTRY_SIZE,
    ),
    "zeros stand behind the last record": Case(
        replace_file(DATA, lambda data: data + bytes(1000)), data_cut=1000
    ),
    "noise stands behind the last record": Case(
        replace_file(DATA, lambda data: data + b"\x02\xc9\x98\xb8 noise" * 9), data_cut=90
    ),
    "an entry is written in part": Case(
        lambda vfs: cut(vfs, INDEX, 5), reindexed=1, index_cut=ENTRY_SIZE - 5
    ),
    "an index of less than one entry": Case(
        replace_file(INDEX, lambda data: data[:13]), reindexed=20, index_cut=13
    ),
    "zeros stand behind the last entry": Case(
        replace_file(INDEX, lambda data: data + bytes(10 * ENTRY_SIZE)), index_cut=10 * ENTRY_SIZE
    ),
    "the index is gone": Case(lambda vfs: vfs.remove(INDEX), reindexed=20),
    "the index is empty": Case(replace_file(INDEX, lambda data: b""), reindexed=20),
    "the index is zeros": Case(replace_file(INDEX, lambda data: bytes(len(data))), reindexed=20),
    "an entry has another partition": Case(
        patch_entry(7, partition_id=1_234), reindexed=1, problems=(REFUTED,)
    ),
    "an entry has another key": Case(patch_entry(7, key_code=99), reindexed=1, **REPORTED),
    "an entry has another time": Case(
        patch_entry(7, received_time=99), reindexed=1, problems=(REFUTED,)
    ),
    "an entry points elsewhere": Case(
        patch_entry(7, data_offset=1), reindexed=1, problems=(REFUTED,)
    ),
    "an entry points behind the data": Case(
        patch_entry(7, data_offset=1 << 60), reindexed=1, problems=(REFUTED,)
    ),
    "an entry points before the data": Case(patch_entry(7, data_offset=-1), reindexed=1),
    "an entry has another size": Case(
        patch_entry(7, data_size=29_360_181), reindexed=1, problems=(REFUTED,)
    ),
    "an entry has a negative size": Case(
        patch_entry(7, data_size=-5), reindexed=1, problems=(REFUTED,)
    ),
    "the first entry is zeros": Case(
        lambda vfs: patch(vfs, INDEX, 0, bytes(ENTRY_SIZE)), reindexed=1
    ),
    "a payload in the middle has a flipped bit": Case(
        lambda vfs: flip_payload(vfs, 7),
        states={7: STATE_BAD_CHECKSUM},
        problems=("checksum of the payload differs",),
    ),
    "the first payload has a flipped bit": Case(
        lambda vfs: flip_payload(vfs, 0),
        states={0: STATE_BAD_CHECKSUM},
        problems=("checksum of the payload differs",),
    ),
    "a token in the middle is overwritten": Case(
        lambda vfs: patch(vfs, DATA, starts_of(vfs)[7] + 4, b"nope"),
        states={7: STATE_BAD_RECORD},
        problems=("instead of 0x02c998b8",),
    ),
    "a length in the middle is huge": Case(
        lambda vfs: patch(vfs, DATA, starts_of(vfs)[7], b"\x7f\xff\xff\xff"),
        states={7: STATE_BAD_RECORD},
        problems=("length 2147483647 is impossible",),
    ),
    "a length in the middle is negative": Case(
        lambda vfs: patch(vfs, DATA, starts_of(vfs)[7], b"\xff\xff\xff\xff"),
        states={7: STATE_BAD_RECORD},
        problems=("length -1 is impossible",),
    ),
    "three records in a row are zeros": Case(
        lambda vfs: patch(
            vfs, DATA, starts_of(vfs)[7], bytes(starts_of(vfs)[10] - starts_of(vfs)[7])
        ),
        states={7: STATE_BAD_RECORD, 8: STATE_BAD_RECORD, 9: STATE_BAD_RECORD},
        problems=("instead of 0x02c998b8",),
    ),
    "two damages apart from each other": Case(
        lambda vfs: (flip_payload(vfs, 3), flip_payload(vfs, 12))[0],
        states={3: STATE_BAD_CHECKSUM, 12: STATE_BAD_CHECKSUM},
        problems=("checksum of the payload differs", "checksum of the payload differs"),
    ),
}


@pytest.mark.parametrize("with_checkpoint", [False, True], ids=["", "stale checkpoint"])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_shard_of_one_file_is_mended(
    memory_vfs: MemoryVfs, case: Case, with_checkpoint: bool
) -> None:
    # A checkpoint of the first rows only: what was written behind it is looked at again.
    write_rows(memory_vfs, ROWS[:1] if with_checkpoint else ROWS, HOME)
    if with_checkpoint:
        if {0} & {*case.states} or "first entry" in str(case):
            pytest.skip("what is below the checkpoint is trusted")
        saved = memory_vfs.read_file(CHECKPOINT)
        write_rows(memory_vfs, ROWS[1:], HOME)
        memory_vfs.replace_file(CHECKPOINT, saved)
    else:
        memory_vfs.remove(CHECKPOINT)
    case.damage(memory_vfs)

    shard = open_shard(memory_vfs, HOME)
    report = shard.recovered
    rows = scanned(shard.view(), verify=True)
    assert scanned(shard.view()) == rows, "damage that was reported is shown as good"
    kept = [n for n in range(20) if n not in case.lost]
    assert [row["state"] for row in rows] == [case.states.get(n, STATE_OK) for n in kept]
    assert [row["offset"] for row in rows] == [ENTRY_SIZE * n for n in kept]
    for number, row in zip(kept, rows, strict=True):
        if number not in case.states:
            assert row["body"] == BODIES[number]
            assert row["partition"] == ROWS[number].partition_id
            assert row["key_code"] == ROWS[number].key_code
    if not with_checkpoint:
        assert (report.data_cut, report.index_cut) == (case.data_cut, case.index_cut)
        assert report.reindexed == case.reindexed
    assert len(report.problems) == len(case.problems)
    for problem, reason in zip(report.problems, case.problems, strict=True):
        assert reason in problem.reason
        assert problem.path == (INDEX if reason == REFUTED else DATA)
    append_and_read_back(memory_vfs, shard, bodies(shard.view()))


def test_a_sound_entry_is_not_overwritten_by_a_header_that_names_another_offset(
    memory_vfs: MemoryVfs,
) -> None:
    write_rows(memory_vfs, ROWS, HOME)
    memory_vfs.remove(CHECKPOINT)
    start, before = starts_of(memory_vfs)[7], memory_vfs.read_file(INDEX)
    header = DATA_HEADER.unpack_from(memory_vfs.read_file(DATA), start)
    damaged = header._replace(partition_id=3, queue_logic_offset=28, received_time=1, key_code=77)
    patch(memory_vfs, DATA, start, DATA_HEADER.pack(**damaged._asdict()))
    shard = open_shard(memory_vfs, HOME)
    assert memory_vfs.read_file(INDEX) == before
    (problem,) = shard.recovered.problems
    assert (problem.path, problem.position) == (DATA, start)
    assert "names index offset 28" in problem.reason
    row = scanned(shard.view())[7]
    assert (row["state"], row["body"]) == (STATE_ENTRY_DIFFERS, BODIES[7])
    assert (row["partition"], row["key_code"]) == (ROWS[7].partition_id, ROWS[7].key_code)
    shard.close()
    again = open_shard(memory_vfs, HOME)
    assert [str(p) for p in again.recovered.problems] == [str(problem)]
    again.close()


def test_an_entry_that_is_refuted_is_kept_in_the_quarantine(memory_vfs: MemoryVfs) -> None:
    write_rows(memory_vfs, ROWS, HOME)
    memory_vfs.remove(CHECKPOINT)
    patch_entry(7, partition_id=3)(memory_vfs)
    before = memory_vfs.read_file(INDEX)
    open_shard(memory_vfs, HOME).close()
    assert quarantined(memory_vfs) == {
        f"t-0/index/{0:020d}.index@{7 * ENTRY_SIZE}": before[7 * ENTRY_SIZE :]
    }


def test_refuted_entries_are_one_problem_where_they_are_neighbours(
    memory_vfs: MemoryVfs,
) -> None:
    write_rows(memory_vfs, ROWS, HOME)
    memory_vfs.remove(CHECKPOINT)
    for number in (3, 7, 8, 12):
        patch_entry(number, partition_id=3)(memory_vfs)
    problems = open_shard(memory_vfs, HOME).recovered.problems
    found = [(p.position, p.reason.partition(":")[0]) for p in problems]
    neighbours = f"{REFUTED} (2 entries in a row)"
    assert found == [
        (3 * ENTRY_SIZE, REFUTED),
        (7 * ENTRY_SIZE, neighbours),
        (12 * ENTRY_SIZE, REFUTED),
    ]


def test_what_is_cut_and_no_unfinished_write_is_kept_in_the_quarantine(
    memory_vfs: MemoryVfs,
) -> None:
    write_rows(memory_vfs, ROWS, HOME)
    memory_vfs.remove(CHECKPOINT)
    flip_payload(memory_vfs, 19)
    data, index = memory_vfs.read_file(DATA), memory_vfs.read_file(INDEX)
    open_shard(memory_vfs, HOME).close()
    assert quarantined(memory_vfs) == {
        f"t-0/{0:020d}.tube@{len(data) - LAST}": data[-LAST:],
        f"t-0/index/{0:020d}.index@{19 * ENTRY_SIZE}": index[-ENTRY_SIZE:],
    }


@pytest.mark.parametrize("by", [3, LAST - 20])
def test_the_part_of_a_record_that_an_unfinished_write_leaves_is_cut_without_a_copy(
    memory_vfs: MemoryVfs, by: int
) -> None:
    write_rows(memory_vfs, ROWS, HOME)
    memory_vfs.remove(CHECKPOINT)
    cut(memory_vfs, DATA, by)
    cut(memory_vfs, INDEX, ENTRY_SIZE)
    patch(memory_vfs, INDEX, 19 * ENTRY_SIZE, bytes(ENTRY_SIZE))
    assert open_shard(memory_vfs, HOME).recovered.data_cut == LAST - by
    assert quarantined(memory_vfs) == {}


def test_a_last_record_with_an_entry_and_a_damaged_length_is_no_unfinished_write(
    memory_vfs: MemoryVfs,
) -> None:
    write_rows(memory_vfs, ROWS, HOME)
    memory_vfs.remove(CHECKPOINT)
    start = starts_of(memory_vfs)[19]
    patch(memory_vfs, DATA, start, (LAST + 996).to_bytes(4, "big"))
    data = memory_vfs.read_file(DATA)
    assert open_shard(memory_vfs, HOME).recovered.data_cut == LAST
    assert quarantined(memory_vfs)[f"t-0/{0:020d}.tube@{start}"] == data[start:]


def test_whole_files_behind_the_end_go_to_the_quarantine(memory_vfs: MemoryVfs) -> None:
    write_rows(memory_vfs, ROWS, HOME, **SMALL)
    memory_vfs.remove(CHECKPOINT)
    gone = {p: b for p, b in memory_vfs.tree().items() if p.endswith(".index") and p != INDEX}
    for path in list(memory_vfs.tree()):
        if path.endswith(".tube") and path != DATA:
            memory_vfs.remove(path)
    shard = open_shard(memory_vfs, HOME, **SMALL)
    assert shard.recovered.index_cut
    kept = quarantined(memory_vfs)
    assert {path.rpartition("/")[2]: bytes_ for path, bytes_ in gone.items() if bytes_} == {
        name.rpartition("/")[2].partition("@")[0]: bytes_ for name, bytes_ in kept.items()
    }


def test_without_room_for_what_is_cut_opening_is_refused_and_nothing_goes(
    memory_vfs: MemoryVfs,
) -> None:
    write_rows(memory_vfs, ROWS, HOME)
    memory_vfs.remove(CHECKPOINT)
    flip_payload(memory_vfs, 19)
    before = {p: memory_vfs.read_file(p) for p in (DATA, INDEX)}
    faulty = FaultyVfs(memory_vfs)
    faulty.fail("pwrite", error=errno.ENOSPC, forever=True, path="/quarantine/")
    with pytest.raises(DiskFull, match="No space") as caught:
        open_shard(faulty, HOME)
    assert "/quarantine/" in str(caught.value.filename)
    assert caught.value.taken == "no"
    assert {p: memory_vfs.read_file(p) for p in (DATA, INDEX)} == before
    assert quarantined(memory_vfs) == {}
    faulty.heal()
    assert open_shard(faulty, HOME).recovered.data_cut == LAST


def test_data_without_any_index_file_is_indexed_over_many_segments(memory_vfs: MemoryVfs) -> None:
    write_rows(memory_vfs, ROWS, HOME, **SMALL)
    for path in list(memory_vfs.tree()):
        if path.endswith((".index", "checkpoint.json")):
            memory_vfs.remove(path)
    shard = open_shard(memory_vfs, HOME, **SMALL)
    assert bodies(shard.view()) == BODIES
    assert shard.recovered.reindexed == len(ROWS)
    assert len(shard.files.index) > 2
    append_and_read_back(memory_vfs, shard, list(BODIES))


def test_damage_in_the_last_of_several_files_keeps_what_is_behind_it(
    memory_vfs: MemoryVfs,
) -> None:
    write_rows(memory_vfs, ROWS, HOME, **SMALL)
    memory_vfs.remove(CHECKPOINT)
    last = max(p for p in memory_vfs.tree() if p.endswith(".tube"))
    before_last = sorted(p for p in memory_vfs.tree() if p.endswith(".tube"))[-2]
    path = last if len(memory_vfs.read_file(last)) else before_last
    patch(memory_vfs, path, HEADER_SIZE, b"#")
    shard = open_shard(memory_vfs, HOME, **SMALL)
    rows = scanned(shard.view(), verify=True)
    assert len(rows) >= len(ROWS) - 1
    good = [row["body"] for row in rows if row["state"] == STATE_OK]
    assert set(BODIES) - set(good) <= {row.payload for row in ROWS}
    assert len(good) == len(ROWS) - 1
    append_and_read_back(memory_vfs, shard, bodies(shard.view()))


def test_entries_whose_data_has_expired_stay_where_they_are(memory_vfs: MemoryVfs) -> None:
    """TubeMQ expires data and index separately: the index may begin before the data."""
    write_rows(memory_vfs, ROWS, HOME, segment_size_bytes=300)
    memory_vfs.remove(CHECKPOINT)
    memory_vfs.remove(DATA)
    before = memory_vfs.read_file(INDEX)
    first_kept = min(int(p[-25:-5]) for p in memory_vfs.tree() if p.endswith(".tube"))
    expired = sum(e["data_offset"] < first_kept for e in entries_in(before))
    assert 0 < expired < len(ROWS)
    shard = open_shard(memory_vfs, HOME)
    rows = scanned(shard.view(), verify=True)
    assert memory_vfs.read_file(INDEX) == before
    assert [row["body"] for row in rows] == BODIES[expired:]
    assert [row["offset"] for row in rows] == [ENTRY_SIZE * n for n in range(expired, len(ROWS))]
    append_and_read_back(memory_vfs, shard, bodies(shard.view()))


def test_an_entry_of_zeros_is_none_of_a_message_that_has_expired(memory_vfs: MemoryVfs) -> None:
    """A power cut can leave it where the first entry behind what retention removed was written."""
    write_rows(memory_vfs, ROWS[:10], HOME, **SMALL)
    memory_vfs.remove(CHECKPOINT)
    files = sorted(p for p in memory_vfs.tree() if p.endswith((".tube", ".index")))
    data = [p for p in files if p.endswith(".tube")]
    entries = b"".join(memory_vfs.read_file(p) for p in files if p.endswith(".index"))
    first = int(data[-1][-25:-5]) if memory_vfs.read_file(data[-1]) else int(data[-2][-25:-5])
    gone = int((entries_in(entries)["data_offset"] < first).sum())
    for path in files:
        if path.endswith(".index") or int(path[-25:-5]) < first:
            memory_vfs.remove(path)
    start = gone * ENTRY_SIZE
    memory_vfs.open(f"{HOME}/index/{start:020d}.index", create=True).pwrite(bytes(ENTRY_SIZE), 0)
    shard = open_shard(memory_vfs, HOME)
    rows = scanned(shard.view(), verify=True)
    assert [(row["offset"], row["body"]) for row in rows] == [
        (ENTRY_SIZE * n, BODIES[n]) for n in range(gone, 10)
    ]
    shard.close()


def test_a_record_within_a_damaged_payload_is_not_taken_for_a_message(
    memory_vfs: MemoryVfs,
) -> None:
    """Bodies may be dumps of other stores: a record in them carries an offset of its own."""
    (header, payload), _ = encode_row(make_row(b"inner"), 1_000_000 * ENTRY_SIZE, 0)
    rows = [*ROWS[:5], make_row(b"outer " + header + payload), *ROWS[5:10]]
    write_rows(memory_vfs, rows, HOME)
    memory_vfs.remove(CHECKPOINT)
    flip_payload(memory_vfs, 5)
    shard = open_shard(memory_vfs, HOME)
    found = scanned(shard.view(), verify=True)
    assert [row["offset"] for row in found] == [ENTRY_SIZE * n for n in range(len(rows))]
    assert [row["state"] for row in found] == [
        STATE_BAD_CHECKSUM if n == 5 else STATE_OK for n in range(len(rows))
    ]
    append_and_read_back(memory_vfs, shard, bodies(shard.view()))


def test_a_wild_offset_in_a_record_behind_damage_does_not_blow_up_the_index(
    memory_vfs: MemoryVfs,
) -> None:
    write_rows(memory_vfs, ROWS[:5], HOME)
    memory_vfs.remove(CHECKPOINT)
    (header, payload), _ = encode_row(make_row(b"wild"), (1 << 40) * ENTRY_SIZE, 0)
    end = len(memory_vfs.read_file(DATA))
    patch(memory_vfs, DATA, end, b"junk" * 5 + header + payload)
    shard = open_shard(memory_vfs, HOME)
    assert bodies(shard.view())[:5] == BODIES[:5]
    assert shard.view().index_end <= 7 * ENTRY_SIZE
    append_and_read_back(memory_vfs, shard, bodies(shard.view()))


def test_a_lost_index_behind_a_damaged_record_gets_entries_at_the_old_offsets(
    memory_vfs: MemoryVfs,
) -> None:
    write_rows(memory_vfs, ROWS, HOME)
    memory_vfs.remove(CHECKPOINT)
    starts = starts_of(memory_vfs)
    patch(memory_vfs, DATA, starts[7], bytes(starts[9] - starts[7]))
    cut(memory_vfs, INDEX, 15 * ENTRY_SIZE)
    shard = open_shard(memory_vfs, HOME)
    rows = {row["offset"]: row for row in scanned(shard.view(), verify=True)}
    assert sorted(rows) == [ENTRY_SIZE * n for n in range(len(ROWS))]
    for number, body in enumerate(BODIES):
        state = rows[ENTRY_SIZE * number]["state"]
        assert (state == STATE_OK) == (number not in (7, 8))
        if state == STATE_OK:
            assert rows[ENTRY_SIZE * number]["body"] == body
    append_and_read_back(memory_vfs, shard, bodies(shard.view()))


def test_damage_on_both_sides_of_an_index_border_is_passed_again_at_the_next_opening(
    memory_vfs: MemoryVfs,
) -> None:
    settings = {"segment_size_bytes": 550, "index_segment_size_bytes": 5 * ENTRY_SIZE}
    write_rows(memory_vfs, ROWS[:8], HOME, **settings)
    memory_vfs.remove(CHECKPOINT)
    entries = b"".join(b for p, b in sorted(memory_vfs.tree().items()) if p.endswith(".index"))
    starts = entries_in(entries)["data_offset"].tolist()
    patch(memory_vfs, DATA, starts[4], bytes(starts[6] - starts[4]))
    memory_vfs.remove(INDEX.replace(f"{0:020d}", f"{5 * ENTRY_SIZE:020d}"))
    cut(memory_vfs, INDEX, ENTRY_SIZE)
    shard = open_shard(memory_vfs, HOME, **settings)
    shard.append(ROWS[8], "page_cache")
    assert shard.files.data.last.size == 0, "the damage is not in the last data file any more"
    assert shard.files.index.last.start == 5 * ENTRY_SIZE
    expected = scanned(shard.view(), verify=True)
    assert [row["offset"] for row in expected if row["state"] != STATE_OK] == [112, 140]
    shard.close()
    memory_vfs.remove(CHECKPOINT)
    again = open_shard(memory_vfs, HOME, **settings)
    assert scanned(again.view(), verify=True) == expected
    again.close()


@pytest.mark.parametrize("offset", [1, 141, 150])
def test_a_wild_offset_in_the_first_record_of_the_last_file_is_no_trouble(
    memory_vfs: MemoryVfs, offset: int
) -> None:
    write_rows(memory_vfs, ROWS[:8], HOME, **SMALL)
    memory_vfs.remove(CHECKPOINT)
    last = max(p for p, data in memory_vfs.tree().items() if p.endswith(".tube") and data)
    place = DATA_HEADER.position("queue_logic_offset")
    patch(memory_vfs, last, place, offset.to_bytes(8, "big"))
    shard = open_shard(memory_vfs, HOME, **SMALL)
    assert bodies(shard.view()) == BODIES[:8]
    shard.close()


@pytest.mark.parametrize("damaged", [9, 11])
def test_records_that_carry_offsets_a_second_time_are_not_cut_behind_damage(
    memory_vfs: MemoryVfs, damaged: int
) -> None:
    """After a crash TubeMQ gives the offsets of unindexed records again."""
    offsets = [*range(8), *range(5, 10)]
    rows = make_rows(len(offsets))
    data = b""
    starts = []
    for row, number in zip(rows, offsets, strict=True):
        (header, payload), _ = encode_row(row, number * ENTRY_SIZE, 0)
        starts.append(len(data))
        data += header + payload
    memory_vfs.make_directories(HOME)
    memory_vfs.open(DATA, create=True).pwrite(data, 0)
    patch(memory_vfs, DATA, starts[damaged] + HEADER_SIZE, b"#")
    shard = open_shard(memory_vfs, HOME)
    found = scanned(shard.view(), verify=True)
    good = [row["body"] for row in found if row["state"] == STATE_OK]
    assert good == [row.payload for n, row in enumerate(rows) if n != damaged]
    assert len(found) == len(rows)
    after = shard.append(make_row(b"after"), "fsync")
    shard.close()
    memory_vfs.remove(CHECKPOINT)
    again = open_shard(memory_vfs, HOME)
    rows_again = scanned(again.view(), verify=True)
    assert rows_again[:-1] == found
    assert (rows_again[-1]["offset"], rows_again[-1]["body"]) == (after, b"after")
    again.close()


def test_a_torn_message_that_holds_a_dump_of_a_store_is_cut(memory_vfs: MemoryVfs) -> None:
    dump = b""
    for number, row in enumerate(make_rows(50)):
        (header, payload), _ = encode_row(row, number * ENTRY_SIZE, len(dump))
        dump += header + payload
    write_rows(memory_vfs, [*ROWS, make_row(dump)], HOME)
    memory_vfs.remove(CHECKPOINT)
    cut(memory_vfs, DATA, 100)
    shard = open_shard(memory_vfs, HOME)
    assert bodies(shard.view()) == BODIES
    append_and_read_back(memory_vfs, shard, list(BODIES))


def small_files(vfs: MemoryVfs) -> dict[str, list[str]]:
    """Write a shard of many files, without its caches; returns those of each stream in order."""
    write_rows(vfs, ROWS, HOME, **SMALL)
    for name, _, _ in vfs.entries(f"{HOME}/.tubestore"):
        vfs.remove(f"{HOME}/.tubestore/{name}")
    tree = sorted(vfs.tree())
    return {suffix: [p for p in tree if p.endswith(suffix)] for suffix in (".tube", ".index")}


def test_a_whole_record_that_its_entry_names_is_not_cut_behind_damage_with_a_header_that_is_torn(
    memory_vfs: MemoryVfs,
) -> None:
    """Bytes of the header are wrong: the checksum proves the record, and the entry its place."""
    write_rows(memory_vfs, ROWS, HOME)
    memory_vfs.remove(CHECKPOINT)
    torn, last = starts_of(memory_vfs)[-2:]
    patch(memory_vfs, DATA, torn, bytes(last - torn))
    patch(memory_vfs, DATA, last + DATA_HEADER.position("partition_id"), b"\xa5" * 20)
    shard = open_shard(memory_vfs, HOME)
    assert (shard.recovered.data_cut, shard.recovered.index_cut) == (0, 0)
    states = [row["state"] for row in scanned(shard.view())]
    assert states == [STATE_OK] * 18 + [STATE_BAD_RECORD, STATE_ENTRY_DIFFERS]
    assert shard.append(make_row(b"after"), "fsync") == ENTRY_SIZE * len(ROWS)


def test_records_whose_index_file_is_missing_are_given_at_no_other_offset(
    memory_vfs: MemoryVfs,
) -> None:
    """Damage keeps the index file from being made again, and has opening begin at the start."""
    files = small_files(memory_vfs)
    memory_vfs.remove(files[".index"][0])
    second = memory_vfs.read_file(files[".index"][1])
    first = int(entries_in(second)["data_offset"][0])
    home = max(p for p in files[".tube"] if int(p[-25:-5]) <= first)
    patch(memory_vfs, home, first - int(home[-25:-5]) + HEADER_SIZE, b"\xff\xff")
    filled = [p for p in files[".tube"] if memory_vfs.read_file(p)]
    patch(memory_vfs, filled[-1], 0, bytes(len(memory_vfs.read_file(filled[-1]))))
    shard = open_shard(memory_vfs, HOME, **SMALL)
    assert shard.recovered.reindexed == 0
    assert memory_vfs.read_file(files[".index"][1]) == second
    rows = scanned(shard.view(), verify=True)
    numbers = {ENTRY_SIZE * n: body for n, body in enumerate(BODIES)}
    assert all(row["body"] == numbers[row["offset"]] for row in rows if row["state"] == STATE_OK)
    assert rows[0]["state"] == STATE_BAD_CHECKSUM
