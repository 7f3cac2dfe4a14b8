"""Asks a broker for its role: one GET_BROKER_CONFIG over RocketMQ's remoting protocol.

The HA protocol does not carry the master's role. A broker answers on its own port, which is the HA
port less one unless it was configured otherwise.
"""

from __future__ import annotations

import json
import os
import socket
import struct
from typing import Any

from tubestore.core.vfs import Vfs
from tubestore.errors import NotAStore

#: The file of epochs that 5.x's controller mode keeps in a store's root.
EPOCH_FILE = "epochFileCheckpoint"
#: The request code of GET_BROKER_CONFIG.
_GET_BROKER_CONFIG = 26
#: Bytes of the largest answer that is taken.
_ANSWER_SIZE_MAX = 1 << 20
_LENGTHS = struct.Struct(">ii")


def refuse_controller_mode(vfs: Vfs, root: str) -> None:
    """Raise NotAStore for the root of a broker in controller mode: it replicates otherwise."""
    if vfs.exists(os.path.join(root, EPOCH_FILE)):
        raise NotAStore(
            root,
            f"has {EPOCH_FILE}: its broker runs in controller mode, which has another replication"
            " protocol that is not supported",
        )


def broker_options(host: str, port: int, timeout: float = 3.0) -> dict[str, str] | None:
    """Return a broker's options, with RocketMQ's names; None if no broker answers there."""
    import javaproperties

    try:
        with socket.create_connection((host, port), timeout) as connection:
            connection.sendall(_request())
            size = _LENGTHS.unpack(_exactly(connection, _LENGTHS.size))
            body_size = size[0] - 4 - (size[1] & 0xFFFFFF)
            if not (0 <= body_size <= size[0] <= _ANSWER_SIZE_MAX):
                return None
            header: Any = json.loads(_exactly(connection, size[1] & 0xFFFFFF))
            body = _exactly(connection, body_size)
            if not isinstance(header, dict) or header.get("code") != 0:
                return None
            return dict(javaproperties.loads(body.decode("utf-8", "replace")))
    except (OSError, ValueError):
        return None


def _request() -> bytes:
    header = json.dumps({
        "code": _GET_BROKER_CONFIG, "flag": 0, "language": "JAVA", "opaque": 1,
        "serializeTypeCurrentRPC": "JSON", "version": 399,
    }).encode()  # fmt: skip
    return _LENGTHS.pack(4 + len(header), len(header)) + header


def _exactly(connection: socket.socket, size: int) -> bytes:
    """Receive so many bytes; OSError if the connection ends before."""
    data = bytearray()
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise ConnectionError("the broker closed the connection")
        data += part
    return bytes(data)
