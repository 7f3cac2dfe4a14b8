"""One shard for a process that only reads, beside a writer or without one."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from functools import partial

from tubestore.core.vfs import Vfs
from tubestore.errors import StoreClosed, again
from tubestore.journal.journal_overlay import JournalOverlay, behind
from tubestore.journal.root_journal import JournalPart
from tubestore.options import StoreOptions
from tubestore.reading.view import ShardView
from tubestore.record.layouts import INDEX_ENTRY
from tubestore.record.names import store_key
from tubestore.record.records import ENTRY_SIZE, entries_in, whole_entries
from tubestore.segments.checkpoint import read_checkpoint
from tubestore.segments.file_store import Damage, FileSnapshot, MsgFileStore, OutsideRecord
from tubestore.segments.lost_files import damaged_places, missing_files
from tubestore.shard.unrecovered import Unrecovered
from tubestore.staging.commit_records import Horizon

#: How many of the last entries `_whole_end` examines.
_TAIL_ENTRIES = 8192


class ShardReader:
    """A consistent prefix of a shard, as of the last `refresh`; changes no byte."""

    def __init__(
        self,
        vfs: Vfs,
        directory: str,
        topic: str,
        store_id: int,
        options: StoreOptions,
        horizon: Horizon | None = None,
        journal: JournalOverlay | None = None,
        outside: OutsideRecord | None = None,
        lock: str | None = None,
    ) -> None:
        """Show the shard as it is now; `lock` as in `Unrecovered`."""
        self.topic, self.store_id, self.directory = topic, store_id, directory
        self.files = MsgFileStore(vfs, directory, store_id, options, outside)
        self._refusal: StoreClosed | None = None
        self._journal = journal
        #: The ends of the files that the view shows.
        self._ends: FileSnapshot | None = None
        self._parts: Sequence[JournalPart] = ()
        self._unrecovered = Unrecovered(self.files, lock)
        self.refresh(horizon)
        # The damage that the writer found when it opened; of others a reader looks only for files
        # that are at another one's place.
        checkpoint = read_checkpoint(self.files)
        damages = checkpoint.damages if checkpoint is not None else []
        with contextlib.suppress(OSError):  # retention is at work
            damages = [*damages, *damaged_places(self.files, checkpoint)]
        self.files.damages = tuple(Damage(*damage) for damage in damages)
        #: Files that are missing, by what is recorded, and what a power cut has left: its messages
        #: are not shown.
        self.problems = missing_files(self.files)
        if self._unrecovered.problem is not None:
            self.problems.append(self._unrecovered.problem)

    def refresh(self, horizon: Horizon | None = None) -> None:
        """Show what has been written since; views that were taken before stay valid.

        It shows the messages in the files, and behind them those in the root's journal. Of jobs
        that were published it shows those up to `horizon`; all without one. What a power cut has
        left ends where index and data disagree (`unrecovered.py`).
        """
        limits = None
        if horizon is not None:
            limits = partial(horizon.limits, self.topic, self.store_id)
        # Before the files: a message that moves to them meanwhile is then seen in both places.
        key = store_key(self.topic, self.store_id)
        parts = self._journal.of(key) if self._journal is not None else ()
        self.files.load(writable=False, limits=limits)
        self.files.forget_stale_lists()
        ends = self.files.snapshot()
        end, last = self._whole_end()
        self._unrecovered.compare(parts[0].index_start if parts else None)
        place = self._unrecovered.place
        if place is not None and place < end:
            end, last = place, self._entry_before(place)
        ends = ends._replace(index_start=min(ends.index_start, end), index_end=end)
        if ends == self._ends and parts is self._parts:
            return  # the view keeps what it has looked up
        self._ends, self._parts = ends, parts
        memory = behind(parts, end, self._data_end(last), last) if parts else ()
        if parts and self._journal is not None:
            self._parts = self._journal.forget(key, parts, end)
        self._view = ShardView(self.topic, self.store_id, self.files, ends, memory)

    def _entry_before(self, place: int) -> bytes:
        segment = self.files.index.find(place - 1) if place > self.files.index.start else None
        if segment is None:
            return b""
        return segment.file.pread(ENTRY_SIZE, place - ENTRY_SIZE - segment.start)

    def _data_end(self, last_entry: bytes) -> int:
        """Return where the record of the last entry ends, else where the data begins."""
        if last_entry:
            entry = INDEX_ENTRY.unpack_from(last_entry)
            return int(entry.data_offset + entry.data_size)
        return self.files.data.last.start if len(self.files.data) else 0

    def _whole_end(self) -> tuple[int, bytes]:
        """Return where the entries that have their data end, and the last such entry.

        An entry does not count while its record is still being written.
        """
        # A file that was rolled just now is empty, and the entry in flight is in the one before.
        filled = [segment for segment in self.files.index if segment.size >= ENTRY_SIZE]
        if not filled:
            return self.files.index.start, b""
        last = filled[-1]
        count = min(_TAIL_ENTRIES, last.size // ENTRY_SIZE)
        whole = last.start + last.size // ENTRY_SIZE * ENTRY_SIZE
        entries = entries_in(last.read(whole - count * ENTRY_SIZE, count * ENTRY_SIZE))
        there = whole_entries(entries, self.files.data.end)
        last_entry = entries[there - 1].tobytes() if there else b""
        return whole - ENTRY_SIZE * (count - there), last_entry

    def view(self) -> ShardView:
        """Return the shard as of the last `refresh`."""
        if self._refusal is not None:
            raise again(self._refusal)
        return self._view

    def shows(self, parts: Sequence[JournalPart]) -> bool:
        """Return whether it shows these parts of the journal, as the journal gives them."""
        return parts is self._parts

    def abandon(self, reason: StoreClosed) -> None:
        """Refuse everything from now on: in a forked child."""
        self._refusal = reason

    def discard(self, reason: StoreClosed) -> None:
        """Refuse everything from now on: the topic was deleted."""
        self._refusal = reason
        self.files.close()

    def close(self) -> None:
        """Give the descriptors back; views that were taken before stay valid."""
        if self._refusal is None:
            name = f"{self.topic}-{self.store_id}"
            self._refusal = StoreClosed(f"{name}: the store was closed; open it again")
        self.files.close()
