"""What can be said of the rows and bytes of a shard: the verdicts, and how rows are shown.

| at the expected place                              | verdict             | row in a dump        |
| -------------------------------------------------- | ------------------- | -------------------- |
| entry and record agree                             | none                | ok                   |
| … and the attribute length is impossible           | bad_attributes      | bad_attributes       |
| … but the record's own index offset is another     | own_offset          | ok                   |
| … but partition, key or time differ                | entry_differs       | entry_differs        |
| … and the record's own index offset is another     | entry_differs, of   | entry_differs        |
|                                                    | the record          |                      |
| entry wrong, the record that belongs here is found | bad_entry           | ok, from the record  |
| entry impossible, no record                        | bad_entry           | bad_entry            |
| entry points to bytes that no file has             | missing             | missing              |
| … because retention removed them                   | none                | expired              |
| record damaged                                     | bad_record          | bad_record           |
| payload damaged                                    | bad_checksum        | bad_checksum         |
| intact records without entries                     | unindexed           | ok                   |
| bytes that nothing points to                       | unreferenced        | no row               |
| … at the end, and no intact record in them         | torn                | no row               |
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


class Reason(enum.StrEnum):
    """What is wrong: `reason` of a finding. Each is explained in `whole.py`."""

    BAD_STATE = "bad_state"
    HALF_PUBLISHED = "half_published"
    JOURNAL = "journal"
    JOURNAL_DAMAGED = "journal_damaged"
    STALE_CACHE = "stale_cache"
    FOREIGN_NAME = "foreign_name"
    NAME_FORM = "name_form"
    GAP = "gap"
    OVERLAP = "overlap"
    UNREADABLE = "unreadable"
    PARTIAL_ENTRY = "partial_entry"
    BAD_ENTRY = "bad_entry"
    ENTRY_DIFFERS = "entry_differs"
    OWN_OFFSET = "own_offset"
    MISSING = "missing"
    MISSING_FILE = "missing_file"
    HIDDEN = "hidden"
    BAD_RECORD = "bad_record"
    BAD_CHECKSUM = "bad_checksum"
    BAD_ATTRIBUTES = "bad_attributes"
    UNINDEXED = "unindexed"
    UNREFERENCED = "unreferenced"
    TORN = "torn"
    DIGEST_DIFFERS = "digest_differs"
    NEVER_SYNCED = "never_synced"


OK = "ok"
EXPIRED = "expired"


@dataclass(frozen=True, slots=True)
class Stretch:
    """Rows next to each other, or bytes without rows, that share a verdict."""

    verdict: Reason | None
    #: State of the rows; "" for bytes without rows.
    state: str
    #: Of the first row. Where the row has no entry, where it would stand.
    index_offset: int
    #: As the index has them, or as the records say where the index is wrong.
    entries: Array
    data_offset: int
    data_size: int
    message: str = ""
    #: The bytes that hold the records, where they are at hand already.
    data: memoryview | None = None
    data_start: int = 0
    #: Bytes without rows: whether they are a whole record, whose entry is another's.
    is_record: bool = False
    #: A row whose entry and record contradict each other: whether it is the record that is damaged.
    in_record: bool = False
