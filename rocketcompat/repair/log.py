"""Records in place of damaged ones, so that a log is one chain again.

RocketMQ ends its log at the first bad record and drops everything behind it. So the bytes of a
damaged region are replaced by sound records of the same length in all:

- for each message that is known to have been there a *stand-in*: same topic, queue and number, same
  properties and times as far as they are known, no body, and the property `TUBESTORE_DAMAGED` for
  consumers of a broker (a record too short for the property has zeros as its body). The message is
  known from its queue's unit, from the hole in its queue's numbers, or from its own head where that
  is legible. Numbers stay without a hole;
- for the rest *fillers*: rolled back transactions, which no broker puts in a queue or an index; a
  blank at a file's end.

Both have `LOST_MARK` in their heads, by which reads give them the state "lost".

Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from rocketcompat.formats import (
    BLANK,
    BODY_CRC_MASK,
    HOST_V4_SIZE,
    LOST_MARK,
    MAGIC_BLANK,
    MAGIC_V1,
    MESSAGE_HEAD,
    PROPERTIES_LENGTH_SIZE,
    PROPERTIES_SIZE_MAX,
    TOPIC_LENGTH_SIZE,
    TOPIC_SIZE_MAX,
    TRANSACTION_ROLLBACK,
    encode_properties,
)
from rocketcompat.messages import MessageRecord
from rocketcompat.record.codec import pack
from tubestore.core.kernels import crc32

PROPERTY_DAMAGED = "TUBESTORE_DAMAGED"
#: The topic of fillers; they are rolled back, so none is ever in a queue.
FILLER_TOPIC = "_"
_OVERHEAD = MESSAGE_HEAD.size + TOPIC_LENGTH_SIZE[MAGIC_V1] + PROPERTIES_LENGTH_SIZE
FILLER_LEAST = _OVERHEAD + len(FILLER_TOPIC)
_FILLER_MOST = 1 << 20


@dataclass(frozen=True, slots=True)
class LostMessage:
    """A message of a damaged region; `physical_offset` is None if its place is not known."""

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int | None = None
    born_timestamp: int | None = None
    store_timestamp: int | None = None
    flag: int = 0
    reconsume_times: int = 0
    properties: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Neighbour:
    """The fields of the record before a region that its stand-ins take over."""

    store_timestamp: int = 0
    store_host: bytes = bytes(HOST_V4_SIZE)


@dataclass(frozen=True, slots=True)
class Mended:
    """Bytes for a region, as patches by physical offset, and the messages that they replace."""

    patches: tuple[tuple[int, bytes], ...]
    stand_ins: tuple[LostMessage, ...]
    #: Known messages that found no room.
    without_room: tuple[LostMessage, ...]


def mend(
    start: int, end: int, file_end: int, lost: Sequence[LostMessage], before: Neighbour
) -> Mended | None:
    """Fill the part [start, end) of one file, which ends at `file_end`; None if nothing fits.

    All are physical offsets; `lost` are the messages that were there.
    """
    placed = {m.physical_offset: m for m in lost if m.physical_offset is not None}
    waiting = [m for m in lost if m.physical_offset is None]
    patches: list[tuple[int, bytes]] = []
    written: list[LostMessage] = []
    for low, high in _cells(start, end, sorted(placed)):
        inside = [placed[o] for o in sorted(placed) if low <= o < high]
        position, used = _stand_ins(low, high, [*inside, *waiting], before, patches)
        written += used
        waiting = [m for m in (*inside, *waiting) if m not in used]
        if position == high:
            continue
        if high == file_end:
            blank = BLANK.pack(total_size=high - position, magic_code=MAGIC_BLANK)
            patches.append((position, blank))
        elif high - position >= FILLER_LEAST:
            patches += _fillers(position, high, before)
        else:
            return None
    return Mended(tuple(patches), tuple(written), tuple(waiting))


def _cells(start: int, end: int, offsets: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Cut a region where messages began; a part that is too short belongs to the one before."""
    borders = [start, *(o for o in offsets if start < o < end), end]
    low = borders[0]
    for place, border in enumerate(borders[1:], 1):
        last = place == len(borders) - 1
        following = 0 if last else borders[place + 1] - border
        if border - low >= FILLER_LEAST and (last or following >= FILLER_LEAST):
            yield low, border
            low = border
    if low < end:
        yield low, end


def _stand_ins(
    low: int, high: int, messages: Sequence[LostMessage], before: Neighbour,
    patches: list[tuple[int, bytes]],
) -> tuple[int, list[LostMessage]]:  # fmt: skip
    """Put stand-ins from `low` on, as many as fit; returns where they end, and which."""
    used: list[LostMessage] = []
    for message in messages:
        raw = _stand_in(message, low, high - low, before)
        if raw is not None:
            patches.append((low, raw))
            low += len(raw)
            used.append(message)
    return low, used


def _stand_in(
    message: LostMessage, physical_offset: int, room: int, before: Neighbour
) -> bytes | None:
    """Return a record that fits into `room` bytes and leaves none, or room for a filler."""
    if len(message.topic.encode()) > TOPIC_SIZE_MAX:
        return None
    for properties in ({**message.properties, PROPERTY_DAMAGED: "1"}, {PROPERTY_DAMAGED: "1"}, {}):
        text = encode_properties(properties, trailing_separator=False)
        size = _OVERHEAD + len(message.topic.encode()) + len(text.encode())
        if size > room or len(text.encode()) > PROPERTIES_SIZE_MAX:
            continue
        left, body = room - size, b""
        if 0 < left < FILLER_LEAST and properties:
            text += "1" * left  # the value of the last property is longer then
        elif 0 < left < FILLER_LEAST:
            body = bytes(left)  # no room for the shortest property
        return _record(message, physical_offset, text, before, body=body)
    return None


def _record(
    message: LostMessage, physical_offset: int, properties: str, before: Neighbour,
    *, sys_flag: int = 0, body: bytes = b"",
) -> bytes:  # fmt: skip
    stored = message.store_timestamp
    stored = before.store_timestamp if stored is None else stored
    size = _OVERHEAD + len(body) + len(message.topic.encode()) + len(properties.encode())
    return pack(
        MessageRecord(
            physical_offset=physical_offset,
            size=size,
            version=1,
            topic=message.topic,
            queue_id=message.queue_id,
            queue_offset=message.queue_offset,
            flag=message.flag,
            sys_flag=sys_flag,
            born_timestamp=stored if message.born_timestamp is None else message.born_timestamp,
            store_timestamp=stored,
            born_host_bytes=before.store_host,
            store_host_bytes=before.store_host,
            reconsume_times=message.reconsume_times,
            prepared_transaction_offset=LOST_MARK,
            body_crc=crc32(body) & BODY_CRC_MASK if body else 0,
            properties_text=properties,
            body=body,
        )
    )


def _fillers(low: int, high: int, before: Neighbour) -> Iterator[tuple[int, bytes]]:
    """Yield records that fill [low, high) and mean nothing."""
    nothing = LostMessage(FILLER_TOPIC, 0, 0)
    while low < high:
        left = high - low
        size = left if left <= _FILLER_MOST else _FILLER_MOST
        if 0 < left - size < FILLER_LEAST:
            size -= FILLER_LEAST
        body = bytes(size - FILLER_LEAST)
        yield low, _record(nothing, low, "", before, sys_flag=TRANSACTION_ROLLBACK, body=body)
        low += size
