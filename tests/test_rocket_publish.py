"""Records that come ready-made become part of a log in one step, once."""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import rocketcompat
from rocketcompat import Message, MessageStoreConfig, log_job_recovery
from rocketcompat.check import check_store
from rocketcompat.columns import RecordColumns
from rocketcompat.default_message_store import DefaultMessageStore
from rocketcompat.directory import StoreDirectory
from rocketcompat.log_jobs import LogRecords, StagedPiece
from rocketcompat.log_staging import StagedLogWriter
from tests.support.command import Command
from tests.support.rocket_cli import command_fixture  # noqa: F401
from tubestore.clock import ManualClock
from tubestore.errors import (
    DiskFull,
    InvalidMessage,
    InvalidName,
    MessageTooLarge,
    NotAStore,
    ReadOnlyStore,
    StoreClosed,
    StoreFailed,
)
from tubestore.testing import FaultyVfs, MemoryVfs
from tubestore.vfs import Vfs

ROOT = "/store"
CLOCK = ManualClock()
CONFIG = MessageStoreConfig(
    mapped_file_size_commit_log=4096,
    mapped_file_size_consume_queue=200,
    max_hash_slot_num=16,
    max_index_num=40,
    layouts=frozenset({"consume_queue", "index"}),
)


def opened(vfs: Vfs, mode: Any = "w", config: MessageStoreConfig = CONFIG) -> DefaultMessageStore:
    return rocketcompat.open(ROOT, mode, config, vfs=vfs, clock=CLOCK, background=False)


@pytest.fixture
def vfs() -> MemoryVfs:
    return MemoryVfs(CLOCK)


def batch(bodies: list[bytes], topic: str = "orders", **columns: Any) -> dict[str, Any]:
    queues = [n % 3 for n in range(len(bodies))]
    keys = [f"k{n}" for n in range(len(bodies))]
    return {"topic": [topic] * len(bodies), "queue_id": queues, "body": bodies, "keys": keys,
            "tags": ["t"] * len(bodies), **columns}  # fmt: skip


def numbered(name: str, count: int, size: int = 60) -> list[bytes]:
    return [f"{name} {n:05d}".encode().ljust(size, b".") for n in range(count)]


def stage(
    vfs: Vfs, job_id: str, *batches: Any, attempt: str = "0", config: MessageStoreConfig = CONFIG
) -> list[StagedPiece]:
    with StagedLogWriter(ROOT, job_id, attempt, config=config, vfs=vfs) as writer:
        for one in batches:
            writer.write(one)
        return writer.finish()


def bodies(vfs: Vfs) -> list[bytes]:
    """Every body of the log in its order, as the windows show it; they must find nothing wrong."""
    directory = StoreDirectory(ROOT, {}, vfs)
    found = []
    for piece in directory.scan_log():
        assert isinstance(piece, RecordColumns), piece
        found += piece.bodies().to_pylist()
    return found


def findings(vfs: Vfs) -> list[Any]:
    options = {"maxHashSlotNum": 16, "maxIndexNum": 40}
    return [(f["reason"], f["message"]) for f in check_store(StoreDirectory(ROOT, options, vfs))]


def pulled(store: DefaultMessageStore, topic: str = "orders") -> list[list[bytes]]:
    """The bodies that consumers of the first three queues get."""
    found: list[list[bytes]] = [[], [], []]
    for queue, got in enumerate(found):
        while page := list(store.get_message(topic, queue, len(got), 32)):
            got += [message.body for message in page]
    return found


