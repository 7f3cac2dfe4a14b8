"""A segment of the ring, through a map and by calls."""

from __future__ import annotations

import pytest

from tubestore.journal.ring_segment import Segment
from tubestore.testing import MemoryVfs


@pytest.mark.parametrize("mapped", [False, True])
def test_pieces_come_one_behind_the_other_and_the_rest_stays(mapped: bool) -> None:
    vfs = MemoryVfs()
    vfs.make_directories("/s")
    file = vfs.open("/s/ring", create=True)
    file.pwrite(bytes(32), 0)
    segment = Segment(file, file.shared_map(32) if mapped else None)
    segment.push(b"ab")
    segment.push(memoryview(b"cd"))
    segment.put(b"end", 29)
    segment.go_to(8)
    segment.push(b"efg")
    segment.push(b"h")
    assert file.pread(32, 0) == b"abcd" + bytes(4) + b"efgh" + bytes(17) + b"end"
    assert (segment.base, segment.end, segment.shards) == (0, 0, {})
