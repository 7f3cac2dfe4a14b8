"""The report of a run: one HTML page that needs no network."""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.comparison import size_of, table
from bench.layouts.capabilities import Unavailable
from bench.measure.laboratory import read
from bench.report.figures import Panel, Series, bars, lines
from bench.workloads.sizes import Size
from bench.workloads.works import BY_NAME

Cell = dict[str, Any]
#: Sizes that a figure leaves as they usually are.
_USUAL = {
    name: str(value)
    for name, value in Size().as_dict().items()
    if name not in ("topics", "partitions", "messages")
}
_PLACES = "partitions (topics × partitions)"
#: The first figure: throughput above, p99 below.
_FIRST = (
    ("Append one by one", "append"), ("Append batches of 1,000", "batch"),
    ("Read a partition", "read"), ("Scan", "scan"),
)  # fmt: skip
_COLUMNS: tuple[tuple[str, str, float], ...] = (
    ("messages/s", "rate_median", 1),
    ("min", "rate_min", 1),
    ("max", "rate_max", 1),
    ("p50 µs", "p50_us", 1),
    ("p99 µs", "p99_us", 1),
    ("p99.9 µs", "p999_us", 1),
    ("max µs", "max_us", 1),
    ("CPU µs", "cpu_us", 1),
    ("peak MB", "peak_mb", 1),
    ("descriptors", "descriptors", 1),
    ("files", "files", 1),
    ("MB on disk", "disk_bytes", 1e-6),
    ("written/taken", "amplification", 1),
    ("system calls", "calls_each", 1),
    ("rounds", "rounds", 1),
)
_WARNINGS = (
    "Rates of different runs, machines or file systems cannot be compared. Ratios inside one run "
    "can; the tables have the least and the most of the rounds.",
    "Shared memory leaves the disk out. Cells with fsync are on a disk; on a virtual one a sync "
    "costs what its host makes of it.",
    "Python and Java are not one machine: RocketMQ, Kafka and TubeMQ run in a warm virtual machine "
    "without the cost of a Python call. `kafka-format` is the layout of Kafka in Python: beside "
    "`tubestore` it compares layouts, `kafka-3.9` beside it compares languages.",
    "Levels differ: `rocketcompat-pool` and TubeMQ acknowledge from memory; lmdb, sqlite and "
    "rocksdict at page_cache have no sync; the raw files keep no index.",
    "Latencies are those of the caller, of a second run with a watch on each call; a call of a "
    "batch takes a batch. Nothing is scheduled: a slow call delays the next one.",
    "Peak memory includes the interpreter and its libraries, and files that are mapped.",
    "A median of rounds hides what happens seldom. p99.9 and the maximum are there for that.",
    "RocketMQ's driver puts a batch into one queue; all others spread its rows.",
)


@dataclass(frozen=True)
class Report:
    """A run's results, as tables and figures."""

    head: Mapping[str, Any]
    cells: Sequence[Cell]
    blocks: Sequence[Mapping[str, Any]]
    layouts: Sequence[str]


def load(path: Path) -> Report:
    """Read the results of `python -m bench run`."""
    rows = read(path)
    if rows[0]["kind"] != "laboratory":
        raise Unavailable(f"{path}: these are the results of bars; print them with --report")
    try:
        cells = table(rows).to_pylist()
        blocks = [{"disturbed": row["disturbed"], **row} for row in rows if row["kind"] == "block"]
    except (KeyError, TypeError, ValueError) as error:  # Arrow's errors are such, too
        raise Unavailable(f"{path}: a row of these results is damaged: {error!r}") from error
    if not any(cell["rate_median"] for cell in cells):
        raise Unavailable(f"{path}: no cell was measured")
    return Report(
        rows[0],
        cells,
        blocks,
        list(dict.fromkeys(cell["layout"] for cell in cells)),
    )


Curves = Callable[[str], Mapping[str, Sequence[tuple[float, float]]]]


