"""Which figures a report has: throughput and p99 against partitions come first."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from bench.report.figures import Panel, Series
from bench.report.results import Cell, Report, is_usual
from bench.workloads.works import BY_NAME

#: Computed points of a kind of work, by layout.
Curves = Callable[[str], Mapping[str, Sequence[tuple[float, float]]]]
_FIRST = (
    ("Append one by one", "append"), ("Read a partition", "read"), ("Scan", "scan"),
    ("Append batches of 1,000", "batch"),
)  # fmt: skip


@dataclass(frozen=True)
class Figure:
    """Panels with one caption."""

    title: str
    caption: str
    panels: Sequence[Panel]


def by_partitions(
    report: Report, work: str, column: str, scale: float = 1.0, curves: Curves | None = None
) -> list[Series]:
    """Return a column of the usual cells against the number of partitions, layout by layout."""
    found: dict[str, dict[int, tuple[float, float, float, float]]] = {}
    for cell in report.cells:
        if cell["work"] != work or not cell[column] or not is_usual(cell):
            continue
        value, low, high = _values(cell, column, scale)
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


def _values(cell: Cell, column: str, scale: float) -> tuple[float, float, float]:
    """Return a value of a cell and its range, where rounds have one."""
    value = cell[column] * scale
    if column == "rate_median":
        return value, cell["rate_min"] * scale, cell["rate_max"] * scale
    if column == "seconds":
        return value, scale / cell["rate_max"], scale / cell["rate_min"]
    return value, value, value


def figures(report: Report, curves: Curves | None = None) -> list[Figure]:
    """Return the figures of a report; of a caller's workloads alone there is none."""
    return [one for one in (_first(report, curves), _held(report), _opened(report)) if one.panels]


def _first(report: Report, curves: Curves | None) -> Figure:
    panels = []
    for title, work in _FIRST:
        if series := by_partitions(report, work, "rate_median", curves=curves):
            late = by_partitions(report, work, "p99_us")
            panels.append(Panel(title, "messages/s", series))
            panels.append(Panel(f"{title}, p99", "µs a call", late))
    caption = (
        "Throughput (more is better), and the 99th percentile of a call (less is better), against "
        "the number of partitions, bodies of 1 KiB. Both axes are logarithmic. The band is the "
        "range of rounds. A mark without a line was measured at one number of partitions. 10,000 "
        "partitions are 1,000 topics × 10 or 10,000 × 1, whichever is worse. RocketMQ's and "
        "TubeMQ's drivers watch no single calls."
    )
    if curves:
        caption += " Dotted lines are computed by the cost model, not measured."
    return Figure("Throughput and p99 against the number of partitions", caption, panels)


def _held(report: Report) -> Figure:
    panels = [
        Panel(title, unit, series)
        for title, unit, column in (
            ("Peak memory while appending", "MB", "peak_mb"), ("Files", "files", "files"),
            ("Descriptors", "descriptors", "descriptors"),
        )
        if (series := by_partitions(report, "append", column))
    ]  # fmt: skip
    caption = (
        "Of the process that appends one by one. Memory includes the interpreter, some 50 MB, and "
        "files that are mapped. Descriptors of virtual machines are not counted."
    )
    return Figure("Memory, files and descriptors", caption, panels)


def _opened(report: Report) -> Figure:
    panels = []
    for work in ("open", "recover"):
        series = by_partitions(report, work, "seconds", 1e3)
        places = {point[0] for one in series for point in one.points}
        title = BY_NAME[work].question.capitalize()
        if len(places) == 1:
            title += f", {places.pop():,.0f} partitions"
            panels.append(Panel(title, "ms", series, bars=True))
        elif series:
            panels.append(Panel(title, "ms", series))
    caption = (
        "From the call that opens a store until its first message is read (less is better). "
        "Layouts without it have not been measured at this."
    )
    return Figure("Opening", caption, panels)
