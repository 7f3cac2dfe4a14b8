"""Opening a shard: where verifying begins, and what a checkpoint spares."""

from __future__ import annotations

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
    make_row,
    make_rows,
    open_shard,
    scanned,
    write_rows,
)
from tubestore.messages import STATE_OK
from tubestore.offline.check import check
from tubestore.record.records import ENTRY_SIZE, HEADER_SIZE
from tubestore.testing import FaultyVfs, MemoryVfs


def killed_behind_a_checkpoint(vfs: MemoryVfs) -> None:
    """Leave a shard whose checkpoint is of its first five messages, of twenty."""
    write_rows(vfs, ROWS[:5], HOME)
    saved = vfs.read_file(CHECKPOINT)
    write_rows(vfs, ROWS[5:], HOME)
    vfs.replace_file(CHECKPOINT, saved)


def checked(vfs: MemoryVfs) -> list[tuple[str, str]]:
    findings = check("/store", vfs=vfs, wait=lambda _: None)
    return [(str(f.reason), f.severity) for f in findings]


def test_a_hole_above_what_was_synced_is_distinguished_from_damage_after_a_restart(
    memory_vfs: MemoryVfs,
) -> None:
    killed_behind_a_checkpoint(memory_vfs)
    start = starts_of(memory_vfs)[7]
    patch(memory_vfs, DATA, start, bytes(starts_of(memory_vfs)[9] - start))
    patch(memory_vfs, INDEX, 7 * ENTRY_SIZE, bytes(2 * ENTRY_SIZE))
    memory_vfs.reboot()
    shard = open_shard(memory_vfs, HOME)
    (problem,) = shard.recovered.problems
    assert problem.reason.endswith("not known to be synced")
    assert [row["state"] == STATE_OK for row in scanned(shard.view())].count(False) == 2
    shard.close()
    assert {*checked(memory_vfs)} == {("never_synced", "warning")}
    patch(memory_vfs, DATA, starts_of(memory_vfs)[15] + HEADER_SIZE, b"#")
    found = {*checked(memory_vfs)} - {("stale_cache", "warning")}
    assert found == {("never_synced", "warning"), ("bad_checksum", "error")}


@pytest.mark.parametrize("arrived", range(ENTRY_SIZE + 1))
@pytest.mark.parametrize("with_checkpoint", [True, False])
def test_an_unsynced_tail_of_which_only_part_of_an_entry_arrived_is_cut_without_a_finding(
    memory_vfs: MemoryVfs, arrived: int, with_checkpoint: bool
) -> None:
    write_rows(memory_vfs, ROWS[:5], HOME)
    saved = memory_vfs.read_file(CHECKPOINT)
    write_rows(memory_vfs, [make_row(b"no filter item", key_code=-1)], HOME)
    start = starts_of(memory_vfs)[5]
    patch(memory_vfs, DATA, start, bytes(len(memory_vfs.read_file(DATA)) - start))
    patch(memory_vfs, INDEX, 5 * ENTRY_SIZE + arrived, bytes(ENTRY_SIZE - arrived))
    if with_checkpoint:
        memory_vfs.replace_file(CHECKPOINT, saved)
    else:
        memory_vfs.remove(CHECKPOINT)
    memory_vfs.reboot()
    shard = open_shard(memory_vfs, HOME)
    assert shard.recovered.problems == []
    append_and_read_back(memory_vfs, shard, list(BODIES[:5]))
    assert checked(memory_vfs) == []


@pytest.mark.parametrize("where", ["on the same boot", "below the checkpoint"])
def test_damage_that_no_power_cut_can_have_left_is_an_error(
    memory_vfs: MemoryVfs, where: str
) -> None:
    killed_behind_a_checkpoint(memory_vfs)
    number = 7 if where == "on the same boot" else 3
    patch(memory_vfs, DATA, starts_of(memory_vfs)[number] + HEADER_SIZE, b"#")
    if where == "below the checkpoint":
        memory_vfs.reboot()
    open_shard(memory_vfs, HOME).close()
    assert {severity for reason, severity in checked(memory_vfs)} == {"error"}


def test_no_damage_means_no_write(memory_vfs: MemoryVfs) -> None:
    write_rows(memory_vfs, ROWS, HOME)
    memory_vfs.remove(CHECKPOINT)
    journal = memory_vfs.record()
    shard = open_shard(memory_vfs, HOME)
    assert [call.kind for call in journal.calls] == []
    assert shard.recovered.verified == len(ROWS)
    append_and_read_back(memory_vfs, shard, list(BODIES))


