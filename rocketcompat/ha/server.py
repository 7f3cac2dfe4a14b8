"""The master's side with sockets: sends a store's log to slaves, one event loop in one thread.

    with HaServer(store, port=10912, allow=["10.0.0.0/8"]) as server:
        server.start()

Bounds: a connection holds a few frames that its peer has not read yet, and 7 bytes that it has
sent. A peer outside of `allow`, one more than `connections_max`, and connections that come too
fast are closed at once, before TLS. Reports are 8 bytes, and of many only the last counts: a peer
that sends faster than `REPORTS_PER_SECOND` is read less often.

Guards: `_lock` guards the rows of `status` and what waits for acknowledgements; all else belongs to
the thread.
"""

from __future__ import annotations

import asyncio
import ipaddress
import ssl
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, Protocol, Self

from rocketcompat.files.broker_config import BrokerConfig
from rocketcompat.ha.config import config_frame
from rocketcompat.ha.frames import (
    BODY_SIZE_MAX,
    HEARTBEAT_SECONDS,
    PORT,
    SILENCE_SECONDS,
    SLAVE_TIMEOUT_SECONDS,
    TRANSFER_BATCH_SIZE,
)
from rocketcompat.ha.master import Acknowledge, ConfigRequest, MasterSide, Request
from rocketcompat.ha.positions import Span, start_for
from rocketcompat.ha.rate import Rate
from rocketcompat.ha.slave import Fault
from rocketcompat.ha.states import State
from rocketcompat.messages import PutStatus
from rocketcompat.options import MessageStoreConfig
from rocketcompat.store.default_message_store import DefaultMessageStore
from rocketcompat.store.stats import ReplicationState
from tubestore.clock import Clock, SystemClock
from tubestore.core.doors import logger
from tubestore.errors import InvalidMessage, TubeStoreError, refused_call
from tubestore.values import Seconds, Size, checked_seconds, size_bytes

_log = logger(__name__)
#: Peers that may connect by default: this machine.
LOOPBACK = ("127.0.0.0/8", "::1/128")
CONNECTIONS_MAX = 16
#: Bytes that a slave may be behind and is still waited for (`haSlaveFallbehindMax`).
BEHIND_MAX = 256 << 20
#: Seconds between two questions for the log's end: doubling while nothing comes.
_POLL_SECONDS, _POLL_SECONDS_MAX = 0.001, 0.1
#: Frames that one connection is sent before the others have their turn.
_TURN_FRAMES = 32
_JOIN_SECONDS = 10.0
_HANDSHAKE_SECONDS = 10.0
#: Seconds between two questions while no slave is connected.
_IDLE_SECONDS = 1.0
#: What one peer may send, in parts as they arrive, and how often peers may connect.
REPORTS_PER_SECOND = 10_000
CONNECTIONS_PER_SECOND = 100
#: Seconds for which a peer that sends too fast is not read, at least.
_PAUSE_SECONDS = 0.01
#: Reasons that are kept, of the last connections that ended.
_ENDED_KEPT = 16


class Log(Protocol):
    """What is served: an open store."""

    config: MessageStoreConfig

    @property
    def min_physical_offset(self) -> int:
        """Physical offset of the log's first byte."""

    @property
    def max_physical_offset(self) -> int:
        """Physical offset behind the log's last record."""

    def commit_log_data(self, physical_offset: int, size: int | None = None) -> bytes:
        """Return bytes of the log, of one file at most."""

    @property
    def broker_config(self) -> BrokerConfig:
        """The broker's files below the root's `config`."""

    def show_replication(self, described: Callable[[], ReplicationState] | None) -> None:
        """Let the store's statistics contain what replicates it."""


@dataclass(frozen=True, slots=True)
class SlaveStatus:
    """One connection: its peer, and how far it is; offsets are physical."""

    peer: str
    state: str
    requested: int | None = None
    sent: int | None = None
    acknowledged: int = 0
    #: Bytes of the log that it has not acknowledged; None before its first report.
    lag_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """What a server does."""

    running: bool
    port: int | None
    slaves: tuple[SlaveStatus, ...]
    #: Connections that were taken, and those that were refused, since the start.
    accepted: int
    refused: int
    sent_bytes: int
    #: Peers that were closed, each with the reason; the last ones.
    ended: tuple[tuple[str, str], ...]


