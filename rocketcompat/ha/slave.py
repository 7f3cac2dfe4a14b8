"""The slave's side of a connection: bytes in, events and bytes out; no socket, no clock.

    side = SlaveSide(end=store_end, now=clock.monotonic())
    send(side.data_to_send(now))
    for event in side.receive(data, now):
        ...                     # write a Body, then side.stored(new_end)

The caller passes the time, in seconds. After a `Fault` nothing more comes: close the connection.

Always true:
- bodies follow each other without gap and overlap, from the end that the side was made with;
- a report never exceeds what `stored` got, and with `acknowledges=False` never the first report.
"""

from __future__ import annotations

from dataclasses import dataclass

from rocketcompat.ha.frames import (
    BODY_SIZE_MAX,
    FRAME_HEADER,
    HEARTBEAT_SECONDS,
    REPORT,
    SILENCE_SECONDS,
)
from rocketcompat.ha.states import SLAVE_MOVES, Move, State


@dataclass(frozen=True, slots=True)
class Body:
    """Bytes of the master's log at a physical offset; they may end anywhere in a record.

    The pieces are views of what was received: they are valid until the caller reuses its buffer.
    """

    offset: int
    pieces: tuple[memoryview, ...]

    @property
    def data(self) -> bytes | memoryview:
        """The bytes as one piece."""
        return self.pieces[0] if len(self.pieces) == 1 else b"".join(self.pieces)


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """An empty frame. To an empty slave it gives the offset at which its log begins."""

    offset: int


@dataclass(frozen=True, slots=True)
class Fault:
    """Why the connection has to be closed."""

    reason: str


Event = Body | Heartbeat | Fault


class SlaveSide:
    """One connection of a slave with its log's end at `end`.

    With `acknowledges=False` every report repeats the first one: the master releases no put that
    waits for a slave.
    """

    def __init__(
        self, end: int, now: float, *, acknowledges: bool = True,
        body_size_max: int = BODY_SIZE_MAX, heartbeat_seconds: float = HEARTBEAT_SECONDS,
        silence_seconds: float = SILENCE_SECONDS,
    ) -> None:  # fmt: skip
        self.state = State.CONNECTED
        self._acknowledges, self._body_size_max = acknowledges, body_size_max
        self._heartbeat_seconds, self._silence_seconds = heartbeat_seconds, silence_seconds
        #: The offset that the next byte has to have; None while any is right.
        self._next = end if end else None
        self._stored = self._reported = end
        self._heard_at = self._sent_at = now
        #: The begin of a header, and bytes that the present frame still lacks.
        self._head, self._left = b"", 0

    @property
    def next_offset(self) -> int | None:
        """Physical offset of the next byte; None on an empty log before the first frame."""
        return self._next

    @property
    def next_time(self) -> float:
        """When `data_to_send` or `check_time` has something to do."""
        if self.state is State.CONNECTED:
            return self._sent_at
        return min(self._heard_at + self._silence_seconds, self._sent_at + self._heartbeat_seconds)

    def stored(self, end: int) -> None:
        """Note that the log's end is at `end` now."""
        self._stored = end

    def data_to_send(self, now: float) -> bytes:
        """Return the report that is due: the first, after growth, or as a heartbeat; or nothing."""
        if self.state is State.CLOSED:
            return b""
        first = self.state is State.CONNECTED
        grown = self._acknowledges and self._stored > self._reported
        if not (first or grown or now - self._sent_at >= self._heartbeat_seconds):
            return b""
        if first:
            self._move(Move.REQUEST)
        if first or grown:
            self._reported = self._stored
        self._sent_at = now
        return REPORT.pack(offset=self._reported)

    def check_time(self, now: float) -> Fault | None:
        """Return a fault if the master was silent for too long."""
        if self.state is State.CLOSED or now - self._heard_at < self._silence_seconds:
            return None
        return self._fault(f"the master sent nothing for {self._silence_seconds:g} s")

    def ended(self) -> Fault | None:
        """Note that the master has closed the connection."""
        if self.state is State.CLOSED:
            return None
        inside = " in the middle of a frame" if self._head or self._left else ""
        return self._fault(f"the master closed the connection{inside}")

    def receive(self, data: bytes | bytearray | memoryview, now: float) -> list[Event]:
        """Return what bytes from the master mean, in order; consecutive bodies are joined."""
        events: list[Event] = []
        pieces: list[memoryview] = []
        begin = self._next or 0
        if data:
            self._heard_at = now
        view, position = memoryview(data), 0
        while position < len(view) and self.state is not State.CLOSED:
            if self._left:
                piece = view[position : position + self._left]
                pieces.append(piece)
                self._advance(len(piece))
                position += len(piece)
                continue
            wanted = FRAME_HEADER.size - len(self._head)
            self._head += bytes(view[position : position + wanted])
            position += wanted
            if len(self._head) < FRAME_HEADER.size:
                break
            found = self._begin_frame()
            if found is not None:
                if pieces:
                    events.append(Body(begin, tuple(pieces)))
                    pieces = []
                if events[-1:] != [found]:  # of heartbeats in a row one counts
                    events.append(found)
            if not pieces:
                begin = self._next or 0
        if pieces:
            events.append(Body(begin, tuple(pieces)))
        return events

    def _begin_frame(self) -> Heartbeat | Fault | None:
        """Read the header that is complete now; returns an event, or None before a body."""
        if self.state is State.CONNECTED:
            return self._fault("the master sent a frame before the first report")
        header = FRAME_HEADER.unpack_from(self._head)
        self._head = b""
        offset, size = int(header.offset), int(header.body_size)
        if not 0 <= size <= self._body_size_max:
            return self._fault(f"a frame of {size} bytes; at most {self._body_size_max} are taken")
        if offset < 0 or offset + size >= 1 << 63:
            return self._fault(f"a frame at the offset {offset}")
        if self._next is not None and offset != self._next:
            return self._fault(f"a frame at {offset}, where {self._next} follows")
        self._move(Move.ANSWER if self.state is State.REQUESTED else Move.FLOW)
        self._next, self._left = offset, size
        return None if size else Heartbeat(offset)

    def _advance(self, size: int) -> None:
        assert self._next is not None
        self._next += size
        self._left -= size

    def _fault(self, reason: str) -> Fault:
        self._move(Move.END)
        return Fault(reason)

    def _move(self, move: Move) -> None:
        self.state = SLAVE_MOVES[self.state, move]
