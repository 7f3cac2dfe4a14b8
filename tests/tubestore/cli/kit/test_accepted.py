"""Findings that the operator has acknowledged: known by file, position, reason and message."""

from __future__ import annotations

from typing import Any

import pytest

from tubestore.cli.kit.accepted import AcceptedFindings
from tubestore.testing import MemoryVfs

ROW: dict[str, Any] = {
    "path": "/s/t-0/0.tube", "position": 40, "reason": "bad_checksum", "message": "why",
}  # fmt: skip
PATH = "/s/.tubestore/accepted.json"


@pytest.fixture
def vfs() -> MemoryVfs:
    vfs = MemoryVfs()
    vfs.make_directories("/s")
    return vfs


def test_an_accepted_finding_is_known_again_by_the_next_process(vfs: MemoryVfs) -> None:
    assert ROW not in AcceptedFindings("/s", vfs)
    assert AcceptedFindings("/s", vfs).write([ROW, ROW], keep=False) == 1
    found = AcceptedFindings("/s", vfs)
    assert ROW in found
    assert {**ROW, "severity": "error"} in found, "other fields do not count"


@pytest.mark.parametrize(
    "other", [{"path": "/s/t-0/1.tube"}, {"position": 41}, {"reason": "gap"}, {"message": "x"}]
)
def test_a_finding_that_differs_in_one_field_is_a_new_one(
    vfs: MemoryVfs, other: dict[str, Any]
) -> None:
    AcceptedFindings("/s", vfs).write([ROW], keep=False)
    assert {**ROW, **other} not in AcceptedFindings("/s", vfs)


def test_a_store_that_was_moved_keeps_what_is_accepted(vfs: MemoryVfs) -> None:
    AcceptedFindings("/s", vfs).write([ROW], keep=False)
    vfs.rename("/s", "/moved")
    assert {**ROW, "path": "/moved/t-0/0.tube"} in AcceptedFindings("/moved", vfs)


@pytest.mark.parametrize("keep", [True, False])
def test_what_was_accepted_before_stays_only_with_keep(vfs: MemoryVfs, keep: bool) -> None:
    AcceptedFindings("/s", vfs).write([ROW], keep=False)
    new = {**ROW, "position": 99}
    assert AcceptedFindings("/s", vfs).write([new], keep=keep) == 1 + keep
    found = AcceptedFindings("/s", vfs)
    assert (ROW in found, new in found) == (keep, True)


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b'{"format": 2, "findings": []}', b"[" * 100_000, b'{"format": 1}'],
)
def test_a_file_that_cannot_be_read_accepts_nothing_and_is_named(
    vfs: MemoryVfs, content: bytes
) -> None:
    vfs.make_directories("/s/.tubestore")
    vfs.replace_file(PATH, content)
    found = AcceptedFindings("/s", vfs)
    assert ROW not in found
    assert found.problem is not None
    assert PATH in found.problem
    found.write([ROW], keep=True)
    assert found.problem is None
    assert ROW in AcceptedFindings("/s", vfs)
