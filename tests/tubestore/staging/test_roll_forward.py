"""A job that was recorded and not finished goes on, or names why it cannot."""

from __future__ import annotations

import pytest

from tests.support.engine.damaged.half_published import found, half_published
from tests.support.faults import failing_after_the_record
from tests.support.publishing import CLOCK, ROOT, batch, bodies, numbered, open_store, stage
from tubestore.errors import (
    NotAStore,
    StoreFailed,
)
from tubestore.offline.check import Reason, check
from tubestore.testing import FaultyVfs, MemoryVfs


def test_a_job_that_cannot_go_on_reports_why() -> None:
    vfs = half_published(3)
    gone = next(p for p in vfs.tree() if "/staging/" in p and p.endswith(".tube"))
    vfs.remove(gone)
    messages = [f.message for f in found(vfs) if f.reason is Reason.HALF_PUBLISHED]
    assert len(messages) == 1
    assert f"it cannot go on: {gone} is gone" in messages[0]
    with pytest.raises(NotAStore, match="is gone; see `tubestore repair`"):
        open_store(vfs)


def test_a_job_does_not_go_on_behind_what_a_real_broker_has_written_meanwhile() -> None:
    vfs = half_published(0)
    data = max(p for p in vfs.tree() if "a-0/0" in p and p.endswith(".tube"))
    vfs.open(data).pwrite(b"x" * 60, len(vfs.read_file(data)))
    messages = [f.message for f in found(vfs) if f.reason is Reason.HALF_PUBLISHED]
    assert len(messages) == 1
    assert "a-0 ends at" in messages[0]
    with pytest.raises(NotAStore, match="goes on at"):
        open_store(vfs)


@pytest.mark.parametrize("call", ["link", "sync_directory", "rename", "open"])
def test_a_failure_after_the_record_fails_the_shards_until_they_are_reopened(call: str) -> None:
    inner = MemoryVfs(CLOCK)
    faulty = FaultyVfs(inner)
    store = open_store(faulty)
    store.create_topic("a", partitions=3, stores=2)
    store.create_topic("b")
    store["a"].append(b"before", partition=0)
    staged = stage(inner, "j", batch(numbered(9)))
    with failing_after_the_record(inner, faulty, call), pytest.raises(StoreFailed):
        store.publish("j", staged)
    with pytest.raises(StoreFailed):
        store["a"].append(b"x", partition=0)
    with pytest.raises(StoreFailed):
        store.publish("k", [])
    assert bodies(store) == [b"before"]
    store["b"].append(b"other shards go on")
    with pytest.raises(StoreFailed):
        store.close()
    with open_store(inner) as again:
        assert len(bodies(again)) == 10
        assert again.publish("j", staged).replayed
    assert list(check(ROOT, vfs=inner)) == []
