"""One of a shard's two buffers: messages that have an offset and are not in the files yet.

Invariants:
- offsets are given out in order and without gap: a message's index offset and data offset
  are fixed when it enters, from where the buffer before it (or the files) ended;
- a message leaves only by a flush that succeeded;
- no I/O here.

Guards: everything is called under the shard's append lock. An `EncodedBatch` that was handed
out does not change any more.

Messages that came one by one stay header and payload until a flush or a reader needs bytes. They
are then joined and placed together, which makes one-by-one appends cheap. A reader that comes after
each message would leave a batch for each: small batches are merged, so that each one is at least
twice as long as the one after it.
"""

from __future__ import annotations

import numpy as np

from tubestore.core.layout import Buffer
from tubestore.record.layouts import INDEX_ENTRY
from tubestore.record.records import (
    ENTRY_SIZE,
    HEADER_SIZE,
    EncodedBatch,
    Placed,
    join_records,
    merged,
)


class MsgMemStore:
    """A bounded buffer of data and index entries."""

    __slots__ = (
        "_batches",
        "count",
        "data_end",
        "data_start",
        "first_time",
        "index_start",
        "parts",
        "ring_start",
    )

    def __init__(self, index_start: int, data_start: int) -> None:
        self.index_start = index_start
        self.data_start = self.data_end = data_start
        self.count = 0
        #: When the first message entered (monotonic seconds); 0.0 while it is empty.
        self.first_time = 0.0
        #: No message has a frame below this ring position.
        self.ring_start = 0
        self._batches: list[Placed] = []
        #: Headers and payloads in turn, of the last messages; `WriteBuffer.add` appends here too.
        self.parts: list[bytes] = []

    @property
    def index_end(self) -> int:
        """The offset after its last index entry."""
        return self.index_start + ENTRY_SIZE * self.count

    @property
    def size_bytes(self) -> int:
        """Bytes of records in the buffer."""
        return self.data_end - self.data_start

    def has_room(self, size: int, count: int, size_max: int, count_max: int) -> bool:
        """True if `count` messages of `size` bytes fit; an empty buffer takes any."""
        if self.count == 0:
            return True
        return self.size_bytes + size <= size_max and self.count + count <= count_max

    def add(self, header: bytes, payload: bytes) -> int:
        """Append one message; returns its index offset."""
        size = HEADER_SIZE + len(payload)
        offset = self.index_start + ENTRY_SIZE * self.count
        # No call from here on: an interrupt comes before all of it or behind.
        self.parts += (header, payload)
        self.data_end += size
        self.count += 1
        return offset

    def add_block(self, entries: Buffer, records: Buffer, count: int) -> None:
        """Append `count` messages that are encoded for this very place."""
        self._join()
        batch = EncodedBatch(
            np.frombuffer(records, np.uint8),
            np.frombuffer(entries, INDEX_ENTRY.dtype),
            np.empty(0, np.int64),
        )
        self._add(Placed(self.index_end, self.data_end, batch), len(records), count)

    def add_batch(self, batch: EncodedBatch) -> int:
        """Append a batch and place it; returns the index offset of its first message."""
        self._join()
        offset = self.index_end
        batch.place(offset, self.data_end)
        self._add(Placed(offset, self.data_end, batch), len(batch.data), len(batch))
        return offset

    def _add(self, placed: Placed, size: int, count: int) -> None:
        # Without a call: see `add`.
        self._batches += (placed,)
        self.data_end += size
        self.count += count

    def batches(self) -> tuple[Placed, ...]:
        """Return all messages in order, encoded."""
        if self.parts:
            self._join()
            batches, size = self._batches, len(self._batches[-1].batch.data)
            first = len(batches) - 1
            while first and len(batches[first - 1].batch.data) < 2 * size:
                first -= 1
                size += len(batches[first].batch.data)
            if first < len(batches) - 1:
                batches[first:] = [merged(batches[first:])]
        return tuple(self._batches)

    def _joined_end(self) -> tuple[int, int]:
        """Return where the last batch ends, in the index and in the data."""
        if not self._batches:
            return self.index_start, self.data_start
        last = self._batches[-1]
        return last.index_end, last.data_start + len(last.batch.data)

    def _join(self) -> None:
        if self.parts:
            place = self._joined_end()
            placed = Placed(*place, join_records(self.parts, *place))
            # Without a call: see `add`.
            self._batches += (placed,)
            self.parts = []

    def check_invariants(self) -> None:
        """Raise AssertionError if the fields contradict each other; for tests."""
        place = self.index_start, self.data_start
        for placed in self._batches:
            assert (placed.index_start, placed.data_start) == place, "a gap between batches"
            place = placed.index_end, placed.data_start + len(placed.batch.data)
        index_end = place[0] + ENTRY_SIZE * (len(self.parts) // 2)
        data_end = place[1] + sum(map(len, self.parts))
        assert (index_end, data_end) == (self.index_end, self.data_end), "ends without messages"
