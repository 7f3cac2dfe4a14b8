"""Files without a store: one file in sequence, slots at random places, a map; and what sends them.

The machine's own limits, as layouts: rows WR-04 (sequential beside random in-place writes), WR-05
(a map beside calls) and MEM-02 (sendfile beside a map, by block size). Where a message lies is kept
in memory only, so that what was written can be read back and compared.
"""

from __future__ import annotations

import mmap
import os
import random
from array import array
from collections import defaultdict
from collections.abc import Sized
from pathlib import Path
from typing import Any

import pyarrow as pa

from bench.layouts.layout import Durability, Position, columns_of

REGION_BYTES = 64 << 20
#: What the random writes have, written before anything is timed; a multiple of `_ZEROS`.
SLOTS_BYTES = 256 << 20
_ZEROS = bytes(1 << 20)
_SEED = 20_261_121


class RawFile:
    """One file; a message is one write at its end."""

    name = "raw file"
    capabilities = frozenset(("append", "batch", "read", "fsync", "sizes", "transfer"))
    settings = "one file, a write a call, no headers, no checksums, no index on disk"

    def __init__(self, root: Path, *, topics: int, partitions: int, durability: Durability) -> None:
        self._path = root / "raw"
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        self._sync = durability == "fsync"
        self._end = 0
        self._placed: dict[tuple[int, int], array[int]] = defaultdict(lambda: array("q"))

    def append(self, topic: int, partition: int, body: bytes) -> None:
        at = self._end
        self._write(body, at)
        self._end = at + len(body)
        self._placed[topic, partition].extend((at, len(body)))

    def append_batch(self, batch: pa.Table) -> None:
        topics, partitions, bodies = columns_of(batch)
        at = self._end
        self._write(b"".join(bodies), at)
        for topic, partition, body in zip(topics, partitions, bodies, strict=True):
            self._placed[topic, partition].extend((at, len(body)))
            at += len(body)
        self._end = at

    def _write(self, data: bytes, at: int) -> None:
        os.pwrite(self._fd, data, at)
        if self._sync:
            os.fdatasync(self._fd)

    def flush(self) -> None:
        pass

    def read(
        self, topic: int, partition: int, position: Position | None, limit: int, *, lean: bool
    ) -> tuple[Sized, Position | None]:
        places, first = self._placed[topic, partition], int(position or 0)  # type: ignore[call-overload]
        end = min(len(places) // 2, first + limit)
        rows = [os.pread(self._fd, places[2 * n + 1], places[2 * n]) for n in range(first, end)]
        return rows, end if 2 * end < len(places) else None

    def bodies(self, rows: Any) -> list[bytes]:
        return rows  # type: ignore[no-any-return]

    def transfer(self, descriptor: int, block: int) -> int:
        """Send the file, a block a call; return how many bytes."""
        done = 0
        while done < self._end:
            done += os.sendfile(descriptor, self._fd, done, min(block, self._end - done))
        return done

    def close(self) -> None:
        os.close(self._fd)


class RandomWrites(RawFile):
    """The same writes at random places of an allocated file: slots that no two messages share."""

    name = "random in-place writes"
    capabilities = frozenset(("append", "read", "fsync"))
    settings = "slots of the first message's length in a random order; 256 MiB are written before"

    def __init__(self, root: Path, *, topics: int, partitions: int, durability: Durability) -> None:
        super().__init__(root, topics=topics, partitions=partitions, durability=durability)
        self._random = random.Random(_SEED)
        self._slots: list[int] = []
        self._filled = self._used = 0
        self._fill(SLOTS_BYTES)

    def append(self, topic: int, partition: int, body: bytes) -> None:
        if not self._slots:
            if self._used == self._filled:
                self._fill(SLOTS_BYTES)
            self._slots = [
                self._used + n * len(body) for n in range((self._filled - self._used) // len(body))
            ]
            self._random.shuffle(self._slots)
            self._used = self._filled
        at = self._slots.pop()
        self._write(body, at)
        self._placed[topic, partition].extend((at, len(body)))

    def _fill(self, size: int) -> None:
        """Write zeros: what is written in place afterwards has its blocks already."""
        for at in range(self._filled, self._filled + size, len(_ZEROS)):
            os.pwrite(self._fd, _ZEROS, at)
        self._filled += size


class MappedFile(RawFile):
    """One file, written through a map; sent from a map."""

    name = "raw map"
    settings = "one file of allocated regions of 64 MiB, written and sent through a map"

    def __init__(self, root: Path, *, topics: int, partitions: int, durability: Durability) -> None:
        super().__init__(root, topics=topics, partitions=partitions, durability=durability)
        self._maps: list[mmap.mmap] = []
        self._map_next()

    def _map_next(self) -> None:
        start = len(self._maps) * REGION_BYTES
        os.posix_fallocate(self._fd, start, REGION_BYTES)
        self._maps.append(mmap.mmap(self._fd, REGION_BYTES, offset=start))

    def _write(self, data: bytes, at: int) -> None:
        view = memoryview(data)
        while view:
            number, inside = divmod(at, REGION_BYTES)
            if number == len(self._maps):
                self._map_next()
            part = view[: REGION_BYTES - inside]
            self._maps[number][inside : inside + len(part)] = part
            at, view = at + len(part), view[len(part) :]
        if self._sync:
            os.fdatasync(self._fd)

    def transfer(self, descriptor: int, block: int) -> int:
        done = 0
        while done < self._end:
            number, inside = divmod(done, REGION_BYTES)
            end = min(inside + block, REGION_BYTES, inside + self._end - done)
            with memoryview(self._maps[number]) as view, view[inside:end] as part:
                done += os.write(descriptor, part)
        return done

    def close(self) -> None:
        for one in self._maps:
            one.close()
        os.truncate(self._fd, self._end)
        super().close()
