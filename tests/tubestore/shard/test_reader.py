"""Reading beside a writer: a whole prefix, never a changed byte."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import tubestore
from tests.support.tube import (
    bodies,
    encode_rows,
    make_rows,
    open_shard,
    partition_rows,
    scanned,
    tree_digest,
    write_rows,
)
from tubestore.errors import StoreClosed, UnknownTopic
from tubestore.options import StoreOptions
from tubestore.record.records import ENTRY_SIZE
from tubestore.shard.reader import ShardReader
from tubestore.store.topic import shards_of
from tubestore.testing import FaultyVfs, MemoryVfs

HOME = "/store/t-0"
DATA = f"{HOME}/{0:020d}.tube"
INDEX = f"{HOME}/index/{0:020d}.index"
ROWS = make_rows(30)
BODIES = [row.payload for row in ROWS]


def reader_of(vfs: MemoryVfs) -> ShardReader:
    return ShardReader(vfs, HOME, "t", 0, StoreOptions())


def test_a_reader_sees_what_reached_the_files_as_of_its_refresh(memory_vfs: MemoryVfs) -> None:
    shard = open_shard(memory_vfs, HOME, segment_size_bytes=300, index_segment_size_bytes=140)
    reader = reader_of(memory_vfs)
    assert bodies(reader.view()) == []
    for number, row in enumerate(ROWS):
        shard.append(row, "page_cache" if number % 3 == 2 else "memory")
        before = bodies(reader.view())
        assert before == BODIES[: number // 3 * 3]
        reader.refresh()
        assert bodies(reader.view()) == BODIES[: (number + 1) // 3 * 3]
    shard.close()
    reader.close()


def test_views_that_were_taken_stay_as_they_are(memory_vfs: MemoryVfs) -> None:
    shard = open_shard(memory_vfs, HOME, segment_size_bytes=300)
    reader = reader_of(memory_vfs)
    views = []
    for row in ROWS:
        shard.append(row, "page_cache")
        reader.refresh()
        views.append(reader.view())
    reader.close()
    shard.close()
    for number, view in enumerate(views):
        assert bodies(view) == BODIES[: number + 1]


@pytest.mark.parametrize("data_size", [0, 1, 51, 52, 60, 130, 10_000])
@pytest.mark.parametrize("index_size", [0, 1, 27, 28, 29, 83, 84])
def test_a_write_in_flight_is_not_there_yet_and_never_damage(
    memory_vfs: MemoryVfs, data_size: int, index_size: int
) -> None:
    write_rows(memory_vfs, ROWS[:5], HOME)
    data, index = memory_vfs.read_file(DATA), memory_vfs.read_file(INDEX)
    batch = encode_rows(ROWS[5:8], len(index), len(data))
    whole = batch.data.tobytes(), batch.entries.tobytes()
    memory_vfs.open(DATA).pwrite(whole[0][:data_size], len(data))
    memory_vfs.open(INDEX).pwrite(whole[1][:index_size], len(index))
    reader = reader_of(memory_vfs)
    rows = scanned(reader.view(), verify=True)
    assert {row["state"] for row in rows} == {"ok"}
    assert 5 <= len(rows) <= 8
    assert [row["body"] for row in rows] == BODIES[: len(rows)]
    memory_vfs.open(DATA).pwrite(whole[0], len(data))
    memory_vfs.open(INDEX).pwrite(whole[1], len(index))
    reader.refresh()
    assert bodies(reader.view()) == BODIES[:8]
    reader.close()


def test_a_write_in_flight_before_a_file_that_was_just_rolled_is_not_there_yet(
    memory_vfs: MemoryVfs,
) -> None:
    write_rows(memory_vfs, ROWS[:4], HOME, index_segment_size_bytes=4 * ENTRY_SIZE)
    assert memory_vfs.entries(f"{HOME}/index")[-1][2] == 0
    data = memory_vfs.open(DATA)
    data.truncate(data.size() - 1)
    assert bodies(reader_of(memory_vfs).view()) == BODIES[:3]


def test_damage_in_the_middle_is_a_row_with_a_state(memory_vfs: MemoryVfs) -> None:
    write_rows(memory_vfs, ROWS, HOME)
    memory_vfs.open(DATA).pwrite(bytes(10), 0)
    reader = reader_of(memory_vfs)
    states = [row["state"] for row in scanned(reader.view())]
    assert states == ["bad_record"] + ["ok"] * 29
    reader.close()


def test_posting_lists_follow_the_files_when_a_writer_took_back_what_was_shown(
    memory_vfs: MemoryVfs,
) -> None:
    write_rows(memory_vfs, ROWS[:10], HOME)
    reader = reader_of(memory_vfs)
    assert len(partition_rows(reader.view(), 0)) == 4

    shard = open_shard(memory_vfs, HOME)
    shard.cut(4 * ENTRY_SIZE)
    shard.files.close()
    write_rows(memory_vfs, [r._replace(partition_id=5) for r in ROWS[10:20]], HOME)

    reader.refresh()
    view = reader.view()
    for partition in range(6):
        found = [row["partition"] for row in partition_rows(view, partition)]
        assert found == [partition] * {0: 2, 1: 1, 2: 1, 5: 10}.get(partition, 0)
    reader.close()


def test_a_refresh_opens_only_what_is_new(memory_vfs: MemoryVfs) -> None:
    options = {"segment_size_bytes": 400, "index_segment_size_bytes": 4 * 28}
    with tubestore.open("/s", vfs=memory_vfs, background=False, **options) as store:
        topic = store.create_topic("t")
        for _ in range(10):
            topic.append(b"x" * 100)
            topic.flush()
        counting = FaultyVfs(memory_vfs)
        with tubestore.open("/s", "r", vfs=counting) as reader:
            shown = list(reader["t"].messages(0))
            view = shards_of(reader["t"]).shard(0).view()
            before = counting.calls["open"]
            reader.refresh()
            assert shards_of(reader["t"]).shard(0).view() is view
            topic.append(b"y")
            reader.refresh()
            assert list(reader["t"].messages(0))[:10] == shown
            opened = counting.calls["open"] - before
            for _ in range(4):  # rolls both
                topic.append(b"z" * 100)
                topic.flush()
            reader.refresh()
            assert [m.body[:1] for m in reader["t"].messages(0)] == (
                [b"x"] * 10 + [b"y"] + [b"z"] * 4
            )
    assert opened == 4  # both journals, looked for twice


def test_a_file_that_was_replaced_is_opened_again(memory_vfs: MemoryVfs) -> None:
    write_rows(memory_vfs, make_rows(5))
    reader = reader_of(memory_vfs)
    whole = list(bodies(reader.view()))
    other = memory_vfs.read_file(DATA).replace(whole[0], b"?" * len(whole[0]))
    memory_vfs.replace_file(DATA, other)
    assert bodies(reader.view()) == whole
    reader.refresh()
    assert bodies(reader.view())[0] != whole[0]


def test_a_closed_reader_refuses(memory_vfs: MemoryVfs) -> None:
    write_rows(memory_vfs, ROWS, HOME)
    reader = reader_of(memory_vfs)
    view = reader.view()
    reader.close()
    reader.close()
    with pytest.raises(StoreClosed):
        reader.view()
    assert bodies(view) == BODIES  # what was given stays valid


# -- a whole store ---------------------------------------------------------------------------


def test_nothing_that_a_reader_does_changes_a_byte(tmp_path: Path) -> None:
    root = tmp_path / "s"
    with tubestore.open(root, segment_size_bytes=500, index_segment_size_bytes=280) as store:
        logs = store.create_topic("logs", partitions=3, stores=2)
        logs.append_batch({"body": [b"%d" % n for n in range(200)]})
    with max(root.glob("logs-0/*.tube")).open("ab") as file:
        file.write(b"torn tail")  # damage does not tempt it either
    before = tree_digest(root)
    with tubestore.open(root, mode="r") as store:
        logs = store["logs"]
        logs.scan(verify=True).read_all()
        for partition in logs.partition_ids:
            logs.read(partition, filter_items=["x"])
            list(logs.messages(partition))
        logs.partitions()
        store.refresh()
        store.flush()
        store.sync()
    assert tree_digest(root) == before


def test_a_reader_follows_a_writer_to_new_topics_shards_and_files(tmp_path: Path) -> None:
    root = tmp_path / "s"
    with (
        tubestore.open(root, segment_size_bytes=300) as writer,
        tubestore.open(root, mode="r") as reader,
    ):
        assert reader.topics() == []
        logs = writer.create_topic("logs", partitions=2, stores=2)
        with pytest.raises(UnknownTopic):
            reader.topic("logs")
        reader.refresh()
        followed = reader["logs"]
        position: Any = "earliest"
        found: list[bytes | None] = []
        for number in range(40):
            logs.append(b"%d" % number, partition=10_001)
            reader.refresh()
            assert reader["logs"] is followed
            page = followed.read(10_001, position)
            found += [m.body for m in page]
            position = page.next_offset
        assert found == [b"%d" % n for n in range(40)]


def test_a_message_in_memory_is_seen_by_readers_of_this_process_only(tmp_path: Path) -> None:
    root = tmp_path / "s"
    with tubestore.open(root, durability="memory") as writer:
        logs = writer.create_topic("logs")
        logs.append(b"x")
        with tubestore.open(root, mode="r") as reader:
            assert len(logs.read(0)) == 1
            assert len(reader["logs"].read(0)) == 0
            logs.flush()
            reader.refresh()
            assert len(reader["logs"].read(0)) == 1


def remove_last_index(vfs: MemoryVfs, index: list[str], data: list[str]) -> str:
    vfs.remove(index[-1])
    return index[-2]


def remove_first_index(vfs: MemoryVfs, index: list[str], data: list[str]) -> str:
    vfs.remove(index[0])
    return index[0]


def empty_last_index(vfs: MemoryVfs, index: list[str], data: list[str]) -> str:
    vfs.open(index[-1]).truncate(0)
    return index[-1]


def remove_first_data(vfs: MemoryVfs, index: list[str], data: list[str]) -> str:
    vfs.remove(data[0])
    return data[0]


def remove_last_data(vfs: MemoryVfs, index: list[str], data: list[str]) -> str:
    vfs.remove(data[-1])
    return data[-2]


def shorten_last_data(vfs: MemoryVfs, index: list[str], data: list[str]) -> str:
    vfs.open(data[-1]).truncate(20)
    return data[-1]


@pytest.mark.parametrize(
    "damage",
    [
        remove_last_index,
        remove_first_index,
        empty_last_index,
        remove_first_data,
        remove_last_data,
        shorten_last_data,
    ],
)
def test_files_that_are_missing_are_problems_of_a_reader_too(
    memory_vfs: MemoryVfs, damage: Any
) -> None:
    small = {"segment_size_bytes": 300, "index_segment_size_bytes": 140}
    with tubestore.open("/store", vfs=memory_vfs, background=False, **small) as store:
        topic = store.create_topic("t")
        for number in range(32):
            topic.append(b"%050d" % number)
            topic.flush()
    with tubestore.open("/store", "r", vfs=memory_vfs) as whole:
        assert whole["t"].count(0) == 32
        assert whole.problems == []
    paths = [path for path in sorted(memory_vfs.tree()) if path.startswith("/store/t-0/")]
    index = [path for path in paths if path.endswith(".index")]
    named = damage(memory_vfs, index, [path for path in paths if path.endswith(".tube")])
    with tubestore.open("/store", "r", vfs=memory_vfs) as reader:
        assert reader["t"].count(0) < 32
        assert named in [problem.path for problem in reader.problems]


def test_a_reader_beside_retention_and_appends_misses_no_file(memory_vfs: MemoryVfs) -> None:
    small = {"segment_size_bytes": 300, "index_segment_size_bytes": 140}
    with tubestore.open("/store", vfs=memory_vfs, background=False, **small) as store:
        topic = store.create_topic("t", max_bytes=1000)
        for number in range(60):
            topic.append(b"%050d" % number, durability="fsync")
            if number % 7 == 6:
                topic.retain()
            with tubestore.open("/store", "r", vfs=memory_vfs) as reader:
                reader["t"].count(0)
                assert reader.problems == []
