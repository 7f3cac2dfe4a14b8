"""Everything that a store's files hold, as rows, without opening the store.

Rows come by topic, store id and index order, and show what a correct recovery would show. A message
with a missing or wrong entry is there with its record's values. An entry without a readable message
is a row with a `state` other than "ok". Nothing is left out, nothing is written, no lock is taken;
memory is constant.

`state`: "ok"; "bad_record", "bad_checksum", "bad_attributes" (damaged: the body is null where it
cannot be found); "bad_entry", "missing" (no record; the row has only the entry's values);
"entry_differs" (entry and record contradict each other; the row has the entry's values); "expired"
(retention removed the record). `segments/inspection.py` has the rules.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tubestore.core import kernels
from tubestore.core.paths import checked_root
from tubestore.core.vfs import Vfs
from tubestore.disks.roots import disk_of
from tubestore.record.columns import columns_for
from tubestore.record.decode import decode
from tubestore.record.layouts import DATA_HEADER, address_from_int
from tubestore.record.locate import Data
from tubestore.record.records import ENTRY_SIZE, HEADER_SIZE
from tubestore.segments.inspection import OK, Reason, Stretch, walk
from tubestore.segments.listing import ShardFiles, find_shards
from tubestore.segments.shard_bytes import ShardBytes, Window

Array = np.ndarray[Any, Any]

_ATTRIBUTES = pa.map_(pa.string(), pa.string())
#: The columns of a dump; `raw` has "payload" in place of the two before "state".
DUMP_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("store_id", pa.int32()),
        ("partition", pa.int32()),
        ("index_offset", pa.int64()),
        ("data_offset", pa.int64()),
        ("data_size", pa.int32()),
        ("key_code", pa.int32()),
        ("received_time", pa.int64()),
        ("msg_id", pa.int64()),
        ("flag", pa.int32()),
        ("report_address", pa.string()),
        ("checksum", pa.int32()),
        ("attributes", _ATTRIBUTES),
        ("body", pa.large_binary()),
        ("state", pa.string()),
    ]
)
RAW_SCHEMA = pa.schema(
    [
        field
        for old in DUMP_SCHEMA
        for field in ([pa.field("payload", pa.large_binary())] if old.name == "body" else [old])
        if old.name != "attributes"
    ]
)
#: Rows with a record that does not match their entry: nothing of it is shown.
_WITHOUT_RECORD = {str(Reason.MISSING), str(Reason.BAD_ENTRY), "expired"}


def dump(
    root: str | os.PathLike[str],
    *,
    topic: str | None = None,
    store_id: int | None = None,
    partition: int | None = None,
    start_at: int = 0,
    raw: bool = False,
    trust_index: bool = False,
    vfs: Vfs | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield all rows as batches of `DUMP_SCHEMA`, or of `RAW_SCHEMA` with `raw`.

    `start_at`: leave out rows below this index offset; `trust_index`: show the entries as they
    are, without looking for messages that lack one. NotAStore if there is no store at `root`.
    """
    vfs = vfs or disk_of(root)
    shards = find_shards(checked_root(root), vfs, topic=topic, store_id=store_id, with_pending=True)
    for shard in shards:
        bytes_ = ShardBytes(vfs, shard)
        try:
            for stretch in _entries(bytes_, start_at) if trust_index else walk(vfs, shard):
                rows = _wanted(stretch, partition, start_at)
                if rows is not None:
                    yield from _batches(shard, bytes_, stretch, rows, raw)
        finally:
            bytes_.close()


def _entries(bytes_: ShardBytes, start_at: int) -> Iterator[Stretch]:
    """Go through the entries as they are; the state of their records shows when they are read."""
    for offset, entries in bytes_.entries(start_at):
        yield Stretch(None, "", offset, entries, 0, 0)


