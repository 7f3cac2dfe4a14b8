"""A small disk that runs full and gets room again, many times, at every level and by every way in.

Nothing that was acknowledged is lost, nothing is there twice, what was refused is not there, and
the open store goes on when there is room: it need not be opened again. `FILLINGS` says how often
the disk is filled (default 6), `CRASH_SEED` repeats a run.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest

from tests.proof.explorer.explore import seed_from_environment
from tests.proof.explorer.ledger import Ledger
from tests.proof.explorer.setting import quick_and_quiet
from tests.proof.explorer.workloads import (
    EngineWorkload,
    MappedRocketWorkload,
    PooledRocketWorkload,
    RocketWorkload,
    Workload,
)
from tubestore.errors import BatchError, DiskFull
from tubestore.options import Durability
from tubestore.testing import MemoryVfs
from tubestore.testing.memory_file import BLOCK

FILLINGS = int(os.environ.get("FILLINGS", "6"))
LEVELS: tuple[Durability, ...] = ("memory", "page_cache", "fsync")
ROOT = "/store"

pytestmark = [pytest.mark.gate, pytest.mark.crash]


@pytest.fixture(autouse=True)
def setting() -> Iterator[None]:
    with quick_and_quiet():
        yield


class Filling:
    """A workload whose disk runs full and gets room again."""

    def __init__(self, kind: type[Workload], seed: int, **settings: Any) -> None:
        self.random, self.vfs = Random(seed), MemoryVfs()
        self.work = kind(self.vfs, ROOT, Ledger())
        self.work.clock = self.vfs.clock  # type: ignore[assignment]
        for name, value in settings.items():
            setattr(self.work, name, value)
        self.work.store = self.work.open()
        self.refusals = 0

    def fill(self) -> None:
        """Put until the disk is full, and some more; then there is room, and everything goes on."""
        self.vfs.limit(None)
        self.vfs.limit(self.vfs_size() + self.random.randrange(12) * BLOCK)
        refused = 0
        while refused < 4:
            refused += not self.do()
        self.refusals += refused
        if self.random.random() < 0.5:
            self.look()
        self.vfs.limit(None)
        for _ in range(4):
            assert self.do(), f"refused with room on the disk: {self.work.raised[-1]}"

    def vfs_size(self) -> int:
        """Return the bytes that the files take."""
        self.vfs.fill()
        used = self.vfs.used_bytes()
        self.vfs.limit(None)
        return used

    def do(self) -> bool:
        """Put something; False if there was no room for it."""
        try:
            self.draw()()
        except (DiskFull, BatchError) as error:
            self.work.raised.append(error)
            return False
        return True

    def draw(self) -> Callable[[], object]:
        """Draw what is put, how, and at which level."""
        random, work, padding = self.random, self.work, self.random.choice((5, 60, 700))
        level = random.choice(LEVELS)
        if isinstance(work, EngineWorkload):
            topic, count = random.choice(work.TOPICS), random.randint(1, 9)
            return random.choice((
                lambda: work.one(topic, count % 2, level, padding),
                lambda: work.batch(topic, level, count, padding),
                lambda: work.over_all(level, padding),
            ))  # fmt: skip
        assert isinstance(work, RocketWorkload)
        level = random.choice((work.least, *LEVELS[1:]))
        return random.choice((
            lambda: work.one(random.randrange(4), level, padding),
            lambda: work.columns(random.randint(1, 9), level, min(padding, 400)),
            lambda: work.batch(random.randrange(4), level, padding),
        ))  # fmt: skip

    def look(self) -> None:
        """What readers see is what was taken, also of messages that wait for room."""
        work = self.work
        if isinstance(work, EngineWorkload):
            work.ledger.check(work.rows(), least="memory")
        else:
            work.look()  # queues that had no room show less

    def end(self, *, killed: bool) -> None:
        """Close or die, open again, and compare."""
        work = self.work
        if isinstance(work, RocketWorkload):
            work.dispatch()  # queues, index and shards go on, too
            work.ledger.check(work.rows(), least="page_cache")
        if killed:
            work.abandon()
            self.vfs.release_locks()
        else:
            work.close()
        work.store = work.open()
        work.ledger.check(work.rows(), least="page_cache")


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("journal", [0, 6000])
def test_shards_go_on_after_a_full_disk_and_have_what_was_taken(killed: bool, journal: int) -> None:
    settings = {**EngineWorkload.settings, "journal_size_bytes": journal}
    run(EngineWorkload, killed=killed, settings=settings)


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("kind", [RocketWorkload, MappedRocketWorkload, PooledRocketWorkload])
def test_a_log_and_what_follows_it_go_on_after_a_full_disk(
    kind: type[Workload], killed: bool
) -> None:
    run(kind, killed=killed)


def run(kind: type[Workload], *, killed: bool, **settings: Any) -> None:
    seed = seed_from_environment()
    print(f"CRASH_SEED={seed}")
    filling = Filling(kind, seed, **settings)
    try:
        for number in range(FILLINGS):
            filling.fill()
            if number % 5 == 4:
                filling.end(killed=killed)
        filling.end(killed=killed)
    except AssertionError as error:
        raised = filling.work.raised[-6:]
        raise AssertionError(f"{error}; CRASH_SEED={seed}; raised before: {raised}") from error
    finally:
        filling.vfs.limit(None)
        filling.work.close()
    assert filling.refusals
