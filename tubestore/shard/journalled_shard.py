"""A shard's part of the root's journal: messages that the journal holds and the files do not.

Everything from `_journal_from` to the end of the buffers, as far as it came from the journal (data
offsets: up to `_journal_to`), stands in frames of one generation; what is below `_journal_from` is
in the files. While the shard's end is lent (`pending_batches.py`) its last messages are not in its
buffers: nothing may be put behind them, written or shown before `_take_back`.

Guards: `_append_lock` guards the fields here, the journal's lock `number`.
"""

from __future__ import annotations

from typing import Any

from tubestore.errors import StoreClosed
from tubestore.journal.pending_batches import Parts, PendingBatches
from tubestore.shard.adoption import AdoptingShard


class JournalledShard(AdoptingShard):
    """A shard that takes messages which somebody else makes survive."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._journal_from = self._journal_to = -1
        self._journal_generation: int | None = None
        #: A generation that holds something of this shard that is not in its files.
        self._barred_generation: int | None = None
        #: What the shard is among the pending batches; -1 if it has no part in this generation.
        self.number = -1
        self._pending: PendingBatches | None = None

    def lend(self, pending: PendingBatches, generation: int) -> bool:
        """Let batches be placed behind the shard's end, unless something speaks against it.

        That is trouble, or buffers that are full; also messages that are in no file and no
        journal: what a level promises of a message it promises of all before it.
        """
        with self._append_lock:
            if self._lent:
                return True
            if generation == self._barred_generation or self._refusal is not None or self._held:
                return False
            main, options = self._main, self._options
            if (
                main.size_bytes >= options.mem_store_size_bytes
                or main.count >= options.mem_store_messages
            ):
                return False
            data_end, in_files = main.data_end, self._visible.data_end
            continues = self._journal_to == data_end and self._journal_generation == generation
            if in_files != data_end and not (continues and self._journal_from <= in_files):
                return False
            if main.count == 0:
                main.first_time = self._clock.monotonic()
            if not continues:
                self._journal_from, self._journal_generation = data_end, generation
            self._journal_to = data_end
            self._close_room()
            self.number = pending.lend(self.number, main.index_end, data_end)
            self._pending, self._lent = pending, True
            return True

    def _take_back(self, parts: Parts | None = None) -> None:
        """Have the end of the shard in its buffers again; under the append lock."""
        if not self._lent:
            return
        assert self._pending is not None
        parts = self._pending.take_back(self.number, parts)
        self._lent = False
        self._granted += len(parts.records)
        if parts.messages:
            self._main.add_block(*parts)
        self._journal_to = self._main.data_end

    def deliver(self, parts: Parts) -> None:
        """Take parts that were gathered while the shard's end was lent, and write everything."""
        with self._append_lock:
            self._take_back(parts)
        self.flush()

    def wake(self) -> None:
        """Let those look again that wait for messages."""
        with self._append_lock:
            self._room.notify_all()

    @property
    def dirty_bytes(self) -> int:
        """Bytes that are in no file: in the buffers, and in batches that are pending."""
        in_buffers = super().dirty_bytes
        if not self._lent or self._pending is None:
            return in_buffers
        # Without a lock: if the end was taken back meanwhile, the buffers are as they were.
        return in_buffers + max(0, self._pending.data_end(self.number) - self._main.data_end)

    def bar_generation(self, generation: int) -> None:
        """Take no part in a generation: its frames of this shard do not follow each other."""
        self._barred_generation = generation

    def leave_journal(self) -> None:
        """Take note that the last messages stand in no frame: it was not written.

        What earlier frames hold stays theirs until it is in the files (`has_unwritten`).
        """
        with self._append_lock:
            self._take_back()
            self._journal_to = -1

    def sync_before_journal(self) -> None:
        """Sync what stands in the files below the journalled messages, if that was not done."""
        # Asked of the files: what was there at the opening may be in the page cache only.
        if not self.files.is_durable(self._journal_from):
            self._commits.run(lambda: self._synced(self.files.sync_data, None))

    def sync_written(self) -> None:
        """Write what is in the buffers, and sync the data, also what an earlier process wrote."""
        self.flush()
        if not self.files.is_durable(self._visible.data_end):
            self._commits.run(lambda: self._synced(self.files.sync_data, None))

    def has_unwritten(self) -> bool:
        """Whether the files lack messages that the shard has taken, from a journal or not."""
        return self._lent or self.dirty_bytes > 0

    def is_over(self) -> bool:
        """Whether the shard was closed: it writes nothing any more."""
        return isinstance(self._refusal, StoreClosed)
