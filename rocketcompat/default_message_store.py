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

Next to read: `commit_log.py`, then `dispatch.py` and `recovery.py`.
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Self

import pyarrow as pa

from rocketcompat.batch_encoder import encode_columns
from rocketcompat.codec import prepare
from rocketcompat.commit_log import CommitLog
from rocketcompat.consume_queue_table import ConsumeQueueTable
from rocketcompat.dispatch import Follower, ReputMessageService
from rocketcompat.flush import FlushService
from rocketcompat.formats import (
    ABORT_FILE,
    BATCH_CONSUME_QUEUE_DIRECTORY,
    CHECKPOINT_FILE,
    COMMIT_LOG_DIRECTORY,
    CONSUME_QUEUE_DIRECTORY,
    INDEX_DIRECTORY,
)
from rocketcompat.index_items import IndexGeometry
from rocketcompat.index_service import IndexService
from rocketcompat.log_end import find_log_end
from rocketcompat.mapped_file_queue import make_directory
from rocketcompat.messages import Message, MessageRecord, PutResult, PutStatus
from rocketcompat.options import MessageStoreConfig
from rocketcompat.progress import ProgressFile
from rocketcompat.recovery import (
    RecoverResult,
    known_damages,
    recover_followers,
    recover_log,
)
from rocketcompat.store_checkpoint import StoreCheckpoint
from rocketcompat.store_lock import StoreLock
from rocketcompat.tube_layout import TubeLayout
from tubestore.clock import Clock, SystemClock
from tubestore.errors import (
    InvalidMessage,
    NotAStore,
    ReadOnlyStore,
    StoreClosed,
    TubeStoreError,
)
from tubestore.vfs import OsVfs, Vfs

if TYPE_CHECKING:
    from rocketcompat.reads import GetMessageResult

_log = logging.getLogger(__name__)
Durability = Literal["page_cache", "fsync"]


