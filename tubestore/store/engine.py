"""An open store from inside: its parts, made and put together, and its life until it is closed.

The parts, from below to above; each uses only those before it:

    Context       directory, settings, clock, ids, the bound on memory
    ShardOpener   opens a shard, with what the journal has of it
    Housekeeping  retention, trashes, leases
    Topics        names and settings; a `Topic` is made of its `TopicShards`
    Shards        the shards of all topics: flush, sync, refresh, close
    BulkLoads     jobs of ready-made files
    Engine        all of them; opening, what is due by time, closing

Lock order: the topics' lock before any of a shard's (decisions.md D11).
"""

from __future__ import annotations

import atexit
import os
import sys
import warnings
import weakref
from collections.abc import Callable
from typing import Literal

from tubestore.clock import Clock
from tubestore.core.doors import logger
from tubestore.core.memory_pool import MemoryPool
from tubestore.core.vfs import LOST_LOCK, OsVfs, Vfs
from tubestore.errors import StoreClosed, StoreFailed, TubeStoreError
from tubestore.groups.waiter import Waiter
from tubestore.options import StoreOptions, TopicOptions
from tubestore.shard.message_store import MessageStore
from tubestore.shard.workers import Workers
from tubestore.staging import roll_forward
from tubestore.store.append import AddressBook
from tubestore.store.context import Context, MessageIds
from tubestore.store.directory import ShardRegister, StoreDirectory
from tubestore.store.housekeeping import Housekeeping
from tubestore.store.opening import ShardOpener
from tubestore.store.publish import BulkLoads
from tubestore.store.shards import Shards
from tubestore.store.topic import Topic
from tubestore.store.topic_shards import TopicShards
from tubestore.store.topics import Topics

log = logger(__name__)
_open_engines: weakref.WeakSet[Engine] = weakref.WeakSet()


