"""Paths of a store, and what is refused as its root."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tubestore.core.paths import checked_root, join


@pytest.mark.parametrize(
    ("parts", "path"),
    [(("/", "a"), "/a"), (("/a", "b", "c"), "/a/b/c"), (("a/", "b"), "a/b"), (("a",), "a")],
)
def test_parts_are_joined_by_one_slash(parts: tuple[str, ...], path: str) -> None:
    assert join(*parts) == path


@pytest.mark.parametrize("root", ["/s", "s", Path("/s")])
def test_a_root_is_a_text_or_a_path(root: Any) -> None:
    assert checked_root(root) == str(root)


@pytest.mark.parametrize(
    ("root", "error", "words"),
    [
        ("", ValueError, "the path of a directory is needed"),
        ("a\0b", ValueError, "the path of a directory is needed"),
        (b"/s", TypeError, "a text or a Path is needed"),
        (5, TypeError, "the path of a directory is needed"),
        (None, TypeError, "the path of a directory is needed"),
    ],
)
def test_what_is_no_path_of_a_directory_is_refused_by_its_value(
    root: Any, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words) as caught:
        checked_root(root)
    assert repr(root) in str(caught.value)