class DefaultMessageStore:
    """An open store; made by `rocketcompat.open`."""

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
        self.root, self.mode = os.fspath(root), mode
        self.config = config or MessageStoreConfig()
        self._vfs, self._clock = vfs or OsVfs(), clock or SystemClock()
        self._pid = os.getpid()
        self._lock: StoreLock | None = None
        self._sync_always = self.config.flush_disk_type == "SYNC_FLUSH"
        self._sync_timeout = self.config.sync_flush_timeout / 1000
        self._progress_file = ProgressFile(self._vfs, self.root)
        self.commit_log = CommitLog(
            self._vfs, self._path(COMMIT_LOG_DIRECTORY), self.config, self._clock,
            writable=mode == "w",
        )  # fmt: skip
        self.queues: ConsumeQueueTable | None = None
        self.index: IndexService | None = None
        self.tube: TubeLayout | None = None
        self._followers: list[Follower] = []
        self.dispatcher: ReputMessageService
        if mode == "w":
            self._open_to_write(background)
        else:
            self._open_to_read()
        self._closed = False

    # -- putting

    def put_message(self, message: Message, *, durability: Durability | None = None) -> PutResult:
        """Append a message and return where it stands.

        Raises MessageTooLarge, InvalidName, InvalidMessage before anything is written; OSError
        without room (may be tried again); StoreFailed after a failed write or sync.
        """
        prepared = prepare(message, self.config)
        if self._closed or self.mode == "r" or os.getpid() != self._pid:
            self._refuse_put()
        physical_offset, queue_offset, timestamp = self.commit_log.put_one(prepared)
        self.dispatcher.wake_or_help(physical_offset + prepared.size)
        status = PutStatus.PUT_OK
        if durability == "fsync" or (self._sync_always and durability is None):
            status = self._synced_status(physical_offset + prepared.size)
        return PutResult(
            status, physical_offset, queue_offset, prepared.size, timestamp, prepared.store_host
        )

    def put_columns(self, messages: Any, *, durability: Durability | None = None) -> pa.Table:
        """Append many messages, given as Arrow or a dict of columns (see `batch_encoder.py`).

        Returns a row a message: physical_offset, queue_offset, size, store_timestamp. The batch
        is so many single puts: a crash in the middle keeps the first ones.
        """
        encoded = encode_columns(messages, self.config)
        self._check_put()
        physical_offsets, queue_offsets, timestamp = self.commit_log.put_columns(encoded)
        self.dispatcher.wake()
        wants_sync = durability == "fsync" or (self._sync_always and durability is None)
        if len(encoded) and wants_sync:
            self.commit_log.sync_to(int(physical_offsets[-1] + encoded.sizes[-1]))
        columns = {
            "physical_offset": physical_offsets,
            "queue_offset": queue_offsets,
            "size": encoded.sizes,
            "store_timestamp": pa.repeat(pa.scalar(timestamp, pa.int64()), len(encoded)),
        }
        return pa.table(columns)

    def flush(self) -> None:
        """Bring everything put so far, and what is built from it, to stable storage."""
        self._check_put()
        self.dispatcher.wait_dispatched(self.commit_log.max_offset - 1, self._dispatch_timeout)
        self._flusher.persist()

    # -- reading

    def wait_dispatched(self, physical_offset: int, timeout: float | None = None) -> bool:
        """Wait until the message at this offset stands in queues, index and shards.

        False if `timeout` seconds passed before (default: `wait_dispatched_timeout`).
        """
        self._check_open()
        if self.mode == "r":
            return self.commit_log.max_offset > physical_offset
        limit = self._dispatch_timeout if timeout is None else timeout
        return self.dispatcher.wait_dispatched(physical_offset, limit)

    def look_message(self, physical_offset: int) -> MessageRecord:
        """Return the record that starts at a physical offset (lookMessageByOffset).

        OffsetOutOfRange outside the log, CorruptRecord where no sound record starts.
        """
        self._check_open()
        return self.commit_log.record_at(physical_offset)

    def get_message(
        self, topic: str, queue_id: int, offset: int, max_count: int = 32,
        tags: str | None = None,
    ) -> GetMessageResult:  # fmt: skip
        """Pull messages of a queue from a queue offset (spec §11)."""
        self._check_open()
        from rocketcompat.reads import get_message

        return get_message(self, topic, queue_id, offset, max_count, tags)

    def query_message(
        self, topic: str, key: str, max_count: int = 32, begin: int = 0, end: int | None = None
    ) -> Any:
        """Find messages by key and store time, ms (spec §3.5)."""
        self._check_open()
        from rocketcompat.reads import query_message

        return query_message(self, topic, key, max_count, begin, end)

    def min_offset_in_queue(self, topic: str, queue_id: int) -> int:
        """Return the first queue offset that is kept; 0 for an unknown queue."""
        self._check_open()
        queue = self.queues.find(topic, queue_id) if self.queues else None
        return queue.min_offset if queue else 0

    def max_offset_in_queue(self, topic: str, queue_id: int) -> int:
        """Return the queue offset behind the last dispatched message; 0 for an unknown queue."""
        self._check_open()
        queue = self.queues.find(topic, queue_id) if self.queues else None
        return queue.max_offset if queue else 0

    @property
    def min_physical_offset(self) -> int:
        """Physical offset of the log's first byte."""
        return self.commit_log.min_offset

    @property
    def max_physical_offset(self) -> int:
        """Physical offset behind the log's last record."""
        return self.commit_log.max_offset

    @property
    def dispatch_behind_bytes(self) -> int:
        """Bytes of the log that queues, index and shards do not know yet."""
        return self.dispatcher.behind if self.mode == "w" else 0

    @property
    def problems(self) -> list[TubeStoreError]:
        """What is wrong and was not raised: damage passed over, structures that stopped."""
        found: list[TubeStoreError] = [damage.error() for damage in self.commit_log.damages]
        if self.mode == "w":
            found += [p for p in self.dispatcher.problems if str(p) not in map(str, found)]
            found += self._flusher.problems
            found += self.tube.problems if self.tube is not None else []
        return found

    def refresh(self) -> None:
        """Let a reader see what a writer has appended since; nothing for a writer."""
        self._check_open()
        if self.mode == "w":
            return
        start = self.commit_log.max_offset
        self._find_end(start, None)
        if self.queues:
            self.queues.correct_min_offset(self.commit_log.min_offset)
            for queue in self.queues:
                queue.reload()
            self.queues.load()
        if self.index:
            self.index.load()

    # -- life

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
            self._give_back()
            return
        try:
            self._shut_down()
        finally:
            self._give_back()

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

    def _path(self, *names: str) -> str:
        return os.path.join(self.root, *names)

    def _make_followers(self) -> list[Follower]:
        layouts, writable, config = self.config.layouts, self.mode == "w", self.config
        followers: list[Any] = []
        if "consume_queue" in layouts:
            self.queues = ConsumeQueueTable(
                self._vfs, self._path(CONSUME_QUEUE_DIRECTORY), config.consume_queue_file_size,
                writable=writable,
            )  # fmt: skip
            followers.append(self.queues)
        if "index" in layouts and config.message_index_enable:
            geometry = IndexGeometry(config.max_hash_slot_num, config.max_index_num)
            self.index = IndexService(
                self._vfs, self._path(INDEX_DIRECTORY), geometry, self._clock, writable=writable
            )
            followers.append(self.index)
        if "tube" in layouts and writable:
            self.tube = TubeLayout(self.root, vfs=self._vfs, clock=self._clock)
            followers.append(self.tube)
        return followers

    def _open_to_write(self, background: bool) -> None:
        for name in (COMMIT_LOG_DIRECTORY, CONSUME_QUEUE_DIRECTORY):
            for parent in make_directory(self._vfs, self._path(name)):
                self._vfs.sync_directory(parent)
        self._lock = StoreLock(self._vfs, self.root)
        try:
            self._recover()
        except BaseException:
            self._give_back()
            raise
        for damage in self.commit_log.damages:
            _log.warning("%s; a real broker would cut the log there", damage.error())
        if background:
            self.dispatcher.start()
            self._flusher.start()

    def _recover(self) -> None:
        if self._vfs.entries(self._path(BATCH_CONSUME_QUEUE_DIRECTORY)):
            # A real broker refuses a topic that has queues of both kinds (spec §2.9).
            raise NotAStore(self.root, "has batch queues, which cannot be written yet")
        clean_exit = not self._vfs.exists(self._path(ABORT_FILE))
        known = self._progress_file.read()
        if clean_exit:
            self._vfs.open(self._path(ABORT_FILE), create=True).close()
        # Before the first byte is changed, and durable: a crash from here on must be seen. A
        # process that was killed may not have come to it.
        self._vfs.sync_directory(self.root)
        if known is None:
            self._progress_file.forget()
        self.recovered: RecoverResult = recover_log(self.commit_log, known, clean_exit=clean_exit)
        self._followers = self._make_followers()
        if self.queues is not None:
            ends = known[0].queues if known and self.recovered.clean else None
            self.queues.load(ends)
            self.queues.correct_min_offset(self.commit_log.min_offset)
        if self.index is not None:
            self.index.load()
        self.dispatcher = recover_followers(
            self.commit_log,
            self._followers,
            known,
            self.recovered,
            self._clock,
            self._progress_file,
        )
        if self.tube is not None:
            self.tube.replayed()
        self._checkpoint = StoreCheckpoint(self._vfs, self._path(CHECKPOINT_FILE))
        self._flusher = FlushService(
            self.commit_log, self._followers, self.dispatcher, self._progress_file,
            self._checkpoint, self._clock,
        )  # fmt: skip
        # What stands in the log from here on is ours: the mark says so, after a reboot too.
        self.commit_log.flush()
        self._progress_file.write(self._flusher.progress(), sync=True)

    def _open_to_read(self) -> None:
        if not self._vfs.exists(self._path(COMMIT_LOG_DIRECTORY)):
            raise NotAStore(self.root, "has no commitlog directory")
        known = self._progress_file.read()
        clean_exit = not self._vfs.exists(self._path(ABORT_FILE))
        clean = bool(known and known[0].clean and clean_exit)
        self._find_end(0, known)
        self._followers = self._make_followers()
        if self.queues is not None:
            self.queues.load(known[0].queues if known and clean else None)
            self.queues.correct_min_offset(self.commit_log.min_offset)
        if self.index is not None:
            self.index.load()

    def _find_end(self, start: int, known: Any) -> None:
        """Find where the log ends, changing nothing; from the trusted mark or `start` on."""
        log = self.commit_log
        log.queue.load()
        begin = max(start, log.queue.min_offset)
        if known is not None:
            progress, same_boot = known
            mark = progress.trusted(progress.log, same_boot=same_boot)
            if begin <= mark <= log.queue.max_offset:
                begin = mark
                log.damages = known_damages(log.queue, progress)
        end, _, damages = find_log_end(log.queue, begin, check_crc=True, keep_good=True)
        log.start_at(end, 0)
        for damage in damages:
            log.note_damage(damage)

    def _shut_down(self) -> None:
        """Everything of `close` that can fail."""
        log = self.commit_log
        if log.failed is not None:
            self.dispatcher.abandon()
            self._flusher.shutdown()
            raise log.failed
        self.dispatcher.shutdown()
        self._flusher.shutdown()
        done = self.dispatcher.behind == 0 and not self.dispatcher.failed
        ends = self.queues.max_offsets() if self.queues is not None else {}
        self._flusher.persist(clean=done, queues=ends)
        if done and not self._flusher.problems:
            self._vfs.remove(self._path(ABORT_FILE))
            self._vfs.sync_directory(self.root)

    def _give_back(self) -> None:
        for follower in self._followers:
            try:
                follower.close()
            except (OSError, TubeStoreError):
                _log.exception("%s: close", follower.name)
        self.commit_log.close()
        if self._lock is not None:
            self._lock.release()

    @property
    def _dispatch_timeout(self) -> float:
        return self.config.wait_dispatched_timeout / 1000

    def _synced_status(self, end: int) -> PutStatus:
        done = self.commit_log.sync_to(end, self._sync_timeout)
        return PutStatus.PUT_OK if done else PutStatus.FLUSH_DISK_TIMEOUT

    def _check_open(self) -> None:
        if self._closed or os.getpid() != self._pid:
            raise StoreClosed(f"{self.root}: the store is closed")

    def _check_put(self) -> None:
        if self._closed or self.mode == "r" or os.getpid() != self._pid:
            self._refuse_put()

    def _refuse_put(self) -> NoReturn:
        self._check_open()
        raise ReadOnlyStore(f"{self.root}: was opened with mode='r'")


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
    over what is pending. Raises NotAStore, StoreLocked, CorruptRecord.
    """
    config = config or MessageStoreConfig()
    if layouts is not None:
        config = config.changed(layouts=frozenset(layouts))
    return DefaultMessageStore(root, mode, config, vfs=vfs, clock=clock, background=background)
