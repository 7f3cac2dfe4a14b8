"""The files of a job and their places: staged files, moves, the record that makes it final.

<root>/.tubestore/staging/<job>/<name>.tube, .index   what a job has written
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Protocol
from urllib.parse import quote

import numpy as np
import xxhash

from tubestore.core.paths import OWN_DIRECTORY, join
from tubestore.errors import InvalidMessage, InvalidName
from tubestore.options import PARTITIONS_PER_STORE
from tubestore.record.layouts import INDEX_ENTRY
from tubestore.record.names import (
    DATA_SUFFIX,
    INDEX_DIRECTORY,
    INDEX_SUFFIX,
    STAGING_DIRECTORY,
    check_topic_name,
    segment_name,
    store_key,
)
from tubestore.values import checked_whole

#: Of a job's files of state, all of them.
VERSION = 1
JOB_ID_LENGTH_MAX = 200
#: The feature of a record of which files go behind the last byte of others.
BEHIND_FEATURE = "behind"
#: The id of a job that is one of many in order: a name, and a number.
NUMBERED = re.compile(r"(.*):(0|[1-9]\d{0,17})", re.DOTALL)
_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


def check_job_id(job_id: str) -> str:
    """Return the id, or raise InvalidName: a text of 1 to 200 printable characters."""
    if not isinstance(job_id, str) or not job_id:
        raise InvalidName(str(job_id), "a job needs an id")
    if len(job_id) > JOB_ID_LENGTH_MAX or not job_id.isprintable():
        reason = f"a job's id has at most {JOB_ID_LENGTH_MAX} characters, all printable"
        raise InvalidName(job_id, reason)
    return job_id


def check_publish_arguments(staged: Any, threads: Any) -> None:
    """Raise TypeError or ValueError unless they can be a job's pieces and a number of threads."""
    if isinstance(staged, str | bytes | Mapping) or not isinstance(staged, Iterable):
        raise TypeError(f"staged {staged!r}: a list of what the writers described is needed")
    if threads is not None:
        checked_whole("threads", threads, least=1)


def check_query(job_id: str, query: str | None) -> str | None:
    """Return the query, or raise InvalidName unless its job is a numbered batch."""
    if not isinstance(query, str | None):
        raise TypeError(f"query {query!r}: a text is needed")
    check_job_id(job_id)
    if query is not None and not NUMBERED.fullmatch(job_id):
        raise InvalidName(job_id, "a batch of a query is named by a name, a colon and a number")
    return query


def staging_directory(root: str, job_id: str) -> str:
    """Return the directory of a job's files until it is published."""
    return join(root, OWN_DIRECTORY, STAGING_DIRECTORY, f"job-{job_directory(job_id)}")


def job_directory(job_id: str) -> str:
    """Return a job's id as a part of a file's name; InvalidName."""
    name = quote(check_job_id(job_id), safe="")
    if len(name) > 200:  # a file name has 255 bytes
        name = f"{name[:100]}%{xxhash.xxh3_128_hexdigest(job_id.encode())}"
    return name


def content_of(topics: Any, checksums: Any) -> int:
    """Return a number that the same messages have, whatever their order and their files.

    `topics`: a number of `topic_number` for each message, or one for all; `checksums`: of the
    messages' bodies, 32 bits each. The numbers of several files add up, modulo 2**64.
    """
    mixed = checksums.astype(np.int32).view(np.uint32).astype(np.uint64)
    mixed += topics
    mixed *= np.uint64(0x9E3779B97F4A7C15)
    mixed ^= mixed >> np.uint64(29)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(32)
    return int(mixed.sum(dtype=np.uint64))


def topic_number(topic: str) -> Any:
    """Return a topic as a number for `content_of`."""
    return np.uint64(xxhash.xxh3_64_intdigest(topic.encode()))


class Described(Protocol):
    """The facts of a staged file's description, for shards and for a log."""

    @property
    def rows(self) -> int:
        """Messages."""

    @property
    def content(self) -> int:
        """Their `content_of`."""


def content_sum(staged: Iterable[Described]) -> str:
    """Return the sum of the files' contents in hexadecimal; "" if one was not summed up."""
    contents = [file.content for file in staged]
    return f"{sum(contents) % (1 << 64):016x}" if all(contents) else ""


