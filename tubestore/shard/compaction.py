"""Compaction: small sealed files of a shard that follow each other become one, in place.

A file is named by the offset of its first byte. So the bytes of files that follow each other, under
the name of the first, are the same stream: no offset, entry, record, time or job id changes, and
TubeMQ reads it as before. Data and index files are merged apart from each other. The steps, and
what a crash after each leaves:

| step | a crash leaves |
| --- | --- |
| the files are read: digests, and every entry against its record | the files |
| a copy of all is written in the shard's trash, synced, read again | the files (the trash goes) |
| their digests go; the first file gets a second name in the trash | the files |
| the copy is renamed over the first, durably: **the atomic step** | the files, or the one file |
| the others go to the trash | one file, and some that lie inside it |
| the shard's lists have the one file; its digests are made | one file |

A file that lies inside the one before it, with the same bytes, is left out of every listing
(`segments/segment_list.without_merged`), and the next opening for writing moves it to the trash.
With other bytes it is damage, as it always was. A TubeMQ broker does not start with such files:
after a crash open the store for writing first, as after a half-published job.

Readers go on with the files that they have: they find them in the trash. A plan of Spark names
files and offsets: those of the first file are in the merged one, the others in the trash, while
`trash_grace_ms` or a lease keeps it.

What stays as it is: what is written to, files behind a lease's first offset, files with damage (it
is reported, and nothing behind it is hidden), and what no `min_files` files together would gain.
A file is not merged that is larger than the others of its run together, so a byte is copied a few
times at most, however often small files come.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_left
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass, replace
from functools import partial
from os.path import basename
from typing import Any, NamedTuple

import numpy as np
import xxhash

from tubestore.core import trash
from tubestore.core.kernels import rows_at
from tubestore.core.paths import join
from tubestore.core.vfs import VfsFile
from tubestore.record.records import ENTRY_SIZE, entries_in, verify_entries
from tubestore.segments.digests import digest_blocks, digests_path, parse_digests
from tubestore.segments.file_store import MsgFileStore
from tubestore.segments.listing import ShardFiles, StoredFile
from tubestore.segments.segment import FileSegment
from tubestore.segments.segment_list import FileSegmentList
from tubestore.segments.shard_bytes import ShardBytes

Array = np.ndarray[Any, Any]
#: Bytes that are copied at a time.
_COPY_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class MergedFiles:
    """Files next to each other that compaction merges, or one that it leaves as it is.

    `stream`: "data" or "index"; `path`: the first file, and the merged one; `files`: how
    many there were; `verdict`: "merged" or "stays".
    """

    topic: str
    store_id: int
    stream: str
    path: str
    start: int
    files: int
    bytes: int
    verdict: str
    reason: str


class FileRun(NamedTuple):
    """Sealed files next to each other that become one."""

    stream: FileSegmentList
    segments: tuple[FileSegment, ...]

    @property
    def size(self) -> int:
        """Bytes of the file that they become."""
        return self.segments[-1].end - self.segments[0].start


@dataclass(frozen=True, slots=True)
class Limits:
    """What of a stream may be merged."""

    #: Bytes of the largest file that is made.
    size_max: int
    #: How many files become one, at least.
    files_min: int
    #: Only files that end at or before this offset.
    until: int
    #: Bytes of all files that are made.
    room: int
    #: Only files that begin at or behind this offset.
    begin: int = 0
    #: The times (first, last) of a file's messages in ms, and how far apart those of one file may
    #: be; None: as far as they are.
    times: Callable[[FileSegment], tuple[int | None, int | None]] = lambda _: (None, None)
    span_max_ms: int | None = None


def runs(stream: FileSegmentList, limits: Limits, left: Container[str] = ()) -> Iterator[FileRun]:
    """Go through the files of a stream that become one, the oldest first; reads no file.

    `left`: the paths of files that stay as they are.
    """
    run: list[FileSegment] = []
    for segment in stream:
        if not segment.sealed or segment.end > limits.until:
            break
        if segment.path in left or not segment.size or segment.start < limits.begin:
            yield from _worth(stream, run, limits)
            run = []
            continue
        if not _fits(run, segment, limits):
            yield from (found := list(_worth(stream, run, limits)))
            run = [] if found else run
            while run and not _fits(run, segment, limits):
                del run[0]
        run.append(segment)
    yield from _worth(stream, run, limits)


def _fits(run: list[FileSegment], segment: FileSegment, limits: Limits) -> bool:
    """Return whether a file can be the next of a run."""
    if not run:
        return True
    if segment.end - run[0].start > min(limits.size_max, limits.room):
        return False
    if limits.span_max_ms is None:
        return True
    known = [time for each in (*run, segment) for time in limits.times(each) if time is not None]
    return max(known, default=0) - min(known, default=0) <= limits.span_max_ms


def _worth(stream: FileSegmentList, run: list[FileSegment], limits: Limits) -> Iterator[FileRun]:
    """Yield the end of a run in which no file is larger than the others together, if there is."""
    for first in range(len(run) - limits.files_min + 1):
        rest = run[first:]
        if 2 * max(segment.size for segment in rest) <= rest[-1].end - rest[0].start:
            yield FileRun(stream, tuple(rest))
            return


def compact(
    files: MsgFileStore,
    stream: FileSegmentList,
    limits: Limits,
    left: set[str],
    merge: Callable[[FileRun], None] | None,
) -> Iterator[tuple[FileRun, str]]:
    """Merge the files of a stream and yield what became one, with ""; a damaged file with a reason.

    Damaged files are added to `left`, which has those of earlier calls. Without `merge` nothing is
    read, and what would be merged comes. OSError, and what `merge` raises.
    """
    if merge is None:
        yield from ((run, "") for run in runs(stream, limits, left))
        return
    while (run := next(runs(stream, limits, left), None)) is not None:
        damage = unsound(files, run)
        if damage is not None:
            segment, reason = damage
            left.add(segment.path)
            yield FileRun(stream, (segment,)), reason
            continue
        merge(run)
        limits = replace(limits, begin=run.segments[-1].end, room=limits.room - run.size)
        yield run, ""


# -- are they sound? -------------------------------------------------------------------------------


def unsound(files: MsgFileStore, run: FileRun) -> tuple[FileSegment, str] | None:
    """Return the first file of a run that is not what it was, and why; None: all are sound.

    Reads all of it, and of the other stream what belongs to it. Maps nothing: a sector that cannot
    be read would end the process.
    """
    bytes_ = _bytes_of(files)
    try:
        firsts = _first_places(files) if run.stream is files.data else []
        for segment in run.segments:
            try:
                reason = _changed(files, segment)
                if reason is None and run.stream is files.data:
                    reason = _data_is_sound(files, bytes_, segment, firsts)
                elif reason is None:
                    reason = _index_is_sound(files, bytes_, segment)
            except OSError as error:
                reason = f"it cannot be read: {error.strerror or error}"
            if reason is not None:
                return segment, reason
    finally:
        bytes_.close()
    return None


def _bytes_of(files: MsgFileStore) -> ShardBytes:
    """Return what reads the records of a shard's files."""
    index, data = (
        tuple(StoredFile(segment.path, segment.start, segment.size) for segment in stream)
        for stream in (files.index, files.data)
    )
    return ShardBytes(files.vfs, ShardFiles("", files.store_id, files.directory, index, data))


