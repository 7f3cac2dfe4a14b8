"""Appends of tables: rows find their topics and shards, are encoded once, and reach their level.

Batches that name the same topics come one after the other. What was found for the last one is
kept and compared by its names, in one go, instead of looked up name by name.

Guards: `AddressBook._known` is replaced whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tubestore.core.kernels import integers
from tubestore.core.layout import Buffer
from tubestore.errors import BatchError, TubeStoreError, UnknownTopic
from tubestore.groups.outputs import RecordedOutput, encode_output, rows_to_append
from tubestore.journal.chosen_shards import ChosenShards, JournalledShard, ShardTable
from tubestore.journal.journalled import (
    IN_MEMORY,
    IN_PAGE_CACHE,
    NOT_TAKEN,
    SYNCED,
    JournalledAppends,
    append_part,
)
from tubestore.messages import Ack, BatchAck
from tubestore.options import DURABILITIES, PARTITIONS_PER_STORE, Durability, check_durability
from tubestore.reading.view import ShardView
from tubestore.record import ingest
from tubestore.record.names import store_key
from tubestore.record.records import RecordColumns, encode_columns
from tubestore.shard.message_store import MessageStore
from tubestore.store.context import Context
from tubestore.store.opening import ShardOpener
from tubestore.store.topic_shards import TopicShards

Array = np.ndarray[Any, Any]
#: Columns that recorded output has in a form of its own.
_REPLACED = {"partition", "partition_id", "key", "received_time", "received_time_ms"}
#: Names are looked up among those that are known unless these are so many times more.
_KNOWN_PER_ROW = 4


# -- topics and shards of rows -----------------------------------------------------------------


class Addressees:
    """Some topics by code, with the facts that a batch needs of them in columns."""

    def __init__(self, names: pa.Array, topics: list[TopicShards], version: int) -> None:
        self.names, self.topics, self.version = names, topics, version
        #: Partitions in each store, and stores, of each topic.
        self.partitions = np.array([t.options.partitions for t in topics], np.int64)
        self.stores = np.array([t.options.stores for t in topics], np.int64)
        self._first_places = np.concatenate(([0], np.cumsum(self.stores)))
        shards = [store_key(t.name, n) for t in topics for n in range(t.options.stores)]
        self._table = ShardTable(shards, self._find)

    def _find(self, place: int) -> MessageStore:
        code = int(self._first_places.searchsorted(place, "right")) - 1
        return self.topics[code].writable(place - int(self._first_places[code]))

    def shards(self, keys: Array) -> ChosenShards:
        """Return the shards with these keys: topic code * 10,000 + store id."""
        codes, store_ids = np.divmod(keys, PARTITIONS_PER_STORE)
        return ChosenShards(self._table, self._first_places[codes] + store_ids)


class AddressBook:
    """Finds the topics of tables; keeps the last ones.

    `find` returns the shards of topics by name (UnknownTopic), `version` a number that changes
    with topics and their settings.
    """

    def __init__(
        self, find: Callable[[list[str]], list[TopicShards]], version: Callable[[], int]
    ) -> None:
        self._find, self._version = find, version
        self._known: Addressees | None = None

    def of(self, table: pa.Table) -> tuple[Addressees, Array]:
        """Return the topics in the column `topic`, and for each row its code among them (int64).

        InvalidMessage, UnknownTopic.
        """
        version = self._version()
        known = self._known if self._known and self._known.version == version else None
        names = ingest.column(table, "topic")
        if names is not None and pa.types.is_dictionary(names.type) and not names.null_count:
            found = self._of_dictionary(names.dictionary, known, version)
            if found is not None:
                return found, names.indices.to_numpy().astype(np.int64)
        if known is not None and names is not None and names.type == known.names.type:
            places = _places(names, known)
            if places is not None:
                return known, places
        texts, codes = ingest.split_topics(table)
        places = _places(pa.array(texts, known.names.type), known) if known is not None else None
        if known is not None and places is not None:
            return known, places[codes]
        topics = dict(zip(texts, self._find(texts), strict=True))
        # Those of the last batches as well: the next one may have some of each.
        if known is not None and len(known.topics) < _KNOWN_PER_ROW * len(codes):
            for topic in known.topics:
                topics.setdefault(topic.name, topic)
        kind = pa.large_string() if _is_large(names) else pa.string()
        self._known = Addressees(pa.array(list(topics), kind), list(topics.values()), version)
        return self._known, codes

    def _of_dictionary(
        self, dictionary: pa.Array, known: Addressees | None, version: int
    ) -> Addressees | None:
        """Return the topics of all values of a dictionary; None if one is unknown, or twice."""
        if known is not None and dictionary.equals(known.names):
            return known
        if not (pa.types.is_string(dictionary.type) or _is_large(dictionary)):
            return None
        texts = dictionary.to_pylist()
        if len(set(texts)) < len(texts):
            return None
        try:
            topics = self._find(texts)
        except UnknownTopic:
            return None
        # Not the array itself: it may be a small part of what it holds.
        self._known = Addressees(pa.array(texts, dictionary.type), topics, version)
        return self._known


def _places(names: pa.Array, known: Addressees) -> Array | None:
    """Return the codes of some names; None if one is new, or the search costs too much."""
    if names.null_count or len(known.names) > _KNOWN_PER_ROW * len(names):
        return None
    places = pc.index_in(names, value_set=known.names)
    return None if places.null_count else places.to_numpy().astype(np.int64)


def _is_large(names: pa.Array | None) -> bool:
    return names is not None and pa.types.is_large_string(names.type)


# -- appending ---------------------------------------------------------------------------------


def append_table(
    opener: ShardOpener,
    table: pa.Table,
    topics: list[TopicShards],
    codes: Array,
    durability: Durability | None,
    to: Addressees | None = None,
) -> BatchAck:
    """Append the rows of a checked table to their topics: row i to `topics[codes[i]]`.

    `to`: what is known of these topics in columns. Rows are grouped by shard, encoded together
    once, and handed to their shards in slices.
    """
    context = opener.context
    level = context.options.durability if durability is None else check_durability(durability)
    count = table.num_rows
    if count == 0:
        return BatchAck(pa.array([], pa.int32()), pa.array([], pa.int64()), level)
    if level == "fsync":
        context.directory.check_writer()
    turns = partial(_turns, topics)
    if to is None:
        partition_ids = ingest.route(table, codes, [t.options for t in topics], turns)
    else:
        partition_ids = ingest.route_among(table, codes, to.partitions, to.stores, turns)
    columns = _columns_of(context, table, partition_ids)
    return _acked(columns, append_columns(topics, codes, columns, level, opener.journal, to), level)


def _columns_of(context: Context, table: pa.Table, partition_ids: Array) -> RecordColumns:
    return ingest.build_columns(
        table,
        partition_ids,
        now_ms=context.clock.now_ms(),
        payload_size_max=context.options.payload_size_max,
        next_msg_ids=context.ids.next_many,
    )


def _acked(columns: RecordColumns, offsets: Array, level: Durability) -> BatchAck:
    return BatchAck(
        integers(pa.int32(), columns.partition_ids), integers(pa.int64(), offsets), level
    )


class PreparedAppend:
    """Messages of many topics, checked, with partitions and ids: to be recorded and appended."""

    def __init__(self, opener: ShardOpener, book: AddressBook, table: pa.Table) -> None:
        table = ingest.with_keys(table, opener.context.options.key_attribute)
        self._opener, self._table = opener, table
        self._to, self._codes = to, _ = book.of(table)
        partition_ids = ingest.route_among(
            table, self._codes, to.partitions, to.stores, partial(_turns, to.topics)
        )
        self._columns = _columns_of(opener.context, table, partition_ids)

    def encoded(self) -> Buffer:
        """Return the messages as they are recorded (`groups/outputs.py`)."""
        columns, table, topics = self._columns, self._table, self._to.topics
        chosen = [name for name in table.column_names if name not in _REPLACED]
        found = table.select(chosen)
        for name, values in (
            ("partition", columns.partition_ids),
            ("received_time_ms", columns.received_times),
            ("msg_id", columns.msg_ids),
        ):
            found = found.append_column(name, pa.array(values))
        keys = self._codes * PARTITIONS_PER_STORE + columns.partition_ids // PARTITIONS_PER_STORE
        ends = {}
        for key in np.unique(keys).tolist():
            code, store_id = divmod(key, PARTITIONS_PER_STORE)
            shard = topics[code].writable(store_id)
            ends[store_key(topics[code].name, store_id)] = shard.view().index_end
        ids = {topics[code].name: topics[code].options.id for code in np.unique(self._codes)}
        return encode_output(RecordedOutput(found, ids, ends, self._opener.context.vfs.boot_id()))

    def append(self, level: Durability) -> BatchAck:
        """Append the messages."""
        columns, to = self._columns, self._to
        offsets = append_columns(to.topics, self._codes, columns, level, self._opener.journal, to)
        return _acked(columns, offsets, level)


def append_missing(
    opener: ShardOpener,
    book: AddressBook,
    output: RecordedOutput,
    topic_id: Callable[[str], int | None],
    view: Callable[[str, int], ShardView | None],
) -> None:
    """Append durably what is not in its topics of recorded output."""
    lacking = rows_to_append(output, topic_id, view, opener.context.vfs.boot_id())
    table = output.table.filter(pa.array(lacking))
    if table.num_rows:
        to, codes = book.of(table)
        append_table(opener, table, to.topics, codes, "fsync", to)


def append_to_topics(
    opener: ShardOpener, book: AddressBook, data: Any, durability: Durability | None
) -> BatchAck:
    """Append the rows of a table with a column `topic` to their topics."""
    opener.context.check_open(writing=True)
    table = ingest.as_table(data, with_topic=True)
    table = ingest.with_keys(table, opener.context.options.key_attribute)
    if table.num_rows == 0:
        return append_table(opener, table, [], np.empty(0, np.int64), durability)
    to, codes = book.of(table)
    return append_table(opener, table, to.topics, codes, durability, to)


def append_columns(
    topics: list[TopicShards],
    codes: Array,
    columns: RecordColumns,
    level: Durability,
    journal: JournalledAppends | None = None,
    to: Addressees | None = None,
) -> Array:
    """Append checked columns to their topics; returns the offsets (int64) in their order.

    Rows of a shard keep their order. If a part was not taken, BatchError has what was taken.
    """
    order, firsts, keys = ingest.shard_order(codes, columns.partition_ids)
    shards: Sequence[JournalledShard]
    if to is None:
        pairs = (divmod(key, PARTITIONS_PER_STORE) for key in keys.tolist())
        shards = [topics[code].writable(store_id) for code, store_id in pairs]
    else:
        shards = to.shards(keys)
    placed = np.full(len(columns), -1, np.int64)
    reached = np.full(len(shards), NOT_TAKEN, np.int8)
    failure: TubeStoreError | None = None
    try:
        ordered = columns if order is None else columns.take(order)
        _append_slices(ordered, shards, firsts, placed, reached, level, journal)
    except TubeStoreError as error:
        failure = error
    offsets = _given_order(order, placed)
    if failure is not None:
        _note_written(shards, firsts, placed, reached)
        row_levels = np.repeat(reached, np.diff(np.append(firsts, len(columns))))
        levels = _given_order(order, row_levels).tolist()
        rows = zip(columns.partition_ids.tolist(), offsets.tolist(), levels, strict=True)
        acks = [Ack(p, o, DURABILITIES[r - 1]) if r != NOT_TAKEN else None for p, o, r in rows]
        if not any(acks):
            raise failure
        refused = BatchError(str(failure), acks)
        refused.taken = "yes" if all(acks) else "unknown" if failure.taken == "unknown" else "no"
        raise refused from failure
    return offsets


def _given_order(order: Array | None, values: Array) -> Array:
    """Return the values of rows that were grouped by shard in the order of the batch."""
    if order is None:
        return values
    given = np.empty_like(values)
    given[order] = values
    return given


def _note_written(
    shards: Sequence[JournalledShard], firsts: Array, placed: Array, reached: Array
) -> None:
    """Raise the level of rows that are in a shard's files, whatever failed after that."""
    lasts = [*(firsts[1:] - 1).tolist(), len(placed) - 1]
    for n in np.flatnonzero(reached == IN_MEMORY).tolist():
        if shards[n].has_written(int(placed[lasts[n]])):
            reached[n] = IN_PAGE_CACHE


