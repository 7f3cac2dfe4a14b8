"""The cost model: constants fitted to measured cells, tested on cells held back from the fit.

A fit minimises relative errors, with no constant below zero. Each cell is predicted once by a fit
without it; the only cell of a durability cannot be. The largest error of the cells that lie between
others is the uncertainty between measured cells. Beyond the most, or the fewest, of something that
was measured, the error of those outermost cells counts, too. With too few cells for a fit there are
bounds: whatever the constants are, a cost grows no more than the term that grows most, and no less
than the one that grows least. Far outside of what was measured there is no answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import exp, log, sqrt
from typing import Any, Literal

import numpy as np

from bench.report.costs import MESSAGES, OPENINGS, Question
from bench.report.formats import FORMATS, terms
from bench.workloads.sizes import Size

Marked = Literal["measured", "between measured cells", "extrapolated"]
WORKS = (*MESSAGES, *OPENINGS)
#: So far beyond the most partitions that were measured there are answers.
BEYOND_PLACES = 10
BEYOND_BODY = 2
#: A fit has at least so many cells.
FEWEST_CELLS = 4
#: A range wider than so many times is no answer.
WIDEST = 16.0
MOST_PLACES = 1_000_000
_AXES = ("places", "topics", "body")


@dataclass(frozen=True)
class Point:
    """A measured cell: a question and its seconds a message, or an opening, with their range."""

    asked: Question
    seconds: float
    least: float
    most: float


@dataclass(frozen=True)
class Answer:
    """Seconds a message, or an opening; between `least` and `most`; how that is known."""

    seconds: float
    least: float
    most: float
    #: What it is made of, by the model; empty if nothing was fitted.
    parts: Mapping[str, float]
    marked: Marked
    #: What the range does not rest on, for people.
    note: str = ""

    @property
    def rate(self) -> float:
        """Messages a second."""
        return 1 / self.seconds

    @property
    def factor(self) -> float:
        """Return how far the range goes, as a factor."""
        return max(self.most / self.seconds, self.seconds / self.least)


class Outside(Exception):
    """A question that the model does not answer; the text contains the reason."""


class Uncertain(Outside):
    """Constants that differ too much without one of the cells."""


def nonnegative(rows: np.ndarray[Any, Any], wanted: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the least squares solution without a negative element.

    The solution is that of some of the columns. There are few, so every choice is tried.
    """
    width = rows.shape[1]
    best, least = np.zeros(width), float(wanted @ wanted)
    for count in range(1, width + 1):
        for columns in combinations(range(width), count):
            some = rows[:, columns]
            solved = np.linalg.lstsq(some, wanted, rcond=None)[0]
            if solved.min() < 0:
                continue
            error = float(np.sum((some @ solved - wanted) ** 2))
            if error < least - 1e-12:
                best, least = np.zeros(width), error
                best[list(columns)] = solved
    return best


def _beyond(known: Sequence[Question], work: str, asked: Question) -> None:
    """Raise Outside far from what was measured."""
    sizes = [one.body for one in known]
    if not min(sizes) / BEYOND_BODY <= asked.body <= max(sizes) * BEYOND_BODY:
        measured = f"{min(sizes):,} to {max(sizes):,} B"
        raise Outside(f"bodies of {asked.body:,} B are far from those of {work} cells, {measured}")
    if not any(one.durability == asked.durability for one in known):
        raise Outside(f"no {work} cell has the durability {asked.durability}")
    for name, text in (("places", "partitions"), ("topics", "topics")):
        most, wanted = max(getattr(one, name) for one in known), getattr(asked, name)
        if wanted > most * BEYOND_PLACES:
            raise Outside(f"{wanted:,} {text} are far above the {most:,} measured")


def _measured(points: Sequence[Point], work: str, asked: Question) -> Point | None:
    """Return the cell of a question; only an opening depends on how many messages there are."""
    kept = {} if work in OPENINGS else {"messages": 0}
    return next((p for p in points if replace(p.asked, **kept) == replace(asked, **kept)), None)


