"""The files of the key index: which one is written, how they roll, and the search over them.

RocketMQ's `IndexService`. File names are the local time of creation,
`yyyyMMddHHmmssSSS`; a name is never below an earlier one, even when the clock is.

Always true:
- only the last file has room; every file before it was written out whole when it was left;
- items are in log order over all files; no message has items twice.

The last is held over crashes, too. A crash leaves items that slots and header do not have yet, and
perhaps half of a message's items. RocketMQ then indexes the last message once more.
Here `cut` drops the items of a message that may be partial, and returns from where the log must be
handed over again.

Guards: `_lock` guards put, flush and roll against each other; `_files` is replaced and never
changed, so a search takes it as it is. Syncs run outside the lock.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import TypeVar

import numpy as np

from rocketcompat.commitlog.reads import ReadableLog
from rocketcompat.files.progress import QueueKey, Trust
from rocketcompat.index.index_file import IndexFile
from rocketcompat.index.items import IndexGeometry, Int32s, key_hash
from rocketcompat.messages import DispatchBatch
from tubestore.clock import Clock
from tubestore.core.doors import logger
from tubestore.core.kernels import Int64s
from tubestore.core.quarantine import Quarantine
from tubestore.core.vfs import Vfs
from tubestore.errors import CorruptRecord, TubeStoreError

T = TypeVar("T")
_NAME_FORMAT = "%Y%m%d%H%M%S"
_log = logger(__name__)


def index_file_name(now_ms: int, last: str | None) -> str:
    """Return the name of a file made now, above the last one's.

    >>> index_file_name(0, "20261121092406179")
    '20261121092406180'
    """
    moment = datetime.fromtimestamp(now_ms / 1000)  # noqa: DTZ006  local time is in the format
    name = _name_of(moment)
    if last is None or int(name) > int(last):
        return name
    try:
        before = datetime.strptime(last[:14], _NAME_FORMAT)  # noqa: DTZ007
        return _name_of(before + timedelta(milliseconds=int(last[14:]) + 1))
    except ValueError:  # a number, but no time: only the order counts
        return str(int(last) + 1)


def _name_of(moment: datetime) -> str:
    return f"{moment:{_NAME_FORMAT}}{moment.microsecond // 1000:03d}"


class IndexService:
    """All index files of a store; a follower of the dispatcher.

    Offsets are physical offsets, times ms. `put`, `flush` and `close` may be called by
    any thread; searches run beside them.
    """

    name = "index"

    def __init__(
        self,
        vfs: Vfs,
        directory: str,
        geometry: IndexGeometry,
        clock: Clock,
        *,
        writable: bool = True,
        on_roll: Callable[[int], None] | None = None,
    ) -> None:
        self._vfs, self._directory, self._geometry = vfs, directory, geometry
        self._clock, self._writable = clock, writable
        #: Called with the end timestamp of a file that was left and synced (checkpoint).
        self._on_roll = on_roll
        self._lock = threading.Lock()
        self._files: tuple[IndexFile, ...] = ()
        #: Number of whole files, from the first on; None if all are.
        self._whole: int | None = None
        #: Files that were left since the last sync, and directories in which a file appeared.
        self._unsynced: tuple[IndexFile, ...] = ()
        self._unsynced_directories: list[str] = []
        self._written = self._synced = 0
        #: How many items there were at the last sync.
        self._synced_items = 0
        #: Keys at or above `_written` that are in the files: a batch that failed half-way.
        self._put_beyond = 0
        #: Files that cannot be used, and those behind them: `recover` takes them out.
        self._unusable: list[str] = []
        #: What is wrong with files that were found; a reader uses no index then.
        self.problems: list[TubeStoreError] = []
        #: Where a recovery puts the files that it takes out; without it they are removed.
        self._keeper: Quarantine | None = None

    def load(self) -> None:
        """Take in the files as their headers describe them; pass by other files.

        A file of another geometry than configured cannot be used, and is in `problems`: RocketMQ
        would grow and misread it. `recover` builds it and the files behind it again. Of
        a file that only lost its end it builds what is missing; see `is_whole`.
        """
        self._whole, self._unusable, self.problems = None, [], []
        files: list[IndexFile] = []
        for name, is_directory, size in sorted(self._vfs.entries(self._directory)):
            if is_directory or not name.isdecimal() or self._is_unborn(name, size):
                continue
            path = os.path.join(self._directory, name)
            file = None if self._unusable else self._loaded(path, len(files))
            if file is None:
                self._unusable.append(path)
            else:
                files.append(file)
        self._files = tuple(files)
        if self._files and self._writable:
            # A process that was killed may have made them without reaching the sync.
            self._unsynced_directories = [self._directory]

    def _loaded(self, path: str, place: int) -> IndexFile | None:
        """Open a file, or what is left of it; None if it cannot be used."""
        try:
            return IndexFile.load(self._vfs, path, self._geometry, self._writable)
        except CorruptRecord as error:
            _log.warning("%s; it is %s", error, "built again" if self._writable else "left out")
            short = self._writable and IndexFile.load_short(self._vfs, path, self._geometry)
            if not short:
                self.problems.append(error)
            if self._whole is None:
                self._whole = place if short else place - 1
            return short or None

    @property
    def is_whole(self) -> bool:
        """True if all files can be used as they are; else `recover` has to be called."""
        return self._whole is None

    def _is_unborn(self, name: str, size: int) -> bool:
        """True if a crash left a file of length 0; a writer removes it."""
        if size == 0 and self._writable:
            self._vfs.remove(os.path.join(self._directory, name))
            self._vfs.sync_directory(self._directory)  # after a clean close nothing searches for it
        return size == 0

    @property
    def files(self) -> tuple[IndexFile, ...]:
        """All files, oldest first, as of now."""
        return self._files

    @property
    def end_physical_offset(self) -> int:
        """Physical offset of the last message with a key; -1 if there is none."""
        filled = [file for file in self._files if file.index_count > 1]
        return filled[-1].end_physical_offset if filled else -1

    def attach(
        self, log_minimum: int, log_end: int | None, ends: Mapping[QueueKey, int] | None = None
    ) -> None:
        """Take in the files."""
        self.load()

    def recover(
        self, log: ReadableLog, trust: Trust, lower_mark: Callable[[int], None] | None
    ) -> int:
        """Cut the index at what is trusted; returns the offset from which the log is needed again.

        Without a mark nothing is kept that the log can give again: items of records that a broker
        has cut off would hide the present ones. Files below the part that a broker's own recovery
        verifies are kept as the broker left them.
        """
        end = log.max_offset
        # The first record of a log makes a file, so without one they were removed.
        there = self._files or end == log.min_offset
        if trust.as_left and self.is_whole and there:
            self.mark(end, end)
            return end
        self._keeper = trust.keeper if self.is_whole else trust.quarantine
        first = log.min_offset if trust.own else trust.index_verified_from
        try:
            if trust.mark is not None:
                start = self.cut(end, trust.mark, lower_mark)
            elif first > log.min_offset:
                start = self.cut(first, first, lambda _: None)
            else:
                start = self.cut(log.min_offset, None, lower_mark)
        finally:
            self._keeper = None
        start = min(max(start, log.min_offset), end)
        self.mark(start, start)
        return start

    def cut(
        self,
        log_end: int,
        trusted_offset: int | None,
        lower_mark: Callable[[int], None] | None = None,
    ) -> int:
        """Bring the index back to what some prefix of the log gives.

        `trusted_offset` is the progress mark: everything below it was written (after a reboot:
        synced). Items below it and below `log_end` are kept. The last kept message's items are
        dropped, too, since they may be only part of what it has. Returns that message's physical
        offset, from which the log must be handed over again; 0 if nothing is left. All this follows
        from the files alone, so it may be repeated after a crash.

        With `lower_mark` the mark is trusted, unless items below it were lost or there is no file.
        Then the log has to be handed over only from the mark on, however far back the last message
        with a key is. If the mark is not trusted, `lower_mark(offset)` must lower it durably before
        anything is dropped: a later recovery would trust it again.
        """
        cut = log_end if trusted_offset is None else min(trusted_offset, log_end)
        files = self._files
        trusted = lower_mark is not None and trusted_offset is not None
        keep, cut, certain, whole = self._plan_recovery(cut, trusted and (bool(files) or cut == 0))
        resume = cut if certain else 0
        if lower_mark and trusted_offset is not None and resume < trusted_offset:
            lower_mark(resume)
        for path in reversed(self._unusable):
            self._take_out(path)
        self._unusable = []
        for file in reversed(files[keep:]):
            self._remove(file)
        self._files = files[:keep]
        if keep and not whole:
            files[keep - 1].recover(cut)
        self._whole = None
        self.mark(resume, resume)
        return resume

    def _plan_recovery(self, cut: int, certain: bool) -> tuple[int, int, bool, bool]:
        """Decide what to keep, from the last file back, without a write.

        Returns:
        - how many files to keep
        - the offset to cut at
        - whether all items below it are known to be in these files
        - whether the last of them is whole and needs no recovery
        """
        files = self._files
        if self._whole is not None:  # the next files follow the lost items
            files, certain = files[: self._whole + 1], False
        for keep in range(len(files), 0, -1):
            file = files[keep - 1]
            was_left = keep < len(files) and file.room == 0
            if certain and was_left and file.end_physical_offset < cut:
                return keep, cut, certain, True
            found = file.examine(cut)
            certain = certain and not found.lost
            if found.kept and not certain:
                cut, certain = found.last_offset, True
                found = file.examine(cut)
            if found.kept or (certain and keep == 1):
                return keep, cut, certain, False
        return 0, cut, certain, False

    def mark(self, written: int, synced: int) -> None:
        """Set up to where the files are known to hold everything (after a clean close)."""
        self._written, self._synced, self._put_beyond = written, synced, 0
        self._synced_items = self.item_count

    def replayed(self) -> None:
        """Do nothing: the index keeps nothing for recovery."""

    def put(self, batch: DispatchBatch) -> None:
        """Index the keys of a batch's records; rows that were put before are passed by.

        After an OSError the same records may be handed over again, in any batches.
        """
        if batch.end <= self._written:
            return
        offsets = batch.physical_offsets[batch.key_rows]
        times = batch.store_timestamps[batch.key_rows]
        first = int(np.searchsorted(offsets, self._written)) + self._put_beyond
        with self._lock:
            self._file_with_room()  # as RocketMQ: records without keys make it, too
            while first < len(offsets):
                file = self._file_with_room()
                end = min(first + file.room, len(offsets))
                part = slice(first, end)
                file.put_keys(batch.key_hashes[part], offsets[part], times[part])
                self._put_beyond += end - first
                first = end
            self._written, self._put_beyond = batch.end, 0

    def flush(self, sync: bool) -> None:
        """Write slots and headers; with `sync`, bring everything written to stable storage."""
        with self._lock:
            written, files, unsynced = self._written, self._files, self._unsynced
            if files:
                files[-1].flush()
            items = self.item_count
            if not sync:
                return
            self._unsynced = ()
        try:
            for file in (*unsynced, *files[-1:]):
                file.sync()
            for directory in self._unsynced_directories[:]:
                self._vfs.sync_directory(directory)
                self._unsynced_directories.remove(directory)
        except OSError:
            with self._lock:
                self._unsynced = unsynced + self._unsynced
            raise
        self._synced, self._synced_items = max(self._synced, written), items
        if unsynced and self._on_roll:
            self._on_roll(unsynced[-1].end_timestamp)

    def flush_due(self, least_pages: int) -> int:
        """Do nothing: the files are synced with their marks only."""
        return 0

    def expire(self, log_minimum: int) -> int:
        """Delete the oldest files that have only records below a physical offset; never the last.

        Returns how many were deleted, durably.
        """
        count = 0
        with self._lock:
            while len(self._files) > 1 and self._files[0].end_physical_offset < log_minimum:
                oldest, self._files = self._files[0], self._files[1:]
                self._unsynced = tuple(file for file in self._unsynced if file is not oldest)
                self._remove(oldest)
                count += 1
        return count

    @property
    def ends(self) -> tuple[int, int]:
        """(written, synced): everything below is in the files, and on stable storage."""
        return self._written, self._synced

    @property
    def places(self) -> int:
        """How many items there are, as of the synced end."""
        return self._synced_items

    @property
    def item_count(self) -> int:
        """How many items the headers of all files count."""
        return sum(max(file.index_count - 1, 0) for file in self._files)

    def select(
        self, topic: str, key: str, count_max: int, begin: int, end: int
    ) -> tuple[list[int], int, int]:
        """Return (offsets newest first, last update's time, its offset), as `IndexService` answers.

        The last two are the end of the last file; 0 if there is no file.
        """
        return self.select_hash(key_hash(topic, key), count_max, begin, end)

    def select_hash(
        self, hash_of_key: int, count_max: int, begin: int, end: int
    ) -> tuple[list[int], int, int]:
        """As `select`, for a key's hash."""
        found: list[int] = []
        files = self._files
        last_time, last_offset = self.last_update
        for file in reversed(files):
            if file.is_time_matched(begin, end):
                left = count_max - len(found)
                search = partial(file.select, hash_of_key, left, begin, end)
                found += self._asked(file, search, list[int]())
            if file.begin_timestamp < begin or len(found) >= count_max:
                break
        return found, last_time, last_offset

    @property
    def last_update(self) -> tuple[int, int]:
        """Return time and physical offset of the newest item; 0 without files."""
        files = self._files
        return (files[-1].end_timestamp, files[-1].end_physical_offset) if files else (0, 0)

    def candidates(self, hash_of_key: int, begin: int, end: int) -> Iterator[int]:
        """Yield physical offsets of items of a hash that may lie in the window, newest first."""
        for file in reversed(self._files):
            if file.index_count > 1 and file.begin_timestamp - 1000 <= end:
                search = partial(file.candidates, hash_of_key, begin, end)
                yield from self._asked(file, search, list[int]())

    def select_many(self, key_hashes: Int32s) -> tuple[Int64s, Int64s]:
        """Return (place in `key_hashes`, physical offset) of all items of many keys.

        Rows are ordered by place, newest first.
        """
        none = np.empty(0, np.int64), np.empty(0, np.int64)
        files = reversed(self._files)
        parts = [self._asked(file, partial(file.select_many, key_hashes), none) for file in files]
        if not parts:
            return none
        places = np.concatenate([places for places, _ in parts])
        order = np.argsort(places, kind="stable")
        return places[order], np.concatenate([offsets for _, offsets in parts])[order]

    def _asked(self, file: IndexFile, search: Callable[[], T], nothing: T) -> T:
        """Search a file; returns `nothing` for one that was deleted by age since it was listed."""
        try:
            return search()
        except FileNotFoundError:
            if file in self._files:
                raise
            return nothing

    def stats(self) -> Mapping[str, int]:
        """Count files and items."""
        return {"files": len(self._files), "items": self.item_count}

    def close(self) -> None:
        """Write out what is in memory (no sync) and give the descriptors back."""
        with self._lock:
            for file in self._files:
                file.close()

    def _file_with_room(self) -> IndexFile:
        """Return the last file, or a new one behind it if it is full; that is written out first."""
        files = self._files
        last = files[-1] if files else None
        if last and last.room > 0:
            return last
        if not self._vfs.exists(self._directory):
            self._vfs.make_directories(self._directory)
            self._unsynced_directories.append(os.path.dirname(self._directory))
        if last:
            last.flush()
            last.release()
        before = os.path.basename(last.path) if last else None
        path = os.path.join(self._directory, index_file_name(self._clock.now_ms(), before))
        end_of_last = (last.end_physical_offset, last.end_timestamp) if last else (0, 0)
        file = IndexFile.create(self._vfs, path, self._geometry, end_of_last)
        if last:
            self._unsynced = (*self._unsynced, last)
        self._unsynced_directories.append(self._directory)
        self._files = (*files, file)
        return file

    def _remove(self, file: IndexFile) -> None:
        file.release()
        self._take_out(file.path)

    def _take_out(self, path: str) -> None:
        """Move a file to the keeper, or remove it, durably."""
        if self._keeper is not None:
            self._keeper.move(path)
        else:
            self._vfs.remove(path)
            self._vfs.sync_directory(self._directory)
