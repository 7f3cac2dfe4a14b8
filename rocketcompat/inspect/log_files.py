"""The CommitLog's files in a directory: any length, in any directories, with holes.

Reads only, and takes no lock. A job's part behind the log is shown only once all of it is there
(`pieces.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

from rocketcompat.commitlog.walk import NO_GAPS
from rocketcompat.files.mapped_file import MappedFile
from rocketcompat.files.mapped_file_queue import listed
from rocketcompat.formats import (
    DLEDGER_BODY_POSITION,
    DLEDGER_MAGIC,
    DLEDGER_PREFIX,
    MESSAGE_PREFIX,
    TOPIC_LENGTH_SIZE,
    parse_offset_name,
)
from rocketcompat.staging.pieces import LogRecords
from tubestore.core.trees import files_by_start
from tubestore.core.vfs import Vfs
from tubestore.errors import NotAStore


class LogFiles:
    """The CommitLog's files, read-only; a `LogView`."""

    def __init__(
        self, vfs: Vfs, root: str, directories: Sequence[str], file_size: int, *,
        record_crc: bool = False,
    ) -> None:  # fmt: skip
        self._jobs = LogRecords(vfs, root)
        self.directory, self.directories = directories[0], tuple(directories)
        self.file_size = file_size
        #: Damage that the last recovery found, and whether records end in a checksum of their own.
        self.gaps = NO_GAPS
        self.record_crc = record_crc
        self._vfs = vfs
        self.refresh()

    def refresh(self) -> None:
        """List the directory again: a broker adds files and removes old ones."""
        vfs, file_size = self._vfs, self.file_size
        finished = self._jobs.finished()

        def rows() -> list[tuple[int, str, int]]:
            each = (files_by_start(vfs, path, parse_offset_name) for path in self.directories)
            return [row for rows in each for row in rows if row[2]]

        found = listed(rows, file_size)
        self.files: tuple[MappedFile, ...] = tuple(
            MappedFile(vfs.open(path, writable=False), start, file_size, min(size, file_size))
            for start, path, size in found
        )
        hidden = self._jobs.hidden_from(finished)
        if hidden is not None:
            self._hide_from(hidden)

    def _hide_from(self, offset: int) -> None:
        """Show nothing of a job that is not finished."""
        self.files = tuple(file for file in self.files if file.file_from_offset < offset)
        for file in self.files[-1:]:
            file.wrote_position = min(file.wrote_position, offset - file.file_from_offset)

    @property
    def last(self) -> MappedFile | None:
        """The file with the highest offset."""
        return self.files[-1] if self.files else None

    @property
    def min_offset(self) -> int:
        """Offset of the first byte; 0 without files."""
        return self.files[0].file_from_offset if self.files else 0

    @property
    def max_offset(self) -> int:
        """Offset behind the last file's bytes; 0 without files."""
        return self.files[-1].end_offset if self.files else 0

    @property
    def size(self) -> int:
        """Bytes from the first to the last, holes included."""
        return self.max_offset - self.min_offset

    def find(self, offset: int) -> MappedFile | None:
        """Return the file that holds an offset."""
        for file in self.files:
            if 0 <= offset - file.file_from_offset < self.file_size:
                return file
        return None

    def read(self, offset: int, size: int) -> bytes:
        """Read up to `size` bytes; fewer at the end of a file."""
        file = self.find(offset)
        return file.read(offset - file.file_from_offset, size) if file else b""

    read_at = read


def refuse_dledger(vfs: Vfs, root: str, directories: Sequence[str]) -> None:
    """Raise NotAStore for a log in DLedger's files, in the root or in its own directory.

    Such a log's files begin with an entry of DLedger that has the first record as its body.
    """
    for name, is_directory, _ in vfs.entries(root):
        if is_directory and name.startswith(DLEDGER_PREFIX):
            raise NotAStore(root, f"its log is one of DLedger ({name}), which is not supported")
    for directory in directories:
        files = files_by_start(vfs, directory, parse_offset_name)
        if not files:
            continue
        first, path, _ = files[0]
        file = vfs.open(path, writable=False)
        head = file.pread(DLEDGER_BODY_POSITION + MESSAGE_PREFIX.size, 0)
        file.close()
        if len(head) < DLEDGER_BODY_POSITION + MESSAGE_PREFIX.size:
            continue
        body = MESSAGE_PREFIX.unpack_from(head, DLEDGER_BODY_POSITION)
        is_entry = head[:4] == DLEDGER_MAGIC and body.magic_code in TOPIC_LENGTH_SIZE
        if is_entry and body.physical_offset == first + DLEDGER_BODY_POSITION:
            what = f"its log in {directory} is one of DLedger, which is not supported"
            raise NotAStore(root, what)
