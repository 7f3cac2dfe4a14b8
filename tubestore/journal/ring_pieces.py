"""The messages in the bytes of one segment that were read together.

Few are taken one by one; many in columns, which costs as much as some ten. Both give the same.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sized
from typing import Any, NamedTuple

import numpy as np

from tubestore.core import kernels
from tubestore.core.vfs import VfsFile
from tubestore.journal.ring_frames import (
    HEAD_SIZE,
    RingFrame,
    Start,
    frame_at,
    frames_behind,
    heads_from,
    message_in,
    messages_in,
    rows_of,
    size_at,
)
from tubestore.journal.root_journal import JournalPart
from tubestore.record.records import ENTRY_SIZE, HEADER_SIZE, join_records, records_of

Array = np.ndarray[Any, Any]
#: A piece that goes on has so many bytes at most, unless a frame has more.
_LONG_BYTES = 1 << 20
#: Up to so many frames are taken one by one; more in columns.
_FEW = 12


class LastSegment(NamedTuple):
    """The segment that takes frames, as it was when it was read."""

    path: str
    #: The bytes of its START: the same as long as it was not used again.
    front: bytes
    start: Start


class LeftSegment(NamedTuple):
    """A segment that was found: by its START, or by its frames if that is damaged."""

    file: VfsFile
    start: Start
    #: Bytes that are there of `segment_size`.
    size: int
    #: Those of its START, empty if that is damaged.
    front: bytes = b""

    def as_last(self) -> LastSegment | None:
        """Return it as the segment that takes frames; None if its START is damaged."""
        return LastSegment(self.file.path, self.front, self.start) if self.front else None


class Uncounted(NamedTuple):
    """Bytes of a segment without a frame that counts."""

    segment: LeftSegment
    at: int
    end: int
    reason: str
    #: How many runs of messages were taken before it.
    taken: int


class ShardRun(NamedTuple):
    """Messages of a shard that follow each other without a gap, or the place of a lost one."""

    topic_id: int
    store_id: int
    #: Without the shard's name, which the topic has once all was read.
    part: JournalPart


class Messages(NamedTuple):
    """Messages of a piece that follow each other."""

    #: The place behind them.
    end: int
    #: The highest ring position below which everything was synced, by their heads.
    synced: int
    #: Those of the chosen shards.
    runs: Iterable[ShardRun]


class RingPiece:
    """Bytes of a segment that were read together."""

    def __init__(self, segment: LeftSegment, low: int, size: int = 0) -> None:
        """Read from a place on: `size` bytes if there are so many, or for 0 all that follows."""
        self._segment, self._low = segment, low
        rest = max(0, segment.size - low)
        self._size = min(size, rest) if size else rest
        self._goes_on = self._size < rest
        #: Ring position of the first byte.
        self.base = segment.start.base + low
        self.data = b""
        self.read_again()

    def read_again(self) -> None:
        """Read the same bytes once more."""
        self.data = self._segment.file.pread(self._size, self._low)

    def sound(self, at: int) -> RingFrame | None:
        """Return the frame at a place, if it counts."""
        frame = frame_at(self.data, at)
        if frame is None or frame.position != self.base + at:
            return None
        return frame if frame.generation == self._segment.start.generation else None

    def messages(
        self,
        at: int,
        verified: Collection[tuple[int, int]] | None,
        chosen: Collection[tuple[int, int]] | None,
        damaged: int,
    ) -> Messages | None:
        """Return the messages from a place on that count; None if none follows there.

        `verified`: the shards of which records are verified, None for all; `chosen`: those of which
        messages are returned. `damaged`: see `JournalPart`.
        """
        found = heads_from(self.data, at)
        take = self._few if len(found) <= _FEW else self._many
        return take(found, verified, chosen, damaged) if found else None

    def _few(
        self,
        found: list[int],
        verified: Collection[tuple[int, int]] | None,
        chosen: Collection[tuple[int, int]] | None,
        damaged: int,
    ) -> Messages | None:
        generation = self._segment.start.generation
        heads: list[RingFrame] = []
        runs: dict[tuple[int, int, int, int], list[RingFrame]] = {}
        for at in found:
            head = message_in(self.data, at, self.base, generation, verified)
            if head is None:
                break
            heads.append(head)
            shard = head.topic_id, head.store_id
            if chosen is None or shard in chosen:
                run = runs.pop((*shard, head.index_start, head.data_start), [])
                following = head.index_start + ENTRY_SIZE, head.data_start + head.size
                runs[*shard, *following] = [*run, head]
        if not heads:
            return None
        taken = [self._run(run, damaged) for run in runs.values()]
        return Messages(heads[-1].end - self.base, max(head.synced for head in heads), taken)

    def _run(self, heads: list[RingFrame], damaged: int) -> ShardRun:
        """Return messages of a shard that follow each other without a gap."""
        first, parts = heads[0], []
        for head in heads:
            start = head.position - self.base + HEAD_SIZE
            parts.append(self.data[start : start + HEADER_SIZE])
            parts.append(self.data[start + HEADER_SIZE : start + head.size])
        place = first.index_start, first.data_start
        batch = join_records(parts, *place)
        part = JournalPart(
            "",
            *place,
            batch.entries,
            batch.data.tobytes(),
            damaged_before=damaged,
            ring_end=heads[-1].end,
        )
        return ShardRun(first.topic_id, first.store_id, part)

    def _many(
        self,
        found: list[int],
        verified: Collection[tuple[int, int]] | None,
        chosen: Collection[tuple[int, int]] | None,
        damaged: int,
    ) -> Messages | None:
        generation = self._segment.start.generation
        starts, heads, records = messages_in(self.data, found, self.base, generation, verified)
        if not len(starts):
            return None
        end = int(starts[-1]) + HEAD_SIZE + int(heads["size"][-1])
        synced = int(heads["synced"].max())
        if chosen is not None:
            rows = np.flatnonzero(rows_of(heads, chosen))
            starts, heads, records = starts[rows], heads[rows], records[rows]
        return Messages(end, synced, _runs(self.data, starts, heads, records, damaged))

    def behind(self, at: int) -> Iterator[int]:
        """Go through the places behind `at` with a frame that counts."""
        return frames_behind(self.data, at, self.base, self._segment.start.generation)

    def is_cut(self, at: int) -> bool:
        """True if the piece ends before the frame that may be at a place."""
        return self._goes_on and self._end_of(at) > self._size

    def following(self, at: int) -> RingPiece:
        """Read on from a place at which the piece `is_cut`."""
        size = max(self._end_of(at) - at, min(2 * self._size, _LONG_BYTES))
        return RingPiece(self._segment, self._low + at, size)

    def _end_of(self, at: int) -> int:
        size = size_at(self.data, at)
        return at + HEAD_SIZE if size is None else at + HEAD_SIZE + size

    def stretch(self, at: int, end: int, reason: str, taken: Sized) -> Uncounted:
        """Return bytes of the piece as a stretch without a frame that counts."""
        return Uncounted(self._segment, self._low + at, self._low + end, reason, len(taken))


def _runs(
    data: bytes, starts: Array, heads: Array, records: Array, damaged: int
) -> Iterator[ShardRun]:
    """Group frames by shard, each group by messages without a gap; see `messages_in`.

    The records are copied: the bytes of a segment are not kept.
    """
    if not len(starts):
        return
    order = np.lexsort((heads["store_id"], heads["topic_id"]))
    heads, records = kernels.rows_at(heads, order), kernels.rows_at(records, order)
    sizes = heads["size"].astype(np.int64)
    batch = records_of(records, np.frombuffer(bytearray(data), np.uint8))
    batch.starts = starts[order] + HEAD_SIZE
    batch.place_each(heads["index_start"], heads["data_start"])
    view = batch.data.data
    lows, highs = batch.starts.tolist(), (batch.starts + sizes).tolist()
    begins = np.ones(len(order), bool)
    before, after = heads[:-1], heads[1:]
    begins[1:] = (after["topic_id"] != before["topic_id"]) | (
        after["store_id"] != before["store_id"]
    )
    begins[1:] |= after["index_start"] != before["index_start"] + ENTRY_SIZE
    begins[1:] |= after["data_start"] != before["data_start"] + sizes[:-1]
    firsts = np.flatnonzero(begins)
    ends = [*firsts[1:].tolist(), len(order)]
    ring_ends = (heads["position"] + HEAD_SIZE + sizes).tolist()
    shards = zip(
        heads["topic_id"][firsts].tolist(), heads["store_id"][firsts].tolist(), strict=True
    )
    places = zip(
        heads["index_start"][firsts].tolist(), heads["data_start"][firsts].tolist(), strict=True
    )
    for shard, place, first, end in zip(shards, places, firsts.tolist(), ends, strict=True):
        part = JournalPart(
            "",
            *place,
            batch.entries[first:end],
            b"".join([view[a:b] for a, b in zip(lows[first:end], highs[first:end], strict=True)]),
            damaged_before=damaged,
            ring_end=ring_ends[end - 1],
        )
        yield ShardRun(*shard, part)
