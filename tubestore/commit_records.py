"""Which jobs were published: their commit records, and the ids that are never taken twice.

    <root>/.tubestore/staging/<job>/<name>.tube, .index   what a job has written
    <root>/.tubestore/commits/<20 digits>.json            one record a job, numbered without gap
    <root>/.tubestore/published.json                      the last job whose files are in place
    <root>/.tubestore/jobs.json                           the ids of all finished jobs

Always true:
- making a record (a link, which fails if the number is taken) is the moment at which its job
  is in the store; from then on it is only brought to its end;
- a record is there before the first of its files is, and a job is finished after the last;
- records are kept for the last `RECORDS_KEPT` jobs, ids for ever: numbered ones (`name:17`)
  as ranges, so an endless stream of them stays small.

Reads for anybody, writes for the one writer. Next to read: `publish.py`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any
from urllib.parse import quote

import xxhash

from tubestore.errors import InvalidMessage, InvalidName, NotAStore
from tubestore.filenames import (
    COMMITS_DIRECTORY,
    DATA_SUFFIX,
    INDEX_DIRECTORY,
    INDEX_SUFFIX,
    JOBS_FILE,
    OWN_DIRECTORY,
    PUBLISHED_FILE,
    STAGING_DIRECTORY,
    check_topic_name,
    join,
    segment_name,
    store_key,
)
from tubestore.formats import INDEX_ENTRY, PARTITIONS_PER_STORE
from tubestore.vfs import Vfs

VERSION = 1
#: A reader that has not been refreshed for so many jobs sees those that came after it.
RECORDS_KEPT = 256
JOB_ID_LENGTH_MAX = 200
_NUMBERED = re.compile(r"(.*):(0|[1-9]\d{0,17})", re.DOTALL)
_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


def check_job_id(job_id: str) -> str:
    """Return the id, or raise InvalidName: a text of 1 to 200 printable characters."""
    if not isinstance(job_id, str) or not job_id:
        raise InvalidName(str(job_id), "a job needs an id")
    if len(job_id) > JOB_ID_LENGTH_MAX or not job_id.isprintable():
        reason = f"a job's id has at most {JOB_ID_LENGTH_MAX} characters, all printable"
        raise InvalidName(job_id, reason)
    return job_id


def staging_directory(root: str, job_id: str) -> str:
    """Return where the files of a job lie until it is published."""
    name = quote(check_job_id(job_id), safe="")
    if len(name) > 200:  # a file name has 255 bytes
        name = f"{name[:100]}%{xxhash.xxh3_128_hexdigest(job_id.encode())}"
    return join(root, OWN_DIRECTORY, STAGING_DIRECTORY, f"job-{name}")


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A pair of files, data and index, that one task wrote for one shard; offsets from 0.

    Small and plain: it is pickled or sent as JSON from the task to who publishes.
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
    #: Whether the rows brought their message ids; else `publish` gives them.
    has_ids: bool
    #: xxh3 of the files as they were staged.
    data_digest: str
    index_digest: str

    @property
    def index_size(self) -> int:
        """Bytes of the index file."""
        return self.rows * INDEX_ENTRY.size

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
        if not possible or self.rows < 1 or self.data_size < 1:
            raise InvalidMessage(f"staged file {self.name}: impossible values, {self}")


@dataclass(frozen=True, slots=True)
class PlacedFile:
    """A staged pair and its place in its shard: absolute byte offsets."""

    topic: str
    store_id: int
    name: str
    rows: int
    index_start: int
    data_start: int
    data_size: int
    first_time: int
    last_time: int

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


@dataclass(frozen=True, slots=True)
class CommitRecord:
    """A job that is in the store: its number, and every file of it in the order of its shards."""

    number: int
    job_id: str
    time_ms: int
    files: tuple[PlacedFile, ...]

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
            shard = join(root, store_key(file.topic, file.store_id))
            final = join(shard, segment_name(file.data_start, DATA_SUFFIX))
            staged = join(staging, file.name)
            data.append(Move(staged + DATA_SUFFIX, final, file.data_start, file.data_size))
            final = join(shard, INDEX_DIRECTORY, segment_name(file.index_start, INDEX_SUFFIX))
            index.append(Move(staged + INDEX_SUFFIX, final, file.index_start, file.index_size))
        return data, index

    def as_json(self) -> dict[str, Any]:
        """Return the object that stands in the file."""
        content = {"version": VERSION, "features": [], **_fields_of(self)}
        return {**content, "files": [_fields_of(file) for file in self.files]}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> CommitRecord:
        """Read what `as_json` wrote; KeyError or TypeError for nonsense."""
        files = tuple(PlacedFile(**file) for file in content["files"])
        return cls(int(content["number"]), str(content["job_id"]), int(content["time_ms"]), files)


class JobIds:
    """A set of job ids that stays small when they are numbered in order.

    >>> ids = JobIds(["load", "query:0", "query:1", "query:3"])
    >>> "query:1" in ids, "query:2" in ids, ids.as_json()["ranges"]
    (True, False, {'query': [[0, 1], [3, 3]]})
    """

    def __init__(self, ids: Iterable[str] = ()) -> None:
        self._texts: set[str] = set()
        self._ranges: dict[str, list[list[int]]] = {}
        for job_id in ids:
            self.add(job_id)

    def __contains__(self, job_id: str) -> bool:
        numbered = _NUMBERED.fullmatch(job_id)
        if numbered is None:
            return job_id in self._texts
        number = int(numbered[2])
        return any(first <= number <= last for first, last in self._ranges.get(numbered[1], ()))

    def add(self, job_id: str) -> None:
        """Take an id in; harmless when repeated."""
        numbered = _NUMBERED.fullmatch(job_id)
        if numbered is None:
            self._texts.add(job_id)
        elif job_id not in self:
            number = int(numbered[2])
            ranges = [*self._ranges.get(numbered[1], ()), [number, number]]
            joined: list[list[int]] = []
            for first, last in sorted(ranges):
                if joined and joined[-1][1] + 1 == first:
                    joined[-1][1] = last
                else:
                    joined.append([first, last])
            self._ranges[numbered[1]] = joined

    def as_json(self) -> dict[str, Any]:
        """Return the object that stands in the file."""
        return {"ids": sorted(self._texts), "ranges": self._ranges}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> JobIds:
        """Read what `as_json` wrote; KeyError or TypeError for nonsense."""
        found = cls(content["ids"])
        found._ranges = {
            str(name): [[int(first), int(last)] for first, last in ranges]
            for name, ranges in content["ranges"].items()
        }
        return found


class CommitRecords:
    """The records of one store, as they stand in its files."""

    def __init__(self, vfs: Vfs, root: str) -> None:
        self._vfs, self.root = vfs, root
        self._own = join(root, OWN_DIRECTORY)
        self.directory = join(self._own, COMMITS_DIRECTORY)

    def path(self, number: int) -> str:
        """Return the file of a record."""
        return join(self.directory, f"{number:020d}.json")

    def finished(self) -> int:
        """Return the number of the last finished job, 0 if there was none."""
        content = self._read(join(self._own, PUBLISHED_FILE))
        return 0 if content is None else int(content["finished"])

    def read(self, number: int) -> CommitRecord | None:
        """Return a job's record, None if there is none or it is not kept any more."""
        path = self.path(number)
        content = self._read(path)
        try:
            return None if content is None else CommitRecord.from_json(content)
        except (KeyError, TypeError, ValueError) as error:
            raise NotAStore(self.root, f"{path} makes no sense: {error!r}") from error

    def pending(self) -> CommitRecord | None:
        """Return the job that is recorded and not finished; there is at most one."""
        return self.read(self.finished() + 1)

    def moment(self) -> tuple[int, bool]:
        """Return what changes when a job is recorded or finished, at the cost of two look-ups."""
        finished = self.finished()
        return finished, self._vfs.exists(self.path(finished + 1))

    def find(self, job_id: str) -> CommitRecord | None:
        """Return the record of a job, if it is still kept."""
        for number in range(last := self.finished(), max(0, last - RECORDS_KEPT), -1):
            record = self.read(number)
            if record is not None and record.job_id == job_id:
                return record
        return None

    def ids(self) -> JobIds:
        """Return the ids of all finished jobs."""
        path = join(self._own, JOBS_FILE)
        content = self._read(path)
        try:
            return JobIds() if content is None else JobIds.from_json(content)
        except (KeyError, TypeError, ValueError) as error:
            raise NotAStore(self.root, f"{path} makes no sense: {error!r}") from error

    def _read(self, path: str) -> dict[str, Any] | None:
        try:
            content = json.loads(self._vfs.read_file(path))
        except FileNotFoundError:
            return None
        except (ValueError, NotADirectoryError) as error:
            raise NotAStore(self.root, f"{path} cannot be read: {error}") from error
        known = isinstance(content, dict) and content.get("version") == VERSION
        if not known or content.get("features"):
            raise NotAStore(self.root, f"{path} was written by another version")
        return dict(content)

    # -- writing -----------------------------------------------------------------------------

    def prepare(self) -> None:
        """Make the directory of the records, durably."""
        if not self._vfs.exists(self.directory):
            self._vfs.make_directories(self.directory)
        self._vfs.sync_directory(self._own)

    def draft(self, record: CommitRecord) -> None:
        """Write a record under a name that nobody reads, durably."""
        temporary = f"{self.path(record.number)}.tmp"
        if self._vfs.exists(temporary):
            self._vfs.remove(temporary)
        file = self._vfs.open(temporary, create=True)
        file.pwrite(json.dumps(record.as_json()).encode(), 0)
        file.sync()
        file.close()

    def commit(self, record: CommitRecord) -> None:
        """Give the draft its name: the job is in the store. FileExistsError if that is taken.

        After any other error the record may be there, and may not survive a power cut.
        """
        path = self.path(record.number)
        self._vfs.link(f"{path}.tmp", path)
        self._vfs.sync_directory(self.directory)
        self._vfs.remove(f"{path}.tmp")

    def finish(self, record: CommitRecord) -> None:
        """Note that all files of the last job are in place, durably; the oldest record goes."""
        ids = self.ids()
        ids.add(record.job_id)
        head = {"version": VERSION, "features": []}
        self._replace(JOBS_FILE, {**head, **ids.as_json()})
        self._replace(PUBLISHED_FILE, {**head, "finished": record.number})
        oldest = self.path(record.number - RECORDS_KEPT)
        if self._vfs.exists(oldest):
            self._vfs.remove(oldest)

    def last(self) -> int:
        """Return the highest number of a record that is kept, 0 if there is none."""
        names = [name for name, _, _ in self._vfs.entries(self.directory)]
        return max(
            (int(n[:-5]) for n in names if n.endswith(".json") and n[:-5].isdigit()), default=0
        )

    def restore(self) -> None:
        """Make the files that say which jobs are finished anew, from the records there are.

        Of the last job that is not known then: it counts as pending.
        """
        last = self.last()
        try:
            exists = self._vfs.exists(join(self._own, PUBLISHED_FILE))
            finished = self.finished() if exists else max(0, last - 1)
        except NotAStore:
            finished = max(0, last - 1)
        try:
            ids = self.ids()
        except NotAStore:
            ids = JobIds()
        for number in range(max(1, last - 2 * RECORDS_KEPT), finished + 1):
            if (record := self.read(number)) is not None:
                ids.add(record.job_id)
        head = {"version": VERSION, "features": []}
        self._replace(JOBS_FILE, {**head, **ids.as_json()})
        self._replace(PUBLISHED_FILE, {**head, "finished": finished})

    def _replace(self, name: str, content: dict[str, Any]) -> None:
        self._vfs.replace_file(join(self._own, name), json.dumps(content).encode())


