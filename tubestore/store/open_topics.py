"""The topics of an open store, as its users call for them.

Guards: the topics' lock is held while topics change; it comes before any of a shard's.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Literal, NamedTuple

from tubestore.clock import Clock
from tubestore.core.paths import OWN_DIRECTORY, join
from tubestore.core.vfs import Vfs
from tubestore.errors import InvalidMessage, ReadOnlyStore, StoreClosed, StoreFailed, documented
from tubestore.journal.journalled import JournalledAppends
from tubestore.options import StoreOptions, TopicOptions
from tubestore.record.names import JOURNAL_FILE
from tubestore.record.records import ENTRY_SIZE
from tubestore.staging.commit_records import CommitRecords
from tubestore.store.housekeeping import Housekeeping
from tubestore.store.leases import Lease
from tubestore.store.retention import Bounds, SegmentRow
from tubestore.store.topic import Topic
from tubestore.store.topics import TopicRegistry
from tubestore.values import Age, age_ms, checked_texts, checked_whole, whole_number


class Keep(enum.Enum):
    """Says of a setting that it stays as it is, where None means none."""

    AS_IT_IS = enum.auto()


class ShardDescription(NamedTuple):
    """One shard: bounds, messages of all its partitions, and its files with their bytes."""

    store_id: int
    first_offset: int
    end_offset: int
    messages: int
    data_bytes: int
    index_bytes: int
    data_files: int
    index_files: int


class TopicDescription(NamedTuple):
    """A topic's settings, and its shards that have files."""

    name: str
    options: TopicOptions
    shards: tuple[ShardDescription, ...]


