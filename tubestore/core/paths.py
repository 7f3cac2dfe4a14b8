"""Paths, and the directories that hold what is ours in a root of either format."""

from __future__ import annotations

OWN_DIRECTORY = ".tubestore"
QUARANTINE_DIRECTORY = "quarantine"


def join(directory: str, *names: str) -> str:
    """Join path parts; text in, text out.

    >>> join("/", "a"), join("/a", "b", "c"), join("a/", "b")
    ('/a', '/a/b/c', 'a/b')
    """
    # Not posixpath.join, which looks at each part: opening a shard joins a dozen paths.
    return "/".join((directory.removesuffix("/"), *names))
