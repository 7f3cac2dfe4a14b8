"""Records that come ready-made become part of a log in one step, once."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import rocketcompat
from rocketcompat import Message
from rocketcompat.check.whole import check_store
from rocketcompat.inspect.directory import StoreDirectory
from rocketcompat.record.columns import RecordColumns
from rocketcompat.staging import roll_forward
from rocketcompat.staging.writer import StagedLogWriter
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
from tests.support.rocket.publishing import vfs as vfs
from tubestore.errors import (
    InvalidMessage,
    InvalidName,
    JobTaken,
    ReadOnlyStore,
)
from tubestore.testing import MemoryVfs


@pytest.mark.parametrize(
    "change", [{"write_without_mmap": False}, {"transient_store_pool_enable": True}]
)
def test_a_job_comes_behind_what_is_in_maps_and_buffers(
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


def test_a_job_that_comes_again_with_other_messages_is_refused(vfs: MemoryVfs) -> None:
    with opened(vfs) as store:
        store.publish("load", [])
        with pytest.raises(JobTaken, match="published with 0 messages, and 2 are staged now"):
            store.publish("load", stage(vfs, "load", batch(numbered("b", 2))))
    assert bodies(vfs) == []


def test_a_job_of_an_id_is_published_once_for_ever(vfs: MemoryVfs) -> None:
    with opened(vfs) as store:
        first = store.publish("q:1", stage(vfs, "q:1", batch(numbered("a", 5))))
        with pytest.raises(JobTaken, match="published with 5 messages, and other ones"):
            store.publish("q:1", stage(vfs, "q:1", batch(numbered("b", 5))))
        again = store.publish("q:1", stage(vfs, "q:1", batch(numbered("a", 5))))
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
                    roll_forward.roll_forward(*args)
                    reader.refresh()
                    looked.append(counted(pulled(reader)))

                with mock.patch("rocketcompat.staging.publish.roll_forward", look):
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