def by_partitions(
    report: Report, work: str, column: str, scale: float = 1.0, curves: Curves | None = None
) -> list[Series]:
    """Return a column of the usual cells against the number of partitions, layout by layout."""
    found: dict[str, dict[int, tuple[float, float, float, float]]] = {}
    for cell in report.cells:
        if cell["work"] != work or cell[column] is None or not _is_usual(cell):
            continue
        value = cell[column] * scale
        low, high = value, value
        if column == "rate_median":
            low, high = cell["rate_min"] * scale, cell["rate_max"] * scale
        places = cell["topics"] * cell["partitions"]
        kept = found.setdefault(cell["layout"], {})
        # 10,000 × 1 and 1,000 × 10 are one place of the axis: the slower one counts.
        if places not in kept or (value < kept[places][1]) == (column == "rate_median"):
            kept[places] = (places, value, low, high)
    computed = curves(work) if curves else {}
    return [
        Series(layout, [points[n] for n in sorted(points)], computed.get(layout, ()))
        for layout, points in found.items()
    ]


def _is_usual(cell: Cell) -> bool:
    return all(str(cell.get(name, value)) == value for name, value in _USUAL.items())


def figures(report: Report, curves: Curves | None = None) -> list[tuple[str, str]]:
    """Return (caption, SVG): what people ask for first comes first."""
    found: list[tuple[str, str]] = []
    rates: list[Panel | None] = []
    tails: list[Panel | None] = []
    for title, work in _FIRST:
        if not (series := by_partitions(report, work, "rate_median", 1e-3, curves)):
            continue
        rates.append(Panel(title, "1,000 messages/s", series))
        late = by_partitions(report, work, "p99_us")
        tails.append(Panel(f"{title}, p99", "µs a call", late) if late else None)
    if rates:
        caption = (
            "Throughput, and the 99th percentile of a call, against the number of partitions. "
            "The band is the range of rounds."
        )
        if curves:
            caption += " Dotted lines are computed by the cost model, not measured."
        rows = [rates, tails] if any(tails) else [rates]
        found.append((caption, lines(rows, report.layouts, _PLACES)))
    held = [
        Panel(title, unit, series)
        for title, unit, column in (
            ("Peak memory while appending", "MB", "peak_mb"), ("Files", "files", "files"),
            ("Descriptors", "descriptors", "descriptors"),
        )
        if (series := by_partitions(report, "append", column))
    ]  # fmt: skip
    if held:
        found.append(("Memory, files and descriptors.", lines([held], report.layouts, _PLACES)))
    opened = [
        Panel(BY_NAME[work].question.capitalize(), "ms", series)
        for work in ("open", "recover")
        if (series := _seconds(report, work))
    ]
    if opened:
        found.append(("Until the first message is read.", bars(opened, report.layouts)))
    if not found:
        raise Unavailable("these results have no cell for a figure")
    return found


def _seconds(report: Report, work: str) -> list[Series]:
    return [
        Series(cell["layout"], [(1, cell["seconds"] * 1000, 0, 0)])
        for cell in report.cells
        if cell["work"] == work and cell["seconds"]
    ]


def _commits(report: Report) -> str:
    """Return which code was measured: a run may have gone on with a later one."""
    names = [block.get("commit") or report.head["commit"] or "–" for block in report.blocks]
    counts = Counter(names) or {report.head["commit"] or "–": 0}
    if len(counts) == 1:
        return f"Commit {next(iter(counts))}"
    return "Commits " + ", ".join(f"{name} ({count} blocks)" for name, count in counts.items())


def works_of(report: Report) -> list[tuple[str, str, list[Cell]]]:
    """Return (name, question, cells) of each kind of work."""
    found: dict[str, list[Cell]] = {}
    for cell in report.cells:
        found.setdefault(cell["work"], []).append(cell)
    return [
        (name, BY_NAME[name].question if name in BY_NAME else name, cells)
        for name, cells in found.items()
    ]


def label(cell: Cell) -> str:
    """Return the sizes of a cell for people."""
    body = cell["body"]
    names = Size().as_dict().keys() - {"messages", "body"}
    sizes = {name: cell[name] for name in names if name in cell}
    return size_of({**sizes, "body": body if body == "mix" else int(body)}).label


def number(value: float | None, scale: float = 1) -> str:
    """Return three digits or whole numbers; a dash for what was not measured."""
    if value is None:
        return "–"
    scaled = value * scale
    return f"{scaled:,.0f}" if scaled >= 100 else f"{scaled:.3g}"


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
    busy = [block["label"] for block in report.blocks if block["disturbed"]]
    if busy:
        found.append(f"The machine was not quiet during: {'; '.join(busy)}.")
    return found


