"""A segment of the ring, and what the ring needs of the shards that have frames in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from tubestore.core.layout import Buffer
from tubestore.core.vfs import VfsFile, VfsMap
from tubestore.disks.file_syncs import SyncedShard


class RingShard(SyncedShard, Protocol):
    """What the ring needs of a shard; `MessageStore` has it."""

    name: str

    def write_below(self, position: int, patience: float = -1) -> int:
        """Write everything if a message with a frame below a ring position is in no file.

        Returns the ring position below which all its messages are in files; -1 if another thread
        holds the shard for more than `patience` seconds (-1: it waits).
        """

    def leave_ring(self) -> None:
        """Record that the ring does not cover the messages in the files any more."""

    def sync_written(self) -> None:
        """Write the buffers, and sync the data, including that of an earlier process."""

    def is_deleted(self) -> bool:
        """Return True if the shard's topic was deleted."""


class Segment:
    """A part of the ring in a file of its own."""

    __slots__ = ("_map", "base", "end", "file", "push", "shards")

    def __init__(self, file: VfsFile, map_: VfsMap | None) -> None:
        """Write through the map, or without one by calls."""
        self.file, self._map = file, map_
        #: Writes bytes behind those that it has written before.
        self.push: Callable[[Buffer], object]
        #: Ring positions: where it begins, and behind its last frame once it is full.
        self.base = self.end = 0
        #: Shards that have frames in it.
        self.shards: dict[RingShard, None] = {}
        self.go_to(0)

    def put(self, data: Buffer, position: int) -> None:
        """Write bytes at a position of the file."""
        if self._map is not None:
            self._map.write(data, position)
        else:
            self.file.pwrite(data, position)

    def go_to(self, position: int) -> None:
        """Have `push` go on at a position of the file."""
        if self._map is not None:
            self.push = self._map.pieces_from(position)
        else:
            self.push = _Pieces(self.file, position)


class _Pieces:
    """Writes pieces to a file one behind the other."""

    def __init__(self, file: VfsFile, position: int) -> None:
        self._file, self._at = file, position

    def __call__(self, data: Buffer) -> None:
        self._file.pwrite(data, self._at)
        self._at += len(data)
