"""check holds a part of the log's units and keys: its findings are those of the whole."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import rocketcompat
from rocketcompat import Message, MessageStoreConfig
from rocketcompat.check import index as check_index
from rocketcompat.check import whole as check
from rocketcompat.check.findings import Finding
from rocketcompat.check.index import Keys, LogKeys
from rocketcompat.formats import INDEX_ITEM
from rocketcompat.index.items import IndexGeometry
from rocketcompat.inspect import index_geometry
from rocketcompat.inspect.batch_queues import BatchComparison
from rocketcompat.inspect.comparison import QueueComparison
from rocketcompat.inspect.directory import StoreDirectory
from tests.support.golden import GoldenFactory, golden_fixture, rocket_scenarios  # noqa: F401

GEOMETRY = IndexGeometry(16, 60)
CONFIG = MessageStoreConfig(
    mapped_file_size_commit_log=16 << 10, max_hash_slot_num=GEOMETRY.slots,
    max_index_num=GEOMETRY.items, layouts=frozenset({"consume_queue", "index"}),
)  # fmt: skip
OPTIONS = {"maxHashSlotNum": GEOMETRY.slots, "maxIndexNum": GEOMETRY.items}


def with_little(root: Path, options: dict[str, int] | None, held_max: int) -> list[Finding]:
    """Return the findings of a check that may hold so many units and keys."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(check, "QueueComparison", partial(QueueComparison, held_max=held_max))
        patch.setattr(check, "BatchComparison", partial(BatchComparison, held_max=held_max))
        patch.setattr(check, "LogKeys", partial(LogKeys, held_max=held_max))
        patch.setattr(check_index, "PIECE_ITEMS", 5)
        patch.setattr(check_index, "CHAINED_ITEMS", 7)
        patch.setattr(index_geometry, "_AT_ONCE_ITEMS", 0)
        patch.setattr(index_geometry, "_STEP_ITEMS", 6)
        return list(check.check(root, options))


def filled(root: Path) -> None:
    """Write 200 messages, most with keys."""
    with rocketcompat.open(root, "w", CONFIG) as store:
        for number in range(200):
            keys = [f"k{number}", f"k{number % 5}"][: number % 3]
            store.put_message(Message("T", b"x" * 200, keys=keys))


@pytest.mark.one_in(20, 4)
@pytest.mark.parametrize(
    "scenario",
    [
        pytest.param(name, marks=[pytest.mark.slow] * (name == "defaults"))  # files of a gigabyte
        for name in rocket_scenarios("5.3.3")
    ],
)
def test_a_real_store_has_the_same_findings(golden: GoldenFactory, scenario: str) -> None:
    root = golden("rocketmq", "5.3.3", scenario).store
    whole = list(check.check(root))
    assert with_little(root, None, 20) == whole


@pytest.mark.one_in(6, 2)
@pytest.mark.parametrize("seed", range(15))
def test_a_damaged_index_has_the_same_findings(tmp_path: Path, seed: int) -> None:
    """Items and headers that are damaged, files and parts of the log that are gone."""
    print("seed", seed)
    rng = random.Random(seed)
    filled(tmp_path)
    files = [*(tmp_path / "index").iterdir()]
    for _ in range(rng.randrange(1, 5)):
        path = rng.choice(files)
        content = bytearray(path.read_bytes() if path.exists() else b"")
        at = GEOMETRY.item_position(rng.randrange(1, GEOMETRY.items - 4))
        kind = rng.randrange(5)
        if kind == 0:
            content[at : at + INDEX_ITEM.size] = rng.randbytes(INDEX_ITEM.size)
        elif kind == 1:
            content[at + 4 : at + 12] = rng.randrange(60_000).to_bytes(8, "big")
        elif kind == 2:
            content[at : at + 60] = content[at + 20 : at + 80]
        elif kind == 3:
            log = rng.choice([*(tmp_path / "commitlog").iterdir()])
            log.write_bytes(rng.randbytes(300) + log.read_bytes()[300:])
        if kind < 3 and path.exists():
            path.write_bytes(content)
        elif kind == 4:
            path.unlink(missing_ok=True)
    whole = list(check.check(tmp_path, OPTIONS))
    for held_max in (1, 30):
        assert with_little(tmp_path, OPTIONS, held_max) == whole


def test_keys_are_held_up_to_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(tmp_path)
    counts: list[int] = []
    compare = check_index.IndexComparison._compare

    def counted(self: check_index.IndexComparison, keys: Keys, low: int, high: int) -> None:
        counts.append(len(keys.hashes))
        compare(self, keys, low, high)

    monkeypatch.setattr(check_index.IndexComparison, "_compare", counted)
    directory = StoreDirectory(tmp_path, OPTIONS)
    log = LogKeys(directory, held_max=1 << 20)
    assert list(log.scan(directory.scan_log())) == []
    hashes, offsets = np.concatenate(log.index._hashes), np.concatenate(log.index._offsets)
    assert len(hashes) == 199
    for lost in (False, True):
        counts.clear()
        comparison = check_index.IndexComparison(directory, held_max=30)
        for at in range(len(hashes)):
            comparison.take(hashes[at : at + 1], offsets[at : at + 1])
        comparison.finish(log.end, GEOMETRY)
        assert sum(counts) == len(hashes)
        assert max(counts) <= 31
        path = str(tmp_path / "index")
        missing = [row["message"] for row in comparison.missing(path)]
        first = f"the first is of the record at {int(offsets[0])}"
        assert missing == ([f"199 keys have no item, {first}"] if lost else [])
        for file in (tmp_path / "index").iterdir():
            file.unlink()
