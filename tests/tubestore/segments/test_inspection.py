"""Every byte of a shard is judged: flipped bits, lost index files."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

import tubestore
from tests.support.tube import make_rows, open_shard
from tubestore.offline.check import Reason, check
from tubestore.testing.memory_vfs import MemoryVfs


@pytest.mark.gate
def test_every_flipped_bit_of_a_shard_is_found_except_what_only_a_digest_shows(
    memory_vfs: MemoryVfs,
) -> None:
    shard = open_shard(memory_vfs, "/store/t-0")
    for row in make_rows(40):
        shard.append(row, "page_cache")
    shard.close()
    assert list(check("/store", vfs=memory_vfs, wait=lambda _: None)) == []
    draw = random.Random(7)
    for path, unseen in [
        # report_address, msg_id and the flag's upper bits stand nowhere else.
        ("/store/t-0/00000000000000000000.tube", {*range(32, 36), *range(40, 52)}),
        ("/store/t-0/index/00000000000000000000.index", set()),
    ]:
        file = memory_vfs.open(path)
        starts = _record_starts(memory_vfs, path)
        for _ in range(150):
            at, bit = draw.randrange(file.size()), draw.randrange(8)
            start = max(s for s in starts if s <= at)
            old = file.pread(1, at)
            file.pwrite(bytes([old[0] ^ 1 << bit]), at)
            found = list(check("/store", vfs=memory_vfs, wait=lambda _: None))
            file.pwrite(old, at)
            assert found or at - start in unseen, (path, at, bit)


def _record_starts(vfs: MemoryVfs, path: str) -> list[int]:
    data, starts, at = vfs.read_file(path), [], 0
    if path.endswith(".index"):
        return list(range(0, len(data), 28))
    while at < len(data):
        starts.append(at)
        at += int.from_bytes(data[at : at + 4], "big") + 4
    return starts


def test_a_lost_index_is_one_finding_a_data_file_however_many_records(tmp_path: Path) -> None:
    with tubestore.open(tmp_path, background=False) as store:
        store.create_topic("t").append_batch([{"body": b"x"}] * 10_000)
    shutil.rmtree(tmp_path / "t-0" / "index")
    found = check(tmp_path, wait=lambda _: None)
    (finding,) = (f for f in found if f.reason is not Reason.STALE_CACHE)
    assert finding.message == "10000 intact records without index entries"
