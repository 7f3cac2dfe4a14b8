"""A shard's checkpoint: how far its files are known to be whole and on stable storage.

A cache (decisions.md D1): deleting it costs the time of a verification, never data. It has both
ends, and a digest of the bytes before them. If these do not fit, for example after a TubeMQ broker
has worked on the directory, it is ignored. It contains the damage that opening found and kept, so
that later openings and readers need not search for it.

It also records where both streams begin. So a file that is missing at the beginning or at the end
differs from one that was never there, and no offset is given out twice. Code that removes files or
cuts them back first lowers the checkpoint, durably.

The store records the same beginnings and ends outside of the shard's directory (`OutsideRecord`).
So a directory that is missing, or came back from an older copy, is noticed.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from os.path import basename
from typing import NamedTuple

import xxhash

from tubestore.core.paths import OWN_DIRECTORY, join
from tubestore.core.vfs import Vfs
from tubestore.errors import NotAStore
from tubestore.record.names import CHECKPOINT_FILE
from tubestore.record.state_files import Bounds
from tubestore.segments.cache_formats import CHECKPOINT_DIGEST_BYTES, Checkpoint
from tubestore.segments.file_store import MsgFileStore
from tubestore.segments.segment_list import FileSegmentList

#: In the place of a digest where the bytes are not recorded: no file has it.
OUTSIDE = "outside"


def write_checkpoint(files: MsgFileStore, index_end: int, data_end: int) -> None:
    """Write the checkpoint of what was synced up to these ends; a failure is ignored."""
    with files.checkpoint_lock, contextlib.suppress(OSError):
        if not files.is_discarded:
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
        _note(files, Bounds(index_start, data_start, *ends), durable=True)
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


def lower_ends(files: MsgFileStore, index_end: int, data_end: int) -> None:
    """Record, durably, that the shard is about to be cut back to these ends."""
    forget_checkpoint(files)
    known = files.bounds()
    if known is not None:
        ends = min(known.index_end, index_end), min(known.data_end, data_end)
        _note(files, known._replace(index_end=ends[0], data_end=ends[1]), durable=True)


def _note(files: MsgFileStore, bounds: Bounds, *, durable: bool) -> None:
    """Record bounds outside of the directory, of a shard that gave out offsets."""
    if files.outside is not None and bounds.index_end > 0:
        files.outside.note(bounds, durable=durable)


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
        shard=basename(files.directory),
    )
    if not files.vfs.exists(directory):
        files.vfs.make_directories(directory)
    files.vfs.replace_file(join(directory, CHECKPOINT_FILE), checkpoint.encode(), sync=sync)
    if not sync:  # else it is recorded already
        _note(files, Bounds(index_start, data_start, index_end, data_end), durable=False)


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


def joined(checkpoint: Checkpoint | None, outside: Bounds | None) -> Checkpoint | None:
    """Return what is recorded of a shard inside and outside of its directory; None: nothing.

    Ends that only the outside has describe no file that is there: they are as a checkpoint's that
    does not fit.
    """
    if outside is None:
        return checkpoint
    index_end, data_end = outside.index_end, outside.data_end
    if checkpoint is not None:
        if index_end <= checkpoint.index_end and data_end <= checkpoint.data_end:
            return checkpoint
        return replace(
            checkpoint,
            index_end=max(index_end, checkpoint.index_end),
            data_end=max(data_end, checkpoint.data_end),
            digest=checkpoint.digest or OUTSIDE,
        )
    begins = outside[:2] if not outside.given_up else outside[2:4]
    return Checkpoint(
        index_end, data_end, OUTSIDE, OUTSIDE,
        index_start=begins[0], data_start=begins[1], digest=OUTSIDE,
    )  # fmt: skip


def foreign(directory: str, found: Checkpoint | None) -> str | None:
    """Return what is wrong with a directory that has the checkpoint of another shard, else None."""
    if found is None or found.shard in ("", basename(directory)):
        return None
    return (
        f"these are the files of the shard {found.shard!r}: move the directory back, or have "
        "`repair` take them for those of this one"
    )


def own_checkpoint(files: MsgFileStore) -> Checkpoint | None:
    """Return the checkpoint of a shard's directory; NotAStore if it is that of another shard."""
    found = read_recorded(files.vfs, files.directory).checkpoint
    trouble = foreign(files.directory, found)
    if trouble is not None:
        raise NotAStore(files.directory, trouble)
    return found


def read_checkpoint(files: MsgFileStore) -> Checkpoint | None:
    """Return the checkpoint if it still describes the files, else None."""
    found = read_recorded(files.vfs, files.directory).checkpoint
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
