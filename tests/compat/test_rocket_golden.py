"""Stores that the real RocketMQ wrote, opened by ours; and its records, written again by ours.

Where the real one's answer is a defect, ours is compared with the log instead: every sound record
stands in its queue at its own queue offset, exactly once.
"""

from __future__ import annotations

import os

import pytest

import rocketcompat
from rocketcompat import Message
from rocketcompat.files.progress import Mark, Progress, ProgressFile
from rocketcompat.messages import has_queue_unit
from rocketcompat.queues.recovery import sound_pieces
from rocketcompat.record.codec import decode_one
from rocketcompat.store.default_message_store import DefaultMessageStore
from tests.support.golden import ROCKET_VERSIONS, GoldenFactory, answers
from tests.support.rocket.golden import (
    expected_units,
    open_golden,
    queue_ends,
    records_of,
    units_of,
)
from tests.support.rocket.inside import log_of, queues_of
from tubestore.core.vfs import OsVfs
from tubestore.errors import InvalidMessage

#: Both see the same: messages, queues, records.
SAME = (
    "basic", "rolled", "keys-tags", "crash", "torn-half", "batch", "compressed", "transactions",
    "ipv6", "large", "odd", "defaults", "restarts", "mixed-writers", "expired", "syncflush",
    "pull-limits", "cq-deleted", "cq-index-deleted", "index-deleted", "checkpoint-zero-abort",
    "crash-after-dispatch", "crash-cq-unflushed", "crash-second-session",
    "crash-of-other-version", "cl-first-files-missing", "cl-last-file-missing", "torn-gone",
    "torn-zeroed", "torn-half-abort", "flip-body-last-abort",
)  # fmt: skip

#: The same of the newer version's own forms.
NEWER = ("v2-topics", "propcrc")
CASES = [
    *((version, scenario) for version in ROCKET_VERSIONS for scenario in SAME),
    *((ROCKET_VERSIONS[1], scenario) for scenario in NEWER),
]

#: What the real one does wrong there.
DEFECTS = {
    "index-short": "the real one grows the file, and has lost the items",
    "stale-units": "R7: units behind an earlier cut come back",
    "cq-empty-last-file": "R2: a phantom unit for an all-zero last queue file",
    "cq-hole": "R5: a queue's hole is not filled after a clean exit",
    "cq-one-queue-deleted": "R5: a lost queue is not rebuilt after a clean exit",
    "cq-tail-zeroed": "R5: a queue's lost tail is not rebuilt after a clean exit",
    "cq-all-tails-zeroed": "R1: the record at maxPhyOfCQ is never dispatched (5.3.3)",
    "flip-body-middle-abort": "one bad record drops everything behind it",
    "flip-body-first-file-abort": "one bad record drops everything behind it",
    "bad-size-middle-abort": "one bad record drops everything behind it",
    "bad-magic-last-file-abort": "one bad record drops everything behind it",
    "topic-overflow": "what follows an undecodable record gets no unit, or a wrong one",
}


@pytest.mark.one_in(4)
@pytest.mark.parametrize(("version", "scenario"), CASES)
def test_a_golden_store_opens_as_the_real_class_opens_it(
    golden: GoldenFactory, version: str, scenario: str
) -> None:
    store = golden("rocketmq", version, scenario)
    expected = list(store.expected())
    with open_golden(store) as opened:
        assert opened.problems == []
        assert queue_ends(opened) == {
            (row["topic"], row["queueId"]): (row["minOffset"], row["maxOffset"])
            for row in expected
            if row["type"] == "queue"
        }
        assert list(units_of(opened)) == expected_units(store)
        assert records_of(opened) == [
            (row["physicalOffset"], row.get("size", row.get("storeSize")))
            for row in expected
            if row["type"] == "record"
        ]


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("version", "scenario"),
    [
        *((version, scenario) for version in ROCKET_VERSIONS for scenario in DEFECTS),
        ("5.3.3", "propcrc-flip-props"),  # one bad record drops everything behind it
    ],
)
def test_where_the_real_class_is_wrong_the_answer_is_that_of_the_log(
    golden: GoldenFactory, version: str, scenario: str
) -> None:
    with open_golden(golden("rocketmq", version, scenario)) as opened:
        assert_queues_are_the_log(opened)
        count = len(records_of(opened))
    with open_golden_again(opened) as again:
        assert again.recovered.clean
        assert_queues_are_the_log(again)
        assert len(records_of(again)) == count


