"""A plan of repair reads each structure once."""

from __future__ import annotations

from pathlib import Path

import pytest

import rocketcompat
from rocketcompat import Message, MessageStoreConfig
from rocketcompat.check.whole import check_store
from rocketcompat.inspect.directory import StoreDirectory
from rocketcompat.inspect.log_units import QueueKey
from rocketcompat.inspect.queues import AnyQueueView, QueueViews
from rocketcompat.options import LAYOUTS
from rocketcompat.repair.plan import plan_repair
from tubestore.errors import NotAStore


@pytest.mark.parametrize("damaged", [1, 7])
def test_the_queues_are_looked_through_once_for_all_damaged_parts_of_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damaged: int
) -> None:
    config = MessageStoreConfig(mapped_file_size_commit_log=64 << 10, layouts=LAYOUTS)
    with rocketcompat.open(tmp_path, "w", config, layouts=["consume_queue"]) as store:
        puts = [store.put_message(Message("T", b"x" * 50)) for _ in range(40)]
    log = tmp_path / "commitlog" / f"{0:020d}"
    raw = bytearray(log.read_bytes())
    for put in puts[4 : 4 + 3 * damaged : 3]:
        raw[put.physical_offset + 90] ^= 0xFF
    log.write_bytes(raw)
    seen: list[QueueKey] = []
    view = QueueViews.view

    def counted(self: QueueViews, key: QueueKey) -> AnyQueueView:
        seen.append(key)
        return view(self, key)

    monkeypatch.setattr(QueueViews, "view", counted)
    plan = plan_repair(StoreDirectory(tmp_path))
    stand_ins = [action for action in plan.actions if "stand-ins for T/0@" in action.message]
    assert [a.message.partition("@")[2] for a in stand_ins] == [
        str(4 + 3 * number) for number in range(damaged)
    ]
    # For the log, for extensions, and for the files of the queue.
    assert seen == [("T", 0)] * 3


def test_a_topic_may_have_the_name_of_a_file_of_rocksdb(tmp_path: Path) -> None:
    with rocketcompat.open(tmp_path, "w", layouts=["consume_queue"]) as store:
        store.put_message(Message("CURRENT", b"x"))
    assert plan_repair(StoreDirectory(tmp_path)).actions == []
    (tmp_path / "consumequeue" / "CURRENT").rename(tmp_path / "away")
    (tmp_path / "consumequeue" / "CURRENT").write_bytes(b"MANIFEST-000004\n")
    with pytest.raises(NotAStore, match="RocksDB"):
        plan_repair(StoreDirectory(tmp_path))


@pytest.mark.parametrize("marks", [True, False])
@pytest.mark.parametrize("at", [4, 90])
def test_a_damaged_last_record_below_a_mark_gets_a_stand_in_and_keeps_its_number(
    tmp_path: Path, marks: bool, at: int
) -> None:
    with rocketcompat.open(tmp_path, "w", layouts=["consume_queue"]) as store:
        last = [store.put_message(Message("T", b"x" * 50)) for _ in range(4)][-1]
    log = tmp_path / "commitlog" / f"{0:020d}"
    with log.open("r+b") as file:
        file.seek(last.physical_offset + at)
        file.write(b"\xff")
    if not marks:
        (tmp_path / ".tubestore" / "progress.json").unlink()
    (finding,) = (row for row in check_store(StoreDirectory(tmp_path)) if row["path"] == str(log))
    # Without marks a broker would cut the log there.
    assert finding["reason"] == ("damaged" if marks else "torn")
    plan = plan_repair(StoreDirectory(tmp_path))
    assert [a.position for a in plan.actions if a.path == str(log)] == [last.physical_offset]
    mended = any("stand-ins for T/0@3" in action.message for action in plan.actions)
    assert mended == marks
