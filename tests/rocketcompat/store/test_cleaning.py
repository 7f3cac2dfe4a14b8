"""Which files are deleted when, what follows them, and when messages are refused."""

from __future__ import annotations

from datetime import datetime
from types import SimpleNamespace
from typing import Any

import pytest

import rocketcompat
from rocketcompat import Message, MessageStoreConfig
from rocketcompat.files.mapped_file import MappedFile
from rocketcompat.index.index_file import IndexFile
from rocketcompat.store.clean_service import CleanService
from rocketcompat.store.cleaning import DiskUse, disk_used_percent, occasion, plan
from rocketcompat.store.default_message_store import DefaultMessageStore
from tests.support.rocket.inside import dispatcher_of, index_of, parts_of
from tests.support.rocket.store.cleaned import CONFIG, HOUR, files
from tests.support.rocket.store.cleaned import disk as disk
from tests.support.rocket.store.cleaned import filled as filled
from tubestore.clock import ManualClock
from tubestore.errors import InvalidMessage, OffsetOutOfRange, ReadOnlyStore, StorageError
from tubestore.testing import MemoryVfs

CALM = DiskUse(50, 50)

# The rule is in local time, wherever the test runs.
FOUR, NOON = (int(datetime(2026, 11, 21, hour).timestamp() * 1000) for hour in (4, 12))  # noqa: DTZ001


def doomed(config: MessageStoreConfig, now: int, disk: DiskUse, *ages: float) -> list[int]:
    when = occasion(config, now, disk)
    verdicts = plan(files(now, *ages), config, now, when)
    return [place for place, verdict in enumerate(verdicts) if verdict.delete]


def test_expired_files_go_in_the_hour_and_at_no_other() -> None:
    config = MessageStoreConfig()
    assert doomed(config, FOUR - 60_000, CALM, 73, 71, 0) == []
    assert doomed(config, FOUR, CALM, 73, 71, 0) == [0]
    assert doomed(config, FOUR + HOUR - 1, CALM, 73, 71, 0) == [0]
    assert doomed(config, FOUR + HOUR, CALM, 73, 71, 0) == []


def test_several_hours_may_be_given() -> None:
    config = MessageStoreConfig(delete_when="04; 12")
    assert doomed(config, NOON, CALM, 73, 0) == doomed(config, FOUR, CALM, 73, 0) == [0]
    for wrong in ("24", "4,5", "noon"):
        with pytest.raises(InvalidMessage, match="delete_when"):
            MessageStoreConfig(delete_when=wrong)


@pytest.mark.parametrize("disk", [DiskUse(76, 0), DiskUse(0, 76), DiskUse(-1, 0)])
def test_expired_files_go_at_any_hour_when_a_disk_is_fuller_than_its_ratio(disk: DiskUse) -> None:
    assert doomed(MessageStoreConfig(), NOON, disk, 73, 71, 0) == [0]
    assert doomed(MessageStoreConfig(), NOON, DiskUse(75, 75), 73, 0) == []


def test_the_ratios_are_kept_within_their_bounds() -> None:
    config = MessageStoreConfig(
        disk_max_used_space_ratio=0,
        disk_space_warning_level_ratio=99,
        disk_space_clean_forcibly_ratio=1,
    )
    assert (config.space_ratio, config.warning_ratio, config.forcible_ratio) == (10, 90, 30)


def test_above_the_hard_limit_young_files_go_too_but_ten_a_round_and_never_the_last() -> None:
    config = MessageStoreConfig()
    assert doomed(config, NOON, DiskUse(86, 0), 1, 1, 0) == [0, 1]
    assert doomed(config, NOON, DiskUse(85, 0), 1, 1, 0) == []
    assert doomed(config, NOON, DiskUse(86, 0), *[1] * 20) == list(range(10))
    gentle = config.changed(clean_file_forcibly_enable=False)
    assert doomed(gentle, NOON, DiskUse(86, 0), 73, 1, 0) == [0]
    assert doomed(config, FOUR, DiskUse(99, 99), 1000) == []


