"""The write buffer without files: room, granted memory, two buffers, a lent write position."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import pytest

from tests.support.tube import columns_of, make_row, make_rows
from tubestore.clock import ManualClock
from tubestore.core.memory_pool import MemoryPool
from tubestore.journal.pending_batches import PendingBatches
from tubestore.options import StoreOptions
from tubestore.record.records import ENTRY_SIZE, HEADER_SIZE, Row, encode_columns, pack_header
from tubestore.shard.statistics import ShardCounters
from tubestore.shard.write_buffer import WriteBuffer

ROOM = 1 << 20


class Checked:
    """A write buffer with its pool and a journal; `step` checks the invariants behind a call."""

    def __init__(self, bound_bytes: int = ROOM, **options: int) -> None:
        self.pool = MemoryPool(bound_bytes)
        self.clock = ManualClock()
        self.pending = PendingBatches(self.pool, ROOM)
        self.buffer = WriteBuffer(
            280,
            1000,
            options=StoreOptions(**options),
            clock=self.clock,
            pool=self.pool,
            counters=ShardCounters(),
        )
        #: Where the files end: what a flush has written.
        self.written = self.buffer.start

    def step(self, call: Callable[..., Any], *given: object) -> Any:
        answer = call(*given)
        self.buffer.check_invariants()
        return answer

    def append(self, row: Row) -> bool:
        """Append as a shard does; False without room."""
        header, buffer = pack_header(*row), self.buffer
        if self.step(buffer.add, header, row.payload) >= 0:
            return True
        if not self.step(buffer.fits, HEADER_SIZE + len(row.payload), 1):
            return False
        self.step(buffer.open_room)
        self.step(buffer.main.add, header, row.payload)
        return True

    def append_batch(self, rows: list[Row]) -> bool:
        batch = encode_columns(columns_of(rows))
        if not self.step(self.buffer.fits, len(batch.data), len(batch)):
            return False
        self.step(self.buffer.open_room).add_batch(batch)
        self.buffer.check_invariants()
        return True

    def flush(self) -> None:
        full = self.step(self.buffer.begin_flush)
        self.written = full.index_end, full.data_end
        self.step(self.buffer.end_flush)

    def lend(self, generation: int = 1) -> bool:
        return self.step(self.buffer.lend, self.pending, generation, self.written[1])

    def journal(self, rows: list[Row]) -> None:
        """Place messages behind the lent write position."""
        batch = encode_columns(columns_of(rows))
        assert self.pending.makes_room(len(batch.data))
        index = np.empty(len(batch), np.int64)
        numbers = np.array([self.buffer.number])
        assert self.pending.add(batch, numbers, np.zeros(1, np.int64), index).all()
        self.buffer.check_invariants()

    def payloads(self) -> list[bytes]:
        """Return the payloads of the messages in memory, by their index entries."""
        found, (place, data_start) = [], self.buffer.start
        for placed in self.step(self.buffer.placed):
            assert (placed.index_start, placed.data_start) == (place, data_start)
            data = placed.batch.data.tobytes()
            for entry in placed.batch.entries:
                start = int(entry["data_offset"]) - data_start
                found.append(data[start + HEADER_SIZE : start + int(entry["data_size"])])
            place, data_start = placed.index_end, data_start + len(data)
        return found


def test_no_message_enters_without_a_look_at_the_room() -> None:
    checked = Checked()
    row = make_row(b"x")
    assert checked.buffer.add(pack_header(*row), row.payload) == -1
    checked.buffer.fits(HEADER_SIZE + 1, 1)
    checked.buffer.open_room()
    assert checked.buffer.add(pack_header(*row), row.payload) == 280
    assert checked.buffer.add(pack_header(*row), row.payload) == 280 + ENTRY_SIZE


@pytest.mark.parametrize(
    ("given", "fitting"),
    [
        ({"mem_store_size_bytes": 480}, 8),
        ({"mem_store_messages": 8}, 8),
        ({"bound_bytes": 4096}, 68),  # the smallest step that is taken from the pool
    ],
)
def test_the_room_ends_at_the_size_at_the_count_and_at_the_granted_memory(
    given: dict[str, int], fitting: int
) -> None:
    checked = Checked(**given)
    row = make_row(b"12345678"[: 60 - HEADER_SIZE])
    taken = 0
    while checked.append(row):
        taken += 1
    assert (taken, checked.buffer.dirty_bytes) == (fitting, 60 * fitting)


def test_an_empty_buffer_takes_a_message_of_any_size() -> None:
    checked = Checked(mem_store_size_bytes=100)
    assert checked.append(make_row(b"x" * 5000))
    assert not checked.append(make_row(b"y"))


def test_memory_of_a_written_buffer_goes_back_to_the_pool() -> None:
    checked = Checked()
    checked.append(make_row(b"x" * 200_000))
    assert checked.pool.used >= 200_000
    full = checked.step(checked.buffer.begin_flush)
    assert checked.pool.used >= 200_000
    checked.append(make_row(b"y"))
    checked.step(checked.buffer.end_flush)
    assert checked.pool.used == 4096  # one step for the message that came meanwhile
    assert full.count == 1
    checked.step(checked.buffer.release)
    assert checked.pool.used == 0


def test_a_flush_that_failed_is_tried_again_with_the_same_buffer() -> None:
    checked = Checked()
    checked.append(make_row(b"1"))
    first = checked.step(checked.buffer.begin_flush)
    checked.append(make_row(b"2"))
    assert not checked.buffer.can_swap
    assert checked.step(checked.buffer.begin_flush) is first
    assert checked.payloads() == [b"1", b"2"]
    checked.step(checked.buffer.end_flush)
    assert checked.payloads() == [b"2"]


def test_one_message_is_flushed_by_itself_only_between_empty_buffers() -> None:
    checked, row = Checked(), make_row(b"1")
    one = checked.step(checked.buffer.begin_flush_of, pack_header(*row), b"1")
    assert one is not None
    assert (one.count, checked.payloads()) == (1, [b"1"])
    assert checked.step(checked.buffer.begin_flush_of, pack_header(*row), b"1") is None
    checked.clock.advance(5000)
    checked.buffer.flush_failed()
    assert checked.buffer.dirty_since == checked.clock.monotonic()
    checked.step(checked.buffer.end_flush)
    checked.append(row)
    assert checked.step(checked.buffer.begin_flush_of, pack_header(*row), b"1") is None


def test_the_first_message_says_since_when_memory_is_dirty() -> None:
    checked = Checked()
    checked.clock.advance(1000)
    checked.append(make_row(b"1"))
    first = checked.clock.monotonic()
    checked.clock.advance(1000)
    checked.append(make_row(b"2"))
    assert checked.buffer.dirty_since == first
    checked.buffer.begin_flush()
    checked.append(make_row(b"3"))
    assert checked.buffer.dirty_since == first
    checked.buffer.end_flush()
    assert checked.buffer.dirty_since == checked.clock.monotonic()


def test_nothing_enters_a_held_shard() -> None:
    checked = Checked()
    checked.append(make_row(b"1"))
    checked.buffer.close_room()
    checked.buffer.held = True
    assert not checked.append(make_row(b"2"))
    assert not checked.lend()
    checked.buffer.held = False
    assert checked.append(make_row(b"2"))


# -- the lent write position -------------------------------------------------------------------

USES: dict[str, Callable[[WriteBuffer], object]] = {
    "main": lambda buffer: buffer.main,
    "fits": lambda buffer: buffer.fits(1, 1),
    "open_room": WriteBuffer.open_room,
    "close_room": WriteBuffer.close_room,
    "can_swap": lambda buffer: buffer.can_swap,
    "swap": WriteBuffer.swap,
    "begin_flush": WriteBuffer.begin_flush,
    "begin_flush_of": lambda buffer: buffer.begin_flush_of(pack_header(*make_row(b"x")), b"x"),
    "placed": WriteBuffer.placed,
    "leave_journal": WriteBuffer.leave_journal,
}


@pytest.mark.parametrize("use", USES)
def test_each_use_of_the_write_position_brings_lent_messages_back(use: str) -> None:
    checked = Checked()
    assert checked.lend()
    checked.journal(make_rows(3))
    row = make_row(b"x")
    assert checked.buffer.add(pack_header(*row), row.payload) == -1
    dirty = checked.buffer.dirty_bytes
    assert dirty > 0
    checked.step(USES[use], checked.buffer)
    assert not checked.pending.lent(np.array([checked.buffer.number]))[0]
    assert checked.payloads() == [row.payload for row in make_rows(3)]
    assert checked.buffer.dirty_bytes == dirty


def test_messages_that_the_journal_gathered_are_taken_as_they_are() -> None:
    checked = Checked()
    checked.lend()
    checked.journal(make_rows(3))
    [(_, parts)] = checked.pending.gather([checked.buffer.number])
    checked.step(checked.buffer.bring_back, parts)
    checked.step(checked.buffer.bring_back, parts)  # it is there already
    assert checked.payloads() == [row.payload for row in make_rows(3)]


def test_a_forked_child_forgets_lent_messages() -> None:
    checked = Checked()
    checked.lend()
    checked.journal(make_rows(3))
    checked.buffer.abandon()
    assert checked.buffer.main.count == 0


def test_the_position_stays_behind_messages_that_are_in_no_file_and_no_journal() -> None:
    checked = Checked()
    checked.append(make_row(b"1"))
    assert not checked.lend()
    checked.flush()
    assert checked.lend()
    checked.journal([make_row(b"2")])
    checked.buffer.close_room()
    assert checked.lend()  # the journal has what is in memory
    checked.buffer.close_room()
    assert not checked.lend(generation=2)  # another generation has not
    checked.append(make_row(b"3"))
    assert not checked.lend()


def test_the_position_stays_after_a_frame_that_was_not_written() -> None:
    checked = Checked()
    checked.lend()
    checked.journal([make_row(b"1")])
    checked.step(checked.buffer.leave_journal)
    assert not checked.lend()
    checked.flush()
    assert checked.lend()


def test_the_position_stays_in_a_barred_generation() -> None:
    checked = Checked()
    checked.buffer.bar_generation(1)
    assert not checked.lend(generation=1)
    assert checked.lend(generation=2)


def test_the_position_stays_while_main_is_full() -> None:
    for given in ({"mem_store_size_bytes": 100}, {"mem_store_messages": 2}):
        checked = Checked(**given)
        checked.lend()
        checked.journal([make_row(b"x" * 50), make_row(b"x" * 50)])
        checked.buffer.close_room()
        assert not checked.lend()


def test_what_is_journalled_ends_where_the_shard_was_cut() -> None:
    checked = Checked()
    checked.lend()
    checked.journal([make_row(b"1")])
    checked.flush()
    journal_from = checked.buffer.journal_from
    checked.step(checked.buffer.restart, 280, 1000)
    checked.append(make_row(b"2"))  # as long as the message that was cut
    checked.flush()
    assert checked.lend()
    assert checked.buffer.journal_from > journal_from  # the message between is in no frame


def test_a_restart_refuses_to_drop_messages() -> None:
    checked = Checked()
    checked.append(make_row(b"1"))
    with pytest.raises(AssertionError, match="in memory"):
        checked.buffer.restart(280, 1000)


# -- everything together -----------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(40))
def test_buffers_agree_with_a_list_after_every_step(seed: int) -> None:
    random = Random(seed)
    checked = Checked(bound_bytes=40_000, mem_store_size_bytes=2000, mem_store_messages=12)
    buffer, number = checked.buffer, 0
    in_memory: list[bytes] = []
    for _ in range(120):
        rows = make_rows(random.randrange(1, 4), start=number)
        payloads = [row.payload for row in rows]
        step = random.randrange(8)
        taken = False
        if step == 0:
            taken = checked.append_batch(rows)
        elif step in {1, 2}:
            rows, payloads = rows[:1], payloads[:1]
            taken = checked.append(rows[0])
        elif step in {3, 4}:
            taken = checked.lend(generation=1 + number // 50)
            if taken:
                checked.journal(rows)
        elif step == 5:
            assert sorted(checked.payloads()) == sorted(in_memory)
            assert checked.payloads() == in_memory
        elif step == 6 and (buffer.is_flushing or buffer.can_swap):
            full = checked.step(buffer.begin_flush)
            if random.random() < 0.7:  # else it failed, and stays
                checked.written = full.index_end, full.data_end
                checked.step(buffer.end_flush)
                del in_memory[: full.count]
        elif step == 7 and not in_memory:
            place = buffer.main.index_end + 28 * 10, buffer.main.data_end + 1000
            checked.step(buffer.restart, *place)
            checked.written = place
        if taken:
            number += len(payloads)
            in_memory += payloads
    assert checked.payloads() == in_memory
    while buffer.is_flushing or buffer.can_swap:
        checked.flush()
    checked.step(buffer.release)
    checked.pending.release()
    assert checked.pool.used == 0


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("granted", -1, "more memory"),
        ("_room_end", 1 << 40, "half open"),
        ("_room_count", 3, "half closed"),
        ("_lent", True, "lent to no journal"),
        ("_journal_to", 5000, "not taken"),
    ],
)
def test_a_field_that_contradicts_the_others_is_found(
    field: str, value: object, message: str
) -> None:
    checked = Checked()
    checked.append(make_row(b"1"))
    checked.buffer.close_room()
    checked.buffer.check_invariants()
    setattr(checked.buffer, field, value)
    with pytest.raises(AssertionError, match=message):
        checked.buffer.check_invariants()


def test_a_gap_between_the_buffers_is_found() -> None:
    checked = Checked()
    checked.append(make_row(b"1"))
    checked.buffer.swap()
    checked.buffer.main.index_start += ENTRY_SIZE
    with pytest.raises(AssertionError, match="a gap between the buffers"):
        checked.buffer.check_invariants()


def test_a_message_that_was_not_counted_is_found() -> None:
    checked = Checked()
    checked.append(make_row(b"1"))
    checked.buffer.main.parts.append(b"2")
    with pytest.raises(AssertionError, match="without messages"):
        checked.buffer.check_invariants()
