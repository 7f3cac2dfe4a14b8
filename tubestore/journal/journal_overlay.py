"""What the root's journal has of a shard, for those who only read: behind what its files have.

Frames say where each record stands, so a reader puts them behind the end of the files that it
sees. It reads the journal first and the files after it: a message that the one has lost by then,
because another generation has begun, is in the other.

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
#: What damage means for those who read, beside what it is.
_HIDDEN = (
    "; what the journal has behind it of the same shards is not shown until the store has been"
    " opened for writing"
)


class JournalOverlay:
    """The journal of a store that somebody else writes, as of the last `refresh`.

    In memory as a whole, so that no new generation is written over what is shown: at most
    `journal_size_bytes` of the writer and one batch. Read when it is first asked for.
    """

    def __init__(
        self,
        vfs: Vfs,
        root: str,
        report: Callable[[CorruptRecord], None] = lambda damage: None,
    ) -> None:
        """`report` is given each damaged place of the journal, once; or it raises an error."""
        self._vfs, self._root, self._report = vfs, root, report
        self._reported: set[str] = set()
        self._lock = threading.Lock()
        self._known: LeftJournal | None = None
        self._parts: dict[str, list[JournalPart]] = {}
        #: Whether the parts have been asked for: from then on they change with `refresh` only.
        self._asked = False

    def refresh(self) -> None:
        """Read what came since; a journal that cannot be read stays as it was known."""
        with self._lock:
            if self._asked:
                self._read(self._parts)

    def look_for_damage(self) -> None:
        """Report damage now; what is shown is still read when it is first asked for."""
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
    """Return what of a shard's parts comes behind its files; nothing if it does not fit to them.

    `index_end`: where the entries end whose records are there; `last_entry`: the last of them,
    empty if there is none; `data_end`: where its record ends.
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
            break  # somebody else has written there
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
