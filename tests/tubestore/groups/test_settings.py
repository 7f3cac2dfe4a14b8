"""Settings of groups: retention that waits for a group, and groups that end by themselves."""

from __future__ import annotations

from typing import Any

import pytest

import tubestore
from tests.support.crashes import state_now
from tests.support.retained import HOUR, fill, gone, numbers, open_small
from tests.support.retained import small as small
from tubestore.clock import ManualClock
from tubestore.errors import CorruptRecord, InvalidMessage
from tubestore.groups.settings import GroupSettings
from tubestore.offline.check import check
from tubestore.testing import MemoryVfs

Store = tubestore.MessageStoreManager
DAY = 24 * HOUR
SETTINGS = "/s/.tubestore/groups/g/settings.json"


def consume(store: Store, count: int, topic: str = "t") -> None:
    """Read and commit so many messages."""
    with store.consumer("g", topic, on_removed="raise") as consumer:
        assert len(consumer.poll(count)) == count


# -- retention that waits ------------------------------------------------------------------------


def test_retention_removes_nothing_that_a_group_has_not_read(
    small: Store, clock: ManualClock
) -> None:
    topic = small.create_topic("t", max_age="1h")
    fill(topic, clock)  # files of messages 0-4, 5-9, 10-14, 15-19, and 20-22
    consume(small, 7)
    small.change_group("g", retention_waits=True)
    clock.advance(DAY)
    assert gone(topic.retain(dry_run=True)) == [0]
    assert gone(small.retain(max_bytes=0)) == [0], "a bound on bytes waits, too"
    assert numbers(topic) == list(range(5, 23))
    reasons = [row.reason for row in topic.explain_retention() if row.stream == "data"]
    assert reasons[0] == "held by group 'g'"
    consume(small, 16)
    topic.retain()
    assert numbers(topic) == [], "the group has read everything"


def test_after_a_power_cut_retention_waits_as_before(
    memory_vfs: MemoryVfs, clock: ManualClock
) -> None:
    """Positions that were not synced are gone; the group is at those of its last change."""
    journal = memory_vfs.record()
    store = open_small(memory_vfs, clock)
    topics = store.create_topic("t", max_age="1h"), store.create_topic("u", max_age="1h")
    for topic in topics:
        fill(topic, clock)
    consume(store, 2)
    consume(store, 7, "u")
    store.change_group("g", retention_waits=True)
    consume(store, 12)
    store.sync()
    clock.advance(DAY)
    disk = state_now(journal, "power", clock=clock)
    store.close()
    with open_small(disk, clock) as again:
        assert again["t"].retain() == []
        assert gone(again["u"].retain()) == [0]


def test_retention_by_itself_waits_for_a_group(small: Store, clock: ManualClock) -> None:
    topic = small.create_topic("t", max_age="1h")
    fill(topic, clock)
    consume(small, 12)
    small.change_group("g", retention_waits=True)
    clock.advance(DAY)
    small.maintain()
    assert numbers(topic) == list(range(10, 23))
    small.change_group("g", retention_waits=False)
    clock.advance(DAY)
    small.maintain()
    assert numbers(topic) == []


def test_a_topic_that_the_group_has_no_position_of_does_not_wait(
    small: Store, clock: ManualClock
) -> None:
    read, other = small.create_topic("t"), small.create_topic("u")
    fill(read, clock, 10)
    fill(other, clock, 10)
    small.change_group("g", retention_waits=True)
    assert gone(small.retain(["t"], max_age=0, dry_run=True)), "a new group has no position at all"
    consume(small, 1)
    assert not gone(small.retain(["t"], max_age=0, dry_run=True))
    assert gone(small.retain(["u"], max_age=0, dry_run=True))


