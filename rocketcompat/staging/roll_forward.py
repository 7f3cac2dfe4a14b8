"""Finish a job that has its commit record, and not all of its parts in the log.

| its place | a staged part is | a part that is not staged any more |
| --- | --- | --- |
| free: no file, zeros, some sectors of the part | renamed or copied there | lost: cannot go on |
| holds the part | | in its place |
| holds something else: a broker was at work | kept, and the job cannot go on | |
"""

from __future__ import annotations

from collections.abc import Callable
from os.path import dirname

from rocketcompat.staging.pieces import LogRecord, LogRecords, places_of
from tubestore.core.paths import join
from tubestore.core.trees import move_file
from tubestore.core.vfs import Vfs
from tubestore.disks.writer_lock import WriterLock
from tubestore.errors import NotAStore
from tubestore.staging.behind import put_behind
from tubestore.staging.job_files import staging_directory
from tubestore.staging.roll_forward import finish_pending, give_up


def recover_job(vfs: Vfs, root: str, writer: WriterLock | None = None) -> LogRecord | None:
    """Finish a job that is recorded and not finished; returns it. For a store that is locked.

    NotAStore if another process has written where it belongs.
    """
    return finish_pending(vfs, LogRecords(vfs, root, writer), roll_forward)


def give_up_job(vfs: Vfs, root: str, take_away: Callable[[str], object]) -> str | None:
    """Give up a job that cannot be finished; returns what became of it. For a locked store.

    Its record and staged files are taken away, and its part in the log stays: then its id is
    refused from then on, else free. Returns None, and does nothing, if there is no such job.
    """
    records = LogRecords(vfs, root)
    record = records.pending()
    if record is None or not any(place.obstacle for place in places_of(vfs, root, record)):
        return None
    size = record.file_size
    finals = [(join(root, p.path), p.start % size, p.size) for p in record.parts]
    text = give_up(vfs, records, record, finals, take_away)
    return f"job {record.job_id!r} was given up: {text}"


def roll_forward(vfs: Vfs, root: str, record: LogRecord) -> None:
    """Bring every part of a recorded job to its place, durably; harmless when repeated."""
    places = places_of(vfs, root, record)
    for place in places:
        if place.obstacle is not None:
            text = f"job {record.job_id!r} is recorded and cannot go on: {place.obstacle}"
            raise NotAStore(root, f"{text}; see `rocketcompat recover --give-up`")
    staging = staging_directory(root, record.job_id)
    for place in places:
        if not place.is_staged:
            continue
        part = place.part
        staged, final = join(staging, part.name), join(root, part.path)
        if part.start % record.file_size:
            put_behind(vfs, final, [(staged, part.start % record.file_size, part.size)])
        else:
            move_file(vfs, staged, final)
    for directory in sorted({dirname(join(root, part.path)) for part in record.parts}):
        vfs.sync_directory(directory)
    if vfs.exists(staging):
        vfs.sync_directory(staging)
