"""What `crash_states` gives: everything that a kill or a power cut may leave, and nothing else."""

from __future__ import annotations

import errno

import pytest

from tubestore.clock import ManualClock
from tubestore.testing import CrashState, Distinct, FaultyVfs, LyingVfs, MemoryVfs, crash_states

FILE = "/d/file"


def power_trees(vfs: MemoryVfs, variants: int = 60) -> list[dict[str, bytes]]:
    """What power cuts after everything that was done may leave."""
    assert vfs.journal is not None
    end = len(vfs.journal)
    states = crash_states(
        vfs.journal, seed=1, variants=variants, kinds=["power"], steps=lambda step: step == end
    )
    return [state.disk.tree() for state in states]


@pytest.fixture
def vfs() -> MemoryVfs:
    """A disk with a directory, being recorded."""
    vfs = MemoryVfs(ManualClock())
    vfs.make_directories("/d")
    vfs.record()
    return vfs


def durable_file(vfs: MemoryVfs, data: bytes) -> None:
    file = vfs.open(FILE, create=True)
    file.pwrite(data, 0)
    file.sync()
    vfs.sync_directory("/d")


def test_a_kill_loses_nothing_at_any_step(vfs: MemoryVfs) -> None:
    file = vfs.open(FILE, create=True)
    file.pwrite(b"abc", 0)
    file.truncate(2)
    assert vfs.journal is not None
    states = [s for s in crash_states(vfs.journal, seed=1, kinds=["kill"]) if s.variant == 0]
    assert [s.disk.tree() for s in states] == [{}, {FILE: b""}, {FILE: b"abc"}, {FILE: b"ab"}]


def test_a_kill_may_cut_the_last_write_short(vfs: MemoryVfs) -> None:
    vfs.open(FILE, create=True).pwrite(b"x" * 9000, 0)
    assert vfs.journal is not None
    states = crash_states(vfs.journal, seed=1, kinds=["kill"], steps=lambda step: step == 1)
    sizes = {len(s.disk.tree()[FILE]) for s in states}
    assert {0, 4096, 8192} < sizes


def test_what_was_synced_survives_every_power_cut(vfs: MemoryVfs) -> None:
    durable_file(vfs, b"safe")
    vfs.open(FILE).pwrite(b" and not", 4)
    trees = power_trees(vfs)
    assert all(tree[FILE][:4] == b"safe" for tree in trees)
    assert {FILE: b"safe"} in trees
    assert {FILE: b"safe and not"} in trees


def test_a_link_is_there_or_not_until_its_directory_is_synced(vfs: MemoryVfs) -> None:
    durable_file(vfs, b"abc")
    vfs.link(FILE, "/d/other")
    vfs.remove(FILE)
    both = {FILE: b"abc", "/d/other": b"abc"}
    assert {str(t) for t in power_trees(vfs)} == {
        str(t) for t in ({FILE: b"abc"}, both, {"/d/other": b"abc"})
    }
    vfs.sync_directory("/d")
    assert {str(t) for t in power_trees(vfs)} == {str({"/d/other": b"abc"})}


def test_the_length_may_be_new_and_the_data_a_hole(vfs: MemoryVfs) -> None:
    durable_file(vfs, b"safe")
    vfs.open(FILE).pwrite(b"lost", 4)
    assert {FILE: b"safe\0\0\0\0"} in power_trees(vfs)


def test_a_later_write_may_survive_an_earlier_one(vfs: MemoryVfs) -> None:
    durable_file(vfs, b"")
    file = vfs.open(FILE)
    file.pwrite(b"1", 0)
    file.pwrite(b"2", 1)
    assert {FILE: b"\x002"} in power_trees(vfs)


def test_a_write_tears_at_borders_of_sectors_and_inside(vfs: MemoryVfs) -> None:
    durable_file(vfs, b"")
    vfs.open(FILE).pwrite(b"x" * 2000, 0)
    lengths = {len(tree[FILE].rstrip(b"\0")) for tree in power_trees(vfs, 200)}
    assert lengths & {512, 1024, 1536}
    assert any(length % 512 and length < 2000 for length in lengths)
    middle = {
        tree[FILE][512:1024] for tree in power_trees(vfs, 400) if tree[FILE][1024:1025] == b"x"
    }
    assert bytes(512) in middle


