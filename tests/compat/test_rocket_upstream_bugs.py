"""What users of the real brokers met, looked at and mended offline; a thread of theirs each."""

from __future__ import annotations

import errno
import json
import shutil
import zlib
from pathlib import Path

import pytest

import rocketcompat
from rocketcompat import Message
from rocketcompat.check.whole import check
from rocketcompat.formats import CQ_UNIT
from rocketcompat.inspect.directory import StoreDirectory
from rocketcompat.inspect.dump import dump_log
from rocketcompat.repair.apply import repair
from rocketcompat.repair.plan import plan_repair
from rocketcompat.repair.rebuild import rebuild
from tests.rocketcompat.repair.test_rebuild import OPTIONS, SMALL
from tests.support.command import Command
from tests.support.golden import ROCKET_VERSIONS, GoldenFactory, golden_fixture  # noqa: F401
from tests.support.rocket.cli import command_fixture  # noqa: F401
from tubestore.clock import ManualClock
from tubestore.core.quarantine import Quarantine
from tubestore.core.vfs import OsVfs
from tubestore.testing import FaultyVfs


def put(root: Path, count: int) -> list[int]:
    """Write messages with keys to one queue; returns their places in the log."""
    with rocketcompat.open(
        root, "w", SMALL, layouts={"consume_queue", "index"}, background=False
    ) as store:
        sent = [Message("T", b"body %d" % n, keys=[f"k{n}"]) for n in range(count)]
        return [store.put_message(message).physical_offset for message in sent]


