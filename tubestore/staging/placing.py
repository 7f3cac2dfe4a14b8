"""Give a staged pair of files its place in a shard: offsets become absolute, in place.

A pair that was staged for the place that it gets is taken as it is, if its rows have their ids
and its writer synced it before it described it: nothing is written. Any other is rewritten in
place, all of it, and synced. What is checked:

| pair | index | data |
| --- | --- | --- |
| taken as it is | all of it against its digest | length; own offset of the first record |
| rewritten | all of it against its digest | all of it against its digest |

The digests are those of the pair as it was staged, with the offsets (and ids that are given here)
as they were then. Data that is not rewritten need not be read: its writer summed up each payload
and synced the file, and what a disk spoils after a sync shows as it does in any other file of the
store, by the records' checksums.

Always true: it may be repeated, with other places and other ids, also after it was interrupted
anywhere. So nothing of a rewritten pair may look as if it had been staged for another place:

1. the index's first entry is marked, synced (only where a pair may be taken as it is: with ids);
2. the records get their offsets, synced;
3. the index gets its offsets, which takes the mark away, synced.

Interrupted before the end of 3 the mark shows it. After it the first record does; the index cannot,
because entries do not contain their own offsets.

A job of `SPREAD_BYTES` can be placed by other processes (`spread`). Each writes new files under a
name that no other process has, and leaves those that were staged as they are: a task that is run
twice, or goes on after the job was published, changes no file of the store.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

import numpy as np
import xxhash

from tubestore.core import kernels
from tubestore.core.paths import join
from tubestore.core.vfs import OsVfs, Vfs, VfsFile
from tubestore.errors import InvalidMessage
from tubestore.options import PARTITIONS_PER_STORE
from tubestore.record.layouts import DATA_HEADER
from tubestore.record.names import DATA_SUFFIX, INDEX_SUFFIX
from tubestore.record.records import ENTRY_SIZE, HEADER_SIZE, entries_in
from tubestore.staging.job_files import PlacedFile, StagedFile

T = TypeVar("T")
R = TypeVar("R")
Array = np.ndarray[Any, Any]

#: Data that is in memory at a time, a thread: it is gone through five times, so it should stay in
#: the processor's cache (8 MiB take twice as long).
WINDOW_BYTES = 1 << 20
#: What is written of a file is begun to be brought to the disk so many bytes at a time.
_WRITE_OUT_BYTES = 8 << 20
#: Jobs smaller than this are placed by the calling thread alone.
THREADED_BYTES = 32 << 20
_THREADS_MAX = 8
#: Jobs from this size on are placed by other processes, if there are some.
SPREAD_BYTES = 256 << 20
_OFFSET_AT = DATA_HEADER.position("queue_logic_offset")
_ID_AT = DATA_HEADER.position("msg_id")
#: The data offset of the first entry of a pair that is being rewritten.
_MARK = -1


class Room:
    """Memory for one block after the other: the first touch of memory costs a process most."""

    def __init__(self, size: int) -> None:
        self._bytes = np.empty(size, np.uint8)

    def of(self, size: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Return room for a block; that before it is gone."""
        if size > len(self._bytes):
            self._bytes = np.empty(size, np.uint8)
        return self._bytes[:size]


class EarlyWriteOut:
    """Begins to bring a file to the disk while it is written: the sync then finds little to do."""

    def __init__(self, file: VfsFile) -> None:
        self._file, self._begun = file, 0

    def reached(self, end: int) -> None:
        """Take note that everything before `end` is written."""
        if end - self._begun >= _WRITE_OUT_BYTES:
            self._file.let_go(end - self._begun, self._begun)
            self._begun = end


def place_all(
    place: Callable[[T], R], parts: Sequence[T], size: int, threads: int | None
) -> list[R]:
    """Call `place` for each part of a job of `size` bytes; a large one by `threads` at a time.

    None: one for each core, up to eight.
    """
    if size < THREADED_BYTES:
        threads = 1
    elif threads is None:
        threads = min(_THREADS_MAX, os.cpu_count() or 1)
    if threads == 1:
        return list(map(place, parts))
    with ThreadPoolExecutor(threads, "publish") as pool:
        return list(pool.map(place, parts))


class Spread(Protocol):
    """Calls a function with each part, as `map` does, in any processes that see the store.

    Function, parts and results can be pickled. A part may be worked on more than once.
    """

    def __call__(self, work: Callable[[T], R], parts: Sequence[T]) -> list[R]:
        """Return the results in the order of the parts; what one call raises it raises."""


