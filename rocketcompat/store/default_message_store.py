"""A RocketMQ store: put, get, query, recovery, clean shutdown; RocketMQ's `DefaultMessageStore`.

    with rocketcompat.open("/store", mode="w") as store:
        result = store.put_message(Message("orders", b"...", tags="paid", keys=["o-1"]))
        store.wait_dispatched(result.physical_offset, timeout=1.0)
        store.get_message("orders", 0, result.queue_offset, 32)

What a put promises: the record is in the page cache when it returns (it survives a kill); with
`flush_disk_type="SYNC_FLUSH"` or `durability="fsync"` it is on stable storage. Queues, index
and shards follow a moment later and are rebuilt from the log whatever happens to them.

A writer holds the root's lock, and an `abort` file stands there until everything was handed
over and synced. A reader (mode "r") creates, locks and writes nothing.

All calls are thread-safe. Not usable in a forked child: every call there raises StoreClosed.
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Self

import pyarrow as pa

from rocketcompat.formats import CONSUME_QUEUE_DIRECTORY
from rocketcompat.messages import Message, MessageBatch, MessageRecord, PutBatchResult, PutResult
from rocketcompat.options import MessageStoreConfig
from rocketcompat.record.delays import RETRY_TIMES_MAX, sent_back
from rocketcompat.record.prepare import encode_topic
from rocketcompat.store.cleaning import disk_used_percent, least_used
from rocketcompat.store.opening import Writer
from rocketcompat.store.opening_to_read import Reader
from rocketcompat.store.parts import Parts
from rocketcompat.store.puts import Durability, check_durability
from rocketcompat.store.reader import StoreReads
from rocketcompat.store.stats import StoreStats
from tubestore.clock import Clock, SystemClock
from tubestore.core.paths import checked_root
from tubestore.core.vfs import OsVfs, Vfs
from tubestore.errors import (
    InvalidMessage,
    NotAStore,
    ReadOnlyStore,
    StoreClosed,
    TubeStoreError,
    documented,
)
from tubestore.staging.job_files import check_publish_arguments, check_query
from tubestore.values import Age, checked_age_ms, checked_seconds, checked_whole

if TYPE_CHECKING:
    from rocketcompat.staging.pieces import StagedPiece
    from rocketcompat.staging.publish import LogPublishResult
    from rocketcompat.store.cleaning import FileVerdict

_log = logging.getLogger(__name__)
#: Ten thousand queues that are written to in turn must fit: a smaller pool would open each anew.
_DESCRIPTORS_MAX = 16_384


class DefaultMessageStore(StoreReads):
    """An open store; made by `rocketcompat.open`."""

    @documented
    def __init__(
        self,
        root: str | os.PathLike[str],
        mode: Literal["r", "w"] = "r",
        config: MessageStoreConfig | None = None,
        *,
        vfs: Vfs | None = None,
        clock: Clock | None = None,
        background: bool = True,
    ) -> None:
        self._closed = True  # until it is open; for `__del__`
        if mode not in ("r", "w"):
            raise InvalidMessage(f"mode: {mode!r} is neither 'r' nor 'w'")
        self.root, self.mode = checked_root(root), mode
        self._pid = os.getpid()
        vfs = vfs or OsVfs(descriptors_max=_DESCRIPTORS_MAX)
        try:
            vfs.entries(self.root)
        except NotADirectoryError:
            raise NotAStore(self.root, "not a directory") from None
        parts = self._parts = Parts(
            self.root,
            config or MessageStoreConfig(),
            vfs,
            clock or SystemClock(),
            writable=mode == "w",
        )
        self.config = parts.config
        self.commit_log = parts.commit_log
        self._writer: Writer
        self._reader: Reader
        if mode == "w":
            self._writer = Writer(parts)
            self._puts = self._writer.puts
            self.dispatcher, self.recovered = self._writer.dispatcher, self._writer.recovered
        else:
            self._reader = Reader(parts)
        self._stats = StoreStats(parts.commit_log, parts.clock)
        if mode == "w" and background:
            self._writer.start(self._stats.sample)
        self.queues, self.index, self.tube = parts.queues, parts.index, parts.tube
        self._closed = False

    # -- putting

    def put_message(self, message: Message, *, durability: Durability | None = None) -> PutResult:
        """Append a message and return where it stands.

        `durability`: "page_cache", "fsync", or None for what `flush_disk_type` says; with
        `transient_store_pool_enable` None acknowledges from memory, as RocketMQ does, and a kill
        loses what was put in the last `commit_interval_commit_log` ms or so. Raises
        MessageTooLarge, InvalidName, InvalidMessage before anything is written; DiskFull without
        room (may be tried again); StoreFailed after a failed write or sync. The error's `taken`
        says whether the message is in the log: "no", "yes" (at the physical offset `offset`, but
        its level was not reached) or "unknown" (the next opening decides).
        """
        if self._closed or self.mode == "r" or os.getpid() != self._pid:
            self._refuse_put()
        if durability is not None:
            check_durability(durability)
        return self._puts.put(message, durability)

    @documented
    def put_columns(self, messages: Any, *, durability: Durability | None = None) -> pa.Table:
        """Append many messages, given as Arrow or a dict of columns (see `encode.py`).

        Returns a row a message: physical_offset, queue_offset, size (bytes), store_timestamp (ms),
        status (a `PutStatus` name: PUT_OK, or FLUSH_DISK_TIMEOUT where the message is stored and
        its sync took longer than `sync_flush_timeout`). `durability` as in `put_message`. The
        batch is so many single puts: a crash in the middle keeps the first ones. Raises as
        `put_message` does; BatchError if the first rows are in the log and the next could not be
        written: its `acks` are their rows, None of each of the others.
        """
        self._check_put()
        check_durability(durability)
        return self._puts.put_columns(messages, durability)

    @documented
    def put_messages(
        self, batch: MessageBatch, *, durability: Durability | None = None
    ) -> PutBatchResult:
        """Append the messages of a batch, each a record, in one file and without others between.

        All of them are written or none. Raises as `put_message` does, and InvalidMessage for
        messages with units in several queues (multi-dispatch): their sizes depend on offsets.
        """
        self._check_put()
        check_durability(durability)
        return self._puts.put_batch(batch, durability)

    @documented
    def put_inner_batch(
        self, batch: MessageBatch, *, durability: Durability | None = None
    ) -> PutResult:
        """Append a batch as one record, in a topic of batches (`record/batches.py`, 5.x).

        The result's queue offset is the first message's; the topic's next is so many further on.
        Raises as `put_message` does.
        """
        self._check_put()
        check_durability(durability)
        return self._puts.put_inner_batch(batch, durability)

    @documented
    def send_back(
        self, record: MessageRecord, group: str, *, delay_level: int = 0,
        times_max: int = RETRY_TIMES_MAX,
    ) -> PutResult:  # fmt: skip
        """Put a message that a group could not consume again, as `record/delays.py` describes."""
        self._check_put()
        if not isinstance(record, MessageRecord):
            raise InvalidMessage(f"record: a MessageRecord is needed, not {type(record).__name__}")
        checked_whole("delay_level", delay_level, least=None)
        checked_whole("times_max", times_max)
        if not isinstance(group, str):
            raise InvalidMessage(f"group: {group!r} is no text")
        encode_topic(group, self.config.topic_size_max)
        message = sent_back(
            record, group, self.config, delay_level=delay_level, times_max=times_max
        )
        return self._puts.put(message, None)

    @documented
    def publish(
        self,
        job_id: str,
        staged: Iterable[StagedPiece | Mapping[str, Any]],
        *,
        threads: int | None = None,
        query: str | None = None,
    ) -> LogPublishResult:
        """Put staged records behind the log, all or none, at most once for ever (`publish.py`).

        `staged`: what the `log_staging.StagedLogWriter`s of its tasks described, in the order in
        which records shall follow each other. `threads` place large jobs (by default one a core).
        `query` names whose batch this is, a job `name:<number>`: the name is this query's from then
        on, and a batch that comes again has to have the same rows, else JobTaken.
        Raises InvalidMessage (a piece is missing or not as described), DiskFull before anything
        has changed; StoreFailed when it is not known how far it came: open the store again.
        """
        self._check_put()
        check_publish_arguments(staged, threads)
        dispatch = self.dispatcher.dispatch_pending
        check_query(job_id, query)
        result = self._writer.loads.publish(job_id, staged, threads, dispatch, query)
        self.dispatcher.wake()
        return result

    @documented
    def clean_staging(self, grace: Age = timedelta(days=1)) -> list[str]:
        """Remove what jobs staged that have written nothing for `grace`; returns their names.

        `grace`: ms, a timedelta, or a text such as "36h".
        """
        self._check_put()
        return self._writer.loads.clean(checked_age_ms(grace, "grace"))

    @documented
    def deliver_due(self) -> int:
        """Deliver the delayed messages whose time has come; returns how many.

        For a store without background threads, or one whose caller sets the clock.
        """
        self._check_put()
        self.dispatcher.dispatch_pending()
        schedule = self._writer.schedule
        return schedule.deliver_due() if schedule is not None else 0

    @documented
    def flush(self) -> None:
        """Bring everything put so far, and what is built from it, to stable storage.

        StoreFailed if queues, index or shards stopped before they got all of it. The log is synced
        then: the next opening builds from it what they lack.
        """
        self._check_put()
        self.commit_log.commit()
        last = self.commit_log.max_offset - 1
        self.dispatcher.wait_dispatched(last, self._dispatch_timeout)
        self._writer.flusher.persist()
        self.dispatcher.refuse_stopped(self.root, last)

    @documented
    def wait_dispatched(self, physical_offset: int, timeout: float | None = None) -> bool:
        """Wait until the message at this offset stands in queues, index and shards.

        False if `timeout` seconds passed before (default: `wait_dispatched_timeout`). StoreFailed
        if one of them stopped before it got the message: it gets it when the store is opened
        again.
        """
        self._check_open()
        checked_whole("physical_offset", physical_offset, least=None)
        if timeout is not None:
            checked_seconds("timeout", timeout)
        if self.mode == "r":
            return self.commit_log.max_offset > physical_offset
        limit = self._dispatch_timeout if timeout is None else timeout
        done = self.dispatcher.wait_dispatched(physical_offset, limit)
        self.dispatcher.refuse_stopped(self.root, physical_offset)
        return done

    @property
    def dispatch_behind_bytes(self) -> int:
        """Bytes of the log that queues, index and shards do not know yet."""
        return self.dispatcher.behind if self.mode == "w" else 0

    @documented
    def stats(self) -> dict[str, Any]:
        """Return run-time information, as RocketMQ's `getRuntimeInfo` has it, by section.

        `totals` since the store was opened, `rates` a second over the last 10, 60 and 600
        seconds, `log` (physical offsets, bytes that wait, `failed`, `full` while writes find no
        room, `refusing` while the disk is too full for more), `disk` (used percent), `queues`,
        `index`, `deleted_files`. Of a writer also `dispatch` (`full`, `stopped`), `structures`
        (what follows the log: how far each is, and whether it stopped), `services` (whether
        their threads run, or stopped by themselves).
        """
        self._check_open()
        log = self.commit_log
        queue_directory = self._parts.path(CONSUME_QUEUE_DIRECTORY)
        return {
            "opened_ms": self._stats.opened_ms,
            "totals": self._stats.totals()._asdict(),
            "rates": self._stats.rates(),
            "log": {
                "min_offset": log.min_offset,
                "max_offset": log.max_offset,
                "synced_offset": log.synced_offset,
                "files": len(log.queue.files),
                "syncs": log.sync_count,
                "dispatch_behind_bytes": self.dispatch_behind_bytes,
                "damaged_regions": len(log.damages),
                "failed": log.failed is not None,
                "full": log.full is not None,
                "refusing": log.refusal is not None,
                "refused_messages": log.refused_count,
            },
            **(self._writer.states() if self.mode == "w" else _NO_STATES),
            "disk": {
                "commit_log_percent": least_used(log.queue.writable_directories)[0],
                "consume_queue_percent": disk_used_percent(queue_directory),
            },
            "queues": {"count": len(self.queues.all_queues()) if self.queues is not None else 0},
            "index": dict(self.index.stats()) if self.index is not None else {},
            "deleted_files": dict(self._writer.cleaner.deleted) if self.mode == "w" else {},
        }

    @property
    def problems(self) -> list[TubeStoreError]:
        """What is wrong and was not raised: damage passed over, structures that stopped."""
        found: list[TubeStoreError] = [damage.error() for damage in self.commit_log.damages]
        found += self._parts.problems
        if self.mode == "w":
            found += [p for p in self._writer.problems() if str(p) not in map(str, found)]
        return found

    @documented
    def clean(self, *, dry_run: bool = False, manual: bool = True) -> list[FileVerdict]:
        """Delete expired files of the log, and what queues and index know of them (spec §9).

        One round, as the background service does every `clean_resource_interval` ms; with
        `manual` at any hour. Returns a verdict for each file of the log, with its reason; with
        `dry_run` nothing is changed. Deletions are durable on return.
        """
        self._check_put()
        cleaner = self._writer.cleaner
        if dry_run:
            return cleaner.explain(manual=manual)
        if manual:
            cleaner.execute_manually(1)
        return cleaner.run()

    def execute_delete_files_manually(self) -> None:
        """Let the next 20 background rounds delete expired files at any hour."""
        self._check_put()
        self._writer.cleaner.execute_manually()

    @documented
    def refresh(self) -> None:
        """Let a reader see what a writer has appended since; nothing for a writer."""
        self._check_open()
        if self.mode == "r":
            self._reader.refresh()
            self.index = self._parts.index

    # -- life

    @documented
    def close(self) -> None:
        """Hand everything over, sync it, write the marks, remove `abort`, release the lock.

        Harmless when repeated. A failed sync is raised when all is given back; `abort` stays
        then, and the next open verifies.
        """
        if self._closed:
            return
        self._closed = True
        if os.getpid() != self._pid:
            return
        if self.mode == "r":
            self._parts.close()
            return
        try:
            self._writer.shut_down()
        finally:
            self._writer.give_back()

    shutdown = close

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __del__(self) -> None:
        if not self._closed and os.getpid() == self._pid:
            warnings.warn(f"store {self.root!r} was not closed", ResourceWarning, stacklevel=2)

    def __reduce__(self) -> NoReturn:
        raise TypeError("an open store cannot be pickled; pickle its path")

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"mode={self.mode!r}"
        return f"<DefaultMessageStore {self.root!r} {state}>"

    # -- how it is done

    @property
    def _dispatch_timeout(self) -> float:
        return self.config.wait_dispatched_timeout / 1000

    def _check_open(self) -> None:
        if self._closed or os.getpid() != self._pid:
            raise StoreClosed(f"{self.root}: the store is closed")

    def _check_put(self) -> None:
        if self._closed or self.mode == "r" or os.getpid() != self._pid:
            self._refuse_put()

    def _refuse_put(self) -> NoReturn:
        self._check_open()
        raise ReadOnlyStore(f"{self.root}: was opened with mode='r'")


#: What a reader has of `Writer.states`.
_NO_STATES: dict[str, Any] = {"dispatch": {}, "structures": {}, "services": {}}


def open_store(
    root: str | os.PathLike[str],
    mode: Literal["r", "w"] = "r",
    config: MessageStoreConfig | None = None,
    *,
    layouts: Iterable[str] | None = None,
    vfs: Vfs | None = None,
    clock: Clock | None = None,
    background: bool = True,
) -> DefaultMessageStore:
    """Open a RocketMQ store; `rocketcompat.open`.

    With mode "w" it is created if it is missing. `layouts` overrides the configuration's.
    Without `background` nothing runs but what is called: `wait_dispatched` and `close` hand
    over what is pending. Raises NotAStore, StoreLocked, CorruptRecord; StorageError or DiskFull
    where the operating system refuses a call, as the store's other calls do.
    """
    config = config or MessageStoreConfig()
    if layouts is not None:
        config = config.changed(layouts=frozenset(layouts))
    return DefaultMessageStore(root, mode, config, vfs=vfs, clock=clock, background=background)
