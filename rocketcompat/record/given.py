"""Messages given as Arrow columns: taken in, checked, and made the parts of records.

Columns: `topic` is needed; `body`, `queue_id`, `tags`, `keys` (text, or lists of texts),
`properties` (text as on disk, a map, or dicts), `flag`, `sys_flag`, `born_timestamp`, `born_host`,
`store_host`, `reconsume_times`, `prepared_transaction_offset` have `Message`'s defaults.
Everything is checked before anything is encoded, so a refused batch leaves no trace.
"""

from __future__ import annotations

import contextlib
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rocketcompat.formats import (
    GIVEN_COLUMNS,
    INT32_MAX,
    KEY_SEPARATOR,
    MESSAGE_COLUMNS,
    MESSAGE_HEAD,
    NAME_VALUE_SEPARATOR,
    PROPERTIES_SIZE_MAX,
    PROPERTY_CRC_PATTERN,
    PROPERTY_KEYS,
    PROPERTY_SEPARATOR,
    PROPERTY_TAGS,
    SYS_FLAG_INNER_BATCH,
    encode_host,
    property_crc_text,
)
from rocketcompat.messages import NOT_DELAYED, Message
from rocketcompat.options import MessageStoreConfig
from rocketcompat.record.delays import delayed
from rocketcompat.record.prepare import encode_topic
from rocketcompat.record.properties import (
    PROPERTY_DELAY,
    PROPERTY_MULTI_DISPATCH,
    PROPERTY_MULTI_OFFSET,
    PROPERTY_REAL_TOPIC,
    SCHEDULE_TOPIC,
)
from tubestore.clock import Clock, SystemClock, time_ms
from tubestore.core.kernels import Int64s, bytes_of, even_binary, widened
from tubestore.errors import InvalidMessage, InvalidName, MessageTooLarge

_DEFAULTS = Message("")
#: The last dictionary of topics; replaced as a whole.
_last_topics: _Topics | None = None
#: The numbers that are 0 unless they are given.
NUMBERS = tuple(
    column.name for column in MESSAGE_COLUMNS
    if column.is_given and column.is_field and column.name not in ("queue_id", "born_timestamp")
)  # fmt: skip
_KNOWN = {*GIVEN_COLUMNS, "tags", "keys", "delay_level"}
_NARROW = (pa.binary(), pa.string())
_SYSTEM = SystemClock()
#: What property strings are made of.
_TEXTS = frozenset({"tags", "keys", "properties"})


class GivenMessages(NamedTuple):
    """Messages as columns, each one array; those that are missing or of type null are not there."""

    rows: int
    columns: dict[str, Any]

    def part(self, first: int, end: int) -> GivenMessages:
        """Return some rows, copied out."""
        places = pa.array(np.arange(first, end))
        return GivenMessages(
            end - first, {name: c.take(places) for name, c in self.columns.items()}
        )


def given_in(messages: Any, clock: Clock = _SYSTEM) -> GivenMessages:
    """Take the columns in; unknown ones are refused, since they would be lost.

    Times that are texts or ages become ms here.
    """
    if isinstance(messages, GivenMessages):
        return messages
    try:
        table = pa.table(messages)
    except (TypeError, ValueError, OverflowError, pa.ArrowException) as error:
        raise InvalidMessage(f"not a table of messages: {error}") from None
    names = table.column_names
    unknown = set(names) - _KNOWN
    if unknown or "topic" not in names:
        what = f"unknown columns {sorted(unknown)}" if unknown else "no column 'topic'"
        raise InvalidMessage(f"{what}; known are {', '.join(sorted(_KNOWN))}")
    found = zip(names, map(_whole, table.columns), strict=True)
    columns = {n: array for n, array in found if not pa.types.is_null(array.type)}
    properties = columns.get("properties")
    if properties is not None and pa.types.is_nested(properties.type):
        kind = properties.type
        if pa.types.is_struct(kind):  # dicts: what a row lacks is null
            columns["properties"] = _map_of_dicts(properties)
        elif not pa.types.is_map(kind) or _is_number(kind.item_type) or _is_number(kind.key_type):
            raise InvalidMessage(f"properties: {kind} is neither text nor a map of texts")
    born = columns.get("born_timestamp")
    if born is not None and (pa.types.is_string(born.type) or pa.types.is_duration(born.type)):
        columns["born_timestamp"] = _in_ms(born, clock)
    return GivenMessages(table.num_rows, columns)


