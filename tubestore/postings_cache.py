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

from tubestore.cache_formats import POSTINGS_HEADER, POSTINGS_MAGIC, signed_digest
from tubestore.filenames import OWN_DIRECTORY, POSTINGS_SUFFIX, join, segment_name
from tubestore.partition_index import Run
from tubestore.segment import FileSegment
from tubestore.vfs import Vfs


def path_of(directory: str, segment: FileSegment, field: str) -> str:
    """Return where the lists of a segment by `field` are kept."""
    name = segment_name(segment.start, f".{field}{POSTINGS_SUFFIX}")
    return join(directory, OWN_DIRECTORY, name)


def write(vfs: Vfs, directory: str, segment: FileSegment, field: str, run: Run) -> None:
    """Write the lists of a sealed segment; a failure is harmless and ignored."""
    arrays = [np.asarray(a).astype("<i4") for a in (run.keys, run.starts, run.ordinals)]
    content = b"".join(a.tobytes() for a in arrays)
    header = POSTINGS_HEADER.pack(
        magic=POSTINGS_MAGIC,
        features=0,
        segment_size=segment.size,
        segment_digest=signed_digest(segment.view(segment.end)),
        content_digest=signed_digest(content),
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
        (header.magic, header.features, header.segment_size) != (POSTINGS_MAGIC, 0, segment.size)
        or keys < 0
        or entries < 0
        or len(data) != size + 4 * (2 * keys + 1 + entries)
        or signed_digest(memoryview(data)[size:]) != header.content_digest
        or signed_digest(segment.view(segment.end)) != header.segment_digest
    ):
        return None
    values = np.frombuffer(data, "<i4", offset=size)
    first, second = keys, 2 * keys + 1
    return Run(0, entries, values[:first].astype(key_dtype), values[first:second], values[second:])
