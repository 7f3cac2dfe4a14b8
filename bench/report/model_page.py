"""The cost model's part of a report: how each layout's costs follow from its format."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bench.report.charts import Figure
from bench.report.costs import MESSAGES, OPENINGS, STEADY, Question
from bench.report.figures import Panel, Series
from bench.report.formats import FORMATS
from bench.report.model import FEWEST_CELLS, WORKS, Fit, Model
from bench.report.page import figure

Cell = Mapping[str, Any]
#: Partitions of the derived tables, ten a topic.
_SHOWN = (10, 10_000, 1_000_000)
_BODY = 1024
_NAMES = {
    "append": "append one", "batch": "append in a batch of 1,000", "read": "read, 1,000 a call",
    "scan": "read everything", "open": "open", "recover": "open after a kill",
}  # fmt: skip


def sections(model: Model, cells: Sequence[Cell], layouts: Sequence[str]) -> list[tuple[str, str]]:
    """Return (title, HTML) of the model: what is derived, fitted, and predicted without a cell."""
    pages = [_page(model, cells, layout) for layout in FORMATS if layout in layouts]
    if not pages:
        return []
    introduction = (
        "<p>What a message needs follows from the format of each layout: bytes, system calls, "
        "places that lie apart, new files. How long each takes is fitted to the cells of this run, "
        "where there are at least "
        f"{FEWEST_CELLS} of them. Each cell was predicted by a fit without it, the only one of a "
        "durability apart; these errors are the uncertainty of an answer "
        "(<code>python -m bench advise</code>): the largest of the cells that lie between others, "
        "and that of the outermost ones beyond them.</p>"
        + _table(
            ("layout", "work", "cells", "between measured cells", "of all cells"),
            [
                (layout, work, str(len(one.points)), f"× {one.inner_factor:.2f}",
                 f"× {one.factor:.2f}")
                for (layout, work), one in model.fits.items()
            ],
        )
        + _figure(model, layouts)
    )  # fmt: skip
    return [("Cost model", introduction), ("What each layout must cost", "".join(pages))]


def _page(model: Model, cells: Sequence[Cell], layout: str) -> str:
    """Return one layout's page, folded."""
    fits = [one for (name, _), one in model.fits.items() if name == layout]
    parts = [
        f"<p>{html.escape(FORMATS[layout].why)}</p>",
        _derived(layout),
        _counted(cells, layout),
    ]
    if fits:
        parts += [_constants(fits), _errors(fits)]
    few = [
        f"{work} ({model.few.get((layout, work), 0)})"
        for work in WORKS
        if (layout, work) not in model.fits
    ]
    parts.append(
        f"<p>Nothing is fitted to {', '.join(few)}: these have fewer than {FEWEST_CELLS} cells. "
        "Near such cells an answer lies between the least and the most that a term grows.</p>"
        if few
        else ""
    )
    return (
        f'<details class="cost" id="cost-{html.escape(layout)}"><summary>{html.escape(layout)}'
        f"</summary>{''.join(parts)}</details>"
    )


