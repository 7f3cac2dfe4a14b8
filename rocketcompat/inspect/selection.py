"""The selection of records of the log, judged in columns.

Cheap conditions come first, each on what the one before left; bodies are unpacked and searched
last. Pure functions of columns; thread-safe.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rocketcompat.index.items import key_hash
from rocketcompat.reading.pull import tags_in
from rocketcompat.record.columns import RecordColumns
from rocketcompat.record.compression import unpack_bodies
from tubestore.errors import InvalidMessage


@dataclass(frozen=True, slots=True)
class Selection:
    """Conditions that a record has to meet all of; None means any.

    `start` and `end` are physical offsets, [start, end); `begin` and `before` store times in ms,
    [begin, before); `tags` is "A || B"; `key` is one of KEYS, or the UNIQ_KEY; `pattern` a regular
    expression (RE2) to be found in the body, as stored or, with `unpack`, as the producer had it.
    """

    start: int | None = None
    end: int | None = None
    begin: int | None = None
    before: int | None = None
    topic: str | None = None
    queue_id: int | None = None
    tags: str | None = None
    key: str | None = None
    pattern: str | None = None
    unpack: bool = False

    def __post_init__(self) -> None:
        if self.pattern is not None:
            try:
                pc.match_substring_regex(pa.array([b""], pa.large_binary()), self.pattern)
            except pa.ArrowInvalid as error:
                raise InvalidMessage(f"{self.pattern!r}: {error}") from None

    def of(self, records: RecordColumns) -> RecordColumns:
        """Return the records that meet the conditions."""
        for condition in (self._fields, self._tags, self._key, self._body):
            mask = condition(records) if len(records) else None
            if mask is not None and not mask.all():
                records = RecordColumns(
                    records.data, records.starts[mask], records.base, records.path
                )
        return records

    def _fields(self, records: RecordColumns) -> Any:
        mask = np.ones(len(records), bool)
        offsets = records.starts + records.base
        if self.start is not None:
            mask &= offsets >= self.start
        if self.end is not None:
            mask &= offsets < self.end
        if self.begin is not None:
            mask &= records.column("store_timestamp") >= self.begin
        if self.before is not None:
            mask &= records.column("store_timestamp") < self.before
        if self.queue_id is not None:
            mask &= records.column("queue_id") == self.queue_id
        if self.topic is not None:
            named = np.array([name == self.topic for name in records.topic_names], bool)
            mask &= named[records.topic_codes]
        return mask

    def _tags(self, records: RecordColumns) -> Any:
        """By the tag's text: two tags may have one hash."""
        wanted = [tag.encode() for tag in tags_in(self.tags)]
        if not wanted:
            return None
        found = pc.is_in(records.tags(), pa.array(wanted, pa.large_binary()))
        return found.to_numpy(zero_copy_only=False)

    def _key(self, records: RecordColumns) -> Any:
        """By the hash for all, by the text for the few that have it."""
        if self.key is None:
            return None
        mask = np.zeros(len(records), bool)
        rows, hashes = records.index_keys()
        names, codes = records.topic_names, records.topic_codes
        wanted = np.array([key_hash(name, self.key) for name in names], np.int64)
        _, starts, ends = records.key_places
        raw, text = records.property_bytes, self.key.encode()
        for place in np.flatnonzero(hashes == wanted[codes[rows]]).tolist():
            mask[rows[place]] |= raw[starts[place] : ends[place]].tobytes() == text
        return mask

    def _body(self, records: RecordColumns) -> Any:
        if self.pattern is None:
            return None
        bodies, flags = records.bodies(), records.column("sys_flag")
        parts = unpack_bodies(bodies, flags) if self.unpack else [(slice(None), bodies, None)]
        found = [pc.match_substring_regex(part, self.pattern) for _, part, _ in parts]
        return np.concatenate([mask.to_numpy(zero_copy_only=False) for mask in found])
