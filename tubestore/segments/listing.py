"""The files of a store as they lie, listed without opening the store.

`check`, `dump` and `stat` are built on it. It works on a store that will not open, takes no lock
and writes nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Hashable, Iterable
from dataclasses import dataclass, replace
from os.path import basename
from typing import Any, NamedTuple

from tubestore.core.paths import OWN_DIRECTORY, join
from tubestore.core.vfs import Vfs
from tubestore.disks.roots import disk_of
from tubestore.errors import CorruptRecord, NotAStore
from tubestore.record.layouts import INDEX_ENTRY
from tubestore.record.names import (
    COMMIT_LOG_DIRECTORY,
    DATA_SUFFIX,
    INDEX_DIRECTORY,
    INDEX_SUFFIX,
    parse_segment_name,
    parse_store_key,
    store_key,
)
from tubestore.segments.segment_list import without_merged
from tubestore.staging.commit_records import CommitRecords
from tubestore.staging.job_files import staging_directory

#: Topic and store id of a shard.
Key = tuple[str, int]
#: What a directory has of a name: the name, whether it is a directory, bytes.
Row = tuple[str, bool, int]
#: How often a store is listed until no job was recorded or finished meanwhile.
_LISTINGS = 5


class StoredFile(NamedTuple):
    """A segment's file as it was listed; offsets are absolute."""

    path: str
    start: int
    size: int
    #: The path that it gets, if a job that is half published has it in its staging directory.
    final: str = ""
    #: Its bytes, if they are in the root's journal and in no segment yet.
    content: bytes = b""
    #: Where its bytes begin in the final file: not at 0 if they go behind those that are there.
    begins: int = 0

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
    root: str,
    vfs: Vfs | None = None,
    *,
    topic: str | None = None,
    store_id: int | None = None,
    with_pending: bool = False,
    wanted: Callable[[str, int], bool] = lambda _topic, _store_id: True,
    before: KnownShards | None = None,
) -> list[ShardFiles]:
    """List the shards of a store by topic and store id, or those asked for.

    A job that is half published is left out; `with_pending` lists it as it will be when it
    is finished. `before` has the last listing, and gets this one. NotAStore if the directory is
    missing, or certainly is something else.
    """

    def asked(key: tuple[str, int]) -> bool:
        return topic in (None, key[0]) and store_id in (None, key[1]) and wanted(*key)

    vfs = vfs or disk_of(root)
    shards: list[ShardFiles] = []
    for _ in range(_LISTINGS):
        job = _Job(vfs, root)
        there = _keys_in(vfs, root) if before is None else before.keys(vfs, root)
        keys = set(filter(asked, there))
        staged = set(filter(asked, job.added)) if with_pending else set()
        keys |= staged
        shards = []
        for key in sorted(keys):
            directory = join(root, store_key(*key))
            if before is None:
                listed = _listed(vfs, directory, key)
            else:
                listed = before.listed(vfs, directory, key)
            if listed.is_shard or key in staged:
                shards.append(_beside_job(listed.files, job, with_pending=with_pending))
        if before is not None:
            before.keep(keys)
        if job.is_still_so():
            break
    return shards


def check_root(root: str, vfs: Vfs) -> list[Row]:
    """Return what is in a root; NotAStore, with a hint where to go, if it cannot be a store's."""
    if not vfs.exists(root):
        raise NotAStore(root, "no such directory")
    try:
        rows = vfs.entries(root)
    except NotADirectoryError:
        raise NotAStore(root, "this is a file; a store is a directory") from None
    names = {name: is_directory for name, is_directory, _ in rows}
    if names.get(COMMIT_LOG_DIRECTORY):  # it has an `index`, too
        where = f"; its shards are in {join(root, 'tube')}" if names.get("tube") else ""
        raise NotAStore(root, f"this is a RocketMQ store: use rocketcompat{where}")
    if names.get(INDEX_DIRECTORY) or any(name.endswith(DATA_SUFFIX) for name in names):
        raise NotAStore(root, "this is one shard; give the directory above it")
    shards = any(d and parse_store_key(name) for name, d in names.items())
    if names and not shards and OWN_DIRECTORY not in names:
        raise NotAStore(root, "there is no store in this directory")
    return rows


def is_shard(vfs: Vfs, path: str) -> bool:
    """True if a directory with a shard's name has an index, a data file or state of our own.

    An empty one has no messages and promises none: another program's directory can be named so.
    """
    if vfs.exists(join(path, INDEX_DIRECTORY)):  # mostly; a listing costs more
        return True
    return _is_of_shard(vfs.entries(path))


