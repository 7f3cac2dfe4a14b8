"""The page about layouts, workloads and structures of one's own: its examples run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.commands import _chosen, main, parser
from bench.comparison import compare
from bench.layouts import registry
from bench.layouts.capabilities import Unavailable
from bench.measure.laboratory import PLANS, plan_with, read
from bench.run import place_for
from bench.workloads.works import QUICK
from rocketcompat.store.structures import unregister

pytest.importorskip("hdrh", reason="hdrhistogram is not installed")

ROOT = Path(__file__).parents[2]


#: The files of the page, in their order.
FILES = ("own.py", "ends.py", "counted.py")


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Write the files of the page; return the first of them."""
    text = (ROOT / "bench/OWN.md").read_text()
    for name, code in zip(FILES, re.findall(r"```python\n(.*?)```", text, re.DOTALL), strict=True):
        code = code.replace('{"partitions": 100}', '{"partitions": 100, "messages": 2000}')
        (tmp_path / name).write_text(code)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path / "own.py"
    for name in FILES:
        sys.modules.pop(name.removesuffix(".py"), None)
    registry._from_file.cache_clear()


@pytest.mark.gate
def test_the_example_on_the_page_runs(own: Path) -> None:
    run = subprocess.run(
        [sys.executable, str(own)], cwd=own.parent, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout=120,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert run.stdout.count("'layout': 'a file each'") == 2
    assert run.stdout.count("'reason': None") == 4


@pytest.mark.gate
def test_a_file_with_a_layout_takes_part_in_a_run(
    own: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = tmp_path / "results.jsonl"
    (tmp_path / "at").mkdir()
    arguments = ["run", "--tiny", "--only", "scan", "--rounds", "1", "--dir", str(tmp_path / "at"),
                 "--layout", f"{own}:FileEach", "--output", str(results)]  # fmt: skip
    assert main(arguments) == 0
    rows = read(results)
    assert {row["layout"] for row in rows if row["kind"] == "run"} == {
        "tubestore", "rocketcompat", "kafka-format", "lmdb"
    }  # fmt: skip
    (left_out,) = [row for row in rows if row["kind"] == "left_out"]
    assert (left_out["layout"], left_out["reason"]) == ("a file each", "it does not declare scan")
    assert "a file each" in capsys.readouterr().out
    assert list((tmp_path / "at").iterdir()) == []


@pytest.mark.gate
@pytest.mark.parametrize("by_path", [True, False])
def test_the_workload_on_the_page_takes_part_in_a_run_and_in_a_comparison(
    own: Path, by_path: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    layout, work = f"{own}:FileEach", f"{own.parent / 'ends.py'}:FIRST"
    if not by_path:
        monkeypatch.syspath_prepend(own.parent)
        layout, work = "own:FileEach", "ends:FIRST"
    (tmp_path / "at").mkdir()
    small = ["--tiny", "--rounds", "1", "--dir", str(tmp_path / "at")]
    assert main(["compare", layout, "tubestore", "--only", work, *small]) == 0
    printed, progress = capsys.readouterr()
    assert progress == "bench: [1/1] first 1 × 10\n"
    assert printed.startswith("first: read the first message of a partition")
    assert printed.count("messages/s, p99") == 2
    path = tmp_path / "results.jsonl"
    assert main(["run", "--only", work, "--layout", layout, *small, "--output", str(path)]) == 0
    rows = read(path)
    assert [row["label"] for row in rows if row["kind"] == "block"] == [
        "first 1 × 1", "first 1 × 10", "first 100 × 10"
    ]  # fmt: skip
    measured = [row["layout"] for row in rows if row["kind"] == "run"]
    assert measured == ["tubestore", "rocketcompat", "kafka-format", "lmdb", "a file each"] * 3
    assert main(["report", str(path), "--summary"]) == 0


def test_a_workload_is_added_to_the_table_once_and_with_a_name_of_its_own(own: Path) -> None:
    ends = f"{own.parent / 'ends.py'}:FIRST"
    asked = parser().parse_args(["run", "--only", "scan", "--work", ends, "--only", ends])
    labels = [block.label for block in _chosen(asked, QUICK)]
    assert labels == ["scan 1 × 1", "first 1 × 1", "first 1 × 10", "first 100 × 10"]
    everything = parser().parse_args(["run", "--work", ends])
    assert len(_chosen(everything, QUICK)) == len(QUICK) + 3
    text = "from bench.workloads.works import *\nMINE = Work('scan', '', WORKS[0].way, 1, 1)\n"
    (own.parent / "taken_name.py").write_text(text)
    taken = f"{own.parent / 'taken_name.py'}:MINE"
    with pytest.raises(Unavailable, match="there is a workload 'scan': give yours another name"):
        _chosen(parser().parse_args(["run", "--work", taken]), QUICK)


@pytest.mark.gate
def test_the_structure_on_the_page_takes_part_and_counts(own: Path, tmp_path: Path) -> None:
    layout = f"{own.parent / 'counted.py'}:Counted"
    plan = plan_with(PLANS["tiny"], rounds=1)
    works, sizes = ["append", "recover"], [{"messages": 500}]
    found = compare(["rocketcompat", layout], works, sizes, amount="tiny", plan=plan).to_pylist()
    assert [(row["layout"], row["reason"]) for row in found] == [
        ("rocketcompat", None), ("rocketcompat, counted", None)
    ] * 2  # fmt: skip
    make = registry.contender(layout)
    try:
        store = make(tmp_path / "store", topics=1, partitions=2, durability="page_cache")
        for number in range(30):
            store.append(0, number % 2, b"x")
        store.flush()
        store.close()
    finally:
        unregister("count")
    assert (tmp_path / "store/count/state").read_bytes().split()[1] == b"30"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["compare", "nothing"], "bench: 'nothing': name one of tubestore"),
        (["compare", "lmdb", "--only", "apend"], "bench: 'apend' is no workload"),
        (["compare", "lmdb", "--body", "big"], "bench: --body big: neither a number"),
        (["compare", "nothing.py:Mine"], "bench: nothing.py: there is no such file"),
        (["run", "--only", "apend"], "bench: 'apend' is no workload"),
        (["run", "--resume", "nothing.jsonl"], "bench: --resume nothing.jsonl: there is no such"),
    ],
)
def test_a_mistake_at_the_command_line_is_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(message)


