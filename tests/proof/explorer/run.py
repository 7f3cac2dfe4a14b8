"""What the random runs of both subjects share: doing one thing after the other, and promising."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from random import Random

from tests.proof.explorer.book import Book, Promise, Promises
from tests.proof.explorer.invariants import Found
from tubestore.clock import ManualClock
from tubestore.core.vfs import Vfs
from tubestore.testing import MemoryVfs


def body_of(number: int, random: Random) -> bytes:
    """Return a body that no other message has; now and then a large one."""
    size = random.choice((0, 0, 10, 40, 100, 700 if random.random() < 0.2 else 20))
    return b"%06d:" % number + bytes(random.choices(b"abcdefgh", k=size))


class RandomRun(ABC):
    """A writer that does one random thing after the other, and marks what was promised."""

    def __init__(
        self, vfs: MemoryVfs, clock: ManualClock, book: Book, promises: Promises, seed: int
    ) -> None:
        self.vfs, self.clock, self.book = vfs, clock, book
        self.promises = dict(promises)
        self.random = Random(seed)
        self.disk = self.disk_of(vfs)
        #: Whether a call to the disk has failed.
        self.is_disturbed = False
        self.open()

    def disk_of(self, vfs: MemoryVfs) -> Vfs:
        """Return the disk that the store is given; a planted bug puts another one in between."""
        return vfs

    @abstractmethod
    def things(self) -> list[tuple[Callable[[], None], int]]:
        """What it may do, with weights."""

    @abstractmethod
    def open(self) -> None:
        """Open the store."""

    @abstractmethod
    def stop(self) -> None:
        """End without writing anything."""

    @abstractmethod
    def what_is_there(self) -> Iterable[Found]:
        """Everything that the store shows."""

    def has_stopped(self) -> bool:
        """Whether a part of the store has stopped until the next opening, after a fault."""
        return False

    def step(self) -> None:
        """Do one thing."""
        things = self.things()
        self.random.choices([t for t, _ in things], [w for _, w in things])[0]()

    def die(self) -> None:
        """Be killed: what was only in memory is gone."""
        self.stop()
        self.promises = {p.id: p for p in self.promises.values() if p.level != "memory"}
        self.open()

    def mark(self, promises: list[Promise]) -> None:
        """Mark what is promised from now on."""
        self.promises.update((p.id, p) for p in promises)
        self.vfs.mark(promises)

    def promise_what_is_there(self) -> None:
        """What a recovery shows may not vanish with the process any more."""
        known = self.promises
        self.mark(
            [
                Promise(row.id, row.offset, "page_cache")
                for row in self.what_is_there()
                if row.id is not None and (row.id not in known or known[row.id].level == "memory")
            ]
        )
