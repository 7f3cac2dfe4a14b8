"""The messages in a piece of a segment."""

from __future__ import annotations

import itertools
from random import Random

import pytest

from tests.tubestore.journal.test_ring import killed, open_store, segments
from tests.tubestore.journal.test_ring_reading import content_of, left_in, overwrite
from tubestore.journal import ring_pieces
from tubestore.journal.ring_reading import read_ring
from tubestore.testing import MemoryVfs


@pytest.mark.parametrize("turn", range(6))
def test_messages_taken_one_by_one_are_those_taken_in_columns(
    memory_vfs: MemoryVfs, monkeypatch: pytest.MonkeyPatch, turn: int
) -> None:
    """With any damage, from any position on, of all shards or of one."""
    seed = Random().randrange(1 << 32)
    print(f"seed {seed}")
    chance = Random(seed)
    store = open_store(memory_vfs)
    ends = [0]
    for number in range(chance.randrange(4, 20)):
        store[chance.choice("ab")].append(bytes(chance.randrange(1, 60)) + b"%d" % number)
        ends.append(left_in(memory_vfs).end)
    killed(store, memory_vfs)
    for _ in range(chance.choice((0, 0, 1, 2))):
        path = chance.choice(segments(memory_vfs))
        overwrite(memory_vfs, path, chance.randrange(1024), bytes([chance.randrange(256)]))
    if chance.random() < 0.3:
        memory_vfs.reboot()
    for since, chosen in itertools.product([0, chance.choice(ends)], [None, {"b-0"}]):
        found = []
        for few in (0, 2, 1000):
            monkeypatch.setattr(ring_pieces, "_FEW", few)
            found.append(content_of(read_ring(memory_vfs, "/s", since, chosen=chosen)))
        assert found[0] == found[1] == found[2]
