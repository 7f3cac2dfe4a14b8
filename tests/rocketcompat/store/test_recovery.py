"""Opening after a crash: the log's end, what is believed, damage, and what is built again (D2, D7).

Every history is looked at again after a second, clean opening: recovery leaves nothing to do.
The crash proof of the whole stack is in ``tests/proof/crash``.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

import pytest

from rocketcompat import Message
from rocketcompat.check.whole import check_store
from rocketcompat.formats import MESSAGE_PREFIX
from rocketcompat.inspect.directory import StoreDirectory
from rocketcompat.repair.rebuild import rebuild
from tests.support.crashes import some_states
from tests.support.rocket.inside import (
    dispatcher_of,
    log_of,
    parts_of,
    queues_of,
)
from tests.support.rocket.store.recovered import (
    CONFIG,
    LOG,
    LOSSES,
    PROGRESS,
    ROOT,
    Bench,
    bodies_of,
    log_file,
    open_by_another,
    reopened,
)
from tests.support.rocket.store.recovered import bench as bench
from tubestore.core.quarantine import Quarantine
from tubestore.errors import CorruptRecord, NotAStore
from tubestore.testing import FaultyVfs


def test_what_was_put_before_a_kill_is_there(bench: Bench) -> None:
    bench.open()
    bench.put(25)
    bench.kill()
    assert reopened(bench) == list(range(25))


def test_queue_offsets_go_on_after_a_kill(bench: Bench) -> None:
    bench.open()
    bench.put(25)
    bench.kill()
    with bench.open() as store:
        assert store.put_message(Message("T0", b"999")).queue_offset == 13
        assert store.put_message(Message("T1", b"998")).queue_offset == 12


def test_a_clean_opening_reads_no_record_but_the_first_bytes_of_each_file(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    with bench.open():
        bench.put(30)
    read: list[str] = []
    file_type = type(bench.vfs.open(log_file(0), writable=False))
    pread = file_type.pread

    def counted(self: Any, size: int, position: int) -> bytes:
        read.append(f"{self.path} {size}")
        return pread(self, size, position)

    monkeypatch.setattr(file_type, "pread", counted)
    with bench.open() as store:
        assert store.recovered.clean
    heads = [f"{log_file(n)} {MESSAGE_PREFIX.size}" for n in range(6)]
    assert [what for what in read if "commitlog" in what] == [*heads, f"{log_file(5)} 8"]
    assert [what for what in read if "consumequeue" in what] == []


def test_only_what_came_after_the_mark_is_verified_after_a_kill(bench: Bench) -> None:
    with bench.open():
        places = bench.put(30)
    store = bench.open()
    bench.put(3, first=30)
    bench.kill()
    store = bench.open()
    assert store.recovered.verified_from > places[-1]
    assert bodies_of(store) == list(range(33))
    store.close()


def test_a_torn_record_is_cut_and_zeroed(bench: Bench) -> None:
    bench.open()
    places = bench.put(3)
    bench.kill()
    bench.overwrite(log_file(0), places[2] + 100, b"\xff" * 20)
    store = bench.open()
    assert (store.recovered.log_end, store.recovered.damages) == (places[2], ())
    assert "checksum" in str(store.recovered.reason)
    assert not any(bench.vfs.tree()[log_file(0)][places[2] :])
    store.close()
    assert reopened(bench) == [0, 1]


def test_the_number_of_a_damaged_last_message_is_not_given_out_again(bench: Bench) -> None:
    bench.open()
    assert bench.store is not None
    bench.put(2)
    last = bench.store.put_message(Message("X", b"500"))
    bench.put(2, first=2)
    bench.store.close()
    bench.overwrite(log_file(0), last.physical_offset + 4, b"\xff" * 4)
    bench.vfs.remove(PROGRESS)  # nobody vouches for the log
    with bench.open() as store:
        assert store.put_message(Message("X", b"501")).queue_offset == 1


def test_the_last_record_that_is_damaged_after_a_kill_keeps_its_place_if_a_unit_points_there(
    bench: Bench,
) -> None:
    store = bench.open()
    places = bench.put(4)
    dispatcher_of(store).dispatch_pending()
    bench.kill()
    bench.overwrite(log_file(0), places[3] + 100, b"\xff" * 20)
    with bench.open(mode="r") as reader:
        end = reader.max_physical_offset
        (problem,) = reader.get_message("T1", 0, 1).problems
        assert "checksum" in str(problem)
    with bench.open() as store:
        assert [(gap.start, gap.end) for gap in store.recovered.damages] == [(places[3], end)]
        put = store.put_message(Message("T1", b"004", "a", "k4"))
        assert (put.queue_offset, put.physical_offset) == (2, end)
        dispatcher_of(store).dispatch_pending()
        assert bodies_of(store) == [0, 1, 2, 4]


def test_a_power_cut_may_have_torn_the_last_record_though_a_unit_points_there(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = bench.open()
    places = bench.put(4)
    dispatcher_of(store).dispatch_pending()
    bench.kill()
    bench.overwrite(log_file(0), places[3] + 100, b"\xff" * 20)
    monkeypatch.setattr(bench.vfs, "boot_id", lambda: "another")
    assert reopened(bench) == [0, 1, 2]


def test_a_unit_of_a_record_below_the_mark_that_was_zeroed_since_stays(bench: Bench) -> None:
    store = bench.open()
    places = bench.put(4)
    dispatcher_of(store).dispatch_pending()
    store.flush()
    end = store.max_physical_offset
    bench.kill()
    bench.overwrite(log_file(0), places[3], bytes(end - places[3]))
    with bench.open() as store:
        (problem,) = store.problems
        assert "T1/0@1" in str(problem)
        assert store.put_message(Message("T1", b"004")).queue_offset == 2


def test_upstream_recovery_cuts_at_the_first_bad_record(bench: Bench) -> None:
    config = CONFIG.changed(recovery="upstream")
    bench.open(config)
    places = bench.put(9)
    bench.kill()
    bench.overwrite(log_file(0), places[3] + 100, b"\xff" * 20)
    assert reopened(bench, config) == [0, 1, 2]
    assert [name for name, _, _ in bench.vfs.entries(LOG)] == [f"{0:020d}"]


def test_records_that_a_real_broker_appended_are_taken_in(bench: Bench) -> None:
    with bench.open() as store:
        bench.put(4)
        end = store.max_physical_offset
    other = Bench(bench.clock)
    with other.open():
        other.put(5)
    # As a broker leaves it: a longer log, its lock touched, no progress of ours.
    bench.overwrite(log_file(0), end, other.vfs.tree()[log_file(0)][end:])
    open_by_another(bench)
    assert reopened(bench) == list(range(5))


@pytest.mark.parametrize("layout", ["consume_queue", "index"])
def test_a_structure_that_is_switched_on_later_is_built_from_the_log(
    bench: Bench, layout: str
) -> None:
    one = {"consume_queue": "index", "index": "consume_queue"}[layout]
    with bench.open(CONFIG.changed(layouts=frozenset({one}))):
        bench.put(25)
    with bench.open() as store:
        assert bodies_of(store) == list(range(25))


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("place", [0, 1, -1])
def test_an_index_file_that_lost_its_end_is_built_again(
    bench: Bench, clean: bool, place: int
) -> None:
    store = bench.open()
    bench.put(50)
    store.flush()
    store.close() if clean else bench.kill()
    names = [name for name, _, _ in bench.vfs.entries(f"{ROOT}/index")]
    assert len(names) >= 3
    path = f"{ROOT}/index/{names[place]}"
    bench.vfs.open(path).truncate(40 + 4 * 7 + 20 * 5 + 3)
    with bench.open() as store:
        for i in range(50):
            assert len(store.query_message(f"T{i % 2}", f"k{i}").messages) == 1, i
    options = {"maxHashSlotNum": 7, "maxIndexNum": 20}
    assert list(check_store(StoreDirectory(ROOT, options, bench.vfs))) == []


@pytest.mark.parametrize("slots", [8, 1000])
def test_an_index_that_cannot_be_used_keeps_no_store_from_being_opened(
    bench: Bench, slots: int
) -> None:
    """It is built again, and what was there is kept; a reader leaves it out."""
    with bench.open():
        bench.put(50)
    before = {path: data for path, data in bench.vfs.tree().items() if "/index/" in path}
    config = CONFIG.changed(max_hash_slot_num=slots)
    with bench.open(config, mode="r") as reader:
        assert parts_of(reader).index is None
        assert "index" in str(reader.problems[0])
        assert reader.look_message(0).body.startswith(b"000")
    assert before.items() <= bench.vfs.tree().items()
    with bench.open(config) as store:
        (problem,) = store.problems
        assert isinstance(problem, CorruptRecord)
        assert bodies_of(store) == list(range(50))
    kept = f"{ROOT}/.tubestore/quarantine/1"
    after = bench.vfs.tree()
    assert {f"{kept}{path.removeprefix(ROOT)}": data for path, data in before.items()}.items() <= (
        after.items()
    )
    assert reopened(bench, config) == list(range(50))


def test_an_index_file_that_lost_only_unused_bytes_keeps_no_store_from_being_opened(
    bench: Bench,
) -> None:
    with bench.open():
        bench.put(5)
    ((name, _, _),) = bench.vfs.entries(f"{ROOT}/index")
    bench.vfs.open(f"{ROOT}/index/{name}").truncate(40 + 4 * 7 + 20 * 10)
    with bench.open(mode="r") as reader:
        assert [type(problem) for problem in reader.problems] == [CorruptRecord]
        assert reader.look_message(0).body.startswith(b"000")
    assert reopened(bench) == list(range(5))


def test_a_cut_takes_back_what_the_checkpoint_records_of_more(bench: Bench) -> None:
    with bench.open():
        for number in range(3):
            bench.clock.advance(1000)
            (last,) = bench.put(1, first=number)
    bench.vfs.remove(PROGRESS)
    torn = bench.vfs.read_file(log_file(0))[last : last + 300].rstrip(b"\0")
    bench.overwrite(log_file(0), last + 100, b"\xff" * 20)
    with bench.open() as store:
        assert store.recovered.log_end == last
        kept = store.recovered.quarantine
    copy = bench.vfs.read_file(f"{kept}/commitlog/{0:020d}@{last}")
    assert copy[last : last + 100] == torn[:100]
    assert not any(copy[:last])
    assert list(check_store(StoreDirectory(ROOT, vfs=bench.vfs))) == []


def test_a_torn_end_behind_an_own_mark_is_cut_without_a_copy(bench: Bench) -> None:
    bench.open()
    places = bench.put(3)
    bench.kill()
    bench.overwrite(log_file(0), places[2] + 100, b"\xff" * 20)
    with bench.open() as store:
        assert (store.recovered.cut_bytes > 0, store.recovered.quarantine) == (True, None)


def test_files_behind_the_end_of_a_log_that_no_mark_covers_are_kept(bench: Bench) -> None:
    with bench.open():
        places = bench.put(60)
    bench.vfs.remove(PROGRESS)
    first = places[40] // 1000
    for place in (place for place in places if place // 1000 >= first):
        bench.overwrite(log_file(place // 1000), place % 1000 + 4, b"\xff" * 4)
    bench.vfs.open(f"{ROOT}/abort", create=True).close()
    before = bench.vfs.tree()
    with bench.open() as store:
        kept = store.recovered.quarantine
        assert kept is not None
        assert store.max_physical_offset <= first * 1000
        assert bodies_of(store) == [n for n, place in enumerate(places) if place // 1000 < first]
    after = bench.vfs.tree()
    assert after[f"{kept}/commitlog/{(first + 1) * 1000:020d}"] == before[log_file(first + 1)]
    queue = "consumequeue/T0/0"
    last = bench.vfs.entries(f"{kept}/{queue}")[-1][0]
    assert after[f"{kept}/{queue}/{last}"] == before[f"{ROOT}/{queue}/{last}"]


def test_what_is_cut_after_a_clean_close_is_kept(bench: Bench) -> None:
    with bench.open() as store:
        while store.max_physical_offset < 3000 or store.max_physical_offset % 1000 > 300:
            bench.put(1)
        end = store.max_physical_offset
    last, whole = log_file(end // 1000), bench.vfs.read_file(log_file(1))
    bench.overwrite(last, end % 1000, whole[end % 1000 :])
    with bench.open() as store:
        assert store.recovered.quarantine is not None
        kept = f"{store.recovered.quarantine}/commitlog/{last[-20:]}@{end % 1000}"
    assert bench.vfs.read_file(kept)[end % 1000 :] == whole[end % 1000 :]


def test_without_room_for_what_is_dropped_opening_refuses_and_drops_nothing(bench: Bench) -> None:
    with bench.open():
        places = bench.put(3)
    bench.vfs.remove(PROGRESS)
    bench.overwrite(log_file(0), places[2] + 100, b"\xff" * 20)
    before = bench.vfs.read_file(log_file(0))
    plain, full = bench.vfs, FaultyVfs(bench.vfs)
    full.fail("pwrite", path="quarantine", error=errno.ENOSPC)
    bench.vfs = full  # type: ignore[assignment]
    with pytest.raises(OSError, match="No space"):
        bench.open()
    assert plain.read_file(log_file(0)) == before
    plain.release_locks()
    bench.vfs = plain
    assert reopened(bench) == [0, 1]


@pytest.mark.parametrize("number", [0, 1])
def test_a_queue_file_that_is_gone_since_a_clean_close_is_noticed_and_built_again(
    bench: Bench, number: int
) -> None:
    with bench.open():
        bench.put(25)
    path = f"{ROOT}/consumequeue/T0/0/{100 * number:020d}"
    bench.vfs.remove(path)
    with bench.open(mode="r") as reader:
        assert [getattr(problem, "path", None) for problem in reader.problems] == [path]
    with bench.open() as store:
        assert [getattr(problem, "path", None) for problem in store.problems] == [path]
        assert bodies_of(store) == list(range(25))
    with bench.open() as store:
        assert store.problems == []
        assert store.recovered.clean


def test_first_files_that_retention_deleted_are_not_missed(bench: Bench) -> None:
    with bench.open() as store:
        bench.put(40)
        dispatcher_of(store).dispatch_pending()
        for _ in range(4):
            log_of(store).queue.delete_oldest()
        assert queues_of(store).expire(store.min_physical_offset) > 0
    for _ in range(2):
        with bench.open() as store:
            assert (store.problems, store.recovered.clean) == ([], True)


@pytest.mark.parametrize("clean", [True, False])
def test_a_log_file_that_is_gone_between_others_is_reported_until_it_is_back(
    bench: Bench, clean: bool
) -> None:
    store = bench.open()
    places = bench.put(30)
    store.flush()
    if clean:
        store.close()
    else:
        bench.kill()
    lost = [number for number, place in enumerate(places) if place // 1000 == 2]
    left = [number for number in range(30) if number not in lost]
    path = log_file(2)
    data = bench.vfs.read_file(path)
    bench.vfs.remove(path)
    for mode in ("r", "w", "w", "r"):
        with bench.open(mode=mode) as store:
            assert [getattr(problem, "path", None) for problem in store.problems] == [path]
            if mode == "w":
                assert [(gap.path, gap.position) for gap in store.recovered.damages] == [(path, 0)]
            bodies = [int(b[:3]) for batch in store.scan() for b in batch["body"].to_pylist()]
            assert bodies == left
            pages = [store.read_queue("T0", 0, 0), store.read_queue("T0", 0, 5)]
            assert len({str(p) for page in pages for p in page.problems}) >= 1
            assert {p.path for page in pages for p in page.problems} == {path}
            units = [n // 2 for n in lost if n % 2 == 0]
            pulled = [store.get_message("T0", 0, unit) for unit in units]
            assert all(result.problems for result in pulled)
            with pytest.raises(CorruptRecord, match="missing"):
                store.look_message(places[lost[0]])
    with bench.open() as store:
        assert store.put_message(Message("T0", b"030")).queue_offset == 15
    bench.vfs.replace_file(path, data)
    with bench.open() as store:
        assert store.problems == []
        assert store.max_offset_in_queue("T0", 0) == 16
        assert [r.num_rows for r in [store.read_queue("T0", 0, 5).batch]] == [5]


def test_a_scan_reports_a_log_file_that_lost_all_its_bytes_while_it_was_open(
    bench: Bench,
) -> None:
    with bench.open():
        bench.put(30)
    with bench.open(mode="r") as reader:
        bench.vfs.open(log_file(1)).truncate(0)
        with pytest.raises(CorruptRecord, match="the file has 0 bytes"):
            list(reader.scan())


@pytest.mark.parametrize("mode", ["r", "w"])
def test_a_log_that_lost_its_first_file_since_a_clean_close_is_a_problem_once(
    bench: Bench, mode: str
) -> None:
    with bench.open():
        bench.put(30)
    bench.vfs.remove(log_file(0))
    findings = list(check_store(StoreDirectory(ROOT, vfs=bench.vfs)))
    assert [f["path"] for f in findings if f["reason"] == "file_missing"] == [log_file(0)]
    with bench.open(mode=mode) as store:
        (problem,) = store.problems
        assert (problem.path, "1000 bytes: " in str(problem)) == (log_file(0), True)
    if mode == "w":
        with bench.open() as store:
            assert store.problems == []


def test_a_log_that_retention_shortened_is_no_problem(bench: Bench) -> None:
    with bench.open() as store:
        bench.put(30)
        bench.clock.advance(80 * 3_600_000)
        assert any(verdict.delete for verdict in store.clean())
    assert not bench.vfs.exists(log_file(0))
    for mode in ("r", "w"):
        with bench.open(mode=mode) as store:
            assert store.problems == []
    findings = check_store(StoreDirectory(ROOT, vfs=bench.vfs))
    assert [f for f in findings if f["reason"] == "file_missing"] == []


@pytest.mark.parametrize(
    ("lost", "loss"),
    [(None, "removed"), *((n, x) for n in (0, 1, -1) for x in ("removed", "emptied", "zeroed"))],
)
@pytest.mark.parametrize("killed", [False, True])
def test_an_index_that_is_gone_is_a_problem_and_built_again(
    bench: Bench, killed: bool, lost: int | None, loss: str
) -> None:
    store = bench.open()
    for first in range(0, 50, 5):  # a file is named by the time of its creation
        bench.put(5, first=first)
        store.flush()
        bench.clock.advance(1000)
    if killed:
        bench.kill()
    else:
        store.close()
    names = [name for name, _, _ in bench.vfs.entries(f"{ROOT}/index")]
    assert len(names) > 2
    for name in names if lost is None else [names[lost]]:
        lose = LOSSES[loss]
        if lose is None:
            bench.vfs.remove(f"{ROOT}/index/{name}")
        else:
            lose(bench.vfs.open(f"{ROOT}/index/{name}"))
    path = f"{ROOT}/index"
    with bench.open(mode="r") as reader:
        assert [getattr(problem, "path", None) for problem in reader.problems] == [path]
    with bench.open() as store:
        assert [getattr(problem, "path", None) for problem in store.problems] == [path]
        assert bodies_of(store) == list(range(50))
    for mode in ("r", "w"):
        with bench.open(mode=mode) as store:
            assert store.problems == []
            for n in range(50):
                assert [m.body[:3] for m in store.query_message(f"T{n % 2}", f"k{n}")] == [
                    b"%03d" % n
                ]


def test_a_pull_and_a_query_report_a_damaged_body_instead_of_leaving_it_out(bench: Bench) -> None:
    with bench.open():
        places = bench.put(5)
    at = bench.vfs.read_file(log_file(0)).index(b"002xxx")
    bench.overwrite(log_file(0), at + 10, b"y")
    with bench.open(mode="r") as reader:
        for found in (reader.get_message("T0", 0, 1, 1), reader.query_message("T0", "k2")):
            assert found.messages == []
            (problem,) = found.problems
            assert (problem.position, "checksum" in str(problem)) == (places[2], True)


def test_reads_of_columns_with_verify_report_a_damaged_body(bench: Bench) -> None:
    with bench.open():
        places = bench.put(6)
    at = bench.vfs.read_file(log_file(0)).index(b"002xxx")
    bench.overwrite(log_file(0), at + 10, b"y")
    with bench.open(mode="r") as reader:
        assert reader.read_queue("T0", 0).problems == []
        one = reader.read_queue("T0", 0, verify=True)
        many = reader.read_queues({("T0", 0): 0, ("T1", 0): 0}, verify=True)
        for page, rows in ((one, [0, 4]), (many, [0, 1, 3, 4, 5])):
            assert [problem.position for problem in page.problems] == [places[2]]
            assert "checksum" in str(page.problems[0])
            found = [places.index(n) for n in page.batch["physical_offset"].to_pylist()]
            assert found == rows
        assert reader.query_messages("T0", ["k2", "k4"]).num_rows == 2
        assert reader.query_messages("T0", ["k4"], verify=True).num_rows == 1
        with pytest.raises(CorruptRecord, match="checksum"):
            reader.query_messages("T0", ["k2", "k4"], verify=True)


def test_a_killed_opening_keeps_the_queue_offsets_of_a_log_that_was_given_up(
    bench: Bench,
) -> None:
    config = CONFIG.changed(accept_lost_log=True)
    with bench.open(config):
        places = bench.put(20)
    bench.vfs.remove(log_file(places[-1] // 1000))
    bench.open(config)
    bench.kill()
    directory_of_log = StoreDirectory(ROOT, vfs=bench.vfs)
    quarantine = Quarantine(bench.vfs, ROOT)
    list(rebuild(directory_of_log, ["consumequeue"], clock=bench.clock, quarantine=quarantine))
    with bench.open() as store:
        assert store.put_message(Message("T0", b"020")).queue_offset == 10


def test_a_record_that_was_cut_after_a_clean_close_keeps_its_queue_offset(bench: Bench) -> None:
    with bench.open():
        places = bench.put(20)
    bench.overwrite(log_file(places[-1] // 1000), places[-1] % 1000, b"\xff" * 8)
    for _ in range(2):
        with bench.open():
            pass
    with bench.open() as store:
        assert store.put_message(Message("T1", b"020")).queue_offset == 10


def test_a_store_of_dledger_is_refused_by_name(bench: Bench) -> None:
    with bench.open():
        bench.put(3)
    bench.vfs.make_directories(f"{ROOT}/dledger-n0/data")
    for mode in ("r", "w"):
        with pytest.raises(NotAStore, match=r"DLedger \(dledger-n0\)"):
            bench.open(mode=mode)
    with pytest.raises(NotAStore, match="DLedger"):
        StoreDirectory(ROOT, vfs=bench.vfs)


def test_a_log_of_dledgers_entries_is_refused_by_name(bench: Bench) -> None:
    with bench.open():
        bench.put(1)
    record = bench.vfs.read_file(log_file(0))[:200]
    bench.vfs.remove(PROGRESS)
    entry = b"\0\0\0\1" + bytes(44) + record[:28] + (48).to_bytes(8, "big") + record[36:]
    bench.overwrite(log_file(0), 0, entry)
    before = bench.vfs.tree()
    for mode in ("r", "w"):
        with pytest.raises(NotAStore, match="DLedger"):
            bench.open(mode=mode)
    with pytest.raises(NotAStore, match="DLedger"):
        StoreDirectory(ROOT, vfs=bench.vfs)
    assert bench.vfs.tree() == before


# -- stores without marks of ours: where a broker's recovery begins -----------------
def log_files_read(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> dict[int, int]:
    """Return the bytes that are read of each file of the log from now on, by its number."""
    read: dict[int, int] = {}
    file_type = type(bench.vfs.open(log_file(0), writable=False))
    pread = file_type.pread

    def counted(self: Any, size: int, position: int) -> bytes:
        data = pread(self, size, position)
        if "/commitlog/" in self.path:
            number = int(self.path.rpartition("/")[2]) // 1000
            read[number] = read.get(number, 0) + len(data)
        return data

    monkeypatch.setattr(file_type, "pread", counted)
    return read


@pytest.mark.parametrize("mode", ["r", "w"])
def test_of_a_clean_store_of_a_broker_the_last_three_files_are_read(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    with bench.open():
        bench.put(60)
    open_by_another(bench)
    files = len(bench.vfs.entries(LOG))
    assert files > 6
    read = log_files_read(bench, monkeypatch)
    store = bench.open(mode=mode)
    # Of the file before only the records of the queues' last units are looked at.
    looked_at = {number for number, size in read.items() if size >= 800}
    assert looked_at == set(range(files - 3, files))
    monkeypatch.undo()
    if mode == "w":
        assert bodies_of(store) == list(range(60))
        assert store.recovered.verified_from == (files - 3) * 1000
    store.close()


@pytest.mark.parametrize("mode", ["r", "w"])
def test_after_a_crash_of_a_broker_its_checkpoint_reports_where_to_begin(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    bench.open()
    for number in range(60):
        bench.clock.advance(1000)
        bench.put(1, first=number)
        if number == 40:
            assert bench.store is not None
            bench.store.flush()
    dispatcher_of(bench.store).dispatch_pending()  # type: ignore[union-attr]
    bench.kill()
    bench.vfs.remove(PROGRESS)
    read = log_files_read(bench, monkeypatch)
    store = bench.open(mode=mode)
    # Of the file before only the records of the queues' last units are looked at.
    looked_at = {number for number, size in read.items() if size >= 800}
    assert 0 < min(looked_at) <= 40 // 5
    assert looked_at == set(range(min(looked_at), len(bench.vfs.entries(LOG))))
    monkeypatch.undo()
    if mode == "w":
        assert bodies_of(store) == list(range(60))
    store.close()


def test_a_crashed_store_with_an_empty_checkpoint_is_read_whole(bench: Bench) -> None:
    bench.open()
    bench.put(30)
    bench.kill()
    bench.vfs.remove(PROGRESS)
    with bench.open() as store:
        assert store.recovered.verified_from == 0
        assert bodies_of(store) == list(range(30))


def lose_units(bench: Bench, name: str) -> None:
    """Zero the units of a queue's last two files, as a broker leaves them that did not sync."""
    queue = f"{ROOT}/consumequeue/{name}/0"
    for file, _, _ in bench.vfs.entries(queue)[-4:]:
        bench.overwrite(f"{queue}/{file}", 0, bytes(100))