def spread_out(
    spread: Spread,
    work: Callable[[T], R],
    parts: Sequence[T],
    check: Callable[[T, R], str | None],
) -> list[R]:
    """Have other processes work on the parts, and compare what comes back with them.

    `check` returns what is wrong with a result, None if it is that of the part and its files are
    there. InvalidMessage for any other: the store has not changed, the job can be published again.
    """
    wanted = f"the results of all {len(parts)} parts are needed, in their order"
    given: Any = spread(work, parts)
    if not isinstance(given, Iterable):
        raise InvalidMessage(f"spread returned {given!r:.60}: {wanted}")
    results = list(given)
    if len(results) != len(parts):
        raise InvalidMessage(f"spread returned {len(results)} results: {wanted}")
    for number, (part, result) in enumerate(zip(parts, results, strict=True), 1):
        if (trouble := check(part, result)) is not None:
            raise InvalidMessage(f"spread, result {number} of {len(parts)}: {trouble}")
    return results


@dataclass(frozen=True, slots=True)
class Placing:
    """A staged pair, its place, and the first of the ids that its rows get (None: they have)."""

    staging: str
    staged: StagedFile
    file: PlacedFile
    first_id: int | None


def place_file(vfs: Vfs, placing: Placing, name: str | None = None) -> PlacedFile:
    """Make the offsets of a pair absolute, give ids, if it has none, and sync it; see the head.

    With a `name`, new files of that name get what is changed. Returns the file as it is placed;
    InvalidMessage for one that does not fit its description.
    """
    staged, file = placing.staged, placing.file
    path = join(placing.staging, file.name)
    data = vfs.open(path + DATA_SUFFIX, writable=name is None)
    index = vfs.open(path + INDEX_SUFFIX, writable=name is None)
    entries = entries_in(index.pread(file.index_size, 0)).copy()
    if len(entries) != file.rows:
        raise InvalidMessage(f"{index.path}: shorter than it was staged")
    # From the sizes: an earlier call may have been interrupted, its offsets half written.
    starts = kernels.offsets_of(entries["data_size"].astype(np.int64))[:-1]
    _check_entries(staged, entries, starts)
    # A power cut may have left anything of unsynced data, so all of it is read.
    ready = placing.first_id is None and staged.synced
    opened = [data, index]
    if ready and _is_placed(data, staged, entries, starts, file):
        name = None
    else:
        targets: tuple[VfsFile, ...] = (data, index)
        if name is not None:
            new = join(placing.staging, name)
            targets = tuple(vfs.open(new + end, create=True) for end in (DATA_SUFFIX, INDEX_SUFFIX))
            opened += targets
        elif staged.has_ids:
            _mark(index, entries)
        _rewrite(data, targets, staged, entries, starts, file, placing.first_id)
    for one in opened:
        one.close()
    return file if name is None else replace(file, name=name)


def place_anew(placing: Placing) -> PlacedFile:
    """Place a pair in a process of its own: as `place_file`, in files that no other one writes."""
    return place_file(OsVfs(), placing, f"{placing.file.name}-{uuid.uuid4().hex[:12]}")


def wrong_size(vfs: Vfs, path: str, size: int) -> str | None:
    """Return what is wrong with the size of a file, None if it has `size` bytes."""
    there = vfs.size_of(path)
    if there == size:
        return None
    return f"{path} " + ("is missing" if there is None else f"has {there} bytes and not {size}")


def misplaced(vfs: Vfs, placing: Placing, placed: Any) -> str | None:
    """Return what is wrong with what another process made of a pair, None if nothing is.

    Compared are the place, the lengths, the whole index, and the own lengths and offsets of the
    first and the last record. Payloads are not read: their checksums show what a disk spoils, as in
    any file.
    """
    staged, file = placing.staged, placing.file
    if not isinstance(placed, PlacedFile):
        return f"the PlacedFile of {file.name} is needed, not {placed!r:.60}"
    own = isinstance(placed.name, str) and placed.name.startswith(file.name)
    if not own or replace(placed, name=file.name) != file:
        return f"it is not {file.name} in its place"
    path = join(placing.staging, placed.name)
    for end, size in ((DATA_SUFFIX, file.data_size), (INDEX_SUFFIX, file.index_size)):
        if (trouble := wrong_size(vfs, path + end, size)) is not None:
            return trouble
    data, index = (vfs.open(path + end, writable=False) for end in (DATA_SUFFIX, INDEX_SUFFIX))
    try:
        entries = entries_in(index.pread(file.index_size, 0)).copy()
        starts = kernels.offsets_of(entries["data_size"].astype(np.int64))[:-1]
        same = np.array_equal(entries["data_offset"], starts + file.data_start)
        same = same and _is_as_staged(staged, entries, starts)
        for row in (0, -1) if same else ():
            number = file.index_start + row % file.rows * ENTRY_SIZE
            head = data.pread(_OFFSET_AT + 8, int(starts[row]))
            same &= int.from_bytes(head[:4], "big") == int(entries["data_size"][row]) - 4
            same &= int.from_bytes(head[_OFFSET_AT:], "big") == number
    finally:
        data.close()
        index.close()
    return None if same else f"{path}: not what was staged, with the offsets of its place"


