"""Follows a master: connects, takes its log into a store of the same offsets, connects again.

    with Mirror("/mirror", "10.0.0.7", 10912, config) as mirror:
        mirror.start()
        mirror.wait_reached(offset, timeout=10)
        mirror.store.get_message("orders", 0, 0)

A mirror repeats its first report and acknowledges nothing, so that a SYNC_MASTER releases no put
for it. With `acknowledge` it is a slave as RocketMQ's: it reports what is in its page cache, or
("fsync") on its stable storage. With `broker_config` a second thread takes over topics,
subscription groups and offsets from a master of this package.

Always true:
- nothing is written before the master's first frame: an empty root begins where that frame is;
- a mirror with data never connects within the master's `slaveTimeout` after it last received any:
  its first report acknowledges what it has, and puts that waited for that have ended by then.

Guards: `_lock` guards the status; the store is used by the one thread that follows.
"""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, Self

from rocketcompat.files.broker_config import BrokerConfig
from rocketcompat.ha.config import CONFIG_THREAD, ConfigFollower
from rocketcompat.ha.frames import HEARTBEAT_SECONDS, SLAVE_TIMEOUT_SECONDS
from rocketcompat.ha.slave import Body, Event, Fault, Heartbeat, SlaveSide
from rocketcompat.ha.slave_store import SlaveRoot, SlaveStore
from rocketcompat.options import MessageStoreConfig
from rocketcompat.store.reader import checked_wait
from rocketcompat.store.stats import ReplicationState
from tubestore.clock import Clock
from tubestore.core.doors import logger
from tubestore.core.vfs import Vfs
from tubestore.errors import (
    CorruptRecord,
    StoreClosed,
    StoreFailed,
    TubeStoreError,
    again,
)
from tubestore.values import Seconds, checked_seconds

_log = logger(__name__)
Acknowledge = Literal["no", "page_cache", "fsync"]
#: Bytes that are received at a time.
_RECEIVE_BYTES = 1 << 20
_CONNECT_SECONDS = 5.0
#: Seconds until the next attempt after one that failed at once; they double up to the last.
_RETRY_SECONDS, _RETRY_SECONDS_MAX = 5.0, 60.0
_JOIN_SECONDS = 60.0
#: Seconds without a byte after which the log is as far as the master's.
_QUIET_SECONDS = 1.0


@dataclass(slots=True)
class MirrorStatus:
    """What a mirror does."""

    #: "stopped", "waiting" (for the next attempt), "connecting", "following".
    state: str = "stopped"
    #: Everything below this physical offset is in the log's files; None without a store.
    end: int | None = None
    #: True if nothing came for a second, or a heartbeat: the master had nothing more to send.
    up_to_date: bool = False
    received_bytes: int = 0
    connections: int = 0
    #: Why the last connection ended or failed; None while one is up.
    trouble: str | None = None
    #: Bytes of the log that queues, index and shards do not have yet.
    dispatch_behind_bytes: int = field(default=0)
    #: Why the broker's configuration is not followed; None if it is, or need not be.
    config_trouble: str | None = None


class _Ended(Exception):
    """This connection is over; the text is the reason."""


