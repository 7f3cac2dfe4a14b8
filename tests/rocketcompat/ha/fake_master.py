"""A master of the HA protocol on the loopback, which a test drives: one thread a connection."""

from __future__ import annotations

import socket
import threading
from types import TracebackType
from typing import Self

from rocketcompat.ha.frames import FRAME_HEADER, REPORT
from rocketcompat.store.default_message_store import DefaultMessageStore
from tests.support.rocket.inside import log_of


class FakeMaster:
    """Accepts one slave after the other; `reports` has what each one sent."""

    def __init__(self) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self._server.settimeout(30)
        self.port = int(self._server.getsockname()[1])
        self.reports: list[int] = []
        self._peer: socket.socket | None = None
        self.accepted = 0

    def accept(self) -> int:
        """Wait for a slave; returns its first report."""
        self.hang_up()
        self._peer, _ = self._server.accept()
        self._peer.settimeout(30)
        self.accepted += 1
        return self.report()

    def report(self) -> int:
        """Wait for the next report."""
        assert self._peer is not None
        data = b""
        while len(data) < REPORT.size:
            part = self._peer.recv(REPORT.size - len(data))
            assert part, "the slave closed the connection"
            data += part
        self.reports.append(int(REPORT.unpack_from(data).offset))
        return self.reports[-1]

    def closed(self) -> bool:
        """Wait until the slave has closed the connection; reports before that are passed over."""
        assert self._peer is not None
        try:
            while self._peer.recv(100):
                pass
        except ConnectionError:
            pass
        return True

    def send(self, offset: int, body: bytes = b"") -> None:
        """Send a frame."""
        self.send_raw(FRAME_HEADER.pack(offset=offset, body_size=len(body)) + body)

    def send_raw(self, data: bytes) -> None:
        """Send bytes."""
        assert self._peer is not None
        self._peer.sendall(data)

    def send_log(self, store: DefaultMessageStore, start: int, size: int = 1 << 20) -> int:
        """Send the store's log from an offset on, a frame a file; returns the end."""
        while start < store.max_physical_offset and size:
            body = log_of(store).read_at(start, size)
            self.send(start, body)
            start += len(body)
        return start

    def hang_up(self) -> None:
        """Close the connection."""
        if self._peer is not None:
            self._peer.close()
            self._peer = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.hang_up()
        self._server.close()


def threads() -> set[str]:
    """Return the names of the threads that run."""
    return {thread.name for thread in threading.enumerate()}
