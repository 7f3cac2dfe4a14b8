"""A public call is made again and again, and each time another call to the disk is refused."""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any

import pytest

from tubestore.clock import ManualClock
from tubestore.errors import TubeStoreError
from tubestore.testing import FaultyVfs, MemoryVfs
from tubestore.testing.faults import FALLIBLE


class Files:
    """The files of a disk at a moment, of which any number of disks may be made."""

    def __init__(self, vfs: MemoryVfs, clock: ManualClock) -> None:
        self._disk, self._now_ms = vfs.record().end(), clock.now_ms()

    def again(self) -> tuple[FaultyVfs, ManualClock]:
        """Return a disk with these files, and a clock at that moment."""
        clock = ManualClock(self._now_ms)
        return FaultyVfs(MemoryVfs(clock, self._disk)), clock

    @contextmanager
    def opened(
        self, open_store: Callable[[FaultyVfs, ManualClock], Any], **closing: bool
    ) -> Iterator[tuple[FaultyVfs, Any]]:
        """Open a store on such a disk, and close it."""
        faulty, clock = self.again()
        store = open_store(faulty, clock)
        try:
            yield faulty, store
        finally:
            with suppress(TubeStoreError):
                store.close(**closing)

    def opening(
        self, open_store: Callable[[FaultyVfs, ManualClock], Any]
    ) -> AbstractContextManager[Any]:
        """Return what `refusals` begins with to refuse the calls of an opening and a close."""
        faulty, clock = self.again()
        return nullcontext((faulty, lambda: open_store(faulty, clock).close()))


def refusals(
    begin: Callable[[], AbstractContextManager[tuple[FaultyVfs, Any]]], call: Callable[[Any], Any]
) -> int:
    """Refuse each kind of call to the disk that `call` makes; returns how many there were.

    `begin` makes a disk and the argument of `call`. What is raised must be an error of ours, and
    one of them must name a file below "/s".
    """
    with begin() as (faulty, argument):
        faulty.calls.clear()
        call(argument)
        counts = faulty.calls.copy()
    named, struck = False, 0
    for what, nth in _faults(counts):
        with begin() as (faulty, argument):
            number = errno.ENOSPC if nth == 3 else errno.EIO
            fault = faulty.fail(what, nth=nth, error=number, forever=nth % 2 == 0)
            try:
                call(argument)
            except TubeStoreError as error:
                named |= "/s" in str(error)
            except OSError as error:
                pytest.fail(f"{what} {nth}: {error!r}")
            assert fault.struck, (what, nth)
            struck += 1
    assert named or not struck
    return struck


def _faults(counts: Counter[str]) -> Iterator[tuple[str, int]]:
    """Yield (call, number) of calls that are made: the first ones, the last, and one between."""
    for call in FALLIBLE:
        count = counts[call]
        for nth in sorted({1, 2, 3, count // 2, count} & set(range(1, count + 1))):
            yield call, nth
