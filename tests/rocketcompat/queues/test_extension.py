"""Extensions of queues: written, rebuilt, recovered, read."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import rocketcompat
from rocketcompat import GetMessageStatus, Message, MessageStoreConfig
from rocketcompat.check.whole import check
from rocketcompat.inspect.directory import StoreDirectory
from rocketcompat.queues.extension import ConsumeQueueExt, is_address
from rocketcompat.repair.apply import repair
from rocketcompat.repair.rebuild import rebuild
from rocketcompat.store.default_message_store import DefaultMessageStore
from tests.support.command import Command
from tests.support.golden import ROCKET_VERSIONS, Golden, GoldenFactory
from tests.support.golden_puts import Again, files_of
from tests.support.rocket.cli import command_fixture  # noqa: F401
from tests.support.rocket.golden import open_golden
from tests.support.rocket.inside import dispatcher_of, opened_of, queues_of
from tubestore.clock import ManualClock, SystemClock
from tubestore.core.java_hash import java_hash
from tubestore.core.quarantine import Quarantine
from tubestore.testing import MemoryVfs

#: 3 units fit into a file of the extension, with 4 bytes for its end.
CONFIG = MessageStoreConfig(
    mapped_file_size_commit_log=1 << 16,
    mapped_file_size_consume_queue=200,
    enable_consume_queue_ext=True,
    mapped_file_size_consume_queue_ext=70,
    layouts=frozenset({"consume_queue"}),
)


def opened(root: Any, clock: ManualClock, config: MessageStoreConfig = CONFIG) -> Any:
    return rocketcompat.open(root, "w", config, clock=clock, background=False)


def put_some(store: DefaultMessageStore, count: int, first: int = 0) -> None:
    for number in range(first, first + count):
        store.put_message(Message("T", b"%d" % number, tags=f"t{number % 3}"))
    dispatcher_of(store).dispatch_pending()


def hashes(store: DefaultMessageStore) -> list[int]:
    """What the units of the queue say, by way of the extension."""
    queue = queues_of(store).find_or_create("T", 0)
    raw = queue.units(0, queue.max_offset)
    assert is_address(raw["tags_code"]).all()
    return [int(code) for code in queue.resolved(raw)["tags_code"]]


def expected(count: int) -> list[int]:
    return [java_hash(f"t{number % 3}") for number in range(count)]


@pytest.mark.parametrize("version", ROCKET_VERSIONS)
def test_the_golden_extensions_come_out_the_same(
    golden: GoldenFactory, tmp_path: Path, version: str
) -> None:
    theirs = golden("rocketmq", version, "cq-ext")
    again = Again(theirs, tmp_path / "again")
    again.put_all()
    again.close("consumequeue", "consumequeue_ext")


@pytest.mark.parametrize("version", ROCKET_VERSIONS)
def test_queues_and_extensions_are_rebuilt_from_the_log(
    golden: GoldenFactory, version: str
) -> None:
    theirs = golden("rocketmq", version, "cq-ext")
    before = {name: files_of(theirs.store, name) for name in ("consumequeue", "consumequeue_ext")}
    for name in before:
        shutil.rmtree(theirs.store / name)
    with open_golden(theirs) as store:
        assert store.problems == []
    for name, files in before.items():
        assert files_of(theirs.store, name) == files


@pytest.mark.parametrize("version", ROCKET_VERSIONS)
def test_a_rebuild_makes_queues_and_extensions_that_go_with_each_other(
    golden: GoldenFactory, version: str
) -> None:
    theirs = golden("rocketmq", version, "cq-ext")
    before = {name: files_of(theirs.store, name) for name in ("consumequeue", "consumequeue_ext")}
    shutil.rmtree(theirs.store / "consumequeue")
    for path in (theirs.store / "consumequeue_ext").rglob("0" * 20):
        path.write_bytes(bytes(path.stat().st_size))
    directory = StoreDirectory(theirs.store, sizes_of(theirs))
    kept = Quarantine(directory.vfs, directory.root)
    (row,) = rebuild(directory, ["consumequeue"], clock=SystemClock(), quarantine=kept)
    assert row["action"] == "rebuild"
    for name, files in before.items():
        assert files_of(theirs.store, name) == files
    assert list(check(theirs.store, sizes_of(theirs))) == []


@pytest.mark.parametrize("version", ROCKET_VERSIONS)
def test_a_lost_extension_is_found_and_mended(golden: GoldenFactory, version: str) -> None:
    theirs = golden("rocketmq", version, "cq-ext")
    before = files_of(theirs.store, "consumequeue_ext")
    (lost,) = {next(iter(before))}
    (theirs.store / lost).write_bytes(bytes(len(before[lost])))
    reasons = {row["reason"] for row in check(theirs.store, sizes_of(theirs))}
    assert reasons == {"ext_missing"}
    directory = StoreDirectory(theirs.store, sizes_of(theirs))
    kept = Quarantine(directory.vfs, directory.root)
    rows = list(repair(directory, clock=SystemClock(), quarantine=kept))
    assert [row["action"] for row in rows] == ["rebuild"]
    assert files_of(theirs.store, "consumequeue_ext") == before
    assert list(check(theirs.store, sizes_of(theirs))) == []
    with open_golden(theirs) as store:
        assert store.problems == []


def sizes_of(golden: Golden) -> dict[str, Any]:
    """The sizes that no file tells."""
    names = ("maxHashSlotNum", "maxIndexNum", "mappedFileSizeConsumeQueue",
             "mappedFileSizeConsumeQueueExt")  # fmt: skip
    return {name: golden.meta["config"][name] for name in names if name in golden.meta["config"]}


@pytest.mark.parametrize("version", ROCKET_VERSIONS)
def test_a_filter_finds_the_hash_behind_the_address(golden: GoldenFactory, version: str) -> None:
    theirs = golden("rocketmq", version, "cq-ext")
    wanted: dict[tuple[str, int, str], list[int]] = {}
    for row in theirs.expected(type="message"):
        place = (row["topic"], row["queueId"], row["properties"]["TAGS"])
        wanted.setdefault(place, []).append(row["index"])
    assert len(wanted) > 12
    with open_golden(theirs, "r") as store:
        for (topic, queue_id, tag), offsets in wanted.items():
            found = store.get_message(topic, queue_id, 0, 32, tag)
            assert found.queue_offsets == offsets


@pytest.mark.parametrize("more", [(), ("--trust-queues",)])
def test_the_command_finds_the_hash_behind_the_address(
    golden: GoldenFactory, command: Command, more: tuple[str, ...]
) -> None:
    theirs = golden("rocketmq", "5.3.3", "cq-ext")
    rows = list(theirs.expected(type="message"))
    topic, queue_id, tag = next((r["topic"], r["queueId"], r["properties"]["TAGS"]) for r in rows)
    wanted = [
        row["index"] for row in rows
        if (row["topic"], row["queueId"], row["properties"]["TAGS"]) == (topic, queue_id, tag)
    ]  # fmt: skip
    done = command("get", theirs.store, "--topic", topic, "--queue", queue_id, "--offset", 0,
                   "--tags", tag, "--format", "jsonl", *more)  # fmt: skip
    assert done.rows[0]["queue_offsets"] == wanted


def test_expired_files_go_with_those_of_the_queue(tmp_path: Path, clock: ManualClock) -> None:
    with opened(tmp_path, clock) as store:
        put_some(store, 25)  # three files of ten units
        queue = queues_of(store).find_or_create("T", 0)
        unit = queue.unit(12)
        assert queue.delete_expired(unit.physical_offset) == 1
        names = sorted(f.name for f in (tmp_path / "consumequeue_ext" / "T" / "0").iterdir())
        assert int(names[0]) == 3 * 70  # units 9 to 11: the tenth is kept
        codes = queue.resolved(queue.units(10, 25))["tags_code"].tolist()
        assert codes == expected(25)[10:]


def test_units_roll_over_files_and_the_end_of_each_is_marked(
    tmp_path: Path, clock: ManualClock
) -> None:
    with opened(tmp_path, clock) as store:
        put_some(store, 8)
        assert hashes(store) == expected(8)
    files = sorted((tmp_path / "consumequeue_ext" / "T" / "0").iterdir())
    assert [file.name for file in files] == [f"{n * 70:020d}" for n in range(3)]
    assert files[0].read_bytes()[60:62] == b"\xff\xff"
    assert files[1].read_bytes()[60:62] == b"\xff\xff"
    assert not any(files[2].read_bytes()[40:])
    assert list(check(tmp_path, {"mappedFileSizeConsumeQueueExt": "70"})) == []


def test_what_is_appended_after_an_open_follows_what_is_there(
    tmp_path: Path, clock: ManualClock
) -> None:
    for first in range(0, 12, 4):
        with opened(tmp_path, clock) as store:
            put_some(store, 4, first)
            assert hashes(store) == expected(first + 4)
    size = sum(f.stat().st_size for f in (tmp_path / "consumequeue_ext" / "T" / "0").iterdir())
    assert size == 4 * 70


def test_after_a_crash_nothing_is_there_twice(clock: ManualClock) -> None:
    vfs = MemoryVfs(clock)

    def reopened() -> DefaultMessageStore:
        return rocketcompat.open("/s", "w", CONFIG, vfs=vfs, clock=clock, background=False)

    store = reopened()
    put_some(store, 5)
    store.flush()
    put_some(store, 5, 5)  # dispatched, not synced: handed over again
    opened_of(store).give_back()
    store._closed = True
    with reopened() as again:
        assert hashes(again) == expected(10)
        put_some(again, 2, 10)
        assert hashes(again) == expected(12)
    files = [name for name, _, _ in vfs.entries("/s/consumequeue_ext/T/0")]
    assert len(files) == 4


def test_a_real_store_s_extension_is_continued(
    golden: GoldenFactory,
) -> None:
    theirs = golden("rocketmq", "4.9.8", "cq-ext")
    with open_golden(theirs) as store:
        topic, queue_id = "Topic0", 0
        count = store.max_offset_in_queue(topic, queue_id)
        put = store.put_message(Message(topic, b"next", tags="INFO", queue_id=queue_id))
        dispatcher_of(store).dispatch_pending()
        assert put.queue_offset == count
        found = store.get_message(topic, queue_id, count, 1, "INFO")
        assert found.status is GetMessageStatus.FOUND
        assert store.get_message(topic, queue_id, count, 1, "WARN").messages == []


def test_switched_off_again_units_hold_the_hash(tmp_path: Path, clock: ManualClock) -> None:
    with opened(tmp_path, clock) as store:
        put_some(store, 2)
    with opened(tmp_path, clock, CONFIG.changed(enable_consume_queue_ext=False)) as store:
        put_some(store, 2, 2)
        queue = queues_of(store).find_or_create("T", 0)
        assert is_address(queue.units(0, 4)["tags_code"]).tolist() == [True, True, False, False]
        assert [m.body for m in store.get_message("T", 0, 0, 32, "t2 || t1")] == [b"1", b"2"]
    with opened(tmp_path, clock) as store:
        put_some(store, 1, 4)
        queue = queues_of(store).find_or_create("T", 0)
        codes = queue.resolved(queue.units(0, 5))["tags_code"].tolist()
        assert codes == expected(5)


def test_an_address_that_leads_nowhere_stays_one(memory_vfs: MemoryVfs) -> None:
    import numpy as np

    ext = ConsumeQueueExt(memory_vfs, "/q", 70, writable=True)
    codes = np.array([-(1 << 63) + 40, 7], np.int64)
    assert ext.resolve(codes).tolist() == codes.tolist()
