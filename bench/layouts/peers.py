"""Rivals that run in Python: what one would otherwise take for an embedded, partitioned log.

Each stores a message under (topic, partition, number) and reads a partition as a range.
"""

from __future__ import annotations

import sqlite3
import struct
from collections import defaultdict
from collections.abc import Iterator, Sized
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from bench.layouts.layout import Durability, Position, Unavailable, columns_of

_KEY = struct.Struct(">HHQ")
_SCAN_ROWS = 10_000


class _Numbered:
    """Gives the messages of a partition their numbers."""

    def __init__(self) -> None:
        self._next: dict[tuple[int, int], int] = defaultdict(int)

    def _number(self, topic: int, partition: int) -> int:
        number = self._next[topic, partition]
        self._next[topic, partition] = number + 1
        return number

    def _numbered(self, batch: pa.Table) -> Iterator[tuple[int, int, int, bytes]]:
        for topic, partition, body in zip(*columns_of(batch), strict=True):
            yield topic, partition, self._number(topic, partition), body

    def _keyed(self, batch: pa.Table) -> list[tuple[bytes, bytes]]:
        return [(_KEY.pack(t, p, n), body) for t, p, n, body in self._numbered(batch)]


class Lmdb(_Numbered):
    """LMDB: one B+ tree; a transaction an append, no sync below the `fsync` level."""

    name = "lmdb"
    threads_ok = True

    def __init__(self, root: Path, *, topics: int, partitions: int, durability: Durability) -> None:
        super().__init__()
        try:
            import lmdb
        except ImportError as error:
            raise Unavailable("lmdb is not installed (pip install tubestore[bench])") from error
        self._env: Any = lmdb.open(
            str(root), map_size=16 << 30, sync=durability == "fsync", metasync=durability == "fsync"
        )

    def append(self, topic: int, partition: int, body: bytes) -> None:
        with self._env.begin(write=True) as transaction:
            transaction.put(_KEY.pack(topic, partition, self._number(topic, partition)), body)

    def append_batch(self, batch: pa.Table) -> None:
        with self._env.begin(write=True) as transaction:
            transaction.cursor().putmulti(self._keyed(batch), append=False)

    def flush(self) -> None:
        pass  # a transaction that has committed is readable

    def read(
        self, topic: int, partition: int, position: Position | None, limit: int, *, lean: bool
    ) -> tuple[Sized, Position | None]:
        number = int(position or 0)  # type: ignore[call-overload]
        first = _KEY.pack(topic, partition, number)
        with self._env.begin() as transaction, transaction.cursor() as cursor:
            rows = list(islice(cursor.iternext(), limit)) if cursor.set_range(first) else []
        if rows and rows[-1][0][:4] != first[:4]:
            return [row for row in rows if row[0][:4] == first[:4]], None
        return rows, number + limit if len(rows) == limit else None

    def scan(self, *, verify: bool) -> Iterator[Sized]:
        with self._env.begin() as transaction, transaction.cursor() as cursor:
            rows = cursor.iternext()
            while some := list(islice(rows, _SCAN_ROWS)):
                yield some

    def close(self) -> None:
        self._env.close()


class Sqlite(_Numbered):
    """SQLite in WAL mode: a table by (topic, partition, number); synchronous NORMAL or FULL."""

    name = "sqlite"
    threads_ok = False

    def __init__(self, root: Path, *, topics: int, partitions: int, durability: Durability) -> None:
        super().__init__()
        self._db = sqlite3.connect(root / "log.db", isolation_level=None, check_same_thread=False)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute(f"PRAGMA synchronous={'FULL' if durability == 'fsync' else 'NORMAL'}")
        self._db.execute(
            "CREATE TABLE IF NOT EXISTS log (topic INT, partition INT, number INT, body BLOB, "
            "PRIMARY KEY (topic, partition, number)) WITHOUT ROWID"
        )

    def append(self, topic: int, partition: int, body: bytes) -> None:
        row = (topic, partition, self._number(topic, partition), body)
        self._db.execute("INSERT INTO log VALUES (?, ?, ?, ?)", row)

    def append_batch(self, batch: pa.Table) -> None:
        self._db.execute("BEGIN")
        self._db.executemany("INSERT INTO log VALUES (?, ?, ?, ?)", self._numbered(batch))
        self._db.execute("COMMIT")

    def flush(self) -> None:
        pass

    def read(
        self, topic: int, partition: int, position: Position | None, limit: int, *, lean: bool
    ) -> tuple[Sized, Position | None]:
        rows = self._db.execute(
            "SELECT number, body FROM log WHERE topic = ? AND partition = ? AND number >= ? "
            "ORDER BY number LIMIT ?",
            (topic, partition, position or 0, limit),
        ).fetchall()
        return rows, rows[-1][0] + 1 if len(rows) == limit else None

    def scan(self, *, verify: bool) -> Iterator[Sized]:
        rows = self._db.execute("SELECT topic, partition, number, body FROM log")
        while some := rows.fetchmany(_SCAN_ROWS):
            yield some

    def close(self) -> None:
        self._db.close()


class Rocksdict(_Numbered):
    """RocksDB through rocksdict: one LSM tree, written ahead; synced at the `fsync` level."""

    name = "rocksdict"
    threads_ok = True

    def __init__(self, root: Path, *, topics: int, partitions: int, durability: Durability) -> None:
        super().__init__()
        try:
            import rocksdict
        except ImportError as error:
            raise Unavailable("rocksdict is not installed (pip install rocksdict)") from error
        self._rocks: Any = rocksdict
        self._db: Any = rocksdict.Rdict(str(root), rocksdict.Options(raw_mode=True))
        self._sync = durability == "fsync"
        if self._sync:
            options = rocksdict.WriteOptions()
            options.sync = True
            self._db.set_write_options(options)

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
        first = _KEY.pack(topic, partition, number)
        items = self._db.items(from_key=first)
        rows = [row for row in islice(items, limit) if row[0][:4] == first[:4]]
        return rows, number + limit if len(rows) == limit else None

    def scan(self, *, verify: bool) -> Iterator[Sized]:
        rows = self._db.items()
        while some := list(islice(rows, _SCAN_ROWS)):
            yield some

    def close(self) -> None:
        self._db.close()


PEERS = (Lmdb, Sqlite, Rocksdict)
