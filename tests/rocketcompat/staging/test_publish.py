"""Records that come ready-made become part of a log in one step, once."""

from __future__ import annotations

import errno
import threading
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

import rocketcompat
from rocketcompat import Message
from rocketcompat.check.whole import check_store
from rocketcompat.inspect.directory import StoreDirectory
from rocketcompat.record.columns import RecordColumns
from rocketcompat.staging import roll_forward
from rocketcompat.staging.pieces import StagedPiece
from rocketcompat.staging.writer import StagedLogWriter, blocks_of
from tests.support.rocket.cli import command_fixture  # noqa: F401
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
from tests.support.rocket.publishing import vfs as vfs
from tubestore.core.kernels import offsets_of
from tubestore.errors import (
    DiskFull,
    InvalidMessage,
    InvalidName,
    JobTaken,
    MessageTooLarge,
    ReadOnlyStore,
    StoreClosed,
    StoreFailed,
)
from tubestore.testing import FaultyVfs, MemoryVfs


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


@pytest.mark.gate
def test_blocks_of_all_sizes_follow_each_other_in_the_same_memory(tmp_path: Path) -> None:
    config = CONFIG.changed(mapped_file_size_commit_log=8 << 20)
    small, large = numbered("s", 3000, 900), [bytes([n]) * (3 << 20) for n in range(2)]
    rows = batch([*small, *large, *small[:2000], large[0], b"last"], born_timestamp=[5] * 5004)
    for name in ("put", "published"):
        with rocketcompat.open(tmp_path / name, "w", config, clock=CLOCK, background=False) as log:
            if name == "put":
                log.put_columns(rows)
                continue
            with StagedLogWriter(tmp_path / name, "j", "0", config=config) as writer:
                writer.write(rows)
                staged = writer.finish()
            sizes = [size for _, size, _ in staged[0].blocks]
            assert len(sizes) > 6
            assert max(sizes) > 3 << 20
            assert sizes != sorted(sizes)
            log.publish("j", staged)
    put, published = (sorted((tmp_path / name / "commitlog").iterdir()) for name in
                      ("put", "published"))  # fmt: skip
    assert [path.name for path in put] == [path.name for path in published]
    assert len(put) == 2
    assert all(a.read_bytes() == b.read_bytes() for a, b in zip(put, published, strict=True))


@pytest.mark.parametrize(
    ("sizes", "wanted"),
    [([], []), ([5], [(0, 1)]), ([5, 5], [(0, 2)]), ([3 << 20, 5], [(0, 1), (1, 2)]),
     ([5, 3 << 20, 5], [(0, 2), (2, 3)]), ([600 << 10] * 4, [(0, 2), (2, 4)])],
)  # fmt: skip
def test_blocks_are_whole_records_of_about_a_mib(
    sizes: list[int], wanted: list[tuple[int, int]]
) -> None:
    assert list(blocks_of(offsets_of(np.array(sizes, np.int64)) + 7)) == wanted


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
        assert log_of(store).gaps == ()
    assert findings(vfs) == []


def test_a_job_that_comes_again_with_other_messages_is_refused(vfs: MemoryVfs) -> None:
    with opened(vfs) as store:
        store.publish("load", [])
        with pytest.raises(JobTaken, match="published with 0 messages, and 2 are staged now"):
            store.publish("load", stage(vfs, "load", batch(numbered("b", 2))))
    assert bodies(vfs) == []


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
