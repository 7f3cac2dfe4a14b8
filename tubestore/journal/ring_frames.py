"""Frames of the ring journal as bytes: made, found and verified. No file is touched here.

A frame is a `RING_FRAME` head and `size` bytes. The digest at its front covers the rest of the head
and, of what follows:

| kind    | follows                           | the digest covers | the rest is covered by |
| ------- | --------------------------------- | ----------------- | ---------------------- |
| START   | `RING_START`                      | all of it         |                        |
| MESSAGE | a record without its place        | its header        | the record's own CRC   |
| END     | nothing                           |                   |                        |

So one short digest is enough for a message, and a damaged payload leaves the frame's size and the
message's place known. The position in the ring and the generation are in each frame: what an
earlier lap left behind the last frame never counts.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
import xxhash

from tubestore.core import kernels
from tubestore.core.layout import Buffer
from tubestore.record.layouts import (
    CHECKSUM_MASK,
    DATA_HEADER,
    RECORD_SIZE_MAX,
    RING_FRAME,
    RING_MAGIC,
    RING_START,
    TOKEN_MESSAGE,
    record_size,
    record_sizes,
)
from tubestore.record.records import HEADER_SIZE, inspect

Array = np.ndarray[Any, Any]

HEAD_SIZE = RING_FRAME.size
#: Bytes of a segment's first frame.
START_SIZE = HEAD_SIZE + RING_START.size
#: No segment is shorter.
SEGMENT_BYTES_MIN = 512
_DIGEST_SIZE = 8
_SIZE, _SIZE_AT = struct.Struct(">i"), RING_FRAME.position("size")
_FRONT = struct.Struct(">i4sqq")
_SHARD = struct.Struct(">hhq")
_PLACE = struct.Struct(">iqqq")
_HEAD = RING_FRAME.struct
_MAGIC = RING_MAGIC.to_bytes(4, "big")
#: The digest of a head, and the part of it that differs from frame to frame: size, position, index
#: and data offset. `WriteBuffer.add_in_ring` makes frames of them, as `message_frame` does.
digest_of = xxhash.xxh3_64_digest
place_of = _PLACE.pack


class Kind(IntEnum):
    """What a frame is."""

    START = 0
    MESSAGE = 1
    END = 2


class RingFrame(NamedTuple):
    """The head of a frame with the right digest."""

    digest: bytes
    magic: int
    boot: bytes
    generation: int
    synced: int
    kind: int
    store_id: int
    topic_id: int
    size: int
    position: int
    index_start: int
    data_start: int

    @property
    def end(self) -> int:
        """The ring position behind the frame."""
        return self.position + HEAD_SIZE + self.size


class Start(NamedTuple):
    """The first frame of a segment."""

    boot: bytes
    generation: int
    synced: int
    #: The ring position at which the segment begins, and its bytes.
    base: int
    segment_size: int
    #: Ring position below which everything is in the shards' files.
    tail: int
    #: Ring position at which this opening began.
    begun: int
    #: As `tail`, for what this opening wrote: an earlier one may have left segments below it.
    own_tail: int
    #: Ring position below which everything was synced before this opening.
    left_synced: int
    #: Which store it is of, see `store_tag`.
    store: bytes


def boot_tag(boot_id: str) -> bytes:
    """Return what distinguishes a boot of the machine from others in each frame."""
    return digest_of(boot_id.encode())[:4]


def store_tag(uuid: str) -> bytes:
    """Return what distinguishes a store's segments from those of others."""
    return digest_of(uuid.encode())


def front_of(boot: bytes, generation: int, synced: int) -> bytes:
    """Return the part of a head that all frames of a while share."""
    return _FRONT.pack(RING_MAGIC, boot, generation, synced)


def shard_of(topic_id: int, store_id: int) -> bytes:
    """Return the part of a head that all messages of a shard share."""
    return _SHARD.pack(Kind.MESSAGE, store_id, topic_id)


