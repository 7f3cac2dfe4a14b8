"""Reading the log by physical offset, and knowing which of its regions are damaged."""

from __future__ import annotations

from rocketcompat.commitlog.walk import NO_GAPS, Gap, Gaps
from rocketcompat.files.mapped_file_queue import MappedFileQueue
from rocketcompat.formats import MESSAGE_PREFIX
from rocketcompat.messages import MessageRecord
from rocketcompat.record.codec import decode_one
from tubestore.errors import CorruptRecord, OffsetOutOfRange


class ReadableLog:
    """What a CommitLog answers; offsets are physical. Thread-safe."""

    queue: MappedFileQueue

    def __init__(self) -> None:
        #: What recovery found damaged; these places are passed over.
        self.gaps = NO_GAPS
        #: Whether records end in a checksum of the whole record, which is compared.
        self.record_crc = False

    @property
    def min_offset(self) -> int:
        """Physical offset of the first byte that is kept."""
        return self.queue.min_offset

    @property
    def max_offset(self) -> int:
        """Physical offset behind the last record that can be read."""
        raise NotImplementedError

    def read_at(self, physical_offset: int, size: int) -> bytes:
        """Read bytes of the log as they are; fewer at the end of a file or of the log."""
        size = min(size, self.max_offset - physical_offset)
        return self.queue.read(physical_offset, size) if size > 0 else b""

    def record_at(self, physical_offset: int, *, check_crc: bool = True) -> MessageRecord:
        """Decode the record that starts at `physical_offset`.

        OffsetOutOfRange outside the log; CorruptRecord where no sound record starts.
        """
        if not self.min_offset <= physical_offset < self.max_offset:
            raise OffsetOutOfRange(physical_offset, self.min_offset, self.max_offset)
        file = self.queue.find(physical_offset)
        path = file.path if file else self.queue.directory
        position = physical_offset - (file.file_from_offset if file else 0)
        head = self.read_at(physical_offset, MESSAGE_PREFIX.size)
        if len(head) < MESSAGE_PREFIX.size:
            raise CorruptRecord(path, position, "no room for a record")
        size = MESSAGE_PREFIX.unpack_from(head).total_size
        room = self.queue.file_size - physical_offset % self.queue.file_size
        if not MESSAGE_PREFIX.size <= size <= room:
            raise CorruptRecord(path, position, f"a length of {size} bytes")
        data = self.read_at(physical_offset, size)
        gap = self.gaps.over(physical_offset) if check_crc else None
        if gap is not None:
            raise CorruptRecord(path, position, gap.reason)
        try:
            return decode_one(
                data, physical_offset=physical_offset, check_crc=check_crc,
                record_crc=check_crc and self.record_crc,
            )  # fmt: skip
        except CorruptRecord as error:
            raise CorruptRecord(path, position, error.reason) from None

    def note_gap(self, gap: Gap) -> None:
        """Remember a gap."""
        self.gaps = Gaps.merged((*self.gaps, gap))