def _derived(layout: str) -> str:
    """Return what the format needs, at some numbers of partitions."""
    form = FORMATS[layout]
    rows = []
    for work in WORKS:
        for places in _SHOWN:
            asked = Question(places // 10, 10, _BODY)
            if (needed := form.need(work, asked)) is not None:
                values = map(amount, (needed.bytes, needed.calls, needed.places))
                rows.append((_NAMES[work], f"{places:,}", *values))
    held = [(f"{places:,}", Question(places // 10, 10, _BODY)) for places in _SHOWN]
    files = [
        (text, amount(form.files(asked)), amount(form.descriptors(asked))) for text, asked in held
    ]
    return (
        f"<p>Derived for bodies of {_BODY:,} B, ten partitions a topic, {STEADY:,} messages: of a "
        "message, or of an opening. Making files is apart, and so are calls of an opening that do "
        "not grow with what is opened.</p>"
        + _table(("work", "partitions", "bytes", "system calls", "places apart"), rows)
        + _table(("partitions", "files", "descriptors at most"), files)
    )


def _counted(cells: Iterable[Cell], layout: str) -> str:
    """Return derived beside counted numbers of the appends and reads of a run."""
    form, rows = FORMATS[layout], []
    for cell in cells:
        if cell["layout"] != layout or cell["work"] not in ("append", "batch", "read"):
            continue
        if cell["body"] == "mix" or cell["rate_median"] is None:
            continue
        body = int(cell["body"])
        asked = Question(
            cell["topics"], cell["partitions"], body, cell["durability"], cell["batch"],
            cell["stored" if cell["work"] == "read" else "messages"],
        )  # fmt: skip
        needed = form.need(cell["work"], asked)
        kept = cell["disk_bytes"] and cell["disk_bytes"] / asked.messages
        calls, files = cell["calls_each"], cell["files"]
        if needed is None or (calls is None and files is None):
            continue
        rows.append((
            _NAMES[cell["work"]], f"{asked.places:,}", f"{body:,}", cell["durability"],
            amount(needed.calls), amount(calls), amount(form.files(asked)), amount(files),
            amount(form.kept(body)), amount(kept),
        ))  # fmt: skip
    if not rows:
        return ""
    heads = (
        "work", "partitions", "body", "durability", "calls derived", "counted", "files derived",
        "counted", "bytes kept, derived", "on the disk",
    )  # fmt: skip
    return (
        "<p>Beside what was counted, system calls with strace; journals, files allocated ahead and "
        "blocks that are not full make the bytes on the disk more.</p>" + _table(heads, rows)
    )


def _constants(fits: Sequence[Fit]) -> str:
    names = list(dict.fromkeys(name for one in fits for name in one.constants))
    rows = [
        (_NAMES[one.work], *(_nanoseconds(one.constants.get(name, 0.0)) for name in names))
        for one in fits
    ]
    return "<p>Fitted constants, ns each:</p>" + _table(("work", *names), rows)


def _nanoseconds(value: float) -> str:
    return amount(value * 1e9) if value else "–"


def _errors(fits: Sequence[Fit]) -> str:
    rows = []
    for one in fits:
        for point, ratio in zip(one.points, one.held_back, strict=True):
            asked, measured = point.asked, point.seconds * 1e6
            fitted = one.computed(asked) / point.seconds
            held = ("–", "the only one") if ratio is None else _error(measured, ratio)
            rows.append((
                _NAMES[one.work], f"{asked.topics:,} × {asked.partitions:,}", f"{asked.body:,}",
                asked.durability, amount(measured), *_error(measured, fitted), *held,
            ))  # fmt: skip
    heads = (
        "work", "size", "body", "durability", "measured µs", "fitted µs", "residual",
        "held back µs", "error",
    )  # fmt: skip
    return "<p>Measured cells against the fit, and against a fit without them:</p>" + _table(
        heads, rows
    )


def _error(measured: float, ratio: float) -> tuple[str, str]:
    return amount(measured * ratio), f"{ratio - 1:+.0%}"


def amount(value: float | None) -> str:
    """Return three digits, or a whole number; a dash for what was not counted."""
    if value is None:
        return "–"
    if 0 < value < 1e-3:
        return "< 0.001"
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th><button>{html.escape(name)}</button></th>" for name in heads)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(value)}</td>" for value in row) + "</tr>"
        for row in rows
    )
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="wide">{table}</div>'


def _figure(model: Model, layouts: Sequence[str]) -> str:
    """Return measured points against the computed curves."""
    panels = []
    for work in WORKS:
        series = []
        curves = model.curves(work)
        for (layout, kind), one in model.fits.items():
            if kind != work:
                continue
            points = []
            for point in one.points:
                if (point.asked.durability, point.asked.body) == ("page_cache", one.usual_body):
                    values = (point.seconds, point.most, point.least)
                    shown = [1e3 * s if work in OPENINGS else 1 / s for s in values]
                    points.append((float(point.asked.places), *shown))
            series.append(Series(layout, sorted(points), curves.get(layout, ())))  # type: ignore[arg-type]
        if series:
            unit = "messages/s" if work in MESSAGES else "ms"
            title = _NAMES[work].capitalize()
            panels.append(Panel(title, unit, series, "partitions", joined=False))
    if not panels:
        return ""
    caption = (
        "Points are measured; dotted lines are computed, up to a million partitions. No answer is "
        "given for more than ten times the partitions that were measured."
    )
    return figure("figure-model", Figure("Cost model", caption, panels), layouts)
