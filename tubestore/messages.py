"""What goes in and what comes out: acknowledgements, messages, pages, and their Arrow schema."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from html import escape
from typing import Any, NamedTuple, Protocol, overload

import pyarrow as pa
import pyarrow.compute as pc

from tubestore.options import Durability
from tubestore.values import warn_caller

#: The columns of everything that is read, in order; `columns=` chooses among them.
MESSAGE_SCHEMA = pa.schema(
    [
        pa.field("topic", pa.string(), nullable=False),
        pa.field("store_id", pa.int32(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("received_time", pa.timestamp("ms", "UTC")),
        pa.field("received_time_ms", pa.int64(), nullable=False),
        pa.field("filter_item", pa.string()),
        pa.field("key_code", pa.int32(), nullable=False),
        pa.field("attributes", pa.map_(pa.string(), pa.string())),
        pa.field("body", pa.large_binary()),
        pa.field("msg_id", pa.int64()),
        pa.field("flag", pa.int32()),
        pa.field("report_address", pa.int32()),
        pa.field("state", pa.string(), nullable=False),
    ]
)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: Rows and bytes of a body that a notebook shows.
_ROWS_SHOWN, _BYTES_SHOWN = 20, 60
#: The columns that make a `Message`.
_OF_MESSAGE = (
    "topic", "partition", "offset", "body", "received_time_ms", "filter_item", "attributes",
    "key_code", "msg_id", "state",
)  # fmt: skip
ALL_COLUMNS: tuple[str, ...] = tuple(MESSAGE_SCHEMA.names)

#: Former names of columns. A caller may ask for them until the release after 0.1.
OLD_COLUMNS: Mapping[str, str] = {"partition_id": "partition"}


def warn_of_old_columns(names: Iterable[str]) -> None:
    """Warn a caller that asks for a column by its former name; the column keeps that name."""
    for old in OLD_COLUMNS.keys() & names:
        text = f"the column {old} is named {OLD_COLUMNS[old]}; the next release drops the old name"
        warn_caller(text, DeprecationWarning)


@lru_cache(maxsize=256)
def schema_of(columns: tuple[str, ...], *, views: bool = False) -> pa.Schema:
    """Return the schema of some of the columns, in this order; KeyError for an unknown one.

    `views`: bodies as `binary_view`.
    """
    fields = {field.name: field for field in MESSAGE_SCHEMA}
    fields |= {old: fields[name].with_name(old) for old, name in OLD_COLUMNS.items()}
    if views:
        fields["body"] = fields["body"].with_type(pa.binary_view())
    return pa.schema([fields[name] for name in columns])


#: `state` of a row: what is at the place of the message.
STATE_OK = "ok"
STATE_BAD_RECORD = "bad_record"  # token or length are not a record's, or contradict the entry
STATE_BAD_CHECKSUM = "bad_checksum"  # the payload's CRC differs (only when it was asked for)
STATE_BAD_ATTRIBUTES = "bad_attributes"  # the attribute length is impossible; the body is null
STATE_MISSING = "missing"  # no data file holds the bytes
STATE_ENTRY_DIFFERS = "entry_differs"  # entry and record contradict each other (when asked for)
STATES = (
    STATE_OK,
    STATE_BAD_RECORD,
    STATE_BAD_CHECKSUM,
    STATE_BAD_ATTRIBUTES,
    STATE_MISSING,
    STATE_ENTRY_DIFFERS,
)


#: What is taken for bytes.
Bytes = bytes | bytearray | memoryview


class ArrowStream(Protocol):
    """An Arrow table, a reader of batches, or a DataFrame of Polars, pandas, DuckDB …"""

    def __arrow_c_stream__(self, requested_schema: Any = None) -> object:
        """Return the rows, as Arrow's PyCapsule interface has it."""


#: What batches of messages are given as: Arrow, a dict of columns, or a list of dicts.
Rows = ArrowStream | Mapping[str, Any] | Sequence["Mapping[str, Any] | Message"]


class Ack(NamedTuple):
    """The place of a message, and what it survives.

    `offset` is a position in an index that the partitions of a shard share: it grows by 28 a
    message, and the offsets of a partition have gaps.
    """

    partition: int
    offset: int
    durability: Durability


class Copied(NamedTuple):
    """How many messages `copy_from` appended, and how many it left out because of damage."""

    messages: int
    left_out: int


@dataclass(frozen=True, slots=True)
class BatchAck:
    """The places of the rows of a batch: int32 and int64 columns, in the order of the rows.

    >>> import tempfile, tubestore
    >>> with tempfile.TemporaryDirectory() as root, tubestore.open(root) as store:
    ...     acks = store.create_topic("t").append_batch({"body": [b"one", b"two"]})
    ...     print(len(acks), acks.offsets.to_pylist(), [ack.durability for ack in acks])
    2 [0, 28] ['page_cache', 'page_cache']
    """

    partitions: pa.Int32Array
    offsets: pa.Int64Array
    durability: Durability

    def __repr__(self) -> str:
        return f"BatchAck({len(self)} messages, durability={self.durability!r})"

    def __len__(self) -> int:
        return len(self.offsets)

    def __iter__(self) -> Iterator[Ack]:
        for partition, offset in zip(
            self.partitions.to_pylist(), self.offsets.to_pylist(), strict=True
        ):
            yield Ack(partition, offset, self.durability)


