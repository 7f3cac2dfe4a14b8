"""Index files are made again from the records, to the last byte."""

from __future__ import annotations

import pytest

from tests.support.engine.damaged.repaired import (
    HOME,
    SMALL,
    files_of,
    mended,
    written,
)
from tests.support.publishing import ROOT
from tests.support.tube import open_shard
from tubestore.record.records import entries_in


@pytest.mark.gate
def test_a_lost_index_file_is_rebuilt_to_the_last_byte() -> None:
    for number in range(len(files_of(written(**SMALL), ".index"))):
        vfs = written(**SMALL)
        index = files_of(vfs, ".index")
        before = b"".join(vfs.read_file(p) for p in index)
        vfs.remove(index[number])
        mended(ROOT, vfs)
        assert b"".join(vfs.read_file(p) for p in files_of(vfs, ".index")) == before


def test_a_lost_index_file_is_rebuilt_though_no_entry_before_it_has_its_record() -> None:
    vfs = written(**SMALL)
    index, data = files_of(vfs, ".index"), files_of(vfs, ".tube")
    pristine = entries_in(vfs.read_file(index[2]))
    for path in (index[0], data[1], index[2]):
        vfs.remove(path)
    mended(ROOT, vfs)
    assert entries_in(vfs.read_file(index[1]))[len(pristine) :].tolist() == pristine.tolist()
    shard = open_shard(vfs, HOME, **SMALL)
    assert shard.recovered.reindexed == 0
    shard.close()
