"""Housekeeping of an open store: retention, compaction, trashes, leases, what jobs have left.

A pass reads files only; a shard that has nothing to lose is not opened for it. Between plan and
removal a shard may grow: the files that are written to by then stay.

Guards: `_lock` lets one pass run at a time. A shard's own locks come below it.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from tubestore.core import trash
from tubestore.core.doors import logger
from tubestore.core.paths import join
from tubestore.errors import (
    InvalidMessage,
    NotAStore,
    OffsetOutOfRange,
    ReadOnlyStore,
    StoreClosed,
    TubeStoreError,
    UnknownTopic,
)
from tubestore.groups.admin import expire
from tubestore.groups.membership import TopicShape
from tubestore.groups.settings import held_by_groups
from tubestore.record.names import INDEX_DIRECTORY, parse_store_key, store_key
from tubestore.shard.compaction import Limits, MergedFiles, compact
from tubestore.shard.message_store import MessageStore
from tubestore.shard.reader import ShardReader
from tubestore.store.context import Context
from tubestore.store.leases import Lease, LeaseRecord, forget_expired, live_leases
from tubestore.store.retention import RetentionBounds, SegmentRow, ShardPlan, keep_within, plan
from tubestore.store.topic_shards import TopicShards
from tubestore.values import WHOLE_END, Age, Size, age_ms, checked_whole, size_bytes, size_text

log = logger(__name__)

#: The first pass in the background comes this long after the opening, at the latest.
FIRST_PASS_MS = 10_000
_TRIES = 5
#: Between topics, so that a pass over thousands takes the interpreter half of the time.
_PAUSE_S = 0.001
#: Bytes that a pass in the background merges: it reads them twice and writes them once.
COMPACTED_BYTES = 64 << 20
#: A merged file has at most such a part of what a topic's bounds keep, in bytes and in time: a file
#: goes as a whole, when its newest message is due.
_PARTS = 10


@dataclass(frozen=True, slots=True)
class _Planned:
    """A shard's plan, and the topic that carries it out."""

    topic: TopicShards
    bounds: RetentionBounds
    shard: ShardPlan


