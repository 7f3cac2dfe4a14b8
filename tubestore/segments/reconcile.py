"""The walk through data and index of a shard that makes them match.

TubeMQ does none of this: verify the data, re-index records
that lost their entries, cut entries that lost their records. Rules (decisions.md D7):

| found at the expected place                   | done                                        |
| --------------------------------------------- | ------------------------------------------- |
| entry and record agree                        | kept                                        |
| record whole, entry missing                   | entry written from the record               |
| record whole, entry contradicts it            | what proves itself counts (`evidence.py`),  |
|                                               | and it is reported                          |
| entry good, but its record lies further on    | bytes in between reported as unreferenced   |
| … and its record names another entry, while   | entry written anew                          |
| the record at this place names this one       |                                             |
| a file with the records of another place      | kept with its entries as damage             |
| record bad, an intact one follows anywhere    | kept as a row with a state, and reported    |
| zeros that our entries for lost ones point to | kept, also at the end, and reported         |
| record bad, nothing intact follows            | torn: data and index are cut here           |
| entries behind the last record                | cut                                         |

Good data is never cut. What is cut or overwritten is copied to the root's quarantine first, unless
it is provably what an unfinished write leaves: zeros, or a record without an entry that goes on
behind the end of its file. Without room for the copy nothing is changed. Every step leaves a state
from which recovery starts again.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass, field
from os.path import dirname
from typing import Any

import numpy as np

from tubestore.core import kernels
from tubestore.core.doors import logger
from tubestore.core.quarantine import Quarantine
from tubestore.errors import CorruptRecord
from tubestore.record.evidence import count_expired, is_lost, judge
from tubestore.record.layouts import (
    DATA_HEADER,
    INDEX_ENTRY,
    RECORD_SIZE_MAX,
    TOKEN_MESSAGE,
    record_size,
)
from tubestore.record.records import (
    ENTRY_SIZE,
    HEADER_SIZE,
    entries_in,
    entry_of,
    inspect,
    lost_entry,
    names_another,
    verify_entries,
)
from tubestore.record.search import RecordSearch
from tubestore.segments.cache_formats import NEVER_SYNCED
from tubestore.segments.file_store import Damage, MsgFileStore, locate
from tubestore.segments.segment import FileSegment
from tubestore.segments.segment_list import FileSegmentList

log = logger(__name__)
Array = np.ndarray[Any, Any]


@dataclass(slots=True)
class RecoverReport:
    """What recovery found and did; sizes in bytes, counts in messages."""

    verified: int = 0
    reindexed: int = 0
    data_cut: int = 0
    index_cut: int = 0
    problems: list[CorruptRecord] = field(default_factory=list)
    #: True if a power cut can have lost the verified part: it is above the checkpoint of another
    #: boot of the machine.
    never_synced: bool = False


def note_problem(report: RecoverReport, segment: FileSegment, position: int, reason: str) -> None:
    """Record something that is not as it should be."""
    report.problems.append(CorruptRecord(segment.path, position, reason))
    log.warning("%s at %d: %s", segment.path, position, reason)


def note_damage(
    files: MsgFileStore, report: RecoverReport, start: int, end: int, reason: str
) -> None:
    """Take down damage [start, end) of the data that is kept."""
    segment = files.data.find(start)
    if report.never_synced:
        reason += NEVER_SYNCED
    if segment is not None:
        files.damages = (*files.damages, Damage(start, end, reason))
        note_problem(report, segment, start - segment.start, reason)


class SetAside:
    """Takes files of a shard apart without losing what they held."""

    def __init__(self, files: MsgFileStore) -> None:
        self._quarantine = Quarantine(files.vfs, dirname(files.directory))
        self._copied: set[FileSegment] = set()

    def cut(self, segments: FileSegmentList, end: int, *, torn: bool = False) -> None:
        """Cut a stream, and keep what is cut; `torn`: the last file's tail need not be kept."""
        segment = segments.find(end)
        if segment is not None and not torn and end < segment.end:
            self.copy(segment, end)
        segments.cut(end, take_out=self._quarantine.move)

    def copy(self, segment: FileSegment, start: int) -> None:
        """Keep the bytes of a file from an offset on, once, unless they are zeros."""
        if segment in self._copied:
            return
        position = start - segment.start
        if np.count_nonzero(np.frombuffer(segment.view(segment.end), np.uint8)[position:]):
            self._quarantine.copy(segment.path, position)
            self._copied.add(segment)


