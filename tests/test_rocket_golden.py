"""Stores that the real RocketMQ wrote, opened by ours; and its records, written again by ours.

Where the real one's answer is a defect (``oracle-rocketmq.md``), ours is compared with the
log instead: every sound record stands in its queue at its own queue offset, exactly once.
"""

from __future__ import annotations

import base64
from typing import Any

import pytest

import rocketcompat
from rocketcompat import Message
from rocketcompat.codec import decode_one, encode_one
from rocketcompat.default_message_store import DefaultMessageStore
from rocketcompat.messages import has_queue_unit
from rocketcompat.prepare import prepare
from rocketcompat.recovery import sound_pieces
from tests.support.golden import ROCKET_VERSIONS, GoldenFactory, answers
from tests.support.rocket_golden import (
    config_of,
    expected_units,
    open_golden,
    queues_of,
    records_of,
    units_of,
)
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

#: What the real one does wrong there.
DEFECTS = {
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


@pytest.mark.parametrize("version", ROCKET_VERSIONS)
@pytest.mark.parametrize("scenario", SAME)
def test_a_golden_store_opens_as_the_real_one_opens_it(
    golden: GoldenFactory, version: str, scenario: str
) -> None:
    store = golden("rocketmq", version, scenario)
    expected = list(store.expected())
    with open_golden(store) as opened:
        assert opened.problems == []
        assert queues_of(opened) == {
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


@pytest.mark.parametrize("version", ROCKET_VERSIONS)
@pytest.mark.parametrize("scenario", DEFECTS)
def test_where_the_real_one_is_wrong_ours_is_what_the_log_says(
    golden: GoldenFactory, version: str, scenario: str
) -> None:
    with open_golden(golden("rocketmq", version, scenario)) as opened:
        assert_queues_are_the_log(opened)
        count = len(records_of(opened))
    with open_golden_again(opened) as again:
        assert again.recovered.clean
        assert_queues_are_the_log(again)
        assert len(records_of(again)) == count


def test_units_of_an_earlier_life_do_not_come_back(golden: GoldenFactory) -> None:
    store = golden("rocketmq", "4.9.8", "stale-units")
    with open_golden(store) as opened:
        ends = {key: end for key, (_, end) in queues_of(opened).items()}
    real = {(row["topic"], row["queueId"]): row["maxOffset"]
            for row in store.expected(type="queue")}  # fmt: skip
    assert sum(ends.values()) == 37
    assert sum(real.values()) == 43  # R7: six phantoms


@pytest.mark.parametrize("version", ROCKET_VERSIONS)
@pytest.mark.parametrize("mode", ["upstream"])
def test_upstream_recovery_cuts_where_the_real_one_cuts(
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


@pytest.mark.parametrize("version", ROCKET_VERSIONS)
@pytest.mark.parametrize("scenario", ["basic", "rolled", "keys-tags", "transactions", "syncflush"])
def test_records_put_again_are_the_same_bytes_but_for_the_store_time(
    golden: GoldenFactory, version: str, scenario: str
) -> None:
    store = golden("rocketmq", version, scenario)
    theirs = records_by_place(store)
    root = store.root / "again"
    with open_golden_at(root, store) as opened:
        for row in store.puts():
            if row["in"]["op"] != "put" or row["out"].get("append") != "PUT_OK":
                continue
            result = opened.put_message(message_of(row["in"]))
            assert result.physical_offset == row["out"]["wroteOffset"]
            assert result.queue_offset == row["out"]["logicsOffset"]
            assert result.msg_id == row["out"]["msgId"]
            raw = bytearray(opened.commit_log.read_at(result.physical_offset, result.size))
            at = 68 if opened.look_message(result.physical_offset).sys_flag & 0x10 else 56
            expected = bytearray(theirs[result.physical_offset])
            raw[at : at + 8] = expected[at : at + 8] = bytes(8)
            assert raw == expected


@pytest.mark.parametrize("version", ROCKET_VERSIONS)
@pytest.mark.parametrize("scenario", ["ipv6", "odd", "large"])
def test_a_record_encoded_with_the_same_place_and_time_is_the_same_bytes(
    golden: GoldenFactory, version: str, scenario: str
) -> None:
    store = golden("rocketmq", version, scenario)
    config = config_of(store)
    theirs = records_by_place(store)
    count = 0
    for row in store.puts():
        given, out = row["in"], row["out"]
        encodable = {"text", "body", "fill"} & set(given)
        if given["op"] != "put" or out.get("append") != "PUT_OK" or not encodable:
            continue
        if "\0" in given.get("properties", ""):
            with pytest.raises(InvalidMessage):  # refused: it could not be told from a torn one
                prepare(message_of(given), config)
            continue
        prepared = prepare(message_of(given), config)
        raw = encode_one(prepared, out["logicsOffset"], out["wroteOffset"], out["storeTimestamp"])
        assert raw == theirs[out["wroteOffset"]]
        count += 1
    assert count > 5


def open_golden_at(root: Any, store: Any) -> DefaultMessageStore:
    return rocketcompat.open(root, "w", config_of(store), background=False)


def open_golden_again(store: DefaultMessageStore) -> DefaultMessageStore:
    return rocketcompat.open(store.root, "w", store.config, background=False)


def records_by_place(store: Any) -> dict[int, bytes]:
    size = store.meta["config"].get("mappedFileSizeCommitLog", 1 << 30)
    found = {}
    for row in store.expected():
        if row["type"] == "record":
            place, length = row["physicalOffset"], row.get("size", row.get("storeSize"))
            path = store.store / "commitlog" / f"{place - place % size:020d}"
            with path.open("rb") as file:
                file.seek(place % size)
                found[place] = file.read(length)
    return found


def message_of(given: dict[str, Any]) -> Message:
    body = b""
    if "text" in given:
        body = given["text"].encode()
    elif "body" in given:
        body = base64.b64decode(given["body"])
    elif "fill" in given:
        seed = given.get("seed", 0)
        body = bytes((seed + 31 * i + (i >> 8)) & 255 for i in range(given["fill"]))
    return Message(
        given["topic"],
        body,
        properties=given.get("properties", ""),
        queue_id=given.get("queueId", 0),
        flag=given.get("flag", 0),
        sys_flag=given.get("sysFlag", 0),
        born_timestamp=given["bornTimestamp"],
        born_host=given.get("bornHost", "10.1.2.3:45678"),
        store_host=given.get("storeHost", "192.168.0.9:10911"),
        reconsume_times=given.get("reconsumeTimes", 0),
        prepared_transaction_offset=given.get("preparedTransactionOffset", 0),
    )


def assert_queues_are_the_log(store: DefaultMessageStore) -> None:
    """Every sound record has its unit; every other unit stands for damage that is reported."""
    wanted = {}
    for piece in sound_pieces(store.commit_log, store.min_physical_offset, 1 << 62):
        for start in piece.starts.tolist():
            record = decode_one(piece.data, start, check_crc=False)
            if has_queue_unit(record.sys_flag):
                place = (record.topic, record.queue_id, record.queue_offset)
                assert place not in wanted
                wanted[place] = (record.physical_offset, record.size)
    assert store.queues is not None
    for queue in store.queues:
        for offset in range(queue.min_offset, queue.max_offset):
            unit = queue.unit(offset)
            found = wanted.pop((queue.topic, queue.queue_id, offset), None)
            if found is None:
                assert store.commit_log.is_damaged(unit.physical_offset)
            else:
                assert (unit.physical_offset, unit.size) == found
    assert wanted == {}
    assert bool(store.problems) == bool(store.commit_log.damages)


def test_the_scenarios_named_here_are_there() -> None:
    for version in ROCKET_VERSIONS:
        for scenario in (*SAME, *DEFECTS):
            assert answers("rocketmq", version, scenario).meta["scenario"] == scenario
