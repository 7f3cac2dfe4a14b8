"""Records written for a bulk load."""

from __future__ import annotations

import errno
from pathlib import Path

import numpy as np
import pytest

import rocketcompat
from rocketcompat.staging.pieces import StagedPiece
from rocketcompat.staging.writer import StagedLogWriter, blocks_of
from tests.support.rocket.publishing import (
    CLOCK,
    CONFIG,
    ROOT,
    batch,
    numbered,
)
from tests.support.rocket.publishing import vfs as vfs
from tubestore.core.kernels import offsets_of
from tubestore.errors import (
    DiskFull,
    InvalidMessage,
    InvalidName,
    MessageTooLarge,
    StoreClosed,
    StoreFailed,
)
from tubestore.testing import FaultyVfs, MemoryVfs


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
