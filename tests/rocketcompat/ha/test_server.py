"""A master of ours on the loopback: positions, limits, time-outs, hostile slaves."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import rocketcompat
from rocketcompat import BatchItem, Message, MessageBatch, MessageStoreConfig, metrics
from rocketcompat.ha.frames import FRAME_HEADER, REPORT
from rocketcompat.ha.mirror import Mirror
from rocketcompat.ha.server import HaServer
from rocketcompat.messages import PutStatus
from rocketcompat.store.default_message_store import DefaultMessageStore
from tests.rocketcompat.ha.fake_master import threads
from tubestore.clock import ManualClock
from tubestore.errors import InvalidMessage, StorageError

SIZE = 4096
CONFIG = MessageStoreConfig(
    mapped_file_size_commit_log=SIZE,
    mapped_file_size_consume_queue=200,
    max_hash_slot_num=16,
    max_index_num=100,
    layouts=frozenset({"consume_queue", "index"}),
)
ServerOf = Callable[..., HaServer]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[DefaultMessageStore]:
    with rocketcompat.open(tmp_path / "master", "w", CONFIG) as store:
        yield store


@pytest.fixture
def server_of(store: DefaultMessageStore) -> Iterator[ServerOf]:
    made: list[HaServer] = []

    def make(**given: object) -> HaServer:
        server = HaServer(store, port=0, **given)  # type: ignore[arg-type]
        made.append(server)
        server.start()
        return server

    yield make
    for server in made:
        server.close()
    assert "HAService" not in threads()


class Slave:
    """A raw socket as slave."""

    def __init__(self, port: int, buffer_size: int | None = None) -> None:
        self._socket = socket.socket()
        if buffer_size is not None:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_size)
        self._socket.settimeout(30)
        try:
            self._socket.connect(("127.0.0.1", port))
        except OSError:
            self._socket.close()
            raise

    def report(self, offset: int) -> None:
        self._socket.sendall(REPORT.pack(offset=offset))

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = self._socket.recv(size - len(data))
            assert part, "the master closed the connection"
            data += part
        return data

    def frame(self) -> tuple[int, bytes]:
        header = FRAME_HEADER.unpack_from(self.read(FRAME_HEADER.size))
        return header.offset, self.read(header.body_size)

    def log(self, start: int, end: int) -> bytes:
        """Read frames from `start` up to `end`; each begins where the one before ended."""
        data = b""
        while start + len(data) < end:
            offset, body = self.frame()
            assert offset == start + len(data)
            assert len(body) <= SIZE - offset % SIZE
            data += body
        return data

    def closed(self) -> bool:
        """True if the master closes the connection without sending anything."""
        try:
            return self._socket.recv(1) == b""
        except ConnectionError:
            return True

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def slave_of() -> Iterator[Callable[[HaServer], Slave]]:
    made: list[Slave] = []

    def make(server: HaServer) -> Slave:
        made.append(Slave(server.port))
        return made[-1]

    yield make
    for slave in made:
        slave.close()


SlaveOf = Callable[[HaServer], Slave]


def put(store: DefaultMessageStore, count: int) -> int:
    for number in range(count):
        store.put_message(Message(f"T{number % 2}", b"%05d" % number * 40, keys=f"k{number}"))
    return store.max_physical_offset


def log_bytes(path: Path, start: int, end: int) -> bytes:
    names = range(start - start % SIZE, end, SIZE)
    data = b"".join((path / "commitlog" / f"{name:020}").read_bytes() for name in names)
    return data[start % SIZE : end - names[0]]


@pytest.mark.parametrize("first", ["LAST", "FULL"])
def test_an_empty_slave_is_sent_the_last_file_or_the_whole_log(
    first: str, store: DefaultMessageStore, server_of: ServerOf, slave_of: SlaveOf, tmp_path: Path
) -> None:
    end = put(store, 60)
    slave = slave_of(server_of(first=first))
    slave.report(0)
    start = end - end % SIZE if first == "LAST" else 0
    assert slave.log(start, end) == log_bytes(tmp_path / "master", start, end)


def test_frames_have_the_configured_size_at_most(
    store: DefaultMessageStore, server_of: ServerOf, slave_of: SlaveOf
) -> None:
    put(store, 60)
    slave = slave_of(server_of(batch_size=100))
    slave.report(1000)
    assert [len(slave.frame()[1]) for _ in range(5)] == [100] * 5


def test_a_slave_gets_what_is_put_while_it_is_connected_and_its_lag_is_shown(
    store: DefaultMessageStore, server_of: ServerOf, slave_of: SlaveOf, tmp_path: Path
) -> None:
    server = server_of()
    slave = slave_of(server)
    slave.report(0)
    end, start = 0, 0
    for _ in range(5):
        end = put(store, 7)
        assert slave.log(start, end) == log_bytes(tmp_path / "master", start, end)
        start = end
    while server.status().slaves[0].sent != end:
        pass
    (row,) = server.status().slaves
    assert (row.state, row.requested, row.sent, row.lag_bytes) == ("streaming", 0, end, end)
    slave.report(end)
    while server.status().slaves[0].acknowledged != end:
        pass
    assert server.status().slaves[0].lag_bytes == 0
    slave.close()
    while server.status().slaves:
        pass
    assert server.status().ended[-1][1] == "the slave closed the connection"
    assert server.status().sent_bytes == end


@pytest.mark.parametrize(
    ("requested", "reason"), [(10**6, "it has messages that this master lacks"), (-5, "a report")]
)
def test_a_slave_that_cannot_be_served_is_closed_with_the_reason(
    requested: int, reason: str, store: DefaultMessageStore, server_of: ServerOf, slave_of: SlaveOf
) -> None:
    put(store, 3)
    server = server_of()
    slave = slave_of(server)
    slave.report(requested)
    assert slave.closed()
    assert reason in server.status().ended[-1][1]


def test_an_acknowledgement_of_more_than_was_sent_ends_that_connection_alone(
    store: DefaultMessageStore, server_of: ServerOf, slave_of: SlaveOf
) -> None:
    end = put(store, 3)
    server = server_of()
    sound, liar = slave_of(server), slave_of(server)
    for slave in (sound, liar):
        slave.report(0)
        slave.log(0, end)
    liar.report(1 << 60)
    assert liar.closed()
    assert "only" in server.status().ended[-1][1]
    assert [row.acknowledged for row in server.status().slaves] == [0]
    more = put(store, 3)
    assert len(sound.log(end, more)) == more - end


def test_a_peer_that_is_not_allowed_and_one_too_many_are_closed(
    store: DefaultMessageStore, server_of: ServerOf, slave_of: SlaveOf
) -> None:
    foreign = server_of(allow=["10.0.0.0/8"])
    assert slave_of(foreign).closed()
    assert foreign.status().ended[-1][1] == "not an allowed peer"
    full = server_of(connections_max=2)
    kept = [slave_of(full), slave_of(full)]
    for slave in kept:
        slave.report(0)
    while len(full.status().slaves) < 2:
        pass
    assert slave_of(full).closed()
    assert full.status().refused == 1
    assert full.status().ended[-1][1] == "2 slaves are connected already"


def test_a_silent_slave_is_closed_and_an_idle_one_gets_heartbeats(
    store: DefaultMessageStore, server_of: ServerOf, slave_of: SlaveOf
) -> None:
    end = put(store, 3)
    server = server_of(silence_seconds=0.2, heartbeat_seconds=0.05)
    assert slave_of(server).closed()
    slave = slave_of(server)
    slave.report(end)
    assert [slave.frame() for _ in range(2)] == [(end, b"")] * 2


def test_a_slave_that_reads_nothing_holds_up_no_other_and_costs_few_frames(
    tmp_path: Path, slave_of: SlaveOf
) -> None:
    config = CONFIG.changed(mapped_file_size_commit_log=1 << 20)
    with (
        rocketcompat.open(tmp_path / "large", "w", config, layouts=[]) as store,
        HaServer(store, port=0, first="FULL") as server,
    ):
        for _ in range(8):
            store.put_columns({"topic": ["T"] * 250, "body": [b"x" * 3900] * 250})
        server.start()
        deaf = Slave(server.port, buffer_size=4096)
        deaf.report(0)
        while not any(connection._paused for connection in tuple(server._connections)):
            pass
        slave = slave_of(server)
        slave.report(0)
        read = 0
        while read < store.max_physical_offset:
            offset, body = slave.frame()
            assert offset == read
            read += len(body)
        for connection in tuple(server._connections):
            assert connection._transport is not None
            assert connection._transport.get_write_buffer_size() <= 4 * server.batch_size
        assert sum(connection._paused for connection in tuple(server._connections)) == 1
        deaf.close()


def test_hostile_slaves_release_nothing_and_leave_nothing_behind(
    store: DefaultMessageStore, server_of: ServerOf, slave_of: SlaveOf
) -> None:
    end = put(store, 3)
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng, server = random.Random(seed), server_of()
    for _ in range(40):
        slave = slave_of(server)
        data = bytearray(
            REPORT.pack(offset=rng.choice((0, end))) + rng.randbytes(rng.randrange(64))
        )
        for _ in range(rng.randrange(3)):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        slave.send(bytes(data))
        slave.close()
    while server.status().slaves or server.status().accepted + server.status().refused < 40:
        pass
    slave = slave_of(server)
    slave.report(0)
    assert len(slave.log(0, end)) == end
    assert len(server.status().ended) <= 16


class ManualLoop(asyncio.SelectorEventLoop):
    """An event loop with the timers of a manual clock."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self._manual = clock

    def time(self) -> float:
        return self._manual.monotonic()


