"""The positions of a group on disk: a log of frames that begins with a snapshot.

    <group>/positions-<number>.log    a snapshot of all positions, then a frame a commit

A commit appends one frame, whatever else the group has. A log that has grown to several times its
snapshot is followed by a new one, which begins with a snapshot of everything. The log before the
last one stays: if the last one's snapshot is damaged, all positions are in the two together.

| crash | what the next load finds |
| --- | --- |
| within an append | the beginning of a frame at the end: the next append cuts it off |
| before a new log has its name | the old log; the new file goes with the next new log |
| after it has its name | the new log; older ones than the one before it go with the next |

Damage never sets positions back to nothing without a word: each damaged frame is a problem, its
partitions have the position of their last sound frame, and a snapshot that no earlier log replaces
is an error. A log with damage in it goes to quarantine where another one would be removed. An empty
file `committed` is beside the logs: if there is no log then, that is an error, too.

The first position of each topic is synced, whatever the level: after a power cut the group would
begin anew there, and retention would not wait for it.

Not thread-safe, and `append` needs the group's lock; reading needs no lock.
"""

from __future__ import annotations

import contextlib
import re

from tubestore.core.paths import join
from tubestore.core.quarantine import Quarantine
from tubestore.core.trees import sync_names
from tubestore.core.vfs import Vfs, VfsFile
from tubestore.errors import CorruptRecord, again
from tubestore.groups.positions import (
    SNAPSHOT,
    Frame,
    LogStretch,
    Positions,
    encode_frame,
    frames_in,
    front_of,
)
from tubestore.options import Durability

#: A log of fewer bytes is not followed by a new one …
GROWN_BYTES = 1 << 20
#: … nor one of less than so many times its snapshot.
GROWN_TIMES = 4
#: A log with so many bytes of output is followed by a new one, too.
GROWN_OUTPUT = 64 << 20
#: Made with the first log: the group has had positions.
COMMITTED_FILE = "committed"
_NAME = re.compile(r"positions-(\d{20})\.log")


def log_name(number: int) -> str:
    """Return the name of a log of positions."""
    return f"positions-{number:020d}.log"


