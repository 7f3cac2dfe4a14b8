"""Has shards write what the oldest segment of a full ring holds, a few at a time.

The append that needs a segment would else wait for a thousand shards. So each step of the ring's
end has some shards write, so many that the oldest segment is in the files twice as early as it is
needed. This begins when one segment is left before it: earlier, shards would write more often and
in smaller pieces.

Nothing depends on it: before a segment is used again all its shards are asked once more, as one
may have failed meanwhile.

Guards: the ring's turn.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from tubestore.errors import TubeStoreError
from tubestore.journal.ring_segment import RingShard, Segment


class EarlyWrites:
    """The shards of one segment that are still to be asked, and how far that has come."""

    def __init__(self) -> None:
        """Begin with no segment."""
        self._due: list[RingShard] = []
        #: How many are asked at each step.
        self._count = 0
        #: Ring position below which all shards were asked, or are in `_due`.
        self._below = 0

    def step(self, full: Sequence[Segment], spare: int, steps: int) -> None:
        """Have some shards write.

        `full`: the segments that are full, in the ring's order; `spare`: how many can be begun
        before the first of them is needed; `steps`: how often this is called for a segment.
        """
        if not self._due:
            if spare > 1 or not full or full[0].end <= self._below:
                return
            oldest = full[0]
            self._below = oldest.end
            self._due = list(oldest.shards)  # one that has written since is asked in vain
            self._count = -(-2 * len(self._due) // steps)
        for _ in range(min(self._count, len(self._due))):
            shard = self._due.pop()
            # One that fails or is held is asked again, by the thread that needs the segment.
            with contextlib.suppress(TubeStoreError):
                if not shard.is_deleted():
                    shard.write_below(self._below, patience=0)
