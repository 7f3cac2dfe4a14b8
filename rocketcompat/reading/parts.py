"""The parts of a store that reads need, and the common form of answers: messages in order.

The parts are protocols, so that a live store, a directory and a test use the same code. An answer
is made Arrow when that is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import pyarrow as pa

from rocketcompat.commitlog.reads import LogBytes, lost_message
from rocketcompat.formats import STATE_OK
from rocketcompat.messages import MessageRecord
from rocketcompat.options import MessageStoreConfig
from rocketcompat.record.rows import row_of, table_of_rows, unreadable_row
from tubestore.errors import CorruptRecord

STATE_DAMAGED = "damaged"


class QueuePart(Protocol):
    """The part of a ConsumeQueue that reads use; offsets are queue offsets."""

    topic: str
    queue_id: int

    @property
    def min_offset(self) -> int:
        """The first unit that has its record."""

    @property
    def max_offset(self) -> int:
        """The next unit."""

    def spans(self, start: int, count: int) -> tuple[Any, Sequence[int]]:
        """Units from `start` to the end of their file, `count` at most; where each begins.

        And, last of these queue offsets, the one behind the last unit.
        """

    def next_file_offset(self, offset: int) -> int:
        """The first unit of the file after the one of `offset`."""

    def place_of_unit(self, offset: int) -> tuple[str, int]:
        """The file of the unit at `offset`, and its position there."""


class QueuesPart(Protocol):
    """The part of the table of queues that reads use."""

    def find(self, topic: str, queue_id: int) -> QueuePart | None:
        """A queue, None if there is none."""


class IndexPart(Protocol):
    """The part of the index that reads use; times are ms."""

    def select_hash(
        self, hash_of_key: int, count_max: int, begin: int, end: int
    ) -> tuple[list[int], int, int]:
        """Physical offsets newest first, and time and offset of the last update."""

    @property
    def last_update(self) -> tuple[int, int]:
        """Time and physical offset of the newest item."""

    def candidates(self, hash_of_key: int, begin: int, end: int) -> Iterator[int]:
        """Physical offsets of all items of a hash that may lie in the window, newest first."""


class StoreParts(Protocol):
    """The parts of a store that reads work on; queues and index are None when switched off."""

    @property
    def commit_log(self) -> LogBytes:
        """The log."""

    @property
    def queues(self) -> QueuesPart | None:
        """The table of queues."""

    @property
    def index(self) -> IndexPart | None:
        """The index."""

    @property
    def config(self) -> MessageStoreConfig:
        """The limits."""


@dataclass(frozen=True)
class Found:
    """Messages in the order of an answer; Arrow when asked for (`pa.table(result)`)."""

    #: One entry a message taken: its record, or why it cannot be read. A record may be a stand-in
    #: of a lost message (`record.state`).
    entries: tuple[MessageRecord | CorruptRecord, ...] = ()
    physical_offsets: list[int] = field(default_factory=list)

    @property
    def messages(self) -> list[MessageRecord]:
        """The records that could be read; no stand-in of a lost message."""
        return [e for e in self.entries if isinstance(e, MessageRecord) and e.state == STATE_OK]

    @property
    def problems(self) -> list[CorruptRecord]:
        """What could not be read, and which messages are lost."""
        return [
            lost_message(entry) if isinstance(entry, MessageRecord) else entry
            for entry in self.entries
            if isinstance(entry, CorruptRecord) or entry.state != STATE_OK
        ]

    def rows(self) -> list[dict[str, Any]]:
        """Return a row an entry, with its state (`formats.MESSAGE_COLUMNS`)."""
        pairs = zip(self.physical_offsets, self.entries, strict=True)
        return [
            row_of(entry)
            if isinstance(entry, MessageRecord)
            else unreadable_row(offset, None, STATE_DAMAGED)
            for offset, entry in pairs
        ]

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[MessageRecord]:
        return iter(self.messages)

    @cached_property
    def _table(self) -> pa.Table:
        return table_of_rows(self.rows())

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self._table.__arrow_c_stream__(requested_schema)
