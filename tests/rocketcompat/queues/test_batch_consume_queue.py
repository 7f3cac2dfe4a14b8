"""Queues of inner batches: written, read, recovered; beside those of a real 5.3.3."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rocketcompat
from rocketcompat import BatchItem, GetMessageStatus, Message
from rocketcompat.formats import SYS_FLAG_INNER_BATCH
from rocketcompat.queues.batch_consume_queue import BatchConsumeQueue
from rocketcompat.queues.units import LogMinimum, batch_units
from rocketcompat.record.batches import decode_items, encode_items
from rocketcompat.store.default_message_store import DefaultMessageStore
from tests.support.golden import GoldenFactory, Row
from tests.support.golden_puts import Again, as_map, body_of, files_of
from tests.support.inner_batches import CONFIG, batch, opened, put_some, queue_of, rows_of
from tests.support.rocket.golden import config_of, open_golden
from tests.support.rocket.inside import dispatcher_of, log_of, opened_of, queues_of
from tubestore.clock import ManualClock
from tubestore.core.vfs import Vfs
from tubestore.errors import NotAStore
from tubestore.testing import MemoryVfs, crash_states

# -- beside the real one -----------------------------------------------------------------------


def inner_message(row: Row) -> Message:
    """The message of a put of the scenario, of which the store gives INNER_BASE."""
    given = row["in"]
    items = [BatchItem(body_of(i), properties=as_map(i["properties"])) for i in given["inner"]]
    return Message(
        given["topic"], encode_items(items, CONFIG), properties=as_map(given["properties"]),
        queue_id=given["queueId"], flag=given["flag"], sys_flag=given["sysFlag"],
        born_timestamp=given["bornTimestamp"], born_host="10.1.2.3:45678",
        store_host="192.168.0.9:10911",
    )  # fmt: skip


def test_the_golden_puts_make_the_same_log_and_the_same_queues(
    golden: GoldenFactory, tmp_path: Path
) -> None:
    theirs = golden("rocketmq", "5.3.3", "batchcq")
    again = Again(theirs, tmp_path / "again", batch_topics=frozenset({"BcqTopic"}))
    for row in theirs.puts():
        again.put(row, inner_message(row) if "inner" in row["in"] else None)
    again.check_records()
    again.close("consumequeue", "batchconsumequeue")


def test_a_store_of_the_real_class_opens_to_write_and_its_queues_stay_as_they_are(
    golden: GoldenFactory,
) -> None:
    theirs = golden("rocketmq", "5.3.3", "batchcq")
    before = files_of(theirs.store, "batchconsumequeue")
    shown = {
        (row["topic"], row["queueId"]): (row["minOffset"], row["maxOffset"])
        for row in theirs.expected(type="queue")
    }
    with open_golden(theirs) as store:
        assert store.problems == []
        rows = store.queue_table().to_pylist()
        assert {(r["topic"], r["queue_id"]): (r["min_offset"], r["max_offset"]) for r in rows} == (
            shown
        )
        put = store.put_inner_batch(batch(4, queue_id=1, topic="BcqTopic"))
        assert put.queue_offset == shown["BcqTopic", 1][1]
    after = files_of(theirs.store, "batchconsumequeue")
    assert sorted(after) == sorted(before)
    changed = [name for name in before if before[name] != after[name]]
    assert changed == ["batchconsumequeue/BcqTopic/1/00000000000000000460"]


@pytest.mark.parametrize("lost", ["batchconsumequeue", "batchconsumequeue/BcqTopic/1"])
def test_lost_queues_are_built_again_as_they_were(golden: GoldenFactory, lost: str) -> None:
    theirs = golden("rocketmq", "5.3.3", "batchcq")
    before = files_of(theirs.store, "batchconsumequeue")
    shutil.rmtree(theirs.store / lost)
    options = {"batch_topics": frozenset({"BcqTopic"})}
    open_golden(theirs, **options).close()
    assert files_of(theirs.store, "batchconsumequeue") == before
    shutil.rmtree(theirs.store / lost)
    with open_golden(theirs, **options) as store:  # closed cleanly by ours, this time
        assert store.max_offset_in_queue("BcqTopic", 1) == 50
    assert files_of(theirs.store, "batchconsumequeue") == before


def test_pulls_are_answered_as_the_real_class_answers(golden: GoldenFactory) -> None:
    theirs = golden("rocketmq", "5.3.3", "batchcq")
    asked = list(theirs.queries(type="get", topic="BcqTopic"))
    assert len(asked) >= 12
    with open_golden(theirs, "r") as store:
        for row in asked:
            where = row["topic"], row["queueId"], row["offset"]
            got = store.get_message(*where, row["max"], row["sub"])
            assert got.status.value == row["status"], row
            assert got.next_begin_offset == row["nextBeginOffset"], row
            assert (got.min_offset, got.max_offset) == (row["minOffset"], row["maxOffset"]), row
            assert got.queue_offsets == row.get("queueOffsets", []), row
            assert got.physical_offsets == row.get("physicalOffsets", []), row


def test_every_message_of_every_batch_is_found_by_its_queue_offset(golden: GoldenFactory) -> None:
    theirs = golden("rocketmq", "5.3.3", "batchcq")
    count = 0
    with open_golden(theirs, "r") as store:
        for row in theirs.puts():
            given, out = row["in"], row["out"]
            if given["topic"] != "BcqTopic":
                continue
            queue = queue_of(store, given.get("queueId", 0), "BcqTopic")
            items = given.get("inner")
            wanted = [body_of(item) for item in items] if items else [body_of(given)]
            for number, body in enumerate(wanted):
                unit = queue.unit(out["logicsOffset"] + number)
                assert unit.physical_offset == out["wroteOffset"]
                assert unit.base_offset == out["logicsOffset"]
                assert unit.batch_size == len(wanted)
                record = store.look_message(unit.physical_offset)
                inner = decode_items(record.body)[number].body if items else record.body
                assert inner == body
                count += 1
            assert queue.unit(queue.max_offset) is None
            assert queue.unit(-1) is None
    assert count > 40


# -- by themselves -----------------------------------------------------------------------------


def test_a_batch_is_one_record_that_takes_as_many_queue_offsets(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        first, second = store.put_inner_batch(batch(3)), store.put_inner_batch(batch(2))
        plain = store.put_message(Message("B", b"x"))
        assert [first.queue_offset, second.queue_offset, plain.queue_offset] == [0, 3, 5]
        record = store.look_message(second.physical_offset)
        assert record.sys_flag & SYS_FLAG_INNER_BATCH
        assert (record.properties["INNER_NUM"], record.properties["INNER_BASE"]) == ("2", "3")
        bodies = [item.body for item in decode_items(record.body)]
        assert bodies == [b"item 0 of 2", b"item 1 of 2"]
        dispatcher_of(store).dispatch_pending()
        assert [row[1:] for row in rows_of(store)] == [(0, 3), (3, 2), (5, 1)]
        assert store.max_offset_in_queue("B", 0) == 6
        assert not (tmp_path / "consumequeue" / "B").exists()


def test_pulls_take_whole_batches_and_go_on_behind_them(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        put_some(store)
        assert store.max_offset_in_queue("B", 0) == 23
        got = store.get_message("B", 0, 1, 8)  # in the middle of the first
        assert got.queue_offsets == [0, 3, 4]  # 3 + 1 + 1; 5 more would be too many
        assert got.next_begin_offset == 5
        seen, offset = [], 0
        while (got := store.get_message("B", 0, offset)).status is GetMessageStatus.FOUND:
            seen += got.queue_offsets
            offset = got.next_begin_offset
        assert (seen, offset) == ([0, 3, 4, 5, 10, 12, 16, 22], 23)
        assert store.get_message("B", 0, 0, 2).queue_offsets == [0]  # one always
        assert store.get_message("B", 0, 0, tags="P").queue_offsets == [4]
        assert store.message_store_timestamp("B", 0, 9) is not None


def test_the_store_time_of_a_batch_is_that_of_all_of_it(tmp_path: Path) -> None:
    clock = ManualClock(1000)
    with opened(tmp_path, clock=clock) as store:
        for count in (3, 2, 4):
            store.put_inner_batch(batch(count))
            clock.advance(1000)
        dispatcher_of(store).dispatch_pending()
        found = [store.offset_in_queue_by_time("B", 0, ms, "lower") for ms in (1, 1000, 1001, 9999)]
        assert found == [0, 0, 3, 9]


@pytest.mark.parametrize("clean", [True, False])
def test_the_next_batch_goes_on_where_the_last_ended(tmp_path: Path, clean: bool) -> None:
    store = opened(tmp_path)
    put_some(store)
    before = rows_of(store)
    store.close()
    if not clean:
        (tmp_path / "abort").touch()
        shutil.rmtree(tmp_path / ".tubestore")
    plain = CONFIG.changed(batch_topics=frozenset())  # the directory says which they are
    with opened(tmp_path, plain) as store:
        assert rows_of(store) == before
        assert store.put_inner_batch(batch(2)).queue_offset == 23
        assert store.recovered.clean is clean


def test_the_topics_of_batches_are_told_by_topics_json(tmp_path: Path) -> None:
    config = CONFIG.changed(batch_topics=frozenset())
    (tmp_path / "config").mkdir()
    table = {
        "B": {"topicName": "B", "attributes": {"queue.type": "BatchCQ"}},
        "T": {"topicName": "T"},
    }
    (tmp_path / "config" / "topics.json").write_text(json.dumps({"topicConfigTable": table}))
    with opened(tmp_path, config) as store:
        assert store.config.batch_topics == {"B"}
        put_some(store)
        assert store.max_offset_in_queue("B", 0) == 23


def test_a_topic_with_queues_of_both_kinds_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path, CONFIG.changed(batch_topics=frozenset())) as store:
        store.put_message(Message("B", b"x"))
    with pytest.raises(NotAStore, match="topic of batches"):
        opened(tmp_path)


def test_expired_files_go_with_the_log(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        for _ in range(6):
            put_some(store)
        end = store.max_offset_in_queue("B", 0)
        while len(log_of(store).queue.files) > 1:
            log_of(store).queue.delete_oldest()
        minimum = store.min_physical_offset
        batches = queues_of(store).batches  # type: ignore[union-attr]
        assert batches is not None
        assert batches.expire(minimum) > 2
        queue = queue_of(store)
        assert store.look_message(queue.unit(queue.min_offset).physical_offset).topic == "B"
        first = queue.min_offset
        assert 0 < first < queue.max_offset == end
    shutil.rmtree(tmp_path / ".tubestore")
    with opened(tmp_path) as store:
        assert (queue_of(store).min_offset, queue_of(store).max_offset) == (first, end)


def test_a_queue_is_synced_when_enough_of_its_pages_are_dirty(
    memory_vfs: MemoryVfs, clock: ManualClock
) -> None:
    config = CONFIG.changed(mapper_file_size_batch_consume_queue=46 * 500)
    with opened("/s", config, vfs=memory_vfs, clock=clock) as store:
        for number in range(180):  # 8,280 bytes of units: two borders of pages
            store.put_message(Message("B", b"x"))
            if number == 100:
                dispatcher_of(store).dispatch_pending()
                assert queue_of(store).dirty_pages == 1
        dispatcher_of(store).dispatch_pending()
        assert queue_of(store).dirty_pages == 2
        clock.advance(config.flush_interval_consume_queue)
        opened_of(store).flusher.flush_due()
        assert queue_of(store).dirty_pages == 0


def test_a_reader_sees_what_the_writer_has_put_since(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        put_some(store)
        with rocketcompat.open(tmp_path, "r", CONFIG) as reader:
            assert reader.max_offset_in_queue("B", 0) == 23
            put_some(store)
            reader.refresh()
            assert reader.max_offset_in_queue("B", 0) == 46


@pytest.mark.gate
def test_queues_and_log_agree_in_every_crash_state(
    memory_vfs: MemoryVfs, clock: ManualClock
) -> None:
    journal = memory_vfs.record()
    store = opened("/s", vfs=memory_vfs, clock=clock)
    for _ in range(2):
        put_some(store)
        store.flush()
        put_some(store, (2, 3))
        store.close()
        store = opened("/s", vfs=memory_vfs, clock=clock)
    store.close()
    states = crash_states(journal, seed=5, variants=(0, 1, 4, 5), steps=lambda s: s % 3 == 0)
    count = 0
    for state in states:
        with opened("/s", vfs=state.vfs(clock), clock=clock) as again:
            dispatcher_of(again).dispatch_pending()
            if log_of(again).gaps:  # what a power cut tore, and left sound records behind
                continue
            wanted = rows_in_log(again)
            assert wanted == (rows_of(again) if wanted else []), state
            put = again.put_inner_batch(batch(2))
            assert put.queue_offset == sum(row[2] for row in wanted), state
        count += 1
    assert count > 100


def rows_in_log(store: DefaultMessageStore) -> list[tuple[int, int, int]]:
    """What the units of B/0 have to be, from the records themselves."""
    rows, position, size = [], store.min_physical_offset, CONFIG.mapped_file_size_commit_log
    while position < store.max_physical_offset:
        if log_of(store).read_at(position, 8)[4:] == bytes.fromhex("cbd43194"):
            position += size - position % size
            continue
        record = store.look_message(position)
        if record.topic == "B":
            count = int(record.properties.get("INNER_NUM", "1"))
            rows.append((position, record.queue_offset, count))
        position += record.size
    return rows


def test_stale_units_behind_a_cut_are_zeroed_and_do_not_come_back(
    memory_vfs: MemoryVfs,
) -> None:
    memory_vfs.make_directories("/q")
    queue = make_queue(memory_vfs)
    queue.put_rows(units(range(12)))
    queue.recover(keep_below=350)
    assert [*queue.units()["physical_offset"]] == [0, 100, 200, 300]
    assert (queue.max_offset, queue.max_physical_offset) == (8, 300)
    files = memory_vfs.tree()
    assert sorted(files) == [f"/q/T/0/{0:020d}"]
    assert not any(files[f"/q/T/0/{0:020d}"][4 * 46 :])
    queue.put_rows(units(range(2, 6)))  # two of them are there
    assert [*queue.units()["physical_offset"]] == [0, 100, 200, 300, 400, 500]
    again = make_queue(memory_vfs)
    assert (again.min_offset, again.max_offset) == (0, 12)


@pytest.mark.parametrize(
    ("place", "name", "value"),
    [(3, "size", 0), (3, "batch_size", -1), (4, "base_offset", 5), (7, "physical_offset", 100),
     (5, "physical_offset", 0), (6, "base_offset", -4)],
)  # fmt: skip
def test_recovery_cuts_at_the_first_unit_that_cannot_be_right(
    memory_vfs: MemoryVfs, place: int, name: str, value: int
) -> None:
    found = units(range(12))
    found[name][place] = value
    memory_vfs.make_directories("/q/T/0")
    memory_vfs.open(f"/q/T/0/{0:020d}", create=True).pwrite(found.tobytes(), 0)
    queue = make_queue(memory_vfs, len(found))
    queue.recover(keep_below=1 << 40)
    assert [*queue.units()["physical_offset"]] == [100 * n for n in range(place)]


def test_a_last_file_that_does_not_go_on_behind_the_one_before_is_cut_off(
    memory_vfs: MemoryVfs,
) -> None:
    found = units(range(7))
    found["base_offset"][5] = 3
    memory_vfs.make_directories("/q/T/0")
    for start in (0, 5):
        file = memory_vfs.open(f"/q/T/0/{start * 46:020d}", create=True)
        file.pwrite(found[start : start + 5].tobytes(), 0)
        file.truncate(5 * 46)
    queue = make_queue(memory_vfs)
    queue.recover(keep_below=1 << 40)
    assert len(queue.units()) == 5
    assert not any(memory_vfs.read_file(f"/q/T/0/{5 * 46:020d}"))


def make_queue(vfs: Vfs, units_a_file: int = 5) -> BatchConsumeQueue:
    size = units_a_file * 46
    return BatchConsumeQueue(vfs, "/q", "T", 0, file_size=size, log_minimum=LogMinimum())


def units(numbers: Any) -> Any:
    """Units of two messages each, 100 bytes apart."""
    places = np.array(list(numbers), np.int64)
    return batch_units(places * 100, 100, 7, 1000, places * 2, 2)


@pytest.mark.parametrize(
    ("first", "end"), [(0, 1), (0, 5), (2, 4), (3, 7), (4, 5), (5, 10), (9, 11)]
)
def test_reads_go_on_behind_places_without_a_unit_and_report_them(
    memory_vfs: MemoryVfs, first: int, end: int
) -> None:
    """A file that is zeroed in part; each unit has two messages."""
    queue = make_queue(memory_vfs)
    queue.put_rows(units(range(13)))
    for place in range(first, end):
        path = f"/q/T/0/{place // 5 * 5 * 46:020d}"
        memory_vfs.open(path).pwrite(bytes(46), place % 5 * 46)
    again = make_queue(memory_vfs)
    for start in range(26):
        offset, found, missing = start, [], []
        while offset < 26:
            rows, bases = again.spans(offset, 100)
            sound = rows["size"] > 0
            begins = np.array(bases[:-1])
            found += begins[sound].tolist()
            if not sound.all():
                missing += range(max(start, begins[~sound][0]), bases[-1])
            assert bases[-1] > offset
            offset = bases[-1]
        assert offset == again.max_offset
        assert len(again.spans(offset, 100)[0]) == 0
        assert again.spans(offset, 100)[1] == [offset]
        lost = [n for n in range(2 * first, 2 * end) if n >= start]
        assert (missing, found) == (lost, [n for n in range(start - start % 2, 26, 2)
                                          if not first <= n // 2 < end])  # fmt: skip


def test_a_queue_that_is_not_there_is_empty(memory_vfs: MemoryVfs) -> None:
    queue = make_queue(memory_vfs)
    assert (queue.min_offset, queue.max_offset, queue.unit(0)) == (-1, 0, None)
    assert queue.spans(0, 10)[1] == [0]
    assert queue.max_physical_offset == -1


def test_the_newest_store_of_the_real_class_lists_its_options(
    golden: GoldenFactory,
) -> None:
    theirs = golden("rocketmq", "5.3.3", "batchcq")
    assert config_of(theirs).mapper_file_size_batch_consume_queue == 460