def lost_state(vfs: Vfs, root: str) -> CorruptRecord | None:
    """Return what is wrong with a root that lacks its state; None if it has it, or never had any.

    A copy of `ROOT/*` leaves the state out. The shards of such a root have state of our own;
    those of a TubeMQ broker have none.
    """
    own = join(root, OWN_DIRECTORY)
    if vfs.exists(own):
        return None
    try:
        names = vfs.entries(root)
    except NotADirectoryError:
        return None  # it is refused
    for name, is_directory, _ in names:
        if is_directory and parse_store_key(name) and vfs.entries(join(root, name, OWN_DIRECTORY)):
            text = "is missing: the settings of topics, the ids of published jobs, the positions of"
            return CorruptRecord(own, 0, f"{text} groups and the journal were in it; put it back")
    return None


def list_shard(
    vfs: Vfs, root: str, topic: str, store_id: int, *, with_pending: bool = False
) -> ShardFiles:
    """List one shard's segments; `with_pending` as in `find_shards`."""
    job = _Job(vfs, root)  # before the files
    shard = list_files(vfs, join(root, store_key(topic, store_id)))
    return _beside_job(shard, job, with_pending=with_pending)


def list_files(vfs: Vfs, directory: str) -> ShardFiles:
    """List the segments in one directory as they lie, whatever jobs are unfinished."""
    return _listed(vfs, directory, parse_store_key(basename(directory)) or ("", 0)).files


def _beside_job(shard: ShardFiles, job: _Job, *, with_pending: bool) -> ShardFiles:
    """Return a shard without what a job that is half published has of it, or with all of that."""
    key, index, data = (shard.topic, shard.store_id), shard.index, shard.data
    if with_pending and key in job.added:
        staged_index, staged_data = job.added[key]
        index, data = _with_staged(index, staged_index), _with_staged(data, staged_data)
    elif not with_pending and key in job.limits:
        index_end, data_end = job.limits[key]
        index, data = files_before(index, index_end), files_before(data, data_end)
    else:
        return shard
    return replace(shard, index=index, data=data)


class _Listed(NamedTuple):
    """A directory with a shard's name, as it was listed."""

    is_shard: bool
    files: ShardFiles
    #: `Vfs.settled_names` of its index and of itself.
    index_names: Hashable | None = None
    names: Hashable | None = None

    def again(self, vfs: Vfs) -> _Listed | None:
        """Look up how long the live files are now; None if the names in here must be listed."""
        shard = self.files
        if self.index_names is None or self.names is None:
            return None
        # As at a listing, the index before the data.
        if vfs.settled_names(join(shard.directory, INDEX_DIRECTORY)) != self.index_names:
            return None
        index_size = vfs.size_of(shard.index[-1].path) if shard.index else 0
        if vfs.settled_names(shard.directory) != self.names:
            return None
        data_size = vfs.size_of(shard.data[-1].path) if shard.data else 0
        if index_size is None or data_size is None:
            return None
        index, data = _grown(shard.index, index_size), _grown(shard.data, data_size)
        if index is shard.index and data is shard.data:
            return self
        return self._replace(files=replace(shard, index=index, data=data))


class KnownShards:
    """The shards of a store at its last listing, so that the next one costs some look-ups each.

    Only the last file of a stream grows. So where no name has changed, its length is all that is
    looked up; and a shard that is as it was comes out as the same object. For one thread.
    """

    def __init__(self) -> None:
        self._shards: dict[Key, _Listed] = {}
        self._keys: list[Key] = []
        #: `Vfs.settled_names` of the root.
        self._names: Hashable | None = None

    def keys(self, vfs: Vfs, root: str) -> list[Key]:
        """Return which directories of a root have a shard's name; NotAStore as `check_root`."""
        names = vfs.settled_names(root)
        if names is None or names != self._names:
            self._keys, self._names = _keys_in(vfs, root), names
        return self._keys

    def listed(self, vfs: Vfs, directory: str, key: Key) -> _Listed:
        """List the files in the directory of a shard."""
        before = self._shards.get(key)
        now = before and before.again(vfs)
        if now is None:
            # Names before files: what comes in between is a change.
            index_names = vfs.settled_names(join(directory, INDEX_DIRECTORY))
            names = vfs.settled_names(directory)
            now = _listed(vfs, directory, key)._replace(index_names=index_names, names=names)
        if now is not before:
            self._shards[key] = now
        return now

    def keep(self, keys: Collection[Key]) -> None:
        """Forget other shards than these."""
        if len(keys) < len(self._shards):
            self._shards = {key: self._shards[key] for key in keys}


def _keys_in(vfs: Vfs, root: str) -> list[Key]:
    found = (
        parse_store_key(name) for name, is_directory, _ in check_root(root, vfs) if is_directory
    )
    return [key for key in found if key is not None]


def _listed(vfs: Vfs, directory: str, key: Key) -> _Listed:
    # The index first: a writer writes an entry after its record, so what the entries of this
    # listing point to is in the listing of the data, also beside a writer.
    index_directory = join(directory, INDEX_DIRECTORY)
    index, strays = _segments(vfs, index_directory, vfs.entries(index_directory), INDEX_SUFFIX)
    rows = vfs.entries(directory)
    data, more = _segments(vfs, directory, rows, DATA_SUFFIX)
    return _Listed(_is_of_shard(rows), ShardFiles(*key, directory, index, data, strays + more))


