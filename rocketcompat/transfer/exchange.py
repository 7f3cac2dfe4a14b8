"""Messages exported to files that can be edited, and imported into a store.

An export has the columns of `rows.MESSAGE_SCHEMA`, and the property string as it was stored
as `properties_text`. If the map was edited, it counts and not the string. An import needs a
`topic`; everything else has a default, so a file may also be written by hand.

- `renumber`: the messages are put, like any others. Offsets and store times are given anew, those
  in properties (inner batches, several queues), too. A transaction's op message has the queue
  offset of its half message as its body: only `keep` keeps that true.
- `keep`: queue offsets, store times and hosts stay; for a new store only. What was not edited is
  stored as it was, byte for byte, except for its place in the log.

Both store each row as what it was. A row is not put aside again because of its DELAY if it has a
`physical_offset`, if its topic is SCHEDULE_TOPIC_XXXX, or if it has its topic in REAL_TOPIC
(delivered, timer wheel, half message). The new store has delivered nothing yet: it delivers its
waiting messages when they are due, whatever the old store had delivered. `--topics` leaves such
messages out of an export.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import rocketcompat
from rocketcompat.commitlog.copy import LogWriter
from rocketcompat.commitlog.walk import ENDS, Gap
from rocketcompat.formats import (
    GIVEN_COLUMNS,
    NAME_VALUE_SEPARATOR,
    PROPERTY_CRC,
    PROPERTY_CRC_DIGITS,
    PROPERTY_SEPARATOR,
    STATE_LOST,
    STATE_OK,
    encode_properties,
    parse_properties,
)
from rocketcompat.inspect.directory import StoreDirectory
from rocketcompat.inspect.selection import Selection
from rocketcompat.messages import NOT_DELAYED
from rocketcompat.options import MessageStoreConfig
from rocketcompat.record.columns import RecordColumns
from rocketcompat.record.encode import encode_columns
from rocketcompat.record.given import (
    GivenMessages,
    given_in,
    inner_rows,
    levels_of_stored,
    message_of,
    put_aside,
    rows_alone,
)
from rocketcompat.record.message_table import table_of
from rocketcompat.record.prepare import prepare
from rocketcompat.record.properties import PROPERTY_INNER_BASE
from rocketcompat.repair.log import FILLER_TOPIC
from rocketcompat.transfer.convert import build_structures
from rocketcompat.transfer.files import SCHEMA, TEXT_COLUMN, Check
from tubestore.clock import Clock
from tubestore.core.kernels import offsets_of
from tubestore.core.vfs import Vfs
from tubestore.errors import InvalidMessage

#: The end of a property string that has its record's checksum.
_CHECKSUM = re.compile(rf"{PROPERTY_CRC}\x01[0-9]{{{PROPERTY_CRC_DIGITS}}}\x02$")
_DEFAULTS: dict[str, Any] = {
    "queue_id": 0, "flag": 0, "sys_flag": 0, "reconsume_times": 0,
    "prepared_transaction_offset": 0, "born_host": "127.0.0.1:0", "store_host": "127.0.0.1:10911",
}  # fmt: skip


def export_tables(
    directory: StoreDirectory, wanted: Selection, left_out: Callable[[Gap], object] = lambda _: None
) -> Iterator[pa.Table]:
    """Yield the wanted sound records as tables of `SCHEMA`.

    Damage goes to `left_out`: which topics it had is not known.
    """
    for piece in directory.scan_log(wanted.start, wanted.end, since=wanted.begin):
        if isinstance(piece, Gap):
            if piece.state not in ENDS:
                left_out(piece)
            continue
        found = wanted.of(piece)
        if len(found):
            yield table_of(found).append_column(SCHEMA.field(TEXT_COLUMN), _texts(found))


def _texts(records: RecordColumns) -> pa.Array:
    raw = records.properties()
    try:
        return raw.cast(pa.string())
    except pa.ArrowInvalid:  # not UTF-8: the map counts then
        return pa.nulls(len(records), pa.string())


def check_of(config: MessageStoreConfig, *, keep: bool) -> Check:
    """Return the check for `read_tables`: that a store takes all messages of a table."""

    def check(table: pa.Table) -> None:
        chosen, _ = sound_rows(table, keep=keep)
        if keep:
            _check_numbered(chosen)
        if not chosen.num_rows:
            return
        messages = put_aside(_puttable(chosen, config, keep=keep), config)
        for row in inner_rows(messages, config) if keep else rows_alone(messages, config):
            prepare(message_of(messages.part(row, row + 1), config), config)
        encode_columns(messages, config, have_offsets=True)
        if keep:
            _check_bases(messages, chosen["queue_offset"], config)

    return check


def import_tables(
    tables: Iterable[pa.Table],
    target: str,
    config: MessageStoreConfig,
    *,
    keep: bool,
    vfs: Vfs,
    clock: Clock,
) -> dict[str, int]:
    """Bring messages into a store; returns {"messages", "left_out"}.

    Left out are rows in a state other than ok.

    InvalidMessage, InvalidName and MessageTooLarge name what cannot be taken. With `keep` NotAStore
    refuses a store that exists.
    """
    take = _keep if keep else _renumber
    rest = iter(tables)
    first = list(islice(rest, 1))  # an invalid file is refused before a store is made
    return take(chain(first, rest), target, config, vfs, clock)


def _renumber(
    tables: Iterable[pa.Table], target: str, config: MessageStoreConfig, vfs: Vfs, clock: Clock
) -> dict[str, int]:
    messages = left_out = 0
    with rocketcompat.open(target, "w", config, vfs=vfs, clock=clock, background=False) as store:
        for table in tables:
            chosen, refused = sound_rows(table, keep=False)
            left_out += refused
            if chosen.num_rows:
                store.put_columns(_puttable(chosen, config, keep=False))
                messages += chosen.num_rows
    return {"messages": messages, "left_out": left_out}


def _keep(
    tables: Iterable[pa.Table], target: str, config: MessageStoreConfig, vfs: Vfs, clock: Clock
) -> dict[str, int]:
    writer = LogWriter(vfs, target, config.mapped_file_size_commit_log)
    messages = left_out = 0
    for table in tables:
        chosen, refused = sound_rows(table, keep=True)
        left_out += refused
        _check_numbered(chosen)
        if not chosen.num_rows:
            continue
        puttable = given_in(_puttable(chosen, config, keep=True))
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


def _check_numbered(table: pa.Table) -> None:
    for name in ("queue_offset", "store_timestamp"):
        if name not in table.column_names or table[name].null_count:
            raise InvalidMessage(f"{name}: needed to keep offsets, and a row has none")


def _check_bases(
    table: GivenMessages, offsets: pa.ChunkedArray, config: MessageStoreConfig
) -> None:
    """Refuse inner batches that do not match their queue offset, or where none can be."""
    for row in inner_rows(table, config):
        message = message_of(table.part(row, row + 1), config)
        prepare(message, config)  # raises what is wrong with the batch
        base = parse_properties(str(message.properties)).get(PROPERTY_INNER_BASE)
        if base != str(offsets[row].as_py()):
            at = offsets[row].as_py()
            raise InvalidMessage(f"{PROPERTY_INNER_BASE}: {base}, and the queue offset is {at}")


def sound_rows(table: pa.Table, *, keep: bool) -> tuple[pa.Table, int]:
    """Return the rows that are messages, and how many are not.

    With `keep` stand-ins of lost messages are kept, too: the offsets behind them stay. Bytes that
    only fill the place of lost ones are not.
    """
    if "state" not in table.column_names:
        return table, 0
    states = table["state"].to_pylist()
    lost = np.array([state == STATE_LOST for state in states], bool)
    good = np.array([state in (None, STATE_OK) for state in states], bool)
    if keep and lost.any():
        fillers = (table["topic"].to_numpy() == FILLER_TOPIC) & lost
        good |= lost & ~fillers
        at = table.column_names.index("body")
        bodies = table["body"].combine_chunks()
        bodies = pc.if_else(pa.array(lost), pa.scalar(b"", bodies.type), bodies)
        table = table.set_column(at, "body", bodies)
    return table.filter(pa.array(good)), int((~good).sum())


def _puttable(table: pa.Table, config: MessageStoreConfig, *, keep: bool) -> pa.Table:
    """Return the columns that a put takes, with their defaults where a row has none.

    A record's checksum is not among its properties: the store writes one if that is its option. A
    kept row keeps its checksum, computed anew, unless the store writes one.
    """
    columns: dict[str, Any] = {}
    for name in GIVEN_COLUMNS:
        if name == "properties":
            has_crc = keep and not config.enabled_append_prop_crc
            columns[name] = _property_texts(table, without_crc=not has_crc)
        elif name in table.column_names:
            column = table[name].combine_chunks()
            if name in _DEFAULTS and column.null_count:
                column = column.fill_null(_DEFAULTS[name])
            columns[name] = column
    if "born_timestamp" in columns and columns["born_timestamp"].null_count:
        del columns["born_timestamp"]
    if keep:
        levels = np.full(table.num_rows, NOT_DELAYED)
    else:
        levels = levels_of_stored(given_in(pa.table(columns)))
        if "physical_offset" in table.column_names:
            exported = table["physical_offset"].is_valid().to_numpy()
            levels = np.where(exported, NOT_DELAYED, levels)
    return pa.table({**columns, "delay_level": levels})


def _property_texts(table: pa.Table, *, without_crc: bool) -> pa.Array:
    """Return the property strings: as they were, unless the map was edited."""
    count = table.num_rows
    maps = table["properties"].to_pylist() if "properties" in table.column_names else [None] * count
    texts = table[TEXT_COLUMN].to_pylist() if TEXT_COLUMN in table.column_names else [None] * count
    found = []
    for pairs, text in zip(maps, texts, strict=True):
        edited = None if pairs is None else dict(pairs)
        _check_properties(edited or {})
        if text is not None and edited in (None, parse_properties(text)):
            found.append(_CHECKSUM.sub("", text) if without_crc else text)
        else:  # its checksum, if it had one, was that of another record
            pairs = {name: v for name, v in (edited or {}).items() if name != PROPERTY_CRC}
            found.append(encode_properties(pairs, trailing_separator=False))
    return pa.array(found, pa.string())


def _check_properties(properties: dict[str, str]) -> None:
    """Refuse pairs that would be read as other pairs, or not at all."""
    for name, value in properties.items():
        if not name or not value:
            what = "has no value" if name else "has no name"
            raise InvalidMessage(f"properties: {name!r} {what}, and would not be read")
        for separator in (NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR):
            if separator in name or (separator in value and separator == PROPERTY_SEPARATOR):
                text = f"properties: {name!r} contains {separator!r}, which separates them"
                raise InvalidMessage(text)
