"""The results of a run, read and checked: cells, blocks, and what the table has and they lack."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.comparison import size_of, table
from bench.layouts.capabilities import Unavailable
from bench.layouts.registry import REAL
from bench.measure.laboratory import name_of, read
from bench.workloads.sizes import Size
from bench.workloads.works import BY_NAME, DEFAULT, QUICK, Block

Cell = dict[str, Any]
#: Sizes that a figure leaves as they usually are.
_USUAL = {
    name: str(value)
    for name, value in Size().as_dict().items()
    if name not in ("topics", "partitions", "messages")
}
#: A cell that a run has without these was written by something else, or cut.
_CELL = (
    "work", "layout", "topics", "partitions", "body", "skew", "threads", "durability", "batch",
    "file_system",
)  # fmt: skip
_NEEDED = {
    "run": (*_CELL, "messages", "stored", "rate", "seconds", "round"),
    "left_out": (*_CELL, "reason"),
    "block": ("label", "disturbed"),
}
_AGAIN = "restore the file, or take the lines of that block out and go on with run --resume"


@dataclass(frozen=True)
class Report:
    """A run's results, as tables and figures."""

    head: Mapping[str, Any]
    cells: Sequence[Cell]
    blocks: Sequence[Mapping[str, Any]]
    layouts: Sequence[str]

    @property
    def busy(self) -> frozenset[str]:
        """The labels of the blocks that other work on the machine disturbed."""
        return frozenset(block["label"] for block in self.blocks if block["disturbed"])


def load(path: Path) -> Report:
    """Read the results of `python -m bench run`; Unavailable, with the place, if damaged."""
    _check_text(path)
    rows = read(path)
    if rows[0]["kind"] != "laboratory":
        raise Unavailable(f"{path}: these are the results of bars; print them with --report")
    for number, row in enumerate(rows, 1):
        if lacking := [name for name in _NEEDED.get(row["kind"], ()) if name not in row]:
            raise Unavailable(f"{path}, line {number}: damaged: this row has no {lacking[0]!r}")
    _check_blocks(path, rows)
    try:
        cells = table(rows).to_pylist()
    except (KeyError, TypeError, ValueError) as error:  # Arrow's errors are such, too
        raise Unavailable(f"{path}: a row of these results is damaged: {error!r}") from error
    if not any(cell["rate_median"] for cell in cells):
        raise Unavailable(f"{path}: no cell was measured")
    for cell in cells:
        if cell["layout"] in REAL:
            cell["descriptors"] = None  # those of the process that drives the virtual machine
    return Report(
        rows[0],
        cells,
        [row for row in rows if row["kind"] == "block"],
        list(dict.fromkeys(cell["layout"] for cell in cells)),
    )


def _check_text(path: Path) -> None:
    """Refuse a file that has no lines of JSON, before its bytes are decoded."""
    try:
        with path.open("rb") as file:
            head = file.read(4096)
    except OSError as error:
        raise Unavailable(f"{path}: {error.strerror}") from error
    if not head:
        raise Unavailable(f"{path}: the file is empty; a run writes lines of JSON")
    if b"\0" in head or head[:4] == b"PAR1":
        raise Unavailable(f"{path}: not text; name the JSON lines that `python -m bench run` wrote")


def _check_blocks(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Refuse blocks with a line missing, of runs that did not yet count their lines."""
    rounds: dict[str, list[int]] = {}
    found: set[str] = set()
    for number, row in enumerate(rows, 1):
        if row["kind"] in ("run", "left_out"):
            found.add(row["layout"])
        if row["kind"] == "run":
            rounds.setdefault(row["layout"], []).append(row["round"])
        if row["kind"] != "block":
            continue
        where = f"{path}, the block that ends at line {number} ({row['label']})"
        for layout in row.get("contenders", ()):
            if layout not in found:
                raise Unavailable(f"{where}: the lines of {layout} are missing; {_AGAIN}")
        for layout, numbers in rounds.items() if "contenders" in row else ():
            gap = next((n for n in range(max(numbers)) if n not in numbers), None)
            if gap is not None:
                raise Unavailable(f"{where}: round {gap} of {layout} is missing; {_AGAIN}")
        rounds, found = {}, set()


def about(report: Report) -> list[str]:
    """Return lines about the machine and the run."""
    head = report.head
    versions = ", ".join(f"{name} {version}" for name, version in head["versions"].items())
    found = [
        f"{head['processor']}, {head['cores']} cores, {head['memory_gb']} GB, {head['system']}, "
        f"Python {head['python']}, {versions}.",
        f"{_commits(report)}, {head['time']}, amount: {head['scale']}; file systems: "
        f"{', '.join(sorted({cell['file_system'] for cell in report.cells}))}.",
    ]
    if report.busy:
        found.append(f"The machine was not quiet during: {'; '.join(sorted(report.busy))}.")
    return found


def _commits(report: Report) -> str:
    """Return which code was measured: a run may have gone on with a later one."""
    names = [block.get("commit") or report.head["commit"] or "–" for block in report.blocks]
    counts = Counter(names) or {report.head["commit"] or "–": 0}
    if len(counts) == 1:
        return f"Commit {next(iter(counts))}"
    return "Commits " + ", ".join(f"{name} ({count} blocks)" for name, count in counts.items())


def is_usual(cell: Cell) -> bool:
    """True if nothing but topics and partitions is other than usual."""
    return all(str(cell.get(name, value)) == value for name, value in _USUAL.items())


def label(cell: Cell) -> str:
    """Return the sizes of a cell for people."""
    body = cell["body"]
    names = Size().as_dict().keys() - {"messages", "body"}
    sizes = {name: cell[name] for name in names if cell.get(name) is not None}
    return size_of({**sizes, "body": body if body == "mix" else int(body)}).label


def works_of(report: Report) -> list[tuple[str, str, list[Cell]]]:
    """Return (name, question, cells) of each kind of work."""
    found: dict[str, list[Cell]] = {}
    for cell in report.cells:
        found.setdefault(cell["work"], []).append(cell)
    return [
        (name, BY_NAME[name].question if name in BY_NAME else name, cells)
        for name, cells in found.items()
    ]


def absent(report: Report) -> list[str]:
    """Return the blocks of the table that a run lacks, and what its blocks lack of contenders."""
    blocks: Iterable[Block] = DEFAULT if report.head.get("scale") == "full" else QUICK
    known: dict[str, set[str]] = {}
    for cell in report.cells:
        known.setdefault(f"{cell['work']} {label(cell)}", set()).add(cell["layout"])
    found = []
    for block in blocks:
        names = [name_of(which) for which in block.contenders]
        if block.label not in known:
            found.append(f"{block.label}: all of {', '.join(names)}")
        elif missing := [name for name in names if name not in known[block.label]]:
            found.append(f"{block.label}: {', '.join(missing)}")
    return found


def number(value: float | None, scale: float = 1) -> str:
    """Return three digits or whole numbers; a dash for what was not measured."""
    if value is None:
        return "–"
    scaled = value * scale
    return f"{scaled:,.0f}" if scaled >= 100 else f"{scaled:.3g}"