def _is_of_shard(rows: Iterable[Row]) -> bool:
    return any(
        name in (INDEX_DIRECTORY, OWN_DIRECTORY) or name.endswith(DATA_SUFFIX)
        for name, _, _ in rows
    )


def _grown(files: tuple[StoredFile, ...], size: int) -> tuple[StoredFile, ...]:
    """Return files of which the last one has so many bytes now."""
    if not files or files[-1].size == size:
        return files
    return (*files[:-1], files[-1]._replace(size=size))


class _Job:
    """The job that is recorded and not finished, if there is one, as its files lie."""

    def __init__(self, vfs: Vfs, root: str) -> None:
        self._records = CommitRecords(vfs, root)
        self._moment = self._read_moment()
        #: Files that are still staged, by shard: those of the index and those of the data.
        self.added: dict[tuple[str, int], tuple[list[StoredFile], list[StoredFile]]] = {}
        #: Where the job begins, by shard: index and data offset.
        self.limits: dict[tuple[str, int], tuple[int, int]] = {}
        record = None
        with contextlib.suppress(NotAStore):  # `check` reports what is wrong with the record
            record = self._records.pending()
        if record is None:
            return
        self.limits = record.limits()
        names = vfs.entries(staging_directory(root, record.job_id))
        sizes = {name: size for name, is_directory, size in names if not is_directory}
        data, index = record.moves(root)
        for file, *moves in zip(record.files, index, data, strict=True):
            lists = self.added.setdefault(file.shard, ([], []))
            for files, move in zip(lists, moves, strict=True):
                if sizes.get(basename(move.staged)) == move.size:
                    staged = StoredFile(move.staged, move.start, move.size, move.final)
                    files.append(staged._replace(begins=move.begins))

    def _read_moment(self) -> tuple[int, bool] | None:
        with contextlib.suppress(NotAStore):
            return self._records.moment()
        return None

    def is_still_so(self) -> bool:
        """True if no job was recorded or finished meanwhile."""
        return self._read_moment() == self._moment


def _with_staged(
    files: tuple[StoredFile, ...], staged: Iterable[StoredFile]
) -> tuple[StoredFile, ...]:
    staged = list(staged)
    behind = min((file.start for file in staged if file.begins), default=None)
    if behind is not None:  # what was copied so far is in the staged file, too
        files = files_before(files, behind)
    found = {file.path: file for file in files}
    for file in staged:
        if file.begins:
            found[file.path] = file
            continue
        if found.get(file.final, file).size < file.size:  # an empty one will be replaced
            del found[file.final]
        if file.final not in found:
            found[file.path] = file
    return tuple(sorted(found.values(), key=lambda file: (file.start, file.path)))


def files_before(files: tuple[StoredFile, ...], end: int) -> tuple[StoredFile, ...]:
    """Return the files without their bytes at `end` or behind it."""
    kept = (file._replace(size=min(file.size, end - file.start)) for file in files)
    return tuple(file for file in kept if file.size >= 0)


def _segments(
    vfs: Vfs, directory: str, rows: Iterable[Row], suffix: str
) -> tuple[tuple[StoredFile, ...], tuple[tuple[str, int], ...]]:
    """Return the segments in a directory by their starts, and files with no number for a name."""
    found: list[tuple[int, str, int]] = []
    strays: list[tuple[str, int]] = []
    for name, is_directory, size in rows:
        if is_directory or not name.endswith(suffix):
            continue
        start, path = parse_segment_name(name, suffix), join(directory, name)
        if start is None:
            strays.append((path, size))
        else:
            found.append((start, path, size))
    if len(found) > 1:
        found, _ = without_merged(vfs, sorted(found))
    return tuple([StoredFile(path, start, size) for start, path, size in found]), tuple(strays)


def chained(files: tuple[StoredFile, ...]) -> tuple[tuple[StoredFile, ...], list[StoredFile]]:
    """Split files into those that follow each other without overlap, and the others.

    Where two overlap: if a file ends where a later one starts, it is right, and files between are
    not part of the stream. If it does not, it has grown too long, and is taken up to the next.
    """
    kept: list[StoredFile] = []
    others: list[StoredFile] = []
    starts = {file.start for file in files}
    for file in files:
        before = kept[-1] if kept else None
        if before is not None and file.start == before.start:  # two names for one number
            short, long = sorted((before, file), key=lambda f: f.size)
            others.append(short)
            kept[-1] = long
        elif before is None or file.start >= before.end:
            kept.append(file)
        elif before.end in starts:
            others.append(file)
        else:
            kept[-1] = before._replace(size=file.start - before.start)
            kept.append(file)
    return tuple(kept), others
