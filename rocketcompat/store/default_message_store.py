"""A RocketMQ store: put, get, query, recovery, clean shutdown; RocketMQ's `DefaultMessageStore`.

    with rocketcompat.open("/store", mode="w") as store:
        result = store.put_message(Message("orders", b"...", tags="paid", keys=["o-1"]))
        store.wait_dispatched(result.physical_offset, timeout=1.0)
        store.get_message("orders", 0, result.queue_offset, 32)

A put promises: the record is in the page cache when it returns (it survives a kill). With
`flush_disk_type="SYNC_FLUSH"` or `durability="fsync"` it is on stable storage. Queues, index and
shards follow a moment later and are rebuilt from the log whatever happens to them.

A writer holds the root's lock, and an `abort` file is there until everything was handed over and
synced. A reader (mode "r") creates, locks and writes nothing.

All calls are thread-safe. Not usable in a forked child: every call there raises StoreClosed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from rocketcompat.formats import TUBE_DIRECTORY
from rocketcompat.inspect.index_geometry import config_of_files
from rocketcompat.messages import (
    DispatchBatch,
    Message,
    MessageBatch,
    MessageRecord,
    PutBatchResult,
    PutResult,
    PutStatus,
)
from rocketcompat.options import KEPT, LAYOUTS, MessageStoreConfig
from rocketcompat.record.delays import RETRY_TIMES_MAX, sent_back
from rocketcompat.record.prepare import encode_topic
from rocketcompat.store.opening import Opened, open_to_write
from rocketcompat.store.opening_to_read import open_to_read
from rocketcompat.store.parts import Parts
from rocketcompat.store.puts import Durability, check_durability, in_ms
from rocketcompat.store.reader import StoreReader, checked_wait
from rocketcompat.store.recovery import RecoverResult
from tubestore.clock import Clock, SystemClock
from tubestore.core.paths import checked_root
from tubestore.core.vfs import Vfs
from tubestore.disks.roots import disk_of, refuse_objects
from tubestore.errors import (
    InvalidMessage,
    NotAStore,
    StoreBusy,
    TubeStoreError,
    documented,
    failed_write,
    refused_call,
)
from tubestore.staging.job_files import check_publish_arguments, check_query
from tubestore.staging.placing import Spread
from tubestore.values import Age, Seconds, checked_age_ms, checked_whole

if TYPE_CHECKING:
    from rocketcompat.staging.pieces import StagedPiece
    from rocketcompat.staging.publish import LogPublishResult
    from rocketcompat.store.cleaning import FileVerdict

#: Ten thousand queues that are written to in turn must fit: a smaller pool would open each anew.
_DESCRIPTORS_MAX = 16_384


class DefaultMessageStore(StoreReader):
    """A RocketMQ store that is open for writing: `rocketcompat.open(root, mode="w")`.

    It reads, too: every call of `StoreReader` is here. One writer a directory. All methods are
    thread-safe.

    >>> import tempfile, rocketcompat
    >>> with tempfile.TemporaryDirectory() as root, rocketcompat.open(root, mode="w") as store:
    ...     put = store.put_message(rocketcompat.Message("orders", b"hello", tags="paid"))
    ...     store.wait_dispatched(put.physical_offset)
    ...     [m.body for m in store.get_message("orders", 0, put.queue_offset)]
    True
    [b'hello']
    """

    mode = "w"

    def __init__(self, opened: Opened, *, background: bool) -> None:
        super().__init__(opened.parts)
        self._opened, self._log = opened, opened.parts.commit_log
        self._puts, self._dispatcher = opened.puts, opened.dispatcher
        if background:
            opened.start(self._stats.sample)

    @property
    def recovered(self) -> RecoverResult:
        """What opening found, and what it cut or mended."""
        return self._opened.recovered

    # -- putting

    def put_message(
        self, message: Message | MessageRecord, *, durability: Durability | None = None
    ) -> PutResult:
        """Append a message and return its place; of a record that was read, `record.message()`.

        `durability`: "page_cache", "fsync", or None for the level of `flush_disk_type`. With
        `transient_store_pool_enable` None acknowledges from memory, as RocketMQ does, and a kill
        loses what was put in the last `commit_interval_commit_log` ms or so.

        Raises MessageTooLarge, InvalidName, InvalidMessage before anything is written; DiskFull
        without room (may be tried again); StoreFailed after a failed write or sync. The error's
        `taken` records whether the message is in the log: "no", "yes" (at the physical offset
        `offset`, but its level was not reached) or "unknown" (the next opening decides).
        """
        if self._closed or os.getpid() != self._pid:
            self._check_open()
        if durability is not None:
            check_durability(durability)
        if isinstance(message, MessageRecord):
            message = message.message()
        elif isinstance(message, Message) and message.born_timestamp is not None:
            message = in_ms(message, self._parts.clock)
        return self._puts.put(message, durability)

    @documented
    def put_columns(self, messages: Any, *, durability: Durability | None = None) -> pa.Table:
        """Append many messages, given as Arrow or a dict of columns.

        Columns: `topic` (needed), `body`, `queue_id`, `tags`, `keys` (text, or lists of texts),
        `properties` (text as on disk, or a map), and the other fields of `Message`, by name. What
        `scan`, `read_queue`, `query_messages` or `get_message` returned is put again, in the topics
        and queues that it names. (A scan is read to its end first: of a long one, put each batch.)

        Returns a row a message: physical_offset, queue_offset, size (bytes), store_timestamp (ms),
        status (a `PutStatus` name: PUT_OK, or FLUSH_DISK_TIMEOUT where the message is stored and
        its sync took longer than `sync_flush_timeout`). `durability` as in `put_message`. The
        batch is so many single puts: a crash in the middle keeps the first ones. Raises as
        `put_message` does; BatchError if the first rows are in the log and the next could not be
        written: its `acks` are their rows, None of each of the others.
        """
        self._check_open()
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
        self._check_open()
        check_durability(durability)
        return self._puts.put_batch(self._timed(batch), durability)

    @documented
    def put_inner_batch(
        self, batch: MessageBatch, *, durability: Durability | None = None
    ) -> PutResult:
        """Append a batch as one record, in a topic of batches (5.x).

        The result's queue offset is the first message's; the topic's next is so many further on.
        Raises as `put_message` does.
        """
        self._check_open()
        check_durability(durability)
        return self._puts.put_inner_batch(self._timed(batch), durability)

    def _timed(self, batch: MessageBatch) -> MessageBatch:
        return in_ms(batch, self._parts.clock) if isinstance(batch, MessageBatch) else batch

    @documented
    def send_back(
        self, record: MessageRecord, group: str, *, delay_level: int = 0,
        times_max: int = RETRY_TIMES_MAX,
    ) -> PutResult:  # fmt: skip
        """Put a message that a group could not consume again: into its retry topic, delayed.

        The message counts its rounds (`reconsume_times`). With a `delay_level` of 0 each round
        waits longer; below 0, or after `times_max` rounds, it goes to the dead letters.
        """
        self._check_open()
        if not isinstance(record, MessageRecord):
            raise InvalidMessage(f"record: a MessageRecord is needed, not {type(record).__name__}")
        checked_whole("delay_level", delay_level, least=None)
        checked_whole("times_max", times_max)
        if not isinstance(group, str):
            raise InvalidMessage(f"group: {group!r} is not a text")
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
        spread: Spread | None = None,
    ) -> LogPublishResult:
        """Put staged records behind the log, all or none, and at most once.

        `staged`: the descriptions by the `StagedLogWriter`s of its tasks, in the order in which
        records shall follow each other. `threads` place large jobs (by default one a core). `query`
        names the query that this batch belongs to, a job `name:<number>`. The name is this query's
        from then on. JobTaken for a job that comes again with other messages (another number of
        them, other topics or bodies), unless nothing is staged for it, as long as the store keeps
        the job's record.

        Jobs of 256 MiB or more `spread` may have other processes write: `spread(work, parts)`
        returns `list(map(work, parts))`, and work, parts and results can be pickled.

        Raises InvalidMessage (a piece is missing or not as described), DiskFull before anything has
        changed; StoreFailed when it is not known how far it came: open the store again.
        """
        self._check_open()
        check_publish_arguments(staged, threads)
        dispatch = self._dispatcher.dispatch_pending
        check_query(job_id, query)
        result = self._opened.loads.publish(job_id, staged, threads, dispatch, query, spread)
        self._dispatcher.wake()
        return result

    @documented
    def clean_staging(self, grace: Age = timedelta(days=1)) -> list[str]:
        """Remove what jobs staged that have written nothing for `grace`; returns their names.

        `grace`: a timedelta, or a text such as "36h".
        """
        self._check_open()
        return self._opened.loads.clean(checked_age_ms(grace, "grace"))

    @documented
    def deliver_due(self) -> int:
        """Deliver the delayed messages that are due; returns how many.

        For a store without background threads, or with a clock that the caller sets.
        """
        self._check_open()
        self._dispatcher.dispatch_pending()
        schedule = self._opened.schedule
        return schedule.deliver_due() if schedule is not None else 0

    @documented
    def flush(self) -> None:
        """Bring everything put so far, and what is built from it, to stable storage.

        StoreFailed if queues, index or shards stopped before they got all of it, DiskFull if they
        wait for room, StoreBusy if `wait_dispatched_timeout` was over before. The log is synced
        then: what they lack they get later, or when the store is opened again.
        """
        self._check_open()
        self._log.commit()
        last = self._log.max_offset - 1
        done = self._dispatcher.wait_dispatched(last, self._dispatch_timeout)
        self._opened.flusher.persist()
        self._dispatcher.refuse_stopped(self.root, last)
        if done:
            return
        if self._dispatcher.full is not None:
            raise failed_write(self.root, self._dispatcher.full)
        raise StoreBusy(
            f"{self.root}: all messages are synced, but queues, index or shards lack the last"
            f" {self._dispatcher.behind} bytes of the log after"
            f" {self.config.wait_dispatched_timeout} ms (wait_dispatched_timeout)"
        )

    @documented
    def wait_dispatched(self, physical_offset: int, timeout: Seconds | None = None) -> bool:
        """Wait until the message at this offset is in queues, index and shards.

        False if `timeout` passed before (seconds, a timedelta, or a text such as "500ms"; default:
        `wait_dispatched_timeout`). StoreFailed if one of them stopped before it got the message: it
        gets it when the store is opened again.
        """
        self._check_open()
        limit = checked_wait(physical_offset, timeout, self._dispatch_timeout)
        done = self._dispatcher.wait_dispatched(physical_offset, limit)
        self._dispatcher.refuse_stopped(self.root, physical_offset)
        return done

    def set_replication(self, replicated: Callable[[int], PutStatus] | None) -> None:
        """Let every put wait for a slave, as on a SYNC_MASTER; None: no put waits.

        `replicated(end)` returns when a slave has everything below the physical offset `end`, or
        with the reason why not, which is the put's status. Messages with WAIT=false do not wait.
        `rocketcompat.ha.server.HaServer` sets it.
        """
        self._check_open()
        self._puts.replicated = replicated

    def set_arrival_listener(self, listener: Callable[[DispatchBatch], None] | None) -> None:
        """Call `listener` with each batch of records that queues, index and shards have got.

        RocketMQ's `MessageArrivingListener`. It runs in the thread that dispatches, so it has to
        return soon; what it raises is in `problems`. `rocketcompat.broker` sets it. None: no call.
        """
        self._dispatcher.arrived = listener

    @property
    def dispatch_behind_bytes(self) -> int:
        """Bytes of the log that queues, index and shards do not have yet."""
        return self._dispatcher.behind

    @property
    def problems(self) -> list[TubeStoreError]:
        """What is wrong and was not raised: damage passed over, structures that stopped."""
        found = super().problems
        return found + [p for p in self._opened.problems() if str(p) not in map(str, found)]

    @documented
    def clean(self, *, dry_run: bool = False, manual: bool = True) -> list[FileVerdict]:
        """Delete expired files of the log, and their units and items.

        One round, as the background service does every `clean_resource_interval` ms; with
        `manual` at any hour. Returns a verdict for each file of the log, with its reason; with
        `dry_run` nothing is changed. Deletions are durable on return.
        """
        self._check_open()
        cleaner = self._opened.cleaner
        if dry_run:
            return cleaner.explain(manual=manual)
        if manual:
            cleaner.execute_manually(1)
        return cleaner.run()

    def execute_delete_files_manually(self) -> None:
        """Let the next 20 background rounds delete expired files at any hour."""
        self._check_open()
        self._opened.cleaner.execute_manually()

    # -- how it is done

    def _opened_to_write(self) -> Opened:
        return self._opened

    def _refresh(self) -> None:
        """Do nothing: a writer sees what it appends."""

    def _close_parts(self) -> None:
        try:
            self._opened.shut_down()
        finally:
            self._opened.give_back()

    @property
    def _dispatch_timeout(self) -> float:
        return self.config.wait_dispatched_timeout / 1000

    def _former_parts(self) -> dict[str, Any]:
        return {**super()._former_parts(), "dispatcher": self._dispatcher}


def opening_of(
    root: str | os.PathLike[str], vfs: Vfs | None, *, writable: bool = True
) -> tuple[str, Vfs]:
    """Return the path of a root and its file system; NotAStore for a file, ReadOnlyStore."""
    path = checked_root(root)
    if writable:
        refuse_objects(path)
    vfs = vfs or disk_of(path, descriptors_max=_DESCRIPTORS_MAX)
    try:
        vfs.entries(path)
    except NotADirectoryError:
        raise NotAStore(path, "not a directory") from None
    except OSError as error:
        raise refused_call(path, error) from error
    return path, vfs


def open_store(
    root: str | os.PathLike[str], mode: Literal["r", "w"], config: MessageStoreConfig | None, *,
    layouts: Iterable[str] | None, vfs: Vfs | None, clock: Clock | None, background: bool,
) -> StoreReader:  # fmt: skip
    """Open a RocketMQ store; `rocketcompat.open`."""
    if mode not in ("r", "w"):
        raise InvalidMessage(f"mode: {mode!r} is neither 'r' nor 'w'")
    if config is not None and not isinstance(config, MessageStoreConfig):
        kind = type(config).__name__
        raise InvalidMessage(f"config: a rocketcompat.MessageStoreConfig is needed, not {kind}")
    config = config or MessageStoreConfig()
    if layouts is not None:
        config = config.changed(layouts=frozenset(layouts))
        if mode == "r" and "tube" in config.layouts:
            shards = os.path.join(os.fspath(root), TUBE_DIRECTORY)
            reason = f"a reader shows no shards; tubestore.open({shards!r}) does"
            raise InvalidMessage(f"layouts: 'tube': {reason}")
    path, vfs = opening_of(root, vfs, writable=mode == "w")
    try:
        config = config_of_files(config, vfs, path, writable=mode == "w")
        has_shards = vfs.exists(os.path.join(path, TUBE_DIRECTORY))
        if mode == "w" and layouts is None and config.layouts == KEPT and has_shards:
            config = config.changed(layouts=LAYOUTS)
        parts = Parts(path, config, vfs, clock or SystemClock(), writable=mode == "w")
        if mode == "r":
            open_to_read(parts)
            return StoreReader(parts)
        return DefaultMessageStore(open_to_write(parts), background=background)
    except OSError as error:
        if isinstance(error, TubeStoreError):
            raise
        raise refused_call(path, error) from error
