"""A store that is opened to read: where it ends is found, and nothing changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import rocketcompat
from rocketcompat import Message
from rocketcompat.check.whole import check_store
from rocketcompat.commitlog import ending
from rocketcompat.files.mapped_file import MappedFile
from rocketcompat.inspect import directory
from rocketcompat.inspect.directory import StoreDirectory
from rocketcompat.queues.recovery import sound_pieces
from tests.support.rocket.inside import (
    log_of,
)
from tests.support.rocket.store.opened import opened
from tests.support.rocket.store.recovered import (
    CONFIG,
    ROOT,
    Bench,
)
from tests.support.rocket.store.recovered import bench as bench
from tubestore.errors import (
    InvalidMessage,
    NotAStore,
    ReadOnlyStore,
)


def test_records_that_come_between_two_looks_of_a_reader_are_no_damage(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    with bench.open() as writer:
        bench.put(3)
        search, coming = ending.find_record, [3, 5]

        def late(*args: Any) -> int | None:
            if coming:
                bench.store = writer
                bench.put(2, first=coming.pop(0))
            return search(*args)

        for module in (ending, directory):
            monkeypatch.setattr(module, "find_record", late)
        with rocketcompat.open(ROOT, "r", CONFIG, vfs=bench.vfs, clock=bench.clock) as reader:
            assert reader.problems == []
            pieces = sound_pieces(log_of(reader), 0, 1 << 62)
            assert sum(len(piece.starts) for piece in pieces) == 5
        findings = check_store(StoreDirectory(ROOT, vfs=bench.vfs))
        assert not any(finding["reason"] == "damaged" for finding in findings)


def test_a_reader_of_a_crashed_store_changes_nothing(bench: Bench) -> None:
    bench.open()
    bench.put(12)
    bench.kill()
    before = bench.vfs.tree()
    with bench.open(mode="r") as store:
        assert store.look_message(0).body.startswith(b"000")
        assert len([s for p in sound_pieces(log_of(store), 0, 1 << 62) for s in p.starts]) == 12
    assert bench.vfs.tree() == before


def test_a_reader_needs_a_store_and_does_not_make_one(tmp_path: Path) -> None:
    with pytest.raises(NotAStore):
        opened(tmp_path / "nothing", "r")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(InvalidMessage):
        opened(tmp_path, "a")


def test_a_reader_without_a_store_names_the_mode_that_makes_one(tmp_path: Path) -> None:
    words = "no such directory; mode='w' makes a store"
    with pytest.raises(NotAStore, match=words):
        rocketcompat.open(tmp_path / "nothing")
    with pytest.raises(NotAStore, match="is empty; mode='w' makes a store"):
        rocketcompat.open(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(NotAStore, match=r"has no directory .*/commitlog$"):
        rocketcompat.open(tmp_path)


def test_a_reader_follows_a_writer(tmp_path: Path) -> None:
    with opened(tmp_path) as writer:
        writer.wait_dispatched(writer.put_message(Message("T", b"1")).physical_offset)
        with opened(tmp_path, "r") as reader:
            assert [m.body for m in reader.get_message("T", 0, 0)] == [b"1"]
            with pytest.raises(ReadOnlyStore):
                reader.put_message(Message("T"))
            with pytest.raises(ReadOnlyStore):
                reader.flush()
            for i in range(80):
                last = writer.put_message(Message("T", b"x" * 100, keys=f"k{i}"))
            writer.wait_dispatched(last.physical_offset)
            assert reader.max_physical_offset < last.physical_offset
            reader.refresh()
            assert reader.max_physical_offset == writer.max_physical_offset
            assert reader.max_offset_in_queue("T", 0) == 81
            assert reader.problems == []


def test_a_reader_refuses_the_shards_that_it_does_not_show(tmp_path: Path) -> None:
    with rocketcompat.open(tmp_path, "w", layouts={"tube"}, background=False):
        pass
    with pytest.raises(InvalidMessage, match=r"a reader shows no shards; tubestore\.open"):
        rocketcompat.open(tmp_path, "r", layouts={"tube", "index"})


def test_a_refresh_at_the_log_s_end_reads_little_of_the_hole_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log's file of 64 MiB is one hole but for its first page."""
    config = CONFIG.changed(mapped_file_size_commit_log=64 << 20)
    sizes = []
    read = MappedFile.read

    def noted(file: MappedFile, position: int, size: int) -> bytes:
        data = read(file, position, size)
        sizes.append(len(data))
        return data

    with rocketcompat.open(tmp_path, "w", config) as writer:
        writer.put_message(Message("T", b"1"))
        writer.flush()
        with rocketcompat.open(tmp_path, "r", config) as reader:
            monkeypatch.setattr(MappedFile, "read", noted)
            reader.refresh()
    assert 0 < sum(sizes) < 100_000
