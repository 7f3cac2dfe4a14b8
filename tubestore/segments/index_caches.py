"""What was found out about sealed index segments, kept in files so that it is found out once.

    <shard>/.tubestore/<20 digits>.<field>.postings     the posting lists by a field
    <shard>/.tubestore/<20 digits>.times                the extremes of the times, block by block

Caches (decisions.md D1): a file names the length and digest of the index segment that it
describes; when that does not fit, or its own digest does not, it is ignored and replaced.
Behind the headers stand little-endian integers.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tubestore.core.layout import Layout
from tubestore.core.paths import OWN_DIRECTORY, join
from tubestore.core.vfs import Vfs
from tubestore.record.names import POSTINGS_SUFFIX, TIMES_SUFFIX, segment_name
from tubestore.segments.cache_formats import (
    POSTINGS_HEADER,
    POSTINGS_MAGIC,
    TIMES_HEADER,
    TIMES_MAGIC,
    signed_digest,
)
from tubestore.segments.postings import Run
from tubestore.segments.segment import FileSegment
from tubestore.segments.summaries import BLOCK_ENTRIES, Blocks


def postings_path(directory: str, segment: FileSegment, field: str) -> str:
    """Return where the lists of a segment by `field` are kept."""
    name = segment_name(segment.start, f".{field}{POSTINGS_SUFFIX}")
    return join(directory, OWN_DIRECTORY, name)


def times_path(directory: str, segment: FileSegment) -> str:
    """Return where the times of a segment are kept."""
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
