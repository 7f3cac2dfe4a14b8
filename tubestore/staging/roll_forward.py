"""Finish a job that has its commit record, and not all of its files in their place.

Where each of its files can be:

| found | done |
| --- | --- |
| staged, and its shard ends where it begins | renamed to its place |
| staged, and its place behind the live file's last byte is free (`behind.py`) | copied there |
| in its place, whole | nothing |
| staged, and its shard ends elsewhere: something else has written there | the job cannot go on |
| nowhere: it was removed, or the disk has lost what it had synced | the job cannot go on |
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from operator import attrgetter
from os.path import dirname

from tubestore.core.doors import logger
from tubestore.core.paths import join
from tubestore.core.trees import files_by_start, move_file, remove_tree
from tubestore.core.vfs import Vfs
from tubestore.disks.writer_lock import WriterLock
from tubestore.errors import NotAStore
from tubestore.record.names import DATA_SUFFIX, INDEX_SUFFIX, parse_segment_name
from tubestore.staging.behind import is_blank, is_free, put_behind
from tubestore.staging.commit_records import CommitRecords, JobRecords, R
from tubestore.staging.job_files import CommitRecord, Move, staging_directory

log = logger(__name__)


@dataclass(frozen=True, slots=True)
class FilePlace:
    """A file of a job, where it is now, and why it cannot go on, if so."""

    move: Move
    is_staged: bool
    obstacle: str | None = None


def places_of(vfs: Vfs, root: str, record: CommitRecord) -> list[FilePlace]:
    """Return the place of every file of a job, in the order in which they are to be moved.

    Data first: an entry is never there before its record.
    """
    data, index = record.moves(root)
    found = []
    for moves, suffix in ((data, DATA_SUFFIX), (index, INDEX_SUFFIX)):
        ends: dict[str, int] = {}
        for move in moves:
            directory = dirname(move.final)
            if directory not in ends:
                ends[directory] = _end_of(vfs, directory, suffix)
            place = _place_of(vfs, move, ends[directory])
            if place.is_staged and place.obstacle is None:
                ends[directory] = move.start + move.size
            found.append(place)
    return found


def give_up(
    vfs: Vfs, records: JobRecords[R], record: R, places: Sequence[tuple[str, int, int]],
    take_away: Callable[[str], object],
) -> str:  # fmt: skip
    """End a job that cannot be finished, with the record and what it has staged taken away.

    `places`: final file, first byte and size of each of its files. Its id is free if all of them
    are blank, else refused, with the sentence that is returned. For a store that is locked.
    """
    there = sum(not is_blank(vfs, *place) for place in places)
    staging = staging_directory(records.root, record.job_id)
    kept = take_away(staging) if vfs.exists(staging) else None
    rest = "nothing was staged any more" if kept is None else f"what it had staged is in {kept}"
    if there:
        text = f"{there} of its {len(places)} files are in the store, whole, in part or overwritten"
        text = f"{text}; {rest}; publish what is missing under another id"
        records.give_up(record, f"it could not be finished and was given up: {text}")
    else:
        text = f"nothing of it is in the store, so it can be published again; {rest}"
        records.give_up(record, None)
    take_away(records.path(record.number))
    return text


def _place_of(vfs: Vfs, move: Move, end: int) -> FilePlace:
    there = _size_of(vfs, move.final)
    if _size_of(vfs, move.staged) != move.size:
        gone = f"{move.staged} is gone" if there < move.begins + move.size else None
        return FilePlace(move, False, gone)
    if 0 < move.begins <= there:
        free = there == move.begins or is_free(vfs, move.staged, move.final, move.begins, move.size)
        text = f"another process has written behind {move.start}, in {move.final}"
        return FilePlace(move, True, None if free else text)
    if not move.begins and there == move.size:  # it was copied, and not yet removed
        return FilePlace(move, True)
    text = f"{dirname(move.final)} ends at {end} and it goes on at {move.start}"
    return FilePlace(move, True, None if end == move.start else text)


def recover(vfs: Vfs, root: str, writer: WriterLock | None = None) -> CommitRecord | None:
    """Finish a job that is recorded and not finished; returns it. For a store that is locked.

    NotAStore if it cannot go on; `repair` gives it up.
    """
    return finish_pending(vfs, CommitRecords(vfs, root, writer), roll_forward)


def finish_pending(
    vfs: Vfs, records: JobRecords[R], roll_forward: Callable[[Vfs, str, R], None]
) -> R | None:
    """As `recover`, whatever the store is made of: `roll_forward` brings all to its place."""
    record = records.pending()
    if record is not None:
        # The process that made the record may have died before the name was durable.
        vfs.sync_directory(records.directory)
        roll_forward(vfs, records.root, record)
        records.finish(record)
        remove_staging(vfs, records.root, record.job_id)
        log.info("%s: job %r is published now", records.root, record.job_id)
    return record


def roll_forward(vfs: Vfs, root: str, record: CommitRecord) -> None:
    """Bring every file of a recorded job to its place, durably; harmless when repeated."""
    places = places_of(vfs, root, record)
    for place in places:
        if place.obstacle is not None:
            text = f"job {record.job_id!r} is recorded and cannot go on: {place.obstacle}"
            raise NotAStore(root, f"{text}; see `tubestore repair`")
    move_staged(vfs, root, record, places)


def move_staged(vfs: Vfs, root: str, record: CommitRecord, places: list[FilePlace]) -> None:
    """Bring the staged ones of these files to their place, durably."""
    directories = {dirname(place.move.final) for place in places}
    for directory in sorted(directories):
        if not vfs.exists(directory):
            vfs.make_directories(directory)
    for directory in sorted({dirname(directory) for directory in directories}):
        vfs.sync_directory(directory)
    staged = (place.move for place in places if place.is_staged)
    for final, moves in groupby(staged, attrgetter("final")):
        first, *more = moves
        if first.begins:
            put_behind(vfs, final, ((m.staged, m.begins, m.size) for m in (first, *more)))
        else:
            _move(vfs, first)
    for directory in sorted(directories):
        vfs.sync_directory(directory)
    if vfs.exists(staging := staging_directory(root, record.job_id)):
        vfs.sync_directory(staging)


def _move(vfs: Vfs, move: Move) -> None:
    if _size_of(vfs, move.final) == move.size:
        vfs.remove(move.staged)
        return
    move_file(vfs, move.staged, move.final)


def _size_of(vfs: Vfs, path: str) -> int:
    """Return the size of a file, 0 if there is none."""
    try:
        file = vfs.open(path, writable=False)
    except FileNotFoundError:
        return 0
    size = file.size()
    file.close()
    return size


def _end_of(vfs: Vfs, directory: str, suffix: str) -> int:
    """Return where the files of a directory end."""
    files = files_by_start(vfs, directory, partial(parse_segment_name, suffix=suffix))
    return max((start + size for start, _, size in files), default=0)


def remove_staging(vfs: Vfs, root: str, job_id: str) -> None:
    """Remove a job's staging directory; what cannot be removed stays for the janitor."""
    with contextlib.suppress(OSError):
        remove_tree(vfs, staging_directory(root, job_id))


def remove_staged(
    vfs: Vfs, records: JobRecords[R], job_id: str, files: Sequence[tuple[str, int]]
) -> None:
    """Remove files (name, bytes) that one run of a job has staged, unless the job may go on.

    Needs no lock: another process may publish the same job meanwhile, from files of its own.
    """
    pending = records.pending()
    if pending is not None and pending.job_id == job_id:
        return
    staging = staging_directory(records.root, job_id)
    for name, _ in files:
        with contextlib.suppress(OSError):
            vfs.remove(join(staging, name))
    if not vfs.entries(staging):
        remove_staging(vfs, records.root, job_id)
