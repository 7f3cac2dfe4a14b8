"""A store's directory as it lies: its files, their sizes, the log's chain from end to end.

For everything that only shows a store (dump, check, the command line): works on a store that will
not open, whether it was closed, has crashed or is being written. It changes no byte and takes no
lock. Unlike a store it accepts files of a wrong length, foreign names, and holes in the log.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from itertools import pairwise
from typing import Any

from rocketcompat.commitlog.ending import (
    first_time,
    goes_on,
    has_data,
    is_left_over,
    known_gaps,
    proof,
)
from rocketcompat.commitlog.misplaced import misplaced_files
from rocketcompat.commitlog.reads import read_record
from rocketcompat.commitlog.walk import (
    NO_GAPS,
    NOWHERE,
    Again,
    Checks,
    Gap,
    Gaps,
    OnFault,
    Piece,
    find_record,
    gap_of,
    walk,
)
from rocketcompat.files.broker_config import with_batch_topics
from rocketcompat.files.mirror_file import MirrorFile
from rocketcompat.files.progress import ProgressFile
from rocketcompat.formats import (
    BATCH_CONSUME_QUEUE_DIRECTORY,
    CONSUME_QUEUE_DIRECTORY,
    CONSUME_QUEUE_EXT_DIRECTORY,
    INDEX_DIRECTORY,
    MESSAGE_PREFIX,
    TUBE_DIRECTORY,
    parse_offset_name,
)
from rocketcompat.inspect.log_files import LogFiles, refuse_dledger
from rocketcompat.options import MessageStoreConfig
from rocketcompat.queues.files import OF_BATCHES, UnitKind, holds_rocksdb, queue_names
from rocketcompat.queues.proof import proved_end
from rocketcompat.record.columns import RecordColumns
from rocketcompat.staging.pieces import LogRecords
from tubestore.core.paths import OWN_DIRECTORY, STORE_FILE, checked_root
from tubestore.core.trees import files_by_start
from tubestore.core.vfs import Vfs
from tubestore.disks.roots import disk_of
from tubestore.errors import NotAStore

#: How far a broker's clock may have been set back, when files are left out by time.
CLOCK_SLACK_MS = 60_000
#: Options of file sizes, and the directories of queues that they follow from.
_QUEUE_SIZE_OPTIONS = {
    "mappedFileSizeConsumeQueue": CONSUME_QUEUE_DIRECTORY,
    "mappedFileSizeConsumeQueueExt": CONSUME_QUEUE_EXT_DIRECTORY,
    "mapperFileSizeBatchConsumeQueue": BATCH_CONSUME_QUEUE_DIRECTORY,
}


#: Gets the bytes of a scan that are done, and all of them.
Watch = Callable[[int, int], None]


@contextmanager
def _unwatched(_what: str) -> Iterator[Watch]:
    yield lambda _done, _total: None


class StoreDirectory:
    """The root of a store; NotAStore if it is none. File sizes without an option are inferred.

    With `lost_log` the log's directories may be missing in a store with the option acceptLostLog.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        options: Mapping[str, Any] | None = None,
        vfs: Vfs | None = None,
        *,
        lost_log: bool = False,
    ) -> None:
        self.root, self.vfs = checked_root(root), vfs or disk_of(root)
        if not self.vfs.exists(self.root):
            raise NotAStore(self.root, "no such directory")
        try:
            self.vfs.entries(self.root)
        except NotADirectoryError:
            raise NotAStore(self.root, "not a directory") from None
        self.options = dict(options or {})
        paths = self._log_paths()
        refuse_dledger(self.vfs, self.root, ())
        given_up = lost_log and self._gives_log_up()
        if not self.vfs.exists(paths[0]) and not given_up:
            hint = self._what_it_is_instead()
            text = f"has no commitlog directory, so it is not a RocketMQ store{hint}"
            raise NotAStore(self.root, text)
        missing = [path for path in paths if not self.vfs.exists(path)]
        if missing and not given_up:
            raise NotAStore(self.root, f"has no directory {missing[0]}")
        refuse_dledger(self.vfs, self.root, paths)
        #: The file sizes that follow from the files, by RocketMQ's names.
        found = file_sizes(self.vfs, self.root, paths)
        self.inferred = {name: size for name, size in found.items() if name not in self.options}
        given = MessageStoreConfig.from_camel({**self.inferred, **self.options})
        self.config = with_batch_topics(given, self.vfs, self.root)
        self.log = LogFiles(
            self.vfs,
            self.root,
            paths,
            self.config.mapped_file_size_commit_log,
            record_crc=self.config.force_verify_prop_crc,
        )
        #: Files of the log that hold records of another place.
        self.misplaced = misplaced_files(self.log)
        #: Below this mark everything was a record, by marks that count; 0 without them.
        self._trusted = 0
        #: True if the machine has run since the marks were written.
        self._same_boot = False
        own_from, known = self._what_recovery_knows()
        is_copy = MirrorFile(self.vfs, self.root).read() is not None
        self._checks = Checks(record_crc=self.log.record_crc, own_from=own_from, torn_tail=is_copy)
        self.log.gaps = Gaps.merged((*self.misplaced, *known))
        #: Opens what each scan calls with (bytes that are done, all of them); its argument is the
        #: name of what is scanned, as "log".
        self.watching: Callable[[str], AbstractContextManager[Watch]] = _unwatched

    def _gives_log_up(self) -> bool:
        """Return whether the options give up the log from which something here was built."""
        options = MessageStoreConfig.from_camel(self.options)
        return options.accept_lost_log and bool(self.layouts())

    def _what_it_is_instead(self) -> str:
        """Return a hint for a directory without a log; OSError for a file."""
        names = [name for name, _, _ in self.vfs.entries(self.root)]
        if not names:
            return "; it is empty"
        if any(parse_offset_name(name) is not None for name in names):
            return "; these are files of a log or a queue: give the store's root"
        ours = self.vfs.exists(os.path.join(self.root, OWN_DIRECTORY, STORE_FILE))
        return "; it is a tubestore store: use tubestore" if ours else ""

    def _what_recovery_knows(self) -> tuple[int, Gaps]:
        """Return from where on only this package has written, and the damage known before that.

        The next recovery trusts this, too, and is stricter with what this package has written: its
        answer and the one shown here have to be the same.
        """
        log = self.log
        if MirrorFile(self.vfs, self.root).read() is not None:  # its master has written it
            return NOWHERE, NO_GAPS
        try:
            known = ProgressFile(self.vfs, self.root).read()
        except NotAStore:  # of a newer version
            known = None
        if known is not None:
            progress, self._same_boot = known
            mark = progress.trusted(progress.log, same_boot=self._same_boot)
            if log.min_offset <= mark <= log.max_offset:
                self._trusted = mark
                return mark, known_gaps(log, progress, record_crc=log.record_crc)
        return NOWHERE, NO_GAPS

    def path(self, *names: str) -> str:
        """Return a path below the root."""
        return os.path.join(self.root, *names)

    def layouts(self) -> frozenset[str]:
        """Return which of the structures that are built from the log are there."""
        names = {
            "consume_queue": CONSUME_QUEUE_DIRECTORY,
            "index": INDEX_DIRECTORY,
            "tube": TUBE_DIRECTORY,
        }
        there = (layout for layout, name in names.items() if self.vfs.exists(self.path(name)))
        return frozenset(there)

    def _log_paths(self) -> list[str]:
        """Return the directories of the log's files, the read-only ones last."""
        names = ("storePathCommitLog", "readOnlyCommitLogStorePaths", "multiPathSplitter")
        given = {name: self.options[name] for name in names if name in self.options}
        config = MessageStoreConfig.from_camel(given)
        read_only = config.read_only_directories(self.root)
        return [*config.commit_log_directories(self.root), *read_only]

    def check_changeable(self) -> None:
        """Raise NotAStore if the input of a change is not all here.

        RocksDB's queues are not built from the log here, and of a log in several directories only
        one may be seen. What a job has put behind it is not seen either.
        """
        job = LogRecords(self.vfs, self.root).pending()
        if job is not None:
            reason = f"job {job.job_id!r} is half published; `rocketcompat recover` finishes it"
            raise NotAStore(self.root, reason)
        if holds_rocksdb(self.vfs, self.path(CONSUME_QUEUE_DIRECTORY)):
            raise NotAStore(self.root, "holds RocksDB queues, which are not supported")
        starts = [file.file_from_offset for file in self.log.files]
        distances = {b - a for a, b in pairwise(starts)}
        if len(starts) > 2 and len(distances) == 1 and min(distances) > self.log.file_size:
            raise NotAStore(
                self.root,
                "every file of its log is followed by a hole: is it one of several paths?",
            )

    def queue_names(self, kind: str = CONSUME_QUEUE_DIRECTORY) -> Iterator[tuple[str, int]]:
        """Yield topic and queue id of the queues' directories, of one kind of queues."""
        return queue_names(self.vfs, self.path(kind))

    def queues_of(self, kind: UnitKind) -> list[tuple[str, int]]:
        """Return the queues on disk of the topics that have queues of a kind."""
        topics, of_batches = self.config.batch_topics, kind is OF_BATCHES
        names = self.queue_names(kind.directory)
        return [key for key in names if (key[0] in topics) == of_batches]

    def queue_path(self, topic: str, queue_id: int, kind: str = CONSUME_QUEUE_DIRECTORY) -> str:
        """Return a queue's directory."""
        return self.path(kind, topic, str(queue_id))

    def misplaced_queues(self) -> list[str]:
        """Return directories of ordinary queues of topics of batches: 5.x does not start then."""
        base = self.path(CONSUME_QUEUE_DIRECTORY)
        topics = (name for name, is_directory, _ in self.vfs.entries(base) if is_directory)
        return [os.path.join(base, name) for name in topics if name in self.config.batch_topics]

    def index_paths(self) -> list[str]:
        """Return the index files, oldest first."""
        base = self.path(INDEX_DIRECTORY)
        rows = self.vfs.entries(base)
        return [os.path.join(base, name) for name, d, _ in rows if not d and name.isdecimal()]

    def scan_log(
        self, start: int | None = None, end: int | None = None, *, since: int | None = None,
        chained: bool = False, exact: bool = False,
    ) -> Iterator[RecordColumns | Gap]:  # fmt: skip
        """Yield the log in order: records by the piece, and the gaps between them.

        Ends behind the last sound record; a torn one after it is a Gap. In a store that is being
        written the end is where it was when it was reached.

        Without arguments, the whole log. Else:
        - `start`: from this physical offset on
        - `end`: up to the piece that reaches it
        - `since` (ms): from the file with the first records stored at that time, with all of that
          file
        - `chained`: the chain is known to go through `start`; nothing before it is read
        - `exact`: it goes through `end`, too; no record behind it is read
        """
        floor = max(self.log.min_offset, start or 0)
        position = floor if chained else self._scan_start(floor, since)
        limit = self.log.max_offset if end is None else min(end, self.log.max_offset)
        stop = limit if exact else self.log.max_offset
        if position >= limit:
            return
        with self.watching("log") as watch:
            for found in walk(
                self.log, position, stop, on_fault=self._judge(), known=self.log.gaps,
                checks=self._checks,
            ):  # fmt: skip
                if isinstance(found, Piece):
                    starts = found.starts[found.starts + found.base >= floor]
                    if len(starts):  # verified by the scan
                        yield RecordColumns(found.data, starts, found.base)
                elif found.end > max(found.start, floor):
                    begin = max(found.start, position)
                    whole = begin == found.start
                    yield found if whole else gap_of(self.log, begin, found.end, found.reason)
                if found.end >= limit:
                    return
                watch(found.end - position, limit - position)

    def _scan_start(self, floor: int, since: int | None) -> int:
        """Return a place at or before `floor` where the chain can be taken up."""
        first = self.log.min_offset if since is None else self.first_file_since(since)
        file = self.log.find(floor)
        if floor <= first or file is None:
            return max(first, floor)
        if read_record(self.log, floor) is not None:
            return floor
        return file.file_from_offset

    def first_file_since(self, since: int) -> int:
        """Return the start of the last file that has only younger files behind it.

        Younger than `since`, by their first records' times, which rise from file to file; a minute
        is allowed for a clock that was set back.
        """
        for file in reversed(self.log.files):
            first = first_time(file)
            if first is not None and first < since - CLOCK_SLACK_MS:
                return int(file.file_from_offset)
        return self.log.min_offset

    def _judge(self) -> OnFault:
        """Return what judges the faults of one walk.

        A place where nothing sound follows is verified again once: a writer may be in the
        middle of it.
        """
        log, checks = self.log, self._checks
        retried = -1

        def judge(position: int, fault: str) -> Gap | Again:
            nonlocal retried
            again, retried = retried != position, position
            end = log.max_offset
            found = find_record(log, position + 1, end)
            if found is None:
                proved = self._proved_end(position)
                if proved > position and goes_on(log, position, end, checks):
                    return Again.AGAIN
                if proved > position:
                    return gap_of(log, position, min(proved, end), fault)
                if not has_data(log, position):
                    return gap_of(log, position, position, fault, "torn")
                if again:
                    return Again.AGAIN
                size = self._torn_size(position)
                return gap_of(log, position, position + size, fault, "torn")
            if goes_on(log, position, end, checks):
                return Again.AGAIN
            own = position >= checks.own_from
            if not own and is_left_over(log, log.min_offset, position, found, end):
                return gap_of(log, position, end, fault, "stale")
            return gap_of(log, position, found, fault)

        return judge

    def _proved_end(self, position: int) -> int:
        """Return where the records end that are proved to have been at `position`.

        By the marks, or by the units of queues on the boot of the marks. It is `position` without
        a proof.
        """
        if position < self._trusted:
            return self._trusted
        by_units = partial(proved_end, self.vfs, self.root, self.config)
        own = self._trusted > 0
        return proof(self.log, by_units, own=own, same_boot=self._same_boot)(position)

    def _torn_size(self, position: int) -> int:
        """Return the size that the record at the end has as its field, as far as the file goes."""
        room = self.log.file_size - position % self.log.file_size
        raw = self.log.read(position, MESSAGE_PREFIX.size).ljust(MESSAGE_PREFIX.size, b"\0")
        size = int(MESSAGE_PREFIX.unpack_from(raw).total_size)
        return size if 0 < size <= room else room


