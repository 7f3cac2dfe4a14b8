"""A mirror that follows a master on the loopback: begins, resumes, refuses, stops."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

import rocketcompat
from rocketcompat import Message, MessageStoreConfig
from rocketcompat.check.whole import check_store
from rocketcompat.ha.mirror import Mirror
from rocketcompat.inspect.directory import StoreDirectory
from rocketcompat.store.default_message_store import DefaultMessageStore
from tests.rocketcompat.ha.fake_master import FakeMaster, threads
from tubestore.errors import NotAStore, StoreClosed, StoreFailed
from tubestore.testing import FaultyVfs, MemoryVfs

SIZE = 4096
CONFIG = MessageStoreConfig(
    mapped_file_size_commit_log=SIZE,
    mapped_file_size_consume_queue=200,
    max_hash_slot_num=16,
    max_index_num=100,
    layouts=frozenset({"consume_queue", "index"}),
)
MirrorAt = Callable[..., Mirror]


@pytest.fixture
def master() -> Iterator[FakeMaster]:
    with FakeMaster() as master:
        yield master


@pytest.fixture
def source(tmp_path: Path) -> Iterator[DefaultMessageStore]:
    with rocketcompat.open(tmp_path / "master", "w", CONFIG) as store:
        yield store


@pytest.fixture
def mirror_at(master: FakeMaster, tmp_path: Path) -> Iterator[MirrorAt]:
    made: list[Mirror] = []

    def make(*, start: bool = True, **given: object) -> Mirror:
        mirror = Mirror(
            tmp_path / "mirror", "127.0.0.1", master.port, CONFIG,
            **{"retry_seconds": 0.0, "slave_timeout": 0.0, **given},  # type: ignore[arg-type]
        )  # fmt: skip
        made.append(mirror)
        if start:
            mirror.start()
        return mirror

    yield make
    for mirror in made:
        mirror.close()


def test_time_spans_of_a_mirror_are_numbers_or_texts(mirror_at: MirrorAt) -> None:
    mirror = mirror_at(slave_timeout="0s", retry_seconds="10ms", heartbeat_seconds=timedelta(0))
    assert not mirror.wait_reached(1 << 40, "1ms")


@pytest.mark.parametrize("name", ["slave_timeout", "retry_seconds", "heartbeat_seconds"])
@pytest.mark.parametrize("seconds", [float("inf"), float("nan"), -1.0])
def test_a_time_span_of_a_mirror_that_is_none_is_refused(
    mirror_at: MirrorAt, name: str, seconds: float
) -> None:
    with pytest.raises(ValueError, match=f"{name} = "):
        mirror_at(**{name: seconds}, start=False)


def put(store: DefaultMessageStore, count: int, first: int = 0) -> int:
    for number in range(first, first + count):
        store.put_message(Message(f"T{number % 2}", b"%05d" % number * 40, keys=f"k{number}"))
    return store.max_physical_offset


def bodies(store: DefaultMessageStore, topic: str = "T0") -> list[bytes]:
    start, found = store.min_offset_in_queue(topic, 0), []
    while start < store.max_offset_in_queue(topic, 0):
        page = store.get_message(topic, 0, start)
        found += [message.body for message in page]
        start = page.next_begin_offset
    return found


def assert_copied(tmp_path: Path, end: int) -> None:
    for path in (tmp_path / "mirror" / "commitlog").iterdir():
        used = min(SIZE, end - int(path.name))
        wanted = (tmp_path / "master" / "commitlog" / path.name).read_bytes()
        assert path.read_bytes()[:used] == wanted[:used]
    directory = StoreDirectory(tmp_path / "mirror")
    assert [row for row in check_store(directory) if row["severity"] != "info"] == []


def test_a_mirror_copies_the_log_and_builds_queues_and_index(
    master: FakeMaster, source: DefaultMessageStore, mirror_at: MirrorAt, tmp_path: Path
) -> None:
    end = put(source, 60)
    mirror = mirror_at()
    assert master.accept() == 0
    master.send_log(source, 0, 777)
    assert mirror.wait_reached(end, 30)
    source.wait_dispatched(end - 1)
    assert bodies(mirror.store) == bodies(source)
    assert [m.body for m in mirror.store.query_message("T1", "k33")] == [b"00033" * 40]
    status = mirror.status()
    assert (status.state, status.end, status.received_bytes) == ("following", end, end)
    assert (status.connections, status.trouble) == (1, None)
    mirror.close()
    assert "HAClient" not in threads()
    assert_copied(tmp_path, end)


def test_an_empty_mirror_begins_where_the_first_frame_is_with_or_without_a_body(
    master: FakeMaster, source: DefaultMessageStore, mirror_at: MirrorAt, tmp_path: Path
) -> None:
    end = put(source, 60)
    begin = end - end % SIZE
    mirror = mirror_at()
    with pytest.raises(StoreClosed, match="nothing has come"):
        _ = mirror.store
    assert master.accept() == 0
    master.send(begin)
    assert mirror.wait_reached(begin, 30)
    assert mirror.store.min_physical_offset == mirror.store.max_physical_offset == begin
    master.send_log(source, begin)
    assert mirror.wait_reached(end, 30)
    low = mirror.store.min_offset_in_queue("T0", 0)
    assert low > 0
    source.wait_dispatched(end - 1)
    assert bodies(mirror.store) == bodies(source)[low:]
    mirror.close()
    assert_copied(tmp_path, end)


def test_a_mirror_that_was_only_positioned_is_positioned_again(
    master: FakeMaster, source: DefaultMessageStore, mirror_at: MirrorAt, tmp_path: Path
) -> None:
    mirror = mirror_at()
    master.accept()
    master.send(0)
    assert mirror.wait_reached(0, 30)
    end = put(source, 60)
    begin = end - end % SIZE
    assert master.accept() == 0
    master.send_log(source, begin)
    assert mirror.wait_reached(end, 30)
    assert mirror.store.min_physical_offset == begin
    mirror.close()
    assert [path.name for path in (tmp_path / "mirror" / "commitlog").iterdir()] == [f"{begin:020}"]


def test_a_mirror_goes_on_where_it_was_after_its_end_and_after_a_lost_connection(
    master: FakeMaster, source: DefaultMessageStore, mirror_at: MirrorAt, tmp_path: Path
) -> None:
    end = put(source, 20)
    mirror = mirror_at()
    master.accept()
    middle = master.send_log(source, 0, end // 2) and end // 2
    assert mirror.wait_reached(end, 30)
    mirror.close()
    longer = put(source, 30, 20)
    mirror = mirror_at()
    assert master.accept() == end
    data = b"".join((tmp_path / "master/commitlog" / f"{n * SIZE:020}").read_bytes()
                    for n in range(longer // SIZE + 1))  # fmt: skip
    master.send(end, data[end : end + 700])  # in the middle of a record
    while master.accept() == end:
        pass
    whole = master.reports[-1]
    assert end < whole <= end + 700
    assert middle < whole
    master.send_log(source, whole)
    assert mirror.wait_reached(longer, 30)
    mirror.close()
    assert_copied(tmp_path, longer)


def test_a_mirror_never_acknowledges_more_than_its_first_report(
    master: FakeMaster, source: DefaultMessageStore, mirror_at: MirrorAt
) -> None:
    end = put(source, 5)
    mirror = mirror_at(heartbeat_seconds=0.05)
    master.accept()
    master.send_log(source, 0)
    assert mirror.wait_reached(end, 30)
    assert [master.report() for _ in range(5)] == [0] * 5  # its heartbeats


@pytest.mark.parametrize("level", ["page_cache", "fsync"])
def test_a_slave_acknowledges_what_it_has(
    level: str, master: FakeMaster, source: DefaultMessageStore, mirror_at: MirrorAt
) -> None:
    end = put(source, 5)
    mirror = mirror_at(acknowledge=level)
    master.accept()
    master.send_log(source, 0)
    while master.report() < end:
        pass
    assert master.reports[-1] == end
    if level == "fsync":
        assert mirror.store.stats()["log"]["synced_offset"] == end


def test_a_resumed_mirror_connects_only_after_the_masters_slave_timeout(
    master: FakeMaster, source: DefaultMessageStore, mirror_at: MirrorAt
) -> None:
    end = put(source, 5)
    mirror = mirror_at()
    master.accept()
    master.send_log(source, 0)
    assert mirror.wait_reached(end, 30)
    mirror.close()
    mirror = mirror_at(slave_timeout=3600.0)
    while mirror.status().state != "waiting":
        assert mirror.failed is None
    assert master.accepted == 1
    mirror.close()
    for level, seconds in (("no", 7.0), ("page_cache", 0.0)):  # one that acknowledges need not wait
        waited: list[float] = []
        mirror = mirror_at(start=False, slave_timeout=7.0, acknowledge=level)
        mirror._stop.wait = lambda time, waited=waited: (  # type: ignore[method-assign, assignment, misc]
            waited.append(time) or len(waited) > 1
        )
        mirror._connect = lambda *_: (_ for _ in ()).throw(ConnectionRefusedError(111, "refused"))
        mirror.run()
        assert waited[0] == seconds
        mirror.close()


def test_damage_from_the_master_stops_the_mirror_with_the_place_and_nothing_of_it_is_written(
    master: FakeMaster, source: DefaultMessageStore, mirror_at: MirrorAt, tmp_path: Path
) -> None:
    end = put(source, 5)
    data = bytearray((tmp_path / "master/commitlog" / f"{0:020}").read_bytes()[:end])
    data[end - 60] ^= 1
    mirror = mirror_at()
    for _ in range(2):
        begin = master.accept()
        master.send(begin, bytes(data[begin:]))
    with pytest.raises(StoreFailed, match="the same damage twice"):
        mirror.wait_reached(end, 30)
    last = master.reports[-1]
    assert 0 < last < end
    assert mirror.store.max_physical_offset == last
    mirror.close()
    assert_copied(tmp_path, last)


def test_files_of_another_size_are_refused_before_anything_is_written(
    master: FakeMaster, mirror_at: MirrorAt, tmp_path: Path
) -> None:
    mirror = mirror_at()
    master.accept()
    master.send(SIZE + 1000)
    with pytest.raises(NotAStore, match="mappedFileSizeCommitLog"):
        mirror.wait_reached(1, 30)
    assert not list((tmp_path / "mirror/commitlog").iterdir())


def test_a_hostile_master_is_left_and_nothing_is_written(
    master: FakeMaster, mirror_at: MirrorAt, tmp_path: Path
) -> None:
    mirror = mirror_at()
    for data in (
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"\xff" * 100,
        bytes(8) + b"\x7f" + bytes(99),
    ):
        master.accept()
        master.send_raw(data)
        assert master.closed()
    assert mirror.status().end is None
    assert not (tmp_path / "mirror/commitlog").exists()


def test_a_mirror_is_not_opened_as_a_store_of_its_own_until_it_is_promoted(
    master: FakeMaster, source: DefaultMessageStore, mirror_at: MirrorAt, tmp_path: Path
) -> None:
    from rocketcompat.ha.slave_store import SlaveRoot

    end = put(source, 20)
    mirror = mirror_at()
    master.accept()
    master.send_log(source, 0)
    assert mirror.wait_reached(end, 30)
    mirror.close()
    root = tmp_path / "mirror"
    with pytest.raises(NotAStore, match=r"is a mirror of 127\.0\.0\.1.*promote"):
        rocketcompat.open(root, "w", CONFIG)
    assert SlaveRoot.of(root, CONFIG).promote() == end
    with pytest.raises(NotAStore, match="is not a mirror"):
        SlaveRoot.of(root, CONFIG).promote()
    with rocketcompat.open(root, "w", CONFIG) as store:
        placed = store.put_message(Message("T0", b"new"))
        assert (placed.physical_offset, placed.queue_offset) == (end, 10)
    with pytest.raises(NotAStore, match="did not come from a master"):
        mirror_at()


def test_a_mirror_that_is_open_for_writing_elsewhere_is_refused(
    master: FakeMaster, source: DefaultMessageStore, mirror_at: MirrorAt, tmp_path: Path
) -> None:
    put(source, 1)
    with pytest.raises(NotAStore, match="did not come from a master"):
        Mirror(tmp_path / "master", "127.0.0.1", master.port, CONFIG)


def test_a_master_that_cannot_be_reached_is_tried_again(tmp_path: Path) -> None:
    with FakeMaster() as gone:
        port = gone.port
    with Mirror(tmp_path / "mirror", "127.0.0.1", port, CONFIG, retry_seconds=0.0) as mirror:
        mirror.start()
        while mirror.status().trouble is None:
            assert mirror.failed is None
        assert "cannot connect: Connection refused" in str(mirror.status().trouble)


@pytest.mark.parametrize("call", ["create", "pwrite"])
def test_a_disk_that_refuses_a_call_is_named_and_the_mirror_goes_on_when_it_has_recovered(
    call: str, master: FakeMaster, source: DefaultMessageStore, tmp_path: Path
) -> None:
    disk = FaultyVfs(MemoryVfs())
    disk.fail(call, error=errno.ENOSPC, path="/s/", forever=True)
    end = put(source, 5)
    waits = {"retry_seconds": 0.0, "slave_timeout": 0.0}
    with Mirror("/s", "127.0.0.1", master.port, CONFIG, vfs=disk, **waits) as mirror:  # type: ignore[arg-type]
        mirror.start()
        master.accept()
        master.send_log(source, 0)
        while mirror.status().trouble is None:
            assert mirror.failed is None
        assert "/s/" in str(mirror.status().trouble)
        assert "connection" not in str(mirror.status().trouble)
        disk.heal()
        while not mirror.wait_reached(end, 0.05):
            begin = master.accept()
            master.send_log(source, begin)
