"""`follow` and `promote`: a mirror by the command line."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import rocketcompat
from rocketcompat import Message, MessageStoreConfig
from rocketcompat.cli.replicating import _address_of
from rocketcompat.ha.server import HaServer
from rocketcompat.ha.tls import server_context
from tests.rocketcompat.ha.fake_master import FakeMaster
from tests.rocketcompat.ha.test_server import Slave
from tests.rocketcompat.ha.test_tls import PEM
from tests.support.command import Command
from tests.support.rocket.cli import command_fixture as command_fixture
from tests.support.rocket.store.answers import answer, broker
from tubestore.cli.kit.errors import UsageMistake

CONFIG = MessageStoreConfig(
    mapped_file_size_commit_log=4096, max_hash_slot_num=16, max_index_num=100,
    layouts=frozenset({"consume_queue", "index"}),
)  # fmt: skip

OPTIONS = ("-o", "mappedFileSizeCommitLog=4096", "-o", "maxHashSlotNum=16", "-o", "maxIndexNum=100")

NO_WAIT = ("--idle-timeout", "600ms", "--slave-timeout", "0s", "--format", "jsonl")


@contextmanager
def serving(path: Path, count: int, times: int = 1) -> Iterator[tuple[FakeMaster, int]]:
    """A master that sends its whole log to so many slaves, one after the other."""
    with (
        FakeMaster() as master,
        rocketcompat.open(path / "master", "w", CONFIG) as store,
    ):
        for number in range(count):
            store.put_message(Message("orders", b"%d" % number, keys=f"k{number}"))

        def serve() -> None:
            for _ in range(times):
                begin = master.accept()
                master.send(begin)
                master.send_log(store, begin)

        thread = threading.Thread(target=serve)
        thread.start()
        yield master, store.max_physical_offset
        thread.join()


def test_follow_copies_a_master_and_goes_on_and_promote_makes_it_a_store(
    tmp_path: Path, command: Command
) -> None:
    root = tmp_path / "mirror"
    with serving(tmp_path, 30, times=2) as (master, end):
        address = f"127.0.0.1:{master.port}"
        done = command("follow", address, root, *OPTIONS, *NO_WAIT)
        assert (done.code, done.rows[0]["end"], done.rows[0]["master"]) == (0, end, address)
        assert "the role of" in done.err
        again = command("follow", address, root, *NO_WAIT, "--broker-port", "1")
        assert (again.code, again.rows[0]["received_bytes"]) == (0, 0)
    assert len(command("query", root, "-t", "orders", "-k", "k7", "--format", "jsonl").rows) == 1
    assert command("check", root).code == 0
    refused = command("recover", root)
    assert refused.code == 3
    assert f"is a mirror of {address}" in refused.err
    assert command("promote", root, "--format", "jsonl").rows == [{"log_end": end}]
    assert command("promote", root).code == 3
    assert command("recover", root).code == 0


def test_options_are_refused_before_the_master_is_asked(tmp_path: Path, command: Command) -> None:
    wrong = ("-o", "mappedFileSizeCommitLog=abc")
    for mistake in (wrong, ("-o", "bogus=1"), ("--tls-cert", "x")):
        refused = command("follow", "127.0.0.1:1", tmp_path / "m", *mistake)
        assert refused.code == 2
        assert refused.err.count("\n") == 1
        assert "role" not in refused.err


def test_a_sync_master_is_refused_without_the_option(tmp_path: Path, command: Command) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text("brokerName=a\nbrokerRole=SYNC_MASTER\n")
    refused = command("follow", "127.0.0.1:1", tmp_path / "m", "--conf", conf)
    assert refused.code == 2
    assert "is a SYNC_MASTER" in refused.err
    assert "--sync-master follows it" in refused.err
    assert not (tmp_path / "m").exists()
    with serving(tmp_path, 3) as (master, end):
        arguments = ("--conf", conf, "--sync-master", *OPTIONS, *NO_WAIT)
        done = command("follow", f"127.0.0.1:{master.port}", tmp_path / "m", *arguments)
    assert (done.code, done.rows[0]["end"]) == (0, end)
    assert "gets FLUSH_SLAVE_TIMEOUT" in done.err


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"brokerRole=SYNC_MASTER\nflushDiskType=ASYNC_FLUSH\n", "is a SYNC_MASTER"),
        (b"brokerRole=ASYNC_MASTER\nenableControllerMode=true\n", "controller mode"),
    ],
)
def test_the_role_is_asked_of_the_broker(
    body: bytes, reason: str, tmp_path: Path, command: Command
) -> None:
    with broker(answer(body)) as port:
        refused = command("follow", "127.0.0.1:1", tmp_path / "m", "--broker-port", port)
    assert refused.code == 2
    assert reason in refused.err


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("broker", ("broker", 10912)),
        ("broker:1", ("broker", 1)),
        ("10.0.0.1:65535", ("10.0.0.1", 65535)),
        ("[::1]:7", ("::1", 7)),
        ("::1", ("::1", 10912)),
        ("[::1]", ("::1", 10912)),
    ],
)
def test_an_address_is_host_and_port(text: str, found: tuple[str, int]) -> None:
    assert _address_of(text) == found


@pytest.mark.parametrize("text", ["", ":1", "a:", "a:0", "a:65536", "a:b"])
def test_an_address_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UsageMistake, match="HOST:PORT"):
        _address_of(text)


def test_serve_ha_serves_a_store_that_another_process_writes(
    tmp_path: Path, command: Command
) -> None:
    root, port = tmp_path / "master", free_port()
    got: list[bytes] = []

    def follow(end: int, store: rocketcompat.DefaultMessageStore) -> None:
        slave = connected(port)
        slave.report(0)
        got.append(slave.log(0, end))
        for _ in range(3):
            store.put_message(Message("orders", b"later"))
        got.append(slave.log(end, store.max_physical_offset))
        slave.close()

    with rocketcompat.open(root, "w", CONFIG) as store:
        for number in range(30):
            store.put_message(Message("orders", b"%d" % number))
        end = store.max_physical_offset
        thread = threading.Thread(target=follow, args=(end, store))
        thread.start()
        arguments = ("--listen", f"127.0.0.1:{port}", "--first", "FULL", "--idle-timeout", "0.5")
        done = command("serve-ha", root, *OPTIONS, *arguments, "--format", "jsonl")
        thread.join()
        assert done.code == 0
        assert done.rows[0]["sent_bytes"] == store.max_physical_offset
        assert b"".join(got) == store.commit_log_data(0)[: store.max_physical_offset]
    assert f"slaves connect to 127.0.0.1:{port}" in done.err
    assert "closed: the slave closed the connection" in done.err


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def connected(port: int) -> Slave:
    """A slave of a server that is about to start."""
    while True:
        try:
            return Slave(port)
        except ConnectionRefusedError:
            continue


def test_a_broker_in_controller_mode_is_refused_on_both_sides(
    tmp_path: Path, command: Command
) -> None:
    rocketcompat.open(tmp_path / "store", "w", CONFIG).close()
    (tmp_path / "store" / "epochFileCheckpoint").write_text("1-0")
    for arguments in (
        ("serve-ha", tmp_path / "store"),
        ("follow", "127.0.0.1:1", tmp_path / "store", "--broker-port", "1"),
    ):
        refused = command(*arguments)
        assert refused.code == 3
        assert "controller mode" in refused.err


def test_follow_and_serve_ha_use_tls(tmp_path: Path, command: Command) -> None:
    root = tmp_path / "mirror"
    with rocketcompat.open(tmp_path / "master", "w", CONFIG) as store:
        end = store.put_message(Message("orders", b"x")).size
        tls = server_context(PEM["server"], authorities=PEM["ca"])
        with HaServer(store, port=0, tls=tls) as server:
            server.start()
            address = f"127.0.0.1:{server.port}"
            own = ("--tls-ca", PEM["ca"], "--tls-cert", PEM["client"])
            done = command("follow", address, root, *OPTIONS, *NO_WAIT, *own, "--broker-port", 1)
            assert (done.code, done.rows[0]["end"]) == (0, end)
        alone = command("follow", address, root, "--tls-cert", PEM["client"], "--broker-port", 1)
        assert (alone.code, "--tls-ca names" in alone.err) == (2, True)
        master = tmp_path / "master"
        alone = command("serve-ha", master, "--tls-ca", PEM["ca"])
        assert (alone.code, "--tls-cert is" in alone.err) == (2, True)
        pair = ("--tls-cert", PEM["server"], "--idle-timeout", "0.1", "--listen", "127.0.0.1:0")
        listening = ("serve-ha", master, *OPTIONS, *pair, "--batch-size", "64KiB")
        done = command(*listening, "--format", "jsonl")
        assert (done.code, done.rows[0]["accepted"]) == (0, 0)