def test_a_cut_that_was_not_synced_may_be_undone(vfs: MemoryVfs) -> None:
    durable_file(vfs, b"old tail")
    vfs.open(FILE).truncate(4)
    trees = power_trees(vfs)
    assert {FILE: b"old tail"} in trees
    assert {FILE: b"old "} in trees


def test_a_new_name_lives_from_the_sync_of_its_directory_on(vfs: MemoryVfs) -> None:
    file = vfs.open(FILE, create=True)
    file.pwrite(b"data", 0)
    file.sync()
    assert {} in power_trees(vfs)
    vfs.sync_directory("/d")
    assert power_trees(vfs) == [{FILE: b"data"}] * 60


def test_a_file_goes_with_its_directory(vfs: MemoryVfs) -> None:
    vfs.make_directories("/d/new")
    file = vfs.open("/d/new/file", create=True)
    file.sync()
    vfs.sync_directory("/d/new")
    assert {} in power_trees(vfs)
    vfs.sync_directory("/d")
    assert {} not in power_trees(vfs)


def test_names_of_a_directory_change_in_order(vfs: MemoryVfs) -> None:
    for name in ("1", "2", "3"):
        vfs.open(f"/d/{name}", create=True)
    trees = {frozenset(tree) for tree in power_trees(vfs, 100)}
    assert trees == {
        frozenset(),
        frozenset({"/d/1"}),
        frozenset({"/d/1", "/d/2"}),
        frozenset({"/d/1", "/d/2", "/d/3"}),
    }


def test_a_replaced_file_is_the_old_one_or_the_new_one(vfs: MemoryVfs) -> None:
    durable_file(vfs, b"old")
    vfs.replace_file(FILE, b"new")
    assert vfs.journal is not None
    for state in crash_states(vfs.journal, seed=1, variants=30):
        if state.step > 4:  # the old one was made by then
            assert state.disk.tree()[FILE] in (b"old", b"new")
    assert power_trees(vfs) == [{FILE: b"new"}] * 60


def test_a_file_replaced_without_a_sync_may_be_empty(vfs: MemoryVfs) -> None:
    durable_file(vfs, b"old")
    vfs.replace_file(FILE, b"new", sync=False)
    found = {tree[FILE] for tree in power_trees(vfs)}
    assert {b"old", b"", b"new"} <= found


def test_a_temporary_file_that_a_crash_left_gives_a_replaced_file_no_content(
    vfs: MemoryVfs,
) -> None:
    durable_file(vfs, b"old")
    vfs.open(f"{FILE}.tmp", create=True).pwrite(b"older", 0)
    vfs.open(f"{FILE}.tmp").sync()
    vfs.sync_directory("/d")
    vfs.replace_file(FILE, b"new", sync=False)
    assert b"older" not in {tree[FILE] for tree in power_trees(vfs)}


def test_what_was_unsynced_at_a_kill_is_unsynced_in_the_run_after_it(vfs: MemoryVfs) -> None:
    durable_file(vfs, b"safe")
    vfs.open(FILE).pwrite(b" and not", 4)
    assert vfs.journal is not None
    end = len(vfs.journal)
    (kill,) = crash_states(vfs.journal, seed=1, kinds=["kill"], steps=lambda step: step == end)
    after = kill.vfs()
    after.record()
    assert after.boot_id() == vfs.boot_id()
    assert after.read_file(FILE) == b"safe and not"
    assert {FILE: b"safe"} in power_trees(after)


def test_a_power_cut_changes_the_boot_id_and_drops_locks(vfs: MemoryVfs) -> None:
    vfs.lock("/d/lock", kind="flock")
    assert vfs.journal is not None
    for state in crash_states(vfs.journal, seed=1):
        after = state.vfs()
        assert (after.boot_id() == vfs.boot_id()) == (state.kind == "kill")
        after.lock("/d/lock", kind="flock")


