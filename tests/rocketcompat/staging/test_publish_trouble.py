"""Publishing into a log that fails or is killed: all of a job is there in the end, or nothing."""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import rocketcompat
from rocketcompat import Message
from rocketcompat.check.whole import check_store
from rocketcompat.inspect.directory import StoreDirectory
from rocketcompat.staging.pieces import LogRecords
from rocketcompat.staging.writer import StagedLogWriter
from tests.support.faults import WatchingVfs, failing_after_the_record
from tests.support.rocket.inside import log_of
from tests.support.rocket.publishing import (
    CLOCK,
    CONFIG,
    ROOT,
    batch,
    bodies,
    counted,
    findings,
    numbered,
    opened,
    pulled,
    stage,
)
from tubestore.errors import DiskFull, StoreFailed
from tubestore.testing import FaultyVfs, MemoryVfs


def calls_until_the_record(count: int) -> list[tuple[str, int]]:
    """Every fallible call of a publish before its link, as (kind, number of that kind)."""
    inner = MemoryVfs(CLOCK)
    watching = WatchingVfs(inner)
    with opened(watching) as store:
        store.put_message(Message("orders", b"before"))
        pieces = stage(inner, "j", batch(numbered("a", count)))
        watching.on = True
        store.publish("j", pieces)
        watching.on = False
    return watching.calls_until_the_record()


@pytest.mark.gate
@pytest.mark.parametrize("count", [5, 60])
def test_a_failure_before_the_record_changes_nothing(count: int) -> None:
    calls = calls_until_the_record(count)
    assert len(calls) > 10
    for (call, nth), number in itertools.product(calls, (errno.EIO, errno.ENOSPC)):
        inner = MemoryVfs(CLOCK)
        faulty = FaultyVfs(inner)
        store = opened(faulty)
        store.put_message(Message("orders", b"before"))
        pieces = stage(inner, "j", batch(numbered("a", count)))
        faulty.fail(call, nth=nth, error=number)
        with pytest.raises((StoreFailed, DiskFull)):
            store.publish("j", pieces)
        faulty.heal()
        assert LogRecords(inner, ROOT).pending() is None, (call, nth)
        with contextlib.suppress(StoreFailed):  # the log could not be synced
            store.publish("j", pieces)
        with contextlib.suppress(StoreFailed):
            store.close()
        with opened(inner) as again:
            assert again.publish("j", pieces).rows == count
        assert bodies(inner) == [b"before", *numbered("a", count)], (call, nth)
        assert findings(inner) == []


@pytest.mark.parametrize("count", [5, 60])
@pytest.mark.parametrize("call", ["link", "sync_directory", "rename", "pwrite"])
def test_a_failure_after_the_record_fails_the_log_until_it_is_reopened(
    call: str, count: int
) -> None:
    inner = MemoryVfs(CLOCK)
    faulty = FaultyVfs(inner)
    store = opened(faulty)
    store.put_message(Message("orders", b"before"))
    store.flush()
    pieces = stage(inner, "j", batch(numbered("a", count)))
    if call == "rename" and count == 5:
        call = "open"  # nothing is renamed there
    if call == "pwrite" and count == 60:
        call = "rename"
    with failing_after_the_record(inner, faulty, call), pytest.raises(StoreFailed):
        store.publish("j", pieces)
    with pytest.raises(StoreFailed):
        store.put_message(Message("orders", b"x"))
    with pytest.raises(StoreFailed):
        store.publish("k", [])
    assert bodies(inner) == [b"before"]
    assert "half_published" in [reason for reason, _ in findings(inner)]
    with opened(inner, "r") as reader:
        assert log_of(reader).max_offset == log_of(store).max_offset
        assert pulled(reader) == [[b"before"], [], []]
    with pytest.raises(StoreFailed):
        store.close()
    with opened(inner) as again:
        assert counted(pulled(again)) == count + 1
        assert again.publish("j", pieces).replayed
    assert bodies(inner) == [b"before", *numbered("a", count)]
    assert findings(inner) == []


