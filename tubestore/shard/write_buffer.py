"""A shard's messages that are not in its files: two buffers, room, the lent end.

One buffer (main) takes appends while the other (flushing) is written to the files:

| main       | flushing | an append                          | a flush                     |
| ---------- | -------- | ---------------------------------- | --------------------------- |
| has room   | empty    | enters main                        | swaps, writes               |
| has room   | full     | enters main                        | writes                      |
| full       | empty    | swaps, enters the new main         | swaps, writes               |
| full       | full     | waits; StoreBusy at its deadline   | writes, wakes the waiting   |

The write position is the end of main: the next message gets its offsets there. It can be lent to
the journal's pending batches (`pending_batches.py`), which then place messages behind it. While it
is lent, nothing may be put behind main, written or shown. `bring_back` is the one door: it takes
the write position and the messages back, and `main` goes through it.

In the ring: the messages with data offsets from `ring_from` to `_ring_to` have, or had, frames in
the ring journal without a gap. A message enters the ring only behind `_ring_to`, or behind the
files: a frame never has messages before it that are in no file and no frame.

Journalled messages: everything from `_journal_from` to the end of the buffers, as far as it came
from the journal (data offsets: up to `_journal_to`), is in frames of one generation. Everything
below `_journal_from` is in the files.

No I/O here. Guards: all calls come under the shard's append lock, except `dirty_bytes`,
`dirty_since` and `has_unwritten`; `number` is guarded by the journal's lock.
"""

from __future__ import annotations

import numpy as np

from tubestore.clock import Clock
from tubestore.core.memory_pool import MemoryPool
from tubestore.journal.pending_batches import Parts, PendingBatches
from tubestore.journal.ring import Ring
from tubestore.journal.ring_frames import HEAD_SIZE, digest_of, place_of, shard_of
from tubestore.journal.ring_segment import RingShard
from tubestore.options import StoreOptions
from tubestore.record.records import ENTRY_SIZE, HEADER_SIZE, Placed
from tubestore.shard.mem_store import MsgMemStore
from tubestore.shard.statistics import ShardCounters

#: A shard takes its memory from the pool in steps, not a lock a message.
_GRANT_BYTES = 64 << 10
_GRANT_BYTES_MIN = 4 << 10


