"""The journal's messages of a shard for a reader: they follow what the shard's files contain.

A frame contains the place of each record, so a reader appends its records to the end of the files
that it sees. It reads the journal first and the files after it. A message that has left the
journal by then, because another generation has begun, is in the files.

Guards: `_lock` guards what was read; parts never change.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

import numpy as np

from tubestore.core.doors import logger
from tubestore.core.state_file import BadState
from tubestore.core.vfs import Vfs
from tubestore.errors import CorruptRecord, TubeStoreError
from tubestore.journal.lacking import stray_ring
from tubestore.journal.ring_reading import LeftRing, read_on, read_ring
from tubestore.journal.root_journal import JournalPart, LeftJournal, joined_parts, read_journal
from tubestore.journal.topic_names import TopicNames
from tubestore.record.records import ENTRY_SIZE, EncodedBatch, Placed

log = logger(__name__)
Array = np.ndarray[Any, Any]
#: Parts of the ring up to this size are merged.
_MERGED_BYTES_MAX = 1 << 20
#: A reader of so many shards reads their messages in the ring alone; one of more, all messages.
_CHOSEN_MAX = 4
#: Of a shard without parts: always the same object, as readers look whether it has changed.
_NONE: Sequence[JournalPart] = ()
#: What damage in the journal means for a reader; appended to the reason.
_HIDDEN = (
    "; what the journal has behind it of the same shards is not shown until the store has been"
    " opened for writing"
)


class JournalOverlay:
    """The journal of a store that another process writes, as of the last `refresh`.

    It is read when a part is first asked for, and is kept in memory: then nothing can be written
    over what is shown. That takes at most what the writer's journals hold, and less as readers of
    shards `forget` what they have found in the files.
    """

    def __init__(
        self,
        vfs: Vfs,
        root: str,
        report: Callable[[TubeStoreError], None] = lambda problem: None,
    ) -> None:
        """Keep `report`: it gets each damage of the journal once, and may raise an error."""
        self._vfs, self._root, self._report = vfs, root, report
        self._reported: set[str] = set()
        self._lock = threading.Lock()
        self._known: LeftJournal | None = None
        self._ring: LeftRing | None = None
        self._names = TopicNames(vfs, root)
        #: The shards that were asked for: of the ring only these are kept. None once they are many.
        self._chosen: frozenset[str] | None = frozenset()
        #: True once it is known whether a ring that is not announced has messages.
        self._looked_for_stray = False
        self._parts: dict[str, list[JournalPart]] = {}
        #: True once the parts have been asked for: from then on they change with `refresh` only.
        self._asked = False

    def refresh(self) -> None:
        """Read what came since; keep the state of before if the journal cannot be read."""
        with self._lock:
            if self._asked:
                self._read(self._parts)

    def look_for_damage(self) -> None:
        """Report damage now; the parts are still read when they are first asked for."""
        with self._lock:
            self._read(self._parts)

    def of(self, shard: str) -> Sequence[JournalPart]:
        """Return the parts of a shard, in the order of their offsets; ask before its files."""
        with self._lock:
            self._choose(shard)
            if not self._asked:
                self._asked = self._read(self._parts)
            return self._parts.get(shard, _NONE)

    def _choose(self, shard: str) -> None:
        """Have the ring's messages of one more shard, or of all shards, read with the others."""
        if self._chosen is None or shard in self._chosen:
            return
        few = shard and len(self._chosen) < _CHOSEN_MAX
        self._chosen = self._chosen | {shard} if few else None
        if self._ring is not None:  # without a ring there is none of it to read again
            self._ring, self._asked = None, False

    def forget(
        self, shard: str, parts: Sequence[JournalPart], index_end: int
    ) -> Sequence[JournalPart]:
        """Drop parts that lie in a shard's files as far as `index_end`; returns the rest.

        `parts`: what `of` returned; if more has come since, nothing is dropped.
        """
        with self._lock:
            if self._parts.get(shard) is parts:
                rest = [part for part in parts if _end_of(part) > index_end]
                if not rest:
                    self._parts.pop(shard, None)
                    return _NONE
                if len(rest) < len(parts):
                    self._parts[shard] = rest
                    return rest
        return parts

    def has_ring(self) -> bool:
        """Return False if there was no ring when the journal was read last."""
        with self._lock:
            return self._ring is not None or not self._asked

    def shards(self) -> list[str]:
        """Return the names of the shards that the journal has messages of; ask before the files."""
        self.of("")
        with self._lock:
            return list(self._parts)

    def __contains__(self, shard: str) -> bool:
        return bool(self.of(shard))

    def _read(self, parts: dict[str, list[JournalPart]]) -> bool:
        """Take over what both journals have now; `parts` gets new lists where that changes.

        False if they cannot be read now, which is reported: what was known is shown until then.
        """
        known, ring = self._known, self._ring
        try:
            found = read_journal(self._vfs, self._root, known)
            since = ring.end if ring is not None and not ring.damages else 0
            fresh = self._read_on(ring) or self._read_ring(since)
            ring_anew = fresh is None or ring is None or not _goes_on(ring, fresh)
            if fresh is not None and since and ring_anew:
                fresh = self._read_ring(0)
            stray = None if self._looked_for_stray else stray_ring(self._vfs, self._root)
        except (OSError, BadState) as error:
            self._report_once(
                TubeStoreError(
                    f"{self._root}: the journal cannot be read: {error}; messages that are only"
                    " there are not shown until it can be"
                )
            )
            return False
        self._looked_for_stray = True
        for left in (found, fresh, stray):
            self._report_damage(left.damages if left is not None else ())
        anew = found is None or known is None or found.generation != known.generation
        anew = anew or (known is not None and bool(known.damages))  # all of it was read again
        tail = fresh.tail if fresh is not None else 0
        if anew or ring_anew or (ring is not None and tail > ring.tail):
            for shard, kept in list(parts.items()):
                stays = [p for p in kept if not _has_gone(p, anew, ring_anew, tail)]
                if not stays:
                    del parts[shard]
                elif len(stays) < len(kept):
                    parts[shard] = stays
        # Without the parts: they are kept by shard.
        self._known = found._replace(parts=[]) if found is not None else None
        self._ring = fresh._replace(parts=[]) if fresh is not None else None
        added: dict[str, list[JournalPart]] = {}
        for left in (found, fresh):
            for part in left.parts if left is not None else ():
                if not part.lost:  # a gap, and what is behind it waits until a writer has filled it
                    added.setdefault(part.shard, []).append(part)
        for shard, more in added.items():  # new lists: others go through those they were given
            known_parts = parts.get(shard, ())
            parts[shard] = _merged(sorted([*known_parts, *more], key=attrgetter("index_start")))
        return True

    def _read_on(self, ring: LeftRing | None) -> LeftRing | None:
        if ring is None:
            return None
        return read_on(self._vfs, self._root, ring, self._names, self._chosen)

    def _read_ring(self, since: int) -> LeftRing | None:
        return read_ring(self._vfs, self._root, since, names=self._names, chosen=self._chosen)

    def _report_damage(self, damages: Sequence[CorruptRecord]) -> None:
        for damage in damages:
            self._report_once(CorruptRecord(damage.path, damage.position, damage.reason + _HIDDEN))

    def _report_once(self, problem: TubeStoreError) -> None:
        if str(problem) not in self._reported:
            log.error("%s", problem)
            self._report(problem)
            self._reported.add(str(problem))


