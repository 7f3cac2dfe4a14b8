"""Batches of a stream: together every message once, in order, whatever limits cut them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
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
from tests.spark.streams import root as root
from tests.spark.streams import stream
from tests.support.engine.mixed import TOPICS, killed, mixed, open_store
from tests.support.golden import TUBE_VERSION, unpack
from tubestore.clock import ManualClock
from tubestore.errors import DataLoss, InvalidMessage, NotAStore, OffsetOutOfRange
from tubestore.spark import commit
from tubestore.spark.kit.options import ReadOptions
from tubestore.spark.lag import lag_behind
from tubestore.spark.micro_batches import MicroBatches
from tubestore.spark.positions import Position
from tubestore.store.manager import engine_of
from tubestore.testing import MemoryVfs

Rows = list[dict[str, Any]]


def through_json(position: Position, root: Any) -> Position:
    return Position.of_json(json.loads(json.dumps(position.as_json())), str(root))


def drain(
    batches: MicroBatches,
    at: Position,
    vfs: MemoryVfs | None = None,
    *,
    rows: int | None = None,
    size: int | None = None,
    most: int = 10_000,
) -> tuple[Position, list[Rows]]:
    """Run batches until nothing is left, as Spark does: (where it stands, each batch's rows)."""
    found: list[Rows] = []
    for _ in range(most):
        end = through_json(batches.latest(at, rows, size), batches.options.path)
        if end == at:
            return end, found
        found.append(read_plan(batches.plan(at, end), vfs))
        at = end
    return at, found


def by_shard(rows: Rows) -> dict[str, Rows]:
    found: dict[str, Rows] = {}
    for row in rows:
        found.setdefault(f"{row['topic']}-{row['store_id']}", []).append(row)
    return found


@settings(max_examples=20)
@given(
    counts=st.lists(st.integers(0, 300), min_size=1, max_size=4),
    rows=st.none() | st.integers(1, 200),
    size=st.none() | st.integers(60, 20_000),
    seed=st.integers(0, 99),
)
def test_all_batches_together_are_all_messages_in_the_order_of_their_shards(
    counts: list[int], rows: int | None, size: int | None, seed: int
) -> None:
    vfs = MemoryVfs()
    write_store("/s", {f"t{n}": c for n, c in enumerate(counts)}, vfs=vfs, seed=seed)
    batches = stream("/s", vfs)
    _, found = drain(batches, batches.initial(), vfs, rows=rows, size=size)
    assert by_shard([row for batch in found for row in batch]) == by_shard(scanned_rows("/s", vfs))
    if rows is not None:
        assert max(map(len, found), default=0) <= rows
    if size is not None:
        for batch in found:
            assert len(batch) == 1 or sum(len(row["body"]) for row in batch) <= size


def test_without_a_limit_there_is_one_batch(root: Path) -> None:
    batches = stream(root)
    _, found = drain(batches, batches.initial())
    assert [len(batch) for batch in found] == [1100]


def test_a_limit_is_shared_fairly(root: Path) -> None:
    batches = stream(root)
    end = batches.latest(batches.initial(), 300)
    read = {key: offset // 28 for key, offset in end.shards.items()}
    assert read == {"logs-0": 200, "orders-0": 100}
    end = batches.latest(batches.initial(), 100)
    assert {key: offset // 28 for key, offset in end.shards.items()} == {
        "logs-0": 50,
        "orders-0": 50,
    }


def test_with_a_limit_below_the_number_of_shards_no_shard_waits_for_ever(tmp_path: Path) -> None:
    write_store(tmp_path, {f"t{n}": 3 for n in range(5)})
    batches = stream(tmp_path)
    _, found = drain(batches, batches.initial(), rows=2)
    assert [len(batch) for batch in found] == [2] * 7 + [1]


def test_a_message_above_the_limit_of_bytes_is_a_batch_of_its_own(tmp_path: Path) -> None:
    write_store(tmp_path, {"t": 10})
    batches = stream(tmp_path)
    _, found = drain(batches, batches.initial(), size=1)
    assert [len(batch) for batch in found] == [1] * 10


def test_rows_of_a_limit_are_those_of_the_wanted_partitions(root: Path) -> None:
    batches = stream(root, subscribe="logs", partitions="3")
    _, found = drain(batches, batches.initial(), rows=20)
    assert [row for batch in found for row in batch] == [
        r for r in scanned_rows(root) if (r["topic"], r["partition"]) == ("logs", 3)
    ]
    assert {len(batch) for batch in found[:-1]} == {20}


# -- where a stream starts ------------------------------------------------------------------------
def test_a_stream_may_start_at_the_end(root: Path) -> None:
    batches = stream(root, startingOffsets="latest")
    at = batches.initial()
    assert drain(batches, at)[1] == []
    write_store(root, {"logs": 5, "new": 3})
    _, found = drain(batches, at)
    assert sorted(r["topic"] for r in found[0]) == ["logs"] * 5 + ["new"] * 3


def test_partitions_may_start_at_their_own_offsets_also_after_a_restart(root: Path) -> None:
    rows = [r for r in scanned_rows(root) if r["topic"] == "logs"]
    ones = [r["offset"] for r in rows if r["partition"] == 1]
    given = {"subscribe": "logs", "startingOffsets": f'{{"logs":{{"1":{ones[50]}}}}}'}
    batches = stream(root, **given)
    at, first = drain(batches, through_json(batches.initial(), root), rows=100, most=2)
    _, rest = drain(stream(root, subscribe="logs"), at)  # the checkpoint knows, not the options
    assert [r for batch in first + rest for r in batch] == [
        r for r in rows if r["partition"] != 1 or r["offset"] >= ones[50]
    ]


def test_a_stream_may_start_at_a_time(root: Path) -> None:
    batches = stream(root, startingTimestamp=str(T0 + 90))
    at, end = batches.initial(), batches.end()
    made = batches.plan(at, end)
    found = read_plan(made, filter=batches.options.filter)
    assert found == [r for r in scanned_rows(root) if r["received_time_ms"] >= T0 + 90]


def test_an_offset_that_is_not_there_is_refused(root: Path) -> None:
    with pytest.raises(OffsetOutOfRange):
        stream(root, startingOffsets='{"logs":{"0":99999999}}').initial()


# -- a store that changes -------------------------------------------------------------------------
def test_topics_and_files_appear_while_a_query_runs(root: Path) -> None:
    batches = stream(root)
    at, first = drain(batches, batches.initial())
    write_store(root, {"logs": 900, "fresh": 40})
    _, more = drain(batches, at, rows=333)
    assert by_shard([r for b in first + more for r in b]) == by_shard(scanned_rows(root))


def test_a_stream_follows_the_journal_of_a_writer_through_a_kill_and_its_recovery(
    memory_vfs: MemoryVfs,
) -> None:
    store = open_store(memory_vfs)
    store.append_batch(mixed(0))
    batches = stream("/s", memory_vfs)
    at, found = drain(batches, batches.initial(), memory_vfs)
    for number, first in enumerate(range(24, 240, 24)):
        store.append_batch(mixed(first))
        if number % 3 == 1:
            engine_of(store).opener.journal.settle()  # the next frame is written over the first one
        at, more = drain(batches, at, memory_vfs, rows=7)
        found += more
    killed(store, memory_vfs)
    lag = lag_behind("/s", Position(at.store, {}), memory_vfs)
    assert lag == {name: {0: 10, 1: 10} for name in TOPICS}
    again = stream("/s", memory_vfs)
    assert drain(again, through_json(at, "/s"), memory_vfs)[1] == []
    with open_store(memory_vfs) as store:
        store.append_batch(mixed(240))
    found += drain(again, at, memory_vfs)[1]
    rows = [row for batch in found for row in batch]
    assert sorted(int(row["body"]) for row in rows) == list(range(264))
    assert by_shard(rows) == by_shard(scanned_rows("/s", memory_vfs))


def test_a_frozen_stream_goes_to_what_was_there_and_no_further(root: Path) -> None:
    before = scanned_rows(root)
    batches = stream(root)
    at = batches.initial()
    batches.freeze()
    write_store(root, {"logs": 500, "fresh": 40})
    _, found = drain(batches, at, rows=200)
    assert by_shard([r for b in found for r in b]) == by_shard(before)
    assert len(found) >= 6


def test_a_stream_begins_at_the_times_of_partitions(root: Path) -> None:
    rows = [row for row in scanned_rows(root) if row["topic"] == "logs"]
    ones = [row for row in rows if row["partition"] == 1]
    times = f'{{"logs":{{"1":{ones[10]["received_time_ms"]},"2":0}}}}'
    batches = stream(root, subscribe="logs", startingOffsetsByTimestamp=times)
    _, found = drain(batches, batches.initial(), rows=90)
    expected = [r for r in rows if r["partition"] != 1 or r["offset"] >= ones[10]["offset"]]
    assert by_shard([r for b in found for r in b]) == by_shard(expected)


def test_a_stream_from_a_time_on_has_no_batches_of_history(root: Path) -> None:
    batches = stream(root, startingTimestamp=str(T0 + 950))
    at = batches.initial()
    assert at.shards == {"logs-0": 28 * 950, "orders-0": 28 * 100}
    end = batches.latest(at, 20)
    found = read_plan(batches.plan(at, end), filter=batches.options.filter)
    assert [row["received_time_ms"] for row in found] == list(range(T0 + 950, T0 + 970))


def test_a_batch_waits_for_enough_messages_of_the_partitions_that_are_read(root: Path) -> None:
    wanted = [r for r in scanned_rows(root) if r["topic"] == "logs" and r["partition"] in (1, 2)]
    batches = stream(root, subscribe="logs", partitions="1-2")
    start = batches.initial()
    assert batches.latest(start, min_rows=len(wanted) + 1) == start
    assert batches.latest(start, min_rows=1001) == start
    end = batches.latest(start, min_rows=len(wanted))
    assert read_plan(batches.plan(start, end)) == wanted
    assert batches.latest(start, 10, min_rows=len(wanted)) != start


def test_the_progress_has_the_end_and_what_is_behind_the_batch(root: Path) -> None:
    batches = stream(root)
    start = batches.initial()
    assert batches.report()["behind"] == {"logs": 1000, "orders": 100}
    end = batches.latest(start, 700)
    write_store(root, {"orders": 50})
    assert sum(batches.report()["behind"].values()) == 400, "as the batch saw the store"
    last = batches.latest(end)
    found = batches.report()
    assert found["shards"] == last.shards
    assert found["behind"] == {}


def test_a_batch_is_read_again_with_the_same_messages(root: Path) -> None:
    batches = stream(root)
    at = batches.initial()
    end = batches.latest(at, 150)
    first = read_plan(batches.plan(at, end))
    write_store(root, {"logs": 50})
    again = stream(root)
    assert read_plan(again.plan(through_json(at, root), through_json(end, root))) == first


def test_small_portions_share_a_task_and_large_ones_are_cut(root: Path) -> None:
    batches = stream(root)
    assert len(batches.plan(batches.initial(), batches.end()).splits) == 1
    batches = stream(root, maxSplitBytes="20000")
    assert len(batches.plan(batches.initial(), batches.end()).splits) > 5


@pytest.mark.parametrize("asked", [{"maxSplitBytes": "20k"}, {"minPartitions": "8"}])
@pytest.mark.parametrize("chosen", [{}, {"partitions": "3"}])
def test_a_partition_that_holds_half_of_a_batch_is_read_by_several_tasks(
    tmp_path: Path, chosen: dict[str, str], asked: dict[str, str]
) -> None:
    write_skewed(tmp_path)
    batches = stream(tmp_path, **chosen, **asked)
    start = batches.initial()
    check_shared_out(batches.plan(start, batches.latest(start)), tmp_path, **chosen)


def test_a_checkpoint_of_another_store_is_refused(root: Path, tmp_path_factory: Any) -> None:
    other = tmp_path_factory.mktemp("other")
    write_store(other, {"logs": 10})
    at = stream(root).initial()
    for ask in (lambda b: b.latest(at), lambda b: b.plan(at, at)):
        with pytest.raises(NotAStore, match="the checkpoint was made with store"):
            ask(stream(other))


def remove_oldest(root: Path, topic: str) -> None:
    """Do what retention does: remove the oldest data and index files."""
    data = sorted((root / f"{topic}-0").glob("*.tube"))
    for file in data[: len(data) // 2]:
        file.unlink()


def test_messages_that_were_removed_fail_the_stream_with_their_offsets_and_the_time(
    root: Path,
) -> None:
    batches = stream(root)
    at = batches.initial()
    remove_oldest(root, "logs")
    with pytest.raises(DataLoss, match=r"logs-0: offsets 0 to \d+, \d+ messages, .*2023-11-14 22:"):
        batches.plan(at, batches.latest(at))


@pytest.mark.parametrize("asked", [{}, {"minPartitions": "8"}])
def test_messages_that_were_removed_are_skipped_and_counted_if_asked_for(
    root: Path, asked: dict[str, str]
) -> None:
    said: list[str] = []
    given = {"path": str(root), "failOnDataLoss": "false", **asked}
    options = ReadOptions.parse(given, stream=True)
    batches = MicroBatches(options, note=said.append)
    at = batches.initial()
    remove_oldest(root, "logs")
    found = read_plan(batches.plan(at, batches.latest(at)))
    assert found == read_plan(planned(root))
    assert batches.skipped == 1100 - len(found)
    assert f"skipped, {batches.skipped} in all" in said[0]


def make_again(root: Path, count: int, vfs: MemoryVfs | None = None) -> None:
    """Delete the topic `orders`, and make it again with so many messages."""
    with tubestore.open(root, vfs=vfs, background=False, **SMALL) as store:
        store.delete_topic("orders")
    write_store(root, {"orders": count}, vfs=vfs, seed=99)


AGAIN = "orders: the topic was deleted and made again at .*, after the stream had read it"


@pytest.mark.parametrize("count", [0, 40, 100, 300])
def test_a_topic_that_was_made_again_fails_the_stream(root: Path, count: int) -> None:
    running = stream(root)
    start = running.initial()
    at = running.latest(start)
    running.plan(start, at)
    make_again(root, count)
    for batches in (running, stream(root)):
        with pytest.raises(DataLoss, match=AGAIN):
            batches.latest(through_json(at, root))
    with pytest.raises(DataLoss, match=AGAIN):
        stream(root).plan(start, at)  # a batch that is repeated after a restart


@pytest.mark.parametrize("rows", [None, 70])
@pytest.mark.parametrize("count", [0, 40, 100, 300])
def test_a_topic_that_was_made_again_is_read_from_its_beginning_if_asked_for(
    root: Path, count: int, rows: int | None
) -> None:
    at = through_json(stream(root).end(), root)
    make_again(root, count)
    said: list[str] = []
    options = ReadOptions.parse({"path": str(root), "failOnDataLoss": "false"}, stream=True)
    batches = MicroBatches(options, note=said.append)
    at, found = drain(batches, at, rows=rows)
    wanted = [row for row in scanned_rows(root) if row["topic"] == "orders"]
    assert [row for batch in found for row in batch] == wanted
    assert len(wanted) == count
    assert len(said) == 1
    write_store(root, {"orders": 5})
    _, more = drain(stream(root), at)
    assert [len(batch) for batch in more] == [5], "and then it is a topic as any other"


def test_a_batch_of_a_topic_that_was_made_again_has_the_rest_if_asked_for(root: Path) -> None:
    batches = stream(root)
    start, at = batches.initial(), batches.latest(batches.initial())
    make_again(root, 300)
    lenient = stream(root, failOnDataLoss="false")
    found = read_plan(lenient.plan(through_json(start, root), through_json(at, root)))
    assert {row["topic"] for row in found} == {"logs"}, "rows of the new topic come in the next one"
    _, more = drain(lenient, at)
    assert [len(batch) for batch in more] == [300]


def test_a_deleted_topic_is_gone_and_begins_anew_when_it_comes_back(root: Path) -> None:
    at = stream(root).end()
    with tubestore.open(root, background=False, **SMALL) as store:
        store.delete_topic("orders")
    with pytest.raises(DataLoss, match="the shard is gone"):
        stream(root).latest(at)
    at = through_json(stream(root, failOnDataLoss="false").latest(at), root)
    write_store(root, {"orders": 300})
    assert [len(batch) for batch in drain(stream(root), at)[1]] == [300]


def test_a_checkpoint_without_ids_of_topics_goes_on_and_gets_them(root: Path) -> None:
    at = replace(stream(root).end(), topics=None)
    assert "topics" not in at.as_json()
    write_store(root, {"logs": 10})
    at, found = drain(stream(root), at)
    assert [len(batch) for batch in found] == [10]
    make_again(root, 300)
    with pytest.raises(DataLoss, match=AGAIN):
        stream(root).latest(at)


def test_a_store_of_a_broker_and_settings_for_its_topic_make_no_other_topic(
    tmp_path: Path,
) -> None:
    root = tmp_path / "s"
    shutil.copytree(unpack("tubemq", TUBE_VERSION, "basic", tmp_path / "golden").store, root)
    batches = stream(root)
    at, found = drain(batches, batches.initial())
    assert sum(map(len, found)) == len(scanned_rows(root)) > 0
    assert "topics" not in at.as_json(), "as before: nothing there has an id"
    write_store(root, {"ours": 5})
    at, more = drain(stream(root), replace(at, store=stream(root).end().store))
    assert [len(batch) for batch in more] == [5]
    with tubestore.open(root, background=False) as store:
        theirs = next(name for name in store.topics() if name != "ours")
        store.change_topic(theirs, max_age="1000000h")
    assert drain(stream(root), at)[1] == []


def test_other_topics_that_come_make_no_batch(root: Path) -> None:
    batches = stream(root, subscribe="logs")
    at = batches.end()
    write_store(root, {"fresh": 5})
    assert batches.latest(at) == at


def test_a_topic_that_is_made_again_while_shards_are_listed_has_its_own_id(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = stream(root)
    listed, changes = batches._list_shards, iter(range(2))

    def beside(known: Any) -> Any:
        found = listed(known)
        if next(changes, None) is not None:
            make_again(root, 100)
        return found

    monkeypatch.setattr(batches, "_list_shards", beside)
    at = batches.end()
    monkeypatch.undo()
    assert batches.latest(at) == at
    make_again(root, 100)
    with pytest.raises(DataLoss, match=AGAIN):
        batches.latest(at)


def test_topics_that_change_all_the_time_are_left_for_the_next_batch(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = stream(root)
    start, listed = batches.initial(), batches._list_shards

    def beside(known: Any) -> Any:
        found = listed(known)
        make_again(root, 100)
        return found

    monkeypatch.setattr(batches, "_list_shards", beside)
    assert batches.shards_now(start.shards).keys() == {"logs-0"}
    monkeypatch.undo()
    assert batches.shards_now(start.shards).keys() == {"logs-0", "orders-0"}


def test_a_topic_that_is_being_deleted_is_gone(root: Path) -> None:
    at = stream(root).end()
    state = root / ".tubestore" / "topics.json"
    content = json.loads(state.read_text())
    del content["topics"]["orders"]
    state.write_text(json.dumps({**content, "deleted": ["orders"]}))
    with pytest.raises(DataLoss, match="the shard is gone"):
        stream(root).latest(at)


def test_the_lag_of_a_topic_that_was_made_again_is_all_of_it_and_a_group_begins_there(
    root: Path,
) -> None:
    at = stream(root).end()
    make_again(root, 300)
    assert sum(lag_behind(str(root), at)["orders"].values()) == 300
    commit({"sources": [{"endOffset": json.dumps(at.as_json())}]}, str(root), "g")
    with tubestore.open(root, mode="r") as store, store.consumer("g", ["orders"]) as consumer:
        assert len(consumer.poll(100_000)) == 300


# -- other options on a checkpoint ----------------------------------------------------------------
def test_a_checkpoint_with_options_that_leave_a_topic_out_says_so(root: Path) -> None:
    at = stream(root).end()
    with pytest.raises(DataLoss, match=r"orders-0: .* options leave it out now: .* checkpointLoc"):
        stream(root, subscribe="logs").latest(at)
    lenient = stream(root, subscribe="logs", failOnDataLoss="false").latest(at)
    assert lenient.shards.keys() == {"logs-0"}


def cut(root: Path) -> None:
    index = sorted((root / "orders-0" / "index").glob("*.index"))[-1]
    index.write_bytes(index.read_bytes()[: 28 * 40])


def gone(root: Path) -> None:
    for file in sorted((root / "orders-0").rglob("*"), reverse=True):
        file.rmdir() if file.is_dir() else file.unlink()
    (root / "orders-0").rmdir()


@pytest.mark.parametrize(
    ("change", "says"), [(cut, "is at 2800, but the shard ends at 1120"), (gone, "is gone")]
)
def test_a_store_that_is_shorter_than_the_checkpoint_fails_the_stream(
    root: Path, change: Callable[[Path], None], says: str
) -> None:
    at = stream(root).end()
    change(root)
    with pytest.raises(DataLoss, match=says):
        stream(root).latest(at)
    lenient = stream(root, failOnDataLoss="false").latest(at)
    assert lenient.shards.get("orders-0") in (1120, None)


def test_a_new_stream_refuses_a_store_without_one_of_its_shards(root: Path) -> None:
    gone(root)
    with pytest.raises(NotAStore, match="orders-0: the shard's directory is missing"):
        stream(root).initial()
    assert stream(root, subscribe="logs").initial().shards.keys() == {"logs-0"}
    assert stream(root, failOnDataLoss="false").initial().shards.keys() == {"logs-0"}


def test_a_stream_that_has_caught_up_goes_on_when_retention_empties_its_topic(root: Path) -> None:
    at = stream(root).end()
    clock = ManualClock(T0 + 7_200_000)
    with tubestore.open(root, clock=clock, background=False, **SMALL) as store:
        assert store.retain(max_age="1h")
        ends = {f"{name}-0": store.topic(name).next_offset(0) for name in ("logs", "orders")}
        for name in ("logs", "orders"):
            assert store.topic(name).first_offset(0) == store.topic(name).next_offset(0)
    assert at.shards == ends
    batches = stream(root)
    assert batches.latest(at).shards == at.shards
    assert batches.initial().shards == at.shards
    assert batches.plan(at, batches.latest(at)).splits == ()
    write_store(root, {"logs": 1})
    found = read_plan(batches.plan(at, batches.latest(at)))
    assert [row["offset"] for row in found] == [ends["logs-0"]]


def test_messages_that_were_removed_to_the_last_one_fail_the_stream_too(root: Path) -> None:
    batches = stream(root)
    at = batches.latest(batches.initial(), 200)
    batches.close()
    with tubestore.open(
        root, clock=ManualClock(T0 + 7_200_000), background=False, **SMALL
    ) as store:
        assert store.retain(max_age="1h")
        assert store.topic("logs").first_offset(0) == store.topic("logs").next_offset(0)
    for frozen in (False, True):
        batches = stream(root)
        if frozen:
            batches.freeze()
        with pytest.raises(DataLoss, match="messages, were removed before they were read"):
            batches.plan(at, batches.latest(at))
    lenient = stream(root, failOnDataLoss="false")
    lenient.freeze()
    at, found = drain(lenient, at)
    assert found == [[]]
    assert lenient.skipped == 900
    assert at.shards == stream(root).end().shards


def test_what_was_removed_after_availableNow_had_begun_is_reported(root: Path) -> None:
    batches = stream(root)
    at = batches.initial()
    batches.freeze()
    write_store(root, {"logs": 100})
    with tubestore.open(
        root, clock=ManualClock(T0 + 7_200_000), background=False, **SMALL
    ) as store:
        assert store.retain(max_age="1h")
    with pytest.raises(DataLoss, match="messages, were removed before they were read"):
        batches.plan(at, batches.latest(at))


def test_entries_whose_data_were_all_removed_are_not_kept(root: Path) -> None:
    end = stream(root).end().shards["orders-0"]
    for path in (root / "orders-0").glob("*.tube"):
        (path.parent / f"{path.stat().st_size:020d}.tube").touch()
        path.unlink()
    assert stream(root).initial().shards["orders-0"] == end
    assert stream(root).end().shards["orders-0"] == end


def test_a_group_goes_on_behind_what_a_stream_has_read(root: Path) -> None:
    batches = stream(root)
    end = batches.latest(batches.initial(), 700)
    unread = sum(r["offset"] >= end.shards[f"{r['topic']}-0"] for r in scanned_rows(root))
    progress = {"sources": [{"endOffset": json.dumps(end.as_json())}]}
    commit(progress, str(root), "g")
    topics = sorted({r["topic"] for r in scanned_rows(root)})
    with tubestore.open(root, mode="r") as store, store.consumer("g", topics) as consumer:
        assert len(consumer.poll(100_000)) == unread > 0
        with pytest.raises(InvalidMessage, match="living members"):
            commit(progress, str(root), "g")
    commit(progress, str(root), "other", partitions=[0])
    with tubestore.open(root, mode="r") as store:
        rows = store.describe_group("other").partitions
        assert {row.partition for row in rows if row.position is not None} == {0}
    foreign = replace(end, store="another")
    with pytest.raises(NotAStore, match="another"):
        commit({"sources": [{"endOffset": json.dumps(foreign.as_json())}]}, str(root), "g")


def test_topics_that_match_a_pattern_may_come_later(root: Path) -> None:
    batches = stream(root, subscribePattern="new.*", partitions="2")
    start = batches.initial()
    assert start.shards == {}
    write_store(root, {"newer": 50})
    end = batches.latest(start)
    assert {r["topic"] for r in read_plan(batches.plan(start, end))} == {"newer"}


def test_a_hole_in_a_shard_is_noted_once(root: Path) -> None:
    sorted((root / "logs-0").glob("*.tube"))[1].unlink()
    batches = stream(root)
    with pytest.raises(NotAStore, match="failOnCorrupt"):
        batches.plan(batches.initial(), batches.end())
    notes: list[str] = []
    options = ReadOptions.parse({"path": str(root), "failOnCorrupt": "false"}, stream=True)
    batches = MicroBatches(options, note=notes.append)
    for _ in range(2):
        made = batches.plan(batches.initial(), batches.end())
    assert len(read_plan(made, fail_on_corrupt=False)) == 1100
    (note,) = notes
    assert "does not start where the one before ends" in note


def test_a_query_without_a_finished_batch_has_nothing_to_commit(root: Path) -> None:
    with pytest.raises(InvalidMessage, match="not finished a batch"):
        commit(SimpleNamespace(lastProgress=None), str(root), "g")