def test_opening_a_state_does_not_change_it(vfs: MemoryVfs) -> None:
    durable_file(vfs, b"safe")
    assert vfs.journal is not None
    for state in crash_states(vfs.journal, seed=1, variants=2):
        key = state.disk.digest()
        after = state.vfs()
        if after.exists(FILE):
            after.open(FILE).pwrite(b"changed", 0)
        after.make_directories("/d/more")
        assert state.disk.digest() == key


def test_the_same_seed_gives_the_same_states(vfs: MemoryVfs) -> None:
    durable_file(vfs, b"x" * 3000)
    vfs.open(FILE).pwrite(b"y" * 3000, 1000)
    assert vfs.journal is not None

    def keys(seed: int) -> list[bytes]:
        assert vfs.journal is not None
        return [state.key for state in crash_states(vfs.journal, seed=seed)]

    assert keys(7) == keys(7)
    assert keys(7) != keys(8)


def test_a_state_is_read_again_when_more_was_promised(vfs: MemoryVfs) -> None:
    durable_file(vfs, b"safe")
    assert vfs.journal is not None
    end = len(vfs.journal)

    def last() -> CrashState:
        assert vfs.journal is not None
        steps = crash_states(vfs.journal, seed=1, kinds=["kill"], steps=lambda step: step == end)
        return next(iter(steps))

    distinct = Distinct()
    assert distinct.is_new(last())
    assert not distinct.is_new(last())
    vfs.mark("acknowledged")
    assert last().marks == ["acknowledged"]
    assert distinct.is_new(last())
    assert len(distinct) == 1


def test_recording_goes_on_from_what_the_first_journal_knew(vfs: MemoryVfs) -> None:
    durable_file(vfs, b"safe")
    vfs.open(FILE).pwrite(b" and not", 4)
    vfs.record()
    assert {FILE: b"safe"} in power_trees(vfs)


def test_the_nth_call_fails_once_and_the_next_one_works() -> None:
    vfs = FaultyVfs(MemoryVfs())
    file = vfs.open("/a", create=True)
    fault = vfs.fail("pwrite", nth=2)
    file.pwrite(b"1", 0)
    with pytest.raises(OSError, match="Input/output") as caught:
        file.pwrite(b"2", 1)
    assert caught.value.errno == errno.EIO
    file.pwrite(b"3", 1)
    assert vfs.read_file("/a") == b"13"
    assert fault.struck == 1
    assert vfs.calls["pwrite"] == 3


def test_a_full_disk_takes_half_of_the_write_and_stays_full_until_it_is_healed() -> None:
    vfs = FaultyVfs(MemoryVfs())
    file = vfs.open("/a", create=True)
    vfs.fail("pwrite", error=errno.ENOSPC, forever=True)
    for _ in range(2):
        with pytest.raises(OSError, match="No space"):
            file.pwrite(b"1234", 0)
    assert file.pread(9, 0) == b"12"
    vfs.heal()
    file.pwrite(b"1234", 0)
    assert file.pread(9, 0) == b"1234"


def test_faults_can_be_limited_to_paths_and_every_kind_of_call_can_fail() -> None:
    vfs = FaultyVfs(MemoryVfs())
    vfs.make_directories("/d")
    for path in ("/d/a", "/d/b"):
        vfs.open(path, create=True)
    vfs.fail("sync", path="/d/b")
    vfs.open("/d/a").sync()
    with pytest.raises(OSError, match="Input/output"):
        vfs.open("/d/b").sync()
    vfs.fail("sync_directory")
    with pytest.raises(OSError, match="Input/output"):
        vfs.sync_directory("/d")
    with pytest.raises(ValueError, match="none of"):
        vfs.fail("fsync")


def test_a_lying_disk_syncs_nothing_of_what_it_lies_about() -> None:
    inner = MemoryVfs()
    journal = inner.record()
    vfs = LyingVfs(inner, "/data")
    for path in ("/data", "/other"):
        vfs.open(path, create=True).sync()
    assert [str(call) for call in journal.calls] == [
        "create(/data)",
        "create(/other)",
        "sync(/other)",
    ]
