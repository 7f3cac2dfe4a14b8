"""Compare sealed segments with their digests: what changed since, though each record looks sound.

The last segment of a stream is written to: digests that lie there are of a time before it was.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from tubestore.core.paths import OWN_DIRECTORY, join
from tubestore.core.vfs import Vfs, VfsFile
from tubestore.offline.bytes_read import BytesRead
from tubestore.offline.findings import Finding
from tubestore.record.names import DATA_SUFFIX, DIGESTS_SUFFIX, INDEX_SUFFIX, parse_segment_name
from tubestore.segments.cache_formats import DIGEST_BLOCK_BYTES
from tubestore.segments.digests import Digests, digest_blocks, parse_digests
from tubestore.segments.inspection import Reason
from tubestore.segments.listing import ShardFiles, StoredFile


def check_digests(vfs: Vfs, shard: ShardFiles, read: BytesRead) -> Iterator[Finding]:
    """Report blocks of sealed segments that have changed, and digests that describe no segment.

    OSError where the system refuses to read.
    """
    directory = join(shard.directory, OWN_DIRECTORY)
    for name, is_directory, _ in vfs.entries(directory):
        for files, suffix in ((shard.index, INDEX_SUFFIX), (shard.data, DATA_SUFFIX)):
            start = parse_segment_name(name, suffix + DIGESTS_SUFFIX)
            if start is None or is_directory or not files:
                continue
            if files[0].start <= start < files[-1].start:  # below: retention has removed it
                yield from _check_file(vfs, join(directory, name), start, files, read)


def _check_file(
    vfs: Vfs, path: str, start: int, files: tuple[StoredFile, ...], read: BytesRead
) -> Iterator[Finding]:
    file = next((f for f in files if f.start == start), None)
    if file is None:
        yield Finding(path, 0, Reason.STALE_CACHE, "there is no such file")
        return
    try:
        known = parse_digests(vfs.read_file(path))
    except FileNotFoundError:
        return  # its segment went away meanwhile
    except (OSError, ValueError) as error:
        yield Finding(path, 0, Reason.STALE_CACHE, f"cannot be read: {error}")
        return
    if known.size != file.size:
        text = f"it describes {known.size} bytes of {file.path}, which has {file.size}"
        yield Finding(path, 0, Reason.STALE_CACHE, text)
        return
    yield from _compare(vfs, file, known, read)


def _block(file: VfsFile, read: BytesRead, position: int, size: int) -> bytes:
    read.add(size)
    return file.pread(size, position)


def _compare(vfs: Vfs, file: StoredFile, known: Digests, read: BytesRead) -> Iterator[Finding]:
    """Go through the blocks that differ; those next to each other are one finding."""
    try:
        opened = vfs.open(file.path, writable=False)
        try:
            found = digest_blocks(file.size, partial(_block, opened, read))
        finally:
            opened.close()
    except FileNotFoundError:
        return
    differs = np.flatnonzero(found != known.blocks)
    for run in np.split(differs, np.flatnonzero(np.diff(differs) > 1) + 1):
        if len(run):
            position = int(run[0]) * DIGEST_BLOCK_BYTES
            size = min(file.size, (int(run[-1]) + 1) * DIGEST_BLOCK_BYTES) - position
            text = f"in these {size} bytes something has changed since the file was sealed"
            yield Finding(file.path, position, Reason.DIGEST_DIFFERS, text)
