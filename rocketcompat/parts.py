"""What an open store is made of: the log, and the structures that follow it.

Next to read: `writer.py` and `reader.py`, which open them.
"""

from __future__ import annotations

import logging
import os

from rocketcompat.batch_queue_table import BatchQueueTable
from rocketcompat.broker_config import BrokerConfig
from rocketcompat.commit_log import CommitLog
from rocketcompat.consume_queue_table import ConsumeQueueTable
from rocketcompat.follower import Follower
from rocketcompat.formats import (
    BATCH_CONSUME_QUEUE_DIRECTORY,
    CONSUME_QUEUE_DIRECTORY,
    INDEX_DIRECTORY,
)
from rocketcompat.index_items import IndexGeometry
from rocketcompat.index_service import IndexService
from rocketcompat.inner_batches import with_batch_topics
from rocketcompat.options import MessageStoreConfig
from rocketcompat.tube_layout import TubeLayout
from tubestore.clock import Clock
from tubestore.errors import NotAStore, TubeStoreError
from tubestore.filenames import OWN_DIRECTORY, STORE_FILE
from tubestore.vfs import Vfs

_log = logging.getLogger(__name__)


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
