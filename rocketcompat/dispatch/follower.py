"""What a structure that is built from the log has to do: queues, index, shards (D2)."""

from __future__ import annotations

from typing import Protocol

from rocketcompat.messages import DispatchBatch


class Follower(Protocol):
    """A structure that is built from the log: queues, index, shards of the tube layout.

    All offsets are physical. `put_batch` and `recover` are called by one thread at a time,
    the rest by any.
    """

    name: str

    def recover(self, log_end: int, trusted: int | None) -> int:
        """Bring the files back to what some prefix of the log gives, durably.

        `trusted` is the progress mark that counts (see `progress.py`), None without one: then
        nothing in the files is to be believed that the log does not say. Nothing of records
        at or above `log_end` may stay. Returns the offset from which the log has to be handed
        over again: `log_end` at most. May be repeated after a crash at any point of it.
        """

    def mark(self, written: int, synced: int) -> None:
        """Say up to where the files are known to hold everything (after recovery or open)."""

    def put_batch(self, batch: DispatchBatch) -> None:
        """Take in the records of a batch; it begins where the batch before ended."""

    def flush(self, sync: bool) -> None:
        """Write out what is in memory; with `sync`, bring all that is written to stable storage."""

    def progress(self) -> tuple[int, int]:
        """Return (written, synced): below it everything is in the page cache / on stable storage.

        Never ahead of what is true: a kill, or a power cut, right now must leave it true.
        """

    def close(self) -> None:
        """Give the descriptors back."""
