"""Damaged stores: checked, mended, opened by ours and by the real classes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest

import rocketcompat
from rocketcompat import Message
from rocketcompat.check.whole import check_store
from rocketcompat.commitlog.walk import Gap
from rocketcompat.formats import CQ_UNIT, MESSAGE_HEAD
from rocketcompat.inspect.decode import decode_commit_log
from rocketcompat.inspect.directory import StoreDirectory
from rocketcompat.inspect.dump import dump_log, dump_tables
from rocketcompat.repair.apply import repair
from rocketcompat.repair.log import (
    FILLER_TOPIC,
    PROPERTY_DAMAGED,
)
from rocketcompat.repair.plan import plan_repair
from rocketcompat.transfer.exchange import sound_rows
from tests.rocketcompat.repair.test_rebuild import OPTIONS, ROOT, SMALL, messages, write
from tests.support.command import Command
from tests.support.crashes import some_states
from tests.support.golden import ROCKET_VERSIONS, GoldenFactory
from tests.support.golden import golden_fixture as golden_fixture
from tests.support.rocket.cli import command_fixture as command_fixture
from tests.support.rocket.cli import digest
from tests.support.rocket.golden import open_golden, units_of
from tests.support.rocket.store.mended import mend_store, mended, options_of
from tubestore.clock import ManualClock
from tubestore.core.quarantine import Quarantine
from tubestore.core.vfs import OsVfs
from tubestore.errors import CorruptRecord
from tubestore.testing import MemoryVfs

DAMAGED = (
    "torn-zeroed", "torn-half", "torn-gone", "flip-body-last", "flip-body-middle",
    "flip-body-first-file", "flip-topic-last", "bad-magic-last-file", "bad-size-middle",
    "cq-deleted", "cq-one-queue-deleted", "cq-tail-zeroed", "cq-all-tails-zeroed", "cq-hole",
    "cq-empty-last-file", "index-deleted", "cq-index-deleted", "cl-last-file-missing",
    "cl-first-files-missing", "cl-middle-file-missing",
)  # fmt: skip

OTHERS = (
    "cl-wrong-length", "cl-zero-length-last", "cq-wrong-length", "stray-dir-in-commitlog",
    "index-short", "index-broken-chain", "stale-units", "topic-overflow", "crash-cq-unflushed",
    "crash", "record-larger-than-file",
)  # fmt: skip

#: What cannot be seen, or is what a broker leaves every day.
NOTHING_WRONG = {"cl-first-files-missing", "cl-zero-length-last", "crash", "flip-topic-last",
                 "record-larger-than-file", "cq-empty-last-file"}  # fmt: skip


@pytest.mark.one_in(14, 2)
@pytest.mark.parametrize("version", ROCKET_VERSIONS)
@pytest.mark.parametrize("scenario", [*DAMAGED, *(f"{s}-abort" for s in DAMAGED), *OTHERS])
def test_a_damaged_store_is_found_mended_and_whole(
    golden: GoldenFactory, version: str, scenario: str
) -> None:
    real = golden("rocketmq", version, scenario)
    options = options_of(real)
    plain = scenario.removesuffix("-abort")
    before = digest(real.store)
    findings = list(check_store(StoreDirectory(real.store, options)))
    assert findings or plain in NOTHING_WRONG
    plan = plan_repair(StoreDirectory(real.store, options))
    assert digest(real.store) == before
    sound = {
        row["physical_offset"]: row
        for row in dump_log(StoreDirectory(real.store, options))
        if row["state"] == "ok"
    }
    rows = mended(real)
    key = lambda row: (row["path"], row["action"], row["position"])  # noqa: E731
    planned = [action.as_row() for action in plan.actions]
    assert sorted(map(key, rows)) == sorted(map(key, planned))
    # Nothing sound was lost, nothing is left to do, and nothing is wrong that can be mended.
    left = list(dump_log(StoreDirectory(real.store, options)))
    after = {row["physical_offset"]: row for row in left if row["state"] == "ok"}
    assert sound.items() <= after.items()
    again = plan_repair(StoreDirectory(real.store, options))
    assert again.is_empty
    remaining = {row["reason"] for row in check_store(StoreDirectory(real.store, options))}
    lost = {"file_missing", "unit_damaged"} if plain == "cl-middle-file-missing" else set()
    assert remaining == lost
    with open_golden(real) as opened:
        assert [p for p in opened.problems if "missing" not in str(p)] == []
        units = list(units_of(opened))
        for unit in units:
            record = unit["record"]
            if record is None:
                assert plain == "cl-middle-file-missing"
                continue
            assert unit["index"] == record["queueOffset"]
            assert unit["queue"] == f"{record['topic']}/{record['queueId']}"


#: One of each kind, for the real classes: a virtual machine each.
WITNESSED = (
    "flip-body-middle-abort", "bad-size-middle", "bad-magic-last-file-abort", "torn-half-abort",
    "cq-hole", "cq-empty-last-file", "cq-tail-zeroed", "stale-units", "cl-wrong-length",
    "cq-wrong-length", "stray-dir-in-commitlog", "index-broken-chain", "topic-overflow",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.interop
@pytest.mark.parametrize("version", ROCKET_VERSIONS)
@pytest.mark.parametrize("scenario", WITNESSED)
def test_the_real_classes_open_what_was_mended_and_lose_nothing(
    golden: GoldenFactory, version: str, scenario: str
) -> None:
    from bench.real.drivers import DriverUnavailable, RocketDriver, of_kind

    real = golden("rocketmq", version, scenario)
    mended(real)
    names = ("mappedFileSizeCommitLog", "mappedFileSizeConsumeQueue", "maxHashSlotNum",
             "maxIndexNum")  # fmt: skip
    settings = {name: real.meta["config"][name] for name in names}
    try:
        rows = RocketDriver(version).dump(real.store, settings=settings)
    except DriverUnavailable as error:
        pytest.skip(str(error))
    (load,) = of_kind(rows, "load")
    assert load["result"]
    dumped = dump_log(StoreDirectory(real.store))
    records = [row for row in dumped if row["state"] in ("ok", "lost")]  # and stand-ins
    queued = {row["physical_offset"] for row in records if row["sys_flag"] & 0xC in (0, 8)}
    end = max(row["physical_offset"] + row["store_size"] for row in records)
    assert load["maxPhyOffset"] >= end
    seen = [row["physicalOffset"] for row in of_kind(rows, "message")]
    assert sorted(seen) == sorted(queued)


@pytest.fixture(name="mended_root")
def mended_root_fixture(tmp_path: Path) -> Path:
    """A store of five messages of which the third was lost; the shortest that there are."""
    root = tmp_path / "store"
    with rocketcompat.open(root, "w", SMALL, background=False) as store:
        places = [store.put_message(Message("T", b"x")).physical_offset for _ in range(5)]
    file = root / "commitlog" / f"{0:020d}"
    raw = bytearray(file.read_bytes())
    raw[places[2] + MESSAGE_HEAD.size] ^= 1
    file.write_bytes(raw)
    vfs, options = OsVfs(), {**OPTIONS, "mappedFileSizeCommitLog": 4096}
    directory = StoreDirectory(root, options, vfs)
    list(repair(directory, clock=ManualClock(), quarantine=Quarantine(vfs, str(root))))
    return root


def test_every_read_gives_a_stand_in_the_state_lost_and_no_body(mended_root: Path) -> None:
    with rocketcompat.open(mended_root, "r", SMALL) as store:
        pulled = store.get_message("T", 0, 0)
        assert [m.queue_offset for m in pulled.messages] == [0, 1, 3, 4]
        assert [(row["queue_offset"], row["state"], row["body"]) for row in pulled.rows()] == [
            (n, "lost" if n == 2 else "ok", None if n == 2 else b"x") for n in range(5)
        ]
        page = store.read_queue("T", 0)
        (place,) = {problem.position for problem in page.problems}
        assert [error.position for error in pulled.problems] == [place]
        (piece,) = store.scan()
        many = store.read_queues({("T", 0): 0})
        assert len(many.problems) == 1
        for batch in (page.batch, piece, many.batch):
            assert batch["state"].to_pylist() == ["ok", "ok", "lost", "ok", "ok"]
            assert batch["body"].to_pylist() == [b"x", b"x", None, b"x", b"x"]
        with pytest.raises(CorruptRecord, match="lost"):
            store.look_message(place)
    (row,) = [r for r in dump_log(StoreDirectory(mended_root)) if r["state"] != "ok"]
    assert (row["physical_offset"], row["state"], row["body"]) == (place, "lost", None)
    (table,) = dump_tables(StoreDirectory(mended_root))
    assert table["state"].to_pylist() == ["ok", "ok", "lost", "ok", "ok"]
    assert table["body"].null_count == 1
    shown = decode_commit_log(mended_root, place)
    assert (shown["state"], "lost" in shown["reason"]) == ("lost", True)


@pytest.mark.parametrize(("offsets", "count"), [("keep", 5), ("renumber", 4)])
def test_an_import_takes_stand_ins_only_where_offsets_are_kept(
    mended_root: Path, tmp_path: Path, command: Command, offsets: str, count: int
) -> None:
    file, copy = tmp_path / "out.parquet", tmp_path / "copy"
    assert command("export", mended_root, "--out", file).code == 0
    done = command("import", copy, file, "--offsets", offsets, "-f", "jsonl")
    assert done.rows == [{"messages": count, "left_out": 5 - count}]
    states = [row["state"] for row in dump_log(StoreDirectory(copy))]
    assert states == (["ok", "ok", "lost", "ok", "ok"] if count == 5 else ["ok"] * 4)


def test_a_body_may_be_accepted_as_it_is(golden: GoldenFactory, command: Command) -> None:
    real = golden("rocketmq", "5.3.3", "flip-body-middle")
    (region,) = [p for p in StoreDirectory(real.store).scan_log() if isinstance(p, Gap)]
    raw = (real.store / "commitlog").joinpath(Path(region.path).name).read_bytes()
    done = command("repair", real.store, "--apply", "--keep-bodies", "-f", "jsonl")
    assert done.code == 0
    found = {row["physical_offset"]: row for row in dump_log(StoreDirectory(real.store))}
    kept = found[region.start]
    assert kept["store_size"] == region.end - region.start
    at = region.position + MESSAGE_HEAD.size
    assert kept["body"] == raw[at : at + len(kept["body"])]
    assert PROPERTY_DAMAGED not in kept["properties"]


def test_a_dry_run_changes_nothing_and_leaves_with_one(
    golden: GoldenFactory, command: Command
) -> None:
    real = golden("rocketmq", "4.9.8", "cq-hole")
    before = digest(real.store)
    done = command("repair", real.store, "-f", "jsonl")
    assert (done.code, digest(real.store)) == (1, before)
    assert {row["action"] for row in done.rows} == {"write"}
    assert set(done.rows[0]) == {"path", "action", "position", "bytes", "message"}
    applied = command("repair", real.store, "--apply", "-f", "jsonl")
    assert (applied.code, applied.rows) == (0, done.rows)
    assert "quarantine/1" in applied.err
    done = command("repair", real.store, "-f", "jsonl")
    assert (done.code, done.rows) == (0, [])


def test_a_store_that_is_open_is_refused(tmp_path: Path, command: Command) -> None:
    with rocketcompat.open(tmp_path, "w", SMALL, background=False) as store:
        store.put_message(rocketcompat.Message("T", b"x"))
        done = command("repair", tmp_path, "--apply")
        assert (done.code, done.err.count("\n")) == (3, 1)
    clean = [command("check", tmp_path), command("repair", tmp_path)]
    assert [(done.code, done.out) for done in clean] == [(0, "")] * 2
    assert [done.err for done in clean] == ["nothing found\n", "nothing to repair\n"]


def test_a_broken_configuration_comes_back_from_its_backup(
    tmp_path: Path, command: Command
) -> None:
    """apache/rocketmq#3401."""
    with rocketcompat.open(tmp_path, "w", SMALL, background=False) as store:
        store.put_message(rocketcompat.Message("T", b"x"))
    folder = tmp_path / "config"
    folder.mkdir(exist_ok=True)
    (folder / "consumerOffset.json").write_bytes(bytes(30))
    (folder / "consumerOffset.json.bak").write_text('{"offsetTable":{"T@g":{0:1}}}')
    (folder / "topics.json").write_text("{")
    findings = command("check", tmp_path, "-f", "jsonl").rows
    assert [(row["reason"], row["severity"]) for row in findings] == [
        ("config", "warning"), ("config", "error")]  # fmt: skip
    rows = command("repair", tmp_path, "--apply", "-f", "jsonl").rows
    assert sorted(row["action"] for row in rows) == ["leave", "write"]
    text = (folder / "consumerOffset.json").read_text()
    assert text == '{"offsetTable":{"T@g":{0:1}}}'


