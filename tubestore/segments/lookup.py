"""Lookups of a shard's index segments: posting lists, times and totals, live or kept.

Everything here follows from the index. The lookups of a sealed segment are kept in a file, so that
they are computed once:

    <shard>/.tubestore/<20 digits>.<field>.postings     the posting lists by a field
    <shard>/.tubestore/<20 digits>.times                the extremes of the times, block by block

Caches (decisions.md D1): a file has the length and digest of the index segment that it describes.
If these do not fit, or its own digest does not, it is ignored and replaced. The headers are
followed by little-endian integers.

Guards: the mappings are changed by single steps that any thread may take; two threads at the same
moment may both compute a lookup, and one result stays.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tubestore.core.layout import Layout
from tubestore.core.paths import OWN_DIRECTORY, join
from tubestore.core.vfs import Vfs
from tubestore.options import PARTITIONS_PER_STORE
from tubestore.record.names import POSTINGS_SUFFIX, TIMES_SUFFIX, segment_name
from tubestore.record.records import ENTRY_SIZE, entries_in
from tubestore.segments.cache_formats import (
    POSTINGS_HEADER,
    POSTINGS_MAGIC,
    TIMES_HEADER,
    TIMES_MAGIC,
    signed_digest,
)
from tubestore.segments.postings import PartitionIndex, Run
from tubestore.segments.segment import FileSegment
from tubestore.segments.segment_list import FileSegmentList
from tubestore.segments.summaries import BLOCK_ENTRIES, Blocks, PartitionTotals, TimeIndex

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
                run = read_postings(self._vfs, self._directory, segment, field, lists.key_dtype)
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
                blocks = read_times(self._vfs, self._directory, segment)
                if blocks is not None:
                    covered = len(blocks.maxima) * BLOCK_ENTRIES
                    times.adopt(blocks, _entry_before(segment, covered))
                    self._kept.add(key)
            times = self._lists.setdefault(key, times)
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
        """Drop the lookups of a segment that is gone, in memory and in cache files."""
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
                self._kept.discard(key)

    def keep(self, index: FileSegmentList) -> None:
        """Write the lookups of sealed segments that were used."""
        by_start = {segment.start: segment for segment in index if segment.sealed}
        for key, lists in list(self._lists.items()):
            segment = by_start.get(key[0])
            if segment is None or key in self._kept or isinstance(lists, PartitionTotals):
                continue
            self._kept.add(key)
            entries = entries_in(segment.view(segment.end))
            place = (self._vfs, self._directory, segment)
            if isinstance(lists, TimeIndex):
                write_times(*place, lists.extend(entries))
            else:
                write_postings(*place, key[1], lists.merged(entries))


def _entry_before(segment: FileSegment, ordinal: int) -> bytes:
    """Return the bytes of the entry before this one; none before the first."""
    if not ordinal:
        return b""
    return bytes(segment.read(segment.start + (ordinal - 1) * ENTRY_SIZE, ENTRY_SIZE))


# -- cache files ----------------------------------------------------------------------------------


def postings_path(directory: str, segment: FileSegment, field: str) -> str:
    """Return the path of the lists of a segment by `field`."""
    name = segment_name(segment.start, f".{field}{POSTINGS_SUFFIX}")
    return join(directory, OWN_DIRECTORY, name)


def times_path(directory: str, segment: FileSegment) -> str:
    """Return the path of the times of a segment."""
    return join(directory, OWN_DIRECTORY, segment_name(segment.start, TIMES_SUFFIX))


def write_postings(vfs: Vfs, directory: str, segment: FileSegment, field: str, run: Run) -> None:
    """Write the lists of a sealed segment; a failure is harmless and ignored."""
    arrays = [np.asarray(a).astype("<i4") for a in (run.keys, run.starts, run.ordinals)]
    counts = {"key_count": len(run.keys), "entry_count": len(run.ordinals)}
    path = postings_path(directory, segment, field)
    _write(vfs, path, segment, POSTINGS_HEADER, POSTINGS_MAGIC, counts, arrays)


def read_postings(
    vfs: Vfs, directory: str, segment: FileSegment, field: str, key_dtype: Any
) -> Run | None:
    """Return the lists of a sealed segment if a file describes exactly it, else None."""
    path = postings_path(directory, segment, field)
    found = _read(vfs, path, segment, POSTINGS_HEADER, POSTINGS_MAGIC)
    if found is None:
        return None
    header, content = found
    keys, entries = header.key_count, header.entry_count
    if keys < 0 or entries < 0 or len(content) != 4 * (2 * keys + 1 + entries):
        return None
    values = np.frombuffer(content, "<i4")
    first, second = keys, 2 * keys + 1
    return Run(0, entries, values[:first].astype(key_dtype), values[first:second], values[second:])


def write_times(vfs: Vfs, directory: str, segment: FileSegment, blocks: Blocks) -> None:
    """Write the times of a sealed segment; a failure is harmless and ignored."""
    arrays = [a.astype("<i8") for a in blocks]
    counts = {"block_entries": BLOCK_ENTRIES, "block_count": len(blocks.maxima)}
    path = times_path(directory, segment)
    _write(vfs, path, segment, TIMES_HEADER, TIMES_MAGIC, counts, arrays)


def read_times(vfs: Vfs, directory: str, segment: FileSegment) -> Blocks | None:
    """Return the times of a sealed segment if a file describes exactly it, else None."""
    found = _read(vfs, times_path(directory, segment), segment, TIMES_HEADER, TIMES_MAGIC)
    if found is None:
        return None
    header, content = found
    count = header.block_count
    if header.block_entries != BLOCK_ENTRIES or count < 0 or len(content) != 16 * count:
        return None
    values = np.frombuffer(content, "<i8").astype(np.int64)
    return Blocks(values[:count], values[count:])


def _write(
    vfs: Vfs,
    path: str,
    segment: FileSegment,
    layout: Layout,
    magic: int,
    counts: dict[str, int],
    arrays: list[Any],
) -> None:
    content = b"".join(a.tobytes() for a in arrays)
    header = layout.pack(
        magic=magic,
        features=0,
        segment_size=segment.size,
        segment_digest=segment.digest(),
        content_digest=signed_digest(content),
        reserved=0,
        **counts,
    )
    try:
        own = path.rpartition("/")[0]
        if not vfs.exists(own):
            vfs.make_directories(own)
        vfs.replace_file(path, header + content, sync=False)
    except OSError:
        pass


def _read(
    vfs: Vfs, path: str, segment: FileSegment, layout: Layout, magic: int
) -> tuple[Any, memoryview] | None:
    """Return (header, what follows it) of a cache that describes exactly this segment."""
    try:
        data = vfs.read_file(path)
    except OSError:
        return None
    if len(data) < layout.size:
        return None
    header = layout.unpack_from(data)
    content = memoryview(data)[layout.size :]
    if (
        (header.magic, header.features, header.segment_size) != (magic, 0, segment.size)
        or signed_digest(content) != header.content_digest
        or segment.digest() != header.segment_digest
    ):
        return None
    return header, content
