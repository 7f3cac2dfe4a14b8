"""Plan what retention removes of shards, by age and by size, with reasons (decisions.md D14).

| rule | why |
| --- | --- |
| whole data segments go, the oldest first | what is left has no gap |
| an index segment goes when all that its entries point to has gone | neither outlives the other |
| the segments that are written to stay | … unless all in them is too old: then they are sealed |
| by age: the newest message of a segment counts, not the file's time | a copy is as old as it was |
| by size: of several shards, the one with the oldest messages gives first | |
| what a lease holds stays, and everything behind it | a reader is at it |
| what a group has not read stays, if retention waits for it | its members may be away |

A message with a time in the future counts as old as its file: a wrong clock at a sender would keep
everything behind it for ever.

This module only plans. `MessageStore.remove_below` removes; `housekeeping.py` decides when.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from tubestore.core.old_paths import FormerName
from tubestore.core.vfs import Vfs
from tubestore.record.names import store_key
from tubestore.record.records import ENTRY_SIZE, entries_in
from tubestore.segments.file_store import FileSnapshot
from tubestore.segments.segment import FileSegment
from tubestore.store.leases import LeaseRecord
from tubestore.values import age_text, size_text

Array = np.ndarray[Any, Any]


class RetentionBounds(NamedTuple):
    """What is kept of a topic's messages; None: no bound."""

    max_age_ms: int | None = None
    max_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class SegmentRow:
    """The verdict on one segment; times in ms since the epoch, None without messages.

    `stream`: "data" or "index"; `verdict`: "goes" or "stays"; `due_ms`: when its age lets it go,
    None without a bound on the age.
    """

    topic: str
    store_id: int
    stream: str
    path: str
    start: int
    bytes: int
    first_time_ms: int | None
    last_time_ms: int | None
    verdict: str
    reason: str
    due_ms: int | None
    #: Their former names.
    first_time = FormerName("first_time_ms")
    last_time = FormerName("last_time_ms")
    due = FormerName("due_ms")


class Times(NamedTuple):
    """The oldest and the newest message of a segment, and what counts as its age."""

    first: int | None
    last: int | None
    counts: int


