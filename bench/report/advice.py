"""Which layout for so many partitions, such bodies, such a durability, so many readers?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bench.report.costs import FORMATS, Question
from bench.report.model import Answer, Model, Outside


@dataclass(frozen=True)
class Advice:
    """One layout's answer: messages a second that are written once and read by each reader."""

    layout: str
    rate: float
    low: float
    high: float
    #: The largest parts of the cost: (what, share).
    parts: tuple[tuple[str, float], ...]
    marked: str
    #: False if the range is that of other durabilities.
    tested: bool


def advise(model: Model, asked: Question, readers: int) -> tuple[list[Advice], Mapping[str, str]]:
    """Return the layouts, the best first, and the reasons of those without an answer."""
    found: list[Advice] = []
    without: dict[str, str] = {}
    for layout in FORMATS:
        try:
            answers = [("append", 1, model.answer(layout, "append", asked))]
            if readers:
                answers.append(("read", readers, model.answer(layout, "read", _reading(asked))))
        except Outside as reason:
            without[layout] = str(reason)
            continue
        found.append(_advice(layout, answers))
    return sorted(found, key=lambda one: -one.rate), without


def _reading(asked: Question) -> Question:
    """Return the same for readers, whatever the durability of what they read."""
    return Question(asked.topics, asked.partitions, asked.body)


def _advice(layout: str, answers: list[tuple[str, int, Answer]]) -> Advice:
    seconds = sum(times * one.seconds for _, times, one in answers)
    most = sum(times * one.seconds * one.factor for _, times, one in answers)
    least = sum(times * one.seconds / one.factor for _, times, one in answers)
    shares = {
        f"{work}: {name}": times * value / seconds
        for work, times, one in answers
        for name, value in one.parts.items()
    }
    order = ("extrapolated", "between measured cells", "measured")
    marked = min((one.marked for _, _, one in answers), key=order.index)
    largest = sorted(shares.items(), key=lambda item: -item[1])[:3]
    tested = all(one.tested for _, _, one in answers)
    return Advice(layout, 1 / seconds, 1 / most, 1 / least, tuple(largest), marked, tested)


def lines(found: list[Advice], without: Mapping[str, str], asked: Question, readers: int) -> str:
    """Return the advice as text."""
    out = [
        f"{asked.topics:,} topics × {asked.partitions:,} partitions, bodies of {asked.body:,} B, "
        f"{asked.durability}, appended one by one, {readers} readers of everything.",
        "Messages a second that are written once and read by each reader, one after the other:",
    ]
    for one in found:
        parts = ", ".join(f"{name} {share:.0%}" for name, share in one.parts)
        note = "" if one.tested else f", by one cell with {asked.durability}: not tested"
        out.append(
            f"  {one.layout:14}{one.rate:12,.0f}  ({one.low:,.0f} to {one.high:,.0f}; "
            f"{one.marked}{note}; {parts})"
        )
    out += [f"  {layout:14}no answer: {reason}" for layout, reason in without.items()]
    if len(found) > 1:
        first, second = found[:2]
        sure = first.low > second.high and first.tested and second.tested
        out.append(
            f"{first.layout}: {first.rate / second.rate:.1f} times {second.layout}."
            if sure
            else f"{first.layout}, but {second.layout} may be as fast: measure both with "
            f"python -m bench compare {first.layout} {second.layout} --only append "
            f"--topics {asked.topics} --partitions {asked.partitions} --body {asked.body} "
            f"--durability {asked.durability}"
        )
    return "\n".join(out)