class HaServer:
    """Serves a store's log to slaves, by RocketMQ's protocol.

    `synchronous`: every put of the store waits for an acknowledgement of any slave, `slave_timeout`
    seconds at most (RocketMQ's SYNC_MASTER). Without a slave that is less than `behind_max` bytes
    behind it does not wait. The statuses are FLUSH_SLAVE_TIMEOUT and SLAVE_NOT_AVAILABLE, also
    after `close`.

    `first`: what an empty slave is sent, the "LAST" file as by RocketMQ, or the "FULL" log.
    `allow`: networks of peers. `port` 0: a free one. `on_poll` is called before each question for
    the log's end, in the server's thread.
    """

    def __init__(
        self, store: Log, *, host: str = "127.0.0.1", port: int = PORT,
        first: Literal["LAST", "FULL"] = "LAST", allow: Iterable[str] = LOOPBACK,
        connections_max: int = CONNECTIONS_MAX, batch_size: Size = TRANSFER_BATCH_SIZE,
        heartbeat_seconds: Seconds = HEARTBEAT_SECONDS, silence_seconds: Seconds = SILENCE_SECONDS,
        tls: ssl.SSLContext | None = None, clock: Clock | None = None,
        on_poll: Callable[[], None] = lambda: None, synchronous: bool = False,
        slave_timeout: Seconds = SLAVE_TIMEOUT_SECONDS, behind_max: int = BEHIND_MAX,
    ) -> None:  # fmt: skip
        if first not in ("LAST", "FULL"):
            raise InvalidMessage(f"first: {first!r} is neither 'LAST' nor 'FULL'")
        self.batch_size = size_bytes(batch_size, "batch_size") or 0
        if not 0 < self.batch_size <= BODY_SIZE_MAX:
            raise InvalidMessage(f"batch_size: {batch_size} is outside 1 … {BODY_SIZE_MAX}")
        self._slave_timeout = checked_seconds("slave_timeout", slave_timeout)
        self.silence_seconds = checked_seconds("silence_seconds", silence_seconds)
        if connections_max < 1:
            raise InvalidMessage(f"connections_max: {connections_max} is below 1")
        try:
            self._allow = [ipaddress.ip_network(network) for network in allow]
        except ValueError as error:
            raise InvalidMessage(f"allow: {error}") from None
        self.host, self._wanted_port = host, port
        self._store, self._full, self._on_poll = store, first == "FULL", on_poll
        self.connections_max = connections_max
        self._new_side: Callable[[float], MasterSide] = partial(
            MasterSide,
            silence_seconds=self.silence_seconds,
            heartbeat_seconds=checked_seconds("heartbeat_seconds", heartbeat_seconds),
        )
        if synchronous and not isinstance(store, DefaultMessageStore):
            raise InvalidMessage("synchronous: a store that is open for writing is needed")
        self._behind_max, self._synchronous = behind_max, synchronous
        #: The highest acknowledgement of any slave.
        self._acknowledged = 0
        self.tls, self._monotonic = tls, (clock or SystemClock()).monotonic
        self._arrivals = Rate(CONNECTIONS_PER_SECOND, self._monotonic())
        self._lock = threading.Condition()
        self._connections: set[_Connection] = set()
        self._rows: tuple[SlaveStatus, ...] = ()
        self._ended: list[tuple[str, str]] = []
        self._accepted = self._refused = self.sent_bytes = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._bound_port: int | None = None
        self._poll_seconds = _POLL_SECONDS
        self._timer: asyncio.TimerHandle | None = None

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return self._bound_port if self._bound_port is not None else self._wanted_port

    def start(self) -> None:
        """Listen, and serve in a thread; StorageError if the port cannot be had."""
        loop = asyncio.new_event_loop()
        try:
            server = loop.run_until_complete(
                loop.create_server(lambda: _Connection(self), self.host, self._wanted_port)
            )
        except OSError as error:
            loop.close()
            raise refused_call(f"{self.host}:{self._wanted_port}", error) from error
        self._bound_port = server.sockets[0].getsockname()[1]
        if self._synchronous:
            assert isinstance(self._store, DefaultMessageStore)
            self._store.set_replication(self.replicated)
        self._store.show_replication(self._described)
        self._loop = loop
        self._thread = threading.Thread(
            target=self._run, args=(loop, server), name="HAService", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Close every connection and end the thread. Harmless when repeated."""
        loop, thread = self._loop, self._thread
        self._thread = None
        if loop is not None and thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            thread.join(_JOIN_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def wake(self) -> None:
        """Send what was put at once; from any thread."""
        loop = self._loop
        if loop is not None and self._thread is not None:
            loop.call_soon_threadsafe(self._poll)

    def replicated(self, end: int) -> PutStatus:
        """Wait until a slave has everything below a physical offset; returns the put's status."""
        with self._lock:
            if self._acknowledged < end:
                has = [row.requested for row in self._rows if row.requested is not None]
                if not has or end - max(self._acknowledged, *has) >= self._behind_max:
                    return PutStatus.SLAVE_NOT_AVAILABLE
        self.wake()
        with self._lock:
            done = self._lock.wait_for(lambda: self._acknowledged >= end, self._slave_timeout)
        return PutStatus.PUT_OK if done else PutStatus.FLUSH_SLAVE_TIMEOUT

    def status(self) -> ServerStatus:
        """Return what it does now."""
        end = self._store.max_physical_offset
        with self._lock:
            slaves = tuple(
                row if row.requested is None else replace(row, lag_bytes=end - row.acknowledged)
                for row in self._rows
            )
            return ServerStatus(
                self._thread is not None, self._bound_port, slaves, self._accepted, self._refused,
                self.sent_bytes, tuple(self._ended),
            )  # fmt: skip

    def _described(self) -> ReplicationState:
        """Return what the store's statistics show."""
        status = self.status()
        known = [row for row in status.slaves if row.lag_bytes is not None]
        slaves = {
            row.peer: {"sent": row.sent or 0, "acknowledged": row.acknowledged,
                       "lag_bytes": row.lag_bytes}
            for row in known
        }  # fmt: skip
        return ReplicationState(
            "SYNC_MASTER" if self._synchronous else "ASYNC_MASTER",
            {"HAService": {"running": status.running, "stopped": False}}, len(status.slaves),
            status.sent_bytes,
            max((row.lag_bytes or 0 for row in known), default=0), slaves,
        )  # fmt: skip

    # -- in the thread

    def _run(self, loop: asyncio.AbstractEventLoop, server: asyncio.Server) -> None:
        asyncio.set_event_loop(loop)
        self._schedule(_POLL_SECONDS)
        try:
            loop.run_forever()
        finally:
            server.close()
            for connection in tuple(self._connections):
                connection.abort()
            # The transports close their sockets in the loop's next rounds.
            loop.run_until_complete(asyncio.sleep(0))
            handshakes = asyncio.all_tasks(loop)
            loop.run_until_complete(asyncio.gather(*handshakes, return_exceptions=True))
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()

    def allows(self, address: str) -> bool:
        """Return whether a peer may connect."""
        try:
            found = ipaddress.ip_address(address)
        except ValueError:
            return False
        mapped = getattr(found, "ipv4_mapped", None)
        return any((mapped or found) in network for network in self._allow)

    def enter(self, connection: _Connection) -> str | None:
        """Take a connection in; returns why it is refused."""
        reason = None
        if not self.allows(connection.address):
            reason = "not an allowed peer"
        elif self._arrivals.take(self.now()):
            reason = f"more than {CONNECTIONS_PER_SECOND} connections a second"
        elif len(self._connections) >= self.connections_max:
            reason = f"{self.connections_max} slaves are connected already"
        if reason is not None:
            self._refused += 1
            self.note_end(connection.peer, reason)
            return reason
        self._accepted += 1
        self._connections.add(connection)
        self._schedule(_POLL_SECONDS)
        self.show()
        return None

    def leave(self, connection: _Connection, reason: str | None) -> None:
        """Forget a connection; without a reason it was no slave's."""
        if connection in self._connections:
            self._connections.discard(connection)
            if reason is None:
                self._accepted -= 1
            else:
                self.note_end(connection.peer, reason)
            self.show()

    def note_end(self, peer: str, reason: str) -> None:
        """Keep why a connection ended; one line of the log for each reason in a row."""
        last = self._ended[-1] if self._ended else ("", "")
        if last[1] != reason:
            _log.warning("%s: %s", peer, reason)
        with self._lock:
            self._ended = [*self._ended[1 - _ENDED_KEPT :], (peer, reason)]

    def show(self) -> None:
        """Show how far the slaves are, to `status` and to puts that wait."""
        rows = tuple(c.row() for c in self._connections if not c.was_answered)
        with self._lock:
            self._rows = rows
            self._acknowledged = max([self._acknowledged, *(row.acknowledged for row in rows)])
            self._lock.notify_all()

    def new_side(self, now: float) -> MasterSide:
        """Return the protocol's side of a new connection."""
        return self._new_side(now)

    def now(self) -> float:
        """Return the time in seconds."""
        return self._monotonic()

    def begin_of(self, requested: int) -> Any:
        """Return where to begin for a first report."""
        store = self._store
        size = store.config.mapped_file_size_commit_log
        span = Span(store.min_physical_offset, store.max_physical_offset, size)
        return start_for(requested, span, full=self._full)

    def bytes_at(self, offset: int) -> bytes:
        """Return the next bytes of the log; none at its end."""
        if offset >= self._store.max_physical_offset:
            return b""
        return self._store.commit_log_data(offset, self.batch_size)

    def config(self) -> bytes:
        """Return the frame with the broker's configuration."""

        def end() -> int:
            self._look()  # what the files name may be newer than the reader's last look
            return self._store.max_physical_offset

        return config_frame(self._store.broker_config, end)

    def fault_at(self, offset: int) -> str | None:
        """Return why there are no bytes at an offset; None at the log's end."""
        if offset < self._store.min_physical_offset:
            return f"the log begins behind {offset} by now: what was there was deleted"
        if offset < self._store.max_physical_offset:
            return f"the log has no bytes at {offset}"
        return None

    def _poll(self) -> None:
        """Send what there is, and what is due; then again soon, or later if nothing was."""
        moved = False
        try:
            self._look()
            for connection in tuple(self._connections):
                moved = connection.advance() or moved
        finally:
            later = min(2 * self._poll_seconds, _POLL_SECONDS_MAX)
            self._poll_seconds = _POLL_SECONDS if moved else later
            self._schedule(self._poll_seconds if self._connections else _IDLE_SECONDS)

    def _look(self) -> None:
        """Call `on_poll`."""
        try:
            self._on_poll()
        except (OSError, TubeStoreError) as error:
            self.note_end(f"{self.host}:{self.port}", f"the log cannot be read: {error}")

    def _schedule(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._loop is None:
            return
        self._timer = self._loop.call_later(seconds, self._poll)


class _Connection(asyncio.Protocol):
    """One slave."""

    def __init__(self, server: HaServer) -> None:
        self._server = server
        self._side = server.new_side(server.now())
        self._transport: asyncio.Transport | None = None
        self._paused = False
        self._rate = Rate(REPORTS_PER_SECOND, server.now())
        #: The TLS handshake that is under way, and what came over TLS before it was noted as done.
        self._handshake: asyncio.Task[None] | None = None
        self._early = b""
        self._requested: int | None = None
        #: True once it was sent the configuration that it asked for.
        self.was_answered = False
        self.peer = self.address = "?"

    def row(self) -> SlaveStatus:
        """Return its status."""
        side = self._side
        return SlaveStatus(
            self.peer, side.state.value, self._requested, side.next_offset, side.acknowledged
        )

    # -- asyncio's calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connection in, or close it."""
        assert isinstance(transport, asyncio.Transport)
        address = transport.get_extra_info("peername")
        self.address = str(address[0]) if address else "?"
        self.peer = f"{self.address}:{address[1]}" if address else "?"
        self._transport = transport
        if self._server.enter(self) is not None:
            transport.abort()
        elif self._server.tls is not None:
            self._handshake = asyncio.get_running_loop().create_task(
                self._secure(transport, self._server.tls)
            )
        else:
            transport.set_write_buffer_limits(high=2 * self._server.batch_size)

    def connection_lost(self, error: Exception | None) -> None:
        """Forget the connection."""
        fault = self._side.ended()
        if self.was_answered:
            self._server.leave(self, None)
            return
        reason = fault.reason if fault is not None else "closed"
        self._server.leave(self, reason if error is None else f"the connection failed: {error}")

    def pause_writing(self) -> None:
        """Send nothing until the peer has read."""
        self._paused = True

    def resume_writing(self) -> None:
        """Go on."""
        self._paused = False
        self.advance()

    async def _secure(self, transport: asyncio.Transport, tls: ssl.SSLContext) -> None:
        """Go on with TLS."""
        loop = asyncio.get_running_loop()
        try:
            secured = await loop.start_tls(
                transport, self, tls, server_side=True, ssl_handshake_timeout=_HANDSHAKE_SECONDS
            )
        except OSError as error:
            self._end(f"TLS: {error}")
            return
        if secured is None or transport.is_closing():
            self._end("TLS: the slave closed the connection")
            return
        self._transport = secured
        secured.set_write_buffer_limits(high=2 * self._server.batch_size)
        self._handshake, early = None, self._early
        if early:
            self.data_received(early)

    def data_received(self, data: bytes) -> None:
        """Take reports."""
        if self._handshake is not None:
            # It came with the handshake's last bytes: `_transport` would answer it unencrypted.
            self._early += data
            return
        now = self._server.now()
        wait, transport = self._rate.take(now), self._transport
        if wait and transport is not None:
            transport.pause_reading()
            loop = asyncio.get_running_loop()
            loop.call_later(max(wait, _PAUSE_SECONDS), transport.resume_reading)
        for event in self._side.receive(data, now):
            if isinstance(event, Fault):
                self._end(event.reason)
            elif isinstance(event, Request):
                self._answer(event.offset)
            elif isinstance(event, ConfigRequest):
                self._send_config()
            elif isinstance(event, Acknowledge):
                self._server.show()

    # -- what is sent

    def advance(self) -> bool:
        """Send what there is; True if that was anything, or the connection has ended."""
        side, server, transport = self._side, self._server, self._transport
        if transport is None or transport.is_closing():
            return False
        now = server.now()
        fault = side.check_time(now)
        if fault is not None:
            self._end(fault.reason)
            return True
        sent = 0
        try:
            while not self._paused and sent < _TURN_FRAMES and side.state is State.STREAMING:
                assert side.next_offset is not None
                data = server.bytes_at(side.next_offset)
                if not data:
                    break
                # Not `writelines`: in Python 3.12.0 to 3.12.8 and 3.13.0 it never pauses, so a
                # slave that reads nothing would fill memory (CVE-2024-12254).
                transport.write(b"".join((side.frame(len(data), now), data)))
                server.sent_bytes += len(data)
                sent += 1
            if not sent and not self._paused and side.next_offset is not None:
                reason = server.fault_at(side.next_offset)
                if reason is not None and not server.bytes_at(side.next_offset):
                    self._end(reason)
                    return True
        except (OSError, TubeStoreError) as error:
            self._end(f"the log cannot be read: {error}")
            return True
        if sent:
            server.show()
            return True
        beat = side.heartbeat(now)
        if beat and not self._paused:
            transport.write(beat)
        return False

    def _send_config(self) -> None:
        """Send the broker's configuration, and close the connection when the peer has read it."""
        transport = self._transport
        assert transport is not None
        try:
            transport.write(self._server.config())
        except (OSError, ValueError, TubeStoreError) as error:
            self._end(f"the configuration cannot be read: {error}")
            return
        self.was_answered = True
        self._server.show()
        transport.close()
        asyncio.get_running_loop().call_later(self._server.silence_seconds, transport.abort)

    def abort(self) -> None:
        """Close the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    def _answer(self, requested: int) -> None:
        self._requested = requested
        try:
            start = self._server.begin_of(requested)
        except (OSError, TubeStoreError) as error:
            self._end(f"the log cannot be read: {error}")
            return
        if start.offset is None:
            self._end(start.reason)
            return
        self._side.start_at(start.offset, self._server.now())
        self._server.show()
        self.advance()

    def _end(self, reason: str) -> None:
        """End the connection with a reason."""
        self._side.refuse(reason)
        self._server.leave(self, reason)
        self.abort()
