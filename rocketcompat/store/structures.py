"""The table of the structures that follow the log; `register` adds one of the caller's.

Opening, recovery, flushing, cleaning, rebuilding, the command line and the Spark jobs read it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from rocketcompat.dispatch.protocols import Follower
from rocketcompat.formats import (
    BATCH_CONSUME_QUEUE_DIRECTORY,
    CONSUME_QUEUE_DIRECTORY,
    CONSUME_QUEUE_EXT_DIRECTORY,
    INDEX_DIRECTORY,
    TUBE_DIRECTORY,
)
from rocketcompat.index.index_service import IndexService
from rocketcompat.index.items import IndexGeometry
from rocketcompat.options import MessageStoreConfig
from rocketcompat.queues.table import BatchQueueTable, ConsumeQueueTable
from rocketcompat.shards.follower import TubeLayout
from tubestore.clock import Clock
from tubestore.core.paths import OWN_DIRECTORY
from tubestore.core.vfs import Vfs
from tubestore.errors import InvalidMessage

F_co = TypeVar("F_co", bound=Follower, covariant=True)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a structure is made: a store's root, or the work directory of a rebuild."""

    root: str
    vfs: Vfs
    clock: Clock
    config: MessageStoreConfig
    writable: bool

    def path(self, name: str) -> str:
        """Return a path below the root."""
        return os.path.join(self.root, name)


def _always(config: MessageStoreConfig) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Structure(Generic[F_co]):
    """A kind of structure: what it is called, where its files are, how it is made."""

    #: The follower's name: that of its progress mark.
    name: str
    #: Below the root; the name by which a rebuild is asked for.
    directory: str
    make: Callable[[Place], F_co]
    #: True if a store with these options has it.
    is_on: Callable[[MessageStoreConfig], bool] = _always
    #: The option with the size of its files.
    file_size_option: str | None = None
    #: Further directories with files of it.
    more_directories: tuple[str, ...] = ()
    #: False if a reader does without it.
    is_read: bool = True
    #: True for units by topic and queue id, which stay when the log's records are gone.
    has_queues: bool = False


def _make_queues(place: Place) -> ConsumeQueueTable:
    config = place.config
    ext_size = config.mapped_file_size_consume_queue_ext
    return ConsumeQueueTable(
        place.vfs, place.path(CONSUME_QUEUE_DIRECTORY), config.consume_queue_file_size,
        writable=place.writable, batch_topics=config.batch_topics,
        ext_file_size=ext_size if config.enable_consume_queue_ext else None,
    )  # fmt: skip


def _make_batch_queues(place: Place) -> BatchQueueTable:
    return BatchQueueTable(
        place.vfs, place.path(BATCH_CONSUME_QUEUE_DIRECTORY),
        place.config.mapper_file_size_batch_consume_queue, place.config.batch_topics,
        writable=place.writable,
    )  # fmt: skip


def _make_index(place: Place) -> IndexService:
    geometry = IndexGeometry(place.config.max_hash_slot_num, place.config.max_index_num)
    path = place.path(INDEX_DIRECTORY)
    return IndexService(place.vfs, path, geometry, place.clock, writable=place.writable)


QUEUES = Structure(
    ConsumeQueueTable.name, CONSUME_QUEUE_DIRECTORY, _make_queues,
    lambda config: "consume_queue" in config.layouts, "consume_queue_file_size",
    (CONSUME_QUEUE_EXT_DIRECTORY,), has_queues=True,
)  # fmt: skip
BATCH_QUEUES = Structure(
    BatchQueueTable.name, BATCH_CONSUME_QUEUE_DIRECTORY, _make_batch_queues,
    lambda config: "consume_queue" in config.layouts and bool(config.batch_topics),
    "mapper_file_size_batch_consume_queue", has_queues=True,
)  # fmt: skip
INDEX = Structure(
    IndexService.name, INDEX_DIRECTORY, _make_index,
    lambda config: "index" in config.layouts and config.message_index_enable,
)  # fmt: skip
SHARDS = Structure(
    TubeLayout.name, TUBE_DIRECTORY,
    lambda place: TubeLayout(
        place.root, vfs=place.vfs, clock=place.clock, options=place.config.tube_options
    ),
    lambda config: "tube" in config.layouts, is_read=False,
)  # fmt: skip
#: In the order in which they are fed: a query that finds a key's message finds its unit, too.
_BUILT_IN: tuple[Structure[Any], ...] = (QUEUES, BATCH_QUEUES, INDEX, SHARDS)
_registered: list[Structure[Any]] = []


def structures() -> tuple[Structure[Any], ...]:
    """Return all structures, those of the callers last."""
    return (*_BUILT_IN, *_registered)


def register(structure: Structure[Any]) -> None:
    """Add a structure of the caller's: each store that is opened afterwards keeps it.

    It gets every record once and in order, is recovered with the store and can be rebuilt::

        class Count(Follower):
            name = "count"

            def __init__(self, place):
                self.vfs, self.path = place.vfs, place.path("count/state")
                place.vfs.make_directories(place.path("count"))

            def recover(self, log, trust, lower_mark):
                self.state = log.min_offset, 0
                if trust.mark is not None and self.vfs.exists(self.path):
                    self.state = tuple(map(int, self.vfs.read_file(self.path).split()))
                self.synced = self.state[0]
                return self.synced

            def put(self, batch):
                self.state = batch.end, self.state[1] + len(batch)

            def flush(self, sync):
                if sync:
                    self.vfs.replace_file(self.path, b"%d %d" % (state := self.state))
                    self.synced = state[0]

            ends = property(lambda self: (self.synced, self.synced))

        register(Structure("count", "count", Count))

    InvalidMessage if the name or the directory is taken.
    """
    for other in structures():
        taken = {other.directory, *other.more_directories, OWN_DIRECTORY}
        if structure.name == other.name or taken & {
            structure.directory, *structure.more_directories
        }:  # fmt: skip
            raise InvalidMessage(f"structure {structure.name!r}: {other.name!r} is there already")
    _registered.append(structure)


def unregister(name: str) -> None:
    """Take a registered structure out; its files stay."""
    _registered[:] = [one for one in _registered if one.name != name]
