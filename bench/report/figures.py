"""Figures of a report as SVG: drawn by matplotlib, coloured by the page, for light and dark."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
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
MARKS = "osD^vP*XhpdH"


@dataclass(frozen=True)
class Series:
    """Points of one layout, with the range of each; `computed` ones are dashed, without marks."""

    layout: str
    points: Sequence[tuple[float, float, float, float]]
    computed: Sequence[tuple[float, float]] = ()


@dataclass(frozen=True)
class Panel:
    """One pair of axes."""

    title: str
    y: str
    series: Sequence[Series]


def style_of(layout: str, layouts: Sequence[str]) -> tuple[str, str]:
    """Return the colour and the mark of a layout, the same in every figure."""
    place = list(layouts).index(layout)
    return COLOURS[place % len(COLOURS)], MARKS[place % len(MARKS)]


def lines(
    rows: Sequence[Sequence[Panel | None]], layouts: Sequence[str], x: str, *, joined: bool = True
) -> str:
    """Draw rows of panels, both axes logarithmic; None leaves a place empty."""
    figure, axes = _axes(len(rows), len(rows[0]))
    shown: dict[str, Any] = {}
    for panel, axis in zip([one for row in rows for one in row], axes, strict=True):
        if panel is None:
            axis.set_visible(False)
            continue
        for one in panel.series:
            colour, mark = style_of(one.layout, layouts)
            if one.points:
                xs, ys, low, high = zip(*one.points, strict=True)
                (shown[one.layout],) = axis.plot(
                    xs, ys, marker=mark, color=colour, markersize=5, linestyle="-" if joined else ""
                )
                axis.fill_between(xs, low, high, color=colour, alpha=0.15, linewidth=0)
            if one.computed:
                xs, ys = zip(*one.computed, strict=True)
                axis.plot(xs, ys, linestyle=(0, (2, 3)), color=colour, linewidth=1)
        axis.set(title=panel.title, xlabel=x, ylabel=panel.y, xscale="log", yscale="log")
    _legend(figure, shown)
    return _svg(figure)


def bars(panels: Sequence[Panel], layouts: Sequence[str]) -> str:
    """Draw panels side by side: a bar for each layout, its first point."""
    figure, axes = _axes(1, len(panels))
    for panel, axis in zip(panels, axes, strict=True):
        names = [one.layout for one in panel.series]
        values = [one.points[0][1] for one in panel.series]
        colours = [style_of(name, layouts)[0] for name in names]
        axis.barh(names, values, color=colours)
        axis.set(title=panel.title, xlabel=panel.y, xscale="log")
        axis.invert_yaxis()
    return _svg(figure)


def _axes(rows: int, columns: int) -> tuple[Any, Sequence[Any]]:
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError as error:
        raise Unavailable("matplotlib is not installed (pip install tubestore[bench])") from error
    mpl.rcParams["svg.fonttype"] = "none"
    mpl.rcParams["svg.hashsalt"] = "tubestore"
    mpl.rcParams["font.size"] = 9
    figure = Figure(figsize=(3.9 * columns, 3.2 * rows + 0.3), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    figure.patch.set_alpha(0)
    for axis in axes:
        axis.patch.set_alpha(0)
        axis.grid(True, color=_GRID, linewidth=0.5)
        axis.tick_params(colors=_INK, which="both")
        for spine in axis.spines.values():
            spine.set_color(_GRID)
        for text in (axis.title, axis.xaxis.label, axis.yaxis.label):
            text.set_color(_INK)
    return figure, axes


def _legend(figure: Any, shown: Mapping[str, Any]) -> None:
    if shown:
        figure.legend(
            shown.values(), shown.keys(), loc="outside lower center", ncols=min(6, len(shown)),
            frameon=False, labelcolor=_INK,
        )  # fmt: skip


def _svg(figure: Any) -> str:
    """Return a figure as an element of a page, in the colours of the page."""
    out = io.StringIO()
    figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    text = out.getvalue()
    text = text[text.index("<svg") :]
    text = text.replace(_INK, "currentColor").replace(_GRID, "var(--line)")
    return re.sub(r"<metadata>.*?</metadata>", "", _without_size(text), flags=re.DOTALL)


def _without_size(text: str) -> str:
    """Take the fixed size out: the page gives a figure its width."""
    head, rest = text.split(">", 1)
    head = re.sub(r' (?:width|height)="[^"]*"', "", head)
    return f"{head}>{rest}"
