"""Files that come ready-made become part of shards in one atomic step.

    result = store.publish("load-7", staged)     # what `staging.StagedWriter` described

What is guaranteed:

- **All or nothing, at most once, for ever.** A job is in the store when its commit record is
  made, entirely; an id that was published once is never published again: a second call returns
  the result of the first. So a job whose end nobody saw is simply published again.
- **Order.** The files of a shard follow each other as in `staged`, behind everything that the
  shard has acknowledged before. Appends to these shards wait meanwhile; others go on.
- **Durability** is `fsync`: data, index, names and record are synced when `publish` returns.
- **Readers** of this package, in any process, see all of a job or nothing: it shows when it is
  finished (for a store opened with mode "r": at the next `refresh`, in all topics at once).
- **A real broker must wait** until a half-published job is finished: `tubestore check` says so,
  and opening the store for writing (or `tubestore recover`) finishes it.

The steps, and what a crash after each leaves:

| step | a crash leaves |
| --- | --- |
| buffers of the shards concerned are written and synced | nothing of the job |
| offsets become absolute, in place in the staged files; synced, names too | nothing of the job |
| the commit record is linked into place: **the atomic step** | the job, to be finished |
| files are renamed behind the ends of the shards; directories synced | the job, to be finished |
| the job is noted as finished | the job |
| the rest of its staging directory is removed | the job, and a rest for the janitor |

Failures: before the record nothing has changed, and the call may be repeated. After it the
shards concerned are failed (StoreFailed) until the store is opened again, which finishes the job.

Next to read: `commit_records.py`, `staging.py`.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from os.path import dirname
from typing import Any, Protocol

import numpy as np
import xxhash

from tubestore import kernels
from tubestore.clock import Clock
from tubestore.commit_records import (
    CommitRecord,
    CommitRecords,
    Move,
    PlacedFile,
    StagedFile,
    check_job_id,
    staging_directory,
)
from tubestore.errors import (
    DiskFull,
    InvalidMessage,
    NotAStore,
    StoreFailed,
    StoreLocked,
    TubeStoreError,
)
from tubestore.filenames import (
    DATA_SUFFIX,
    INDEX_SUFFIX,
    OWN_DIRECTORY,
    STAGING_DIRECTORY,
    join,
    parse_segment_name,
)
from tubestore.formats import DATA_HEADER, PARTITIONS_PER_STORE
from tubestore.message_store import MessageStore
from tubestore.records import ENTRY_SIZE, HEADER_SIZE, entries_in
from tubestore.vfs import Vfs

log = logging.getLogger(__name__)
Array = np.ndarray[Any, Any]

#: Data of a staged file that is in memory at a time, a thread.
WINDOW_BYTES = 8 << 20
#: Jobs smaller than this are placed by the calling thread alone.
_THREADED_BYTES = 32 << 20
_THREADS_MAX = 8
_COPY_BYTES = 8 << 20
_OFFSET_AT = DATA_HEADER.position("queue_logic_offset")
_ID_AT = DATA_HEADER.position("msg_id")


@dataclass(frozen=True, slots=True)
class PublishResult:
    """What became of a job. `files` is empty where its record is not kept any more."""

    job_id: str
    #: Jobs are numbered in the order in which they were published; 0: not known any more.
    number: int
    #: It had been published before: nothing was done now.
    replayed: bool
    files: tuple[PlacedFile, ...]

    @property
    def rows(self) -> int:
        """Messages of the job."""
        return sum(file.rows for file in self.files)

    @property
    def data_size(self) -> int:
        """Bytes of its data files."""
        return sum(file.data_size for file in self.files)


class PublishHost(Protocol):
    """What publishing asks of the store (`manager.py`)."""

    root: str
    vfs: Vfs
    clock: Clock

    def next_msg_ids(self, count: int) -> Array:
        """Reserve ids in a row (int64)."""

    def shards_to_publish(
        self, staged: list[StagedFile], *, create: bool
    ) -> dict[tuple[str, int], MessageStore]:
        """Return the shards of these files by topic and store id, opened for writing."""

    def showing(self) -> contextlib.AbstractContextManager[Any]:
        """Hold off whoever takes a view of several shards."""


def publish(
    host: PublishHost,
    job_id: str,
    staged: Iterable[StagedFile | Mapping[str, Any]],
    *,
    create_topics: bool,
    threads: int | None,
) -> PublishResult:
    """Make a job part of the store, or return what became of it before; see the head."""
    records = CommitRecords(host.vfs, host.root)
    known = find_result(records, check_job_id(job_id))
    if known is not None:
        remove_staging(host.vfs, host.root, job_id)
        return known
    files = [StagedFile.from_json(one) for one in staged]
    _check_staged(host, job_id, files)
    shards = host.shards_to_publish(files, create=create_topics)
    with contextlib.ExitStack() as held:
        ends = {}
        for key, shard in sorted(shards.items()):
            ends[key] = shard.hold()
            held.callback(shard.let_go)
        record = _place(host, records, job_id, files, ends)
        try:
            _prepare(host, records, record, files, threads)
        except OSError as error:
            raise _failure(host.root, error) from error
        try:
            _commit(host, records, record, shards)
        except _Taken as error:
            raise StoreLocked(host.root, "somebody who has just published") from error
        except BaseException as error:
            # The files may be longer than the shards know: nothing may be appended to them.
            for shard in shards.values():
                shard.fail(f"job {job_id!r} may be half published: {error}")
            if isinstance(error, OSError | TubeStoreError):
                raise StoreFailed(host.root, f"publishing {job_id!r}: {error}") from error
            raise
    remove_staging(host.vfs, host.root, job_id)
    return PublishResult(job_id, record.number, False, record.files)


class _Taken(Exception):
    """The number of the record was given to another job: somebody else publishes here."""


def _commit(
    host: PublishHost,
    records: CommitRecords,
    record: CommitRecord,
    shards: Mapping[tuple[str, int], MessageStore],
) -> None:
    """Make the record, and everything that follows from it."""
    try:
        records.commit(record)
    except FileExistsError as error:
        raise _Taken from error
    roll_forward(host.vfs, host.root, record)
    records.finish(record)
    _adopt(host, record, shards)


def find_result(records: CommitRecords, job_id: str) -> PublishResult | None:
    """Return what became of a finished job, None if there is none of this id."""
    pending = records.pending()
    if pending is not None:
        reason = f"job {pending.job_id!r} is half published"
        raise StoreFailed(records.root, reason)
    if job_id not in records.ids():
        return None
    record = records.find(job_id)
    if record is None:
        return PublishResult(job_id, 0, True, ())
    return PublishResult(job_id, record.number, True, record.files)


def _check_staged(host: PublishHost, job_id: str, files: list[StagedFile]) -> None:
    """Raise InvalidMessage if a file is not what its description says, as far as sizes tell."""
    directory = staging_directory(host.root, job_id)
    sizes = {name: size for name, is_directory, size in host.vfs.entries(directory)}
    seen: set[str] = set()
    for file in files:
        file.check()
        if file.name in seen:
            raise InvalidMessage(f"staged file {file.name} is given twice")
        seen.add(file.name)
        for name, size in (
            (file.name + DATA_SUFFIX, file.data_size),
            (file.name + INDEX_SUFFIX, file.index_size),
        ):
            if sizes.get(name) != size:
                there = f"has {sizes[name]} bytes" if name in sizes else "is missing"
                text = f"job {job_id!r}: {join(directory, name)} {there}, {size} were staged"
                raise InvalidMessage(text)


def _place(
    host: PublishHost,
    records: CommitRecords,
    job_id: str,
    files: list[StagedFile],
    ends: dict[tuple[str, int], tuple[int, int]],
) -> CommitRecord:
    """Give every file its place behind the end of its shard, in the order given."""
    placed = []
    ends = dict(ends)
    for file in files:
        key = (file.topic, file.store_id)
        index_start, data_start = ends[key]
        placed.append(
            PlacedFile(
                *key,
                name=file.name,
                rows=file.rows,
                index_start=index_start,
                data_start=data_start,
                data_size=file.data_size,
                first_time=file.first_time,
                last_time=file.last_time,
            )
        )
        ends[key] = (index_start + file.index_size, data_start + file.data_size)
    placed.sort(key=lambda file: (file.shard, file.index_start))
    return CommitRecord(records.finished() + 1, job_id, host.clock.now_ms(), tuple(placed))


def _prepare(
    host: PublishHost,
    records: CommitRecords,
    record: CommitRecord,
    files: list[StagedFile],
    threads: int | None,
) -> None:
    """Do everything that comes before the record, up to stable storage."""
    vfs = host.vfs
    staging = staging_directory(host.root, record.job_id)
    described = {file.name: file for file in files}

    def place(file: PlacedFile) -> None:
        staged = described[file.name]
        ids = None if staged.has_ids else host.next_msg_ids(file.rows)
        place_file(vfs, staging, staged, file, ids)

    total = sum(file.data_size for file in files)
    if total < _THREADED_BYTES:
        threads = 1
    elif threads is None:
        threads = min(_THREADS_MAX, os.cpu_count() or 1)
    if threads == 1:
        for file in record.files:
            place(file)
    else:
        with ThreadPoolExecutor(threads, "tubestore-publish") as pool:
            list(pool.map(place, record.files))
    if files:
        for directory in (staging, dirname(staging), join(host.root, OWN_DIRECTORY)):
            vfs.sync_directory(directory)
    records.prepare()
    records.draft(record)


def place_file(
    vfs: Vfs, staging: str, staged: StagedFile, file: PlacedFile, ids: Array | None
) -> None:
    """Make the offsets of a pair absolute, in place, give ids, and sync it.

    May be repeated with other places. What does not fit to the description is InvalidMessage:
    the digests are those of the files as they were staged.
    """
    path = join(staging, file.name)
    data = vfs.open(path + DATA_SUFFIX)
    index = vfs.open(path + INDEX_SUFFIX)
    entries = entries_in(index.pread(file.index_size, 0)).copy()
    if len(entries) != file.rows:
        raise InvalidMessage(f"{index.path}: shorter than it was staged")
    # From the sizes: an earlier call may have been interrupted, its offsets half written.
    starts = kernels.offsets_of(entries["data_size"].astype(np.int64))[:-1]
    _check_entries(staged, entries, starts)
    digest = xxhash.xxh3_64()
    row = 0
    while row < len(starts):
        stop = max(row + 1, int(starts.searchsorted(int(starts[row]) + WINDOW_BYTES, "right")) - 1)
        end = int(starts[stop]) if stop < len(starts) else file.data_size
        low = int(starts[row])
        records = np.frombuffer(data.pread(end - low, low), np.uint8).copy()
        if len(records) != end - low:
            raise InvalidMessage(f"{data.path}: shorter than it was staged")
        places = starts[row:stop] - low
        offsets = np.arange(row, stop, dtype=np.int64) * ENTRY_SIZE
        kernels.scatter(records, places + _OFFSET_AT, offsets.astype(">i8"))
        if ids is not None:
            kernels.scatter(records, places + _ID_AT, np.zeros(stop - row, ">i8"))
        digest.update(records.data)
        kernels.scatter(records, places + _OFFSET_AT, (offsets + file.index_start).astype(">i8"))
        if ids is not None:
            kernels.scatter(records, places + _ID_AT, ids[row:stop].astype(">i8"))
        data.pwrite(records.data, low)
        row = stop
    if digest.hexdigest() != staged.data_digest:
        raise InvalidMessage(f"{data.path}: not the bytes that were staged")
    entries["data_offset"] = starts + file.data_start
    index.pwrite(entries.view(np.uint8).data, 0)
    for written in (data, index):
        written.sync()
        written.close()


def _check_entries(staged: StagedFile, entries: Array, starts: Array) -> None:
    """Raise InvalidMessage unless these are the entries that were staged, all of this shard."""
    relative = entries.copy()
    relative["data_offset"] = starts
    same = xxhash.xxh3_64_hexdigest(relative.view(np.uint8).data) == staged.index_digest
    same &= int(starts[-1]) + int(entries["data_size"][-1]) == staged.data_size
    same &= bool((entries["data_size"] > HEADER_SIZE).all())
    places = entries["partition_id"].astype(np.int64) - staged.store_id * PARTITIONS_PER_STORE
    same &= bool(((places >= 0) & (places < staged.partitions)).all())
    if not same:
        raise InvalidMessage(f"staged file {staged.name}: its index is not what was staged")


def _adopt(
    host: PublishHost, record: CommitRecord, shards: Mapping[tuple[str, int], MessageStore]
) -> None:
    """Let the open shards know their new files, and all readers see them at one moment."""
    index: dict[tuple[str, int], list[tuple[int, int]]] = {key: [] for key in shards}
    data: dict[tuple[str, int], list[tuple[int, int]]] = {key: [] for key in shards}
    for file in record.files:
        index[file.shard].append((file.index_start, file.index_size))
        data[file.shard].append((file.data_start, file.data_size))
    for key, shard in shards.items():
        shard.adopt(index[key], data[key])
    with host.showing():
        for shard in shards.values():
            shard.show_adopted()
    for shard in shards.values():
        shard.leave_checkpoint()


def _failure(root: str, error: OSError) -> TubeStoreError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFull(root, str(error))
    return StoreFailed(root, str(error))


# -- finishing what is recorded ----------------------------------------------------------------


def recover(vfs: Vfs, root: str) -> CommitRecord | None:
    """Finish a job that is recorded and not finished; returns it. For a store that is locked."""
    records = CommitRecords(vfs, root)
    record = records.pending()
    if record is not None:
        # Whoever made the record may have died before its name was durable.
        vfs.sync_directory(records.directory)
        roll_forward(vfs, root, record)
        records.finish(record)
        remove_staging(vfs, root, record.job_id)
        log.info("%s: job %r is published now", root, record.job_id)
    return record


def roll_forward(vfs: Vfs, root: str, record: CommitRecord) -> None:
    """Bring every file of a recorded job to its place, durably; harmless when repeated."""
    data, index = record.moves(root)
    directories = {dirname(move.final) for move in (*data, *index)}
    for directory in sorted(directories):
        if not vfs.exists(directory):
            vfs.make_directories(directory)
    for directory in sorted({dirname(directory) for directory in directories}):
        vfs.sync_directory(directory)
    # Data first: an entry is never there before its record.
    for moves, suffix in ((data, DATA_SUFFIX), (index, INDEX_SUFFIX)):
        ends: dict[str, int] = {}
        for move in moves:
            _move(vfs, root, record, move, suffix, ends)
    for directory in sorted(directories):
        vfs.sync_directory(directory)
    if record.files:
        vfs.sync_directory(staging_directory(root, record.job_id))


def _move(
    vfs: Vfs, root: str, record: CommitRecord, move: Move, suffix: str, ends: dict[str, int]
) -> None:
    """Bring one file to its place, if it is not there."""
    directory = dirname(move.final)
    there = _size_of(vfs, move.final)
    if _size_of(vfs, move.staged) != move.size:
        if there < move.size:
            text = f"job {record.job_id!r} is recorded, and its file {move.staged} is gone"
            raise NotAStore(root, text)
        return
    if there == move.size:  # it was copied, and not yet removed
        vfs.remove(move.staged)
        return
    if directory not in ends:
        ends[directory] = _end_of(vfs, directory, suffix)
    if ends[directory] != move.start:
        text = f"job {record.job_id!r} goes on at {move.start} and {directory} ends at"
        text += f" {ends[directory]}: something else has written there; `tubestore repair` helps"
        raise NotAStore(root, text)
    try:
        vfs.rename(move.staged, move.final)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        _copy(vfs, move)
    ends[directory] = move.start + move.size


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
    ends = [0]
    for name, is_directory, size in vfs.entries(directory):
        start = None if is_directory else parse_segment_name(name, suffix)
        if start is not None:
            ends.append(start + size)
    return max(ends)


def _copy(vfs: Vfs, move: Move) -> None:
    """Bring a file to another file system."""
    temporary = f"{move.final}.tmp"
    if vfs.exists(temporary):
        vfs.remove(temporary)
    source, target = vfs.open(move.staged, writable=False), vfs.open(temporary, create=True)
    for position in range(0, move.size, _COPY_BYTES):
        target.pwrite(source.pread(_COPY_BYTES, position), position)
    target.sync()
    target.close()
    source.close()
    vfs.rename(temporary, move.final)
    vfs.sync_directory(dirname(move.final))
    vfs.remove(move.staged)


# -- what is left of jobs ----------------------------------------------------------------------


def abort(vfs: Vfs, root: str, job_id: str) -> PublishResult | None:
    """Give a job up: remove what it has staged. Returns its result if it was published before."""
    known = find_result(CommitRecords(vfs, root), check_job_id(job_id))
    remove_staging(vfs, root, job_id)
    return known


def remove_staging(vfs: Vfs, root: str, job_id: str) -> None:
    """Remove a job's staging directory; what cannot be removed stays for the janitor."""
    _remove_tree(vfs, staging_directory(root, job_id))


