"""What an open store is made of: the log, and the structures that follow it."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable

from rocketcompat.commitlog.commit_log import CommitLog
from rocketcompat.dispatch.follower import Follower
from rocketcompat.files.broker_config import BrokerConfig, with_batch_topics
from rocketcompat.files.progress import Progress, ProgressFile
from rocketcompat.files.quarantine import Quarantine
from rocketcompat.formats import (
    BATCH_CONSUME_QUEUE_DIRECTORY,
    CHECKPOINT_FILE,
    CONSUME_QUEUE_DIRECTORY,
    CONSUME_QUEUE_EXT_DIRECTORY,
    INDEX_DIRECTORY,
    PROGRESS_FILE,
    TUBE_DIRECTORY,
    parse_offset_name,
)
from rocketcompat.index.index_service import IndexService
from rocketcompat.index.items import IndexGeometry
from rocketcompat.inspect.log_files import refuse_dledger
from rocketcompat.options import MessageStoreConfig
from rocketcompat.queues.batch_table import BatchQueueTable
from rocketcompat.queues.table import ConsumeQueueTable
from rocketcompat.shards.follower import TubeLayout
from tubestore.clock import Clock
from tubestore.core.paths import OWN_DIRECTORY
from tubestore.core.vfs import Vfs
from tubestore.errors import CorruptRecord, NotAStore, TubeStoreError
from tubestore.record.names import STORE_FILE

_log = logging.getLogger(__name__)
#: What is built from the log, and can be built again only while the log is there.
_BUILT = (
    CONSUME_QUEUE_DIRECTORY, CONSUME_QUEUE_EXT_DIRECTORY, BATCH_CONSUME_QUEUE_DIRECTORY,
    INDEX_DIRECTORY, TUBE_DIRECTORY,
)  # fmt: skip
_STEP_BYTES = 1 << 20


class Parts:
    """The parts of one store. `queues`, `index` and `tube` are None when switched off.

    The log is there at once; the followers come with `make_followers`, when the log's end is
    known.
    """

    def __init__(
        self, root: str, config: MessageStoreConfig, vfs: Vfs, clock: Clock, *, writable: bool
    ) -> None:
        config = with_batch_topics(config, vfs, root)
        self.root, self.config, self.vfs, self.clock = root, config, vfs, clock
        self.writable = writable
        #: The directories of the log's files: those that get some, and those that only have some.
        self.log_directories = config.commit_log_directories(root)
        self.read_only_directories = config.read_only_directories(root)
        first, *more = self.log_directories
        self.commit_log = CommitLog(
            vfs, first, config, clock, writable=writable, more=more,
            read_only=self.read_only_directories,
        )  # fmt: skip
        self.broker_config = BrokerConfig(vfs, root, compat=config.compat)
        self.queues: ConsumeQueueTable | None = None
        self.batch_queues: BatchQueueTable | None = None
        self.index: IndexService | None = None
        self.tube: TubeLayout | None = None
        #: What opening found of queues and index that is not as it should be.
        self.problems: list[TubeStoreError] = []

    def path(self, *names: str) -> str:
        """Return a path below the root."""
        return os.path.join(self.root, *names)

    def make_followers(self) -> None:
        """Make the structures that are switched on; a reader has no shards."""
        layouts, config = self.config.layouts, self.config
        if "consume_queue" in layouts:
            self.queues = ConsumeQueueTable(
                self.vfs, self.path(CONSUME_QUEUE_DIRECTORY), config.consume_queue_file_size,
                writable=self.writable,
                ext_file_size=(
                    config.mapped_file_size_consume_queue_ext
                    if config.enable_consume_queue_ext else None
                ),
                batch_topics=config.batch_topics,
            )  # fmt: skip
            if config.batch_topics:
                self.batch_queues = self.queues.batches = BatchQueueTable(
                    self.vfs, self.path(BATCH_CONSUME_QUEUE_DIRECTORY),
                    config.mapper_file_size_batch_consume_queue, config.batch_topics,
                    writable=self.writable,
                )  # fmt: skip
        if "index" in layouts and config.message_index_enable:
            geometry = IndexGeometry(config.max_hash_slot_num, config.max_index_num)
            self.index = IndexService(
                self.vfs, self.path(INDEX_DIRECTORY), geometry, self.clock, writable=self.writable
            )
        if "tube" in layouts and self.writable:
            self.tube = TubeLayout(self.root, vfs=self.vfs, clock=self.clock)

    @property
    def followers(self) -> list[Follower]:
        """The structures that there are, in the order in which they are fed."""
        every: tuple[Follower | None, ...] = (
            self.queues, self.batch_queues, self.index, self.tube,
        )  # type: ignore[assignment]  # fmt: skip
        return [follower for follower in every if follower is not None]

    def load(self, ends: dict[tuple[str, int], int] | None) -> None:
        """Look what is on disk; `ends` are the queues' ends as a clean close noted them."""
        minimum = self.commit_log.min_offset
        end = None if self.writable else self.commit_log.max_offset
        if self.queues is not None:
            self.queues.load(ends)
            self.queues.correct_min_offset(minimum, end)
        if self.batch_queues is not None:
            self.batch_queues.load()
            self.batch_queues.correct_min_offset(minimum, end)
        if self.index is not None:
            self.index.load()
            known = set(map(str, self.problems))
            self.problems += [p for p in self.index.problems if str(p) not in known]
            if self.index.problems and not self.writable:
                self.index = None

    def find_missing_queues(self, progress: Progress | None) -> bool:
        """Return whether files of queues are gone since a clean close; `problems` names the first.

        One whose whole directory was removed is no problem: so a queue is built again by hand.
        """
        if progress is None or self.queues is None:
            return False
        path = self.queues.missing_file(progress.queues, progress.queue_starts)
        if path is None:
            return False
        if parse_offset_name(os.path.basename(path)) is not None:
            done = "the queues are built again from the log" if self.writable else "left out"
            error = CorruptRecord(path, 0, f"the file is missing; {done}")
            _log.warning("%s", error)
            self.problems.append(error)
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


