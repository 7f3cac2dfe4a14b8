"""The ring journal: a frame in a mapped segment for each message, before its shard's files have it.

A message is taken at `page_cache` once its frame is in a segment and the message in its shard's
buffer. The buffer is written to the files later, in large pieces. A segment is used again when the
files of its shards have what it holds:

    free → current (takes frames) → full → emptied by the thread that needs a segment → free

Room in the ring is made before a message gets its offset, and with no lock of a shard held. Where
there is none, because the disk is full or a shard cannot write, the message goes to its shard's
files directly. So the ring never grows beyond its bound, and no append waits for it.

`fsync` syncs the segments, once for all threads that wait. From the first one on (`promised`) a
segment is emptied into files that are synced. Before that its shards forget that the ring covered
their messages (`MessageStore.leave_ring`), and sync their files at their first `fsync`.

Positions count the bytes of all segments there ever were, so they rise over openings, too. What a
killed process left stays in its own segments until all its shards have it, and have synced it. The
tail stays below them meanwhile.

Guards: `lock` guards the end of the ring and the current segment; it is taken under a shard's
append lock, and nothing is waited for under it. `_turn` lets one thread begin a segment; it comes
before all locks of shards.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable
from time import monotonic

from tubestore.core.doors import logger
from tubestore.core.group_commit import GroupCommit
from tubestore.core.paths import OWN_DIRECTORY, join
from tubestore.core.vfs import Vfs, VfsFile
from tubestore.disks.file_syncs import FileSyncs
from tubestore.errors import StoreBusy, StoreFailed, TubeStoreError
from tubestore.journal.early_writes import EarlyWrites
from tubestore.journal.ring_frames import (
    HEAD_SIZE,
    SEGMENT_BYTES_MIN,
    START_SIZE,
    Start,
    boot_tag,
    end_frame,
    front_of,
    start_frame,
    store_tag,
)
from tubestore.journal.ring_reading import ring_paths, slot_of
from tubestore.journal.ring_segment import RingShard, Segment
from tubestore.record.names import RING_PREFIX

log = logger(__name__)
_SEGMENT_BYTES_MAX = 8 << 20
#: A segment's file until it has its whole size.
_TEMPORARY = "ring.tmp"
#: The ring has at least so many segments.
_SEGMENTS_MIN = 4
#: In so many steps a segment gets its frames, but none is shorter than that many bytes.
_STEPS = 48
_STEP_BYTES_MIN = 4 << 10
#: After a failure so many appends go to their shards' files without another try.
_REFUSED_CALLS = 256


class Ring:
    """The ring of a store that is open for writing."""

    def __init__(
        self,
        vfs: Vfs,
        root: str,
        size_bytes: int,
        *,
        store: str,
        generation: int,
        patience: float,
        announce: Callable[[], None],
        withdraw: Callable[[], None],
    ) -> None:
        """Begin at ring position 0; nothing is written before the first frame.

        `store`: the uuid of the store.
        `patience`: how many seconds an append waits for another thread that makes room.
        `announce` records durably that the store has a ring, after the first segment is made;
        `withdraw` that it has none, before one is removed: of some segments alone it would not be
        known whether others are lost. Both raise OSError.
        """
        self._vfs, self._root = vfs, root
        self._own = join(root, OWN_DIRECTORY)
        self.segment_bytes = max(
            SEGMENT_BYTES_MIN, min(size_bytes // _SEGMENTS_MIN, _SEGMENT_BYTES_MAX)
        )
        self._segments_max = max(_SEGMENTS_MIN, size_bytes // self.segment_bytes)
        self._step_bytes = max(_STEP_BYTES_MIN, self.segment_bytes // _STEPS)
        self._early = EarlyWrites()
        self._patience = patience
        self._announce, self._withdraw = announce, withdraw
        self._boot, self._store = boot_tag(vfs.boot_id()), store_tag(store)
        self.generation = generation
        self._begun = self._next_base = self._left_synced = 0
        self.lock = threading.Lock()
        self._turn = threading.Lock()
        #: The position behind the last frame, and where the room for frames of this step ends; -1:
        #: no room.
        self.end, self.room_end = self._next_base, -1
        #: The segment that takes frames.
        self.current: Segment | None = None
        #: What all heads of frames begin with for now.
        self.front = front_of(self._boot, generation, 0)
        #: Segments that are full, in the ring's order, and those that are free; new lists each
        #: time.
        self._full: list[Segment] = []
        self._free: list[Segment] = []
        self._made = 0
        #: True once a frame was promised to survive a power cut.
        self._promised = False
        self._commits = GroupCommit(0)
        #: How often it was synced.
        self.syncs = 0
        self._unnamed = False
        #: True while the segments of an earlier process could not be removed.
        self._stays = False
        #: Segments of a killed process, and the shards that got messages of them.
        self._left: list[str] = []
        #: Where these segments begin; -1 once they are not needed.
        self._left_tail = -1
        self._heirs: dict[RingShard, None] = {}
        #: The number in the name of the first segment.
        self._first_slot = 0
        self._maps = vfs.can_map(root)
        #: Open while there are segments.
        self._file_syncs = FileSyncs(vfs, root)
        #: So many calls are not tried: a segment could not be made or emptied just now.
        self._refused = 0
        #: Why the ring takes no more frames, until the store is opened again.
        self.trouble = ""

    @property
    def frame_max(self) -> int:
        """The longest frame; a longer one goes to its shard's files."""
        return self.segment_bytes // 2

    @property
    def size(self) -> int:
        """Bytes of frames that some shard's files may lack."""
        return self.end - (self._full[0].base if self._full else self._base())

    def _base(self) -> int:
        current = self.current
        return current.base if current is not None else self.end

    # -- room --------------------------------------------------------------------------------

    def make_room(self, size: int) -> bool:
        """Have room for a frame of `size` bytes; False if it goes to its shard's files.

        With no lock of a shard held: other shards may have to write.
        """
        if self.trouble or size > self.frame_max:
            return False
        taken: list[bool] = []
        try:
            # One step for an interrupt: the lock is taken and that is known, or neither.
            taken += map(self._turn.acquire, (True,), (self._patience,))
            if not taken[0]:
                return False  # a shard that has to write is held
            room = self.has_room(size)
            if not room and self._refused:
                self._refused -= 1
            elif not room and not self.trouble:
                room = self._begin_step(size) or self._begin_segment()
            return room
        except OSError as error:
            self._say(f"no segment can be made: {error}")
            self._refused = _REFUSED_CALLS
            return False
        finally:
            if taken and taken[0]:
                self._turn.release()

    def has_room(self, size: int) -> bool:
        """True if the current segment takes a frame of `size` bytes."""
        return self.end + size <= self.room_end

    def _begin_step(self, size: int) -> bool:
        """Have more room for frames in the current segment; False if it is full."""
        with self.lock:
            limit = self._base() + self.segment_bytes - HEAD_SIZE  # END always has its room
            room = self.room_end >= 0 and self.end + size <= limit
            if room:
                self.room_end = min(limit, self.end + max(size, self._step_bytes))
        if room:
            spare = len(self._free) + self._segments_max - self._made
            self._early.step(self._full, spare, self.segment_bytes // self._step_bytes)
        return room

    def _begin_segment(self, *, durable: bool = False) -> bool:
        """Close the current segment and begin another one; False if there is none.

        `durable`: its START is on stable storage then, with the new tail.
        """
        self._close_segment()
        if not self._free and self._made < self._segments_max:
            self._make_segment()
        full, free = [*self._full], [*self._free]
        if free:
            segment = free.pop()
        elif full and self._empty(full[0]):
            segment = full.pop(0)
        else:
            self._refused = _REFUSED_CALLS
            return False
        base = self._next_base
        own = full[0].base if full else base
        tail = self._left_tail if self._left_tail >= 0 else own
        synced = self._commits.end
        size = self.segment_bytes
        places = base, size, tail, self._begun, own, self._left_synced
        start = Start(self._boot, self.generation, synced, *places, self._store)
        # A segment that is begun stays in its list until all of this is done: an interrupt, or a
        # call that fails, leaves it there, and the next try begins it again.
        segment.put(start_frame(start), 0)
        if self._promised or durable:
            # A power cut may otherwise leave the START of the lap before, and frames of both.
            segment.file.sync()
        segment.go_to(START_SIZE)
        with self.lock:  # without a call inside: an interrupt comes before all of it or behind
            segment.base = segment.end = base
            segment.shards = {}
            self._full, self._free, self.current = full, free, segment
            self._next_base = base + self.segment_bytes
            self.end = base + START_SIZE
            self.room_end = min(self.end + self._step_bytes, self._next_base - HEAD_SIZE)
        return True

    def _close_segment(self) -> None:
        """Write END behind the frames of the current segment; no segment is current then."""
        with self.lock:
            segment = self.current
            if segment is None:
                return
            self.room_end = -1
            segment.put(end_frame(self.front, self.end), self.end - segment.base)
            # Without a call: an interrupt comes before all of it or behind.
            self.end += HEAD_SIZE
            segment.end = self.end
            self._full = [*self._full, segment]
            self.current = None

    def _make_segment(self) -> None:
        """Make the file of one more segment, which is free then; none without room on the disk."""
        path = join(self._own, f"{RING_PREFIX}{self._first_slot + self._made}")
        if self._made == 0 and self._left_tail < 0:
            self._remove_left()  # an announced ring would count them
        self._file_syncs.open()
        try:
            file = self._whole_file(path)
            try:
                map_ = file.shared_map(self.segment_bytes, fill=True) if self._maps else None
                segment = Segment(file, map_)
                if self._made == 0:
                    self._announce()  # an announced ring without a segment has lost it
            except BaseException:
                file.close()  # the file stays: it may be announced
                raise
        except OSError as error:
            self._say(f"no room for a segment: {error}")
            return
        self._free = [*self._free, segment]
        self._made += 1
        self._unnamed = True

    def _whole_file(self, path: str) -> VfsFile:
        """Make the file of a segment, which has its name only once it durably has its size.

        So a segment that is shorter was cut, whatever a crash left.
        """
        temporary = join(self._own, _TEMPORARY)
        if self._vfs.exists(temporary):
            self._vfs.remove(temporary)
        file = self._vfs.open(temporary, create=True)
        try:
            if self._maps:
                file.allocate(self.segment_bytes)
            else:
                file.truncate(self.segment_bytes)
            file.sync()
            self._vfs.rename(temporary, path)
            file.moved_to(path)
        except BaseException:
            file.close()
            with contextlib.suppress(OSError):
                self._vfs.remove(temporary)
            raise
        return file

    # -- emptying ----------------------------------------------------------------------------

    def _empty(self, segment: Segment) -> bool:
        """Have the shards of the oldest segment write it; False if one fails."""
        try:
            self._write(segment, self._patience)
            if not self._leave(segment):
                self._sync_files(segment.shards)
        except TubeStoreError as error:
            self._say(f"a segment cannot be emptied: {error}")
            return False
        return True

    def _write(self, segment: Segment, patience: float = -1) -> None:
        """Have the shards of a segment write what it holds; all are tried, one failure raised.

        `patience`: how many seconds it waits for shards that are held; -1: as long as they are.
        """
        failure: TubeStoreError | None = None
        deadline = monotonic() + patience
        for shard in list(segment.shards):
            if shard.is_deleted():
                continue
            try:
                left = max(0.0, deadline - monotonic()) if patience >= 0 else -1
                if shard.write_below(segment.base + self.segment_bytes, left) < 0:
                    failure = failure or StoreBusy(f"shard {shard.name} is held")
            except TubeStoreError as error:
                if not shard.is_deleted():
                    failure = failure or error
        if failure is not None:
            raise failure

    def _leave(self, segment: Segment) -> bool:
        """Have the shards of a written segment forget it; False if their files are to be synced."""
        if not self._promised:
            for shard in list(segment.shards):
                shard.leave_ring()
        with self.lock:
            # A thread that promises from now on finds that the shards have left.
            return not self._promised

    def _sync_files(self, shards: Iterable[RingShard]) -> None:
        """Bring the files of some shards to stable storage."""
        there = [shard for shard in shards if not shard.is_deleted()]
        try:
            self._file_syncs.sync(there, lambda shard: shard.sync_written())
        except StoreFailed as error:
            if self._file_syncs.failed:
                self._give_up(str(error))
            raise

    # -- to stable storage -------------------------------------------------------------------

    def promise(self) -> None:
        """Empty segments into synced files only, from now on; before a shard's state is read."""
        if not self._promised:
            with self.lock:
                self._promised = True

    def sync(self, position: int) -> None:
        """Bring frames below a position to stable storage; StoreFailed, and the ring takes no more.

        What was not synced may be lost then, so all shards write their buffers.
        """
        try:
            self._commits.reach(position, self._sync_segments)
        except StoreFailed:
            self._write_out()
            raise

    def _sync_segments(self) -> int:
        if self.trouble:
            raise StoreFailed(self._root, f"the journal: {self.trouble}")
        with self.lock:
            end, current = self.end, self.current
            # Not marked by segment: one may be emptied and used again meanwhile.
            files = [s.file for s in self._full if s.end > self._commits.end]
        if current is not None:
            files.append(current.file)
        try:
            for file in files:
                file.sync()
            if self._unnamed:
                self._unnamed = False
                self._vfs.sync_directory(self._own)
        except OSError as error:
            self._give_up(f"sync: {error}")
            raise StoreFailed(self._root, f"the journal: sync: {error}") from error
        self.syncs += 1
        with self.lock:
            self.front = front_of(self._boot, self.generation, end)
        return end

    def _write_out(self) -> None:
        """Have all shards write: what the ring holds is not safe any more."""
        with self._turn:
            current = self.current
            for segment in [*self._full, *([current] if current is not None else [])]:
                with contextlib.suppress(TubeStoreError):  # a shard refuses appends itself
                    self._write(segment)

    # -- the end -----------------------------------------------------------------------------

    def _say(self, trouble: str) -> None:
        log.warning("the journal: %s; shards write directly", trouble)

    def _give_up(self, trouble: str) -> None:
        """Take no more frames until the store is opened again."""
        with self.lock:
            if not self.trouble:
                self.trouble = trouble
                self._say(trouble)
            self.room_end = -1

    def take_back(self, segment: Segment, position: int, error: BaseException) -> None:
        """Have no frame at the end, after one that was begun there; under `lock`.

        What is written next is written over it. An OSError ends the ring until the store is opened
        again: what the file holds is not known.
        """
        try:
            segment.go_to(position - segment.base)
            segment.put(bytes(HEAD_SIZE), position - segment.base)
        except OSError as another:
            error = another
        if isinstance(error, OSError):
            self.trouble, self.room_end = self.trouble or str(error), -1
            self._say(self.trouble)

    def stop(self, reason: str) -> None:
        """Take no more frames, and write no byte after this returns.

        A segment that is being emptied comes first: no lock of a shard may be held.
        """
        with self._turn:
            self._give_up(reason)

    def stay_out(self) -> None:
        """Take no frames: the segments of an earlier process are still needed."""
        self._stays = True
        self.trouble = "what an earlier process left could not be put into all shards"

    # -- what a killed process left ----------------------------------------------------------

    def begin_behind(self, position: int, synced: int) -> None:
        """Begin behind a ring position, with all below another one synced; before any frame."""
        self._next_base = -(-position // self.segment_bytes) * self.segment_bytes
        self._begun = self.end = self._next_base
        self._left_synced = synced
        self._commits = GroupCommit(synced)
        self.front = front_of(self._boot, self.generation, synced)

    def keep_left(self, paths: list[str], tail: int) -> None:
        """Keep the segments of a killed process, with all frames behind `tail`; OSError."""
        self._file_syncs.open()
        self._left, self._left_tail = paths, tail
        self._first_slot = 1 + max(slot_of(path) for path in paths)

    def inherit(self, shard: RingShard) -> None:
        """Take note of a shard that got messages which a killed process left."""
        self._heirs[shard] = None

    def drop_left(self) -> None:
        """Remove the segments of a killed process, after all their shards were opened.

        The files of these shards are synced first, and the tail is raised durably. What fails is
        tried again at the next call.
        """
        if not self._left or self.trouble:
            return
        try:
            if self._left_tail >= 0:
                self._sync_files(self._heirs)
                self._heirs = {}
            with self._turn:
                if not self.trouble and self._pass_left():
                    self._remove_left()
        except (OSError, TubeStoreError) as error:
            self._say(f"what a killed process left stays: {error}")

    def _pass_left(self) -> bool:
        """Record durably that what a killed process left is not needed; False without room."""
        tail = self._left_tail
        if tail >= 0:
            self._left_tail = -1
            passed = False
            try:
                if self._made:
                    passed = self._begin_segment(durable=True)
                else:
                    self._withdraw()
                    passed = True
            finally:
                if not passed:
                    self._left_tail = tail
            return passed
        return True

    def _remove_left(self) -> None:
        if self._left:
            remove_ring(self._vfs, self._root, self._left)
            self._left = []

    def abandon(self) -> None:
        """Write nothing more: in a forked child, or without the lock of the store.

        The locks are new ones: other threads held the old ones at a fork.
        """
        self.trouble = "the store is closed"
        self.room_end = -1
        self.lock, self._turn = threading.Lock(), threading.Lock()

    def close(self, *, keep: bool) -> None:
        """Remove the segments after all shards were closed; `keep` them if one lacks messages."""
        self.room_end = -1
        self.trouble = self.trouble or "the store is closed"
        segments = [*self._full, *self._free]
        if self.current is not None:
            segments.append(self.current)
        for segment in segments:
            segment.file.close()
        self._file_syncs.close()
        if not keep and not self._stays and (segments or self._left):
            with contextlib.suppress(OSError):  # the next opening finds it all in the files
                self._withdraw()
                remove_ring(self._vfs, self._root)

    def check_invariants(self) -> None:
        """Raise AssertionError if the fields contradict each other; for tests."""
        with self.lock:
            assert len(self._full) + len(self._free) + (self.current is not None) <= self._made
            assert self._made <= self._segments_max, "more segments than the bound"
            if self.current is not None:
                base = self.current.base
                assert base < self.end <= base + self.segment_bytes, "the end is in no segment"
                assert self.room_end <= base + self.segment_bytes - HEAD_SIZE, "no room for END"
            else:
                assert self.room_end == -1, "room without a segment"
            bases = [segment.base for segment in self._full]
            assert bases == sorted(bases), "full segments out of order"


def remove_ring(vfs: Vfs, root: str, paths: Iterable[str] | None = None) -> None:
    """Remove some segments of a ring, or all of it, durably."""
    own = join(root, OWN_DIRECTORY)
    if paths is None:
        paths = [*ring_paths(vfs, root), join(own, _TEMPORARY)]
    there = [path for path in paths if vfs.exists(path)]
    for path in there:
        vfs.remove(path)
    if there:
        vfs.sync_directory(own)