@dataclass(frozen=True, slots=True)
class Message:
    """One message as it was read; `body` is None if it is unreadable.

    >>> import tempfile, tubestore
    >>> with tempfile.TemporaryDirectory() as root, tubestore.open(root) as store:
    ...     topic = store.create_topic("t")
    ...     ack = topic.append(b"one", filter_item="red", attributes={"lang": "en"})
    ...     message = topic.message_at(ack.partition, ack.offset)
    ...     print(message.body, message.filter_item, message.attributes["lang"], message.state)
    b'one' red en ok
    """

    topic: str
    partition: int
    offset: int
    body: bytes | None
    received_time_ms: int
    filter_item: str | None = None
    attributes: Mapping[str, str] = field(default_factory=dict)
    key_code: int = -1
    msg_id: int | None = None
    state: str = STATE_OK

    @property
    def received_time(self) -> datetime:
        """The time, as the column of this name has it; ValueError beyond the year 9999."""
        try:
            return _EPOCH + timedelta(milliseconds=self.received_time_ms)
        except OverflowError:
            raise ValueError(f"received_time_ms = {self.received_time_ms}: no datetime") from None


class ArrowTable:
    """Rows with an Arrow `table`: their number, and the forms that other libraries have."""

    __slots__ = ()

    @property
    def table(self) -> pa.Table:
        """All rows."""
        raise NotImplementedError

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def to_arrow(self) -> pa.Table:
        """Return all rows; the same as `table`."""
        return self.table

    def to_pandas(self) -> Any:
        """Return all rows as a pandas DataFrame."""
        _need("pandas", "to_pandas")
        return self.table.to_pandas()

    def to_polars(self) -> Any:
        """Return all rows as a Polars DataFrame."""
        return _need("polars", "to_polars").from_arrow(self.table)

    def _repr_html_(self) -> str:
        """Return the first rows as a notebook shows them."""
        shown = self.table.slice(0, _ROWS_SHOWN)
        lines = [[f"<th>{name}</th>" for name in shown.column_names]]
        lines += [
            [f"<td>{escape(_shown(v))}</td>" for v in row.values()] for row in shown.to_pylist()
        ]
        rows = "".join(f"<tr>{''.join(cells)}</tr>" for cells in lines)
        return f"<p>{escape(repr(self))}</p><table>{rows}</table>"


class _ArrowRows(ArrowTable):
    """Rows as Arrow batches of one schema; they read as a stream as often as one likes."""

    __slots__ = ("_batches", "_schema", "_table")

    def __init__(self, batches: list[pa.RecordBatch], schema: pa.Schema) -> None:
        self._batches, self._schema = batches, schema
        self._table: pa.Table | None = None

    @property
    def table(self) -> pa.Table:
        """All rows; of several shards in their order, and in the order of their offsets."""
        if self._table is None:
            self._table = pa.Table.from_batches(self._batches, self._schema)
        return self._table

    def __len__(self) -> int:
        return sum([batch.num_rows for batch in self._batches])

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self.table.__arrow_c_stream__(requested_schema)

    def __iter__(self) -> Iterator[Message]:
        return messages_of(self._batches)


class _IndexedRows(_ArrowRows):
    """Rows that are messages by their number, too."""

    __slots__ = ()

    @overload
    def __getitem__(self, place: int) -> Message: ...
    @overload
    def __getitem__(self, place: slice) -> list[Message]: ...
    def __getitem__(self, place: int | slice) -> Message | list[Message]:
        if isinstance(place, slice):
            rows = self.table.take(list(range(len(self))[place]))
            return list(messages_of(rows.to_batches()))
        if not -len(self) <= place < len(self):
            raise IndexError(f"message {place} of a page of {len(self)}")
        number = place % len(self)
        return next(messages_of(self.table.slice(number, 1).to_batches()))


def _shown(value: Any) -> str:
    """Return a value of a column as a short text."""
    if isinstance(value, bytes):
        more = "…" if len(value) > _BYTES_SHOWN else ""
        value = value[:_BYTES_SHOWN].decode(errors="backslashreplace") + more
    elif isinstance(value, list):  # a map
        value = ", ".join(f"{key}={text}" for key, text in value)
    return "" if value is None else str(value)


def _need(library: str, call: str) -> Any:
    """Return a library that is no requirement of this package; ModuleNotFoundError has the cure."""
    try:
        return importlib.import_module(library)
    except ModuleNotFoundError as error:
        text = f"{call} needs {library}: pip install {library}"
        raise ModuleNotFoundError(text, name=error.name) from None


