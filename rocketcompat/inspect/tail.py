"""The end of the log: the last records, and those that a running broker appends.

Reads only, and needs nothing of the writer: the chain is followed as far as sound records go, and
followed again a moment later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rocketcompat.commitlog.walk import Gap
from rocketcompat.inspect.directory import StoreDirectory
from rocketcompat.inspect.selection import Selection
from rocketcompat.record.columns import RecordColumns
from tubestore.clock import Clock

#: How long to wait before the log's end is read again, in seconds.
POLL_SECONDS = 0.2


class Tail:
    """The records at the end of a directory's log that are wanted.

    `position` is the physical offset behind the last record that was examined.
    """

    def __init__(self, directory: StoreDirectory, wanted: Selection) -> None:
        self._directory, self._wanted = directory, wanted
        self.position = directory.log.min_offset

    def last(self, count: int) -> list[RecordColumns]:
        """Return the last `count` wanted records, oldest first; files are read from the last on."""
        log = self._directory.log
        found: list[RecordColumns] = []
        left, end = count, log.max_offset
        self.position = 0
        for file in reversed(log.files):
            parts = list(self._read(file.file_from_offset, end))
            for part in reversed(parts):
                kept = part.starts[max(0, len(part) - left) :]
                if left > 0 and len(kept):
                    found.append(RecordColumns(part.data, kept, part.base))
                    left -= len(kept)
            end = file.file_from_offset
            if left <= 0:
                break
        return found[::-1]

    def follow(
        self, clock: Clock, sleep: Callable[[float], None], idle_timeout: float | None = None
    ) -> Iterator[RecordColumns | None]:
        """Yield wanted records as they are appended, None before each wait; for ever.

        With `idle_timeout` it ends when nothing was appended for so many seconds. Where a
        broker has removed files in between, it goes on with what is left.
        """
        log = self._directory.log
        heard = clock.monotonic()
        while True:
            log.refresh()
            before = self.position
            yield from self._read(max(before, log.min_offset), log.max_offset, chained=True)
            now = clock.monotonic()
            heard = now if self.position != before else heard
            if idle_timeout is not None and now - heard >= idle_timeout:
                return
            yield None
            sleep(POLL_SECONDS)

    def _read(self, start: int, end: int, *, chained: bool = False) -> Iterator[RecordColumns]:
        for piece in self._directory.scan_log(start, end, chained=chained):
            if isinstance(piece, Gap):
                if piece.state not in ("torn", "stale"):
                    self.position = max(self.position, piece.end)
                continue
            behind = piece.records_end
            self.position = max(self.position, behind)
            found = self._wanted.of(piece)
            if len(found):
                yield found
