"""Settings of many topics are appended to a log: as durable as one file, at the price of a line."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import tubestore
from tests.support.crashes import some_states
from tubestore.clock import ManualClock
from tubestore.core.state_file import BadState
from tubestore.errors import NotAStore
from tubestore.offline.check import check
from tubestore.offline.repair import repair
from tubestore.options import TopicOptions
from tubestore.record.state_files import change_line, read_topics
from tubestore.store import directory
from tubestore.store.manager import MessageStoreManager, engine_of
from tubestore.testing import FaultyVfs, MemoryVfs

OWN = "/store/.tubestore"
SETTINGS = f"{OWN}/topics.json"


@pytest.fixture(autouse=True)
def few_topics_have_a_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory, "LOG_FROM_TOPICS", 4)


def opened(vfs: Any, mode: Any = "w", **how: Any) -> MessageStoreManager:
    return tubestore.open("/store", mode, vfs=vfs, background=False, **how)


def logs(vfs: MemoryVfs) -> list[str]:
    return [name for name, _, _ in vfs.entries(OWN) if name.startswith("topics-")]


def left_by_a_kill(vfs: MemoryVfs, topics: int = 7) -> str:
    """Make a store whose last topics are in its log only; returns the log's path."""
    store = opened(vfs)
    for number in range(topics):
        store.create_topic(f"t{number}", partitions=number + 1)
    engine_of(store).abandon("killed")
    vfs.release_locks()
    (log,) = logs(vfs)
    return f"{OWN}/{log}"


def partitions(store: MessageStoreManager) -> dict[str, int]:
    return {name: store[name].options.partitions for name in store.topics()}


def rewritten(vfs: MemoryVfs, path: str, change: Callable[[list[bytes]], None]) -> None:
    lines = vfs.read_file(path).splitlines(keepends=True)
    change(lines)
    vfs.replace_file(path, b"".join(lines))


def test_a_new_topic_costs_as_much_as_it_has_not_as_there_are_topics(
    memory_vfs: MemoryVfs,
) -> None:
    with opened(memory_vfs) as store:
        journal = memory_vfs.record()
        written = []
        for number in range(512):
            before = len(journal)
            store.create_topic(f"t{number:03}")
            calls = journal.calls[before:]
            written.append(sum(len(call.data) for call in calls))
    assert sum(written) < 512 * 8 * max(written[:4])
    assert sum(size < 200 for size in written) > 500


def test_topics_of_the_log_are_there_after_a_kill_and_the_next_close_leaves_one_file(
    memory_vfs: MemoryVfs,
) -> None:
    log = left_by_a_kill(memory_vfs)
    expected = {f"t{number}": number + 1 for number in range(7)}
    assert len(memory_vfs.read_file(log).splitlines()) == 3
    with opened(memory_vfs, "r") as reader:
        assert partitions(reader) == expected
    with opened(memory_vfs) as store:
        assert partitions(store) == expected
        store.change_topic("t0", partitions=9)
        store.delete_topic("t1")
        del expected["t1"]
    assert logs(memory_vfs) == []
    state = json.loads(memory_vfs.read_file(SETTINGS))
    assert set(state) == {"version", "topics"}
    with opened(memory_vfs, "r") as reader:
        assert partitions(reader) == {**expected, "t0": 9}


def test_a_new_log_has_another_number_than_those_that_are_there(
    memory_vfs: MemoryVfs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directory, "LOG_FROM_TOPICS", 1)
    clock = ManualClock(1_700_000_000_000)
    memory_vfs.make_directories(OWN)
    for number in range(20):
        name = f"{OWN}/topics-{clock.now_ms() + number}.log"
        memory_vfs.open(name, create=True).close()
    with opened(memory_vfs, clock=clock) as store:
        for number in range(5):
            store.create_topic(f"t{number}")
        assert len(logs(memory_vfs)) == 1
    with opened(memory_vfs, "r") as reader:
        assert len(reader.topics()) == 5


def test_a_version_that_does_not_know_the_log_refuses_the_settings(memory_vfs: MemoryVfs) -> None:
    left_by_a_kill(memory_vfs)
    assert json.loads(memory_vfs.read_file(SETTINGS))["features"] == ["topics-log"]
    with opened(memory_vfs) as store:
        assert len(store.topics()) == 7


