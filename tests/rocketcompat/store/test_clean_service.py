"""The cleaner: when it runs, what it deletes, when it refuses messages."""

from __future__ import annotations

import pytest

import rocketcompat
from rocketcompat import Message, MessageStoreConfig
from rocketcompat.store.clean_service import CleanService
from rocketcompat.store.default_message_store import DefaultMessageStore
from rocketcompat.store.service_thread import ServiceThread
from tests.support.rocket.inside import (
    opened_of,
)
from tests.support.rocket.store.background import Rounds, WatchedVfs, running
from tests.support.rocket.store.background import vfs as vfs
from tests.support.rocket.store.cleaned import CONFIG, HOUR, Disk
from tests.support.rocket.store.cleaned import disk as disk
from tests.support.rocket.store.cleaned import filled as filled
from tubestore.clock import ManualClock
from tubestore.errors import DiskFull
from tubestore.testing import MemoryVfs

AN_HOUR = 3_600_000

SMALL = {"mapped_file_size_commit_log": 4096, "mapped_file_size_consume_queue": 200,
         "delete_when": ";".join(f"{hour:02d}" for hour in range(24))}  # fmt: skip


@pytest.mark.parametrize("layouts", [["consume_queue", "index"], ["consume_queue", "tube"]])
def test_a_store_without_marks_is_cleaned_in_the_first_round_as_announced(
    memory_vfs: MemoryVfs, clock: ManualClock, layouts: list[str]
) -> None:
    how = {"layouts": layouts, "vfs": memory_vfs, "clock": clock, "background": False}
    with rocketcompat.open("/s", "w", CONFIG, **how) as store:
        for number in range(100):
            store.put_message(Message("T", b"x" * 80, keys=f"k{number}"))
    memory_vfs.remove("/s/.tubestore/progress.json")  # as a broker leaves it
    clock.advance(100 * HOUR)
    with rocketcompat.open("/s", "w", CONFIG, **how) as store:
        opened_of(store).cleaner._disk_used = lambda path: 50
        announced = store.clean(dry_run=True)
        assert [verdict.delete for verdict in announced] == [True] * 4 + [False]
        assert store.clean() == announced
        assert store.min_physical_offset == 4 * 4096
        assert store.max_offset_in_queue("T", 0) == 100


def test_by_hand_the_next_twenty_rounds_delete_at_any_hour(
    filled: tuple[DefaultMessageStore, CleanService], clock: ManualClock
) -> None:
    store, cleaner = filled
    store.execute_delete_files_manually()
    for _ in range(19):
        assert not any(verdict.delete for verdict in cleaner.run())
    clock.advance(100 * HOUR)
    assert sum(verdict.delete for verdict in cleaner.run()) == 4
    clock.advance(100 * HOUR)
    assert cleaner.explain()[0].reason == "the last file is never deleted"


def test_above_the_warning_level_messages_are_refused_until_there_is_room_again(
    filled: tuple[DefaultMessageStore, CleanService], disk: Disk
) -> None:
    store, cleaner = filled
    disk.percent = 91
    cleaner.run()
    with pytest.raises(DiskFull, match="91 % used, and above 90 % none is taken"):
        store.put_message(Message("T"))
    with pytest.raises(DiskFull):
        store.put_columns({"topic": ["T"]})
    assert store.get_message("T", 0, 80).messages
    disk.percent = 90
    cleaner.run()
    assert store.put_message(Message("T")).queue_offset == 90


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the cleaner's first round come at once; it comes after a minute."""
    monkeypatch.setattr("rocketcompat.store.opening.FIRST_RUN_SECONDS", 0.0)


@pytest.mark.usefixtures("soon")
def test_the_clean_thread_deletes_expired_files_of_log_queues_and_index(
    vfs: WatchedVfs, clock: ManualClock
) -> None:  # CLN-01
    with running(vfs, clock, max_index_num=12, **SMALL) as store:
        cleaner = Rounds(opened_of(store).cleaner)
        cleaner.wait()
        for number in range(60):
            store.put_message(Message("T", b"x" * 80, keys=f"k{number}"))
        store.flush()
        cleaner.wait()
        assert store.min_physical_offset == 0
        for _ in range(2):  # a round each interval, not one
            before = store.min_physical_offset
            clock.advance(73 * AN_HOUR)
            cleaner.wait()
            assert store.min_physical_offset > before
            for number in range(60):
                store.put_message(Message("T", b"x" * 80, keys=f"k{number}"))
            store.flush()
        first = store.look_message(store.min_physical_offset)
        assert store.min_offset_in_queue("T", 0) == first.queue_offset
        assert all(opened_of(store).cleaner.deleted.values())
        removed = {path.split("/")[2] for path in vfs.paths("remove")}
        assert removed >= {"commitlog", "consumequeue", "index"}


def test_the_clean_thread_begins_after_a_minute_and_works_every_ten_seconds(
    vfs: WatchedVfs, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:  # CLN-01
    started: dict[str, float] = {}

    def start(service: ServiceThread, first: float = 0.0) -> None:
        started[service.name] = first

    monkeypatch.setattr(ServiceThread, "start", start)
    default = MessageStoreConfig().clean_resource_interval
    with running(vfs, clock, clean_resource_interval=default) as store:
        assert started["CleanService"] == 60.0
        assert opened_of(store).cleaner.work() == 10.0


@pytest.mark.usefixtures("soon")
def test_the_clean_thread_refuses_messages_on_a_full_disk_and_takes_them_again(
    vfs: WatchedVfs, clock: ManualClock
) -> None:  # CLN-06
    used = [50]
    with running(vfs, clock) as store:
        cleaner = opened_of(store).cleaner
        cleaner._disk_used = lambda path: used[0]
        rounds = Rounds(cleaner)
        used[0] = 91
        rounds.wait()
        with pytest.raises(OSError, match="91 % used"):
            store.put_message(Message("T"))
        used[0] = 50
        rounds.wait()
        assert store.put_message(Message("T")).queue_offset == 0
