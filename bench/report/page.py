"""The report of a run: one HTML page that needs no network."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence

from bench.report.charts import Curves, Figure, figures
from bench.report.figures import drawn, legend
from bench.report.markdown import summary_rows
from bench.report.results import Cell, Report, about, absent, label, number, works_of

#: (head, column of a cell, scale, what it is).
_COLUMNS: tuple[tuple[str, str, float, str], ...] = (
    ("messages/s", "rate_median", 1, "median of the rounds; of an opening: openings a second"),
    ("min", "rate_min", 1, "the slowest round"),
    ("max", "rate_max", 1, "the fastest round"),
    ("p50 µs", "p50_us", 1, "half of the calls took less; a call of a batch takes a batch"),
    ("p99 µs", "p99_us", 1, "99 of 100 calls took less"),
    ("p99.9 µs", "p999_us", 1, "999 of 1,000 calls took less"),
    ("max µs", "max_us", 1, "the slowest call"),
    ("CPU µs", "cpu_us", 1, "processor time of all threads, of a message"),
    ("peak MB", "peak_mb", 1, "most memory of the process, the interpreter and maps included"),
    ("descriptors", "descriptors", 1, "open when the work was done"),
    ("files", "files", 1, "in the directory when the work was done"),
    ("MB on disk", "disk_bytes", 1e-6, "blocks that these files take"),
    ("written/taken", "amplification", 1,
     "bytes that the device wrote for each byte of a body, those of other programs included"),
    ("MB read", "device_read_bytes", 1e-6, "that the device read"),
    ("system calls", "calls_each", 1, "of a message, counted by strace in a run of its own"),
    ("rounds", "rounds", 1, "measured runs"),
)  # fmt: skip
_NO_CALLS = "Not measured: this work has no single calls."
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
    "A read returns 1,000 messages at most. Of many partitions each has fewer, so a call takes "
    "less time there, and p99 falls beside the rate.",
    "Peak memory includes the interpreter and its libraries, and files that are mapped.",
    "A median of rounds hides what happens seldom. p99.9 and the maximum are there for that.",
    "RocketMQ's driver puts a batch into one queue; all others spread its rows.",
)


def page(
    report: Report, curves: Curves | None = None, sections: Iterable[tuple[str, str]] = ()
) -> str:
    """Return the report as one HTML page; `sections` are further (title, HTML)."""
    shown = figures(report, curves)
    parts = [
        (one.title, figure(f"figure-{at}", one, report.layouts)) for at, one in enumerate(shown)
    ]
    if len(summary_rows(report)) > 1:
        parts.insert(1, ("In short", _summary(report)))
    parts.append(("How not to read it", f"<ul>{''.join(map(_item, _WARNINGS))}</ul>"))
    parts += sections
    parts.append(("All cells", _cells(report)))
    parts.append(("Not in these results", _absent(report)))
    parts.append(("Configured as", _settings(report)))
    body = [_machine(report), _contents([title for title, _ in parts])]
    body += [f'<h2 id="{_anchor(title)}">{html.escape(title)}</h2>{text}' for title, text in parts]
    return _PAGE.replace("{body}", "\n".join(body))


def figure(name: str, one: Figure, layouts: Sequence[str]) -> str:
    """Return panels, their legend and their caption."""
    shown = {series.layout for panel in one.panels for series in panel.series}
    panels = ""
    for panel in one.panels:
        inside = drawn(panel, layouts) if panel.series else f"<p>{_NO_CALLS}</p>"
        panels += f'<div class="panel"><h3>{html.escape(panel.title)}</h3>{inside}</div>'
    return (
        f'<figure id="{name}"><figcaption>{html.escape(one.caption)}</figcaption>'
        f"{legend(layouts, [layout for layout in layouts if layout in shown])}"
        f'<div class="panels">{panels}</div></figure>'
    )


def _anchor(title: str) -> str:
    return re.sub(r"\W+", "-", title.lower()).strip("-")


def _contents(titles: Sequence[str]) -> str:
    links = [f'<a href="#{_anchor(title)}">{html.escape(title)}</a>' for title in titles]
    return f"<nav>{' '.join(links)}</nav>"


def _marked(text: str) -> str:
    """Return text with what is between backquotes as code."""
    return re.sub("`([^`]*)`", r"<code>\1</code>", html.escape(text))


def _item(text: str) -> str:
    return f"<li>{_marked(text)}</li>"


def _machine(report: Report) -> str:
    """Return what was measured where; a long list is folded."""
    parts = []
    for line in map(html.escape, about(report)):
        first, colon, rest = line.partition(": ")
        folded = colon and line.startswith("The machine was not quiet") and len(rest) > 200
        if folded:
            count = f"{len(report.busy)} of {len(report.blocks)} blocks"
            summary = f"The machine was not quiet during {count}, marked ~ in the tables"
            line = f"<details><summary>{summary}</summary>{first}: {rest}</details>"
        parts.append(line if folded else f"<p>{line}</p>")
    return "".join(parts)


def _summary(report: Report) -> str:
    """Return the README's table."""
    head, *rows = [[_marked(value) for value in row] for row in summary_rows(report)]
    heads = "".join(f"<th>{value}</th>" for value in head)
    body = "".join(f"<tr>{''.join(f'<td>{value}</td>' for value in row)}</tr>" for row in rows)
    return (
        "<p>1,000 messages a second, where no other unit is named. –: tried, and left out; †: "
        "ended early; the reasons are in the tables of all cells.</p>"
        '<div class="wide whole"><table class="cells summary"><thead><tr>'
        f"{heads}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _settings(report: Report) -> str:
    pairs = (
        f"<dt>{html.escape(name)}</dt><dd>{html.escape(text)}</dd>"
        for name, text in report.head.get("settings", {}).items()
    )
    return f"<dl>{''.join(pairs)}</dl>"


def _absent(report: Report) -> str:
    """Return the blocks of the table without results, which another run may have."""
    found = absent(report)
    if not found:
        return "<p>Every block of the table of this version has been measured.</p>"
    return (
        f"<p>{len(found)} blocks of the table of this version (<code>python -m bench list</code>) "
        f"have no results, or not of every layout:</p><ul>{''.join(map(_item, found))}</ul>"
    )


def _cells(report: Report) -> str:
    """Return a table for each kind of work."""
    columns = "".join(
        f"<dt>{html.escape(head)}</dt><dd>{html.escape(what)}</dd>" for head, _, _, what in _COLUMNS
    )
    parts = [
        "<p>A column sorts by its head. A size is topics × partitions of each; bodies of 1 KiB, "
        "spread evenly, one thread, page_cache, where nothing else is named. ~: the machine was "
        "not quiet.</p>"
        f"<details><summary>What the columns are</summary><dl>{columns}</dl></details>"
    ]
    for name, question, cells in works_of(report):
        title = html.escape(question[0].upper() + question[1:])
        parts.append(f"<h3>{title} ({html.escape(name)})</h3>{_table(cells, report.busy)}")
    return "".join(parts)


def _table(cells: Sequence[Cell], busy: frozenset[str]) -> str:
    columns = [one for one in _COLUMNS if any(cell.get(one[1]) is not None for cell in cells)]
    rows = []
    for cell in cells:
        size = label(cell) + (" ~" if f"{cell['work']} {label(cell)}" in busy else "")
        if cell["reason"] and cell["rate_median"] is not None:
            size += f" (ended early: {cell['reason']})"
        first = f"<td>{html.escape(cell['layout'])}</td><td>{html.escape(size)}</td>"
        if cell["rate_median"] is None:
            reason = html.escape(cell["reason"] or "")
            rows.append(f'<tr>{first}<td class="why" colspan="{len(columns)}">{reason}</td></tr>')
            continue
        values = "".join(
            f'<td data-value="{-1 if cell.get(name) is None else cell[name]}">'
            f"{number(cell.get(name), scale)}</td>"
            for _, name, scale, _ in columns
        )
        rows.append(f"<tr>{first}{values}</tr>")
    heads = [("layout", ""), ("size", "topics × partitions"), *((c[0], c[3]) for c in columns)]
    head = "".join(
        f'<th><button title="{html.escape(what)}">{html.escape(name)}</button></th>'
        for name, what in heads
    )
    return (
        f'<div class="wide"><table class="cells"><thead><tr>{head}</tr></thead>'
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
nav { display: flex; flex-wrap: wrap; gap: .2rem 1rem; margin: 1rem 0 }
nav a { color: inherit }
h2 { margin-top: 2.5rem } h3 { font-size: 1rem; margin: 1.2rem 0 .3rem }
code { background: var(--soft); padding: 0 .2em; border-radius: .2em }
.wide { overflow-x: auto; max-height: 34rem; overflow-y: auto }
figure { margin: 1rem 0 } figcaption { max-width: 50rem }
.panels { display: grid; gap: 0 1.5rem;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)) }
svg { width: 100%; max-width: 36rem; height: auto; display: block }
svg text { fill: currentColor }
.legend { display: flex; flex-wrap: wrap; gap: .2rem .9rem; margin: .6rem 0; position: sticky;
  top: 0; background: var(--paper); padding: .3rem 0; z-index: 2; font-size: .85rem }
