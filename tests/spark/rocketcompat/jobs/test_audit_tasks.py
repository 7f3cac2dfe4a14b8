"""A task of an audit finds every planted damage, and none behind a writer."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import rocketcompat
from rocketcompat import Message
from tests.spark.rocket_audits import audited, verify
from tests.spark.rocket_audits import store as store
from tests.spark.rocket_audits import template as template
from tests.spark.rocket_stores import CONFIG, dumped

pytestmark = pytest.mark.usefixtures("small_waves")

GEOMETRY = {"maxHashSlotNum": 100, "maxIndexNum": 400}


def place_to_flip(store: Path, name: str, rng: random.Random) -> tuple[Path, int]:
    """Choose a byte that stands for something which stands elsewhere too, or under a checksum."""
    if name == "commitlog":  # of a body
        row = rng.choice(dumped(store))
        path = max(p for p in (store / name).iterdir() if int(p.name) <= row["physical_offset"])
        start = path.read_bytes().index(row["body"], row["physical_offset"] - int(path.name))
        return path, start + rng.randrange(len(row["body"]))
    path = rng.choice([p for p in sorted((store / name).rglob("*")) if p.is_file()])
    used = len(path.read_bytes().rstrip(b"\0"))
    if name == "consumequeue":
        return path, rng.randrange(used)
    item = 40 + 100 * 4 + 20 * rng.randrange(1, (used - 440) // 20)
    return path, item + rng.choice([*range(12), *range(16, 20)])  # but for its time


@pytest.mark.parametrize("name", ["commitlog", "consumequeue", "index"])
def test_every_planted_bit_flip_is_found(store: Path, name: str) -> None:
    seed = random.randrange(1 << 30)
    rng = random.Random(seed)
    for _ in range(6):
        path, place = place_to_flip(store, name, rng)
        before = path.read_bytes()
        raw = bytearray(before)
        raw[place] ^= 1 << rng.randrange(8)
        path.write_bytes(raw)
        assert verify(store, GEOMETRY), f"seed {seed}: {path}, byte {place}"
        path.write_bytes(before)
    assert verify(store) == []


def test_a_store_that_is_being_written_has_no_findings_of_its_own(store: Path) -> None:
    with rocketcompat.open(store, "w", CONFIG, background=False) as writer:
        for number in range(50):
            writer.put_message(Message("topic0", b"late", keys=[f"late-{number}"]))
        reasons = {(f["reason"], f["severity"]) for f in audited(store).findings}
    assert {severity for _, severity in reasons} <= {"warning"}
