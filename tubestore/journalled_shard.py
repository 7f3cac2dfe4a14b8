"""A shard's part of the root's journal: messages in its buffers that the journal holds too.

Everything in the buffers from `_journal_from` to `_journal_to` (data offsets) stands in frames of
one generation; what is below `_journal_from` is in the files.

Guards: `_append_lock` guards the three fields here.

Next to read: `message_store.py`.
"""

from __future__ import annotations

from typing import Any

from tubestore.adoption import AdoptingShard
from tubestore.errors import StoreClosed
from tubestore.records import ENTRY_SIZE


class JournalledShard(AdoptingShard):
    """A shard that takes messages which somebody else makes survive."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._journal_from = self._journal_to = -1
        self._journal_generation: int | None = None
        #: A generation that holds something of this shard that is not in its files.
        self._barred_generation: int | None = None

    def buffered_ends(self) -> tuple[int, int]:
        """Return where the next message's entry and record would stand, without any lock."""
        main = self._main
        return main.index_start + ENTRY_SIZE * main.count, main.data_end

    def take_journalled(
        self, entries: bytes, records: bytes, index_start: int, data_start: int, generation: int
    ) -> bool:
        """Take messages encoded for this place, unless they would have to wait or are out of place.

        Also not behind messages that are in no file and no journal: what a level promises of a
        message it promises of all before it.
        """
        with self._append_lock:
            main = self._main
            if generation == self._barred_generation:
                return False
            before = main.count
            if main.data_end != data_start or main.index_start + ENTRY_SIZE * before != index_start:
                return False
            in_files = self._visible.data_end
            continues = self._journal_to == data_start and self._journal_generation == generation
            if in_files != data_start and not (continues and self._journal_from <= in_files):
                return False
            data_end, count = data_start + len(records), len(entries) // ENTRY_SIZE
            if data_end > self._room_end or before + count > self._room_count:
                if self._refusal is not None or not self._fits(data_end - data_start, count):
                    return False
                self._open_room()
            main.add_block(entries, records, count)
            if not continues:
                self._journal_from, self._journal_generation = data_start, generation
            self._journal_to = data_end
            return True

    def bar_generation(self, generation: int) -> None:
        """Take no part in a generation: its frames of this shard do not follow each other."""
        self._barred_generation = generation

    def leave_journal(self) -> None:
        """Forget that messages were journalled: their frame was not written."""
        with self._append_lock:
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

    def has_journalled(self) -> bool:
        """Whether messages are in the journal and not in the files."""
        return self._journal_to > self._visible.data_end

    def is_over(self) -> bool:
        """Whether the shard was closed or its topic deleted: it writes nothing any more."""
        return isinstance(self._refusal, StoreClosed)
