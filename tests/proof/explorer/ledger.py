"""What a workload was told of each message, whatever failed; held against what is there at the end.

- acknowledged at a level: it is there, at its offset, if the level survives what happened;
- refused with `taken` "no": it is not there;
- refused with `taken` "yes": it has its offset, and its level is "memory";
- anything else: it may be there, once, in its place in the order;
- of a job that was published: all of it is there or nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rocketcompat.store.put_status import PutStatus
from tests.proof.explorer.book import RANK
from tubestore.errors import BatchError, TubeStoreError
from tubestore.options import Durability


@dataclass
class Entry:
    """A message that was handed in, and what became of it."""

    number: int
    topic: str
    partition: int
    body: bytes
    #: "no", "yes", "unknown", as exceptions have it; "unknown" until something is known.
    taken: str = "unknown"
    offset: int | None = None
    level: Durability = "memory"
    #: Whether a reader has seen it.
    seen: bool = False
    #: The job that it is published with, all of it or nothing; "": none.
    job: str = ""
    #: What was raised for it, for people who read a failure.
    error: str = ""


class Row(NamedTuple):
    """A message that a store shows."""

    topic: str
    partition: int
    offset: int
    body: bytes


@dataclass
class Ledger:
    """All messages of one workload."""

    entries: list[Entry] = field(default_factory=list)

    def send(self, topic: str, partition: int, padding: int = 0, job: str = "") -> Entry:
        """Note a message before it is handed in; no other has its body."""
        number = len(self.entries)
        body = b"%07d:" % number + b"x" * padding
        self.entries.append(Entry(number, topic, partition, body, job=job))
        return self.entries[-1]

    def acknowledged(self, entry: Entry, offset: int, level: Durability) -> None:
        """Note an acknowledgement."""
        entry.taken, entry.offset, entry.level = "yes", offset, level

    def refused(self, entries: list[Entry], error: TubeStoreError, level: Durability) -> None:
        """Note what an exception says of the messages of one call, which asked for a level."""
        for number, entry in enumerate(entries):
            entry.error = repr(error)
            ack = error.acks[number] if isinstance(error, BatchError) else None
            if isinstance(ack, dict):  # a row of a RocketMQ store
                reached = PutStatus(ack["status"]) is PutStatus.PUT_OK
                self.acknowledged(entry, ack["physical_offset"], level if reached else "memory")
            elif ack is not None:
                self.acknowledged(entry, ack.offset, ack.durability)
            elif error.taken == "yes" and not isinstance(error, BatchError):
                assert error.offset is not None, f"{error!r} has no offset"
                entry.taken = "yes"
                entry.offset = error.offset if len(entries) == 1 else None
            else:
                entry.taken = error.taken if error.taken != "yes" else "unknown"

    def look(self, rows: Iterable[Row]) -> None:
        """Note what readers of the open store see."""
        by_body = {entry.body: entry for entry in self.entries}
        for row in rows:
            by_body[row.body].seen = True

    def check(self, rows: Iterable[Row], *, least: Durability, first_kept: int = 0) -> int:
        """Raise AssertionError for the first thing that does not hold; returns how many are there.

        `least`: the lowest level that survives what happened. Below the offset `first_kept`
        messages were removed because of their age.
        """
        by_body = {entry.body: entry for entry in self.entries}
        found: dict[int, Row] = {}
        last: dict[tuple[str, int], int] = {}
        for row in rows:
            entry = by_body.get(row.body)
            assert entry is not None, f"invented: {row}"
            assert (entry.topic, entry.partition) == (row.topic, row.partition), (entry, row)
            assert entry.number not in found, f"twice: {row} and {found[entry.number]}"
            found[entry.number] = row
            if not entry.job:  # a job may be published again later
                assert last.get(row[:2], -1) < entry.number, f"out of order: {row}"
                last[row[:2]] = entry.number
        for entry in self.entries:
            there = found.get(entry.number)
            if entry.taken == "no":
                assert there is None, f"refused, and there: {entry}"
                assert not entry.seen, f"refused, and readers saw it: {entry}"
            removed = first_kept and (entry.offset is None or entry.offset < first_kept)
            if entry.taken == "yes" and RANK[entry.level] >= RANK[least] and not removed:
                assert there is not None, f"lost: {entry}"
            if there is not None and entry.offset is not None:
                assert there.offset == entry.offset, f"moved: {entry}, {there}"
        jobs: dict[str, set[bool]] = {}
        for entry in self.entries:
            jobs.setdefault(entry.job, set()).add(entry.number in found)
        parts = [job for job, there in jobs.items() if job and len(there) > 1]
        assert first_kept or not parts, f"published in part: {parts}"
        return len(found)


def engine_rows(store: Any) -> Iterable[Row]:
    """Go through everything that a store of shards shows; damage is an AssertionError."""
    columns = ["partition", "offset", "body", "state"]
    for name in store.topics():
        with store[name].scan(columns=columns, verify=True) as reader:
            for row in reader.read_all().to_pylist():
                assert row["state"] == "ok", f"damage in {name}: {row}"
                yield Row(name, row["partition"], row["offset"], row["body"])


def rocket_rows(store: Any, queues: Iterable[tuple[str, int]]) -> Iterable[Row]:
    """Go through everything that the queues of a RocketMQ store give; offsets are physical."""
    for topic, queue in queues:
        at = store.min_offset_in_queue(topic, queue)
        while messages := list(store.get_message(topic, queue, at, max_count=1000)):
            for message in messages:
                yield Row(topic, queue, message.physical_offset, message.body)
            at = messages[-1].queue_offset + 1
