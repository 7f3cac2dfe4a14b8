"""Gives staged pieces their place in the log: computes offsets, and writes the records for it.

Pass 1 (`lay_out`) reads only the files of rows: from sums of sizes and of messages a queue follow
each record's physical offset and each queue's first number in every file. So pass 2 (`write_part`)
makes the files of the log one by one, in any order and by any number of threads, without reading
what came before.

Always true: nothing of the log is touched; everything may be done again, with other places.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import xxhash

from rocketcompat.commitlog.queue_offsets import QueueKey
from rocketcompat.formats import BLANK, MAGIC_BLANK, MESSAGE_PREFIX
from rocketcompat.record.encode import fill_in
from rocketcompat.staging.pieces import (
    BLOCK_BYTES,
    KEY_HASH,
    LOG_SUFFIX,
    ROW,
    ROWS_SUFFIX,
    LogPart,
    StagedPiece,
    digest_of,
)
from tubestore.core.kernels import Int64s, offsets_of, ranks
from tubestore.core.paths import join
from tubestore.core.vfs import OsVfs, Vfs, VfsFile
from tubestore.errors import InvalidMessage
from tubestore.staging.placing import EarlyWriteOut, Room, wrong_size

_OFFSET_AT = MESSAGE_PREFIX.position("physical_offset")


@dataclass(slots=True)
class Stretch:
    """Rows [first, end) of a piece, and the queue offsets that its queues begin with."""

    piece: StagedPiece
    first: int
    end: int
    bases: Int64s


@dataclass(slots=True)
class Part:
    """The part of a job for one file of the log, from the physical offset `start` on."""

    start: int
    size: int = 0
    stretches: list[Stretch] = field(default_factory=list)


@dataclass(slots=True)
class Layout:
    """All parts of a job in the order of the log, and each queue's next offset behind it."""

    parts: list[Part]
    next_offsets: dict[QueueKey, int]

    @property
    def end(self) -> int:
        """Physical offset behind the last record."""
        return self.parts[-1].start + self.parts[-1].size


