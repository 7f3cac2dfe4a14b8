"""A broker's configuration comes from the master to a mirror, whole and not before the log."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest

import rocketcompat
from rocketcompat import Message, MessageStoreConfig
from rocketcompat.files.broker_config import BrokerConfig, SubscriptionGroupConfig, TopicConfig
from rocketcompat.ha.config import ConfigFollower, ask, config_frame
from rocketcompat.ha.frames import CONFIG_REQUEST, FRAME_HEADER, REPORT
from rocketcompat.ha.mirror import Mirror
from rocketcompat.ha.server import HaServer
from rocketcompat.ha.slave_store import SlaveRoot
from tests.rocketcompat.ha.fake_master import FakeMaster, threads
from tubestore.clock import ManualClock
from tubestore.testing import MemoryVfs

CONFIG = MessageStoreConfig(
    mapped_file_size_commit_log=4096, mapped_file_size_consume_queue=200,
    layouts=frozenset({"consume_queue"}),
)  # fmt: skip
NAMES = ("topics.json", "subscriptionGroup.json", "consumerOffset.json", "delayOffset.json")


def fill(files: BrokerConfig, number: int = 1) -> None:
    files.save_topics({"T": TopicConfig("T", read_queue_nums=number)}, 1000)
    files.save_subscription_groups({"g": SubscriptionGroupConfig("g", retry_max_times=number)}, 1)
    files.save_consumer_offsets({("T", "g"): {0: number}}, 1)
    files.save_delay_offsets({1: number}, 1)


@pytest.fixture
def master() -> BrokerConfig:
    return BrokerConfig(MemoryVfs(), "/m")


@pytest.fixture
def mine() -> BrokerConfig:
    return BrokerConfig(MemoryVfs(), "/s")


class Answers:
    """Connections that are answered one after the other, and the log's end of the mirror."""

    def __init__(self, mine: BrokerConfig) -> None:
        self.end: int | None = 0
        self.answers: list[bytes] = []
        self.follower = ConfigFollower(mine, self._connect, lambda: self.end, lambda: 0.0)
        self.peers: list[socket.socket] = []

    def _connect(self) -> socket.socket:
        here, peer = socket.socketpair()
        peer.sendall(self.answers.pop(0))
        peer.shutdown(socket.SHUT_WR)
        self.peers.append(peer)
        return here

    def round(self, answer: bytes) -> str | None:
        """Let the follower get an answer; returns its trouble."""
        self.answers = [answer]
        self.follower.round()
        return self.follower.trouble


@pytest.fixture
def answers(mine: BrokerConfig) -> Iterator[Answers]:
    made = Answers(mine)
    yield made
    for peer in made.peers:
        peer.close()


def raws(files: BrokerConfig) -> dict[str, bytes | None]:
    return {name: files.raw(name) for name in NAMES}


def test_the_files_come_byte_for_byte(
    master: BrokerConfig, mine: BrokerConfig, answers: Answers
) -> None:
    fill(master)
    assert answers.round(config_frame(master, lambda: 0)) is None
    assert raws(mine) == raws(master)
    assert answers.peers[0].recv(100) == REPORT.pack(offset=-1)
    assert answers.follower.changes == 4
    assert answers.round(config_frame(master, lambda: 0)) is None
    assert answers.follower.changes == 4


def test_offsets_wait_for_the_log_and_topics_do_not(
    master: BrokerConfig, mine: BrokerConfig, answers: Answers
) -> None:
    fill(master)
    answers.end = 499
    assert answers.round(config_frame(master, lambda: 500)) is None
    assert mine.topics() == master.topics()
    assert mine.subscription_groups() == master.subscription_groups()
    assert mine.consumer_offsets() == mine.delay_offsets() == {}
    answers.end = 500
    answers.follower.round()  # without another request
    assert raws(mine) == raws(master)


def test_a_root_without_a_log_gets_nothing_until_its_store_is_opened(
    master: BrokerConfig, mine: BrokerConfig, answers: Answers
) -> None:
    fill(master)
    answers.end = None
    assert answers.round(config_frame(master, lambda: 500)) is None
    assert not any(raws(mine).values())
    answers.follower.write_tables()
    assert mine.topics() == master.topics()


