"""What the dispatcher needs of a structure built from the log, also of a caller's own (D2)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from rocketcompat.commitlog.reads import ReadableLog
from rocketcompat.files.progress import QueueKey, Trust
from rocketcompat.messages import DispatchBatch
from tubestore.errors import TubeStoreError


class Receiver(Protocol):
    """Gets the batches of a dispatcher."""

    name: str

    @abstractmethod
    def put(self, batch: DispatchBatch) -> None:
        """Take in the records of a batch; it begins where the batch before ended.

        After an OSError without room the same batch comes again; after any other error none comes
        before the store is opened again.
        """


class Follower(Receiver, Protocol):
    """A structure that is built from the log; all offsets are physical.

    The order of the calls of an opening: `attach`, `recover`, `put` for what the structure lacks,
    `replayed`. `put` and `recover` are called by one thread at a time, the rest by any.
    A subclass defines `recover`, `put`, `flush` and `ends`; what it does not need it inherits.
    """

    @property
    def problems(self) -> Sequence[TubeStoreError]:
        """What is wrong with the files; a reader does without a structure that has problems."""
        return ()

    def attach(
        self, log_minimum: int, log_end: int | None, ends: Mapping[QueueKey, int] | None = None
    ) -> None:
        """Take in the files. A reader shows nothing from `log_end` on; None for a writer.

        `ends` are the next offsets of the queues if the store was closed cleanly.
        """
        return

    @property
    def places(self) -> int | None:
        """A count that shows a loss: units, or items, as of the synced end; None without one."""
        return None

    @abstractmethod
    def recover(
        self, log: ReadableLog, trust: Trust, lower_mark: Callable[[int], None] | None
    ) -> int:
        """Bring the files back to what some prefix of the log gives, durably; returns its end.

        From there on the log is handed over again. Without `trust.mark` the files prove nothing
        that the log does not contain. Nothing of records at or above `log.max_offset` may stay.
        What lies below the mark may be dropped only after `lower_mark(offset)`, which is durable:
        a later recovery would trust the mark again. None: the mark must not be relied on alone.
        May be repeated after a crash at any point of it.
        """

    def replayed(self) -> None:
        """Forget what only recovery needed: the log was handed over up to its end once."""
        return

    @abstractmethod
    def flush(self, sync: bool) -> None:
        """Write out what is in memory; with `sync`, bring all that is written to stable storage."""

    def flush_due(self, least_pages: int) -> int:
        """Sync the files with at least so many dirty pages; returns how many. Moves no mark."""
        return 0

    def expire(self, log_minimum: int) -> int:
        """Delete files that only hold records below an offset; returns how many, durably."""
        return 0

    @property
    @abstractmethod
    def ends(self) -> tuple[int, int]:
        """(written, synced): all below is in the page cache, and on stable storage.

        Never above what is true: a kill, or a power cut, right now must leave it true.
        """

    def close(self) -> None:
        """Give the descriptors back."""
        return
