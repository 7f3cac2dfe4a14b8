"""Objects read as files: ranges, listings, and one sentence for everything that would write."""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.engine.objects import Requests, directory_as_objects, uri_of
from tubestore.core.vfs import Vfs, VfsFile
from tubestore.disks.object_files import READ_ONLY, ObjectVfs
from tubestore.errors import NotAStore


@pytest.fixture
def objects(tmp_path: Path) -> Iterator[Requests]:
    (tmp_path / "store" / "logs-0" / "index").mkdir(parents=True)
    (tmp_path / "store" / "logs-0" / "a.tube").write_bytes(b"0123456789")
    (tmp_path / "store" / "note").write_bytes(b"")
    with directory_as_objects(tmp_path) as requests:
        yield requests


@pytest.fixture
def root(tmp_path: Path, objects: Requests) -> str:
    return uri_of(tmp_path / "store", tmp_path)


@pytest.fixture
def vfs(root: str) -> ObjectVfs:
    return ObjectVfs(root)


def test_it_is_a_file_system_of_the_store(vfs: ObjectVfs) -> None:
    assert isinstance(vfs, Vfs)


@pytest.mark.parametrize(
    ("size", "position", "found"),
    [(4, 2, b"2345"), (40, 8, b"89"), (4, 10, b""), (4, 99, b""), (0, 0, b"")],
)
def test_a_read_ends_with_the_object(
    vfs: ObjectVfs, root: str, size: int, position: int, found: bytes
) -> None:
    file = vfs.open(f"{root}/logs-0/a.tube", writable=False)
    assert file.pread(size, position) == found
    buffer = bytearray(size)
    assert file.pread_into(memoryview(buffer), position) == len(found)
    assert buffer.startswith(found)


def test_a_read_fetches_what_it_returns_and_no_more(
    vfs: ObjectVfs, root: str, objects: Requests
) -> None:
    file = vfs.open(f"{root}/logs-0/a.tube", writable=False)
    assert objects.bytes == 0
    file.pread(3, 1)
    assert bytes(file.view(5)) == b"01234"
    assert objects.bytes == 3 + 5


def test_a_view_ends_with_the_object(vfs: ObjectVfs, root: str) -> None:
    file = vfs.open(f"{root}/logs-0/a.tube", writable=False)
    with pytest.raises(ValueError, match="a view of 11 bytes is longer"):
        file.view(11)


def test_an_object_has_no_holes(vfs: ObjectVfs, root: str) -> None:
    file = vfs.open(f"{root}/logs-0/a.tube", writable=False)
    assert [file.next_data(place) for place in (0, 9, 10)] == [0, 9, None]


def test_a_file_that_was_closed_is_read_again(vfs: ObjectVfs, root: str, tmp_path: Path) -> None:
    file = vfs.open(f"{root}/logs-0/a.tube", writable=False)
    file.close()
    file.close()
    assert file.pread(2, 0) == b"01"
    assert file.is_current()
    (tmp_path / "store" / "logs-0" / "a.tube").write_bytes(b"0")
    assert not file.is_current()


def test_a_directory_is_listed_with_one_call(vfs: ObjectVfs, root: str, objects: Requests) -> None:
    assert vfs.entries(root) == [("logs-0", True, 0), ("note", False, 0)]
    assert vfs.entries(f"{root}/logs-0") == [("a.tube", False, 10), ("index", True, 0)]
    assert objects.listings == 2
    assert vfs.entries(f"{root}/missing") == []


def test_an_object_is_no_directory(vfs: ObjectVfs, root: str) -> None:
    with pytest.raises(NotADirectoryError):
        vfs.entries(f"{root}/note")


def test_what_is_there_exists(vfs: ObjectVfs, root: str) -> None:
    there = [vfs.exists(path) for path in (root, f"{root}/logs-0", f"{root}/note", f"{root}/not")]
    assert there == [True, True, True, False]


def test_a_small_file_is_read_whole(vfs: ObjectVfs, root: str, tmp_path: Path) -> None:
    assert vfs.read_file(f"{root}/logs-0/a.tube") == b"0123456789"
    assert vfs.read_file(f"{root}/note") == b""
    changed = (tmp_path / "store" / "note").stat().st_mtime_ns // 1_000_000
    assert vfs.modified_ms(f"{root}/note") == changed


