"""Cells run in processes of their own, within limits; results can go on where they ended."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from bench.comparison import compare
from bench.layouts.capabilities import Unavailable
from bench.layouts.registry import contender
from bench.measure import system
from bench.measure.calibration import Calibration, disturbed
from bench.measure.laboratory import (
    PLANS,
    Plan,
    Results,
    _system_calls,
    plan_with,
    read,
    run,
    run_block,
)
from bench.measure.worker import FEWEST, Task, Worker, in_a_line
from bench.run import RESULTS, SCRATCH
from bench.workloads.cases import Measure
from bench.workloads.contestants import Way
from bench.workloads.sizes import Size
from bench.workloads.works import BY_NAME, DEFAULT, Block, Work
from tests.bench.own_layouts import Lists
from tests.support import REPOSITORY

pytest.importorskip("hdrh", reason="hdrhistogram is not installed")

TEXT = bytes(range(256)) * 64
OWN = "tests.bench.own_layouts"
HEAD = {"kind": "laboratory", "commit": "c", "processor": "p", "cores": 2, "python": "3",
        "scale": "tiny", "payload": {}}  # fmt: skip


def rows_of(block: Block, place: Path, plan: Plan = PLANS["tiny"]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    run_block(block, "tiny", TEXT, place, rows.append, plan)
    return rows


@pytest.mark.gate
def test_every_cell_is_measured_in_a_process_of_its_own(tmp_path: Path) -> None:
    block = Block(BY_NAME["append"], Size(partitions=2), (f"{OWN}:Lists", "raw-file"))
    rows = rows_of(block, tmp_path, plan_with(PLANS["tiny"], rounds=3))
    assert [(row["kind"], row["round"], row["layout"]) for row in rows] == [
        ("run", 0, "lists"), ("run", 0, "raw-file"), ("run", 1, "raw-file"), ("run", 1, "lists"),
        ("run", 2, "lists"), ("run", 2, "raw-file"),
    ]  # fmt: skip
    for row in rows:
        assert row["messages"] == row["calls"] == 200
        assert 0 < row["p50_us"] <= row["p99_us"] <= row["p999_us"] <= row["max_us"]
        assert row["peak_mb"] > 10
        assert row["files"] == 1
        assert row["disk_bytes"] >= 4096
        assert row["descriptors"] >= 3
    assert list(tmp_path.iterdir()) == []
    assert multiprocessing.active_children() == []


@pytest.mark.gate
@pytest.mark.parametrize(
    ("name", "limits", "reason"),
    [
        ("Forgetful", {}, "it gives back other messages than it took: 99 for 100"),
        ("Forgets", {}, "it gives back other messages than it took: 0 for 100"),
        ("Stuck", {"limit_seconds": 1.0}, "it took longer than the limit of 1 s"),
        ("Greedy", {"limit_mb": 200.0}, "it took more than the limit of 200 MB"),
        ("Broken", {}, "KeyError: 'no such drawer' (own_layouts.py:"),
    ],
)
def test_a_cell_that_fails_shows_its_reason_and_leaves_nothing(
    name: str, limits: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    block = Block(BY_NAME["append"], Size(partitions=2), (f"{OWN}:{name}", "raw-file"))
    rows = rows_of(block, tmp_path, plan_with(PLANS["tiny"], rounds=1, **limits))
    left_out, run_ = sorted(rows, key=lambda row: str(row["kind"]))
    assert left_out["kind"] == "left_out"
    assert left_out["reason"].startswith(reason)
    assert run_["layout"] == "raw-file"
    assert list(tmp_path.iterdir()) == []
    assert multiprocessing.active_children() == []


@pytest.mark.gate
@pytest.mark.parametrize("name", ["Parent", "Runaway"])
def test_a_process_that_a_layout_has_started_ends_with_its_cell(name: str, tmp_path: Path) -> None:
    if name == "Runaway" and not sys.platform.startswith("linux"):
        pytest.skip("only Linux gives a process whose parent has ended to a process above it")
    block = Block(BY_NAME["append"], Size(partitions=2), (f"{OWN}:{name}",))
    place = tmp_path / "at"
    place.mkdir()
    (row,) = rows_of(block, place, plan_with(PLANS["tiny"], rounds=1))
    assert row["kind"] == "run"
    children = [int(line) for line in (place / "children").read_text().split()]
    assert len(children) > 1
    psutil.wait_procs([psutil.Process(pid) for pid in children if psutil.pid_exists(pid)], 10)
    left = [pid for pid in children if psutil.pid_exists(pid)]
    assert [pid for pid in left if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE] == []


def test_what_a_contender_lacks_is_found_before_a_process_starts(tmp_path: Path) -> None:
    block = Block(
        BY_NAME["scan"], Size(topics=2, threads=2), (f"{OWN}:Lists", "tubemq", "rocketmq-4.9.8")
    )
    assert [(row["layout"], row["reason"]) for row in rows_of(block, tmp_path)] == [
        ("lists", "it does not declare reopen, scan, threads"),
        ("tubemq", "its driver has no scan"),
        ("rocketmq-4.9.8", "its driver reads one topic"),
    ]


@pytest.mark.gate
@pytest.mark.skipif(shutil.which("strace") is None, reason="no strace on PATH")
def test_system_calls_are_those_for_messages_alone(tmp_path: Path) -> None:
    block = Block(BY_NAME["append"], Size(), ("raw-file", f"{OWN}:Lists"))
    rows = rows_of(block, tmp_path, plan_with(PLANS["tiny"], rounds=1, counts_calls=True))
    counted = {row["layout"]: row for row in rows if row["kind"] == "calls"}
    if not counted:
        pytest.skip("strace may not attach to a process here")
    assert counted["raw-file"]["by_name"]["pwrite64"] == pytest.approx(1, abs=0.01)
    assert counted["raw-file"]["calls_each"] == pytest.approx(1, abs=0.1)
    assert "pwrite64" not in counted.get("lists", {}).get("by_name", {})


def test_calls_of_a_virtual_machine_and_of_many_files_are_not_counted(tmp_path: Path) -> None:
    cell: Any = SimpleNamespace(contender="tubemq")
    assert "virtual machine" in _system_calls(cell, Size())["reason"]
    cell.contender = "tubestore"
    assert "10,000 partitions" in _system_calls(cell, Size(topics=10_001))["reason"]


def test_calls_of_synced_messages_are_counted_over_few_that_reach_every_partition() -> None:
    asked: list[str] = []
    cell: Any = SimpleNamespace(
        contender="lmdb", process=SimpleNamespace(pid=0),
        ask=lambda request, seconds: asked.append(request) or {"messages": 1},
    )  # fmt: skip
    _system_calls(cell, Size(durability="fsync"))
    _system_calls(cell, Size(topics=100, durability="fsync"))
    _system_calls(cell, Size(threads=4))
    wanted = [200, 600, 1000, 2000, 8000, 24_000]
    assert asked == [f"count {number}" for number in wanted]


def test_the_summary_of_strace_is_understood() -> None:
    text = """% time     seconds  usecs/call     calls    errors syscall
