"""Count what a store has done since it was opened: writes, syncs, times, what waits (D11).

Counted where something slow happens anyway; the number of appended messages comes from the offsets.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class ShardCounters:
    """What one shard counts; seconds are of the clock's monotonic time."""

    #: The buffers changed places.
    swaps: int = 0
    #: Appends that had to wait for room, how long, and those that gave up (StoreBusy).
    stalls: int = 0
    stall_seconds: float = 0.0
    busy: int = 0
    #: Appends that were not taken because of a full disk, or because the shard has failed.
    refused: int = 0
    #: Syncs of the shard's files.
    syncs: int = 0
    sync_seconds: float = 0.0
    sync_seconds_max: float = 0.0
    #: Reads: views that were taken.
    reads: int = 0

    def note_sync(self, seconds: float) -> None:
        """Count a sync."""
        self.syncs += 1
        self.sync_seconds += seconds
        self.sync_seconds_max = max(self.sync_seconds_max, seconds)

    def note_stall(self, seconds: float) -> None:
        """Count an append that waited."""
        self.stalls += 1
        self.stall_seconds += seconds


#: What is added up over shards; of the others the largest counts.
SUMMED = (
    "appends",
    "append_bytes",
    "swaps",
    "stalls",
    "stall_seconds",
    "busy",
    "refused",
    "syncs",
    "sync_seconds",
    "reads",
    "dirty_bytes",
    "unsynced_bytes",
    "disk_full",
    "failed",
)
LARGEST = ("sync_seconds_max", "oldest_unflushed_seconds")


def total(parts: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Add the statistics of several shards or topics up.

    >>> total([{**dict.fromkeys((*SUMMED, *LARGEST), 1)}] * 2)["appends"]
    2
    """
    result: dict[str, Any] = dict.fromkeys((*SUMMED, *LARGEST), 0)
    for part in parts:
        for name in SUMMED:
            result[name] += part[name]
        for name in LARGEST:
            result[name] = max(result[name], part[name])
    return result
