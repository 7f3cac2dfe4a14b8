"""Queues, index and shards built anew from the log: equal to what dispatch wrote, at any crash."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rocketcompat
from rocketcompat import Message, MessageStoreConfig
from rocketcompat.inspect.directory import StoreDirectory
from rocketcompat.inspect.dump import dump_units
from rocketcompat.inspect.queues import QueueViews
from rocketcompat.options import LAYOUTS
from rocketcompat.repair.rebuild import build, rebuild
from tests.support.command import Command
from tests.support.crashes import some_states
from tests.support.golden import ROCKET_VERSIONS, GoldenFactory, golden_fixture  # noqa: F401
from tests.support.rocket.cli import command_fixture  # noqa: F401
from tests.support.rocket.golden import open_golden, queue_ends, units_of
from tests.support.rocket.inside import shards_of
from tubestore.clock import ManualClock
from tubestore.core.quarantine import Quarantine
from tubestore.errors import InvalidMessage
from tubestore.testing import MemoryVfs

SMALL = MessageStoreConfig(
    mapped_file_size_commit_log=4096, mapped_file_size_consume_queue=200, max_hash_slot_num=7,
    max_index_num=40, dispatch_batch_bytes_max=1500, layouts=LAYOUTS,
)  # fmt: skip
OPTIONS = {"maxHashSlotNum": 7, "maxIndexNum": 40}
ROOT = "/store"


def messages(count: int) -> list[Message]:
    return [
        Message(
            f"topic{n % 3}", f"body {n}".encode() * (1 + n % 9), queue_id=n % 4,
            tags=f"tag{n % 5}" if n % 6 else None, keys=[f"k{n}", f"m{n % 7}"] if n % 4 else None,
            sys_flag=(0, 0, 0x4, 0x8, 0xC)[n % 5],
        )
        for n in range(count)
    ]  # fmt: skip


def write(vfs: MemoryVfs, clock: ManualClock, count: int = 120, root: str = ROOT) -> list[int]:
    with rocketcompat.open(root, "w", SMALL, vfs=vfs, clock=clock, background=False) as store:
        return [store.put_message(m).physical_offset for m in messages(count)]


#: Those of a store without topics of batches.
STRUCTURES = ("consumequeue", "index", "tube")


def run(vfs: Any, clock: ManualClock, *structures: str, watch: Any = lambda *_: None) -> Any:
    directory = StoreDirectory(ROOT, OPTIONS, vfs)
    return list(
        rebuild(directory, structures or STRUCTURES, clock=clock,
                quarantine=Quarantine(vfs, ROOT), watch=watch)
    )  # fmt: skip


def files_of(vfs: MemoryVfs, *, index_names: bool = True) -> dict[str, bytes]:
    """The structures' files; caches and identities of the shards aside."""
    found = {}
    for path, raw in vfs.tree().items():
        relative = path.removeprefix(f"{ROOT}/")
        top = relative.split("/")[0]
        if top in STRUCTURES and ".tubestore" not in relative:
            found[relative] = raw
    if not index_names:  # they are times of creation
        names = [name for name in sorted(found) if name.startswith("index/")]
        for number, name in enumerate(names):
            found[f"index/{number}"] = found.pop(name)
    return found


@pytest.mark.parametrize("structures", [STRUCTURES, *((name,) for name in STRUCTURES)])
def test_what_is_rebuilt_is_byte_for_byte_what_dispatch_wrote(
    memory_vfs: MemoryVfs, clock: ManualClock, structures: tuple[str, ...]
) -> None:
    write(memory_vfs, clock)
    before = files_of(memory_vfs, index_names=False)
    assert len([name for name in before if name.startswith("index/")]) > 2
    rows = run(memory_vfs, clock, *structures)
    assert [row["path"] for row in rows] == [f"{ROOT}/{name}" for name in structures]
    assert files_of(memory_vfs, index_names=False) == before


def test_the_old_files_are_in_quarantine(memory_vfs: MemoryVfs, clock: ManualClock) -> None:
    write(memory_vfs, clock)
    path = f"{ROOT}/consumequeue/topic0/0/{0:020d}"
    memory_vfs.open(path).pwrite(b"damage", 0)
    before = files_of(memory_vfs)
    run(memory_vfs, clock, "consumequeue")
    assert memory_vfs.read_file(path) != before["consumequeue/topic0/0/" + "0" * 20]
    kept = {
        path.removeprefix(f"{ROOT}/.tubestore/quarantine/1/"): raw
        for path, raw in memory_vfs.tree().items()
        if "/quarantine/" in path
    }
    assert kept == {name: raw for name, raw in before.items() if name.startswith("consumequeue/")}
    run(memory_vfs, clock, "consumequeue")
    assert memory_vfs.exists(f"{ROOT}/.tubestore/quarantine/2/consumequeue")


