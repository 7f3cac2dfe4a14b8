"""The journal's messages of a shard for a reader: they follow what the shard's files contain.

A frame contains the place of each record, so a reader appends its records to the end of the files
that it sees. It reads the journal first and the files after it. A message that has left the
journal by then, because another generation has begun, is in the files.

Guards: `_lock` guards what was read; parts never change.
"""

from __future__ import annotations

import logging
import threading
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tubestore.core.vfs import Vfs
from tubestore.errors import CorruptRecord
from tubestore.journal.root_journal import JournalPart, LeftJournal, read_journal
from tubestore.record.layouts import INDEX_ENTRY
from tubestore.record.records import ENTRY_SIZE, EncodedBatch, Placed

log = logging.getLogger(__name__)
Array = np.ndarray[Any, Any]
#: What damage in the journal means for a reader; appended to the reason.
_HIDDEN = (
    "; what the journal has behind it of the same shards is not shown until the store has been"
    " opened for writing"
)


class JournalOverlay:
    """The journal of a store that another process writes, as of the last `refresh`.

    It is read when a part is first asked for, and is kept in memory as a whole: then no new
    generation can be written over what is shown. That takes at most `journal_size_bytes` of the
    writer and one batch.
    """

    def __init__(
        self,
        vfs: Vfs,
        root: str,
        report: Callable[[CorruptRecord], None] = lambda damage: None,
    ) -> None:
        """Keep `report`: it gets each damaged place of the journal once, and may raise an error."""
        self._vfs, self._root, self._report = vfs, root, report
        self._reported: set[str] = set()
        self._lock = threading.Lock()
        self._known: LeftJournal | None = None
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
            if not self._asked:
                self._read(self._parts)
                self._asked = True
            return self._parts.get(shard, ())

    def shards(self) -> list[str]:
        """Return the names of the shards that the journal has messages of; ask before the files."""
        self.of("")
        with self._lock:
            return list(self._parts)

    def __contains__(self, shard: str) -> bool:
        return bool(self.of(shard))

    def _read(self, parts: dict[str, list[JournalPart]]) -> None:
        try:
            found = read_journal(self._vfs, self._root, self._known)
        except OSError as error:
            log.warning("the journal of %s: %s", self._root, error)
            return
        for damage in found.damages if found is not None else ():
            if str(damage) not in self._reported:
                log.error("%s", damage)
                self._report(CorruptRecord(damage.path, damage.position, damage.reason + _HIDDEN))
                self._reported.add(str(damage))
        known = self._known
        anew = found is None or known is None or found.generation != known.generation
        if anew or (known is not None and known.damages):  # then all of it was read again
            parts.clear()
        # Without the parts: they are kept by shard.
        self._known = found._replace(parts=[]) if found is not None else None
        added: dict[str, list[JournalPart]] = {}
        for part in found.parts if found is not None else ():
            if not part.lost:  # a gap, and what is behind it waits until a writer has filled it
                added.setdefault(part.shard, []).append(part)
        for shard, more in added.items():  # new lists: others go through those they were given
            parts[shard] = [*parts.get(shard, ()), *more]


def behind(
    parts: Sequence[JournalPart], index_end: int, data_end: int, last_entry: bytes
) -> tuple[Placed, ...]:
    """Return the parts of a shard that follow its files; empty if they do not fit.

    - `index_end`: the end of the entries that have their records in the files
    - `last_entry`: the last of these entries, empty if there is none
    - `data_end`: the end of that entry's record
    """
    fitting: list[tuple[Array, Array]] = []
    place = index_end, data_end
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
        fitting.append((part.entries[have:], data))
        index_end += ENTRY_SIZE * (len(part.entries) - have)
        data_end += len(data)
        last_entry = part.entries[-1].tobytes()
    if not fitting:
        return ()
    # As bytes: numpy joins structured arrays in the machine's byte order.
    entries = np.concatenate([e.view(np.uint8) for e, _ in fitting]).view(INDEX_ENTRY.dtype)
    data = np.concatenate([d for _, d in fitting])
    return (Placed(*place, EncodedBatch(data, entries, np.empty(0, np.int64))),)
