"""Kafka's own format: a log a partition, of record batches v2, with `.index` and `.timeindex`.

Kafka's `DumpLogSegments` accepts the files. A partition is a directory `topic00000-3` with segments
that are named by their first offset:

    .log        batches: a header of 61 bytes with CRC-32C, and records of varints
    .index      8 bytes for every 4 KiB of log: offset and position, relative to the segment
    .timeindex  12 bytes beside each of those: the largest time until then, and its offset

Kafka maps index files of 10 MiB and cuts them when a segment is closed; these are written by calls
and have their true length always. A single message is a batch of one record, as a producer sends
it that waits for nothing.
"""

from __future__ import annotations

import bisect
import os
import resource
import struct
import threading
import time
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Sized
from pathlib import Path
from typing import Any

import pyarrow as pa

from bench.layouts.capabilities import Unavailable
from bench.layouts.layout import Durability, Position, columns_of

#: baseOffset, batchLength, partitionLeaderEpoch, magic, crc, attributes, lastOffsetDelta,
#: baseTimestamp, maxTimestamp, producerId, producerEpoch, baseSequence, records.
_HEADER = struct.Struct(">qiibIhiqqqhii")
_AFTER_CRC = struct.Struct(">hiqqqhii")
_BEFORE_CRC = struct.Struct(">qiibI")
_LENGTH = struct.Struct(">qi")
_INDEX = struct.Struct(">ii")
_TIME_INDEX = struct.Struct(">qi")
_PREFIX = 12
_CRC_END = 21
_MAGIC = 2
INDEX_INTERVAL = 4096
SEGMENT_BYTES = 1 << 30
#: Left by a close, as Kafka does; without it the last segments are verified.
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
_READ_BYTES = 1 << 20
_HEADS_KEPT = 1 << 16


def crc32c_function() -> tuple[Callable[[bytes], int], str]:
    """Return a CRC-32C and its library: crc32c, which uses the processor's, or else crcmod."""
    try:
        from crc32c import crc32c

        return crc32c, "crc32c"
    except ImportError:
        import crcmod.predefined

        return crcmod.predefined.mkCrcFun("crc-32c"), "crcmod"


_crc, CRC_LIBRARY = crc32c_function()


def varint(value: int) -> bytes:
    """Return a number as a zigzag varint."""
    value = (value << 1) ^ (value >> 63)
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def read_varint(data: Any, at: int) -> tuple[int, int]:
    """Return (value, where the next one begins)."""
    byte = data[at]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), at + 1
    value, shift = byte & 0x7F, 7
    while True:
        at += 1
        byte = data[at]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at + 1
        shift += 7


_heads: dict[tuple[int, int], bytes] = {}


def _head(delta: int, size: int) -> bytes:
    """Return what precedes a record's value; it depends on little, so it is kept."""
    found = _heads.get((delta, size))
    if found is None:
        # attributes, time delta, offset delta, no key
        fields = b"\0\0" + varint(delta) + b"\x01" + varint(size)
        found = varint(len(fields) + size + 1) + fields
        if len(_heads) < _HEADS_KEPT:
            _heads[delta, size] = found
    return found


def encode(first: int, bodies: list[bytes], time_ms: int) -> bytes:
    """Return a record batch of these values, without keys and headers."""
    parts: list[bytes] = [b""]
    for delta, body in enumerate(bodies):
        parts += (_head(delta, len(body)), body, b"\0")
    last = len(bodies) - 1
    parts[0] = _AFTER_CRC.pack(0, last, time_ms, time_ms, -1, -1, -1, len(bodies))
    counted = b"".join(parts)
    length = len(counted) + _CRC_END - _PREFIX
    return _BEFORE_CRC.pack(first, length, 0, _MAGIC, _crc(counted)) + counted


