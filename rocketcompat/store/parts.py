"""The parts of an open store: the log, and the structures that follow it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar, cast

from rocketcompat.commitlog.appended import Appended
from rocketcompat.commitlog.commit_log import CommitLog
from rocketcompat.commitlog.misplaced import lost_begin
from rocketcompat.dispatch.protocols import Follower
from rocketcompat.files.broker_config import BrokerConfig, with_batch_topics
from rocketcompat.files.mirror_file import MirrorFile
from rocketcompat.files.progress import Progress, ProgressFile
from rocketcompat.formats import (
    CHECKPOINT_FILE,
    PROGRESS_FILE,
    parse_offset_name,
)
from rocketcompat.index.index_service import IndexService
from rocketcompat.inspect.log_files import refuse_dledger
from rocketcompat.options import MessageStoreConfig
from rocketcompat.queues.table import BatchQueueTable, ConsumeQueueTable
from rocketcompat.shards.follower import TubeLayout
from rocketcompat.store.structures import (
    BATCH_QUEUES,
    INDEX,
    QUEUES,
    SHARDS,
    Place,
    Structure,
    structures,
)
from tubestore.clock import Clock
from tubestore.core.doors import logger
from tubestore.core.paths import OWN_DIRECTORY, STORE_FILE
from tubestore.core.quarantine import Quarantine
from tubestore.core.trees import files_by_start
from tubestore.core.vfs import Vfs
from tubestore.errors import CorruptRecord, NotAStore, TubeStoreError

_log = logger(__name__)
_STEP_BYTES = 1 << 20
F = TypeVar("F", bound=Follower)


@dataclass(frozen=True, slots=True)
class Follows:
    """How a slave's store is opened: its master's address, and where an empty log begins.

    With `take_over` a log may be there that another program has written. With `comes_again` the
    log is cut at damage in what was not synced: the master sends it again.
    """

    master: str
    begin: int | None = None
    take_over: bool = False
    comes_again: bool = True


def appended_for(config: MessageStoreConfig) -> Appended:
    """Return what puts leave for the dispatcher of a store with these options.

    Shards want more at a time than a put brings, with bodies: for them the log is read again.
    """
    keeps_columns = "tube" not in config.layouts and not config.uses_transient_pool
    return Appended(keeps_columns=keeps_columns)


class Parts:
    """The parts of one store; a structure is None when it is switched off.

    The log is there at once; the followers come with `make_followers`, when the log's end is
    known.
    """

    def __init__(
        self, root: str, config: MessageStoreConfig, vfs: Vfs, clock: Clock, *, writable: bool,
        follows: Follows | None = None,
    ) -> None:  # fmt: skip
        config = with_batch_topics(config, vfs, root)
        self.root, self.config, self.vfs, self.clock = root, config, vfs, clock
        self.writable = writable
        #: The directories of the log's files: those that get new files, and those that do not.
        self.log_directories = config.commit_log_directories(root)
        self.read_only_directories = config.read_only_directories(root)
        first, *more = self.log_directories
        #: What is put and not dispatched.
        self.appended = appended_for(config)
        self.commit_log = CommitLog(
            vfs, first, config, clock, self.appended, writable=writable, more=more,
            read_only=self.read_only_directories,
        )  # fmt: skip
        #: How a slave follows its master; None in every other store.
        self.follows = follows
        #: The master of a mirror, whether it is opened as one or not.
        self.mirror_of = MirrorFile(vfs, root).read()
        self.commit_log.is_copy = follows is not None or self.mirror_of is not None
        self.broker_config = BrokerConfig(vfs, root, compat=config.compat)
        #: The structures that are switched on, by name, in the order in which they are fed.
        self._made: dict[str, Follower] = {}
        #: What opening found wrong with queues and index.
        self.problems: list[TubeStoreError] = []

    def path(self, *names: str) -> str:
        """Return a path below the root."""
        return os.path.join(self.root, *names)

    def make_followers(self) -> None:
        """Make the structures that are switched on."""
        place = Place(self.root, self.vfs, self.clock, self.config, self.writable)
        for structure in structures():
            if structure.is_on(self.config) and (self.writable or structure.is_read):
                self._made[structure.name] = structure.make(place)
        if self.queues is not None:
            self.queues.batches = self.batch_queues

    def of(self, structure: Structure[F]) -> F | None:
        """Return the structure of a kind; None if it is switched off."""
        return cast("F | None", self._made.get(structure.name))

    @property
    def queues(self) -> ConsumeQueueTable | None:
        """The queues of units."""
        return self.of(QUEUES)

    @property
    def batch_queues(self) -> BatchQueueTable | None:
        """The queues of the topics of batches."""
        return self.of(BATCH_QUEUES)

    @property
    def index(self) -> IndexService | None:
        """The key index."""
        return self.of(INDEX)

    @property
    def tube(self) -> TubeLayout | None:
        """The shards."""
        return self.of(SHARDS)

    @property
    def followers(self) -> list[Follower]:
        """The structures that there are, in the order in which they are fed."""
        return list(self._made.values())

    def load(self, ends: dict[tuple[str, int], int] | None) -> None:
        """Take in the files; `ends` are the queues' ends by a clean close."""
        minimum = self.commit_log.min_offset
        end = None if self.writable else self.commit_log.max_offset
        for name, follower in list(self._made.items()):
            follower.attach(minimum, end, ends)
            known = set(map(str, self.problems))
            self.problems += [p for p in follower.problems if str(p) not in known]
            if follower.problems and not self.writable:
                del self._made[name]
        if self.tube is not None and self.queues is not None:
            self.tube.report_topics(queue.topic for queue in self.queues.all_queues())

    def find_missing_begin(self, closed: Progress | None) -> None:
        """Put it into `problems` if the log lost its first files since a clean close."""
        gap = lost_begin(self.commit_log.queue, closed)
        if gap is not None:
            _log.warning("%s", gap.error())
            self.problems.append(gap.error())

    def find_missing_queues(self, progress: Progress | None) -> bool:
        """Return whether files of queues are gone since a clean close; `problems` names the first.

        A queue without its whole directory is not a problem: that is how a queue is built again by
        hand.
        """
        if progress is None or self.queues is None:
            return False
        path = self.queues.missing_file(progress.queues, progress.queue_starts)
        if path is None:
            return False
        if parse_offset_name(os.path.basename(path)) is not None:
            done = "the queues are built again from the log" if self.writable else "left out"
            error = CorruptRecord(path, 0, f"the file is missing, empty or of another end; {done}")
            _log.warning("%s", error)
            self.problems.append(error)
        return True

    def find_missing_index(self, known: tuple[Progress, bool] | None) -> bool:
        """Return whether the index lacks files that it had by the marks; then `problems` has it.

        A writer builds it again from the log; a reader does without it.
        """
        index = self.index
        mark = known[0].followers.get(INDEX.name) if known is not None else None
        if known is None or mark is None or index is None or not index.is_whole:
            return False
        progress, count = known[0], index.item_count
        had = progress.places.get(INDEX.name)
        # The items of an older begin of the log may have gone with it.
        kept = progress.log_minimum == self.commit_log.min_offset
        if index.files and (had is None or count >= had or not kept):
            return False
        if progress.trusted(mark, same_boot=known[1]) <= progress.log_minimum:
            return False
        done = "it is built again from the log" if self.writable else "left out"
        reason = f"{count} items of {had}" if index.files else "no files"
        error = CorruptRecord(self.path(INDEX.directory), 0, f"the index has {reason}; {done}")
        _log.warning("%s", error)
        self.problems.append(error)
        if not self.writable:
            del self._made[INDEX.name]
        return True

    def close(self) -> None:
        """Give all descriptors back; syncs nothing."""
        for follower in self.followers:
            try:
                follower.close()
            except (OSError, TubeStoreError):
                _log.exception("%s: close", follower.name)
        self.commit_log.close()


