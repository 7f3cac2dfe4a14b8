"""What was asked of a disk, in order, and what had been promised by then.

`MemoryVfs.record()` returns a `Journal`; `crash.py` replays it up to every moment.
Compound calls are recorded as their parts (a `replace_file` is a create, a pwrite, a sync,
a rename and a sync of the directory), since the power may fail between any two of them.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

from tubestore.testing.calls import Call
from tubestore.testing.disk import Disk


class Journal:
    """The calls since recording began, on top of the disk as it was then."""

    def __init__(self, start: Disk) -> None:
        self.start = start
        self.calls: list[Call] = []
        self._marks: list[Any] = []
        self._marked_at: list[int] = []

    def __len__(self) -> int:
        return len(self.calls)

    def mark(self, payload: Any) -> None:
        """Note what is known now, e.g. that a message was acknowledged."""
        self._marked_at.append(len(self.calls))
        self._marks.append(payload)

    def end(self) -> Disk:
        """Return the disk after all calls."""
        disk = self.start.fork()
        for call in self.calls:
            disk.apply(call)
        return disk

    def marks_until(self, step: int) -> list[Any]:
        """Return the marks that were set before the call after `step` calls began."""
        return self._marks[: self.count_marks_until(step)]

    def count_marks_until(self, step: int) -> int:
        """Return how many marks `marks_until` would return."""
        return bisect_right(self._marked_at, step)