@dataclass
class ShardPlan:
    """One shard's segments, oldest first: the first `count` of its data segments go."""

    vfs: Vfs
    topic: str
    store_id: int
    ends: FileSnapshot
    leases: Sequence[LeaseRecord]
    now_ms: int
    #: True if segments that are written to may be sealed: no other writer, nothing in memory.
    may_seal: bool = False
    count: int = 0
    _reasons: list[str] = field(default_factory=list)
    _times: dict[int, Times] = field(default_factory=dict)
    _reaches: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.data: list[FileSegment] = list(self.ends.data_segments)
        self.index: list[FileSegment] = list(self.ends.index_segments)
        self.holder: LeaseRecord | None = None
        #: Data from here on is held by a lease.
        self.held_from = self.data[-1].end if self.data else 0
        for lease in self.leases:
            offset = lease.holds(store_key(self.topic, self.store_id))
            held = None if offset is None else self._data_at(offset)
            if held is not None and held < self.held_from:
                self.held_from, self.holder = held, lease

    # -- what goes ---------------------------------------------------------------------------

    @property
    def data_start(self) -> int:
        """Data below this offset goes."""
        return self.data[self.count - 1].end if self.count else self.ends.data_start

    def expire(self, max_age_ms: int, reason: str) -> None:
        """Let all older segments go."""
        cutoff = self.now_ms - max_age_ms
        while (number := self._next(seal=self.may_seal)) is not None:
            if self._has_newer(number, cutoff) or self.times(number).counts >= cutoff:
                return
            self._let_go(reason)

    def _has_newer(self, number: int, cutoff: int) -> bool:
        """True if the last message of all is newer: most shards then need no further read."""
        if number < len(self.data) - 1 or not self.index or self.index[-1].size < ENTRY_SIZE:
            return False
        return bool(cutoff <= _last_entry(self.index[-1])["received_time"] <= self.now_ms)

    def due_at(self, max_age_ms: int) -> int:
        """Return the time before which no age lets anything go, as long as nothing is appended."""
        if not any(segment.size for segment in self.data):
            return self.now_ms + max_age_ms
        number = self._next(seal=self.may_seal)
        if number is None:  # a lease may end at any time
            return self.now_ms
        if self._has_newer(number, self.now_ms - max_age_ms):
            return int(_last_entry(self.index[-1])["received_time"]) + max_age_ms
        return self.times(number).counts + max_age_ms

    def oldest(self) -> int | None:
        """Return the age (as a time) of the segment that would go next by size."""
        number = self._next(seal=False)
        return None if number is None else self.times(number).counts

    def shrink(self, reason: str) -> int:
        """Let one more segment go; returns how many bytes that frees, index included."""
        before = self.kept_bytes()
        self._let_go(reason)
        return before - self.kept_bytes()

    def kept_bytes(self) -> int:
        """Return the bytes of both streams that stay."""
        gone = self.index_count()
        return sum(s.size for s in self.data[self.count :]) + sum(s.size for s in self.index[gone:])

    def index_count(self) -> int:
        """Return how many index segments go: all that their entries point to has gone."""
        if not self.count:
            return 0
        all_goes = self.may_seal and self.data_start == self.data[-1].end
        sealed = self.index if all_goes and self.index[-1].size else self.index[:-1]
        reaches = (n for n, s in enumerate(sealed) if self._reach(s) >= self.data_start)
        return next(reaches, len(sealed))

    def _next(self, *, seal: bool) -> int | None:
        """Return the number of the data segment that may go next."""
        if self.count >= len(self.data):
            return None
        segment = self.data[self.count]
        if segment.end > self.held_from or not segment.size:
            return None
        return self.count if seal or self.count < len(self.data) - 1 else None

    def _let_go(self, reason: str) -> None:
        self.count += 1
        self._reasons.append(reason)

    # -- from the index ----------------------------------------------------------------------

    def _data_at(self, index_offset: int) -> int | None:
        """Return the data offset of the first message at or behind an index offset."""
        if index_offset <= self.ends.index_start:
            return self.ends.data_start
        for segment in self.ends.index_segments.between(index_offset, self.ends.index_end):
            entries = self._entries(segment)
            first = max(0, -(-(index_offset - segment.start) // ENTRY_SIZE))
            offsets = entries["data_offset"][first:]
            valid = offsets[(offsets >= 0) & (offsets < self.ends.data_end)]
            if len(valid):
                return int(valid[0])
        return None

    def _reach(self, segment: FileSegment) -> int:
        """Return the highest data offset that an index segment's entries point to, -1 for none."""
        if segment.start not in self._reaches:
            highest, end = -1, self.ends.data_end
            if segment.size >= ENTRY_SIZE:
                highest = int(_last_entry(segment)["data_offset"])
                if not 0 <= highest < end:  # they ascend; in a damaged segment all are compared
                    offsets = self._entries(segment)["data_offset"]
                    highest = int(offsets[offsets < end].max(initial=-1))
            self._reaches[segment.start] = highest
        return self._reaches[segment.start]

    def _entries(self, segment: FileSegment) -> Array:
        return entries_in(segment.view(min(segment.end, self.ends.index_end)))

    def times(self, number: int) -> Times:
        """Return the times of a data segment's messages."""
        if number not in self._times:
            segment = self.data[number]
            found = []
            for index in self.index:
                if self._reach(index) < segment.start:
                    continue
                entries = self._entries(index)
                offsets = entries["data_offset"]
                inside = (offsets >= segment.start) & (offsets < segment.end)
                found.append(entries["received_time"][inside])
                if offsets[0] >= segment.end:
                    break
            self._times[number] = self._judged(segment, np.concatenate([*found, _NO_TIMES]))
        return self._times[number]

    def index_times(self, segment: FileSegment) -> Times:
        """Return the times of an index segment's messages."""
        return self._judged(segment, self._entries(segment)["received_time"])

    def _judged(self, segment: FileSegment, times: Array) -> Times:
        if not len(times):
            return Times(None, None, self.vfs.modified_ms(segment.path))
        first, last = int(times.min()), int(times.max())
        if last <= self.now_ms:
            return Times(first, last, last)
        return Times(first, last, min(last, self.vfs.modified_ms(segment.path)))

    # -- rows --------------------------------------------------------------------------------

    def rows(self, bounds: RetentionBounds, *, all_rows: bool = True) -> list[SegmentRow]:
        """Return a row a segment, or for each that goes: data before index, the oldest first."""
        rows = []
        for number, segment in enumerate(self.data):
            goes = number < self.count
            if not goes and not all_rows:
                break
            reason = self._reasons[number] if goes else self._why_not(number, bounds)
            rows.append(self._row("data", segment, self.times(number), goes, reason, bounds))
        gone = self.index_count()
        for number, segment in enumerate(self.index):
            if number >= gone and not all_rows:
                break
            if number < gone:
                reason = "what its entries point to goes"
            elif segment is self.index[-1]:
                reason = "it is written to"
            else:
                reason = "its entries point to data that stays"
            times = self.index_times(segment)
            rows.append(self._row("index", segment, times, number < gone, reason, bounds))
        return rows

    def _row(
        self,
        stream: str,
        segment: FileSegment,
        times: Times,
        goes: bool,
        reason: str,
        bounds: RetentionBounds,
    ) -> SegmentRow:
        age = bounds.max_age_ms
        return SegmentRow(
            self.topic,
            self.store_id,
            stream,
            segment.path,
            segment.start,
            segment.size,
            times.first,
            times.last,
            "goes" if goes else "stays",
            reason,
            None if age is None or not segment.size else times.counts + age,
        )

    def _why_not(self, number: int, bounds: RetentionBounds) -> str:
        segment = self.data[number]
        if segment.end > self.held_from and self.holder is not None:
            return self.holder.reason
        if number > self.count:
            return "an older one stays"
        if number == len(self.data) - 1:
            return "it is written to"
        if bounds == RetentionBounds():
            return "no bound is set"
        age = bounds.max_age_ms
        if age is not None and self.times(number).counts >= self.now_ms - age:
            return f"its newest message is not older than {age_text(age)}"
        return "what is kept is within the bound"


_NO_TIMES: Array = np.empty(0, np.int64)


def _last_entry(segment: FileSegment) -> Any:
    place = (segment.size // ENTRY_SIZE - 1) * ENTRY_SIZE
    return entries_in(segment.read(segment.start + place, ENTRY_SIZE))[0]


def keep_within(plans: Sequence[ShardPlan], max_bytes: int) -> None:
    """Let the oldest segments of several shards go until all together are within `max_bytes`."""
    kept = sum(plan.kept_bytes() for plan in plans)
    reason = f"more than {size_text(max_bytes)} are kept"
    heap = [(age, n) for n, plan in enumerate(plans) if (age := plan.oldest()) is not None]
    heapq.heapify(heap)
    while heap and kept > max_bytes:
        _, number = heapq.heappop(heap)
        kept -= plans[number].shrink(reason)
        age = plans[number].oldest()
        if age is not None:
            heapq.heappush(heap, (age, number))


def plan(plans: Sequence[ShardPlan], bounds: RetentionBounds) -> None:
    """Apply a topic's bounds to its shards."""
    if bounds.max_age_ms is not None:
        reason = f"its newest message is older than {age_text(bounds.max_age_ms)}"
        for shard in plans:
            shard.expire(bounds.max_age_ms, reason)
    if bounds.max_bytes is not None:
        keep_within(plans, bounds.max_bytes)
