"""Shards compared with the log by cells: the findings of whole sets, in bounded memory."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import rocketcompat
import tubestore
from rocketcompat import Message, MessageStoreConfig
from rocketcompat.check import shards, whole
from rocketcompat.check.findings import Finding
from rocketcompat.check.shards import Cells, ShardComparison
from rocketcompat.commitlog.walk import Gap
from rocketcompat.inspect.directory import StoreDirectory, Watch
from rocketcompat.options import LAYOUTS
from tubestore.record.layouts import DATA_HEADER, INDEX_ENTRY

CONFIG = MessageStoreConfig(mapped_file_size_commit_log=16 << 10, layouts=LAYOUTS)
REASONS = ("shard_surplus", "shard_missing")


def filled(root: Path, count: int = 300, topics: int = 3) -> None:
    """Write messages of some topics; the last one has more shards than one."""
    with rocketcompat.open(root, "w", CONFIG, layouts=["consume_queue", "tube"]) as store:
        for number in range(count):
            topic = number % topics
            queue = number % 12 if topic == topics - 1 else 0
            store.put_message(Message(f"T{topic}", b"x" * (number % 90), queue_id=queue))


def expected(root: Path) -> list[Finding]:
    """Compare both sides as whole sets."""
    directory = StoreDirectory(root)
    wanted: dict[str, list[int]] = {}
    for piece in directory.scan_log():
        for name, ids in () if isinstance(piece, Gap) else shards._wanted_ids(piece):
            wanted.setdefault(name, []).extend(ids.tolist())
    found = []
    with tubestore.open(root / "tube", mode="r", on_damage="isolate") as store:
        for name in sorted({*store.topics(), *wanted}):
            there: list[int] = []
            if name in store.topics():
                table = store.topic(name).scan(columns=["msg_id"]).read_all()
                there = sorted(id for id in table["msg_id"].to_pylist() if id is not None)
            there = [id for id in there if id >= directory.log.min_offset]
            log = set(wanted.get(name, ()))
            twice = sum(count - 1 for count in Counter(there).values())
            surplus = sum(id not in log for id in there)
            missing = sorted(log - set(there))
            path = str(root / "tube" / f"{name}-0")
            if twice or surplus:
                text = f"{surplus} records that the log does not have, {twice} twice"
                found.append((path, "shard_surplus", text, "error"))
            if missing:
                last = not there or missing[0] > there[-1]
                text = f"{len(missing)} records are missing, from offset {missing[0]} on"
                found.append((path, "shard_missing", text, "warning" if last else "error"))
    return found


def found_by(root: Path, **limits: int) -> list[Finding]:
    """Return the findings of a check that may hold so much."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(whole, "ShardComparison", partial(ShardComparison, **limits))
        patch.setattr(shards, "_PART_BITS", 2)
        patch.setattr(shards, "_COUNTED_IDS", 2)
        rows = [row for row in whole.check(root) if row["reason"] in REASONS]
    return [tuple(row[n] for n in ("path", "reason", "message", "severity")) for row in rows]


def records(shard: Path) -> Iterator[tuple[Path, int]]:
    """Yield file and position of a shard's records."""
    for index in sorted((shard / "index").iterdir()):
        raw = index.read_bytes()
        for entry in np.frombuffer(raw, INDEX_ENTRY.dtype):
            file = max(p for p in shard.glob("*.tube") if int(p.stem) <= entry["data_offset"])
            yield file, int(entry["data_offset"]) - int(file.stem)


def rename(rng: random.Random, shard: Path, log_size: int) -> None:
    """Give records other ids: those of others, those of no record, or those of all."""
    places = list(records(shard))
    for _ in range(rng.choice([1, 1, 5, len(places)])):
        file, at = rng.choice(places)
        raw = bytearray(file.read_bytes())
        field = DATA_HEADER.position("msg_id")
        other, there = rng.choice(places)
        kinds = [
            rng.randrange(log_size),
            1 << 62,
            int.from_bytes(other.read_bytes()[there + field : there + field + 8], "big"),
        ]
        raw[at + field : at + field + 8] = rng.choice(kinds).to_bytes(8, "big")
        file.write_bytes(raw)


