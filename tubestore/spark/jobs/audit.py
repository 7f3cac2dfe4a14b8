"""Audit: every entry against its record, every checksum, every byte of data accounted for.

The checks of `tubestore check`, in parallel, for a store of any size, with the same limits: the
sender's address, the message id and the flag are stored once and cannot be compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tubestore.core.old_paths import renamed_keyword
from tubestore.core.vfs import Vfs
from tubestore.disks.roots import disk_of
from tubestore.messages import STATE_ENTRY_DIFFERS, STATE_OK
from tubestore.record.columns import columns_for
from tubestore.record.decode import decode
from tubestore.record.locate import Data
from tubestore.record.records import ENTRY_SIZE, verify_entries
from tubestore.segments.shard_bytes import ShardBytes
from tubestore.spark.kit.options import ReadOptions
from tubestore.spark.kit.running import Done, Row, Watch, run, silent
from tubestore.spark.planning import Plan, Portion, Split, plan
from tubestore.spark.reading import portion_entries

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Findings of a split that are named one by one; all are counted.
NAMED_MAX = 100


@dataclass(frozen=True)
class AuditJob:
    """Audits splits of a tube store."""

    root: str
    check_crc: bool = True
    name: str = "audit"

    def arguments(self) -> Mapping[str, Any]:
        """Return the arguments that identify this job."""
        return {"root": self.root, "check_crc": self.check_crc}

    def work(self, number: int, split: Split) -> Row:
        """Audit one split: counts, findings, and where its data begins and ends."""
        found = _Findings()
        portions = [self._portion(portion, found) for portion in split.portions]
        return {
            "split": number,
            "rows": split.rows,
            "bytes": sum(p["data_end"] - p["data_start"] for p in portions),
            "bad": found.count,
            "findings": found.rows,
            "portions": portions,
        }

    def _portion(self, portion: Portion, found: _Findings, vfs: Vfs | None = None) -> Row:
        vfs, shard = vfs or disk_of(self.root), portion.shard
        bytes_ = ShardBytes(vfs, shard)
        first, end = -1, -1
        try:
            for offset, entries in portion_entries(bytes_, portion):
                for window in bytes_.windows(entries):
                    part = entries[window.first : window.end]
                    at = offset + ENTRY_SIZE * window.first
                    self._window(portion, at, part, window, found)
                starts = entries["data_offset"].astype(np.int64)
                ends = starts + entries["data_size"]
                before = np.concatenate(([end if end >= 0 else starts[0]], ends[:-1]))
                for row in np.flatnonzero(starts != before).tolist():
                    text = f"its data is at {starts[row]}, the record before ends at {before[row]}"
                    found.add(portion, offset + ENTRY_SIZE * row, entries[row], "apart", text)
                first = int(starts[0]) if first < 0 else first
                end = int(ends[-1])
        finally:
            bytes_.close()
        return {
            "topic": shard.topic,
            "store_id": shard.store_id,
            "start": portion.start,
            "end": portion.end,
            "data_start": max(first, 0),
            "data_end": max(end, 0),
        }

    def _window(
        self, portion: Portion, at: int, entries: Any, window: Any, found: _Findings
    ) -> None:
        if window.data is None:
            for row, entry in enumerate(entries):
                found.add(portion, at + ENTRY_SIZE * row, entry, "missing", "no file has its data")
            return
        good = verify_entries(entries, at, window.data, window.data_start, check_crc=self.check_crc)
        bad = np.flatnonzero(~good)
        if not len(bad):
            return
        name = (portion.shard.topic, portion.shard.store_id)
        offsets = at + ENTRY_SIZE * bad.astype(np.int64)
        data, start = window.data, window.data_start
        columns = columns_for(("state",), verify=True)
        states, _ = decode(*name, offsets, entries[bad], Data(data, start), columns)
        same = verify_entries(
            entries[bad], 0, data, start, own_offset=False, check_crc=self.check_crc
        )
        for row, state, agrees in zip(
            bad.tolist(), states.column(0).to_pylist(), same.tolist(), strict=True
        ):
            reason, text = state, "the record is damaged"
            if agrees:
                reason, text = "own_offset", "the record names another offset than its entry has"
            elif state in (STATE_OK, STATE_ENTRY_DIFFERS):
                reason, text = STATE_ENTRY_DIFFERS, "entry and record contradict each other"
            found.add(portion, at + ENTRY_SIZE * row, entries[row], reason, text)


class _Findings:
    def __init__(self) -> None:
        self.count = 0
        self.rows: list[Row] = []

    def add(self, portion: Portion, offset: int, entry: Any, reason: str, text: str) -> None:
        """Count a finding, and name it if there is room."""
        self.count += 1
        if len(self.rows) < NAMED_MAX:
            self.rows.append(
                {
                    "topic": portion.shard.topic,
                    "store_id": portion.shard.store_id,
                    "partition": int(entry["partition_id"]),
                    "offset": offset,
                    "reason": reason,
                    "message": text,
                }
            )


@dataclass(frozen=True, slots=True)
class AuditResult:
    """The result of an audit: how much was examined, and findings as rows."""

    rows: int
    bytes: int
    bad: int
    findings: list[Row]
    done: Done


def plan_audit(root: str) -> Plan:
    """Plan the audit of a whole store as it is now."""
    return plan(ReadOptions.parse({"path": root}))


@renamed_keyword("told", "watch")
def audit(
    spark: SparkSession,
    root: str,
    *,
    check_crc: bool = True,
    job_id: str | None = None,
    watch: Watch = silent,
) -> AuditResult:
    """Audit a store in tasks; nothing is changed. NotAStore, InvalidOption."""
    made = plan_audit(root)
    done = run(spark, AuditJob(root, check_crc), made.splits, job_id=job_id, watch=watch)
    findings = [f for row in done.rows for f in row["findings"]]
    between = list(_between(made, done.rows))
    rows, size = sum(r["rows"] for r in done.rows), sum(r["bytes"] for r in done.rows)
    bad = sum(r["bad"] for r in done.rows) + len(between)
    return AuditResult(rows, size, bad, [*findings, *between], done)


def _between(made: Plan, rows: list[Row]) -> Iterator[Row]:
    """Check the borders of portions, and the end of each shard's data."""
    files = {
        (p.shard.topic, p.shard.store_id): p.shard.data for s in made.splits for p in s.portions
    }
    ends: dict[tuple[str, int], Row] = {}
    for portion in (portion for row in rows for portion in row["portions"]):
        key = (portion["topic"], portion["store_id"])
        before = ends.get(key)
        if before is not None and before["data_end"] != portion["data_start"]:
            text = f"{before['data_end']} to {portion['data_start']}: bytes that no entry points to"
            yield _border(key, portion["start"], "apart", text)
        ends[key] = portion
    for key, portion in ends.items():
        end = max((file.end for file in files[key]), default=0)
        if end > portion["data_end"]:
            text = f"{end - portion['data_end']} bytes behind the last entry's record"
            yield _border(key, portion["end"], "unindexed", text)


def _border(key: tuple[str, int], offset: int, reason: str, text: str) -> Row:
    topic, store_id = key
    return {
        "topic": topic,
        "store_id": store_id,
        "partition": -1,
        "offset": offset,
        "reason": reason,
        "message": text,
    }
