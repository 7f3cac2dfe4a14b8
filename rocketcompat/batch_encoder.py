"""Messages given as Arrow columns, made into one buffer of records.

Columns: `topic` is needed; `body`, `queue_id`, `tags`, `keys` (text, or lists of texts),
`properties` (text as on disk, or a map), `flag`, `sys_flag`, `born_timestamp`, `born_host`,
`store_host`, `reconsume_times`, `prepared_transaction_offset` have `Message`'s defaults.
Everything is checked before anything is encoded, so a refused batch leaves no trace.

Next to read: `commit_log.py`, which fills in the places and writes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rocketcompat.formats import (
    BODY_CRC_MASK,
    HOST_V4_SIZE,
    INT32_MAX,
    KEY_SEPARATOR,
    MAGIC_V1,
    MESSAGE_HEAD,
    NAME_VALUE_SEPARATOR,
    PROPERTIES_SIZE_MAX,
    PROPERTY_KEYS,
    PROPERTY_SEPARATOR,
    PROPERTY_TAGS,
    SYS_FLAG_HOSTS_MASK,
    SYS_FLAG_HOSTS_SHIFT,
    encode_host,
)
from rocketcompat.messages import Message
from rocketcompat.options import MessageStoreConfig
from rocketcompat.prepare import check_sizes, encode_topic
from tubestore.errors import InvalidMessage, MessageTooLarge
from tubestore.kernels import (
    Int64s,
    bytes_of,
    crc_each,
    fixed_binary,
    interleave,
    offsets_of,
    scatter,
)

_DEFAULTS = Message("")
_NUMBERS = ("flag", "sys_flag", "reconsume_times", "prepared_transaction_offset")
_KNOWN = {*_NUMBERS, "topic", "body", "queue_id", "tags", "keys", "properties", "born_timestamp",
          "born_host", "store_host"}  # fmt: skip
_PLACED = [
    MESSAGE_HEAD.position(name)
    for name in ("queue_offset", "physical_offset", "store_timestamp", "born_timestamp")
]
_INT64 = np.dtype(">i8")


class EncodedColumns:
    """Records in one buffer, complete but for their places; `place` fills them in."""

    def __init__(self, data: Any, sizes: Int64s, topic_names: list[str], topic_codes: Int64s,
                 queue_ids: Int64s, sys_flags: Int64s, born_missing: bool) -> None:  # fmt: skip
        self.data, self.sizes = data, sizes
        self.bounds = offsets_of(sizes)
        self.topic_names, self.topic_codes, self.queue_ids = topic_names, topic_codes, queue_ids
        self.sys_flags = sys_flags
        self._born_missing = born_missing

    def __len__(self) -> int:
        return len(self.sizes)

    def place(self, queue_offsets: Int64s, physical_offsets: Int64s, store_timestamp: int) -> None:
        """Fill in what the log decides; may be done again with other places."""
        starts = self.bounds[:-1]
        times = np.full(len(starts), store_timestamp, _INT64)
        scatter(self.data, starts + _PLACED[0], queue_offsets.astype(_INT64))
        scatter(self.data, starts + _PLACED[1], physical_offsets.astype(_INT64))
        scatter(self.data, starts + _PLACED[2], times)
        if self._born_missing:
            scatter(self.data, starts + _PLACED[3], times)


def encode_columns(messages: Any, config: MessageStoreConfig) -> EncodedColumns:
    """Check and encode messages from anything with `__arrow_c_stream__`, or a dict of columns.

    Raises InvalidMessage, InvalidName, MessageTooLarge, naming the first row at fault.
    """
    table = _table(messages)
    count = table.num_rows
    names, codes, topics = _topics(_texts(table, "topic"))
    bodies = _bodies(table, count)
    properties = _properties(table, count, config)
    heads = np.zeros(count, MESSAGE_HEAD.dtype)
    queue_ids = _numbers(table, "queue_id", count, least=0, most=INT32_MAX)
    heads["queue_id"] = queue_ids
    for name in _NUMBERS:
        heads[name] = _numbers(table, name, count, *_range_of(name))
    sys_flags = heads["sys_flag"].astype(np.int64)
    sys_flags &= ~(SYS_FLAG_HOSTS_MASK << SYS_FLAG_HOSTS_SHIFT)
    heads["sys_flag"] = sys_flags
    born_missing = "born_timestamp" not in table.column_names
    if not born_missing:
        heads["born_timestamp"] = _times(table["born_timestamp"])
    for name in ("born_host", "store_host"):
        heads[name] = _hosts(table, name)
    body_bounds = _bounds(bodies)
    heads["magic_code"] = MAGIC_V1
    heads["body_length"] = np.diff(body_bounds)
    heads["body_crc"] = _crcs(bodies, body_bounds)
    property_sizes = np.diff(_bounds(properties))
    sizes = (MESSAGE_HEAD.size + np.diff(body_bounds) + np.diff(_bounds(topics))
             + property_sizes + 2)  # fmt: skip
    if count:
        largest = int(np.argmax(sizes))
        check_sizes(int(np.diff(body_bounds).max()), int(sizes[largest]), config)
    heads["total_size"] = sizes
    lengths = fixed_binary(property_sizes.astype(">i2"))
    buffer = interleave(fixed_binary(heads), bodies, topics, lengths, properties)
    data = bytes_of(buffer) if count else bytes_of(b"")
    return EncodedColumns(data, sizes, names, codes, queue_ids, sys_flags, born_missing)


def _table(messages: Any) -> pa.Table:
    """Take the columns in; unknown ones are refused, since they would be lost."""
    try:
        table = pa.table(messages)
    except (TypeError, ValueError, pa.ArrowInvalid) as error:
        raise InvalidMessage(f"not a table of messages: {error}") from None
    unknown = set(table.column_names) - _KNOWN
    if unknown or "topic" not in table.column_names:
        what = f"unknown columns {sorted(unknown)}" if unknown else "no column 'topic'"
        raise InvalidMessage(f"{what}; known are {', '.join(sorted(_KNOWN))}")
    return table.combine_chunks()


def _column(table: pa.Table, name: str) -> Any:
    """Return a column as one array, None if it is missing or of type null."""
    if name not in table.column_names:
        return None
    chunked = table[name]
    if pa.types.is_null(chunked.type):
        return None
    return chunked.combine_chunks() if chunked.num_chunks != 1 else chunked.chunk(0)


def _texts(table: pa.Table, name: str) -> Any:
    """Return a column of texts, None if it is missing."""
    column = _column(table, name)
    if column is None:
        return None
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    try:
        return column.cast(pa.large_string())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise InvalidMessage(f"{name}: {column.type} is no text") from None


def _topics(column: Any) -> tuple[list[str], Int64s, Any]:
    """Return the distinct topics, each row's, and each row's bytes with the length in front."""
    if column is None or column.null_count:
        raise InvalidMessage("topic: a row has none")
    encoded = column.dictionary_encode()
    names = encoded.dictionary.to_pylist()
    raw = pa.array([encode_topic(name) for name in names], pa.large_binary())
    codes = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    return names, codes, raw.take(encoded.indices)


def _bodies(table: pa.Table, count: int) -> Any:
    column = _column(table, "body")
    if column is None:
        return pa.array([b""] * count, pa.large_binary())
    try:
        return _compact(column.cast(pa.large_binary()).fill_null(b""))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise InvalidMessage(f"body: {column.type} is not bytes") from None


def _properties(table: pa.Table, count: int, config: MessageStoreConfig) -> Any:
    """Return the property strings, in the order KEYS, TAGS, the others."""
    parts = []
    for name, column in ((PROPERTY_KEYS, _keys(table)), (PROPERTY_TAGS, _texts(table, "tags"))):
        if column is not None:
            _refuse_separator(column, PROPERTY_SEPARATOR, name)
            parts.append(
                pc.binary_join_element_wise(_text(name + NAME_VALUE_SEPARATOR), column, _text(""))
            )
    given = _column(table, "properties")
    verbatim = given is not None and not pa.types.is_map(given.type)
    if verbatim:
        if parts:
            raise InvalidMessage("tags and keys stand in the property string when one is given")
        joined = _texts(table, "properties").fill_null("")
    else:
        if given is not None:
            parts.append(_mapped(given))
        if not parts:
            return pa.array([b""] * count, pa.large_binary())
        # Nulls are made empty by hand: with null_handling="skip" pyarrow (26.0) loses rows that
        # have nothing but nulls.
        ended = [
            pc.binary_join_element_wise(part.cast(pa.large_string()), _text(PROPERTY_SEPARATOR),
                                        _text("")).fill_null("")
            for part in parts
        ]  # fmt: skip
        joined = pc.binary_join_element_wise(*ended, _text("")) if len(ended) > 1 else ended[0]
        if not config.trailing_property_separator:
            joined = pc.utf8_rtrim(joined, PROPERTY_SEPARATOR)
    raw = _compact(joined.cast(pa.large_binary()))
    if raw.buffers()[2] is not None and not bytes_of(raw.buffers()[2]).all():
        raise InvalidMessage("properties: contain U+0000, by which a torn record is known")
    longest = int(np.diff(_bounds(raw)).max(initial=0))
    if longest > PROPERTIES_SIZE_MAX:
        raise MessageTooLarge(longest, PROPERTIES_SIZE_MAX, "property string")
    return raw


def _keys(table: pa.Table) -> Any:
    """Return the keys of each row as one text, null without any."""
    column = _column(table, "keys")
    if column is None or not (pa.types.is_list(column.type) or pa.types.is_large_list(column.type)):
        return _texts(table, "keys")
    column = column.cast(pa.list_(pa.large_string()))
    _refuse_separator(column.flatten(), KEY_SEPARATOR, "keys")
    joined = pc.binary_join(column, _text(KEY_SEPARATOR))
    return pc.if_else(pc.equal(pc.list_value_length(column), 0), None, joined)


def _mapped(column: Any) -> Any:
    """Return maps of properties as property strings, null where there are none."""
    names, values = column.keys.cast(pa.large_string()), column.items.cast(pa.large_string())
    pairs = pc.binary_join_element_wise(names, values, _text(NAME_VALUE_SEPARATOR))
    _refuse_separator(pairs, PROPERTY_SEPARATOR, "properties")
    lists = pa.ListArray.from_arrays(column.offsets, pairs)
    sizes = pc.list_value_length(lists)
    joined = pc.binary_join(lists, _text(PROPERTY_SEPARATOR))
    return pc.if_else(pc.equal(sizes, 0), None, joined)


def _text(value: str) -> Any:
    return pa.scalar(value, pa.large_string())


def _refuse_separator(column: Any, separator: str, name: str) -> None:
    if pc.any(pc.match_substring(column, separator)).as_py():
        raise InvalidMessage(f"{name}: a value contains {separator!r}, which separates them")


def _numbers(table: pa.Table, name: str, count: int, least: int, most: int) -> Any:
    """Return a column of whole numbers, checked against the field's range."""
    column = _column(table, name)
    if column is None:
        return np.full(count, getattr(_DEFAULTS, name), np.int64)
    try:
        values = column.cast(pa.int64())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise InvalidMessage(f"{name}: {column.type} is no whole number of 64 bits") from None
    if values.null_count:
        raise InvalidMessage(f"{name}: a row has none")
    numbers = values.to_numpy(zero_copy_only=False)
    wrong = np.flatnonzero((numbers < least) | (numbers > most))
    if len(wrong):
        row = int(wrong[0])
        raise InvalidMessage(f"{name}: {numbers[row]} in row {row} is outside {least} … {most}")
    return numbers