def lose_first_file(bench: Bench, name: str) -> None:
    bench.vfs.remove(f"{ROOT}/consumequeue/{name}/0/{0:020d}")


def lose_a_middle_file(bench: Bench, name: str) -> None:
    bench.vfs.remove(f"{ROOT}/consumequeue/{name}/0/{200:020d}")


@pytest.mark.parametrize("lose", [lose_units, lose_first_file, lose_a_middle_file])
def test_queues_that_do_not_join_the_last_files_of_a_log_are_built_from_its_beginning(
    bench: Bench, lose: Callable[[Bench, str], None]
) -> None:
    with bench.open():
        bench.put(60)
    open_by_another(bench)
    lose(bench, "T0")
    assert reopened(bench) == list(range(60))


def test_without_queues_the_log_shows_the_next_queue_offsets(bench: Bench) -> None:
    config = CONFIG.changed(layouts=frozenset())
    for clean in (True, False):
        store = bench.open(config)
        bench.put(5)
        store.close() if clean else bench.kill()
    with bench.open(config) as store:
        assert store.put_message(Message("T0")).queue_offset == 6


def test_files_beyond_the_end_are_removed(bench: Bench) -> None:
    bench.open()
    bench.put(3)
    bench.kill()
    for number in (1, 2):  # as a broker allocates them ahead
        bench.vfs.open(log_file(number), create=True).truncate(1000)
    assert reopened(bench) == [0, 1, 2]
    assert [name for name, _, _ in bench.vfs.entries(LOG)] == [f"{0:020d}"]


