"""Compaction: small sealed files side by side become one, and nothing else changes."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable
from typing import Any

import pytest

import tubestore
from tests.support.faults import WatchingVfs
from tests.tubestore.shard.small_files import (
    HOUR,
    ROOT,
    files,
    open_store,
    rows,
    segments,
    small_files,
)
from tests.tubestore.shard.small_files import body as body
from tubestore.clock import ManualClock
from tubestore.errors import DiskFull, InvalidMessage, NotAStore, ReadOnlyStore, StoreFailed
from tubestore.offline.check import Reason, check
from tubestore.record.records import ENTRY_SIZE
from tubestore.segments import segment_list
from tubestore.segments.listing import find_shards
from tubestore.segments.shard_bytes import ShardBytes
from tubestore.staging.writer import StagedWriter
from tubestore.store.manager import engine_of
from tubestore.store.topic import shards_of
from tubestore.testing import FaultyVfs, MemoryVfs

MESSAGE = 152
SHARD = f"{ROOT}/t-0"


def data_path(number: int) -> str:
    """The data file that begins with a message."""
    return f"{SHARD}/{number * MESSAGE:020d}.tube"


def index_path(number: int) -> str:
    return f"{SHARD}/index/{number * ENTRY_SIZE:020d}.index"


def flip(vfs: MemoryVfs, path: str, position: int) -> None:
    file = vfs.open(path)
    (byte,) = file.pread(1, position)
    file.pwrite(bytes([byte ^ 1]), position)


# -- what becomes one ------------------------------------------------------------------------------


def test_small_files_become_as_few_as_there_is_room_for_and_no_byte_changes() -> None:
    vfs, clock = small_files(50)
    before = segments(vfs)
    with open_store(vfs, clock) as store:
        shown = rows(store)
        merged = store.compact()
        assert rows(store) == shown
    assert files(vfs) == [(0, 20 * MESSAGE), (20 * MESSAGE, 20 * MESSAGE),
                          (40 * MESSAGE, 2 * MESSAGE), (42 * MESSAGE, 2 * MESSAGE),
                          (44 * MESSAGE, 2 * MESSAGE), (46 * MESSAGE, 2 * MESSAGE),
                          (48 * MESSAGE, 2 * MESSAGE), (50 * MESSAGE, 0)]  # fmt: skip
    for suffix in (".tube", ".index"):
        was = b"".join(data for path, data in sorted(before.items()) if path.endswith(suffix))
        now = (data for path, data in sorted(segments(vfs).items()) if path.endswith(suffix))
        assert b"".join(now) == was
    assert [(row.stream, row.files, row.verdict) for row in merged if row.stream == "data"] == [
        ("data", 10, "merged"), ("data", 10, "merged"),
    ]  # fmt: skip
    with open_store(vfs, clock) as store:
        assert rows(store) == shown
        assert not store.problems
    assert list(check(ROOT, vfs=vfs)) == []


def test_fewer_files_than_asked_for_stay() -> None:
    vfs, clock = small_files(50)
    before = segments(vfs)
    with open_store(vfs, clock) as store:
        assert store.compact(files_min=11) == []
        assert segments(vfs) == before
        assert len(store.compact(files_min=10)) == 2


def test_a_file_larger_than_the_others_together_is_not_copied_again_for_them() -> None:
    vfs, clock = small_files(44)
    with open_store(vfs, clock, segment_size_bytes=40 * MESSAGE) as store:
        store.compact(files_min=20)
        store.compact(files_min=2)
        large = files(vfs)[0]
        assert large == (0, 40 * MESSAGE)
    vfs, clock = small_files(16)
    with open_store(vfs, clock, segment_size_bytes=40 * MESSAGE) as store:
        store.compact(files_min=7)
        first = files(vfs)[0]
        assert first == (0, 16 * MESSAGE)
        assert [row for row in store.compact(files_min=2) if row.stream == "data"] == []


def test_a_dry_run_says_the_same_and_changes_nothing_also_for_a_reader() -> None:
    vfs, clock = small_files(50)
    before = vfs.tree()
    with open_store(vfs, clock, "r") as reader:
        planned = reader.compact(dry_run=True)
        with pytest.raises(ReadOnlyStore):
            reader.compact()
    assert vfs.tree() == before
    with open_store(vfs, clock) as store:
        assert store.compact(dry_run=True) == planned
        assert store.compact() == planned
        assert store.compact(dry_run=True) == []


def test_what_is_written_to_stays() -> None:
    vfs, clock = small_files(40)
    with open_store(vfs, clock) as store:
        store.compact(files_min=2)
        store["t"].append(b"more", partition=0)
        store.compact(files_min=2)
        assert store["t"].read(0, 40 * ENTRY_SIZE)[0].body == b"more"
        assert files(vfs)[-1][0] == 40 * MESSAGE


def test_fewer_than_two_files_cannot_be_asked_for() -> None:
    vfs, clock = small_files(4)
    with (
        open_store(vfs, clock) as store,
        pytest.raises(InvalidMessage, match="2 files or more"),
    ):
        store.compact(files_min=1)
    with pytest.raises(ValueError, match="2 files or more"):
        tubestore.StoreOptions(compact_files_min=1)


def test_a_merged_file_can_be_cut_and_appended_to() -> None:
    """As for a shard whose log has lost its end."""
    vfs, clock = small_files(40)
    with open_store(vfs, clock) as store:
        store.compact()
        shards_of(store["t"]).shard(0).cut(13 * ENTRY_SIZE)
        assert store["t"].append(b"more", partition=0).offset == 13 * ENTRY_SIZE
        assert [row["body"] for row in rows(store)] == [*map(body, range(13)), b"more"]
    assert list(check(ROOT, vfs=vfs)) == []


# -- retention -------------------------------------------------------------------------------------


def test_a_merged_file_is_as_old_as_its_newest_part() -> None:
    vfs, clock = small_files(40)
    newest = vfs.modified_ms(data_path(18))
    assert vfs.modified_ms(data_path(16)) < newest < clock.now_ms()
    with open_store(vfs, clock) as store:
        store.compact()
    assert vfs.modified_ms(data_path(0)) == newest


def test_a_merged_file_goes_when_its_newest_message_is_due_and_not_before() -> None:
    vfs, clock = small_files(40)
    with open_store(vfs, clock) as store:
        store.compact()
        newest = (39 - 19) * HOUR
        assert store.retain(max_age=f"{newest}ms") == []
        gone = store.retain(max_age=f"{newest - 1}ms")
        assert [row.start for row in gone if row.stream == "data"] == [0]


def test_files_of_a_topic_with_a_bound_become_a_tenth_of_it_at_most() -> None:
    vfs, clock = small_files(40, max_age="40h")
    with open_store(vfs, clock) as store:
        store.compact(files_min=2)
        # Messages of four hours at most, in files of two each.
        assert {size for _, size in files(vfs)[:-1]} == {4 * MESSAGE}
        assert {size for _, size in files(vfs, "index")[:-1]} == {3 * ENTRY_SIZE}
    vfs, clock = small_files(40, max_bytes=60 * MESSAGE)
    with open_store(vfs, clock) as store:
        store.compact(files_min=2)
        assert max(size for _, size in files(vfs)) == 6 * MESSAGE


# -- readers, leases, jobs -------------------------------------------------------------------------


def test_a_view_that_was_taken_before_reads_on() -> None:
    vfs, clock = small_files(40)
    with open_store(vfs, clock) as store:
        scan = store["t"].scan(columns=["body"])
        store.compact(files_min=2)
        assert scan.read_all()["body"].to_pylist() == [body(n) for n in range(40)]


def test_a_reader_elsewhere_goes_on_with_its_old_files_and_refreshes_to_the_new_ones() -> None:
    vfs, clock = small_files(40)
    with open_store(vfs, clock, "r") as reader, open_store(vfs, clock) as store:
        shown = rows(store)
        known = shards_of(reader["t"]).shard(0).files
        for segment in (*known.data, *known.index):
            segment.close()  # as the pool of descriptors does
        store.compact(files_min=2)
        assert rows(reader) == shown
        store["t"].append(body(40), partition=0)
        store.flush()
        reader.refresh()
        assert len(rows(reader)) == 41
        assert rows(reader) == rows(store)
        assert not reader.problems


def test_a_plan_of_files_made_before_still_reads_its_rows() -> None:
    vfs, clock = small_files(40)
    (planned,) = find_shards(ROOT, vfs)

    def read(shard: Any) -> list[bytes]:
        bytes_ = ShardBytes(vfs, shard)
        found = []
        for _, entries in bytes_.entries():
            for window in bytes_.windows(entries):
                assert window.data is not None
                found.append(bytes(window.data))
        bytes_.close()
        return found

    before = b"".join(read(planned))
    with open_store(vfs, clock) as store:
        store.compact(files_min=2)
        assert b"".join(read(planned)) == before
        store.empty_trash(grace=0)
        with pytest.raises(FileNotFoundError):
            read(planned)


def test_files_behind_the_offset_of_a_lease_stay() -> None:
    vfs, clock = small_files(40)
    with (
        open_store(vfs, clock) as store,
        store.lease(offsets={"t-0": 13 * ENTRY_SIZE}, ttl="10m"),
    ):
        with store.lease(["t"], ttl="10m"):
            assert store.compact(files_min=2) == []
        store.compact(files_min=2)
        assert files(vfs)[:2] == [(0, 12 * MESSAGE), (12 * MESSAGE, 2 * MESSAGE)]
        assert files(vfs, "index")[:2] == [(0, 12 * ENTRY_SIZE), (12 * ENTRY_SIZE, 84)]


def test_a_job_that_comes_again_afterwards_is_found() -> None:
    clock = ManualClock()
    vfs = MemoryVfs(clock)

    def stage(job: str) -> Any:
        with StagedWriter(ROOT, job, "0", vfs=vfs, clock=clock, token="t") as writer:
            writer.write({"topic": ["t"], "partition": [0], "body": [job.encode() * 20]})
            return writer.finish()

    with open_store(vfs, clock) as store:
        store.create_topic("t")
    jobs = [f"q:{number}" for number in range(12)]
    for job in jobs:
        with open_store(vfs, clock, segment_size_bytes=300, index_segment_size_bytes=28) as store:
            store.publish(job, stage(job))
    assert len(files(vfs)) > 11
    with open_store(vfs, clock) as store:
        assert store.compact()
        for job in jobs:
            assert store.publish(job, stage(job)).replayed
        assert [row["body"] for row in rows(store)] == [job.encode() * 20 for job in jobs]
    assert list(check(ROOT, vfs=vfs)) == []


# -- damage ----------------------------------------------------------------------------------------


def without_digests(vfs: MemoryVfs) -> None:
    for path in vfs.tree():
        if path.endswith(".digests"):
            vfs.remove(path)


@pytest.mark.parametrize("path", [data_path(8), index_path(9)])
@pytest.mark.parametrize("digests", [True, False])
def test_a_damaged_file_stays_and_is_reported_and_those_beside_it_are_merged(
    path: str, digests: bool
) -> None:
    vfs, clock = small_files(40)
    if not digests:
        without_digests(vfs)
    flip(vfs, path, 60 if path == data_path(8) else 10)
    before = vfs.tree()[path]
    with open_store(vfs, clock) as store:
        found = store.compact(files_min=2)
        stays = {row.path: row for row in found if row.verdict == "stays"}
        assert stays[path].files == 1
        assert ("it has changed since" in stays[path].reason) == digests
        assert len(stays) <= 3, "and the records that its entries are to describe"
        assert store.compact(files_min=2) == [], "it is not read again and again"
    assert vfs.tree()[path] == before
    stream = "data" if path == data_path(8) else "index"
    assert len(files(vfs, stream)) < 8
    assert {finding.path for finding in check(ROOT, vfs=vfs) if finding.severity == "error"} == {
        path
    }


def test_a_file_that_cannot_be_read_stays_and_the_others_are_merged() -> None:
    vfs, clock = small_files(40)
    faulty = FaultyVfs(vfs)
    with open_store(faulty, clock) as store:
        store["t"].read(0)
        faulty.fail("pread", path=data_path(8), forever=True)
        found = store.compact(files_min=2)
        stays = {row.path: row.reason for row in found if row.verdict == "stays"}
        assert stays[data_path(8)] == "it cannot be read: Input/output error"
        assert [path for path in stays if path.endswith(".tube")] == [data_path(8)]
        faulty.heal()
    assert files(vfs)[:3] == [(0, 8 * MESSAGE), (8 * MESSAGE, 2 * MESSAGE),
                              (10 * MESSAGE, 20 * MESSAGE)]  # fmt: skip


def test_damage_that_the_background_finds_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    vfs, clock = small_files(40)
    flip(vfs, data_path(8), 60)
    with open_store(vfs, clock) as store:
        clock.advance(HOUR)
        store.maintain()
    assert f"{data_path(8)} stays: it has changed" in caplog.text


def test_a_bit_that_no_checksum_covers_is_found_by_the_digest() -> None:
    vfs, clock = small_files(40)
    flip(vfs, data_path(8), 35)  # the sender's address
    with open_store(vfs, clock) as store:
        found = store.compact(files_min=2)
    assert [row.path for row in found if row.verdict == "stays"] == [data_path(8)]


def test_the_merged_file_has_digests_that_find_a_flipped_bit() -> None:
    vfs, clock = small_files(40)
    with open_store(vfs, clock) as store:
        store.compact()
    assert f"{SHARD}/.tubestore/{0:020d}.tube.digests" in vfs.tree()
    flip(vfs, data_path(0), 7 * MESSAGE + 35)
    assert [finding.reason for finding in check(ROOT, vfs=vfs)] == [Reason.DIGEST_DIFFERS]


def test_a_copy_that_is_not_what_was_written_never_takes_the_place_of_the_files() -> None:
    vfs, clock = small_files(40)
    before = segments(vfs)

    class Lying(FaultyVfs):
        def open(self, path: str, *, create: bool = False, writable: bool = True) -> Any:
            file = super().open(path, create=create, writable=writable)
            if ".merging." in path:
                write = file.pwrite
                file.pwrite = lambda data, at: write(bytes(len(data)), at)  # type: ignore[method-assign]
            return file

    with open_store(Lying(vfs), clock) as store:
        with pytest.raises(tubestore.StorageError, match="is not what was written to it"):
            store.compact()
        assert len(rows(store)) == 40
    assert segments(vfs) == before
    assert not any(".merging." in path for path in vfs.tree())


# -- trouble ---------------------------------------------------------------------------------------


def test_a_full_disk_is_one_error_and_leaves_all_files_and_the_store_open() -> None:
    vfs, clock = small_files(40)
    before = segments(vfs)
    faulty = FaultyVfs(vfs)
    with open_store(faulty, clock) as store:
        store["t"].read(0)
        faulty.fail("pwrite", error=errno.ENOSPC, path=".merging.", forever=True)
        with pytest.raises(DiskFull):
            store.compact()
        assert not any(".merging." in path for path in vfs.tree())
        store["t"].append(b"goes on", partition=0)
        faulty.heal()
        assert store.compact()
        assert len(rows(store)) == 41
    assert before.keys() > segments(vfs).keys()


def calls_of_a_compaction() -> list[tuple[str, int]]:
    vfs, clock = small_files(12)
    watching = WatchingVfs(vfs)
    with open_store(watching, clock) as store:
        rows(store)
        watching.on = True
        store.compact(files_min=2)
        watching.on = False
    return watching.noted


@pytest.mark.parametrize("forever", [False, True])
def test_whatever_call_fails_nothing_changes_and_the_next_opening_ends_it(forever: bool) -> None:
    calls = calls_of_a_compaction()
    assert len(calls) > 50
    for call, nth in calls:
        vfs, clock = small_files(12)
        faulty = FaultyVfs(vfs)
        store = open_store(faulty, clock)
        shown = rows(store)
        faulty.fail(call, nth=nth, forever=forever)
        with contextlib.suppress(StoreFailed, tubestore.StorageError):
            store.compact(files_min=2)
        faulty.heal()
        assert rows(store) == shown, (call, nth)
        engine_of(store).abandon("killed")
        vfs.release_locks()
        with open_store(vfs, clock, "r") as reader:
            assert rows(reader) == shown, (call, nth)
            assert not reader.problems, (call, nth)
        with open_store(vfs, clock) as again:
            assert rows(again) == shown, (call, nth)
            again.compact(files_min=2)
            assert rows(again) == shown, (call, nth)
            clock.advance(HOUR)
            again.empty_trash()
        assert list(check(ROOT, vfs=vfs)) == [], (call, nth)
        # A file that could not be read then may lie beside a larger one now.
        assert files(vfs)[-1] == (12 * MESSAGE, 0), (call, nth)
        assert len(files(vfs)) <= 4, (call, nth)
        assert not [path for path in vfs.tree() if "/trash/" in path], (call, nth)


def interrupted() -> tuple[MemoryVfs, ManualClock, dict[str, bytes]]:
    """A store that was killed when the merged file had come, and the files that are in it."""
    vfs, clock = small_files(40)
    with open_store(vfs, clock) as store:
        before = segments(vfs)
        store.compact()
    left = {data_path(n): before[data_path(n)] for n in range(2, 20, 2)}
    for path, data in left.items():
        vfs.open(path, create=True).pwrite(data, 0)
    return vfs, clock, left


def test_the_next_writer_moves_what_an_interrupted_compaction_left_to_the_trash() -> None:
    vfs, clock, left = interrupted()
    assert list(check(ROOT, vfs=vfs)) == []
    with open_store(vfs, clock, "r") as reader:
        assert len(rows(reader)) == 40
    with open_store(vfs, clock) as store:
        assert len(rows(store)) == 40
        assert not left.keys() & vfs.tree().keys()


def renamings(vfs: MemoryVfs, do: Callable[[], object]) -> list[str]:
    """What is renamed in the data directory meanwhile, and its syncs."""
    journal = vfs.record()
    do()
    kinds = {"rename": "goes", "sync_directory": "sync"}
    return [
        "comes" if call.target == data_path(0) else kinds[call.kind]
        for call in journal.calls
        if (call.kind == "sync_directory" and call.path == SHARD)
        or (call.kind == "rename" and (call.path + call.target).count(f"{SHARD}/0"))
    ]


def test_a_file_goes_only_when_the_name_of_the_one_with_its_bytes_is_durable() -> None:
    vfs, clock = small_files(40)
    with open_store(vfs, clock) as store:
        rows(store)
        assert renamings(vfs, store.compact)[:3] == ["comes", "sync", "goes"]
    vfs, clock, _ = interrupted()
    with open_store(vfs, clock) as store:
        assert renamings(vfs, lambda: rows(store))[:2] == ["sync", "goes"]


def test_a_file_inside_another_one_with_other_bytes_is_damage_and_stays() -> None:
    vfs, clock, _ = interrupted()
    flip(vfs, data_path(8), 60)
    assert Reason.OVERLAP in {finding.reason for finding in check(ROOT, vfs=vfs)}
    with open_store(vfs, clock) as store, pytest.raises(NotAStore):
        rows(store)
    assert data_path(8) in vfs.tree()


def test_the_old_files_leave_the_trash_with_what_retention_removed() -> None:
    vfs, clock = small_files(40)
    with open_store(vfs, clock) as store:
        store.compact()
        trash = [path for path in vfs.tree() if "/trash/" in path]
        assert len(trash) >= 20
        store.empty_trash(grace=0)
        assert not [path for path in vfs.tree() if "/trash/" in path]
        assert len(rows(store)) == 40


# -- by itself -------------------------------------------------------------------------------------


@pytest.fixture
def kept_house() -> Callable[..., list[tuple[int, int]]]:
    def keep(vfs: MemoryVfs, clock: ManualClock, **settings: Any) -> list[tuple[int, int]]:
        with open_store(vfs, clock, **settings) as store:
            clock.advance(HOUR)
            store.maintain()
            assert len(rows(store)) == 40
        return files(vfs)

    return keep


def test_the_background_merges_unless_it_is_switched_off(
    kept_house: Callable[..., list[tuple[int, int]]],
) -> None:
    vfs, clock = small_files(40)
    assert len(kept_house(vfs, clock, compact_files_min=0)) == 21
    assert len(kept_house(vfs, clock)) == 3


def test_the_background_merges_some_bytes_at_a_time(
    kept_house: Callable[..., list[tuple[int, int]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tubestore.store.housekeeping.COMPACTED_BYTES", 20 * MESSAGE)
    vfs, clock = small_files(40)
    assert len(kept_house(vfs, clock)) == 12
    assert len(kept_house(vfs, clock)) == 3


def test_the_background_ends_between_two_files_when_the_store_is_closed() -> None:
    vfs, clock = small_files(40)
    with open_store(vfs, clock) as store:
        clock.advance(HOUR)
        answers = iter([False, True])
        engine_of(store).keep_house(lambda _: next(answers))
        assert len(files(vfs)) == 12


def test_shards_without_small_files_are_not_opened_for_it() -> None:
    vfs, clock = small_files(40)
    with open_store(vfs, clock, segment_size_bytes=300, index_segment_size_bytes=84) as store:
        clock.advance(HOUR)
        store.maintain()
        assert store.compact() == []
        assert shards_of(store["t"]).opened_shards() == []


def test_the_background_reports_a_full_disk_and_goes_on(
    kept_house: Callable[..., list[tuple[int, int]]], caplog: pytest.LogCaptureFixture
) -> None:
    vfs, clock = small_files(40)
    faulty: Any = FaultyVfs(vfs)
    faulty.fail("pwrite", error=errno.ENOSPC, path=".merging.", forever=True)
    assert len(kept_house(faulty, clock)) == 21
    assert "the small files of t" in caplog.text


def test_digests_that_come_while_their_file_is_merged_do_not_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    vfs, clock = small_files(40)
    with open_store(vfs, clock) as store:
        known = shards_of(store["t"]).shard(0).files
        keep = segment_list.keep_digests

        def slowly(*arguments: Any) -> None:
            """Merge before the digests are written."""
            monkeypatch.setattr(segment_list, "keep_digests", keep)
            store.compact()
            keep(*arguments)

        rows(store)
        known.data._newly_sealed.append(list(known.data)[3])
        monkeypatch.setattr(segment_list, "keep_digests", slowly)
        known.data.keep_digests()
    assert list(check(ROOT, vfs=vfs)) == []
