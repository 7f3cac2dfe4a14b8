"""Figures of a report as SVG: drawn by matplotlib, coloured by the page, for light and dark.

A figure is one panel, so that a page may set them beside each other or, on a phone, one below the
other. What belongs to a layout has its name (`data-layout`), so that a page may hide it.
"""

from __future__ import annotations

import html
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bench.layouts.capabilities import Unavailable

#: Drawn in these, and replaced by what the page has for text and lines.
_INK, _GRID = "#010203", "#040506"
#: Visible on white and on black.
COLOURS = (
    "#3b82f6", "#e4572e", "#2a9d5c", "#a855f7", "#d4a017", "#0ea5a5", "#d6478f", "#7a8494",
    "#8b5e34", "#5b6ee1", "#b0413e", "#4f8a10",
)  # fmt: skip
#: Of matplotlib, and as a letter. One fewer than the colours: no two layouts have both alike.
MARKS = {
    "o": "●", "s": "■", "D": "◆", "^": "▲", "v": "▼", "P": "✚", "*": "★", "X": "✖", "h": "⬢",
    "<": "◀", ">": "▶",
}  # fmt: skip
_LAYOUT = "layout-of-"
#: Below so many decades an axis has labels between the powers of ten.
_FEW_DECADES = 1.7


@dataclass(frozen=True)
class Series:
    """Points of one layout, with the range of each; `computed` ones are dotted, without marks."""

    layout: str
    points: Sequence[tuple[float, float, float, float]]
    computed: Sequence[tuple[float, float]] = ()


@dataclass(frozen=True)
class Panel:
    """One pair of axes."""

    title: str
    y: str
    series: Sequence[Series]
    x: str = "partitions (topics × partitions)"
    #: False: marks alone.
    joined: bool = True
    #: True: a bar for each series, of its first point.
    bars: bool = False


def style_of(layout: str, layouts: Sequence[str]) -> tuple[str, str]:
    """Return the colour and the mark of a layout, the same in every figure."""
    place = list(layouts).index(layout)
    return COLOURS[place % len(COLOURS)], list(MARKS)[place % len(MARKS)]


def legend(layouts: Sequence[str], shown: Sequence[str]) -> str:
    """Return a button for each layout, in its colour, that hides and shows it."""
    found = []
    for layout in shown:
        colour, mark = style_of(layout, layouts)
        name = html.escape(layout)
        found.append(
            f'<button class="key" aria-pressed="true" data-key="{name}">'
            f'<span style="color:{colour}">{MARKS[mark]}</span> {name}</button>'
        )
    return f'<p class="legend">{"".join(found)}</p>'


def drawn(panel: Panel, layouts: Sequence[str]) -> str:
    """Return a panel as an element of a page, in the colours of the page."""
    figure, axis = _axis()
    if panel.bars:
        _bars(axis, panel, layouts)
    else:
        _lines(axis, panel, layouts)
    return _svg(figure, f"{panel.title}: {panel.y}")


def _lines(axis: Any, panel: Panel, layouts: Sequence[str]) -> None:
    for one in panel.series:
        colour, mark = style_of(one.layout, layouts)
        name = _LAYOUT + one.layout
        if one.points:
            xs, ys, low, high = zip(*one.points, strict=True)
            style = "-" if panel.joined else ""
            axis.plot(xs, ys, marker=mark, color=colour, markersize=5, linestyle=style, gid=name)
            axis.fill_between(xs, low, high, color=colour, alpha=0.15, linewidth=0, gid=name)
        if one.computed:
            xs, ys = zip(*one.computed, strict=True)
            axis.plot(xs, ys, linestyle=(0, (1, 2.5)), color=colour, linewidth=1.2, gid=name)
    axis.set(xlabel=panel.x, ylabel=panel.y, xscale="log", yscale="log")
    for one in (axis.xaxis, axis.yaxis):
        _label(one)


def _label(axis: Any) -> None:
    """Write 1, 10, 100, 1k … beside an axis; on a short one numbers between them, too."""
    from math import log10

    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    low, high = axis.get_view_interval()
    short = log10(high / low) < _FEW_DECADES
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if short else (1,), numticks=12))
    axis.set_major_formatter(FuncFormatter(lambda value, _: _short(value)))
    axis.set_minor_formatter(NullFormatter())


def _short(value: float) -> str:
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"


def _bars(axis: Any, panel: Panel, layouts: Sequence[str]) -> None:
    names = [one.layout for one in panel.series]
    values = [one.points[0][1] for one in panel.series]
    drawn_bars = axis.barh(names, values, color=[style_of(name, layouts)[0] for name in names])
    labels = axis.bar_label(drawn_bars, fmt=lambda value: f"{value:,.3g}" if value < 100 else
                            f"{value:,.0f}", padding=3, color=_INK)  # fmt: skip
    for name, bar, text in zip(names, drawn_bars, labels, strict=True):
        bar.set_gid(_LAYOUT + name)
        text.set_gid(_LAYOUT + name)
    axis.margins(x=0.18)
    axis.set(xlabel=panel.y, xlim=(0, None))
    axis.invert_yaxis()


def _axis() -> tuple[Any, Any]:
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError as error:
        raise Unavailable("matplotlib is not installed (pip install tubestore[bench])") from error
    mpl.rcParams["svg.fonttype"] = "none"
    mpl.rcParams["svg.hashsalt"] = "tubestore"
    mpl.rcParams["font.size"] = 10
    figure = Figure(figsize=(5.2, 3.3), layout="constrained")
    axis = figure.subplots()
    figure.patch.set_alpha(0)
    axis.patch.set_alpha(0)
    axis.grid(True, color=_GRID, linewidth=0.5)
    axis.set_axisbelow(True)
    axis.tick_params(colors=_INK, which="both")
    for spine in axis.spines.values():
        spine.set_color(_GRID)
    for text in (axis.xaxis.label, axis.yaxis.label):
        text.set_color(_INK)
    return figure, axis


def _svg(figure: Any, title: str) -> str:
    """Return a figure without a fixed size: the page gives it its width."""
    out = io.StringIO()
    figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    text = out.getvalue()
    head, rest = text[text.index("<svg") :].split(">", 1)
    head = re.sub(r' (?:width|height)="[^"]*"', "", head)
    text = f'{head} role="img" aria-label="{html.escape(title)}">{rest}'
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = text.replace(_INK, "currentColor").replace(_GRID, "var(--line)")
    text = re.sub(rf'id="{_LAYOUT}([^"]*)"', r'data-layout="\1"', text)
    return re.sub(r' id="(?:figure|axes|patch|text|line2d|matplotlib)[^"]*"', "", text)
