"""Who places the parts of a job: the caller alone, or several threads."""

from __future__ import annotations

import threading

import pytest

from tubestore.placing import place_all


@pytest.mark.parametrize("threads", [None, 1, 4])
def test_a_small_job_is_placed_by_the_caller_alone(threads: int | None) -> None:
    placed = place_all(lambda part: (part, threading.get_ident()), range(9), 1000, threads)
    assert placed == [(part, threading.get_ident()) for part in range(9)]


def test_the_parts_of_a_large_one_are_placed_at_the_same_time() -> None:
    both = threading.Barrier(2, timeout=10)

    def place(part: int) -> int:
        both.wait()
        return part * 10

    assert place_all(place, range(2), 1 << 30, 2) == [0, 10]


def test_what_one_part_raises_the_caller_gets() -> None:
    def place(part: int) -> int:
        return 1 // part

    for size, threads in ((1, None), (1 << 30, 3)):
        with pytest.raises(ZeroDivisionError):
            place_all(place, range(3), size, threads)