class PositionsLog:
    """The positions of one group, as this process has read them from its logs."""

    def __init__(self, vfs: Vfs, root: str, directory: str) -> None:
        """`directory` is the group's, below `root`."""
        self._vfs, self._root = vfs, root
        self.directory = directory
        self.positions = Positions()
        #: Damage that was found in the logs.
        self.problems: list[CorruptRecord] = []
        #: The number of the last log, 0 without one; its file, where its sound frames end, and the
        #: size of its snapshot.
        self._number = 0
        self._file: VfsFile | None = None
        self._end = 0
        self._snapshot_size = 0
        #: Bytes of output since its snapshot.
        self._output_bytes = 0
        #: The number of the log that this process made durable by its name.
        self._named = 0
        #: False while the snapshot of the last log is damaged.
        self._is_sound = True

    # -- reading -----------------------------------------------------------------------------

    def refresh(self, *, locked: bool = False) -> None:
        """Read what other processes have committed; CorruptRecord if the positions are lost.

        `locked`: the caller has the group's lock, and no frame is being written.
        """
        while True:
            numbers = self._numbers()
            last = numbers[-1] if numbers else 0
            try:
                if not last or last != self._number or not self._is_current():
                    self._load(numbers, locked)
                elif self._file is not None:
                    self._read_on(self._file, locked)
                return
            except FileNotFoundError:
                if self._numbers() == numbers:
                    raise
                self._forget()

    def _is_current(self) -> bool:
        """Return False if the log is to be opened, also after the group was deleted and made."""
        return self._file is not None and self._file.is_current()

    def _numbers(self) -> list[int]:
        found = (_NAME.fullmatch(name) for name, _, _ in self._vfs.entries(self.directory))
        return sorted(int(match[1]) for match in found if match)

    def _path(self, number: int) -> str:
        return join(self.directory, log_name(number))

    def _load(self, numbers: list[int], locked: bool) -> None:
        """Read the last log, with the one before it if its snapshot is damaged."""
        self._forget()
        if not numbers:
            if self._vfs.exists(join(self.directory, COMMITTED_FILE)):
                lost = CorruptRecord(self.directory, 0, "its log of positions is missing")
                self._note(lost)
                raise again(lost)
            return
        last = numbers[-1]
        self._file = self._vfs.open(self._path(last))
        self._number = last
        data = self._file.pread(self._file.size(), 0)
        found = list(frames_in(data))
        first = found[0].frame if found else None
        self._is_sound = first is not None and first.kind == SNAPSHOT
        if self._is_sound:
            self._snapshot_size = found[0].end
        else:
            lost = CorruptRecord(self._path(last), 0, "the snapshot of all positions is damaged")
            self._note(lost)
            if not self._read_before(numbers[:-1], found):
                self._forget()
                raise again(lost)
        self._take(found, 0, len(data), locked=locked)

    def _read_before(self, numbers: list[int], found: list[LogStretch]) -> bool:
        """Read the log before the last one; False if it does not lead up to what was found."""
        if not numbers:
            return False
        path = self._path(numbers[-1])
        before = [each.frame for each in frames_in(self._vfs.read_file(path))]
        if not before or before[0] is None or before[0].kind != SNAPSHOT:
            return False
        for frame in before:
            if frame is not None:
                self.positions.apply(frame)
        following = [each.frame.sequence for each in found if each.frame is not None]
        if following and following[0] > self.positions.sequence + 1:
            self._note(CorruptRecord(path, 0, "frames of positions are missing at its end"))
        return True

    def _read_on(self, file: VfsFile, locked: bool) -> None:
        size = file.size()
        if size > self._end:
            data = file.pread(size - self._end, self._end)
            self._take(list(frames_in(data)), self._end, size, locked=locked)

    def _take(self, found: list[LogStretch], base: int, size: int, *, locked: bool) -> None:
        """Apply frames and note damage; without the lock the last stretch may be a write."""
        for each in found:
            if each.frame is None:
                if each.torn or (base + each.end == size and not locked):
                    return
                path = self._path(self._number)
                self._note(CorruptRecord(path, base + each.start, each.reason))
            else:
                self.positions.apply(each.frame)
                self._output_bytes += len(each.frame.output)
            self._end = base + each.end

    def _note(self, problem: CorruptRecord) -> None:
        known = {(each.path, each.position) for each in self.problems}
        if (problem.path, problem.position) not in known:
            self.problems.append(problem)

    def _forget(self) -> None:
        self.close()
        self.positions = Positions()
        self._number = self._end = self._snapshot_size = self._output_bytes = self._named = 0
        self._is_sound = True

    def close(self) -> None:
        """Give the descriptor back; harmless when repeated."""
        if self._file is not None:
            self._file.close()
            self._file = None

    # -- writing -----------------------------------------------------------------------------

    def append(self, frame: Frame, level: Durability) -> None:
        """Append a frame after a `refresh`, under the group's lock; it reaches `level`.

        An OSError leaves the positions as they were; the next append cuts what there is of it.
        """
        assert frame.sequence == self.positions.sequence + 1, "not refreshed"
        if self._file is None or self._is_grown or not self._is_sound:
            self._begin()
        assert self._file is not None
        front = front_of(frame)
        known = self.positions
        is_first = not all(known.of(name, rows.topic_id) for name, rows in frame.rows.items())
        if self._file.size() > self._end:
            self._file.truncate(self._end)  # the beginning of a frame; damage was taken over
        try:
            self._file.pwrite(front, self._end)
            if len(frame.output):
                self._file.pwrite(frame.output, self._end + len(front))
            if level == "fsync" or is_first:
                self.sync()
        except OSError:
            with contextlib.suppress(OSError):  # else the next append cuts it
                self._file.truncate(self._end)
            raise
        self._end += len(front) + len(frame.output)
        self._output_bytes += len(frame.output)
        self.positions.apply(frame)

    @property
    def _is_grown(self) -> bool:
        limit = max(GROWN_BYTES, GROWN_TIMES * self._snapshot_size)
        return self._end - self._output_bytes >= limit or self._output_bytes >= GROWN_OUTPUT

    def sync(self) -> None:
        """Bring the last log to stable storage, with its name and its directories' names.

        A process that made them may have been killed before it synced them.
        """
        if self._file is None:
            return
        self._file.sync()
        if self._named != self._number:
            sync_names(self._vfs, self.directory, self._root)
            self._named = self._number

    def _begin(self) -> None:
        """Begin a new log with a snapshot; the one before it stays, older ones go."""
        numbers = self._numbers()
        incomplete = map(encode_frame, self.positions.incomplete)
        snapshot = b"".join((encode_frame(self.positions.snapshot()), *incomplete))
        number = (numbers[-1] if numbers else 0) + 1
        self._vfs.replace_file(self._path(number), snapshot)
        self.close()
        self._file = self._vfs.open(self._path(number))
        self._number, self._end, self._snapshot_size = number, len(snapshot), len(snapshot)
        self._output_bytes = 0
        self._is_sound = True
        committed = join(self.directory, COMMITTED_FILE)
        if not self._vfs.exists(committed):
            self._vfs.replace_file(committed, b"")
        for old in numbers[:-1]:
            self._drop(self._path(old))

    def _drop(self, path: str) -> None:
        """Remove a log that is needed no more; one with damage goes to quarantine."""
        with contextlib.suppress(OSError):
            if path in {problem.path for problem in self.problems}:
                Quarantine(self._vfs, self._root).move(path)
            else:
                self._vfs.remove(path)

    def begin_anew(self) -> None:
        """Begin without any position, under the group's lock; all logs go to quarantine."""
        quarantine = Quarantine(self._vfs, self._root)
        self._forget()
        for number in self._numbers():
            quarantine.move(self._path(number))
        committed = join(self.directory, COMMITTED_FILE)
        if self._vfs.exists(committed):
            self._vfs.remove(committed)
        self.problems = []
