"""The root of a store: a directory of this machine, or a URI of a copy in an object storage.

Every place that opens a root by its text comes here for the file system.
"""

from __future__ import annotations

import os
import re
from functools import lru_cache
from typing import Any

from tubestore.core.paths import checked_root
from tubestore.core.vfs import OsVfs, Vfs
from tubestore.disks.object_files import READ_ONLY, ObjectVfs
from tubestore.errors import ReadOnlyStore

#: Kinds of URIs that `pyarrow.fs.FileSystem.from_uri` takes, but for those of local files.
SCHEMES = ("s3", "gs", "gcs", "abfs", "abfss", "hdfs", "viewfs")
_URI = re.compile(rf"(?:{'|'.join(SCHEMES)})://")


def is_object_root(root: str) -> bool:
    """True if a root is a URI of an object storage.

    >>> is_object_root("s3://bucket/store"), is_object_root("/data"), is_object_root("s3a://b")
    (True, False, False)
    """
    return _URI.match(root) is not None


def absolute_root(root: Any) -> str:
    """Return a root as it can be used in any directory; a URI stays as it is."""
    found = checked_root(root)
    return found if is_object_root(found) else os.path.abspath(found)


def local_root(root: Any) -> str:
    """As `absolute_root`, for what writes; ReadOnlyStore for a URI."""
    found = absolute_root(root)
    refuse_objects(found)
    return found


def refuse_objects(root: str) -> None:
    """Raise ReadOnlyStore for a URI."""
    if is_object_root(root):
        raise ReadOnlyStore(f"{root}: {READ_ONLY}")


def disk_of(root: Any, *, descriptors_max: int | None = None) -> Vfs:
    """Return the file system of a root; NotAStore for a URI that cannot be used."""
    found = checked_root(root)
    return _objects(found, os.getpid()) if is_object_root(found) else OsVfs(descriptors_max)


@lru_cache(maxsize=64)
def _objects(root: str, pid: int) -> Vfs:
    """Return the objects of a root; connections are not shared with a forked process."""
    return ObjectVfs(root)