@pytest.mark.parametrize("count", [50, 2000])
def test_after_a_clean_close_opening_does_not_depend_on_the_size(
    memory_vfs: MemoryVfs, count: int
) -> None:
    shard = open_shard(memory_vfs, HOME)
    for row in make_rows(count):
        shard.append(row, "memory")
    shard.close()
    counting = FaultyVfs(memory_vfs)
    again = open_shard(counting, HOME)
    assert again.recovered.verified == 0
    assert counting.calls["view"] == 0
    assert counting.calls["pread"] <= 4
    again.close()


BAD_CHECKPOINTS = {
    "not json": b"\xff\xfe{",
    "empty": b"",
    "a list": b"[]",
    "null": b"null",
    "no fields": b"{}",
    "more fields": b'{"index_end": 0, "data_end": 0, "x": 1}',
    "texts for numbers": b'{"index_end": "a", "data_end": "b", "index_digest": "", '
    b'"data_digest": "", "version": 1}',
    "negative ends": b'{"index_end": -28, "data_end": -100, "index_digest": "", '
    b'"data_digest": "", "version": 1}',
    "numbers for texts": b'{"index_end": 28, "data_end": 53, "index_digest": 1, '
    b'"data_digest": null, "version": 1}',
    "fractions": b'{"index_end": 28.5, "data_end": 1e300, "index_digest": "", '
    b'"data_digest": "", "version": 1}',
    "another version": b'{"index_end": 0, "data_end": 0, "index_digest": "", '
    b'"data_digest": "", "version": 2}',
}


@pytest.mark.parametrize("content", BAD_CHECKPOINTS.values(), ids=BAD_CHECKPOINTS)
def test_a_checkpoint_that_makes_no_sense_is_ignored(memory_vfs: MemoryVfs, content: bytes) -> None:
    write_rows(memory_vfs, ROWS, HOME)
    memory_vfs.replace_file(CHECKPOINT, content)
    shard = open_shard(memory_vfs, HOME)
    assert shard.recovered.verified == len(ROWS)
    append_and_read_back(memory_vfs, shard, list(BODIES))


def test_a_checkpoint_of_other_files_is_ignored(memory_vfs: MemoryVfs) -> None:
    write_rows(memory_vfs, make_rows(20, start=100), HOME)
    foreign = memory_vfs.read_file(CHECKPOINT)
    for path in list(memory_vfs.tree()):
        memory_vfs.remove(path)
    write_rows(memory_vfs, ROWS, HOME)
    memory_vfs.replace_file(CHECKPOINT, foreign)
    shard = open_shard(memory_vfs, HOME)
    assert shard.recovered.verified == len(ROWS)
    append_and_read_back(memory_vfs, shard, list(BODIES))


def test_offsets_that_the_checkpoint_has_behind_a_shortened_file_are_not_given_out_again(
    memory_vfs: MemoryVfs,
) -> None:
    write_rows(memory_vfs, ROWS, HOME)
    cut(memory_vfs, DATA, LAST)
    shard = open_shard(memory_vfs, HOME)
    assert shard.recovered.verified == len(ROWS) - 1
    (problem,) = shard.recovered.problems
    assert problem.reason == "1 messages that were synced are missing at the end"
    assert [row["state"] for row in scanned(shard.view())] == ["ok"] * 19 + ["bad_record"]
    append_and_read_back(memory_vfs, shard, [*BODIES[:-1], None])
    assert [severity for _, severity in checked(memory_vfs)] == ["error"]


def test_what_a_foreign_writer_appended_behind_the_checkpoint_is_verified(
    memory_vfs: MemoryVfs,
) -> None:
    write_rows(memory_vfs, ROWS[:10], HOME)
    saved = memory_vfs.read_file(CHECKPOINT)
    write_rows(memory_vfs, ROWS[10:], HOME)
    memory_vfs.replace_file(CHECKPOINT, saved)
    shard = open_shard(memory_vfs, HOME)
    assert shard.recovered.verified == 10
    append_and_read_back(memory_vfs, shard, list(BODIES))


def test_without_a_place_for_the_checkpoint_the_shard_works(memory_vfs: MemoryVfs) -> None:
    faulty = FaultyVfs(memory_vfs)
    faulty.fail("replace_file", forever=True, path="checkpoint")
    shard = open_shard(faulty, HOME)
    shard.append(ROWS[0], "fsync")
    shard.close()
    assert not memory_vfs.exists(CHECKPOINT)
    shard = open_shard(memory_vfs, HOME)
    append_and_read_back(memory_vfs, shard, BODIES[:1])