def test_a_repair_leaves_shards_that_lag_to_the_next_opening(
    tmp_path: Path, command: Command
) -> None:
    root, older = tmp_path / "store", tmp_path / "older"
    for count in (3, 2):
        with rocketcompat.open(root, "w", SMALL, background=False) as store:
            for _ in range(count):
                store.put_message(rocketcompat.Message("T", b"x"))
        if not older.exists():
            shutil.copytree(root / "tube", older)
    shutil.rmtree(root / "tube")
    older.rename(root / "tube")
    findings = command("check", root, "-f", "jsonl").rows
    assert [(row["reason"], row["severity"]) for row in findings] == [("shard_missing", "warning")]
    done = command("repair", root, "--apply")
    assert done.code == 0
    assert "2 records are missing" in done.err
    assert "the next opening for writing mends it" in done.err
    (root / "config").mkdir(exist_ok=True)
    (root / "config" / "topics.json").write_text("{")
    assert command("repair", root, "--apply").code == 1


def test_a_repair_reports_what_check_still_finds_and_leaves_with_1(
    tmp_path: Path, command: Command
) -> None:
    with rocketcompat.open(tmp_path, "w", SMALL, background=False) as store:
        store.put_message(rocketcompat.Message("T", b"x"))
    folder = tmp_path / "config"
    folder.mkdir(exist_ok=True)
    (folder / "topics.json").write_text("{")
    done = command("repair", tmp_path, "--apply")
    assert done.code == 1
    assert f"left: {folder}/topics.json: 0: " in done.err
    assert command("check", tmp_path, "--accept").code == 0
    assert command("repair", tmp_path, "--apply").code == 0