def _turns(topics: list[TopicShards], codes: Array) -> Array:
    """Return round-robin numbers for every row, each topic continuing its own count."""
    numbers = np.empty(len(codes), np.uint64)
    for code in np.unique(codes).tolist():
        rows = np.flatnonzero(codes == code)
        first = topics[code].take_turns(len(rows))
        numbers[rows] = np.arange(first, first + len(rows))
    return numbers


def _append_slices(
    columns: RecordColumns,
    shards: Sequence[JournalledShard],
    firsts: Array,
    offsets: Array,
    reached: Array,
    level: Durability,
    journal: JournalledAppends | None,
) -> None:
    """Encode once, append each shard's slice; `fsync` syncs after all are written.

    Fills `offsets` by row and `reached` by shard, also when it raises.
    """
    batch = encode_columns(columns)
    if journal is not None and journal.takes(len(shards), len(batch.data)):
        chosen = shards if isinstance(shards, ChosenShards) else ChosenShards.of(shards)
        journal.append(batch, chosen, firsts, offsets, reached, level)
        return
    bounds = [*firsts.tolist(), len(columns)]
    # Over several shards `fsync` is a step of its own.
    below = "page_cache" if level == "fsync" and len(shards) > 1 else level
    for n, (first, end) in enumerate(pairwise(bounds)):
        part = batch if len(shards) == 1 else batch.part(first, end)
        append_part(shards, n, part, offsets[first:end], reached, below)
    if below != level:
        for n, shard in enumerate(shards):
            shard.sync_data()
            reached[n] = SYNCED
