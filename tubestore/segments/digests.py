"""Digests of sealed segments: they show a flipped bit that nothing else shows (decisions.md D7).

    <shard>/.tubestore/<20 digits>.tube.digests      of a data segment
    <shard>/.tubestore/<20 digits>.index.digests     of an index segment

An xxh3 of each MiB, made by the process that seals a segment, after the sync of the sealing, while
the bytes are in the page cache (9 GB/s). Caches in D1's sense: each has the length that it
describes. The last segment of a stream is written to and has no digests that count. A TubeMQ broker
appends and truncates only there, so it never makes one wrong. Code of this package that shortens,
replaces or writes into a sealed segment removes its digests first, durably.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from os.path import basename, dirname, splitext
from typing import Any, NamedTuple

import numpy as np

from tubestore.core.layout import Buffer
from tubestore.core.paths import OWN_DIRECTORY, join
from tubestore.core.vfs import Vfs
from tubestore.record.names import DIGESTS_SUFFIX, INDEX_DIRECTORY, segment_name
from tubestore.segments.cache_formats import (
    DIGEST_BLOCK_BYTES,
    DIGESTS_HEADER,
    DIGESTS_MAGIC,
    signed_digest,
)

Array = np.ndarray[Any, Any]
#: Reads (position in the file, bytes).
Read = Callable[[int, int], Buffer]


class Digests(NamedTuple):
    """The digests of a segment: its size, and the digest of each block of it."""

    size: int
    blocks: Array


def digests_path(segment_path: str, start: int) -> str:
    """Return where the digests are kept of the segment at this path that begins at `start`."""
    directory, suffix = dirname(segment_path), splitext(segment_path)[1]
    if basename(directory) == INDEX_DIRECTORY:
        directory = dirname(directory)
    return join(directory, OWN_DIRECTORY, segment_name(start, suffix + DIGESTS_SUFFIX))


def digest_blocks(size: int, read: Read) -> Array:
    """Return the digest of each block of a file of `size` bytes."""
    positions = range(0, size, DIGEST_BLOCK_BYTES)
    found = [signed_digest(read(p, min(DIGEST_BLOCK_BYTES, size - p))) for p in positions]
    return np.array(found, "<i8")


def keep_digests(vfs: Vfs, path: str, size: int, read: Read) -> None:
    """Write the digests of a sealed segment; a failure is harmless and ignored."""
    try:
        blocks = digest_blocks(size, read)
        content = blocks.tobytes()
        header = DIGESTS_HEADER.pack(
            magic=DIGESTS_MAGIC,
            features=0,
            segment_size=size,
            content_digest=signed_digest(content),
            block_bytes=DIGEST_BLOCK_BYTES,
            block_count=len(blocks),
            reserved=0,
        )
        own = dirname(path)
        if not vfs.exists(own):
            vfs.make_directories(own)
        _write_synced(vfs, path, header + content)
    except OSError:
        pass


def _write_synced(vfs: Vfs, path: str, data: bytes) -> None:
    """Write a file that is whole or absent, also after a power cut: it is never made again."""
    temporary = f"{path}.tmp"
    with contextlib.suppress(FileNotFoundError):
        vfs.remove(temporary)
    file = vfs.open(temporary, create=True)
    try:
        file.pwrite(data, 0)
        file.sync()
    finally:
        file.close()
    vfs.rename(temporary, path)


def parse_digests(data: bytes) -> Digests:
    """Parse the file's content; ValueError has the reason why it does not count."""
    if len(data) < DIGESTS_HEADER.size:
        raise ValueError("shorter than its header")
    header = DIGESTS_HEADER.unpack_from(data)
    if (header.magic, header.features, header.block_bytes) != (
        DIGESTS_MAGIC,
        0,
        DIGEST_BLOCK_BYTES,
    ):
        raise ValueError("of another version")
    content = memoryview(data)[DIGESTS_HEADER.size :]
    count = -(-header.segment_size // DIGEST_BLOCK_BYTES)
    if (
        header.segment_size < 0
        or (header.block_count, len(content)) != (count, 8 * count)
        or header.content_digest != signed_digest(content)
    ):
        raise ValueError("its content is damaged")
    return Digests(header.segment_size, np.frombuffer(content, "<i8"))


def drop_digests(vfs: Vfs, path: str) -> None:
    """Remove digests, durably: what they describe is about to change."""
    if vfs.exists(path):
        vfs.remove(path)
        vfs.sync_directory(dirname(path))


def discard_digests(vfs: Vfs, path: str) -> None:
    """Remove digests that describe nothing any more, if they are there."""
    if vfs.exists(path):
        with contextlib.suppress(FileNotFoundError):  # two threads may do it
            vfs.remove(path)