@pytest.mark.parametrize("content", ["[]", "{}", "1", "[" * 100_000, "\udcff"])
def test_a_shard_with_a_checkpoint_of_any_content_is_mended(
    tmp_path: Path, command: Command, content: str
) -> None:
    with rocketcompat.open(tmp_path, "w", SMALL, background=False) as store:
        store.put_message(rocketcompat.Message("T", b"x"))
    path = tmp_path / "tube/T-0/.tubestore/checkpoint.json"
    assert path.exists()
    path.write_bytes(content.encode(errors="surrogateescape"))
    found = command("check", tmp_path, "-f", "jsonl")
    assert [row["path"] for row in found.rows] == [str(path)]
    assert "Error(" not in found.out
    assert "argument" not in found.out
    assert command("repair", tmp_path, "--apply").code == 0
    assert command("check", tmp_path).code == 0


def damage(vfs: MemoryVfs, places: list[int]) -> None:
    """Flip a body, destroy a head, tear the end, zero a unit, break a chain; leave `abort`."""
    log = f"{ROOT}/commitlog"

    def patch(path: str, position: int, data: bytes) -> None:
        vfs.open(path).pwrite(data, position)

    for place, at, data in ((places[3], MESSAGE_HEAD.size, b"\xff"), (places[9], 0, bytes(60)),
                            (places[-1], 20, b"\xff" * 30)):  # fmt: skip
        start = place - place % 4096
        patch(f"{log}/{start:020d}", place - start + at, data)
    patch(f"{ROOT}/consumequeue/topic1/1/{0:020d}", CQ_UNIT.size, bytes(20))
    name = vfs.entries(f"{ROOT}/index")[0][0]
    patch(f"{ROOT}/index/{name}", 40 + 4 * 7 + 20 * 5 + 16, b"\x00\x00\x00\x09")
    vfs.open(f"{ROOT}/abort", create=True).close()