def test_a_small_job_goes_on_in_the_live_file_and_a_large_one_begins_files(vfs: MemoryVfs) -> None:
    with opened(vfs) as store:
        store.put_message(Message("orders", b"first"))
        small = store.publish("small", stage(vfs, "small", batch(numbered("s", 3))))
        large = store.publish("large", stage(vfs, "large", batch(numbered("l", 60))))
        put = store.put_message(Message("orders", b"last"))
        assert 0 < small.start < small.end < 4096
        assert small.rows == 3
        assert not small.replayed
        assert large.start == 4096
        assert large.rows == 60
        assert large.number == 2
        assert put.physical_offset == large.end
        wanted = [[b"first"], [], []]
        for name, count in (("s", 3), ("l", 60)):
            for n, body in enumerate(numbered(name, count)):
                wanted[n % 3].append(body)
        wanted[0].append(b"last")
        store.wait_dispatched(put.physical_offset)
        assert pulled(store) == wanted
        assert [m.body for m in store.query_message("orders", "k59")] == [numbered("l", 60)[59]]
    assert findings(vfs) == []
    with opened(vfs) as store:
        assert pulled(store) == wanted
        assert store.recovered.clean


@pytest.mark.parametrize(
    "change", [{"write_without_mmap": False}, {"transient_store_pool_enable": True}]
)
def test_a_job_comes_behind_what_stands_in_maps_and_buffers(
    vfs: MemoryVfs, change: dict[str, bool]
) -> None:
    config = CONFIG.changed(**change)
    wanted = []
    with opened(vfs, config=config) as store:
        for name, count in (("s", 3), ("l", 60), ("t", 4)):
            store.put_message(Message("orders", b"before " + name.encode()))
            store.publish(name, stage(vfs, name, batch(numbered(name, count)), config=config))
            put = store.put_message(Message("orders", b"after " + name.encode()))
            before, after = (b"%s %s" % (word, name.encode()) for word in (b"before", b"after"))
            wanted += [before, *numbered(name, count), after]
        store.flush()
        assert store.look_message(put.physical_offset).body == b"after t"
        assert counted(pulled(store)) == len(wanted)
    assert bodies(vfs) == wanted
    assert findings(vfs) == []


def test_pieces_follow_each_other_in_the_order_given(vfs: MemoryVfs) -> None:
    parts = [stage(vfs, "j", batch(numbered(name, 25)), attempt=name) for name in "abc"]
    with opened(vfs) as store:
        store.publish("j", [piece for staged in reversed(parts) for piece in staged])
        store.flush()
        assert findings(vfs) == []
    assert bodies(vfs) == numbered("c", 25) + numbered("b", 25) + numbered("a", 25)


def test_a_published_log_is_the_one_that_puts_would_have_made(vfs: MemoryVfs) -> None:
    rows = batch(numbered("x", 100, 170), born_timestamp=[5] * 100)
    other = MemoryVfs(CLOCK)
    with opened(other) as store:
        store.put_columns(rows)
    with opened(vfs) as store:
        store.publish("j", stage(vfs, "j", rows))
    for directory in ("commitlog", "consumequeue/orders/0", "consumequeue/orders/2"):
        names = [name for name, _, _ in other.entries(f"{ROOT}/{directory}")]
        assert names == [name for name, _, _ in vfs.entries(f"{ROOT}/{directory}")]
        for name in names:
            path = f"{ROOT}/{directory}/{name}"
            assert vfs.read_file(path) == other.read_file(path)


def test_records_are_taken_as_they_are_but_for_their_offsets(vfs: MemoryVfs) -> None:
    config = CONFIG.changed(
        enabled_append_prop_crc=True, compat="5.3.3", force_verify_prop_crc=True
    )
    other = MemoryVfs(CLOCK)
    with opened(other, config=config) as store:
        store.put_message(Message("away", b"of another topic"))
        store.put_columns(batch(numbered("x", 50), born_host=["[::1]:7"] * 50))
        store.put_message(Message("orders", b"half", sys_flag=4))
    with (
        opened(vfs, config=config) as store,
        StagedLogWriter(ROOT, "copy", "0", config=config, vfs=vfs) as writer,
    ):
        store.put_message(Message("orders", b"before"))
        for piece in StoreDirectory(ROOT, {}, other).scan_log():
            assert isinstance(piece, RecordColumns)
            writer.write_records(piece)
        CLOCK.advance(1000)
        store.publish("copy", writer.finish())
        store.flush()
        records = list(store.get_message("orders", 0, 0))
        assert store.max_offset_in_queue("orders", 0) == 18
    assert [m.queue_offset for m in records] == list(range(len(records)))
    assert records[1].store_timestamp < CLOCK.now_ms()
    assert records[1].born_host == "[::1]:7"
    assert bodies(vfs) == [b"before", *bodies(other)]
    with opened(vfs, config=config) as store:  # checksums of whole records are asked for
        assert store.commit_log.damages == ()
    assert findings(vfs) == []


