"""TLS between a master and a mirror of this package."""

from __future__ import annotations

import socket
import ssl
from pathlib import Path

import pytest

import rocketcompat
from rocketcompat import Message, MessageStoreConfig
from rocketcompat.ha.frames import REPORT
from rocketcompat.ha.mirror import Mirror
from rocketcompat.ha.server import HaServer
from rocketcompat.ha.tls import client_context, server_context
from tubestore.errors import InvalidMessage

CONFIG = MessageStoreConfig(mapped_file_size_commit_log=4096, layouts=frozenset())
#: Made for these tests with openssl, valid for a hundred years: `ca` has signed `server` and
#: `client`, and `other` nothing.
PEM = {path.stem: str(path) for path in Path(__file__).with_name("certificates").glob("*.pem")}


def connected(
    tmp_path: Path, server: ssl.SSLContext | None, client: ssl.SSLContext | None
) -> tuple[bool, str | None]:
    """Return whether a mirror gets the log with these contexts, and its trouble."""
    with (
        rocketcompat.open(tmp_path / "master", "w", CONFIG) as store,
        HaServer(store, port=0, tls=server, silence_seconds=1.0) as master,
    ):
        store.put_columns({"topic": ["T"] * 500, "body": [b"x" * 2000] * 500})
        end = store.max_physical_offset
        master.start()
        address = ("127.0.0.1", master.port)
        with Mirror(tmp_path / "mirror", *address, CONFIG, tls=client) as mirror:
            mirror.start()
            while mirror.status().trouble is None:
                if mirror.wait_reached(end, 0.01):
                    return True, None
            return False, mirror.status().trouble


def test_a_mirror_follows_over_tls_with_certificates_on_both_sides(tmp_path: Path) -> None:
    server = server_context(PEM["server"], authorities=PEM["ca"])
    client = client_context(PEM["ca"], PEM["client"])
    assert connected(tmp_path, server, client) == (True, None)


def test_a_master_with_a_certificate_of_another_authority_is_not_followed(tmp_path: Path) -> None:
    found, trouble = connected(
        tmp_path, server_context(PEM["server"]), client_context(PEM["other"])
    )
    assert not found
    assert "CERTIFICATE_VERIFY_FAILED" in str(trouble)


def test_a_slave_without_a_certificate_is_refused_where_one_is_asked_for(tmp_path: Path) -> None:
    server = server_context(PEM["server"], authorities=PEM["ca"])
    found, trouble = connected(tmp_path, server, client_context(PEM["ca"]))
    assert not found
    assert trouble


@pytest.mark.parametrize("plain", ["client", "server"])
def test_a_side_without_tls_gets_nothing_from_one_with_it(plain: str, tmp_path: Path) -> None:
    server = None if plain == "server" else server_context(PEM["server"])
    client = None if plain == "client" else client_context(PEM["ca"])
    assert not connected(tmp_path, server, client)[0]


def test_a_file_that_is_no_certificate_is_refused(tmp_path: Path) -> None:
    bad = tmp_path / "bad.pem"
    bad.write_text("no")
    for make in (
        lambda: server_context(str(bad)),
        lambda: server_context(str(tmp_path / "none.pem")),
        lambda: server_context(PEM["server"], authorities=str(bad)),
        lambda: client_context(str(bad)),
        lambda: client_context(PEM["ca"], PEM["ca"]),
    ):
        with pytest.raises(InvalidMessage, match="pem"):
            make()


def test_a_report_that_comes_with_the_end_of_the_handshake_is_answered_over_tls(
    tmp_path: Path,
) -> None:
    sent, received = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_context(PEM["ca"]).wrap_bio(received, sent, server_hostname="127.0.0.1")
    with (
        rocketcompat.open(tmp_path / "master", "w", CONFIG) as store,
        HaServer(store, port=0, tls=server_context(PEM["server"])) as master,
    ):
        store.put_message(Message("T", b"secret"))
        master.start()
        with socket.create_connection(("127.0.0.1", master.port), 30) as peer:
            while True:
                try:
                    client.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    peer.sendall(sent.read())
                    received.write(peer.recv(1 << 16))
            client.write(REPORT.pack(offset=0))
            peer.sendall(sent.read())  # the handshake's end too
            plain = b""
            while b"secret" not in plain:
                try:
                    plain += client.read()
                except ssl.SSLWantReadError:
                    raw = peer.recv(1 << 16)
                    assert raw, master.status().ended
                    received.write(raw)


def test_limits_hold_before_the_handshake(tmp_path: Path) -> None:
    tls = server_context(PEM["server"])
    with (
        rocketcompat.open(tmp_path / "master", "w", CONFIG) as store,
        HaServer(store, port=0, tls=tls, connections_max=2) as master,
        HaServer(store, port=0, tls=tls, allow=["10.0.0.0/8"]) as closed,
    ):
        master.start()
        closed.start()
        silent = [socket.create_connection(("127.0.0.1", master.port)) for _ in range(2)]
        while len(master.status().slaves) < 2:
            pass
        for port in (master.port, closed.port):
            # Less than a handshake may take.
            with socket.create_connection(("127.0.0.1", port), 5) as peer:
                assert peer.recv(1) == b""
        assert master.status().ended[-1][1] == "2 slaves are connected already"
        assert closed.status().ended[-1][1] == "not an allowed peer"
        silent[0].sendall(b"GET / HTTP/1.1\r\n\r\n" * 10)
        while len(master.status().slaves) == 2:
            pass
        assert master.status().ended[-1][1].startswith("TLS: ")
        for peer in silent:
            peer.close()