def _read(segment: FileSegment, position: int, size: int) -> bytes:
    return segment.file.pread(size, position)


def _changed(files: MsgFileStore, segment: FileSegment) -> str | None:
    """Compare a file with its digests, if it has some."""
    try:
        known = parse_digests(files.vfs.read_file(digests_path(segment.path, segment.start)))
    except (FileNotFoundError, ValueError):
        return None
    if known.size != segment.size:
        return None
    found = digest_blocks(segment.size, partial(_read, segment))
    return None if np.array_equal(found, known.blocks) else "it has changed since it was sealed"


def _first_places(files: MsgFileStore) -> list[int]:
    """Return where the first entry of each index file points to; they ascend."""
    whole = (segment for segment in files.index if segment.size >= ENTRY_SIZE)
    return [int(entries_in(_read(s, 0, ENTRY_SIZE))["data_offset"][0]) for s in whole]


def _data_is_sound(
    files: MsgFileStore, bytes_: ShardBytes, segment: FileSegment, firsts: list[int]
) -> str | None:
    """Return what is wrong unless sound records, each with its entry, fill a data file."""
    whole = [one for one in files.index if one.size >= ENTRY_SIZE]
    begin = max(0, bisect_left(firsts, segment.start + 1) - 1)
    found = [np.empty(0, np.uint8)]
    for index in whole[begin : bisect_left(firsts, segment.end)]:
        entries = _entries(index)
        offsets = entries["data_offset"]
        inside = (offsets >= segment.start) & (offsets < segment.end)
        found.append(np.ascontiguousarray(entries[inside]).view(np.uint8))
    entries = entries_in(np.concatenate(found).data)
    ends = entries["data_offset"].astype(np.int64) + entries["data_size"]
    starts = np.concatenate(([segment.start], ends[:-1]))
    if not len(entries) or ends[-1] != segment.end or (entries["data_offset"] != starts).any():
        return "bytes of it have no entry in the index"
    row = _first_bad(bytes_, entries, check_crc=True)
    if row is None:
        return None
    return f"the record at {entries['data_offset'][row]} and its entry differ"


