"""A log that is built from the bytes of another one is equal to it, however they were split."""

from __future__ import annotations

import errno
import pickle
import random
from collections.abc import Iterator

import pytest

import rocketcompat
from rocketcompat import Message, MessageStoreConfig
from rocketcompat.commitlog.commit_log import CommitLog
from rocketcompat.commitlog.raw import OutOfPlace, RawIntake
from rocketcompat.formats import BLANK, MAGIC_BLANK
from rocketcompat.options import LAYOUTS
from rocketcompat.record.prepare import prepare
from tests.support.rocket.inside import log_of, new_log
from tubestore.clock import ManualClock
from tubestore.core.vfs import Vfs
from tubestore.errors import CorruptRecord, DiskFull, InvalidMessage, StoreFailed
from tubestore.testing import FaultyVfs, MemoryVfs

SIZE = 1000
CONFIG = MessageStoreConfig(mapped_file_size_commit_log=SIZE, max_message_size=900, layouts=LAYOUTS)
FIXED = 91 + 1


def opened(vfs: Vfs, directory: str, clock: ManualClock) -> CommitLog:
    log = new_log(vfs, directory, CONFIG, clock)
    log.queue.load()
    log.start_at(0, 0)
    return log


@pytest.fixture
def vfs(clock: ManualClock) -> FaultyVfs:
    return FaultyVfs(MemoryVfs(clock))


@pytest.fixture
def master(vfs: FaultyVfs, clock: ManualClock) -> Iterator[CommitLog]:
    log = opened(vfs, "/master", clock)
    yield log
    log.close()


@pytest.fixture
def slave(vfs: FaultyVfs, clock: ManualClock) -> Iterator[CommitLog]:
    log = opened(vfs, "/slave", clock)
    yield log
    log.close()


def put(log: CommitLog, *sizes: int) -> None:
    for number, size in enumerate(sizes):
        body = bytes([65 + number % 26]) * (size - FIXED)
        log.put_one(prepare(Message("T", body), CONFIG))


def bytes_of(log: CommitLog) -> bytes:
    """Everything below the end, blanks with what is behind them."""
    data = b""
    while len(data) < log.max_offset:
        data += log.read_at(len(data), SIZE)
    return data


def files_of(vfs: FaultyVfs, directory: str) -> dict[str, bytes]:
    return {n: vfs.read_file(f"{directory}/{n}") for n, _, _ in vfs.entries(directory)}


@pytest.mark.parametrize("sizes", [(100,), (500, 492, 100), (500, 485, 700, 700, 100), (992, 992)])
def test_the_slaves_files_equal_the_masters_however_the_bytes_are_split(
    sizes: tuple[int, ...], vfs: FaultyVfs, master: CommitLog, slave: CommitLog
) -> None:
    put(master, *sizes)
    data = bytes_of(master)
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng, intake, at = random.Random(seed), RawIntake(slave), 0
    while at < len(data):
        part = bytearray(data[at : at + rng.choice((1, 3, 47, 200, 5000))])
        end = intake.append(at, memoryview(part))
        at += len(part)
        part[:] = bytes(len(part))  # the buffer is reused
        assert intake.next_offset == at
        assert end <= at
    assert intake.end == master.max_offset == slave.max_offset
    assert files_of(vfs, "/slave") == files_of(vfs, "/master")
    assert slave.put_count == len(sizes)


def test_only_whole_records_are_in_the_log(master: CommitLog, slave: CommitLog) -> None:
    put(master, 200, 300)
    data, intake = bytes_of(master), RawIntake(slave)
    for at in range(500):
        end = intake.append(at, data[at : at + 1])
        assert end == slave.max_offset == (0 if at < 199 else 200 if at < 499 else 500)