class Engine:
    """The parts of one open store. Topics keep it alive; unused it closes itself, and warns."""

    context: Context

    def __init__(
        self,
        root: str,
        mode: Literal["w", "r"],
        options: StoreOptions,
        vfs: Vfs,
        clock: Clock,
        *,
        background: bool,
    ) -> None:
        #: False if all work is done in the callers' threads.
        self.has_threads = background
        #: True after a full disk has kept it from closing.
        self._kept_open = False
        if mode == "w":
            _close_earlier(root, vfs)
        directory = StoreDirectory(vfs, root, mode, clock)
        pool = MemoryPool(options.memory_bound_bytes, lambda: self.shards.relieve())
        ids = MessageIds(clock)
        register = ShardRegister(directory)
        self.context = context = Context(directory, mode, options, clock, vfs, ids, pool, register)
        try:
            if mode == "w":
                roll_forward.recover(vfs, root, directory.writer)
            self.opener = ShardOpener(context)
            self.housekeeping = Housekeeping(context)
            self.topics = Topics(context, self.opener, self._make_topic)
            if mode == "w":
                self.topics.finish_deletions()
            self.topics.report_missing_shards()
        except BaseException:
            directory.release()
            raise
        self.address_book = AddressBook(self.topics.shards_of_all, lambda: self.topics.version)
        self.shards = Shards(context, self.opener, self.topics, self.address_book)
        self.loads = BulkLoads(context, self.opener, self.topics)
        if mode == "r":
            self.opener.look_for_damage()
        if directory.lost_state is not None:
            log.error("%s", directory.lost_state)
            context.note_problem(directory.lost_state)
        context.state.closed = None
        _open_engines.add(self)
        if mode == "w":
            if background:
                self.opener.background = Workers(
                    options.flush_workers, self.due_shards, self.keep_house, self.note_problem
                )
            try:
                self.opener.take_over_journal(self.topics.shard_of_key)
                self.shards.recover_groups()
            except BaseException:
                self.close()
                raise

    def _make_topic(self, name: str, options: TopicOptions) -> Topic:
        shards = TopicShards(self.opener, name, options)
        return Topic(self.opener, shards, self.housekeeping, self._make_waiter)

    def _make_waiter(self) -> Waiter:
        return Waiter(self.shards.call_beyond)

    # -- what is due by time -----------------------------------------------------------------

    def maintain(self) -> None:
        """Do what is due by time, here and now."""
        if not self.check_lock():
            return
        self.shards.maintain_journal()
        for shard in list(self.shards.written()):
            shard.maintain()
        self.context.register.write()
        self.keep_house(lambda seconds: False)

    def due_shards(self) -> list[MessageStore] | None:
        """Maintain the journal; returns the shards to be maintained, None without the lock."""
        if not self.check_lock():
            return None
        self.context.register.write()
        try:
            self.shards.maintain_journal()
        except Exception:  # the timer goes on; the next append meets the error, too
            log.exception("the journal")
        return list(self.shards.written())

    def keep_house(self, pause: Callable[[float], bool]) -> None:
        """Make a pass of retention, over trashes and staged files too, if it is time for one."""
        if self.housekeeping.is_due():
            topics = self.topics.all_shards()
            self.housekeeping.run(topics, pause, self.loads.clean_old_staging)

    def note_problem(self, problem: TubeStoreError) -> None:
        """Keep an error that no caller waits for."""
        self.context.note_problem(problem)

    def check_lock(self) -> bool:
        """Stop writing once the lock does not keep other writers out; True while it does.

        Another process may write to the directory then, and two writers would spoil its files.
        What was being written is complete before the directory is given back.
        """
        state, directory = self.context.state, self.context.directory
        if state.closed is not None or directory.is_locked():
            return state.closed != LOST_LOCK
        self.note_problem(StoreFailed(directory.root, LOST_LOCK))
        state.closed = LOST_LOCK
        self.shards.refuse(StoreClosed(f"{directory.root}: {LOST_LOCK}"))
        if self.opener.background is not None:
            self.opener.background.stop()
        directory.release()
        return False

    # -- the end -----------------------------------------------------------------------------

    def close(self, *, give_up: bool = False) -> None:
        """Flush and sync everything and give the directory back; see `close` of the store."""
        context, workers = self.context, self.opener.background
        if not self.check_lock():
            raise StoreFailed(context.root, LOST_LOCK)
        with self.topics.lock:
            if context.state.closed is not None:
                return
            errors = self.shards.open_left()
            context.state.closed = "the store is closed"
        try:
            if workers is not None:
                workers.stop()
            errors += self.shards.close(give_up=give_up)
        except BaseException:  # a full disk, or an interrupt
            context.state.closed, self._kept_open = None, True
            if workers is not None:
                workers.stop()  # the interrupt may have come before they had ended
                workers.start()
            raise
        self.topics.close()
        context.directory.release()
        _open_engines.discard(self)
        if errors:
            raise errors[0]

    def abandon(self, reason: str) -> None:
        """Stop without writing anything: a forked child does this with its parent's stores.

        Other threads may not use the store: it gets new locks.
        """
        self.context.state.closed = reason
        self.shards.abandon(StoreClosed(f"{self.context.root}: {reason}"))

    def must_close_earlier_than(self, root: str, vfs: Vfs) -> bool:
        """Return whether a full disk has kept it from closing, at the root of a new store."""
        mine = self.context.vfs
        same_disk = mine is vfs or (isinstance(mine, OsVfs) and isinstance(vfs, OsVfs))
        return self._kept_open and self.context.root == root and same_disk

    def __del__(self) -> None:
        # While the interpreter ends its threads do not run, and cannot be waited for any more.
        if not sys.is_finalizing():
            self.close_unused()

    def close_unused(self) -> None:
        """Close a store that its caller has left open, with a ResourceWarning."""
        context = getattr(self, "context", None)
        if context is not None and context.state.closed is None:
            text = f"store {context.root} was not closed"
            warnings.warn(text, ResourceWarning, stacklevel=3, source=self)
            try:
                self.close(give_up=True)
            except Exception as error:
                log.error("%s, and not all of it could be written: %s", text, error)


def _close_earlier(root: str, vfs: Vfs) -> None:
    """Close the store here that a full disk has kept open; DiskFull as long as it does.

    Its caller wanted it closed, and may not have kept it.
    """
    for engine in list(_open_engines):
        if engine.must_close_earlier_than(root, vfs):
            engine.close()


def _after_fork() -> None:
    for engine in list(_open_engines):
        engine.abandon("opened before this process was forked; open it again here")


def _close_left_open() -> None:
    """Close what a program has left open at its end, while its threads can still be stopped."""
    for engine in list(_open_engines):
        engine.close_unused()


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_close_left_open)
