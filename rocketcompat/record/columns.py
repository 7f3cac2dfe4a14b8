"""Records in columns: thousands at a time, without a loop over messages but the CRC's.

`RecordColumns` reads: each column is made when it is first asked for, so that a dispatcher that
needs no bodies pays for none. `encode_columns` writes: one buffer of records, in which
`EncodedColumns.place` fills in queue offset, physical offset and store time as soon as the log has
them.

Properties are taken apart on their bytes. The separators' positions give segments, a segment that
begins with `TAGS` and U+0001 is the tag, and so on: no regular expression, no dictionary a message.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from rocketcompat.formats import (
    HOST_V4_SIZE,
    HOST_V6_SIZE,
    KEY_SEPARATOR,
    MAGIC_V2,
    MESSAGE_HEAD,
    MESSAGE_HEADS,
    MESSAGE_PREFIX,
    NAME_VALUE_SEPARATOR,
    PROPERTIES_LENGTH_SIZE,
    PROPERTY_KEYS,
    PROPERTY_SEPARATOR,
    PROPERTY_TAGS,
    PROPERTY_UNIQ_KEY,
    SYS_FLAG_BORN_HOST_V6,
    SYS_FLAG_STORE_HOST_V6,
    hosts_of,
)
from rocketcompat.record.verify import first_fault
from tubestore.core.java_hash import java_hash
from tubestore.core.kernels import Int64s, bytes_of, gather, grouped, slices
from tubestore.core.layout import Buffer
from tubestore.errors import CorruptRecord

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
_NONE = np.empty(0, np.int64)
_PREFIX_FIELDS = {field.name for field in MESSAGE_PREFIX.fields}


class RecordColumns:
    """Sound records of a piece of the log, column by column; immutable, thread-safe."""

    def __init__(self, data: Buffer, starts: Int64s, base: int, path: str = "") -> None:
        self.data, self.starts, self.base, self.path = data, starts, base, path
        self._raw = np.frombuffer(data, np.uint8)
        self._columns: dict[str, Any] = {}
        #: The queues that occur, and which of them each row has, where that is known.
        self.queues: tuple[list[tuple[str, int]], Any] | None = None

    def take_columns(
        self, columns: dict[str, Any], topic_names: list[str], topic_codes: Int64s, properties: Any
    ) -> None:
        """Take over columns from the encoder of the records, so that they are not decoded.

        `properties` may be None: they are then read from the records.
        """
        self._columns |= columns
        known = {"topic_names": topic_names, "topic_codes": topic_codes, "_properties": properties}
        self.__dict__.update({n: value for n, value in known.items() if value is not None})

    @property
    def end(self) -> int:
        """Physical offset behind the last byte of `data`."""
        return self.base + len(self._raw)

    @property
    def records_end(self) -> int:
        """Physical offset behind the last of its records, of which there is one at least."""
        return self.base + int(self.starts[-1]) + int(self.column("total_size")[-1])

    def __len__(self) -> int:
        return len(self.starts)

    def column(self, name: str) -> Any:
        """Return a fixed field (not a host) in native byte order; int32 or int64."""
        found = self._columns.get(name)
        if found is None:
            if name in _PREFIX_FIELDS or not self._hosts.any():
                values = self._heads[name]
            else:
                values = gather(self._raw, self._positions(name), MESSAGE_HEAD.dtype[name])
            found = self._columns[name] = values.astype(values.dtype.newbyteorder("="))
        return found

    def hosts(self, name: str) -> pa.LargeBinaryArray:
        """Return "born_host" or "store_host" as stored: 8 or 20 bytes a row."""
        bit = SYS_FLAG_BORN_HOST_V6 if name == "born_host" else SYS_FLAG_STORE_HOST_V6
        wide = (self.column("sys_flag") & bit) != 0
        sizes = np.where(wide, HOST_V6_SIZE, HOST_V4_SIZE).astype(np.int64)
        return slices(self.data, self._positions(name), sizes)

    def bodies(self) -> pa.LargeBinaryArray:
        """Return the bodies as stored."""
        starts, sizes = self.body_places
        return slices(self.data, starts, sizes)

    def topics(self) -> pa.DictionaryArray:
        """Return the topics, each distinct one once."""
        return self._topics

    def properties(self) -> pa.LargeBinaryArray:
        """Return the property strings as stored."""
        return self._properties

    @cached_property
    def topic_names(self) -> list[str]:
        """The distinct topics, in the order of the dictionary of `topics`."""
        return [str(raw, "utf-8", "replace") for raw in self._topics.dictionary.to_pylist()]

    @cached_property
    def topic_codes(self) -> Any:
        """For each row the place of its topic in `topic_names`; int64."""
        return self._topics.indices.to_numpy(zero_copy_only=False).astype(np.int64)

    @cached_property
    def body_places(self) -> tuple[Int64s, Int64s]:
        """Positions in `data` and bytes of the bodies."""
        sizes = self.column("body_length").astype(np.int64)
        return self.starts + self._head_sizes, sizes

    def property_values(self, name: str) -> tuple[Int64s, Int64s, Int64s]:
        """Return rows, starts and ends (in `property_bytes`) of the values of a property.

        Rows ascend, each at most once; a row without the property, or with an empty value,
        is not there. Of several the last counts, as in the real parser.
        """
        text = (name + NAME_VALUE_SEPARATOR).encode()
        if text not in self._property_text:  # nor in any of its parts
            return _NONE, _NONE, _NONE
        rows, starts, ends = self._segments
        pattern = np.frombuffer(text, f"S{len(text)}")
        raw = self.property_bytes
        fits = np.flatnonzero(ends - starts > len(name) + 1)
        fits = fits[raw[starts[fits]] == ord(name[0])]
        heads = gather(raw, starts[fits], pattern.dtype)
        found = fits[heads == pattern[0]]
        rows = rows[found]
        last = np.append(rows[1:] != rows[:-1], True)[: len(rows)]
        found = found[last]
        return rows[last], starts[found] + len(name) + 1, ends[found]

    @cached_property
    def property_bytes(self) -> Bytes:
        """The property strings of all rows, one behind the other."""
        return _values_of(self._properties)

    @cached_property
    def _property_text(self) -> bytes:
        return self.property_bytes.tobytes()

    def tags(self) -> pa.LargeBinaryArray:
        """Return the tag of each row, null without one."""
        rows, starts, ends = self.property_values(PROPERTY_TAGS)
        values = slices(self.property_bytes, starts, ends - starts)
        places = np.full(len(self), -1, np.int64)
        places[rows] = np.arange(len(rows))
        return values.take(pa.array(places, mask=places < 0))

    def tags_codes(self) -> Int64s:
        """Return the Java hash of each row's tag in 64 bits, 0 without one."""
        rows, starts, ends = self.property_values(PROPERTY_TAGS)
        codes = np.zeros(len(self), np.int64)
        if not len(rows):
            return codes
        codes[rows] = hash_slices(self.property_bytes, starts, ends).view(np.int32)
        return codes

    @cached_property
    def key_places(self) -> tuple[Int64s, Int64s, Int64s]:
        """Row of each key of `properties.keys_of`, and its start and end in `property_bytes`.

        Rows ascend; the keys of a row have the order of `keys_of`.
        """
        if not len(self.property_bytes):
            return _NONE, _NONE, _NONE
        unique = self.property_values(PROPERTY_UNIQ_KEY)
        rows, starts, ends = self.property_values(PROPERTY_KEYS)
        parts, starts, ends = split(self.property_bytes, starts, ends, ord(KEY_SEPARATOR))
        rows = rows[parts]
        if not len(rows):
            return unique
        if not len(unique[0]):
            return rows, starts, ends
        rows = np.concatenate((unique[0], rows))
        order = np.argsort(rows, kind="stable")
        starts, ends = np.concatenate((unique[1], starts)), np.concatenate((unique[2], ends))
        return rows[order], starts[order], ends[order]

    def index_keys(self) -> tuple[Int64s, Any]:
        """Return row and hash of each key of `key_places`, as the index has it."""
        rows, starts, ends = self.key_places
        if not len(rows):
            return _NONE, _NONE.astype(np.int32)
        raw, sizes = self.property_bytes, ends - starts
        if raw.max() >= 0x80:
            return rows, self._key_hashes_of_texts(rows, starts, ends)
        hashes = hash_slices(raw, starts, ends)
        prefixes = [java_hash(f"{topic}#") & 0xFFFFFFFF for topic in self.topic_names]
        topics = np.array(prefixes, np.uint32)[self.topic_codes[rows]]
        return rows, _absolute(topics * _powers_of_31(sizes) + hashes)

    def _key_hashes_of_texts(self, rows: Int64s, starts: Int64s, ends: Int64s) -> Any:
        """Hash keys one by one: in text that is not ASCII a code unit is not a byte."""
        raw, names, codes = self.property_bytes.tobytes(), self.topic_names, self.topic_codes
        places = zip(rows.tolist(), starts.tolist(), ends.tolist(), strict=True)
        hashes = [
            java_hash(f"{names[codes[row]]}#{raw[a:b].decode(errors='replace')}")
            for row, a, b in places
        ]
        return _absolute(np.array(hashes, np.int64).astype(np.uint32))

    @cached_property
    def _heads(self) -> Any:
        """The fixed fields; behind the prefix they are right with IPv4 hosts only."""
        return gather(self._raw, self.starts, MESSAGE_HEAD.dtype)

    @cached_property
    def _hosts(self) -> Any:
        return hosts_of(self._heads["sys_flag"].astype(np.int32))

    @cached_property
    def _head_sizes(self) -> Int64s:
        sizes: Int64s = np.array([head.size for head in MESSAGE_HEADS], np.int64)
        found: Int64s = sizes[self._hosts]
        return found

    def _positions(self, name: str) -> Int64s:
        """Positions of a fixed field, which depend on the widths of the hosts before it."""
        if name in _PREFIX_FIELDS:
            return self.starts + MESSAGE_PREFIX.position(name)
        places = np.array([head.position(name) for head in MESSAGE_HEADS], np.int64)
        found: Int64s = self.starts + places[self._hosts]
        return found

    @cached_property
    def _topic_places(self) -> tuple[Int64s, Int64s]:
        """Positions and sizes of the topics."""
        starts, sizes = self.body_places
        at = starts + sizes
        wide = self.column("magic_code") == MAGIC_V2
        lengths = self._raw[at].astype(np.int64)
        if wide.any():
            rows = np.flatnonzero(wide)
            lengths[rows] = gather(self._raw, at[rows], np.dtype(">i2"))
        return at + 1 + wide, lengths

    @cached_property
    def _topics(self) -> pa.DictionaryArray:
        starts, sizes = self._topic_places
        count = len(starts)
        if count and sizes.item(0) and not np.count_nonzero(sizes != sizes.item(0)):
            found = gather(self._raw, starts, np.dtype((np.void, sizes.item(0)))).tobytes()
            first = found[: sizes.item(0)]
            if found == first * count:  # as in most pieces of a log
                names = pa.array([first], pa.large_binary())
                return pa.DictionaryArray.from_arrays(np.zeros(count, np.int32), names)
        return slices(self.data, starts, sizes).dictionary_encode()

    @cached_property
    def _properties(self) -> pa.LargeBinaryArray:
        starts, sizes = self._topic_places
        at = starts + sizes + PROPERTIES_LENGTH_SIZE
        return slices(self.data, at, self.starts + self.column("total_size") - at)

    @cached_property
    def _segments(self) -> tuple[Int64s, Int64s, Int64s]:
        """Rows, starts and ends of all the pairs in the property strings."""
        bounds = _bounds_of(self._properties)
        raw = self.property_bytes
        if not len(raw):
            return _NONE, _NONE, _NONE
        return split(raw, bounds[:-1], bounds[1:], ord(PROPERTY_SEPARATOR))