------ ----------- ----------- --------- --------- ----------------
 90.00    0.000100           1       100           pwrite64
 10.00    0.000010           1        10         3 openat
------ ----------- ----------- --------- --------- ----------------
100.00    0.000110           1       110         3 total
"""
    assert system._counted(text) == {"pwrite64": 100, "openat": 10}


@pytest.mark.gate
def test_a_comparison_is_an_arrow_table_with_a_row_a_cell() -> None:
    found = compare([Lists, "raw-file"], ["append", "scan"], [{"topics": 2}], amount="tiny")
    cells = {(row["work"], row["layout"]): row for row in found.to_pylist()}
    assert len(cells) == found.num_rows == 4
    assert cells["append", "lists"]["rate_median"] > 0
    assert cells["append", "raw-file"]["topics"] == 2
    assert cells["scan", "lists"]["reason"] == "it does not declare reopen, scan"
    assert cells["scan", "lists"]["rate_median"] is None


def test_a_comparison_refuses_what_it_does_not_have() -> None:
    class Local(Lists):
        pass

    for arguments, reason in (
        (([], ["append"]), "name at least one layout"),
        ((["lmdb"], []), "name at least one workload"),
        ((["lmdb"], ["append"], []), "name at least one size"),
        (("lmdb", ["append"]), "layouts: give a list, not 'lmdb' itself"),
        ((["lmdb"], "append"), "workloads: give a list, not 'append' itself"),
        ((["lmdb"], ["append"], {"topics": 2}), "sizes: give a list, not {'topics': 2} itself"),
        ((["lmdb"], ["append"], [3]), "3 is no size: give a Size, or a dict of its fields"),
        ((["nothing"], ["append"]), "'nothing': name one of tubestore"),
        (([f"{OWN}:Nothing"], ["append"]), "has no attribute 'Nothing'"),
        (([Local], ["append"]), "define the class at the top of a module"),
        ((["lmdb"], ["appnd"]), "'appnd' is no workload"),
        ((["lmdb"], ["append"], [{"topic": 1}]), "a size has no 'topic'"),
        ((["lmdb"], ["append"], [{"topics": 0}]), "topics: 0 is not a positive whole number"),
        ((["lmdb"], ["append"], [{"skew": "odd"}]), "skew: 'odd' is none of even, zipf"),
    ):
        with pytest.raises(Unavailable, match=reason):
            compare(*arguments)


def test_what_is_wrong_beside_the_lists_is_named_too(tmp_path: Path) -> None:
    for named, reason in (
        ({"amount": "huge"}, "amount: 'huge' is none of full, quick, tiny"),
        ({"directory": str(tmp_path / "no")}, "no: there is no such directory to write to"),
        ({"payload": str(tmp_path / "no")}, "no: No such file or directory"),
    ):
        with pytest.raises(Unavailable, match=reason):
            compare(["lmdb"], ["append"], **named)


@pytest.mark.gate
def test_the_library_writes_where_the_command_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was the directory of temporary files, which is a disk: other rates than the command's."""
    asked: list[Path | None] = []

    def place(directory: Path | None, scale: str) -> Path:
        asked.append(directory)
        raise Unavailable("enough")

    monkeypatch.setattr("bench.comparison.place_for", place)
    for size in ({}, {"disk": True}):
        with pytest.raises(Unavailable, match="enough"):
            compare(["lmdb"], ["append"], [size])
    assert asked == [None, SCRATCH]