@dataclass(frozen=True, slots=True)
class Batch:
    """The query that a micro-batch is of, and the rows that it has."""

    query: str
    rows: int
    #: The sum of their `content_of` in hexadecimal.
    content: str

    @classmethod
    def of(cls, query: str, staged: Iterable[Described]) -> Batch:
        """Describe a batch of a query by the files that its tasks staged."""
        files = list(staged)
        total = sum(file.content for file in files) % (1 << 64)
        return cls(query, sum(file.rows for file in files), f"{total:016x}")

    @classmethod
    def from_json(cls, given: Any) -> Batch | None:
        """Read `asdict` of one, or None; KeyError or TypeError for nonsense."""
        if given is None:
            return None
        return cls(str(given["query"]), int(given["rows"]), str(given["content"]))


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A pair of files, data and index, that one task wrote for one shard.

    Small and plain: the task pickles it or sends it as JSON to the process that publishes.
    """

    topic: str
    store_id: int
    #: Without suffix, in the job's staging directory.
    name: str
    rows: int
    data_size: int
    #: Smallest and largest received time, ms.
    first_time: int
    last_time: int
    #: Partitions that the shard must have: the largest place in it, and one.
    partitions: int
    #: True if the rows brought their message ids; else `publish` gives them.
    has_ids: bool
    #: xxh3 of the files as they were staged.
    data_digest: str
    index_digest: str
    #: The place in the shard that its offsets were written for: bytes of index and of data before
    #: it. 0 if the place was not known, and in descriptions of earlier versions.
    index_start: int = 0
    data_start: int = 0
    #: True if the pair is on stable storage; else `publish` syncs it.
    synced: bool = True
    #: `content_of` its messages; 0 in descriptions of earlier versions.
    content: int = 0

    @property
    def index_size(self) -> int:
        """Bytes of the index file."""
        return self.rows * INDEX_ENTRY.size

    @property
    def files(self) -> tuple[tuple[str, int], ...]:
        """Names, in the job's staging directory, and bytes of the pair."""
        return (self.name + DATA_SUFFIX, self.data_size), (
            self.name + INDEX_SUFFIX,
            self.index_size,
        )

    def as_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        return _fields_of(self)

    @classmethod
    def from_json(cls, given: StagedFile | Mapping[str, Any]) -> StagedFile:
        """Take what `as_json` returned, or raise InvalidMessage."""
        if isinstance(given, cls):
            return given
        try:
            staged = cls(**given)  # type: ignore[arg-type]
            for field in fields(cls):
                value = getattr(staged, field.name)
                if type(value).__name__ != field.type:
                    raise TypeError(f"{field.name} = {value!r} is no {field.type}")
        except TypeError as error:
            raise InvalidMessage(f"not the description of a staged file: {error}") from error
        return staged

    def check(self) -> None:
        """Raise InvalidMessage if no writer can have made this; InvalidName for its topic."""
        check_topic_name(self.topic)
        if not _FILE_NAME.fullmatch(self.name):
            raise InvalidMessage(f"staged file {self.name!r}: not a name in a staging directory")
        possible = 0 <= self.store_id < PARTITIONS_PER_STORE
        possible &= 1 <= self.partitions <= PARTITIONS_PER_STORE
        possible &= self.index_start >= 0 and self.data_start >= 0
        if not possible or self.rows < 1 or self.data_size < 1:
            raise InvalidMessage(f"staged file {self.name}: impossible values, {self}")


@dataclass(frozen=True, slots=True)
class PlacedFile:
    """A staged pair and its place in its shard: absolute byte offsets.

    A file becomes a file of the shard, or its bytes go behind the last one of the live file.
    """

    topic: str
    store_id: int
    name: str
    rows: int
    index_start: int
    data_start: int
    data_size: int
    first_time: int
    last_time: int
    #: The starts of the files that it goes behind; None: it becomes a file.
    index_behind: int | None = None
    data_behind: int | None = None

    @property
    def index_size(self) -> int:
        """Bytes of the index file."""
        return self.rows * INDEX_ENTRY.size

    @property
    def shard(self) -> tuple[str, int]:
        """Topic and store id."""
        return self.topic, self.store_id


@dataclass(frozen=True, slots=True)
class Move:
    """A file of a job, where it was staged and where it belongs."""

    staged: str
    final: str
    start: int
    size: int
    #: Where its bytes begin in the final file: 0 if they are all of it.
    begins: int = 0


@dataclass(frozen=True, slots=True)
class CommitRecord:
    """A job that is in the store: its number, and every file of it in the order of its shards."""

    number: int
    job_id: str
    time_ms: int
    files: tuple[PlacedFile, ...]
    #: Of a query's micro-batch.
    batch: Batch | None = None
    #: `content_sum` of its files; in records of earlier versions "".
    content: str = ""

    @property
    def rows(self) -> int:
        """Messages of the job."""
        return sum(file.rows for file in self.files)

    @property
    def data_size(self) -> int:
        """Bytes of its data files."""
        return sum(file.data_size for file in self.files)

    def limits(self) -> dict[tuple[str, int], tuple[int, int]]:
        """Return, by shard, the index and data offsets at which the job begins."""
        found: dict[tuple[str, int], tuple[int, int]] = {}
        for file in self.files:
            found.setdefault(file.shard, (file.index_start, file.data_start))
        return found

    def moves(self, root: str) -> tuple[list[Move], list[Move]]:
        """Return where the data files and the index files go, each in ascending order."""
        staging = staging_directory(root, self.job_id)
        data, index = [], []
        for file in self.files:
            shard, staged = (
                join(root, store_key(file.topic, file.store_id)),
                join(staging, file.name),
            )
            start, first = file.data_start, file.data_behind
            first = start if first is None else first
            final = join(shard, segment_name(first, DATA_SUFFIX))
            data.append(Move(staged + DATA_SUFFIX, final, start, file.data_size, start - first))
            start, first = file.index_start, file.index_behind
            first = start if first is None else first
            final = join(shard, INDEX_DIRECTORY, segment_name(first, INDEX_SUFFIX))
            index.append(Move(staged + INDEX_SUFFIX, final, start, file.index_size, start - first))
        return data, index

    def as_json(self) -> dict[str, Any]:
        """Return the object for the file."""
        content = {"version": VERSION, "features": [], **_fields_of(self)}
        content["batch"] = None if self.batch is None else asdict(self.batch)
        files = [_fields_of(file) for file in self.files]
        for file in files:
            for name in ("index_behind", "data_behind"):
                if file[name] is None:  # an earlier version reads the record then
                    del file[name]
                else:
                    content["features"] = [BEHIND_FEATURE]
        return {**content, "files": files}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> CommitRecord:
        """Read what `as_json` wrote; KeyError or TypeError for nonsense."""
        files = tuple(PlacedFile(**file) for file in content["files"])
        batch = Batch.from_json(content.get("batch"))
        number, time_ms = int(content["number"]), int(content["time_ms"])
        summed = str(content.get("content", ""))
        return cls(number, str(content["job_id"]), time_ms, files, batch, summed)


def _fields_of(row: Any) -> dict[str, Any]:
    return {field.name: getattr(row, field.name) for field in fields(row)}