class Mirror:
    """A store that follows a master at `host`, `port`; `start` makes the thread."""

    def __init__(
        self, root: str | os.PathLike[str], host: str, port: int,
        config: MessageStoreConfig | None = None, *, acknowledge: Acknowledge = "no",
        take_over: bool = False, slave_timeout: Seconds = SLAVE_TIMEOUT_SECONDS,
        retry_seconds: Seconds = _RETRY_SECONDS, heartbeat_seconds: Seconds = HEARTBEAT_SECONDS,
        vfs: Vfs | None = None, clock: Clock | None = None,
        connect: Callable[[str, int], socket.socket] | None = None, background: bool = True,
        tls: ssl.SSLContext | None = None, broker_config: bool = False,
    ) -> None:  # fmt: skip
        """Open the store of a root that has a log; an empty one is opened at the first frame."""
        self._slave_timeout = checked_seconds("slave_timeout", slave_timeout)
        self._retry_seconds = checked_seconds("retry_seconds", retry_seconds)
        self._heartbeat_seconds = checked_seconds("heartbeat_seconds", heartbeat_seconds)
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._host, self._port, self._connect = host, port, connect or partial(_connected, tls)
        self._acknowledge, self._background = acknowledge, background
        self._root = SlaveRoot.of(root, config, vfs, clock)
        self._monotonic = self._root.clock.monotonic
        self._lock = threading.Condition()
        self._status = MirrorStatus()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._socket: socket.socket | None = None
        self._store: SlaveStore | None = None
        #: Why nothing is followed any more.
        self._failed: TubeStoreError | None = None
        #: The place of the last damage that the master sent.
        self._damaged_at = -1
        self._config: ConfigFollower | None = None
        if broker_config:
            files = BrokerConfig(self._root.vfs, self._root.root)
            self._config = ConfigFollower(
                files, lambda: self._connect(self._host, self._port), self._raw_end,
                self._monotonic,
            )  # fmt: skip
        if self._root.has_log:
            self._store = self._root.open(self.address, take_over=take_over, background=background)
            self._store.show_replication(self._described)
            self._status.end = self._store.raw_end

    @property
    def store(self) -> SlaveStore:
        """The store, to be read; StoreClosed before the first frame of an empty root came."""
        if self._store is None:
            raise StoreClosed(f"{self._root.root}: nothing has come from {self.address} yet")
        return self._store

    @property
    def failed(self) -> TubeStoreError | None:
        """Why the mirror has stopped by itself; None while it runs."""
        return self._failed

    def status(self) -> MirrorStatus:
        """Return what the mirror does now."""
        with self._lock:
            found = self._status
            behind = self._store.dispatch_behind_bytes if self._store is not None else 0
            return MirrorStatus(
                found.state, found.end, found.up_to_date, found.received_bytes,
                found.connections, found.trouble, behind,
                self._config.trouble if self._config is not None else None,
            )  # fmt: skip

    def wait_reached(self, physical_offset: int, timeout: Seconds) -> bool:
        """Wait until everything below the offset is in the log and was handed to queues and index.

        False if `timeout` passed before (seconds, a timedelta, or "1s"); raises why the mirror
        has stopped.
        """
        seconds = checked_wait(physical_offset, timeout, 0.0)
        with self._lock:
            if not self._lock.wait_for(
                lambda: self._failed or (self._status.end or 0) >= physical_offset, seconds
            ):
                return False
        if self._failed is not None:
            raise again(self._failed)
        return physical_offset == 0 or self.store.wait_dispatched(
            self.store.max_physical_offset - 1, timeout
        )

    def start(self) -> None:
        """Start the thread that follows."""
        self._thread = threading.Thread(target=self.run, name="HAClient", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Let `run` end soon; from any thread or a signal's handler."""
        self._stop.set()
        if self._config is not None:
            self._config.stop()
        connection = self._socket
        if connection is not None:
            _shut(connection)

    def close(self) -> None:
        """Stop following and close the store. Harmless when repeated."""
        self.stop()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join(_JOIN_SECONDS)
        if self._store is not None:
            self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def run(self) -> None:
        """Follow until `stop`; raises nothing: `failed` has why it stopped by itself."""
        wait = self._slave_timeout if self._delays_reports else 0.0
        retry = self._retry_seconds
        self._begin_config()
        try:
            while not self._waits(wait):
                before = self._status.received_bytes
                self._follow_once()
                retry = self._retry_seconds if self._status.received_bytes > before else retry
                wait = max(retry, self._slave_timeout if self._delays_reports else 0.0)
                retry = min(2 * retry, max(_RETRY_SECONDS_MAX, self._retry_seconds))
        except TubeStoreError as error:
            self._note_failed(error)
        except Exception as error:
            _log.exception("the mirror of %s stopped", self.address)
            self._note_failed(StoreFailed(self._root.root, f"the mirror stopped: {error!r}"))
        if self._config is not None:
            self._config.stop()
            self._config.join()
        self._set(state="stopped", up_to_date=False)

    def _begin_config(self) -> None:
        """Start to follow the configuration.

        The first request comes before the log: the store has to know topics of batches at its
        opening.
        """
        if self._config is not None:
            self._config.round()
            self._config.start()

    def _raw_end(self) -> int | None:
        """Return up to where the log is there; None without a store."""
        with self._lock:
            return self._status.end if self._store is not None else None

    @property
    def _delays_reports(self) -> bool:
        """True if a report now could release a put for which the master waits."""
        return self._acknowledge == "no" and self._store is not None and self._store.raw_end > 0

    def _waits(self, seconds: float) -> bool:
        """Wait before the next attempt; True if the mirror is to stop."""
        if seconds and not self._stop.is_set():
            self._set(state="waiting")
        return self._stop.wait(seconds)

    def _follow_once(self) -> None:
        """Connect and follow until the connection ends."""
        self._set(state="connecting")
        try:
            connection = self._connect(self._host, self._port)
        except OSError as error:
            self._note_trouble(f"cannot connect: {error.strerror or error}")
            return
        self._socket = connection
        try:
            if not self._stop.is_set():
                self._set(connections=self._status.connections + 1)
                self._follow(connection)
        except _Ended as ended:
            self._note_trouble(str(ended))
        except OSError as error:  # of the mirror's disk, such as `DiskFull`
            self._note_trouble(str(error))
        finally:
            self._socket = None
            connection.close()
            self._set(up_to_date=False)

    def _follow(self, connection: socket.socket) -> None:
        """Follow over one connection; raises `_Ended` at its end."""
        end = self._store.discard_raw() if self._store is not None else 0
        side = SlaveSide(
            end, self._monotonic(), acknowledges=self._acknowledge != "no",
            heartbeat_seconds=self._heartbeat_seconds,
        )  # fmt: skip
        buffer = memoryview(bytearray(_RECEIVE_BYTES))
        while not self._stop.is_set():
            now = self._monotonic()
            silent = side.check_time(now)
            if silent is not None:
                raise _Ended(silent.reason)
            report = side.data_to_send(now)
            connection.settimeout(min(max(side.next_time - now, 0.001), _QUIET_SECONDS))
            try:
                if report:
                    connection.sendall(report)
                size = connection.recv_into(buffer)
            except TimeoutError:
                if self._status.state == "following":
                    self._set(up_to_date=True)
                continue
            except OSError as error:
                raise _Ended(f"the connection failed: {error.strerror or error}") from error
            if not size:
                if self._stop.is_set():
                    return
                fault = side.ended()
                raise _Ended(fault.reason if fault is not None else "the connection ended")
            for event in side.receive(buffer[:size], self._monotonic()):
                self._take(event)
            if self._store is not None:
                side.stored(self._reached())

    def _take(self, event: Event) -> None:
        """Write what an event brings."""
        if isinstance(event, Fault):
            raise _Ended(event.reason)
        store = self._store
        if store is None or (store.next_raw_offset == 0 and event.offset):
            store = self._begin(event.offset)
        if isinstance(event, Heartbeat):
            self._set(state="following", trouble=None, up_to_date=True, end=store.raw_end)
            return
        assert isinstance(event, Body)
        data = event.data
        try:
            end = store.append_raw(event.offset, data)
        except CorruptRecord as error:
            self._note_damage(error, store.raw_end)
            raise _Ended(f"the master sent bytes that are not a sound record: {error}") from error
        self._set(
            state="following", trouble=None, up_to_date=False, end=end,
            received_bytes=self._status.received_bytes + len(data),
        )  # fmt: skip

    def _begin(self, offset: int) -> SlaveStore:
        """Begin the log of an empty root at the master's offset."""
        if self._store is not None:
            self._store.close()
            self._store = None
        if self._config is not None:
            self._config.write_tables()
        self._store = self._root.open(self.address, begin=offset, background=self._background)
        self._store.show_replication(self._described)
        return self._store

    def _reached(self) -> int:
        """Return up to where the log may be reported, at the level that was asked for."""
        store = self.store
        if self._acknowledge == "fsync":
            store.flush_log()
        return store.raw_end

    def _described(self) -> ReplicationState:
        """Return what the store's statistics show."""
        status = self.status()
        running = {"HAClient": self._thread is not None and self._thread.is_alive()}
        if self._config is not None:
            running[CONFIG_THREAD] = self._config.is_running
        stopped = self._failed is not None
        services = {name: {"running": on, "stopped": stopped} for name, on in running.items()}
        return ReplicationState(
            "SLAVE", services,
            int(status.state == "following"), status.received_bytes,
            status.dispatch_behind_bytes, {},
        )  # fmt: skip

    def _note_damage(self, error: CorruptRecord, at: int) -> None:
        """Give up when the same place came damaged twice: it is so in the master's log."""
        if at == self._damaged_at:
            raise StoreFailed(
                self._root.root,
                f"the mirror stopped at {at}: {self.address} sent the same damage twice: {error}",
            ) from error
        self._damaged_at = at

    def _note_trouble(self, reason: str) -> None:
        """Keep why a connection ended; logged when it is another reason than before."""
        if self._stop.is_set():
            return
        if reason != self._status.trouble:
            _log.warning("%s: %s", self.address, reason)
        self._set(trouble=reason)

    def _note_failed(self, error: TubeStoreError) -> None:
        _log.error("%s", error)
        with self._lock:
            self._failed = error
            self._lock.notify_all()

    def _set(self, **values: Any) -> None:
        with self._lock:
            for name, value in values.items():
                setattr(self._status, name, value)
            self._lock.notify_all()


def _connected(tls: ssl.SSLContext | None, host: str, port: int) -> socket.socket:
    """Return a connection to the master, with TLS if there is a context."""
    connection = socket.create_connection((host, port), _CONNECT_SECONDS)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if tls is None:
        return connection
    try:
        return tls.wrap_socket(connection, server_hostname=host)
    except BaseException:
        connection.close()
        raise


def _shut(connection: socket.socket) -> None:
    """Wake a thread that waits for the connection."""
    with contextlib.suppress(OSError):  # it has ended already
        connection.shutdown(socket.SHUT_RDWR)