def test_a_job_of_an_id_is_published_once_for_ever(vfs: MemoryVfs) -> None:
    with opened(vfs) as store:
        first = store.publish("q:1", stage(vfs, "q:1", batch(numbered("a", 5))))
        again = store.publish("q:1", stage(vfs, "q:1", batch(numbered("b", 5))))
        assert again.replayed
        assert (again.start, again.end) == (first.start, first.end)
    with opened(vfs) as store:
        assert store.publish("q:1", []).replayed
        assert store.publish("empty", []).rows == 0
        assert store.publish("empty", []).replayed
    assert bodies(vfs) == numbered("a", 5)
    assert vfs.entries(f"{ROOT}/.tubestore/staging") == []


def test_what_was_not_staged_so_is_refused_before_anything_changes(vfs: MemoryVfs) -> None:
    with opened(vfs) as store:
        store.put_message(Message("orders", b"first"))
        (piece,) = stage(vfs, "j", batch(numbered("a", 60)))
        path = f"{ROOT}/.tubestore/staging/job-j/{piece.name}"
        file = vfs.open(path + ".log")
        was = file.pread(1, 2000)
        for damaged, undo in ((".log", was), (".rows", vfs.read_file(path + ".rows")[8:9])):
            file = vfs.open(path + damaged)
            position = 2000 if damaged == ".log" else 8
            file.pwrite(bytes([undo[0] ^ 1]), position)
            with pytest.raises(InvalidMessage, match="not the bytes that were staged"):
                store.publish("j", [piece])
            file.pwrite(undo, position)
        with pytest.raises(InvalidMessage, match="impossible"):
            store.publish("j", [{**piece.as_json(), "rows": 59}])
        with pytest.raises(InvalidMessage, match="description"):
            store.publish("j", [{"name": "x"}])
        with pytest.raises(InvalidMessage, match="is missing"):
            store.publish("other", [piece])
        with pytest.raises(InvalidName):
            store.publish("", [piece])
        store.put_message(Message("orders", b"second"))
        assert store.publish("j", [piece.as_json()]).rows == 60
    assert bodies(vfs) == [b"first", b"second", *numbered("a", 60)]
    assert findings(vfs) == []


def test_a_writer_takes_what_a_put_takes_and_nothing_else(vfs: MemoryVfs) -> None:
    with StagedLogWriter(ROOT, "j", "0", config=CONFIG, vfs=vfs) as writer:
        with pytest.raises(MessageTooLarge):
            writer.write({"topic": ["t"], "body": [bytes(4096)]})
        with pytest.raises(InvalidMessage, match="unknown"):
            writer.write({"topic": ["t"], "colour": [b""]})
        writer.write({"topic": ["t"], "body": [b"later"], "delay_level": [3]})
        with pytest.raises(InvalidMessage, match="either all"):
            writer.write({"topic": ["t"], "born_timestamp": [1]})
        (piece,) = writer.finish()
        with pytest.raises(StoreClosed):
            writer.write({"topic": ["t"]})
    assert piece.queues == (("SCHEDULE_TOPIC_XXXX", 2),)
    with pytest.raises(InvalidName):
        StagedLogWriter(ROOT, "j", "a/b", config=CONFIG, vfs=vfs)
    with StagedLogWriter(ROOT, "given-up", "0", config=CONFIG, vfs=vfs) as writer:
        writer.write({"topic": ["t"]})
    assert vfs.entries(f"{ROOT}/.tubestore/staging/job-given-up") == []