def _in_ms(times: pa.Array, clock: Clock) -> pa.Array:
    try:
        found = [time_ms(time, "born_timestamp", clock) for time in times.to_pylist()]
    except ValueError as error:
        raise InvalidMessage(str(error)) from None
    return pa.array(found, pa.int64())


def _map_of_dicts(column: pa.StructArray) -> pa.MapArray:
    rows = [[pair for pair in (row or {}).items() if pair[1] is not None]
            for row in column.to_pylist()]  # fmt: skip
    try:
        return pa.array(rows, pa.map_(pa.string(), pa.string()))
    except (TypeError, pa.ArrowException) as error:
        raise InvalidMessage(f"properties: {error}") from None


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _texts(table: GivenMessages, name: str) -> Any:
    """Return a column of texts; None if it is missing."""
    column = table.columns.get(name)
    if column is None:
        return None
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    try:
        if _is_number(column.type):
            raise pa.ArrowInvalid  # Arrow would write the digits
        return column.cast(pa.large_string())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise InvalidMessage(f"{name}: {column.type} is not a text") from None


class _Topics:
    """A dictionary of distinct topics, which the batches of a caller mostly share."""

    def __init__(self, texts: Any, names: list[str]) -> None:
        self.texts, self.names = texts, names
        #: For a size limit: the names as records have them, with their magic codes.
        self._encoded: tuple[int, Any, Int64s] | None = None

    def encoded(self, size_max: int) -> tuple[Any, Int64s]:
        """Return all of them as `_encoded` does; InvalidName if there is one that cannot be."""
        known = self._encoded
        if known is None or known[0] != size_max:
            known = self._encoded = size_max, *_encoded(self.names, size_max)
        return known[1:]


def topics_of(table: GivenMessages, size_max: int) -> tuple[list[str], Int64s, Any, Int64s]:
    """Return the distinct topics, each row's, its bytes with the length in front, its magic."""
    global _last_topics
    column: Any = table.columns.get("topic")
    topics, last = _dictionary(column), _last_topics
    if topics is None:
        names, codes = _distinct_of_texts(_texts(table, "topic"))
    else:
        names, codes = _used(topics.names, column.indices.to_numpy().astype(np.int64))
        _last_topics = topics
    if len(names) == 1:
        magic, one = encode_topic(names[0], size_max)
        raw = even_binary(table.rows, len(one), pa.py_buffer(one * table.rows))
        return names, codes, raw, np.full(table.rows, magic, np.int64)
    if topics is not None and topics is last:
        with contextlib.suppress(InvalidName):  # of a name that no row may have
            raws, magics = topics.encoded(size_max)
            return names, codes, raws.take(column.indices), magics[column.indices.to_numpy()]
    raws, magics = _encoded(names, size_max)
    return names, codes, raws.take(pa.array(codes)), magics[codes]


def _encoded(names: list[str], size_max: int) -> tuple[Any, Int64s]:
    """Return names with their length in front, and the magic codes of their records."""
    pairs = [encode_topic(name, size_max) for name in names]
    raws = pa.array([raw for _, raw in pairs], pa.large_binary())
    return raws, np.array([magic for magic, _ in pairs], np.int64)


def _dictionary(column: Any) -> _Topics | None:
    """Return the dictionary of a column if its texts are distinct; None for any other column."""
    if column is None or not pa.types.is_dictionary(column.type) or column.null_count:
        return None
    texts, value_type, last = column.dictionary, column.type.value_type, _last_topics
    if not (pa.types.is_string(value_type) or pa.types.is_large_string(value_type)):
        return None
    if last is not None and last.texts.equals(texts):
        return last
    names = texts.to_pylist()
    if texts.null_count or len(set(names)) < len(names):
        return None
    return _Topics(texts, names)


def _used(names: list[str], codes: Int64s) -> tuple[list[str], Int64s]:
    """Return names and codes without those that no row has, which must not be refused."""
    used = np.bincount(codes, minlength=len(names)) > 0
    if used.all():
        return names, codes
    return [names[code] for code in np.flatnonzero(used).tolist()], (np.cumsum(used) - 1)[codes]


def _distinct_of_texts(column: Any) -> tuple[list[str], Int64s]:
    if column is None or column.null_count:
        raise InvalidMessage("topic: a row has none")
    encoded = column.dictionary_encode()
    codes = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    return encoded.dictionary.to_pylist(), codes