def test_bytes_behind_a_blank_are_kept_as_they_came(master: CommitLog, slave: CommitLog) -> None:
    put(master, 700)
    blank = BLANK.pack(total_size=300, magic_code=MAGIC_BLANK)
    intake = RawIntake(slave)
    intake.append(0, bytes_of(master) + blank)
    assert (intake.end, intake.next_offset) == (700, 708)
    intake.append(708, b"left over" * 10)
    assert (intake.end, intake.next_offset) == (700, 798)
    intake.append(798, bytes(202))
    assert (intake.end, slave.max_offset) == (1000, 700)
    assert slave.queue.read(708, 90) == b"left over" * 10


def test_a_blank_that_did_not_come_whole_is_cut_when_the_connection_ends(
    master: CommitLog, slave: CommitLog, vfs: FaultyVfs
) -> None:
    put(master, 700)
    before, intake = bytes_of(master), RawIntake(slave)
    intake.append(0, before)
    blank = BLANK.pack(total_size=300, magic_code=MAGIC_BLANK) + b"z" * 40
    intake.append(700, blank)
    intake.discard()
    assert (intake.end, intake.next_offset) == (700, 700)
    assert vfs.read_file(f"/slave/{0:020}") == before + bytes(300)
    intake.append(700, blank + b"z" * 252)
    put(master, 100, 600)
    intake.append(1000, master.read_at(1000, 600)[:600])
    assert slave.max_offset == 1600


@pytest.mark.parametrize("offset", [0, 199, 201, 1000])
def test_a_gap_and_an_overlap_are_refused_and_change_nothing(
    offset: int, master: CommitLog, slave: CommitLog
) -> None:
    put(master, 200, 300)
    data, intake = bytes_of(master), RawIntake(slave)
    intake.append(0, data[:200])
    with pytest.raises(OutOfPlace, match="goes on at 200") as caught:
        intake.append(offset, data[200:])
    assert pickle.loads(pickle.dumps(caught.value)).offset == offset
    assert intake.append(200, data[200:]) == 500


@pytest.mark.parametrize("position", [1, 4, 30, 150])
def test_a_record_with_a_flipped_bit_is_refused_with_its_place_and_what_is_before_it_stays(
    position: int, master: CommitLog, slave: CommitLog
) -> None:
    put(master, 200, 200, 200)
    data, intake = bytearray(bytes_of(master)), RawIntake(slave)
    data[200 + position] ^= 1
    with pytest.raises(CorruptRecord) as caught:
        intake.append(0, data)
    assert caught.value.position == 200
    # Only a length that the file has no room for may come from files of another size.
    assert ("mappedFileSize" in str(caught.value)) == ("a length of" in str(caught.value))
    assert caught.value.path.endswith("/slave/" + "0" * 20)
    assert (slave.max_offset, intake.end, intake.next_offset) == (200, 200, 200)
    assert intake.append(200, bytes_of(master)[200:]) == 600


def test_files_of_another_size_are_refused_with_the_option_to_give(
    master: CommitLog, slave: CommitLog
) -> None:
    put(master, 500)
    intake = RawIntake(slave)
    intake.append(0, bytes_of(master))
    with pytest.raises(CorruptRecord, match=r"a blank of 200 bytes, 500 are left.*FileSizeCommit"):
        intake.append(500, BLANK.pack(total_size=200, magic_code=MAGIC_BLANK))
    assert intake.end == 500


def test_memory_is_not_taken_by_a_length_from_the_wire(master: CommitLog) -> None:
    put(master, 200)
    config = CONFIG.changed(mapped_file_size_commit_log=1 << 30)
    log = new_log(MemoryVfs(ManualClock()), "/big", config, ManualClock())
    log.queue.load()
    log.start_at(0, 0)
    head = (1 << 29).to_bytes(4, "big") + bytes_of(master)[4:]
    intake = RawIntake(log)
    with pytest.raises(CorruptRecord, match=r"a record of 536870912 bytes.*maxMessageSize"):
        intake.append(0, head)
    assert intake.next_offset == 0
    log.close()


