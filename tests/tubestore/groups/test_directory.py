"""The files of a group: one change at a time, heartbeats, boots, damage."""

from __future__ import annotations

import errno
from typing import Any

import numpy as np
import pytest

from tubestore.clock import ManualClock
from tubestore.errors import InvalidName, NotAStore, ReadOnlyStore, StoreBusy
from tubestore.groups.assignment import sticky
from tubestore.groups.directory import (
    LOCK_TIMEOUT,
    GroupDirectory,
    check_group_name,
    list_groups,
)
from tubestore.groups.membership import Member, TopicShape
from tubestore.testing import FaultyVfs, MemoryVfs
from tubestore.testing.memory_vfs import MemoryFileSystem

ROOT = "/s"


def directory(vfs: Any, clock: ManualClock, group: str = "g") -> GroupDirectory:
    found = GroupDirectory(vfs, ROOT, group, clock, sleep=lambda seconds: None)
    found.make()
    return found


@pytest.fixture
def vfs(memory_vfs: MemoryVfs) -> MemoryVfs:
    memory_vfs.make_directories(ROOT)
    return memory_vfs


def join(files: GroupDirectory, name: str) -> Member:
    with files.locked() as group:
        member = group.join(name, f"{name}-1", ["t"], session_ms=1000, strategy="sticky")
        files.begin_beats(member)
        group.see_topics({"t": TopicShape(4)})
        group.settle(sticky)
        group.take(member)
        files.save()
    return member


def test_a_change_is_seen_by_another_process(vfs: MemoryVfs, clock: ManualClock) -> None:
    one, other = directory(vfs, clock), directory(vfs, clock)
    with other.locked() as group:
        assert group.members == {}
    before = other.change()
    a = join(one, "a")
    assert other.change() > before
    with other.locked() as group:
        assert group.check_member("a", "a-1") == a
        assert group.held(a)["t"].tolist() == [0, 1, 2, 3]
    assert other.peek().members == {"a": a}


def test_a_change_that_was_not_saved_is_not_there(vfs: MemoryVfs, clock: ManualClock) -> None:
    files = directory(vfs, clock)
    join(files, "a")

    def change_and_fail() -> None:
        with files.locked() as group:
            group.leave("a", "a-1")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        change_and_fail()
    with files.locked() as group:
        assert set(group.members) == {"a"}


def test_a_number_of_a_change_that_was_not_written_is_corrected(
    vfs: MemoryVfs, clock: ManualClock
) -> None:
    files, other = directory(vfs, clock), directory(vfs, clock)
    with other.locked():
        pass
    join(files, "a")
    vfs.open(f"{files.path}/heartbeats").pwrite(bytes(8), 0)
    assert other.change() == 0
    third = directory(vfs, clock)
    with third.locked() as group:
        assert set(group.members) == {"a"}
    assert other.change() == files.change() > 0


def test_heartbeats_age_by_the_clock(vfs: MemoryVfs, clock: ManualClock) -> None:
    files = directory(vfs, clock)
    a, b = join(files, "a"), join(files, "b")
    clock.advance(700)
    files.beat(b)
    clock.advance(400)
    with files.locked() as group:
        assert files.silent_ms(group) == {"a": 1100, "b": 400}
        assert group.expire(files.silent_ms(group)) == ["a"]
    assert (a.slot, b.slot) == (0, 1)


def test_a_heartbeat_of_an_earlier_member_in_the_same_slot_does_not_count(
    vfs: MemoryVfs, clock: ManualClock
) -> None:
    files = directory(vfs, clock)
    a = join(files, "a")
    with files.locked() as group:
        group.leave("a", "a-1")
        b = group.join("b", "b-1", ["t"], session_ms=1000, strategy="sticky")
        assert b.slot == a.slot
        assert files.silent_ms(group) == {}
        files.save()
    files.beat(a)
    with files.locked() as group:
        assert group.expire(files.silent_ms(group)) == ["b"]


def test_a_removed_member_that_wakes_up_does_not_take_the_slot_of_another_one(
    vfs: MemoryVfs, clock: ManualClock
) -> None:
    files = directory(vfs, clock)
    a = join(files, "a")
    with files.locked() as group:
        group.leave("a", "a-1")
        files.save()
    b = join(files, "b")
    assert b.slot == a.slot
    files.beat(a)
    assert files.silent_ms(files.peek()) == {"b": 0}
    clock.advance(5)
    files.beat(b)
    assert files.silent_ms(files.peek()) == {"b": 0}


