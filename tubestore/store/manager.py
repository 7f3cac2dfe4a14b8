"""A store as its users hold it: what `tubestore.open` returns.

Each method hands its call to the part of the engine that does it (`engine.py`).
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from types import TracebackType
from typing import Any, Literal

from tubestore.clock import Clock, SystemClock, Time
from tubestore.core.doors import logger
from tubestore.core.vfs import Vfs
from tubestore.disks.roots import absolute_root, disk_of, local_root
from tubestore.errors import InvalidMessage, TubeStoreError, documented
from tubestore.groups import admin
from tubestore.groups.admin import ExpiredGroup, GroupDescription, Moved, Place
from tubestore.groups.assignment import Strategy
from tubestore.groups.consumer import Consumer, PartitionsCall, checked_positions
from tubestore.groups.directory import list_groups
from tubestore.groups.exchange import offsets_meta, parse_offsets_meta
from tubestore.groups.settings import GroupSettings, change_settings
from tubestore.messages import BatchAck, Rows
from tubestore.options import Durability, StoreOptions, TopicOptions
from tubestore.shard.compaction import MergedFiles
from tubestore.staging.job_files import StagedFile
from tubestore.staging.placing import Spread
from tubestore.store.append import append_to_topics
from tubestore.store.engine import Engine
from tubestore.store.leases import Lease
from tubestore.store.publish import PublishResult
from tubestore.store.retention import SegmentRow
from tubestore.store.topic import Topic
from tubestore.store.topic_reads import checked_settings
from tubestore.store.topics import TopicDescription
from tubestore.values import (
    Age,
    Keep,
    Seconds,
    Size,
    age_ms,
    checked_texts,
    checked_whole,
    size_bytes,
)

log = logger(__name__)


class MessageStoreManager(Mapping[str, Topic]):
    """A store: made by `tubestore.open`, closed by `close` or at the end of a `with` block.

    One writer a directory, any number of readers. All methods are thread-safe. It is a mapping of
    names to topics (`store["logs"]`, `"logs" in store`, `for name in store`); a store is true
    without topics, too.

    >>> import tempfile, tubestore
    >>> with tempfile.TemporaryDirectory() as root, tubestore.open(root) as store:
    ...     ack = store.create_topic("logs").append(b"hello")
    ...     store.topics(), store["logs"].count(ack.partition)
    (['logs'], 1)
    """

    @documented
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
        self.root = absolute_root(root) if mode == "r" else local_root(root)
        #: Consumers that are to be closed before the store.
        self._consumers: weakref.WeakSet[Consumer] = weakref.WeakSet()
        self._engine = Engine(
            self.root,
            mode,
            options or StoreOptions(),
            vfs or disk_of(self.root),
            clock or SystemClock(),
            background=background,
        )

    @property
    def mode(self) -> Literal["w", "r"]:
        """How the store was opened: "w" to write, "r" to read."""
        return self._engine.context.mode

    @property
    def options(self) -> StoreOptions:
        """The settings that the store was opened with."""
        return self._engine.context.options

    @property
    def uuid(self) -> str:
        """The identity of the store, given when it was made."""
        return self._engine.context.directory.uuid

    @property
    def problems(self) -> list[TubeStoreError]:
        """Damage that opening found, and failures in the background."""
        return self._engine.context.problems

    # -- topics ------------------------------------------------------------------------------

    def topic(self, name: str) -> Topic:
        """Return a topic; UnknownTopic if there is none of this name."""
        self._engine.context.check_open()
        return self._engine.topics.get(name)

    __getitem__ = topic

    def __contains__(self, name: object) -> bool:
        return name in self._engine.topics

    def __iter__(self) -> Iterator[str]:
        return iter(self.topics())

    def __len__(self) -> int:
        return len(self.topics())

    def __bool__(self) -> bool:
        return True

    # Two stores are equal if they are one, and not if their topics are.
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def topics(self) -> list[str]:
        """Return the names of all topics, sorted."""
        return self._engine.topics.names()

    @documented
    def create_topic(
        self,
        name: str,
        *,
        partitions: int = 1,
        stores: int = 1,
        max_age: Age | None = None,
        max_bytes: Size | None = None,
        exist_ok: bool = False,
    ) -> Topic:
        """Create a topic, or return it with `exist_ok`; durable when this returns.

        `partitions` is per store (shard); an id is store id * 10,000 + place. Messages older
        than `max_age` (a timedelta, or a text such as "7d" or TubeMQ's "delete,168h") are removed
        in the background, and the oldest while the topic has more than `max_bytes` ("10GB", or a
        number).

        TopicExists if it is there and `exist_ok` is not set, or if its settings are others (bounds
        that are not given are not compared). A topic of TubeMQ's, found by its files, takes the
        settings with `exist_ok` if they hold what is there.
        """
        options = TopicOptions(
            partitions=partitions,
            stores=stores,
            max_age_ms=age_ms(max_age),
            max_bytes=size_bytes(max_bytes),
        )
        return self._engine.topics.create(name, options, exist_ok=exist_ok)

    @documented
    def change_topic(
        self,
        name: str,
        *,
        partitions: int | None = None,
        stores: int | None = None,
        max_age: Age | Keep | None = Keep.AS_IT_IS,
        max_bytes: Size | Keep | None = Keep.AS_IT_IS,
    ) -> Topic:
        """Change what is given of a topic's settings; durable when this returns.

        Partitions and stores only rise (InvalidMessage), and more of them change where keys go.
        None removes a bound. Readers in other processes see the change at their next `refresh`.
        """
        return self._engine.topics.change(
            name, partitions=partitions, stores=stores, max_age=max_age, max_bytes=max_bytes
        )

    @documented
    def ensure_topics(self, wanted: Mapping[str, TopicOptions]) -> list[Topic]:
        """Return topics that have at least these partitions, creating or growing them.

        Counts only rise: more partitions change where keys go, so this is for callers that
        give partitions. Durable when this returns: a settings file that is replaced unsynced
        can be empty after a power cut, and the one before it is gone.
        """
        return self._engine.topics.ensure(wanted)

    @documented
    def describe_topic(self, name: str) -> TopicDescription:
        """Return a topic's settings, and what each of its shards has."""
        return self._engine.topics.describe(name)

    @documented
    def delete_topic(self, name: str) -> None:
        """Delete a topic with all its messages; durable when this returns, whole or not at all.

        Its files wait in `<root>/.tubestore/trash`, as those that retention removes. A reader in
        another process goes on until its next `refresh`. In this process further calls to the topic
        raise StoreClosed. Messages that were in memory are gone.
        """
        self._engine.topics.delete(name)

    # -- messages ----------------------------------------------------------------------------

    @documented
    def append_batch(self, data: Rows, *, durability: Durability | None = None) -> BatchAck:
        """Append messages of many topics at once: a table with a column `topic`.

        Otherwise as `Topic.append_batch`; a durable prefix per shard, not atomic across shards.
        """
        engine = self._engine
        return append_to_topics(engine.opener, engine.address_book, data, durability)

    @documented
    def flush(self) -> None:
        """Write all buffers to the files (page cache)."""
        self._engine.shards.flush()

    @documented
    def sync(self) -> None:
        """Bring everything that was taken to stable storage, by earlier processes too.

        Shards that only an earlier process wrote to are synced with one call, once.
        """
        self._engine.shards.sync()

    @documented
    def refresh(self) -> None:
        """Show what a writer in another process has done since; does nothing in mode "w"."""
        self._engine.shards.refresh()

    # -- consumers ---------------------------------------------------------------------------

    @documented
    def consumer(
        self,
        group: str | None,
        topics: str | Iterable[str] | Mapping[str, Iterable[int]],
        *,
        member: str | None = None,
        strategy: str | Mapping[str, Mapping[str, Iterable[int]]] | Strategy = "sticky",
        start: Literal["earliest", "latest"] | Time = "earliest",
        on_removed: Literal["earliest", "latest", "raise"] = "earliest",
        filter_items: Iterable[str] | None = None,
        columns: Sequence[str] | None = None,
        verify: bool = False,
        auto_commit: bool = True,
        auto_commit_interval: Seconds = 5.0,
        durability: Durability | None = None,
        session_timeout: Seconds = 10.0,
        max_poll_interval: Seconds = 300.0,
        on_assigned: PartitionsCall | None = None,
        on_revoked: PartitionsCall | None = None,
        on_lost: PartitionsCall | None = None,
    ) -> Consumer:
        """Read topics with the other members of a group: each partition has one member at a time.

        The members may be in this process and in others on this machine. The group keeps the
        position of each partition in `.tubestore/groups`; what is not committed when a member dies
        is read again by the next one (at least once). Topics need not be there yet.

        `group=None` follows alone: all partitions, or those that a mapping of topics to partition
        ids names; nothing is written. `start`: where a partition without a position begins.
        `on_removed`: where it goes on after retention has passed its position (`removed` of the
        answer has what is gone), or "raise" for OffsetOutOfRange. `strategy`: "sticky", "average",
        "circle", "consistent_hash", a mapping of members to their partitions by topic, or a
        function; all members use the same. `verify` as in `Topic.read`.
        `durability`: what a commit survives; "memory" is "page_cache" here.

        A member that sends no heartbeat for `session_timeout`, or does not poll for
        `max_poll_interval`, loses its partitions to the others, and then its commits raise
        MemberFenced. What was processed is committed every `auto_commit_interval`. Each of the
        three is seconds, a timedelta, or a text such as "5m". `on_assigned`, `on_revoked` (they
        still may commit) and `on_lost` are called with lists of (topic, partition), in `poll`.

        InvalidMessage, InvalidName, InvalidOption; NotAStore on a network file system,
        ReadOnlyStore where no file can be written.
        """
        self._engine.context.check_open()
        chosen = checked_settings(
            self._engine.context.options,
            self._engine.context.clock,
            start=start,
            on_removed=on_removed,
            filter_items=filter_items,
            columns=columns,
            verify=verify,
            auto_commit=auto_commit,
            auto_commit_seconds=auto_commit_interval,
            durability=durability,
            max_poll_seconds=max_poll_interval,
            calls=(on_assigned, on_revoked, on_lost),
        )
        made = self._engine.shards.consumer(
            group,
            topics,
            chosen,
            member=member,
            strategy=strategy,
            session_seconds=session_timeout,
            heartbeats=self._engine.has_threads,
        )
        self._consumers.add(made)
        return made

    def groups(self) -> list[str]:
        """Return the names of all groups of consumers, sorted."""
        self._engine.context.check_open()
        return list_groups(self._engine.context.vfs, self.root)

    @documented
    def describe_group(self, group: str) -> GroupDescription:
        """Return a group's members, the position of each partition, and its lag.

        InvalidMessage if there is no such group.
        """
        self._engine.context.check_open()
        shards = self._engine.shards
        return admin.describe(self._engine.context.vfs, shards.directory_of(group), shards)

    @documented
    def change_group(
        self,
        group: str,
        *,
        retention_waits: bool | Keep = Keep.AS_IT_IS,
        expire_after: Age | Keep | None = Keep.AS_IT_IS,
    ) -> GroupSettings:
        """Change what is given of a group's settings, durably, and return all; makes a new group.

        `retention_waits`: files stay, whatever the bounds of their topic, until the group has
        committed behind them. It holds the topics that it has positions of (`reset_group` sets the
        first ones), and a partition without one counts as unread. `expire_after`: the background
        of the writer deletes the group so long after its last member or commit; None: never.

        CorruptRecord if the settings are damaged: give both.
        """
        context = self._engine.context
        context.check_open()
        age = (
            expire_after if isinstance(expire_after, Keep) else age_ms(expire_after, "expire_after")
        )
        if age == 0:
            raise InvalidMessage("expire_after = 0: above 0, or None")
        if not isinstance(retention_waits, bool | Keep):
            raise TypeError(f"retention_waits {retention_waits!r}: True or False")
        files = self._engine.shards.directory_of(group)
        return change_settings(
            context.vfs,
            files,
            context.clock,
            retention_waits=retention_waits,
            expire_after_ms=age,
        )

    @documented
    def expire_groups(
        self, after: Age | None = None, *, dry_run: bool = False
    ) -> list[ExpiredGroup]:
        """Delete the groups that have expired by their settings, or not been used for `after`.

        Returns those that went, or with `dry_run` would. A group with a living member stays, and
        one with damaged settings or positions.
        """
        context = self._engine.context
        context.check_open()
        return admin.expire(
            context.vfs, self.root, context.clock, age_ms(after, "after"), dry_run=dry_run
        )

    @documented
    def reset_group(
        self,
        group: str,
        to: Place | None = None,
        *,
        time: Time | None = None,
        topics: Iterable[str] | None = None,
        dry_run: bool = False,
    ) -> list[Moved]:
        """Set a group's positions anew, durably: to "first", "last", an offset, or a time.

        Of the topics that it has positions of, or of those given. Returns what moves, or with
        `dry_run` what would. An offset that is not there becomes the nearest one. InvalidMessage
        while a member lives. Positions that are lost (CorruptRecord) are set if topics are given.
        """
        self._engine.context.check_open()
        shards, clock = self._engine.shards, self._engine.context.clock
        if to is not None and to not in ("first", "last"):
            checked_whole("to", to)
        names = None if topics is None else checked_texts("topics", topics)
        files = shards.directory_of(group)
        return admin.reset(files, shards, clock, to, time, names, dry_run=dry_run)

    @documented
    def commit_group(self, group: str, positions: Mapping[tuple[str, int], int]) -> list[Moved]:
        """Commit by hand for a group without members, durably: {(topic, partition): offset}.

        For readers that are no members, as a query of Spark. Returns what moves; makes a new group.
        InvalidMessage, before anything is set, for topics and partitions that are not there, and
        while a member lives; OffsetOutOfRange beyond the last message.
        """
        context, shards = self._engine.context, self._engine.shards
        context.check_open()
        files = shards.directory_of(group)
        return admin.commit(files, shards, context.clock, checked_positions(positions))

    @documented
    def export_groups(self, groups: Iterable[str] | None = None) -> str:
        """Return the positions of some groups, or of all, as TubeMQ's `offsets.meta`.

        `rocketcompat.shards.groups` has the same for RocketMQ's `consumerOffset.json`.
        """
        context = self._engine.context
        names = self.groups() if groups is None else checked_texts("groups", groups)
        files = map(self._engine.shards.directory_of, names)
        return offsets_meta(admin.positions_of(files), context.clock.now_ms())

    @documented
    def import_groups(self, text: str, *, dry_run: bool = False) -> dict[str, list[Moved]]:
        """Set the positions that a TubeMQ broker's `offsets.meta` has, durably.

        Returns what moves, or with `dry_run` would, by group. An offset that is not there becomes
        the nearest one. InvalidMessage, before anything is set, for a text of another form, and for
        topics and partitions that are not there; of a group with a living member the same.
        """
        context, shards = self._engine.context, self._engine.shards
        context.check_open()
        given = parse_offsets_meta(text)
        return admin.import_positions(
            given, shards.directory_of, shards, context.clock, dry_run=dry_run
        )

    @documented
    def delete_group(self, group: str) -> None:
        """Delete a group with its positions; InvalidMessage while a member lives."""
        context = self._engine.context
        context.check_open()
        admin.delete(context.vfs, self.root, self._engine.shards.directory_of(group))

    # -- jobs --------------------------------------------------------------------------------

    @documented
    def publish(
        self,
        job_id: str,
        staged: Iterable[StagedFile | Mapping[str, Any]],
        *,
        create_topics: bool = False,
        threads: int | None = None,
        query: str | None = None,
        spread: Spread | None = None,
    ) -> PublishResult:
        """Make the files of a job part of the store, in one atomic step, and at most once.

        `staged`: the descriptions by the `tubestore.staging.StagedWriter`s of its tasks, in the
        order in which messages shall follow each other. `create_topics`: topics that are missing or
        too small are made as large as the files need. `threads` work on large jobs (by default one
        a core). After a crash the store has all of the job or nothing; readers see it as a whole. A
        job with an unknown end is simply published again. `query` names the query that this batch
        belongs to, a job `name:<number>`. The name is this query's from then on.

        JobTaken for a job that comes again with other messages (another number of them, other
        topics, filter items or bodies), unless nothing is staged for it: as long as the store keeps
        the job's record, and its writers summed up their content.

        What has to be written once more, with the offsets of its place, `spread` may have other
        processes write for jobs of 256 MiB or more: `spread(work, parts)` returns
        `list(map(work, parts))`, and work, parts and results can be pickled.

        Raises InvalidMessage (a file is missing or not as described), UnknownTopic, DiskFull before
        anything has changed. Raises StoreFailed when it is not known how far it came: open the
        store again. Repeating the call is always safe.
        """
        return self._engine.loads.publish(
            job_id, staged, create=create_topics, threads=threads, query=query, spread=spread
        )

    @documented
    def abort(self, job_id: str) -> PublishResult | None:
        """Give a job up and remove what it staged; returns its result if it was published."""
        return self._engine.loads.abort(job_id)

    @documented
    def clean_staging(self, grace: Age = timedelta(days=1)) -> list[str]:
        """Remove what jobs staged that have written nothing for `grace`; returns their names.

        `grace`: a timedelta, or a text such as "36h". The background does so by itself after a
        day (`staging_grace_ms`).
        """
        return self._engine.loads.clean_staging(grace)

    # -- retention ---------------------------------------------------------------------------

    @documented
    def retain(
        self,
        topics: Iterable[str] | None = None,
        *,
        max_age: Age | None = None,
        max_bytes: Size | None = None,
        dry_run: bool = False,
    ) -> list[SegmentRow]:
        """Remove the oldest files of some topics, or of all; returns a row for each that went.

        `max_age` counts for every topic in place of its own setting. `max_bytes` bounds the
        files of all these topics together, beside their own settings: the oldest go first.
        With `dry_run` nothing is removed, and a store that is open for reading will do.

        Removes whole files, data and index together; those that are written to stay, unless all
        their messages are older than `max_age`. They wait in a trash for `trash_grace_ms`, and
        what a lease holds stays. ReadOnlyStore, InvalidMessage, StoreFailed.
        """
        chosen = self._engine.topics.chosen(topics)
        return self._engine.housekeeping.retain(
            chosen, max_age=max_age, max_bytes=max_bytes, dry_run=dry_run
        )

    @documented
    def compact(
        self,
        topics: Iterable[str] | None = None,
        *,
        files_min: int = 8,
        dry_run: bool = False,
    ) -> list[MergedFiles]:
        """Merge small files of some topics, or of all; returns a row for each one that came of it.

        Full files of a shard that lie side by side become one, of at most the size of a file, where
        `files_min` or more of them fit into it. Offsets, times and job ids stay, and readers go on;
        the old files wait in the trash. The new file is synced and compared before it takes their
        place. Files behind a lease's offset stay, and damaged ones, which have a row, too. A merged
        file has at most a tenth of the topic's `max_age` and `max_bytes`. With `dry_run` nothing is
        read or merged, and a store that is open for reading will do.

        The background does it by itself (`compact_files_min`), 64 MiB each time. Any thread may
        call it. It needs room for a copy: DiskFull, and what was merged before stays so.
        ReadOnlyStore, InvalidMessage, StoreFailed.
        """
        chosen = self._engine.topics.chosen(topics)
        return self._engine.housekeeping.compact(chosen, files_min=files_min, dry_run=dry_run)

    @documented
    def explain_retention(
        self,
        topics: Iterable[str] | None = None,
        *,
        max_age: Age | None = None,
        max_bytes: Size | None = None,
    ) -> list[SegmentRow]:
        """Return a row for every file: whether `retain` would remove it, when, and why (not)."""
        chosen = self._engine.topics.chosen(topics)
        return self._engine.housekeeping.explain(chosen, max_age=max_age, max_bytes=max_bytes)

    @documented
    def empty_trash(self, grace: Age | None = None) -> int:
        """Delete now what has waited in the trash for `grace`; returns the bytes.

        By default for `trash_grace_ms`. What a lease holds stays.
        """
        return self._engine.housekeeping.empty_trashes(self._engine.topics.all_shards(), grace)

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
        names = () if topics is None and offsets is not None else topics
        chosen = self._engine.topics.chosen(names)
        return self._engine.housekeeping.lease(chosen, offsets, ttl=ttl, holder=holder)

    # -- state, and the end ------------------------------------------------------------------

    def stats(self) -> dict[str, Any]:
        """Return counters since the store was opened, and its present state.

        Sums at the top, the same for each topic in `topics` and for each of its used shards in
        `shards`, by store id. Bytes and seconds as the names are;
        `tubestore.metrics` has the table, and the same for Prometheus.
        """
        return self._engine.shards.stats()

    @documented
    def maintain(self) -> None:
        """Do what is due by time; with `background=True` a thread calls this by itself."""
        self._engine.maintain()

    @documented
    def close(self, *, give_up: bool = False) -> None:
        """Flush and sync everything and give the directory back; harmless when repeated.

        After DiskFull the store is open, with all that it has taken: make room and close it again,
        or `give_up` what cannot be written. Every shard is closed even if another one fails; the
        first error is raised at the end, also that of a shard that has failed before: what it took
        since may not be in the files. After an interrupt the store is open, except for shards that
        were closed before it: close it again.
        """
        for consumer in list(self._consumers):
            consumer.close()
        self._engine.close(give_up=give_up)

    def __enter__(self) -> MessageStoreManager:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.close()
        except TubeStoreError as failure:
            if error is None:
                raise
            log.error("%s", failure)  # the block's own error goes on to the caller

    def __reduce__(self) -> Any:
        raise TypeError("an open store cannot be pickled; open it in the other process (mode='r')")

    def __repr__(self) -> str:
        closed = self._engine.context.state.closed
        state = f", {closed}" if closed else ""
        return f"MessageStoreManager({self.root!r}, mode={self.mode!r}{state})"


def engine_of(store: MessageStoreManager) -> Engine:
    """Return the parts of a store, for the package itself and for its tests."""
    return store._engine