class Page(_IndexedRows):
    """The answer to one read: rows as Arrow, and where to go on.

    `next_offset`: give it to the next read of the same partition; offsets have gaps, so do not
    count. `end_offset`: the offset
    after the last message at the time of the call. `truncated`: whether a limit ended the
    page before the end. Reads as an Arrow stream as often as one likes; `page[0]` and `page[-3:]`
    are messages.

    >>> import tempfile, tubestore
    >>> with tempfile.TemporaryDirectory() as root, tubestore.open(root) as store:
    ...     topic = store.create_topic("t")
    ...     _ = topic.append_batch({"body": [b"one", b"two", b"three"]})
    ...     page = topic.read(0, limit=2)
    ...     print(page, page.table["body"].to_pylist())
    ...     print([message.body for message in topic.read(0, page.next_offset)])
    Page(2 messages, next_offset=56, end_offset=84, truncated=True) [b'one', b'two']
    [b'three']
    """

    __slots__ = ("end_offset", "next_offset", "truncated")

    def __init__(
        self,
        batches: list[pa.RecordBatch],
        schema: pa.Schema,
        *,
        next_offset: int,
        end_offset: int,
        truncated: bool,
    ) -> None:
        super().__init__(batches, schema)
        self.next_offset, self.end_offset, self.truncated = next_offset, end_offset, truncated

    def __repr__(self) -> str:
        return (
            f"Page({len(self)} messages, next_offset={self.next_offset}, "
            f"end_offset={self.end_offset}, truncated={self.truncated})"
        )


class FoundInShard(NamedTuple):
    """What a read of many partitions found in one shard; arrays beside the partitions."""

    partitions: list[int]
    next_offsets: Any
    truncated: Any
    end_offset: int
    batches: list[pa.RecordBatch]


class PageSet(_ArrowRows):
    """The answer to one read of many partitions: their rows as Arrow, and where each goes on.

    `next_offset`, `end_offset`, `truncated`: dicts by partition, as of a `Page`; give `next_offset`
    to the next read. Reads as an Arrow stream as often as one likes; `pages[7]` is the page of one
    partition (needs the column `partition`).
    """

    def __init__(self, schema: pa.Schema, found: Iterable[FoundInShard] = ()) -> None:
        super().__init__([], schema)
        self.next_offset: dict[int, int] = {}
        self.end_offset: dict[int, int] = {}
        self.truncated: dict[int, bool] = {}
        for one in found:
            self._batches += one.batches
            self.next_offset |= zip(one.partitions, one.next_offsets.tolist(), strict=True)
            self.truncated |= zip(one.partitions, one.truncated.tolist(), strict=True)
            self.end_offset |= dict.fromkeys(one.partitions, one.end_offset)

    def __getitem__(self, partition: int) -> Page:
        next_offset = self.next_offset[partition]  # KeyError for one that was not asked for
        name = "partition" if "partition" in self._schema.names else "partition_id"
        wanted = pc.equal(self.table.column(name), pa.scalar(partition, pa.int32()))
        return Page(
            self.table.filter(wanted).to_batches(),
            self._schema,
            next_offset=next_offset,
            end_offset=self.end_offset[partition],
            truncated=self.truncated[partition],
        )

    def __repr__(self) -> str:
        more = sum(self.truncated.values())
        return (
            f"PageSet({len(self)} messages of {len(self.truncated)} partitions, {more} truncated)"
        )


@dataclass(frozen=True, slots=True)
class Removed:
    """Messages that retention removed before a consumer came to them: offsets [position, first).

    `first` is below `position` where a power cut took messages that the group had processed.
    """

    topic: str
    partition: int
    position: int
    first: int


class Polled(_IndexedRows):
    """The answer to a poll of a consumer: messages as Arrow, those of each partition in order.

    Reads as an Arrow stream as often as one likes; iterating gives one `Message` a row (needs all
    columns). `removed` has what retention took away before this consumer came to it.
    """

    __slots__ = ("removed",)

    def __init__(
        self, batches: list[pa.RecordBatch], schema: pa.Schema, removed: list[Removed]
    ) -> None:
        super().__init__(batches, schema)
        self.removed = removed

    def __repr__(self) -> str:
        return f"Polled({len(self)} messages)"


def check_columns(batch: pa.RecordBatch, wanted: Iterable[str], made: str, whole: str) -> None:
    """Raise ValueError for rows that lack columns of what is `made` of them; `whole` has them."""
    missing = [name for name in wanted if name not in batch.schema.names]
    if missing:
        reason = f"{made} needs all columns: read without columns=, or use {whole}"
        raise ValueError(f"no column {', '.join(missing)}: {reason}")


def messages_of(batches: Iterable[pa.RecordBatch]) -> Iterator[Message]:
    """Go through the rows of batches with all columns, one object a message."""
    for batch in batches:
        check_columns(batch, _OF_MESSAGE, "a Message", ".table")
        for row in batch.to_pylist():
            yield Message(
                row["topic"],
                row["partition"],
                row["offset"],
                row["body"],
                row["received_time_ms"],
                row["filter_item"],
                dict(row["attributes"] or ()),
                row["key_code"],
                row["msg_id"],
                row["state"],
            )
