"""Which layout for so many partitions, such bodies, such a durability, so many readers?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, floor
from typing import Any

from bench.layouts.capabilities import Unavailable
from bench.layouts.registry import REAL, contender
from bench.report.costs import OPENINGS, STEADY, Question
from bench.report.formats import FORMATS
from bench.report.model import MOST_PLACES, Answer, Model, Outside
from bench.workloads.sizes import Size

#: Partitions of a topic, unless the number of topics is given.
_USUAL_PARTITIONS = 10
_MOST_READERS = 10_000
_MOST_PARTITIONS = 1_000_000_000
_MARKS = {"measured": "m", "between measured cells": "b", "extrapolated": "x"}
_LEGEND = (
    "m measured: the range of its rounds. b between measured cells, x extrapolated: the range of "
    "the errors of cells held back from the fit, or of what few cells allow."
)
_TERMS = {
    "message": "the message", "byte": "its bytes", "look-up": "finding its partition",
    "new file": "making files", "sync": "the sync", "call": "the call, shared by its messages",
}  # fmt: skip


@dataclass(frozen=True)
class Asked:
    """What an engineer wants to store, and how often it is read."""

    #: As many as were asked for; topics × partitions may be some more.
    wanted: int
    question: Question
    readers: int

    def __str__(self) -> str:
        one = self.question
        topics = f"{one.topics:,} topic{'' if one.topics == 1 else 's'}"
        extra = "" if one.places == self.wanted else f" = {one.places:,}"
        each = "one reads" if self.readers == 1 else "each reads"
        readers = f"{self.readers:,} reader{'' if self.readers == 1 else 's'}: {each} everything"
        return (
            f"{self.wanted:,} partitions as {topics} × {one.partitions:,}{extra} "
            f"(--topics), bodies of {one.body:,} B, {one.durability}, "
            f"{readers if self.readers else 'no reader'}"
        )


@dataclass(frozen=True)
class Advice:
    """What is known of one layout."""

    layout: str
    #: Seconds of a message that is written once and read by each reader.
    together: Answer
    append: Answer
    read: Answer | None
    #: By kind of opening: seconds, or the reason why that is not known.
    openings: Mapping[str, Answer | str]
    files: int
    descriptors: int
    #: The least and the most MB of the cells around.
    memory: tuple[float, float] | None

    @property
    def tested(self) -> bool:
        """True if the range rests on cells that were held back, or on a measure."""
        return not self.together.note


def asked_for(partitions: int, topics: int, body: int, durability: str, readers: int) -> Asked:
    """Lay partitions over topics, ten each if `topics` is 0; refuse what makes no sense."""
    if partitions > _MOST_PARTITIONS:
        raise Unavailable(f"--partitions {partitions}: at most {_MOST_PARTITIONS:,}")
    for name, value, least in (
        ("partitions", partitions, 1), ("body", body, 1), ("topics", topics, 0),
        ("readers", readers, 0),
    ):  # fmt: skip
        if value < least:
            raise Unavailable(f"--{name} {value}: at least {least}")
    if topics > partitions:
        raise Unavailable(f"--topics {topics}: more than the {partitions:,} partitions of them all")
    if readers > _MOST_READERS:
        raise Unavailable(
            f"--readers {readers}: at most {_MOST_READERS:,}; they read one after the other on one "
            "machine, and beyond that nothing but reading is left to compare"
        )
    chosen = topics or ceil(partitions / _USUAL_PARTITIONS)
    question = Question(chosen, ceil(partitions / chosen), body, durability)
    return Asked(partitions, question, readers)


def advise(
    model: Model, asked: Asked, cells: Iterable[Mapping[str, Any]] = ()
) -> tuple[list[Advice], dict[str, str]]:
    """Return the layouts, the best first, and the reasons of those that have no rank."""
    found: list[Advice] = []
    without: dict[str, str] = {}
    known = list(cells)
    for layout, form in FORMATS.items():
        if form.opening is None:
            continue  # a limit, not a store
        if reason := _out_of_reach(layout, asked.question):
            without[layout] = reason
            continue
        try:
            one = _advice(model, layout, asked, known)
        except Outside as why:
            without[layout] = str(why)
            continue
        if form.from_memory:
            rate = _rate(one.together)
            without[layout] = f"it acknowledges from memory; {rate} messages/s"
        else:
            found.append(one)
    return sorted(found, key=lambda one: one.together.seconds), without


def _out_of_reach(layout: str, asked: Question) -> str | None:
    """Return why a layout in a virtual machine cannot have a size; None if it can."""
    if layout not in REAL:
        return None
    size = {name: getattr(asked, name) for name in ("topics", "partitions", "body", "durability")}
    reason = contender(layout).beyond("append", Size(**size))
    return None if reason is None else str(reason)


def _advice(model: Model, layout: str, asked: Asked, cells: Sequence[Mapping[str, Any]]) -> Advice:
    question, form = asked.question, FORMATS[layout]
    # Neither a reader nor an opening sees how durable it is.
    cached = replace(question, durability="page_cache")
    stored = replace(cached, messages=stored_for(model))
    append = _answer(model, layout, "append", question)
    read = _answer(model, layout, "read", cached) if asked.readers else None
    openings: dict[str, Answer | str] = {}
    for work in OPENINGS:
        try:
            openings[work] = model.answer(layout, work, stored)
        except Outside as reason:
            openings[work] = str(reason)
    return Advice(
        layout, _together(append, read, asked.readers), append, read, openings,
        int(form.files(question)), int(form.descriptors(question)),
        _memory(layout, question, cells),
    )  # fmt: skip


def _answer(model: Model, layout: str, work: str, asked: Question) -> Answer:
    try:
        return model.answer(layout, work, asked)
    except Outside as reason:
        raise Outside(f"{work}: {reason}") from None


def stored_for(model: Model) -> int:
    """Return with how many messages openings were measured."""
    found = [
        point.asked.messages
        for (_, work), points in model.points.items()
        if work in OPENINGS
        for point in points
    ]
    return max(set(found), key=found.count, default=STEADY)


def _together(append: Answer, read: Answer | None, readers: int) -> Answer:
    """Return what a message costs that is written once and read by each reader."""
    if read is None:
        return append
    both = (append, read)
    order = list(_MARKS)
    return Answer(
        append.seconds + readers * read.seconds,
        append.least + readers * read.least,
        append.most + readers * read.most,
        {}, max((one.marked for one in both), key=order.index),
        "; ".join(dict.fromkeys(one.note for one in both if one.note)),
    )  # fmt: skip


def _memory(
    layout: str, asked: Question, cells: Sequence[Mapping[str, Any]]
) -> tuple[float, float] | None:
    """Return the peak memory of the measured appends around; None if none reaches as far."""
    usual = {"work": "append", "layout": layout, "durability": "page_cache", "body": "1024",
             "skew": "even", "threads": 1}  # fmt: skip
    known = sorted(
        (cell["topics"] * cell["partitions"], cell["peak_mb"])
        for cell in cells
        if cell["peak_mb"] and all(cell[name] == value for name, value in usual.items())
    )
    below = [places for places, _ in known if places <= asked.places]
    above = [places for places, _ in known if places >= asked.places]
    if not below or not above:
        return None
    around = [mb for places, mb in known if max(below) <= places <= min(above)]
    return min(around), max(around)


def shares(parts: Mapping[str, float]) -> list[tuple[str, int]]:
    """Return the parts of a cost in whole per cent that add up to 100, the largest first."""
    total = sum(parts.values())
    if total <= 0:
        return []
    exact = {name: 100 * value / total for name, value in parts.items()}
    found = {name: floor(value) for name, value in exact.items()}
    for name in sorted(exact, key=lambda name: found[name] - exact[name])[
        : 100 - sum(found.values())
    ]:
        found[name] += 1
    return sorted(((n, v) for n, v in found.items() if v), key=lambda item: -item[1])


def lines(model: Model, asked: Asked, cells: Sequence[Mapping[str, Any]]) -> str:
    """Return the advice as text."""
    found, without = advise(model, asked, cells)
    out = [f"{asked}.", ""]
    if found:
        out += [*_rates(found, asked), "", *_held(found, model), "", *_reasons(found), ""]
        out += [*_changes(model, asked), ""]
    else:
        out += ["No layout has an answer.", ""]
    if without:
        out.append("Without a rank:")
        out += [f"  {layout:20}{reason}" for layout, reason in without.items()]
        out.append("")
    return "\n".join(out + _verdict(found, asked))


def _rates(found: Sequence[Advice], asked: Asked) -> list[str]:
    heads = ["", "layout", "together", "append", "read by one"][: 5 if asked.readers else 3]
    if not asked.readers:
        heads[2] = "append"
    rows = []
    for number, one in enumerate(found, 1):
        figures = [one.together, one.append, one.read] if asked.readers else [one.append]
        rows.append([f"{number}", one.layout, *(_rate(each) for each in figures if each)])
    text = "Messages a second, appended one by one by one thread, read 1,000 a call"
    if asked.readers:
        text += "; together: written once and read by each reader, one after the other"
    out = [f"{text}:", *_columns(heads, rows), f"  {_LEGEND}"]
    if java := [one.layout for one in found if one.layout in REAL]:
        out.append(f"  In a virtual machine of Java, without Python's calls: {', '.join(java)}.")
    return out


def _held(found: Sequence[Advice], model: Model) -> list[str]:
    heads = ["", "layout", "open", "after a kill", "files", "descriptors", "MB"]
    rows = []
    for one in found:
        opened = [_seconds(one.openings[work]) for work in OPENINGS]
        memory = "–" if one.memory is None else "{:,.0f} to {:,.0f}".format(*one.memory)
        rows.append(["", one.layout, *opened, f"{one.files:,}", f"{one.descriptors:,}", memory])
    return [
        f"Seconds until the first of {stored_for(model):,} messages is read; by the format files, "
        "and descriptors at most; peak MB of the appends that were measured around:",
        *_columns(heads, rows),
    ]


def _reasons(found: Sequence[Advice]) -> list[str]:
    out = ["Why, by the model:"]
    for one in found:
        for work, answer in (("append", one.append), ("read", one.read)):
            if answer is None:
                continue
            parts = ", ".join(f"{_TERMS.get(n, n)} {v} %" for n, v in shares(answer.parts))
            note = f" ({answer.note})" if answer.note else ""
            out.append(f"  {one.layout:20}{work}: {parts or 'by no fit'}{note}")
    return out


def _changes(model: Model, asked: Asked) -> list[str]:
    """Return the first three of neighbouring questions."""
    one, readers = asked.question, asked.readers
    other = "page_cache" if one.durability == "fsync" else "fsync"
    more = min(10 * readers or 10, _MOST_READERS)
    asks = {
        f"with {other}": replace(asked, question=replace(one, durability=other)),
        "without readers": replace(asked, readers=0),
        f"{more:,} readers": replace(asked, readers=more),
        f"bodies of {2 * one.body:,} B": replace(asked, question=replace(one, body=2 * one.body)),
        f"{10 * one.places:,} partitions": replace(
            asked, question=replace(one, partitions=10 * one.partitions)
        ),
    }
    out = ["What changes that:"]
    for text, changed in asks.items():
        if changed == asked:
            continue
        found, without = advise(model, changed)
        first = ", ".join(f"{each.layout} {_rate(each.together)}" for each in found[:3])
        reason = next(iter(without.values()), "")
        out.append(f"  {text + ':':26}{first or f'no answer ({reason})'}")
    return out


def _verdict(found: Sequence[Advice], asked: Asked) -> list[str]:
    """Return which one is sure to be the best, and how to measure that."""
    one = asked.question
    names = " ".join(each.layout for each in found[:2]) or "tubestore lmdb"
    works = (
        "--only append --only read --only open" if asked.readers else "--only append --only open"
    )
    command = (
        f"  python -m bench compare {names} {works} --topics {one.topics} "
        f"--partitions {one.partitions} --body {one.body} --durability {one.durability}"
    )
    if not found and one.places > MOST_PLACES:
        return []
    if len(found) < 2:
        return ["Measure it on your machine:", command]
    first, second = found[:2]
    times = second.together.seconds / first.together.seconds
    sure = first.together.most < second.together.least and first.tested and second.tested
    text = (
        f"{first.layout}: {times:.1f} times {second.layout}, beyond both ranges."
        if sure
        else f"{first.layout}, but {second.layout} may be as fast: their ranges meet, or are not "
        "tested."
    )
    return [f"{text} On your machine:", command]


def _rate(one: Answer) -> str:
    """Return messages a second with their range, and how they are known."""
    low, high = _digits(1 / one.most), _digits(1 / one.least)
    return f"{_digits(one.rate)} {_MARKS[one.marked]} ({low} to {high})"


def _seconds(one: Answer | str) -> str:
    if isinstance(one, str):
        return "–"
    return (
        f"{_digits(one.seconds)} {_MARKS[one.marked]} ({_digits(one.least)} to {_digits(one.most)})"
    )


def _digits(value: float) -> str:
    """Return three digits."""
    if value >= 1000:
        size = 10 ** (len(str(int(value))) - 3)
        return f"{round(value / size) * size:,}"
    return f"{value:.3g}"


def _columns(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    table = [list(heads), *map(list, rows)]
    widths = [max(len(row[at]) for row in table) for at in range(len(heads))]
    return [
        "  "
        + "  ".join(value.ljust(width) for value, width in zip(row, widths, strict=True)).rstrip()
        for row in table
    ]