def test_the_store_opens_without_building_it_once_more(
    memory_vfs: MemoryVfs, clock: ManualClock
) -> None:
    places = write(memory_vfs, clock)
    run(memory_vfs, clock)
    with rocketcompat.open(
        ROOT, "w", SMALL, vfs=memory_vfs, clock=clock, background=False
    ) as store:
        assert store.recovered.verified_from > places[-1]
        assert store.problems == []
        result = store.put_message(Message("topic0", b"next"))
        units = sum(m.queue_id == 0 and m.topic == "topic0" and m.sys_flag in (0, 8)
                    for m in messages(120))  # fmt: skip
        assert result.queue_offset == units


@pytest.mark.one_in(5)
@pytest.mark.parametrize("version", ROCKET_VERSIONS)
@pytest.mark.parametrize("scenario", ["cq-deleted", "cq-index-deleted", "rolled", "delayed"])
def test_a_golden_store_without_queues_gets_those_it_had(
    golden: GoldenFactory, command: Command, version: str, scenario: str
) -> None:
    real = golden("rocketmq", version, scenario)
    config = real.meta["config"]
    options = [f"--option={name}={config[name]}" for name in ("mappedFileSizeConsumeQueue",
               "maxHashSlotNum", "maxIndexNum")]  # fmt: skip
    shutil.rmtree(real.store / "consumequeue", ignore_errors=True)
    shutil.rmtree(real.store / "index", ignore_errors=True)
    done = command("rebuild", real.store, "consumequeue", "index", "-f", "jsonl", *options)
    assert (done.code, [row["action"] for row in done.rows]) == (0, ["rebuild", "rebuild"])
    expected = [
        (r["queue"], r["index"], r["cqPhysicalOffset"], r["cqSize"], r["tagsCode"])
        for r in real.expected(type="message")
    ]
    views = QueueViews(StoreDirectory(real.store), trust=True)
    found = [
        (f"{u['topic']}/{u['queue_id']}", u["queue_offset"], u["physical_offset"], u["size"],
         u["tags_code"])
        for u in dump_units(views)
    ]  # fmt: skip
    assert found == expected
    reasons = {row["reason"] for row in command("check", real.store, "-f", "jsonl").rows}
    assert reasons <= {"checkpoint"}  # cq-index-deleted has none either


def test_queues_of_expired_messages_keep_their_next_offset(golden: GoldenFactory) -> None:
    """apache/rocketmq#5092: a queue whose files were cleaned began at 0 again."""
    real = golden("rocketmq", "5.3.3", "expired-most")
    with open_golden(golden("rocketmq", "5.3.3", "expired-most")) as store:
        expected = queue_ends(store)
    assert any(low == high > 0 for low, high in expected.values())
    directory = StoreDirectory(real.store)
    list(rebuild(directory, ["consumequeue"], clock=ManualClock(),
                 quarantine=Quarantine(directory.vfs, directory.root)))  # fmt: skip
    with open_golden(real) as store:
        assert queue_ends(store) == expected


@pytest.mark.parametrize("scenario", ["flip-body-middle", "bad-size-middle", "torn-half"])
def test_damage_in_the_log_keeps_its_number(golden: GoldenFactory, scenario: str) -> None:
    expected_store = golden("rocketmq", "4.9.8", scenario)
    real = golden("rocketmq", "4.9.8", scenario)
    with open_golden(expected_store) as store:
        expected = list(units_of(store))
    directory = StoreDirectory(real.store)
    list(rebuild(directory, ["consumequeue", "index"], clock=ManualClock(),
                 quarantine=Quarantine(directory.vfs, directory.root)))  # fmt: skip
    with open_golden(real) as store:
        assert list(units_of(store)) == expected