def test_a_file_that_the_master_lacks_stays(
    master: BrokerConfig, mine: BrokerConfig, answers: Answers
) -> None:
    fill(mine, 7)
    master.save_topics({"T": TopicConfig("T")}, 1000)
    before = mine.raw("consumerOffset.json")
    assert answers.round(config_frame(master, lambda: 0)) is None
    assert mine.topics() == master.topics()
    assert mine.raw("consumerOffset.json") == before


def frame(body: bytes, size: int | None = None, offset: int = CONFIG_REQUEST) -> bytes:
    size = len(body) if size is None else size
    return FRAME_HEADER.pack(offset=offset, body_size=size) + body


def answer_with(**files: str) -> bytes:
    named = {name.replace("_", "."): text for name, text in files.items()}
    return frame(json.dumps({"format": 1, "log_end": 0, "files": named}).encode())


BAD: dict[str, bytes] = {
    "a heartbeat of the log": frame(b"", offset=0),
    "a size that is too large": frame(b"", size=(16 << 20) + 1),
    "a size below zero": frame(b"", size=-1),
    "an end in the middle": frame(b"{}", size=100),
    "no answer": b"",
    "another format": frame(b'{"format": 2, "log_end": 0, "files": {}}'),
    "no object": frame(b"[]"),
    "no JSON": frame(b"\xff"),
    "nested too deeply": frame(b"[" * 100_000),
    "no log end": frame(b'{"format": 1, "files": {}}'),
    "files that are a list": frame(b'{"format": 1, "log_end": 0, "files": ["topics.json"]}'),
    "a log end that is no number": frame(b'{"format": 1, "log_end": true, "files": {}}'),
    "a log end below zero": frame(b'{"format": 1, "log_end": -1, "files": {}}'),
    "a log end that no log has": frame(b'{"format": 1, "log_end": %d, "files": {}}' % 2**63),
    "a file that is no configuration": answer_with(topics_json="no"),
    "a file that is a number": frame(b'{"format": 1, "log_end": 0, "files": {"topics.json": 5}}'),
    "a file that is no UTF-8": frame(
        b'{"format": 1, "log_end": 0, "files": {"topics.json": "\\ud800"}}'
    ),
    "an offset that is no number": answer_with(
        topics_json="{}", consumerOffset_json='{"offsetTable":{"T@g":{"0":"x"}}}'
    ),
    "a delay offset that is no number": answer_with(
        topics_json="{}", delayOffset_json='{"offsetTable":{1:[]}}'
    ),
    "a topic that is no map": answer_with(topics_json='{"topicConfigTable":{"T":5}}'),
}


@pytest.mark.parametrize("answer", BAD.values(), ids=BAD)
def test_an_answer_that_is_not_valid_changes_nothing_and_is_reported(
    answer: bytes, mine: BrokerConfig, answers: Answers
) -> None:
    fill(mine, 7)
    before = raws(mine)
    trouble = answers.round(answer)
    assert trouble is not None
    assert "not followed" in trouble
    assert raws(mine) == before
    assert answers.round(frame(b'{"format": 1, "log_end": 0, "files": {}}')) is None


def test_a_bad_configuration_does_not_wait_for_the_store_to_be_opened(
    answers: Answers, mine: BrokerConfig
) -> None:
    answers.end = None
    assert answers.round(answer_with(topics_json="no")) is not None
    answers.follower.write_tables()
    assert raws(mine) == dict.fromkeys(NAMES)


