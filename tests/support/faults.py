"""Which calls to a disk something makes, to have each of them fail, or another process at work."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tubestore.errors import StoreFailed, StoreLocked
from tubestore.testing import FaultyVfs, MemoryVfs


class WatchingVfs(FaultyVfs):
    """Takes down the fallible calls that are made while it is `on`."""

    on = False

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        #: (kind, number of that kind), as `fail` wants them.
        self.noted: list[tuple[str, int]] = []

    def _pass(self, call: str, path: str) -> Any:
        if self.on:
            self.noted.append((call, sum(c == call for c, _ in self.noted) + 1))
        return super()._pass(call, path)

    def calls_until_the_record(self) -> list[tuple[str, int]]:
        """Of a publish: what could fail before its link, but for looking."""
        link = next(n for n, (call, _) in enumerate(self.noted) if call == "link")
        return [call for call in self.noted[:link] if call[0] not in ("read_file", "entries")]


@contextmanager
def failing_after_the_record(inner: MemoryVfs, faulty: FaultyVfs, call: str) -> Iterator[None]:
    """Have each `call` fail once a job's record was linked; the link itself after it was done."""
    link = inner.link

    def fail_from_here(source: str, target: str) -> None:
        link(source, target)
        faulty.fail(call, forever=True)
        if call == "link":
            raise OSError(errno.EIO, "after it was done")

    inner.link = fail_from_here  # type: ignore[method-assign]
    try:
        yield
    finally:
        faulty.heal()
        inner.link = link  # type: ignore[method-assign]


class _NoLock:
    def is_current(self) -> bool:
        return True

    def release(self) -> None:
        pass


class UnlockedVfs(MemoryVfs):
    """Gives its locks to all, as a network file system does that keeps them for each machine."""

    def lock(self, path: str, *, kind: str, note: str = "", root: str = "") -> Any:
        return _NoLock()


class StoppedVfs(FaultyVfs):
    """The file system of a process that is stopped before one of its calls, while another works."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self._left, self._other = -1, lambda: None
        #: Before which call it was stopped.
        self.stopped = ""

    def stop(self, calls: int, other: Callable[[], None]) -> None:
        """Have `other` work after so many calls from now on."""
        self._left, self._other = calls, other

    def _pass(self, call: str, path: str) -> Any:
        self._left -= 1
        if self._left == -1:
            self.stopped = f"{call} {path}"
            self._other()
        return super()._pass(call, path)


def end_of_publishing(store: Any, job_id: str, staged: Any) -> str:
    """Publish a job; return "published", or the name of the error that a writer may get."""
    try:
        store.publish(job_id, staged)
    except (StoreFailed, StoreLocked) as error:
        return type(error).__name__
    return "published"
