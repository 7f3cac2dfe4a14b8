"""`tubestore.offline.repair` does what it says, loses nothing good, and may be interrupted."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tubestore
from tests.proof.explorer.explore import is_thorough, seed_from_environment
from tests.support.crashes import some_states
from tests.support.golden import TUBE_VERSION, GoldenFactory, unpack
from tests.support.publishing import CLOCK, ROOT, bodies, open_store, some, stage
from tests.support.tube import make_rows, open_shard, tree_digest, write_rows
from tests.tubestore.offline.test_own_files import half_published
from tubestore.clock import ManualClock
from tubestore.core.vfs import OsVfs, Vfs
from tubestore.errors import NotAStore, StoreLocked
from tubestore.offline.check import Reason, check
from tubestore.offline.dump import dump
from tubestore.offline.repair import Action, repair
from tubestore.record.layouts import DATA_HEADER, INDEX_ENTRY, LOST_TIME, NO_KEY_CODE
from tubestore.record.records import ENTRY_SIZE, entries_in
from tubestore.store.topic import shards_of
from tubestore.testing import MemoryVfs

Rows = list[dict[str, Any]]
COLUMNS = ["topic", "store_id", "partition", "index_offset", "body", "msg_id", "state"]
SMALL: dict[str, Any] = {"segment_size_bytes": 300, "index_segment_size_bytes": 5 * ENTRY_SIZE}
#: Warnings of `check` that are no damage: what a real broker wrote like that.
AS_WRITTEN = {Reason.OWN_OFFSET, Reason.BAD_ATTRIBUTES}
SCENARIOS = ["torn", "crash", "timeroll", "aged", "empty", "direct", "attributes", "rolled"]


def good_rows(root: Any, vfs: Vfs) -> Rows:
    """Every message that a correct recovery keeps."""
    rows = [r for batch in dump(root, vfs=vfs) for r in batch.select(COLUMNS).to_pylist()]
    return [row for row in rows if row["state"] in ("ok", "bad_attributes")]


def findings(root: Any, vfs: Vfs) -> list[Reason]:
    found = check(root, vfs=vfs, wait=lambda _: None)
    return [f.reason for f in found if f.reason not in AS_WRITTEN]


def mended(root: Any, vfs: Vfs) -> list[Action]:
    """Repair, and check what every repair has to keep; returns what was done."""
    planned = list(repair(root, vfs=vfs))
    before = good_rows(root, vfs)
    done = list(repair(root, vfs=vfs, apply=True, clock=CLOCK))
    assert done == planned
    assert [r for r in good_rows(root, vfs) if r in before] == before
    left = [action for action in done if action.action == "leave"]
    assert {a.action for a in repair(root, vfs=vfs)} <= {"leave"}
    assert left or not findings(root, vfs)
    return done


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


# -- one damage after the other ----------------------------------------------------------------

HOME = "/store/t-0"
ROWS = make_rows(40)


def written(**settings: Any) -> MemoryVfs:
    vfs = MemoryVfs(CLOCK)
    write_rows(vfs, ROWS, HOME, **settings)
    return vfs


def files_of(vfs: MemoryVfs, suffix: str) -> list[str]:
    return [p for p in vfs.tree() if p.startswith(f"{HOME}/") and p.endswith(suffix)]


def quarantined(vfs: MemoryVfs) -> dict[str, bytes]:
    return {p.rpartition("/")[2]: d for p, d in vfs.tree().items() if "/quarantine/" in p}


def actions(done: list[Action]) -> list[str]:
    return [action.action for action in done]


def test_a_sound_store_needs_nothing_and_gets_nothing() -> None:
    vfs = written(**SMALL)
    before = vfs.tree()
    assert list(repair(ROOT, vfs=vfs, apply=True)) == []
    assert {p: d for p, d in vfs.tree().items() if not p.endswith("/lock")} == before


def test_a_torn_tail_goes_to_the_quarantine() -> None:
    vfs = written()
    (path,) = files_of(vfs, ".tube")
    size = len(vfs.read_file(path))
    vfs.open(path).pwrite(b"torn" * 9, size)
    done = mended(ROOT, vfs)
    assert actions(done) == ["cut_data", "remove_cache"]
    assert (done[0].path, done[0].position, done[0].bytes) == (path, size, 36)
    assert quarantined(vfs) == {f"t-0+{path.rpartition('/')[2]}@{size}": b"torn" * 9}
    assert len(vfs.read_file(path)) == size


def test_a_lost_data_file_is_filled_so_that_what_follows_keeps_its_place() -> None:
    vfs = written(**SMALL)
    before = good_rows(ROOT, vfs)
    data = files_of(vfs, ".tube")
    lost = len(vfs.read_file(data[2]))
    vfs.remove(data[2])
    with pytest.raises(NotAStore):
        open_shard(vfs, HOME)
    done = mended(ROOT, vfs)
    assert done[0] == Action(data[2], "fill_gap", 0, lost, done[0].message)
    assert vfs.read_file(data[2]) == bytes(lost)
    after = good_rows(ROOT, vfs)
    assert [row for row in before if row in after] == after
    assert len(after) > 30
    shard = open_shard(vfs, HOME, **SMALL)
    assert shard.recovered.reindexed == 0
    shard.close()


@pytest.mark.gate
def test_a_lost_index_file_is_rebuilt_to_the_last_byte() -> None:
    for number in range(len(files_of(written(**SMALL), ".index"))):
        vfs = written(**SMALL)
        index = files_of(vfs, ".index")
        before = b"".join(vfs.read_file(p) for p in index)
        vfs.remove(index[number])
        mended(ROOT, vfs)
        assert b"".join(vfs.read_file(p) for p in files_of(vfs, ".index")) == before


def test_a_lost_index_file_is_rebuilt_though_no_entry_before_it_has_its_record() -> None:
    vfs = written(**SMALL)
    index, data = files_of(vfs, ".index"), files_of(vfs, ".tube")
    pristine = entries_in(vfs.read_file(index[2]))
    for path in (index[0], data[1], index[2]):
        vfs.remove(path)
    mended(ROOT, vfs)
    assert entries_in(vfs.read_file(index[1]))[len(pristine) :].tolist() == pristine.tolist()
    shard = open_shard(vfs, HOME, **SMALL)
    assert shard.recovered.reindexed == 0
    shard.close()


def test_a_bad_entry_behind_which_a_real_broker_would_cut_is_replaced_by_one_it_passes() -> None:
    vfs = written()
    (data,), (index,) = files_of(vfs, ".tube"), files_of(vfs, ".index")
    entry = INDEX_ENTRY.unpack_from(vfs.read_file(index), 7 * ENTRY_SIZE)
    vfs.open(data).pwrite(bytes(DATA_HEADER.size), entry.data_offset)
    vfs.open(index).pwrite(INDEX_ENTRY.pack(**{**entry._asdict(), "data_size": -1}), 7 * ENTRY_SIZE)
    done = mended(ROOT, vfs)
    assert actions(done) == ["rewrite_index", "remove_cache", "leave"] or "leave" in actions(done)
    new = INDEX_ENTRY.unpack_from(vfs.read_file(index), 7 * ENTRY_SIZE)
    assert (new.data_offset, new.data_size) == (entry.data_offset, entry.data_size)
    assert len(good_rows(ROOT, vfs)) == 39


def test_an_overlapping_file_is_taken_out() -> None:
    vfs = written(**SMALL)
    data = files_of(vfs, ".tube")
    copy = vfs.read_file(data[1])
    start = int(data[1][-25:-5]) + 10
    vfs.replace_file(f"{HOME}/{start:020d}.tube", copy)
    done = mended(ROOT, vfs)
    assert actions(done) == ["quarantine_file"]
    assert list(quarantined(vfs).values()) == [copy]


def test_two_names_for_one_number_leave_the_longer_file() -> None:
    vfs = written()
    vfs.replace_file(f"{HOME}/0.tube", b"short")
    assert actions(mended(ROOT, vfs)) == ["quarantine_file"]
    assert len(good_rows(ROOT, vfs)) == 40


# -- what is ours ------------------------------------------------------------------------------


@pytest.mark.parametrize("renames", [0, 1, 3, 5, 9])
def test_a_half_published_job_is_finished(renames: int) -> None:
    vfs = half_published(renames)
    done = mended(ROOT, vfs)
    assert actions(done) == ["finish_job"]
    with open_store(vfs) as store:
        assert len(bodies(store)) == 31
        assert store.publish("j", []).replayed


def test_a_job_that_cannot_go_on_is_given_up_and_what_it_staged_kept() -> None:
    vfs = half_published(3)
    gone = next(p for p in vfs.tree() if "/staging/" in p and p.endswith(".tube"))
    vfs.remove(gone)
    staged = sum("/staging/" in path for path in vfs.tree())
    done = list(repair(ROOT, vfs=vfs, apply=True, clock=CLOCK))
    assert done[0].action == "give_up_job"
    assert gone in done[0].message
    assert (
        sum("/quarantine/" in p and "/job-j/" in p.replace("+", "/") for p in vfs.tree()) >= staged
    )
    assert findings(ROOT, vfs) == []
    with open_store(vfs) as store:
        assert store.publish("j", []).replayed
        assert store["a"].read(0).table.num_rows >= 1


@pytest.mark.parametrize("name", ["store.json", "topics.json", "published.json", "jobs.json"])
def test_a_state_file_that_cannot_be_read_is_made_anew(name: str) -> None:
    vfs = MemoryVfs(CLOCK)
    with open_store(vfs) as store:
        store.create_topic("a", partitions=3, stores=2)
        for number in range(3):
            store.publish(f"j:{number}", stage(vfs, f"j:{number}", *some(5)))
    vfs.replace_file(f"{ROOT}/.tubestore/{name}", b'{"half')
    with pytest.raises(NotAStore), open_store(vfs) as store:
        store.publish("j:0", [])
    done = mended(ROOT, vfs)
    assert done[0].action == "reset_state"
    assert b'{"half' in quarantined(vfs).values()
    with open_store(vfs) as store:
        assert len(bodies(store)) == 15
        for number in range(3):
            assert store.publish(f"j:{number}", []).replayed
        assert store.publish("j:3", []).number == 4


def test_a_state_file_of_a_newer_version_is_left_alone() -> None:
    vfs = written()
    path = f"{ROOT}/.tubestore/store.json"
    vfs.make_directories(f"{ROOT}/.tubestore")
    vfs.replace_file(path, b'{"version": 2}')
    done = list(repair(ROOT, vfs=vfs, apply=True))
    assert [(a.path, a.action) for a in done] == [(path, "leave")]
    assert vfs.read_file(path) == b'{"version": 2}'


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


# -- interrupted, and at random ----------------------------------------------------------------


def test_entries_of_messages_that_are_gone_have_the_time_of_lost_ones() -> None:
    """Opening distinguishes them from an entry that a power cut tore."""
    vfs = written(**SMALL)
    vfs.remove(files_of(vfs, ".tube")[2])
    for path in files_of(vfs, ".index")[:-2]:
        vfs.open(path).pwrite(bytes(len(vfs.read_file(path))), 0)
    mended(ROOT, vfs)
    entries = np.concatenate([entries_in(vfs.read_file(p)) for p in files_of(vfs, ".index")])
    lost = entries[entries["key_code"] == NO_KEY_CODE]
    assert len(lost) > 0
    assert set(lost["received_time"].tolist()) == {LOST_TIME}


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


def without_quarantine(vfs: MemoryVfs) -> dict[str, bytes]:
    return {
        p: d
        for p, d in vfs.tree().items()
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
        list(repair(ROOT, vfs=again, apply=True, clock=again.clock))
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
