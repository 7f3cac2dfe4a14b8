"""The system's files: one bounded pool of descriptors, changes by others, where the files are."""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import tubestore
from tubestore.core.local_files import DirectoryWatch, network_kind
from tubestore.core.vfs import OsVfs, Vfs
from tubestore.store.manager import MessageStoreManager
from tubestore.store.topic import Topic
from tubestore.testing import MemoryVfs

linux = pytest.mark.skipif(sys.platform != "linux", reason="inotify is Linux's")

MOUNTS = """\
24 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
36 24 0:45 / /home rw,nosuid shared:9 master:2 - nfs4 server:/home rw,vers=4.2
37 24 0:46 / /mnt/far rw - fuse.sshfs me@there: rw
38 24 0:47 / /mnt/near rw - fuse.ntfs /dev/sdb1 rw
a line of another kind
"""


@linux
def test_a_write_a_new_file_and_a_rename_are_reported(tmp_path: Path) -> None:
    watch = DirectoryWatch()
    place, other = tmp_path / "a", tmp_path / "b"
    place.mkdir()
    other.mkdir()
    file = place / "file"
    file.write_bytes(b"")
    assert watch.add(str(place))
    assert watch.add(str(other))
    assert watch.wait(0) == set()
    with file.open("ab") as opened:
        opened.write(b"x")
        opened.flush()
        assert watch.wait(60) == {str(place)}
    (other / "new").write_bytes(b"")
    assert watch.wait(60) == {str(other)}
    file.rename(other / "file")
    assert str(other) in watch.wait(60)
    watch.close()
    watch.close()


@linux
def test_a_directory_that_is_not_there_cannot_be_watched(tmp_path: Path) -> None:
    watch = DirectoryWatch()
    assert not watch.add(str(tmp_path / "missing"))
    watch.close()


@linux
def test_a_directory_that_came_back_can_be_watched_again(tmp_path: Path) -> None:
    watch = DirectoryWatch()
    place = tmp_path / "a"
    place.mkdir()
    watch.add(str(place))
    place.rmdir()
    assert watch.wait(60) == {str(place)}
    place.mkdir()
    assert watch.add(str(place))
    (place / "new").write_bytes(b"")
    assert watch.wait(60) == {str(place)}
    watch.close()


@linux
def test_a_directory_in_the_place_of_one_that_was_moved_away_is_watched(tmp_path: Path) -> None:
    watch = DirectoryWatch()
    above, place = tmp_path / "above", tmp_path / "above" / "a"
    place.mkdir(parents=True)
    watch.add(str(place))
    above.rename(tmp_path / "trash")
    place.mkdir(parents=True)
    assert watch.add(str(place))
    (place / "new").write_bytes(b"")
    assert watch.wait(60) == {str(place)}
    watch.close()


@linux
def test_a_process_with_many_open_files_can_watch(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, limits[1]), limits[1]))
    many = [os.open(tmp_path, os.O_RDONLY) for _ in range(1024)]
    try:
        watch = DirectoryWatch()
        assert watch._fd >= 1024
        watch.add(str(tmp_path))
        (tmp_path / "new").write_bytes(b"")
        assert watch.wait(60) == {str(tmp_path)}
        watch.close()
    finally:
        for fd in many:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@linux
def test_interrupt_ends_a_wait(tmp_path: Path) -> None:
    watch = DirectoryWatch()
    watch.add(str(tmp_path))
    timer = threading.Timer(0.02, watch.interrupt)
    timer.start()
    assert watch.wait(60) == set()
    timer.join()
    watch.close()


