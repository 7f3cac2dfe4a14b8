"""Where a master begins to send, by a slave's first report: one table of cases.

| first report | answer |
| --- | --- |
| 0, LAST | the start of the log's last file, as RocketMQ |
| 0, FULL | the log's first byte |
| inside the log, or its end | that offset, also in the middle of a record |
| below the log's first byte | refused: behind |
| above the log's end | refused: ahead |

A real slave stores frames as they come, so its log may end in the middle of a record while it
catches up. RocketMQ answers the last two with heartbeats for ever.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class SlavePlace(Enum):
    """The place of a slave's end in relation to the master's log."""

    EMPTY = "empty"
    INSIDE = "inside"
    BEHIND = "behind"
    AHEAD = "ahead"


class Start(NamedTuple):
    """The answer to a first report; without an `offset` the slave is refused for the `reason`."""

    place: SlavePlace
    offset: int | None
    reason: str = ""


class Span(NamedTuple):
    """The part of the log that a master has, and the size of its files."""

    min_offset: int
    max_offset: int
    file_size: int


def start_for(requested: int, span: Span, *, full: bool) -> Start:
    """Return where to begin for a slave with the first report `requested`."""
    if requested == 0:
        last = span.max_offset - span.max_offset % span.file_size
        return Start(SlavePlace.EMPTY, span.min_offset if full else max(last, span.min_offset))
    if requested > span.max_offset:
        reason = (
            f"the slave's log ends at {requested}, {requested - span.max_offset} bytes behind this"
            f" log's end at {span.max_offset}: it has messages that this master lacks."
            " Make it the master, or let it follow with an empty root"
        )
        return Start(SlavePlace.AHEAD, None, reason)
    if requested < span.min_offset:
        reason = (
            f"the slave's log ends at {requested}, and this log begins at {span.min_offset}: what"
            " lies between was deleted. Let it follow with an empty root"
        )
        return Start(SlavePlace.BEHIND, None, reason)
    return Start(SlavePlace.INSIDE, requested)
