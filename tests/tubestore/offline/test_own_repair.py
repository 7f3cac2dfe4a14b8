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
from tubestore.errors import JobTaken, NotAStore
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


def test_a_job_that_is_there_in_part_is_given_up_and_refused_with_the_place_of_what_it_staged() -> (
    None
):
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
        rows = len(bodies(store))
        assert 1 < rows < 31
        for again in ([], stage(vfs, "j", *some(30)), stage(vfs, "j", *some(4))):
            with pytest.raises(JobTaken, match=r"3 of its \d+ files .*/quarantine/1/.*job-j"):
                store.publish("j", again)
        assert store.abort("j") is None
        assert len(bodies(store)) == rows
        assert not store.publish("k", stage(vfs, "k", *some(5))).replayed
    with open_store(vfs) as store, pytest.raises(JobTaken, match="under another id"):
        store.publish("j", [])


def test_a_job_that_is_given_up_with_nothing_in_the_store_can_be_published_again() -> None:
    vfs = half_published(0)
    gone = next(p for p in vfs.tree() if "/staging/" in p and p.endswith(".tube"))
    vfs.remove(gone)
    done = list(repair(ROOT, vfs=vfs, apply=True))
    assert "nothing of it is in the store, so it can be published again" in done[0].message
    assert findings(ROOT, vfs) == []
    with open_store(vfs) as store:
        assert bodies(store) == [b"before"]
        result = store.publish("j", stage(vfs, "j", *some(30)))
        assert (result.replayed, result.rows, result.number) == (False, 30, 2)
        assert len(bodies(store)) == 31
        assert store.publish("j", []).replayed


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
