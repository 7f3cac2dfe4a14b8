"""Stores that are damaged and repaired, and what every repair has to keep."""

from __future__ import annotations

from typing import Any

from tests.support.publishing import CLOCK
from tests.support.tube import make_rows, write_rows
from tubestore.core.vfs import Vfs
from tubestore.offline.check import Reason, check
from tubestore.offline.dump import dump
from tubestore.offline.repair import Action, repair
from tubestore.record.records import ENTRY_SIZE
from tubestore.testing import MemoryVfs

Rows = list[dict[str, Any]]

COLUMNS = ["topic", "store_id", "partition", "index_offset", "body", "msg_id", "state"]

SMALL: dict[str, Any] = {"segment_size_bytes": 300, "index_segment_size_bytes": 5 * ENTRY_SIZE}

#: Warnings of `check` that are no damage: what a real broker wrote like that.
AS_WRITTEN = {Reason.OWN_OFFSET, Reason.BAD_ATTRIBUTES}


def good_rows(root: Any, vfs: Vfs) -> Rows:
    """Every message that a correct recovery keeps."""
    rows = [r for batch in dump(root, vfs=vfs) for r in batch.select(COLUMNS).to_pylist()]
    return [row for row in rows if row["state"] in ("ok", "bad_attributes")]


def findings(root: Any, vfs: Vfs) -> list[Reason]:
    found = check(root, vfs=vfs, wait=lambda _: None)
    return [f.reason for f in found if f.reason not in AS_WRITTEN]


def mended(root: Any, vfs: Vfs) -> list[Action]:
    """Repair, and check what every repair has to keep; returns what was done."""
    planned = list(repair(root, vfs=vfs))
    before = good_rows(root, vfs)
    done = list(repair(root, vfs=vfs, apply=True))
    assert done == planned
    assert [r for r in good_rows(root, vfs) if r in before] == before
    left = [action for action in done if action.action == "leave"]
    assert {a.action for a in repair(root, vfs=vfs)} <= {"leave"}
    assert left or not findings(root, vfs)
    return done


# -- one damage after the other ----------------------------------------------------------------
HOME = "/store/t-0"

ROWS = make_rows(40)


def written(**settings: Any) -> MemoryVfs:
    vfs = MemoryVfs(CLOCK)
    write_rows(vfs, ROWS, HOME, **settings)
    return vfs


def files_of(vfs: MemoryVfs, suffix: str) -> list[str]:
    return [p for p in vfs.tree() if p.startswith(f"{HOME}/") and p.endswith(suffix)]


def actions(done: list[Action]) -> list[str]:
    return [action.action for action in done]