def test_a_reader_sees_topics_of_the_log_and_those_that_come_after(memory_vfs: MemoryVfs) -> None:
    with opened(memory_vfs) as store:
        for number in range(5):
            store.create_topic(f"t{number}")
        with opened(memory_vfs, "r") as reader:
            assert len(reader.topics()) == 5
            store.create_topic("late", partitions=3)
            reader.refresh()
            assert reader["late"].options.partitions == 3


@pytest.mark.parametrize("seed", [1, 2])
def test_a_crash_loses_no_topic_whose_call_returned(clock: ManualClock, seed: int) -> None:
    vfs = MemoryVfs(clock)
    store = opened(vfs, clock=clock)
    store.create_topic("t0")
    journal = vfs.record()
    for number in range(1, 12):
        store.create_topic(f"t{number}", partitions=number + 1)
        vfs.mark(f"t{number}")
    store.delete_topic("t3")
    vfs.mark("deleted")
    store.create_topic("t12", partitions=13)
    vfs.mark("t12")
    store.close()
    states = some_states(journal, 60, seed=seed, variants=10)
    for state in states:
        disk = state.vfs(clock)
        with opened(disk, "r", clock=clock) as reader:
            seen = partitions(reader)
        with opened(disk, clock=clock) as again:
            assert partitions(again) == seen, state
            again.create_topic("new")
        acknowledged = {"t0", *state.marks} - {"deleted"}
        gone = {"t3"} if "t11" in state.marks else set()
        assert acknowledged - gone <= set(seen), state
        assert "deleted" not in state.marks or "t3" not in seen, state
        assert all(seen[f"t{n}"] == n + 1 for n in range(13) if f"t{n}" in seen), state
        with opened(disk, "r", clock=clock) as reader:
            assert partitions(reader) == {**seen, "new": 1}, state
        assert logs(disk) == [], state
        assert list(check("/store", vfs=disk)) == [], state
    assert len(states) > 50


@pytest.mark.parametrize("call", ["pwrite", "sync"])
def test_a_topic_that_could_not_be_saved_is_not_there_and_the_next_one_is(
    clock: ManualClock, call: str
) -> None:
    memory_vfs = MemoryVfs(clock)
    vfs = FaultyVfs(memory_vfs)
    store = opened(vfs, clock=clock)
    for number in range(5):
        store.create_topic(f"t{number}")
    vfs.fail(call, path="topics-")
    with pytest.raises(OSError, match="topics-"):
        store.create_topic("lost")
    assert "lost" not in store
    store.create_topic("next")
    engine_of(store).abandon("killed")
    memory_vfs.release_locks()
    with opened(memory_vfs, clock=clock) as again:
        assert again.topics() == ["next", *(f"t{number}" for number in range(5))]


@pytest.mark.parametrize("call", ["create", "sync_directory", "replace_file"])
@pytest.mark.parametrize("nth", [1, 2])
def test_changes_after_a_failed_rewrite_of_the_settings_are_kept(
    clock: ManualClock, call: str, nth: int
) -> None:
    memory_vfs = MemoryVfs(clock)
    vfs = FaultyVfs(memory_vfs)
    store = opened(vfs, clock=clock)
    for number in range(4):
        store.create_topic(f"t{number}")
    vfs.fail(call, nth=nth, path=OWN, error=errno.ENOSPC)
    made = {f"t{number}" for number in range(4)}
    for number in range(4, 20):
        try:
            store.create_topic(f"t{number}")
        except OSError:
            continue
        made.add(f"t{number}")
    assert len(made) >= 19
    engine_of(store).abandon("killed")
    memory_vfs.release_locks()
    with opened(memory_vfs, clock=clock) as again:
        assert set(again.topics()) == made


def test_a_close_that_cannot_write_the_settings_leaves_the_log(clock: ManualClock) -> None:
    memory_vfs = MemoryVfs(clock)
    vfs = FaultyVfs(memory_vfs)
    store = opened(vfs, clock=clock)
    for number in range(6):
        store.create_topic(f"t{number}")
    vfs.fail("replace_file", path="topics.json", error=errno.ENOSPC)
    store.close()
    assert len(logs(memory_vfs)) == 1
    with opened(memory_vfs, clock=clock) as again:
        assert len(again.topics()) == 6
    assert logs(memory_vfs) == []


# -- damage ----------------------------------------------------------------------------------


def test_a_torn_last_line_is_no_change(memory_vfs: MemoryVfs) -> None:
    log = left_by_a_kill(memory_vfs)
    rewritten(memory_vfs, log, lambda lines: lines.append(lines.pop()[:-9]))
    with opened(memory_vfs, "r") as reader:
        assert len(reader.topics()) == 6
    assert list(check("/store", vfs=memory_vfs)) == []


