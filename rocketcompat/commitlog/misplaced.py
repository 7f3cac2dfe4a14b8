"""Log files that hold the records of another place: two that were swapped, or a copy. Reads only.

A record has its own physical offset, so each file shows by its first sound record where it
belongs. Such a file is damage as a whole: none of its records is at the place that queues, index
and readers know. It is never cut or written to, so that it can be put back.
"""

from __future__ import annotations

from itertools import pairwise

from rocketcompat.commitlog.walk import (
    FILE_MISSING,
    PIECE_BYTES,
    Gap,
    Gaps,
    LogView,
    find_in_file,
    gap_of,
)
from rocketcompat.files.mapped_file import MappedFile
from rocketcompat.files.progress import Progress
from rocketcompat.formats import MAGIC_BLANK, MESSAGE_PREFIX, TOPIC_LENGTH_SIZE
from rocketcompat.record.verify import follow


def misplaced_files(log: LogView, start: int = 0) -> Gaps:
    """Return the files from the physical offset `start` on that hold records of another place.

    One read a file, of its first bytes, for all that hold their own.
    """
    found = []
    for file in log.files:
        if file.end_of_file <= start:
            continue
        place = belongs_at(file)
        if place is not None:
            reason = f"holds records of offset {place}"
            first = file.file_from_offset
            found.append(Gap(first, file.end_of_file, "damaged", reason, file.path, 0, place))
    return Gaps(found)


def lost_files(log: LogView, start: int = 0) -> Gaps:
    """Return `misplaced_files` and the parts of the log between two files that have no file."""
    files = log.files
    return Gaps.merged((
        *misplaced_files(log, start),
        *(
            gap_of(log, file.end_of_file, following.file_from_offset, FILE_MISSING)
            for file, following in pairwise(files)
            if start < following.file_from_offset > file.end_of_file
        ),
    ))  # fmt: skip


def lost_begin(log: LogView, closed: Progress | None) -> Gap | None:
    """Return the part before the first file that the log had when it was closed; None without one.

    `closed` are the marks of a clean close: retention has removed no files since.
    """
    if closed is None or not closed.clean or not log.files:
        return None
    first = log.files[0].file_from_offset
    if first <= closed.log_minimum:
        return None
    return gap_of(log, closed.log_minimum, first, FILE_MISSING)


def belongs_at(file: MappedFile) -> int | None:
    """Return the physical offset at which a file's records belong if it is not the file's own.

    None for a file that holds a record of its own place, and for one without a sound record.
    """
    start, size = file.file_from_offset, file.file_size
    head = file.read(0, MESSAGE_PREFIX.size)
    if len(head) < MESSAGE_PREFIX.size:
        return None
    prefix = MESSAGE_PREFIX.unpack_from(head)
    if prefix.magic_code == MAGIC_BLANK or not any(head):
        return None
    if prefix.magic_code in TOPIC_LENGTH_SIZE and prefix.physical_offset == start:
        return None
    found = find_in_file(file, 0, file.wrote_position)
    if found is None:
        return None
    position, place = found[0], found[1] - found[0]
    if place == start or place < 0 or place % size:
        return None
    # What the chain covers holds no record of this place; what is behind it may.
    behind = _chain_end(file, position, place)
    own = find_in_file(file, behind, file.wrote_position, start.__add__)
    return place if own is None else None


def _chain_end(file: MappedFile, position: int, place: int) -> int:
    """Return the position behind the chain of records from `position` on of a file at `place`."""
    while True:
        data = file.read(position, min(PIECE_BYTES, file.wrote_position - position))
        found = follow(data, 0, place + position, file.file_size - position)
        if not found.end:
            return position
        position += found.end


def holds_foreign_record(file: MappedFile, position: int) -> bool:
    """True if a file has a sound record of another place at a position or behind it."""
    while (found := find_in_file(file, position, file.file_size)) is not None:
        at, place = found
        if place != file.file_from_offset + at:
            return True
        position = at + 1
    return False
