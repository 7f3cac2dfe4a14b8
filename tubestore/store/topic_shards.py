"""The shards of one topic, opened when they are first used.

Guards: `_lock` lets one thread open a shard, and takes turns for a batch.
"""

from __future__ import annotations

from threading import Lock

from tubestore.errors import (
    InvalidMessage,
    ReadOnlyStore,
    StoreClosed,
    again,
    documented,
)
from tubestore.options import PARTITIONS_PER_STORE, TopicOptions
from tubestore.reading.view import ShardView
from tubestore.shard.message_store import MessageStore
from tubestore.shard.reader import ShardReader
from tubestore.staging.commit_records import Horizon
from tubestore.store.opening import Shard, ShardOpener
from tubestore.values import whole_number


class TopicShards:
    """The shards of a topic, its settings, and the shard that gets the next message."""

    def __init__(self, opener: ShardOpener, name: str, options: TopicOptions) -> None:
        self.name = name
        self._opener = opener
        #: Shards that have been used, by store id.
        self.by_id: dict[int, Shard] = {}
        self._lock = Lock()
        #: Why no shard is opened any more.
        self._refusal: StoreClosed | None = None
        #: The last partition, counted through all stores, that was chosen without a key.
        self.turn = 0
        self.adopt(options)

    @property
    def root(self) -> str:
        """The directory of the store."""
        return self._opener.root

    def adopt(self, options: TopicOptions) -> None:
        """Take over changed settings."""
        self.options = options
        #: Ids below this are partitions of store 0.
        self.first_store_end = options.partitions

    def take_turns(self, count: int) -> int:
        """Reserve `count` turns; returns the first."""
        with self._lock:
            first = self.turn + 1
            self.turn += count
        return first

    # -- one ---------------------------------------------------------------------------------

    def shard(self, store_id: int) -> Shard:
        """Return one of the topic's shards, opening it at its first use."""
        shard = self.by_id.get(store_id)
        if shard is None:
            with self._lock:
                shard = self.by_id.get(store_id)
                if shard is None:
                    if self._refusal is not None:
                        raise again(self._refusal)
                    shard = self._opener.open(self.name, store_id, self.options.id)
                    self.by_id[store_id] = shard
        return shard

    def writable(self, store_id: int) -> MessageStore:
        """Return one of the topic's shards for appending; ReadOnlyStore in mode "r"."""
        shard = self.by_id.get(store_id)
        if type(shard) is MessageStore:
            return shard
        shard = self.shard(store_id)
        if not isinstance(shard, MessageStore):
            raise ReadOnlyStore(f"{self.root} was opened with mode='r'")
        return shard

    def exists(self, store_id: int) -> bool:
        """Return whether a shard has been used, has a directory, or messages in the journal."""
        return store_id in self.by_id or self._opener.exists(self.name, store_id)

    def data_segments(self, store_id: int) -> int:
        """Return how many data segments a shard's directory lists; opens nothing."""
        return self._opener.data_segments(self.name, store_id)

    def opened_shard(self, store_id: int) -> Shard | None:
        """Return a shard that has been used, or that the journal has more of than its files."""
        shard = self.by_id.get(store_id)
        if shard is None and self._opener.has_left(self.name, store_id):
            shard = self.shard(store_id)
        return shard

    # -- views -------------------------------------------------------------------------------

    def known(self, partition: int) -> int:
        """Return the id of a partition as users give it; InvalidMessage if there is none such."""
        number = whole_number(partition)
        if number is None or not self.options.holds(number):
            raise InvalidMessage(
                f"partition {partition!r}: topic {self.name!r} has {self.options.partition_names()}"
            )
        return number

    def view_of(self, partition: int) -> ShardView:
        """Return the shard of a partition as it is now; InvalidMessage if there is none such."""
        return self.shard(self.known(partition) // PARTITIONS_PER_STORE).view()

    @documented
    def views(self) -> list[ShardView]:
        """Return all shards as they are at one moment: a published job is in all or in none."""
        while True:
            ids = self._existing()
            shards = [self.shard(store_id) for store_id in ids]
            with self._opener.showing:
                if self._existing() == ids:  # else a job may have come that made some
                    return [shard.view() for shard in shards]

    def views_of(self, store_ids: list[int]) -> list[ShardView]:
        """Return some shards as they are at one moment."""
        shards = [self.shard(store_id) for store_id in store_ids]
        with self._opener.showing:
            return [shard.view() for shard in shards]

    def _existing(self) -> list[int]:
        return [store_id for store_id in range(self.options.stores) if self.exists(store_id)]

    def refresh(self) -> None:
        """See what a writer in another process has done to these shards; for mode "r"."""
        if self._opener.context.mode == "r":
            with self._opener.showing:
                self.show(self._opener.read_topic_again(self.name))

    def show(self, horizon: Horizon) -> None:
        """Show the files as they are now, with the jobs up to a horizon; under `showing`."""
        for shard in self.opened_shards():
            if isinstance(shard, ShardReader):
                shard.refresh(horizon)

    # -- all ---------------------------------------------------------------------------------

    def opened_shards(self) -> list[Shard]:
        """Return the shards that have been used."""
        return list(self.by_id.values())

    def written_shards(self) -> list[MessageStore]:
        """Return the shards that have been opened for writing."""
        return [shard for shard in self.opened_shards() if isinstance(shard, MessageStore)]

    def shards_at_close(self) -> list[Shard]:
        """Return the shards that have been used, also one that another thread is opening now.

        After the store has begun to refuse openings: then there are no others.
        """
        with self._lock:
            return list(self.by_id.values())

    def flush(self) -> None:
        """Write the buffers to the files (page cache)."""
        for shard in self.written_shards():
            shard.flush()

    def sync(self) -> None:
        """Bring everything that was taken to stable storage, by earlier processes too."""
        for shard in self.written_shards():
            shard.sync()
        self._opener.context.directory.sync_earlier()

    def refuse(self, reason: StoreClosed) -> None:
        """Refuse everything from now on; no write is under way when this returns."""
        with self._lock:
            self._refusal = reason
            for shard in self.written_shards():
                shard.refuse(reason)

    def abandon(self, reason: StoreClosed) -> None:
        """Refuse everything from now on: this process is a fork of the one that opened it."""
        self._lock = Lock()
        self._refusal = reason
        for shard in self.by_id.values():
            shard.abandon(reason)

    def discard(self, reason: StoreClosed) -> None:
        """Refuse everything from now on and write nothing more: the topic was deleted."""
        with self._lock:
            self._refusal = reason
            for shard in self.by_id.values():
                shard.discard(reason)
