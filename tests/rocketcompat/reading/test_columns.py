"""Reads of many records at once: the same records that one-by-one reads give, as columns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import rocketcompat
from rocketcompat import Message
from rocketcompat.commitlog.walk import gap_of
from rocketcompat.formats import CQ_UNIT
from rocketcompat.record.arrow import RECORD_SCHEMA
from rocketcompat.store.default_message_store import DefaultMessageStore
from tests.support.rocket.files.scanned import CONFIG, COUNT, as_rows, assert_same, opened
from tests.support.rocket.files.scanned import store as store
from tests.support.rocket.inside import dispatcher_of, log_of
from tubestore.clock import ManualClock
from tubestore.errors import CorruptRecord, InvalidMessage
from tubestore.testing import MemoryVfs


@pytest.mark.parametrize("verify", [False, True])
def test_a_scan_gives_every_record_once_and_whole(store: DefaultMessageStore, verify: bool) -> None:
    rows = as_rows(store.scan(verify=verify))
    assert [row["flag"] for row in rows] == list(range(COUNT))
    assert len(log_of(store).queue.files) > 2
    for row in rows:
        assert_same(store, row)


def test_topics_of_one_length_and_topics_that_are_no_ascii_are_distinguished(
    tmp_path: Path,
) -> None:
    topics = ["Ta", "Tb", "ä", "Tc", "Tc"]
    with opened(tmp_path) as store:
        for topic in topics:
            store.put_message(Message(topic, b"x"))
        for topic in topics[:2] + topics[3:]:
            store.put_message(Message(topic, b"x"))
        for _ in range(3):
            store.put_message(Message("ä", b"x"))
        dispatcher_of(store).dispatch_pending()
        places = [row["physical_offset"] for row in as_rows(store.scan())]
        expected = [*topics, "Ta", "Tb", "Tc", "Tc", "ä", "ä", "ä"]
        assert [row["topic"] for row in as_rows(store.scan())] == expected
        for first, end in ((0, 2), (3, 5), (5, 9), (9, 12)):
            part = as_rows(store.scan(places[first], places[end - 1] + 1))
            assert [row["topic"] for row in part] == expected[first:end]


def test_a_scan_of_a_part_has_what_begins_there(store: DefaultMessageStore) -> None:
    places = [row["physical_offset"] for row in as_rows(store.scan())]
    rows = as_rows(store.scan(places[10], places[200] + 1))
    assert [row["physical_offset"] for row in rows] == places[10:201]
    assert as_rows(store.scan(places[-1])) == as_rows(store.scan())[-1:]
    assert as_rows(store.scan(places[5], places[5])) == []


def test_a_scan_reports_where_a_record_is_unsound(store: DefaultMessageStore) -> None:
    places = [row["physical_offset"] for row in as_rows(store.scan())]
    body = log_of(store).read_at(places[3], 200).find(b"body")
    log_of(store).queue.files[0].write_at(places[3] + body, b"B")
    assert len(as_rows(store.scan())) == COUNT
    with pytest.raises(CorruptRecord, match="checksum") as raised:
        list(store.scan(verify=True))
    assert raised.value.position == places[3]
    log_of(store).queue.files[0].write_at(places[2] + 4, b"\xff")
    with pytest.raises(CorruptRecord) as raised:
        list(store.scan())
    assert raised.value.position == places[2]


def test_a_scan_passes_over_damage_that_is_known(store: DefaultMessageStore) -> None:
    places = [row["physical_offset"] for row in as_rows(store.scan())]
    file = log_of(store).queue.files[0]
    file.write_at(places[2] + 4, b"\xff")
    log_of(store).note_gap(gap_of(log_of(store).queue, places[2], places[3], "no record"))
    assert [row["flag"] for row in as_rows(store.scan())] == [0, 1, *range(3, COUNT)]
    assert next(row["flag"] for row in as_rows(store.scan(places[2]))) == 3


def test_a_queue_is_read_page_by_page_to_its_end(store: DefaultMessageStore) -> None:
    offset, rows, pages = 0, [], 0
    while offset < store.max_offset_in_queue("T", 1):
        page = store.read_queue("T", 1, offset, 7)
        assert page.next_offset > offset
        assert page.problems == []
        rows += as_rows([page.batch])
        offset, pages = page.next_offset, pages + 1
    pulled = store.get_message("T", 1, 0, 20)
    assert [row["physical_offset"] for row in rows][:20] == pulled.physical_offsets
    assert [row["queue_offset"] for row in rows] == list(range(offset))
    assert pages > offset // 7
    for row in rows:
        assert_same(store, row)
    assert store.read_queue("T", 1, offset).batch.num_rows == 0
    assert store.read_queue("no such", 1).batch.num_rows == 0


def test_many_queues_are_read_as_each_alone(store: DefaultMessageStore) -> None:
    wanted = {("T", 0): 3, ("T", 1): 0, ("T", 2): 80, ("none", 0): 0, ("T", 9): 0}
    page = store.read_queues(wanted, 10)
    alone = {key: store.read_queue(*key, offset, 10) for key, offset in wanted.items()}
    assert page.next_offsets == {key: one.next_offset for key, one in alone.items()}
    rows = [row for one in alone.values() for row in as_rows([one.batch])]
    assert as_rows([page.batch]) == sorted(rows, key=lambda row: row["physical_offset"])
    assert len(rows) > 20
    assert store.read_queues({}).batch.num_rows == 0


def test_what_a_queue_cannot_show_is_named_and_the_rest_is_there(
    store: DefaultMessageStore,
) -> None:
    place = store.get_message("T", 1, 0, 20).physical_offsets[2]
    log_of(store).queue.files[0].write_at(place + 28, b"\xff")
    page = store.read_queue("T", 1, 0, 10)
    assert page.batch["queue_offset"].to_pylist() == [0, 1, *range(3, 10)]
    assert page.next_offset == 10
    assert [problem.position for problem in page.problems] == [place]


def test_a_queue_whose_files_were_mixed_up_or_lost_names_which_messages_it_does_not_give(
    tmp_path: Path,
) -> None:
    with opened(tmp_path, layouts=frozenset({"consume_queue"})) as store:
        for n in range(70):
            store.put_message(Message("T", b"%d" % n))
    first, second, third = sorted((tmp_path / "consumequeue/T/0").iterdir())[:3]
    swapped = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(swapped)
    third.unlink()
    with rocketcompat.open(tmp_path, "r", CONFIG) as store:
        page = store.read_queue("T", 0, 0, 100)
        assert (page.batch.num_rows, page.next_offset) == (0, 20)
        assert len(page.problems) == 20
        assert "points to this record, which is number 20" in page.problems[0].reason
        page = store.read_queue("T", 0, 40, 100)
        assert (page.batch.num_rows, page.next_offset) == (0, 60)
        assert [problem.reason for problem in page.problems] == [
            "no units for the messages 40 to 59"
        ]
        assert page.problems[0].path == str(third)
        assert store.read_queue("T", 0, 60, 100).batch["queue_offset"].to_pylist() == [
            *range(60, 70)
        ]


def test_many_keys_are_answered_as_each_alone(store: DefaultMessageStore) -> None:
    keys = ["k5", "all", "u9", "none", "m3", "k5", "t"]
    table = store.query_messages("T", keys, max_count=20)
    assert table.column_names == ["key", *RECORD_SCHEMA.names]
    expected = [
        (key, offset)
        for key in keys
        for offset in store.query_message("T", key, 20).physical_offsets
    ]
    pairs = zip(table["key"].to_pylist(), table["physical_offset"].to_pylist(), strict=True)
    assert list(pairs) == expected
    assert len(expected) > 40
    for row in table.drop_columns(["key"]).to_pylist():
        assert_same(store, row)
    assert store.query_messages("T", []).num_rows == 0
    assert store.query_messages("other", ["k5"]).num_rows == 0


def test_a_key_with_the_hash_of_another_is_not_the_other(tmp_path: Path) -> None:
    with opened(tmp_path) as store:  # "Aa" and "BB" have one hash in Java
        store.put_message(Message("T", b"1", keys=["Aa"]))
        store.put_message(Message("T", b"2", keys=["BB", "Aa", "Aa"]))
        dispatcher_of(store).dispatch_pending()
        table = store.query_messages("T", ["BB", "Aa"])
        assert table["body"].to_pylist() == [b"2", b"1", b"2"]


def test_many_keys_need_an_index(tmp_path: Path) -> None:
    store = opened(tmp_path, layouts=frozenset({"consume_queue"}))
    with store, pytest.raises(InvalidMessage, match="no index"):
        store.query_messages("T", ["k"])


@pytest.mark.parametrize("verify", [False, True])
def test_a_unit_that_points_to_an_equal_record_of_its_own_queue_is_named(
    memory_vfs: MemoryVfs, clock: ManualClock, verify: bool
) -> None:
    config = CONFIG.changed(layouts=frozenset({"consume_queue"}))
    with rocketcompat.open(
        "/s", "w", config, vfs=memory_vfs, clock=clock, background=False
    ) as store:
        for _ in range(4):
            store.put_message(Message("T", b"the same"))
    path = "/s/consumequeue/T/0/" + "0" * 20
    file = memory_vfs.open(path)
    file.pwrite(file.pread(CQ_UNIT.size, 2 * CQ_UNIT.size), CQ_UNIT.size)
    file.close()
    with rocketcompat.open("/s", "r", config, vfs=memory_vfs, clock=clock) as store:
        page = store.read_queue("T", 0, verify=verify)
        pulled = store.get_message("T", 0, 0)
    assert page.batch["queue_offset"].to_pylist() == [0, 2, 3]
    assert [(p.path, p.position) for p in page.problems] == [(path, CQ_UNIT.size)]
    assert [message.queue_offset for message in pulled.messages] == [0, 2, 3]
    assert len(pulled.problems) == 1


@pytest.mark.gate
def test_a_unit_of_which_any_bit_has_changed_is_named_and_the_others_are_read(
    memory_vfs: MemoryVfs, clock: ManualClock
) -> None:
    config = CONFIG.changed(layouts=frozenset({"consume_queue"}))
    with rocketcompat.open(
        "/s", "w", config, vfs=memory_vfs, clock=clock, background=False
    ) as store:
        for n in range(10):
            store.put_message(Message("T", b"%d" % n, tags="t"))
        store.put_message(Message("U"))
    path = "/s/consumequeue/T/0/" + "0" * 20
    unit = CQ_UNIT.size
    for bit in range(8 * unit):
        file = memory_vfs.open(path)
        byte = unit + bit // 8
        honest = file.pread(1, byte)
        file.pwrite(bytes([honest[0] ^ 1 << bit % 8]), byte)
        for mode in ("r", "w"):
            with rocketcompat.open(
                "/s", mode, config, vfs=memory_vfs, clock=clock, background=False
            ) as store:
                one = store.read_queue("T", 0)
                many = store.read_queues({("T", 0): 0, ("U", 0): 0})
                store.get_message("T", 0, 0)  # passes it by, as the real store does
            bodies = one.batch["body"].to_pylist()
            assert [b for b in bodies if b != b"1"] == [b"%d" % n for n in range(10) if n != 1]
            sound = b"1" in bodies
            assert sound == (bit >= 96), bit  # behind offset and size: the hash of the tag
            assert many.batch.num_rows == one.batch.num_rows + 1
            for answer in (one, many):
                assert len(answer.problems) == (not sound), (bit, answer)
            assert one.next_offset == many.next_offsets["T", 0] == 10
        file.pwrite(honest, byte)
        file.close()


def test_a_unit_that_points_outside_the_log_is_named_with_its_file_and_position(
    memory_vfs: MemoryVfs, clock: ManualClock
) -> None:
    config = CONFIG.changed(layouts=frozenset({"consume_queue"}))
    with rocketcompat.open(
        "/s", "w", config, vfs=memory_vfs, clock=clock, background=False
    ) as store:
        store.put_columns({"topic": ["T"] * 30})
        dispatcher_of(store).dispatch_pending()
        path = "/s/consumequeue/T/0/" + f"{400:020d}"
        file = memory_vfs.open(path)
        file.pwrite(b"\x7f", 3 * CQ_UNIT.size)
        file.close()
        (problem,) = store.read_queue("T", 0, 20).problems
        assert (problem.path, problem.position) == (path, 60)


def swapped_queues(vfs: MemoryVfs, clock: ManualClock) -> tuple[DefaultMessageStore, list[str]]:
    """A store of three queues of which the files of two have each other's units."""
    config = CONFIG.changed(layouts=frozenset({"consume_queue"}))
    store = rocketcompat.open("/s", "w", config, vfs=vfs, clock=clock, background=False)
    for topic, queue_id in (("T", 0), ("T", 1), ("U", 0)):
        store.put_columns({"topic": [topic] * 5, "queue_id": [queue_id] * 5})
    dispatcher_of(store).dispatch_pending()
    paths = [f"/s/consumequeue/{key}/{0:020d}" for key in ("T/0", "T/1", "U/0")]
    return store, paths