def values(batch: Any) -> list[bytes]:
    """Return the values of one record batch."""
    count = int.from_bytes(batch[57:61], "big")
    at, found = _HEADER.size, []
    for _ in range(count):
        length, at = read_varint(batch, at)
        end = at + length
        at += 1
        _, at = read_varint(batch, at)
        _, at = read_varint(batch, at)
        key, at = read_varint(batch, at)
        size, at = read_varint(batch, at + max(key, 0))
        found.append(bytes(batch[at : at + size]))
        at = end
    return found


class _Segment:
    """One `.log` with its two indexes."""

    def __init__(self, stem: Path, base: int) -> None:
        self.stem = stem
        self.base = base
        self.size = 0
        #: Of the `.index`: offsets and positions, relative to the segment.
        self.offsets: list[int] = []
        self.positions: list[int] = []
        self.since_entry = 0
        #: The largest time until now and its offset, and that of the last `.timeindex` entry.
        self.largest = (-1, 0)
        #: Of the `.timeindex`: times, and offsets relative to the segment.
        self.times: list[int] = []
        self.time_offsets: list[int] = []

    def path(self, suffix: str) -> str:
        return f"{self.stem}{suffix}"

    def position_of(self, offset: int) -> int:
        """Return where to begin looking for an offset."""
        found = bisect.bisect_right(self.offsets, offset - self.base) - 1
        return self.positions[found] if found >= 0 else 0