def bodies_of(table: GivenMessages) -> Any:
    """Return the bodies as a large binary column that starts at 0."""
    column = table.columns.get("body")
    if column is None:
        return even_binary(table.rows, 0, pa.py_buffer(b""))
    try:
        narrow = column.offset == 0 and column.type in _NARROW
        wide = widened(column) if narrow else column.cast(pa.large_binary())
        return _compact(wide.fill_null(b"") if wide.null_count else wide)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise InvalidMessage(f"body: {column.type} is not bytes") from None


def properties_of(table: GivenMessages, config: MessageStoreConfig) -> Any:
    """Return the property strings as bytes; checked, with room for a checksum if one is written."""
    if _TEXTS.isdisjoint(table.columns) and not config.enabled_append_prop_crc:
        return even_binary(table.rows, 0, pa.py_buffer(b""))
    texts = property_texts(table, config)
    if config.enabled_append_prop_crc:  # as 5.3.3: the store computes it
        texts = pc.replace_substring_regex(texts, PROPERTY_CRC_PATTERN, r"\1")
    raw = _compact(texts.cast(pa.large_binary()))
    buffer = raw.buffers()[2]
    if buffer is not None and not bytes_of(buffer)[: bounds_of(raw)[-1]].all():
        raise InvalidMessage("properties: contain U+0000, by which a torn record is known")
    if config.enabled_append_prop_crc:
        raw = _with_room_for_crcs(raw)
    longest = int(sizes_of(raw).max(initial=0))
    if longest > PROPERTIES_SIZE_MAX:
        raise MessageTooLarge(longest, PROPERTIES_SIZE_MAX, "property string")
    return raw


def property_texts(table: GivenMessages, config: MessageStoreConfig) -> Any:
    """Return the property strings as a column of texts, in the order KEYS, TAGS, the others."""
    parts = []
    for name, column in ((PROPERTY_KEYS, _keys(table)), (PROPERTY_TAGS, _texts(table, "tags"))):
        if column is not None:
            _refuse_separator(column, PROPERTY_SEPARATOR, name)
            parts.append(
                pc.binary_join_element_wise(_text(name + NAME_VALUE_SEPARATOR), column, _text(""))
            )
    given = table.columns.get("properties")
    if given is not None and not pa.types.is_map(given.type):
        if parts:
            raise InvalidMessage("tags and keys belong in the property string when one is given")
        return _texts(table, "properties").fill_null("")
    if given is not None:
        parts.append(_mapped(given))
    if not parts:
        return pa.array([""] * table.rows, pa.large_string())
    # Nulls are made empty explicitly: with null_handling="skip" pyarrow (26.0) loses rows that have
    # nothing but nulls.
    ended = [
        pc.binary_join_element_wise(part.cast(pa.large_string()), _text(PROPERTY_SEPARATOR),
                                    _text("")).fill_null("")
        for part in parts
    ]  # fmt: skip
    joined = pc.binary_join_element_wise(*ended, _text("")) if len(ended) > 1 else ended[0]
    if config.trailing_property_separator:
        return joined
    return pc.utf8_rtrim(joined, PROPERTY_SEPARATOR)


def message_of(table: GivenMessages, config: MessageStoreConfig) -> Message:
    """Return the only row as a message."""
    given: dict[str, Any] = {}
    for name in ("topic", "born_host", "store_host"):
        column = _texts(table, name)
        if column is not None and column[0].is_valid:
            given[name] = column[0].as_py()
    for name in NUMBERS:
        given[name] = numbers_of(table, name, *range_of(name)).item(0)
    if "born_timestamp" in table.columns:
        given["born_timestamp"] = times_of(table.columns["born_timestamp"]).item(0)
    return Message(
        **{"topic": "", **given},
        body=bodies_of(table)[0].as_py(),
        properties=property_texts(table, config)[0].as_py(),
        queue_id=numbers_of(table, "queue_id", 0, INT32_MAX).item(0),
    )


def rows_alone(table: GivenMessages, config: MessageStoreConfig) -> list[int]:
    """Return the rows that are put one by one, since their queue offsets are in their properties.

    Inner batches, and messages with units in several queues.
    """
    rows = inner_rows(table, config)
    name = PROPERTY_MULTI_DISPATCH if config.enable_multi_dispatch else PROPERTY_MULTI_OFFSET
    several = np.flatnonzero(_has_in_properties(table, name))
    return sorted({*rows, *several.tolist()}) if len(several) else rows


def inner_rows(table: GivenMessages, config: MessageStoreConfig) -> list[int]:
    """Return the rows that are inner batches, where the flag has that meaning."""
    if "sys_flag" not in table.columns:
        return []
    flags = numbers_of(table, "sys_flag", *range_of("sys_flag"))
    rows: list[int] = np.flatnonzero(flags & SYS_FLAG_INNER_BATCH).tolist()
    if not rows or config.compat == "5.3.3":
        return rows
    topics = _texts(table, "topic")
    return [row for row in rows if topics[row].as_py() in config.batch_topics]