def decode_columns(
    data: Buffer, starts: Int64s, base: int, *, path: str = "", check_crc: bool = False
) -> RecordColumns:
    """Return the records that start at `starts` of `data` (ascending) as columns.

    `base` is the physical offset of `data[0]`. Lengths and own offsets are verified, bodies
    if `check_crc`; what does not fit is CorruptRecord with its physical offset.
    """
    if len(starts):
        raw = np.frombuffer(data, np.uint8)
        prefixes = gather(raw, starts, MESSAGE_PREFIX.dtype)
        inside = prefixes["physical_offset"] == starts + base
        inside &= starts + prefixes["total_size"] <= len(raw)
        if not inside.all():
            wrong = int(np.argmin(inside))
            raise CorruptRecord(path, base + int(starts[wrong]), "not the record that was put here")
        count, fault = first_fault(data, starts, check_crc=check_crc)
        if fault is not None:
            raise CorruptRecord(path, base + int(starts[count]), fault)
    return RecordColumns(data, starts, base, path)


def queue_columns(records: RecordColumns) -> tuple[list[tuple[str, int]], Any]:
    """Return the queues that occur in records, and for each row which of them it is (int32)."""
    if records.queues is not None:
        keys, codes = records.queues
        return list(keys), codes
    combined = records.topic_codes << 32 | records.column("queue_id").astype(np.int64)
    codes, firsts, _ = grouped(combined)
    values = combined[firsts]
    names = records.topic_names
    low = (values & 0xFFFFFFFF).astype(np.uint32).view(np.int32).tolist()
    keys = [(names[value >> 32], queue) for value, queue in zip(values.tolist(), low, strict=True)]
    return keys, codes.astype(np.int32)


