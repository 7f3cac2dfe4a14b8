"""The master's side of a connection: bytes in, events and bytes out; no socket, no clock.

    side = MasterSide(now=clock.monotonic())
    for event in side.receive(data, now):
        ...                     # a Request is answered by side.start_at(offset)
    data = log bytes at side.next_offset
    send(side.frame(len(data), now) + data)

Always true:
- nothing is sent before the first report;
- an acknowledgement never exceeds what this connection was sent: one that does is a fault and
  releases nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from rocketcompat.ha.frames import (
    CONFIG_REQUEST,
    FRAME_HEADER,
    HEARTBEAT_SECONDS,
    REPORT,
    SILENCE_SECONDS,
)
from rocketcompat.ha.slave import Fault
from rocketcompat.ha.states import MASTER_MOVES, Move, State


@dataclass(frozen=True, slots=True)
class Request:
    """The first report: the slave has everything below this offset, and 0 is an empty slave."""

    offset: int


@dataclass(frozen=True, slots=True)
class Acknowledge:
    """A later report."""

    offset: int


@dataclass(frozen=True, slots=True)
class ConfigRequest:
    """The first report asks for the broker's configuration: the connection ends with the answer."""


Event = Request | Acknowledge | ConfigRequest | Fault


class MasterSide:
    """One connection of a master."""

    def __init__(
        self, now: float, *, heartbeat_seconds: float = HEARTBEAT_SECONDS,
        silence_seconds: float = SILENCE_SECONDS,
    ) -> None:  # fmt: skip
        self.state = State.CONNECTED
        self._heartbeat_seconds, self._silence_seconds = heartbeat_seconds, silence_seconds
        #: The begin of a report.
        self._part = b""
        self._requested = self._sent = self._acknowledged = 0
        self._heard_at = self._sent_at = now

    @property
    def next_offset(self) -> int | None:
        """Physical offset of the next byte to be sent; None while nothing may be sent."""
        return self._sent if self.state is State.STREAMING else None

    @property
    def acknowledged(self) -> int:
        """The slave has everything below this offset that this connection was sent."""
        return self._acknowledged

    @property
    def next_time(self) -> float:
        """When `heartbeat` or `check_time` has something to do."""
        silence = self._heard_at + self._silence_seconds
        if self.state is not State.STREAMING:
            return silence
        return min(silence, self._sent_at + self._heartbeat_seconds)

    def receive(self, data: bytes | bytearray | memoryview, now: float) -> list[Event]:
        """Return what bytes from the slave mean: of all whole reports the last one counts."""
        if self.state is State.CLOSED or not data:
            return []
        whole = len(self._part) + len(data) - (len(self._part) + len(data)) % REPORT.size
        joined = self._part + bytes(data[-2 * REPORT.size :])
        begin = len(self._part) + len(data) - len(joined)
        self._part = joined[max(0, whole - begin) :]
        if not whole:
            return []
        self._heard_at = now  # single bytes do not keep a connection
        offset = int(REPORT.unpack_from(joined, whole - REPORT.size - begin).offset)
        return [self._reported(offset)]

    def start_at(self, offset: int, now: float) -> None:
        """Answer the request: the log is sent from this offset on."""
        self._move(Move.ANSWER)
        self._sent, self._sent_at = offset, now

    def frame(self, size: int, now: float) -> bytes:
        """Return the header for the next `size` bytes of the log, which are sent behind it."""
        self._move(Move.FLOW)
        header = FRAME_HEADER.pack(offset=self._sent, body_size=size)
        self._sent += size
        self._sent_at = now
        return header

    def heartbeat(self, now: float) -> bytes:
        """Return the heartbeat that is due, or nothing."""
        due = self.state is State.STREAMING and now - self._sent_at >= self._heartbeat_seconds
        return self.frame(0, now) if due else b""

    def check_time(self, now: float) -> Fault | None:
        """Return a fault if the slave was silent for too long."""
        if self.state is State.CLOSED or now - self._heard_at < self._silence_seconds:
            return None
        return self._fault(f"the slave sent no report for {self._silence_seconds:g} s")

    def ended(self) -> Fault | None:
        """Note that the slave has closed the connection."""
        return (
            None if self.state is State.CLOSED else self._fault("the slave closed the connection")
        )

    def refuse(self, reason: str) -> Fault:
        """End the connection: the caller cannot serve this slave."""
        return self._fault(reason)

    def _reported(self, offset: int) -> Event:
        """Judge a report."""
        if offset == CONFIG_REQUEST and self.state is State.CONNECTED:
            self._move(Move.END)
            return ConfigRequest()
        if offset < 0:
            return self._fault(f"a report of {offset}")
        if self.state is State.CONNECTED:
            self._move(Move.REQUEST)
            self._requested = offset
            return Request(offset)
        limit = max(self._sent, self._requested)
        if offset > limit:
            return self._fault(f"a report of {offset}, and only {limit} was sent")
        self._move(Move.FLOW)
        if self.state is State.STREAMING and offset <= self._sent:
            self._acknowledged = max(self._acknowledged, offset)
        return Acknowledge(self._acknowledged)

    def _fault(self, reason: str) -> Fault:
        self._move(Move.END)
        return Fault(reason)

    def _move(self, move: Move) -> None:
        self.state = MASTER_MOVES[self.state, move]