def test_the_list_has_every_layout_workload_and_block(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    text = capsys.readouterr().out
    for word in ("kafka-format", "rocketmq-5.3.3", "by_time", "append 10,000 × 1", "run --quick:"):
        assert word in text


def test_options_without_a_command_are_those_of_the_bars(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--only", "no-such"]) == 2
    assert "no workload begins with no-such" in capsys.readouterr().err
    assert main(["bars", "--only", "no-such"]) == 2


def test_a_reader_that_closes_the_pipe_ends_the_list_quietly() -> None:
    reads, writes = os.pipe()
    os.close(reads)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "bench", "list"], cwd=ROOT, stdout=writes,
            stderr=subprocess.PIPE, text=True, check=False, timeout=60,
        )  # fmt: skip
    finally:
        os.close(writes)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["compare", "lmdb", "lmdb"], "two layouts are named 'lmdb'"),
        (["compare", "lmdb", "--only", "scan", "--only", "scan"], "two workloads are named 'scan'"),
        (["compare", "lmdb", "--partitions", "9000", "--messages", "20"], "20 messages do not"),
        (["compare", "lmdb", "--messages", "-5"], "messages: -5 is not a whole number"),
        (["compare", "lmdb", "--dir", "/proc"], "bench: "),
        (["compare", "lmdb", "--dir", "/no-such"], "/no-such: there is no such directory"),
        (["run", "--again", "append 1 x 1"], "--again is for blocks of the table in the file of"),
        (["run", "--again", "append 2 x 2", "--resume", "a.jsonl"], "append 2 x 2: no such block"),
        (["compare", "lmdb", "--output", "/nowhere/x.csv"], "/nowhere/x.csv: No such file"),
        (["compare", "lmdb", "--output", "x.txt"], "x.txt: name the table .csv or .parquet"),
        (["run", "--tiny", "--output", "x.parquet"], "the results of a run are JSON Lines"),
        (["run", "--resume", "a.jsonl", "--output", "b.jsonl"], "--output is for a new one"),
        (["compare", "tests.bench.own_layouts:NamedAsAPath"], "cannot be that of its directory"),
        (["compare", "tests.bench.raises_at_import:X"], "ZeroDivisionError"),
    ],
)
def test_a_mistake_is_one_line_before_anything_is_measured(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    found = capsys.readouterr()
    assert (found.out, found.err.count("\n")) == ("", 1)
    assert message in found.err


def test_a_run_does_not_replace_the_results_of_another(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "results.jsonl"
    path.write_text("an hour of work\n")
    assert main(["run", "--tiny", "--output", str(path)]) == 2
    assert capsys.readouterr().err.endswith("is there already: --resume goes on with it, or name "
                                            "another\n")  # fmt: skip
    assert path.read_text() == "an hour of work\n"


def test_a_run_that_was_killed_leaves_files_that_the_next_one_removes(tmp_path: Path) -> None:
    """Its lock is gone with it: no directory of a run that goes on, nor another one, is removed."""
    stranger = tmp_path / "tubestore-bench-of-another"
    stranger.mkdir()
    first = place_for(tmp_path, "tiny")
    code = "import sys; from pathlib import Path; from bench.run import place_for\n"
    code += "print(place_for(Path(sys.argv[1]), 'tiny')); sys.stdout.flush()\n"
    code += "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, capture_output=True, text=True,
        check=False, timeout=60,
    )  # fmt: skip
    killed = Path(done.stdout.strip())
    assert killed.is_dir()
    second = place_for(tmp_path, "tiny")
    assert sorted(tmp_path.iterdir()) == sorted([stranger, first, second])


def test_no_round_is_no_run(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["compare", "lmdb", "--rounds", "0"])
    assert "'0' is not a positive whole number" in capsys.readouterr().err