@pytest.mark.parametrize("other", [1, 2])
def test_records_of_another_queue_are_not_given_but_named_with_the_unit_that_points_to_them(
    memory_vfs: MemoryVfs, clock: ManualClock, other: int
) -> None:
    store, paths = swapped_queues(memory_vfs, clock)
    size = CQ_UNIT.size
    foreign = memory_vfs.read_file(paths[other])[size : 3 * size]
    memory_vfs.open(paths[0]).pwrite(foreign, size)
    name = ("T/0", "T/1", "U/0")[other]
    with store:
        page = store.read_queue("T", 0)
        assert page.batch["queue_offset"].to_pylist() == [0, 3, 4]
        assert page.next_offset == 5
        reason = f"a unit of T/0 points to this record of {name}"
        assert [(p.path, p.position, p.reason) for p in page.problems] == [
            (paths[0], size, reason), (paths[0], 2 * size, reason)
        ]  # fmt: skip
        many = store.read_queues({("T", 0): 1, ("T", 1): 0, ("U", 0): 0})
        assert many.batch.num_rows == 2 + 5 + 5
        assert [p.position for p in many.problems] == [size, 2 * size]
        pulled = store.get_message("T", 0, 0)
        assert [m.queue_offset for m in pulled.messages] == [0, 3, 4]
        assert [p.reason for p in pulled.problems] == [reason, reason]
        assert (pulled.status.name, pulled.next_begin_offset) == ("FOUND", 5)
        asked: list[str] = []
        store.get_message("T", 0, 0, where=lambda m: bool(asked.append(f"{m.topic}/{m.queue_id}")))
        assert asked == ["T/0"] * 3