def may_be_delayed(table: GivenMessages) -> Int64s:
    """Return the rows that have a delay level, or may have one in their properties."""
    found = _has_in_properties(table, PROPERTY_DELAY)
    if "delay_level" in table.columns:
        found |= numbers_of(table, "delay_level", NOT_DELAYED, INT32_MAX) > 0
    return np.flatnonzero(found)


def levels_of_stored(table: GivenMessages) -> Int64s:
    """Return each row's `delay_level`; rows that a store had put aside are not delayed again.

    These have `NOT_DELAYED`: they wait for their delivery, or have their topic in a property.
    """
    waits = pc.fill_null(pc.equal(_texts(table, "topic"), SCHEDULE_TOPIC), False)
    found = waits.to_numpy(zero_copy_only=False)
    found |= _has_in_properties(table, f"(^|\x02){PROPERTY_REAL_TOPIC}([\x01\x02]|$)", regex=True)
    return np.where(found, NOT_DELAYED, 0)


def _has_in_properties(table: GivenMessages, name: str, *, regex: bool = False) -> Any:
    """Return a mask: rows that have `name` anywhere in their properties' text, or match it."""
    given = table.columns.get("properties")
    if given is None:
        return np.zeros(table.rows, bool)
    if pa.types.is_map(given.type):
        given = pa.ListArray.from_arrays(given.offsets, given.keys.cast(pa.large_string()))
        given = pc.binary_join(given, _text(PROPERTY_SEPARATOR))
    match = pc.match_substring_regex if regex else pc.match_substring
    has = match(given.cast(pa.large_string()), name)
    return has.fill_null(False).to_numpy(zero_copy_only=False)


def _with_room_for_crcs(properties: Any) -> Any:
    """Put the record's checksum, still 0, behind each property string."""
    separator, empty = (pa.scalar(text, pa.large_binary()) for text in (b"\x02", b""))
    ended = pc.or_(pc.ends_with(properties, PROPERTY_SEPARATOR), pc.equal(properties, empty))
    room = pa.scalar(property_crc_text(0), pa.large_binary())
    return pc.binary_join_element_wise(properties, pc.if_else(ended, empty, separator), room, empty)


def _keys(table: GivenMessages) -> Any:
    """Return the keys of each row as one text, null without any."""
    column = table.columns.get("keys")
    if column is None or not (pa.types.is_list(column.type) or pa.types.is_large_list(column.type)):
        return _texts(table, "keys")
    column = column.cast(pa.list_(pa.large_string()))
    _refuse_null(column, "keys")
    _refuse_separator(column.flatten(), KEY_SEPARATOR, "keys")
    joined = pc.binary_join(column, _text(KEY_SEPARATOR))
    return pc.if_else(pc.equal(pc.list_value_length(column), 0), None, joined)


def _mapped(column: Any) -> Any:
    """Return maps of properties as property strings, null where there are none."""
    names, values = column.keys.cast(pa.large_string()), column.items.cast(pa.large_string())
    _refuse_separator(names, NAME_VALUE_SEPARATOR, "properties")
    pairs = pc.binary_join_element_wise(names, values, _text(NAME_VALUE_SEPARATOR))
    _refuse_separator(pairs, PROPERTY_SEPARATOR, "properties")
    lists = pa.ListArray.from_arrays(column.offsets, pairs)
    _refuse_null(lists, "properties")
    sizes = pc.list_value_length(lists)
    joined = pc.binary_join(lists, _text(PROPERTY_SEPARATOR))
    return pc.if_else(pc.equal(sizes, 0), None, joined)


def _text(value: str) -> Any:
    return pa.scalar(value, pa.large_string())


def _refuse_null(lists: Any, name: str) -> None:
    """Raise InvalidMessage for a null in one of the lists: it would take the others with it."""
    nulls = pc.is_null(lists.flatten())
    if pc.any(nulls).as_py():
        row = pc.list_parent_indices(lists)[pc.index(nulls, True).as_py()]
        raise InvalidMessage(f"row {row}: {name}: a value is null")


def _refuse_separator(column: Any, separator: str, name: str) -> None:
    if pc.any(pc.match_substring(column, separator)).as_py():
        raise InvalidMessage(f"{name}: a value contains {separator!r}, which separates them")


