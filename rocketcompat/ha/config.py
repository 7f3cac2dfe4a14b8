"""A broker's configuration on its way from a master to its mirror, on a connection of its own.

RocketMQ's slave asks its master's broker for topics, subscription groups, consumer offsets and
delay offsets every ten seconds (SlaveSynchronize), by remoting calls. Here the mirror asks on the
HA port: the first report is `CONFIG_REQUEST`, the answer one frame, and the connection ends with
it. Only two sides of this package do so.

Always true:
- only the four files of `FILES` are written, each whole;
- an answer with one file that is not valid changes nothing;
- offsets are written once the log has everything that they may refer to.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from rocketcompat.files.broker_config import (
    CONSUMER_OFFSET_FILE,
    DELAY_OFFSET_FILE,
    LONG_MAX,
    SUBSCRIPTION_GROUP_FILE,
    TOPICS_FILE,
    BrokerConfig,
    check_config,
)
from rocketcompat.ha.frames import CONFIG_REQUEST, CONFIG_SIZE_MAX, FRAME_HEADER, REPORT
from tubestore.core.doors import logger
from tubestore.core.state_file import parse_json
from tubestore.errors import TubeStoreError
from tubestore.values import whole_number

_log = logger(__name__)
FORMAT = 1
#: Files that refer to no place in the log, and those that do.
TABLES = (TOPICS_FILE, SUBSCRIPTION_GROUP_FILE)
OFFSETS = (CONSUMER_OFFSET_FILE, DELAY_OFFSET_FILE)
FILES = (*TABLES, *OFFSETS)
CONFIG_THREAD = "HAConfigClient"
_JOIN_SECONDS = 60.0
#: Seconds between two requests, as SlaveSynchronize has them; while an answer waits for the log;
#: and for one request.
_EVERY_SECONDS, _WAITING_SECONDS, _ASK_SECONDS = 10.0, 1.0, 5.0


@dataclass(frozen=True, slots=True)
class BrokerFiles:
    """An answer: the files by name, and an end of the master's log behind all that they name."""

    log_end: int
    files: dict[str, bytes]


def config_frame(config: BrokerConfig, log_end: Callable[[], int]) -> bytes:
    """Return the frame that answers a request; ValueError if it is too large.

    The log's end is taken after the files were read.
    """
    files = {name: raw.decode() for name in FILES if (raw := config.raw(name)) is not None}
    body = json.dumps({"format": FORMAT, "log_end": log_end(), "files": files}).encode()
    if len(body) > CONFIG_SIZE_MAX:
        raise ValueError(f"{len(body)} bytes; at most {CONFIG_SIZE_MAX} are sent")
    return FRAME_HEADER.pack(offset=CONFIG_REQUEST, body_size=len(body)) + body


def ask(connection: socket.socket, now: Callable[[], float]) -> BrokerFiles:
    """Ask over a new connection; ValueError for an answer that is not valid.

    OSError if none comes.
    """
    deadline = now() + _ASK_SECONDS
    connection.settimeout(_ASK_SECONDS)
    connection.sendall(REPORT.pack(offset=CONFIG_REQUEST))
    header = FRAME_HEADER.unpack_from(_exactly(connection, FRAME_HEADER.size, deadline, now))
    if header.offset != CONFIG_REQUEST or not 0 <= header.body_size <= CONFIG_SIZE_MAX:
        raise ValueError("the answer is not a configuration: the master is not of this package")
    return _parsed(_exactly(connection, header.body_size, deadline, now))


def _exactly(
    connection: socket.socket, size: int, deadline: float, now: Callable[[], float]
) -> bytes:
    """Receive so many bytes before the deadline; OSError without them."""
    data = bytearray()
    while len(data) < size:
        left = deadline - now()
        if left <= 0:
            raise TimeoutError("the master did not send its configuration in time")
        connection.settimeout(left)
        part = connection.recv(min(size - len(data), 1 << 16))
        if not part:
            raise ConnectionError("the master closed the connection without its configuration")
        data += part
    return bytes(data)


def _parsed(body: bytes) -> BrokerFiles:
    """Return the content of an answer; ValueError if it is not valid, with all its files."""
    content: Any = parse_json(body)
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ValueError(f"the answer does not have the format {FORMAT}")
    end, given = whole_number(content.get("log_end")), content.get("files")
    if end is None or not 0 <= end <= LONG_MAX:
        raise ValueError("the answer has no end of the log")
    if not isinstance(given, dict):
        raise ValueError("the answer has no files")
    files = {}
    for name in FILES:
        if name in given:
            if not isinstance(given[name], str):
                raise ValueError(f"{name} is not a text")
            files[name] = given[name].encode()
            check_config(name, files[name])
    return BrokerFiles(end, files)


class ConfigFollower:
    """Asks a master now and then, and writes what it answers below a mirror's root.

    `end` returns up to where the mirror has the log; None while it has none, and then nothing is
    written. `trouble` is why the last round failed.
    """

    def __init__(
        self, files: BrokerConfig, connect: Callable[[], socket.socket],
        end: Callable[[], int | None], now: Callable[[], float],
    ) -> None:  # fmt: skip
        self._files, self._connect, self._end, self._now = files, connect, end, now
        self._answer: BrokerFiles | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        #: Held while files are written: the thread that opens the store writes tables too.
        self._writing = threading.Lock()
        self.trouble: str | None = None
        #: Files that were replaced.
        self.changes = 0

    def start(self) -> None:
        """Start the thread."""
        self._stop.clear()
        self._thread = threading.Thread(target=self._run, name=CONFIG_THREAD, daemon=True)
        self._thread.start()

    @property
    def is_running(self) -> bool:
        """True while the thread runs."""
        return self._thread is not None and self._thread.is_alive()

    def stop(self) -> None:
        """Let the thread end soon; from any thread or a signal's handler."""
        self._stop.set()

    def join(self) -> None:
        """Wait for the thread's end."""
        if self._thread is not None:
            self._thread.join(_JOIN_SECONDS)

    def _run(self) -> None:
        while not self._stop.is_set():
            self.round()
            self._stop.wait(_EVERY_SECONDS if self._answer is None else _WAITING_SECONDS)

    def round(self) -> None:
        """Ask, unless an answer waits, and write as much of it as the log has reached."""
        trouble = None
        try:
            if self._answer is None:
                with self._connect() as connection:
                    self._answer = ask(connection, self._now)
            end = self._end()
            if end is not None:
                self.write_tables()
                if end >= self._answer.log_end:
                    self._write(OFFSETS)
                    self._answer = None
        except (OSError, ValueError, TubeStoreError) as error:
            trouble = f"the configuration is not followed: {error}"
            self._answer = None
        if trouble is not None and trouble != self.trouble:
            _log.warning("%s", trouble)
        self.trouble = trouble

    def write_tables(self) -> None:
        """Write topics and subscription groups of the answer that waits."""
        self._write(TABLES)

    def _write(self, names: Iterable[str]) -> None:
        answer = self._answer
        with self._writing:
            for name in names:
                if answer is not None and name in answer.files:
                    self.changes += self._files.write_raw(name, answer.files[name])
