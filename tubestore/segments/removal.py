"""Take the oldest files of a shard away: whole ones, data and index together.

No crash may leave a gap, or data whose entries are gone (recovery would take it for lost
messages). So the checkpoint first records where the rest begins. Then the oldest file goes first,
the data before the index, and the names of the data are durable before the index is touched. What
is left in between is a shard whose first entries point to data that has gone: its first offset is
behind them already.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import takewhile

from tubestore.core import trash
from tubestore.segments.checkpoint import raise_begin
from tubestore.segments.file_store import MsgFileStore
from tubestore.segments.segment import FileSegment
from tubestore.segments.segment_list import FileSegmentList


def remove_below(
    files: MsgFileStore,
    data_offset: int,
    *,
    ends: tuple[int, int],
    now_ms: int,
    sync: Callable[[str], None],
) -> int:
    """Move the sealed files that hold only messages below a data offset to the trash.

    Returns their number. `ends`: those of what was synced of index and data. `sync` makes the names
    in a directory durable. An error leaves a part of it done, and the shard whole. Under the
    shard's flush lock.
    """
    data = [s for s in files.data if s.sealed and s.end <= data_offset]
    index = list(takewhile(lambda s: s.sealed and _is_below(files, s, data_offset), files.index))
    if data or index:
        raise_begin(
            files,
            ends,
            index_start=index[-1].end if index else files.index.start,
            data_start=data[-1].end if data else files.data.start,
        )
    for segments, gone in ((files.data, data), (files.index, index)):
        for segment in gone:
            _move(files, segments, segment, now_ms)
        if gone:
            sync(segments.directory)
    for segment in data:
        files.data.discard_digests(segment)
    for segment in index:
        files.index.discard_digests(segment)
        files.forget(segment)
    return len(data) + len(index)


def _move(
    files: MsgFileStore, segments: FileSegmentList, segment: FileSegment, now_ms: int
) -> None:
    path = trash.move(files.vfs, segment.path, trash.trash_of(files.directory), now_ms)
    if path is not None:
        segment.moved_to(path)
    segments.now = segments.now.from_on(segment.end)


def _is_below(files: MsgFileStore, segment: FileSegment, data_offset: int) -> bool:
    """Whether no entry of an index segment points to data at or behind an offset."""
    offsets = files.entries(segment, segment.end)["data_offset"]
    return not bool(((offsets >= data_offset) & (offsets < files.data.end)).any())