def test_a_queue_of_copies_has_the_records_of_the_queue_that_they_were_put_in(
    memory_vfs: MemoryVfs, clock: ManualClock
) -> None:
    config = CONFIG.changed(
        layouts=frozenset({"consume_queue"}), enable_multi_dispatch=True, enable_lmq=True
    )
    with rocketcompat.open(
        "/s", "w", config, vfs=memory_vfs, clock=clock, background=False
    ) as store:
        for n in range(3):
            store.put_message(
                Message("T", b"%d" % n, properties={"INNER_MULTI_DISPATCH": "%LMQ%a"}, queue_id=2)
            )
        store.put_message(Message("T", b"3", queue_id=2))
        dispatcher_of(store).dispatch_pending()
        page = store.read_queue("%LMQ%a", 0)
        assert page.batch["body"].to_pylist() == [b"0", b"1", b"2"]
        assert page.problems == store.get_message("%LMQ%a", 0, 0).problems == []
        memory_vfs.open(f"/s/consumequeue/%LMQ%a/0/{0:020d}").pwrite(
            memory_vfs.read_file(f"/s/consumequeue/T/2/{0:020d}")[60:80], 20
        )
        assert store.read_queue("%LMQ%a", 0).batch["body"].to_pylist() == [b"0", b"2"]
        assert len(store.get_message("%LMQ%a", 0, 0).problems) == 1