def _chain_end(view: memoryview, position: int, end: int) -> int:
    """Return where the intact records end that follow each other from `position` on."""
    while position < end:
        header, reason = inspect(view, position, end)
        if reason is not None:
            break
        position += record_size(header)
    return position


def verify(
    files: MsgFileStore,
    entries: Array,
    index_from: int,
    *,
    own_offset: bool = False,
    fields: bool = True,
) -> Array:
    """Return which entries, consecutive ones from `index_from` on, agree with a record.

    `own_offset`: the record also names the entry's offset. `fields` False: those that name the
    place and the size of a whole record.
    """
    good = np.zeros(len(entries), bool)
    offsets = entries["data_offset"].astype(np.int64)
    for segment in files.data:
        rows = np.flatnonzero((offsets >= segment.start) & (offsets < segment.end))
        if len(rows):
            first, last = int(rows[0]), int(rows[-1]) + 1
            view = segment.view(segment.end)
            start = index_from + ENTRY_SIZE * first
            good[first:last] |= verify_entries(
                entries[first:last],
                start,
                view,
                segment.start,
                own_offset=own_offset,
                fields=fields,
            )
    return good


def is_trusted(files: MsgFileStore, entry: Array, offset: int) -> bool:
    """Return True if an entry agrees with its record, and that names no other entry."""
    if not verify(files, entry, offset)[0]:
        return False
    segment = files.data.find(int(entry["data_offset"][0]))
    assert segment is not None
    header = DATA_HEADER.unpack_from(segment.read(int(entry["data_offset"][0]), HEADER_SIZE))
    return not names_another(np.array(header.queue_logic_offset), np.array(offset))