def test_a_run_goes_on_with_the_first_block_that_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []

    def one(block: Block, *rest: Any) -> None:
        if len(ran) == 2 and interrupted:
            raise KeyboardInterrupt
        ran.append(block.label)
        rest[3]({"kind": "run", "label": block.label})

    monkeypatch.setattr("bench.measure.laboratory.run_block", one)
    blocks = [Block(BY_NAME["append"], Size(topics=n), ("lmdb",)) for n in (1, 2, 3)]
    path = tmp_path / "results.jsonl"

    def go(resume: bool, commit: str = "c") -> None:
        results = Results(path, HEAD | {"commit": commit}, resume=resume)
        run(blocks, "tiny", TEXT, lambda block: tmp_path, results, lambda *_: None, PLANS["tiny"])

    interrupted = True
    with pytest.raises(KeyboardInterrupt):
        go(resume=False)
    with path.open("a") as file:
        file.write('{"kind": "run", "of": "a block that was torn off"}\n{"kind": "run", "torn')
    interrupted = False
    go(resume=True, commit="d")
    assert ran == [block.label for block in blocks]
    rows = read(path)
    assert [row["kind"] for row in rows] == ["laboratory", *["run", "block"] * 3]
    assert [row["commit"] for row in rows if row["kind"] == "block"] == ["c", "c", "d"]
    blocks[0] = Block(BY_NAME["append"], Size(topics=1), ("lmdb", "sqlite"))
    with pytest.raises(Unavailable, match="has 'append 1 × 10' without sqlite: begin a new file"):
        go(resume=True)
    with pytest.raises(Unavailable, match="their cores is 2, and here it is 3"):
        Results(path, HEAD | {"cores": 3}, resume=True)


