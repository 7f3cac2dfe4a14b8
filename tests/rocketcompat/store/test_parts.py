"""The parts of a store: a log that is not where it was is refused, or given up."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from rocketcompat import Message
from tests.support.rocket.inside import (
    dispatcher_of,
)
from tests.support.rocket.store.recovered import (
    CONFIG,
    LOG,
    PROGRESS,
    ROOT,
    Bench,
    bodies_of,
    log_file,
    reopened,
)
from tests.support.rocket.store.recovered import bench as bench
from tubestore.errors import NotAStore


def structures(bench: Bench) -> dict[str, bytes]:
    names = ("/consumequeue/", "/index/", "/tube/")
    return {p: d for p, d in bench.vfs.tree().items() if any(name in p for name in names)}


def move_log_away(bench: Bench) -> None:
    bench.vfs.rename(LOG, "/elsewhere")


def empty_the_log(bench: Bench) -> None:
    bench.vfs.make_directories("/elsewhere")
    for name, _, _ in bench.vfs.entries(LOG):
        bench.vfs.rename(f"{LOG}/{name}", f"/elsewhere/{name}")


@pytest.mark.parametrize("marks", [True, False])
@pytest.mark.parametrize("lose", [move_log_away, empty_the_log])
def test_a_store_whose_log_is_not_there_is_refused_and_left_as_it_is(
    bench: Bench, lose: Callable[[Bench], None], marks: bool
) -> None:
    config = CONFIG.changed(layouts=CONFIG.layouts | {"tube"})
    with bench.open(config):
        bench.put(12)
    lose(bench)
    if not marks:
        bench.vfs.remove(PROGRESS)
    before = bench.vfs.tree()
    for mode in ("w", "r"):
        with pytest.raises(NotAStore, match=r"(?s)commitlog"):
            bench.open(config, mode=mode)
    with pytest.raises(NotAStore, match=r"consumequeue, index, tube.*accept_lost_log"):
        bench.open(config)
    assert bench.vfs.tree() == before
    elsewhere = config.changed(store_path_commit_log="/elsewhere")
    for mode in ("r", "w"):
        with bench.open(elsewhere, mode=mode) as store:
            assert store.max_offset_in_queue("T0", 0) == 6


def test_a_new_log_begins_when_the_old_one_is_said_to_be_lost(bench: Bench) -> None:
    config = CONFIG.changed(layouts=CONFIG.layouts | {"tube"}, accept_lost_log=True)
    with bench.open(config):
        bench.put(12)
    before = structures(bench)
    move_log_away(bench)
    with bench.open(config) as store:
        bench.put(2, first=40)
        dispatcher_of(store).dispatch_pending()
        assert bodies_of(store) == [40, 41]
    kept = f"{ROOT}/.tubestore/quarantine/1"
    after = bench.vfs.tree()
    assert all(after[f"{kept}{p.removeprefix(ROOT)}"] == data for p, data in before.items())
    assert reopened(bench, config) == [40, 41]


@pytest.mark.parametrize("killed", [False, True])
def test_a_log_that_lost_its_last_files_is_refused_and_left_as_it_is(
    bench: Bench, killed: bool
) -> None:
    config = CONFIG.changed(layouts=CONFIG.layouts | {"tube"})
    with bench.open(config):
        bench.put(20)
    if killed:
        store = bench.open(config)
        bench.put(10, first=20)
        store.flush()
        bench.kill()
    last, before_last = sorted(name for name, _, _ in bench.vfs.entries(LOG))[:-3:-1]
    kept = {name: bench.vfs.read_file(f"{LOG}/{name}") for name in (last, before_last)}
    for name in kept:
        bench.vfs.remove(f"{LOG}/{name}")
    before = bench.vfs.tree()
    with pytest.raises(NotAStore, match=rf"{before_last}.* is missing.*accept_lost_log"):
        bench.open(config)
    assert bench.vfs.tree() == before
    with bench.open(config, mode="r") as reader:
        paths = [getattr(problem, "path", None) for problem in reader.problems]
        assert f"{LOG}/{before_last}" in paths
    for name, data in kept.items():
        bench.vfs.replace_file(f"{LOG}/{name}", data)
    assert reopened(bench, config) == list(range(30 if killed else 20))


@pytest.mark.parametrize("killed", [False, True])
def test_a_log_goes_on_without_its_last_file_when_that_is_given_up(
    bench: Bench, killed: bool
) -> None:
    config = CONFIG.changed(layouts=CONFIG.layouts | {"tube"}, accept_lost_log=True)
    with bench.open(config) as store:
        places = bench.put(20)
        if killed:
            store.flush()
            bench.kill()
    last = log_file(places[-1] // 1000)
    bench.vfs.remove(last)
    left = [n for n, place in enumerate(places) if place // 1000 < places[-1] // 1000]
    with bench.open(config) as store:
        assert last in [getattr(problem, "path", None) for problem in store.problems]
        assert any("/tube/" in p for p in bench.vfs.tree() if "/quarantine/" in p)
        assert bodies_of(store) == left
        assert store.put_message(Message("T0", b"020")).queue_offset == 10
    for number in range(3):
        with bench.open(config) as store:
            assert store.problems == []
            assert [m.body for m in store.get_message("T0", 0, 10).messages] == [b"020"]
            if number < 2:
                continue
            assert store.put_message(Message("T1", b"021")).queue_offset == 10
    with bench.open(config) as store:
        assert store.put_message(Message("T1", b"022")).queue_offset == 11
        assert "next_offsets" not in json.loads(bench.vfs.read_file(PROGRESS))


def test_a_log_that_a_power_cut_took_before_its_first_sync_is_no_lost_one(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = bench.open()
    bench.put(3)
    dispatcher_of(store).dispatch_pending()
    bench.kill()
    bench.vfs.remove(log_file(0))
    with pytest.raises(NotAStore, match="log is not there"):
        bench.open()  # on the same boot no file goes by itself
    bench.vfs.release_locks()
    monkeypatch.setattr(bench.vfs, "boot_id", lambda: "another")
    assert reopened(bench) == []