def write_all(writer: StagedLogWriter) -> list[StagedPiece]:
    writer.write(batch(numbered("a", 5)))
    return writer.finish()


@pytest.mark.parametrize("call", ["pwrite", "sync", "sync_directory", "create"])
def test_a_writer_whose_disk_fails_is_of_no_use_and_leaves_nothing(
    vfs: MemoryVfs, call: str
) -> None:
    for number, kind in ((errno.ENOSPC, DiskFull), (errno.EIO, StoreFailed)):
        faulty = FaultyVfs(vfs)
        with StagedLogWriter(ROOT, "j", "0", config=CONFIG, vfs=faulty) as writer:
            faulty.fail(call, error=number)
            with pytest.raises(kind):
                write_all(writer)
            with pytest.raises(StoreClosed):
                writer.write(batch(numbered("a", 5)))
        assert vfs.entries(f"{ROOT}/.tubestore/staging/job-j") == []


def test_a_store_that_is_read_publishes_nothing(vfs: MemoryVfs) -> None:
    opened(vfs).close()
    with opened(vfs, "r") as store, pytest.raises(ReadOnlyStore):
        store.publish("j", [])


def test_what_jobs_left_is_removed_when_nothing_was_written_for_a_while(vfs: MemoryVfs) -> None:
    with opened(vfs) as store:
        stage(vfs, "left", batch([b"x"]))
        assert store.clean_staging() == []
        CLOCK.advance(2 * 86_400_000)
        assert store.clean_staging() == ["job-left"]


def counted(queues: list[list[bytes]]) -> int:
    return sum(map(len, queues))


# -- trouble -----------------------------------------------------------------------------------


def calls_until_the_record(count: int) -> list[tuple[str, int]]:
    """Every fallible call of a publish before its link, as (kind, number of that kind)."""
    calls: list[tuple[str, int]] = []

    class Watching(FaultyVfs):
        on = False

        def _pass(self, call: str, path: str) -> Any:
            if self.on:
                calls.append((call, sum(c == call for c, _ in calls) + 1))
            return super()._pass(call, path)

    inner = MemoryVfs(CLOCK)
    with opened(Watching(inner)) as store:
        store.put_message(Message("orders", b"before"))
        pieces = stage(inner, "j", batch(numbered("a", count)))
        Watching.on = True
        store.publish("j", pieces)
        Watching.on = False
    link = next(n for n, (call, _) in enumerate(calls) if call == "link")
    return [c for c in calls[:link] if c[0] not in ("read_file", "entries")]


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
@pytest.mark.parametrize("call", ["link", "sync_directory", "rename", "replace_file", "pwrite"])
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
    link = inner.link

    def fail_from_here(source: str, target: str) -> None:
        link(source, target)
        faulty.fail(call, forever=True)
        if call == "link":
            raise OSError(errno.EIO, "after it was done")

    inner.link = fail_from_here  # type: ignore[method-assign]
    with pytest.raises(StoreFailed):
        store.publish("j", pieces)
    faulty.heal()
    inner.link = link  # type: ignore[method-assign]
    with pytest.raises(StoreFailed):
        store.put_message(Message("orders", b"x"))
    with pytest.raises(StoreFailed):
        store.publish("k", [])
    assert bodies(inner) == [b"before"]
    assert "half_published" in [reason for reason, _ in findings(inner)]
    with opened(inner, "r") as reader:
        assert reader.commit_log.max_offset == store.commit_log.max_offset
        assert pulled(reader) == [[b"before"], [], []]
    with pytest.raises(StoreFailed):
        store.close()
    with opened(inner) as again:
        assert counted(pulled(again)) == count + 1
        assert again.publish("j", pieces).replayed
    assert bodies(inner) == [b"before", *numbered("a", count)]
    assert findings(inner) == []


