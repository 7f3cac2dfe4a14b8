"""The rolling files of one stream (data or index) of a shard, by start offset.

Invariants: segments touch without gap or overlap; only the last one is not sealed. A file that lies
inside the one before it, with the same bytes, is left over from a compaction and is left out.

Guards: changes come under the shard's flush lock and replace `now` as a whole, so a reader
works on the `Segments` that it took (copy on write; rolls are rare): what retention removes
and a roll adds is not seen in it.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from operator import attrgetter
from typing import NamedTuple

from tubestore.core.paths import join
from tubestore.core.trees import files_by_start
from tubestore.core.vfs import Vfs, VfsFile
from tubestore.errors import NotAStore
from tubestore.record.names import parse_segment_name, segment_name
from tubestore.segments.digests import (
    digests_path,
    discard_digests,
    drop_digests,
    keep_digests,
)
from tubestore.segments.segment import FileSegment

_start_of = attrgetter("start")
#: A job's part of a stream goes behind the live file if it is at most such a part of a file:
#: larger ones are not copied.
_SMALL_PART = 8


class Adopted(NamedTuple):
    """Bytes that others have put behind the end of a stream, synced."""

    start: int
    size: int
    #: True if they are behind the last byte of the live file; else they are a file.
    is_behind: bool = False


#: Bytes of two files that are compared at a time.
_COMPARED_BYTES = 1 << 20
#: (start, path, bytes) of a file.
Listed = tuple[int, str, int]


def without_merged(vfs: Vfs, listed: list[Listed]) -> tuple[list[Listed], list[str]]:
    """Split files, by start, into those of the stream and the paths of those left by a compaction.

    Compaction puts a file that has the bytes of several in the place of the first, and then removes
    the others; a crash in between leaves them. A file inside another one that has other bytes is no
    such file.
    """
    kept: list[Listed] = []
    merged: list[str] = []
    for start, path, size in listed:
        if kept and size:
            first, whole, length = kept[-1]
            if start + size <= first + length and _has(vfs, whole, path, start - first, size):
                merged.append(path)
                continue
        kept.append((start, path, size))
    return kept, merged


def _has(vfs: Vfs, path: str, part: str, position: int, size: int) -> bool:
    """Return whether a file has the bytes of another one at a position; False without an answer."""
    try:
        with (
            contextlib.closing(vfs.open(path, writable=False)) as whole,
            contextlib.closing(vfs.open(part, writable=False)) as small,
        ):
            for done in range(0, size, _COMPARED_BYTES):
                some = min(_COMPARED_BYTES, size - done)
                if whole.pread(some, position + done) != small.pread(some, done):
                    return False
    except OSError:  # it went away since it was listed, or cannot be read
        return False
    return True


class Segments:
    """The segments of a stream at one moment; never changes."""

    __slots__ = ("_segments", "_starts", "first", "last")

    def __init__(self, segments: Iterable[FileSegment] = ()) -> None:
        # Tuples: there are two of these a shard, and most hold one segment.
        self._segments = tuple(sorted(segments, key=_start_of))
        self._starts = tuple(map(_start_of, self._segments))
        #: The ends: they are asked for at every append.
        self.first: FileSegment | None = self._segments[0] if self._segments else None
        self.last: FileSegment | None = self._segments[-1] if self._segments else None

    def __iter__(self) -> Iterator[FileSegment]:
        return iter(self._segments)

    def __len__(self) -> int:
        return len(self._segments)

    @property
    def only(self) -> FileSegment | None:
        """The segment, if there is just one."""
        return self.last if self.last is self.first else None

    def find(self, offset: int) -> FileSegment | None:
        """Return the segment that holds `offset`; the last one for its end; None outside."""
        place = bisect_right(self._starts, offset) - 1
        if place < 0:
            return None
        segment = self._segments[place]
        return segment if offset <= segment.end else None

    def between(self, start: int, end: int) -> list[FileSegment]:
        """Return the segments that hold bytes of [start, end), in order."""
        last = self.last
        if last is None or start >= last.start:
            return [last] if last is not None and last.start < end and last.end > start else []
        first = max(0, bisect_right(self._starts, start) - 1)
        chosen = self._segments[first : bisect_left(self._starts, end)]
        return [s for s in chosen if s.end > start]

    def still(self, path: str, start: int, size: int) -> FileSegment | None:
        """Return the segment at `start`, as long as its file is now, if it is the same file."""
        place = bisect_left(self._starts, start)
        segment = self._segments[place] if self._starts[place : place + 1] == (start,) else None
        if segment is None or segment.path != path or segment.size > size:
            return None
        if (segment.sealed and segment.size < size) or not segment.file.is_current():
            return None
        if not segment.sealed:
            segment.grown_to(size)
        return segment

    def having(self, segment: FileSegment) -> Segments:
        """Return these and one more, or another one at its start."""
        return Segments((*(s for s in self if s.start != segment.start), segment))

    def from_on(self, start: int) -> Segments:
        """Return those that start at `start` or behind it."""
        return Segments(s for s in self if s.start >= start)

    def up_to(self, end: int) -> Segments:
        """Return those that start at `end` or before it, and always the first one."""
        return Segments(s for s in self if s.start <= end or s is self.first)


_NONE = Segments()


class FileSegmentList:
    """Segments of one suffix in one directory, as they change."""

    def __init__(self, vfs: Vfs, directory: str, suffix: str, segment_size_bytes: int) -> None:
        self._vfs, self.directory, self._suffix = vfs, directory, suffix
        self._segment_size_bytes = segment_size_bytes
        self.now = _NONE
        #: Sealed here and without digests yet.
        self._newly_sealed: deque[FileSegment] = deque()
        #: Files that a compaction has left when the files were listed.
        self.merged: list[str] = []

    @classmethod
    def load(
        cls,
        vfs: Vfs,
        directory: str,
        suffix: str,
        segment_size_bytes: int,
        *,
        writable: bool,
        limit: Callable[[], int | None] | None = None,
        known: Segments = _NONE,
    ) -> FileSegmentList:
        """List and open what is there; a gap or overlap is NotAStore.

        `limit` is called after the listing; bytes at or behind it are left out. Of `known`, which a
        reader listed before, the segments that are still there are taken over; if nothing has
        changed, all of it.
        """
        found: dict[int, FileSegment] = {}
        listed = files_by_start(vfs, directory, partial(parse_segment_name, suffix=suffix))
        listed, merged = without_merged(vfs, listed)
        end = limit() if limit is not None else None
        for start, path, size in listed:
            if end is None or start <= end:
                size = size if end is None else min(size, end - start)
                segment = known.still(path, start, size)
                if segment is None:
                    file = vfs.open(path, writable=writable)
                    segment = FileSegment(file, start, size, sealed=True, vfs=vfs)
                found[start] = segment
        segments = list(found.values())
        for before, after in pairwise(segments):
            if before.end != after.start:
                reason = f"{after.path} does not start where the one before ends ({before.end})"
                raise NotAStore(directory, reason)
        loaded = cls(vfs, directory, suffix, segment_size_bytes)
        loaded.merged = merged
        loaded.now = known if list(known) == segments else Segments(segments)
        for segment in segments[:-1]:
            segment.sealed = True
        if loaded.now.last is not None:
            loaded.now.last.sealed = False
            # A process that was killed may have cut it, and not synced that.
            loaded.now.last.shortened = True
        return loaded

    def __iter__(self) -> Iterator[FileSegment]:
        return iter(self.now)

    def __len__(self) -> int:
        return len(self.now)

    @property
    def last(self) -> FileSegment:
        """The segment that is written to."""
        last = self.now.last
        if last is None:
            raise IndexError(f"no segment in {self.directory}")
        return last

    @property
    def start(self) -> int:
        """The first offset that is kept."""
        first = self.now.first
        return first.start if first is not None else 0

    @property
    def end(self) -> int:
        """The offset after the last byte."""
        last = self.now.last
        return last.end if last is not None else 0

    def find(self, offset: int) -> FileSegment | None:
        """Return the segment that holds `offset`; the last one for its end; None outside."""
        return self.now.find(offset)

    def between(self, start: int, end: int) -> list[FileSegment]:
        """Return the segments that hold bytes of [start, end), in order."""
        return self.now.between(start, end)

    def writable(self, start: int) -> FileSegment:
        """Return the segment to append to, making the first one at `start` if there is none."""
        return self.now.last or self.create(start)

    def create(self, start: int) -> FileSegment:
        """Add an empty segment at `start`."""
        path = join(self.directory, segment_name(start, self._suffix))
        try:
            file = self._vfs.open(path, create=True)
        except FileExistsError:
            file = self._vfs.open(path)
            if file.size():
                file.close()
                raise
            # Else an interrupt ended this call before, behind its `open`.
        segment = FileSegment(file, start, 0, sealed=False, vfs=self._vfs)
        self.now = self.now.having(segment)
        return segment

    @property
    def is_full(self) -> bool:
        """True if the last segment has reached its size."""
        last = self.now.last
        return last is not None and last.size >= self._segment_size_bytes

    def live_start_for(self, size: int) -> int | None:
        """Return the start of the live file if a job's `size` bytes go behind its last byte.

        Else each job would leave a file. None: they become files of their own.
        """
        last, full = self.now.last, self._segment_size_bytes
        if last is None or not last.size or size > full // _SMALL_PART:
            return None
        return last.start if last.size + size < full else None

    def roll_if_full(self) -> FileSegment | None:
        """Sync and seal the last segment if it is full, start the next; returns the sealed one."""
        return self.roll() if self.last.size >= self._segment_size_bytes else None

    def roll(self) -> FileSegment:
        """Sync and seal the last segment, start the next; returns the sealed one."""
        last = self.last
        last.sync()
        # It may have been sealed before, and cut or appended to since.
        drop_digests(self._vfs, digests_path(last.path, last.start))
        self.create(last.end)
        self._seal(last)
        return last

    def _seal(self, segment: FileSegment) -> None:
        segment.seal()
        self._newly_sealed.append(segment)

    def adopt(self, pieces: list[Adopted]) -> None:
        """Take over what is now behind the end, in its order.

        A file seals what was the last segment; an empty one has been replaced by the first file.
        """
        before, changed = self.now.last, self.now
        for piece in pieces:
            if piece.is_behind:
                self.last.adopt(piece.size)
        files = [piece for piece in pieces if not piece.is_behind]
        if not files:
            return
        for start, size, _ in files:
            file = self._vfs.open(join(self.directory, segment_name(start, self._suffix)))
            segment = FileSegment(file, start, size, sealed=True, vfs=self._vfs)
            segment.synced_end = segment.end
            changed = changed.having(segment)
        if before is not None and before.start == files[0].start:
            before.close()
        first = files[0].start if before is None else before.start
        for segment in changed.from_on(first):
            drop_digests(self._vfs, digests_path(segment.path, segment.start))
            if segment is changed.last:
                segment.sealed = False
            else:
                self._seal(segment)
        self.now = changed

    def merge(self, run: Sequence[FileSegment], file: VfsFile) -> None:
        """Put a synced file with the bytes of these sealed segments in their place."""
        start, end = run[0].start, run[-1].end
        segment = FileSegment(file, start, end - start, sealed=True, vfs=self._vfs)
        segment.synced_end = end
        rest = (s for s in self.now if not start <= s.start < end)
        self.now = Segments((*rest, segment))
        for gone in run:  # once more: another thread may have been making some
            self.discard_digests(gone)
        self._newly_sealed.append(segment)

    def cut(self, end: int, *, take_out: Callable[[str], object] | None = None) -> None:
        """Forget everything from `end` on; whole segments behind it are removed, the last first.

        `take_out`: takes a file that is not empty out of the directory, instead of its removal.
        """
        self._remove_behind(end, take_out)
        last = self.last
        if last.end > end:
            last.cut(max(end, last.start))
        last.sealed = False

    def _remove_behind(self, end: int, take_out: Callable[[str], object] | None = None) -> None:
        """Remove the segments that start behind `end`, durably.

        Before what is left is made shorter: a power cut must not bring one back behind a gap.
        """
        kept = self.now.up_to(end)
        for segment in reversed(list(self.now)[len(kept) :]):
            segment.close()
            drop_digests(self._vfs, digests_path(segment.path, segment.start))
            if take_out is not None and segment.size:
                take_out(segment.path)
            else:
                self._vfs.remove(segment.path)
        if len(kept) < len(self.now):
            self._vfs.sync_directory(self.directory)
        self.now = kept

    def cut_copying(self, end: int) -> None:
        """Forget everything from `end` on, though readers may have been shown it.

        What is kept of a segment goes into a new file that replaces the old one: truncating a
        file that another process has mapped would kill that process (decisions.md D10).
        """
        self._remove_behind(end)
        segment = self.find(end)
        assert segment is not None
        keep = end - segment.start
        if end < segment.end and keep:
            self._vfs.replace_file(segment.path, bytes(segment.view(segment.end)[:keep]))
            segment.close()
            file = self._vfs.open(segment.path)
            kept = FileSegment(file, segment.start, keep, sealed=False, vfs=self._vfs)
            self.now = self.now.having(kept)
        self.cut(end)

    def sync(self) -> None:
        """Sync the last segment; sealed ones were synced when they were sealed."""
        if self.now.last is not None:
            self.now.last.sync()

    def keep_digests(self) -> None:
        """Write the digests of what was sealed meanwhile, if anything was; any thread may."""
        while self._newly_sealed:
            try:
                segment = self._newly_sealed.popleft()
            except IndexError:  # another thread took it
                break
            if segment.sealed and self.now.find(segment.start) is segment:
                path = digests_path(segment.path, segment.start)
                keep_digests(self._vfs, path, segment.size, segment.read_at)
                if self.now.find(segment.start) is not segment:  # it went meanwhile
                    discard_digests(self._vfs, path)

    def discard_digests(self, segment: FileSegment) -> None:
        """Remove the digests of a segment that retention has taken away."""
        with contextlib.suppress(ValueError):  # one that has its digests already
            self._newly_sealed.remove(segment)
        name = segment_name(segment.start, self._suffix)
        discard_digests(self._vfs, digests_path(join(self.directory, name), segment.start))

    def close(self) -> None:
        """Give the descriptors back."""
        for segment in self:
            segment.close()