def test_blocks_that_are_measured_again_take_the_place_of_what_a_file_has_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "bench.measure.laboratory.run_block",
        lambda block, *rest: [
            rest[3]({"kind": "run", "layout": name, "round": 0}) for name in block.contenders
        ],
    )
    blocks = [Block(BY_NAME["append"], Size(topics=n), ("lmdb",)) for n in (1, 2, 3)]
    path = tmp_path / "results.jsonl"

    def go(blocks: list[Block], commit: str, **named: Any) -> list[str]:
        ran: list[str] = []
        results = Results(path, HEAD | {"commit": commit}, **named)
        run(blocks, "tiny", TEXT, lambda block: tmp_path, results,
            lambda block, *_: ran.append(block.label), PLANS["tiny"])  # fmt: skip
        return ran

    go(blocks, "c", resume=True)
    again = Block(BY_NAME["append"], Size(topics=2), ("lmdb", "sqlite"))
    assert go([again], "d", resume=True, again={again.label}) == [again.label]
    rows = read(path)
    found = [(row["label"], row["commit"], row["contenders"]) for row in rows
             if row["kind"] == "block"]  # fmt: skip
    assert found == [
        (blocks[0].label, "c", ["lmdb"]), (again.label, "d", ["lmdb", "sqlite"]),
        (blocks[2].label, "c", ["lmdb"]),
    ]  # fmt: skip
    assert [row["layout"] for row in rows if row["kind"] == "run"] == [
        "lmdb", "lmdb", "sqlite", "lmdb"
    ]  # fmt: skip
    assert Results(path, HEAD, resume=True).layouts(again.label) == ["lmdb", "sqlite"]
    assert go([again], "e", resume=True) == [], "once it is there, a run goes on behind it"


def test_results_are_written_to_no_device_and_behind_a_link(tmp_path: Path) -> None:
    """A file that is written anew takes its name: a device would be gone."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(Unavailable, match="pipe: not a file"):
        Results(tmp_path / "pipe", HEAD, resume=False)
    link = tmp_path / "link.jsonl"
    link.symlink_to("results.jsonl")
    Results(link, HEAD, resume=False)
    assert link.is_symlink()
    assert read(tmp_path / "results.jsonl") == [HEAD]


def test_what_a_layout_prints_is_not_in_the_output_of_a_program(tmp_path: Path) -> None:
    text = (
        "import bench\n"
        "if __name__ == '__main__':\n"
        "    found = bench.compare(['tests.bench.own_layouts:Talkative'], ['append'],\n"
        "                          amount='tiny')\n"
        "    print(found['reason'].to_pylist())\n"
    )
    (tmp_path / "program.py").write_text(text)
    done = subprocess.run(
        [sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, check=False,
        timeout=100, env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )  # fmt: skip
    assert done.stdout == "[None]\n"
    assert "a word of the layout's" in done.stderr


def test_the_recorded_run_can_go_on_with_the_blocks_that_are_new(tmp_path: Path) -> None:
    path = tmp_path / "layouts.jsonl"
    shutil.copy(RESULTS / "layouts.jsonl", path)
    before = path.read_bytes()
    (head, *_) = read(path)
    results = Results(path, head, resume=True)
    assert path.read_bytes() == before
    recorded = {row["label"] for row in read(path) if row["kind"] == "block"}
    assert {block.label for block in DEFAULT if results.has(block)} == recorded


def test_lines_that_are_missing_from_a_block_are_noticed(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    rows: list[dict[str, Any]] = [
        HEAD, *({"kind": "run", "round": n} for n in range(3)),
        {"kind": "block", "label": "append 1 × 10", "rows": 3}, {"kind": "run", "round": 9},
    ]  # fmt: skip
    lines = [json.dumps(row) + "\n" for row in rows]
    path.write_text("".join(lines))
    assert read(path) == rows[:-1]
    for kept, reason in (
        ([0, 1, 3, 4], "line 4: 1 rows are missing from the block 'append 1 × 10'"),
        ([0, 1, 2, 2, 3, 4], "line 6: 1 rows are too many in the block 'append 1 × 10'"),
    ):
        path.write_text("".join(lines[number] for number in kept))
        with pytest.raises(Unavailable, match=reason):
            read(path)


def test_a_run_that_has_a_time_ends_within_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks share what is left: a slow one leaves less to those behind it."""
    now = 0.0
    shares: list[float] = []

    def one(block: Block, *rest: Any) -> None:
        nonlocal now
        shares.append(rest[-1].block_seconds)
        now += 60.0 if len(shares) == 1 else shares[-1]

    monkeypatch.setattr("bench.measure.laboratory.run_block", one)
    monkeypatch.setattr("bench.measure.laboratory.time.monotonic", lambda: now)
    blocks = [Block(BY_NAME["append"], Size(topics=n), ("lmdb",)) for n in (1, 2, 3, 4)]
    results = Results(tmp_path / "results.jsonl", HEAD, resume=False)
    plan = plan_with(PLANS["quick"], all_seconds=100.0)
    run(blocks, "quick", TEXT, lambda block: tmp_path, results, lambda *_: None, plan)
    assert shares == [25.0, *[pytest.approx(40 / 3)] * 3]
    assert PLANS["quick"].all_seconds < 180


