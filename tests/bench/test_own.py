"""The page about layouts of one's own: its example runs, and the command takes it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bench.commands import main
from bench.measure.laboratory import read

pytest.importorskip("hdrh", reason="hdrhistogram is not installed")

ROOT = Path(__file__).parents[2]


@pytest.fixture
def own(tmp_path: Path) -> Path:
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "bench/OWN.md").read_text(), re.DOTALL)
    path = tmp_path / "own.py"
    path.write_text(code.replace('{"partitions": 100}', '{"partitions": 100, "messages": 2000}'))
    return path


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
        (["compare", "lmdb", "--output", "/nowhere/x.csv"], "/nowhere/x.csv: No such file"),
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


def test_no_round_is_no_run(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["compare", "lmdb", "--rounds", "0"])
    assert "'0' is not a positive whole number" in capsys.readouterr().err
