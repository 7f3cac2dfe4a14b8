"""Look for intact records among bytes of any kind: behind damage, in front of a torn tail.

Damaged bytes may be chosen by an attacker: a payload full of tokens, headers that overlap and
claim 28 MiB each. So no candidate is examined by itself: a window's tokens are found, its headers
judged and its checksums computed in columns, each byte a bounded number of times, and the result
for the last window is kept for a search that goes on from there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tubestore.core import kernels
from tubestore.core.layout import Buffer
from tubestore.record.layouts import (
    CHECKSUM_MASK,
    DATA_HEADER,
    RECORD_SIZE_MAX,
    TOKEN_MESSAGE,
    record_sizes,
)
from tubestore.record.records import ENTRY_SIZE, HEADER_SIZE

Array = np.ndarray[Any, Any]

#: Records that begin in so many bytes are looked for together.
WINDOW_BYTES = 4 << 20
_TOKEN = np.frombuffer(TOKEN_MESSAGE.to_bytes(4, "big"), np.uint8)
_TOKEN_AT = DATA_HEADER.position("token")
_NONE = np.empty(0, np.int64)


class RecordSearch:
    """The intact records of [start, end) of a stream of bytes; not thread-safe.

    Intact: token, length and checksum are right, and its own index offset is -1 (TubeMQ 1.2.0
    without caches) or a multiple of an entry's size: a record inside a payload is mostly
    not taken for one of the shard.
    """

    def __init__(self, read: Callable[[int, int], Buffer], start: int, end: int) -> None:
        """`read(position, size)` gives bytes; fewer where a file was cut since."""
        self._read, self.start, self.end = read, start, end
        self._window = -1
        #: Of the window: where intact records begin and end, and their own index offsets.
        self._starts = self._ends = self._own = _NONE

    def find(self, position: int, end: int, index_from: int) -> int | None:
        """Return where the next intact record at or after `position` begins, None without one.

        It ends at or before `end`; its own index offset is -1 or at least `index_from`.
        """
        end = min(end, self.end)
        while position + HEADER_SIZE < end:
            window = (position - self.start) // WINDOW_BYTES
            if window != self._window:
                self._look_into(window)
            first = int(self._starts.searchsorted(position))
            own = self._own[first:]
            fits = (self._ends[first:] <= end) & ((own == -1) | (own >= index_from))
            place = int(fits.argmax()) if len(fits) else 0
            if len(fits) and fits[place]:
                return int(self._starts[first + place])
            position = self.start + (window + 1) * WINDOW_BYTES
        return None

    def _look_into(self, window: int) -> None:
        """Find all intact records that begin in a window."""
        self._window = window
        low = self.start + window * WINDOW_BYTES
        data = self._read(low, min(WINDOW_BYTES + HEADER_SIZE, self.end - low))
        starts, sizes, headers = _possible(kernels.bytes_of(data), self.end - low)
        if len(starts):
            reach = int((starts + sizes).max())
            if reach > len(data):
                data = self._read(low, reach)
            there = starts + sizes <= len(data)
            starts, sizes, headers = starts[there], sizes[there], headers[there]
            sums = kernels.crc_overlapping(
                data, starts + HEADER_SIZE, starts + sizes, CHECKSUM_MASK
            )
            intact = sums == headers["checksum"]
            starts, sizes, headers = starts[intact], sizes[intact], headers[intact]
        self._starts, self._ends = low + starts, low + starts + sizes
        self._own = headers["queue_logic_offset"].astype(np.int64)


def _possible(data: Array, room: int) -> tuple[Array, Array, Array]:
    """Return (starts, sizes, headers) of what can be records by their headers alone.

    `room`: how many bytes there are from the first of `data` on.
    """
    tokens = data[_TOKEN_AT : max(_TOKEN_AT, len(data) - HEADER_SIZE + _TOKEN_AT + len(_TOKEN))]
    starts = np.flatnonzero(tokens[: max(0, len(tokens) - len(_TOKEN) + 1)] == _TOKEN[0])
    for place in range(1, len(_TOKEN)):
        starts = starts[tokens[starts + place] == _TOKEN[place]]
    headers = kernels.gather(data, starts, DATA_HEADER.dtype)
    sizes = record_sizes(headers)
    own = headers["queue_logic_offset"].astype(np.int64)
    good = (sizes > HEADER_SIZE) & (sizes <= RECORD_SIZE_MAX) & (starts + sizes <= room)
    good &= (own == -1) | ((own >= 0) & (own % ENTRY_SIZE == 0))
    good &= starts < WINDOW_BYTES
    return starts[good], sizes[good], headers[good]