class Reconciler:
    """Walks data and index together from a trusted place to both ends."""

    def __init__(
        self,
        files: MsgFileStore,
        report: RecoverReport,
        set_aside: SetAside,
        index_from: int,
        data_from: int,
        misplaced: Set[int] = frozenset(),
        record_of: Callable[[int], bytes] = lambda offset: b"",
    ) -> None:
        """`misplaced`: starts of data files with records of another place, to be passed over.

        `record_of` returns the record of an entry, to know a copy of it.
        """
        self._record_of = record_of
        self.files, self.report, self._set_aside = files, report, set_aside
        self.index_offset = index_from  # of the next message's entry, which may be missing
        self.data_offset = data_from  # of its record
        self._entries = self._read_entries(index_from)
        self._entries_from = index_from
        self._misplaced = misplaced
        self._good = self._agreeing(own_offset=True)
        #: Entries that agree with a record which names the offset of another entry.
        self._elsewhere = np.zeros(len(self._good), bool)
        if not self._good.all():
            self._find_elsewhere()
        #: Entries that name the place of a whole record, whatever else its header has.
        self._whole: Array | None = None
        self._pass_expired()
        #: Index segments that were written to in the middle, sealed ones perhaps.
        self._rewritten: set[FileSegment] = set()
        #: Entries that contradicted their records, in order: (file, position, what was wrong).
        self._replaced: list[tuple[FileSegment, int, str]] = []
        self._searches: dict[FileSegment, RecordSearch] = {}

    def _pass_expired(self) -> None:
        """Leave entries alone if their data has gone."""
        if self.data_offset == self.files.data.start:
            self.index_offset += ENTRY_SIZE * count_expired(self._entries, self.data_offset)

    def _read_entries(self, index_from: int) -> Array:
        parts = [
            entries_in(s.view(s.end)[max(0, index_from - s.start) :])
            for s in self.files.index.between(index_from, self.files.index.end)
        ]
        return np.concatenate(parts) if parts else np.empty(0, INDEX_ENTRY.dtype)

    def run(self) -> None:
        """Go to the end; afterwards both streams end at the last message that is kept."""
        end = self.files.data.end
        while self.data_offset < end:
            segment = self._segment_here()
            if segment.start in self._misplaced:
                self._pass_misplaced(segment)
                continue
            if self._take_good_entries(segment):
                continue
            if self._pass_hidden(segment) or self._take_record(segment):
                continue
            if self._step_over_damage(segment):
                continue
            if not self._keep_placeholders(segment):
                self._cut_data(self.data_offset)
                break
        self._cut_index()
        for rewritten in self._rewritten:
            rewritten.file.sync()  # a sealed segment is not synced again
        self._report_replaced()

    # -- the rows of the table ---------------------------------------------------------------

    def _row(self) -> int:
        """The number of the entry at the expected place, counted from the walk's beginning."""
        return (self.index_offset - self._entries_from) // ENTRY_SIZE

    def _segment_here(self) -> FileSegment:
        """Return the data segment of the next record."""
        return self.files.data.between(self.data_offset, self.data_offset + 1)[0]

    def _pass_misplaced(self, segment: FileSegment) -> None:
        """Keep the entries of a file that holds the records of another place."""
        offsets = self._entries["data_offset"][self._row() :].astype(np.int64)
        rows = np.flatnonzero((offsets >= segment.start) & (offsets < segment.end))
        if len(rows):
            self.index_offset += ENTRY_SIZE * (int(rows[-1]) + 1)
        self.data_offset = segment.end

    def _agreeing(self, *, own_offset: bool = False, fields: bool = True) -> Array:
        """Return which entries agree with their records."""
        return verify(
            self.files, self._entries, self._entries_from, own_offset=own_offset, fields=fields
        )

    def _find_elsewhere(self) -> None:
        """Find the entries that agree with their records in all but the offset."""
        loose = self._agreeing()
        rows = np.flatnonzero(loose & ~self._good)
        own = np.full(len(rows), -1, np.int64)
        offsets = self._entries["data_offset"][rows].astype(np.int64)
        for segment, some in locate(offsets, list(self.files.data)):
            places = offsets[some] - segment.start + DATA_HEADER.position("queue_logic_offset")
            data = kernels.bytes_of(segment.view(segment.end))
            own[some] = kernels.gather(data, places, np.dtype(">i8")).astype(np.int64)
        self._elsewhere[rows] = names_another(own, self._entries_from + ENTRY_SIZE * rows)
        self._good |= loose

    def _names_this_entry(self, segment: FileSegment) -> bool:
        """Return True if an intact record at this place names the expected entry."""
        position = self.data_offset - segment.start
        header, reason = inspect(segment.view(segment.end), position, segment.size)
        return reason is None and header.queue_logic_offset == self.index_offset

    def _take_good_entries(self, segment: FileSegment) -> bool:
        """Accept the run of entries that agree with their records; report unreferenced bytes.

        An entry of another entry's record does not count if the record of this place names this
        entry: the index file was copied over, or bytes came in between.
        """
        row = self._row()
        if row >= len(self._entries) or not self._good[row]:
            return False
        if self._elsewhere[row] and self._names_this_entry(segment):
            self._good[row] = False
            return False
        starts = self._entries["data_offset"][row:].astype(np.int64)
        if starts[0] < self.data_offset:
            self._good[row] = False  # points back into what was taken already
            return False
        if starts[0] > self.data_offset:
            text = f"{int(starts[0]) - self.data_offset} bytes that no index entry points to"
            note_damage(self.files, self.report, self.data_offset, int(starts[0]), text)
        ends = starts + self._entries["data_size"][row:]
        chained = self._good[row:].copy()
        chained[1:] &= starts[1:] == ends[:-1]
        chained[1:] &= self._elsewhere[row + 1 :] == self._elsewhere[row]
        stop = int(np.argmin(chained)) if not chained.all() else len(chained)
        self.report.verified += stop
        self.index_offset += ENTRY_SIZE * stop
        self.data_offset = int(ends[stop - 1])
        return True

    def _pass_hidden(self, segment: FileSegment) -> bool:
        """Leave an intact record alone if its entry was in an index file before the first one."""
        if self.index_offset > self.files.index.start:
            return False
        position = self.data_offset - segment.start
        header, reason = inspect(segment.view(segment.end), position, segment.size)
        own = -1 if reason is not None else int(header.queue_logic_offset)
        if own % ENTRY_SIZE or not 0 <= own < self.files.index.start:
            return False
        self.data_offset += header.length + 4
        return True

    def _take_record(self, segment: FileSegment) -> bool:
        """Accept an intact record that belongs here, and write the entry that it lacks."""
        position = self.data_offset - segment.start
        header, reason = inspect(segment.view(segment.end), position, segment.size)
        if reason is not None:
            return False
        if self._pass_copy(segment, header):
            return True
        self._settle_entry(segment, header)
        self.data_offset += record_size(header)
        return True

    def _pass_copy(self, segment: FileSegment, header: Any) -> bool:
        """Leave a record alone that is an earlier one once more: a file was copied over.

        Where TubeMQ gives an offset a second time, it gives it to another message.
        """
        own, size = int(header.queue_logic_offset), record_size(header)
        if own >= self.index_offset or not names_another(np.array(own), np.array(-1)):
            return False
        if self._record_of(own) != bytes(segment.read(self.data_offset, size)):
            return False
        text = f"a copy of the record of index offset {own}; {size} bytes are kept as they are"
        note_damage(self.files, self.report, self.data_offset, self.data_offset + size, text)
        row = self._row()
        if row < len(self._entries) and self._entries[row]["data_offset"] == self.data_offset:
            self.index_offset += ENTRY_SIZE  # of the message that was here
        self.data_offset += size
        return True

    def _settle_entry(self, segment: FileSegment, header: Any) -> None:
        """Give a whole record the entry that it should have.

        Its own index offset alone refutes nothing: TubeMQ 1.2.0 without caches writes -1 there,
        and after a crash it gives the same offset twice.
        """
        asked, held = entry_of(header, self.data_offset), self._index_segment()
        if held is None:
            self._write_entry(asked)
            self.report.reindexed += 1
            return
        old = bytes(held.read(self.index_offset, ENTRY_SIZE))
        entry, position = INDEX_ENTRY.unpack_from(old), self.index_offset - held.start
        if entry.data_offset == -1 or is_lost(old, asked, position):
            self._write_entry(asked)
            self.report.reindexed += 1
            return
        start = self.data_offset - segment.start + HEADER_SIZE
        payload = segment.view(segment.end)[start : start + record_size(header) - HEADER_SIZE]
        judged = judge(
            entry,
            header,
            bytes(payload),
            store_id=self.files.store_id,
            index_offset=self.index_offset,
            data_offset=self.data_offset,
        )
        if judged.header_is_damaged:
            end = self.data_offset + record_size(header)
            text = f"the entry at {self.index_offset} counts, not the header: {judged.text}"
            note_damage(self.files, self.report, self.data_offset, end, text)
        if judged.entry == old:
            self.index_offset += ENTRY_SIZE
            return
        self._set_aside.copy(held, self.index_offset)
        self._replaced.append((held, position, judged.text))
        self._write_entry(judged.entry)
        self.report.reindexed += 1

    def _report_replaced(self) -> None:
        """Report entries that were replaced; those next to each other are one problem."""
        runs: list[list[tuple[FileSegment, int, str]]] = []
        for one in self._replaced:
            if runs and runs[-1][-1][:2] == (one[0], one[1] - ENTRY_SIZE):
                runs[-1].append(one)
            else:
                runs.append([one])
        for run in runs:
            segment, position, text = run[0]
            more = f" ({len(run)} entries in a row)" if len(run) > 1 else ""
            text = f"an entry that its record refutes was written anew{more}: {text}"
            note_problem(self.report, segment, position, text)

    def _step_over_damage(self, segment: FileSegment) -> bool:
        """Go on at the next intact message, if there is one; False when the tail is torn."""
        found = self._next_intact(segment)
        if found is None:
            return False
        data_offset, index_offset = found
        position = self.data_offset - segment.start
        _, reason = inspect(segment.view(segment.end), position, segment.size)
        size = data_offset - self.data_offset
        text = reason or "a record that does not belong here"
        text = f"{text}; {size} bytes are kept as they are"
        note_damage(self.files, self.report, self.data_offset, data_offset, text)
        while self.index_offset < index_offset:
            self._keep_or_write_placeholder(size)
        self.data_offset = data_offset
        return True

    def _keep_placeholders(self, segment: FileSegment) -> bool:
        """Keep entries of lost messages at the end: their offsets were given out.

        They point to zeros here (`redo.py`). Behind a torn record there are none. The entry of an
        unsynced message that a power cut tore differs from them in its time (`LOST_TIME`).
        """
        row, position = self._row(), self.data_offset - segment.start
        if row >= len(self._entries):
            return False
        size = int(self._entries[row]["data_size"])
        # Compared as values: numpy has joined the entries in the machine's byte order.
        wanted = tuple(INDEX_ENTRY.unpack_from(self._placeholder(size)))
        behind = (n for n in range(row, len(self._entries)) if self._entries[n].item() != wanted)
        count = next(behind, len(self._entries)) - row
        start = bytes(segment.read(self.data_offset, DATA_HEADER.size))
        if not count or size <= 0 or position + size > segment.size or any(start):
            return False
        text = f"{count} messages were lost with a damaged journal; {size} bytes keep their place"
        note_damage(self.files, self.report, self.data_offset, self.data_offset + size, text)
        self.index_offset += ENTRY_SIZE * count
        self.data_offset += size
        return True

    def _placeholder(self, size: int) -> bytes:
        """Return the entry of a damaged message at this place."""
        return lost_entry(self.files.store_id, self.data_offset, size)

    def _next_intact(self, segment: FileSegment) -> tuple[int, int] | None:
        """Return (data offset, index offset) of the next intact message after this place."""
        row = self._row()
        offsets = self._entries["data_offset"][row:].astype(np.int64)
        if self._whole is None:
            self._whole = self._agreeing(fields=False)
        later = np.flatnonzero(self._whole[row:] & (offsets > self.data_offset))
        by_entry = None
        if len(later):
            at = int(later[0])
            by_entry = int(offsets[at]), self.index_offset + ENTRY_SIZE * at
        torn = self._is_torn(segment)
        for candidate in self.files.data.between(self.data_offset, self.files.data.end):
            if candidate.start in self._misplaced:
                continue
            first = max(0, self.data_offset + 1 - candidate.start)
            stop = candidate.size
            if by_entry is not None:
                stop = min(stop, max(first, by_entry[0] - candidate.start))
            view = candidate.view(candidate.end)
            search = self._search_of(candidate)
            while (position := search.find(first, stop, 0)) is not None:
                offset = int(DATA_HEADER.unpack_from(view, position).queue_logic_offset)
                fits = self._can_follow(candidate.start + position, offset, by_entry)
                if fits and (by_entry is not None or not torn):
                    return candidate.start + position, offset
                first = position + 1
                if by_entry is None and (fits or offset < self.index_offset):
                    # Part of a torn body, or a record with an offset that TubeMQ gave twice after a
                    # crash: only behind the latter do intact records continue to the end.
                    first = _chain_end(view, position, candidate.size)
                    if first == candidate.size:
                        following = offset if fits else self.index_offset + ENTRY_SIZE
                        return candidate.start + position, following
        return by_entry

    def _search_of(self, segment: FileSegment) -> RecordSearch:
        """Return what finds intact records in a segment, by their positions in it."""
        search = self._searches.get(segment)
        if search is None:
            view = segment.view(segment.end)

            def read(position: int, size: int) -> memoryview:
                return view[position : position + size]

            search = self._searches[segment] = RecordSearch(read, 0, segment.size)
        return search

    def _is_torn(self, segment: FileSegment) -> bool:
        """True if the record at this place, by its length, goes on behind the end of its file."""
        position = self.data_offset - segment.start
        header, _ = inspect(segment.view(segment.end), position, segment.size)
        return bool(
            header is not None
            and header.token == TOKEN_MESSAGE
            and header.queue_logic_offset == self.index_offset
            and segment.size - position < record_size(header) <= RECORD_SIZE_MAX
        )

    def _can_follow(
        self, data_offset: int, index_offset: int, by_entry: tuple[int, int] | None
    ) -> bool:
        """True if an intact record behind damage has an offset that can be right.

        The bytes in between hold so many messages and no more. A record that is part of a
        damaged body (a dump of some store) has an offset of its own.
        """
        held = (data_offset - self.data_offset) // (DATA_HEADER.size + 1)
        last = self.index_offset + ENTRY_SIZE * held
        if by_entry is not None:
            last = min(last, by_entry[1] - ENTRY_SIZE)
        # -1 is what TubeMQ 1.2.0 writes without caches.
        return index_offset == -1 or self.index_offset <= index_offset <= last

    def _keep_or_write_placeholder(self, size: int) -> None:
        """Give a damaged message an entry, so that those behind it keep their offsets."""
        row = self._row()
        if row < len(self._entries):
            self.index_offset += ENTRY_SIZE
            return
        self._write_entry(self._placeholder(size))

    def _index_segment(self) -> FileSegment | None:
        """Return the index segment that has an entry at the expected place, if one has."""
        found = self.files.index.between(self.index_offset, self.index_offset + 1)
        return found[0] if found else None

    # -- changes to the files ----------------------------------------------------------------

    def _write_entry(self, entry: bytes) -> None:
        """Write the entry at the expected place: over a wrong one, or at the end."""
        index = self.files.index
        if not len(index):
            self.files.create_directories()
            index.create(self.index_offset)
        segment = self._index_segment()
        if segment is not None:
            segment.overwrite(entry, self.index_offset)
            self._rewritten.add(segment)
        else:
            index.last.append(entry)
            index.roll_if_full()
        self.index_offset += ENTRY_SIZE

    def _cut_data(self, data_offset: int) -> None:
        end = self.files.data.end
        self.report.data_cut = end - data_offset
        log.warning("%s: torn tail of %d bytes cut", self.files.directory, end - data_offset)
        self._set_aside.cut(self.files.data, data_offset, torn=self._is_unfinished(data_offset))

    def _is_unfinished(self, data_offset: int) -> bool:
        """True if the data end in a part of a record that no entry was written for.

        Data are written before their entries. With an entry it was whole once, or its length is
        what is damaged.
        """
        last, held = self.files.data.last, self._index_segment()
        if data_offset < last.start:
            return False
        if held is not None and any(bytes(held.read(self.index_offset, ENTRY_SIZE))):
            return False
        return last.end - data_offset < HEADER_SIZE or self._is_torn(last)

    def _cut_index(self) -> None:
        index = self.files.index
        if len(index) and index.end > self.index_offset:
            self.report.index_cut += index.end - self.index_offset
            self._set_aside.cut(index, self.index_offset)
