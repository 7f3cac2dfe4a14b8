"""The cost model's part of a report: how each layout's costs follow from its format."""

from __future__ import annotations

import html
from collections.abc import Sequence

from bench.report.costs import FORMATS
from bench.report.figures import Panel, Series, lines
from bench.report.model import Fit, Model

_HEADS = ("work", "partitions", "body", "durability", "measured µs", "held back µs", "error")


def sections(model: Model, layouts: Sequence[str]) -> list[tuple[str, str]]:
    """Return (title, HTML) of the model: why, constants, and each cell as predicted without it."""
    found = []
    for layout, form in FORMATS.items():
        fits = [one for (name, _), one in model.fits.items() if name == layout]
        if not fits:
            continue
        body = f"<p>{html.escape(form.why)}</p>"
        body += "".join(_constants(one) for one in fits)
        body += _errors(fits)
        found.append((f"What {layout} must cost", body))
    if found:
        worst = "".join(
            f"<li>{layout}, {work}: within {one.inner_factor:.2f} times between measured cells, "
            f"{one.factor:.2f} outside</li>"
            for (layout, work), one in model.fits.items()
        )
        introduction = (
            "<p>Constants are fitted to the cells of this run. Each cell was predicted by a fit "
            "without it, the only one of its kind apart; the largest error is the uncertainty:</p>"
            f"<ul>{worst}</ul>{_figure(model, layouts)}"
        )
        found.insert(0, ("Cost model", introduction))
    return found


def _constants(one: Fit) -> str:
    parts = ", ".join(
        f"{name} {value * 1e9:,.3g} ns" for name, value in one.constants.items() if value
    )
    return f"<p>{one.work}: {html.escape(parts)}.</p>"


def _errors(fits: Sequence[Fit]) -> str:
    rows = []
    for one in fits:
        for point, ratio in zip(one.points, one.held_back, strict=True):
            asked, measured = point.asked, point.seconds * 1e6
            values = (
                one.work, f"{asked.places:,}", f"{asked.body:,}", asked.durability,
                f"{measured:.3g}", *_predicted(measured, ratio),
            )  # fmt: skip
            rows.append("<tr>" + "".join(f"<td>{value}</td>" for value in values) + "</tr>")
    head = "".join(f"<th><button>{name}</button></th>" for name in _HEADS)
    return (
        f'<div class="wide"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _predicted(measured: float, ratio: float | None) -> tuple[str, str]:
    if ratio is None:
        return "–", "the only one"
    return f"{measured * ratio:.3g}", f"{ratio - 1:+.0%}"


def _figure(model: Model, layouts: Sequence[str]) -> str:
    """Return measured points against the computed curves."""
    panels = []
    for work in ("append", "batch", "read"):
        series = []
        curves = model.curves(work)
        for (layout, kind), one in model.fits.items():
            if kind != work:
                continue
            points = sorted(
                (
                    point.asked.places,
                    1e-3 / point.seconds,
                    1e-3 / point.seconds,
                    1e-3 / point.seconds,
                )
                for point in one.points
                if point.asked.durability == "page_cache" and point.asked.body == one.usual_body
            )
            series.append(Series(layout, points, curves.get(layout, ())))
        if series:
            panels.append(Panel(work, "1,000 messages/s", series))
    if not panels:
        return ""
    drawn = lines([panels], layouts, "partitions", joined=False)
    caption = "Points are measured; dotted lines are computed, up to a million partitions."
    return (
        f'<figure id="figure-model"><div class="wide">{drawn}</div>'
        f"<figcaption>{caption}</figcaption></figure>"
    )
