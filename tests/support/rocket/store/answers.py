"""Answers that give a broker's role."""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def broker(answer: bytes) -> Iterator[int]:
    """A broker that gives one answer; yields its port."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(30)

        def serve() -> None:
            peer, _ = server.accept()
            with peer:
                size = struct.unpack(">i", peer.recv(4))[0]
                request = b""
                while len(request) < size:
                    request += peer.recv(size - len(request))
                header = json.loads(request[4 : 4 + struct.unpack(">i", request[:4])[0]])
                assert (header["code"], header["flag"]) == (26, 0)
                peer.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield server.getsockname()[1]
        thread.join()


def answer(body: bytes, code: int = 0) -> bytes:
    header = json.dumps({"code": code, "flag": 1, "opaque": 1}).encode()
    return struct.pack(">ii", 4 + len(header) + len(body), len(header)) + header + body
