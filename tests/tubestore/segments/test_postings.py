"""Posting lists against a plain mask, however they grew."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tubestore.record.layouts import INDEX_ENTRY
from tubestore.segments.postings import PartitionIndex


def entries_of(partitions: list[int], key_codes: list[int] | None = None) -> np.ndarray:  # type: ignore[type-arg]
    entries = np.zeros(len(partitions), INDEX_ENTRY.dtype)
    entries["partition_id"] = partitions
    entries["key_code"] = key_codes or [p % 7 for p in partitions]
    return entries


steps = st.lists(st.lists(st.integers(0, 5), max_size=12), max_size=15)


@given(steps, st.integers(0, 5), st.integers(0, 60), st.one_of(st.none(), st.integers(0, 9)))
def test_a_look_up_is_what_a_mask_finds_after_every_step(
    grown: list[list[int]], key: int, first: int, limit: int | None
) -> None:
    lists = PartitionIndex("partition_id")
    so_far: list[int] = []
    for number, step in enumerate(grown):
        so_far += step
        entries = entries_of(so_far)
        expected = [n for n, p in enumerate(so_far) if p == key and n >= first][:limit]
        assert lists.lookup(entries, key, first, limit).tolist() == expected
        assert lists.covered == (len(so_far) if number else 0)  # the first one builds no list
        lists.check_invariants(entries)


@given(steps, st.integers(0, 5))
def test_an_older_snapshot_sees_only_its_own_entries(grown: list[list[int]], key: int) -> None:
    everything = [p for step in grown for p in step]
    lists = PartitionIndex("partition_id")
    lists.extend(entries_of(everything))
    lists.check_invariants(entries_of(everything))
    for end in {0, len(everything) // 2, len(everything)}:
        older = everything[:end]
        found = lists.lookup(entries_of(everything)[:end], key, 0, None)
        assert found.tolist() == [n for n, p in enumerate(older) if p == key]
        counts = lists.counts(entries_of(everything)[:end])
        assert counts == {p: older.count(p) for p in set(older)}


@given(st.lists(st.integers(-(1 << 31), (1 << 31) - 1), min_size=1, max_size=40), st.data())
def test_key_codes_are_any_integers(codes: list[int], data: st.DataObject) -> None:
    lists = PartitionIndex("key_code")
    entries = entries_of([0] * len(codes), codes)
    key = data.draw(st.sampled_from(codes))
    expected = [n for n, c in enumerate(codes) if c == key]
    assert lists.lookup(entries, key, 0, None).tolist() == expected
    lists.check_invariants(entries)
    assert lists.counts(entries) == {c: codes.count(c) for c in codes}


def test_the_first_look_up_of_a_segment_builds_no_list() -> None:
    lists = PartitionIndex("partition_id", 30_000)
    entries = entries_of([30_001, 30_000, 30_001, 30_001])
    assert lists.lookup(entries, 30_001, 1, 1).tolist() == [2]
    assert lists.covered == 0
    again = lists.lookup(entries, 30_001, 1, None)
    assert (again.tolist(), again.dtype) == ([2, 3], np.int32)
    assert lists.covered == 4


def test_partitions_of_a_later_store_are_counted_from_its_first() -> None:
    lists = PartitionIndex("partition_id", 30_000)
    entries = entries_of([30_000, 39_999, 30_000, 30_001])
    assert lists.lookup(entries, 30_000, 0, None).tolist() == [0, 2]
    assert lists.lookup(entries, 39_999, 0, None).tolist() == [1]
    assert lists.lookup(entries, 30_002, 0, None).tolist() == []
    assert lists.counts(entries) == {30_000: 2, 30_001: 1, 39_999: 1}


@pytest.mark.parametrize("wrong", [-1, 10_000, 1 << 30, -(1 << 31), 65_536])
def test_a_damaged_partition_id_belongs_to_no_partition(wrong: int) -> None:
    lists = PartitionIndex("partition_id")
    entries = entries_of([0, wrong, 1, wrong])
    for partition in range(10):
        found = lists.lookup(entries, partition, 0, None).tolist()
        assert found == {0: [0], 1: [2]}.get(partition, [])


def test_the_lists_of_a_segment_in_one_are_those_of_its_steps() -> None:
    generator = np.random.default_rng(1)
    partitions = generator.integers(0, 50, 3000).tolist()
    entries = entries_of(partitions)
    stepwise = PartitionIndex("partition_id")
    for end in range(0, 3001, 7):
        stepwise.extend(entries[:end])
        stepwise.check_invariants(entries)
    for key in range(50):
        found = stepwise.lookup(entries, key, 0, None)
        assert found.tolist() == [n for n, place in enumerate(partitions) if place == key]
    assert len(stepwise.extend(entries)) <= 12  # runs of similar size are merged


def test_an_empty_segment_has_no_lists() -> None:
    lists = PartitionIndex("partition_id")
    empty = entries_of([])
    assert lists.lookup(empty, 0, 0, None).tolist() == []
    assert lists.counts(empty) == {}
    lists.check_invariants(empty)


def test_readers_may_extend_at_the_same_time() -> None:
    generator = np.random.default_rng(2)
    partitions = generator.integers(0, 8, 2000)
    entries = entries_of(partitions.tolist())
    lists = PartitionIndex("partition_id")
    ends = generator.integers(0, 2001, 200).tolist()

    def look(end: int) -> bool:
        found = lists.lookup(entries[:end], end % 8, 0, None)
        return found.tolist() == np.flatnonzero(partitions[:end] == end % 8).tolist()

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(look, ends))
    lists.check_invariants(entries)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"first": 1}, "a gap between runs"),
        ({"ordinals": np.array([0, 3, 1], np.int32)}, "an entry is missing"),
        ({"keys": np.array([1, 0], np.uint16)}, "keys do not ascend"),
        ({"starts": np.array([0, 4], np.int32)}, "a key without a place"),
        ({"starts": np.array([0, 2, 3], np.int32)}, "ordinals of no key"),
        ({"starts": np.array([0, 1, 4], np.int32)}, "another key's entry"),
        ({"ordinals": np.array([3, 0, 1, 2], np.int32)}, "do not ascend"),
    ],
)
def test_lists_that_contradict_themselves_are_found(
    changes: dict[str, object], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = entries_of([0, 1, 1, 0])
    lists = PartitionIndex("partition_id")
    [run] = lists.extend(entries)
    lists.check_invariants(entries)
    monkeypatch.setattr(lists, "_runs", (run._replace(**changes),))  # type: ignore[arg-type]
    with pytest.raises(AssertionError, match=message):
        lists.check_invariants(entries)
    monkeypatch.setattr(lists, "_runs", (run,))
    monkeypatch.setattr(lists, "_last", b"")
    with pytest.raises(AssertionError, match="the last entry is another one"):
        lists.check_invariants(entries)