.key { font-weight: 400; white-space: nowrap } .key[aria-pressed=false] { opacity: .35 }
[data-layout].off { display: none }
@media (max-width: 40rem) { .legend { position: static } }
details { margin: .4rem 0 } summary { cursor: pointer }
details.cost { border-bottom: 1px solid var(--line) }
details.cost > summary { font-weight: 600; padding: .3rem 0 }
table { border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums }
th, td { padding: .2rem .6rem; border-bottom: 1px solid var(--line); text-align: right;
  white-space: nowrap }
th:nth-child(-n+2), td:nth-child(-n+2), td.why { text-align: left }
thead th { background: var(--soft); position: sticky; top: 0; z-index: 1 }
table.cells td:first-child, table.cells th:first-child { position: sticky; left: 0;
  background: var(--paper) }
table.cells th:first-child { background: var(--soft); z-index: 2 }
table.cells td:nth-child(2) { max-width: 22rem; white-space: normal; min-width: 8rem }
td.why { white-space: normal }
table.summary td:nth-child(2), table.summary th:nth-child(2) { text-align: right; min-width: 0 }
table.summary td:first-child { white-space: normal; min-width: min(15rem, 40vw) }
table.summary th, table.summary td { padding: .2rem .4rem }
.whole { max-height: none }
button { font: inherit; font-weight: 600; color: inherit; background: none; border: 0; padding: 0;
  cursor: pointer }