class _Files:
    """Open files of all partitions; at most half of what the process may have."""

    def __init__(self) -> None:
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._most = max(16, limit // 2)
        self._open: OrderedDict[str, int] = OrderedDict()
        self._lock = threading.Lock()

    def append(self, path: str, data: bytes) -> int:
        """Write at the end; returns the descriptor, which stays open."""
        with self._lock:
            fd = self._descriptor(path)
            written = os.write(fd, data)
            while written < len(data):
                written += os.write(fd, data[written:])
            return fd

    def read(self, path: str, position: int, size: int) -> bytes:
        with self._lock:
            return os.pread(self._descriptor(path), size, position)

    def _descriptor(self, path: str) -> int:
        fd = self._open.get(path)
        if fd is None:
            while len(self._open) >= self._most:
                os.close(self._open.popitem(last=False)[1])
            fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
            self._open[path] = fd
        else:
            self._open.move_to_end(path)
        return fd

    def drop(self, path: str) -> None:
        with self._lock:
            fd = self._open.pop(path, None)
        if fd is not None:
            os.close(fd)

    def close(self) -> None:
        for fd in self._open.values():
            os.close(fd)
        self._open.clear()


class _Log:
    """One partition: its segments and the next offset."""

    def __init__(
        self, directory: Path, files: _Files, *, sync: bool, segment_bytes: int, clean: bool
    ) -> None:
        self.directory = directory
        self._files = files
        self._sync = sync
        self._segment_bytes = segment_bytes
        self._lock = threading.Lock()
        directory.mkdir(exist_ok=True)
        bases = sorted(int(path.stem) for path in directory.glob("*.log"))
        self.segments = [self._loaded(base) for base in bases]
        self.next = self._recovered(clean=clean) if bases else 0
        if not bases:
            self._roll()

    def _roll(self) -> _Segment:
        segment = _Segment(self.directory / f"{self.next:020d}", self.next)
        for suffix in (".log", ".index", ".timeindex"):
            self._files.append(segment.path(suffix), b"")
        self.segments.append(segment)
        return segment

    def _loaded(self, base: int) -> _Segment:
        segment = _Segment(self.directory / f"{base:020d}", base)
        segment.size = os.path.getsize(segment.path(".log"))
        entries = Path(segment.path(".index")).read_bytes()
        for offset, position in _INDEX.iter_unpack(entries[: len(entries) // 8 * 8]):
            if position < segment.size:
                segment.offsets.append(offset)
                segment.positions.append(position)
        times = Path(segment.path(".timeindex")).read_bytes()
        for found in _TIME_INDEX.iter_unpack(times[: len(times) // 12 * 12]):
            segment.times.append(found[0])
            segment.time_offsets.append(found[1])
            segment.largest = found
        return segment

    def _recovered(self, *, clean: bool) -> int:
        """Verify the last segment, all of it after a kill, and cut off a torn batch."""
        last = self.segments[-1]
        at, following = 0, last.base
        if clean and last.positions:
            at, following = last.positions[-1], last.base + last.offsets[-1]
        path = last.path(".log")
        while at < last.size:
            head = self._files.read(path, at, _HEADER.size)
            if len(head) < _HEADER.size:
                break
            fields = _HEADER.unpack(head)
            batch = self._files.read(path, at, _PREFIX + fields[1])
            if len(batch) < _PREFIX + fields[1] or _crc(batch[_CRC_END:]) != fields[4]:
                break
            at += len(batch)
            following = fields[0] + fields[6] + 1
        if at < last.size:
            os.truncate(path, at)
            last.size = at
            while last.positions and last.positions[-1] >= at:
                last.offsets.pop()
                last.positions.pop()
        return following

    def append(self, bodies: list[bytes], time_ms: int) -> None:
        with self._lock:
            segment, files = self.segments[-1], self._files
            batch = encode(self.next, bodies, time_ms)
            if segment.size and segment.size + len(batch) > self._segment_bytes:
                segment = self._roll()
            written = [files.append(segment.path(".log"), batch)]
            self.next += len(bodies)
            if time_ms > segment.largest[0]:
                segment.largest = time_ms, self.next - 1 - segment.base
            if segment.since_entry > INDEX_INTERVAL:
                last = self.next - 1 - segment.base
                segment.offsets.append(last)
                segment.positions.append(segment.size)
                index = _INDEX.pack(last, segment.size)
                written.append(files.append(segment.path(".index"), index))
                if not segment.times or segment.largest[0] > segment.times[-1]:
                    segment.times.append(segment.largest[0])
                    segment.time_offsets.append(segment.largest[1])
                    entry = _TIME_INDEX.pack(*segment.largest)
                    written.append(files.append(segment.path(".timeindex"), entry))
                segment.since_entry = 0
            segment.since_entry += len(batch)
            segment.size += len(batch)
            if self._sync:
                for fd in written:
                    os.fdatasync(fd)

    def batches(self, offset: int) -> Iterator[memoryview]:
        """Yield the batches from the one with this offset on."""
        place = bisect.bisect_right([one.base for one in self.segments], offset) - 1
        for segment in self.segments[max(0, place) :]:
            at = segment.position_of(offset)
            path, size = segment.path(".log"), segment.size
            while at < size:
                block = memoryview(self._files.read(path, at, min(_READ_BYTES, size - at)))
                done = 0
                while len(block) - done >= _PREFIX:
                    first, length = _LENGTH.unpack_from(block, done)
                    end = done + _PREFIX + length
                    if end > len(block):
                        break
                    last = first + int.from_bytes(block[done + 23 : done + 27], "big")
                    if last >= offset:
                        yield block[done:end]
                    done = end
                if done == 0:  # a batch that is larger than a block
                    _, length = _LENGTH.unpack_from(block)
                    yield memoryview(self._files.read(path, at, _PREFIX + length))
                    done = _PREFIX + length
                at += done


class KafkaFormat:
    """A directory a partition, in Kafka's files; checksums on writing, and on a scan that asks."""

    name = "kafka format"
    capabilities = frozenset(
        ("append", "batch", "read", "follow", "scan", "by_time", "retain", "threads", "fsync")
    ) | {"sizes", "reopen", "recover"}
    settings = f"record batches v2, CRC-32C by {CRC_LIBRARY}, index every 4 KiB, segments of 1 GiB"
    segment_bytes = SEGMENT_BYTES

    def __init__(self, root: Path, *, topics: int, partitions: int, durability: Durability) -> None:
        self._files = _Files()
        self._marker = root / CLEAN_SHUTDOWN
        clean = self._marker.exists()
        self._marker.unlink(missing_ok=True)
        self._partitions = partitions
        self._logs: list[_Log] = []
        for topic in range(topics):
            for partition in range(partitions):
                directory = root / f"topic{topic:05d}-{partition}"
                try:
                    log = _Log(
                        directory, self._files,
                        sync=durability == "fsync", segment_bytes=self.segment_bytes,
                        clean=clean,
                    )  # fmt: skip
                except OSError as error:
                    self._files.close()
                    raise Unavailable(f"{directory.name}: {error.strerror}") from error
                self._logs.append(log)

    def append(self, topic: int, partition: int, body: bytes) -> None:
        now = time.time_ns() // 1_000_000
        self._logs[topic * self._partitions + partition].append([body], now)

    def append_batch(self, batch: pa.Table) -> None:
        times = batch.column("time_ms")[0].as_py() if "time_ms" in batch.column_names else None
        now = time.time_ns() // 1_000_000 if times is None else times
        groups: dict[int, list[bytes]] = defaultdict(list)
        width = self._partitions
        for topic, partition, body in zip(*columns_of(batch), strict=True):
            groups[topic * width + partition].append(body)
        for place, bodies in groups.items():
            self._logs[place].append(bodies, now)

    def flush(self) -> None:
        pass  # each batch is written by its call

    def read(
        self, topic: int, partition: int, position: Position | None, limit: int, *, lean: bool
    ) -> tuple[Sized, Position | None]:
        rows, following = self.follow(topic, partition, position, limit)
        end = self._logs[topic * self._partitions + partition].next
        return rows, following if following < end else None  # type: ignore[operator]

    def follow(
        self, topic: int, partition: int, position: Position | None, limit: int
    ) -> tuple[Sized, Position]:
        log = self._logs[topic * self._partitions + partition]
        offset = log.segments[0].base if position is None else int(position)  # type: ignore[call-overload]
        rows: list[bytes] = []
        for batch in log.batches(offset):
            found = values(batch)
            first = _LENGTH.unpack_from(batch)[0]
            rows += found[max(0, offset - first) :]
            if len(rows) >= limit:
                break
        del rows[limit:]
        return rows, offset + len(rows)

    def bodies(self, rows: Any) -> list[bytes]:
        return rows  # type: ignore[no-any-return]

    def scan(self, *, verify: bool) -> Iterator[Sized]:
        for log in self._logs:
            for batch in log.batches(0):
                if verify and _crc(batch[_CRC_END:]) != int.from_bytes(batch[17:21], "big"):
                    raise ValueError(f"{log.directory.name}: a batch with another checksum")
                yield values(batch)

    def offset_at(self, topic: int, partition: int, time_ms: int) -> Position:
        """Return the offset of the first message at or after a time."""
        log = self._logs[topic * self._partitions + partition]
        for segment in log.segments:
            before = bisect.bisect_left(segment.times, time_ms) - 1
            start = segment.base + (segment.time_offsets[before] if before >= 0 else 0)
            for batch in log.batches(start):
                fields = _HEADER.unpack_from(batch)
                if fields[8] >= time_ms:
                    return fields[0]  # type: ignore[no-any-return]
        return log.next

    def retain(self, keep_bytes: int) -> None:
        """Remove the oldest segments of each partition, all but its share of so many bytes."""
        share = keep_bytes // len(self._logs)
        for log in self._logs:
            size = sum(segment.size for segment in log.segments)
            while len(log.segments) > 1 and size - log.segments[0].size >= share:
                gone = log.segments.pop(0)
                size -= gone.size
                for suffix in (".log", ".index", ".timeindex"):
                    self._files.drop(gone.path(suffix))
                    os.unlink(gone.path(suffix))

    def close(self) -> None:
        self._files.close()
        self._marker.touch()
