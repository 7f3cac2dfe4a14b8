"""All topics of a store: the directory, its lock, its settings, its threads.

    <root>/.tubestore/store.json     uuid and format version of the store
    <root>/.tubestore/topics.json    settings of every topic; replaced atomically
    <root>/.tubestore/lock           held by the one writer (flock)

Guards: `_lock` guards the topics and their settings file. Lock order: this one before any of
a shard's (DESIGN.md D11).

Next to read: `tubestore/__init__.py`, then `check.py` and `cli/`.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
import uuid
import warnings
import weakref
from collections.abc import Iterator, Mapping
from os.path import dirname
from types import TracebackType
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from tubestore import ingest
from tubestore.clock import Clock, SystemClock
from tubestore.errors import (
    CorruptRecord,
    InvalidMessage,
    NotAStore,
    ReadOnlyStore,
    StoreClosed,
    StoreLocked,
    TopicExists,
    TubeStoreError,
    UnknownTopic,
)
from tubestore.file_store import MsgFileStore
from tubestore.filenames import (
    INDEX_DIRECTORY,
    LOCK_FILE,
    OWN_DIRECTORY,
    STORE_FILE,
    TOPICS_FILE,
    check_topic_name,
    join,
    parse_store_key,
    store_key,
)
from tubestore.formats import PARTITIONS_PER_STORE
from tubestore.memory_pool import MemoryPool
from tubestore.message_store import MessageStore
from tubestore.messages import BatchAck
from tubestore.options import Durability, StoreOptions, TopicOptions
from tubestore.shard_reader import ShardReader
from tubestore.topic import Topic, append_table
from tubestore.topic_reads import Shard, TopicReader
from tubestore.vfs import OsVfs, Vfs, VfsLock
from tubestore.workers import Workers

log = logging.getLogger(__name__)
Array = np.ndarray[Any, Any]

FORMAT_VERSION = 1
#: Shards that are flushed when the bound on all buffers is reached.
RELIEVED_AT_ONCE = 16
_open_stores: weakref.WeakSet[MessageStoreManager] = weakref.WeakSet()


class MessageStoreManager:
    """A store: made by `tubestore.open`, closed by `close` or at the end of a `with` block.

    One writer a directory, any number of readers. All methods are thread-safe.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        mode: Literal["w", "r"] = "w",
        *,
        options: StoreOptions | None = None,
        vfs: Vfs | None = None,
        clock: Clock | None = None,
        background: bool = True,
    ) -> None:
        if mode not in ("w", "r"):
            raise ValueError(f"mode {mode!r}: 'w' to write (made if missing) or 'r' to read")
        self.root, self.mode = os.path.abspath(os.fspath(root)), mode
        self.options = options or StoreOptions()
        self.clock: Clock = clock or SystemClock()
        self.vfs: Vfs = vfs or OsVfs()
        self.problems: list[CorruptRecord] = []
        self._lock = threading.RLock()
        self._topics: dict[str, Topic] = {}
        #: Topics whose settings nobody gave: learned from their files, and never saved.
        self._guessed: set[str] = set()
        self._pool = MemoryPool(self.options.memory_bound_bytes, self._relieve_memory)
        self._id_lock = threading.Lock()
        # A million ids a millisecond: whoever opens the store later begins above them.
        self._last_msg_id = self.clock.now_ms() << 20
        self._closed: str | None = "it was never open"  # until the end of this method
        self._file_lock: VfsLock | None = None
        self._own = join(self.root, OWN_DIRECTORY)
        if mode == "w":
            self._prepare_directory()
        elif not self.vfs.exists(self.root):
            raise NotAStore(self.root, "no such directory")
        try:
            self.uuid = self._read_identity()
            self._topics = self._load_topics()
        except BaseException:
            if self._file_lock is not None:
                self._file_lock.release()
            raise
        self._workers: Workers | None = None
        if mode == "w" and background:
            self._workers = Workers(self.options.flush_workers, self._writing_shards)
        self._closed = None
        _open_stores.add(self)

    # -- the directory -----------------------------------------------------------------------

    def _prepare_directory(self) -> None:
        there = self.root
        while not self.vfs.exists(there):
            there = dirname(there)
        path = join(self._own, LOCK_FILE)
        try:
            self.vfs.make_directories(self._own)
        except (FileExistsError, NotADirectoryError) as error:
            raise NotAStore(self.root, "not a directory") from error
        try:
            self._file_lock = self.vfs.lock(path, kind="flock")
        except (BlockingIOError, PermissionError) as error:
            raise StoreLocked(self.root) from error
        if not self.vfs.exists(join(self._own, STORE_FILE)):
            try:
                self._sync_ancestors(there)
            except BaseException:
                self._file_lock.release()
                raise

    def _sync_ancestors(self, there: str) -> None:
        """Make the way to a new store durable, before the file that says that it is one.

        The directory above is synced also if the root was there: a process that was killed
        may have made it.
        """
        self.vfs.sync_directory(self.root)
        path = self.root
        while True:
            path = dirname(path)
            with contextlib.suppress(PermissionError):  # not ours: somebody else made it
                self.vfs.sync_directory(path)
            if len(path) <= len(there):
                return

    def _read_identity(self) -> str:
        found = self._read_state(STORE_FILE)
        if found is None:
            found = {"version": FORMAT_VERSION, "features": [], "uuid": str(uuid.uuid4())}
            if self.mode == "w":
                self.vfs.replace_file(join(self._own, STORE_FILE), json.dumps(found).encode())
        if found.get("features") or not isinstance(found.get("uuid"), str):
            raise NotAStore(self.root, f"written by another version: {found}")
        return str(found["uuid"])

    def _read_state(self, name: str) -> dict[str, Any] | None:
        """Return what a file of ours says; None if it is missing, NotAStore for nonsense."""
        try:
            found = json.loads(self.vfs.read_file(join(self._own, name)))
        except FileNotFoundError:
            return None
        except NotADirectoryError as error:
            raise NotAStore(self.root, "not a directory") from error
        except ValueError as error:
            raise NotAStore(self.root, f"{name} cannot be read: {error}") from error
        if not isinstance(found, dict) or found.get("version") != FORMAT_VERSION:
            raise NotAStore(self.root, f"{name} was written by another version: {found}")
        return found

    def _load_topics(self) -> dict[str, Topic]:
        state = self._read_state(TOPICS_FILE) or {"topics": {}}
        try:
            settings = {name: TopicOptions(**given) for name, given in state["topics"].items()}
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise NotAStore(self.root, f"{TOPICS_FILE} makes no sense: {error}") from error
        self._guessed = set()
        for name, stores in sorted(self._found_on_disk().items()):
            if name not in settings:  # TubeMQ's: it keeps a topic's settings elsewhere
                settings[name] = self._guess_options(name, stores)
                self._guessed.add(name)
        return {n: Topic(self, n, options, self._open_shard) for n, options in settings.items()}

    def _found_on_disk(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for name, is_directory, _ in self.vfs.entries(self.root):
            key = parse_store_key(name) if is_directory else None
            if key is not None and key[1] < PARTITIONS_PER_STORE and self._is_shard(name):
                found.setdefault(key[0], []).append(key[1])
        return found

    def _is_shard(self, name: str) -> bool:
        index = join(self.root, name, INDEX_DIRECTORY)
        return self.vfs.exists(index) or any(
            entry.endswith(".tube") for entry, _, _ in self.vfs.entries(join(self.root, name))
        )

    def _guess_options(self, topic: str, stores: list[int]) -> TopicOptions:
        """Learn from a foreign store's entries how many partitions its topic has at least."""
        most = 1
        for store_id in stores:
            directory = join(self.root, store_key(topic, store_id))
            try:
                view = ShardReader(self.vfs, directory, topic, store_id, self.options).view()
            except TubeStoreError:
                continue  # its own opening says what is wrong with it
            for source in view.sources(0):
                places = source.entries["partition_id"] - store_id * PARTITIONS_PER_STORE
                places = places[(places >= 0) & (places < PARTITIONS_PER_STORE)]
                most = max(most, int(places.max(initial=0)) + 1)
        return TopicOptions(partitions=most, stores=max(stores) + 1)

    def _save_topics(self, topics: dict[str, TopicOptions]) -> None:
        content = {"version": FORMAT_VERSION, "topics": {n: t.as_json() for n, t in topics.items()}}
        # No indent: with one, json encodes in Python, twenty times as slowly.
        data = json.dumps(content, sort_keys=True).encode()
        self.vfs.replace_file(join(self._own, TOPICS_FILE), data)

    # -- topics ------------------------------------------------------------------------------

    def create_topic(
        self, name: str, *, partitions: int = 1, stores: int = 1, exist_ok: bool = False
    ) -> Topic:
        """Create a topic, or return it with `exist_ok`; durable when this returns.

        `partitions` is per store (shard); an id is store id * 10,000 + place. TopicExists if it
        is there and `exist_ok` is not set, or its settings are others. A topic that only TubeMQ
        knows, found by its files, takes the settings with `exist_ok` if they hold what is there.
        """
        options = TopicOptions(partitions=partitions, stores=stores)
        check_topic_name(name)
        with self._lock:
            self._check_open(writing=True)
            topic = self._topics.get(name)
            if topic is not None:
                if not exist_ok:
                    raise TopicExists(name)
                if name not in self._guessed or not options.covers(topic.options):
                    if topic.options != options:
                        raise TopicExists(name, f"it has other settings: {topic.options}")
                    return topic
            settings = {n: t.options for n, t in self._topics.items() if n not in self._guessed}
            self._save_topics({**settings, name: options})
            self._guessed.discard(name)
            if topic is None:
                topic = self._topics[name] = Topic(self, name, options, self._open_shard)
            topic.options = options
            return topic

    def ensure_topics(self, wanted: Mapping[str, TopicOptions]) -> list[Topic]:
        """Return topics that have at least these partitions, creating or growing them.

        Counts only rise: more partitions change where keys go, so this is for callers that
        give partitions. Durable when this returns: a settings file that is replaced unsynced
        can be empty after a power cut, and the one before it is gone.
        """
        with self._lock:
            self._check_open(writing=True)
            changed: dict[str, TopicOptions] = {}
            for name, options in wanted.items():
                known = self._topics.get(name)
                if known is None:
                    changed[check_topic_name(name)] = options
                elif (grown := known.options.grown_to(options)) != known.options:
                    changed[name] = grown
            if changed:
                settings = {n: t.options for n, t in self._topics.items()}
                self._save_topics({**settings, **changed})
                for name, options in changed.items():
                    if name in self._topics:
                        self._topics[name].options = options
                    else:
                        self._topics[name] = Topic(self, name, options, self._open_shard)
            return [self._topics[name] for name in wanted]

    def topic(self, name: str) -> Topic:
        """Return a topic; UnknownTopic if there is none of this name."""
        self._check_open()
        try:
            return self._topics[name]
        except KeyError:
            raise UnknownTopic(name) from None

    __getitem__ = topic

    def __contains__(self, name: object) -> bool:
        return name in self._topics

    def topics(self) -> list[str]:
        """Return the names of all topics, sorted."""
        return sorted(self._topics)

    def append_batch(self, data: Any, *, durability: Durability | None = None) -> BatchAck:
        """Append messages of many topics at once: a table with a column `topic`.

        Otherwise as `Topic.append_batch`; a durable prefix per shard, not atomic across shards.
        """
        self._check_open(writing=True)
        table = ingest.as_table(data, with_topic=True)
        names = ingest.column(table, "topic")
        if table.num_rows == 0:
            return append_table(self, table, [], np.empty(0, np.int64), durability)
        if names is None or names.null_count:
            raise InvalidMessage("column topic: every row needs a topic")
        # Through text: a dictionary may hold values that no row has.
        encoded = names.cast(pa.string()).dictionary_encode()
        topics = [self.topic(str(name)) for name in encoded.dictionary.to_pylist()]
        codes = encoded.indices.to_numpy().astype(np.int64)
        return append_table(self, table.drop_columns(["topic"]), topics, codes, durability)

    # -- shards ------------------------------------------------------------------------------

    def _open_shard(self, topic: str, store_id: int) -> Shard:
        self._check_open()
        directory = join(self.root, store_key(topic, store_id))
        if self.mode == "r":
            return ShardReader(self.vfs, directory, topic, store_id, self.options)
        shard = MessageStore.open(
            MsgFileStore(self.vfs, directory, store_id, self.options),
            topic=topic,
            options=self.options,
            clock=self.clock,
            pool=self._pool,
            background=self._workers,
        )
        self.problems += shard.recovered.problems
        return shard

    def shard_exists(self, topic: str, store_id: int) -> bool:
        """Whether the shard has a directory."""
        return self.vfs.exists(join(self.root, store_key(topic, store_id)))

    def _writing_shards(self) -> Iterator[MessageStore]:
        for topic in list(self._topics.values()):
            for shard in topic.opened_shards():
                if isinstance(shard, MessageStore):
                    yield shard

    def refresh(self) -> None:
        """See what a writer in another process has done since; for mode "r", else nothing to do."""
        self._check_open()
        if self.mode == "r":
            with self._lock:
                for topic in list(self._topics.values()):
                    self.refresh_topic(topic)
                fresh = self._load_topics()
                for name in fresh.keys() & self._topics.keys():
                    known = self._topics[name]
                    known.options, fresh[name] = fresh[name].options, known
                self._topics = fresh

    def refresh_topic(self, topic: TopicReader) -> None:
        """Refresh the shards of one topic."""
        for shard in topic.opened_shards():
            if isinstance(shard, ShardReader):
                shard.refresh()

    # -- ids, states -------------------------------------------------------------------------

    def next_msg_id(self) -> int:
        """Return an id that no message of this store has: ms of the opening, then a count."""
        with self._id_lock:
            self._last_msg_id = last = self._last_msg_id + 1
            return last

    def next_msg_ids(self, count: int) -> Array:
        """Reserve `count` ids in a row (int64)."""
        with self._id_lock:
            first = self._last_msg_id + 1
            self._last_msg_id += count
        return np.arange(first, first + count, dtype=np.int64)

    def _relieve_memory(self) -> None:
        """Write the largest buffers: they hold what the others wait for."""
        shards = sorted(self._writing_shards(), key=lambda shard: -shard.dirty_bytes)
        for shard in shards[:RELIEVED_AT_ONCE]:
            if shard.dirty_bytes:
                with contextlib.suppress(TubeStoreError):  # it refuses appends itself, and says why
                    shard.flush()

    def flush(self) -> None:
        """Write all buffers to the files (page cache)."""
        self._check_open()
        for shard in list(self._writing_shards()):
            shard.flush()

    def sync(self) -> None:
        """Bring everything that was taken to stable storage."""
        self._check_open()
        for shard in list(self._writing_shards()):
            shard.sync()

    def maintain(self) -> None:
        """Do what is due by time; with `background=True` a thread calls this by itself."""
        for shard in list(self._writing_shards()):
            shard.maintain()

    def _check_open(self, *, writing: bool = False) -> None:
        if self._closed is not None:
            raise StoreClosed(f"{self.root}: {self._closed}")
        if writing and self.mode == "r":
            raise ReadOnlyStore(f"{self.root} was opened with mode='r'")

    def close(self) -> None:
        """Flush and sync everything and give the directory back; harmless when repeated.

        Every shard is closed even if one fails; the first error is raised at the end.
        """
        with self._lock:
            if self._closed is not None:
                return
            self._closed = "the store is closed"
        if self._workers is not None:
            self._workers.stop()
        errors: list[TubeStoreError] = []
        for topic in list(self._topics.values()):
            for shard in topic.opened_shards():
                try:
                    shard.close()
                except TubeStoreError as error:
                    errors.append(error)
        if self._file_lock is not None:
            self._file_lock.release()
        _open_stores.discard(self)
        if errors:
            raise errors[0]

    def abandon(self, reason: str) -> None:
        """Stop without writing anything: what a forked child does with its parent's stores."""
        self._closed = reason
        # Locks that other threads held at the fork are held for ever in the child.
        self._lock = threading.RLock()
        for topic in self._topics.values():
            topic.abandon(StoreClosed(f"{self.root}: {reason}"))

    def __enter__(self) -> MessageStoreManager:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __reduce__(self) -> Any:
        raise TypeError("an open store cannot be pickled; open it in the other process (mode='r')")

    def __del__(self) -> None:
        if getattr(self, "_closed", "never opened") is None:
            text = f"store {self.root} was not closed"
            warnings.warn(text, ResourceWarning, stacklevel=2, source=self)
            with contextlib.suppress(Exception):
                self.close()

    def __repr__(self) -> str:
        state = f", {self._closed}" if self._closed else ""
        return f"MessageStoreManager({self.root!r}, mode={self.mode!r}{state})"


def _after_fork() -> None:
    for store in list(_open_stores):
        store.abandon("opened before this process was forked; open it again here")


os.register_at_fork(after_in_child=_after_fork)