def log_of(vfs: MemoryVfs) -> list[tuple[int, str, int, bytes]]:
    rows = dump_log(StoreDirectory(ROOT, OPTIONS, vfs))
    return [(r["physical_offset"], r["topic"], r["queue_offset"], r["body"]) for r in rows]


@pytest.mark.gate
@pytest.mark.crash
def test_a_crash_at_any_moment_of_a_repair_is_mended_by_another(
    memory_vfs: MemoryVfs, clock: ManualClock
) -> None:
    places = write(memory_vfs, clock, 40)
    damage(memory_vfs, places)
    journal = memory_vfs.record()
    mend_store(memory_vfs, clock)
    expected = log_of(memory_vfs)
    bodies = {place: m.body for place, m in zip(places, messages(40), strict=True)}
    assert sum(bodies.get(place) == body for place, _, _, body in expected) >= 37
    states = some_states(journal, 40, seed=20261121, variants=4)
    for state in states:
        vfs = state.vfs(clock)
        mend_store(vfs, clock)
        assert log_of(vfs) == expected, str(state)
        directory = StoreDirectory(ROOT, OPTIONS, vfs)
        findings = [row for row in check_store(directory) if "/tube" not in row["path"]]
        assert findings == [], str(state)
        assert not vfs.exists(f"{ROOT}/abort"), str(state)
    assert len(states) > 30


