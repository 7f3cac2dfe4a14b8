"""Results are read as they were written, or refused in one sentence that names the place."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from bench.commands import main
from bench.layouts.capabilities import Unavailable
from bench.report.results import absent, is_usual, label, load
from bench.run import RESULTS
from bench.workloads.works import DEFAULT, QUICK
from tests.bench.report.cells import rows, write

RECORDED = RESULTS / "layouts.jsonl"


def _block(*, rounds: int = 3) -> list[dict[str, Any]]:
    """Return a head and one block as a run writes it: two layouts, some rounds of each."""
    head, *cells = rows()
    runs = [row for row in cells if row["kind"] == "run" and row["work"] == "append"]
    kept = [
        row
        for row in runs
        if (row["topics"], row["partitions"], row["body"], row["durability"])
        == (1, 1, 1024, "page_cache")
        and row["layout"] in ("tubestore", "lmdb")
        and row["round"] < rounds
    ]
    end = {
        "kind": "block", "label": "append 1 × 1", "disturbed": [], "commit": "abc",
        "contenders": ["lmdb", "tubestore"],
    }  # fmt: skip
    return [head, *kept, end]


def _write(path: Path, lines: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def test_a_block_that_is_complete_is_read(tmp_path: Path) -> None:
    found = load(_write(tmp_path / "run.jsonl", _block()))
    assert [(cell["layout"], cell["rounds"]) for cell in found.cells] == [
        ("tubestore", 3), ("lmdb", 3),
    ]  # fmt: skip


@pytest.mark.parametrize("cut", [1, 2, 4, 5])
def test_a_line_that_is_missing_between_two_others_of_a_block_is_named(
    cut: int, tmp_path: Path
) -> None:
    lines = _block()
    gone = lines.pop(cut)
    with pytest.raises(Unavailable) as raised:
        load(_write(tmp_path / "run.jsonl", lines))
    text = str(raised.value)
    assert f"round {gone['round']} of {gone['layout']} is missing" in text
    assert "the block that ends at line 7 (append 1 × 1)" in text
    assert "--resume" in text


def test_a_contender_without_any_line_is_named(tmp_path: Path) -> None:
    lines = [line for line in _block() if line.get("layout") != "lmdb"]
    with pytest.raises(Unavailable, match="the lines of lmdb are missing"):
        load(_write(tmp_path / "run.jsonl", lines))


def test_fewer_rounds_of_a_slow_contender_are_no_damage(tmp_path: Path) -> None:
    lines = [line for line in _block() if not (line.get("layout") == "lmdb" and line["round"] == 2)]
    assert [cell["rounds"] for cell in load(_write(tmp_path / "run.jsonl", lines)).cells] == [3, 2]


def test_a_row_without_a_column_is_named_by_its_line(tmp_path: Path) -> None:
    lines = _block()
    del lines[3]["rate"]
    with pytest.raises(Unavailable, match=r"line 4: damaged: this row has no 'rate'"):
        load(_write(tmp_path / "run.jsonl", lines))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "the file is empty"),
        (b"PAR1\x15\x04\x15\x10PAR1", "not text; name the JSON lines"),
        (bytes(range(256)), "not text; name the JSON lines"),
        (b"\xff\xfe\xfd" * 10, "damaged"),
        (b"{}\n", "these are no results"),
        (b"[1]\n", "these are no results"),
        (b'{"kind": "machine"}\n', "these are the results of bars"),
        (b'{"kind": "laboratory"}\n', "no cell was measured"),
        (b'{"kind": "laboratory"}\n{"kind": "run"}\n{"kind": "block"}\n', "line 2: damaged"),
    ],
)
@pytest.mark.parametrize("command", [["report"], ["advise", "--partitions", "10", "--results"]])
def test_what_is_no_results_is_refused_in_one_sentence(
    command: list[str], content: bytes, reason: str, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    path = tmp_path / "run.parquet"
    path.write_bytes(content)
    assert main([*command, str(path)]) == 2
    shown = capsys.readouterr().err
    assert re.search(rf"bench: .*{re.escape(reason)}", shown), shown
    assert shown.count("\n") == 1
    assert path.name in shown


def test_a_directory_and_a_missing_file_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in (tmp_path, tmp_path / "nothing.jsonl"):
        assert main(["report", str(path)]) == 2
        assert capsys.readouterr().err.startswith(f"bench: {path}: ")


def test_descriptors_of_a_virtual_machine_are_not_those_of_its_driver() -> None:
    cells = [cell for cell in load(RECORDED).cells if cell["rate_median"]]
    assert {cell["descriptors"] for cell in cells if cell["layout"] == "kafka-3.9"} == {None}
    assert all(cell["descriptors"] for cell in cells if cell["layout"] == "lmdb")


def test_the_blocks_that_results_lack_are_listed_with_their_contenders(tmp_path: Path) -> None:
    found = absent(load(_write(tmp_path / "run.jsonl", _block())))
    assert len(found) == len(DEFAULT), "of one block contenders, all others whole"
    (partly,) = [line for line in found if "all of" not in line]
    assert partly.startswith("append 1 × 1: rocketcompat, kafka-format")
    assert "tubestore" not in partly
    labels = {f"{cell['work']} {label(cell)}" for cell in load(RECORDED).cells}
    lacking = {line.split(":")[0] for line in absent(load(RECORDED)) if "all of" in line}
    assert lacking == {block.label for block in DEFAULT} - labels


def test_a_run_of_a_workload_of_the_caller_alone_has_a_report_without_figures(
    tmp_path: Path,
) -> None:
    lines = [line | {"work": "first"} if "work" in line else line for line in _block()]
    path = _write(tmp_path / "run.jsonl", lines)
    assert main(["report", str(path)]) == 0
    text = path.with_suffix(".html").read_text()
    assert "<svg" not in text
    assert "<h3>First (first)</h3>" in text
    assert "| tubestore | 1 × 1 |" in path.with_suffix(".md").read_text()


def test_the_blocks_of_a_quick_run_are_those_of_its_own_table(tmp_path: Path) -> None:
    lines = _block()
    lines[0] = lines[0] | {"scale": "quick"}
    found = absent(load(_write(tmp_path / "run.jsonl", lines)))
    assert len(found) == len(QUICK)
    assert not any(line.startswith("idle") for line in found)


def test_the_report_and_its_markdown_list_what_was_not_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    path = write(tmp_path / "run.jsonl")
    assert main(["report", str(path)]) == 0
    count = len(absent(load(path)))
    assert f"bench: {count} blocks of the table are not in {path}" in capsys.readouterr().err
    for suffix in (".html", ".md"):
        text = path.with_suffix(suffix).read_text()
        assert "Not in these results" in text
        assert "idle 10,000 × 1: all of tubestore" in text


@pytest.mark.parametrize(
    ("changed", "usual"),
    [({}, True), ({"topics": 7}, True), ({"disk": True}, False), ({"body": "100"}, False),
     ({"threads": 4}, False), ({"skew": "zipf"}, False)],
)  # fmt: skip
def test_a_cell_is_usual_unless_a_size_beside_partitions_is_another(
    changed: dict[str, Any], usual: bool, tmp_path: Path
) -> None:
    cell = load(_write(tmp_path / "run.jsonl", _block())).cells[0]
    assert is_usual(cell | changed) is usual
