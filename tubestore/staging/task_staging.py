"""What staging files for a bulk load is the same for all: whose they are, and how it ends.

A task's files have a random part in their names: one that is run twice, or by two workers at
once, disturbs nobody.
"""

from __future__ import annotations

import os
import uuid
from types import TracebackType
from typing import Self

from tubestore.core.paths import checked_root
from tubestore.core.vfs import OsVfs, Vfs
from tubestore.errors import DiskFull, InvalidName, StoreClosed, StoreFailed, failed_write
from tubestore.staging.job_files import check_job_id, staging_directory


class TaskStaging:
    """One task's attempt at a job; leaving its context discards what was not described.

    `token` replaces the random part of names. InvalidName for a job's id or an attempt.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        job_id: str,
        attempt: str,
        *,
        vfs: Vfs | None = None,
        token: str | None = None,
    ) -> None:
        self.job_id = check_job_id(job_id)
        if not attempt or not all(c.isascii() and (c.isalnum() or c in "_.-") for c in attempt):
            raise InvalidName(attempt, "an attempt is named by letters, digits, _ . and -")
        self.directory = staging_directory(os.path.abspath(checked_root(root)), job_id)
        self._vfs: Vfs = vfs or OsVfs()
        #: What the names of all its files begin with.
        self._name = f"a{attempt}-{token or uuid.uuid4().hex[:12]}"
        self._closed = False

    def discard(self) -> None:
        """Remove what this writer made and has not described; harmless when repeated."""
        self._closed = True

    def _failed(self, error: OSError) -> DiskFull | StoreFailed:
        """Return what to raise for a failed write; nothing is taken any more."""
        self._closed = True
        return failed_write(self.directory, error)

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosed(f"the writer for job {self.job_id!r} is closed")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.discard()