def patch(path: Path, position: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


def mended(root: Path) -> list[str]:
    directory = StoreDirectory(root, OPTIONS)
    kept = Quarantine(directory.vfs, directory.root)
    rows = list(repair(directory, clock=ManualClock(), quarantine=kept))
    assert list(check(root, OPTIONS)) == []
    return [row["action"] for row in rows]


def log_file(root: Path, start: int = 0) -> Path:
    return root / "commitlog" / f"{start:020d}"


def test_7437_a_torn_tail_whose_properties_are_zeros_is_no_message(tmp_path: Path) -> None:
    """The checksum is the body's alone, so brokers took the record and read no keys."""
    places = put(tmp_path, 5)
    (*_, last) = dump_log(StoreDirectory(tmp_path))
    end = places[-1] + last["store_size"]
    patch(log_file(tmp_path), end - 6, bytes(6))
    progress = tmp_path / ".tubestore" / "progress.json"
    marks = json.loads(progress.read_text())
    marks |= {"log": [places[-1]] * 2, "clean": False, "boot_id": "the one before"}
    marks["followers"] = {name: [places[-1]] * 2 for name in marks["followers"]}
    progress.write_text(json.dumps(marks))
    assert {row["reason"] for row in check(tmp_path, OPTIONS)} >= {"torn"}
    assert "zero" in mended(tmp_path)
    assert [row["physical_offset"] for row in dump_log(StoreDirectory(tmp_path))] == places[:-1]


def test_9121_a_checksum_of_zero_is_valid(tmp_path: Path) -> None:
    """Good data was cut off because its checksum was 0."""
    body = bytes.fromhex("9d0ad96d")
    assert zlib.crc32(body) == 0
    with rocketcompat.open(tmp_path, "w", SMALL, layouts={"consume_queue"}) as store:
        places = [store.put_message(Message("T", b)).physical_offset for b in (body, b"x")]
    assert [row["physical_offset"] for row in dump_log(StoreDirectory(tmp_path))] == places
    assert list(check(tmp_path, {"messageIndexEnable": False})) == []


def test_10017_stale_records_of_a_reused_file_are_not_taken_for_this_one_s(tmp_path: Path) -> None:
    """Magic code and checksum are right; only the record's own offset tells."""
    places = put(tmp_path, 5)
    shutil.copy(log_file(tmp_path), log_file(tmp_path, 4096))
    raw = log_file(tmp_path).read_bytes()
    (*_, last) = dump_log(StoreDirectory(tmp_path))
    end = places[-1] + last["store_size"]
    patch(log_file(tmp_path), end, raw[:200])  # and behind the end of the same file
    found = [r["physical_offset"] for r in dump_log(StoreDirectory(tmp_path)) if r["state"] == "ok"]
    assert found == places
    assert {"zero", "remove"} <= set(mended(tmp_path))
    assert not log_file(tmp_path, 4096).exists()


@pytest.mark.parametrize("version", ROCKET_VERSIONS)
def test_9728_an_empty_last_queue_file_keeps_no_broker_from_starting(
    golden: GoldenFactory, version: str
) -> None:
    """IllegalArgumentException at start; and 4.9.8 delivers the first message once more (R2)."""
    real = golden("rocketmq", version, "cq-empty-last-file")
    directory = StoreDirectory(real.store)
    plan = plan_repair(directory)
    removed = [a for a in plan.actions if a.action == "remove" and "consumequeue" in a.path]
    assert removed
    list(repair(directory, clock=ManualClock(), quarantine=Quarantine(OsVfs(), directory.root)))
    assert not any(Path(action.path).exists() for action in removed)


def test_10108_queues_that_are_ahead_of_the_log_are_cut_and_the_rest_stays(tmp_path: Path) -> None:
    """The broker did not start: the fix was to delete all queues."""
    places = put(tmp_path, 6)
    patch(log_file(tmp_path), places[4], bytes(4096 - places[4]))
    (tmp_path / ".tubestore" / "progress.json").unlink()
    reasons = {row["reason"] for row in check(tmp_path, OPTIONS)}
    assert "unit_surplus" in reasons
    before = (tmp_path / "consumequeue" / "T" / "0" / ("0" * 20)).read_bytes()
    mended(tmp_path)
    after = (tmp_path / "consumequeue" / "T" / "0" / ("0" * 20)).read_bytes()
    assert after == before[: 4 * CQ_UNIT.size].ljust(len(before), b"\0")


def test_8753_the_least_offset_follows_the_log_when_its_first_files_are_gone(
    tmp_path: Path, command: Command
) -> None:
    with rocketcompat.open(tmp_path, "w", SMALL, layouts={"consume_queue"}) as store:
        for _ in range(9):
            store.put_message(Message("T", bytes(1500)))
    log_file(tmp_path).unlink()
    log_file(tmp_path, 4096).unlink()
    (row,) = command("queues", tmp_path, "-f", "jsonl").rows
    first = next(iter(dump_log(StoreDirectory(tmp_path))))
    assert (row["min_offset"], row["max_offset"]) == (first["queue_offset"], 9)
    assert row["min_offset"] > 0


@pytest.mark.gate
@pytest.mark.parametrize("version", ROCKET_VERSIONS)
def test_8007_3868_a_kill_costs_no_key(
    golden: GoldenFactory, command: Command, version: str
) -> None:
    """After a crash the real ones delete the last index file, good as it is."""
    real = golden("rocketmq", version, "crash")
    config = real.meta["config"]
    options = {name: config[name] for name in ("maxHashSlotNum", "maxIndexNum")}
    directory = StoreDirectory(real.store, options)
    list(repair(directory, clock=ManualClock(), quarantine=Quarantine(OsVfs(), directory.root)))
    asked = 0
    for row in dump_log(StoreDirectory(real.store)):
        for key in row["properties"].get("KEYS", "").split()[:1]:
            found = command("query", real.store, "-t", row["topic"], "-k", key, "--max", 64,
                            "--trust-index", "-f", "jsonl").rows[0]  # fmt: skip
            assert row["physical_offset"] in found["physical_offsets"]
            asked += 1
    assert asked or not config


def test_8041_keys_that_are_not_indexed_are_told(tmp_path: Path) -> None:
    """The index had stopped, and not a line in the log said so."""
    put(tmp_path, 3)
    kept = tmp_path / "kept"
    shutil.copytree(tmp_path / "index", kept)
    put(tmp_path, 4)
    shutil.rmtree(tmp_path / "index")
    kept.rename(tmp_path / "index")
    (row,) = [r for r in check(tmp_path, OPTIONS) if r["reason"] == "item_missing"]
    assert row["message"].startswith("4 keys have no item")
    assert mended(tmp_path) == ["rebuild"]


def test_7539_a_build_that_fails_leaves_no_index_files_behind(tmp_path: Path) -> None:
    """Each attempt left another file of 400 MB: 200 GB in the end."""
    put(tmp_path, 5)
    faulty = FaultyVfs(OsVfs())
    directory = StoreDirectory(tmp_path, OPTIONS, faulty)
    for _ in range(5):
        faulty.fail("truncate", error=errno.ENOSPC, path="/index/")
        with pytest.raises(OSError, match="space"):
            list(rebuild(directory, ["index"], clock=ManualClock(),
                         quarantine=Quarantine(faulty, str(tmp_path))))  # fmt: skip
    work = tmp_path / ".tubestore" / "rebuild" / "index"
    assert not work.exists() or list(work.iterdir()) == []
    assert len(list((tmp_path / "index").iterdir())) == 1


def test_1251_1560_another_size_of_files_is_a_copy_away(tmp_path: Path, command: Command) -> None:
    """A broker does not start with another mappedFileSizeCommitLog than its files have."""
    put(tmp_path / "a", 60)
    done = command("convert", tmp_path / "a", tmp_path / "b", "-o", "mappedFileSizeCommitLog=8192")
    assert done.code == 0
    assert {p.stat().st_size for p in (tmp_path / "b" / "commitlog").iterdir()} == {8192}
    assert command("diff", tmp_path / "a", tmp_path / "b").code == 0


def test_7355_lost_queues_come_back_from_the_log(tmp_path: Path, command: Command) -> None:
    """ "Delete all consumequeues" was the advice; they are built beside the old ones here."""
    put(tmp_path, 20)
    path = tmp_path / "consumequeue" / "T" / "0" / ("0" * 20)
    before = path.read_bytes()
    patch(path, 3 * CQ_UNIT.size, b"\xff" * 60)
    done = command("rebuild", tmp_path, "consumequeue", "-o", "mappedFileSizeConsumeQueue=200")
    assert done.code == 0
    assert path.read_bytes() == before
