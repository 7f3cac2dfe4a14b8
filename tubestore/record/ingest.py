"""Tables of messages, of one topic or of many, become columns that a shard can take.

Everything is checked here, before anything is written: one clear error, and the store is as
it was. Accepted is anything with `__arrow_c_stream__` (Arrow, Polars, pandas, DuckDB …) or a
list of dicts. Columns:

| column | type | |
| --- | --- | --- |
| `body` | binary or text | needed, not null, not empty |
| `topic` | text | only for `store.append_batch` |
| `partition` or `partition_id` | integer | else from `key`, else round robin |
| `key` | text or binary | chooses the partition (xxh3) |
| `filter_item` | text | null: none |
| `attributes` | map<text, text> | null: none |
| `received_time` or `received_time_ms` | timestamp (any unit, UTC) or integer | else now |
| `report_address` | integer | the sender's IPv4, else 127.0.0.1 |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from tubestore.core.kernels import widened
from tubestore.errors import InvalidMessage, MessageTooLarge
from tubestore.messages import STATE_OK, Message
from tubestore.options import PARTITIONS_PER_STORE, TopicOptions
from tubestore.record.attributes import encode_prefix
from tubestore.record.layouts import (
    ATTRIBUTE_TIME,
    ATTRIBUTE_TYPE,
    FLAG_HAS_ATTRIBUTES,
    NO_KEY_CODE,
    key_code_of,
)
from tubestore.record.records import RecordColumns, binary_sizes

Array = np.ndarray[Any, Any]
Columns = Mapping[str, pa.Array | None]
LOOPBACK = 127 << 24 | 1
_KNOWN = {
    "body",
    "topic",
    "partition",
    "partition_id",
    "key",
    "filter_item",
    "attributes",
    "received_time",
    "received_time_ms",
    "report_address",
}
#: Columns with the place of a message that was read; an append gives it another one.
_OF_OLD_PLACE = frozenset({"store_id", "offset", "key_code", "flag", "state"})
_KNOWN_WITH_IDS = _KNOWN | {"msg_id"}


def as_table(data: Any, *, with_topic: bool, with_ids: bool = False) -> pa.Table:
    """Return the batch as one Arrow table with known columns, or raise InvalidMessage.

    `with_ids`: a column `msg_id` is known too.
    """
    try:
        if isinstance(data, Sequence) and not isinstance(data, str | bytes):
            table = _table_of_rows(data)
        else:
            table = data if isinstance(data, pa.Table) else pa.table(data)
    except (TypeError, ValueError, OverflowError, pa.ArrowException) as error:
        raise InvalidMessage(f"not a table of messages: {error}") from error
    if "state" in table.column_names:
        table = _as_given(table, with_topic=with_topic, with_ids=with_ids)
    names = table.column_names
    if table.num_rows == 0 and not names:
        return table
    known = _KNOWN_WITH_IDS if with_ids else _KNOWN
    given = set(names)
    unknown = given - known
    if unknown:
        raise InvalidMessage(
            f"columns {', '.join(sorted(unknown))}: unknown; known are {', '.join(sorted(known))}"
        )
    if len(given) < len(names):
        twice = sorted(name for name in given if names.count(name) > 1)
        raise InvalidMessage(f"columns {', '.join(twice)}: given more than once")
    if given.issuperset(("partition", "partition_id")):
        raise InvalidMessage("columns partition and partition_id: only one of them can be given")
    if "body" not in names:
        raise InvalidMessage("the column body is missing")
    if ("topic" in names) != with_topic:
        raise InvalidMessage(
            "a column topic is needed here" if with_topic else "a topic takes no column topic"
        )
    return table.combine_chunks()


def _table_of_rows(given: Sequence[Any]) -> pa.Table:
    """Make a table of dicts and messages; Arrow takes the columns of the first dict only."""
    rows = [_row_of(row) if isinstance(row, Message) else row for row in given]
    for row in rows:
        if not isinstance(row, Mapping):
            raise TypeError(f"a row is a dict or a Message, not {type(row).__name__}")
    names = dict.fromkeys(name for row in rows for name in row)
    return pa.table({name: [row.get(name) for row in rows] for name in names})


def _row_of(message: Message) -> dict[str, Any]:
    """Return the columns of an append of a message that was read."""
    return {
        "topic": message.topic,
        "partition": message.partition,
        "body": message.body,
        "filter_item": message.filter_item,
        "attributes": own_attributes(message.attributes) or None,
        "received_time_ms": message.received_time_ms,
        "state": message.state,
    }


def own_attributes(attributes: Mapping[str, str]) -> dict[str, str]:
    """Return the attributes of a message without those of the system."""
    names = (ATTRIBUTE_TIME, ATTRIBUTE_TYPE)
    return {name: value for name, value in attributes.items() if name not in names}


def _as_given(table: pa.Table, *, with_topic: bool, with_ids: bool) -> pa.Table:
    """Return the columns of an append of a table that was read; InvalidMessage for damaged rows.

    Such a table has the column `state`, columns of the message's old place, and attributes of the
    system, which are made anew.
    """
    states = table.column("state")
    if states.null_count or not pc.all(pc.equal(states, STATE_OK)).as_py():
        row = next(n for n, state in enumerate(states.to_pylist()) if state != STATE_OK)
        raise InvalidMessage(f"row {row}: it is {states[row]}; leave such rows out")
    dropped = _OF_OLD_PLACE | ({"topic"} if not with_topic else set())
    dropped |= set() if with_ids else {"msg_id"}
    table = table.drop_columns([name for name in table.column_names if name in dropped])
    place = table.schema.get_field_index("attributes")
    if place >= 0 and pa.types.is_map(table.schema.types[place]):
        maps = table.column(place).combine_chunks()
        own = without(maps, [ATTRIBUTE_TIME, ATTRIBUTE_TYPE])
        table = table.set_column(place, "attributes", own)
    return table


def without(maps: pa.MapArray, names: Sequence[str]) -> pa.MapArray:
    """Return maps without some keys."""
    keys, values = maps.keys, maps.items
    unwanted = pc.is_in(keys, pa.array(names, keys.type))
    if not pc.any(unwanted).as_py():
        return maps
    keep = pc.invert(unwanted)
    kept = np.concatenate(([0], np.cumsum(keep.to_numpy(zero_copy_only=False))))
    # The keys are those of the whole array, also of a slice, and so are the offsets.
    bounds = kept[np.asarray(maps.offsets.to_numpy())]
    nulls = np.append(pc.is_null(maps).to_numpy(zero_copy_only=False), False)
    marked = pa.array(bounds, pa.int32(), mask=nulls)
    return pa.MapArray.from_arrays(marked, keys.filter(keep), values.filter(keep))


def split_topics(table: pa.Table) -> tuple[list[str], Array]:
    """Return the names in the column `topic`, and for each row which of them it has (int64)."""
    names = column(table, "topic")
    if names is None or names.null_count:
        raise InvalidMessage("column topic: every row needs a topic")
    # Through text: a dictionary may hold values that no row has.
    encoded = names.cast(pa.string()).dictionary_encode()
    codes = encoded.indices.to_numpy().astype(np.int64)
    return [str(name) for name in _listed(encoded.dictionary, "topic")], codes


def column(table: pa.Table, name: str) -> pa.Array | None:
    """Return a column as one array, None if it is not there."""
    place = table.schema.get_field_index(name)
    if place < 0:
        return None
    chunked = table.column(place)
    if chunked.num_chunks == 1:
        return chunked.chunk(0)
    return pa.concat_arrays(chunked.chunks) if chunked.num_chunks else pa.array([], chunked.type)


def build_columns(
    table: pa.Table,
    partition_ids: Array,
    *,
    now_ms: int,
    payload_size_max: int,
    next_msg_ids: Callable[[int], Array],
) -> RecordColumns:
    """Check every column of a table and return its messages, in its order."""
    count = table.num_rows
    given = {name: column(table, name) for name in table.column_names}
    bodies = _binary(given["body"], "body")
    sizes = binary_sizes(bodies)
    # Not by `min`, which goes through Python, here and below.
    if bodies.null_count or (count and np.count_nonzero(sizes) < count):
        row = int(np.argmin(sizes)) if not bodies.null_count else _first_null(bodies)
        raise InvalidMessage(f"row {row}: a message needs a body of at least one byte")
    times = _times(given, count, now_ms)
    prefixes, key_codes, flags = _attributes(given, times, count)
    total = sizes if prefixes is None else sizes + binary_sizes(prefixes)
    if count and np.maximum.reduce(total) > payload_size_max:
        raise MessageTooLarge(
            int(total.max()),
            payload_size_max,
            f"row {int(np.argmax(total))}: payload (body and attributes)",
            "payload_size_max",
        )
    addresses, ids = given.get("report_address"), given.get("msg_id")
    return RecordColumns(
        partition_ids.astype(np.int32),
        key_codes,
        times,
        _filled(count, LOOPBACK, np.int32) if addresses is None else _addresses(addresses),
        next_msg_ids(count) if ids is None else _integers(ids, "msg_id"),
        flags,
        [bodies] if prefixes is None else [prefixes, bodies],
    )


def route(
    table: pa.Table, codes: Array, topics: Sequence[TopicOptions], round_robin: Callable[..., Array]
) -> Array:
    """Return each row's partition id; `codes`: the number in `topics` of each row's topic."""
    given = _given_partitions(table)
    if given is not None and len(topics) == 1 and topics[0].stores == 1:
        ids = _integers(given, "partition")
        # Negative ones are the largest of all when read as unsigned.
        if not np.count_nonzero(ids.view(np.uint64) >= topics[0].partitions):
            return ids
    partitions = np.array([t.partitions for t in topics], np.int64)
    stores = np.array([t.stores for t in topics], np.int64)
    return route_among(table, codes, partitions, stores, round_robin)


def route_among(
    table: pa.Table,
    codes: Array,
    partitions: Array,
    store_counts: Array,
    round_robin: Callable[..., Array],
) -> Array:
    """As `route`, with each topic's partitions in a store and its stores as columns."""
    per_store: Any = partitions
    stores: Any = store_counts
    if len(partitions) > 1:  # else one number is for all rows
        per_store, stores = per_store[codes], stores[codes]
    given = _given_partitions(table)
    if given is not None:
        ids = _integers(given, "partition")
        store, place = np.divmod(ids, PARTITIONS_PER_STORE)
        wrong = (ids < 0) | (store >= stores) | (place >= per_store)
        if wrong.any():
            row = int(np.argmax(wrong))
            each, count = (int(np.broadcast_to(n, len(ids))[row]) for n in (per_store, stores))
            shards = "" if count == 1 else f" in each of {count} shards (shard * 10000 + number)"
            there = f"its topic has partitions 0 to {each - 1}{shards}"
            raise InvalidMessage(f"row {row}: partition {ids[row]}: {there}")
        return ids
    keys = column(table, "key")
    numbers = round_robin(codes) if keys is None else _hash_keys(keys, round_robin, codes)
    numbers = (numbers % (per_store * stores).astype(np.uint64)).astype(np.int64)
    return np.asarray(numbers // per_store * PARTITIONS_PER_STORE + numbers % per_store)


def with_keys(table: pa.Table, name: str | None) -> pa.Table:
    """Return a batch with each key as an attribute of this name, too; None: as it is."""
    keys = None if name is None else column(table, "key")
    if keys is None:
        return table
    given = column(table, "attributes")
    maps = [{}] * table.num_rows if given is None else _dicts(given)
    pairs = [
        {**have, **key_attribute(key, name)}
        for have, key in zip(maps, _listed(keys, "key"), strict=True)
    ]
    texts = pa.array([list(each.items()) for each in pairs], pa.map_(pa.string(), pa.string()))
    if given is not None:
        table = table.drop_columns(["attributes"])
    return table.append_column("attributes", texts)


def key_attribute(key: Any, name: str | None) -> dict[str, str]:
    """Return the attribute that keeps a key; none without a key or a name."""
    if key is None or name is None:
        return {}
    try:
        return {name: key if isinstance(key, str) else bytes(key).decode()}
    except (UnicodeDecodeError, TypeError) as error:
        raise InvalidMessage(f"key {key!r}: no text for the attribute {name!r}: {error}") from error


def _given_partitions(table: pa.Table) -> pa.Array | None:
    given = column(table, "partition")
    return column(table, "partition_id") if given is None else given


def hash_key(key: str | bytes | bytearray | memoryview) -> int:
    """Return the 64-bit hash that chooses a key's partition; text is hashed as UTF-8."""
    if isinstance(key, str):
        try:
            key = key.encode()
        except UnicodeEncodeError as error:
            raise InvalidMessage(f"key {key!r}: {error}") from error
    elif not isinstance(key, bytes | bytearray | memoryview):
        raise InvalidMessage(f"a key is text or bytes, not {type(key).__name__}")
    return xxhash.xxh3_64_intdigest(key)


def _hash_keys(keys: pa.Array, round_robin: Callable[..., Array], codes: Array) -> Array:
    encoded = keys.dictionary_encode()
    hashes = np.array([hash_key(k) for k in _listed(encoded.dictionary, "key")], np.uint64)
    if keys.null_count == 0:
        return np.asarray(hashes[encoded.indices.to_numpy()])
    places = encoded.indices.fill_null(-1).to_numpy()
    numbers = round_robin(codes)  # rows without a key go round
    known = places >= 0
    numbers[known] = hashes[places[known]]
    return numbers


def _binary(values: pa.Array | None, name: str) -> pa.LargeBinaryArray:
    assert values is not None
    kind = values.type
    if pa.types.is_binary(kind) or pa.types.is_string(kind):
        return widened(values)
    if _is_text(kind):
        values = values.cast(pa.large_string())
    elif not (
        pa.types.is_large_binary(kind)
        or pa.types.is_binary_view(kind)
        or pa.types.is_fixed_size_binary(kind)
    ):
        raise InvalidMessage(f"column {name}: {kind} is neither binary nor text")
    return values.cast(pa.large_binary())


def _filled(count: int, value: int, kind: type) -> Array:
    """As `np.full`, at a quarter of its time."""
    values: Array = np.empty(count, kind)
    values.fill(value)
    return values


def _integers(values: pa.Array, name: str) -> Array:
    if not pa.types.is_integer(values.type) or values.null_count:
        raise InvalidMessage(f"column {name}: integers without null are needed")
    if not pa.types.is_uint64(values.type):
        return np.asarray(values.to_numpy().astype(np.int64, copy=False))
    try:
        return np.asarray(values.cast(pa.int64()).to_numpy(zero_copy_only=False))
    except pa.ArrowInvalid as error:
        raise InvalidMessage(f"column {name}: {error}") from error


def _addresses(values: pa.Array) -> Array:
    """Return IPv4 addresses as TubeMQ's signed ints; unsigned ones are the same four bytes."""
    numbers = _integers(values, "report_address")
    if len(numbers) and (numbers.min() < -(1 << 31) or numbers.max() >= 1 << 32):
        raise InvalidMessage("column report_address: an IPv4 address has 32 bits")
    return numbers.astype(np.uint32).view(np.int32)


def _times(given: Columns, count: int, now_ms: int) -> Array:
    milliseconds = given.get("received_time_ms")
    if milliseconds is not None:
        return _integers(milliseconds, "received_time_ms")
    stamps = given.get("received_time")
    if stamps is None:
        return _filled(count, now_ms, np.int64)
    if not pa.types.is_timestamp(stamps.type) or stamps.type.tz is None or stamps.null_count:
        raise InvalidMessage("column received_time: timestamps with a zone, without null")
    try:  # finer units are cut off; seconds may be too many for ms
        milliseconds = stamps.cast(pa.timestamp("ms", "UTC"), safe=stamps.type.unit == "s")
    except pa.ArrowInvalid as error:
        raise InvalidMessage(f"column received_time: {error}") from error
    numbers = milliseconds.cast(pa.int64())
    return np.asarray(numbers.to_numpy())


def _texts(values: pa.Array | None, name: str) -> pa.Array | None:
    if values is None:
        return None
    kind = values.type.value_type if pa.types.is_dictionary(values.type) else values.type
    if not _is_text(kind) and not pa.types.is_null(kind):
        raise InvalidMessage(f"column {name}: {kind} is not text")
    return values.cast(pa.string())


def _maps(given: Columns) -> pa.Array | None:
    """Return the column of attributes: a map of texts, or dicts that Arrow took for a struct."""
    values = given.get("attributes")
    if values is None or pa.types.is_null(values.type):
        return values
    kind = values.type
    if pa.types.is_map(kind) and _is_text(kind.key_type) and _is_text(kind.item_type):
        return values
    if pa.types.is_struct(kind) and all(_is_text(f.type) for f in kind):
        return values
    raise InvalidMessage(f"column attributes: {kind} is not a map of texts")


def _listed(values: pa.Array, name: str) -> list[Any]:
    """Return a column's values; InvalidMessage for texts that are no UTF-8."""
    try:
        return list(values.to_pylist())
    except UnicodeDecodeError as error:
        raise InvalidMessage(f"column {name}: no UTF-8: {error}") from error


def _is_text(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def _first_null(values: pa.Array) -> int:
    return int(pc.index(pc.is_null(values), True).as_py())


def _attributes(
    given: Columns, times: Array, count: int
) -> tuple[pa.LargeBinaryArray | None, Array, Array]:
    """Return (prefixes or None, key codes, flags) of the rows."""
    items, maps = _texts(given.get("filter_item"), "filter_item"), _maps(given)
    flags = np.zeros(count, np.int32)
    key_codes = _filled(count, NO_KEY_CODE, np.int32)
    if items is not None:
        items = items.dictionary_encode()
        codes = [key_code_of(item) for item in _listed(items.dictionary, "filter_item")]
        places = items.indices.fill_null(-1).to_numpy()
        key_codes = np.array([*codes, NO_KEY_CODE], np.int32)[places]
    if items is None and maps is None:
        return None, key_codes, flags
    prefixes = _prefixes(items, maps, times, count)
    flags[binary_sizes(prefixes) > 0] = FLAG_HAS_ATTRIBUTES
    return prefixes, key_codes, flags


def _prefixes(
    items: pa.DictionaryArray | None, maps: pa.Array | None, times: Array, count: int
) -> pa.LargeBinaryArray:
    if maps is None or maps.null_count == count:
        assert items is not None
        # The text depends on the item and the minute only: encode each pair once.
        texts = _listed(items.dictionary, "filter_item")
        places = items.indices.fill_null(-1).to_numpy().astype(np.int64)
        minutes = times // 60_000
        low = int(minutes.min(initial=0))
        pairs, rows = np.unique(
            (places + 1) + (minutes - low) * (len(texts) + 1), return_inverse=True
        )
        distinct = []
        for pair in pairs.tolist():
            minute, place = divmod(pair, len(texts) + 1)
            text = texts[place - 1] if place else None
            distinct.append(encode_prefix(text, (minute + low) * 60_000))
        return pa.array(distinct, pa.large_binary()).take(pa.array(rows))
    texts = _listed(items, "filter_item") if items is not None else [None] * count
    rows_ = zip(texts, times.tolist(), _dicts(maps), strict=True)
    return pa.array([encode_prefix(*row) for row in rows_], pa.large_binary())


def _dicts(maps: pa.Array) -> list[dict[str, Any]]:
    """Return the attributes of each row; a null value of a map stays, to be refused."""
    rows = [dict(pairs or ()) for pairs in _listed(maps, "attributes")]
    if pa.types.is_struct(maps.type):  # dicts: what one of them lacks is null
        rows = [{k: v for k, v in row.items() if v is not None} for row in rows]
    return rows


def shard_order(codes: Array, partition_ids: Array) -> tuple[Array | None, Array, Array]:
    """Group rows by shard: (order or None if they are in order, first row of each group, its key).

    A key is topic code * 10,000 + store id; rows of a shard keep their order.
    """
    order = None
    if (
        len(codes)
        and not np.count_nonzero(codes)
        and np.maximum.reduce(partition_ids) < PARTITIONS_PER_STORE
    ):
        return order, np.zeros(1, np.int64), np.zeros(1, np.int64)  # of one shard, as most are
    keys = codes * PARTITIONS_PER_STORE + partition_ids // PARTITIONS_PER_STORE
    if len(keys) and np.any(keys[1:] < keys[:-1]):
        order = np.argsort(keys, kind="stable")
        keys = keys[order]
    firsts = np.flatnonzero(np.concatenate(([True], keys[1:] != keys[:-1])))
    return order, firsts, keys[firsts]