@pytest.mark.gate
@pytest.mark.one_in(1, 2)
@pytest.mark.parametrize("seed", range(8))
def test_damaged_shards_have_the_findings_of_sets(tmp_path: Path, seed: int) -> None:
    """Ids that are wrong, twice or gone, shards and parts of the log that are lost."""
    print("seed", seed)
    rng = random.Random(seed)
    filled(tmp_path)
    size = StoreDirectory(tmp_path).log.max_offset
    for _ in range(rng.randrange(1, 4)):
        there = sorted(tmp_path.glob("tube/T*"))
        kind = rng.randrange(5)
        if kind < 3 and there:
            rename(rng, rng.choice(there), size)
        elif kind == 3 and there:
            shutil.rmtree(rng.choice(there))
        else:
            logs = sorted((tmp_path / "commitlog").iterdir())
            if len(logs) > 2:
                logs[rng.choice([0, 1, -1])].unlink()
    wanted = expected(tmp_path)
    limits = [(1 << 19, 1 << 15, 20), (40, 1 << 15, 10), (3, 4, 8), (3, 1, 0)]
    for held_max, cells_max, bits in limits:
        found = found_by(tmp_path, held_max=held_max, cells_max=cells_max, bits=bits)
        assert found == wanted, (held_max, cells_max, bits)


def test_shards_that_have_exactly_the_messages_of_the_log_are_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(tmp_path)
    compared: list[object] = []
    monkeypatch.setattr(shards._TopicComparison, "_compare_ids", compared.append)
    assert expected(tmp_path) == found_by(tmp_path, bits=9) == []
    assert not compared


def test_a_check_of_shards_reports_how_far_it_is(tmp_path: Path) -> None:
    filled(tmp_path)
    calls: dict[str, list[tuple[int, int]]] = {}

    @contextmanager
    def watching(what: str) -> Iterator[Watch]:
        yield lambda done, total: calls.setdefault(what, []).append((done, total))

    directory = StoreDirectory(tmp_path)
    directory.watching = watching
    assert list(whole.check_store(directory)) == []
    assert [*calls] == ["log", "shards"]
    done, total = calls["shards"][-1]
    assert 0 < done == total


def test_what_is_held_of_shards_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cells are few however long the log is, and of ids that differ only some are held."""
    filled(tmp_path, 2000, 2)
    for shard in tmp_path.glob("tube/T*"):
        rename(random.Random(1), shard, 1 << 20)
    wanted = expected(tmp_path)
    assert len(wanted) >= 2
    held, cells = [0], [0]
    joined, widen = shards._CountedIds.joined, ShardComparison._widen

    def counted(self: shards._CountedIds) -> tuple[np.ndarray, np.ndarray]:
        held.append(len(self._ids) + self._pending)
        return joined(self)

    def widened(self: ShardComparison) -> None:
        widen(self)
        cells.append(sum(len(topic.by_number) for topic in self._topics.values()))

    monkeypatch.setattr(shards._CountedIds, "joined", counted)
    monkeypatch.setattr(ShardComparison, "_widen", widened)
    assert found_by(tmp_path, held_max=100, cells_max=32, bits=6) == wanted
    assert 0 < max(cells) <= 32
    assert 0 < max(held) <= 200


def test_cells_of_different_ids_differ_though_number_and_sum_are_the_same() -> None:
    cells = Cells(20)
    cells.want(np.array([10, 20, 30, 40]))
    cells.find(np.array([10, 25, 25, 40]))
    assert cells.by_number[0].differs
    cells = Cells(20)
    cells.want(np.array([10, 20, 30, 40]))
    cells.find(np.array([40, 30]))
    cells.find(np.array([20, 10]))
    assert not cells.by_number[0].differs


def test_a_sound_copy_of_a_damaged_record_is_named_and_no_error_of_the_shard(
    tmp_path: Path,
) -> None:
    with rocketcompat.open(tmp_path, "w", CONFIG, layouts=["consume_queue", "tube"]) as store:
        puts = [store.put_message(Message("T", b"%d" % n * 50)) for n in range(6)]
    log = tmp_path / "commitlog" / f"{0:020d}"
    raw = bytearray(log.read_bytes())
    for put in puts[2:4]:
        raw[put.physical_offset + 90] ^= 1
    log.write_bytes(raw)
    rows = {row["reason"]: row for row in whole.check(tmp_path)}
    place, time = puts[2].physical_offset, puts[2].store_timestamp
    assert set(rows) == {"damaged", "unit_damaged", "shard_only"}
    assert rows["shard_only"]["severity"] == "warning"
    assert "2 records are whole here" in rows["shard_only"]["message"]
    assert f"that of physical offset {place}" in rows["shard_only"]["message"]
    names = f"by their heads T/0@2 (stored at {time} ms), T/0@3 ("
    assert names in rows["damaged"]["message"]
    assert "and more" not in rows["damaged"]["message"]
    (data,) = (tmp_path / "tube" / "T-0").glob("[0-9]*.tube")
    data.write_bytes(data.read_bytes().replace(b"2" * 50, b"2" * 49 + b"x"))
    (only,) = (row for row in whole.check(tmp_path) if row["reason"] == "shard_only")
    assert only["message"].startswith("1 records are whole here")
