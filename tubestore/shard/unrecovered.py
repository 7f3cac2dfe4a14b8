"""Where a reader stops in a shard that a power cut has hit, until a writer has recovered it.

A power cut keeps any sectors of what was not synced. A message that was acknowledged at `fsync` has
its record then, and may have no index entry, or one of zeros, with sound entries behind it. A
writer mends that when it opens the shard. A reader cannot, so it shows the entries before the first
one that does not agree with its record, and reports the place.

Above the checkpoint, what an earlier boot of the machine has left is compared; while the machine
runs, what was written is there. Without a checkpoint nothing shows in which boot a shard was
written: a writer may have opened the root since, and not the shard. So it is compared always: the
last index file, because sealed files are synced, and all messages that a journal of the root has,
because those may be synced there alone.
Entries of expired data at the front are left alone, as a writer leaves them. So are the files of a
job that is half published: they are hidden, and the next opening for writing finishes the job.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tubestore.core.doors import logger
from tubestore.core.paths import OWN_DIRECTORY, join
from tubestore.errors import CorruptRecord
from tubestore.record.evidence import count_expired
from tubestore.record.names import CHECKPOINT_FILE
from tubestore.record.records import ENTRY_SIZE, verify_entries
from tubestore.segments.cache_formats import Checkpoint
from tubestore.segments.checkpoint import read_recorded
from tubestore.segments.file_store import MsgFileStore
from tubestore.segments.listing import list_files
from tubestore.segments.shard_bytes import ShardBytes

log = logger(__name__)
Array = np.ndarray[Any, Any]
_SINCE = (
    "as after a power cut; readers show more once `tubestore recover` or a writer has mended it"
)


class Unrecovered:
    """The part of a shard that a writer has yet to recover, as its files are now."""

    def __init__(self, files: MsgFileStore, lock: str | None) -> None:
        """`lock`: the file that writers of the root lock.

        None, or no such file, where no writer of this package was: then nothing is compared.
        """
        self._files, self._lock = files, lock
        #: The offset of the first entry that disagrees; None if all agree.
        self.place: int | None = None
        #: What to report.
        self.problem: CorruptRecord | None = None
        self._is_over = lock is None or not files.vfs.exists(lock)
        #: The checkpoint and the bytes at the place when they were compared last.
        self._seen: tuple[bytes, bytes, int] | None = None

    def compare(self, journalled: int | None = None) -> None:
        """Set `place` and `problem`, after the files were loaded; quick if nothing has changed.

        `journalled`: the offset of the first message that a journal has; None if it has none.
        """
        if self._is_over:
            return
        seen = self._evidence()
        if seen == self._seen:
            return
        # Also one that does not describe the files: above its ends only, there is what came since.
        checkpoint = read_recorded(self._files.vfs, self._files.directory).checkpoint
        self.place = self.problem = None
        if self._may_be_hit(checkpoint):
            self._find(checkpoint, journalled)
        self._is_over = self.place is None
        self._seen = None if self._is_over else self._evidence()

    def _evidence(self) -> tuple[bytes, bytes, int]:
        """Return what a writer that recovers the shard changes."""
        files, entry = self._files, b""
        try:
            path = join(files.directory, OWN_DIRECTORY, CHECKPOINT_FILE)
            checkpoint = files.vfs.read_file(path)
        except OSError:
            checkpoint = b""
        segment = files.index.find(self.place) if self.place is not None else None
        if segment is not None and self.place is not None:
            entry = segment.file.pread(ENTRY_SIZE, self.place - segment.start)
        return checkpoint, entry, files.index.end

    def _may_be_hit(self, checkpoint: Checkpoint | None) -> bool:
        files = self._files
        if checkpoint is None:
            return True
        if checkpoint.boot == files.vfs.boot_id():
            return False
        return files.index.end > checkpoint.index_end or files.data.end > checkpoint.data_end

    def _find(self, checkpoint: Checkpoint | None, journalled: int | None) -> None:
        shard = ShardBytes(self._files.vfs, list_files(self._files.vfs, self._files.directory))
        # Behind these ends is what belongs to an unfinished job.
        index_end, files_end = self._files.index.end, self._files.data.end
        try:
            if checkpoint is not None:
                at, data_at = checkpoint.index_end, checkpoint.data_end
            else:
                # A file that was rolled just now is empty.
                filled = [file for file in shard.index if file.size >= ENTRY_SIZE]
                first = filled[-1:] or shard.index[:1]
                at, data_at = (first[0].start if first else 0), -1
                if shard.index and journalled is not None:
                    at = min(at, max(journalled, shard.index[0].start))
            for offset, entries in shard.entries(at):
                entries = entries[: max(0, index_end - offset) // ENTRY_SIZE]
                gone = count_expired(entries, shard.data_start) if data_at < shard.data_start else 0
                at, entries = offset + ENTRY_SIZE * gone, entries[gone:]
                data_at = data_at if not gone else -1
                if not len(entries):
                    continue
                bad = np.flatnonzero(~_agreeing(shard, at, entries, data_at))
                if len(bad):
                    self._stop_at(at + ENTRY_SIZE * int(bad[0]))
                    return
                last = entries[-1]
                at += ENTRY_SIZE * len(entries)
                data_at = int(last["data_offset"]) + int(last["data_size"])
            if max(data_at, shard.data_start) < files_end:
                self._note_unindexed(shard, at, max(data_at, shard.data_start))
        finally:
            shard.close()

    def _stop_at(self, place: int) -> None:
        segment = self._files.index.find(place)
        if segment is not None:
            self.place = place
            text = f"index and data do not agree from here on, {_SINCE}"
            self._report(CorruptRecord(segment.path, place - segment.start, text))

    def _note_unindexed(self, shard: ShardBytes, index_end: int, data_end: int) -> None:
        """Report a sound record behind the last one that has an entry.

        Not while a writer has the root open: it writes an entry after its record.
        """
        if self._lock is not None and self._files.vfs.lock_owners(self._lock):
            return
        file = shard.data_file(data_end)
        header, reason = shard.record_at(data_end)
        if file is not None and reason is None and header.queue_logic_offset == index_end:
            text = f"the index lacks the messages from here on, {_SINCE}"
            self._report(CorruptRecord(file.path, data_end - file.start, text))

    def _report(self, problem: CorruptRecord) -> None:
        self.problem = problem
        log.warning("%s", problem)


def _agreeing(shard: ShardBytes, offset: int, entries: Array, data_at: int) -> Array:
    """Return which entries agree with whole records that follow each other from `data_at` on."""
    good = np.zeros(len(entries), bool)
    for first, end, data, data_start in shard.windows(entries):
        if data is not None:
            good[first:end] = verify_entries(
                entries[first:end], offset + ENTRY_SIZE * first, data, data_start, own_offset=False
            )
    starts = entries["data_offset"].astype(np.int64)
    ends = starts + entries["data_size"]
    good[1:] &= starts[1:] == ends[:-1]
    good[0] &= data_at in (-1, int(starts[0]))
    return good