def test_a_heartbeat_from_before_the_machine_started_does_not_count(
    vfs: MemoryVfs, clock: ManualClock
) -> None:
    files = directory(vfs, clock)
    join(files, "a")
    clock.advance(-500)
    assert files.silent_ms(files.peek()) == {}


def test_no_member_outlives_the_boot(vfs: MemoryVfs, clock: ManualClock) -> None:
    files = directory(vfs, clock)
    join(files, "a")
    generation = files.peek().generation
    vfs.reboot()
    again = directory(vfs, clock)
    assert again.peek().members == {}
    with again.locked() as group:
        assert group.members == {}
        assert group.generation > generation


@pytest.mark.parametrize("at", [0, 40, 120, -30])
def test_damaged_members_join_again(vfs: MemoryVfs, clock: ManualClock, at: int) -> None:
    files = directory(vfs, clock)
    join(files, "a")
    path, before = f"{files.path}/members.json", files.change()
    data = bytearray(vfs.read_file(path))
    data[at] ^= 1
    vfs.replace_file(path, bytes(data))
    again = directory(vfs, clock)
    with again.locked() as group:
        assert group.members == {}
    assert "members.json: damaged" in str(again.problems[0])
    join(again, "b")
    assert set(directory(vfs, clock).peek().members) == {"b"}
    assert files.change() > before


def test_a_lock_that_another_process_keeps_is_an_error_after_a_while(
    vfs: MemoryVfs, clock: ManualClock
) -> None:
    waits: list[float] = []
    files = GroupDirectory(vfs, ROOT, "g", clock, sleep=waits.append)
    files.make()
    held = vfs.lock(f"{files.path}/lock", kind="flock")
    with pytest.raises(StoreBusy, match="another process has held"), files.locked():
        pass
    assert LOCK_TIMEOUT <= sum(waits) < LOCK_TIMEOUT + 0.1
    held.release()
    with files.locked():
        pass


def test_a_lock_is_given_back_by_a_change_that_failed(vfs: MemoryVfs, clock: ManualClock) -> None:
    faulty = FaultyVfs(vfs)
    files = directory(faulty, clock)
    faulty.fail("replace_file")
    with pytest.raises(OSError, match="Input/output error"):
        join(files, "a")
    join(files, "a")
    assert set(files.peek().members) == {"a"}


def test_a_network_file_system_is_refused_in_a_sentence(
    vfs: MemoryVfs, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MemoryFileSystem, "network_kind", lambda self: "nfs4")
    with pytest.raises(NotAStore, match=r"network file system \(nfs4\).*by hand"):
        directory(vfs, clock)
    assert list_groups(vfs, ROOT) == []


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES])
def test_a_place_that_cannot_be_written_is_refused_in_a_sentence(
    vfs: MemoryVfs, clock: ManualClock, number: int
) -> None:
    faulty = FaultyVfs(vfs)
    faulty.fail("make_directories", error=number)
    with pytest.raises(ReadOnlyStore, match="choose partitions by hand"):
        directory(faulty, clock)
    files = directory(faulty, clock)
    faulty.fail("lock", error=number)
    with pytest.raises(ReadOnlyStore, match="choose partitions by hand"), files.locked():
        pass


def test_another_error_of_the_system_stays_what_it_is(vfs: MemoryVfs, clock: ManualClock) -> None:
    faulty = FaultyVfs(vfs)
    faulty.fail("make_directories", error=errno.ENOSPC)
    with pytest.raises(OSError, match="No space") as caught:
        directory(faulty, clock)
    assert caught.value.errno == errno.ENOSPC


def test_groups_are_listed_by_name(vfs: MemoryVfs, clock: ManualClock) -> None:
    assert list_groups(vfs, ROOT) == []
    directory(vfs, clock, "b")
    directory(vfs, clock, "%RETRY%a")
    assert list_groups(vfs, ROOT) == ["%RETRY%a", "b"]


@pytest.mark.parametrize("name", ["", "a/b", ".hidden", "a b", "x" * 201, 7])
def test_a_name_that_no_directory_can_have_is_refused(name: Any) -> None:
    with pytest.raises(InvalidName):
        check_group_name(name)


def test_a_group_changes_nothing_outside_of_its_directory(
    vfs: MemoryVfs, clock: ManualClock
) -> None:
    vfs.replace_file(f"{ROOT}/file", b"x")
    files = directory(vfs, clock)
    member = join(files, "a")
    with files.locked() as group:
        group.release(member, {"t": np.array([0])})
        files.save()
    files.close()
    outside = [path for path in vfs.tree() if not path.startswith(f"{files.path}/")]
    assert outside == [f"{ROOT}/file"]
