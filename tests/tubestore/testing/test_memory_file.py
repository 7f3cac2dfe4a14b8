"""The bytes of a file in memory, and the handle on them, beside a file of the system."""

from __future__ import annotations

import pytest

from tests.support.engine.places import Place
from tests.support.engine.places import place as place


def test_a_view_is_read_only_and_survives_close_and_removal(place: Place) -> None:
    vfs, root = place
    file = vfs.open(f"{root}/a", create=True)
    file.pwrite(b"abcdef", 0)
    view = file.view(4)
    assert view == b"abcd"
    assert view.readonly
    file.close()
    vfs.remove(f"{root}/a")
    assert view == b"abcd"


def test_a_view_longer_than_the_file_is_refused(place: Place) -> None:
    vfs, root = place
    file = vfs.open(f"{root}/a", create=True)
    file.pwrite(b"abc", 0)
    with pytest.raises(ValueError, match=r"longer|greater"):
        file.view(4)


def test_a_write_after_a_view_is_taken_at_any_length(place: Place) -> None:
    vfs, root = place
    file = vfs.open(f"{root}/a", create=True)
    file.pwrite(b"abc", 0)
    view = file.view(3)
    for _ in range(5):
        file.pwrite(b"0123456789", file.size())
    assert view == b"abc"
    assert file.size() == 53
    assert file.view(53)[-10:] == b"0123456789"


def test_a_view_shows_what_is_written_over_it_later(place: Place) -> None:
    vfs, root = place
    vfs.open(f"{root}/a", create=True).pwrite(b"abc", 0)
    file = vfs.open(f"{root}/a")
    view = file.view(3)
    file.pwrite(b"defg", 3)
    file.pwrite(b"B", 1)
    assert view == b"aBc"


def test_a_view_of_a_hole_shows_zeros(place: Place) -> None:
    vfs, root = place
    file = vfs.open(f"{root}/a", create=True)
    file.truncate(5000)
    assert file.view(5000) == bytes(5000)


def test_data_is_found_behind_a_hole_and_none_behind_the_last(place: Place) -> None:
    vfs, root = place
    file = vfs.open(f"{root}/a", create=True)
    file.truncate(1 << 20)
    file.pwrite(b"x", 500_000)
    file.sync()
    found = file.next_data(0)
    assert found is not None
    assert 0 <= found <= 500_000
    assert file.next_data(500_000) == 500_000
    assert file.next_data(1 << 20) is None


def test_what_is_closed_opens_itself_again(place: Place) -> None:
    vfs, root = place
    file = vfs.open(f"{root}/a", create=True)
    file.pwrite(b"abc", 0)
    file.close()
    assert file.pread(3, 0) == b"abc"


def test_an_open_file_outlives_its_name(place: Place) -> None:
    vfs, root = place
    file = vfs.open(f"{root}/a", create=True)
    vfs.remove(f"{root}/a")
    file.pwrite(b"abc", 0)
    assert file.pread(3, 0) == b"abc"
    file.close()
    with pytest.raises(FileNotFoundError):
        file.pread(3, 0)
