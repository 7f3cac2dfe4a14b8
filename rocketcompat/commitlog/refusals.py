"""Why a log takes nothing: for good after a failed write or sync, or until there is room again.

Guards: none; the puts hold the log's put lock. A failed sync sets `failed` and the cleaner's thread
`too_full`: one assignment each.
"""

from __future__ import annotations

import copy
from typing import NoReturn

from rocketcompat.files.mapped_file import LeftOver, WriteLeft, has_no_room
from tubestore.core.doors import logger
from tubestore.errors import DiskFull, StoreFailed, TubeStoreError, again

_log = logger(__name__)


class Refusals:
    """The refusals of the log with its files in `directory`."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        #: Why nothing is taken any more, None while all is well.
        self.failed: StoreFailed | None = None
        #: Why nothing is taken for the moment: the disk is too full. Cleared again.
        self.too_full: TubeStoreError | None = None
        #: Why the last write failed, if it was for want of room; None once one has succeeded.
        self.no_room: DiskFull | None = None
        #: Messages that were refused, for whatever reason, since the log was opened.
        self.count = 0

    @property
    def stopped(self) -> TubeStoreError | None:
        """Why no message is taken now."""
        return self.failed or self.too_full

    def refuse(self, count: int) -> NoReturn:
        """Raise why nothing is taken, and count the messages."""
        self.count += count
        stopped = self.stopped
        assert stopped is not None
        raise again(stopped)

    def fail(self, reason: str) -> StoreFailed:
        """Take nothing any more until the store is opened again; returns what to raise."""
        self.failed = StoreFailed(self._directory, reason)
        return again(self.failed)

    def of_write(self, error: OSError | LeftOver, count: int) -> DiskFull | StoreFailed:
        """Return what to raise for a failed write of `count` messages.

        The log fails if it cannot go on.
        """
        self.count += count
        refusal: DiskFull | StoreFailed
        if isinstance(error, OSError) and has_no_room(error):
            assert error.errno is not None
            path = str(error.filename or self._directory)
            refusal = DiskFull(path, str(error.strerror), error.errno)
            if self.no_room is None:
                _log.error("%s; messages are refused until there is room", refusal)
            self.no_room = copy.copy(refusal)
        else:
            refusal = self.fail(f"write: {error}")
            _log.error("%s", refusal)
        if isinstance(error, WriteLeft | LeftOver):
            refusal.taken = "unknown"
        return refusal

    def has_room(self) -> None:
        """Note a write that succeeded after one that found no room."""
        self.no_room = None
        _log.warning("%s: there is room again", self._directory)
