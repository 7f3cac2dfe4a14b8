"""The pool bounds the bytes that all buffers of a store hold together."""

from __future__ import annotations

from tubestore.core.memory_pool import MemoryPool


def test_a_pool_gives_up_to_its_bound_and_no_byte_more() -> None:
    pool = MemoryPool(100)
    assert pool.take(60)
    assert not pool.take(41)
    assert pool.used == 60, "what was refused does not count"
    assert pool.take(40)
    assert not pool.take(1)


def test_an_empty_pool_gives_any_size() -> None:
    pool = MemoryPool(100)
    assert pool.take(1000)
    assert not pool.take(1)
    pool.give_back(1000)
    assert pool.take(1000)


def test_bytes_that_are_held_already_count_above_the_bound() -> None:
    pool = MemoryPool(100)
    pool.add(150)
    assert pool.used == 150
    pool.give_back(60)
    assert not pool.take(11)
    assert pool.take(10)


def test_a_pool_is_relieved_by_the_callable_that_it_was_given() -> None:
    calls: list[int] = []
    MemoryPool(100, lambda: calls.append(1)).relieve()
    assert calls == [1]
    MemoryPool(100).relieve()