def test_a_partition_that_the_group_never_had_counts_as_unread(
    small: Store, clock: ManualClock
) -> None:
    topic = small.create_topic("t")
    fill(topic, clock, 5)
    consume(small, 5)
    small.change_group("g", retention_waits=True)
    topic = small.change_topic("t", partitions=2)
    fill(topic, clock, 5, partition=1)
    assert gone(topic.retain(max_age=0)) == []
    consume(small, 5)
    clock.advance(1)
    assert gone(topic.retain(max_age=0)) == [0, 760]


def test_positions_of_a_deleted_topic_hold_nothing_of_its_successor(
    small: Store, clock: ManualClock
) -> None:
    fill(small.create_topic("t"), clock, 3)
    consume(small, 1)
    small.change_group("g", retention_waits=True)
    small.delete_topic("t")
    topic = small.create_topic("t")
    fill(topic, clock, 5)
    clock.advance(1)
    assert gone(topic.retain(max_age=0)) == [0]


@pytest.mark.parametrize("damaged", ["positions-00000000000000000001.log", "settings.json"])
def test_retention_removes_nothing_while_positions_or_settings_are_damaged(
    small: Store, clock: ManualClock, memory_vfs: MemoryVfs, damaged: str
) -> None:
    topic = small.create_topic("t", max_age="1h")
    fill(topic, clock)
    consume(small, 23)
    small.change_group("g", retention_waits=True)
    path = f"/s/.tubestore/groups/g/{damaged}"
    memory_vfs.replace_file(path, b"x" * 300)
    clock.advance(DAY)
    assert topic.retain() == []
    (first, *_) = topic.explain_retention()
    assert damaged in first.reason


def test_retention_removes_nothing_while_settings_that_were_given_are_gone(
    small: Store, clock: ManualClock, memory_vfs: MemoryVfs
) -> None:
    topic = small.create_topic("t", max_age="1h")
    fill(topic, clock)
    consume(small, 23)
    small.change_group("g", retention_waits=True)
    small.change_group("g", expire_after="1h")
    memory_vfs.remove(SETTINGS)
    clock.advance(DAY)
    assert topic.retain() == []
    assert "settings.json" in next(iter(topic.explain_retention())).reason
    assert small.expire_groups() == []
    with pytest.raises(CorruptRecord, match="the group had settings"):
        small.change_group("g", retention_waits=False)
    small.change_group("g", retention_waits=False, expire_after=None)
    assert topic.retain() != []


# -- groups that end -----------------------------------------------------------------------------


def test_settings_are_durable_with_the_names_that_a_killed_process_did_not_sync(
    memory_vfs: MemoryVfs, clock: ManualClock
) -> None:
    place = SETTINGS.rpartition("/")[0]
    with tubestore.open("/s", vfs=memory_vfs, clock=clock, background=False) as store:
        memory_vfs.make_directories(place)
        journal = memory_vfs.record()
        store.change_group("g", retention_waits=True)
        synced = [call.path for call in journal.calls if call.kind == "sync_directory"]
    assert {place, "/s/.tubestore/groups", "/s/.tubestore", "/s"} <= set(synced)


def test_a_group_ends_so_long_after_its_last_use(small: Store, clock: ManualClock) -> None:
    fill(small.create_topic("t"), clock, 3)
    consume(small, 1)
    small.change_group("g", expire_after="7d")
    consume(small, 1)
    used = clock.now_ms()
    clock.advance(7 * DAY - 1)
    small.maintain()
    assert small.groups() == ["g"]
    clock.advance(2)
    (row,) = small.expire_groups(dry_run=True)
    assert (row.name, row.used_ms, row.positions) == ("g", used, 1)
    assert small.groups() == ["g"], "a dry run"
    clock.advance(HOUR)
    small.maintain()
    assert small.groups() == []


def test_a_group_without_a_limit_never_ends_by_itself(small: Store, clock: ManualClock) -> None:
    fill(small.create_topic("t"), clock, 1)
    consume(small, 1)
    clock.advance(10_000 * DAY)
    small.maintain()
    assert small.expire_groups() == []
    assert [row.name for row in small.expire_groups("1d")] == ["g"]
    assert small.groups() == []