@pytest.mark.gate
def test_a_block_without_time_has_one_round_of_each_cell(tmp_path: Path) -> None:
    block = Block(BY_NAME["append"], Size(), ("raw-file", f"{OWN}:Lists"))
    rows = rows_of(block, tmp_path, plan_with(PLANS["tiny"], block_seconds=0.0))
    assert [(row["layout"], row["round"]) for row in rows] == [("raw-file", 0), ("lists", 0)]


def test_a_contender_without_the_time_for_five_rounds_gets_fewer_messages(tmp_path: Path) -> None:
    def within(topics: int, *numbers: float) -> int:
        size = Size(topics=topics)
        worker = Worker(Task(contender("lmdb"), BY_NAME["append"], size, tmp_path, TEXT, 1.0))
        return worker._within(*numbers)  # type: ignore[arg-type]

    assert within(1, 10.0, 1000, 1.0) == 7500
    assert within(1, 1e9, 1000, 0.0) > 1 << 60
    assert within(1, -5.0, 1000, 1.0) == FEWEST
    assert within(500, 0.0, 1000, 1.0) == 2 * 5000, "not the making of files alone"


@pytest.mark.gate
def test_on_a_disk_bytes_read_and_written_are_counted(tmp_path: Path) -> None:
    if system.device_bytes(tmp_path) is None:
        pytest.skip("no block device holds the temporary directory")
    for work in ("append", "read-cold"):
        block = Block(BY_NAME[work], Size(disk=True), ("tubestore",))
        (row,) = rows_of(block, tmp_path, plan_with(PLANS["tiny"], rounds=1))
        assert row["disk"] is True
        assert row["device_read_bytes"] >= 0
        assert ("device_bytes" in row) == (work == "append")
        if work == "append":
            assert row["device_bytes"] >= 200 * 1024


