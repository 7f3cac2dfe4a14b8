"""Opens the shards of a store: with what the journal has of them, or as a reader sees them.

Always true:
- what a killed process left in the journal is in a shard's files before anything else is appended
  to it, and in all files before the journal goes; the rest is kept in quarantine with the whole
  journal;
- several shards that are read together show the same jobs.

Guards: `showing` is held while a job appears in several shards, and while views of several shards
are taken. `_keeping` guards the copy of the journal in quarantine.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from operator import attrgetter

from tubestore.core.doors import logger
from tubestore.core.paths import OWN_DIRECTORY, join
from tubestore.core.quarantine import Quarantine
from tubestore.core.state_file import BadState
from tubestore.errors import NotAStore, StoreFailed, TubeStoreError, documented
from tubestore.journal.journal_overlay import JournalOverlay
from tubestore.journal.journalled import JournalledAppends
from tubestore.journal.lacking import stray_ring
from tubestore.journal.left_messages import LeftMessages
from tubestore.journal.ring import Ring, remove_ring
from tubestore.journal.ring_reading import LeftRing, read_ring, ring_paths
from tubestore.journal.root_journal import JournalPart, LeftJournal, read_journal
from tubestore.record.names import DATA_SUFFIX, JOURNAL_FILE, LOCK_FILE, store_key
from tubestore.segments.file_store import MsgFileStore
from tubestore.shard.message_store import MessageStore
from tubestore.shard.reader import ShardReader
from tubestore.shard.workers import Workers
from tubestore.staging.commit_records import Horizon
from tubestore.store.context import Context

log = logger(__name__)

Shard = MessageStore | ShardReader


class ShardOpener:
    """Opens shards by topic and store id; keeps the journal that they share."""

    def __init__(self, context: Context) -> None:
        self.context = context
        #: Flushes and syncs in the background; None without threads.
        self.background: Workers | None = None
        #: Takes batches over many shards; None if there is none, or if an old one has to stay.
        self.journal: JournalledAppends | None = None
        #: Takes single messages; None without one.
        self.ring: Ring | None = None
        #: The journal of a killed process, for shards that were not opened since.
        self.left = LeftMessages()
        #: Held while a job appears in several shards, and while views of several are taken.
        self.showing = threading.RLock()
        #: The journal as a reader sees it.
        self._overlay = JournalOverlay(context.vfs, context.root, context.note_problem)
        #: The last job that readers see: of the store, and of topics refreshed alone since.
        self._horizon = Horizon(context.vfs, context.root)
        self._horizons: dict[str, Horizon] = {}
        #: True once what an earlier process left in the journal is in quarantine, or goes there.
        self._journal_is_kept = False
        self._keeping = threading.Lock()

    @property
    def root(self) -> str:
        """The directory of the store."""
        return self.context.root

    # -- shards ------------------------------------------------------------------------------

    @documented
    def open(self, topic: str, store_id: int, topic_id: int = 0) -> Shard:
        """Open a shard for writing, or for reading in mode "r".

        Frames in the ring name a topic by its id: a topic without one (0) has none there.
        """
        context, key = self.context, store_key(topic, store_id)
        context.check_open()
        directory = join(context.root, key)
        if context.mode == "r":
            horizon = self._horizons.get(topic, self._horizon)
            reader = ShardReader(
                context.vfs,
                directory,
                topic,
                store_id,
                context.options,
                horizon,
                self._overlay,
                context.register.shard(key),
                context.directory.path_of(LOCK_FILE),
            )
            for problem in reader.problems:
                context.note_problem(problem)
            return reader
        shard = MessageStore.open(
            MsgFileStore(
                context.vfs, directory, store_id, context.options, context.register.shard(key)
            ),
            topic=topic,
            options=context.options,
            clock=context.clock,
            pool=context.pool,
            background=self.background,
            journalled=self.left.of(key),
        )
        if key in self.left:
            if not shard.has_all_journalled:
                try:
                    self._keep_journal()
                except OSError:
                    shard.files.close()
                    raise
            if self.journal is not None:
                self.journal.inherit(shard)
            if self.ring is not None:
                self.ring.inherit(shard)
            # Not before: without them an opening after one that failed would give offsets twice.
            self.left.was_given(key)
        context.problems.extend(shard.recovered.problems)
        if self.ring is not None and topic_id:
            shard.use_ring(self.ring, topic_id)
        return shard

    def exists(self, topic: str, store_id: int) -> bool:
        """Return whether the shard has a directory, or messages in the journal."""
        key = store_key(topic, store_id)
        known = self.left if self.context.mode == "w" else self._overlay
        return self.context.vfs.exists(join(self.root, key)) or key in known

    def has_left(self, topic: str, store_id: int) -> bool:
        """Return whether a shard gets something of the journal when it is opened."""
        return store_key(topic, store_id) in self.left

    def data_segments(self, topic: str, store_id: int) -> int:
        """Return how many data segments the shard's directory lists; opens nothing."""
        directory = join(self.root, store_key(topic, store_id))
        return sum(name.endswith(DATA_SUFFIX) for name, _, _ in self.context.vfs.entries(directory))

    # -- readers -----------------------------------------------------------------------------

    def look_for_damage(self) -> None:
        """Note damage of the journal as problems, for a reader."""
        self._overlay.look_for_damage()

    def read_again(self) -> Horizon:
        """Read the jobs and the journal of another process as they are now; under `showing`."""
        self._horizon = Horizon(self.context.vfs, self.root)
        self._horizons = {}
        self._overlay.refresh()
        self.context.register.read_again()
        return self._horizon

    def read_topic_again(self, topic: str) -> Horizon:
        """As `read_again`, for the shards of one topic."""
        horizon = self._horizons[topic] = Horizon(self.context.vfs, self.root)
        self._overlay.refresh()
        return horizon

    def journal_now(
        self,
    ) -> tuple[int, Callable[[str], Sequence[JournalPart]], Callable[[], bool]]:
        """Read the last published job and the journal, and show neither.

        Returns the job's number, the parts by shard, and whether there may be a ring.
        """
        with self.showing:
            self._overlay.refresh()
            finished = Horizon(self.context.vfs, self.root).finished
            return finished, self._overlay.of, self._overlay.has_ring

    # -- the journal -------------------------------------------------------------------------

    def take_over_journal(self, shard_of: Callable[[str], MessageStore | None]) -> None:
        """Go on with the journal of a process that was killed, or begin one.

        `shard_of` returns a shard by its directory's name, None if its topic is gone.

        While the machine runs, what the process had written is there: it stays, and each shard gets
        its part when it is opened. Otherwise files may be torn, and all shards are
        opened and synced before anything else is done. OSError if the journal cannot be read:
        nothing may be appended behind unknown content.

        A journal with damage is given to all shards at once, too, and then kept in quarantine:
        nothing is written behind it.
        """
        context = self.context
        frames = read_journal(context.vfs, self.root)
        try:
            ring = read_ring(context.vfs, self.root) or stray_ring(context.vfs, self.root)
        except BadState as error:  # changed since the topics were read
            raise NotAStore(self.root, str(error)) from error
        journal = JournalledAppends(
            context.vfs, self.root, context.options, context.clock, context.ids.next, context.pool
        )
        found = [left for left in (frames, ring) if left is not None]
        damages = [damage for left in found for damage in left.damages]
        self._journal_is_kept = bool(damages)
        for damage in damages:
            log.error("%s", damage)
            context.note_problem(damage)
        self._begin_ring(ring)
        parts = [part for left in found for part in left.parts]
        if parts:
            parts.sort(key=attrgetter("shard", "data_start"))
            self.left = LeftMessages(parts, lambda name: self._open_left(name, shard_of))
            if not damages and self._may_go_on(frames, ring):
                if ring is not None and self.ring is not None:
                    self.ring.keep_left(ring.paths, ring.tail)
                else:
                    self._remove_left_ring()
                if frames is not None:
                    journal.go_on(frames, self.left)
                else:
                    journal.remove_left_over()
                self._use_journal(journal)
                return
        given = not parts or self._give_all_shards(shard_of)
        if not given or (damages and not self._set_journal_aside(ring)):
            if self.ring is not None:
                self.ring.stay_out()
            return  # the journal stays
        journal.remove_left_over()
        self._remove_left_ring()
        self._use_journal(journal)

    def _use_journal(self, journal: JournalledAppends) -> None:
        if self.context.options.journal_size_bytes:
            journal.open()
            self.journal = journal

    def _remove_left_ring(self) -> None:
        """Remove segments that all shards have; where that fails they stay for the next opening."""
        try:
            self.context.directory.forget_ring()
            remove_ring(self.context.vfs, self.root)
        except OSError as error:
            log.warning("the journal of %s cannot be removed: %s", self.root, error)
            if self.ring is not None:
                self.ring.stay_out()

    def _may_go_on(self, frames: LeftJournal | None, ring: LeftRing | None) -> bool:
        """True if what a killed process left can stay while the store is open.

        The ring of one process can: so it has at most twice its bound on the disk.
        """
        context = self.context
        if frames is not None and (
            frames.boot_id != context.vfs.boot_id() or not context.options.journal_size_bytes
        ):
            return False
        return ring is None or (ring.is_whole and self.ring is not None)

    def maintain_left(self) -> None:
        """Open some shards that lack what a killed process left; then remove its segments."""
        if self.left:
            self.left.open_some(self.context.clock)
        if not self.left and self.ring is not None:
            self.ring.drop_left()

    def _begin_ring(self, left: LeftRing | None) -> None:
        """Have a ring for single messages, behind all segments that there were."""
        context, directory = self.context, self.context.directory
        if context.options.ring_journal:
            self.ring = Ring(
                context.vfs,
                self.root,
                context.options.ring_size_bytes,
                store=directory.uuid,
                # Not by the clock alone: it may have gone back.
                generation=max(context.ids.next(), left.generation + 1 if left is not None else 0),
                patience=context.options.append_timeout_ms / 1000,
                announce=directory.note_ring,
                withdraw=directory.forget_ring,
            )
            if left is not None:
                self.ring.begin_behind(left.segments_end, left.synced)

    @contextmanager
    def without_journal(self) -> Iterator[None]:
        """Keep the journal empty meanwhile: a new topic would get messages of a deleted one.

        Frames in the ring name a topic by its id, so that they can stay.
        """
        self.left.open_all()
        if self.journal is None:
            if self.context.vfs.exists(self._journal_path):
                raise StoreFailed(self.root, "its journal could not be put into all shards")
            yield
            return
        with self.journal.lock:
            self.journal.forget()
            yield

    @property
    def _journal_path(self) -> str:
        return join(self.root, OWN_DIRECTORY, JOURNAL_FILE)

    def _quarantine(self) -> Quarantine:
        return Quarantine(self.context.vfs, self.root)

    def _set_journal_aside(self, ring: LeftRing | None) -> bool:
        """Move a damaged journal into quarantine; False if that fails: it stays."""
        paths = [self._journal_path, *(ring.paths if ring is not None else ())]
        try:
            quarantine = self._quarantine()
            for path in paths:
                if self.context.vfs.exists(path):  # else that is the damage
                    quarantine.move(path)
        except OSError as error:
            failed = StoreFailed(self._journal_path, f"it cannot be moved into quarantine: {error}")
            log.error("%s", failed)
            self.context.note_problem(failed)
            return False
        return True

    def _keep_journal(self) -> None:
        """Copy the journal into quarantine, once; OSError if that fails.

        A shard's files do not take all of the journal's messages of it, and it is emptied later.
        """
        with self._keeping:
            if not self._journal_is_kept:
                quarantine = self._quarantine()
                for path in (self._journal_path, *ring_paths(self.context.vfs, self.root)):
                    if self.context.vfs.exists(path):
                        quarantine.copy(path)
                self._journal_is_kept = True

    def _give_all_shards(self, shard_of: Callable[[str], MessageStore | None]) -> bool:
        """Open and sync every shard that the journal has messages of; False if one fails."""
        names, problems = list(self.left), self.left.open_each()
        for name in names:
            if name not in self.left and (shard := shard_of(name)) is not None:
                try:
                    shard.sync()
                except TubeStoreError as error:
                    problems.append(error)
        for problem in problems:
            log.error("the journal stays: %s", problem)
            self.context.note_problem(problem)
        return not problems

    def _open_left(
        self, name: str, shard_of: Callable[[str], MessageStore | None]
    ) -> MessageStore | None:
        try:
            return shard_of(name)
        except TubeStoreError as error:
            self.context.note_problem(error)
            raise
        except OSError as error:
            failed = StoreFailed(join(self.root, name), str(error))
            self.context.note_problem(failed)
            raise failed from error