def flip(lines: list[bytes]) -> None:
    lines[1] = lines[1].replace(b'"partitions"', b'"partitionz"')


def no_object(lines: list[bytes]) -> None:
    lines[1] = change_line({}).replace(b"{}", b"[]")


@pytest.mark.parametrize("damage", [flip, no_object])
def test_a_damaged_line_refuses_the_store_until_repair_keeps_the_sound_ones(
    memory_vfs: MemoryVfs, damage: Callable[[list[bytes]], None]
) -> None:
    log = left_by_a_kill(memory_vfs)
    first = len(memory_vfs.read_file(log).splitlines(keepends=True)[0])
    rewritten(memory_vfs, log, damage)
    for mode in ("r", "w"):
        with pytest.raises(NotAStore, match=r"topics-\d+\.log: cannot be read: a damaged line"):
            opened(memory_vfs, mode)
    (finding,) = check("/store", vfs=memory_vfs)
    assert (finding.path, finding.position, finding.reason) == (log, first, "bad_state")
    planned = list(repair("/store", vfs=memory_vfs))
    assert list(repair("/store", vfs=memory_vfs, apply=True)) == planned
    assert [(a.path, a.action, a.position) for a in planned] == [(log, "reset_state", first)]
    assert list(check("/store", vfs=memory_vfs)) == []
    with opened(memory_vfs) as store:
        assert partitions(store) == {f"t{n}": n + 1 for n in (0, 1, 2, 3, 4, 6)}


def test_a_missing_log_refuses_the_store_until_repair_does_without(memory_vfs: MemoryVfs) -> None:
    log = left_by_a_kill(memory_vfs)
    memory_vfs.remove(log)
    for mode in ("r", "w"):
        with pytest.raises(NotAStore, match=r"topics-\d+\.log: is missing"):
            opened(memory_vfs, mode)
    (finding,) = check("/store", vfs=memory_vfs)
    assert (finding.path, finding.reason) == (log, "bad_state")
    list(repair("/store", vfs=memory_vfs, apply=True))
    with opened(memory_vfs) as store:
        assert store.topics() == ["t0", "t1", "t2", "t3"]


@pytest.mark.parametrize(
    "wrong", [{"log": -1}, {"log": "1"}, {"log": 0}, {"features": ["topics-log", "more"]}]
)
def test_settings_that_name_no_valid_log_are_refused(
    memory_vfs: MemoryVfs, wrong: dict[str, Any]
) -> None:
    left_by_a_kill(memory_vfs)
    state = {**json.loads(memory_vfs.read_file(SETTINGS)), **wrong}
    memory_vfs.replace_file(SETTINGS, json.dumps(state).encode())
    with pytest.raises(NotAStore, match=r"topics\.json"):
        opened(memory_vfs)
    assert [finding.path for finding in check("/store", vfs=memory_vfs)] == [SETTINGS]


def reads(*contents: bytes | None) -> Callable[[str], bytes]:
    """Return a reader of files that gives one content after the other, None for a missing file."""
    left: Iterator[bytes | None] = iter(contents)

    def read(name: str) -> bytes:
        content = next(left)
        if content is None:
            raise FileNotFoundError(name)
        return content

    return read


def snapshot(log: int, **topics: dict[str, int]) -> bytes:
    content = {"version": 1, "topics": topics, "features": ["topics-log"], "log": log}
    return json.dumps(content).encode()


def test_settings_that_a_writer_replaces_meanwhile_are_read_again() -> None:
    found = read_topics(
        reads(snapshot(1), None, snapshot(2, a={}), change_line({"b": TopicOptions()}))
    )
    assert (sorted(found.settings), found.log) == (["a", "b"], 2)
    with pytest.raises(BadState, match="is missing") as caught:
        read_topics(reads(snapshot(1), None, snapshot(1), None))
    assert caught.value.name == "topics-1.log"


def test_the_command_line_completes_topics_of_the_log(tmp_path: Path) -> None:
    from tubestore.cli.kit.arguments import check_topic
    from tubestore.cli.kit.errors import NotThere

    store = tubestore.open(tmp_path, background=False)
    for number in range(6):
        store.create_topic(f"t{number}")
    check_topic(str(tmp_path), "t5")
    with pytest.raises(NotThere, match="t6"):
        check_topic(str(tmp_path), "t6")
    store.close()