@pytest.mark.parametrize("threads", [1, 3])
def test_staged_files_that_cannot_be_removed_stay_and_the_job_is_published(
    threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tubestore.staging.placing.THREADED_BYTES", 0)
    memory = MemoryVfs(CLOCK)
    vfs = FaultyVfs(memory)
    staged = [
        piece
        for name in "abcd"
        for piece in stage(vfs, "j", batch(numbered(name, 20)), attempt=name)
    ]
    with opened(vfs) as store:
        vfs.fail("remove", path=staged[1].name + ".log", error=errno.EACCES, forever=True)
        assert store.publish("j", staged, threads=threads).rows == 80
        left = [name for name, _, _ in memory.entries(f"{ROOT}/.tubestore/staging/job-j")]
        assert staged[1].name + ".log" in left
        assert staged[0].name + ".log" not in left
        assert counted(pulled(store)) == 80
    assert findings(memory) == []


#: Publishes what is staged in a directory, and kills itself at a point.
CHILD = """
import json, os, signal, sys
import rocketcompat
from rocketcompat.staging import publish, roll_forward
from tests.support.rocket.publishing import CONFIG
from tubestore.staging.commit_records import JobRecords

root, staged, point = sys.argv[1:]

def kill_at(name, owner, called, after=False, nth=1):
    kept, calls = getattr(owner, called), []
    def wrapped(*args, **kwargs):
        calls.append(1)
        result = kept(*args, **kwargs) if after else None
        if name == point and len(calls) == nth:
            os.kill(os.getpid(), signal.SIGKILL)
        return result if after else kept(*args, **kwargs)
    setattr(owner, called, wrapped)

kill_at("while offsets are given", publish, "write_part", nth=2)
kill_at("before the record", JobRecords, "commit")
kill_at("after the record", JobRecords, "commit", after=True)
kill_at("between two files", roll_forward, "move_file", nth=2)
kill_at("before it is finished", JobRecords, "finish")
kill_at("after it is finished", JobRecords, "finish", after=True)
with rocketcompat.open(root, "w", CONFIG, background=False) as store:
    store.publish("j", json.loads(staged))
"""


@pytest.mark.gate
@pytest.mark.crash
@pytest.mark.parametrize(
    ("point", "recorded"),
    [
        ("while offsets are given", False),
        ("before the record", False),
        ("after the record", True),
        ("between two files", True),
        ("before it is finished", True),
        ("after it is finished", True),
    ],
)
def test_a_process_that_is_killed_while_it_publishes_leaves_all_or_nothing(
    point: str, recorded: bool, tmp_path: Path
) -> None:
    root = str(tmp_path)
    with rocketcompat.open(root, "w", CONFIG, background=False) as store:
        store.put_message(Message("orders", b"before"))
    with StagedLogWriter(root, "j", "0", config=CONFIG) as writer:
        writer.write(batch(numbered("a", 90)))
        staged = writer.finish()
    described = json.dumps([piece.as_json() for piece in staged])
    child = subprocess.run(
        [sys.executable, "-c", CHILD, root, described, point], check=False, timeout=120
    )
    assert child.returncode == -signal.SIGKILL
    shown = 91 if point == "after it is finished" else 1
    with rocketcompat.open(root, "r", CONFIG) as reader:
        assert counted(pulled(reader)) <= shown
    assert sum(len(piece) for piece in StoreDirectory(root).scan_log()) == shown  # type: ignore[arg-type]
    with rocketcompat.open(root, "w", CONFIG, background=False) as store:
        assert counted(pulled(store)) == (91 if recorded else 1)
        assert store.publish("j", staged).replayed == recorded
        store.flush()
        assert counted(pulled(store)) == 91
    options = {"maxHashSlotNum": 16, "maxIndexNum": 40}
    assert list(check_store(StoreDirectory(root, options))) == []
    assert list((tmp_path / ".tubestore" / "staging").iterdir()) == []