def half_published(count: int) -> tuple[MemoryVfs, str]:
    """A store whose writer died behind the commit record; and the file that the job goes to."""
    inner = MemoryVfs(CLOCK)
    store = opened(inner)
    store.put_message(Message("orders", b"before"))
    pieces = stage(inner, "j", batch(numbered("a", count)))
    with (
        mock.patch("rocketcompat.bulk_loads.roll_forward", side_effect=RuntimeError("killed")),
        pytest.raises(RuntimeError),
    ):
        store.publish("j", pieces)
    store.dispatcher.abandon()
    store._writer.give_back()
    store._closed = True
    record = LogRecords(inner, ROOT).pending()
    assert record is not None
    return inner, f"{ROOT}/{record.parts[0].path}"


@pytest.mark.parametrize("count", [5, 60])
def test_a_job_does_not_go_over_what_somebody_else_has_written_there(count: int) -> None:
    inner, path = half_published(count)
    if count == 60:
        file = inner.open(path, create=True)
        file.truncate(4096)
    else:
        file = inner.open(path)
    file.pwrite(b"a real broker was here", 2000 if count == 60 else 300)
    with pytest.raises(NotAStore, match="somebody else has written behind"):
        opened(inner)
    assert any("somebody else" in message for _, message in findings(inner))
    file.pwrite(bytes(22), 2000 if count == 60 else 300)  # as it is when it made the file ahead
    with opened(inner) as store:
        assert counted(pulled(store)) == count + 1
    assert bodies(inner) == [b"before", *numbered("a", count)]


def test_the_command_recover_finishes_a_job_and_until_then_nothing_is_mended(
    tmp_path: Path, command: Command
) -> None:
    root = str(tmp_path)
    with rocketcompat.open(root, "w", CONFIG, background=False) as store:
        store.put_message(Message("orders", b"before"))
    store = rocketcompat.open(root, "w", CONFIG, background=False)
    with StagedLogWriter(root, "j", "0", config=CONFIG) as writer:
        writer.write(batch(numbered("a", 60)))
        pieces = writer.finish()
    with (
        mock.patch("rocketcompat.bulk_loads.roll_forward", side_effect=OSError("killed")),
        pytest.raises(StoreFailed),
    ):
        store.publish("j", pieces)
    with pytest.raises(StoreFailed):
        store.close()
    sizes = ("-o", "maxHashSlotNum=16", "-o", "maxIndexNum=40")
    assert "half_published" in command("check", root, *sizes).out
    refused = command("repair", root, "--apply", *sizes)
    assert refused.code == 3
    assert "rocketcompat recover" in refused.err
    (row,) = command("recover", root, "--format", "jsonl", *sizes).rows
    assert row["job"] == "j"
    assert row["log_end"] > 60 * 60
    assert command("check", root, *sizes).code == 0
    (row,) = command("recover", root, "--format", "jsonl", *sizes).rows
    assert row["job"] is None


def test_a_job_that_cannot_go_on_is_given_up_when_that_is_asked_for(
    tmp_path: Path, command: Command
) -> None:
    root = str(tmp_path)
    with rocketcompat.open(root, "w", CONFIG, background=False) as store:
        store.put_message(Message("orders", b"before"))
    store = rocketcompat.open(root, "w", CONFIG, background=False)
    with StagedLogWriter(root, "j", "0", config=CONFIG) as writer:
        writer.write(batch(numbered("a", 60)))
        pieces = writer.finish()
    with (
        mock.patch("rocketcompat.bulk_loads.roll_forward", side_effect=OSError("killed")),
        pytest.raises(StoreFailed),
    ):
        store.publish("j", pieces)
    with pytest.raises(StoreFailed):
        store.close()
    theirs = tmp_path / "commitlog" / f"{4096:020d}"
    theirs.write_bytes(b"a real broker was here".ljust(4096, b"\0"))
    sizes = ("-o", "maxHashSlotNum=16", "-o", "maxIndexNum=40")
    assert "recover --give-up" in command("recover", root, *sizes).err
    kept = tmp_path / "kept"
    given_up = command("recover", root, "--give-up", "--quarantine", kept, *sizes)
    assert given_up.code == 0
    assert "job 'j' was given up" in given_up.err
    assert list(kept.rglob("at-*"))
    assert command("check", root, *sizes).code == 0
    with rocketcompat.open(root, "w", CONFIG, background=False) as store:
        assert store.publish("j", pieces).replayed
        assert pulled(store) == [[b"before"], [], []]


