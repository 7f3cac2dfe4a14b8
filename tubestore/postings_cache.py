"""Posting lists of sealed index segments, kept in files so that they are sorted once.

    <shard>/.tubestore/<20 digits>.<field>.postings

A cache (DESIGN.md D1): a file names the length and digest of the index segment that it
describes; when that does not fit, or its own digest does not, it is ignored and replaced.
Layout: `POSTINGS_HEADER`, then keys, starts and ordinals as little-endian int32.

Next to read: `file_store.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import xxhash

from tubestore.filenames import OWN_DIRECTORY, POSTINGS_SUFFIX, join, segment_name
from tubestore.layout import Field, Layout
from tubestore.partition_index import Run
from tubestore.segment import FileSegment
from tubestore.vfs import Vfs

MAGIC = 0x54535031  # "TSP1"
POSTINGS_HEADER = Layout(
    "PostingsHeader",
    48,
    (
        Field("magic", "i4", "`TSP1`."),
        Field("features", "i4", "0; a reader ignores a file with any other value."),
        Field("segment_size", "i8", "Bytes of the index segment described."),
        Field("segment_digest", "i8", "xxh3 of those bytes."),
        Field("content_digest", "i8", "xxh3 of what follows the header."),
        Field("key_count", "i4", "Distinct keys."),
        Field("entry_count", "i4", "Ordinals."),
        Field("reserved", "i8", "0."),
    ),
)


def path_of(directory: str, segment: FileSegment, field: str) -> str:
    """Return where the lists of a segment by `field` are kept."""
    name = segment_name(segment.start, f".{field}{POSTINGS_SUFFIX}")
    return join(directory, OWN_DIRECTORY, name)


def _digest(data: Any) -> int:
    value = xxhash.xxh3_64_intdigest(data)
    return value - (1 << 64) if value >> 63 else value


def write(vfs: Vfs, directory: str, segment: FileSegment, field: str, run: Run) -> None:
    """Write the lists of a sealed segment; a failure is harmless and ignored."""
    arrays = [np.asarray(a).astype("<i4") for a in (run.keys, run.starts, run.ordinals)]
    content = b"".join(a.tobytes() for a in arrays)
    header = POSTINGS_HEADER.pack(
        magic=MAGIC,
        features=0,
        segment_size=segment.size,
        segment_digest=_digest(segment.view(segment.end)),
        content_digest=_digest(content),
        key_count=len(run.keys),
        entry_count=len(run.ordinals),
        reserved=0,
    )
    try:
        own = join(directory, OWN_DIRECTORY)
        if not vfs.exists(own):
            vfs.make_directories(own)
        vfs.replace_file(path_of(directory, segment, field), header + content, sync=False)
    except OSError:
        pass


def read(vfs: Vfs, directory: str, segment: FileSegment, field: str, key_dtype: Any) -> Run | None:
    """Return the lists of a sealed segment if a file describes exactly it, else None."""
    try:
        data = vfs.read_file(path_of(directory, segment, field))
    except OSError:
        return None
    size = POSTINGS_HEADER.size
    if len(data) < size:
        return None
    header = POSTINGS_HEADER.unpack_from(data)
    keys, entries = header.key_count, header.entry_count
    if (
        (header.magic, header.features, header.segment_size) != (MAGIC, 0, segment.size)
        or keys < 0
        or entries < 0
        or len(data) != size + 4 * (2 * keys + 1 + entries)
        or _digest(memoryview(data)[size:]) != header.content_digest
        or _digest(segment.view(segment.end)) != header.segment_digest
    ):
        return None
    values = np.frombuffer(data, "<i4", offset=size)
    first, second = keys, 2 * keys + 1
    return Run(0, entries, values[:first].astype(key_dtype), values[first:second], values[second:])
