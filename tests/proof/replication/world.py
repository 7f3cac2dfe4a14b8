"""A master, a slave and the network between them, in one thread and on one clock.

The code is that of `HaServer` and `Mirror`; the socket, the transport, the disks and the clock are
simulated. `World.step` lets time pass: messages are put, bytes arrive, connections break.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from random import Random
from typing import Any

import rocketcompat
from rocketcompat import Message, MessageStoreConfig
from rocketcompat.formats import BLANK, MAGIC_BLANK
from rocketcompat.ha.mirror import Mirror
from rocketcompat.ha.server import HaServer, _Connection
from rocketcompat.store.default_message_store import DefaultMessageStore
from tests.support.rocket.inside import log_of
from tubestore.clock import ManualClock
from tubestore.testing import MemoryVfs

SIZE = 2000
CONFIG = MessageStoreConfig(
    mapped_file_size_commit_log=SIZE,
    mapped_file_size_consume_queue=200,
    layouts=frozenset({"consume_queue"}),
)


class Broken(BaseException):
    """The model does not hold; no handler of the code in between takes it."""


def demand(holds: object, text: str) -> None:
    """Raise `Broken` unless something holds."""
    if not holds:
        raise Broken(text)


class Killed(BaseException):
    """The process that runs the slave is killed here."""


class Link:
    """One connection: bytes on their way in both directions."""

    def __init__(self, world: World) -> None:
        self.world = world
        #: (time of arrival, bytes), in order.
        self.to_slave: deque[tuple[float, bytes]] = deque()
        self.to_master: deque[tuple[float, bytes]] = deque()
        #: What is sent is lost, and no side is told.
        self.lost = False
        #: The other side sees the end, or a reset.
        self.closed_by_master = self.closed_by_slave = self.reset = False

    def send(self, way: deque[tuple[float, bytes]], data: bytes) -> None:
        if self.lost or not data:
            return
        last = way[-1][0] if way else 0.0
        delay = self.world.random.choice((0.0, 0.001, 0.01, 0.5, 2.0))
        way.append((max(last, self.world.clock.monotonic() + delay), data))


class Transport(asyncio.Transport):
    """The master's end of a link, as asyncio shows it."""

    def __init__(self, link: Link) -> None:
        super().__init__({"peername": ("127.0.0.1", 1)})
        self._link = link
        self.aborted = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Do nothing: a link takes everything."""

    def write(self, data: Any) -> None:
        self._link.send(self._link.to_slave, bytes(data))

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        self.write(b"".join(list_of_data))

    def is_closing(self) -> bool:
        return self.aborted

    def abort(self) -> None:
        self.aborted = True
        self._link.closed_by_master = True


class Socket:
    """The slave's end of a link."""

    def __init__(self, link: Link) -> None:
        self._link, self._timeout = link, 0.0

    def settimeout(self, seconds: float) -> None:
        self._timeout = seconds

    def sendall(self, data: bytes) -> None:
        if self._link.reset:
            raise ConnectionResetError(104, "reset")
        self._link.send(self._link.to_master, data)

    def recv_into(self, buffer: memoryview) -> int:
        link, world = self._link, self._link.world
        deadline = world.clock.monotonic() + self._timeout
        while True:
            world.step()
            if link.reset:
                raise ConnectionResetError(104, "reset")
            now = world.clock.monotonic()
            if link.to_slave and link.to_slave[0][0] <= now:
                return self._read(buffer)
            if link.closed_by_master and not link.to_slave and not link.lost:
                return 0
            if now >= deadline:
                raise TimeoutError
            left = max(1, int((deadline - now) * 1000))
            world.clock.advance(min(left, world.random.choice((1, 5, 100, 1000))))

    def _read(self, buffer: memoryview) -> int:
        """Give some of what has arrived: TCP splits and joins."""
        data, way = b"", self._link.to_slave
        now = self._link.world.clock.monotonic()
        while way and way[0][0] <= now and len(data) < 4000:
            data += way.popleft()[1]
        size = self._link.world.random.choice((len(data), len(data), 1, 11, 100, 900))
        size = min(size, len(data))
        if size < len(data):
            way.appendleft((now, data[size:]))
        buffer[:size] = data[:size]
        return size

    def shutdown(self, how: int) -> None:
        """Do nothing: nothing waits in this thread."""

    def close(self) -> None:
        self._link.closed_by_slave = True