class Horizon:
    """What one reader sees of published jobs: those finished when it was made, and no other.

    Shards may be opened at any time later: all of them show the same jobs.
    """

    def __init__(self, vfs: Vfs, root: str) -> None:
        self._records = CommitRecords(vfs, root)
        self._finished = self._records.finished()
        self._limits: dict[int, dict[tuple[str, int], tuple[int, int]]] = {}

    def limits(self, topic: str, store_id: int) -> tuple[int, int] | None:
        """Return the index and data offsets at which what is hidden of a shard begins.

        To be asked after the shard's files were listed: a record is there before its files are.
        """
        number = self._finished + 1
        if self._limits_of(number) is None:
            # Either there is no later job, or so many that their records are gone.
            number = max(number, self._records.finished() + 1)
        while (limits := self._limits_of(number)) is not None:
            if (topic, store_id) in limits:
                return limits[topic, store_id]
            number += 1
        return None

    def _limits_of(self, number: int) -> dict[tuple[str, int], tuple[int, int]] | None:
        if number not in self._limits:
            record = self._records.read(number)
            if record is None:
                return None
            self._limits[number] = record.limits()
        return self._limits[number]


def _fields_of(row: Any) -> dict[str, Any]:
    return {field.name: getattr(row, field.name) for field in fields(row)}
