"""The log's files written through maps, RocketMQ's way (MEM-03, MEM-04, WR-01; D10)."""

from __future__ import annotations

import errno
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rocketcompat
from rocketcompat import Message, MessageStoreConfig
from rocketcompat.files.mmap_file import MmapFile
from rocketcompat.store.default_message_store import DefaultMessageStore
from tests.support import REPOSITORY
from tests.support.golden import ROCKET_VERSIONS, GoldenFactory
from tests.support.golden_puts import Again, files_of
from tests.support.rocket.inside import log_of
from tubestore.clock import ManualClock
from tubestore.core.vfs import OsVfs
from tubestore.errors import StoreFailed
from tubestore.testing import FaultyVfs, MemoryVfs

SIZE = 8192
CONFIG = MessageStoreConfig(
    mapped_file_size_commit_log=SIZE,
    mapped_file_size_consume_queue=200,
    layouts=frozenset({"consume_queue"}),
    write_without_mmap=False,
)


@pytest.fixture
def vfs(clock: ManualClock) -> FaultyVfs:
    return FaultyVfs(MemoryVfs(clock))


@pytest.fixture
def store(vfs: FaultyVfs, clock: ManualClock) -> Iterator[DefaultMessageStore]:
    with opened("/s", vfs=vfs, clock=clock) as store:
        yield store


def opened(root: Any, config: MessageStoreConfig = CONFIG, **given: Any) -> DefaultMessageStore:
    return rocketcompat.open(root, "w", config, background=False, **given)


def put(store: DefaultMessageStore, size: int = 100) -> int:
    return store.put_message(Message("T", b"x" * (size - 92))).physical_offset


def last_of(store: DefaultMessageStore) -> MmapFile:
    file = log_of(store).queue.last
    assert isinstance(file, MmapFile)
    return file


