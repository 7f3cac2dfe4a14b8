"""A store's own files are repaired: state files, and a job that is half published."""

from __future__ import annotations

import pytest

from tests.support.engine.damaged.half_published import half_published
from tests.support.engine.damaged.repaired import (
    actions,
    findings,
    mended,
    written,
)
from tests.support.publishing import CLOCK, ROOT, bodies, open_store, some, stage
from tests.support.tube import quarantined
from tubestore.errors import NotAStore
from tubestore.offline.repair import repair
from tubestore.testing import MemoryVfs


@pytest.mark.parametrize("renames", [0, 1, 3, 5, 9])
def test_a_half_published_job_is_finished(renames: int) -> None:
    vfs = half_published(renames)
    done = mended(ROOT, vfs)
    assert actions(done) == ["finish_job"]
    with open_store(vfs) as store:
        assert len(bodies(store)) == 31
        assert store.publish("j", []).replayed


def test_a_job_that_cannot_go_on_is_given_up_and_what_it_staged_kept() -> None:
    vfs = half_published(3)
    gone = next(p for p in vfs.tree() if "/staging/" in p and p.endswith(".tube"))
    vfs.remove(gone)
    staged = sum("/staging/" in path for path in vfs.tree())
    done = list(repair(ROOT, vfs=vfs, apply=True))
    assert done[0].action == "give_up_job"
    assert gone in done[0].message
    assert sum("/quarantine/" in p and "/job-j/" in p for p in vfs.tree()) >= staged
    assert findings(ROOT, vfs) == []
    with open_store(vfs) as store:
        assert store.publish("j", []).replayed
        assert store["a"].read(0).table.num_rows >= 1


@pytest.mark.parametrize("name", ["store.json", "topics.json", "published.json", "jobs.json"])
def test_a_state_file_that_cannot_be_read_is_made_anew(name: str) -> None:
    vfs = MemoryVfs(CLOCK)
    with open_store(vfs) as store:
        store.create_topic("a", partitions=3, stores=2)
        for number in range(3):
            store.publish(f"j:{number}", stage(vfs, f"j:{number}", *some(5)))
    vfs.replace_file(f"{ROOT}/.tubestore/{name}", b'{"half')
    with pytest.raises(NotAStore), open_store(vfs) as store:
        store.publish("j:0", [])
    done = mended(ROOT, vfs)
    assert done[0].action == "reset_state"
    assert b'{"half' in quarantined(vfs).values()
    with open_store(vfs) as store:
        assert len(bodies(store)) == 15
        for number in range(3):
            assert store.publish(f"j:{number}", []).replayed
        assert store.publish("j:3", []).number == 4


def test_a_state_file_of_a_newer_version_is_left_alone() -> None:
    vfs = written()
    path = f"{ROOT}/.tubestore/store.json"
    vfs.make_directories(f"{ROOT}/.tubestore")
    vfs.replace_file(path, b'{"version": 2}')
    done = list(repair(ROOT, vfs=vfs, apply=True))
    assert [(a.path, a.action) for a in done] == [(path, "leave")]
    assert vfs.read_file(path) == b'{"version": 2}'
