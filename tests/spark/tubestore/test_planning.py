"""Splits hold every message of a snapshot exactly once, whatever the files look like."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tubestore
from tests.spark.stores import (
    SMALL,
    T0,
    check_shared_out,
    planned,
    read_plan,
    scanned_rows,
    write_skewed,
    write_store,
)
from tests.support.engine.histories import ROOT, STEPS, History
from tests.support.engine.mixed import TOPICS, killed, mixed, open_store
from tubestore.core.vfs import OsVfs
from tubestore.errors import DataLoss, InvalidOption, NotAStore, OffsetOutOfRange, UnknownTopic
from tubestore.offline.own_files import read_bounds
from tubestore.record.layouts import key_code_of
from tubestore.record.names import store_key
from tubestore.segments.listing import find_shards
from tubestore.spark import planning
from tubestore.spark.kit.options import ReadOptions
from tubestore.spark.micro_batches import MicroBatches
from tubestore.spark.planning import ShardIndex
from tubestore.staging.commit_records import HiddenParts
from tubestore.staging.writer import StagedWriter
from tubestore.testing import MemoryVfs
from tubestore.testing.memory_file import MemoryFile


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_store(tmp_path, {"logs": 3000, "orders": 700})
    return tmp_path


@settings(max_examples=25)
@given(
    counts=st.lists(st.integers(0, 500), min_size=1, max_size=3),
    partitions=st.integers(1, 12),
    split=st.integers(300, 200_000),
    segment=st.integers(2000, 60_000),
    index=st.integers(1, 300),
    seed=st.integers(0, 1000),
)
def test_all_splits_together_are_all_messages_in_order(
    counts: list[int], partitions: int, split: int, segment: int, index: int, seed: int
) -> None:
    vfs = MemoryVfs()
    topics = {f"t{n}": count for n, count in enumerate(counts)}
    write_store(
        "/s", topics, vfs=vfs, partitions=partitions, seed=seed,
        segment_size_bytes=segment, index_segment_size_bytes=28 * index,
    )  # fmt: skip
    made = planned("/s", vfs, maxSplitBytes=str(split))
    assert read_plan(made, vfs) == scanned_rows("/s", vfs)
    assert sum(s.rows for s in made.splits) == sum(counts)


def test_a_shard_without_its_directory_is_refused_where_it_is_asked_for(root: Path) -> None:
    shutil.rmtree(root / "orders-0")
    for options in ({}, {"subscribe": "orders"}):
        with pytest.raises(NotAStore, match=r"orders-0: .*missing or empty"):
            planned(root, **options)
    assert sum(s.rows for s in planned(root, subscribe="logs").splits) == 3000


def test_splits_are_about_as_large_as_asked_for(root: Path) -> None:
    made = planned(root, subscribe="logs", maxSplitBytes="50000")
    total = sum(s.bytes for s in made.splits)
    assert len(made.splits) >= total // 50_000
    assert max(s.bytes for s in made.splits) < 2 * 50_000


def test_the_planned_bytes_are_those_of_the_files(root: Path) -> None:
    made = planned(root)
    files = sum(p.stat().st_size for p in root.rglob("*") if p.suffix in (".tube", ".index"))
    assert sum(s.bytes for s in made.splits) == files
    assert f"at most 3,700 messages and {files:,} bytes" in made.describe()


def test_small_topics_share_a_split(tmp_path: Path) -> None:
    write_store(tmp_path, {f"t{n}": 3 for n in range(20)})
    made = planned(tmp_path)
    assert len(made.splits) == 1
    assert len(made.splits[0].portions) == 20


def test_more_splits_can_be_asked_for(root: Path) -> None:
    assert len(planned(root).splits) == 1
    assert len(planned(root, minPartitions="8").splits) >= 8


@pytest.mark.parametrize("asked", [{"maxSplitBytes": "20k"}, {"minPartitions": "8"}])
@pytest.mark.parametrize("chosen", [{}, {"partitions": "3"}])
def test_a_partition_that_holds_half_of_all_rows_is_read_by_several_tasks(
    tmp_path: Path, chosen: dict[str, str], asked: dict[str, str]
) -> None:
    write_skewed(tmp_path)
    made = planned(tmp_path, **chosen, **asked)
    check_shared_out(made, tmp_path, **chosen)


def test_an_empty_directory_is_no_store(tmp_path: Path) -> None:
    (tmp_path / "of-another-program-7").mkdir()
    for directory in (tmp_path, tmp_path / "of-another-program-7"):
        with pytest.raises(NotAStore, match="there is no store in this directory"):
            planned(directory)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"partitions": "77"}, "option partitions: no topic .* has a partition 77: logs, orders"),
        ({"partitions": "1,77", "subscribe": "logs"}, "has a partition 77: logs$"),
        ({"startingOffsets": '{"logs":{"77":0}}'}, "startingOffsets: logs has no partition 77"),
        ({"endingOffsets": '{"logs":{"77":0}}'}, "endingOffsets: logs has no partition 77"),
        ({"startingOffsetsByTimestamp": '{"logs":{"77":0}}'}, "logs has no partition 77"),
        ({"endingOffsetsByTimestamp": '{"no":{"1":0}}'}, "'no' is not one of those that are read"),
        ({"subscribePattern": "x.*"}, r"'x\.\*' matches no topic; there are: logs, orders"),
    ],
)
def test_a_name_that_nothing_has_is_refused(
    root: Path, options: dict[str, str], reason: str
) -> None:
    with pytest.raises(InvalidOption, match=reason):
        planned(root, **options)


def test_a_store_without_settings_of_topics_has_the_partitions_that_its_shards_may_have(
    root: Path,
) -> None:
    shutil.rmtree(root / ".tubestore")
    assert read_plan(planned(root, partitions="77")) == []
    with pytest.raises(InvalidOption, match="has a partition 10077: logs, orders"):
        planned(root, partitions="10077")


def test_an_empty_store_and_an_empty_topic_have_no_splits(tmp_path: Path) -> None:
    with tubestore.open(tmp_path) as store:
        store.create_topic("empty")
    assert planned(tmp_path).splits == ()
    assert planned(tmp_path, subscribe="empty").splits == ()


# -- what is chosen -------------------------------------------------------------------------------


def test_topics_are_chosen_by_name_and_by_pattern(root: Path) -> None:
    rows = scanned_rows(root)
    orders = [row for row in rows if row["topic"] == "orders"]
    assert read_plan(planned(root, subscribe="orders")) == orders
    assert read_plan(planned(root, subscribePattern="or.*")) == orders
    assert read_plan(planned(root, subscribe="orders,logs")) == rows


def test_partitions_are_chosen_for_all_topics_or_for_one(root: Path) -> None:
    rows = scanned_rows(root)
    assert read_plan(planned(root, partitions="2,5-6")) == [
        row for row in rows if row["partition"] in (2, 5, 6)
    ]
    assert read_plan(planned(root, assign='{"logs":[1]}')) == [
        row for row in rows if row["topic"] == "logs" and row["partition"] == 1
    ]


def test_offsets_bound_their_partitions_and_no_others(root: Path) -> None:
    rows = [row for row in scanned_rows(root) if row["topic"] == "logs"]
    ones = [row["offset"] for row in rows if row["partition"] == 1]
    start, end = ones[10], ones[40]
    made = planned(
        root,
        subscribe="logs",
        startingOffsets=f'{{"logs":{{"1":{start},"2":-2}}}}',
        endingOffsets=f'{{"logs":{{"1":{end},"3":-1}}}}',
    )
    assert read_plan(made) == [
        row for row in rows if row["partition"] != 1 or start <= row["offset"] < end
    ]


class NotingVfs(MemoryVfs):
    """Notes the directories that are listed or looked up, and the files that are opened or read."""

    def __init__(self) -> None:
        super().__init__()
        self.noted: list[str] = []
        self.opened: list[str] = []
        self.listed: list[str] = []

    def open(self, path: str, *, create: bool = False, writable: bool = True) -> MemoryFile:
        self.opened.append(path)
        return super().open(path, create=create, writable=writable)

    def settled_names(self, directory: str) -> tuple[tuple[str, int], ...] | None:
        self.noted.append(directory)
        return super().settled_names(directory)

    def entries(self, directory: str) -> list[tuple[str, bool, int]]:
        self.noted.append(directory)
        self.listed.append(directory)
        return super().entries(directory)

    def read_file(self, path: str) -> bytes:
        self.noted.append(path)
        return super().read_file(path)


def test_one_subscribed_topic_lists_no_others_and_a_trigger_checks_no_names_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    vfs = NotingVfs()
    write_store("/s", {f"t{n}": 20 for n in range(5)}, vfs=vfs)
    vfs.noted.clear()
    assert sum(s.rows for s in planned("/s", vfs, subscribe="t3").splits) == 20
    assert {path.split("/")[2] for path in vfs.noted if path.startswith("/s/t")} == {"t3-0"}
    batches = MicroBatches(ReadOptions.parse({"path": "/s", "subscribe": "t3"}, stream=True), vfs)
    start = batches.initial()
    vfs.noted.clear()
    monkeypatch.delattr(planning, "_check_names")
    batches.latest(start)
    assert {path.split("/")[2] for path in vfs.noted if path.startswith("/s/t")} == {"t3-0"}
    batches.close()


def test_a_trigger_lists_the_directories_whose_names_have_changed_and_no_others() -> None:
    vfs = NotingVfs()
    write_store("/s", {"busy": 3, "full": 3, "quiet": 3}, vfs=vfs)
    batches = MicroBatches(ReadOptions.parse({"path": "/s"}, stream=True), vfs)
    at = batches.latest(batches.initial())
    write_store("/s", {"busy": 2}, vfs=vfs)  # behind the messages in its file
    vfs.listed.clear()
    end = batches.latest(at)
    assert end.shards == at.shards | {"busy-0": 28 * 5}
    assert [path for path in vfs.listed if "/.tubestore" not in path] == []
    write_store("/s", {"full": 600}, vfs=vfs)  # more than a file takes
    vfs.listed.clear()
    assert batches.latest(end).shards == end.shards | {"full-0": 28 * 603}
    assert {path for path in vfs.listed if "/.tubestore" not in path} == {
        "/s/full-0",
        "/s/full-0/index",
    }
    batches.close()


def test_a_plan_of_what_was_synced_opens_no_file_of_a_shard() -> None:
    vfs = NotingVfs()
    write_store("/s", {f"t{n}": 20 for n in range(3)}, vfs=vfs)
    vfs.opened.clear()
    assert sum(s.rows for s in planned("/s", vfs).splits) == 60
    assert [path for path in vfs.opened if path.startswith("/s/t")] == []


@settings(max_examples=15, deadline=None)
@given(st.lists(st.sampled_from(STEPS), max_size=12))
def test_bounds_by_the_stores_record_are_those_by_the_entries(steps: list[str]) -> None:
    hidden = HiddenParts({})
    with History() as history:
        for step in ("batch", *steps):
            history.step(step)
            recorded = read_bounds(history.vfs, ROOT)
            for shard in find_shards(ROOT, history.vfs):
                index = ShardIndex(history.vfs, shard)
                bounds = recorded.get(store_key(shard.topic, shard.store_id))
                assert index.bounds(hidden, bounds) == index.bounds(hidden)
                index.close()


def test_times_bound_their_partitions_and_no_others(root: Path) -> None:
    rows = [row for row in scanned_rows(root) if row["topic"] == "logs"]
    ones = [row for row in rows if row["partition"] == 1]
    start, end = ones[10], ones[40]
    made = planned(
        root,
        subscribe="logs",
        startingOffsetsByTimestamp=f'{{"logs":{{"1":{start["received_time_ms"]},"2":0}}}}',
        endingOffsetsByTimestamp=f'{{"logs":{{"1":{end["received_time_ms"]},"3":{T0 * 2}}}}}',
    )
    assert read_plan(made) == [
        row
        for row in rows
        if row["partition"] != 1 or start["offset"] <= row["offset"] < end["offset"]
    ]


def test_a_time_is_that_of_the_first_message_of_it_or_later(tmp_path: Path) -> None:
    """Times need not ascend: what is behind it is read, whatever its time."""
    times = [T0, T0 + 9, T0 + 5, T0 + 20]
    with tubestore.open(tmp_path) as store:
        bodies = [b"%d" % time for time in times]
        store.create_topic("t").append_batch({"body": bodies, "received_time_ms": times})
    made = planned(tmp_path, startingOffsetsByTimestamp=f'{{"t":{{"0":{T0 + 7}}}}}')
    assert [row["received_time_ms"] for row in read_plan(made)] == times[1:]


def test_a_partition_without_a_message_of_its_starting_time_is_refused_or_begins_at_the_end(
    root: Path,
) -> None:
    times = f'{{"logs":{{"1":{T0 * 2}}}}}'
    with pytest.raises(InvalidOption, match=r"logs partition 1 has no message of .*Strategy=late"):
        planned(root, startingOffsetsByTimestamp=times)
    found = planned(
        root, startingOffsetsByTimestamp=times, startingOffsetsByTimestampStrategy="latest"
    )
    assert read_plan(found) == [
        row for row in scanned_rows(root) if (row["topic"], row["partition"]) != ("logs", 1)
    ]


def test_a_range_of_one_partition_plans_only_its_part(root: Path) -> None:
    rows = [r for r in scanned_rows(root) if (r["topic"], r["partition"]) == ("logs", 1)]
    start, end = rows[100]["offset"], rows[110]["offset"]
    made = planned(
        root,
        assign='{"logs":[1]}',
        startingOffsets=f'{{"logs":{{"1":{start}}}}}',
        endingOffsets=f'{{"logs":{{"1":{end}}}}}',
    )
    assert read_plan(made) == rows[100:110]
    assert sum(s.rows for s in made.splits) == (end - start) // 28


def test_filter_items_and_times_choose_rows(root: Path) -> None:
    rows = scanned_rows(root)
    options = {
        "filterItems": "paid",
        "startingTimestamp": str(T0 + 50),
        "endingTimestamp": str(T0 + 90),
    }
    made = planned(root, **options)
    wanted = ReadOptions.parse({"path": str(root), **options}).filter
    assert read_plan(made, filter=wanted) == [
        row
        for row in rows
        if row["key_code"] == key_code_of("paid") and T0 + 50 <= row["received_time_ms"] < T0 + 90
    ]


# -- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"subscribe": "nope"}, UnknownTopic, "no topic 'nope'"),
        ({"assign": '{"logs":[99]}'}, InvalidOption, "logs has no partition 99"),
        ({"startingOffsets": '{"nope":{"0":0}}'}, InvalidOption, "topic 'nope' is not one of"),
        (
            {"subscribe": "logs", "endingOffsets": '{"orders":{"0":0}}'},
            InvalidOption,
            "topic 'orders' is not one of",
        ),
        ({"startingOffsets": '{"logs":{"0":99999999}}'}, OffsetOutOfRange, "99999999 is outside"),
    ],
)
def test_what_is_not_there_is_refused(
    root: Path, options: dict[str, str], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        planned(root, **options)


def test_what_is_no_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotAStore, match="no such directory"):
        planned(tmp_path / "nothing")
    (tmp_path / "commitlog").mkdir()
    with pytest.raises(NotAStore, match="RocketMQ store"):
        planned(tmp_path)


def test_a_file_that_is_missing_in_the_middle_is_refused(root: Path) -> None:
    files = sorted((root / "logs-0").glob("*.tube"))
    files[1].unlink()
    with pytest.raises(NotAStore, match=r"does not start where .*failOnCorrupt"):
        planned(root, subscribe="logs")


def test_a_hole_in_one_shard_does_not_keep_the_others_from_being_read(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    expected = scanned_rows(root)
    lost = sorted((root / "logs-0").glob("*.tube"))[1]
    lost.unlink()
    rows = read_plan(planned(root, failOnCorrupt="false"), fail_on_corrupt=False)
    assert [(r["topic"], r["offset"]) for r in rows] == [
        (r["topic"], r["offset"]) for r in expected
    ]
    missing = [r for r in rows if r["state"] == "missing"]
    assert {r["topic"] for r in missing} == {"logs"}
    pairs = zip(expected, rows, strict=True)
    assert all(before == row for before, row in pairs if row["state"] == "ok")
    (record,) = caplog.records
    assert "does not start where the one before ends" in record.message


def test_an_offset_that_is_no_longer_kept_is_data_loss(root: Path) -> None:
    first = sorted((root / "logs-0").glob("*.tube"))[0]
    first.unlink()
    assert len(read_plan(planned(root, subscribe="logs"))) < 3000
    wanted = {"subscribe": "logs", "startingOffsets": '{"logs":{"0":0}}'}
    with pytest.raises(DataLoss, match="logs partition 0: offset 0 is wanted"):
        planned(root, **wanted)
    assert planned(root, **wanted, failOnDataLoss="false").splits


# -- a snapshot -----------------------------------------------------------------------------------


def test_a_plan_does_not_see_what_is_appended_later(root: Path) -> None:
    before = scanned_rows(root)
    made = planned(root)
    write_store(root, {"logs": 500})
    assert read_plan(made) == before
    assert len(read_plan(planned(root))) == len(before) + 500


def test_a_record_in_flight_is_not_in_the_plan(root: Path) -> None:
    rows = [r for r in scanned_rows(root) if r["topic"] == "logs"]
    data = sorted((root / "logs-0").glob("*.tube"))[-1]
    os.truncate(data, data.stat().st_size - 10)  # its entry is there, its last bytes are not
    assert read_plan(planned(root, subscribe="logs")) == rows[:-1]


def test_a_job_that_is_half_published_is_not_in_the_plan(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with StagedWriter(root, "j", "0") as writer:
        for topic in ("logs", "orders"):
            rows = {"topic": [topic] * 40, "body": [b"x" * 4000] * 40, "partition": [0] * 40}
            writer.write(rows)
        staged = writer.finish()
    before = len(scanned_rows(root))
    seen = []

    def looking(call: Any) -> Any:
        """Plan after a staged file was renamed, or removed behind its copy."""

        def look(self: OsVfs, *paths: str) -> None:
            call(self, *paths)
            if "/staging/" in paths[0]:
                seen.append(sum(split.rows for split in planned(root).splits))

        return look

    with tubestore.open(root, background=False) as store:
        monkeypatch.setattr(OsVfs, "rename", looking(OsVfs.rename))
        monkeypatch.setattr(OsVfs, "remove", looking(OsVfs.remove))
        store.publish("j", staged)
        monkeypatch.undo()
    assert seen == [before] * 4
    assert len(read_plan(planned(root))) == before + 80


def test_what_only_the_journal_has_is_behind_the_files(memory_vfs: MemoryVfs) -> None:
    store = open_store(memory_vfs)
    store.append_batch(mixed(0))
    store[TOPICS[2]].flush()
    for first in range(24, 240, 24):
        store.append_batch(mixed(first))
    killed(store, memory_vfs)
    assert not memory_vfs.exists(f"/s/{TOPICS[0]}-0")
    # A record and part of an entry that were in flight stand where the journalled messages belong.
    for path, rest in ((f"/s/{TOPICS[2]}-0", b"torn"), (f"/s/{TOPICS[2]}-0/index", b"torn")):
        (name,) = (n for n, folder, _ in memory_vfs.entries(path) if not folder and "0" in n)
        file = memory_vfs.open(f"{path}/{name}")
        file.pwrite(rest, file.size())
        file.close()
    found = {size: planned("/s", memory_vfs, maxSplitBytes=size) for size in ("1", "200", "1m")}
    expected = scanned_rows("/s", memory_vfs)
    tubestore.open("/s", vfs=memory_vfs, background=False).close()  # the journal is gone
    for made in found.values():
        assert sum(split.rows for split in made.splits) == 240
        assert read_plan(made, memory_vfs, verify=True) == expected
    assert planned("/s", memory_vfs, subscribe=TOPICS[1]).splits[0].rows == 20


def test_a_damaged_journal_is_refused_in_one_sentence_until_the_store_was_opened_for_writing(
    memory_vfs: MemoryVfs,
) -> None:
    store = open_store(memory_vfs)
    store.append_batch(mixed(0))
    store.append_batch(mixed(24))
    killed(store, memory_vfs)
    path = "/s/.tubestore/journal"
    at = memory_vfs.read_file(path).index(b"23")
    memory_vfs.open(path).pwrite(b"x", at)
    for _ in range(2):
        with pytest.raises(DataLoss, match=r"damaged at byte .* `tubestore recover /s`"):
            planned("/s", memory_vfs)
    assert not planned("/s", memory_vfs, failOnDataLoss="false").splits
    tubestore.open("/s", vfs=memory_vfs, background=False).close()
    assert sum(split.rows for split in planned("/s", memory_vfs).splits) == 48


def test_the_journal_is_not_shown_for_a_topic_that_was_deleted(memory_vfs: MemoryVfs) -> None:
    with open_store(memory_vfs) as store:
        store.append_batch(mixed(0))
        memory_vfs.replace_file("/kept", memory_vfs.read_file("/s/.tubestore/journal"))
        store.delete_topic(TOPICS[0])
    memory_vfs.replace_file("/s/.tubestore/journal", memory_vfs.read_file("/kept"))
    shown = {p.shard.topic for s in planned("/s", memory_vfs).splits for p in s.portions}
    assert shown == set(TOPICS[1:])


def test_part_of_an_entry_is_not_in_the_plan(root: Path) -> None:
    rows = [r for r in scanned_rows(root) if r["topic"] == "orders"]
    index = sorted((root / "orders-0" / "index").glob("*.index"))[-1]
    os.truncate(index, index.stat().st_size - 3)
    assert read_plan(planned(root, subscribe="orders")) == rows[:-1]


def test_a_file_that_goes_away_after_planning_is_data_loss(root: Path) -> None:
    made = planned(root, subscribe="logs")
    sorted((root / "logs-0").glob("*.tube"))[0].unlink()
    with pytest.raises(DataLoss, match=r"logs store 0, offsets 0 to .* was removed after"):
        read_plan(made)
    made = planned(root, subscribe="orders")
    index = sorted((root / "orders-0" / "index").glob("*.index"))[0]
    os.truncate(index, 28 * 10)
    with pytest.raises(DataLoss, match="the index ends at 280 after the job was planned"):
        read_plan(made)


def test_shards_of_a_topic_are_planned_with_their_own_offsets(tmp_path: Path) -> None:
    with tubestore.open(tmp_path, background=False, **SMALL) as store:
        topic = store.create_topic("wide", partitions=2, stores=3)
        for partition in topic.partition_ids * 5:
            topic.append(b"body", partition=partition)
    assert read_plan(planned(tmp_path)) == scanned_rows(tmp_path)
    chosen = read_plan(planned(tmp_path, partitions="10001,20000"))
    assert sorted({row["partition"] for row in chosen}) == [10001, 20000]
    assert len(chosen) == 10


def test_hundreds_of_entries_without_data_at_either_end_are_left_out(tmp_path: Path) -> None:
    """The plan looks at a few entries first, and at more where none of these has its data."""
    with tubestore.open(tmp_path, segment_size_bytes=1 << 16) as store:
        logs = store.create_topic("logs")
        for _ in range(43):
            logs.append_batch({"body": [b"x" * 100] * 50})
    rows = scanned_rows(tmp_path)
    first, *_, last = sorted((tmp_path / "logs-0").glob("*.tube"))
    assert len(rows) == 2150
    gone = first.stat().st_size // 152 * 152
    first.unlink()
    last.write_bytes(b"")
    found = read_plan(planned(tmp_path))
    kept = [row["offset"] for row in found]
    assert kept == [row["offset"] for row in rows[gone // 152 : gone // 152 + len(kept)]]
    assert gone // 152 > 300
    assert len(kept) > 1000
    assert 2150 - gone // 152 - len(kept) > 300