def test_a_slave_that_reports_too_fast_is_read_less_often_and_its_last_report_counts(
    store: DefaultMessageStore, server_of: ServerOf, slave_of: SlaveOf, clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("rocketcompat.ha.server.REPORTS_PER_SECOND", 5)
    monkeypatch.setattr("asyncio.new_event_loop", lambda: ManualLoop(clock))
    end = put(store, 3)
    server = server_of(clock=clock)
    slave = slave_of(server)
    slave.report(0)
    slave.log(0, end)
    (connection,) = server._connections
    assert connection._transport is not None
    for number in range(1, 6):
        assert connection._transport.is_reading()
        slave.report(number)  # the sixth of this second at last
        while server.status().slaves[0].acknowledged != number:
            pass
    assert not connection._transport.is_reading()
    for offset in (6, 7, end):
        slave.report(offset)
    clock.advance(100)
    assert not connection._transport.is_reading()
    clock.advance(10_000)
    while server.status().slaves[0].acknowledged != end:
        pass
    assert connection._transport.is_reading()


def test_an_error_of_the_callers_function_does_not_end_the_server(
    store: DefaultMessageStore, server_of: ServerOf, slave_of: SlaveOf
) -> None:
    errors: list[Exception] = [RuntimeError("no"), StorageError("/x", "no"), OSError("no")] * 3

    def on_poll() -> None:
        if errors:
            raise errors.pop()

    server = server_of(on_poll=on_poll)
    slave = slave_of(server)
    slave.report(0)
    end = put(store, 3)
    assert len(slave.log(0, end)) == end
    while errors:
        pass
    more = put(store, 3)
    assert len(slave.log(end, more)) == more - end


def test_a_store_that_was_closed_is_named_in_the_reason(tmp_path: Path, slave_of: SlaveOf) -> None:
    store = rocketcompat.open(tmp_path / "closed", "w", CONFIG)
    with HaServer(store, port=0) as server:
        server.start()
        put(store, 1)
        store.close()
        slave = slave_of(server)
        slave.report(0)
        assert slave.closed()
        assert "the log cannot be read" in server._ended[-1][1]


def test_peers_that_connect_too_fast_are_closed(
    store: DefaultMessageStore, server_of: ServerOf, slave_of: SlaveOf, clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("rocketcompat.ha.server.CONNECTIONS_PER_SECOND", 3)
    put(store, 1)
    server = server_of(clock=clock)
    for _ in range(3):
        slave = slave_of(server)
        slave.report(0)
        assert slave.frame()
    assert slave_of(server).closed()
    assert "connections a second" in server.status().ended[-1][1]
    clock.advance(2000)
    slave = slave_of(server)
    slave.report(0)
    assert slave.frame()


def test_a_mirror_of_ours_follows_a_master_of_ours(
    store: DefaultMessageStore, server_of: ServerOf, tmp_path: Path
) -> None:
    end = put(store, 60)
    server = server_of(first="FULL")
    address = ("127.0.0.1", server.port)
    with Mirror(tmp_path / "mirror", *address, CONFIG, acknowledge="fsync") as mirror:
        mirror.start()
        assert mirror.wait_reached(end, 30)
        end = put(store, 200)
        assert mirror.wait_reached(end, 30)
        while server.status().slaves[0].acknowledged < end:
            pass
        assert log_bytes(tmp_path / "mirror", 0, end) == log_bytes(tmp_path / "master", 0, end)


@pytest.mark.parametrize(
    "given",
    [{"first": "ALL"}, {"batch_size": 0}, {"batch_size": 4 << 20}, {"connections_max": 0},
     {"allow": ["10.0.0.1/8"]}, {"allow": ["host"]}],
)  # fmt: skip
def test_bad_options_are_refused(given: dict[str, object], store: DefaultMessageStore) -> None:
    with pytest.raises(InvalidMessage, match=next(iter(given))):
        HaServer(store, **given)  # type: ignore[arg-type]


def test_sizes_and_time_spans_of_a_server_are_numbers_or_texts(store: DefaultMessageStore) -> None:
    server = HaServer(store, batch_size="1KiB", silence_seconds="1m", slave_timeout="500ms")
    assert (server.batch_size, server.silence_seconds) == (1024, 60.0)
    with pytest.raises(InvalidMessage, match="batch_size: '1 GO' is not a valid size"):
        HaServer(store, batch_size="1 GO")


@pytest.mark.parametrize("name", ["slave_timeout", "silence_seconds", "heartbeat_seconds"])
@pytest.mark.parametrize("seconds", [float("inf"), float("nan"), -1.0])
def test_a_time_span_of_a_server_that_is_none_is_refused(
    server_of: ServerOf, name: str, seconds: float
) -> None:
    with pytest.raises(ValueError, match=f"{name} = "):
        server_of(**{name: seconds})


def test_a_port_that_is_taken_is_refused_with_its_address(
    store: DefaultMessageStore, server_of: ServerOf
) -> None:
    taken = server_of()
    with pytest.raises(StorageError, match=f"127.0.0.1:{taken.port}"):
        HaServer(store, port=taken.port).start()


def sync_put(store: DefaultMessageStore, **fields: Any) -> PutStatus:
    return store.put_message(Message("T", b"x", **fields)).status


def test_without_a_slave_a_synchronous_put_does_not_wait(
    store: DefaultMessageStore, server_of: ServerOf
) -> None:
    server = server_of(synchronous=True, slave_timeout=3600.0)
    assert sync_put(store) is PutStatus.SLAVE_NOT_AVAILABLE
    server.close()
    assert sync_put(store) is PutStatus.SLAVE_NOT_AVAILABLE


def test_a_synchronous_put_ends_when_a_slave_has_acknowledged_it(
    store: DefaultMessageStore, server_of: ServerOf, tmp_path: Path
) -> None:
    server = server_of(synchronous=True, slave_timeout=30.0)
    address = ("127.0.0.1", server.port)
    with Mirror(tmp_path / "slave", *address, CONFIG, acknowledge="page_cache") as slave:
        slave.start()
        while not any(row.requested is not None for row in server.status().slaves):
            pass
        for _ in range(20):
            assert sync_put(store) is PutStatus.PUT_OK
            assert slave.store.raw_end == store.max_physical_offset
        columns = store.put_columns({"topic": ["T"] * 50, "body": [b"y" * 200] * 50})
        assert set(columns["status"].to_pylist()) == {"PUT_OK"}
        batch = store.put_messages(MessageBatch("T", [BatchItem(b"z")] * 3))
        assert batch.status is PutStatus.PUT_OK
        assert slave.store.raw_end == store.max_physical_offset


def test_a_synchronous_put_that_no_slave_acknowledges_in_time_is_stored_and_reported(
    store: DefaultMessageStore, server_of: ServerOf, slave_of: SlaveOf
) -> None:
    server = server_of(synchronous=True, slave_timeout=0.05)
    slave = slave_of(server)
    slave.report(0)
    while not server.status().slaves or server.status().slaves[0].requested is None:
        pass
    assert sync_put(store) is PutStatus.FLUSH_SLAVE_TIMEOUT
    assert sync_put(store, properties={"WAIT": "false"}) is PutStatus.PUT_OK
    assert slave.log(0, store.max_physical_offset)
    slave.report(1 << 50)  # releases nothing
    assert slave.closed()
    assert sync_put(store) is PutStatus.SLAVE_NOT_AVAILABLE


def test_a_slave_that_is_too_far_behind_is_not_waited_for(
    store: DefaultMessageStore, server_of: ServerOf, slave_of: SlaveOf
) -> None:
    end = put(store, 10)
    server = server_of(synchronous=True, slave_timeout=3600.0, behind_max=1000, first="FULL")
    slave = slave_of(server)
    slave.report(0)
    assert slave.log(0, end)
    assert sync_put(store) is PutStatus.SLAVE_NOT_AVAILABLE


def test_threads_that_put_share_the_acknowledgements(
    store: DefaultMessageStore, server_of: ServerOf, tmp_path: Path
) -> None:
    server = server_of(synchronous=True, slave_timeout=30.0)
    address = ("127.0.0.1", server.port)
    with Mirror(tmp_path / "slave", *address, CONFIG, acknowledge="page_cache") as slave:
        slave.start()
        while not any(row.requested is not None for row in server.status().slaves):
            pass
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(lambda _: sync_put(store), range(200)))
        assert set(found) == {PutStatus.PUT_OK}
        assert slave.store.raw_end == store.max_physical_offset


def test_delivered_messages_wait_for_no_slave(tmp_path: Path, clock: ManualClock) -> None:
    asked: list[int] = []

    def replicated(end: int) -> PutStatus:
        asked.append(end)
        return PutStatus.FLUSH_SLAVE_TIMEOUT

    with rocketcompat.open(tmp_path / "s", "w", CONFIG, clock=clock, background=False) as store:
        store.set_replication(replicated)
        assert sync_put(store, delay_level=1) is PutStatus.FLUSH_SLAVE_TIMEOUT
        clock.advance(5000)
        assert store.deliver_due() == 1
        assert len(asked) == 1


def test_a_reader_cannot_be_a_synchronous_master(
    store: DefaultMessageStore, tmp_path: Path
) -> None:
    with (
        rocketcompat.open(tmp_path / "master", "r", CONFIG) as reader,
        pytest.raises(InvalidMessage, match="synchronous"),
    ):
        HaServer(reader, synchronous=True)


def test_the_stores_statistics_and_metrics_list_roles_slaves_and_services(
    store: DefaultMessageStore, server_of: ServerOf, tmp_path: Path
) -> None:
    assert (store.stats()["role"], store.stats()["slaves"]) == ("", {})
    end = put(store, 20)
    server = server_of(first="FULL")
    address = ("127.0.0.1", server.port)
    with Mirror(tmp_path / "mirror", *address, CONFIG, acknowledge="page_cache") as mirror:
        mirror.start()
        assert mirror.wait_reached(end, 30)
        while server.status().slaves[0].lag_bytes:
            pass
        found, ours = mirror.store.stats(), store.stats()
        peer = server.status().slaves[0].peer
        numbers = {"connections": 1, "bytes": end, "lag_bytes": 0}
        assert (ours["role"], ours["replication"]) == ("ASYNC_MASTER", numbers)
        assert ours["slaves"] == {peer: {"sent": end, "acknowledged": end, "lag_bytes": 0}}
        assert ours["services"]["HAService"] == {"running": True, "stopped": False}
        assert (found["role"], found["replication"]) == ("SLAVE", numbers)
        assert found["services"]["HAClient"] == {"running": True, "stopped": False}
        shown = metrics.text(store)
        assert f'rocketcompat_slave_acknowledged{{slave="{peer}"}} {float(end)}' in shown
        assert "rocketcompat_replication_connections 1.0" in shown
    server.close()
    assert store.stats()["services"]["HAService"] == {"running": False, "stopped": False}