def test_a_mirror_follows_the_log_of_a_master_with_a_bad_configuration(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = answer_with(topics_json="no")
    monkeypatch.setattr("rocketcompat.ha.server.config_frame", lambda *_: bad)
    with (
        rocketcompat.open(tmp_path / "master", "w", CONFIG) as store,
        HaServer(store, port=0, first="FULL") as server,
    ):
        store.put_message(Message("T", b"x"))
        server.start()
        address = ("127.0.0.1", server.port)
        with Mirror(tmp_path / "mirror", *address, CONFIG, broker_config=True) as mirror:
            mirror.start()
            assert mirror.wait_reached(store.max_physical_offset, 30)
            assert "topics.json" in str(mirror.status().config_trouble)
            assert mirror.failed is None


def test_a_file_with_another_name_is_not_written(answers: Answers, mine: BrokerConfig) -> None:
    body = {"format": 1, "log_end": 0, "files": {"../x.json": "{}", "rmq.json": "{}"}}
    assert answers.round(frame(json.dumps(body).encode())) is None
    assert answers.follower.changes == 0


def test_a_master_that_sends_slowly_is_left_after_a_while() -> None:
    here, peer = socket.socketpair()
    times = iter([0.0, 1.0, 4.0, 6.0])
    with here, peer:
        peer.sendall(frame(b"{}", size=100)[:14])
        with pytest.raises(TimeoutError, match="in time"):
            ask(here, lambda: next(times))


def test_a_promoted_mirror_has_topics_and_offsets_of_its_master(
    tmp_path: Any, clock: ManualClock
) -> None:
    with (
        rocketcompat.open(tmp_path / "master", "w", CONFIG) as store,
        HaServer(store, port=0, first="FULL") as server,
    ):
        for number in range(20):
            store.put_message(Message("T", b"%d" % number))
        fill(store.broker_config, 5)
        server.start()
        end = store.max_physical_offset
        address = ("127.0.0.1", server.port)
        with Mirror(tmp_path / "mirror", *address, CONFIG, broker_config=True) as mirror:
            mirror.start()
            assert mirror.wait_reached(end, 30)
            files = mirror.store.broker_config
            while not files.consumer_offsets() or not files.delay_offsets():
                assert mirror.status().config_trouble is None
                mirror._config.round()  # type: ignore[union-attr]
            services = mirror.store.stats()["services"]
            assert services["HAConfigClient"] == {"running": True, "stopped": False}
        assert "HAConfigClient" not in threads()
        assert [row.requested for row in server.status().slaves] in ([], [0])
        assert server.status().accepted == 1  # the requests are no slaves
    SlaveRoot.of(tmp_path / "mirror", CONFIG).promote()
    with rocketcompat.open(tmp_path / "mirror", "w", CONFIG) as store:
        assert store.broker_config.topics()["T"].read_queue_nums == 5
        assert store.broker_config.consumer_offsets() == {("T", "g"): {0: 5}}
        assert store.broker_config.delay_offsets() == {1: 5}
        assert store.broker_config.subscription_groups()["g"].retry_max_times == 5


def test_a_store_knows_topics_of_batches_when_its_first_frame_comes(tmp_path: Any) -> None:
    with (
        rocketcompat.open(tmp_path / "master", "w", CONFIG) as store,
        HaServer(store, port=0, first="FULL") as server,
    ):
        store.put_message(Message("T", b"x"))
        topic = TopicConfig("B", attributes={"queue.type": "BatchCQ"})
        store.broker_config.save_topics({"B": topic}, 1000)
        server.start()
        address = ("127.0.0.1", server.port)
        with Mirror(tmp_path / "mirror", *address, CONFIG, broker_config=True) as mirror:
            mirror.start()
            assert mirror.wait_reached(store.max_physical_offset, 30)
            assert mirror.store.config.batch_topics == {"B"}


def test_a_mirror_that_does_not_follow_the_configuration_never_asks(tmp_path: Any) -> None:
    with FakeMaster() as master, Mirror(tmp_path / "m", "127.0.0.1", master.port) as mirror:
        mirror.start()
        assert master.accept() == 0


def test_a_configuration_that_cannot_be_read_is_named_in_the_reason(tmp_path: Any) -> None:
    with (
        rocketcompat.open(tmp_path / "master", "w", CONFIG) as store,
        HaServer(store, port=0) as server,
    ):
        fill(store.broker_config)
        for path in (tmp_path / "master" / "config").iterdir():
            path.write_bytes(b"no")
        server.start()
        with socket.create_connection(("127.0.0.1", server.port), 30) as peer:
            peer.sendall(REPORT.pack(offset=-1))
            assert peer.recv(1) == b""
        assert "the configuration cannot be read" in server.status().ended[-1][1]