@pytest.mark.gate
@pytest.mark.parametrize("guard", [True, False])
def test_a_comparison_may_be_piped_into_python(guard: bool, tmp_path: Path) -> None:
    text = (
        "import bench\n"
        "class Mine: name, capabilities = 'mine', {'append'}\n"
        "found = bench.compare(['raw-file'], ['append'], amount='tiny')\n"
        "print(found['reason'].to_pylist())\n"
        "bench.compare([Mine], ['append'])\n"
    )
    command = [sys.executable, "-"]
    if not guard:  # a file that its own cells would run again
        text = text.rpartition("bench.compare")[0]
        (tmp_path / "program.py").write_text(text)
        command = [sys.executable, "program.py"]
    done = subprocess.run(
        command, input=text, cwd=tmp_path, capture_output=True, text=True, check=False,
        timeout=100, env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )  # fmt: skip
    if guard:
        assert done.stdout == "[None]\n"
        assert "which cannot import what was typed in, piped" in done.stderr.splitlines()[-1]
    else:
        assert "a program calls bench.compare below `if __name__" in done.stdout


def test_a_workload_that_cannot_be_sent_to_a_process_is_left_out(tmp_path: Path) -> None:
    work = Work("mine", "?", Way(frozenset(), lambda make: None), 200, 200)  # type: ignore[arg-type,return-value]
    (row,) = rows_of(Block(work, Size(), ("raw-file",)), tmp_path)
    assert row["reason"].startswith("it cannot be sent to the process of its cell")


def test_more_messages_than_there_is_room_for_are_refused() -> None:
    with pytest.raises(Unavailable, match=r"1,000,000,000,000 messages of 64 B: there is room for"):
        compare(["raw-file"], ["append"], [{"messages": 10**12, "body": 64}])


def test_the_output_of_a_driver_that_failed_is_one_line() -> None:
    text = "Driver put /a/b 7: exit 1\nWARN no\nx.IOException: /c (Too many open files)\n\tat d"
    assert in_a_line(text) == "Driver put 7: exit 1: x.IOException: (Too many open files)"
    assert in_a_line("one line") == "one line"


def test_a_run_over_many_places_appends_several_messages_to_each(tmp_path: Path) -> None:
    size = Size(topics=40, partitions=10).with_messages(50_000)
    with ExitStack() as stack:
        task = Task(contender("lmdb"), BY_NAME["append"], size, tmp_path / "at", TEXT, 1e-6)
        assert Worker(task).start(stack) == 20 * 400


def test_a_driver_appends_as_many_to_each_place_as_the_others_do(tmp_path: Path) -> None:
    """A trial of few messages makes the same files: by its rate there would be time for less."""
    asked: list[int] = []

    def runner(messages: int) -> Measure:
        asked.append(messages)
        return Measure(messages, messages, 100.0)

    for topics, count in ((1, 200), (1000, 200_000)):
        size = Size(topics=topics).with_messages(1_000_000)
        task = Task(contender("tubemq"), BY_NAME["append"], size, tmp_path, TEXT, 1.0, 0.0)
        assert Worker(task)._driven(runner) == count
    assert asked == [20_000, 20_000]


def test_messages_that_are_synced_warm_up_by_few(tmp_path: Path) -> None:
    for sizes, count in (({}, 200), ({"threads": 16}, 3200), ({"topics": 100}, 1000)):
        size = Size(durability="fsync", **sizes).with_messages(1_000_000)  # type: ignore[arg-type]
        task = Task(contender("lmdb"), BY_NAME["append"], size, tmp_path, TEXT, 1.0)
        assert Worker(task)._warm_count() == count
    task = Task(contender("lmdb"), BY_NAME["append"], Size(messages=5000), tmp_path, TEXT, 1.0)
    assert Worker(task)._warm_count() == 500


def test_a_damaged_line_in_the_middle_of_results_is_named(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    path.write_text(json.dumps(HEAD) + "\n{\n" + json.dumps(HEAD) + "\n")
    with pytest.raises(Unavailable, match=r"results\.jsonl, line 2: not JSON"):
        read(path)
    path.write_text("{}\n")
    with pytest.raises(Unavailable, match="no results"):
        read(path)


def test_a_machine_that_was_busy_is_noticed() -> None:
    usual = Calibration(1.0, 1.0, 1.0, 1.0)
    assert disturbed(usual, [usual] * 3) == []
    assert disturbed(Calibration(1.5, 1.1, 2.0, 9.0), [usual] * 3) == ["loop", "write"]
