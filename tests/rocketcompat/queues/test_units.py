"""Units of a queue: their bytes, and where they end after a close and after a crash."""

from __future__ import annotations

import random

import numpy as np
import pytest

from rocketcompat.commitlog.batch import batch_of_records
from rocketcompat.formats import (
    TRANSACTION_COMMIT,
    TRANSACTION_NOT,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
)
from rocketcompat.messages import MessageRecord
from rocketcompat.queues.units import plain_units, units_of
from rocketcompat.record.codec import pack
from rocketcompat.record.columns import decode_columns
from rocketcompat.record.properties import PROPERTY_MULTI_DISPATCH, PROPERTY_MULTI_OFFSET
from tests.support.rocket.queues import put, queue_of, reopened, table_of
from tubestore.testing.memory_vfs import MemoryVfs


def test_a_unit_has_the_bytes_of_the_real_class() -> None:
    assert plain_units([0], [0x89], [2598919]).tobytes().hex() == (
        "000000000000000000000089000000000027a807"
    )


@pytest.mark.parametrize("count", [0, 1, 6, 7, 8, 14, 21])
def test_the_end_of_a_closed_queue_is_found_without_a_hint(count: int) -> None:
    vfs = MemoryVfs()
    table = table_of(vfs)
    queue = table.find_or_create("T", 1)
    put(queue, 0, count + 1)
    table.close()
    assert reopened(vfs).max_offset == count + 1


def test_recovery_cuts_units_of_lost_records_and_zeroes_what_was_behind() -> None:
    vfs = MemoryVfs()
    put(queue_of(vfs), 0, 17)
    queue = reopened(vfs)
    assert queue.recover(1900) == 9
    assert queue.max_offset == 9
    assert [n for n, _, _ in vfs.entries("/store/consumequeue/T/1")] == [
        "00000000000000000000",
        "00000000000000000140",
    ]
    assert not any(vfs.read_file("/store/consumequeue/T/1/00000000000000000140")[40:])
    put(queue, 9, 3)
    assert reopened(vfs).recover(1 << 40) == 12


def test_stale_units_behind_the_end_do_not_come_back() -> None:
    """The real ones take them for good: their offsets fall, which ours must not."""
    vfs = MemoryVfs()
    queue = queue_of(vfs)
    put(queue, 0, 6)
    stale = plain_units([1150, 1250], [100, 100], [1, 1]).tobytes()
    file = vfs.open("/store/consumequeue/T/1/00000000000000000000")
    file.pwrite(plain_units([5000], [100], [1]).tobytes() + stale, 80)
    assert reopened(vfs).recover(1 << 40) == 5


def test_an_all_zero_last_file_holds_no_unit() -> None:
    """Upstream keeps unit 0 of it unseen: the phantom (0, 0, 0) of R2."""
    vfs = MemoryVfs()
    put(queue_of(vfs), 0, 7)
    vfs.open("/store/consumequeue/T/1/00000000000000000140", create=True).truncate(140)
    assert reopened(vfs).max_offset == 7
    assert reopened(vfs).recover(1 << 40) == 7


def test_recovery_that_keeps_nothing_leaves_an_empty_queue() -> None:
    vfs = MemoryVfs()
    put(queue_of(vfs), 10, 12)
    queue = reopened(vfs)
    assert queue.recover(0) == 0
    assert (queue.min_offset, queue.max_offset) == (0, 0)
    put(queue, 10, 1)
    assert (queue.min_offset, queue.max_offset) == (10, 11)


def test_recovery_can_be_repeated_and_gives_the_same() -> None:
    vfs = MemoryVfs()
    put(queue_of(vfs), 3, 17)
    assert [reopened(vfs).recover(2500) for _ in range(3)] == [15, 15, 15]


def test_a_torn_write_is_cut_at_its_first_missing_unit() -> None:
    vfs = MemoryVfs()
    put(queue_of(vfs), 0, 7)
    vfs.open("/store/consumequeue/T/1/00000000000000000000").pwrite(bytes(25), 50)
    assert reopened(vfs).recover(1 << 40) == 2


@pytest.mark.parametrize("of_batches", [False, True])
def test_the_units_of_a_batch_are_those_of_its_records_by_queue_in_their_order(
    of_batches: bool,
) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chosen = random.Random(seed)
    flags = (TRANSACTION_NOT, TRANSACTION_PREPARED, TRANSACTION_COMMIT, TRANSACTION_ROLLBACK)
    data, starts, expected = b"", [], list[tuple[tuple[str, int], int, int, int, int]]()
    for number in range(60):
        topic, queue_id = chosen.choice("abB"), chosen.randrange(2)
        copied = f"{PROPERTY_MULTI_DISPATCH}\x01%LMQ%x\x02{PROPERTY_MULTI_OFFSET}\x01{number}"
        text = copied if topic == "a" else ""
        sys_flag = chosen.choice(flags)
        raw = pack(MessageRecord(
            physical_offset=len(data), size=91 + number + len(topic) + len(text), version=1,
            topic=topic, queue_id=queue_id, queue_offset=number, flag=0, sys_flag=sys_flag,
            born_timestamp=0, store_timestamp=1000 + number, born_host_bytes=bytes(8),
            store_host_bytes=bytes(8), reconsume_times=0, prepared_transaction_offset=0,
            body_crc=0, properties_text=text, body=b"x" * number,
        ))  # fmt: skip
        starts.append(len(data))
        if sys_flag in (TRANSACTION_NOT, TRANSACTION_COMMIT):
            where = len(data), len(raw), 1000 + number
            if (topic == "B") == of_batches:
                expected.append(((topic, queue_id), number, *where))
            if text and not of_batches:
                expected.append((("%LMQ%x", 0), number, *where))
        data += raw
    records = decode_columns(data, np.array(starts), 0)
    batch = batch_of_records(records, 0, len(data), (1000,))
    found = units_of(batch, frozenset("B"), of_batches=of_batches)
    units = found.of_batches() if of_batches else found.plain()
    rows = [
        (key, int(found.offsets[at]), int(units["physical_offset"][at]), int(units["size"][at]),
         int(found.store_timestamps[at]))
        for key, start, end in found.runs() for at in range(start, end)
    ]  # fmt: skip
    assert len({key for key, _, _ in found.runs()}) == len(list(found.runs()))
    assert sorted(rows) == sorted(expected)
    for key, start, end in found.runs():
        assert rows[start:end] == [row for row in expected if row[0] == key]
    if of_batches:
        assert units["base_offset"].tolist() == found.offsets.tolist()
        assert units["batch_size"].tolist() == [1] * len(units)