class OpenTopics(ABC):
    """What a store does with its topics; `MessageStoreManager` is made of it."""

    root: str
    mode: Literal["w", "r"]
    options: StoreOptions
    clock: Clock
    vfs: Vfs
    _topics: TopicRegistry
    _housekeeping: Housekeeping
    journal: JournalledAppends | None
    #: Why the store is not open; None while it is.
    _closed: str | None

    @abstractmethod
    def shard_exists(self, topic: str, store_id: int) -> bool:
        """Whether a shard has a directory."""

    def _check_open(self, *, writing: bool = False) -> None:
        if self._closed is not None:
            raise StoreClosed(f"{self.root}: {self._closed}")
        if writing and self.mode == "r":
            raise ReadOnlyStore(f"{self.root} was opened with mode='r'")

    @documented
    def create_topic(
        self,
        name: str,
        *,
        partitions: int = 1,
        stores: int = 1,
        max_age: Age | None = None,
        max_bytes: int | None = None,
        exist_ok: bool = False,
    ) -> Topic:
        """Create a topic, or return it with `exist_ok`; durable when this returns.

        `partitions` is per store (shard); an id is store id * 10,000 + place. Messages older
        than `max_age` (ms, a timedelta, or a text such as "7d" or TubeMQ's "delete,168h") are
        removed in the background, and the oldest while the topic has more than `max_bytes`.

        TopicExists if it is there and `exist_ok` is not set, or its settings are others (bounds
        that are not given are not compared). A topic that only TubeMQ knows, found by its
        files, takes the settings with `exist_ok` if they hold what is there.
        """
        options = TopicOptions(
            partitions=partitions, stores=stores, max_age_ms=age_ms(max_age), max_bytes=max_bytes
        )
        with self._topics.lock:
            self._check_open(writing=True)
            return self._topics.create(name, options, exist_ok=exist_ok)

    @documented
    def change_topic(
        self,
        name: str,
        *,
        partitions: int | None = None,
        stores: int | None = None,
        max_age: Age | Keep | None = Keep.AS_IT_IS,
        max_bytes: int | Keep | None = Keep.AS_IT_IS,
    ) -> Topic:
        """Change what is given of a topic's settings; durable when this returns.

        Partitions and stores only rise (InvalidMessage), and more of them change where keys go.
        A bound of None is none. Readers in other processes see it at their next `refresh`.
        """
        with self._topics.lock:
            self._check_open(writing=True)
            changed = self._topics.get(name).options
            if partitions is not None:
                changed = changed.with_values(partitions=partitions)
            if stores is not None:
                changed = changed.with_values(stores=stores)
            if not isinstance(max_age, Keep):
                changed = changed.with_values(max_age_ms=age_ms(max_age))
            if not isinstance(max_bytes, Keep):
                changed = changed.with_values(max_bytes=max_bytes)
            return self._topics.change(name, changed)

    @documented
    def delete_topic(self, name: str) -> None:
        """Delete a topic with all its messages; durable when this returns, whole or not at all.

        Its files wait in `<root>/.tubestore/trash` as those that retention removes, and who
        reads them in another process goes on until its next `refresh`. Whoever uses the topic
        in this process gets StoreClosed. What was in memory is gone.
        """
        with self._topics.lock:
            self._check_open(writing=True)
            topic = self._topics.get(name)
            if CommitRecords(self.vfs, self.root).pending() is not None:
                raise StoreFailed(self.root, "a published job is not finished")
            with self._without_journal():
                self._topics.delete(topic.name)

    @contextmanager
    def _without_journal(self) -> Iterator[None]:
        """Have nothing in the journal meanwhile: a topic of the same name would be given it."""
        if self.journal is None:
            if self.vfs.exists(join(self.root, OWN_DIRECTORY, JOURNAL_FILE)):
                raise StoreFailed(self.root, "its journal could not be put into all shards")
            yield
            return
        with self.journal.lock:
            self.journal.forget()
            yield

    @documented
    def describe_topic(self, name: str) -> TopicDescription:
        """Return a topic's settings, and what each of its shards has."""
        topic = self.topic(name)
        shards = []
        for store_id in range(topic.options.stores):
            if self.shard_exists(name, store_id):
                view = topic.shard(store_id).view()
                shards.append(
                    ShardDescription(
                        store_id,
                        view.index_start,
                        view.index_end,
                        (view.index_end - view.index_start) // ENTRY_SIZE,
                        sum(s.size for s in view.ends.data_segments),
                        sum(s.size for s in view.ends.index_segments),
                        len(view.ends.data_segments),
                        len(view.ends.index_segments),
                    )
                )
        return TopicDescription(name, topic.options, tuple(shards))

    @documented
    def ensure_topics(self, wanted: Mapping[str, TopicOptions]) -> list[Topic]:
        """Return topics that have at least these partitions, creating or growing them.

        Counts only rise: more partitions change where keys go, so this is for callers that
        give partitions. Durable when this returns: a settings file that is replaced unsynced
        can be empty after a power cut, and the one before it is gone.
        """
        with self._topics.lock:
            self._check_open(writing=True)
            return self._topics.ensure(wanted)

    # -- retention ---------------------------------------------------------------------------

    @documented
    def retain(
        self,
        topics: Iterable[str] | None = None,
        *,
        max_age: Age | None = None,
        max_bytes: int | None = None,
        dry_run: bool = False,
    ) -> list[SegmentRow]:
        """Remove the oldest files of some topics, or of all; returns a row for each that went.

        `max_age` counts for every topic in place of its own setting. `max_bytes` bounds the
        files of all these topics together, beside their own settings: the oldest go first.
        With `dry_run` nothing is removed, and a store that is open for reading will do.

        Whole files go, data and index together; those that are written to stay, unless all
        their messages are older than `max_age`. They wait in a trash for `trash_grace_ms`, and
        what a lease holds stays. ReadOnlyStore, InvalidMessage, StoreFailed.
        """
        self._check_open(writing=not dry_run)
        bound = _checked_size(max_bytes)
        chosen, bounds_of = self._chosen(topics), _bounds_of(age_ms(max_age))
        return self._housekeeping.retain(chosen, bounds_of, max_bytes=bound, dry_run=dry_run)

    @documented
    def explain_retention(
        self,
        topics: Iterable[str] | None = None,
        *,
        max_age: Age | None = None,
        max_bytes: int | None = None,
    ) -> list[SegmentRow]:
        """Return a row for every file: whether `retain` would remove it, when, and why (not)."""
        self._check_open()
        bound = _checked_size(max_bytes)
        chosen, bounds_of = self._chosen(topics), _bounds_of(age_ms(max_age))
        return self._housekeeping.explain(chosen, bounds_of, max_bytes=bound)

    @documented
    def retain_topic(
        self, topic: Topic, max_age: Age | None, max_bytes: int | None, *, dry_run: bool
    ) -> list[SegmentRow]:
        """See `Topic.retain`."""
        self._check_open(writing=not dry_run)
        bounds = _bounds_of(age_ms(max_age), _checked_size(max_bytes))
        return self._housekeeping.retain([topic], bounds, dry_run=dry_run)

    @documented
    def explain_topic(
        self, topic: Topic, max_age: Age | None, max_bytes: int | None
    ) -> list[SegmentRow]:
        """See `Topic.explain_retention`."""
        self._check_open()
        bounds = _bounds_of(age_ms(max_age), _checked_size(max_bytes))
        return self._housekeeping.explain([topic], bounds)

    @documented
    def empty_trash(self, grace: Age | None = None) -> int:
        """Delete now what has waited in the trash for `grace`; returns the bytes.

        By default for `trash_grace_ms`. What a lease holds stays.
        """
        self._check_open(writing=True)
        return self._housekeeping.empty_trashes(self._topics, age_ms(grace, "grace"))

    @documented
    def lease(
        self,
        topics: Iterable[str] | None = None,
        *,
        offsets: Mapping[str, int] | None = None,
        ttl: Age = timedelta(minutes=10),
        holder: str | None = None,
    ) -> Lease:
        """Keep retention, in any process, away from what a long reader needs, for `ttl`.

        On all shards that these topics (by default all, or none with `offsets`) have, from their
        first offset on; or from the index offsets on that `offsets` gives by shard
        (`{"logs-0": 5600}`). Renew it in time, with higher offsets as the work goes on, and
        release it at the end; as a context manager it does that itself. Take it first and
        then open or refresh a reader. A holder that dies is forgotten after `ttl`.

        In mode "r" too: it writes a file in `.tubestore/leases`. OffsetOutOfRange if something
        is gone already; ReadOnlyStore where no file can be written.
        """
        self._check_open()
        names = () if topics is None and offsets is not None else topics
        ttl_ms = age_ms(ttl, "ttl")
        if not ttl_ms:
            raise InvalidMessage(f"ttl = {ttl}: above 0")
        if holder is not None and not isinstance(holder, str):
            raise TypeError(f"holder {holder!r}: a text is needed")
        if offsets is not None:
            _check_offsets(offsets)
        try:
            return self._housekeeping.lease(
                self._chosen(names), offsets or {}, ttl_ms=ttl_ms, holder=holder
            )
        except PermissionError as error:
            raise ReadOnlyStore(f"{self.root}: no lease can be written here ({error})") from error

    def _chosen(self, topics: Iterable[str] | None) -> list[Topic]:
        if topics is None:
            return list(self._topics)
        return [self._topics.get(name) for name in checked_texts("topics", topics)]

    # -- finding them ------------------------------------------------------------------------

    def topic(self, name: str) -> Topic:
        """Return a topic; UnknownTopic if there is none of this name."""
        self._check_open()
        return self._topics.get(name)

    __getitem__ = topic

    def __contains__(self, name: object) -> bool:
        return name in self._topics

    def topics(self) -> list[str]:
        """Return the names of all topics, sorted."""
        return self._topics.names()


def _check_offsets(offsets: Any) -> None:
    if not isinstance(offsets, Mapping):
        raise TypeError(f"offsets {offsets!r}: a mapping of shards to offsets is needed")
    for shard, offset in offsets.items():
        checked_whole(f"offsets[{shard!r}]", offset)


def _checked_size(max_bytes: int | None) -> int | None:
    number = 0 if max_bytes is None else whole_number(max_bytes)
    if number is None or number < 0:
        raise InvalidMessage(f"max_bytes = {max_bytes!r}: a whole number, not negative")
    return max_bytes


def _bounds_of(max_age_ms: int | None, max_bytes: int | None = None) -> Callable[[Topic], Bounds]:
    """Return what gives a topic's bounds: those of a call, else its own settings."""

    def bounds(topic: Topic) -> Bounds:
        own = topic.options
        return Bounds(
            own.max_age_ms if max_age_ms is None else max_age_ms,
            own.max_bytes if max_bytes is None else max_bytes,
        )

    return bounds
