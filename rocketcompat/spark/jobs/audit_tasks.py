"""Tasks of an audit: queues and index files against the parts of the log.

The findings are those of `rocketcompat check`: the same functions make them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from rocketcompat.check.findings import Finding, finding
from rocketcompat.check.index import Keys, check_index_file
from rocketcompat.check.queues import check_extensions, check_queue
from rocketcompat.commitlog.walk import Gap
from rocketcompat.formats import BATCH_CONSUME_QUEUE_DIRECTORY, CONSUME_QUEUE_DIRECTORY
from rocketcompat.index.index_file import IndexFile
from rocketcompat.index.items import IndexGeometry
from rocketcompat.inspect.batch_queues import BatchComparison
from rocketcompat.inspect.comparison import QueueComparison
from rocketcompat.inspect.directory import StoreDirectory
from rocketcompat.inspect.log_units import ScannedEnd, ScannedUnits
from rocketcompat.spark.jobs.log_parts import ITEM_ROW, Array, Queue, items_in
from rocketcompat.spark.jobs.rebuild_tasks import (
    PartOrder,
    QueueSplit,
    batch_units_in,
    plain_units_in,
    runs_in,
)
from tubestore.errors import CorruptRecord
from tubestore.spark.kit.running import Row, digest_of

Parts = tuple[PartOrder, ...]


@dataclass(frozen=True, slots=True)
class IndexFileSplit:
    """A file of the index, and parts of the log: physical offsets [start, end) of each."""

    path: str
    parts: tuple[tuple[str, int, int], ...]


@dataclass(frozen=True)
class AuditJob:
    """Compares queues and index files with the log."""

    root: str
    options: Mapping[str, Any]
    regions: tuple[Gap, ...]
    log_end: int
    #: Physical offset of the first record with a key; None without any.
    first_key: int | None
    geometry: IndexGeometry | None
    name: str = "audit: compare"

    def arguments(self) -> Mapping[str, Any]:
        """Return the arguments that identify this job."""
        return {"root": self.root, "options": digest_of(self)}

    def work(self, number: int, split: QueueSplit | IndexFileSplit) -> Row:
        """Compare one group of queues, or one file of the index."""
        directory = StoreDirectory(self.root, self.options)
        if isinstance(split, QueueSplit):
            return {"split": number, "findings": list(self._of_queues(directory, split))}
        assert self.geometry is not None
        return {"split": number, **self._of_index(directory, split, self.geometry)}

    def holds(self, _row: Row) -> bool:
        """The findings are in the row itself."""
        return True

    def _of_queues(self, directory: StoreDirectory, split: QueueSplit) -> Iterator[Finding]:
        rows: dict[Queue, list[Array]] = {queue: [] for queue in split.queues}
        for kind, topic, queue_id, found, _ in runs_in(split.parts, set(split.queues)):
            rows[kind, topic, queue_id].append(found)
        queues = QueueComparison(directory)
        for key, units in self._scanned(rows, CONSUME_QUEUE_DIRECTORY).units.items():
            queues.take(key, *units)
        batches = BatchComparison(directory)
        for comparison in (queues, batches):
            for region in self.regions:
                comparison.take_region(region)
            comparison.finish(self.log_end)
        of_batches = self._scanned(rows, BATCH_CONSUME_QUEUE_DIRECTORY)
        for key, (_, units_of_batches) in of_batches.units.items():
            batches.take(key, units_of_batches)
        for kind, topic, queue_id in split.queues:
            if kind == BATCH_CONSUME_QUEUE_DIRECTORY:
                yield from check_queue(directory, batches.compared((topic, queue_id)))
                continue
            queue = queues.compared((topic, queue_id))
            yield from check_queue(directory, queue)
            yield from check_extensions(directory, queue)

    def _scanned(self, rows: Mapping[Queue, list[Array]], kind: str) -> ScannedUnits:
        """Return the units of the queues of one kind."""
        made = plain_units_in if kind == CONSUME_QUEUE_DIRECTORY else batch_units_in
        units = {}
        for (of, topic, queue_id), runs in rows.items():
            if of == kind and runs:
                joined = np.concatenate(runs)
                joined = joined[joined["queue_offset"] >= 0]
                units[topic, queue_id] = joined["queue_offset"], made(joined)
        return ScannedUnits(units, self.regions, self.log_end)

    def _of_index(
        self, directory: StoreDirectory, split: IndexFileSplit, geometry: IndexGeometry
    ) -> Row:
        try:
            file = IndexFile.load(directory.vfs, split.path, geometry, writable=False)
        except CorruptRecord as error:
            found = [finding(split.path, error.position, "size", error.reason, "error")]
            return {"findings": found, "seen": 0, "last": -1, "missing": None}
        offsets = file.items()["physical_offset"].astype(np.int64)
        first, last = (int(offsets.min()), int(offsets.max())) if len(offsets) else (0, -1)
        rows = [items_in(path) for path, start, end in split.parts if start <= last and end > first]
        items = np.concatenate(rows or [np.empty(0, ITEM_ROW)])
        places = items["physical_offset"].astype(np.int64)
        end = ScannedEnd(directory, self.log_end)
        seen = np.zeros(len(items), bool)
        keys = Keys(items["key_hash"].copy(), places, self.first_key, end)
        findings = list(check_index_file(file, keys, seen))
        file.release()
        inside = places[~seen & (places > first) & (places < last)]
        return {
            "findings": findings,
            "seen": int(seen.sum()),
            "last": last,
            "missing": int(inside[0]) if len(inside) else None,
        }
