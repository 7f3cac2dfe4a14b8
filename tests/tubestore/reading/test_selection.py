"""Which entries a read finds, against a plain list: files and memory, filters, limits."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.support.tube import open_shard
from tubestore.reading.selection import Found, portions
from tubestore.reading.sources import EVERYTHING, Filter
from tubestore.record.records import ENTRY_SIZE, Row
from tubestore.shard.message_store import MessageStore
from tubestore.testing import MemoryVfs

PARTITIONS = 4


def shard_of(rows: list[Row], flushes: set[int]) -> MessageStore:
    """A shard with small files; what comes after the last flush is in memory."""
    shard = open_shard(MemoryVfs(), index_segment_size_bytes=ENTRY_SIZE * 7, segment_size_bytes=500)
    for number, row in enumerate(rows):
        if number in flushes:
            shard.flush()
        shard.append(row, "memory")
    return shard


row_lists = st.lists(
    st.builds(
        lambda partition, key, time, size: Row(partition, key, time, 0, 0, 0, b"x" * size),
        st.integers(0, PARTITIONS - 1),
        st.integers(0, 2),
        st.integers(0, 30),
        st.integers(1, 40),
    ),
    max_size=60,
)

filters = st.builds(
    Filter,
    st.one_of(st.none(), st.frozensets(st.integers(0, 3), max_size=2)),
    st.one_of(st.none(), st.integers(0, 31)),
    st.one_of(st.none(), st.integers(0, 31)),
)


def passes(row: Row, wanted: Filter) -> bool:
    return (
        (wanted.key_codes is None or row.key_code in wanted.key_codes)
        and (wanted.start_ms is None or row.received_time >= wanted.start_ms)
        and (wanted.end_ms is None or row.received_time < wanted.end_ms)
    )


def expected_page(
    rows: list[Row], partition: int, first: int, limit: int, max_bytes: int | None, wanted: Filter
) -> tuple[list[int], int, bool]:
    """What a page of a partition is: (offsets, where to go on, whether there is more)."""
    all_of_it = [
        n for n in range(first, len(rows))
        if rows[n].partition_id == partition and passes(rows[n], wanted)
    ]  # fmt: skip
    taken: list[int] = []
    size = 0
    for number in all_of_it[:limit]:
        size += 52 + len(rows[number].payload)
        if max_bytes is not None and size > max_bytes and taken:
            break
        taken.append(number)
    more = len(taken) < len(all_of_it)
    after = max(len(rows), first)
    if more:
        after = taken[-1] + 1 if taken else first
    return [n * ENTRY_SIZE for n in taken], after * ENTRY_SIZE, more


pages = (
    row_lists,
    st.sets(st.integers(0, 60), max_size=4),
    st.integers(0, 60),
    st.integers(0, 12),
    st.one_of(st.none(), st.integers(0, 900)),
)


def offsets_of(found: Any) -> list[int]:
    return [int(o) for rows in found.rows for o in rows.offsets]


@given(*pages, st.integers(0, PARTITIONS - 1), st.one_of(st.just(EVERYTHING), filters))
def test_a_page_is_what_a_walk_finds(
    rows: list[Row],
    flushes: set[int],
    first: int,
    limit: int,
    max_bytes: int | None,
    partition: int,
    wanted: Filter,
) -> None:
    first = min(first, len(rows))
    view = shard_of(rows, flushes).view()
    found: Found = view.find(
        partition, first * ENTRY_SIZE, limit=limit, max_bytes=max_bytes, wanted=wanted
    )
    expected = expected_page(rows, partition, first, limit, max_bytes, wanted)
    assert (offsets_of(found), found.next_offset, found.truncated) == expected


@given(
    *pages,
    st.lists(st.integers(0, 60), min_size=PARTITIONS, max_size=PARTITIONS),
    filters,
    st.data(),
)
def test_pages_of_many_partitions_are_those_of_each(
    rows: list[Row],
    flushes: set[int],
    first: int,
    limit: int,
    max_bytes: int | None,
    firsts: list[int],
    wanted: Filter,
    data: st.DataObject,
) -> None:
    view = shard_of(rows, flushes).view()
    partitions = sorted(data.draw(st.sets(st.integers(0, PARTITIONS), min_size=1)))
    starts = [min(firsts[p % PARTITIONS], len(rows)) for p in partitions]
    found = view.find_many(
        np.array(partitions, np.int64),
        np.array(starts, np.int64) * ENTRY_SIZE,
        limit=limit,
        max_bytes=max_bytes,
        wanted=wanted,
    )
    each = [
        expected_page(rows, p, start, limit, None, wanted)
        for p, start in zip(partitions, starts, strict=True)
    ]
    everything = sorted(offset for page, _, _ in each for offset in page)
    taken = offsets_of(found)
    assert taken == everything[: len(taken)]
    sizes = [52 + len(rows[o // ENTRY_SIZE].payload) for o in everything]
    if max_bytes is not None and sum(sizes) > max_bytes:
        assert len(taken) == max(1, sum(np.cumsum(sizes) <= max_bytes))
    else:
        assert taken == everything
    for place, (page, after, more) in enumerate(each):
        left_out = [offset for offset in page if offset not in taken]
        assert bool(found.truncated[place]) == (more or bool(left_out))
        assert int(found.next_offsets[place]) == (left_out[0] if left_out else after)


@given(row_lists, st.sets(st.integers(0, 60), max_size=4), filters, st.integers(0, 60), st.data())
def test_portions_of_everything_are_what_a_walk_finds(
    rows: list[Row], flushes: set[int], wanted: Filter, first: int, data: st.DataObject
) -> None:
    view = shard_of(rows, flushes).view()
    rows_max, bytes_max = data.draw(st.integers(1, 20)), data.draw(st.integers(1, 2000))
    found = []
    for source in view.sources(first * ENTRY_SIZE):
        first_here = source.ordinal(first * ENTRY_SIZE)
        for part in portions(source, wanted, first_here, rows_max, bytes_max):
            sizes = part.entries["data_size"].tolist()
            assert 1 <= len(sizes) <= rows_max
            assert len(sizes) == 1 or sum(sizes) <= bytes_max
            found += part.offsets.tolist()
    numbers = range(first, len(rows))
    assert found == [n * ENTRY_SIZE for n in numbers if passes(rows[n], wanted)]
