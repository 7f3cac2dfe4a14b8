"""A public call is made again and again, and each time another call to the disk is refused."""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tubestore.clock import ManualClock
from tubestore.errors import TubeStoreError
from tubestore.testing import FaultyVfs, MemoryVfs
from tubestore.testing.faults import FALLIBLE

Filled = Callable[[], tuple[MemoryVfs, ManualClock]]
Use = Callable[[FaultyVfs, ManualClock], Any]


def refusals(filled: Filled, use: Use) -> int:
    """Refuse each kind of call that `use` makes on a store; returns how many errors named a file.

    `filled` makes a disk with the store "/s". What is raised must be an error of ours.
    """
    vfs, clock = filled()
    counting = FaultyVfs(vfs)
    use(counting, clock)
    named = 0
    for what, nth, forever in _faults(counting.calls):
        vfs, clock = filled()
        faulty = FaultyVfs(vfs)
        number = errno.ENOSPC if nth == 3 else errno.EIO
        fault = faulty.fail(what, nth=nth, error=number, forever=forever)
        try:
            use(faulty, clock)
        except TubeStoreError as error:
            named += "/s" in str(error)
        except OSError as error:
            pytest.fail(f"{what} {nth}: {error!r}")
        assert fault.struck, (what, nth)
    return named


def _faults(calls: Counter[str]) -> Iterator[tuple[str, int, bool]]:
    """Go through the calls that are made: the first ones, the last, and one between."""
    for call in FALLIBLE:
        count = calls[call]
        for nth in sorted({1, 2, 3, count // 2, count} & set(range(1, count + 1))):
            yield call, nth, nth % 2 == 0
