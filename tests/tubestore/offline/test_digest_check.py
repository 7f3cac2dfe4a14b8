"""Sealed files are compared with their digests: damage that no record shows is found."""

from __future__ import annotations

import pytest

from tests.support.engine.sealed import (
    DIGESTS,
    FIRST,
    FIRST_INDEX,
    OWN,
    filled,
    flip,
    found,
)
from tubestore.offline.check import Reason
from tubestore.record.layouts import DATA_HEADER, INDEX_ENTRY
from tubestore.segments.cache_formats import DIGESTS_HEADER


@pytest.mark.parametrize("field", ["msg_id", "report_address"])
def test_a_bit_that_only_a_digest_can_show_is_found_in_a_sealed_file(field: str) -> None:
    vfs = filled()
    flip(vfs, FIRST, DATA_HEADER.position(field) + 1)
    (finding,) = found(vfs)
    assert (finding.path, finding.position) == (FIRST, 0)
    assert (finding.reason, finding.severity) == (Reason.DIGEST_DIFFERS, "error")
    assert "has changed since the file was sealed" in finding.message
    vfs.remove(DIGESTS)
    assert found(vfs) == []


def test_damage_that_a_record_shows_is_not_told_twice() -> None:
    vfs = filled()
    flip(vfs, FIRST, DATA_HEADER.size + 3)
    (finding,) = found(vfs)
    assert finding.reason is Reason.BAD_CHECKSUM


def test_where_entry_and_record_contradict_each_other_the_digest_names_which_changed() -> None:
    for path, position in ((FIRST, DATA_HEADER.position("key_code")), (FIRST_INDEX, 16)):
        vfs = filled()
        flip(vfs, path, position)
        findings = found(vfs)
        assert {f.reason for f in findings} <= {Reason.ENTRY_DIFFERS, Reason.DIGEST_DIFFERS}
        differs = [f.path for f in findings if f.reason is Reason.DIGEST_DIFFERS]
        assert differs == ([FIRST] if path == FIRST else [])  # the entry's file is told of already


@pytest.mark.parametrize("position", [0, 4, 8, 20, 24, 28, DIGESTS_HEADER.size])
def test_damaged_digests_say_nothing_of_the_file(position: int) -> None:
    vfs = filled()
    flip(vfs, DIGESTS, position)
    (finding,) = found(vfs)
    assert (finding.path, finding.reason) == (DIGESTS, Reason.STALE_CACHE)
    assert finding.severity == "warning"


def test_digests_of_another_length_are_stale_and_those_of_no_file_too() -> None:
    vfs = filled()
    vfs.replace_file(f"{OWN}/{1:020d}.tube.digests", vfs.read_file(DIGESTS))
    other = f"{OWN}/{5 * INDEX_ENTRY.size:020d}.index.digests"
    vfs.replace_file(other, vfs.read_file(DIGESTS))
    texts = {f.path: f.message for f in found(vfs) if f.reason is Reason.STALE_CACHE}
    assert texts[f"{OWN}/{1:020d}.tube.digests"] == "there is no such file"
    assert "it describes" in texts[other]
