"""Where a log ends: the chain is followed, and what lies behind damage is judged."""

from __future__ import annotations

import pytest

from rocketcompat import Message
from rocketcompat.check.whole import check_store
from rocketcompat.inspect.directory import StoreDirectory
from tests.support.rocket.inside import (
    log_of,
)
from tests.support.rocket.store.recovered import (
    PROGRESS,
    ROOT,
    Bench,
    bodies_of,
    log_file,
)
from tests.support.rocket.store.recovered import bench as bench
from tubestore.errors import CorruptRecord


def test_damage_with_sound_records_behind_it_stays_and_is_reported(bench: Bench) -> None:
    bench.open()
    places = bench.put(9)
    bench.kill()
    bench.overwrite(log_file(0), places[3] + 100, b"\xff" * 20)
    kept = bench.vfs.tree()[log_file(0)]
    store = bench.open()
    assert bench.vfs.tree()[log_file(0)] == kept
    problem = store.problems[0]
    assert isinstance(problem, CorruptRecord)
    assert (problem.path, problem.position) == (log_file(0), places[3])
    assert bodies_of(store) == [0, 1, 2, 4, 5, 6, 7, 8]
    with pytest.raises(CorruptRecord):
        store.look_message(places[3])
    store.close()
    with bench.open() as store:
        assert store.recovered.clean
        assert str(store.problems[0]) == str(problem)


def test_the_windows_see_the_damage_that_a_recovery_sees(bench: Bench) -> None:
    """A record of ours has no zeros in its properties: one of which a sector was lost is damaged.

    Of a store that somebody else may have written to nobody can say that, so it matters whether
    the marks are believed; and after the recovery, that they list the damage.
    """
    bench.open()
    bench.put(3)
    assert bench.store is not None
    bench.store.flush()
    places = bench.put(5, first=3)
    bench.kill()
    assert places[0] // 1000 == places[1] // 1000
    bench.overwrite(log_file(places[0] // 1000), places[1] % 1000 - 4, bytes(4))

    def damage_in_windows() -> list[tuple[str, int]]:
        findings = check_store(StoreDirectory(ROOT, vfs=bench.vfs))
        return [(f["path"], f["position"]) for f in findings if f["reason"] == "damaged"]

    before = damage_in_windows()
    with bench.open(mode="r") as reader:
        seen = [damage.start for damage in log_of(reader).gaps]
    with bench.open() as store:
        (damage,) = log_of(store).gaps
        assert damage.start == places[0]
        assert before == damage_in_windows() == [(damage.path, damage.position)]
        assert seen == [damage.start]
    assert damage_in_windows() == before


def test_a_missing_file_in_the_middle_is_damage_and_no_end(bench: Bench) -> None:
    with bench.open():
        bench.put(25)
    bench.vfs.remove(log_file(1))
    bench.vfs.remove(PROGRESS)
    with bench.open() as store:
        damage = log_of(store).gaps[0]
        assert (damage.start, damage.end) == (1000, 2000)
        assert len(bodies_of(store)) > 15


@pytest.mark.parametrize(("seconds", "stays"), [(5, False), (-5, True)])
def test_a_record_behind_damage_is_left_over_if_it_is_older_than_the_last_one_before(
    bench: Bench, seconds: int, stays: bool
) -> None:
    """What a broker's recovery has cut off it leaves in the file."""
    bench.clock.advance(10_000)
    with bench.open():
        first, cut, _ = bench.put(3)
        assert bench.store is not None
        last = bench.store.put_message(Message("OTHER", b"040", keys="k40")).physical_offset
    old = bench.vfs.read_file(log_file(0))
    bench.overwrite(log_file(0), cut, bytes(1000 - cut))
    bench.vfs.remove(PROGRESS)
    bench.clock.advance(1000 * seconds)
    with bench.open() as store:
        store.put_message(Message("T1", b"050" + b"y" * 20, keys="k50"))
        end = store.max_physical_offset
    bench.overwrite(log_file(0), end, old[end:])
    bench.vfs.remove(PROGRESS)
    findings = check_store(StoreDirectory(ROOT, vfs=bench.vfs))
    assert any(f["reason"] == "damaged" for f in findings) == stays
    with bench.open() as store:
        assert bool(store.problems) == stays
        assert bodies_of(store) == ([0, 50, 2, 40] if stays else [0, 50])
        assert (store.max_physical_offset > last) == stays
    assert first < cut
