"""Which of an index entry and a record counts where they contradict each other.

A record's token, length and payload are proved by its checksum, and so is the place of its entry:
`data_offset` and `data_size`. The rest of its header is outside the checksum, and is in
the entry once more. Each of the two can prove itself by what the other does not need:

| field                                | proved by                                              |
| ------------------------------------ | ------------------------------------------------------ |
| entry: `data_offset`, `data_size`    | a whole record of that size at that place              |
| record: `queue_logic_offset`         | the entry is at that offset                            |
| both: `partition_id`                 | refuted where it is not of the shard's store           |
| both: `key_code`, `received_time`    | attributes of the payload that only one of both fits   |

| entry's place      | record's own offset | what counts of partition, key and time               |
| ------------------ | ------------------- | ---------------------------------------------------- |
| right              | another             | the entry's: the header is damaged                   |
| `data_offset` only | another             | the entry's, with the place of the record            |
| wrong in any way   | right               | the record's: the entry is damaged                   |
| right              | right               | what the attributes prove; else the record's; its    |
|                    |                     | data are synced first: an entry may be of before     |
| wrong              | another             | the record's: its order among the records is left    |

A partition of another store refutes the side that has it, whatever else it proves.

What an entry alone can show is here, too: recovery, check, dump and repair ask the same functions.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tubestore.options import PARTITIONS_PER_STORE
from tubestore.record.attributes import minute_text, parse_text, split_payload
from tubestore.record.layouts import (
    ATTRIBUTE_TIME,
    ATTRIBUTE_TYPE,
    FLAG_HAS_ATTRIBUTES,
    INDEX_ENTRY,
    RECORD_SIZE_MAX,
    key_code_of,
    record_size,
)
from tubestore.record.records import HEADER_SIZE, SHARED_FIELDS, entry_of

Array = np.ndarray[Any, Any]
#: What a power cut loses of a file is whole sectors.
_SECTOR_BYTES = 512


class Judgement(NamedTuple):
    """The entry that a whole record should have, and what contradicted it."""

    entry: bytes
    #: True if the entry's values count, so that the record's header is damaged.
    header_is_damaged: bool
    text: str


def are_possible(entries: Array) -> Array:
    """Return which entries can be a record's: a partition, a place, a size within the bounds."""
    sizes = entries["data_size"]
    good = (entries["partition_id"] >= 0) & (entries["data_offset"] >= 0)
    return np.asarray(good & (sizes > HEADER_SIZE) & (sizes <= RECORD_SIZE_MAX))


def are_expired(entries: Array, data_start: int) -> Array:
    """Return which entries point to a record that ended below the first data that is kept.

    An entry of zeros, which a power cut can leave, does not.
    """
    offsets, sizes = entries["data_offset"].astype(np.int64), entries["data_size"].astype(np.int64)
    return np.asarray((offsets >= 0) & (sizes > HEADER_SIZE) & (offsets <= data_start - sizes))


def count_expired(entries: Array, data_start: int) -> int:
    """Return how many entries at the front are expired: TubeMQ expires the streams separately."""
    expired = are_expired(entries, data_start)
    return len(expired) if expired.all() else int(np.argmin(expired))


def is_of_store(partition_id: Any, store_id: int) -> Any:
    """Whether a partition id, or which of an array of them, belongs to a store id."""
    return partition_id // PARTITIONS_PER_STORE == store_id


def judge(
    entry: Any, header: Any, payload: bytes, *, store_id: int, index_offset: int, data_offset: int
) -> Judgement:
    """Return what counts of an entry at `index_offset` and the whole record at `data_offset`."""
    size = record_size(header)
    text = _difference(entry, header, data_offset)
    same = all(getattr(entry, name) == getattr(header, name) for name in SHARED_FIELDS)
    if same or not _entry_counts(entry, header, payload, store_id, index_offset, data_offset):
        return Judgement(entry_of(header, data_offset), False, text)
    values = {**entry._asdict(), "data_offset": data_offset, "data_size": size}
    own = header.queue_logic_offset
    if own != index_offset:
        text += f"; the record names index offset {own}, and its entry is at {index_offset}"
    return Judgement(INDEX_ENTRY.pack(**values), True, text)


def _entry_counts(
    entry: Any, header: Any, payload: bytes, store_id: int, index_offset: int, data_offset: int
) -> bool:
    if entry.data_offset != data_offset:
        return False
    entry_fits = is_of_store(entry.partition_id, store_id)
    record_fits = is_of_store(header.partition_id, store_id)
    if entry_fits != record_fits:
        return bool(entry_fits)
    if header.queue_logic_offset != index_offset:
        return True  # the header is proved to be damaged
    if entry.data_size != record_size(header):
        return False
    return _proved(entry, header.flag, payload) > _proved(header, header.flag, payload)


def _proved(recorded: Any, flag: int, payload: bytes) -> int:
    """Return how many fields of an entry or header the attributes in a payload prove."""
    parts = split_payload(payload) if flag & FLAG_HAS_ATTRIBUTES else None
    items = parse_text(parts[0]) if parts is not None else {}
    if ATTRIBUTE_TYPE not in items:
        return 0
    key = key_code_of(items[ATTRIBUTE_TYPE]) == recorded.key_code
    time = items.get(ATTRIBUTE_TIME) == minute_text(recorded.received_time // 60_000)
    return int(key) + int(time)


def is_lost(old: bytes, new: bytes, position: int) -> bool:
    """True if an entry of a file is what a write that did not all arrive leaves of a new one.

    That is zeros up to its end, or up to the border of a sector, and the new bytes elsewhere.
    """
    differs = [n for n, (a, b) in enumerate(zip(old, new, strict=True)) if a != b]
    if not differs:
        return True
    first, last = differs[0], differs[-1]
    if not any(old[first:]):
        return True
    border = -position % _SECTOR_BYTES
    return last < border < len(old) and not any(old[:border])


def _difference(entry: Any, header: Any, data_offset: int) -> str:
    """Name the fields in which an entry and the record at a place differ."""
    pairs = [(name, getattr(entry, name), getattr(header, name)) for name in SHARED_FIELDS]
    pairs.append(("data_offset", entry.data_offset, data_offset))
    pairs.append(("data_size", entry.data_size, record_size(header)))
    return "; ".join(f"{name} {a}, in the record {b}" for name, a, b in pairs if a != b)