class Stop:
    """The mirror's event: waiting lets the clock go on."""

    def __init__(self, world: World) -> None:
        self._world = world

    def is_set(self) -> bool:
        return self._world.is_over()

    def set(self) -> None:
        self._world.over = True

    def wait(self, seconds: float) -> bool:
        self._world.step()
        self._world.clock.advance(int(seconds * 1000))
        return self._world.is_over()


class World:
    """One run from a seed; `acknowledges` as of `Mirror`."""

    def __init__(self, seed: int, acknowledges: str) -> None:
        self.random, self.clock = Random(seed), ManualClock()
        self.acknowledges = acknowledges
        self.master_vfs, self.slave_vfs = MemoryVfs(self.clock), MemoryVfs(self.clock)
        self.master = self._open_master()
        self.server = self._new_server()
        self.mirror: Mirror | None = None
        self.links: list[tuple[Link, _Connection, Transport]] = []
        #: Random steps that are left; then the network is sound until the slave is as far.
        self.steps = self.random.randrange(20, 200)
        self.over = self.dead = False
        self.kills = self.breaks = self.quiet_steps = 0
        #: The highest offset for which a synchronous put was released.
        self.released = 0
        #: The first reports: what a mirror may acknowledge.
        self.reports: list[int] = []

    # -- the two sides

    def _open_master(self) -> DefaultMessageStore:
        return rocketcompat.open(
            "/m", "w", CONFIG, vfs=self.master_vfs, clock=self.clock, background=False
        )

    def _new_server(self) -> HaServer:
        first = self.random.choice(("LAST", "FULL"))
        return HaServer(self.master, first=first, clock=self.clock, batch_size=700)  # type: ignore[arg-type]

    def run_slave(self) -> None:
        """Follow until the run is over, with kills and new starts in between."""
        while not self.is_over():
            self.dead = False
            try:
                self.mirror = Mirror(
                    "/s", "m", 1, CONFIG, vfs=self.slave_vfs, clock=self.clock,
                    acknowledge=self.acknowledges, connect=self._connect, background=False,  # type: ignore[arg-type]
                )  # fmt: skip
                self.mirror._stop = Stop(self)  # type: ignore[assignment]
                self.check_prefix()
                self.mirror.run()
                assert self.mirror.failed is None, self.mirror.failed
            except Killed:
                self.kills += 1
            finally:
                self._bury()

    def _bury(self) -> None:
        """End the slave's process as a kill does: nothing more is written."""
        mirror, self.mirror = self.mirror, None
        if mirror is not None and mirror._store is not None:
            mirror._store._closed = True
        self.slave_vfs.release_locks()
        for link, _, _ in self.links:
            link.closed_by_slave = True

    def slave_log(self) -> tuple[int, bytes]:
        """Return where the slave's log begins, and its bytes."""
        store = self.mirror._store if self.mirror is not None else None
        return (0, b"") if store is None else log_bytes(store)

    def _connect(self, host: str, port: int) -> Any:
        self.step()
        if self.steps > 0 and self.random.random() < 0.2:
            raise ConnectionRefusedError(111, "refused")
        link = Link(self)
        connection = _Connection(self.server)
        transport = Transport(link)
        connection.connection_made(transport)
        self.links.append((link, connection, transport))
        assert self.mirror is not None
        store = self.mirror._store
        self.reports.append(store.raw_end if store is not None else 0)
        if store is not None:
            self._may_be_killed_in(store)
        return Socket(link)

    def _may_be_killed_in(self, store: Any) -> None:
        """Let a write of the slave's log be the last thing that its process does."""
        log = log_of(store)
        inner, cut = type(log)._write_raw, type(log).cut_raw

        def write(offset: int, data: Any, count: int) -> None:
            if self.steps > 0 and not self.dead and self.random.random() < 0.02:
                part = bytes(data)[: self.random.randrange(len(data) + 1)]
                if part and log._last is not None and not log._last.is_full:
                    log._last.append(part)
                self.dead = True
                raise Killed
            inner(log, offset, data, count)

        log._write_raw = write  # type: ignore[method-assign]
        log.cut_raw = lambda: None if self.dead else cut(log)  # type: ignore[method-assign]

    # -- time

    def is_over(self) -> bool:
        """True once the faults are over and the slave has everything."""
        return self.over

    def step(self) -> None:
        """Let something happen."""
        self.clock.advance(1)
        self.steps -= 1
        self.quiet_steps += self.steps < 0
        demand(self.quiet_steps < 20_000, "the slave does not come as far as the master")
        random = self.random
        if self.steps > 0:
            if random.random() < 0.3:
                self._put(random.randrange(1, 6))
            if random.random() < 0.04:
                self._break()
            if random.random() < 0.01:
                self._kill_master()
            if self.mirror is not None and random.random() < 0.01:
                raise Killed
        self._deliver()
        self.check_acknowledged()
        if self.steps <= 0 and self.mirror is not None and self.mirror._store is not None:
            self.over = self.mirror._store.raw_end >= self.master.max_physical_offset

    def _put(self, count: int) -> None:
        for _ in range(count):
            size = self.random.choice((0, 10, 100, 700))
            self.master.put_message(Message("T", self.random.randbytes(size)))

    def _break(self) -> None:
        """Break a connection in one of the ways in which TCP breaks."""
        if not self.links:
            return
        self.breaks += 1
        link, connection, transport = self.random.choice(self.links)
        how = self.random.randrange(3)
        if how == 0:  # half open: what is sent from now on is lost
            link.lost = True
        elif how == 1:
            link.reset = True
            transport.aborted = True
            connection.connection_lost(ConnectionResetError(104, "reset"))
        else:
            link.to_slave.clear()  # what was on its way is lost with the connection
            transport.abort()

    def _kill_master(self) -> None:
        """Kill the master's process and open its store again."""
        self.kills += 1
        for link, _, transport in self.links:
            link.reset = not link.lost
            transport.aborted = True
        self.links.clear()
        self.master._closed = True
        self.master_vfs.release_locks()
        released = max(self.released, self.server._acknowledged)
        self.master = self._open_master()
        self.server = self._new_server()
        self.released = released

    def _deliver(self) -> None:
        """Give the master what has arrived, and let it send."""
        now = self.clock.monotonic()
        for row in list(self.links):
            link, connection, transport = row
            while link.to_master and link.to_master[0][0] <= now and not transport.aborted:
                connection.data_received(link.to_master.popleft()[1])
            if link.closed_by_slave and not link.lost and not transport.aborted:
                transport.aborted = True
                connection.connection_lost(None)
            connection.advance()
            if transport.aborted:
                self.server.leave(connection, "closed")
                self.links.remove(row)

    # -- the model

    def check_acknowledged(self) -> None:
        """What a put was released for is on the slave; a mirror releases nothing by itself."""
        self.released = max(self.released, self.server._acknowledged)
        if self.acknowledges == "no":
            demand(self.released <= max(self.reports, default=0), "a mirror acknowledged more")
        store = self.mirror._store if self.mirror is not None else None
        if store is not None and not self.dead:
            first, whole = log_bytes(self.master)
            check_covers(store.raw_end, self.released, first, whole)

    def check_prefix(self) -> None:
        """The slave's log is a part of the master's, byte for byte, and has what was released."""
        begin, data = self.slave_log()
        first, whole = log_bytes(self.master)
        demand(first <= begin or not data, "the slave's log begins before the master's")
        same = data == whole[begin - first : begin - first + len(data)]
        demand(same, "the slave's log is not a prefix of the master's")
        check_covers(begin + len(data), self.released, first, whole)


def check_covers(end: int, released: int, first: int, whole: bytes) -> None:
    """Compare a slave's end with what was released: at most the blank of a file may be missing."""
    if end < released:
        is_blank = BLANK.unpack_from(whole, end - first).magic_code == MAGIC_BLANK
        at_end = released == end - end % SIZE + SIZE
        demand(is_blank and at_end, f"{released} was released, and the slave ends at {end}")


def log_bytes(store: DefaultMessageStore) -> tuple[int, bytes]:
    """Return where a store's log begins, and its bytes up to its end."""
    log, data = log_of(store), b""
    first = log.min_offset
    while first + len(data) < log.max_offset:
        data += log.read_at(first + len(data), SIZE)
    return first, data
