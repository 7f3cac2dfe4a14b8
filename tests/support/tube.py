"""Shards and rows for the tests of the engine, below the level of `tubestore.open`."""

from __future__ import annotations

import base64
import hashlib
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.support.steps import check_after
from tubestore.clock import Clock, ManualClock
from tubestore.core.memory_pool import MemoryPool
from tubestore.core.vfs import Vfs
from tubestore.journal.root_journal import JournalPart
from tubestore.messages import ALL_COLUMNS
from tubestore.options import StoreOptions
from tubestore.reading.view import ShardView
from tubestore.record.columns import columns_for
from tubestore.record.records import (
    HEADER_SIZE,
    EncodedBatch,
    RecordColumns,
    Row,
    join_records,
    pack_header,
    place_record,
)
from tubestore.segments.file_store import MsgFileStore
from tubestore.shard.message_store import Background, MessageStore
from tubestore.testing import FaultyVfs, MemoryVfs

T0 = 1_700_000_000_000
LOOPBACK = 127 << 24 | 1


def make_row(payload: bytes = b"x", partition_id: int = 0, **values: Any) -> Row:
    """Return a row with plain values where none are given."""
    fields = {
        "key_code": -1,
        "received_time": T0,
        "report_address": LOOPBACK,
        "msg_id": 1,
        "flag": 0,
        **values,
    }
    return Row(partition_id=partition_id, payload=payload, **fields)


def make_rows(count: int, partitions: int = 3, start: int = 0) -> list[Row]:
    """Return rows with numbered payloads of different lengths."""
    return [
        make_row(
            b"message %d " % n + b"." * (n % 17),
            n % partitions,
            msg_id=n,
            received_time=T0 + n,
            key_code=n % 5,
        )
        for n in range(start, start + count)
    ]


def encode_row(row: Row, index_offset: int, data_offset: int) -> tuple[tuple[bytes, bytes], bytes]:
    """Encode one message at its place: ((header, payload), index entry)."""
    record, entry = place_record(pack_header(*row), row.payload, index_offset, data_offset)
    return (record[:HEADER_SIZE], record[HEADER_SIZE:]), entry


def encode_rows(rows: Sequence[Row], index_start: int, data_start: int) -> EncodedBatch:
    """Encode messages at their place."""
    parts = [part for row in rows for part in (pack_header(*row), row.payload)]
    return join_records(parts, index_start, data_start)


def columns_of(rows: Sequence[Row]) -> RecordColumns:
    """Return the same messages as columns."""
    ids, codes, times, addresses, msg_ids, flags, payloads = zip(*rows, strict=True)
    return RecordColumns(
        np.array(ids, np.int32),
        np.array(codes, np.int32),
        np.array(times, np.int64),
        np.array(addresses, np.int32),
        np.array(msg_ids, np.int64),
        np.array(flags, np.int32),
        [pa.array(payloads, pa.large_binary())],
    )


def open_shard(
    vfs: Vfs,
    directory: str = "/store/t-0",
    *,
    clock: Clock | None = None,
    background: Background | None = None,
    journalled: Sequence[JournalPart] = (),
    **options: Any,
) -> MessageStore:
    """Open one shard for writing, with recovery; its root has a directory for its state."""
    settings = StoreOptions(**options)
    root, _, name = directory.rpartition("/")
    topic, _, store_id = name.rpartition("-")
    if not vfs.exists(f"{root}/.tubestore"):
        vfs.make_directories(f"{root}/.tubestore")
    return MessageStore.open(
        MsgFileStore(vfs, directory, int(store_id), settings),
        topic=topic,
        options=settings,
        clock=clock or ManualClock(),
        pool=MemoryPool(settings.memory_bound_bytes),
        background=background,
        journalled=journalled,
    )


def write_rows(
    vfs: Vfs, rows: Iterable[Row], directory: str = "/store/t-0", **options: Any
) -> None:
    """Write rows one by one into a shard and close it."""
    shard = open_shard(vfs, directory, **options)
    for row in rows:
        shard.append(row, "page_cache")
    shard.close()


def scanned(view: ShardView, *, verify: bool = False) -> list[dict[str, Any]]:
    """Return every row of a shard in the order of offsets."""
    return [r for b in view.scan(columns_for(ALL_COLUMNS, verify=verify)) for r in b.to_pylist()]


def partition_rows(view: ShardView, partition_id: int) -> list[dict[str, Any]]:
    """Return every row of a partition."""
    found = view.find(partition_id, view.index_start, limit=10**6, max_bytes=None)
    assert not found.truncated
    columns = columns_for(ALL_COLUMNS)
    return [r for rows in found.rows for b in view.columns_of(rows, columns) for r in b.to_pylist()]


def bodies(view: ShardView) -> list[bytes | None]:
    """Return the body of every row of a shard."""
    return [row["body"] for row in scanned(view)]


def tree_digest(root: Path) -> str:
    """Digest every path, size, time and byte below a directory."""
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*")):
        status = path.lstat()
        digest.update(f"{path.relative_to(root)} {status.st_mode} {status.st_mtime_ns}".encode())
        if path.is_file():
            digest.update(path.read_bytes())
    return digest.hexdigest()


def golden_payload(record: dict[str, Any]) -> bytes | None:
    """Return the payload of an expected record; None for a large one, which has a digest only."""
    text = record.get("payload")
    return None if text is None else base64.b64decode(text)


class RunningClock(ManualClock):
    """A clock that goes on by itself, a second each time that it is asked."""

    def monotonic(self) -> float:
        """Return the time, and go on."""
        self.advance(1000)
        return super().monotonic()


class Requests:
    """Stands where the flush workers stand and only writes down what they were asked for."""

    def __init__(self) -> None:
        self.flushes: list[MessageStore] = []
        self.syncs: list[MessageStore] = []

    def flush_soon(self, shard: MessageStore) -> None:
        """Note a flush."""
        self.flushes.append(shard)

    def sync_soon(self, shard: MessageStore) -> None:
        """Note a sync."""
        self.syncs.append(shard)


#: Calls that change a shard, or look at all of it.
STEPS = (
    *("append_record", "append_encoded", "flush", "sync_data", "sync_files", "maintain"),
    *("lend", "deliver", "leave_journal", "sync_before_journal", "sync_written"),
    "note_synced",
    *("hold", "let_go", "show_adopted", "cut", "remove_below", "view", "fail", "discard"),
)


def check_each_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have every shard check its invariants after each of its calls."""
    check_after(monkeypatch, MessageStore, STEPS)


class GatedVfs(FaultyVfs):
    """A sync of data waits until a shard has taken as many messages as are expected."""

    def __init__(self, inner: MemoryVfs, messages: int) -> None:
        super().__init__(inner)
        self.messages = messages
        self.shard: MessageStore | None = None

    def ask(self, call: str, path: str) -> None:
        if call == "sync" and path.endswith(".tube") and self.shard is not None:
            for _ in range(10_000):
                if self.shard.stats()["appends"] >= self.messages:
                    break
                threading.Event().wait(0.001)
            else:
                raise AssertionError(f"{self.messages} messages did not come")
        super().ask(call, path)


def quarantined(vfs: MemoryVfs) -> dict[str, bytes]:
    """Return what is in a root's quarantine, by its path below the root, copies of tails too."""
    found = {}
    for path, data in vfs.tree().items():
        if "/quarantine/" in path:
            name = path.partition("/quarantine/")[2].partition("/")[2]
            start = int(name.partition("@")[2].partition("~")[0] or 0)
            assert not data[:start].strip(b"\0"), path
            found[name] = data[start:]
    return found
