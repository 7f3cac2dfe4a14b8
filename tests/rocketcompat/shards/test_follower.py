"""The shards of a RocketMQ root say what the log says, whoever wrote it (decisions.md D2)."""

from __future__ import annotations

import os
import shutil
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import pytest

import rocketcompat
import tubestore
from rocketcompat import Message, MessageStoreConfig
from rocketcompat.check.whole import check
from rocketcompat.options import LAYOUTS
from rocketcompat.shards.follower import TubeLayout
from tests.support.rocket.inside import parts_of, shards_of
from tubestore.clock import ManualClock
from tubestore.errors import InvalidName
from tubestore.options import StoreOptions
from tubestore.testing import MemoryVfs

LOG = "commitlog/00000000000000000000"
CONFIG = MessageStoreConfig(
    mapped_file_size_commit_log=65_536, max_hash_slot_num=10, layouts=LAYOUTS
)


def fill(root: Path, bodies: list[str]) -> list[int]:
    """Put bodies into queue 0 and 1 of one topic and 10,000 of another, in turns."""
    places = (("orders", 0), ("orders", 1), ("audit", 10_000))
    with rocketcompat.open(root, mode="w", config=CONFIG) as store:
        puts = []
        for number, body in enumerate(bodies):
            topic, queue_id = places[number % 3]
            puts.append(store.put_message(Message(topic, body.encode(), queue_id=queue_id)))
    return [put.physical_offset for put in puts]


def shown(root: Path) -> tuple[list[tuple[int, bytes]], list[tuple[int, bytes]]]:
    """Return (place, body) of all messages of the log, and of the shards, by place."""
    rows = []
    with rocketcompat.open(root, mode="w", config=CONFIG) as store:
        for queue in parts_of(store).queues or ():
            for number in range(queue.max_offset):
                record = store.look_message(queue.unit(number).physical_offset)
                rows.append((record.physical_offset, record.body))
    found = []
    with tubestore.open(root / "tube", mode="r") as shards:
        for topic in shards.topics():
            table = shards.topic(topic).scan(columns=["msg_id", "body"]).read_all()
            found += [(row["msg_id"], row["body"]) for row in table.to_pylist()]
    return sorted(rows), sorted(found)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("replaced", [range(30, 40), range(31, 32), range(10), range(50, 60)])
def test_records_that_a_broker_replaced_in_the_middle_are_replaced_in_the_shards(
    replaced: range, tmp_path: Path
) -> None:
    """What follows them is as it was: a broker leaves the bytes behind a cut."""
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    offsets = fill(ours, [f"our {n:02d}" for n in range(60)])
    assert fill(theirs, [f"not {n:02d}" for n in range(60)]) == offsets
    end = offsets[replaced.stop] if replaced.stop < 60 else -1
    piece = slice(offsets[replaced.start], end)
    raw = bytearray((ours / LOG).read_bytes())
    raw[piece] = (theirs / LOG).read_bytes()[piece]
    (ours / LOG).write_bytes(raw)
    os.utime(ours / "lock", (1, 1))
    log, shards = shown(ours)
    bodies = [f"{'not' if n in replaced else 'our'} {n:02d}".encode() for n in range(60)]
    assert log == list(zip(offsets, bodies, strict=True))
    assert shards == log
    assert shown(ours) == (log, log)


def test_messages_that_the_log_keeps_no_more_keep_their_offsets(tmp_path: Path) -> None:
    """Also where a broker has opened the store since, so that nothing else is believed."""
    config = CONFIG.changed(mapped_file_size_commit_log=2000)
    with rocketcompat.open(tmp_path, mode="w", config=config) as store:
        for topic in ("quiet", "busy"):
            for number in range(30):
                store.put_message(Message(topic, b"%d" % number))
    for path in sorted((tmp_path / "commitlog").iterdir())[:2]:
        path.unlink()
    os.utime(tmp_path / "lock", (1, 1))
    with rocketcompat.open(tmp_path, mode="w", config=config) as store:
        assert store.min_physical_offset == 4000
        store.put_message(Message("quiet", b"30"))
    with tubestore.open(tmp_path / "tube", mode="r") as shards:
        found = shards.topic("quiet").scan(columns=["offset", "body"]).read_all()
    assert found["body"].to_pylist() == [b"%d" % number for number in range(31)]
    assert found["offset"].to_pylist() == [28 * number for number in range(31)]


