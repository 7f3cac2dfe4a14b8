"""The cost model: constants fitted to measured cells, tested on cells held back from the fit.

A fit minimises relative errors, with no constant below zero. Each cell is predicted once by a fit
without it. The largest error of the cells that lie between others is the uncertainty between
measured cells; with the outermost ones it is that of an extrapolation. The only cell of a
durability cannot be held back: answers for it count as extrapolated. Far outside of what was
measured there is no answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import exp, log
from typing import Any, Literal

import numpy as np

from bench.report.costs import FORMATS, Question, terms

Marked = Literal["measured", "between measured cells", "extrapolated"]
WORKS = ("append", "batch", "read", "scan")
#: So far beyond the most partitions that were measured there are answers.
BEYOND_PLACES = 10
BEYOND_BODY = 2
#: A fit has at least so many cells.
FEWEST_CELLS = 4
MOST_PLACES = 1_000_000


@dataclass(frozen=True)
class Point:
    """A measured cell: a question and its seconds a message."""

    asked: Question
    seconds: float


@dataclass(frozen=True)
class Answer:
    """Seconds a message; within `factor` of it, both ways; what it is made of; how it is known."""

    seconds: float
    factor: float
    parts: Mapping[str, float]
    marked: Marked
    #: False if no cell of this durability could be held back.
    tested: bool = True

    @property
    def rate(self) -> float:
        """Messages a second."""
        return 1 / self.seconds


class Outside(Exception):
    """A question that the model does not answer; the text contains the reason."""


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

    def answer(self, asked: Question) -> Answer:
        """Return what a message costs; Outside far from what was measured."""
        marked = self._marked(asked)
        counts = terms(self.layout, self.work, asked)
        parts = {name: self.constants[name] * count for name, count in counts.items()}
        if marked == "measured":
            (point, *_) = [point for point in self.points if _same(point.asked, asked)]
            return Answer(point.seconds, 1.0, parts, marked)
        factor = self.factor if marked == "extrapolated" else self.inner_factor
        alike = [one for one in self.points if one.asked.durability == asked.durability]
        return Answer(sum(parts.values()), factor, parts, marked, tested=len(alike) > 1)

    def _marked(self, asked: Question) -> Marked:
        if any(_same(point.asked, asked) for point in self.points):
            return "measured"
        known = [point.asked for point in self.points]
        sizes = [one.body for one in known]
        if not min(sizes) / BEYOND_BODY <= asked.body <= max(sizes) * BEYOND_BODY:
            raise Outside(f"bodies of {asked.body:,} B are far from those of {self.work} cells")
        alike = [one for one in known if one.durability == asked.durability]
        if not alike:
            raise Outside(f"no {self.work} cell has the durability {asked.durability}")
        most = max(one.places for one in known)
        if asked.places > most * BEYOND_PLACES:
            raise Outside(f"{asked.places:,} partitions are far above the {most:,} measured")
        most = max(one.topics for one in known)
        if asked.topics > most * BEYOND_PLACES:
            raise Outside(f"{asked.topics:,} topics are far above the {most:,} measured")
        inside = len(alike) > 1 and _between(asked, alike)
        return "between measured cells" if inside else "extrapolated"


def _same(one: Question, other: Question) -> bool:
    def cell(asked: Question) -> tuple[object, ...]:
        return asked.topics, asked.partitions, asked.body, asked.durability

    return cell(one) == cell(other)


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
        predicted = _seconds(layout, work, _constants(layout, work, rest), point.asked)
        held_back.append(max(predicted, 1e-12) / point.seconds)
    return Fit(layout, work, points, _constants(layout, work, points), held_back, inner)


def _between(asked: Question, others: Sequence[Question]) -> bool:
    """True if there are as few and as many partitions, as small and as large bodies."""
    if not others:
        return False
    return all(
        min(getattr(one, name) for one in others)
        <= getattr(asked, name)
        <= max(getattr(one, name) for one in others)
        for name in ("places", "topics", "body")
    )


def _largest(ratios: Iterable[float]) -> float:
    return exp(max((abs(log(ratio)) for ratio in ratios), default=log(2)))


def _constants(layout: str, work: str, points: Sequence[Point]) -> dict[str, float]:
    counts = [terms(layout, work, point.asked) for point in points]
    names = sorted({name for one in counts for name in one})
    rows = np.array([[one.get(name, 0.0) for name in names] for one in counts])
    rows /= np.array([point.seconds for point in points])[:, None]
    scale = np.where(rows.max(axis=0) > 0, rows.max(axis=0), 1.0)
    found = nonnegative(rows / scale, np.ones(len(points))) / scale
    known = dict(zip(names, found.tolist(), strict=True))
    return {name: known.get(name, 0.0) for name in (*names, "sync")}


def _seconds(layout: str, work: str, constants: Mapping[str, float], asked: Question) -> float:
    return sum(
        constants.get(name, 0.0) * count for name, count in terms(layout, work, asked).items()
    )


class Model:
    """The fits of all layouts that have a format here and enough cells."""

    def __init__(self, cells: Iterable[Mapping[str, Any]]) -> None:
        points: dict[tuple[str, str], list[Point]] = {}
        for cell in cells:
            key = cell["layout"], cell["work"]
            if key[0] not in FORMATS or key[1] not in WORKS or not cell["rate_median"]:
                continue
            if (
                cell["body"] == "mix"
                or cell["skew"] != "even"
                or cell["threads"] != 1
                or cell.get("disk")
            ):
                continue
            asked = Question(
                cell["topics"], cell["partitions"], int(cell["body"]), cell["durability"],
                cell["batch"], cell["messages" if key[1] in ("append", "batch") else "stored"],
            )  # fmt: skip
            points.setdefault(key, []).append(Point(asked, 1 / cell["rate_median"]))
        fits = {key: fit(*key, found) for key, found in points.items()}
        self.fits = {key: found for key, found in fits.items() if found is not None}
        self.few = {key: len(points[key]) for key, found in fits.items() if found is None}

    def answer(self, layout: str, work: str, asked: Question) -> Answer:
        """Return what a message costs in a layout; Outside if that is not known."""
        found = self.fits.get((layout, work))
        if found is None:
            few = self.few.get((layout, work), 0)
            raise Outside(f"{few} {work} cells are too few for a fit ({FEWEST_CELLS})")
        return found.answer(asked)

    def curves(self, work: str) -> dict[str, list[tuple[float, float]]]:
        """Return computed 1,000 messages/s against partitions, 1 to a million, by layout."""
        found: dict[str, list[tuple[float, float]]] = {}
        for layout, kind in self.fits:
            if kind != work:
                continue
            body = self.fits[layout, work].usual_body
            for places in np.unique(np.geomspace(1, MOST_PLACES, 25).astype(int)).tolist():
                width = 10 if places >= 10 else 1
                asked = Question(max(1, places // width), width, body)
                try:
                    answer = self.fits[layout, work].answer(asked)
                except Outside:
                    continue
                seconds = sum(answer.parts.values())
                found.setdefault(layout, []).append((float(places), 1e-3 / seconds))
        return found