def refuse_shards(parts: Parts) -> None:
    """Raise NotAStore for a tubestore root: a log in it would make it neither."""
    ours = parts.vfs.exists(parts.path(OWN_DIRECTORY, STORE_FILE))
    if ours and not any(parts.vfs.exists(path) for path in parts.log_directories):
        raise NotAStore(parts.root, "it is a tubestore store: use tubestore")


def refuse_mirror(parts: Parts) -> None:
    """Raise NotAStore for a mirror that is opened by itself, and for a slave over another log."""
    follows, there = parts.follows, parts.mirror_of
    if follows is None and there is not None:
        raise NotAStore(
            parts.root,
            f"it is a mirror of {there}: `rocketcompat follow` writes it, and `rocketcompat"
            " promote` makes it a store of its own",
        )
    directories = [*parts.log_directories, *parts.read_only_directories]
    if follows is None or there is not None or follows.take_over:
        return
    if _has_files(parts.vfs, directories) and follows.begin is None:
        raise NotAStore(
            parts.root,
            "has a log that did not come from a master: following one would mix two logs. Give an"
            " empty directory, or --take-over for the root of a slave of this master",
        )


def begin_log(parts: Parts, offset: int) -> None:
    """Create the first file of an empty log, which begins at `offset`, durably.

    Files without data are removed: of a beginning that got no message. NotAStore if there is data.
    """
    size, queue = parts.config.mapped_file_size_commit_log, parts.commit_log.queue
    if offset % size:
        raise NotAStore(
            parts.root,
            f"the master's log begins at {offset}, where no file of {size} bytes begins: give the"
            " master's mappedFileSizeCommitLog",
        )
    for directory in parts.log_directories:
        if _has_data(parts.vfs, directory):
            raise NotAStore(parts.root, f"its log has data, and the master's begins at {offset}")
        for start, name, _ in files_by_start(parts.vfs, directory, parse_offset_name):
            if start != offset:
                parts.vfs.remove(os.path.join(directory, name))
        parts.vfs.sync_directory(directory)
    if not parts.vfs.exists(queue.path_of(offset)):
        queue.create(offset).close()
        queue.flush()


