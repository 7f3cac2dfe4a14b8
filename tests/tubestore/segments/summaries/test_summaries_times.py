"""Times of a segment against a plain search, in whatever order they came."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tubestore.record.layouts import INDEX_ENTRY
from tubestore.segments.summaries import BLOCK_ENTRIES, TimeIndex, blocks_of


def entries_of(times: list[int]) -> np.ndarray:  # type: ignore[type-arg]
    entries = np.zeros(len(times), INDEX_ENTRY.dtype)
    entries["received_time"] = times
    return entries


def plain_first(times: list[int], time: int, first: int = 0) -> int:
    return next((n for n in range(first, len(times)) if times[n] >= time), len(times))


def plain_end(times: list[int], time: int) -> int:
    return next((n + 1 for n in reversed(range(len(times))) if times[n] < time), 0)


#: Enough to fill some blocks, nearly in order, some far off; grown in steps.
nearly_sorted = st.builds(
    lambda seed, count, jitter: (
        np.arange(count) * 10 + np.random.default_rng(seed).integers(-jitter, jitter + 1, count)
    ).tolist(),
    st.integers(0, 1 << 32),
    st.integers(0, 4 * BLOCK_ENTRIES),
    st.sampled_from([0, 5, 200, 100_000]),
)


@given(nearly_sorted, st.integers(-50, 11_000), st.integers(0, 4 * BLOCK_ENTRIES), st.data())
def test_a_search_finds_what_a_walk_finds_after_every_step(
    times: list[int], time: int, first: int, data: st.DataObject
) -> None:
    index = TimeIndex()
    entries = entries_of(times)
    for end in sorted({data.draw(st.integers(0, len(times))), len(times)}):
        some, seen = entries[:end], times[:end]
        assert index.first_from(some, time, first) == max(
            plain_first(seen, time, first), min(first, end)
        )
        assert index.end_before(some, time) == plain_end(seen, time)


@given(nearly_sorted)
def test_an_older_snapshot_sees_only_its_own_entries(times: list[int]) -> None:
    index, entries = TimeIndex(), entries_of(times)
    index.extend(entries)
    older = len(times) // 2
    for time in (0, 1000, 5000, 1 << 40):
        assert index.first_from(entries[:older], time) == plain_first(times[:older], time)
        assert index.end_before(entries[:older], time) == plain_end(times[:older], time)


@pytest.mark.parametrize("place", [0, 1, 255, 256, 257, 511, 512, 700])
def test_one_message_from_the_future_hides_none_behind_it(place: int) -> None:
    times = list(range(0, 7200, 9))
    times[place] = 1 << 50
    index, entries = TimeIndex(), entries_of(times)
    assert index.first_from(entries, 6000) == min(place, plain_first(times, 6000))
    assert index.first_from(entries, 6000, place + 1) == plain_first(times, 6000, place + 1)
    assert index.end_before(entries, 7200) == len(times)


def test_times_of_any_64_bits_are_compared_as_they_are() -> None:
    times = [-(1 << 63), (1 << 63) - 1] * BLOCK_ENTRIES
    index, entries = TimeIndex(), entries_of(times)
    assert index.first_from(entries, (1 << 63) - 1) == 1
    assert index.first_from(entries, -(1 << 63)) == 0
    assert index.end_before(entries, (1 << 63) - 1) == len(times) - 1


def test_the_blocks_of_a_segment_are_those_of_its_steps() -> None:
    times = np.random.default_rng(3).integers(0, 1000, 5 * BLOCK_ENTRIES + 17)
    entries = entries_of(times.tolist())
    index = TimeIndex()
    for end in range(0, len(times) + 1, 111):
        index.extend(entries[:end])
    whole = blocks_of(entries["received_time"])
    for one, other in zip(index.extend(entries), whole, strict=True):
        assert np.array_equal(one, other)
    assert index.covered == 5 * BLOCK_ENTRIES


def test_readers_may_extend_at_the_same_time() -> None:
    times = np.random.default_rng(4).integers(0, 10_000, 20 * BLOCK_ENTRIES).tolist()
    entries, index = entries_of(times), TimeIndex()
    ends = np.random.default_rng(5).integers(0, len(times) + 1, 200).tolist()

    def look(end: int) -> bool:
        return index.first_from(entries[:end], 9990) == plain_first(times[:end], 9990)

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(look, ends))