def split(
    raw: Bytes, starts: Int64s, ends: Int64s, separator: int
) -> tuple[Int64s, Int64s, Int64s]:
    """Split ascending slices of `raw` at a byte; returns slice number, start and end of each part.

    Empty parts are left out.

    >>> raw = np.frombuffer(b"a b||c ", np.uint8)
    >>> [part.tolist() for part in split(raw, np.array([0, 4, 5]), np.array([3, 4, 7]), 32)]
    [[0, 0, 2], [0, 2, 5], [1, 3, 6]]
    """
    if len(starts) == 0:
        return starts, starts, ends
    at = np.flatnonzero(raw == separator)
    owner = np.searchsorted(starts, at, "right") - 1
    inside = (owner >= 0) & (at < ends[owner])
    at = at[inside]
    new_starts = np.sort(np.concatenate((starts, at + 1)), kind="stable")
    new_ends = np.sort(np.concatenate((ends, at)), kind="stable")
    kept = new_starts < new_ends
    new_starts, new_ends = new_starts[kept], new_ends[kept]
    return np.searchsorted(starts, new_starts, "right") - 1, new_starts, new_ends


def hash_slices(raw: Bytes, starts: Int64s, ends: Int64s) -> Any:
    """Return the Java hash of each slice of UTF-8 text, as uint32.

    Slices of one length are a matrix of bytes, and the hash a product with powers of 31.
    """
    if len(raw) and raw.max() >= 0x80:
        data = raw.tobytes()
        pairs = zip(starts.tolist(), ends.tolist(), strict=True)
        hashes = [java_hash(data[a:b].decode(errors="replace")) for a, b in pairs]
        return np.array(hashes, np.int64).astype(np.uint32)
    sizes = ends - starts
    values = np.zeros(len(starts), np.uint32)
    for size in np.flatnonzero(np.bincount(sizes)).tolist():  # np.unique is ten times slower here
        rows = np.flatnonzero(sizes == size)
        if size:
            rectangle = gather(raw, starts[rows], np.dtype(f"V{size}"))
            matrix = rectangle.view(np.uint8).reshape(len(rows), size).astype(np.uint32)
            values[rows] = matrix @ _powers_of_31(np.arange(size - 1, -1, -1))
    return values


def _powers_of_31(exponents: Any) -> Any:
    """Return 31 ** exponent in 32 bits."""
    table = np.ones(int(exponents.max(initial=0)) + 1, np.uint32)
    table[1:] = 31
    return np.multiply.accumulate(table, dtype=np.uint32)[exponents]


def _absolute(hashes: Any) -> Any:
    """Return Java's abs of 32-bit hashes; that of the least int is 0."""
    signed = hashes.astype(np.uint32).view(np.int32).astype(np.int64)
    signed = np.abs(signed)
    signed[signed > 0x7FFFFFFF] = 0
    return signed.astype(np.int32)


def _bounds_of(column: pa.LargeBinaryArray) -> Int64s:
    """Boundaries of a large binary column that starts at 0."""
    if len(column) == 0:
        return np.zeros(1, np.int64)
    return np.frombuffer(column.buffers()[1], np.int64)[: len(column) + 1]


def _values_of(column: pa.LargeBinaryArray) -> Bytes:
    """All bytes of a large binary column that starts at 0."""
    buffer = column.buffers()[2]
    return bytes_of(buffer) if buffer is not None else bytes_of(b"")
