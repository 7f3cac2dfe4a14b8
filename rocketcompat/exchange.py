"""Messages out to files that people edit, and back into a store.

What is exported is `message_rows.MESSAGE_SCHEMA` and the property string as it was stored, as
`properties_text`; of the two the map counts when somebody has edited it. What is imported needs
a `topic`; everything else has a default, so a file may also be written by hand.

- `renumber`: the messages are put, like any others; offsets and store times are given anew.
- `keep`: queue offsets, store times and hosts stay; for a new store only. What was not edited is
  stored as it was, byte for byte, but for its place in the log.

Next to read: `log_writer.py`, `convert.py`.
"""

from __future__ import annotations

import base64
import csv
import json
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Any, Literal

import numpy as np
import pyarrow as pa

import rocketcompat
from rocketcompat.batch_encoder import encode_columns
from rocketcompat.columns import RecordColumns
from rocketcompat.convert import build_structures
from rocketcompat.directory import Region, StoreDirectory
from rocketcompat.formats import encode_properties, parse_properties
from rocketcompat.log_writer import LogWriter
from rocketcompat.message_columns import Given, given_in, inner_rows, message_of
from rocketcompat.message_rows import MESSAGE_SCHEMA, STATE_OK
from rocketcompat.message_table import table_of
from rocketcompat.options import MessageStoreConfig
from rocketcompat.prepare import prepare
from rocketcompat.selection import Selection
from rocketcompat.topics import PROPERTY_INNER_BASE
from tubestore.clock import Clock
from tubestore.errors import InvalidMessage
from tubestore.kernels import offsets_of
from tubestore.vfs import Vfs

FileFormat = Literal["jsonl", "csv", "parquet", "arrow"]
TEXT_COLUMN = "properties_text"
SCHEMA = MESSAGE_SCHEMA.append(pa.field(TEXT_COLUMN, pa.string()))
_ROWS = 10_000
#: What a put takes, of what is exported.
_PUT_COLUMNS = (
    "topic", "queue_id", "body", "properties", "flag", "sys_flag", "born_timestamp", "born_host",
    "store_host", "reconsume_times", "prepared_transaction_offset",
)  # fmt: skip
_DEFAULTS: dict[str, Any] = {
    "queue_id": 0, "flag": 0, "sys_flag": 0, "reconsume_times": 0,
    "prepared_transaction_offset": 0, "born_host": "127.0.0.1:0", "store_host": "127.0.0.1:10911",
}  # fmt: skip


def export_tables(directory: StoreDirectory, wanted: Selection) -> Iterator[pa.Table]:
    """Yield the wanted sound records as tables of `SCHEMA`; damage is left out."""
    for piece in directory.scan_log(wanted.start, wanted.end, since=wanted.begin):
        if not isinstance(piece, Region):
            found = wanted.of(piece)
            if len(found):
                yield table_of(found).append_column(SCHEMA.field(TEXT_COLUMN), _texts(found))


def _texts(records: RecordColumns) -> pa.Array:
    raw = records.properties()
    try:
        return raw.cast(pa.string())
    except pa.ArrowInvalid:  # no UTF-8: what the map says has to do
        return pa.nulls(len(records), pa.string())


def read_tables(path: str, kind: FileFormat) -> Iterator[pa.Table]:
    """Yield the messages of a file by the batch; columns as `SCHEMA` has them, some missing."""
    if kind == "parquet":
        import pyarrow.parquet as pq

        for batch in pq.ParquetFile(path).iter_batches(_ROWS):
            yield pa.Table.from_batches([batch])
    elif kind == "arrow":
        with pa.OSFile(path) as source, pa.ipc.open_stream(source) as reader:
            for batch in reader:
                yield pa.Table.from_batches([batch])
    else:
        with open(path, encoding="utf-8", newline="") as file:
            rows = _json_rows(file) if kind == "jsonl" else _csv_rows(file)
            while batch := list(islice(rows, _ROWS)):
                names = {name for row in batch for name in row}
                unknown = names - {field.name for field in SCHEMA}
                if unknown:
                    raise InvalidMessage(f"{path}: unknown columns {sorted(unknown)}")
                fields = [field for field in SCHEMA if field.name in names]
                yield pa.Table.from_pylist(batch, pa.schema(fields))