def _is_placed(
    data: VfsFile, staged: StagedFile, entries: Array, starts: Array, file: PlacedFile
) -> bool:
    """True if a pair that has its ids was staged for its place, and is as it was staged."""
    if (staged.index_start, staged.data_start) != (file.index_start, file.data_start):
        return False
    if not np.array_equal(entries["data_offset"], starts + staged.data_start):
        return False
    own = data.pread(8, _OFFSET_AT)
    return int.from_bytes(own, "big") == staged.index_start


def _rewrite(
    source: VfsFile,
    targets: tuple[VfsFile, ...],
    staged: StagedFile,
    entries: Array,
    starts: Array,
    file: PlacedFile,
    first_id: int | None,
) -> None:
    """Write a pair with the offsets of its place, and ids; the steps are those of the head."""
    data, index = targets
    if _place_records(source, data, staged, starts, file, first_id) != staged.data_digest:
        raise InvalidMessage(f"{source.path}: not the bytes that were staged")
    data.sync()
    entries["data_offset"] = starts + file.data_start
    index.pwrite(entries.view(np.uint8).data, 0)
    index.sync()


def _mark(index: VfsFile, entries: Array) -> None:
    """Make an index show, durably, that its pair is being rewritten."""
    entries["data_offset"][0] = _MARK
    index.pwrite(entries[:1].view(np.uint8).data, 0)
    index.sync()


def _place_records(
    source: VfsFile,
    data: VfsFile,
    staged: StagedFile,
    starts: Array,
    file: PlacedFile,
    first_id: int | None,
) -> str:
    """Write the records with offsets and ids, a window at a time; returns the staged digest."""
    digest, room, write_out = xxhash.xxh3_64(), Room(WINDOW_BYTES), EarlyWriteOut(data)
    bounds = np.append(starts, file.data_size)
    row = 0
    while row < len(starts):
        low = int(starts[row])
        stop = max(row + 1, int(bounds.searchsorted(low + WINDOW_BYTES, "right")) - 1)
        end = int(bounds[stop])
        records = room.of(end - low)
        if source.pread_into(records.data, low) != end - low:
            raise InvalidMessage(f"{source.path}: shorter than it was staged")
        places = starts[row:stop] - low
        offsets = np.arange(row, stop, dtype=np.int64) * ENTRY_SIZE
        kernels.scatter(records, places + _OFFSET_AT, (offsets + staged.index_start).astype(">i8"))
        if first_id is not None:
            kernels.scatter(records, places + _ID_AT, np.zeros(stop - row, ">i8"))
        digest.update(records.data)
        kernels.scatter(records, places + _OFFSET_AT, (offsets + file.index_start).astype(">i8"))
        if first_id is not None:
            ids = np.arange(first_id + row, first_id + stop)
            kernels.scatter(records, places + _ID_AT, ids.astype(">i8"))
        data.pwrite(records.data, low)
        row = stop
        write_out.reached(end)
    return digest.hexdigest()


def _check_entries(staged: StagedFile, entries: Array, starts: Array) -> None:
    """Raise InvalidMessage unless these are the entries that were staged, all of this shard."""
    if not _is_as_staged(staged, entries, starts):
        raise InvalidMessage(f"staged file {staged.name}: its index is not what was staged")


def _is_as_staged(staged: StagedFile, entries: Array, starts: Array) -> bool:
    """True if these entries, but for their offsets, are those that were staged."""
    as_staged = entries.copy()
    as_staged["data_offset"] = starts + staged.data_start
    same = xxhash.xxh3_64_hexdigest(as_staged.view(np.uint8).data) == staged.index_digest
    same &= int(starts[-1]) + int(entries["data_size"][-1]) == staged.data_size
    same &= bool((entries["data_size"] > HEADER_SIZE).all())
    places = entries["partition_id"].astype(np.int64) - staged.store_id * PARTITIONS_PER_STORE
    same &= bool(((places >= 0) & (places < staged.partitions)).all())
    return same