def test_an_interrupted_run_is_taken_up_again(
    memory_vfs: MemoryVfs, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(memory_vfs, clock, 200)
    before = files_of(memory_vfs, index_names=False)
    monkeypatch.setattr("rocketcompat.repair.rebuild.MARK_BYTES", 3000)
    seen: list[int] = []

    def stop_at(limit: int) -> Callable[[int, int], None]:
        def watch(done: int, total: int) -> None:
            seen.append(done)
            if done > total * limit // 10:
                raise KeyboardInterrupt

        return watch

    for limit in (3, 6):
        with pytest.raises(KeyboardInterrupt):
            run(memory_vfs, clock, watch=stop_at(limit))
    assert files_of(memory_vfs, index_names=False) == before
    again = len(seen)
    run(memory_vfs, clock, watch=stop_at(10))
    assert min(seen[again:]) > seen[0]
    assert files_of(memory_vfs, index_names=False) == before
    assert not memory_vfs.exists(f"{ROOT}/.tubestore/rebuild")


@pytest.mark.gate
@pytest.mark.crash
@pytest.mark.parametrize("structure", STRUCTURES)
def test_a_crash_at_any_moment_loses_nothing(
    memory_vfs: MemoryVfs, clock: ManualClock, structure: str
) -> None:
    count = 24
    places = write(memory_vfs, clock, count)
    expected = [m for m in messages(count) if m.sys_flag in (0, 8)]
    journal = memory_vfs.record()
    run(memory_vfs, clock, structure)
    states = some_states(journal, 40, seed=20261121, variants=5)
    for state in states:
        with rocketcompat.open(
            ROOT, "w", SMALL, vfs=state.vfs(clock), clock=clock, background=False
        ) as store:
            assert store.max_physical_offset > places[-1], str(state)
            units = [u for u in units_of(store) if u["record"]]
            assert len(units) == len(expected), str(state)
            found = store.query_message("topic1", "k1", 10)
            assert [m.physical_offset for m in found.messages] == [places[1]], str(state)
            shards = shards_of(store).store.topic("topic0").scan(columns=["msg_id"]).read_all()
            wanted = [p for p, m in zip(places, messages(count), strict=True)
                      if m.topic == "topic0" and m.sys_flag in (0, 8)]  # fmt: skip
            assert sorted(shards["msg_id"].to_pylist()) == wanted, str(state)
    assert len(states) > 20


def test_a_store_that_is_open_is_refused(tmp_path: Path, command: Command) -> None:
    with rocketcompat.open(tmp_path, "w", SMALL, background=False) as store:
        store.put_message(Message("T", b"x"))
        done = command("rebuild", tmp_path, "consumequeue")
        assert (done.code, done.err.count("\n")) == (3, 1)
        assert "this process" in done.err
    assert command("rebuild", tmp_path, "consumequeue").code == 0
    assert command("rebuild", tmp_path, "commitlog").code == 2
    assert command("rebuild", tmp_path).code == 2


@pytest.mark.parametrize("resumed", [False, True])
def test_a_topic_that_no_shard_can_have_is_one_row_of_a_rebuild(
    memory_vfs: MemoryVfs, clock: ManualClock, resumed: bool
) -> None:
    def opened() -> rocketcompat.DefaultMessageStore:
        return rocketcompat.open(ROOT, "w", SMALL, vfs=memory_vfs, clock=clock, background=False)

    with opened() as store:
        for topic in ("a+b", "a+b", "fine"):
            store.put_message(Message(topic, b"1"))
    if resumed:  # interrupted when all was built: the log is not read once more
        directory = StoreDirectory(ROOT, OPTIONS, memory_vfs)
        build(directory, ["tube"], clock=clock, watch=lambda *_: None)
    rows = run(memory_vfs, clock, "tube")
    assert [row["action"] for row in rows] == ["rebuild", "leave"]
    with opened() as store:
        assert rows[1]["message"] == str(store.problems[0])
    assert rows[1]["path"] == f"{ROOT}/tube"


def test_an_unknown_structure_is_refused(memory_vfs: MemoryVfs, clock: ManualClock) -> None:
    write(memory_vfs, clock, 2)
    with pytest.raises(InvalidMessage, match="commitlog"):
        run(memory_vfs, clock, "commitlog")


def test_a_full_disk_leaves_the_old_structure(memory_vfs: MemoryVfs, clock: ManualClock) -> None:
    import errno

    from tubestore.testing import FaultyVfs

    write(memory_vfs, clock)
    before = files_of(memory_vfs)
    faulty = FaultyVfs(memory_vfs)
    faulty.fail("pwrite", error=errno.ENOSPC, path="/rebuild/")
    with pytest.raises(OSError, match=r"No space|ENOSPC|space"):
        run(faulty, clock, "consumequeue", "index")
    assert files_of(memory_vfs) == before
    faulty.heal()
    run(faulty, clock, "consumequeue", "index")
    assert files_of(memory_vfs, index_names=False)
