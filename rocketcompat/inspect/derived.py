"""The content of the derived files: index and checkpoint, as rows. Reads only."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from rocketcompat.commitlog.reads import read_record
from rocketcompat.files.checkpoint import StoreCheckpoint
from rocketcompat.formats import (
    CHECKPOINT,
    CHECKPOINT_FILE,
    CHECKPOINT_FILE_SIZE,
)
from rocketcompat.index.index_file import IndexFile
from rocketcompat.index.items import key_hash, link_chains
from rocketcompat.inspect.directory import StoreDirectory
from rocketcompat.inspect.index_geometry import geometry_of
from rocketcompat.record.properties import keys_of
from tubestore.errors import CorruptRecord

Row = dict[str, Any]


def index_rows(directory: StoreDirectory) -> Iterator[Row]:
    """Yield a row a file, oldest first: the header's numbers, and what follows from them."""
    paths = directory.index_paths()
    geometry = geometry_of(directory) if paths else None
    for path in paths:
        assert geometry is not None
        row: Row = {"path": path, "slots": geometry.slots, "items": geometry.items}
        try:
            file = IndexFile.load(directory.vfs, path, geometry, writable=False)
        except CorruptRecord as error:
            yield row | {"state": "broken", "reason": error.reason}
            continue
        header = file.header
        names = (
            "begin_timestamp", "end_timestamp", "begin_physical_offset", "end_physical_offset",
            "hash_slot_count", "index_count",
        )  # fmt: skip
        row |= {name: getattr(header, name) for name in names}
        yield row | {"used": header.index_count - 1, "state": "ok", "reason": None}
        file.release()


def item_rows(
    directory: StoreDirectory, *, name: str | None = None, start: int = 1, keys: bool = False
) -> Iterator[Row]:
    """Yield a row an item from number `start` of each file, or of the one with this name.

    With `keys` also the key, which only the record has: one read of the log an item. `state` is
    "chain" if `previous` is not what the slot gives. With `keys` it is also "no-record" if there is
    no record at the offset, and "other-key" if the record has no key with this hash.
    """
    paths = [p for p in directory.index_paths() if name in (None, os.path.basename(p))]
    geometry = geometry_of(directory) if paths else None
    for path in paths:
        assert geometry is not None
        try:
            file = IndexFile.load(directory.vfs, path, geometry, writable=False)
        except CorruptRecord:
            continue
        items = file.items()
        slots = items["key_hash"].astype(np.int64) % geometry.slots
        previous = link_chains(np.zeros(geometry.slots, np.int32), slots, 1).previous
        broken = previous != items["previous"]
        for place in range(max(start, 1) - 1, len(items)):
            item = items[place]
            row: Row = {
                "path": path,
                "number": place + 1,
                "slot": int(slots[place]),
                **{field: int(item[field]) for field in items.dtype.names or ()},
                "store_timestamp": file.header.begin_timestamp
                + int(item["time_diff_seconds"]) * 1000,
                "state": "chain" if broken[place] else "ok",
            }
            if keys:
                row |= _key_of(directory, row, _rank(items, place))
            yield row
        file.release()


def _rank(items: Any, place: int) -> int:
    """Return how many items of the same record and hash come right before one."""
    first = place
    while first and (items["physical_offset"][first - 1] == items["physical_offset"][place]):
        first -= 1
    return int(np.count_nonzero(items["key_hash"][first:place] == items["key_hash"][place]))


def _key_of(directory: StoreDirectory, row: Row, rank: int) -> Row:
    """Return topic and key of an item's record.

    `rank` distinguishes keys of one message and one hash, such as "Aa" and "BB".
    """
    record = read_record(directory.log, row["physical_offset"])
    if record is None:
        return {"topic": None, "key": None, "state": "no-record"}
    found = keys_of(record.properties)
    fitting = [key for key in found if key_hash(record.topic, key) == row["key_hash"]]
    if not fitting:
        return {"topic": record.topic, "key": None, "state": "other-key"}
    key = fitting[rank % len(fitting)]  # an item may be there twice, after a broker's recovery
    return {"topic": record.topic, "key": key, "state": row["state"]}


def checkpoint_row(directory: StoreDirectory) -> Row:
    """Return the checkpoint: its five numbers, where a recovery begins, its state.

    A missing or short file counts as zeros, as it does for a broker.
    """
    path = directory.path(CHECKPOINT_FILE)
    checkpoint = StoreCheckpoint(directory.vfs, path)
    row: Row = {"path": path}
    row |= {field.name: getattr(checkpoint, field.name) for field in CHECKPOINT.fields}
    row["min_timestamp"] = checkpoint.min_timestamp
    row["min_timestamp_index"] = checkpoint.min_timestamp_index
    try:
        size = len(directory.vfs.read_file(path))
    except FileNotFoundError:
        return row | {"state": "missing"}
    return row | {"state": "ok" if size == CHECKPOINT_FILE_SIZE else f"{size} bytes"}