th[aria-sort] button::after { content: " ↓" }
th[aria-sort=ascending] button::after { content: " ↑" }
dt { font-weight: 600 } dd { margin: 0 0 .4rem 1rem }
</style></head><body>
<h1>Storage layouts, measured</h1>
{body}
<script>
"use strict";
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
      if ("value" in cell.dataset) return Number(cell.dataset.value);
      const number = parseFloat(cell.textContent.replace("× ", "").replaceAll(",", ""));
      return place < 1 || Number.isNaN(number) ? cell.textContent : number;
    };
    const order = (a, b) => { const x = value(a), y = value(b); return x < y ? -1 : x > y ? 1 : 0 };
    const rows = [...body.rows].sort((a, b) => up ? order(a, b) : order(b, a));
    body.append(...rows);
  });
}
for (const key of document.querySelectorAll(".key")) {
  key.addEventListener("click", () => {
    const shown = key.getAttribute("aria-pressed") !== "true";
    key.setAttribute("aria-pressed", shown);
    for (const one of key.closest("figure").querySelectorAll("[data-layout]"))
      if (one.dataset.layout === key.dataset.key) one.classList.toggle("off", !shown);
  });
}
document.body.dataset.ready = document.querySelectorAll("figure svg").length;
</script></body></html>
"""