@dataclass(frozen=True)
class Fit:
    """The constants of one layout at one kind of work."""

    layout: str
    work: str
    points: Sequence[Point]
    constants: Mapping[str, float]
    #: Of each point: predicted by a fit without it, over measured; None for the only one of a kind.
    held_back: Sequence[float | None]
    #: Of each point: whether others lie around it.
    inner: Sequence[bool]

    @property
    def usual_body(self) -> int:
        """The size of most bodies, in the middle of all."""
        return int(np.median([point.asked.body for point in self.points]))

    @property
    def factor(self) -> float:
        """The largest error of a cell that was held back, as a factor."""
        return _largest(ratio for ratio in self.held_back if ratio is not None)

    @property
    def inner_factor(self) -> float:
        """The same of the cells that lie between others; of all if there are none."""
        ratios = [
            ratio
            for ratio, inner in zip(self.held_back, self.inner, strict=True)
            if inner and ratio is not None
        ]
        return _largest(ratios) if ratios else self.factor

    def parts(self, asked: Question) -> dict[str, float]:
        """Return the seconds of each term: computed, whatever was measured."""
        counts = terms(self.layout, self.work, asked)
        return {name: self.constants.get(name, 0.0) * count for name, count in counts.items()}

    def computed(self, asked: Question) -> float:
        """Return the seconds of a message, or of an opening, however far from what was measured."""
        return max(sum(self.parts(asked).values()), 1e-12)

    def answer(self, asked: Question) -> Answer:
        """Return what a message costs; Outside far from what was measured."""
        parts = self.parts(asked)
        point = _measured(self.points, self.work, asked)
        if point is not None:
            return Answer(point.seconds, point.least, point.most, parts, "measured")
        _beyond([one.asked for one in self.points], self.work, asked)
        alike = [one.asked for one in self.points if one.asked.durability == asked.durability]
        inside = len(alike) > 1 and _between(asked, alike)
        marked: Marked = "between measured cells" if inside else "extrapolated"
        seconds, factor = self.computed(asked), self.factor_at(asked)
        least, most = self._growth(asked)
        seconds, factor = seconds * sqrt(least * most), factor * sqrt(most / least)
        if factor * factor > WIDEST:
            raise Uncertain(f"a range of {factor * factor:.0f} times: too uncertain")
        note = "" if len(alike) > 1 else f"by one cell with {asked.durability}: not tested"
        return Answer(seconds, seconds / factor, seconds * factor, parts, marked, note)

    def factor_at(self, asked: Question) -> float:
        """Return the uncertainty of a question: the errors of the cells that it rests on."""
        factor = self.inner_factor
        outermost = [self._outermost(name, asked) for name in _AXES]
        for point, ratio in zip(self.points, self.held_back, strict=True):
            if ratio is None:
                continue
            own = point.asked
            counts = own.durability == asked.durability != "page_cache" or any(
                edge is not None and getattr(own, name) == edge
                for name, edge in zip(_AXES, outermost, strict=True)
            )
            if counts:
                factor = max(factor, _largest([ratio]))
        return factor

    def _growth(self, asked: Question) -> tuple[float, float]:
        """Return how little and how much a cost may grow by terms that all cells have alike."""
        known = terms(self.layout, self.work, self.points[0].asked)
        wanted = terms(self.layout, self.work, asked)
        names = _alike(self.layout, self.work, self.points)
        grown = [1.0, *(wanted.get(name, 0.0) / known[name] for name in names)]
        return min(grown), max(grown)

    def _outermost(self, name: str, asked: Question) -> int | None:
        """Return the most, or the fewest, that was measured if a question goes beyond it."""
        known = [getattr(point.asked, name) for point in self.points]
        wanted = getattr(asked, name)
        if wanted > max(known):
            return int(max(known))
        return int(min(known)) if wanted < min(known) else None


def bounded(layout: str, work: str, points: Sequence[Point], asked: Question) -> Answer:
    """Return the answer of few cells, without constants: between the least and the most growth."""
    point = _measured(points, work, asked)
    if point is not None:
        return Answer(point.seconds, point.least, point.most, {}, "measured")
    count = f"{len(points)} {work} cell{'s' if len(points) != 1 else ''}"
    if not points:
        raise Outside(f"{count} of the {FEWEST_CELLS} that a fit needs")
    _beyond([one.asked for one in points], work, asked)
    lows, highs = [], []
    for one in points:
        if one.asked.durability != asked.durability:
            continue
        wanted = asked if work in OPENINGS else replace(asked, messages=one.asked.messages)
        known, asks = terms(layout, work, one.asked), terms(layout, work, wanted)
        grown = [asks[name] / value for name, value in known.items() if name in asks and value]
        lows.append(one.least * min(grown))
        highs.append(one.most * max(grown))
    least, most = max(lows), min(highs)
    if least > most:  # cells that contradict each other narrow nothing
        least, most = min(lows), max(highs)
    if most > least * WIDEST:
        raise Outside(f"{count} bound it to a range of {most / least:.0f} times: too uncertain")
    note = f"bounds from {count}"
    return Answer(sqrt(least * most), least, most, {}, "extrapolated", note)


def fit(layout: str, work: str, points: Sequence[Point]) -> Fit | None:
    """Fit the constants of a layout; None for too few points."""
    if len(points) < FEWEST_CELLS:
        return None
    held_back: list[float | None] = []
    inner = []
    for at, point in enumerate(points):
        rest = [*points[:at], *points[at + 1 :]]
        alike = [one.asked for one in rest if one.asked.durability == point.asked.durability]
        inner.append(_between(point.asked, alike))
        if not alike:
            held_back.append(None)
            continue
        without = Fit(layout, work, rest, _constants(layout, work, rest), (), ())
        held_back.append(without.computed(point.asked) / point.seconds)
    return Fit(layout, work, points, _constants(layout, work, points), held_back, inner)


def _between(asked: Question, others: Sequence[Question]) -> bool:
    """True if there are as few and as many partitions, as small and as large bodies."""
    if not others:
        return False
    return all(
        min(getattr(one, name) for one in others)
        <= getattr(asked, name)
        <= max(getattr(one, name) for one in others)
        for name in _AXES
    )


