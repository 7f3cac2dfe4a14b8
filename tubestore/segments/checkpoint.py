"""A shard's checkpoint: how far its files are known to be whole and on stable storage.

A cache (decisions.md D1): deleting it costs the time of a verification, never data. It names
what it describes (both ends, and a digest of the bytes before them); on a mismatch, for
example after a real broker has worked on the directory, it is ignored. The damage that opening
found and kept stands in it, so that later openings and readers know of it without looking.
"""

from __future__ import annotations

import json
from dataclasses import fields

import xxhash

from tubestore.core.paths import OWN_DIRECTORY, join
from tubestore.record.names import CHECKPOINT_FILE
from tubestore.segments.cache_formats import CHECKPOINT_DIGEST_BYTES, Checkpoint
from tubestore.segments.file_store import MsgFileStore
from tubestore.segments.segment_list import FileSegmentList

_FIELDS = tuple(each.name for each in fields(Checkpoint))


def write_checkpoint(files: MsgFileStore, index_end: int, data_end: int) -> None:
    """Write the checkpoint of what was synced up to these ends; a failure is ignored."""
    directory = join(files.directory, OWN_DIRECTORY)
    try:
        damages = [(d.start, d.end, d.reason) for d in files.damages
                   if files.data.start < d.end <= data_end]  # fmt: skip
        checkpoint = Checkpoint(
            index_end,
            data_end,
            _digest(files.index, index_end),
            _digest(files.data, data_end),
            damages=damages,
            boot=files.vfs.boot_id(),
        )
        # Not `asdict`, which copies deeply: a store that is closed writes one a shard.
        data = json.dumps({name: getattr(checkpoint, name) for name in _FIELDS}).encode()
        if not files.vfs.exists(directory):
            files.vfs.make_directories(directory)
        files.vfs.replace_file(join(directory, CHECKPOINT_FILE), data, sync=False)
    except OSError:
        pass  # a cache: the next opening verifies instead


def read_checkpoint(files: MsgFileStore) -> Checkpoint | None:
    """Return the checkpoint if it still describes the files, else None."""
    path = join(files.directory, OWN_DIRECTORY, CHECKPOINT_FILE)
    try:
        found = Checkpoint.parse(files.vfs.read_file(path))
    except (OSError, ValueError):
        return None
    for segments, end, digest in (
        (files.index, found.index_end, found.index_digest),
        (files.data, found.data_end, found.data_digest),
    ):
        # Below the start: retention has removed since what it was made of.
        inside = segments.start <= end <= segments.end
        if not inside or _digest(segments, end) != digest:
            return None
    return found


def _digest(segments: FileSegmentList, end: int) -> str:
    """Digest the last bytes before `end`, as far as its segment goes."""
    segment = segments.find(max(0, end - 1))
    if segment is None:
        return ""
    start = max(segment.start, end - CHECKPOINT_DIGEST_BYTES)
    return xxhash.xxh3_64_hexdigest(segment.file.pread(end - start, start - segment.start))
