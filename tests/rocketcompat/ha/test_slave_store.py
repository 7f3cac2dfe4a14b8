"""A slave's store takes the master's bytes and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import rocketcompat
from rocketcompat import BatchItem, Message, MessageBatch
from rocketcompat.commitlog.raw import OutOfPlace
from rocketcompat.ha.slave_store import SlaveRoot, SlaveStore
from rocketcompat.messages import PutStatus
from rocketcompat.store.put_status import put_status_of
from tests.support.rocket.inside import log_of
from tests.support.rocket.store.slaves import CONFIG
from tests.support.rocket.store.slaves import root as root
from tests.support.rocket.store.slaves import vfs as vfs
from tubestore.clock import ManualClock
from tubestore.errors import NotAStore, ReadOnlyStore
from tubestore.testing import MemoryVfs, crash_states


@pytest.fixture
def store(root: SlaveRoot) -> Iterator[SlaveStore]:
    with root.open("m:10912", background=False) as store:
        yield store


def data_of(vfs: MemoryVfs, clock: ManualClock, count: int, **fields: Any) -> bytes:
    with rocketcompat.open("/m", "w", CONFIG, vfs=vfs, clock=clock, background=False) as master:
        for number in range(count):
            master.put_message(Message("T", b"%03d" % number, **fields))
        log = log_of(master)
        data = b""
        while len(data) < log.max_offset:
            data += log.read_at(len(data), 1000)
        return data


PUTS: list[Callable[[SlaveStore], Any]] = [
    lambda store: store.put_message(Message("T")),
    lambda store: store.put_columns({"topic": ["T"], "body": [b""]}),
    lambda store: store.put_messages(MessageBatch("T", [BatchItem()])),
    lambda store: store.put_inner_batch(MessageBatch("T", [BatchItem()])),
    lambda store: store.send_back(store.look_message(0), "g"),
    lambda store: store.publish("job", []),
]


@pytest.mark.parametrize("put", range(len(PUTS)))
def test_every_put_is_refused_as_rocketmq_refuses_it(
    put: int, store: SlaveStore, vfs: MemoryVfs, clock: ManualClock
) -> None:
    data = data_of(vfs, clock, 3)
    store.append_raw(0, data)
    with pytest.raises(ReadOnlyStore, match="is a slave") as caught:
        PUTS[put](store)
    assert put_status_of(caught.value) is PutStatus.SERVICE_NOT_AVAILABLE
    assert store.max_physical_offset == len(data)


def test_bytes_are_taken_where_the_log_goes_on(
    store: SlaveStore, vfs: MemoryVfs, clock: ManualClock
) -> None:
    data = data_of(vfs, clock, 3)
    assert store.append_raw(0, data[:150]) == store.raw_end == len(data) // 3
    assert store.next_raw_offset == 150
    with pytest.raises(OutOfPlace):
        store.append_raw(151, data[151:])
    assert store.discard_raw() == len(data) // 3
    assert store.append_raw(len(data) // 3, data[len(data) // 3 :]) == len(data)
    store.wait_dispatched(len(data) - 1)
    assert [m.body for m in store.get_message("T", 0, 0)] == [b"000", b"001", b"002"]


def test_delayed_messages_are_the_masters_to_deliver(
    store: SlaveStore, vfs: MemoryVfs, clock: ManualClock
) -> None:
    data = data_of(vfs, clock, 2, delay_level=1)
    store.append_raw(0, data)
    clock.advance(10_000)
    assert store.deliver_due() == 0
    assert store.max_physical_offset == len(data)


def test_a_message_with_zeros_in_its_properties_survives_a_kill_of_the_slave(
    root: SlaveRoot, vfs: MemoryVfs, clock: ManualClock
) -> None:
    data = data_of(vfs, clock, 3, tags="abcdef")
    data = data.replace(b"abcdef", b"ab\0\0ef", 2)
    store = root.open("m:10912", background=False)
    store.append_raw(0, data)
    store._closed = True  # as a kill leaves it
    vfs.release_locks()
    with root.open("m:10912", background=False) as store:
        assert store.max_physical_offset == len(data)
        assert not store.problems
    assert root_gaps(vfs) == []


@pytest.mark.crash
def test_a_kill_in_the_middle_of_a_write_leaves_whole_records_of_the_master(
    root: SlaveRoot, vfs: MemoryVfs, clock: ManualClock
) -> None:
    data = data_of(vfs, clock, 3)  # each ends in an empty property string: zeros, as a hole has
    size = len(data) // 3
    for cut in range(2 * size + 1, 3 * size - 2):
        store = root.open("m:10912", begin=0 if cut == 2 * size + 1 else None, background=False)
        if store.raw_end == 0:
            store.append_raw(0, data[: 2 * size])
        last = log_of(store).queue.last
        assert last is not None
        last.append(data[2 * size : cut])
        store._closed = True  # as a kill leaves it
        vfs.release_locks()
        with rocketcompat.open("/s", "r", CONFIG, vfs=vfs, clock=clock) as reader:
            assert reader.max_physical_offset == 2 * size
        with root.open("m:10912", background=False) as store:
            assert store.max_physical_offset == 2 * size
            assert not store.problems


def size_of_first(data: bytes) -> int:
    return int.from_bytes(data[:4])


def after_a_power_cut(root: SlaveRoot, vfs: MemoryVfs, data: bytes, synced: int, lost: int) -> None:
    """Leave a slave with sectors lost at `lost`; everything below `synced` was synced."""
    with root.open("m:1", begin=0, background=False) as store:
        store.append_raw(0, data[:synced])
    store = root.open("m:1", background=False)
    for begin in range(synced, len(data), 1000):
        store.append_raw(begin, data[begin : begin + 1000])
    store._closed = True
    vfs.release_locks()
    vfs.reboot()
    file = vfs.open(f"/s/commitlog/{lost - lost % 1000:020}")
    file.pwrite(bytes(50), lost % 1000)
    file.close()


def test_a_slave_is_cut_at_what_a_power_cut_took_and_gets_it_again(
    root: SlaveRoot, vfs: MemoryVfs, clock: ManualClock
) -> None:
    data = data_of(vfs, clock, 40, tags="a")
    record = size_of_first(data)
    after_a_power_cut(root, vfs, data, 3 * record, 5 * record)
    with root.open("m:1", background=False) as store:
        assert store.raw_end == store.max_physical_offset == 5 * record
        (problem,) = store.problems
        assert "the master sends it again; kept in /s/.tubestore/quarantine/1" in str(problem)
        kept = vfs.read_file(f"/s/.tubestore/quarantine/1/commitlog/{0:020}@{5 * record}")
        assert kept[6 * record : 1000] == data[6 * record : 1000]
        later = [f"{start:020}" for start in range(1000, len(data), 1000)]
        assert {f"/s/.tubestore/quarantine/1/commitlog/{name}" for name in later} <= set(vfs.tree())
        for begin in range(5 * record, len(data), 700):
            store.append_raw(begin, data[begin : begin + 700])
        assert store.wait_dispatched(len(data) - 1)
        found = [body for batch in store.scan() for body in batch["body"].to_pylist()]
        assert found == [b"%03d" % number for number in range(40)]
        assert store.max_offset_in_queue("T", 0) == 40
    assert root_gaps(vfs) == []
    with root.open("m:1", background=False) as store:
        assert not store.problems


def test_damage_in_the_synced_part_of_a_slave_cuts_nothing(
    root: SlaveRoot, vfs: MemoryVfs, clock: ManualClock
) -> None:
    data = data_of(vfs, clock, 40)
    record = size_of_first(data)
    after_a_power_cut(root, vfs, data, 7 * record, 2 * record)
    with root.open("m:1", background=False) as store:
        assert store.raw_end == len(data)
        assert not store.problems
    assert not any("quarantine" in path for path in vfs.tree())


def test_a_promoted_slave_keeps_what_follows_the_damage_of_a_power_cut(
    root: SlaveRoot, vfs: MemoryVfs, clock: ManualClock
) -> None:
    data = data_of(vfs, clock, 40)
    record = size_of_first(data)
    after_a_power_cut(root, vfs, data, 3 * record, 5 * record)
    assert root.promote() == len(data)
    with rocketcompat.open("/s", "w", CONFIG, vfs=vfs, clock=clock, background=False) as store:
        assert [(gap.start, gap.end) for gap in log_of(store).gaps] == [(5 * record, 6 * record)]
        found = [body for batch in store.scan() for body in batch["body"].to_pylist()]
        assert found == [b"%03d" % number for number in range(40) if number != 5]


@pytest.mark.crash
def test_after_power_cuts_a_slave_becomes_equal_to_its_master_without_a_gap(
    root: SlaveRoot, vfs: MemoryVfs, clock: ManualClock
) -> None:
    data = data_of(vfs, clock, 16)
    with root.open("m:1", begin=0, background=False) as store:
        store.append_raw(0, data[: 5 * size_of_first(data)])
        begin = store.raw_end
    journal = vfs.record()
    store = root.open("m:1", background=False)
    for at in range(begin, len(data), 1300):
        store.append_raw(at, data[at : at + 1300])
        store.wait_dispatched(store.raw_end - 1)
    store._closed = True
    cuts = 0
    for state in crash_states(
        journal, seed=1, kinds=("power",), variants=range(4, 7), steps=lambda n: n % 31 == 0
    ):
        left = SlaveRoot.of("/s", CONFIG, state.vfs(), clock)
        with left.open("m:1", background=False) as store:
            assert store.raw_end >= begin, state
            cuts += store.raw_end < len(data)
            assert data.startswith(log_bytes(store)), state
            store.append_raw(store.next_raw_offset, data[store.next_raw_offset :])
            assert log_bytes(store) == data, state
            assert store.wait_dispatched(len(data) - 1)
            assert store.max_offset_in_queue("T", 0) == 16, state
            assert not log_of(store).gaps, state
    assert cuts


def log_bytes(store: SlaveStore) -> bytes:
    log, data = log_of(store), b""
    while len(data) < log.max_offset:
        data += log.read_at(len(data), 1000)
    return data


def root_gaps(vfs: MemoryVfs) -> list[Any]:
    from rocketcompat.inspect.directory import StoreDirectory

    return list(StoreDirectory("/s", {"mappedFileSizeCommitLog": 1000}, vfs).log.gaps)


def test_a_log_begins_where_the_master_begins_and_only_there(
    root: SlaveRoot, vfs: MemoryVfs, clock: ManualClock
) -> None:
    with pytest.raises(NotAStore, match="mappedFileSizeCommitLog"):
        root.open("m:1", begin=1500)
    with root.open("m:1", begin=3000, background=False) as store:
        assert (store.min_physical_offset, store.raw_end) == (3000, 3000)
    with root.open("m:1", begin=5000, background=False) as store:
        assert (store.min_physical_offset, store.raw_end) == (5000, 5000)
    assert [name for name, _, _ in vfs.entries("/s/commitlog")] == [f"{5000:020}"]


def test_a_log_with_data_does_not_begin_anew(
    root: SlaveRoot, vfs: MemoryVfs, clock: ManualClock
) -> None:
    data = data_of(vfs, clock, 2)
    with root.open("m:1", begin=0, background=False) as store:
        store.append_raw(0, data)
    with pytest.raises(NotAStore, match="its log has data"):
        root.open("m:1", begin=1000)
    with root.open("m:1", background=False) as store:
        assert store.raw_end == len(data)


def test_the_log_of_a_slave_is_taken_over_only_when_it_is_asked_for(
    vfs: MemoryVfs, clock: ManualClock
) -> None:
    data = data_of(vfs, clock, 2)
    root = SlaveRoot.of("/m", CONFIG, vfs, clock)
    with pytest.raises(NotAStore, match="--take-over"):
        root.open("m:1")
    with root.open("m:1", take_over=True, background=False) as store:
        assert store.raw_end == len(data)
