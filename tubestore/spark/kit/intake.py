"""Convert a DataFrame's columns, tubestore's or Kafka's, to those that a store takes.

| column | also | type | |
| --- | --- | --- | --- |
| `body` | `value` | binary, string | needed, not null, not empty |
| `topic` | | string | or the option `topic` |
| `partition` | `partition_id` | int | else by `key`, else in turns |
| `key` | | binary, string | chooses the partition |
| `filter_item` | | string | else the attribute `$msgType$` |
| `attributes` | `headers` | map<string,string>, Kafka's array | |
| `received_time_ms` | | bigint | else `received_time` |
| `received_time` | `timestamp` | timestamp | else now |
| `msg_id` | | bigint | else the store gives one |
| `report_address` | | int | the sender's IPv4, else 127.0.0.1 |

`store_id`, `offset`, `key_code`, `flag` and `state`, which a DataFrame over a store has, are
assigned anew; a row with a state other than ok has no body and is refused. A partition, time, id or
address that no row of a batch has counts as not given.

Nothing here imports Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tubestore.errors import InvalidMessage
from tubestore.record.ingest import without as without
from tubestore.record.layouts import ATTRIBUTE_TIME, ATTRIBUTE_TYPE
from tubestore.spark.kit.shapes import HEADERS

_T = pa.types


def is_text(kind: Any) -> bool:
    """True if an Arrow type holds text."""
    return bool(_T.is_string(kind) or _T.is_large_string(kind))


def is_bytes(kind: Any) -> bool:
    """True if an Arrow type holds bytes, or text."""
    return bool(_T.is_binary(kind) or _T.is_large_binary(kind) or is_text(kind))


def is_attributes(kind: Any) -> bool:
    """True if an Arrow type holds maps of texts."""
    return bool(_T.is_map(kind) and is_text(kind.key_type) and is_text(kind.item_type))


def is_headers(kind: Any) -> bool:
    """True if an Arrow type holds Kafka's headers, whether or not their parts may be null."""
    if not _T.is_list(kind) or not _T.is_struct(kind.value_type):
        return False
    parts = [(field.name, field.type) for field in kind.value_type]
    return parts == [(field.name, field.type) for field in HEADERS.value_type]


class Taken(NamedTuple):
    """A column that is taken: the store's name for it, and what its type has to be."""

    name: str
    fits: Callable[[Any], bool]
    wanted: str


_TAKEN = {
    "topic": Taken("topic", is_text, "string"),
    "body": Taken("body", is_bytes, "binary or string"),
    "value": Taken("body", is_bytes, "binary or string"),
    "partition": Taken("partition", _T.is_integer, "int"),
    "partition_id": Taken("partition", _T.is_integer, "int"),  # as in tables that 0.1 wrote
    "key": Taken("key", is_bytes, "binary or string"),
    "filter_item": Taken("filter_item", is_text, "string"),
    "attributes": Taken("attributes", is_attributes, "map<string,string>"),
    "headers": Taken("attributes", is_headers, "array<struct<key:string,value:binary>>"),
    "received_time_ms": Taken("received_time_ms", _T.is_integer, "bigint"),
    "received_time": Taken("received_time", _T.is_timestamp, "timestamp"),
    "timestamp": Taken("received_time", _T.is_timestamp, "timestamp"),
    "msg_id": Taken("msg_id", _T.is_integer, "bigint"),
    "report_address": Taken("report_address", _T.is_integer, "int"),
}