class WriteBuffer:
    """Both buffers of a shard, and its write position."""

    __slots__ = (
        "_barred_generation",
        "_clock",
        "_counters",
        "_journal_from",
        "_journal_generation",
        "_journal_to",
        "_lent",
        "_main",
        "_options",
        "_pending",
        "_pool",
        "_ring",
        "_ring_owner",
        "_ring_shard",
        "_ring_to",
        "_room_count",
        "_room_end",
        "flushing",
        "granted",
        "held",
        "number",
        "ring_end",
        "ring_from",
    )

    def __init__(
        self,
        index_end: int,
        data_end: int,
        *,
        options: StoreOptions,
        clock: Clock,
        pool: MemoryPool,
        counters: ShardCounters,
    ) -> None:
        """Begin empty behind the ends of the files."""
        self._options, self._clock, self._pool = options, clock, pool
        self._counters = counters
        #: Takes appends. While the write position is lent it lacks the last messages.
        self._main = MsgMemStore(index_end, data_end)
        #: The buffer that is written, until the files show its messages.
        self.flushing: MsgMemStore | None = None
        #: Bytes that were taken from the pool; it counts them.
        self.granted = 0
        #: True while files are put behind the shard's own: nothing may enter.
        self.held = False
        #: `add` fills main up to this data offset and this number of messages without checking its
        #: bounds, the pool and trouble again; -1 while the room is closed.
        self._room_end = self._room_count = -1
        #: The shard's number among the pending batches; -1 before it took part in any.
        self.number = -1
        self._pending: PendingBatches | None = None
        self._lent = False
        self._journal_from = self._journal_to = -1
        self._journal_generation: int | None = None
        self._barred_generation: int | None = None
        self._ring: Ring | None = None
        self._ring_owner: RingShard | None = None
        self._ring_shard = b""
        #: The ring position behind the last frame.
        self.ring_end = 0
        #: Data offsets of the messages that have frames; -1: none has.
        self.ring_from = self._ring_to = -1

    # -- the write position ------------------------------------------------------------------

    @property
    def main(self) -> MsgMemStore:
        """The buffer that takes appends, with the write position brought back."""
        return self.bring_back() if self._lent else self._main

    def bring_back(self, parts: Parts | None = None) -> MsgMemStore:
        """Take a lent write position back with all messages behind it; returns main.

        `parts`: these messages, if the journal has gathered them already.
        """
        if self._lent:
            assert self._pending is not None
            parts = self._pending.take_back(self.number, parts)
            self._lent = False
            self.granted += len(parts.records)
            if parts.messages:
                self._main.add_block(*parts)
            self._journal_to = self._main.data_end
        return self._main

    def restart(self, index_end: int, data_end: int) -> None:
        """Begin anew behind files that were adopted or cut; both buffers are empty."""
        assert self.main.count == 0, "messages are in memory"
        assert self.flushing is None, "messages are being flushed"
        self._main = MsgMemStore(index_end, data_end)
        self._journal_to = -1
        self.ring_from = self._ring_to = -1
        self.close_room()

    # -- room --------------------------------------------------------------------------------

    def add(self, header: bytes, payload: bytes) -> int:
        """Append one message within the open room; returns its offset, -1 without room."""
        # `main.add`, written out: it is half of the cost of an append.
        main = self._main
        data_end = main.data_end + HEADER_SIZE + len(payload)
        count = main.count
        if data_end > self._room_end or count >= self._room_count:
            return -1
        main.parts += (header, payload)
        main.data_end = data_end
        main.count = count + 1
        return main.index_start + ENTRY_SIZE * count

    def fits(self, size: int, count: int) -> bool:
        """True if main takes `count` messages of `size` bytes; takes memory for them."""
        if self.held:
            return False
        main, options, flushing = self.main, self._options, self.flushing
        if not main.has_room(size, count, options.mem_store_size_bytes, options.mem_store_messages):
            return False
        wanted = main.size_bytes + size + (flushing.size_bytes if flushing else 0)
        if wanted <= self.granted:
            return True
        # Small steps first: ten thousand shards of one message each share the pool as well.
        step = max(min(_GRANT_BYTES, self.granted), _GRANT_BYTES_MIN, wanted - self.granted)
        return self._pool.take(step, self)

    def open_room(self) -> MsgMemStore:
        """Let `add` fill main up to its bounds and the granted memory; returns main."""
        options, main = self._options, self.main
        if main.count == 0:
            main.first_time = self._clock.monotonic()
            if self._ring is not None:
                main.ring_start = self._ring.end
        room = min(options.mem_store_size_bytes - main.size_bytes, self.granted - self._size_bytes)
        self._room_end = main.data_end + room
        self._room_count = options.mem_store_messages
        return main

    def close_room(self) -> None:
        """Force the next append and the next journalled batch onto the slow path."""
        self.bring_back()
        self._room_end = self._room_count = -1

    # -- flush -------------------------------------------------------------------------------

    @property
    def is_flushing(self) -> bool:
        """True while a buffer is being written, or waits for another try."""
        return self.flushing is not None

    @property
    def can_swap(self) -> bool:
        """True if main has messages and the other buffer is empty."""
        return self.flushing is None and self.main.count > 0

    def swap(self) -> MsgMemStore:
        """Let the buffers change places; returns the one to write."""
        assert self.flushing is None
        return self._swap(self.main)

    def _swap(self, full: MsgMemStore) -> MsgMemStore:
        empty = MsgMemStore(full.index_end, full.data_end)
        # Without a call: see `MsgMemStore.add`.
        self.flushing, self._main = full, empty
        self._room_end = self._room_count = -1
        self._counters.swaps += 1
        return full

    def begin_flush(self) -> MsgMemStore:
        """Return the buffer to write: the one of an earlier try, else main, swapped."""
        return self.swap() if self.flushing is None else self.flushing

    def begin_flush_of(self, header: bytes, payload: bytes) -> MsgMemStore | None:
        """Append one message and begin its flush if both buffers are empty, else None.

        Without reading the clock: see `flush_failed`.
        """
        one = self.main
        if self.flushing is not None or one.count:
            return None
        one.add(header, payload)
        return self._swap(one)

    def flush_failed(self) -> None:
        """Note that the message of `begin_flush_of` waits from now on, if it is there."""
        first = self.flushing or self._main
        if first.count and not first.first_time:
            first.first_time = self._clock.monotonic()

    def end_flush(self) -> None:
        """Drop the written buffer, and give back memory that main does not need."""
        self.flushing = None
        if not self.granted:
            return
        keep = -(-self._main.size_bytes // _GRANT_BYTES_MIN) * _GRANT_BYTES_MIN
        if self.granted > keep:
            self._room_end = self._room_count = -1
            self._pool.give_back(self.granted - keep, self)

    def release(self) -> None:
        """Give all memory back to the pool; the shard takes no more appends."""
        self._pool.give_back(self.granted, self)

    # -- what is in memory -------------------------------------------------------------------

    @property
    def start(self) -> tuple[int, int]:
        """Index and data offset of the first message in memory: where the files end."""
        first = self.flushing or self._main
        return first.index_start, first.data_start

    @property
    def _size_bytes(self) -> int:
        """Bytes of records in both buffers."""
        flushing = self.flushing
        return self._main.size_bytes + (flushing.size_bytes if flushing else 0)

    @property
    def dirty_bytes(self) -> int:
        """Bytes that are in no file: in both buffers, and behind a lent write position."""
        size = self._size_bytes
        if not self._lent or self._pending is None:
            return size
        # Without a lock: if the position was brought back meanwhile, main is as it was.
        return size + max(0, self._pending.data_end(self.number) - self._main.data_end)

    @property
    def dirty_since(self) -> float:
        """When the first unwritten message came (monotonic seconds), else now."""
        return (self.flushing or self._main).first_time or self._clock.monotonic()

    def has_unwritten(self) -> bool:
        """True if the files lack messages of the buffers or of pending batches."""
        return self._lent or self.dirty_bytes > 0

    def placed(self) -> tuple[Placed, ...]:
        """Return all messages of both buffers, encoded, in the order of their offsets."""
        flushing = self.flushing.batches() if self.flushing else ()
        return flushing + self.main.batches()

    # -- the ring ----------------------------------------------------------------------------

    def use_ring(self, ring: Ring, shard: RingShard, topic_id: int, store_id: int) -> None:
        """Let messages enter the ring journal, too."""
        self._ring, self._ring_owner = ring, shard
        self._ring_shard = shard_of(topic_id, store_id)

    def enter_ring(self, written_end: int) -> bool:
        """Prepare for `add_in_ring`; False if messages before the next one are in no frame or file.

        `written_end`: where the data in the files ends.
        """
        end = self.main.data_end
        if end != self._ring_to:
            if end != written_end:
                return False
            self.ring_from = self._ring_to = end
        return True

    def add_in_ring(self, header: bytes, payload: bytes) -> int:
        """Write a message's frame and append it within the open room; returns its offset.

        -1 without room here or in the ring, and where `enter_ring` has to be called. It is done
        whole or not at all, wherever it is interrupted.
        """
        main = self._main
        start, count = main.data_end, main.count
        size = HEADER_SIZE + len(payload)
        data_end = start + size
        if data_end > self._room_end or count >= self._room_count or start != self._ring_to:
            return -1
        ring, owner = self._ring, self._ring_owner
        assert ring is not None and owner is not None  # noqa: PT018
        offset = main.index_start + ENTRY_SIZE * count
        parts, join = main.parts, b"".join
        known = len(parts)
        with ring.lock:
            position, segment = ring.end, ring.current
            end = position + HEAD_SIZE + size
            if end > ring.room_end or segment is None:
                return -1
            # Each time: the same object may have been emptied and begun again since.
            segment.shards[owner] = None
            try:
                # `message_frame`, written out: a call less for each append.
                place = place_of(size, position, offset, start)
                head = join((ring.front, self._ring_shard, place, header))
                segment.push(join((digest_of(head), head, payload)))
                parts += (header, payload)
                main.data_end = self._ring_to = data_end
                main.count = count + 1
                ring.end = end
            except BaseException as error:
                del parts[known:]
                main.data_end = self._ring_to = start
                main.count = count
                ring.end = position
                ring.take_back(segment, position, error)
                if isinstance(error, OSError):
                    return -1
                raise
        self.ring_end = end
        return offset

    @property
    def ring_place(self) -> int:
        """A ring position behind all frames so far; under the append lock."""
        return self._ring.end if self._ring is not None else self.ring_end

    @property
    def has_frames(self) -> bool:
        """True if a message in memory has a frame."""
        return self._ring_to > self.start[1]

    def has_frames_below(self, position: int) -> bool:
        """True if a message in memory may have a frame below a ring position."""
        first = self.flushing or self._main
        return first.count > 0 and first.ring_start < position

    # -- the journal -------------------------------------------------------------------------

    @property
    def journal_from(self) -> int:
        """Data offset of the first journalled message; -1 if there was none."""
        return self._journal_from

    def lend(self, pending: PendingBatches, generation: int, written_end: int) -> bool:
        """Lend the write position to the pending batches; False if it has to stay.

        `written_end`: where the data in the files ends. The position stays while the shard is
        held, while main is full, in a barred generation, and behind messages that are in neither
        a file nor the journal: a level promised for a message covers all messages before it.
        """
        if self._lent:
            return True
        if self.held or generation == self._barred_generation:
            return False
        main, options = self._main, self._options
        if (
            main.size_bytes >= options.mem_store_size_bytes
            or main.count >= options.mem_store_messages
        ):
            return False
        data_end = main.data_end
        continues = self._journal_to == data_end and self._journal_generation == generation
        if written_end != data_end and not (continues and self._journal_from <= written_end):
            return False
        if main.count == 0:
            main.first_time = self._clock.monotonic()
        if not continues:
            self._journal_from, self._journal_generation = data_end, generation
        self._journal_to = data_end
        self.close_room()
        self.number = pending.lend(self.number, main.index_end, data_end, self._journal_from)
        self._pending, self._lent = pending, True
        return True

    def bar_generation(self, generation: int) -> None:
        """Never lend to a generation: its frames of this shard have a gap."""
        self._barred_generation = generation

    def leave_journal(self) -> None:
        """Record that the last messages are in no frame: writing it failed.

        Messages of earlier frames stay journalled until they are in the files.
        """
        self.bring_back()
        self._journal_to = -1

    def abandon(self) -> None:
        """Forget a lent write position: in a forked child nothing is shown or written."""
        self._lent = False

    # -- proof -------------------------------------------------------------------------------

    def check_invariants(self) -> None:
        """Raise AssertionError if the fields contradict each other; for tests."""
        main, flushing, options = self._main, self.flushing, self._options
        main.check_invariants()
        if flushing is not None:
            flushing.check_invariants()
            assert flushing.count, "an empty buffer is being flushed"
            assert flushing.index_end == main.index_start, "a gap between the buffers' offsets"
            assert flushing.data_end == main.data_start, "a gap between the buffers' data"
        assert 0 <= self.granted <= self._pool.used, "more memory than was taken from the pool"
        if self._room_end >= 0:
            assert not self.held, "appends may enter a held shard"
            assert not self._lent, "appends may enter behind a lent write position"
            assert self._room_count == options.mem_store_messages, "the room is half open"
            end = main.data_start + options.mem_store_size_bytes
            assert self._room_end <= end, "room beyond the buffer's size"
            room = self._room_end - main.data_end
            assert room <= max(0, self.granted - self._size_bytes), "room without memory for it"
        else:
            assert self._room_end == self._room_count == -1, "the room is half closed"
        if self._lent:
            assert self._pending is not None, "lent to no journal"
            assert self._pending.lent(np.array([self.number]))[0], "the journal has not borrowed it"
            assert self._journal_to == main.data_end, "messages behind a lent write position"
            assert not self.held, "a held shard has lent its write position"
        if self._journal_to >= 0:
            assert self._journal_from <= self._journal_to, "the journal ends before it begins"
            assert self._journal_to <= main.data_end, "journalled messages that were not taken"
