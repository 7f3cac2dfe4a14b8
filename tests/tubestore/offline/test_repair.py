"""`tubestore.offline.repair` does what it says, loses nothing good, and may be interrupted."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tubestore
from tests.proof.explorer.explore import is_thorough, seed_from_environment
from tests.support.crashes import some_states
from tests.support.engine.damaged.repaired import (
    HOME,
    SMALL,
    actions,
    files_of,
    good_rows,
    mended,
    written,
)
from tests.support.golden import TUBE_VERSION, GoldenFactory, unpack
from tests.support.publishing import CLOCK, ROOT, open_store
from tests.support.tube import make_rows, open_shard, quarantined, tree_digest, write_rows
from tubestore.clock import ManualClock
from tubestore.core.vfs import OsVfs
from tubestore.errors import StoreLocked
from tubestore.offline.check import check
from tubestore.offline.repair import repair
from tubestore.record.records import ENTRY_SIZE
from tubestore.store.topic import shards_of
from tubestore.testing import MemoryVfs

SCENARIOS = ["torn", "crash", "timeroll", "aged", "empty", "direct", "attributes", "rolled"]


@pytest.mark.one_in(4)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_each_golden_store_is_repaired_and_opening_it_changes_nothing(
    scenario: str, tmp_path: Path
) -> None:
    store = unpack("tubemq", TUBE_VERSION, scenario, tmp_path / "g").store
    for home in sorted(path for path in store.iterdir() if path.is_dir()):
        root = tmp_path / home.name
        shutil.copytree(home, root / home.name)
        digest = tree_digest(root)
        list(repair(root))
        assert tree_digest(root) == digest, "a dry run changes nothing"
        mended(root, OsVfs())
        topic, _, store_id = home.name.rpartition("-")
        expected = good_rows(root, OsVfs())
        with tubestore.open(root, background=False) as opened:
            if topic not in opened:
                assert expected == []
                continue
            shard = shards_of(opened[topic]).writable(int(store_id))
            found = shard.recovered
            assert (found.reindexed, found.data_cut, found.index_cut) == (0, 0, 0), home.name
            rows = opened[topic].scan(verify=True).read_all().to_pylist()
            good = [r for r in rows if r["state"] in ("ok", "bad_attributes")]
            assert [(r["offset"], r["body"]) for r in good] == [
                (r["index_offset"], r["body"]) for r in expected
            ]
            opened[topic].append(b"after")


def test_what_cannot_be_mended_is_named_with_its_bytes(golden: GoldenFactory) -> None:
    root = golden("tubemq", TUBE_VERSION, "torn").store
    left = {}
    for action in repair(root):
        if action.action == "leave":
            left.setdefault(Path(action.path).parent.name, []).append(action)
    assert sorted(left) == [
        "headerother-0",  # its entry counts
        "innerzero-0",
        "lengthbad-0",
        "lengthsmall-0",
        "payloadbit-0",
        "tokenbad-0",
    ]
    (bit,) = left["payloadbit-0"]
    assert (bit.position, bit.bytes) == (4231, 115)
    assert "checksum" in bit.message


def test_a_sound_store_needs_nothing_and_gets_nothing() -> None:
    vfs = written(**SMALL)
    before = without_writers(vfs)
    assert list(repair(ROOT, vfs=vfs, apply=True)) == []
    assert without_writers(vfs) == before


def test_a_store_that_is_open_for_writing_is_refused() -> None:
    vfs = MemoryVfs(CLOCK)
    with open_store(vfs):
        with pytest.raises(StoreLocked):
            list(repair(ROOT, vfs=vfs, apply=True))
        with pytest.raises(StoreLocked):
            list(repair(ROOT, vfs=vfs, is_written=lambda: True))
    assert list(repair(ROOT, vfs=vfs, apply=True)) == []


def test_only_the_shards_asked_for_are_repaired() -> None:
    vfs = MemoryVfs(CLOCK)
    for name in ("t-0", "t-1", "u-0"):
        write_rows(vfs, make_rows(5), f"/store/{name}")
        path = f"/store/{name}/{0:020d}.tube"
        vfs.open(path).pwrite(b"torn", len(vfs.read_file(path)))
    for how, names in (({"topic": "u"}, {"u-0"}), ({"topic": "t", "store_id": 1}, {"t-1"})):
        done = list(repair(ROOT, vfs=vfs, apply=True, **how))  # type: ignore[arg-type]
        assert {a.path.split("/")[2] for a in done} == names
    assert {f.path.split("/")[2] for f in check(ROOT, vfs=vfs, wait=lambda _: None)} == {"t-0"}


def much_damaged() -> MemoryVfs:
    """A shard with damage of every kind that repair knows."""
    vfs = written(**SMALL)
    data, index = files_of(vfs, ".tube"), files_of(vfs, ".index")
    vfs.remove(data[2])
    vfs.open(data[4]).pwrite(b"\xff" * 8, 10)
    vfs.open(data[-1]).pwrite(b"torn" * 20, len(vfs.read_file(data[-1])))
    vfs.remove(index[1])
    vfs.open(index[3]).pwrite(bytes(ENTRY_SIZE), ENTRY_SIZE)
    vfs.open(index[-1]).pwrite(b"\1" * 33, len(vfs.read_file(index[-1])))
    vfs.replace_file(f"{HOME}/x.tube", b"stray")
    vfs.rename(data[0], f"{HOME}/0.tube")
    return vfs


def without_writers(vfs: MemoryVfs) -> dict[str, bytes]:
    """What is in a store, but for who has it open."""
    lock = ("/.tubestore/lock", "/.tubestore/writers/")
    return {p: d for p, d in vfs.tree().items() if not any(name in p for name in lock)}


def without_quarantine(vfs: MemoryVfs) -> dict[str, bytes]:
    return {
        p: d
        for p, d in without_writers(vfs).items()
        if "/quarantine/" not in p and not p.endswith("checkpoint.json")
    }


@pytest.mark.gate
@pytest.mark.crash
def test_a_repair_that_is_interrupted_anywhere_is_run_again() -> None:
    vfs = much_damaged()
    good = good_rows(ROOT, vfs)
    journal = vfs.record()
    done = mended(ROOT, vfs)
    wanted = {"quarantine_file", "fill_gap", "cut_data", "rewrite_index", "rename", "leave"}
    assert wanted <= set(actions(done))
    end = without_quarantine(vfs)
    states = some_states(journal, 60, seed=1, variants=6)
    for state in states:
        again = state.vfs(ManualClock(CLOCK.now_ms() + 1000))
        assert [r for r in good_rows(ROOT, again) if r in good] == good, state
        list(repair(ROOT, vfs=again, apply=True))
        assert without_quarantine(again) == end, state
        kept = b"".join(quarantined(again).values())
        assert b"torn" * 20 in kept, state
        assert b"stray" in kept, state
    assert len(states) > 50


def spoil(vfs: MemoryVfs, rng: random.Random) -> None:
    """Damage one file: a bit, some bytes, the tail, zeros behind it, or all of it."""
    path = rng.choice([*files_of(vfs, ".tube"), *files_of(vfs, ".index")])
    data = vfs.read_file(path)
    file = vfs.open(path)
    kinds: list[Callable[[], Any]] = [
        lambda: file.pwrite(bytes([data[at] ^ 1 << rng.randrange(8)]), at) if data else None,
        lambda: file.pwrite(rng.randbytes(rng.randint(1, 60)), at),
        lambda: file.truncate(at),
        lambda: file.pwrite(bytes(rng.randint(1, 90)), len(data)),
        lambda: vfs.remove(path),
    ]
    at = rng.randrange(len(data)) if data else 0
    rng.choice(kinds)()


@pytest.mark.gate
def test_whatever_is_damaged_nothing_intact_is_lost_and_the_store_opens() -> None:
    seed = seed_from_environment()
    rng = random.Random(seed)
    print(f"{seed=}")
    pristine = written(**SMALL)
    for _ in range(150 if is_thorough() else 60):
        vfs = MemoryVfs(CLOCK)
        vfs.make_directories(f"{HOME}/index")
        for path, data in pristine.tree().items():
            if "/.tubestore/" not in path:
                vfs.replace_file(path, data)
        for _ in range(rng.randint(1, 4)):
            spoil(vfs, rng)
        done = mended(ROOT, vfs)
        shard = open_shard(vfs, HOME, **SMALL)
        left = sum(action.action == "leave" for action in done)
        found = shard.recovered
        assert left or not found.problems, (seed, done)
        assert (found.data_cut, found.index_cut, found.reindexed) == (0, 0, 0), (seed, done)
        shard.close()