def test_an_import_that_keeps_offsets_leaves_fillers_out_and_keeps_stand_ins() -> None:
    rows = [
        {"topic": "T", "queue_id": 0, "queue_offset": 0, "body": b"0", "state": "ok"},
        {"topic": "T", "queue_id": 0, "queue_offset": 1, "body": None, "state": "lost"},
        {"topic": FILLER_TOPIC, "queue_id": 0, "queue_offset": 0, "body": None, "state": "lost"},
        {"topic": FILLER_TOPIC, "queue_id": 0, "queue_offset": 0, "body": b"1", "state": "ok"},
    ]
    table = pa.Table.from_pylist(rows)
    kept, count = sound_rows(table, keep=True)
    assert (kept["topic"].to_pylist(), count) == (["T", "T", FILLER_TOPIC], 1)
    kept, count = sound_rows(table, keep=False)
    assert (kept["body"].to_pylist(), count) == ([b"0", b"1"], 2)


def test_what_cannot_be_mended_right_is_refused_before_anything_is_changed(
    golden: GoldenFactory, command: Command
) -> None:
    real, said = golden("rocketmq", "4.9.8", "multipath"), "several paths"
    before = {p: p.read_bytes() for p in real.store.rglob("*") if p.is_file()}
    for arguments in (["repair"], ["repair", "--apply"], ["rebuild", "consumequeue"]):
        name, *rest = arguments
        done = command(name, real.store, *rest)
        assert (done.code, done.err.count("\n")) == (3, 1)
        assert said in done.err
    assert {p: p.read_bytes() for p in real.store.rglob("*") if p.is_file()} == before