def test_a_full_disk_leaves_the_log_as_it_was_and_it_goes_on_when_there_is_room(
    vfs: FaultyVfs, master: CommitLog, slave: CommitLog
) -> None:
    put(master, 200, 300)
    data, intake = bytes_of(master), RawIntake(slave)
    intake.append(0, data[:200])
    vfs.fail("pwrite", path="/slave/", error=errno.ENOSPC)
    with pytest.raises(DiskFull):
        intake.append(200, data[200:])
    vfs.heal()
    assert (intake.end, intake.next_offset) == (200, 200)
    assert intake.append(200, data[200:]) == 500


def test_a_log_that_has_failed_takes_nothing(slave: CommitLog, master: CommitLog) -> None:
    put(master, 200)
    slave.refusals.fail("for a test")
    with pytest.raises(StoreFailed):
        RawIntake(slave).append(0, bytes_of(master))
    assert slave.max_offset == 0


def test_a_store_with_a_transient_pool_is_refused(clock: ManualClock) -> None:
    config = CONFIG.changed(transient_store_pool_enable=True)
    log = new_log(MemoryVfs(clock), "/pool", config, clock)
    with pytest.raises(InvalidMessage, match="transientStorePoolEnable"):
        RawIntake(log)


def test_the_dispatcher_gets_the_records_over_blanks(clock: ManualClock) -> None:
    vfs = MemoryVfs(clock)
    config = CONFIG.changed(layouts=frozenset({"consume_queue", "index"}))
    with (
        rocketcompat.open("/m", "w", config, vfs=vfs, clock=clock, background=False) as master,
        rocketcompat.open("/s", "w", config, vfs=vfs, clock=clock, background=False) as slave,
    ):
        intake, at = RawIntake(log_of(slave)), 0
        for number in range(40):
            master.put_message(Message(f"T{number % 3}", b"x" * (number * 7), keys=f"k{number}"))
            while at < master.max_physical_offset:
                part = log_of(master).read_at(at, 333)
                intake.append(at, part)
                at += len(part)
            slave.wait_dispatched(at - 1)
        master.wait_dispatched(at - 1)
        for topic in ("T0", "T1", "T2"):
            wanted = [m.body for m in master.get_message(topic, 0, 0)]
            assert len(wanted) >= 13
            assert [m.body for m in slave.get_message(topic, 0, 0)] == wanted
        assert [m.body for m in slave.query_message("T1", "k37")] == [b"x" * 259]
        assert not slave.problems
        assert slave.stats()["log"]["damaged_regions"] == 0


@pytest.mark.gate
@pytest.mark.crash
def test_a_kill_at_any_write_leaves_a_prefix_that_can_be_continued(clock: ManualClock) -> None:
    config = CONFIG.changed(layouts=frozenset({"consume_queue"}))
    source = MemoryVfs(clock)
    with rocketcompat.open("/m", "w", config, vfs=source, clock=clock, background=False) as master:
        for number in range(12):
            master.put_message(Message("T", bytes([97 + number]) * 150))
        data = bytes_of(log_of(master))
    for cut in range(0, len(data), 61):
        vfs = MemoryVfs(clock)
        store = rocketcompat.open("/s", "w", config, vfs=vfs, clock=clock, background=False)
        intake = RawIntake(log_of(store))
        intake.append(0, data[:cut])
        end = intake.end
        store._closed = True  # as a kill leaves it
        vfs.release_locks()
        with rocketcompat.open("/s", "w", config, vfs=vfs, clock=clock, background=False) as again:
            found = log_of(again)
            assert found.max_offset <= end
            assert end - found.max_offset <= SIZE - found.max_offset % SIZE  # a blank, at most
            assert bytes_of(found) == data[: found.max_offset]
            intake = RawIntake(found)
            intake.append(found.max_offset, data[found.max_offset :])
            assert bytes_of(found) == data
            again.wait_dispatched(len(data) - 1)
            assert len(list(again.get_message("T", 0, 0))) == 12
            assert not again.problems