def _largest(ratios: Iterable[float]) -> float:
    return exp(max((abs(log(ratio)) for ratio in ratios), default=log(2)))


def _alike(layout: str, work: str, points: Sequence[Point]) -> frozenset[str]:
    """Return the terms that every cell has as often: a fit cannot separate them from messages."""
    counts = [terms(layout, work, point.asked) for point in points]
    names = {name for one in counts for name in one} - {"message", "opening"}
    return frozenset(name for name in names if len({one.get(name, 0.0) for one in counts}) == 1)


def _constants(layout: str, work: str, points: Sequence[Point]) -> dict[str, float]:
    counts = [terms(layout, work, point.asked) for point in points]
    names = sorted({name for one in counts for name in one} - _alike(layout, work, points))
    rows = np.array([[one.get(name, 0.0) for name in names] for one in counts])
    rows /= np.array([point.seconds for point in points])[:, None]
    scale = np.where(rows.max(axis=0) > 0, rows.max(axis=0), 1.0)
    found = nonnegative(rows / scale, np.ones(len(points))) / scale
    known = dict(zip(names, found.tolist(), strict=True))
    return {name: known.get(name, 0.0) for name in (*names, "sync")}


class Model:
    """The fits of all layouts that have a format here, and the cells of those with too few."""

    def __init__(self, cells: Iterable[Mapping[str, Any]]) -> None:
        self.points: dict[tuple[str, str], list[Point]] = {}
        #: Cells without a measure: their topics and partitions, and the reason.
        self.stopped: dict[tuple[str, str], list[tuple[int, int, str]]] = {}
        known = [cell for cell in cells if _is_known(cell)]
        for cell in known:
            if not cell["rate_median"]:
                one = cell["topics"], cell["topics"] * cell["partitions"], cell["reason"]
                self.stopped.setdefault((cell["layout"], cell["work"]), []).append(one)
        usable = [cell for cell in known if cell["rate_median"]]
        #: Of what nothing is synced, a file system is compared with itself only.
        systems = Counter(one["file_system"] for one in usable if one["durability"] != "fsync")
        usual = systems.most_common(1)[0][0] if systems else None
        for cell in usable:
            if cell["durability"] != "fsync" and cell["file_system"] != usual:
                continue
            key = cell["layout"], cell["work"]
            self.points.setdefault(key, []).append(_point(cell))
        fits = {key: fit(*key, found) for key, found in self.points.items()}
        self.fits = {key: found for key, found in fits.items() if found is not None}
        self.few = {key: len(self.points[key]) for key, found in fits.items() if found is None}

    def answer(self, layout: str, work: str, asked: Question) -> Answer:
        """Return what a message, or an opening, costs in a layout; Outside if it is not known."""
        points = self.points.get((layout, work), ())
        for topics, places, reason in self.stopped.get((layout, work), ()):
            beyond = asked.topics >= topics and asked.places >= places
            if beyond and _measured(points, work, asked) is None:
                raise Outside(f"{topics:,} × {places // topics:,} had no measure: {reason}")
        found = self.fits.get((layout, work))
        if found is not None:
            try:
                return found.answer(asked)
            except Uncertain:
                pass  # its cells may bound what its constants do not
        return bounded(layout, work, points, asked)

    def curves(self, work: str) -> dict[str, list[tuple[float, float]]]:
        """Return computed messages/s against partitions, 1 to a million, by layout.

        Of openings: milliseconds. Beyond ten times what was measured there is a curve and no
        answer: it shows where a format leads, not what a machine does.
        """
        found: dict[str, list[tuple[float, float]]] = {}
        for (layout, kind), one in self.fits.items():
            if kind != work:
                continue
            for places in np.unique(np.geomspace(1, MOST_PLACES, 25).astype(int)).tolist():
                width = 10 if places >= 10 else 1
                asked = Question(max(1, places // width), width, one.usual_body)
                seconds = one.computed(asked)
                shown = 1e3 * seconds if work in OPENINGS else 1 / seconds
                found.setdefault(layout, []).append((float(places), shown))
        return found


#: What makes a cell another one than the model has terms for, if it is not as usual.
_TERMS = frozenset({"topics", "partitions", "body", "durability", "batch", "messages"})


def _is_known(cell: Mapping[str, Any]) -> bool:
    """True if terms of the model describe what a cell did."""
    if cell["layout"] not in FORMATS or cell["work"] not in WORKS:
        return False
    if cell["body"] == "mix" or cell["durability"] == "memory":  # no term has that
        return False
    usual = Size().as_dict()
    return all(cell.get(name, usual[name]) == usual[name] for name in usual.keys() - _TERMS)


def _point(cell: Mapping[str, Any]) -> Point:
    writes = cell["work"] in ("append", "batch")
    asked = Question(
        cell["topics"], cell["partitions"], int(cell["body"]), cell["durability"],
        cell["batch"], cell["messages" if writes else "stored"],
    )  # fmt: skip
    seconds, least, most = (1 / cell[f"rate_{name}"] for name in ("median", "max", "min"))
    return Point(asked, seconds, least, most)
