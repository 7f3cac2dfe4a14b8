"""The dispatcher: what it hands over to whom, when its thread wakes, and when it ends."""

from __future__ import annotations

import errno
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rocketcompat
from rocketcompat import Message
from rocketcompat.commitlog.commit_log import CommitLog
from rocketcompat.dispatch import dispatcher as dispatch
from rocketcompat.messages import DispatchBatch
from tests.support.rocket.files.dispatched import MANY, Recorder, put, put_columns
from tests.support.rocket.files.dispatched import log as log
from tests.support.rocket.files.dispatched import wide_log as wide_log
from tests.support.rocket.inside import (
    dispatcher_for,
    dispatcher_of,
    index_of,
    new_log,
    parts_of,
    queues_of,
    take_appended,
)
from tests.support.rocket.store.background import PATIENCE, WatchedVfs, running
from tests.support.rocket.store.background import vfs as vfs
from tubestore.clock import ManualClock, SystemClock
from tubestore.testing import MemoryVfs, crash_states


class ClearedLate(threading.Event):
    """An event that is cleared only when somebody has set it again: the worst moment there is."""

    def __init__(self) -> None:
        super().__init__()
        self._again = threading.Event()

    def set(self) -> None:
        super().set()
        self._again.set()

    def clear(self) -> None:
        self._again.wait()
        super().clear()


def test_a_close_while_the_thread_is_about_to_sleep_is_not_overslept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "_JOIN_SECONDS", 2.0)
    store = rocketcompat.open(tmp_path, mode="w", background=False)
    dispatcher_of(store)._wake = ClearedLate()
    dispatcher_of(store).start()
    thread = dispatcher_of(store)._thread
    assert thread is not None
    store.close()
    asleep = thread.is_alive()
    dispatcher_of(store)._wake.set()
    assert not asleep


def test_every_record_is_handed_over_once_and_in_order(log: CommitLog, clock: ManualClock) -> None:
    follower = Recorder("a")
    service = dispatcher_for(log, [follower], clock, position=0)
    places = put(log, 30)
    assert service.dispatch_pending() == 30
    places += put(log, 3)
    assert service.dispatch_pending() == 3
    assert service.dispatch_pending() == 0
    assert follower.offsets == places
    assert service.behind == 0
    starts = [batch.start for batch in follower.batches]
    assert starts[1:] == [batch.end for batch in follower.batches[:-1]]
    assert all(batch.end - batch.start <= 1000 for batch in follower.batches)


def test_without_being_told_the_chain_is_followed(log: CommitLog, clock: ManualClock) -> None:
    places = put(log, 30)
    take_appended(log)  # somebody else has taken them
    follower = Recorder("a")
    service = dispatcher_for(log, [follower], clock, position=0)
    places += put(log, 5)
    assert service.dispatch_pending() == 35
    assert follower.offsets == places


def test_a_follower_gets_nothing_from_before_its_beginning(
    log: CommitLog, clock: ManualClock
) -> None:
    places = put(log, 20)
    one, other = Recorder("one"), Recorder("other")
    service = dispatcher_for(log, [one, other], clock, position=0, starts=[places[0], places[13]])
    service.dispatch_pending()
    assert one.offsets == places
    assert other.offsets == places[13:]


def test_one_that_fails_does_not_stop_the_others(log: CommitLog, clock: ManualClock) -> None:
    places = put(log, 20)
    good, bad = Recorder("good"), Recorder("bad", fails=1000)
    service = dispatcher_for(log, [bad, good], clock, position=0)
    service.dispatch_pending()
    assert good.offsets == places
    assert bad.offsets == [place for place in places if place < 1000]
    assert list(service.failed) == ["bad"]
    assert "bad stopped at 1000" in str(service.problems[0])