@pytest.mark.parametrize(
    "use",
    [
        lambda vfs, path: vfs.open(path, writable=False),
        lambda vfs, path: vfs.read_file(path),
        lambda vfs, path: vfs.modified_ms(path),
    ],
    ids=["open", "read_file", "modified_ms"],
)
def test_a_missing_object_is_named(
    vfs: ObjectVfs, root: str, use: Callable[[Vfs, str], Any]
) -> None:
    with pytest.raises(FileNotFoundError) as raised:
        use(vfs, f"{root}/logs-0/b.tube")
    assert raised.value.filename == f"{root}/logs-0/b.tube"


def test_a_path_outside_of_the_root_is_refused(vfs: ObjectVfs, root: str) -> None:
    for path in ("/data/commitlog", f"{root}2/a"):
        with pytest.raises(OSError, match="not below s3://") as raised:
            vfs.exists(path)
        assert raised.value.filename == path


def test_no_process_holds_a_lock_and_nothing_changes(vfs: ObjectVfs, root: str) -> None:
    assert vfs.lock_owners(f"{root}/lock") == []
    assert vfs.lock_holder(f"{root}/lock") == ""
    watch = vfs.watch()
    assert watch.add(root)
    watch.interrupt()
    assert watch.wait(60) == set()
    watch.close()


WRITES: dict[str, Callable[[Vfs, str], Any]] = {
    "open": lambda vfs, path: vfs.open(path),
    "create": lambda vfs, path: vfs.open(path, create=True),
    "make_directories": lambda vfs, path: vfs.make_directories(path),
    "rename": lambda vfs, path: vfs.rename(path, path),
    "link": lambda vfs, path: vfs.link(path, path),
    "remove": lambda vfs, path: vfs.remove(path),
    "remove_directory": lambda vfs, path: vfs.remove_directory(path),
    "sync_directory": lambda vfs, path: vfs.sync_directory(path),
    "replace_file": lambda vfs, path: vfs.replace_file(path, b""),
    "lock": lambda vfs, path: vfs.lock(path, kind="flock"),
    "file_system": lambda vfs, path: vfs.file_system(path),
}
FILE_WRITES: dict[str, Callable[[VfsFile], Any]] = {
    "pwrite": lambda file: file.pwrite(b"x", 0),
    "truncate": lambda file: file.truncate(0),
    "sync": lambda file: file.sync(),
    "allocate": lambda file: file.allocate(1),
    "shared_map": lambda file: file.shared_map(1),
}


@pytest.mark.parametrize("name", WRITES)
def test_what_writes_is_refused_with_one_sentence(vfs: ObjectVfs, root: str, name: str) -> None:
    with pytest.raises(OSError, match=re.escape(READ_ONLY)) as raised:
        WRITES[name](vfs, f"{root}/note")
    assert (raised.value.errno, raised.value.filename) == (errno.EROFS, f"{root}/note")


@pytest.mark.parametrize("name", FILE_WRITES)
def test_what_writes_into_a_file_is_refused(vfs: ObjectVfs, root: str, name: str) -> None:
    file = vfs.open(f"{root}/note", writable=False)
    with pytest.raises(OSError, match=re.escape(READ_ONLY)):
        FILE_WRITES[name](file)


@pytest.mark.parametrize(
    ("root", "says"),
    [
        ("s3://key:secret@bucket/s?region=r", "a path is printed: give the credentials in the"),
        ("s3://bucket/s?colour=red", "'colour'"),
        ("s3://bucket/s?anonymous=true&colour=red", "'colour'"),
        ("s3://bucket/a b?region=r", "Cannot parse URI"),
    ],
)
def test_a_uri_that_cannot_be_used_is_refused_without_its_secret(root: str, says: str) -> None:
    with pytest.raises(NotAStore, match=says) as raised:
        ObjectVfs(root)
    assert "secret" not in str(raised.value)


def test_a_bucket_is_read_without_an_account() -> None:
    made = ObjectVfs("s3://bucket/s?anonymous=true&region=r")
    assert made._base == "bucket/s"