def message_frame(
    front: bytes,
    shard: bytes,
    position: int,
    index_start: int,
    data_start: int,
    header: bytes,
    payload: bytes,
) -> bytes:
    """Return the frame of one message."""
    place = place_of(HEADER_SIZE + len(payload), position, index_start, data_start)
    head = b"".join((front, shard, place, header))
    return b"".join((digest_of(head), head, payload))


def end_frame(front: bytes, position: int) -> bytes:
    """Return the last frame of a segment."""
    head = b"".join((front, _SHARD.pack(Kind.END, 0, 0), place_of(0, position, 0, 0)))
    return digest_of(head) + head


def start_frame(start: Start) -> bytes:
    """Return the first frame of a segment."""
    body = RING_START.pack(
        segment_size=start.segment_size,
        tail=start.tail,
        begun=start.begun,
        own_tail=start.own_tail,
        left_synced=start.left_synced,
        store=start.store,
    )
    front = front_of(start.boot, start.generation, start.synced)
    place = place_of(len(body), start.base, 0, 0)
    head = b"".join((front, _SHARD.pack(Kind.START, 0, 0), place, body))
    return digest_of(head) + head


def frame_at(data: Buffer, at: int) -> RingFrame | None:
    """Return the frame with its head at a place of some bytes; None if its digest is wrong."""
    if at + HEAD_SIZE > len(data):
        return None
    frame = RingFrame._make(_HEAD.unpack_from(data, at))
    if frame.magic != RING_MAGIC or frame.size < 0 or at + HEAD_SIZE + frame.size > len(data):
        return None
    if frame.kind == Kind.START:
        covered = frame.size
    elif frame.kind == Kind.MESSAGE:
        covered = HEADER_SIZE
    elif frame.kind == Kind.END:
        covered = 0
    else:
        return None
    if covered > frame.size:
        return None
    head = memoryview(data)[at + _DIGEST_SIZE : at + HEAD_SIZE + covered]
    return frame if digest_of(head) == frame.digest else None


def heads_from(data: bytes, at: int) -> list[int]:
    """Return where frames of messages begin that follow each other from a place on, by their heads.

    The last one may be something else, or longer than what is there.
    """
    view, digest, size_of = memoryview(data), digest_of, _SIZE.unpack_from
    found, last = [], len(data) - HEAD_SIZE - HEADER_SIZE
    while at <= last:
        # The one step for each frame, and the CRC of its record; the rest is done in columns.
        if (
            digest(view[at + _DIGEST_SIZE : at + HEAD_SIZE + HEADER_SIZE])
            != view[at : at + _DIGEST_SIZE]
        ):
            break
        found.append(at)
        (size,) = size_of(data, at + _SIZE_AT)
        if size < HEADER_SIZE:
            break
        at += HEAD_SIZE + size
    return found


def message_in(
    data: bytes,
    at: int,
    base: int,
    generation: int,
    chosen: Collection[tuple[int, int]] | None = None,
) -> RingFrame | None:
    """Return the head of a frame that `heads_from` found; None unless it is a sound message.

    As `messages_in` for one frame: it costs a tenth of that.
    """
    frame = RingFrame._make(_HEAD.unpack_from(data, at))
    start, end = at + HEAD_SIZE, at + HEAD_SIZE + frame.size
    if (frame.magic, frame.kind) != (RING_MAGIC, Kind.MESSAGE):
        return None
    if (frame.position, frame.generation) != (base + at, generation):
        return None
    if not HEADER_SIZE < frame.size <= RECORD_SIZE_MAX or end > len(data):
        return None
    record = DATA_HEADER.unpack_from(data, start)
    if record.token != TOKEN_MESSAGE or record_size(record) != frame.size:
        return None
    if chosen is None or (frame.topic_id, frame.store_id) in chosen:
        payload = memoryview(data)[start + HEADER_SIZE : end]
        if kernels.crc32(payload) & CHECKSUM_MASK != record.checksum:
            return None
    return frame