class Moment:
    """The machine's clock and the type of its file systems, as a test sets them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, kind: str = "ext4") -> None:
        self.now_ns = 0
        clock = SimpleNamespace(time_ns=lambda: self.now_ns)
        monkeypatch.setattr("tubestore.core.local_files.time", clock)
        monkeypatch.setattr("tubestore.core.local_files._file_system_type", lambda _: kind)

    def after_change(self, directory: Path, seconds: float) -> None:
        """Be so long after the last change of the names in a directory."""
        self.now_ns = directory.stat().st_ctime_ns + int(seconds * 1e9)


def test_names_are_settled_a_second_after_their_last_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vfs, moment = OsVfs(), Moment(monkeypatch)
    for seconds in (-5, 0, 0.999):
        moment.after_change(tmp_path, seconds)
        assert vfs.settled_names(str(tmp_path)) is None
    moment.after_change(tmp_path, 1)
    found = vfs.settled_names(str(tmp_path))
    moment.after_change(tmp_path, 100)
    assert found is not None
    assert vfs.settled_names(str(tmp_path)) == found


@pytest.mark.parametrize("change", ["create", "rename", "replace", "remove", "exchange"])
def test_settled_names_are_others_after_each_change_and_the_same_after_a_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    vfs, moment, home = OsVfs(), Moment(monkeypatch), tmp_path / "home"
    home.mkdir()
    (home / "file").write_bytes(b"first")
    (tmp_path / "other").write_bytes(b"other")
    moment.after_change(home, 1)
    before = vfs.settled_names(str(home))
    (home / "file").write_bytes(b"second")
    assert vfs.settled_names(str(home)) == before is not None
    tick = tmp_path / "tick"
    tick.touch()
    while tick.stat().st_ctime_ns <= home.stat().st_ctime_ns:  # the file system's clock goes on
        tick.touch()
    if change == "create":
        (home / "new").touch()
    elif change == "rename":
        (home / "file").rename(home / "renamed")
    elif change == "replace":
        (tmp_path / "other").replace(home / "file")
    elif change == "remove":
        (home / "file").unlink()
    else:
        home.rename(tmp_path / "away")
        home.mkdir()
    moment.after_change(home, 1)
    assert vfs.settled_names(str(home)) not in (before, None)


@pytest.mark.parametrize("kind", ["nfs4", "vfat", "fuse.sshfs", ""])
def test_names_on_a_file_system_with_times_of_another_clock_are_never_settled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    moment = Moment(monkeypatch, kind)
    moment.after_change(tmp_path, 1000)
    assert OsVfs().settled_names(str(tmp_path)) is None


@pytest.mark.parametrize(
    ("device", "kind"),
    [("254:0", ""), ("0:45", "nfs4"), ("0:46", "fuse.sshfs"), ("0:47", ""), ("9:9", "")],
)
def test_network_file_systems_are_known_by_their_mounts(device: str, kind: str) -> None:
    assert network_kind(MOUNTS, device) == kind


def test_the_directory_of_a_test_is_on_this_machine(tmp_path: Path) -> None:
    file_system = OsVfs().file_system(str(tmp_path))
    assert file_system.network_kind() == ""
    file_system.close()


def open_descriptors() -> int:
    gc.collect()  # what other tests left
    return len(os.listdir("/proc/self/fd"))


pytestmark = pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="no /proc here")


@pytest.mark.gate
def test_more_files_than_descriptors_can_be_used(tmp_path: Path) -> None:
    vfs = OsVfs(descriptors_max=8)
    before = open_descriptors()
    files = [vfs.open(str(tmp_path / str(n)), create=True) for n in range(50)]
    for number, file in enumerate(files):
        file.pwrite(b"%d" % number, 0)
        file.sync()
    for _ in range(3):
        for number, file in enumerate(files):
            assert file.pread(10, 0) == b"%d" % number
    assert open_descriptors() - before <= 10
    for file in files:
        file.close()
        file.close()
    assert open_descriptors() == before


def test_a_file_with_unsynced_writes_keeps_its_descriptor_as_long_as_it_can(
    tmp_path: Path,
) -> None:
    """Its next sync must see the errors of its writes, which the kernel tells a descriptor once."""
    vfs = OsVfs(descriptors_max=4)
    dirty = vfs.open(str(tmp_path / "dirty"), create=True)
    dirty.pwrite(b"x", 0)
    held = dirty.descriptor
    assert held is not None
    for number in range(20):
        vfs.open(str(tmp_path / str(number)), create=True).pread(1, 0)
    assert dirty.descriptor is held


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Paths as they are opened, in a process that may have 48 descriptors and keeps 4 at first."""
    monkeypatch.setattr("tubestore.core.local_files.DESCRIPTORS_MAX", 4)
    monkeypatch.setattr("resource.getrlimit", lambda which: (48, 48))
    paths: list[str] = []
    open_file = os.open

    def noting(path: Any, *rest: Any, **named: Any) -> int:
        paths.append(str(path))
        return open_file(path, *rest, **named)

    monkeypatch.setattr("os.open", noting)
    return paths


def use_in_turn(vfs: OsVfs, tmp_path: Path, count: int, rounds: int) -> list[Any]:
    files = [vfs.open(str(tmp_path / str(n)), create=True) for n in range(count)]
    for _ in range(rounds):
        for file in files:
            file.pwrite(b"x", 0)
    return files


def test_files_that_are_used_in_turn_stay_open_within_half_of_the_limit(
    tmp_path: Path, opened: list[str]
) -> None:
    files = use_in_turn(OsVfs(), tmp_path, 20, rounds=8)
    opened.clear()
    for file in files:
        file.pwrite(b"y", 0)
    assert opened == []


@pytest.mark.parametrize(("most", "count"), [(None, 40), (4, 20)])
def test_passes_over_more_files_than_may_be_open_and_a_bound_of_the_caller_leave_the_pool_small(
    tmp_path: Path, opened: list[str], most: int | None, count: int
) -> None:
    before = open_descriptors()
    files = use_in_turn(OsVfs(most), tmp_path, count, rounds=8)
    assert len(opened) >= 8 * count
    assert open_descriptors() - before <= 5
    assert len(files) == count


def test_a_closed_file_opens_again_when_it_is_used(tmp_path: Path) -> None:
    vfs = OsVfs()
    file = vfs.open(str(tmp_path / "a"), create=True)
    file.pwrite(b"abc", 0)
    view = file.view(3)
    file.close()
    assert file.pread(3, 0) == b"abc"
    file.close()
    assert bytes(view) == b"abc"