def _index_is_sound(files: MsgFileStore, bytes_: ShardBytes, segment: FileSegment) -> str | None:
    """Return what is wrong unless the entries of an index file have their records."""
    if segment.size % ENTRY_SIZE:
        return "a part of an entry is in it"
    entries = _entries(segment)
    offsets = entries["data_offset"].astype(np.int64)
    # Retention has removed the data of the others.
    rows = np.flatnonzero((offsets < 0) | (offsets >= files.data.start))
    row = _first_bad(bytes_, rows_at(entries, rows), check_crc=False)
    if row is None:
        return None
    return f"the entry at {segment.start + ENTRY_SIZE * int(rows[row])} and its record differ"


def _entries(segment: FileSegment) -> Array:
    return entries_in(_read(segment, 0, segment.size // ENTRY_SIZE * ENTRY_SIZE))


def _first_bad(bytes_: ShardBytes, entries: Array, *, check_crc: bool) -> int | None:
    """Return the first entry that has no record that agrees with it."""
    for first, end, data, data_start in bytes_.windows(entries):
        if data is None:
            return first
        good = verify_entries(
            entries[first:end], 0, data, data_start, own_offset=False, check_crc=check_crc
        )
        if not good.all():
            return first + int(np.argmin(good))
    return None


# -- the copy --------------------------------------------------------------------------------------


def begin_copy(files: MsgFileStore, run: FileRun, now_ms: int) -> VfsFile:
    """Make the file that the bytes of a run are copied to; OSError.

    While no one can delete the topic: its directory is not to be made anew.
    """
    place = trash.trash_of(files.directory)
    if not files.vfs.exists(place):
        files.vfs.make_directories(place)
    name = f"{basename(run.segments[0].path)}.merging.{now_ms}"
    with contextlib.suppress(FileNotFoundError):
        files.vfs.remove(join(place, name))
    return files.vfs.open(join(place, name), create=True)


def fill_copy(files: MsgFileStore, run: FileRun, copy: VfsFile) -> None:
    """Copy the bytes of a run, sync them, and read them again; OSError.

    The copy is as old as the newest file: TubeMQ's retention goes by that.
    """
    start, digest = run.segments[0].start, xxhash.xxh3_128()
    for segment in run.segments:
        for position in range(0, segment.size, _COPY_BYTES):
            block = _read(segment, position, min(_COPY_BYTES, segment.size - position))
            digest.update(block)
            copy.pwrite(block, segment.start + position - start)
    newest = max(files.vfs.modified_ms(segment.path) for segment in run.segments)
    files.vfs.set_modified_ms(copy.path, newest)
    copy.sync()
    copy.let_go(run.size, 0)
    written = xxhash.xxh3_128()
    for position in range(0, run.size, _COPY_BYTES):
        written.update(copy.pread(min(_COPY_BYTES, run.size - position), position))
    if copy.size() != run.size or written.digest() != digest.digest():
        raise OSError(f"{copy.path} is not what was written to it")


def drop_copy(files: MsgFileStore, copy: VfsFile) -> None:
    """Remove a copy, unless it has come to its place."""
    if copy.path.startswith(trash.trash_of(files.directory)):
        copy.close()
        with contextlib.suppress(OSError):
            files.vfs.remove(copy.path)
