"""The rows that an index should have: entries that mislead are replaced."""

from __future__ import annotations

import numpy as np

from tests.support.engine.damaged.repaired import (
    SMALL,
    actions,
    files_of,
    good_rows,
    mended,
    written,
)
from tests.support.publishing import ROOT
from tubestore.record.layouts import DATA_HEADER, INDEX_ENTRY, LOST_TIME, NO_KEY_CODE
from tubestore.record.records import ENTRY_SIZE, entries_in


def test_a_bad_entry_behind_which_a_real_broker_would_cut_is_replaced_by_one_it_passes() -> None:
    vfs = written()
    (data,), (index,) = files_of(vfs, ".tube"), files_of(vfs, ".index")
    entry = INDEX_ENTRY.unpack_from(vfs.read_file(index), 7 * ENTRY_SIZE)
    vfs.open(data).pwrite(bytes(DATA_HEADER.size), entry.data_offset)
    vfs.open(index).pwrite(INDEX_ENTRY.pack(**{**entry._asdict(), "data_size": -1}), 7 * ENTRY_SIZE)
    done = mended(ROOT, vfs)
    assert actions(done) == ["rewrite_index", "remove_cache", "leave"] or "leave" in actions(done)
    new = INDEX_ENTRY.unpack_from(vfs.read_file(index), 7 * ENTRY_SIZE)
    assert (new.data_offset, new.data_size) == (entry.data_offset, entry.data_size)
    assert len(good_rows(ROOT, vfs)) == 39


def test_entries_of_messages_that_are_gone_have_the_time_of_lost_ones() -> None:
    """Opening distinguishes them from an entry that a power cut tore."""
    vfs = written(**SMALL)
    vfs.remove(files_of(vfs, ".tube")[2])
    for path in files_of(vfs, ".index")[:-2]:
        vfs.open(path).pwrite(bytes(len(vfs.read_file(path))), 0)
    mended(ROOT, vfs)
    entries = np.concatenate([entries_in(vfs.read_file(p)) for p in files_of(vfs, ".index")])
    lost = entries[entries["key_code"] == NO_KEY_CODE]
    assert len(lost) > 0
    assert set(lost["received_time"].tolist()) == {LOST_TIME}