def test_a_young_file_keeps_the_expired_ones_behind_it() -> None:
    now = FOUR
    when = occasion(MessageStoreConfig(), now, CALM)
    verdicts = plan(files(now, 1, 73, 0), MessageStoreConfig(), now, when)
    assert [verdict.reason for verdict in verdicts] == [
        "changed 1.0 h ago, kept for 72 h",
        "an older file stays",
        "the last file is never deleted",
    ]
    assert verdicts[0].due_ms == now + 71 * HOUR


def test_a_file_that_is_not_taken_in_everywhere_stays_whatever_the_disk() -> None:
    when = occasion(MessageStoreConfig(), NOON, DiskUse(95, 95))
    verdicts = plan(files(NOON, 80, 80, 80), MessageStoreConfig(), NOON, when, keep_from=1999)
    assert [verdict.delete for verdict in verdicts] == [True, False, False]
    assert "not everything in it is durably in" in verdicts[1].reason


def test_the_disk_of_a_path_is_asked_of_the_system() -> None:
    assert 0 <= disk_used_percent("/") <= 100
    assert disk_used_percent("/no/such/path") == -1


def test_a_file_system_without_blocks_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = SimpleNamespace(f_blocks=0, f_bfree=0, f_bavail=0)
    monkeypatch.setattr("rocketcompat.store.cleaning.os.statvfs", lambda path: facts)
    assert disk_used_percent("/proc") == 0


def test_queues_and_index_follow_the_log(
    filled: tuple[DefaultMessageStore, CleanService], clock: ManualClock, memory_vfs: MemoryVfs
) -> None:
    store, cleaner = filled
    ages = [verdict.modified_ms for verdict in cleaner.explain()]
    assert len(ages) == 5
    clock.advance(72 * HOUR + ages[1] - clock.now_ms())
    verdicts = store.clean()
    assert [verdict.delete for verdict in verdicts] == [True, True, False, False, False]
    start = store.min_physical_offset
    assert start == 2 * 4096
    first = store.look_message(start)
    assert store.min_offset_in_queue("T", 0) == first.queue_offset
    assert store.get_message("T", 0, 0).next_begin_offset == first.queue_offset
    assert store.get_message("T", 0, first.queue_offset).messages[0] == first
    names = [name for name, _, _ in memory_vfs.entries("/s/consumequeue/T/0")]
    assert int(names[0]) <= first.queue_offset * 20 < int(names[0]) + 200
    # A queue of which nothing is left keeps its last file, and the number of the next message.
    assert len(memory_vfs.entries("/s/consumequeue/old/0")) == 1
    assert store.min_offset_in_queue("old", 0) == store.max_offset_in_queue("old", 0) == 10
    assert store.query_message("old", "k1").messages == []
    assert len(store.query_message("T", "k99").messages) == 1
    assert cleaner.deleted["index"] > 0
    assert store.put_message(Message("old")).queue_offset == 10