class TakenColumns:
    """Which columns of a DataFrame are taken, under which name, by one kind of store. Picklable."""

    #: By the name in a DataFrame; and what such a DataFrame has that is given out anew.
    taken: ClassVar[Mapping[str, Taken]]
    given_anew: ClassVar[frozenset[str]]
    #: The store's names of columns of which each row needs a value, if one has it.
    may_lack: ClassVar[frozenset[str]]

    def __init__(self, schema: pa.Schema, topic: str | None) -> None:
        """Check the columns; InvalidMessage names what cannot be taken."""
        self.topic = topic
        #: Name in the DataFrame, by the store's name.
        self.columns: dict[str, str] = {}
        for field in schema:
            if field.name not in self.given_anew:
                self._take(field)
        if "body" not in self.columns:
            raise InvalidMessage("a column body (or value) is needed")
        if "topic" not in self.columns and topic is None:
            raise InvalidMessage("a column topic is needed, or the option topic")
        if topic is not None:
            self.columns.pop("topic", None)

    def _take(self, field: Any) -> None:
        taken = self.taken.get(field.name)
        if taken is None:
            known = ", ".join([*self.taken, *sorted(self.given_anew)])
            raise InvalidMessage(f"column {field.name}: not known; known are {known}")
        if not taken.fits(field.type):
            raise InvalidMessage(f"column {field.name}: {taken.wanted} is needed, not {field.type}")
        if taken.name in self.columns:
            both = f"{self.columns[taken.name]} and {field.name}"
            raise InvalidMessage(f"columns {both}: one of them")
        self.columns[taken.name] = field.name

    def lacking(self, batch: pa.RecordBatch) -> frozenset[str]:
        """Return the store's names of columns that count as not given in a batch.

        Those of `may_lack` that are null in all rows: SQL's INSERT fills the columns that it does
        not name so.
        """
        given = {name: self.columns[name] for name in self.columns.keys() & self.may_lack}
        return frozenset(
            n for n, own in given.items() if batch.column(own).null_count == batch.num_rows
        )

    def columns_of(self, batch: pa.RecordBatch, lacking: frozenset[str] | None) -> dict[str, Any]:
        """Return what is taken of a batch, by the store's names, with its topic.

        `lacking`: that of the batch of which this is a part; None for a whole one.
        """
        lacking = self.lacking(batch) if lacking is None else lacking
        found = {n: batch.column(own) for n, own in self.columns.items() if n not in lacking}
        if self.topic is not None:
            found["topic"] = pa.repeat(pa.scalar(self.topic), batch.num_rows)
        return found


class Intake(TakenColumns):
    """Turns batches of one schema into tables that `StagedWriter.write` takes. Picklable."""

    taken = _TAKEN
    given_anew = frozenset({"store_id", "offset", "key_code", "flag", "state"})
    may_lack = frozenset(
        ("partition", "received_time", "received_time_ms", "msg_id", "report_address")
    )

    @property
    def has_partitions(self) -> bool:
        """True if the rows have a partition column."""
        return "partition" in self.columns

    def table(self, batch: pa.RecordBatch, lacking: frozenset[str] | None = None) -> pa.Table:
        """Return the rows as a table of the store's columns; `lacking` as of `columns_of`."""
        found = self.columns_of(batch, lacking)
        for first, second in (("partition", "key"), ("received_time_ms", "received_time")):
            if first in found:
                found.pop(second, None)
        attributes = found.pop("attributes", None)
        if attributes is not None:
            own, items = split_system(as_maps(attributes))
            found["attributes"] = own
            found.setdefault("filter_item", items)
        return pa.table(found)


def as_maps(column: Any) -> pa.MapArray:
    """Return attributes as maps, of maps or of Kafka's headers (their values as UTF-8)."""
    if _T.is_map(column.type):
        return column
    pairs = column.values
    try:
        values = pc.struct_field(pairs, [1]).cast(pa.string())
    except pa.ArrowInvalid as error:
        raise InvalidMessage(f"column headers: a value is not UTF-8: {error}") from error
    keys = pc.struct_field(pairs, [0])
    if keys.null_count:
        raise InvalidMessage("column headers: a key is null")
    return pa.MapArray.from_arrays(_offsets_with_nulls(column), keys, values)


def _offsets_with_nulls(column: Any) -> pa.Array:
    """Return boundaries in which a null marks a row that is null."""
    offsets = np.asarray(column.offsets.to_numpy())
    nulls = np.append(pc.is_null(column).to_numpy(zero_copy_only=False), False)
    return pa.array(offsets, pa.int32(), mask=nulls)


def split_system(maps: pa.MapArray) -> tuple[pa.MapArray, pa.StringArray]:
    """Take TubeMQ's own two items out: (the others, the filter items)."""
    items = pc.map_lookup(maps, pa.scalar(ATTRIBUTE_TYPE), "first")
    return without(maps, [ATTRIBUTE_TYPE, ATTRIBUTE_TIME]), items
