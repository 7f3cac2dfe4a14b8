"""A shard's checkpoint: how far its files are known to be whole and on stable storage.

A cache (decisions.md D1): deleting it costs the time of a verification, never data. It has both
ends, and a digest of the bytes before them. If these do not fit, for example after a TubeMQ broker
has worked on the directory, it is ignored. It contains the damage that opening found and kept, so
that later openings and readers need not search for it.

It also records where both streams begin. So a file that is missing at the beginning or at the end
differs from one that was never there, and no offset is given out twice. Code that removes files or
cuts them back first lowers the checkpoint, durably.
"""

from __future__ import annotations

import contextlib
from typing import NamedTuple

import xxhash

from tubestore.core.paths import OWN_DIRECTORY, join
from tubestore.core.vfs import Vfs
from tubestore.record.names import CHECKPOINT_FILE
from tubestore.segments.cache_formats import CHECKPOINT_DIGEST_BYTES, Checkpoint
from tubestore.segments.file_store import MsgFileStore
from tubestore.segments.segment_list import FileSegmentList


def write_checkpoint(files: MsgFileStore, index_end: int, data_end: int) -> None:
    """Write the checkpoint of what was synced up to these ends; a failure is ignored."""
    with files.checkpoint_lock, contextlib.suppress(OSError):
        _write(files, index_end, data_end, sync=False)


def raise_begin(
    files: MsgFileStore, ends: tuple[int, int], index_start: int, data_start: int
) -> None:
    """Record, durably, that the files below these offsets are about to be removed.

    `ends`: the ends of what was synced. Without room there is no checkpoint from then on: in an
    older one the removed files would count as missing.
    """
    with files.checkpoint_lock:
        files.begins = index_start, data_start
        try:
            _write(files, *ends, sync=True)
        except OSError:
            forget_checkpoint(files)


def forget_checkpoint(files: MsgFileStore) -> None:
    """Remove the checkpoint, durably: it would describe more than is about to be left."""
    directory = join(files.directory, OWN_DIRECTORY)
    path = join(directory, CHECKPOINT_FILE)
    if files.vfs.exists(path):
        files.vfs.remove(path)
        files.vfs.sync_directory(directory)


def _write(files: MsgFileStore, index_end: int, data_end: int, *, sync: bool) -> None:
    directory = join(files.directory, OWN_DIRECTORY)
    damages = [(d.start, d.end, d.reason) for d in files.damages
               if files.data.start < d.end <= data_end]  # fmt: skip
    index_start, data_start = files.begins or (files.index.start, files.data.start)
    checkpoint = Checkpoint(
        index_end,
        data_end,
        _digest(files.index, index_end),
        _digest(files.data, data_end),
        damages=damages,
        boot=files.vfs.boot_id(),
        index_start=index_start,
        data_start=data_start,
    )
    if not files.vfs.exists(directory):
        files.vfs.make_directories(directory)
    files.vfs.replace_file(join(directory, CHECKPOINT_FILE), checkpoint.encode(), sync=sync)


class Recorded(NamedTuple):
    """A shard's checkpoint as it lies; None without a valid one, and then why, if there is one."""

    checkpoint: Checkpoint | None
    trouble: str | None = None


def read_recorded(vfs: Vfs, directory: str) -> Recorded:
    """Read the checkpoint of a shard's directory, whatever files are there."""
    try:
        raw = vfs.read_file(join(directory, OWN_DIRECTORY, CHECKPOINT_FILE))
        return Recorded(Checkpoint.parse(raw))
    except FileNotFoundError:
        return Recorded(None)
    except (OSError, ValueError) as error:
        return Recorded(None, f"cannot be read: {error}")


def recorded(vfs: Vfs, directory: str) -> Checkpoint | None:
    """Return the checkpoint of a shard's directory, whatever files are there; None without one."""
    return read_recorded(vfs, directory).checkpoint


def read_checkpoint(files: MsgFileStore) -> Checkpoint | None:
    """Return the checkpoint if it still describes the files, else None."""
    found = recorded(files.vfs, files.directory)
    return found if found is not None and describes(found, files) else None


def describes(found: Checkpoint, files: MsgFileStore) -> bool:
    """True if the bytes before both ends are those that a checkpoint was made of."""
    for segments, end, digest in (
        (files.index, found.index_end, found.index_digest),
        (files.data, found.data_end, found.data_digest),
    ):
        # Below the start: retention has removed since what it was made of.
        inside = segments.start <= end <= segments.end
        if not inside or _digest(segments, end) != digest:
            return False
    return True


def _digest(segments: FileSegmentList, end: int) -> str:
    """Digest the last bytes before `end`, as far as its segment goes."""
    segment = segments.find(max(0, end - 1))
    if segment is None:
        return ""
    start = max(segment.start, end - CHECKPOINT_DIGEST_BYTES)
    return xxhash.xxh3_64_hexdigest(segment.file.pread(end - start, start - segment.start))
