"""The rolling files of one stream (data or index) of a shard, by start offset.

Invariants: segments touch without gap or overlap; only the last one is not sealed.

Guards: changes come under the shard's flush lock and replace `_segments` as a whole,
so a reader works on the mapping that it took (copy on write; rolls are rare).

Next to read: `file_store.py`.
"""

from __future__ import annotations

from collections.abc import Iterator

from sortedcontainers import SortedDict

from tubestore.errors import NotAStore
from tubestore.filenames import join, parse_segment_name, segment_name
from tubestore.segment import FileSegment
from tubestore.vfs import Vfs


class FileSegmentList:
    """Segments of one suffix in one directory."""

    def __init__(self, vfs: Vfs, directory: str, suffix: str, segment_size_bytes: int) -> None:
        self._vfs, self.directory, self._suffix = vfs, directory, suffix
        self._segment_size_bytes = segment_size_bytes
        self._segments: SortedDict[int, FileSegment] = SortedDict()
        #: The ends of `_segments`: they are asked for at every append.
        self._first: FileSegment | None = None
        self._last: FileSegment | None = None

    def _show(self, segments: SortedDict[int, FileSegment]) -> None:
        """Let everybody see other segments."""
        self._segments = segments
        self._first = segments.peekitem(0)[1] if segments else None
        self._last = segments.peekitem(-1)[1] if segments else None

    @classmethod
    def load(
        cls, vfs: Vfs, directory: str, suffix: str, segment_size_bytes: int, *, writable: bool
    ) -> FileSegmentList:
        """List and open what is there; a gap or overlap is NotAStore."""
        found = cls(vfs, directory, suffix, segment_size_bytes)
        for name, is_directory, size in vfs.entries(directory):
            start = None if is_directory else parse_segment_name(name, suffix)
            if start is not None:
                file = vfs.open(join(directory, name), writable=writable)
                found._segments[start] = FileSegment(file, start, size, sealed=True)
        for before, after in zip(found, list(found)[1:], strict=False):
            if before.end != after.start:
                reason = f"{after.path} does not start where the one before ends ({before.end})"
                raise NotAStore(directory, reason)
        found._show(found._segments)
        if found._last is not None:
            found._last.sealed = False
        return found

    def __iter__(self) -> Iterator[FileSegment]:
        return iter(list(self._segments.values()))

    def __len__(self) -> int:
        return len(self._segments)

    @property
    def last(self) -> FileSegment:
        """The segment that is written to."""
        if self._last is None:
            raise IndexError(f"no segment in {self.directory}")
        return self._last

    @property
    def only(self) -> FileSegment | None:
        """The segment, if there is just one."""
        return self._last if self._last is self._first else None

    @property
    def start(self) -> int:
        """The first offset that is kept."""
        return self._first.start if self._first is not None else 0

    @property
    def end(self) -> int:
        """The offset after the last byte."""
        return self._last.end if self._last is not None else 0

    def find(self, offset: int) -> FileSegment | None:
        """Return the segment that holds `offset`; the last one for its end; None outside."""
        segments = self._segments
        place = segments.bisect_right(offset) - 1
        if place < 0:
            return None
        segment: FileSegment = segments.peekitem(place)[1]
        return segment if offset <= segment.end else None

    def between(self, start: int, end: int) -> list[FileSegment]:
        """Return the segments that hold bytes of [start, end), in order."""
        last = self._last
        if last is None or start >= last.start:
            return [last] if last is not None and last.start < end and last.end > start else []
        segments = self._segments
        first = max(0, segments.bisect_right(start) - 1)
        return [s for s in segments.values()[first : segments.bisect_left(end)] if s.end > start]

    def writable(self, start: int) -> FileSegment:
        """Return the segment to append to, making the first one at `start` if there is none."""
        return self._last or self.create(start)

    def create(self, start: int) -> FileSegment:
        """Add an empty segment at `start`."""
        path = join(self.directory, segment_name(start, self._suffix))
        file = self._vfs.open(path, create=True)
        segment = FileSegment(file, start, 0, sealed=False)
        changed = self._segments.copy()
        changed[start] = segment
        self._show(changed)
        return segment

    @property
    def is_full(self) -> bool:
        """Whether the last segment has reached its size."""
        return bool(self._segments) and self.last.size >= self._segment_size_bytes

    def roll_if_full(self) -> FileSegment | None:
        """Sync and seal the last segment if it is full, start the next; returns the sealed one."""
        last = self.last
        if last.end - last.start < self._segment_size_bytes:
            return None
        last.sync()
        self.create(last.end)
        last.seal()
        return last

    def cut(self, end: int) -> None:
        """Forget everything from `end` on; whole segments behind it are removed, the last first."""
        self._remove_behind(end)
        last = self.last
        if last.end > end:
            last.cut(max(end, last.start))
        last.sealed = False

    def _remove_behind(self, end: int) -> None:
        """Remove the segments that start behind `end`, durably.

        Before what is left is made shorter: a power cut must not bring one back behind a gap.
        """
        changed = self._segments.copy()
        while len(changed) > 1 and changed.peekitem(-1)[0] > end:
            _, segment = changed.popitem(-1)
            segment.close()
            self._vfs.remove(segment.path)
        if len(changed) < len(self._segments):
            self._vfs.sync_directory(self.directory)
        self._show(changed)

    def cut_copying(self, end: int) -> None:
        """Forget everything from `end` on, though readers may have been shown it.

        What is kept of a segment goes into a new file that replaces the old one: truncating a
        file that another process has mapped would kill that process (DESIGN.md D10).
        """
        self._remove_behind(end)
        segment = self.find(end)
        assert segment is not None
        keep = end - segment.start
        if end < segment.end and keep:
            self._vfs.replace_file(segment.path, bytes(segment.view(segment.end)[:keep]))
            segment.close()
            changed = self._segments.copy()
            file = self._vfs.open(segment.path)
            changed[segment.start] = FileSegment(file, segment.start, keep, sealed=False)
            self._show(changed)
        self.cut(end)

    def sync(self) -> None:
        """Sync the last segment; sealed ones were synced when they were sealed."""
        if self._segments:
            self.last.sync()

    def close(self) -> None:
        """Give the descriptors back."""
        for segment in self:
            segment.close()