def _json_rows(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            yield _row_of(row)
        except (ValueError, TypeError, AttributeError) as error:
            raise InvalidMessage(f"line {number}: {error}") from None


def _csv_rows(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    for number, row in enumerate(csv.DictReader(lines), 2):
        try:
            filled = {name: value for name, value in row.items() if value not in ("", None)}
            if "properties" in filled:
                filled["properties"] = json.loads(filled["properties"])
            yield _row_of(filled)
        except (ValueError, TypeError) as error:
            raise InvalidMessage(f"row {number}: {error}") from None


def _row_of(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of text as Arrow takes it: integers, bytes, pairs."""
    found = dict(row)
    if isinstance(found.get("body"), str):
        found["body"] = base64.b64decode(found["body"], validate=True)
    if isinstance(found.get("properties"), dict):
        found["properties"] = list(found["properties"].items())
    for field in SCHEMA:
        value = found.get(field.name)
        if pa.types.is_integer(field.type) and isinstance(value, str):
            found[field.name] = int(value)
    return found


def import_tables(
    tables: Iterable[pa.Table],
    target: str,
    config: MessageStoreConfig,
    *,
    keep: bool,
    vfs: Vfs,
    clock: Clock,
) -> dict[str, int]:
    """Bring messages into a store; returns {"messages", "left_out"} (rows whose state is not ok).

    InvalidMessage, InvalidName and MessageTooLarge say what cannot be taken; with `keep` and a
    store that is there NotAStore.
    """
    take = _keep if keep else _renumber
    rest = iter(tables)
    first = list(islice(rest, 1))  # a file that is none is refused before a store is made
    return take(chain(first, rest), target, config, vfs, clock)


def _renumber(
    tables: Iterable[pa.Table], target: str, config: MessageStoreConfig, vfs: Vfs, clock: Clock
) -> dict[str, int]:
    messages = left_out = 0
    with rocketcompat.open(target, "w", config, vfs=vfs, clock=clock, background=False) as store:
        for table in tables:
            chosen, refused = _sound(table)
            left_out += refused
            if chosen.num_rows:
                store.put_columns(_puttable(chosen))
                messages += chosen.num_rows
    return {"messages": messages, "left_out": left_out}


def _keep(
    tables: Iterable[pa.Table], target: str, config: MessageStoreConfig, vfs: Vfs, clock: Clock
) -> dict[str, int]:
    writer = LogWriter(vfs, target, config.mapped_file_size_commit_log)
    messages = left_out = 0
    for table in tables:
        chosen, refused = _sound(table)
        left_out += refused
        for name in ("queue_offset", "store_timestamp"):
            if name not in chosen.column_names or chosen[name].null_count:
                raise InvalidMessage(f"{name}: needed to keep offsets, and a row has none")
        if not chosen.num_rows:
            continue
        puttable = given_in(_puttable(chosen))
        _check_bases(puttable, chosen["queue_offset"], config)
        encoded = encode_columns(puttable, config, have_offsets=True)
        offsets, times = (
            chosen[name].to_numpy().astype(np.int64) for name in ("queue_offset", "store_timestamp")
        )
        encoded.place(offsets, np.zeros(len(encoded), np.int64), times)
        bounds = offsets_of(encoded.sizes)
        writer.append(encoded.data, bounds[:-1], encoded.sizes)
        messages += len(encoded)
    writer.close()
    build_structures(target, config, vfs, clock)
    return {"messages": messages, "left_out": left_out}


def _check_bases(table: Given, offsets: pa.ChunkedArray, config: MessageStoreConfig) -> None:
    """Refuse inner batches that are not what their queue offset says, or where none can be."""
    for row in inner_rows(table, config):
        message = message_of(table.part(row, row + 1), config)
        prepare(message, config)  # says what is wrong with the batch
        base = parse_properties(str(message.properties)).get(PROPERTY_INNER_BASE)
        if base != str(offsets[row].as_py()):
            at = offsets[row].as_py()
            raise InvalidMessage(f"{PROPERTY_INNER_BASE}: {base}, and the queue offset is {at}")


def _sound(table: pa.Table) -> tuple[pa.Table, int]:
    """Return the rows that are messages, and how many are not."""
    if "state" not in table.column_names:
        return table, 0
    good = np.array([state in (None, STATE_OK) for state in table["state"].to_pylist()], bool)
    return table.filter(pa.array(good)), int((~good).sum())


def _puttable(table: pa.Table) -> pa.Table:
    """Return the columns that a put takes, with their defaults where a row has none."""
    columns: dict[str, Any] = {}
    for name in _PUT_COLUMNS:
        if name == "properties":
            columns[name] = _property_texts(table)
        elif name in table.column_names:
            column = table[name].combine_chunks()
            if name in _DEFAULTS and column.null_count:
                column = column.fill_null(_DEFAULTS[name])
            columns[name] = column
    if "born_timestamp" in columns and columns["born_timestamp"].null_count:
        del columns["born_timestamp"]
    return pa.table(columns)


def _property_texts(table: pa.Table) -> pa.Array:
    """Return the property strings: as they were, unless the map was edited."""
    count = table.num_rows
    maps = table["properties"].to_pylist() if "properties" in table.column_names else [None] * count
    texts = table[TEXT_COLUMN].to_pylist() if TEXT_COLUMN in table.column_names else [None] * count
    found = []
    for pairs, text in zip(maps, texts, strict=True):
        edited = None if pairs is None else dict(pairs)
        if text is not None and edited in (None, parse_properties(text)):
            found.append(text)
        else:
            found.append(encode_properties(edited or {}, trailing_separator=False))
    return pa.array(found, pa.string())
