"""Queues compared with the log by the piece (queue_comparison.py): as in `QueueView`, bounded."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

import rocketcompat
from rocketcompat import Message, MessageStoreConfig
from rocketcompat.formats import CQ_UNIT
from rocketcompat.inspect import comparison as queue_comparison
from rocketcompat.inspect import queue_units
from rocketcompat.options import LAYOUTS
from tests.support.golden import GoldenFactory, rocket_scenarios
from tests.support.golden import golden_fixture as golden_fixture
from tests.support.rocket.files.compared import (
    assert_same,
)

SCENARIOS = [(v, name) for v in ("4.9.8", "5.3.3") for name in rocket_scenarios(v)]


@pytest.fixture(autouse=True)
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_comparison, "WINDOW_UNITS", 7)
    monkeypatch.setattr(queue_units, "WINDOW_UNITS", 7)


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
        mapped_file_size_commit_log=16 << 10,
        mapped_file_size_consume_queue=20 * 20,
        layouts=LAYOUTS,
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
