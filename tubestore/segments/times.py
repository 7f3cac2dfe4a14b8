"""When the messages of one index segment were received: the extremes of each block of entries.

Times are given before the lock that gives offsets, and callers may give their own, so they are
not in order. A search that takes them for sorted finds anything (tubemq-store.md 7.5: it
throws, or says -1). Here the first block whose maximum reaches a time is where the running
maximum does: nothing before it was received as late, whatever the order inside.

Guards: `_lock` guards extension; look-ups work on the arrays that they took.
"""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]
#: Entries of a block: 16 bytes for each of them is 0.2 % of the index.
BLOCK_ENTRIES = 256
_NONE = np.empty(0, np.int64)


class Blocks(NamedTuple):
    """The extremes of whole blocks, from the segment's first entry on (int64, ms)."""

    maxima: Array
    minima: Array


class TimeIndex:
    """The times of one index segment, in blocks."""

    def __init__(self) -> None:
        self._blocks = Blocks(_NONE, _NONE)
        #: The last entry in the blocks.
        self._last = b""
        self._lock = threading.Lock()

    def adopt(self, blocks: Blocks, last: bytes) -> None:
        """Take over what was read from a cache file; `last` is the last entry in it."""
        self._blocks, self._last = blocks, last

    def ends_with(self, entry: bytes) -> bool:
        """Whether the last entry in the blocks is this one."""
        return self._last == entry

    @property
    def covered(self) -> int:
        """How many entries, from the segment's first, are in the blocks."""
        return len(self._blocks.maxima) * BLOCK_ENTRIES

    def extend(self, entries: Array) -> Blocks:
        """Bring the blocks up to `entries` (all of the segment so far) and return those of them."""
        count = len(entries) // BLOCK_ENTRIES
        blocks = self._blocks
        if len(blocks.maxima) < count:
            with self._lock:
                known = self._blocks
                done = len(known.maxima)
                if done < count:
                    fresh = blocks_of(
                        entries[done * BLOCK_ENTRIES : count * BLOCK_ENTRIES]["received_time"]
                    )
                    pairs = zip(known, fresh, strict=True)
                    self._blocks = Blocks(*(np.concatenate(pair) for pair in pairs))
                    self._last = entries[count * BLOCK_ENTRIES - 1].tobytes()
                blocks = self._blocks
        return Blocks(blocks.maxima[:count], blocks.minima[:count])

    def first_from(self, entries: Array, time: int, first: int = 0) -> int:
        """Return the first ordinal >= `first` received at or after `time`; their number if none."""
        if first >= len(entries):
            return len(entries)
        maxima = self.extend(entries).maxima
        block = first // BLOCK_ENTRIES
        late = maxima[block:] >= time
        # Two tries: in the block of `first` the late one may stand before it.
        for _ in range(2):
            step = int(late.argmax()) if late.any() else len(late)
            start = max(first, (block + step) * BLOCK_ENTRIES)
            stop = (block + step + 1) * BLOCK_ENTRIES
            found = np.flatnonzero(entries["received_time"][start:stop] >= time)
            if len(found):
                return start + int(found[0])
            if step == len(late):
                break
            late[step] = False
        return len(entries)

    def end_before(self, entries: Array, time: int) -> int:
        """Return the ordinal after the last one that was received before `time`; 0 if none was."""
        minima = self.extend(entries).minima
        tail = len(minima) * BLOCK_ENTRIES
        early = np.flatnonzero(entries["received_time"][tail:] < time)
        if len(early):
            return tail + int(early[-1]) + 1
        blocks = np.flatnonzero(minima < time)
        if not len(blocks):
            return 0
        start = int(blocks[-1]) * BLOCK_ENTRIES
        early = np.flatnonzero(entries["received_time"][start : start + BLOCK_ENTRIES] < time)
        return start + int(early[-1]) + 1


def blocks_of(times: Array) -> Blocks:
    """Return the extremes of whole blocks of times; a rest at the end counts for none."""
    count = len(times) // BLOCK_ENTRIES
    rows = times[: count * BLOCK_ENTRIES].astype(np.int64).reshape(count, BLOCK_ENTRIES)
    return Blocks(rows.max(axis=1), rows.min(axis=1))
