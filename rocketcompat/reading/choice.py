"""Which records an Arrow read returns, and which of their columns.

Tags are compared by their text in the records; a queue's units have only hashes of them. Pure
functions of batches; thread-safe.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rocketcompat.formats import CQ_PRE_FILL_SIZE
from rocketcompat.reading.pull import int32_code, tag_codes, tags_in
from rocketcompat.record.arrow import RECORD_SCHEMA
from rocketcompat.record.columns import RecordColumns
from rocketcompat.record.properties import SCHEDULE_TOPIC
from tubestore.core.kernels import Int64s
from tubestore.errors import InvalidMessage
from tubestore.values import checked_texts


@dataclass(frozen=True, slots=True)
class Choice:
    """Conditions that a record has to meet all of, and columns; None means any and all.

    `tags` is "A || B"; `begin` and `before` are store times in ms, [begin, before).
    """

    tags: str | None = None
    begin: int | None = None
    before: int | None = None
    columns: tuple[str, ...] | None = None

    @classmethod
    def checked(
        cls, tags: Any, begin: int | None, before: int | None, columns: Sequence[str] | None
    ) -> Choice:
        """Return the choice that a caller gives; InvalidMessage names a wrong argument."""
        if tags is None and begin is None and before is None and columns is None:
            return ALL
        if tags is not None and not isinstance(tags, str):
            raise InvalidMessage(f'tags: {tags!r} is not a text like "paid || sent"')
        names = None if columns is None else tuple(checked_texts("columns", columns))
        unknown = sorted(set(names or ()) - set(RECORD_SCHEMA.names))
        if unknown:
            known = ", ".join(RECORD_SCHEMA.names)
            raise InvalidMessage(f"columns: no {', '.join(unknown)}; known are {known}")
        if names is not None and not 0 < len(set(names)) == len(names):
            raise InvalidMessage(f"columns {', '.join(names)}: one at least, and none twice")
        return cls(tags, begin, before, names)

    @property
    def with_bodies(self) -> bool:
        """False if no column needs the bodies."""
        return self.columns is None or "body" in self.columns

    def codes(self, topic: str) -> list[int] | None:
        """Return the hashes that units of a topic's queues have for these tags; None for all.

        Units of delayed messages have the time of delivery in the place of the hash.
        """
        codes = None if topic == SCHEDULE_TOPIC else tag_codes(self.tags)
        return None if codes is None else sorted(codes)

    def mask(self, batch: pa.RecordBatch) -> Any:
        """Return which records of a batch are wanted; None for all. A stand-in has no tags."""
        mask = None
        if self.begin is not None or self.before is not None:
            times = batch["store_timestamp"].to_numpy()
            mask = np.ones(len(times), bool)
            if self.begin is not None:
                mask &= times >= self.begin
            if self.before is not None:
                mask &= times < self.before
        wanted = tags_in(self.tags)
        if wanted:
            records = RecordColumns(b"", np.arange(batch.num_rows), 0)
            records.take_columns({}, [], np.empty(0, np.int64), batch["properties"])
            texts = pa.array([tag.encode() for tag in wanted], pa.large_binary())
            tagged = pc.is_in(records.tags(), texts).to_numpy(zero_copy_only=False)
            mask = tagged if mask is None else mask & tagged
        return mask

    def rows_of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the wanted records of a batch, in all columns."""
        mask = self.mask(batch) if batch.num_rows else None
        return batch if mask is None or mask.all() else batch.filter(pa.array(mask))

    def columns_of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the wanted columns of a batch."""
        return batch if self.columns is None else batch.select(self.columns)


#: Each record, in all columns.
ALL = Choice()


def units_with(
    units: Any, begins: Sequence[int], codes: Sequence[int], limit: int
) -> tuple[Any, list[int]]:
    """Return the units with one of these hashes of tags, `limit` messages at most.

    Units that lead to no record are among them: they are reported. The second list is where each
    begins, and then where a read goes on.
    """
    real = (units["size"] > 0) & (units["size"] != CQ_PRE_FILL_SIZE)
    real &= units["physical_offset"] >= 0
    wanted = np.isin(int32_code(units["tags_code"].astype(np.int64)), codes) | ~real
    chosen: Int64s = np.flatnonzero(wanted)
    ends = np.asarray(begins, np.int64)
    behind = np.cumsum(ends[chosen + 1] - ends[chosen])
    count = int(behind.searchsorted(limit, "right"))
    count = max(count, 1) if limit and len(chosen) else count
    following = int(ends[-1]) if count == len(chosen) else int(ends[chosen[count - 1] + 1])
    chosen = chosen[:count]
    return units[chosen], [*ends[chosen].tolist(), following]