def test_one_that_finds_no_room_gets_its_batch_again_and_all_wait_for_it(
    log: CommitLog, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    places = put(log, 20)
    good, small = Recorder("good"), Recorder("small", fails=1000, error=errno.ENOSPC)
    service = dispatcher_for(log, [small, good], clock, position=0)
    for _ in range(3):
        service.dispatch_pending()
        assert service.position == 1000
    assert service.full is not None
    assert good.offsets[-1] > small.offsets[-1]
    small.fails = None
    service.dispatch_pending()
    assert small.offsets == good.offsets == places
    assert (service.full, service.failed, service.behind) == (None, {}, 0)
    assert caplog.text.count("waits for room") == caplog.text.count("room again") == 1


def test_a_structure_that_stopped_is_behind_by_all_that_it_lacks(
    log: CommitLog, clock: ManualClock
) -> None:
    put(log, 20)
    bad = Recorder("bad", fails=1000)
    service = dispatcher_for(log, [bad, Recorder("good")], clock, position=0)
    service.dispatch_pending()
    assert service.position == log.max_offset
    assert service.ends == {"bad": 1000, "good": log.max_offset}
    assert service.behind == log.max_offset - 1000


class Watched(threading.Event):
    """An event that takes down how long it was waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[float | None] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.waits.append(timeout)
        return super().wait(0)


class Slow(Recorder):
    """A follower that takes its time."""

    clock: ManualClock
    milliseconds: int

    def put(self, batch: DispatchBatch) -> None:
        self.clock.advance(self.milliseconds)
        super().put(batch)


def slow(clock: ManualClock, milliseconds: int) -> Slow:
    follower = Slow("f")
    follower.clock, follower.milliseconds = clock, milliseconds
    return follower


@pytest.mark.parametrize(("count", "rest"), [(1, 30), (24, 30), (40, 50), (800, 100)])
def test_a_put_after_a_pause_is_handed_over_at_once_and_a_stream_in_few_batches(
    memory_vfs: MemoryVfs, clock: ManualClock, count: int, rest: int
) -> None:  # DSP-05
    """The dispatcher rests three times as long as few records took, up to ten times for many."""
    log = new_log(memory_vfs, "/log", MANY, clock)
    service = dispatcher_for(log, [slow(clock, 10)], clock, position=0)
    service._urgent = urgent = Watched()
    service._rest()
    assert urgent.waits == []
    put(log, count)
    service.dispatch_pending()
    service._rest()
    clock.advance(rest - 1)
    service._rest()
    clock.advance(1)
    service._rest()
    assert urgent.waits == pytest.approx([rest / 1000, 0.001], abs=1e-6)


@pytest.mark.parametrize("linger", [0, 20])
def test_the_longest_rest_of_the_dispatcher_is_an_option(
    memory_vfs: MemoryVfs, clock: ManualClock, linger: int
) -> None:
    log = new_log(memory_vfs, "/log", MANY.changed(dispatch_linger=linger), clock)
    service = dispatcher_for(log, [slow(clock, 10)], clock, position=0)
    service._urgent = urgent = Watched()
    put(log, 1)
    service.dispatch_pending()
    service._rest()
    assert urgent.waits == pytest.approx([0.02] if linger else [], abs=1e-6)


def test_the_thread_leaves_gathered_batches_to_the_puts_while_they_come(
    wide_log: CommitLog, clock: ManualClock
) -> None:
    service = dispatcher_for(wide_log, [slow(clock, 10)], clock, position=0)
    service._thread = threading.Thread()

    class Busy(Watched):
        """Two more batches come, each while the thread waits."""

        def wait(self, timeout: float | None = None) -> bool:
            if len(self.waits) < 2:
                put_columns(wide_log, 50, 40)
                service.help_with_columns()
            return super().wait(timeout)

    service._urgent = urgent = Busy()
    for _ in range(2):
        put_columns(wide_log, 50, 40)
        service.help_with_columns()
    service._rest()
    rest, quiet = 50 / 8 * 0.01, 0.02
    assert urgent.waits == pytest.approx([rest + quiet] * 3, abs=1e-6)


def test_readers_are_woken_when_their_message_is_there(log: CommitLog) -> None:
    service = dispatcher_for(log, [Recorder("a")], SystemClock(), position=0)
    service.start()
    try:
        for place in put(log, 5):
            service.wake()
            assert service.wait_dispatched(place, 30)
        assert not service.wait_dispatched(log.max_offset, 0.001)
    finally:
        service.shutdown()


def columns_of(batches: list[DispatchBatch]) -> list[tuple[Any, ...]]:
    """What followers are told, a row a record, in whatever batches it came."""
    return [
        (
            *(int(getattr(b, name)[row]) for name in (
                "physical_offsets", "sizes", "queue_offsets", "tags_codes", "store_timestamps",
                "sys_flags")),
            b.queue_keys[b.queue_codes[row]],
            b.key_hashes[b.key_rows == row].tolist(),
            [(b.queue_keys[b.copy_codes[copy]], int(b.copy_offsets[copy]))
             for copy in np.flatnonzero(b.copy_rows == row)],
        )
        for b in batches for row in range(len(b))
    ]  # fmt: skip


COPIES = "INNER_MULTI_DISPATCH\x01%LMQ%a,b\x02INNER_MULTI_QUEUE_OFFSET\x013,4\x02KEYS\x01k é"


@pytest.mark.parametrize(
    "columns",
    [
        {},
        {"sys_flag": [0, 4, 8, 12] * 60},
        {"keys": None, "tags": None, "properties": [COPIES] * 240},
        {"topic": ["SCHEDULE_TOPIC_XXXX", "U"] * 120, "keys": None, "tags": None,
         "properties": ["DELAY\x013\x02TAGS\x01t"] * 240},
    ],
    ids=["tags and keys", "transactions", "copies", "delayed"],
)  # fmt: skip
@pytest.mark.parametrize("queues", [2, 40], ids=["at once", "gathered"])
def test_columns_that_were_put_equal_those_of_the_log(
    wide_log: CommitLog, clock: ManualClock, columns: dict[str, Any], queues: int
) -> None:
    given = {n: [None] * 240 if column is None else column for n, column in columns.items()}
    told, read = Recorder("told"), Recorder("read")
    first = dispatcher_for(wide_log, [told], clock, position=0)
    for _ in range(3):  # rolls to the next file now and then: that batch is read
        put_columns(wide_log, 240, queues, **given)
        put(wide_log, 2)
        first.dispatch_pending()
    dispatcher_for(wide_log, [read], clock, position=0).dispatch_pending()
    assert first.behind == 0
    assert columns_of(told.batches) == columns_of(read.batches)
    assert len(columns_of(read.batches)) == 3 * 242


def test_batches_over_many_queues_are_gathered_while_the_dispatcher_rests(
    wide_log: CommitLog, clock: ManualClock
) -> None:
    follower = slow(clock, 100)
    service = dispatcher_for(wide_log, [follower], clock, position=0)
    service._thread = threading.Thread()  # one that never runs
    places = put_columns(wide_log, 50, 40)
    service.help_with_columns()
    assert follower.offsets == places
    for _ in range(3):
        places += put_columns(wide_log, 50, 40)
        service.help_with_columns()
        assert len(follower.batches) == 1
        assert service.behind
    assert service.dispatch_pending() == 150
    assert follower.offsets == places
    assert len(follower.batches) == 2


def test_a_gathered_batch_has_waited_long_enough_when_the_rest_is_over(
    wide_log: CommitLog, clock: ManualClock
) -> None:
    follower = slow(clock, 100)
    service = dispatcher_for(wide_log, [follower], clock, position=0)
    service._thread = threading.Thread()
    counts = []
    for pause in (0, 624, 1):  # 50 / 8 times as long as it took
        clock.advance(pause)
        put_columns(wide_log, 50, 40)
        service.help_with_columns()
        counts.append(len(follower.offsets))
    assert counts == [50, 50, 150]


@pytest.mark.parametrize("queues", [2, 40], ids=["dense", "sparse"])
def test_a_put_that_finds_much_waiting_reads_it_and_wakes_the_thread_for_what_is_left(
    memory_vfs: MemoryVfs, clock: ManualClock, queues: int
) -> None:
    log = new_log(memory_vfs, "/log", MANY.changed(dispatch_inline_bytes=8000), clock)
    follower = slow(clock, 100)
    service = dispatcher_for(log, [follower], clock, position=0)
    service._thread, service._sleeping = threading.Thread(), True
    put_columns(log, 50, 40)
    service.dispatch_pending()  # the rest begins
    for number in range(150):
        put(log, 1, queue_id=number % queues)
        service._sleeping = True
        service.wake_or_help(log.max_offset)
    is_dense = queues == 2
    assert (len(follower.offsets) > 50) is is_dense
    assert log.max_offset - service._source.position <= 8000
    assert service.behind == 0 or service._wake.is_set()


def test_single_puts_behind_gathered_batches_stay_behind_them(wide_log: CommitLog) -> None:
    clock = ManualClock()
    follower = slow(clock, 100)
    service = dispatcher_for(wide_log, [follower], clock, position=0)
    service._thread = threading.Thread()
    places = put(wide_log, 1)
    service.dispatch_pending()  # the rest begins
    places += put_columns(wide_log, 50, 40)
    service.help_with_columns()
    places += put(wide_log, 2)
    service.help_with_columns()
    assert service.dispatch_pending() == 52
    assert follower.offsets == places


def test_pieces_over_many_queues_are_gathered_but_not_over_a_beginning(
    memory_vfs: MemoryVfs, clock: ManualClock
) -> None:
    config = MANY.changed(mapped_file_size_commit_log=1 << 16, dispatch_batch_bytes_max=2000)
    log = new_log(memory_vfs, "/log", config, clock)
    log.queue.load()
    log.start_at(0, 0)
    places = put_columns(log, 200, 50)
    take_appended(log)
    one, other = Recorder("one"), Recorder("other")
    service = dispatcher_for(log, [one, other], clock, position=0, starts=[0, places[120]])
    assert service.dispatch_pending() == 200
    assert one.offsets == places
    assert other.offsets == places[120:]
    assert [batch.start for batch in one.batches] == [0, places[120]]


def test_gathered_pieces_know_of_the_damage_before_them(
    wide_log: CommitLog, clock: ManualClock
) -> None:
    places = put_columns(wide_log, 60, 50)
    take_appended(wide_log)
    wide_log.queue.files[0].write_at(places[20] + 4, b"\xff" * 4)
    follower = Recorder("a")
    service = dispatcher_for(wide_log, [follower], clock, position=0)
    service.dispatch_pending()
    assert follower.offsets == places[:20] + places[21:]
    assert [batch.damaged for batch in follower.batches] == [
        None, (places[20], places[21] - places[20])
    ]  # fmt: skip


def test_the_queues_have_a_message_before_the_index(
    memory_vfs: MemoryVfs, clock: ManualClock
) -> None:
    """DSP-03: a kill at any moment leaves no item of the index without its unit."""
    journal = memory_vfs.record()
    config = MANY.changed(
        max_hash_slot_num=4, max_index_num=100, mapped_file_size_consume_queue=200
    )
    with rocketcompat.open(
        "/s", "w", config, vfs=memory_vfs, clock=clock, background=False
    ) as store:
        for number in range(8):
            store.put_message(Message("T", keys=f"k{number}", queue_id=number % 2))
            if number % 3 == 0:
                dispatcher_of(store).dispatch_pending()
        dispatcher_of(store).dispatch_pending()
    seen = 0
    for state in crash_states(journal, seed=1, kinds=("kill",)):
        vfs = state.vfs(clock)
        units = pointed_to(vfs, "consumequeue/T/0", 0, 20)
        units |= pointed_to(vfs, "consumequeue/T/1", 0, 20)
        items = pointed_to(vfs, "index", 40 + 4 * 4 + 20 + 4, 20)
        assert items <= units, state
        seen = max(seen, len(items))
    assert seen == 7  # all but the first, which stands at 0, as an unused item does


def pointed_to(vfs: MemoryVfs, directory: str, start: int, step: int) -> set[bytes]:
    """Return the physical offsets that files name, as they stand there; records are no zeros."""
    found = set()
    for name, _, _ in vfs.entries(f"/s/{directory}") if vfs.exists(f"/s/{directory}") else []:
        raw = vfs.read_file(f"/s/{directory}/{name}").rstrip(b"\0") + bytes(step)
        found |= {raw[at : at + 8] for at in range(start, len(raw) - 7, step)}
    return found - {bytes(8)}


class Arrivals:
    """Waits until a structure has what was put; asks the dispatcher for nothing."""

    def __init__(self, follower: Any, threads: set[str] | None = None) -> None:
        self.threads = set() if threads is None else threads
        self._honest, self._count, self._changed = follower.put, 0, threading.Condition()
        follower.put = self._put_batch

    def _put_batch(self, batch: Any) -> None:
        self._honest(batch)
        with self._changed:
            self.threads.add(threading.current_thread().name)
            self._count += len(batch)
            self._changed.notify_all()

    def wait(self, count: int, seconds: float) -> bool:
        """Wait until so many rows have come; False if they have not in time."""
        with self._changed:
            return self._changed.wait_for(lambda: self._count >= count, seconds)


@pytest.mark.parametrize("structure", ["queues", "index"])
def test_a_put_is_readable_soon_without_a_waiter(
    vfs: WatchedVfs, clock: ManualClock, structure: str
) -> None:  # DSP-01, DSP-04
    with running(vfs, clock) as store:
        arrivals = Arrivals(getattr(parts_of(store), structure))
        soon = []
        for count in range(1, 11):  # a slow machine may miss the second some times, not always
            put = store.put_message(Message("T", keys="k"))
            soon.append(arrivals.wait(count, 1.0))
            assert soon[-1] or arrivals.wait(count, PATIENCE)
            if soon[-1]:
                break
        assert soon[-1]
        if structure == "queues":
            assert store.get_message("T", 0, put.queue_offset).messages
        else:
            assert store.query_message("T", "k").physical_offsets[-1] == put.physical_offset


def test_queues_and_index_are_built_in_the_dispatchers_thread(
    vfs: WatchedVfs, clock: ManualClock
) -> None:
    """DSP-01: a put does not do it."""
    threads: set[str] = set()
    with running(vfs, clock) as store:
        arrivals = [Arrivals(queues_of(store), threads), Arrivals(index_of(store), threads)]
        for _ in range(3):
            store.put_message(Message("T", keys="k"))
        assert all(arrived.wait(3, PATIENCE) for arrived in arrivals)
    assert threads == {"ReputMessageService"}
