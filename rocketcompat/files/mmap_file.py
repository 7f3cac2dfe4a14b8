"""Files of the log written through maps: RocketMQ's way, with `write_without_mmap=False`.

The default writes with `pwrite` (D10); this way is there for comparison. A file is mapped when it
is made, an append copies into the map, a flush is an msync of the dirty range, and reads of a
mapped file come from the map. RocketMQ has the same option with the other default
(`writeWithoutMmap`). With a transient pool both are without effect, as in RocketMQ.

A map of a hole would kill the process on a full disk (SIGBUS), so a file is allocated before it is
mapped: no room is an OSError of the put that needs a file, and nothing else. A file that was
there is allocated and mapped at the first append. (A file system that writes each block anew, as
btrfs does, promises less: there the default is the only safe way.)

Always true:
- a file is mapped for as long as it is written to and not all of it is on stable storage, once;
- the first eight bytes of an append are stored last: a process that is killed in an append leaves
  nothing of it that a recovery takes for records.
"""

from __future__ import annotations

import contextlib
from typing import NamedTuple, Self

from rocketcompat.files.mapped_file import MappedFile
from rocketcompat.formats import BLANK
from rocketcompat.options import MessageStoreConfig
from rocketcompat.record.codec import encode_unfinished
from tubestore.core.layout import Buffer
from tubestore.core.vfs import Vfs, VfsFile, VfsMap

_PAGE = 4096
_UNFINISHED = encode_unfinished()


class WarmUp(NamedTuple):
    """How new files are touched before they are used (`warmMapedFileEnable`)."""

    #: After so many pages what was touched is synced; None for never.
    sync_pages: int | None

    @classmethod
    def of(cls, config: MessageStoreConfig) -> Self:
        """Return the warm-up by the options: synced on the way with synchronous flushes only."""
        sync = config.flush_disk_type == "SYNC_FLUSH"
        return cls(config.flush_least_pages_when_warm_maped_file if sync else None)


class MmapFile(MappedFile):
    """A file with appends that go to a map of it."""

    __slots__ = ("_map",)

    def __init__(self, file: VfsFile, file_from_offset: int, file_size: int, wrote: int) -> None:
        super().__init__(file, file_from_offset, file_size, wrote)
        self._map: VfsMap | None = None

    @staticmethod
    def _make_room(file: VfsFile, file_size: int) -> None:
        file.allocate(file_size)

    def map(self) -> VfsMap:
        """Map the file, allocated first; OSError without room."""
        if self._map is None:
            self._file.allocate(self.file_size)
            self._map = self._file.shared_map(self.file_size)
        return self._map

    @property
    def is_mapped(self) -> bool:
        """True while there is a map to write to."""
        return self._map is not None

    def append(self, data: Buffer, claim: int | None = None) -> int:
        """Copy to `wrote_position` of the map; returns the position. OSError: see `map`."""
        position = self.wrote_position
        end = position + len(data)
        if end > self.file_size:
            raise ValueError(f"{self.path}: {len(data)} bytes do not fit at {position}")
        write = (self._map or self.map()).write
        raw = memoryview(data)
        if len(raw) > BLANK.size:
            # In which order the bytes of a copy arrive is the C library's choice, and a kill may
            # come in between. So the copy is behind the head of an unfinished one, where recovery
            # cuts, until all of it is there; eight bytes are one store.
            write(_UNFINISHED, position)
            write(raw[BLANK.size :], position + BLANK.size)
        write(raw[: BLANK.size], position)
        self.wrote_position = end if claim is None else position + claim
        return position

    def read(self, position: int, size: int) -> bytes:
        """Read up to `size` bytes of the written prefix, from the map while there is one."""
        mapped = self._map
        if mapped is None:
            return super().read(position, size)
        size = min(size, self.wrote_position - position)
        return mapped.read(size, position) if size > 0 else b""

    def sync(self) -> bool:
        """Sync the dirty range of the map; the first time the file, for its length."""
        mapped, start, wrote = self._map, self.flushed_position, self.wrote_position
        if mapped is None or start == 0:
            done = super().sync()
        elif done := wrote > start:
            mapped.sync(start, wrote)
            self.flushed_position = wrote
        if mapped is not None and self.flushed_position == self.file_size:
            self._map = None  # it is not written to any more
        return done

    def close(self) -> None:
        """Give the descriptor back, and the map."""
        self._map = None
        super().close()


def new_mmap_file(
    vfs: Vfs, path: str, start: int, file_size: int, warm_up: WarmUp | None = None
) -> MappedFile:
    """Create a file that is mapped at once; OSError, and no file, without room for it."""
    file = MmapFile.create(vfs, path, start, file_size)
    assert isinstance(file, MmapFile)
    with contextlib.suppress(OSError):  # raised by the first append: the file is there by now
        mapped = file.map()
        if warm_up is not None:
            _touch(mapped, file_size, warm_up.sync_pages)
    return file


def _touch(mapped: VfsMap, size: int, sync_pages: int | None) -> None:
    """Write a zero to every page, so that no later put waits for one."""
    synced = 0
    for position in range(0, size, _PAGE):
        mapped.write(b"\0", position)
        if sync_pages is not None and position - synced >= sync_pages * _PAGE:
            mapped.sync(synced, position)
            synced = position
