"""Rivals that run in Python: the usual choices for an embedded, partitioned log.

Each stores a message under (topic, partition, number) and reads a partition as a range. Each is
set up as its own documentation recommends for this work; `settings` has the details for the report.
Numbers of a partition have no gaps, so the last one gives the end of a range.
"""

from __future__ import annotations

import sqlite3
import struct
import threading
from collections import defaultdict
from collections.abc import Iterator, Sized
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from bench.layouts.layout import Durability, Position, Unavailable, columns_of

_KEY = struct.Struct(">HHQ")
_LAST = (1 << 64) - 1
_SCAN_ROWS = 10_000
_STORE = frozenset(("append", "batch", "read", "scan", "fsync", "sizes", "reopen", "recover"))


class _Numbered:
    """Gives the messages of a partition their numbers."""

    def __init__(self) -> None:
        self._next: dict[tuple[int, int], int] = defaultdict(int)

    def _number(self, topic: int, partition: int) -> int:
        number = self._next[topic, partition]
        self._next[topic, partition] = number + 1
        return number

    def follow(
        self, topic: int, partition: int, position: Position | None, limit: int
    ) -> tuple[Sized, Position]:
        """As `read`, with a place to go on from at the end, too."""
        rows, _ = self.read(topic, partition, position, limit, lean=True)  # type: ignore[attr-defined]
        return rows, int(position or 0) + len(rows)  # type: ignore[call-overload]

    def _numbered(self, batch: pa.Table) -> Iterator[tuple[int, int, int, bytes]]:
        for topic, partition, body in zip(*columns_of(batch), strict=True):
            yield topic, partition, self._number(topic, partition), body

    def _keyed(self, batch: pa.Table) -> list[tuple[bytes, bytes]]:
        """Return keys and bodies in the order of the keys, as B trees and LSM trees like them."""
        return sorted((_KEY.pack(t, p, n), body) for t, p, n, body in self._numbered(batch))


class Lmdb(_Numbered):
    """LMDB: one B+ tree; a transaction an append, no sync below the `fsync` level.

    Its documentation: `writemap` and no `meminit` are the fastest way to write; no read-ahead for
    what is read at random; `buffers` shows values instead of copying them, valid until the
    transaction ends; a read transaction may be kept.
    """

    name = "lmdb"
    capabilities = _STORE | {"threads", "follow"}
    settings = "writemap, no meminit, no readahead, buffers, sorted putmulti, one read transaction"

    def __init__(self, root: Path, *, topics: int, partitions: int, durability: Durability) -> None:
        super().__init__()
        try:
            import lmdb
        except ImportError as error:
            raise Unavailable("lmdb is not installed (pip install tubestore[bench])") from error
        synced = durability == "fsync"
        self._env: Any = lmdb.open(
            str(root),
            map_size=16 << 30,
            sync=synced,
            metasync=synced,
            writemap=True,
            meminit=False,
            readahead=False,
        )
        self._reading = threading.local()
        #: Counts commits: a read transaction shows those before it.
        self._commits = 0

    def append(self, topic: int, partition: int, body: bytes) -> None:
        with self._env.begin(write=True) as transaction:
            transaction.put(_KEY.pack(topic, partition, self._number(topic, partition)), body)
        self._commits += 1

    def append_batch(self, batch: pa.Table) -> None:
        with self._env.begin(write=True) as transaction:
            transaction.cursor().putmulti(self._keyed(batch))
        self._commits += 1

    def flush(self) -> None:
        pass  # a transaction that has committed is readable

    def read(
        self, topic: int, partition: int, position: Position | None, limit: int, *, lean: bool
    ) -> tuple[Sized, Position | None]:
        number = int(position or 0)  # type: ignore[call-overload]
        cursor = self._cursor()
        if cursor.set_range(_KEY.pack(topic, partition, _LAST)):
            found = cursor.prev()
        else:
            found = cursor.last()
        first = _KEY.pack(topic, partition, number)
        if not found or bytes(cursor.key()[:4]) != first[:4]:
            return [], None
        end = _KEY.unpack(cursor.key())[2] + 1
        cursor.set_range(first)
        rows = list(islice(cursor.iternext(keys=False), min(limit, end - number)))
        number += len(rows)
        return rows, number if number < end else None

    def _cursor(self) -> Any:
        """Return this thread's cursor, in a transaction that shows every commit until now."""
        reading = self._reading
        if getattr(reading, "commits", -1) != self._commits:
            reading.commits = self._commits
            reading.cursor = self._env.begin(buffers=True).cursor()
        return reading.cursor

    def bodies(self, rows: Any) -> list[bytes]:
        return [bytes(body) for body in rows]

    def scan(self, *, verify: bool) -> Iterator[Sized]:
        with self._env.begin(buffers=True) as transaction, transaction.cursor() as cursor:
            rows = cursor.iternext()
            while some := list(islice(rows, _SCAN_ROWS)):
                yield some

    def close(self) -> None:
        self._reading = threading.local()
        self._env.close()


