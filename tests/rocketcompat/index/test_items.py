"""Items of an index file are chained by their hash."""

from __future__ import annotations

import struct

import numpy as np

from rocketcompat.index.items import key_hash
from tests.support.rocket.index import (
    batch_of,
    contents,
    service_of,
)
from tubestore.testing.memory_vfs import MemoryVfs


def test_the_sample_of_the_specification() -> None:
    """A file of 16 slots, 40 items, one message with UNIQ_KEY=U1 and KEYS="k1 k2"."""
    time = 0x1A1FCAED555
    keys = [(key_hash("TopicTest", key), 0, time) for key in ("U1", "k1", "k2")]
    service = service_of(vfs := MemoryVfs(), 16, 40)
    service.put(batch_of(keys))
    service.close()
    (raw,) = contents(vfs)
    assert len(raw) == 904
    assert raw[:40].hex() == "000001a1fcaed555" * 2 + "0" * 32 + "0000000300000004"
    assert [struct.unpack_from(">i", raw, 40 + 4 * slot)[0] for slot in (8, 9, 14)] == [2, 3, 1]
    assert raw[104:124] == bytes(20)
    assert [raw[at : at + 4].hex() for at in (124, 144, 164)] == [
        "0029e3fe",
        "0029e6a8",
        "0029e6a9",
    ]


def test_equal_hashes_are_found_together_newest_first() -> None:
    service = service_of(MemoryVfs(), 7, 60)
    assert key_hash("T", "Aa") == key_hash("T", "BB")
    for place, key in enumerate(("Aa", "x", "BB", "Aa")):
        service.put(batch_of([(key_hash("T", key), 100 * place, 5000 + place)]))
    assert service.select("T", "Aa", 64, 0, 1 << 60)[0] == [300, 200, 0]
    assert service.select("T", "Aa", 2, 0, 1 << 60)[0] == [300, 200]
    places, offsets = service.select_many(np.array([key_hash("T", k) for k in ("x", "BB")], "i4"))
    assert (places.tolist(), offsets.tolist()) == ([0, 1, 1, 1], [100, 300, 200, 0])
