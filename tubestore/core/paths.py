"""Paths, and the names of the directories that tubestore adds to a root of either format."""

from __future__ import annotations

import os
from typing import Any

OWN_DIRECTORY = ".tubestore"
QUARANTINE_DIRECTORY = "quarantine"
TRASH_DIRECTORY = "trash"
#: A store's identity; in the root's own directory, of shards and of a log alike.
STORE_FILE = "store.json"


def join(directory: str, *names: str) -> str:
    """Join path parts; text in, text out.

    >>> join("/", "a"), join("/a", "b", "c"), join("a/", "b")
    ('/a', '/a/b/c', 'a/b')
    """
    # Not posixpath.join, which examines each part: opening a shard joins a dozen paths.
    return "/".join((directory.removesuffix("/"), *names))


def checked_root(root: Any) -> str:
    """Return the directory of a store as a text; an empty one would be the current directory."""
    try:
        found = os.fspath(root)
    except TypeError:
        raise TypeError(f"root {root!r}: the path of a directory is needed") from None
    if not isinstance(found, str):
        raise TypeError(f"root {root!r}: a text or a Path is needed")
    if not found or "\0" in found:
        raise ValueError(f"root {root!r}: the path of a directory is needed")
    return found
