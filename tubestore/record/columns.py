"""The columns that a reader wants, and how they are verified; columns of one value."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from tubestore import messages
from tubestore.core.kernels import integers, texts

Array = np.ndarray[Any, Any]

_FROM_PAYLOAD = {"filter_item", "attributes", "body"}
#: The columns that the index alone does not know.
FROM_DATA = {*_FROM_PAYLOAD, "msg_id", "flag", "report_address", "state"}


@dataclass(frozen=True)
class Columns:
    """What is read of messages: the columns in their order, and how they are verified.

    `verify`: compare checksums, and entries with records; `strict`: the state of every row
    is needed; `views`: bodies of sealed files are not copied, but shown where they are
    (`binary_view`); `own_offset`: also compare the offset that a record names.
    Made by `columns_for`, which caches them.
    """

    names: tuple[str, ...]
    verify: bool = False
    strict: bool = False
    views: bool = False
    own_offset: bool = False

    @cached_property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the columns."""
        return messages.schema_of(self.names, views=self.views)

    @cached_property
    def wanted(self) -> frozenset[str]:
        """The columns as a set."""
        return frozenset(self.names)

    @cached_property
    def needs_data(self) -> bool:
        """True if the index alone does not contain them."""
        return self.strict or not FROM_DATA.isdisjoint(self.names)

    @cached_property
    def needs_payload(self) -> bool:
        """True if the headers alone do not contain them."""
        return not _FROM_PAYLOAD.isdisjoint(self.names)


@lru_cache(maxsize=256)
def columns_for(
    names: tuple[str, ...],
    *,
    verify: bool = False,
    strict: bool = False,
    views: bool = False,
    own_offset: bool = False,
) -> Columns:
    """Return the columns of these names; KeyError for an unknown one."""
    columns = Columns(names, verify, strict, views, own_offset)
    assert columns.schema is not None
    return columns


@lru_cache(maxsize=512)
def constant(name: str, value: Any, count: int) -> pa.Array:
    """Return a column with one value (None: nulls) in all rows, a slice of one that is kept.

    By the column's name: to find out whether a type of Arrow's is known takes longer.
    """
    size = max(1024, 1 << (count - 1).bit_length())
    if size != count:
        return constant(name, value, size).slice(0, count)
    kind = messages.MESSAGE_SCHEMA.field(name).type
    if value is None:
        return pa.nulls(count, kind)
    if isinstance(value, str):
        return texts([value]).take(integers(pa.int32(), np.zeros(count, np.int32)))
    return integers(kind, np.full(count, value, str(kind)))


def spread(values: dict[str, Any], rows: Array, count: int) -> dict[str, Any]:
    """Put the columns of some rows back among all rows, null elsewhere."""
    places = np.full(count, -1, np.int64)
    places[rows] = np.arange(len(rows))
    indices = integers(pa.int64(), places, places >= 0)
    return {name: column.take(indices) for name, column in values.items()}