@pytest.mark.gate
def test_recovery_may_be_interrupted_at_every_write(bench: Bench) -> None:
    bench.open()
    bench.put(12)
    assert bench.store is not None
    bench.store.flush()
    places = bench.put(3, first=12)
    dispatcher_of(bench.store).dispatch_pending()
    bench.kill()
    bench.overwrite(log_file(places[1] // 1000), places[1] % 1000 + 100, b"\xff" * 9)
    journal = bench.vfs.record()
    expected = reopened(bench)
    for state in some_states(journal, 50, seed=1, kinds=("kill",)):
        again = Bench(bench.clock)
        again.vfs = state.vfs(bench.clock)
        assert reopened(again) == expected


def test_a_reader_reports_messages_that_a_killed_writer_did_not_add_to_queues(
    bench: Bench,
) -> None:
    store = bench.open()
    bench.put(3)
    dispatcher_of(store).dispatch_pending()
    bench.put(4, first=3)
    with bench.open(mode="r") as reader:
        assert reader.problems == []  # the writer is at work
    bench.store = store
    bench.kill()
    with bench.open(mode="r") as reader:
        (problem,) = reader.problems
        assert isinstance(problem, CorruptRecord)
        assert problem.path == f"{ROOT}/consumequeue"
        assert "2 queues, the first is T0/0, lack the newest 4 messages" in str(problem)
        assert reader.max_offset_in_queue("T0", 0) == 2
    with bench.open() as store:
        assert store.problems == []
    with bench.open(mode="r") as reader:
        assert reader.problems == []
