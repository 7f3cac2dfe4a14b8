"""What tubestore's and RocketMQ's staging share: names, and an end that says what happened."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

import pytest

from rocketcompat.options import MessageStoreConfig
from rocketcompat.staging.writer import StagedLogWriter
from tubestore.core.vfs import Vfs
from tubestore.errors import DiskFull, InvalidName, StoreClosed, StoreFailed
from tubestore.staging.writer import StagedWriter
from tubestore.testing.faults import FaultyVfs
from tubestore.testing.memory_vfs import MemoryVfs

Writer = Callable[..., Any]
ROWS = {"topic": ["a"], "body": [b"x"]}


def of_shards(vfs: Vfs, job: str = "load", attempt: str = "1") -> StagedWriter:
    return StagedWriter("/store", job, attempt, vfs=vfs)


def of_a_log(vfs: Vfs, job: str = "load", attempt: str = "1") -> StagedLogWriter:
    return StagedLogWriter("/store", job, attempt, config=MessageStoreConfig(), vfs=vfs)


def stage(made: Any) -> None:
    """Stage a row; few rows are written only when the writer ends."""
    given = {"partition": [0]} if isinstance(made, StagedWriter) else {}
    made.write({**ROWS, **given})
    made.finish()


both = pytest.mark.parametrize("writer", [of_shards, of_a_log])


@both
@pytest.mark.parametrize("attempt", ["", "a/b", "a b", "ä"])
def test_an_attempt_is_a_part_of_a_file_name(writer: Writer, attempt: str) -> None:
    with pytest.raises(InvalidName, match="an attempt is named by"):
        writer(MemoryVfs(), attempt=attempt)


@both
def test_a_job_needs_an_id(writer: Writer) -> None:
    with pytest.raises(InvalidName, match="a job needs an id"):
        writer(MemoryVfs(), job="")


@both
@pytest.mark.parametrize(
    ("number", "kind"),
    [(errno.ENOSPC, DiskFull), (errno.EDQUOT, DiskFull), (errno.EIO, StoreFailed)],
)
def test_a_failed_write_is_told_and_ends_the_writer(
    writer: Writer, number: int, kind: type[Exception]
) -> None:
    faulty = FaultyVfs(MemoryVfs())
    made = writer(faulty)
    faulty.fail("pwrite", error=number)
    with pytest.raises(kind, match="/store"):
        stage(made)
    with pytest.raises(StoreClosed, match="'load'"):
        made.write(ROWS)


@both
def test_what_was_not_described_is_gone_when_the_context_is_left(writer: Writer) -> None:
    vfs = MemoryVfs()
    faulty = FaultyVfs(vfs)
    with writer(faulty) as made:
        faulty.fail("sync")
        with pytest.raises(StoreFailed):
            stage(made)
    assert [path for path in vfs.tree() if "staging" in path] == []
