"""What this machine can do: the same bytes, in plain Python, NumPy and Arrow, and nothing else.

No locks, no checks, no second file to roll to, no reader to serve. The bodies here are equally
long; where that makes a shorter way possible, a limit takes it ("any length" is the way that a
store has to go).
"""

from __future__ import annotations

import mmap
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from isal.isal_zlib import crc32

from bench.layouts.layout import TopicSharded, fresh
from bench.workloads.cases import Case, Measure, Runner, clock
from tubestore.record.layouts import DATA_HEADER, INDEX_ENTRY, TOKEN_MESSAGE

HEADER, ENTRY = DATA_HEADER.size, INDEX_ENTRY.size
BUFFERED = 5120
WRITE_BYTES = 1 << 20
SCAN_ROWS = 4096

Array = np.ndarray[Any, Any]


class Files:
    """A data and an index file that only grow."""

    def __init__(self, root: Path) -> None:
        self.root = fresh(root)
        flags = os.O_WRONLY | os.O_CREAT
        self.data, self.index = (os.open(self.root / n, flags) for n in ("data", "index"))

    def __enter__(self) -> Files:
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self.data)
        os.close(self.index)
        shutil.rmtree(self.root)


def encode(bodies: memoryview, count: int, partitions: Array, first: int) -> tuple[Array, Array]:
    """Encode equally long bodies as records and entries, checksums included."""
    size = len(bodies) // count
    ends = range(size, count * size + 1, size)
    headers = np.zeros(count, DATA_HEADER.dtype)
    headers["length"] = HEADER - 4 + size
    headers["token"] = TOKEN_MESSAGE
    headers["checksum"] = [crc32(bodies[end - size : end]) & 0x7FFFFFFF for end in ends]
    headers["partition_id"] = partitions
    headers["queue_logic_offset"] = np.arange(first, first + count) * ENTRY
    headers["received_time"] = 1
    headers["key_code"] = -1
    headers["msg_id"] = np.arange(first, first + count)
    records = np.empty((count, HEADER + size), np.uint8)
    records[:, :HEADER] = headers.view(np.uint8).reshape(count, HEADER)
    records[:, HEADER:] = np.frombuffer(bodies, np.uint8).reshape(count, size)
    entries = np.empty(count, INDEX_ENTRY.dtype)
    entries["partition_id"] = partitions
    entries["data_offset"] = np.arange(first, first + count) * (HEADER + size)
    entries["data_size"] = HEADER + size
    entries["key_code"] = -1
    entries["received_time"] = 1
    return records.reshape(-1), entries.view(np.uint8)


