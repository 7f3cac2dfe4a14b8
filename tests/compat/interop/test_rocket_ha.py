"""The real masters feed a mirror of ours, and the real slaves follow a master of ours."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import pytest

import rocketcompat
from bench.real.drivers import ROCKETMQ_VERSIONS, Replica, RocketDriver
from rocketcompat.check.whole import check_store
from rocketcompat.ha.mirror import Mirror
from rocketcompat.ha.server import HaServer
from rocketcompat.inspect.directory import StoreDirectory
from rocketcompat.messages import PutStatus
from rocketcompat.options import MessageStoreConfig
from tests.compat.interop.conftest import rocket_of

pytestmark = [pytest.mark.gate, pytest.mark.interop]

FILE_SIZE = 65536
SETTINGS: dict[str, object] = {
    "mappedFileSizeCommitLog": FILE_SIZE,
    "mappedFileSizeConsumeQueue": 2000,
    "maxHashSlotNum": 100,
    "maxIndexNum": 400,
    "haSendHeartbeatInterval": 200,
}
CONFIG = MessageStoreConfig(
    mapped_file_size_commit_log=FILE_SIZE,
    mapped_file_size_consume_queue=2000,
    max_hash_slot_num=100,
    max_index_num=400,
    layouts=frozenset({"consume_queue", "index"}),
)


@pytest.fixture(params=ROCKETMQ_VERSIONS)
def real(request: pytest.FixtureRequest) -> RocketDriver:
    return rocket_of(request.param)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextmanager
def master_of(
    real: RocketDriver, root: Path, **settings: object
) -> Iterator[tuple[Replica, Callable[..., Mirror]]]:
    """A real master, and what makes a mirror of it."""
    port = free_port()
    with real.replicating(root, settings={**SETTINGS, "haListenPort": port, **settings}) as master:
        yield (
            master,
            lambda at, **given: Mirror(at, "127.0.0.1", port, CONFIG, retry_seconds=0.1, **given),
        )


def assert_copied(master: Path, mirror: Path, first: int = 0) -> None:
    """Compare every file of the log, byte for byte, and check the mirror."""
    names = {path.name for path in (mirror / "commitlog").iterdir()}
    assert min(names) == f"{first:020}"
    for name in names:
        assert (mirror / "commitlog" / name).read_bytes() == (
            master / "commitlog" / name
        ).read_bytes()
    assert [row for row in check_store(StoreDirectory(mirror)) if row["severity"] != "info"] == []


def test_a_mirror_of_a_real_master_has_its_bytes_and_goes_on_after_a_pause(
    real: RocketDriver, tmp_path: Path
) -> None:
    with master_of(real, tmp_path / "master") as (master, mirror_at):
        end = master.ask("put 100 300")["maxPhyOffset"]
        with mirror_at(tmp_path / "mirror") as mirror:
            mirror.start()
            assert mirror.wait_reached(end, 30)
            end = master.ask("put 600 300")["maxPhyOffset"]
            assert mirror.wait_reached(end, 30)
            bodies = mirror.store.get_message("HaTopic", 0, 0).messages
            assert bodies[0].body in {bytes([97 + k]) * 300 for k in range(26)}
            with rocketcompat.open(tmp_path / "mirror", config=CONFIG) as reader:
                assert reader.max_physical_offset == end
                assert reader.max_offset_in_queue("HaTopic", 0) == 175
                assert len(reader.read_queue("HaTopic", 0, 150).batch["body"]) == 25
        end = master.ask("put 300 1000")["maxPhyOffset"]
        with mirror_at(tmp_path / "mirror", slave_timeout=0.0) as mirror:
            mirror.start()
            assert mirror.wait_reached(end, 30)
            state = master.ask("state")
            found = {
                f"queue{n}": f"{mirror.store.min_offset_in_queue('HaTopic', n)}"
                f"-{mirror.store.max_offset_in_queue('HaTopic', n)}"
                for n in range(4)
            }
            assert found == {name: state[name] for name in found}
    assert_copied(tmp_path / "master", tmp_path / "mirror")


def test_a_real_master_gives_no_configuration_and_its_log_is_followed_all_the_same(
    real: RocketDriver, tmp_path: Path
) -> None:
    with master_of(real, tmp_path / "master") as (master, mirror_at):
        end = master.ask("put 100 300")["maxPhyOffset"]
        with mirror_at(tmp_path / "mirror", broker_config=True) as mirror:
            mirror.start()
            assert mirror.wait_reached(end, 60)
            assert "configuration is not followed" in str(mirror.status().config_trouble)
    assert_copied(tmp_path / "master", tmp_path / "mirror")


def test_an_empty_mirror_begins_with_the_masters_last_file(
    real: RocketDriver, tmp_path: Path
) -> None:
    with master_of(real, tmp_path / "master") as (master, mirror_at):
        end = master.ask("put 700 300")["maxPhyOffset"]
        with mirror_at(tmp_path / "mirror") as mirror:
            mirror.start()
            assert mirror.wait_reached(end, 30)
            first = end - end % FILE_SIZE
            assert mirror.store.min_physical_offset == first
            low = mirror.store.min_offset_in_queue("HaTopic", 1)
            assert low > 0
            assert mirror.store.get_message("HaTopic", 1, low).messages[0].queue_offset == low
        with mirror_at(tmp_path / "mirror", slave_timeout=0.0) as mirror:
            assert mirror.store.min_offset_in_queue("HaTopic", 1) == low
    assert_copied(tmp_path / "master", tmp_path / "mirror", first)


def test_a_mirror_releases_no_put_of_a_real_sync_master_and_a_real_slave_beside_it_does(
    tmp_path: Path,
) -> None:
    real = rocket_of("4.9.8")
    settings = {"brokerRole": "SYNC_MASTER", "slaveTimeout": 300}
    with master_of(real, tmp_path / "master", **settings) as (master, mirror_at):
        assert master.ask("put 1 100")["statuses"] == {"SLAVE_NOT_AVAILABLE": 1}
        with mirror_at(tmp_path / "mirror", slave_timeout=0.3) as mirror:
            mirror.start()
            end = master.ask("state")["maxPhyOffset"]
            assert mirror.wait_reached(end, 30)
            put = master.ask("put 2 100")
            assert put["statuses"] == {"FLUSH_SLAVE_TIMEOUT": 2}
            assert mirror.wait_reached(put["maxPhyOffset"], 30)
            assert master.ask("state")["push2SlaveMaxOffset"] == 0
            slave = {**SETTINGS, "brokerRole": "SLAVE", "haListenPort": free_port()}
            with real.replicating(tmp_path / "slave", settings=slave) as replica:
                replica.ask(f"follow {mirror.address}")
                while master.ask("state")["push2SlaveMaxOffset"] < put["maxPhyOffset"]:
                    assert replica.process.poll() is None
                put = master.ask("put 50 100")
                assert put["statuses"] == {"PUT_OK": 50}
                assert mirror.wait_reached(put["maxPhyOffset"], 30)
    assert_copied(tmp_path / "master", tmp_path / "mirror")


def put(store: rocketcompat.DefaultMessageStore, count: int, size: int = 300) -> int:
    for number in range(count):
        message = rocketcompat.Message("HaTopic", b"%06d" % number + b"x" * size, keys=f"k{number}")
        message.queue_id = number % 4
        store.put_message(message)
    return store.max_physical_offset


def wait_for(replica: Replica, end: int) -> dict[str, object]:
    """Wait until the slave has everything below an offset, and dispatched it."""
    while replica.ask("state")["maxPhyOffset"] < end:
        assert replica.process.poll() is None
    return replica.ask("state")


@pytest.mark.parametrize("first", ["LAST", "FULL"])
def test_a_real_slave_of_a_master_of_ours_has_its_bytes_and_goes_on_over_a_restart(
    first: Literal["LAST", "FULL"], real: RocketDriver, tmp_path: Path
) -> None:
    settings = {**SETTINGS, "brokerRole": "SLAVE", "haListenPort": free_port()}
    with rocketcompat.open(tmp_path / "master", "w", CONFIG) as store:
        end = put(store, 700)
        begin = end - end % FILE_SIZE if first == "LAST" else 0
        with real.replicating(tmp_path / "slave", settings=settings) as replica:
            with HaServer(store, port=0, first=first) as server:
                server.start()
                port = server.port
                replica.ask(f"follow 127.0.0.1:{port}")
                state = wait_for(replica, end)
                assert state["minPhyOffset"] == begin
                end = put(store, 300, 1000)
                wait_for(replica, end)
                while not [row for row in server.status().slaves if row.acknowledged >= end]:
                    assert server.status().running
            end = put(store, 300)
            store.wait_dispatched(end - 1)
            with HaServer(store, port=port) as server:
                server.start()
                state = wait_for(replica, end)
                for n in range(4):
                    wanted = f"-{store.max_offset_in_queue('HaTopic', n)}"
                    while not str(state[f"queue{n}"]).endswith(wanted):  # it dispatches
                        state = replica.ask("state")
                    assert str(state[f"queue{n}"]).startswith("0-") is (begin == 0)
    assert_copied(tmp_path / "master", tmp_path / "slave", begin)


def test_two_real_slaves_follow_one_master_and_one_that_ends_stops_no_other(
    tmp_path: Path,
) -> None:
    old, new = map(rocket_of, ROCKETMQ_VERSIONS)

    def settings() -> dict[str, object]:
        return {**SETTINGS, "brokerRole": "SLAVE", "haListenPort": free_port()}

    with (
        rocketcompat.open(tmp_path / "master", "w", CONFIG) as store,
        HaServer(store, port=0, first="FULL") as server,
    ):
        end = put(store, 200)
        server.start()
        with old.replicating(tmp_path / "old", settings=settings()) as first:
            first.ask(f"follow 127.0.0.1:{server.port}")
            with new.replicating(tmp_path / "new", settings=settings()) as second:
                second.ask(f"follow 127.0.0.1:{server.port}")
                wait_for(first, end)
                wait_for(second, end)
                assert len(server.status().slaves) == 2
            end = put(store, 200)
            wait_for(first, end)
    assert_copied(tmp_path / "master", tmp_path / "old")


def test_a_put_on_a_synchronous_master_of_ours_ends_when_a_real_slave_has_it(
    real: RocketDriver, tmp_path: Path
) -> None:
    settings = {**SETTINGS, "brokerRole": "SLAVE", "haListenPort": free_port()}
    message = rocketcompat.Message("HaTopic", b"x" * 100)
    with (
        rocketcompat.open(tmp_path / "master", "w", CONFIG) as store,
        HaServer(store, port=0, synchronous=True, slave_timeout=30.0) as server,
        real.replicating(tmp_path / "slave", settings=settings) as replica,
    ):
        server.start()
        assert store.put_message(message).status is PutStatus.SLAVE_NOT_AVAILABLE
        replica.ask(f"follow 127.0.0.1:{server.port}")
        wait_for(replica, store.max_physical_offset)
        for _ in range(20):
            assert store.put_message(message).status is PutStatus.PUT_OK
            assert replica.ask("state")["maxPhyOffset"] == store.max_physical_offset