def maps_of(root: Path) -> list[str]:
    """The names of a log's files that this process has mapped, once a map."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return [line.split("/")[-1] for line in lines if str(root / "commitlog") in line]


def test_rocketmqs_own_name_chooses_it_and_pwrite_is_the_default() -> None:  # MEM-03
    assert MessageStoreConfig().write_without_mmap
    chosen = MessageStoreConfig.from_camel({"writeWithoutMmap": "false"})
    assert not chosen.write_without_mmap


def test_a_new_file_is_mapped_and_full_size_before_a_message_is_in_it(
    tmp_path: Path,
) -> None:  # MEM-04, WR-01
    with opened(tmp_path) as store:
        log_of(store).queue.last_or_create()
        path = tmp_path / "commitlog" / f"{0:020d}"
        assert path.stat().st_size == SIZE
        assert path.stat().st_blocks * 512 >= SIZE
        assert maps_of(tmp_path) == [path.name]
        put(store)
        assert maps_of(tmp_path) == [path.name]
        assert path.read_bytes()[:8] == bytes.fromhex("00000064daa320a7")
    assert maps_of(tmp_path) == []


def test_a_file_is_mapped_until_it_is_full_and_on_stable_storage(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        for _ in range(3 * SIZE // 1000):
            put(store, 1000)
        assert [name.lstrip("0") or "0" for name in sorted(maps_of(tmp_path))] == [
            "0", "8192", "16384",
        ]  # fmt: skip
        log_of(store).flush()
        assert maps_of(tmp_path) == [f"{2 * SIZE:020d}"]
        assert store.look_message(0).body == b"x" * 908


@pytest.mark.parametrize("version", ROCKET_VERSIONS)
@pytest.mark.parametrize("scenario", ["basic", "rolled", "keys-tags", "syncflush"])
def test_the_golden_stores_come_out_the_same_through_maps(
    golden: GoldenFactory, tmp_path: Path, version: str, scenario: str
) -> None:
    theirs = golden("rocketmq", version, scenario)
    again = Again(theirs, tmp_path / "again", write_without_mmap=False)
    again.put_all()
    assert isinstance(last_of(again.store), MmapFile)
    again.close("commitlog", "consumequeue")


def test_a_flush_syncs_the_dirty_range_of_the_map(
    store: DefaultMessageStore, vfs: FaultyVfs
) -> None:
    put(store)
    log_of(store).flush()
    synced: list[tuple[int, int]] = []
    file = last_of(store)
    honest = file.map()

    class Watching:
        def __getattr__(self, name: str) -> Any:
            return getattr(honest, name)

        def sync(self, start: int, end: int) -> None:
            synced.append((start, end))
            honest.sync(start, end)

    file._map = Watching()  # type: ignore[assignment]
    put(store)
    put(store)
    log_of(store).flush()
    log_of(store).flush()
    assert synced == [(100, 300)]
    assert log_of(store).synced_offset == 300


def test_a_sync_that_fails_fails_the_log(store: DefaultMessageStore, vfs: FaultyVfs) -> None:
    put(store)
    log_of(store).flush()
    put(store)
    vfs.fail("sync", path="commitlog")
    with pytest.raises(StoreFailed):
        log_of(store).flush()
    with pytest.raises(StoreFailed):
        put(store)
    with pytest.raises(StoreFailed):
        store.close()


def test_without_room_for_a_file_the_put_is_refused_and_may_be_tried_again(
    store: DefaultMessageStore, vfs: FaultyVfs
) -> None:
    put(store, 8000)
    vfs.fail("allocate", path="commitlog", error=errno.ENOSPC)
    with pytest.raises(OSError, match="No space"):
        put(store, 400)
    assert [name for name, _, _ in vfs.entries("/s/commitlog")] == ["0" * 20]
    assert put(store, 400) == SIZE
    assert store.look_message(SIZE).size == 400


def test_a_file_of_the_default_way_is_allocated_before_it_is_mapped(
    vfs: FaultyVfs, clock: ManualClock
) -> None:
    with opened("/s", CONFIG.changed(write_without_mmap=True), vfs=vfs, clock=clock) as store:
        put(store)
    with opened("/s", vfs=vfs, clock=clock) as store:
        vfs.fail("allocate", path="commitlog", error=errno.ENOSPC)
        with pytest.raises(OSError, match="No space"):
            put(store)
        assert store.max_physical_offset == 100
        assert put(store) == 100
        assert last_of(store).is_mapped
    with opened("/s", CONFIG.changed(write_without_mmap=True), vfs=vfs, clock=clock) as store:
        assert store.recovered.clean
        assert put(store) == 200
        assert store.look_message(100).size == 100


class Killed(BaseException):
    """The process ends here."""


class KillableMap:
    """A map whose copies arrive piece by piece in some order, until the process ends.

    Up to eight bytes are one store of the processor, which is done whole or not at all.
    """

    def __init__(self, inner: Any, order: random.Random, stores: int) -> None:
        self._inner, self._order, self.stores = inner, order, stores

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def write(self, data: Any, position: int) -> None:
        raw = memoryview(data).cast("B")
        step = 8 if len(raw) <= 8 else 16
        places = list(range(0, len(raw), step))
        self._order.shuffle(places)
        for place in places:
            if self.stores == 0:
                raise Killed
            self.stores -= 1
            self._inner.write(raw[place : place + step], position + place)


@pytest.mark.gate
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("put_one", [True, False])
def test_a_kill_in_the_middle_of_a_copy_leaves_all_of_it_or_nothing(
    clock: ManualClock, seed: int, put_one: bool
) -> None:
    """Whatever the order in which the bytes of a copy arrive, and wherever the process ends."""
    table = {"topic": ["T"] * 4, "queue_id": [0] * 4, "body": [b"%070d" % n for n in range(4)]}
    full, stores = False, 0
    while not full:
        vfs = MemoryVfs(clock)
        store = opened("/s", vfs=vfs, clock=clock)
        put(store)
        file = last_of(store)
        file._map = KillableMap(file.map(), random.Random(seed), stores)
        try:
            if put_one:
                put(store, 400)
            else:
                store.put_columns(table)
            full = True
        except Killed:
            pass
        store._closed = True
        vfs.release_locks()
        with opened("/s", vfs=vfs, clock=clock) as store:
            assert store.recovered.damages == (), stores
            found = [row for batch in store.scan() for row in batch["body"].to_pylist()]
            assert found[0] == b"x" * 8
            wanted = [b"x" * 308] if put_one else table["body"]
            assert found[1:] == (wanted if full else []), stores
            assert put(store) == store.max_physical_offset - 100
        assert not vfs.tree()[file.path][store.max_physical_offset :].strip(b"\0")
        stores += 1
    assert stores > 20


def test_a_reader_sees_a_copy_that_is_under_way_as_the_end(
    store: DefaultMessageStore, vfs: FaultyVfs, clock: ManualClock
) -> None:
    put(store)
    file = last_of(store)
    file._map = KillableMap(file.map(), random.Random(1), 20)
    with pytest.raises(Killed):
        store.put_columns({"topic": ["T"] * 4, "queue_id": [0] * 4, "body": [b"x" * 100] * 4})
    with rocketcompat.open("/s", "r", CONFIG, vfs=vfs, clock=clock) as reader:
        assert reader.max_physical_offset == 100
        assert reader.problems == []


def test_what_is_mapped_is_read_by_others_at_once(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        offset = put(store)
        with rocketcompat.open(tmp_path, "r", CONFIG) as reader:
            assert reader.look_message(offset).body == b"x" * 8


def test_with_a_transient_pool_there_are_no_maps(vfs: FaultyVfs, clock: ManualClock) -> None:
    config = CONFIG.changed(transient_store_pool_enable=True)
    with opened("/s", config, vfs=vfs, clock=clock) as store:
        put(store)
        assert not isinstance(log_of(store).queue.last, MmapFile)


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_warming_up_touches_every_page_and_changes_no_byte(
    tmp_path: Path, clock: ManualClock, flush: Any
) -> None:
    config = CONFIG.changed(
        mapped_file_size_commit_log=50_000,
        warm_maped_file_enable=True,
        flush_disk_type=flush,
        flush_least_pages_when_warm_maped_file=4,
    )
    for number, name in enumerate(("warm", "cold")):
        given = config.changed(warm_maped_file_enable=not number)
        vfs = FaultyVfs(OsVfs())
        with opened(tmp_path / name, given, clock=clock, vfs=vfs) as store:
            before = vfs.calls["sync"]
            put(store)
            syncs = vfs.calls["sync"] - before
            assert (syncs > 2) == (flush == "SYNC_FLUSH" and name == "warm")
    warm, cold = (files_of(tmp_path / name, "commitlog") for name in ("warm", "cold"))
    assert warm == cold


ON_A_SMALL_DISK = """
import errno, os, sys
import rocketcompat
from rocketcompat import Message, MessageStoreConfig
config = MessageStoreConfig(mapped_file_size_commit_log=64 << 10, layouts=frozenset(),
                            write_without_mmap=False)