def file_sizes(vfs: Vfs, root: str, log_directories: Sequence[str]) -> dict[str, int]:
    """Return the file sizes that follow from names and lengths, by RocketMQ's options."""
    if len(log_directories) == 1:
        log = _size_of(vfs, log_directories)
    else:  # names in one of them are several files apart
        entries = vfs.entries(log_directories[0])
        log = next((size for _, is_directory, size in entries if not is_directory and size), 0)
    sizes = {"mappedFileSizeCommitLog": log}
    for option, kind in _QUEUE_SIZE_OPTIONS.items():
        keys = queue_names(vfs, os.path.join(root, kind))
        paths = (os.path.join(root, kind, topic, str(number)) for topic, number in keys)
        sizes[option] = _size_of(vfs, paths)
    return {name: size for name, size in sizes.items() if size}


def _size_of(vfs: Vfs, directories: Iterable[str]) -> int:
    """Return the size of the files in directories: the first that two of them have.

    If no two files agree, the distance of two names counts: a length may be wrong.
    """
    lengths: set[int] = set()
    first = 0
    for directory in directories:
        files = files_by_start(vfs, directory, parse_offset_name)
        common = Counter(size for _, _, size in files if size).most_common(1)
        if common and (common[0][1] > 1 or common[0][0] in lengths):
            return common[0][0]
        distances = [b[0] - a[0] for a, b in pairwise(files)]
        if distances:
            return min(distances)
        lengths.update(size for _, _, size in files if size)
        first = first or next((size for _, _, size in files if size), 0)
    return first