def _wanted(stretch: Stretch, partition: int | None, start_at: int) -> Array | None:
    """Return the numbers of the rows that are asked for, None if there are none."""
    entries = stretch.entries
    first = max(0, -(-(start_at - stretch.index_offset) // ENTRY_SIZE))
    rows = np.arange(first, len(entries))
    if partition is not None:
        rows = rows[entries["partition_id"][first:] == partition]
    return rows if len(rows) else None


def _batches(
    shard: ShardFiles, bytes_: ShardBytes, stretch: Stretch, rows: Array, raw: bool
) -> Iterator[pa.RecordBatch]:
    entries = stretch.entries[rows]
    offsets = stretch.index_offset + ENTRY_SIZE * rows.astype(np.int64)
    windows: Sequence[Window] | Iterator[Window]
    if stretch.state in _WITHOUT_RECORD:
        windows = [Window(0, len(rows), None, 0)]
    elif stretch.data is not None:
        windows = [Window(0, len(rows), stretch.data, stretch.data_start)]
    else:
        windows = bytes_.windows(entries)
    for window in windows:
        part = slice(window.first, window.end)
        columns = _decoded(shard, offsets[part], entries[part], window, stretch.state, raw)
        schema = RAW_SCHEMA if raw else DUMP_SCHEMA
        yield pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)


def _decoded(
    shard: ShardFiles, offsets: Array, entries: Array, window: Window, state: str, raw: bool
) -> dict[str, pa.Array]:
    """Build all columns of some rows."""
    names = ["topic", "store_id", "partition", "offset", "key_code", "received_time_ms"]
    names += ["msg_id", "flag", "report_address", "state", "attributes", "body"]
    if raw:
        names = names[:-2]
    batch, _ = decode(
        shard.topic,
        shard.store_id,
        offsets,
        entries,
        None if window.data is None else Data(window.data, window.data_start),
        # Walked records have been verified; rows taken by themselves have not.
        columns_for(tuple(names), verify=state != OK),
    )
    columns = dict(zip(names, batch.columns, strict=True))
    columns["index_offset"] = columns.pop("offset")
    columns["received_time"] = columns.pop("received_time_ms")
    for name in ("data_offset", "data_size"):
        columns[name] = pa.array(entries[name].astype(entries.dtype[name].newbyteorder("=")))
    columns["report_address"] = _addresses(columns["report_address"])
    columns |= _from_record(entries, window, columns["msg_id"].is_valid(), raw)
    if state:
        columns["state"] = pa.repeat(state, len(entries))
    return columns


def _addresses(values: pa.Array) -> pa.Array:
    encoded = values.dictionary_encode()
    texts = pa.array([address_from_int(v) for v in encoded.dictionary.to_pylist()], pa.string())
    return texts.take(encoded.indices)


def _from_record(entries: Array, window: Window, readable: pa.Array, raw: bool) -> dict[str, Any]:
    """Return the columns that `decode` does not have, null where there is no record."""
    known = np.flatnonzero(readable.to_numpy(zero_copy_only=False))
    data = window.data if window.data is not None else memoryview(b"")
    positions = entries["data_offset"][known].astype(np.int64) - window.data_start
    headers = kernels.gather(kernels.bytes_of(data), positions, DATA_HEADER.dtype)
    columns = {"checksum": pa.array(headers["checksum"].astype(np.int32))}
    if raw:
        sizes = entries["data_size"][known].astype(np.int64) - HEADER_SIZE
        columns["payload"] = kernels.slices(data, positions + HEADER_SIZE, sizes)
    if len(known) < len(entries):
        places = np.full(len(entries), -1, np.int64)
        places[known] = np.arange(len(known))
        indices = pa.array(places, mask=places < 0)
        columns = {name: column.take(indices) for name, column in columns.items()}
    return columns


def rows_of(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """Go through a batch as dicts: attributes as a dict, bytes as bytes."""
    for row in batch.to_pylist():
        if row.get("attributes") is not None:
            row["attributes"] = dict(row["attributes"])
        yield row
