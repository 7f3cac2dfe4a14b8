"""Lookups of a shard's index segments: posting lists, times and totals, computed when used.

Everything here follows from the index and is kept in memory only (decisions.md D3).

Guards: the mapping is changed by single steps that any thread may take; two threads at the same
moment may both compute a lookup, and one result stays.
"""

from __future__ import annotations

from tubestore.options import PARTITIONS_PER_STORE
from tubestore.record.records import ENTRY_SIZE
from tubestore.segments.postings import PartitionIndex
from tubestore.segments.segment import FileSegment
from tubestore.segments.segment_list import FileSegmentList
from tubestore.segments.summaries import PartitionTotals, TimeIndex

_TIMES = "received_time"
_TOTALS = "totals"


class IndexLists:
    """Posting lists, times and totals of the index segments of one shard, by a segment's start."""

    def __init__(self, store_id: int) -> None:
        self._first_partition_id = store_id * PARTITIONS_PER_STORE
        self._lists: dict[tuple[int, str], PartitionIndex | TimeIndex | PartitionTotals] = {}

    def postings(self, segment: FileSegment, field: str) -> PartitionIndex:
        """Return the posting lists of an index segment by "partition_id" or "key_code"."""
        key = (segment.start, field)
        lists = self._lists.get(key)
        if lists is None:
            lists = self._lists.setdefault(key, PartitionIndex(field, self._first_partition_id))
        assert isinstance(lists, PartitionIndex)
        return lists

    def times(self, segment: FileSegment) -> TimeIndex:
        """Return the times of an index segment."""
        key = (segment.start, _TIMES)
        times = self._lists.get(key)
        if times is None:
            times = self._lists.setdefault(key, TimeIndex())
        assert isinstance(times, TimeIndex)
        return times

    def totals(self, segment: FileSegment) -> PartitionTotals:
        """Return the totals of each partition in an index segment."""
        key = (segment.start, _TOTALS)
        totals = self._lists.get(key)
        if totals is None:
            totals = PartitionTotals(segment.start, self._first_partition_id)
            totals = self._lists.setdefault(key, totals)
        assert isinstance(totals, PartitionTotals)
        return totals

    def forget(self, segment: FileSegment) -> None:
        """Drop what is known of a segment that is gone."""
        for key in [key for key in self._lists if key[0] == segment.start]:
            self._lists.pop(key, None)

    def clear(self) -> None:
        """Forget everything: the index was cut."""
        self._lists.clear()

    def forget_stale(self, index: FileSegmentList) -> None:
        """Drop lookups of entries that are no longer there: a writer took them back."""
        for key, lists in list(self._lists.items()):
            if not lists.covered:
                continue
            segment = index.find(key[0])
            covered = lists.covered
            if (
                segment is None
                or covered * ENTRY_SIZE > segment.size
                or not lists.ends_with(_entry_before(segment, covered))
            ):
                self._lists.pop(key, None)


def _entry_before(segment: FileSegment, ordinal: int) -> bytes:
    """Return the bytes of the entry before this one; none before the first."""
    if not ordinal:
        return b""
    return bytes(segment.read(segment.start + (ordinal - 1) * ENTRY_SIZE, ENTRY_SIZE))
