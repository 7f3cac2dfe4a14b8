"""Queues of inner batches without a store: listed, checked, mended, built anew, copied."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import rocketcompat
from rocketcompat import Message
from rocketcompat.check.whole import check
from rocketcompat.inspect.directory import StoreDirectory
from rocketcompat.inspect.queues import QueueViews
from tests.support.command import Command
from tests.support.golden import GoldenFactory
from tests.support.golden_puts import files_of
from tests.support.inner_batches import CONFIG, batch, opened
from tests.support.rocket.cli import command_fixture as command_fixture
from tests.support.rocket.files.batch_queues import (
    GIVEN,
    OPTIONS,
    patch,
    wrong_unit,
)
from tests.support.rocket.files.batch_queues import root as root


def test_a_sound_store_has_no_findings_and_lists_both_kinds(root: Path, command: Command) -> None:
    assert list(check(root, OPTIONS)) == []
    rows = command("queues", root, "--format", "jsonl").rows
    assert [(r["topic"], r["queue_id"], r["min_offset"], r["max_offset"]) for r in rows] == [
        ("T", 0, 0, 21), ("B", 0, 0, 69), ("B", 1, 0, 3),
    ]  # fmt: skip
    units = command("cq", root, "--topic", "B", "--queue", "0", "--format", "jsonl").rows
    assert [(r["queue_offset"], r["messages"], r["state"]) for r in units[:4]] == [
        (0, 3, "ok"), (3, 1, "ok"), (4, 1, "ok"), (5, 5, "ok"),
    ]  # fmt: skip
    assert sum(r["messages"] for r in units) == 69


def test_info_and_lag_tell_of_queues_of_both_kinds(root: Path, command: Command) -> None:
    (found,) = command("info", root, "--format", "jsonl").rows
    rows = {(row["topic"], row["queue_id"]): row for row in found["queues"]}
    assert {key: row["messages"] for key, row in rows.items()} == {
        ("T", 0): 21, ("B", 0): 69, ("B", 1): 3,
    }  # fmt: skip
    views = QueueViews(StoreDirectory(root, OPTIONS))
    units = views.view(("B", 0)).units
    times = rows["B", 0]["first_timestamp"], rows["B", 0]["last_timestamp"]
    assert times == (units["store_timestamp"][0], units["store_timestamp"][-1])
    config = root / "config"
    config.mkdir(exist_ok=True)
    table = {"offsetTable": {"B@g": {"0": 60, "1": 4}, "T@g": {"0": 20}}}
    (config / "consumerOffset.json").write_text(json.dumps(table))
    told = command("lag", root, "--format", "jsonl").rows
    assert [(r["topic"], r["queue_id"], r["lag"], r["verdict"]) for r in told] == [
        ("B", 0, 9, "held"), ("B", 1, 0, "beyond"), ("T", 0, 1, "held"),
    ]  # fmt: skip


def test_info_shows_whether_a_message_in_the_middle_of_an_inner_batch_is_held(
    root: Path, command: Command
) -> None:
    def asked(offset: int) -> tuple[int, str, int | None]:
        given = ["--topic", "B", "--queue", 0, "--offset", offset, "--format", "jsonl"]
        done = command("info", root, *given)
        (row,) = done.rows
        return done.code, row["verdict"], row.get("physical_offset")

    units = QueueViews(StoreDirectory(root, OPTIONS)).view(("B", 0)).units
    assert [int(base) for base in units["base_offset"][:4]] == [0, 3, 4, 5]
    assert asked(2) == (0, "held", int(units["physical_offset"][0]))
    assert asked(5) == asked(9) == (0, "held", int(units["physical_offset"][3]))
    assert asked(69) == (1, "not-yet", None)
    patch(root / "commitlog" / f"{0:020d}", int(units["physical_offset"][1]) + 4, b"\xff")
    assert asked(3)[:2] == (1, "damaged")


@pytest.mark.gate
def test_the_golden_store_is_sound_and_pulls_from_its_directory_are_the_store_s(
    golden: GoldenFactory, command: Command
) -> None:
    theirs = golden("rocketmq", "5.3.3", "batchcq")
    config = theirs.meta["config"]
    options = {name: config[name] for name in ("maxHashSlotNum", "maxIndexNum")}
    assert list(check(theirs.store, options)) == []
    for row in theirs.queries(type="get", topic="BcqTopic"):
        given = ["--topic", "BcqTopic", "--queue", row["queueId"], "--max", row["max"]]
        tags = ["--tags", row["sub"]] if row["sub"] else []
        if row["offset"] < 0 or row["max"] > 32:
            continue
        done = command("get", theirs.store, *given, "--offset", row["offset"], *tags,
                       "--format", "jsonl")  # fmt: skip
        (answer,) = done.rows
        assert answer["status"] == row["status"]
        assert answer["queue_offsets"] == row["queueOffsets"]
        assert answer["next_begin_offset"] == row["nextBeginOffset"]


def test_a_pull_from_the_directory_ends_where_a_file_of_the_queue_does(
    root: Path, command: Command
) -> None:
    starts = [0, 2, 11, 30, 68]
    with opened(root) as store:
        live = [store.get_message("B", 0, start) for start in starts]
    assert 0 < live[0].next_begin_offset < 69
    for start, theirs in zip(starts, live, strict=True):
        done = command("get", root, *GIVEN, "--topic", "B", "--queue", 0, "--offset", start,
                       "--format", "jsonl")  # fmt: skip
        (answer,) = done.rows
        assert answer["queue_offsets"] == theirs.queue_offsets
        assert answer["next_begin_offset"] == theirs.next_begin_offset


def test_the_offset_of_a_time_is_found_in_a_queue_of_inner_batches(
    root: Path, command: Command
) -> None:
    with opened(root) as store:
        time = store.message_store_timestamp("B", 0, 5)
        expected = store.offset_in_queue_by_time("B", 0, time)
    done = command("offset-by-time", root, *GIVEN, "-o", "compat=5.3.3", "--topic", "B",
                   "--queue", 0, "--time", time, "--format", "jsonl")  # fmt: skip
    assert done.rows == [
        {"queue_offset": expected, "boundary": "lower", "store_timestamp": time}
    ]  # fmt: skip


def test_a_rebuild_makes_the_bytes_that_dispatch_wrote(root: Path, command: Command) -> None:
    before = {name: files_of(root, name) for name in ("batchconsumequeue", "consumequeue")}
    wrong_unit(root)
    done = command("rebuild", root, "batchconsumequeue", "consumequeue", *GIVEN)
    assert done.code == 0, done.err
    assert {name: files_of(root, name) for name in before} == before
    kept = root / ".tubestore" / "quarantine" / "1" / "batchconsumequeue" / "B" / "0"
    assert len(list(kept.iterdir())) == 5
    with rocketcompat.open(root, "w", CONFIG, background=False) as store:
        assert store.recovered.verified_from == store.recovered.log_end
        assert store.max_offset_in_queue("B", 0) == 69


def test_without_topics_of_batches_there_is_nothing_to_build(
    tmp_path: Path, command: Command
) -> None:
    with opened(tmp_path, CONFIG.changed(batch_topics=frozenset())) as store:
        store.put_message(Message("T", b"x"))
    done = command("rebuild", tmp_path, "batchconsumequeue", *GIVEN)
    assert (done.code, "batchTopics" in done.err) == (2, True)


def test_a_damaged_batch_gets_a_stand_in_and_its_numbers_are_not_given_again(
    root: Path, command: Command
) -> None:
    views = QueueViews(StoreDirectory(root, OPTIONS))
    units = {view.queue_id: view.units for view in views.of_batches()}[0]
    lost = units[-1]
    place, base = int(lost["physical_offset"]), int(lost["base_offset"])
    patch(root / "commitlog" / f"{place - place % 4096:020d}", place % 4096 + 4, b"\0\0\0\0")
    reasons = {row["reason"] for row in check(root, OPTIONS)}
    assert {"damaged", "unit_damaged"} <= reasons
    assert command("repair", root, *GIVEN, "--apply").code == 0
    assert list(check(root, OPTIONS)) == []
    with rocketcompat.open(root, "w", CONFIG, background=False) as store:
        stand_in = store.get_message("B", 0, base).rows()[0]
        assert "TUBESTORE_DAMAGED" in stand_in["properties"]
        assert stand_in["state"] == "lost"
        assert store.put_inner_batch(batch(2)).queue_offset > base


def test_a_copy_in_other_files_has_the_same_queues(root: Path, tmp_path: Path, command: Command
) -> None:  # fmt: skip
    target = tmp_path / "copy"
    done = command("convert", root, target, *GIVEN, "-o", "mappedFileSizeCommitLog=8192")
    assert done.code == 0, done.err
    rows = command("queues", target, "--format", "jsonl").rows
    assert [(r["topic"], r["queue_id"], r["max_offset"]) for r in rows] == [
        ("T", 0, 21), ("B", 0, 69), ("B", 1, 3),
    ]  # fmt: skip
    assert [row["reason"] for row in check(target, OPTIONS)] == ["checkpoint"]


@pytest.mark.parametrize("offsets", ["keep", "renumber"])
def test_inner_batches_are_exported_and_imported(
    root: Path, command: Command, tmp_path: Path, offsets: str
) -> None:
    file, copy = tmp_path / "all.jsonl", tmp_path / "copy"
    assert command("export", root, "--out", file).code == 0
    sizes = ["-o", "mappedFileSizeCommitLog=4096", "-o", "mappedFileSizeConsumeQueue=200"]
    named = ["-o", "batchTopics=B", *sizes]
    done = command("import", copy, file, "--offsets", offsets, *named, *GIVEN)
    assert done.code == 0, done.err
    assert {found["reason"] for found in check(copy, OPTIONS)} <= {"checkpoint"}
    left, right = (
        [(row["topic"], row["queue_id"], row["queue_offset"], row["body"], row["properties"])
         for row in command("dump", store, "--format", "jsonl").rows]
        for store in (root, copy)
    )  # fmt: skip
    assert left == right
    if offsets == "keep":
        assert files_of(root, "commitlog") == files_of(copy, "commitlog")


def test_an_inner_batch_whose_base_is_not_its_offset_is_not_imported_with_it(
    root: Path, command: Command, tmp_path: Path
) -> None:
    file, copy = tmp_path / "all.jsonl", tmp_path / "copy"
    assert command("export", root, "--out", file).code == 0
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    row = next(row for row in rows if row["topic"] == "B" and row["queue_offset"] == 5)
    row["queue_offset"] = 6
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = ["--offsets", "keep", "-o", "batchTopics=B", "-o", "mappedFileSizeCommitLog=4096"]
    done = command("import", copy, file, *given, *GIVEN)
    assert done.code in (2, 3)
    assert "INNER_BASE: 5, and the queue offset is 6" in done.err