def numbers_of(table: GivenMessages, name: str, least: int, most: int) -> Any:
    """Return a column of whole numbers, checked against the field's range."""
    column = table.columns.get(name)
    if column is None:
        return np.full(table.rows, getattr(_DEFAULTS, name), np.int64)
    try:
        if not _is_number(column.type) or pa.types.is_boolean(column.type):
            raise pa.ArrowInvalid  # Arrow would read digits
        values = column.cast(pa.int64())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise InvalidMessage(f"{name}: {column.type} is not a whole number of 64 bits") from None
    if values.null_count:
        raise InvalidMessage(f"{name}: a row has none")
    numbers = values.to_numpy(zero_copy_only=False)
    wrong = np.flatnonzero((numbers < least) | (numbers > most))
    if len(wrong):
        row = int(wrong[0])
        raise InvalidMessage(f"{name}: {numbers[row]} in row {row} is outside {least} … {most}")
    return numbers


def _is_number(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind))


def range_of(name: str) -> tuple[int, int]:
    """Least and greatest value of a numeric field."""
    bits = 8 * MESSAGE_HEAD.dtype[name].itemsize
    return -(1 << (bits - 1)), (1 << (bits - 1)) - 1


def times_of(column: Any) -> Any:
    """Return times as ms since the epoch; a timestamp without a zone is refused."""
    if pa.types.is_timestamp(column.type):
        if column.type.tz is None:
            raise InvalidMessage("born_timestamp: a time without a zone")
        column = column.cast(pa.timestamp("ms", column.type.tz), safe=False)
    if column.null_count:
        raise InvalidMessage("born_timestamp: a row has none")
    try:
        return column.cast(pa.int64()).to_numpy()
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise InvalidMessage(f"born_timestamp: {column.type} is not a time") from None


def hosts_of_rows(table: GivenMessages, name: str, default: str) -> tuple[list[bytes], Int64s]:
    """Return the distinct hosts as on disk, and which of them each row has."""
    column = _texts(table, name)
    if column is None:
        return [encode_host(default)], np.zeros(table.rows, np.int64)
    encoded = column.fill_null(default).dictionary_encode()
    try:
        raw = [encode_host(text) for text in encoded.dictionary.to_pylist()]
    except ValueError as error:
        raise InvalidMessage(f"{name}: {error}") from None
    return raw, encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)


def _compact(column: Any) -> Any:
    """Return a binary column that starts at 0 of its buffers (a slice may not)."""
    return column if column.offset == 0 else pa.concat_arrays([column, column[:0]])


def bounds_of(column: Any) -> Int64s:
    """Boundaries of a large binary column."""
    if len(column) == 0:
        return np.zeros(1, np.int64)
    offsets = np.frombuffer(column.buffers()[1], np.int64)
    return offsets[column.offset : column.offset + len(column) + 1]


def sizes_of(column: Any) -> Int64s:
    """Sizes of the elements of a large binary column."""
    bounds = bounds_of(column)
    found: Int64s = bounds[1:] - bounds[:-1]  # np.diff takes three times as long
    return found


def put_aside(messages: Any, config: MessageStoreConfig) -> GivenMessages:
    """Rewrite the delayed rows of messages given as columns to the schedule topic."""
    table = given_in(messages)
    rows = may_be_delayed(table)
    if not len(rows):
        return table
    texts = property_texts(table, config).to_pylist()
    topics = table.columns["topic"].to_pylist() if "topic" in table.columns else [None] * table.rows
    queue_ids = numbers_of(table, "queue_id", 0, INT32_MAX).tolist()
    sys_flags = numbers_of(table, "sys_flag", *range_of("sys_flag")).tolist()
    levels = numbers_of(table, "delay_level", NOT_DELAYED, INT32_MAX).tolist()
    for row in rows.tolist():
        message = delayed(
            Message(topics[row], properties=texts[row], queue_id=queue_ids[row],
                    sys_flag=sys_flags[row], delay_level=levels[row]),
            config,
        )  # fmt: skip
        topics[row], texts[row], queue_ids[row] = (
            message.topic, message.properties, message.queue_id,
        )  # fmt: skip
    changed = {
        "topic": pa.array(topics, pa.large_string()),
        "properties": pa.array(texts, pa.large_string()),
        "queue_id": pa.array(queue_ids, pa.int64()),
    }
    replaced = {*changed, "tags", "keys", "delay_level"}
    kept = {name: column for name, column in table.columns.items() if name not in replaced}
    return GivenMessages(table.rows, {**kept, **changed})
