"""Messages by key in a directory as it lies: by a scan of the log, or from the index files.

The scan needs no index and misses nothing; the index files are quick and may lack what was
not indexed before a crash. Both compare the key's text, and return a message once.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np

from rocketcompat.commitlog.reads import read_record
from rocketcompat.commitlog.walk import Gap
from rocketcompat.index.index_file import IndexFile
from rocketcompat.index.items import key_hash
from rocketcompat.inspect.directory import StoreDirectory
from rocketcompat.inspect.dump import rows_of
from rocketcompat.inspect.index_geometry import geometry_of
from rocketcompat.messages import has_index_items
from rocketcompat.record.columns import RecordColumns
from rocketcompat.record.properties import keys_of
from rocketcompat.record.rows import row_of

Rows = list[dict[str, Any]]


def search_log(
    directory: StoreDirectory, topic: str, key: str, count_max: int, begin: int, end: int
) -> tuple[Rows, bool]:
    """Return the newest messages with the key, oldest first, and whether there are more."""
    wanted = key_hash(topic, key)
    found: deque[dict[str, Any]] = deque(maxlen=count_max)
    count = 0
    for piece in directory.scan_log():
        if isinstance(piece, Gap):
            continue
        rows, hashes = piece.index_keys()
        hits = np.unique(rows[hashes == wanted])
        if len(hits) == 0:
            continue
        part = RecordColumns(piece.data, piece.starts[hits], piece.base)
        times = part.column("store_timestamp")
        good = has_index_items(part.column("sys_flag")) & (times >= begin) & (times <= end)
        for row, fits in zip(rows_of(part), good.tolist(), strict=True):
            if fits and _has_key(row, topic, key):
                found.append(row)
                count += 1
    return list(found), count > count_max


def search_index(
    directory: StoreDirectory, topic: str, key: str, count_max: int, begin: int, end: int
) -> tuple[Rows, bool]:
    """As `search_log`, from what the index files hold."""
    paths = directory.index_paths()
    if not paths:
        return [], False
    geometry = geometry_of(directory)
    log = _Log(directory)
    found: dict[int, dict[str, Any]] = {}
    for path in reversed(paths):
        file = IndexFile.load(directory.vfs, path, geometry, writable=False)
        for offset in file.candidates(key_hash(topic, key), begin, end):
            record = None if offset in found else read_record(log, offset)
            if record is None or not begin <= record.store_timestamp <= end:
                continue
            row = row_of(record)
            if not _has_key(row, topic, key):
                continue
            if len(found) == count_max:
                return [found[offset] for offset in sorted(found)], True
            found[offset] = row
        file.release()
    return [found[offset] for offset in sorted(found)], False


class _Log:
    """The log of a directory, as reads ask for it."""

    def __init__(self, directory: StoreDirectory) -> None:
        self.min_offset, self.max_offset = directory.log.min_offset, directory.log.max_offset
        self.gaps, self.record_crc = directory.log.gaps, directory.log.record_crc
        self.read_at = directory.log.read


def _has_key(row: dict[str, Any], topic: str, key: str) -> bool:
    """Return whether a row is of the topic and has the key."""
    return row["topic"] == topic and key in keys_of(row["properties"])
