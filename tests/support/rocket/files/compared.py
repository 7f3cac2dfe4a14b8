"""Queues compared with the units that follow from the log."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rocketcompat.formats import CQ_PRE_FILL_SIZE, CQ_UNIT
from rocketcompat.inspect.comparison import QueueComparison
from rocketcompat.inspect.directory import StoreDirectory
from rocketcompat.inspect.log_units import LogUnits, QueueKey
from rocketcompat.inspect.queue_units import states_of
from rocketcompat.inspect.queues import QueueView, QueueViews
from rocketcompat.queues.units import GAP_UNITS_MAX, Units
from rocketcompat.record.properties import SCHEDULE_TOPIC


@dataclass
class Modelled:
    """A queue as a plain model has it: all units of the log laid over those of the files."""

    low: int
    high: int
    units: Units
    states: list[str]


def modelled(root: Path, key: QueueKey, log: LogUnits) -> Modelled:
    directory = StoreDirectory(root)
    keep_tags = key[0] == SCHEDULE_TOPIC
    first, stored = stored_units(directory, key)
    offsets, computed = log.plain().units.get(key, (np.empty(0, np.int64), stored[:0]))
    offsets, rows = np.unique(offsets, return_index=True)  # the first record of an offset counts
    ahead = np.flatnonzero(np.diff(offsets) > GAP_UNITS_MAX)
    count = int(ahead[0]) + 1 if len(ahead) else len(offsets)
    from_log = dict(zip(offsets[:count].tolist(), computed[rows[:count]].tolist(), strict=True))
    places = {first + at: unit for at, unit in enumerate(stored.tolist()) if unit[1] > 0 <= unit[0]}
    real = {place: unit for place, unit in places.items() if unit[1] != CQ_PRE_FILL_SIZE}
    log_min = directory.log.min_offset
    damaged = {p for p, unit in real.items()
               for region in log.regions if region.start <= unit[0] < region.end}  # fmt: skip
    low, high = bounds(first, stored, places, real, from_log, damaged, log_min)
    end = max([high, *(place + 1 for place in real)])
    units = np.zeros(end - low, CQ_UNIT.dtype)
    units["size"] = CQ_PRE_FILL_SIZE
    states = ["fill"] * len(units)
    for place in range(low, end):
        there, wanted = real.get(place), from_log.get(place)
        if there is not None:
            units[place - low] = there
            states[place - low] = "damaged" if place in damaged and place < high else "surplus"
        if wanted is not None:
            if there is not None and there[0] == wanted[0] and (keep_tags or there[2] < -(1 << 31)):
                wanted = (*wanted[:2], there[2])
            units[place - low] = wanted
            states[place - low] = (
                "missing" if there is None else "ok" if there == wanted else "wrong"
            )
    return Modelled(low, high, units, states)


def bounds(
    first: int, stored: Units, places: dict[int, Any], real: dict[int, Any],
    from_log: dict[int, Any], damaged: set[int], log_min: int,
) -> tuple[int, int]:  # fmt: skip
    """Return where the queue begins and ends."""
    expired = {place for place, unit in places.items() if unit[0] < log_min}
    expired_end = first
    while expired_end < first + len(stored) and (
        expired_end in expired or stored[expired_end - first]["size"] == CQ_PRE_FILL_SIZE
    ):
        expired_end += 1
    low = high = expired_end if any(place < expired_end for place in expired) else 0
    if damaged:
        low = high = min(damaged)
    if from_log:
        kept = [place for place in real if place not in expired]
        low, high = min([*from_log, *damaged, *kept]), max(from_log) + 1
    while high in damaged:
        high += 1
    return low, high


def stored_units(directory: StoreDirectory, key: QueueKey) -> tuple[int, Units]:
    """Return the first place of a queue's files and their units; zeros at the end are left out."""
    size = directory.config.consume_queue_file_size
    paths = sorted(Path(directory.queue_path(*key)).glob("*"))
    first = int(paths[0].name) if paths else 0
    raw = bytearray()
    for path in paths:
        raw.extend(bytes(max(int(path.name) - first - len(raw), 0)))
        content = path.read_bytes()[:size]
        raw[int(path.name) - first :] = content[: len(content) // CQ_UNIT.size * CQ_UNIT.size]
    units = np.frombuffer(bytes(raw), CQ_UNIT.dtype)
    used = np.flatnonzero(units != np.zeros(1, units.dtype))
    return first // CQ_UNIT.size, units[: int(used[-1]) + 1 if len(used) else 0]


def assert_same(root: Path, held_max: int) -> None:
    """All queues have the bounds, states and units of the model, and their views' addresses."""
    directory = StoreDirectory(root)
    comparison = QueueComparison(directory, held_max=held_max)
    units = LogUnits(
        directory, ordinary=comparison.take, regions=comparison.take_region
    ).scan()  # fmt: skip
    comparison.finish(units.log_end)
    views = QueueViews(directory)
    names: list[QueueKey] = comparison.names()
    assert names == [(view.topic, view.queue_id) for view in views.ordinary()]
    log = LogUnits(directory).scan()
    for key in names:
        view, found, model = views.view(key), comparison.compared(key), modelled(root, key, log)
        assert isinstance(view, QueueView)
        assert (view.min_offset, view.max_offset) == (model.low, model.high), key
        assert view.states.tolist() == model.states, key
        assert view.units.tobytes() == model.units.tobytes(), key
        assert states_of(found.runs).tolist() == model.states, key
        assert (found.low, found.high) == (model.low, model.high)
        wanted = [pair for some in view.addresses() for pair in zip(*some, strict=True)]
        assert [pair for some in found.addresses() for pair in zip(*some, strict=True)] == wanted
