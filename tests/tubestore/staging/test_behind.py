"""Staged bytes go behind the last byte of a file, and nowhere else."""

from __future__ import annotations

import pytest

from tubestore.staging.behind import WINDOW_BYTES, is_blank, is_free, put_behind
from tubestore.testing import FaultyVfs, MemoryVfs

LARGE = bytes(range(256)) * (WINDOW_BYTES // 256) + b"end"


def disk(live: bytes, **staged: bytes) -> MemoryVfs:
    vfs = MemoryVfs()
    for path, content in {"live": live, **staged}.items():
        vfs.replace_file(f"/{path}", content)
    return vfs


@pytest.mark.parametrize(
    ("there", "free"),
    [(b"", True), (b"new", True), (b"n", True), (b"\0ew", True), (b"\0" * 9, True), (b"x", False),
     (b"ne\0d", True), (b"nex", False)],
)  # fmt: skip
def test_a_place_with_zeros_and_the_staged_bytes_is_free(there: bytes, free: bool) -> None:
    vfs = disk(b"old" + there, staged=b"new")
    assert is_free(vfs, "/staged", "/live", 3, 3) == free


def test_a_place_is_compared_to_its_end() -> None:
    vfs = disk(LARGE[:-1] + b"x", staged=LARGE)
    assert not is_free(vfs, "/staged", "/live", 0, len(LARGE))


def test_staged_files_are_copied_to_their_places_and_go() -> None:
    vfs = disk(b"old", one=LARGE, two=b"two")
    put_behind(vfs, "/live", [("/one", 3, len(LARGE)), ("/two", 3 + len(LARGE), 3)])
    assert vfs.tree() == {"/live": b"old" + LARGE + b"two"}


def test_staged_files_stay_until_all_are_durable() -> None:
    vfs = disk(b"old", one=b"one", two=b"two")
    faulty = FaultyVfs(vfs)
    faulty.fail("sync")
    with pytest.raises(OSError, match="Input/output"):
        put_behind(faulty, "/live", [("/one", 3, 3), ("/two", 6, 3)])
    assert {"/one", "/two"} <= set(vfs.tree())


@pytest.mark.parametrize(
    ("path", "begins", "blank"),
    [
        ("/live", 0, False),
        ("/live", 3, True),
        ("/live", 2, False),
        ("/live", 90, True),
        ("/no", 0, True),
    ],
)
def test_a_place_is_blank_if_it_has_zeros_only_or_is_not_there(
    path: str, begins: int, blank: bool
) -> None:
    vfs = MemoryVfs()
    vfs.open("/live", create=True).pwrite(b"abc" + bytes(7), 0)
    assert is_blank(vfs, path, begins, 8) is blank