def page(
    report: Report, curves: Curves | None = None, sections: Iterable[tuple[str, str]] = ()
) -> str:
    """Return the report as one HTML page; `sections` are further (title, HTML)."""
    parts = [f"<p>{html.escape(line)}</p>" for line in about(report)]
    for at, (caption, svg) in enumerate(figures(report, curves)):
        parts.append(
            f'<figure id="figure-{at}"><div class="wide">{svg}</div>'
            f"<figcaption>{html.escape(caption)}</figcaption></figure>"
        )
    parts.append("<h2>How not to read it</h2><ul>")
    parts += [f"<li>{html.escape(line)}</li>" for line in _WARNINGS]
    parts.append("</ul><h2>Configured as</h2><dl>")
    for name, text in report.head.get("settings", {}).items():
        parts.append(f"<dt>{html.escape(name)}</dt><dd>{html.escape(text)}</dd>")
    parts.append("</dl>")
    parts += [f"<h2>{html.escape(title)}</h2>{body}" for title, body in sections]
    parts.append("<h2>All cells</h2><p>A column sorts by its head.</p>")
    for name, question, cells in works_of(report):
        parts.append(f"<h3>{html.escape(question[0].upper() + question[1:])} ({name})</h3>")
        parts.append(_table(cells))
    return _PAGE.replace("{body}", "\n".join(parts))


def _table(cells: Sequence[Cell]) -> str:
    heads = ["layout", "size", *(head for head, _, _ in _COLUMNS)]
    rows = []
    for cell in cells:
        size = label(cell)
        if cell["reason"] and cell["rate_median"] is not None:
            size += f" (ended early: {cell['reason']})"
        first = f"<td>{html.escape(cell['layout'])}</td><td>{html.escape(size)}</td>"
        if cell["rate_median"] is None:
            reason = html.escape(cell["reason"] or "")
            rows.append(f'<tr>{first}<td class="why" colspan="{len(_COLUMNS)}">{reason}</td></tr>')
            continue
        values = "".join(
            f'<td data-value="{cell[name] if cell[name] is not None else -1}">'
            f"{number(cell[name], scale)}</td>"
            for _, name, scale in _COLUMNS
        )
        rows.append(f"<tr>{first}{values}</tr>")
    head = "".join(f"<th><button>{html.escape(one)}</button></th>" for one in heads)
    return (
        f'<div class="wide"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Storage layouts, measured</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
:root { color-scheme: light dark; --line: #c8cdd4; --paper: #fff; --ink: #16191d; --soft: #f3f5f7 }
@media (prefers-color-scheme: dark) {
  :root { --line: #464c55; --paper: #14171a; --ink: #e6e9ec; --soft: #1e2226 }
}
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 72rem; margin: 0 auto; padding: 1rem }
.wide { overflow-x: auto } figure { margin: 2rem 0 }
svg { width: 100%; min-width: 40rem; height: auto; display: block }
svg text { fill: currentColor }
table { border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums }
th, td { padding: .2rem .6rem; border-bottom: 1px solid var(--line); text-align: right;
  white-space: nowrap }
th:nth-child(-n+2), td:nth-child(-n+2), td.why { text-align: left }
thead { background: var(--soft) }
button { font: inherit; font-weight: 600; color: inherit; background: none; border: 0; padding: 0;
  cursor: pointer }
th[aria-sort] button::after { content: " ↓" }
th[aria-sort=ascending] button::after { content: " ↑" }
dt { font-weight: 600 } dd { margin: 0 0 .4rem 1rem }
</style></head><body>
<h1>Storage layouts, measured</h1>
{body}
<script>
window.addEventListener("error", event => {
  document.body.dataset.errors = (document.body.dataset.errors || "") + event.message;
});
for (const button of document.querySelectorAll("th button")) {
  button.addEventListener("click", () => {
    const head = button.parentElement, place = head.cellIndex;
    const up = head.getAttribute("aria-sort") === "descending";
    for (const other of head.parentElement.cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    const body = head.closest("table").tBodies[0];
    const value = row => {
      const cell = row.cells[place];
      if (!cell || cell.colSpan > 1) return place < 2 ? "" : -2;
      return "value" in cell.dataset ? Number(cell.dataset.value) : cell.textContent;
    };
    const order = (a, b) => { const x = value(a), y = value(b); return x < y ? -1 : x > y ? 1 : 0 };
    const rows = [...body.rows].sort((a, b) => up ? order(a, b) : order(b, a));
    body.append(...rows);
  });
}
document.body.dataset.ready = document.querySelectorAll("figure svg").length;
</script></body></html>
"""