def refuse_other_logs(parts: Parts) -> None:
    """Raise NotAStore for a log in DLedger's files, and for structures without their log.

    An empty log would be begun beside them, and queues, index and shards be brought to its end.
    """
    ours = parts.vfs.exists(parts.path(OWN_DIRECTORY, PROGRESS_FILE))
    directories = [*parts.log_directories, *parts.read_only_directories]
    refuse_dledger(parts.vfs, parts.root, () if ours else directories)
    found = [] if parts.config.accept_lost_log else built_without_log(parts)
    if found and not _was_never_synced(parts):
        raise NotAStore(
            parts.root,
            f"its log is not there: no file in {', '.join(directories)}, but {', '.join(found)}."
            " Put the log back, or name its place (storePathCommitLog). To begin a new log, open"
            " with accept_lost_log: what was built from the old one goes to quarantine",
        )


def lost_end(parts: Parts, known: tuple[Progress, bool] | None) -> CorruptRecord | None:
    """Return an error that names the first of the log's last files that are missing; else None.

    `known` are the marks that count: what is below them was in the log's files, and a recovery
    cuts nothing there. A log without any file is judged by `built_without_log`.
    """
    directories = [*parts.log_directories, *parts.read_only_directories]
    end = max(
        (
            start + parts.config.mapped_file_size_commit_log
            for directory in directories
            for start, _, size in files_by_start(parts.vfs, directory, parse_offset_name)
            if size
        ),
        default=None,
    )
    if known is None or end is None:
        return None
    mark = known[0].trusted(known[0].log, same_boot=known[1])
    if end >= mark:
        return None
    path = parts.commit_log.queue.path_of(end)
    return CorruptRecord(path, 0, f"the file is missing: the log reached {mark}")


def refuse_lost_end(parts: Parts) -> None:
    """Raise NotAStore when the last files of the log are missing, unless they are given up."""
    found = lost_end(parts, ProgressFile(parts.vfs, parts.root).read())
    if found is not None and not parts.config.accept_lost_log:
        raise NotAStore(
            parts.root,
            f"the end of its log is not there: {found.path}: {found.reason}."
            " Put the files back. To go on without them, open with accept_lost_log: what was built"
            " from them goes to quarantine",
        )


def built_without_log(parts: Parts) -> list[str]:
    """Return the structures that were built from a log without any file; none if one is there."""
    if _has_files(parts.vfs, [*parts.log_directories, *parts.read_only_directories]):
        return []
    found = [name for name in _built() if _has_data(parts.vfs, parts.path(name))]
    known = ProgressFile(parts.vfs, parts.root).read()
    if known is not None and known[0].log.written:
        found.append(f"{OWN_DIRECTORY}/{PROGRESS_FILE}")
    return found


def _built() -> list[str]:
    """Return the names of what is built from the log, and only while the log is there."""
    return [name for one in structures() for name in (one.directory, *one.more_directories)]


def _was_never_synced(parts: Parts) -> bool:
    """True if a power cut may have taken the log: by the marks none of it was on stable storage."""
    known = ProgressFile(parts.vfs, parts.root).read()
    return known is not None and not known[1] and known[0].log.synced == 0


def put_aside_built(parts: Parts, keeper: Quarantine) -> None:
    """Move the structures of a lost log to quarantine, durably."""
    for name in (*_built(), CHECKPOINT_FILE, os.path.join(OWN_DIRECTORY, PROGRESS_FILE)):
        if parts.vfs.exists(parts.path(name)):
            keeper.move(parts.path(name))
    if keeper.path is not None:
        _log.warning("%s: no log; what was built from one is in %s", parts.root, keeper.path)


def _has_files(vfs: Vfs, directories: Iterable[str]) -> bool:
    """True if a directory has a file of the log that is not empty."""
    return any(
        size
        for directory in directories
        for _, _, size in files_by_start(vfs, directory, parse_offset_name)
    )


def _has_data(vfs: Vfs, path: str) -> bool:
    """True if a file in a directory, or below it, has a byte that is not zero."""
    for name, is_directory, size in vfs.entries(path):
        inside = os.path.join(path, name)
        if is_directory:
            # Of a tube root only its messages count.
            if name != OWN_DIRECTORY and _has_data(vfs, inside):
                return True
        elif size and name.partition(".")[0].isdecimal():
            file = vfs.open(inside, writable=False)
            position = file.next_data(0)
            while position is not None and position < size:
                data = file.pread(_STEP_BYTES, position)
                if not data or any(data):
                    break
                position = file.next_data(position + len(data))
            file.close()
            if position is not None and position < size:
                return True
    return False
