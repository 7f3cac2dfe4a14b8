"""Staged files: written by any process, whole, and nobody else's."""

from __future__ import annotations

import errno
import pickle
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import xxhash

from tests.support.tube import columns_of, make_rows
from tubestore.clock import ManualClock
from tubestore.errors import (
    DiskFull,
    InvalidMessage,
    InvalidName,
    MessageTooLarge,
    StoreClosed,
    StoreFailed,
)
from tubestore.options import StoreOptions, TopicOptions
from tubestore.record.layouts import DATA_HEADER
from tubestore.record.records import ENTRY_SIZE, entries_in, verify_entries
from tubestore.staging.job_files import StagedFile
from tubestore.staging.writer import StagedWriter
from tubestore.testing import FaultyVfs, MemoryVfs

DIRECTORY = "/store/.tubestore/staging/job-load"
TOPICS = {"a": TopicOptions(partitions=3, stores=2), "b": TopicOptions(partitions=5)}


def writer(vfs: MemoryVfs | FaultyVfs, attempt: str = "0-0", **values: object) -> StagedWriter:
    options = StoreOptions(
        **{k: values.pop(k) for k in list(values) if k in StoreOptions.__slots__}  # type: ignore[arg-type]
    )
    return StagedWriter(
        "/store",
        "load",
        attempt,
        vfs=vfs,
        options=options,
        clock=ManualClock(),
        **values,  # type: ignore[arg-type]
    )