def test_shards_let_go_of_segments_that_lie_below_the_logs_begin(
    memory_vfs: MemoryVfs, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each file of the log has some twenty messages, each data segment fewer."""
    config = CONFIG.changed(
        mapped_file_size_commit_log=2000, delete_when="", layouts=frozenset({"tube"})
    )
    small = partial(StoreOptions, segment_size_bytes=1000)
    monkeypatch.setattr("rocketcompat.shards.follower.StoreOptions", small)
    with rocketcompat.open(
        "/s", "w", config, vfs=memory_vfs, clock=clock, background=False
    ) as store:
        for number in range(60):
            store.put_message(Message("T", b"%d" % number))
            store.wait_dispatched(store.max_physical_offset - 1)
        store.flush()
        clock.advance(73 * 3_600_000)
        store.clean()
        assert store.min_physical_offset > 0
        numbers = [
            int(body)
            for body in shards_of(store).store.topic("T").scan().read_all()["body"].to_pylist()
        ]
        first = int(store.look_message(store.min_physical_offset).body)
        assert first - 10 < numbers[0] <= first < numbers[-1] == 59
        assert numbers == list(range(numbers[0], 60))
    with rocketcompat.open(
        "/s", "w", config, vfs=memory_vfs, clock=clock, background=False
    ) as store:
        assert not store.problems
        assert shards_of(store).store.topic("T").scan().read_all().num_rows == len(numbers)


@pytest.mark.parametrize("clean", [True, False])
def test_a_shard_without_its_directory_is_built_again_from_the_log(
    tmp_path: Path, clean: bool
) -> None:
    fill(tmp_path, [f"message {n:02d}" for n in range(30)])
    whole = shown(tmp_path)
    shutil.rmtree(tmp_path / "tube" / "orders-0")
    if not clean:
        (tmp_path / "abort").touch()
    with rocketcompat.open(tmp_path, mode="w", config=CONFIG) as store:
        (problem,) = store.problems
        assert problem.path == str(tmp_path / "tube" / "orders-0")
        assert "built again from the log" in str(problem)
    assert shown(tmp_path) == whole
    with rocketcompat.open(tmp_path, mode="w", config=CONFIG) as store:
        assert store.problems == []
    assert list(check(tmp_path)) == []


def test_building_a_missing_shard_again_can_be_interrupted(tmp_path: Path) -> None:
    """The mark is lowered before the register forgets the shard."""
    fill(tmp_path, [f"message {n:02d}" for n in range(30)])
    whole = shown(tmp_path)
    shutil.rmtree(tmp_path / "tube" / "orders-0")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TubeLayout, "_cut", Mock(side_effect=OSError("killed")))
        with pytest.raises(OSError, match="killed"):
            rocketcompat.open(tmp_path, mode="w", config=CONFIG)
    assert shown(tmp_path) == whole


def test_topics_that_no_shard_can_have_are_a_problem_of_every_opening(
    memory_vfs: MemoryVfs, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    config = CONFIG.changed(enable_multi_dispatch=True, enable_lmq=True)
    opened = partial(
        rocketcompat.open, "/s", "w", config, vfs=memory_vfs, clock=clock, background=False
    )
    with opened() as store:
        copied = {"INNER_MULTI_DISPATCH": "%LMQ%a+b"}
        for topic in ("fine", "a+b", "a+b", "übung"):
            store.put_message(Message(topic, b"1", properties=copied))
        store.flush()
        found = sorted(map(str, store.problems))
    for _ in range(2):
        caplog.clear()
        with opened() as store:
            problems = store.problems
            assert [type(problem) for problem in problems] == [InvalidName, InvalidName]
            assert sorted(map(str, problems)) == found
            assert [str(problem).partition(":")[0] for problem in problems] == ["'a+b'", "'übung'"]
            assert [r.getMessage() for r in caplog.records] == found
            assert all("no shard has its messages" in text for text in found)
            store.put_message(Message("a+b", b"2"))
            store.flush()
            assert store.problems == problems
            assert shards_of(store).store.topics() == ["fine"]


def fill_small_shards(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put 60 messages, a few an opening, into shards with small files, and merge those."""
    small = partial(StoreOptions, segment_size_bytes=100, index_segment_size_bytes=28)
    with monkeypatch.context() as patched:
        patched.setattr("rocketcompat.shards.follower.StoreOptions", small)
        for number in range(0, 60, 3):
            fill(root, [f"body {n:02d}" for n in range(number, number + 3)])
    with tubestore.open(root / "tube") as shards:
        merged = shards.compact()
        assert {(row.topic, row.verdict) for row in merged} == {
            ("audit", "merged"),
            ("orders", "merged"),
        }


def test_shards_whose_small_files_were_merged_follow_the_log_as_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill_small_shards(tmp_path, monkeypatch)
    log, there = shown(tmp_path)
    assert [body for _, body in there] == [body for _, body in log]
    assert len(there) == 60
    assert list(check(tmp_path)) == []
    fill(tmp_path, [f"more {n:02d}" for n in range(9)])
    log, there = shown(tmp_path)
    assert [body for _, body in there] == [body for _, body in log]
    assert len(there) == 69
