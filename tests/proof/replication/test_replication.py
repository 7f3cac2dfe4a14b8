"""A slave's log is always a prefix of its master's, whatever the network and kills do.

`HA_RUNS` sets the number of runs, `HA_SEED` the first seed: run n has the seed `HA_SEED` + n.
"""

from __future__ import annotations

import os
import random

import pytest

from tests.proof.replication.world import Broken, World, check_covers, log_bytes
from tubestore.errors import TubeStoreError

pytestmark = pytest.mark.crash
LEVELS = ("no", "page_cache", "fsync")


def run(seed: int) -> World:
    """Do one run; the slave has everything in the end, and nothing that was released is missing."""
    world = World(seed, LEVELS[seed % 3])
    try:
        world.run_slave()
        world.mirror = None
        released = max(world.released, world.server._acknowledged)
        first, whole = log_bytes(world.master)
        root = world_root(world)
        with root.open("m:1", background=False) as slave:  # after one more kill
            begin, data = log_bytes(slave)
            assert data == whole[begin - first :]
            check_covers(begin + len(data), released, first, whole)
            slave.wait_dispatched(slave.max_physical_offset - 1)
            world.master.wait_dispatched(world.master.max_physical_offset - 1)
            assert slave.max_offset_in_queue("T", 0) == world.master.max_offset_in_queue("T", 0)
            assert not slave.problems
    finally:
        world.master.close()
    return world


def world_root(world: World):  # type: ignore[no-untyped-def]
    from rocketcompat.ha.slave_store import SlaveRoot
    from tests.proof.replication.world import CONFIG

    return SlaveRoot.of("/s", CONFIG, world.slave_vfs, world.clock)


def runs(count: int) -> list[World]:
    first = int(os.environ.get("HA_SEED", random.randrange(1 << 30)))
    count = int(os.environ.get("HA_RUNS", count))
    print(f"HA_SEED={first} HA_RUNS={count}")
    done = []
    for seed in range(first, first + count):
        try:
            done.append(run(seed))
        except (AssertionError, Broken, TubeStoreError) as error:
            raise AssertionError(f"HA_SEED={seed} HA_RUNS=1: {error}") from error
    assert any(world.kills for world in done) or count < 20
    assert any(world.breaks for world in done) or count < 20
    return done


@pytest.mark.sample
def test_a_slaves_log_is_a_prefix_of_its_masters_under_faults_of_the_network_and_kills() -> None:
    runs(8)


@pytest.mark.gate
def test_the_same_in_two_hundred_runs() -> None:
    runs(200)


@pytest.mark.slow
def test_the_same_in_ten_thousand_runs() -> None:
    runs(10_000)