store = rocketcompat.open(sys.argv[1], "w", config, background=False)
count = 0
try:
    while count < 10_000:
        store.put_message(Message("T", b"%06d" % count + bytes(1000)))
        count += 1
except OSError as error:
    assert error.errno == errno.ENOSPC, error
else:
    raise SystemExit("the disk was never full")
with rocketcompat.open(sys.argv[1], "r", config.changed(write_without_mmap=True)) as reader:
    end, position, seen = reader.max_physical_offset, 0, 0
    while position < end:
        if 65536 - position % 65536 < 1200:  # the blank
            position += 65536 - position % 65536
            continue
        record = reader.look_message(position)
        assert record.body[:6] == b"%06d" % seen
        position, seen = position + record.size, seen + 1
assert seen == count, (seen, count)
print("acknowledged and read back:", count)
sys.stdout.flush()
os._exit(0)
"""


@pytest.mark.gate
@pytest.mark.skipif(sys.platform != "linux", reason="a file system of a given size: Linux only")
def test_on_a_disk_that_runs_full_no_process_is_killed_and_nothing_is_lost(tmp_path: Path) -> None:
    """Written to a hole, a map kills the process with SIGBUS at the first page without room."""
    small = f"mount -t tmpfs -o size=1m none {tmp_path} && exec {sys.executable} -c"
    try:
        done = subprocess.run(
            ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c",
             f'{small} "$0" {tmp_path}/s', ON_A_SMALL_DISK],
            capture_output=True, text=True, timeout=60, cwd=REPOSITORY, check=False,
        )  # fmt: skip
    except FileNotFoundError:
        pytest.skip("unshare is not installed")
    if "unshare:" in done.stderr or "mount:" in done.stderr:
        pytest.skip(f"no small file system can be made here: {done.stderr.strip()}")
    assert done.returncode == 0, (done.returncode, done.stderr)
    count = int(done.stdout.split(":")[1])
    assert 500 < count < 1000
