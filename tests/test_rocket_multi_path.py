"""A log whose files lie in several directories, in turns (spec §5.9)."""

from __future__ import annotations

from pathlib import Path

import pytest

import rocketcompat
from rocketcompat import Message, MessageStoreConfig
from rocketcompat.check import check
from rocketcompat.directory import StoreDirectory
from tests.support.golden import ROCKET_VERSIONS, Golden, GoldenFactory
from tests.support.golden_puts import Again, files_of
from tests.support.rocket_golden import expected_units, open_golden, records_of, units_of
from tubestore.clock import ManualClock
from tubestore.errors import NotAStore

CONFIG = MessageStoreConfig(
    mapped_file_size_commit_log=1000,
    mapped_file_size_consume_queue=200,
    store_path_commit_log="a,b,c",
    layouts=frozenset({"consume_queue"}),
)


def paths_of(golden: Golden) -> str:
    return str(golden.meta["config"]["multiCommitLog"])


def put_some(root: Path, count: int, config: MessageStoreConfig = CONFIG) -> None:
    with rocketcompat.open(root, "w", config, background=False) as store:
        for number in range(count):
            store.put_message(Message("T", b"%d" % number + b"x" * 200))


def numbers(root: Path, name: str) -> list[int]:
    return sorted(int(path.name) // 1000 for path in (root / name).iterdir())


def test_file_n_stands_in_directory_n_modulo_their_number(tmp_path: Path) -> None:
    put_some(tmp_path, 22)
    assert [numbers(tmp_path, name) for name in "abc"] == [[0, 3, 6], [1, 4, 7], [2, 5]]
    with rocketcompat.open(tmp_path, "w", CONFIG, background=False) as store:
        assert store.recovered.clean
        assert store.max_offset_in_queue("T", 0) == 22
        for number in range(22):
            message = store.get_message("T", 0, number, 1).messages[0]
            assert message.body.startswith(b"%d" % number)
    options = {"storePathCommitLog": "a,b,c", "mappedFileSizeCommitLog": "1000"}
    assert len(list(StoreDirectory(tmp_path, {**options}).log.files)) == 8


def test_more_directories_change_the_place_of_later_files_only(tmp_path: Path) -> None:
    put_some(tmp_path, 5)
    put_some(tmp_path, 10, CONFIG.changed(store_path_commit_log="a,b,c,d"))
    assert numbers(tmp_path, "d")
    with rocketcompat.open(tmp_path, "r", CONFIG.changed(store_path_commit_log="a,b,c,d")) as store:
        assert store.max_offset_in_queue("T", 0) == 15


def test_a_file_in_two_directories_is_refused(tmp_path: Path) -> None:
    put_some(tmp_path, 5)
    (tmp_path / "b" / f"{0:020d}").write_bytes(bytes(1000))
    with pytest.raises(NotAStore, match="another directory"):
        rocketcompat.open(tmp_path, "w", CONFIG, background=False)


def test_a_directory_that_is_missing_is_named(tmp_path: Path) -> None:
    put_some(tmp_path, 5)
    with pytest.raises(NotAStore, match="other"):
        rocketcompat.open(tmp_path, "r", CONFIG.changed(store_path_commit_log="a,b,other"))


def test_a_single_path_of_another_machine_is_not_followed(
    tmp_path: Path, clock: ManualClock
) -> None:
    config = CONFIG.changed(store_path_commit_log="/home/admin/store/commitlog")
    assert config.commit_log_directories("/s") == ["/s/commitlog"]
    assert CONFIG.changed(store_path_commit_log="/a,/b").commit_log_directories("/s") == [
        "/a", "/b",
    ]  # fmt: skip


@pytest.mark.parametrize("version", ROCKET_VERSIONS)
def test_the_golden_store_of_several_paths_opens_and_comes_out_the_same(
    golden: GoldenFactory, tmp_path: Path, version: str
) -> None:
    theirs = golden("rocketmq", version, "multipath")
    again = Again(theirs, tmp_path / "again", store_path_commit_log=paths_of(theirs))
    for row in theirs.puts():
        again.at_time_of(row)
        again.store.put_message(again.message(row))
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
