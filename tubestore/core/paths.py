"""Paths, and the names of the directories that tubestore adds to a root of either format."""

from __future__ import annotations

OWN_DIRECTORY = ".tubestore"
QUARANTINE_DIRECTORY = "quarantine"


def join(directory: str, *names: str) -> str:
    """Join path parts; text in, text out.

    >>> join("/", "a"), join("/a", "b", "c"), join("a/", "b")
    ('/a', '/a/b/c', 'a/b')
    """
    # Not posixpath.join, which examines each part: opening a shard joins a dozen paths.
    return "/".join((directory.removesuffix("/"), *names))
