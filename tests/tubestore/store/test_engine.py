"""The life of an open store: its threads, its end, a forked child."""

from __future__ import annotations

import errno
import gc
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import tubestore
from tests.support import REPOSITORY
from tests.support.engine.ended import bodies
from tubestore.core.vfs import OsVfs
from tubestore.errors import DiskFull, StoreClosed, StoreLocked
from tubestore.store.manager import engine_of
from tubestore.store.topic import shards_of
from tubestore.testing import FaultyVfs, MemoryVfs


def test_a_store_that_was_not_closed_warns_and_closes_itself(memory_vfs: MemoryVfs) -> None:
    store = tubestore.open("/s", vfs=memory_vfs, background=False)
    store.create_topic("t").append(b"x", durability="memory")
    with pytest.warns(ResourceWarning, match="was not closed"):  # noqa: PT031
        del store
        gc.collect()
    with tubestore.open("/s", vfs=memory_vfs, background=False) as store:
        assert bodies(store["t"]) == [b"x"]


def test_opening_a_store_again_closes_the_one_that_a_full_disk_kept_open(
    memory_vfs: MemoryVfs,
) -> None:
    faulty = FaultyVfs(memory_vfs)
    settings: dict[str, Any] = {"vfs": faulty, "background": False, "durability": "memory"}
    store = tubestore.open("/s", **settings)
    topic = store.create_topic("t")
    with pytest.raises(StoreLocked):
        tubestore.open("/s", **settings)
    topic.append(b"x")
    faulty.fail("pwrite", error=errno.ENOSPC, forever=True)
    with pytest.raises(DiskFull):
        store.close()
    with pytest.raises(DiskFull):
        tubestore.open("/s", **settings)
    assert bodies(topic) == [b"x"]
    faulty.heal()
    with tubestore.open("/s", **settings) as other:
        assert bodies(other["t"]) == [b"x"]
    with pytest.raises(StoreClosed):
        topic.append(b"y")


def in_a_child(work: Any) -> str:
    """Run `work` in a fork and return what it answered; a child that hangs is killed."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        answer = "nothing was raised"
        try:
            work()
        except BaseException as error:
            answer = type(error).__name__
        os.write(writing, answer.encode())
        os._exit(0)
    os.close(writing)
    timer = threading.Timer(5, os.kill, (pid, 9))
    timer.start()
    try:
        answer = os.read(reading, 100).decode() or "killed"
        os.waitpid(pid, 0)
    finally:
        timer.cancel()
        os.close(reading)
    return answer


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    with tubestore.open(tmp_path, background=False) as store:
        topic = store.create_topic("t", stores=2)
        topic.append(b"x", partition=0, durability="memory")
        for work in (
            lambda: topic.append(b"y", partition=0),
            lambda: topic.append(b"y", partition=10_000),
            lambda: topic.append_batch({"body": [b"y"]}),
            lambda: topic.read(0),
            lambda: store.create_topic("u"),
            lambda: store.flush(),
            lambda: store.sync(),
        ):
            assert in_a_child(work) == "StoreClosed"
        assert in_a_child(store.close) == "nothing was raised"
        with pytest.raises(StoreLocked):
            tubestore.open(tmp_path, vfs=OsVfs())
        assert topic.append(b"z", partition=0).offset == 28
        assert bodies(topic) == [b"x", b"z"]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_forked_while_another_thread_was_in_a_call_does_not_hang(tmp_path: Path) -> None:
    with tubestore.open(tmp_path, background=False) as store:
        topic = store.create_topic("t")
        topic.append(b"x")
        shard: Any = shards_of(topic).shard(0)
        with shard._append_lock, engine_of(store).topics.lock:  # as if other threads were inside
            assert in_a_child(lambda: topic.append(b"y")) == "StoreClosed"
            assert in_a_child(lambda: topic.read(0)) == "StoreClosed"
            assert in_a_child(store.sync) == "StoreClosed"


def test_background_threads_end_with_the_store(tmp_path: Path) -> None:
    before = threading.active_count()
    with tubestore.open(tmp_path) as store:
        assert threading.active_count() > before
        store.create_topic("t").append(b"x")
    assert threading.active_count() == before


@pytest.mark.gate
@pytest.mark.parametrize(("end", "code"), [("", 0), ("raise ValueError", 1), ("sys.exit(3)", 3)])
def test_a_program_that_leaves_its_store_open_ends_and_its_messages_are_written(
    tmp_path: Path, end: str, code: int
) -> None:
    lines = (
        "import sys, tubestore",
        f"topic = tubestore.open({str(tmp_path)!r}).create_topic('t')",
        "topic.append(b'1', partition=0)",
        "topic.append(b'2', partition=0, durability='memory')",
        end,
    )
    command = [sys.executable, "-c", "\n".join(lines)]
    ended = subprocess.run(
        command, cwd=REPOSITORY, capture_output=True, check=False, timeout=120, text=True
    )
    assert ended.returncode == code, ended.stderr
    assert "was not closed" not in ended.stderr  # Python shows a ResourceWarning on request only
    with tubestore.open(tmp_path, "r") as store:
        assert [message.body for message in store.topic("t").messages(0)] == [b"1", b"2"]