def first_place(end: int, size: int, file_size: int) -> int:
    """Return where a job of `size` bytes begins in a log that ends at `end`.

    A job that fits into the rest of the live file goes there: a stream's small batches do not take
    a file each. A larger one begins a file.
    """
    room = file_size - end % file_size - BLANK.size
    return end if end % file_size and size <= room else -(-end // file_size) * file_size


def lay_out(
    vfs: Vfs,
    staging: str,
    pieces: Sequence[StagedPiece],
    start: int,
    file_size: int,
    next_offset: Callable[[str, int], int],
) -> Layout:
    """Give every record its file; InvalidMessage if the rows are not those that were staged."""
    parts, offsets = [Part(start)], dict[QueueKey, int]()
    for piece in pieces:
        rows, _ = rows_of(vfs, staging, piece)
        sums = offsets_of(rows["size"].astype(np.int64))
        if int(sums[-1]) != piece.size or rows["queue"].max() >= len(piece.queues):
            raise InvalidMessage(f"staged piece {piece.name}: its rows are not what was staged")
        bases = np.array([offsets.get(key, next_offset(*key)) for key in piece.queues], np.int64)
        done = 0
        while done < piece.rows:
            part = parts[-1]
            room = file_size - part.start % file_size - part.size - BLANK.size
            end = int(np.searchsorted(sums, sums[done] + room, "right")) - 1
            if end > done:
                part.stretches.append(Stretch(piece, done, end, bases))
                part.size += int(sums[end] - sums[done])
                bases = bases + counts_of(rows["queue"][done:end], len(bases))
            elif not part.size and not part.start % file_size:
                size = int(sums[done + 1] - sums[done])
                raise InvalidMessage(f"staged piece {piece.name}: {size} bytes fit into no file")
            if end < piece.rows:
                parts.append(Part(part.start - part.start % file_size + file_size))
            done = end
        offsets.update(zip(piece.queues, bases.tolist(), strict=True))
    return Layout(parts, offsets)


def counts_of(queues: Any, count: int) -> Int64s:
    """Return how many rows each queue has; -1 is none."""
    return np.bincount(queues[queues >= 0], minlength=count)


def numbers_of(queues: Any, bases: Int64s) -> Int64s:
    """Return the queue offsets of consecutive rows; their queues begin with `bases`."""
    numbers = queues.astype(np.int64)
    return np.where(numbers >= 0, np.append(bases, 0)[numbers] + ranks(numbers), 0)


def rows_of(vfs: Vfs, staging: str, piece: StagedPiece) -> tuple[Any, Any]:
    """Return the rows of a piece, and the hashes of their keys."""
    path = join(staging, piece.name + ROWS_SUFFIX)
    try:
        raw = vfs.read_file(path)
    except FileNotFoundError as error:
        raise InvalidMessage(f"{path} is missing") from error
    if len(raw) != piece.files[1][1] or digest_of(raw) != piece.rows_digest:
        raise InvalidMessage(f"{path}: not the bytes that were staged")
    rows = np.frombuffer(raw, ROW, piece.rows)
    return rows, np.frombuffer(raw, KEY_HASH, offset=rows.nbytes)


@dataclass(frozen=True, slots=True)
class Writing:
    """A part of a job that is to be written, for the log at `path` (relative to the root)."""

    staging: str
    path: str
    part: Part
    file_size: int
    #: The store time of records without one.
    now: int
    #: True if a further part follows, so that a blank closes this one.
    more: bool
    #: The end of the file's name until the publishing process takes it. It is this publish's own: a
    #: task of a driver that died may go on, and writes the job with other offsets.
    ending: str = ""

    @property
    def target(self) -> str:
        """The path of the file that is written."""
        name = LogPart(self.path, self.part.start, 0, "", 0).name
        return join(self.staging, name) + self.ending


def write_anew(writing: Writing) -> LogPart:
    """Write a part in a process of its own, while others may write the same one."""
    return write_part(OsVfs(), writing, f"-{uuid.uuid4().hex[:12]}")


def write_part(vfs: Vfs, writing: Writing, token: str = "") -> LogPart:
    """Write a part with all offsets, and sync it.

    With a `token` under a name with it first, so that its own name leads to a part that is whole.
    """
    staging, path, part = writing.staging, writing.path, writing.part
    file_size, now = writing.file_size, writing.now
    whole = part.start % file_size == 0
    final = writing.target + token
    if vfs.exists(final):  # of an attempt that was interrupted
        vfs.remove(final)
    target = vfs.open(final, create=True)
    if whole:
        target.truncate(file_size)
    digest, room, write_out, at = xxhash.xxh3_64(), Room(BLOCK_BYTES), EarlyWriteOut(target), 0
    for stretch in part.stretches:
        for buffer in _placed(vfs, staging, stretch, part.start + at, now, room):
            target.pwrite(buffer.data, at)
            digest.update(buffer.data)
            at += len(buffer)
            write_out.reached(at)
    if writing.more:
        left = file_size - part.start % file_size - part.size
        target.pwrite(BLANK.pack(total_size=left, magic_code=MAGIC_BLANK), part.size)
    target.sync()
    target.close()
    if token:
        vfs.rename(final, writing.target)
    return LogPart(path, part.start, part.size, digest.hexdigest(), file_size if whole else at)


def miswritten(vfs: Vfs, writing: Writing, written: Any) -> str | None:
    """Return what is wrong with what another process wrote of a part, None if nothing is.

    Compared are place and length, and the own offset of the first record. Records are not read.
    """
    part, file_size = writing.part, writing.file_size
    size = part.size if part.start % file_size else file_size
    wanted = LogPart(writing.path, part.start, part.size, "", size)
    if not isinstance(written, LogPart) or replace(written, digest="") != wanted:
        return f"it is not the LogPart of the {part.size} bytes from {part.start} on"
    path = writing.target
    if (trouble := wrong_size(vfs, path, size)) is not None:
        return trouble
    file = vfs.open(path, writable=False)
    try:
        own = int.from_bytes(file.pread(8, _OFFSET_AT), "big")
    finally:
        file.close()
    return None if own == part.start else f"{path}: its first record is not of this place"


def _placed(
    vfs: Vfs, staging: str, stretch: Stretch, physical_offset: int, now: int, room: Room
) -> Iterator[Any]:
    """Yield the records of a stretch, a block at a time, with everything filled in.

    The part that was read may leave the page cache: its memory takes the part that is written. (A
    GiB took 2.0 s of writing into memory that had not been used before, 0.4 s into such.)
    """
    piece = stretch.piece
    rows, _ = rows_of(vfs, staging, piece)
    edges = offsets_of(rows["size"].astype(np.int64))
    numbers = numbers_of(rows["queue"][stretch.first : stretch.end], stretch.bases)
    sys_flags = rows["sys_flag"].astype(np.int64)
    # The physical offset here of the piece's first byte.
    base = physical_offset - edges[stretch.first]
    times = None if piece.has_times else now
    data = _open(vfs, join(staging, piece.name + LOG_SUFFIX))
    row = position = 0
    for count, size, digest in piece.blocks:
        first, end = max(stretch.first, row), min(stretch.end, row + count)
        if first < end:
            block = room.of(size)
            if data.pread_into(block.data, position) != size or digest_of(block) != digest:
                raise InvalidMessage(f"{data.path}: not the bytes that were staged")
            data.let_go(size, position)
            bounds = edges[first : end + 1] - edges[first]
            buffer = block[edges[first] - position :][: bounds[-1]]
            fill_in(
                buffer, bounds, numbers[first - stretch.first : end - stretch.first],
                base + edges[first:end], times,
                born=not piece.has_born, sys_flags=sys_flags[first:end],
            )  # fmt: skip
            yield buffer
        row, position = row + count, position + size
    data.close()


def _open(vfs: Vfs, path: str) -> VfsFile:
    try:
        return vfs.open(path, writable=False)
    except FileNotFoundError as error:
        raise InvalidMessage(f"{path} is missing") from error
