"""Counters and rates since a store was opened: RocketMQ's `StoreStatsService`.

Totals are counted where things happen. A sample of them is kept every second (by the flush thread,
or by a caller of `rates`), so rates over the last 10, 60 and 600 seconds are differences of two
samples. No message takes a lock only to be counted: reads count under `_lock`, puts under the log's
own.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from rocketcompat.commitlog.commit_log import CommitLog
from rocketcompat.formats import CONSUME_QUEUE_DIRECTORY
from rocketcompat.messages import MessageRecord
from rocketcompat.store.cleaning import disk_used_percent, least_used
from rocketcompat.store.parts import Parts
from tubestore.clock import Clock

if TYPE_CHECKING:
    from rocketcompat.store.opening import Opened

WINDOWS_SECONDS = (10, 60, 600)
_SAMPLE_SECONDS = 1.0


class Totals(NamedTuple):
    """Counted since the store was opened; sizes in bytes."""

    put_messages: int
    put_bytes: int
    get_found: int
    get_missed: int
    get_messages: int
    get_bytes: int


class ReplicationState(NamedTuple):
    """What replicates a store, as `stats` shows it; `slaves` are by peer."""

    #: "ASYNC_MASTER", "SYNC_MASTER" or "SLAVE"; empty of a store that does not replicate.
    role: str
    #: The threads by name, each with whether it runs and stopped by itself.
    services: dict[str, dict[str, bool]]
    connections: int
    #: Sent by a master, received by a slave.
    bytes: int
    #: Of the slave that is furthest behind; of a slave, what queues and index lack.
    lag_bytes: int
    slaves: dict[str, dict[str, Any]]


_ALONE = ReplicationState("", {}, 0, 0, 0, {})


class StoreStats:
    """The counters of one open store; thread-safe."""

    def __init__(self, log: CommitLog, clock: Clock, *, writable: bool) -> None:
        self._log, self._clock, self._writable = log, clock, writable
        self._lock = threading.Lock()
        self._found = self._missed = self._messages = self._bytes = 0
        self.opened_ms = clock.now_ms()
        #: Describes what replicates the store; None if nothing does.
        self.replication: Callable[[], ReplicationState] | None = None
        self._start = log.max_offset
        self._samples: deque[tuple[float, Totals]] = deque()
        self.sample()

    def got(self, entries: Sequence[Any]) -> None:
        """Count a pull and what it returned."""
        size = sum(entry.size for entry in entries if isinstance(entry, MessageRecord))
        self._got(len(entries), size)

    def got_rows(self, batch: pa.RecordBatch) -> None:
        """Count a page of queues and its rows."""
        from rocketcompat.record.arrow import TOTAL_SIZE

        # By its name, and summed by its method, a page would take as long again to be counted.
        sizes = batch.column(TOTAL_SIZE).to_numpy()
        self._got(len(sizes), int(np.add.reduce(sizes, dtype=np.int64)))

    def _got(self, count: int, size: int) -> None:
        with self._lock:
            if count:
                self._found += 1
            else:
                self._missed += 1
            self._messages += count
            self._bytes += size

    def totals(self) -> Totals:
        """Return the counts as of now."""
        put_bytes = self._log.max_offset - self._start if self._writable else 0
        with self._lock:
            return Totals(
                self._log.put_count, put_bytes, self._found, self._missed, self._messages,
                self._bytes,
            )  # fmt: skip

    def sample(self) -> None:
        """Remember the counts of now for later rates; harmless when called often."""
        now, totals = self._clock.monotonic(), self.totals()
        with self._lock:
            samples = self._samples
            if not samples or now - samples[-1][0] >= _SAMPLE_SECONDS:
                samples.append((now, totals))
            while len(samples) > 2 and now - samples[1][0] >= WINDOWS_SECONDS[-1]:
                samples.popleft()

    def rates(self) -> dict[str, tuple[float, ...]]:
        """Return each count a second over the last 10, 60 and 600 seconds.

        In a store that is open for less, over that time.
        """
        self.sample()
        now, totals = self._clock.monotonic(), self.totals()
        with self._lock:
            samples = list(self._samples)
        rates: dict[str, list[float]] = {name: [] for name in Totals._fields}
        for window in WINDOWS_SECONDS:
            begin, before = next((s for s in reversed(samples) if now - s[0] >= window), samples[0])
            seconds = now - begin
            for name, new, old in zip(Totals._fields, totals, before, strict=True):
                rates[name].append((new - old) / seconds if seconds > 0 else 0.0)
        return {name: tuple(values) for name, values in rates.items()}


def run_time_info(parts: Parts, stats: StoreStats, opened: Opened | None) -> dict[str, Any]:
    """Return what `StoreReader.stats` describes; `opened` is None in a reader."""
    log, queues, index = parts.commit_log, parts.queues, parts.index
    running: dict[str, Any] = {"dispatch": {}, "structures": {}, "services": {}}
    if opened is not None:
        running = opened.states()
    found = stats.replication() if stats.replication is not None else _ALONE
    running["services"] |= found.services
    return {
        "opened_ms": stats.opened_ms,
        "totals": stats.totals()._asdict(),
        "rates": stats.rates(),
        "log": {
            "min_offset": log.min_offset,
            "max_offset": log.max_offset,
            "synced_offset": log.synced_offset,
            "files": len(log.queue.files),
            "syncs": log.sync_count,
            "dispatch_behind_bytes": opened.dispatcher.behind if opened is not None else 0,
            "damaged_regions": len(log.gaps),
            "failed": log.refusals.failed is not None,
            "full": log.refusals.no_room is not None,
            "refusing": log.refusals.too_full is not None,
            "refused_messages": log.refusals.count,
        },
        **running,
        "disk": {
            "commit_log_percent": least_used(log.queue.writable_directories)[0],
            "consume_queue_percent": disk_used_percent(parts.path(CONSUME_QUEUE_DIRECTORY)),
        },
        "queues": {"count": len(queues.all_queues()) if queues is not None else 0},
        "index": dict(index.stats()) if index is not None else {},
        "role": found.role,
        "replication": {
            "connections": found.connections,
            "bytes": found.bytes,
            "lag_bytes": found.lag_bytes,
        },
        "slaves": found.slaves,
        "deleted_files": dict(opened.cleaner.deleted) if opened is not None else {},
    }