def clean_staging(vfs: Vfs, root: str, now_ms: int, grace_ms: int) -> list[str]:
    """Remove staging directories in which nothing was written for `grace_ms`; returns them.

    They are what is left of jobs that were given up, or whose slow tasks went on writing.
    """
    pending = CommitRecords(vfs, root).pending()
    directory = join(root, OWN_DIRECTORY, STAGING_DIRECTORY)
    removed = []
    kept = {staging_directory(root, pending.job_id)} if pending is not None else set()
    for name, is_directory, _ in vfs.entries(directory):
        path = join(directory, name)
        if is_directory and path not in kept and _last_written(vfs, path) + grace_ms <= now_ms:
            _remove_tree(vfs, path)
            removed.append(name)
    return removed


def _last_written(vfs: Vfs, directory: str) -> int:
    times = [vfs.modified_ms(directory)]
    for name, is_directory, _ in vfs.entries(directory):
        if not is_directory:
            with contextlib.suppress(FileNotFoundError):
                times.append(vfs.modified_ms(join(directory, name)))
    return max(times)


def _remove_tree(vfs: Vfs, directory: str) -> None:
    with contextlib.suppress(OSError):
        for name, _, _ in vfs.entries(directory):
            vfs.remove(join(directory, name))
        if vfs.exists(directory):
            vfs.remove_directory(directory)
