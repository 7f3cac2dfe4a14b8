"""Queues compared with the log by the piece (queue_comparison.py): as in `QueueView`, bounded."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rocketcompat
from rocketcompat import Message, MessageStoreConfig
from rocketcompat.check import whole as check
from rocketcompat.formats import CQ_PRE_FILL_SIZE, CQ_UNIT
from rocketcompat.inspect import comparison as queue_comparison
from rocketcompat.inspect import queue_units
from rocketcompat.inspect.comparison import QueueComparison
from rocketcompat.inspect.directory import StoreDirectory
from rocketcompat.inspect.log_units import LogUnits, QueueKey
from rocketcompat.inspect.queue_units import states_of
from rocketcompat.inspect.queues import QueueView, QueueViews
from rocketcompat.queues.units import GAP_UNITS_MAX, Units
from rocketcompat.record.properties import SCHEDULE_TOPIC
from tests.support.golden import GoldenFactory, golden_fixture, rocket_scenarios  # noqa: F401

SCENARIOS = [(v, name) for v in ("4.9.8", "5.3.3") for name in rocket_scenarios(v)]


@pytest.fixture(autouse=True)
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_comparison, "WINDOW_UNITS", 7)
    monkeypatch.setattr(queue_units, "WINDOW_UNITS", 7)


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


@pytest.mark.one_in(8, 2)
@pytest.mark.parametrize(("version", "scenario"), SCENARIOS)
def test_the_queues_of_a_real_store_have_the_states_of_their_views(
    golden: GoldenFactory, version: str, scenario: str
) -> None:
    root = golden("rocketmq", version, scenario).store
    assert_same(root, 40)


@pytest.mark.one_in(6, 2)
@pytest.mark.parametrize("seed", range(25))
def test_damaged_queues_have_the_states_of_their_views(tmp_path: Path, seed: int) -> None:
    """Damaged units, records with other queue offsets, files that are gone, damage of the log."""
    print("seed", seed)
    rng = random.Random(seed)
    config = MessageStoreConfig(
        mapped_file_size_commit_log=16 << 10, mapped_file_size_consume_queue=20 * 20
    )
    with rocketcompat.open(tmp_path, "w", config, layouts=["consume_queue"]) as store:
        for number in range(250):
            store.put_message(Message(f"T{number % 2}", b"x" * 100))
    files = sorted((tmp_path / "consumequeue").glob("*/*/*"))
    for _ in range(rng.randrange(1, 6)):
        path = rng.choice(files)
        content = bytearray(path.read_bytes()) if path.exists() else bytearray()
        whole = bytes(content[: len(content) // CQ_UNIT.size * CQ_UNIT.size])
        units = np.frombuffer(whole, CQ_UNIT.dtype)
        kind = rng.randrange(6)
        if kind == 0 and len(units):
            at = rng.randrange(len(content))
            content[at : at + 40] = rng.randbytes(min(40, len(content) - at))
            path.write_bytes(content)
        elif kind == 1 and path.exists():
            path.unlink()
        elif kind == 2 and len(units):
            changed = units.copy()
            a, b = rng.randrange(len(units)), rng.randrange(len(units))
            changed[a], changed[b] = units[b], units[a]
            changed["size"][rng.randrange(len(units))] = 0x7FFFFFFF
            path.write_bytes(changed.tobytes())
        elif kind == 3 and len(units):
            changed = units.copy()
            changed["tags_code"][rng.randrange(len(units)) :] = -(1 << 60)
            path.write_bytes(changed.tobytes())
        elif kind == 4 and len(units):
            path.write_bytes(content[: rng.randrange(len(content))])
        else:
            log = rng.choice(sorted((tmp_path / "commitlog").iterdir()))
            damaged = bytearray(log.read_bytes())
            at = rng.randrange(len(damaged) - 200)
            damaged[at : at + 8] = rng.randrange(40).to_bytes(8, "big")
            log.write_bytes(damaged)
    for held_max in (1, 60, 1 << 20):
        assert_same(tmp_path, held_max)


def test_a_record_that_names_the_queue_offset_of_another_is_compared_in_the_order_of_the_log(
    tmp_path: Path,
) -> None:
    """The first record of a queue offset counts, also when a later one agrees with the file."""
    config = MessageStoreConfig(mapped_file_size_commit_log=64 << 10)
    with rocketcompat.open(tmp_path, "w", config, layouts=["consume_queue"]) as store:
        puts = [store.put_message(Message("T", b"x")) for _ in range(60)]
    log = tmp_path / "commitlog" / f"{0:020d}"
    content = bytearray(log.read_bytes())
    at = puts[3].physical_offset + 20
    for number in (40, 59, 60, 1 << 40):
        content[at : at + 8] = number.to_bytes(8, "big")
        log.write_bytes(content)
        for held_max in (1, 30, 1 << 20):
            assert_same(tmp_path, held_max)


def test_what_is_held_of_a_log_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Units wait up to a limit, whether they agree with the files or none is there."""
    config = MessageStoreConfig(mapped_file_size_commit_log=64 << 10)
    with rocketcompat.open(tmp_path, "w", config, layouts=["consume_queue"]) as store:
        for _ in range(1000):
            store.put_message(Message("T", b"x" * 100))
    for path in (None, *(tmp_path / "consumequeue").glob("*/*/*")):
        if path is not None:
            path.unlink()
        directory = StoreDirectory(tmp_path)
        comparison, most = QueueComparison(directory, held_max=100), 0

        def take(key: QueueKey, offsets: np.ndarray, units: np.ndarray) -> None:
            nonlocal most
            for at in range(len(units)):
                comparison.take(key, offsets[at : at + 1], units[at : at + 1])  # noqa: B023
                held = comparison._held.get(key, [])  # noqa: B023
                most = max(most, sum(len(some) for some, _ in held))

        units = LogUnits(directory, ordinary=take).scan()
        comparison.finish(units.log_end)
        assert 5 < most <= 100
        state = "ok" if path is None else "missing"
        assert list(comparison.compared(("T", 0)).runs) == [(0, 1000, state)]
    monkeypatch.setattr(check, "QueueComparison", lambda d: QueueComparison(d, held_max=100))
    assert [row["message"].partition(":")[0] for row in check.check(tmp_path)
            if row["reason"] == "unit_missing"] == ["units 0 to 999"]  # fmt: skip
