"""The log's files as they lie: holes, wrong lengths, foreign names, several directories."""

from __future__ import annotations

from rocketcompat.inspect.log_files import LogFiles
from tubestore.testing.memory_vfs import MemoryVfs

SIZE = 100


def files_of(*found: tuple[str, bytes]) -> tuple[MemoryVfs, LogFiles]:
    """A log in /s/a and /s/b, of files of 100 bytes."""
    vfs = MemoryVfs()
    for directory in ("/s/a", "/s/b"):
        vfs.make_directories(directory)
    for path, content in found:
        vfs.open(f"/s/{path}", create=True).pwrite(content, 0)
    return vfs, LogFiles(vfs, "/s", ["/s/a", "/s/b"], SIZE)


def name(start: int) -> str:
    return f"{start:020d}"


def test_a_log_without_files_is_empty() -> None:
    _, log = files_of()
    assert (log.min_offset, log.max_offset, log.size, log.last) == (0, 0, 0, None)
    assert log.find(0) is None
    assert log.read(0, 10) == b""


def test_files_of_all_directories_are_in_the_order_of_their_offsets() -> None:
    _, log = files_of((f"b/{name(200)}", b"c" * SIZE), (f"a/{name(100)}", b"b" * SIZE))
    assert [file.path for file in log.files] == [f"/s/a/{name(100)}", f"/s/b/{name(200)}"]
    assert (log.min_offset, log.max_offset) == (100, 300)


def test_what_lies_in_a_hole_or_behind_a_files_end_is_read_as_nothing() -> None:
    _, log = files_of((f"a/{name(0)}", b"a" * 60), (f"a/{name(200)}", b"c" * SIZE))
    assert log.read(50, 30) == b"a" * 10
    assert log.find(150) is None
    assert log.read(150, 10) == b""
    assert log.read(290, 30) == b"c" * 10
    assert log.size == 300


def test_a_file_is_no_longer_than_the_others_and_an_empty_or_foreign_one_is_none() -> None:
    _, log = files_of((f"a/{name(0)}", b"a" * 150), (f"a/{name(100)}", b""), ("a/notes", b"x"))
    assert [file.wrote_position for file in log.files] == [SIZE]


def test_files_that_came_and_went_are_seen_when_it_is_looked_again() -> None:
    vfs, log = files_of((f"a/{name(0)}", b"a" * SIZE))
    vfs.open(f"/s/b/{name(100)}", create=True).pwrite(b"b" * SIZE, 0)
    vfs.remove(f"/s/a/{name(0)}")
    assert log.min_offset == 0
    log.refresh()
    assert (log.min_offset, log.max_offset) == (100, 200)
