"""The end of a scan of the log, for comparisons in a store that is being written.

The log is scanned first and the structures are read after it, so they may contain records that came
meanwhile. Those are neither right nor wrong, and are not reported.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rocketcompat.inspect.directory import Region, StoreDirectory
from tubestore.core.kernels import Int64s


class ScannedEnd:
    """The physical offset behind the last record of a scan."""

    def __init__(self, directory: StoreDirectory, offset: int) -> None:
        self._directory, self.offset = directory, offset
        self._has_moved = False

    def has_moved(self) -> bool:
        """True if a writer has put a record there since; the files are asked until it is so."""
        if not self._has_moved:
            self._directory.log.refresh()
            following = self._directory.scan_log(self.offset, chained=True)
            self._has_moved = not isinstance(next(following, None), Region | None)
        return self._has_moved

    def is_later(self, offsets: Int64s) -> Any:
        """Return a mask of the physical offsets, shape (n,), of records that came after the scan.

        In a store that is not being written all are False: what is behind the log is wrong.
        """
        later = np.asarray(offsets, np.int64) >= self.offset
        return later & (bool(later.any()) and self.has_moved())