@contextmanager
def encode_and_write(case: Case) -> Iterator[Runner]:
    """Batches: headers, a CRC each, one copy, two writes a batch."""
    tables = [
        (t.column("partition").to_numpy(), t.column("body").combine_chunks())
        for t in case.payload.batches(case.batch, partitions=case.partitions)
    ]

    def run(messages: int) -> Measure:
        calls = max(1, messages // case.batch)
        with Files(case.place / "limit") as files, clock() as times:
            for number, (partitions, column) in enumerate(islice(cycle(tables), calls)):
                bodies = memoryview(column.buffers()[2])[: case.batch * case.payload.body_size]
                data, index = encode(bodies, case.batch, partitions, number * case.batch)
                os.write(files.data, data.data)
                os.write(files.index, index.data)
        return Measure.of(calls * case.batch, calls, times)

    yield run


class _Buffer:
    """The least that one-by-one appends can be: a list, encoded together when it is full."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._bodies: list[bytes] = []
        self._partitions: list[int] = []
        self._first = 0

    def append(self, partition: int, body: bytes) -> int:
        self._bodies.append(body)
        self._partitions.append(partition)
        if len(self._bodies) == BUFFERED:
            self.flush()
        return self._first + len(self._bodies)

    def flush(self) -> None:
        count = len(self._bodies)
        if count:
            joined = memoryview(b"".join(self._bodies))
            data, index = encode(joined, count, np.array(self._partitions), self._first)
            os.write(self._files.data, data.data)
            os.write(self._files.index, index.data)
            self._first += count
            self._bodies.clear()
            self._partitions.clear()


@contextmanager
def buffer_and_encode(case: Case) -> Iterator[Runner]:
    """One by one, from memory: a method call each, no lock, 5120 encoded and written at a time."""

    def run(messages: int) -> Measure:
        with Files(case.place / "limit") as files, clock() as times:
            buffer = _Buffer(files)
            for number, body in enumerate(case.payload.messages(messages)):
                buffer.append(number % case.partitions, body)
            buffer.flush()
        return Measure.of(messages, messages, times)

    yield run


@contextmanager
def write_each(case: Case) -> Iterator[Runner]:
    """One by one: a write call for each body, no header, no index."""

    def run(messages: int) -> Measure:
        with Files(case.place / "limit") as files, clock() as times:
            write, fd = os.write, files.data
            for body in case.payload.messages(messages):
                write(fd, body)
        return Measure.of(messages, messages, times)

    yield run


@contextmanager
def raw_write(case: Case) -> Iterator[Runner]:
    """The same number of bytes (records and entries) in writes of 1 MiB."""
    block = (case.payload.text * (1 + WRITE_BYTES // len(case.payload.text)))[:WRITE_BYTES]

    def run(messages: int) -> Measure:
        left = messages * (HEADER + case.payload.body_size + ENTRY)
        calls = -(-left // WRITE_BYTES)
        with Files(case.place / "limit") as files, clock() as times:
            for _ in range(calls - 1):
                os.write(files.data, block)
            os.write(files.data, block[: left - (calls - 1) * WRITE_BYTES])
        return Measure.of(messages, calls, times)

    yield run


@contextmanager
def write_and_sync(case: Case) -> Iterator[Runner]:
    """One thread: a record in one write, fdatasync, the next; the file grows."""

    def run(messages: int) -> Measure:
        header = bytes(HEADER)
        with Files(case.place / "limit") as files:
            os.write(files.data, header)
            os.fsync(files.data)
            with clock() as times:
                for body in case.payload.messages(messages):
                    os.write(files.data, header + body)
                    os.fdatasync(files.data)
        return Measure.of(messages, messages, times)

    yield run


@contextmanager
def write_and_sync_batches(case: Case) -> Iterator[Runner]:
    """One thread: the records of a batch in one write, fdatasync, the next; the file grows."""
    record = HEADER + case.payload.body_size
    size = case.batch * record
    block = (case.payload.text * (1 + size // len(case.payload.text)))[:size]

    def run(messages: int) -> Measure:
        calls = max(1, messages // case.batch)
        with Files(case.place / "limit") as files:
            os.write(files.data, block[:record])
            os.fsync(files.data)
            with clock() as times:
                for _ in range(calls):
                    os.write(files.data, block)
                    os.fdatasync(files.data)
        return Measure.of(calls * case.batch, calls, times)

    yield run


# -- reading: over the files that our store wrote --------------------------------------------


class Stored:
    """The records and entries of a stored case, each stream as one mapped file."""

    def __init__(self, case: Case) -> None:
        shard = case.stored(TopicSharded) / "topic00000-0"
        self.data = self._map(sorted(shard.glob("*.tube")), case.place / "joined")
        parts = [np.fromfile(p, INDEX_ENTRY.dtype) for p in sorted(shard.glob("index/*.index"))]
        entries = np.concatenate(parts)
        self.partitions = entries["partition_id"].astype(np.int32)
        self.starts = entries["data_offset"].astype(np.int64)
        self.ends = self.starts + entries["data_size"]

    @staticmethod
    def _map(paths: list[Path], joined: Path) -> mmap.mmap:
        if len(paths) > 1 and not joined.exists():
            with joined.open("wb") as out:
                for path in paths:
                    with path.open("rb") as part:
                        shutil.copyfileobj(part, out, WRITE_BYTES)
        with (joined if len(paths) > 1 else paths[0]).open("rb") as file:
            return mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)

    def bodies(self, starts: Array, ends: Array) -> pa.LargeBinaryArray:
        """Copy bodies of any length out with one `take`."""
        count = len(starts)
        bounds = np.empty(2 * count, np.int64)
        bounds[0::2], bounds[1::2] = starts + HEADER, ends
        buffers = [None, pa.py_buffer(bounds), pa.py_buffer(self.data)]
        pieces = pa.Array.from_buffers(pa.large_binary(), 2 * count - 1, buffers)
        return pieces.take(pa.array(np.arange(0, 2 * count - 1, 2)))


@contextmanager
def gather(case: Case) -> Iterator[Runner]:
    """Offsets and bodies of a partition by its posting list, into Arrow."""
    stored = Stored(case)
    order = np.argsort(stored.partitions, kind="stable")
    bounds = stored.partitions[order].searchsorted(np.arange(case.partitions + 1))
    random = np.random.default_rng(1).permutation(case.partitions).tolist()
    turn = cycle(random)

    def run(messages: int) -> Measure:
        count = calls = 0
        with clock() as times:
            while count < messages:
                partition = next(turn)
                low, high = bounds[partition], bounds[partition + 1]
                while low < high and count < messages:
                    rows = order[low : min(high, low + case.limit)]
                    page = pa.RecordBatch.from_arrays(
                        [
                            pa.array(rows * ENTRY),
                            stored.bodies(stored.starts[rows], stored.ends[rows]),
                        ],
                        ["offset", "body"],
                    )
                    low += len(rows)
                    count += page.num_rows
                    calls += 1
        return Measure.of(count, calls, times)

    yield run


def scan(*, any_length: bool = False, verify: bool = False) -> Callable[[Case], Any]:
    """All header fields as columns and the bodies, some thousand messages at a time."""

    @contextmanager
    def start(case: Case) -> Iterator[Runner]:
        stored = Stored(case)
        size = HEADER + case.payload.body_size
        raw = np.frombuffer(stored.data, np.uint8)
        names = [f.name for f in DATA_HEADER.fields if f.name not in ("length", "token")]

        def portion(low: int, high: int) -> pa.RecordBatch:
            count = high - low
            if any_length:
                windows = np.ndarray((len(raw) - HEADER + 1,), f"V{HEADER}", raw, strides=(1,))
                headers = windows[stored.starts[low:high]].view(DATA_HEADER.dtype)
                bodies = stored.bodies(stored.starts[low:high], stored.ends[low:high])
            else:
                records = raw[low * size : high * size].reshape(count, size)
                headers = np.ascontiguousarray(records[:, :HEADER]).view(DATA_HEADER.dtype)[:, 0]
                content = np.ascontiguousarray(records[:, HEADER:])
                offsets = np.arange(0, content.nbytes + 1, content.shape[1])
                buffers = [None, pa.py_buffer(offsets), pa.py_buffer(content)]
                bodies = pa.Array.from_buffers(pa.large_binary(), count, buffers)
            if verify:
                view, step = memoryview(bodies.buffers()[2]), case.payload.body_size
                found = [crc32(view[at : at + step]) for at in range(0, count * step, step)]
                assert (np.array(found) & 0x7FFFFFFF == headers["checksum"]).all()
            columns = [headers[n].astype(headers.dtype[n].newbyteorder("=")) for n in names]
            return pa.RecordBatch.from_arrays([*map(pa.array, columns), bodies], [*names, "body"])

        def run(messages: int) -> Measure:
            total, count = len(stored.starts), 0
            with clock() as times:
                for low in range(0, total, SCAN_ROWS):
                    count += portion(low, min(total, low + SCAN_ROWS)).num_rows
            return Measure.of(count, -(-total // SCAN_ROWS), times)

        yield run

    return start


@contextmanager
def checksums(case: Case) -> Iterator[Runner]:
    """A CRC of each body over a fresh map, and nothing else."""
    stored = Stored(case)
    bounds = list(zip((stored.starts + HEADER).tolist(), stored.ends.tolist(), strict=True))

    def run(messages: int) -> Measure:
        with clock() as times:
            view = memoryview(Stored(case).data)
            for start, end in bounds:
                crc32(view[start:end])
        return Measure.of(len(bounds), 1, times)

    yield run