@pytest.mark.parametrize("batches", [False, True])
def test_a_reader_does_not_step_over_messages_that_its_log_does_not_reach(
    memory_vfs: MemoryVfs, clock: ManualClock, batches: bool
) -> None:
    """The queue's files have units of them by the time that it is read."""
    config = CONFIG.changed(
        layouts=frozenset({"consume_queue"}), batch_topics=frozenset({"T"} if batches else ())
    )

    def opened(mode: Any) -> DefaultMessageStore:
        return rocketcompat.open("/s", mode, config, vfs=memory_vfs, clock=clock, background=False)

    with opened("w") as store:
        store.put_message(Message("T", b"1"))
        dispatcher_of(store).dispatch_pending()
        with opened("r") as reader:
            for body in (b"2", b"3", b"4"):
                store.put_message(Message("T", body))
            dispatcher_of(store).dispatch_pending()
            page = reader.read_queue("T", 0)
            assert (page.batch["body"].to_pylist(), page.next_offset) == ([b"1"], 1)
            assert reader.get_message("T", 0, 0).next_begin_offset == 1
            assert reader.max_offset_in_queue("T", 0) == 1
            reader.refresh()
            page = reader.read_queue("T", 0, page.next_offset)
            assert (page.batch["body"].to_pylist(), page.next_offset) == ([b"2", b"3", b"4"], 4)
            assert page.problems == []


