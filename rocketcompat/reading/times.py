"""The queue offset of a point in time: `getOffsetInQueueByTime` of both versions.

4.9 gives the nearest message, 5.1.1 and later a boundary. RocketMQ 4.9.8 first chooses a queue file
by its modification time, which is not the order of writing, and may so answer a
message further away; here the store times decide alone.

Pure; thread-safe.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

Boundary = Literal["lower", "upper", "nearest"]
#: The meaning of an offset by time, by `compat`.
BOUNDARY_OF_COMPAT: dict[str, Boundary] = {"4.9.8": "nearest", "5.3.3": "lower"}


def offset_by_time(
    low: int, high: int, time: int, boundary: Boundary, store_time: Callable[[int], int | None]
) -> int:
    """Return a queue offset in [low, high] for a store time in ms; low and high are min and max.

    - "lower": the first message stored at `time` or later; `high` if all are earlier;
    - "upper": the last message stored at `time` or earlier; `low` if all are later;
    - "nearest": the message with the nearest time, of two the earlier; never `high` except in an
      empty queue.

    `store_time(offset)` is None where no record can be read; such messages count as stored with
    the next one. Times are taken to rise.

    >>> times = [10, 20, 20, 40]
    >>> [offset_by_time(0, 4, t, "lower", times.__getitem__) for t in (5, 20, 30, 50)]
    [0, 1, 3, 4]
    >>> [offset_by_time(0, 4, t, "upper", times.__getitem__) for t in (5, 20, 30, 50)]
    [0, 2, 2, 3]
    >>> [offset_by_time(0, 4, t, "nearest", times.__getitem__) for t in (5, 20, 30, 31, 50)]
    [0, 1, 2, 3, 3]
    """
    if low >= high:
        return low
    if boundary == "upper":
        return max(low, _first(low, high, time + 1, store_time) - 1)
    found = _first(low, high, time, store_time)
    if boundary == "lower" or found == low:
        return found
    before, after = _known_time(found - 1, found, store_time), _known_time(found, high, store_time)
    if after is None or (before is not None and after != time and time - before <= after - time):
        return found - 1
    return found


def _known_time(offset: int, high: int, store_time: Callable[[int], int | None]) -> int | None:
    """Return the store time of the first record in [offset, high) that can be read."""
    times = (store_time(place) for place in range(offset, high))
    return next((time for time in times if time is not None), None)


def _first(low: int, high: int, time: int, store_time: Callable[[int], int | None]) -> int:
    """Return the first offset stored at `time` or later, `high` if none was."""
    while low < high:
        middle = (low + high) // 2
        found = _known_time(middle, high, store_time)
        if found is None or found >= time:
            high = middle
        else:
            low = middle + 1
    return low