def messages_in(
    data: bytes,
    found: list[int],
    base: int,
    generation: int,
    chosen: Collection[tuple[int, int]] | None = None,
) -> tuple[Array, Array, Array]:
    """Return the messages among frames that follow each other, up to the first unsound one.

    For each: where its frame begins, the head, the header of the record. `base` is the ring
    position of the first byte. `chosen`: the shards (topic id, store) of which records are
    verified; None for all.
    """
    starts, bytes_ = np.array(found, np.int64), kernels.bytes_of(data)
    heads = kernels.gather(bytes_, starts, RING_FRAME.dtype)
    records = kernels.gather(bytes_, starts + HEAD_SIZE, DATA_HEADER.dtype)
    sizes = heads["size"].astype(np.int64)
    ends = starts + HEAD_SIZE + sizes
    good = (heads["magic"] == RING_MAGIC) & (heads["kind"] == Kind.MESSAGE)
    good &= (heads["position"] == base + starts) & (heads["generation"] == generation)
    good &= (records["token"] == TOKEN_MESSAGE) & (record_sizes(records) == sizes)
    good &= (sizes > HEADER_SIZE) & (sizes <= RECORD_SIZE_MAX) & (ends <= len(data))
    count = _first_bad(good)
    rows = np.arange(count) if chosen is None else np.flatnonzero(rows_of(heads[:count], chosen))
    payloads = starts[rows] + HEAD_SIZE + HEADER_SIZE
    checksums = kernels.crc_each(data, payloads, ends[rows], CHECKSUM_MASK)
    bad = rows[checksums != records["checksum"][rows]]
    count = int(bad[0]) if len(bad) else count
    return starts[:count], heads[:count], records[:count]


def rows_of(heads: Array, shards: Collection[tuple[int, int]]) -> Array:
    """Return which heads are of some shards (topic id, store): a mask."""
    mask = np.zeros(len(heads), bool)
    for topic_id, store_id in shards:
        mask |= (heads["topic_id"] == topic_id) & (heads["store_id"] == store_id)
    return mask


def _first_bad(good: Array) -> int:
    return len(good) if good.all() else int(good.argmin())


def size_at(data: Buffer, at: int) -> int | None:
    """Return the bytes that may follow a head; None where there is no whole one."""
    if at + HEAD_SIZE > len(data):
        return None
    frame = RingFrame._make(_HEAD.unpack_from(data, at))
    return max(0, frame.size) if frame.magic == RING_MAGIC else 0


def start_in(data: Buffer) -> Start | None:
    """Return the first frame of a segment, given the segment's first bytes; None if it is bad."""
    frame = frame_at(data, 0)
    if frame is None or frame.kind != Kind.START or frame.size != RING_START.size:
        return None
    body = RING_START.unpack_from(data, HEAD_SIZE)
    return Start(
        frame.boot,
        frame.generation,
        frame.synced,
        frame.position,
        body.segment_size,
        body.tail,
        body.begun,
        body.own_tail,
        body.left_synced,
        body.store,
    )


def trouble_in(data: Buffer, at: int) -> str | None:
    """Return what is wrong with the record in a message's frame; None if nothing is."""
    start = at + HEAD_SIZE
    frame = RingFrame._make(_HEAD.unpack_from(data, at))
    return inspect(data, start, start + frame.size)[1]


def frames_behind(data: bytes, at: int, base: int, generation: int) -> Iterator[int]:
    """Go through the places behind `at` with a sound frame of a segment that begins at `base`."""
    magic_at = RING_FRAME.position("magic")
    found = data.find(_MAGIC, at + 1 + magic_at)
    while found >= 0:
        place = found - magic_at
        frame = frame_at(data, place)
        if frame is not None and (frame.position, frame.generation) == (base + place, generation):
            yield place
        found = data.find(_MAGIC, found + 1)


def latest_frame(data: bytes) -> tuple[int, RingFrame] | None:
    """Return the sound frame of the latest lap in a segment without a START: (where, frame)."""
    magic_at = RING_FRAME.position("magic")
    latest: tuple[int, RingFrame] | None = None
    found = data.find(_MAGIC, magic_at)
    while found >= 0:
        frame = frame_at(data, found - magic_at)
        if frame is not None and (latest is None or frame.position > latest[1].position):
            latest = found - magic_at, frame
        found = data.find(_MAGIC, found + 1)
    return latest