@pytest.mark.parametrize("position", [0, 1, (256 << 10) - 1, 3 << 20])
def test_a_large_write_is_whole_wherever_it_begins(tmp_path: Path, position: int) -> None:
    data = bytes(range(256)) * 4096 + b"the end"
    file = OsVfs().open(str(tmp_path / "f"), create=True)
    for given in (data, bytearray(data), memoryview(data)):
        file.truncate(0)
        file.pwrite(given, position)
        assert file.size() == position + len(data)
        assert file.pread(len(data) + 1, position) == data


def test_threads_share_a_small_pool(tmp_path: Path) -> None:
    vfs = OsVfs(descriptors_max=3)
    files = [vfs.open(str(tmp_path / str(n)), create=True) for n in range(12)]
    for number, file in enumerate(files):
        file.pwrite(b"%04d" % number, 0)
        file.sync()
    wrong: list[int] = []

    def read() -> None:
        for _ in range(50):
            for number, file in enumerate(files):
                if file.pread(4, 0) != b"%04d" % number:
                    wrong.append(number)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def write_to_many_shards(store: MessageStoreManager) -> Topic:
    topic = store.create_topic("t", stores=60)
    for _ in range(3):
        partitions = [n * 10_000 for n in range(60)]
        assert len(topic.append_batch({"body": [b"x"] * 60, "partition": partitions})) == 60
    return topic


@pytest.mark.gate
def test_writing_to_many_shards_needs_few_descriptors(tmp_path: Path) -> None:
    before = open_descriptors()
    with tubestore.open(tmp_path, vfs=OsVfs(descriptors_max=16), background=False) as store:
        topic = write_to_many_shards(store)
        assert open_descriptors() - before <= 30
        topic.sync()
        assert open_descriptors() - before <= 30
    assert open_descriptors() == before


@pytest.mark.gate
def test_a_store_of_many_shards_stays_below_1024_descriptors(tmp_path: Path) -> None:
    before = open_descriptors()
    with tubestore.open(tmp_path, background=False) as store:
        topic = store.create_topic("t", stores=600)
        for store_id in range(600):
            topic.append(b"x", partition=store_id * 10_000)
        assert open_descriptors() - before < 1000


@pytest.mark.gate
def test_reading_many_shards_needs_few_descriptors(tmp_path: Path) -> None:
    before = open_descriptors()
    with tubestore.open(tmp_path, vfs=OsVfs(descriptors_max=16), background=False) as store:
        topic = write_to_many_shards(store)
        assert topic.scan().read_all().num_rows == 180
        assert open_descriptors() - before <= 30


def test_a_file_that_was_renamed_is_opened_again_under_its_new_name(tmp_path: Path) -> None:
    vfs = OsVfs()
    file = vfs.open(str(tmp_path / "a"), create=True)
    file.pwrite(b"hello", 0)
    file.close()
    vfs.rename(str(tmp_path / "a"), str(tmp_path / "b"))
    with pytest.raises(FileNotFoundError):
        file.pread(5, 0)
    file.moved_to(str(tmp_path / "b"))
    assert file.pread(5, 0) == b"hello"


@pytest.mark.parametrize("in_memory", [False, True])
def test_another_file_under_the_same_name_is_not_taken_for_it(
    tmp_path: Path, memory_vfs: MemoryVfs, in_memory: bool
) -> None:
    """Mapped by the old one's length, a shorter file would kill the process."""
    vfs: Vfs = memory_vfs if in_memory else OsVfs()
    path = "/a" if in_memory else str(tmp_path / "a")
    file = vfs.open(path, create=True)
    file.pwrite(b"hello", 0)
    file.close()
    vfs.replace_file(path, b"hel")
    for read in (lambda: file.view(5), lambda: file.pread(5, 0)):
        with pytest.raises(FileNotFoundError):
            read()


def test_a_small_file_is_not_written_through_a_link(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_bytes(b"untouched")
    (tmp_path / "a.tmp").symlink_to(other)
    OsVfs().replace_file(str(tmp_path / "a"), b"new")
    assert (other.read_bytes(), (tmp_path / "a").read_bytes()) == (b"untouched", b"new")
    assert not (tmp_path / "a").is_symlink()


def test_files_that_retention_removed_give_their_descriptors_and_their_room_back(
    tmp_path: Path,
) -> None:
    with tubestore.open(
        tmp_path, segment_size_bytes=10_000, trash_grace_ms=0, background=False
    ) as store:
        topic = store.create_topic("t", max_bytes=20_000)
        for _ in range(20):
            for _ in range(10):
                topic.append(bytes(2_000))
                topic.flush()
            topic.retain()
            store.empty_trash(0)
        assert sum(batch.num_rows for batch in topic.scan()) < 50
        assert [path for path in open_paths() if path.endswith("(deleted)")] == []


def open_paths() -> list[str]:
    """The names of the files below this test's folders that are open."""
    gc.collect()
    paths = []
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            paths.append(os.readlink(f"/proc/self/fd/{number}"))
    return [path for path in paths if ".tube" in path or ".index" in path]