class Housekeeping:
    """Retention of one open store."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._vfs, self._root, self._clock = context.vfs, context.root, context.clock
        self._options = context.options
        self._lock = threading.Lock()
        first = min(FIRST_PASS_MS, self._options.retention_interval_ms)
        self._due = self._clock.monotonic() + first / 1000
        #: Topics that were not in use at their last pass, and when the next one is due (ms).
        self._quiet: weakref.WeakKeyDictionary[TopicShards, tuple[RetentionBounds, int]]
        self._quiet = weakref.WeakKeyDictionary()
        #: Files that compaction leaves as they are, by their paths: they were found damaged.
        self._left: weakref.WeakKeyDictionary[TopicShards, set[str]] = weakref.WeakKeyDictionary()
        #: Topics that were not in use and had no files to be merged.
        self._looked_at: weakref.WeakSet[TopicShards] = weakref.WeakSet()

    # -- retention ---------------------------------------------------------------------------

    def retain(
        self,
        topics: Iterable[TopicShards],
        *,
        max_age: Age | None,
        max_bytes: Size | None,
        dry_run: bool,
    ) -> list[SegmentRow]:
        """Remove files by the topics' bounds; `max_bytes` bounds all of them together.

        Returns a row for each segment that went, or would go.
        """
        self._context.check_open(writing=not dry_run)
        bound = size_bytes(max_bytes)
        return self._retain(topics, _bounds_of(age_ms(max_age)), bound, dry_run=dry_run)

    def retain_topic(
        self, topic: TopicShards, *, max_age: Age | None, max_bytes: Size | None, dry_run: bool
    ) -> list[SegmentRow]:
        """As `retain` for one topic, with `max_bytes` in place of its own setting."""
        self._context.check_open(writing=not dry_run)
        bounds_of = _bounds_of(age_ms(max_age), size_bytes(max_bytes))
        return self._retain([topic], bounds_of, None, dry_run=dry_run)

    def _retain(
        self,
        topics: Iterable[TopicShards],
        bounds_of: Callable[[TopicShards], RetentionBounds],
        max_bytes: int | None,
        *,
        dry_run: bool,
    ) -> list[SegmentRow]:
        with self._lock:
            planned = self._plan(topics, bounds_of, max_bytes, self._held(topics))
            rows = [row for one in planned for row in one.shard.rows(one.bounds, all_rows=False)]
            if not dry_run:
                self._carry_out(planned)
                self._empty_trashes(topics)
            return rows

    def explain(
        self, topics: Iterable[TopicShards], *, max_age: Age | None, max_bytes: Size | None
    ) -> list[SegmentRow]:
        """Return a row for every segment: whether it would go, when, and why."""
        self._context.check_open()
        bound = size_bytes(max_bytes)
        return self._explain(topics, _bounds_of(age_ms(max_age)), bound)

    def explain_topic(
        self, topic: TopicShards, *, max_age: Age | None, max_bytes: Size | None
    ) -> list[SegmentRow]:
        """As `explain` for one topic, with `max_bytes` in place of its own setting."""
        self._context.check_open()
        return self._explain([topic], _bounds_of(age_ms(max_age), size_bytes(max_bytes)), None)

    def _explain(
        self,
        topics: Iterable[TopicShards],
        bounds_of: Callable[[TopicShards], RetentionBounds],
        max_bytes: int | None,
    ) -> list[SegmentRow]:
        with self._lock:
            planned = self._plan(topics, bounds_of, max_bytes, self._held(topics))
            return [row for one in planned for row in one.shard.rows(one.bounds)]

    def _carry_out(self, planned: Iterable[_Planned]) -> None:
        for one in planned:
            if one.shard.count:
                self._context.directory.check_writer()
                one.topic.writable(one.shard.store_id).remove_below(one.shard.data_start)

    def _plan(
        self,
        topics: Iterable[TopicShards],
        bounds_of: Callable[[TopicShards], RetentionBounds],
        max_bytes: int | None,
        held: Sequence[LeaseRecord],
    ) -> list[_Planned]:
        now_ms = self._clock.now_ms()
        leases = [*live_leases(self._vfs, self._root, now_ms), *held]
        planned = []
        for topic in topics:
            bounds = bounds_of(topic)
            shards = []
            for store_id in self._store_ids(topic):
                try:
                    shards.append(self._look(topic, store_id, leases, now_ms))
                except NotAStore as error:  # nothing opens it; the others are not to grow for it
                    if self._options.on_damage == "raise":
                        raise
                    log.warning("retention passes by %s", error)
            plan(shards, bounds)
            planned += [_Planned(topic, bounds, shard) for shard in shards]
        if max_bytes is not None:
            keep_within([one.shard for one in planned], max_bytes)
        return planned

    def _held(self, topics: Iterable[TopicShards]) -> list[LeaseRecord]:
        """Return what groups hold that retention waits for."""
        shapes = [
            (
                topic.name,
                topic.options.id,
                TopicShape(topic.options.partitions, topic.options.stores),
            )
            for topic in topics
        ]
        held = held_by_groups(self._vfs, self._root, self._clock, shapes)
        return [LeaseRecord(each.path, each.holder, None, each.offsets) for each in held]

    def _store_ids(self, topic: TopicShards) -> list[int]:
        directory = self._root
        keys = (store_key(topic.name, n) for n in range(topic.options.stores))
        return [n for n, key in enumerate(keys) if self._vfs.exists(join(directory, key))]

    def _look(
        self, topic: TopicShards, store_id: int, leases: Sequence[LeaseRecord], now_ms: int
    ) -> ShardPlan:
        opened = topic.opened_shard(store_id)
        may_seal = True
        if isinstance(opened, MessageStore):
            may_seal = opened.dirty_bytes == 0
            ends = opened.view().ends
        else:
            ends = self._reader(topic.name, store_id).view().ends
        return ShardPlan(self._vfs, topic.name, store_id, ends, leases, now_ms, may_seal)

    def _reader(self, topic: str, store_id: int) -> ShardReader:
        directory = join(self._root, store_key(topic, store_id))
        return ShardReader(self._vfs, directory, topic, store_id, self._options)

    # -- compaction --------------------------------------------------------------------------

    def compact(
        self, topics: Iterable[TopicShards], *, files_min: int, dry_run: bool
    ) -> list[MergedFiles]:
        """Merge small sealed files next to each other; returns a row for each that came of it."""
        self._context.check_open(writing=not dry_run)
        checked_whole("files_min", files_min)
        if files_min < 2:
            raise InvalidMessage(f"files_min = {files_min}: 2 files or more become one")
        with self._lock:
            return [
                row
                for topic in topics
                for row in self._compact(topic, files_min, WHOLE_END, dry_run=dry_run)
            ]

    def _compact(
        self, topic: TopicShards, files_min: int, room: int, *, dry_run: bool = False
    ) -> Iterator[MergedFiles]:
        """Merge files of a topic while they have at most `room` bytes together."""
        for store_id in self._store_ids(topic):
            if not self._has_small_files(topic, store_id, files_min):
                continue
            try:
                for row in self._compact_shard(topic, store_id, files_min, room, dry_run):
                    room -= row.bytes if row.verdict == "merged" else 0
                    yield row
            except NotAStore as error:
                if self._options.on_damage == "raise":
                    raise
                log.warning("compaction passes by %s", error)

    def _has_small_files(self, topic: TopicShards, store_id: int, count: int) -> bool:
        """Return whether so many files of a stream have room in one; opens no shard for it."""
        options, opened = self._options, topic.by_id.get(store_id)
        sizes = (options.segment_size_bytes, options.index_segment_size_bytes)
        found: Iterable[Iterable[int]]
        if opened is not None:
            streams = (opened.files.data, opened.files.index)
            found = ((segment.size for segment in stream) for stream in streams)
        else:
            directory = join(self._root, store_key(topic.name, store_id))
            places = (directory, join(directory, INDEX_DIRECTORY))
            found = ((size for _, _, size in self._vfs.entries(place)) for place in places)
        # None is larger than the others together.
        return any(
            sum(2 * size <= full for size in each) >= count
            for each, full in zip(found, sizes, strict=True)
        )

    def _compact_shard(
        self, topic: TopicShards, store_id: int, files_min: int, room: int, dry_run: bool
    ) -> Iterator[MergedFiles]:
        if dry_run:
            known = topic.opened_shard(store_id) or self._reader(topic.name, store_id)
            files, merge = known.files, None
        else:
            shard = topic.writable(store_id)
            files = shard.files
            merge = partial(shard.merge, check=self._context.directory.check_writer)
        now_ms, options = self._clock.now_ms(), self._options
        leases = live_leases(self._vfs, self._root, now_ms)
        plan = ShardPlan(self._vfs, topic.name, store_id, files.snapshot(), leases, now_ms)
        held = [lease.holds(store_key(topic.name, store_id)) for lease in leases]
        index_until = min((offset for offset in held if offset is not None), default=WHOLE_END)
        numbers = {segment.start: number for number, segment in enumerate(plan.data)}
        bounds = topic.options
        largest = WHOLE_END if bounds.max_bytes is None else bounds.max_bytes // _PARTS
        limits = Limits(
            min(largest, options.segment_size_bytes), files_min, plan.held_from, room,
            times=lambda segment: plan.times(numbers[segment.start])[:2],
            span_max_ms=None if bounds.max_age_ms is None else bounds.max_age_ms // _PARTS,
        )  # fmt: skip
        of_index = replace(
            limits, size_max=min(largest, options.index_segment_size_bytes), until=index_until,
            times=lambda segment: plan.index_times(segment)[:2],
        )  # fmt: skip
        left = self._left.setdefault(topic, set())
        for name, stream, each in (("data", files.data, limits), ("index", files.index, of_index)):
            each = replace(each, room=room)
            for run, reason in compact(files, stream, each, left, merge):
                now, size = stream.find(run.segments[0].start), run.size
                assert now is not None
                room -= 0 if reason else size
                yield MergedFiles(
                    topic.name, store_id, name, now.path, now.start, len(run.segments), size,
                    "stays" if reason else "merged",
                    reason or f"{len(run.segments)} files have {size_text(size)} together",
                )  # fmt: skip

    # -- by itself ---------------------------------------------------------------------------

    def is_due(self) -> bool:
        """True if it is time for a pass."""
        return self._clock.monotonic() >= self._due

    def run(
        self,
        topics: Iterable[TopicShards],
        pause: Callable[[float], bool],
        clean_staging: Callable[[], object],
    ) -> None:
        """Make a pass over every topic by its own settings; what fails is logged.

        Before it, groups end that have expired; after it, it empties trashes and removes what jobs
        have left. `pause` is called in between with seconds to wait, so that other threads get the
        interpreter. When it returns True the pass ends.
        """
        self._due = self._clock.monotonic() + self._options.retention_interval_ms / 1000
        topics = list(topics)
        self._try("groups", self._expire_groups)
        held = self._held(topics)
        for topic in topics:
            bounds = RetentionBounds(topic.options.max_age_ms, topic.options.max_bytes)
            if bounds != RetentionBounds() and not self._is_quiet(topic, bounds):
                if pause(_PAUSE_S):
                    return
                self._try(topic.name, partial(self._tidy, topic, bounds, held))
        if self._options.compact_files_min and self._compact_some(topics, pause):
            return
        self._try("the trash", partial(self.empty_trashes, topics))
        self._try("what jobs have staged", partial(self._clean, clean_staging))

    def _compact_some(self, topics: Iterable[TopicShards], pause: Callable[[float], bool]) -> bool:
        """Merge some bytes of small files; returns whether the pass is to end."""
        room = [COMPACTED_BYTES]

        def compact(topic: TopicShards) -> None:
            with self._lock:
                for row in self._compact(topic, self._options.compact_files_min, room[0]):
                    room[0] -= row.bytes if row.verdict == "merged" else 0
                    level = logging.INFO if row.verdict == "merged" else logging.WARNING
                    log.log(level, "%s %s: %s", row.path, row.verdict, row.reason)
                    if pause(0):
                        return
            if not topic.opened_shards():
                self._looked_at.add(topic)

        for topic in topics:
            # Only this process adds files: to a topic that is not in use none come.
            if room[0] and (topic.opened_shards() or topic not in self._looked_at):
                if pause(_PAUSE_S):
                    return True
                self._try(f"the small files of {topic.name}", partial(compact, topic))
        return False

    def _clean(self, clean_staging: Callable[[], object]) -> None:
        leases = live_leases(self._vfs, self._root, self._clock.now_ms())
        if all(lease.offsets is not None for lease in leases):  # else one holds everything
            clean_staging()

    def _expire_groups(self) -> None:
        for group in expire(self._vfs, self._root, self._clock, None, dry_run=False):
            log.info("group %r has ended: neither a member nor a commit for long", group)

    def _tidy(
        self, topic: TopicShards, bounds: RetentionBounds, held: Sequence[LeaseRecord]
    ) -> None:
        """Retain one topic, and note when its next pass is due if it is not in use."""
        with self._lock:
            planned = self._plan([topic], lambda _: bounds, None, held)
            self._carry_out(planned)
            age, now_ms = bounds.max_age_ms, self._clock.now_ms()
            if age is not None and bounds.max_bytes is None and not topic.opened_shards():
                due = [one.shard.due_at(age) for one in planned]
                self._quiet[topic] = (bounds, min(due, default=now_ms + age))

    def _is_quiet(self, topic: TopicShards, bounds: RetentionBounds) -> bool:
        """True if nothing can be due: only this process writes, and no shard of it was used."""
        known, due = self._quiet.get(topic, (None, 0))
        return known == bounds and due > self._clock.now_ms() and not topic.opened_shards()

    @staticmethod
    def _try(name: str, do: Callable[[], object]) -> None:
        try:
            do()
        except StoreClosed:
            return  # deleted or closed meanwhile
        except (TubeStoreError, OSError) as error:
            log.warning("retention of %s: %s", name, error)
        except Exception:  # unexpected: the other topics go on
            log.exception("retention of %s", name)

    # -- trash -------------------------------------------------------------------------------

    def empty_trashes(self, topics: Iterable[TopicShards], grace: Age | None = None) -> int:
        """Delete files that have waited in the trashes for the grace time.

        Files that a lease needs stay. Returns the bytes.
        """
        self._context.check_open(writing=True)
        grace_ms = age_ms(grace, "grace")
        with self._lock:
            return self._empty_trashes(topics, grace_ms)

    def _empty_trashes(self, topics: Iterable[TopicShards], grace_ms: int | None = None) -> int:
        now_ms = self._clock.now_ms()
        grace = self._options.trash_grace_ms if grace_ms is None else grace_ms
        forget_expired(self._vfs, self._root, now_ms)
        leases = live_leases(self._vfs, self._root, now_ms)

        def is_held(key: str) -> bool:
            # A trash is small and a lease short: a lease keeps all of a trash, whatever files it
            # needs.
            return any(lease.holds(key) is not None for lease in leases)

        freed = trash.purge(
            self._vfs, trash.trash_of(self._root), now_ms - grace, lambda w: is_held(w.name)
        )
        for topic in topics:
            for store_id in self._store_ids(topic):
                key = store_key(topic.name, store_id)
                place = trash.trash_of(join(self._root, key))
                if self._vfs.exists(place) and not is_held(key):
                    freed += trash.purge(self._vfs, place, now_ms - grace, lambda _: False)
        return freed

    # -- leases ------------------------------------------------------------------------------

    def lease(
        self,
        topics: Iterable[TopicShards],
        offsets: Mapping[str, int] | None,
        *,
        ttl: Age,
        holder: str | None,
    ) -> Lease:
        """Take a lease on all shards of some topics, and on others from given offsets on."""
        self._context.check_open()
        ttl_ms = age_ms(ttl, "ttl")
        if not ttl_ms:
            raise InvalidMessage(f"ttl = {ttl}: above 0")
        if holder is not None and not isinstance(holder, str):
            raise TypeError(f"holder {holder!r}: a text is needed")
        given = {} if offsets is None else offsets
        _check_offsets(given)
        try:
            return self._lease(topics, given, ttl_ms, holder)
        except PermissionError as error:
            raise ReadOnlyStore(f"{self._root}: no lease can be written here ({error})") from error

    def _lease(
        self,
        topics: Iterable[TopicShards],
        offsets: Mapping[str, int],
        ttl_ms: int,
        holder: str | None,
    ) -> Lease:
        named = holder or f"{socket.gethostname()}:{os.getpid()}"
        # Those without files too: their messages are in memory or in the journal, and may come.
        keys = [store_key(t.name, n) for t in topics for n in range(t.options.stores)]
        for attempt in range(_TRIES):
            wanted = {key: self._first_kept(key)[0] for key in keys} | dict(offsets)
            try:
                return Lease(
                    self._vfs,
                    self._root,
                    wanted,
                    holder=named,
                    ttl_ms=ttl_ms,
                    clock=self._clock,
                    check=self._check_kept,
                )
            except OffsetOutOfRange:
                # Retention was quicker: what is kept begins further on now.
                if offsets or attempt == _TRIES - 1:
                    raise
        raise AssertionError("unreachable")

    def _first_kept(self, key: str) -> tuple[int, int]:
        """Return the first and the next offset of a shard, as its files are now."""
        parsed = parse_store_key(key)
        if parsed is None:
            raise UnknownTopic(key)
        view = self._reader(*parsed).view()
        return view.index_start, view.index_end

    def _check_kept(self, offsets: Mapping[str, int]) -> None:
        for key, offset in offsets.items():
            first, end = self._first_kept(key)
            if offset < first:
                raise OffsetOutOfRange(offset, first, end)


def _check_offsets(offsets: Any) -> None:
    if not isinstance(offsets, Mapping):
        raise TypeError(f"offsets {offsets!r}: a mapping of shards to offsets is needed")
    for shard, offset in offsets.items():
        checked_whole(f"offsets[{shard!r}]", offset)


def _bounds_of(
    max_age_ms: int | None, max_bytes: int | None = None
) -> Callable[[TopicShards], RetentionBounds]:
    """Return a function from a topic to its bounds: those of a call, else its own settings."""

    def bounds(topic: TopicShards) -> RetentionBounds:
        own = topic.options
        return RetentionBounds(
            own.max_age_ms if max_age_ms is None else max_age_ms,
            own.max_bytes if max_bytes is None else max_bytes,
        )

    return bounds
