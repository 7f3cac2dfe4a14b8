"""What is known of a shard's index segments: posting lists, times and totals, live or kept.

Everything here can be found out again from the index; a sealed segment's is kept in a cache
file once somebody has asked for it.

Guards: the mappings are changed by single steps that any thread may take; two that ask at the
same moment may both find out, and one result stays.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tubestore.core.paths import OWN_DIRECTORY, join
from tubestore.core.vfs import Vfs
from tubestore.options import PARTITIONS_PER_STORE
from tubestore.record.names import POSTINGS_SUFFIX, TIMES_SUFFIX, segment_name
from tubestore.record.records import ENTRY_SIZE, entries_in
from tubestore.segments import index_caches
from tubestore.segments.postings import PartitionIndex
from tubestore.segments.segment import FileSegment
from tubestore.segments.segment_list import FileSegmentList
from tubestore.segments.summaries import BLOCK_ENTRIES, PartitionTotals, TimeIndex

Array = np.ndarray[Any, Any]
_TIMES = "received_time"
_TOTALS = "totals"
_Key = tuple[int, str]


class IndexLists:
    """Posting lists and times of the index segments of one shard, by where a segment starts."""

    def __init__(self, vfs: Vfs, directory: str, store_id: int) -> None:
        self._vfs, self._directory = vfs, directory
        self._first_partition_id = store_id * PARTITIONS_PER_STORE
        self._lists: dict[_Key, PartitionIndex | TimeIndex | PartitionTotals] = {}
        self._kept: set[_Key] = set()

    def postings(self, segment: FileSegment, field: str) -> PartitionIndex:
        """Return the posting lists of an index segment by "partition_id" or "key_code"."""
        key = (segment.start, field)
        lists = self._lists.get(key)
        if lists is None:
            lists = PartitionIndex(field, self._first_partition_id)
            if segment.sealed:
                run = index_caches.read_postings(
                    self._vfs, self._directory, segment, field, lists.key_dtype
                )
                if run is not None:
                    lists.adopt(run, _entry_before(segment, run.end))
                    self._kept.add(key)
            lists = self._lists.setdefault(key, lists)
        assert isinstance(lists, PartitionIndex)
        return lists

    def times(self, segment: FileSegment) -> TimeIndex:
        """Return the times of an index segment."""
        key = (segment.start, _TIMES)
        times = self._lists.get(key)
        if times is None:
            times = TimeIndex()
            if segment.sealed:
                blocks = index_caches.read_times(self._vfs, self._directory, segment)
                if blocks is not None:
                    covered = len(blocks.maxima) * BLOCK_ENTRIES
                    times.adopt(blocks, _entry_before(segment, covered))
                    self._kept.add(key)
            times = self._lists.setdefault(key, times)
        assert isinstance(times, TimeIndex)
        return times

    def totals(self, segment: FileSegment) -> PartitionTotals:
        """Return what each partition has in an index segment."""
        key = (segment.start, _TOTALS)
        totals = self._lists.get(key)
        if totals is None:
            totals = PartitionTotals(segment.start, self._first_partition_id)
            totals = self._lists.setdefault(key, totals)
        assert isinstance(totals, PartitionTotals)
        return totals

    def forget(self, segment: FileSegment) -> None:
        """Drop what is known of a segment that is gone, in memory and in cache files."""
        for key in [key for key in self._lists if key[0] == segment.start]:
            self._lists.pop(key, None)
            self._kept.discard(key)
        own = join(self._directory, OWN_DIRECTORY)
        first = segment_name(segment.start, ".")
        for name, _, _ in self._vfs.entries(own):
            if name.endswith((POSTINGS_SUFFIX, TIMES_SUFFIX)) and name.startswith(first):
                self._vfs.remove(join(own, name))

    def clear(self) -> None:
        """Forget everything: the index was cut."""
        self._lists.clear()
        self._kept.clear()

    def forget_stale(self, index: FileSegmentList) -> None:
        """Drop what describes entries that are no longer there: a writer took them back."""
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
                self._kept.discard(key)

    def keep(self, index: FileSegmentList) -> None:
        """Write down what somebody has asked for of sealed segments."""
        by_start = {segment.start: segment for segment in index if segment.sealed}
        for key, lists in list(self._lists.items()):
            segment = by_start.get(key[0])
            if segment is None or key in self._kept or isinstance(lists, PartitionTotals):
                continue
            self._kept.add(key)
            entries = entries_in(segment.view(segment.end))
            place = (self._vfs, self._directory, segment)
            if isinstance(lists, TimeIndex):
                index_caches.write_times(*place, lists.extend(entries))
            else:
                index_caches.write_postings(*place, key[1], lists.merged(entries))


def _entry_before(segment: FileSegment, ordinal: int) -> bytes:
    """Return the bytes of the entry before this one; none before the first."""
    if not ordinal:
        return b""
    return bytes(segment.read(segment.start + (ordinal - 1) * ENTRY_SIZE, ENTRY_SIZE))