def test_an_index_that_lost_its_end_answers_for_every_key_again(golden: GoldenFactory) -> None:
    """The real one grows the file with zeros and finds no key whose chain leads there."""
    with open_golden(golden("rocketmq", "4.9.8", "index-short")) as opened:
        counted = 0
        for piece in sound_pieces(log_of(opened), opened.min_physical_offset, 1 << 62):
            for start in piece.starts.tolist():
                record = decode_one(piece.data, start, check_crc=False)
                for key in record.properties.get("KEYS", "").split():
                    found = opened.query_message(record.topic, key, 1000)
                    assert record.physical_offset in found.physical_offsets
                    counted += 1
        assert counted


def test_units_of_an_earlier_life_do_not_come_back(golden: GoldenFactory) -> None:
    store = golden("rocketmq", "4.9.8", "stale-units")
    with open_golden(store) as opened:
        ends = {key: end for key, (_, end) in queue_ends(opened).items()}
    real = {(row["topic"], row["queueId"]): row["maxOffset"]
            for row in store.expected(type="queue")}  # fmt: skip
    assert sum(ends.values()) == 37
    assert sum(real.values()) == 43  # R7: six phantoms


@pytest.mark.parametrize("version", ROCKET_VERSIONS)
@pytest.mark.parametrize("mode", ["upstream"])
def test_upstream_recovery_cuts_where_the_real_class_cuts(
    golden: GoldenFactory, version: str, mode: str
) -> None:
    store = golden("rocketmq", version, "flip-body-middle-abort")
    with open_golden(store, recovery=mode) as opened:
        assert records_of(opened) == [
            (row["physicalOffset"], row["size"]) for row in store.expected(type="record")
        ]


@pytest.mark.parametrize("version", ROCKET_VERSIONS)
def test_a_reader_changes_nothing(golden: GoldenFactory, version: str) -> None:
    store = golden("rocketmq", version, "crash")
    before = {path: path.read_bytes() for path in store.store.rglob("*") if path.is_file()}
    with open_golden(store, mode="r") as opened:
        assert len(records_of(opened)) == sum(1 for _ in store.expected(type="record"))
    after = {path: path.read_bytes() for path in store.store.rglob("*") if path.is_file()}
    assert after == before


def open_golden_again(store: DefaultMessageStore) -> DefaultMessageStore:
    return rocketcompat.open(store.root, "w", store.config, background=False)


def assert_queues_are_the_log(store: DefaultMessageStore) -> None:
    """Every sound record has its unit; every other unit stands for damage that is reported."""
    wanted = {}
    for piece in sound_pieces(log_of(store), store.min_physical_offset, 1 << 62):
        for start in piece.starts.tolist():
            record = decode_one(piece.data, start, check_crc=False)
            if has_queue_unit(record.sys_flag):
                place = (record.topic, record.queue_id, record.queue_offset)
                assert place not in wanted
                wanted[place] = (record.physical_offset, record.size)
    for queue in queues_of(store):
        for offset in range(queue.min_offset, queue.max_offset):
            unit = queue.unit(offset)
            found = wanted.pop((queue.topic, queue.queue_id, offset), None)
            if found is None:
                assert log_of(store).gaps.over(unit.physical_offset)
            else:
                assert (unit.physical_offset, unit.size) == found
    assert wanted == {}
    assert bool(store.problems) == bool(log_of(store).gaps)


def test_the_scenarios_named_here_are_there() -> None:
    for version in ROCKET_VERSIONS:
        for scenario in (*SAME, *DEFECTS):
            assert answers("rocketmq", version, scenario).meta["scenario"] == scenario


@pytest.mark.parametrize("believed", [True, False])
@pytest.mark.parametrize("version", ROCKET_VERSIONS)
def test_a_property_of_zeros_that_a_real_broker_stored_is_read_and_kept(
    golden: GoldenFactory, version: str, believed: bool
) -> None:
    """Brokers take U+0000; ours refuses it, to know a torn record of its own by zeros there."""
    theirs = golden("rocketmq", version, "odd")
    (row,) = [row for row in theirs.puts() if "\0" in row["in"].get("properties", "")]
    place = row["out"]["wroteOffset"]
    with open_golden(theirs) as store:
        assert store.look_message(place).properties["k"] == "\0"
        count = len(records_of(store))
    progress = ProgressFile(OsVfs(), str(theirs.store))
    (theirs.store / "abort").touch()
    if not believed:  # a mark of ours that is not to be believed tells nothing of who wrote
        progress.write(Progress(Mark(1, 1), {}), sync=True)
        os.utime(theirs.store / "lock", (1, 1))  # as if a broker had opened the store since
    with open_golden(theirs, "r") as store:
        assert store.problems == []
        assert store.look_message(place).properties["k"] == "\0"
    with open_golden(theirs) as store:
        assert store.problems == []
        assert store.look_message(place).properties["k"] == "\0"
        assert len(records_of(store)) == count
        with pytest.raises(InvalidMessage, match=r"U\+0000"):
            store.put_message(Message("T", b"x", properties="k\x01\0"))
