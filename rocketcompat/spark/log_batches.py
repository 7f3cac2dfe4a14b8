"""Which part of the log the next micro-batch has.

The chain of records is followed from where the batch before ended, so an end is always one of a
record: nothing is half in a batch. Limits count records of all topics.

Nothing here imports Spark.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from rocketcompat.commitlog.ending import first_time
from rocketcompat.files.mapped_file import MappedFile
from rocketcompat.formats import MESSAGE_HEAD
from rocketcompat.inspect.directory import StoreDirectory
from rocketcompat.record.columns import RecordColumns
from rocketcompat.spark.options import RocketOptions
from rocketcompat.spark.planning import LogPlan, LogSplit, log_end, plan_range
from rocketcompat.spark.reading import pieces
from tubestore.core.kernels import crc32
from tubestore.core.paths import OWN_DIRECTORY, STORE_FILE, join
from tubestore.core.vfs import Vfs
from tubestore.errors import DataLoss, NotAStore
from tubestore.spark.kit.options import LATEST

VERSION = 1


class LogBatches:
    """The log of a store as a stream's batches; lives as long as the query. Not thread-safe.

    With `failOnDataLoss` off the callback gets a sentence about what was skipped; `skipped` counts
    its bytes.
    """

    def __init__(
        self, options: RocketOptions, vfs: Vfs | None = None, note: Callable[[str], None] = print
    ) -> None:
        self.options, self._vfs, self._note = options, vfs, note
        self.skipped, self._skipped_to = 0, -1
        self._target: int | None = None
        #: Where the batch that was cut last ends.
        self._last: int | None = None
        #: The records of a part of the log: from, to, how many.
        self._counted = (-1, -1, 0)
        #: An end that is known: the chain is followed from there.
        self._known: int | None = None
        self._store = self._identity()

    def _directory(self) -> StoreDirectory:
        return self.options.directory(vfs=self._vfs)

    def _identity(self) -> str | None:
        """Return what the store calls itself; one that only a broker has written has no name."""
        directory = self._directory()
        try:
            found = json.loads(
                directory.vfs.read_file(join(self.options.path, OWN_DIRECTORY, STORE_FILE))
            )
            return str(found["uuid"])
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None

    def _position(self, directory: StoreDirectory, offset: int) -> dict[str, Any]:
        """Return a position; it has the first record of its file, by which another log is found."""
        log = directory.log
        file = log.find(max(offset - 1, log.min_offset))
        first = None if file is None else [file.file_from_offset, _first_record(file)]
        return {"v": VERSION, "store": self._store, "log": offset, "first": first}

    def _offset(self, directory: StoreDirectory, position: Mapping[str, Any]) -> int:
        try:
            if position["v"] != VERSION:
                raise ValueError(f"version {position['v']}")
            store, offset = position["store"], int(position["log"])
            # Earlier versions have none, and an empty log neither.
            start, first = map(int, position.get("first") or (-1, 0))
        except (KeyError, TypeError, ValueError) as error:
            text = f"no position of a stream over a log: {error!r}"
            raise NotAStore(self.options.path, text) from None
        if store != self._store:
            text = f"the checkpoint was made with store {store}, this one is {self._store}"
            raise NotAStore(self.options.path, text)
        file = directory.log.find(start) if start >= 0 else None
        if file is not None and first not in (0, _first_record(file)):
            text = (
                f"the checkpoint was made with another log: the first record of {file.path} differs"
            )
            raise NotAStore(self.options.path, text)
        return offset

    def _end(self, directory: StoreDirectory) -> int:
        log = directory.log
        known = self._known
        if known is not None and not log.min_offset <= known <= log.max_offset:
            known = None
        self._known = end = log_end(directory, known)
        return end

    def initial(self) -> dict[str, Any]:
        """Return where a new query starts."""
        directory = self._directory()
        log = directory.log
        if self.options.starting == LATEST:
            return self._position(directory, self._end(directory))
        if self.options.begin_ms is not None:
            return self._position(directory, directory.first_file_since(self.options.begin_ms))
        return self._position(directory, int(log.min_offset))

    def end(self) -> dict[str, Any]:
        """Return the position behind everything that is there."""
        directory = self._directory()
        return self._position(directory, self._end(directory))

    def report(self) -> dict[str, Any]:
        """Return the end, and how many bytes of the log are behind the last batch."""
        end = self.end()
        return {**end, "behindBytes": max(0, end["log"] - (self._last or end["log"]))}

    def freeze(self) -> None:
        """Go no further than what is there now."""
        self._target = self._end(self._directory())

    def latest(
        self,
        start: Mapping[str, Any],
        max_rows: int | None = None,
        max_bytes: int | None = None,
        min_rows: int | None = None,
    ) -> dict[str, Any]:
        """Return the end of the batch that begins at `start`; one record is taken at least.

        None if there are less than `min_rows`: the end is `start`.
        """
        found = self._latest(start, max_rows, max_bytes, min_rows)
        self._last = int(found["log"])
        return found

    def _latest(
        self,
        start: Mapping[str, Any],
        max_rows: int | None,
        max_bytes: int | None,
        min_rows: int | None,
    ) -> dict[str, Any]:
        directory = self._directory()
        low = self._start(directory, self._offset(directory, start))
        end = self._end(directory) if self._target is None else self._target
        if min_rows is not None and self._count(directory, low, end) < min_rows:
            return dict(start)
        if low >= end or (max_rows is None and max_bytes is None):
            return self._position(directory, max(low, end))
        return self._position(directory, _cut(directory, low, end, max_rows, max_bytes))

    def _count(self, directory: StoreDirectory, low: int, end: int) -> int:
        """Return the records of [low, end); those that were counted before are not read again."""
        since, upto, rows = self._counted
        if since != low or upto > end:
            upto, rows = low, 0
        for piece in pieces(directory, LogSplit(upto, end)) if upto < end else ():
            rows += len(piece) if isinstance(piece, RecordColumns) else 0
        self._counted = low, max(end, low), rows
        return rows

    def _start(self, directory: StoreDirectory, offset: int) -> int:
        """Return where the batch begins: at the offset, or where the log begins now."""
        log = directory.log
        if offset > log.max_offset:
            text = (
                f"{self.options.path}: the stream has read up to {offset}, and the log's files end"
            )
            raise DataLoss(f"{text} at {log.max_offset}: files are missing, or it is another log")
        if offset >= log.min_offset:
            return offset
        begin = int(log.min_offset)
        topics = ", ".join(self.options.topics or ()) or "all topics"
        lost = f"{self.options.path}: offsets {offset} to {begin} of the log ({topics}), "
        lost += f"{begin - offset} bytes, were removed before they were read"
        moment = first_time(log.files[0]) if log.files else None
        if moment is not None:
            kept = datetime.fromtimestamp(moment / 1000, UTC).isoformat(" ", "seconds")
            lost += f"; what is kept begins at {kept}"
        if self.options.fail_on_data_loss:
            raise DataLoss(f"{lost} (failOnDataLoss=false goes on there)")
        if begin > self._skipped_to:  # reported once, though a batch is planned after it was cut
            self.skipped += begin - max(offset, self._skipped_to)
            self._skipped_to = begin
            self._note(f"{lost}; skipped, {self.skipped} bytes in all")
        return begin

    def plan(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> LogPlan:
        """Split a batch."""
        directory = self._directory()
        low = self._start(directory, self._offset(directory, start))
        high = self._offset(directory, end)
        if low >= high:
            return LogPlan(self.options.path, (), {})
        return plan_range(directory, self.options, low, high)

    def close(self) -> None:
        """Nothing is held for a query."""


def _first_record(file: MappedFile) -> int:
    """Return the checksum of the first record's head in a file of the log; 0 without a record."""
    head = file.read(0, MESSAGE_HEAD.size)
    return crc32(head) if any(head) else 0


def _cut(
    directory: StoreDirectory, low: int, end: int, max_rows: int | None, max_bytes: int | None
) -> int:
    """Return the end of the records from `low` on that keep the limits."""
    rows = 0
    for piece in pieces(directory, LogSplit(low, end)):
        if not isinstance(piece, RecordColumns):
            continue  # a region without records counts for nothing
        offsets = piece.starts + piece.base
        ends = offsets + piece.column("total_size")
        fitting = len(ends)
        if max_bytes is not None:
            fitting = int((ends <= low + max_bytes).sum())
        if max_rows is not None:
            fitting = min(fitting, max_rows - rows)
        if fitting < len(ends):
            if fitting == 0 and rows == 0:
                fitting = 1
            return int(ends[fitting - 1]) if fitting else int(offsets[0])
        rows += fitting
    return end