def refuse_other_logs(parts: Parts) -> None:
    """Raise NotAStore for a log in DLedger's files, and for structures whose log is not there.

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


def built_without_log(parts: Parts) -> list[str]:
    """Return what was built from a log of which no file is there; nothing if one is."""
    if _has_files(parts.vfs, [*parts.log_directories, *parts.read_only_directories]):
        return []
    found = [name for name in _BUILT if _has_data(parts.vfs, parts.path(name))]
    known = ProgressFile(parts.vfs, parts.root).read()
    if known is not None and known[0].log.written:
        found.append(f"{OWN_DIRECTORY}/{PROGRESS_FILE}")
    return found


def _was_never_synced(parts: Parts) -> bool:
    """Whether a power cut may have taken the log: by our marks none of it was on stable storage."""
    known = ProgressFile(parts.vfs, parts.root).read()
    return known is not None and not known[1] and known[0].log.synced == 0


def put_aside_built(parts: Parts, keeper: Quarantine) -> None:
    """Move what was built from a log that is lost to quarantine, durably."""
    for name in (*_BUILT, CHECKPOINT_FILE, os.path.join(OWN_DIRECTORY, PROGRESS_FILE)):
        if parts.vfs.exists(parts.path(name)):
            keeper.move(parts.path(name))
    keeper.sync()
    if keeper.path is not None:
        _log.warning("%s: no log; what was built from one is in %s", parts.root, keeper.path)


def _has_files(vfs: Vfs, directories: Iterable[str]) -> bool:
    """Whether a directory holds a file of a log that is not empty."""
    return any(
        not is_directory and size and parse_offset_name(name) is not None
        for directory in directories
        for name, is_directory, size in vfs.entries(directory)
    )


def _has_data(vfs: Vfs, path: str) -> bool:
    """Whether a file in a directory, or below it, has a byte that is not zero."""
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