def rows_of(vfs: MemoryVfs, file: StagedFile) -> np.ndarray:
    """The entries of a staged pair, checked against its data."""
    data = vfs.read_file(f"{DIRECTORY}/{file.name}.tube")
    index = vfs.read_file(f"{DIRECTORY}/{file.name}.index")
    entries = entries_in(index)
    assert verify_entries(entries, 0, data, 0).all()
    assert (len(data), len(index)) == (file.data_size, file.index_size)
    assert (len(entries), file.rows) == (file.rows, len(index) // ENTRY_SIZE)
    assert int(entries["data_size"].sum()) == file.data_size
    assert xxhash.xxh3_64_hexdigest(data) == file.data_digest
    assert xxhash.xxh3_64_hexdigest(index) == file.index_digest
    return entries


def test_rows_go_to_a_pair_of_files_a_shard_and_keep_their_order() -> None:
    vfs = MemoryVfs()
    one = writer(vfs)
    one.write(
        {
            "topic": ["a", "b", "a", "a"],
            "partition": [1, 4, 10_002, 0],
            "body": [b"1", b"2", b"3", b"4"],
            "received_time_ms": [7, 8, 5, 9],
        }
    )
    one.write({"topic": ["a"], "partition": [2], "body": [b"5"], "received_time_ms": [3]})
    staged = one.finish()
    assert [(f.topic, f.store_id, f.rows, f.partitions) for f in staged] == [
        ("a", 0, 3, 3),
        ("a", 1, 1, 3),
        ("b", 0, 1, 5),
    ]
    assert rows_of(vfs, staged[0])["partition_id"].tolist() == [1, 0, 2]
    assert (staged[0].first_time, staged[0].last_time) == (3, 9)
    assert rows_of(vfs, staged[1])["partition_id"].tolist() == [10_002]
    assert not any(f.has_ids for f in staged)


def test_descriptions_travel_between_processes() -> None:
    one = writer(MemoryVfs())
    one.write({"topic": ["a"], "partition": [1], "body": [b"1"]})
    staged = one.finish()
    assert pickle.loads(pickle.dumps(staged)) == staged
    assert [StagedFile.from_json(f.as_json()) for f in staged] == staged


@pytest.mark.parametrize("limit", ["segment_size_bytes", "index_segment_size_bytes"])
def test_a_pair_ends_when_one_of_its_files_is_full(limit: str) -> None:
    vfs = MemoryVfs()
    one = writer(vfs, **{limit: 4 * ENTRY_SIZE})
    for number in range(9):
        one.write({"topic": ["a"], "partition": [0], "body": [b"%d" % number]})
    staged = one.finish()
    assert len(staged) > 2
    assert sum(len(rows_of(vfs, f)) for f in staged) == 9
    assert len({f.name for f in staged}) == len(staged)


def test_rows_without_a_partition_are_routed_like_appends() -> None:
    vfs = MemoryVfs()
    keys = [f"k{n}" for n in range(20)]
    one = writer(vfs, topics=TOPICS)
    one.write({"topic": ["a"] * 20, "key": keys, "body": [b"x"] * 20})
    from tubestore.record.ingest import hash_key

    expected = sorted(TOPICS["a"].partition_id(hash_key(k) % 6) for k in keys)
    found = [int(p) for f in one.finish() for p in rows_of(vfs, f)["partition_id"]]
    assert sorted(found) == expected


def test_rows_without_key_and_partition_take_turns() -> None:
    vfs = MemoryVfs()
    one = writer(vfs, topics=TOPICS)
    for _ in range(3):
        one.write({"topic": ["a"] * 4, "body": [b"x"] * 4})
    found = [int(p) for f in one.finish() for p in rows_of(vfs, f)["partition_id"]]
    assert sorted(found) == sorted([0, 1, 2, 10_000, 10_001, 10_002] * 2)


def test_ids_are_kept_as_given() -> None:
    vfs = MemoryVfs()
    one = writer(vfs)
    table = pa.table({"topic": ["a", "a"], "partition": [0, 1], "body": [b"x", b"y"]})
    one.write(table.append_column("msg_id", pa.array([7, -9], pa.int64())))
    (file,) = one.finish()
    assert file.has_ids
    data = vfs.read_file(f"{DIRECTORY}/{file.name}.tube")
    entries = rows_of(vfs, file)
    ids = [DATA_HEADER.unpack_from(data, int(e["data_offset"])).msg_id for e in entries]
    assert ids == [7, -9]


def test_columns_that_are_checked_already_are_taken_as_they_are() -> None:
    vfs = MemoryVfs()
    one = writer(vfs)
    one.write_columns("a", columns_of(make_rows(50)))
    (file,) = one.finish()
    assert (file.rows, file.has_ids, file.partitions) == (50, True, 3)
    rows_of(vfs, file)


def test_batches_with_and_without_ids_do_not_mix() -> None:
    one = writer(MemoryVfs())
    one.write({"topic": ["a"], "partition": [0], "body": [b"x"]})
    with pytest.raises(InvalidMessage, match="msg_id"):
        one.write({"topic": ["a"], "partition": [0], "body": [b"x"], "msg_id": [1]})
    assert one.finish()[0].rows == 1


@pytest.mark.parametrize(
    ("batch", "error"),
    [
        ({"topic": ["a"], "body": [b"x"]}, InvalidMessage),  # how many partitions?
        ({"body": [b"x"], "partition": [0]}, InvalidMessage),
        ({"topic": [None], "body": [b"x"], "partition": [0]}, InvalidMessage),
        ({"topic": ["../a"], "body": [b"x"], "partition": [0]}, InvalidName),
        ({"topic": ["a"], "body": [b""], "partition": [0]}, InvalidMessage),
        ({"topic": ["a"], "body": [b"x"], "partition": [-1]}, InvalidMessage),
        ({"topic": ["a"], "body": [b"x" * 2_000_000], "partition": [0]}, MessageTooLarge),
    ],
)
def test_a_bad_batch_is_refused_before_anything_is_written(
    batch: dict[str, list[object]], error: type[Exception]
) -> None:
    vfs = MemoryVfs()
    one = writer(vfs)
    with pytest.raises(error):
        one.write(batch)
    assert one.finish() == []
    assert vfs.tree() == {}


def test_two_attempts_of_one_task_do_not_disturb_each_other() -> None:
    vfs = MemoryVfs()
    attempts = [writer(vfs, "3"), writer(vfs, "3")]
    for number, one in enumerate(attempts):
        one.write({"topic": ["a"], "partition": [number], "body": [b"x"]})
    files = [one.finish()[0] for one in attempts]
    assert files[0].name != files[1].name
    assert [rows_of(vfs, f)["partition_id"].tolist() for f in files] == [[0], [1]]


def test_a_file_of_the_same_name_is_not_written_over() -> None:
    vfs = MemoryVfs()
    for expected in (None, StoreFailed):
        one = writer(vfs, token="same")
        one.write({"topic": ["a"], "partition": [0], "body": [b"x"]})
        if expected is None:
            one.finish()
        else:
            with pytest.raises(expected):
                one.finish()


def test_what_is_not_finished_is_removed_at_the_end_of_the_block() -> None:
    vfs = MemoryVfs()
    with writer(vfs, segment_size_bytes=1) as one:
        one.write({"topic": ["a"], "partition": [0], "body": [b"x"]})
        assert len(vfs.tree()) == 2
    assert vfs.tree() == {}
    with pytest.raises(StoreClosed):
        one.write({"topic": ["a"], "partition": [0], "body": [b"x"]})


def test_what_is_finished_stays_and_is_synced() -> None:
    inner = MemoryVfs()
    vfs = FaultyVfs(inner)
    with writer(vfs) as one:
        one.write({"topic": ["a"], "partition": [0], "body": [b"x"]})
        one.finish()
    assert len(inner.tree()) == 2
    assert (vfs.calls["sync"], vfs.calls["sync_directory"]) == (2, 1)


def test_a_sync_that_is_left_to_publishing_is_recorded() -> None:
    inner = MemoryVfs()
    vfs = FaultyVfs(inner)
    one = writer(vfs, sync=False, segment_size_bytes=1)
    for _ in range(2):
        one.write({"topic": ["a"], "partition": [0], "body": [b"x"]})
    staged = one.finish()
    assert (vfs.calls["sync"], vfs.calls["sync_directory"]) == (0, 0)
    assert [file.synced for file in staged] == [False, False]
    for file in staged:
        rows_of(inner, file)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("call", ["make_directories", "create", "pwrite", "sync", "sync_directory"])
def test_a_write_that_fails_is_an_error_and_leaves_nothing(call: str, number: int) -> None:
    inner = MemoryVfs()
    vfs = FaultyVfs(inner)
    vfs.fail(call, error=number)
    with writer(vfs) as one:
        with pytest.raises(DiskFull if number == errno.ENOSPC else StoreFailed):
            _write_and_finish(one)
        with pytest.raises(StoreClosed):
            one.finish()
    assert inner.tree() == {}


def _write_and_finish(one: StagedWriter) -> None:
    for _ in range(2):
        one.write({"topic": ["a"], "partition": [0], "body": [b"x" * 200_000]})
    one.finish()


def test_memory_is_bounded_however_many_shards_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tubestore.staging.writer._HELD_BYTES", 10_000)
    vfs = MemoryVfs()
    one = writer(vfs)
    for _ in range(4):
        names = [f"t{n}" for n in range(100)]
        one.write({"topic": names, "partition": [0] * 100, "body": [b"x" * 20] * 100})
        assert one._held <= 10_000
    staged = one.finish()
    assert len(staged) == 100
    for file in staged:
        assert len(rows_of(vfs, file)) == 4


def test_an_attempt_has_a_plain_name() -> None:
    for attempt in ("", "a/b", "\u00e9", "a b"):
        with pytest.raises(InvalidName):
            StagedWriter("/store", "load", attempt)


def test_a_job_is_staged_in_real_files_under_its_escaped_name(tmp_path: Path) -> None:
    with StagedWriter(tmp_path, "load 7/2", "1") as one:
        one.write({"topic": ["a"], "partition": [0], "body": [b"x"]})
        (file,) = one.finish()
    found = sorted(p.name for p in (tmp_path / ".tubestore/staging/job-load%207%2F2").iterdir())
    assert found == [f"{file.name}.index", f"{file.name}.tube"]
