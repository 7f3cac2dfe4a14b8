"""What the system reports of its files: changes by other processes, and where they are."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest

from tubestore.core.local_files import DirectoryWatch, network_kind
from tubestore.core.vfs import OsVfs

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
def test_interrupt_ends_a_wait(tmp_path: Path) -> None:
    watch = DirectoryWatch()
    watch.add(str(tmp_path))
    timer = threading.Timer(0.02, watch.interrupt)
    timer.start()
    assert watch.wait(60) == set()
    timer.join()
    watch.close()


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
