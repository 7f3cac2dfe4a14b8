"""A new CommitLog from records that are complete but for their place: for copies and imports.

Queue offsets, times and everything else of a record stay; only its physical offset is written
anew, and the checksum of the whole record where it has one. Files are filled by the
+8 rule and closed by a blank, as a broker does it. One thread.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from rocketcompat.files.mapped_file_queue import MappedFileQueue
from rocketcompat.formats import (
    BLANK,
    COMMIT_LOG_DIRECTORY,
    MAGIC_BLANK,
    MESSAGE_PREFIX,
)
from rocketcompat.record.encode import renew_crcs, rows_with_crcs
from tubestore.core.kernels import Int64s, bytes_of, offsets_of, scatter, slices
from tubestore.core.vfs import Vfs
from tubestore.errors import MessageTooLarge, NotAStore

_AT = MESSAGE_PREFIX.position("physical_offset")
_INT64 = np.dtype(">i8")


class LogWriter:
    """Appends records to the log of a root that holds none, or that an earlier run left."""

    def __init__(
        self, vfs: Vfs, root: str, file_size: int, *, start: int = 0, resume_at: int | None = None
    ) -> None:
        """Begin at the physical offset `start`; or go on at `resume_at` and drop what follows it.

        NotAStore if there is a log already, and this does not go on with it.
        """
        directory = os.path.join(root, COMMIT_LOG_DIRECTORY)
        if resume_at is None and vfs.entries(directory):
            raise NotAStore(root, "holds a log already; a new root is needed")
        vfs.make_directories(directory)
        self._queue = MappedFileQueue(vfs, directory, file_size)
        self.end = start - start % file_size
        if resume_at is not None:
            self._queue.load()
            self._queue.truncate_dirty_files(resume_at)
            self._queue.set_end(resume_at)
            self.end = resume_at

    def append(self, data: Any, starts: Int64s, sizes: Int64s) -> Int64s:
        """Append the records at `starts` of `data`; returns their physical offsets."""
        largest = int(sizes.max(initial=0))
        room = self._queue.file_size - BLANK.size
        if largest > room:
            raise MessageTooLarge(largest, room, "record", "mapped_file_size_commit_log")
        raw = slices(data, starts, sizes)
        buffer = bytes_of(raw.buffers()[2]).copy() if len(sizes) else bytes_of(b"")
        bounds = offsets_of(sizes)
        places = self._places(sizes)
        scatter(buffer, bounds[:-1] + _AT, places.astype(_INT64))
        renew_crcs(buffer, bounds, rows_with_crcs(buffer, bounds))
        self._write(buffer, bounds, places)
        return places

    def _places(self, sizes: Int64s) -> Int64s:
        """Give out offsets: a record goes into a file only with 8 bytes to spare."""
        file_size = self._queue.file_size
        places = np.empty(len(sizes), np.int64)
        sums, done, end = offsets_of(sizes), 0, self.end
        while done < len(sizes):
            room = file_size - end % file_size - BLANK.size
            count = int(np.searchsorted(sums, sums[done] + room, side="right")) - 1 - done
            places[done : done + count] = end + sums[done : done + count] - sums[done]
            end += int(sums[done + count] - sums[done])
            done += count
            if done < len(sizes):
                end += file_size - end % file_size
        return places

    def _write(self, buffer: Any, bounds: Int64s, places: Int64s) -> None:
        file_size = self._queue.file_size
        files = places // file_size
        for first in np.flatnonzero(np.diff(files, prepend=-1)).tolist():
            after = int(np.searchsorted(files, files[first], side="right"))
            begin = int(places[first])
            if begin > self.end and self.end % file_size:
                left = file_size - self.end % file_size
                blank = BLANK.pack(total_size=left, magic_code=MAGIC_BLANK)
                self._queue.write_at(self.end, blank)
            part = buffer[int(bounds[first]) : int(bounds[after])]
            self._queue.write_at(begin, part.tobytes())
            self.end = begin + len(part)

    def sync(self) -> None:
        """Bring what was appended to stable storage."""
        self._queue.flush()

    def close(self) -> None:
        """Sync, and give the descriptors back."""
        self.sync()
        self._queue.close()