class Sqlite(_Numbered):
    """SQLite in WAL mode: a table by (topic, partition, number); synchronous NORMAL or FULL.

    Its documentation: larger pages for larger rows, a map for reading, a larger cache; a log that
    is taken over less often writes more at once.
    """

    name = "sqlite"
    capabilities = _STORE
    settings = "WAL, pages of 8 KiB, mmap_size 16 GiB, 64 MiB cache, checkpoints of 64 MiB"

    def __init__(self, root: Path, *, topics: int, partitions: int, durability: Durability) -> None:
        super().__init__()
        self._db = sqlite3.connect(root / "log.db", isolation_level=None, check_same_thread=False)
        for pragma in (
            "page_size=8192",
            "journal_mode=WAL",
            f"synchronous={'FULL' if durability == 'fsync' else 'NORMAL'}",
            f"mmap_size={16 << 30}",
            "cache_size=-65536",
            "wal_autocheckpoint=8192",
        ):
            self._db.execute(f"PRAGMA {pragma}")
        self._db.execute(
            "CREATE TABLE IF NOT EXISTS log (topic INT, partition INT, number INT, body BLOB, "
            "PRIMARY KEY (topic, partition, number)) WITHOUT ROWID"
        )

    def append(self, topic: int, partition: int, body: bytes) -> None:
        row = (topic, partition, self._number(topic, partition), body)
        self._db.execute("INSERT INTO log VALUES (?, ?, ?, ?)", row)

    def append_batch(self, batch: pa.Table) -> None:
        rows = sorted(self._numbered(batch))
        self._db.execute("BEGIN")
        self._db.executemany("INSERT INTO log VALUES (?, ?, ?, ?)", rows)
        self._db.execute("COMMIT")

    def flush(self) -> None:
        pass

    def read(
        self, topic: int, partition: int, position: Position | None, limit: int, *, lean: bool
    ) -> tuple[Sized, Position | None]:
        number = int(position or 0)  # type: ignore[call-overload]
        rows = self._db.execute(
            "SELECT body FROM log WHERE topic = ? AND partition = ? AND number >= ? "
            "ORDER BY number LIMIT ?",
            (topic, partition, number, limit + 1),
        ).fetchall()
        return (rows[:limit], number + limit) if len(rows) > limit else (rows, None)

    def bodies(self, rows: Any) -> list[bytes]:
        return [row[0] for row in rows]

    def scan(self, *, verify: bool) -> Iterator[Sized]:
        rows = self._db.execute("SELECT topic, partition, number, body FROM log")
        while some := rows.fetchmany(_SCAN_ROWS):
            yield some

    def close(self) -> None:
        self._db.close()


class Rocksdict(_Numbered):
    """RocksDB through rocksdict: one LSM tree, written ahead; synced at the `fsync` level.

    Its documentation: raw mode for bytes, a `WriteBatch` for many keys, an upper bound for a range
    so that no iterator goes on behind it, larger write buffers for bulk writes. Without
    compression, as all others here.
    """

    name = "rocksdict"
    capabilities = _STORE
    settings = "raw mode, no compression, 64 MiB write buffers × 4, 2 jobs, bounded iterators"

    def __init__(self, root: Path, *, topics: int, partitions: int, durability: Durability) -> None:
        super().__init__()
        try:
            import rocksdict
        except ImportError as error:
            raise Unavailable("rocksdict is not installed (pip install rocksdict)") from error
        self._rocks: Any = rocksdict
        options = rocksdict.Options(raw_mode=True)
        options.create_if_missing(True)
        options.set_compression_type(rocksdict.DBCompressionType.none())
        options.set_write_buffer_size(64 << 20)
        options.set_max_write_buffer_number(4)
        options.set_max_background_jobs(2)
        self._db: Any = rocksdict.Rdict(str(root), options)
        self._sync = durability == "fsync"
        if self._sync:
            writing = rocksdict.WriteOptions()
            writing.sync = True
            self._db.set_write_options(writing)

    def append(self, topic: int, partition: int, body: bytes) -> None:
        self._db[_KEY.pack(topic, partition, self._number(topic, partition))] = body

    def append_batch(self, batch: pa.Table) -> None:
        write = self._rocks.WriteBatch(raw_mode=True)
        for key, body in self._keyed(batch):
            write.put(key, body)
        self._db.write(write)

    def flush(self) -> None:
        pass

    def read(
        self, topic: int, partition: int, position: Position | None, limit: int, *, lean: bool
    ) -> tuple[Sized, Position | None]:
        number = int(position or 0)  # type: ignore[call-overload]
        bounds = self._rocks.ReadOptions()
        bounds.set_iterate_upper_bound(_KEY.pack(topic, partition, _LAST))
        first = _KEY.pack(topic, partition, number)
        values = self._db.values(from_key=first, read_opt=bounds)
        rows = list(islice(values, limit))
        more = len(rows) == limit and next(iter(values), None) is not None
        return rows, number + limit if more else None

    def bodies(self, rows: Any) -> list[bytes]:
        return list(rows)

    def scan(self, *, verify: bool) -> Iterator[Sized]:
        rows = self._db.items()
        while some := list(islice(rows, _SCAN_ROWS)):
            yield some

    def close(self) -> None:
        self._db.close()


PEERS = (Lmdb, Sqlite, Rocksdict)
