"""Which damaged records at the log's end the units of queues prove."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from rocketcompat import Message
from rocketcompat.queues.proof import proved_end
from tests.support.inner_batches import CONFIG, batch, opened
from tubestore.core.vfs import OsVfs


@pytest.fixture
def places(tmp_path: Path) -> list[int]:
    """Physical offsets of four records of three queues, one of them of batches; and their end."""
    with opened(tmp_path) as store:
        puts = [
            store.put_message(Message("T", b"0")),
            store.put_inner_batch(batch(3)),
            store.put_message(Message("U", b"2")),
            store.put_message(Message("T", b"3")),
        ]
        return [*(put.physical_offset for put in puts), store.max_physical_offset]


def test_units_of_all_queues_prove_the_records_that_follow_each_other(
    tmp_path: Path, places: list[int]
) -> None:
    ends = [proved_end(OsVfs(), str(tmp_path), CONFIG, place) for place in places]
    assert ends == [places[-1]] * 5


def test_a_record_ends_the_proof_that_no_unit_has(tmp_path: Path, places: list[int]) -> None:
    (tmp_path / "consumequeue" / "U" / "0" / f"{0:020d}").unlink()
    assert proved_end(OsVfs(), str(tmp_path), CONFIG, places[0]) == places[2]
    assert proved_end(OsVfs(), str(tmp_path), CONFIG, places[2]) == places[2]
    assert proved_end(OsVfs(), str(tmp_path), CONFIG, places[1] + 1) == places[1] + 1


def test_a_unit_of_a_record_that_does_not_fit_into_its_file_proves_nothing(
    tmp_path: Path, places: list[int]
) -> None:
    with (tmp_path / "consumequeue" / "T" / "0" / f"{0:020d}").open("r+b") as file:
        file.seek(20 + 8)
        file.write(struct.pack(">i", CONFIG.mapped_file_size_commit_log))
    assert proved_end(OsVfs(), str(tmp_path), CONFIG, places[3]) == places[3]