def test_a_group_with_a_living_member_does_not_end(small: Store, clock: ManualClock) -> None:
    fill(small.create_topic("t"), clock, 1)
    small.change_group("g", expire_after="1d")
    with small.consumer("g", "t", auto_commit=False, session_timeout=1e6) as consumer:
        clock.advance(2 * DAY // 4)
        consumer.poll()
        clock.advance(2 * DAY // 4)
        for dry_run in (True, False):
            assert small.expire_groups("1ms", dry_run=dry_run) == []
        consumer.poll()
    assert small.groups() == ["g"]


def test_an_idle_member_counts_as_use_without_a_commit(small: Store, clock: ManualClock) -> None:
    small.create_topic("t")
    small.change_group("g", expire_after="3d")
    with small.consumer("g", "t", auto_commit=False) as consumer:
        clock.advance(2 * DAY)
        consumer.poll()
    clock.advance(2 * DAY)
    assert small.expire_groups() == []
    clock.advance(2 * DAY)
    assert [row.name for row in small.expire_groups()] == ["g"]


def test_a_group_with_damaged_settings_does_not_end(
    small: Store, clock: ManualClock, memory_vfs: MemoryVfs
) -> None:
    small.change_group("g", expire_after="1d")
    memory_vfs.replace_file(SETTINGS, memory_vfs.read_file(SETTINGS).replace(b"86400000", b"8640"))
    clock.advance(100 * DAY)
    assert small.expire_groups() == []
    assert small.groups() == ["g"]


def test_a_member_goes_on_in_a_group_that_ended_and_was_made_again(
    small: Store, clock: ManualClock, memory_vfs: MemoryVfs
) -> None:
    fill(small.create_topic("t"), clock, 5)
    consume(small, 3)
    with open_small(memory_vfs, clock, "r") as other:
        assert other.describe_group("g").partitions[0].position == 3 * 28
        clock.advance(DAY)
        assert small.expire_groups("1h")
        consume(small, 2)
        assert other.describe_group("g").partitions[0].position == 2 * 28


# -- settings ------------------------------------------------------------------------------------


def test_settings_that_are_not_given_stay(small: Store, clock: ManualClock) -> None:
    assert small.change_group("g") == GroupSettings()
    assert small.change_group("g", retention_waits=True) == GroupSettings(True)
    assert small.change_group("g", expire_after="1d") == GroupSettings(True, DAY)
    assert small.change_group("g", expire_after=None) == GroupSettings(True)
    assert small.describe_group("g").settings == GroupSettings(True)


@pytest.mark.parametrize("given", [{"expire_after": 0}, {"expire_after": -1}])
def test_an_age_that_is_none_is_refused(small: Store, given: dict[str, Any]) -> None:
    with pytest.raises(InvalidMessage, match="expire_after"):
        small.change_group("g", **given)
    with pytest.raises(TypeError, match="retention_waits"):
        small.change_group("g", retention_waits="yes")  # type: ignore[arg-type]
    assert small.groups() == []


def test_damaged_settings_are_reported_and_can_be_given_again(
    small: Store, memory_vfs: MemoryVfs
) -> None:
    small.change_group("g", retention_waits=True)
    memory_vfs.replace_file(SETTINGS, b"{}")
    found = small.describe_group("g")
    assert found.settings is None
    assert [problem.path for problem in found.problems] == [SETTINGS]
    findings = list(check("/s", vfs=memory_vfs))
    assert [(each.path, "settings of group 'g'" in each.message) for each in findings] == [
        (SETTINGS, True)
    ]
    with pytest.raises(CorruptRecord):
        small.change_group("g", retention_waits=True)
    small.change_group("g", retention_waits=True, expire_after=None)
    assert small.describe_group("g").settings == GroupSettings(True)
