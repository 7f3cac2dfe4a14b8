"""What every part of an open store is given: its directory, its settings, its clock, its ids.

The context is made first and handed down; parts know each other only from above to below.

Guards: `MessageIds._lock` guards the counter while it is moved; taking one id is a single step.
"""

from __future__ import annotations

import itertools
import threading
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from tubestore.clock import Clock
from tubestore.core.memory_pool import MemoryPool
from tubestore.core.vfs import Vfs
from tubestore.errors import ReadOnlyStore, StoreClosed, TubeStoreError
from tubestore.options import StoreOptions
from tubestore.store.directory import ShardRegister, StoreDirectory

Array = np.ndarray[Any, Any]
#: More than there are threads.
_ID_GAP = 1 << 12


class MessageIds:
    """Gives message ids that no message of the store has.

    >>> from tubestore.clock import ManualClock
    >>> ids = MessageIds(ManualClock(1))
    >>> ids.next(), ids.next()
    (1048576, 1048577)
    """

    def __init__(self, clock: Clock) -> None:
        self._lock = threading.Lock()
        # A million ids a millisecond: the process that opens the store later begins above them.
        self._count_from(clock.now_ms() << 20)

    def _count_from(self, first: int) -> None:
        #: Returns an id; one atomic step, at a quarter of the time of a lock.
        self.next = itertools.count(first).__next__

    def next_many(self, count: int) -> Array:
        """Reserve `count` ids in a row (int64)."""
        with self._lock:
            # With a gap: other threads may be about to take one from the counter before.
            first = self.next() + _ID_GAP
            self._count_from(first + count)
        return np.arange(first, first + count, dtype=np.int64)


class OpenState:
    """The state of a store: open, or the reason why it is not."""

    def __init__(self) -> None:
        #: Why the store refuses calls; None while it is open.
        self.closed: str | None = "it was never open"


@dataclass(frozen=True, slots=True, eq=False)
class Context:
    """What the parts of one open store share."""

    directory: StoreDirectory
    mode: Literal["w", "r"]
    options: StoreOptions
    clock: Clock
    vfs: Vfs
    ids: MessageIds
    #: The bound on the buffers of all shards together.
    pool: MemoryPool
    #: What is recorded of each shard outside of its directory.
    register: ShardRegister
    #: What opening found, and what failed in the background.
    problems: list[TubeStoreError] = field(default_factory=list)
    state: OpenState = field(default_factory=OpenState)

    @property
    def root(self) -> str:
        """The directory of the store."""
        return self.directory.root

    def check_open(self, *, writing: bool = False) -> None:
        """Raise StoreClosed unless the store is open; ReadOnlyStore if it cannot be written to."""
        if self.state.closed is not None:
            raise StoreClosed(f"{self.root}: {self.state.closed}")
        if writing and self.mode == "r":
            raise ReadOnlyStore(f"{self.root} was opened with mode='r'")

    def check_writer(self) -> None:
        """As `check_open(writing=True)`; Overtaken if another process has opened the store since.

        One call of the system: for what is rare, or is synced anyway.
        """
        self.check_open(writing=True)
        self.directory.check_writer()

    def note_problem(self, problem: TubeStoreError) -> None:
        """Keep an error that no caller waits for; each text once."""
        if str(problem) not in map(str, self.problems):
            self.problems.append(problem)
