"""Sparse batches wait for more, dense ones do not, and the order stays."""

from __future__ import annotations

import random

import numpy as np
import pytest

from rocketcompat.dispatch import gatherer
from rocketcompat.dispatch.gatherer import Gatherer
from rocketcompat.messages import DispatchBatch

NONE = np.empty(0, np.int64)


def batch(
    start: int, rows: int, queues: int, damaged: tuple[int, int] | None = None
) -> DispatchBatch:
    """Return a batch of records of one byte; a record is in queue "its number modulo queues"."""
    places = np.arange(start, start + rows)
    keys = [("T", number) for number in range(queues)]
    codes = (np.arange(rows) % queues).astype(np.int32)
    return DispatchBatch(
        start=start, end=start + rows, physical_offsets=places, sizes=np.ones(rows, np.int32),
        queue_keys=keys, queue_codes=codes, queue_offsets=places, tags_codes=places,
        store_timestamps=places, sys_flags=np.zeros(rows, np.int32), key_rows=NONE,
        key_hashes=NONE.astype(np.int32), records=None, copy_rows=NONE,
        copy_codes=NONE.astype(np.int32), copy_offsets=NONE, damaged=damaged,
    )  # fmt: skip


def made(*starts: int, passes_all: bool = False) -> Gatherer:
    return Gatherer(starts, passes_all=passes_all)


def spans(batches: list[DispatchBatch]) -> list[tuple[int, int]]:
    return [(one.start, one.end) for one in batches]


def test_a_dense_batch_passes_at_once_behind_what_is_held() -> None:
    held = made()
    assert held.take(batch(0, 10, 10)) == []
    assert len(held) == 1
    assert spans(held.take(batch(10, 32, 2))) == [(0, 10), (10, 42)]
    assert len(held) == 0


def test_sixteen_records_a_queue_are_dense() -> None:
    assert made().take(batch(0, 31, 2)) == []
    assert spans(made().take(batch(0, 32, 2))) == [(0, 32)]


def test_sparse_batches_come_out_as_one() -> None:
    held = made()
    assert [held.take(batch(at, 5, 5)) for at in (0, 5, 10)] == [[], [], []]
    (one,) = held.release()
    assert spans([one]) == [(0, 15)]
    assert one.physical_offsets.tolist() == list(range(15))
    assert held.release() == []


def test_nothing_is_held_for_a_follower_that_needs_the_records() -> None:
    assert spans(made(passes_all=True).take(batch(0, 1, 1))) == [(0, 1)]


@pytest.mark.parametrize("limit", ["_ROWS_MAX", "_BYTES_MAX"])
def test_enough_records_or_bytes_come_out(monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    monkeypatch.setattr(gatherer, limit, 10)
    held = made()
    assert held.take(batch(0, 9, 9)) == []
    assert spans(held.take(batch(9, 1, 1))) == [(0, 10)]


def test_no_batch_spans_the_beginning_of_a_follower() -> None:
    held = made(0, 5)
    held.take(batch(0, 5, 5))
    assert spans(held.take(batch(5, 5, 5))) == [(0, 5)]
    assert spans(held.release()) == [(5, 10)]


def test_a_batch_has_one_damaged_region_before_it() -> None:
    held = made()
    held.take(batch(0, 5, 5))
    ready = held.take(batch(7, 5, 5, damaged=(5, 2)))
    assert [(one.end, one.damaged) for one in (*ready, *held.release())] == [
        (5, None), (12, (5, 2))
    ]  # fmt: skip


def test_every_record_comes_out_once_and_in_order() -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chosen = random.Random(seed)
    starts = [0, *sorted(chosen.sample(range(1, 500), 3))]
    held = Gatherer(starts, passes_all=False)
    end, damaged, ready = 0, None, []
    for _ in range(60):
        stops = [start for start in starts if start > end]
        rows = min(chosen.choice((1, 3, 40)), min(stops, default=1 << 30) - end)
        if chosen.random() < 0.1:
            damaged = (end, 1)
        ready += held.take(batch(end, rows, chosen.choice((1, min(3, rows))), damaged))
        end += rows
        if chosen.random() < 0.1:  # a rest is over
            ready += held.release()
    ready += held.release()
    assert np.concatenate([one.physical_offsets for one in ready]).tolist() == list(range(end))
    for one in ready:
        assert not any(one.start < start < one.end for start in starts)