def test_what_cannot_be_built_keeps_its_files_and_is_announced(
    filled: tuple[DefaultMessageStore, CleanService],
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store, _ = filled

    def fail(batch: object) -> None:
        raise OSError(28, "no space left")

    monkeypatch.setattr(index_of(store), "put", fail)
    for number in range(60):
        store.put_message(Message("T", b"x" * 80, keys=f"k{number}"))
    dispatcher_of(store).dispatch_pending()
    clock.advance(100 * HOUR)
    announced = store.clean(dry_run=True)
    assert [verdict.delete for verdict in announced] == [True] * 4 + [False] * 4
    assert "not everything in it is durably in" in announced[4].reason
    assert store.clean() == announced


def test_a_cleaned_store_opens_again_as_it_was(
    filled: tuple[DefaultMessageStore, CleanService], clock: ManualClock, memory_vfs: MemoryVfs
) -> None:
    store, _ = filled
    clock.advance(100 * HOUR)
    store.clean()
    span = store.min_physical_offset, store.max_physical_offset
    low = store.min_offset_in_queue("T", 0)
    store.close()
    with rocketcompat.open(
        "/s", "w", CONFIG, vfs=memory_vfs, clock=clock, background=False
    ) as again:
        assert (again.min_physical_offset, again.max_physical_offset) == span
        assert again.min_offset_in_queue("T", 0) == low
        assert not again.problems
        assert again.put_message(Message("T")).queue_offset == 90


def test_a_dry_run_changes_nothing(
    filled: tuple[DefaultMessageStore, CleanService], clock: ManualClock
) -> None:
    store, _ = filled
    clock.advance(100 * HOUR)
    assert [verdict.delete for verdict in store.clean(dry_run=True)] == [True] * 4 + [False]
    assert [verdict.delete for verdict in store.clean(dry_run=True, manual=False)] == [False] * 5
    assert store.min_physical_offset == 0


def test_a_reader_cleans_nothing(
    filled: tuple[DefaultMessageStore, CleanService], memory_vfs: MemoryVfs, clock: ManualClock
) -> None:
    with (
        rocketcompat.open("/s", "r", CONFIG, vfs=memory_vfs, clock=clock) as reader,
        pytest.raises(ReadOnlyStore),
    ):
        reader.clean()


@pytest.mark.parametrize("search", ["select", "candidates", "select_many"])
def test_a_search_whose_index_files_are_deleted_meanwhile_finds_what_is_kept(  # IDX-27
    filled: tuple[DefaultMessageStore, CleanService],
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
    search: str,
) -> None:
    store, _ = filled
    store.put_message(Message("T", keys="k10"))  # k10 is in a file that expires, too
    store.flush()
    clock.advance(100 * HOUR)
    honest, cleanings = getattr(IndexFile, search), []

    def cleaning(file: IndexFile, *given: Any) -> Any:
        """Search the newest file, and clean before the older ones are looked at."""
        found = honest(file, *given)
        if not cleanings:
            cleanings.append(store.clean())
        return found

    monkeypatch.setattr(IndexFile, search, cleaning)
    before = len(index_of(store).files) if parts_of(store).index else 0
    if search == "select_many":
        found = store.query_messages("T", ["k10", "k99"])["key"].to_pylist()
        assert found == ["k10", "k99"]
    elif search == "candidates":
        assert len(store.query_message("T", "k10").messages) == 1
    else:
        assert len(index_of(store).select("T", "k10", 9, 0, 1 << 60)[0]) == 1
    assert cleanings
    assert len(index_of(store).files) < before


def test_an_index_file_that_is_gone_but_not_by_age_is_an_error(
    filled: tuple[DefaultMessageStore, CleanService], memory_vfs: MemoryVfs
) -> None:
    store, _ = filled
    index_of(store).files[0].release()
    memory_vfs.remove(index_of(store).files[0].path)
    with pytest.raises(StorageError, match="No such file"):
        store.query_message("T", "k10")


def test_a_scan_goes_on_behind_files_that_are_deleted_meanwhile(
    filled: tuple[DefaultMessageStore, CleanService], clock: ManualClock
) -> None:
    store, _ = filled
    scan = store.scan()
    seen = next(scan)["physical_offset"].to_pylist()
    assert seen[0] == 0
    assert seen[-1] < 4096
    clock.advance(100 * HOUR)
    store.clean()
    assert store.min_physical_offset == 4 * 4096
    rest = [offset for batch in scan for offset in batch["physical_offset"].to_pylist()]
    assert rest[0] == 4 * 4096
    assert rest == [o for batch in store.scan() for o in batch["physical_offset"].to_pylist()]
    with pytest.raises(OffsetOutOfRange):
        list(store.scan(0))


def test_a_scan_whose_file_is_deleted_before_it_is_mapped_goes_on(
    filled: tuple[DefaultMessageStore, CleanService],
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store, _ = filled
    clock.advance(100 * HOUR)
    honest = MappedFile.view

    def cleaning(file: MappedFile, end: int) -> memoryview:
        monkeypatch.undo()
        store.clean()
        return honest(file, end)

    monkeypatch.setattr(MappedFile, "view", cleaning)
    assert next(store.scan())["physical_offset"][0].as_py() == 4 * 4096


def test_a_pull_that_meets_a_file_deleted_meanwhile_goes_on_behind_it(
    filled: tuple[DefaultMessageStore, CleanService], memory_vfs: MemoryVfs, clock: ManualClock
) -> None:
    store, _ = filled
    with rocketcompat.open("/s", "r", CONFIG, vfs=memory_vfs, clock=clock) as reader:
        clock.advance(100 * HOUR)
        store.clean()
        reader.refresh()
        low = reader.min_offset_in_queue("T", 0)
        assert low == store.min_offset_in_queue("T", 0) > 0
        assert reader.get_message("T", 0, low).messages
