"""Queues of inner batches compared by the piece: as a plain model says, in bounded memory."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rocketcompat.formats import BATCH_CQ_UNIT
from rocketcompat.inspect import batch_queues, queue_units
from rocketcompat.inspect.batch_queues import BatchComparison
from rocketcompat.inspect.directory import StoreDirectory
from rocketcompat.inspect.log_units import LogUnits, QueueKey
from rocketcompat.inspect.queues import QueueViews
from tests.support.inner_batches import CONFIG, batch, opened

UNIT = BATCH_CQ_UNIT.size


@pytest.fixture(autouse=True)
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_units, "WINDOW_UNITS", 7)
    monkeypatch.setattr(batch_queues, "WINDOW_UNITS", 3)


def filled(root: Path, count: int = 120) -> None:
    with opened(root, CONFIG.changed(mapped_file_size_commit_log=16 << 10)) as store:
        for number in range(count):
            store.put_inner_batch(batch(1 + number % 3, queue_id=number % 2))


def compared(directory: StoreDirectory, held_max: int) -> dict[QueueKey, Any]:
    """Return the runs of all queues."""
    found = BatchComparison(directory, held_max=held_max)
    units = LogUnits(directory, batches=found.take, regions=found.take_region).scan()
    found.finish(units.log_end)
    return {key: found.compared(key).runs for key in found.names()}


def stored_units(root: Path, key: QueueKey) -> tuple[int, Any]:
    """Return the first place of a queue's files and their units; zeros at the end are left out."""
    paths = sorted((root / "batchconsumequeue" / key[0] / str(key[1])).glob("*"))
    first = int(paths[0].name) if paths else 0
    raw = bytearray()
    for path in paths:
        raw.extend(bytes(max(int(path.name) - first - len(raw), 0)))
        content = path.read_bytes()
        raw[int(path.name) - first :] = content[: len(content) // UNIT * UNIT]
    units = np.frombuffer(bytes(raw), BATCH_CQ_UNIT.dtype)
    used = np.flatnonzero(units != np.zeros(1, units.dtype))
    return first // UNIT, units[: int(used[-1]) + 1 if len(used) else 0]


def modelled(directory: StoreDirectory, key: QueueKey, log: LogUnits) -> tuple[Any, list[str]]:
    """Return what the files of a queue should hold, and the states of all places."""
    _, stored = stored_units(Path(directory.root), key)
    places = stored["physical_offset"].astype(np.int64)
    sound = (stored["size"] > 0) & (stored["batch_size"] > 0)
    old = sound & (places < directory.log.min_offset)
    expired = stored[: len(old) if old.all() else int(old.argmin())]
    damaged = {place for region in log.regions for place in places[sound].tolist()
               if region.start <= place < region.end}  # fmt: skip
    kept = stored[sound & np.isin(places, list(damaged))]
    _, computed = log.of_batches().units.get(key, ((), stored[:0]))
    body = np.concatenate((kept, computed)).astype(BATCH_CQ_UNIT.dtype)
    body = body[np.argsort(body["physical_offset"].astype(np.int64), kind="stable")]
    wanted = np.concatenate((expired, body)).astype(BATCH_CQ_UNIT.dtype)
    states = []
    for at in range(max(len(stored), len(wanted))):
        if at >= len(wanted):
            states.append("surplus")
        elif at >= len(stored):
            states.append("missing")
        elif stored[at] != wanted[at]:
            states.append("wrong")
        else:
            states.append("damaged" if int(wanted[at]["physical_offset"]) in damaged else "ok")
    return wanted, states


def assert_same(root: Path, *limits: int) -> None:
    """All queues have the states of the model, whatever is held, and their views the units."""
    directory = StoreDirectory(root)
    log = LogUnits(directory).scan()
    views = {(view.topic, view.queue_id): view for view in QueueViews(directory).of_batches()}
    for key, view in views.items():
        wanted, states = modelled(directory, key, log)
        assert view.states.tolist() == states, key
        assert view.units.tobytes() == wanted.tobytes(), key
    for held_max in limits:
        found = compared(directory, held_max)
        assert found == {key: view.runs for key, view in views.items()}, held_max


def damage(rng: random.Random, root: Path) -> None:
    """Damage one file of a queue, or of the log."""
    path = rng.choice(sorted((root / "batchconsumequeue").glob("*/*/*")))
    content = bytearray(path.read_bytes())
    units = np.frombuffer(bytes(content[: len(content) // UNIT * UNIT]), BATCH_CQ_UNIT.dtype).copy()
    kind = rng.randrange(7)
    if kind == 0:
        at = rng.randrange(len(content))
        content[at : at + 60] = rng.randbytes(min(60, len(content) - at))
        path.write_bytes(content)
    elif kind == 1:
        path.unlink()
    elif kind == 2 and len(units) > 1:
        units[0], units[1] = units[1].copy(), units[0].copy()
        path.write_bytes(units.tobytes())
    elif kind == 3:
        path.write_bytes(content[: rng.randrange(len(content))])
    elif kind == 4 and len(units):
        units[rng.randrange(len(units))] = 0
        path.write_bytes(units.tobytes())
    elif kind == 5 and len(units):
        later = path.with_name(f"{int(path.name) + rng.choice([5, 10, 40]) * UNIT:020d}")
        later.write_bytes(content)
    else:
        log = rng.choice(sorted((root / "commitlog").iterdir()))
        damaged = bytearray(log.read_bytes())
        at = rng.randrange(len(damaged) - 3000)
        size = rng.choice([8, 3000])
        damaged[at : at + size] = rng.randbytes(size)
        log.write_bytes(damaged)


@pytest.mark.one_in(8, 2)
@pytest.mark.parametrize("seed", range(30))
def test_damaged_queues_of_batches_have_the_states_of_their_views(
    tmp_path: Path, seed: int
) -> None:
    print("seed", seed)
    rng = random.Random(seed)
    filled(tmp_path)
    if seed % 4 == 3:
        min((tmp_path / "commitlog").iterdir()).unlink()  # retention removed it
    for _ in range(rng.randrange(6)):
        damage(rng, tmp_path)
    assert_same(tmp_path, 1, 20, 60, 1 << 20)


@pytest.mark.parametrize("lost", ["nothing", "a part of the log", "the files"])
def test_what_is_held_of_queues_of_batches_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    """Units wait up to a limit: those of the log, and those in the files of damaged records."""
    filled(tmp_path, 600)
    if lost == "a part of the log":
        log = sorted((tmp_path / "commitlog").iterdir())[1]
        log.write_bytes(random.Random(3).randbytes(len(log.read_bytes())))
    elif lost == "the files":
        for path in (tmp_path / "batchconsumequeue").glob("*/*/*"):
            path.unlink()
    held: list[int] = []
    compare = BatchComparison._compare

    def counted(self: BatchComparison, files: Any, queue: Any, body: Any, kept: Any) -> None:
        held.extend([len(kept), len(body) - len(kept)])
        compare(self, files, queue, body, kept)

    monkeypatch.setattr(BatchComparison, "_compare", counted)
    compared(StoreDirectory(tmp_path), 30)
    assert 5 < max(held) <= 31