def test_a_job_whose_staged_files_are_gone_is_named(vfs: MemoryVfs) -> None:
    inner, _ = half_published(60)
    staging = f"{ROOT}/.tubestore/staging/job-j"
    inner.remove(f"{staging}/at-{4096:020d}")
    with pytest.raises(NotAStore, match="is gone"):
        opened(inner)


def test_a_reader_sees_a_job_when_it_is_finished_and_after_a_refresh(vfs: MemoryVfs) -> None:
    with opened(vfs) as store:
        store.put_message(Message("orders", b"before"))
        store.flush()
        with opened(vfs, "r") as reader:
            for name, count in (("small", 5), ("large", 60)):
                seen = counted(pulled(reader))
                pieces = stage(vfs, name, batch(numbered(name, count)))
                looked: list[int] = []

                def look(*args: Any, reader: Any = reader, looked: Any = looked) -> None:
                    log_job_recovery.roll_forward(*args)
                    reader.refresh()
                    looked.append(counted(pulled(reader)))

                with mock.patch("rocketcompat.bulk_loads.roll_forward", look):
                    store.publish(name, pieces)
                store.flush()
                assert looked == [seen]
                reader.refresh()
                assert counted(pulled(reader)) == seen + count


def test_puts_and_jobs_of_several_threads_do_not_mix(tmp_path: Path) -> None:
    root = str(tmp_path)
    failures: list[BaseException] = []
    with rocketcompat.open(root, "w", CONFIG) as store:

        def publish(number: int) -> None:
            try:
                with StagedLogWriter(root, f"j:{number}", "0", config=CONFIG) as writer:
                    writer.write(batch(numbered(f"job {number}", 20)))
                    store.publish(f"j:{number}", writer.finish())
            except BaseException as error:
                failures.append(error)

        def put() -> None:
            try:
                for n in range(200):
                    store.put_message(Message("orders", b"put %d" % n))
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=publish, args=(n,)) for n in range(6)]
        threads.append(threading.Thread(target=put))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert failures == []
    found: list[bytes] = []
    for piece in StoreDirectory(root).scan_log():
        assert isinstance(piece, RecordColumns)
        found += piece.bodies().to_pylist()
    assert [b for b in found if b.startswith(b"put")] == [b"put %d" % n for n in range(200)]
    for number in range(6):
        rows = numbered(f"job {number}", 20)
        first = found.index(rows[0])
        assert found[first : first + 20] == rows
    options = {"maxHashSlotNum": 16, "maxIndexNum": 40}
    assert list(check_store(StoreDirectory(root, options))) == []


#: Publishes what is staged in a directory, and kills itself at a point.
CHILD = """
import json, os, signal, sys
import rocketcompat
from rocketcompat import bulk_loads, log_job_recovery
from tests.test_rocket_publish import CONFIG
from tubestore.commit_records import JobRecords

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

kill_at("while offsets are given", bulk_loads, "write_part", nth=2)
kill_at("before the record", JobRecords, "commit")
kill_at("after the record", JobRecords, "commit", after=True)
kill_at("between two files", log_job_recovery, "move_file", nth=2)
kill_at("before it is finished", JobRecords, "finish")
kill_at("after it is finished", JobRecords, "finish", after=True)
with rocketcompat.open(root, "w", CONFIG, background=False) as store:
    store.publish("j", json.loads(staged))
"""


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
