"""One shard is repaired: torn tails, gaps, overlaps, two names for one number."""

from __future__ import annotations

import pytest

from tests.support.engine.damaged.repaired import (
    HOME,
    SMALL,
    actions,
    files_of,
    good_rows,
    mended,
    written,
)
from tests.support.publishing import ROOT
from tests.support.tube import open_shard, quarantined
from tubestore.errors import NotAStore
from tubestore.offline.repair import Action


def test_a_torn_tail_goes_to_the_quarantine() -> None:
    vfs = written()
    (path,) = files_of(vfs, ".tube")
    size = len(vfs.read_file(path))
    vfs.open(path).pwrite(b"torn" * 9, size)
    done = mended(ROOT, vfs)
    assert actions(done) == ["cut_data", "remove_cache"]
    assert (done[0].path, done[0].position, done[0].bytes) == (path, size, 36)
    assert quarantined(vfs) == {f"t-0/{path.rpartition('/')[2]}@{size}": b"torn" * 9}
    assert len(vfs.read_file(path)) == size


def test_a_lost_data_file_is_filled_so_that_what_follows_keeps_its_place() -> None:
    vfs = written(**SMALL)
    before = good_rows(ROOT, vfs)
    data = files_of(vfs, ".tube")
    lost = len(vfs.read_file(data[2]))
    vfs.remove(data[2])
    with pytest.raises(NotAStore):
        open_shard(vfs, HOME)
    done = mended(ROOT, vfs)
    assert done[0] == Action(data[2], "fill_gap", 0, lost, done[0].message)
    assert vfs.read_file(data[2]) == bytes(lost)
    after = good_rows(ROOT, vfs)
    assert [row for row in before if row in after] == after
    assert len(after) > 30
    shard = open_shard(vfs, HOME, **SMALL)
    assert shard.recovered.reindexed == 0
    shard.close()


def test_an_overlapping_file_is_taken_out() -> None:
    vfs = written(**SMALL)
    data = files_of(vfs, ".tube")
    copy = vfs.read_file(data[1])
    start = int(data[1][-25:-5]) + 10
    vfs.replace_file(f"{HOME}/{start:020d}.tube", copy)
    done = mended(ROOT, vfs)
    assert actions(done) == ["quarantine_file"]
    assert list(quarantined(vfs).values()) == [copy]


def test_two_names_for_one_number_leave_the_longer_file() -> None:
    vfs = written()
    vfs.replace_file(f"{HOME}/0.tube", b"short")
    assert actions(mended(ROOT, vfs)) == ["quarantine_file"]
    assert len(good_rows(ROOT, vfs)) == 40
