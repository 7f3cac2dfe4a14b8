"""Recovery of one shard's files: afterwards data and index match.

It begins where they are known to match: at the checkpoint, else at the last segments. The work is
done in `reconcile.py`.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from tubestore.core.doors import logger
from tubestore.record.layouts import DATA_HEADER, TOKEN_MESSAGE
from tubestore.record.records import ENTRY_SIZE, entries_in, inspect
from tubestore.segments.cache_formats import MISPLACED, Checkpoint
from tubestore.segments.checkpoint import describes, joined, write_checkpoint
from tubestore.segments.file_store import MsgFileStore
from tubestore.segments.lost_files import (
    Places,
    ends_missing,
    keep_lost_end,
    keep_misplaced,
    make_first_index_files,
    missing_begin,
    pieces_of,
)
from tubestore.segments.reconcile import (
    Reconciler,
    RecoverReport,
    SetAside,
    is_trusted,
    note_damage,
    note_problem,
)
from tubestore.segments.segment import FileSegment

log = logger(__name__)


def recover(files: MsgFileStore, own: Checkpoint | None) -> RecoverReport:
    """Verify and mend a shard's files that were loaded for writing; `own`: its checkpoint."""
    report = RecoverReport()
    set_aside = SetAside(files)
    # A process that was killed may have made files and not synced their directories, and what
    # recovery makes or removes is not durable either: the next sync has to do it.
    files.distrust_directories()
    if not len(files.data):
        if len(files.index) and files.index.end > files.index.start:
            note_problem(report, files.index.last, 0, "index entries without any data")
            report.index_cut = files.index.end - files.index.start
            set_aside.cut(files.index, files.index.start)
        return report
    _cut_partial_entry(files, report)
    found = joined(own, files.bounds())
    _report_missing(files, report, found)
    checkpoint = own if own is not None and describes(own, files) else None
    places = Places(pieces_of(files.index), pieces_of(files.data))
    shifted = not places.index_is_in_order() or (checkpoint is None and places.index_is_shifted())
    misplaced = keep_misplaced(files, places.misplaced)
    for damage in misplaced:
        note_damage(files, report, *damage)
    if checkpoint is not None:
        for start, end, reason in checkpoint.damages:
            if not reason.startswith(MISPLACED):
                note_damage(files, report, start, end, reason)
    index_from, data_from = _trusted(files, checkpoint)
    if shifted:
        index_from, data_from = files.index.start, files.data.start
    ended = found is not None and ends_missing(files, found) > 0
    if index_from == files.index.end and data_from == files.data.end and not ended:
        return report
    known = len(files.damages)
    boot = checkpoint.boot if checkpoint is not None else ""
    report.never_synced = boot not in ("", files.vfs.boot_id())
    passed = {damage.start for damage in misplaced}
    record_of = partial(_record_of, files)
    Reconciler(files, report, set_aside, index_from, data_from, passed, record_of).run()
    lost = keep_lost_end(files, found) if found is not None else None
    if lost is not None:
        note_damage(files, report, *lost)
    if len(files.damages) > known:  # later openings do not verify this again, and need it
        files.sync()
        write_checkpoint(files, files.index.end, files.data.end)
    return report


def _record_of(files: MsgFileStore, offset: int) -> bytes:
    """Return the record of the entry at an index offset, as the files are now."""
    return Places(pieces_of(files.index), pieces_of(files.data)).record_of(offset)


def _report_missing(files: MsgFileStore, report: RecoverReport, found: Checkpoint | None) -> None:
    """Report files that are missing at the beginning."""
    made = make_first_index_files(files, found)
    problems = [made] if made is not None else []
    begins = [files.index.start, files.data.start]
    if found is not None:
        missing = missing_begin(files.directory, found, index_start=begins[0], data_start=begins[1])
        if missing:  # it is reported at each opening
            begins = [min(found.index_start, begins[0]), min(found.data_start, begins[1])]
        problems += missing
    if not len(files.index):  # it is made again, from the place that the records name
        begins[0] = found.index_start if found is not None else -1
    elif made is not None and (found is None or found.index_start < 0):
        begins[0] = -1  # not known: likewise
    files.begins = begins[0], begins[1]
    for problem in problems:
        report.problems.append(problem)
        log.error("%s", problem)


def _cut_partial_entry(files: MsgFileStore, report: RecoverReport) -> None:
    if len(files.index):
        last = files.index.last
        partial = last.size % ENTRY_SIZE
        if partial:
            report.index_cut += partial
            last.cut(last.end - partial)


def _trusted(files: MsgFileStore, checkpoint: Checkpoint | None) -> tuple[int, int]:
    """Return (index offset, data offset) below which nothing needs to be verified.

    From the checkpoint where it fits. Otherwise sealed segments are trusted, and the last of each
    stream is not: the data that the last index segment points to, and the whole last data segment.
    """
    if checkpoint is not None:
        if (checkpoint.index_end, checkpoint.data_end) == (files.index.end, files.data.end):
            files.trust_directories()  # they were synced before it was written
        return checkpoint.index_end, checkpoint.data_end
    if not len(files.index):
        return _first_offset(files.data), files.data.start
    last_data = files.data.last
    index_from = _first_entry_into(files, last_data.start)
    if last_data.size >= DATA_HEADER.size:
        header = DATA_HEADER.unpack_from(last_data.read(last_data.start, DATA_HEADER.size))
        if header.token == TOKEN_MESSAGE and files.index.start <= header.queue_logic_offset:
            index_from = min(index_from, header.queue_logic_offset)
    before = files.index.find(index_from - 1) if index_from > files.index.start else None
    if before is None or index_from < before.start + ENTRY_SIZE:
        return files.index.start, files.data.start
    at = index_from - (index_from - before.start) % ENTRY_SIZE
    entries = entries_in(before.read(at - ENTRY_SIZE, ENTRY_SIZE))
    # Entry and record must agree: of damage that has several entries only the first and the last
    # one contain where it begins and ends. TubeMQ 1.2.0 without caches writes entries at -1
    # .
    if not is_trusted(files, entries, at - ENTRY_SIZE):
        return files.index.start, files.data.start
    return at, int(entries["data_offset"][0]) + int(entries["data_size"][0])


def _first_entry_into(files: MsgFileStore, data_offset: int) -> int:
    """Return the first index offset from which entries may point to `data_offset` or behind.
    Asked of the entries and not of the data: an index segment can be sealed, and so on stable
    storage, while the data that it points to is lost.
    """
    last = files.index.last
    found = last.start
    for segment in reversed(list(files.index)):
        offsets = entries_in(segment.view(segment.end))["data_offset"]
        rows = np.flatnonzero(offsets >= data_offset)
        if len(rows):
            found = min(found, segment.start + ENTRY_SIZE * int(rows[0]))
        if segment is not last and (len(rows) == 0 or rows[0] > 0):
            break
    return found


def _first_offset(data: Any) -> int:
    """Return the index offset that the first record names; 0 if it cannot be read."""
    first: FileSegment = next(iter(data))
    if first.size < DATA_HEADER.size:
        return 0
    header, reason = inspect(first.view(first.end), 0, first.size)
    return int(header.queue_logic_offset) if reason is None else 0