def _goes_on(ring: LeftRing, fresh: LeftRing) -> bool:
    """True if what was read of a ring is still shown.

    That of a topic that was deleted is not: a topic made again has the same name.
    """
    if ring.damages or ring.generation != fresh.generation:
        return False
    return ring.topics is fresh.topics or ring.topics.items() <= fresh.topics.items()


def _end_of(part: JournalPart) -> int:
    return part.index_start + ENTRY_SIZE * len(part.entries)


def _has_gone(part: JournalPart, anew: bool, ring_anew: bool, tail: int) -> bool:
    """True if a part is no longer shown: it was read again, or the files have it."""
    if part.ring_end:
        return ring_anew or part.ring_end <= tail
    return anew


def _merged(parts: list[JournalPart]) -> list[JournalPart]:
    """Return the parts of a shard with the last ones of the ring merged where they are small.

    A reader that looks after each message would else have a part for each.
    """
    first = len(parts) - 1
    size = len(parts[first].data)
    while first and size < _MERGED_BYTES_MAX and len(parts[first - 1].data) < 2 * size:
        before, after = parts[first - 1], parts[first]
        end = _end_of(before)
        data_end = before.data_start + len(before.data)
        if not before.ring_end or not after.ring_end:
            break
        if (end, data_end) != (after.index_start, after.data_start) or after.damaged_before:
            break
        first -= 1
        size += len(before.data)
    if first >= len(parts) - 1:
        return parts
    return [*parts[:first], joined_parts(parts[first:])]


def behind(
    parts: Sequence[JournalPart], index_end: int, data_end: int, last_entry: bytes
) -> tuple[Placed, ...]:
    """Return the parts of a shard that follow its files; empty if they do not fit.

    - `index_end`: the end of the entries that have their records in the files
    - `last_entry`: the last of these entries, empty if there is none
    - `data_end`: the end of that entry's record
    """
    fitting: list[Placed] = []
    first_beyond = bisect_right(parts, index_end, key=lambda part: part.index_start)
    for part in parts[max(0, first_beyond - 1) :]:
        have = (index_end - part.index_start) // ENTRY_SIZE
        if have >= len(part.entries):
            continue
        have = max(have, 0)
        if have and part.entries[have - 1].tobytes() != last_entry:
            break  # another process has written there
        first = int(part.entries["data_offset"][have])
        if (part.index_start + ENTRY_SIZE * have, first) != (index_end, data_end):
            break
        data = np.frombuffer(part.data, np.uint8)[first - part.data_start :]
        batch = EncodedBatch(data, part.entries[have:], np.empty(0, np.int64))
        fitting.append(Placed(index_end, data_end, batch))
        index_end += ENTRY_SIZE * (len(part.entries) - have)
        data_end += len(data)
        last_entry = part.entries[-1].tobytes()
    return tuple(fitting)
