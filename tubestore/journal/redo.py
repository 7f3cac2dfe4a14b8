"""Writes what a root's journal has of a shard into the shard's files, before their recovery.

After a kill a shard lacks what was in its buffers. After a power cut what it had written may be
torn or gone as well, with sound records behind it that recovery must not drop. So every record of
the journal is compared with the file, byte by byte, and written where the file has no whole record.
An intact record with other content comes from another process that has since written in the
directory: it stays, and is a problem.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from tubestore.core import kernels
from tubestore.core.doors import logger
from tubestore.errors import CorruptRecord
from tubestore.journal.root_journal import JournalPart, joined_parts, lost_part
from tubestore.record.layouts import record_size
from tubestore.record.records import ENTRY_SIZE, HEADER_SIZE, entry_of, inspect
from tubestore.segments.file_store import MsgFileStore
from tubestore.segments.segment import FileSegment

log = logger(__name__)
Array = np.ndarray[Any, Any]


class Redone(NamedTuple):
    """The problems, and whether the files have all of the journal that they should."""

    problems: list[CorruptRecord]
    complete: bool


def redo(files: MsgFileStore, parts: Sequence[JournalPart]) -> Redone:
    """Write the parts of a journal that the files of a shard lack.

    - A part below the first file is passed over: the shard had written it, and retention has
      removed that file since.
    - A part behind a gap is left out, unless damage of the journal can hold what is missing. Only a
      power cut leaves such a gap, and then no level promised more than the files have.
    - Of a part that reaches behind the end of its file, though another file follows, the records
      that fit are written: the file was shortened, and repair has filled the gap.
    - A part without its content gets zeros and entries that point to them, so that the parts behind
      it keep their offsets.

    Sealed files are synced here, the last ones by the caller's next sync.
    """
    problems: list[CorruptRecord] = []
    for part in _joined(parts, {segment.start for segment in files.data}):
        if len(files.data) and part.data_start < files.data.start:
            continue
        segment = _segment_for(files, part)
        if segment is None and (missing := _missing_before(files, part)) is not None:
            _keep_place(files, missing)
            segment = _segment_for(files, part)
        if segment is None:
            log.warning("%s: %d messages behind a gap are left", part.shard, len(part.entries))
            return Redone(problems, False)
        if part.lost:
            _keep_place(files, part)
            continue
        fitting = part
        if segment is not files.data.last and part.data_start + len(part.data) > segment.end:
            fitting = _within(part, segment.end)
            text = "the journal has more messages of this place than fit before the next file"
            problems.append(CorruptRecord(segment.path, segment.size, text))
        foreign = _redo_data(segment, fitting)
        if foreign is not None:
            return Redone([*problems, foreign], False)
        _redo_index(files, part)
    return Redone(problems, not problems)


def _within(part: JournalPart, end: int) -> JournalPart:
    """Return the messages of a part with records that end at a data offset or before it."""
    ends = part.entries["data_offset"].astype(np.int64) + part.entries["data_size"]
    count = int(np.count_nonzero(ends <= end))
    size = int(ends[count - 1]) - part.data_start if count else 0
    return part._replace(entries=part.entries[:count], data=part.data[:size])


def _joined(parts: Sequence[JournalPart], borders: set[int]) -> list[JournalPart]:
    """Join parts that follow each other, but not over a border where a data file begins."""
    groups: list[list[JournalPart]] = []
    index_end = data_end = -1
    pieces = [piece for part in parts for piece in _cut_at(part, borders)]
    for part in pieces:
        follows = (part.index_start, part.data_start) == (index_end, data_end)
        if not follows or part.data_start in borders or part.lost or groups[-1][0].lost:
            groups.append([])
        groups[-1].append(part)
        index_end = part.index_start + ENTRY_SIZE * len(part.entries)
        data_end = part.data_start + len(part.data)
    return [joined_parts(group) for group in groups]


def _cut_at(part: JournalPart, borders: set[int]) -> list[JournalPart]:
    """Return the pieces of a part that begin at its start and at each border within it.

    The ring's frames are joined by shard, and the shard may have begun a file between them.
    """
    if not any(part.data_start < border < part.data_start + len(part.data) for border in borders):
        return [part]
    starts = part.entries["data_offset"].astype(np.int64)
    cuts = (1 + np.flatnonzero(np.isin(starts[1:], list(borders)))).tolist()
    if not cuts or part.lost:
        return [part]
    pieces = []
    for first, last in pairwise([0, *cuts, len(starts)]):
        begin = int(starts[first]) - part.data_start
        end = int(starts[last]) - part.data_start if last < len(starts) else len(part.data)
        pieces.append(
            part._replace(
                index_start=part.index_start + ENTRY_SIZE * first,
                data_start=part.data_start + begin,
                entries=part.entries[first:last],
                data=part.data[begin:end],
                damaged_before=part.damaged_before if first == 0 else 0,
            )
        )
    return pieces


def _segment_for(files: MsgFileStore, part: JournalPart) -> FileSegment | None:
    """Return the data segment that a part belongs to, made if it is the first."""
    if not len(files.data):
        if part.data_start or part.index_start:
            return None
        return files.first_data_segment()
    found = files.data.find(part.data_start)
    if found is not None and found.end == part.data_start and found is not files.data.last:
        return files.data.between(part.data_start, part.data_start + 1)[0]
    return found


def _missing_before(files: MsgFileStore, part: JournalPart) -> JournalPart | None:
    """Return the part that is missing before `part`, if damaged frames can have held it.

    Damaged frames are at least as long as what they held.
    """
    index_end, data_end = files.index.end, files.data.end
    count, rest = divmod(part.index_start - index_end, ENTRY_SIZE)
    size = part.data_start - data_end
    if rest or count <= 0 or size < count * HEADER_SIZE:
        return None
    if count * ENTRY_SIZE + size > part.damaged_before:
        return None
    return lost_part(part.shard, index_end, data_end, count, size)


def _keep_place(files: MsgFileStore, part: JournalPart) -> None:
    """Write zeros and entries where the files lack a part that lost its content."""
    segment = _segment_for(files, part)
    size = len(part.data)
    if segment is None or files.data.end >= part.data_start + size:
        return  # the shard had written it, or it is behind a gap
    there = segment.read(part.data_start, size) if part.data_start < segment.end else b""
    entries, at = [], 0
    while at < len(there):  # a kill leaves the first records
        header, reason = inspect(there, at, len(there))
        if reason is not None:
            break
        entries.append(entry_of(header, part.data_start + at))
        at += record_size(header)
    count = len(part.entries) - len(entries)
    if count <= 0:
        return
    rest = lost_part(part.shard, 0, part.data_start + at, count, size - at)
    entries.append(rest.entries.tobytes())
    segment.restore(bytes(size - len(there)), part.data_start + len(there))
    placed = np.frombuffer(b"".join(entries), part.entries.dtype)
    _redo_index(files, part._replace(entries=placed))


def _redo_data(segment: FileSegment, part: JournalPart) -> CorruptRecord | None:
    """Write the part's records into the segment; returns the first that has other content."""
    at = part.data_start - segment.start
    size = len(part.data)
    there = bytes(segment.read(part.data_start, size)) if part.data_start < segment.end else b""
    if there == part.data:
        return None
    if part.data[: len(there)] == there:  # a kill leaves nothing else
        segment.restore(part.data[len(there) :], part.data_start + len(there))
        return None
    starts = (part.entries["data_offset"].astype(np.int64) - part.data_start).tolist()
    for start, end in zip(starts, [*starts[1:], size], strict=True):
        record = part.data[start:end]
        if there[start:end] != record:
            if inspect(there, start, len(there))[1] is None:
                return CorruptRecord(
                    segment.path, at + start, "an intact message where the journal has another one"
                )
            segment.restore(record, part.data_start + start)
    return None


def _redo_index(files: MsgFileStore, part: JournalPart) -> None:
    """Write the entries that follow the last one; recovery writes any other from the records."""
    index = files.index
    have, partial = divmod(index.end - part.index_start, ENTRY_SIZE)
    if 0 <= have < len(part.entries) and not partial and (len(index) or not part.index_start):
        last = index.last if len(index) else files.first_index_segment()
        missing = kernels.bytes_of(np.ascontiguousarray(part.entries[have:]).view(np.uint8))
        last.restore(missing.tobytes(), last.end)