def _range_of(name: str) -> tuple[int, int]:
    """Least and greatest value of a numeric field."""
    bits = 8 * MESSAGE_HEAD.dtype[name].itemsize
    return -(1 << (bits - 1)), (1 << (bits - 1)) - 1


def _times(column: Any) -> Any:
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
        raise InvalidMessage(f"born_timestamp: {column.type} is no time") from None


def _hosts(table: pa.Table, name: str) -> Any:
    """Return a host a row as on disk, or one for all; IPv4 only, others are put one by one."""
    column = _texts(table, name)
    if column is None:
        return np.frombuffer(encode_host(getattr(_DEFAULTS, name)), f"V{HOST_V4_SIZE}")
    encoded = column.fill_null(getattr(_DEFAULTS, name)).dictionary_encode()
    try:
        raw = [encode_host(text) for text in encoded.dictionary.to_pylist()]
    except ValueError as error:
        raise InvalidMessage(f"{name}: {error}") from None
    if any(len(host) != HOST_V4_SIZE for host in raw):
        raise InvalidMessage(f"{name}: IPv6 hosts are put one by one")
    codes = encoded.indices.to_numpy(zero_copy_only=False)
    return np.frombuffer(b"".join(raw), f"V{HOST_V4_SIZE}")[codes]


def _crcs(bodies: Any, bounds: Int64s) -> Any:
    """Return the checksums of the bodies; that of an empty one is 0."""
    buffer = bodies.buffers()[2]
    if buffer is None:
        return np.zeros(len(bodies), np.int32)
    return crc_each(memoryview(buffer), bounds[:-1], bounds[1:], BODY_CRC_MASK)


def _compact(column: Any) -> Any:
    """Return a binary column that starts at 0 of its buffers (a slice may not)."""
    return column if column.offset == 0 else pa.concat_arrays([column, column[:0]])


def _bounds(column: Any) -> Int64s:
    """Boundaries of a large binary column."""
    if len(column) == 0:
        return np.zeros(1, np.int64)
    offsets = np.frombuffer(column.buffers()[1], np.int64)
    return offsets[column.offset : column.offset + len(column) + 1]