@pytest.mark.parametrize(("options", "count"), [
    ({"default_query_max_num": 5}, 5), ({"max_msgs_num_batch": 7}, 7), ({}, 32),
])  # fmt: skip
def test_queries_without_a_count_give_what_the_options_require(
    memory_vfs: MemoryVfs, clock: ManualClock, options: dict[str, int], count: int
) -> None:
    with rocketcompat.open(
        "/s", "w", CONFIG.changed(**options), vfs=memory_vfs, clock=clock, background=False
    ) as store:
        for _ in range(40):
            store.put_message(Message("T", keys="k"))
        dispatcher_of(store).dispatch_pending()
        assert len(store.query_message("T", "k").messages) == count
        assert store.query_messages("T", ["k"]).num_rows == count
        most = options.get("max_msgs_num_batch", 64)
        assert store.query_messages("T", ["k"], 100).num_rows == min(most, 40)


@pytest.mark.parametrize(("options", "end"), [
    ({}, 300), ({"recovery": "upstream"}, 100), ({"check_crc_on_recover": False}, 300),
])  # fmt: skip
def test_a_reader_finds_the_end_as_its_options_require(
    memory_vfs: MemoryVfs, clock: ManualClock, options: dict[str, Any], end: int
) -> None:
    config = CONFIG.changed(layouts=frozenset())
    with rocketcompat.open(
        "/s", "w", config, vfs=memory_vfs, clock=clock, background=False
    ) as store:
        for _ in range(3):
            store.put_message(Message("T", b"12345678"))
        assert store.max_physical_offset == 300
    file = memory_vfs.open("/s/commitlog/" + "0" * 20)
    file.pwrite(b"x", 100 + 88)
    file.close()
    memory_vfs.remove("/s/.tubestore/progress.json")
    with rocketcompat.open(
        "/s", "r", config.changed(**options), vfs=memory_vfs, clock=clock
    ) as reader:
        assert reader.max_physical_offset == end
        assert len(reader.problems) == (not options)


def test_a_page_prints_short(store: DefaultMessageStore) -> None:
    page, pages = store.read_queue("none", 0), store.read_queues({("none", 0): 0})
    assert repr(page) == "QueuePage(0 messages, next_offset=0, problems=0)"
    assert repr(pages) == "QueuesPage(0 messages, 1 queues, problems=0)"


def test_a_page_is_counted_indexed_and_gone_through(memory_vfs: MemoryVfs) -> None:
    with rocketcompat.open("/s", "w", CONFIG, vfs=memory_vfs, background=False) as store:
        for number in range(5):
            host = "[::1]:5" if number == 3 else "10.0.0.1:9"
            store.put_message(Message("T", b"%d" % number, "tag", "k", born_host=host, flag=number))
        dispatcher_of(store).dispatch_pending()
        records = store.get_message("T", 0, 0).messages
        for page in (store.read_queue("T", 0), store.read_queues({("T", 0): 0})):
            assert len(page) == 5
            assert (page[0], page[-1], page[1:3]) == (records[0], records[4], records[1:3])
            assert list(page) == records
            with pytest.raises(IndexError, match="message 5 of a page of 5"):
                page[5]
        assert len(store.read_queue("T", 0, 3)) == 2
        part = store.read_queue("T", 0, columns=["topic", "flag"])
        assert len(part) == 5
        with pytest.raises(ValueError, match=r"no column .*: read without columns="):
            part[0]


def test_a_page_is_a_table_in_the_forms_of_other_libraries(store: DefaultMessageStore) -> None:
    page = store.read_queue("none", 0)
    assert page.to_arrow() == page.table == pa.table(page) == pa.Table.from_batches([page.batch])
    pages = store.read_queues({("none", 0): 0})
    assert pages._repr_html_().startswith("<p>QueuesPage(0 messages, 1 queues, problems=0)</p>")
    assert "<th>queue_offset</th>" in pages._repr_html_()


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_a_page_is_a_data_frame_where_its_library_is_there(
    store: DefaultMessageStore, library: str
) -> None:
    pytest.importorskip(library)
    page = store.read_queues({("none", 0): 0})
    assert len(getattr(page, f"to_{library}")()) == 0
