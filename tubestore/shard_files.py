"""The files of a store as they lie, listed without opening the store.

What `check`, `dump` and `stat` stand on: works on a store that will not open, takes no lock,
writes nothing.

Next to read: `shard_bytes.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from tubestore.errors import NotAStore
from tubestore.filenames import (
    DATA_SUFFIX,
    INDEX_DIRECTORY,
    INDEX_SUFFIX,
    OWN_DIRECTORY,
    join,
    parse_segment_name,
    parse_store_key,
    store_key,
)
from tubestore.formats import INDEX_ENTRY
from tubestore.vfs import OsVfs, Vfs


class StoredFile(NamedTuple):
    """A segment's file as it was listed; offsets are absolute."""

    path: str
    start: int
    size: int

    @property
    def end(self) -> int:
        """The offset after its last byte."""
        return self.start + self.size


@dataclass(frozen=True, slots=True)
class ShardFiles:
    """The segments of one shard at the moment of the listing, in the order of their starts."""

    topic: str
    store_id: int
    directory: str
    index: tuple[StoredFile, ...]
    data: tuple[StoredFile, ...]
    #: Files with a segment's suffix and no number for a name: (path, size).
    strays: tuple[tuple[str, int], ...] = ()

    @property
    def entry_count(self) -> int:
        """Whole entries in all index files."""
        return sum(file.size // INDEX_ENTRY.size for file in self.index)

    def statistics(self) -> dict[str, Any]:
        """Return the row of `tubestore stat`: the files as they lie, nothing verified."""
        index, data = self.index, self.data
        return {
            "topic": self.topic,
            "store_id": self.store_id,
            "index_min": index[0].start if index else 0,
            "index_max": index[-1].start + index[-1].size // INDEX_ENTRY.size * INDEX_ENTRY.size
            if index
            else 0,
            "data_min": data[0].start if data else 0,
            "data_max": data[-1].end if data else 0,
            "entries": self.entry_count,
            "data_files": len(data),
            "index_files": len(index),
        }


def find_shards(
    root: str, vfs: Vfs | None = None, *, topic: str | None = None, store_id: int | None = None
) -> list[ShardFiles]:
    """List the shards of a store by topic and store id, or those asked for.

    NotAStore if the directory is missing, or certainly is something else.
    """
    vfs = vfs or OsVfs()
    check_root(root, vfs)
    keys = []
    for name, is_directory, _ in vfs.entries(root):
        key = parse_store_key(name) if is_directory else None
        if (
            key
            and topic in (None, key[0])
            and store_id in (None, key[1])
            and _is_shard(vfs, root, name)
        ):
            keys.append(key)
    return [list_shard(vfs, root, *key) for key in sorted(keys)]


def check_root(root: str, vfs: Vfs) -> None:
    """Raise NotAStore, saying where to look instead, if `root` cannot be a store's directory."""
    if not vfs.exists(root):
        raise NotAStore(root, "no such directory")
    names = {name: is_directory for name, is_directory, _ in vfs.entries(root)}
    if names.get(INDEX_DIRECTORY) or any(name.endswith(DATA_SUFFIX) for name in names):
        raise NotAStore(root, "this is one shard; give the directory above it")
    if names.get("commitlog"):
        where = f"; its shards are in {join(root, 'tube')}" if names.get("tube") else ""
        raise NotAStore(root, f"this is a RocketMQ store: use rocketcompat{where}")
    shards = any(d and parse_store_key(name) for name, d in names.items())
    if names and not shards and OWN_DIRECTORY not in names:
        raise NotAStore(root, "there is no store in this directory")


def _is_shard(vfs: Vfs, root: str, name: str) -> bool:
    """Whether a directory with a shard's name is one: it has segments, an index, or nothing."""
    entries = [e for e in vfs.entries(join(root, name)) if e[0] != OWN_DIRECTORY]
    return not entries or any(
        (is_directory and entry == INDEX_DIRECTORY) or entry.endswith(DATA_SUFFIX)
        for entry, is_directory, _ in entries
    )


def list_shard(vfs: Vfs, root: str, topic: str, store_id: int) -> ShardFiles:
    """List one shard's segments."""
    directory = join(root, store_key(topic, store_id))
    # The index first: a writer writes an entry after its record, so what the entries of this
    # listing point to is in the listing of the data, also while somebody writes.
    index, strays = _list(vfs, join(directory, INDEX_DIRECTORY), INDEX_SUFFIX)
    data, more = _list(vfs, directory, DATA_SUFFIX)
    return ShardFiles(topic, store_id, directory, index, data, strays + more)


def _list(
    vfs: Vfs, directory: str, suffix: str
) -> tuple[tuple[StoredFile, ...], tuple[tuple[str, int], ...]]:
    files, strays = [], []
    for name, is_directory, size in vfs.entries(directory):
        if is_directory or not name.endswith(suffix):
            continue
        path, start = join(directory, name), parse_segment_name(name, suffix)
        if start is None:
            strays.append((path, size))
        else:
            files.append(StoredFile(path, start, size))
    return tuple(sorted(files, key=lambda file: (file.start, file.path))), tuple(strays)
