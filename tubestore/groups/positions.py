"""The positions of a group: where it goes on in each partition; and the frames that record them.

A position is the offset of the next message to be read. Positions change by frames; a frame holds
the new positions of some partitions, or, as a snapshot, of all. Numbers are big-endian:

    header   FRAME (below): magic, kind, length of the body, sequence, time, digest
    body     for each topic: TOPIC (below), its name in UTF-8, partition ids (4 bytes each),
             positions (8 bytes each; -1: the partition has no position any more);
             of a frame with output the size of that comes first, and the output last

The digest is the xxh3_64 of the frame's other bytes. The header has a digest of its own: it
distinguishes a frame that was not written to its end from damage. Sequences rise by one from frame
to frame; a snapshot repeats the sequence of the last frame that it contains. `topic id`
distinguishes a topic from a deleted one of the same name: positions there mean nothing any more.

No I/O here.

>>> frame = Frame(CHANGE, 1, 1000, {"logs": PositionRows(7, np.array([3]), np.array([280]))})
>>> [item.frame == frame for item in frames_in(encode_frame(frame))]
[True]
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import xxhash

from tubestore.core.layout import Buffer, Field, Layout
from tubestore.errors import InvalidMessage

Array = np.ndarray[Any, Any]

#: `kind` of a frame: positions of some partitions, or of all; positions with output
#: (`outputs.py`); all output up to here is in its topics.
CHANGE, SNAPSHOT, OUTPUT, COMPLETE = 1, 2, 3, 4
_MAGIC = 0x54475031  # "TGP1"
FRAME = Layout(
    "PositionsFrame",
    40,
    (
        Field("magic", "i4", '`0x54475031`, "TGP1".'),
        Field(
            "kind",
            "i4",
            "1, 3: positions of some partitions, without and with output; 2: a snapshot, of all;"
            " 4: the output before it is in its topics.",
        ),
        Field("length", "i4", "Bytes of the body."),
        Field("sequence", "i8", "Rises by one a frame; a snapshot has that of the frame before."),
        Field("time", "i8", "When it was committed, ms since the epoch."),
        Field("head_digest", "b4", "xxh32 of the 28 bytes before."),
        Field("digest", "b8", "xxh3_64 of the 32 bytes before and of the body."),
    ),
)
TOPIC = Layout(
    "PositionsTopic",
    14,
    (
        Field("name_size", "i2", "Bytes of the topic's name."),
        Field("count", "i4", "Partitions."),
        Field("topic_id", "i8", "The topic's `id` in `topics.json`; 0 if it has none."),
    ),
)
OUTPUT_SIZES = Layout(
    "PositionsOutput",
    4,
    (Field("positions_size", "i4", "Bytes of the topics that follow; the rest is the output."),),
)
_HEAD = FRAME.position("head_digest")
_DIGESTED = FRAME.position("digest")
_MAGIC_BYTES = _MAGIC.to_bytes(4, "big")
_LENGTH_MAX = (1 << 31) - 1


class PositionRows(NamedTuple):
    """Positions of one topic: ids and offsets side by side."""

    topic_id: int
    ids: Array
    offsets: Array


class Frame:
    """Positions that were recorded together, perhaps with output."""

    __slots__ = ("kind", "output", "rows", "sequence", "time_ms")

    def __init__(
        self,
        kind: int,
        sequence: int,
        time_ms: int,
        rows: Mapping[str, PositionRows],
        output: Buffer = b"",
    ) -> None:
        self.kind, self.sequence, self.time_ms, self.rows = kind, sequence, time_ms, rows
        self.output = output

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Frame) and encode_frame(self) == encode_frame(other)

    __hash__ = None  # type: ignore[assignment]


class LogStretch(NamedTuple):
    """A stretch of a log: a frame, or damage with its reason; `torn` damage ends the log."""

    start: int
    end: int
    frame: Frame | None
    reason: str = ""
    torn: bool = False


def encode_frame(frame: Frame) -> bytes:
    """Return the bytes of a frame; InvalidMessage if it is larger than one can be."""
    return front_of(frame) + bytes(frame.output)


def front_of(frame: Frame) -> bytes:
    """Return the bytes of a frame but its output, which comes last."""
    parts = []
    for topic, rows in frame.rows.items():
        name = topic.encode()
        parts += [
            TOPIC.struct.pack(len(name), len(rows.ids), rows.topic_id),
            name,
            np.asarray(rows.ids).astype(">i4").tobytes(),
            np.asarray(rows.offsets).astype(">i8").tobytes(),
        ]
    body = b"".join(parts)
    if frame.kind == OUTPUT:
        body = OUTPUT_SIZES.pack(positions_size=len(body)) + body
    length = len(body) + len(frame.output)
    if length > _LENGTH_MAX:
        raise InvalidMessage(
            f"{length} bytes of positions and output: at most {_LENGTH_MAX} at once"
        )
    head = FRAME.pack(
        magic=_MAGIC,
        kind=frame.kind,
        length=length,
        sequence=frame.sequence,
        time=frame.time_ms,
        head_digest=bytes(4),
        digest=bytes(8),
    )[:_HEAD]
    head += xxhash.xxh32_digest(head)
    return head + _digest(head, body, frame.output) + body


def _digest(*parts: Buffer) -> bytes:
    digest = xxhash.xxh3_64()
    for part in parts:
        digest.update(part)
    return digest.digest()


def frames_in(data: bytes, start: int = 0) -> Iterator[LogStretch]:
    """Go through the frames of a log, and the damage between them.

    A frame at the end of which only the first bytes are there is torn: its write did not end.
    """
    view = memoryview(data)
    at = start
    while at < len(data):
        frame, end = _frame_at(view, at)
        if frame is not None:
            yield LogStretch(at, end, frame)
            at = end
            continue
        following = _next_frame(data, view, at + 1)
        if following < 0:
            torn = _is_unfinished(view[at:])
            yield LogStretch(at, len(data), None, "a frame does not match its digest", torn)
            return
        yield LogStretch(at, following, None, "a frame does not match its digest")
        at = following


def _is_unfinished(rest: memoryview) -> bool:
    """True if these last bytes of a log are the beginning of a frame."""
    if len(rest) < FRAME.size:
        return bytes(rest[:4]) == _MAGIC_BYTES[: len(rest)]
    head = FRAME.unpack_from(rest)
    sound = xxhash.xxh32_digest(rest[:_HEAD]) == head.head_digest
    return sound and FRAME.size + int(head.length) > len(rest)


def _next_frame(data: bytes, view: memoryview, at: int) -> int:
    """Return where the next sound frame begins, -1 without one."""
    while (at := data.find(_MAGIC_BYTES, at)) >= 0:
        if _frame_at(view, at)[0] is not None:
            return at
        at += 1
    return -1


def _frame_at(view: memoryview, at: int) -> tuple[Frame | None, int]:
    if len(view) - at < FRAME.size:
        return None, at
    head = FRAME.unpack_from(view, at)
    end = at + FRAME.size + head.length
    if head.magic != _MAGIC or head.length < 0 or end > len(view):
        return None, at
    body = view[at + FRAME.size : end]
    if _digest(view[at : at + _DIGESTED], body) != head.digest:
        return None, at
    output = b""
    if head.kind == OUTPUT:
        size = OUTPUT_SIZES.size + OUTPUT_SIZES.unpack_from(body).positions_size
        body, output = body[OUTPUT_SIZES.size : size], bytes(body[size:])
    return Frame(head.kind, head.sequence, head.time, _rows_in(body), output), end


def _rows_in(body: memoryview) -> dict[str, PositionRows]:
    found: dict[str, PositionRows] = {}
    at = 0
    while at < len(body):
        topic = TOPIC.unpack_from(body, at)
        at += TOPIC.size
        name = bytes(body[at : at + topic.name_size]).decode()
        at += topic.name_size
        ids = np.frombuffer(body, ">i4", topic.count, at).astype(np.int64)
        at += 4 * topic.count
        offsets = np.frombuffer(body, ">i8", topic.count, at).astype(np.int64)
        at += 8 * topic.count
        found[name] = PositionRows(topic.topic_id, ids, offsets)
    return found


class Positions:
    """The positions of one group as its frames give them; not thread-safe."""

    def __init__(self) -> None:
        #: The sequence and the time of the last frame; 0 before the first one.
        self.sequence, self.time_ms = 0, 0
        #: Frames with output that may not be in its topics yet, in their order.
        self.incomplete: list[Frame] = []
        self._topics: dict[str, tuple[int, dict[int, int]]] = {}

    def __len__(self) -> int:
        return sum(len(offsets) for _, offsets in self._topics.values())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Positions) and self._topics == other._topics

    __hash__ = None  # type: ignore[assignment]

    def topics(self) -> dict[str, dict[int, int]]:
        """Return all positions by topic and partition id."""
        return {topic: dict(offsets) for topic, (_, offsets) in sorted(self._topics.items())}

    def of(self, topic: str, topic_id: int = 0) -> Mapping[int, int]:
        """Return the positions of a topic by partition id; none of a deleted one of its name."""
        known, offsets = self._topics.get(topic, (0, {}))
        return {} if known and topic_id and known != topic_id else offsets

    def apply(self, frame: Frame) -> None:
        """Take over the positions of a frame; a frame that is not newer changes none."""
        if frame.kind == OUTPUT:
            if all(frame.sequence != each.sequence for each in self.incomplete):
                self.incomplete.append(frame)
        elif frame.kind == COMPLETE:
            self.incomplete = []
        if frame.kind == SNAPSHOT:
            if frame.sequence < self.sequence:
                return
            self._topics = {}
        elif frame.sequence <= self.sequence:
            return
        for topic, rows in frame.rows.items():
            known, offsets = self._topics.get(topic, (rows.topic_id, {}))
            if known and rows.topic_id and known != rows.topic_id:
                offsets = {}
            offsets.update(zip(rows.ids.tolist(), rows.offsets.tolist(), strict=True))
            if len(rows.offsets) and int(rows.offsets.min()) < 0:
                offsets = {number: at for number, at in offsets.items() if at >= 0}
            self._topics[topic] = rows.topic_id or known, offsets
        self.sequence, self.time_ms = frame.sequence, max(self.time_ms, frame.time_ms)

    def snapshot(self) -> Frame:
        """Return a frame with all positions."""
        rows = {
            topic: PositionRows(
                topic_id,
                np.fromiter(offsets.keys(), np.int64, len(offsets)),
                np.fromiter(offsets.values(), np.int64, len(offsets)),
            )
            for topic, (topic_id, offsets) in sorted(self._topics.items())
        }
        return Frame(SNAPSHOT, self.sequence, self.time_ms, rows)

    def change(
        self, time_ms: int, rows: Mapping[str, PositionRows], output: Buffer | None = None
    ) -> Frame:
        """Return the next frame, with new positions of some partitions, and perhaps output."""
        if output is None:
            return Frame(CHANGE, self.sequence + 1, time_ms, rows)
        return Frame(OUTPUT, self.sequence + 1, time_ms, rows, output)

    def complete(self) -> Frame:
        """Return the next frame, which records that no output is incomplete."""
        return Frame(COMPLETE, self.sequence + 1, self.time_ms, {})
