"""A log whose files lie in several directories, in turns."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

import rocketcompat
from rocketcompat import Message, MessageStoreConfig
from rocketcompat.check.whole import check
from rocketcompat.files.mapped_file_queue import MappedFileQueue
from rocketcompat.inspect.directory import StoreDirectory
from rocketcompat.store.clean_service import CleanService
from rocketcompat.store.default_message_store import DefaultMessageStore
from tests.support.command import Command
from tests.support.golden import ROCKET_VERSIONS, Golden, GoldenFactory
from tests.support.golden_puts import Again, files_of
from tests.support.rocket.cli import command_fixture as command_fixture
from tests.support.rocket.files.logs import DIRECTORY, SIZE, opened, put
from tests.support.rocket.golden import expected_units, open_golden, records_of, units_of
from tests.support.rocket.inside import dispatcher_of, log_of, opened_of
from tubestore.clock import ManualClock
from tubestore.core.local_files import OsFile
from tubestore.core.vfs import OsVfs
from tubestore.errors import (
    DiskFull,
    InvalidMessage,
    NotAStore,
)
from tubestore.testing import MemoryVfs

ROLLED = MessageStoreConfig(
    mapped_file_size_commit_log=1000,
    mapped_file_size_consume_queue=200,
    store_path_commit_log="a,b,c",
    layouts=frozenset({"consume_queue"}),
)


def paths_of(golden: Golden) -> str:
    return str(golden.meta["config"]["multiCommitLog"])


def put_some(root: Path, count: int, config: MessageStoreConfig = ROLLED) -> None:
    with rocketcompat.open(root, "w", config, background=False) as store:
        for number in range(count):
            store.put_message(Message("T", b"%d" % number + b"x" * 200))


def numbers(root: Path, name: str) -> list[int]:
    return sorted(int(path.name) // 1000 for path in (root / name).iterdir())


def test_file_n_is_in_directory_n_modulo_their_number(tmp_path: Path) -> None:
    put_some(tmp_path, 22)
    assert [numbers(tmp_path, name) for name in "abc"] == [[0, 3, 6], [1, 4, 7], [2, 5]]
    with rocketcompat.open(tmp_path, "w", ROLLED, background=False) as store:
        assert store.recovered.clean
        assert store.max_offset_in_queue("T", 0) == 22
        for number in range(22):
            message = store.get_message("T", 0, number, 1).messages[0]
            assert message.body.startswith(b"%d" % number)
    options = {"storePathCommitLog": "a,b,c", "mappedFileSizeCommitLog": "1000"}
    assert len(list(StoreDirectory(tmp_path, {**options}).log.files)) == 8


def test_more_directories_change_the_place_of_later_files_only(tmp_path: Path) -> None:
    put_some(tmp_path, 5)
    put_some(tmp_path, 10, ROLLED.changed(store_path_commit_log="a,b,c,d"))
    assert numbers(tmp_path, "d")
    with rocketcompat.open(tmp_path, "r", ROLLED.changed(store_path_commit_log="a,b,c,d")) as store:
        assert store.max_offset_in_queue("T", 0) == 15


def test_a_file_in_two_directories_is_refused(tmp_path: Path) -> None:
    put_some(tmp_path, 5)
    (tmp_path / "b" / f"{0:020d}").write_bytes(bytes(1000))
    with pytest.raises(NotAStore, match="another directory"):
        rocketcompat.open(tmp_path, "w", ROLLED, background=False)


def test_a_directory_that_is_missing_is_named(tmp_path: Path) -> None:
    put_some(tmp_path, 5)
    with pytest.raises(NotAStore, match="other"):
        rocketcompat.open(tmp_path, "r", ROLLED.changed(store_path_commit_log="a,b,other"))


def test_an_absolute_path_is_followed_from_a_brokers_file_too(
    tmp_path: Path, command: Command
) -> None:
    root, log, conf = tmp_path / "root", tmp_path / "disk" / "log", tmp_path / "broker.conf"
    conf.write_text(
        f"storePathCommitLog={log}\nmappedFileSizeCommitLog=1000\n"
        "mappedFileSizeConsumeQueue=200\nmaxHashSlotNum=7\nmaxIndexNum=20\n"
    )
    config = MessageStoreConfig.from_file(conf, layouts=frozenset({"consume_queue"}))
    put_some(root, 5, config)
    assert not (root / "commitlog").exists()
    assert len(list(log.iterdir())) == 2
    with rocketcompat.open(root, "r", config) as store:
        assert store.max_offset_in_queue("T", 0) == 5
    assert command("check", root, "--conf", conf).code == 0
    (row,) = command("queues", root, "--conf", conf, "--format", "jsonl").rows
    assert row["max_offset"] == 5


def test_a_brokers_file_that_asks_for_dledger_is_refused(tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text("enableDLegerCommitLog = true\n")
    with pytest.raises(InvalidMessage, match="enableDLegerCommitLog"):
        MessageStoreConfig.from_file(conf)


@pytest.mark.parametrize("version", ROCKET_VERSIONS)
def test_the_golden_store_of_several_paths_opens_and_comes_out_the_same(
    golden: GoldenFactory, tmp_path: Path, version: str
) -> None:
    theirs = golden("rocketmq", version, "multipath")
    again = Again(theirs, tmp_path / "again", store_path_commit_log=paths_of(theirs))
    again.put_all()
    again.close()
    before = {name: files_of(theirs.store, name) for name in paths_of(theirs).split(",")}
    assert {name: files_of(again.root, name) for name in before} == before
    with open_golden(theirs, store_path_commit_log=paths_of(theirs)) as store:
        assert store.problems == []
        assert list(units_of(store)) == expected_units(theirs)
        assert len(records_of(store)) == 60
    config = theirs.meta["config"]
    options = {k: v for k, v in config.items() if k != "multiCommitLog"}
    assert list(check(theirs.store, {**options, "storePathCommitLog": paths_of(theirs)})) == []


def test_the_directories_are_used_in_the_order_of_their_names(tmp_path: Path) -> None:
    """As the real one sorts them: 4.9.8 with "z,a,m" puts the first file into a."""
    put_some(tmp_path, 10, ROLLED.changed(store_path_commit_log="z,a,m"))
    assert [numbers(tmp_path, name) for name in "amz"] == [[0, 3], [1], [2]]


def test_another_separator_may_be_given(tmp_path: Path) -> None:
    config = ROLLED.changed(store_path_commit_log="a:b", multi_path_splitter=":")
    put_some(tmp_path, 10, config)
    assert [numbers(tmp_path, name) for name in "ab"] == [[0, 2], [1, 3]]
    with pytest.raises(InvalidMessage, match="multi_path_splitter"):
        ROLLED.changed(multi_path_splitter="")


def test_read_only_directories_are_read_and_get_no_new_files(tmp_path: Path) -> None:
    put_some(tmp_path, 10)
    before = {name: numbers(tmp_path, name) for name in "abc"}
    config = ROLLED.changed(store_path_commit_log="b,d", read_only_commit_log_store_paths="a,c")
    with rocketcompat.open(tmp_path, "w", config, background=False) as store:
        assert store.recovered.clean
        for number in range(10, 25):
            store.put_message(Message("T", b"%d" % number + b"x" * 200))
        assert store.max_offset_in_queue("T", 0) == 10
        dispatcher_of(store).dispatch_pending()
        bodies = [store.get_message("T", 0, n, 1).messages[0].body for n in range(25)]
        assert [int(body.rstrip(b"x")) for body in bodies] == list(range(25))
    assert (numbers(tmp_path, "a"), numbers(tmp_path, "c")) == (before["a"], before["c"])
    assert [*numbers(tmp_path, "b"), *numbers(tmp_path, "d")] == [1, 4, 6, 8, 5, 7]
    with rocketcompat.open(tmp_path, "r", config) as store:
        assert store.max_offset_in_queue("T", 0) == 25


def test_a_read_only_directory_that_is_missing_is_named_and_nothing_is_lost(
    tmp_path: Path,
) -> None:
    put_some(tmp_path, 10)
    config = ROLLED.changed(read_only_commit_log_store_paths="old")
    for mode in ("r", "w"):
        with pytest.raises(NotAStore, match="old"):
            rocketcompat.open(tmp_path, mode, config, background=False)  # type: ignore[arg-type]
    put_some(tmp_path, 1)


def test_a_path_that_is_both_gets_no_new_files(tmp_path: Path) -> None:
    config = ROLLED.changed(read_only_commit_log_store_paths="a,b")
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    put_some(tmp_path, 10, config)
    assert numbers(tmp_path, "c") == [0, 1, 2, 3]
    with pytest.raises(InvalidMessage, match="read-only"):
        put_some(tmp_path, 1, ROLLED.changed(read_only_commit_log_store_paths="a,b,c"))


def test_files_of_a_disk_that_cannot_be_written_are_read(
    tmp_path: Path, clock: ManualClock
) -> None:
    put_some(tmp_path, 9)
    assert [numbers(tmp_path, name) for name in "abc"] == [[0], [1], [2]]

    class ReadOnlyDisk(OsVfs):
        def open(self, path: str, *, create: bool = False, writable: bool = True) -> OsFile:
            if writable and path.startswith(f"{tmp_path}/a/"):
                raise OSError(errno.EROFS, "read-only file system", path)
            return super().open(path, create=create, writable=writable)

    config = ROLLED.changed(store_path_commit_log="b,c", read_only_commit_log_store_paths="a")
    vfs = ReadOnlyDisk()
    with rocketcompat.open(tmp_path, "w", config, vfs=vfs, background=False) as store:
        store.put_message(Message("T", b"more"))
        assert store.get_message("T", 0, 0, 1).messages[0].body.startswith(b"0x")
    with pytest.raises(OSError, match="read-only"):
        rocketcompat.open(tmp_path, "w", ROLLED, vfs=vfs, background=False)


def cleaner_of(store: DefaultMessageStore, used: dict[str, int]) -> CleanService:
    """The store's cleaner, that is told how full each directory's disk is."""
    cleaner = opened_of(store).cleaner
    cleaner._disk_used = lambda path: used.get(Path(path).name, 10)
    return cleaner


def test_new_files_pass_by_full_disks_until_all_are_full(tmp_path: Path) -> None:
    config = ROLLED.changed(clean_file_forcibly_enable=False)
    with rocketcompat.open(tmp_path, "w", config, background=False) as store:
        cleaner_of(store, {"a": 86, "b": 86}).run()
        for number in range(10):
            store.put_message(Message("T", b"%d" % number + b"x" * 200))
        assert [numbers(tmp_path, name) for name in "abc"] == [[], [], [0, 1, 2, 3]]
        cleaner_of(store, {"a": 10, "b": 86, "c": 86}).run()
        for number in range(10, 20):
            store.put_message(Message("T", b"%d" % number + b"x" * 200))
        assert numbers(tmp_path, "a") == [4, 5, 6]
        cleaner_of(store, {"a": 86, "b": 86, "c": 86}).run()
        for number in range(20, 30):
            store.put_message(Message("T", b"%d" % number + b"x" * 200))
        assert [numbers(tmp_path, name) for name in "abc"] == [[4, 5, 6, 9], [7], [0, 1, 2, 3, 8]]
    put_some(tmp_path, 3)


def test_writes_are_refused_when_the_least_used_disk_is_too_full(tmp_path: Path) -> None:
    with rocketcompat.open(tmp_path, "w", ROLLED, background=False) as store:
        cleaner = cleaner_of(store, {"a": 99, "b": 95, "c": 89})
        cleaner.run()
        store.put_message(Message("T", b"x"))
        cleaner_of(store, {"a": 99, "b": 95, "c": 91}).run()
        with pytest.raises(DiskFull):
            store.put_message(Message("T", b"x"))
        cleaner_of(store, {"a": 99, "b": 95, "c": 90}).run()
        store.put_message(Message("T", b"x"))


def test_the_tools_see_all_paths(tmp_path: Path, command: Command) -> None:
    root = tmp_path / "s"
    put_some(root, 10)
    config = ROLLED.changed(store_path_commit_log="d", read_only_commit_log_store_paths="a,b,c")
    put_some(root, 10, config)
    given = ["-o", "storePathCommitLog=d", "-o", "readOnlyCommitLogStorePaths=a,b,c",
             "-o", "mappedFileSizeCommitLog=1000"]  # fmt: skip
    rows = command("dump", root, *given, "--format", "jsonl").rows
    assert [row["queue_offset"] for row in rows] == list(range(20))
    (answer,) = command("info", root, *given, "--format", "jsonl").rows
    names = {row["structure"]: row["files"] for row in answer["structures"]}
    assert {name: names[name] for name in "abcd"} == {"a": 2, "b": 1, "c": 1, "d": 3}
    assert command("check", root, *given).code in (0, 1)
    assert list(check(root, {"storePathCommitLog": "d", "mappedFileSizeCommitLog": 1000,
                             "readOnlyCommitLogStorePaths": "a,b,c"})) == []  # fmt: skip
    for row in (rows[3], rows[-1]):
        logs = [text for name in "abcd" for text in ("--log", root / name)]
        found = command("decode", root, "--commitlog-offset", row["physical_offset"], *logs,
                        "--format", "jsonl").rows  # fmt: skip
        assert (found[0]["state"], found[0]["queue_offset"]) == ("ok", row["queue_offset"])
        by_queue = command("decode", root, "--topic", "T", "--queue", 0, "--offset",
                           row["queue_offset"], *logs, "--format", "jsonl")  # fmt: skip
        assert by_queue.rows[0]["message"]["physical_offset"] == row["physical_offset"]
    done = command("convert", root, tmp_path / "one", *given)
    assert done.code == 0, done.err
    copied = command("dump", tmp_path / "one", "--format", "jsonl").rows
    assert [row["queue_offset"] for row in copied] == list(range(20))
    assert command("dump", root, "-o", "storePathCommitLog=a,other").code == 3


@pytest.mark.parametrize("is_open", [True, False])
def test_files_that_a_writer_begins_while_directories_are_listed_leave_no_gap(
    tmp_path: Path, is_open: bool
) -> None:
    put_some(tmp_path, 8)

    class Growing(OsVfs):
        """Begins files in all directories whenever the first was listed, six times."""

        def entries(self, path: str) -> list[tuple[str, bool, int]]:
            found = super().entries(path)
            if path == str(tmp_path / "a") and len(numbers(tmp_path, "b")) < 13:
                put_some(tmp_path, 22)
            return found

    if is_open:
        with rocketcompat.open(tmp_path, "r", ROLLED, vfs=Growing()) as reader:
            starts = [file.file_from_offset for file in log_of(reader).queue.files]
    else:
        options = {"storePathCommitLog": "a,b,c", "mappedFileSizeCommitLog": "1000"}
        starts = [
            f.file_from_offset for f in StoreDirectory(tmp_path, options, Growing()).log.files
        ]
    assert starts == list(range(0, starts[-1] + 1000, 1000))
    assert len(starts) > 6


def test_a_file_of_another_length_is_refused(memory_vfs: MemoryVfs, clock: ManualClock) -> None:
    memory_vfs.make_directories(DIRECTORY)
    memory_vfs.open(f"{DIRECTORY}/{0:020d}", create=True).truncate(SIZE - 1)
    with pytest.raises(NotAStore, match="999 bytes"):
        opened(memory_vfs, clock)


def test_a_foreign_file_is_refused(memory_vfs: MemoryVfs, clock: ManualClock) -> None:
    memory_vfs.make_directories(DIRECTORY)
    memory_vfs.open(f"{DIRECTORY}/notes.txt", create=True)
    with pytest.raises(NotAStore, match="notes"):
        opened(memory_vfs, clock)


def test_an_unborn_last_file_is_passed_by(memory_vfs: MemoryVfs, clock: ManualClock) -> None:
    memory_vfs.make_directories(f"{DIRECTORY}/sub")
    memory_vfs.open(f"{DIRECTORY}/{0:020d}", create=True)
    assert put(opened(memory_vfs, clock), 100)[0] == 0


def test_files_are_in_the_order_of_their_offsets_however_they_were_made(
    memory_vfs: MemoryVfs,
) -> None:
    files = MappedFileQueue(memory_vfs, DIRECTORY, SIZE)
    for number in (1, 3, 2, 0):
        files.create(number * SIZE)
    assert [file.file_from_offset for file in files.files] == [0, SIZE, 2 * SIZE, 3 * SIZE]
    assert (files.first, files.last) == (files.files[0], files.files[3])


def test_a_byte_is_found_in_files_that_begin_at_no_multiple_of_their_size(
    memory_vfs: MemoryVfs,
) -> None:
    files = MappedFileQueue(memory_vfs, DIRECTORY, SIZE)
    for start in (10, 10 + SIZE, 10 + 3 * SIZE):
        files.create(start)
    places = (9, 10, SIZE + 9, SIZE + 10, 2 * SIZE + 10, 3 * SIZE + 10, 4 * SIZE + 10)
    found = [file.file_from_offset if file else None for file in map(files.find, places)]
    assert found == [None, 10, 10, 10 + SIZE, None, 10 + 3 * SIZE, None]


def test_without_directory_there_are_no_files(memory_vfs: MemoryVfs) -> None:
    files = MappedFileQueue(memory_vfs, DIRECTORY, SIZE)
    files.load()
    assert files.files == ()
    files.create(0)
    files.load()
    assert len(files.files) == 1
