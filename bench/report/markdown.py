"""The report as Markdown: every cell, or the table of the README."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from bench.report.results import Cell, Report, about, absent, label, number, works_of
from bench.workloads.works import BY_NAME


class _Row(NamedTuple):
    """A row of the README's table: what was done, the cells with it, what is shown of them."""

    text: str
    work: str
    size: str
    column: str = "rate_median"
    scale: float = 1e-3


_ROWS = (
    _Row("append one by one, 10 partitions", "append", "1 × 10"),
    _Row("… 1,000 topics × 10", "append", "1,000 × 10"),
    _Row("… 10,000 topics", "append", "10,000 × 1"),
    _Row("… 10 partitions, `fsync`", "append", "1 × 10, fsync"),
    _Row("… the same, 16 threads", "append", "1 × 10, 16 threads, fsync"),
    _Row("append batches of 1,000, 10 partitions", "batch", "1 × 10"),
    _Row("… 1,000 topics × 10 in each", "batch", "1,000 × 10"),
    _Row("read partitions, 1,000 a call, 10 of them", "read", "1 × 10"),
    _Row("… 10,000 of them", "read", "1,000 × 10"),
    _Row("… 100,000 of them", "read", "100 × 1,000"),
    _Row("read everything, 1 partition", "scan", "1 × 1"),
    _Row("… 10,000 partitions", "scan", "1,000 × 10"),
    _Row("read what is appended meanwhile", "tail", "1 × 10"),
    _Row("find the message of a key", "by-key", "1 × 10"),
    _Row("find the first message at a time", "by-time", "1 × 10"),
    _Row("open 1,000 topics × 10, ms", "open", "1,000 × 10", "seconds", 1e3),
    _Row("… after a kill, ms", "recover", "1,000 × 10", "seconds", 1e3),
    _Row("10,000 topics: peak memory, MB", "idle", "10,000 × 1", "peak_mb", 1),
    _Row("… files", "idle", "10,000 × 1", "files", 1),
)
#: Those that are left out have few cells of the table.
_LAYOUTS = (
    "tubestore", "rocketcompat", "kafka-format", "lmdb", "sqlite", "rocksdict", "kafka-3.9",
    "rocketmq-4.9.8", "rocketmq-5.3.3", "tubemq",
)  # fmt: skip


def summary(report: Report) -> str:
    """Return the README's table: a row a job, a column a layout, 1,000 messages a second."""
    head, *rows = summary_rows(report)
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(map(_line, lines)) + "\n"


def summary_rows(report: Report) -> list[list[str]]:
    """Return the heads and the rows of that table; jobs without a cell are left out."""
    found = {(cell["work"], label(cell), cell["layout"]): cell for cell in report.cells}
    layouts = [name for name in _LAYOUTS if name in report.layouts]
    rows = [["1,000 messages/s", *layouts]]
    for row in _ROWS:
        cells = [found.get((row.work, row.size, layout)) for layout in layouts]
        if any(cells):
            rows.append([row.text, *(_value(cell, row) for cell in cells)])
    return rows


def _value(cell: Cell | None, row: _Row) -> str:
    """Return a cell's number, marked if an error or a limit ended its rounds early."""
    if cell is None:
        return ""
    value = cell[row.column]
    return number(value, row.scale) + (" †" if cell["reason"] and value is not None else "")


def markdown(report: Report) -> str:
    """Return a table of all cells for each kind of work."""
    out = [*about(report), ""]
    for _, question, cells in works_of(report):
        out += [f"### {question[0].upper()}{question[1:]} (`{cells[0]['work']}`)", ""]
        unit = "ms" if _opens(cells[0]) else "messages/s"
        out += [_line(["layout", "size", unit, "p99 µs", "peak MB", "files", "rounds"])]
        out += [_line(["---", "---", *["---:"] * 5]), *map(_of_cell, cells), ""]
    if missing := absent(report):
        out += ["### Not in these results", "", *(f"- {line}" for line in missing), ""]
    return "\n".join(out)


def _of_cell(cell: Cell) -> str:
    if cell["rate_median"] is None:
        return _line([cell["layout"], label(cell), cell["reason"], "", "", "", "0"])
    rate = cell["rate_median"]
    columns = ("p99_us", "peak_mb", "files")
    values = [number(1e3 / rate if _opens(cell) else rate), *(number(cell[one]) for one in columns)]
    rounds = f"{cell['rounds']} ({cell['reason']})" if cell["reason"] else str(cell["rounds"])
    return _line([cell["layout"], label(cell), *values, rounds])


def _opens(cell: Cell) -> bool:
    return cell["work"] in BY_NAME and BY_NAME[cell["work"]].opens


def _line(values: Sequence[str]) -> str:
    return f"| {' | '.join(values)} |"
