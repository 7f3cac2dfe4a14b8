"""Walk through a shard's index and data together and judge every byte.

The rules are those of recovery (decisions.md D7), applied to files as they lie and without changing
them. The verdicts, and how rows are shown:

| at the expected place                              | verdict             | row in a dump        |
| -------------------------------------------------- | ------------------- | -------------------- |
| entry and record agree                             | none                | ok                   |
| … and the attribute length is impossible           | bad_attributes      | bad_attributes       |
| … but the record's own index offset is another     | own_offset          | ok                   |
| … but partition, key or time differ                | entry_differs       | entry_differs        |
| … and the record's own index offset is another     | entry_differs, of   | entry_differs        |
|                                                    | the record          |                      |
| entry wrong, the record that belongs here is found | bad_entry           | ok, from the record  |
| entry impossible, no record                        | bad_entry           | bad_entry            |
| entry points to bytes that no file has             | missing             | missing              |
| … because retention removed them                   | none                | expired              |
| record damaged                                     | bad_record          | bad_record           |
| payload damaged                                    | bad_checksum        | bad_checksum         |
| intact records without entries                     | unindexed           | ok                   |
| bytes that nothing points to                       | unreferenced        | no row               |
| … at the end, and no intact record in them         | torn                | no row               |
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from tubestore.core.vfs import Vfs
from tubestore.record.evidence import are_expired, are_possible, judge
from tubestore.record.layouts import INDEX_ENTRY, TOKEN_MESSAGE, record_size
from tubestore.record.records import (
    ENTRY_SIZE,
    SHARED_FIELDS,
    entries_in,
    entry_of,
    names_another,
    verify_entries,
)
from tubestore.segments.listing import ShardFiles
from tubestore.segments.shard_bytes import ShardBytes, broken_attributes

Array = np.ndarray[Any, Any]
_GROUP_ROWS = 4096
_ENDLESS = 1 << 63


_NO_ENTRIES = np.empty(0, INDEX_ENTRY.dtype)


class Reason(enum.StrEnum):
    """What is wrong: `reason` of a finding. Each is explained in `offline/findings.py`."""

    BAD_STATE = "bad_state"
    HALF_PUBLISHED = "half_published"
    JOURNAL = "journal"
    JOURNAL_DAMAGED = "journal_damaged"
    STALE_CACHE = "stale_cache"
    FOREIGN_NAME = "foreign_name"
    NAME_FORM = "name_form"
    GAP = "gap"
    OVERLAP = "overlap"
    UNREADABLE = "unreadable"
    PARTIAL_ENTRY = "partial_entry"
    BAD_ENTRY = "bad_entry"
    ENTRY_DIFFERS = "entry_differs"
    OWN_OFFSET = "own_offset"
    MISSING = "missing"
    MISSING_FILE = "missing_file"
    MISPLACED = "misplaced"
    HIDDEN = "hidden"
    BAD_RECORD = "bad_record"
    BAD_CHECKSUM = "bad_checksum"
    BAD_ATTRIBUTES = "bad_attributes"
    UNINDEXED = "unindexed"
    UNREFERENCED = "unreferenced"
    TORN = "torn"
    DIGEST_DIFFERS = "digest_differs"
    NEVER_SYNCED = "never_synced"


OK = "ok"
EXPIRED = "expired"


@dataclass(frozen=True, slots=True)
class Stretch:
    """Rows next to each other, or bytes without rows, that share a verdict."""

    verdict: Reason | None
    #: State of the rows; "" for bytes without rows.
    state: str
    #: Of the first row. Without an entry: of the place that its entry would have.
    index_offset: int
    #: As the index has them; from the records where the index is wrong.
    entries: Array
    data_offset: int
    data_size: int
    message: str = ""
    #: The bytes that hold the records, where they are at hand already.
    data: memoryview | None = None
    data_start: int = 0
    #: Bytes without rows: whether they are a whole record with another one's entry.
    is_record: bool = False
    #: For a row with an entry that contradicts its record: true if the record is the damaged one.
    in_record: bool = False


def walk(vfs: Vfs, shard: ShardFiles) -> Iterator[Stretch]:
    """Go through a shard in index order; bytes without rows come where they lie."""
    bytes_ = ShardBytes(vfs, shard)
    try:
        walker = _Walker(bytes_)
        for offset, entries in bytes_.entries():
            yield from walker.rows(offset, entries)
        yield from walker.tail()
    finally:
        bytes_.close()


class _Walker:
    """`covered`: data below it has been accounted for; None as long as that is not known."""

    def __init__(self, bytes_: ShardBytes) -> None:
        self.bytes = bytes_
        index = bytes_.shard.index
        self.index_start = index[0].start if index else 0
        #: Index offset of the next row, with or without an entry.
        self.running = self.index_start
        # An index that does not start at 0 has lost its oldest files to retention, and the
        # records of those may still be there.
        self.covered: int | None = None if self.index_start else bytes_.data_start
        #: Rows without a record came last: the bytes up to the next record are of these rows.
        self.pending = False
        self._next: tuple[int, tuple[int, Any] | None] | None = None

    def rows(self, offset: int, entries: Array) -> Iterator[Stretch]:
        """Judge a chunk of entries that starts at an index offset."""
        if offset > self.running:
            yield from self._between_files(offset)
        for window in self.bytes.windows(entries):
            part = entries[window.first : window.end]
            start = offset + ENTRY_SIZE * window.first
            if window.data is None:
                yield from self._without_record(part, start)
                continue
            good = verify_entries(part, start, window.data, window.data_start)
            for first, end in _runs(good):
                at = start + ENTRY_SIZE * first
                if good[first]:
                    yield from self._good(part[first:end], at, window.data, window.data_start)
                else:
                    for row in range(first, end):
                        yield from self._bad(part[row : row + 1], at + ENTRY_SIZE * (row - first))

    def _between_files(self, offset: int) -> Iterator[Stretch]:
        """Find the records that lost their entries with an index file that is gone."""
        if self.covered is None:  # no entry before had its record
            data = self.bytes.data_start, self.bytes.data_end
            self.covered, _ = self.bytes.find_record(*data, self.running) or (None, None)
        while self.covered is not None:
            rows = self._unindexed(self.covered, self.bytes.data_end, offset)
            if rows is None:
                found = self._next_record(self.running)
                if found is None or not self.running <= found[1].queue_logic_offset < offset:
                    return
                if not self.pending:
                    yield from self._without_entries(self.covered, found[0], before=offset)
                self.covered = found[0]
                continue
            self._go_on(self.running, self.covered + rows.data_size)
            yield rows

    # -- entries that agree with their records -----------------------------------------------

    def _good(
        self, entries: Array, offset: int, data: memoryview, data_start: int
    ) -> Iterator[Stretch]:
        starts = entries["data_offset"].astype(np.int64)
        ends = starts + entries["data_size"]
        apart = (np.flatnonzero(starts[1:] > ends[:-1]) + 1).tolist()
        for first, end in zip([0, *apart], [*apart, len(entries)], strict=True):
            low, at = int(starts[first]), offset + ENTRY_SIZE * first
            yield from self._before(low, at)
            self._go_on(at + ENTRY_SIZE * (end - first), int(ends[end - 1]))
            some = entries[first:end]
            yield from _by_attributes(some, at, data, data_start)

    def _go_on(self, running: int, covered: int, *, pending: bool = False) -> None:
        self.running, self.pending = running, pending
        self.covered = covered if self.covered is None else max(self.covered, covered)

    # -- entries that do not -----------------------------------------------------------------

    def _without_record(self, entries: Array, offset: int) -> Iterator[Stretch]:
        """Judge entries that point to bytes in no file."""
        starts = entries["data_offset"].astype(np.int64)
        possible = are_possible(entries)
        kinds = np.where(possible, 1, 0)
        kinds[possible & are_expired(entries, self.bytes.data_start)] = 2
        for first, end in _runs(kinds):
            at = offset + ENTRY_SIZE * first
            some = entries[first:end]
            if kinds[first] == 2:
                self.running = at + ENTRY_SIZE * len(some)
                yield Stretch(None, EXPIRED, at, some, int(starts[first]), 0)
            elif self._next_record(at) is None:
                verdict = Reason.MISSING if kinds[first] else Reason.BAD_ENTRY
                yield self._lost(verdict, some, at)
            else:
                for row in range(len(some)):
                    yield from self._bad(some[row : row + 1], at + ENTRY_SIZE * row)

    def _bad(self, entry: Array, offset: int) -> Iterator[Stretch]:
        """Judge one entry that does not agree with a record at its place."""
        fields = INDEX_ENTRY.unpack_from(entry.tobytes())
        position, size = fields.data_offset, fields.data_size
        possible = bool(are_possible(entry)[0])
        header: Any = None
        reason: str | None = "impossible"
        if possible:
            header, reason = self.bytes.record_at(position)
        names = SHARED_FIELDS
        same = reason is None and all(getattr(fields, n) == getattr(header, n) for n in names)
        if same and record_size(header) == size:
            if self._is_copied(header, position, offset):
                mended = self._belongs_here(offset)
                if mended is None:
                    yield self._lost(Reason.BAD_ENTRY, entry, offset)
                else:
                    yield from self._mended(*mended, offset)
                return
            text = f"the record's own index offset is {header.queue_logic_offset}"
            yield from self._kept(Reason.OWN_OFFSET, OK, entry, offset, text)
            return
        mended = self._belongs_here(offset)
        if same and header.queue_logic_offset == offset:
            yield from self._mended(position, header, offset)
        elif mended is not None and (reason is not None or mended[0] != position):
            yield from self._mended(*mended, offset)
        elif reason is None:
            yield from self._contradicting(fields, header, entry, offset)
        elif not possible:
            yield self._lost(Reason.BAD_ENTRY, entry, offset)
        elif position + size > self._file_end(position):
            yield self._lost(Reason.MISSING, entry, offset)
        else:
            whole = header is not None and header.token == TOKEN_MESSAGE
            whole = whole and record_size(header) == size
            verdict = Reason.BAD_CHECKSUM if whole else Reason.BAD_RECORD
            yield from self._kept(verdict, "", entry, offset, reason)

    def _is_copied(self, header: Any, position: int, offset: int) -> bool:
        """Return True if an entry that agrees with its record is that of another place.

        The record names another entry. It has had its row already, or the record of this place is
        another one and names this entry.
        """
        if not names_another(np.array(header.queue_logic_offset), np.array(offset)):
            return False
        if self.covered is not None and position < self.covered:
            return True
        found = self._belongs_here(offset)
        named = found[1].queue_logic_offset if found is not None else None
        return found is not None and found[0] != position and named == offset

    def _contradicting(
        self, fields: Any, header: Any, entry: Array, offset: int
    ) -> Iterator[Stretch]:
        """Judge an entry and the whole record that it points to, which contradict each other."""
        position, size = fields.data_offset, record_size(header)
        judged = judge(
            fields,
            header,
            self.bytes.payload_of(position, header),
            store_id=self.bytes.shard.store_id,
            index_offset=offset,
            data_offset=position,
        )
        if not judged.header_is_damaged and fields.data_size != size:
            yield from self._mended(position, header, offset)
            return
        if judged.header_is_damaged:  # of the record only the place counts
            entry = entries_in(judged.entry)
        for stretch in self._kept(Reason.ENTRY_DIFFERS, "", entry, offset, judged.text, size):
            yield replace(stretch, in_record=judged.header_is_damaged and bool(stretch.state))

    def _file_end(self, position: int) -> int:
        file = self.bytes.data_file(position)
        return file.end if file else 0

    def _kept(
        self, verdict: Reason, state: str, entry: Array, offset: int, text: str, size: int = 0
    ) -> Iterator[Stretch]:
        """Yield a row that keeps its entry, with a record of this size, or of the entry's."""
        position, size = int(entry["data_offset"][0]), size or int(entry["data_size"][0])
        if verdict is not Reason.BAD_RECORD or position == self.covered:
            yield from self._before(position, offset)
            self._go_on(offset + ENTRY_SIZE, position + size, pending=verdict is Reason.BAD_RECORD)
        else:
            self.running, self.pending = offset + ENTRY_SIZE, True
        yield Stretch(verdict, state or str(verdict), offset, entry, position, size, text)

    def _mended(self, position: int, header: Any, offset: int) -> Iterator[Stretch]:
        """Yield a row with a wrong entry and a known record."""
        size = record_size(header)
        yield from self._before(position, offset)
        self._go_on(offset + ENTRY_SIZE, position + size)
        text = f"the record that belongs here is at data offset {position}, {size} bytes"
        entries = entries_in(entry_of(header, position))
        yield Stretch(Reason.BAD_ENTRY, OK, offset, entries, position, size, text)

    def _before(self, position: int, offset: int) -> Iterator[Stretch]:
        """Judge the bytes between the last record and the one of the row at `offset`."""
        if self.covered is not None and position > self.covered and not self.pending:
            yield from self._without_entries(self.covered, position, before=offset)

    def _lost(self, verdict: Reason, entries: Array, offset: int) -> Stretch:
        self.running, self.pending = offset + ENTRY_SIZE * len(entries), True
        position = int(entries["data_offset"][0])
        text = (
            f"it points to data offset {position}, which no file has"
            if verdict is Reason.MISSING
            else "no entry can have these values, and no record belongs here"
        )
        return Stretch(verdict, str(verdict), offset, entries, position, 0, text)

    def _belongs_here(self, offset: int) -> tuple[int, Any] | None:
        """Return the record that belongs to the entry at `offset`, by its own word or its place."""
        found = self._next_record(offset)
        if found is None:
            return None
        position, header = found
        own = header.queue_logic_offset
        in_order = position == self.covered and not self._is_possible(own)
        return found if own == offset or in_order else None

    def _is_possible(self, own: int) -> bool:
        """True if a record can have this index offset; else its order alone decides its place.

        TubeMQ 1.2.0 without caches writes -1, and a header may be damaged.
        """
        return own % ENTRY_SIZE == 0 and 0 <= own <= self.running + self.bytes.data_end

    def _next_record(self, offset: int) -> tuple[int, Any] | None:
        """Return the next intact record that has not been accounted for."""
        if self.covered is None:
            return None
        if self._next is None or self._next[0] != self.covered:
            high = self.bytes.data_end
            header, reason = self.bytes.record_at(self.covered)
            found = (self.covered, header)
            self._next = (
                self.covered,
                found if reason is None else self.bytes.find_record(self.covered, high, offset),
            )
        return self._next[1]

    # -- bytes without entries ---------------------------------------------------------------

    def tail(self) -> Iterator[Stretch]:
        """Judge what lies behind the last entry's record."""
        bytes_ = self.bytes
        low = bytes_.data_start if self.covered is None else self.covered
        yield from self._without_entries(low, bytes_.data_end, before=_ENDLESS)

    def _without_entries(self, low: int, high: int, *, before: int) -> Iterator[Stretch]:
        """Judge bytes that no entry points to; rows of them are below index offset `before`."""
        for _, first, end in self.bytes.portions(low, high):
            yield from self._without_entries_in_file(first, end, before)

    def _without_entries_in_file(self, low: int, high: int, before: int) -> Iterator[Stretch]:
        at = low
        while at < high:
            rows = self._unindexed(at, high, before)
            if rows is not None:
                yield rows
                at += rows.data_size
                continue
            header, reason = self.bytes.record_at(at, high)
            stop = at + record_size(header) if reason is None else self._skip(at, high)
            yield from self._without_entry(at, stop, None if reason else header, reason, before)
            at = stop

    def _unindexed(self, low: int, high: int, before: int) -> Stretch | None:
        """Collect intact records that have a place in the index, one after the other."""
        rows: list[bytes] = []
        first_row, at = self.running, low
        while at < high and len(rows) < _GROUP_ROWS:
            header, reason = self.bytes.record_at(at, high)
            place = self._place_of(header, before, at) if reason is None else None
            if place is None or (rows and place != self.running):
                break
            if not rows:
                first_row = place
            rows.append(entry_of(header, at))
            self.running = place + ENTRY_SIZE
            at += record_size(header)
        if not rows:
            return None
        text = f"{len(rows)} intact records without index entries"
        entries = entries_in(b"".join(rows))
        return Stretch(Reason.UNINDEXED, OK, first_row, entries, low, at - low, text)

    def _place_of(self, header: Any, before: int, at: int) -> int | None:
        """Return the place for an entry of this record; None if it has no place here."""
        own = header.queue_logic_offset
        if self.running >= before or (0 <= own < self.index_start):
            return None
        if self.running <= own < before and self._is_possible(own):
            return int(own)
        if self._is_earlier_one(header, at):
            return None
        # At the end of a shard it has its place by its order alone (decisions.md D7).
        return self.running if before == _ENDLESS or not self._is_possible(own) else None

    def _is_earlier_one(self, header: Any, at: int) -> bool:
        """Return True if a record repeats an earlier one, and the entry points to that one."""
        own = header.queue_logic_offset
        if not 0 <= own < self.running or own % ENTRY_SIZE:
            return False
        earlier = self.bytes.places.record_of(own)
        return earlier == self.bytes.bytes_at(at, record_size(header))

    def _skip(self, at: int, high: int) -> int:
        found = self.bytes.find_record(at + 1, high, self.index_start)
        return found[0] if found else high

    def _without_entry(
        self, low: int, high: int, header: Any, reason: str | None, before: int
    ) -> Iterator[Stretch]:
        if header is not None and 0 <= header.queue_logic_offset < self.index_start:
            return  # its entry went with the oldest index files
        verdict, text = Reason.UNREFERENCED, f"{high - low} bytes that no entry points to"
        if header is not None:
            text += f": an intact record, its entry at {header.queue_logic_offset} is another's"
        elif before == _ENDLESS:
            behind = self.bytes.find_record(high, self.bytes.data_end, self.index_start)
            verdict = Reason.TORN if behind is None else Reason.BAD_RECORD
            text = f"{high - low} bytes behind the last entry are not a record: {reason}"
        whole = header is not None
        size = high - low
        yield Stretch(verdict, "", self.running, _NO_ENTRIES, low, size, text, is_record=whole)


def _runs(values: Array) -> Iterator[tuple[int, int]]:
    """Go through the runs of equal values: (first, end)."""
    bounds = [0, *(np.flatnonzero(values[1:] != values[:-1]) + 1).tolist(), len(values)]
    return pairwise(bounds)


def _by_attributes(
    entries: Array, offset: int, data: memoryview, data_start: int
) -> Iterator[Stretch]:
    """Split sound rows at those with an impossible attribute length."""
    broken = broken_attributes(entries, data, data_start)
    for first, end in _runs(broken):
        some = entries[first:end]
        low = int(some["data_offset"][0])
        size = int(some["data_size"].sum(dtype=np.int64))
        at = offset + ENTRY_SIZE * first
        if broken[first]:
            verdict, text = Reason.BAD_ATTRIBUTES, "the attribute length is impossible"
            yield Stretch(verdict, str(verdict), at, some, low, size, text, data, data_start)
        else:
            yield Stretch(None, OK, at, some, low, size, "", data, data_start)
